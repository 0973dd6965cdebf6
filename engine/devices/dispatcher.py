"""The thread that drives a GPU: it alone calls cupy, in the order in which work was given to it.

Kernels are launched on one stream, and copies run on two others beside it; events order copies behind the kernels that
write what they read. All memory is allocated in the order of the compute stream, so that what is released may be used
again by the next kernel at once. A copy to the device therefore waits for the kernels that were launched before its
memory was taken, and what is copied to the host is kept until that has ended.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from ..common.forks import fork_safe_lock
from .buffer import DROPPED, NOT_COMPUTED, Buffer
from .cuda import check_gpu, is_reached
from .order import COMPUTE, STREAMS, TO_DEVICE, TO_HOST, Pending
from .pinned import Piece, PinnedSlabs
from .results import as_results
from .transfer import Parts

_TICK = 5e-5  # seconds between looks at what has ended
_BATCH = 32  # kernels that one event stands for, where there is always more to launch
_USABLE = 0.9  # of the free memory of a GPU, where no limit is given: libraries need some besides


class Client(Protocol):
    """Who gives work, and is notified of it. See `GpuDevice`."""

    generation: int
    releases: int
    has_failed: bool

    def notify(self, what: str, work: Work, given: Any = None) -> None:
        """Handle a dispatcher's message: "filled", "ended", "failed" (with the error), "short" (with a `Shortage`)."""
        ...


class Work(Pending):
    """A kernel or copy for a GPU.

    Attributes:
        client: who gave it.
        generation: that of the client when it did; work of an earlier one is dropped.
        kind: "kernel", "upload" or "download".
        blocks: of an upload, whether kernels launched after it wait for it.
        then: of a download that a kernel asked for, called with the copy by the dispatcher.
        asked: downloads that the kernel asked for.
    """

    __slots__ = ("asked", "blocks", "client", "generation", "kind", "then")

    client: Client
    generation: int
    kind: str
    blocks: bool
    then: Callable[[Any], None] | None
    asked: list[Work]

    def is_dropped(self) -> bool:
        """Test whether its step has failed or was aborted."""
        return self.client.has_failed or self.generation != self.client.generation


class NoRoomError(MemoryError):
    """A function that the dispatcher calls needs more memory than there is.

    Attributes:
        wanted, in_use: bytes that it asks for, and that are held.
    """

    def __init__(self, wanted: int, in_use: int) -> None:
        super().__init__(f"{wanted:,} bytes are needed, and {in_use:,} are in use.")
        self.wanted = wanted
        self.in_use = in_use


class Shortage:
    """A kernel waits for memory, and its host is asked to release some.

    Attributes:
        work: the kernel.
        wanted: bytes that it asks for.
        used: bytes that the pool has taken, those included that it can't use for what is wanted.
        releases: how often the client had released something before it was tried.
        quiet_after: how much the dispatcher had been given when it saw that nothing was under way.
        answered: whether to try again, or to fail.
    """

    def __init__(self, work: Work, wanted: int, used: int, releases: int) -> None:
        self.work = work
        self.wanted = wanted
        self.used = used
        self.releases = releases
        self.quiet_after = -1
        self.answered = False
        self._error: Exception | None = None

    def answer(self, error: Exception | None = None) -> None:
        """Let the kernel try again, or fail."""
        self._error = error
        self.answered = True

    def check(self) -> None:
        """Raise what was answered, which is not kept: its traceback would keep what the kernel has made."""
        if self._error is not None:
            raise self._taken()

    def _taken(self) -> Exception:
        error, self._error = self._error, None
        assert error is not None
        return error


class _Call:
    """A function that the dispatcher is to call between two pieces of work."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._done = threading.Event()
        self._result: Any = None
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._result = self._function()
        except Exception as error:
            self._error = error
        self._done.set()

    def result(self) -> Any:
        """Wait for what it gives."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result


class _Flight:
    """A batch of work that was given to a stream and has not been seen to end.

    Attributes:
        works: what ends.
        start, end: events around it.
        parts, arrays, pieces: of a copy, what is copied, and the memory of the host between.
    """

    def __init__(self, works: list[Work], start: Any) -> None:
        self.works = works
        self.start = start
        self.end: Any = None
        self.parts: Parts | None = None
        self.arrays: list[Any] = []
        self.pieces: list[Piece] = []


