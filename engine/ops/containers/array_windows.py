"""Arrays as passes make them of loops: parts of a TensorArray, an array of values that are there, checks."""

from __future__ import annotations

from typing import Any, ClassVar

from ...common.quick_dataclass import dataclass
from ...graph.op import is_array
from ...graph.spec import ArraySpec, Dim, Spec, TensorSpec
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


@dataclass(frozen=True)
class CheckedRows(ArrayOp):
    """Inputs: x, count. x as it is, if it has so many places from `first` on along an axis.

    Made by loop fission, after differentiation, for a loop that goes through these places.

    Attributes:
        axis: the axis.
        first: the smallest of the places.
        falls: whether the loop goes through them from the last one on, which is the first to be missing then.
    """

    axis: int
    first: int
    falls: bool
    view: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Spec:
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, count = inputs[0], int(inputs[1])
        size, last = x.shape[self.axis], self.first + count - 1
        if count > 0 and last >= size:
            missing = last if self.falls else max(size, self.first)
            raise IndexError(f"index {missing} is out of bounds for axis {self.axis} with size {size}")
        return x


@dataclass(frozen=True)
class ArrayOf(ArrayOp):
    """The inputs as the elements of an array, in order: what the history of an unrolled loop is.

    Made by passes, after differentiation.

    Attributes:
        element: the elements' spec, for where there are none.
    """

    element: Spec

    def infer(self, *inputs: Any) -> Spec:
        element = inputs[0] if inputs else self.element
        for other in inputs[1:]:
            element = element.join(other)
        return ArraySpec(element, len(inputs))

    def run(self, xp: Any, *inputs: Any) -> Any:
        # Copies, for the memory of what is given may be used again. A branch that was not taken gives None.
        return ArrayValue.from_list([value.copy() if is_array(value) else value for value in inputs])


__all__ = ["ArrayOf", "ArrayWindow", "CheckedRows"]
