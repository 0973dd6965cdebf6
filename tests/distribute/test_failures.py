"""Failures of each part: {master, worker, ps, client, storage} x {killed, stopped, slow, absent, cut, ...}.

Each test here is a row of docs/failures.md. After a change:
``ANABRANCH_WRITE_GOLDEN=1 pytest tests/distribute/test_failures.py -k page``.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from shared.faults import Proxy, slowed
from shared.tasks import PATIENCE, PS, TOKEN, WORKER, Running, TaskProcess, tasks
from shared.waiting import out_of_time

import anabranch as ab
from anabranch.distribute.transport.planes import Plane

pytestmark = pytest.mark.xdist_group("tasks")
PAGE = Path(__file__).parents[2] / "docs" / "failures.md"
MASTER, OTHER = WORKER, "/job:worker/task:1"
NAMES = {"ps": PS, "worker": OTHER, "master": MASTER}
QUICK = ("--heartbeat-timeout", "2")
LARGE = 4_000_000  # elements of a value that takes a while to cross


class Row(NamedTuple):
    """One row of the table: what a test shows."""

    fault: str
    part: str
    happens: str
    error: str
    kept: str


ROWS: list[Row] = []


def shows(fault: str, parts: str, happens: str, error: str, kept: str) -> Callable[[Any], Any]:
    """Put a test's rows on the page."""
    ROWS.extend(Row(fault, part, happens, error, kept) for part in parts.split(", "))
    return lambda test: test


