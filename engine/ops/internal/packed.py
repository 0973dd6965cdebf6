"""Products by matrices that are laid out once for many products. Made by the pass `pack`, never by users.

A packed matrix is a vector: for each block of rows, for each panel of columns, that panel of the block, row by row.
The last panel's missing columns are filled up, and never used. `Layout` says how large blocks and panels are; kernels
choose it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...common.quick_dataclass import dataclass
from ...graph.op import Cost
from ...graph.spec import TensorSpec
from ..base import Op


@dataclass(frozen=True)
class Layout:
    """The layout of a packed matrix.

    Attributes:
        rows: of the matrix.
        columns: of the matrix.
        block: rows of a block.
        panel: columns of a panel.
    """

    rows: int
    columns: int
    block: int
    panel: int

    @property
    def wide(self) -> int:
        """The columns of all panels."""
        return -(-self.columns // self.panel) * self.panel

    @property
    def size(self) -> int:
        """The elements of the packed matrix."""
        return self.rows * self.wide

    def packed(self, xp: Any, matrix: Any) -> Any:
        filled = xp.zeros((self.rows, self.wide), matrix.dtype)
        filled[:, : self.columns] = matrix
        blocks = [filled[start : start + self.block] for start in range(0, self.rows, self.block)]
        parts = [block.reshape((len(block), -1, self.panel)).swapaxes(0, 1).reshape(-1) for block in blocks]
        return xp.concatenate(parts) if parts else filled.reshape(-1)

    def unpacked(self, xp: Any, flat: Any) -> Any:
        found = xp.empty((self.rows, self.wide), flat.dtype)
        for start in range(0, self.rows, self.block):
            end = min(start + self.block, self.rows)
            block = flat[start * self.wide : end * self.wide].reshape((-1, end - start, self.panel))
            found[start:end] = block.swapaxes(0, 1).reshape((end - start, self.wide))
        return found[:, : self.columns]


@dataclass(frozen=True)
class Pack(Op):
    """A matrix, or its transpose, in a layout.

    Attributes:
        layout: of the matrix as it is multiplied by: of the transpose, if that is taken.
        transpose: take the transpose.
    """

    no_samples: ClassVar[str] = "is made by a pass: test_pack"
    layout: Layout
    transpose: bool = False

    def infer(self, *inputs: Any) -> TensorSpec:
        (matrix,) = inputs
        return TensorSpec((self.layout.size,), matrix.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (matrix,) = inputs
        return self.layout.packed(xp, matrix.T if self.transpose else matrix)


@dataclass(frozen=True)
class PackedMatMul(Op):
    """The product of a matrix and a packed one, to which further inputs, at most two, are added one after the other.

    Attributes:
        layout: of the packed matrix.
    """

    no_samples: ClassVar[str] = "is made by a pass: test_pack"
    cost: ClassVar[Cost] = Cost.PRODUCT
    layout: Layout

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((inputs[0].shape[0], self.layout.columns), inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        result = xp.matmul(inputs[0], self.layout.unpacked(xp, inputs[1]))
        for addend in inputs[2:]:
            result = result + addend
        return result
