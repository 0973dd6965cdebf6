"""float16 and bfloat16 in kernels: they are widened to float32 when they are loaded, and every op's result is rounded.

So sums, products and the like have the very bits that NumPy and ml_dtypes give, which round after each op as well; and
what overflows float16 is infinite for the next op of a fused chain too, as the guards of loss scaling need it.
"""

from __future__ import annotations

import struct
from typing import Any

from ...common.dtypes import name_of
from .expression import HALVES, Expression, InstructionBuilder

_LEAST_INFINITE = 65520.0  # of the numbers that become infinite as float16
_EXACT = ("fabs", "floor", "ceil", "trunc", "rint")


class Rounding:
    """Rounds values of an expression to half types, but for those that are rounded as they are.

    Args:
        builder: of the expression.
    """

    def __init__(self, builder: InstructionBuilder) -> None:
        self._builder = builder
        self._rounded: dict[str, set[int]] = {name: set() for name in HALVES}

    def loaded(self, x: Expression, dtype: Any) -> Expression:
        """Return an operand of `dtype`, as it is."""
        return self._known(x, name_of(dtype))

    def __call__(self, x: Expression, dtype: Any) -> Expression:
        """Return `x` rounded to `dtype`, if that is a half type: to nearest, halves to even; NaN stays."""
        name = name_of(dtype)
        if name not in HALVES or self._is_rounded(x.index, name):
            return x
        e = self._builder
        if name == "float16":
            return self._known(e.node("cast", "float", e.node("cast", "half", self._apart(x))), name)
        return self._known(_rounded_to_bfloat16(e, x), name)

    def _apart(self, x: Expression) -> Expression:
        """Return `x`, so that LLVM rounds it, and not the float64 that it or its sign was rounded from.

        Few processors have an instruction that rounds float64 to float16. Elsewhere LLVM calls a function that is not
        there, which ends the process. A comparison in between prevents it. What rounds to infinity may be infinite
        before, so that no result changes.
        """
        e = self._builder
        if all(node.type != "double" for node in e.nodes):
            return x
        return e.where(x >= _LEAST_INFINITE, e.constant(float("inf"), x.type), x)

    def _known(self, x: Expression, name: str) -> Expression:
        if name in HALVES:
            self._rounded[name].add(x.index)
        return x

    def _is_rounded(self, index: int, name: str) -> bool:
        if index in self._rounded[name]:
            return True
        node = self._builder.nodes[index]
        if node.kind == "constant":
            (number,) = struct.unpack(">d", bytes.fromhex(node.value))
            return number in (0.0, 1.0)
        if node.kind == "neg" or (node.kind == "intrinsic" and node.value in _EXACT):
            return self._is_rounded(node.arguments[0], name)
        if node.kind == "reduce" and node.value[0] in ("max", "min"):
            return self._is_rounded(node.arguments[0], name)
        if node.kind == "select":
            return all(self._is_rounded(argument, name) for argument in node.arguments[1:])
        return False


def _rounded_to_bfloat16(e: InstructionBuilder, x: Expression) -> Expression:
    """Return the upper half of the bits, one more where the lower half says so."""
    bits = e.bits(x)
    is_odd = e.shift_right(bits, 16) & 1
    upper = (bits + (is_odd + 0x7FFF)) & -0x10000
    nan = (bits & -(2**31)) | 0x7FC00000
    return e.from_bits(e.where(e.isnan(x), nan, upper))
