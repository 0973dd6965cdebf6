"""Each process lowers a step to the same program: addresses, hash seeds and what was lowered before do not count."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared.examples import examples

TESTS = Path(__file__).parents[1]
LIMIT = 900  # seconds


def check(number: int, count: int) -> None:
    # Two new processes: what Hypothesis draws depends on the modules that a process has imported.
    with _process(number, count, 1) as first, _process(number, count, 2) as second:
        outputs = [process.communicate(timeout=LIMIT)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0]
    here, there = map(json.loads, outputs)
    assert len(here) == len(there) >= count
    assert sum("recv(" in text for texts in here for text in texts) >= max(1, count // 2)
    for own, other in zip(here, there, strict=True):
        for text, other_text in zip(own, other, strict=True):
            assert text == other_text, "\n".join(difflib.unified_diff(text.splitlines(), other_text.splitlines()))


def _process(number: int, count: int, hash_seed: int) -> subprocess.Popen[str]:
    """A process that lowers the steps, the second one in reverse order."""
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "shared.lowered_steps", str(number), str(count), str(hash_seed - 1)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_two_processes_lower_alike():
    check(0, examples(1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 9))
def test_two_processes_lower_many_programs_alike(number: int):
    check(number, 40)
