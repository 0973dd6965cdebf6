"""An analysis of values that variables are assigned on one task and that other tasks read: where they are computed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..graph.spec import TensorSpec
from ..graph.state.variable import Variable
from ..graph.state.variable_ops import Assign, ReadVariable
from ..graph.tensor import Symbol
from ..lower.nodes import Node
from .blueprint import Blueprint

_LARGE = 1 << 16  # bytes of a value that is computed where the other task can read it


def is_large(tensor: Symbol) -> bool:
    """Test whether a tensor is known to be a large array of NumPy's own numbers."""
    spec = tensor.spec
    shape = spec.static_shape if isinstance(spec, TensorSpec) else None
    if shape is None or tensor.dtype.kind not in "biufc":
        return False
    return math.prod(shape) * tensor.dtype.itemsize >= _LARGE


def shared_values(nodes: Sequence[Node], blueprint: Blueprint) -> dict[Symbol, int]:
    """Return large values that are made and assigned here, to variables which the step sends to other tasks as a whole.

    The next step sends such a value: without a copy, if it was computed where the others can read it.

    Args:
        nodes: of the machine.
        blueprint: of the partitions of this task.

    Returns:
        For each value the number of an edge by which its variable is sent.
    """
    here = [node for node in nodes if node.kind == "op" and blueprint.is_here(node)]
    sent = {variable: edge for node in here for variable, edge in _sent_variables(node, blueprint)}
    operations = [operation for node in here for operation in node.operations]
    made = {tensor for operation in operations for tensor in operation.outputs}
    found: dict[Symbol, int] = {}
    for operation in operations:
        op = operation.op
        if isinstance(op, Assign) and op.variable in sent:
            value = operation.inputs[0]
            if value in made and is_large(value):
                found[value] = sent[op.variable]
    return found


def _sent_variables(node: Node, blueprint: Blueprint) -> Iterator[tuple[Variable, int]]:
    for tensor, value in zip(node.given, node.outputs, strict=True):
        op = tensor.operation.op
        if isinstance(op, ReadVariable):
            for send in blueprint.consumers.get(value, ()):
                receive = send.peer if send.kind == "send" and not send.lossy else None
                if receive is not None and not blueprint.is_here(receive):
                    yield op.variable, blueprint.edges[receive]


__all__ = ["is_large", "shared_values"]
