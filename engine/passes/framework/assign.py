"""The devices of a step's operations: given once, before the passes that rewrite, which keep to them from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...control_flow.frames import History, Saved
from ...control_flow.while_loop import While
from ...graph.graph import Graph, Operation
from ...graph.tensor import Symbol
from .prune import all_blocks

Assign = Callable[[Sequence[Operation], Sequence[Symbol]], Mapping[Operation, str]]


def assign_devices(graph: Graph, operations: Sequence[Operation], fed: Sequence[Symbol], assign: Assign | None) -> bool:
    """Set the device of every operation of `graph`, insides included; without `assign` none has one.

    Returns whether any may have changed.

    Until now a device is what was asked for. From now on it is where the operation runs, the same name for the same
    device. In a step that is not placed all are alike, so that no pass has to ask whether there are devices.

    Args:
        graph: the step's own graph.
        operations: those of it that run.
        fed: what is fed.
        assign: gives the device of each operation: of those of the step, in program order behind the placeholders of
            what is fed, and of those inside. What is not mentioned inside is on the device of what holds it. Histories
            and saved values are on the device of what they are of, whatever it says: there they are recorded.

    Raises:
        ValueError: `assign` leaves out an operation of the step.
    """
    places: Mapping[Operation, str] = {}
    if assign is None and {o.device for block in all_blocks(graph.operations) for o in block} <= {""}:
        return False
    if assign is not None:
        running = [*[tensor.operation for tensor in fed], *operations]
        places = assign(running, fed)
        left_out = next((operation for operation in running if not places.get(operation)), None)
        if left_out is not None:
            raise ValueError(
                f"assign gave no device for {left_out!r}; expected one for each of the {len(running)} operations that "
                "it was handed, the placeholders of what is fed among them."
            )
    _assign_block(graph, places, "")
    return True


def _assign_block(graph: Graph, places: Mapping[Operation, str], around: str) -> None:
    for operation in graph.operations:
        if isinstance(operation.op, (History, Saved)):
            operation.device = operation.op.inner.operation.device
        else:
            operation.device = places.get(operation) or around
        for region in operation.op.regions:
            _assign_block(region, places, operation.device)
        _assign_unread(operation, places)


def _assign_unread(holder: Operation, places: Mapping[Operation, str]) -> None:
    """Assign unread loop variables, which only pass through the body, the device of their next values."""
    if isinstance(holder.op, While):
        condition, body = holder.op.condition, holder.op.body
        _take_over(body.parameters, body.results, places)
        _take_over(condition.parameters, body.parameters, places)


def _take_over(parameters: Sequence[Symbol], others: Sequence[Symbol], places: Mapping[Operation, str]) -> None:
    for parameter, other in zip(parameters, others, strict=True):
        if not places.get(parameter.operation):
            parameter.operation.device = other.operation.device


def on_one_device(operations: Iterable[Operation]) -> bool:
    """Test whether a rewrite may replace `operations`: nothing between them crosses devices."""
    return len({operation.device for operation in operations}) == 1
