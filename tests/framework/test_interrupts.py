"""Writes of several variables outside of steps: of interrupted ones all are made, or none."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from shared.interrupts import interrupted_at, interruptible

import anabranch as ab


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    with interruptible():
        yield


def ema() -> ab.optimizers.Optimizer:
    return ab.optimizers.AdamW(0.1, use_ema=True)


def moving() -> ab.optimizers.Optimizer:
    return ab.optimizers.MovingAverage(ab.optimizers.SGD(0.1))


def several() -> ab.optimizers.Optimizer:
    """One optimizer for biases, one for the others."""
    biases: dict[str, ab.optimizers.Optimizer] = {"bias": ema()}
    return ab.optimizers.MultiOptimizer(ab.optimizers.OptimizerMap(ab.optimizers.SGD(0.01, use_ema=True), biases))


@pytest.mark.parametrize(
    ("make", "function", "call"),
    [
        (ema, "assign_values", lambda model, swap: model.set_weights([array + 1 for array in model.get_weights()])),
        (
            ema,
            "set_weights",
            lambda model, swap: model.optimizer.set_weights([v + 1.0 for v in model.optimizer.variables]),
        ),
        (ema, "finalize_variable_values", lambda model, swap: model.optimizer.finalize_variable_values()),
        (ema, "_swap", lambda model, swap: swap.on_test_begin()),
        (several, "finalize_variable_values", lambda model, swap: model.optimizer.finalize_variable_values()),
        (moving, "swap_weights", lambda model, swap: model.optimizer.swap_weights()),
        (moving, "assign_average_vars", lambda model, swap: model.optimizer.assign_average_vars()),
    ],
)
def test_all_variables_are_written_or_none(
    make: Callable[[], Any], function: str, call: Callable[[ab.Model, Any], None]
) -> None:
    model = ab.Sequential([ab.Input((3,)), ab.layers.Dense(2)])
    model.compile(make(), "mse")
    model.fit(np.ones((4, 3)), np.zeros((4, 2)), epochs=2, verbose=0)
    model.set_weights([array + 5 for array in model.get_weights()])
    swap = ab.callbacks.SwapEMAWeights()
    swap.set_model(model)
    variables = [*model.weights, *model.optimizer.variables]
    before = [variable.numpy() for variable in variables]

    def state() -> tuple[bytes, ...]:
        return (*[variable.numpy().tobytes() for variable in variables], bytes([swap._weights is not None]))

    def restore() -> None:
        swap._weights = None
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)

    none = state()
    call(model, swap)
    all_made, line = state(), 1
    restore()
    found: set[tuple[bytes, ...]] = set()
    while interrupted_at(line, lambda code: code.co_name == function, lambda: call(model, swap)):
        found.add(state())
        restore()
        line += 1
    assert found == {none, all_made}
