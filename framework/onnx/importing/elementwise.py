"""Rules for elementwise operators, comparisons and activations."""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from ....engine import ops
from ....engine.common import dtypes
from ....engine.common.dtypes import DType
from ....engine.graph import Tensor
from ....engine.ops.base import TensorLike
from .node import Node, imports
from .values import INT4, UINT4, Dims, FourBits, NodeValue, dtype_of, known, plain, tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SAME: dict[str, Callable[..., Tensor]] = {
    "Abs": ops.abs,
    "Acos": ops.arccos,
    "Acosh": ops.arccosh,
    "And": ops.logical_and,
    "Asin": ops.arcsin,
    "Asinh": ops.arcsinh,
    "Atan": ops.arctan,
    "Atanh": ops.arctanh,
    "BitwiseAnd": ops.bitwise_and,
    "BitwiseNot": ops.bitwise_not,
    "BitwiseOr": ops.bitwise_or,
    "BitwiseXor": ops.bitwise_xor,
    "Ceil": ops.ceil,
    "Cos": ops.cos,
    "Cosh": ops.cosh,
    "Erf": ops.erf,
    "Exp": ops.exp,
    "Floor": ops.floor,
    "Log": ops.log,
    "Neg": ops.negative,
    "Not": ops.logical_not,
    "Or": ops.logical_or,
    "Reciprocal": ops.reciprocal,
    "Relu": ops.relu,
    "Round": ops.round,
    "Sigmoid": ops.sigmoid,
    "Sign": ops.sign,
    "Sin": ops.sin,
    "Sinh": ops.sinh,
    "Softplus": ops.softplus,
    "Sqrt": ops.sqrt,
    "Tan": ops.tan,
    "Tanh": ops.tanh,
    "Xor": ops.logical_xor,
}


@imports(*_SAME)
def _same(node: Node, *inputs: TensorLike) -> NodeValue:
    return _SAME[node.op_type](*_aligned(node, inputs))


def _aligned(node: Node, inputs: Sequence[Any]) -> Any:
    """Align two operands: before opset 7 the second was broadcast from an axis on, where the node says so."""
    if len(inputs) != 2 or not node.get("broadcast") or node.get("axis") is None:
        return inputs
    x, y = inputs
    missing = len(x.shape) - node.get("axis") % len(x.shape) - len(y.shape)
    return x, ops.expand_dims(y, list(range(-missing, 0))) if missing else y


# --- arithmetic, also of sizes --------------------------------------------------------------------------------------


@imports("Add", "Sub", "Mul", "Div", dims=True)
def _arithmetic(node: Node, x: TensorLike, y: TensorLike) -> NodeValue:
    if isinstance(x, Dims) or isinstance(y, Dims):
        found = _of_dims(node.op_type, x, y)
        if found is not None:
            return found
    a, b = _aligned(node, (tensor(plain(x)), tensor(plain(y))))
    if node.op_type == "Add":
        return ops.add(a, b)
    if node.op_type == "Sub":
        return ops.subtract(a, b)
    return ops.multiply(a, b) if node.op_type == "Mul" else _quotient(a, b)


def _quotient(a: Tensor, b: TensorLike) -> Tensor:
    """Divide `a` by `b`; integers are divided toward zero."""
    if not dtypes.is_integer(a.dtype):
        return ops.divide(a, b)
    if a.dtype.kind == "u":
        return ops.floor_divide(a, b)
    down = ops.floor_divide(a, b)
    rest = ops.subtract(a, ops.multiply(down, b))
    up = ops.logical_and(ops.not_equal(rest, 0), ops.less(down, 0))
    return ops.where(up, ops.add(down, 1), down)


