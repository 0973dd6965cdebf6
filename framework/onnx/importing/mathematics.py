"""Rules for products, reductions, sorting, normalisation, quantised numbers and windows of signals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....engine import ops
from ....engine.common import dtypes
from ....engine.common.dtypes import DType
from ....engine.graph import Tensor
from ....engine.ops.base import TensorLike
from .elementwise import cast_to
from .node import Node, imports
from .values import (
    INT4,
    UINT4,
    FourBits,
    NodeValue,
    dtype_of,
    known,
    plain,
    rank_of,
    shape_of,
    sizes_of,
    tensor,
    transposed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...structures import Array

# --- products -------------------------------------------------------------------------------------------------------


@imports("MatMul", weights=True)
def _matmul(node: Node, a: TensorLike, b: TensorLike) -> NodeValue:
    return ops.matmul(a, b)


@imports("Gemm", weights=True)
def _gemm(node: Node, a: TensorLike, b: TensorLike, c: TensorLike | None = None) -> NodeValue:
    a = ops.transpose(a) if node.get("transA") else tensor(a)
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    whole = dtypes.is_integer(a.dtype)
    product = ops.matmul(a, transposed(b) if node.get("transB") else b)
    product = product if alpha == 1 else ops.multiply(product, int(alpha) if whole else alpha)
    if c is None:
        return product
    return ops.add(product, c if beta == 1 else ops.multiply(c, int(beta) if whole else beta))


@imports("Einsum")
def _einsum(node: Node, *inputs: TensorLike) -> NodeValue:
    return ops.einsum(node.get("equation").replace(" ", ""), *inputs)


@imports("MatMulInteger")
def _matmul_integer(
    node: Node, a: TensorLike, b: TensorLike, a_zero: TensorLike | None = None, b_zero: TensorLike | None = None
) -> NodeValue:
    left, right = ops.cast(a, "int32"), ops.cast(b, "int32")
    if a_zero is not None:
        zero = ops.cast(a_zero, "int32")
        left = ops.subtract(left, ops.expand_dims(zero, -1) if rank_of(zero) == 1 and rank_of(a) > 1 else zero)
    if b_zero is not None:
        right = ops.subtract(right, ops.cast(b_zero, "int32"))
    return ops.matmul(left, right)


@imports("Det")
def _det(node: Node, x: Tensor) -> NodeValue:
    return ops.det(x)


# --- reductions -----------------------------------------------------------------------------------------------------


def _reduced_axes(node: Node, x: Tensor, axes: TensorLike | None) -> tuple[int, ...] | None:
    """Return the axes, of which none means all, or with noop_with_empty_axes none."""
    found = node.ints(axes, "axes") if axes is not None else node.get("axes")
    if found is None or not len(found):
        return () if node.get("noop_with_empty_axes") else None
    return tuple(int(axis) for axis in found)


def _sum(x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    return ops.cast(ops.sum(x, axes, keepdims), x.dtype)


def _integers(x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute in float64 what is asked for integers."""
    if not dtypes.is_integer(x.dtype):
        return compute(x)
    return ops.cast(compute(ops.cast(x, "float64")), x.dtype)


def _mean(x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    return _integers(x, lambda v: ops.mean(v, axes, keepdims))


_REDUCED: dict[str, Callable[..., Tensor]] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceProd": lambda x, axes, keep: ops.cast(ops.prod(x, axes, keep), x.dtype),
    "ReduceL1": lambda x, axes, keep: _sum(ops.abs(x), axes, keep),
    "ReduceL2": lambda x, axes, keep: _integers(x, lambda v: ops.sqrt(ops.sum(ops.square(v), axes, keep))),
    "ReduceSumSquare": lambda x, axes, keep: _sum(ops.multiply(x, x), axes, keep),
    "ReduceLogSum": lambda x, axes, keep: _integers(x, lambda v: ops.log(ops.sum(v, axes, keep))),
    "ReduceLogSumExp": lambda x, axes, keep: _integers(x, lambda v: ops.logsumexp(v, axes, keep)),
}


