"""Layers whose statistics are those of the rows of all replicas: on devices of one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from shared.sample import first_of
from shared.small_models import PRECISIONS, SYNCHRONIZED, assert_same, trained

import anabranch as ab
from anabranch import layers, ops
from anabranch.distribute import DataParallel, ModelParallel
from anabranch.framework.replicas.checks import check_synchronized


@pytest.fixture(autouse=True)
def plain(without_kernels: None) -> Iterator[None]:
    yield
    ab.config.set_devices()


def on_devices(count: int) -> DataParallel:
    ab.config.set_devices(cpu=count)
    return DataParallel(devices=[f"cpu:{number}" for number in range(count)])


@pytest.mark.parametrize("name", SYNCHRONIZED)
@pytest.mark.parametrize("count", first_of([3, 2, 4]))
def test_replicas_on_devices_train_as_one_device(name: str, count: int) -> None:
    """Batches have 7 rows and 3, so that shares are uneven, and one of four replicas has none."""
    expected = trained(name, "float64")
    found = trained(name, "float64", on_devices(count))
    assert_same(found, expected, PRECISIONS["float64"])


@pytest.mark.parametrize("name", first_of(SYNCHRONIZED))
def test_the_same_run_has_the_same_bits(name: str) -> None:
    found, again = (trained(name, "float64", on_devices(3)) for _ in range(2))
    for key, value in found.items():
        assert again[key].tobytes() == value.tobytes(), key


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_other_precisions(policy: str) -> None:
    """In bfloat16 statistics are float32, and all else is rounded alike where rows are computed alone."""
    precision = {"float32": 1e-5, "mixed_bfloat16": 3e-3}[policy]

    def results(strategy: Any) -> dict[str, Any]:
        ab.mixed_precision.set_global_policy(policy)
        return trained("synchronized twice", "float32", strategy)

    try:
        expected = results(None)
        assert_same(results(on_devices(3)), expected, precision)
    finally:
        ab.mixed_precision.set_global_policy("float32")


def test_statistics_of_few_rows_are_those_of_all() -> None:
    """Each of four replicas has one row, whose own variance is 0, and learns from all of them."""
    x = np.random.default_rng(1).normal(size=(4, 3))

    def first_step(strategy: Any) -> Any:
        ab.config.set_floatx("float64")
        ab.utils.set_random_seed(2)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            norm = layers.BatchNormalization(synchronized=True, momentum=0.0)
            model = ab.Sequential([ab.Input((3,)), layers.Dense(3), norm])
            model.compile(ab.optim.SGD(1.0), lambda y, found: ops.mean(ops.square(found - y) * ops.exp(y), axis=-1))
        model.train_on_batch(x, x[::-1].copy())
        return model.get_weights()

    expected = first_step(None)
    found = first_step(on_devices(4))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, 1e-10, 1e-10)


@pytest.mark.parametrize("layer_adds", [False, True])
def test_replicas_without_rows_add_nothing_to_statistics(layer_adds: bool) -> None:
    """Three numbers of rows make a step for any number of them, in which replicas may have none: their loss is NaN."""
    ab.config.set_floatx("float64")
    data = np.random.default_rng(3).normal(size=(11, 3))
    found: list[Any] = []
    for strategy in (None, on_devices(3)):
        ab.utils.set_random_seed(1)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            regularizer = "l2" if layer_adds else None
            parts = [layers.BatchNormalization(synchronized=True, momentum=0.5) for _ in range(2)]
            dense = layers.Dense(4, "tanh", activity_regularizer=regularizer)
            model = ab.Sequential([ab.Input((3,)), parts[0], dense, parts[1], layers.Dense(2)])
            model.compile(ab.optim.SGD(0.1), "mse")
        losses = [model.train_on_batch(data[:count], data[:count, :2]) for count in (3, 2, 11, 1, 2)]
        found.append([np.asarray(losses), *model.get_weights()])
    for one, other in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(one, other, 1e-9, 1e-9)


def test_several_steps_a_call() -> None:
    """Steps in a loop sum over replicas in its body."""
    found: list[Any] = []
    for strategy in (None, on_devices(3)):
        ab.config.set_floatx("float64")
        ab.utils.set_random_seed(5)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            norm = layers.BatchNormalization(synchronized=True, momentum=0.5)
            model = ab.Sequential([ab.Input((4,)), layers.Dense(3), norm, layers.Dense(2)])
            model.compile(ab.optim.Adam(0.01, epsilon=1e-3), "mse", steps_per_execution=2)
        rows = np.random.default_rng(0).normal(size=(20, 4))
        model.fit(rows, rows[:, :2], batch_size=5, epochs=2, verbose=0)
        found.append(model.get_weights())
    for one, other in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(one, other, 1e-10, 1e-10)


def test_rows_and_weights_in_parts() -> None:
    """Under `ModelParallel` replicas along the axis of the rows have one statistic, and the moving ones are right."""
    found: list[Any] = []
    for is_parallel in (False, True):
        ab.config.set_floatx("float64")
        ab.config.set_devices(cpu=4)
        ab.utils.set_random_seed(5)
        mesh = ab.distribution.DeviceMesh((2, 2), ("batch", "model"), [f"cpu:{number}" for number in range(4)])
        layouts = ab.distribution.LayoutMap(mesh)
        layouts[".*wide.*kernel"] = (None, "model")
        strategy = ModelParallel(layout_map=layouts, batch_dim_name="batch")
        with strategy.scope() if is_parallel else contextlib.nullcontext():
            norm = layers.BatchNormalization(synchronized=True, momentum=0.5)
            wide = layers.Dense(6, "tanh", name="wide")
            model = ab.Sequential([ab.Input((4,)), wide, norm, layers.Dense(2)])
            model.compile(ab.optim.SGD(0.1), "mse")
        rows = np.random.default_rng(0).normal(size=(9, 4))
        model.fit(rows, rows[:, :2], batch_size=5, epochs=2, verbose=0)
        found.append(model.get_weights())
    for one, other in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(one, other, 1e-10, 1e-10)


# --- parameter servers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ({"sync": False}, "with sync=False each worker makes steps of its own"),
        ({"backup_workers": 2}, "with backup_workers=2 a step does not wait for all of its workers"),
        ({"deterministic": False}, "can't be taken out of the sum. Leave that argument of ParameterServer out"),
    ],
)
def test_workers_that_do_not_compute_a_step_together_are_refused(argument: dict[str, Any], reason: str) -> None:
    strategy: Any = SimpleNamespace(**{"sync": True, "backup_workers": 0, "deterministic": True, **argument})
    norm = layers.BatchNormalization(synchronized=True, name="norm")
    model: Any = ab.Sequential([ab.Input((3,)), norm], name="chain")
    with pytest.raises(ValueError, match=r"The layers \['norm'\] of model 'chain' are synchronized") as raised:
        check_synchronized(model, strategy)
    assert reason in str(raised.value)
    norm.synchronized = False
    check_synchronized(model, strategy)
