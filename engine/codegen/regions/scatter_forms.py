"""Native forms of what puts values at a known key: the gradients of slices and elements that do not fill a whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...common.nest import is_integer
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.arrays.indexing import AddItem, PutItem, SliceItem
from ...ops.math.elementwise import Add
from ..expression.expression import UnsupportedError
from .elementwise import print_elementwise, print_strided_copy
from .function import Array, Form, FormContext, Function, Scalar, Value, reshaped, shape_of, strides_of
from .scalars import type_of


class _Part(NamedTuple):
    """The elements of an array at a key: the first, the distances along the axes, and their shape."""

    offset: int
    strides: list[int]
    shape: tuple[int, ...]

    def of(self, function: Function, whole: Array) -> Array:
        """Return the array of this part; its elements are `strides` apart."""
        pointer = function.element(whole.kind, whole.pointer, str(self.offset))
        return Array(pointer, whole.kind, self.shape, whole.buffers)


def _part(items: Sequence[Any], shape: Sequence[int]) -> _Part:
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    offset, strides, dims, axis = 0, list[int](), list[int](), 0
    for item in items:
        if item is None:
            strides.append(0)
            dims.append(1)
            continue
        offset += _first(item, shape[axis]) * steps[axis]
        if isinstance(item, SliceItem):
            taken = _taken(item, shape[axis])
            strides.append(taken.step * steps[axis])
            dims.append(len(taken))
        axis += 1
    return _Part(offset, [*strides, *steps[axis:]], (*dims, *shape[axis:]))


def _taken(item: SliceItem, dim: int) -> range:
    """Return the positions that a slice takes."""
    bounds: list[int | None] = []
    for bound in (item.start, item.stop, item.step):
        if bound is not None and not isinstance(bound, int):
            raise UnsupportedError("a slice with computed bounds")
        bounds.append(bound)
    return range(dim)[slice(*bounds)]


def _first(item: Any, dim: int) -> int:
    """Return the first position that a slice or a number takes."""
    if isinstance(item, SliceItem):
        taken = _taken(item, dim)
        return taken.start if taken else 0
    if not is_integer(item):
        raise UnsupportedError("a computed key")
    return range(dim)[int(item)]


def _put(function: Function, value: Scalar | Array, whole: Array, part: _Part) -> None:
    """Write a value into a part of an array."""
    given = value.shape if isinstance(value, Array) else ()
    if math.prod(given) != math.prod(part.shape):
        raise UnsupportedError("a value that is repeated")
    if 0 not in part.shape:
        own = strides_of(part.shape, part.shape)
        print_strided_copy(function, value, part.of(function, whole), own, into=part.strides)


def _operands(operation: Operation, inputs: Sequence[Value]) -> list[Scalar | Array]:
    op: Any = operation.op
    plain = [value for value in inputs if isinstance(value, (Scalar, Array))]
    if op.repeats or len(plain) < len(inputs):
        raise UnsupportedError("repeated positions")
    return plain


def _put_item(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function = op_of(operation, PutItem), context.function
    value, *_ = _operands(operation, inputs[:1])
    shape = shape_of(operation.outputs[0])
    if not shape or len(operation.inputs) > 2:
        raise UnsupportedError("a computed key")
    part = _part(op.items, shape)
    target = function.allocate_zeros(type_of(operation.outputs[0].dtype), shape)
    _put(function, value, target, part)
    return [target]


def _add_item(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function = op_of(operation, AddItem), context.function
    base, value, *picks = _operands(operation, inputs)
    if picks or not isinstance(base, Array):
        raise UnsupportedError("a computed key")
    part = _part(op.items, base.shape)
    target = function.copy_of(base)
    if 0 in part.shape:
        return [target]
    before = _taken_part(function, base, part)
    function.hold(before)
    if isinstance(value, Array) and value.size == math.prod(part.shape):  # else it is broadcast
        given = reshaped(function, value, part.shape)
        assert isinstance(given, (Scalar, Array))
        value = given
    (total,) = print_elementwise(function, [(Add(), (0, 1))], [2], [before, value], [part.shape], [base.kind], [None])
    function.hold(total)
    assert isinstance(total, (Scalar, Array))
    _put(function, total, target, part)
    function.release(total)
    function.release(before)
    return [target]


def _taken_part(function: Function, base: Array, part: _Part) -> Scalar | Array:
    source = part.of(function, base)
    if not part.shape:
        return Scalar(function.load(base.kind, source.pointer), base.kind)
    taken = function.allocate(base.kind, part.shape)
    print_strided_copy(function, source, taken, part.strides)
    return taken


FORMS: dict[type[Any], Form] = {AddItem: _add_item, PutItem: _put_item}