@imports(*_REDUCED)
def _reduced(node: Node, x: Tensor, axes: Sequence[int] | None = None) -> NodeValue:
    found = _reduced_axes(node, x, axes)
    return _REDUCED[node.op_type](x, found, bool(node.get("keepdims", 1)))


@imports("ReduceMax", "ReduceMin")
def _extremum(node: Node, x: Tensor, axes: Sequence[int] | None = None) -> NodeValue:
    found, keep = _reduced_axes(node, x, axes), bool(node.get("keepdims", 1))
    largest = node.op_type == "ReduceMax"
    if found == ():
        return x
    if x.dtype == np.dtype("bool"):
        return (ops.any if largest else ops.all)(x, found, keep)
    sizes = shape_of(x)
    reduced = sizes if found is None else [sizes[axis] for axis in found]
    if 0 not in reduced:
        return (ops.max if largest else ops.min)(x, found, keep)
    bound: float = -np.inf if largest else np.inf
    if dtypes.is_integer(x.dtype):
        bound = np.iinfo(x.dtype).min if largest else np.iinfo(x.dtype).max
    kept = [1 if found is None or axis in [a % len(sizes) for a in found] else s for axis, s in enumerate(sizes)]
    full = ops.broadcast_to(tensor(np.array(bound).astype(x.dtype)), kept)
    return full if keep else ops.squeeze(full, found)


@imports("ArgMax", "ArgMin")
def _arg_extremum(node: Node, x: Tensor) -> NodeValue:
    axis, keep = node.get("axis", 0), bool(node.get("keepdims", 1))
    find = ops.argmax if node.op_type == "ArgMax" else ops.argmin
    if not node.get("select_last_index"):
        return ops.cast(find(x, axis, keep), "int64")
    places = ops.cast(find(ops.flip(x, axis), axis, keep), "int64")
    return ops.subtract(ops.cast(sizes_of(x)[axis], "int64") - 1, places)


@imports("CumSum", "CumProd")
def _running(node: Node, x: Tensor, axis: int) -> NodeValue:
    along = node.ints(axis, "axis")[0]
    back = node.get("reverse", 0)
    x = ops.flip(x, along) if back else x
    found = (ops.cumsum if node.op_type == "CumSum" else ops.cumprod)(x, axis=along)
    if node.get("exclusive"):
        start = ops.zeros_like(x) if node.op_type == "CumSum" else ops.ones_like(x)
        first = ops.take(start, [0], axis=along)
        key = [slice(None)] * rank_of(x)
        key[along] = slice(None, -1)
        found = ops.concatenate([first, found[tuple(key)]], axis=along)
    found = ops.cast(found, x.dtype)
    return ops.flip(found, along) if back else found


@imports("TopK")
def _top_k(node: Node, x: Tensor, k: TensorLike | None = None) -> NodeValue:
    """Return the largest or smallest elements; of equal ones those with the lowest places."""
    count = node.get("k") if k is None else node.ints(k, "k")[0]
    axis = node.get("axis", -1) % rank_of(x)
    largest = node.get("largest", 1)
    order = ops.argsort(_descending(x), axis=axis) if largest else ops.argsort(x, axis=axis)
    key = [slice(None)] * rank_of(x)
    key[axis] = slice(0, count)
    places = ops.cast(order[tuple(key)], "int64")
    return ops.take_along_axis(x, places, axis=axis), places


def _descending(x: Tensor) -> Tensor:
    """Return numbers whose ascending order is the descending one of `x`."""
    return ops.bitwise_not(x) if dtypes.is_integer(x.dtype) else ops.negative(x)


# --- normalisation --------------------------------------------------------------------------------------------------


def _channels(x: TensorLike, value: TensorLike) -> TensorLike:
    """Return a vector of channels shaped to be used with (batch, channels, ...)."""
    rank = rank_of(x)
    return ops.reshape(value, (1, -1, *[1] * (rank - 2))) if rank > 1 else value


