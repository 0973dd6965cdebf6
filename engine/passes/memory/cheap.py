"""Values that a loop need not save: its backward loop computes them from saved ones anyway in less time.

Elementwise results of saved values (``tanh(f * c + i * g)`` where all four are saved) cost a few operations a number in
the backward loop's kernel, which reads the operands anyway; saved, they cost a write, a read and their memory. The same
operations run on the same values. That pays where what is saved is too much for the caches.
"""

from __future__ import annotations

from ...graph.graph import Operation, Parameter
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ..framework.estimates import bytes_of, is_static
from ..loops.linear import most_trips
from .saved_state import Choice, SavedState, can_run_again

_LARGE = 1 << 26  # bytes that a result takes for all iterations together
_MOST_AGAIN = 6  # operations for one result


def without_cheap(state: SavedState) -> Choice:
    """Return all that a loop saves but what is cheap to compute from the rest."""
    saved = dict.fromkeys(state.wanted)
    held = {*state.wanted, *state.kept}
    needed: set[Symbol] = set()  # what others are computed from
    again: dict[Operation, None] = {}
    for tensor in sorted(state.wanted, key=lambda tensor: tensor.operation.index, reverse=True):
        if tensor in needed or tensor in state.kept or not _is_large(state, tensor):
            continue
        found = _chain(state, tensor, held - {tensor})
        if found is None:
            continue
        operations, leaves = found
        del saved[tensor]
        held.discard(tensor)
        needed.update(leaves)
        again.update(dict.fromkeys(operations))
    return Choice(tuple(saved), tuple(sorted(again, key=lambda operation: operation.index)))


def _is_large(state: SavedState, tensor: Symbol) -> bool:
    if not is_static(tensor) or tensor.dtype.kind != "f" or bytes_of(tensor.spec) * state.trips < _LARGE:
        return False
    return most_trips(state.node) is not None


def _chain(state: SavedState, tensor: Symbol, held: set[Symbol]) -> tuple[list[Operation], set[Symbol]] | None:
    """Return the few operations that compute a tensor from what is `held`, and what they take of it; or None."""
    operations: list[Operation] = []
    leaves: set[Symbol] = set()
    pending = [tensor]
    while pending:
        operation = pending.pop().operation
        if operation in operations:
            continue
        if operation.graph is not state.body or not _is_cheap(operation, tensor) or len(operations) == _MOST_AGAIN:
            return None
        operations.append(operation)
        for each in operation.inputs:
            if each in held:
                leaves.add(each)
            elif not isinstance(each.operation.op, Constant) and not state.is_captured(each):
                pending.append(each)
    return (operations, leaves) if leaves else None


def _is_cheap(operation: Operation, like: Symbol) -> bool:
    if isinstance(operation.op, Parameter) or not operation.op.elementwise or operation.control_inputs:
        return False
    return can_run_again(operation) and all(tensor.spec == like.spec for tensor in operation.outputs)
