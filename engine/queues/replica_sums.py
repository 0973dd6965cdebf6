"""The values that workers put in a step of replicas, reduced in the order of the set or as they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common import dtypes
from ..common.dtypes import as_dtype
from ..graph.spec import Shape, TensorSpec


@dataclass(frozen=True)
class Part:
    """One of the values that each worker puts in a step.

    Attributes:
        dtype: of the value, by name.
        shape: of the value, or for rows of the whole table.
        reduction: "mean" weights workers by their rows, "sum" adds up, "first" takes the first worker's.
        has_rows: whether the value is some rows of a table: indices and values.
    """

    dtype: str
    shape: Shape
    reduction: str = "mean"
    has_rows: bool = False

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The specs of what is put and what is taken."""
        if not self.has_rows:
            return (TensorSpec(self.shape, as_dtype(self.dtype)),)
        rows: Shape = None if self.shape is None else (None, *self.shape[1:])
        return TensorSpec((None,), dtypes.int64), TensorSpec(rows, as_dtype(self.dtype))


class ArrivingSum:
    """The sum of what is added to it, in the order in which that comes.

    Values that are not sums (the first worker's, rows of tables) are kept apart until the sum is taken.

    Args:
        parts: what each worker puts.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(parts)
        self._sums: list[Any] = [None] * len(self._parts)
        self._kept: dict[int, tuple[int, list[Any]]] = {}

    def __contains__(self, ticket: int) -> bool:
        """Test whether the values of a ticket are in it."""
        return ticket in self._kept

    def add(self, ticket: int, rows: int, values: Sequence[Any]) -> None:
        """Add what a worker has put under a ticket, of so many rows."""
        kept: list[Any] = []
        position = 0
        for number, part in enumerate(self._parts):
            column = list(values[position : position + len(part.specs)])
            position += len(column)
            if part.has_rows or part.reduction == "first":
                kept.append(column)
                continue
            value = scaled(column[0], 1.0 if part.reduction == "sum" else float(rows))
            total = self._sums[number]
            if total is None:
                self._sums[number] = np.array(value)
            else:
                np.add(total, value, out=total)
        self._kept[ticket] = rows, kept

    def take(self, tickets: Sequence[int]) -> list[Any]:
        """Return the reduced values, and forget them.

        Args:
            tickets: those that were added, in the order of their shares.

        Raises:
            ValueError: others were added, too, which can't be taken out again.
        """
        if {*tickets} != {*self._kept}:
            raise ValueError(f"The sum is of tickets {sorted(self._kept)}, and asked for those of {sorted(tickets)}.")
        given = [self._kept[ticket] for ticket in tickets]
        weights = [rows for rows, _ in given]
        columns = [iter(kept) for _, kept in given]
        found: list[Any] = []
        for part, total in zip(self._parts, self._sums, strict=True):
            if total is None:
                found += reduced(part, [next(each) for each in columns], weights)
            else:
                whole = total if part.reduction == "sum" else scaled(total, 1.0 / sum(weights))
                found.append(np.asarray(whole).astype(as_dtype(part.dtype), copy=False))
        self.clear()
        return found

    def clear(self) -> None:
        """Forget all that was added."""
        self._sums = [None] * len(self._parts)
        self._kept.clear()


def reduced(part: Part, columns: Sequence[Sequence[Any]], weights: Sequence[int]) -> list[Any]:
    """Return one part's values, reduced over workers: for rows of a table the indices, then the values."""
    dtype = as_dtype(part.dtype)
    shares = [1.0] * len(weights) if part.reduction == "sum" else [weight / sum(weights) for weight in weights]
    if part.reduction == "first":
        columns, shares = columns[:1], [1.0]
    values = (scaled(column[-1], share) for column, share in zip(columns, shares, strict=True))
    if part.has_rows:
        indices = np.concatenate([column[0] for column in columns])
        return [indices, np.concatenate(list(values)).astype(dtype, copy=False)]
    total = np.array(next(values))  # the worker's own array stays as it is
    for value in values:
        np.add(total, value, out=total)
    return [total.astype(dtype, copy=False)]


def scaled(value: Any, share: float) -> Any:
    """Multiply a value by a number; short floats become float32."""
    wide = value.astype("float32") if value.dtype.itemsize == 2 and value.dtype.kind not in "iub" else value
    return wide if share == 1.0 else wide * wide.dtype.type(share)


__all__ = ["ArrivingSum", "Part", "reduced", "scaled"]
