"""`fit` called again and again on a cluster: it uses the steps that the model has kept, and comes to the same bits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.worker_scripts import found, run

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = pytest.mark.xdist_group("tasks")
BUILT = ["first", "first of the other", "other batches", "frozen", "trained again", "schedule", "compiled again"]


def launch(workers: int, ps: int, script: str, *arguments: str, restarts: int = 0) -> str:
    counts = ["-n", str(workers), "--ps", str(ps), "--max-restarts", str(restarts)]
    return run("-m", "anabranch", "launch", *counts, str(SCRIPTS / script), *arguments)


@pytest.mark.parametrize(
    ("workers", "ps", "kind", "calls"),
    [
        (2, 0, "DataParallel", "/4"),
        (2, 1, "ParameterServer", "/4"),
        *[
            pytest.param(*each, "", marks=pytest.mark.slow, id=each[2])
            for each in (
                (2, 0, "DataParallel"),
                (2, 0, "DataParallel:optimizer"),
                (2, 0, "DataParallel:of"),
                (2, 2, "ParameterServer"),
                (1, 2, "ParameterServer:asynchronous"),
                (1, 2, "ParameterServer:arriving"),
            )
        ],
    ],
)
def test_calls_with_kept_steps_have_the_bits_of_calls_that_build_theirs(
    workers: int, ps: int, kind: str, calls: str, tmp_path: Path
) -> None:
    """Between calls weights and rates are set, layers frozen, another model trained, and batches of another size."""
    launch(workers, ps, "train_again.py", str(tmp_path), kind + calls)
    for worker in range(workers):
        of_worker = found(tmp_path, worker)
        kept, built = of_worker[f"{kind} True"], of_worker[f"{kind} False"]
        assert all(each["built"] for each in built.values())
        built_here = [name for name, each in kept.items() if each["built"] and name != "too few rows"]
        assert built_here == [name for name in BUILT if name in kept]
        for name, each in kept.items():
            assert each["bits"] == built[name]["bits"], name
            assert each["logs"] == built[name]["logs"], name


@pytest.mark.slow
def test_kept_steps_serve_backup_workers(tmp_path: Path) -> None:
    """Whose gradients count depends on time, so that bits do not repeat.

    A worker whose last step was ended, as it was late, builds its steps once more.
    """
    launch(3, 1, "train_again.py", str(tmp_path), "ParameterServer:backup")
    for worker in range(3):
        of_worker = found(tmp_path, worker)["ParameterServer:backup True"]
        built = [name for name, each in of_worker.items() if each["built"]]
        assert {*BUILT} <= {*built}
        assert len(built) < len(of_worker) // 2


# --- losses between two calls ---------------------------------------------------------------------------------------


def of_losses(folder: Path, lost: str) -> list[Any]:
    for name in ("begun", "back"):
        os.mkfifo(folder / name)
    launch(2, 2, "train_between_losses.py", str(folder), lost, "ParameterServer", restarts=1)
    return [found(folder, worker) for worker in range(2)]


@pytest.fixture(scope="module")
def without_losses(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return of_losses(tmp_path_factory.mktemp("nothing"), "nothing")


def test_a_worker_that_is_started_again_finds_what_a_call_has_trained_that_is_over(
    tmp_path: Path, without_losses: list[Any]
) -> None:
    """The next call has trained the same variables further by then."""
    chief, worker = of_losses(tmp_path, "worker")
    for number, each in enumerate(without_losses[0]):
        assert chief[number] == worker[number], f"call {number}"
        assert chief[number]["steps"] == each["steps"]
    assert chief[0] == without_losses[0][0]


@pytest.mark.slow
def test_a_ps_task_that_is_lost_between_two_calls_changes_nothing(tmp_path: Path, without_losses: list[Any]) -> None:
    assert of_losses(tmp_path, "ps") == without_losses


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["DataParallel", "ParameterServer"])
def test_kept_steps_serve_those_that_are_left(strategy: str, tmp_path: Path, without_losses: list[Any]) -> None:
    """The last call is made by one worker of three, which was not the chief when its steps were built."""
    launch(3, 1 if strategy == "ParameterServer" else 0, "train_between_losses.py", str(tmp_path), "members", strategy)
    for each, expected in zip(found(tmp_path, 1), without_losses[0], strict=True):
        assert each["steps"] == expected["steps"]
        for name, values in expected["history"].items():
            np.testing.assert_allclose(each["history"][name], values, 1e-9, err_msg=name)
        for weight, other in zip(each["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(weight, other, 1e-9, 1e-11)
