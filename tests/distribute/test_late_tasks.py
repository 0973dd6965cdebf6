"""Tasks that are in the middle of something when a step's time is over, or when they are to end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from shared.tasks import PS, WORKER
from shared.waiting import PATIENCE, Waiting, out_of_time, until

import anabranch as ab
from anabranch.distribute.transport.wire import Kind

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
        wanted = (f"{WORKER}: ", "while the step ran a loop")
        found = out_of_time(lambda seconds: session.run(y, timeout=seconds), *wanted)
        assert [text for text in wanted if text not in found] == [], found
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
            assert PS in out_of_time(lambda seconds: session.run(y, timeout=seconds), PS)
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


@contextlib.contextmanager
def blocking(server: Any) -> Generator[None]:
    """Have the loop of a task do nothing for the time being; it answers heartbeats."""
    is_blocked, goes_on = threading.Event(), threading.Event()

    def block() -> None:
        is_blocked.set()
        goes_on.wait()

    server.task.loop.call(block)
    try:
        assert is_blocked.wait(PATIENCE)
        yield
    finally:
        goes_on.set()


def test_a_step_does_not_wait_for_a_master_behind_its_deadline(graph: ab.Graph, server: Any):
    y = ab.constant(1.0) + 1.0
    silent = f"{WORKER} does not answer, and is turning"
    with ab.Session(graph, target=server.target) as session:
        session.run(y)
        with blocking(server), pytest.raises(ab.errors.DeadlineExceededError, match=silent):
            session.run(y, timeout=0.1)
        assert session.run(y) == 2


def test_the_status_of_a_task_that_reads_nothing_says_so(server: Any):
    silent = f"{WORKER} does not answer, and is turning"
    with blocking(server):
        with pytest.raises(ab.errors.DeadlineExceededError, match=silent):
            ab.distribute.status(server.target, 1.0)
        with pytest.raises(ab.errors.DeadlineExceededError, match=silent):
            server.status(timeout=1.0)


def test_a_session_that_is_closed_ends_its_steps(graph: ab.Graph, server: Any):
    y = ab.queues.FIFOQueue(1, "float32", ()).dequeue()
    session = ab.Session(graph, target=server.target)
    waiting = Waiting(lambda: session.run(y))
    until(lambda: server.status().steps == 1)
    session.close()
    with pytest.raises(ab.errors.CancelledError, match="session was closed"):
        waiting.result()
    until(lambda: server.status().steps == 0)


def test_a_session_is_closed_at_the_end_of_its_block(graph: ab.Graph, server: Any):
    """Its steps and connections stayed until the session was collected as garbage."""
    y = ab.queues.FIFOQueue(1, "float32", ()).dequeue()
    with ab.Session(graph, target=server.target) as session:
        with session:
            pass
        waiting = Waiting(lambda: session.run(y))
        until(lambda: server.status().steps == 1)
    with pytest.raises(ab.errors.CancelledError, match="session was closed"):
        waiting.result()
    with pytest.raises(ConnectionError, match="The session is closed"):
        session.run(y)
    until(lambda: server.status().sessions == 0)


def test_the_first_step_after_a_restart_of_the_master_runs(graph: ab.Graph, server: Any):
    y = ab.constant(1.0) + 1.0
    with ab.Session(graph, target=server.target) as session:
        assert session.run(y) == 2
        server.stop()
        with ab.distribute.Server({"worker": [server.target.removeprefix("grpc://")]}):
            assert session.run(y) == 2


# --- in the middle of a compiled loop -------------------------------------------------------------------------------

CLIENT = """
import os, signal, sys
import anabranch as ab
with ab.Graph().as_default() as graph, ab.device(sys.argv[2]):
    y = ab.while_loop(lambda i: i < 2**62, lambda i: i + 1, (ab.constant(0, "int64"),))
with ab.Session(graph, target=sys.argv[1]) as session:
    session.program(y)
    child = os.fork() if hasattr(os, "pidfd_open") else -1  # it has the client's sockets, too
    if not child:
        signal.pause()
    print(child, flush=True)
    session.run(y)
