"""`DataParallel(shard="optimizer")`: results of one process, with a part of the optimizer's state in each worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.tasks import PATIENCE
from shared.trained import assert_same
from shared.waiting import SCRIPT_SECONDS, Waiting, go, in_time, reached

import anabranch as ab
from anabranch import callbacks, layers
from anabranch.distribute.commands.processes import Launch
from anabranch.framework.replicas.fitting import check_within_epochs
from anabranch.framework.replicas.optimizer_shards import OptimizerShards

SCRIPTS = Path(__file__).parent / "scripts"
SWAPPED = ["swapped", "swapped at the end"]
MODELS = ["clipped", "averaged", *SWAPPED, "accumulated", "scheduled", "table", "scaled", "unused", "float64"]
RESTORING = str(SCRIPTS / "train_and_restore.py")
needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
pytestmark = pytest.mark.xdist_group("tasks")


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=4 * PATIENCE
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("workers", "models"),
    [(2, [*SWAPPED, "scaled", "unused", "float64"]), pytest.param(3, MODELS, marks=pytest.mark.slow)],
)
def test_workers_find_what_one_process_finds(workers: int, models: list[str], tmp_path: Path) -> None:
    script = str(SCRIPTS / "train_models.py")
    run(script, "DataParallel", str(tmp_path / "alone"), *models)
    launch = ["-m", "anabranch", "launch", "-n", str(workers), "--ps", "0", script, "ZeRO"]
    run(*launch, str(tmp_path / "found"), *models)
    alone, chief = np.load(tmp_path / "alone-0.npz"), np.load(tmp_path / "found-0.npz")
    assert set(alone.files) == set(chief.files)
    assert any("optimizer" in name for name in chief.files), "the state is whole again in the chief"
    for worker in range(workers):
        assert_same(np.load(tmp_path / f"found-{worker}.npz"), alone)
    scales = [float(alone[name][0]) for name in sorted(alone.files) if name.startswith("scaled: exponent")]
    assert scales != sorted(scales), "steps overflow"
    assert 0 < alone["scaled: steps"] < 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the script, which waits in its second epoch."""
    for name in ("reached", "go"):
        os.mkfifo(tmp_path / name)
    return tmp_path


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return what both workers find in a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    (folder / "was here").touch()
    with Launch(2, 0, [RESTORING, str(folder), "ZeRO"]) as launch:
        assert in_time(launch.wait) == 0
    return found(folder)


def found(folder: Path) -> list[Any]:
    return [json.loads((folder / f"found-{worker}.json").read_text()) for worker in range(2)]


@pytest.mark.slow
@needs_pipes
@pytest.mark.parametrize("lost", [0, 1], ids=["the chief", "another worker"])
def test_a_run_goes_on_from_a_backup_with_the_whole_state(lost: int, folder: Path, uninterrupted: list[Any]) -> None:
    with Launch(2, 0, [RESTORING, str(folder), "ZeRO"], max_restarts=1) as launch:
        assert reached(folder) == "two steps"
        launch.workers[lost].kill()
        assert in_time(launch.wait) == 0
    for mine, expected in zip(found(folder), uninterrupted, strict=True):
        assert mine["epochs"] == expected["epochs"]
        assert mine["history"].keys() == expected["history"].keys()
        for weight, other in zip(mine["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(weight, other, 1e-4, 1e-5)
    numbers = sum(np.size(weight) for weight in uninterrupted[0]["weights"])
    held = [each["statistics"]["optimizer_bytes"] for each in uninterrupted]
    assert max(held) <= 2 * 4 * -(-numbers // 2), "Adam has two numbers for each parameter, a worker those of a half"
    assert sum(held) == 2 * 4 * numbers
    assert not (folder / "backup").exists(), "the run has come to its end"


@pytest.mark.slow
@needs_pipes
@pytest.mark.parametrize("lost", [0, 1], ids=["the chief", "another worker"])
def test_a_run_that_loses_more_workers_than_it_may_ends(lost: int, folder: Path, capfd: Any) -> None:
    """The exit status is that of the worker that was lost, and the launcher names it; the backup is there."""
    with Launch(2, 0, [RESTORING, str(folder), "ZeRO"], max_restarts=1) as launch:
        waiting = Waiting(launch.wait)
        for _ in range(2):
            assert reached(folder) == "two steps"
            (folder / "was here").unlink()  # the next run waits at the same place
            launch.workers[lost].kill()
        if lost:  # nobody starts the chief again, which waits
            go(folder)
        assert waiting.result(SCRIPT_SECONDS) == 128 + signal.SIGKILL
    said = capfd.readouterr()
    name = f"anabranch launch: worker {lost} ended with exit status -9 (SIGKILL)"
    assert f"{name}; all tasks are started again (restart 1 of 1)." in said.err
    assert said.err.endswith(f"{name}.\n")
    assert f"/job:worker/task:{lost} has failed" in said.out + said.err, "the other worker says so, too"
    assert (folder / "backup").exists()
    with Launch(2, 0, [RESTORING, str(folder), "ZeRO"]) as launch:  # a later run goes on
        (folder / "was here").touch()
        assert in_time(launch.wait) == 0
    assert [each["epochs"] for each in found(folder)] == [[0, 1, 2, 3]] * 2


def test_what_can_not_be_spread() -> None:
    w = ab.Variable(np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"cuts variables into parts, which Lamb may not treat .* or DataParallel"):
        OptimizerShards(ab.optim.Lamb(), [w])
    with pytest.raises(ValueError, match="clips by norm before gradients are accumulated"):
        OptimizerShards(ab.optim.Adam(clipnorm=1.0, gradient_accumulation_steps=2), [w])
    with pytest.raises(ValueError, match="shard must be 'optimizer', or None for nothing; got 'gradients'"):
        ab.distribute.DataParallel(shard="gradients")


@pytest.mark.parametrize("kind", ["backup", "model", "every"])
def test_the_whole_state_is_not_there_within_epochs(kind: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "backup": callbacks.BackupAndRestore(tmp_path, save_freq=2),
        "model": callbacks.ModelCheckpoint(tmp_path / "model.keras", save_freq=2),
        "every": callbacks.SwapEMAWeights(),  # as `Every` calls it
    }
    strategy = ab.distribute.DataParallel(shard="optimizer")
    data: Any = None  # what it is does not matter here
    with pytest.raises(ValueError, match=r"within epochs under DataParallel: the optimizer's variables are in parts"):
        check_within_epochs(given[kind], strategy, data)
    weights = callbacks.ModelCheckpoint(tmp_path / "a.weights.h5", save_weights_only=True, save_freq=2)
    check_within_epochs(weights, strategy, data)
    check_within_epochs(given["model"], ab.distribute.DataParallel(), data)


def test_alone_it_is_fit_as_ever() -> None:
    strategy = ab.distribute.DataParallel(shard="optimizer")
    with strategy.scope():
        model = ab.Sequential([layers.Dense(1)])
        model.compile("adam", "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    assert int(model.optimizer.iterations) == 1
    assert strategy.statistics()["members"] == [0]
