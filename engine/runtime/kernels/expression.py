"""The scalar expression IR: what one element of a fused kernel computes.

An `ExpressionBuilder` is the module-like ``e`` that an op's ``expression(e, x, y)`` is called with; expressions record
what is done to them. Equal nodes are one. What the IR can't express raises `UnsupportedError`, and the op is not fused.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...graph.dtypes import name_of

FUNCTIONS = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "erf", "erfc"),
)
_TYPES = {"float32": "float", "float64": "double", "int32": "i32", "bool": "i1"}
HALVES = {"float16": "half", "bfloat16": "bfloat"}
_INTEGERS = ("i32", "i64")  # int64 is for steps on the way; kernels have no such operands
_INTEGER_OF = {"float": "i32", "double": "i64"}
_SIGN_BITS = {"float": -(2**31), "double": -(2**63)}


class UnsupportedError(Exception):
    """An operation or dtype that kernels do not have; the caller runs NumPy instead."""


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
    """The LLVM type of an element.

    Raises:
        UnsupportedError: kernels have no such type.
    """
    try:
        return _TYPES[name_of(dtype)]
    except KeyError:
        raise UnsupportedError(f"dtype {dtype}") from None


def register_type(dtype: Any) -> str:
    """The LLVM type in which an element is computed: half types are widened.

    Raises:
        UnsupportedError: kernels have no such type.
    """
    return "float" if name_of(dtype) in HALVES else llvm_type(dtype)


def memory_type(dtype: Any) -> str:
    """The type of an element of an operand, `HALVES` among them.

    Raises:
        UnsupportedError: kernels have no such type.
    """
    return HALVES.get(name_of(dtype)) or llvm_type(dtype)


class Expression:
    """A value under construction; Python's operators add instructions."""

    __slots__ = ("builder", "index")

    def __init__(self, builder: ExpressionBuilder, index: int) -> None:
        self.builder = builder
        self.index = index

    @property
    def type(self) -> str:
        return self.builder.nodes[self.index].type

    def __add__(self, other: Any) -> Expression:
        return self.builder.arithmetic("add", self, other)

    def __radd__(self, other: Any) -> Expression:
        return self.builder.arithmetic("add", other, self)

    def __sub__(self, other: Any) -> Expression:
        return self.builder.arithmetic("sub", self, other)

    def __rsub__(self, other: Any) -> Expression:
        return self.builder.arithmetic("sub", other, self)

    def __mul__(self, other: Any) -> Expression:
        return self.builder.arithmetic("mul", self, other)

    def __rmul__(self, other: Any) -> Expression:
        return self.builder.arithmetic("mul", other, self)

    def __truediv__(self, other: Any) -> Expression:
        return self.builder.arithmetic("div", self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return self.builder.arithmetic("div", other, self)

    def __neg__(self) -> Expression:
        return self.builder.negative(self)

    def __lt__(self, other: Any) -> Expression:
        return self.builder.compare("lt", self, other)

    def __le__(self, other: Any) -> Expression:
        return self.builder.compare("le", self, other)

    def __gt__(self, other: Any) -> Expression:
        return self.builder.compare("gt", self, other)

    def __ge__(self, other: Any) -> Expression:
        return self.builder.compare("ge", self, other)

    def __and__(self, other: Any) -> Expression:
        return self.builder.logical("and", self, other)

    def __or__(self, other: Any) -> Expression:
        return self.builder.logical("or", self, other)

    def __xor__(self, other: Any) -> Expression:
        return self.builder.logical("xor", self, other)


class ExpressionBuilder:
    """Records instructions; has the names that ops use in their expressions."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._known: dict[Node, int] = {}

    def node(self, kind: str, type: str, *arguments: Expression, value: Any = None) -> Expression:
        entry = Node(kind, type, tuple(argument.index for argument in arguments), value)
        index = self._known.get(entry)
        if index is None:
            index = self._known[entry] = len(self.nodes)
            self.nodes.append(entry)
        return Expression(self, index)

    def input(self, position: int, dtype: Any) -> Expression:
        """Element of operand number `position`."""
        return self.node("input", register_type(dtype), value=position)

    def constant(self, value: Any, type: str) -> Expression:
        """A number as a value of an LLVM type."""
        if type in ("float", "double"):
            number = float(np.float32(value)) if type == "float" else float(value)
            return self.node("constant", type, value=struct.pack(">d", number).hex())
        if int(value) != value:
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
            raise UnsupportedError(f"{kind} of bools")
        return self.node(kind, "i1", x, y)

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
            raise UnsupportedError(f"logical_not of {x.type}")
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
        """`condition`, or x is NaN: so that NaN wins."""
        return condition if x.type in _INTEGERS else self.logical("or", condition, self.isnan(x))

    def isnan(self, x: Expression) -> Expression:
        return self.compare("ne", x, x)

    def isinf(self, x: Expression) -> Expression:
        return self.equal(self.absolute(x), float("inf"))

    def isfinite(self, x: Expression) -> Expression:
        return self.compare("lt", self.absolute(x), float("inf"))

    def cast(self, x: Expression, dtype: Any) -> Expression:
        wanted = register_type(dtype)
        if x.type == "double" and name_of(dtype) in HALVES:
            raise UnsupportedError("float64 rounded twice")
        if x.type == wanted:
            return x
        if wanted == "i1":
            return self.not_equal(x, 0)
        if wanted == "i32" and x.type in ("float", "double"):
            raise UnsupportedError("float to integer")
        return self.node("cast", wanted, x)

    # --- functions of the hardware --------------------------------------------------------------------------

    def _intrinsic(self, name: str, x: Expression) -> Expression:
        if x.type not in ("float", "double"):
            raise UnsupportedError(f"{name} of {x.type}")
        return self.node("intrinsic", x.type, x, value=name)

    def absolute(self, x: Expression) -> Expression:
        return self._intrinsic("fabs", x)

    def sqrt(self, x: Expression) -> Expression:
        return self._intrinsic("sqrt", x)

    def floor(self, x: Expression) -> Expression:
        return self._intrinsic("floor", x)

    def ceil(self, x: Expression) -> Expression:
        return self._intrinsic("ceil", x)

    def trunc(self, x: Expression) -> Expression:
        return self._intrinsic("trunc", x)

    def rint(self, x: Expression) -> Expression:
        return self._intrinsic("rint", x)

    def fma(self, x: Expression, y: Any, z: Any) -> Expression:
        """``x * y + z``, rounded once where the hardware can."""
        x, y = self._same(x, y)
        x, z = self._same(x, z)
        return self.node("fma", x.type, x, y, z)

    def bits(self, x: Expression) -> Expression:
        """The bits of a float as an integer of its size."""
        return self.node("bitcast", _INTEGER_OF[x.type], x)

    def from_bits(self, x: Expression) -> Expression:
        """The float with these bits."""
        return self.node("bitcast", "float" if x.type == "i32" else "double", x)

    def shift_left(self, x: Expression, count: int | Expression) -> Expression:
        x, count = self._same(x, count)
        return self.node("shl", x.type, x, count)

    def shift_right(self, x: Expression, count: int | Expression) -> Expression:
        """With copies of the sign's bit."""
        x, count = self._same(x, count)
        return self.node("ashr", x.type, x, count)

    def copysign(self, size: Any, x: Expression) -> Expression:
        """`size` with the sign of `x`, which may be that of a zero."""
        size, x = self._same(size, x)
        if x.type not in _INTEGER_OF:
            raise UnsupportedError(f"copysign of {x.type}")
        sign = _SIGN_BITS[x.type]
        return self.from_bits((self.bits(size) & ~sign) | (self.bits(x) & sign))

    def widen(self, x: Expression) -> Expression:
        """A float32 as a float64."""
        return self.node("cast", "double", x)

    def narrow(self, x: Expression) -> Expression:
        """A float64 rounded to float32."""
        return self.node("cast", "float", x)

    # --- functions made of those ----------------------------------------------------------------------------

    def _function(self, name: str, *inputs: Expression) -> Expression:
        """A function that `functions` or `functions64` has, by the type of the inputs."""
        from . import angles, functions, functions64

        places = {"float": (functions,), "double": (functions64, angles)}.get(inputs[0].type, ())
        for place in places:
            if name in FUNCTIONS and hasattr(place, name):
                return getattr(place, name)(self, *inputs)
        raise UnsupportedError(f"{name} of {inputs[0].type}")

    def exp(self, x: Expression) -> Expression:
        return self._function("exp", x)

    def log(self, x: Expression) -> Expression:
        return self._function("log", x)

    def __getattr__(self, name: str) -> Any:
        if name in FUNCTIONS:
            return partial(self._function, name)
        raise UnsupportedError(name)
