"""The gamma functions, by the engine's own formulas: these append nodes where they are given values of the file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .....engine.common.quick_dataclass import dataclass
from .....engine.graph.graph import Operation
from .....engine.ops.math.gamma_functions import (
    SMALL,
    TERMS,
    GammaInc,
    LogGamma,
    leading_factor,
    log_gamma_values,
    quadrature,
    tail_length,
)
from ..registry import exports, op_of
from ..writer import BOOL, LONG, Writer

if TYPE_CHECKING:
    from typing import TypeAlias

    from .....engine.common.dtypes import DType
    from ....structures import Array

    Operand: TypeAlias = "Value | float | Array"
    """An operand of an elementwise operator."""

_DOUBLE = np.dtype("float64")


@dataclass(frozen=True)
class Value:
    """Values of float64, or bools, in the file, with the operators of NumPy's arrays; each appends a node."""

    w: Writer
    name: str

    def _by(self, op_type: str, first: Operand, second: Operand, dtype: DType | None = None) -> Value:
        return Value(self.w, self.w.add(op_type, *[_named(self.w, each) for each in (first, second)], dtype=dtype))

    def __add__(self, other: Operand) -> Value:
        return self._by("Add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self._by("Add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return self._by("Sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self._by("Sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self._by("Mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self._by("Mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self._by("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self._by("Div", other, self)

    def __neg__(self) -> Value:
        return Value(self.w, self.w.add("Neg", self.name))

    def __pow__(self, other: int) -> Value:
        return self._by("Pow", self, other)

    def __lt__(self, other: Operand) -> Value:
        return self._by("Less", self, other, BOOL)

    def __gt__(self, other: Operand) -> Value:
        return self._by("Greater", self, other, BOOL)

    def __ge__(self, other: Operand) -> Value:
        return self._by("GreaterOrEqual", self, other, BOOL)

    def __and__(self, other: Operand) -> Value:
        return self._by("And", self, other)

    def __or__(self, other: Operand) -> Value:
        return self._by("Or", self, other)

    def __invert__(self) -> Value:
        return Value(self.w, self.w.negate(self.name))

    def equals(self, other: Operand) -> Value:
        """Compare elementwise; ``==`` is that of the object."""
        return self._by("Equal", self, other, BOOL)

    def is_infinite(self) -> Value:
        """Test for infinities."""
        return Value(self.w, self.w.add("IsInf", self.name, dtype=BOOL))


def _named(w: Writer, value: Operand) -> str:
    return value.name if isinstance(value, Value) else w.constant(np.array(value, _DOUBLE))


class Functions:
    """NumPy's functions of `Value`, by NumPy's names."""

    nan = math.nan

    def __init__(self, w: Writer) -> None:
        self._w = w

    def _of(self, op_type: str, x: Value) -> Value:
        return Value(self._w, self._w.add(op_type, x.name))

    def log(self, x: Value) -> Value:
        """Append the logarithm."""
        return self._of("Log", x)

    def exp(self, x: Value) -> Value:
        """Append the exponential function."""
        return self._of("Exp", x)

    def sqrt(self, x: Value) -> Value:
        """Append the square root."""
        return self._of("Sqrt", x)

    def absolute(self, x: Value) -> Value:
        """Append the absolute value."""
        return self._of("Abs", x)

    def expm1(self, x: Value) -> Value:
        """Append ``exp(x) - 1``, exact to 1e-16."""
        return self.exp(x) - 1.0

    def log1p(self, x: Value) -> Value:
        """Append ``log(1 + x)``, exact to 1e-16."""
        return self.log(x + 1.0)

    def maximum(self, x: Value, y: float) -> Value:
        """Append the larger of two values."""
        return Value(self._w, self._w.add("Max", x.name, _named(self._w, y)))

    def where(self, condition: Value, x: Operand, y: Operand) -> Value:
        """Append a choice."""
        return Value(self._w, self._w.where(condition.name, _named(self._w, x), _named(self._w, y)))


@exports("log_gamma")
def _log_gamma(w: Writer, node: Operation, x: str) -> str:
    found = log_gamma_values(Functions(w), op_of(node, LogGamma).order, Value(w, w.cast(x, _DOUBLE)))
    return w.cast(found.name, w.dtypes[x])


@exports("gamma_inc")
def _gamma_inc(w: Writer, node: Operation, a: str, x: str) -> str:
    """Compute all ranges, and choose; see `gammainc_values`."""
    if op_of(node, GammaInc).order:
        raise ValueError("derivatives of gammainc by its first argument have no operators in ONNX")
    xp, one, two = Functions(w), Value(w, w.cast(a, _DOUBLE)), Value(w, w.cast(x, _DOUBLE))
    infinite, endless = one.is_infinite(), two.is_infinite()
    none, nothing = one.equals(0.0), two.equals(0.0)
    inside = (one > 0.0) & (two > 0.0) & ~infinite & ~endless
    shape, limit = xp.where(inside, one, 1.0), xp.where(inside, two, 1.0)
    leading = leading_factor(xp, shape, limit)
    above = limit > Value(w, w.add("Max", shape.name, _named(w, SMALL)))
    far = xp.where(above, 1.0 - _tail(xp, shape, limit, leading, 1), _tail(xp, shape, limit, leading, -1))
    near = (shape < SMALL) & ~above
    rank = None if node.outputs[0].shape is None else len(node.outputs[0].shape)
    value = xp.where(near, _series(xp, shape, limit, leading, rank), far)
    known = (one >= 0.0) & (two >= 0.0) & ~(one.equals(two) & (none | infinite))
    found = xp.where(inside, value, xp.nan)
    found = xp.where(known & (infinite | nothing), 0.0, found)
    found = xp.where(known & (endless | none), 1.0, found)
    return w.cast(found.name, w.dtypes[a])


def _tail(xp: Functions, a: Value, x: Value, leading: Value, sign: int) -> Value:
    """Return the integral above `x` (`sign` 1) or below it (-1), with an axis for the places of the quadrature."""
    w = a.w
    length = tail_length(xp, a, x, sign)
    wide = [Value(w, w.unsqueeze(each.name, -1)) for each in (length, a, x)]
    places, weights = (np.array(each, _DOUBLE) for each in quadrature())
    s = wide[0] * places
    values = xp.exp(float(sign) * wide[1] * s - wide[2] * xp.expm1(float(sign) * s)) * weights
    return leading * length * Value(w, w.add("ReduceSum", values.name, w.ints(-1), keepdims=0))


def _series(xp: Functions, a: Value, x: Value, leading: Value, rank: int | None) -> Value:
    """Return the sum of the power series, in a `Loop`."""
    w = a.w
    first = leading / a

    def body(iteration: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
        term, total = (Value(w, each) for each in states)
        above = a + (Value(w, w.cast(iteration, _DOUBLE)) + 1.0)
        return [(term * x / above).name, (total + term).name], []

    shape = None if rank is None else [None] * rank
    trips = w.constant(np.array(TERMS, LONG))
    found = w.repeat(trips, [first.name, (first * 0.0).name], body, lambda name: w.info(name, shape))
    return Value(w, found[1])
