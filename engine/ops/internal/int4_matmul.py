"""`Int4MatMul`: a product by a matrix of four-bit integers, which is not made a matrix of floats. Made by a pass."""

from __future__ import annotations

from typing import Any, ClassVar

from ...common.quick_dataclass import dataclass
from ...graph.spec import TensorSpec
from ..base import Op
from ..neural.int4 import DequantizeInt4


@dataclass(frozen=True)
class Int4MatMul(Op):
    """The product of rows and of what `DequantizeInt4` makes of the other inputs.

    Inputs: `x` (rows, terms), float32; then those of `DequantizeInt4`.

    Attributes:
        matrix: the op that would make floats.
    """

    type_name: ClassVar[str] = "int4_matmul"
    no_samples: ClassVar[str] = "is made by a pass: test_int4_products"
    matrix: DequantizeInt4

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((inputs[0].shape[0], self.matrix.columns), inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.matmul(inputs[0], self.matrix.run(xp, *inputs[1:]))
