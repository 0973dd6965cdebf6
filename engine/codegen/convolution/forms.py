"""Native forms of small convolutions and poolings, in regions: plain loops over windows, their cells and channels.

A loop whose body filters a signal or a small image is machine code with them. Larger ones are worth the kernels of
their own, which have tiles and threads.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ...graph.graph import Operation
from ...ops.neural.convolution import Conv, ConvFilterGrad, ConvInputGrad
from ...ops.neural.pooling import AveragePool, AveragePoolGrad, MaxPool
from ...ops.neural.window_geometry import Window
from ..expression.expression import UnsupportedError
from ..llvm.builder import IN_LOOP, LOOP
from ..regions.arrays import as_array
from ..regions.function import Array, Function, Value
from ..regions.scalars import FLOATS, literal
from ..regions.scans import print_is_better

if TYPE_CHECKING:
    from ..regions.forms import Context, Form

_MOST_PRODUCTS = 1 << 16  # of a convolution
_MOST_APART = 1 << 12  # where each channel is filtered by itself, or pooled: kernels take several at once


def _convolution(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print a convolution, or its transpose in input or kernel: they add the same products to one of three arrays."""
    op, function = operation.op, context.function
    assert isinstance(op, (Conv, ConvInputGrad, ConvFilterGrad))
    first, second = _floats(inputs[0]), _floats(inputs[1])
    target = function.allocate(first.kind, context.shape_of(operation.outputs[0]))
    if isinstance(op, Conv):
        x, kernel, y = first, second, target
    elif isinstance(op, ConvInputGrad):
        x, kernel, y = target, second, first
    else:
        x, kernel, y = first, target, second
    most = _MOST_PRODUCTS if x.shape[-1] == kernel.shape[-2] else _MOST_APART
    _check_size(kernel.size * math.prod(y.shape[:-1]), most)
    function.zero(target)
    if not x.size or not kernel.size:
        return [target]
    windows = op.windows(x.shape, kernel.shape, y.shape)
    for_group, filters = kernel.shape[-2:]
    groups = x.shape[-1] // for_group
    own = filters // groups
    with (
        _each_window(function, windows, x.shape[0]) as (image, outs, window),
        _each_cell(function, windows, image, outs) as (cell, pixel),
        function.count(groups) as group,
        function.count(for_group) as channel,
    ):
        begin = function.offset_of([window, group], [filters, own])
        weight = function.offset_of([cell, channel, group], [for_group * filters, filters, own])
        number = function.offset_of([pixel, group, channel], [x.shape[-1], for_group, 1])
        places = {x.pointer: number, kernel.pointer: weight, y.pointer: begin}
        _add_products(function, (x, kernel, y), places, target, own)
    return [target]


def _add_products(
    function: Function, arrays: tuple[Array, Array, Array], places: dict[str, str], target: Array, count: int
) -> None:
    """Print the products of a channel of a pixel and so many filters, which are added to one of the three arrays."""
    x, kernel, y = arrays
    kind = x.kind
    begins = {each.pointer: function.element(kind, each.pointer, places[each.pointer]) for each in arrays}
    if target is x:
        total = function.slot(kind, literal(0, kind))
        with function.loop(0, count, metadata=LOOP) as k:
            factors = [function.load(kind, begins[each.pointer], k) for each in (kernel, y)]
            _add(function, kind, factors, total, "reassoc contract")
        before = function.load(kind, begins[x.pointer])
        found = function.let(f"fadd {kind} {before}, {function.load(kind, total)}")
        function.store(kind, found, begins[x.pointer])
        return
    other = y if target is kernel else kernel
    value = function.load(kind, begins[x.pointer])
    with function.loop(0, count, metadata=LOOP) as k:
        into = function.element(kind, begins[target.pointer], k)
        factor = function.load(kind, begins[other.pointer], k, IN_LOOP)
        _add(function, kind, [value, factor], into, "contract", IN_LOOP)


def _add(function: Function, kind: str, factors: Sequence[str], into: str, flags: str, metadata: str = "") -> None:
    """Print the addition of a product to what is in memory."""
    product = function.let(f"fmul contract {kind} {factors[0]}, {factors[1]}")
    before = function.load(kind, into, 0, metadata)
    function.store(kind, function.let(f"fadd {flags} {kind} {before}, {product}"), into, 0, metadata)


