"""Sine, cosine and tangent of numbers of any size, written in the expression IR.

There is no size from which on another road would have to be taken. A float64 is multiplied by that part of the digits
of 2 / pi that matters for its exponent, in integers (M. Payne and R. Hanek, "Radian reduction for trigonometric
functions", SIGNUM Newsletter 18, 1983); a tree of selections chooses the digits, so that elements look up nothing on
their own. A float32, as a float64, is multiplied by all digits that can matter.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from .expression import Expression, InstructionBuilder
from .functions64 import ROUNDING, number_of, polynomial

# 64 zeros, and the binary digits of 2 / pi behind the point
_DIGITS = (
    "0000000000000000"
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921c"
    "fe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980f"
    "ef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d08"
    "56033046fc7b6bab"
)
# 1 / 2 pi in pieces of 28 bits, whose products with the 24 bits of a float32 are exact
_PIECES = [math.ldexp((int(_DIGITS, 16) >> (1216 - 28 * (k + 1))) % 2**28, -28 * (k + 1) - 2) for k in range(7)]
_LIMB = 27  # bits
_MASK = 2**_LIMB - 1
# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2/2) / r**4 as polynomials in r**2, for r on [-pi/4, pi/4]
_SIN = (
    -0.16666666666666632,
    0.0083333333333224539,
    -0.0001984126982981587,
    2.755731368890987e-6,
    -2.5050756957763057e-8,
    1.589669674372604e-10,
)
_COS = (
    0.041666666666666613,
    -0.0013888888888876007,
    2.4801587290491146e-5,
    -2.7557314608175628e-7,
    2.0875754302529547e-9,
    -1.1361098970193675e-11,
)


_SIN_SINGLE = (-0.166666549274, 0.00833217612054, -0.000195169371206)
_COS_SINGLE = (0.0416666470071, -0.00138873719932, 2.44387685562e-5)


def sin(e: InstructionBuilder, x: Expression, is_single: bool = False) -> Expression:
    """Compute sin x; if `is_single`, x was a float32."""
    quadrant, sine, cosine = _angle(e, x, is_single)
    y = e.where(_has_bit(e, quadrant, 1), cosine, sine)
    return _flipped(e, y, e.shift_left(quadrant, 62) ^ e.bits(x))


def cos(e: InstructionBuilder, x: Expression, is_single: bool = False) -> Expression:
    """Compute cos x; if `is_single`, x was a float32."""
    quadrant, sine, cosine = _angle(e, x, is_single)
    y = e.where(_has_bit(e, quadrant, 1), sine, cosine)
    return _flipped(e, y, e.shift_left(quadrant + 1, 62))


def tan(e: InstructionBuilder, x: Expression, is_single: bool = False) -> Expression:
    """Compute tan x; if `is_single`, x was a float32."""
    quadrant, sine, cosine = _angle(e, x, is_single)
    is_odd = _has_bit(e, quadrant, 1)
    y = e.where(is_odd, -cosine, sine) / e.where(is_odd, sine, cosine)
    return _flipped(e, y, e.bits(x))


def _angle(e: InstructionBuilder, x: Expression, is_single: bool) -> tuple[Expression, Expression, Expression]:
    """Compute (q, sin r, cos r), where |x| is q quarters of a turn and r, modulo a turn."""
    quadrant, r = (_reduced_single if is_single else _reduced)(e, e.absolute(x))
    z = r * r
    half = z * 0.5
    leading = 1 - half
    cosine = leading + (((1 - leading) - half) + z * z * polynomial(e, z, _COS_SINGLE if is_single else _COS))
    return quadrant, e.fma(r * z, polynomial(e, z, _SIN_SINGLE if is_single else _SIN), r), cosine


def _has_bit(e: InstructionBuilder, integer: Expression, bit: int) -> Expression:
    return e.not_equal(integer & bit, 0)


def _flipped(e: InstructionBuilder, y: Expression, sign: Expression) -> Expression:
    """Return `y` or -y, as the sign's bit of `sign` says."""
    return e.from_bits(e.bits(y) ^ (sign & -(2**63)))


