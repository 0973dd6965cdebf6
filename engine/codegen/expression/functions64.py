"""Transcendental functions in float64, written in the expression IR.

The polynomials are minimax fits (Remez exchange) weighted by their share in the result. As in float32, the tests bound
the errors in ulps, and NaN, infinities and zeros come out as they should.
"""

from __future__ import annotations

import struct

from ...ops.math.special import ERF_FAR, ERF_NEAR, ERF_TAIL
from .expression import Expression, InstructionBuilder

_Pair = tuple[float, float]  # leading bits, and the rest

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693147180559663, 2.8235290563031577e-13  # products with exponents are exact
LN2 = 0.6931471805599453
ROUNDING = 6755399441055744.0  # 1.5 * 2**52: adding it rounds to an integer, which then is in the low bits
ROUNDING_BITS = 0x4338000000000000
LOW_WORD = -(2**32)
_LEAST_POWER = -2046.0  # both halves of which are exponents of zeros, as in float32
# (e**r - 1 - r) / r**2 on [-ln2/2, ln2/2]
EXP = (
    0.50000000000000127,
    0.16666666666666699,
    0.041666666666515391,
    0.0083333333333070304,
    0.0013888888947022797,
    0.00019841269917723456,
    2.4801489934925774e-5,
    2.755721601039747e-6,
    2.7631283035735015e-7,
    2.5117950832484036e-8,
)
# (2 atanh(s) - 2 s) / s**3 as a polynomial in s**2, for s on [0, 3 - sqrt(8)]
_LOG = (
    0.66666666666667345,
    0.39999999999414221,
    0.28571428742518403,
    0.2222219855718418,
    0.18183565275204659,
    0.15314023596668168,
    0.14796243535778586,
)
SQRT_HALF_BITS: int = struct.unpack(">q", struct.pack(">d", 0.7071067811865476))[0]
_INVERSE_ROOT_PI = 0.5641895835477563
LEAST_NORMAL = 2.2250738585072014e-308
_INVERSE_LN2 = (1.4426946640014648, 3.768874985636099e-07)
_INVERSE_LN10 = (0.4342944622039795, 1.9699272335463627e-08)
_LOG10_2 = (0.30102999566383914, 1.42050232272661e-13)


def polynomial(e: InstructionBuilder, x: Expression, coefficients: tuple[float, ...]) -> Expression:
    """Compute a polynomial by Horner's rule."""
    result = e.constant(coefficients[-1], x.type)
    for coefficient in reversed(coefficients[:-1]):
        result = e.fma(result, x, coefficient)
    return result


def number_of(e: InstructionBuilder, integer: Expression) -> Expression:
    """Return an int64 of at most 2**51 in size as a float64: few processors have an instruction for it."""
    return e.from_bits(integer + ROUNDING_BITS) - ROUNDING


def _power_of_two(e: InstructionBuilder, exponent: Expression) -> Expression:
    """Compute 2**exponent for an int64 within the normal range."""
    return e.from_bits(e.shift_left(exponent + 1023, 52))


def clamped(e: InstructionBuilder, x: Expression, low: float, high: float) -> Expression:
    """Return `x` within bounds; NaN stays."""
    return e.where(x < low, e.constant(low, x.type), e.where(x > high, e.constant(high, x.type), x))


def _reduced(e: InstructionBuilder, x: Expression, rest: Expression | None = None) -> tuple[Expression, Expression]:
    """Compute (p, n), where e**x = 2**n (1 + p); or e**(x + rest), for a tiny `rest`."""
    shifted = x * _LOG2_E + ROUNDING
    n = shifted - ROUNDING
    r = e.fma(n, -_LN2_LOW, e.fma(n, -_LN2_HIGH, x))
    r = r if rest is None else r + rest
    return e.fma(r * r, polynomial(e, r, EXP), r), e.bits(shifted) - ROUNDING_BITS


def scaled(e: InstructionBuilder, x: Expression, exponent: Expression) -> Expression:
    """Compute ``x * 2**exponent``, in two steps (for subnormals)."""
    half = e.shift_right(exponent, 1)
    return x * _power_of_two(e, half) * _power_of_two(e, exponent - half)


