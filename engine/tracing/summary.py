"""A trace as a table of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..common.html import shortened
from .recorder import Details, Event, Slice

_WIDEST_NAME = 40
_UNITS = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")]


def summarise(events: Sequence[Event], top: int = 20) -> str:
    """Return how busy each device was, and the kernels that took longest, by name and operation.

    >>> from .recorder import Recorder
    >>> recorder = Recorder()
    >>> recorder.kernel("cpu:0", "compute", "matmul", 0.0, 0.003, {"operation": "dense/matmul"})
    >>> recorder.kernel("cpu:0", "compute", "matmul", 0.003, 0.004, {"operation": "dense/matmul"})
    >>> recorder.kernel("sim:0", "h2d", "recv", 0.004, 0.005)
    >>> print(summarise(recorder.events))
    5 ms from the first event to the last, 3 kernels
    device     busy  share  kernels
    cpu:0      4 ms  80.0%        2
    sim:0      1 ms  20.0%        1
    <BLANKLINE>
      time  share  count       mean  kernel                                    operation
      4 ms  80.0%      2       2 ms  matmul                                    dense/matmul
      1 ms  20.0%      1       1 ms  recv
    """
    slices = [event for event in events if isinstance(event, Slice)]
    kernels = [event for event in slices if event.is_kernel]
    if not slices:
        return "Nothing was recorded."
    whole = max(event.end for event in slices) - min(event.start for event in slices)
    lines = [f"{_time(whole)} from the first event to the last, {len(kernels)} kernels"]
    lines += _devices(kernels, whole)
    lines += ["", *_operations(kernels, top)]
    return "\n".join(line.rstrip() for line in lines)


def _devices(kernels: Sequence[Slice], whole: float) -> list[str]:
    devices = sorted({kernel.lane.device for kernel in kernels})
    width = max([8, *map(len, devices)])
    lines = [f"{'device':<{width}} {'busy':>8}  {'share':>5}  {'kernels':>7}"]
    for device in devices:
        own = [kernel for kernel in kernels if kernel.lane.device == device]
        busy = _covered((kernel.start, kernel.end) for kernel in own)
        lines.append(f"{device:<{width}} {_time(busy):>8}  {_share(busy, whole):>5}  {len(own):>7}")
    return lines


def _operations(kernels: Sequence[Slice], top: int) -> list[str]:
    groups: dict[tuple[str, str], list[float]] = {}
    for kernel in kernels:
        key = kernel.name, _operation(kernel.details)
        groups.setdefault(key, []).append(kernel.end - kernel.start)
    ranked = sorted(groups.items(), key=lambda group: -sum(group[1]))
    total = sum(sum(times) for times in groups.values())
    lines = [f"{'time':>8}  {'share':>5}  {'count':>5}  {'mean':>8}  {'kernel':<{_WIDEST_NAME}}  operation"]
    for (name, operation), times in ranked[:top]:
        spent, count = sum(times), len(times)
        shown = shortened(name, _WIDEST_NAME)
        row = f"{_time(spent):>8}  {_share(spent, total):>5}  {count:>5}  {_time(spent / count):>8}"
        lines.append(f"{row}  {shown:<{_WIDEST_NAME}}  {operation}")
    if len(ranked) > top:
        rest = sum(sum(times) for _, times in ranked[top:])
        lines.append(f"{_time(rest):>8}  {_share(rest, total):>5}  in {len(ranked) - top} others")
    return lines


def _operation(details: Details) -> str:
    """Return the operation that details name, if they do."""
    found: Any = details() if callable(details) else details
    return str(found.get("operation", "")) if found else ""


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of `intervals`."""
    total, reached = 0.0, -float("inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def _time(seconds: float) -> str:
    """Return seconds with three digits and a unit."""
    scale, unit = next(((s, unit) for s, unit in _UNITS if seconds >= s), _UNITS[-1])
    number = seconds / scale
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
