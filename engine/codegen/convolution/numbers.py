"""The numbers that kernels of convolutions read: sizes, how the work is cut up, and where they keep what they copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from ...common.machine_profile import machine_profile
from ...graph.spec import TensorSpec
from ...ops.neural.window_geometry import Window
from ..expression.expression import llvm_type
from ..llvm.builder import BYTES
from ..llvm.entry import Operand
from .correlation import AXES, FIELDS, RESULT, WEIGHTS, Correlation
from .correlation_filter import FILTER_FIELDS, FilterGradient
from .depthwise import DEPTHWISE_FIELDS, DepthwiseKernel
from .depthwise_filter import DEPTHWISE_FILTER_FIELDS, DepthwiseFilterKernel

Windows = tuple[Window, Window, Window]  # along depth, height and width
PARTS = 16
_ROWS_ELEMENTS = 1 << 16  # of a copy with padding: with the result's rows, it stays in the cache
_SUMS_ELEMENTS = 1 << 20  # of all parts' sums of filters' gradients
_LEAST_COLUMNS = 32  # of a block
_LEAST_PIXELS = 16  # for which a tap's sums are loaded and stored


class Sizes(NamedTuple):
    """Sizes beside those of windows; channels and filters are those of a group."""

    images: int
    groups: int
    channels: int
    filters: int


class Phase(NamedTuple):
    """A correlation of an array [images, depth, height, width, groups * channels] with filters.

    Attributes:
        windows: the windows.
        weights: where the first weight is, and the steps from a tap to the next along each axis, from a channel, a
            filter and a group to the next.
        out: where the result begins, and the steps from an image, a plane, a row and a pixel to the next.
    """

    windows: Windows
    weights: tuple[int, ...]
    out: tuple[int, ...]


class Blocks(NamedTuple):
    """The rows and columns of the result in a unit of work. Only units of one row are less wide than a row."""

    rows: int
    columns: int


def known_shape(spec: object) -> tuple[int, ...]:
    """Return the shape of an array; an empty one where it is not known."""
    if not isinstance(spec, TensorSpec) or spec.shape is None:
        return ()
    known = tuple(dim for dim in spec.shape if dim is not None)
    return known if len(known) == len(spec.shape) else ()


def operands_of(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[Operand, ...]:
    """Return the operands of a kernel that takes whole arrays."""
    return tuple(
        Operand(llvm_type(spec.dtype), len(spec.shape or ()) or None, (), position >= len(inputs))
        for position, spec in enumerate([*inputs, *outputs])
    )


def _products(windows: Windows, sizes: Sizes) -> int:
    """Return the number of multiplications."""
    count = sizes.images * sizes.groups * sizes.channels * sizes.filters
    for window in windows:
        count *= window.out * window.kernel
    return count


def _weights(windows: Windows, sizes: Sizes) -> int:
    """Return the number of weights in all groups."""
    deep, down, across = windows
    return deep.kernel * down.kernel * across.kernel * sizes.groups * sizes.channels * sizes.filters


def _parts(products: int, units: int) -> int:
    return 1 if products < machine_profile().convolution_work else min(PARTS, units)


def _geometry(windows: Windows, sizes: Sizes, blocks: Blocks) -> dict[str, int]:
    """Return the numbers that all the kernels read."""
    deep, down, across = windows
    pixel = sizes.groups * sizes.channels
    is_whole = blocks.columns == across.out
    extent = across.extent if is_whole else (blocks.columns - 1) * across.stride + _reach(across)
    lines = (blocks.rows - 1) * down.stride + _reach(down)
    counts = -(-down.out // blocks.rows), -(-across.out // blocks.columns)
    numbers = {
        "batch": sizes.images,
        "groups": sizes.groups,
        "channels": sizes.channels,
        "filters": sizes.filters,
        **dict(zip(("planes", "rows", "columns"), (window.out for window in windows), strict=True)),
        **dict(zip(("depth", "height", "width"), (window.size for window in windows), strict=True)),
        "pixel": pixel,
        "block": blocks.rows,
        "blocks": counts[0],
        "block_columns": blocks.columns,
        "column_blocks": counts[1],
        "units": sizes.images * deep.out * counts[0] * counts[1],
        "padded_width": max(extent, 1),
        "padded_lines": lines,
        "rows_address": 0,
    }
    for axis, window in zip(AXES, windows, strict=True):
        numbers[f"taps_{axis}"], numbers[f"step_{axis}"] = window.kernel, window.dilation
        numbers[f"stride_{axis}"], numbers[f"before_{axis}"] = window.stride, window.before
    return numbers | {"rows_size": _rows_size(numbers)}


def _rows_size(numbers: Mapping[str, int]) -> int:
    """Return the elements of a block's copy with padding."""
    return aligned(numbers["taps_deep"] * numbers["padded_lines"] * numbers["padded_width"] * numbers["pixel"])


