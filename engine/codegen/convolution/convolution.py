"""The rule of convolutions that have kernels, and the choice of their tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.neural.convolution import Conv, ConvFilterGrad, ConvInputGrad
from ...ops.neural.window_geometry import Window
from ..elementwise.bound import BoundKernel
from ..elementwise.kernel_specs import specs_of
from ..expression.expression import llvm_type
from ..llvm.library import library
from ..llvm.registers import Registers, registers_of, tile_cycles
from ..matmul.gemm_bind import bind_pointwise
from .correlation import Correlation, CorrelationKernel
from .correlation_filter import FilterGradient, FilterKernel
from .depthwise import DepthwiseKernel
from .depthwise_filter import DepthwiseFilterKernel
from .few_filters import ChannelVectors, PixelVectors, channel_pixels, pixel_vectors
from .few_filters_gradient import ChannelVectorsGradient, PixelVectorsGradient, cells_of_tile
from .numbers import (
    Phase,
    Sizes,
    Windows,
    correlation_numbers,
    depthwise_filter_numbers,
    depthwise_numbers,
    filter_numbers,
    inner_columns,
    known_shape,
    operands_of,
)

Shape = tuple[int, ...]
_FEW_PIXELS = 4  # a row: below that, tiles are too small for many weights
_MANY_WEIGHTS = 1 << 17
_FEW_CELLS = 1 << 12  # of a pointwise convolution
_FEW_FILTERS = 64  # up to which a matrix product in one piece takes longer than tiles
_MANY_REGISTERS = 32
_UNSURE = 1.05  # the estimate of a tile's cycles errs by so much
_PIXELS = 8  # of a tile where each channel is by itself


def bind_convolution(operation: Operation) -> BoundKernel | None:
    """Return the kernel of a `Conv`."""
    op = op_of(operation, Conv)
    x, kernel = _shapes(operation.inputs[:2])
    if not x or not kernel or not _has_kernels(operation, x, kernel):
        return None
    (windows, images), groups = _three_axes(op.windows(x, kernel), x[0]), x[-1] // kernel[-2]
    *_, channels, filters = kernel
    if groups == 1 and (filters > _FEW_FILTERS or _is_small_product(windows, kernel)) and _is_pointwise(windows):
        return bind_pointwise(operation, (windows[2].size, filters, channels))
    outs = [window.out for window in windows]
    phase = Phase(
        windows, (0, *_tap_steps(windows, kernel), filters, 1, filters // groups), (0, *_pixel_steps(outs, filters))
    )
    sizes = Sizes(images, groups, channels, filters // groups)
    if _is_depthwise(operation, groups, kernel):
        return _bound_depthwise(operation, [phase], sizes)
    return _bound(operation, [phase], sizes)


def bind_input_gradient(operation: Operation) -> BoundKernel | None:
    """Return the kernel of a `ConvInputGrad`."""
    op = op_of(operation, ConvInputGrad)
    dy, kernel = _shapes(operation.inputs[:2])
    (x,) = _shapes(operation.outputs)
    if not x or not dy or not kernel or not _has_kernels(operation, x, kernel):
        return None
    (windows, images), groups = _three_axes(op.windows(x, kernel, dy), x[0]), x[-1] // kernel[-2]
    if groups == 1 and _is_pointwise(windows) and _is_small_product(windows, kernel):
        return bind_pointwise(operation, (windows[2].size, kernel[-2], kernel[-1]), transpose_b=True)
    phases = [_transposed_phase(windows, kernel, x[-1], place) for place in product(*[w.phases() for w in windows])]
    phases = [phase for phase in phases if 0 not in [window.out for window in phase.windows]]
    sizes = Sizes(images, groups, kernel[-1] // groups, kernel[-2])
    if _is_depthwise(operation, groups, kernel):
        return _bound_depthwise(operation, phases, sizes)
    return _bound(operation, phases, sizes)


def _transposed_phase(windows: Windows, kernel: Shape, depth: int, place: Sequence[Any]) -> Phase:
    """Return the phase for the cells of the input at one place between strides: the taps that reach them."""
    steps = _tap_steps(windows, kernel)
    taps: list[range] = [range(window.kernel)[chosen] for window, (_, chosen, _) in zip(windows, place, strict=True)]
    start = sum(cells[-1] * step for cells, step in zip(taps, steps, strict=True) if cells)
    turned = [-step * cells.step for cells, step in zip(taps, steps, strict=True)]
    image, *cells = _pixel_steps([window.size for window in windows], depth)
    begin = sum(first * step for (first, _, _), step in zip(place, cells, strict=True))
    strided = [window.stride * step for window, step in zip(windows, cells, strict=True)]
    below, beside, behind = (window for _, _, window in place)
    of_group = kernel[-1] * kernel[-2] // depth
    return Phase((below, beside, behind), (start, *turned, 1, kernel[-1], of_group), (begin, image, *strided))


def bind_filter_gradient(operation: Operation) -> BoundKernel | None:
    """Return the kernel of a `ConvFilterGrad`."""
    op = op_of(operation, ConvFilterGrad)
    x, dy = _shapes(operation.inputs[:2])
    (kernel,) = _shapes(operation.outputs)
    if not x or not dy or not kernel or not _has_kernels(operation, x, kernel):
        return None
    (windows, images), groups = _three_axes(op.windows(x, kernel, dy), x[0]), x[-1] // kernel[-2]
    is_product = groups == 1 and _is_pointwise(windows)
    if 0 in [window.out for window in windows]:
        return None
    if is_product and _is_small_product(windows, kernel):
        return bind_pointwise(operation, (kernel[-2], kernel[-1], windows[2].size), transpose_a=True)
    sizes = Sizes(images, groups, kernel[-2], kernel[-1] // groups)
    if _is_depthwise(operation, groups, kernel):
        return _bound_depthwise_filter(operation, windows, sizes)
    return BoundKernel(*_filter_kernel(operation, windows, sizes))


def _filter_kernel(
    operation: Operation, windows: Windows, sizes: Sizes
) -> tuple[FilterGradient, list[TensorSpec], list[TensorSpec], list[int]]:
    """Return the kernel of a gradient in the filters, what it reads and writes, and its numbers."""
    element, registers = _element(operation), _registers(operation)
    inputs, outputs = _specs(operation)
    operands = operands_of(inputs, outputs)
    is_padded = not all(window.inside for window in windows)
    cells = windows[0].kernel * windows[1].kernel * windows[2].kernel * sizes.channels
    if sizes.groups > 1:
        registers = _narrowed(registers, sizes.filters)
    spec: FilterGradient
    if 2 * sizes.filters >= registers.lanes:
        rows, vectors, is_consecutive = _filter_tile(cells, sizes.channels, sizes.filters, registers)
        is_uneven = sizes.filters % (registers.lanes * vectors) > 0
        spec = FilterKernel(operands, element, registers.lanes, rows, is_padded, vectors, is_consecutive, is_uneven)
    elif 2 * sizes.channels >= registers.lanes:
        lanes = min(registers.lanes, _power_of_two(sizes.channels))
        rows = cells_of_tile(cells // sizes.channels * -(-sizes.channels // lanes), sizes.filters, registers)
        spec = ChannelVectorsGradient(operands, element, lanes, rows, is_padded, sizes.filters)
    else:
        across, rows = windows[2], cells_of_tile(cells, sizes.filters, registers)
        lanes = min(registers.lanes, _power_of_two(across.out))
        passed = True, sizes.filters, sizes.channels, across.stride
        spec = PixelVectorsGradient(operands, element, lanes, rows, *passed)
    return spec, inputs, outputs, filter_numbers(spec, windows, sizes)


def _shapes(tensors: Sequence[Symbol]) -> list[Shape]:
    """Return the shapes of tensors; an empty one for what is not known."""
    return [known_shape(tensor.spec) for tensor in tensors]


def _has_kernels(operation: Operation, x: Shape, kernel: Shape) -> bool:
    """Test whether there are kernels for numbers and shapes like these."""
    is_floating = operation.outputs[0].dtype.name in ("float32", "float64")
    return is_floating and 3 <= len(x) <= 5 and 0 not in x and 0 not in kernel


def _three_axes(windows: Sequence[Window], images: int) -> tuple[Windows, int]:
    """Return windows along depth, height and width, and the images; a missing axis has one cell.

    Where each cell is a window, those of all images are one row.
    """
    one = Window(1, 1, 1, 1, 0, 1)
    if _is_pointwise(windows):
        cells = images * prod(window.size for window in windows)
        return (one, one, Window(cells, 1, 1, 1, 0, cells)), 1
    deep, down, across = (*[one] * (3 - len(windows)), *windows)
    return (deep, down, across), images


def _is_pointwise(windows: Sequence[Window]) -> bool:
    """Test whether each cell is a window: then the convolution is one matrix product."""
    return all(w.kernel == w.stride == 1 and w.before == 0 and w.out == w.size for w in windows)


def _is_small_product(windows: Windows, kernel: Shape) -> bool:
    """Test whether a pointwise convolution is left to a matrix product: few cells, or many weights."""
    return windows[2].size < _FEW_CELLS or kernel[-2] * kernel[-1] > _MANY_WEIGHTS


def _tap_steps(windows: Windows, kernel: Shape) -> tuple[int, int, int]:
    """Return the elements of a kernel from a tap to the next along each axis."""
    _, down, across = windows
    weights = kernel[-2] * kernel[-1]
    return down.kernel * across.kernel * weights, across.kernel * weights, weights


def _pixel_steps(counts: Sequence[int], channels: int) -> tuple[int, int, int, int]:
    """Return the elements of images from one to the next, and from a plane, a row and a pixel to the next."""
    planes, rows, columns = counts
    return planes * rows * columns * channels, rows * columns * channels, columns * channels, channels


def _specs(operation: Operation) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return the specs of the two arrays that are read, and of the result. The shape that gradients take is known."""
    inputs = specs_of(operation.inputs[:2])
    return inputs, specs_of(operation.outputs)


