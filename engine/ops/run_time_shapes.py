"""Ops of shapes that are known only when a graph runs: what gradients of broadcasts, sums and reshapes need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ..common import dtypes
from ..common.descriptions import describe_value
from ..common.dtypes import DType
from ..common.quick_dataclass import dataclass
from ..graph.context import graph_context
from ..graph.graph import Operation
from ..graph.kernel_roles import KernelRole
from ..graph.op import Op, Sample, as_scalar_or_array
from ..graph.spec import Shape, TensorSpec, shape_text
from ..graph.tensor import Symbol, Tensor
from ..graph.value import Value
from . import row_rules
from .base import apply, make_constant, scalar


@dataclass(frozen=True)
class ShapeOf(Op):
    """The run-time shape of a tensor, as an int32 vector. Only the shape of the input is needed, never its values."""

    never_fails: ClassVar[bool] = True
    kept_on_host: ClassVar[bool] = True
    row_state = row_rules.shape

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((inputs[0].rank,), dtypes.int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        # A value saved in a branch that was not taken is None; its cotangent is a zero that nobody looks at.
        return np.array(() if x is None else x.shape, dtype="int32")

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), [np.zeros((2, 0, 3), "float32")], np.array([2, 0, 3], "int32"), label="empty axis")
        yield Sample(cls(), [np.float32(1)], np.zeros((0,), "int32"), label="scalar")
        yield Sample(cls(), [np.zeros(3, "int32")], np.array([3], "int32"), label="vector")


def runtime_shape(x: Tensor) -> Tensor:
    """Return the shape of `x` as an int32 vector: a constant where it is static.

    Otherwise it is computed where `x` lives, so that a backward loop saves shapes and not values.
    """
    if type(x) is Value and not graph_context.stack:
        return _shape_value(x.array.shape)
    if isinstance(x.spec, TensorSpec) and x.spec.is_static:
        return make_constant(np.array(x.shape, dtype="int32"))
    assert isinstance(x, Symbol)
    return x.operation.graph.add_shared(("shape of", x), ShapeOf(), [x], "shape")


@lru_cache(maxsize=4096)
def _shape_value(shape: tuple[int, ...]) -> Tensor:
    return make_constant(np.array(shape, dtype="int32"))


@dataclass(frozen=True)
class SumToShape(Op):
    """Undo broadcasting: the sum of the first input over the axes along which it was broadcast from a shape.

    Half precision is summed in float32. Inputs: x, and the wanted shape as an int32 vector. `shape` is what is known
    of that shape statically.
    """

    shape: Shape
    view: ClassVar[bool] = True  # x itself, if it has that shape
    never_fails: ClassVar[bool] = True
    shape_input: ClassVar[int | None] = 1
    kernel_role: ClassVar[KernelRole | None] = KernelRole.SUM_TO
    linear_in: ClassVar[tuple[int, ...]] = (0,)
    batchable: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(self.shape, inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, shape = inputs
        return sum_to(xp, x, tuple(shape.tolist()))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        return (None if dy is None else broadcast_like(dy, node.inputs[0]), None)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(12, dtype="float32").reshape(2, 2, 3)
        yield Sample(cls((1, 3)), [x, np.array([1, 3], "int32")], x.sum((0, 1), keepdims=True)[0], label="matrix")
        yield Sample(cls(()), [x, np.array([], "int32")], np.float32(66), label="scalar")
        yield Sample(cls((None, 3)), [x[:0], np.array([2, 3], "int32")], np.zeros((2, 3), "float32"), label="empty")
        half = np.ones((4096, 2), "float16")
        yield Sample(cls((2,)), [half, np.array([2], "int32")], half[0] * 4096, (), label="half precision")


def sum_to(xp: Any, x: Any, shape: tuple[int, ...]) -> Any:
    """Return `x` summed down to `shape`, from which it was broadcast. Half precision is summed in float32."""
    if x.shape == shape:
        return x
    extra = x.ndim - len(shape)
    widened = [axis + extra for axis, dim in enumerate(shape) if dim == 1 and x.shape[axis + extra] != 1]
    axes = (*range(extra), *widened)
    summed = x.sum(axis=axes, keepdims=True, dtype=dtypes.accumulator_of(x.dtype) or x.dtype)
    return as_scalar_or_array(summed.reshape(summed.shape[extra:]).astype(x.dtype, copy=False))


@dataclass(frozen=True)
class BroadcastToShape(Op):
    """The first input broadcast to a shape that is known at run time (second input, int32 vector)."""

    shape: Shape
    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True
    shape_input: ClassVar[int | None] = 1
    kernel_role: ClassVar[KernelRole | None] = KernelRole.BROADCAST
    repeats_values: ClassVar[bool] = True
    linear_in: ClassVar[tuple[int, ...]] = (0,)
    grows_with: ClassVar[tuple[int, ...]] = (1,)
    batchable: ClassVar[bool] = True
    row_state = row_rules.spread

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(self.shape, inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, shape = inputs
        return as_scalar_or_array(broadcast_to_sizes(xp, x, tuple(shape.tolist())))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        return (None if dy is None else sum_like(dy, node.inputs[0]), None)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(3, dtype="float32")
        yield Sample(cls((2, 3)), [x, np.array([2, 3], "int32")], np.stack([x, x]), label="row")
        yield Sample(cls(None), [np.float32(2), np.array([2], "int32")], np.full(2, 2, "float32"), label="scalar")
        yield Sample(cls((0, 3)), [x, np.array([0, 3], "int32")], np.zeros((0, 3), "float32"), label="empty")


def sum_like(dy: Tensor, x: Tensor) -> Tensor:
    """Return a cotangent of a broadcast result, summed to the shape of the input `x` that was broadcast."""
    if _are_alike(dy, x):
        return dy
    return apply(SumToShape(x.shape), dy, runtime_shape(x))


def broadcast_like(dy: Tensor, x: Tensor) -> Tensor:
    """Return `dy` broadcast to the shape of `x`."""
    if _are_alike(dy, x):
        return dy
    return apply(BroadcastToShape(x.shape), dy, runtime_shape(x))


@dataclass(frozen=True)
class ZerosOfShape(Op):
    """Zeros of a run-time shape (int32 vector)."""

    shape: Shape
    dtype: DType
    never_fails: ClassVar[bool] = True
    shape_input: ClassVar[int | None] = 0
    repeats_values: ClassVar[bool] = True
    row_state = row_rules.spread

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(self.shape, self.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return as_scalar_or_array(xp.zeros(inputs[0].tolist(), self.dtype))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for shape in ((2, 3), (), (0, 2)):
            yield Sample(cls(shape, dtypes.float32), [np.array(shape, "int32")], np.zeros(shape, "float32"))


def zeros_of(x: Tensor) -> Tensor:
    """Return zeros of the dtype and shape of `x`; of `x` only the shape is used."""
    if isinstance(x.spec, TensorSpec) and x.spec.is_static and x.shape == () and not dtypes.is_string(x.dtype):
        return scalar(0, x.dtype)
    return apply(ZerosOfShape(x.shape, x.dtype), runtime_shape(x))


def reshape_like(dy: Tensor, x: Tensor) -> Tensor:
    """Return `dy` in the shape of `x`, which has as many elements."""
    if _are_alike(dy, x):
        return dy
    return apply(ReshapeToShape(x.shape), dy, runtime_shape(x))


def reshaped_to(x: Any, shape: Sequence[int | None], given: Sequence[Any] = ()) -> Any:
    """Return an array in a shape in which one -1 may stand for what is left.

    Args:
        x: the array.
        shape: the shape.
        given: sizes that take the places of the Nones in it, in order.

    Raises:
        ValueError: it does not fit.
    """
    rest = iter(given)
    sizes = tuple([int(next(rest)) if size is None else size for size in shape])
    try:
        if not sizes or min(sizes) >= -1:  # NumPy takes any negative size for -1
            return x.reshape(sizes)
        raise ValueError
    except ValueError:
        if min(sizes, default=0) < -1 or sizes.count(-1) > 1:
            text = "only one -1 may stand for what is left, and no other negative size"
            raise ValueError(f"reshape to {sizes}: {text}.") from None
        product = math.prod(size for size in sizes if size != -1)
        what = f"which has {product}" if -1 not in sizes else f"as it is no multiple of {product}"
        raise ValueError(
            f"{describe_value(x)} has {x.size} elements and cannot be reshaped to {shape_text(sizes)}, {what}."
        ) from None


def broadcast_to_sizes(xp: Any, x: Any, sizes: tuple[int, ...]) -> Any:
    """Return an array that is repeated to a shape that is known now.

    Raises:
        ValueError: it does not fit.
    """
    try:
        return xp.broadcast_to(x, sizes)
    except ValueError:
        fits = len(sizes) >= x.ndim and min(sizes, default=0) >= 0
        fits = fits and all(dim in (1, size) for dim, size in zip(x.shape[::-1], sizes[::-1], strict=False))
        why = ": no array can have as many elements" if fits else ""
        raise ValueError(f"{describe_value(x)} does not broadcast to {shape_text(sizes)}{why}.") from None


@dataclass(frozen=True)
class ReshapeToShape(Op):
    """The first input in a shape that is known at run time (second input, int32 vector)."""

    shape: Shape
    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True
    shape_input: ClassVar[int | None] = 1
    kernel_role: ClassVar[KernelRole | None] = KernelRole.RESHAPE
    linear_in: ClassVar[tuple[int, ...]] = (0,)
    grows_with: ClassVar[tuple[int, ...]] = (1,)
    row_state = row_rules.reshaped

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(self.shape, inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, shape = inputs
        return as_scalar_or_array(reshaped_to(x, shape.tolist()))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        return (None if dy is None else reshape_like(dy, node.inputs[0]), None)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32")
        yield Sample(cls((2, 3)), [x, np.array([2, 3], "int32")], x.reshape(2, 3), label="matrix")
        yield Sample(cls(()), [x[:1], np.array([], "int32")], np.float32(0), label="to scalar")
        yield Sample(cls((None, 0)), [x[:0], np.array([2, 0], "int32")], np.zeros((2, 0), "float32"), label="empty")


def _are_alike(a: Tensor, b: Tensor) -> bool:
    """Test whether two tensors are known to have the same shape."""
    return a.shape is not None and a.shape == b.shape and None not in a.shape
