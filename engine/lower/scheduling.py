"""Lowers a scheduled function: Schedule, Demultiplex, a replica for each device, and what joins their parts.

All of these are on the host, which hands the work out: a replica is the function's kernel, run on the device that it is
for, with what it takes brought there. A replica that is not chosen is dead, and costs one token. One for a device of
another task is there, and its part and its results cross like other values.

Source: Wei et al., "Dynamic Scheduling For Dynamic Control Flow in Deep Learning Systems" (2018), section 3, figure 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..common.identity import is_among
from ..control_flow.scheduling import ROWS, Scheduled, ScheduledPart, role_of
from ..graph.device import DeviceName
from ..graph.graph import Operation, Parameter
from ..graph.state.variable_ops import ReadVariable
from ..graph.tensor import Symbol
from ..ops.internal.packed import Pack
from ..passes.framework.estimates import UNKNOWN_DIMENSION
from ..passes.framework.patterns import captured
from ..passes.framework.prune import all_operations, needed_in_region
from ..place.costs import CostModel
from ..place.devices import Device
from .contexts import Context
from .nodes import Node, Value

SCHEDULE_KINDS = frozenset({"schedule", "demultiplex", "replica", "join"})


class Site:
    """A scheduled function in a machine.

    Attributes:
        name: of its operation.
        targets: the devices on which it may run.
        tasks: those of the devices.
        is_cut: of each thing that it takes, whether it is cut by rows.
        states: of each thing that it takes, the variable of which it is the value, if it is; of the packed value of a
            variable the operation that packs it.
        roles: of each result ("joined", "summed"); "" where it is not split.
        specs: of the results.
        split, least_rows: see `Scheduled`.
        seconds: for each device how long a row takes there, as expected; if it is not split, how long all takes.
    """

    def __init__(self, operation: Operation, targets: Sequence[Device]) -> None:
        op = operation.op
        assert isinstance(op, Scheduled)
        region = op.region
        self.name = operation.name
        self.operation = operation
        self.targets = [device.name for device in targets]
        self.devices = {device.name: device for device in targets}
        self.tasks = {device.name: str(device.spec.of_task()) for device in targets}
        inner = [each for each in needed_in_region(region, ()) if not isinstance(each.op, Parameter)]
        marks = {each for each in inner if _cuts(each)}
        ends = {result.operation for result in region.results if isinstance(result.operation.op, ScheduledPart)}
        whole = {tensor for each in inner if each not in marks for tensor in each.inputs} | set(region.results)
        self.split = op.split and all(role_of(result) for result in region.results)
        self.least_rows = max(1, op.least_rows)
        self.taken: list[Symbol] = []
        self.outer: list[Symbol] = []
        self.is_cut: list[bool] = []
        for outer, parameter in region.captures:
            cuts = [mark for mark in marks if mark.inputs[0] is parameter]
            for tensor, is_cut in [*((mark.outputs[0], True) for mark in cuts), (parameter, False)]:
                if is_cut or tensor in whole:
                    self.taken.append(tensor)
                    self.outer.append(outer)
                    self.is_cut.append(is_cut and self.split)
        self.states = [_state_of(outer) for outer in self.outer]
        given = [result.operation.inputs[0] if result.operation in ends else result for result in region.results]
        left_out = marks | {each for each in ends if not is_among(each.outputs[0], given) and _ends_only(each, inner)}
        self.operations = [each for each in inner if each not in left_out]
        self.given = given
        self.roles = [role_of(result) if self.split else "" for result in region.results]
        self.specs = [tensor.spec for tensor in operation.outputs[: len(given)]]
        costs = CostModel()
        self.seconds = {device.name: self._seconds(device, costs) for device in targets}

    def _seconds(self, device: Device, costs: CostModel) -> float:
        inside = list(all_operations(self.operations))
        whole = sum([max(0.0, costs.seconds(each, device) - device.kernel_latency) for each in inside])
        return whole / UNKNOWN_DIMENSION if self.split else whole


def _cuts(operation: Operation) -> bool:
    return role_of(operation.outputs[0]) == ROWS if operation.outputs else False


def _ends_only(end: Operation, inner: Sequence[Operation]) -> bool:
    """Test whether nothing inside takes a result as it is marked."""
    return not any(is_among(end.outputs[0], each.inputs) for each in inner)


def _state_of(tensor: Symbol) -> Any:
    """Name the state of which `tensor` is the value: a variable, or the operation that packs one; None for others."""
    tensor = _outermost(tensor)
    op = tensor.operation.op
    if isinstance(op, ReadVariable):
        return op.variable
    is_packed = isinstance(op, Pack) and isinstance(_outermost(tensor.operation.inputs[0]).operation.op, ReadVariable)
    return tensor.operation if is_packed else None


def _outermost(tensor: Symbol) -> Symbol:
    """Return the tensor outside of all regions for which a parameter stands."""
    while isinstance(tensor.operation.op, Parameter):
        outer = captured(tensor)
        if outer is None:
            break
        tensor = outer
    return tensor


def targets_of(operation: Operation, devices: Mapping[str, Device]) -> list[Device]:
    """Return the devices on which a scheduled function may run.

    Raises:
        ValueError: none of those that were asked for is there.
    """
    op = operation.op
    assert isinstance(op, Scheduled)
    found = list(devices.values())
    if not op.devices:
        return [device for device in found if device.has_own_memory] or found
    asked = [DeviceName.parse(name) for name in op.devices]
    chosen = [device for device in found if any(name.accepts(device.spec) for name in asked)]
    if not chosen:
        raise ValueError(
            f"dynamic_schedule: {operation!r} asks for {', '.join(map(repr, op.devices))}, but the devices are "
            f"{', '.join(devices)}. Declare more of them (ab.config.set_devices), or ask for others."
        )
    return chosen


def lower_scheduled(context: Context, operation: Operation, targets: Sequence[Device], host: str) -> None:
    """Add the nodes of a scheduled function to the context's machine."""
    machine, frame = context.machine, context.frame
    site = Site(operation, targets)
    label = context.label(operation)

    def node(kind: str, inputs: Sequence[Value], specs: Sequence[Any], name: str = "", device: str = host) -> Node:
        made = Node(kind, f"{label}/{name or kind}", device, frame, inputs, specs, [operation])
        made.site = site
        return machine.add(made)

    schedule = node("schedule", [context.value(tensor, host) for tensor in site.outer], [None])
    schedule.taken, schedule.given = site.taken, site.given
    schedule.controls = list(context.wait_for(operation))
    if not any(context.is_gated(value) for value in schedule.sources):
        schedule.controls.append(context.pivot(host))
    chosen = node("demultiplex", [schedule.output], [None] * len(targets))
    replicas: list[Node] = []
    for port, device in enumerate(targets):
        is_here = DeviceName.parse(device.name).of_task() == DeviceName.parse(host).of_task()
        where = host if is_here else device.name
        replica = node("replica", [Value(chosen, port)], [None], f"on {device.name}", where)
        replica.target, replica.given = device.name, site.given
        replicas.append(replica)
    join = node("join", [schedule.output, *[replica.output for replica in replicas]], site.specs)
    context.values.update(zip(operation.outputs, join.outputs, strict=False))
    context.note_run(operation, [join.done])


def scheduling_of(devices: Mapping[str, Device]) -> Callable[[Operation], list[Device]]:
    """Return a function that gives a scheduled function's devices; none for other operations.

    Where the only one is the host, there is nothing to schedule.
    """
    host = next(device for device in devices.values() if device.kind == "cpu")

    def targets(operation: Operation) -> list[Device]:
        if not isinstance(operation.op, Scheduled):
            return []
        found = targets_of(operation, devices)
        return [] if found == [host] else found

    return targets


__all__ = ["SCHEDULE_KINDS", "Site", "lower_scheduled", "scheduling_of", "targets_of"]
