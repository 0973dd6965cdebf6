"""Losses that are scaled for half precision: strategies leave out the steps that one device leaves out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import distribution, layers, optim
from anabranch.distribute import DataParallel, ModelParallel, Pipeline
from anabranch.distribute.strategies.mesh import DeviceMesh, LayoutMap

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(44, 4)).astype("float32"), np.zeros((44, 3), "float32")
Y[::11] = 40 * RNG.normal(size=(4, 3))  # one row of each batch has large gradients


@pytest.fixture(autouse=True)
def four_devices(without_kernels: None) -> Iterator[None]:
    ab.config.set_devices(cpu=4)
    yield
    ab.config.set_devices()
    distribution.set_distribution(None)


def on_devices(count: int) -> Any:
    return lambda: DataParallel(devices=[f"cpu:{number}" for number in range(count)])


def in_parts() -> Any:
    layouts = LayoutMap(DeviceMesh((2, 2), ("batch", "model")))
    layouts["hidden/kernel"] = (None, "model")
    return ModelParallel(layout_map=layouts)


STRATEGIES = {
    "2 devices": on_devices(2),
    "3 devices": on_devices(3),
    "parts": in_parts,
    "even microbatches": lambda: Pipeline([["hidden"], ["out"]], microbatches=11),
    "microbatches": lambda: Pipeline([["hidden"], ["out"]], microbatches=4),
}


def fitted(strategy: Any, policy: str, optimizer: Any, y: Any = Y) -> tuple[Any, Any]:
    """The model after 3 epochs of 4 steps, and its predictions."""
    ab.utils.set_random_seed(1)
    ab.config.set_dtype_policy(policy)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        named = [layers.Dense(16, "tanh", name="hidden"), layers.Dense(3, name="out")]
        model = ab.Sequential([ab.Input((4,)), *named])
        if isinstance(strategy, Pipeline):
            strategy.stages = [[layer] for layer in named]
        model.compile(optimizer(), "mse")
    model.fit(X, y, batch_size=11, epochs=3, shuffle=False, verbose=0)
    return model, np.asarray(model.predict(X, verbose=0), "float64")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "3 devices")) for name in STRATEGIES]
)
def test_the_steps_left_out_are_those_of_one_device(name: str) -> None:
    """The rows of a part are fewer: gradients of their mean would be larger, and beyond float16 sooner."""
    found = []
    for strategy in (None, STRATEGIES[name]()):
        model, predictions = fitted(strategy, "mixed_float16", lambda: optim.SGD(0.01))
        optimizer = model.optimizer
        assert isinstance(optimizer, optim.LossScaleOptimizer)
        found.append((float(optimizer.dynamic_scale), int(optimizer.iterations), predictions))
    assert found[0][:2] == found[1][:2] == (8192.0, 10), "two of 12 steps overflow at 32768 and 16384"
    np.testing.assert_allclose(found[1][2], found[0][2], atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_other_half_precision(name: str) -> None:
    """bfloat16, which takes no scale; weights of half precision, too; a fixed scale; a wrapper around the scale."""
    cases = [
        ("mixed_bfloat16", lambda: optim.SGD(0.01), 0.2),
        ("float16", lambda: optim.LossScaleOptimizer(optim.SGD(0.01)), 0.05),
        ("mixed_float16", lambda: optim.SGD(0.01, loss_scale_factor=512.0), 0.02),
        ("float32", lambda: optim.SGD(0.01, loss_scale_factor=512.0), 1e-5),
        ("mixed_float16", lambda: optim.Lookahead(optim.SGD(0.01, loss_scale_factor=512.0)), 0.02),
    ]
    for policy, optimizer, tolerance in cases:
        found = [fitted(strategy, policy, optimizer, Y / 8) for strategy in (None, STRATEGIES[name]())]
        (_, expected), (_, predictions) = found
        np.testing.assert_allclose(predictions, expected, atol=tolerance, err_msg=policy)
