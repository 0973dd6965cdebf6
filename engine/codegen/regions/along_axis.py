"""Native forms of operations that pick, or add to, elements along an axis: by positions, or as the largest ones."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.arrays.gathering import AddRows, PutAlongAxis, PutRows, TakeAlongAxis
from ...ops.arrays.scattering import GatherLast, GatherNd, ScatterAdd, ScatterUpdate
from ...ops.arrays.segments import GatherSegments, SegmentMax, SegmentMin, SegmentProd, SegmentSum
from ...ops.arrays.sorting import TopK
from ..expression.expression import UnsupportedError
from .arrays import as_array, as_integers, integer_at
from .function import Array, Form, FormContext, Function, Scalar, Value, shape_of, strides_of
from .gather_forms import each_part, print_position
from .scalars import FLOATS, literal, size_of
from .scans import print_is_better

_MOST_COPIED = 4096  # elements of an array to which rows are added: outside of regions it may be in place
_MOST_AT_ONCE = 1 << 16  # elements of segments, and of rows whose largest are taken: more are worth threads
_MOST_PLACES = 64  # of the largest elements of a row, which are kept in order


def _take_along_axis(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function = op_of(operation, TakeAlongAxis), context.function
    x, indices = as_array(inputs[0]), as_integers(inputs[1])
    space = shape_of(operation.outputs[0])
    target = function.allocate(x.kind, space)
    with _each(context, op.axis, x.shape, indices, space) as (place, picked):
        function.store(x.kind, function.load(x.kind, x.pointer, picked), target.pointer, place)
    return [target]


def _put_along_axis(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function = op_of(operation, PutAlongAxis), context.function
    values, indices = as_array(inputs[0]), as_integers(inputs[1])
    shape = shape_of(operation.outputs[0])
    if values.kind == "i1":
        raise UnsupportedError("a sum of bools")
    target = function.allocate_zeros(values.kind, shape)
    with _each(context, op.axis, shape, indices, values.shape) as (place, picked):
        value = function.load(values.kind, values.pointer, place)
        _add_to(function, values.kind, value, target.pointer, picked)
    return [target]


@contextmanager
def _each(
    context: FormContext, axis: int, whole: Sequence[int], indices: Any, space: tuple[int, ...]
) -> Generator[tuple[str, str]]:
    """Print a block for each index: gives its number in `space`, and that of the element of `whole` that it names."""
    function, axis = context.function, axis % len(space)
    steps = strides_of(whole, whole)
    own = strides_of(indices.shape, space) if isinstance(indices, Array) else [0] * len(space)
    along = [0 if a == axis else step for a, step in enumerate(steps)]
    with function.counters(space) as numbers:
        index = integer_at(function, indices, function.offset_of(numbers, own))
        position = print_position(context, index, whole[axis])
        picked = function.offset_of([*numbers, position], [*along, max(steps[axis], 1)])
        yield function.offset_of(numbers, strides_of(space, space)), picked


def _add_rows(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function, base = op_of(operation, AddRows), context.function, as_array(inputs[0])
    if base.size > _MOST_COPIED:
        raise UnsupportedError("a large array that is copied for a few rows")
    target = function.copy_of(base)
    _add_parts(context, op, inputs[1:], target)
    return [target]


def _put_rows(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function, values = op_of(operation, PutRows), context.function, inputs[0]
    if not isinstance(values, (Scalar, Array)):
        raise UnsupportedError("rows of another kind")
    target = function.allocate_zeros(values.kind, shape_of(operation.outputs[0]))
    _add_parts(context, op, inputs, target)
    return [target]


def _add_parts(context: FormContext, op: AddRows | PutRows, inputs: Sequence[Value], target: Array) -> None:
    """Add values, the first input, to parts of an array at positions, the second."""
    function, values, positions = context.function, inputs[0], as_integers(inputs[1])
    if target.kind == "i1" or not isinstance(values, (Scalar, Array)):
        raise UnsupportedError("a sum of another kind")
    parts = each_part(context, positions, target.shape, op.axis, op.wrap)
    with parts as (part, place, width), function.count(width) as k:
        value = _element(function, values, part, k)
        _add_to(function, target.kind, value, target.pointer, function.offset_of([place, k], [1, 1]))


def _add_to(function: Function, kind: str, value: str, pointer: str, place: str) -> None:
    before = function.load(kind, pointer, place)
    function.store(
        kind, function.let(f"{'fadd' if kind in FLOATS else 'add'} {kind} {before}, {value}"), pointer, place
    )


# --- parts that several indices name ---------------------------------------------------------------------------------


def _gather_nd(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    function, x, shape = context.function, as_array(inputs[0]), shape_of(operation.outputs[0])
    target = function.allocate(x.kind, shape)
    with _each_named(context, inputs[1], x.shape) as (number, place, width):
        into, taken = (function.element(x.kind, *at) for at in ((target.pointer, number), (x.pointer, place)))
        function.copy_bytes(into, taken, width * size_of(x.kind))
    return [target if shape else Scalar(function.load(x.kind, target.pointer), x.kind)]


def _gather_last(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print zeros for indices that are named again further on, and the parts of the others."""
    function, x, shape = context.function, as_array(inputs[0]), shape_of(operation.outputs[0])
    target, latest = function.allocate(x.kind, shape), function.allocate("i64", x.shape)
    function.zero(target)
    with _each_named(context, inputs[1], x.shape) as (number, place, _):
        function.store("i64", number, latest.pointer, place)
    with _each_named(context, inputs[1], x.shape) as (number, place, width):
        is_last = function.let(f"icmp eq i64 {function.load('i64', latest.pointer, place)}, {number}")
        with function.count(width) as k:
            from_there = function.load(x.kind, x.pointer, function.offset_of([place, k], [1, 1]))
            value = function.choose(is_last, from_there, literal(0, x.kind), x.kind)
            function.store(x.kind, value, target.pointer, function.offset_of([number, k], [1, 1]))
    return [target if shape else Scalar(function.load(x.kind, target.pointer), x.kind)]


