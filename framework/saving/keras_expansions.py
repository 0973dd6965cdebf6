"""Ops that Keras lacks, as compositions of ops that it has: a file holds those instead.

Shapes that are known at run time only are taken from tensors: the size of an axis is the sum of as many ones.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine import ops
from ...engine.graph import Op, Operation, Symbol, Tensor
from ...engine.ops.arrays.indexing import Place, SliceItem
from ...engine.ops.arrays.shaping import DimOf
from ...engine.ops.entrance import PublicCall
from ..models.raw_ops import literal_of

if TYPE_CHECKING:
    from ...engine.ops.arrays.creation import Fill
    from ...engine.ops.arrays.indexing import GetItem
    from ...engine.ops.arrays.sequences import ReverseSequence
    from ...engine.ops.arrays.shaping import BroadcastTo
    from ..structures import Array

_EXPANDED = "as ops of Keras"  # an annotation: a second file holds the same names


def expand_operation(operation: Operation) -> list[Symbol] | None:
    """Return symbols with the values of an operation's outputs, by ops that Keras has; None if there are none.

    Args:
        operation: one for which Keras has no operation of its own.
    """
    expand = _OPERATIONS.get(type(operation.op).__name__)
    if expand is None:
        return None
    return _once(operation.outputs, lambda: expand(operation.op, *map(literal_of, operation.inputs)))


def expand_call(call: PublicCall) -> list[Symbol] | None:
    """Return symbols with the values of a call's outputs, by ops that Keras has; None if there are none."""
    expand = _calls().get(call.function)
    return None if expand is None else _once(call.outputs, lambda: expand(*call.args, **call.kwargs))


def _once(outputs: Sequence[Symbol], expand: Callable[[], object]) -> list[Symbol] | None:
    annotations = outputs[0].annotations
    if _EXPANDED not in annotations:
        result = expand()
        if result is not None:
            result = list(result) if isinstance(result, (list, tuple)) else [result]
        annotations[_EXPANDED] = result
    return annotations[_EXPANDED]


# --- sizes ----------------------------------------------------------------------------------------------------------


def _ones_along(x: Tensor, axis: int) -> Tensor | None:
    """Return as many ones of int32 as the size of an axis of `x`; None where Keras has no such tensors."""
    if x.shape is None or x.dtype.kind == "T":
        return None
    axis %= len(x.shape)
    others = tuple(other for other in range(len(x.shape)) if other != axis)
    ones = ops.ones_like(x, dtype="int32")
    return ops.ones_like(ops.sum(ones, axis=others)) if others else ones


def _ones_of(shape: Sequence[int | None], sizes: Sequence[object]) -> Symbol | None:
    """Return ones of int32 of a shape whose Nones are the sizes of axes; None if a size is something else."""
    result: Array | Tensor = np.ones([1 if size is None else size for size in shape], "int32")
    remaining = iter(sizes)
    for axis, size in enumerate(shape):
        if size is None:
            given = next(remaining)
            ones = _axis_ones(given)
            if ones is None:
                return None
            result = ops.multiply(ops.reshape(ones, [-1 if at == axis else 1 for at in range(len(shape))]), result)
    return result if isinstance(result, Symbol) else None


def _axis_ones(size: object) -> Tensor | None:
    if not isinstance(size, Symbol) or not isinstance(size.operation.op, DimOf):
        return None
    return _ones_along(size.operation.inputs[0], size.operation.op.axis)


def _dim_of(op: DimOf, x: Tensor) -> Tensor | None:
    ones = _ones_along(x, op.axis)
    return None if ones is None else ops.sum(ones)


def _fill(op: Fill, value: Tensor, *sizes: Tensor) -> Tensor | None:
    ones = _ones_of(op.shape, sizes)
    return None if ones is None else ops.full_like(ones, value, dtype=value.dtype)


def _broadcast(op: BroadcastTo, x: Tensor, *sizes: Tensor) -> Tensor | None:
    ones = _ones_of(op.shape, sizes)
    return None if ones is None else ops.where(ops.cast(ones, "bool"), x, x)


def _range(op: Op, start: Any, stop: object, step: Any) -> Tensor | None:
    """Return the positions along an axis."""
    ones = _axis_ones(stop)
    if ones is None or any(isinstance(value, Tensor) for value in (start, step)) or (int(start), int(step)) != (0, 1):
        return None
    return ops.cast(ops.subtract(ops.cumsum(ones), np.int32(1)), np.asarray(start).dtype)


# --- places ---------------------------------------------------------------------------------------------------------


