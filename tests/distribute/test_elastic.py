"""Training that goes on: ps tasks, the chief and other workers that are lost, leave and come while replicas train."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.tasks import PATIENCE
from shared.waiting import Waiting, go, in_time, reached

from anabranch.distribute.commands.processes import Launch

SCRIPT = str(Path(__file__).parent / "scripts" / "train_elastic.py")
pytestmark = [
    pytest.mark.xdist_group("tasks"),
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes"),
]


@pytest.fixture(autouse=True)
def _on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without kernels: these tests do not depend on them, and compiling takes most of the time."""
    monkeypatch.setenv("ANABRANCH_KERNELS", "0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("reached", "go"):
        os.mkfifo(tmp_path / name)
    return tmp_path


def found(folder: Path, worker: int) -> Any:
    return json.loads((folder / f"found-{worker}.json").read_text())


def assert_same(mine: Any, expected: Any) -> None:
    """Two runs have the same results; their last epochs may have had other shares of batches, so up to rounding."""
    assert (mine["epochs"], mine["batches"]) == (expected["epochs"], expected["batches"])
    assert mine["history"].keys() == expected["history"].keys()
    for name, values in mine["history"].items():
        np.testing.assert_allclose(values, expected["history"][name], 1e-10, err_msg=name)
    for name in ("weights", "optimizer"):
        for value, other in zip(mine[name], expected[name], strict=True):
            np.testing.assert_allclose(value, other, 1e-10, 1e-10, err_msg=name)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Train with two workers to whom nothing happens."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    (folder / "was here").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_KERNELS", "0")
        with Launch(2, 2, [SCRIPT, str(folder)]) as run:
            assert in_time(run.wait) == 0
    return found(folder, 0)


@pytest.mark.parametrize("lost", [0, 1])
def test_training_goes_on_from_the_last_backup_when_a_ps_task_is_lost(
    lost: int, folder: Path, uninterrupted: Any, capfd: Any
) -> None:
    with Launch(2, 2, [SCRIPT, str(folder)], max_restarts=1) as run:
        assert reached(folder) == "the place"
        workers = [worker.pid for worker in run.workers]
        run.ps[lost].kill()
        status = Waiting(run.wait)
        go(folder)
        assert status.result(2 * PATIENCE) == 0
        assert [worker.pid for worker in run.workers] == workers, "no worker was started again"
    for mine in (found(folder, 0), found(folder, 1)):
        for name in ("history", "epochs", "weights"):
            assert mine[name] == uninterrupted[name], name
    mine = found(folder, 0)
    assert mine["optimizer"] == uninterrupted["optimizer"]
    assert mine["batches"] == 21, "callbacks go back to the backup, too"
    assert not (folder / "backup").exists(), "the run has come to its end"
    printed = capfd.readouterr().err
    assert f"ps {lost} ended with exit status -9 (SIGKILL); it is started again (restart 1 of 1)." in printed
    assert "Training goes on from its last backup" in printed


def test_an_error_says_with_what_training_would_have_gone_on(folder: Path, capfd: Any) -> None:
    with Launch(2, 2, [SCRIPT, str(folder)]) as run:
        assert reached(folder) == "the place"
        run.ps[1].kill()
        status = Waiting(run.wait)
        go(folder)
        assert status.result(2 * PATIENCE) != 0
    note = "fit would go on by itself from its last backup with max_restarts above 0 (`launch --max-restarts 3`)."
    assert note in capfd.readouterr().err


def assert_same_bits(mine: Any, expected: Any) -> None:
    for name in ("history", "epochs", "weights", "optimizer", "batches"):
        assert mine[name] == expected[name], name


def test_a_ps_task_is_lost_before_the_first_backup_within_an_epoch(folder: Path, uninterrupted: Any) -> None:
    """The first epoch begins again, with the order of rows that it had."""
    with Launch(2, 2, [SCRIPT, str(folder), "0", "0"], max_restarts=1) as run:
        assert reached(folder) == "the place"
        run.ps[1].kill()
        status = Waiting(run.wait)
        go(folder)
        assert status.result(2 * PATIENCE) == 0
    assert_same_bits(found(folder, 0), uninterrupted)


@pytest.mark.parametrize("batch", [0, 3])
def test_a_run_that_ended_in_its_first_epoch_is_taken_up(batch: int, folder: Path, uninterrupted: Any) -> None:
    """The next epoch has an order of rows of its own."""
    with Launch(2, 2, [SCRIPT, str(folder), "0", str(batch)]):
        assert reached(folder) == "the place"
    with Launch(2, 2, [SCRIPT, str(folder)]) as run:
        assert in_time(run.wait) == 0
    assert_same_bits(found(folder, 0), uninterrupted)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_another_worker_takes_over_from_a_chief_that_is_lost(
    how: str, folder: Path, uninterrupted: Any, capfd: Any
) -> None:
    with Launch(2, 2, [SCRIPT, str(folder)]) as run:
        assert reached(folder) == "the place"
        run.workers[0].send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        status = Waiting(run.wait)
        assert run.workers[1].wait(2 * PATIENCE) == 0
        if how == "stopped":
            run.workers[0].send_signal(signal.SIGCONT)
            go(folder)
        assert status.result(PATIENCE) == 0, "it is the status of who is the chief at the end"
        assert run.workers[0].returncode == (-signal.SIGKILL if how == "killed" else 1)
    mine = found(folder, 1)
    assert_same(mine, uninterrupted)
    assert not (folder / "found-0.json").exists()
    assert not (folder / "backup").exists(), "the run has come to its end"
    printed = capfd.readouterr()
    assert "/job:worker/task:1 leads the training from now on." in printed.out
    if how == "stopped":
        assert "does not lead any more" in printed.err, "the old chief ends, and says why"


def test_another_worker_takes_over_between_two_epochs(folder: Path, uninterrupted: Any) -> None:
    """Its callbacks were called once more for as many batches as had been applied since the run began."""
    with Launch(2, 2, [SCRIPT, str(folder), "2", "-1"]) as run:
        assert reached(folder) == "the place"
        run.workers[0].kill()
        assert Waiting(run.wait).result(2 * PATIENCE) == 0
    assert_same(found(folder, 1), uninterrupted)


@pytest.mark.parametrize("leaving", [0, 1])
def test_a_worker_that_is_to_leave_hands_its_rows_back_and_ends_well(
    leaving: int, folder: Path, uninterrupted: Any, capfd: Any
) -> None:
    with Launch(2, 2, [SCRIPT, str(folder)]) as run:
        assert reached(folder) == "the place"
        run.workers[leaving].terminate()
        if leaving == 1:  # before the chief goes on
            assert run.workers[1].wait(PATIENCE) == 0
        go(folder)
        assert in_time(run.wait) == 0
        assert [worker.returncode for worker in run.workers] == [0, 0]
    mine = found(folder, 1 - leaving)
    assert_same(mine, uninterrupted)
    assert not (folder / f"found-{leaving}.json").exists()
    receipts = mine["statistics"]["receipts"].values()
    assert sum(each["taken"] for each in receipts) == 35, "two shares of a step in two epochs, then one"
    assert sum(each["refused"] for each in receipts) == 0, "the step that was under way was finished"
    printed = capfd.readouterr()
    assert f"/job:worker/task:{leaving} leaves the training." in printed.out + printed.err
