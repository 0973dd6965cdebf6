"""Clocks by which devices decide what is done: real time, and virtual time that jumps to what is waited for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from time import perf_counter, sleep

_SPUN = 150e-6  # seconds by which a sleep may come late: that much of a wait is spun


class Clock(ABC):
    """Gives the time in seconds, and waits for it."""

    @abstractmethod
    def now(self) -> float:
        """Return seconds since some beginning; never less than before."""

    @abstractmethod
    def wait_until(self, time: float) -> None:
        """Return once `now()` is at least `time`; at once if it is already."""


class RealClock(Clock):
    """The time of this machine. A wait ends within microseconds of its time: it sleeps, and spins at the end.

    >>> clock = RealClock()
    >>> start = clock.now()
    >>> clock.wait_until(start + 1e-4)
    >>> clock.now() - start >= 1e-4
    True
    """

    def now(self) -> float:
        return perf_counter()

    def wait_until(self, time: float) -> None:
        while (left := time - perf_counter()) > 0:
            if left > _SPUN:
                sleep(left - _SPUN)


class VirtualClock(Clock):
    """A time that stands still, but for jumping to what is waited for.

    Args:
        time: what it shows at first, in seconds.

    >>> clock = VirtualClock()
    >>> clock.wait_until(60.0)
    >>> clock.now()
    60.0
    """

    def __init__(self, time: float = 0.0) -> None:
        self._time = time

    def now(self) -> float:
        return self._time

    def wait_until(self, time: float) -> None:
        self._time = max(self._time, time)
