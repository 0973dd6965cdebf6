"""`train_on_batch` in the workers of a cluster: weights and logs are those of one process, whoever is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.worker_scripts import found, run

SCRIPT = str(Path(__file__).parent / "scripts" / "train_by_single_steps.py")
pytestmark = pytest.mark.xdist_group("tasks")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("alone")
    run(SCRIPT, "ParameterServer", str(folder))
    return found(folder, 0)


def assert_same(one: Any, other: Any) -> None:
    """Two runs have the same logs, weights and history, up to rounding in float64."""
    for name in ("logs", "weights"):
        for value, expected in zip(one[name], other[name], strict=True):
            np.testing.assert_allclose(value, expected, 1e-10, 1e-12, err_msg=name)
    for name, values in other["history"].items():
        np.testing.assert_allclose(one["history"][name], values, 1e-10, err_msg=name)


def launch(workers: int, ps: int, kind: str, folder: Path, *more: str, status: int = 0) -> str:
    counts = ["-n", str(workers), "--ps", str(ps)]
    return run("-m", "anabranch", "launch", *counts, SCRIPT, kind, str(folder), *more, status=status)


@pytest.mark.parametrize(
    ("kind", "workers", "ps", "lost"),
    [
        ("ParameterServer", 3, 1, [0]),
        *[
            pytest.param(*each, marks=pytest.mark.slow, id=f"{each[0]} {each[2]} {each[3]}")
            for each in (
                ("ParameterServer", 3, 2, [0]),
                ("ParameterServer", 3, 1, []),
                ("ParameterServer", 3, 1, [1]),
                ("ParameterServer", 4, 1, [0, 1]),
                ("ParameterServer:asynchronous", 2, 1, []),
                ("ParameterServer:backup", 3, 2, []),
                ("DataParallel", 3, 0, []),
                ("DataParallel:optimizer", 3, 0, []),
            )
        ],
    ],
)
def test_steps_are_those_of_one_process(
    kind: str, workers: int, ps: int, lost: list[int], tmp_path: Path, alone: Any
) -> None:
    """Batches of 1 to 12 rows, of two models in turn; the workers that are lost end before the fourth step."""
    printed = launch(workers, ps, kind, tmp_path, *(["lose", *map(str, lost)] if lost else []))
    rest = [found(tmp_path, worker) for worker in range(workers) if worker not in lost]
    assert [each["is_chief"] for each in rest] == [True] + [False] * (len(rest) - 1)
    assert_same(rest[0], alone)
    for other in rest[1:]:
        assert other["logs"] == rest[0]["logs"]
        assert other["weights"] == rest[0]["weights"]
    if 0 in lost:
        new = workers - len(rest)
        assert f"[worker {new}] /job:worker/task:{new} leads the training from now on." in printed


@pytest.mark.slow  # for a minute the chief waits for the worker to come to the steps of the other model
def test_a_worker_with_another_batch_ends_and_the_others_go_on(tmp_path: Path, alone: Any) -> None:
    printed = launch(2, 1, "ParameterServer", tmp_path, "unlike")
    assert "[worker 1] ValueError: Workers differ in what they train. rows: 3 in /job:worker/task:1, and 12" in printed
    assert not (tmp_path / "found-1.json").exists()
    assert_same(found(tmp_path, 0), alone)
