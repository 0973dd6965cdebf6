"""Puts the operations of a rewritten graph into a valid order again."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...graph.graph import Graph, Operation
from ...graph.region import Region
from .changes import arrange


def reorder(graph: Graph, replaced: Mapping[Operation, Operation]) -> None:
    """Put the operations of `graph` into an order in which inputs come first and effects keep their order.

    Args:
        graph: the graph; operations keep to their former places as far as possible.
        replaced: operations that others have taken the place of.
    """
    if not replaced and _is_in_order(graph.operations):
        _number(graph, graph.operations)
        return
    operations = graph.operations
    if replaced:
        operations = list(dict.fromkeys([replaced.get(operation, operation) for operation in operations]))
    position = {operation: operation.index for operation in operations}
    users: dict[Operation, list[Operation]] = {operation: [] for operation in operations}
    waiting = dict.fromkeys(operations, 0)
    earlier = earlier_effects(operations)
    for operation in operations:
        before = {tensor.operation for tensor in operation.inputs}
        if operation.control_inputs:
            controls = dict.fromkeys([replaced.get(source, source) for source in operation.control_inputs])
            operation.control_inputs = tuple(controls)
            before.update(controls)
        if operation in earlier:
            before.update(earlier[operation])
        for source in before:
            if source in users:
                users[source].append(operation)
                waiting[operation] += 1
    ready = [(position[o], k, o) for k, o in enumerate(operations) if waiting[o] == 0]
    heapq.heapify(ready)
    order: list[Operation] = []
    serial = len(operations)
    while ready:
        _, _, operation = heapq.heappop(ready)
        order.append(operation)
        for user in users[operation]:
            waiting[user] -= 1
            if waiting[user] == 0:
                serial += 1
                heapq.heappush(ready, (position[user], serial, user))
    assert len(order) == len(operations), "This is a bug in anabranch: a pass made a cycle."
    _number(graph, order)


def _is_in_order(operations: Sequence[Operation]) -> bool:
    """Test whether each operation stands where its number says, behind all that it waits for: so it stays there."""
    graph = operations[0].graph if operations else None
    latest = -1
    for operation in operations:
        index = operation.index
        if index <= latest or operation.control_inputs:
            return False
        for tensor in operation.inputs:
            source = tensor.operation
            if source.index >= index and source.graph is graph:
                return False
        latest = index
    return True


def _number(graph: Graph, order: list[Operation]) -> None:
    arrange(graph, order)
    if isinstance(graph, Region):
        graph.needed = None


def earlier_effects(operations: Sequence[Operation]) -> dict[Operation, list[Operation]]:
    """Map each operation with effects to those that must come before it: a write stays behind all earlier accesses of
    its resource, a read behind the latest write."""
    writer: dict[Any, Operation] = {}
    readers: dict[Any, list[Operation]] = {}  # since the latest write
    earlier: dict[Operation, list[Operation]] = {}
    for operation in operations:
        for resource, writes in operation.effects:
            before = earlier.setdefault(operation, [])
            before += [writer[resource]] if resource in writer else []
            if writes:
                before += readers.pop(resource, [])
                writer[resource] = operation
            else:
                readers.setdefault(resource, []).append(operation)
    return earlier


def hoist(graph: Graph, chosen: Iterable[Operation]) -> None:
    """Put operations behind the latest one that they wait for: inputs, controls, and effects on the same resource.

    Args:
        graph: the graph.
        chosen: which of its operations; those that are not chosen keep their order.
    """
    wanted = set(chosen)
    earlier = earlier_effects(graph.operations)
    places: dict[Operation, tuple[int, int]] = {}
    for serial, operation in enumerate(graph.operations):
        if operation not in wanted:
            places[operation] = (serial, 0)
            continue
        before = [*(tensor.operation for tensor in operation.inputs), *operation.control_inputs]
        before += earlier.get(operation, [])
        place = max((places[source][0] for source in before if source in places), default=-1)
        places[operation] = (place, serial + 1)
    arrange(graph, sorted(graph.operations, key=places.__getitem__))
