"""`fit` under `ParameterServer` on data that the chief reads: generators, shuffled datasets, parts of passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.tasks import PATIENCE
from shared.waiting import SCRIPT_SECONDS, Waiting, go, in_time, reached

from anabranch.distribute.commands.processes import Launch

SCRIPT = str(Path(__file__).parent / "scripts" / "train_on_generators.py")
pytestmark = pytest.mark.xdist_group("tasks")


@pytest.fixture(autouse=True)
def _on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without kernels: these tests do not depend on them, and compiling takes most of the time."""
    monkeypatch.setenv("ANABRANCH_KERNELS", "0")


def launch(workers: int, ps: int, *arguments: str) -> int:
    with Launch(workers, ps, [SCRIPT, *arguments]) as run:
        return in_time(run.wait)


def found(folder: Path, worker: int = 0) -> Any:
    return json.loads((folder / f"found-{worker}.json").read_text())


def alone(folder: Path, *how: str) -> Any:
    """Return the results of one process."""
    command = [sys.executable, "-W", "ignore", SCRIPT, "ParameterServer", str(folder), *how]
    subprocess.run(command, check=True, timeout=4 * PATIENCE)
    return found(folder)


def assert_same(mine: Any, expected: Any) -> None:
    assert mine.keys() == expected.keys()
    assert mine["updates"] == expected["updates"]
    for name in mine.keys() - {"updates", "seen", "weights"}:
        assert mine[name].keys() == expected[name].keys()
        for log, values in expected[name].items():
            np.testing.assert_allclose(mine[name][log], values, 1e-10, err_msg=f"{name}: {log}")
    for weight, other in zip(mine["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(weight, other, 1e-10, 1e-10)


def test_results_are_those_of_one_process(tmp_path: Path) -> None:
    assert launch(3, 1, "ParameterServer", str(tmp_path)) == 0
    workers = [found(tmp_path, worker) for worker in range(3)]
    expected = alone(tmp_path)
    for mine in workers:
        assert_same(mine, expected)
    assert workers[0]["seen"] == expected["seen"], "callbacks see the same batches"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["backups", "asynchronous"])
def test_rows_are_handed_out_with_backup_workers_and_asynchronously(kind: str, tmp_path: Path) -> None:
    assert launch(3, 2, kind, str(tmp_path)) == 0
    mine, expected = found(tmp_path), alone(tmp_path)
    assert mine["updates"] == expected["updates"]
    for name in ("whole", "steps", "arrays", "rows", "shuffled"):
        assert len(mine[name]["loss"]) == len(expected[name]["loss"])
        assert np.all(np.isfinite(mine[name]["loss"]))


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_rows_of_a_worker_that_is_lost_count_once(lost: int, tmp_path: Path) -> None:
    """A worker that takes over from the chief reads its own generator on from there."""
    for name in ("reached", "go"):
        os.mkfifo(tmp_path / name)
    with Launch(2, 2, [SCRIPT, "ParameterServer", str(tmp_path), "lost"], max_restarts=lost) as run:
        assert reached(tmp_path) == "the place"
        run.workers[lost].kill()
        if lost == 1:  # it is started again
            status = Waiting(run.wait)
            go(tmp_path)
            assert status.result(SCRIPT_SECONDS) == 0
        else:
            assert in_time(run.wait) == 0
    mine = [found(tmp_path, worker) for worker in range(2) if worker or lost]
    (tmp_path / "alone").mkdir()
    expected = alone(tmp_path / "alone", "none is lost")
    for each in mine:
        assert_same(each, expected)


def test_an_error_in_the_chiefs_data_ends_all(tmp_path: Path, capfd: Any) -> None:
    assert launch(2, 1, "ParameterServer", str(tmp_path), "read") == 1
    printed = capfd.readouterr()
    assert "OSError: the data can't be read" in printed.err
    assert "/job:worker/task:0, which leads the training, has ended it: the data can't be read" in printed.out
