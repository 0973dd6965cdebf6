"""The state that a master keeps for a client: the graphs that it has sent, programs and steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from ...engine.control_flow.scheduling import Scheduled
from ...engine.graph.device import DeviceName, task_of
from ...engine.graph.graph import Operation
from ...engine.place.constraints import PlacementError
from ...engine.queues.errors import TaskFailedError
from ..transport.connections import Connection, Identity
from ..transport.values import decode_value, encode_value
from ..transport.wire import FrameError
from .clocks import Reading
from .front import TaskInfo

Done = Callable[["Exception | None"], None]


class ClientSession:
    """A client.

    Attributes:
        connections: by which it is connected.
        graphs: those that it has sent.
        programs: by the client's own number.
        replaced: the numbers of programs of graphs that have grown since; tasks have them, too.
        homes: by task and path of each variable or generator, the incarnation of the task which was asked to make it.
        made: those of which it is known that they were made there: steps with them could be prepared.
    """

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self.graphs: list[SentGraph] = []
        self.programs: dict[int, MasterProgram] = {}
        self.replaced: list[int] = []
        self.homes: dict[tuple[str, str, str], int] = {}
        self.made: set[tuple[str, str, str]] = set()

    def graph(self, digest: str | None) -> SentGraph | None:
        """Return the graph of a digest that came last; None if none has come, or not yet by another connection."""
        return next((graph for graph in reversed(self.graphs) if graph.digest == digest), None)

    def note_made(self, tasks: Collection[Identity]) -> None:
        """Note that tasks have prepared a step: the state that was sent to these starts of them is there."""
        there = {(task.name, task.incarnation) for task in tasks}
        self.made.update(key for key, home in self.homes.items() if (key[0], home) in there)

    def known_homes(self) -> list[list[Any]]:
        """Return where state was made, for a document."""
        return [[*key, home] for key, home in self.homes.items() if key in self.made]

    def home(self, key: tuple[str, str, str], task: Identity) -> int:
        """Return the incarnation of a task in which a variable or generator was made, or is to be made now.

        A start of the task that ended before it had answered counts as if it never made anything.
        """
        if key not in self.made:
            self.homes[key] = task.incarnation
        return self.homes[key]

    def given_up(self, number: int, graph: SentGraph) -> MasterProgram | None:
        """Return the program that the client asks for once more, as it had no time for it; None if it is a new one."""
        program = self.programs.get(number)
        if program is None or program.graph is graph:
            return program
        self.replaced.append(program.number)  # the graph has grown
        return None


class SentGraph:
    """A graph as a client has sent it.

    Attributes:
        number: its number in tasks.
        digest: by which the client names it.
        sent: the tasks that have it.
    """

    def __init__(self, number: int, document: Any, arrays: Sequence[Any]) -> None:
        self.number = number
        self.digest = str(document["digest"])
        self.document = document["graph"]
        self.sent: set[Identity] = set()
        self._described: Sequence[Any] = document["arrays"]
        self._arrays = arrays

    def pin(self, tasks: Sequence[str]) -> None:
        """Give each variable and generator its device: the first that fits, in the order of `tasks`."""
        for resource in self.document["resources"]:
            asked = DeviceName.parse(resource["device"]) if resource["device"] else DeviceName()
            for task in map(DeviceName.parse, tasks):
                if asked.job in (None, task.job) and asked.task in (None, task.task):
                    device = DeviceName(task.job, task.task, asked.kind or "CPU", asked.number or 0)
                    resource["device"] = str(device)
                    break

    def for_task(self, task: Identity, session: ClientSession) -> tuple[Any, list[Any]]:
        """Return the graph for a task, without values of variables of other tasks, and those that were lost there."""
        resources: list[Any] = []
        left_out: set[int] = set()
        for resource in self.document["resources"]:
            is_there = task_of(resource["device"]) == task.name
            key = (task.name, resource["container"], resource["path"])
            is_lost = is_there and session.home(key, task) != task.incarnation
            resources.append({**resource, "lost": is_lost, "made": key in session.made})
            if "value" in resource and (is_lost or not is_there):
                left_out.add(resource["value"])
        described: list[Any] = []
        arrays: list[Any] = []
        for number, description in enumerate(self._described):
            if number in left_out:
                described.append(None)
            elif isinstance(description, int):
                described.append(len(arrays))
                arrays.append(self._arrays[description])
            else:
                described.append(description)
        return {"session": self.number, "graph": {**self.document, "resources": resources}, "arrays": described}, arrays


class MasterProgram:
    """A program, as the master sees it.

    Attributes:
        number: its number in tasks.
        document: what the client wants.
        asked: the tasks that its operations ask for, besides the master; None before that is known.
        scheduled_on: those of them on which functions may run that are scheduled while a step runs.
        devices: on which it was placed.
        placement: of its operations, in program order; None before it is placed.
        links: what was measured of the ways between its tasks, for a document.
        tasks: those that take part.
        absent: those of which it is not known yet where they are.
        expected: those that are to say that they are ready.
        ready: those that did.
        straight_feeds: by position, the task that alone takes what is fed there, if that is not the master.
        fetched_on: by position, the task on which what is fetched is made.
        digests: of the lowered step, by task.
        texts: the lowered step as tasks print it, of those that were asked because digests differ.
        waiting: those who wait for it to be ready.
        attempts: how often it was prepared.
    """

    def __init__(self, number: int, graph: SentGraph, session: ClientSession, document: dict[str, Any]) -> None:
        self.number = number
        self.graph = graph
        self.session = session
        self.document = document
        self.asked: list[str] | None = None
        self.scheduled_on: list[str] = []
        self.devices: list[str] = []
        self.placement: list[str] | None = None
        self.links: list[list[Any]] = []
        self.tasks: list[str] = []
        self.absent: set[str] = set()
        self.expected: set[str] = set()
        self.ready: dict[str, Identity] = {}
        self.straight_feeds: dict[int, str] = {}
        self.fetched_on: list[str] = []
        self.digests: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.waiting: list[Done] = []
        self.is_preparing = False
        self.attempts = 0

    @property
    def is_ready(self) -> bool:
        """Test whether all tasks can begin a step."""
        return not self.is_preparing and bool(self.ready) and self.expected <= self.ready.keys()

    def note_straight(self, document: dict[str, Any]) -> None:
        """Note which feeds and fetches may go straight between the client and a task, as the master's own part says."""
        self.straight_feeds = {int(position): str(task) for position, task in document["feeds"]}
        self.fetched_on = [str(task) for task in document["fetches"]]

    def straight(self, own: str, infos: Mapping[str, TaskInfo]) -> dict[str, Any]:
        """Describe that for the client, with the addresses of the tasks.

        Args:
            own: the name of the master.
            infos: of the tasks, by name.
        """
        feeds = {position: task for position, task in self.straight_feeds.items() if task in infos}
        fetches = {k: task for k, task in enumerate(self.fetched_on) if task != own and task in infos}
        named = [infos[name] for name in sorted({*feeds.values(), *fetches.values()})]
        return {
            "feeds": list(feeds.items()),
            "fetches": list(fetches.items()),
            "tasks": {info.name: [info.host, info.port, info.incarnation, info.front] for info in named},
        }

    def begin_preparing(self) -> None:
        """Forget who was ready."""
        self.is_preparing = True
        self.attempts += 1
        self.absent.clear()
        self.expected.clear()
        self.ready.clear()
        self.digests.clear()
        self.texts.clear()

    def is_sent_to(self, task: str) -> bool:
        """Test whether this attempt to prepare has asked a task for it."""
        return self.is_preparing and task in self.expected

    def unlike(self, own: str) -> list[str]:
        """Return the tasks that have lowered the step to another program than `own`."""
        return [name for name, digest in self.digests.items() if digest != self.digests[own]]

    def progress(self) -> str:
        """Say, for whoever waits for it no longer, what its preparing waits for."""
        lines = ["The timeout was over while the step's tasks were being prepared."]
        lines += [f"{name} has not answered." for name in sorted(self.absent)]
        lines += [f"{name} prepares its part." for name in sorted(self.expected - self.ready.keys())]
        return "\n".join(lines)

    def end_preparing(self) -> list[Done]:
        """Return those who waited."""
        self.is_preparing = False
        waiting, self.waiting = self.waiting, []
        return waiting


