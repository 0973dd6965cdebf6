"""Elements of large elementwise results that a loop reads are computed in the loop: the same bits, less memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from shared.fusion_checks import prepared

import anabranch as ab
from anabranch.engine.graph.graph import Operation
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.loops import elements_again
from anabranch.engine.runtime.program import Program

ops = ab.ops
STEPS, ROWS, UNITS = 24, 3, 4
RNG = np.random.default_rng(0)
Build = Callable[[Any, Any], Sequence[Any]]


@pytest.fixture(autouse=True)
def small_results_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements_again, "_LARGE", 1)


def outputs_of(x: Any) -> Any:
    """All states of a small recurrent loop over x (steps, rows, units)."""
    rows = ab.TensorArray("float32", size=STEPS).unstack(x)
    written = ab.TensorArray("float32", size=STEPS, element_shape=(ROWS, UNITS))

    def body(t: Any, h: Any, written: Any) -> tuple[Any, ...]:
        h = ops.tanh(rows.read(t) + 0.5 * h)
        return t + 1, h, written.write(t, h)

    return ab.while_loop(lambda t, *_: t < STEPS, body, (0, ops.zeros((ROWS, UNITS)), written))[2].stack()


def sum_of(rows: Any) -> Any:
    """A sum that a loop takes of the rows of a tensor, one after the other."""
    found = ab.TensorArray("float32", size=STEPS).unstack(rows)
    state = (0, ops.zeros((ROWS, UNITS)))
    return ab.while_loop(lambda t, _: t < STEPS, lambda t, total: (t + 1, ops.tanh(total + found.read(t))), state)[1]


def squares(x: Any, y: Any) -> Sequence[Any]:
    loss = ops.mean((outputs_of(x) - y) ** 2)
    return [loss, *ab.gradients(loss, [x])]


def scaled(x: Any, y: Any) -> Sequence[Any]:
    return [sum_of(2.0 * x * y - x)]


def squares_by_batch(x: Any, y: Any) -> Sequence[Any]:
    """The loss of outputs by rows of the batch, as recurrent layers give them."""
    by_row = (1, 0, 2)
    difference = ops.transpose(outputs_of(x), by_row) - ops.transpose(ops.transpose(y, (2, 1, 0)), (1, 2, 0))
    loss = ops.mean(difference**2)
    return [loss, *ab.gradients(loss, [x])]


def of_a_square_in_two_orders(x: Any, y: Any) -> Sequence[Any]:
    square = ops.reshape(x, (-1,))[: STEPS * STEPS // 4].reshape((STEPS // 2, STEPS // 2))
    rows = ab.TensorArray("float32", size=STEPS // 2).unstack(square * ops.transpose(square, (1, 0)))
    state = (0, ops.zeros((STEPS // 2,)))
    total = ab.while_loop(lambda t, _: t < STEPS // 2, lambda t, s: (t + 1, ops.tanh(s + rows.read(t))), state)[1]
    return [total, ops.sum(y)]


def fetched(x: Any, y: Any) -> Sequence[Any]:
    both = x * y
    return [both, sum_of(both)]


def read_twice(x: Any, y: Any) -> Sequence[Any]:
    both = x * y
    return [sum_of(both), sum_of(both)]


def of_two_results(x: Any, y: Any) -> Sequence[Any]:
    return [sum_of(ops.cumsum(x, 0) * ops.cumsum(y, 0))]


def at_any_place(x: Any, y: Any) -> Sequence[Any]:
    rows = ab.TensorArray("float32", size=STEPS).unstack(x * y)
    state = (0, ops.zeros((ROWS, UNITS)))
    return [ab.while_loop(lambda t, _: t < 40, lambda t, s: (t + 1, ops.tanh(s + rows.read(t % STEPS))), state)[1]]


def of_some_places(x: Any, y: Any) -> Sequence[Any]:
    rows = ab.TensorArray("float32", size=STEPS).unstack(x * y)
    state = (2, ops.zeros((ROWS, UNITS)))
    return [ab.while_loop(lambda t, _: t < STEPS - 1, lambda t, s: (t + 1, ops.tanh(s + rows.read(t))), state)[1]]


def is_computed_inside(build: Build) -> bool:
    """Test whether no array of the prepared step has rows that elementwise operations made."""
    with ab.Graph().as_default():
        feeds = [ab.placeholder((STEPS, ROWS, UNITS), "float32") for _ in range(2)]
        step = prepared([symbol_of(each) for each in build(*feeds)], feeds)
    arrays = [operation for operation in step.operations if operation.type == "array_unstack"]
    assert arrays

    def is_made(operation: Operation) -> bool:
        return operation.op.elementwise or operation.type == "fused"

    return not any(is_made(array.inputs[0].operation) for array in arrays)


CASES: dict[str, tuple[Build, bool]] = {
    "the cotangent of a loss": (squares, True),
    "the cotangent of a loss by rows of the batch": (squares_by_batch, True),
    "rows that are scaled": (scaled, True),
    "a matrix and its transpose": (of_a_square_in_two_orders, False),
    "some of the rows": (of_some_places, True),
    "rows that are fetched, too": (fetched, False),
    "rows that two loops read": (read_twice, False),
    "rows of two arrays that would be kept": (of_two_results, False),
    "rows that are read several times": (at_any_place, False),
}


@pytest.mark.parametrize(("build", "expected"), CASES.values(), ids=CASES)
def test_elements_are_computed_where_that_saves_memory(build: Build, expected: bool) -> None:
    assert is_computed_inside(build) == expected


@pytest.mark.parametrize("build", [build for build, _ in CASES.values()], ids=CASES)
def test_every_bit_stays(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [RNG.uniform(-1, 1, (STEPS, ROWS, UNITS)).astype("f") for _ in range(2)]

    def run() -> list[Any]:
        with ab.Graph().as_default() as graph:
            feeds = [ab.placeholder(value.shape, "float32") for value in values]
            fetches = [symbol_of(each) for each in build(*feeds)]
        return list(Program(graph, fetches, feeds, exact=True)(*values))

    found = run()
    monkeypatch.setattr(elements_again, "_LARGE", 1 << 40)
    for value, wanted in zip(found, run(), strict=True):
        np.testing.assert_array_equal(value, wanted)


def test_the_gradient_agrees_with_differences() -> None:
    x, y = (RNG.uniform(-1, 1, (STEPS, ROWS, UNITS)) for _ in range(2))

    def loss(x: np.ndarray[Any, Any]) -> float:
        h, total = np.zeros((ROWS, UNITS)), 0.0
        for row, label in zip(x, y, strict=True):
            h = np.tanh(row + 0.5 * h)
            total += float(np.sum((h - label) ** 2))
        return total / x.size

    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder(x.shape, "float32") for _ in range(2)]
        _, gradient = squares(*feeds)
    found = ab.Session(graph).run(gradient, dict(zip(feeds, (x.astype("f"), y.astype("f")), strict=True)))
    for place in [(0, 0, 0), (3, 1, 2), (STEPS - 1, ROWS - 1, UNITS - 1)]:
        step = np.zeros_like(x)
        step[place] = 1e-5
        assert found[place] == pytest.approx((loss(x + step) - loss(x - step)) / 2e-5, rel=1e-4, abs=1e-6)
