"""Elementwise arithmetic, comparisons and functions."""

from __future__ import annotations

import math

import numpy as np

from ....engine.common import dtypes
from ....engine.graph.graph import Operation
from .mathematics.fourier import Complex, cast_parts
from .registry import attribute, exports
from .writer import BOOL, FLOAT, INT, Writer

# Ops that are one operator of ONNX, with the same meaning.
_SAME = {
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "erf": "Erf",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "log": "Log",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "arcsin": "Asin",
    "arccos": "Acos",
    "arctan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "tanh": "Tanh",
    "arcsinh": "Asinh",
    "arccosh": "Acosh",
    "arctanh": "Atanh",
    "logical_not": "Not",
}
_COMPARISONS = {"less": "Less", "less_equal": "LessOrEqual", "greater": "Greater", "greater_equal": "GreaterOrEqual"}
_ROUNDINGS = {"floor": "Floor", "ceil": "Ceil", "round": "Round"}


def _is_float(w: Writer, x: str) -> bool:
    return dtypes.is_floating(w.dtypes[x])


def _is_unsigned(w: Writer, x: str) -> bool:
    return w.dtypes[x].kind in "ub"


@exports(*_SAME)
def _same(w: Writer, node: Operation, *inputs: str) -> str:
    return w.add(_SAME[node.type], *inputs)


@exports(*_COMPARISONS)
def _compared(w: Writer, node: Operation, x: str, y: str) -> str:
    if w.dtypes[x] == BOOL:
        x, y = w.cast(x, INT), w.cast(y, INT)
    return w.compare(_COMPARISONS[node.type], x, y)


@exports("equal")
def _equal(w: Writer, node: Operation, x: str, y: str) -> str:
    if dtypes.is_string(w.dtypes[x]) and w.opset < 19:
        raise ValueError("texts are compared from opset 19 on")
    return w.compare("Equal", x, y)


@exports("not_equal")
def _not_equal(w: Writer, node: Operation, x: str, y: str) -> str:
    return w.negate(_equal(w, node, x, y))


@exports("add")
def _add(w: Writer, node: Operation, x: str, y: str) -> str:
    if dtypes.is_string(w.dtypes[x]):
        if w.opset < 20:
            raise ValueError("texts are joined from opset 20 on")
        return w.add("StringConcat", x, y)
    if w.dtypes[x] == BOOL:
        return w.add("Or", x, y)
    if w.dtypes[x] == FLOAT and (_is_of_integers(w, x) or _is_of_integers(w, y)):
        return w.add("Sum", x, y)
    return w.add("Add", x, y)


def _is_of_integers(w: Writer, name: str) -> bool:
    """Test whether a value is a product by a matrix that comes from integers.

    onnxruntime makes a `Gemm` of that and an `Add`, and multiplies floats then.
    """
    product = w.producer_of(name, "MatMul")
    return product is not None and w.producer_of(product.input[1], "DequantizeLinear") is not None


@exports("identity", "stop_gradient", "check_numerics", "not_empty", "of_length", "after")
def _identity(w: Writer, node: Operation, x: str, *_: object) -> str:
    return x


@exports("negative")
def _negative(w: Writer, node: Operation, x: str) -> str:
    return w.add("Sub", w.like(0, x), x) if _is_unsigned(w, x) else w.add("Neg", x)


@exports("absolute", "sign")
def _absolute(w: Writer, node: Operation, x: str) -> str:
    if w.dtypes[x] == BOOL:
        return x
    if node.type == "sign":
        sign = w.add("Sign", x)  # of NaN, onnxruntime's is 0
        return w.where(w.add("IsNaN", x, dtype=BOOL), x, sign) if _is_float(w, x) else sign
    return w.add("Abs", x)


@exports("cast")
def _cast(w: Writer, node: Operation, x: str) -> str | Complex:
    if node.outputs[0].dtype.kind == "c":
        return cast_parts(w, node, x)
    return w.cast(x, attribute(node, "dtype", np.dtype))


# --- division -------------------------------------------------------------------------------------------------------