class MasterStep:
    """A step under way.

    Attributes:
        number: its number in tasks.
        connection: of the client.
        waiting: the tasks that have not ended it; empty before it has begun.
        reports: what tasks waited for when its time was over, or another task was lost.
        is_traced: whether tasks record what they do.
        traces: by task, what it has recorded, and the arrays among which its own are.
        clocks: of other tasks, before the step.
        error: why it ends, while what tasks have recorded is gathered.
        deadline: when its time is over, by the master's clock.
    """

    def __init__(self, number: int, program: MasterProgram, connection: Connection, document: dict[str, Any]) -> None:
        self.number = number
        self.program = program
        self.connection = connection
        self.waiting: set[str] = set()
        self.is_traced = bool(document.get("trace"))
        self.traces: dict[str, tuple[Any, Sequence[Any]]] = {}
        self.clocks: dict[str, Reading] = {}
        self.reports: dict[str, str] = {}
        self.error: Exception | None = None
        self.deadline = math.inf
        self._values: dict[int, Any] = {}
        self._sent_by: dict[int, str] = {}
        straight = document.get("straight") or {"run": 0, "ways": {}, "feeds": []}
        self._run = int(straight["run"])
        self._ways = {str(task): int(number) for task, number in straight["ways"].items()}
        self._feeds = [int(position) for position in straight["feeds"]]
        wrong = [each for each in self._feeds if program.straight_feeds.get(each) not in self._ways]
        if wrong:
            raise FrameError(f"feeds {wrong} are sent to tasks that do not take them from a client")

    def described(self, name: str, now: float) -> dict[str, Any]:
        """Describe the step for a task.

        Args:
            name: of the task.
            now: the time, by the master's clock.
        """
        left = None if self.deadline == math.inf else max(self.deadline - now, 0.0)
        return {"step": self.number, "trace": self.is_traced, "timeout": left, "straight": self._straight(name)}

    def _straight(self, name: str) -> dict[str, Any] | None:
        """Describe for a task what goes straight between it and the client; None if nothing does in this step."""
        if not self._ways:
            return None
        return {"run": self._run, "way": self._ways.get(name), "feeds": self._feeds}

    def explained(self, error: Exception) -> Exception:
        """Add to the error of a lost task what the step waited for on the others."""
        if isinstance(error, TaskFailedError):
            error.waiting = {name: text for name, text in sorted(self.reports.items()) if text}
            for name, text in error.waiting.items():
                error.add_note(f"{name}: {text}")
        return error

    def waits_for(self, task: Identity) -> bool:
        """Test whether the step can't end without a task."""
        return task.name in self.waiting and self.program.ready.get(task.name) == task

    def take_values(self, task: str, document: dict[str, Any], arrays: Sequence[Any]) -> None:
        """Take what was fetched on a task, or which of it that has sent to the client."""
        for number, description in document["fetched"]:
            self._values[int(number)] = decode_value(description, arrays)
        self._sent_by |= {int(number): task for number in document["straight"]}

    def result(self, arrays: list[Any]) -> dict[str, Any]:
        """Write down what was fetched, in order."""
        count = len(self._values) + len(self._sent_by)
        values = [encode_value(self._values.get(number), arrays) for number in range(count)]
        return {"values": values, "straight": list(self._sent_by.items())}


