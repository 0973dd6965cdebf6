"""Tensors inside loops and branches can be fetched: histories, histories of histories, values of the branch taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Symbol, Tensor
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import as_fetched
from anabranch.engine.session.inside import fetched_from


@pytest.fixture(autouse=True)
def graph():
    with ab.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def x() -> Symbol:
    return ab.placeholder((), "float32", "x")


@pytest.fixture
def n() -> Symbol:
    return ab.placeholder((), "int32", "n")


def powers(x: Tensor, n: Any) -> tuple[Tensor, Tensor]:
    """x * 2**n by a loop, and the tensor inside that doubles."""
    inside: list[Tensor] = []

    def body(i: Tensor, value: Tensor) -> Any:
        inside.append(ops.multiply(value, 2.0))
        return i + 1, inside[-1]

    _, last = ab.while_loop(lambda i, _: i < n, body, (0, x), name="powers")
    return last, inside[-1]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_history_of_a_loop(x: Symbol, n: Symbol, count: int):
    last, inside = powers(x, n)
    found, value = ab.Session().run([inside, last], {x: 3, n: count})
    assert found == [3 * 2**k for k in range(1, count + 1)]
    assert value == 3 * 2**count


def test_history_of_a_loop_variable(x: Symbol, n: Symbol):
    carried: list[Tensor] = []

    def body(i: Tensor, value: Tensor) -> Any:
        carried.append(value)
        return i + 1, value + x

    ab.while_loop(lambda i, _: i < n, body, (0, x))
    assert ab.Session().run(carried[-1], {x: 1, n: 3}) == [1, 2, 3]


def test_by_name(x: Symbol, n: Symbol):
    powers(x, n)
    session = ab.Session()
    assert session.run("powers/while/body/multiply:0", {"x:0": 1, "n:0": 2}) == [2, 4]
    with pytest.raises(KeyError, match="no operation named 'powers/while/body/add_9'"):
        session.run("powers/while/body/add_9:0")


def test_nested_loops_give_lists_of_lists(n: Symbol):
    inside: list[Tensor] = []

    def outer(i: Tensor, total: Tensor) -> Any:
        def inner(j: Tensor, total: Tensor) -> Any:
            inside.append(i * 10 + j)
            return j + 1, total + inside[-1]

        _, total = ab.while_loop(lambda j, _: j < i, inner, (0, total))
        return i + 1, total

    ab.while_loop(lambda i, _: i < n, outer, (0, 0))
    assert ab.Session().run(inside[-1], {n: 4}) == [[], [10], [20, 21], [30, 31, 32]]
    assert ab.Session().run(inside[-1], {n: 0}) == []


def test_branches(x: Symbol):
    inside: list[Tensor] = []

    def branch() -> Tensor:
        inside.append(x * 2)
        return inside[-1] + 1

    y = ab.cond(x > 0, branch, lambda: x)
    session = ab.Session()
    assert session.run([y, inside[0]], {x: 3}) == [7, 6]
    assert session.run([y, inside[0]], {x: -3}) == [-3, None]


def test_branches_inside_loops(n: Symbol):
    inside: list[Tensor] = []

    def body(i: Tensor) -> Any:
        def branch() -> Tensor:
            inside.append(i * i)
            return inside[-1]

        ab.cond(i > 1, branch, lambda: i)
        return (i + 1,)

    ab.while_loop(lambda i: i < n, body, (0,))
    assert ab.Session().run(inside[-1], {n: 4}) == [None, None, 4, 9]


def test_shapes_may_vary_from_iteration_to_iteration(n: Symbol):
    inside: list[Tensor] = []

    def body(values: Tensor) -> Any:
        inside.append(ops.concatenate([values, values[:1] + 1], axis=0))
        return (inside[-1],)

    ab.while_loop(lambda values: ops.shape(values)[0] < n, body, (ops.zeros((1,)),))
    found = ab.Session().run(inside[-1], {n: 4})
    assert [value.shape for value in found] == [(2,), (3,), (4,)]


def test_inside_a_gradient_loop(x: Symbol, n: Symbol, graph: ab.Graph):
    last, _ = powers(x, n)
    (slope,) = ab.gradients(last, [x])
    loop = next(o for o in graph.operations if o.type == "while" and "while_grad" in o.name)
    inner = loop.op.regions[1].results[1]  # type: ignore[attr-defined]
    assert ab.Session().run([slope, inner], {x: 1, n: 3}) == [8, [2, 4, 8]]


def test_fetched_histories_alias_nothing(x: Symbol):
    v = ab.Variable([1.0, 2.0], name="v")
    inside: list[Tensor] = []

    def body(i: Tensor) -> Any:
        inside.append(v.assign_add([1.0, 1.0]))
        return (i + 1,)

    ab.while_loop(lambda i: i < 2, body, (0,))
    session = ab.Session()
    first = session.run(inside[-1])
    before = [value.copy() for value in first]
    session.run(inside[-1])
    np.testing.assert_array_equal(first, before)
    np.testing.assert_array_equal(first, [[2, 3], [3, 4]])


def test_explain_shows_what_is_recorded(x: Symbol, n: Symbol):
    _, inside = powers(x, n)
    assert "saved_multiply.append(multiply)" in ab.explain(inside, [x, n])


@pytest.mark.parametrize("interpreted", [True, False])
@pytest.mark.parametrize("count", [0, 3])
def test_conditions_are_computed_once_more_than_bodies(x: Symbol, n: Symbol, count: int, interpreted: bool):
    inside: list[Any] = []

    def more(i: Tensor, value: Tensor) -> Tensor:
        inside.append((i, ops.sum(value) * 2, i < n))
        return inside[-1][-1]

    def body(i: Tensor, value: Tensor) -> Any:
        return i + 1, value + x

    _, last = ab.while_loop(more, body, (0, x), name="count")
    wanted = [list(range(count + 1)), [2.0 * (k + 1) for k in range(count + 1)], [True] * count + [False]]
    session = ab.Session()
    if interpreted:
        feeds = {x: np.float32(1), n: np.int32(count)}
        tensors = [fetched_from(last.graph, tensor) for tensor in inside[-1]]
        found = [as_fetched(value) for value in Interpreter().run(last.graph, tensors, feeds)]
    else:
        found = session.run(list(inside[-1]), {x: 1, n: count})
    assert found == wanted
    assert session.run([last, inside[-1][1]], {x: 1, n: count}) == [count + 1, wanted[1]]


def test_discarded_traces_are_refused(n: Symbol):
    inside: list[Tensor] = []

    def body(values: Tensor) -> Any:
        inside.append(ops.concatenate([values, values[:1]], axis=0))
        return (inside[-1],)

    ab.while_loop(lambda values: ops.shape(values)[0] < n, body, (ops.zeros((1,)),))
    with pytest.raises(ValueError, match="a trace that is no part of the graph"):
        ab.Session().run(inside[0], {n: 3})


def test_inner_tensors_can_not_be_fed(x: Symbol, n: Symbol):
    last, inside = powers(x, n)
    with pytest.raises(ValueError, match="is inside a loop or branch and can't be fed: feed a placeholder outside"):
        ab.Session().run(last, {x: 1, n: 2, inside: 5})


def test_inner_operations_can_not_be_fetched(x: Symbol, n: Symbol):
    _, inside = powers(x, n)
    with pytest.raises(ValueError, match="runs with it: fetch one of its outputs, such as 'multiply:0'"):
        ab.Session().run(symbol_of(inside).operation, {x: 1, n: 2})