def _divisor(w: Writer, y: str) -> tuple[str, str | None]:
    """Return a divisor of integers without zeros, by which runtimes would end the process; and where it was zero."""
    known = w.known(y)
    if known is not None and np.all(known != 0):
        return y, None
    zero = w.compare("Equal", y, w.like(0, y))
    return w.where(zero, w.like(1, y), y), zero


def _float_remainder(w: Writer, x: str, y: str) -> str:
    """Compute ``x % y`` as Python has it: of the divisor's sign."""
    rest = w.add("Mod", x, y, fmod=1)
    zero = w.like(0, x)
    other = w.compare("Less", w.add("Mul", w.add("Sign", rest), w.add("Sign", y)), zero)
    return w.where(other, w.add("Add", rest, y), rest)


@exports("mod")
def _mod(w: Writer, node: Operation, x: str, y: str) -> str:
    if _is_float(w, x):
        return _float_remainder(w, x, y)
    divisor, zero = _divisor(w, y)
    rest = w.add("Mod", x, divisor)
    return rest if zero is None else w.where(zero, w.like(0, x), rest)


@exports("fmod")
def _fmod(w: Writer, node: Operation, x: str, y: str) -> str:
    if _is_float(w, x):
        return w.add("Mod", x, y, fmod=1)
    divisor, zero = _divisor(w, y)
    rest = w.add("Mod", x, divisor, fmod=1)
    return rest if zero is None else w.where(zero, w.like(0, x), rest)


@exports("floor_divide")
def _floor_divide(w: Writer, node: Operation, x: str, y: str) -> str:
    if _is_float(w, x):
        quotient = w.add("Div", w.add("Sub", x, _float_remainder(w, x, y)), y)
        return w.where(w.compare("Equal", y, w.like(0, y)), w.add("Div", x, y), w.add("Round", quotient))
    divisor, zero = _divisor(w, y)
    quotient = w.add("Div", w.add("Sub", x, w.add("Mod", x, divisor)), divisor)
    return quotient if zero is None else w.where(zero, w.like(0, x), quotient)


# --- bits -----------------------------------------------------------------------------------------------------------

_BITS = {"bitwise_and": ("And", "BitwiseAnd"), "bitwise_or": ("Or", "BitwiseOr"), "bitwise_xor": ("Xor", "BitwiseXor")}


@exports(*_BITS)
def _bitwise(w: Writer, node: Operation, x: str, y: str) -> str:
    of_bools, of_ints = _BITS[node.type]
    return w.add(of_bools if w.dtypes[x] == BOOL else of_ints, x, y)


@exports("bitwise_not")
def _bitwise_not(w: Writer, node: Operation, x: str) -> str:
    return w.add("BitwiseNot", x)


@exports("left_shift", "right_shift")
def _shift(w: Writer, node: Operation, x: str, y: str) -> str:
    """Shift as ONNX does, unsigned numbers only; of negative ones the inverted bits are shifted to the right."""
    dtype = w.dtypes[x]
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    bits = w.like(8 * dtype.itemsize, y)
    too_far = w.compare("GreaterOrEqual", y, bits)
    count = w.cast(w.where(too_far, w.like(0, y), y), unsigned)
    left = node.type == "left_shift"
    flipped = None if left or dtype.kind == "u" else w.compare("Less", x, w.like(0, x))
    value = x if flipped is None else w.where(flipped, w.add("BitwiseNot", x), x)
    shifted = w.add("BitShift", w.cast(value, unsigned), count, direction="LEFT" if left else "RIGHT")
    shifted = w.where(too_far, w.constant(np.zeros((), unsigned)), shifted)
    result = w.cast(shifted, dtype)
    return result if flipped is None else w.where(flipped, w.add("BitwiseNot", result), result)


# --- selection ------------------------------------------------------------------------------------------------------


@exports("where")
def _where(w: Writer, node: Operation, condition: str, x: str, y: str) -> str:
    return w.where(w.cast(condition, BOOL), x, y)


@exports("maximum", "minimum")
def _extremum(w: Writer, node: Operation, x: str, y: str) -> str:
    if w.dtypes[x] == BOOL:
        return w.add("Or" if node.type == "maximum" else "And", x, y)
    return w.add("Max" if node.type == "maximum" else "Min", x, y)


