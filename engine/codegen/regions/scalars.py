"""Expressions for one element of a native operation: the expression language of kernels, with int64 and division.

Integer division and remainder round down and give 0 for a divisor of 0, as NumPy's do.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ...common.dtypes import name_of
from ...graph.op import Op
from ..elementwise import kernel_specs
from ..expression.builder import ExpressionBuilder
from ..expression.expression import Expression, UnsupportedError

_TYPES = {"float32": "float", "float64": "double", "int32": "i32", "int64": "i64", "bool": "i1"}
_SIZES = {"float": 4, "double": 8, "i32": 4, "i64": 8, "i1": 1}
_INTEGERS = ("i32", "i64")
FLOATS = ("float", "double")


def type_of(dtype: Any) -> str:
    """Return the LLVM type of an element in a register.

    Raises:
        UnsupportedError: native code has no such type.
    """
    try:
        return _TYPES[name_of(dtype)]
    except KeyError:
        raise UnsupportedError(f"dtype {dtype}") from None


def size_of(kind: str) -> int:
    """Return the bytes of an element in memory."""
    return _SIZES[kind]


class NativeBuilder(ExpressionBuilder):
    """Expressions of native code: those of kernels, and division that rounds down as calls and in a few steps."""

    def input(self, position: int, dtype: Any) -> Expression:
        return self.node("input", type_of(dtype), value=position)

    def floor_divide(self, x: Any, y: Any) -> Expression:
        return self._division("floordiv", x, y)

    def remainder(self, x: Any, y: Any) -> Expression:
        return self._division("floormod", x, y)

    def _division(self, kind: str, x: Any, y: Any) -> Expression:
        x, y = self._same(x, y)
        if x.type in _INTEGERS:
            return self.node(kind, x.type, x, y)
        rest = self.fmod(x, y)
        is_off = self.not_equal(rest, 0.0) & self.logical("xor", y < 0.0, rest < 0.0)
        if kind == "floormod":
            found = self.where(is_off, rest + y, self.where(self.equal(rest, 0.0), self.copysign(0.0, y), rest))
            return self.where(self.equal(y, 0.0), rest, found)
        quotient = (x - rest) / y
        quotient = self.where(is_off, quotient - 1, quotient)
        down = self.floor(quotient)
        down = self.where(quotient - down > 0.5, down + 1, down)
        down = self.where(self.equal(quotient, 0.0), self.copysign(0.0, x / y), down)
        return self.where(self.equal(y, 0.0), x / y, down)

    def fmod(self, x: Any, y: Any) -> Expression:
        """Return the remainder with the sign of the dividend."""
        x, y = self._same(x, y)
        if x.type not in FLOATS:
            raise UnsupportedError(f"fmod of {x.type}")
        return self.node("rem", x.type, x, y)

    def cast(self, x: Expression, dtype: Any) -> Expression:
        return self._converted(x, type_of(dtype))


def expression_of(op: Op, builder: NativeBuilder, arguments: Sequence[Expression]) -> Expression:
    """Return an elementwise op as an expression.

    Raises:
        UnsupportedError: it can't be expressed.
    """
    if not op.elementwise:
        raise UnsupportedError(op.type_name)
    try:
        return kernel_specs.expression_of(op, builder, arguments)
    except TypeError as error:
        raise UnsupportedError(f"{op.type_name}: {error}") from None


@lru_cache(maxsize=4096)
def has_form(op: Op, dtypes: tuple[Any, ...], result: Any) -> bool:
    """Test whether native code can compute elementwise `op` over inputs of `dtypes`, giving dtype `result`."""
    builder = NativeBuilder()
    try:
        arguments = [builder.input(position, dtype) for position, dtype in enumerate(dtypes)]
        return expression_of(op, builder, arguments).type == type_of(result)
    except UnsupportedError:
        return False


def literal(value: Any, kind: str) -> str:
    """Return a number as an LLVM constant."""
    if kind in FLOATS:
        number = float(np.float32(value)) if kind == "float" else float(value)
        return f"0x{struct.pack('>d', number).hex().upper()}"
    if kind == "i1":
        return "true" if value else "false"
    return str(int(value))


def division_functions() -> str:
    """Print integer division and remainder that round down; 0 where the divisor is 0, wrapping where it overflows."""
    text: list[str] = []
    for kind in _INTEGERS:
        for name, result in (("floordiv", "%floor"), ("floormod", "%mod")):
            text.append(f"""define internal {kind} @{name}_{kind}({kind} %x, {kind} %y) alwaysinline {{
  %zero = icmp eq {kind} %y, 0
  br i1 %zero, label %none, label %test
none:
  ret {kind} 0
test:
  %minus = icmp eq {kind} %y, -1
  br i1 %minus, label %negate, label %divide
negate:
  %n = sub {kind} 0, %x
  ret {kind} {"%n" if name == "floordiv" else "0"}
divide:
  %q = sdiv {kind} %x, %y
  %r = srem {kind} %x, %y
  %some = icmp ne {kind} %r, 0
  %signs = xor {kind} %x, %y
  %differ = icmp slt {kind} %signs, 0
  %adjust = and i1 %some, %differ
  %q1 = sub {kind} %q, 1
  %r1 = add {kind} %r, %y
  %floor = select i1 %adjust, {kind} %q1, {kind} %q
  %mod = select i1 %adjust, {kind} %r1, {kind} %r
  ret {kind} {result}
}}
""")
    return "".join(text)
