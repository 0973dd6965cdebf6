"""The records of native loops: for each tensor the rows of one block of memory, a row an iteration.

Where an iteration gives the record of a loop inside, the records of that loop's runs are there one after the other, and
the outer loop records where each ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ...control_flow.frames import History
from ...graph.spec import ArraySpec, TensorSpec
from ...graph.tensor import Symbol
from ..expression.expression import UnsupportedError
from .forms import Context
from .function import Elements, Ragged, Record, Value
from .pieces import PIECE

_MANY = 100  # records of one loop, from which they share a count


def start_records(context: Context, tensors: Iterable[Symbol]) -> dict[Symbol, str]:
    """Print, before a loop that records `tensors`, where its records begin. Unwanted older ones are overwritten."""
    wanted = list(tensors)
    starts: dict[Symbol, str] = {}
    together = _records_together(context, wanted)
    if together:
        first = context.record_of(together[0])
        _forget(context, first)
        start = context.function.let(f"load i64, ptr {first.count}")
        starts.update(dict.fromkeys(together, start))
        for tensor in together[1:]:
            context.record_of(tensor).follow(first)
    for tensor in wanted:
        if tensor in starts:
            continue
        record = context.record_of(tensor)
        inner = recorded_inside(tensor)
        if inner is not None:
            context.kept.add(inner)
        if tensor not in context.kept:
            _forget(context, record)
        starts[tensor] = context.function.let(f"load i64, ptr {record.count}")
    return starts


def _records_together(context: Context, tensors: Sequence[Symbol]) -> list[Symbol]:
    """Return scalars that a loop records, if they are so many that they get one count, and one request for room."""
    scalars = [
        tensor
        for tensor in tensors
        if isinstance(tensor.spec, TensorSpec)
        and tensor.shape == ()
        and tensor not in context.records
        and tensor not in context.kept
    ]
    return scalars if len(scalars) >= _MANY else []


def recorded_inside(tensor: Symbol) -> Symbol | None:
    """Return the tensor of a loop inside of which `tensor` is the record; None for an ordinary value.

    Raises:
        UnsupportedError: it is a TensorArray, but no record.
    """
    if not isinstance(tensor.spec, ArraySpec):
        return None
    if not isinstance(tensor.operation.op, History):
        raise UnsupportedError("a TensorArray that is recorded")
    return tensor.operation.op.inner


def _forget(context: Context, record: Record) -> None:
    function = context.function
    function.line(f"store i64 0, ptr {record.count}")
    if record.of is not None:
        function.line(f"store i64 0, ptr {record.rows}")
        _forget(context, record.of)


def print_recordings(context: Context, tensors: Sequence[Symbol], value_of: Callable[[Symbol], Value]) -> None:
    """Print the end of an iteration: add values to the records of `tensors`, if there is room."""
    followers: dict[str, list[Symbol]] = {}
    for tensor in tensors:
        followers.setdefault(context.record_of(tensor).count, []).append(tensor)
    for several in followers.values():
        if len(several) > 1:
            _print_together(context, several, value_of)
        else:
            _print_recording(context, several[0], value_of(several[0]))


def _print_together(context: Context, tensors: Sequence[Symbol], value_of: Callable[[Symbol], Value]) -> None:
    """Add to records that have one count, in functions of their own."""
    function, record = context.function, context.record_of(tensors[0])
    index = function.let(f"load i64, ptr {record.count}")
    context.need_unless(function.let(f"icmp slt i64 {index}, {record.capacity}"), record.number)
    for start in range(0, len(tensors), PIECE):
        with context.pieces.piece():
            place = context.pieces.register(index, "i64")
            for tensor in tensors[start : start + PIECE]:
                own = context.record_of(tensor)
                rows = context.pieces.register(own.rows, "ptr")
                _put(context, replace(own, rows=rows), place, value_of(tensor))
    function.line(f"store i64 {function.let(f'add nsw i64 {index}, 1')}, ptr {record.count}")


def _print_recording(context: Context, tensor: Symbol, value: Value) -> None:
    """Print the end of an iteration: add a value to the record of `tensor`, if there is room."""
    function, record = context.function, context.record_of(tensor)
    index = function.let(f"load i64, ptr {record.count}")
    following = function.let(f"add nsw i64 {index}, 1")
    last = index if record.of is None else following
    context.need_unless(function.let(f"icmp slt i64 {last}, {record.capacity}"), record.number)
    if record.of is not None:
        if not isinstance(value, Elements):
            raise UnsupportedError("a record of records of records")
        end = function.let(f"load i64, ptr {record.of.count}")
        function.store("i64", end, function.element("i64", record.rows, following))
    else:
        _put(context, record, index, value)
    function.line(f"store i64 {following}, ptr {record.count}")


def _put(context: Context, record: Record, index: str, value: Value) -> None:
    function = context.function
    target = function.element(record.kind, record.rows, function.offset_of([index], [math.prod(record.shape)]))
    function.put(value, record.kind, record.shape, target, "a record")


def recorded_value(context: Context, tensor: Symbol, start: str) -> Value:
    """Return, after a loop, what it recorded of `tensor`, as a TensorArray in place."""
    function, record = context.function, context.record_of(tensor)
    count = function.let(f"sub i64 {function.let(f'load i64, ptr {record.count}')}, {start}")
    if record.of is not None:
        if tensor in context.kept:
            raise UnsupportedError("a record of records of records")
        return Ragged(record.of.rows, record.of.kind, record.of.shape, record.rows, count)
    offset = function.offset_of([start], [math.prod(record.shape)])
    return Elements(function.element(record.kind, record.rows, offset), record.kind, record.shape, count)
