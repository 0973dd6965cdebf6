"""Transcendental functions in float32, written in the expression IR.

The polynomials are near-minimax fits in relative error (Lawson's iteration over Chebyshev nodes); the tests bound the
errors in ulps against float64. NaN, infinities and zeros come out as they should.
"""

from __future__ import annotations

from collections.abc import Callable

from . import angles, functions64, inverses, powers
from .expression import Expression, InstructionBuilder
from .functions64 import clamped, guarded, polynomial

_LOG2_E = 1.44269504
_LN2 = 0.693147181
_LN2_HIGH = 0.693359375  # few enough bits that products with exponents are exact
_LN2_LOW = -2.12194440e-4
_ROUNDING = 12582912.0  # 1.5 * 2**23: adding it rounds to an integer, which then is in the low bits
_BIAS = 127  # of exponents
# The exponent to which smaller ones are raised: both of its halves are exponents of zeros, which give zero at once. To
# find that a product is smaller than any number takes some processors a hundred cycles, and masked scores are such.
_LEAST_POWER = -253.0
# (e**r - 1 - r) / r**2 on [-ln2/2, ln2/2]
_EXP = (4.99999934e-01, 1.66665204e-01, 4.16683908e-02, 8.36874511e-03, 1.38145400e-03)
_EXP_OF_NEGATIVE = tuple(coefficient * (-1) ** k for k, coefficient in enumerate(_EXP))
# (e**2r - 1 - 2r) / 2r**2 on [-ln2/4, ln2/4], of which the error counts beside e**2r - 1
_HALF_EXPM1_OF_DOUBLE = (0.999999962, 0.666661736, 0.3333376056, 0.1338647554, 0.044424048)
# erf(x) / x - 1 as a polynomial in x**2, and -log(1 - erf(x)), which is 17.99 at 4
ERF_NEAR = (0.1283791666, -0.376126337, 0.1128369396, -0.02685927123, 0.005200634902, -0.0008137440383, 8.345225384e-5)
ERF_FAR = (
    *(-0.0001759483251, 1.129521197, 0.6333338591, 0.1082948603),
    *(-0.02512923982, 0.004174885337, -0.0004352705539, 2.116650643e-5),
)
# (sinh(sqrt z) / sqrt z - 1) / z on [0, 1]
_SINH = (0.166666665, 0.008333350076, 0.0001983614821, 2.817039959e-6)
# (log1p(f) - f + f**2/2) / f**3 on [sqrt(1/2) - 1, sqrt(2) - 1]
_LOG = (0.33333331, -0.24999994, 0.20000715, -0.16668057, 0.14249322, -0.12420149, 0.11677012, -0.1151456, 0.07037585)


