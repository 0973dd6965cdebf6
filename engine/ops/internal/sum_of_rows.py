"""Sums of rows that are taken from a table, or repeated, without the rows. Made by the pass `row_updates`."""

from __future__ import annotations

from typing import Any, ClassVar

from ...common.quick_dataclass import dataclass
from ...graph.spec import Dim, TensorSpec
from ..arrays.gathering import Take
from ..arrays.segments import SegmentSum
from ..base import Op


@dataclass(frozen=True)
class SumOfRows(Op):
    """Inputs: a table ``(r, ...)``, ids ``(n, k)``. For each n the sum of its k rows of the table: ``(n, ...)``.

    Attributes:
        wrap: whether negative ids count from the end; otherwise they are errors.
    """

    no_samples: ClassVar[str] = "is made by a pass: test_row_updates"
    wrap: bool = True

    def infer(self, *inputs: Any) -> TensorSpec:
        table, ids = inputs
        return TensorSpec((ids.shape[0], *table.shape[1:]), table.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return Take(0, self.wrap).run(xp, *inputs).sum(axis=1, dtype=inputs[0].dtype)


@dataclass(frozen=True)
class SumOfRepeated(Op):
    """Inputs: rows ``(m, ...)``, ids ``(m * repeats,)``, the number of segments. What `SegmentSum` gives of the rows if
    each is repeated.

    Attributes:
        count: the number of segments, if it is known.
        repeats: how many ids in a row are those of the same row.
    """

    no_samples: ClassVar[str] = "is made by a pass: test_row_updates"
    count: Dim
    repeats: int

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((self.count, *inputs[0].shape[1:]), inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        rows, ids, count = inputs
        return SegmentSum(self.count).run(xp, xp.repeat(rows, self.repeats, axis=0), ids, count)


@dataclass(frozen=True)
class SumOfParts(Op):
    """Inputs: ids ``(n,)``, the number of segments, parts whose rows are n together. What `SegmentSum` gives of the
    parts joined along their first axis.

    Attributes:
        count: the number of segments, if it is known.
    """

    no_samples: ClassVar[str] = "is made by a pass: test_native_segments"
    count: Dim

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((self.count, *inputs[2].shape[1:]), inputs[2].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        ids, count, *parts = inputs
        return SegmentSum(self.count).run(xp, xp.concatenate(parts, axis=0), ids, count)
