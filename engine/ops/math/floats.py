"""Elementwise functions of floating-point numbers: roots and remainders, units of angles, and the numbers' own parts.

`view`, which reads the bits of numbers as numbers of another dtype, stands here as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType, DTypeLike, as_dtype
from ...common.quick_dataclass import dataclass
from ..arrays.creation import zeros_like
from ..base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    apply_promoted,
    as_floating,
    cast,
    check_numbers,
    convert_to_tensor,
    promote,
)
from ..run_time_shapes import sum_like
from .comparison import equal, isfinite, isinf, isnan, less_equal, logical_and, logical_or, maximum, minimum, where
from .complex_numbers import absolute
from .elementwise import (
    ElementwiseFunction,
    ElementwiseOp,
    check_dtype,
    is_real_number,
    negative,
    promote_numbers,
    subtract,
)
from .elementwise_samples import binary_samples, unary_samples
from .mathematics import trunc
from .sigmoids import sigmoid
from .special import as_wide_floating

# --- roots, logarithms, remainders ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cbrt(ElementwiseFunction):
    """The cube root, of negative numbers too. Its gradient at 0 is infinite."""

    function = "cbrt"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], dtypes.is_floating, "real floating-point numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy / (y * y * 3)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.cbrt, low=0.2)
        x = np.array([-8, -0.0, 27, np.inf, np.nan], "float32")
        expected = np.array([-2, -0.0, 3, np.inf, np.nan], "float32")
        yield Sample(cls(), [x], expected, differentiable=(), label="special")


@dataclass(frozen=True)
class Logaddexp2(ElementwiseOp):
    """``log2(2**x + 2**y)`` with no overflow on the way."""

    source = "np.logaddexp2({0}, {1})"
    ufunc = "logaddexp2"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], dtypes.is_floating, "real floating-point numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.logaddexp2(*inputs)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, y = node.inputs
        assert dy is not None
        same = logical_and(equal(x, y), isinf(x))  # of two equal infinities the difference is NaN
        difference = where(same, 0, (where(same, 0, x) - y) * math.log(2))
        return sum_like(dy * sigmoid(difference), x), sum_like(dy * sigmoid(-difference), y)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.logaddexp2)
        x, y = np.array([-np.inf, 1000, -np.inf], "float32"), np.array([-np.inf, 1000, 3], "float32")
        expected = np.array([-np.inf, 1001, 3], "float32")
        yield Sample(cls(), [x, y], expected, differentiable=(), label="special")


@dataclass(frozen=True)
class Fmod(ElementwiseOp):
    """``x - trunc(x / y) * y``: the remainder has the sign of the dividend, as in C."""

    source = "np.fmod({0}, {1})"
    ufunc = "fmod"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], is_real_number, "real numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.fmod(*inputs)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, y = node.inputs
        assert dy is not None
        return sum_like(dy, x), sum_like(negative(dy * trunc(x / y)), y)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.fmod, low=0.5)
        x, y = np.array([5.5, -5.5, 5.5, -5.5], "float32"), np.array([2, 2, -2, -2], "float32")
        yield Sample(cls(), [x, y], np.array([1.5, -1.5, 1.5, -1.5], "float32"), label="signs")
        x, y = np.array([7, -7, 7, -7, 7], "int32"), np.array([3, 3, -3, -3, 0], "int32")
        expected = np.array([1, -1, 1, -1, 0], "int32")
        yield Sample(cls(), [x, y], expected, differentiable=(), label="integers")


def _is_exponent(dtype: DType) -> bool:
    return dtypes.is_integer(dtype) and dtype.name != "uint64"  # which has no safe cast to C's long


# --- parts of numbers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ldexp(ElementwiseOp):
    """``x * 2**n``, exact unless it overflows or underflows. Inputs: floats and integers."""

    source = "np.ldexp({0}, {1})"
    ufunc = "ldexp"

    def infer(self, *inputs: Any) -> TensorSpec:
        x, exponent = inputs
        check_dtype(self, x, dtypes.is_floating, "real floating-point numbers", "Cast it with ops.cast.")
        check_dtype(self, exponent, _is_exponent, "integer exponents", "Use x1 * ops.exp2(x2) for others.")
        return TensorSpec(self.broadcast(x, TensorSpec(exponent.shape, x.dtype)), x.dtype)

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.ldexp(*inputs)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, exponent = node.inputs
        assert dy is not None
        return sum_like(apply(Ldexp(), dy, exponent), x), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x, n = np.array([[0.75, -1.5, 3]], "float32"), np.array([[1], [-2]], "int32")
        expected = np.array([[1.5, -3, 6], [0.1875, -0.375, 0.75]], "float32")
        yield Sample(cls(), [x, n], expected, differentiable=(0,), label="outer")
        yield Sample(cls(), [x[0, 0], n[0, 0]], np.float32(1.5), differentiable=(0,), label="0-d")
        empty = np.zeros((2, 0), "float32")
        yield Sample(cls(), [x[:, :0], n], empty, differentiable=(0,), label="empty")
        tiny = np.array([2.0**-100, 2.0**100], "float32")
        expected = np.array([2.0**90, 2.0**-90], "float32")
        yield Sample(cls(), [tiny, np.array([190, -190], "int32")], expected, differentiable=(), label="far")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: ldexp([1.0], [2.0]), TypeError, "ldexp takes integer exponents; got float32")


@dataclass(frozen=True)
class NextAfter(ElementwiseOp):
    """The next representable number after x in the direction of y; nearly x, and so are its derivatives."""

    source = "np.nextafter({0}, {1})"
    ufunc = "nextafter"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], dtypes.is_floating, "real floating-point numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.nextafter(*inputs)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return sum_like(dy, node.inputs[0]), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.nextafter, differentiable=(0,))
        x, y = np.array([1, 1, 2, 0], "float32"), np.array([2, 0, 2, np.nan], "float32")
        expected = np.array([1 + 2.0**-23, 1 - 2.0**-24, 2, np.nan], "float32")
        yield Sample(cls(), [x, y], expected, differentiable=(), tolerance=1e-9, label="special")


@dataclass(frozen=True)
class Signbit(ElementwiseFunction):
    """A test whether the sign bit is set: of negative numbers, and of -0.0."""

    function = "signbit"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_numbers(self, *inputs)
        check_dtype(self, inputs[0], is_real_number, "real numbers", "Cast it with ops.cast.")
        return TensorSpec(inputs[0].shape, dtypes.bool_)

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> None:
        return None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.signbit, differentiable=())
        x = np.array([0.0, -0.0, -np.inf, np.inf], "float32")
        yield Sample(cls(), [x], np.array([False, True, True, False]), differentiable=(), label="special")


@dataclass(frozen=True)
class View(Op):
    """The same bytes as numbers of another dtype; the last axis grows or shrinks with the size of the elements."""

    dtype: DType
    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        old, new = x.dtype.itemsize, self.dtype.itemsize
        if x.shape is None or old == new:
            return TensorSpec(x.shape, self.dtype)
        if not x.shape:
            raise ValueError(f"view: a scalar of {x.dtype.name} has no axis to hold elements of {self.dtype.name}.")
        last = x.shape[-1]
        if last is not None and last * old % new:
            raise ValueError(
                f"view: the last axis of {x} holds {last * old} bytes, which are no whole number of "
                f"{self.dtype.name} elements of {new} bytes."
            )
        return TensorSpec((*x.shape[:-1], None if last is None else last * old // new), self.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        return x.view(self.dtype) if not x.ndim else xp.ascontiguousarray(x).view(self.dtype)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)  # bits are no smooth function of numbers

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1, -2], [0, 5]], "int32")
        yield Sample(cls(np.dtype("uint32")), [x], np.array([[1, 2**32 - 2], [0, 5]], "uint32"), (), label="equal size")
        yield Sample(cls(np.dtype("int16")), [x], np.array([[1, 0, -2, -1], [0, 0, 5, 0]]), (), label="smaller")
        yield Sample(cls(dtypes.int64), [x[1]], np.array([5 << 32]), (), label="larger")
        yield Sample(cls(np.dtype("uint32")), [np.int32(-1)], np.uint32(2**32 - 1), (), label="0-d")
        yield Sample(cls(dtypes.int64), [x[:0]], np.zeros((0, 1), "int64"), (), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: view(1.5, "int16"), ValueError, "a scalar of float32 has no axis", "scalar")
        yield ErrorSample(lambda: view([1, 2, 3], "int64"), ValueError, "holds 12 bytes.*int64 elements of 8", "size")


# --- functions ------------------------------------------------------------------------------------------------------


def cbrt(x: TensorLike) -> Tensor:
    """Compute the cube root; int64 counts as float64, other integers as float32. Its gradient at 0 is infinite.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.cbrt([-8, 27])).round(3)
    array([-2.,  3.], dtype=float32)
    """
    return apply(Cbrt(), as_wide_floating(x))


def logaddexp2(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``log2(2**x1 + 2**x2)`` with no overflow on the way."""
    return apply(Logaddexp2(), *promote(x1, x2, floating=True))


