"""Products by matrices of four-bit integers in the layout that kernels read. Made by the pass `lay_out`.

Integers stay two columns a byte, so that the layout is as large as what files hold; only the order of bytes differs.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...common.quick_dataclass import dataclass
from ...graph.op import Cost
from ...graph.state.aligned import aligned_copy
from .int4_matmul import Int4MatMul

_FOUR = 4  # terms whose products one number of 32 bits adds
_LANE = 16  # bytes within which a vector is interleaved
_UNSIGNED = -120  # by which an exclusive or makes both halves of a byte 8 larger: 0 to 15


def filled_up(xp: Any, matrix: Any, rows: int, columns: int) -> Any:
    """Return an int8 matrix with zeros behind its rows and columns, or the matrix itself where none are to be added."""
    if matrix.shape == (rows, columns):
        return matrix
    filled = xp.zeros((rows, columns), xp.int8)
    filled[: matrix.shape[0], : matrix.shape[1]] = matrix
    return filled


def in_order(xp: Any, parts: Any) -> Any:
    """Return a copy of all elements as a vector. On the host it begins at a cache line: kernels read whole ones."""
    return (aligned_copy(parts) if xp is np else parts.copy()).reshape(-1)


@dataclass(frozen=True)
class Int4Panels:
    """The layout of a matrix of four-bit integers: for some columns, for each four terms, their bytes interleaved.

    Attributes:
        terms, width: the sizes of the matrix, whose rows have `width` bytes of two columns each.
        line: the bytes of a term that are side by side: those of a vector.
    """

    terms: int
    width: int
    line: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix as it is stored elsewhere."""
        return self.terms, self.width

    @property
    def padded(self) -> int:
        """The number of terms, with those that fill up the last four."""
        return -(-self.terms // _FOUR) * _FOUR

    @property
    def wide(self) -> int:
        """The bytes of a term, with those that fill up the last vector."""
        return -(-self.width // self.line) * self.line

    @property
    def size(self) -> int:
        """The bytes of the layout."""
        return self.padded * self.wide

    def laid_out(self, xp: Any, matrix: Any) -> Any:
        """Return the bytes of a matrix in this layout."""
        sizes = (self.padded // _FOUR, _FOUR, self.wide // self.line, self.line // _LANE, _FOUR, _LANE // _FOUR)
        parts = filled_up(xp, matrix, self.padded, self.wide).reshape(sizes).transpose((2, 0, 4, 3, 5, 1))
        flat = in_order(xp, parts)
        flat ^= xp.int8(_UNSIGNED)
        return flat

    def plain(self, xp: Any, flat: Any) -> Any:
        """Return the matrix as it is stored elsewhere."""
        sizes = (self.wide // self.line, self.padded // _FOUR, _FOUR, self.line // _LANE, _LANE // _FOUR, _FOUR)
        parts = (flat ^ xp.int8(_UNSIGNED)).reshape(sizes).transpose((1, 5, 0, 3, 2, 4))
        return xp.ascontiguousarray(parts.reshape((self.padded, self.wide))[: self.terms, : self.width])


@dataclass(frozen=True)
class LaidOutInt4MatMul(Int4MatMul):
    """An `Int4MatMul` whose matrix is in a layout: its bytes are the second input.

    Attributes:
        panels: the layout.
    """

    type_name: ClassVar[str] = "laid_out_int4_mat_mul"
    no_samples: ClassVar[str] = "is made by a pass: test_laid_out_int4"
    cost: ClassVar[Cost] = Cost.PRODUCT
    panels: Int4Panels | None = None

    def run(self, xp: Any, *inputs: Any) -> Any:
        assert self.panels is not None
        return super().run(xp, inputs[0], self.panels.plain(xp, inputs[1]), *inputs[2:])


__all__ = ["Int4Panels", "LaidOutInt4MatMul"]
