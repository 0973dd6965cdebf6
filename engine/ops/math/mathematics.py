"""Elementwise mathematical functions: powers and roots, exponentials and logarithms, rounding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.op import Cost
from ..base import (
    ErrorSample,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    apply_promoted,
    as_floating,
    cast,
    convert_to_tensor,
    is_source,
    known_array,
)
from ..run_time_shapes import sum_like
from .comparison import equal, greater, isinf, logical_and, where
from .elementwise import ElementwiseFunction, ElementwiseOp, check_dtype, is_real, promote_numbers, square, subtract
from .elementwise_samples import binary_samples, unary_samples
from .sigmoids import sigmoid

# --- powers and roots -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Power(ElementwiseOp):
    """``x ** y``.

    The cotangent of x is exact wherever the power is defined, at x = 0 and for negative x with integral y as well.
    That of y is ``x ** y * log(x)`` for positive x, and 0 elsewhere, where the power is not a smooth function of y.
    """

    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    # Not the operator: for arrays NumPy's ** takes square roots and squares where the scalar exponent says so, which
    # would round in another way than for arrays of exponents.
    source = "np.power({0}, {1})"
    ufunc = "power"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], lambda dtype: dtype != dtypes.bool_, "numbers", "Cast the bools to 'int32'.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.power(*inputs)

    def cannot_fail(self, *inputs: Tensor) -> bool:
        return not dtypes.is_integer(inputs[0].dtype)  # of integers there are no negative powers

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, y = node.inputs
        assert dy is not None
        dx = sum_like(dy * y * power(x, _reduced_exponent(x, y)), x) if node.needs(0) else None
        if not node.needs(1):
            return dx, None
        if x.dtype.kind == "c":
            return dx, sum_like(dy * node.outputs[0] * log(x), y)
        positive = greater(x, 0)
        logarithm = where(positive, log(where(positive, x, 1)), 0)
        return dx, sum_like(dy * node.outputs[0] * logarithm, y)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        rng = np.random.default_rng(0)
        for shapes in (((2, 3), (3,)), ((), ()), ((0, 3), (1, 3))):
            x, y = (np.asarray(rng.uniform(0.2, 2, shape)).astype("float32")[()] for shape in shapes)
            yield Sample(cls(), [x, y], np.power(x, y), label=f"{x.shape} and {y.shape}")
        x, y = np.array([-2, -2, 0, 0, 0, 3], "float32"), np.array([3, -2, 3, 1, 0, 0], "float32")
        expected = np.array([-8, 0.25, 0, 0, 1, 1], "float32")
        yield Sample(cls(), [x, y], expected, differentiable=(0,), label="zero, negative")
        x = np.array([-3, 2, 7, 10], "int32")
        yield Sample(cls(), [x, np.int32(3)], x * x * x, differentiable=(), label="integers")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: power([1, 2], -1), ValueError, r"power: integers .* exponent -1 .* x \*\* -1\.0")


def _reduced_exponent(x: Tensor, y: Tensor) -> Any:
    """Return ``y - 1``, but 1 where x and y are both 0.

    The slope is 0 there, where ``y * x**(y - 1)`` is ``0 * inf``.
    """
    known = known_array(y)
    if known is not None and np.all(known != 0):
        return known.item() - 1 if y.shape == () and not is_source(y, y) else y - 1
    return where(logical_and(equal(x, 0), equal(y, 0)), 1, y - 1)


@dataclass(frozen=True)
class Sqrt(ElementwiseFunction):
    function = "sqrt"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy * 0.5 / y

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.sqrt, low=0.2)
        x = np.array([0, -0.0, -1, np.inf, np.nan], "float32")
        expected = np.array([0, -0.0, np.nan, np.inf, np.nan], "float32")
        yield Sample(cls(), [x], expected, differentiable=(), label="special")


@dataclass(frozen=True)
class Rsqrt(ElementwiseOp):
    source = "1 / np.sqrt({0})"
    floating = True

    def expression(self, e: Any, *inputs: Any) -> Any:
        return 1 / e.sqrt(inputs[0])

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        return f"np.divide(1, np.sqrt({arguments[0]}, out={out}), out={out})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        y = node.outputs[0]
        assert dy is not None
        return (dy * -0.5 * (y * y * y),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        def reference(x: Any) -> Any:
            return np.power(x, np.float32(-0.5))

        yield from unary_samples(cls(), reference, low=0.2)
        x = np.array([0, -1, np.inf, np.nan], "float32")
        expected = np.array([np.inf, np.nan, 0, np.nan], "float32")
        yield Sample(cls(), [x], expected, differentiable=(), label="special")


@dataclass(frozen=True)
class Hypot(ElementwiseOp):
    """``sqrt(x**2 + y**2)`` with no overflow on the way. Its gradient at (0, 0) is 0."""

    source = "np.hypot({0}, {1})"
    ufunc = "hypot"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], dtypes.is_floating, "real floating-point numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.hypot(*inputs)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, y = node.inputs
        assert dy is not None
        length = node.outputs[0]
        share = dy / where(equal(length, 0), 1, length)
        return sum_like(share * x, x), sum_like(share * y, y)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.hypot)
        x, y = np.array([3e30, 0, np.inf], "float32"), np.array([4e30, 0, np.nan], "float32")
        yield Sample(cls(), [x, y], np.array([5e30, 0, np.inf], "float32"), differentiable=(), label="special")


# --- exponentials and logarithms ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exp(ElementwiseFunction):
    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    function = "exp"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy * y

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.exp)
        x = np.array([-np.inf, -200, 200, np.nan], "float32")
        yield Sample(cls(), [x], np.array([0, 0, np.inf, np.nan], "float32"), differentiable=(), label="special")


@dataclass(frozen=True)
class Expm1(ElementwiseFunction):
    function = "expm1"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy * (y + 1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.expm1)
        x = np.array([1e-10, -np.inf], "float32")
        yield Sample(cls(), [x], np.array([1e-10, -1], "float32"), differentiable=(), label="special")


@dataclass(frozen=True)
class Exp2(ElementwiseFunction):
    function = "exp2"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy * y * math.log(2)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.exp2)


@dataclass(frozen=True)
class Log(ElementwiseFunction):
    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    function = "log"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy / x

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.log, low=0.2)
        x = np.array([0, -1, np.inf, np.nan], "float32")
        expected = np.array([-np.inf, np.nan, np.inf, np.nan], "float32")
        yield Sample(cls(), [x], expected, differentiable=(), label="special")


@dataclass(frozen=True)
class Log1p(ElementwiseFunction):
    function = "log1p"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy / (x + 1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.log1p, low=-0.7)
        x = np.array([1e-10, -1, -2], "float32")
        yield Sample(cls(), [x], np.array([1e-10, -np.inf, np.nan], "float32"), differentiable=(), label="special")


@dataclass(frozen=True)
class Log2(ElementwiseFunction):
    function = "log2"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy / (x * math.log(2))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.log2, low=0.2)


@dataclass(frozen=True)
class Log10(ElementwiseFunction):
    function = "log10"
    floating = True

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return dy / (x * math.log(10))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.log10, low=0.2)


@dataclass(frozen=True)
class Logaddexp(ElementwiseOp):
    """``log(exp(x) + exp(y))`` with no overflow on the way."""

    source = "np.logaddexp({0}, {1})"
    ufunc = "logaddexp"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], dtypes.is_floating, "real floating-point numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.logaddexp(*inputs)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, y = node.inputs
        assert dy is not None
        # Of two equal infinities the difference is NaN; each has half the sum there.
        same = logical_and(equal(x, y), isinf(x))
        difference = where(same, 0, subtract(where(same, 0, x), y))
        share = sigmoid(difference)
        return sum_like(dy * share, x), sum_like(dy * sigmoid(-difference), y)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from binary_samples(cls(), np.logaddexp)
        x, y = np.array([-np.inf, 1000, -np.inf], "float32"), np.array([-np.inf, 1000, 3], "float32")
        expected = np.array([-np.inf, 1000 + math.log(2), 3], "float32")
        yield Sample(cls(), [x, y], expected, differentiable=(), label="special")


# --- rounding -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rounding(ElementwiseFunction):
    """Base: functions to the integers near by; their gradient is zero."""

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], is_real, "real numbers", "Take the parts of a complex number apart first.")
        return super().infer(*inputs)

    def pullback(self, dy: Tensor, x: Tensor, y: Tensor) -> None:
        return None


_HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, -0.2, np.inf, np.nan], "float32")


@dataclass(frozen=True)
class Floor(_Rounding):
    function = "floor"

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.floor, differentiable=())
        expected = np.array([-3, -2, -1, 0, 1, 2, -1, np.inf, np.nan], "float32")
        yield Sample(cls(), [_HALVES], expected, differentiable=(), label="halves")


@dataclass(frozen=True)
class Ceil(_Rounding):
    function = "ceil"

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.ceil, differentiable=())
        expected = np.array([-2, -1, -0.0, 1, 2, 3, -0.0, np.inf, np.nan], "float32")
        yield Sample(cls(), [_HALVES], expected, differentiable=(), label="halves")


@dataclass(frozen=True)
class Trunc(_Rounding):
    function = "trunc"

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.trunc, differentiable=())
        expected = np.array([-2, -1, -0.0, 0, 1, 2, -0.0, np.inf, np.nan], "float32")
        yield Sample(cls(), [_HALVES], expected, differentiable=(), label="halves")


@dataclass(frozen=True)
class Round(_Rounding):
    """To the nearest integer, halves to the even one."""

    function = "rint"
    floating = True

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.rint, differentiable=())
        expected = np.array([-2, -2, -0.0, 0, 2, 2, -0.0, np.inf, np.nan], "float32")
        yield Sample(cls(), [_HALVES], expected, differentiable=(), label="halves")


# --- functions ------------------------------------------------------------------------------------------------------


def power(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``x1 ** x2``, with broadcasting. Integers to integer exponents stay integers.

    Raises:
        ValueError: integers are raised to a negative exponent that is known while the graph is built.

    >>> import anabranch as ab
    >>> ab.ops.power([2, 3], 2)
    Tensor([4, 9], dtype=int32)
    """
    if isinstance(x2, (int, float)) and x2 == 2 and not isinstance(x1, (bool, int, float)):
        x, _ = promote_numbers(x1, x2)
        return square(x)
    x, y = promote_numbers(x1, x2)
    _check_exponent(x, y)
    return apply(Power(), x, y)


