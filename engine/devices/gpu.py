"""`GpuDevice`: a GPU, driven through cupy by a thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from traceback import clear_frames
from types import TracebackType
from typing import Any

from ..place.devices import Device
from .buffer import DROPPED, Buffer
from .clock import Clock
from .dispatcher import Dispatcher, Shortage, Work, dispatcher_of
from .memory import Allocation, DeviceMemoryError, Memory, copy_value, value_bytes
from .order import COMPUTE, STREAMS, TO_DEVICE, TO_HOST, Stream
from .stream import DeviceStatistics, MemoryListener, StreamDevice
from .transfer import Parts

_PATIENCE = 2e-4  # seconds after which the host looks again, if it has not been woken


class Arrivals(Clock):
    """Real time. A wait ends before its time when the GPU's dispatcher has something to report."""

    def __init__(self) -> None:
        self._is_notified = threading.Event()

    def now(self) -> float:
        return perf_counter()

    def wait_until(self, time: float) -> None:
        left = time - perf_counter()
        if left > 0:
            self._is_notified.wait(left)
        self._is_notified.clear()

    def wake(self) -> None:
        """End a wait, now or the next one."""
        self._is_notified.set()


class GpuMemory(Memory):
    """Accounts for what values occupy on a GPU: the blocks of its pool that hold their arrays.

    The pool keeps to the limit; this records who holds how much. Any thread may release what the host's thread holds.

    Args:
        name: the device, for messages.
        limit: bytes that there are.
        kind: the type of the arrays.
    """

    def __init__(self, name: str, limit: int, kind: type) -> None:
        super().__init__(name, limit, poison=False)
        self._kind = kind
        self._lock = threading.RLock()

    def hold(self, value: Any, label: str, fresh: bool = False) -> tuple[Allocation, ...]:
        blocks = {id(block): block for block in (array.data.mem for array in Parts(value, self._kind).arrays)}
        with self._lock:
            return tuple([self._hold_block(block, label) for block in blocks.values()])

    def _hold_block(self, block: Any, label: str) -> Allocation:
        allocation = self._by_owner.get(id(block))
        if allocation is not None:
            allocation.uses += 1
            return allocation
        allocation = self._by_owner[id(block)] = _Block(block, label)
        self.in_use += allocation.nbytes
        self.peak = max(self.peak, self.in_use)
        return allocation

    def release(self, allocations: tuple[Allocation, ...]) -> None:
        with self._lock:
            super().release(allocations)

    def holders(self) -> list[tuple[str, int, int]]:
        with self._lock:
            return super().holders()

    def size_of(self, value: Any) -> int:
        array = value
        if isinstance(value, self._kind):
            return int(array.nbytes)
        parts = Parts(value, self._kind)
        return sum(int(array.nbytes) for array in parts.arrays) if parts.arrays else value_bytes(value)


class _Block(Allocation):
    """A block of the pool."""

    def __init__(self, block: Any, label: str) -> None:
        self.owner = block
        self.nbytes = int(block.size)
        self.uses = 1
        self.label = label
        self.poisoned = False
        self.counted_at = 0