def _reach(window: Window) -> int:
    return (window.kernel - 1) * window.dilation + 1


def correlation_numbers(kernel: Correlation, phases: Sequence[Phase], sizes: Sizes) -> list[int]:
    """Return the numbers that the code of a kernel reads of all phases, which use the same scratch memory in turn."""
    made = [_phase_numbers(kernel, phase, sizes) for phase in phases]
    return [*[number for numbers, _ in made for number in numbers], max(size for _, size in made)]


def _phase_numbers(kernel: Correlation, phase: Phase, sizes: Sizes) -> tuple[list[int], int]:
    """Return the numbers that the code reads of a phase, and the bytes of scratch memory that it takes."""
    size, width = BYTES[kernel.element], kernel.width
    deep, down, across = phase.windows
    panels = sizes.groups * -(-sizes.filters // width)
    panel_size = kernel.panel_size(deep.kernel * down.kernel * across.kernel, sizes.channels)
    products = _products(phase.windows, sizes)
    numbers = _geometry(phase.windows, sizes, _blocks_of_rows(phase.windows, sizes, products, kernel.pixels))
    numbers["padded_width"] = kernel.padded_width(numbers["padded_width"], across.stride)
    rows_size = _rows_size(numbers) if kernel.is_padded else 0
    numbers |= {
        **{f"weight_{name}": step for name, step in zip(WEIGHTS, phase.weights, strict=True)},
        **{f"out_{name}": step for name, step in zip(RESULT, phase.out, strict=True)},
        "parts": _parts(products, numbers["units"]),
        "panels": panels,
        "panel_size": panel_size,
        "panel_address": 0,
        "rows_address": panels * panel_size * size,
        "rows_size": rows_size,
    }
    return [numbers[name] for name in FIELDS], (panels * panel_size + PARTS * rows_size) * size


def _blocks_of_rows(windows: Windows, sizes: Sizes, products: int, pixels: int) -> Blocks:
    """Return blocks of which the input fits into the cache, so many that there are some for all parts."""
    deep, down, across = windows
    row = max(1, deep.kernel * max(across.extent, 1) * sizes.groups * sizes.channels)
    room = 2 * _ROWS_ELEMENTS if _weights(windows, sizes) > machine_profile().weight_elements else _ROWS_ELEMENTS
    fitting = (room // row - (down.kernel - 1) * down.dilation - 1) // down.stride + 1
    images = sizes.images * deep.out
    wanted = -(-down.out * images // PARTS) if images < PARTS else down.out
    rows = max(1, min(down.out, fitting, wanted))
    lines = images * down.out
    if rows > 1 or products < machine_profile().convolution_work or (lines >= PARTS and row <= _ROWS_ELEMENTS):
        return Blocks(rows, across.out)
    fitting = _ROWS_ELEMENTS * across.out // row
    wanted = -(-across.out * lines // PARTS)
    return Blocks(1, max(min(pixels, across.out), _even(across.out, max(_LEAST_COLUMNS, min(fitting, wanted)))))


def _even(columns: int, most: int) -> int:
    """Return the width of blocks of `most` columns or fewer: the last one begins where the one before it ends.

    Blocks are of one width, and one that would be cut off computes columns of the one before it again.
    """
    return -(-columns // -(-columns // most))


def aligned(count: int) -> int:
    """Return a number of elements of which vectors behind it begin at a full cache line."""
    return -(-count // 16) * 16


def filter_numbers(kernel: FilterGradient, windows: Windows, sizes: Sizes) -> list[int]:
    """Return the numbers that the code of a filter kernel reads."""
    size = BYTES[kernel.element]
    deep, down, across = windows
    group_panels = -(-sizes.filters // kernel.width)
    panels = sizes.groups * group_panels
    cells = kernel.cell_count(deep.kernel * down.kernel * across.kernel, sizes.channels)
    tiles = -(-cells // kernel.cells)
    numbers = _geometry(windows, sizes, _blocks_to_read_again(kernel, windows, sizes))
    units = numbers["units"]
    sums_size = panels * tiles * kernel.cells * kernel.width
    image_parts = max(1, min(PARTS, units, _SUMS_ELEMENTS // sums_size))
    tile_parts = 1 if 2 * image_parts >= PARTS else min(PARTS // image_parts, panels * tiles)
    if _products(windows, sizes) < machine_profile().convolution_work:
        image_parts = tile_parts = 1
    parts = image_parts * tile_parts
    numbers["padded_width"] = kernel.padded_width(across, numbers["block_columns"], numbers["padded_width"])
    rows_size = _rows_size(numbers) if kernel.is_padded else 0
    cotangents = kernel.cotangents_size(numbers["block"], numbers["block_columns"], panels)
    pieces = [parts * cotangents, image_parts * sums_size, parts * rows_size]
    *places, end = accumulate([piece * size for piece in pieces], initial=0)
    numbers |= {
        "parts": parts,
        "image_parts": image_parts,
        "tile_parts": tile_parts,
        "sum_parts": 8 if image_parts * sums_size > 1 << 16 else 1,
        "group_panels": group_panels,
        "panels": panels,
        "tiles": tiles,
        "cells": cells,
        "cotangents_address": places[0],
        "cotangents_size": cotangents,
        "sums_address": places[1],
        "sums_size": sums_size,
        "rows_address": places[2],
        "rows_size": rows_size,
        "offsets_address": end,
        "scratch_bytes": end + tiles * kernel.cells * 8,
    }
    return [numbers[name] for name in FILTER_FIELDS]


def _blocks_to_read_again(kernel: FilterGradient, windows: Windows, sizes: Sizes) -> Blocks:
    """Return blocks small enough to stay in the cache while each tile reads them."""
    _, down, across = windows
    size = BYTES[kernel.element]
    width = max(across.extent, 1) if kernel.is_padded else across.size
    per_line = (down.stride * width * sizes.channels + across.out * sizes.filters) * sizes.groups * size
    rows = min(down.out, max(1, machine_profile().first_cache_bytes // per_line))
    if rows > 1:
        return Blocks(rows, across.out)
    columns = max(_LEAST_COLUMNS, across.out * machine_profile().first_cache_bytes // per_line)
    return Blocks(1, across.out if columns >= across.out else columns)


def depthwise_numbers(kernel: DepthwiseKernel, phase: Phase, sizes: Sizes) -> list[int]:
    """Return the numbers that the code reads of a phase."""
    across = phase.windows[2]
    products = _products(phase.windows, sizes)
    numbers = _geometry(phase.windows, sizes, _lines(phase.windows, sizes))
    begin, end = inner_columns(across)
    numbers |= {
        **{f"weight_{name}": step for name, step in zip(WEIGHTS, phase.weights, strict=True)},
        **{f"out_{name}": step for name, step in zip(RESULT, phase.out, strict=True)},
        "parts": _parts(products, numbers["units"]),
        "vectors": -(-sizes.groups // kernel.lanes),
        "inner_begin": begin,
        "inner_end": end,
    }
    return [numbers[name] for name in DEPTHWISE_FIELDS]


def _lines(windows: Windows, sizes: Sizes) -> Blocks:
    """Return blocks of one row, or if there are not enough of them, of a part of a row."""
    deep, down, across = windows
    lines = sizes.images * deep.out * down.out
    wanted = across.out if lines >= PARTS else -(-across.out * lines // PARTS)
    return Blocks(1, min(across.out, max(_LEAST_COLUMNS, wanted)))


def inner_columns(across: Window) -> tuple[int, int]:
    """Return the first column whose window is inside the input, and the first behind the last."""
    begin = min(across.out, max(0, -(-across.before // across.stride)))
    last = (across.size + across.before - _reach(across)) // across.stride
    return begin, max(begin, min(across.out, last + 1))


def depthwise_filter_numbers(kernel: DepthwiseFilterKernel, windows: Windows, sizes: Sizes) -> list[int]:
    """Return the numbers that the code of a depthwise filter kernel reads."""
    products = _products(windows, sizes)
    pixel = sizes.groups * (1 + sizes.filters) * BYTES[kernel.element]
    near = machine_profile().first_cache_bytes // 2  # for input and cotangents, which each tap of a filter reads
    columns = min(_lines(windows, sizes).columns, max(_LEAST_PIXELS, near // pixel))
    numbers = _geometry(windows, sizes, Blocks(1, columns))
    tiles = -(-sizes.groups // kernel.channels)
    taps = windows[0].kernel * windows[1].kernel * windows[2].kernel
    sums_size = aligned(taps * tiles * kernel.channels * kernel.multiplier)
    parts = _parts(products, max(1, min(numbers["units"], _SUMS_ELEMENTS // sums_size)))
    numbers |= {
        "parts": parts,
        "tiles": tiles,
        "taps": taps,
        "sums_address": 0,
        "sums_size": sums_size,
        "scratch_bytes": parts * sums_size * BYTES[kernel.element],
    }
    return [numbers[name] for name in DEPTHWISE_FILTER_FIELDS]
