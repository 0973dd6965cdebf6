"""The regularised incomplete gamma function, and the logarithm of the gamma function with its derivatives.

The incomplete gamma function has three ranges: its power series where both arguments are small, and elsewhere
Gauss-Legendre quadrature of the smaller of the two tails. Derivatives by its first argument are found in the same way:
those of the integrand are the integrand times a polynomial.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ..base import (
    ErrorSample,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    apply_promoted,
    as_scalar_or_array,
)
from ..run_time_shapes import sum_like
from .comparison import equal, less, where
from .dtype_checks import check_dtype
from .elementwise import ElementwiseOp
from .elementwise_samples import binary_samples, unary_samples
from .mathematics import exp, log

# --- the logarithm of the gamma function ----------------------------------------------------------------------------

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)  # B_2, B_4, ...
_FAR = 12  # from here on Stirling's series is exact to rounding


@dataclass(frozen=True)
class LogGamma(ElementwiseOp):
    """``log(gamma(x))``, derived `order` times (1: digamma, 2: trigamma, ...). NaN where x is not positive."""

    order: int = 0
    elementwise: ClassVar[bool] = False  # to the passes: there is no expression for it

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], dtypes.is_floating, "real floating-point numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        return as_scalar_or_array(log_gamma_values(xp, self.order, x.astype("float64")).astype(x.dtype))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (dy * apply(LogGamma(self.order + 1), node.inputs[0]),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.vectorize(math.lgamma, otypes=["float64"]), low=0.1, high=9.0)
        euler = 0.57721566490153286
        special = np.array([1, 0.5, 2, np.inf, -1, np.nan], "float32")
        digamma = np.array([-euler, -euler - 2 * math.log(2), 1 - euler, np.inf, np.nan, np.nan], "float32")
        yield Sample(cls(1), [special], digamma, differentiable=(), label="digamma")
        squared = math.pi**2
        trigamma = np.array([squared / 6, squared / 2, squared / 6 - 1, 0, np.nan, np.nan], "float32")
        yield Sample(cls(2), [special], trigamma, differentiable=(), label="trigamma")


def log_gamma_values(xp: Any, order: int, x: Any) -> Any:
    """Return derivative number `order` of the logarithm of the gamma function, of float64 values above 0."""
    with np.errstate(all="ignore"):
        far, before = x, 0.0
        for _ in range(_FAR):  # up to where the series holds, by the recurrence of the gamma function
            near = far < _FAR
            before = before + xp.where(near, _log_derived(xp, order, far), 0.0)
            far = xp.where(near, far + 1, far)
        return xp.where(x > 0, _stirling(xp, order, far) - before, xp.nan)


def _log_derived(xp: Any, order: int, x: Any) -> Any:
    """Return derivative number `order` of the logarithm."""
    return xp.log(x) if order == 0 else (-1) ** (order - 1) * math.factorial(order - 1) / x**order


def _stirling(xp: Any, order: int, x: Any) -> Any:
    """Return Stirling's series for ``log(gamma(x))``, derived `order` times."""
    if order == 0:
        leading = (x - 0.5) * (xp.log(x) - 1) + 0.5 * (math.log(2 * math.pi) - 1)
    elif order == 1:
        leading = xp.log(x) - 0.5 / x
    else:
        leading = (-1) ** order * math.factorial(order - 2) / x ** (order - 1)
        leading = leading + (-1) ** order * math.factorial(order - 1) / (2 * x**order)
    return leading + _stirling_rest(order, x)


def _stirling_rest(order: int, x: Any) -> Any:
    """Return the part of Stirling's series that goes to 0."""
    total: Any = 0.0
    for place, number in enumerate(_BERNOULLI, start=1):
        factor = math.factorial(2 * place + order - 2) / math.factorial(2 * place)
        total = total + (-1) ** order * number * factor / x ** (2 * place + order - 1)
    return total


# --- the incomplete gamma function ----------------------------------------------------------------------------------

SMALL = 10.0
TERMS = 64  # of the power series, for arguments up to SMALL
_NODES = 64
_DROP = 40.0  # the exponent at which a tail ends: exp(-40) of its largest value


