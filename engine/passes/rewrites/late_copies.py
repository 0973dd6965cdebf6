"""Copy transposed arrays behind the loops that do not need the copies.

A kernel, or a product over all rows, takes a transposed array through a copy. One that is made before a loop is there
beside all that the loop keeps, which in training is the largest part of the memory; one that is made behind a backward
loop finds the memory of what that has used up. So it is made there if the array itself is needed that long anyway. It
is an analysis, not a pattern: what counts is how long each array is needed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from ...control_flow.while_loop import While
from ...graph.graph import Operation, Placeholder
from ...graph.op import Op
from ...graph.state.variable_ops import ReadVariable
from ...graph.tensor import Symbol
from ...ops.arrays.axes import Transpose
from ...ops.base import Constant
from ...ops.internal.fused import Fused
from ...ops.linear_algebra.products import FlattenRows
from ..framework.log import note_change
from ..framework.order import reorder
from ..framework.prune import Kept

_LEAST = 1 << 18  # elements of an array whose copy is worth moving
_KEPT_ANYWAY = (Placeholder, Constant, ReadVariable)  # ops whose results others keep


def copy_late(operations: Sequence[Operation], kept: Kept) -> bool:
    """Move such copies behind loops, and return whether any was moved.

    Args:
        operations: those of a step that are needed, in order; the bodies of its loops are left alone.
        kept: tensors whose values are wanted from outside.
    """
    copies = [(operation, copied) for operation in operations if (copied := _copied(operation)) is not None]
    if not copies:
        return False
    lives = _Lives(operations, kept.own)
    loops = [operation for operation in operations if isinstance(operation.op, While)]
    is_changed = False
    for operation, copied in reversed(copies):
        first = lives.first_use(operation)
        until = min(lives.needed_until(tensor, operation) for tensor in operation.inputs)
        passed = [loop for loop in loops if operation.index < loop.index < first and loop.index <= until]
        if passed:
            operation.index = int(first) if first <= until and first < math.inf else passed[-1].index + 1
            note_change("late_copies", operation, f"copies {copied.name!r} behind {passed[-1].name!r}, not before it")
            is_changed = True
    if is_changed:
        reorder(kept.graph, {})
    return is_changed


class _Lives:
    """For how long the arrays of a step are needed, by the places of operations."""

    def __init__(self, operations: Sequence[Operation], kept: Collection[Symbol]) -> None:
        self._kept = {_source(tensor) for tensor in kept}
        self._users: dict[Symbol, list[Operation]] = {}  # not those that only view an array
        self._waiting: dict[Operation, list[Operation]] = {}
        self._writes: dict[object, list[int]] = {}
        for operation in operations:
            for tensor in operation.inputs:
                if not _is_view(operation):
                    self._users.setdefault(_source(tensor), []).append(operation)
            for control in operation.control_inputs:
                self._waiting.setdefault(control, []).append(operation)
            for resource, writes in operation.effects:
                if writes:
                    self._writes.setdefault(resource, []).append(operation.index)

    def first_use(self, operation: Operation) -> float:
        """Return the place of the first operation that takes a result, or waits for it; infinity if none does."""
        users = [user for tensor in operation.outputs for user in self._users.get(tensor, ())]
        return min([user.index for user in (*users, *self._waiting.get(operation, ()))], default=math.inf)

    def needed_until(self, tensor: Symbol, user: Operation) -> float:
        """Return the last place where an array is there, whether or not `user` takes it: infinity for the end."""
        source = _source(tensor)
        if isinstance(source.operation.op, _KEPT_ANYWAY):
            read = {effect.resource for effect in source.operation.effects}
            later = [place for each in read for place in self._writes.get(each, ()) if place > source.operation.index]
            return min(later, default=math.inf) - 1
        others = [other.index for other in self._users.get(source, ()) if other is not user]
        return math.inf if source in self._kept else max(others, default=-1)


def _copied(operation: Operation) -> Symbol | None:
    """Return a large transposed array of which an operation makes a copy, if it does nothing else but compute."""
    if not isinstance(operation.op, (FlattenRows, Fused)) or operation.control_inputs or operation.effects:
        return None
    return next((tensor for tensor in operation.inputs if _is_transposed(tensor)), None)


def _is_transposed(tensor: Symbol) -> bool:
    shape = tensor.shape
    if shape is None or math.prod(_LEAST if dim is None else dim for dim in shape) < _LEAST:
        return False
    return any(_moves_axes(operation.op, operation.inputs[0].shape) for operation in _views(tensor))


def _moves_axes(op: Op, shape: tuple[int | None, ...] | None) -> bool:
    """Test whether an op puts axes of more than one element into another order, or may do so."""
    if not isinstance(op, Transpose):
        return False
    if shape is None:
        return op.axes is None or list(op.axes) != sorted(op.axes)
    moved = [axis for axis in op.order(len(shape)) if shape[axis] != 1]
    return moved != sorted(moved)


def _views(tensor: Symbol) -> Iterator[Operation]:
    """Yield the operations through which an array is seen, from a tensor on to where it is computed."""
    while _is_view(tensor.operation):
        yield tensor.operation
        tensor = tensor.operation.inputs[0]


def _source(tensor: Symbol) -> Symbol:
    """Return the array of which a tensor is a view."""
    for operation in _views(tensor):
        tensor = operation.inputs[0]
    return tensor


def _is_view(operation: Operation) -> bool:
    """Test whether the result is in the memory of the first input; that of `FlattenRows` is not if axes were moved."""
    if not operation.op.view or not operation.inputs:
        return False
    return not isinstance(operation.op, FlattenRows) or not _is_transposed(operation.inputs[0])