def fmod(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute the remainder of ``x1 / x2`` with the sign of `x1`, as in C. An integer modulo zero gives 0.

    >>> import anabranch as ab
    >>> ab.ops.fmod([-7, 7], [3, -3])
    Tensor([-1,  1], dtype=int32)
    """
    return apply(Fmod(), *promote_numbers(x1, x2))


def fabs(x: TensorLike) -> Tensor:
    """Compute the absolute value, as a float.

    Raises:
        TypeError: `x` is complex.
    """
    return absolute(as_floating(x))


def fmax(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Return the larger of two values, elementwise; where one is NaN, the other.

    >>> import anabranch as ab
    >>> ab.ops.fmax([1.0, float("nan")], [2.0, 3.0])
    Tensor([2., 3.], dtype=float32)
    """
    x, y = promote(x1, x2)
    return where(isnan(x), y, where(isnan(y), x, maximum(x, y))) if dtypes.is_floating(x.dtype) else maximum(x, y)


def fmin(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Return the smaller of two values, elementwise; where one is NaN, the other."""
    x, y = promote(x1, x2)
    return where(isnan(x), y, where(isnan(y), x, minimum(x, y))) if dtypes.is_floating(x.dtype) else minimum(x, y)


def deg2rad(x: TensorLike) -> Tensor:
    """Convert degrees to radians; int64 counts as float64."""
    return as_wide_floating(x) * (math.pi / 180)


def rad2deg(x: TensorLike) -> Tensor:
    """Convert radians to degrees; int64 counts as float64."""
    return as_wide_floating(x) * (180 / math.pi)


def ldexp(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 * 2**x2``, exact unless it overflows or underflows.

    Args:
        x1: numbers; integers count as float32.
        x2: integers.

    Raises:
        TypeError: `x2` does not hold integers.

    >>> import anabranch as ab
    >>> ab.ops.ldexp([0.75, 1.5], [1, 2])
    Tensor([1.5, 6. ], dtype=float32)
    """
    exponent = convert_to_tensor(x2)
    if dtypes.is_integer(exponent.dtype) and not np.can_cast(exponent.dtype, dtypes.int32):
        exponent = cast(exponent, dtypes.int32)  # NumPy's ldexp of bfloat16 and uint32 is a float32
    return apply(Ldexp(), as_floating(x1), exponent)


def nextafter(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Return the next floating-point number after `x1` in the direction of `x2`, elementwise."""
    return apply_promoted(NextAfter(), x1, x2, floating=True)


def signbit(x: TensorLike) -> Tensor:
    """Test whether the sign bit of each element is set: it is negative, or -0.0. Never so for unsigned numbers."""
    (tensor,) = promote_numbers(x)
    return apply(Signbit(), tensor)


def isposinf(x: TensorLike) -> Tensor:
    """Test whether each element is positive infinity; no integer is."""
    return _is_infinity(x, math.inf)


def isneginf(x: TensorLike) -> Tensor:
    """Test whether each element is negative infinity; no integer is."""
    return _is_infinity(x, -math.inf)


def _is_infinity(x: TensorLike, infinity: float) -> Tensor:
    tensor = convert_to_tensor(x)
    if tensor.dtype.kind == "c":
        raise TypeError(f"Infinite complex numbers have no sign; got dtype {tensor.dtype.name}. Use ops.isinf.")
    return equal(tensor, infinity) if dtypes.is_floating(tensor.dtype) else zeros_like(tensor, dtypes.bool_)


def view(x: TensorLike, dtype: DTypeLike = None) -> Tensor:
    """Read the bytes of `x` as numbers of `dtype`, without a copy where possible. No gradient flows through it.

    Args:
        x: a tensor; its last axis grows or shrinks where the elements of `dtype` are of another size.
        dtype: what to read; None leaves `x` as it is.

    Raises:
        ValueError: the bytes of the last axis are not a whole number of elements.

    >>> import anabranch as ab
    >>> ab.ops.view([1.0, -2.0], "int32")
    Tensor([ 1065353216, -1073741824], dtype=int32)
    """
    tensor = convert_to_tensor(x)
    return tensor if dtype is None else apply(View(as_dtype(dtype)), tensor)


def isclose(x1: TensorLike, x2: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Test whether ``|x1 - x2| <= atol + rtol * |x2|``, elementwise; equal infinities are close.

    Args:
        equal_nan: whether two NaNs are close.
    """
    x, y = promote(x1, x2, floating=True)
    near = less_equal(absolute(subtract(x, y)), absolute(y) * rtol + atol)
    close = logical_or(equal(x, y), logical_and(isfinite(y), near))
    return logical_or(close, logical_and(isnan(x), isnan(y))) if equal_nan else close


__all__ = [
    "cbrt",
    "deg2rad",
    "fabs",
    "fmax",
    "fmin",
    "fmod",
    "isclose",
    "isneginf",
    "isposinf",
    "ldexp",
    "logaddexp2",
    "nextafter",
    "rad2deg",
    "signbit",
    "view",
]
