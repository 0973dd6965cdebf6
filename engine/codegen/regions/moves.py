"""Native forms of operations that move elements to other places: padding, shifts, reversed axes and windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.arrays.axes import Flip, Roll
from ...ops.arrays.creation import Diag, Diagonal, PutDiagonal, Triangle
from ...ops.arrays.padding import Pad
from ...ops.signal.windows import Slice, SliceUpdate
from ..expression.expression import UnsupportedError
from .arrays import as_array, as_integers, integer_at
from .elementwise import print_strided_copy
from .function import Array, Form, FormContext, Function, Scalar, Value, shape_of, strides_of
from .scalars import literal

_MOST_COPIED = 4096  # elements of an array of which a window is replaced: outside of regions it may be in place
_MOST_WINDOWS = 4  # of which a shifted array is made


def _pad(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function = op_of(operation, Pad), context.function
    if len(inputs) > 2:
        raise UnsupportedError("computed widths")
    x, value = inputs
    if not op.widths:
        return [x]
    x = as_array(x)
    if not isinstance(value, Scalar):
        raise UnsupportedError("no array")
    target = function.allocate(x.kind, shape_of(operation.outputs[0]))
    print_strided_copy(function, value, target, [0] * len(target.shape))
    starts = [before or 0 for before, _ in op.widths]
    _copy_window(function, x, [0] * len(starts), target, starts, x.shape)
    return [target]


def _roll(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function = op_of(operation, Roll), context.function
    if op.shifts is None:
        raise UnsupportedError("a computed shift")
    x = as_array(inputs[0])
    shifts = [0] * len(x.shape)
    for shift, axis in zip(op.shifts, op.axes, strict=True):
        shifts[axis] += shift
    # Along each axis the last `shift` elements come first, and the others behind them.
    parts = [
        [(0, dim, 0)] if not dim or shift % dim == 0 else [(0, dim - shift % dim, shift % dim), (-shift % dim, dim, 0)]
        for dim, shift in zip(x.shape, shifts, strict=True)
    ]
    windows = list(itertools.product(*parts))
    if len(windows) > _MOST_WINDOWS:
        raise UnsupportedError("shifts along many axes")
    target = function.allocate(x.kind, x.shape)
    for window in windows:
        starts, ends, places = zip(*window, strict=True)
        sizes = tuple([end - start for start, end in zip(starts, ends, strict=True)])
        _copy_window(function, x, starts, target, places, sizes)
    return [target]


def _flip(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function = op_of(operation, Flip), context.function
    if isinstance(inputs[0], Scalar):
        return [inputs[0]]
    x = as_array(inputs[0])
    rank = len(x.shape)
    axes = range(rank) if op.axes is None else [axis % rank for axis in op.axes]
    steps = strides_of(x.shape, x.shape)
    start = sum([(x.shape[axis] - 1) * steps[axis] for axis in axes])
    target = function.allocate(x.kind, x.shape)
    if x.size:
        strides = [-step if axis in axes else step for axis, step in enumerate(steps)]
        print_strided_copy(function, x, target, strides, start)
    return [target]


def _slice(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    if len(inputs) > 2:
        raise UnsupportedError("a window of a computed size")
    if isinstance(inputs[0], Scalar):
        return [inputs[0]]
    x, sizes = as_array(inputs[0]), shape_of(operation.outputs[0])
    window = Array(_window(context, x, inputs[1], sizes), x.kind, sizes)
    target = context.function.allocate(x.kind, sizes)
    if target.size:
        print_strided_copy(context.function, window, target, strides_of(x.shape, x.shape))
    return [target]


def _slice_update(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    function = context.function
    if isinstance(inputs[0], Scalar):
        return [inputs[2]]
    x, updates = as_array(inputs[0]), as_array(inputs[2])
    if x.size > _MOST_COPIED:
        raise UnsupportedError("a large array that is copied for a window")
    target = function.copy_of(x)
    window = Array(_window(context, target, inputs[1], updates.shape), x.kind, updates.shape)
    if window.size:
        own = strides_of(updates.shape, updates.shape)
        print_strided_copy(function, updates, window, own, into=strides_of(x.shape, x.shape))
    return [target]


def _window(context: FormContext, whole: Array, places: Value, sizes: Sequence[int]) -> str:
    """Return the address of a window that begins at computed places, which are tested to be inside."""
    function, pointer, starts = context.function, whole.pointer, as_integers(places)
    for axis, (dim, size) in enumerate(zip(whole.shape, sizes, strict=True)):
        start = integer_at(function, starts, str(axis))
        context.fail_unless(function.let(f"icmp ule i64 {start}, {dim - size}"))
        offset = function.let(f"mul nsw i64 {start}, {math.prod(whole.shape[axis + 1 :])}")
        pointer = function.element(whole.kind, pointer, offset)
    return pointer


def _copy_window(
    function: Function,
    source: Array,
    starts: Sequence[int],
    target: Array,
    places: Sequence[int],
    sizes: tuple[int, ...],
) -> None:
    """Copy a window of an array of so many elements along each axis to a place in another one of its rank."""
    if 0 in sizes:
        return
    steps, own = (strides_of(array.shape, array.shape) for array in (source, target))
    first, place = (_offset(numbers, strides) for numbers, strides in ((starts, steps), (places, own)))
    window = Array(function.element(target.kind, target.pointer, str(place)), target.kind, sizes)
    print_strided_copy(function, source, window, steps, first, own)


def _offset(numbers: Sequence[int], strides: Sequence[int]) -> int:
    return sum([number * stride for number, stride in zip(numbers, strides, strict=True)])


def _triangle(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print the copy of a triangle of each matrix row by row."""
    op, function, x = op_of(operation, Triangle), context.function, as_array(inputs[0])
    target = function.allocate(x.kind, x.shape)
    rows, columns = x.shape[-2:]
    with function.count(math.prod(x.shape[:-1])) as number, function.count(columns) as column:
        row = function.let(f"urem i64 {number}, {max(rows, 1)}")
        diagonal = function.let(f"sub i64 {column}, {row}")
        is_kept = function.let(f"icmp {'sge' if op.upper else 'sle'} i64 {diagonal}, {op.offset}")
        place = function.offset_of([number, column], [columns, 1])
        value = function.choose(is_kept, function.load(x.kind, x.pointer, place), literal(0, x.kind), x.kind)
        function.store(x.kind, value, target.pointer, place)
    return [target]