def _check_exponent(x: Tensor, y: Tensor) -> None:
    known = known_array(y)
    if known is None or not dtypes.is_integer(x.dtype):
        return
    lowest = np.min(known, initial=0)
    if lowest < 0:
        raise ValueError(
            f"power: integers ({x.dtype.name}) can't be raised to the negative exponent {lowest} as integers. "
            f"Write a float exponent, as in x ** {lowest}.0, or cast the base to 'float32'."
        )


def sqrt(x: TensorLike) -> Tensor:
    """Compute the square root; NaN where `x` is negative. Its gradient at 0 is infinite.

    >>> import anabranch as ab
    >>> ab.ops.sqrt([4, 9])
    Tensor([2., 3.], dtype=float32)
    """
    return apply(Sqrt(), as_floating(x))


def root_of_total(total: Tensor, order: float = 2) -> Tensor:
    """Compute roots of totals of powers, none of them negative. The gradient is 0, not infinite, where a total is 0."""
    none = equal(total, 0)
    some = where(none, 1, total)
    return where(none, 0, sqrt(some) if order == 2 else power(some, 1.0 / order))


def rsqrt(x: TensorLike) -> Tensor:
    """Compute ``1 / sqrt(x)``."""
    return apply(Rsqrt(), as_floating(x))


