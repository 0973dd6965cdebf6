"""`StepWatch`: notices a step of a model that does not end."""

from __future__ import annotations

import time
from collections.abc import Callable

_LEAST_SECONDS = 1.0
_FACTOR = 2  # of the longest step before


class StepWatch:
    """Keeps the time of the steps of a model, one after the other, to find one that does not end.

    That is one that takes longer than `patience`. It is also one during which a request ran out of the time that its
    client gave it, if the step takes longer than a second, and than twice the longest step before: an impatient client
    does not make a slow model count as stuck. Steps begin and end on one thread; others may look.

    Args:
        patience: seconds; None for any time.
        clock: returns seconds.

    >>> watch = StepWatch(patience=None)
    >>> watch.begin()
    >>> watch.is_stuck
    False
    """

    def __init__(self, patience: float | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._patience, self._clock = patience, clock
        self._began: float | None = None
        self._longest = 0.0
        self._late: tuple[float, float] | None = None  # when a step began, and when a request in its time was due

    def begin(self) -> None:
        """Note that a step begins, and that the one before it has ended."""
        self.end()
        self._began = self._clock()

    def end(self) -> None:
        """Note that the step has ended."""
        if self._began is not None:
            self._longest = max(self._longest, self._clock() - self._began)
        self._began = None

    def note_unanswered(self, due: float | None) -> None:
        """Note that a request ended without its answer, which was due at a time of the clock, or at no time."""
        began, late = self._began, self._late
        if began is None or due is None:
            return
        if late is None or late[0] != began or due < late[1]:
            self._late = began, due

    @property
    def seconds(self) -> float:
        """For how long the step has been computed; 0 if there is none."""
        began = self._began
        return 0.0 if began is None else self._clock() - began

    @property
    def is_stuck(self) -> bool:
        """Test whether a step does not end, so that nobody gets an answer."""
        began, late = self._began, self._late
        if began is None:
            return False
        now = self._clock()
        if self._patience is not None and now - began > self._patience:
            return True
        is_late = late is not None and late[0] == began and now > late[1]
        return is_late and now - began > max(_LEAST_SECONDS, _FACTOR * self._longest)