def _item(op: GetItem, x: Tensor, *indices: Tensor) -> Tensor | None:
    """Return places along one axis, among slices that are known."""
    items = list(op.items)
    if len(indices) != 1 or x.shape is None or Place.INPUT not in items or not _is_known(items):
        return None
    index = ops.convert_to_tensor(indices[0])
    rank = index.ndim
    if rank is None or index.dtype.kind == "b" or (rank and any(isinstance(item, int) for item in items)):
        return None  # arrays beside integers move axes to the front
    axes = len(x.shape) - sum(item is not None and item is not Ellipsis for item in items)
    if Ellipsis not in items:
        items.append(Ellipsis)
    at = items.index(Ellipsis)
    items[at : at + 1] = [SliceItem(None, None, None)] * axes
    axis = sum(item is not None for item in items[: items.index(Place.INPUT)])
    taken = ops.take(x, indices[0], axis=axis)
    key = [[slice(None)] * rank if item is Place.INPUT else [_slice(item)] for item in items]
    flat = tuple(item for part in key for item in part)
    return taken if all(item == slice(None) for item in flat) else taken[flat]


def _is_known(items: Sequence[object]) -> bool:
    bounds = [bound for item in items if isinstance(item, SliceItem) for bound in (item.start, item.stop, item.step)]
    return Place.INPUT not in bounds and items.count(Place.INPUT) == 1


def _slice(item: object) -> object:
    return slice(item.start, item.stop, item.step) if isinstance(item, SliceItem) else item


def _gather_nd(op: Op, x: Any, indices: Tensor) -> Tensor | None:
    """Return the parts of a tensor whose first axes are one."""
    depth = indices.shape[-1] if indices.shape else None
    if depth is None or x.shape is None:
        return None
    if depth == 1:
        return ops.take(x, indices[..., 0], axis=0)
    sizes, rest = x.shape[1:depth], x.shape[depth:]
    if depth == 0 or None in sizes or None in rest:
        return None
    strides = [int(np.prod(sizes[at:])) for at in range(depth)]
    place: Tensor = ops.multiply(indices[..., 0], strides[0])
    for at in range(1, depth):
        place = ops.add(place, ops.multiply(indices[..., at], strides[at]))
    return ops.take(ops.reshape(x, (-1, *rest)), place, axis=0)


def _reverse_sequence(op: ReverseSequence, x: Tensor, lengths: Tensor) -> Tensor | None:
    if x.shape is None:
        return None
    ones = _ones_along(x, op.seq_axis)
    if ones is None:
        return None
    rank = len(x.shape)
    step = ops.reshape(ops.subtract(ops.cumsum(ones), np.int32(1)), _along(op.seq_axis, rank))
    length = ops.reshape(ops.cast(lengths, "int32"), _along(op.batch_axis, rank))
    place = ops.where(ops.less(step, length), length - step - 1, step)
    return ops.take_along_axis(x, ops.add(place, ops.zeros_like(x, dtype="int32")), axis=op.seq_axis)


def _along(axis: int, rank: int) -> list[int]:
    return [-1 if at == axis % rank else 1 for at in range(rank)]


# --- numbers --------------------------------------------------------------------------------------------------------


def _from_parts(op: Op, real: Tensor, imag: Tensor) -> Tensor:
    zeros = ops.zeros_like(ops.add(real, imag))
    return ops.view_as_complex(ops.stack([ops.add(real, zeros), ops.add(imag, zeros)], axis=-1))


