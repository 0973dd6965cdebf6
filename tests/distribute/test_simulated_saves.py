"""Checkpoints that tasks save and restore, in the simulated network and on the simulated disk, with faults of both.

The two phases are a step: each task writes its shard, and the manifest follows once all tasks have answered. Links are
cut and lose what is under way, processes are stopped and killed at any event, also in the middle of a write, the disk
is full, and the power fails, which tears writes. What is restored is what a manifest names, a manifest names what one
save has written, what was reported as saved is there, and each save ends in time. A seed replays exactly.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from shared.prepared_once import placed_once, prepared_once
from shared.simulated_disk import ROOT, SimulatedDisk
from shared.simulator import ClientNode, KilledError, Network, Node, TaskNode
from shared.tasks import PS, TOKEN, WORKER

import anabranch as ab
from anabranch.distribute import CheckpointManager
from anabranch.distribute.cluster import ClusterSpec
from anabranch.distribute.config import ServerConfig
from anabranch.distribute.transport.channel import Channel
from anabranch.distribute.transport.connections import Connection
from anabranch.distribute.transport.failures import read_error, task_failed
from anabranch.distribute.transport.values import decode_value, encode_value
from anabranch.distribute.transport.wire import Kind
from anabranch.engine.checkpoint import files, ops
from anabranch.engine.checkpoint.files import CheckpointReader
from anabranch.engine.checkpoint.folders import Folder
from anabranch.engine.control_flow.grouping import group
from anabranch.engine.machine import engines

ADDRESSES = {PS: "localhost:2201", WORKER: "localhost:2202"}
CLUSTER = ClusterSpec({"ps": [ADDRESSES[PS]], "worker": [ADDRESSES[WORKER]]})
CONFIG = ServerConfig(connect_timeout=10.0, plane="tcp")
PATIENT = 60.0  # simulated seconds, in which each request is answered or its connection over
FEW = 40
SIMULATIONS = int(os.environ.get("ANABRANCH_SIMULATIONS", "10000")) // 10  # of the slow test
RUN = ROOT / "shared" / "run"
NUMBERS = 50  # of each variable, all alike
SHARDS = {PS: 0, WORKER: 1}  # the numbers of what the tasks write
FAILURES = (ab.errors.TaskFailedError, ab.errors.StateLostError, OSError)


class Programs(NamedTuple):
    """The steps of a client that saves and restores: the graph, what they are fetched by, and their messages.

    Attributes:
        graph: the message that has it.
        prepare: by the name of a step, the message that asks for it.
        steps: by the name of a step, what is fetched and what is fed.
        variables: that are saved.
    """

    graph: Any
    prepare: dict[str, Any]
    steps: dict[str, tuple[Any, list[Any]]]
    variables: list[ab.Variable]


@pytest.fixture(scope="module")
def programs() -> Generator[Programs]:
    """Build and send the steps once, to real tasks, and note what the client says."""
    sent: list[tuple[int, Any, list[Any]]] = []
    send = Channel.send

    def noting(channel: Channel, kind: int, document: Any, arrays: Any = (), **more: Any) -> bool:
        sent.append((kind, document, [np.array(array) for array in arrays]))
        return send(channel, kind, document, arrays, **more)

    def text(name: str) -> Any:
        return ab.placeholder((), "string", name)

    with pytest.MonkeyPatch.context() as patch, ab.Graph().as_default() as graph:
        patch.setenv("ANABRANCH_TOKEN", TOKEN)
        patch.setattr(Channel, "send", noting)
        with ab.device(PS):
            a = ab.Variable(np.zeros(NUMBERS), name="a")
        with ab.device(WORKER):
            b = ab.Variable(np.zeros(NUMBERS), name="b")
        value = ab.placeholder((), "float64", "value")
        change = group(*[each.assign(ab.ops.broadcast_to(value, (NUMBERS,))) for each in (a, b)])
        values = [ab.ops.sum(a) / NUMBERS, ab.ops.sum(b) / NUMBERS]
        given = ["a", "b"], [a, b]
        where, what, again, more, source = map(text, ("where", "what", "again", "more", "source"))
        saved = ops.save(where, *given, what)
        copied, written, _ = ops.save_copies(str(RUN), again, *given, more)
        restored = group(*ops.assign_restored(source, *given))
        steps: dict[str, tuple[Any, list[Any]]] = {
            "change": (change, [value]),
            "read": (values, []),
            "save": (saved, [where, what]),
            "copy": (copied, []),
            "write": (written, [again, more]),
            "restore": (restored, [source]),
        }
        with (
            ab.distribute.Server({"ps": ["localhost:0"], "worker": ["localhost:0"]}, "ps", 0) as ps,
            ab.distribute.Server({"ps": [ps.target[7:]], "worker": ["localhost:0"]}, "worker", 0) as worker,
            ab.Session(graph, target=worker.target) as session,
        ):
            prepare: dict[str, Any] = {}
            for name, (fetch, feeds) in steps.items():
                session.program(fetch, feeds)
                prepare[name] = [each for each in sent if each[0] == Kind.PREPARE][-1]
        (message,) = [each for each in sent if each[0] == Kind.GRAPH]
    with placed_once(), prepared_once():
        yield Programs(message, prepare, steps, [a, b])


# --- the simulation -------------------------------------------------------------------------------------------------


class SharedDisk(SimulatedDisk):
    """A disk that the processes of a network share: others go on at each event, and one may be killed there."""

    def __init__(self, seed: int, network: Network) -> None:
        super().__init__(seed)
        self.network = network
        self.kill: Callable[[Node | None], None] = lambda node: None
        self.client_fails_in: int | None = None  # the client is killed at that of its own events, from now on

    def event(self, space: bool = False, gives_way: bool = True) -> None:
        node, network = self.network.current, self.network
        if gives_way:
            network.run(lambda: False, network.delay())
            network.run(lambda: node is None or node.is_dead or not node.is_stopped, PATIENT)
        if node is not None and node.is_dead:
            raise KilledError
        if node is None and self.client_fails_in is not None:
            self.client_fails_in -= 1
            if self.client_fails_in < 0:
                self.client_fails_in = None
                raise KilledError
        if self.events + 1 == self.fails_at:
            self.events, self.fails_at = self.events + 1, None
            self.kill(node)
            raise KilledError
        super().event(space, gives_way=False)

    @property
    def _is_dead(self) -> bool:
        node = self.network.current
        return node is not None and node.is_dead

    def create(self, target: Path) -> Any:
        made = super().create(target)
        made.lock.writer = self.network.current or threading.current_thread()
        return made

    def remove_abandoned(self, folder: Path) -> None:
        for file in self._files(self._folder(folder)):
            if isinstance(file.writer, Node) and file.writer.is_dead:
                file.writer = None  # the system releases locks of processes that are gone
        super().remove_abandoned(folder)


class Beside:
    """Runs the long operations of tasks, as their threads do: beside other events, some time later."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def submit(self, run: Callable[..., Any], *arguments: Any) -> None:
        node = self._network.current
        assert node is not None, "only tasks have long operations"
        node.later(self._network.delay(), lambda: run(*arguments))


