"""Shapes: asking for them, the same elements in another shape, and broadcasting."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from types import EllipsisType
from typing import Any, ClassVar, TypeGuard

import numpy as np

from ...common import dtypes
from ...common.axes import axis_numbers
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows, ResultSizes, SizesOfTensors, axes_from_front
from ...graph.graph import Operation
from ...graph.kernel_roles import KernelRole
from ...graph.op import ErrorSample, Op, Sample, as_scalar_or_array
from ...graph.spec import Shape, TensorSpec, shape_text
from ...graph.tensor import Symbol, Tensor
from .. import row_rules
from ..base import TensorLike, apply, convert_to_tensor, known_array, normalize_axis, unchanged
from ..run_time_shapes import (
    BroadcastToShape,
    ReshapeToShape,
    ShapeOf,
    broadcast_to_sizes,
    reshape_like,
    reshaped_to,
    runtime_shape,
    sum_like,
)
from .shape_arguments import ShapeLike, check_sizes, fill_shape, split_shape

DimLike = int | Tensor  # a dimension: known now, or a scalar


def constant_value(tensor: Any) -> Any:
    """Return the array of a value or of a constant, or None if `tensor` is anything else."""
    return known_array(tensor)


def resolve_shape(shape: ShapeLike) -> tuple[tuple[int | None, ...], list[Tensor]]:
    """Return `split_shape` with the entries that are constant tensors made static.

    Raises:
        TypeError, ValueError: an entry is neither an integer nor a scalar tensor; a tensor is too large.
    """
    if isinstance(shape, tuple) and {int}.issuperset(map(type, shape)):  # the common case, and the quickest
        sizes: Any = shape
        return tuple(sizes), []
    known = constant_value(shape)
    if known is not None:
        return tuple(int(dim) for dim in np.atleast_1d(known)), []
    static, dynamic = split_shape(shape)
    remaining = iter(values := [constant_value(dim) for dim in dynamic])
    filled = [next(remaining) if dim is None else dim for dim in static]
    resolved = tuple([dim if dim is None else int(dim) for dim in filled])
    check_sizes(static, resolved)
    return resolved, [dim for dim, value in zip(dynamic, values, strict=True) if value is None]


def is_shape_vector(shape: Any) -> TypeGuard[Tensor]:
    """Test whether `shape` is one vector tensor whose entries are not known now."""
    return isinstance(shape, Tensor) and shape.ndim == 1 and constant_value(shape) is None


def shape_from_vector(vector: Tensor) -> Shape:
    """Return what is known of the shape that a vector tensor holds."""
    if isinstance(vector, Symbol) and isinstance(vector.operation.op, ShapeOf):
        return vector.operation.inputs[0].shape
    length = vector.shape[0] if vector.shape else None
    return None if length is None else (None,) * length


def elements(shape: Iterable[int]) -> int:
    """Return the number of elements of a known shape."""
    return math.prod(shape)


# --- asking ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DimOf(Op):
    """The run-time size of one axis, as an int32 scalar. Of the input only the shape is needed."""

    axis: int
    never_fails: ClassVar[bool] = True
    kept_on_host: ClassVar[bool] = True
    row_state = row_rules.dim

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((), dtypes.int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return np.int32(inputs[0].shape[self.axis])

    def emit(self, arguments: Sequence[str]) -> str | None:
        return f"np.int32({arguments[0]}.shape[{self.axis}])"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(1), [np.zeros((2, 3), "float32")], np.int32(3), differentiable=(), label="matrix")
        yield Sample(cls(0), [np.zeros((0, 3), "float32")], np.int32(0), differentiable=(), label="empty")
        yield Sample(cls(-1), [np.zeros(4, "int32")], np.int32(4), differentiable=(), label="from the end")


@dataclass(frozen=True)
class SizeOf(Op):
    """The run-time number of elements, as an int32 scalar."""

    never_fails: ClassVar[bool] = True
    kept_on_host: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((), dtypes.int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        count = int(inputs[0].size)
        if count > 2**31 - 1:
            raise OverflowError(
                f"size: a tensor of shape {shape_text(inputs[0].shape)} has {count} elements, more than int32 can "
                "hold. Multiply the sizes of its axes as int64: ops.prod(ops.cast(ops.stack(ops.shape(x)), 'int64'))."
            )
        return np.int32(count)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls(), [np.zeros((2, 3), "float32")], np.int32(6), differentiable=(), label="matrix")
        yield Sample(cls(), [np.zeros((0, 3), "float32")], np.int32(0), differentiable=(), label="empty")
        yield Sample(cls(), [np.float32(2)], np.int32(1), differentiable=(), label="0-d")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        many = np.broadcast_to(np.True_, (2**16, 2**15))
        yield ErrorSample(lambda: cls().run(np, many), OverflowError, "2147483648 elements, more than int32 can hold")


def _once(x: Tensor, op: Op) -> Tensor:
    """Return `op` over `x`, built once, beside `x`: a backward loop then saves the number and not the value of `x`."""
    return x.operation.graph.add_shared((op, x), op, [x]) if isinstance(x, Symbol) else apply(op, x)


def dim(x: Tensor, axis: int) -> DimLike:
    """Return the size of one axis: an int where it is known now, otherwise an int32 scalar tensor."""
    known = None if x.shape is None else x.shape[axis]
    if known is not None:
        return known
    return _once(x, DimOf(axis if x.shape is None else axis % len(x.shape)))


def shape(x: TensorLike) -> Any:
    """Return the shape of `x`: a tuple with an int for each known dimension and an int32 scalar tensor for each other.

    Where even the rank is unknown, the result is one int32 vector.

    >>> import anabranch as ab
    >>> ab.ops.shape(ab.placeholder((None, 3), "float32"))[1]
    3
    """
    tensor = convert_to_tensor(x)
    if tensor.shape is None:
        return runtime_shape(tensor)
    return tuple(dim(tensor, axis) for axis in range(len(tensor.shape)))


def size(x: TensorLike) -> DimLike:
    """Return the number of elements of `x`: an int where it is known now, otherwise an int32 scalar tensor.

    Raises:
        OverflowError: when the graph runs, there are more elements than int32 can hold.
    """
    tensor = convert_to_tensor(x)
    if tensor.shape is not None and None not in tensor.shape:
        return elements(d for d in tensor.shape if d is not None)
    return _once(tensor, SizeOf())


def ndim(x: TensorLike) -> DimLike:
    """Return the number of axes of `x`: an int, or an int32 scalar tensor where the rank is unknown."""
    tensor = convert_to_tensor(x)
    if tensor.shape is not None:
        return len(tensor.shape)
    return _once(runtime_shape(tensor), SizeOf())


# --- reshape --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reshape(Op):
    """The same elements, in row-major order, in another shape. Further inputs fill the Nones of `shape`.

    One entry of `shape` may be -1: what is left.
    """

    shape: tuple[int | None, ...]
    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True
    kernel_role: ClassVar[KernelRole | None] = KernelRole.RESHAPE
    linear_in: ClassVar[tuple[int, ...]] = (0,)
    grows_with: ClassVar[tuple[int, ...]] = (1,)
    batchable: ClassVar[bool] = True
    row_state = row_rules.reshaped

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(_reshaped(inputs[0], self.shape), inputs[0].dtype)

    def result_sizes(self, node: Operation, sizes: SizesOfTensors) -> Sequence[ResultSizes] | None:
        filled = sizes.filled_in(self.shape, node.inputs[1:])
        # A number that is no size of an array may turn out to be -1.
        return [[size if isinstance(size, int) or len(size or ()) == 2 else None for size in filled]]

    def run(self, xp: Any, *inputs: Any) -> Any:
        return as_scalar_or_array(reshaped_to(inputs[0], self.shape, inputs[1:]))

    def emit(self, arguments: Sequence[str]) -> str | None:
        return None if None in self.shape else f"{arguments[0]}.reshape({self.shape})" + ("" if self.shape else "[()]")

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return reshape_like(dy, node.inputs[0]), *[None] * (len(node.inputs) - 1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(2, 3)
        yield Sample(cls((3, 2)), [x], x.reshape(3, 2), label="static")
        yield Sample(cls((-1,)), [x], x.ravel(), label="flat")
        yield Sample(cls((None, -1)), [x, np.int32(1)], x.reshape(1, 6), differentiable=(0,), label="dynamic")
        yield Sample(cls((0, 5)), [x[:0]], np.zeros((0, 5), "float32"), label="empty")
        yield Sample(cls(()), [x[:1, :1]], np.float32(0), label="to scalar")
        yield Sample(cls((1, 1)), [np.float32(3)], np.full((1, 1), 3, "float32"), label="from scalar")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec = TensorSpec((2, 3), dtypes.float32)
        yield ErrorSample(lambda: cls((4, 2)).infer(spec), ValueError, "6 elements", "count")
        yield ErrorSample(lambda: cls((4, -1)).infer(spec), ValueError, "multiple of 4", "remainder")
        yield ErrorSample(lambda: cls((-1, -1)).infer(spec), ValueError, "one -1", "two unknowns")


def _reshaped(spec: TensorSpec, target: tuple[int | None, ...]) -> Shape:
    """Return the static shape that results, with what can be concluded of unknown dimensions."""
    if target.count(-1) > 1 or any(d is not None and d < -1 for d in target):
        raise ValueError(f"reshape to {target}: only one -1 may stand for what is left, and no other negative size.")
    open_axes = [axis for axis, d in enumerate(target) if d is None or d == -1]
    product = elements(d for d in target if d is not None and d != -1)
    result = tuple(None if d == -1 else d for d in target)
    if spec.shape is None:
        return result
    known = elements(d for d in spec.shape if d is not None)
    if None in spec.shape:
        if not open_axes and product and (not known or product % known):
            raise ValueError(f"{spec} cannot be reshaped to {shape_text(target)}: {product} is no multiple of {known}.")
        return result
    if not open_axes:
        if product != known:
            raise ValueError(
                f"{spec} has {known} elements and cannot be reshaped to {shape_text(target)}, which has {product}."
            )
        return result
    if product == 0 and known == 0:
        if -1 in target and None not in target:
            raise ValueError(f"reshape to {target}: without elements, the size of -1 is undetermined. Give it.")
        return result
    if product == 0 or known % product:
        raise ValueError(
            f"{spec} has {known} elements, no multiple of {product}, and cannot be reshaped to {shape_text(result)}."
        )
    if len(open_axes) == 1:
        return tuple(known // product if axis == open_axes[0] else d for axis, d in enumerate(result))
    return result


def _settle_remainder(x: Tensor, static: tuple[int | None, ...], dynamic: list[Tensor]) -> tuple[int | None, ...]:
    """Return `static` with its -1 worked out, if the dynamic sizes are just the unknown dimensions of `x`.

    This is what makes ``reshape(x, (shape(x)[0], -1))`` keep its last dimension.
    """
    if -1 not in static or x.shape is None or not dynamic:
        return static
    unknown = [axis for axis, d in enumerate(x.shape) if d is None]
    sizes = [d.operation for d in dynamic if isinstance(d, Symbol)]
    given = [size.op.axis for size in sizes if isinstance(size.op, DimOf) and size.inputs[0] is x]
    if sorted(given) != unknown or len(given) != len(dynamic):
        return static
    known = elements(d for d in x.shape if d is not None)
    product = elements(d for d in static if d is not None and d != -1)
    if product == 0 or known % product:
        return static
    return tuple(known // product if d == -1 else d for d in static)


def reshape(x: TensorLike, newshape: ShapeLike) -> Tensor:
    """Return the elements of `x`, in row-major order, in another shape.

    Args:
        x: a tensor of any shape.
        newshape: ints, int32 scalar tensors or both, or one vector tensor. One entry may be -1: what is left.

    Raises:
        ValueError: the numbers of elements differ.

    >>> import anabranch as ab
    >>> ab.ops.reshape(ab.placeholder((None, 2, 3), "float32"), (-1, 6)).shape
    (None, 6)
    """
    tensor = convert_to_tensor(x)
    if is_shape_vector(newshape):
        return apply(ReshapeToShape(shape_from_vector(newshape)), tensor, newshape)
    static, dynamic = resolve_shape(newshape)
    static = _settle_remainder(tensor, static, dynamic)
    # Two unknown sizes may have changed places, and beside a size of 0 any size fits.
    if static == tensor.shape and (None not in static or (static.count(None) == 1 and 0 not in static)):
        return unchanged(tensor)
    return apply(Reshape(static), tensor, *dynamic)


def ravel(x: TensorLike) -> Tensor:
    """Return the elements of `x` as a vector."""
    tensor = convert_to_tensor(x)
    return unchanged(tensor) if tensor.ndim == 1 else apply(Reshape((-1,)), tensor)


# --- axes of size 1 -------------------------------------------------------------------------------------------------


def index_text(entries: Iterable[slice[Any, Any, Any] | EllipsisType | None]) -> str:
    """Return source text of an index of Nones, Ellipses, whole and reversed slices."""
    names: list[str] = []
    for entry in entries:
        if isinstance(entry, slice):
            names.append("::-1" if entry.step == -1 else ":")
        else:
            names.append("..." if entry is Ellipsis else repr(entry))
    return ", ".join(names)


@dataclass(frozen=True)
class ExpandDims(Op):
    """New axes of size 1, at the places `axes` of the result (all counted from the front, or all from the end)."""

    axes: tuple[int, ...]
    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True
    kernel_role: ClassVar[KernelRole | None] = KernelRole.RESHAPE
    linear_in: ClassVar[tuple[int, ...]] = (0,)
    grows_with: ClassVar[tuple[int, ...]] = (1,)
    batchable: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if x.shape is None:
            return TensorSpec(None, x.dtype)
        rank = len(x.shape) + len(self.axes)
        added = {normalize_axis(axis, rank) for axis in self.axes}
        remaining = iter(x.shape)
        return TensorSpec(tuple(1 if axis in added else next(remaining) for axis in range(rank)), x.dtype)

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape) + len(self.axes)
        added, remaining = axes_from_front(self.axes, rank), iter(range(rank))
        return tuple([() if axis in added else (Follows(0, next(remaining)),) for axis in range(rank)])

    def _index(self) -> tuple[Any, ...]:
        if self.axes[0] >= 0:
            return tuple(None if axis in self.axes else slice(None) for axis in range(self.axes[-1] + 1))
        return (Ellipsis, *[None if axis in self.axes else slice(None) for axis in range(self.axes[0], 0)])

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0][self._index()]

    def emit(self, arguments: Sequence[str]) -> str | None:
        return f"{arguments[0]}[{index_text(self._index())}]"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (squeeze(dy, self.axes),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(2, 3)
        yield Sample(cls((0,)), [x], x[None], label="front")
        yield Sample(cls((1, 3)), [x], x.reshape(2, 1, 3, 1), label="two")
        yield Sample(cls((-2,)), [x], x.reshape(2, 1, 3), label="from the end")
        yield Sample(cls((0,)), [np.float32(2)], np.full(1, 2, "float32"), label="0-d")
        yield Sample(cls((2,)), [x[:0]], np.zeros((0, 3, 1), "float32"), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: cls((3,)).infer(TensorSpec((2,), dtypes.float32)), ValueError, "out of range")


def axes_argument(axis: int | Sequence[int]) -> list[int]:
    """Return an axis argument, one or several, as a list."""
    return axis_numbers(axis)


def expand_dims(x: TensorLike, axis: int | Sequence[int]) -> Tensor:
    """Return `x` with a new axis of size 1 at each place that `axis` (an int or several) names in the result.

    Raises:
        ValueError: an axis is out of range or given twice.

    >>> import anabranch as ab
    >>> ab.ops.expand_dims([1.0, 2.0], -1).shape
    (2, 1)
    """
    tensor = convert_to_tensor(x)
    axes = axes_argument(axis)
    if not axes:
        return unchanged(tensor)
    if tensor.shape is not None:
        rank = len(tensor.shape) + len(axes)
        axes = [normalize_axis(a, rank) for a in axes]
    elif min(axes) < 0 <= max(axes):
        raise ValueError(
            f"expand_dims(axis={axis}) mixes counting from both ends, but the rank of the input is unknown."
        )
    if len(set(axes)) != len(axes):
        raise ValueError(f"axis={axis} names an axis twice.")
    return apply(ExpandDims(tuple(sorted(axes))), tensor)


@dataclass(frozen=True)
class Squeeze(Op):
    """The input without the axes `axes`, which must have size 1; None: without all axes of size 1."""

    axes: tuple[int, ...] | None
    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True
    kernel_role: ClassVar[KernelRole | None] = KernelRole.RESHAPE
    linear_in: ClassVar[tuple[int, ...]] = (0,)
    grows_with: ClassVar[tuple[int, ...]] = (1,)
    batchable: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if x.shape is None or (self.axes is None and None in x.shape):
            return TensorSpec(None, x.dtype)
        if self.axes is None:
            return TensorSpec(tuple(d for d in x.shape if d != 1), x.dtype)
        dropped = {normalize_axis(axis, len(x.shape)) for axis in self.axes}
        for axis in sorted(dropped):
            if x.shape[axis] not in (None, 1):
                raise ValueError(f"Axis {axis} of {x} can't be squeezed: its size is {x.shape[axis]}, not 1.")
        return TensorSpec(tuple(d for axis, d in enumerate(x.shape) if axis not in dropped), x.dtype)

    def axis_map(self, *inputs: Any) -> AxisMap | None:
        if self.axes is None:
            return None
        rank = len(inputs[0].shape)
        dropped = axes_from_front(self.axes, rank)
        return tuple([(Follows(0, axis),) for axis in range(rank) if axis not in dropped])

    def run(self, xp: Any, *inputs: Any) -> Any:
        return as_scalar_or_array(inputs[0].squeeze(self.axes))

    def emit(self, arguments: Sequence[str]) -> str | None:
        return f"{arguments[0]}.squeeze({self.axes})[()]"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (reshape_like(dy, node.inputs[0]) if self.axes is None else expand_dims(dy, self.axes),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(3, dtype="float32").reshape(1, 3, 1)
        yield Sample(cls(None), [x], x[0, :, 0], label="all")
        yield Sample(cls((0,)), [x], x[0], label="one")
        yield Sample(cls((-1,)), [x], x[..., 0], label="from the end")
        yield Sample(cls((0, 1)), [x[:, :1, 0]], np.float32(0), label="to scalar")
        yield Sample(cls((0,)), [x[:, :0]], np.zeros((0, 1), "float32"), label="empty")
        yield Sample(cls(None), [np.float32(3)], np.float32(3), label="0-d")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: cls((0,)).infer(TensorSpec((2,), dtypes.float32)), ValueError, "size is 2")
        yield ErrorSample(lambda: cls((1,)).run(np, np.ones((1, 2), "float32")), ValueError, "squeeze")


def squeeze(x: TensorLike, axis: int | Sequence[int] | None = None) -> Tensor:
    """Return `x` without axes of size 1: those that `axis` names, or all whose size is known (axes of batches stay).

    Raises:
        ValueError: a named axis has another size.

    >>> import anabranch as ab
    >>> ab.ops.squeeze([[1.0], [2.0]], -1).shape
    (2,)
    """
    tensor = convert_to_tensor(x)
    if axis is None:
        if tensor.shape is None:
            return apply(Squeeze(None), tensor)
        axes = [a for a, d in enumerate(tensor.shape) if d == 1]
    else:
        axes = axes_argument(axis)
    if tensor.shape is not None:
        axes = [normalize_axis(a, len(tensor.shape)) for a in axes]
    return apply(Squeeze(tuple(sorted(set(axes)))), tensor) if axes else unchanged(tensor)


# --- broadcasting ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BroadcastTo(Op):
    """The input broadcast to `shape`, whose Nones further inputs fill."""

    shape: tuple[int | None, ...]
    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True
    kernel_role: ClassVar[KernelRole | None] = KernelRole.BROADCAST
    repeats_values: ClassVar[bool] = True
    linear_in: ClassVar[tuple[int, ...]] = (0,)
    grows_with: ClassVar[tuple[int, ...]] = (1,)
    batchable: ClassVar[bool] = True
    row_state = row_rules.spread

    def infer(self, *inputs: Any) -> TensorSpec:
        x = inputs[0]
        if x.shape is None:
            return TensorSpec(self.shape, x.dtype)
        extra = len(self.shape) - len(x.shape)
        source = (1,) * extra + x.shape
        if extra < 0 or not all(
            d in (None, 1, want) or want is None for d, want in zip(source, self.shape, strict=True)
        ):
            raise ValueError(f"{x} does not broadcast to {shape_text(self.shape)}.")
        # A size that comes as an input is unknown even where it can only be that of `x`: another one is an error.
        return TensorSpec(self.shape, x.dtype)

    def result_sizes(self, node: Operation, sizes: SizesOfTensors) -> Sequence[ResultSizes] | None:
        return [sizes.filled_in(self.shape, node.inputs[1:])]

    def run(self, xp: Any, *inputs: Any) -> Any:
        return as_scalar_or_array(broadcast_to_sizes(xp, inputs[0], fill_shape(self.shape, inputs[1:])))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return sum_like(dy, node.inputs[0]), *[None] * (len(node.inputs) - 1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(3, dtype="float32")
        yield Sample(cls((2, 3)), [x], np.stack([x, x]), label="row")
        yield Sample(cls((None, 3)), [x, np.int32(2)], np.stack([x, x]), differentiable=(0,), label="dynamic")
        yield Sample(cls((2,)), [np.float32(2)], np.full(2, 2, "float32"), label="from scalar")
        yield Sample(cls(()), [np.float32(2)], np.float32(2), label="0-d")
        yield Sample(cls((0, 3)), [x], np.zeros((0, 3), "float32"), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec = TensorSpec((2, 3), dtypes.float32)
        yield ErrorSample(lambda: cls((2, 4)).infer(spec), ValueError, "does not broadcast", "sizes")
        yield ErrorSample(lambda: cls((3,)).infer(spec), ValueError, "does not broadcast", "rank")


def broadcast_to(x: TensorLike, shape: ShapeLike) -> Tensor:
    """Repeat `x` along new axes and axes of size 1 to have `shape` (ints, scalar tensors, or one vector tensor).

    Raises:
        ValueError: NumPy's broadcasting rules do not lead from the shape of `x` to `shape`.

    >>> import anabranch as ab
    >>> ab.ops.broadcast_to([1, 2], (2, 2))
    Tensor([[1, 2],
            [1, 2]], dtype=int32)
    """
    tensor = convert_to_tensor(x)
    if is_shape_vector(shape):
        return apply(BroadcastToShape(shape_from_vector(shape)), tensor, shape)
    static, dynamic = resolve_shape(shape)
    return unchanged(tensor) if static == tensor.shape and not dynamic else apply(BroadcastTo(static), tensor, *dynamic)


__all__ = [
    "broadcast_to",
    "expand_dims",
    "ndim",
    "ravel",
    "reshape",
    "shape",
    "size",
    "squeeze",
]
