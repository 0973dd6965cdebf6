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


def digests(cache: Path, threads: int) -> dict[str, str]:
    environment = {**os.environ, "ANABRANCH_CACHE_DIR": str(cache), "ANABRANCH_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("counts", [(3,), pytest.param((1, 3, 7), marks=pytest.mark.slow)])
def test_all_have_the_same_bits(counts: tuple[int, ...], tmp_path: Path):
    """The first process compiles the kernels, the others find them on disk."""
    first = digests(tmp_path, 2)
    for threads in counts:
        found = digests(tmp_path, threads)
        assert [name for name in first if found[name] != first[name]] == [], f"2 threads and {threads} differ"
