"""`TimedDevice`: a simulated device without a memory limit, which computes the end of everything when it is enqueued.

Streams run in order, and kernels take as long as they say. So where memory is never waited for, the start and the end
of a kernel follow when it is launched: it starts when its stream is free, what it reads is there, and it was launched.
Its value is computed at once, and its buffer says from when on it is there. Times are those of `SimDevice`; what the
host does for a kernel is a fraction of what it does there, as nothing is checked. Copies are handed on when they have
ended, but for those to another device that end soon: what takes them is enqueued behind them (`pass_soon`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from time import perf_counter
from typing import Any

import numpy as np

from ..place.devices import Device
from .buffer import Buffer
from .clock import Clock, RealClock
from .memory import Memory, copy_value, is_simple, value_bytes
from .order import COMPUTE, STREAMS, TO_DEVICE, TO_HOST
from .results import as_results
from .stream import DeviceStatistics, MemoryListener, StreamDevice

Done = Callable[[Any], None]
_SOON = 10e-6  # seconds; about what it takes the host to come back for a copy that has ended


class Agenda:
    """The ends of copies that are under way on several devices, which share a clock.

    Attributes:
        due: (time, number, function that is called, its value), a heap.
        busy_until: when the last kernel ends.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.due: list[tuple[float, int, Done, Any]] = []
        self.busy_until = 0.0
        self._number = 0

    def add(self, time: float, done: Done, value: Any) -> None:
        """Call `done` with `value` at that time."""
        self._number += 1
        heappush(self.due, (time, self._number, done, value))

    def poll(self) -> float | None:
        """Report what is due; return the time at which there will be more."""
        due, now = self.due, self.clock.now()
        while due and due[0][0] <= now:
            _, _, done, value = heappop(due)
            done(value)
        if due:
            return due[0][0]
        return self.busy_until if self.busy_until > now else None

    @property
    def is_idle(self) -> bool:
        """Test whether all has ended that was enqueued on any of the devices."""
        return not self.due and self.busy_until <= self.clock.now()

    def clear(self) -> None:
        """Forget all."""
        self.due.clear()
        self.busy_until = 0.0


class Tally(Memory):
    """Counts bytes for each buffer, whatever they share: cheap, and exact as long as no buffer is a view of another."""

    def hold(self, value: Any, label: str, fresh: bool = False) -> tuple[Any, ...]:
        nbytes = value.nbytes if type(value) is np.ndarray else value_bytes(value)
        in_use: int = self.in_use + nbytes
        self.in_use = in_use
        if in_use > self.peak:
            self.peak = in_use
        return (nbytes,)

    def release(self, allocations: tuple[Any, ...]) -> None:
        self.in_use -= allocations[0]


