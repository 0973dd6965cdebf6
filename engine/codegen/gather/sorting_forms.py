"""Native forms of operations that put the elements of short rows in order, or find places in an order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.arrays.sorting import ArgSort, SearchSorted, Sort
from ..expression.expression import UnsupportedError
from ..llvm.builder import LOOP, Builder
from ..regions.arrays import as_array
from ..regions.function import Array, Form, FormContext, Function, Scalar, Value, shape_of
from ..regions.scalars import FLOATS
from ..regions.scans import split_at

MOST_IN_ROW = 128  # elements that are sorted: each is compared with all others
_MOST_SORTED = 512  # elements of all rows
_MOST_PLACES = 1024  # that are found in a vector


def _sort(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print the elements of each row, or their positions, in order: each goes to the place that its rank gives."""
    op, function, x = op_of(operation, (ArgSort, Sort)), context.function, as_array(inputs[0])
    outer, count, inner = split_at(x.shape, op.axis)
    if x.kind == "i1" or count > MOST_IN_ROW or x.size > _MOST_SORTED:
        raise UnsupportedError("many elements, or of another kind")
    target = function.allocate("i32" if isinstance(op, ArgSort) else x.kind, x.shape)
    row = function.allocate(x.kind, (count,))
    function.hold(row)
    with function.count(outer) as number, function.count(inner) as column:
        start = function.offset_of([number, column], [count * inner, 1])
        with function.count(count) as k:
            place = function.add(start, function.mul(k, inner))
            function.store(x.kind, function.load(x.kind, x.pointer, place), row.pointer, k)
        with function.count(count) as k:
            rank = print_rank(function, row, k)
            value = function.load(x.kind, row.pointer, k)
            value = function.let(f"trunc i64 {k} to i32") if isinstance(op, ArgSort) else value
            function.store(target.kind, value, target.pointer, function.add(start, function.mul(rank, inner)))
    function.release(row)
    return [target]


def print_rank(function: Function, row: Array, k: str, is_signed: bool = True) -> str:
    """Print how many elements of a row come before its element `k`: smaller ones, and equal ones before it."""
    value, found = function.load(row.kind, row.pointer, k), function.slot("i64", "0")

    def add(is_before: str) -> None:
        function.combine("i64", found, function.let(f"zext i1 {is_before} to i64"), "add")

    with function.loop(0, k, metadata=LOOP) as j:
        is_behind = is_less(function, row.kind, value, function.load(row.kind, row.pointer, j), is_signed)
        add(function.let(f"xor i1 {is_behind}, true"))
    with function.loop(function.add(k, 1), row.size, metadata=LOOP) as j:
        add(is_less(function, row.kind, function.load(row.kind, row.pointer, j), value, is_signed))
    return function.load("i64", found)


def is_less(function: Builder, kind: str, left: str, right: str, is_signed: bool = True) -> str:
    """Return whether an element comes before another one: NaNs come last."""
    if kind not in FLOATS:
        return function.let(f"icmp {'s' if is_signed else 'u'}lt {kind} {left}, {right}")
    # Unordered: also where one of both is NaN. Then the left one comes first if it is a number.
    is_less = function.let(f"fcmp ult {kind} {left}, {right}")
    return function.let(f"and i1 {is_less}, {function.let(f'fcmp ord {kind} {left}, {left}')}")


def _search(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print the halving of the part of a sorted vector in which the place of each value is."""
    op, function, edges, values = op_of(operation, SearchSorted), context.function, as_array(inputs[0]), inputs[1]
    if not isinstance(values, (Array, Scalar)) or edges.kind == "i1" or values.kind != edges.kind:
        raise UnsupportedError("values of another kind")
    shape = shape_of(operation.outputs[0])
    target = function.allocate("i32", shape)
    if target.size > _MOST_PLACES:
        raise UnsupportedError("many values")
    low, high = function.slot(), function.slot()
    with function.count(target.size) as k:
        value = function.load(values.kind, values.pointer, k) if isinstance(values, Array) else values.name
        function.store("i64", 0, low)
        function.store("i64", edges.size, high)
        with function.count(edges.size.bit_length()):
            first, end = function.load("i64", low), function.load("i64", high)
            middle = function.let(f"lshr i64 {function.add(first, end)}, 1")
            edge = function.load(edges.kind, edges.pointer, function.least(middle, edges.size - 1))
            if op.side == "left":
                is_behind = is_less(function, edges.kind, edge, value)
            else:
                is_behind = function.let(f"xor i1 {is_less(function, edges.kind, value, edge)}, true")
            is_open = function.compare("slt", first, end)
            moves = function.let(f"and i1 {is_open}, {is_behind}")
            function.store("i64", function.choose(moves, function.add(middle, 1), first), low)
            function.store("i64", function.choose(is_behind, end, function.least(middle, end)), high)
        function.store("i32", function.let(f"trunc i64 {function.load('i64', low)} to i32"), target.pointer, k)
    return [target if shape else Scalar(function.load("i32", target.pointer), "i32")]


FORMS: dict[type[Any], Form] = {ArgSort: _sort, SearchSorted: _search, Sort: _sort}
