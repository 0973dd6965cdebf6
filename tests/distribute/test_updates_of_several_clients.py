"""Updates of a variable by several clients all count, whatever a step does between reading and writing it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from shared.tasks import PS, WORKER
from shared.waiting import Waiting, until

import anabranch as ab
from anabranch.engine.graph import VariableRows

SIZES = [3, 300_000]  # of these the operations of the second are so long that they would run on threads


@pytest.fixture
def pair() -> Generator[tuple[Any, Any]]:
    with ab.distribute.Server({"ps": ["localhost:0"]}) as ps:
        cluster = {"ps": [ps.target.removeprefix("grpc://")], "worker": ["localhost:0"]}
        with ab.distribute.Server(cluster, "worker", 0) as worker:
            yield ps, worker


def variable(name: str, size: int) -> ab.Variable:
    with ab.device(PS):
        return ab.Variable(np.zeros(size, "float32"), name=name)


def client(build: Callable[[Any], Any], size: int, queue_name: str) -> tuple[ab.Graph, Any, Any]:
    """The graph of a client, its step, and what lets that go on: the gradient waits for a queue on the worker."""
    with ab.Graph().as_default() as graph:
        with ab.device(WORKER):
            queue = ab.queues.FIFOQueue(1, "float32", ((),), name=queue_name)
            given = queue.dequeue()
            goes_on = queue.enqueue(1.0)
            gradient = ab.ops.broadcast_to(given, (size,))
        step = build(gradient)
    return graph, step, goes_on


def between(build: Callable[[Any], Any], size: int, pair: Any, holder: int = 0) -> None:
    """Run the steps of two clients, one of which begins and ends while the other one waits for its gradient.

    Args:
        build: makes a step of its gradient.
        size: that of the gradient.
        pair: the two tasks.
        holder: the number of the one that has the variable.
    """
    _, worker = pair
    graph, step, goes_on = client(build, size, "first")
    with ab.Session(graph, target=worker.target) as session:
        session.program(step)
        session.program(goes_on)
        waiting = Waiting(lambda: session.run(step))
        until(lambda: pair[holder].status().held["running"] == 1)
        graph, step, other_goes_on = client(build, size, "second")
        with ab.Session(graph, target=worker.target) as other:
            other.run(other_goes_on)
            other.run(step)
        session.run(goes_on)
        waiting.result()


def value_of(name: str, size: int, pair: Any) -> Any:
    with ab.Graph().as_default() as graph:
        v = variable(name, size)
        with ab.Session(graph, target=pair[0].target) as session:
            return session.run(v)


@pytest.mark.parametrize("size", SIZES)
def test_additions_count(size: int, pair: Any):
    def build(gradient: Any) -> Any:
        v = variable("added to", size)
        with ab.device(WORKER):
            seen = ab.ops.sum(v)  # which reads the variable when the step begins
        with ab.device(PS):
            return v.assign_add(gradient), seen

    between(build, size, pair)
    np.testing.assert_array_equal(value_of("added to", size, pair), 2.0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["assign_add", "assign_sub"])
def test_additions_in_the_scope_of_another_task_count(name: str, size: int, pair: Any):
    """The sum is made where the variable is: what travels is what is added."""

    def build(gradient: Any) -> Any:
        v = variable("changed from elsewhere", size)
        with ab.device(WORKER):
            seen = ab.ops.sum(v)
            return getattr(v, name)(gradient), seen

    between(build, size, pair)
    np.testing.assert_array_equal(abs(value_of("changed from elsewhere", size, pair)), 2.0)


@pytest.mark.parametrize("name", ["assign_add", "assign_sub"])
@pytest.mark.parametrize("size", SIZES)
def test_additions_to_a_variable_that_the_session_places_count(size: int, name: str, pair: Any):
    """It is on the worker, which is the sessions' target, and the scope around its update asks for the ps task."""

    def build(gradient: Any) -> Any:
        v = ab.Variable(np.zeros(size, "float32"), name="without a device")
        with ab.device(PS):
            seen = ab.ops.sum(v)
            return getattr(v, name)(gradient), seen

    between(build, size, pair, holder=1)
    with ab.Graph().as_default() as graph:
        v = ab.Variable(np.zeros(size, "float32"), name="without a device")
        with ab.Session(graph, target=pair[1].target) as session:
            np.testing.assert_array_equal(abs(session.run(v)), 2.0)


