"""Losses that are no means over rows: replicas train by that of the whole batch, whatever rows each has."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.counted_losses import MODELS, results
from shared.sample import first_of
from shared.tasks import PATIENCE

import anabranch as ab
from anabranch import layers, ops
from anabranch.distribute import DataParallel, ModelParallel, Pipeline
from anabranch.distribute.strategies.mesh import DeviceMesh, LayoutMap
from anabranch.engine.ops.replicas import building_step, replicated

SCRIPT = Path(__file__).parent / "scripts" / "train_counted_losses.py"


@pytest.fixture(autouse=True)
def plain(without_kernels: None) -> Iterator[None]:
    yield
    ab.config.set_devices()


@cache
def expected_of(name: str) -> dict[str, Any]:
    """Return what one process finds of a model, which several tests compare with."""
    return results(name)


def assert_same(found: Any, expected: dict[str, Any]) -> None:
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, 1e-10, 1e-10, err_msg=key)


def launched(kind: str, workers: int, ps: int, folder: Path, names: list[str]) -> list[Any]:
    """Return what each worker has found of some models."""
    counts = ["-n", str(workers), "--ps", str(ps)]
    launch = [sys.executable, "-m", "anabranch", "launch", *counts, str(SCRIPT), kind]
    environment = {**os.environ, "ANABRANCH_KERNELS": "0"}
    done = subprocess.run(
        [*launch, str(folder / "found"), *names],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=12 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    return [np.load(folder / f"found-{worker}.npz") for worker in range(workers)]


# Microbatches, and workers of `ParameterServer`, draw samples of their own. These workers can't compute weights of the
# whole batch that depend on variables.
LEFT_OUT = {"Stages": ["sampled softmax"], "ParameterServer": ["sampled softmax", "own step"]}
NAMES = ["two outputs", *[name for name in MODELS if name != "two outputs"]]
ONE_FIRST = first_of(NAMES)


@pytest.mark.parametrize("name", ONE_FIRST)
@pytest.mark.parametrize("counts", first_of([[3], [1, 2]]))
def test_replicas_on_devices_of_one_process(name: str, counts: list[int]) -> None:
    """The last batch has 2 rows, so that one of three replicas has none."""
    expected = expected_of(name)
    ab.config.set_devices(cpu=3)
    for count in counts:
        assert_same(results(name, DataParallel(devices=[f"cpu:{number}" for number in range(count)])), expected)


@pytest.mark.parametrize("name", first_of(name for name in NAMES if name not in LEFT_OUT["Stages"]))
@pytest.mark.parametrize("count", first_of([4, 3]))  # of 6 rows microbatches of 2 and 1; or of 2
def test_microbatches(name: str, count: int) -> None:
    expected = expected_of(name)
    ab.config.set_devices(cpu=2)
    assert_same(results(name, Pipeline(2, microbatches=count)), expected)


@pytest.mark.parametrize("name", ONE_FIRST)
def test_replicas_whose_weights_are_in_parts(name: str) -> None:
    expected = expected_of(name)
    ab.config.set_devices(cpu=4)
    layouts = LayoutMap(DeviceMesh((2, 2), ("batch", "model")))
    layouts["embedding.*embeddings"] = ("model", None)
    layouts["dense.*kernel"] = ("model", None)
    with warnings.catch_warnings(action="ignore"):  # of layouts that cut nothing
        found = results(name, ModelParallel(layout_map=layouts))
    assert_same(found, expected)


@pytest.mark.xdist_group("tasks")
@pytest.mark.parametrize(
    ("kind", "workers", "ps", "names"),
    [
        ("DataParallel", 3, 0, ["mean with weights", "own step"]),
        ("ParameterServer", 3, 1, ["mean with weights", "sum", "generated"]),
        *[
            pytest.param(*each, [], marks=pytest.mark.slow, id=" ".join(map(str, each)))
            for each in (
                ("DataParallel", 3, 0),
                ("DataParallel", 2, 0),
                ("DataParallel", 1, 0),
                ("Stages", 3, 0),
                ("ParameterServer", 3, 1),
                ("ParameterServer", 2, 2),
            )
        ],
    ],
)
def test_workers(kind: str, workers: int, ps: int, names: list[str], tmp_path: Path) -> None:
    names = names or [name for name in MODELS if name not in LEFT_OUT.get(kind, ())]
    first, *others = launched(kind, workers, ps, tmp_path, names)
    for name in names:
        expected = expected_of(name)
        assert_same(first, {f"{name}: {key}": value for key, value in expected.items()})
    for other in others:
        for key in first.files:
            assert other[key].tobytes() == first[key].tobytes(), f"{key}: workers have other bits"


# --- single losses --------------------------------------------------------------------------------------------------


def masked_loss(predicted: Any, kept: Any) -> Any:
    predicted = predicted * 1.0
    predicted.annotations["mask"] = kept
    return ab.losses.MeanSquaredError()(ops.zeros_like(predicted), predicted)


def loss_of_replica(loss: Any, totals: list[Any] | None, weight: float = 0.25) -> tuple[float, str]:
    """Return the loss of a replica, whose rows are 1, 2 and 3, of which two count; and its graph."""
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((3, 1), "float64")
        kept = ab.constant([True, False, True])
        given = None if totals is None else [None if each is None else ab.constant(each, "float64") for each in totals]
        with building_step(), contextlib.nullcontext() if given is None else replicated(weight, given):
            found = loss(x, kept)
        with ab.Session(graph) as session:
            return float(session.run(found, {x: [[1.0], [2.0], [3.0]]})), graph.dump()


def test_a_replica_divides_by_its_part_of_the_count_of_the_whole_batch() -> None:
    assert loss_of_replica(masked_loss, None)[0] == 5.0
    assert loss_of_replica(masked_loss, [10.0])[0] == 10.0 / (10.0 * 0.25)
    assert loss_of_replica(masked_loss, [0.0])[0] == 0.0
    assert loss_of_replica(masked_loss, [None])[0] == 5.0


def test_losses_in_branches_are_divided_by_the_replicas_own_count() -> None:
    def in_branch(x: Any, kept: Any) -> Any:
        return ops.cond(ops.sum(x) > 0, lambda: masked_loss(x, kept), lambda: ops.cast(0.0, "float32"))

    assert loss_of_replica(in_branch, [])[0] == 5.0


def test_means_over_rows_are_built_as_without_replicas() -> None:
    def mean(x: Any, kept: Any) -> Any:
        return ab.losses.MeanSquaredError()(ops.zeros_like(x), x, sample_weight=[1.0, 0.0, 2.0])

    assert loss_of_replica(mean, []) == loss_of_replica(mean, None)


def test_sums_of_rows_are_divided_and_sums_of_weights_are_not() -> None:
    total = ab.losses.MeanSquaredError(reduction="sum")
    weight = ab.Variable([2.0, 4.0])
    assert loss_of_replica(lambda x, _: total(ops.zeros_like(x), x), [])[0] == 14.0 / 0.25
    assert loss_of_replica(lambda x, _: total(ops.zeros((2, 1)), ops.reshape(weight, (2, 1))), [])[0] == 20.0


class OfLosses(ab.metrics.Metric):
    """Adds up losses of its own: a sum over rows, and a mean times the number of what it is the mean of."""

    def __init__(self) -> None:
        super().__init__(name="of_losses")
        self.sum = ab.losses.MeanSquaredError(reduction="sum")
        self.value = self.add_variable(shape=(), name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        kept = y_true[:, 0] > 0
        count = ops.sum(ops.cast(kept, self.dtype))
        self.value.assign_add(self.sum(y_true, y_pred) + masked_loss(y_pred, kept) * count)

    def result(self) -> Any:
        return self.value


def test_losses_in_metrics_are_those_of_the_replicas_rows() -> None:
    ab.config.set_floatx("float64")
    x = np.random.default_rng(2).normal(size=(7, 3))
    found = []
    for strategy in (None, DataParallel(devices=["cpu:0", "cpu:1"])):
        ab.config.set_devices(cpu=2)
        ab.utils.set_random_seed(1)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            model = ab.Sequential([ab.Input((3,)), layers.Dense(2)])
            model.compile("sgd", ab.losses.MeanSquaredError(reduction="sum"), metrics=[OfLosses()])
        found.append(model.fit(x, x[:, :2], batch_size=5, verbose=0).history)
    for key, value in found[0].items():
        np.testing.assert_allclose(found[1][key], value, 1e-10, err_msg=key)


class AddsMean(layers.Layer):
    """Adds the mean square of what passes to the losses: NaN where there are no rows."""

    def call(self, x: Any) -> Any:
        self.add_loss(ops.mean(ops.square(x)))
        return x


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "mean_with_sample_weight"])
def test_replicas_without_rows_add_nothing(reduction: str) -> None:
    """Three numbers of rows make a step for any number of them, in which replicas may have none."""
    ab.config.set_floatx("float64")
    data = np.random.default_rng(3).normal(size=(11, 3))
    found: list[list[Any]] = []
    for strategy in (None, DataParallel(devices=["cpu:0", "cpu:1", "cpu:2"])):
        ab.config.set_devices(cpu=3)
        ab.utils.set_random_seed(1)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            model = ab.Sequential([ab.Input((3,)), AddsMean(), layers.Dense(2, kernel_regularizer="l1")])
            model.compile("sgd", ab.losses.MeanSquaredError(reduction=reduction), metrics=["mae"])
        rows = (3, 2, 11, 1, 2)
        found.append([model.train_on_batch(data[:count], data[:count, :2]) for count in rows])
        found[-1] += [model.test_on_batch(data[:count], data[:count, :2]) for count in rows]
    np.testing.assert_allclose(found[1], found[0], 1e-10)


def test_masks_that_random_numbers_make_are_those_of_each_replica() -> None:
    """The replicas of a process draw their rows alone, and a mask of the whole batch is not computed twice."""
    ab.config.set_devices(cpu=2)
    with DataParallel(devices=["cpu:0", "cpu:1"]).scope():
        parts = [layers.Dropout(0.5, seed=1), layers.Masking(0.0), layers.LSTM(2, return_sequences=True)]
        model = ab.Sequential([ab.Input((4, 1)), *parts])
        model.compile(ab.optim.SGD(0.5), "mse")
    x = np.ones((6, 4, 1), "float32")
    losses = model.fit(x, np.ones((6, 4, 2), "float32"), epochs=20, verbose=0).history["loss"]
    assert max(losses[-3:]) < 0.9 * min(losses[:3])