class Lab:
    """A master, a worker and a ps as processes, and a client whose steps need one of them or all."""

    def __init__(self, running: Running) -> None:
        self.running = running
        with ab.Graph().as_default() as graph:
            with ab.device(PS):
                self.kept = ab.Variable(1.0, name="kept")
                self.more = self.kept.assign_add(1.0)
            x = ab.placeholder((), "float32", "x")
            with ab.device(OTHER):
                self.squared = x * x
            own = x + 1.0
            self.needs = {"ps": self.more, "worker": self.squared, "master": own}
            self.forever = {part: self._endless(NAMES[part]) for part in ("ps", "worker")}
            with ab.device(PS):
                self.renewed = self.kept.assign(10.0)
        self.x = x
        self.graph = graph
        self.session = ab.Session(graph, target=running[MASTER].target)

    def _endless(self, task: str) -> Any:
        def body(i: Any, h: Any) -> Any:
            with ab.device(task):
                z = ab.ops.tanh(h)
            with ab.device(MASTER):
                return i + 1, z + 1.0

        return ab.while_loop(lambda i, h: i < 2**31 - 1, body, (0, ab.constant(0.0)))[1]

    def run(self, part: str, session: ab.Session | None = None) -> Any:
        """Run a step that needs the master and this part alone."""
        return (session or self.session).run(self.needs[part], {self.x: 3.0})

    def held(self, task: str) -> dict[str, int]:
        return ab.distribute.status(self.running[task].target).held

    def failing(self, fetches: Any, fault: Callable[[], None]) -> tuple[Any, float]:
        """Begin a step, cause a fault while it runs; gives the error, and the seconds from one to the other."""
        found: list[Any] = []

        def run() -> None:
            with pytest.raises(Exception) as caught:  # noqa: PT011
                self.session.run(fetches, {self.x: 3.0})
            found.append((caught.value, time.monotonic()))

        self.session.program(fetches, [self.x])
        thread = threading.Thread(target=run)
        thread.start()
        self.wait(lambda: self.held(MASTER)["running"] > 0)
        began = time.monotonic()
        fault()
        thread.join(PATIENCE)
        ((error, noticed),) = found
        return error, noticed - began

    @staticmethod
    def wait(is_done: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        while not is_done():
            assert time.monotonic() < until, "it did not come to that"

    def restart(self, task: str) -> TaskProcess:
        """Start a task again, at its address; it ends with the others."""
        job, index = task.split(":")[1].partition("/")[0], int(task.rpartition(":")[2])
        addresses = {name: each.address for name, each in self.running.items()}
        cluster = {"ps": [addresses[PS]], "worker": [addresses[MASTER], addresses[OTHER]]}
        self.running[task].kill()
        made = TaskProcess(cluster, job, index)
        self.running[task].end()
        self.running[task] = made
        return made


@contextlib.contextmanager
def lab(*options: str) -> Generator[Lab]:
    with tasks(workers=2, all_with=options) as running:
        made = Lab(running)
        before = dict(running)
        try:
            yield made
        finally:
            made.session.close()
            for name, task in running.items():
                if task is not before[name]:
                    task.end()


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


@contextlib.contextmanager
def client(made: Lab) -> Generator[Callable[[], float]]:
    """A client in a process of its own, which runs a step for each call; the process is an attribute of that."""
    command = [sys.executable, "-c", CLIENT, made.running[MASTER].target]
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


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@shows(
    "absent at start",
    "worker, ps",
    "Steps that need the task wait for `connect_timeout` (30 s), and run when it comes. Other steps run at once.",
    "`TaskFailedError` that names the task and its address, after `connect_timeout`; `DeadlineExceededError` that "
    "names the task after a shorter `timeout=`",
    "All state of others",
)
def test_a_task_is_absent_and_comes(graph: ab.Graph):
    address = f"localhost:{unused_port()}"
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
    address = f"localhost:{unused_port()}"
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
    "`StateLostError` where such a variable is read, until it is assigned or restored",
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


# --- storage --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_space(pid: int) -> Generator[None]:
    """Let no file of a process grow beyond a kilobyte: its writes fail, as on a full disk."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@shows(
    "full disk",
    "storage",
    "The checkpoint is abandoned. The task and its state do not change.",
    "`OSError` at the save, or at the next call if the save is asynchronous",
    "Earlier checkpoints, all state",
)
@shows(
    "killed (SIGKILL)",
    "storage",
    "A task that is killed while it writes leaves no manifest, so the folder is no checkpoint.",
    "`TaskFailedError` at the save",
    "Earlier checkpoints",
)
@shows(
    "cut in mid-tensor",
    "storage",
    "A shard that is truncated or has flipped bits is noticed by its size and CRC-32. The previous checkpoint is "
    "restored.",
    "a warning that names the shard",
    "Earlier checkpoints",
)
@pytest.mark.slow
def test_the_disk_is_full(tmp_path: Path):
    with lab() as made:
        with made.graph.as_default(), ab.device(PS):
            large = ab.Variable(np.arange(10_000.0), name="large")
            changed = large.assign_add(np.ones(10_000))
        manager = ab.distribute.CheckpointManager(tmp_path, [large], session=made.session, save_async=False)
        assert manager.save(1)
        made.session.run(changed)
        with no_space(made.running[PS].pid), pytest.raises(OSError, match=r"Can't write .*File too large"):
            manager.save(2)
        assert manager.latest_step() == 1
        np.testing.assert_array_equal(made.session.run(large), np.arange(10_000.0) + 1)
        assert manager.save(3)
        shard = next((tmp_path / "step-3").glob("*.h5"))
        shard.write_bytes(shard.read_bytes()[:-1000])
        with pytest.warns(UserWarning, match="step-3"):
            assert manager.restore() == 1
        np.testing.assert_array_equal(made.session.run(large), np.arange(10_000.0))
        made.running[PS].kill()
        with pytest.raises(ab.errors.TaskFailedError):
            manager.save(4)
        assert not (tmp_path / "step-4" / "manifest.json").exists()


@shows(
    "stopped for 30 s (SIGSTOP, SIGCONT)",
    "storage",
    "A save waits until the storage goes on. With `save_async=True` steps run meanwhile, and the next save waits.",
    "none",
    "Everything",
)
@shows(
    "ten times slower",
    "storage",
    "Saves take longer. With `save_async=True` steps run meanwhile.",
    "none",
    "Everything",
)
def test_the_storage_stops(monkeypatch: pytest.MonkeyPatch):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    begun, goes_on = threading.Event(), threading.Event()
    put = type(memory).put_file

    def waits(*arguments: Any, **more: Any) -> Any:
        begun.set()
        assert goes_on.wait(PATIENCE)
        return put(*arguments, **more)

    monkeypatch.setattr(type(memory), "put_file", waits)
    v = ab.Variable([1.0], name="v")
    with ab.distribute.CheckpointManager(f"memory://{os.getpid()}/stopped", [v]) as manager:
        assert manager.save(1)
        assert begun.wait(PATIENCE)
        v.assign([2.0])  # a step, while the storage does nothing
        assert v.numpy().tolist() == [2.0]
        goes_on.set()
        assert manager.save(2)
        assert manager.all_steps() == [1, 2]
        assert (manager.restore(1), v.numpy().tolist()) == (1, [1.0])


@shows("absent at start", "storage", "No manager is made.", "`OSError` that names the folder, at once", "All state")
@shows(
    "restarted",
    "storage",
    "Saves fail while the storage is absent. Once it is there, they are written, and earlier checkpoints are found.",
    "`OSError` at the save, or at the next call if the save is asynchronous",
    "Earlier checkpoints, all state",
)
def test_the_storage_is_absent(tmp_path: Path):
    v = ab.Variable([1.0], name="v")
    root = tmp_path / "run"
    root.write_text("no folder")
    with pytest.raises(OSError, match="run"):
        ab.distribute.CheckpointManager(root / "checkpoints", [v])
    root.unlink()
    manager = ab.distribute.CheckpointManager(root, [v], save_async=False)
    assert manager.save(1)
    root.rename(tmp_path / "elsewhere")
    root.write_text("no folder")
    v.assign([2.0])
    with pytest.raises(OSError, match="run"):
        manager.save(2)
    root.unlink()
    (tmp_path / "elsewhere").rename(root)
    assert manager.save(2)
    assert manager.all_steps() == [1, 2]
    assert (manager.restore(1), v.numpy().tolist()) == (1, [1.0])


# --- the page -------------------------------------------------------------------------------------------------------

FAULTS = list(dict.fromkeys(row.fault for row in ROWS))
PARTS = ("master", "worker", "ps", "client", "storage")
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


def table() -> str:
    """The table as Markdown: rows that say the same have one line."""
    lines = ["| Fault | Part | What happens | Error | Kept |", "|---|---|---|---|---|"]
    for fault in FAULTS:
        rows = [row for part in PARTS for row in ROWS if (row.fault, row.part) == (fault, part)]
        for what in dict.fromkeys(row[2:] for row in rows):
            parts = ", ".join(row.part for row in rows if row[2:] == what)
            lines.append(f"| {fault} | {parts} | {' | '.join(what)} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_these_rows():
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}{table()}{END}{after}"
    if os.environ.get("ANABRANCH_WRITE_GOLDEN"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted
