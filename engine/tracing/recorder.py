"""`Recorder`: takes down what happened and when. Nothing is formatted until somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

End = tuple[str, str, float]  # of an arrow: a device, a stream of it, a time
Details = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None


class Lane(NamedTuple):
    """A row of the timeline: a stream of a device ("compute", "h2d", "scheduler")."""

    device: str
    stream: str


class Slice(NamedTuple):
    """Something that lasted: a kernel, or a span around others."""

    lane: Lane
    name: str
    start: float
    end: float
    details: Details
    is_kernel: bool


class Flow(NamedTuple):
    """An arrow from one moment of a lane to one of another."""

    key: Any
    source: Lane
    sent: float
    target: Lane
    received: float


class Counter(NamedTuple):
    """The value of something, from a moment on."""

    device: str
    name: str
    time: float
    value: float


class Instant(NamedTuple):
    """Something that did not last."""

    lane: Lane
    name: str
    time: float
    details: Details


class Clock(NamedTuple):
    """The clock of another process, by which events of a device were recorded, and how well it is known.

    Attributes:
        device: whose events these are.
        time: of the reading, by the recorder's own clock.
        ahead: seconds by which the other clock was ahead.
        error: the bound, in seconds, of how far events are from their true time; infinite if that is not known.
    """

    device: str
    time: float
    ahead: float
    error: float


Event = Slice | Flow | Counter | Instant | Clock


class Recorder:
    """A list of events, to which any thread may append.

    Times are seconds of one clock, which is the caller's: `time.perf_counter`, or the virtual one of a simulation.
    `details` are a mapping, or a function that gives one, which is called when the events are written: so what has to
    be formatted costs nothing while steps run. It should hold shapes and names, and no arrays, which it would keep
    alive. (What records very often may append a `Slice` to `events` itself.)

    >>> recorder = Recorder()
    >>> recorder.kernel("cpu:0", "compute", "matmul", 1.0, 1.5, {"line": "model.py:3"})
    >>> recorder.events[0].lane
    Lane(device='cpu:0', stream='compute')

    Attributes:
        events: what was recorded, in the order of arrival: slices when they end.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def kernel(self, device: str, stream: str, name: str, start: float, end: float, details: Details = None) -> None:
        """Record work on a device: an operation or transfer. `name` is its kind; details may name the "operation"."""
        self.events.append(Slice(Lane(device, stream), name, start, end, details, True))

    def kernel_on(self, lane: Lane, name: str, start: float, end: float, details: Details = None) -> None:
        """Record work on a lane, as `kernel` does: for those that record often."""
        self.events.append(Slice(lane, name, start, end, details, True))

    def span(self, lane: tuple[str, str], name: str, start: float, end: float, details: Details = None) -> None:
        """Record a span that is no work of its own: an iteration, a step, a wait. `lane` is a device and a stream.

        Spans of one lane may contain each other, and kernels. Those that overlap otherwise are written side by side.
        """
        self.events.append(Slice(Lane(*lane), name, start, end, details, False))

    def flow(self, key: Any, source: End, target: End) -> None:
        """Record an arrow, from (device, stream, time) to (device, stream, time), such as a Send and its Recv.

        It is drawn between the innermost slices at these times, which are best given as the starts of two slices; where
        there is no slice, or it would end before it starts, it is left out. The slice of a Recv should begin when its
        value arrives (how long it was waited for is a span of another lane), for Perfetto draws an arrow from the
        slice that began first.
        """
        self.events.append(Flow(key, Lane(*source[:2]), source[2], Lane(*target[:2]), target[2]))

    def counter(self, device: str, name: str, time: float, value: float) -> None:
        """Record the value of `name` (bytes alive, say) on a device from now on."""
        self.events.append(Counter(device, name, time, value))

    def clock(self, device: str, time: float, ahead: float, error: float) -> None:
        """Note how well the clock of the process is known that has recorded the events of a device."""
        self.events.append(Clock(device, time, ahead, error))

    def instant(self, lane: tuple[str, str], name: str, time: float, details: Details = None) -> None:
        """Record something that happened at one moment."""
        self.events.append(Instant(Lane(*lane), name, time, details))
