"""The writes of a step: the variables, and the operation from which on it has written some and not yet all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..graph.graph import Operation
from ..graph.state.variable import Variable
from ..graph.state.variable_ops import Assign
from ..graph.tensor import Symbol
from ..passes.memory.storage import Buffer


def touched_variables(operations: Iterable[Operation]) -> list[Variable]:
    """Return the variables that operations read or write, those inside loops and branches included."""
    resources = dict.fromkeys(effect.resource for operation in operations for effect in operation.effects)
    return [resource for resource in resources if isinstance(resource, Variable)]


def written_variables(operations: Iterable[Operation]) -> set[Variable]:
    """Return the variables that operations write, those inside loops and branches included."""
    effects = [effect for operation in operations for effect in operation.effects]
    return {effect.resource for effect in effects if effect.writes and isinstance(effect.resource, Variable)}


def assigned_values(operations: Iterable[Operation]) -> set[Symbol]:
    """Return the values that variables are assigned, those inside loops and branches not included."""
    return {operation.inputs[0] for operation in operations if isinstance(operation.op, Assign)}


def first_write(operations: Sequence[Operation], plan: Mapping[Symbol, Buffer]) -> Operation | None:
    """Return the first operation that writes a variable, if an interrupt behind it could leave some updates undone.

    That can't be where one variable is assigned once: this is a single instruction of Python, or a single kernel.

    Args:
        operations: of a step, as they run.
        plan: the results that are written straight into variables.
    """
    writers = [operation for operation in operations if written_variables([operation])]
    if all(isinstance(operation.op, Assign) for operation in writers) and len(writers) < 2:
        return None
    written = set(writers)
    return next(o for o in operations if o in written or any(_is_in_place(plan.get(t)) for t in o.outputs))


def _is_in_place(buffer: Buffer | None) -> bool:
    return buffer is not None and buffer.variable is not None