class Later:
    """A pool that runs what it is given when that is waited for, or when the simulation comes to it."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Future[None], Callable[[], None]]] = []

    def submit(self, run: Callable[[], None]) -> Future[None]:
        made: Any = Future()
        result = made.result
        made.result = lambda timeout=None: (self.go_on(), result())[1]
        self._waiting.append((made, run))
        return made

    def go_on(self) -> None:
        """Run what waits."""
        while self._waiting:
            future, run = self._waiting.pop()
            try:
                run()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(None)

    def shutdown(self) -> None:
        self.go_on()


class Simulation:
    """A cluster that shares a disk, and a client as a session of it.

    Attributes:
        held: of each task what its variable may hold.
        saves: of each step the attempts to save it: what the variables might hold by then, and a metric.
    """

    def __init__(self, seed: int, programs: Programs) -> None:
        self.network = Network(seed)
        self.chance = self.network.random
        self.programs = programs
        self.disk = SharedDisk(seed, self.network)
        self.disk.kill = self.kill
        self.tasks: dict[str, TaskNode] = {}
        self.held: dict[str, set[float]] = {}
        for name in ADDRESSES:
            self.start(name)
        self.is_judged = self.chance.random() < 0.5
        self.is_async = self.chance.random() < 0.5
        self.keep = self.chance.randint(1, 3)
        self.clients = self.step = 0
        self.saves: dict[int, list[tuple[dict[str, set[float]], float]]] = {}
        # What `save` has reported is safe; one of which the client has not heard may be there, and not after the power
        # has failed.
        self.reported: int | None = None  # the newest one
        self.known: dict[int, float] = {}  # the metrics of those that are to be there
        self.begin()

    # --- faults -----------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a task, maybe again: its variable has its first value, and what it had copied is gone."""
        self.tasks[name] = TaskNode(self.network, ADDRESSES[name], CLUSTER, name, CONFIG)
        self.held.setdefault(name, set()).add(0.0)
        ops._copies.pop((str(RUN), SHARDS[name]), None)

    def kill(self, node: Node | None) -> None:
        """Kill a process, which is started again a little later; the client's is that of the test."""
        for name, task in self.tasks.items():
            if task is node:
                task.kill()
                self.network.after(self.chance.random() * 3.0, lambda name=name: self.start(name))

    def lose_power(self) -> None:
        for name, task in self.tasks.items():
            if not task.is_dead:
                task.kill()
                self.network.after(self.chance.random() * 3.0, lambda name=name: self.start(name))
        self.disk.lose_power()

    def fault(self) -> None:
        """Let something happen, mostly during a save; it is mended later."""
        network, chance = self.network, self.chance
        task = self.tasks[chance.choice(list(self.tasks))]
        when, lasts = chance.random() * 0.2, chance.choice([0.5, 5.0, 15.0])
        event = self.disk.events + chance.randint(1, 40)
        match chance.randrange(8):
            case 0:
                network.after(when, task.stop)
                network.after(when + lasts, task.go_on)
            case 1:
                pair = frozenset(chance.sample([*ADDRESSES.values(), self.client.name], 2))
                network.after(when, lambda: network.cut.add(pair))
                network.after(when + lasts, lambda: network.cut.discard(pair))
            case 2:
                network.after(when, lambda: None if task.is_dead else self.kill(task))
            case 3:
                pipes = [pipe for pipe in task.pipes if not pipe.is_closed]
                if pipes:
                    pipe = chance.choice(pipes)
                    network.after(when, pipe.lose)
            case 4:
                self.disk.fails_at = event
            case 5:
                self.disk.full_from, self.disk.full_until = event, event + chance.randint(1, 10)
            case 6:
                network.after(when, self.lose_power)

            case 7:
                self.disk.client_fails_in = chance.randint(0, 10)

    def mend(self) -> None:
        """Let all faults end, and heartbeats find who was gone."""
        self.network.run(lambda: False, 40.0)
        self.disk.fails_at, self.disk.full_until, self.disk.client_fails_in = None, 0, None

    # --- a session: what a manager asks of one --------------------------------------------------------------------

    def place_state(self, resources: Any) -> None:
        """Do nothing: all variables have devices."""

    def before_next_step(self, call: Callable[[], None]) -> None:
        """Do nothing: the next save raises what has failed."""

    def run(self, fetch: Any, feeds: Any = None) -> list[Any]:
        """Run a step, as `Session.run` does.

        Raises:
            Exception: what has failed in the tasks; TaskFailedError if the connection is over.
        """
        steps = self.programs.steps.items()
        name, given = next((name, given) for name, (known, given) in steps if known is fetch)
        _, prepare, _ = self.programs.prepare[name]
        arrays: list[Any] = []
        written = [encode_value(ab.constant((feeds or {})[feed], feed.dtype).numpy(), arrays) for feed in given]
        for _ in range(3):
            connection = self._connected()
            if name not in self.prepared:
                graph = [] if self.prepared else [self.programs.graph]  # which a connection takes once
                found = self._answer(connection, *graph, self.programs.prepare[name])
                if found.kind == Kind.UNKNOWN:
                    continue
                self.prepared.add(name)
            document = {"program": prepare["program"], "feeds": written, "timeout": None}
            found = self._answer(connection, (Kind.RUN, document, arrays))
            if found.kind == Kind.RESULT:
                return [decode_value(each, found.arrays) for each in found.document()["values"]]
            self.prepared.discard(name)
        raise task_failed(WORKER, "it has lost a step three times")

    def fed(self, name: str, *values: Any) -> tuple[Any, dict[Any, Any]]:
        """Return what `run` takes for a step."""
        fetch, feeds = self.programs.steps[name]
        return fetch, dict(zip(feeds, values, strict=True))

    def _connected(self) -> Connection:
        """Return the connection to the master, which may be a new one.

        Raises:
            TaskFailedError: there is none.
        """
        client, network = self.client, self.network
        if client.connection is None or client.connection.is_closed:
            self.prepared.clear()
            network.run(lambda: not self.tasks[WORKER].is_dead, PATIENT)
            client.connect(self.tasks[WORKER])
        connection, before = client.connection, len(client.answers)
        assert connection is not None
        network.run(lambda: connection.is_open or len(client.answers) > before, PATIENT)
        if not connection.is_open:
            connection.close("the client gives up")
            raise task_failed(WORKER, "it did not answer")
        return connection

    def _answer(self, connection: Connection, *messages: Any) -> Any:
        """Send messages of which the last one is answered; return the answer, unless it is an error."""
        client, before = self.client, len(self.client.answers)
        for message in messages:
            connection.send(*message)
        client.loop.wake()
        assert self.network.run(lambda: len(client.answers) > before, PATIENT), "a request was not answered in time"
        answer = client.answers[-1]
        if answer is None:
            raise task_failed(WORKER, "its connection was lost")
        if answer.kind == Kind.ERROR:
            raise read_error(answer.document()["error"])
        return answer

    # --- a run that saves -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the client, maybe again."""
        self.clients += 1
        self.client = ClientNode(self.network, self.clients)
        self.prepared = set()
        steps, folder = self.programs.steps, Folder(RUN, self.disk)
        best_by = (lambda metrics: metrics["score"]) if self.is_judged else None
        options: Any = {"max_to_keep": self.keep, "best_by": best_by, "save_async": False, "session": self}
        self.manager = CheckpointManager(folder, self.programs.variables, **options)  # type: ignore[arg-type]
        saving: list[Any] = [None, steps["save"][0], *steps["save"][1]]
        if self.is_async:
            self.manager._pool = Later()  # type: ignore[assignment]
            saving = [steps["copy"][0], steps["write"][0], *steps["write"][1]]
        self.manager._programs = {"save": tuple(saving), "restore": (steps["restore"][0], *steps["restore"][1])}

    def change(self, value: float) -> None:
        """Give both variables a value."""
        change, (feed,) = self.programs.steps["change"]
        try:
            self.run(change, {feed: value})
        except FAILURES:
            for name in self.held:
                self.held[name].add(value)
        else:
            self.held = {name: {value} for name in self.held}

    def save(self, may_be_again: bool = True) -> str:
        """Change the variables and save them, then change them again; return what became of that."""
        self.change(float(self.chance.randint(1, 10**6)))
        began = self.network.now
        try:
            if self.chance.random() < 0.7 or not may_be_again:
                self.step += 1  # else what has failed may be saved once more
            step, score = self.step, self.chance.random()
            self.saves.setdefault(step, [])
            attempt: dict[str, set[float]] = {}
            self.saves[step].append((attempt, score))
            for name in self.held:
                attempt[name] = self.held[name]  # which grows if a task is started again meanwhile
            if not self.manager.save(step, {"score": score}):
                return "not due"
            self.change(float(self.chance.randint(1, 10**6)))
            self.manager.wait_until_finished()
        except KilledError:
            self.client.kill()
            self.begin()
            return "killed"
        except FAILURES as error:
            return type(error).__name__
        finally:
            assert self.network.now - began < 12 * PATIENT, "a save did not end in time"
        self.reported, self.known[step] = step, score
        return "saved"

    def check(self) -> None:
        """Restore, and compare what is there with what was saved."""
        steps = self.manager.all_steps()
        assert self.reported is None or max(steps, default=-1) >= self.reported, (
            "what was reported as saved is not there"
        )
        there, scores = {}, dict(self.known)
        for step in steps:
            reader = CheckpointReader(Folder(RUN / f"step-{step}", self.disk))
            a, b = there[step] = float(reader["a"][0]), float(reader["b"][0])
            assert (reader["a"] == a).all()
            assert (reader["b"] == b).all()
            score = scores[step] = reader.manifest["metrics"]["score"]
            assert any(
                score == known and a in attempt[PS] and b in attempt[WORKER] for attempt, known in self.saves[step]
            ), f"step {step} is no save: {a}, {b}, {self.saves[step]}"
        ordered = sorted(scores, key=scores.__getitem__ if self.is_judged else None)
        assert {*ordered[-self.keep :], *steps[-1:]} <= set(steps), "a checkpoint was removed that is to be kept"
        self.known = {step: score for step, score in self.known.items() if step in steps}
        if not steps:
            return
        assert self.manager.restore() == max(steps)  # a warning, which is an error, would say that one is damaged
        values, _ = self.programs.steps["read"]
        assert [float(value) for value in self.run(values)] == pytest.approx(there[max(steps)])
        self.held = {name: {value} for name, value in zip(SHARDS, there[max(steps)], strict=True)}


