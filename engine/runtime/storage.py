"""Which buffer a fused operation writes into: a new one, an operand that dies there, or the variable it updates.

Decided when a program is printed, from what is used where; nothing is checked at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..control_flow.region_op import RegionOp
from ..graph.graph import Operation, ReadVariable
from ..graph.spec import TensorSpec
from ..graph.tensor import Tensor
from ..graph.variable import Assign, Variable
from ..ops.fused import Fused


def assigned_in_place(operations: Sequence[Operation], fetches: Iterable[Tensor]) -> dict[Tensor, Variable]:
    """Results of fused operations that may be written straight into the variable to which they are assigned.

    That needs: the step writes the variable once, outside of loops and branches; and no earlier value of it (nor
    anything that may share its memory) is used after the fused operation or fetched.
    """
    order = {operation: position for position, operation in enumerate(operations)}
    fetched = set(fetches)
    found: dict[Tensor, Variable] = {}
    for operation in operations:
        if not isinstance(operation.op, Assign):
            continue
        value, variable = operation.inputs[0], operation.op.variable
        producer = value.operation
        if value in found or not isinstance(producer.op, Fused) or producer not in order:
            continue
        if value.spec != variable.spec or not _is_written_once(operations, variable):
            continue
        if _earlier_value_is_done_with(operations, order, producer, operation, variable, fetched):
            found[value] = variable
    return found


def _is_written_once(operations: Sequence[Operation], variable: Variable) -> bool:
    writers = [o for o in operations if any(e.resource is variable and e.writes for e in o.effects)]
    in_regions = any(e.resource is variable for o in operations if isinstance(o.op, RegionOp) for e in o.effects)
    return len(writers) == 1 and not in_regions


def _earlier_value_is_done_with(
    operations: Sequence[Operation],
    order: dict[Operation, int],
    producer: Operation,
    assignment: Operation,
    variable: Variable,
    fetched: set[Tensor],
) -> bool:
    reads: set[Tensor] = set()
    aliases: set[Tensor] = set()
    for operation in operations:
        if isinstance(operation.op, ReadVariable) and operation.op.variable is variable:
            if order[producer] < order[operation] < order[assignment]:
                return False
            if order[operation] < order[producer]:
                reads.update(operation.outputs)
                aliases.update(operation.outputs)
        elif (operation.op.view or isinstance(operation.op, RegionOp)) and aliases.intersection(operation.inputs):
            aliases.update(operation.outputs)
    if aliases & fetched or not aliases.intersection(producer.inputs) <= reads:
        return False
    later = operations[order[producer] + 1 :]
    return not any(aliases.intersection(operation.inputs) for operation in later)


def reused_operands(operation: Operation, dying: Iterable[Tensor], reusable: set[Tensor]) -> dict[Tensor, Tensor]:
    """For results of a fused operation, operands of the same spec that nothing else needs: they are overwritten.

    Only the result that overwrites an operand may depend on it: a kernel may read it for another result afterwards.
    """
    free = [tensor for tensor in dying if tensor in reusable and tensor in operation.inputs]
    sources = _sources_of_results(operation)
    found: dict[Tensor, Tensor] = {}
    for result in operation.outputs:
        others = {tensor for other in operation.outputs if other is not result for tensor in sources[other]}
        match = next((tensor for tensor in free if tensor.spec == result.spec and tensor not in others), None)
        if match is not None:
            found[result] = match
            free.remove(match)
    return found


def _sources_of_results(operation: Operation) -> dict[Tensor, set[Tensor]]:
    """For each result of a fused operation, the operands on which it depends."""
    op = operation.op
    assert isinstance(op, Fused)
    values = [{tensor} for tensor in operation.inputs]
    for _, arguments in op.steps:
        values.append({source for k in arguments for source in values[k]})
    return {result: values[k] for result, k in zip(operation.outputs, op.results, strict=True)}


def reusable_tensors(operations: Sequence[Operation], fresh: Iterable[Tensor]) -> set[Tensor]:
    """Those of `fresh` (values nothing else refers to) that no operation passes on as a view, nor into a region."""
    passed_on = {
        tensor
        for operation in operations
        if operation.op.view or isinstance(operation.op, RegionOp)
        for tensor in operation.inputs
    }
    return {t for t in fresh if t not in passed_on and isinstance(t.spec, TensorSpec) and t.spec.is_static and t.shape}
