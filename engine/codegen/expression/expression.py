"""The scalar expression IR: what one element of a fused kernel computes.

An `InstructionBuilder` is the module-like ``e`` that an op's ``expression(e, x, y)`` is called with; expressions record
what is done to them. Equal nodes are one. What the IR can't express raises `UnsupportedError`, and the op is not fused.
"""

from __future__ import annotations

import math
import platform
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...common.dtypes import name_of

_TYPES = {"float32": "float", "float64": "double", "int32": "i32", "bool": "i1"}
_WIDE_TYPES = {**_TYPES, "int64": "i64"}
HALVES = {"float16": "half", "bfloat16": "bfloat"}
_INTEGERS = ("i32", "i64")
_INTEGER_OF = {"float": "i32", "double": "i64"}
_BOOL_ARITHMETIC = {"add": "or", "mul": "and"}
_ROUNDING = 6755399441055744.0  # 1.5 * 2**52: adding it puts an integer into the low bits
SATURATES = platform.machine() not in ("x86_64", "AMD64", "i386", "i686")  # there what has no integer is the least one
_SIGN_BITS = {"float": -(2**31), "double": -(2**63)}


class UnsupportedError(Exception):
    """An operation or dtype that kernels do not have; the caller runs NumPy instead.

    Attributes:
        operation: the innermost operation for which there is no native code, if it is that of one.
    """

    operation: Any = None


class Node(NamedTuple):
    """One instruction: `kind` over earlier nodes, of LLVM type `type`.

    The value of a floating constant is its bits as a double, in hexadecimal: so that 0.0 and -0.0 differ, and a NaN
    equals itself.
    """

    kind: str
    type: str
    arguments: tuple[int, ...] = ()
    value: Any = None


def llvm_type(dtype: Any) -> str:
    """Return the LLVM type of an element.

    Raises:
        UnsupportedError: kernels have no such type.
    """
    try:
        return _TYPES[name_of(dtype)]
    except KeyError:
        raise UnsupportedError(f"dtype {dtype}") from None


def register_type(dtype: Any) -> str:
    """Return the LLVM type in which an element of an expression is computed: half types are widened.

    Raises:
        UnsupportedError: kernels have no such type.
    """
    kind = memory_type(dtype)
    return "float" if kind in HALVES.values() else kind


def memory_type(dtype: Any) -> str:
    """Return the type of an element of an operand of an expression, `HALVES` and int64 among them.

    Raises:
        UnsupportedError: kernels have no such type.
    """
    name = name_of(dtype)
    kind = HALVES.get(name) or _WIDE_TYPES.get(name)
    if kind is None:
        raise UnsupportedError(f"dtype {dtype}")
    return kind


def _operator(method: str, kind: str, is_reflected: bool = False) -> Callable[..., Expression]:
    """Return an operator of expressions: the instruction of that kind, by a method of their builder."""

    def operate(x: Expression, y: Any) -> Expression:
        print_instruction = getattr(x.builder, method)
        return print_instruction(kind, y, x) if is_reflected else print_instruction(kind, x, y)

    return operate


def _arithmetic(kind: str) -> tuple[Callable[..., Expression], Callable[..., Expression]]:
    """Return an operator of arithmetic, and the one for a number on its left."""
    return _operator("arithmetic", kind), _operator("arithmetic", kind, is_reflected=True)


class Expression:
    """A value under construction; Python's operators add instructions."""

    __slots__ = ("builder", "index")

    def __init__(self, builder: InstructionBuilder, index: int) -> None:
        self.builder = builder
        self.index = index

    @property
    def type(self) -> str:
        return self.builder.nodes[self.index].type

    __add__, __radd__ = _arithmetic("add")
    __sub__, __rsub__ = _arithmetic("sub")
    __mul__, __rmul__ = _arithmetic("mul")
    __truediv__, __rtruediv__ = _arithmetic("div")
    __lt__, __gt__ = _operator("compare", "lt"), _operator("compare", "gt")
    __le__, __ge__ = _operator("compare", "le"), _operator("compare", "ge")
    __and__, __or__, __xor__ = (_operator("logical", kind) for kind in ("and", "or", "xor"))
    __lshift__, __rshift__ = _operator("shifted", "shl"), _operator("shifted", "ashr")

    def __neg__(self) -> Expression:
        return self.builder.negative(self)

    def __invert__(self) -> Expression:
        return self.builder.logical("xor", self, -1)

    def __floordiv__(self, other: Any) -> Expression:
        return self.builder.floor_divide(self, other)

    def __mod__(self, other: Any) -> Expression:
        return self.builder.remainder(self, other)


