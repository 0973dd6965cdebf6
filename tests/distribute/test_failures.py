"""Failures of each part: {master, worker, ps, client} x {killed, stopped, slow, absent, cut, restarted}.

Each test here is a row of docs/failures.md, which `test_failures_page.py` writes. `test_failures_of_storage.py` has
those of checkpoints and disks.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from shared.faults import Proxy, slowed
from shared.lab import MASTER, NAMES, OTHER, Lab, lab, shows
from shared.members import addresses
from shared.tasks import PATIENCE, PS, TOKEN, WORKER
from shared.waiting import out_of_time

import anabranch as ab
from anabranch.distribute.transport.planes import Plane

pytestmark = pytest.mark.xdist_group("tasks")
LARGE = 4_000_000  # elements of a value that takes a while to cross


@pytest.fixture(scope="module")
def steady() -> Generator[Lab]:
    """One for all tests after which nothing is different."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_TOKEN", TOKEN)
        with lab() as made:
            yield made


# --- killed ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@shows(
    "killed (SIGKILL)",
    "worker, ps",
    "Steps that use it end on all tasks at once. Other steps run.",
    "`TaskFailedError` with `task`, `reason` and `step`, within 2 s; later steps get the error again, after 1 s",
    "All other state; the session",
)
@pytest.mark.parametrize("part", ["ps", pytest.param("worker", marks=pytest.mark.slow)])
def test_a_task_is_killed(part: str):
    with lab() as made:
        before = made.run("ps")
        error, seconds = made.failing(made.forever[part], made.running[NAMES[part]].kill)
        assert isinstance(error, ab.errors.TaskFailedError)
        assert (error.task, error.step is not None) == (NAMES[part], True)
        assert seconds < 2
        assert made.run("master") == 4
        with pytest.raises(ab.errors.TaskFailedError, match="did not answer"):
            made.run(part)
        if part == "worker":
            assert made.run("ps") == before + 1
        assert made.held(MASTER)["running"] == 0


@pytest.mark.slow
@shows(
    "killed (SIGKILL)",
    "master",
    "The steps of its clients end, also on the other tasks.",
    "`TaskFailedError` that names the master, at once",
    "State of the other tasks",
)
def test_a_master_is_killed():
    with lab() as made:
        assert made.run("ps") == 2
        error, seconds = made.failing(made.forever["ps"], made.running[MASTER].kill)
        assert isinstance(error, ab.errors.TaskFailedError)
        assert error.task == MASTER
        assert seconds < 2
        made.wait(lambda: made.held(PS)["running"] == 0)
        made.restart(MASTER)
        assert made.run("ps") == 3


CLIENT = """
import sys
import anabranch as ab
with ab.Graph().as_default() as graph:
    with ab.device("/job:ps/task:0"):
        counted = ab.Variable(0.0, name="counted by clients").assign_add(1.0)
with ab.Session(graph, target=sys.argv[1]) as session:
    for line in sys.stdin:
        print(float(session.run(counted)), flush=True)
"""
PREPARED = CLIENT.replace("counted by clients", "prepared by a client")
PREPARES = PREPARED.replace("print(float(session.run(counted))", "print(float(session.program(counted) is None)")


@contextlib.contextmanager
def client(made: Lab, script: str = CLIENT) -> Generator[Callable[[], float]]:
    """A client in a process of its own, which runs a step for each call; the process is an attribute of that."""
    command = [sys.executable, "-c", script, made.running[MASTER].target]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def step() -> float:
        stdin.write("\n")
        stdin.flush()
        return float(stdout.readline())

    step.process = process  # type: ignore[attr-defined]
    try:
        yield step
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.communicate("", timeout=PATIENCE)


@shows(
    "killed (SIGKILL)",
    "client",
    "The steps of this client end.",
    "none in other clients",
    "All state; other clients' steps",
)
@shows("restarted", "client", "The client builds its graph again, and finds the state by name.", "none", "All state")
@pytest.mark.slow
def test_a_client_is_killed_and_started_again(steady: Lab):
    with client(steady) as step:
        before = step()
        assert step() == before + 1
        step.process.kill()  # type: ignore[attr-defined]
    steady.wait(lambda: ab.distribute.status(steady.running[MASTER].target).sessions <= 2)
    assert steady.run("worker") == 9
    with client(steady) as step:
        assert step() == before + 2