@imports("BatchNormalization")
def _batch_normalization(
    node: Node, x: Tensor, scale: TensorLike, bias: Tensor, mean: Tensor, variance: Tensor
) -> NodeValue:
    epsilon = node.get("epsilon", 1e-5)
    if not node.get("training_mode"):
        return _normalised(x, mean, variance, scale, bias, epsilon)
    axes = [axis for axis in range(rank_of(x)) if axis != 1]
    wide = ops.cast(x, "float32") if x.dtype == np.dtype("float16") else x
    batch_mean, batch_variance = ops.mean(wide, axes), ops.var(wide, axes)
    momentum = node.get("momentum", 0.9)
    y = _normalised(x, batch_mean, batch_variance, scale, bias, epsilon)
    moved = [
        ops.cast(ops.add(ops.multiply(old, momentum), ops.multiply(ops.cast(new, old.dtype), 1 - momentum)), old.dtype)
        for old, new in ((mean, batch_mean), (variance, batch_variance))
    ]
    return (y, *moved)


def _normalised(x: Tensor, mean: Tensor, variance: Tensor, scale: TensorLike, bias: Tensor, epsilon: float) -> Tensor:
    dtype = mean.dtype
    centred = ops.subtract(ops.cast(x, dtype), _channels(x, mean))
    factor = ops.divide(ops.cast(scale, dtype), ops.sqrt(ops.add(variance, epsilon)))
    y = ops.add(ops.multiply(centred, _channels(x, factor)), _channels(x, ops.cast(bias, dtype)))
    return ops.cast(y, x.dtype)


@imports("InstanceNormalization")
def _instance_normalization(node: Node, x: Tensor, scale: TensorLike, bias: Tensor) -> NodeValue:
    axes = list(range(2, rank_of(x)))
    mean, variance = ops.mean(x, axes, keepdims=True), ops.var(x, axes, keepdims=True)
    y = ops.divide(ops.subtract(x, mean), ops.sqrt(ops.add(variance, node.get("epsilon", 1e-5))))
    return ops.add(ops.multiply(y, _channels(x, scale)), _channels(x, bias))


@imports("LpNormalization")
def _lp_normalization(node: Node, x: Tensor) -> NodeValue:
    axis, order = node.get("axis", -1), node.get("p", 2)
    size = (
        ops.sum(ops.abs(x), axis, keepdims=True)
        if order == 1
        else ops.sqrt(ops.sum(ops.square(x), axis, keepdims=True))
    )
    zero = ops.equal(size, 0)
    return ops.where(zero, ops.zeros_like(x), ops.divide(x, ops.where(zero, ops.ones_like(size), size)))


@imports("LRN")
def _lrn(node: Node, x: Tensor) -> NodeValue:
    size = node.get("size")
    before, behind = (size - 1) // 2, size // 2
    widths = [[0, 0], [before, behind], *[[0, 0]] * (rank_of(x) - 2)]
    padded = ops.pad(ops.square(x), widths)
    channels = shape_of(x)[1]
    total: Tensor | None = None
    for k in range(size):
        part = padded[:, k : None if channels is None else k + channels]
        total = part if total is None else ops.add(total, part)
    assert total is not None
    scaled = ops.add(ops.multiply(total, node.get("alpha", 1e-4) / size), node.get("bias", 1.0))
    return ops.divide(x, ops.power(scaled, node.get("beta", 0.75)))


# --- quantised numbers ----------------------------------------------------------------------------------------------


def _along(node: Node, x: TensorLike, value: TensorLike, block: int = 0) -> TensorLike:
    """Return a scale or zero point spread over an axis, or over blocks of it."""
    axis = node.get("axis", 1)
    if block:
        size = shape_of(x)[axis]
        spread = ops.repeat(value, block, axis=axis)
        key = [slice(None)] * rank_of(x)
        key[axis] = slice(0, size)
        return spread[tuple(key)]
    if rank_of(value) != 1 or (shape_of(value)[0] == 1 and rank_of(x) == 0):
        return value
    if rank_of(x) < 2 and shape_of(value)[0] == 1:
        return value
    axis %= rank_of(x)
    return ops.reshape(value, tuple(-1 if k == axis else 1 for k in range(rank_of(x))))


