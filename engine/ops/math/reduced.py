"""Helpers of all reductions: axes with known and unknown ranks, the base class, the sum, and undoing a reduction.

`axes` of an op is a sorted tuple counted from the front wherever the rank is known. Where it is not, the axes are kept
as the user gave them (None for all) and resolved when the op runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows, axes_from_front
from ...graph.kernel_roles import KernelRole
from ...graph.spec import Dim, Shape
from ..arrays.shaping import BroadcastTo, Reshape, axes_argument, expand_dims
from ..base import (
    Op,
    Operation,
    Sample,
    Tensor,
    TensorSpec,
    apply,
    as_scalar_or_array,
    cast,
    check_numbers,
    normalize_axes,
)
from ..run_time_shapes import runtime_shape

Axes = tuple[int, ...] | None
AxisLike: TypeAlias = int | Sequence[int] | None


def widened(x: Tensor) -> Tensor:
    """Return `x` in the dtype in which its sums are accumulated: float32 for half precision, whose squares overflow."""
    return cast(x, dtypes.accumulator_of(x.dtype) or x.dtype)


def axes_attribute(axis: AxisLike, rank: int | None) -> Axes:
    """Return `axis` as ops keep it: normalised where the rank is known, else as given (None means all axes).

    Raises:
        ValueError: an axis is out of range or given twice.
    """
    if axis is None or rank is not None:
        return normalize_axes(axis, rank)
    axes = tuple(axes_argument(axis))
    if len(set(axes)) != len(axes):
        raise ValueError(f"axis={axis} names an axis twice.")
    return axes


def reduced_shape(shape: Shape, axes: Axes, keepdims: bool) -> Shape:
    """Return the shape that is left of `shape` by a reduction over `axes`."""
    if shape is None:
        return () if axes is None and not keepdims else None
    gone = normalize_axes(axes, len(shape)) or ()
    if keepdims:
        return tuple(1 if position in gone else dim for position, dim in enumerate(shape))
    return tuple(dim for position, dim in enumerate(shape) if position not in gone)


def largest(xp: Any, x: Any, axes: Axes) -> Any:
    """Return the maximum over `axes`, which are kept; -inf of no elements. (CuPy's reductions take no `initial`.)"""
    if not x.size:
        return xp.full(reduced_shape(x.shape, axes, keepdims=True), -np.inf, x.dtype)
    return xp.max(x, axis=axes, keepdims=True)


def reduced_dims(shape: tuple[Dim, ...], axes: Axes) -> tuple[Dim, ...]:
    """Return the sizes of the axes that are reduced."""
    return tuple(shape[axis] for axis in normalize_axes(axes, len(shape)) or ())


@dataclass(frozen=True)
class Reduction(Op, abstract=True):
    """Base: a reduction of one input over `axes`; with `keepdims` they stay as dimensions of size 1."""

    axes: Axes
    keepdims: bool = False
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axes",)
    never_fails: ClassVar[bool] = True
    batchable: ClassVar[bool] = True

    def output_dtype(self, dtype: DType) -> DType:
        return dtype

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        check_numbers(self, x)
        return TensorSpec(reduced_shape(x.shape, self.axes, self.keepdims), self.output_dtype(x.dtype))

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        gone = axes_from_front(self.axes, rank)
        return tuple(
            [() if axis in gone else (Follows(0, axis),) for axis in range(rank) if self.keepdims or axis not in gone]
        )


@dataclass(frozen=True)
class Sum(Reduction):
    """The sum over axes, accumulated in `accumulator` (by default in the input's own dtype)."""

    accumulator: DType | None = None
    kernel_role: ClassVar[KernelRole | None] = KernelRole.REDUCTION
    linear_in: ClassVar[tuple[int, ...]] = (0,)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        total = xp.sum(x, axis=self.axes, dtype=self.accumulator or x.dtype, keepdims=self.keepdims)
        return as_scalar_or_array(total.astype(x.dtype) if self.accumulator else total)

    def emit(self, arguments: Sequence[str]) -> str | None:
        return emit_reduce("add", self, arguments[0]) if self.accumulator is None else None

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        return emit_reduce("add", self, arguments[0], out) if self.accumulator is None else None

    def row_expression(self, e: Any, x: Any, reduce: Any) -> Any:
        return reduce("add", x)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (broadcast_reduced(dy, node.inputs[0], self.axes, self.keepdims),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for x, axes, keepdims, label in reduction_cases():
            yield Sample(cls(axes, keepdims), [x], np.sum(x, axis=axes, keepdims=keepdims), (0,), label=label)
        nan = np.array([1, np.nan], "float32")
        yield Sample(cls((0,)), [nan], np.float32(np.nan), (), label="NaN")
        many = np.ones(5000, "float16")
        yield Sample(cls((0,), False, dtypes.float32), [many], np.float16(5000), label="half precision")


def emit_reduce(ufunc: str, op: Reduction, x: str, out: str | None = None) -> str:
    """Return a NumPy ufunc's reduction as source; into buffer `out` if that is given."""
    into = "" if out is None else f", out={out}"
    return f"np.{ufunc}.reduce({x}, axis={op.axes}, dtype={x}.dtype, keepdims={op.keepdims}{into})"


def reduction_cases() -> Iterable[tuple[Any, Axes, bool, str]]:
    """Yield what samples of reductions have in common: inputs, axes, keepdims, and a label."""
    x = np.random.default_rng(0).uniform(-2, 2, (2, 3, 4)).astype("float32")
    yield x, (1,), False, "one axis"
    yield x, (0, 2), True, "two axes, kept"
    yield x, (0, 1, 2), False, "all axes"
    yield x, None, False, "unknown rank"
    yield x, (), False, "no axis"
    yield np.float32(3), (), False, "0-d"
    yield x[:, :, :0], (1,), False, "empty result"


@dataclass(frozen=True)
class BroadcastReduced(Op):
    """Undo a reduction: a reduced value, repeated along `axes` to a shape (second input, int32 vector)."""

    axes: Axes
    keepdims: bool
    shape: Shape
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axes",)
    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True
    shape_input: ClassVar[int | None] = 1
    linear_in: ClassVar[tuple[int, ...]] = (0,)
    batchable: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(self.shape, inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        y, wanted = inputs
        shape = tuple(wanted.tolist())
        if not self.keepdims:
            y = y.reshape(reduced_shape(shape, self.axes, keepdims=True))
        return as_scalar_or_array(xp.broadcast_to(y, shape))

    def kernel_steps(self, inputs: Sequence[Any], output: Any) -> Sequence[tuple[Op, tuple[int, ...]]]:
        if not output.shape:
            return ()
        kept = reduced_shape(output.shape, self.axes, keepdims=True)
        if kept == inputs[0].shape:
            return ((BroadcastTo(output.shape), (0,)),)
        return (Reshape(kept or ()), (0,)), (BroadcastTo(output.shape), (2,))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply(Sum(self.axes, self.keepdims, dtypes.accumulator_of(dy.dtype)), dy), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        y = np.arange(3, dtype="float32")
        shape = np.array([2, 3], "int32")
        yield Sample(cls((0,), False, (2, 3)), [y, shape], np.stack([y, y]), (0,), label="axis 0")
        yield Sample(cls((0,), True, (None, 3)), [y[None], shape], np.stack([y, y]), (0,), label="kept")
        yield Sample(cls(None, False, None), [np.float32(2), shape], np.full((2, 3), 2, "float32"), (0,), label="0-d")
        none = np.array([0, 3], "int32")
        yield Sample(cls((0,), False, (0, 3)), [y, none], np.zeros((0, 3), "float32"), (0,), label="empty")


def broadcast_reduced(y: Tensor, x: Tensor, axes: Axes, keepdims: bool) -> Tensor:
    """Return `y`, which came from a reduction of `x`, repeated to the shape of `x`."""
    return apply(BroadcastReduced(axes, keepdims, x.shape), y, runtime_shape(x))


def restore_axes(y: Tensor, x: Tensor, axes: Axes, keepdims: bool) -> Tensor:
    """Return `y`, which came from a reduction of `x`, in a shape that broadcasts against `x`."""
    if keepdims or y.shape == () or not axes:
        return y
    if x.ndim is None:
        return broadcast_reduced(y, x, axes, keepdims)
    return expand_dims(y, axes)
