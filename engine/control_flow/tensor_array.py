"""`TensorArray`: an array of tensors, read and written inside loops, with value semantics."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..common.dtypes import DTypeLike, as_dtype
from ..graph.spec import TensorSpec, as_shape, shape_text, shapes_compatible
from ..graph.tensor import Symbol, Tensor
from ..ops.arrays.shape_arguments import split_shape
from ..ops.base import apply, as_array, convert_to_tensor
from ..ops.containers.array_rows import ArrayConcat, ArraySplit
from ..ops.containers.tensor_arrays import (
    ArrayGather,
    ArrayNew,
    ArrayRead,
    ArrayScatter,
    ArraySize,
    ArrayStack,
    ArrayUnstack,
    ArrayWrite,
    array_spec,
)


class TensorArray:
    """An array of tensors of one dtype. `write` returns a new array; the old one keeps its elements.

    Args:
        dtype: the dtype of the elements.
        size: the number of elements, an int or a scalar integer tensor.
        dynamic_size: writing behind the end makes the array larger.
        element_shape: the shape of each element, with None for dimensions that are unknown or vary. Left out, it is
            found from what is written.
        name: a name for the operations.

    Elements may be written twice and read at any time, and all of that has gradients.

    >>> import anabranch as ab
    >>> squares = ab.TensorArray("float32", 3)
    >>> for i in range(3):
    ...     squares = squares.write(i, float(i * i))
    >>> squares.stack()
    Tensor([0., 1., 4.], dtype=float32)
    """

    def __init__(
        self,
        dtype: DTypeLike,
        size: Any = None,
        dynamic_size: bool = False,
        element_shape: Any = None,
        name: str | None = None,
        *,
        infer_shape: bool = True,
        clear_after_read: bool | None = None,
        flow: Tensor | None = None,
    ) -> None:
        self.dynamic_size = dynamic_size
        self._declared = as_shape(element_shape)
        self._name = name or "tensor_array"
        if flow is not None:
            self.flow = flow
            return
        if size is None:
            if not dynamic_size:
                raise ValueError("TensorArray needs a size, or dynamic_size=True to grow from nothing.")
            size = 0
        (static,), _ = split_shape(size)
        element = TensorSpec(self._declared, as_dtype(dtype))
        known = None if dynamic_size else static
        op = ArrayNew(element, known, open_shape=element_shape is None)
        self.flow = apply(op, convert_to_tensor(size, "int32"), name=self._name)

    @classmethod
    def from_flow(cls, flow: Tensor) -> TensorArray:
        """Return the array that `flow` carries."""
        return cls(flow.dtype, flow=flow)

    def with_flow(self, flow: Tensor) -> TensorArray:
        """Return an array with this one's settings and another value."""
        return TensorArray(flow.dtype, None, self.dynamic_size, self._declared, self._name, flow=flow)

    @property
    def dtype(self) -> Any:
        return self.flow.dtype

    @property
    def element_shape(self) -> Any:
        """Return what is known of the elements' shape."""
        return array_spec(self.flow).element_shape

    def write(self, index: Any, value: Any, name: str | None = None) -> TensorArray:
        """Return the array with `value` at `index`.

        Raises:
            ValueError: the value does not have the element shape that was declared.
            TypeError: its dtype differs. At run time, IndexError: the index is outside a fixed size.
        """
        tensor = self._element(value)
        if not shapes_compatible(tensor.shape, self._declared):
            raise ValueError(
                f"TensorArray.write: the elements were declared as {shape_text(self._declared)}, "
                f"but the value has shape {shape_text(tensor.shape)}."
            )
        op = ArrayWrite(self.dynamic_size)
        return self.with_flow(apply(op, self.flow, _index(index), tensor, name=name or "array_write"))

    def read(self, index: Any, name: str | None = None) -> Tensor:
        """Return the element at `index`. At run time, IndexError: it was never written, or is outside."""
        return apply(ArrayRead(), self.flow, _index(index), name=name or "array_read")

    def stack(self, name: str | None = None) -> Tensor:
        """Return all elements along a new first axis. At run time, IndexError: one was never written."""
        return apply(ArrayStack(self._element_spec()), self.flow, name=name or "array_stack")

    def unstack(self, value: Any, name: str | None = None) -> TensorArray:
        """Return an array whose elements are the rows of `value`."""
        tensor = self._element(value)
        flow = apply(ArrayUnstack(), tensor, name=name or "array_unstack")
        spec = array_spec(flow)
        if not shapes_compatible(spec.element_shape, self._declared):
            raise ValueError(
                f"TensorArray.unstack: the elements were declared as {shape_text(self._declared)}, "
                f"but the rows of the value have shape {shape_text(spec.element_shape)}."
            )
        return self.with_flow(flow)

    def gather(self, indices: Any, name: str | None = None) -> Tensor:
        """Return the elements at `indices`, along a new first axis."""
        op = ArrayGather(self._element_spec())
        return apply(op, self.flow, convert_to_tensor(indices, "int32"), name=name or "array_gather")

    def scatter(self, indices: Any, value: Any, name: str | None = None) -> TensorArray:
        """Return the array with the rows of `value` at `indices`."""
        op = ArrayScatter(self.dynamic_size)
        indices = convert_to_tensor(indices, "int32")
        return self.with_flow(apply(op, self.flow, indices, self._element(value), name=name or "array_scatter"))

    def concat(self, name: str | None = None) -> Tensor:
        """Concatenate the elements along their first axes, whose lengths may differ.

        At run time, IndexError: an element was never written. ValueError: there is none, and no element_shape is known.
        """
        return apply(ArrayConcat(self._element_spec()), self.flow, name=name or "array_concat")

    def split(self, value: Any, lengths: Any, name: str | None = None) -> TensorArray:
        """Return an array whose elements are pieces of `value`, of these `lengths` along its first axis.

        At run time, ValueError: the lengths do not add up to that axis.
        """
        tensor, sizes = self._element(value), convert_to_tensor(lengths, "int32")
        flow = apply(ArraySplit(), tensor, sizes, name=name or "array_split")
        shape = array_spec(flow).element_shape
        if not shapes_compatible(shape, self._declared):
            raise ValueError(
                f"TensorArray.split: the elements were declared as {shape_text(self._declared)}, "
                f"but the pieces of the value have shape {shape_text(shape)}."
            )
        return self.with_flow(flow)

    def size(self, name: str | None = None) -> Tensor:
        """Return the number of elements, int32."""
        return apply(ArraySize(), self.flow, name=name or "array_size")

    def identity(self) -> TensorArray:
        """Return the same array."""
        return self.with_flow(self.flow)

    def _element(self, value: Any) -> Tensor:
        is_number = isinstance(value, (bool, int, float, list, tuple))
        is_alike = isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind == self.dtype.kind  # as in `assign`
        return convert_to_tensor(value, self.dtype if is_number or is_alike else None)

    def _element_spec(self) -> TensorSpec:
        spec = array_spec(self.flow)
        declared = self._declared if spec.element_shape is None else spec.element_shape
        return TensorSpec(declared, spec.dtype)

    def __repr__(self) -> str:
        name = f"{self.flow.name} " if isinstance(self.flow, Symbol) else ""
        return f"<TensorArray {name}{self.flow.spec}>"


def _index(index: Any) -> Tensor:
    tensor = convert_to_tensor(index)
    if tensor.dtype.kind not in "iu":
        raise TypeError(f"A TensorArray index must be an integer, got {tensor.dtype}.")
    if tensor.shape not in ((), None):
        raise ValueError(f"A TensorArray index must be a scalar, got shape {shape_text(tensor.shape)}. See gather().")
    return tensor


__all__ = ["TensorArray", "as_array"]
