"""Synchronized layers under `ParameterServer` while workers are lost in the middle of a step: the step begins again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.worker_scripts import found, run

SCRIPT = str(Path(__file__).parent / "scripts" / "train_together.py")
pytestmark = pytest.mark.xdist_group("tasks")


def alone(folder: Path, data: str) -> Any:
    """Return the results of one process."""
    (folder / "alone").mkdir()
    run(SCRIPT, str(folder / "alone"), data)
    return found(folder / "alone", 0)


def launch(folder: Path, workers: int, data: str, *lost: str, ps: int = 2, option: str = "") -> str:
    options = ["-n", str(workers), "--ps", str(ps), *option.split()]
    return run("-m", "anabranch", "launch", *options, SCRIPT, str(folder), data, *lost)


def assert_same(mine: Any, expected: Any, precision: float = 1e-10) -> None:
    """The worker has the results of one process: losses, weights and moving statistics, to the last step."""
    assert mine["iterations"] == expected["iterations"]
    assert mine["found"].keys() == expected["found"].keys()
    for name, values in expected["found"].items():
        np.testing.assert_allclose(mine["found"][name], values, precision, err_msg=name)
    for value, other in zip(mine["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(value, other, precision, precision)


@pytest.mark.parametrize(
    ("workers", "data", "lost", "ps"),
    [
        (3, "arrays", ["1:3:backward", "0:7:forward"], 1),  # worker 2 computes alone in the end, and leads
        *[
            pytest.param(*each, 2, marks=pytest.mark.slow, id=f"{each[1]} {each[0]} {'+'.join(each[2])}")
            for each in (
                (2, "arrays", ["1:0:forward"]),  # in the very first step
                (3, "arrays", ["1:14:backward", "2:14:forward"]),  # in the last one
                (3, "arrays", ["2:4:backward:TERM"]),
                (3, "arrays", ["1:4:backward:RAISE"]),
                (3, "half", ["1:6:backward"]),
                (4, "few", []),
                (3, "few", ["1:2:forward"]),
                (3, "generated", ["0:4:forward"]),
                (3, "generated", ["2:4:backward"]),
                (3, "single", []),
                (3, "single", ["1:2:forward"]),
                (3, "single", ["0:2:backward"]),
            )
        ],
    ],
)
def test_steps_are_those_of_one_process_whoever_is_lost(
    workers: int, data: str, lost: list[str], ps: int, tmp_path: Path
) -> None:
    expected = alone(tmp_path, data)
    launch(tmp_path, workers, data, *lost, ps=ps)
    gone = [int(each.split(":")[0]) for each in lost]
    rest = [worker for worker in range(workers) if worker not in gone]
    results = [found(tmp_path, worker) for worker in rest]
    for mine in results:
        assert_same(mine, expected, 3e-2 if data == "half" else 1e-10)
        assert mine["weights"] == results[0]["weights"]
    counts = results[0]["statistics"]
    assert (counts["begun_again"] > 0) == any(not each.endswith("TERM") for each in lost)
    assert all(counts["receipts"][str(worker)]["taken"] == expected["iterations"] for worker in rest)


@pytest.mark.slow
def test_a_worker_that_is_started_again_takes_part_in_the_steps_that_follow(tmp_path: Path) -> None:
    """It is lost with the fourth share that it computes, each time that it comes so far."""
    expected = alone(tmp_path, "arrays")
    printed = launch(tmp_path, 3, "arrays", "1:3:forward", option="--max-restarts 9")
    assert "it is started again (restart 1 of 9)" in printed
    for worker in range(3):
        assert_same(found(tmp_path, worker), expected)


@pytest.mark.slow
def test_runs_repeat_to_the_bit(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        launch(tmp_path / name, 3, "arrays")
    one, other = (found(tmp_path / name, 2) for name in ("one", "other"))
    assert (one["weights"], one["found"]) == (other["weights"], other["found"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_whoever_is_lost_in_whichever_step(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    workers, data = rng.choice([2, 3, 4, 5]), rng.choice(["arrays", "few", "generated"])
    gone = rng.sample(range(workers), rng.randint(1, workers - 1))
    expected = alone(tmp_path, data)
    kinds = ["forward", "backward", "forward:TERM", "backward:TERM"]
    lost = [f"{worker}:{rng.randrange(14)}:{rng.choice(kinds)}" for worker in gone]
    launch(tmp_path, workers, data, *lost)
    for worker in set(range(workers)) - set(gone):
        assert_same(found(tmp_path, worker), expected)
