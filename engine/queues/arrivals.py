"""`Arrivals`: how long workers take for their gradients, and how many of them steps had better not wait for."""

from __future__ import annotations

from typing import Any

_KEPT = 64  # steps of which not all gradients have come


class Arrivals:
    """The times after which the gradients of steps arrive, also of those that come too late.

    A step counts when gradients of all workers have come. Its k-th arrival is when it would have had k of them.

    Source: Chen, Pan, Monga, Bengio and Jozefowicz, "Revisiting Distributed Synchronous SGD" (2016), section 4.
    """

    def __init__(self) -> None:
        self._open: dict[int, dict[int, float]] = {}  # by step: the seconds of each worker
        self._sums: list[float] = []  # of the first arrivals of all steps, of the second ones, and so on
        self._steps = 0

    def clear(self) -> None:
        """Forget all times."""
        self._open.clear()
        self._sums.clear()
        self._steps = 0

    def add(self, step: int, worker: int, seconds: float, workers: int) -> None:
        """Take note of a gradient.

        Args:
            step: whose parameters it was computed with.
            worker: who has computed it.
            seconds: how long after it was begun it has arrived.
            workers: how many take part.
        """
        known = self._open.setdefault(step, {})
        known.setdefault(worker, seconds)
        if len(known) >= workers:
            self._count(sorted(self._open.pop(step).values()))
        while len(self._open) > _KEPT:
            del self._open[min(self._open)]

    def _count(self, times: list[float]) -> None:
        if len(times) != len(self._sums):  # as many workers as now: others are no measure for them
            self._sums, self._steps = [0.0] * len(times), 0
        self._sums = [total + time for total, time in zip(self._sums, times, strict=True)]
        self._steps += 1

    def statistics(self) -> dict[str, Any]:
        """Compare numbers of backup workers among the workers that there are.

        Returns:
            ``steps``: how many were measured; ``seconds``: t(b) for b from 0 on, the mean time after which a step has
            the gradients of all workers but b; ``normalised``: t(0) / t(b) * m / (m + b), where m + b workers are all;
            ``favoured``: the b for which that is largest. Empty before a step was measured.
        """
        if not self._steps:
            return {}
        seconds = [total / self._steps for total in reversed(self._sums)]
        count = len(seconds)
        normalised = [
            (seconds[0] / time if time else 1.0) * (count - backups) / count for backups, time in enumerate(seconds)
        ]
        favoured = max(range(count), key=lambda backups: (normalised[backups], -backups))
        return {"steps": self._steps, "seconds": seconds, "normalised": normalised, "favoured": favoured}


__all__ = ["Arrivals"]
