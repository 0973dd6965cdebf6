"""One run of a machine at a time: its partitions, the loop that steps them, and what they share.

A partition is state, not a thread: what is ready to run, on any device, waits in one queue, and one loop empties it.
Only what runs for long, or waits for somebody else, leaves the loop, and comes back as an event.
"""

from __future__ import annotations

import collections
import contextlib
import queue
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..common.deadlines import requests, seconds_left, waits
from ..common.quick_dataclass import dataclass
from ..lower.nodes import Node
from ..queues.errors import DeadlineExceededError
from ..queues.stops import check_cancelled, listening
from ..queues.writing import others_go_on
from ..runtime.code import Compiled
from .blueprint import Blueprint
from .engines import Engine, moment_of
from .frames import Deliver, FramePlan, Frames, Iteration, Tag, drop_values
from .report import StalledError, ending_report, waiting_report
from .scheduling import Scheduler
from .statistics import Spent, note_spent
from .stores import WAITING, Stores
from .waits import Wait

Event = tuple[Callable[..., None], tuple[Any, ...]]
_LOOK_AT_CLOCK = 256  # functions that run between looks at the deadline


class DeadValueError(ValueError):
    """A value that is fetched was not computed: it is in a branch that was not taken."""


@dataclass(slots=True, eq=False)
class Way:
    """A value that crosses from device to device, by way of the host.

    Attributes:
        number: of the edge.
        plan: of the frame in which it is received.
        is_lossy: whether it travels as bfloat16.
        by_host: whether the host has to have it on the way.
        deliver: lays it into an iteration.
        at_once: copies it if that takes no time worth mentioning, see `Engine.soon_to`.
    """

    number: int
    receive: Node
    plan: FramePlan
    source: Engine
    target: Engine
    is_lossy: bool
    by_host: bool
    deliver: Deliver
    at_once: Callable[[Any], Any] | None