def _reduced_single(e: InstructionBuilder, size: Expression) -> tuple[Expression, Expression]:
    """Reduce a float32 to (q, r); its products with pieces of 1 / 2 pi are exact, and so are fractions of a turn."""
    turn: Expression | None = None
    for piece in _PIECES:
        product = size * piece
        fraction = product - e.rint(product)
        turn = fraction if turn is None else turn + fraction
    assert turn is not None
    quarters = turn * 4
    shifted = quarters + ROUNDING
    return e.bits(shifted), (quarters - (shifted - ROUNDING)) * (math.pi / 2)


def _reduced(e: InstructionBuilder, size: Expression) -> tuple[Expression, Expression]:
    """Reduce a float64 to (q, r); r is NaN where it is not finite."""
    bits = e.bits(size)
    mantissa = (bits & (2**52 - 1)) | 2**52
    limbs = _window(e, e.shift_right(bits, 52) - (1075 - 62))
    quadrant, turn = _fraction(e, _product(e, mantissa, limbs))
    far = turn * (math.pi / 2) + (size - size)  # NaN for infinities
    is_near = size <= math.pi / 4
    return e.where(is_near, e.constant(0, "i64"), quadrant), e.where(is_near, size, far)


def _window(e: InstructionBuilder, start: Expression) -> list[Expression]:
    """Return the digits of 2 / pi from number `start` on, in limbs; the first two make whole quarters of a turn."""
    words = [e.constant(_signed(int(_DIGITS[k : k + 16], 16)), "i64") for k in range(0, len(_DIGITS), 16)]
    for step in (16, 8, 4, 2, 1):
        chosen = _has_bit(e, start, 64 * step)
        moved = [e.where(chosen, words[k + step], word) for k, word in enumerate(words) if k + step < len(words)]
        words = [*moved, *words[len(moved) :]][: step + 3]
    shift = start & 63
    following = [e.shift_right(e.shift_right(word, 1) & (2**63 - 1), 63 - shift) for word in words[1:4]]
    words = [e.shift_left(word, shift) | rest for word, rest in zip(words[:3], following, strict=True)]
    return [_limb(e, words, position * _LIMB) for position in range(7)]


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _limb(e: InstructionBuilder, words: list[Expression], offset: int) -> Expression:
    """Return the bits from `offset` on of what `words` hold."""
    word, end = words[offset // 64], offset % 64 + _LIMB
    if end <= 64:
        return e.shift_right(word, 64 - end) & _MASK
    rest = e.shift_right(words[offset // 64 + 1], 128 - end) & (2 ** (end - 64) - 1)
    return (e.shift_left(word, end - 64) | rest) & _MASK


def _product(e: InstructionBuilder, mantissa: Expression, limbs: list[Expression]) -> list[Expression]:
    """Return the limbs of the product, modulo a turn, but for the last two."""
    low, high = mantissa & _MASK, e.shift_right(mantissa, _LIMB)
    digits: list[Expression] = []
    carry: Any = 0
    for limb, following in reversed(list(itertools.pairwise(limbs))):
        total = low * limb + high * following + carry
        digits.insert(0, total & _MASK)
        carry = e.shift_right(total, _LIMB)
    return digits[:-1]


def _fraction(e: InstructionBuilder, digits: list[Expression]) -> tuple[Expression, Expression]:
    """Return quarters of a turn: how many, and what is over, from -1/2 to 1/2."""
    first, second, third, fourth, fifth = digits
    quadrant = e.shift_right(first + 2**24, 25) & 3
    signed = e.shift_right(e.shift_left(first, 39), 39)  # the bits of the fraction, the first of them as the sign
    leading = number_of(e, e.shift_left(signed, _LIMB) + second) * 2.0**-52
    middle = number_of(e, e.shift_left(third, 24) | e.shift_right(fourth, 3)) * 2.0**-103
    last = number_of(e, e.shift_left(fourth & 7, _LIMB) | fifth) * 2.0**-133
    return quadrant, leading + (middle + last)