def _element(operation: Operation) -> str:
    return llvm_type(operation.outputs[0].dtype)


def _registers(operation: Operation) -> Registers:
    return registers_of(library.host, _element(operation))


def _narrowed(registers: Registers, filters: int) -> Registers:
    """Return vectors no wider than a group's filters need."""
    return replace(registers, lanes=min(registers.lanes, 1 << (filters - 1).bit_length()))


# --- groups of many channels ------------------------------------------------------------------------------------------


def _bound(operation: Operation, phases: Sequence[Phase], sizes: Sizes) -> BoundKernel | None:
    least = min((phase.windows[2].out for phase in phases), default=0)
    taps = sum(deep.kernel * down.kernel * across.kernel for (deep, down, across), _, _ in phases)
    count = taps * sizes.groups * sizes.channels * sizes.filters
    registers = _registers(operation)
    if sizes.groups > 1:
        registers = _narrowed(registers, sizes.filters)
    if not least or (least < _FEW_PIXELS and count > _MANY_WEIGHTS):
        return None
    inputs, outputs = _specs(operation)
    passed = operands_of(inputs, outputs), len(phases), _element(operation)
    is_padded = not all(window.inside for phase in phases for window in phase.windows)
    spec: Correlation
    if 2 * sizes.filters >= registers.lanes:
        pixels, vectors = _tile(least, sizes.filters, registers)
        spec = CorrelationKernel(*passed, registers.lanes, pixels, is_padded, vectors)
    elif 2 * sizes.channels >= registers.lanes:
        lanes = min(registers.lanes, _power_of_two(sizes.channels))
        pixels = channel_pixels(least, sizes.filters, registers)
        spec = ChannelVectors(*passed, lanes, pixels, is_padded, sizes.filters)
    else:
        lanes, vectors = pixel_vectors(least, sizes.filters, registers)
        stride = phases[0].windows[2].stride
        is_copied = is_padded or stride * sizes.channels > 1
        tile = sizes.filters, vectors, sizes.channels, stride
        spec = PixelVectors(*passed, lanes, lanes * vectors, is_copied, *tile)
    return BoundKernel(spec, inputs, outputs, correlation_numbers(spec, phases, sizes))


