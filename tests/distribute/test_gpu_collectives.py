"""Collectives of values on GPUs, by NCCL, in real processes. Stand-ins are the GPUs: see `shared.fake_nccl`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.fake_nccl import DIES, FOLDER

from anabranch.distribute.commands.processes import Launch

pytestmark = pytest.mark.xdist_group("tasks")
SCRIPTS = Path(__file__).parent / "scripts"
Run = Callable[..., list[list[Any]]]


@pytest.fixture
def on_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a script in workers with a GPU each; gives what each has saved."""
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS.parents[1]))
    monkeypatch.setenv("ANABRANCH_KERNELS", "0")

    def run(workers: int, script: str, *arguments: str) -> list[list[Any]]:
        (folder := tmp_path / f"{script}{workers}").mkdir()
        monkeypatch.setenv(FOLDER, str(folder))
        with Launch(workers, 0, [str(SCRIPTS / script), str(folder), *arguments]) as launch:
            assert launch.wait() == 0
        return [[*np.load(path).values()] for path in sorted(folder.glob("*.npz"))]

    return run


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_results_and_gradients_are_those_of_hosts(workers: int, on_gpus: Run) -> None:
    """Each worker compares what its GPU gives with what its CPU gives, also in loops and on the dataflow machine."""
    found = on_gpus(workers, "sum_on_gpus.py")
    given = [np.random.default_rng(rank).normal(size=(2 * workers, 3)) for rank in range(workers)]
    for rank, (rows, first, share, mean, *_) in enumerate(found):
        np.testing.assert_array_equal(rows, np.concatenate(given))
        np.testing.assert_array_equal(first, given[-1] * 2.0)
        np.testing.assert_allclose(share, np.sum(np.tanh(given), 0)[2 * rank : 2 * rank + 2], 1e-12)
        np.testing.assert_allclose(mean, sum(x * x for x in given) / workers, 1e-12)


def facts(tmp_path: Path, workers: int) -> list[Any]:
    """Return the statistics that workers have saved."""
    return [json.loads(path.read_text()) for path in sorted((tmp_path / f"train_on_gpus.py{workers}").glob("*.json"))]


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_training_is_that_of_one_process(workers: int, on_gpus: Run, tmp_path: Path) -> None:
    """With statistics of the whole batch, and gradients in buckets that are summed while the backward pass runs."""
    (want,) = on_gpus(1, "train_on_gpus.py", "cpu")
    for found in on_gpus(workers, "train_on_gpus.py"):
        for one, other in zip(found, want, strict=True):
            np.testing.assert_allclose(one, other, 1e-10, 1e-10)
    for each in facts(tmp_path, workers):
        assert each["gpus"]["nccl"] > 3 * each["step"], each
        assert each["gpus"]["by_host"] == 0
        assert each["gpus"]["why_by_host"] is None


@pytest.mark.slow
def test_parts_of_an_optimizer_on_gpus(on_gpus: Run, tmp_path: Path) -> None:
    (want,) = on_gpus(1, "train_on_gpus.py", "cpu")
    for found in on_gpus(2, "train_on_gpus.py", "parts"):
        for one, other in zip(found, want, strict=True):
            np.testing.assert_allclose(one, other, 1e-10, 1e-10)
    for each in facts(tmp_path, 2):
        assert each["gpus"]["nccl"] > 3 * each["step"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "why"), [("shared", "use the same GPU"), ("host", "cupy has no NCCL"), ("one", "task:1: cupy has no NCCL")]
)
def test_without_nccl_training_goes_by_the_hosts(kind: str, why: str, on_gpus: Run, tmp_path: Path) -> None:
    (want,) = on_gpus(1, "train_on_gpus.py", "cpu")
    for found in on_gpus(2, "train_on_gpus.py", kind):
        for one, other in zip(found, want, strict=True):
            np.testing.assert_allclose(one, other, 1e-10, 1e-10)
    for each in facts(tmp_path, 2):
        assert each["gpus"]["nccl"] == 0
        assert why in each["gpus"]["why_by_host"]


@pytest.mark.slow
@pytest.mark.parametrize("at", [20, -1])
def test_the_others_go_on_when_one_is_killed(
    at: int, on_gpus: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While others' GPUs wait for it in a collective, or as the communicator is made; they make a new one."""
    monkeypatch.setenv(DIES, f"1:{at}")
    found = on_gpus(3, "train_on_gpus.py")
    monkeypatch.delenv(DIES)
    (want,) = on_gpus(1, "train_on_gpus.py", "cpu")
    assert len(found) == 2
    for values in found:
        for one, other in zip(values, want, strict=True):
            np.testing.assert_allclose(one, other, 1e-10, 1e-10)
    for each in facts(tmp_path, 3):
        assert each["members"] == [0, 2]
        assert each["gpus"]["nccl"] > 0
