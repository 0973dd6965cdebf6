"""Parts of a TensorArray, as loop fission takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..graph.spec import Dim, Spec, TensorSpec
from .array_value import ArrayValue
from .tensor_arrays import ArrayOp


@dataclass(frozen=True)
class ArrayWindow(ArrayOp):
    """Inputs: array, start, count. So many elements from `start` on, along a new first axis.

    Made by loop fission, after differentiation. Elements elsewhere need not be there.

    Attributes:
        element: the elements' spec.
        count: how many there are, if that is known.
    """

    element: TensorSpec
    count: Dim = None
    view: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Spec:
        shape = self.element.shape
        return TensorSpec(None if shape is None else (self.count, *shape), self.element.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        array, start, count = inputs[0], int(inputs[1]), int(inputs[2])
        shape, dtype = self.element.shape, self.element.dtype
        if start + count <= array.size and array.is_dense:
            return array.stack(shape, dtype)[start : start + count]
        elements = [array.read(index) for index in range(start, start + count)]
        return ArrayValue.from_list(elements).stack(shape, dtype)


__all__ = ["ArrayWindow"]
