"""Native loops over the rows of what another loop has computed: scans in scans, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.usefixtures("loops_stay", "native_whatever_the_size")

ops = ab.ops
RNG = np.random.default_rng(1)
Build = Callable[..., list[Any]]


def draw(*shape: int, dtype: str = "float64") -> Any:
    return RNG.uniform(-1, 1, shape).astype(dtype)


def check(build: Build, *values: Any, native: int) -> None:
    """As many loops are native as should be, and what they give is what the exact program gives, each time."""
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder(np.shape(value), np.asarray(value).dtype.name) for value in values]
        targets = build(*feeds)
        program = Program(graph, targets, feeds)
    assert program.source.count("# native: ") == native, program.source
    expected = Program(graph, targets, feeds, exact=True)(*values)
    for _ in range(3):
        for value, wanted in zip(program(*values), expected, strict=True):
            assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-9)


def over_rows(h: Any, w: Any) -> Any:
    """A scan over the rows of h, and what each iteration gives."""

    def cell(c: Any, row: Any) -> Any:
        c = ops.tanh(row @ w + c) if row.ndim else ops.tanh(row * 0.9 + c)
        return c, c * row

    return ops.scan(cell, h[0] * 0.0, h)


def scanned(x: Any, w: Any) -> tuple[Any, Any]:
    """A scan over x, in each iteration of which others run over the rows of the state and of what those have given."""

    def step(h: Any, x: Any) -> Any:
        last, rows = over_rows(h + x, w)
        _, again = over_rows(rows * 1.5, w)
        h = ops.flip(again, 0) * 0.5 + h * 0.5
        return h, ops.sum(last)

    return ops.scan(step, x[0] * 0.1, x[1:])


SHAPES = [(5, 4, 3), (5, 4), (1, 4, 3), (3, 1, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_scans_over_what_a_scan_computes(shape: tuple[int, ...]):
    check(lambda x, w: list(scanned(x, w)), draw(*shape), draw(3, 3), native=1)


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_gradients(shape: tuple[int, ...]):
    def build(x: Any, w: Any) -> list[Any]:
        h, sums = scanned(x, w)
        loss = ops.sum(h * h) + ops.sum(ops.sin(sums))
        return [loss, *[dx for dx in ab.gradients(loss, [x, w]) if dx is not None]]

    check(build, draw(*shape), draw(3, 3), native=2)


def test_second_order():
    def build(x: Any, w: Any) -> list[Any]:
        h, _ = scanned(x, w)
        (dx,) = ab.gradients(ops.sum(h * h), [x])
        return ab.gradients(ops.sum(dx * dx), [x, w])

    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder((3, 3, 2), "float64"), ab.placeholder((2, 2), "float64")]
        targets = build(*feeds)
        program = Program(graph, targets, feeds)
    values = draw(3, 3, 2), draw(2, 2)
    for value, wanted in zip(program(*values), Program(graph, targets, feeds, exact=True)(*values), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-9)


def test_rows_stay_while_others_are_written():
    """The memory of the rows is used for nothing else while the inner loop runs, and after it as long as it is read."""

    def build(x: Any) -> list[Any]:
        def step(h: Any, row: Any) -> Any:
            rows = ops.exp(h * 0.1)
            array = ab.TensorArray("float64", 6, element_shape=(4,)).unstack(rows)

            def inner(k: Any, c: Any) -> Any:
                big = ops.outer(c, c) + ops.outer(array.read(k), row)
                return k + 1, ops.tanh(ops.sum(big, axis=0)) + array.read(5 - k)

            _, c = ab.while_loop(lambda k, _: k < 6, inner, (0, row))
            return array.stack() + c, array.read(2)

        return list(ops.scan(step, ops.broadcast_to(x[0], (6, 4)), x))

    check(build, draw(7, 4), native=1)


def test_no_rows():
    def build(x: Any) -> list[Any]:
        def step(h: Any, row: Any) -> Any:
            last, _ = ops.scan(lambda c, e: (c + e, c), h * 1.0, ops.tanh(row[:0]))
            return last + ops.sum(row), h

        return list(ops.scan(step, ops.sum(x) * 0.0, x))

    with without("simplify"):
        check(build, draw(3, 4), native=1)


def test_an_index_beyond_the_rows_is_an_error():
    with ab.Graph().as_default() as graph:
        x, n = ab.placeholder((3, 4), "float64"), ab.placeholder((), "int32")

        def step(h: Any, row: Any) -> Any:
            array = ab.TensorArray("float64", 4, element_shape=()).unstack(ops.tanh(row))
            _, c = ab.while_loop(lambda k, _: k < n, lambda k, c: (k + 1, c + array.read(k)), (0, h))
            return c, c

        y, _ = ops.scan(step, ops.sum(x) * 0.0, x)
        program, exact = Program(graph, [y], [x, n]), Program(graph, [y], [x, n], exact=True)
    value = draw(3, 4)
    np.testing.assert_allclose(program(value, np.int32(4))[0], exact(value, np.int32(4))[0])
    for each in (program, exact):
        with pytest.raises(Exception, match="TensorArray"):
            each(value, np.int32(5))


def test_the_distance_of_two_texts():
    """Levenshtein's table by rows: the outer scan's state is a row, and the inner one runs along it."""

    def build(a: Any, b: Any) -> list[Any]:
        def row(previous: Any, given: Any) -> Any:
            letter, number = given
            cost = ops.cast(ops.not_equal(b, letter), "float64")
            best = ops.minimum(previous[:-1] + cost, previous[1:] + 1)

            def cell(c: Any, value: Any) -> Any:
                c = ops.minimum(c + 1, value)
                return c, c

            _, new = ops.scan(cell, number, best)
            return ops.concatenate([ops.reshape(number, (1,)), new]), number

        first = ops.arange(9, dtype="float64")
        return [ops.scan(row, first, (a, ops.arange(1, 8, dtype="float64")))[0][-1]]

    a, b = (np.array([ord(letter) for letter in text], "int32") for text in ("sitting", "kittens!"))
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder((7,), "int32"), ab.placeholder((8,), "int32")]
        program = Program(graph, build(*feeds), feeds)
    assert program.source.count("# native: ") == 1
    assert program(a, b)[0] == 4  # k/s, e/i, g/n, s, ! less one
