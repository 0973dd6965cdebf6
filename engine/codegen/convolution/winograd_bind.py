"""The rule of convolutions that Winograd's kernels compute, the choice of their tiles, and the numbers they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from ...common.dtypes import name_of
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.internal.product_then import WinogradThen
from ...ops.internal.winograd import Winograd
from ...ops.neural.convolution import Conv, ConvFilterGrad, ConvInputGrad
from ...ops.neural.window_geometry import Window
from ..elementwise.bound import BoundKernel
from ..elementwise.kernel_specs import kernel_spec, specs_of
from ..expression.expression import UnsupportedError, llvm_type
from ..expression.llvm import KernelSpec
from ..host.threads import thread_count
from ..llvm.builder import BYTES
from ..llvm.entry import Operand
from ..llvm.library import library
from ..llvm.registers import Registers, registers_of, tile_cycles
from .numbers import aligned, known_shape, operands_of
from .transforms import TAPS, TRANSFORMS
from .winograd import WINOGRAD_FIELDS, Following, WinogradKernel
from .winograd_filter import WINOGRAD_FILTER_FIELDS, WinogradFilterKernel

Shape = tuple[int, ...]
_LEAST_CHANNELS = 16  # and filters
_LEAST_PRODUCTS = 1 << 17  # of results and channels
_TRANSFORM = 8  # products that the transform of a tile takes as long as, for each of its places and channels
_WEIGHTS = 20  # tiles that the transform of the weights takes as long as
_GAIN = 0.85  # of the direct way's products: more do not pay
_BLOCK_TILES = 24  # whose transforms and products stay in the second cache
_WANTED_BLOCKS = 16
_NEAR_WEIGHTS = 1 << 22  # bytes of transformed weights that stay near; what each block reads from memory costs more
_FAR_BLOCK_TILES = 128  # then than transforms that do not stay
_LEAST_PARTS = 2  # also for one thread: a kernel of one part keeps Python's lock
_LINE = 16  # elements of a cache line
_FILTER_BLOCK = 64  # channels, and filters, of which the sums of a filter's gradient stay in the cache
_FILTER_TILES = 32  # that are transformed at once
_MOST_SHARES, _WANTED_UNITS = 6, 12


class Images(NamedTuple):
    """A convolution with 3 x 3 taps.

    Attributes:
        batch: how many images.
        channels: of the input.
        filters: of the result.
        down, across: the windows.
    """

    batch: int
    channels: int
    filters: int
    down: Window
    across: Window


def tile_of(operation: Operation) -> int:
    """Return the tile, in results along each axis, by which a convolution or a gradient of one is computed; 0 for none.

    That is the tile with the least work, if the direct way has clearly more. Large tiles take fewer products, but more
    of a small image's last ones is outside; transforms weigh less the more channels and filters there are.
    """
    images = images_of(operation, operation.op)
    if images is None:
        return 0
    results = images.batch * images.down.out * images.across.out
    if results * images.channels * images.filters < _LEAST_PRODUCTS:
        return 0
    tile = min(TRANSFORMS, key=lambda tile: _work(images, tile))
    return tile if _work(images, tile) < _GAIN * TAPS * TAPS * results else 0


def _work(images: Images, tile: int) -> float:
    """Return the products for each channel and filter, and what transforms add to them."""
    tiles = images.batch * -(-images.down.out // tile) * -(-images.across.out // tile)
    transforms = _TRANSFORM / images.channels + _TRANSFORM / images.filters
    return TRANSFORMS[tile].cells ** 2 * (tiles * (1 + transforms) + _WEIGHTS)


def bind_winograd(operation: Operation) -> BoundKernel | None:
    """Return the kernel of a `Winograd`."""
    op = op_of(operation, Winograd)
    images = images_of(operation, op.convolution)
    if images is None:
        return None
    inputs, outputs = specs_of(operation.inputs[:2]), specs_of(operation.outputs)
    operands = operands_of(inputs, outputs)
    if not isinstance(op.convolution, ConvFilterGrad):
        return _bound(op, images, operands, inputs, outputs)
    kind = llvm_type(outputs[0].dtype)
    registers = registers_of(library.host, kind)
    rows, vectors = _filter_tile(images.filters, registers)
    spec = WinogradFilterKernel(operands, kind, registers.lanes, op.tile, rows, vectors)
    return BoundKernel(spec, inputs, outputs, _filter_numbers(spec, images))


def bind_winograd_then(operation: Operation) -> BoundKernel | None:
    """Return the kernel of a `WinogradThen`; None for filters' gradients, and if kernels can't compute what follows."""
    op = op_of(operation, WinogradThen)
    assert isinstance(op.product, Winograd)
    inputs, outputs = specs_of(operation.inputs), specs_of(operation.outputs)
    if isinstance(op.product.convolution, ConvFilterGrad) or not all(spec.is_static for spec in (*inputs, *outputs)):
        return None
    result, results = op.product.infer(*inputs[: op.taken]), outputs[op.keeps :]
    images = _images_of_shapes([*map(known_shape, inputs[:2]), known_shape(result)], result, op.product.convolution)
    target = next((k for k, spec in enumerate(results) if spec == result), None)
    if images is None or (target is None and not op.keeps):
        return None
    specs = [_of_pixels(spec, result) for spec in (result, *inputs[op.taken :], *results)]
    known = [spec for spec in specs if spec is not None]
    count = len(inputs) - op.taken + 1
    if len(known) < len(specs) or any(spec != known[0] for spec in known[count:] if spec.dtype == known[0].dtype):
        return None
    try:
        body = kernel_spec(op.then, known[:count], known[count:], has_loop_for_each_axis=True)
    except UnsupportedError:
        return None
    following = Following(body, op.taken, op.keeps, target or 0)
    others = [
        replace(operand, rank=len(spec.shape or ()) or None) for operand, spec in _ranked(body, inputs, outputs, op)
    ]
    operands = (*operands_of(inputs[: op.taken], []), *others)
    return _bound(op.product, images, operands, inputs, outputs, following)


def _ranked(
    body: KernelSpec, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], op: WinogradThen
) -> list[tuple[Operand, TensorSpec]]:
    """Return the operands behind those of the convolution, with the specs of the arrays that they are."""
    kept = [(Operand(llvm_type(spec.dtype), 4, (), True), spec) for spec in outputs[: op.keeps]]
    made = zip([operand for operand, _ in body.outputs], outputs[op.keeps :], strict=True)
    return [*zip(body.inputs[1:], inputs[op.taken :], strict=True), *kept, *made]


def _of_pixels(spec: TensorSpec, result: TensorSpec) -> TensorSpec | None:
    """Return an operand's spec as a matrix of pixels and filters; None if it has some for each image, row or column."""
    shape, whole = known_shape(spec), known_shape(result)
    if shape == whole:
        return TensorSpec((prod(whole[:-1]), whole[-1]), spec.dtype)
    if any(size != 1 for size in shape[:-1]):
        return None
    return TensorSpec(shape[-1:], spec.dtype)


