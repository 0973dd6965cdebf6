"""Which buffer a fused operation writes into: a new one, an operand that dies there, or the variable it updates.

Decided when a program is printed, from what is used where; nothing is checked at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..control_flow.frames import History, Saved
from ..control_flow.region_op import RegionOp
from ..graph.graph import Operation, Parameter, Placeholder, ReadVariable
from ..graph.spec import FrameSpec, TensorSpec
from ..graph.tensor import Tensor
from ..graph.variable import Assign, Variable
from ..ops.base import Constant
from ..ops.fused import Fused
from ..passes.prune import frame_users, needed_in_region


@dataclass(frozen=True)
class Buffer:
    """Where a result is written: into the memory of `operand`, of `variable`, or of both, which then are one."""

    operand: Tensor | None = None
    variable: Variable | None = None


def plan_buffers(operations: Sequence[Operation], fetches: Iterable[Tensor]) -> dict[Tensor, Buffer]:
    """The results of fused operations that need no new buffer."""
    plan: dict[Tensor, Buffer] = {}
    kept = list(fetches)
    for block, outliving in blocks(operations, kept):
        dying = last_uses(block, outliving)
        owned = {tensor for operation in block for tensor in operation.outputs}
        reusable = _reusable_tensors(block, [tensor for tensor in owned if is_fresh(tensor)])
        for operation in block:
            if isinstance(operation.op, Fused):
                reused = _reused_operands(operation, dying.get(operation, ()), reusable)
                plan.update((result, Buffer(operand)) for result, operand in reused.items())
    for result, buffer in _assigned_in_place(operations, kept).items():
        plan[result] = buffer
    return plan


def _assigned_in_place(operations: Sequence[Operation], fetches: Iterable[Tensor]) -> dict[Tensor, Buffer]:
    """Results of fused operations that may be written straight into the variable to which they are assigned.

    That needs: the step writes the variable once, outside of loops and branches; and no earlier value of it (nor
    anything that may share its memory) is used after the fused operation or fetched.
    """
    order = {operation: position for position, operation in enumerate(operations)}
    fetched = set(fetches)
    found: dict[Tensor, Buffer] = {}
    for operation in operations:
        if not isinstance(operation.op, Assign):
            continue
        value, variable = operation.inputs[0], operation.op.variable
        producer = value.operation
        if value in found or not isinstance(producer.op, Fused) or producer not in order:
            continue
        if value.spec != variable.spec or not _is_written_once(operations, variable):
            continue
        reads = _earlier_reads(operations, order, producer, operation, variable, fetched)
        if reads is not None:
            found[value] = Buffer(reads[0] if reads else None, variable)
    return found


def _is_written_once(operations: Sequence[Operation], variable: Variable) -> bool:
    writers = [o for o in operations if any(e.resource is variable and e.writes for e in o.effects)]
    in_regions = any(e.resource is variable for o in operations if isinstance(o.op, RegionOp) for e in o.effects)
    return len(writers) == 1 and not in_regions


def _earlier_reads(
    operations: Sequence[Operation],
    order: dict[Operation, int],
    producer: Operation,
    assignment: Operation,
    variable: Variable,
    fetched: set[Tensor],
) -> list[Tensor] | None:
    """The read of the variable that the producer takes, if any; None if an earlier value is still needed."""
    reads: set[Tensor] = set()
    aliases: set[Tensor] = set()
    for operation in operations:
        if isinstance(operation.op, ReadVariable) and operation.op.variable is variable:
            if order[producer] < order[operation] < order[assignment]:
                return None
            if order[operation] < order[producer]:
                reads.update(operation.outputs)
                aliases.update(operation.outputs)
        elif (operation.op.view or isinstance(operation.op, RegionOp)) and aliases.intersection(operation.inputs):
            aliases.update(operation.outputs)
    taken = [tensor for tensor in producer.inputs if tensor in aliases]
    if aliases & fetched or len(taken) > 1 or not reads.issuperset(taken):
        return None
    later = operations[order[producer] + 1 :]
    return None if any(aliases.intersection(operation.inputs) for operation in later) else taken


def _reused_operands(operation: Operation, dying: Iterable[Tensor], reusable: set[Tensor]) -> dict[Tensor, Tensor]:
    """For results of a fused operation, operands of the same spec that nothing else needs: they are overwritten."""
    free = [tensor for tensor in dying if tensor in reusable and tensor in operation.inputs]
    found: dict[Tensor, Tensor] = {}
    for result in operation.outputs:
        match = next((tensor for tensor in free if tensor.spec == result.spec), None)
        if match is not None:
            found[result] = match
            free.remove(match)
    return found


def _reusable_tensors(operations: Sequence[Operation], fresh: Iterable[Tensor]) -> set[Tensor]:
    """Those of `fresh` (values nothing else refers to) that no operation passes on as a view, nor into a region."""
    passed_on = {
        tensor
        for operation in operations
        if operation.op.view or isinstance(operation.op, RegionOp)
        for tensor in operation.inputs
    }
    return {t for t in fresh if t not in passed_on and isinstance(t.spec, TensorSpec) and t.spec.is_static and t.shape}


# --- lifetimes ------------------------------------------------------------------------------------------------------


def is_fresh(tensor: Tensor) -> bool:
    """Whether the value of `tensor` is an array that nothing else refers to when its operation has run."""
    op = tensor.operation.op
    return not op.view and not isinstance(op, (RegionOp, Parameter, Placeholder, History))


def last_uses(operations: Sequence[Operation], kept: Iterable[Tensor]) -> dict[Operation, list[Tensor]]:
    """For each operation of a block, the tensors made in the block that nothing after it uses; `kept` ones live on."""
    owned = {tensor for operation in operations for tensor in operation.outputs} - set(kept)
    dying: dict[Operation, list[Tensor]] = {}
    alive_later: set[Tensor] = set()
    for operation in reversed(operations):
        for tensor in (*operation.inputs, *operation.outputs):
            if tensor in alive_later:
                continue
            alive_later.add(tensor)
            if tensor in owned and _has_a_name(tensor):
                dying.setdefault(operation, []).append(tensor)
    return dying


def _has_a_name(tensor: Tensor) -> bool:
    """Whether `tensor` is a Python variable of its own: constants, frames and saved values are not."""
    unnamed = isinstance(tensor.operation.op, (Constant, Saved, Parameter, Placeholder))
    return not unnamed and not isinstance(tensor.spec, FrameSpec)


def blocks(
    operations: Sequence[Operation], kept: Iterable[Tensor]
) -> Iterator[tuple[Sequence[Operation], set[Tensor]]]:
    """The blocks of a step: its operations and those of every region inside, each with what outlives the block."""
    yield operations, set(kept)
    for operation in operations:
        if not isinstance(operation.op, RegionOp):
            continue
        demanded = [u.op.inner for u in frame_users(operation, operations) if isinstance(u.op, (History, Saved))]
        for region in operation.op.regions:
            wanted = [tensor for tensor in demanded if tensor.graph is region]
            yield from blocks(needed_in_region(region, wanted), [*region.results, *wanted])
