"""Elementwise special functions: the error function and its kin, Bessel's functions, sinc."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.op import Cost
from ..base import (
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
from .comparison import where
from .elementwise import ElementwiseOp, check_dtype
from .elementwise_samples import unary_samples
from .mathematics import exp
from .trigonometry import sin

# --- the error function and its inverse -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _ErrorFunction(ElementwiseOp):
    """Base: functions that NumPy lacks. They are computed in float64, whatever the dtype."""

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], dtypes.is_floating, "real floating-point numbers", "Cast it with ops.cast.")
        return super().infer(*inputs)


@dataclass(frozen=True)
class Erf(_ErrorFunction):
    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.erf(inputs[0])

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        return as_scalar_or_array(erf_values(xp, x.astype("float64")).astype(x.dtype))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x = node.inputs[0]
        assert dy is not None
        return (dy * (2 / math.sqrt(math.pi)) * exp(-(x * x)),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.vectorize(math.erf, otypes=["float64"]))
        x = np.array([-np.inf, -8, -0.0, 1e-30, 8, np.nan], "float32")
        expected = np.array([-1, -1, -0.0, 2e-30 / math.sqrt(math.pi), 1, np.nan], "float32")
        yield Sample(cls(), [x], expected, differentiable=(), label="special")


@dataclass(frozen=True)
class Erfc(_ErrorFunction):
    """``1 - erf(x)``, which stays exact where that difference is tiny."""

    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.erfc(inputs[0])

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        return as_scalar_or_array(erfc_values(xp, x.astype("float64")).astype(x.dtype))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x = node.inputs[0]
        assert dy is not None
        return (dy * (-2 / math.sqrt(math.pi)) * exp(-(x * x)),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from unary_samples(cls(), np.vectorize(math.erfc, otypes=["float64"]))
        x = np.array([-np.inf, -8, -0.0, 0.46, 3.9, 4.1, 9, np.inf, np.nan], "float32")
        expected = np.array([math.erfc(value) for value in x.tolist()], "float32")
        yield Sample(cls(), [x], expected, differentiable=(), label="special")


@dataclass(frozen=True)
class Erfinv(_ErrorFunction):
    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.erfinv(inputs[0])

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        return as_scalar_or_array(erfinv_values(xp, x.astype("float64")).astype(x.dtype))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        y = node.outputs[0]
        assert dy is not None
        return (dy * (math.sqrt(math.pi) / 2) * exp(y * y),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        from statistics import NormalDist  # whose import costs more than this module

        def quantile(x: float) -> float:
            return NormalDist().inv_cdf((1 + x) / 2) / math.sqrt(2)

        yield from unary_samples(cls(), np.vectorize(quantile, otypes=["float64"]), low=-0.9, high=0.9)
        x = np.array([-1, 1, 1.5, -0.0, np.nan], "float32")
        expected = np.array([-np.inf, np.inf, np.nan, -0.0, np.nan], "float32")
        yield Sample(cls(), [x], expected, differentiable=(), label="special")


def _polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """Return the polynomial with `coefficients` from the highest power to the lowest, by Horner's rule."""
    total: Any = coefficients[0]
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