@pytest.mark.parametrize("name", ["assign_add", "assign_sub", "scatter_add", "scatter_sub"])
@pytest.mark.parametrize("has_device", [False, True])
def test_additions_to_rows_in_the_scope_of_another_task_count(has_device: bool, name: str, pair: Any):
    here, there = (PS, WORKER) if has_device else (None, PS)

    def build(gradient: Any) -> Any:
        with ab.device(here):
            v = ab.Variable(np.zeros(5, "float32"), name="rows")
        with ab.device(there):
            if name.startswith("scatter"):
                return getattr(v, name)(ab.IndexedSlices(gradient, [4, 0, 2], (5,)))
            return getattr(VariableRows(v, ab.constant([4, 0, 2])), name)(gradient)

    between(build, 3, pair, holder=0 if has_device else 1)
    with ab.Graph().as_default() as graph:
        with ab.device(here):
            v = ab.Variable(np.zeros(5, "float32"), name="rows")
        with ab.Session(graph, target=pair[1].target) as session:
            np.testing.assert_array_equal(abs(session.run(v)), [2, 0, 2, 0, 2])


@pytest.mark.parametrize("size", SIZES)
def test_steps_of_optimizers_count(size: int, pair: Any):
    """With a momentum, the operations of two updates are one kernel, which reads both variables."""

    def build(gradient: Any) -> Any:
        v, momentum = variable("trained", size), variable("momentum", size)
        with ab.device(WORKER):
            loss = ab.ops.sum(v * gradient)
        (slope,) = ab.gradients(loss, [v])
        with ab.device(PS):
            faster = momentum * 0.5 + slope
            return v.assign_add(faster), momentum.assign(faster), loss

    between(build, size, pair)
    np.testing.assert_array_equal(value_of("momentum", size, pair), 1.5)
    np.testing.assert_array_equal(value_of("trained", size, pair), 2.5)


def test_the_step_of_an_optimizer_counts(pair: Any):
    def build(gradient: Any) -> Any:
        v = variable("stepped", 3)
        with ab.device(WORKER):
            loss = -ab.ops.sum(v * gradient)
        return ab.optim.SGD(0.5).minimize(loss, [v])

    between(build, 3, pair)
    np.testing.assert_array_equal(value_of("stepped", 3, pair), 1.0)


def test_what_is_computed_of_the_update_elsewhere_is_no_part_of_it(pair: Any):
    """The gradient is made of the half of the update that another task has seen: it can't be awaited before that."""
    _, worker = pair
    with ab.Graph().as_default() as graph:
        v = variable("seen halfway", 3)
        with ab.device(PS):
            half = v * 0.5 + 1.0
        with ab.device(WORKER):
            seen = ab.ops.sum(half)
        with ab.device(PS):
            written = v.assign(half + seen)
        with ab.Session(graph, target=worker.target) as session:
            np.testing.assert_array_equal(session.run(written), [4, 4, 4])
            np.testing.assert_array_equal(session.run(written), [12, 12, 12])


def test_updates_that_wait_for_each_other_by_way_of_another_task_run(pair: Any):
    """The momentum is known halfway, goes to the other task, and comes back for the update that its rest waits for."""
    _, worker = pair
    with ab.Graph().as_default() as graph:
        v, m = variable("waits for a momentum", 3), variable("waits for an update", 3)
        with ab.device(PS):
            half = m * 0.5
        with ab.device(WORKER):
            there = ab.ops.tanh(half) + 1.0
        with ab.device(PS):
            new = v + there
        with ab.device(WORKER):
            back = ab.ops.exp(new * 0.0)
        with ab.device(PS):
            written = [v.assign(new), m.assign(half + back)]
        with ab.Session(graph, target=worker.target) as session:
            np.testing.assert_allclose(session.run(written, timeout=60.0), [[1] * 3, [1] * 3])
            np.testing.assert_allclose(session.run(written, timeout=60.0), [[2 + np.tanh(0.5)] * 3, [1.5] * 3])


def test_updates_in_loops_take_the_value_of_their_iteration(pair: Any):
    _, worker = pair
    with ab.Graph().as_default() as graph:
        v = variable("updated in a loop", 2)

        def body(i: Any, total: Any) -> Any:
            with ab.device(WORKER):
                given = total * 0.5 + 1.0
            with ab.device(PS):
                return i + 1, v.assign_add(given)

        found = ab.while_loop(lambda i, _: i < 4, body, (0, ab.ops.zeros((2,))))[1]
        with ab.Session(graph, target=worker.target) as session:
            result = session.run(found)
    value, expected = 0.0, 0.0
    for _ in range(4):
        expected += value * 0.5 + 1.0
        value = expected
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(value_of("updated in a loop", 2, pair), expected)
