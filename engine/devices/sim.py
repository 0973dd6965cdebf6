"""`SimDevice`: a device of streams, simulated on the host; for tests of what runs on streams, and for measuring it.

Kernels are Python functions over NumPy values. When they start and end follows from their durations alone, exactly; the
clock only decides how much of that the host has seen. So time that the host needs counts as far as it enqueues late, as
with a real device, and waits that last too long add up to nothing.

With a seed, nothing is computed before `poll`, and each poll does one thing that is due, on a random stream. So work
runs in all orders that the events between the streams allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from random import Random
from typing import Any

from ..place.devices import Device
from .buffer import Buffer
from .clock import Clock
from .memory import DeviceMemoryError, Memory, copy_value, is_simple, is_traceable, value_bytes
from .order import COMPUTE, STREAMS, TO_DEVICE, TO_HOST, Event, Pending, Stream
from .results import as_results
from .stream import DeviceStatistics, MemoryListener, StreamDevice


class SimDevice(StreamDevice):
    """A simulated device with three in-order streams.

    Args:
        device: its name, and the memory limit, latency and bandwidth that it keeps to.
        clock: decides what is due.
        seed: run what is due in a random legal order; None for the order in which it is due.
        poison: overwrite memory that is released, where kernels said that it was fresh.

    Attributes:
        compute_stream, to_device_stream, to_host_stream: what `enqueue` takes.

    >>> from anabranch.engine.devices import VirtualClock
    >>> from anabranch.engine.place import make_devices
    >>> device = SimDevice(make_devices(sim=1)[-1], VirtualClock())
    >>> x = device.upload([1.0, 2.0])
    >>> total, = device.launch(sum, [x], 1, seconds=0.5, label="sum")
    >>> device.to_host(total, print)
    >>> device.synchronize()
    3.0
    """

    def __init__(self, device: Device, clock: Clock, seed: int | None = None, poison: bool = True) -> None:
        self.device = device
        self.clock = clock
        self.memory = Memory(device.name, device.memory_limit, poison)
        self.streams = tuple(Stream(device.name, number) for number in range(len(STREAMS)))
        self.compute_stream = self.streams[COMPUTE]
        self.to_device_stream = self.streams[TO_DEVICE]
        self.to_host_stream = self.streams[TO_HOST]
        self._random = None if seed is None else Random(seed)
        self._listeners: list[MemoryListener] = []
        self._failure: Exception | None = None
        self._instant: float | None = None  # the time of what is being done in `poll`; None for that of the clock
        self._released_at = 0.0
        self._kernels = 0
        self._kernel_seconds = 0.0
        self._bytes_to_host = 0
        self._bytes_to_device = 0
        if device.memory_limit is not None:
            self.memory.on_release = self._note_release

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
        stream = self.compute_stream
        at_once = not seconds and stream.running is None and not stream.queue and self._random is None
        if not at_once or (updates and _what_is_before((), updates)):
            return self._launch_later(function, inputs, outputs, seconds, label, fresh, updates)
        values: list[Any] = []
        for value in inputs:
            if type(value) is Buffer:
                if value.writer is not None or value.device is not self:
                    return self._launch_later(function, inputs, outputs, seconds, label, fresh, updates)
                value = value.contents
            values.append(value)
        try:
            result = function(*values)
        except Exception as error:
            self._explain(error, label)
            raise
        memory = self.memory
        is_limited = memory.limit is not None
        if outputs == 1 and is_simple(result) and not is_limited and not self._listeners:
            self._kernels += 1  # what most small kernels come to
            buffer = Buffer(self, label)
            buffer.contents = result
            buffer.allocations = memory.hold(result, label, fresh is not None and fresh[0])
            if self.observer is not None:
                self.observer.ran(stream.name, label, self.clock.now(), self.clock.now())
            return (buffer,)
        results = as_results(result, outputs, label)
        if is_limited and not memory.fits(memory.missing(results)):
            return self._launch_later(function, inputs, outputs, seconds, label, fresh, updates, results)
        self._kernels += 1
        buffers = tuple([Buffer(self, label) for _ in results])
        self._fill(buffers, results, fresh, inputs)
        if self.observer is not None:
            self.observer.ran(stream.name, label, self.clock.now(), self.clock.now())
        return buffers

    def _launch_later(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        outputs: int,
        seconds: float,
        label: str,
        fresh: Sequence[bool] | None,
        updates: Sequence[Buffer],
        results: tuple[Any, ...] | None = None,
    ) -> tuple[Buffer, ...]:
        pending = Pending(self.compute_stream, label, function, inputs, seconds, self.clock.now())
        pending.waits = _what_is_before(inputs, updates)
        pending.fresh, pending.updates, pending.results = fresh, updates, results
        return self._submit(pending, outputs)

    def enqueue(
        self,
        stream: Stream,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        outputs: int = 1,
        seconds: float = 0.0,
        label: str = "kernel",
        waits: Iterable[Event] = (),
        fresh: Sequence[bool] | None = None,
        updates: Sequence[Buffer] = (),
    ) -> tuple[Buffer, ...]:
        """Enqueue a kernel on any stream, ordered by nothing but that stream and the events given.

        Args:
            stream: one of this device's.
            function, inputs, outputs, seconds, label, fresh, updates: as for `launch`.
            waits: events of this device's streams.

        Returns: a buffer for each output.

        Raises:
            UnorderedAccessError: nothing orders it after what writes its inputs, or reads what it updates.
        """
        for event in waits:
            stream.wait(event)
        pending = Pending(stream, label, function, inputs, seconds, self.clock.now())
        pending.fresh, pending.updates = fresh, updates
        return self._submit(pending, outputs)

    def to_host(self, buffer: Buffer, done: Callable[[Any], None]) -> None:
        label = f"copy of {buffer.label} to host"
        pending = Pending(self.to_host_stream, label, copy_value, (buffer,), None, self.clock.now())
        pending.waits = _what_is_before((buffer,), ())
        pending.done = done
        self._submit(pending, 0)

    def to_device(self, value: Any, done: Callable[[Buffer], None], label: str = "copy from host") -> None:
        pending = Pending(self.to_device_stream, label, copy_value, (value,), None, self.clock.now())
        pending.done, pending.fresh = done, (True,)
        self._submit(pending, 1)

    def upload(self, value: Any, label: str = "constant") -> Buffer:
        copied = copy_value(value)
        pending = Pending(self.to_device_stream, label, lambda: copied, (), None, self.clock.now())
        pending.fresh = (True,)
        return self._submit(pending, 1)[0]

    def _submit(self, pending: Pending, outputs: int) -> tuple[Buffer, ...]:
        read = [value for value in pending.inputs if isinstance(value, Buffer)]
        for buffer in (*read, *pending.updates):
            self._check_usable(buffer, pending)
        pending.stream.append(pending, [*((buffer, False) for buffer in read), *((b, True) for b in pending.updates)])
        for buffer in read:
            buffer.readers = {} if buffer.readers is None else buffer.readers
            buffer.readers[pending.stream.number] = pending
        for buffer in pending.updates:
            buffer.writer = pending
        pending.outputs = tuple(Buffer(self, pending.label, pending) for _ in range(outputs))
        return pending.outputs

    def poll(self) -> float | None:
        if self._failure is not None:
            raise self._failure
        progressed = False
        while True:
            time, stream = self._next()
            now = self.clock.now()
            if stream is None:
                return self._relieve(progressed)
            if time > now:
                return time
            if self._random is not None:
                due = [(self._due(stream), stream) for stream in self.streams]
                time, stream = self._random.choice([(time, stream) for time, stream in due if time <= now])
            self._act(stream, time)
            progressed = True
            if self._random is not None and not self.is_idle:
                return now

    def _next(self) -> tuple[float, Stream | None]:
        """Return when something is due next, and where. At the same time, ends come before starts."""
        soonest, found = inf, None
        for stream in self.streams:
            if stream.running is None and not stream.queue:
                continue
            time = self._due(stream)
            ends_first = time == soonest and stream.running is not None and found is not None and found.running is None
            if time < soonest or ends_first:
                soonest, found = time, stream
        return soonest, found

    def _due(self, stream: Stream) -> float:
        """Return when this stream's next start or end is due; infinite as long as that depends on others."""
        if stream.running is not None:
            return stream.running.end or 0.0
        if not stream.queue:
            return inf
        head = stream.queue[0]
        time = max(head.enqueued, stream.free_at)
        for other in head.waits:
            if not other.ended:
                return inf
            time = max(time, other.end or 0.0)
        if head.results is None:
            return time
        return max(time, self._released_at) if self.memory.fits(self._wanted(head)) else inf

    def _wanted(self, pending: Pending) -> int:
        if self.memory.limit is None or not pending.outputs:
            return 0
        return self.memory.missing(pending.results or ())

    def _act(self, stream: Stream, time: float) -> None:
        self._instant = time
        done = result = None
        ends = stream.running is not None
        try:
            if stream.running is None:
                self._start(stream, stream.queue[0], time)
            else:
                done, result = self._finish(stream, stream.running, time)
        finally:
            self._instant = None
        if done is not None:
            done(result)
        if ends and self.observer is not None:
            self.observer.ended(time)

    def _start(self, stream: Stream, pending: Pending, time: float) -> None:
        if pending.results is None:
            pending.results = self._compute(pending)
        wanted = self._wanted(pending)
        if not self.memory.fits(wanted):
            self._press(wanted)
            return
        stream.queue.popleft()
        stream.running = pending
        pending.end = time + self._duration(pending, pending.results)
        stream.busy_seconds += pending.end - time
        self._fill(pending.outputs, pending.results, pending.fresh, pending.inputs)
        if self.observer is not None:
            self.observer.ran(stream.name, pending.label, time, pending.end)

    def _compute(self, pending: Pending) -> tuple[Any, ...]:
        function = pending.function
        assert function is not None
        values = [value.contents if isinstance(value, Buffer) else value for value in pending.inputs]
        try:
            result = function(*values)
            return (result,) if pending.seconds is None else as_results(result, len(pending.outputs), pending.label)
        except Exception as error:
            self._explain(error, pending.label)
            self._failure = error
            raise

    def _duration(self, pending: Pending, results: tuple[Any, ...]) -> float:
        if pending.seconds is not None:
            self._kernels += 1
            self._kernel_seconds += pending.seconds
            return pending.seconds
        nbytes = value_bytes(results[0])
        if pending.outputs:
            self._bytes_to_device += nbytes
        else:
            self._bytes_to_host += nbytes
        return self.device.latency + nbytes / self.device.bandwidth

    def _fill(
        self, buffers: Sequence[Buffer], values: Sequence[Any], fresh: Sequence[bool] | None, inputs: Sequence[Any]
    ) -> None:
        memory = self.memory
        for index, buffer in enumerate(buffers):
            value = values[index]
            buffer.contents = value
            buffer.allocations = memory.hold(value, buffer.label, fresh is not None and fresh[index])
            if not is_simple(value) and not is_traceable(value):
                _keep_intact(inputs)
        if self._listeners and buffers:
            self._press(0)

    def _finish(self, stream: Stream, pending: Pending, time: float) -> tuple[Callable[[Any], None] | None, Any]:
        stream.running = None
        stream.free_at = time
        for buffer in (*pending.outputs, *pending.updates):
            if buffer.writer is pending:
                buffer.writer = None
        done = pending.done
        result = None
        if done is not None and pending.results is not None:
            result = pending.outputs[0] if pending.outputs else pending.results[0]
        pending.forget()
        return done, result

    def _relieve(self, progressed: bool) -> float | None:
        """Relieve a device that can't go on: it is idle, or a kernel waits for memory that no other will release."""
        if self.is_idle:
            return None
        blocked = next(
            stream.queue[0] for stream in self.streams if stream.queue and stream.queue[0].results is not None
        )
        wanted = self._wanted(blocked)
        self._press(wanted)
        if progressed or self._next()[1] is not None:
            return self.clock.now()  # if it has not been done, the host may release what was just reported to it
        self._failure = DeviceMemoryError(self.memory, blocked.label, wanted)
        raise self._failure

    def _note_release(self) -> None:
        self._released_at = self.clock.now() if self._instant is None else self._instant

    def _explain(self, error: Exception, label: str) -> None:
        error.add_note(f"In kernel {label!r} on {self.device.name}.")

    def abort(self) -> None:
        self._failure = None
        for pending in [pending for stream in self.streams for pending in stream.clear()]:
            for buffer in pending.outputs:
                buffer.drop()
            for buffer in pending.updates:
                buffer.writer = None
            pending.forget()
        for listener in self._listeners:
            listener.aborted()

    @property
    def is_idle(self) -> bool:
        compute, to_device, to_host = self.streams
        return compute.is_idle and to_device.is_idle and to_host.is_idle

    @property
    def ahead(self) -> int:
        return len(self.compute_stream.queue) + (self.compute_stream.running is not None)

    def statistics(self) -> DeviceStatistics:
        return DeviceStatistics(
            bytes_in_use=self.memory.in_use,
            peak_bytes=self.memory.peak,
            kernels=self._kernels,
            kernel_seconds=self._kernel_seconds,
            bytes_to_host=self._bytes_to_host,
            bytes_to_device=self._bytes_to_device,
            busy_seconds={stream.name: stream.busy_seconds for stream in self.streams},
        )

    def __repr__(self) -> str:
        waiting = sum(len(stream.queue) + (stream.running is not None) for stream in self.streams)
        return f"<SimDevice {self.device}: {self.memory.in_use:,} bytes in use, {waiting} enqueued>"


def _what_is_before(inputs: Sequence[Any], updates: Sequence[Buffer]) -> list[Pending]:
    """Return what has to end before something that reads `inputs` and overwrites `updates`."""
    before = [buffer.writer for buffer in (*inputs, *updates) if isinstance(buffer, Buffer)]
    readers = [reader for buffer in updates for reader in (buffer.readers or {}).values()]
    return [*(writer for writer in before if writer is not None), *(reader for reader in readers if not reader.ended)]


def _keep_intact(inputs: Sequence[Any]) -> None:
    """Keep these inputs: an output may hold their memory in ways that are not found, so it is never overwritten."""
    for buffer in inputs:
        for allocation in buffer.allocations if isinstance(buffer, Buffer) else ():
            allocation.poisoned = False
