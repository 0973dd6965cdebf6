"""Native TensorArrays that are written: one block of memory for all values of a chain, changed in place.

That is right as long as nothing looks at an earlier value of the chain, which is known when code is printed: a value
holds the version of its state, and only the latest may be used. What is read is copied, for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.containers.array_windows import ArrayWindow
from ...ops.containers.tensor_arrays import (
    ArrayAddAt,
    ArrayClear,
    ArrayEmpty,
    ArrayNew,
    ArrayRead,
    ArrayReadOrZeros,
    ArraySize,
    ArrayStack,
    ArrayStackLike,
    ArrayUnstack,
    ArrayWrite,
)
from ..expression.expression import UnsupportedError
from .function import Array, Elements, Form, FormContext, Function, Ragged, Scalar, Slots, State, Value, shape_of
from .scalars import FLOATS, literal, size_of, type_of


def _slots(value: Value) -> State:
    """Return the state of an array that may be changed.

    Raises:
        UnsupportedError: it is none, or its memory holds a later value already.
    """
    if not isinstance(value, Slots):
        raise UnsupportedError("no array that can be written")
    if value.version != value.state.version:
        raise UnsupportedError("an earlier value of a TensorArray is used after a write")
    return value.state


def _changed(state: State) -> Slots:
    state.version += 1
    return Slots(state, state.version)


def as_index(function: Function, index: Value) -> str:
    """Return an integer as an i64."""
    if not isinstance(index, Scalar) or index.kind not in ("i32", "i64"):
        raise UnsupportedError("an index of another kind")
    return index.name if index.kind == "i64" else function.let(f"sext i32 {index.name} to i64")


def as_array(value: Value) -> Array:
    """Return an array of known size.

    Raises:
        UnsupportedError: it is none.
    """
    if not isinstance(value, Array):
        raise UnsupportedError("no array")
    return value


def as_integers(value: Value) -> Scalar | Array:
    """Return a value as positions, or one position.

    Raises:
        UnsupportedError: they are none.
    """
    if not isinstance(value, (Scalar, Array)) or value.kind not in ("i32", "i64"):
        raise UnsupportedError("positions of another kind")
    return value


def integer_at(function: Function, integers: Scalar | Array, k: str) -> str:
    """Print a load of integer k as an i64."""
    if isinstance(integers, Scalar):
        return as_index(function, integers)
    place = function.element(integers.kind, integers.pointer, k)
    return as_index(function, Scalar(function.load(integers.kind, place), integers.kind))


def from_front(function: Function, position: str, size: int | str) -> str:
    """Print a position, which may count from the end, as one that counts from the front."""
    negative = function.let(f"icmp slt i64 {position}, 0")
    wrapped = function.let(f"add i64 {position}, {size}")
    return function.let(f"select i1 {negative}, i64 {wrapped}, i64 {position}")


def _size(function: Function, state: State) -> str:
    return function.let(f"load i64, ptr {state.size}")


def _row(function: Function, state: State, index: str) -> str:
    """Return the address of an element."""
    count = math.prod(state.shape)
    offset = index if count == 1 else function.let(f"mul nsw i64 {index}, {count}")
    return function.element(state.kind, state.rows, offset)


def _is_there(function: Function, state: State, index: str) -> str:
    """Print the test whether there is an element at an index that is known to be within the capacity."""
    return function.let(f"icmp ne i8 {function.let(f'load i8, ptr {_flag(function, state, index)}')}, 0")


def _flag(function: Function, state: State, index: str) -> str:
    return function.let(f"getelementptr inbounds i8, ptr {state.flags}, i64 {index}")


def _room(context: FormContext, state: State, index: str, dynamic: bool) -> None:
    """Fail, or ask for more room, unless an element can be at an index; the array grows as far as that."""
    function = context.function
    if not dynamic:
        context.fail_unless(function.let(f"icmp ult i64 {index}, {_size(function, state)}"))
        return
    context.fail_unless(function.let(f"icmp sge i64 {index}, 0"))
    context.need_unless(function.let(f"icmp slt i64 {index}, {state.capacity}"), state.number)
    size = _size(function, state)
    larger = function.let(f"add i64 {index}, 1")
    grows = function.let(f"icmp sgt i64 {larger}, {size}")
    function.line(f"store i64 {function.let(f'select i1 {grows}, i64 {larger}, i64 {size}')}, ptr {state.size}")


def _write(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op = op_of(operation, ArrayWrite)
    array, index, value = inputs
    state, position = _slots(array), as_index(context.function, index)
    _room(context, state, position, op.dynamic_size)
    context.function.put(value, state.kind, state.shape, _row(context.function, state, position), "an element")
    context.function.line(f"store i8 1, ptr {_flag(context.function, state, position)}")
    return [_changed(state)]


def _add_at(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    array, index, value = inputs
    function = context.function
    state, position = _slots(array), as_index(function, index)
    if state.kind == "i1":
        raise UnsupportedError("a sum of bools")
    _room(context, state, position, True)
    place = _row(function, state, position)
    add, new, done = (function.fresh(hint) for hint in ("add", "new", "added"))
    function.branch(_is_there(function, state, position), add, new)
    function.begin(add)
    with function.count(math.prod(state.shape), True) as k:
        source = value.name if isinstance(value, Scalar) else _element(function, value, k)
        at = function.element(state.kind, place, k)
        operator = "fadd" if state.kind in FLOATS else "add"
        total = function.let(f"{operator} {state.kind} {function.load(state.kind, at)}, {source}")
        function.store(state.kind, total, at)
    function.jump(done)
    function.begin(new)
    function.put(value, state.kind, state.shape, place, "an element")
    function.line(f"store i8 1, ptr {_flag(function, state, position)}")
    function.jump(done)
    function.begin(done)
    return [_changed(state)]


def _element(function: Function, value: Value, index: str) -> str:
    if not isinstance(value, Array):
        raise UnsupportedError("an element of another kind")
    return function.load(value.kind, function.element(value.kind, value.pointer, index))


def _clear(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    array, index = inputs
    function = context.function
    state, position = _slots(array), as_index(function, index)
    context.fail_unless(function.let(f"icmp sge i64 {position}, 0"))
    clear, done = function.fresh("clear"), function.fresh("cleared")
    function.branch(function.let(f"icmp slt i64 {position}, {_size(function, state)}"), clear, done)
    function.begin(clear)
    function.line(f"store i8 0, ptr {_flag(function, state, position)}")
    function.jump(done)
    function.begin(done)
    return [_changed(state)]


def _taken(function: Function, state: State, place: str) -> Value:
    """Return a copy of an element."""
    if not state.shape:
        return Scalar(function.load(state.kind, place), state.kind)
    target = function.allocate(state.kind, state.shape)
    function.copy_bytes(target.pointer, place, target.bytes)
    return target


def _read(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    array, index = inputs
    function = context.function
    position = as_index(function, index)
    if isinstance(array, (Elements, Ragged)):
        context.fail_unless(function.let(f"icmp ult i64 {position}, {array.count}"))
        return (
            [element_at(function, array, position)]
            if isinstance(array, Elements)
            else [array_at(function, array, position)]
        )
    state = _slots(array)
    context.fail_unless(function.let(f"icmp ult i64 {position}, {_size(function, state)}"))
    context.fail_unless(_is_there(function, state, position))
    return [_taken(function, state, _row(function, state, position))]


def element_at(function: Function, array: Elements, index: str) -> Value:
    """Return an element, in place."""
    size = math.prod(array.shape)
    offset = index if size == 1 else function.let(f"mul nsw i64 {index}, {size}")
    pointer = function.element(array.kind, array.pointer, offset)
    if not array.shape:
        return Scalar(function.load(array.kind, pointer), array.kind)
    return Array(pointer, array.kind, array.shape, array.buffers)


def array_at(function: Function, array: Ragged, index: str) -> Elements:
    """Return an array of an array of arrays, in place."""
    place = function.element("i64", array.offsets, index)
    start = function.load("i64", place)
    end = function.load("i64", function.element("i64", place, "1"))
    pointer = function.element(array.kind, array.pointer, function.offset_of([start], [math.prod(array.shape)]))
    return Elements(pointer, array.kind, array.shape, function.let(f"sub i64 {end}, {start}"))


def _read_or_zeros(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    array, index = inputs[:2]
    function = context.function
    position = as_index(function, index)
    context.fail_unless(function.let(f"icmp sge i64 {position}, 0"))
    shape = operation.outputs[0].shape
    if not isinstance(array, (Elements, Slots)):
        raise UnsupportedError("no TensorArray")
    if array.shape != shape or array.kind != type_of(operation.outputs[0].dtype):
        raise UnsupportedError("elements of another shape")
    slot = function.slot(array.kind) if not shape else ""
    target = function.allocate(array.kind, array.shape) if shape else None
    there, none, done = (function.fresh(hint) for hint in ("there", "none", "read"))
    if isinstance(array, Elements):
        function.branch(function.let(f"icmp slt i64 {position}, {array.count}"), there, none)
    else:
        state = _slots(array)
        inside = function.fresh("inside")
        function.branch(function.let(f"icmp slt i64 {position}, {_size(function, state)}"), inside, none)
        function.begin(inside)
        function.branch(_is_there(function, state, position), there, none)
    function.begin(there)
    if isinstance(array, Elements):
        count = math.prod(array.shape)
        offset = position if count == 1 else function.let(f"mul nsw i64 {position}, {count}")
        place = function.element(array.kind, array.pointer, offset)
    else:
        place = _row(function, _slots(array), position)
    if target is None:
        function.line(f"store {array.kind} {function.load(array.kind, place)}, ptr {slot}")
    else:
        function.copy_bytes(target.pointer, place, target.bytes)
    function.jump(done)
    function.begin(none)
    if target is None:
        function.line(f"store {array.kind} {literal(0, array.kind)}, ptr {slot}")
    else:
        function.zero(target)
    function.jump(done)
    function.begin(done)
    return [target or Scalar(function.let(f"load {array.kind}, ptr {slot}"), array.kind)]


def _count(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    (array,) = inputs
    function = context.function
    size = array.count if isinstance(array, Elements) else _size(function, _slots(array))
    return [Scalar(function.let(f"trunc i64 {size} to i32"), "i32")]


def _new(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    function = context.function
    state = context.new_state(operation.outputs[0])
    size = as_index(function, inputs[0])
    context.fail_unless(function.let(f"icmp sge i64 {size}, 0"))
    context.need_unless(function.let(f"icmp sle i64 {size}, {state.capacity}"), state.number)
    return [_begun(function, state, size)]


def _empty(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    return [_begun(context.function, context.new_state(operation.outputs[0]), "0")]


def _begun(function: Function, state: State, size: str) -> Slots:
    """Return a state without elements."""
    function.line(f"store i64 {size}, ptr {state.size}")
    function.clear_bytes(state.flags, state.capacity)
    return _changed(state)


def _stack(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    (array,) = inputs
    function = context.function
    spec = operation.outputs[0].spec
    if isinstance(spec, TensorSpec) and not spec.is_static:
        return [_rows_of(context, array)]
    shape = shape_of(operation.outputs[0])
    if isinstance(array, Elements):
        context.fail_unless(function.let(f"icmp eq i64 {array.count}, {shape[0]}"))
        return [Array(array.pointer, array.kind, shape, array.buffers)]
    state = _slots(array)
    context.fail_unless(function.let(f"icmp eq i64 {_size(function, state)}, {shape[0]}"))
    with function.count(shape[0]) as index:
        context.fail_unless(_is_there(function, state, index))
    target = function.allocate(state.kind, shape)
    function.copy_bytes(target.pointer, state.rows, target.bytes)
    return [target]


def _rows_of(context: FormContext, array: Value) -> Elements:
    """Return all elements, however many there are, in place."""
    if isinstance(array, Elements):
        return array
    state, function = _slots(array), context.function
    size = _size(function, state)
    with function.count(size) as index:
        context.fail_unless(_is_there(function, state, index))
    return Elements(state.rows, state.kind, state.shape, size, Slots(state, state.version))


def _window(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op = op_of(operation, ArrayWindow)
    array, function = inputs[0], context.function
    if not isinstance(array, Elements):
        raise UnsupportedError("a window of a TensorArray that is written")
    start, count = as_index(function, inputs[1]), as_index(function, inputs[2])
    for number in (start, count):
        context.fail_unless(function.let(f"icmp sge i64 {number}, 0"))
    end = function.let(f"add nsw i64 {start}, {count}")
    context.fail_unless(function.let(f"icmp sle i64 {end}, {array.count}"))
    offset = function.offset_of([start], [math.prod(array.shape)])
    pointer = function.element(array.kind, array.pointer, offset)
    if op.count is None:
        return [Elements(pointer, array.kind, array.shape, count, array.of, array.buffers)]
    context.fail_unless(function.let(f"icmp eq i64 {count}, {op.count}"))
    return [Array(pointer, array.kind, (op.count, *array.shape), array.buffers)]


def _unstack(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    (rows,) = inputs
    if isinstance(rows, Elements):
        return [rows]
    rows = as_array(rows)
    return [Elements(rows.pointer, rows.kind, rows.shape[1:], str(rows.shape[0]), None, rows.buffers)]


def _stack_like(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    array = inputs[0]
    shape = shape_of(operation.outputs[0])
    function = context.function
    state = _slots(array)
    if state.shape != shape[1:]:
        raise UnsupportedError("elements of another shape")
    target = function.allocate_zeros(state.kind, shape)
    size = _size(function, state)
    with function.count(shape[0]) as index:
        inside, there, done = (function.fresh(hint) for hint in ("inside", "there", "on"))
        function.branch(function.let(f"icmp slt i64 {index}, {size}"), inside, done)
        function.begin(inside)
        function.branch(_is_there(function, state, index), there, done)
        function.begin(there)
        count = math.prod(state.shape)
        place = function.element(state.kind, target.pointer, function.offset_of([index], [count]))
        function.copy_bytes(place, _row(function, state, index), count * size_of(state.kind))
        function.jump(done)
        function.begin(done)
    return [target]


FORMS: dict[type, Form] = {
    ArrayAddAt: _add_at,
    ArrayClear: _clear,
    ArrayEmpty: _empty,
    ArrayNew: _new,
    ArrayRead: _read,
    ArrayReadOrZeros: _read_or_zeros,
    ArraySize: _count,
    ArrayStack: _stack,
    ArrayStackLike: _stack_like,
    ArrayUnstack: _unstack,
    ArrayWindow: _window,
    ArrayWrite: _write,
}