@dataclass(frozen=True)
class GammaInc(ElementwiseOp):
    """The regularised lower incomplete gamma function of (a, x), derived by `a` as often as `order` says."""

    order: int = 0
    elementwise: ClassVar[bool] = False  # to the passes: there is no expression for it

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], dtypes.is_floating, "real floating-point numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)

    def run(self, xp: Any, *inputs: Any) -> Any:
        a, x = xp.broadcast_arrays(*inputs)
        values = gammainc_values(xp, self.order, a.astype("float64").ravel(), x.astype("float64").ravel())
        return as_scalar_or_array(values.reshape(a.shape).astype(a.dtype))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        a, x = node.inputs
        assert dy is not None
        by_a = sum_like(dy * apply(GammaInc(self.order + 1), a, x), a) if node.needs(0) else None
        return by_a, sum_like(dy * _density(self.order, a, x), x) if node.needs(1) else None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        def of_two(a: Any, x: Any) -> Any:
            return (1 - np.exp(-x.astype("float64")) * (1 + x)) + 0 * a

        whole = np.full((2, 1), 2, "float32")
        x = np.array([[0.5, 1.0, 4.0]], "float32")
        yield Sample(cls(), [whole, x], of_two(whole, x), differentiable=(0, 1), label="a = 2")
        yield from binary_samples(cls(), np.vectorize(_numerically, otypes=["float64"]), low=0.3, high=4.0)
        a = np.array([1, 0, 0, 2, 1, np.inf, -1, 1, np.nan], "float32")
        x = np.array([0, 3, 0, np.inf, -1, 1, 1, np.nan, 1], "float32")
        expected = np.array([0, 1, np.nan, 1, np.nan, 0, np.nan, np.nan, np.nan], "float32")
        yield Sample(cls(), [a, x], expected, differentiable=(), label="special")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: gammainc([1.0], [1j]), TypeError, "real floating-point numbers", "complex")
        yield ErrorSample(lambda: gammainc([1.0, 2.0], [1.0, 2.0, 3.0]), ValueError, "do not broadcast", "shapes")


def _numerically(a: float, x: float) -> float:
    """Return the function by the trapezoidal rule, which is exact to rounding for ``t = exp(s)``."""
    s = np.linspace(-120.0, math.log(x), 40_001)
    logarithm = a * s - np.exp(s) - math.lgamma(a)
    values = np.exp(logarithm)
    step = s[1] - s[0]
    ends = (a - x) * values[-1] * step**2 / 12  # the first correction of Euler and Maclaurin
    return float(step * (values.sum() - 0.5 * (values[0] + values[-1])) - ends)


def _density(order: int, a: Tensor, x: Tensor) -> Tensor:
    """Return the derivative by `x`: the density of the gamma distribution, derived `order` times by `a`."""
    inside = x > 0
    logarithm = log(where(inside, x, 1))
    density = exp((a - 1) * logarithm - x - apply(LogGamma(), a))
    if order:
        slopes = [logarithm - apply(LogGamma(1), a), *[-apply(LogGamma(place), a) for place in range(2, order + 1)]]
        return where(inside, density * _bell(slopes), 0)
    return where(inside, density, where(less(a, 1), math.inf, where(equal(a, 1), 1.0, 0.0)))


def _bell(slopes: Sequence[Any]) -> Any:
    """Return the complete Bell polynomial of the derivatives of a logarithm: ``f^(n) / f`` from those of ``log(f)``."""
    found: list[Any] = [1.0]
    for place in range(len(slopes)):
        found.append(sum(math.comb(place, i) * found[place - i] * slopes[i] for i in range(place + 1)))
    return found[-1]


def gammainc_values(xp: Any, order: int, a: Any, x: Any) -> Any:
    """Return the function, derived `order` times by `a`, of vectors of float64 values.

    The values are exact to some 1e-13 of the smaller tail; a derivative, to that part of 1.
    """
    with np.errstate(all="ignore"):
        result = xp.full(a.shape, xp.nan)
        known = (a >= 0) & (x >= 0) & ~((a == x) & ((a == 0) | xp.isinf(a)))
        result[known & (xp.isinf(a) | (x == 0))] = 0.0
        result[known & (xp.isinf(x) | (a == 0))] = 0.0 if order else 1.0
        inside = (a > 0) & (x > 0) & xp.isfinite(a) & xp.isfinite(x)
        above = inside & (x > xp.maximum(a, SMALL))
        small = inside & ~above & (a < SMALL)
        below = inside & ~above & ~small
        if above.any():
            upper = _tail(xp, order, a[above], x[above], 1)
            result[above] = -upper if order else 1 - upper
        if small.any():
            result[small] = _series(xp, order, a[small], x[small])
        if below.any():
            result[below] = _tail(xp, order, a[below], x[below], -1)
        return result


