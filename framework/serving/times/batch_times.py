"""`BatchTimes`: how long batches take, and so how many of the rows that wait are computed next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

_MOST_KINDS = 256  # that are remembered
_SHARE = 0.2  # of the latest time in the mean


class BatchTimes:
    """Learns by measuring how long batches of each size take.

    Batches are filled up to powers of two: of 35 rows, 64 are computed. Where a large model takes twice as long for 64
    rows as for 32, it is better to compute 32 of them, and the others with those that come meanwhile. Where a model
    takes as long for 64 as for 32, as it does if each of its operations is small, it is better to compute all.
    """

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float] = {}

    def note(self, key: Hashable, size: int, seconds: float) -> None:
        """Note how long a batch of `size` rows took; those with the same key are of the same shapes."""
        kind = key, size
        before = self._seconds.get(kind)
        if before is None and len(self._seconds) >= _MOST_KINDS:
            del self._seconds[next(iter(self._seconds))]
        self._seconds[kind] = seconds if before is None else before + _SHARE * (seconds - before)

    def rows(self, key: Hashable, waiting: int, size: int) -> int:
        """Return how many of the rows that wait are computed next: all, or the power of two below.

        That is the number by which more rows are computed in a second. As long as a size has not been measured, it is
        chosen, the larger one first.
        """
        half = 1 << (waiting - 1).bit_length() - 1 if waiting > 1 else 0
        of_all, of_half = self._seconds.get((key, size)), self._seconds.get((key, half))
        if waiting == size or not half or of_all is None:
            return waiting
        return half if of_half is None or half * of_all > waiting * of_half else waiting