class InstructionBuilder:
    """Records instructions: those of which `ExpressionBuilder` makes functions.

    Args:
        dtypes: of the inputs, where only that decides whether an op can be expressed: once widened, half types are
            float32 like others.
    """

    def __init__(self, dtypes: Sequence[Any] = ()) -> None:
        self.nodes: list[Node] = []
        self._halves = {name_of(dtype) for dtype in dtypes} & set(HALVES)
        self._known: dict[Node, int] = {}

    def node(self, kind: str, type: str, *arguments: Expression, value: Any = None) -> Expression:
        entry = Node(kind, type, tuple(argument.index for argument in arguments), value)
        index = self._known.get(entry)
        if index is None:
            index = self._known[entry] = len(self.nodes)
            self.nodes.append(entry)
        return Expression(self, index)

    def input(self, position: int, dtype: Any) -> Expression:
        """Return the element of operand number `position`."""
        return self.node("input", register_type(dtype), value=position)

    def constant(self, value: Any, type: str) -> Expression:
        """Return a number as a value of an LLVM type."""
        if type in ("float", "double"):
            number = float(np.float32(value)) if type == "float" else float(value)
            return self.node("constant", type, value=struct.pack(">d", number).hex())
        if not math.isfinite(value) or int(value) != value:
            raise UnsupportedError(f"{value} as {type}")
        return self.node("constant", type, value=int(value))

    def _same(self, x: Any, y: Any) -> tuple[Expression, Expression]:
        if not isinstance(x, Expression):
            x = self.constant(x, y.type)
        if not isinstance(y, Expression):
            y = self.constant(y, x.type)
        if x.type != y.type:
            raise UnsupportedError(f"mixed types {x.type} and {y.type}")
        return x, y

    # --- arithmetic and comparison --------------------------------------------------------------------------

    def arithmetic(self, kind: str, x: Any, y: Any) -> Expression:
        x, y = self._same(x, y)
        if x.type == "i1" and kind in _BOOL_ARITHMETIC:
            return self.logical(_BOOL_ARITHMETIC[kind], x, y)
        if x.type == "i1" or (x.type in _INTEGERS and kind == "div"):
            raise UnsupportedError(f"{kind} of {x.type}")
        return self.node(kind, x.type, x, y)

    def negative(self, x: Expression) -> Expression:
        if x.type == "i1":
            raise UnsupportedError("negative of bool")
        return self.node("neg", x.type, x)

    def compare(self, kind: str, x: Any, y: Any) -> Expression:
        x, y = self._same(x, y)
        if x.type == "i1" and kind not in ("eq", "ne"):
            return self._compare_bools(kind, x, y)
        return self.node(kind, "i1", x, y)

    def _compare_bools(self, kind: str, x: Expression, y: Expression) -> Expression:
        """Compare bools, where False is less than True."""
        if kind in ("gt", "ge"):
            x, y = y, x
        less_or_equal = self.logical_not(x) | y
        return less_or_equal if kind in ("le", "ge") else self.logical_not(x) & y

    def equal(self, x: Any, y: Any) -> Expression:
        return self.compare("eq", x, y)

    def not_equal(self, x: Any, y: Any) -> Expression:
        return self.compare("ne", x, y)

    def logical(self, kind: str, x: Any, y: Any) -> Expression:
        x, y = self._same(x, y)
        if x.type not in ("i1", *_INTEGERS):
            raise UnsupportedError(f"{kind} of {x.type}")
        return self.node(kind, x.type, x, y)

    def logical_not(self, x: Expression) -> Expression:
        if x.type != "i1":
            return self.equal(x, 0)
        return self.node("xor", "i1", x, self.constant(1, "i1"))

    def where(self, condition: Expression, x: Any, y: Any) -> Expression:
        x, y = self._same(x, y)
        if condition.type != "i1":
            raise UnsupportedError(f"where over {condition.type}")
        return self.node("select", x.type, condition, x, y)

    def maximum(self, x: Any, y: Any) -> Expression:
        x, y = self._same(x, y)
        return self.where(self._unordered(x, self.compare("gt", x, y)), x, y)

    def minimum(self, x: Any, y: Any) -> Expression:
        x, y = self._same(x, y)
        return self.where(self._unordered(x, self.compare("lt", x, y)), x, y)

    def _unordered(self, x: Expression, condition: Expression) -> Expression:
        """Return `condition`, or x is NaN: so that NaN wins."""
        return condition if x.type not in _INTEGER_OF else self.logical("or", condition, self.isnan(x))

    def isnan(self, x: Expression) -> Expression:
        return self.compare("ne", x, x)

    def isinf(self, x: Expression) -> Expression:
        if x.type not in _INTEGER_OF:
            return self.not_equal(x, x)
        return self.equal(self.absolute(x), float("inf"))

    def isfinite(self, x: Expression) -> Expression:
        if x.type not in _INTEGER_OF:
            return self.equal(x, x)
        return self.compare("lt", self.absolute(x), float("inf"))

    def cast(self, x: Expression, dtype: Any) -> Expression:
        if x.type == "double" and name_of(dtype) in HALVES:
            raise UnsupportedError("float64 rounded twice")
        return self._converted(x, register_type(dtype))

    def _converted(self, x: Expression, wanted: str) -> Expression:
        if x.type == wanted:
            return x
        if wanted == "i1":
            return self.not_equal(x, 0)
        if wanted in _INTEGERS and x.type in _INTEGER_OF:
            return self._truncated(x, wanted)
        return self.node("cast", wanted, x)

    def _truncated(self, x: Expression, wanted: str) -> Expression:
        """Convert a float to an integer; where there is none, as NumPy does with the instructions of this host."""
        bits = 32 if wanted == "i32" else 64
        least, most = self.constant(-(2 ** (bits - 1)), wanted), self.constant(2 ** (bits - 1) - 1, wanted)
        below = x <= -(2.0**31) - 1 if (x.type, bits) == ("double", 32) else x < -(2.0 ** (bits - 1))
        above = x >= 2.0 ** (bits - 1)
        number = self.node("cast", wanted, x)
        if not SATURATES:
            return self.where(below | above | self.isnan(x), least, number)
        number = self.where(below, least, self.where(above, most, number))
        return self.where(self.isnan(x), self.constant(0, wanted), number)

    # --- integers -------------------------------------------------------------------------------------------

    def shifted(self, kind: str, x: Any, count: Any) -> Expression:
        """Shift; with a count below 0 or above the bits, to the right the sign is left, otherwise 0."""
        x, count = self._same(x, count)
        if x.type not in _INTEGERS:
            raise UnsupportedError(f"{kind} of {x.type}")
        last = 31 if x.type == "i32" else 63
        is_inside = self.equal(count & ~last, 0)
        if kind == "ashr":
            return self.node(kind, x.type, x, self.where(is_inside, count, last))
        return self.where(is_inside, self.node(kind, x.type, x, count & last), 0)

    def floor_divide(self, x: Any, y: Any) -> Expression:
        """Return the quotient rounded down; 0 by 0. In float64 that of two int32 is never rounded to an integer."""
        x, y = self._same(x, y)
        if x.type != "i32":
            raise UnsupportedError(f"floor_divide of {x.type}")
        divisor = self.where(self.equal(y, 0), 1, y)
        quotient = self.floor(self.node("cast", "double", x) / self.node("cast", "double", divisor))
        whole = self.node("cast", "i32", self.node("bitcast", "i64", quotient + _ROUNDING))  # it wraps around
        return self.where(self.equal(y, 0), 0, whole)

    def remainder(self, x: Any, y: Any) -> Expression:
        """Return the remainder with the sign of the divisor; 0 by 0."""
        x, y = self._same(x, y)
        whole = self.floor_divide(x, y)
        return self.where(self.equal(y, 0), 0, x - whole * y)

    # --- functions of the hardware --------------------------------------------------------------------------

    def _intrinsic(self, name: str, x: Expression) -> Expression:
        if x.type not in ("float", "double"):
            raise UnsupportedError(f"{name} of {x.type}")
        return self.node("intrinsic", x.type, x, value=name)

    def absolute(self, x: Expression) -> Expression:
        if x.type in _INTEGERS:
            return self.where(self.compare("lt", x, 0), -x, x)
        return self._intrinsic("fabs", x)

    def sign(self, x: Expression) -> Expression:
        """Return -1, 0 or 1; NaN stays."""
        if x.type == "i1" or "bfloat16" in self._halves:  # that of -0.0 is itself there
            raise UnsupportedError("sign of bools or bfloat16")
        zero, one = self.constant(0, x.type), self.constant(1, x.type)
        at_zero = zero if x.type in _INTEGERS else self.where(self.equal(x, 0), zero, x)
        return self.where(x > 0, one, self.where(x < 0, self.constant(-1, x.type), at_zero))

    def signbit(self, x: Expression) -> Expression:
        """Return whether the sign's bit is set."""
        if x.type not in (*_INTEGER_OF, *_INTEGERS):
            raise UnsupportedError(f"signbit of {x.type}")
        return (x if x.type in _INTEGERS else self.bits(x)) < 0

    def nextafter(self, x: Any, y: Any) -> Expression:
        """Return the next number after x in the direction of y."""
        x, y = self._same(x, y)
        if x.type not in _INTEGER_OF or self._halves:
            raise UnsupportedError("nextafter of integers or half types")
        bits = self.bits(x)
        step = self.where(self.logical("xor", x < y, x > 0), self.constant(-1, bits.type), self.constant(1, bits.type))
        least = self.copysign(self.from_bits(self.constant(1, bits.type)), y)
        following = self.where(self.equal(x, 0), least, self.from_bits(bits + step))
        following = self.where(self.equal(x, y), y, following)
        return self.where(self.isnan(x) | self.isnan(y), x + y, following)

    def sqrt(self, x: Expression) -> Expression:
        return self._intrinsic("sqrt", x)

    def floor(self, x: Expression) -> Expression:
        return self._rounding("floor", x)

    def ceil(self, x: Expression) -> Expression:
        return self._rounding("ceil", x)

    def trunc(self, x: Expression) -> Expression:
        return self._rounding("trunc", x)

    def rint(self, x: Expression) -> Expression:
        return self._rounding("rint", x)

    def _rounding(self, name: str, x: Expression) -> Expression:
        """Round; an integer stays, as it is rounded already."""
        return x if x.type not in _INTEGER_OF else self._intrinsic(name, x)

    def fma(self, x: Expression, y: Any, z: Any) -> Expression:
        """Compute ``x * y + z``, rounded once where the hardware can."""
        x, y = self._same(x, y)
        x, z = self._same(x, z)
        return self.node("fma", x.type, x, y, z)

    def bits(self, x: Expression) -> Expression:
        """Return the bits of a float as an integer of its size."""
        return self.node("bitcast", _INTEGER_OF[x.type], x)

    def from_bits(self, x: Expression) -> Expression:
        """Return the float with these bits."""
        return self.node("bitcast", "float" if x.type == "i32" else "double", x)

    def shift_left(self, x: Expression, count: int | Expression) -> Expression:
        x, count = self._same(x, count)
        return self.node("shl", x.type, x, count)

    def shift_right(self, x: Expression, count: int | Expression) -> Expression:
        """Shift to the right, with copies of the sign's bit."""
        x, count = self._same(x, count)
        return self.node("ashr", x.type, x, count)

    def copysign(self, size: Any, x: Expression) -> Expression:
        """Return `size` with the sign of `x`, which may be that of a zero."""
        size, x = self._same(size, x)
        if x.type not in _INTEGER_OF:
            raise UnsupportedError(f"copysign of {x.type}")
        sign = _SIGN_BITS[x.type]
        return self.from_bits((self.bits(size) & ~sign) | (self.bits(x) & sign))

    def widen(self, x: Expression) -> Expression:
        """Return a float32 as a float64."""
        return self.node("cast", "double", x)

    def narrow(self, x: Expression) -> Expression:
        """Return a float64 rounded to float32."""
        return self.node("cast", "float", x)