@contextlib.contextmanager
def simulation(seed: int, programs: Programs) -> Generator[Simulation]:
    """A simulation whose tasks have its disk, and no threads."""
    with pytest.MonkeyPatch.context() as patch:
        made = Simulation(seed, programs)
        patch.setattr(files, "folder_of", lambda path: path if isinstance(path, Folder) else Folder(path, made.disk))
        patch.setattr(engines, "workers", lambda: Beside(made.network))
        yield made


def simulate(seed: int, programs: Programs) -> tuple[list[str], float, int]:
    """Run a seed; return what became of its saves, the time at the end and the events of the disk."""
    with simulation(seed, programs) as made:
        return _simulated(made)


def _simulated(made: Simulation) -> tuple[list[str], float, int]:
    outcomes: list[str] = []
    for _ in range(5):
        if made.chance.random() < 0.8:
            made.fault()
        outcomes.append(made.save())
        made.mend()
        made.check()
    for _ in range(3):  # without faults; a connection may be found out to be lost by the first step
        if outcomes[-1] != "saved":
            outcomes.append(made.save(may_be_again=False))
    left = made.disk.names(RUN)
    assert outcomes[-1] == "saved", outcomes
    assert len(left) <= made.keep + 1, f"{left} were left"
    return outcomes, made.network.now, made.disk.events