"""


@contextlib.contextmanager
def running_client(target: str, device: str) -> Generator[subprocess.Popen[str]]:
    """A client in a process of its own, with a child; its step is a loop without end on a device."""
    process = subprocess.Popen([sys.executable, "-c", CLIENT, target, device], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = 0
    try:
        child = int(process.stdout.readline())
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        if child > 0:
            os.kill(child, signal.SIGKILL)


@pytest.fixture
def pair() -> Generator[tuple[Any, Any]]:
    with ab.distribute.Server({"ps": ["localhost:0"]}) as ps:
        cluster = {"ps": [ps.target.removeprefix("grpc://")], "worker": ["localhost:0"]}
        with ab.distribute.Server(cluster, "worker", 0) as worker:
            yield ps, worker


def is_in_a_loop(server: Any) -> bool:
    info = server.task.information()
    return info.state == "in an operation" and info.since > 0


@pytest.mark.parametrize("device", [PS, WORKER])
def test_the_loop_of_a_client_that_is_killed_ends(graph: ab.Graph, pair: Any, device: str):
    ps, worker = pair
    own = ab.constant(1.0) + 1.0
    with running_client(worker.target, device) as process:
        until(lambda: is_in_a_loop(ps if device == PS else worker))
        process.kill()
        with ab.Session(graph, target=worker.target) as session:
            assert session.run(own, timeout=60.0) == 2
        until(lambda: [server.status().held["running"] for server in pair] == [0, 0])


def test_the_loop_of_a_session_that_is_closed_ends(graph: ab.Graph, server: Any):
    y, own = endless(), ab.constant(1.0) + 1.0
    session = ab.Session(graph, target=server.target)
    waiting = Waiting(lambda: session.run(y))
    until(lambda: is_in_a_loop(server))
    session.close()
    with pytest.raises(ab.errors.CancelledError, match="session was closed"):
        waiting.result()
    with ab.Session(graph, target=server.target) as session:
        assert session.run(own, timeout=60.0) == 2


@contextlib.contextmanager
def loop_on(ps: Any, worker: Any) -> Generator[ab.Session]:
    """The session of a loop without end, in which the ps is."""
    with ab.Graph().as_default() as graph, ab.device(PS):
        y = endless()
    session = ab.Session(graph, target=worker.target)
    waiting = Waiting(lambda: session.run(y))
    until(lambda: is_in_a_loop(ps))
    try:
        yield session
    finally:
        session.close()
        with pytest.raises((ab.errors.CancelledError, ab.errors.TaskFailedError)):
            waiting.result()


def test_what_comes_in_the_middle_of_a_loop_is_taken_behind_it(graph: ab.Graph, pair: Any):
    ps, worker = pair
    with ab.device(WORKER):
        x = ab.placeholder((None,), "float32", "x")
        large = x + 0.0  # goes by shared memory where there is such
    with ab.device(PS):
        y = ab.ops.sum(large), large[:2] + 1.0
    waits = ab.Session(graph, target=worker.target)
    value = np.arange(100_000, dtype="float32")
    waits.run(y, {x: value})
    with loop_on(ps, worker) as session:
        waiting = Waiting(lambda: waits.run(y, {x: value}))
        until(lambda: ps.task._heard)
        session.close()
        total, first = waiting.result()
    np.testing.assert_allclose(total, value.sum(dtype="float64"), rtol=1e-5)
    np.testing.assert_array_equal(first, [1, 2])
    assert not ps.task._heard
    waits.close()


def test_damage_in_the_middle_of_a_loop_ends_its_connection_alone(graph: ab.Graph, pair: Any):
    ps, worker = pair
    y = ab.constant(1.0) + 1.0
    session: Any = ab.Session(graph, target=ps.target)
    assert session.run(y) == 2
    channel = session._schedule.remote._channels.take()
    with loop_on(ps, worker) as other:
        channel.send(Kind.STATUS, {})
        channel._sock.sendall(b"\xff" * 100)
        until(lambda: ps.task._heard)
        assert is_in_a_loop(ps)
        other.close()
        assert channel.receive().kind == Kind.STATUS
        assert "larger than is allowed" in channel.receive().document()["message"]
        with pytest.raises(ConnectionError):
            channel.receive()
    channel.close()
    assert session.run(y) == 2
    session.close()


def test_a_loop_ends_when_its_master_does(pair: Any):
    ps, worker = pair
    with loop_on(ps, worker):
        worker.stop()
        until(lambda: ps.status().held["running"] == 0)


def test_a_loop_ends_when_another_task_has_failed(graph: ab.Graph, pair: Any):
    ps, worker = pair
    with ab.device(PS):
        y = endless()
    with ab.device(WORKER):
        queue = ab.queues.FIFOQueue(1, "float32", (), name="closed when the loop runs")
        taken, closed = queue.dequeue(), queue.close()
    session, other = (ab.Session(graph, target=worker.target) for _ in range(2))
    other.program(closed)
    waiting = Waiting(lambda: session.run([y, taken]))
    until(lambda: is_in_a_loop(ps))
    other.run(closed)
    with pytest.raises(ab.errors.OutOfRangeError):
        waiting.result()
    until(lambda: ps.status().held["running"] == 0)
    session.close()
    other.close()
