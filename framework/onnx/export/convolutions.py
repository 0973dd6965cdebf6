"""Convolutions and pooling: the engine's channels come last, ONNX's behind the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from ....engine.graph.graph import Operation
from ....engine.ops.neural.convolution import Conv, ConvInputGrad
from ....engine.ops.neural.pooling import AveragePool, MaxPool
from .registry import exports, op_of
from .shapes import rank_of, shape_input
from .writer import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence


Padding: TypeAlias = "str | Sequence[Sequence[int]]"


def channels_first(w: Writer, x: str, rank: int) -> str:
    """Return a value with its last axis behind the first."""
    return w.transpose(x, [0, rank - 1, *range(1, rank - 1)])


def channels_last(w: Writer, x: str, rank: int) -> str:
    """Return a value with its second axis at the end."""
    return w.transpose(x, [0, *range(2, rank), 1])


def padding_attributes(padding: Padding, kernel: Sequence[int], dilation: Sequence[int]) -> dict[str, Any]:
    """Return ONNX's attributes for a padding."""
    if padding == "valid":
        return {}
    if padding == "same":
        return {"auto_pad": "SAME_UPPER"}
    if padding == "causal":
        return {"pads": [(kernel[0] - 1) * dilation[0], 0]}
    return {"pads": [pair[0] for pair in padding] + [pair[1] for pair in padding]}


def cut(w: Writer, x: str, padding: Padding) -> tuple[str, Padding]:
    """Return the input without the cells that negative widths cut off, and the widths that are left."""
    if isinstance(padding, str) or all(width >= 0 for pair in padding for width in pair):
        return x, padding
    rank = len(padding)
    starts = [max(-before, 0) for before, _ in padding]
    ends = [-max(-behind, 0) or 2**63 - 1 for _, behind in padding]
    x = w.add("Slice", x, w.ints(*starts), w.ints(*ends), w.ints(*range(2, rank + 2)))
    return x, tuple((max(before, 0), max(behind, 0)) for before, behind in padding)


def cells_before(w: Writer, padding: Any, sizes: str, outs: str, reach: Sequence[int], strides: Sequence[int]) -> str:
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
    if padding != "same":
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
    first, padding = cut(w, channels_first(w, x, rank), op.padding)
    weights = w.transpose(kernel, [rank - 1, rank - 2, *range(rank - 2)])
    result = w.add(
        "Conv",
        first,
        weights,
        kernel_shape=sizes,
        strides=list(op.strides),
        dilations=list(op.dilation),
        group=channels[-1] // shape[-2],
        **padding_attributes(padding, sizes, op.dilation),
    )
    return channels_last(w, result, rank)


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
        sizes_of = [w.slice(each, 1, -1, 0) for each in (shape_input(w, shape), w.shape(dy))]
        before = cells_before(w, op.padding, *sizes_of, reach, op.strides)
    full = w.add(
        "ConvTranspose",
        channels_first(w, dy, rank),
        weights,
        kernel_shape=sizes,
        strides=list(op.strides),
        dilations=list(op.dilation),
        group=wanted[-1] // known[-2],
    )
    return channels_last(w, fitted(w, full, before, shape, rank), rank)


def fitted(w: Writer, full: str, start: str, shape: str, rank: int) -> str:
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
    result = w.add(
        "MaxPool" if node.type == "max_pool" else "AveragePool",
        channels_first(w, x, rank),
        kernel_shape=list(op.pool_size),
        strides=list(op.strides),
        **padding_attributes(op.padding, op.pool_size, (1,) * len(op.strides)),
    )
    return channels_last(w, result, rank)
