"""`Choice`: the way of an all-reduce between hosts, chosen by how long each took for arrays of that size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

TRIALS = 2  # of each way; the shorter counts


class Choice:
    """Tries the ways in turn for each class of sizes, and then stays with the one that was shortest.

    The classes are powers of two. All ways give the same bits, so that nothing but time depends on the choice. All
    members of a group make it alike: they ask in the same order, and each way counts as long as the slowest member.

    Args:
        ways: their names.
        share: gives each member the times that all have measured.

    Attributes:
        chosen: the way for each class, once it is known; a class is the number of bits of the size.
    """

    def __init__(self, ways: Sequence[str], share: Callable[[list[float]], Sequence[Sequence[float]]]) -> None:
        self.ways = list(ways)
        self.chosen: dict[int, str] = {}
        self._share = share
        self._counts: dict[int, int] = {}
        self._times: dict[int, list[float]] = {}

    def way(self, nbytes: int) -> str:
        """Return the way for the next array of so many bytes."""
        if len(self.ways) == 1:
            return self.ways[0]
        group = nbytes.bit_length()
        if group in self.chosen:
            return self.chosen[group]
        count = self._counts.get(group, 0)
        if count == (1 + TRIALS) * len(self.ways):
            members = self._share(self._times[group])
            slowest = [max(times) for times in zip(*members, strict=True)]
            self.chosen[group] = self.ways[slowest.index(min(slowest))]
            return self.chosen[group]
        return self.ways[count % len(self.ways)]

    def took(self, nbytes: int, seconds: float) -> None:
        """Count how long the way took that was given last for that size."""
        group = nbytes.bit_length()
        if group in self.chosen or len(self.ways) == 1:
            return
        count = self._counts.get(group, 0)
        self._counts[group] = count + 1
        times = self._times.setdefault(group, [float("inf")] * len(self.ways))
        if count >= len(self.ways):  # the first of each makes connections and memory warm
            number = count % len(self.ways)
            times[number] = min(times[number], seconds)


__all__ = ["Choice"]
