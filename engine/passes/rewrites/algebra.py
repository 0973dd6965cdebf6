"""Rules of arithmetic: what adds nothing, what cancels, and what a cheaper operation gives.

Exact rules keep every bit: signs of zeros, infinities, integers that wrap around. (Of a NaN it is kept that it is one.)
So ``x + 0.0`` stays, which makes 0.0 of -0.0, and ``x * 0.0``, which is NaN for infinities.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...graph.graph import Operation
from ...graph.op import as_scalar_or_array
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.shaping import BroadcastTo
from ...ops.base import Cast, Constant
from ...ops.math.bitwise import BitwiseAnd, BitwiseOr, LogicalNot
from ...ops.math.comparison import Equal, Maximum, Minimum, Where
from ...ops.math.elementwise import (
    Absolute,
    Add,
    Divide,
    Identity,
    Multiply,
    Negative,
    StopGradient,
    Subtract,
)
from ...ops.math.mathematics import Power, Sqrt
from ...ops.math.reduced import BroadcastReduced, Reduction, Sum
from ...ops.math.reduction import Max, Mean, Min, Prod
from ...ops.run_time_shapes import BroadcastToShape, ZerosOfShape
from ..framework.patterns import ANY, Match, constant, op, tensor
from ..framework.rules import Rewrite, Rule, Site, every, keeps_shape, making, shape_of

_MOST_FACTORS = 4  # of a power that is written as products


def _input(match: Match, site: Site) -> Symbol:
    """Return the tensor that the pattern calls x."""
    return match["x"]


# --- neutral elements and zeros -------------------------------------------------------------------------------------


def _without_constant(match: Match, site: Site) -> Rewrite:
    return match["x"] if keeps_shape(match["x"], match["c"]) else None


def _without_repeated(match: Match, site: Site) -> Rewrite:
    shape = shape_of(match["x"])
    return match["x"] if shape is not None and match["repeated"].outputs[0].shape == shape else None


def _adds_nothing(value: Any) -> bool:
    """Test whether adding `value` changes nothing.

    The only such float is -0.0, since 0.0 + -0.0 is 0.0 and -0.0 + 0.0 is 0.0.
    """
    is_signed = value.dtype.kind == "f" and bool(np.all(np.signbit(value)))
    return every(value, 0) and (value.dtype.kind in "biu" or is_signed)


def _subtracts_nothing(value: Any) -> bool:
    """Test whether subtracting `value` changes nothing.

    The float -0.0 is not such a value, since -0.0 - -0.0 is 0.0.
    """
    is_signed = value.dtype.kind == "f" and bool(np.any(np.signbit(value)))
    return every(value, 0) and value.dtype.kind in "iuf" and not is_signed


def _is_one(value: Any) -> bool:
    return every(value, 1) and value.dtype.kind in "biuf"


def _is_exact_zero(value: Any) -> bool:
    """Test whether a value is a zero of integers or bools, which have no NaN and no infinity."""
    return value.dtype.kind in "biu" and not np.any(value)


def _no_product(match: Match, site: Site) -> Rewrite:
    x = match["x"]
    shape = shape_of(x)
    return _zeros(shape, x.dtype, site) if shape is not None and keeps_shape(x, match["c"]) else None


def _zeros(shape: tuple[int, ...], dtype: DType, site: Site) -> Symbol:
    if not shape:
        return site.make(Constant(dtype.type(0)))
    return site.make(ZerosOfShape(shape, dtype), site.make(Constant(np.array(shape, "int32"))))


# --- quotients and powers -------------------------------------------------------------------------------------------


def _times_inverse(match: Match, site: Site) -> Rewrite:
    return site.make(Multiply(), match["x"], site.make(Constant(as_scalar_or_array(1 / match["c"]))))


def _has_exact_inverse(value: Any) -> bool:
    if value.dtype.kind != "f" or not np.all(np.isfinite(value)) or not np.all(value):
        return False
    fractions, exponents = np.frexp(value)
    limit = -np.finfo(value.dtype).minexp  # beyond it the inverse is no normal number
    return bool(np.all(np.abs(fractions) == 0.5) and np.all(np.abs(exponents) < limit))


def _power(match: Match, site: Site) -> Symbol:
    return _product(match["x"], int(match["c"]), site)


def _product(x: Symbol, factors: int, site: Site) -> Symbol:
    if factors == 1:
        return x
    half = _product(x, factors // 2, site)
    square = site.make(Multiply(), half, half)
    return site.make(Multiply(), square, x) if factors % 2 else square


def _inverse(match: Match, site: Site) -> Symbol:
    return site.make(Divide(), site.make(Constant(match["x"].dtype.type(1))), match["x"])


def _by_roots(match: Match, site: Site) -> Symbol:
    x, exponent = match["x"], float(match["c"])
    factors = abs(exponent)

    def number(value: float) -> Symbol:
        return site.make(Constant(x.dtype.type(value)))

    if factors.is_integer():
        found = _product(x, int(factors), site)
    else:  # the power of -inf is inf, and that of -0.0 is 0.0: the root of -inf is NaN, and that of -0.0 is -0.0
        x = site.make(Where(), site.make(Equal(), x, number(-math.inf)), number(math.inf), x)
        x = site.make(Add(), x, number(0.0))
        found = site.make(Sqrt(), x)
        if factors > 1:
            found = site.make(Multiply(), _product(x, int(factors), site), found)
    return found if exponent > 0 else site.make(Divide(), number(1.0), found)


def _is_half_number(value: Any) -> bool:
    return np.shape(value) == () and 0 < abs(value) <= _MOST_FACTORS and float(2 * value).is_integer()


# --- choices and casts ----------------------------------------------------------------------------------------------


def _is_one_choice(condition: Any) -> bool:
    return bool(np.size(condition)) and bool(np.all(condition) or not np.any(condition))


def _known_choice(match: Match, site: Site) -> Rewrite:
    """Rewrite ``where`` of a constant condition, or of two equal values, to the value it takes."""
    where: Operation = match["where"]
    chosen = match["x"] if np.all(match.get("condition", True)) else match["y"]
    spec = where.op.infer(*[tensor.spec for tensor in where.inputs])
    if not isinstance(spec, TensorSpec) or spec.shape is None or None in spec.shape:
        return None
    if chosen.shape == spec.shape:
        return chosen
    return site.make(BroadcastToShape(spec.shape), chosen, site.make(Constant(np.array(spec.shape, "int32"))))


def _cast_of_cast(match: Match, site: Site) -> Rewrite:
    """Rewrite a cast of what a cast made wider to a cast of what that took."""
    source, wide, target = match["x"], match["inner"].op.dtype, match["cast"].op.dtype
    if not _is_wider(source.dtype, wide) or not _goes_directly(source.dtype, wide, target):
        return None
    return source if source.dtype == target else site.make(Cast(target), source)


def _reduces_nothing(operation: Operation) -> bool:
    """Test whether a reduction is over no axis, such as one of a scalar; a sum of -0.0 is 0.0, though."""
    op, dtype = op_of(operation, Reduction), operation.inputs[0].dtype
    return op.axes == () and op.output_dtype(dtype) == dtype and getattr(op, "initial", None) is None


def _is_wider(source: DType, wide: DType) -> bool:
    """Test whether the wider dtype holds each value of the source exactly."""
    if source.kind not in "biuf" or wide.kind not in "biuf":
        return False
    if source.kind in "iu" and wide.kind == "f":
        return np.iinfo(source).bits <= np.finfo(wide).nmant
    return bool(np.can_cast(source, wide, "safe"))


def _goes_directly(source: DType, wide: DType, target: DType) -> bool:
    """Test whether the cast from the source gives the result of the cast from the wider dtype.

    Integers that don't fit wrap around, while what floats do that don't fit is up to the machine.
    """
    if target.kind not in "biuf":
        return False
    return target == source or target.kind in "bf" or (wide.kind in "biu" and source.kind in "biu")


_x, _y = tensor("x"), tensor("y")
_integer, _float = (tensor("x", lambda x, kinds=kinds: x.dtype.kind in kinds) for kinds in ("iu", "f"))
_precise = tensor("x", lambda x: x.dtype in (dtypes.float32, dtypes.float64))  # others are rounded after each step
_signed = tensor("x", lambda x: x.dtype.kind != "u")  # the -x of an unsigned x wraps around
_minus_x, _minus_y = op(Negative, of=[_x]), op(Negative, of=[_y])
_float_one = constant("c", lambda value: value.dtype.kind == "f" and every(value, 1))
_one, _zero = constant("c", _is_one), constant("c", _is_exact_zero)
_ones = op(BroadcastReduced, BroadcastTo, BroadcastToShape, of=[_one], name="repeated")
_exponent = constant("c", lambda value: np.shape(value) == () and value in range(1, _MOST_FACTORS + 1))
_minus_one = constant("c", lambda value: np.shape(value) == () and value == -1)
_half = constant("c", _is_half_number)
_choice = constant("condition", _is_one_choice)
RULES = (
    Rule("what passes values on is its input", op(Identity, StopGradient, of=[_x]), _input),
    Rule("x + 0", op(Add, of=[_x, constant("c", _adds_nothing)], any_order=True), _without_constant),
    Rule("x * 1", op(Multiply, of=[_x, _one], any_order=True), _without_constant),
    Rule("x * 1, repeated", op(Multiply, of=[_x, _ones], any_order=True), _without_repeated),
    Rule("x - 0", op(Subtract, of=[_x, constant("c", _subtracts_nothing)]), _without_constant),
    Rule("x * 0 of integers", op(Multiply, of=[_x, _zero], any_order=True), _no_product),
    Rule("x / 1", op(Divide, of=[_x, _float_one]), _without_constant),
    Rule("x / c as x * (1 / c)", op(Divide, of=[_x, constant("c", _has_exact_inverse)]), _times_inverse),
    Rule("-(-x)", op(Negative, of=[_minus_x]), _input),
    Rule("not not x", op(LogicalNot, of=[op(LogicalNot, of=[_x])]), _input),
    Rule("abs(abs(x))", op(Absolute, of=[op(Absolute, of=[_x])]), making(Absolute(), "x")),
    Rule("abs(-x)", op(Absolute, of=[op(Negative, of=[_signed])]), making(Absolute(), "x")),
    Rule("x - (-y) as x + y", op(Subtract, of=[_x, _minus_y]), making(Add(), "x", "y")),
    Rule("-x * -y as x * y", op(Multiply, of=[_minus_x, _minus_y]), making(Multiply(), "x", "y")),
    Rule("max(x, x), x & x", op(BitwiseAnd, BitwiseOr, Maximum, Minimum, of=[_x, _x]), _input),
    Rule("where of x and x", op(Where, of=[ANY, _x, _x], name="where"), _known_choice),
    Rule("where with a known choice", op(Where, of=[_choice, _x, _y], name="where"), _known_choice),
    Rule("small powers of integers as products", op(Power, of=[_integer, _exponent]), _power),
    Rule("small powers of floats as products", op(Power, of=[_float, _exponent]), _power, is_exact=False),
    Rule("x ** -1 as 1 / x", op(Power, of=[_float, _minus_one]), _inverse, is_exact=False),
    Rule("powers of floats by roots and quotients", op(Power, of=[_precise, _half]), _by_roots, is_exact=False),
    Rule(
        "reductions over no axis",
        op(Max, Mean, Min, Prod, Sum, of=[_x], where=_reduces_nothing),
        _input,
        is_exact=False,
    ),
    Rule("cast of a widening cast", op(Cast, of=[op(Cast, of=[_x], name="inner")], name="cast"), _cast_of_cast),
)
