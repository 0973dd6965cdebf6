"""Ops over TensorArray values, their gradients, and how cotangents of arrays are accumulated.

The cotangent of an array is an array whose unwritten elements count as zero. Reading and writing are each other's
gradients; a read adds to one element of the cotangent, in place, so loops stay linear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType, name_of
from ...common.quick_dataclass import dataclass
from ...graph.spec import ArraySpec, FrameSpec, Shape, Spec, TensorSpec, shape_text
from .. import row_rules
from ..base import Op, Operation, Sample, Tensor, apply, as_scalar_or_array
from ..run_time_shapes import runtime_shape
from .array_value import ArrayValue
from .contributions import Contribution, PartialSum
from .record_value import Record, RecordSpec
from .store_value import empty_value


def array_spec(tensor: Tensor) -> ArraySpec:
    """Return the spec of a tensor that holds a TensorArray."""
    assert isinstance(tensor.spec, ArraySpec), f"{tensor!r} is no TensorArray"
    return tensor.spec


@dataclass(frozen=True)
class ElementContribution(Contribution):
    """A cotangent for one element of an array."""

    array: Tensor
    index: Tensor
    value: Tensor

    def add_to(self, current: Any) -> Any:
        if current is None or isinstance(current, ElementsSum):
            return ElementsSum((*(current.parts if current else ()), self))
        return apply(ArrayAddAt(), current, self.index, self.value)


@dataclass(frozen=True)
class ElementsSum(PartialSum):
    """A cotangent of single elements so far. They wait for an array to be added to: adding two arrays costs more."""

    parts: tuple[ElementContribution, ...]

    def add_to(self, current: Any) -> Any:
        for part in self.parts:
            current = part.add_to(current)
        return current

    def put_together(self, sparse: bool) -> Tensor:
        return self.add_to(apply(ArrayEmpty(array_spec(self.parts[0].array))))


class ArrayOp(Op):
    """Base: ops that take or give TensorArrays."""

    no_samples: ClassVar[str] = "takes TensorArrays, which have their own tests"


@dataclass(frozen=True)
class ArrayEmpty(ArrayOp):
    """An array of no elements: the zero among cotangents."""

    spec: ArraySpec

    def infer(self, *inputs: Any) -> Spec:
        return self.spec.with_elements(self.spec.element)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return empty_value(self.spec)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return ()


@dataclass(frozen=True)
class ArrayNew(ArrayOp):
    """A new array of as many unwritten elements as the input says."""

    element: TensorSpec
    size: int | None
    open_shape: bool

    def infer(self, *inputs: Any) -> Spec:
        return ArraySpec(self.element, self.size, self.open_shape)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return ArrayValue.empty(int(inputs[0]))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)


@dataclass(frozen=True)
class ArrayWrite(ArrayOp):
    """Inputs: array, index, value. A new array with the value at the index."""

    dynamic_size: bool = False
    row_state = row_rules.with_element

    def infer(self, *inputs: Any) -> Spec:
        array, _, value = inputs
        if array.dtype != value.dtype:
            kinds = f"TensorArray of {name_of(array.dtype)} elements: a {name_of(value.dtype)} value"
            raise TypeError(f"{kinds} was written. Cast it first.")
        element = value if array.empty else array.element.join(value)
        return ArraySpec(element, None if self.dynamic_size else array.size)

    def run(self, xp: Any, *inputs: Any) -> Any:
        array, index, value = inputs
        return array.write(index, value, self.dynamic_size)

    def emit(self, arguments: Sequence[str]) -> str | None:
        array, index, value = arguments
        return f"{array}.write({index}, {value}{', True' if self.dynamic_size else ''})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        _, index, value = node.inputs
        assert dy is not None
        return apply(ArrayClear(), dy, index), None, read_or_zeros(dy, index, value)


@dataclass(frozen=True)
class ArrayRead(ArrayOp):
    """Inputs: array, index. The element at the index."""

    view: ClassVar[bool] = True
    row_state = row_rules.element

    def infer(self, *inputs: Any) -> Spec:
        return inputs[0].element

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0].read(inputs[1])

    def emit(self, arguments: Sequence[str]) -> str | None:
        return f"{arguments[0]}.read({arguments[1]})"

    def emit_last(self, arguments: Sequence[str]) -> str:
        """Return the call where nothing reads the element again."""
        return f"{arguments[0]}.take({arguments[1]})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        array, index = node.inputs
        assert dy is not None
        return ElementContribution(array, index, dy), None


@dataclass(frozen=True)
class ArrayReadOrZeros(ArrayOp):
    """Inputs: array, index, shape. The element, or zeros of the shape if it was never written."""

    spec: TensorSpec
    view: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Spec:
        return self.spec

    def run(self, xp: Any, *inputs: Any) -> Any:
        array, index, shape = inputs
        element = array.read_or_none(index)
        if element is not None:
            return element
        return as_scalar_or_array(xp.zeros(tuple(int(dim) for dim in shape), self.spec.dtype))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        array, index, _ = node.inputs
        assert dy is not None
        return ElementContribution(array, index, dy), None, None


@dataclass(frozen=True)
class ArrayReadOrEmpty(ArrayOp):
    """Inputs: array of arrays, index. The element, or an empty array if it was never written."""

    spec: ArraySpec
    view: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Spec:
        return self.spec

    def run(self, xp: Any, *inputs: Any) -> Any:
        element = inputs[0].read_or_none(inputs[1])
        return empty_value(self.spec) if element is None else element

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        array, index = node.inputs
        assert dy is not None
        return ElementContribution(array, index, dy), None


@dataclass(frozen=True)
class ArrayAddAt(ArrayOp):
    """Inputs: array, index, value. A new array with the value added to one element."""

    def infer(self, *inputs: Any) -> Spec:
        return inputs[0].with_elements(inputs[0].element if not inputs[0].empty else inputs[2])

    def run(self, xp: Any, *inputs: Any) -> Any:
        array, index, value = inputs
        return array.add_at(index, value)

    def emit(self, arguments: Sequence[str]) -> str | None:
        return f"{arguments[0]}.add_at({arguments[1]}, {arguments[2]})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        _, index, value = node.inputs
        assert dy is not None
        return dy, None, read_or_zeros(dy, index, value)


@dataclass(frozen=True)
class ArrayClear(ArrayOp):
    """Inputs: array, index. A new array without the element at the index."""

    def infer(self, *inputs: Any) -> Spec:
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0].clear(inputs[1])

    def emit(self, arguments: Sequence[str]) -> str | None:
        return f"{arguments[0]}.clear({arguments[1]})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply(ArrayClear(), dy, node.inputs[1]), None


@dataclass(frozen=True)
class ArraySum(ArrayOp):
    """The elementwise sum of two arrays; unwritten elements count as zero."""

    def infer(self, *inputs: Any) -> Spec:
        a, b = inputs
        return a.with_elements(a.element.join(b.element))

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0].sum(inputs[1])

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return cotangents[0], cotangents[0]


@dataclass(frozen=True)
class ArrayStack(ArrayOp):
    """All elements along a new first axis; `element` gives the shape where there are none."""

    element: TensorSpec
    view: ClassVar[bool] = True
    row_state = row_rules.stack_of_elements

    def infer(self, *inputs: Any) -> Spec:
        shape = self.element.shape
        return TensorSpec(None if shape is None else (inputs[0].size, *shape), self.element.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0].stack(self.element.shape, self.element.dtype)

    def emit_last(self, arguments: Sequence[str]) -> str:
        """Return the call where nothing reads the elements again."""
        return f"{arguments[0]}.take_all({self.element.shape}, np.{self.element.dtype})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (apply(ArrayUnstack(), dy),)


@dataclass(frozen=True)
class ArrayUnstack(ArrayOp):
    """The rows of a tensor as the elements of an array."""

    view: ClassVar[bool] = True
    row_state = row_rules.array_of_rows

    def infer(self, *inputs: Any) -> Spec:
        (x,) = inputs
        if x.shape == ():
            raise ValueError("TensorArray.unstack needs a value with at least one axis; got a scalar.")
        if x.shape is None:
            return ArraySpec(TensorSpec(None, x.dtype))
        return ArraySpec(TensorSpec(x.shape[1:], x.dtype), x.shape[0])

    def run(self, xp: Any, *inputs: Any) -> Any:
        return ArrayValue.from_stacked(inputs[0])

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        (x,) = node.inputs
        assert dy is not None
        return (apply(ArrayStackLike(x.shape, x.dtype), dy, runtime_shape(x)),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        return ()


@dataclass(frozen=True)
class ArrayStackLike(ArrayOp):
    """Inputs: array, shape. All elements along a new first axis, zeros where nothing was written."""

    shape: Shape
    dtype: DType
    view: ClassVar[bool] = True
    host_only: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Spec:
        return TensorSpec(self.shape, self.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        array, shape = inputs
        return array.stack_like(tuple(shape.tolist()), self.dtype)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply(ArrayUnstack(), dy), None


@dataclass(frozen=True)
class ArraySize(ArrayOp):
    """The number of elements, int32."""

    kept_on_host: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Spec:
        return TensorSpec((), dtypes.int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return np.int32(inputs[0].size)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)


@dataclass(frozen=True)
class ArrayGather(ArrayOp):
    """Inputs: array, indices (vector). The elements at the indices, stacked."""

    element: TensorSpec

    def infer(self, *inputs: Any) -> Spec:
        _, indices = inputs
        shape = self.element.shape
        if shape is None or indices.shape is None:
            return TensorSpec(None, self.element.dtype)
        return TensorSpec((*indices.shape, *shape), self.element.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        array, indices = inputs
        picked = ArrayValue.from_list([array.read(index) for index in indices])
        return picked.stack(self.element.shape, self.element.dtype)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        array, indices = node.inputs
        assert dy is not None
        return apply(ArrayScatterAdd(), apply(ArrayEmpty(array_spec(array))), indices, dy), None


@dataclass(frozen=True)
class ArrayScatterAdd(ArrayOp):
    """Inputs: array, indices (vector), values. The rows of the values added to the elements at the indices."""

    def infer(self, *inputs: Any) -> Spec:
        return inputs[0].with_elements(inputs[0].element)

    def run(self, xp: Any, *inputs: Any) -> Any:
        array, indices, values = inputs
        for index, value in zip(indices, values, strict=True):
            array = array.add_at(index, value)
        return array

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        _, indices, values = node.inputs
        assert dy is not None
        return dy, None, apply(ArrayGatherLike(values.shape, values.dtype), dy, indices, runtime_shape(values))


@dataclass(frozen=True)
class ArrayGatherLike(ArrayOp):
    """Inputs: array, indices, shape. The elements at the indices as an array of the shape; zeros if unwritten."""

    shape: Shape
    dtype: DType
    host_only: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Spec:
        return TensorSpec(self.shape, self.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        array, indices, shape = inputs
        gathered = np.zeros(tuple(int(dim) for dim in shape), self.dtype)
        for position, index in enumerate(indices):
            element = array.read_or_none(index)
            if element is not None:
                gathered[position] = element
        return gathered

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        array, indices, _ = node.inputs
        assert dy is not None
        return apply(ArrayScatterAdd(), apply(ArrayEmpty(array_spec(array))), indices, dy), None, None


@dataclass(frozen=True)
class ArrayScatter(ArrayOp):
    """Inputs: array, indices (vector), values. A new array with the rows of the values at the indices."""

    dynamic_size: bool = False

    def infer(self, *inputs: Any) -> Spec:
        array, indices, values = inputs
        if array.dtype != values.dtype:
            raise TypeError(
                f"TensorArray of {array.dtype} elements: {values.dtype} values were written. Cast them first."
            )
        if values.shape == ():
            raise ValueError("TensorArray.scatter needs values with one row for each index; got a scalar.")
        if indices.shape is not None and len(indices.shape) != 1:
            raise ValueError(f"TensorArray.scatter needs a vector of indices; got shape {shape_text(indices.shape)}.")
        row = TensorSpec(None if values.shape is None else values.shape[1:], values.dtype)
        return ArraySpec(row if array.empty else array.element.join(row), None if self.dynamic_size else array.size)

    def run(self, xp: Any, *inputs: Any) -> Any:
        array, indices, values = inputs
        if len(indices) != len(values):
            raise ValueError(f"TensorArray.scatter: {len(indices)} indices for {len(values)} values.")
        for index, value in zip(indices, values, strict=True):
            array = array.write(index, value, self.dynamic_size)
        return array

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        _, indices, values = node.inputs
        assert dy is not None
        d_values = apply(ArrayScatterGrad(values.shape, values.dtype), dy, indices, runtime_shape(values))
        return apply(ArrayClearMany(), dy, indices), None, d_values


@dataclass(frozen=True)
class ArrayScatterGrad(ArrayGatherLike):
    """As `ArrayGatherLike`, but where an index comes twice only its last occurrence gets the element."""

    def run(self, xp: Any, *inputs: Any) -> Any:
        array, indices, shape = inputs
        gathered = np.zeros(tuple(int(dim) for dim in shape), self.dtype)
        for index, position in {int(index): position for position, index in enumerate(indices)}.items():
            element = array.read_or_none(index)
            if element is not None:
                gathered[position] = element
        return gathered

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        array, indices, _ = node.inputs
        assert dy is not None
        return apply(ArrayScatter(dynamic_size=True), apply(ArrayEmpty(array_spec(array))), indices, dy), None, None


@dataclass(frozen=True)
class ArrayClearMany(ArrayOp):
    """Inputs: array, indices. A new array without the elements at the indices."""

    def infer(self, *inputs: Any) -> Spec:
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        array, indices = inputs
        for index in indices:
            array = array.clear(index)
        return array

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply(ArrayClearMany(), dy, node.inputs[1]), None


@dataclass(frozen=True)
class ArrayReadOrEmptyRecord(ArrayOp):
    """Inputs: array of records, index. The element, or an empty record if it was never written."""

    view = True

    def infer(self, *inputs: Any) -> Spec:
        return RecordSpec()

    def run(self, xp: Any, *inputs: Any) -> Any:
        element = inputs[0].read_or_none(inputs[1])
        return Record({}) if element is None else element

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        array, index = node.inputs
        assert dy is not None
        return ElementContribution(array, index, dy), None


def read_or_zeros(array: Tensor, index: Tensor, like: Tensor) -> Tensor:
    """Return the element of a cotangent array that belongs to `like`; zero (or what is empty) if there is none."""
    if isinstance(like.spec, FrameSpec):
        return apply(ArrayReadOrEmptyRecord(), array, index)
    if isinstance(like.spec, ArraySpec):
        return apply(ArrayReadOrEmpty(like.spec.with_elements(like.spec.element)), array, index)
    return apply(ArrayReadOrZeros(TensorSpec(like.shape, like.dtype)), array, index, runtime_shape(like))
