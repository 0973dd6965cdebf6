"""Powers, roots and what is near to them in float64, written in the expression IR."""

from __future__ import annotations

import math

from ...ops.math.special import (
    QUANTILE_FAR,
    QUANTILE_MIDDLE,
    QUANTILE_NEAR,
)
from .expression import Expression, InstructionBuilder
from .functions64 import (
    EXP,
    LEAST_NORMAL,
    LN2,
    LOW_WORD,
    ROUNDING,
    ROUNDING_BITS,
    SQRT_HALF_BITS,
    exp,
    exp2,
    log,
    log1p,
    number_of,
    polynomial,
    scaled,
)

# 3 (atanh(s) / s - 1 - z / 3) / z**2 as a polynomial in z = s**2, for s on [0, 3 - sqrt(8)]
_ATANH = (
    0.6,
    0.4285714285714406,
    0.3333333333247915,
    0.2727272750414977,
    0.2307689233051077,
    0.20002213198218508,
    0.17559189696845096,
    0.1758649059127012,
)
_LOG2_SCALE = 0.9617966939259756  # 2 / 3 ln 2
_LOG2_SCALE_PARTS = (0.9617962837219238, 4.102040517767816e-07)
_MOST_EXPONENT = 2.0**70  # with it every power but that of 1 is 0 or infinite
# The cube root on [1, 2], to about one in 10,000, and those of 1, 2 and 4
_ROOT = (0.5557909602691388, 0.5808263911380952, -0.1586624600531909, 0.022148699208245196)
_ROOTS = (1.0, 1.2599210498948732, 1.5874010519681996)
# What remains of the top of `QUANTILE_NEAR`, as a polynomial in the radius, once erfinv's slope at 0 is taken off
_QUANTILE_CURVE = (
    *(0.43087250673264105, 15.635937945977817, 208.4467657675285, 1257.013421588575),
    *(3409.9384089128675, 3579.348618453031, 936.1916930614163),
)
# The same with `QUANTILE_MIDDLE` and `QUANTILE_FAR`, where what they give is taken off the depth
_MIDDLE_BELOW = (
    *(0.5934779663963122, 1.0109633124184083, 0.6557567456000465, 0.20059427897991466, 0.02838405174558771),
    *(0.0014570525960900583, 6.631770671523003e-06, -9.05422307972923e-08, 1.0507500716444169e-09),
)
_FAR_BELOW = (
    *(0.29215047808696665, 0.1356816711505565, 0.022418661552328162, 0.0016066960044928773, 4.8615812610009665e-05),
    *(4.910644073062413e-07, 3.457520321139598e-10, -9.225662560335049e-13, 2.0442631033899397e-15),
)
_HALF_ROOT_PI = 0.886226925452758
_MANTISSA = 2**52 - 1
_ONE_BITS = 1023 << 52
_LOG2_E = 1.4426950408889634


def power(e: InstructionBuilder, x: Expression, y: Expression) -> Expression:
    """Compute x**y = 2**(y log2 |x|), where the logarithm is known to some 64 bits (after fdlibm's pow)."""
    inside = e.where(y > _MOST_EXPONENT, e.constant(_MOST_EXPONENT, "double"), y)
    inside = e.where(inside < -_MOST_EXPONENT, e.constant(-_MOST_EXPONENT, "double"), inside)
    leading, rest = _log2(e, e.absolute(x))
    high = _high(e, inside)
    product = high * leading  # exact: both have few bits
    more = (inside - high) * leading + inside * rest
    whole = product + more
    is_far = e.absolute(whole) > 1100.0
    product = e.where(is_far, e.copysign(e.constant(1100.0, "double"), whole), product)
    more = e.where(is_far, e.constant(0.0, "double"), more)
    return with_cases(e, x, y, _two_to(e, product, more))


def _high(e: InstructionBuilder, x: Expression) -> Expression:
    """Return the leading bits, so few that products of two are exact."""
    return e.from_bits(e.bits(x) & LOW_WORD)


