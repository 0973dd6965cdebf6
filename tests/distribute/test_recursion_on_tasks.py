"""Recursive functions in steps over tasks: each runs on one task, with the state that it changes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from shared.tasks import PS, TOKEN, WORKER

import anabranch as ab
from anabranch import ops
from anabranch.engine.place.constraints import PlacementError
from anabranch.engine.runtime.deep_calls import CallsTooDeepError
from anabranch.engine.runtime.interpreter import Interpreter

pytestmark = pytest.mark.xdist_group("tasks")


@pytest.fixture(scope="module")
def target() -> Generator[str]:
    """A ps and a worker in this process; the worker is the master."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_TOKEN", TOKEN)
        with (
            ab.distribute.Server({"ps": ["localhost:0"], "worker": ["localhost:0"]}, "ps", 0) as ps,
            ab.distribute.Server({"ps": [ps.target[7:]], "worker": ["localhost:0"]}, "worker", 0) as worker,
        ):
            yield worker.target


@pytest.fixture
def session(graph: ab.Graph, target: str) -> Generator[ab.Session]:
    made = ab.Session(graph, target=target)
    yield made
    made.close()


@ab.function
def halves(x: Any, n: Any) -> Any:
    return ab.cond(n <= 0, lambda: x, lambda: halves(ops.tanh(x), n - 1) * 0.5 + halves(x * 2.0, n - 2))


def check(session: ab.Session, graph: ab.Graph, fetches: list[Any], feeds: dict[Any, Any]) -> None:
    """Compare what tasks compute with the interpreter."""
    for found, expected in zip(session.run(fetches, feeds), Interpreter().run(graph, fetches, feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("task", [PS, WORKER])
def test_a_recursion_and_its_gradient_run_on_one_task(session: ab.Session, graph: ab.Graph, task: str):
    x, n = ab.placeholder((2,), "float64", "x"), ab.placeholder((), "int32", "n")
    with ab.device(WORKER):
        begin = x * 3.0
    with ab.device(task):
        y = halves(begin, n)
    with ab.device(PS):
        z = y * y
    (slope,) = ab.gradients(ops.sum(z), [x])
    feeds = {x: np.array([0.1, 0.2]), n: np.int32(5)}
    check(session, graph, [z, slope], feeds)


def test_a_recursion_in_a_loop_over_tasks(session: ab.Session, graph: ab.Graph):
    x = ab.placeholder((2,), "float64", "x")

    def body(i: Any, h: Any) -> Any:
        with ab.device(PS):
            deeper = halves(h, i)
        with ab.device(WORKER):
            return i + 1, ops.tanh(deeper) + 0.5

    y = ab.while_loop(lambda i, h: i < 4, body, (0, x))[1]
    (slope,) = ab.gradients(ops.sum(y), [x])
    feeds = {x: np.array([0.1, 0.2])}
    check(session, graph, [y, slope], feeds)


def test_a_recursion_changes_state_where_that_is(session: ab.Session):
    """The step ran on the master with a value of its own: updates were lost."""
    with ab.device(PS):
        count = ab.Variable(5.0, name="counted by a recursion")
    n = ab.placeholder((), "int32", "n")

    @ab.function
    def counted(x: Any, n: Any) -> Any:
        def deeper() -> Any:
            with ab.control_dependencies([count.assign_add(1.0).operation]):
                less = n - 1
            return counted(x, less) + counted(x, n - 2)

        return ab.cond(n <= 0, lambda: x, deeper)

    y = counted(ab.constant(1.0), n)
    assert session.run(y, {n: 5}) == 13  # calls that go no deeper, and one less that do
    assert session.run(count) == 5 + 12


def test_a_recursion_whose_branches_ask_for_two_tasks_is_refused(session: ab.Session):
    @ab.function
    def spread(x: Any, n: Any) -> Any:
        def deeper() -> Any:
            with ab.device(PS):
                twice = x * 2.0
            with ab.device(WORKER):
                more = twice + 1.0
            return spread(more, n - 1) + spread(twice, n - 2)

        return ab.cond(n <= 0, lambda: x, deeper)

    y = spread(ab.constant(1.0), ab.placeholder((), "int32", "n"))
    with pytest.raises(PlacementError, match="a recursive function is not spread over devices"):
        session.program(y)


def test_a_recursion_that_does_not_end_is_named(session: ab.Session):
    n = ab.placeholder((), "int32", "n")
    with ab.device(PS):
        y = halves(ab.constant(1.0), n)
    with pytest.raises(CallsTooDeepError, match=r"'halves' called itself .* calls deep"):
        session.run(y, {n: 2**30})
    assert session.run(y, {n: 0}) == 1


def test_errors_of_linear_algebra_keep_their_kind(session: ab.Session):
    x = ab.placeholder((2, 2), "float64", "x")
    with ab.device(PS):
        y = ops.cholesky(x)
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        session.run(y, {x: -np.eye(2)})
