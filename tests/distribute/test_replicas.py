"""`fit` on the workers of a cluster: weights, logs and numbers of steps are those of one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.tasks import PATIENCE

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = pytest.mark.xdist_group("tasks")


def run(*command: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=4 * PATIENCE
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def launch(workers: int, ps: int, script: str, *arguments: str, status: int = 0) -> str:
    counts = ["-n", str(workers), "--ps", str(ps)]
    return run("-m", "anabranch", "launch", *counts, str(SCRIPTS / script), *arguments, status=status)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process finds."""
    output = tmp_path_factory.mktemp("alone") / "found"
    run(str(SCRIPTS / "train_models.py"), str(output))
    return np.load(f"{output}-0.npz")


@pytest.mark.parametrize(("workers", "ps"), [(2, 2), pytest.param(3, 1, marks=pytest.mark.slow)])
def test_replicas_find_what_one_process_finds(workers: int, ps: int, alone: Any, tmp_path: Path) -> None:
    launch(workers, ps, "train_models.py", str(tmp_path / "found"))
    for worker in range(workers):
        found = np.load(tmp_path / f"found-{worker}.npz")
        assert set(found.files) == set(alone.files)
        for name in alone.files:
            precision = 1e-10 if name.startswith("float64") else 2e-5
            np.testing.assert_allclose(found[name], alone[name], precision, precision, err_msg=name)


def test_two_runs_give_the_same_bits(tmp_path: Path) -> None:
    for name in ("first", "second"):
        launch(2, 1, "train_models.py", str(tmp_path / name), "table", "clipped")
    first, second = (np.load(tmp_path / f"{name}-0.npz") for name in ("first", "second"))
    for name in first.files:
        assert first[name].tobytes() == second[name].tobytes(), name
