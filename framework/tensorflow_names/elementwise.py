"""Elementwise functions of `tf.math` with TensorFlow's arguments, of which `name` does nothing."""

from __future__ import annotations

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike


def abs(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the absolute value of each element, that of complex numbers real."""
    return ops.abs(x)


def ceil(x: TensorLike, name: str | None = None) -> Tensor:
    """Round each element up to a whole number; its gradient is zero."""
    return ops.ceil(x)


def floor(x: TensorLike, name: str | None = None) -> Tensor:
    """Round each element down to a whole number; its gradient is zero."""
    return ops.floor(x)


def round(x: TensorLike, name: str | None = None) -> Tensor:
    """Round each element to the nearest whole number, halves to the even one; its gradient is zero."""
    return ops.round(x)


def sign(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the sign of each element: -1, 0 or 1, and NaN of NaN; its gradient is zero."""
    return ops.sign(x)


def negative(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the negative of each element."""
    return ops.negative(x)


def reciprocal(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the reciprocal of each element, ``1 / x``."""
    return ops.reciprocal(x)


def square(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the square of each element."""
    return ops.square(x)


def sqrt(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the square root of each element; NaN where it is negative."""
    return ops.sqrt(x)


def rsqrt(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the reciprocal of the square root of each element."""
    return ops.rsqrt(x)


def exp(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the exponential of each element, ``e ** x``."""
    return ops.exp(x)


def expm1(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute ``exp(x) - 1`` of each element, exact for small ones as well."""
    return ops.expm1(x)


def log(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the natural logarithm of each element: -inf of 0, NaN where it is negative."""
    return ops.log(x)


def log1p(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute ``log(1 + x)`` of each element, exact for small ones as well."""
    return ops.log1p(x)


def sin(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the sine of each element, an angle in radians."""
    return ops.sin(x)


def cos(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the cosine of each element, an angle in radians."""
    return ops.cos(x)


def tan(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the tangent of each element, an angle in radians."""
    return ops.tan(x)


def asin(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the inverse sine of each element, in radians; NaN outside [-1, 1]."""
    return ops.arcsin(x)


def acos(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the inverse cosine of each element, in radians; NaN outside [-1, 1]."""
    return ops.arccos(x)


def atan(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the inverse tangent of each element, in radians."""
    return ops.arctan(x)


def sinh(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the hyperbolic sine of each element."""
    return ops.sinh(x)


def cosh(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the hyperbolic cosine of each element."""
    return ops.cosh(x)


def tanh(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the hyperbolic tangent of each element."""
    return ops.tanh(x)


def asinh(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the inverse hyperbolic sine of each element."""
    return ops.arcsinh(x)


def acosh(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the inverse hyperbolic cosine of each element; NaN below 1."""
    return ops.arccosh(x)


def atanh(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the inverse hyperbolic tangent of each element: infinite at -1 and 1, NaN outside."""
    return ops.arctanh(x)


def sigmoid(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the logistic function of each element, ``1 / (1 + exp(-x))``."""
    return ops.sigmoid(x)


def log_sigmoid(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the logarithm of the logistic function of each element."""
    return ops.log_sigmoid(x)


def erf(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the error function of each element."""
    return ops.erf(x)


def erfc(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute ``1 - erf(x)`` of each element, exact for large ones as well."""
    return ops.erfc(x)


def erfinv(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the inverse of the error function of each element: infinite at -1 and 1, NaN outside."""
    return ops.erfinv(x)


def is_finite(x: TensorLike, name: str | None = None) -> Tensor:
    """Test whether each element is neither infinite nor NaN."""
    return ops.isfinite(x)


def is_inf(x: TensorLike, name: str | None = None) -> Tensor:
    """Test whether each element is infinite, with either sign."""
    return ops.isinf(x)


def is_nan(x: TensorLike, name: str | None = None) -> Tensor:
    """Test whether each element is NaN."""
    return ops.isnan(x)


def logical_not(x: TensorLike, name: str | None = None) -> Tensor:
    """Test whether each element is false."""
    return ops.logical_not(x)


def conj(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the complex conjugate of each element; real numbers stay as they are."""
    return ops.conj(x)


def softplus(features: TensorLike, name: str | None = None) -> Tensor:
    """Compute ``log(1 + exp(features))`` of each element."""
    return ops.softplus(features)


def softsign(features: TensorLike, name: str | None = None) -> Tensor:
    """Compute ``features / (1 + |features|)`` of each element."""
    return ops.softsign(features)


def real(input: TensorLike, name: str | None = None) -> Tensor:
    """Compute the real part of each element; real numbers stay as they are."""
    return ops.real(input)


def imag(input: TensorLike, name: str | None = None) -> Tensor:
    """Compute the imaginary part of each element, which is 0 for real numbers."""
    return ops.imag(input)


def angle(input: TensorLike, name: str | None = None) -> Tensor:
    """Compute the angle of each element in the complex plane, in radians from -pi to pi."""
    return ops.angle(input)


def add(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Add two tensors, whose shapes broadcast; strings are joined."""
    return ops.add(x, y)


def subtract(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Subtract `y` from `x`; the shapes broadcast."""
    return ops.subtract(x, y)


def multiply(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Multiply two tensors, whose shapes broadcast."""
    return ops.multiply(x, y)


def floordiv(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Divide `x` by `y` and round down; the shapes broadcast."""
    return ops.floor_divide(x, y)


def mod(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute the remainder of `floordiv`, with the sign of `y`; the shapes broadcast."""
    return ops.mod(x, y)


floormod = mod


def divide_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Divide `x` by `y`, with 0 where `y` is 0; the shapes broadcast."""
    return ops.divide_no_nan(x, y)


def squared_difference(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute ``(x - y) ** 2``; the shapes broadcast."""
    return ops.squared_difference(x, y)


def pow(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Raise `x` to the power of `y`; the shapes broadcast."""
    return ops.power(x, y)


def maximum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return the larger of two elements, NaN where either is NaN; the shapes broadcast."""
    return ops.maximum(x, y)


def minimum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return the smaller of two elements, NaN where either is NaN; the shapes broadcast."""
    return ops.minimum(x, y)


def equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Test whether elements of `x` and `y` are equal; the shapes broadcast."""
    return ops.equal(x, y)


def not_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Test whether elements of `x` and `y` differ; the shapes broadcast."""
    return ops.not_equal(x, y)


def less(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Test whether elements of `x` are less than those of `y`; the shapes broadcast."""
    return ops.less(x, y)


def less_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Test whether elements of `x` are at most those of `y`; the shapes broadcast."""
    return ops.less_equal(x, y)


def greater(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Test whether elements of `x` are greater than those of `y`; the shapes broadcast."""
    return ops.greater(x, y)


def greater_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Test whether elements of `x` are at least those of `y`; the shapes broadcast."""
    return ops.greater_equal(x, y)


def logical_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Test whether elements of both `x` and `y` are true; the shapes broadcast."""
    return ops.logical_and(x, y)


def logical_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Test whether elements of `x` or `y` are true; the shapes broadcast."""
    return ops.logical_or(x, y)


def logical_xor(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Test whether elements of either `x` or `y` are true, not of both; the shapes broadcast."""
    return ops.logical_xor(x, y)


def atan2(y: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the angle of the points ``(x, y)``, in radians from -pi to pi; the shapes broadcast."""
    return ops.arctan2(y, x)