def _log2(e: InstructionBuilder, size: Expression) -> tuple[Expression, Expression]:
    """Return the leading bits of the logarithm to base 2, and the rest; for positive numbers, normal or not."""
    is_tiny = size < LEAST_NORMAL
    bits = e.bits(e.where(is_tiny, size * 2.0**54, size))
    k = e.shift_right(bits - SQRT_HALF_BITS, 52)
    mantissa = e.from_bits(bits - e.shift_left(k, 52))
    count = number_of(e, k) - e.where(is_tiny, e.constant(54.0, "double"), e.constant(0.0, "double"))
    top, bottom = mantissa - 1, mantissa + 1
    s = top / bottom
    s_high = _high(e, s)
    bottom_high = _high(e, bottom)
    s_low = ((top - s_high * bottom_high) - s_high * (mantissa - (bottom_high - 1))) / bottom
    z = s * s
    more = z * z * polynomial(e, z, _ATANH) + s_low * (s_high + s)
    z = s_high * s_high
    series = _high(e, z + 3 + more)  # the logarithm is 2/3 s (3 + z + more)
    series_low = more - ((series - 3) - z)
    first, second = s_high * series, s_low * series + series_low * s
    total = _high(e, first + second)
    total_low = second - (total - first)
    leading = total * _LOG2_SCALE_PARTS[0]
    rest = total * _LOG2_SCALE_PARTS[1] + total_low * _LOG2_SCALE
    result = _high(e, (leading + rest) + count)
    return result, rest - ((result - count) - leading)


def _two_to(e: InstructionBuilder, x: Expression, more: Expression) -> Expression:
    """Compute 2**(x + more)."""
    shifted = (x + more) + ROUNDING
    r = ((x - (shifted - ROUNDING)) + more) * LN2
    return scaled(e, e.fma(r * r, polynomial(e, r, EXP), r) + 1, e.bits(shifted) - ROUNDING_BITS)


def with_cases(e: InstructionBuilder, x: Expression, y: Expression, raised: Expression) -> Expression:
    """Return |x|**y, with the cases of C's ``pow``."""

    def number(value: float) -> Expression:
        return e.constant(value, x.type)

    size, half = e.absolute(x), y * 0.5
    is_integral = e.equal(e.rint(y), y)
    is_odd = is_integral & e.not_equal(e.rint(half), half)
    grows = (size > 1.0) ^ (y < 0.0)
    is_end = e.equal(size, 0.0) | e.equal(size, math.inf)
    raised = e.where(is_end, e.where(grows, number(math.inf), number(0.0)), raised)
    raised = e.where(is_odd, e.copysign(raised, x), raised)
    is_undefined = (x < 0.0) & e.isfinite(x) & e.logical_not(is_integral)
    raised = e.where(is_undefined | e.isnan(x) | e.isnan(y), number(math.nan), raised)
    is_one = e.equal(x, 1.0) | e.equal(y, 0.0) | (e.equal(size, 1.0) & e.isinf(y))
    return e.where(is_one, number(1.0), raised)


# --- roots ----------------------------------------------------------------------------------------------------------


def cbrt(e: InstructionBuilder, x: Expression, is_single: bool = False) -> Expression:
    """Return the cube root: a polynomial, and Halley's steps, of which the last divides exactly by a short square."""
    size = e.absolute(x)
    is_tiny = size < LEAST_NORMAL
    number = size if is_single else e.where(is_tiny, size * 2.0**54, size)
    bits = e.bits(number)
    exponent = e.shift_right(bits, 52) + 2 * 1023
    third = e.shift_right(exponent * 43691, 17)  # the exponent of the root, biased
    remainder = exponent - third * 3
    mantissa = e.from_bits((bits & _MANTISSA) | _ONE_BITS)
    factor = e.where(e.equal(remainder, 0), e.constant(_ROOTS[0], "double"), e.constant(_ROOTS[1], "double"))
    factor = e.where(e.equal(remainder, 2), e.constant(_ROOTS[2], "double"), factor)
    root = polynomial(e, mantissa, _ROOT) * factor
    reduced = mantissa * e.from_bits(e.shift_left(remainder + 1023, 52))
    cube = root * root * root
    root = root * (cube + 2 * reduced) / (2 * cube + reduced)
    if not is_single:
        short = e.from_bits(e.bits(root) & -(2**28))
        quotient = reduced / (short * short)
        root = short + short * ((quotient - short) / (short + short + quotient))
    root = root * e.from_bits(e.shift_left(third, 52))
    if not is_single:
        root = e.where(is_tiny, root * 2.0**-18, root)
    is_same = e.equal(size, 0.0) | e.logical_not(size < math.inf)  # zeros, infinities and NaN
    return e.where(is_same, x, e.copysign(root, x))