class Step:
    """Runs of one machine, one after the other.

    Args:
        blueprint: where everything has its place.
        names: of the printed functions (see `MachinePrinter`).
        code: the compiled source; it is run with the names that this object gives it.
        bindings: further globals of the source.
        engines: by name of the device, what runs the operations that are run apart.
        seed: what is ready is run in the order that this seed gives; without one, in the order in which it got ready.
    """

    frames_type: ClassVar[type[Frames]] = Frames

    def __init__(
        self,
        blueprint: Blueprint,
        names: Mapping[Any, str],
        code: Compiled,
        bindings: Mapping[str, Any],
        engines: Mapping[str, Engine],
        seed: int | None = None,
    ) -> None:
        self.blueprint = blueprint
        self.machine = blueprint.machine
        self.engines = engines
        self.seed = seed
        self.ready: Any = collections.deque() if seed is None else []
        self.spent: Spent | None = None  # how long each function ran; None if the next run is not timed
        self.mail: dict[tuple[int, Tag], Any] = {}
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.outstanding: dict[int, tuple[Node, Iteration | Tag, float]] = {}
        self.waits: dict[int, Wait] = {}  # of what is outstanding
        self.frames = self.frames_type(self.ready.append, self.mail, self._ended, self._gathered)
        self.stores = Stores(self)
        self.scheduler = Scheduler(self)
        self.plans = blueprint.plans()
        for plan in self.plans.values():
            plan.record = engines[plan.device].record
        self.fetched: list[Any] = []
        self.current: tuple[Any, Iteration] | None = None
        self.roots: dict[str, Iteration] = {}
        self._running = 0
        self._number = 0
        namespace = code.run_in(self._namespace(bindings))
        blueprint.bind(self.plans, names, namespace)
        here = {node: number for node, number in blueprint.edges.items() if blueprint.is_here(node)}
        self._feeds = [namespace.get(names.get(("deliver", node), "")) for node in self.machine.feeds]
        self._receives = {number: (node, self.plans[blueprint.place_of(node)]) for node, number in here.items()}
        self._ways: dict[int, Way] = {}
        self._deliveries = {
            number: (namespace[names["deliver", node]], namespace[names["kill", node]]) for node, number in here.items()
        }

    def is_elsewhere(self, device: str) -> bool:
        """Test whether a device is that of another task."""
        return False

    def _namespace(self, bindings: Mapping[str, Any]) -> dict[str, Any]:
        frames = self.frames
        given: dict[str, Any] = {
            "push": self.ready.append,
            "mail": self.mail,
            "enter": frames.enter,
            "advance": frames.advance,
            "finished": frames.finished,
            "constant": frames.constant,
            "constant_dead": frames.constant_dead,
            "carry": self.carry,
            "fetch": self._fetch,
            "fetch_dead": self._fetch_dead,
            "submit": self.submit,
            "wait": self.wait,
            "to_host": self.to_host,
            "to_device": self.to_device,
            "moment": moment_of,
            "as_bfloat16": as_bfloat16,
            **self._for_stores(),
            "schedule": self.scheduler.schedule,
            "demultiplex": self.scheduler.demultiplex,
            "replicate": self.scheduler.replicate,
            "replicate_part": self.scheduler.replicate_part,
            "join": self.scheduler.join,
        }
        given |= {f"live_{place.number}": plan.live for place, plan in self.plans.items()}
        return {**bindings, **given}

    def _for_stores(self) -> dict[str, Any]:
        stores = self.stores
        return {
            "store_new": stores.new,
            "store_pass": stores.passed_on,
            "store_put": stores.put,
            "store_read": stores.read,
            "store_contains": stores.contains,
            "store_size": stores.size,
            "store_gather": stores.gather,
            "store_settle": stores.settle,
            "WAITING": WAITING,
        }

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Run one step on checked feeds, and return what is fetched, in order.

        Raises:
            Exception: what an operation raised; `current` says where.
            StalledError: nothing can go on, and not everything is done.
            DeadlineExceededError: the thread's deadline has passed, and the step has to wait for something.
            CancelledError: its session was closed.
        """
        self._begin()
        try:
            for engine in self.engines.values():
                engine.start()
            roots = self._start(values)
            for root in roots:
                self.frames.release(root)
            with listening(self._look):
                self._loop()
        except BaseException:
            self.abort()
            raise
        for engine in self.engines.values():
            engine.end()
        self.scheduler.end()
        self.stores.reset()
        found, self.fetched = self.fetched, []
        self.roots, self.current = {}, None
        return found

    def _look(self) -> None:
        """Have the step find out whether it has to end, called by another thread."""
        if self.seed is None:
            self.ready.append((_end_if_asked, None))
        self.events.put((check_cancelled, ()))

    def _begin(self) -> None:
        self.current = None
        self.ready.clear()
        self.fetched = [None] * len(self.machine.fetches)
        self.stores.reset()
        self.scheduler.reset()
        for plan in self.plans.values():
            plan.reset()
        self._random = None if self.seed is None else random.Random(self.seed)
        self.saved_bytes = 0  # by the histories of this run
        self._is_watched = self.seed is not None or self.spent is not None or seconds_left() is not None
        self.started = time.perf_counter()

    def _start(self, values: Sequence[Any]) -> list[Iteration]:
        own = [plan for place, plan in self.plans.items() if place.frame is self.machine.root]
        self._running = len(own)
        roots = {plan.device: self.frames.begin(plan) for plan in own}
        for node, deliver, value in zip(self.machine.feeds, self._feeds, values, strict=True):
            if deliver is not None:  # it arrives here
                deliver(roots[str(node.device)], value)
        self.roots = roots
        return list(roots.values())

    def _loop(self) -> None:
        engines = list(dict.fromkeys([engine.asked for engine in self.engines.values()]))
        while True:
            self._run_ready()
            if self.outstanding or any(engine.is_busy for engine in engines):
                self._take_event(engines)
                if self.ready or not self.outstanding or self._may_come(engines):
                    continue
                raise StalledError(waiting_report(self))
            if self._running:
                raise StalledError(waiting_report(self))
            return

    def _run_ready(self) -> None:
        ready = self.ready
        if self._is_watched:
            self._run_watched(ready)
            return
        take = ready.popleft
        item = None
        try:
            while ready:
                item = take()
                item[0](item[1])
        except Exception:
            self.current = item
            raise

    def _run_watched(self, ready: Any) -> None:
        """Run in a drawn order, up to a deadline, or timed."""
        item = None
        count, began = 0, time.perf_counter()
        try:
            while ready:
                item = ready.popleft() if self._random is None else _drawn(ready, self._random)
                item[0](item[1])
                if self.spent is not None:
                    began = note_spent(self.spent, item[0], began)
                count += 1
                if not count % _LOOK_AT_CLOCK:
                    if requests:
                        check_cancelled()
                    if seconds_left() == 0:
                        break
        except Exception:
            self.current = item
            raise
        if ready:
            report = ending_report(self)
            raise DeadlineExceededError(f"The timeout was over. {report}")

    def _take_event(self, engines: Sequence[Engine]) -> None:
        """Wait for what comes back: from engines, which have to be asked, or from other threads."""
        while True:
            enqueued = self._number
            due = [(when, engine) for engine in engines if (when := engine.poll()) is not None]
            if self.ready:
                return
            if self._number != enqueued:
                continue  # what one engine has finished gave another one something to do
            try:
                function, arguments = self.events.get_nowait()
            except queue.Empty:
                if due and seconds_left() != 0:
                    when, engine = min(due, key=lambda pair: pair[0])
                    engine.wait_until(when)
                    continue
                if not self._may_come(engines):
                    return
                computes = any(engine.is_busy or engine.has_threads for engine in engines)
                with contextlib.nullcontext() if computes else others_go_on():
                    function, arguments = self._wait_for_event()
            function(*arguments)
            return

    def _may_come(self, engines: Sequence[Engine]) -> bool:
        """Test whether something is under way that will be reported."""
        return bool(self.waits) or any(engine.is_busy or engine.has_threads for engine in engines)

    def _wait_for_event(self) -> Event:
        """Wait for the next event, and return it."""
        for longest in waits():
            try:
                return self.events.get(timeout=longest)
            except queue.Empty:
                if requests:
                    check_cancelled()
        error = DeadlineExceededError(f"The timeout was over. {waiting_report(self)}")
        for wait in list(self.waits.values())[:1]:
            wait.annotate(error)
        raise error

    def abort(self) -> None:
        """Drop all that is under way: iterations, values, what was sent and not received."""
        for wait in self.waits.values():
            wait.give_up()
        self.waits.clear()
        self.ready.clear()
        self.mail.clear()
        for engine in dict.fromkeys(self.engines.values()):
            engine.abort()
        self.outstanding.clear()
        self.stores.reset()
        self.scheduler.abort()
        self.fetched = []
        drop_values(self.roots.values())
        for plan in self.plans.values():
            plan.live.clear()
        self.events = queue.SimpleQueue()

    # --- what printed code calls ------------------------------------------------------------------------------------

    def submit(
        self, node: Any, kernel: Callable[..., Any], values: tuple[Any, ...], finish: Callable[..., None], it: Iteration
    ) -> None:
        """Run a node's operations apart: `finish(it, results)` follows now or later."""
        results = self.engines[node.device].at_once(node, kernel, values)
        if results is not None:
            finish(it, results)
            return
        number = self.begin(node, it)

        def done(results: Any, error: BaseException | None = None) -> None:
            if not self.end(number):
                return
            self.current = (finish, it)
            if error is not None:
                raise error
            finish(it, results)

        events = self.events  # what comes when this step has been aborted goes nowhere

        def from_thread(function: Callable[..., None], *arguments: Any) -> None:
            events.put((function, arguments))

        engine = self.engines[node.device]
        if engine.has_own_memory:
            kernel = self._telling(engine.adapted(kernel), finish, it)
        engine.submit(node, kernel, values, done, from_thread)

    def _telling(self, kernel: Callable[..., Any], finish: Callable[..., None], it: Iteration) -> Callable[..., Any]:
        """Return a kernel that runs later, when `current` is something else: where it fails, that is `current`."""

        def run(*values: Any) -> Any:
            try:
                return kernel(*values)
            except Exception:
                self.current = (finish, it)
                raise

        return run

    def wait(self, node: Any, values: tuple[Any, ...], finish: Callable[..., None], it: Iteration) -> None:
        """Run an operation that may have to wait for others: `finish(it, results)` follows now or later."""
        number = self.begin(node, it)
        events = self.events  # what comes when this step has been aborted goes nowhere
        self.waits[number] = Wait(node, values, it, finish, lambda: events.put((self._go_on, (number,))))
        self._go_on(number)

    def _go_on(self, number: int) -> None:
        """Go on with an operation for which something that it waited for has come."""
        wait = self.waits.get(number)
        if wait is None:
            return  # it was given up
        self.current = (wait.finish, wait.it)
        results = wait.go_on()
        if wait.is_over:
            del self.outstanding[number], self.waits[number]
            wait.finish(wait.it, results)

    def begin(self, node: Any, where: Iteration | Tag) -> int:
        """Note that something is under way for a node; the number by which it ends."""
        number = self._number = self._number + 1
        self.outstanding[number] = (node, where, time.perf_counter())
        return number

    def touch(self) -> None:
        """Note that what one engine has finished gives another one something to do."""
        self._number += 1

    def end(self, number: int) -> bool:
        """End something that was under way, and return whether the step still runs."""
        return self.outstanding.pop(number, None) is not None

    def to_host(self, node: Any, value: Any, finish: Callable[..., None], it: Iteration) -> None:
        """Copy a value out of a device's memory; `finish(it, value)` follows."""
        number = self.begin(node, it)

        def done(copied: Any) -> None:
            if self.end(number):
                finish(it, copied)

        self.engines[node.device].to_host(value, done)

    def to_device(self, node: Any, value: Any, after: Any, finish: Callable[..., None], it: Iteration) -> None:
        """Copy a value into a device's memory, once a moment has come; `finish(it, value)` follows."""
        number = self.begin(node, it)

        def done(copied: Any) -> None:
            if self.end(number):
                finish(it, copied)

        self.engines[node.device].to_device_after(value, after, done)

    def carry(self, number: int, tag: Tag, value: Any) -> None:
        """Bring a value to another device by way of the host."""
        way = self._ways.get(number) or self._way(number)
        copied = None if way.at_once is None else way.at_once(value)
        if copied is None:
            self._carry_later(way, tag, value)
        else:
            self._deliver(way, tag, copied)

    def _carry_later(self, way: Way, tag: Tag, value: Any) -> None:
        number = self.begin(way.receive, tag)

        def arrived(given: Any) -> None:
            if self.end(number):
                self._deliver(way, tag, given)

        def on_host(given: Any) -> None:
            self.touch()
            if way.is_lossy:
                given = as_bfloat16(given)
            if way.receive.stays:
                arrived(given)
            else:
                way.target.to_device(given, arrived)

        if way.by_host or not way.source.pass_on(value, way.target, arrived):
            way.source.send(value, on_host)

    def _way(self, number: int) -> Way:
        """Return the way of a value that crosses, for `carry`."""
        receive, plan = self._receives[number]
        send = receive.peer
        assert send is not None, f"{receive!r} has no Send"
        source, target = self.engines[str(send.device)], self.engines[str(receive.device)]
        by_host = send.lossy or receive.stays
        at_once = None if by_host else source.soon_to(target)
        found = Way(number, receive, plan, source, target, send.lossy, by_host, self._deliveries[number][0], at_once)
        self._ways[number] = found
        return found

    def _deliver(self, way: Way, tag: Tag, value: Any) -> None:
        iteration = way.plan.live.get(tag)
        if iteration is None:
            self.mail[way.number, tag] = (value, False)
        else:
            way.deliver(iteration, value)

    def _fetch(self, number: int, value: Any) -> None:
        engine = self.engines[str(self.machine.fetches[number].device)]
        key = self.begin(self.machine.fetches[number], ())

        def done(given: Any) -> None:
            self.end(key)
            self.fetched[number] = given

        engine.to_host(value, done)

    def _fetch_dead(self, number: int) -> None:
        node = self.machine.fetches[number]
        raise DeadValueError(
            f"{node.name!r} was fetched, but it is dead: it is in a branch that was not taken. Fetch what a Merge "
            "makes of it and of the other branch."
        )

    def _ended(self, plan: FramePlan) -> None:
        self._running -= 1

    def _gathered(self, plan: FramePlan, number: int, recorded: Any) -> Any:
        engine = self.engines[plan.device]
        self.saved_bytes += engine.size_of_record(recorded, plan.record_bytes.get(number, 0))
        return engine.gathered(recorded)


def _end_if_asked(_: Any) -> None:
    check_cancelled()


def _drawn(ready: list[Any], chosen: random.Random) -> Any:
    """Take one of the items by chance."""
    position = chosen.randrange(len(ready))
    ready[position], ready[-1] = ready[-1], ready[position]
    return ready.pop()


def as_bfloat16(value: Any) -> Any:
    """Truncate 32-bit floats to 16 bits, as they travel, and fill them up with zeros again.

    Source: Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems" (2015),
    section 5.5 (lossy compression).
    """
    given = np.asarray(value, np.float32)
    bits = given.view(np.uint32) & np.uint32(0xFFFF0000)
    kept = np.where(np.isnan(given), bits | np.uint32(0x00400000), bits)  # the bits that make it a NaN may be below
    return kept.view(np.float32)[()]


__all__ = ["DeadValueError", "Step", "Way", "as_bfloat16"]
