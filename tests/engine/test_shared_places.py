"""Values that branches inside of others save for their gradients have places in common: only one branch is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from shared.growing_programs import nested_conds

import anabranch as ab
from anabranch import ops
from anabranch.engine.control_flow.frames import Saved
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.interpreter import Interpreter


@pytest.fixture(autouse=True)
def graph():
    with ab.Graph().as_default() as graph:
        yield graph


def nest(x: Any, value: Any, depth: int) -> Any:
    """Conditions in both branches of conditions; the branches save unequal numbers of values, and of other dtypes."""
    if depth == 0:
        return ops.sin(value) * x
    return ab.cond(
        ops.sum(value) > 0.2 * depth,
        lambda: nest(x, value * 0.7 - 0.1, depth - 1) * ops.cos(value),
        lambda: nest(x, ops.tanh(value), depth - 1) * 1.5,
    )


def saved_of(graph: ab.Graph, fetches: list[Any], x: Any) -> int:
    step = prepare(graph, fetches, [x])
    return sum(isinstance(operation.op, Saved) for operation in all_operations(step.operations))


def same_everywhere(fetches: list[Any], x: Any, values: list[Any]) -> None:
    """Check results with the interpreter's, and their bits with those of a step where each value has its own place."""
    session = ab.Session()
    run = session.make_callable(fetches, [x])
    for value in values:
        expected = Interpreter().run(x.graph, fetches, {x: value})
        found = run(value)
        with without("memory"):
            apart = session.run(fetches, {x: value})
        for one, other, third in zip(found, expected, apart, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(one, third)


def test_places_grow_with_the_program(graph: ab.Graph):
    counts: list[int] = []
    for depth in (4, 5, 6):
        with ab.Graph().as_default() as own:
            fetches, x = nested_conds(depth)
            counts.append(saved_of(own, fetches, x))
    assert counts[1] <= 2.2 * counts[0]
    assert counts[2] <= 2.2 * counts[1]


@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 2)])
def test_each_branch_gets_its_own_values(shape: tuple[int, ...]):
    x = ab.placeholder(shape, "float32", "x")
    y = nest(x, x, 3)
    (first,) = ab.gradients(y, [x])
    (second,) = ab.gradients(first, [x])
    values = [np.full(shape, value, "float32") for value in (-1.5, -0.2, 0.05, 0.3, 0.6, 0.9, 2.0, np.nan)]
    same_everywhere([y, first, second], x, values)


def test_shapes_known_at_run_time_and_branches_that_save_nothing():
    x = ab.placeholder((None,), "float32", "x")
    number = ops.cast(ops.sum(x), "int32")

    def inner() -> Any:
        return ab.switch(number, [lambda: ops.sin(x) * x, lambda: x, lambda: ops.exp(x[:1]) * ops.cos(x)])

    y = ab.cond(ops.sum(x) < 2.5, lambda: inner() * ops.tanh(x), lambda: ops.exp(-x) * x)
    values = [np.full(size, value, "float32") for size in (1, 4) for value in (0.0, 0.3, 0.55, 1.0)]
    same_everywhere([y, *ab.gradients(y, [x])], x, values)


def test_branches_in_a_loop_that_runs_as_often_as_the_data_says():
    x = ab.placeholder((4,), "float32", "x")
    limit = ops.cast(x[0] * 4.0, "int32")

    def body(i: Any, s: Any) -> Any:
        return i + 1, ab.cond(ops.sum(s) > 1.0, lambda: ops.sin(s) * x, lambda: nest(x, s + 0.5, 1) + s * s)

    _, s = ab.while_loop(lambda i, _: i < limit, body, (0, x))
    values = [np.array([first, 0.3, 0.5, -0.2], "float32") for first in (0.0, 0.3, 1.3, 2.1)]
    same_everywhere([s, *ab.gradients(s, [x])], x, values)


def test_what_is_fetched_from_a_branch_that_was_not_taken_stays_absent():
    x = ab.placeholder((), "float32", "x")
    inside: list[Any] = []

    def note(value: Any) -> Any:
        inside.append(value)
        return value * value

    def outer() -> Any:
        return ab.cond(x > 1.0, lambda: note(ops.sin(x)), lambda: note(ops.cos(x)))

    y = ab.cond(x > 0.0, outer, lambda: note(ops.exp(x)))
    found = ab.Session().run([y, *ab.gradients(y, [x]), *inside], {x: 0.5})
    assert found[2] is None
    assert found[4] is None
    np.testing.assert_allclose(found[:2], [np.cos(0.5) ** 2, -2 * np.cos(0.5) * np.sin(0.5)], rtol=1e-6)
    np.testing.assert_allclose(found[3], np.cos(0.5), rtol=1e-6)


def test_saved_bytes_count_each_value_once():
    x = ab.placeholder((100,), "float32", "x")
    y = ab.cond(
        x[0] > 0.0,
        lambda: ab.cond(x[0] > 1.0, lambda: ops.sin(ops.exp(x)), lambda: ops.cos(ops.tanh(x))),
        lambda: x,
    )
    session = ab.Session()
    session.run([y, *ab.gradients(y, [x])], {x: np.full(100, 0.5, "float32")})
    assert session.statistics().saved_bytes == 100 * 4 + 1  # tanh(x), and which branch was taken


def test_places_are_noted():
    x = ab.placeholder((), "float32", "x")
    y = nest(x, x, 2)
    told = ab.explain([y, *ab.gradients(y, [x])], [x], passes=True)
    assert "its branches save values in" in told
