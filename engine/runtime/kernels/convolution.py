"""Which convolutions have kernels, and the sizes for which these are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ...graph.graph import Operation
from ...graph.spec import TensorSpec
from ...ops.convolution import Conv, ConvFilterGrad, ConvInputGrad
from ...ops.window_geometry import Window
from .bound import BoundKernel
from .correlation import FIELDS, CorrelationKernel
from .correlation_filter import FILTER_FIELDS, FilterKernel
from .entry import Operand
from .expression import llvm_type
from .library import library
from .registers import Registers, registers_of
from .scratch import scratch

Shape = tuple[int, ...]
PARTS = 16
_ROWS_ELEMENTS = 1 << 16  # of a copy with padding: with the result's rows, it stays in the cache
_SERIAL_PRODUCTS = 1 << 20  # up to which threads cost more than they help
_BLOCK_BYTES = 1 << 15  # of input and cotangents, which a filter's gradient reads again for each tile
_SUMS_ELEMENTS = 1 << 20  # of all parts' sums of filters' gradients
_FEW_PIXELS = 4  # a row: below that, tiles are too small for many weights
_MANY_WEIGHTS = 1 << 17


@dataclass(frozen=True)
class _Phase:
    """A correlation of an array [images, down, across, depth] with filters.

    Attributes:
        down, across: the windows.
        weights: where the first weight lies, and the steps from a tap to the next down and across, from a channel to
            the next, and from a filter to the next.
        out: where the result begins, and the steps from an image, a row and a pixel to the next.
    """

    down: Window
    across: Window
    weights: tuple[int, int, int, int, int]
    out: tuple[int, int, int, int]


def bind_convolution(operation: Operation) -> BoundKernel | None:
    """The kernel of a `Conv`."""
    op = operation.op
    x, kernel = _static_shapes(operation, (0, 1))
    assert isinstance(op, Conv)
    if not x or not kernel or not _has_kernels(operation, x, kernel):
        return None
    down, across = _two_axes(op.windows(x, kernel))
    if _is_pointwise(down, across):
        return None
    channels, filters = kernel[-2:]
    weights = (0, across.kernel * channels * filters, channels * filters, filters, 1)
    out = (0, down.out * across.out * filters, across.out * filters, filters)
    return _bound(operation, [_Phase(down, across, weights, out)], x[0], channels, filters)


def bind_input_gradient(operation: Operation) -> BoundKernel | None:
    """The kernel of a `ConvInputGrad`."""
    op = operation.op
    dy, kernel = _static_shapes(operation, (0, 1))
    (x,) = _static_results(operation)
    assert isinstance(op, ConvInputGrad)
    if not x or not dy or not kernel or not _has_kernels(operation, x, kernel):
        return None
    down, across = _two_axes(op.windows(x, kernel, dy))
    if _is_pointwise(down, across):
        return None
    channels, filters = kernel[-2:]
    phases: list[_Phase] = []
    for (top, rows, below), (left, columns, beside) in product(down.phases(), across.phases()):
        taps = range(down.kernel)[rows], range(across.kernel)[columns]
        steps = across.kernel * channels * filters, channels * filters
        start = sum(cells[-1] * step for cells, step in zip(taps, steps, strict=True) if cells)
        turned = [-step * cells.step for cells, step in zip(taps, steps, strict=True)]
        row = across.size * channels
        out = (top * row + left * channels, down.size * row, down.stride * row, across.stride * channels)
        if below.out and beside.out:
            phases.append(_Phase(below, beside, (start, turned[0], turned[1], 1, filters), out))
    return _bound(operation, phases, dy[0], filters, channels)


def bind_filter_gradient(operation: Operation) -> BoundKernel | None:
    """The kernel of a `ConvFilterGrad`."""
    op = operation.op
    x, dy = _static_shapes(operation, (0, 1))
    (kernel,) = _static_results(operation)
    assert isinstance(op, ConvFilterGrad)
    if not x or not dy or not kernel or not _has_kernels(operation, x, kernel):
        return None
    down, across = _two_axes(op.windows(x, kernel, dy))
    if _is_pointwise(down, across) or not (down.out and across.out):
        return None
    channels, filters = kernel[-2:]
    element = llvm_type(operation.outputs[0].dtype)
    registers = registers_of(library.host, element)
    cells = down.kernel * across.kernel * channels
    rows, vectors, is_consecutive = _filter_tile(cells, channels, filters, registers)
    is_padded = not (down.inside and across.inside)
    is_uneven = filters % (registers.lanes * vectors) > 0
    inputs = [tensor.spec for tensor in operation.inputs if isinstance(tensor.spec, TensorSpec)]
    outputs = [tensor.spec for tensor in operation.outputs if isinstance(tensor.spec, TensorSpec)]
    operands = operands_of(inputs, outputs)
    spec = FilterKernel(operands, element, registers.lanes, rows, vectors, is_consecutive, is_padded, is_uneven)
    return BoundKernel(spec, inputs, outputs, _filter_numbers(spec, down, across, x[0], channels, filters))


def _static_shapes(operation: Operation, positions: Sequence[int]) -> list[Shape]:
    """The shapes of inputs; an empty one for what is not known."""
    return [_static(operation.inputs[position].spec) for position in positions]


def _static_results(operation: Operation) -> list[Shape]:
    return [_static(tensor.spec) for tensor in operation.outputs]


def _static(spec: Any) -> Shape:
    if not isinstance(spec, TensorSpec) or spec.shape is None:
        return ()
    known = tuple(dim for dim in spec.shape if dim is not None)
    return known if len(known) == len(spec.shape) else ()


def _has_kernels(operation: Operation, x: Shape, kernel: Shape) -> bool:
    """Whether these are numbers, shapes and groups for which there are kernels."""
    is_planar = 3 <= len(x) <= 4
    is_floating = operation.outputs[0].dtype.name in ("float32", "float64")
    return is_planar and is_floating and 0 not in x and 0 not in kernel and x[-1] == kernel[-2]


def _two_axes(windows: Sequence[Window]) -> tuple[Window, Window]:
    """Windows along two axes: the first is one cell if there is none."""
    return (windows[0], windows[1]) if len(windows) == 2 else (Window(1, 1, 1, 1, 0, 1), windows[0])


def _is_pointwise(down: Window, across: Window) -> bool:
    """Whether each cell is a window: then it is one matrix product."""
    return all(w.kernel == w.stride == 1 and w.before == 0 and w.out == w.size for w in (down, across))


def _bound(
    operation: Operation, phases: Sequence[_Phase], images: int, channels: int, filters: int
) -> BoundKernel | None:
    least = min((phase.across.out for phase in phases), default=0)
    count = sum(phase.down.kernel * phase.across.kernel for phase in phases) * channels * filters
    element = llvm_type(operation.outputs[0].dtype)
    registers = registers_of(library.host, element)
    if not least or 2 * filters < registers.lanes or (least < _FEW_PIXELS and count > _MANY_WEIGHTS):
        return None
    pixels, vectors = _tile(least, filters, registers)
    is_padded = not all(phase.down.inside and phase.across.inside for phase in phases)
    inputs = [tensor.spec for tensor in operation.inputs if isinstance(tensor.spec, TensorSpec)]
    outputs = [tensor.spec for tensor in operation.outputs if isinstance(tensor.spec, TensorSpec)]
    spec = CorrelationKernel(
        operands_of(inputs, outputs),
        len(phases),
        element,
        registers.lanes,
        pixels,
        vectors,
        phases[0].across.stride * channels,
        is_padded,
    )
    numbers = [number for phase in phases for number in _numbers(spec, phase, images, channels, filters)]
    return BoundKernel(spec, inputs, outputs, numbers)


def operands_of(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[Operand, ...]:
    """The operands of a kernel that takes whole arrays."""
    specs = [*inputs, *outputs]
    return tuple(
        Operand(llvm_type(spec.dtype), len(spec.shape or ()) or None, (), position >= len(inputs))
        for position, spec in enumerate(specs)
    )


def _tile(columns: int, filters: int, registers: Registers) -> tuple[int, int]:
    """Pixels and vectors of a tile: those with which a row takes the fewest cycles.

    A vector multiplication and a load take half a cycle each, and a sum waits for the one before for four.
    """
    best: tuple[float, int, int] | None = None
    for vectors in range(1, 9):
        most = registers.sums // vectors
        if not most or (vectors > 1 and (vectors - 1) * registers.lanes >= filters):
            break
        tiles = -(-columns // most)
        pixels = -(-columns // tiles)
        cycles = max(pixels * vectors / 2, (pixels + vectors) / 2, 4.0) + 0.05 * (pixels + 2 * vectors)
        cost = tiles * -(-filters // (vectors * registers.lanes)) * cycles
        if best is None or cost < best[0]:
            best = (cost, pixels, vectors)
    assert best is not None
    return best[1], best[2]


def _numbers(kernel: CorrelationKernel, phase: _Phase, images: int, channels: int, filters: int) -> list[int]:
    """What the code reads of a phase."""
    down, across = phase.down, phase.across
    size = 8 if kernel.element == "double" else 4
    width = kernel.lanes * kernel.vectors
    panels = -(-filters // width)
    panel_size = down.kernel * across.kernel * channels * width
    padded_width = max(across.extent, 1)
    block = rows_of_block(down, images, padded_width * channels)
    blocks = -(-down.out // block)
    products = images * down.out * across.out * filters * down.kernel * across.kernel * channels
    parts = 1 if products < _SERIAL_PRODUCTS else min(PARTS, images * blocks)
    rows_size = aligned(((block - 1) * down.stride + (down.kernel - 1) * down.dilation + 1) * padded_width * channels)
    rows_size = rows_size if kernel.is_padded else 0
    address = scratch((panels * panel_size + PARTS * rows_size) * size)
    numbers = {
        "batch": images,
        "rows": down.out,
        "columns": across.out,
        "height": down.size,
        "width": across.size,
        "channels": channels,
        "filters": filters,
        "taps_down": down.kernel,
        "taps_across": across.kernel,
        "step_down": down.dilation,
        "step_across": across.dilation,
        "stride_down": down.stride,
        "before_down": down.before,
        "before_across": across.before,
        **dict(zip(FIELDS[14:19], phase.weights, strict=True)),
        **dict(zip(FIELDS[19:23], phase.out, strict=True)),
        "block": block,
        "blocks": blocks,
        "parts": parts,
        "padded_width": padded_width,
        "panels": panels,
        "panel_size": panel_size,
        "panel_address": address,
        "rows_address": address + panels * panel_size * size,
        "rows_size": rows_size,
    }
    return [numbers[name] for name in FIELDS]


def rows_of_block(down: Window, images: int, row: int) -> int:
    """How many rows of the result a block has: their input fits into the cache, and there are blocks for all parts."""
    fitting = (_ROWS_ELEMENTS // max(1, row) - (down.kernel - 1) * down.dilation - 1) // down.stride + 1
    wanted = -(-down.out * images // PARTS) if images < PARTS else down.out
    return max(1, min(down.out, fitting, wanted))


def aligned(count: int) -> int:
    """A number of elements of which vectors behind it begin at a full cache line."""
    return -(-count // 16) * 16


def _filter_tile(cells: int, channels: int, filters: int, registers: Registers) -> tuple[int, int, bool]:
    """Cells and vectors of a tile of a filter's gradient, and whether its cells are channels side by side."""
    best: tuple[float, int, int, bool] | None = None
    for vectors in range(1, 5):
        if vectors > 1 and (vectors - 1) * registers.lanes >= filters:
            break
        for rows in range(1, min(cells, registers.sums // vectors, 16) + 1):
            is_consecutive = channels % rows == 0 and rows > 1
            if not is_consecutive and rows > 10:  # as many places have to be kept in registers too
                continue
            cycles = max(rows * vectors / 2, (rows + vectors) / 2, 4.0) + (0.5 if is_consecutive else 0.1 * rows + 0.5)
            cost = -(-cells // rows) * -(-filters // (vectors * registers.lanes)) * cycles
            if best is None or cost < best[0]:
                best = (cost, rows, vectors, is_consecutive)
    assert best is not None
    return best[1:]


def _filter_numbers(
    kernel: FilterKernel, down: Window, across: Window, images: int, channels: int, filters: int
) -> list[int]:
    """What the code reads."""
    size = 8 if kernel.element == "double" else 4
    panels = -(-filters // kernel.width)
    cells = down.kernel * across.kernel * channels
    tiles = -(-cells // kernel.cells)
    padded_width = max(across.extent, 1)
    row = (padded_width if kernel.is_padded else across.size) * channels
    per_line = (down.stride * row + across.out * filters) * size
    block = min(down.out, max(1, _BLOCK_BYTES // per_line))
    blocks = -(-down.out // block)
    sums_size = panels * tiles * kernel.cells * kernel.width
    products = images * down.out * across.out * filters * cells
    image_parts = max(1, min(PARTS, images * blocks, _SUMS_ELEMENTS // sums_size))
    tile_parts = 1 if 2 * image_parts >= PARTS else min(PARTS // image_parts, panels * tiles)
    if products < _SERIAL_PRODUCTS:
        image_parts = tile_parts = 1
    parts = image_parts * tile_parts
    lines = (block - 1) * down.stride + (down.kernel - 1) * down.dilation + 1
    rows_size = aligned(lines * padded_width * channels) if kernel.is_padded else 0
    cotangents_size = block * across.out * panels * kernel.width if kernel.is_uneven else 0
    sizes = [parts * cotangents_size * size, image_parts * sums_size * size, parts * rows_size * size]
    address = scratch(sum(sizes) + tiles * kernel.cells * 8)
    places = [address, address + sizes[0], address + sum(sizes[:2]), address + sum(sizes)]
    numbers = {
        "batch": images,
        "rows": down.out,
        "columns": across.out,
        "height": down.size,
        "width": across.size,
        "channels": channels,
        "filters": filters,
        "taps_down": down.kernel,
        "taps_across": across.kernel,
        "step_down": down.dilation,
        "step_across": across.dilation,
        "stride_down": down.stride,
        "before_down": down.before,
        "before_across": across.before,
        "block": block,
        "blocks": blocks,
        "parts": parts,
        "image_parts": image_parts,
        "tile_parts": tile_parts,
        "sum_parts": 8 if image_parts * sums_size > 1 << 16 else 1,
        "padded_width": padded_width,
        "pixel_step": across.stride * channels,
        "row": row,
        "panels": panels,
        "tiles": tiles,
        "cells": cells,
        "cotangents_address": places[0],
        "cotangents_size": cotangents_size,
        "sums_address": places[1],
        "sums_size": sums_size,
        "rows_address": places[2],
        "rows_size": rows_size,
        "offsets_address": places[3],
    }
    return [numbers[name] for name in FILTER_FIELDS]