def _bound(
    op: Winograd,
    images: Images,
    operands: tuple[Operand, ...],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    following: Following | None = None,
) -> BoundKernel:
    kind = operands[0].type
    registers = registers_of(library.host, kind)
    rows, vectors = _register_tile(images.filters, registers)
    spec = WinogradKernel(operands, kind, registers.lanes, op.tile, rows, vectors, following)
    steps = _weight_steps(images, isinstance(op.convolution, ConvInputGrad))
    return BoundKernel(spec, inputs, outputs, _numbers(spec, images, steps))


def images_of(operation: Operation, op: object) -> Images | None:
    """Return the convolution to compute: for an input's gradient, that of the cotangent. None if it is another kind."""
    shapes = [known_shape(tensor.spec) for tensor in (*operation.inputs[:2], *operation.outputs)]
    return _images_of_shapes(shapes, operation.outputs[0].spec, op)


def _images_of_shapes(shapes: Sequence[Shape], spec: object, op: object) -> Images | None:
    """Return the convolution of arrays of these shapes: the first two operands, and the result, which has a spec."""
    if len(shapes) != 3 or not all(len(shape) == 4 and 0 not in shape for shape in shapes):
        return None
    first, second, result = shapes
    if not isinstance(spec, TensorSpec) or name_of(spec.dtype) != "float32":
        return None
    if isinstance(op, Conv):
        x, kernel, y = first, second, result
    elif isinstance(op, ConvInputGrad):
        x, kernel, y = result, second, first
    elif isinstance(op, ConvFilterGrad):
        x, kernel, y = first, result, second
    else:
        return None
    windows = op.windows(x, kernel, y)
    is_plain = all(window.kernel == TAPS and window.stride == window.dilation == 1 for window in windows)
    if not is_plain or x[-1] != kernel[-2] or 0 in [window.out for window in windows]:
        return None
    if min(kernel[2:]) < _LEAST_CHANNELS:
        return None
    down, across = windows
    if isinstance(op, ConvInputGrad):
        return Images(x[0], kernel[-1], kernel[-2], _turned(down), _turned(across))
    return Images(x[0], kernel[-2], kernel[-1], down, across)