def _pool(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print the maximum of the cells of each window, or their mean."""
    op, function, x = operation.op, context.function, _floats(inputs[0])
    assert isinstance(op, (AveragePool, MaxPool))
    target = function.allocate(x.kind, context.shape_of(operation.outputs[0]))
    windows, channels = _pooled_windows(op, x.shape, target), x.shape[-1]
    is_maximum = isinstance(op, MaxPool)
    if not is_maximum:
        function.zero(target)
    cells = function.slot(x.kind)
    with _each_window(function, windows, x.shape[0]) as (image, outs, window):
        own = function.element(x.kind, target.pointer, function.mul(window, channels))
        if is_maximum:
            with function.count(channels) as channel:
                function.store(x.kind, literal(-math.inf, x.kind), own, channel)
        function.store(x.kind, literal(0, x.kind), cells)
        with _each_cell(function, windows, image, outs) as (_, pixel):
            _count_cell(function, x.kind, cells)
            source = function.element(x.kind, x.pointer, function.mul(pixel, channels))
            with function.count(channels) as channel:
                value, before = function.load(x.kind, source, channel), function.load(x.kind, own, channel)
                if is_maximum:
                    is_larger = print_is_better(function, x.kind, value, before)
                    found = function.choose(is_larger, value, before, x.kind)
                else:
                    found = function.let(f"fadd {x.kind} {before}, {value}")
                function.store(x.kind, found, own, channel)
        if not is_maximum:
            with function.count(channels) as channel:
                _divide(function, x.kind, own, channel, own, cells)
    return [target]


def _spread_mean(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print what the mean of each window gives back to its cells."""
    op, function, dy = operation.op, context.function, _floats(inputs[0])
    assert isinstance(op, AveragePoolGrad)
    target = function.allocate(dy.kind, context.shape_of(operation.outputs[0]))
    windows, channels = _pooled_windows(op, target.shape, dy), dy.shape[-1]
    function.zero(target)
    share = function.allocate(dy.kind, (channels,))
    function.hold(share)
    cells = function.slot(dy.kind)
    with _each_window(function, windows, dy.shape[0]) as (image, outs, window):
        function.store(dy.kind, literal(0, dy.kind), cells)
        with _each_cell(function, windows, image, outs):
            _count_cell(function, dy.kind, cells)
        own = function.element(dy.kind, dy.pointer, function.mul(window, channels))
        with function.count(channels) as channel:
            _divide(function, dy.kind, own, channel, share.pointer, cells)
        with _each_cell(function, windows, image, outs) as (_, pixel):
            into = function.element(dy.kind, target.pointer, function.mul(pixel, channels))
            with function.count(channels) as channel:
                part, before = function.load(dy.kind, share.pointer, channel), function.load(dy.kind, into, channel)
                function.store(dy.kind, function.let(f"fadd {dy.kind} {before}, {part}"), into, channel)
    function.release(share)
    return [target]


# --- windows --------------------------------------------------------------------------------------------------------


def _floats(value: Value) -> Array:
    array = as_array(value)
    if array.kind not in FLOATS:
        raise UnsupportedError("numbers of another kind")
    return array


def _check_size(steps: int, most: int) -> None:
    if steps > most:
        raise UnsupportedError("many windows, which a kernel takes side by side")


def _pooled_windows(op: AveragePool | AveragePoolGrad | MaxPool, shape: Sequence[int], pooled: Array) -> list[Window]:
    _check_size(pooled.size * math.prod(op.pool_size), _MOST_APART)
    return op.windows(shape[1:-1])


@contextmanager
def _each_window(function: Function, windows: Sequence[Window], images: int) -> Generator[tuple[str, list[str], str]]:
    """Print a block for each window of each image: gives the image, the places along the axes, and the number."""
    counts = [window.out for window in windows]
    with ExitStack() as loops:
        image = loops.enter_context(function.count(images))
        outs = [loops.enter_context(function.count(count)) for count in counts]
        yield image, outs, function.offset_of([image, *outs], _row_major([images, *counts]))


@contextmanager
def _each_cell(
    function: Function, windows: Sequence[Window], image: str, outs: Sequence[str]
) -> Generator[tuple[str, str]]:
    """Print a block for each cell of a window that is in the image: gives the numbers of the cell and of the pixel."""
    with ExitStack() as loops:
        cells = [loops.enter_context(function.count(window.kernel)) for window in windows]
        places: list[str] = []
        for window, out, cell in zip(windows, outs, cells, strict=True):
            reached = function.offset_of([out, cell], [window.stride, window.dilation])
            place = str(function.add(reached, -window.before))
            if not window.inside:
                loops.enter_context(function.when(function.compare("ult", place, window.size)))
            places.append(place)
        pixel = function.offset_of([image, *places], _row_major([1, *[window.size for window in windows]]))
        yield function.offset_of(cells, _row_major([window.kernel for window in windows])), pixel


def _row_major(sizes: Sequence[int]) -> list[int]:
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def _count_cell(function: Function, kind: str, cells: str) -> None:
    function.store(kind, function.let(f"fadd {kind} {function.load(kind, cells)}, {literal(1, kind)}"), cells)


def _divide(function: Function, kind: str, source: str, k: str, into: str, cells: str) -> None:
    value = function.load(kind, source, k)
    function.store(kind, function.let(f"fdiv {kind} {value}, {function.load(kind, cells)}"), into, k)


FORMS: dict[type[Any], Form] = {
    AveragePool: _pool,
    AveragePoolGrad: _spread_mean,
    Conv: _convolution,
    ConvFilterGrad: _convolution,
    ConvInputGrad: _convolution,
    MaxPool: _pool,
}

__all__ = ["FORMS"]