@imports("QuantizeLinear", dims=True)
def _quantize_linear(node: Node, x: Tensor, scale: object, zero: Tensor | None = None) -> NodeValue:
    if zero is not None:
        dtype = zero.dtype
    else:
        dtype = dtype_of(node.get("output_dtype"), four_bits=True) if node.get("output_dtype") else np.dtype("uint8")
    is_four_bits = dtype in (INT4, UINT4)
    if dtype.kind not in "iu" and not is_four_bits:
        raise NotImplementedError(f"QuantizeLinear to {dtype.name}")
    block = node.get("block_size", 0)
    x, scale = tensor(plain(x)), tensor(plain(scale))
    wide = np.dtype("float32") if x.dtype.name != "float64" else x.dtype
    numbers = ops.cast(x, wide) if dtypes.is_integer(x.dtype) or x.dtype.name in ("float16", "bfloat16") else x
    ratio = ops.round(ops.divide(numbers, ops.cast(_along(node, x, scale, block), numbers.dtype)))
    if zero is not None:
        ratio = ops.add(ratio, ops.cast(_along(node, x, _held(zero), block), ratio.dtype))
    if is_four_bits:
        return FourBits.of_numbers(ops.clip(ratio, *FourBits(np.int8(0), dtype).limits), dtype)
    limits = np.iinfo(dtype)
    return ops.cast(ops.clip(ratio, limits.min, limits.max), dtype)


def _held(value: object) -> Tensor:
    """Return a tensor; integers of four bits as those of eight that hold them."""
    return tensor(value.held if isinstance(value, FourBits) else plain(value))


@imports("DequantizeLinear", dims=True)
def _dequantize_linear(node: Node, x: Tensor, scale: object, zero: TensorLike | None = None) -> NodeValue:
    block = node.get("block_size", 0)
    x, scale = _held(x), tensor(plain(scale))
    dtype = dtype_of(node.get("output_dtype")) if node.get("output_dtype") else scale.dtype
    numbers = ops.cast(x, "int32") if x.dtype.itemsize < 4 else x
    if zero is not None:
        numbers = ops.subtract(numbers, ops.cast(_along(node, x, _held(zero), block), numbers.dtype))
    return ops.cast(ops.multiply(ops.cast(numbers, scale.dtype), _along(node, x, scale, block)), dtype)


@imports("QLinearMatMul")
def _qlinear_matmul(
    node: Node,
    a: TensorLike,
    a_scale: TensorLike,
    a_zero: TensorLike,
    b: TensorLike,
    b_scale: TensorLike,
    b_zero: TensorLike,
    y_scale: TensorLike,
    y_zero: Tensor,
) -> NodeValue:
    left = ops.subtract(ops.cast(a, "int32"), ops.cast(a_zero, "int32"))
    right = ops.subtract(ops.cast(b, "int32"), ops.cast(b_zero, "int32"))
    product = ops.cast(ops.matmul(left, right), "float32")
    factor = ops.divide(
        ops.multiply(ops.cast(a_scale, "float32"), ops.cast(b_scale, "float32")), ops.cast(y_scale, "float32")
    )
    return rounded_to(ops.multiply(product, factor), y_zero)


def rounded_to(x: Tensor, zero: Tensor) -> Tensor:
    """Return numbers rounded and clipped to the type of a zero point, which is added."""
    limits = np.iinfo(zero.dtype)
    return ops.cast(ops.clip(ops.add(ops.round(x), ops.cast(zero, x.dtype)), limits.min, limits.max), zero.dtype)


# --- windows and transforms of signals ------------------------------------------------------------------------------


@imports("HannWindow", "HammingWindow", "BlackmanWindow")
def _window(node: Node, size: int) -> NodeValue:
    count = node.ints(size, "size")[0]
    period = count if node.get("periodic", 1) else count - 1
    angle = 2 * np.pi * np.arange(count) / max(period, 1)
    if node.op_type == "HannWindow":
        values = 0.5 - 0.5 * np.cos(angle)
    elif node.op_type == "HammingWindow":
        values = 25 / 46 - 21 / 46 * np.cos(angle)
    else:
        values = 0.42 - 0.5 * np.cos(angle) + 0.08 * np.cos(2 * angle)
    return values.astype(dtype_of(node.get("output_datatype", 1)))