def _turned(window: Window) -> Window:
    """Return the window of the cotangent, for the gradient in the input."""
    return window._replace(size=window.out, out=window.size, before=TAPS - 1 - window.before)


def _register_tile(filters: int, registers: Registers) -> tuple[int, int]:
    """Return how many tiles and vectors of filters to sum at once: so that all filters take the fewest cycles."""

    def cycles(vectors: int) -> float:
        rows = registers.most_rows(vectors)
        return tile_cycles(rows, vectors) / rows * -(-filters // (vectors * registers.lanes))

    vectors = min(range(1, 5), key=cycles)
    return registers.most_rows(vectors), vectors


def _weight_steps(images: Images, is_turned: bool) -> dict[str, int]:
    """Return the first weight, and the steps to the next tap along each axis, to the next channel and filter."""
    weights = images.channels * images.filters
    across, down = weights, TAPS * weights
    if not is_turned:
        return {"start": 0, "down": down, "across": across, "channel": images.filters, "filter": 1}
    start = (TAPS - 1) * (down + across)
    return {"start": start, "down": -down, "across": -across, "channel": 1, "filter": images.channels}


def tile_numbers(images: Images, tile: int, lanes: int) -> dict[str, int]:
    """Return the numbers of tiles that all kernels read."""
    tile_rows, tile_columns = -(-images.down.out // tile), -(-images.across.out // tile)
    return {
        "channels": images.channels,
        "filters": images.filters,
        "height": images.down.size,
        "width": images.across.size,
        "rows": images.down.out,
        "columns": images.across.out,
        "before_down": images.down.before,
        "before_across": images.across.before,
        "tile_rows": tile_rows,
        "tile_columns": tile_columns,
        "tiles": images.batch * tile_rows * tile_columns,
        "channel_vectors": -(-images.channels // lanes),
        "zeros_size": images.channels,
    }


def _numbers(kernel: WinogradKernel, images: Images, steps: dict[str, int]) -> list[int]:
    """Return the numbers that the code of a kernel reads."""
    size, places = BYTES[kernel.element], kernel.functions.transforms.cells**2
    numbers = tile_numbers(images, kernel.tile, kernel.lanes)
    panels = -(-images.filters // kernel.width)
    channels, filters = numbers["channel_vectors"] * kernel.lanes, panels * kernel.width
    threads = max(thread_count(), _LEAST_PARTS)
    tile_size = places * (channels + filters) * size
    wanted = _tiles_of_block(numbers["tiles"], places * channels * filters * size, threads, tile_size)
    block = -(-wanted // kernel.rows) * kernel.rows
    blocks = -(-numbers["tiles"] // block)
    weights_place, input_place, product_place = map(_apart, (channels * filters, block * channels, block * filters))
    part_size = aligned(places * (input_place + product_place) + filters)
    parts = min(threads, blocks)
    zeros = aligned(images.channels)
    weights = zeros * size
    numbers |= {f"weight_{name}": step for name, step in steps.items()}
    numbers |= {
        "block": block,
        "blocks": blocks,
        "parts": parts,
        "panels": panels,
        "zeros_address": 0,
        "weights_address": weights,
        "weights_place": weights_place,
        "parts_address": weights + aligned(places * weights_place) * size,
        "part_size": part_size,
        "input_place": input_place,
        "product_place": product_place,
        "scratch_bytes": (zeros + places * weights_place + parts * part_size + 64) * size,
    }
    return [numbers[name] for name in WINOGRAD_FIELDS]


def _tiles_of_block(tiles: int, weights: int, threads: int, tile: int) -> int:
    """Return the tiles of a block, for some bytes of transformed weights, of which each block reads all.

    Results do not depend on it: sums are over channels. The blocks of all threads take at most twice the memory of the
    weights, or that of small blocks.

    Args:
        tiles: how many there are.
        weights, tile: the bytes of the weights, and of a tile's transforms and products.
        threads: how many compute blocks at a time.
    """
    if weights <= _NEAR_WEIGHTS:
        return min(_BLOCK_TILES, -(-tiles // _WANTED_BLOCKS))
    most = min(_FAR_BLOCK_TILES, max(_BLOCK_TILES, 2 * weights // (threads * tile)))
    rounds = -(-tiles // (threads * most))
    return -(-tiles // (threads * rounds))


def _apart(count: int) -> int:
    """Return the elements from a place to the next: an odd number of cache lines, so that places are in different sets.

    A tile's transform writes into each place; in few sets these lines would take turns.
    """
    lines = -(-count // _LINE)
    return (lines + 1 - lines % 2) * _LINE


def _filter_tile(filters: int, registers: Registers) -> tuple[int, int]:
    """Return the channels and vectors of filters that are summed at once. The channels go into a vector."""

    def cycles(choice: tuple[int, int]) -> float:
        rows, vectors = choice
        return tile_cycles(rows, vectors) / rows * -(-filters // (vectors * registers.lanes))

    fitting = [(rows, vectors) for rows in (4, 8) for vectors in range(1, 5) if rows <= registers.most_rows(vectors)]
    return min([choice for choice in fitting if registers.lanes % choice[0] == 0], key=cycles)


def _filter_numbers(kernel: WinogradFilterKernel, images: Images) -> list[int]:
    """Return the numbers that the code of a kernel of a filter's gradient reads."""
    size, places, lanes = BYTES[kernel.element], kernel.functions.transforms.cells**2, kernel.lanes
    numbers = tile_numbers(images, kernel.tile, lanes)
    tiles, channel_vectors, filter_vectors = numbers["tiles"], numbers["channel_vectors"], -(-images.filters // lanes)
    channel_block, channel_blocks = _in_blocks(channel_vectors, _FILTER_BLOCK // lanes, 1)
    filter_block, filter_blocks = _in_blocks(filter_vectors, _FILTER_BLOCK // lanes, kernel.vectors)
    blocks = channel_blocks * filter_blocks
    block = min(_FILTER_TILES, tiles)
    shares = max(1, min(_MOST_SHARES, -(-_WANTED_UNITS // blocks), tiles // (4 * block)))
    share = -(-tiles // (shares * block)) * block
    shares = -(-tiles // share)
    sums_place = _apart(channel_block * filter_block * lanes * lanes)
    input_place, output_place = _apart(block * channel_block * lanes), _apart(block * filter_block * lanes)
    part_size, sums_size = aligned(places * (input_place + output_place)), places * sums_place
    units = shares * blocks
    parts = min(max(thread_count(), _LEAST_PARTS), units)
    held = units if shares > 1 else parts  # blocks of sums: one share is transformed back by the part that has it
    zeros = aligned(max(images.channels, images.filters))
    numbers |= {
        "block": block,
        "blocks": blocks,
        "parts": parts,
        "panels": filter_block // kernel.vectors,
        "zeros_address": 0,
        "zeros_size": zeros,
        "filter_vectors": filter_vectors,
        "channel_block": channel_block,
        "filter_block": filter_block,
        "channel_blocks": channel_blocks,
        "filter_blocks": filter_blocks,
        "shares": shares,
        "share": share,
        "units": units,
        "sums_address": zeros * size,
        "sums_size": sums_size,
        "sums_place": sums_place,
        "parts_address": (zeros + held * sums_size) * size,
        "part_size": part_size,
        "input_place": input_place,
        "output_place": output_place,
        "scratch_bytes": (zeros + held * sums_size + parts * part_size) * size,
    }
    return [numbers[name] for name in WINOGRAD_FILTER_FIELDS]


def _in_blocks(vectors: int, most: int, step: int) -> tuple[int, int]:
    """Return the vectors of a block, a multiple of `step` and about `most` at most, and how many blocks there are."""
    blocks = -(-vectors // max(most, step))
    size = -(-vectors // (blocks * step)) * step
    return size, -(-vectors // size)
