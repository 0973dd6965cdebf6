"""Native forms of operations that pick by position: rows, one-hot vectors."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.arrays.front_positions import FrontPositions
from ...ops.arrays.gathering import Take
from ...ops.arrays.joining import Unstack
from ...ops.arrays.positions import OneHot
from ...ops.internal.checked_classes import CheckedClasses
from ...ops.internal.fused import HorizontallyFused
from ..expression.expression import UnsupportedError
from .arrays import as_integers, from_front, integer_at
from .elementwise import print_strided_copy
from .function import Array, Form, FormContext, Scalar, Value, reshaped, shape_of, strides_of
from .fused import Step, print_fused
from .scalars import literal, size_of, type_of


def print_position(context: FormContext, position: str, size: int | str, wrap: bool = True) -> str:
    """Print a position that may count from the end, if allowed; the region fails where it is out of bounds."""
    function = context.function
    if wrap:
        position = from_front(function, position, size)
    context.fail_unless(function.let(f"icmp ult i64 {position}, {size}"))
    return position


def _take(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Return rows of a table, or parts along another axis."""
    op, function = op_of(operation, Take), context.function
    source, positions = inputs[0], as_integers(inputs[1])
    if not isinstance(source, Array) or not source.size:
        raise UnsupportedError("parts of nothing")
    shape = shape_of(operation.outputs[0])
    target = function.allocate(source.kind, shape)
    with each_part(context, positions, source.shape, op.axis, op.wrap) as (part, place, width):
        into, taken = (function.element(source.kind, *at) for at in ((target.pointer, part), (source.pointer, place)))
        function.copy_bytes(into, taken, width * size_of(source.kind))
    return [reshaped(function, target, shape)]


@contextmanager
def each_part(
    context: FormContext, positions: Scalar | Array, shape: Sequence[int], axis: int, wrap: bool
) -> Generator[tuple[str, str, int]]:
    """Print a block for each part of an array at positions along an axis.

    Gives the offsets of the part among all that are named, and in the array of the shape, and its size.
    """
    function, axis = context.function, axis % len(shape)
    count = positions.size if isinstance(positions, Array) else 1
    size, width = shape[axis], math.prod(shape[axis + 1 :])
    with function.count(math.prod(shape[:axis])) as outer, function.count(count) as k:
        position = print_position(context, integer_at(function, positions, k), size, wrap)
        part = function.offset_of([outer, k], [count * width, width])
        yield part, function.offset_of([outer, position], [size * width, width]), width


def _front_positions(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    positions, size = as_integers(inputs[0]), as_integers(inputs[1])
    function = context.function
    limit = integer_at(function, size, "0")
    if isinstance(positions, Scalar):
        return [Scalar(print_position(context, integer_at(function, positions, "0"), limit), "i64")]
    target = function.allocate("i64", positions.shape)
    with function.count(positions.size) as k:
        place = print_position(context, integer_at(function, positions, k), limit)
        function.store("i64", place, function.element("i64", target.pointer, k))
    return [target]


def _unstack(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op: Any = operation.op
    (source,) = inputs
    if not isinstance(source, Array) or source.shape[op.axis] != op.count:
        raise UnsupportedError("parts of another number")
    function, strides = context.function, strides_of(source.shape, source.shape)
    axis = op.axis % len(source.shape)
    own = [stride for position, stride in enumerate(strides) if position != axis]
    step = math.prod(source.shape[axis + 1 :])
    parts: list[Value] = []
    for number, output in enumerate(operation.outputs):
        shape = shape_of(output)
        if not shape:
            place = function.element(source.kind, source.pointer, str(number * step))
            parts.append(Scalar(function.load(source.kind, place), source.kind))
            continue
        target = function.allocate(source.kind, shape)
        if target.size:
            print_strided_copy(function, source, target, own, number * step)
        parts.append(target)
    return parts


def _checked_classes(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print class numbers as int32; the region fails where one is out of range."""
    op: Any = operation.op
    positions, function = as_integers(inputs[0]), context.function
    target = function.allocate("i32", shape_of(operation.outputs[0]))
    with function.count(target.size) as k:
        position = print_position(context, integer_at(function, positions, k), op.classes, wrap=False)
        function.store("i32", function.let(f"trunc i64 {position} to i32"), target.pointer, k)
    return [Scalar(function.load("i32", target.pointer), "i32") if isinstance(positions, Scalar) else target]


def _one_hot(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op: Any = operation.op
    positions = as_integers(inputs[0])
    shape, kind = shape_of(operation.outputs[0]), type_of(operation.outputs[0].dtype)
    if op.axis % len(shape) != len(shape) - 1:
        raise UnsupportedError("one-hot vectors along another axis")
    function = context.function
    target = function.allocate_zeros(kind, shape)
    with function.count(positions.size if isinstance(positions, Array) else 1) as k:
        position = integer_at(function, positions, k)
        hot, done = function.fresh("hot"), function.fresh("cold")
        function.branch(function.let(f"icmp ult i64 {position}, {op.classes}"), hot, done)
        function.begin(hot)
        offset = function.let(f"add nsw i64 {function.offset_of([k], [op.classes])}, {position}")
        function.store(kind, literal(1, kind), function.element(kind, target.pointer, offset))
        function.jump(done)
        function.begin(done)
    return [target]


def _horizontally_fused(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print each member by itself."""
    op: Any = operation.op
    made: list[Value] = []
    tensors, values = op.members(operation.inputs), op.members(inputs)
    for member, (taken, given) in enumerate(zip(tensors, values, strict=True)):
        each = len(op.op.results)
        outputs = operation.outputs[member * each : (member + 1) * each]
        stand_in: Any = _Member(op.op, tuple(taken), outputs)
        made += print_fused(context, stand_in, given)
    return made


class _Member(Step):
    """A member of operations that are fused together."""

    def __init__(self, op: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
        super().__init__(op, outputs)
        object.__setattr__(self, "inputs", inputs)


FORMS: dict[type, Form] = {
    CheckedClasses: _checked_classes,
    FrontPositions: _front_positions,
    HorizontallyFused: _horizontally_fused,
    OneHot: _one_hot,
    Take: _take,
    Unstack: _unstack,
}
