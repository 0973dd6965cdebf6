"""Native forms of small convolutions and poolings, in regions: plain loops over windows, their cells and channels.

A loop whose body filters a signal or a small image is machine code with them. Larger ones are worth the kernels of
their own, which have tiles and threads.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.neural.convolution import Conv, ConvFilterGrad, ConvInputGrad
from ...ops.neural.pooling import (
    AveragePool,
    AveragePoolGrad,
    MaxPool,
    MaxPoolGather,
    MaxPoolGrad,
    MaxPoolPlaces,
)
from ...ops.neural.window_geometry import Window
from ..expression.expression import UnsupportedError
from ..llvm.builder import IN_LOOP, LOOP
from ..regions.arrays import as_array
from ..regions.function import Array, Form, FormContext, Function, Value, shape_of
from ..regions.scalars import FLOATS, literal
from ..regions.scans import print_is_better

_MOST_PRODUCTS = 1 << 16  # of a convolution
_PLACE = "i32"  # of the number of a cell in its window
_MOST_APART = 1 << 12  # where each channel is filtered by itself, or pooled: kernels take several at once


def _convolution(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print a convolution, or its transpose in input or kernel: they add the same products to one of three arrays."""
    op, function = op_of(operation, (Conv, ConvInputGrad, ConvFilterGrad)), context.function
    first, second = _floats(inputs[0]), _floats(inputs[1])
    target = function.allocate(first.kind, shape_of(operation.outputs[0]))
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


# --- pooling --------------------------------------------------------------------------------------------------------


