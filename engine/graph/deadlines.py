"""Deadlines of steps: how long what blocks (a dequeue, say) may wait in the thread that runs the step."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

_LONGEST_WAIT = 0.1  # seconds


class _Latest(threading.local):
    def __init__(self) -> None:
        self.moment: float | None = None


_latest = _Latest()


@contextmanager
def deadline(seconds: float | None) -> Generator[None]:
    """What this thread runs inside the block may wait for `seconds` altogether; of nested limits the nearest holds.

    Raises:
        ValueError: `seconds` is negative.
    """
    if seconds is None:
        yield
        return
    if seconds < 0:
        raise ValueError(f"timeout must be a number of seconds that is not negative, or None; got {seconds}.")
    before = _latest.moment
    moment = time.monotonic() + seconds
    _latest.moment = moment if before is None else min(before, moment)
    try:
        yield
    finally:
        _latest.moment = before


def seconds_left() -> float | None:
    """How long this thread may still wait, at least 0; None where there is no limit."""
    return None if _latest.moment is None else max(_latest.moment - time.monotonic(), 0.0)


def waits() -> Generator[float]:
    """How many seconds to wait for something, time after time; it ends when this thread's deadline has passed.

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
