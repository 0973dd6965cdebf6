"""Random trainings: on several devices, in stages, and interrupted they have the results of one uninterrupted run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from programs.trainings import assert_same, made

import anabranch as ab
from anabranch import callbacks
from anabranch.distribute import DataParallel, Pipeline


def seeds(quick: int) -> list[ParameterSet]:
    """Return sixty seeds, of which `make test` takes one."""
    return [pytest.param(seed, marks=[] if seed == quick else [pytest.mark.slow]) for seed in range(60)]


pytestmark = pytest.mark.filterwarnings("ignore:Layer .* was given an input with a mask:UserWarning")


@pytest.fixture(autouse=True)
def plain(without_kernels: None) -> Iterator[None]:
    ab.config.set_floatx("float64")
    yield
    ab.config.set_devices()


@pytest.mark.parametrize("seed", seeds(0))
def test_devices_train_as_one_does(seed: int, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("alone", "replicas", "stages")]
    for folder in folders:
        folder.mkdir()
    alone = made(seed)
    expected = alone.results(folders[0])
    ab.config.set_devices(cpu=4)
    rng = np.random.default_rng(seed)
    count, parts = (int(rng.integers(*bounds)) for bounds in ((2, 5), (1, 5)))
    replicas = DataParallel(devices=[f"cpu:{number}" for number in range(count)])
    assert_same(made(seed, replicas).results(folders[1]), expected, f"{count} replicas of {alone.text}")
    stages = min(2, sum(layer.count_params() > 0 for layer in alone.model.layers))
    found = made(seed, Pipeline(stages, microbatches=parts)).results(folders[2])
    assert_same(found, expected, f"{parts} microbatches of {alone.text}")


@pytest.mark.parametrize("seed", seeds(1))
def test_replicas_and_microbatches_of_the_same_rows_train_alike(seed: int, tmp_path: Path) -> None:
    """Each has the statistics of its own rows for `BatchNormalization`, whose averages are means over them."""
    ab.config.set_devices(cpu=2)
    replicas = made(seed, DataParallel(devices=["cpu:0", "cpu:1"]), is_by_row=False)
    (tmp_path / "replicas").mkdir()
    expected = replicas.results(tmp_path / "replicas")
    for stages in range(1, min(2, sum(layer.count_params() > 0 for layer in replicas.model.layers)) + 1):
        (tmp_path / f"{stages}").mkdir()
        found = made(seed, Pipeline(stages, microbatches=2), is_by_row=False).results(tmp_path / f"{stages}")
        assert_same(found, expected, f"{stages} stages of {replicas.text}")


class Interrupts(callbacks.Callback):
    """Ends a run behind so many batches."""

    runs_last = True

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches = batches

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches -= 1
        if self.batches == 0:
            raise InterruptedError


@pytest.mark.parametrize("seed", seeds(0))
def test_interrupted_trainings_end_as_others(seed: int, tmp_path: Path) -> None:
    """The run ends twice within an epoch, or goes through."""
    rng = np.random.default_rng(seed)
    save_freq: Any = ("epoch", 1, 2, 3)[rng.integers(4)]

    def results(name: str, *more: callbacks.Callback) -> dict[str, Any]:
        (tmp_path / name).mkdir(exist_ok=True)
        backup = callbacks.BackupAndRestore(tmp_path / f"backup {name}", save_freq)
        found = drawn.results(tmp_path / name, [backup, *more])
        return {key: value for key, value in found.items() if not key.startswith("call")}

    drawn = made(seed, draws=True)
    expected = results("whole")
    steps, epochs = drawn.steps
    for batches in rng.integers(1, steps * epochs + 1, 2):
        drawn = made(seed, draws=True)
        try:
            results("parts", Interrupts(int(batches)))
        except InterruptedError:
            continue
    drawn = made(seed, draws=True)
    assert_same(results("parts"), expected, f"save_freq={save_freq} of {drawn.text}")
