"""Collectives of values on GPUs, by NCCL. Stand-ins are the GPUs: see `shared.fake_nccl`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.fake_nccl import FOLDER

from anabranch.distribute.commands.processes import Launch

pytestmark = pytest.mark.xdist_group("tasks")
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def on_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a script in workers with a GPU each; gives what each has saved."""
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS.parents[1]))
    monkeypatch.setenv(FOLDER, str(tmp_path))

    def run(script: str, workers: int) -> list[list[Any]]:
        with Launch(workers, 0, [str(SCRIPTS / script), str(tmp_path)]) as launch:
            assert launch.wait() == 0
        return [[*np.load(tmp_path / f"{rank}.npz").values()] for rank in range(workers)]

    return run


@pytest.mark.parametrize("workers", [2, 3])
def test_sums_of_processes(workers: int, on_gpus: Any) -> None:
    given = [np.random.default_rng(rank).normal(size=(2 * workers, 3)) for rank in range(workers)]
    want = sum(np.tanh(each) for each in given)
    for total, y in on_gpus("sum_on_gpus.py", workers):
        np.testing.assert_allclose(total, want, 1e-12)
        np.testing.assert_allclose(y, np.exp(want), 1e-12)
