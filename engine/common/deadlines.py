"""Deadlines of steps, and requests to end them: what a thread that runs a step looks at while it waits or loops.

A loop looks whether anybody has asked any step to end (`requests`), which hardly ever is so; only then it finds out
whether that concerns its own step. Machine code looks at their number (`requests_address`).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real

_LONGEST_WAIT = 0.1  # seconds

_moment: ContextVar[float | None] = ContextVar("moment", default=None)

requests: set[object] = set()
_count = ctypes.c_int64()


def add_request(request: object) -> None:
    """Have loops look: some step has to end, now or at its deadline."""
    requests.add(request)
    _count.value = len(requests)


def drop_request(request: object) -> None:
    """Note that a step has ended."""
    requests.discard(request)
    _count.value = len(requests)


def requests_address() -> int:
    """Return where the number of requests is, as 64 bits."""
    return ctypes.addressof(_count)


@contextmanager
def deadline(seconds: float | None) -> Generator[None]:
    """Limit what this thread runs inside the block to `seconds`, as far as it waits or loops.

    Of nested limits the nearest holds.

    Raises:
        ValueError: `seconds` is negative, or NaN.
        TypeError: it is no number.
    """
    if seconds is None:
        yield
        return
    if not isinstance(seconds, Real):
        raise TypeError(f"timeout must be a number of seconds that is not negative, or None; got {seconds!r}.")
    if not seconds >= 0:
        raise ValueError(f"timeout must be a number of seconds that is not negative, or None; got {seconds}.")
    before = _moment.get()
    moment = time.monotonic() + seconds
    request = object()
    add_request(request)
    token = _moment.set(moment if before is None else min(before, moment))
    try:
        yield
    finally:
        _moment.reset(token)
        drop_request(request)


def seconds_left() -> float | None:
    """Return how long this thread may still take, at least 0; None where there is no limit."""
    moment = _moment.get()
    return None if moment is None else max(moment - time.monotonic(), 0.0)


def seconds_late() -> float:
    """Return for how long the deadline of this thread has passed; 0 where it has not, or there is none."""
    moment = _moment.get()
    return 0.0 if moment is None else max(time.monotonic() - moment, 0.0)


def waits() -> Generator[float]:
    """Yield how many seconds to wait for something, time after time; it ends when this thread's deadline has passed.

    An interrupt that arrives just before a wait begins is seen when that ends: so a single one is never long.

    >>> with deadline(0):
    ...     list(waits())
    [0.0]
    """
    while True:
        left = seconds_left()
        if left is not None and left <= _LONGEST_WAIT:
            yield left
            return
        yield _LONGEST_WAIT
