"""Estimates of what loops and whole steps take: how many operations they run, and their time as machine code."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

from ...common.machine_profile import machine_profile
from ...control_flow.while_loop import While
from ...graph.graph import Operation, Parameter
from ...ops.base import Constant
from ..framework.estimates import flops_of
from .linear import trip_count


def work_of_all(operations: Iterable[Operation], enough: float = math.inf) -> int | None:
    """Return the number of operations run: loops in each iteration, branches in the longest; None: unknown.

    Args:
        operations: which; those that follow on `enough` are not counted.
        enough: that many are all that the caller asks for.
    """
    total = 0
    for operation in operations:
        work = work_of(operation)
        if work is None:
            return None
        total += work
        if total >= enough:
            break
    return total


def work_of(operation: Operation) -> int | None:
    """Return the number of operations that a run of one takes, as `work_of_all` counts them; None: unknown."""
    op = operation.op
    if isinstance(op, (Constant, Parameter)):
        return 0
    inside = [work_of_all(region.operations) for region in op.regions]
    known = [work for work in inside if work is not None]
    if len(known) < len(inside):
        return None
    if not isinstance(op, While):
        return max(known, default=0) + 1
    trips = trip_count(operation)
    return None if trips is None or trips.known is None else max(trips.known, 0) * sum(known)


def loop_seconds(operation: Operation, each: dict[Hashable, float] | None = None, text: Hashable = None) -> float:
    """Estimate how long a native loop takes; infinity where that depends on the data.

    Args:
        operation: the loop.
        each: how long an iteration takes of loops of some code; gets that of this one, unless it holds other loops.
        text: the code of this one.
    """
    trips = trip_count(operation)
    if trips is None or trips.known is None:
        return math.inf
    seconds = None if each is None else each.get(text)
    if seconds is None:
        seconds = sum(sum(map(native_seconds, region.operations)) for region in operation.op.regions)
        if each is not None and not any(region.holds_regions for region in operation.op.regions):
            each[text] = seconds
    return max(trips.known, 0) * seconds


def native_seconds(operation: Operation) -> float:
    """Estimate how long an operation takes in machine code, on one core; infinity where that depends on the data."""
    op = operation.op
    if isinstance(op, (Constant, Parameter)):
        return 0.0
    if isinstance(op, While):
        return loop_seconds(operation)
    if op.regions:
        return max(sum(map(native_seconds, region.operations)) for region in op.regions)
    if all(tensor.shape == () for tensor in operation.outputs):
        return machine_profile().scalar_seconds
    return machine_profile().array_seconds + flops_of(operation) * machine_profile().flop_seconds


__all__ = ["loop_seconds", "native_seconds", "work_of_all"]
