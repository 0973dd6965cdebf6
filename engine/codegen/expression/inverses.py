"""Inverse trigonometric and hyperbolic functions, written in the expression IR.

They are computed in float64. Of a float32, widened, `is_single` takes shorter polynomials and leaves out the bits that
a float32 does not show. The polynomials are near-minimax (interpolation at Chebyshev nodes).
"""

from __future__ import annotations

import math

from .expression import Expression, InstructionBuilder
from .functions64 import LN2, LOW_WORD, log, log1p, polynomial

_FOLD = math.tan(math.pi / 8)
# k pi / 4, for k = 0 to 4, and what is missing there to the exact value
_ANGLES = (0.0, math.pi / 4, math.pi / 2, 3 * math.pi / 4, math.pi)
_RESTS = (0.0, 3.061616997868383e-17, 6.123233995736766e-17, 9.184850993605148e-17, 1.2246467991473532e-16)
# (atan(sqrt z) / sqrt z - 1) / z on [0, tan(pi / 8)**2]
_ATAN = (
    -0.3333333333333333,
    0.199999999999998,
    -0.14285714285659326,
    0.11111111105106705,
    -0.09090908751076636,
    0.0769229630497447,
    -0.06666423628069258,
    0.058789145444006215,
    -0.052303478730160745,
    0.04551108126325172,
    -0.034558092551413795,
    0.01627194475162406,
)
_ATAN_SINGLE = (
    *(-0.33333333278951577, 0.19999977153974205, -0.14284145548273774),
    *(0.11071260444313767, -0.08623896669600505, 0.05046128167603517),
)
# (asin(sqrt z) / sqrt z - 1) / z on [0, 1/4]
_ASIN = (
    0.16666666666666666,
    0.07500000000000119,
    0.04464285714255019,
    0.030381944475693704,
    0.022372157435623815,
    0.017352816768546473,
    0.013963775787848137,
    0.011566511821890942,
    0.00962140274734483,
    0.009322101501082774,
    0.0030350071727267623,
    0.019579201619744684,
    -0.019277545928584557,
    0.02963502626354855,
)
_ASIN_SINGLE = (
    *(0.16666666686147094, 0.07499992383419403, 0.044647675217118564, 0.030268919101073113),
    *(0.02361371422189475, 0.01056694782140368, 0.03098546039993495),
)
_SERIES_END = 2.0**-9  # of a float32: up to there, three terms of a series do
_HUGE = 1e100


def _constants(e: InstructionBuilder, number: Expression, values: tuple[float, ...]) -> Expression:
    """Return the value of that number."""
    chosen = e.constant(values[-1], "double")
    for position in reversed(range(len(values) - 1)):
        chosen = e.where(e.equal(number, float(position)), e.constant(values[position], "double"), chosen)
    return chosen


def _flag(e: InstructionBuilder, condition: Expression) -> Expression:
    return e.where(condition, e.constant(1.0, "double"), e.constant(0.0, "double"))


# --- angles ---------------------------------------------------------------------------------------------------------


def arctan(e: InstructionBuilder, x: Expression, is_single: bool = False) -> Expression:
    """Return the inverse tangent."""
    size, one = e.absolute(x), e.constant(1.0, "double")
    is_steep = size > 1.0
    small, large = e.where(is_steep, one, size), e.where(is_steep, size, one)
    folds = small > large * _FOLD
    t = e.where(folds, small - large, small) / e.where(folds, small + large, large)
    eighths = _flag(e, folds)
    k = e.where(is_steep, 2 - eighths, eighths)
    return e.copysign(_angle(e, t, is_steep, k, is_single), x)


def arctan2(e: InstructionBuilder, y: Expression, x: Expression, is_single: bool = False) -> Expression:
    """Return the angle of the point (x, y): of the smaller coordinate over the larger one, and that of the octant."""
    first, second = e.absolute(x), e.absolute(y)
    is_steep = second > first
    large, small = e.where(is_steep, second, first), e.where(is_steep, first, second)
    infinity = e.equal(large, math.inf)
    small = e.where(infinity, _flag(e, e.equal(small, math.inf)), small)
    large = e.where(infinity, e.constant(1.0, "double"), large)
    folds = small > large * _FOLD
    halved = e.where(large > 1.0, e.constant(0.5, "double"), e.constant(1.0, "double"))  # lest the sum overflow
    small_part, large_part = small * halved, large * halved
    top = e.where(folds, small_part - large_part, small)
    bottom = e.where(folds, small_part + large_part, large)
    t = e.where(e.equal(top, 0.0), e.constant(0.0, "double"), top / bottom)
    eighths = _flag(e, folds)
    k = e.where(is_steep, 2 - eighths, eighths)
    is_left = e.bits(x) < 0
    k = e.where(is_left, 4 - k, k)
    angle = e.copysign(_angle(e, t, is_steep ^ is_left, k, is_single), y)
    return e.where(e.isnan(x) | e.isnan(y), x + y, angle)


