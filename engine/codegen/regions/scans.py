"""Native forms of operations that go along an axis element by element: positions of extrema, and scans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...common.dtypes import accumulator_of
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.math.reduction import ArgExtremum, ArgMax, ArgMin
from ...ops.math.running import CumProd, CumSum, LinearScan, Shift
from ..expression.expression import UnsupportedError
from .function import Array, Form, FormContext, Function, Scalar, Value, shape_of
from .scalars import FLOATS, literal


def _position(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print the position of the first extremum, or of the first NaN."""
    op, function, (x,) = op_of(operation, ArgExtremum), context.function, inputs
    shape = shape_of(operation.outputs[0])
    if isinstance(x, Scalar):
        return [Scalar("0", "i32")]
    if not isinstance(x, Array) or x.kind == "i1" or not x.size:
        raise UnsupportedError("a position of another kind")
    outer, count, inner = split_at(x.shape, None if op.axes is None else op.axes[0])
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
    """Print whether a later element takes the place of the best one so far: NaN is better than any number."""
    if kind not in FLOATS:
        return function.let(f"icmp {'slt' if is_least else 'sgt'} {kind} {value}, {best}")
    # Unordered: also where one of both is NaN. The best stays if it is; otherwise the value is.
    beats = function.let(f"fcmp {'ult' if is_least else 'ugt'} {kind} {value}, {best}")
    is_number = function.let(f"fcmp ord {kind} {best}, {best}")
    return function.let(f"and i1 {beats}, {is_number}")


def _running(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function, (x,) = op_of(operation, (CumProd, CumSum)), context.function, inputs
    if not isinstance(x, Array) or x.kind == "i1" or accumulator_of(operation.outputs[0].dtype) is not None:
        raise UnsupportedError("a running sum or product of another kind")
    is_sum, kind = isinstance(op, CumSum), x.kind
    name = ("add" if is_sum else "mul") if kind not in FLOATS else "fadd" if is_sum else "fmul"

    def step(before: str, offset: str) -> str:
        return function.let(f"{name} {kind} {before}, {function.load(kind, x.pointer, offset)}")

    return [_scanned(function, x, op, 0 if is_sum else 1, step, op.exclusive)]


def _shift(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function, (x,) = op_of(operation, Shift), context.function, inputs
    if not isinstance(x, Array):
        raise UnsupportedError("no array")
    return [_scanned(function, x, op, 0, lambda _, offset: function.load(x.kind, x.pointer, offset), gives_before=True)]


def _linear_scan(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function, (factors, terms) = op_of(operation, LinearScan), context.function, inputs
    if not isinstance(factors, Array) or not isinstance(terms, Array) or factors.shape != terms.shape:
        raise UnsupportedError("factors of another shape")
    kind = terms.kind
    if kind not in FLOATS:
        raise UnsupportedError("a recurrence of another kind")

    def step(before: str, offset: str) -> str:
        product = function.let(f"fmul {kind} {function.load(kind, factors.pointer, offset)}, {before}")
        return function.let(f"fadd {kind} {product}, {function.load(kind, terms.pointer, offset)}")

    return [_scanned(function, terms, op, 0, step)]


def _scanned(
    function: Function,
    x: Array,
    op: CumProd | CumSum | LinearScan | Shift,
    initial: int,
    step: Callable[[str, str], str],
    gives_before: bool = False,
) -> Array:
    """Print a scan along the axis of an op, backward for `reverse`.

    Args:
        function: the function that is printed.
        x: an array of the result's shape.
        op: the operation.
        initial: what the first element is made of.
        step: prints an element made of the one before, at an offset.
        gives_before: whether the result has at each place what is made of all before it.
    """
    outer, count, inner = split_at(x.shape, op.axis)
    target = function.allocate(x.kind, x.shape)
    if not x.size:
        return target
    latest = function.slot(x.kind)
    with function.count(outer) as row, function.count(inner) as column:
        start = function.offset_of([row, column], [count * inner, 1])
        function.store(x.kind, literal(initial, x.kind), latest)
        with function.loop(0, count) as number:
            place = function.let(f"sub i64 {count - 1}, {number}") if op.reverse else number
            offset = function.let(f"add nsw i64 {start}, {function.offset_of([place], [inner])}")
            before = function.load(x.kind, latest)
            after = step(before, offset)
            function.store(x.kind, after, latest)
            function.store(x.kind, before if gives_before else after, function.element(x.kind, target.pointer, offset))
    return target


def split_at(shape: tuple[int, ...], axis: int | None) -> tuple[int, int, int]:
    """Return how many elements are before an axis, along it and behind it; None: all are along it."""
    if axis is None:
        return 1, math.prod(shape), 1
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


FORMS: dict[type[Any], Form] = {
    ArgMax: _position,
    ArgMin: _position,
    CumProd: _running,
    CumSum: _running,
    LinearScan: _linear_scan,
    Shift: _shift,
}
