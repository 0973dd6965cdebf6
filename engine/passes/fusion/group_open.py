"""Fusion of what reads the same arrays, where sizes are known at run time only: several results, and sums of them.

`fuse_open` makes chains; this joins what stands beside each other. Which operations run through arrays of the same
shape is decided by the names of their sizes (see `sizes`). A group is computed where its first member was: what its
members take from outside must be there by then, so that nothing can depend on itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ...graph.graph import Graph, Operation
from ...graph.op import Op
from ...graph.provenance import location_of_several
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.gathering import Take
from ...ops.arrays.segments import GatherSegments
from ...ops.base import Constant
from ...ops.internal.fused import Fused, FusedOpen
from ...ops.math.reduced import Sum
from ..framework.log import note_change
from ..framework.order import reorder
from ..framework.prune import inner_tensors
from ..framework.sizes import KnownSizes, Sizes
from .fuse_open import steps_of
from .fusible import FusionRule

_MOST_INPUTS = 12
_MOST_STEPS = 32


class _Group:
    """Operations that run through arrays of the same sizes.

    Attributes:
        sizes: of these arrays.
        members: in program order.
    """

    def __init__(self, sizes: Sizes, first: Operation) -> None:
        self.sizes = sizes
        self.members = [first]

    @property
    def made(self) -> set[Symbol]:
        return {tensor for member in self.members for tensor in member.outputs}

    def inputs(self, more: Iterable[Operation] = ()) -> list[Symbol]:
        """Return the tensors that members and further operations take from outside."""
        members = [*self.members, *more]
        made = {tensor for member in members for tensor in member.outputs}
        return [t for t in dict.fromkeys(t for member in members for t in member.inputs) if t not in made]

    def may_take(self, operation: Operation, known: KnownSizes) -> bool:
        """Test whether an operation reads an array that the group runs through, and all else that it needs is there."""
        first, made = self.members[0], self.made
        if operation.device != first.device:
            return False
        shared = made.union(self.inputs()).intersection(operation.inputs)
        if not any(known.of(tensor) == self.sizes for tensor in shared):
            return False
        if any(t not in made and not _is_there(t.operation, first) for t in operation.inputs):
            return False
        steps = sum(len(steps_of(member)) for member in (*self.members, operation))
        return steps <= _MOST_STEPS and len(self.inputs([operation])) <= _MOST_INPUTS


def _is_there(source: Operation, first: Operation) -> bool:
    """Test whether an operand can be made before an operation, and so can all that it needs."""
    return source.index < first.index or type(source.op) is Constant


def group_open(
    graph: Graph, operations: Sequence[Operation], kept: Iterable[Symbol], rule: FusionRule, known: KnownSizes
) -> None:
    """Join such operations among `operations`, which are needed of `graph`.

    What is inside loops does not change: a loop that is one function has no form for such groups.

    Args:
        graph: the step.
        operations: in program order.
        kept: tensors whose values are wanted from outside: fetches.
        rule: what kernels can compute.
        known: the sizes of tensors.
    """
    wanted = {*kept, *inner_tensors(operations)}
    groups: dict[Sizes, list[_Group]] = {}
    for operation in operations:
        sizes = _space(operation, rule, known)
        if sizes is None:
            continue
        found = next((group for group in groups.get(sizes, ()) if group.may_take(operation, known)), None)
        if found is None:
            groups.setdefault(sizes, []).append(_Group(sizes, operation))
        else:
            found.members.append(operation)
    worthwhile = [group for own in groups.values() for group in own if _is_worthwhile(group)]
    replaced: dict[Operation, Operation] = {}
    for group in worthwhile:
        joined = _joined(graph, group, _used_outside(operations, group) | wanted)
        replaced.update(dict.fromkeys(group.members, joined))
    is_late = _take_late(operations, replaced)
    if replaced or is_late:
        reorder(graph, replaced)


def _take_late(operations: Sequence[Operation], replaced: Mapping[Operation, Operation]) -> bool:
    """Take rows where they are used first, if no variable is written before: then they are still in the cache.

    The table must live until then. So this is done where rows are taken from it several times.
    """
    tables = Counter(o.inputs[0] for o in operations if isinstance(o.op, (GatherSegments, Take)))
    users: dict[Symbol, int] = {}
    found = False
    written = operations[-1].index + 1 if operations else 0
    for operation in reversed(operations):
        place = replaced.get(operation, operation).index
        for tensor in operation.inputs:
            users[tensor] = min(users.get(tensor, place), place)
        written = operation.index if operation.writes else written
        if not isinstance(operation.op, (GatherSegments, Take)) or tables[operation.inputs[0]] < 2:
            continue
        first = users.get(operation.outputs[0], 0)
        if operation.index + 1 < first < written and None in (operation.outputs[0].shape or ()):
            operation.index, found = first, True
    return found


def _space(operation: Operation, rule: FusionRule, known: KnownSizes) -> Sizes | None:
    """The sizes of the arrays through which an elementwise operation or a sum runs; None if kernels do not do it."""
    op = operation.op
    if len(operation.outputs) != 1 or operation.effects or operation.control_inputs:
        return None
    specs = [tensor.spec for tensor in (*operation.inputs, *operation.outputs) if isinstance(tensor.spec, TensorSpec)]
    if len(specs) <= len(operation.inputs) or any(spec.shape is None for spec in specs):
        return None
    if not _has_kernel(op, specs, rule):
        return None
    whole = operation.inputs[0] if type(op) is Sum else operation.outputs[0]
    return None if whole.shape is None or None not in whole.shape else known.of(whole)


def _has_kernel(op: Op, specs: Sequence[TensorSpec], rule: FusionRule) -> bool:
    """Test whether kernels compute an operation over the first of `specs`, with a result of the last."""
    if type(op) is Sum:
        return rule.can_reduce(op, specs[0])
    if isinstance(op, Fused):
        return not op.layouts
    return op.elementwise and rule.can_fuse(op, specs[:-1], specs[-1])


def _is_worthwhile(group: _Group) -> bool:
    """Several operations; or a sum, for which NumPy uses one core."""
    return len(group.members) > 1 or type(group.members[0].op) is Sum


def _used_outside(operations: Sequence[Operation], group: _Group) -> set[Symbol]:
    members = set(group.members)
    return {tensor for operation in operations if operation not in members for tensor in operation.inputs}


def _joined(graph: Graph, group: _Group, used: set[Symbol]) -> Operation:
    """One operation instead of a group. The tensors live on as its outputs."""
    inputs = group.inputs()
    numbers = {tensor: position for position, tensor in enumerate(inputs)}
    steps: list[tuple[Op, tuple[int, ...]]] = []
    for member in group.members:
        values = [numbers[tensor] for tensor in member.inputs]
        for op, arguments in steps_of(member):
            values.append(len(inputs) + len(steps))
            steps.append((op, tuple(values[k] for k in arguments)))
        numbers[member.outputs[0]] = values[-1]
    first, last = group.members[0], group.members[-1]
    outputs = [member.outputs[0] for member in group.members if member.outputs[0] in used]
    op = FusedOpen(Fused(len(inputs), tuple(steps), tuple(numbers[tensor] for tensor in outputs)))
    location = location_of_several([member.location for member in group.members])
    joined = Operation(graph, op, tuple(inputs), (), last.name, first.device, (), location)
    joined.outputs, joined.index = tuple(outputs), first.index
    for position, tensor in enumerate(outputs):
        tensor.operation, tensor.index = joined, position
    note_change("fuse", joined, f"{len(steps)} operations over the same arrays are one kernel")
    return joined
