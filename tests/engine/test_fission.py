"""Loop fission: what leaves loops, and that values stay what they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from shared.symbols import symbols_of

import anabranch as ab
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.program import Program


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    """Loops over constants are operations, too: outside of a graph they would run in Python."""
    with ab.Graph().as_default() as graph:
        yield graph


ops = ab.ops
RNG = np.random.default_rng(0)


def draw(*shape: int) -> Any:
    return RNG.uniform(-0.5, 0.5, shape).astype("float32")


def recurrence(x: Any, w: Any, u: Any, b: Any, h: Any, steps: int, reverse: bool = False) -> Any:
    """The outputs of a plain recurrent cell over x (steps, batch, inputs)."""
    inputs = ab.TensorArray("float32", steps).unstack(x)
    outputs = ab.TensorArray("float32", steps, element_shape=h.shape)

    def body(t: Any, h: Any, outputs: Any) -> Any:
        position = steps - 1 - t if reverse else t
        h = ops.tanh(inputs.read(position) @ w + h @ u + b)
        return t + 1, h, outputs.write(position, h)

    return ab.while_loop(lambda t, *_: t < steps, body, (0, h, outputs))[2].stack()


class Cell:
    """A recurrence over fed values, its loss and gradients."""

    def __init__(self, steps: int = 5, rows: int = 2, reverse: bool = False) -> None:
        self.feeds = {
            ab.placeholder(value.shape, "float32", name): value
            for name, value in {
                "x": draw(steps, rows, 3),
                "w": draw(3, 4),
                "u": draw(4, 4),
                "b": draw(4),
                "h": draw(rows, 4),
            }.items()
        }
        self.loss = ops.sum(recurrence(*self.feeds, steps=steps, reverse=reverse) ** 2)
        self.gradients = ab.gradients(self.loss, list(self.feeds))

    def program(self, exact: bool = False) -> Program:
        targets = symbols_of([self.loss, *self.gradients])
        return Program(targets[0].graph, targets, list(self.feeds), exact=exact)

    def check(self) -> None:
        values = list(self.feeds.values())
        for value, wanted in zip(self.program()(*values), self.program(exact=True)(*values), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)


def lines_in_loops(source: str) -> list[str]:
    return [line.strip() for line in source.splitlines() if line.startswith("        ")]


def products(lines: list[str]) -> int:
    return sum(" @ " in line for line in lines)


def test_weight_gradients_and_input_products_leave_the_loops():
    cell = Cell()
    inside = lines_in_loops(cell.program().source)
    everything = cell.program().source.splitlines()

    assert products(lines_in_loops(cell.program(exact=True).source)) == 6
    assert products(inside) == 2  # h @ u forward, and its cotangent backward
    # x @ w before the forward loop; the gradients of w, u and x after the backward loop
    assert products(everything) - products(inside) == 4
    assert not any("sum_to_shape" in line for line in inside)  # the gradient of b


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
@pytest.mark.parametrize("reverse", [False, True])
def test_values_stay(steps: int, reverse: bool):
    Cell(steps, reverse=reverse).check()


def test_empty_batch():
    Cell(rows=0).check()


def test_number_of_steps_known_when_it_runs():
    x, n = ab.placeholder((None, 2, 3), "float32", "x"), ab.placeholder((), "int32", "n")
    w, u = ab.Variable(draw(3, 4)), ab.Variable(draw(4, 4))
    inputs = ab.TensorArray("float32", ops.shape(x)[0]).unstack(x)

    def body(t: Any, h: Any) -> Any:
        return t + 1, ops.tanh(inputs.read(t) @ w + h @ u)

    h = ab.while_loop(lambda t, _: t < n, body, (0, ops.zeros((2, 4))))[1]
    fetches = [h, *ab.gradients(h, [w, u, x])]
    for count in (0, 2, 5):
        feeds = {x: draw(5, 2, 3), n: np.int32(count)}
        exact = Program(h.graph, fetches, [x, n], exact=True)(*feeds.values())
        for value, wanted in zip(ab.Session().run(fetches, feeds), exact, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)


def keeps_running_sum(sums: Any) -> tuple[Any, ...]:
    """The running sum is used in the body as well, so it has to stay there."""
    a = ab.constant(draw(3, 2))

    def body(i: Any, s: Any, total: Any) -> Any:
        s = s + ops.transpose(a) @ (a * ops.cast(i, "float32"))
        return i + 1, s, total + ops.sum(s)

    return ab.while_loop(lambda i, *_: i < 4, body, (0, sums, 0.0))[1:]


def looks_at_sum(sums: Any) -> tuple[Any, ...]:
    """The loop ends by the sum."""
    a = ab.constant(draw(3, 2))
    return ab.while_loop(
        lambda i, s: ops.logical_and(i < 9, ops.max(s) < 1.0), lambda i, s: (i + 1, s + ops.transpose(a) @ a), (0, sums)
    )


def waits_for_sum(sums: Any) -> tuple[Any, ...]:
    """Another operation of the body waits for the sum."""
    a = ab.constant(draw(3, 2))

    def body(i: Any, s: Any, other: Any) -> tuple[Any, ...]:
        s = s + ops.transpose(a) @ (a * ops.cast(i, "float32"))
        with ab.control_dependencies([s]):
            return i + 1, s, ops.sort(other)

    n = ops.reshape(ops.cast(ops.max(sums), "int32"), ()) + 4
    return ab.while_loop(lambda i, *_: i < n, body, (0, ops.zeros((2, 2)), sums))[1:]


@pytest.mark.parametrize("loop", [keeps_running_sum, looks_at_sum, waits_for_sum])
def test_sums_that_the_loop_needs_stay(loop: Callable[[Any], tuple[Any, ...]]):
    sums = ab.placeholder((2, 2), "float32", "sums")
    fetches = list(loop(sums))
    value = draw(2, 2)
    exact = Program(fetches[0].graph, fetches, [sums], exact=True)(value)
    for got, wanted in zip(ab.Session().run(fetches, {sums: value}), exact, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_nested_loops():
    x = ab.placeholder((3, 4, 2, 3), "float32", "x")
    w, u = ab.Variable(draw(3, 4)), ab.Variable(draw(4, 4))
    rows = ab.TensorArray("float32", 3).unstack(x)

    def outer(k: Any, total: Any) -> Any:
        return k + 1, total + ops.sum(recurrence(rows.read(k), w, u, 0.0, ops.zeros((2, 4)), 4))

    total = ab.while_loop(lambda k, _: k < 3, outer, (0, 0.0))[1]
    fetches = [total, *ab.gradients(total, [w, u, x])]
    value = draw(3, 4, 2, 3)
    exact = Program(total.graph, fetches, [x], exact=True)(value)
    for got, wanted in zip(ab.Session().run(fetches, {x: value}), exact, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_weights_that_a_body_uses_twice():
    x, w = ab.placeholder((5, 2, 4), "float32"), ab.placeholder((4, 4), "float32")
    inputs = ab.TensorArray("float32", 5).unstack(x)
    h = ab.while_loop(
        lambda t, _: t < 5,
        lambda t, h: (t + 1, ops.tanh(ops.tanh(inputs.read(t) + h @ w) @ w)),
        (0, ops.zeros((2, 4))),
    )[1]
    fetches = [h, *ab.gradients(h, [w, x])]
    program = Program(h.graph, fetches, [x, w])
    assert products(lines_in_loops(program.source)) == 4  # two forward, and their cotangents backward
    values = draw(5, 2, 4), draw(4, 4)
    for got, wanted in zip(program(*values), Program(h.graph, fetches, [x, w], exact=True)(*values), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_gradients_of_nested_loops_of_known_lengths_leave_both():
    x, w = ab.placeholder((6, 7, 2, 4), "float32"), ab.placeholder((4, 4), "float32")
    rows = ab.TensorArray("float32", 6).unstack(x)

    def outer(i: Any, h: Any) -> Any:
        row = ab.TensorArray("float32", 7).unstack(rows.read(i))
        inner = ab.while_loop(lambda t, _: t < 7, lambda t, h: (t + 1, ops.tanh(row.read(t) + h @ w)), (0, h))[1]
        return i + 1, inner * 0.5

    h = ab.while_loop(lambda i, _: i < 6, outer, (0, ops.zeros((2, 4))))[1]
    fetches = [h, *ab.gradients(h, [w, x])]
    program = Program(h.graph, fetches, [x, w])
    assert products(lines_in_loops(program.source)) == 2  # h @ w forward, and its cotangent backward
    values = draw(6, 7, 2, 4), draw(4, 4)
    for got, wanted in zip(program(*values), Program(h.graph, fetches, [x, w], exact=True)(*values), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


TWICE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "product": lambda h, x, u: h @ u,
    "sigmoid": lambda h, x, u: ops.sigmoid(h @ u),
    "softmax": lambda h, x, u: ops.softmax(h @ u),
    "transposed": lambda h, x, u: h @ ops.transpose(u),
    "of the input": lambda h, x, u: h + x @ u,
    "three times": lambda h, x, u: ops.sigmoid(ops.tanh(h @ u) @ u),
}


@pytest.mark.parametrize("output", TWICE.values(), ids=TWICE)
def test_gradients_of_weights_that_outputs_share_with_the_recurrence_are_products_after_the_loop(output: Any):
    """The products of outputs alone are batched before the backward loop, as an array of matrices that it adds up."""
    steps, rows, width = 20, 3, 32
    x, u = ab.placeholder((steps, rows, width), "float64"), ab.placeholder((width, width), "float64")
    b = ab.placeholder((width,), "float64")
    inputs = ab.TensorArray("float64", steps, element_shape=(rows, width)).unstack(x)

    def body(t: Any, h: Any, outputs: Any) -> Any:
        h = ops.tanh(inputs.read(t) + h @ u + b)
        return t + 1, h, outputs.write(t, output(h, inputs.read(t), u) + b)

    start = (0, ops.zeros((rows, width), "float64"), ab.TensorArray("float64", steps))
    loss = ops.sum(ab.while_loop(lambda t, *_: t < steps, body, start)[2].stack() ** 2)
    fetches = [loss, *ab.gradients(loss, [u, b, x])]
    program = Program(symbol_of(loss).graph, fetches, [x, u, b])
    assert f"({steps}, {width}, {width})" not in program.source
    assert not [line for line in lines_in_loops(program.source) if ".T @" in line]
    values = [draw(*shape).astype("float64") for shape in ((steps, rows, width), (width, width), (width,))]
    for got, wanted in zip(
        program(*values), Program(symbol_of(loss).graph, fetches, [x, u, b], exact=True)(*values), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)


def test_products_of_elements_that_are_read_in_the_order_of_data():
    """Elements that no iteration reads, and that several do, get their gradients, too."""
    x, w = ab.placeholder((5, 2, 3), "float32", "x"), ab.placeholder((3, 4), "float32", "w")
    order = ab.placeholder((7,), "int32", "order")
    elements = ab.TensorArray("float32", 5).unstack(x)

    def body(t: Any, h: Any) -> Any:
        return t + 1, ops.tanh(elements.read(order[t]) @ w + h)

    h = ab.while_loop(lambda t, _: t < 7, body, (0, ops.zeros((2, 4))))[1]
    (gradient,) = ab.gradients(ops.sum(h**2), [x])
    program = Program(symbol_of(gradient).graph, symbols_of([gradient]), [x, w, order])
    values = draw(5, 2, 3), draw(3, 4), np.array([1, 0, 1, 4, 1, 3, 0], "int32")
    exact = Program(symbol_of(gradient).graph, symbols_of([gradient]), [x, w, order], exact=True)
    np.testing.assert_allclose(program(*values)[0], exact(*values)[0], rtol=1e-4, atol=1e-5)
    assert not exact(*values)[0][2].any()
