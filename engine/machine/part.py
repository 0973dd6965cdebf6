"""A step of which other processes run a part: the partitions of one task, stepped by a loop that serves others, too.

What is sent to another task's device is handed to a function, and what comes from there is received; otherwise a
partition runs as it does beside the others in one process.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..graph.state.variable import Variable
from ..graph.state.writing_rows import take_over
from ..lower.nodes import Node
from ..queues.stops import Stop, ending_by
from ..tracing.recorder import End
from ..tracing.recorder import Event as Recorded
from .frames import Deliver, Iteration, Tag
from .step import Event, Step

if TYPE_CHECKING:
    from .part_program import PartProgram

Send = Callable[[int, Tag, Any, bool], None]  # of the number of an edge, a tag, a value, and whether it is dead
Empty = Callable[[int, tuple[int, ...], Any], Any]  # of the number of an edge, a shape and a dtype: an array to fill
Keep = Callable[[Any], Any]  # of an array that was received: one that a variable may have


def new_array(number: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array for the value of an edge, in memory of this process."""
    return np.empty(shape, dtype)


class Crossing(NamedTuple):
    """One end of the arrow of a value between tasks.

    Attributes:
        key: the value's name, the same in both tasks.
        is_sent: whether this is where it was sent; else where it has arrived.
        end: the row and the time.
    """

    key: str
    is_sent: bool
    end: End