# W. J. Cody, "Rational Chebyshev approximations for the error function", Mathematics of Computation 23 (1969).
# erf(x) = x P(x^2) / Q(x^2) up to 0.46875, and 1 - erf(x) = exp(-x^2) P(x) / Q(x) above.
ERF_NEAR = (
    (
        1.85777706184603153e-1,
        3.16112374387056560e0,
        1.13864154151050156e2,
        3.77485237685302021e2,
        3.20937758913846947e3,
    ),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
ERF_FAR = (
    (
        2.15311535474403846e-8,
        5.64188496988670089e-1,
        8.88314979438837594e0,
        6.61191906371416295e1,
        2.98635138197400131e2,
        8.81952221241769090e2,
        1.71204761263407058e3,
        2.05107837782607147e3,
        1.23033935479799725e3,
    ),
    (
        1.0,
        1.57449261107098347e1,
        1.17693950891312499e2,
        5.37181101862009858e2,
        1.62138957456669019e3,
        3.29079923573345963e3,
        4.36261909014324716e3,
        3.43936767414372164e3,
        1.23033935480374942e3,
    ),
)


def erf_values(xp: Any, x: Any) -> Any:
    """Return the error function of float64 values, to some 2 units in the last place."""
    size = xp.minimum(xp.absolute(x), 6.0)  # from here on it is 1 in float64
    squared = size * size
    near = x * (_polynomial(ERF_NEAR[0], squared) / _polynomial(ERF_NEAR[1], squared))
    rest = xp.exp(-squared) * (_polynomial(ERF_FAR[0], size) / _polynomial(ERF_FAR[1], size))
    return xp.where(size <= 0.46875, near, xp.copysign(1 - rest, x))


# The same for sizes above 4: x exp(x^2) erfc(x) = 1 / sqrt(pi) - z P(z) / Q(z), where z = 1 / x^2.
ERF_TAIL = (
    (
        1.63153871373020978e-2,
        3.05326634961232344e-1,
        3.60344899949804439e-1,
        1.25781726111229246e-1,
        1.60837851487422766e-2,
        6.58749161529837803e-4,
    ),
    (
        1.0,
        2.56852019228982242e0,
        1.87295284992346725e0,
        5.27905102951428412e-1,
        6.05183413124413191e-2,
        2.33520497626869185e-3,
    ),
)


def erfc_values(xp: Any, x: Any) -> Any:
    """Return the complementary error function of float64 values, to some 5 units in the last place."""
    size = xp.minimum(xp.absolute(x), 30.0)  # from 27 on it is 0 in float64
    squared = size * size
    near = 1 - x * (_polynomial(ERF_NEAR[0], squared) / _polynomial(ERF_NEAR[1], squared))
    middle = _polynomial(ERF_FAR[0], size) / _polynomial(ERF_FAR[1], size)
    outside = xp.maximum(size, 4.0)
    z = 1 / (outside * outside)
    tail = (1 / math.sqrt(math.pi) - z * _polynomial(ERF_TAIL[0], z) / _polynomial(ERF_TAIL[1], z)) / outside
    # The square of the leading bits is exact, so that no relative error of x^2 is blown up by the exponential.
    leading = xp.trunc(size * 16) / 16
    decay = xp.exp(-leading * leading) * xp.exp(-(size - leading) * (size + leading))
    far = decay * xp.where(size <= 4, middle, tail)
    return xp.where(size <= 0.46875, near, xp.where(x < 0, 2 - far, far))


_BLOCK = 1 << 14  # elements

# M. J. Wichura, "Algorithm AS 241: The percentage points of the normal distribution", Applied Statistics 37 (1988),
# where erfinv(x) is the quantile of (1 + x) / 2, divided by the root of 2.
QUANTILE_NEAR = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)
QUANTILE_MIDDLE = (
    (
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ),
)
QUANTILE_FAR = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580e0,
        5.46378491116411436990e0,
        6.65790464350110377720e0,
    ),
    (
        2.04426310338993978564e-15,
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ),
)


def erfinv_values(xp: Any, x: Any) -> Any:
    """Return the inverse error function of float64 values, to some 4 units in the last place; NaN outside [-1, 1]."""
    half = 0.5 * x
    is_near = xp.absolute(half) <= 0.425
    if xp is not np or not x.ndim:
        return xp.where(is_near, _near_quantile(half), _far_quantile(xp, half)) / math.sqrt(2)
    found = np.empty(x.shape)
    flat, halves, where_near = found.reshape(-1), half.reshape(-1), is_near.reshape(-1)
    for start in range(0, x.size, _BLOCK):  # what is computed meanwhile stays in the caches
        part = slice(start, start + _BLOCK)
        flat[part] = _near_quantile(halves[part])
        rest = ~where_near[part]
        flat[part][rest] = _far_quantile(np, halves[part][rest])
    found /= math.sqrt(2)
    return found


def _near_quantile(half: Any) -> Any:
    radius = 0.180625 - half * half
    return half * (_polynomial(QUANTILE_NEAR[0], radius) / _polynomial(QUANTILE_NEAR[1], radius))


def _far_quantile(xp: Any, half: Any) -> Any:
    depth = xp.sqrt(-xp.log(0.5 - xp.absolute(half)))
    middle = _polynomial(QUANTILE_MIDDLE[0], depth - 1.6) / _polynomial(QUANTILE_MIDDLE[1], depth - 1.6)
    far = _polynomial(QUANTILE_FAR[0], depth - 5) / _polynomial(QUANTILE_FAR[1], depth - 5)
    tail = xp.copysign(xp.where(depth <= 5, middle, far), half)
    return xp.where(xp.absolute(half) == 0.5, xp.copysign(xp.inf, half), tail)


