"""Scripts that tests run in processes, each worker of which writes what it has found into a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from .tasks import PATIENCE


def run(*command: str, status: int = 0) -> str:
    """Run Python with these arguments, and check its exit status; return what it printed."""
    done = subprocess.run(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3 * PATIENCE
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def found(folder: Path, worker: int) -> Any:
    """Return what a worker has written."""
    return json.loads((folder / f"found-{worker}.json").read_text())


def check_equal(mine: Any, expected: Any) -> None:
    """Check that a worker has the history and the values of one process, to which each row of an epoch counts once."""
    assert mine["has ended"] == expected["has ended"] == [True, [0, 1, 2]]
    assert {*mine["history"]} == {*expected["history"]}
    for name, values in expected["history"].items():
        np.testing.assert_allclose(mine["history"][name], values, 1e-9, err_msg=name)
    for name in ("weights", "optimizer"):
        for value, other in zip(mine[name], expected[name], strict=True):
            np.testing.assert_allclose(value, other, 1e-9, 1e-11, err_msg=name)
    np.testing.assert_allclose(mine["evaluated"], expected["evaluated"], 1e-9)