def simulate_all(seeds: range, programs: Programs) -> list[str]:
    found: list[str] = []
    for seed in seeds:
        try:
            found += simulate(seed, programs)[0]
        except BaseException as error:
            error.add_note(f"The simulation with seed {seed} has failed; simulate({seed}, programs) replays it.")
            raise
    return found


def test_a_save_fails_whose_value_is_lost_after_its_task_has_done_its_part(programs: Programs) -> None:
    """The master sees the end of a connection before the step, the task only after it has sent its value there."""
    with simulation(1, programs) as made:
        made.change(1.0)
        made.run(*made.fed("save", str(RUN / "step-1"), "{}"))
        (connection,) = made.tasks[PS].task._peers._known.values()  # by which it sends values
        pipe: Any = connection._sock
        pipe.is_lost = True
        pipe.other._move = lambda: None  # that it is closed there gets to the task as late
        pipe.other.end_behind(b"")()
        made.network.run(lambda: False, 1.0)
        made.network.after(5.0, pipe.end_behind(b""))
        with pytest.raises(ab.errors.TaskFailedError):
            made.run(*made.fed("save", str(RUN / "step-2"), "{}"))
        made.mend()
        made.run(*made.fed("save", str(RUN / "step-3"), "{}"))
        assert sorted(CheckpointManager(Folder(RUN, made.disk), programs.variables).all_steps()) == [1, 3]  # type: ignore[arg-type]


def test_saves_over_tasks(programs: Programs) -> None:
    found = simulate_all(range(FEW), programs)
    assert {"saved", "TaskFailedError", "OSError", "killed"} <= set(found)


@pytest.mark.slow
def test_many_saves_over_tasks(programs: Programs) -> None:
    simulate_all(range(FEW, FEW + SIMULATIONS), programs)


def test_a_seed_of_saves_replays_exactly(programs: Programs) -> None:
    assert simulate(7, programs) == simulate(7, programs)
