"""Pages of a library leave the resident memory, and come back when its code is called."""

import subprocess
import sys

import pytest

from anabranch.engine.common import memory

PROGRAM = """
import re
import llvmlite.binding as llvm
from anabranch.engine.common.memory import release_pages

FORM = r"^\\w+-\\w+ \\S+ \\S+ \\S+ \\S+ +\\S*/libllvmlite.*\\n(?:.*\\n)*?Rss: +(\\d+) kB$"

def resident():
    with open("/proc/self/smaps") as file:
        return sum(map(int, re.findall(FORM, file.read(), re.M)))

llvm.initialize_native_target()
before = resident()
release_pages("no such library")
release_pages("libllvmlite")
print(before, resident())
print(llvm.parse_assembly("define i32 @same(i32 %x) { ret i32 %x }").get_function("same").name)
"""


MAPPING = """{start:x}-{end:x} {rights} 00000000 fe:00 123    /opt/some where/{name}
Size:                 16 kB
Anonymous:            {anonymous} kB
AnonHugePages:         0 kB
Swap:                 {swap} kB
SwapPss:               0 kB
VmFlags: rd ex mr mw me
"""


def test_mappings_with_a_changed_page_stay() -> None:
    """Relocated addresses that were on a swap device were lost: nothing of them counts as anonymous."""
    same = {"rights": "r-xp", "name": "libllvmlite.so", "anonymous": 0, "swap": 0}
    differences = [{}, {"anonymous": 4}, {"swap": 4}, {"rights": "r--p"}, {"rights": "rw-p"}, {"name": "libm.so"}]
    text = "".join(
        MAPPING.format(start=16 * number, end=16 * number + 16, **same | each)
        for number, each in enumerate(differences, 1)
    )
    assert memory._unchanged(text, "libllvmlite") == [(16, 32), (64, 80)]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say what is resident")
def test_pages_of_a_library_are_released() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    before, after, name = found.stdout.split()
    assert int(after) < int(before) / 2
    assert name == "same"
