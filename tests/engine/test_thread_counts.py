"""The same bits on any number of threads, and from kernels just compiled as from those on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared import computed_bits

SCRIPT = Path(computed_bits.__file__)


def digests(threads: int, cache: Path | None = None) -> dict[str, str]:
    environment = {**os.environ, "ANABRANCH_NUM_THREADS": str(threads)}
    if cache is not None:
        environment["ANABRANCH_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(counts: tuple[int, ...], cache: Path | None) -> None:
    first = digests(2, cache)
    for threads in counts:
        found = digests(threads, cache)
        assert [name for name in first if found[name] != first[name]] == [], f"2 threads and {threads} differ"


def test_all_have_the_same_bits():
    """Kernels that an earlier run has compiled are used again: to optimise all of these takes 12 s."""
    check((3,), None)


@pytest.mark.slow
def test_kernels_on_disk_have_the_bits_of_those_just_compiled(tmp_path: Path):
    """The first process compiles the kernels, the others find them on disk, whose files are sealed by their content."""
    check((1, 3, 7), tmp_path)
