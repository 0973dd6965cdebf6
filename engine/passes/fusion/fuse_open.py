"""Fusion of elementwise operations on arrays of which the sizes are known at run time only, such as chosen rows.

How such operations share a space is not known, so only chains are fused: an operation whose one result nothing takes
but another such operation becomes a part of that. What shapes the operands have is seen when they are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...graph.graph import Graph, Operation
from ...graph.op import Op
from ...graph.provenance import location_of_several
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.internal.fused import Fused
from ..framework.log import note_change
from ..framework.prune import Kept, all_blocks, inner_blocks, kept_of
from .fuse import FusionRule

_MOST_INPUTS = 12
_MOST_STEPS = 32


def fuse_open(
    graph: Graph, operations: Sequence[Operation], kept: Iterable[Symbol | Operation], rule: FusionRule
) -> None:
    """Fuse chains among `operations`, which are needed of `graph`, and in regions inside.

    Args:
        kept: tensors whose values are wanted from outside, and operations.
    """
    if any(_is_of_open_size(operation) for block in all_blocks(operations) for operation in block):
        _fuse_block(operations, kept_of(graph, operations, kept), rule)


def _fuse_block(operations: Sequence[Operation], kept: Kept, rule: FusionRule) -> None:
    users: dict[Symbol, list[Operation]] = {}
    for operation in operations:
        for _, inside, wanted in inner_blocks(operation, kept):
            _fuse_block(inside, wanted, rule)
        for tensor in dict.fromkeys(operation.inputs):
            users.setdefault(tensor, []).append(operation)
    open_ones = {operation for operation in operations if _is_open(operation, rule)}
    for operation in operations:  # sources come first: when an operation's turn comes, they have taken in theirs
        if operation in open_ones:
            _take_in_sources(operation, open_ones, users, kept.own)


def _is_of_open_size(operation: Operation) -> bool:
    """Test whether an operation is elementwise, over an array that is not of known size."""
    if not operation.op.elementwise or len(operation.outputs) != 1:
        return False
    spec = operation.outputs[0].spec
    return isinstance(spec, TensorSpec) and not spec.is_static


def _is_open(operation: Operation, rule: FusionRule) -> bool:
    """Test whether an operation is elementwise, over arrays of known ranks but not all of known sizes."""
    if not operation.op.elementwise or len(operation.outputs) != 1 or operation.effects or operation.control_inputs:
        return False
    specs = [tensor.spec for tensor in (*operation.inputs, *operation.outputs)]
    known = [spec for spec in specs if isinstance(spec, TensorSpec) and spec.shape is not None]
    if len(known) != len(specs) or known[-1].is_static:
        return False
    return rule.can_fuse(operation.op, known[:-1], known[-1])


def _take_in_sources(
    operation: Operation, open_ones: set[Operation], users: dict[Symbol, list[Operation]], kept: set[Symbol]
) -> None:
    """Make the sources of an operation that serve nothing else parts of it."""
    for source in dict.fromkeys(tensor.operation for tensor in operation.inputs):
        if source not in open_ones or source.device != operation.device or source.graph is not operation.graph:
            continue
        (made,) = source.outputs
        if made in kept or users.get(made) != [operation] or made.spec.shape != operation.outputs[0].spec.shape:
            continue
        inputs = list(dict.fromkeys([*source.inputs, *[t for t in operation.inputs if t is not made]]))
        fused = _joined(source, operation, inputs)
        if len(inputs) > _MOST_INPUTS or len(fused.steps) > _MOST_STEPS:
            continue
        note_change("fuse", source, f"is computed in the kernel of {operation.name!r}")
        operation.op, operation.inputs = fused, tuple(inputs)
        operation.location = location_of_several([source.location, operation.location])
        for tensor in inputs:
            users[tensor] = list(dict.fromkeys([*[u for u in users[tensor] if u is not source], operation]))


def _joined(source: Operation, user: Operation, inputs: Sequence[Symbol]) -> Fused:
    """Return the op that computes `source`, and `user` of that, from `inputs`."""
    numbers = {tensor: position for position, tensor in enumerate(inputs)}
    steps: list[tuple[Op, tuple[int, ...]]] = []
    result = 0
    for operation in (source, user):
        own = [numbers[tensor] for tensor in operation.inputs]
        for op, arguments in steps_of(operation):
            own.append(len(inputs) + len(steps))
            steps.append((op, tuple(own[k] for k in arguments)))
        result = own[-1]
        numbers[operation.outputs[0]] = result
    return Fused(len(inputs), tuple(steps), (result,))


def steps_of(operation: Operation) -> Sequence[tuple[Op, tuple[int, ...]]]:
    """Return the steps that an operation computes over its inputs."""
    if isinstance(operation.op, Fused):
        return operation.op.steps
    return ((operation.op, tuple(range(len(operation.inputs)))),)
