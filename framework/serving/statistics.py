"""`Statistics`: what a version of a model has computed since it was loaded, as Triton's statistics have it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

_PARTS: tuple[str, ...] = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")


class BatchObserver(Protocol):
    """Is notified of each batch."""

    def batch(self, rows: int, queue_seconds: Sequence[float], compute_seconds: float) -> None:
        """Note how many rows of requests it had, how long each request waited, and how long the batch took."""
        ...


class Statistics:
    """Counts the requests and batches of one version; belongs to the server's event loop.

    Args:
        others: are notified of the batches, too.
    """

    def __init__(self, *others: BatchObserver) -> None:
        self._others = others
        self._counts = dict.fromkeys(_PARTS, 0)
        self._nanoseconds = dict.fromkeys(_PARTS, 0)
        self._batches: dict[int, list[int]] = defaultdict(lambda: [0, 0])  # by rows: how many, and nanoseconds
        self._rows = 0
        self._last_milliseconds = 0

    def answered(self, has_failed: bool, seconds: float) -> None:
        """Count a request that took so long."""
        if not has_failed:
            self._last_milliseconds = time.time_ns() // 1_000_000
        self._add("fail" if has_failed else "success", 1, round(seconds * 1e9))

    def batch(self, rows: int, queue_seconds: Sequence[float], compute_seconds: float) -> None:
        """Count a batch."""
        nanoseconds, rows_or_one = round(compute_seconds * 1e9), rows or 1
        self._add("queue", len(queue_seconds), round(sum(queue_seconds) * 1e9))
        self._add("compute_infer", len(queue_seconds), nanoseconds)
        self._rows += rows_or_one
        found = self._batches[rows_or_one]
        found[0], found[1] = found[0] + 1, found[1] + nanoseconds
        for each in self._others:
            each.batch(rows, queue_seconds, compute_seconds)

    def _add(self, part: str, count: int, nanoseconds: int) -> None:
        self._counts[part] += count
        self._nanoseconds[part] += nanoseconds

    def to_json(self, name: str, version: str) -> dict[str, Any]:
        """Return the fields of Triton's ``ModelStatistics``; times are nanoseconds."""
        batches = [
            {"batch_size": rows, "compute_infer": {"count": count, "ns": nanoseconds}}
            for rows, (count, nanoseconds) in sorted(self._batches.items())
        ]
        return {
            "name": name,
            "version": version,
            "last_inference": self._last_milliseconds,
            "inference_count": self._rows,
            "execution_count": sum(count for count, _ in self._batches.values()),
            "inference_stats": {part: {"count": self._counts[part], "ns": self._nanoseconds[part]} for part in _PARTS},
            "batch_stats": batches,
        }