def exp(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute e**x: x = n ln 2 + r, a polynomial in r, and a scaling by 2**n in two steps (for subnormals)."""
    return _shifted_exp(e, x, 0)


def _shifted_exp(e: InstructionBuilder, x: Expression, shift: int) -> Expression:
    """Compute ``e**x * 2**shift``, which does not overflow on the way."""
    r, exponent = _reduced(e, clamped(e, x, _LEAST_POWER * _LN2, 90.0), 2 * _BIAS + shift)
    return _scaled_exp(e, r, exponent)


def _reduced(e: InstructionBuilder, x: Expression, bias: int) -> tuple[Expression, Expression]:
    """Compute (r, exponent), where x = n ln 2 + r, and the low nine bits of the exponent are n + bias."""
    shifted = e.fma(x, _LOG2_E, _ROUNDING + bias)
    n = shifted - (_ROUNDING + bias)
    return e.fma(n, -_LN2_LOW, e.fma(n, -_LN2_HIGH, x)), e.bits(shifted)


def _power_of_two(e: InstructionBuilder, exponent: Expression) -> Expression:
    """Compute 2**n within the normal range, or infinity, for an exponent whose low nine bits are n + `_BIAS`."""
    return e.from_bits(e.shift_left(exponent, 23))


def _small_expm1(e: InstructionBuilder, r: Expression) -> Expression:
    """Compute ``e**r - 1`` for what `_reduced` leaves."""
    return e.fma(r * r, polynomial(e, r, _EXP), r)


def _scaled_exp(e: InstructionBuilder, r: Expression, exponent: Expression) -> Expression:
    """Compute ``e**r * 2**n`` for a small r, and an exponent whose low nine bits are n + 2 `_BIAS`."""
    half = e.shift_right(exponent, 1)
    return (_small_expm1(e, r) + 1) * _power_of_two(e, half) * _power_of_two(e, exponent - half)


def exp2(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute 2**x: as `exp`, but that x - n is exact."""
    rounding = _ROUNDING + 2 * _BIAS
    inside = clamped(e, x, _LEAST_POWER, 129.0)
    shifted = inside + rounding
    return _scaled_exp(e, (inside - (shifted - rounding)) * _LN2, e.bits(shifted))


def expm1(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute e**x - 1 = 2**n p + (2**n - 1), halved on the way so that it does not overflow."""
    r, exponent = _reduced(e, clamped(e, x, -20.0, 88.8), _BIAS - 1)
    p, half = _small_expm1(e, r), _power_of_two(e, exponent)
    far = (p * half + (half - 0.5)) * 2
    return e.copysign(e.where(e.absolute(x) < 0.3465, p, far), x)


def sigmoid(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute 1 / (1 + e**-x), with a quarter of the exponential: its scale is one factor, and may overflow."""
    inside = clamped(e, x, -90.1, 86.0)
    shifted = e.fma(inside, -_LOG2_E, _ROUNDING + _BIAS - 2)
    n = shifted - (_ROUNDING + _BIAS - 2)
    r = e.fma(n, _LN2_LOW, e.fma(n, _LN2_HIGH, inside))  # with the sign of x
    power = e.fma(r, e.fma(r, polynomial(e, r, _EXP_OF_NEGATIVE), -1.0), 1.0)
    return 0.25 / e.fma(power, _power_of_two(e, e.bits(shifted)), 0.25)


def sinh(e: InstructionBuilder, x: Expression) -> Expression:
    """Return a polynomial near 0; h - 1 / 4h elsewhere, where h = e**|x| / 2."""
    size, z = e.absolute(x), x * x
    half = _shifted_exp(e, size, -1)
    near = e.fma(size * z, polynomial(e, z, _SINH), size)
    return e.copysign(e.where(size < 1.0, near, half - 0.25 / half), x)


def cosh(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute h + 1 / 4h, where h = e**|x| / 2."""
    half = _shifted_exp(e, e.absolute(x), -1)
    return half + 0.25 / half


def tanh(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute t / (t + 1) from t = (e**2|x| - 1) / 2.

    Here t = 2**n p + (2**n - 1) / 2, where |x| = n ln 2 / 2 + r and p = (e**2r - 1) / 2.
    """
    size = e.absolute(x)
    inside = e.where(size > 10.0, e.constant(10.0, "float"), size)
    shifted = e.fma(inside, 2 * _LOG2_E, _ROUNDING + _BIAS)
    r = e.fma(shifted - (_ROUNDING + _BIAS), -_LN2 / 2, inside)
    scale = _power_of_two(e, e.bits(shifted))
    p = e.fma(r * r, polynomial(e, r, _HALF_EXPM1_OF_DOUBLE), r)
    t = e.fma(p, scale, e.fma(scale, 0.5, -0.5))
    return e.copysign(t / (t + 1), x)


def _log_parts(e: InstructionBuilder, x: Expression) -> tuple[Expression, Expression, Expression]:
    """Compute (k, f, c), where x = 2**k (1 + f) and log(1 + f) = f + c, for positive x, normal or not."""
    tiny = x < 1.17549435e-38
    scaled = e.where(tiny, x * 8388608.0, x)
    bits = e.bits(scaled)
    k = e.shift_right(bits - 0x3F3504F3, 23)
    f = e.from_bits(bits - e.shift_left(k, 23)) - 1
    count = e.node("cast", "float", k) - e.where(tiny, e.constant(23.0, "float"), e.constant(0.0, "float"))
    square = f * f
    return count, f, e.fma(f * square, polynomial(e, f, _LOG), square * -0.5)


def log(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute log x: x = 2**k m with m in [sqrt(1/2), sqrt(2)), and a polynomial in f = m - 1."""
    k, f, rest = _log_parts(e, x)
    return guarded(e, x, e.fma(k, _LN2_HIGH, f + e.fma(k, _LN2_LOW, rest)))


def _scaled_log(e: InstructionBuilder, x: Expression, scale: float, one: float) -> Expression:
    """Return `scale` times log x, where log 2 becomes `one`; the parts are put together in float64."""
    k, f, rest = _log_parts(e, x)
    y = e.fma(e.widen(k), one, (e.widen(f) + e.widen(rest)) * scale)
    return guarded(e, x, e.narrow(y))


def log2(e: InstructionBuilder, x: Expression) -> Expression:
    """Return the logarithm to base 2: exact for powers of 2."""
    return _scaled_log(e, x, 1.4426950408889634, 1.0)


def log10(e: InstructionBuilder, x: Expression) -> Expression:
    """Return the logarithm to base 10."""
    return _scaled_log(e, x, 0.4342944819032518, 0.3010299956639812)


def log1p(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute log(1 + x) (Kahan: the rounding error of 1 + x cancels)."""
    u = x + 1
    y = log(e, u) * (x / (u - 1))
    y = e.where(e.equal(u, 1.0), x, y)
    special = e.logical("or", e.equal(u, float("inf")), e.equal(u, 0.0))
    return e.where(special, log(e, u), y)


def erf(e: InstructionBuilder, x: Expression) -> Expression:
    """Return a polynomial near 0; 1 - e**-g(|x|) elsewhere, where g is at most 18: the exponential needs one scale."""
    size = e.absolute(x)
    near = e.fma(size, polynomial(e, x * x, ERF_NEAR), size)
    inside = e.where(size > 4.0, e.constant(4.0, "float"), size)
    r, exponent = _reduced(e, -polynomial(e, inside, ERF_FAR), _BIAS)
    scale = _power_of_two(e, exponent)
    far = e.fma(-_small_expm1(e, r), scale, 1 - scale)
    return e.copysign(e.where(size < 0.92, near, far), x)


# --- functions that are computed in float64 -------------------------------------------------------------------------


def _by_float64(function: Callable[..., Expression], **options: bool) -> Callable[..., Expression]:
    """Return a function of numbers of float32 that one of float64 computes."""

    def compute(e: InstructionBuilder, *numbers: Expression) -> Expression:
        return e.narrow(function(e, *[e.widen(number) for number in numbers], **options))

    return compute


erfc, erfinv = _by_float64(functions64.erfc), _by_float64(powers.erfinv)
sin, cos, tan = (_by_float64(function, is_single=True) for function in (angles.sin, angles.cos, angles.tan))
arcsin, arccos = _by_float64(inverses.arcsin, is_single=True), _by_float64(inverses.arccos, is_single=True)
arctan, arctan2 = _by_float64(inverses.arctan, is_single=True), _by_float64(inverses.arctan2, is_single=True)
arcsinh, arccosh = _by_float64(inverses.single_arcsinh), _by_float64(inverses.single_arccosh)
arctanh, cbrt = _by_float64(inverses.single_arctanh), _by_float64(powers.cbrt, is_single=True)
logaddexp, logaddexp2 = _by_float64(powers.logaddexp), _by_float64(powers.logaddexp2)


def hypot(e: InstructionBuilder, x: Expression, y: Expression) -> Expression:
    """Return the length of the vector (x, y), by way of float64, in which the squares are exact and do not overflow."""
    wide = [e.widen(x), e.widen(y)]
    length = e.sqrt(wide[0] * wide[0] + wide[1] * wide[1])
    return e.narrow(powers.length_of(e, wide[0], wide[1], length))


def ldexp(e: InstructionBuilder, x: Expression, exponent: Expression) -> Expression:
    """Compute ``x * 2**exponent``, by way of float64, in which it is exact."""
    return e.narrow(powers.scaled_by_two(e, e.widen(x), exponent, 400))


def power(e: InstructionBuilder, x: Expression, y: Expression) -> Expression:
    """Compute x**y = 2**(y log2 |x|) in float64."""
    size = e.absolute(x)
    raised = e.narrow(functions64.exp2(e, e.widen(y) * functions64.log2(e, e.widen(size))))
    return powers.with_cases(e, x, y, raised)
