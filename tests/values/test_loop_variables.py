"""Loops over values and loops of functions have the same gradients, also by a variable whose value has other uses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops


def _descent(loop: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """A function that goes down a slope in a loop which begins with its argument, and takes that from around, too."""

    def compute(x: Any) -> Any:
        def step(y: Any) -> Any:
            with ab.GradientTape() as tape:
                tape.watch(y)
                z = ops.sum(ops.sin(y) * x * x)
            return y - 0.1 * tape.gradient(z, y)

        return loop(step, x)

    return compute


LOOPS: dict[str, Callable[[Any, Any], Any]] = {
    "while": lambda step, x: ab.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, step(y)), (0, x))[1],
    "for": lambda step, x: ab.fori_loop(0, 3, lambda _, y: step(y), x),
    "scan": lambda step, x: ops.sum(ab.scan(lambda y, _: (step(y), y), x, length=3)[1], axis=0),
    "fold": lambda step, x: ab.foldl(lambda y, z: step(y) + z, ops.stack([x, x * x]), initializer=x),
    "begun again": lambda step, x: ab.while_loop(
        lambda i, _: i < 3, lambda i, y: (i + 1, ab.cond(i == 1, lambda: x, lambda: step(y))), (0, x)
    )[1],
    "two variables": lambda step, x: ab.while_loop(
        lambda i, *_: i < 2, lambda i, y, z: (i + 1, step(y) * z, z), (0, x, x)
    )[1],
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_gradient_by_a_loop_variable_is_by_that_alone(name: str) -> None:
    """Compare loops at once with those of a function, where the body takes the value of a variable from around, too."""
    x, compute = ab.ops.array(np.array([0.7, 1.3, -0.4])), _descent(LOOPS[name])

    def slopes(x: Any) -> Any:
        with ab.GradientTape() as outer:
            outer.watch(x)
            with ab.GradientTape() as inner:
                inner.watch(x)
                y = compute(x)
            slope = inner.gradient(y, x)
        return y, slope, outer.gradient(slope, x)

    for found, expected in zip(slopes(x), ab.function(slopes)(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    ab.testing.check_gradients(compute, [np.asarray(x)])
