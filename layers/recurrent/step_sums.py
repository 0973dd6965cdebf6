"""Sums over the steps of a loop: how what a layer computes inside a step (a loss, a count) comes out of the loop.

A value made in a loop's body leaves it only as a loop variable. What runs a loop around layers, such as `RNN` or a way
of decoding, opens `collect_step_sums` around its step, carries the values that were handed to it, adds them up, and
gives the totals back behind the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING

from ...engine import ops
from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import Graph, Tensor
from ...engine.graph.graph import get_default_graph

if TYPE_CHECKING:
    from ...engine.ops.arrays.shaping import DimLike


@dataclass(frozen=True)
class _Summand:
    values: list[Tensor]
    finish: Callable[..., None]
    by_row: bool


@dataclass
class StepSums:
    """The values that layers inside one step of a loop have handed out."""

    graph: Graph
    summands: list[_Summand] = field(default_factory=list[_Summand])

    def values(self, live: Tensor | None = None) -> list[Tensor]:
        """Return the values of this step.

        Args:
            live: ``(batch,)`` or ``(batch, 1)``, the rows that take this step: the others' values by row become 0.
        """
        found: list[Tensor] = []
        for summand in self.summands:
            for value in summand.values:
                if summand.by_row and live is not None:
                    value = ops.where(ops.reshape(live, (-1,)), value, ops.zeros_like(value))
                found.append(value)
        return found

    def added(self, totals: Sequence[Tensor], rows: Tensor | None = None) -> list[Tensor]:
        """Return the totals with the values of this step.

        Args:
            totals: so far, in the order of `values`.
            rows: ``(rows,)``, which rows of the totals take this step; None for all, in their order.
        """
        found: list[Tensor] = []
        for summand in self.summands:
            for value in summand.values:
                total = totals[len(found)]
                if rows is not None and summand.by_row:
                    value = ops.segment_sum(value, rows, ops.shape(total)[0])
                found.append(total + value)
        return found

    def zeros(self, batch: DimLike) -> list[Tensor]:
        """Return the initial values of the sums."""
        return [
            ops.zeros((batch,) if summand.by_row else value.shape or (), value.dtype)
            for summand in self.summands
            for value in summand.values
        ]

    def finish(self, totals: Sequence[Tensor]) -> None:
        """Give the totals, in the order of `values`, to the layers that asked for them.

        Those of a loop in a loop go on to the outer one, which adds them up; but not those by row, as rows may be
        others there.
        """
        left = list(totals)
        for summand in self.summands:
            taken, left = left[: len(summand.values)], left[len(summand.values) :]
            if summand.by_row:
                summand.finish(*taken)
            else:
                sum_over_steps(taken, summand.finish)


class _Open(threading.local):
    def __init__(self) -> None:
        self.stack: list[StepSums] = []


_open = _Open()


@contextmanager
def collect_step_sums() -> Generator[StepSums]:
    """Collect what layers that are called inside the block hand out in the current graph."""
    sums = StepSums(get_default_graph())
    _open.stack.append(sums)
    try:
        yield sums
    finally:
        _open.stack.pop()


def collects(values: Sequence[Tensor]) -> bool:
    """Test whether a loop around this point collects, and can carry these values out."""
    return bool(_open.stack) and all(_open.stack[-1].graph.sees(value) for value in values)


def sum_over_steps(values: Sequence[Tensor], finish: Callable[..., None], by_row: bool = False) -> None:
    """Call `finish` with the sums of values over the steps of the loop around this point; at once if there is none.

    Args:
        values: tensors of known shape; by row, of shape ``(batch,)``.
        finish: takes as many totals.
        by_row: whether values belong to rows, which are left out at steps that they do not take.
    """
    if collects(values):
        _open.stack[-1].summands.append(_Summand(list(values), finish, by_row))
    else:
        finish(*values)
