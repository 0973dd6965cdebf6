"""Tasks that are in the middle of something when a step's time is over, or when they are to end."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import pytest
from shared.tasks import PS, WORKER
from shared.waiting import Waiting, until

import anabranch as ab

ENDLESS = 2**62


def endless() -> ab.Tensor:
    return ab.while_loop(lambda i: i < ENDLESS, lambda i: i + 1, (ab.constant(0, "int64"),))


@pytest.fixture
def server() -> Generator[ab.distribute.Server]:
    with ab.distribute.Server({"worker": ["localhost:0"]}) as made:
        yield made


def test_the_loop_of_a_task_ends_when_its_time_is_over(graph: ab.Graph, server: Any):
    y, own = endless(), ab.constant(1.0) + 1.0
    with ab.Session(graph, target=server.target) as session:
        session.program(y)
        with pytest.raises(ab.errors.DeadlineExceededError, match=f"{WORKER}: .*while the step ran a loop"):
            session.run(y, timeout=0.2)
        assert session.run(own) == 2
        assert server.status().held["running"] == 0


def test_the_loop_of_another_task_ends_when_its_time_is_over(graph: ab.Graph):
    with ab.device(PS):
        y, own = endless(), ab.constant(1.0) + 1.0
    with ab.distribute.Server({"ps": ["localhost:0"]}) as ps:
        cluster = {"ps": [ps.target.removeprefix("grpc://")], "worker": ["localhost:0"]}
        with (
            ab.distribute.Server(cluster, "worker", 0) as server,
            ab.Session(graph, target=server.target) as session,
        ):
            session.program(y)
            with pytest.raises(ab.errors.DeadlineExceededError, match=PS):
                session.run(y, timeout=0.2)
            assert session.run(own) == 2
            until(lambda: ps.status().held["running"] == 0)


def test_a_task_ends_in_the_middle_of_a_loop(graph: ab.Graph, server: Any):
    y = endless()
    with ab.Session(graph, target=server.target) as session:
        waiting = Waiting(lambda: session.run(y))
        until(lambda: server.task.information().state == "in an operation")
        server.stop()
        with pytest.raises(ab.errors.TaskFailedError, match=WORKER):
            waiting.result()


@pytest.fixture
def blocked(server: Any) -> Generator[Any]:
    """A task whose loop does nothing for the time being; it answers heartbeats."""
    goes_on = threading.Event()
    server.task.loop.call(goes_on.wait)
    try:
        yield server
    finally:
        goes_on.set()


def test_a_step_does_not_wait_for_a_master_behind_its_deadline(graph: ab.Graph, server: Any):
    y = ab.constant(1.0) + 1.0
    goes_on = threading.Event()
    with ab.Session(graph, target=server.target) as session:
        session.run(y)
        server.task.loop.call(goes_on.wait)
        try:
            with pytest.raises(ab.errors.DeadlineExceededError, match=f"{WORKER} does not answer, and is turning"):
                session.run(y, timeout=0.1)
        finally:
            goes_on.set()
        assert session.run(y) == 2


def test_the_status_of_a_task_that_reads_nothing_says_so(blocked: Any):
    with pytest.raises(ab.errors.DeadlineExceededError, match=f"{WORKER} does not answer, and is turning"):
        ab.distribute.status(blocked.target, 0.3)


def test_a_session_that_is_closed_ends_its_steps(graph: ab.Graph, server: Any):
    y = ab.queues.FIFOQueue(1, "float32", ()).dequeue()
    session = ab.Session(graph, target=server.target)
    waiting = Waiting(lambda: session.run(y))
    until(lambda: server.status().steps == 1)
    session.close()
    with pytest.raises(ab.errors.CancelledError, match="session was closed"):
        waiting.result()
    until(lambda: server.status().steps == 0)


def test_the_first_step_after_a_restart_of_the_master_runs(graph: ab.Graph, server: Any):
    y = ab.constant(1.0) + 1.0
    with ab.Session(graph, target=server.target) as session:
        assert session.run(y) == 2
        server.stop()
        with ab.distribute.Server({"worker": [server.target.removeprefix("grpc://")]}):
            assert session.run(y) == 2
