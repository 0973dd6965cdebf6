"""`ProductThen`: a product and elementwise operations on it, tile by tile. Made by a pass, never by users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ...common.dtypes import as_dtype
from ...common.quick_dataclass import dataclass
from ...graph.op import Cost
from ...graph.provenance import Location
from ...graph.spec import Spec, TensorSpec
from ..base import Op
from ..linear_algebra.products import MatMul
from ..neural.quantized import QuantizedMatMul
from .fused import Fused
from .packed import PackedMatMul
from .winograd import Winograd


@dataclass(frozen=True)
class ProductThen(Op):
    """A product of matrices, and what is computed of each of its elements.

    Inputs: those of the product, then those of `then` but for its first one, which is the product. Outputs: the product
    if it `keeps` that, then the results of `then`, all of the product's shape.

    Attributes:
        product: what is computed first.
        taken: the number of its inputs.
        then: elementwise, over the product and further inputs.
        keeps: whether the product itself is needed.
        origin: the name of the operation that the product was, and the line that built it.
    """

    no_samples: ClassVar[str] = "is made by a pass out of products and `Fused`: test_epilogues"
    cost: ClassVar[Cost] = Cost.PRODUCT
    product: MatMul | PackedMatMul | Winograd | QuantizedMatMul
    taken: int
    then: Fused
    keeps: bool = False
    origin: tuple[str, Location | None] = ("", None)

    @property
    def steps(self) -> tuple[tuple[Op, tuple[int, ...]], ...]:
        """The steps, in order: each an op and, for those behind the product, the values of `then` that it takes."""
        return ((self.product, ()), *self.then.steps)

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        result = self.product.infer(*inputs[: self.taken])
        return (*([result] if self.keeps else []), *self.then.infer(result, *inputs[self.taken :]))

    @property
    def step_names(self) -> tuple[str, ...]:
        return (self.product.type_name, *self.then.step_names)

    def failed_part(self, values: Sequence[Any]) -> tuple[str, str, Location | None, int] | None:
        """Return the product, if the arrays do not fit it; see `Op.failed_part`."""
        try:
            self.product.infer(*[TensorSpec(value.shape, as_dtype(value.dtype)) for value in values[: self.taken]])
        except ValueError:
            name, location = self.origin
            return name, self.product.type_name, location, self.taken
        return None

    def run(self, xp: Any, *inputs: Any) -> Any:
        """Return the meaning, one after the other: what runs where no kernel can be compiled."""
        result = self.product.run(xp, *inputs[: self.taken])
        results = self.then.run(xp, result, *inputs[self.taken :])
        if self.keeps:
            return (result, *results)
        first, *others = results
        return results if others else first


@dataclass(frozen=True)
class WinogradThen(ProductThen):
    """A convolution by transforms, and what is computed of each element of its result."""

    no_samples: ClassVar[str] = "is made by a pass out of convolutions and `Fused`: test_winograd_epilogues"
    cost: ClassVar[Cost] = Cost.CONVOLUTION
