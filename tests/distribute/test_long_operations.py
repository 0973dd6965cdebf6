"""Operations that take long run beside a task's loop, which serves other clients meanwhile."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from shared.tasks import WORKER
from shared.waiting import PATIENCE, Waiting, out_of_time, until

import anabranch as ab
from anabranch.engine.machine.part_program import PartProgram
from anabranch.engine.ops.registered import register_function

begun, goes_on = threading.Event(), threading.Event()


@register_function("waits until a test lets it go on")
def waits(value: Any) -> Any:
    begun.set()
    assert goes_on.wait(PATIENCE)
    return value


seen: list[weakref.ref[Any]] = []


@register_function("fails once a test lets it go on")
def fails(value: Any) -> Any:
    seen.append(weakref.ref(value))
    raise ValueError(f"by hand, of {waits(value)}")


@pytest.fixture
def server() -> Generator[Any]:
    begun.clear()
    goes_on.clear()
    with ab.distribute.Server({"worker": ["localhost:0"]}) as made:
        yield made
        goes_on.set()


def slow_step(stateful: bool = True) -> Any:
    one = ab.constant(1.0)
    return ab.ops.numpy_function(waits, one, "float32", stateful=stateful, shape=(), name="slow") + 1.0


def endless() -> Any:
    return ab.while_loop(lambda i: i < 2**62, lambda i: i + 1, (ab.constant(0, "int64"),))


def program_of(server: Any) -> PartProgram:
    """The program that was prepared last."""
    return list(server.task._worker._programs.values())[-1].program


@pytest.mark.parametrize("stateful", [False, True])
def test_others_have_their_turn_while_a_function_runs(stateful: bool, graph: ab.Graph, server: Any):
    y, other = slow_step(stateful), ab.Variable([1.0, 2.0], name="of another client") + 1.0
    with ab.Session(graph, target=server.target) as session:
        waiting = Waiting(lambda: session.run(y))
        assert begun.wait(PATIENCE)
        until(lambda: "operation 'slow'" in server.status().doing)  # the loop may turn a moment more
        with ab.Session(graph, target=server.target) as second:
            np.testing.assert_array_equal(second.run(other), [2, 3])
        ab.Session.reset(server.target, ["a container that nobody has"])
        goes_on.set()
        assert waiting.result() == 2


def test_a_step_ends_at_its_time_though_its_operation_goes_on(graph: ab.Graph, server: Any):
    y, other = slow_step(), ab.constant(1.0) + 1.0
    with ab.Session(graph, target=server.target) as session:
        session.program(y)
        assert "slow" in out_of_time(lambda seconds: session.run(y, timeout=seconds), WORKER, "slow")
        assert server.status().held["running"] == 0
        assert session.run(other) == 2
        goes_on.set()
        assert session.run(y) == 2


@pytest.mark.usefixtures("uncollected")
def test_an_operation_that_fails_after_its_step_has_ended_keeps_no_values(graph: ab.Graph, server: Any):
    seen.clear()
    y = ab.ops.numpy_function(fails, ab.Variable([1.0, 2.0]) + 1.0, "float32", stateful=False, shape=(2,))
    with ab.Session(graph, target=server.target) as session:
        session.program(y)
        run_in_vain(session, y, begun.is_set)
        assert seen[0]() is not None
        goes_on.set()
        until(lambda: not any(value() is not None for value in seen), PATIENCE)


def test_a_reset_ends_the_step_of_a_long_operation(graph: ab.Graph, server: Any):
    y, w = slow_step(), ab.Variable(3.0, name="given up")
    with ab.Session(graph, target=server.target) as session:
        session.run(w)
        waiting = Waiting(lambda: session.run(y))
        assert begun.wait(PATIENCE)
        ab.Session.reset(server.target)
        with pytest.raises(ab.errors.StateLostError, match="was reset while the step ran"):
            waiting.result()


def test_what_is_expected_to_take_long_runs_beside_the_loop(graph: ab.Graph, server: Any):
    x = ab.placeholder((4000, 4000), "float32", "x")
    y, short = x @ x, x[0] + 1.0
    with ab.Session(graph, target=server.target) as session:
        session.program([y, short])
        apart = {node.operations[0].type for node in program_of(server)._apart}
    assert apart == {"matmul"}


def run_in_vain(session: ab.Session, y: Any, is_noted: Any) -> None:
    """Run a step whose time is over before it is done, again and again until something is noted of it."""

    def has_run() -> bool:
        with pytest.raises(ab.errors.DeadlineExceededError):
            session.run(y, timeout=0.5)
        return bool(is_noted())

    until(has_run)


def test_what_has_taken_long_twice_runs_beside_the_loop_from_then_on(graph: ab.Graph, server: Any):
    y, other = endless(), ab.constant(1.0) + 1.0
    session = ab.Session(graph, target=server.target)
    session.program(y)
    program = program_of(server)
    run_in_vain(session, y, lambda: program._slow)
    run_in_vain(session, y, lambda: program._long)
    until(lambda: program._apart and server.status().state == "idle")

    waiting = Waiting(lambda: session.run(y))
    until(lambda: server.status().state == "in an operation")
    with ab.Session(graph, target=server.target) as second:
        assert second.run(other) == 2
    (step,) = [running.step for running in server.task._worker._running.values()]
    stop = step.stop
    until(lambda: stop.runs == 1)  # its thread begins a little later
    session.close()
    with pytest.raises(ab.errors.CancelledError, match="session was closed"):
        waiting.result()
    until(lambda: stop.runs == 0 and server.status().state == "idle")


def test_a_loop_apart_ends_at_the_time_of_its_step_alone(graph: ab.Graph, server: Any):
    y = endless()
    with ab.Session(graph, target=server.target) as session, ab.Session(graph, target=server.target) as other:
        for each in (session, other):
            each.program(y)
            program = program_of(server)
            program._long.update(node for node in program.machine.nodes if node.kind == "op")
            program.print_again()
        waiting = Waiting(lambda: other.run(y))
        until(lambda: server.status().state == "in an operation")
        wanted = "'while/while' has been under way"
        assert wanted in out_of_time(lambda seconds: session.run(y, timeout=seconds), wanted)
        assert server.status().held["running"] == 1
        other.close()
        with pytest.raises(ab.errors.CancelledError):
            waiting.result()
