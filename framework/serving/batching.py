"""`Batching` and `Batcher`: requests that wait for a model are computed together, where each row stands for itself."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

import numpy as np

from ...engine.common.quick_dataclass import dataclass
from .lengths import padded_length
from .servable import Servable
from .signature import DEFAULT
from .statistics import BatchObserver
from .times.batch_times import BatchTimes
from .times.short_calls import AT_ONCE_SECONDS, ShortCalls
from .times.step_watch import StepWatch

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..structures import Array

    _Sizes = tuple[tuple[int, ...], tuple[int, ...]]  # lengths up to which sequences are filled, and their own
    _Result = list[Array] | Exception  # of a request: its outputs, or what was raised


@dataclass(frozen=True)
class Batching:
    """Settings by which a model server computes requests for a model together.

    Requests are joined only where the model's graph shows that no row's answer depends on other rows
    (`Servable.why_alone`). Batches have a power of two of rows: they are filled up with copies of a row, so that few
    programs are compiled.

    Attributes:
        max_batch_size: how many rows are computed together at most. A request of more rows is computed alone.
        max_queue_delay_ms: how many milliseconds a request that had to wait goes on waiting for others, while there are
            fewer rows. A request that finds the model idle does not wait.
        max_queue_size: how many requests may wait; further ones are refused with 429.
        bitwise: fill all batches up to `max_batch_size`, and cut larger requests. The rounding of answers depends on
            the number of rows that are computed together; so each row's answer has the same bits in all requests.
        max_sequences: of a model with `stateful=True` layers, how many sequences there may be.
        sequence_idle_seconds: after how many seconds without a request a sequence is forgotten.

    Raises:
        ValueError: a number is out of range.

    >>> import anabranch as ab
    >>> ab.serving.Batching(max_batch_size=16, max_queue_delay_ms=0.5).max_queue_size
    1024
    """

    max_batch_size: int = 64
    max_queue_delay_ms: float = 1.0
    max_queue_size: int = 1024
    bitwise: bool = False
    max_sequences: int = 1024
    sequence_idle_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.max_batch_size < 1:
            raise ValueError(f"Batching: max_batch_size must be at least 1; got {self.max_batch_size}.")
        if self.max_queue_delay_ms < 0 or self.max_queue_size < 0:
            raise ValueError(
                f"Batching: max_queue_delay_ms and max_queue_size must be 0 or more; got {self.max_queue_delay_ms} and "
                f"{self.max_queue_size}."
            )
        if self.max_sequences < 1 or not self.sequence_idle_seconds > 0:
            raise ValueError(
                f"Batching: max_sequences must be at least 1, and sequence_idle_seconds more than 0; got "
                f"{self.max_sequences} and {self.sequence_idle_seconds}."
            )


class _Request:
    """One that waits.

    `key`: those with an equal one can be computed together; None stands for no other. `sizes`: the lengths up to which
    its sequences are filled, and those that they have; None if they are not.
    """

    __slots__ = ("arrays", "future", "had_to_wait", "key", "rows", "signature", "since", "sizes")

    def __init__(
        self,
        arrays: Sequence[Array],
        signature: str,
        rows: int,
        key: Hashable,
        sizes: _Sizes | None,
        future: asyncio.Future[list[Array]],
        waits: bool,
    ) -> None:
        self.arrays, self.signature, self.rows, self.key = arrays, signature, rows, key
        self.sizes: _Sizes | None = sizes
        self.future: asyncio.Future[list[Array]] = future
        self.had_to_wait = waits
        self.since = time.perf_counter()


class Batcher:
    """The requests that wait for a model, and the thread that computes them.

    Requests that come in one turn of the event loop are looked at together in the next one. Short calls are made there
    (`ShortCalls`), one in a turn; others by the thread. The shortest ones are made at once where nothing waits and
    requests come one by one: to wait for others would take longer than the call. All but `_compute` is on the event
    loop.

    Args:
        servable: the model.
        settings: how requests are joined.
        thread: one thread.
        observer: is notified of each batch.
        watch: keeps the time of the thread's batches; None for one of its own.
    """

    def __init__(
        self,
        servable: Servable,
        settings: Batching,
        thread: Executor,
        observer: BatchObserver,
        watch: StepWatch | None = None,
    ) -> None:
        self._servable = servable
        self._settings = settings
        self._thread = thread
        self._observer = observer
        self._watch = watch or StepWatch(None)
        self._times = BatchTimes()
        self._short, self._at_once = ShortCalls(), ShortCalls(AT_ONCE_SECONDS)
        self._waiting: deque[_Request] = deque()
        self._came = 0  # requests in this turn of the loop
        self._comes_alone = True  # in the last turn in which any came there was one
        self._is_busy = False
        self._is_turn_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None
        self._too_long: set[tuple[object, ...]] = set()  # lengths that a model refuses, such as beyond its positions

    @property
    def is_busy(self) -> bool:
        """Test whether the thread computes a batch."""
        return self._is_busy

    def is_full(self, most: int) -> bool:
        """Test whether so many requests wait; those whose clients have gone do not."""
        if len(self._waiting) >= most:
            self._waiting = deque(each for each in self._waiting if not each.future.done())
        return len(self._waiting) >= most

    def configure(self, settings: Batching) -> None:
        """Join requests in another way from now on."""
        self._settings = settings

    async def drained(self) -> None:
        """Wait until no request waits or is computed."""
        while self._is_busy or self._waiting:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def submit(self, arrays: Sequence[Array], signature: str = "") -> asyncio.Future[list[Array]]:
        """Append a request.

        Args:
            arrays: the inputs, in order, as `Servable.check_rows` has accepted them.
            signature: the name of a signature.

        Returns:
            What becomes its outputs, or raises what the model raises for it alone. If it is cancelled before the model
            comes to it, it is not computed.
        """
        loop = asyncio.get_running_loop()
        rows = len(arrays[0]) if arrays and arrays[0].ndim else 0
        key, sizes = None, None
        if rows and self._servable.why_alone(signature) is None:
            key, sizes = self._key(arrays, signature or DEFAULT)
        request = _Request(arrays, signature, rows, key, sizes, loop.create_future(), self._is_busy)
        if not self._came:
            loop.call_soon(self._end_arrivals)
        self._came += 1
        may_run = self._comes_alone and self._came == 1 and not self._waiting and not self._is_busy
        if may_run and self._at_once.includes(kind := self._kind([request])):
            self._run_here([request], kind)
            return request.future
        self._waiting.append(request)
        self._plan_turn()
        return request.future

    def _end_arrivals(self) -> None:
        """Note whether requests come one by one: several in a turn of the loop take less time together."""
        self._comes_alone, self._came = self._came == 1, 0

    def _key(self, arrays: Sequence[Array], signature: str) -> tuple[Hashable, _Sizes | None]:
        """Return the key and the sizes of a request whose rows can be joined with others."""
        lengths = self._servable.lengths(signature)
        own = None if lengths is None else lengths.of(arrays)
        wanted = () if own is None else tuple(padded_length(length) for length in own)
        if lengths is None or own is None or (signature, *wanted) in self._too_long:
            return (signature, None, *[(array.dtype, array.shape[1:]) for array in arrays]), None
        shapes = [array.shape[2:] if place in lengths.places else array.shape[1:] for place, array in enumerate(arrays)]
        kinds = [(array.dtype, shape) for array, shape in zip(arrays, shapes, strict=True)]
        return (signature, wanted, *kinds), (wanted, own)

    def _plan_turn(self) -> None:
        """Look at what waits in the next turn of the event loop; where the thread computes, when it has done so."""
        if not self._is_busy and not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._is_turn_due = False
        self._consider()

    def _consider(self) -> None:
        """Compute the next batch, if the model is idle, and the batch is full or has waited for long enough."""
        while self._waiting and self._waiting[0].future.done():  # its client has gone
            self._waiting.popleft()
        if self._is_busy:
            return
        if not self._waiting:
            self._end_drain()
            return
        first = self._waiting[0]
        left = first.since + self._settings.max_queue_delay_ms / 1000 - time.perf_counter()
        if first.had_to_wait and first.key is not None and left > 0 and not self._is_full(first):
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(left, self._end_wait)
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch = self._next_batch()
        kind = self._kind(batch)
        if self._short.includes(kind):
            self._run_here(batch, kind)
        else:
            self._begin(batch, kind)

    def _is_full(self, first: _Request) -> bool:
        """Test whether enough rows wait for a batch with a request."""
        return sum(each.rows for each in self._waiting if each.key == first.key) >= self._settings.max_batch_size

    def _end_wait(self) -> None:
        self._timer = None
        self._consider()

    def _next_batch(self) -> list[_Request]:
        """Take the first request that waits, and those that can be computed with it, in their order."""
        first = self._waiting.popleft()
        if first.key is None or not self._waiting:
            return [first]
        batch, rows, others = [first], first.rows, deque[_Request]()
        most = self._most_rows(first)
        for request in self._waiting:
            if request.future.done():
                continue
            if request.key == first.key and rows + request.rows <= most:
                batch.append(request)
                rows += request.rows
            else:
                others.append(request)
        self._waiting = others
        return batch

    def _most_rows(self, first: _Request) -> int:
        """Return how many rows are computed in the next batch at most, of the key of a request."""
        most = self._settings.max_batch_size
        waiting = first.rows + sum(each.rows for each in self._waiting if each.key == first.key)
        if self._settings.bitwise or waiting >= most:
            return most
        return self._times.rows(first.key, waiting, self._size(waiting))

    def _kind(self, batch: Sequence[_Request]) -> Hashable:
        """Return what batches of the same shapes have in common."""
        first = batch[0]
        if first.key is None:
            return (first.signature, *[(array.dtype, array.shape) for array in first.arrays])
        return first.key, self._size(_rows(batch))

    def _size(self, rows: int) -> int:
        """Return the rows that a batch is filled up to."""
        most = self._settings.max_batch_size
        if self._settings.bitwise:
            return -(-rows // most) * most
        size = 1 << (rows - 1).bit_length()
        return min(size, most) if rows <= most else size

    def _run_here(self, batch: list[_Request], kind: object) -> None:
        """Compute a batch of a kind that takes little time on this thread.

        It is measured by the clock, since that is for how long other requests are held up. Two calls in short order in
        which the process was interrupted cost the kind four calls in the model's thread, and no more.
        """
        began = time.perf_counter()
        try:
            results = self._together(batch)
        except Exception:  # the thread finds out which of them fail, however long that takes
            self._begin(batch, kind)
            return
        seconds = time.perf_counter() - began
        self._short.note(kind, seconds)
        self._at_once.note(kind, seconds)
        self._end(batch, began, results)
        if self._waiting:
            self._plan_turn()  # other models, and what has just come, are not held up

    def _begin(self, batch: list[_Request], kind: object) -> None:
        """Have the thread compute a batch."""
        self._is_busy = True
        for request in self._waiting:
            request.had_to_wait = True
        began = time.perf_counter()
        self._watch.begin()
        computed = asyncio.get_running_loop().run_in_executor(self._thread, self._compute, batch, kind)

        def end(done: asyncio.Future[Sequence[_Result]]) -> None:
            self._is_busy = False
            self._watch.end()
            self._note_time(batch, time.perf_counter() - began, done)
            failed = asyncio.CancelledError("the server stops") if done.cancelled() else done.exception()
            self._end(batch, began, [failed] * len(batch) if failed is not None else done.result())
            self._consider()

        computed.add_done_callback(end)

    def _note_time(self, batch: list[_Request], seconds: float, done: asyncio.Future[Sequence[_Result]]) -> None:
        """Note how long a batch took whose requests did not fail, which would be computed again."""
        if batch[0].key is None or done.cancelled() or done.exception() is not None:
            return
        if not any(isinstance(result, BaseException) for result in done.result()):
            self._times.note(batch[0].key, self._size(_rows(batch)), seconds)

    def _end(self, batch: list[_Request], began: float, results: Sequence[list[Array] | BaseException]) -> None:
        """Give requests of a batch their results."""
        waits = [began - request.since for request in batch]
        self._observer.batch(_rows(batch), waits, time.perf_counter() - began)
        for request, result in zip(batch, results, strict=True):
            if request.future.done():
                continue
            if isinstance(result, BaseException):
                request.future.set_exception(result)
            else:
                request.future.set_result(result)
        self._end_drain()

    def _end_drain(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # --- in the thread, or where calls are short ------------------------------------------------------------------

    def _compute(self, batch: list[_Request], kind: object) -> Sequence[_Result]:
        """Return for each request its outputs, or what was raised.

        Where requests together fail, each is computed alone.
        """
        began = time.thread_time()  # by the clock it may take longer, since others hold Python's lock
        try:
            results = self._together(batch)
        except Exception as error:
            if len(batch) == 1:
                return [self._unpadded(batch[0], error)]
        else:
            if self._servable.had_bounded_time:
                self._short.note(kind, time.thread_time() - began)
            return results
        return [self._compute([request], self._kind([request]))[0] for request in batch]

    def _unpadded(self, request: _Request, error: Exception) -> list[Array] | Exception:
        """Return the outputs of a request that failed with its sequences filled up, without that; or what is raised."""
        if request.sizes is None:
            return error
        (wanted, _), request.sizes = request.sizes, None
        try:
            outputs = self._together([request])[0]
        except Exception as raised:
            return raised
        self._too_long.add((request.signature or DEFAULT, *wanted))
        return outputs

    def _together(self, batch: list[_Request]) -> list[list[Array]]:
        first, most = batch[0], self._settings.max_batch_size
        if first.key is None:
            return [self._servable.run(first.arrays, first.signature)]
        if len(batch) == 1 and first.sizes is None and first.rows == self._size(first.rows) <= most:
            return [self._run(first.arrays, first.signature)]  # as most are where little is asked
        columns = list(zip(*[self._padded(request) for request in batch], strict=True))
        rows = _rows(batch)
        if self._settings.bitwise:
            joined = [_joined(column, self._size(rows)) for column in columns]
            parts = [
                self._run([array[start : start + most] for array in joined], first.signature)
                for start in range(0, rows, most)
            ]
            outputs = parts[0] if len(parts) == 1 else [np.concatenate(column) for column in zip(*parts, strict=True)]
        else:
            outputs = self._run([_joined(column, self._size(rows)) for column in columns], first.signature)
        results: list[list[Array]] = []
        start = 0
        for request in batch:
            results.append(self._cut(request, [output[start : start + request.rows] for output in outputs]))
            start += request.rows
        return results

    def _padded(self, request: _Request) -> Sequence[Array]:
        lengths = self._servable.lengths(request.signature)
        if lengths is None or request.sizes is None:
            return request.arrays
        return lengths.pad(request.arrays, request.sizes[0])

    def _cut(self, request: _Request, outputs: list[Array]) -> list[Array]:
        lengths = self._servable.lengths(request.signature)
        if lengths is None or request.sizes is None:
            return outputs
        return lengths.cut(outputs, request.sizes[1])

    def _run(self, arrays: Sequence[Array], signature: str) -> list[Array]:
        outputs = self._servable.run(arrays, signature)
        rows = len(arrays[0])
        for output in outputs:
            if not output.ndim or len(output) != rows:
                raise RuntimeError("an output does not have a row for each row of the inputs")
        return outputs


def _rows(batch: Sequence[_Request]) -> int:
    return batch[0].rows if len(batch) == 1 else sum([request.rows for request in batch])


def _joined(arrays: Sequence[Array], rows: int) -> Array:
    """Return the rows of arrays one after the other, filled up with copies of the last one."""
    missing = rows - sum(len(array) for array in arrays)
    if missing:
        arrays = [*arrays, np.repeat(arrays[-1][-1:], missing, axis=0)]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
