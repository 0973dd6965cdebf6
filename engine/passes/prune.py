"""Which operations a step needs."""

from __future__ import annotations

from collections.abc import Iterable

from ..graph.graph import Graph, Operation
from ..graph.region import Region
from ..graph.tensor import Tensor


def needed_operations(
    graph: Graph, targets: Iterable[Tensor | Operation], fed: Iterable[Tensor] = ()
) -> list[Operation]:
    """The operations of `graph` that must run to produce `targets`, in program order.

    Order alone never drags an operation in: only data and explicit control dependencies do. Operations whose
    outputs are all fed do not run.
    """
    given = set(fed)
    needed: set[Operation] = set()
    pending = [_producer(target) for target in targets if not (isinstance(target, Tensor) and target in given)]
    while pending:
        operation = pending.pop()
        if operation in needed or (operation.outputs and given.issuperset(operation.outputs)):
            continue
        needed.add(operation)
        pending.extend(operation.control_inputs)
        pending.extend(tensor.operation for tensor in operation.inputs if tensor not in given)
    return sorted(needed, key=_position)


def needed_in_region(region: Region, demanded: Iterable[Tensor] = ()) -> list[Operation]:
    """The operations of a region that a run of it needs: for its results, its effects and the `demanded` tensors."""
    effectful = [operation for operation in region.operations if operation.writes]
    return needed_operations(region, [*region.results, *effectful, *demanded])


def _producer(target: Tensor | Operation) -> Operation:
    return target.operation if isinstance(target, Tensor) else target


def _position(operation: Operation) -> int:
    return operation.index


def frame_users(operation: Operation, needed: Iterable[Operation]) -> list[Operation]:
    """The operations among `needed` that take values from the frame of a loop or branch."""
    frame = operation.outputs[-1]
    return [user for user in needed if frame in user.inputs]
