"""Convolutions, pooling and their gradients: the engine's channels come last, ONNX's behind the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ....engine.graph.graph import Operation
from ....engine.ops.neural.convolution import Conv, ConvFilterGrad, ConvInputGrad
from ....engine.ops.neural.pooling import (
    AveragePool,
    AveragePoolGrad,
    MaxPool,
    MaxPoolGather,
    MaxPoolGrad,
    MaxPoolPlaces,
)
from .registry import exports, op_of
from .shapes import positions, rank_of, shape_input
from .writer import LONG, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


Padding: TypeAlias = "str | Sequence[Sequence[int]]"


def _channels_first(w: Writer, x: str, rank: int) -> str:
    """Return a value with its last axis behind the first."""
    return w.transpose(x, [0, rank - 1, *range(1, rank - 1)])


def _channels_last(w: Writer, x: str, rank: int) -> str:
    """Return a value with its second axis at the end."""
    return w.transpose(x, [0, *range(2, rank), 1])


def _padding(
    padding: Padding, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return ONNX's attributes for a padding.

    With strides of 1 the widths follow from the kernel alone. They are written then: onnxruntime takes no `auto_pad`
    with dilations.
    """
    dilation = dilation or (1,) * len(kernel)
    if padding == "valid":
        return {}
    if padding == "same" and all(stride == 1 for stride in strides):
        added = [(size - 1) * step for size, step in zip(kernel, dilation, strict=True)]
        return {"pads": [width // 2 for width in added] + [width - width // 2 for width in added]}
    if padding == "same":
        return {"auto_pad": "SAME_UPPER"}
    if padding == "causal":
        return {"pads": [(kernel[0] - 1) * dilation[0], 0]}
    return {"pads": [pair[0] for pair in padding] + [pair[1] for pair in padding]}


def _cut(w: Writer, x: str, padding: Padding) -> tuple[str, Padding]:
    """Return the input without the cells that negative widths cut off, and the widths that are left."""
    if isinstance(padding, str) or all(width >= 0 for pair in padding for width in pair):
        return x, padding
    rank = len(padding)
    starts = [max(-before, 0) for before, _ in padding]
    ends = [-max(-behind, 0) or 2**63 - 1 for _, behind in padding]
    x = w.add("Slice", x, w.ints(*starts), w.ints(*ends), w.ints(*range(2, rank + 2)))
    return x, tuple((max(before, 0), max(behind, 0)) for before, behind in padding)


def _cells_before(
    w: Writer, padding: Padding, sizes: str, outs: str, reach: Sequence[int], strides: Sequence[int]
) -> str:
    """Return how many cells are put before each axis, an int64 vector.

    Args:
        w: what appends the nodes.
        padding: the padding of a convolution or of pooling.
        sizes: the spatial sizes of its input, an int64 vector.
        outs: those of its result.
        reach: how many cells of an axis a window spans.
        strides: those of the windows.
    """
    if padding == "valid":
        return w.ints(*[0] * len(reach))
    if padding == "causal":
        return w.ints(reach[0] - 1)
    if not isinstance(padding, str):
        return w.ints(*[max(pair[0], 0) for pair in padding])
    starts = w.add("Mul", w.add("Sub", outs, w.ints(1)), w.ints(*strides))
    total = w.add("Sub", w.add("Add", starts, w.ints(*reach)), sizes)
    return w.add("Div", w.add("Max", total, w.ints(0)), w.ints(2))


@exports("conv")
def _conv(w: Writer, node: Operation, x: str, kernel: str) -> str:
    op = op_of(node, Conv)
    rank = rank_of(node)
    shape: Any = node.inputs[1].shape
    channels: Any = node.inputs[0].shape
    if None in shape or channels[-1] is None:
        raise ValueError("the shape of the kernel and the number of channels must be known")
    sizes = list(shape[:-2])
    first, padding = _cut(w, _channels_first(w, x, rank), op.padding)
    weights = w.transpose(kernel, [rank - 1, rank - 2, *range(rank - 2)])

    def convolve() -> str:
        return w.add(
            "Conv",
            first,
            weights,
            kernel_shape=sizes,
            strides=list(op.strides),
            dilations=list(op.dilation),
            group=channels[-1] // shape[-2],
            **_padding(padding, sizes, op.strides, op.dilation),
        )

    reach = (sizes[0] - 1) * op.dilation[0] + 1
    result = _of_steps(w, node, first, op.padding, reach, op.strides[0], convolve)
    return _channels_last(w, result, rank)


def _of_steps(
    w: Writer, node: Operation, x: str, padding: Padding, reach: int, stride: int, make: Callable[[], str]
) -> str:
    """Return a convolution or a pool of sequences: zeros where there are no steps, for which onnxruntime fails.

    Args:
        w: what appends the nodes.
        node: the operation; those of images are written as they are.
        x: its input (batch, channels, steps).
        padding: its padding.
        reach: how many steps a window spans.
        stride: that of the windows.
        make: appends the node.
    """
    shape = node.inputs[0].shape
    if shape is None or len(shape) != 3 or shape[1] is not None or padding == "valid":
        return make()
    added = 0 if isinstance(padding, str) else sum(padding[0])
    steps = max((added - reach) // stride + 1, 0)  # windows of padding only
    channels = (node.outputs[0].shape or (None,))[-1]
    width = w.dim(x, 1) if channels is None else w.ints(channels)
    return w.either(
        w.squeeze(w.compare("Equal", w.dim(x, 2), w.ints(0)), 0),
        lambda: w.zeros(w.concat([w.dim(x, 0), width, w.ints(steps)], 0), w.dtypes[x]),
        make,
        lambda name: w.info(name, [None, channels, None]),
    )


@exports("conv_input_grad")
def _conv_input_grad(w: Writer, node: Operation, dy: str, kernel: str, shape: str) -> str:
    """Return a transposed convolution; its output has the shape of the forward input, so cells are added at the end."""
    op = op_of(node, ConvInputGrad)
    rank = rank_of(node)
    known: Any = node.inputs[1].shape
    wanted: Any = node.outputs[0].shape
    if None in known or wanted is None or wanted[-1] is None:
        raise ValueError("the shape of the kernel and the number of channels must be known")
    sizes = list(known[:-2])
    weights = w.transpose(kernel, [rank - 1, rank - 2, *range(rank - 2)])
    reach = [(size - 1) * step + 1 for size, step in zip(sizes, op.dilation, strict=True)]
    if not isinstance(op.padding, str) and any(width < 0 for pair in op.padding for width in pair):
        raise ValueError("a transposed convolution with negative widths is not written as ONNX")
    outs: Any = (node.inputs[0].shape or (None,))[1:-1]
    if op.padding == "same" and None not in [*outs, *wanted[1:-1]]:
        windows = zip(outs, op.strides, reach, wanted[1:-1], strict=True)
        before = w.ints(*[max((out - 1) * step + span - size, 0) // 2 for out, step, span, size in windows])
    else:
        wide, narrow = w.slice(shape_input(w, shape), 1, -1, 0), w.slice(w.shape(dy), 1, -1, 0)
        before = _cells_before(w, op.padding, wide, narrow, reach, op.strides)
    full = w.add(
        "ConvTranspose",
        _channels_first(w, dy, rank),
        weights,
        kernel_shape=sizes,
        strides=list(op.strides),
        dilations=list(op.dilation),
        group=wanted[-1] // known[-2],
    )
    return _channels_last(w, _fitted(w, full, before, shape, rank), rank)


def _fitted(w: Writer, full: str, start: str, shape: str, rank: int) -> str:
    """Fit a transposed convolution to the wanted sizes: without the cells before the input, and with zeros behind."""

    sizes = w.slice(shape_input(w, shape), 1, -1, 0)
    spatial = w.ints(*range(2, rank))
    end = w.add("Add", sizes, start)
    missing = w.add("Max", w.add("Sub", end, w.slice(w.shape(full), 2, 2**63 - 1, 0)), w.ints(0))
    widths = w.concat([w.ints(*[0] * (rank + 2)), missing], 0)
    padded = w.add("Pad", full, widths, w.like(0, full))
    return w.add("Slice", padded, start, end, spatial)


@exports("max_pool", "average_pool")
def _pool(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, (MaxPool, AveragePool))
    rank = rank_of(node)
    first = _channels_first(w, x, rank)

    def pool() -> str:
        return w.add(
            "MaxPool" if node.type == "max_pool" else "AveragePool",
            first,
            kernel_shape=list(op.pool_size),
            strides=list(op.strides),
            **_padding(op.padding, op.pool_size, op.strides),
        )

    return _channels_last(w, _of_steps(w, node, first, op.padding, op.pool_size[0], op.strides[0], pool), rank)


# --- gradients of convolutions ----------------------------------------------------------------------------------------


@exports("conv_filter_grad")
def _conv_filter_grad(w: Writer, node: Operation, x: str, dy: str, shape: str) -> str:
    """Return a convolution of the input with the cotangent, where samples are the channels; strides dilate it."""
    op = op_of(node, ConvFilterGrad)
    rank = rank_of(node)
    known, channels, outputs = op.shape, (node.inputs[0].shape or (None,))[-1], (node.inputs[1].shape or (None,))[-1]
    if known is None or None in known or channels is None or outputs is None:
        raise ValueError("the shape of the kernel and the number of channels must be known")
    kernel = [int(size or 0) for size in known[:-2]]
    groups = channels // int(known[-2] or 1)
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, op.dilation, strict=True)]
    first, padding = _cut(w, _channels_first(w, x, rank), op.padding)
    sizes, outs = w.slice(w.shape(first), 2, 2**63 - 1, 0), w.slice(w.shape(dy), 1, -1, 0)
    before = _cells_before(w, padding, sizes, outs, reach, op.strides)
    # So many cells are read: up to the last window's end, some of which may be behind the input.
    ends = w.add("Add", w.add("Mul", w.add("Sub", outs, w.ints(1)), w.ints(*op.strides)), w.ints(*reach))
    behind = w.add("Sub", w.add("Sub", ends, before), sizes)
    widths = w.concat([w.ints(0, 0), before, w.ints(0, 0), behind], 0)
    padded = w.add("Pad", first, widths, w.like(0, first))
    spatial = [*range(2, rank)]
    if groups > 1:
        cells = w.slice(w.shape(padded), 2, 2**63 - 1, 0)
        parts = w.reshape(padded, w.concat([w.dim(x, 0), w.ints(groups, channels // groups), cells], 0))
        turned = w.transpose(parts, [2, 1, 0, *[axis + 1 for axis in spatial]])
        rows = w.concat([w.ints(channels // groups), w.add("Mul", w.dim(x, 0), w.ints(groups)), cells], 0)
        image = w.reshape(turned, rows)
    else:
        image = w.transpose(padded, [1, 0, *spatial])
    weights = w.transpose(dy, [rank - 1, 0, *range(1, rank - 1)])

    def product() -> str:
        strides, dilations = list(op.dilation), list(op.strides)
        result = w.add("Conv", image, weights, strides=strides, dilations=dilations, group=groups)
        return w.transpose(result, [*range(2, rank), 0, 1])

    wanted = [*kernel, channels // groups, outputs]
    return w.either(
        w.compare("Greater", w.add("Size", dy, dtype=LONG), w.constant(np.zeros((), LONG))),  # Conv takes no 0 channels
        product,
        lambda: w.zeros(w.ints(*wanted), w.dtypes[x]),
        lambda name: w.info(name, wanted),
    )


# --- gradients of pooling ---------------------------------------------------------------------------------------------


@exports("average_pool_grad")
def _average_pool_grad(w: Writer, node: Operation, dy: str, shape: str) -> str:
    """Share each value among the cells of its window: a transposed convolution with ones, one channel at a time."""
    op = op_of(node, AveragePoolGrad)
    rank = rank_of(node)
    wanted = shape_input(w, shape)
    sizes, outs = w.slice(wanted, 1, -1, 0), w.slice(w.shape(dy), 1, -1, 0)
    ones = w.constant(np.ones((1, 1, *op.pool_size)).astype(w.dtypes[dy]))
    strides = list(op.strides)
    cells = w.expand(w.like(1, dy), w.concat([w.ints(1, 1), sizes], 0))
    padding = _padding(op.padding, op.pool_size, strides)
    counts = w.add("Conv", cells, ones, strides=strides, **padding)
    first = _channels_first(w, dy, rank)
    alone = w.reshape(first, w.concat([w.ints(-1, 1), outs], 0))
    before = _cells_before(w, op.padding, sizes, outs, op.pool_size, op.strides)

    def spread() -> str:
        full = w.add("ConvTranspose", w.add("Div", alone, counts), ones, strides=strides)
        whole = w.reshape(
            full, w.concat([w.slice(w.shape(first), 0, 2, 0), w.slice(w.shape(full), 2, 2**63 - 1, 0)], 0)
        )
        return _channels_last(w, _fitted(w, whole, before, wanted, rank), rank)

    return w.either(
        w.compare("Greater", w.add("Size", dy, dtype=LONG), w.constant(np.zeros((), LONG))),
        spread,
        lambda: w.zeros(wanted, w.dtypes[dy]),
        lambda name: w.info(name, [None] * rank),
    )


def _column(w: Writer, values: str, axis: int, rank: int) -> str:
    """Return a vector as an array that broadcasts along an axis."""
    return w.unsqueeze(values, *[k for k in range(rank) if k != axis])


def _starts(w: Writer, op: MaxPoolPlaces | MaxPoolGrad | MaxPoolGather, sizes: str, outs: str, rank: int) -> list[str]:
    """Return where windows begin, for each spatial axis, as arrays that broadcast over the result."""
    before = _cells_before(w, op.padding, sizes, outs, op.pool_size, op.strides)
    found: list[str] = []
    for k, stride in enumerate(op.strides):
        along = w.add("Mul", positions(w, w.slice(outs, k, k + 1, 0)), w.ints(stride))
        found.append(_column(w, w.add("Sub", along, w.slice(before, k, k + 1, 0)), k + 1, rank))
    return found


@exports("max_pool_places")
def _max_pool_places(w: Writer, node: Operation, x: str, y: str) -> str:
    """Return the cell of each window that has its maximum, of the positions that `MaxPool` gives."""
    op = op_of(node, MaxPoolPlaces)
    rank = rank_of(node)
    padding = _padding(op.padding, op.pool_size, op.strides)
    first = _channels_first(w, x, rank)
    _, indices = w.add_many(
        "MaxPool", first, dtypes=[None, LONG], kernel_shape=list(op.pool_size), strides=list(op.strides), **padding
    )
    rest = _channels_last(w, indices, rank)
    sizes, outs = w.slice(w.shape(x), 1, -1, 0), w.slice(w.shape(y), 1, -1, 0)
    place: str | None = None
    factor = 1
    starts = _starts(w, op, sizes, outs, rank)
    for k in reversed(range(rank - 2)):
        size = w.slice(sizes, k, k + 1, 0)
        cell = w.add("Mul", w.add("Sub", w.add("Mod", rest, size), starts[k]), w.ints(factor))
        place = cell if place is None else w.add("Add", place, cell)
        rest = w.add("Div", rest, size)
        factor *= op.pool_size[k]
    assert place is not None
    return w.cast(place, node.outputs[0].dtype)


def _flat_places(w: Writer, op: MaxPoolGrad | MaxPoolGather, places: str, shape: str, rank: int) -> str:
    """Return where the maxima are among the elements of the input in row-major order.

    Args:
        w: what appends the nodes.
        op: of the class of a pooling.
        places: the cell of each window.
        shape: that of the input, an int64 vector.
        rank: of it.
    """
    outs = w.slice(w.shape(places), 1, -1, 0)
    starts = _starts(w, op, w.slice(shape, 1, -1, 0), outs, rank)
    rest = w.cast(places, LONG)
    cells: list[str] = []
    for kernel in reversed(op.pool_size):
        cells.insert(0, w.add("Mod", rest, w.ints(kernel)))
        rest = w.add("Div", rest, w.ints(kernel))
    flat = _column(w, positions(w, w.slice(shape, 0, 1, 0)), 0, rank)
    for k, (cell, start) in enumerate(zip(cells, starts, strict=True)):
        flat = w.add("Add", w.add("Mul", flat, w.slice(shape, k + 1, k + 2, 0)), w.add("Add", cell, start))
    channels = w.slice(shape, rank - 1, rank, 0)
    return w.add("Add", w.add("Mul", flat, channels), _column(w, positions(w, channels), rank - 1, rank))


@exports("max_pool_grad")
def _max_pool_grad(w: Writer, node: Operation, dy: str, places: str, shape: str) -> str:
    wanted = shape_input(w, shape)
    flat = w.zeros(w.add("ReduceProd", wanted, keepdims=1), w.dtypes[dy])
    where = _flat_places(w, op_of(node, MaxPoolGrad), places, wanted, rank_of(node))
    values = [w.reshape(each, w.ints(-1)) for each in (where, dy)]
    return w.reshape(w.add("ScatterElements", flat, *values, axis=0, reduction="add"), wanted)


@exports("max_pool_gather")
def _max_pool_gather(w: Writer, node: Operation, x: str, places: str) -> str:
    where = _flat_places(w, op_of(node, MaxPoolGather), places, w.shape(x), rank_of(node))
    return w.add("Gather", w.reshape(x, w.ints(-1)), where, axis=0)
