"""A count of operands that kernels refused as they were, so that they were laid out again, for `profile`.

That is right now and then, such as for what a user feeds. Where it happens in each iteration of a loop it costs more
than the kernel, and its cause is a bug of ours.
"""

from __future__ import annotations

import itertools


class Refits:
    """A count that threads may add to."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._asked = itertools.count()

    def note(self) -> None:
        """Count one more."""
        next(self._numbers)

    @property
    def count(self) -> int:
        """The number of refits since the process began."""
        return next(self._numbers) - next(self._asked)  # looking takes a number, too


refits = Refits()
