"""`MachineProgram`: a step that spans devices, placed, lowered, cut and printed."""

from __future__ import annotations

import linecache
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from ..control_flow.while_loop import While
from ..graph.graph import Graph, Operation, Parameter
from ..graph.spec import Spec
from ..graph.tensor import Tensor
from ..lower.cluster import cluster
from ..lower.cut import cut
from ..lower.lowering import Lowering
from ..lower.nodes import Machine, Node
from ..ops.fused import Fused
from ..ops.tensor_arrays import ArrayRead
from ..passes.prepare import Step as PreparedStep
from ..passes.prepare import prepare
from ..passes.prune import all_operations
from ..place.costs import CostModel
from ..place.devices import Device, list_devices
from ..place.kernels import all_operations as needed_inside
from ..place.placement import place
from ..queues.attempts import WaitingOp
from ..runtime.errors import annotate
from ..runtime.printer import Printer
from ..runtime.program import Statistics, copied_value
from ..runtime.storage import is_fresh
from .engines import Engine, WorkerEngine
from .printing import MachinePrinter
from .step import Step

Assign = Callable[[Sequence[Operation], Sequence[Tensor]], Mapping[Operation, str]]
LONG = 1e-4  # seconds; what runs for longer on a CPU leaves the loop, where there are other devices
_numbers = count(1)


class MachineProgram:
    """One pruned step on several devices.

    Args:
        graph: the graph to run.
        targets: tensors whose values are returned, and operations that run for their effects.
        feeds: the tensors whose values are passed in.
        specs: the specs of those values, if more is known than the graph says.
        exact: only rewrites that keep the interpreter's bits.
        assign: where operations run; by default placed by cost.
        seed: the order in which what is ready is run is drawn by this seed; the same seed repeats it.
        clusters: join operations that can start together into one node.
        parallel_iterations: instead of what loops say.
        lossy: pairs of devices between which 32-bit floats travel as bfloat16.
        swaps: whether histories may move to the host; by default, if a loop says so.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Sequence[Tensor | Operation],
        feeds: Sequence[Tensor],
        specs: Sequence[Spec] | None = None,
        *,
        exact: bool = False,
        assign: Assign | None = None,
        seed: int | None = None,
        clusters: bool = True,
        parallel_iterations: int | None = None,
        lossy: Sequence[tuple[str, str]] = (),
        swaps: bool | None = None,
    ) -> None:
        self.statistics = Statistics()
        self.devices = {device.name: device for device in list_devices()}
        rule = None if exact else _fusion_rule()
        prepared = prepare(graph, targets, feeds, specs, rule, reassociate=not exact, assign=assign or place_by_cost)
        self.machine = lowered(prepared, self.devices, clusters, parallel_iterations, lossy)
        self.swaps = _swaps(self.machine) if swaps is None else swaps
        self._is_fresh = [is_fresh(tensor) for tensor in prepared.fetches]
        self.seed = seed
        self._print(prepared)
        self._idle: list[Step] = []
        self._lock = threading.Lock()

    def _print(self, prepared: PreparedStep) -> None:
        printer = _kernel_printer(prepared.operations)
        printer.bindings["copied"] = copied_value
        printer.bindings["stats"] = self.statistics
        printer.bodies.start(prepared.operations)
        several = len(self.machine.devices) > 1

        def way(node: Node) -> str:
            if may_wait(node):
                return "wait"
            if self._own_memory(node) or (several and node.seconds > LONG):
                return "apart"
            return "here"

        def by_channel(receive: Node) -> bool:
            assert receive.peer is not None, f"{receive!r} has no Send"
            return self._own_memory(receive) or self._own_memory(receive.peer)

        self.printing = MachinePrinter(self.machine, printer, way, by_channel)
        self.source = self.printing.print()
        self.filename = f"<anabranch machine {next(_numbers)}>"
        self._origins = printer.origins
        self._bindings = printer.bindings
        self._code = compile(self.source, self.filename, "exec")
        linecache.cache[self.filename] = (len(self.source), None, self.source.splitlines(True), self.filename)
        weakref.finalize(self, linecache.cache.pop, self.filename, None).atexit = False

    def _own_memory(self, node: Node) -> bool:
        device = self.devices.get(str(node.device))
        return device is not None and device.kind != "cpu"

    # --- running ----------------------------------------------------------------------------------------------------

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run the step on checked feeds; returns the fetches in order."""
        with self._lock:
            step = self._idle.pop() if self._idle else None
        step = step or self._make_step()
        self.statistics.start()
        with np.errstate(all="ignore"):
            try:
                found = step.run(values)
            except Exception as error:
                self._annotate(error, step)
                raise
        with self._lock:
            self._idle.append(step)
        return tuple(
            [value if fresh else copied_value(value) for value, fresh in zip(found, self._is_fresh, strict=True)]
        )

    def _make_step(self) -> Step:
        engines = self._make_engines()
        printing = self.printing
        return Step(printing.blueprint, printing.names, self._code, self._bindings, engines, self.seed)

    def _make_engines(self) -> dict[str, Engine]:
        devices = [self.devices[name] for name in self.machine.devices]
        streams = [device for device in devices if device.kind != "cpu"]
        engines: dict[str, Engine] = {device.name: WorkerEngine() for device in devices if device.kind == "cpu"}
        if streams:
            from .stream_engine import make_engines

            engines |= make_engines(streams, self.swaps)
        return engines

    def _annotate(self, error: Exception, step: Step) -> None:
        """Note on an error the operation, its device, and the iteration of each loop around it."""
        traceback, found = error.__traceback__, None
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == self.filename:
                found = traceback
            traceback = traceback.tb_next
        if found is None or step.current is None:
            return
        origin = self._origins.get(found.tb_lineno)
        function, iteration = step.current
        node = self.printing.nodes.get(function.__name__)
        if origin is None or node is None:
            return
        scope = found.tb_frame.f_globals | found.tb_frame.f_locals
        values = [scope[name] for name in origin.arguments if name in scope]
        loops = [(plan.operation, number) for plan, number in iteration.path()]
        annotate(error, origin.operation, values, loops, device=node.device)