def _max_pool(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    function, x = context.function, _floats(inputs[0])
    y = function.allocate(x.kind, shape_of(operation.outputs[0]))
    with function.count(y.size) as k:
        function.store(x.kind, literal(-math.inf, x.kind), y.pointer, k)
    with _each_pair(function, operation.op, x.shape, y) as (pooled, element, _):
        value, before = function.load(x.kind, x.pointer, element), function.load(x.kind, y.pointer, pooled)
        is_larger = print_is_better(function, x.kind, value, before)
        function.store(x.kind, function.choose(is_larger, value, before, x.kind), y.pointer, pooled)
    return [y]


def _max_pool_places(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print the number of the first cell of each window that holds its maximum, as i32: only regions take these."""
    function, (x, y) = context.function, map(_floats, inputs)
    places = function.allocate(_PLACE, shape_of(operation.outputs[0]))
    with function.count(places.size) as k:
        function.store(_PLACE, -1, places.pointer, k)
    with _each_pair(function, operation.op, x.shape, places) as (pooled, element, cell):
        value, largest = function.load(x.kind, x.pointer, element), function.load(x.kind, y.pointer, pooled)
        before = function.load(_PLACE, places.pointer, pooled)
        is_equal = function.let(f"fcmp oeq {x.kind} {value}, {largest}")
        is_nan = function.let(f"fcmp uno {x.kind} {value}, {value}")  # then the maximum is, too
        is_largest = function.let(f"or i1 {is_equal}, {is_nan}")
        is_first = function.let(f"and i1 {is_largest}, {function.let(f'icmp slt {_PLACE} {before}, 0')}")
        number = function.let(f"trunc i64 {cell} to {_PLACE}")
        function.store(_PLACE, function.choose(is_first, number, before, _PLACE), places.pointer, pooled)
    return [places]


def _max_pool_grad(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    function, dy, places = context.function, _floats(inputs[0]), as_array(inputs[1])
    dx = function.allocate_zeros(dy.kind, shape_of(operation.outputs[0]))
    with _each_pair(function, operation.op, dx.shape, dy) as (pooled, element, cell):
        is_there = _is_place(function, places, pooled, cell)
        part = function.choose(is_there, function.load(dy.kind, dy.pointer, pooled), literal(0, dy.kind), dy.kind)
        _add_to(function, dx, element, part)
    return [dx]


def _max_pool_gather(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    function, x, places = context.function, _floats(inputs[0]), as_array(inputs[1])
    y = function.allocate_zeros(x.kind, places.shape)
    with _each_pair(function, operation.op, x.shape, y) as (pooled, element, cell):
        is_there = _is_place(function, places, pooled, cell)
        value, before = function.load(x.kind, x.pointer, element), function.load(x.kind, y.pointer, pooled)
        function.store(x.kind, function.choose(is_there, value, before, x.kind), y.pointer, pooled)
    return [y]


def _average_pool(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    function, x = context.function, _floats(inputs[0])
    y = function.allocate_zeros(x.kind, shape_of(operation.outputs[0]))
    with _each_pair(function, operation.op, x.shape, y) as (pooled, element, _):
        _add_to(function, y, pooled, function.load(x.kind, x.pointer, element))
    _divide_by_cells(function, operation.op, x.shape, y)
    return [y]


def _average_pool_grad(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    function, dy = context.function, _floats(inputs[0])
    dx = function.allocate_zeros(dy.kind, shape_of(operation.outputs[0]))
    shares = function.copy_of(dy)
    function.hold(shares)
    _divide_by_cells(function, operation.op, dx.shape, shares)
    with _each_pair(function, operation.op, dx.shape, shares) as (pooled, element, _):
        _add_to(function, dx, element, function.load(dy.kind, shares.pointer, pooled))
    function.release(shares)
    return [dx]


def _is_place(function: Function, places: Array, pooled: str, cell: str) -> str:
    place = function.load(_PLACE, places.pointer, pooled)
    return function.let(f"icmp eq i64 {function.let(f'sext {_PLACE} {place} to i64')}, {cell}")


def _add_to(function: Function, array: Array, element: str, value: str) -> None:
    before = function.load(array.kind, array.pointer, element)
    function.store(array.kind, function.let(f"fadd {array.kind} {before}, {value}"), array.pointer, element)


def _divide_by_cells(function: Function, op: Any, shape: Sequence[int], pooled: Array) -> None:
    """Print the division of what belongs to each window by the number of its cells that are in the image."""
    windows, kind, channels = op.windows(shape[1:-1]), pooled.kind, pooled.shape[-1]
    cells = function.slot(kind)
    with _each_window(function, windows, shape[0]) as (image, outs, window):
        function.store(kind, literal(0, kind), cells)
        with _each_cell(function, windows, image, outs):
            one_more = function.let(f"fadd {kind} {function.load(kind, cells)}, {literal(1, kind)}")
            function.store(kind, one_more, cells)
        with function.count(channels) as channel:
            place = function.offset_of([window, channel], [channels, 1])
            value = function.load(kind, pooled.pointer, place)
            share = function.let(f"fdiv {kind} {value}, {function.load(kind, cells)}")
            function.store(kind, share, pooled.pointer, place)


@contextmanager
def _each_pair(function: Function, op: Any, shape: Sequence[int], pooled: Array) -> Generator[tuple[str, str, str]]:
    """Print a block for each cell of each window in an image of the shape, and each channel.

    Gives the elements of what is pooled and of the image, and the number of the cell.
    """
    _check_size(pooled.size * math.prod(op.pool_size), _MOST_APART)
    windows, channels = op.windows(shape[1:-1]), shape[-1]
    with (
        _each_window(function, windows, shape[0]) as (image, outs, window),
        _each_cell(function, windows, image, outs) as (cell, pixel),
        function.count(channels) as channel,
    ):
        pooled_element, element = (function.offset_of([number, channel], [channels, 1]) for number in (window, pixel))
        yield pooled_element, element, cell


# --- windows --------------------------------------------------------------------------------------------------------


def _floats(value: Value) -> Array:
    array = as_array(value)
    if array.kind not in FLOATS:
        raise UnsupportedError("numbers of another kind")
    return array


def _check_size(steps: int, most: int) -> None:
    if steps > most:
        raise UnsupportedError("many windows, which a kernel takes side by side")


@contextmanager
def _each_window(function: Function, windows: Sequence[Window], images: int) -> Generator[tuple[str, list[str], str]]:
    """Print a block for each window of each image: gives the image, the places along the axes, and the number."""
    counts = [images, *[window.out for window in windows]]
    with function.counters(counts) as numbers:
        yield numbers[0], numbers[1:], function.offset_of(numbers, _row_major(counts))


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


FORMS: dict[type[Any], Form] = {
    AveragePool: _average_pool,
    AveragePoolGrad: _average_pool_grad,
    Conv: _convolution,
    ConvFilterGrad: _convolution,
    ConvInputGrad: _convolution,
    MaxPool: _max_pool,
    MaxPoolGather: _max_pool_gather,
    MaxPoolGrad: _max_pool_grad,
    MaxPoolPlaces: _max_pool_places,
}