def _tile(columns: int, filters: int, registers: Registers) -> tuple[int, int]:
    """Return pixels and vectors of a tile: those with which a row takes the fewest cycles.

    The last tile of a row computes pixels of the one before it again. Smaller tiles that have none in common are taken
    where they gain more than the estimate errs. With few registers they are too small: what they load takes longer.
    """
    found: list[tuple[float, int, int]] = []
    for vectors in range(1, 9):
        most = min(registers.most_rows(vectors), columns)
        if not most or (vectors > 1 and (vectors - 1) * registers.lanes >= filters):
            break
        pixels = -(-columns // -(-columns // most))
        choices = [(pixels, 1.0)]
        if registers.count >= _MANY_REGISTERS:
            choices.append((max(pixels for pixels in range(1, most + 1) if columns % pixels == 0), _UNSURE))
        for pixels, weight in choices:
            tiles = -(-columns // pixels) * -(-filters // (vectors * registers.lanes))
            found.append((weight * tiles * tile_cycles(pixels, vectors), pixels, vectors))
    _, pixels, vectors = min(found, key=lambda tile: tile[0])
    return pixels, vectors


def _filter_tile(cells: int, channels: int, filters: int, registers: Registers) -> tuple[int, int, bool]:
    """Return cells and vectors of a tile of a filter's gradient, and whether its cells are channels side by side."""
    best: tuple[float, int, int, bool] | None = None
    for vectors in range(1, 5):
        if vectors > 1 and (vectors - 1) * registers.lanes >= filters:
            break
        for rows in range(1, min(cells, registers.most_rows(vectors), 16) + 1):
            is_consecutive = channels % rows == 0 and rows > 1
            if not is_consecutive and rows > 10:  # as many places have to be kept in registers too
                continue
            cycles = max(rows * vectors / 2, (rows + vectors) / 2, 4.0) + (0.5 if is_consecutive else 0.1 * rows + 0.5)
            if registers.count < _MANY_REGISTERS:
                cycles += 0.1 * vectors  # which each tile reads again
            cost = -(-cells // rows) * -(-filters // (vectors * registers.lanes)) * cycles
            if best is None or cost < best[0]:
                best = (cost, rows, vectors, is_consecutive)
    assert best is not None
    return best[1:]


# --- groups of one channel --------------------------------------------------------------------------------------------


def _is_depthwise(operation: Operation, groups: int, kernel: Shape) -> bool:
    """Test whether each group has one channel, and no more filters than a vector has lanes."""
    return groups > 1 and kernel[-2] == 1 and kernel[-1] // groups <= _registers(operation).lanes


def _channels_at_once(operation: Operation, groups: int, multiplier: int) -> int:
    """Return how many channels are summed at once: a power of two, such that a vector holds their filters."""
    most = min(groups, max(1, _registers(operation).lanes // multiplier))
    return _power_of_two(most)


def _power_of_two(most: int) -> int:
    """Return the largest power of two that is not above `most`."""
    return 1 << (most.bit_length() - 1)


def _bound_depthwise(operation: Operation, phases: Sequence[Phase], sizes: Sizes) -> BoundKernel | None:
    if not phases:
        return None
    multiplier = sizes.channels * sizes.filters
    inner = [end - begin for begin, end in (inner_columns(phase.windows[2]) for phase in phases)]
    inputs, outputs = _specs(operation)
    spec = DepthwiseKernel(
        operands_of(inputs, outputs),
        len(phases),
        _element(operation),
        _channels_at_once(operation, sizes.groups, multiplier),
        multiplier,
        isinstance(operation.op, ConvInputGrad),
        _pixels_at_once(min(inner)),
        phases[0].windows[2].stride * sizes.groups * sizes.channels,
    )
    numbers = [number for phase in phases for number in depthwise_numbers(spec, phase, sizes)]
    return BoundKernel(spec, inputs, outputs, numbers)


def _pixels_at_once(columns: int) -> int:
    tiles = max(1, -(-columns // _PIXELS))
    return max(1, -(-columns // tiles))


def _bound_depthwise_filter(operation: Operation, windows: Windows, sizes: Sizes) -> BoundKernel:
    lanes = _channels_at_once(operation, sizes.groups, sizes.filters)
    fitting = [vectors for vectors in (1, 2, 4) if vectors * lanes <= sizes.groups]
    # Wide tiles go through memory better; but the last one has channels of the one before it.
    vectors = min(fitting, key=lambda vectors: -(-sizes.groups // (vectors * lanes)) * (vectors + 0.3))
    inputs, outputs = _specs(operation)
    spec = DepthwiseFilterKernel(operands_of(inputs, outputs), _element(operation), lanes, vectors, sizes.filters)
    return BoundKernel(spec, inputs, outputs, depthwise_filter_numbers(spec, windows, sizes))