def lowered(
    prepared: PreparedStep,
    devices: Mapping[str, Device],
    clusters: bool = True,
    parallel_iterations: int | None = None,
    lossy: Sequence[tuple[str, str]] = (),
) -> Machine:
    """The machine form of a placed step."""
    host = next(name for name, device in devices.items() if device.kind == "cpu")

    def device_of(operation: Operation) -> str:
        return operation.device or host

    def has_own_memory(device: str) -> bool:
        return devices[device].kind != "cpu"

    def is_split(operation: Operation) -> bool:
        inside = [each for each in needed_inside([operation]) if not isinstance(each.op, Parameter)]
        used = {device_of(each) for each in inside if each is not operation and not each.op.regions}
        waits = any(isinstance(each.op, WaitingOp) for each in inside)
        return waits or len(used) > 1 or any(has_own_memory(device) for device in used)

    machine = Lowering(device_of, is_split, host).run(prepared.operations, prepared.feeds, prepared.fetches)
    if parallel_iterations is not None:
        for frame in machine.frames:
            frame.parallel_iterations = parallel_iterations
    cut(machine, has_own_memory, lossy)
    costs = CostModel()

    def estimate(node: Node) -> None:
        device = devices[str(node.device)]
        inside = [each for operation in node.operations for each in needed_inside([operation])]
        latency = device.kernel_latency
        node.seconds = sum([max(0.0, costs.seconds(each, device) - latency) for each in inside])

    def stands_alone(node: Node) -> bool:
        """What is long on a CPU or waits for others, and reads of histories, which may have to come from the host."""
        if may_wait(node):
            return True
        if has_own_memory(str(node.device)):
            return isinstance(node.operations[0].op, ArrayRead)
        return node.seconds > LONG

    nodes = [node for node in machine.nodes if node.kind == "op"]
    for node in nodes:
        estimate(node)
    if clusters:
        cluster(machine, stands_alone)
    for node in machine.nodes:
        if node.kind == "op" and node.seconds:
            node.seconds += devices[str(node.device)].kernel_latency
    return machine


def may_wait(node: Node) -> bool:
    """Whether a node is an operation that may have to wait for what others do."""
    return isinstance(node.operations[0].op, WaitingOp)


def _swaps(machine: Machine) -> bool:
    """Whether a loop's saved state may move to the host."""
    return any(isinstance(f.operation.op, While) and f.operation.op.swap_memory for f in machine.frames if f.operation)


def place_by_cost(operations: Sequence[Operation], feeds: Sequence[Tensor]) -> dict[Operation, str]:
    """Where the operations of a step run, by the placer."""
    return {operation: device.name for operation, device in place(operations, feeds).items()}


def _fusion_rule() -> Any:
    from ..runtime.kernels.rule import fusion_rule  # llvmlite loads here, on first use

    return fusion_rule()


def _kernel_printer(operations: Sequence[Operation]) -> Printer:
    fused = [operation for operation in all_operations(operations) if isinstance(operation.op, Fused)]
    if not fused:
        return Printer()
    from ..runtime.kernels.rule import bind_kernels

    return Printer(bind_kernels(fused))
