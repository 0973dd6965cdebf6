"""Random trainings on several workers have the results of one process: weights, logs, calls, metrics, predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs.trainings import assert_same, made
from shared.sample import first_of
from shared.waiting import in_time

import anabranch as ab
from anabranch.distribute.commands.processes import Launch

SCRIPT = str(Path(__file__).parent / "scripts" / "train_random.py")
OF_THE_CHIEF = ("call", "best", "optimizer")  # the others have no callbacks, and may have no state of the optimizer
pytestmark = [
    pytest.mark.xdist_group("tasks"),
    pytest.mark.filterwarnings("ignore:Layer .* was given an input with a mask:UserWarning"),
]


@pytest.fixture(autouse=True)
def plain(without_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ab.config.set_floatx("float64")
    monkeypatch.setenv("ANABRANCH_KERNELS", "0")  # of all tasks, those with the parameters included


def of_worker(values: Any, worker: int) -> dict[str, Any]:
    return {name: values[name] for name in values if worker == 0 or not name.startswith(OF_THE_CHIEF)}


@pytest.mark.parametrize(
    ("kind", "workers", "ps", "first", "last"),
    first_of(
        [
            ("ParameterServer", 2, 1, 0, 1),
            ("DataParallel", 2, 0, 0, 20),
            ("buckets", 3, 0, 20, 30),
            ("ZeRO", 3, 0, 0, 20),
            ("ParameterServer", 3, 2, 0, 20),
            ("asynchronous", 1, 1, 0, 15),  # as many updates as one process makes, in its order
        ]
    ),
)
def test_workers(kind: str, workers: int, ps: int, first: int, last: int, tmp_path: Path) -> None:
    with Launch(workers, ps, [SCRIPT, kind, str(tmp_path), str(first), str(last)]) as launch:
        assert in_time(launch.wait) == 0
    refused = 0
    for seed in range(first, last):
        found = [dict(np.load(tmp_path / f"{kind}-{seed}-{worker}.npz")) for worker in range(workers)]
        if "refused" in found[0]:
            refused += 1
            assert kind == "ZeRO", found[0]["refused"]
            continue
        alone = made(seed, draws=seed % 2 == 0)
        (tmp_path / f"{seed}").mkdir()
        expected = alone.results(tmp_path / f"{seed}")
        for worker, values in enumerate(found):
            assert_same(of_worker(values, worker), of_worker(expected, worker), f"worker {worker}: {alone.text}")
    assert refused <= (last - first) / 2
