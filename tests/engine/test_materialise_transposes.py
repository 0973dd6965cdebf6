"""Transposed inputs of loops that are multiplied there are laid out once, in front."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.ops.arrays.axes import Transpose, TransposedCopy
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.passes.fusion import materialise_transposes
from anabranch.engine.runtime.program import Program

STEPS, BATCH, WIDTH = 3, 30, 40
needs_kernels = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


@pytest.fixture(autouse=True)
def _own_graph() -> Any:
    with ab.Graph().as_default(), without("fission", "unroll"):
        yield


def feeds(*shape: int) -> tuple[Any, Any, Any, Any]:
    generator = np.random.default_rng(0)
    x, w = ab.placeholder(shape, "float32", "x"), ab.placeholder((WIDTH, WIDTH), "float32", "w")
    x_value, w_value = [generator.standard_normal(size, dtype="float32") / 8 for size in (shape, (WIDTH, WIDTH))]
    return x, w, x_value, w_value


def looped(x: Any, body: Callable[[Any, Any], Any]) -> Any:
    """The last state of a loop over the first axis of `x`."""
    elements = ab.TensorArray("float32", size=STEPS).unstack(x)
    start = ab.ops.zeros((BATCH, WIDTH))
    return ab.while_loop(lambda t, _: t < STEPS, lambda t, h: (t + 1, body(elements.read(t), h)), (0, start))[1]


def transposes(fetch: Any, *fed: Any) -> list[type[Any]]:
    """The types of the transposes in front of loops."""
    step = prepare(ab.get_default_graph(), [fetch], fed, None, fusion_rule())
    return [type(operation.op) for operation in step.operations if isinstance(operation.op, Transpose)]


@needs_kernels
def test_slices_that_are_multiplied_come_from_a_copy():
    x, w, x_value, w_value = feeds(BATCH, STEPS, WIDTH)
    h = looped(ab.ops.transpose(x, (1, 0, 2)), lambda element, h: ab.ops.tanh(element @ w + h))
    (got,) = Program(ab.get_default_graph(), [h], [x, w])(x_value, w_value)

    wanted = np.zeros((BATCH, WIDTH))
    for t in range(STEPS):
        wanted = np.tanh(x_value[:, t].astype("float64") @ w_value + wanted)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert transposes(h, x, w) == [TransposedCopy]


@needs_kernels
def test_products_in_branches_of_a_loop_count():
    x, w, *_ = feeds(BATCH, STEPS, WIDTH)

    def body(element: Any, h: Any) -> Any:
        return ab.cond(h[0, 0] > 0, lambda: element @ w, lambda: h + 1)

    elements = ab.TensorArray("float32", size=STEPS).unstack(ab.ops.transpose(x, (1, 0, 2)))
    start = ab.ops.zeros((BATCH, WIDTH))

    def step(t: Any, h: Any) -> Any:
        return t + 1, ab.cond(h[0, 0] > 0, lambda: elements.read(t) @ w, lambda: h + 1)

    assert transposes(looped(ab.ops.transpose(x, (1, 0, 2)), lambda e, h: e @ w + body(e, h)), x, w) == [TransposedCopy]
    assert transposes(ab.while_loop(lambda t, _: t < STEPS, step, (0, start))[1], x, w) == [TransposedCopy]


@needs_kernels
def test_other_transposes_stay_views():
    x, w, *_ = feeds(BATCH, STEPS, WIDTH)
    only_added = looped(ab.ops.transpose(x, (1, 0, 2)), lambda element, h: ab.ops.tanh(element + h) @ w)
    assert transposes(only_added, x, w) == [Transpose]

    y, w, *_ = feeds(WIDTH, BATCH, STEPS)
    across = looped(ab.ops.transpose(y, (2, 1, 0)), lambda element, h: element @ w + h)
    assert transposes(across, y, w) == [Transpose], "its rows would lie far apart in a copy's source as well"


@needs_kernels
def test_large_ones_are_not_held_twice(monkeypatch: pytest.MonkeyPatch):
    x, w, x_value, w_value = feeds(BATCH, STEPS, WIDTH)
    h = looped(ab.ops.transpose(x, (1, 0, 2)), lambda element, h: ab.ops.tanh(element @ w + h))
    (wanted,) = Program(ab.get_default_graph(), [h], [x, w])(x_value, w_value)
    monkeypatch.setattr(materialise_transposes, "_LARGE", x_value.nbytes)
    assert transposes(h, x, w) == [Transpose]
    (found,) = Program(ab.get_default_graph(), [h], [x, w])(x_value, w_value)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(materialise_transposes, "_LARGE", x_value.nbytes + 1)
    assert transposes(h, x, w) == [TransposedCopy]


def test_its_switch_turns_it_off():
    x, w, *_ = feeds(BATCH, STEPS, WIDTH)
    h = looped(ab.ops.transpose(x, (1, 0, 2)), lambda element, h: element @ w + h)
    with without("materialise_transposes"):
        assert transposes(h, x, w) == [Transpose]