def _angle(e: InstructionBuilder, t: Expression, turns_back: Expression, k: Expression, is_single: bool) -> Expression:
    """Compute k pi / 4 plus, or minus, the inverse tangent of `t`."""
    t = e.where(turns_back, -t, t)
    z = t * t
    rest = t * z * polynomial(e, z, _ATAN_SINGLE if is_single else _ATAN)
    if not is_single:
        rest = rest + _constants(e, k, _RESTS)
    return _constants(e, k, _ANGLES) + (t + rest)


class _Arc:
    """The common part of inverse sine and cosine: ``asin(s)`` where s is |x|, or sqrt((1 - |x|) / 2) for |x| > 1/2.

    Attributes:
        is_far: whether |x| > 1/2.
        leading: of s, so few bits that they add up exactly.
        rest: what is to be added to have asin(s).
    """

    def __init__(self, e: InstructionBuilder, x: Expression, is_single: bool) -> None:
        size = e.absolute(x)
        self.is_far = size > 0.5
        half = (1 - size) * 0.5
        z = e.where(self.is_far, half, size * size)
        root = e.sqrt(half)
        s = e.where(self.is_far, root, size)
        more = s * z * polynomial(e, z, _ASIN_SINGLE if is_single else _ASIN)
        if is_single:
            self.leading, self.rest = s, more
            return
        high = e.from_bits(e.bits(root) & LOW_WORD)
        low = e.where(e.equal(half, 0.0), e.constant(0.0, "double"), (half - high * high) / (root + high))
        self.leading = e.where(self.is_far, high, size)
        self.rest = more + e.where(self.is_far, low, e.constant(0.0, "double"))


def arcsin(e: InstructionBuilder, x: Expression, is_single: bool = False) -> Expression:
    """Return the inverse sine; pi / 2 - 2 asin(sqrt((1 - |x|) / 2)) far from 0."""
    arc = _Arc(e, x, is_single)
    far = (_ANGLES[2] - 2 * arc.leading) - (2 * arc.rest - _RESTS[2])
    return e.copysign(e.where(arc.is_far, far, arc.leading + arc.rest), x)


def arccos(e: InstructionBuilder, x: Expression, is_single: bool = False) -> Expression:
    """Return the inverse cosine; 2 asin(sqrt((1 - |x|) / 2)), or pi minus that, far from 0."""
    arc = _Arc(e, x, is_single)
    is_negative = x < 0.0
    right = 2 * (arc.leading + arc.rest)
    left = (_ANGLES[4] - 2 * arc.leading) - (2 * arc.rest - _RESTS[4])
    leading, rest = (e.where(is_negative, -part, part) for part in (arc.leading, arc.rest))
    near = _ANGLES[2] - (leading - (_RESTS[2] - rest))
    return e.where(arc.is_far, e.where(is_negative, left, right), near)


# --- hyperbolic functions -------------------------------------------------------------------------------------------


def arcsinh(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute log(1 + s + s**2 / (1 + sqrt(s**2 + 1))), where s = |x|; log s + log 2 for huge ones."""
    size = e.absolute(x)
    squared = size * size
    return e.copysign(_logarithm(e, size, size + squared / (1 + e.sqrt(squared + 1))), x)


def arccosh(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute log(1 + t + sqrt(t (t + 2))), where t = x - 1; log x + log 2 for huge ones."""
    t = x - 1
    return e.where(x < 1.0, e.constant(math.nan, "double"), _logarithm(e, x, t + e.sqrt(t * (t + 2))))


def _logarithm(e: InstructionBuilder, x: Expression, more: Expression) -> Expression:
    """Compute log(1 + more), or log(2 x) where x is huge."""
    is_huge = x > _HUGE
    y = log1p(e, e.where(is_huge, x, more))
    return e.where(is_huge, y + LN2, y)


def arctanh(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute log(1 + 2 s / (1 - s)) / 2, where s = |x|."""
    size = e.absolute(x)
    return e.copysign(log1p(e, (size + size) / (1 - size)) * 0.5, x)


def _series(e: InstructionBuilder, size: Expression, y: Expression, terms: tuple[float, float]) -> Expression:
    """Return `y`, or near 0 the series ``size + a size**3 + b size**5``."""
    z = size * size
    return e.where(size < _SERIES_END, e.fma(size * z, polynomial(e, z, terms), size), y)


def single_arcsinh(e: InstructionBuilder, x: Expression) -> Expression:
    """Return the inverse hyperbolic sine of a float32, as a float64."""
    size = e.absolute(x)
    y = log(e, size + e.sqrt(size * size + 1))
    return e.copysign(_series(e, size, y, (-1 / 6, 3 / 40)), x)


def single_arccosh(e: InstructionBuilder, x: Expression) -> Expression:
    """Return the inverse hyperbolic cosine of a float32, as a float64; the square is exact."""
    y = log(e, x + e.sqrt(x * x - 1))
    return e.where(x < 1.0, e.constant(math.nan, "double"), y)


def single_arctanh(e: InstructionBuilder, x: Expression) -> Expression:
    """Compute arctanh of a float32 as a float64; sum and difference are exact where they matter."""
    size = e.absolute(x)
    y = log(e, (1 + size) / (1 - size)) * 0.5
    return e.copysign(_series(e, size, y, (1 / 3, 1 / 5)), x)
