"""Transcendental functions in float32, written in the expression IR.

The polynomials are near-minimax fits in relative error (Lawson's iteration over Chebyshev nodes); the tests bound the
errors in ulps against float64. NaN, infinities and zeros come out as they should.
"""

from __future__ import annotations

from .expression import Expression, ExpressionBuilder

_LOG2_E = 1.44269504
_LN2_HIGH = 0.693359375  # few enough bits that products with exponents are exact
_LN2_LOW = -2.12194440e-4
_ROUNDING = 12582912.0  # 1.5 * 2**23: adding it rounds to an integer, which then lies in the low bits
_ROUNDING_BITS = 0x4B400000
_SIGN_BIT = -(2**31)
# (e**r - 1 - r) / r**2 on [-ln2/2, ln2/2]
_EXP = (5.00000001e-01, 1.66666665e-01, 4.16664574e-02, 8.33336183e-03, 1.39344967e-03, 1.98581270e-04)
# (tanh(sqrt z) / sqrt z - 1) / z on [0, 0.625**2]
_TANH = (-0.33333333, 0.13333305, -0.05395945, 0.02177005, -0.00834684, 0.00229544)
# (log1p(f) - f + f**2/2) / f**3 on [sqrt(1/2) - 1, sqrt(2) - 1]
_LOG = (0.33333331, -0.24999994, 0.20000715, -0.16668057, 0.14249322, -0.12420149, 0.11677012, -0.1151456, 0.07037585)


def _polynomial(e: ExpressionBuilder, x: Expression, coefficients: tuple[float, ...]) -> Expression:
    """Horner's rule."""
    result = e.constant(coefficients[-1], "float")
    for coefficient in reversed(coefficients[:-1]):
        result = e.fma(result, x, coefficient)
    return result


def _power_of_two(e: ExpressionBuilder, exponent: Expression) -> Expression:
    """2**exponent for an int32 within the normal range."""
    return e.from_bits(e.shift_left(exponent + 127, 23))


def _with_sign(e: ExpressionBuilder, size: Expression, x: Expression) -> Expression:
    """`size` (or minus it), with the sign of `x`, which may be that of a zero."""
    return e.from_bits((e.bits(size) & ~_SIGN_BIT) | (e.bits(x) & _SIGN_BIT))


def exp(e: ExpressionBuilder, x: Expression) -> Expression:
    """e**x: x = n ln 2 + r, a polynomial in r, and a scaling by 2**n in two steps (for subnormals)."""
    inside = e.where(x < -104.0, e.constant(-104.0, "float"), e.where(x > 89.0, e.constant(89.0, "float"), x))
    shifted = inside * _LOG2_E + _ROUNDING
    n = shifted - _ROUNDING
    r = e.fma(n, -_LN2_LOW, e.fma(n, -_LN2_HIGH, inside))
    y = e.fma(r * r, _polynomial(e, r, _EXP), r) + 1
    exponent = e.bits(shifted) - _ROUNDING_BITS
    half = e.shift_right(exponent, 1)
    return y * _power_of_two(e, half) * _power_of_two(e, exponent - half)


def expm1(e: ExpressionBuilder, x: Expression) -> Expression:
    """e**x - 1 without cancellation near 0."""
    small = e.fma(x * x, _polynomial(e, x, _EXP), x)
    return _with_sign(e, e.where(e.absolute(x) < 0.34, small, exp(e, x) - 1), x)


def tanh(e: ExpressionBuilder, x: Expression) -> Expression:
    """A polynomial near 0; 1 - 2 / (e**2|x| + 1) elsewhere."""
    size, z = e.absolute(x), x * x
    near = e.fma(size * z, _polynomial(e, z, _TANH), size)
    far = 1 - 2 / (exp(e, size + size) + 1)
    return _with_sign(e, e.where(size < 0.625, near, far), x)


def log(e: ExpressionBuilder, x: Expression) -> Expression:
    """log x: x = 2**k m with m in [sqrt(1/2), sqrt(2)), and a polynomial in f = m - 1."""
    tiny = x < 1.17549435e-38
    scaled = e.where(tiny, x * 8388608.0, x)
    bits = e.bits(scaled)
    k = e.shift_right(bits - 0x3F3504F3, 23)
    f = e.from_bits(bits - e.shift_left(k, 23)) - 1
    count = e.node("cast", "float", k) - e.where(tiny, e.constant(23.0, "float"), e.constant(0.0, "float"))
    square = f * f
    rest = e.fma(f * square, _polynomial(e, f, _LOG), square * -0.5)
    y = e.fma(count, _LN2_HIGH, f + e.fma(count, _LN2_LOW, rest))
    infinity = float("inf")
    y = e.where(x < infinity, y, x)  # infinity and NaN
    y = e.where(x < 0.0, e.constant(float("nan"), "float"), y)
    return e.where(e.equal(x, 0.0), e.constant(-infinity, "float"), y)


def log1p(e: ExpressionBuilder, x: Expression) -> Expression:
    """log(1 + x) (Kahan: the rounding error of 1 + x cancels)."""
    u = x + 1
    y = log(e, u) * (x / (u - 1))
    y = e.where(e.equal(u, 1.0), x, y)
    special = e.logical("or", e.equal(u, float("inf")), e.equal(u, 0.0))
    return e.where(special, log(e, u), y)
