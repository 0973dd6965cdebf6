"""A module like cupy, without a GPU: for tests of what drives one.

Kernels compute when they are called, all on the stream that was made first. Copies run later, and events are reached
later, on streams which go on in an order that a seed draws. What is released is overwritten, so that a copy which
nobody kept memory for shows.
"""

import contextlib
import ctypes
import itertools
import random
import threading
import types
import weakref
from collections import deque
from typing import Any

import numpy as np
from shared import device_arrays
from shared.cupy_names import check_call
from shared.device_arrays import DeviceArray
from shared.host_cuda import HostModule

_UNIT = 512
_POISON = 0xA5


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class OutOfMemoryError(MemoryError):
    pass


class Memory:
    """A block of the pool; its memory is that of a NumPy array."""

    def __init__(self, pool: "MemoryPool", size: int) -> None:
        self.pool = pool
        self.size = size
        self.owner: Any = None

    def __del__(self) -> None:
        self.pool.used -= self.size
        if self.owner is not None and self.owner.flags.writeable:
            ctypes.memset(self.owner.ctypes.data, _POISON, self.owner.nbytes)


class Pointer:
    """The memory of one array."""

    def __init__(self, gpu: "FakeCupy", mem: Memory, held: Any) -> None:
        self._gpu = gpu
        self.mem = mem
        self._address = self.ptr = held.ctypes.data
        self._keep = mem.owner

    def copy_to_host_async(self, address: int, size: int, stream: "Stream") -> None:
        self._gpu.note(f"copy to host on {stream.name}")
        keep, source = self._keep, self._address
        stream.do(lambda: (ctypes.memmove(address, source, size), keep))

    def copy_from_host_async(self, address: int, size: int, stream: "Stream") -> None:
        self._gpu.note(f"copy from host on {stream.name}")
        keep, target = self._keep, self._address
        stream.do(lambda: (ctypes.memmove(target, address, size), keep))


