"""Native forms of operations that pick, or add to, elements along an axis: by positions, or as the largest ones."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ...graph.graph import Operation
from ...ops.arrays.gathering import AddRows, PutAlongAxis, PutRows, TakeAlongAxis
from ...ops.arrays.sorting import TopK
from ..expression.expression import UnsupportedError
from .arrays import as_array, as_integers, integer_at
from .function import Array, Function, Scalar, Value, strides_of
from .gather_forms import each_part, print_position
from .scalars import FLOATS
from .scans import print_is_better

if TYPE_CHECKING:
    from .forms import Context, Form

_MOST_COPIED = 4096  # elements of an array to which rows are added: outside of regions it may be in place
_MOST_PLACES = 64  # of the largest elements of a row, which are kept in order


def _take_along_axis(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function = operation.op, context.function
    assert isinstance(op, TakeAlongAxis)
    x, indices = as_array(inputs[0]), as_integers(inputs[1])
    space = context.shape_of(operation.outputs[0])
    target = function.allocate(x.kind, space)
    with _each(context, op.axis, x.shape, indices, space) as (place, picked):
        function.store(x.kind, function.load(x.kind, x.pointer, picked), target.pointer, place)
    return [target]


def _put_along_axis(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function = operation.op, context.function
    assert isinstance(op, PutAlongAxis)
    values, indices = as_array(inputs[0]), as_integers(inputs[1])
    shape = context.shape_of(operation.outputs[0])
    if values.kind == "i1":
        raise UnsupportedError("a sum of bools")
    target = function.allocate(values.kind, shape)
    function.zero(target)
    with _each(context, op.axis, shape, indices, values.shape) as (place, picked):
        value = function.load(values.kind, values.pointer, place)
        _add_to(function, values.kind, value, target.pointer, picked)
    return [target]


@contextmanager
def _each(
    context: Context, axis: int, whole: Sequence[int], indices: Any, space: tuple[int, ...]
) -> Generator[tuple[str, str]]:
    """Print a block for each index: gives its number in `space`, and that of the element of `whole` that it names."""
    function, axis = context.function, axis % len(space)
    steps = strides_of(whole, whole)
    own = strides_of(indices.shape, space) if isinstance(indices, Array) else [0] * len(space)
    along = [0 if a == axis else step for a, step in enumerate(steps)]
    with ExitStack() as loops:
        numbers = [loops.enter_context(function.count(size)) for size in space]
        index = integer_at(function, indices, function.offset_of(numbers, own))
        position = print_position(context, index, whole[axis])
        picked = function.offset_of([*numbers, position], [*along, max(steps[axis], 1)])
        yield function.offset_of(numbers, strides_of(space, space)), picked


def _add_rows(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function, base = operation.op, context.function, as_array(inputs[0])
    assert isinstance(op, AddRows)
    if base.size > _MOST_COPIED:
        raise UnsupportedError("a large array that is copied for a few rows")
    target = function.allocate(base.kind, base.shape)
    function.copy_bytes(target.pointer, base.pointer, target.bytes)
    _add_parts(context, op, inputs[1:], target)
    return [target]


def _put_rows(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function, values = operation.op, context.function, inputs[0]
    assert isinstance(op, PutRows)
    if not isinstance(values, (Scalar, Array)):
        raise UnsupportedError("rows of another kind")
    target = function.allocate(values.kind, context.shape_of(operation.outputs[0]))
    function.zero(target)
    _add_parts(context, op, inputs, target)
    return [target]


def _add_parts(context: Context, op: AddRows | PutRows, inputs: Sequence[Value], target: Array) -> None:
    """Add values, the first input, to parts of an array at positions, the second."""
    function, values, positions = context.function, inputs[0], as_integers(inputs[1])
    if target.kind == "i1" or not isinstance(values, (Scalar, Array)):
        raise UnsupportedError("a sum of another kind")
    parts = each_part(context, positions, target.shape, op.axis, op.wrap)
    with parts as (part, place, width), function.count(width) as k:
        value = values.name if isinstance(values, Scalar) else ""
        if isinstance(values, Array):
            value = function.load(values.kind, values.pointer, function.offset_of([part, k], [1, 1]))
        _add_to(function, target.kind, value, target.pointer, function.offset_of([place, k], [1, 1]))


def _add_to(function: Function, kind: str, value: str, pointer: str, place: str) -> None:
    before = function.load(kind, pointer, place)
    function.store(
        kind, function.let(f"{'fadd' if kind in FLOATS else 'add'} {kind} {before}, {value}"), pointer, place
    )


def _top_k(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Keep the best elements of each row so far in descending order; each that beats the last of them is inserted."""
    op, function, x = operation.op, context.function, as_array(inputs[0])
    assert isinstance(op, TopK)
    shape, size = context.shape_of(operation.outputs[0]), x.shape[-1]
    if x.kind == "i1" or not 0 < op.k <= _MOST_PLACES:
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
            found, done = function.fresh("found"), function.fresh("done")
            function.branch(is_better, found, done)
            function.begin(found)
            _insert(function, best, own, value, place, op.k)
            function.jump(done)
            function.begin(done)
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
    PutAlongAxis: _put_along_axis,
    PutRows: _put_rows,
    TakeAlongAxis: _take_along_axis,
    TopK: _top_k,
}

__all__ = ["FORMS"]
