"""`Draw`: the first value of a variable, or some rows of it, described so that it can be computed later and elsewhere.

A draw of some rows has the bits that these rows have in a draw of the whole: random numbers are functions of a key and
a position. So the shards of a variable begin as the variable would that is not cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...common.dtypes import DType, as_dtype, name_of
from ...common.quick_dataclass import dataclass
from ...graph.op import as_scalar_or_array
from ...graph.state.initial_values import Later
from ...graph.state.sharded import Rows
from .samplers import draw_normal, draw_truncated_normal, draw_uniform

_BLOCK = 1 << 20  # numbers that are drawn at once where every n-th row is wanted
_NEAR = 1 << 16  # numbers that are drawn at once into the whole: steps on so many find them in a core's cache

_DRAWS: dict[str, Any] = {
    "uniform": draw_uniform,
    "normal": draw_normal,
    "truncated_normal": draw_truncated_normal,
}


@dataclass(frozen=True)
class Draw(Later):
    """The rows of a first value.

    Attributes:
        kind: "fill", "uniform", "normal" or "truncated_normal".
        key: two integers; none where all numbers are the same.
        numbers: what to fill with; or the bounds; or the mean and the standard deviation.
        whole: the shape of the whole.
        dtype: its dtype.
        rows: which rows of it; None for all, and for a scalar.
    """

    kind: str
    key: tuple[int, ...]
    numbers: tuple[Any, ...]
    whole: tuple[int, ...]
    dtype: DType  # pyrefly: ignore[bad-override] - nothing sets that of another first value
    rows: Rows | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the rows."""
        return self.whole if self.rows is None else (len(self.rows), *self.whole[1:])

    def at(self, rows: Rows) -> Draw:
        """Draw the same numbers for some of the rows.

        Raises:
            ValueError: these are rows of a part already.
        """
        if self.rows is not None:
            raise ValueError("Rows can be taken of the whole draw only.")
        return replace(self, rows=rows)

    def compute(self) -> Any:
        """Draw the numbers."""
        if self.kind == "fill":
            (number,) = self.numbers
            is_zero = type(number) in (int, float) and number == 0
            found = np.zeros(self.shape, self.dtype) if is_zero else np.full(self.shape, number, self.dtype)
            return as_scalar_or_array(found)
        if self.rows is None:
            return self._drawn(0, math.prod(self.whole)).reshape(self.whole)[()]
        width = math.prod(self.whole[1:])
        if self.rows.step == 1:
            return self._drawn(self.rows.first * width, len(self.rows) * width).reshape(self.shape)
        found = np.empty(self.shape, self.dtype)
        step = self.rows.step
        block = max(_BLOCK // max(width, 1) // step, 1) * step  # a multiple, so that each block begins alike
        done = 0
        for first in range(self.rows.first, self.rows.stop, block):
            count = min(block, self.rows.stop - first)
            part = self._drawn(first * width, count * width).reshape(count, *self.whole[1:])[::step]
            found[done : done + len(part)] = part
            done += len(part)
        return found

    def _drawn(self, start: int, count: int) -> Any:
        key, draw = np.array(self.key, "int64"), _DRAWS[self.kind]
        total = math.prod(self.whole)
        if count <= _NEAR or self.kind == "normal":  # whose halves share what parts compute twice
            return np.asarray(draw(key, (count,), self.dtype, *self.numbers, part=(start, total)))
        found = np.empty(count, self.dtype)
        for first in range(0, count, _NEAR):
            shape = (min(_NEAR, count - first),)
            found[first : first + _NEAR] = draw(key, shape, self.dtype, *self.numbers, part=(start + first, total))
        return found

    def describe(self) -> dict[str, Any]:
        """Describe it as values of JSON."""
        return {
            "kind": self.kind,
            "key": list(self.key),
            "numbers": [number.item() if isinstance(number, np.generic) else number for number in self.numbers],
            "whole": list(self.whole),
            "dtype": name_of(self.dtype),
            "rows": None if self.rows is None else [self.rows.first, self.rows.stop, self.rows.step],
        }


def described_draw(description: Any) -> Draw:
    """Read what `Draw.describe` wrote.

    Raises:
        ValueError: there is no such kind of draw.
    """
    kind: str = description["kind"]
    if kind != "fill" and kind not in _DRAWS:
        raise ValueError(f"First values of the kind {kind!r} are not known here. Use a newer version of anabranch.")
    rows: Sequence[int] | None = description["rows"]
    return Draw(
        kind,
        tuple(int(part) for part in description["key"]),
        tuple(description["numbers"]),
        tuple(int(size) for size in description["whole"]),
        as_dtype(description["dtype"]),
        None if rows is None else Rows(*map(int, rows)),
    )


__all__ = ["Draw", "described_draw"]
