"""Native forms of operations that go along an axis element by element: positions of extrema, and running sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...graph.graph import Operation
from ...ops.math.reduced import accumulator_of
from ...ops.math.reduction import ArgExtremum, ArgMax, ArgMin
from ...ops.math.running import CumSum
from ..expression.expression import UnsupportedError
from .function import Array, Function, Scalar, Value
from .scalars import FLOATS, literal

if TYPE_CHECKING:
    from .forms import Context, Form


def _position(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print the position of the first extremum, or of the first NaN."""
    op, function, (x,) = operation.op, context.function, inputs
    assert isinstance(op, ArgExtremum)
    shape = context.shape_of(operation.outputs[0])
    if isinstance(x, Scalar):
        return [Scalar("0", "i32")]
    if not isinstance(x, Array) or x.kind == "i1" or not x.size:
        raise UnsupportedError("a position of another kind")
    outer, count, inner = _along(x.shape, None if op.axes is None else op.axes[0])
    target = function.allocate("i32", shape)
    best, place = function.slot(x.kind), function.slot("i64")
    is_least = isinstance(op, ArgMin)
    with function.count(outer) as row, function.count(inner) as column:
        first = function.element(x.kind, x.pointer, function.offset_of([row, column], [count * inner, 1]))
        function.store(x.kind, function.load(x.kind, first), best)
        function.store("i64", 0, place)
        with function.loop(1, count) as number:
            value = function.load(x.kind, function.element(x.kind, first, function.offset_of([number], [inner])))
            before, place_before = function.load(x.kind, best), function.load("i64", place)
            is_better = print_is_better(function, x.kind, value, before, is_least)
            function.store(x.kind, function.choose(is_better, value, before, x.kind), best)
            function.store("i64", function.choose(is_better, number, place_before), place)
        found = function.let(f"trunc i64 {function.load('i64', place)} to i32")
        function.store(
            "i32", found, function.element("i32", target.pointer, function.offset_of([row, column], [inner, 1]))
        )
    return [target if shape else Scalar(function.load("i32", target.pointer), "i32")]


def print_is_better(function: Function, kind: str, value: str, best: str, is_least: bool = False) -> str:
    """Return whether a later element takes the place of the best one so far: NaN is better than any number."""
    if kind not in FLOATS:
        return function.let(f"icmp {'slt' if is_least else 'sgt'} {kind} {value}, {best}")
    # Unordered: also where one of both is NaN. The best stays if it is; otherwise the value is.
    beats = function.let(f"fcmp {'ult' if is_least else 'ugt'} {kind} {value}, {best}")
    is_number = function.let(f"fcmp ord {kind} {best}, {best}")
    return function.let(f"and i1 {beats}, {is_number}")


def _running_sum(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function, (x,) = operation.op, context.function, inputs
    assert isinstance(op, CumSum)
    output = operation.outputs[0]
    if not isinstance(x, Array) or x.kind == "i1" or accumulator_of(output.dtype) is not None:
        raise UnsupportedError("a running sum of another kind")
    outer, count, inner = _along(x.shape, op.axis)
    target = function.allocate(x.kind, x.shape)
    if not x.size:
        return [target]
    total = function.slot(x.kind)
    add = "fadd" if x.kind in FLOATS else "add"
    with function.count(outer) as row, function.count(inner) as column:
        start = function.offset_of([row, column], [count * inner, 1])
        function.store(x.kind, literal(0, x.kind), total)
        with function.loop(0, count) as number:
            place = function.let(f"sub i64 {count - 1}, {number}") if op.reverse else number
            offset = function.let(f"add nsw i64 {start}, {function.offset_of([place], [inner])}")
            before = function.load(x.kind, total)
            value = function.load(x.kind, function.element(x.kind, x.pointer, offset))
            after = function.let(f"{add} {x.kind} {before}, {value}")
            function.store(x.kind, after, total)
            function.store(x.kind, before if op.exclusive else after, function.element(x.kind, target.pointer, offset))
    return [target]


def _along(shape: tuple[int, ...], axis: int | None) -> tuple[int, int, int]:
    """Return how many elements are before an axis, along it and behind it; None: all are along it."""
    if axis is None:
        return 1, math.prod(shape), 1
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


FORMS: dict[type[Any], Form] = {ArgMax: _position, ArgMin: _position, CumSum: _running_sum}

__all__ = ["FORMS", "print_is_better"]
