"""Rules for convolutions, pooling and what samples images: channels come behind the batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....engine import ops
from ....engine.common import dtypes
from ....engine.common.dtypes import DType
from ....engine.graph import Tensor
from ....engine.ops.base import TensorLike
from .mathematics import rounded_to
from .node import Node, imports
from .values import NodeValue, known, rank_of, shape_of, sizes_of, tensor

if TYPE_CHECKING:
    from ...structures import Array

# --- padding --------------------------------------------------------------------------------------------------------


def _spatial(node: Node, x: TensorLike, name: str, default: int = 1) -> list[int]:
    given = node.get(name)
    return list(given) if given else [default] * (rank_of(x) - 2)


def _pads(node: Node, x: TensorLike, kernel: list[int], strides: list[int], dilations: list[int]) -> list[list[int]]:
    """Return cells before and behind each spatial axis."""
    how = node.get("auto_pad", "NOTSET")
    rank = len(kernel)
    if how == "VALID":
        return [[0, 0] for _ in range(rank)]
    if how == "NOTSET":
        given = list(node.get("pads") or [0] * (2 * rank))
        return [[given[k], given[k + rank]] for k in range(rank)]
    found: list[list[int]] = []
    for k, size in enumerate(shape_of(x)[2:]):
        if size is None and strides[k] != 1:
            raise ValueError("auto_pad needs sizes that are known")
        reach = (kernel[k] - 1) * dilations[k] + 1
        last = reach - 1 if size is None else (math.ceil(size / strides[k]) - 1) * strides[k] + reach - size
        total = max(last, 0)
        small = total // 2
        found.append([small, total - small] if how == "SAME_UPPER" else [total - small, small])
    return found


def _padded(x: Tensor, pads: list[list[int]], value: object = 0) -> Tensor:
    if not any(width for pair in pads for width in pair):
        return x
    return ops.pad(x, [[0, 0], [0, 0], *pads], "constant", constant_values=tensor(np.array(value).astype(x.dtype)))


# --- convolutions ---------------------------------------------------------------------------------------------------


def _turned_kernel(w: TensorLike) -> Tensor:
    """Transpose a kernel (filters, channels, ...) to the order of the engine: (..., channels, filters)."""
    rank = rank_of(w)
    return ops.transpose(w, [*range(2, rank), 1, 0])


def convolved(node: Node, x: Tensor, w: TensorLike) -> Tensor:
    """Return the convolution of a Conv node, without its bias."""
    kernel = [int(size) for size in shape_of(w)[2:]]
    strides, dilations = _spatial(node, x, "strides"), _spatial(node, x, "dilations")
    padded = _padded(x, _pads(node, x, kernel, strides, dilations))
    if len(kernel) == 0:
        raise ValueError("a convolution needs a spatial axis")
    if all(step > 1 for step in strides) and any(step > 1 for step in dilations):
        return _with_gaps(padded, w, strides, dilations)
    return ops.conv(
        padded, _turned_kernel(w), strides=strides, padding="valid", data_format="channels_first",
        dilation_rate=dilations,
    )  # fmt: skip


def _with_gaps(x: Tensor, w: TensorLike, strides: list[int], dilations: list[int]) -> Tensor:
    """Return a convolution with strides and dilations, which `ops.conv` takes apart only: every window, then some."""
    whole = ops.conv(x, _turned_kernel(w), padding="valid", data_format="channels_first", dilation_rate=dilations)
    return whole[(slice(None), slice(None), *[slice(None, None, step) for step in strides])]


@imports("Conv")
def _conv(node: Node, x: Tensor, w: TensorLike, bias: TensorLike | None = None) -> NodeValue:
    y = convolved(node, x, w)
    return y if bias is None else ops.add(y, _channels(x, bias))


def _channels(x: TensorLike, value: TensorLike) -> Tensor:
    return ops.reshape(value, (1, -1, *[1] * (rank_of(x) - 2)))


@imports("ConvInteger")
def _conv_integer(
    node: Node, x: Tensor, w: TensorLike, x_zero: TensorLike | None = None, w_zero: TensorLike | None = None
) -> NodeValue:
    return ops.cast(ops.round(convolved(node, *_centred(x, w, x_zero, w_zero))), "int32")


def _centred(x: Tensor, w: TensorLike, x_zero: TensorLike | None, w_zero: TensorLike | None) -> tuple[Tensor, Tensor]:
    """Return numbers without their zero points, in float64, in which sums of products are exact."""
    left, right = ops.cast(x, "float64"), ops.cast(w, "float64")
    if x_zero is not None:
        left = ops.subtract(left, ops.cast(x_zero, "float64"))
    if w_zero is not None:
        zero = ops.cast(w_zero, "float64")
        right = ops.subtract(right, ops.reshape(zero, (-1, *[1] * (rank_of(w) - 1))) if rank_of(zero) else zero)
    return left, right


@imports("QLinearConv")
def _qlinear_conv(
    node: Node,
    x: Tensor,
    x_scale: TensorLike,
    x_zero: TensorLike | None,
    w: TensorLike,
    w_scale: TensorLike,
    w_zero: TensorLike | None,
    y_scale: TensorLike,
    y_zero: Tensor,
    bias: Tensor | None = None,
) -> NodeValue:
    total = convolved(node, *_centred(x, w, x_zero, w_zero))
    if bias is not None:
        total = ops.add(total, _channels(x, ops.cast(bias, "float64")))
    scale = ops.divide(
        ops.multiply(ops.cast(x_scale, "float64"), ops.cast(w_scale, "float64")), ops.cast(y_scale, "float64")
    )
    scale = _channels(x, scale) if rank_of(scale) else scale
    return rounded_to(ops.multiply(total, scale), y_zero)


@imports("ConvTranspose")
def _conv_transpose(node: Node, x: Tensor, w: TensorLike, bias: Tensor | None = None) -> NodeValue:
    """Convolve cells with zeros between them by the kernel turned round."""
    rank, groups = rank_of(x) - 2, node.get("group", 1)
    strides, dilations = _spatial(node, x, "strides"), _spatial(node, x, "dilations")
    kernel = [int(size) for size in shape_of(w)[2:]]
    extra = _spatial(node, x, "output_padding", 0)
    sizes = shape_of(x)[2:]
    reach = [(kernel[k] - 1) * dilations[k] + 1 for k in range(rank)]
    pads = _transposed_pads(node, sizes, strides, reach, extra)
    spread = _spread(x, strides)
    widths = [[reach[k] - 1, reach[k] - 1 + extra[k]] for k in range(rank)]
    flipped = ops.flip(w, list(range(2, rank + 2)))
    weights = _grouped(flipped, groups)  # (channels, filters / groups, ...) -> (filters, channels / groups, ...)
    whole = ops.conv(
        _padded(spread, widths), _turned_kernel(weights), padding="valid", data_format="channels_first",
        dilation_rate=dilations,
    )  # fmt: skip
    key = [slice(None), slice(None)]
    for before, behind in pads:
        key.append(slice(max(before, 0), -behind if behind > 0 else None))
    y = whole[tuple(key)]
    more = [[max(-before, 0), max(-behind, 0)] for before, behind in pads]
    y = _padded(y, more)
    return y if bias is None else ops.add(y, _channels(x, bias))


def _transposed_pads(
    node: Node, sizes: Sequence[int], strides: Sequence[int], reach: Sequence[int], extra: Sequence[int]
) -> list[list[int]]:
    """Return cells that are cut off before and behind."""
    rank = len(strides)
    wanted, how = node.get("output_shape"), node.get("auto_pad", "NOTSET")
    if wanted:
        wanted = list(wanted)[-rank:]
    if how.startswith("SAME") and not wanted:
        wanted = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    if not wanted:
        given = list(node.get("pads") or [0] * (2 * rank)) if how == "NOTSET" else [0] * (2 * rank)
        return [[given[k], given[k + rank]] for k in range(rank)]
    found: list[list[int]] = []
    for k in range(rank):
        total = strides[k] * (sizes[k] - 1) + extra[k] + reach[k] - wanted[k]
        small, large = total // 2, total - total // 2
        found.append([small, large] if how == "SAME_UPPER" else [large, small])
    return found


def _spread(x: Tensor, strides: list[int]) -> Tensor:
    """Put zeros between the cells, as many as a stride skips."""
    for k, step in enumerate(strides):
        if step == 1:
            continue
        axis = k + 2
        parts = ops.expand_dims(x, axis + 1)
        zeros = [[0, 0] for _ in range(rank_of(parts))]
        zeros[axis + 1] = [0, step - 1]
        sizes = sizes_of(x)
        sizes[axis] = sizes[axis] * step
        key = [slice(None)] * rank_of(x)
        key[axis] = slice(0, -(step - 1))
        x = ops.reshape(ops.pad(parts, zeros), tuple(sizes))[tuple(key)]
    return x


def _grouped(w: TensorLike, groups: int) -> Tensor:
    if groups == 1:
        return ops.swapaxes(w, 0, 1)
    channels, filters, *rest = shape_of(w)
    parts = ops.reshape(w, (groups, (channels or 0) // groups, filters, *rest))
    return ops.reshape(ops.swapaxes(parts, 1, 2), (groups * (filters or 0), (channels or 0) // groups, *rest))


# --- pooling --------------------------------------------------------------------------------------------------------


def _windows(node: Node, x: Tensor, value: object) -> tuple[Tensor, list[tuple[int, ...]], list[int], list[list[int]]]:
    """Return each window cell's inputs as a stack of strided slices; and the cells, sizes of results, padding."""
    kernel = [int(size) for size in node.get("kernel_shape")]
    strides, dilations = _spatial(node, x, "strides"), _spatial(node, x, "dilations")
    pads = _pads(node, x, kernel, strides, dilations)
    sizes = [node.ints(np.array(size), "input size")[0] for size in _known_sizes(x)]
    outs: list[int] = []
    for k, size in enumerate(sizes):
        room = size + sum(pads[k]) - ((kernel[k] - 1) * dilations[k] + 1)
        count = room / strides[k] + 1
        out = math.ceil(count) if node.get("ceil_mode") else math.floor(count)
        if node.get("ceil_mode") and (out - 1) * strides[k] >= size + pads[k][0]:
            out -= 1  # a window that begins behind the input is none
        if out < 0 or (size and not out):
            raise ValueError(
                f"a window of {kernel[k]} (dilation {dilations[k]}) is larger than an input of {size} with the padding "
                f"{pads[k][0]} and {pads[k][1]}"
            )
        outs.append(out)
        end = (out - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1
        pads[k] = [pads[k][0], max(end - size - pads[k][0], 0)]
    padded = _padded(x, pads, value)
    cells = list(itertools.product(*[range(size) for size in kernel]))
    parts: list[Tensor] = []
    for cell in cells:
        key = [slice(None), slice(None)]
        for k, place in enumerate(cell):
            first = place * dilations[k]
            key.append(slice(first, first + (outs[k] - 1) * strides[k] + 1, strides[k]))
        parts.append(padded[tuple(key)])
    return ops.stack(parts), cells, outs, pads


def _known_sizes(x: Tensor) -> list[int]:
    sizes = shape_of(x)[2:]
    if None in sizes:
        raise ValueError("pooling needs spatial sizes that are known")
    return [int(size or 0) for size in sizes]


def _least(dtype: DType) -> float:
    return -np.inf if dtypes.is_floating(dtype) else np.iinfo(dtype).min


@imports("MaxPool")
def _max_pool(node: Node, x: Tensor) -> NodeValue:
    seen, cells, outs, pads = _windows(node, x, _least(x.dtype))
    found = ops.max(seen, 0)
    if not node.wants(1):
        return found
    return found, _places_of(node, x, ops.argmax(seen, 0), cells, outs, pads)


def _places_of(
    node: Node,
    x: Tensor,
    best: Tensor,
    cells: Sequence[tuple[int, ...]],
    outs: Sequence[int],
    pads: Sequence[Sequence[int]],
) -> Tensor:
    """Return the positions of the maxima in the whole input, flattened."""
    strides, dilations = _spatial(node, x, "strides"), _spatial(node, x, "dilations")
    batch, channels, *sizes = shape_of(x)
    offsets = np.array(cells, "int64")
    total: Tensor | None = None
    rank = len(sizes)
    order = list(range(rank)) if not node.get("storage_order") else list(reversed(range(rank)))
    step = 1
    for k in reversed(order):
        start = np.arange(outs[k]) * strides[k] - pads[k][0]
        along = start.reshape([-1 if j == k else 1 for j in range(rank)])
        place = ops.add(ops.take(offsets[:, k] * dilations[k], best, axis=0), along)
        place = ops.multiply(place, step)
        total = place if total is None else ops.add(total, place)
        step *= int(sizes[k] or 0)
    planes = np.arange((batch or 0) * (channels or 0)).reshape([batch or 0, channels or 0, *[1] * rank]) * step
    assert total is not None
    return ops.cast(ops.add(total, planes), "int64")


@imports("AveragePool")
def _average_pool(node: Node, x: Tensor) -> NodeValue:
    seen, _cells, _, pads = _windows(node, x, 0)
    total = ops.sum(ops.cast(seen, "float32") if x.dtype.name == "float16" else seen, 0)
    ones = tensor(np.ones((1, 1, *_known_sizes(x)), total.dtype))
    if node.get("count_include_pad"):
        given = _pads(
            node, x, list(node.get("kernel_shape")), _spatial(node, x, "strides"), _spatial(node, x, "dilations")
        )
        inside = [[before, max(behind - min(behind, given[k][1]), 0)] for k, (before, behind) in enumerate(pads)]
        counted = _padded(ones, [[before, min(behind, given[k][1])] for k, (before, behind) in enumerate(pads)], 1)
        counted = _padded(counted, [[0, pair[1]] for pair in inside], 0)
        count = _seen_of(node, counted, x, pads)
    else:
        count = _seen_of(node, _padded(ones, pads, 0), x, pads)
    return ops.cast(ops.divide(total, count), x.dtype)


def _seen_of(node: Node, padded: Any, x: Tensor, pads: Sequence[Sequence[int]]) -> Any:
    """Return the number of ones in each window of a padded plane."""
    kernel = [int(size) for size in node.get("kernel_shape")]
    strides, dilations = _spatial(node, x, "strides"), _spatial(node, x, "dilations")
    total: Tensor | None = None
    for cell in itertools.product(*[range(size) for size in kernel]):
        key = [slice(None), slice(None)]
        for k, place in enumerate(cell):
            length = int(padded.shape[k + 2])
            outs = (length - ((kernel[k] - 1) * dilations[k] + 1)) // strides[k]
            first = place * dilations[k]
            key.append(slice(first, first + outs * strides[k] + 1, strides[k]))
        part = padded[tuple(key)]
        total = part if total is None else ops.add(total, part)
    return total


@imports("LpPool")
def _lp_pool(node: Node, x: Tensor) -> NodeValue:
    order = node.get("p", 2)
    seen, *_ = _windows(node, ops.abs(x), 0)
    return ops.power(ops.sum(ops.power(seen, float(order)), 0), 1.0 / order)


@imports("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(node: Node, x: Tensor) -> NodeValue:
    axes = list(range(2, rank_of(x)))
    if node.op_type == "GlobalMaxPool":
        return ops.max(x, axes, keepdims=True)
    if node.op_type == "GlobalAveragePool":
        return ops.mean(x, axes, keepdims=True)
    order = float(node.get("p", 2))
    return ops.power(ops.sum(ops.power(ops.abs(x), order), axes, keepdims=True), 1 / order)


@imports("MaxUnpool")
def _max_unpool(node: Node, x: Tensor, places: TensorLike, shape: TensorLike | None = None) -> NodeValue:
    kernel = list(node.get("kernel_shape"))
    strides, pads = _spatial(node, x, "strides"), list(node.get("pads") or [0] * (2 * len(kernel)))
    batch, channels, *sizes = [int(size or 0) for size in shape_of(x)]
    rank = len(sizes)
    inner = [(sizes[k] - 1) * strides[k] + kernel[k] - pads[k] - pads[k + rank] for k in range(rank)]
    own = [batch, channels, *inner]
    zeros = ops.zeros((math.prod(own),), dtype=x.dtype)
    flat = ops.scatter_update(zeros, ops.reshape(places, (-1, 1)), ops.reshape(x, (-1,)))
    y = ops.reshape(flat, own)
    if shape is None:
        return y
    wanted = node.ints(shape, "output shape")
    return ops.pad(y, [[0, want - have] for want, have in zip(wanted, own, strict=True)])


@imports("Col2Im")
def _col2im(node: Node, x: Tensor, image: TensorLike, block: TensorLike) -> NodeValue:
    """Add up blocks at their places in an image."""
    size, kernel = node.ints(image, "image shape"), node.ints(block, "block shape")
    rank = len(size)
    strides = list(node.get("strides") or [1] * rank)
    dilations = list(node.get("dilations") or [1] * rank)
    pads = list(node.get("pads") or [0] * (2 * rank))
    batch, rows, _ = [int(each or 0) for each in shape_of(x)]
    channels = rows // math.prod(kernel)
    padded = [size[k] + pads[k] + pads[k + rank] for k in range(rank)]
    outs = [(padded[k] - (kernel[k] - 1) * dilations[k] - 1) // strides[k] + 1 for k in range(rank)]
    columns = ops.reshape(x, (batch, channels, math.prod(kernel), math.prod(outs)))
    cells = np.array(list(itertools.product(*[range(each) for each in kernel]))) * dilations
    starts = np.array(list(itertools.product(*[range(each) for each in outs]))) * strides
    places = cells[:, None] + starts[None]
    flat = np.ravel_multi_index(tuple(np.moveaxis(places, -1, 0)), padded).reshape(-1, 1)
    values = ops.reshape(ops.transpose(columns, (2, 3, 0, 1)), (-1, batch, channels))
    whole = ops.scatter_add(ops.zeros((math.prod(padded), batch, channels), dtype=x.dtype), flat, values)
    image_of = ops.reshape(ops.transpose(whole, (1, 2, 0)), (batch, channels, *padded))
    return image_of[(slice(None), slice(None), *[slice(pads[k], pads[k] + size[k]) for k in range(rank)])]


# --- other sizes ----------------------------------------------------------------------------------------------------


@imports("Resize", "Upsample")
def _resize(node: Node, x: Tensor, *rest: TensorLike | None) -> NodeValue:
    """Return a product with a matrix of weights for each axis that changes its size."""
    if node.op_type == "Upsample" or node.version < 11:
        roi, scales, sizes = None, (rest[0] if rest else np.array(node.get("scales"), "float32")), None
    else:
        roi, scales, sizes = (*rest, None, None, None)[:3]
    rank = rank_of(x)
    axes = [axis % rank for axis in node.get("axes") or range(rank)]
    lengths = [int(size or 0) for size in shape_of(x)]
    if any(shape_of(x)[axis] is None for axis in axes if axis > 1 or node.get("axes")):
        raise ValueError("the sizes of axes that are resized must be known")
    factors, outs = _resized(node, lengths, axes, scales, sizes)
    window = node.floats(roi, "region") if roi is not None and _size_of(roi) else None
    y = x
    for place, axis in enumerate(axes):
        if outs[place] == lengths[axis] and factors[place] == 1 and window is None:
            continue
        edges = None if window is None else (window[place], window[place + len(axes)])
        weights, outside = _weights(node, lengths[axis], outs[place], factors[place], edges)
        y = _applied(node, y, axis, weights, outside)
    return y


def _size_of(value: object) -> int:
    array = known(value)
    return 1 if array is None else array.size


def _resized(
    node: Node, lengths: Sequence[int], axes: Sequence[int], scales: TensorLike | None, sizes: TensorLike | None
) -> tuple[list[float], list[int]]:
    if scales is not None and _size_of(scales):
        factors = node.floats(scales, "scales")
        return factors, [math.floor(lengths[axis] * factor) for axis, factor in zip(axes, factors, strict=True)]
    wanted = node.ints(sizes, "sizes")
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    factors = [want / lengths[axis] for axis, want in zip(axes, wanted, strict=True)]
    if policy != "stretch":
        factor = min(factors) if policy == "not_larger" else max(factors)
        factors = [factor] * len(factors)
        wanted = [math.floor(lengths[axis] * factor + 0.5) for axis in axes]
    return factors, wanted


def _applied(node: Node, x: Tensor, axis: int, weights: Array, outside: Array | None) -> Tensor:
    mode = node.get("mode", "nearest")
    if mode == "nearest":
        y = ops.take(x, weights.astype("int32"), axis=axis)
    else:
        wide = "float64" if x.dtype.name == "float64" else "float32"
        turned = ops.moveaxis(ops.cast(x, wide), axis, -1)
        y = ops.moveaxis(ops.matmul(turned, np.ascontiguousarray(weights.T).astype(wide)), -1, axis)
        if dtypes.is_integer(x.dtype):
            limits = np.iinfo(x.dtype)
            y = ops.clip(ops.round(y), limits.min, limits.max)
        y = ops.cast(y, x.dtype)
    if outside is None or not outside.any():
        return y
    shape = [1] * rank_of(x)
    shape[axis] = -1
    return ops.where(outside.reshape(shape), tensor(np.array(node.get("extrapolation_value", 0.0), x.dtype)), y)


def _weights(
    node: Node, size: int, out: int, factor: float, edges: tuple[float, float] | None
) -> tuple[Array, Array | None]:
    """Return places (for the nearest cells) or a matrix (out, size), and which results are outside."""
    how = node.get("coordinate_transformation_mode", "half_pixel" if node.version >= 11 else "asymmetric")
    places = np.arange(out, dtype="float64")
    if how == "align_corners":
        points = places * (size - 1) / (out - 1) if out > 1 else np.zeros(out)
        if node.get("keep_aspect_ratio_policy", "stretch") == "stretch" and node.get("scales") is None:
            exact = size * factor
            points = places * (size - 1) / (exact - 1) if exact > 1 else np.zeros(out)
    elif how == "asymmetric":
        points = places / factor
    elif how == "pytorch_half_pixel":
        points = (places + 0.5) / factor - 0.5 if size * factor > 1 else np.full(out, -0.5)
    elif how == "half_pixel_symmetric":
        adjustment = out / (factor * size)
        points = size / 2 * (1 - adjustment) + (places + 0.5) / factor - 0.5
    elif how == "tf_crop_and_resize":
        assert edges is not None
        first, last = edges
        points = (
            first * (size - 1) + places * (last - first) * (size - 1) / (out - 1)
            if out > 1
            else (np.full(out, 0.5 * (first + last) * (size - 1)))
        )
    else:
        points = (places + 0.5) / factor - 0.5
    outside = ((points < 0) | (points > size - 1)) if how == "tf_crop_and_resize" else None
    mode = node.get("mode", "nearest")
    if mode == "nearest":
        return np.clip(_nearest(node, points), 0, size - 1).astype("int64"), outside
    return _matrix(node, points, size, factor, mode), outside


def _nearest(node: Node, points: Array) -> Array:
    how = node.get("nearest_mode", "round_prefer_floor" if node.version >= 11 else "floor")
    if how == "floor":
        return np.floor(points)
    if how == "ceil":
        return np.ceil(points)
    return np.floor(points + 0.5) if how == "round_prefer_ceil" else np.ceil(points - 0.5)


def _matrix(node: Node, points: Array, size: int, factor: float, mode: str) -> Array:
    stretch = min(factor, 1.0) if node.get("antialias") else 1.0
    reach = (2 if mode == "cubic" else 1) / stretch
    first = np.floor(points - reach).astype(int)
    cells = first[:, None] + np.arange(math.ceil(2 * reach) + 2)
    distance = (cells - points[:, None]) * stretch
    values = (
        _cubic(np.abs(distance), node.get("cubic_coeff_a", -0.75))
        if mode == "cubic"
        else (np.maximum(1 - np.abs(distance), 0))
    )
    if node.get("exclude_outside"):
        values = np.where((cells < 0) | (cells >= size), 0, values)
    values = values / values.sum(1, keepdims=True)
    found = np.zeros((len(points), size))
    rows = np.broadcast_to(np.arange(len(points))[:, None], cells.shape)
    np.add.at(found, (rows, np.clip(cells, 0, size - 1)), values)
    return found


def cubic_weights(distance: Tensor, a: float = -0.75) -> Tensor:
    """Return the weights of cells at distances of up to 2, as a tensor."""
    near = ops.add(
        ops.multiply(ops.multiply(ops.subtract(ops.multiply(distance, a + 2), a + 3), distance), distance), 1.0
    )
    far = ops.subtract(ops.multiply(distance, a), 5 * a)
    far = ops.subtract(ops.multiply(ops.add(ops.multiply(far, distance), 8 * a), distance), 4 * a)
    return ops.where(ops.less_equal(distance, 1.0), near, ops.where(ops.less(distance, 2.0), far, ops.zeros_like(far)))


def _cubic(distance: Array, a: float) -> Array:
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))
