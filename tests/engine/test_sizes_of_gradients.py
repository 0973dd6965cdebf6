"""Gradients of steps with open sizes: once shapes are fed, the sizes of all their results are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.neural.softmax import SelectClass
from anabranch.engine.passes.framework.observe import stages

KERNEL = np.random.default_rng(1).uniform(-1, 1, (3, 3, 4, 5)).astype("float32")
PLACES = np.array([[0, 1], [1, 1], [5, 2]], "int32")
IMAGES, ROWS, SQUARES = (3, 8, 8, 4), (3, 6), (3, 6, 6)

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "conv": (lambda x: ops.conv(x, KERNEL, padding="same"), IMAGES),
    "kernel of conv": (lambda x: ops.conv(x[..., :4], ops.reshape(x[0, :3, :3, :], (3, 3, 4, 1))), IMAGES),
    "average_pool": (lambda x: ops.average_pool(x, 2), IMAGES),
    "max_pool": (lambda x: ops.max_pool(x, 2), IMAGES),
    "mean": (lambda x: ops.mean(x, axis=0) * 2.0, ROWS),
    "item": (lambda x: x[:, 1:3], ROWS),
    "take": (lambda x: ops.take(x, PLACES[2], axis=1), ROWS),
    "take_along_axis": (lambda x: ops.take_along_axis(x, PLACES, axis=1), ROWS),
    "diagonal": (lambda x: ops.diagonal(x, axis1=1, axis2=2), SQUARES),
    "class": (lambda x: apply(SelectClass(), x, ab.constant(PLACES[:, 0])), ROWS),
    "rfft": (lambda x: ops.rfft(x)[0], ROWS),
    "irfft": (lambda x: ops.irfft((x, x)), ROWS),
}


def gradient(function: Callable[[Any], Any], declared: tuple[int | None, ...], x: Any) -> tuple[Any, str]:
    """Return the gradient of a function of what is fed, and the prepared step."""
    with ab.Graph().as_default(), ab.Session() as session, stages() as steps:
        given = ab.placeholder(declared, "float32", "x")
        y = function(given)
        found = session.run(ab.gradients(ops.sum(y * y), [given])[0], {given: x})
    return found, steps[-1][1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_fed_shape_gives_all_sizes(name: str) -> None:
    function, shape = FUNCTIONS[name]
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
    found, step = gradient(function, (None, *shape[1:]), x)
    fixed, expected_step = gradient(function, shape, x)
    assert "?" not in step
    assert step.count("\n") == expected_step.count("\n")  # so that the same kernels compute it
    np.testing.assert_array_equal(found, fixed)