class TimedDevice(StreamDevice):
    """A simulated device with three in-order streams, and as much memory as is asked for.

    Args:
        device: its name, and the latency and bandwidth of its transfers.
        agenda: that of all devices of a step.

    >>> from anabranch.engine.devices import VirtualClock
    >>> from anabranch.engine.place import make_devices
    >>> device = TimedDevice(make_devices(sim=1)[-1], Agenda(VirtualClock()))
    >>> x = device.upload([1.0, 2.0])
    >>> total, = device.launch(sum, [x], 1, seconds=0.5, label="sum")
    >>> total.is_ready
    False
    >>> device.to_host(total, print)
    >>> device.synchronize()
    3.0
    """

    def __init__(self, device: Device, agenda: Agenda) -> None:
        self.device = device
        self.agenda = agenda
        self.clock = agenda.clock
        self.memory = Tally(device.name)
        self._now = perf_counter if type(agenda.clock) is RealClock else agenda.clock.now
        self._latency, self._bandwidth = device.latency, device.bandwidth
        self._free_at = [0.0] * len(STREAMS)
        self._busy = [0.0] * len(STREAMS)
        self._kernels = 0
        self._bytes_to_host = 0
        self._bytes_to_device = 0
        self._left: tuple[Buffer, Any, float] | None = None  # what was sent last, its copy, and when that has ended
        self._listeners: list[MemoryListener] = []

    def launch(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        outputs: int,
        seconds: float,
        label: str,
        fresh: Sequence[bool] | None = None,
        updates: Sequence[Buffer] = (),
    ) -> tuple[Buffer, ...]:
        start = self._now()
        free_at = self._free_at
        if free_at[COMPUTE] > start:
            start = free_at[COMPUTE]
        values: list[Any] = []
        for value in inputs:
            if type(value) is Buffer:
                if value.device is not self:
                    self._refuse(value, label)
                if value.ready_at > start:
                    start = value.ready_at
                value = value.contents
            values.append(value)
        try:
            result = function(*values)
        except Exception as error:
            error.add_note(f"In kernel {label!r} on {self.device.name}.")
            raise
        end = free_at[COMPUTE] = start + seconds
        self._busy[COMPUTE] += seconds
        self._kernels += 1
        if end > self.agenda.busy_until:
            self.agenda.busy_until = end
        for buffer in updates:
            buffer.ready_at = end
        if self.observer is not None:
            self._notify(COMPUTE, label, end - seconds, end)
        if outputs == 1 and is_simple(result):
            buffer = Buffer(self, label)
            buffer.contents = result
            buffer.ready_at = end
            buffer.allocations = self.memory.hold(result, label)
            return (buffer,)
        results = as_results(result, outputs, label)
        return tuple([self._buffer(each, label, end) for each in results])

    def _buffer(self, value: Any, label: str, ready_at: float) -> Buffer:
        buffer = Buffer(self, label)
        buffer.contents = value
        buffer.ready_at = ready_at
        buffer.allocations = self.memory.hold(value, label)
        return buffer

    def _notify(self, stream: int, label: str, start: float, end: float) -> None:
        if self.observer is not None:
            self.observer.ran(STREAMS[stream], label, start, end)
            self.observer.ended(end)

    def _refuse(self, buffer: Buffer, label: str) -> None:
        raise ValueError(
            f"Kernel {label!r} is given {buffer.label!r}, which is on {buffer.device.device.name}; expected a value on "
            f"{self.device.name}. Copy it with to_host and to_device."
        )

    def _copy(self, stream: int, label: str, nbytes: int, ready_at: float) -> float:
        """Book a copy that is enqueued now, and return when it ends."""
        seconds = self._latency + nbytes / self._bandwidth
        start = _latest(self._now(), self._free_at[stream], ready_at)
        self._book(stream, seconds, start + seconds)
        if self.observer is not None:
            self._notify(stream, label, start, start + seconds)
        return start + seconds

    def to_host(self, buffer: Buffer, done: Done) -> None:
        self._to_host(buffer, done)

    def _to_host(self, buffer: Buffer, done: Done) -> tuple[Any, float]:
        copied = copy_value(buffer.contents)
        nbytes = value_bytes(copied)
        self._bytes_to_host += nbytes
        end = self._copy(TO_HOST, buffer.label, nbytes, buffer.ready_at)
        self.agenda.add(end, done, copied)
        return copied, end

    def send(self, buffer: Buffer, done: Done) -> None:
        """Copy as `to_host`, but nobody writes to what `done` gets: values that go several ways are copied once."""
        left = self._left
        if left is None or left[0] is not buffer:
            copied, end = self._to_host(buffer, done)
            self._left = (buffer, copied, end)
        else:
            self.agenda.add(left[2], done, left[1])

    def pass_on(self, buffer: Buffer, target: TimedDevice, done: Done) -> None:
        """Copy to another device that shares the agenda: to the host, and from there when it has come."""
        self.send(buffer, partial(target._take, buffer.label, done))

    def pass_soon(self, target: TimedDevice, buffer: Any) -> Buffer | None:
        """Copy as `pass_on`, but return the copy at once if it ends so soon that kernels may wait on their stream.

        None if it takes longer, or is a number of rank 0, which hosts look at; then nothing was done.
        """
        value = buffer.contents if type(buffer) is Buffer else None
        if type(value) is not np.ndarray or not value.ndim or self.observer is not None or target.observer is not None:
            return None
        now, nbytes, left = self._now(), value.nbytes, self._left
        to_host, from_host = self._latency + nbytes / self._bandwidth, target._latency + nbytes / target._bandwidth
        if left is not None and left[0] is not buffer:
            left = None
        there = _latest(now, self._free_at[TO_HOST], buffer.ready_at) + to_host if left is None else left[2]
        end = _latest(there, target._free_at[TO_DEVICE], now) + from_host
        if end > now + _SOON:
            return None
        if left is None:
            left = self._left = (buffer, value.copy("K"), there)
            self._bytes_to_host += nbytes
            self._book(TO_HOST, to_host, there)
        target._bytes_to_device += nbytes
        target._book(TO_DEVICE, from_host, end)
        self.agenda.busy_until = max(self.agenda.busy_until, end)
        return target._buffer(left[1], buffer.label, end)

    def _book(self, stream: int, seconds: float, end: float) -> None:
        self._busy[stream] += seconds
        self._free_at[stream] = end

    def _take(self, label: str, done: Done, value: Any) -> None:
        buffer = self._arriving(value, label)
        self.agenda.add(buffer.ready_at, done, buffer)

    def to_device(self, value: Any, done: Callable[[Buffer], None], label: str = "copy from host") -> None:
        self._take(label, done, copy_value(value))

    def upload(self, value: Any, label: str = "constant") -> Buffer:
        return self._arriving(copy_value(value), label)

    def _arriving(self, value: Any, label: str) -> Buffer:
        nbytes = value_bytes(value)
        self._bytes_to_device += nbytes
        return self._buffer(value, label, self._copy(TO_DEVICE, label, nbytes, 0.0))

    def poll(self) -> float | None:
        return self.agenda.poll()

    def abort(self) -> None:
        self.agenda.clear()
        self._free_at = [0.0] * len(STREAMS)
        self._left = None
        for listener in self._listeners:
            listener.aborted()

    @property
    def is_idle(self) -> bool:
        return self.agenda.is_idle

    def statistics(self) -> DeviceStatistics:
        return DeviceStatistics(
            bytes_in_use=self.memory.in_use,
            peak_bytes=self.memory.peak,
            kernels=self._kernels,
            kernel_seconds=self._busy[COMPUTE],
            bytes_to_host=self._bytes_to_host,
            bytes_to_device=self._bytes_to_device,
            busy_seconds=dict(zip(STREAMS, self._busy, strict=True)),
        )

    def __repr__(self) -> str:
        return f"<TimedDevice {self.device}: {self.memory.in_use:,} bytes in use>"


def _latest(a: float, b: float, c: float) -> float:
    """Return the largest, as `max` does, in half the time."""
    most = a if a > b else b
    return most if most > c else c