class _Events(queue.SimpleQueue[Event]):
    """Events of a step; whoever puts one in wakes the loop."""

    wake: Callable[[], None]

    def put(self, item: Event, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        self.wake()


_TURN = 5e-4  # seconds of a turn behind which what it has sent is to leave


class PartStep(Step):
    """Runs of the partitions of one task, one after the other; each is begun, turned until it is over, and ended.

    Attributes:
        is_held: set by whoever sends: the step is not to go on until what it has sent has gone.
        unsent: the numbers of values that are not sent in this run.
        program: that it runs.
        recorded: of a traced run the events, by the program's clock, and the ends of arrows whose other ends are in
            other tasks; None of others.
        nodes: by the name of a printed function, the node that it is for.
    """

    is_held = False
    _has_sent = False  # in this turn
    unsent: Collection[int] = ()
    program: PartProgram
    recorded: tuple[Sequence[Recorded], Sequence[Crossing]] | None = None
    nodes: Mapping[str, Node] = MappingProxyType({})

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._entrances: dict[int, tuple[Deliver, Deliver, dict[Tag, Iteration]]] = {}
        self.stop = Stop()
        super().__init__(*arguments, **options)

    def is_elsewhere(self, device: str) -> bool:
        return device in self.program.elsewhere

    def _namespace(self, bindings: Mapping[str, Any]) -> dict[str, Any]:
        given = {"post": self._post, "post_dead": self._post_dead, "empty": self._new_array, "shared": self._new_shared}
        return {**super()._namespace(bindings), **given, "take_over": self._take_over}

    def _new_array(self, number: int, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._empty(number, shape, dtype)

    def _new_shared(self, number: int, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._shared(number, shape, dtype)

    def _take_over(self, variable: Variable, array: Any) -> Any:
        return take_over(variable, self._keep(array))

    def _post(self, number: int, tag: Tag, value: Any) -> None:
        if number not in self.unsent:
            self._has_sent = True
            self._send(number, tag, value, False)

    def _post_dead(self, number: int, tag: Tag) -> None:
        self._has_sent = True
        self._send(number, tag, None, True)

    def begin_run(
        self,
        values: Sequence[Any],
        send: Send,
        wake: Callable[[], None],
        unsent: Collection[int] = (),
        empty: Empty = new_array,
        keep: Keep = np.copy,
        shared: Empty = new_array,
    ) -> None:
        """Begin a run.

        Args:
            values: what is fed, in order; what arrives at another task is not looked at.
            send: takes what goes to other tasks.
            wake: called by other threads when they have something to report.
            unsent: the numbers of values that get to the other task in another way.
            empty: gives, in any thread, the array that a large value is computed in before it is sent.
            keep: gives, in any thread, the array that becomes the value of a variable: the large one that was received
                or computed for that alone, or a copy.
            shared: gives, in any thread, the array that a large value of a variable is computed in which tasks read.
        """
        self._send, self._wake, self.is_held, self.unsent = send, wake, False, unsent
        self._empty, self._keep, self._shared = empty, keep, shared
        self._start_roots(values)

    def _start_roots(self, values: Sequence[Any]) -> None:
        self.events = self._new_events()
        self._begin()
        for engine in self.engines.values():
            engine.start()
        for root in self._start(values):
            self.frames.release(root)

    def _new_events(self) -> _Events:
        events = _Events()
        events.wake = self._wake
        return events

    def hold(self, others: Collection[str]) -> None:
        """Have the step not go on while too much waits to be sent to these tasks; it goes on if there are none."""
        self.is_held = bool(others)

    @property
    def has_work(self) -> bool:
        """True if a turn would do something."""
        return bool(self.ready) or not self.events.empty()

    @property
    def is_over(self) -> bool:
        """True if everything here has run."""
        return not (self.ready or self.outstanding or self._running)

    def turn(self, most: int, now: Callable[[], float] = time.perf_counter) -> None:
        """Run what is ready, at most so many nodes.

        Messages leave behind the turn, all at once. A turn that has sent something and takes long ends early, for
        another task may wait: kernels take milliseconds where messages take microseconds.

        Args:
            most: how many nodes.
            now: gives the time in seconds.

        Raises:
            Exception: what an operation raised; `current` says where.
        """
        ready = self.ready
        take, self._has_sent, until = ready.popleft, False, now() + _TURN
        for _ in range(most if ready and not self.is_held else 0):
            function, iteration = self.current = take()  # noted before it runs: others ask what a long step is in
            function(iteration)
            if not ready or (self._has_sent and (self.is_held or now() > until)):
                break
        while not ready and not self.is_held and not self.events.empty():
            function, arguments = self.events.get_nowait()  # nobody else takes any
            function(*arguments)

    def submit(
        self, node: Any, kernel: Callable[..., Any], values: tuple[Any, ...], finish: Callable[..., None], it: Iteration
    ) -> None:
        stop, memory = self.stop, self.program.memory

        def run(*values: Any) -> Any:
            with ending_by(stop), memory():  # a loop that is compiled to machine code ends with the step
                return kernel(*values)

        super().submit(node, run, values, finish, it)

    def under_way(self) -> list[tuple[str, float]]:
        """Return the operations that run apart from the loop now, and for how many seconds; any thread may call it."""
        now = time.perf_counter()
        with contextlib.suppress(RuntimeError):  # the loop has begun or ended one meanwhile
            apart = [known for number, known in self.outstanding.items() if number not in self.waits]
            return [(f"operation {node.name!r}", now - since) for node, _, since in apart]
        return []

    def node_of(self, item: tuple[Any, Any]) -> Node | None:
        """Return the node of something that was ready, if it is one; for any thread."""
        return self.nodes.get(getattr(item[0], "__name__", ""))

    def named(self, item: tuple[Any, Any]) -> str:
        """Return the operation of something that was ready; for any thread."""
        node = self.node_of(item)
        return "the step's own work" if node is None else f"operation {node.name!r}"

    def _entrance(self, number: int) -> tuple[Deliver, Deliver, dict[Tag, Iteration]]:
        """Return by what an edge leads on, alive and dead, and the iterations to which it leads."""
        found = self._entrances[number] = (*self._deliveries[number], self._receives[number][1].live)
        return found

    def receive(self, number: int, tag: Tag, value: Any, is_dead: bool) -> None:
        """Take what another task has sent.

        Raises:
            KeyError: nothing with that number is received here.
        """
        deliver, kill, live = self._entrances.get(number) or self._entrance(number)
        iteration = live.get(tag)
        if iteration is None:
            self.mail[number, tag] = (value, is_dead)
        elif is_dead:
            kill(iteration)
        else:
            deliver(iteration, value)

    def end_run(self) -> dict[int, Any]:
        """End a run that is over; return what was fetched here, by position."""
        for engine in self.engines.values():
            engine.end()
        self.scheduler.end()
        self.stores.reset()
        found, self.fetched = self.fetched, []
        self.roots, self.current = {}, None
        fetches = self.machine.fetches
        return {number: found[number] for number, node in enumerate(fetches) if self.blueprint.is_here(node)}

    def abort(self, error: BaseException | None = None) -> None:
        """Drop all that is under way.

        Args:
            error: what has failed here; None if the step has failed elsewhere.
        """
        super().abort()
        self.stop.ask()
        self.stop = Stop()
        self.events = self._new_events()
