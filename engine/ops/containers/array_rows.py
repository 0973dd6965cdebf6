"""`concat` and `split` of TensorArrays: elements end to end along their first axes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.spec import ArraySpec, Shape, Spec, TensorSpec, shape_text
from ...graph.tensor import Symbol, Tensor
from ..base import apply
from ..run_time_shapes import runtime_shape
from .array_value import ArrayValue
from .tensor_arrays import ArrayOp


def lengths_of(array: Tensor) -> Tensor:
    """Return the lengths of the elements' first axes, int32, computed where the array is: no values are kept."""
    if not isinstance(array, Symbol):
        return apply(ArrayLengths(), array)
    return array.operation.graph.add_shared(("lengths of", array), ArrayLengths(), [array], "array_lengths")


@dataclass(frozen=True)
class ArrayLengths(ArrayOp):
    """The length of the first axis of each element."""

    def infer(self, *inputs: Any) -> Spec:
        return TensorSpec((inputs[0].size,), dtypes.int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (array,) = inputs
        return np.array([array.read(index).shape[0] for index in range(array.size)], "int32")

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)


_SCALARS = "TensorArray.concat: the elements are scalars, which have no axis; use stack()."


@dataclass(frozen=True)
class ArrayConcat(ArrayOp):
    """The elements end to end along their first axes; `element` gives the rest of the shape where there are none."""

    element: TensorSpec

    def infer(self, *inputs: Any) -> Spec:
        shape = self.element.shape
        if shape == ():
            raise ValueError(_SCALARS)
        if shape is None:
            return TensorSpec(None, self.element.dtype)
        known = None if shape[0] is None or inputs[0].size is None else shape[0] * inputs[0].size
        return TensorSpec((known, *shape[1:]), self.element.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (array,) = inputs
        items = [array.read(index) for index in range(array.size)]
        if items and () in [item.shape for item in items]:
            raise ValueError(_SCALARS)
        if items:
            return xp.concatenate(items)
        shape = self.element.shape
        if shape is None or None in shape[1:]:
            raise ValueError(
                "TensorArray.concat: the array is empty, and the shape of its elements is known as "
                f"{shape_text(shape)} only. Give the TensorArray an element_shape; its first axis alone may be None."
            )
        return xp.empty((0, *shape[1:]), self.element.dtype)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (apply(ArraySplit(), dy, lengths_of(node.inputs[0])),)


@dataclass(frozen=True)
class ArraySplit(ArrayOp):
    """Inputs: value, lengths. Pieces of the value, of these lengths along its first axis."""

    def infer(self, *inputs: Any) -> Spec:
        value, lengths = inputs
        if value.shape == ():
            raise ValueError("TensorArray.split needs a value with at least one axis; got a scalar.")
        if lengths.shape is not None and len(lengths.shape) != 1:
            raise ValueError(f"TensorArray.split: lengths must be a vector; got shape {shape_text(lengths.shape)}.")
        size = None if lengths.shape is None else lengths.shape[0]
        shape: Shape = None if value.shape is None else (None, *value.shape[1:])
        return ArraySpec(TensorSpec(shape, value.dtype), size)

    def run(self, xp: Any, *inputs: Any) -> Any:
        value, lengths = inputs
        if (lengths < 0).any() or int(lengths.sum()) != value.shape[0]:
            raise ValueError(
                f"TensorArray.split: the lengths {lengths.tolist()} must not be negative and add up to the first "
                f"axis of the value, whose shape is {shape_text(value.shape)}."
            )
        ends = np.cumsum(lengths)
        return ArrayValue.from_list(
            [value[end - length : end].copy() for end, length in zip(ends, lengths, strict=True)]
        )

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        value, lengths = node.inputs
        assert dy is not None
        return apply(ArrayConcatLike(value.shape, value.dtype), dy, runtime_shape(value), lengths), None


@dataclass(frozen=True)
class ArrayConcatLike(ArrayOp):
    """Inputs: array, shape, lengths. The elements end to end, with zeros where nothing was written."""

    shape: Shape
    dtype: DType

    def infer(self, *inputs: Any) -> Spec:
        return TensorSpec(self.shape, self.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        array, shape, lengths = inputs
        out = xp.zeros(tuple(int(dim) for dim in shape), self.dtype)
        end = 0
        for index, length in enumerate(lengths):
            end += int(length)
            if index < array.size and array.has(index):
                out[end - int(length) : end] = array.read(index)
        return out

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply(ArraySplit(), dy, node.inputs[2]), None, None
