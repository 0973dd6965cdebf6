"""Order on a device: streams run what is enqueued one after the other, and events order streams among each other.

What is enqueued carries a vector clock: for each stream, how much of it is certain to have ended before. So an access
is known to be ordered, or not, when it is enqueued, whatever order the streams happen to run in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .buffer import Buffer

STREAMS = ("compute", "host-to-device", "device-to-host")
COMPUTE, TO_DEVICE, TO_HOST = range(3)


class UnorderedAccessError(RuntimeError):
    """Something reads or writes a buffer while nothing orders it after what writes or reads that buffer.

    On a device it would race: whether it sees the value depends on timing. Let its stream wait for an event that was
    recorded behind the other one.
    """


class Pending:
    """A kernel or a copy that is enqueued.

    Attributes:
        label, stream: what it is, and where.
        function: gives the outputs from the values of `inputs`.
        inputs: buffers and host scalars; held until it has ended.
        outputs: the buffers that it fills; none for a copy to the host.
        updates: buffers that it overwrites in place.
        seconds: how long it takes; None for a copy, which takes as long as its bytes do.
        fresh: for each output, whether it is new memory.
        done: called with the result of a copy once it has ended.
        enqueued: when.
        waits: what has to end first, on other streams.
        clock: for each stream, how many of what was enqueued there has ended when this starts; itself included.
        results: what the function gave; kept from when it was computed until it has ended.
        end: when it ends; None as long as that is not known.
        ended: whether the host has seen its end.
    """

    __slots__ = (
        "clock",
        "done",
        "end",
        "ended",
        "enqueued",
        "fresh",
        "function",
        "inputs",
        "label",
        "outputs",
        "results",
        "seconds",
        "stream",
        "updates",
        "waits",
    )

    def __init__(
        self,
        stream: Stream,
        label: str,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        seconds: float | None,
        enqueued: float,
    ) -> None:
        self.stream = stream
        self.label = label
        self.function: Callable[..., Any] | None = function
        self.inputs: Sequence[Any] = inputs
        self.outputs: tuple[Buffer, ...] = ()
        self.updates: Sequence[Buffer] = ()
        self.seconds = seconds
        self.fresh: Sequence[bool] | None = None
        self.done: Callable[[Any], None] | None = None
        self.enqueued = enqueued
        self.waits: list[Pending] = []
        self.clock: list[int] = []
        self.results: tuple[Any, ...] | None = None
        self.end: float | None = None
        self.ended = False

    def forget(self) -> None:
        """Let go of what it held, now that it has ended or is dropped."""
        self.ended = True
        self.function = self.done = self.results = None
        self.inputs = self.outputs = self.updates = ()
        self.waits = []

    def __str__(self) -> str:
        return f"{self.label!r} on the {self.stream.name} stream of {self.stream.device}"


class Event:
    """A point in a stream: reached when all that was enqueued there before has ended.

    Attributes:
        device: the name of the device whose stream it is.
        after: what has to end.
    """

    __slots__ = ("after", "device")

    def __init__(self, device: str, after: tuple[Pending, ...]) -> None:
        self.device = device
        self.after = after

    @property
    def is_done(self) -> bool:
        """Test whether it is reached, as far as the host has seen."""
        return all(pending.ended for pending in self.after)


class Stream:
    """Runs what is enqueued in order, one after the other.

    Attributes:
        name, number: which of the streams of its device it is.
        device: the name of that.
        queue: what was enqueued and has not started.
        running: what has started and not ended.
        free_at: when the last one ended.
        busy_seconds: how long it has run, in all.
    """

    def __init__(self, device: str, number: int) -> None:
        self.device = device
        self.name = STREAMS[number]
        self.number = number
        self.queue: deque[Pending] = deque()
        self.running: Pending | None = None
        self.free_at = 0.0
        self.busy_seconds = 0.0
        self._clock = [0] * len(STREAMS)
        self._last: Pending | None = None
        self._waits: list[Pending] = []

    @property
    def is_idle(self) -> bool:
        """Test whether all that was enqueued has ended."""
        return self.running is None and not self.queue

    def record(self) -> Event:
        """Return an event behind all that has been enqueued here."""
        last = () if self._last is None or self._last.ended else (self._last,)
        return Event(self.device, (*last, *self._waits))

    def wait(self, event: Event) -> None:
        """Start what is enqueued here from now on after `event`.

        Raises:
            ValueError: it is an event of another device.
        """
        if event.device != self.device:
            raise ValueError(
                f"A stream of {self.device} waits for an event of {event.device}; expected one of its own device. "
                "Hand values over with to_host and to_device."
            )
        self._waits.extend(event.after)

    def append(self, pending: Pending, accesses: Iterable[tuple[Buffer, bool]]) -> None:
        """Enqueue, after having checked that what it accesses is ordered.

        Args:
            pending: what to enqueue.
            accesses: the buffers that it accesses, each with whether it writes it.

        Raises:
            UnorderedAccessError: something that is enqueued writes (or, for those written, reads) one of them, and
                nothing orders the two. Nothing was enqueued then.
        """
        waits = [*self._waits, *pending.waits]
        clock = list(self._clock)
        for other in waits:
            clock = list(map(max, clock, other.clock))
        clock[self.number] += 1
        for buffer, is_written in accesses:
            _check_access(pending, clock, buffer, is_written)
        pending.waits = [other for other in waits if not other.ended and other.stream is not self]
        pending.clock = self._clock = clock
        self._waits = []
        self._last = pending
        self.queue.append(pending)

    def clear(self) -> list[Pending]:
        """Drop all that has not ended; return what was dropped."""
        dropped = [*([self.running] if self.running else ()), *self.queue]
        self.queue.clear()
        self.running = self._last = None
        self._waits = []
        return dropped


def _check_access(pending: Pending, clock: Sequence[int], buffer: Buffer, is_written: bool) -> None:
    writer = buffer.writer
    if writer is not None and not _is_before(writer, clock):
        verb = "writes" if is_written else "reads"
        raise UnorderedAccessError(
            f"{pending} {verb} {buffer.label!r}, which {writer} writes, and nothing orders the two. "
            f"{_remedy(pending, writer)}"
        )
    if not is_written or buffer.readers is None:
        return
    for reader in buffer.readers.values():
        if not reader.ended and not _is_before(reader, clock):
            raise UnorderedAccessError(
                f"{pending} writes {buffer.label!r}, which {reader} reads, and nothing orders the two. "
                f"{_remedy(pending, reader)}"
            )


def _is_before(other: Pending, clock: Sequence[int]) -> bool:
    number = other.stream.number
    return clock[number] >= other.clock[number]


def _remedy(pending: Pending, other: Pending) -> str:
    return (
        f"Record an event on the {other.stream.name} stream behind {other.label!r}, and let the {pending.stream.name} "
        f"stream wait for it before {pending.label!r} is enqueued."
    )
