"""The arithmetic of convolutions, on arrays of shape [batch, *spatial, channels].

The cells under each window are copied side by side ("im2col"), a block at a time that stays in the cache, and one
matrix product does the rest. What goes back to the input of a convolution is a convolution itself: one for each place
between strides, with those cells of the kernel that reach it.

Sources: K. Chellapilla, S. Puri, P. Simard, "High performance convolutional neural networks for document processing"
(2006); A. Vasudevan, A. Anderson, D. Gregg, "Parallel multi channel convolution using general matrix multiplication"
(2017), for convolutions with few filters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from .window_geometry import Window, cells, overlaps

# Elements of a block of columns. From 0.5 to 4 MB the time is the same within a tenth; 64 samples at once, as one array
# of 75 MB, take twice as long.
_BLOCK = 1 << 19
_ELEMENTWISE = 8  # products a cell and channel, up to which depthwise kernels are multiplied without matrix products
Block = tuple[Any, Any]  # slices of samples, and of rows of the result


def correlate(xp: Any, x: Any, kernel: Any, windows: Sequence[Window]) -> Any:
    """Return the sums of the cells under each window times the kernel.

    Args:
        x: [batch, *sizes, channels].
        kernel: [*kernel sizes, channels of a group, filters].

    Returns:
        [batch, *outs, filters].
    """
    filters = kernel.shape[-1]
    shape = (x.shape[0], *[window.out for window in windows], filters)
    if not (math.prod(shape) and x.size and kernel.size):
        return xp.zeros(shape, x.dtype)
    groups = x.shape[-1] // kernel.shape[-2]
    taps = math.prod(kernel.shape[:-2])
    if groups == 1 and _is_pointwise(windows):
        return (_rows(x) @ _rows(kernel)).reshape(shape)
    if groups == 1 and taps > 1 and _has_few_filters(x.shape[-1], filters, windows):
        return _few_filters(xp, x, kernel, windows)
    out = xp.empty(shape, x.dtype)
    if _is_elementwise(kernel, groups):
        _depthwise(xp, x, kernel, windows, groups, out)
        return out
    matrices = _grouped_kernel(kernel, groups)
    for block, columns in _columns(xp, x, windows, groups):
        part = out[block]
        if groups == 1:
            xp.matmul(columns[0], matrices[0], out=_rows(part))
        else:
            part.reshape(-1, groups, filters // groups)[...] = (columns @ matrices).swapaxes(0, 1)
    return out


def correlate_transposed(xp: Any, dy: Any, kernel: Any, windows: Sequence[Window], channels: int) -> Any:
    """Apply the transpose of `correlate` in its input: what `dy`, shaped as its result, adds to each input cell.

    Args:
        dy: [batch, *outs, filters].
        kernel: [*kernel sizes, channels of a group, filters].
        windows: those of `correlate`.
        channels: those of the input.

    Returns:
        [batch, *sizes, channels].
    """
    if channels == kernel.shape[-2] and _are_disjoint(windows):
        return _disjoint(xp, dy, kernel, windows)
    turned = _turned_kernel(kernel, channels // kernel.shape[-2] if kernel.shape[-2] else 1)
    phases = list(product(*[window.phases() for window in windows]))
    out = None
    for phase in phases:
        across = [window for _, _, window in phase]
        chosen = turned[tuple(taps for _, taps, _ in phase)]
        part = correlate(xp, dy, chosen[(slice(None, None, -1),) * len(windows)], across)
        if len(phases) == 1:
            return part
        if out is None:
            out = xp.empty((dy.shape[0], *[window.size for window in windows], channels), dy.dtype)
        places = tuple(slice(place, None, w.stride) for (place, _, _), w in zip(phase, windows, strict=True))
        out[(slice(None), *places)] = part
    if out is None:
        return xp.zeros((dy.shape[0], *[window.size for window in windows], channels), dy.dtype)
    return out


def correlate_filter(xp: Any, x: Any, dy: Any, windows: Sequence[Window], shape: Sequence[int]) -> Any:
    """Apply the transpose of `correlate` in its kernel: what `dy`, shaped as its result, adds to each kernel cell.

    Args:
        x: [batch, *sizes, channels].
        dy: [batch, *outs, filters].
        shape: the kernel's.
    """
    if not (x.size and dy.size and math.prod(shape)):
        return xp.zeros(shape, x.dtype)
    per_group, filters = shape[-2:]
    groups = x.shape[-1] // per_group
    if groups == 1 and _is_pointwise(windows):
        return (_rows(x).T @ _rows(dy)).reshape(shape)
    out = xp.zeros(shape, x.dtype)
    if _is_elementwise(out, groups):
        _depthwise_filter(xp, x, dy, windows, groups, out)
        return out
    total = xp.zeros((groups, math.prod(shape[:-1]), filters // groups), x.dtype)
    for block, columns in _columns(xp, x, windows, groups):
        total += columns.swapaxes(1, 2) @ dy[block].reshape(-1, groups, filters // groups).swapaxes(0, 1)
    return total.reshape(groups, *shape[:-1], filters // groups).transpose(_back(len(shape))).reshape(shape)


# --- kernels --------------------------------------------------------------------------------------------------------


def _rows(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1])


def _back(rank: int) -> tuple[int, ...]:
    """Return the order of axes that moves the first to the place before the last."""
    return (*range(1, rank), 0, rank)


def _grouped_kernel(kernel: Any, groups: int) -> Any:
    """Return [*kernel, channels of a group, filters] as one matrix a group."""
    split = kernel.reshape(-1, groups, kernel.shape[-1] // groups)
    return split.swapaxes(0, 1)


def _turned_kernel(kernel: Any, groups: int) -> Any:
    """Return the kernel with the channels and filters of each group exchanged."""
    *sizes, per_group, filters = kernel.shape
    split = kernel.reshape(*sizes, per_group, groups, filters // groups)
    return split.swapaxes(-1, -3).reshape(*sizes, filters // groups, groups * per_group)


def _is_pointwise(windows: Sequence[Window]) -> bool:
    return all(w.kernel == 1 and w.stride == 1 and w.before == 0 and w.out == w.size for w in windows)


def _is_elementwise(kernel: Any, groups: int) -> bool:
    return groups > 1 and kernel.shape[-2] * (kernel.shape[-1] // groups) <= _ELEMENTWISE


# --- windows --------------------------------------------------------------------------------------------------------


def _window_view(xp: Any, x: Any, windows: Sequence[Window]) -> Any:
    """View [batch, *extents, channels] as [batch, *outs, *kernel sizes, channels]."""
    batch, *steps, channel = x.strides
    shape = (x.shape[0], *[w.out for w in windows], *[w.kernel for w in windows], x.shape[-1])
    outer = [step * w.stride for step, w in zip(steps, windows, strict=True)]
    inner = [step * w.dilation for step, w in zip(steps, windows, strict=True)]
    return xp.lib.stride_tricks.as_strided(x, shape, (batch, *outer, *inner, channel))


def _views(xp: Any, x: Any, windows: Sequence[Window]) -> Iterator[tuple[Block, Any]]:
    """Yield the cells under the windows, in blocks: the samples and the rows of the result, and their view."""
    if x.strides[-1] != x.itemsize:
        x = xp.ascontiguousarray(x)
    row = math.prod(w.out for w in windows[1:]) * math.prod(w.kernel for w in windows) * x.shape[-1]
    limit = _BLOCK if xp is np else 1 << 28
    rows = min(windows[0].out, max(1, limit // row))
    samples = min(x.shape[0], max(1, limit // (row * windows[0].out)))
    inside = all(window.inside for window in windows)
    into, source = _frame(windows)
    buffer = None if inside else xp.zeros((samples, *[w.extent for w in windows], x.shape[-1]), x.dtype)
    for first in range(0, x.shape[0], samples):
        part = x[(slice(first, first + samples), *source)]
        if buffer is not None:
            buffer[(slice(0, part.shape[0]), *into)] = part
            part = buffer[: part.shape[0]]
        view = _window_view(xp, part, windows)
        for top in range(0, windows[0].out, rows):
            yield (slice(first, first + samples), slice(top, top + rows)), view[:, top : top + rows]


def _frame(windows: Sequence[Window]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the part of all the windows' cells that the input fills, and the part of the input that fills it."""
    into: list[Any] = []
    source: list[Any] = []
    for window in windows:
        start, stop = max(0, window.before), max(0, min(window.extent, window.before + window.size))
        start = min(start, stop)
        into.append(slice(start, stop))
        source.append(slice(start - window.before, stop - window.before) if stop > start else slice(0, 0))
    return tuple(into), tuple(source)


