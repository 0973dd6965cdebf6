"""`fit` under `DataParallel` while workers are lost or leave: the others go on from the step, with the same results."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from shared.worker_scripts import check_equal, found, run

from anabranch.distribute.commands.processes import Launch

SCRIPT = str(Path(__file__).parent / "scripts" / "train_on_fewer.py")
pytestmark = pytest.mark.xdist_group("tasks")


def launch(workers: int, folder: Path, *arguments: str, status: int = 0) -> str:
    counts = ["-n", str(workers), "--ps", "0"]
    return run("-m", "anabranch", "launch", *counts, SCRIPT, str(folder), *arguments, status=status)


@pytest.mark.parametrize(
    ("model", "workers", "lost"),
    [
        ("dense", 4, ["0:7", "2:2:BUCKET"]),
        *[
            pytest.param(*each, marks=pytest.mark.slow, id=f"{each[0]} {each[1]} {'+'.join(each[2])}")
            for each in (
                ("dense", 3, ["2:3"]),
                ("table", 3, ["2:5:BUCKET"]),
                ("dense", 3, ["2:4"]),  # the last step of an epoch
                ("dense", 2, ["1:14"]),  # the last of all
                ("dense", 4, ["1:3", "3:3"]),
                ("generated", 4, ["1:2:BUCKET", "2:4", "3:9:TERM"]),
                ("table", 3, ["1:0"]),
                ("synchronized", 3, ["1:3", "2:8:TERM"]),  # batches of 12 and 2 rows
                ("synchronized", 4, ["3:3", "1:9"]),  # of which two workers, then one, have none
                ("dense", 3, ["0:2"]),
                ("dense", 3, ["0:2:BUCKET"]),
                ("table", 4, ["0:5:TERM", "1:9"]),
                ("dense", 3, ["0:1:BEGIN"]),
                ("dense", 3, ["0:0:TEST"]),
                ("dense", 3, ["0:1:PASS"]),
                ("dense", 3, ["0:1:END"]),
                ("dense", 3, ["0:0:BEGIN", "1:0:PASS"]),
                ("dense", 3, ["0:4"]),  # the last step of an epoch
                ("dense", 4, ["0:7", "2:7"]),  # both at once
                ("dense", 4, ["0:7", "1:7"]),
                ("dense", 3, ["0:2:END"]),  # the last epoch
                ("generated", 3, ["0:7"]),
                ("generated", 4, ["0:2:BUCKET", "1:4", "2:11:TERM"]),
                ("generated", 3, ["0:1:BEGIN"]),
                ("generated", 3, ["0:2:END"]),
                ("saved", 3, ["0:8"]),
                ("synchronized", 3, ["0:3", "1:8:TERM"]),
                ("synchronized", 4, ["0:3:BUCKET", "1:9"]),
            )
        ],
    ],
)
def test_the_others_go_on(model: str, workers: int, lost: list[str], tmp_path: Path) -> None:
    """Dropout draws by row, so that any number of workers has the results of one process."""
    alone = tmp_path / "alone"
    alone.mkdir()
    run(SCRIPT, str(alone), model)
    expected = found(alone, 0)
    printed = launch(workers, tmp_path, model, *lost)
    gone = [int(each.split(":")[0]) for each in lost]
    rest = [worker for worker in range(workers) if worker not in gone]
    for worker in rest:
        mine = found(tmp_path, worker)
        assert mine["members"] == rest
        assert mine["seen"] == expected["seen"], "each step is seen once"
        assert mine["leads"] == (worker == rest[0])
        check_equal(mine, expected)
        assert mine["weights"] == found(tmp_path, rest[0])["weights"]
    assert (tmp_path / "chief.txt").read_text() == (alone / "chief.txt").read_text()
    notes = [line for line in printed.splitlines() if line.endswith(" gone; the others go on.")]
    for each in lost:
        worker = int(each.split(":")[0])
        assert any(f"/job:worker/task:{worker} " in line.replace(",", " ") for line in notes)
        if each.endswith("TERM"):
            of = f"[worker {worker}] " if worker else ""  # lines of worker 0 are shown as they are
            assert f"{of}/job:worker/task:{worker} leaves the training." in printed
    is_killed = not all(each.endswith("TERM") for each in lost)
    assert (" ended with exit status -9 (SIGKILL)" in printed) == is_killed, "who leaves has not failed"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_whoever_is_lost_in_whichever_step(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    model = rng.choice(["dense", "table", "generated"])
    workers = rng.choice([2, 3, 4, 5])
    gone = rng.sample(range(1, workers), rng.randint(1, workers - 1))
    lost = [f"{worker}:{rng.randrange(14)}{rng.choice(['', ':TERM', ':BUCKET'])}" for worker in gone]
    test_the_others_go_on(model, workers, lost, tmp_path)


@pytest.mark.slow
def test_a_chief_that_was_stopped_changes_nothing_more(tmp_path: Path) -> None:
    """It goes on while the other one still trains, and ends with an error."""
    alone = tmp_path / "alone"
    alone.mkdir()
    run(SCRIPT, str(alone))
    printed = launch(2, tmp_path, "dense", "0:6:STOP", "1:9:CONT")
    assert "[worker 1] /job:worker/task:1 leads the training from now on." in printed
    assert "CancelledError: /job:worker/task:0 no longer takes part in the training" in printed
    np.testing.assert_allclose(
        np.concatenate([np.ravel(each) for each in found(tmp_path, 1)["weights"]]),
        np.concatenate([np.ravel(each) for each in found(alone, 0)["weights"]]),
        1e-9,
    )
    assert not (tmp_path / "found-0.json").exists()


@pytest.mark.slow
def test_a_chief_that_stays_stopped_is_not_waited_for(tmp_path: Path) -> None:
    printed = launch(2, tmp_path, "dense", "0:6:STOP")
    assert "[worker 1] /job:worker/task:1 leads the training from now on." in printed
    assert found(tmp_path, 1)["has ended"] == [True, [0, 1, 2]]


def test_without_a_membership_service_the_loss_of_the_chief_ends_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Launch, "_serve_membership", lambda self: None)
    with Launch(2, 0, [SCRIPT, str(tmp_path), "dense", "0:6"]) as started:
        assert started.wait() == 137
    printed, errors = capfd.readouterr()
    assert "[worker 1] anabranch.engine.queues.errors.TaskFailedError: /job:worker/task:0 has failed" in printed
    assert "Workers go on without the chief where one launcher has started all of them" in printed
    assert "worker 0 ended with exit status -9 (SIGKILL)" in errors
