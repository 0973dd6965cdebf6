"""The scalar expression IR: what one element of a fused kernel computes.

An `ExpressionBuilder` is the module-like ``e`` that an op's ``expression(e, x, y)`` is called with; expressions record
what is done to them. Equal nodes are one. What the IR can't express raises `UnsupportedError`, and the op is not fused.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from ...graph.dtypes import name_of

_TYPES = {"float32": "float", "float64": "double", "int32": "i32", "bool": "i1"}


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
        return self.node("input", llvm_type(dtype), value=position)

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
        if x.type == "i1" or (x.type == "i32" and kind == "div"):
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
        if x.type not in ("i1", "i32"):
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
        return condition if x.type == "i32" else self.logical("or", condition, self.isnan(x))

    def isnan(self, x: Expression) -> Expression:
        return self.compare("ne", x, x)

    def isinf(self, x: Expression) -> Expression:
        return self.equal(self.absolute(x), float("inf"))

    def isfinite(self, x: Expression) -> Expression:
        return self.compare("lt", self.absolute(x), float("inf"))

    def cast(self, x: Expression, dtype: Any) -> Expression:
        wanted = llvm_type(dtype)
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
        """The bits of a float32 as an int32."""
        return self.node("bitcast", "i32", x)

    def from_bits(self, x: Expression) -> Expression:
        """The float32 with these bits."""
        return self.node("bitcast", "float", x)

    def shift_left(self, x: Expression, count: int) -> Expression:
        return self.node("shl", "i32", x, self.constant(count, "i32"))

    def shift_right(self, x: Expression, count: int) -> Expression:
        return self.node("ashr", "i32", x, self.constant(count, "i32"))

    # --- functions made of those ----------------------------------------------------------------------------

    def _function(self, name: str, x: Expression) -> Expression:
        from . import functions

        if x.type != "float":
            raise UnsupportedError(f"{name} of {x.type}")
        return getattr(functions, name)(self, x)

    def exp(self, x: Expression) -> Expression:
        return self._function("exp", x)

    def expm1(self, x: Expression) -> Expression:
        return self._function("expm1", x)

    def log(self, x: Expression) -> Expression:
        return self._function("log", x)

    def log1p(self, x: Expression) -> Expression:
        return self._function("log1p", x)

    def tanh(self, x: Expression) -> Expression:
        return self._function("tanh", x)

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedError(name)
