"""What the devices of a step did: counted by frames as they end, and timed now and then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..control_flow.while_loop import While
from ..graph.graph import Operation
from ..place.costs import CostModel
from ..place.devices import Device
from ..runtime.program import Statistics

if TYPE_CHECKING:
    from ..lower.nodes import Node
    from .step import Step

Spent = dict[Callable[..., None], list[float]]  # by function: how often it ran, and for how many seconds
_TIMED = 16  # every so many runs one is timed


@dataclass(frozen=True, slots=True)
class DeviceRunStatistics:
    """What one device did in the latest run of a step.

    Attributes:
        device: its name.
        tokens: values that nodes and receives took in, dead ones among them.
        frames: runs of loops that it took part in, and the step itself.
        iterations: of all these; the last one of a loop, in which its condition is false, among them.
        peak_iterations: the most iterations of one loop that were alive at once.
        peak_bytes: the most memory that it held; None for CPUs, which do not tell.
        kernel_seconds: how long operations ran; of devices that are simulated, in their time. Of operations that a CPU
            runs between others, handing on their results is part of it.
        scheduling_seconds: how long the host moved its values, decided Switches and enqueued its kernels.

    Times are those of the latest run that was timed: the first, and every 16th from there on (every one, under
    ``ab.config.set_devices(..., measure=True)``). All else is counted by frames, and costs nothing a value.
    """

    device: str
    tokens: int
    frames: int
    iterations: int
    peak_iterations: int
    peak_bytes: int | None
    kernel_seconds: float
    scheduling_seconds: float


class MachineStatistics(Statistics):
    """Statistics of a program on several devices."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: Step | None = None
        self.timed: Mapping[str, tuple[float, float]] = {}  # by device: seconds in kernels, and in scheduling

    @property
    def is_timed(self) -> bool:
        """Whether the run that has begun is one that is timed."""
        return self.runs % _TIMED == 1

    @property
    def devices(self) -> Mapping[str, DeviceRunStatistics]:
        step = self.latest
        return {} if step is None else {device: self._of(step, device) for device in step.machine.devices}

    def _of(self, step: Step, device: str) -> DeviceRunStatistics:
        plans = [plan for plan in step.plans.values() if plan.device == device]
        return DeviceRunStatistics(
            device,
            sum([plan.arrivals * plan.iterations for plan in plans]),
            sum([plan.frames for plan in plans]),
            sum([plan.iterations for plan in plans]),
            max([plan.peak for plan in plans], default=0),
            step.engines[device].peak_bytes,
            *self.timed.get(device, (0.0, 0.0)),
        )


def times_by_device(
    step: Step, nodes: Mapping[str, Node], before: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Seconds in kernels and in scheduling of each device, in the run of `step` that has just been timed.

    Args:
        step: knows how long each function ran.
        nodes: the node of each function.
        before: seconds that each device's engine had spent in kernels before.
    """
    kernels = {device: step.engines[device].kernel_seconds - before[device] for device in before}
    scheduling = dict.fromkeys(before, 0.0)
    for function, (_, seconds) in (step.spent or {}).items():
        node = nodes.get(function.__name__)
        if node is None or node.device is None:
            continue
        kind = kernels if is_kernel(function, node) else scheduling
        kind[node.device] += seconds
    return {device: (kernels[device], scheduling[device]) for device in before}


def is_kernel(function: Callable[..., None], node: Node) -> bool:
    """Whether a function runs the operations of a node itself, and is not what begins, ends or leaves them out."""
    return node.kind == "op" and "submit" not in function.__code__.co_names and not _is_dead(function)


def _is_dead(function: Callable[..., None]) -> bool:
    return function.__name__.startswith("dead_")


def record_costs(step: Step, nodes: Mapping[str, Node], names: Mapping[Operation, str], costs: CostModel) -> None:
    """Tell `costs` what operations took in the run of `step` that has just been timed, and what loops did.

    Args:
        step: knows how long each function ran.
        nodes: the node of each function.
        names: the full names of operations. What a pass has made is not known by a name when steps are placed.
        costs: is told.
    """
    for function, (runs, seconds) in (step.spent or {}).items():
        node = nodes.get(function.__name__)
        if node is not None and is_kernel(function, node):
            _record(node, seconds / runs, names, costs, step.devices)
    for device, engine in step.engines.items():
        for node, (runs, seconds) in engine.spans().items():
            if node.device == device:
                _record(node, seconds / runs, names, costs, step.devices)
    for plan in {plan.operation: plan for plan in step.plans.values()}.values():
        if isinstance(plan.operation, Operation) and isinstance(plan.operation.op, While) and plan.frames:
            name = names.get(plan.operation)
            if name is not None:
                costs.record_iterations(name, round((plan.iterations - plan.frames) / plan.frames))


def _record(
    node: Node, seconds: float, names: Mapping[Operation, str], costs: CostModel, devices: Mapping[str, Device]
) -> None:
    """The time of a node, shared out among its operations as it was expected of them."""
    device = devices[str(node.device)]
    expected = [costs.estimate(operation, device) for operation in node.operations]
    total = sum(expected)
    for operation, share in zip(node.operations, expected, strict=True):
        if share and operation in names:
            costs.record(names[operation], device.kind, seconds * share / total, costs.made(operation))


def full_names(operations: Any, path: str = "") -> dict[Operation, str]:
    """The full name of each operation of a step: ``loop/body/name`` for one inside a loop."""
    found: dict[Operation, str] = {}
    for operation in operations:
        found[operation] = path + operation.name
        for region in operation.op.regions:
            found.update(full_names(region.operations, f"{path}{operation.name}/{region.name}/"))
    return found


__all__ = ["DeviceRunStatistics", "MachineStatistics", "full_names", "record_costs", "times_by_device"]