def _scatter(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print a copy of an array, of which parts are replaced in order, or added to."""
    function, x, updates = context.function, as_array(inputs[0]), inputs[2]
    adds = isinstance(operation.op, ScatterAdd)
    if x.size > _MOST_COPIED or (adds and x.kind == "i1") or not isinstance(updates, (Scalar, Array)):
        raise UnsupportedError("a large array that is copied for a few parts, or of another kind")
    target = function.copy_of(x)
    with _each_named(context, inputs[1], x.shape) as (number, place, width), function.count(width) as k:
        value, into = _element(function, updates, number, k), function.offset_of([place, k], [1, 1])
        if adds:
            _add_to(function, x.kind, value, target.pointer, into)
        else:
            function.store(x.kind, value, target.pointer, into)
    return [target]


def _reduce_segments(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print the sum, product or extremum of the rows of each number; what is outside of them is left out."""
    op = op_of(operation, (SegmentMax, SegmentMin, SegmentProd, SegmentSum))
    function, data = context.function, as_array(inputs[0])
    kind = data.kind
    target = function.allocate(kind, shape_of(operation.outputs[0]))
    start = literal(op.start(operation.outputs[0].dtype), kind)
    with function.count(target.size) as k:
        function.store(kind, start, target.pointer, k)
    with _each_inside(function, data, inputs[1], target) as (own, place):
        value, before = function.load(kind, data.pointer, own), function.load(kind, target.pointer, place)
        if isinstance(op, (SegmentMax, SegmentMin)):
            is_better = print_is_better(function, kind, value, before, isinstance(op, SegmentMin))
            found = function.choose(is_better, value, before, kind)
        else:
            name = "add" if isinstance(op, SegmentSum) else "mul"
            found = function.let(f"{'f' if kind in FLOATS else ''}{name} {kind} {before}, {value}")
        function.store(kind, found, target.pointer, place)
    return [target]


def _gather_segments(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print the rows that numbers name; zeros for a number of none."""
    function, data = context.function, as_array(inputs[0])
    target = function.allocate_zeros(data.kind, shape_of(operation.outputs[0]))
    with _each_inside(function, target, inputs[1], data) as (own, place):
        function.store(data.kind, function.load(data.kind, data.pointer, place), target.pointer, own)
    return [target]


@contextmanager
def _each_inside(function: Function, rows: Array, numbers: Value, segments: Array) -> Generator[tuple[str, str]]:
    """Print a block for each element of rows whose numbers are those of segments: gives it, and the segment's."""
    ids = as_integers(numbers)
    if rows.kind == "i1" or max(rows.size, segments.size) > _MOST_AT_ONCE or not isinstance(ids, Array):
        raise UnsupportedError("many rows, or of another kind")
    width = math.prod(rows.shape[1:])
    with function.count(ids.size) as row:
        number = integer_at(function, ids, row)
        is_inside = function.let(f"icmp ult i64 {number}, {segments.shape[0]}")
        with function.when(is_inside), function.count(width) as k:
            own, place = (function.offset_of([each, k], [width, 1]) for each in (row, number))
            yield own, place


@contextmanager
def _each_named(context: FormContext, given: Value, shape: Sequence[int]) -> Generator[tuple[str, str, int]]:
    """Print a block for each part that a row of indices names.

    Gives the offsets of the part among all that are named, and in the array of the shape, and its size.
    """
    function, indices = context.function, as_integers(given)
    if not isinstance(indices, Array):
        raise UnsupportedError("indices of another kind")
    depth = indices.shape[-1]
    width = math.prod(shape[depth:])
    with function.count(indices.size // depth) as row:
        positions = [
            print_position(
                context, integer_at(function, indices, function.offset_of([row, str(k)], [depth, 1])), size, False
            )
            for k, size in enumerate(shape[:depth])
        ]
        place = function.offset_of(positions, [math.prod(shape[axis + 1 :]) for axis in range(depth)])
        yield function.offset_of([row], [width]), place, width


def _element(function: Function, values: Scalar | Array, part: str, k: str) -> str:
    if isinstance(values, Scalar):
        return values.name
    return function.load(values.kind, values.pointer, function.offset_of([part, k], [1, 1]))


# --- the largest elements --------------------------------------------------------------------------------------------


def _top_k(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Keep the best elements of each row so far in descending order; each that beats the last of them is inserted."""
    op, function, x = op_of(operation, TopK), context.function, as_array(inputs[0])
    shape, size = shape_of(operation.outputs[0]), x.shape[-1]
    if x.kind == "i1" or not 0 < op.k <= _MOST_PLACES or x.size > _MOST_AT_ONCE:
        raise UnsupportedError("largest elements of another kind")
    values, places = function.allocate(x.kind, shape), function.allocate("i32", shape)
    value, place = function.slot(x.kind), function.slot("i32")
    with function.count(values.size // op.k) as row:
        first = function.element(x.kind, x.pointer, function.offset_of([row], [size]))
        start = function.offset_of([row], [op.k])
        best = Array(function.element(x.kind, values.pointer, start), x.kind, (op.k,))
        own = function.element("i32", places.pointer, start)
        with function.loop(0, op.k) as number:
            _load(function, x.kind, first, number, value, place)
            _insert(function, best, own, value, place, number)
            function.store(x.kind, function.load(x.kind, value), best.pointer, number)
            function.store("i32", function.load("i32", place), own, number)
        with function.loop(op.k, size) as number:
            _load(function, x.kind, first, number, value, place)
            last = function.load(x.kind, best.pointer, op.k - 1)
            is_better = print_is_better(function, x.kind, function.load(x.kind, value), last)
            with function.when(is_better):
                _insert(function, best, own, value, place, op.k)
    return [values, places]


def _load(function: Function, kind: str, row: str, number: str, value: str, place: str) -> None:
    """Put an element of a row, and its number, into the slots of what is inserted."""
    function.store(kind, function.load(kind, row, number), value)
    function.store("i32", function.let(f"trunc i64 {number} to i32"), place)


def _insert(function: Function, best: Array, places: str, value: str, place: str, count: int | str) -> None:
    """Insert an element in front of the first of `count` that it beats; they move on, and the last one is left over."""
    kind, is_in = best.kind, function.slot("i8")
    function.store("i8", 0, is_in)
    with function.loop(0, count) as number:
        new, old = function.load(kind, value), function.load(kind, best.pointer, number)
        at, before = function.load("i32", place), function.load("i32", places, number)
        was_in = function.let(f"icmp ne i8 {function.load('i8', is_in)}, 0")
        moves = function.let(f"or i1 {was_in}, {print_is_better(function, kind, new, old)}")
        function.store("i1", moves, is_in)
        function.store(kind, function.choose(moves, new, old, kind), best.pointer, number)
        function.store(kind, function.choose(moves, old, new, kind), value)
        function.store("i32", function.choose(moves, at, before, "i32"), places, number)
        function.store("i32", function.choose(moves, before, at, "i32"), place)


FORMS: dict[type[Any], Form] = {
    AddRows: _add_rows,
    GatherLast: _gather_last,
    GatherNd: _gather_nd,
    GatherSegments: _gather_segments,
    PutAlongAxis: _put_along_axis,
    PutRows: _put_rows,
    ScatterAdd: _scatter,
    ScatterUpdate: _scatter,
    SegmentMax: _reduce_segments,
    SegmentMin: _reduce_segments,
    SegmentProd: _reduce_segments,
    SegmentSum: _reduce_segments,
    TakeAlongAxis: _take_along_axis,
    TopK: _top_k,
}
