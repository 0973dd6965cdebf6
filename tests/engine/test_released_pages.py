"""Pages of a library leave the resident memory, and come back when its code is called."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say what is resident")

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


def test_pages_of_a_library_are_released() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    before, after, name = found.stdout.split()
    assert int(after) < int(before) / 2
    assert name == "same"