def _of_dims(op_type: str, x: TensorLike, y: TensorLike) -> Dims | None:
    """Compute with sizes of which some are known."""
    left, right = _entries(x), _entries(y)
    if left is None or right is None or (len(left) != len(right) and 1 not in (len(left), len(right))):
        return None
    count = max(len(left), len(right))
    pairs = zip(left * (count // len(left)), right * (count // len(right)), strict=True)
    apply = {"Add": ops.add, "Sub": ops.subtract, "Mul": ops.multiply, "Div": _quotient}[op_type]
    entries: list[int | Tensor] = []
    for a, b in pairs:
        if isinstance(a, int) and isinstance(b, int):
            entries.append(int({"Add": a + b, "Sub": a - b, "Mul": a * b}.get(op_type) or _int_quotient(op_type, a, b)))
        else:
            entries.append(apply(ops.cast(a, "int64"), ops.cast(b, "int64")))
    scalar = all((isinstance(each, Dims) and each.scalar) or getattr(each, "shape", None) == () for each in (x, y))
    return Dims(entries, scalar)


def _int_quotient(op_type: str, a: int, b: int) -> int:
    return int(a / b) if op_type == "Div" else 0


def _entries(value: object) -> list[int | Tensor] | list[int] | None:
    if isinstance(value, Dims):
        return value.entries
    array = known(value)
    return None if array is None or array.size > 16 or array.ndim > 1 else [int(each) for each in array.reshape(-1)]


@imports("Mod")
def _mod(node: Node, x: Tensor, y: Tensor) -> NodeValue:
    return ops.fmod(x, y) if node.get("fmod") else ops.mod(x, y)


@imports("Pow")
def _pow(node: Node, x: Tensor, y: Tensor) -> NodeValue:
    """Raise `x` to the power `y`; the result has the type of the base."""
    x, y = _aligned(node, (x, y))
    if x.dtype == y.dtype and not dtypes.is_integer(x.dtype):
        return ops.power(x, y)
    if dtypes.is_integer(x.dtype) and dtypes.is_integer(y.dtype):
        return ops.power(x, ops.cast(y, x.dtype))
    wide = "float64" if dtypes.is_integer(x.dtype) else x.dtype
    return ops.cast(ops.power(ops.cast(x, wide), ops.cast(y, wide)), x.dtype)


@imports("BitShift")
def _bit_shift(node: Node, x: Tensor, y: Tensor) -> NodeValue:
    return ops.left_shift(x, y) if node.get("direction") == "LEFT" else ops.right_shift(x, y)


@imports("Max", "Min", "Sum")
def _of_many(node: Node, *inputs: TensorLike) -> NodeValue:
    return reduce({"Max": ops.maximum, "Min": ops.minimum, "Sum": ops.add}[node.op_type], inputs)


@imports("Mean")
def _mean(node: Node, *inputs: TensorLike) -> NodeValue:
    return ops.divide(reduce(ops.add, inputs), len(inputs))


_COMPARED = {
    "Equal": ops.equal,
    "Greater": ops.greater,
    "GreaterOrEqual": ops.greater_equal,
    "Less": ops.less,
    "LessOrEqual": ops.less_equal,
}


@imports(*_COMPARED)
def _compared(node: Node, x: Tensor, y: Tensor) -> NodeValue:
    return _COMPARED[node.op_type](*_aligned(node, (x, y)))


@imports("Where")
def _where(node: Node, condition: Tensor, x: Tensor, y: Tensor) -> NodeValue:
    return ops.where(condition, x, y)


@imports("IsNaN")
def _is_nan(node: Node, x: Tensor) -> NodeValue:
    return ops.isnan(x)


@imports("IsInf")
def _is_inf(node: Node, x: Tensor) -> NodeValue:
    found = ops.isinf(x)
    if not node.get("detect_negative", 1):
        found = ops.logical_and(found, ops.greater(x, 0))
    if not node.get("detect_positive", 1):
        found = ops.logical_and(found, ops.less(x, 0))
    return found


@imports("Identity", dims=True, weights=True)
def _identity(node: Node, x: NodeValue) -> NodeValue:
    return x


@imports("Cast", dims=True)
def _cast(node: Node, x: TensorLike) -> NodeValue:
    dtype = dtype_of(node.get("to"), four_bits=True)
    if isinstance(x, Dims) and dtype == np.dtype("int64"):
        return x
    return _cast_any(x, dtype)


@imports("CastLike", dims=True)
def _cast_like(node: Node, x: Tensor, like: Tensor) -> NodeValue:
    return _cast_any(x, (like if isinstance(like, FourBits) else tensor(plain(like))).dtype)


def _cast_any(x: TensorLike, dtype: DType) -> FourBits | Tensor:
    numbers = tensor(x.held if isinstance(x, FourBits) else plain(x))
    return FourBits.of_numbers(numbers, dtype) if dtype in (INT4, UINT4) else cast_to(numbers, dtype)


def cast_to(x: Tensor, dtype: DType) -> Tensor:
    """Return a value in another dtype, texts read or written as numbers."""
    if dtypes.is_string(dtype):
        return x if dtypes.is_string(x.dtype) else _written(x)
    if not dtypes.is_string(x.dtype):
        return ops.cast(x, dtype)
    if known(x) is not None:  # "NaN" and "-INF", too, which C writes so
        numbers = [float(str(each)) for each in known(x).reshape(-1)]
        return tensor(np.array(numbers, "float64").astype(dtype).reshape(known(x).shape))
    return ops.cast(ops.strings.to_number(x, "float64" if dtype.kind == "f" else "int64"), dtype)


def _written(x: Tensor) -> Tensor:
    if known(x) is not None:
        array = known(x)
        as_text = [str(each) for each in array.astype(array.dtype).reshape(-1)]
        return tensor(np.array(as_text, np.dtype("T")).reshape(array.shape))
    return ops.strings.as_string(x)


@imports("BitCast")
def _bit_cast(node: Node, x: Tensor) -> NodeValue:
    return ops.view(x, dtype_of(node.get("to")))


# --- activations ----------------------------------------------------------------------------------------------------


@imports("Elu")
def _elu(node: Node, x: Tensor) -> NodeValue:
    return ops.elu(x, node.get("alpha", 1.0))


@imports("Celu")
def _celu(node: Node, x: Tensor) -> NodeValue:
    return ops.celu(x, node.get("alpha", 1.0))


@imports("Selu")
def _selu(node: Node, x: Tensor) -> NodeValue:
    alpha, gamma = node.get("alpha", 1.6732632423543772), node.get("gamma", 1.0507009873554805)
    return ops.multiply(gamma, ops.where(ops.greater(x, 0), x, ops.multiply(alpha, ops.expm1(x))))


@imports("LeakyRelu")
def _leaky_relu(node: Node, x: Tensor) -> NodeValue:
    return ops.where(ops.greater_equal(x, 0), x, ops.multiply(x, node.get("alpha", 0.01)))


@imports("PRelu")
def _prelu(node: Node, x: Tensor, slope: TensorLike) -> NodeValue:
    return ops.where(ops.greater_equal(x, 0), x, ops.multiply(x, slope))


@imports("ThresholdedRelu")
def _thresholded_relu(node: Node, x: Tensor) -> NodeValue:
    return ops.where(ops.greater(x, node.get("alpha", 1.0)), x, ops.zeros_like(x))


@imports("HardSigmoid")
def _hard_sigmoid(node: Node, x: Tensor) -> NodeValue:
    return ops.clip(ops.add(ops.multiply(x, node.get("alpha", 0.2)), node.get("beta", 0.5)), 0.0, 1.0)


@imports("HardSwish")
def _hard_swish(node: Node, x: Tensor) -> NodeValue:
    return ops.multiply(x, ops.clip(ops.add(ops.multiply(x, 1 / 6), 0.5), 0.0, 1.0))


@imports("Softsign")
def _softsign(node: Node, x: Tensor) -> NodeValue:
    return ops.softsign(x)


@imports("Mish")
def _mish(node: Node, x: Tensor) -> NodeValue:
    return ops.multiply(x, ops.tanh(ops.softplus(x)))


@imports("Gelu")
def _gelu(node: Node, x: Tensor) -> NodeValue:
    return ops.gelu(x, approximate=node.get("approximate", "none") == "tanh")


@imports("Swish")
def _swish(node: Node, x: Tensor) -> NodeValue:
    return ops.multiply(x, ops.sigmoid(ops.multiply(x, node.get("alpha", 1.0))))


@imports("Shrink")
def _shrink(node: Node, x: Tensor) -> NodeValue:
    bias, bound = node.get("bias", 0.0), node.get("lambd", 0.5)
    low, high = ops.less(x, -bound), ops.greater(x, bound)
    if dtypes.is_integer(x.dtype):
        bias = int(bias)
    return ops.where(low, ops.add(x, bias), ops.where(high, ops.subtract(x, bias), ops.zeros_like(x)))


@imports("Clip")
def _clip(node: Node, x: Tensor, low: TensorLike | None = None, high: TensorLike | None = None) -> NodeValue:
    low = node.get("min") if low is None else low
    high = node.get("max") if high is None else high
    if low is not None:
        x = ops.maximum(x, low)
    return x if high is None else ops.minimum(x, high)


@imports("Dropout")
def _dropout(node: Node, x: Tensor, ratio: TensorLike | None = None, training: bool | None = None) -> NodeValue:
    """Return the input, and a mask that drops nothing, as in inference. Draws of other runtimes can't be made again."""
    rate = float(known(ratio)) if ratio is not None and known(ratio) is not None else node.get("ratio", 0.5)
    trains = training is not None and (known(training) is None or bool(known(training)))
    if trains and rate:
        raise NotImplementedError("Dropout in training mode")
    mask = ops.ones_like(x, dtype="bool")
    return (x, mask) if node.outputs > 1 else x


@imports("Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: Node, x: Any) -> NodeValue:
    """Apply a softmax; before opset 13 all axes from the given one on count as one."""
    axis = node.get("axis", -1 if node.version >= 13 else 1)
    apply = {"Softmax": ops.softmax, "LogSoftmax": ops.log_softmax, "Hardmax": _hardmax}[node.op_type]
    if node.version >= 13:
        return apply(x, axis)
    rank = len(x.shape)
    axis %= rank
    if axis == rank - 1:
        return apply(x, -1)
    shape = ops.shape(x)
    rows = math.prod(shape[:axis])
    return ops.reshape(apply(ops.reshape(x, (rows, -1)), -1), shape)


def _hardmax(x: Any, axis: int) -> Tensor:
    size = x.shape[axis]
    return ops.one_hot(ops.argmax(x, axis), size, axis=axis, dtype=x.dtype)