@imports("DFT")
def _dft(node: Node, x: Tensor, length: TensorLike | None = None, axis: int | None = None) -> NodeValue:
    """Transform along one axis, as a product with a matrix of sines and cosines; (re, im) is the last axis."""
    rank = rank_of(x)
    along = node.ints(axis, "axis")[0] if axis is not None else node.get("axis", 1 if node.version < 20 else -2)
    along %= rank
    size = shape_of(x)[along]
    count = node.ints(length, "length")[0] if length is not None else size
    inverse, one_sided = node.get("inverse", 0), node.get("onesided", 0)
    if size is None or count is None:
        raise ValueError("the size of the axis must be known")
    real = x[..., 0]
    imaginary = x[..., 1] if shape_of(x)[-1] == 2 else ops.zeros_like(real)
    if inverse and one_sided:
        return _real_inverse(real, imaginary, along, length, node)
    real, imaginary = (_to_length(each, along, count) for each in (real, imaginary))
    angle = 2 * np.pi * np.outer(np.arange(count), np.arange(count)) / count
    angle = angle[:, : count // 2 + 1] if one_sided else angle
    scale = 1 / count if inverse else 1.0
    cosine, sine = (
        (np.cos(angle) * scale).astype(x.dtype),
        (np.sin(angle) * scale * (1 if inverse else -1)).astype(x.dtype),
    )
    parts = (
        ops.subtract(_times(real, cosine, along), _times(imaginary, sine, along)),
        ops.add(_times(real, sine, along), _times(imaginary, cosine, along)),
    )
    return ops.stack(parts, -1)


def _real_inverse(real: Tensor, imaginary: Tensor, along: int, length: TensorLike | None, node: Node) -> Tensor:
    half = shape_of(real)[along] or 0
    count = node.ints(length, "length")[0] if length is not None else 2 * (half - 1)
    real, imaginary = (_to_length(each, along, count // 2 + 1) for each in (real, imaginary))
    weight = np.full(count // 2 + 1, 2.0)
    weight[0] = 1
    if count % 2 == 0:
        weight[-1] = 1
    angle = 2 * np.pi * np.outer(np.arange(count // 2 + 1), np.arange(count)) / count
    cosine = (weight[:, None] * np.cos(angle) / count).astype(real.dtype)
    sine = (weight[:, None] * np.sin(angle) / count).astype(real.dtype)
    return ops.expand_dims(ops.subtract(_times(real, cosine, along), _times(imaginary, sine, along)), -1)


def _to_length(x: TensorLike, axis: int, count: int) -> Any:
    size = shape_of(x)[axis] or 0
    if count < size:
        return ops.take(x, np.arange(count, dtype="int32"), axis=axis)
    if count == size:
        return x
    return ops.pad(x, [[0, count - size] if k == axis else [0, 0] for k in range(rank_of(x))])


def _times(x: TensorLike, matrix: TensorLike, axis: int) -> Tensor:
    return ops.moveaxis(ops.matmul(ops.moveaxis(x, axis, -1), matrix), -1, axis)


@imports("STFT")
def _stft(
    node: Node, signal: Tensor, step: int, window: TensorLike | None = None, length: TensorLike | None = None
) -> NodeValue:
    stride = node.ints(step, "frame_step")[0]
    size = node.ints(length, "frame_length")[0] if length is not None else shape_of(window)[0]
    total = shape_of(signal)[1]
    if total is None or size is None:
        raise ValueError("the length of the signal must be known")
    count = (total - size) // stride + 1
    places = np.arange(count)[:, None] * stride + np.arange(size)
    frames = ops.take(signal, places.astype("int32"), axis=1)
    if window is not None:
        frames = ops.multiply(frames, ops.expand_dims(window, -1))
    angle = 2 * np.pi * np.outer(np.arange(size), np.arange(size)) / size
    angle = angle[:, : size // 2 + 1] if node.get("onesided", 1) else angle
    real = frames[..., 0]
    imaginary = frames[..., 1] if shape_of(frames)[-1] == 2 else ops.zeros_like(real)
    cosine, sine = np.cos(angle).astype(signal.dtype), -np.sin(angle).astype(signal.dtype)
    return ops.stack(
        [
            ops.subtract(ops.matmul(real, cosine), ops.matmul(imaginary, sine)),
            ops.add(ops.matmul(real, sine), ops.matmul(imaginary, cosine)),
        ],
        -1,
    )


@imports("MelWeightMatrix")
def _mel_weight_matrix(
    node: Node, bins: TensorLike, length: TensorLike, rate: TensorLike, low: TensorLike, high: TensorLike
) -> NodeValue:
    """Return triangles on the mel scale over the bins of a spectrogram."""
    count, size, pace = (node.ints(each, "size")[0] for each in (bins, length, rate))
    lowest, highest = (node.floats(each, "edge")[0] for each in (low, high))
    edges = _mel(lowest) + np.arange(count + 2) * (_mel(highest) - _mel(lowest)) / (count + 2)
    places = np.floor((size + 1) * (700 * (10 ** (edges / 2595) - 1)) / pace).astype(int)
    found = np.zeros((size // 2 + 1, count))
    for k in range(count):
        first, middle, last = places[k : k + 3]
        if middle == first:
            found[middle, k] = 1
        else:
            rise = np.arange(first, middle + 1)
            found[rise, k] = (rise - first) / (middle - first)
        if last > middle:
            fall = np.arange(middle, last)
            found[fall, k] = (last - fall) / (last - middle)
    return found.astype(dtype_of(node.get("output_datatype", 1)))


def _mel(frequency: float) -> float:
    return 2595 * math.log10(1 + frequency / 700)


# --- tables of texts and numbers ------------------------------------------------------------------------------------


@imports("LabelEncoder", domain="ai.onnx.ml")
def _label_encoder(node: Node, x: Tensor) -> NodeValue:
    """Return a table from keys to values, both as one of several attributes."""
    keys, values = _listed(node, "keys"), _listed(node, "values")
    default = _default(node, values.dtype)
    found = known(x)
    if found is not None:
        table = dict(zip([_key(each) for each in keys], values, strict=True))
        mapped = [table.get(_key(each), default) for each in found.reshape(-1)]
        return tensor(np.array(mapped, values.dtype).reshape(found.shape))
    same = ops.equal(ops.expand_dims(x, -1), ops.cast(tensor(keys), x.dtype))
    place = ops.argmax(ops.cast(same, "int32"), -1)
    return ops.where(
        ops.any(same, -1), ops.take(tensor(values), place, axis=0), tensor(np.array(default, values.dtype))
    )


def _listed(node: Node, what: str) -> Array:
    for kind, dtype in (("strings", "T"), ("int64s", "int64"), ("floats", "float32")):
        if f"{what}_{kind}" in node.attributes:
            return np.array(node.get(f"{what}_{kind}"), np.dtype(dtype))
    from .reading import initializer_array

    return initializer_array(node.get(f"{what}_tensor")).reshape(-1)


def _default(node: Node, dtype: DType) -> object:
    from .reading import initializer_array

    if "default_tensor" in node.attributes:
        return initializer_array(node.get("default_tensor")).reshape(-1)[0]
    if dtype.kind == "T":
        return node.get("default_string", "_Unused")
    return node.get("default_int64", -1) if dtype.kind in "iu" else node.get("default_float", -0.0)


def _key(value: str | float) -> str | float:
    if isinstance(value, (float, np.floating)) and value != value:
        return "NaN"
    return str(value) if isinstance(value, str) else float(value)


@imports("ArrayFeatureExtractor", domain="ai.onnx.ml")
def _array_feature_extractor(node: Node, x: Tensor, places: TensorLike) -> NodeValue:
    return ops.take(x, ops.reshape(places, (-1,)), axis=-1)


@imports("Binarizer", domain="ai.onnx.ml")
def _binarizer(node: Node, x: Tensor) -> NodeValue:
    return cast_to(ops.greater(x, node.get("threshold", 0.0)), x.dtype)