@exports("relu")
def _relu(w: Writer, node: Operation, x: str) -> str:
    return w.add("Max", x, w.like(0, x)) if w.dtypes[x].kind in "iub" else w.add("Relu", x)


@exports("relu_grad")
def _relu_grad(w: Writer, node: Operation, dy: str, y: str) -> str:
    return w.where(w.compare("Greater", y, w.like(0, y)), dy, w.like(0, dy))


@exports("isnan", "isinf", "isfinite")
def _classified(w: Writer, node: Operation, x: str) -> str:
    if not _is_float(w, x):
        always = w.constant(node.type == "isfinite")
        return w.expand(always, w.shape(x))
    if node.type != "isfinite":
        return w.add("IsNaN" if node.type == "isnan" else "IsInf", x, dtype=BOOL)
    return w.negate(w.add("Or", w.add("IsNaN", x, dtype=BOOL), w.add("IsInf", x, dtype=BOOL)))


# --- functions that are put together --------------------------------------------------------------------------------


@exports(*_ROUNDINGS)
def _rounded(w: Writer, node: Operation, x: str) -> str:
    return w.add(_ROUNDINGS[node.type], x) if _is_float(w, x) else x


@exports("trunc")
def _trunc(w: Writer, node: Operation, x: str) -> str:
    if not _is_float(w, x):
        return x
    return w.where(w.compare("Less", x, w.like(0, x)), w.add("Ceil", x), w.add("Floor", x))


@exports("power")
def _power(w: Writer, node: Operation, x: str, y: str) -> str:
    return w.add("Pow", x, y)


@exports("rsqrt")
def _rsqrt(w: Writer, node: Operation, x: str) -> str:
    return w.add("Reciprocal", w.add("Sqrt", x))


@exports("exp2")
def _exp2(w: Writer, node: Operation, x: str) -> str:
    return w.add("Pow", w.like(2, x), x)


@exports("log2", "log10")
def _log_of_base(w: Writer, node: Operation, x: str) -> str:
    return w.add("Div", w.add("Log", x), w.like(math.log(2 if node.type == "log2" else 10), x))


@exports("expm1")
def _expm1(w: Writer, node: Operation, x: str) -> str:
    """Compute ``2 * sinh(x / 2) * exp(x / 2)``, which is exact near 0; below -50 it is -1."""
    half = w.add("Mul", w.where(w.compare("Less", x, w.like(-50, x)), w.like(-50, x), x), w.like(0.5, x))
    return w.add("Mul", w.add("Mul", w.add("Sinh", half), w.like(2, x)), w.add("Exp", half))


def log1p(w: Writer, x: str) -> str:
    """Compute ``log(1 + x)``, with what the sum rounds off made up for."""
    one = w.like(1, x)
    total = w.add("Add", x, one)
    rest = w.add("Sub", total, one)
    log = w.add("Log", total)
    scaled = w.add("Div", w.add("Mul", log, x), rest)
    near = w.where(w.compare("Equal", rest, w.like(0, x)), x, scaled)
    return w.where(w.compare("Equal", rest, x), log, near)


@exports("log1p")
def _log1p(w: Writer, node: Operation, x: str) -> str:
    return log1p(w, x)


@exports("logaddexp", "logaddexp2")
def _logaddexp(w: Writer, node: Operation, x: str, y: str) -> str:
    base = 1.0 if node.type == "logaddexp" else math.log(2)
    gap = w.add("Neg", w.add("Abs", w.add("Sub", x, y)))
    scaled = gap if base == 1 else w.add("Mul", gap, w.like(base, x))
    more = log1p(w, w.add("Exp", scaled))
    more = more if base == 1 else w.add("Div", more, w.like(base, x))
    equal = w.compare("Equal", x, y)  # of two infinities the difference is NaN
    more = w.where(equal, w.like(math.log(2) / base, x), more)
    return w.add("Add", w.add("Max", x, y), more)


