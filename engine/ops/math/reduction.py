"""Reductions: sums, means, extrema, logical and statistical reductions over some or all axes."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType, DTypeLike
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows, axes_from_front, same_axes_map
from ...graph.kernel_roles import KernelRole
from ...graph.op import Cost
from ...graph.spec import shape_text
from ..arrays.shaping import reshape
from ..base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    as_floating,
    as_scalar_or_array,
    cast,
    convert_to_tensor,
)
from ..run_time_shapes import runtime_shape
from .comparison import maximum
from .complex_numbers import absolute
from .dtype_checks import check_dtype, check_floating, check_holds
from .mathematics import exp, root_of_total
from .reduced import (
    Axes,
    AxisLike,
    Reduction,
    Sum,
    axes_attribute,
    broadcast_reduced,
    emit_reduce,
    largest,
    reduced_dims,
    reduced_shape,
    reduction_cases,
    restore_axes,
    widened,
)
from .running import product_of_others


@dataclass(frozen=True)
class ReducedCount(Op):
    """The number of elements behind each result of a reduction (at least 1), from the shape (an int32 vector)."""

    axes: Axes
    dtype: DType
    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((), self.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        shape = tuple(int(dim) for dim in inputs[0])
        return self.dtype.type(builtins.max(1, _product(reduced_dims(shape, self.axes))))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        shape = np.array([2, 3, 0], "int32")
        yield Sample(cls((0, 1), dtypes.float32), [shape], np.float32(6), label="two axes")
        yield Sample(cls(None, dtypes.float32), [shape], np.float32(1), label="empty")
        yield Sample(cls((), dtypes.float32), [shape], np.float32(1), label="no axis")


def _product(dims: Iterable[Any]) -> int:
    total = 1
    for dim in dims:
        total *= int(dim)
    return total


def _count_of(x: Tensor, axes: Axes) -> Any:
    """Return the number of elements behind each reduced value: a Python float where it is known, else a tensor."""
    if x.shape is not None:
        dims = reduced_dims(x.shape, axes)
        if None not in dims:
            return float(builtins.max(1, _product(dims)))
    return apply(ReducedCount(axes, x.dtype), runtime_shape(x))


@dataclass(frozen=True)
class Mean(Reduction):
    """The mean over axes, accumulated in `accumulator`; NaN where there is nothing to average."""

    accumulator: DType | None = None
    kernel_role: ClassVar[KernelRole | None] = KernelRole.REDUCTION

    def infer(self, *inputs: Any) -> TensorSpec:
        check_floating(self, inputs[0])
        return super().infer(*inputs)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        total = xp.sum(x, axis=self.axes, dtype=self.accumulator or x.dtype, keepdims=self.keepdims)
        count = _product(reduced_dims(x.shape, self.axes))
        mean = total / total.dtype.type(count or np.nan)
        return as_scalar_or_array(mean.astype(x.dtype) if self.accumulator else mean)

    def emit(self, arguments: Sequence[str]) -> str | None:
        if self.accumulator is not None:
            return None
        return f"{emit_reduce('add', self, arguments[0])} / {self._emit_count(arguments[0])}"

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        if self.accumulator is not None:
            return None
        total = emit_reduce("add", self, arguments[0], out)
        return f"np.divide({total}, {self._emit_count(arguments[0])}, out={out})"

    def _emit_count(self, x: str) -> str:
        count = f"{x}.size" if self.axes is None else " * ".join(f"{x}.shape[{axis}]" for axis in self.axes) or "1"
        return f"{x}.dtype.type({count} or np.nan)"

    def row_expression(self, e: Any, x: Any, reduce: Any) -> Any:
        return reduce.mean(x)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x = node.inputs[0]
        assert dy is not None
        return (broadcast_reduced(dy / _count_of(x, self.axes), x, self.axes, self.keepdims),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for x, axes, keepdims, label in reduction_cases():
            yield Sample(cls(axes, keepdims), [x], np.mean(x, axis=axes, keepdims=keepdims), (0,), label=label)
        yield Sample(cls((0,)), [np.zeros((0, 2), "float32")], np.full(2, np.nan, "float32"), (), label="of nothing")
        large = np.full(4, 60000, "float16")
        yield Sample(cls((0,), False, dtypes.float32), [large], np.float16(60000), label="half precision")


@dataclass(frozen=True)
class Prod(Reduction):
    """The product over axes. The gradient multiplies the other factors and never divides, so zeros are exact."""

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        return as_scalar_or_array(xp.prod(x, axis=self.axes, dtype=x.dtype, keepdims=self.keepdims))

    def emit(self, arguments: Sequence[str]) -> str | None:
        return emit_reduce("multiply", self, arguments[0])

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        return emit_reduce("multiply", self, arguments[0], out)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x = node.inputs[0]
        assert dy is not None
        axes = self.axes if self.axes is not None else tuple(range(x.ndim or 0))
        dx = restore_axes(dy, x, axes, self.keepdims)
        partial = x  # the product over the axes visited so far
        for axis in axes:
            dx = dx * product_of_others(partial, axis)
            partial = apply(Prod((axis,), keepdims=True), partial)
        return (dx,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for x, axes, keepdims, label in reduction_cases():
            different = () if axes is None else (0,)  # `prod` flattens what has no known rank
            yield Sample(cls(axes, keepdims), [x], np.prod(x, axis=axes, keepdims=keepdims), different, label=label)
        zeros = np.array([[2, 0, 3], [0, 5, 0]], "float32")
        yield Sample(cls((1,)), [zeros], np.zeros(2, "float32"), (0,), label="zeros")
        yield Sample(cls((0,)), [np.zeros((0, 2), "float32")], np.ones(2, "float32"), (0,), label="of nothing")


@dataclass(frozen=True)
class TieShare(Reduction):
    """Each element's share in an extremum: 1 over the number of elements that attain it, 0 for the others.

    Inputs: x, and its reduced maximum or minimum. `initial` takes a share of its own if it attains the extremum.
    """

    initial: float | None = None

    def infer(self, *inputs: Any) -> TensorSpec:
        return inputs[0]

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        of_y = {own[0].axis: Follows(1, axis) for axis, own in enumerate(super().axis_map(inputs[0])) if own}
        same = same_axes_map(rank, axes_from_front(self.axes, rank))
        return tuple([(*own, of_y[axis]) if axis in of_y else own for axis, own in enumerate(same)])

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, y = inputs
        full = y if self.keepdims else y.reshape(reduced_shape(x.shape, self.axes, keepdims=True))
        hits = x == full
        count = xp.sum(hits, axis=self.axes, keepdims=True)
        if self.initial is not None:
            count = count + (full == self.initial)
        return as_scalar_or_array((hits / xp.maximum(count, 1)).astype(x.dtype))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None  # constant almost everywhere

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1, 3, 3], [2, 0, 1]], "float32")
        want = np.array([[0, 0.5, 0.5], [1, 0, 0]], "float32")
        yield Sample(cls((1,)), [x, x.max(1)], want, (), label="rows")
        yield Sample(cls((1,), True), [x, x.max(1, keepdims=True)], want, (), label="kept")
        yield Sample(cls(()), [np.float32(2), np.float32(2)], np.float32(1), (), label="0-d")
        yield Sample(
            cls((0,), False, 3.0), [x[:, 1], np.float32(3)], np.array([0.5, 0], "float32"), (), label="initial"
        )
        yield Sample(cls((1,)), [x[:0], x[:0, 0]], x[:0], (), label="empty")


@dataclass(frozen=True)
class _Extremum(Reduction):
    """Base: maximum or minimum; the gradient is split equally among the elements that attain it."""

    initial: float | None = None
    ufunc: ClassVar[str] = ""
    kernel_role: ClassVar[KernelRole | None] = KernelRole.REDUCTION

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if x.shape is not None and self.initial is None and 0 in reduced_dims(x.shape, self.axes):
            raise ValueError(
                f"The {self.ufunc} of an input of shape {shape_text(x.shape)} over axes {self.axes} does not exist: "
                "there are no elements. Pass initial=... to define it."
            )
        check_holds(self, x, self.initial, "initial")
        return super().infer(x)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        reduce = xp.max if self.ufunc == "maximum" else xp.min
        if self.initial is None:
            return as_scalar_or_array(reduce(x, axis=self.axes, keepdims=self.keepdims))
        initial = x.dtype.type(self.initial)
        if not x.size:
            return as_scalar_or_array(xp.full(reduced_shape(x.shape, self.axes, self.keepdims), initial, x.dtype))
        found = reduce(x, axis=self.axes, keepdims=self.keepdims)
        return as_scalar_or_array(getattr(xp, self.ufunc)(found, initial))

    def emit(self, arguments: Sequence[str]) -> str | None:
        return emit_reduce(self.ufunc, self, arguments[0]) if self.initial is None else None

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        return emit_reduce(self.ufunc, self, arguments[0], out) if self.initial is None else None

    def row_expression(self, e: Any, x: Any, reduce: Any) -> Any:
        return reduce("max" if self.ufunc == "maximum" else "min", x)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, y = node.inputs[0], node.outputs[0]
        assert dy is not None
        share = apply(TieShare(self.axes, self.keepdims, self.initial), x, y)
        return (restore_axes(dy, x, self.axes, self.keepdims) * share,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        reference: Any = np.max if cls.ufunc == "maximum" else np.min
        for x, axes, keepdims, label in reduction_cases():
            yield Sample(cls(axes, keepdims), [x], reference(x, axis=axes, keepdims=keepdims), (0,), label=label)
        nan = np.array([1, np.nan, 2], "float32")
        yield Sample(cls((0,)), [nan], np.float32(np.nan), (), label="NaN")
        empty = np.zeros((2, 0), "float32")
        yield Sample(cls((1,), False, -1.0), [empty], np.full(2, -1, "float32"), (0,), label="of nothing")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        function = max if cls.ufunc == "maximum" else min
        yield ErrorSample(lambda: function(np.zeros((2, 0)), axis=1), ValueError, "no elements.*initial", "nothing")
        yield ErrorSample(lambda: function([1.0], axis=1), ValueError, "axis=1 is out of range", "axis")


@dataclass(frozen=True)
class Max(_Extremum):
    """The maximum over axes; NaN where any element is NaN."""

    ufunc: ClassVar[str] = "maximum"


@dataclass(frozen=True)
class Min(_Extremum):
    """The minimum over axes; NaN where any element is NaN."""

    ufunc: ClassVar[str] = "minimum"


@dataclass(frozen=True)
class _Logical(Reduction):
    ufunc: ClassVar[str] = ""

    def run(self, xp: Any, *inputs: Any) -> Any:
        reduce = xp.all if self.ufunc == "logical_and" else xp.any
        return as_scalar_or_array(reduce(inputs[0], axis=self.axes, keepdims=self.keepdims))

    def emit(self, arguments: Sequence[str]) -> str | None:
        return f"np.{self.ufunc}.reduce({arguments[0]}, axis={self.axes}, keepdims={self.keepdims})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        reference: Any = np.all if cls.ufunc == "logical_and" else np.any
        for x, axes, keepdims, label in reduction_cases():
            value = x > -1
            yield Sample(cls(axes, keepdims), [value], reference(value, axis=axes, keepdims=keepdims), (), label=label)
        nothing = np.zeros((2, 0), "bool")
        yield Sample(cls((1,)), [nothing], reference(nothing, axis=1), (), label="of nothing")


@dataclass(frozen=True)
class AllTrue(_Logical):
    """A test whether every element along the axes is true; so it is for no elements."""

    ufunc: ClassVar[str] = "logical_and"


@dataclass(frozen=True)
class AnyTrue(_Logical):
    """A test whether some element along the axes is true; not so for no elements."""

    ufunc: ClassVar[str] = "logical_or"


@dataclass(frozen=True)
class ArgExtremum(Reduction, abstract=True):
    """Base: the position of the first extremum; along one axis, or in the flattened input (axes None)."""

    function: ClassVar[str] = ""

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if x.shape is not None and 0 in reduced_dims(x.shape, self.axes):
            raise ValueError(
                f"{self.function} of an input of shape {shape_text(x.shape)} over axis {self.axes} does not exist: "
                "there are no elements."
            )
        return super().infer(x)

    def output_dtype(self, dtype: DType) -> DType:
        return dtypes.int32

    def run(self, xp: Any, *inputs: Any) -> Any:
        axis = None if self.axes is None else self.axes[0]
        found = getattr(xp, self.function)(inputs[0], axis=axis, keepdims=self.keepdims)
        return as_scalar_or_array(found.astype(np.int32))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        reference: Any = getattr(np, cls.function)
        x = np.array([[1, 3, 3], [2, 0, 0]], "float32")
        yield Sample(cls((1,)), [x], reference(x, axis=1).astype("int32"), (), label="ties")
        yield Sample(cls((0,), True), [x], reference(x, axis=0, keepdims=True).astype("int32"), (), label="kept")
        yield Sample(cls(None), [x], np.int32(reference(x)), (), label="flattened")
        yield Sample(cls(None), [np.float32(1)], np.int32(0), (), label="0-d")
        yield Sample(cls((1,)), [x[:0]], np.zeros(0, "int32"), (), label="empty")
        yield Sample(cls((0,)), [np.array([0, np.nan, 5], "float32")], np.int32(1), (), label="NaN")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        function = argmax if cls.function == "argmax" else argmin
        yield ErrorSample(lambda: function(np.zeros((2, 0)), axis=1), ValueError, "no elements", "nothing")
        yield ErrorSample(lambda: function([1.0], axis=-2), ValueError, "axis=-2 is out of range", "axis")


@dataclass(frozen=True)
class ArgMax(ArgExtremum):
    """The position of the first maximum (of the first NaN, if there is one), as int32."""

    function: ClassVar[str] = "argmax"


@dataclass(frozen=True)
class ArgMin(ArgExtremum):
    """The position of the first minimum (of the first NaN, if there is one), as int32."""

    function: ClassVar[str] = "argmin"


@dataclass(frozen=True)
class LogSumExp(Reduction):
    """``log(sum(exp(x)))`` without overflow: the maximum is taken out first. -inf for no elements."""

    kernel_role: ClassVar[KernelRole | None] = KernelRole.NORMALISATION
    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], dtypes.is_floating, "floating-point numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        wide = x.astype(np.float32) if dtypes.accumulator_of(x.dtype) else x
        peak = largest(xp, wide, self.axes)
        peak = xp.where(xp.isfinite(peak), peak, wide.dtype.type(0))
        with np.errstate(divide="ignore", over="ignore"):
            total = xp.log(xp.sum(xp.exp(wide - peak), axis=self.axes, keepdims=True)) + peak
        if not self.keepdims:
            total = total.reshape(reduced_shape(x.shape, self.axes, keepdims=False))
        return as_scalar_or_array(total.astype(x.dtype))

    def row_expression(self, e: Any, x: Any, reduce: Any) -> Any:
        peak = reduce("max", x)
        peak = e.where(e.isfinite(peak), peak, 0.0)
        return e.log(reduce("add", e.exp(x - peak))) + peak

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, y = node.inputs[0], node.outputs[0]
        assert dy is not None
        bounded = maximum(y, -dtypes.largest(y.dtype))  # minus infinity of nothing but minus infinities has gradient 0
        weights = exp(x - restore_axes(bounded, x, self.axes, self.keepdims))
        return (restore_axes(dy, x, self.axes, self.keepdims) * weights,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for x, axes, keepdims, label in reduction_cases():
            expected = np.log(np.sum(np.exp(x), axis=axes, keepdims=keepdims))
            yield Sample(cls(axes, keepdims), [x], expected, (0,), label=label)
        large = np.array([[1000, 1000], [-1000, -1000], [-np.inf, -np.inf]], "float32")
        want = np.array([1000 + np.log(2), -1000 + np.log(2), -np.inf], "float32")
        yield Sample(cls((1,)), [large], want, (), label="extremes")
        yield Sample(cls((1,)), [large[:, :0]], np.full(3, -np.inf, "float32"), (), label="of nothing")


# --- functions ------------------------------------------------------------------------------------------------------


# On values, to make an op and to compare it with the one of the last call took longer than the sum of 100 numbers.
_sum_of = functools.lru_cache(256, typed=True)(Sum)
_mean_of = functools.lru_cache(256, typed=True)(Mean)


def _summable(x: TensorLike) -> Tensor:
    """Return `x` in the dtype in which it is summed: bools and small integers become int32 (uint32 if unsigned)."""
    tensor = convert_to_tensor(x)
    if tensor.dtype.kind in "bi" and tensor.dtype.itemsize < 4:
        return cast(tensor, dtypes.int32)
    if tensor.dtype.kind == "u" and tensor.dtype.itemsize < 4:
        return cast(tensor, "uint32")
    return tensor


def sum(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Return the sum over `axis` (all by default); 0 for no elements. Bools and small integers are summed as int32.

    >>> import anabranch as ab
    >>> ab.ops.sum([[1.0, 2.0], [3.0, 4.0]], axis=0)
    Tensor([4., 6.], dtype=float32)
    """
    tensor = _summable(x)
    return apply(_sum_of(axes_attribute(axis, tensor.ndim), keepdims, dtypes.accumulator_of(tensor.dtype)), tensor)