# --- Bessel functions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BesselI(_ErrorFunction):
    """The modified Bessel function of the first kind, of integer `order`."""

    order: int = 0
    elementwise: ClassVar[bool] = False  # to the passes: there is no expression for it

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        return as_scalar_or_array(bessel_i_values(xp, self.order, x.astype("float64")).astype(x.dtype))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x = node.inputs[0]
        assert dy is not None
        above = apply(BesselI(self.order + 1), x)
        slope = above if self.order == 0 else (apply(BesselI(self.order - 1), x) + above) * 0.5
        return (dy * slope,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for order in (0, 1, 2):
            yield from unary_samples(cls(order), _bessel_series(order))
        x = np.array([0, 20, -20, np.inf, np.nan], "float32")
        expected = np.array([1, 43558282.55955353, 43558282.55955353, np.inf, np.nan], "float32")
        yield Sample(cls(), [x], expected, differentiable=(), label="special")


def _bessel_series(order: int) -> Any:
    """Return the power series of the Bessel function, for small arguments."""

    def total(x: float) -> float:
        return sum((x / 2) ** (2 * k + order) / (math.factorial(k) * math.factorial(k + order)) for k in range(20))

    return np.vectorize(total, otypes=["float64"])


_BESSEL_NODES = 64


def bessel_i_values(xp: Any, order: int, x: Any) -> Any:
    """Return the modified Bessel function of float64 values.

    For orders above 0, by the midpoint rule on ``I_n(x) = (1 / pi) integral over (0, pi) of exp(x cos t) cos(n t)``.
    The integrand is periodic and analytic, so the rule converges geometrically: with these nodes it is exact to
    rounding wherever the result is finite. The nodes t and pi - t are taken together, so that small x lose nothing.
    """
    if order == 0:
        return xp.where(xp.isinf(x), xp.inf, xp.i0(xp.asarray(x)).reshape(x.shape))
    nodes = (xp.arange(_BESSEL_NODES) + 0.5) * (math.pi / 2 / _BESSEL_NODES)
    argument = xp.asarray(x)[..., None] * xp.cos(nodes)
    pairs = xp.sinh(argument) if order % 2 else xp.cosh(argument)
    return xp.mean(pairs * xp.cos(order * nodes), axis=-1)


# --- functions ------------------------------------------------------------------------------------------------------


def as_wide_floating(x: TensorLike) -> Tensor:
    """Convert as `as_floating` does, but int64 becomes float64, as Keras has it for some functions."""
    tensor = convert_to_tensor(x)
    return cast(tensor, dtypes.float64) if tensor.dtype == dtypes.int64 else as_floating(tensor)


def erf(x: TensorLike) -> Tensor:
    """Compute the error function (Cody's rational approximation, 1969)."""
    return apply(Erf(), as_floating(x))


def erfc(x: TensorLike) -> Tensor:
    """Compute ``1 - erf(x)``, exact for large `x` as well (Cody's rational approximations, 1969).

    >>> import anabranch as ab
    >>> float(ab.Session().run(ab.ops.erfc(0.0)))
    1.0
    """
    return apply(Erfc(), as_floating(x))


def i0(x: TensorLike) -> Tensor:
    """Compute the modified Bessel function of the first kind and order 0; int64 counts as float64.

    >>> import anabranch as ab
    >>> float(ab.Session().run(ab.ops.i0(0.0)))
    1.0
    """
    return apply(BesselI(0), as_wide_floating(x))


def sinc(x: TensorLike) -> Tensor:
    """Compute ``sin(pi x) / (pi x)``, and 1 at 0, where its derivatives are exact too.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.sinc([0.0, 0.5])).round(3)
    array([1.   , 0.637], dtype=float32)
    """
    angle = as_floating(x) * math.pi
    squared = angle * angle
    near = squared < 0.01
    # Taylor's series; what it leaves out is below 3e-18 so near to 0.
    series = 1 - squared / 6 * (1 - squared / 20 * (1 - squared / 42 * (1 - squared / 72)))
    apart = where(near, 1, angle)  # no division by 0, in the gradient either
    return where(near, series, sin(apart) / apart)


def erfinv(x: TensorLike) -> Tensor:
    """Compute the inverse of `erf`: infinite at -1 and 1, NaN outside (Wichura's algorithm AS 241, 1988)."""
    return apply(Erfinv(), as_floating(x))


__all__ = ["erf", "erfc", "erfinv", "i0", "sinc"]
