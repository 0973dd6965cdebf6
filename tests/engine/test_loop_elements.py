"""`x[t]` in its spellings: parts of a tensor that a loop goes through are what elements of an array are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from shared.symbols import symbols_of

import anabranch as ab
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    """Loops over constants are operations, too: outside of a graph they would run in Python."""
    with ab.Graph().as_default() as graph:
        yield graph


ops = ab.ops
STEPS, ROWS, UNITS = 7, 3, 4
READS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "x[t]": lambda x, y, t: x[t],
    "x[last - t]": lambda x, y, t: x[STEPS - 1 - t],
    "x[t - steps]": lambda x, y, t: x[t - STEPS],
    "x[-1 - t]": lambda x, y, t: x[-1 - t],
    "x[t, :, :]": lambda x, y, t: x[t, :, :],
    "x[:, t]": lambda x, y, t: y[:, t],
    "take": lambda x, y, t: ops.take(x, t, axis=0),
    "take from the end": lambda x, y, t: ops.take(y, t - STEPS, axis=1),
    "gather": lambda x, y, t: ops.gather(x, t),
    "of a function": lambda x, y, t: ops.tanh(x[t]),
    "within the body": lambda x, y, t: ops.transpose(x, (1, 0, 2))[:, t],
}
OTHERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "two parts": lambda x, y, t: ops.concatenate([x[t, :, :2], x[t, :, 2:]], 1),
    "x[None, t]": lambda x, y, t: ops.squeeze(x[None, t], 0),
    "two tensors": lambda x, y, t: x[t] * y[:, t],
    "both directions": lambda x, y, t: x[t] + x[STEPS - 1 - t],
    "an element of it": lambda x, y, t: x[t] + x[t, 0, 0],
    "rows and a part": lambda x, y, t: x[t, 0] + x[t],
    "over the edge": lambda x, y, t: x[t] * x[t - 1],
}


class Cell:
    """``h = tanh(read(x, y, t) @ w + h @ u)``, its loss, gradients, and gradients of these."""

    def __init__(self, read: Callable[[Any, Any, Any], Any], start: int = 0, end: Any = STEPS, size: int = STEPS):
        generator = np.random.default_rng(0)
        shapes = {"x": (size, ROWS, UNITS), "w": (UNITS, UNITS), "u": (UNITS, UNITS)}
        x, w, u = (ab.placeholder(shape, "float64", name) for name, shape in shapes.items())
        values = [generator.uniform(-1, 1, shape) for shape in shapes.values()]
        self.feeds: dict[Any, Any] = dict(zip((x, w, u), values, strict=True))
        if end is None:
            end = ab.placeholder((), "int32", "n")
            self.feeds[end] = np.int32(size)
        y, zero = ops.transpose(x, (1, 0, 2)), ops.zeros((ROWS, UNITS), "float64")

        def body(t: Any, h: Any, total: Any) -> Any:
            return t + 1, ops.tanh(read(x, y, t) @ w + h @ u), total + h

        _, h, total = ab.while_loop(lambda t, *_: t < end, body, (start, zero, zero))
        self.loss = symbol_of(ops.sum(h * h) + ops.sum(total))
        self.sources = [x, w, u]
        self.first = symbols_of(ops.convert_to_tensor(each) for each in ab.gradients(self.loss, self.sources))
        slope = ops.sum(ops.concatenate([ops.ravel(each) for each in self.first]) ** 2)
        self.second = symbols_of(ops.convert_to_tensor(each) for each in ab.gradients(slope, self.sources))

    def check(self) -> None:
        """Compare with the interpreter, and the gradient with differences."""
        fetches = [self.loss, *self.first, *self.second]
        found = Program(self.loss.graph, fetches, list(self.feeds))(*self.feeds.values())
        wanted = Interpreter().run(self.loss.graph, fetches, self.feeds)
        for value, reference in zip(found, wanted, strict=True):
            np.testing.assert_allclose(value, reference, rtol=1e-9, atol=1e-10)
        program = Program(self.loss.graph, [self.loss], list(self.feeds))
        for source, slope in zip(self.sources, found[1:4], strict=True):
            step = 1e-6 * np.random.default_rng(1).normal(size=self.feeds[source].shape)
            ends = [program(*{**self.feeds, source: self.feeds[source] + k * step}.values())[0] for k in (1, -1)]
            np.testing.assert_allclose((ends[0] - ends[1]) / 2, np.sum(slope * step), rtol=1e-5, atol=1e-10)

    def lines_in_loops(self) -> list[str]:
        source = Program(self.loss.graph, [self.loss, *self.first], list(self.feeds)).source
        assert "put_rows" not in source
        return [line.strip() for line in source.splitlines() if line.startswith("        ")]


@pytest.mark.parametrize("name", READS)
def test_only_the_recurrence_stays(name: str):
    cell = Cell(READS[name])
    cell.check()
    inside = cell.lines_in_loops()
    assert sum(" @ " in line for line in inside) == 2  # h @ u, and its cotangent
    assert not any("get_item" in line or ("take(" in line.split("#")[0] and "saved" not in line) for line in inside)
    assert not any("add_item" in line or "add_rows" in line for line in inside)


@pytest.mark.parametrize("name", OTHERS)
def test_values_of_others(name: str):
    Cell(OTHERS[name]).check()


@pytest.mark.parametrize(
    ("read", "start", "end", "size"),
    [
        (lambda x, y, t: x[t], 0, 5, 9),
        (lambda x, y, t: x[t], 2, 8, 9),
        (lambda x, y, t: y[:, t], 2, 8, 9),
        (lambda x, y, t: x[t] * x[t + 1], 0, 6, 7),
        (lambda x, y, t: x[t] * x[t - 1], 1, 7, 7),
        (lambda x, y, t: x[t], 0, 0, 7),
        (lambda x, y, t: y[:, t], 0, 0, 0),
    ],
)
def test_a_part_of_the_tensor(read: Any, start: int, end: int, size: int):
    Cell(read, start, end, size).check()


LENGTHS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "up": (lambda n: (0, lambda t: t < n, 1), lambda x, t: x[t]),
    "down": (lambda n: (n - 1, lambda t: t >= 0, -1), lambda x, t: x[t]),
    "differences": (lambda n: (0, lambda t: t < n - 1, 1), lambda x, t: x[t + 1] - x[t]),
}


@pytest.mark.parametrize("length", [0, 1, 6])
@pytest.mark.parametrize("name", LENGTHS)
def test_all_rows_of_an_unknown_number(name: str, length: int):
    """A loop that ends where the tensor does may take its rows at once."""
    (make, read), generator = LENGTHS[name], np.random.default_rng(1)
    x, w = ab.placeholder((None, ROWS, UNITS), "float64", "x"), ab.placeholder((UNITS, UNITS), "float64", "w")
    start, condition, step = make(ops.shape(x)[0])
    zero = ops.zeros((ROWS, UNITS), "float64")
    _, h = ab.while_loop(
        lambda t, _: condition(t), lambda t, h: (t + step, ops.tanh(read(x, t) @ w + h)), (start, zero)
    )
    loss = ops.sum(h * h)
    targets = symbols_of(ops.convert_to_tensor(each) for each in (loss, *ab.gradients(loss, [x, w])))
    values = generator.uniform(-1, 1, (length, ROWS, UNITS)), generator.uniform(-1, 1, (UNITS, UNITS))
    program = Program(targets[0].graph, targets, [x, w])
    for found, wanted in zip(
        program(*values),
        Interpreter().run(targets[0].graph, targets, dict(zip((x, w), values, strict=True))),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("count", [-2, 0, 1, 4, 7])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_number_of_iterations_that_is_known_when_it_runs(count: int, reverse: bool):
    n = ab.placeholder((), "int32", "n")
    cell = Cell(lambda x, y, t: x[n - 1 - t if reverse else t], end=n)
    cell.feeds[n] = np.int32(count)
    cell.check()
    assert sum(" @ " in line for line in cell.lines_in_loops()) == 2


@pytest.mark.parametrize(
    ("read", "index", "iteration"),
    [
        (lambda x, t, n: x[t], 6, 6),
        (lambda x, t, n: x[n - 1 - t], 7, 0),
        (lambda x, t, n: x[t + 2], 6, 4),
        (lambda x, t, n: ops.take(x, t, axis=0), 6, 6),
        (lambda x, t, n: ops.gather(x, t - 1), -1, 0),
        (lambda x, t, n: x[t - 7], -7, 0),
    ],
)
@pytest.mark.parametrize("is_known", [False, True])
def test_a_place_outside_is_the_error_of_its_iteration(read: Any, index: int, iteration: int, is_known: bool):
    x, w = ab.placeholder((6, ROWS, UNITS), "float32"), ab.Variable(np.eye(UNITS, dtype="float32"))
    n = 8 if is_known else ab.placeholder((), "int32")
    body = lambda t, h: (t + 1, ops.tanh(read(x, t, n) @ w + h))  # noqa: E731
    with x.graph.as_default():  # outside, the loop would begin at once
        h = ab.while_loop(lambda t, _: t < n, body, (0, ops.zeros((ROWS, UNITS))))[1]
    feeds: dict[Any, Any] = {x: np.ones((6, ROWS, UNITS), "float32")}
    if not is_known:
        feeds[n] = np.int32(8)
    with pytest.raises(IndexError, match=f"index {index} is out of bounds for axis 0 with size 6") as caught:
        ab.Session().run(h, feeds)
    assert f"iteration {iteration} of" in "".join(caught.value.__notes__)


def test_both_directions_add_to_one_gradient():
    x, w = ab.placeholder((STEPS, ROWS, UNITS), "float64"), ab.placeholder((UNITS, UNITS), "float64")
    zero = ops.zeros((ROWS, UNITS), "float64")
    ends: list[Any] = []
    for place in (lambda t: t, lambda t: STEPS - 1 - t):
        body = lambda t, h, place=place: (t + 1, ops.tanh(x[place(t)] @ w + h))  # noqa: E731
        ends.append(ab.while_loop(lambda t, _: t < STEPS, body, (0, zero))[1])
    loss = ops.sum(ends[0] * ends[1])
    fetches = symbols_of([loss, *[ops.convert_to_tensor(each) for each in ab.gradients(loss, [x, w])]])
    generator = np.random.default_rng(0)
    feeds = {x: generator.normal(size=(STEPS, ROWS, UNITS)), w: generator.normal(size=(UNITS, UNITS))}
    program = Program(fetches[0].graph, fetches, list(feeds))
    assert "put_rows" not in program.source
    wanted = Interpreter().run(fetches[0].graph, fetches, feeds)
    for value, reference in zip(program(*feeds.values()), wanted, strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-9, atol=1e-10)


def test_nested_loops():
    x, w = ab.placeholder((STEPS, ROWS, UNITS), "float64"), ab.placeholder((UNITS, UNITS), "float64")

    def outer(k: Any, h: Any) -> Any:
        inner = lambda t, h: (t + 1, ops.tanh(x[t] @ w + h * x[k]))  # noqa: E731
        return k + 1, ab.while_loop(lambda t, _: t < STEPS, inner, (0, h))[1]

    h = ab.while_loop(lambda k, _: k < 5, outer, (0, ops.zeros((ROWS, UNITS), "float64")))[1]
    loss = ops.sum(h * h)
    fetches = symbols_of([loss, *[ops.convert_to_tensor(each) for each in ab.gradients(loss, [x, w])]])
    generator = np.random.default_rng(0)
    feeds = {x: generator.normal(size=(STEPS, ROWS, UNITS)), w: generator.normal(size=(UNITS, UNITS))}
    wanted = Interpreter().run(fetches[0].graph, fetches, feeds)
    for value, reference in zip(Program(fetches[0].graph, fetches, list(feeds))(*feeds.values()), wanted, strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (lambda x, t: x[2 * t], "it takes 'get_item', read at 'multiply', which does not go up or down by one"),
        (lambda x, t: x[t - 1], "it takes 'get_item', read at 'subtract', which may be outside"),
        (lambda x, t: x[t] + x[STEPS - 1 - t], "it takes 'get_item', read forward, and 'get_item_1', read backward"),
        (lambda x, t: ops.cumsum(x[t], 1), "it takes 'cum_sum', and there is no cum_sum of all iterations at once"),
        (lambda x, t: ab.cond(t > 3, lambda: x[t], lambda: -x[t]), "what a cond gives, which is not batched"),
    ],
)
def test_explain_names_what_holds_a_product(read: Any, why: str):
    x, w = ab.placeholder((2 * STEPS, ROWS, UNITS), "float32"), ab.placeholder((UNITS, UNITS), "float32")
    body = lambda t, h: (t + 1, ops.tanh(read(x, t) @ w) * h)  # noqa: E731
    h = ab.while_loop(lambda t, _: t < STEPS, body, (0, ops.ones((ROWS, UNITS))))[1]
    assert f"stays in the loop: {why}" in ab.explain(h, passes=True).replace("it takes 'cond/cond', ", "")
