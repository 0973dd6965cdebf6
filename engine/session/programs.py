"""Programs of steps: one compiled program where a step stays on one CPU, and otherwise the dataflow machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..common.quick_dataclass import dataclass
from ..control_flow.scheduling import Scheduled
from ..graph.graph import Graph, Operation, Parameter, Placeholder
from ..graph.spec import Spec
from ..graph.tensor import Symbol
from ..ops.base import Constant
from ..ops.internal.raw import RawOp
from ..place.devices import has_one_device, list_devices
from ..place.kernels import all_operations, is_split
from ..place.placement import Placement
from ..runtime.program import Program
from ..runtime.variants import Variants
from .targets import Remote

if TYPE_CHECKING:
    from ..machine.gpu.program import GpuProgram
    from ..machine.program import MachineProgram
_EVERYWHERE = (Constant, Parameter, Placeholder)


@dataclass(frozen=True, eq=False)
class Schedule:
    """The way in which steps that span devices are run.

    Attributes:
        placement: taken over for operations that it names; others are placed by cost.
        seed: by which the order is drawn in which what is ready is run; None for the order in which it gets ready.
        remote: runs the steps elsewhere.
        lossy: there, pairs of tasks or devices between which 32-bit floats travel as bfloat16.
    """

    placement: Placement | None = None
    seed: int | None = None
    remote: Remote | None = None
    lossy: tuple[tuple[str, str], ...] = ()


AS_IT_COMES = Schedule()


def make_program(
    graph: Graph,
    targets: Sequence[Symbol | Operation],
    feeds: Sequence[Symbol],
    specs: Sequence[Spec] | None = None,
    schedule: Schedule = AS_IT_COMES,
) -> Program | MachineProgram | GpuProgram:
    """Return the program of a step, for the devices that are declared now.

    Args:
        graph: the graph to run.
        targets: tensors whose values are returned, and operations that run for their effects.
        feeds: the tensors whose values are passed in.
        specs: the specs of those values, if more is known than the graph says.
        schedule: where and in which order it runs, if it spans devices.

    Raises:
        PlacementError: what was asked for (`ab.device`, a placement) can't be kept.
        GpuUnavailableError: a GPU that is declared can't be used, whether or not the step needs it.
    """
    if schedule.remote is not None:
        return schedule.remote.program(graph, targets, feeds, specs, schedule.placement, schedule.lossy)
    if has_one_device() and not any(isinstance(operation.op, RawOp) for operation in graph.operations):
        return Program(graph, targets, feeds, specs)
    from ..devices.cuda import check_gpus
    from ..machine.gpu.host_part import gpu_of_step  # these load on first use
    from ..machine.gpu.program import GpuProgram
    from ..machine.program import BuiltStep, MachineProgram, place_by_cost, prepared_step

    assign = partial(place_by_cost, like=schedule.placement)
    step = prepared_step(graph, targets, feeds, specs, assign=assign)
    if not isinstance(step, BuiltStep) and _is_on_one_cpu(step.operations):
        check_gpus(list_devices())  # what found no place on a GPU that is missing does not run elsewhere unnoticed
        return Program(graph, targets, feeds, specs, prepared=step)
    machine = partial(MachineProgram, graph, targets, feeds, specs, assign=assign, seed=schedule.seed)
    if schedule.seed is None and (device := gpu_of_step(step, list_devices())) is not None:
        return GpuProgram(graph, targets, feeds, specs, step, device, machine)
    return machine(prepared=step)


def make_variants(
    graph: Graph,
    targets: Sequence[Symbol | Operation],
    feeds: Sequence[Symbol],
    schedule: Schedule = AS_IT_COMES,
) -> Variants:
    """Return the programs of a step, one for each combination of fed shapes, made when they are needed."""
    make: Any = make_program if schedule is AS_IT_COMES else partial(make_program, schedule=schedule)
    return Variants(graph, targets, feeds, make)


def _is_on_one_cpu(operations: Sequence[Operation]) -> bool:
    """Test whether all that computes does so on the same CPU. What is fed or constant is wherever it is needed."""
    running = [each for each in all_operations(list(operations)) if not isinstance(each.op, _EVERYWHERE)]
    if any(isinstance(operation.op, Scheduled) for operation in running):
        return False  # that is decided at run time
    devices = {operation.device for operation in running if not is_split(operation.op)}
    return not devices or (len(devices) == 1 and devices.pop().startswith("cpu"))
