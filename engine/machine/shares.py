"""Spreads a batch of jobs over devices, by how long they are expected to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_SLACK = 1.1  # so much longer than an even spread a job may run before it is split
_WORTH = 0.95  # of the time that it takes whole, a split job takes at most


class Share(NamedTuple):
    """Rows of a job on one device."""

    device: str
    start: int
    rows: int


class Job:
    """Something with rows that has to run somewhere.

    Attributes:
        shares: where it runs, once that is decided.
    """

    __slots__ = ("is_split", "least_rows", "request", "rows", "shares")

    def __init__(self, request: Any, rows: int, is_split: bool = True, least_rows: int = 1) -> None:
        self.request = request
        self.rows = rows
        self.is_split = is_split
        self.least_rows = least_rows
        self.shares: list[Share] = []


Seconds = Callable[[Any, str], float]


def spread(jobs: Sequence[Job], loads: dict[str, float], a_row: Seconds, before: Seconds) -> None:
    """Decide where jobs run, the largest first, each where it ends first.

    Args:
        jobs: what is there; their `shares` are set.
        loads: for each device the seconds for which it is busy; brought up to date.
        a_row: the seconds that a row of a job's request takes on a device.
        before: the seconds that any part takes there besides.

    Devices are those of `request.site.targets`.

    >>> class Anything:
    ...     class site:
    ...         targets = ("a", "b")
    >>> jobs = [Job(Anything(), rows) for rows in (2, 10)]
    >>> spread(jobs, {"a": 0.0, "b": 0.0}, lambda request, device: 1.0, lambda request, device: 0.0)
    >>> [[tuple(share) for share in job.shares] for job in jobs]
    [[('b', 0, 2)], [('a', 0, 6), ('b', 6, 4)]]
    """
    least = {job: min([_whole(job, name, a_row, before) for name in job.request.site.targets]) for job in jobs}
    bound = (sum(loads.values()) + sum(least.values())) / max(1, len(loads))
    for job in sorted(jobs, key=least.__getitem__, reverse=True):
        targets = job.request.site.targets
        ends = {name: loads[name] + _whole(job, name, a_row, before) for name in targets}
        best = min(targets, key=ends.__getitem__)
        parts = {best: job.rows}
        if job.is_split and ends[best] > bound * _SLACK and job.rows >= 2 * job.least_rows and len(targets) > 1:
            cut = _cut(job, loads, bound, a_row, before)
            if _end(job, cut, loads, a_row, before) < ends[best] * _WORTH:
                parts = cut
        start = 0
        for name in targets:
            if name in parts:
                job.shares.append(Share(name, start, parts[name]))
                start += parts[name]
                loads[name] += before(job.request, name) + parts[name] * a_row(job.request, name)


def _whole(job: Job, name: str, a_row: Seconds, before: Seconds) -> float:
    return before(job.request, name) + job.rows * a_row(job.request, name)


def _end(job: Job, parts: dict[str, int], loads: dict[str, float], a_row: Seconds, before: Seconds) -> float:
    """Return when the last part is done."""
    return max(
        loads[name] + before(job.request, name) + rows * a_row(job.request, name) for name, rows in parts.items()
    )


def _cut(job: Job, loads: dict[str, float], bound: float, a_row: Seconds, before: Seconds) -> dict[str, int]:
    """Return rows for each device: those that are free fill up to the bound, and what is left over is spread evenly."""
    request, left = job.request, job.rows
    parts: dict[str, int] = {}
    for name in sorted(request.site.targets, key=loads.__getitem__):
        room = bound - loads[name] - before(request, name)
        fits = min(left, int(room / max(a_row(request, name), 1e-12)))
        if fits >= job.least_rows:
            parts[name] = fits
            left -= fits
    if not parts:
        return {min(request.site.targets, key=loads.__getitem__): job.rows}
    for number, name in enumerate(list(parts)):
        given = left // (len(parts) - number)
        parts[name] += given
        left -= given
    return parts


__all__ = ["Job", "Share", "spread"]