def hypot(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``sqrt(x1**2 + x2**2)`` with no overflow on the way. Its gradient at (0, 0) is 0."""
    return apply_promoted(Hypot(), x1, x2, floating=True)


def exp(x: TensorLike) -> Tensor:
    """Compute ``e ** x``.

    >>> import anabranch as ab
    >>> ab.ops.exp([-1000.0, 0.0])
    Tensor([0., 1.], dtype=float32)
    """
    return apply(Exp(), as_floating(x))


def expm1(x: TensorLike) -> Tensor:
    """Compute ``e ** x - 1``, exact for small `x` as well."""
    return apply(Expm1(), as_floating(x))


def exp2(x: TensorLike) -> Tensor:
    """Compute ``2 ** x``."""
    return apply(Exp2(), as_floating(x))


def log(x: TensorLike) -> Tensor:
    """Compute the natural logarithm: -inf at 0, NaN where `x` is negative."""
    return apply(Log(), as_floating(x))


def log1p(x: TensorLike) -> Tensor:
    """Compute ``log(1 + x)``, exact for small `x` as well."""
    return apply(Log1p(), as_floating(x))


def log2(x: TensorLike) -> Tensor:
    """Compute the logarithm to base 2."""
    return apply(Log2(), as_floating(x))


def log10(x: TensorLike) -> Tensor:
    """Compute the logarithm to base 10."""
    return apply(Log10(), as_floating(x))


def logaddexp(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute ``log(exp(x1) + exp(x2))`` with no overflow on the way."""
    return apply_promoted(Logaddexp(), x1, x2, floating=True)


def floor(x: TensorLike) -> Tensor:
    """Compute the greatest integer not above `x`, as a float. Its gradient is zero."""
    return apply(Floor(), as_floating(x))


def ceil(x: TensorLike) -> Tensor:
    """Compute the smallest integer not below `x`, as a float. Its gradient is zero."""
    return apply(Ceil(), as_floating(x))


def trunc(x: TensorLike) -> Tensor:
    """Return `x` rounded toward zero; integers and bools stay what they are. Its gradient is zero."""
    tensor = convert_to_tensor(x)
    whole = dtypes.is_integer(tensor.dtype) or tensor.dtype == dtypes.bool_
    return tensor if whole else apply(Trunc(), tensor)


def round(x: TensorLike, decimals: int = 0) -> Tensor:
    """Return `x` rounded to `decimals` places, halves to the even digit. Its gradient is zero.

    Args:
        decimals: places after the point; negative ones stand before it. Integers stay integers.

    >>> import anabranch as ab
    >>> ab.ops.round([0.5, 1.5, -2.7])
    Tensor([ 0.,  2., -3.], dtype=float32)
    """
    (tensor,) = promote_numbers(x)
    if dtypes.is_integer(tensor.dtype):
        return tensor if decimals >= 0 else cast(round(cast(tensor, dtypes.float64), decimals), tensor.dtype)
    if decimals == 0:
        return apply(Round(), tensor)
    scale = 10.0 ** (decimals if decimals > 0 else -decimals)
    if decimals > 0:
        return apply(Round(), convert_to_tensor(tensor * scale)) / scale
    return apply(Round(), tensor / scale) * scale


__all__ = [
    "ceil",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "hypot",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "power",
    "round",
    "rsqrt",
    "sqrt",
    "trunc",
]
