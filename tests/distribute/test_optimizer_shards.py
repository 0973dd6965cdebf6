"""`DataParallel(shard="optimizer")`: results of one process, with a part of the optimizer's state in each worker."""

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
from shared.trained import assert_same
from shared.waiting import in_time, reached

import anabranch as ab
from anabranch import callbacks, layers
from anabranch.distribute.commands.processes import Launch
from anabranch.framework.replicas.fitting import check_within_epochs
from anabranch.framework.replicas.optimizer_shards import OptimizerShards

SCRIPTS = Path(__file__).parent / "scripts"
SWAPPED = ["swapped", "swapped at the end"]
MODELS = ["clipped", "averaged", *SWAPPED, "accumulated", "scheduled", "table", "scaled", "unused", "float64"]
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


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_run_goes_on_from_a_backup_with_the_whole_state(tmp_path: Path) -> None:
    script = str(SCRIPTS / "train_and_restore.py")
    results: list[Any] = []
    for is_killed in (False, True):
        folder = tmp_path / str(is_killed)
        folder.mkdir()
        for name in ("reached", "go"):
            os.mkfifo(folder / name)
        if not is_killed:
            (folder / "was here").touch()
        with Launch(2, 0, [script, str(folder), "ZeRO"], max_restarts=1) as launch:
            if is_killed:
                assert reached(folder) == "two steps"
                launch.workers[1].kill()
            assert in_time(launch.wait) == 0
        results.append([json.loads((folder / f"found-{worker}.json").read_text()) for worker in range(2)])
    expected, found = results
    assert found[0]["epochs"] == expected[0]["epochs"]
    for weight, other in zip(found[0]["weights"], expected[0]["weights"], strict=True):
        np.testing.assert_allclose(weight, other, 1e-4, 1e-5)
    numbers = sum(np.size(weight) for weight in expected[0]["weights"])
    held = [each["statistics"]["optimizer_bytes"] for each in expected]
    assert max(held) <= 2 * 4 * -(-numbers // 2), "Adam has two numbers for each parameter, a worker those of a half"
    assert sum(held) == 2 * 4 * numbers


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
