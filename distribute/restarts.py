"""`Restarts`: how often something that was lost may be started again."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable

_HOUR = 3600.0


class Restarts:
    """Counts restarts, and allows so many of them within an hour.

    Args:
        limit: how many.
        clock: gives the time, in seconds.

    >>> now = 0.0
    >>> restarts = Restarts(1, lambda: now)
    >>> restarts.take(), restarts.take()
    (True, False)
    >>> now = 3601.0
    >>> restarts.take()
    True
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._times: collections.deque[float] = collections.deque()

    @property
    def count(self) -> int:
        """Return the number of those within the last hour."""
        while self._times and self._clock() - self._times[0] >= _HOUR:
            self._times.popleft()
        return len(self._times)

    @property
    def are_left(self) -> bool:
        """Test whether one more is allowed now."""
        return self.count < self.limit

    def take(self) -> bool:
        """Count one more, if it is allowed; return whether it is."""
        if not self.are_left:
            return False
        self._times.append(self._clock())
        return True