def leading_factor(xp: Any, a: Any, x: Any) -> Any:
    """Return ``x^a exp(-x) / gamma(a)``."""
    large = xp.maximum(a, SMALL)  # where logarithms would cancel
    apart = (x - large) / large
    far = xp.sqrt(large / (2 * math.pi)) * xp.exp(large * (xp.log1p(apart) - apart) - _stirling_rest(0, large))
    near = xp.exp(a * xp.log(x) - x - log_gamma_values(xp, 0, a))
    return xp.where(a >= SMALL, far, near)


def _series(xp: Any, order: int, a: Any, x: Any) -> Any:
    """Return ``x^a exp(-x) sum of x^n / gamma(a + n + 1)``, whose terms are derived one by one."""
    logarithm, above = xp.log(x), a + 1
    slopes = [-log_gamma_values(xp, place, above) for place in range(1, order + 1)]
    if order:
        slopes[0] = slopes[0] + logarithm
    term, total = leading_factor(xp, a, x) / a, 0.0
    for _ in range(TERMS):
        total = total + term * _bell(slopes)
        term = term * x / above
        slopes = [slope - _log_derived(xp, place, above) for place, slope in enumerate(slopes, start=1)]
        above = above + 1
    return total


def _tail(xp: Any, order: int, a: Any, x: Any, sign: int) -> Any:
    """Return the integral of the density, derived `order` times by `a`, above `x` (`sign` 1) or below it (-1).

    With ``t = x exp(sign s)`` its exponent falls from s = 0 on, at first by ``|x - a|`` and then ever faster upward.
    """
    length = tail_length(xp, a, x, sign)
    slopes = [-log_gamma_values(xp, place, a) for place in range(1, order + 1)]
    start = slopes[0] + xp.log(x) if order else 0.0
    total: Any = 0.0
    for node, weight in zip(*quadrature(), strict=True):
        s = length * node
        if order:
            slopes[0] = start + sign * s
        total = total + weight * xp.exp(sign * a * s - x * xp.expm1(sign * s)) * _bell(slopes)
    return leading_factor(xp, a, x) * length * total


def tail_length(xp: Any, a: Any, x: Any, sign: int) -> Any:
    """Return where the exponent of a tail has fallen by `_DROP`: Newton's method from above, on a convex function."""
    if sign > 0:
        s = xp.sqrt(2 * _DROP / x)
    else:
        s = xp.where(a >= 3 * _DROP, xp.sqrt(3 * _DROP / a), 1 + _DROP / a)
    for _ in range(8):
        fallen = x * xp.expm1(sign * s) - sign * a * s
        s = s - (fallen - _DROP) / xp.absolute(x * xp.exp(sign * s) - a)
    return s


@functools.cache
def quadrature() -> tuple[list[float], list[float]]:
    """Return the places and weights of Gauss and Legendre's rule for (0, 1)."""
    places, weights = np.polynomial.legendre.leggauss(_NODES)
    return (0.5 * places + 0.5).tolist(), (0.5 * weights).tolist()


# --- functions ------------------------------------------------------------------------------------------------------


def gammainc(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Compute the regularised lower incomplete gamma function: the integral of the gamma distribution's density.

    Args:
        x1: the shape parameter, not negative; NaN where it is.
        x2: the upper limit of the integral from 0, not negative; the shapes broadcast.

    Returns:
        ``1 / gamma(x1) * integral over (0, x2) of t^(x1 - 1) exp(-t) dt``, from 0 to 1. It is 1 for ``x1 = 0``.

    >>> import anabranch as ab
    >>> ab.ops.gammainc([1.0, 2.0, 3.0], [0.5, 1.0, 2.0]).round(4)
    Tensor([0.3935, 0.2642, 0.3233], dtype=float32)
    """
    return apply_promoted(GammaInc(), x1, x2, floating=True)


__all__ = ["gammainc"]