def asked_tasks(operations: Iterable[Operation], tasks: Sequence[str], own: str) -> list[str]:
    """Return the tasks that operations ask for, besides `own`: a step runs there and on its master, and nowhere else.

    Raises:
        PlacementError: one asks for a task that the cluster does not have.
    """
    asked: dict[str, Operation] = {}
    for operation in operations:
        for device in [operation.device, *_scheduled_on(operation)]:
            if device:
                asked.setdefault(device, operation)
    found: set[str] = set()
    for device, operation in asked.items():
        name = DeviceName.parse(device)
        if name.job is None and name.task is None:
            continue
        fitting = [task for task in tasks if DeviceName(name.job, name.task).accepts(DeviceName.parse(task))]
        if not fitting:
            raise PlacementError(
                f"Operation {operation.name!r}, defined at {operation.location}, asks for {device!r}, but the tasks of "
                f"the cluster are {', '.join(tasks)}. Ask for one of these."
            )
        found.update(fitting)
    return [task for task in tasks if task in found and task != own]


def _scheduled_on(operation: Operation) -> Sequence[str]:
    return operation.op.devices if isinstance(operation.op, Scheduled) else ()


def may_be_scheduled_on(operations: Iterable[Operation], asked: Sequence[str]) -> list[str]:
    """Return those of the tasks of a step on which functions that are scheduled while it runs may run."""
    found: set[str] = set()
    for operation in [each for each in operations if isinstance(each.op, Scheduled)]:
        named = [DeviceName.parse(name).of_task() for name in _scheduled_on(operation)]
        found |= {task for task in asked if not named or any(name.accepts(DeviceName.parse(task)) for name in named)}
    return [task for task in asked if task in found]