class MemoryPool:
    def __init__(self, gpu: "FakeCupy") -> None:
        self._gpu = gpu
        self.used = 0
        self.limit = 0
        self.peak = 0
        self.split = 0  # bytes that are free in blocks which are too small for anything

    def malloc(self, size: int) -> Any:
        self._gpu.note("malloc")
        rounded = -(-size // _UNIT) * _UNIT
        if self.limit and self.used + self.split + rounded > self.limit:
            raise OutOfMemoryError(f"out of memory allocating {size} bytes")
        self.used += rounded
        self.peak = max(self.peak, self.used)
        return types.SimpleNamespace(mem=Memory(self, rounded))

    def set_limit(self, size: int) -> None:
        self.limit = size

    def used_bytes(self) -> int:
        return self.used

    def total_bytes(self) -> int:
        return self.used + self.split

    def free_all_blocks(self) -> None:
        pass


class Waiting:
    """Something that a stream does when something outside of this process has come."""

    def is_ready(self) -> bool:
        raise NotImplementedError

    def __call__(self) -> None:
        raise NotImplementedError


class Event:
    def __init__(self, gpu: "FakeCupy") -> None:
        self.ptr = next(gpu.numbers)
        self.is_reached = False
        self.time = 0.0
        gpu.events[self.ptr] = self


class Stream:
    def __init__(self, gpu: "FakeCupy") -> None:
        self._gpu = gpu
        self.ptr = len(gpu.streams) + 1
        self.name = f"stream{len(gpu.streams)}"
        self.queue: deque[Any] = deque()
        gpu.streams.append(self)

    def do(self, function: Any) -> None:
        """Do this behind what is there; a `Waiting` when it is ready."""
        self.queue.append(function)

    def record(self, event: Event) -> Event:
        self._gpu.note(f"record event{event.ptr} on {self.name}")
        self.do(lambda: self._gpu.reach(event))
        return event

    def wait_event(self, event: Event) -> None:
        self._gpu.note(f"{self.name} waits for event{event.ptr}")
        self.queue.append(event)
        if self is self._gpu.streams[0]:  # kernels that are called from now on see what they waited for
            self._gpu.run_until(lambda: event.is_reached)

    def synchronize(self) -> None:
        self._gpu.note(f"synchronize {self.name}")
        self._gpu.run_until(lambda: not self.queue)

    @property
    def can_go_on(self) -> bool:
        if not self.queue:
            return False
        first = self.queue[0]
        return first.is_ready() if isinstance(first, Waiting) else not isinstance(first, Event) or first.is_reached

    def go_on(self) -> None:
        function = self.queue.popleft()
        if not isinstance(function, Event):
            function()

    def __enter__(self) -> "Stream":
        self._gpu.local.stream = self
        return self

    def __exit__(self, *error: object) -> None:
        self._gpu.local.stream = None


class Device:
    """One GPU; the current one is that of the thread."""

    def __init__(self, gpu: "FakeCupy", number: int | None = None) -> None:
        self._gpu = gpu
        self.id = getattr(gpu.local, "device", 0) if number is None else number
        self._before: list[int] = []

    @property
    def pci_bus_id(self) -> str:
        return self._gpu.buses[self.id]

    def __enter__(self) -> "Device":
        self._before.append(getattr(self._gpu.local, "device", 0))
        self._gpu.local.device = self.id
        return self

    def __exit__(self, *error: object) -> None:
        self._gpu.local.device = self._before.pop()


def _owner(array: Any) -> Any:
    """The array whose memory a view shows; that of a strided view is behind an object that describes its strides."""
    while array.base is not None:
        base = array.base if isinstance(array.base, np.ndarray) else getattr(array.base, "base", None)
        if not isinstance(base, np.ndarray):
            break
        array = base
    return array


class FakeCupy:
    """Stands for the module.

    Args:
        seed: draws the order in which streams go on.
        count: how many GPUs there are.
        free: bytes of free memory.

    Attributes:
        goes_on: whether the GPU runs while the host looks; otherwise only when a test calls `step`, or someone waits.
        failing: the status with which asking for events fails.
        calls: what was called, in order.
        threads: by which threads.
    """

    ndarray = DeviceArray

    def __init__(self, seed: int = 0, count: int = 1, free: int = 1 << 30) -> None:
        self.goes_on = True
        self.failing = 0
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.numbers = itertools.count(1)
        self.events: weakref.WeakValueDictionary[int, Event] = weakref.WeakValueDictionary()
        self.streams: list[Stream] = []
        self.local = threading.local()  # the current stream and device
        self.buses = [f"0000:{number + 1:02x}:00.0" for number in range(count)]  # where the GPUs are in this host
        self.pools: list[MemoryPool] = []
        self.kernels: list[str] = []  # the sources of those that were compiled
        self._random = random.Random(seed)
        self._allocate: Any = None
        self._blocks: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        self._time = 0.0
        runtime = types.SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            getDeviceCount=lambda: count,
            memGetInfo=lambda: (free, 2 * free),
            eventQuery=self._query,
        )
        self.cuda = types.SimpleNamespace(
            runtime=runtime,
            memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            Device=lambda number=None: Device(self, number),
            get_current_stream=lambda: self.local.stream,
            nccl=types.SimpleNamespace(available=False),
            Stream=lambda non_blocking: Stream(self),
            Event=lambda: Event(self),
            MemoryPool=self._make_pool,
            using_allocator=self._using_allocator,
            alloc_pinned_memory=lambda size: bytearray(size),
            get_elapsed_time=lambda start, end: 1000 * (end.time - start.time),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(device_arrays.xp, name)

    def empty(self, shape: Any, dtype: Any) -> DeviceArray:
        """Full of what nobody expects."""
        check_call("empty", shape, dtype)
        held = np.empty(shape, dtype)
        ctypes.memset(held.ctypes.data, _POISON, held.nbytes)
        return DeviceArray(held)

    def asarray(self, value: Any, dtype: Any = None) -> DeviceArray:
        """Return a copy of a host's array."""
        if isinstance(value, DeviceArray):
            return value if dtype in (None, value.dtype) else value.astype(dtype)
        return DeviceArray(np.array(value, dtype))

    def RawModule(self, **options: Any) -> HostModule:  # noqa: N802
        check_call("RawModule.__init__", **options)
        code: str = options["code"]
        self.kernels.append(code)
        return HostModule(code)

    def note(self, call: str) -> None:
        self.threads.add(threading.get_ident())
        self.calls.append(call)

    @contextlib.contextmanager
    def installed(self) -> Any:
        """Arrays are allocated here meanwhile."""
        DeviceArray.allocate = staticmethod(self._data)
        try:
            yield self
        finally:
            DeviceArray.allocate = None

    # --- memory -----------------------------------------------------------------------------------------------------

    def _make_pool(self) -> MemoryPool:
        self.pools.append(MemoryPool(self))
        return self.pools[-1]

    @contextlib.contextmanager
    def _using_allocator(self, allocate: Any) -> Any:
        self._allocate = allocate
        yield

    def _data(self, held: Any) -> Pointer | None:
        if self._allocate is None:
            return None
        owner = _owner(held)
        block = self._blocks.get(id(owner))
        if block is None:
            block = self._allocate(owner.nbytes).mem
            block.owner = owner
            self._blocks[id(owner)] = block
        return Pointer(self, block, held)

    # --- time -------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One stream goes on; False if none can."""
        with self._lock:
            able = [stream for stream in self.streams if stream.can_go_on]
            if able:
                self._time += 1.0
                self._random.choice(able).go_on()
            return bool(able)

    def run_until(self, reached: Any) -> None:
        while not reached():
            assert self.step(), "streams wait for each other"

    def reach(self, event: Event) -> None:
        event.is_reached, event.time = True, self._time

    def _query(self, number: int) -> int:
        if self.failing:
            return self.failing
        if self.goes_on:
            self.step()
        return 0 if self.events[number].is_reached else 600
