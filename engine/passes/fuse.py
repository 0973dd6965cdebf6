"""Fusion: chains of elementwise operations of one shape become one operation, which one kernel computes.

Works on a step's own graph (see `specialise`), loop bodies and branches included. An operation joins the group of an
operation whose result it takes, if they have one shape and one device, and nothing outside the group lies on a way
between them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from ..control_flow.region_op import RegionOp
from ..graph.graph import Graph, Operation
from ..graph.op import Op
from ..graph.spec import TensorSpec
from ..graph.tensor import Tensor
from ..ops.fused import Fused
from .acyclic import Dependent, in_order
from .order import earlier_effects, reorder
from .prune import inner_tensors, needed_in_region

_MOST_OPERANDS = 28
_MOST_BEHIND = 16

_Behind = dict[Operation, frozenset[Dependent]]  # the groups on which an operation's results depend directly


class FusionRule:
    """What may be fused: asked for every elementwise operation. The runtime knows what its kernels can do."""

    def can_fuse(self, op: Op, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
        raise NotImplementedError


class _Group(Dependent):
    """Operations that may become one; it depends on groups whose results it needs."""

    def __init__(self, order: int, shape: tuple[int | None, ...], device: str) -> None:
        super().__init__(order)
        self.shape = shape
        self.device = device
        self.members: list[Operation] = []

    def is_like(self, shape: tuple[int | None, ...], device: str) -> bool:
        """Whether what has that shape, on that device, may be a part of it."""
        return self.shape == shape and self.device == device


def fuse(graph: Graph, operations: Sequence[Operation], kept: Iterable[Tensor], rule: FusionRule) -> None:
    """Fuse in `graph`, of which `operations` are needed, and in all regions inside.

    Args:
        kept: tensors whose values are wanted from outside: fetches.
    """
    _fuse_block(graph, operations, {*kept, *inner_tensors(operations)}, rule)


def _fuse_block(graph: Graph, operations: Sequence[Operation], kept: set[Tensor], rule: FusionRule) -> None:
    for operation in operations:
        if isinstance(operation.op, RegionOp):
            for region in operation.op.regions:
                demanded = [tensor for tensor in kept if tensor.graph is region]
                _fuse_block(region, needed_in_region(region, demanded), kept | set(region.results), rule)
    groups = [group for group in _group(operations, rule) if _is_worthwhile(group)]
    if not groups:
        return
    used = _used_outside(operations, groups) | kept
    replaced: dict[Operation, Operation] = {}
    for group in groups:
        fused = _replace(graph, group, used)
        replaced.update((member, fused) for member in group.members)
    reorder(graph, replaced)


# --- grouping -------------------------------------------------------------------------------------------------------


def _group(operations: Sequence[Operation], rule: FusionRule) -> list[_Group]:
    groups: list[_Group] = []
    group_of: dict[Operation, _Group] = {}
    behind: _Behind = {}
    nothing: frozenset[Dependent] = frozenset()
    order = itertools.count()
    earlier = earlier_effects(operations)
    for operation in operations:
        sources = [tensor.operation for tensor in operation.inputs]
        sources += [*operation.control_inputs, *earlier.get(operation, ())]
        shape = _fusible_shape(operation, rule)
        if shape is None:
            below = nothing.union(*[behind.get(source, nothing) for source in sources])
            behind[operation] = below if len(below) <= _MOST_BEHIND else frozenset([_all_of(below, next(order))])
            continue
        group = _joinable(operation, shape, group_of, behind)
        if group is None:
            group = _Group(next(order), shape, operation.device)
            groups.append(group)
        group.members.append(operation)
        for source in sources:
            if group_of.get(source) is not group:  # what stands for a part of the group itself is no need of it
                for other in in_order(behind.get(source, nothing)):
                    group.add_need(other)
        group_of[operation] = group
        behind[operation] = frozenset([group])
        _merge_sources(operation, group, group_of, behind)
    return [group for group in groups if group.members]


def _all_of(parts: Iterable[Dependent], order: int) -> Dependent:
    """Something that depends on all `parts`, to stand for them."""
    whole = Dependent(order)
    for part in in_order(parts):
        whole.add_need(part)
    return whole


def _merge_sources(operation: Operation, group: _Group, group_of: dict[Operation, _Group], behind: _Behind) -> None:
    """Join the groups of the other sources of `operation` to its own, where nothing lies between them."""
    for tensor in operation.inputs:
        other = group_of.get(tensor.operation)
        if other is None or other is group or not other.is_like(group.shape, group.device):
            continue
        members = {*group.members, *other.members}
        inputs = {t for m in members for t in m.inputs if t.operation not in members}
        if len(inputs) + len(members) > 2 * _MOST_OPERANDS or len(inputs) > _MOST_OPERANDS:
            continue
        between = [need for need in group.needs if need is not other and need.may_depend_on(other)]
        outside = [g for m in group.members for t in m.inputs if t.operation not in members
                   for g in behind.get(t.operation, ())]  # fmt: skip
        if between or any(g.may_depend_on(other) for g in outside) or other.may_depend_on(group):
            continue
        group.members = sorted(members, key=lambda member: member.index)
        for member in other.members:
            group_of[member] = group
        other.members = []
        group.take_over(other)


def _fusible_shape(operation: Operation, rule: FusionRule) -> tuple[int | None, ...] | None:
    op = operation.op
    if not op.elementwise or len(operation.outputs) != 1 or operation.effects or operation.control_inputs:
        return None
    spec = operation.outputs[0].spec
    inputs = [tensor.spec for tensor in operation.inputs]
    if not isinstance(spec, TensorSpec) or not spec.is_static or not spec.shape or math.prod(spec.shape) < 2:  # pyright: ignore[reportArgumentType, reportCallIssue]
        return None
    static = [s for s in inputs if isinstance(s, TensorSpec) and s.is_static]
    if len(static) != len(inputs) or not rule.can_fuse(op, static, spec):
        return None
    return spec.shape


def _joinable(
    operation: Operation,
    shape: tuple[int | None, ...],
    group_of: dict[Operation, _Group],
    behind: _Behind,
) -> _Group | None:
    """A group that `operation` can join: one of a source, not also reached around some other way."""
    sources = [tensor.operation for tensor in operation.inputs]
    candidates = dict.fromkeys(group_of[s] for s in reversed(sources) if s in group_of)
    for group in candidates:
        if not group.is_like(shape, operation.device):
            continue
        others = [g for s in sources if group_of.get(s) is not group for g in behind.get(s, ())]
        inputs = {t for m in (*group.members, operation) for t in m.inputs if group_of.get(t.operation) is not group}
        fits = len(inputs) + len(group.members) <= 2 * _MOST_OPERANDS and len(inputs) <= _MOST_OPERANDS
        if fits and not any(other.may_depend_on(group) for other in others):
            return group
    return None


def _is_worthwhile(group: _Group) -> bool:
    """Two operations or more; or one that NumPy computes in several passes."""
    return len(group.members) > 1 or getattr(group.members[0].op, "ufunc", "none") is None


def _used_outside(operations: Sequence[Operation], groups: list[_Group]) -> set[Tensor]:
    group_of = {member: group for group in groups for member in group.members}
    used: set[Tensor] = set()
    for operation in operations:
        own = group_of.get(operation)
        for tensor in operation.inputs:
            if own is None or group_of.get(tensor.operation) is not own:
                used.add(tensor)
    return used


# --- rewriting ------------------------------------------------------------------------------------------------------


def _replace(graph: Graph, group: _Group, used: set[Tensor]) -> Operation:
    """One fused operation instead of the members of `group`. Their tensors live on as its outputs."""
    members = set(group.members)
    inputs = list(dict.fromkeys(t for m in group.members for t in m.inputs if t.operation not in members))
    numbers = {tensor: position for position, tensor in enumerate(inputs)}
    steps: list[tuple[Op, tuple[int, ...]]] = []
    for member in group.members:
        steps.append((member.op, tuple(numbers[tensor] for tensor in member.inputs)))
        numbers[member.outputs[0]] = len(inputs) + len(steps) - 1
    outputs = [member.outputs[0] for member in group.members if member.outputs[0] in used]
    op = Fused(len(inputs), tuple(steps), tuple(numbers[tensor] for tensor in outputs))
    last = group.members[-1]
    fused = Operation(graph, op, tuple(inputs), (), last.name, last.device, (), last.location)
    fused.outputs = tuple(outputs)
    for position, tensor in enumerate(outputs):
        tensor.operation, tensor.index = fused, position
    fused.index = last.index
    return fused
