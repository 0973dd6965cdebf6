"""Figures of the devices of a step: counted by frames as they end, and timed now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING

from ..common.quick_dataclass import dataclass
from ..control_flow.while_loop import While
from ..graph.graph import Operation
from ..passes.framework.estimates import made_bytes
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
    """The figures of one device in the latest run of a step.

    Attributes:
        device: its name.
        tokens: values that nodes and receives took in, dead ones among them.
        frames: runs of loops that it took part in, and the step itself.
        iterations: of all these; the last one of a loop, in which its condition is false, among them.
        peak_iterations: the most iterations of one loop that were alive at once.
        peak_bytes: the most memory that it held; None for CPUs, which do not report it.
        swapped_out_bytes, swapped_in_bytes: what histories of loops moved to the host, and back, in all runs.
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
    swapped_out_bytes: int
    swapped_in_bytes: int
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
        """True if the run that has begun is one that is timed."""
        return self.runs % _TIMED == 1

    def note_ended(self, step: Step) -> None:
        """Count what the loops of a run that span devices have saved, and computed again."""
        self.saved_bytes += step.saved_bytes
        self.total_saved_bytes += step.saved_bytes
        for operation, plan in {plan.operation: plan for plan in step.plans.values()}.items():
            if operation is not None and isinstance(operation.op, While) and operation.op.recomputed_bytes:
                self.note_recomputed((plan.iterations - plan.frames) * operation.op.recomputed_bytes)

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
            *step.engines[device].swapped_bytes,
            *self.timed.get(device, (0.0, 0.0)),
        )


def note_spent(spent: Spent, function: Callable[..., None], began: float) -> float:
    """Add to how long a function ran; return the time."""
    ended = time.perf_counter()
    sums = spent.setdefault(function, [0, 0.0])
    sums[0] += 1
    sums[1] += ended - began
    return ended


class Timed:
    """A run that was timed.

    Args:
        step: has made the run.
        functions: for the name of each function its purpose and node, as ("run", node).
        apart: the nodes whose operations are run apart.
        before: the seconds that each device's engine had spent in kernels before.
    """

    def __init__(
        self, step: Step, functions: Mapping[str, tuple[str, Node]], apart: Container[Node], before: Mapping[str, float]
    ) -> None:
        self.step = step
        self.before = before
        self.inside: list[tuple[Node, float, float]] = []  # nodes that the loop ran itself: how often, and how long
        self.scheduling = dict.fromkeys(before, 0.0)
        for function, (runs, seconds) in (step.spent or {}).items():
            if function.__name__ not in functions:
                continue  # what is decided for several nodes at once
            purpose, node = functions[function.__name__]
            if purpose == "run" and node.kind == "op" and node not in apart:
                self.inside.append((node, runs, seconds))
            else:
                self.scheduling[str(node.device)] += seconds

    def by_device(self) -> dict[str, tuple[float, float]]:
        """Return seconds in kernels and in scheduling."""
        kernels = {device: self.step.engines[device].kernel_seconds - before for device, before in self.before.items()}
        for node, _, seconds in self.inside:
            kernels[str(node.device)] += seconds
        return {device: (kernels[device], self.scheduling[device]) for device in kernels}

    def record(self, names: Mapping[Operation, str], devices: Mapping[str, Device], costs: CostModel) -> None:
        """Record what operations took, and how many iterations loops made.

        Args:
            names: the full names of operations; those that a pass has made are not known when steps are placed.
            devices: by name.
            costs: takes the records.
        """
        apart = [(node, *sums) for engine in self.step.engines.values() for node, sums in engine.spent.items()]
        for node, runs, seconds in (*self.inside, *apart):
            _record(node, seconds / runs, names, devices, costs)
        for plan in {plan.operation: plan for plan in self.step.plans.values() if plan.frames}.values():
            name = names.get(plan.operation)
            if name is not None:
                costs.record_iterations(name, round((plan.iterations - plan.frames) / plan.frames))


def _record(
    node: Node, seconds: float, names: Mapping[Operation, str], devices: Mapping[str, Device], costs: CostModel
) -> None:
    """Record the time of a node, shared out among its operations in proportion to their estimates."""
    device = devices[str(node.device)]
    expected = [costs.estimate(operation, device) for operation in node.operations]
    total = sum(expected)
    for operation, share in zip(node.operations, expected, strict=True):
        if share and operation in names:
            costs.record(names[operation], device.kind, seconds * share / total, made_bytes(operation))


def full_names(operations: Iterable[Operation], path: str = "") -> dict[Operation, str]:
    """Return the full name of each operation of a step: ``loop/body/name`` for one inside a loop."""
    found: dict[Operation, str] = {}
    for operation in operations:
        found[operation] = path + operation.name
        for region in operation.op.regions:
            found.update(full_names(region.operations, f"{path}{operation.name}/{region.name}/"))
    return found


__all__ = ["DeviceRunStatistics", "MachineStatistics", "Spent", "Timed", "full_names", "note_spent"]