def _columns(xp: Any, x: Any, windows: Sequence[Window], groups: int) -> Iterator[tuple[Block, Any]]:
    """Yield the cells under the windows as one matrix a group, in blocks. Blocks use the same memory again."""
    rank = len(windows)
    flat = None
    for block, view in _views(xp, x, windows):
        split = view.reshape(*view.shape[:-1], groups, -1) if groups > 1 else view[..., None, :]
        split = split.transpose(2 * rank + 1, *range(2 * rank + 1), 2 * rank + 2)
        if flat is None:  # the first block is the largest
            flat = xp.empty(split.size, x.dtype)
        copy = flat[: split.size].reshape(split.shape)
        xp.copyto(copy, split)
        yield block, copy.reshape(groups, math.prod(view.shape[: rank + 1]), -1)


# --- special cases --------------------------------------------------------------------------------------------------


def _has_few_filters(channels: int, filters: int, windows: Sequence[Window]) -> bool:
    """Test whether `_few_filters` is the quicker way: measured, on images of 16 to 64 cells a side."""
    many = filters == 1 or (channels >= 64 and channels >= 4 * filters)
    return many and all(window.stride == 1 for window in windows)


def _few_filters(xp: Any, x: Any, kernel: Any, windows: Sequence[Window]) -> Any:
    """Correlate at stride 1 by one product of all cells with all kernel cells, whose parts are shifted and added.

    It moves batch * cells * kernel cells * filters numbers; columns are batch * cells * kernel cells * channels.
    """
    *_, channels, filters = kernel.shape
    out = xp.zeros((x.shape[0], *[window.out for window in windows], filters), x.dtype)
    matrix = xp.ascontiguousarray(xp.moveaxis(kernel, -2, 0)).reshape(channels, -1)
    samples = max(1, _BLOCK // max(1, math.prod(x.shape[1:-1]) * matrix.shape[1]))
    for first in range(0, x.shape[0], samples):
        part = x[first : first + samples]
        products = (_rows(part) @ matrix).reshape(*part.shape[:-1], -1, filters)
        for number, cell in enumerate(cells(windows)):
            into, source = overlaps(windows, cell)
            out[first : first + samples][into] += products[source][..., number, :]
    return out


def _are_disjoint(windows: Sequence[Window]) -> bool:
    """Test whether all windows are inside the input and none is in another's reach."""
    return all(w.inside and w.kernel <= w.stride and (w.kernel == 1 or w.dilation == 1) for w in windows)


def _disjoint(xp: Any, dy: Any, kernel: Any, windows: Sequence[Window]) -> Any:
    """Compute `correlate_transposed` where no cell is in two windows: each gets one product."""
    out = xp.zeros((dy.shape[0], *[window.size for window in windows], kernel.shape[-2]), dy.dtype)
    if not (out.size and dy.size):
        return out
    view = _window_view(xp, out[(slice(None), *_frame(windows)[1])], windows)
    view[...] = (_rows(dy) @ _rows(kernel).T).reshape(view.shape)
    return out


def _letters(rank: int) -> tuple[str, str]:
    return "xyz"[:rank], "uvw"[:rank]


def _parts(xp: Any, x: Any, groups: int) -> list[Any]:
    """Return the first channels of all groups, the second ones, and so on."""
    if x.shape[-1] == groups:
        return [x]
    split = x.reshape(*x.shape[:-1], groups, -1)
    return [xp.ascontiguousarray(split[..., number]) for number in range(split.shape[-1])]


def _depthwise(xp: Any, x: Any, kernel: Any, windows: Sequence[Window], groups: int, out: Any) -> None:
    """Correlate with few channels and filters a group: products of vectors over the groups."""
    *sizes, per_group, filters = kernel.shape
    multiplier = filters // groups
    weights = kernel.reshape(*sizes, per_group, groups, multiplier)
    outs, inner = _letters(len(windows))
    subscripts = f"n{outs}{inner}g,{inner}g->n{outs}g"
    for number, part in enumerate(_parts(xp, x, groups)):
        kernels = [xp.ascontiguousarray(weights[..., number, :, multiple]) for multiple in range(multiplier)]
        for block, view in _views(xp, part, windows):
            target = out[block].reshape(*view.shape[: len(windows) + 1], groups, multiplier)
            for multiple in range(multiplier):
                term = xp.einsum(subscripts, view, kernels[multiple])
                target[..., multiple] = target[..., multiple] + term if number else term


def _depthwise_filter(xp: Any, x: Any, dy: Any, windows: Sequence[Window], groups: int, out: Any) -> None:
    """Add `correlate_filter` with few channels and filters a group to `out`."""
    *sizes, per_group, filters = out.shape
    split = out.reshape(*sizes, per_group, groups, filters // groups)
    outs, _ = _letters(len(windows))
    subscripts = f"n{outs}g,n{outs}g->g"
    inputs, cotangents = _parts(xp, x, groups), _parts(xp, dy, groups)
    for cell in cells(windows):
        into, source = overlaps(windows, cell)
        for (a, part), (multiple, cotangent) in product(enumerate(inputs), enumerate(cotangents)):
            split[(*cell, a, slice(None), multiple)] = xp.einsum(subscripts, part[source], cotangent[into])