# --- stopped --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@shows(
    "stopped for 30 s (SIGSTOP, SIGCONT)",
    "worker, ps",
    "After `heartbeat_timeout` (8 s) the task counts as dead, and its steps end. When it goes on, it drops the rest"
    " of these steps, and is used again.",
    "`TaskFailedError` within 10 s; in later steps after 1 s, until the task goes on",
    "All state, also that of the task",
)
@pytest.mark.parametrize("part", ["ps", pytest.param("worker", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("timeout", "stopped"), [("2", 0.0), pytest.param("8", 30.0, marks=pytest.mark.slow)], ids=["2 s", "8 s"]
)
def test_a_task_is_stopped(part: str, timeout: str, stopped: float):
    with lab("--heartbeat-timeout", timeout) as made:
        before = made.run("ps")
        task = made.running[NAMES[part]]
        began = time.monotonic()
        error, seconds = made.failing(made.forever[part], task.stop)
        assert isinstance(error, ab.errors.TaskFailedError)
        assert (error.task, error.step is not None) == (NAMES[part], True)
        assert f"(heartbeat_timeout={timeout})" in error.reason
        assert not stopped or seconds < 12  # 10 on a machine that has nothing else to do
        assert made.run("master") == 4
        with pytest.raises(ab.errors.TaskFailedError, match="did not answer"):
            made.run(part)
        threading.Event().wait(began + stopped - time.monotonic())
        task.go_on()
        assert made.run("ps") == before + 1
        assert made.run(part) == (before + 2 if part == "ps" else 9)
        made.wait(lambda: made.held(NAMES[part])["running"] == 0)
        assert made.held(NAMES[part])["early"] == 0


@shows(
    "stopped for 30 s (SIGSTOP, SIGCONT)",
    "master",
    "After 8 s its clients and the other tasks consider it dead, and end its steps. When it goes on, sessions go "
    "on, too.",
    "`TaskFailedError` that names the master, within 10 s",
    "All state",
)
@pytest.mark.parametrize(("timeout", "stopped"), [("2", 0.0), ("8", 30.0)], ids=["2 s", "8 s"])
@pytest.mark.slow
def test_a_master_is_stopped(timeout: str, stopped: float):
    with lab("--heartbeat-timeout", timeout) as made:
        before = made.run("ps")
        task = made.running[MASTER]
        began = time.monotonic()
        error, _ = made.failing(made.forever["ps"], task.stop)
        assert isinstance(error, ab.errors.TaskFailedError)
        assert error.task == MASTER
        made.wait(lambda: made.held(PS)["running"] == 0)
        threading.Event().wait(began + stopped - time.monotonic())
        task.go_on()
        assert made.run("ps") == before + 1


@shows("stopped for 30 s (SIGSTOP, SIGCONT)", "client", "Nothing: results wait for the client.", "none", "Everything")
@pytest.mark.slow
def test_a_client_is_stopped(steady: Lab):
    with client(steady) as step:
        before = step()
        process = step.process  # type: ignore[attr-defined]
        with slowed(process.pid, runs=0.0, stops=3.0):
            threading.Event().wait(0.5)
            assert steady.run("worker") == 9
        assert step() == before + 1


# --- slow -----------------------------------------------------------------------------------------------------------


@shows(
    "ten times slower",
    "master, worker, ps",
    "Steps take longer. A task that answers is not dead, however slow it is.",
    "none; with `timeout=`, a `DeadlineExceededError` that says, by task, what waits for what",
    "Everything",
)
@pytest.mark.parametrize("part", ["ps", "worker", "master"])
@pytest.mark.slow
def test_a_task_is_slow(steady: Lab, part: str):
    before = steady.run("ps")
    with slowed(steady.running[NAMES[part]].pid):
        for number in range(3):
            assert steady.run("ps") == before + 1 + number
            assert steady.run("worker") == 9


def test_a_step_that_was_not_done_in_time_names_who_waits(steady: Lab):
    wanted = [f"{task}: The step was not done after" for task in (MASTER, OTHER)]
    found = out_of_time(lambda seconds: steady.session.run(steady.forever["worker"], timeout=seconds), *wanted)
    assert [text for text in wanted if text not in found] == [], found


@shows("ten times slower", "client", "The steps of this client begin later.", "none", "Everything")
@pytest.mark.slow
def test_a_client_is_slow(steady: Lab):
    with client(steady) as step:
        before = step()
        with slowed(step.process.pid):  # type: ignore[attr-defined]
            assert [step(), step()] == [before + 1, before + 2]


# --- absent at start ------------------------------------------------------------------------------------------------


@shows(
    "absent at start",
    "worker, ps",
    "Steps that need the task wait for `connect_timeout` (30 s), and run when it comes. Other steps run at once.",
    "`TaskFailedError` that names the task and its address, after `connect_timeout`; `DeadlineExceededError` that "
    "names the task after a shorter `timeout=`",
    "All state of others",
)
def test_a_task_is_absent_and_comes(graph: ab.Graph):
    (address,) = addresses(1)
    with ab.device(PS):
        y = ab.constant(1.0) + 1.0
    own = ab.constant(2.0) + 1.0
    config = ab.distribute.ServerConfig(connect_timeout=0.3)
    cluster = {"ps": [address], "worker": ["localhost:0"]}
    with (
        ab.distribute.Server(cluster, "worker", 0, config=config) as server,
        ab.Session(graph, target=server.target) as session,
    ):
        assert session.run(own) == 3
        with pytest.raises(ab.errors.TaskFailedError, match=f"did not answer at {address} within 0.3 s"):
            session.run(y)
    with (
        ab.distribute.Server(cluster, "worker", 0) as server,
        ab.Session(graph, target=server.target) as session,
    ):
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(session.run(y)))
        thread.start()
        with ab.distribute.Server({"ps": [address]}, "ps", 0):
            thread.join(PATIENCE)
            assert found == [2]


@shows(
    "absent at start",
    "master",
    "`Session(target=...)` waits 30 s for the master.",
    "`TaskFailedError` that names the target",
    "State of other tasks",
)
def test_a_master_is_absent_and_comes(graph: ab.Graph):
    (address,) = addresses(1)
    y = ab.constant(1.0) + 1.0
    found: list[Any] = []

    def run() -> None:
        with ab.Session(graph, target=f"grpc://{address}") as session:
            found.append(session.run(y))

    thread = threading.Thread(target=run)
    thread.start()
    with ab.distribute.Server({"worker": [address]}):
        thread.join(PATIENCE)
    assert found == [2]


@shows(
    "absent at start",
    "client",
    "Tasks wait for clients, for any time. A client that goes away before its first step leaves nothing but the"
    " variables of the steps that it had prepared.",
    "none",
    "All state; variables of prepared steps, with their initial values",
)
@pytest.mark.slow
def test_a_client_goes_away_before_its_first_step(steady: Lab):
    def held() -> list[dict[str, int]]:
        return [{**steady.held(task), "resources": 0} for task in (MASTER, PS)]

    assert steady.run("ps") > 0  # this session's own graph is there
    before, states = held(), steady.held(PS)["resources"]
    with client(steady, PREPARES) as prepare:
        assert prepare() == 0.0
        assert [now["programs"] - then["programs"] for then, now in zip(before, held(), strict=True)] == [1, 1]
        prepare.process.kill()  # type: ignore[attr-defined]
    steady.wait(lambda: held() == before)
    assert steady.held(PS)["resources"] == states + 1
    steady.wait(lambda: ab.distribute.status(steady.running[PS].target).state == "idle")
    with client(steady, PREPARED) as step:
        assert step() == 1


# --- cut ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def pair(plane: str, ps_at: Callable[[str], str] = lambda address: address) -> Generator[Any]:
    """A ps and a worker in this process, and a step that sends a large value to the ps."""
    config = ab.distribute.ServerConfig(plane=plane)
    with contextlib.ExitStack() as stack:
        ps = stack.enter_context(ab.distribute.Server({"ps": ["localhost:0"]}, config=config))
        cluster = {"ps": [ps_at(ps.target[7:])], "worker": ["localhost:0"]}
        worker = stack.enter_context(ab.distribute.Server(cluster, "worker", 0, config=config))
        with ab.Graph().as_default() as graph:
            x = ab.placeholder((), "float64", "x")
            with ab.device(PS):
                received = ab.Variable(np.zeros(LARGE), name="received")
                counted = ab.Variable(0.0, name="counted")
            with ab.device(WORKER):
                large = ab.ops.broadcast_to(x, (LARGE,)) + 0.0
            with ab.device(PS):
                done = received.assign(large)
                with ab.control_dependencies([done.operation]):
                    step = counted.assign_add(1.0).operation
                total = ab.ops.sum(received)
        session = stack.enter_context(ab.Session(graph, target=worker.target))
        session.run(step, {x: 1.0})
        yield worker, lambda value: session.run(step, {x: value}), lambda: session.run([total, counted])


@shows(
    "cut in mid-tensor",
    "master, worker, ps",
    "Each side considers the other gone. No part of the value arrives, and no operation that waits for it runs.",
    "`TaskFailedError` at once",
    "All state; the next step connects again",
)
@pytest.mark.parametrize("plane", [Plane.UNIX, Plane.TCP])
def test_a_socket_is_cut_in_the_middle_of_a_value(plane: str):
    with pair(plane) as (worker, step, state):
        cuts: list[int] = []

        def cut() -> None:
            for connection in worker.task.connections:
                if connection.queued > LARGE and not cuts:
                    cuts.append(connection.queued)
                    connection._sock.shutdown(socket.SHUT_RDWR)

        def flushed(connection: Any, write: Any) -> int:
            count = write()
            cut()  # at once: in a later turn of the loop the rest of the value may have gone
            return count

        for connection in worker.task.connections:
            connection._write = lambda write=connection._write, it=connection: flushed(it, write)
        with pytest.raises(ab.errors.TaskFailedError) as caught:
            step(2.0)
        assert caught.value.task == PS
        assert cuts
        assert state() == [LARGE, 1.0]
        step(3.0)
        assert state() == [3 * LARGE, 2.0]


def test_a_stream_is_cut_in_the_middle_of_a_value():
    proxies: list[Proxy] = []

    def through(address: str) -> str:
        proxies.append(Proxy(address))
        return proxies[0].address

    try:
        with pair(Plane.GRPC, through) as (_, step, state):
            proxies[0].left = LARGE
            with pytest.raises(ab.errors.TaskFailedError) as caught:
                step(2.0)
            assert caught.value.task == PS
            assert proxies[0].cuts == 1
            assert state() == [LARGE, 1.0]
            step(3.0)
            assert state() == [3 * LARGE, 2.0]
    finally:
        for proxy in proxies:
            proxy.close()


# --- restarted ------------------------------------------------------------------------------------------------------


@shows(
    "restarted",
    "ps",
    "Sessions use the task again. Their variables there have no value.",
    "`StateLostError` where such a variable is read, until it is assigned or restored; an initial value of a client"
    " that has come since is no assignment",
    "All state of others",
)
@shows("restarted", "worker", "Sessions use the task again, with the next step.", "none", "All state of others")
@shows(
    "restarted",
    "master",
    "Sessions connect again and send their graphs, with the next step.",
    "`TaskFailedError` in running steps; `StateLostError` for state of the master",
    "State of other tasks",
)
@pytest.mark.slow
def test_tasks_are_restarted_one_by_one():
    with lab() as made:
        before = made.run("ps")
        made.restart(OTHER)
        assert made.run("worker") == 9
        assert made.run("ps") == before + 1
        made.restart(MASTER)
        with contextlib.suppress(ab.errors.TaskFailedError):
            made.run("ps")
        assert made.run("worker") == 9
        made.restart(PS)
        with pytest.raises(ab.errors.StateLostError, match="'kept' has no value: /job:ps/task:0"):
            made.run("ps")
        assert made.session.run(made.renewed) == 10
        assert made.run("ps") == 11
