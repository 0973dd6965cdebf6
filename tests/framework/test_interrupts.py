"""Writes of several variables outside of steps: of interrupted ones all are made, or none."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import anabranch as ab


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted_at(line: int, function: str, call: Callable[[], object]) -> bool:
    """Call, and interrupt before a line of the functions of this name; whether they have so many lines."""
    left = [line]

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_name != function:
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            call()
            assert left[0] > 0, "the interrupt was lost"
    finally:
        sys.settrace(before)
    return left[0] <= 0


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
        return (*[variable.numpy().tobytes() for variable in variables], bytes([swap._is_swapped]))

    def restore() -> None:
        swap._is_swapped = False
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)

    none = state()
    call(model, swap)
    all_made, line = state(), 1
    restore()
    found: set[tuple[bytes, ...]] = set()
    while interrupted_at(line, function, lambda: call(model, swap)):
        found.add(state())
        restore()
        line += 1
    assert found == {none, all_made}