def _diag(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op = op_of(operation, Diag)
    return _on_diagonal(context, operation, as_array(inputs[0]), (op.offset, 0, 1))


def _put_diagonal(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op = op_of(operation, PutDiagonal)
    return _on_diagonal(context, operation, as_array(inputs[0]), (op.offset, op.axis1, op.axis2))


def _on_diagonal(
    context: FormContext, operation: Operation, values: Array, diagonal: tuple[int, int, int]
) -> list[Value]:
    """Print zeros with values on a diagonal."""
    function, shape = context.function, shape_of(operation.outputs[0])
    target = function.allocate_zeros(values.kind, shape)
    first, strides = _diagonal(shape, *diagonal)
    if values.size:
        window = Array(function.element(values.kind, target.pointer, str(first)), values.kind, values.shape)
        own = strides_of(values.shape, values.shape)
        print_strided_copy(function, values, window, own, into=strides)
    return [target]


def _take_diagonal(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function, x = op_of(operation, Diagonal), context.function, as_array(inputs[0])
    target = function.allocate(x.kind, shape_of(operation.outputs[0]))
    first, strides = _diagonal(x.shape, op.offset, op.axis1, op.axis2)
    if target.size:
        print_strided_copy(function, x, target, strides, first)
    return [target]


def _diagonal(shape: Sequence[int], offset: int, axis1: int, axis2: int) -> tuple[int, list[int]]:
    """Return where a diagonal begins, and how far elements are apart: along the other axes, and along it."""
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    rows, columns = axis1 % len(shape), axis2 % len(shape)
    others = [step for axis, step in enumerate(steps) if axis not in (rows, columns)]
    return steps[columns] * offset if offset > 0 else steps[rows] * -offset, [*others, steps[rows] + steps[columns]]


FORMS: dict[type[Any], Form] = {
    Diag: _diag,
    Diagonal: _take_diagonal,
    Flip: _flip,
    Pad: _pad,
    PutDiagonal: _put_diagonal,
    Roll: _roll,
    Slice: _slice,
    SliceUpdate: _slice_update,
    Triangle: _triangle,
}