class Dispatcher:
    """Drives one GPU.

    Args:
        cupy: the module.
        number: which GPU.
        limit: bytes that its programs may use; None for most of what is free.

    Attributes:
        limit: how many they are.
        given: how much it was given to do, ever.
        busy_seconds: for each stream, how long what ran there took, by the GPU's own clock.
        slabs: the memory of the host through which copies go.
    """

    def __init__(self, cupy: Any, number: int, limit: int | None) -> None:
        self.cupy = cupy
        self.number = number
        self.limit: int = limit or 0
        self.busy_seconds = [0.0] * len(STREAMS)
        self.slabs = PinnedSlabs(cupy.cuda.alloc_pinned_memory)
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.given = 0
        self._giving = threading.Lock()
        self._taken = 0
        self._deferred: deque[Any] = deque()
        self._flights: tuple[deque[_Flight], ...] = tuple(deque[_Flight]() for _ in STREAMS)
        self._unmarked: _Flight | None = None
        self._work: Work | None = None
        self._streams: tuple[Any, ...] = ()
        self._pool: Any = None
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name=f"anabranch-gpu:{number}", daemon=True)
        started = _Call(self._start)
        self._give(started)
        self._thread.start()
        started.result()

    # --- called by others -------------------------------------------------------------------------------------------

    def submit(self, work: Work) -> None:
        """Do `work` after all that was given before."""
        self._give(work)

    def _give(self, item: Any) -> None:
        with self._giving:
            self.given += 1
            self._queue.put(item)

    def call(self, function: Callable[[], Any]) -> Any:
        """Return the result of `function`, called by the dispatcher after all that was given before.

        Raises:
            RuntimeError: this process was forked from the one that uses the GPU.
        """
        if threading.get_ident() == self._thread.ident:
            return function()
        if os.getpid() != self._process:
            raise RuntimeError(
                f"gpu:{self.number} is used by the process from which this one was forked, and CUDA does not work on "
                "both sides of a fork. Start processes by multiprocessing.get_context('spawn'), or fork them before "
                "anything runs on the GPU."
            )
        call = _Call(function)
        self._give(call)
        return call.result()

    def settle(self) -> None:
        """Wait until all that was given before has ended."""
        self.call(self._settle)

    def set_limit(self, limit: int | None) -> None:
        """Change how much memory programs may use."""
        self.call(lambda: self._set_limit(limit))

    def close(self) -> None:
        """End the thread, when all that was given before has ended."""
        self.settle()
        self._give(None)
        self._thread.join()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._get(None).run()
        if self._pool is None:
            return  # it could not start
        cuda = self.cupy.cuda
        with cuda.Device(self.number), cuda.using_allocator(self._allocate), self._streams[COMPUTE]:
            while (item := self._next()) is not None:
                if item is not _NOTHING:
                    self._do(item)
                self._collect()

    def _start(self) -> None:
        cuda = self.cupy.cuda
        with cuda.Device(self.number):
            self._streams = tuple([cuda.Stream(non_blocking=True) for _ in STREAMS])
            pool = cuda.MemoryPool()
            self._pool = pool
            self._set_limit(self.limit or None)

    def _set_limit(self, limit: int | None) -> None:
        if limit is None:
            free, _ = self.cupy.cuda.runtime.memGetInfo()
            self.limit = int(_USABLE * free + self._pool.total_bytes())
        else:
            self.limit = limit
        self._pool.set_limit(size=self.limit)

    def _next(self) -> Any:
        """Return the next thing to do; `_NOTHING` when it is time to look at what has ended."""
        if self._deferred:
            return self._deferred.popleft()
        is_waiting = self._unmarked is not None or any(self._flights)
        item = self._get(0.0 if is_waiting else None)
        if item is not _NOTHING:
            return item
        self._mark()
        return self._get(_TICK)

    def _get(self, timeout: float | None) -> Any:
        """Return the next that was given; `_NOTHING` if that takes longer."""
        try:
            item = self._queue.get(timeout=timeout) if timeout != 0.0 else self._queue.get_nowait()
        except queue.Empty:
            return _NOTHING
        self._taken += 1
        return item

    def _do(self, item: Any) -> None:
        if isinstance(item, _Call):
            item.run()
            return
        if item.is_dropped():
            return
        before, self._work = self._work, item
        try:
            self._dispatch(item)
        except Exception as error:
            item.client.notify("failed", item, error)
        finally:
            self._work = before

    def _dispatch(self, work: Work) -> None:
        if work.kind == "kernel":
            self._launch(work)
        elif work.kind == "upload":
            self._upload(work)
        else:
            self._download(work, work.inputs[0].contents)

    # --- kernels ----------------------------------------------------------------------------------------------------

    def _launch(self, work: Work) -> None:
        function = work.function
        assert function is not None
        if work.updates:
            self._wait_for_readers()
        self._begin_batch()
        values = [value.contents if isinstance(value, Buffer) else value for value in work.inputs]
        results = as_results(function(*values), len(work.outputs), work.label)
        for buffer, value in zip(work.outputs, results, strict=True):
            buffer.contents = value
        work.function, work.inputs = None, ()
        work.client.notify("filled", work)
        flight = self._begin_batch()  # another one, if it waited for memory
        flight.works.append(work)
        if len(flight.works) >= _BATCH:
            self._mark()

    def _begin_batch(self) -> _Flight:
        """Return the batch to which the kernels launched since the last event belong."""
        if self._unmarked is None:
            self._unmarked = _Flight([], self._event(COMPUTE))
        return self._unmarked

    def _wait_for_readers(self) -> None:
        """Wait for copies to the host that read what is to be overwritten."""
        for flight in self._flights[TO_HOST]:
            self._streams[COMPUTE].wait_event(flight.end)

    def _mark(self) -> None:
        """Note behind the kernels launched so far, so that their end is seen."""
        flight, self._unmarked = self._unmarked, None
        if flight is None or not flight.works:
            return
        try:
            self._fly(flight, COMPUTE)
        except Exception as error:
            self._lose(flight, error)

    def fetch(self, value: Any, then: Callable[[Any], None]) -> None:
        """Copy a value to the host for a kernel, and call `then` with the copy. The step waits for that."""
        assert self._work is not None, "only kernels fetch"
        parent = self._work
        work = Work(parent.stream, f"copy of {parent.label} to host", then, (), None, parent.enqueued)
        work.client, work.generation, work.kind = parent.client, parent.generation, "download"
        work.then, work.blocks, work.asked = then, False, []
        parent.asked.append(work)
        self._download(work, value)

    # --- copies -----------------------------------------------------------------------------------------------------

    def _download(self, work: Work, value: Any) -> None:
        if value is NOT_COMPUTED or value is DROPPED:
            return  # what computes it has failed
        flight = _Flight([work], None)
        flight.parts = Parts(value, self.cupy.ndarray)
        flight.arrays = [
            array if array.flags.c_contiguous else self.cupy.ascontiguousarray(array) for array in flight.parts.arrays
        ]
        stream = self._streams[TO_HOST]
        stream.wait_event(self._event(COMPUTE))
        flight.start = self._event(TO_HOST)
        for array in flight.arrays:
            piece = self.slabs.take(array.nbytes)
            flight.pieces.append(piece)
            if array.nbytes:
                array.data.copy_to_host_async(piece.address, array.nbytes, stream)
        work.inputs = ()
        self._fly(flight, TO_HOST)

    def _upload(self, work: Work) -> None:
        flight = _Flight([work], None)
        parts = flight.parts = Parts(work.inputs[0], np.ndarray)
        flight.arrays = [self.cupy.empty(array.shape, array.dtype) for array in parts.arrays]
        stream = self._streams[TO_DEVICE]
        stream.wait_event(self._event(COMPUTE))  # kernels may still use what the memory was before
        flight.start = self._event(TO_DEVICE)
        for array, source in zip(flight.arrays, parts.arrays, strict=True):
            piece = self.slabs.take(source.nbytes)
            flight.pieces.append(piece)
            piece.array(source.shape, source.dtype)[...] = source
            if source.nbytes:
                array.data.copy_from_host_async(piece.address, source.nbytes, stream)
        self._fly(flight, TO_DEVICE)
        if work.blocks:
            self._streams[COMPUTE].wait_event(flight.end)
        work.outputs[0].contents = parts.rebuilt(flight.arrays)
        work.inputs = ()
        work.client.notify("filled", work)

    # --- events -----------------------------------------------------------------------------------------------------

    def _event(self, stream: int) -> Any:
        return self._streams[stream].record(self.cupy.cuda.Event())

    def _fly(self, flight: _Flight, stream: int) -> None:
        flight.end = self._event(stream)
        self._flights[stream].append(flight)

    def _collect(self) -> None:
        """See what has ended."""
        for number, flights in enumerate(self._flights):
            while flights and self._has_landed(flights[0], number):
                flights.popleft()

    def _has_landed(self, flight: _Flight, number: int) -> bool:
        """Test whether it is over, one way or the other."""
        try:
            if not is_reached(self.cupy, flight.end):
                return False
            self._land(flight, number)
        except Exception as error:
            self._lose(flight, error)
        return True

    def _lose(self, flight: _Flight, error: Exception) -> None:
        for work in flight.works:
            work.client.notify("failed", work, error)
        self._give_back(flight)

    def _land(self, flight: _Flight, number: int) -> None:
        elapsed = self.cupy.cuda.get_elapsed_time(flight.start, flight.end)  # milliseconds
        self.busy_seconds[number] += elapsed / 1000
        if number != TO_HOST:
            self._give_back(flight)
            for work in flight.works:
                work.client.notify("ended", work)
            return
        assert flight.parts is not None
        copies = [_copied(piece, array) for piece, array in zip(flight.pieces, flight.arrays, strict=True)]
        self._give_back(flight)
        value = flight.parts.rebuilt(copies)
        (work,) = flight.works
        if work.then is not None:
            work.then(value)
        work.client.notify("ended", work, value)

    def _give_back(self, flight: _Flight) -> None:
        for piece in flight.pieces:
            self.slabs.give(piece)
        flight.pieces, flight.arrays = [], []

    def _settle(self) -> None:
        self._mark()
        for stream in self._streams:
            with suppress(self.cupy.cuda.runtime.CUDARuntimeError):  # events report it, too
                stream.synchronize()
        self._collect()

    # --- memory -----------------------------------------------------------------------------------------------------

    def _allocate(self, size: int) -> Any:
        """Allocate the memory of an array, as cupy's allocator."""
        exhausted = self.cupy.cuda.memory.OutOfMemoryError
        while True:
            releases = self._work.client.releases if self._work is not None else 0
            try:
                return self._pool.malloc(size)
            except exhausted:
                self._pool.free_all_blocks()  # of other sizes
            try:
                return self._pool.malloc(size)
            except exhausted:
                if self._work is None:
                    raise NoRoomError(size, self._pool.used_bytes()) from None
                self._wait_for_room(Shortage(self._work, size, self._pool.total_bytes(), releases))

    def _wait_for_room(self, shortage: Shortage) -> None:
        """Copy to the host what its client chooses, until that says that memory was released, or that none will be."""
        work = shortage.work
        work.client.notify("short", work, shortage)
        self._mark()
        while not shortage.answered and not work.is_dropped():
            if not any(self._flights):
                shortage.quiet_after = self._taken
            item = self._get(_TICK)
            if item is not _NOTHING:
                self._do_or_defer(item)
            self._collect()
        if work.is_dropped():
            raise MemoryError(f"{work.label!r} was dropped while it waited for memory.")
        shortage.check()

    def _do_or_defer(self, item: Any) -> None:
        is_copy = isinstance(item, Work) and item.kind == "download"
        if is_copy and item.inputs[0].contents is not NOT_COMPUTED:
            self._do(item)
        else:
            self._deferred.append(item)


_NOTHING = object()


def _copied(piece: Piece, array: Any) -> Any:
    """Return what came to the host, in memory of its own; of rank 0, a NumPy scalar."""
    return piece.array(array.shape, array.dtype).copy()[()]


_dispatchers: dict[int, Dispatcher] = {}
_lock = fork_safe_lock()


def dispatcher_of(number: int, limit: int | None) -> Dispatcher:
    """Return the dispatcher of a GPU, which all programs of this process share.

    Raises:
        GpuUnavailableError: there is no such GPU to use.
    """
    with _lock:
        known = _dispatchers.get(number)
        if known is None:
            known = _dispatchers[number] = Dispatcher(check_gpu(number), number, limit)
        elif limit is not None and limit != known.limit:
            known.set_limit(limit)
        return known


__all__ = ["Client", "Dispatcher", "NoRoomError", "Shortage", "Work", "dispatcher_of"]
