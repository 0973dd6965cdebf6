"""Rows at positions that are no tensors, of tensors that loops capture: they are taken before the loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch import ops
from anabranch.engine.control_flow.while_loop import While
from anabranch.engine.ops.containers.tensor_arrays import ArrayWrite
from anabranch.engine.runtime.interpreter import Interpreter

ROWS, WIDTH = 3, 4
TABLE = np.random.default_rng(0).normal(size=(ROWS, WIDTH))


@pytest.fixture(autouse=True)
def graph():
    with ab.Graph().as_default() as graph:
        yield graph


def looped(table: Any, positions: Sequence[int], trips: Any) -> Any:
    """The state after `trips` iterations, each of which uses the rows at `positions`."""

    def body(i: Any, h: Any) -> Any:
        for position in positions:
            h = ops.tanh(h * table[position] + ops.cast(i, "float64") * 0.1)
        return i + 1, h

    return ab.while_loop(lambda i, h: i < trips, body, (0, ops.full((WIDTH,), 0.5, dtype="float64")))[1]


def numbers(positions: Sequence[int], trips: int, values: np.ndarray) -> float:
    h = np.full((WIDTH,), 0.5)
    for i in range(trips):
        for position in positions:
            h = np.tanh(h * values[position] + i * 0.1)
    return float((h**2).sum())


def difference(positions: Sequence[int], trips: int, step: float = 1e-6) -> np.ndarray:
    found = np.zeros_like(TABLE)
    for place in np.ndindex(*TABLE.shape):
        shift = np.zeros_like(TABLE)
        shift[place] = step
        more, less = (numbers(positions, trips, TABLE + sign * shift) for sign in (1, -1))
        found[place] = (more - less) / (2 * step)
    return found


def bodies(graph: Any) -> list[Any]:
    return [operation.op.body for operation in graph.operations if isinstance(operation.op, While)]


@settings(max_examples=examples(12, 200), deadline=None)
@given(st.lists(st.integers(-ROWS, ROWS - 1), min_size=1, max_size=4), st.integers(0, 4), st.booleans())
def test_gradients_are_those_of_differences(positions: list[int], trips: int, known: bool):
    with ab.Graph().as_default() as graph:
        table = ab.Variable(TABLE, name="table")
        count = trips if known else ab.placeholder((), "int32", "count")
        loss = ops.sum(ops.square(looped(table, positions, count)))
        gradient = ab.gradients(loss, table)[0]
        fetches = [loss, ab.convert_to_tensor(gradient)]
        feeds = {} if known else {count: trips}
        with ab.Session() as session:
            value, slopes = session.run(fetches, feeds)
        plain, same = Interpreter().run(graph, fetches, feeds)
    np.testing.assert_allclose(value, numbers(positions, trips, TABLE), rtol=1e-12)
    np.testing.assert_allclose(slopes, difference(positions, trips), atol=1e-8)
    np.testing.assert_allclose([plain, *np.ravel(same)], [value, *np.ravel(slopes)], rtol=1e-12, atol=1e-14)


def test_second_derivatives_are_those_of_differences():
    table = ab.Variable(TABLE, name="table")
    loss = ops.sum(ops.square(looped(table, [0, 2, -1], 3)))
    first = ab.convert_to_tensor(ab.gradients(loss, table)[0])
    second = ab.convert_to_tensor(ab.gradients(ops.sum(ops.square(first)), table)[0])

    def squares(shift: np.ndarray) -> float:
        with ab.Session() as session:
            return float((session.run(first, {table.value: TABLE + shift}) ** 2).sum())

    with ab.Session() as session:
        found = session.run(second)
    for place in [(0, 1), (2, 3), (1, 0)]:
        shift = np.zeros_like(TABLE)
        shift[place] = 1e-5
        assert found[place] == pytest.approx((squares(shift) - squares(-shift)) / 2e-5, abs=1e-6)


def test_rows_are_taken_before_the_loop(graph: ab.Graph):
    table = ab.Variable(TABLE, name="table")
    h = looped(table, [0, 1], 3)
    (body,) = bodies(graph)
    assert [outer.operation.type for outer in body.outer_tensors()].count("get_item") == 2
    assert not any(operation.type == "get_item" for operation in body.operations)
    ab.gradients(h, table)
    for each in bodies(graph):
        assert not any(isinstance(operation.op, ArrayWrite) for operation in each.operations)


def test_rows_of_a_variable_that_the_loop_writes_are_read_in_each_iteration():
    table = ab.Variable(np.ones((2, 3)), name="table")

    def body(i: Any, total: Any) -> Any:
        total = total + table[0]
        with ab.control_dependencies([table.assign_add(np.ones((2, 3))).operation]):
            return i + 1, ops.copy(total)

    _, total = ab.while_loop(lambda i, _: i < 3, body, (0, ops.zeros((3,), "float64")))
    with ab.Session() as session:
        assert session.run(total).tolist() == [6, 6, 6]


def test_a_row_that_may_be_missing_stays_where_it_is():
    x = ab.placeholder((None, 3), "float64", "x")
    _, h = ab.while_loop(lambda i, _: i < 0, lambda i, h: (i + 1, h + x[2]), (0, ops.ones((3,), "float64")))
    with ab.Session() as session:
        assert session.run(h, {x: np.ones((1, 3))}).tolist() == [1, 1, 1]


def test_rows_on_a_device_of_their_own_stay_in_the_loop(graph: ab.Graph):
    table = ab.Variable(TABLE, name="table").value

    def body(i: Any, h: Any) -> Any:
        with ab.device("/cpu:0"):
            row = table[0]
        return i + 1, h + row

    ab.while_loop(lambda i, _: i < 3, body, (0, ops.zeros((WIDTH,), "float64")))
    assert any(operation.type == "get_item" for operation in bodies(graph)[0].operations)


def test_loops_in_loops():
    table = ab.Variable(TABLE, name="table")
    x = ops.ones((WIDTH,), "float64")

    def inner(h: Any) -> Any:
        return ab.while_loop(lambda j, _: j < 2, lambda j, h: (j + 1, h * table[1]), (0, h))[1]

    _, h = ab.while_loop(lambda i, _: i < 2, lambda i, h: (i + 1, inner(h) + table[-1]), (0, x))
    gradient = ab.convert_to_tensor(ab.gradients(ops.sum(h), table)[0])
    with ab.Session() as session:
        found = session.run(gradient)
    a, b = TABLE[1], TABLE[2]  # h = a**4 + b * a**2 + b
    np.testing.assert_allclose(found, [0 * a, 4 * a**3 + 2 * b * a, a**2 + 1], rtol=1e-12)
