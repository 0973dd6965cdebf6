"""Preparing batches ahead, in threads, while a step runs on the batches before."""

from __future__ import annotations

import collections
import contextvars
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from .py_dataset import PyDataset

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..structures import Rows

T = TypeVar("T")

_END: Any = object()


def in_order(calls: Iterable[Callable[[], T]], workers: int, limit: int) -> Generator[T]:
    """Yield the results of `calls` in their order, made ahead in threads.

    Args:
        calls: what to call; taken one by one, as results are asked for.
        workers: how many threads there are.
        limit: how many results are made ahead of the one that was asked for.

    An error of a call comes in its place, unchanged. No thread outlives the generator: closing it waits for the calls
    that are running, and makes no others.

    >>> list(in_order([lambda: 1, lambda: 2, lambda: 3], workers=2, limit=2))
    [1, 2, 3]
    """
    from concurrent.futures import ThreadPoolExecutor  # slow to import, and most fits prepare nothing ahead

    executor = ThreadPoolExecutor(workers, "anabranch prefetch")
    under_way: collections.deque[Future[T]] = collections.deque()
    remaining = iter(calls)
    try:
        while True:
            # Several at a time, so that a thread is not woken for each: that costs more than many a batch.
            if len(under_way) <= limit - limit // 2:
                for call in itertools.islice(remaining, limit + 1 - len(under_way)):
                    # In the caller's context: what numpy.errstate or a decimal context says holds in the thread, too.
                    under_way.append(executor.submit(contextvars.copy_context().run, call))
            if not under_way:
                return
            yield under_way.popleft().result()
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def iterate_ahead(source: Iterable[T], limit: int) -> Generator[T]:
    """Yield the items of `source`, which one thread takes from it up to `limit` items ahead."""
    iterator = iter(source)
    found = in_order(_repeated(lambda: next(iterator, _END)), 1, limit)
    try:
        for item in found:
            if item is _END:
                return
            yield item
    finally:
        found.close()


def _repeated(call: Callable[[], T]) -> Iterator[Callable[[], T]]:
    while True:
        yield call


class Prefetch:
    """A generator or iterable of batches for `fit`, of which the next ones are made while a step runs.

    Args:
        source: yields batches.
        max_queue_size: how many are made ahead.

    One thread asks the source, in order, so the batches are the same as without. But it asks earlier: a source must not
    depend on what training does meanwhile (such as calling the model), and up to `max_queue_size` items that `fit` did
    not come to may have been taken from it. `fit` prepares a `PyDataset`'s batches ahead by itself.

    >>> list(Prefetch([1, 2, 3]))
    [1, 2, 3]
    """

    def __init__(self, source: Iterable[Rows], max_queue_size: int = 10) -> None:
        makes_ahead = isinstance(source, PyDataset) and type(source).__iter__ is PyDataset.__iter__
        if makes_ahead or not isinstance(source, Iterable):
            raise TypeError(
                f"Prefetch takes a generator or an iterable of batches; got {type(source).__name__}. A PyDataset makes "
                "batches ahead by itself: see its workers and max_queue_size."
            )
        if max_queue_size < 1:
            raise ValueError(f"Prefetch: max_queue_size must be at least 1, got {max_queue_size}.")
        self.source = source
        self.max_queue_size = max_queue_size

    def __repr__(self) -> str:
        return f"<Prefetch of {type(self.source).__name__}: {self.max_queue_size} ahead>"

    def _repr_html_(self) -> str:
        from ...engine.common.html import array_view  # notebooks alone need it

        return array_view(repr(self)[1:-1])

    def __iter__(self) -> Generator[Any]:
        return iterate_ahead(self.source, self.max_queue_size)
