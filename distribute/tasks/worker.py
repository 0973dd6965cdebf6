"""`Worker`: what a task does for masters, itself among them: it keeps graphs, and runs its parts of steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ...engine.graph.spec import TensorSpec
from ...engine.graph.state.writing_rows import row_writes
from ...engine.machine.part import PartStep
from ...engine.machine.part_program import PartProgram
from ...engine.machine.report import ending_report
from ...engine.passes.framework.prune import needed_operations
from ...engine.passes.memory.memory_budget import within_memory_budget
from ...engine.queues.errors import StateLostError, TaskFailedError
from ..transport.connections import Connection, Identity
from ..transport.failures import describe_error, task_failed
from ..transport.slabs import keep_received
from ..transport.values import (
    Kept,
    Sent,
    SmallFrames,
    SmallValues,
    decode_token,
    decode_value,
    encode_other,
    encode_value,
    step_of,
)
from ..transport.wire import DAMAGE, Frame, FrameError, Kind
from .doing import Doing, Observer, Turning
from .graphs import Graphs
from .links import LinkMeter
from .links import read as read_costs
from .peers import Address, Link, Peers
from .preparing import assigning, check_settings, costs_of, lossy_pairs, named_target, read_devices
from .resources import Resources
from .running import ClientWays, Early, EndedParts, Program, Running, StepKey, StraightPart, named_cause
from .system import System
from .traces import encode_trace

_SLICE = 500  # nodes of one step that run before others have their turn


class Worker:
    """Runs the parts of steps that belong to this task.

    Args:
        identity: who this is.
        peers: connections to other tasks.
        system: has the loop, and a thread beside it.
    """

    def __init__(self, identity: Identity, peers: Peers, system: System) -> None:
        self.identity = identity
        self.resources = Resources(identity.name)
        self.steps_run = 0
        self._peers = peers
        self._loop = system.loop
        self._beside = system.compile
        self.links = LinkMeter(system.loop, peers)
        self._compiling = 0
        self.graphs = Graphs(self.resources)
        self._programs: dict[tuple[int, int], Program] = {}  # by master and number
        self._running: dict[StepKey, Running] = {}
        self.small = SmallValues(self._takes_values)
        self._ended = EndedParts()
        self.turning = Turning()
        self._observer = Observer()
        self._early: dict[StepKey, Early] = {}
        self._kept: dict[int, Kept] = {}  # by master, what it has this task keep for its steps
        self._reaching: set[StepKey] = set()  # steps that begin once ways are open again
        self._newest: dict[int, int] = {}  # by master, the number of its newest step here
        self.clients = ClientWays()
        self._takes: dict[int, Callable[[Link, Frame], None]] = {
            Kind.GRAPH: self._take_graph,
            Kind.PROGRAM: self._take_program,
            Kind.STEP: self._take_step,
            Kind.ABORT: self._take_abort,
            Kind.FORGET: self._take_forget,
            Kind.TEXT: self._take_text,
            Kind.RESET: self._take_reset,
            Kind.CLOCK: self._take_clock,
            Kind.LINKS: self.links.asked,
            Kind.PROBE: self.links.probed,
        }

    def doing(self, is_waiting: bool) -> Doing:
        """Say what this task does; for any thread.

        Args:
            is_waiting: whether the loop waits for something to happen.
        """
        running = [each.step for each in list(self._running.values())]
        return self._observer.look(self.turning.step, running, is_waiting, bool(self._compiling))

    def take(self, link: Link, frame: Frame) -> None:
        """Take a frame of a master.

        Raises:
            FrameError: it is damaged, or of another kind.
        """
        take = self._takes.get(frame.kind)
        if take is None:
            raise FrameError(f"a frame of kind {frame.kind} is not for a task")
        try:
            take(link, frame)
        except FrameError:
            raise
        except DAMAGE as error:
            raise FrameError(f"a frame of kind {frame.kind} is damaged: {type(error).__name__}: {error}") from error

    # --- graphs and programs ----------------------------------------------------------------------------------------

    def _take_graph(self, link: Link, frame: Frame) -> None:
        document = frame.document()
        key = (link.other.incarnation, int(document["session"]))
        self._compile(lambda: self.graphs.rebuild(key, document, frame.arrays), lambda result: None)

    def _compile(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Have something done by the thread that compiles; `done` takes the result, or an exception, in the loop."""
        self._compiling += 1

        def ended(result: Any) -> None:
            self._compiling -= 1
            done(result)

        def run() -> None:
            try:
                with np.errstate(all="ignore"):
                    result = work()
            except Exception as error:
                result = error
            self._loop.call(lambda: ended(result))

        try:
            self._beside(run)
        except RuntimeError:  # the task, or the whole process, is ending
            failed = task_failed(self.identity.name, "its process ends")
            self._loop.soon(lambda: ended(failed))

    def inspect(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Compile in the same way for the master of this process."""
        self._compile(work, done)

    def print_again(self, program: PartProgram) -> None:
        """Have operations of a program that have taken long run apart from now on."""
        self._compile(program.print_again, lambda result: None)

    def _take_program(self, link: Link, frame: Frame) -> None:
        document = frame.document()
        key = (link.other.incarnation, int(document["program"]))
        addresses = {str(name): Address(str(name), *where) for name, where in document["tasks"].items()}
        known = self._programs.get(key)

        def done(result: Any) -> None:
            if isinstance(result, Exception):
                link.send(Kind.FAILED, {"program": key[1], "error": describe_error(result)})
                return
            self._programs[key] = result
            self._reach(link, key[1], result, addresses)

        if known is not None:
            done(known)
            return

        def place(placed: list[str]) -> None:
            self._loop.call(lambda: link.send(Kind.PREPARED, {"program": key[1], "placement": placed}))

        self._compile(lambda: self._compiled(link.other.incarnation, document, place), done)

    def _compiled(self, master: int, document: Any, place: Callable[[list[str]], None]) -> Program:
        key = (master, int(document["session"]))
        graph = self.graphs.graph(key)
        targets = [named_target(graph, name) for name in document["targets"]]
        feeds: Any = [named_target(graph, name) for name in document["feeds"]]
        specs: Any = [feed.spec for feed in feeds]
        if document["shapes"] is not None:
            specs = [
                TensorSpec(tuple(shape), feed.dtype) for shape, feed in zip(document["shapes"], feeds, strict=True)
            ]
        check_settings(document["turned_off"])
        devices = read_devices(document["devices"])
        costs = costs_of(devices, read_costs(document["links"]))
        assign = assigning(self.identity.name, document["placement"], place, costs)
        with contextlib.ExitStack() as settings:
            if document["budget"] is not None:
                settings.enter_context(within_memory_budget(document["budget"]))
            program = PartProgram(
                graph,
                targets,
                feeds,
                specs,
                task=self.identity.name,
                devices=devices,
                exact=bool(document["exact"]),
                assign=assign,
                lossy=lossy_pairs(document["lossy"], devices),
                clock=self._loop.now,
            )
        use = self.graphs.use(key, needed_operations(graph, targets, feeds))
        return Program(program, int(document["program"]), use)

    def _reach(self, link: Link, number: int, program: Program, addresses: Mapping[str, Address]) -> None:
        """Connect to the tasks that take something from this one; then the program is ready."""
        if link.other.name != self.identity.name:
            self._peers.watch(addresses[link.other.name])  # the master
        program.targets = {edge: addresses[task] for edge, task in program.program.sends.items()}
        program.peers = {address.identity for address in program.targets.values()}
        program.peers |= {addresses[task].identity for task in program.program.sources}

        def done(error: Exception | None) -> None:
            if error is not None:
                link.send(Kind.FAILED, {"program": number, "error": describe_error(error)})
                return
            part = program.program
            straight = {
                "feeds": [[k, task] for k, (task, _) in part.straight_feeds.items()],
                "fetches": part.fetched_on,
            }
            found = {"program": number, "digest": part.digest, "tasks": part.tasks, "straight": straight}
            link.send(Kind.READY, found)

        program.connect(self._peers, done)

    def _take_text(self, link: Link, frame: Frame) -> None:
        """Handle a master's request for a step as this task has lowered it."""
        number = int(frame.document()["program"])
        program = self._programs[link.other.incarnation, number].program
        self._compile(program.text, lambda text: link.send(Kind.TEXT, {"program": number, "text": str(text)}))

    def _take_reset(self, link: Link, frame: Frame) -> None:
        """Give containers up. Steps that run here end: what they use may be gone."""
        document = frame.document()

        def done(count: Any) -> None:
            if isinstance(count, Exception):
                return  # the process ends, which its connections report
            if count:
                for running in list(self._running.values()):
                    text = f"{self.identity.name} was reset while the step ran. What it used there may be gone."
                    self._fail(running, StateLostError(text))
            link.send(Kind.RESET, {"reset": int(document["reset"]), "count": count})

        containers = document["containers"]
        names = None if containers is None else {str(name) for name in containers}
        self._compile(lambda: self.resources.clear(names), done)

    def _take_forget(self, link: Link, frame: Frame) -> None:
        """Handle the end of a session, or of some of its programs."""
        document = frame.document()
        master = link.other.incarnation
        for number in document["programs"]:
            self._programs.pop((master, int(number)), None)
            self._kept_for(master).give_up(int(number))
        for number, variables in document.get("kept", ()):
            self._kept_for(master).give_up(int(number), {int(variable) for variable in variables})
        if document.get("session") is not None:
            key = (master, int(document["session"]))
            self._compile(lambda: self.graphs.forget(key), lambda result: None)

    # --- steps ------------------------------------------------------------------------------------------------------

    def _take_step(self, link: Link, frame: Frame) -> None:
        document = frame.document()
        key = (link.other.incarnation, int(document["step"]))
        self._newest[key[0]] = max(key[1], self._newest.get(key[0], 0))
        program = self._programs.get((key[0], int(document["program"])))
        if program is None:
            link.send(Kind.FAILED, {"step": key[1], "error": describe_error(RuntimeError("the program is not known"))})
            return
        values: list[Any] = [None] * len(program.program.machine.feeds)
        for position, description in document["feeds"]:
            values[position] = decode_value(description, frame.arrays)
        is_traced = bool(document["trace"])
        seconds = document.get("timeout")
        until = None if seconds is None else self._loop.now() + float(seconds)
        straight = StraightPart(document.get("straight"), program.program)
        if program.is_connected and not is_traced:
            self._begin(link, key, program, program.program, values, straight, until)
            return
        self._reaching.add(key)
        part = program.program

        def done(error: Exception | None) -> None:
            if key not in self._reaching:
                return  # it was aborted meanwhile
            self._reaching.discard(key)
            if error is None:
                self._begin(link, key, program, part, values, straight, until)
                return
            self._early.pop(key, None)
            link.send(Kind.FAILED, {"step": key[1], "error": describe_error(error)})

        def printed(found: Any) -> None:
            nonlocal part
            if isinstance(found, Exception):
                done(found)
            else:
                part = found
                program.connect(self._peers, done)

        if is_traced:
            self._compile(program.program.with_clocks, printed)
        else:
            program.connect(self._peers, done)

    def _begin(
        self,
        link: Link,
        key: StepKey,
        program: Program,
        part: PartProgram,
        values: list[Any],
        straight: StraightPart,
        until: float | None,
    ) -> None:
        ways, lossy, sent = program.ways, part.lossy_sends, Sent(program.number)
        small_frame = SmallFrames(key, lossy).frame

        def send(number: int, tag: tuple[int, ...], value: Any, is_dead: bool) -> None:
            link = ways[number]
            small = small_frame(number, tag, value, is_dead, link.most_joined)
            if small is not None:
                link.put_bytes(small)
            else:
                link.put(Kind.VALUE, *encode_other(key, number, tag, value, number in lossy, sent))
            if link.queued > link.most_queued:
                step.is_held = True  # until what waits there has gone

        try:
            program.use.check()
            step = part.begin(
                values, send, self._loop.wake, straight.skipped, program.empty, keep_received, program.shared
            )
        except Exception as error:
            link.send(Kind.FAILED, {"step": key[1], "error": describe_error(error)})
            return
        early = self._early.pop(key, None) or Early(self._kept_for(key[0]))
        self.turning.begins()
        running = self._running[key] = Running(key, link, program, part, step, straight, early.received, until)
        for value in early.values:
            self._receive(running, *value)
        if straight.due:
            self._feed(running, self.clients.fed(straight))
            if straight.due and not self.clients.is_open(straight.way):
                self._fail(running, self._unfed(running))

    def _takes_values(self, key: StepKey) -> tuple[Callable[..., None], Callable[[int, Exception], None]] | None:
        running = self._running.get(key)
        return None if running is None else (running.step.receive, partial(self._not_received, running))

    def _remove(self, key: StepKey) -> Running | None:
        """Remove a step from those that run here, if it is among them."""
        self.small.forget()
        return self._running.pop(key, None)

    def take_value(self, frame: Frame) -> None:
        """Take a value that another task has sent.

        Raises:
            FrameError: it is damaged.
        """
        key = step_of(frame.head)
        running = self._running.get(key)
        if running is not None:
            self._deliver(running, frame)
        elif key in self._reaching or (key[1] > self._newest.get(key[0], 0) and self._peers.has_master(key[0])):
            early = self._early.get(key)  # it comes before its step; else the step is over
            if early is None:
                early = self._early[key] = Early(self._kept_for(key[0]))
            early.take(frame)

    def _kept_for(self, master: int) -> Kept:
        return self._kept.setdefault(master, Kept())

    def _deliver(self, running: Running, frame: Frame) -> None:
        self._receive(running, *decode_token(frame.head, frame.arrays, running.received))

    def _receive(self, running: Running, edge: int, tag: tuple[int, ...], value: Any, is_dead: bool) -> None:
        try:
            running.step.receive(edge, tag, value, is_dead)
        except Exception as error:
            self._not_received(running, edge, error)

    def _not_received(self, running: Running, edge: int, error: Exception) -> None:
        if isinstance(error, KeyError):
            raise FrameError(f"value {edge} is not received here") from None
        self._fail(running, error)

    def take_fed(self, connection: Connection, frame: Frame) -> None:
        """Take what a client feeds of a step, which may have to begin yet.

        Raises:
            FrameError: it is damaged.
        """
        run, values = self.clients.read(frame)
        number = connection.other.incarnation
        for running in list(self._running.values()):
            if (running.straight.way, running.straight.run) == (number, run):
                self._feed(running, values)
                return
        self.clients.keep(number, run, values)

    def _feed(self, running: Running, values: Mapping[int, Any]) -> None:
        """Deliver what a client has fed."""
        due = running.straight.due
        for position in [position for position in due if position in values]:
            for edge in due.pop(position):
                self._receive(running, edge, (), values[position], False)

    def _unfed(self, running: Running) -> Exception:
        return task_failed(self.identity.name, "the client's connection to it was lost", running.key[1])

    def lost_client(self, connection: Connection) -> None:
        """Handle the end of a client's connection: steps that it was to feed fail."""
        if self.clients.lost(connection):
            for running in list(self._running.values()):
                if running.straight.due and running.straight.way == connection.other.incarnation:
                    self._fail(running, self._unfed(running))

    def turn(self) -> bool:
        """Run a slice of each step; return whether there is more to do at once."""
        is_busy, turning = False, self.turning
        for running in list(self._running.values()) if self._running else ():
            step = running.step
            if step.is_held and not self._may_go_on(running):
                continue
            if step.ready or not step.events.empty():
                turning.running = running
                try:
                    running.turn(_SLICE, self._loop.now)
                except Exception as error:
                    if not turning.is_stopped:  # else what ends it has been read, and is taken next
                        self._fail(running, named_cause(error, self.identity.name, running.key[1]))
                    continue
                finally:
                    turning.end()
            if step.is_over:
                self._end(running)
            elif (step.ready or not step.events.empty()) and not step.is_held:
                is_busy = True
        return is_busy

    def _may_go_on(self, running: Running) -> bool:
        """Test whether what a step has sent has gone so far that it may send more; otherwise the step is held."""
        full = {link for link in running.program.ways.values() if link.is_full}
        for link in full - running.held_by:
            link.stalls += 1
        running.held_by = full
        running.step.hold({link.other.name for link in full})
        return not full

    def _end(self, running: Running) -> None:
        self._remove(running.key)
        self._ended.add(running)
        self.steps_run += 1
        arrays: list[Any] = []
        try:
            found = running.part.end(running.step)
            running.program.give_up()
            running.program.use.note_assigned()
            straight = self.clients.send(running.straight, found)
            inline = [(number, value) for number, value in found.items() if number not in straight]
            fetched = [[number, encode_value(value, arrays)] for number, value in inline]
        except Exception as error:
            error.add_note(
                f"At the end of step {running.key[1]} on {self.identity.name}, which sends what was fetched."
            )
            running.link.send(Kind.FAILED, {"step": running.key[1], "error": describe_error(error)})
            return
        document = {"step": running.key[1], "fetched": fetched, "straight": straight, **_recorded(running.step, arrays)}
        running.link.send(Kind.ENDED, document, arrays)

    def _fail(self, running: Running, error: Exception) -> None:
        """Report that a step has failed here: its master ends it elsewhere."""
        if self._remove(running.key) is None:
            return
        report = ending_report(running.step) if isinstance(error, TaskFailedError) else ""
        running.part.failed(running.step, error)
        arrays: list[Any] = []
        document = {"step": running.key[1], "error": describe_error(error), "report": report}
        document |= _recorded(running.step, arrays)
        running.link.send(Kind.FAILED, document, arrays)

    def _take_abort(self, link: Link, frame: Frame) -> None:
        document = frame.document()
        key = (link.other.incarnation, int(document["step"]))
        self._newest[key[0]] = max(key[1], self._newest.get(key[0], 0))
        self._early.pop(key, None)
        self._reaching.discard(key)
        running = self._remove(key)
        text, recorded, arrays = "", {}, []
        if running is not None:
            if document.get("report"):
                text = ending_report(running.step)
            running.step.abort()
            recorded = _recorded(running.step, arrays)
        if document.get("report"):
            link.send(Kind.STATUS, {"step": key[1], "report": text, **recorded}, arrays)

    def _take_clock(self, link: Link, frame: Frame) -> None:
        """Handle a master's request for the clock of this task."""
        document = frame.document()
        link.send(Kind.CLOCK, {**document, "time": self._loop.now()})

    # --- ways to others ---------------------------------------------------------------------------------------------

    def take_probed(self, task: Identity, frame: Frame) -> None:
        """Take the answer of a task to which this one measures the way.

        Raises:
            FrameError: it is damaged.
        """
        try:
            self.links.take(task, frame.document())
        except DAMAGE as error:
            raise FrameError(f"the answer to a probe is damaged: {type(error).__name__}: {error}") from error

    # --- others that are gone ---------------------------------------------------------------------------------------

    def lost_master(self, master: Identity) -> None:
        """Handle the loss of a master: its steps end, and what it has sent is forgotten."""
        self.resources.task_lost(master.name, master.incarnation)
        for running in [each for each in self._running.values() if each.key[0] == master.incarnation]:
            self._remove(running.key)
            running.step.abort()
        for key in [key for key in self._early if key[0] == master.incarnation]:
            del self._early[key]
        self._reaching = {key for key in self._reaching if key[0] != master.incarnation}
        for key in [key for key in self._programs if key[0] == master.incarnation]:
            del self._programs[key]
        self._kept.pop(master.incarnation, None)
        # The newest step is remembered: a master that was only cut off goes on, and its old values still come.
        self._compile(lambda: self.graphs.forget_all_of(master.incarnation), lambda result: None)

    def lost_peer(self, peer: Identity, reason: str) -> None:
        """Handle the loss of a task to or from which values are sent: steps that need it fail.

        What it has sent may be lost on the way, also if it has ended its part of a step.
        """
        self.links.lost(peer)
        for program in self._programs.values():
            program.program.kept_states.forget(peer.name)
        for running in [each for each in self._running.values() if peer in each.program.peers]:
            self._fail(running, task_failed(peer.name, reason, running.key[1]))
        self._ended.lost_peer(peer, reason)

    def statistics(self) -> dict[str, int]:
        """Count what is held: nothing of it may grow over steps. And count what was done: steps, copies for rows."""
        return {
            "graphs": len(self.graphs),
            "programs": len(self._programs),
            "running": len(self._running),
            "early": sum(map(len, self._early.values())),
            "kept": sum(map(len, self._kept.values())),
            "fed": len(self.clients),
            "resources": len(self.resources),
            "steps": self.steps_run,
            "measuring": len(self.links),
            "row_copies": row_writes.copies,
        }

    def close(self) -> None:
        """End."""
        for running in self._running.values():
            running.step.abort()


def _recorded(step: PartStep, arrays: list[Any]) -> dict[str, Any]:
    """Return the records of a step that is over, for a document; nothing if it is not traced."""
    return {} if step.recorded is None else {"trace": encode_trace(*step.recorded, arrays)}


__all__ = ["StepKey", "Worker"]