def exp(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute e**x: x = n ln 2 + r, a polynomial in r, and a scaling by 2**n."""
    p, n = _reduced(e, clamped(e, x, _LEAST_POWER * LN2, 710.0))
    return scaled(e, p + 1, n)


def sigmoid(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute 1 / (1 + e**-x)."""
    return 1 / (1 + exp(e, -x))


def _half_exp(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute e**x / 2, which overflows later."""
    p, n = _reduced(e, clamped(e, x, -746.0, 711.0))
    return scaled(e, p + 1, n - 1)


def exp2(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute 2**x: as `exp`, but that x - n is exact."""
    inside = clamped(e, x, _LEAST_POWER, 1025.0)
    shifted = inside + ROUNDING
    r = (inside - (shifted - ROUNDING)) * LN2
    return scaled(e, e.fma(r * r, polynomial(e, r, EXP), r) + 1, e.bits(shifted) - ROUNDING_BITS)


def expm1(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute e**x - 1 = 2**n p + (2**n - 1), halved on the way so that it does not overflow."""
    p, n = _reduced(e, clamped(e, x, -40.0, 710.0))
    half = _power_of_two(e, n - 1)
    far = (p * half + (half - 0.5)) * 2
    return e.copysign(e.where(e.absolute(x) < 0.3465, p, far), x)


def tanh(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute t / (t + 2), where t = e**2|x| - 1."""
    size = e.absolute(x)
    t = expm1(e, e.where(size > 22.0, e.constant(44.0, "double"), size + size))
    return e.copysign(t / (t + 2), x)


def sinh(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute (t + t / (t + 1)) / 2, where t = e**|x| - 1; e**|x| / 2 far from 0."""
    size = e.absolute(x)
    t = expm1(e, size)
    return e.copysign(e.where(size > 22.0, _half_exp(e, size), (t + t / (t + 1)) * 0.5), x)


def cosh(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute h + 1 / 4h, where h = e**|x| / 2."""
    half = _half_exp(e, e.absolute(x))
    return half + 0.25 / half


def _parts(e: InstructionBuilder, x: Expression) -> tuple[Expression, Expression, Expression, Expression]:
    """Compute (k, f, h, c) of a positive x, normal or not.

    x = 2**k (1 + f), h = f**2 / 2, and log(1 + f) = f - h + c.
    """
    tiny = x < LEAST_NORMAL
    bits = e.bits(e.where(tiny, x * 2.0**54, x))
    k = e.shift_right(bits - SQRT_HALF_BITS, 52)
    f = e.from_bits(bits - e.shift_left(k, 52)) - 1
    s = f / (f + 2)
    z, h = s * s, f * f * 0.5
    count = number_of(e, k) - e.where(tiny, e.constant(54.0, "double"), e.constant(0.0, "double"))
    return count, f, h, s * e.fma(z, polynomial(e, z, _LOG), h)


def guarded(e: InstructionBuilder, x: Expression, y: Expression) -> Expression:
    """Return a logarithm `y` of `x`, with what is special."""
    infinity = float("inf")
    y = e.where(x < infinity, y, x)  # infinity and NaN
    y = e.where(x < 0.0, e.constant(float("nan"), x.type), y)
    return e.where(e.equal(x, 0.0), e.constant(-infinity, x.type), y)


def log(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute log x: x = 2**k m with m in [sqrt(1/2), sqrt(2)), and a polynomial in s = (m - 1) / (m + 1)."""
    k, f, h, c = _parts(e, x)
    return guarded(e, x, k * _LN2_HIGH - ((h - (c + k * _LN2_LOW)) - f))


def log1p(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute log u + (x - (u - 1)) / u, where u = 1 + x, rounded."""
    u = x + 1
    y = log(e, u)
    special = e.logical("or", e.equal(u, float("inf")), e.equal(u, 0.0))
    return e.copysign(e.where(special, y, y + (x - (u - 1)) / u), x)


def _scaled_log(e: InstructionBuilder, x: Expression, scale: _Pair, one: _Pair) -> Expression:
    """Compute log x in another base: `scale` times log x, where log 2 becomes `one`."""
    k, f, h, c = _parts(e, x)
    leading = e.from_bits(e.bits(f - h) & LOW_WORD)
    rest = (f - leading) - h + c
    small = (rest + leading) * scale[1] + rest * scale[0]
    large = k * one[0]
    product = leading * scale[0]  # exact: both have few bits
    total = large + product
    small = small + k * one[1] + ((large - total) + product)
    return guarded(e, x, total + small)


def log2(e: InstructionBuilder, x: Expression) -> Expression:
    """Return the logarithm to base 2: exact for powers of 2."""
    return _scaled_log(e, x, _INVERSE_LN2, (1.0, 0.0))


def log10(e: InstructionBuilder, x: Expression) -> Expression:
    """Return the logarithm to base 10."""
    return _scaled_log(e, x, _INVERSE_LN10, _LOG10_2)


# --- the error function ---------------------------------------------------------------------------------------------


def _quotient(
    e: InstructionBuilder, x: Expression, rational: tuple[tuple[float, ...], tuple[float, ...]]
) -> Expression:
    """Return a rational function of `x`, whose coefficients come from the highest power to the lowest."""
    top, bottom = rational
    return polynomial(e, x, top[::-1]) / polynomial(e, x, bottom[::-1])


def _decay(e: InstructionBuilder, size: Expression) -> Expression:
    """Compute e**-size**2; the square of the leading bits is exact, so that its relative error does not grow."""
    leading = e.from_bits(e.bits(size) & LOW_WORD)
    p, n = _reduced(e, -(leading * leading), (leading - size) * (leading + size))
    return scaled(e, p + 1, n)


def erf(e: InstructionBuilder, x: Expression) -> Expression:
    """Return the error function: x P(x**2) / Q(x**2) near 0, 1 - e**-x**2 P(x) / Q(x) elsewhere (see `ops.special`)."""
    size = clamped(e, e.absolute(x), 0.0, 6.0)
    near = x * _quotient(e, x * x, ERF_NEAR)
    far = 1 - _decay(e, size) * _quotient(e, size, ERF_FAR)
    return e.where(size <= 0.46875, near, e.copysign(far, x))


def erfc(e: InstructionBuilder, x: Expression) -> Expression:
    """Return the complementary error function, by the same functions and one more where x is large."""
    size = clamped(e, e.absolute(x), 0.0, 30.0)
    near = 1 - x * _quotient(e, x * x, ERF_NEAR)
    outside = e.maximum(size, 4.0)
    z = 1 / (outside * outside)
    tail = (_INVERSE_ROOT_PI - z * _quotient(e, z, ERF_TAIL)) / outside
    far = _decay(e, size) * e.where(size <= 4.0, _quotient(e, size, ERF_FAR), tail)
    return e.where(size <= 0.46875, near, e.where(x < 0.0, 2 - far, far))
