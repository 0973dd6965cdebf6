"""Updates of variables by the same expression become one operation over all of them: one call, whose work the threads
share by elements, where each variable would have had a call of its own.

Works on fused operations whose results are assigned to variables. Updates may run together if none needs the results of
another, in whatever way; they run where the last of them stood. Until then the gradients of all are held, so that no
more than some megabytes of them are waited for; and a call is nothing to what is larger than that.

All updates may flush subnormal numbers, whether they are joined or not: running means decay to such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...graph.graph import Operation
from ...graph.provenance import location_of_several
from ...graph.spec import TensorSpec
from ...graph.state.variable_ops import Assign
from ...ops.arrays.axes import Transpose
from ...ops.internal.fused import Fused, HorizontallyFused
from ..framework import changes
from ..framework.estimates import bytes_of
from ..framework.log import note_change, note_kept
from ..framework.order import earlier_effects, reorder
from ..framework.prune import Kept, inner_blocks
from .fusible import FusionRule

_MOST_BYTES = 1 << 22  # of the gradients that one operation takes
_MOST_MEMBERS = 256
_MOST_KINDS = 8  # expressions by which variables of one step are updated

Kind = tuple[object, ...]


def fuse_updates(operations: Sequence[Operation], kept: Kept, rule: FusionRule, may_flush: bool) -> None:
    """Join updates among needed `operations` of a step, and in all regions inside.

    Args:
        kept: tensors whose values are wanted from outside of their block.
        may_flush: whether updates may take subnormal numbers as zeros.
    """
    for operation in operations:
        for inside, wanted in inner_blocks(operation, kept):
            fuse_updates(inside, wanted, rule, may_flush)
    kinds: dict[Kind, list[Operation]] = {}
    assigned = {operation.inputs[0] for operation in operations if isinstance(operation.op, Assign)}
    for operation in operations:
        if any(tensor in assigned for tensor in operation.outputs):
            if may_flush and isinstance(operation.op, Fused):
                changes.set_op(operation, replace(operation.op, flushes=True))
            kind = _kind_of(operation)
            if kind is not None:
                kinds.setdefault(kind, []).append(operation)
    several = [members for members in kinds.values() if _is_several(members)]
    for members in sorted(several, key=len, reverse=True)[:_MOST_KINDS]:
        if rule.can_run_together(members[0]):
            operations = _with_joined(operations, members)


def _with_joined(operations: Sequence[Operation], members: Sequence[Operation]) -> Sequence[Operation]:
    """Join what can be joined of `members`; return the operations of the block in their new order."""
    replaced: dict[Operation, Operation] = {}
    for group in _independent(operations, members):
        replaced.update(dict.fromkeys(group, _joined(group)))
    if not replaced:
        return operations
    reorder(members[0].graph, replaced)
    return sorted({replaced.get(operation, operation) for operation in operations}, key=lambda each: each.index)


def _is_several(members: Sequence[Operation]) -> bool:
    if len(members) == 1:
        note_kept("horizontal_fusion", members[0], "no other variable is updated by the same expression")
    return len(members) > 1


def _kind_of(operation: Operation) -> Kind | None:
    """Return an operation's kind: those of one kind can be one, but for dependencies; None if no other can join it."""
    op = operation.op
    if not isinstance(op, Fused) or operation.control_inputs:
        return None
    if op.layouts:
        note_kept("horizontal_fusion", operation, "its kernel adds up, or moves elements")
        return None
    inputs = [tensor.spec for tensor in operation.inputs if isinstance(tensor.spec, TensorSpec)]
    outputs = [tensor.spec for tensor in operation.outputs if isinstance(tensor.spec, TensorSpec)]
    shape = outputs[0].shape
    if not shape or not outputs[0].is_static or any(spec.shape not in ((), shape) for spec in inputs):
        return None
    if any(isinstance(tensor.operation.op, Transpose) for tensor in operation.inputs):
        return None
    if bytes_of(operation.outputs[0].spec) > _MOST_BYTES:
        note_kept("horizontal_fusion", operation, "a call of its own is nothing to one of this size")
        return None
    scalars = tuple(spec.shape == () for spec in inputs)
    dtypes = tuple(spec.dtype for spec in (*inputs, *outputs))
    return op, scalars, dtypes, operation.device


def _independent(operations: Sequence[Operation], members: Sequence[Operation]) -> list[list[Operation]]:
    """Return groups of `members` in which none depends on another, directly or through other operations.

    Args:
        operations: of the block, in an order in which inputs come first.
        members: operations of one kind, in the same order.

    A group is closed when a next one is begun, and all of that comes later in the order: so there are no cycles of
    groups either.
    """
    bit_of = {member: 1 << number for number, member in enumerate(members)}
    earlier = earlier_effects(operations)
    behind: dict[Operation, int] = {}  # of which members an operation needs something, as bits
    groups: list[list[Operation]] = [[]]
    taken, size = 0, 0
    for operation in operations:
        sources = [tensor.operation for tensor in operation.inputs]
        needs = 0
        for source in (*sources, *operation.control_inputs, *earlier.get(operation, ())):
            needs |= behind.get(source, 0)
        bit = bit_of.get(operation, 0)
        if needs or bit:
            behind[operation] = needs | bit
        if not bit:
            continue
        size += bytes_of(operation.outputs[0].spec)
        if needs & taken or size > _MOST_BYTES or len(groups[-1]) == _MOST_MEMBERS:
            if needs & taken:
                note_kept("horizontal_fusion", operation, "it needs what another update of its kind gives")
            groups.append([])
            taken, size = 0, bytes_of(operation.outputs[0].spec)
        groups[-1].append(operation)
        taken |= bit
    return [group for group in groups if len(group) > 1]


def _joined(group: Sequence[Operation]) -> Operation:
    """Make one operation instead of a group. Their tensors live on as its outputs."""
    first, last = group[0], group[-1]
    op = first.op
    assert isinstance(op, Fused)
    same = [all(member.inputs[k] is first.inputs[k] for member in group) for k in range(op.input_count)]
    shared = tuple(k for k in range(op.input_count) if same[k] and first.inputs[k].shape == ())
    together = HorizontallyFused(op, len(group), shared)
    inputs = [first.inputs[k] for k in shared] + [member.inputs[k] for member in group for k in together.own]
    outputs = [tensor for member in group for tensor in member.outputs]
    location = location_of_several([member.location for member in group])
    joined = Operation(last.graph, together, tuple(inputs), (), last.name, last.device, (), location)
    joined.index = last.index
    changes.set_outputs(joined, outputs)
    note_change("horizontal_fusion", joined, lambda: f"{len(group)} updates are one call: {_listed(op)}")
    return joined


def _listed(op: Fused) -> str:
    return ", ".join(op.step_names)