def hypot(e: InstructionBuilder, x: Expression, y: Expression) -> Expression:
    """Return the length of the vector (x, y), scaled lest squares overflow or vanish."""
    one = e.constant(1.0, "double")
    largest = e.maximum(e.absolute(x), e.absolute(y))
    is_large, is_small = largest > 1e150, largest < 1e-140
    scale = e.where(is_large, e.constant(2.0**-600, "double"), e.where(is_small, e.constant(2.0**600, "double"), one))
    back = e.where(is_large, e.constant(2.0**600, "double"), e.where(is_small, e.constant(2.0**-600, "double"), one))
    first, second = x * scale, y * scale
    return length_of(e, x, y, e.sqrt(first * first + second * second) * back)


def length_of(e: InstructionBuilder, x: Expression, y: Expression, length: Expression) -> Expression:
    """Return `length`, but infinity where a coordinate is infinite, even if the other one is NaN."""
    return e.where(e.isinf(x) | e.isinf(y), e.constant(math.inf, "double"), length)


# --- sums of exponentials, the inverse error function, exponents ----------------------------------------------------


def logaddexp(e: InstructionBuilder, x: Expression, y: Expression) -> Expression:
    """Compute log(exp(x) + exp(y)): the larger one and log(1 + exp(-|x - y|)). Equal infinities stay."""
    gap = e.where(e.equal(x, y), e.constant(0.0, "double"), e.absolute(x - y))
    return e.maximum(x, y) + log1p(e, exp(e, -gap))


def logaddexp2(e: InstructionBuilder, x: Expression, y: Expression) -> Expression:
    """Compute log2(2**x + 2**y): as `logaddexp`, to base 2."""
    gap = e.where(e.equal(x, y), e.constant(0.0, "double"), e.absolute(x - y))
    more = log1p(e, exp2(e, -gap)) * _LOG2_E
    return e.maximum(x, y) + e.where(e.equal(gap, 0.0), e.constant(1.0, "double"), more)


def erfinv(e: InstructionBuilder, x: Expression) -> Expression:
    """Return the inverse error function by the quotients of `ops.special`, of which a leading part is taken off first.

    Near 0 that is the slope, elsewhere ``sqrt(-log((1 - |x|) / 2))``: so that only a small share has their errors.
    """
    size, squared = e.absolute(x), x * x
    radius = 0.180625 - squared * 0.25
    curve = polynomial(e, radius, _QUANTILE_CURVE) / polynomial(e, radius, QUANTILE_NEAR[1][::-1])
    near = x * _HALF_ROOT_PI + x * squared * curve
    depth = e.sqrt(-log(e, 0.5 - size * 0.5))
    middle = _below(e, depth - 1.6, _MIDDLE_BELOW, QUANTILE_MIDDLE)
    far = _below(e, depth - 5, _FAR_BELOW, QUANTILE_FAR)
    tail = e.copysign(depth - e.where(depth <= 5.0, middle, far), x)
    infinity = e.copysign(e.constant(math.inf, "double"), x)
    return e.where(e.equal(size, 1.0), infinity, e.where(size <= 0.85, near, tail))


def _below(
    e: InstructionBuilder, x: Expression, top: tuple[float, ...], rational: tuple[tuple[float, ...], tuple[float, ...]]
) -> Expression:
    return polynomial(e, x, top) / polynomial(e, x, rational[1][::-1])


def ldexp(e: InstructionBuilder, x: Expression, exponent: Expression) -> Expression:
    """Compute ``x * 2**exponent``, rounded once: only the last of the factors may make a subnormal number."""
    return scaled_by_two(e, x, exponent, 2200)


def scaled_by_two(e: InstructionBuilder, x: Expression, exponent: Expression, most: int) -> Expression:
    """Compute ``x * 2**exponent`` for exponents up to `most` in size, and as with that for others."""
    inside = e.where(exponent > most, most, e.where(exponent < -most, -most, exponent))
    n = inside if inside.type == "i64" else e.node("cast", "i64", inside)
    if most < 1000:
        return x * e.from_bits(e.shift_left(n + 1023, 52))
    for _ in range(2):
        is_high, is_low = n > 1023, n < -969
        step = e.where(is_high, 1023, e.where(is_low, e.constant(-969, "i64"), e.constant(0, "i64")))
        x = x * e.from_bits(e.shift_left(step + 1023, 52))
        n = n - step
    n = e.where(n > 1023, 1023, e.where(n < -1022, e.constant(-1022, "i64"), n))
    return x * e.from_bits(e.shift_left(n + 1023, 52))
