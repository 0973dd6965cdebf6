"""`Master`: what a task does for clients: it places their steps, has tasks prepare them, begins them and gathers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...engine.graph.device import task_of
from ...engine.graph.graph import Graph
from ...engine.passes.framework.prune import needed_operations
from ...engine.place.kernels import all_operations
from ...engine.queues.errors import DeadlineExceededError, TaskFailedError
from ..cluster import ClusterSpec
from ..transport.connections import Connection, Identity
from ..transport.failures import describe_error, read_error, task_failed, task_unavailable
from ..transport.loop import Loop
from ..transport.values import decode_value, encode_value
from ..transport.wire import DAMAGE, Frame, FrameError, Kind
from .clocks import ClockReader, Reading
from .deadlines import Deadlines
from .front import TaskInfo
from .links import Costs, PairCosts, written
from .peers import Address, Link, Peers
from .preparing import check_lossy, differ, named_target
from .resets import Resets
from .sessions import ClientSession, MasterProgram, MasterStep, SentGraph, asked_tasks, may_be_scheduled_on
from .system import System
from .traces import encode_traces
from .worker import Worker

_BACK_SECONDS = 1.0  # how long a step waits for a task that was lost before it began; one that never came has longer
_REPORT_SECONDS = 1.0  # how long reports of a step that was not done in time are waited for
_OF_PROGRAMS = ("targets", "feeds", "shapes", "budget", "turned_off", "exact", "lossy")


class Master:
    """Serves clients.

    Args:
        info: what this task says of itself.
        statistics: counts what this task holds.
        cluster: all tasks.
        loop: in whose thread everything happens.
        worker: the part of this task in steps.
        own: the way to that.
        peers: connections to other tasks.
        connect_timeout: how many seconds to wait for tasks that a step needs.
        system: asks tasks who they are.
    """

    def __init__(
        self,
        info: TaskInfo,
        statistics: Callable[[], dict[str, Any]],
        cluster: ClusterSpec,
        loop: Loop,
        worker: Worker,
        own: Link,
        peers: Peers,
        connect_timeout: float,
        system: System,
    ) -> None:
        self.info = info
        self.identity = Identity(info.name, info.incarnation)
        self.cluster = cluster
        self._statistics = statistics
        self._loop = loop
        self._worker = worker
        self._own = own
        self._peers = peers
        self._connect_timeout = connect_timeout
        self._system = system
        self._numbers = itertools.count(1)
        self._sessions: dict[Identity, ClientSession] = {}
        self._programs: dict[int, MasterProgram] = {}
        self.steps: dict[int, MasterStep] = {}
        self._deadlines = Deadlines(loop, self.steps, self._expire)
        self._infos: dict[str, TaskInfo] = {info.name: info}
        self._seen: set[str] = set()  # tasks that were there once
        self._takes: dict[int, Callable[[Connection, ClientSession, Frame], None]] = {
            Kind.GRAPH: self._take_graph,
            Kind.PREPARE: self._take_prepare,
            Kind.RUN: self._take_run,
            Kind.STATUS: self._take_status,
            Kind.RESET: self._take_reset,
            Kind.CLOCK: self._take_clock,
        }
        tasks = dict.fromkeys([info.name, *cluster.tasks])
        self._clocks = ClockReader(system, self._link_to)
        self._pairs = PairCosts(loop, self._link_to)
        self._resets = Resets(tasks, self._reach, lambda: next(self._numbers))

    # --- clients ----------------------------------------------------------------------------------------------------

    def take(self, connection: Connection, frame: Frame) -> None:
        """Take a frame of a client.

        Raises:
            FrameError: it is damaged, or of another kind.
        """
        session = self._sessions.setdefault(connection.other, ClientSession())
        session.connections.add(connection)
        take = self._takes.get(frame.kind)
        if take is None:
            raise FrameError(f"a frame of kind {frame.kind} is not for a master")
        try:
            take(connection, session, frame)
        except FrameError:
            raise
        except DAMAGE as error:
            raise FrameError(f"a frame of kind {frame.kind} is damaged: {type(error).__name__}: {error}") from error

    def lost_client(self, connection: Connection) -> None:
        """Handle the end of a client's connection: its steps end, and with the last one its session."""
        for step in [each for each in self.steps.values() if each.connection is connection]:
            self._fail(step, ConnectionError("the client is gone"))
        session = self._sessions.get(connection.other)
        if session is None:
            return
        session.connections.discard(connection)
        if session.connections:
            return
        del self._sessions[connection.other]
        programs = [*session.replaced, *[program.number for program in session.programs.values()]]
        for number in programs:
            del self._programs[number]
        for graph in session.graphs:
            for link in [self._own, *[self._peers.way_to(identity) for identity in sorted(graph.sent, key=str)]]:
                if link is not None:
                    link.send(Kind.FORGET, {"session": graph.number, "programs": programs})

    def _take_graph(self, connection: Connection, session: ClientSession, frame: Frame) -> None:
        document = frame.document()
        graph = SentGraph(next(self._numbers), document, frame.arrays)
        graph.pin([self.identity.name, *self.cluster.tasks])
        session.graphs.append(graph)
        for task, container, path, home in document["homes"]:
            session.homes.setdefault((str(task), str(container), str(path)), int(home))
            session.made.add((str(task), str(container), str(path)))

    def _take_prepare(self, connection: Connection, session: ClientSession, frame: Frame) -> None:
        document = frame.document()
        graph = session.graph(document.get("graph"))
        if graph is None:
            connection.send(Kind.UNKNOWN, {})
            return
        missing = [key for key in _OF_PROGRAMS if key not in document]
        if missing:
            raise FrameError(f"what is to be prepared lacks {', '.join(missing)}")
        program = session.given_up(int(document["program"]), graph)
        if program is None:
            number = next(self._numbers)
            program = MasterProgram(number, graph, session, document)
            self._programs[number] = session.programs[int(document["program"])] = program

        def done(error: Exception | None) -> None:
            if error is not None:
                connection.send(Kind.ERROR, {"error": describe_error(error)})
            else:
                session.note_made(program.ready.values())
                straight = program.straight(self.identity.name, self._infos)
                found = {"tasks": program.tasks, "homes": session.known_homes(), "straight": straight}
                connection.send(Kind.PREPARED, found)

        if document.get("timeout") is not None:
            self._deadlines.add_preparing(program, done, float(document["timeout"]))
        self._prepare(program, done)

    def _take_run(self, connection: Connection, session: ClientSession, frame: Frame) -> None:
        document = frame.document()
        program = session.programs.get(int(document["program"]))
        if program is None:
            connection.send(Kind.UNKNOWN, {})
            return
        feeds = [decode_value(description, frame.arrays) for description in document["feeds"]]
        step = MasterStep(next(self._numbers), program, connection, document)
        self.steps[step.number] = step
        if document["timeout"] is not None:
            self._deadlines.add(step, float(document["timeout"]))

        def done(error: Exception | None) -> None:
            if step.number not in self.steps:
                return  # it has failed meanwhile
            if error is not None:
                self._fail(step, error)
            elif step.is_traced:
                self._clocks.read(self._others(program.tasks, program), read)
            else:
                self._begin(step, feeds)

        def read(clocks: dict[str, Reading]) -> None:
            step.clocks = clocks
            if step.number in self.steps:
                self._begin(step, feeds)

        self._prepare(program, done)

    def _others(self, tasks: Iterable[str], program: MasterProgram) -> list[Identity]:
        """Return some tasks of a program, this one left out."""
        return [program.ready[name] for name in tasks if name in program.ready and name != self.identity.name]

    def _take_clock(self, connection: Connection, session: ClientSession, frame: Frame) -> None:
        connection.send(Kind.CLOCK, {**frame.document(), "time": self._loop.now()})

    def _take_status(self, connection: Connection, session: ClientSession, frame: Frame) -> None:
        addresses = {name: self.cluster.address(name) for name in self.cluster.tasks}
        addresses[self.info.name] = self.info.front
        connection.send(Kind.STATUS, {**self._statistics(), "tasks": addresses})

    def _take_reset(self, connection: Connection, session: ClientSession, frame: Frame) -> None:
        self._resets.begin(connection, frame.document())

    def _reach(self, name: str, reached: Callable[[Any], None]) -> None:
        """Connect to a task by its name, wherever it is by now; `reached` takes the link to it, or an error."""
        if name == self.identity.name:
            reached(self._own)
            return

        def located(name: str, info: TaskInfo | Exception) -> None:
            if isinstance(info, Exception):
                reached(info)
                return
            self._infos[name] = info
            self._seen.add(name)
            self._peers.reach(_address(info), lambda address, way: reached(way))

        self._ask(name, located)

    def statistics(self) -> dict[str, int]:
        """Count what clients have here."""
        return {"steps": len(self.steps), "sessions": len(self._sessions)}

    # --- preparing --------------------------------------------------------------------------------------------------

    def _prepare(self, program: MasterProgram, done: Callable[[Exception | None], None]) -> None:
        """Have all tasks of a program ready for it; `done` is called when they are, or takes why they are not."""
        if program.is_ready:
            done(None)
            return
        program.waiting.append(done)
        if program.is_preparing:
            return
        program.begin_preparing()

        def located(found: Any) -> None:
            self._locate(program, found)

        self._send_graph(program.graph, program.session, self._own, self.identity)
        if program.asked is None:
            # Behind the graph, which is handed over in the next turn.
            self._loop.soon(lambda: self._worker.inspect(lambda: self._asked(program), located))
        else:
            self._locate(program, program.asked)

    def _asked(self, program: MasterProgram) -> list[str]:
        """Return the tasks that a step asks for, besides this one; for the thread that compiles."""
        graph: Graph = self._worker.graphs.graph((self.identity.incarnation, program.graph.number))
        check_lossy(program.document["lossy"], list(dict.fromkeys([self.identity.name, *self.cluster.tasks])))
        targets = [named_target(graph, name) for name in program.document["targets"]]
        feeds: Any = [named_target(graph, name) for name in program.document["feeds"]]
        every = [*all_operations(needed_operations(graph, targets, feeds)), *[feed.operation for feed in feeds]]
        found = asked_tasks(every, self.cluster.tasks, self.identity.name)
        program.scheduled_on = may_be_scheduled_on(every, found)
        return found

    def _locate(self, program: MasterProgram, found: Any) -> None:
        """Find the tasks of a program, wherever they are by now."""
        if isinstance(found, Exception):
            self._end_preparing(program, found)
            return
        program.asked = found
        missing = program.absent = set(found)
        attempt = program.attempts

        def is_stale() -> bool:
            return not program.is_preparing or program.attempts != attempt

        def located(name: str, info: TaskInfo | Exception) -> None:
            if is_stale():
                return
            if isinstance(info, Exception):
                self._end_preparing(program, info)
                return
            self._infos[name] = info
            self._seen.add(name)
            self._peers.reach(_address(info), reached)

        def reached(address: Address, way: Any) -> None:
            if is_stale():
                return
            if isinstance(way, Exception):
                self._infos.pop(address.name, None)
                self._end_preparing(program, way)
                return
            missing.discard(address.name)
            if not missing:
                self._place(program)

        if not missing:
            self._place(program)
        for name in found:
            info = self._infos.get(name)
            if info is not None and self._peers.way_to(Identity(info.name, info.incarnation)) is not None:
                located(name, info)
            else:
                self._ask(name, located)

    def _ask(self, name: str, located: Callable[[str, Any], None]) -> None:
        address = self.cluster.address(name)
        timeout = min(self._connect_timeout, _BACK_SECONDS) if name in self._seen else self._connect_timeout

        def answered(found: TaskInfo | str) -> None:
            info = found if isinstance(found, TaskInfo) else task_unavailable(name, found)
            self._loop.call(lambda: located(name, info))

        self._system.ask(address, name, timeout, answered)

    def _place(self, program: MasterProgram) -> None:
        """Have this task prepare a program, which places it; or all tasks, if it is placed already."""
        assert program.asked is not None, "tasks are asked for first"
        if self._ends_without_a_task(program):
            return
        infos = [self.info, *[self._infos[name] for name in program.asked]]
        program.devices = [device for info in infos for device in info.devices]
        if program.placement is None:
            attempt = program.attempts

            def measured(costs: Costs) -> None:
                is_stale = not program.is_preparing or program.attempts != attempt
                if not is_stale and not self._ends_without_a_task(program):
                    program.links = written(costs)
                    if program.placement is not None:  # by an earlier attempt, which has ended meanwhile
                        self._distribute(program)
                    self._send_program(program, self._own, self.identity)

            self._pairs.read([_address(info) for info in infos], measured)
        else:
            self._distribute(program)
            self._send_program(program, self._own, self.identity)

    def _ends_without_a_task(self, program: MasterProgram) -> bool:
        """End the preparing of a program if a task has been lost since it was located; return whether that is so."""
        lost = [name for name in program.asked or () if name not in self._infos]
        if lost:
            self._end_preparing(program, task_failed(lost[0], "the connection to it was lost"))
        return bool(lost)

    def _distribute(self, program: MasterProgram) -> None:
        """Have the other tasks prepare a program that is placed."""
        assert program.placement is not None, "it is placed"
        if self._ends_without_a_task(program):
            return
        used = {*program.scheduled_on, *[task_of(device) for device in program.placement]}
        for name in program.asked or ():
            if name not in used:
                continue
            info = self._infos[name]
            identity = Identity(info.name, info.incarnation)
            link = self._peers.way_to(identity)
            if link is None:
                self._end_preparing(program, task_failed(name, "the connection to it was lost"))
                return
            self._send_graph(program.graph, program.session, link, identity)
            self._send_program(program, link, identity)

    def _send_graph(self, graph: SentGraph, session: ClientSession, link: Link, identity: Identity) -> None:
        if identity not in graph.sent:
            graph.sent.add(identity)
            link.send(Kind.GRAPH, *graph.for_task(identity, session))

    def _send_program(self, program: MasterProgram, link: Link, identity: Identity) -> None:
        infos = [self.info, *[self._infos[name] for name in program.asked or ()]]
        tasks = {info.name: list(_address(info)[1:]) for info in infos}
        program.expected.add(identity.name)
        link.send(
            Kind.PROGRAM,
            {
                **{key: program.document[key] for key in _OF_PROGRAMS},
                "program": program.number,
                "session": program.graph.number,
                "devices": program.devices,
                "placement": program.placement,
                "links": program.links,
                "tasks": tasks,
            },
        )

    def _end_preparing(self, program: MasterProgram, error: Exception | None) -> None:
        for done in program.end_preparing():
            done(error)

    # --- what tasks answer ------------------------------------------------------------------------------------------

    def take_reply(self, link: Link, frame: Frame) -> None:
        """Take what a task answers.

        Raises:
            FrameError: it is damaged, or of another kind.
        """
        document = frame.document()
        try:
            if frame.kind == Kind.PREPARED:
                self._placed(document)
            elif frame.kind == Kind.READY:
                self._ready(link.other, document)
            elif frame.kind == Kind.TEXT:
                self._take_text(link.other, document)
            elif frame.kind == Kind.RESET:
                self._resets.take(link.other, document)
            elif frame.kind == Kind.CLOCK:
                self._clocks.take(link.other, document)
            elif frame.kind == Kind.LINKS:
                self._pairs.take(link.other, document)
            elif frame.kind == Kind.FAILED and "program" in document:
                program = self._programs.get(int(document["program"]))
                if program is not None:
                    self._end_preparing(program, read_error(document["error"]))
            elif frame.kind in (Kind.FAILED, Kind.ENDED, Kind.STATUS):
                step = self.steps.get(int(document["step"]))
                if step is not None:
                    self._take_end(step, link.other, frame, document)
            else:
                raise FrameError(f"a frame of kind {frame.kind} is not for a master")
        except FrameError:
            raise
        except DAMAGE as error:
            raise FrameError(f"a frame of kind {frame.kind} is damaged: {type(error).__name__}: {error}") from error

    def _placed(self, document: dict[str, Any]) -> None:
        program = self._programs.get(int(document["program"]))
        if program is not None and program.placement is None:  # also when that attempt has failed: it is placed once
            program.placement = [str(device) for device in document["placement"]]
            if program.is_sent_to(self.identity.name):
                self._distribute(program)

    def _ready(self, task: Identity, document: dict[str, Any]) -> None:
        program = self._programs.get(int(document["program"]))
        if program is None or program.placement is None or not program.is_sent_to(self.identity.name):
            return  # it answers an earlier attempt to prepare the program, and will answer this one
        program.ready[task.name] = task
        program.digests[task.name] = str(document["digest"])
        if task == self.identity:
            program.tasks = [str(name) for name in document["tasks"]]
            program.note_straight(document["straight"])
        if program.expected > program.ready.keys() or self.identity.name not in program.ready:
            return
        others = program.unlike(self.identity.name)
        if others:
            for name in (self.identity.name, others[0]):
                asked = self._link_to(program.ready[name])
                if asked is None:
                    self._end_preparing(program, task_failed(name, "the connection to it was lost"))
                    return
                asked.send(Kind.TEXT, {"program": program.number})
            return
        self._end_preparing(program, None)

    def _take_text(self, task: Identity, document: dict[str, Any]) -> None:
        """Take from a task the text of a lowered step of which the digests differ."""
        program = self._programs.get(int(document["program"]))
        if program is None or not program.is_preparing:
            return
        program.texts[task.name] = str(document["text"])
        if len(program.texts) < 2:
            return
        own = self.identity.name
        (other,) = program.texts.keys() - {own}
        error = RuntimeError(differ(own, program.unlike(own), program.texts[own], program.texts[other]))
        self._end_preparing(program, error)
        program.ready.clear()

    # --- steps ------------------------------------------------------------------------------------------------------

    def _begin(self, step: MasterStep, feeds: Sequence[Any]) -> None:
        program = step.program
        step.waiting = set(program.tasks)
        if not step.waiting:
            self._end(step)
            return
        for name in program.tasks:
            identity = program.ready.get(name)  # None: the task was lost while clocks were read
            link = None if identity is None else self._link_to(identity)
            if link is None:
                self._fail(step, task_failed(name, "the connection to it was lost", step.number))
                return
            arrays: list[Any] = []
            given = [[k, encode_value(value, arrays)] for k, value in enumerate(feeds)] if link is self._own else []
            document = {"program": program.number, "feeds": given, **step.described(name, self._loop.now())}
            link.send(Kind.STEP, document, arrays)

    def _link_to(self, identity: Identity) -> Link | None:
        return self._own if identity == self.identity else self._peers.way_to(identity)

    def _take_end(self, step: MasterStep, task: Identity, frame: Frame, document: dict[str, Any]) -> None:
        if "trace" in document:
            step.traces[task.name] = (document["trace"], frame.arrays)
        if frame.kind == Kind.STATUS:
            step.reports[task.name] = str(document["report"])
            self._report_if_all(step)
        elif frame.kind == Kind.FAILED:
            step.waiting.discard(task.name)
            step.reports[task.name] = str(document.get("report", ""))
            self._fail(step, read_error(document["error"]))
        elif step.error is not None:
            step.waiting.discard(task.name)
            self._report_if_all(step)
        else:
            step.waiting.discard(task.name)
            step.take_values(task.name, document, frame.arrays)
            if not step.waiting:
                self._end(step)

    def _end(self, step: MasterStep) -> None:
        del self.steps[step.number]
        arrays: list[Any] = []
        self._answer(step, Kind.RESULT, step.result(arrays), arrays)

    def _answer(self, step: MasterStep, kind: int, document: dict[str, Any], arrays: list[Any]) -> None:
        """Answer the client of a step that is over; of a traced one with what tasks have recorded."""
        if not step.is_traced:
            step.connection.send(kind, document, arrays)
            return

        def read(clocks: dict[str, Reading]) -> None:
            traces = encode_traces(step.traces, step.clocks, clocks, arrays)
            step.connection.send(kind, {**document, "trace": traces}, arrays)

        self._clocks.read(self._others(step.traces, step.program), read)

    def _fail(self, step: MasterStep, error: Exception) -> None:
        """End a step on all tasks, and send the reason to the client."""
        if step.number not in self.steps:
            return
        if step.error is not None:  # it ends already, for another reason
            self._report_if_all(step)
        elif step.waiting and not step.connection.is_closed and (step.is_traced or isinstance(error, TaskFailedError)):
            step.error = error
            self._gather(step)
        else:
            del self.steps[step.number]
            self._abort(step, report=False)
            self._answer(step, Kind.ERROR, {"error": describe_error(step.explained(error))}, [])

    def _gather(self, step: MasterStep) -> None:
        """End a step on all tasks, and ask them for what it waits for, or what they have recorded."""
        self._abort(step, report=True)
        self._loop.after(_REPORT_SECONDS, lambda: self._report(step))

    def _abort(self, step: MasterStep, report: bool) -> None:
        for name in sorted(step.waiting):
            identity = step.program.ready.get(name)
            link = None if identity is None else self._link_to(identity)
            if link is not None:
                link.send(Kind.ABORT, {"step": step.number, "report": report})

    def _expire(self, step: MasterStep) -> None:
        """Handle a step that has used up the time that a client gave it: ask what it waits for."""
        if step.error is None and not step.waiting:
            self._fail(step, DeadlineExceededError(step.program.progress()))
        elif step.error is None:
            self._gather(step)

    def _report_if_all(self, step: MasterStep) -> None:
        if step.reports.keys() >= step.waiting:
            self._report(step)

    def _report(self, step: MasterStep) -> None:
        if self.steps.pop(step.number, None) is None:
            return
        silent = [
            f"{name} did not report what it waits for." for name in sorted(step.waiting) if name not in step.reports
        ]
        texts = [f"{name}: {text}" for name, text in step.reports.items() if text]
        late = DeadlineExceededError("\n".join(["The timeout was over.", *texts, *silent]))
        self._answer(step, Kind.ERROR, {"error": describe_error(step.explained(step.error or late))}, [])

    # --- others that are gone ---------------------------------------------------------------------------------------

    def lost_task(self, task: Identity, reason: str) -> None:
        """Handle the loss of a task: steps that need it fail, and its programs are prepared again at their next run."""
        self._resets.lost_task(task.name, task_failed(task.name, reason))
        self._pairs.lost_task(task)
        known = self._infos.get(task.name)
        if known is not None and known.incarnation == task.incarnation:
            del self._infos[task.name]
        for step in [each for each in self.steps.values() if each.waits_for(task)]:
            step.waiting.discard(task.name)
            self._fail(step, task_failed(task.name, reason, step.number))
        for program in self._programs.values():
            program.graph.sent.discard(task)
            if program.is_preparing and task.name in (program.asked or ()):
                self._end_preparing(program, task_failed(task.name, reason))
            if program.ready.get(task.name) == task:
                program.ready.clear()


def _address(info: TaskInfo) -> Address:
    return Address(info.name, info.host, info.port, info.incarnation, info.front)
