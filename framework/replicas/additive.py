"""`can_be_split`: whether a pass over data may be made in parts by several workers, by what its step does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...engine.graph import Graph, Operation, Symbol, Variable
from ...engine.graph.graph import ReadVariable
from ...engine.graph.state.variable import Assign
from ...engine.ops.math.elementwise import Add
from ...engine.ops.random.keys import noting_keys
from ..data.adapters import Batch
from .traced import placeholders

if TYPE_CHECKING:
    from ..models.model import Model


def can_be_split(model: Model, mode: str, batch: Batch) -> bool:
    """Test whether parts of a pass may be computed apart: a step adds to metrics at most, and draws no numbers.

    A state that is not a sum, such as a maximum, can't be made of those of parts.

    Args:
        model: the model.
        mode: "test" or "predict".
        batch: of the pass, of which nothing but the layout is used.
    """
    with noting_keys() as keys:
        graph = traced(model, mode, batch)
    state = [variable for metric in model.metrics for variable in metric.variables] if mode == "test" else []
    return not keys and _only_adds(graph.operations, state)


def traced(model: Model, mode: str, batch: Batch) -> Graph:
    """Build a step of a pass in a graph of its own, and variables of metrics that the model does not have yet.

    Args:
        model: the model.
        mode: "test" or "predict".
        batch: of the pass, of which nothing but the layout is used.
    """
    with Graph().as_default() as graph:
        model._build_plain_step(mode, batch.layout, placeholders(batch))
    return graph


def _only_adds(operations: Sequence[Operation], state: Sequence[Variable]) -> bool:
    """Test whether all that operations write is added to variables, by numbers that don't depend on these."""
    known = {id(variable) for variable in state}
    held: dict[Symbol, int] = {}  # symbols that are the value of a variable
    dependent: set[Symbol] = set()
    for operation in operations:
        op = operation.op
        if isinstance(op, ReadVariable) and id(op.variable) in known:
            held[operation.outputs[0]] = id(op.variable)
        elif isinstance(op, Assign):
            value = operation.inputs[0]
            if id(op.variable) not in known or not _is_sum(value, id(op.variable), held, dependent):
                return False
            held[value] = held[operation.outputs[0]] = id(op.variable)
        elif operation.writes:
            return False
        elif any(each in held or each in dependent for each in operation.inputs):
            dependent.update(operation.outputs)
    return True


def _is_sum(value: Symbol, variable: int, held: Mapping[Symbol, int], dependent: set[Symbol]) -> bool:
    """Test whether a value is that of a variable and something more."""
    operation = value.operation
    if not isinstance(operation.op, Add):
        return False
    one, other = operation.inputs
    return any(
        held.get(old) == variable and new not in held and new not in dependent
        for old, new in ((one, other), (other, one))
    )


__all__ = ["can_be_split", "traced"]
