"""Each process lowers a step to the same program: addresses, hash seeds and what was lowered before do not count."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared.lowered_steps import lowered_steps

TESTS = Path(__file__).parents[1]
LIMIT = 900  # seconds


def check(number: int, count: int) -> None:
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "shared.lowered_steps", str(number), str(count)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        here = lowered_steps(number, count)
        output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    there = json.loads(output)
    assert len(here) == len(there) >= count
    assert sum("recv(" in text for texts in here for text in texts) >= count // 2
    for own, other in zip(here, there, strict=True):
        for text, other_text in zip(own, other, strict=True):
            assert text == other_text, "\n".join(difflib.unified_diff(text.splitlines(), other_text.splitlines()))


def test_two_processes_lower_alike():
    check(0, 4)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 9))
def test_two_processes_lower_many_programs_alike(number: int):
    check(number, 40)
