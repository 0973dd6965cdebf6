"""The parts of a task in programs and steps, as its `Worker` keeps them, and the values that clients send straight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from ...engine.common.deadlines import deadline
from ...engine.machine.part import PartStep
from ...engine.machine.part_program import PartProgram
from ...engine.queues.errors import DeadlineExceededError
from ...engine.queues.stops import is_cancelled
from ..transport.connections import Connection, Identity
from ..transport.failures import describe_error, task_failed
from ..transport.values import Kept, Received, decode_token, decode_value, encode_value, is_large
from ..transport.wire import DAMAGE, Frame, FrameError, Kind
from .graphs import StateUse
from .peers import Address, Link, Peers

_MOST_ENDED = 1000  # parts that are remembered: of steps whose values may be under way
StepKey = tuple[int, int]  # the incarnation of the master, and the number that it gave the step


class Program:
    """A program of a master, as this task runs it.

    Args:
        program: it.
        number: that the master gave it.
        use: of the state of this task.
    """

    def __init__(self, program: PartProgram, number: int, use: StateUse) -> None:
        self.program = program
        self.number = number
        self.use = use
        self.targets: dict[int, Address] = {}  # by edge, the task that takes it
        self.ways: dict[int, Connection] = {}  # by edge, the way there
        self.peers: set[Identity] = set()  # those who take something from this task, or send it something

    @property
    def is_connected(self) -> bool:
        """Test whether all ways are open: one may never have been, or have been cut since a step took it."""
        return len(self.ways) == len(self.targets) and not any(way.is_closed for way in self.ways.values())

    def empty(self, edge: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array in which the value of an edge may be computed; for any thread."""
        return self.ways[edge].empty(shape, dtype)

    def shared(self, edge: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array for the value of a variable, which is sent by an edge and others; for any thread."""
        return self.ways[edge].empty(shape, dtype, is_for_all=True)

    def connect(self, peers: Peers, done: Callable[[Exception | None], None]) -> None:
        """Have all ways open; `done` is called when they are, or takes why one is not."""
        self.program.keep_memory()
        wanted = dict.fromkeys(self.targets.values())
        missing = set(wanted)
        is_over = False

        def end(error: Exception | None) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                done(error)

        def opened(address: Address, way: Any) -> None:
            if isinstance(way, Exception):
                end(way)
                return
            missing.discard(address)
            self.ways |= {edge: way for edge, target in self.targets.items() if target == address}
            if not missing:
                end(None)

        if not wanted:
            end(None)
        for address in wanted:
            peers.reach(address, opened)

    def give_up(self) -> None:
        """Notify other tasks of the values of variables that they need not keep any more."""
        for task, variables in self.program.kept_states.given_up().items():
            edge = next(edge for edge, address in self.targets.items() if address.name == task)
            self.ways[edge].send(Kind.FORGET, {"programs": [], "kept": [[self.number, variables]]})


class EndedParts:
    """Parts of steps that have ended here and have sent values: these may be lost while the steps wait for them."""

    def __init__(self) -> None:
        self._parts: deque[tuple[Link, int, dict[int, Address]]] = deque(maxlen=_MOST_ENDED)

    def add(self, running: Running) -> None:
        """Note a part that has ended."""
        if running.program.targets:
            self._parts.append((running.link, running.key[1], running.program.targets))

    def lost_peer(self, peer: Identity, reason: str) -> None:
        """Report the loss of a task to the masters of steps that have sent it values. To some these are over."""
        for link, number, targets in self._parts:
            if any(address.identity == peer for address in targets.values()):
                error = describe_error(task_failed(peer.name, reason, number))
                link.send(Kind.FAILED, {"step": number, "error": error})


class StraightPart:
    """The feeds of one step that a client sends to tasks itself, and its way to this task, by which fetches go back.

    Args:
        described: what the master says of it; None if there is nothing of that kind.
        program: of the step, on this task.

    Attributes:
        run: the client's number of the step.
        way: the incarnation with which the client has connected to this task; 0 if it has not.
        skipped: the edges that are not sent here, since their values go straight to where they are taken.
        due: of the feeds that are taken here and have not come, the edges.
    """

    def __init__(self, described: Any, program: PartProgram) -> None:
        described = described or {}
        self.run = int(described.get("run", 0))
        self.way = int(described.get("way") or 0)
        self.skipped: set[int] = set()
        self.due: dict[int, tuple[int, ...]] = {}
        for position in described.get("feeds", ()):
            task, edges = program.straight_feeds[int(position)]
            if task == program.task:
                self.due[int(position)] = edges
            else:
                self.skipped.update(edges)


class Early:
    """Values that other tasks have sent of a step that has not begun here.

    They are read when they come: what a step says of values that are kept holds in the order in which it was sent.
    """

    def __init__(self, kept: Kept) -> None:
        self.received = Received(kept)
        self.values: list[tuple[int, tuple[int, ...], Any, bool]] = []

    def __len__(self) -> int:
        """Return how many values have come."""
        return len(self.values)

    def take(self, frame: Frame) -> None:
        """Take a frame.

        Raises:
            FrameError: it is damaged.
        """
        self.values.append(decode_token(frame.head, frame.arrays, self.received))


def named_cause(error: Exception, task: str, step: int) -> Exception:
    """Name the task in the error of a loop that has ended since its time was over, or since the task ends."""
    if isinstance(error, DeadlineExceededError):
        named = DeadlineExceededError(f"{task}: {error}")
        for note in getattr(error, "__notes__", ()):
            named.add_note(note)
        return named
    return task_failed(task, "it ends", step) if is_cancelled() else error


class Running:
    """A step under way.

    Args:
        until: when its time is over, by the clock of the loop; None if it may take any time.
    """

    def __init__(
        self,
        key: StepKey,
        link: Link,
        program: Program,
        part: PartProgram,
        step: PartStep,
        straight: StraightPart,
        received: Received,
        until: float | None = None,
    ) -> None:
        self.key = key
        self.link = link
        self.program = program
        self.part = part  # the program itself, or as it is printed for traces
        self.step = step
        self.straight = straight
        self.received = received
        self.turn: Callable[[int, Callable[[], float]], None] = step.turn
        if part.has_recursion:
            self.turn = self._turn_with_room
        if until is not None:
            self.turn = partial(self._turn_until, self.turn, until)
        self.held_by: set[Connection] = set()  # by which so much waits to be sent that the step does not go on

    def _turn_with_room(self, most: int, now: Callable[[], float]) -> None:
        with self.part.room():
            self.step.turn(most, now)

    @staticmethod
    def _turn_until(turn: Callable[..., None], until: float, most: int, now: Callable[[], float]) -> None:
        """Turn a step with a deadline: what the master sends then is not read before a loop in machine code ends."""
        with deadline(max(until - now(), 0.0)):
            turn(most, now)


class ClientWays:
    """Connections by which clients feed the steps of this task, and take what they fetch.

    One carries one step at a time: what is fed with a later one takes the place of what an earlier one has left.
    """

    def __init__(self) -> None:
        self._open: dict[int, Connection] = {}  # by the incarnation of who has connected
        self._fed: dict[int, tuple[int, dict[int, Any]]] = {}  # of a step that has not begun here

    def __len__(self) -> int:
        """Return the number of steps of which something was fed before they began."""
        return len(self._fed)

    def opened(self, connection: Connection) -> None:
        """Handle a client that has connected."""
        self._open[connection.other.incarnation] = connection

    def lost(self, connection: Connection) -> bool:
        """Handle the end of a client's connection; return whether steps may have waited for it."""
        number = connection.other.incarnation
        if self._open.get(number) is not connection:
            return False
        del self._open[number]
        self._fed.pop(number, None)
        return True

    def is_open(self, number: int) -> bool:
        """Test whether a client is connected."""
        return number in self._open

    def read(self, frame: Frame) -> tuple[int, dict[int, Any]]:
        """Read a frame of feeds: the client's number of the step, and the values by position.

        Raises:
            FrameError: it is damaged.
        """
        document = frame.document()
        try:
            values = {int(position): decode_value(each, frame.arrays) for position, each in document["values"]}
            return int(document["run"]), values
        except FrameError:
            raise
        except DAMAGE as error:
            raise FrameError(f"a frame of feeds is damaged: {type(error).__name__}: {error}") from error

    def keep(self, number: int, run: int, values: dict[int, Any]) -> None:
        """Keep what was fed until its step begins."""
        self._fed[number] = (run, values)

    def fed(self, straight: StraightPart) -> dict[int, Any]:
        """Return what was fed of a step before that has begun, once."""
        known = self._fed.get(straight.way)
        if known is None or known[0] != straight.run:
            return {}
        del self._fed[straight.way]
        return known[1]

    def send(self, straight: StraightPart, found: dict[int, Any]) -> list[int]:
        """Send large values that were fetched to the client itself, if it has connected.

        Returns:
            Their positions; the others go by the master.
        """
        connection = self._open.get(straight.way)
        large = [position for position, value in found.items() if is_large(value)]
        if connection is None or not large:
            return []
        arrays: list[Any] = []
        values = [[position, encode_value(found[position], arrays)] for position in large]
        connection.send(Kind.FETCHED, {"run": straight.run, "values": values}, arrays)
        return large


__all__ = ["ClientWays", "Program", "Running", "StepKey", "StraightPart", "named_cause"]
