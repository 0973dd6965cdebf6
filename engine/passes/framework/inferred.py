"""Notes of operations whose specs are known to be those that their op infers, for the verifier."""

from __future__ import annotations

from ...control_flow.call import Recorded
from ...control_flow.frames import History, Saved
from ...graph.operation import Operation

Inferred = dict[Operation, tuple[object, ...]]
"""The op, the graph and the specs, of inputs and outputs, with which an operation was found right."""


def facts_of(operation: Operation) -> tuple[object, ...]:
    """Return what the specs of an operation follow from, and the specs."""
    specs = [tensor.spec for tensor in operation.inputs] + [tensor.spec for tensor in operation.outputs]
    return (operation.op, operation.graph, *specs)


def note_inferred(inferred: Inferred, operation: Operation, facts: tuple[object, ...] | None = None) -> None:
    """Note that an operation has the specs that its op infers; of some they follow from tensors of regions, too."""
    op = operation.op
    if not op.regions and op.called is None and not isinstance(op, (History, Recorded, Saved)):
        inferred[operation] = facts_of(operation) if facts is None else facts