class GpuDevice(StreamDevice):
    """A GPU with three streams. Every method returns at once, but for `abort` and `synchronize`.

    Kernels get cupy's arrays, and NumPy scalars as they are, and may give either; arrays of rank 0 that are copied to
    the host become NumPy scalars.

    Args:
        device: its name and memory limit.
        dispatcher: drives it; by default the one that all programs of this process share.

    Raises:
        GpuUnavailableError: cupy or the GPU can't be used.
    """

    def __init__(self, device: Device, dispatcher: Dispatcher | None = None) -> None:
        self.device = device
        self.dispatcher = dispatcher or dispatcher_of(device.number, device.memory_limit)
        self._arrivals = Arrivals()
        self.clock = self._arrivals
        self.memory = GpuMemory(device.name, self.dispatcher.limit, self.dispatcher.cupy.ndarray)
        self.memory.on_release = self._note_release
        self.generation = 0
        self.releases = 0
        self.has_failed = False
        self._streams = tuple(Stream(device.name, number) for number in range(len(STREAMS)))
        self._listeners: list[MemoryListener] = []
        self._notices: deque[tuple[str, Work, int, Any]] = deque()
        self._under_way: dict[Work, None] = {}
        self._failure: Exception | None = None
        self._failed_in: TracebackType | None = None
        self._shortage: Shortage | None = None
        self._kernels = 0
        self._bytes_to_host = 0
        self._bytes_to_device = 0

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
        work = self._work("kernel", COMPUTE, label, function, inputs)
        work.updates = updates
        for buffer in updates:
            self._check_usable(buffer, work)
        self._kernels += 1
        return self._submit(work, outputs)

    def to_host(self, buffer: Buffer, done: Callable[[Any], None]) -> None:
        work = self._work("download", TO_HOST, f"copy of {buffer.label} to host", None, (buffer,))
        work.done = done
        self._submit(work, 0)

    def to_device(self, value: Any, done: Callable[[Buffer], None], label: str = "copy from host") -> None:
        work = self._work("upload", TO_DEVICE, label, None, (value,))
        work.done = done
        self._submit(work, 1)

    def upload(self, value: Any, label: str = "constant") -> Buffer:
        work = self._work("upload", TO_DEVICE, label, None, (copy_value(value),))
        work.blocks = True
        return self._submit(work, 1)[0]

    def _work(
        self, kind: str, stream: int, label: str, function: Callable[..., Any] | None, inputs: Sequence[Any]
    ) -> Work:
        work = Work(self._streams[stream], label, function or _nothing, tuple(inputs), None, self.clock.now())
        work.client, work.generation, work.kind = self, self.generation, kind
        work.blocks, work.then, work.asked = False, None, []
        for value in inputs:
            if isinstance(value, Buffer):
                self._check_usable(value, work)
        return work

    def _submit(self, work: Work, outputs: int) -> tuple[Buffer, ...]:
        work.outputs = tuple([Buffer(self, work.label, work) for _ in range(outputs)])
        for buffer in work.updates:
            buffer.writer = work
        self._under_way[work] = None
        if self._failed_in is not None:
            clear_frames(self._failed_in)  # they hold what the kernel that failed had made
            self._failed_in = None
        self.dispatcher.submit(work)
        return work.outputs

    # --- what the dispatcher reports --------------------------------------------------------------------------------

    def notify(self, what: str, work: Work, given: Any = None) -> None:
        """Note a message of the dispatcher's thread; `poll` reads it."""
        self._notices.append((what, work, work.generation, given))
        self.has_failed = self.has_failed or what == "failed"
        self._arrivals.wake()

    def poll(self) -> float | None:
        if self._failure is not None:
            raise self._failure
        progressed = False
        while self._notices:
            what, work, generation, given = self._notices.popleft()
            if generation == self.generation:
                progressed = True
                self._hear(what, work, given)
        if self._shortage is not None:
            self._relieve(self._shortage, progressed)
        return None if self.is_idle else self.clock.now() + _PATIENCE

    def _hear(self, what: str, work: Work, given: Any) -> None:
        if what == "filled":
            self._fill(work)
        elif what == "ended":
            self._end(work, given)
        elif what == "short":
            self._shortage = given
        else:
            given.add_note(f"In kernel {work.label!r} on {self.device.name}.")
            self._failed_in = given.__traceback__
            self._failure = given
            raise given

    def _fill(self, work: Work) -> None:
        """Note that the arrays of a work's results are there, though what computes them may not have ended."""
        for asked in work.asked:
            self._under_way[asked] = None
        for buffer in work.outputs:
            if buffer.contents is not DROPPED:
                buffer.allocations = self.memory.hold(buffer.contents, buffer.label)
        if work.kind == "upload":
            self._bytes_to_device += self.memory.size_of(work.outputs[0].contents)
        if work.outputs:
            self._press(0)

    def _end(self, work: Work, given: Any) -> None:
        del self._under_way[work]
        for buffer in (*work.outputs, *work.updates):
            if buffer.writer is work:
                buffer.writer = None
        done = work.done
        result = work.outputs[0] if work.outputs else given
        if work.kind == "download":
            self._bytes_to_host += value_bytes(given)
        work.forget()
        if done is not None:
            done(result)

    def _relieve(self, shortage: Shortage, progressed: bool) -> None:
        """Move values to the host for a kernel that waits for memory, or let it fail where none can be moved."""
        hidden = max(0, shortage.used - self.memory.in_use)  # what kernels hold that no buffer accounts for
        self._press(shortage.wanted + hidden)
        if self.releases > shortage.releases:
            self._shortage = None
            shortage.answer()
        elif not progressed and shortage.quiet_after == self.dispatcher.given and not self._notices:
            self._shortage = None
            shortage.answer(DeviceMemoryError(self.memory, shortage.work.label, shortage.wanted))

    def _note_release(self) -> None:
        self.releases += 1

    # --- the rest ---------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Drop what has not been dispatched, and wait for what has."""
        self.generation += 1
        self._shortage = None
        self.dispatcher.settle()
        self._notices.clear()
        under_way, self._under_way = self._under_way, {}
        for work in under_way:
            for buffer in work.outputs:
                buffer.drop()
            for buffer in work.updates:
                buffer.writer = None
            work.forget()
        self._failure = None
        self.has_failed = False
        for listener in self._listeners:
            listener.aborted()

    @property
    def is_idle(self) -> bool:
        return not self._under_way and not self._notices

    def statistics(self) -> DeviceStatistics:
        """Return what it has done until now. Times are those of the whole GPU, by its own clock."""
        busy = self.dispatcher.busy_seconds
        return DeviceStatistics(
            bytes_in_use=self.memory.in_use,
            peak_bytes=self.memory.peak,
            kernels=self._kernels,
            kernel_seconds=busy[COMPUTE],
            bytes_to_host=self._bytes_to_host,
            bytes_to_device=self._bytes_to_device,
            busy_seconds=dict(zip(STREAMS, busy, strict=True)),
        )

    def __repr__(self) -> str:
        return f"<GpuDevice {self.device}: {self.memory.in_use:,} bytes in use, {len(self._under_way)} under way>"


def _nothing() -> None:
    """Do nothing: copies compute nothing."""
