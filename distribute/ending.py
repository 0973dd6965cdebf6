"""A flag that says that a task has ended, for threads that wait for it and may be interrupted."""

from __future__ import annotations

import queue
import time

_LONGEST_WAIT = 0.1  # seconds: an interrupt may have lost what wakes up who waits


class Ending:
    """A flag that is set once.

    A signal's handler may raise an exception at any point of a thread that waits. Between taking a lock and the block
    that gives it back, this leaves a `threading.Event` locked for ever: the thread that would set it waits, too. Here
    all waiting is done by a queue that is written in C, which gives back what it has taken.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Set the flag, and wake up who waits."""
        self._is_set = True
        self._signals.put(None)

    def is_set(self) -> bool:
        """Test whether the flag is set."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set; return whether it is.

        Args:
            timeout: how many seconds to wait at most; None for any time.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self._is_set:
            left = _LONGEST_WAIT if until is None else max(min(until - time.monotonic(), _LONGEST_WAIT), 0.0)
            try:
                self._signals.get(timeout=left)
            except queue.Empty:
                if until is not None and time.monotonic() >= until:
                    break
            else:
                self._signals.put(None)  # for others that wait
        return self._is_set


__all__ = ["Ending"]