def mean(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Return the mean over `axis` (all axes by default). Integers give float32; NaN for no elements.

    >>> import anabranch as ab
    >>> ab.ops.mean([[1, 2], [3, 4]], axis=1)
    Tensor([1.5, 3.5], dtype=float32)
    """
    tensor = as_floating(x)
    return apply(_mean_of(axes_attribute(axis, tensor.ndim), keepdims, dtypes.accumulator_of(tensor.dtype)), tensor)


def prod(x: TensorLike, axis: AxisLike = None, keepdims: bool = False, dtype: DTypeLike = None) -> Tensor:
    """Return the product over `axis` (all by default); 1 for no elements. Its gradient is exact where factors are 0."""
    tensor = _summable(x) if dtype is None else convert_to_tensor(x, dtype)
    if tensor.ndim is None and axis is None and not keepdims:
        tensor = reshape(tensor, (-1,))  # so that the gradient has axes to visit
    wide = widened(tensor)
    return cast(apply(Prod(axes_attribute(axis, tensor.ndim), keepdims), wide), tensor.dtype)


def max(x: TensorLike, axis: AxisLike = None, keepdims: bool = False, initial: float | None = None) -> Tensor:
    """Return the maximum over `axis` (all by default), and of `initial`. Its gradient is split equally among ties.

    Raises:
        ValueError: there are no elements, and no `initial`.

    >>> import anabranch as ab
    >>> ab.ops.max([[1, 5], [3, 2]], axis=1)
    Tensor([5, 3], dtype=int32)
    """
    tensor = convert_to_tensor(x)
    return apply(Max(axes_attribute(axis, tensor.ndim), keepdims, initial), tensor)


def min(x: TensorLike, axis: AxisLike = None, keepdims: bool = False, initial: float | None = None) -> Tensor:
    """Return the minimum over `axis` (all by default), and of `initial`. Its gradient is split equally among ties.

    Raises:
        ValueError: there are no elements, and no `initial`.
    """
    tensor = convert_to_tensor(x)
    return apply(Min(axes_attribute(axis, tensor.ndim), keepdims, initial), tensor)


def amax(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Return the maximum over `axis`: another name of `max`."""
    return max(x, axis, keepdims)


def amin(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Return the minimum over `axis`: another name of `min`."""
    return min(x, axis, keepdims)


def all(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Test whether all elements over `axis` are true (not zero); true for no elements."""
    tensor = cast(x, "bool")
    return apply(AllTrue(axes_attribute(axis, tensor.ndim), keepdims), tensor)


def any(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Test whether any element over `axis` is true (not zero); false for no elements."""
    tensor = cast(x, "bool")
    return apply(AnyTrue(axes_attribute(axis, tensor.ndim), keepdims), tensor)


def argmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Compute the position of the first maximum along `axis`, or in the flattened input, as int32.

    >>> import anabranch as ab
    >>> ab.ops.argmax([[1.0, 5.0], [3.0, 2.0]], axis=-1)
    Tensor([1, 0], dtype=int32)
    """
    tensor = convert_to_tensor(x)
    return apply(ArgMax(None if axis is None else axes_attribute(axis, tensor.ndim), keepdims), tensor)


def argmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Compute the position of the first minimum along `axis`, or in the flattened input, as int32."""
    tensor = convert_to_tensor(x)
    return apply(ArgMin(None if axis is None else axes_attribute(axis, tensor.ndim), keepdims), tensor)


def logsumexp(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Compute ``log(sum(exp(x)))`` over `axis`, without overflow."""
    tensor = as_floating(x)
    return apply(LogSumExp(axes_attribute(axis, tensor.ndim), keepdims), tensor)


def var(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Return the variance over `axis`: the mean of squared deviations (divided by n). Half precision is widened."""
    tensor = as_floating(x)
    wide = widened(tensor)
    deviation = wide - mean(wide, axis, keepdims=True)
    if tensor.dtype.kind == "c":
        deviation = absolute(deviation)
        return mean(deviation * deviation, axis, keepdims)
    return cast(mean(deviation * deviation, axis, keepdims), tensor.dtype)


def std(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Compute the standard deviation over `axis` (divided by n). Its gradient is 0 where it is 0."""
    return root_of_total(var(x, axis, keepdims))


__all__ = [
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "logsumexp",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
]
