"""Rules of arithmetic: what adds nothing, what cancels, and what a cheaper operation gives.

Exact rules keep every bit: signs of zeros, infinities, integers that wrap around. (Of a NaN it is kept that it is one.)
So ``x + 0.0`` stays, which makes 0.0 of -0.0, and ``x * 0.0``, which is NaN for infinities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.dtypes import DType
from ..graph.op import Op, as_scalar_or_array
from ..graph.tensor import Symbol
from ..ops.base import Cast, Constant
from ..ops.bitwise import BitwiseAnd, BitwiseOr, LogicalNot
from ..ops.comparison import Maximum, Minimum, Where
from ..ops.elementwise import (
    Absolute,
    Add,
    Divide,
    Identity,
    Multiply,
    Negative,
    StopGradient,
    Subtract,
)
from ..ops.mathematics import Power
from ..ops.run_time_shapes import BroadcastToShape, ZerosOfShape
from .rules import Rewrite, Rule, Site, constant_of, every, keeps_shape, produced_by, shape_of

_MOST_FACTORS = 4  # of a power that is written as products


def _passed_on(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    return inputs[0]


def _without_neutral(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """``x + 0`` and ``x * 1``, on either side."""
    is_neutral = _adds_nothing if isinstance(op, Add) else _is_one
    for kept, other in ((0, 1), (1, 0)):
        value = constant_of(inputs[other], site)
        if value is not None and is_neutral(value) and keeps_shape(inputs[kept], value):
            return inputs[kept]
    return None


def _adds_nothing(value: Any) -> bool:
    """Of floats only -0.0 does: 0.0 + -0.0 is 0.0."""
    if not every(value, 0):
        return False
    return value.dtype.kind in "biu" or (value.dtype.kind == "f" and bool(np.all(np.signbit(value))))


def _is_one(value: Any) -> bool:
    return every(value, 1) and value.dtype.kind in "biuf"


def _subtract_zero(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """``x - 0``; of floats -0.0 stays, for -0.0 - -0.0 is 0.0."""
    value = constant_of(inputs[1], site)
    if value is None or not every(value, 0) or value.dtype.kind not in "iuf" or not keeps_shape(inputs[0], value):
        return None
    if value.dtype.kind == "f" and np.any(np.signbit(value)):
        return None
    return inputs[0]


def _times_zero(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """``x * 0`` of integers and bools, which have no NaN and no infinity."""
    if inputs[0].dtype.kind not in "biu":
        return None
    shape = shape_of(inputs[0]), shape_of(inputs[1])
    if shape[0] is None or shape[1] is None:
        return None
    for kept, other in ((0, 1), (1, 0)):
        value = constant_of(inputs[other], site)
        if value is not None and not np.any(value) and keeps_shape(inputs[kept], value):
            return _zeros(shape[kept] or (), inputs[0].dtype, site)
    return None


def _zeros(shape: tuple[int, ...], dtype: DType, site: Site) -> Symbol:
    if not shape:
        return site.make(Constant(dtype.type(0)))
    return site.make(ZerosOfShape(shape, dtype), site.make(Constant(np.array(shape, "int32"))))


def _divide_by_power_of_two(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """``x / c`` is ``x * (1 / c)`` where 1 / c is no rounded number."""
    value = constant_of(inputs[1], site)
    if value is None or value.dtype.kind != "f" or not _has_exact_inverse(value):
        return None
    if np.all(value == 1):
        return inputs[0] if keeps_shape(inputs[0], value) else None
    return site.make(Multiply(), inputs[0], site.make(Constant(as_scalar_or_array(1 / value))))


def _has_exact_inverse(value: Any) -> bool:
    if not np.all(np.isfinite(value)) or not np.all(value):
        return False
    fractions, exponents = np.frexp(value)
    limit = -np.finfo(value.dtype).minexp  # beyond it the inverse is no normal number
    return bool(np.all(np.abs(fractions) == 0.5) and np.all(np.abs(exponents) < limit))


def _undone_twice(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """``-(-x)``, ``not not x``."""
    same: type[Op] = type(op)  # pyright: ignore[reportUnknownVariableType]
    return inputs[0].operation.inputs[0] if produced_by(inputs[0], same) else None


def _absolute_of_sign(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """``abs(-x)``, ``abs(abs(x))``."""
    (x,) = inputs
    if produced_by(x, Absolute):
        return x
    return site.make(Absolute(), x.operation.inputs[0]) if produced_by(x, Negative) else None


def _subtract_negative(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """``x - (-y)`` is ``x + y``."""
    x, y = inputs
    return site.make(Add(), x, y.operation.inputs[0]) if produced_by(y, Negative) else None


def _product_of_negatives(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    if not all(produced_by(tensor, Negative) for tensor in inputs):
        return None
    return site.make(Multiply(), *[tensor.operation.inputs[0] for tensor in inputs])


def _of_itself(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """``max(x, x)``, ``x & x``."""
    return inputs[0] if inputs[0] is inputs[1] else None


def _known_choice(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """``where`` of a constant condition, or of two equal values."""
    condition, x, y = inputs
    value = constant_of(condition, site)
    if x is y:
        chosen = x
    elif value is not None and np.size(value) and (np.all(value) or not np.any(value)):
        chosen = x if np.all(value) else y
    else:
        return None
    spec = op.infer(condition.spec, x.spec, y.spec)
    if spec.shape is None or None in spec.shape:
        return None
    if chosen.shape == spec.shape:
        return chosen
    return site.make(BroadcastToShape(spec.shape), chosen, site.make(Constant(np.array(spec.shape, "int32"))))


def _integer_power(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """``x ** 3`` is ``x * x * x``, which wraps around in the same way."""
    return _power(inputs, site) if inputs[0].dtype.kind in "iu" else None


def _float_power(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """``x ** 3`` is ``x * x * x``, and ``x ** -1`` is ``1 / x``, but for rounding."""
    x, exponent = inputs
    if x.dtype.kind != "f":
        return None
    value = constant_of(exponent, site)
    if value is not None and np.shape(value) == () and value == -1:
        return site.make(Divide(), site.make(Constant(x.dtype.type(1))), x)
    return _power(inputs, site)


def _power(inputs: Sequence[Symbol], site: Site) -> Rewrite:
    value = constant_of(inputs[1], site)
    if value is None or np.shape(value) != () or value not in range(1, _MOST_FACTORS + 1):
        return None
    return _product(inputs[0], int(value), site)


def _product(x: Symbol, factors: int, site: Site) -> Symbol:
    if factors == 1:
        return x
    half = _product(x, factors // 2, site)
    square = site.make(Multiply(), half, half)
    return site.make(Multiply(), square, x) if factors % 2 else square


def _cast_of_cast(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """A cast of what a cast made wider starts from what that took."""
    inner = produced_by(inputs[0], Cast)
    if inner is None:
        return None
    source = inputs[0].operation.inputs[0]
    if not _is_wider(source.dtype, inner.dtype) or not _goes_directly(source.dtype, inner.dtype, op.dtype):
        return None
    return source if source.dtype == op.dtype else site.make(Cast(op.dtype), source)


def _is_wider(source: DType, wide: DType) -> bool:
    """Whether the wider dtype holds each value of the source exactly."""
    if source.kind not in "biuf" or wide.kind not in "biuf":
        return False
    if source.kind in "iu" and wide.kind == "f":
        return np.iinfo(source).bits <= np.finfo(wide).nmant
    return bool(np.can_cast(source, wide, "safe"))


def _goes_directly(source: DType, wide: DType, target: DType) -> bool:
    """Whether the cast from the source gives what the one from the wider dtype does.

    Integers that don't fit wrap around, while what floats do that don't fit is up to the machine.
    """
    if target.kind not in "biuf":
        return False
    return target == source or target.kind in "bf" or (wide.kind in "biu" and source.kind in "biu")


RULES = (
    Rule("what passes values on is its input", (Identity, StopGradient), _passed_on),
    Rule("x + 0, x * 1", (Add, Multiply), _without_neutral, (Constant,)),
    Rule("x - 0", (Subtract,), _subtract_zero, (Constant,)),
    Rule("x * 0 of integers", (Multiply,), _times_zero, (Constant,)),
    Rule("x / c as x * (1 / c), for powers of two", (Divide,), _divide_by_power_of_two, (Constant,)),
    Rule("-(-x), not not x", (Negative, LogicalNot), _undone_twice, (Negative, LogicalNot)),
    Rule("abs(-x), abs(abs(x))", (Absolute,), _absolute_of_sign, (Absolute, Negative)),
    Rule("x - (-y) as x + y", (Subtract,), _subtract_negative, (Negative,)),
    Rule("-x * -y as x * y", (Multiply,), _product_of_negatives, (Negative,)),
    Rule("max(x, x), x & x", (BitwiseAnd, BitwiseOr, Maximum, Minimum), _of_itself),
    Rule("where with a known choice", (Where,), _known_choice),
    Rule("small powers of integers as products", (Power,), _integer_power, (Constant,)),
    Rule("small powers of floats as products", (Power,), _float_power, (Constant,), is_exact=False),
    Rule("cast of a widening cast", (Cast,), _cast_of_cast, (Cast,)),
)
