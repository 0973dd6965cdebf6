"""Elementwise operations on the blocks of convolutions by transforms: which are joined, and values bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
ops = ab.ops


def _joined(build: Callable[..., Any], *shapes: tuple[int, ...]) -> list[str]:
    """Run a step with and without epilogues, whose bits are the same; return what was joined."""
    rng = np.random.default_rng(0)
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder(shape, "float32") for shape in shapes]
        found = build(*feeds)
    targets = [symbol_of(fetch) for fetch in (found if isinstance(found, list) else [found])]
    values = [rng.normal(size=shape).astype("float32") for shape in shapes]
    with recording() as log:
        results = Program(graph, targets, feeds)(*values)
    with without("epilogues"):
        expected = Program(graph, targets, feeds)(*values)
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)
    return [note.text.partition(": ")[2] for note in log.of("epilogues")[0]]


X, KERNEL, BIAS = (3, 22, 19, 24), (3, 3, 24, 20), (20,)
RESULT = (3, 22, 19, 20)


def _conv(x: Any, kernel: Any, padding: str = "same") -> Any:
    return ops.conv(x, kernel, padding=padding)


@pytest.mark.parametrize("shape", [X, (2, 9, 130, 24), (1, 26, 22, 24), (16, 8, 9, 24)])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_bias_and_relu(shape: tuple[int, ...], padding: str) -> None:
    """Rows of tiles that are longer than a block, and blocks that begin and end within one."""
    assert _joined(lambda x, k, b: ops.relu(_conv(x, k, padding) + b), shape, KERNEL, BIAS) == ["add, relu"]


def test_residuals_are_read_pixel_by_pixel() -> None:
    assert _joined(lambda x, k, r: ops.relu(_conv(x, k) + r), X, KERNEL, RESULT) == ["add, relu"]


def test_a_result_that_is_needed_besides_is_kept() -> None:
    def build(x: Any, kernel: Any, bias: Any) -> Any:
        y = _conv(x, kernel)
        return [y, ops.tanh(y * bias)]

    assert _joined(build, X, KERNEL, BIAS) == ["multiply, tanh"]


def test_gradients_in_the_input_are_followed_too() -> None:
    def build(x: Any, kernel: Any, dy: Any) -> Any:
        (dx,) = ab.gradients(_conv(x, kernel), [x], dy)
        return ops.where(x > 0, dx, 0.0)

    assert _joined(build, X, KERNEL, RESULT) == ["greater, where"]


@pytest.mark.parametrize("shape", [(3, 1, 1, 20), (22, 1, 1)])
def test_what_differs_by_image_or_row_is_not_joined(shape: tuple[int, ...]) -> None:
    assert _joined(lambda x, k, s: ops.relu(_conv(x, k) * s), X, KERNEL, shape) == []


def test_gradients_in_the_taps_stay_alone() -> None:
    def build(x: Any, kernel: Any, dy: Any) -> Any:
        (dkernel,) = ab.gradients(_conv(x, kernel), [kernel], dy)
        return dkernel * 0.5

    assert _joined(build, X, KERNEL, RESULT) == []


def test_hidden_layers_in_training() -> None:
    def build(x: Any, first: Any, bias: Any, second: Any) -> Any:
        hidden = ops.relu(_conv(x, first) + bias)
        loss = ops.sum(ops.tanh(_conv(hidden, second)))
        return [loss, *ab.gradients(loss, [first, bias, second])]

    assert "add, relu" in _joined(build, X, KERNEL, BIAS, (3, 3, 20, 16))
