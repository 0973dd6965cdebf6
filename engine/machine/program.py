"""`MachineProgram`: a step that spans devices, placed, lowered, cut and printed."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from functools import cache, partial
from typing import Any, ClassVar, Self

import numpy as np

from ..common.blas import on_one_thread
from ..common.logs import DEBUG, is_logged, log
from ..common.machine_profile import machine_profile
from ..common.quick_dataclass import dataclass
from ..control_flow.while_loop import While
from ..devices.cuda import check_gpus
from ..graph.graph import Graph, Operation, Parameter
from ..graph.spec import Spec, TensorSpec
from ..graph.state.variable import OwnMemory
from ..graph.tensor import Symbol
from ..lower.arrivals import delay_arrivals
from ..lower.cluster import cluster
from ..lower.cut import cut
from ..lower.lowering import Lowering
from ..lower.narrowing import narrow, read_at_home
from ..lower.nodes import Machine, Node
from ..lower.raw import contains_raw, lower_raw, with_back_edges
from ..lower.row_writes import read_with_parts
from ..lower.scheduling import scheduling_of
from ..lower.updates import keep_updates_together
from ..ops.base import Constant
from ..ops.containers.tensor_arrays import ArrayRead
from ..ops.text.escape import NumpyFunction
from ..passes.framework.prepare import Step as PreparedStep
from ..passes.framework.prepare import prepare
from ..passes.framework.prune import kinds_of, needed_operations
from ..passes.framework.switches import turned_off
from ..passes.memory.memory_budget import memory_budget
from ..passes.memory.storage import is_fresh
from ..place.constraints import check_step
from ..place.costs import CostModel, costs_of_process
from ..place.devices import Device, declaration, list_devices, steps_are_measured
from ..place.kernels import all_operations as needed_inside
from ..place.kernels import is_split as can_be_split
from ..place.placement import Placement, place
from ..queues.attempts import WaitingOp
from ..queues.writing import Writing, hold_interrupts, locks_of
from ..runtime import numerics
from ..runtime.analyses import kernels_of
from ..runtime.code import compiled
from ..runtime.deep_calls import FRAMES_OF_PROGRAM, calls_under_way, deep_calls, too_deep_of
from ..runtime.errors import annotate, evaluated
from ..runtime.printer import Printer
from ..runtime.program import copied_value, fusion_rule_of, listed_line, needs_whole_cores
from ..runtime.timing import note_compiled, now
from ..runtime.writes import assigned_values, touched_variables, written_variables
from ..tracing import active
from .engines import Engine, WorkerEngine
from .printing import MachinePrinter
from .statistics import MachineStatistics, Timed, full_names
from .step import Step

Assign = Callable[[Sequence[Operation], Sequence[Symbol]], Mapping[Operation, str]]
_LONG_ALONE = 0.01  # seconds of an operation that a task with one device runs on a thread


@dataclass
class BuiltStep(PreparedStep):
    """A step with primitives built by hand, which runs as it was built.

    Attributes:
        places: the device of each operation.
    """

    places: Mapping[Operation, str] = field(default_factory=dict[Operation, str])


class MachineProgram:
    """One pruned step on several devices.

    Attributes:
        step_type: what runs it.
        is_shared: whether other steps run at the same time, which write the same variables, and for which what runs has
            to be left: then Python functions run on threads, where a step has several devices.

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
        lossy: pairs of devices between which 32-bit floats travel as bfloat16; by default those that were declared.
        swaps: whether histories may move to the host; by default, if a loop says so.
        guard: check what every operation gives for NaN and infinity. (A program without does so too while
            `enable_check_numerics` holds, by way of a second one.)
        prepared: the step, where it was prepared already (`prepared_step`).
        of: the program in whose place this one runs; what it does counts as done by that one.
    """

    step_type: ClassVar[type[Step]] = Step
    is_shared: ClassVar[bool] = False

    def __init__(
        self,
        graph: Graph,
        targets: Sequence[Symbol | Operation],
        feeds: Sequence[Symbol],
        specs: Sequence[Spec] | None = None,
        *,
        exact: bool = False,
        assign: Assign | None = None,
        seed: int | None = None,
        clusters: bool = True,
        parallel_iterations: int | None = None,
        lossy: Sequence[tuple[str, str]] | None = None,
        swaps: bool | None = None,
        guard: bool = False,
        prepared: PreparedStep | None = None,
        of: MachineProgram | None = None,
    ) -> None:
        began = now()
        lossy = declaration.lossy if lossy is None else lossy
        self.statistics = MachineStatistics() if of is None else of.statistics
        self.devices = {device.name: device for device in list_devices()}
        self._origin = (graph, targets, feeds, specs)
        self._options: dict[str, Any] = {
            "assign": assign,
            "seed": seed,
            "clusters": clusters,
            "parallel_iterations": parallel_iterations,
            "lossy": lossy,
            "swaps": swaps,
        }
        self._exact = exact
        self._guards = guard
        self._budget, self._turned_off = memory_budget(), turned_off()
        self._others: dict[Any, MachineProgram] = {}  # by guard, budget and passes
        prepared = prepared or prepared_step(graph, targets, feeds, specs, exact, assign)
        self.machine = lowered(prepared, self.devices, clusters, parallel_iterations, lossy, self.is_shared)
        self.swaps = (_swaps(self.machine) or self._budget is not None) if swaps is None else swaps
        assigned = assigned_values(prepared.operations)
        self._is_fresh = [is_fresh(tensor) and tensor not in assigned for tensor in prepared.fetches]
        self.seed = seed
        self._prepared = prepared
        self._traced: MachineProgram | None = None
        self._has_clocks = False
        self._long: set[Node] = set()  # what turned out to run for long
        check_gpus(self.devices.values())
        whole = not exact and needs_whole_cores(prepared.operations, {})
        self._threads = on_one_thread(contextlib.nullcontext) if whole else contextlib.nullcontext
        self._locks = locks_of(written_variables(prepared.operations))
        self._variables = touched_variables(prepared.operations)
        self._idle: list[Step] = []
        self._lock = threading.Lock()  # of what is printed, and of the steps that are made of it
        self._print(prepared)
        self._owned = OwnMemory(effect for operation in graph.operations for effect in operation.effects)
        note_compiled(began, self._describe)

    def may_leave(self, node: Node) -> bool:
        """Test whether a node may run on a thread."""
        return len(self.machine.devices) > 1

    def _devices_here(self) -> Collection[str]:
        """Return the devices that are stepped in this process."""
        return self.machine.devices

    def _print(self, prepared: PreparedStep) -> None:
        printer = Printer(guard=self._check) if self._guards else Printer(kernels_of(prepared.operations, self._exact))
        printer.rows_in_place, printer.shares_variables = self.machine.row_writes, True
        printer.bindings["copied"] = copied_value
        printer.bindings["stats"] = self.statistics
        several = len(self.machine.devices) > 1

        def way(node: Node) -> str:
            if may_wait(node):
                return "wait"
            if self._own_memory(node) or node.operations[0].op.takes_long:
                return "apart"
            is_long = node.seconds > (machine_profile().long_seconds if several else _LONG_ALONE)
            is_long = is_long or node in self._long or (self.is_shared and _calls_python(node))
            return "apart" if is_long and self.may_leave(node) else "here"

        def by_channel(receive: Node) -> bool:
            assert receive.peer is not None, f"{receive!r} has no Send"
            if self._own_memory(receive.peer):
                return True
            return self._own_memory(receive) and not _is_number(receive)

        def has_clock(node: Node) -> bool:
            return not self._own_memory(node)  # others record themselves what they ran

        clocks = has_clock if self._has_clocks else None
        here = self._devices_here()
        printing = MachinePrinter(
            self.machine, printer, way, by_channel, clocks=clocks, by_run=self._is_on_gpu, devices=here
        )
        source = printing.print()
        code = compiled(source, "machine", self, printer.rare)
        apart = {node for node in self.machine.nodes if node.kind == "op" and way(node) != "here"}
        with self._lock:  # other threads make steps of it
            self.printing, self.source, self._code, self.filename = printing, source, code, code.filename
            self._functions = {name: key for key, name in printing.names.items()}
            self._apart = apart
            self._recursions = printer.bodies.labels
            self._names = full_names(prepared.operations)
            self.origins, self._bindings = printer.origins, printer.bindings
            self._idle.clear()

    def _is_on_gpu(self, node: Node) -> bool:
        device = self.devices.get(str(node.device))
        return device is not None and device.kind == "gpu"

    def _own_memory(self, node: Node) -> bool:
        device = self.devices.get(str(node.device))
        return device is not None and device.has_own_memory

    # --- running ----------------------------------------------------------------------------------------------------

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run the step on checked feeds; return the fetches in order."""
        if numerics.looks_at_operations() and not self._guards:
            return self._other(guard=True)(*values)
        if memory_budget() != self._budget or turned_off() is not self._turned_off:
            return self._other(self._guards)(*values)
        if active.recorder is not None and not self._has_clocks:
            return self.with_clocks()(*values)
        self._owned.take_back()
        with self._lock:
            step = self._idle.pop() if self._idle else None
        step = step or self._make_step()
        self.statistics.start()
        self.statistics.latest = step
        if self._guards:
            for tensor, value in zip(self._origin[2], values, strict=True):
                numerics.check_fed(tensor.name, value)
        room = deep_calls(FRAMES_OF_PROGRAM) if self._recursions else contextlib.nullcontext()
        with np.errstate(all="ignore"), self._threads(), room:
            try:
                found = self._run_alone(step, values)
            except RecursionError as error:
                failure = too_deep_of(error, calls_under_way(error, self.filename, self._recursions))
            except Exception as error:
                self._annotate(error, step)
                raise
            else:
                return self._ended(step, found)
        raise failure from None  # without the traceback of a hundred thousand calls

    def _run_alone(self, step: Step, values: Sequence[Any]) -> list[Any]:
        """Run a step while no other one writes the same variables; an interrupt waits, where it writes any."""
        if not self._locks:
            self._compute_first_values()
            return self._run(step, values)
        with Writing(self._locks):
            hold_interrupts()
            self._compute_first_values()
            return self._run(step, values)

    def _compute_first_values(self) -> None:
        """Compute the values of variables that none had needed yet.

        Threads of devices read them. They would wait for the locks of variables that this thread holds meanwhile.
        """
        for variable in self._variables:
            if variable.first_value is not None:
                variable.stored_value()

    def _run(self, step: Step, values: Sequence[Any]) -> list[Any]:
        """Run a step, and time it if it is its turn."""
        measures = steps_are_measured()
        if not measures and not self.statistics.is_timed:
            return step.run(values)
        for engine in step.engines.values():
            engine.spent.clear()
        before = {device: engine.kernel_seconds for device, engine in step.engines.items()}
        step.spent = {}
        found = step.run(values)
        with self._lock:
            functions, apart = self._functions, self._apart
            was_printed_anew = step.blueprint is not self.printing.blueprint
        if was_printed_anew:  # by another thread, in the meantime
            return found
        timed = Timed(step, functions, apart, before)
        self.statistics.timed = timed.by_device()
        if measures:
            timed.record(self._names, self.devices, costs_of_process())
        step.spent = None
        self._note_long(timed)
        return found

    def _note_long(self, timed: Timed) -> None:
        """Run apart from now on what took long: Python functions, and what is not seen by shapes.

        The first run may have waited for kernels that were being compiled; only Python functions never do. A seed's
        order does not depend on the clock.
        """
        if len(self.machine.devices) < 2 or self.seed is not None:
            return
        is_first, least = self.statistics.runs == 1, machine_profile().long_measured_seconds
        found = {node for node, runs, seconds in timed.inside if seconds > least * runs}
        found = {node for node in found if not is_first or any(o.type == "numpy_function" for o in node.operations)}
        if found:
            self._long |= found
            self.print_again()

    def print_again(self) -> None:
        """Have what was noted as long run apart in the steps that begin from now on."""
        self._print(self._prepared)
        self._traced = None

    def _ended(self, step: Step, found: list[Any]) -> tuple[Any, ...]:
        """Return the fetched values of a run; none of them shares memory with the program's state."""
        self.statistics.note_ended(step)
        with self._lock:
            if step.blueprint is self.printing.blueprint:  # otherwise it was printed again meanwhile
                self._idle.append(step)
        return tuple(
            [value if fresh else copied_value(value) for value, fresh in zip(found, self._is_fresh, strict=True)]
        )

    def _other(self, guard: bool) -> MachineProgram:
        """Return the same step with the NaN guard, or by the memory budget and passes that hold now.

        What it does counts as done by this program.
        """
        key = (guard, memory_budget(), turned_off())
        found = self._others.get(key)
        if found is None:
            exact = self._exact or guard
            found = MachineProgram(*self._origin, **self._options, exact=exact, guard=guard, of=self)
            self._others[key] = found
        return found

    def _describe(self) -> dict[str, Any]:
        """Return the facts of the step for a trace."""
        targets = ", ".join(target.name for target in self._origin[1])
        return {"program": self.filename, "targets": targets, "devices": ", ".join(self.machine.devices)}

    def with_clocks(self) -> Self:
        """Return the same machine, printed with clocks, for traces. What it does counts as done by this program."""
        traced: Any = self._traced
        if traced is None:
            traced = copy.copy(self)
            traced._has_clocks, traced._idle = True, []
            traced._print(self._prepared)
            self._traced = traced
        return traced

    def _check(self, operation: Operation, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        given, made = ([_on_host(value) for value in values] for values in (inputs, outputs))
        numerics.check_results(operation, self.statistics.runs, given, made)

    @property
    def step_asked_for(self) -> tuple[Graph, Sequence[Symbol | Operation], Sequence[Symbol], Sequence[Spec] | None]:
        """Return the graph, the targets, the feeds and their specs, as they were given."""
        return self._origin

    def listing(self, lines: bool = True) -> str:
        """Return the source by partition.

        Args:
            lines: name behind each line which operation it computes, and which line of the user's built that.
        """
        parts: dict[str, list[str]] = {device: [] for device in ("", *self.machine.devices)}
        part = parts[""]
        for number, text in enumerate(self.source.splitlines(), 1):
            if text.startswith("def "):
                node = self.printing.nodes.get(text[4:].partition("(")[0])
                part = parts["" if node is None else str(node.device)]
            origin = self.origins.get(number) if lines else None
            part.append(listed_line(text, origin))
        texts = ["\n".join([f"# --- {device or 'any device'} ---", *part]) for device, part in parts.items() if part]
        return "\n\n".join([text.rstrip() for text in texts]) + "\n"

    def _make_step(self) -> Step:
        with self._lock:
            printing, code, bindings = self.printing, self._code, self._bindings
        engines = self._make_engines()
        made = (printing.blueprint, printing.names, code, bindings, engines, self.seed)
        return self._make_traced_step(made, printing.nodes) if self._has_clocks else self.step_type(*made)

    def _make_traced_step(self, made: Sequence[Any], nodes: Mapping[str, Node]) -> Step:
        from .tracing import TracedStep

        return TracedStep(*made, nodes=nodes)

    def _make_engines(self) -> dict[str, Engine]:
        targets = [node.target for node in self.machine.nodes if node.target]
        devices = [self.devices[name] for name in dict.fromkeys([*self.printing.blueprint.devices, *targets])]
        streams = [device for device in devices if device.has_own_memory]
        engines: dict[str, Engine] = {device.name: WorkerEngine() for device in devices if not device.has_own_memory}
        if streams:
            from .stream_engine import StreamEngine, make_engines, variables_on

            engine_type = StreamEngine
            if self._has_clocks:
                from .tracing import TracedStreamEngine

                engine_type = TracedStreamEngine
            made = make_engines(streams, self.swaps, engine_type, self._budget)
            for name, engine in made.items():
                engine.variables = variables_on(self.machine, name)
            engines |= made
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
        origin = self.origins.get(found.tb_lineno)
        function, iteration = step.current
        node = self.printing.nodes.get(function.__name__)
        if origin is None or node is None:
            return
        scope = found.tb_frame.f_globals | found.tb_frame.f_locals
        values = [scope[name] for name in origin.arguments if name in scope]
        loops = [(loop, evaluated(count, scope)) for loop, count in origin.loops]
        loops += [(plan.operation, number) for plan, number in iteration.path()]
        annotate(error, origin.operation, values, loops, device=node.target or node.device)


def _on_host(value: Any) -> Any:
    """Return an array of a GPU, copied to the host."""
    return value.get() if hasattr(value, "__cuda_array_interface__") else value


def lowered(
    prepared: PreparedStep,
    devices: Mapping[str, Device],
    clusters: bool = True,
    parallel_iterations: int | None = None,
    lossy: Sequence[tuple[str, str]] = (),
    is_shared: bool = False,
) -> Machine:
    """Return the machine form of a placed step."""
    host = next(name for name, device in devices.items() if device.kind == "cpu")
    built = prepared if isinstance(prepared, BuiltStep) else None
    targets = scheduling_of(devices)

    def own_device(operation: Operation) -> str:
        return (operation.device if built is None else built.places.get(operation)) or host

    @cache
    def computing_inside(operation: Operation) -> list[Operation]:
        return [each for each in needed_inside([operation]) if not isinstance(each.op, (Constant, Parameter))]

    @cache
    def devices_inside(operation: Operation) -> frozenset[str]:
        inside = computing_inside(operation)
        return frozenset([own_device(each) for each in inside if each is not operation and not each.op.regions])

    def device_of(operation: Operation) -> str:
        """Return the device of an operation.

        For a loop or branch that is run as a whole it is where all that is inside was placed.
        """
        used = devices_inside(operation) if can_be_split(operation.op) else ()
        return next(iter(used)) if len(used) == 1 else own_device(operation)

    def has_own_memory(device: str) -> bool:
        return devices[device].has_own_memory

    def is_split(operation: Operation) -> bool:
        used = devices_inside(operation)
        waits = any(isinstance(each.op, WaitingOp) or targets(each) for each in computing_inside(operation))
        return waits or len(used) > 1 or any(has_own_memory(device) for device in used)

    if built:
        machine = lower_raw(prepared.operations, prepared.feeds, prepared.fetches, device_of, host)
    else:
        lowering = Lowering(device_of, is_split, host, targets, has_own_memory)
        machine = lowering.run(prepared.operations, prepared.feeds, prepared.fetches)
        read_at_home(machine, has_own_memory)
        narrow(machine, has_own_memory)
        read_with_parts(machine, has_own_memory)
    if parallel_iterations is not None:
        for frame in machine.frames:
            frame.parallel_iterations = parallel_iterations
    cut(machine, has_own_memory, lossy)
    _estimate(machine, devices)
    if clusters:
        stands_alone = partial(_stands_alone, devices=devices, is_shared=is_shared)
        updates = {*keep_updates_together(machine, stands_alone), *machine.row_updates} if is_shared else ()
        cluster(machine, lambda node: node not in updates and stands_alone(node))
    _add_latencies(machine, devices)
    delay_arrivals(machine, devices)
    return machine


def _add_latencies(machine: Machine, devices: Mapping[str, Device]) -> None:
    """Add the latency of a kernel to the seconds of each node of operations."""
    for node in machine.nodes:
        if node.kind == "op" and node.seconds:
            node.seconds += devices[str(node.device)].kernel_latency


def _estimate(machine: Machine, devices: Mapping[str, Device]) -> None:
    """Set the seconds of each node of operations, without the latency of a kernel."""
    costs = CostModel()
    for node in machine.nodes:
        if node.kind == "op":
            device = devices[str(node.device)]
            inside = [each for operation in node.operations for each in needed_inside([operation])]
            latency = device.kernel_latency
            node.seconds = sum([max(0.0, costs.seconds(each, device) - latency) for each in inside])


def _stands_alone(node: Node, devices: Mapping[str, Device], is_shared: bool) -> bool:
    """Test whether a node is long on a CPU or waits for others.

    So is a read of a history, which may have to come from the host, and Python's code in a shared step.
    """
    if may_wait(node) or node.operations[0].op.takes_long or (is_shared and _calls_python(node)):
        return True
    if devices[str(node.device)].has_own_memory:
        return isinstance(node.operations[0].op, ArrayRead)
    return node.seconds > machine_profile().long_seconds


def may_wait(node: Node) -> bool:
    """Test whether a node is an operation that may have to wait for others."""
    return isinstance(node.operations[0].op, WaitingOp)


def _calls_python(node: Node) -> bool:
    """Test whether a node is a Python function, whose time is not seen before it has run."""
    return isinstance(node.operations[0].op, NumpyFunction)


def _is_number(node: Node) -> bool:
    """Test whether a node gives a number of rank 0, which travels with the kernels that use it."""
    (spec,) = node.specs
    return isinstance(spec, TensorSpec) and spec.shape == () and spec.dtype.kind in "biufc"


def _swaps(machine: Machine) -> bool:
    """Test whether a loop's saved state may move to the host."""
    return any(isinstance(f.operation.op, While) and f.operation.op.swap_memory for f in machine.frames if f.operation)


def place_by_cost(
    operations: Sequence[Operation],
    feeds: Sequence[Symbol],
    like: Placement | None = None,
    costs: CostModel | None = None,
) -> dict[Operation, str]:
    """Return the devices of a step's operations, by the placer; those of another placement stay, where it has the same.

    Several devices are used where that is asked for, and where it saves more than running operations one by one costs.
    """
    placement = place(operations, feeds, costs=costs, like=like).if_it_pays(machine_profile().dispatch_seconds)
    placement = placement.together()
    if is_logged("placement"):
        counts = Counter(device.name for device in placement.values())
        listed = ", ".join(f"{count} on {name}" for name, count in counts.items())
        log("placement", DEBUG, "%d operations were placed: %s\n%s", len(placement), listed, placement)
    return {operation: device.name for operation, device in placement.items()}


def prepared_step(
    graph: Graph,
    targets: Sequence[Symbol | Operation],
    feeds: Sequence[Symbol],
    specs: Sequence[Spec] | None = None,
    exact: bool = False,
    assign: Assign | None = None,
) -> PreparedStep:
    """Place a step on its devices, ready to be lowered, or to be printed for one device. For arguments see above.

    Raises:
        PlacementError: what was asked for can't be kept.
    """
    needed = needed_operations(graph, targets, feeds)
    assign = assign or place_by_cost
    if contains_raw(needed):
        operations = with_back_edges(needed, feeds)
        running = dict.fromkeys([*[tensor.operation for tensor in feeds], *operations])
        places = assign(sorted(running, key=lambda operation: operation.index), feeds)
        fetches = [target for target in targets if isinstance(target, Symbol)]
        return BuiltStep(operations, list(feeds), fetches, True, frozenset(kinds_of(operations)), places)
    check_step(graph, targets, feeds)
    rule = None if exact else fusion_rule_of(graph)
    budget = memory_budget()
    can_swap = any(device.has_own_memory for device in list_devices())
    return prepare(graph, targets, feeds, specs, rule, not exact, assign, budget, can_swap)