def _running(function: Callable[..., Tensor], first: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Expand running sums and products that go from the end, or leave the element itself out."""

    def expand(op: Any, x: Any) -> Tensor:
        if op.reverse:
            x = ops.flip(x, axis=op.axis)
        if op.exclusive:
            axis = op.axis % len(x.shape)
            before = (slice(None),) * axis
            start = x[(*before, slice(0, 1))]
            x = ops.concatenate([first(start), x[(*before, slice(0, -1))]], axis=axis)
        result = function(x, axis=op.axis)
        return ops.flip(result, axis=op.axis) if op.reverse else result

    return expand


def _inverse_fft(x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Invert a Fourier transform by the transform: with the parts exchanged before and after, it goes back."""
    real, imag = x
    size = ops.shape(real)[-1]
    if isinstance(size, Tensor):
        size = ops.cast(size, real.dtype)
    one, other = ops.fft((imag, real))
    return ops.divide(other, size), ops.divide(one, size)


# --- convolutions ---------------------------------------------------------------------------------------------------


def _convolution(op: Any, x: Tensor, kernel: Any) -> Tensor | None:
    """Return groups of channels by themselves, and padding before the convolution where its name is none of Keras's."""
    channels = x.shape[-1] if x.shape else None
    if channels is None or kernel.shape is None or kernel.shape[-2] is None:
        return None
    padding = op.padding
    if padding not in ("valid", "same"):
        if padding == "causal":
            padding = tuple((spread * (size - 1), 0) for spread, size in zip(op.dilation, kernel.shape, strict=False))
        x, padding = ops.pad(x, ((0, 0), *padding, (0, 0))), "valid"
    options = {"strides": op.strides, "padding": padding, "dilation_rate": op.dilation, "data_format": "channels_last"}
    groups = channels // kernel.shape[-2]
    if groups == 1:
        return ops.conv(x, kernel, **options)
    if kernel.shape[-2] == 1:
        shape = (*kernel.shape[:-2], channels, -1)
        return ops.depthwise_conv(x, ops.reshape(kernel, shape), **options)
    split = np.split if isinstance(kernel, np.ndarray) else ops.split
    pairs = zip(ops.split(x, groups, axis=-1), split(kernel, groups, axis=-1), strict=True)
    return ops.concatenate([ops.conv(part, own, **options) for part, own in pairs], axis=-1)


def _transposed_convolution(op: Any, x: Any, kernel: Tensor, _: object) -> Tensor | None:
    """Return the convolution of the input with zeros between its cells, and of the kernel turned over."""
    rank = len(op.strides)
    sizes = [x.shape and x.shape[1 + axis] for axis in range(rank)]
    shape = op.shape or ()
    if (
        kernel.shape is None
        or not shape
        or None in (*sizes, *shape[1:], *kernel.shape)
        or kernel.shape[-2] != shape[-1]
    ):
        return None
    windows = op.windows((1, *shape[1:]), kernel.shape)
    for axis, (window, size) in enumerate(zip(windows, sizes, strict=True), 1):
        x = _with_gaps(x, axis, size, window.stride)
        reach = window.dilation * (window.kernel - 1)
        before = reach - window.before
        x = _padded(x, axis, before, window.size + reach - before - ((size - 1) * window.stride + 1))
    spatial = tuple(range(rank))
    kernel = ops.transpose(ops.flip(kernel, axis=spatial), (*spatial, rank + 1, rank))
    return ops.conv(x, kernel, padding="valid", data_format="channels_last", dilation_rate=op.dilation)


def _with_gaps(x: Any, axis: int, size: int, stride: int) -> Tensor:
    """Return `x` with zeros between its cells along an axis."""
    if stride == 1:
        return x
    rest = [-1 if length is None else length for length in x.shape]
    x = ops.pad(ops.expand_dims(x, axis + 1), [(0, stride - 1 if at == axis + 1 else 0) for at in range(x.ndim + 1)])
    x = ops.reshape(x, [*rest[:axis], size * stride, *rest[axis + 1 :]])
    return _padded(x, axis, 0, 1 - stride)


def _padded(x: Any, axis: int, before: int, behind: int) -> Tensor:
    """Return `x` with zeros before and behind along an axis; less than none are cut off."""
    if min(before, behind) < 0:
        size = x.shape[axis]
        part = slice(max(-before, 0), size - max(-behind, 0))
        x = x[tuple(part if at == axis else slice(None) for at in range(x.ndim))]
    widths = [(max(before, 0), max(behind, 0)) if at == axis else (0, 0) for at in range(x.ndim)]
    return ops.pad(x, widths) if any(map(sum, widths)) else x


_OPERATIONS: dict[str, Callable[..., Tensor | None]] = {
    "BroadcastTo": _broadcast,
    "Conv": _convolution,
    "ConvInputGrad": _transposed_convolution,
    "CumProd": _running(ops.cumprod, ops.ones_like),
    "CumSum": _running(ops.cumsum, ops.zeros_like),
    "DimOf": _dim_of,
    "Fill": _fill,
    "FromParts": _from_parts,
    "GatherNd": _gather_nd,
    "GetItem": _item,
    "GetItems": _item,
    "InvertPermutation": lambda op, x: ops.cast(ops.argsort(x), x.dtype),
    "Range": _range,
    "ReverseSequence": _reverse_sequence,
}


@functools.cache
def _calls() -> dict[Callable[..., object], Callable[..., object]]:
    return {
        inspect.unwrap(ops.ifft): _inverse_fft,
        inspect.unwrap(ops.tensor_scatter_nd_max): functools.partial(ops.scatter_update, reduction="max"),
        inspect.unwrap(ops.tensor_scatter_nd_min): functools.partial(ops.scatter_update, reduction="min"),
    }