@exports("hypot")
def _hypot(w: Writer, node: Operation, x: str, y: str) -> str:
    a, b = w.add("Abs", x), w.add("Abs", y)
    large, small = w.add("Max", a, b), w.add("Min", a, b)
    ratio = w.add("Div", small, large)
    plain = w.compare("Equal", small, w.like(0, x))
    root = w.add("Sqrt", w.add("Add", w.add("Mul", ratio, ratio), w.like(1, x)))
    length = w.where(plain, large, w.add("Mul", large, root))
    infinite = w.add("Or", w.add("IsInf", a, dtype=BOOL), w.add("IsInf", b, dtype=BOOL))
    return w.where(infinite, w.like(math.inf, x), length)


@exports("arctan2")
def _arctan2(w: Writer, node: Operation, y: str, x: str) -> str:
    zero, pi = w.like(0, x), w.like(math.pi, x)
    down = _signbit_of(w, y)
    half_turn = w.where(down, w.add("Neg", pi), pi)
    ratio = w.add("Div", y, x)
    both_infinite = w.add("And", w.add("IsInf", x, dtype=BOOL), w.add("IsInf", y, dtype=BOOL))
    unit = w.add("Mul", w.add("Sign", y), w.add("Sign", x))
    ratio = w.where(both_infinite, unit, ratio)
    angle = w.add("Atan", ratio)
    angle = w.where(w.compare("Less", x, zero), w.add("Add", angle, half_turn), angle)
    y_zero = w.compare("Equal", y, zero)
    flat = w.where(_signbit_of(w, x), half_turn, w.where(down, w.like(-0.0, x), zero))
    at_origin = w.add("And", y_zero, w.compare("Equal", x, zero))
    return w.where(at_origin, flat, angle)


def _signbit_of(w: Writer, x: str) -> str:
    negative = w.compare("Less", x, w.like(0, x))
    if not _is_float(w, x):
        return negative
    return w.add("Or", negative, w.compare("Less", w.add("Reciprocal", x), w.like(0, x)))


@exports("signbit")
def _signbit(w: Writer, node: Operation, x: str) -> str:
    return _signbit_of(w, x)


@exports("cbrt")
def _cbrt(w: Writer, node: Operation, x: str) -> str:
    root = w.add("Mul", w.add("Sign", x), w.add("Pow", w.add("Abs", x), w.like(1 / 3, x)))
    return w.where(w.add("IsNaN", x, dtype=BOOL), x, root)


@exports("ldexp")
def _ldexp(w: Writer, node: Operation, x: str, n: str) -> str:
    """Multiply by a power of 2 in two steps, as the power alone may overflow where the product does not."""
    power = w.cast(n, w.dtypes[x])
    half = w.add("Floor", w.add("Mul", power, w.like(0.5, x)))
    two = w.like(2, x)
    first = w.add("Mul", x, w.add("Pow", two, half))
    return w.add("Mul", first, w.add("Pow", two, w.add("Sub", power, half)))


@exports("erfc")
def _erfc(w: Writer, node: Operation, x: str) -> str:
    """Compute ``1 - erf(x)``, and where that cancels a continued product (Numerical Recipes, 6.2, erfcc: 1.2e-7)."""
    a = w.add("Abs", x)
    t = w.add("Reciprocal", w.add("Add", w.add("Mul", a, w.like(0.5, x)), w.like(1, x)))
    total = w.like(_ERFC[-1], x)
    for factor in reversed(_ERFC[:-1]):
        total = w.add("Add", w.add("Mul", total, t), w.like(factor, x))
    far = w.add("Mul", t, w.add("Exp", w.add("Sub", total, w.add("Mul", a, a))))
    near = w.add("Sub", w.like(1, x), w.add("Erf", x))
    return w.where(w.compare("Greater", x, w.like(0.5, x)), far, near)


_ERFC = [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277]  # fmt: skip  # noqa: E501


@exports("assert_true", "assert_relation", "assert_shape", "print", "no_op")
def _not_written(w: Writer, node: Operation, *inputs: str) -> list[str]:
    """Leave out what only checks or prints, as the optimizers of runtimes do."""
    return []
