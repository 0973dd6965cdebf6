"""`GpuProgram`: a step that stays on one GPU, printed as one function over its arrays.

Loops and branches are Python's, as in a program of CPUs (`Program`). The thread that drives the GPU calls the function:
it launches one kernel after the other and waits for none, unless a loop or branch asks for a value. Variables stay on
the GPU between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.quick_dataclass import dataclass
from ...devices.dispatcher import NoRoomError, dispatcher_of
from ...devices.gpu import GpuMemory
from ...devices.memory import DeviceMemoryError
from ...devices.transfer import Parts
from ...graph.graph import Graph, Operation
from ...graph.op import as_scalar_or_array, is_array
from ...graph.spec import Spec
from ...graph.state.variable import Variable
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ...passes.framework.prepare import Step
from ...passes.framework.switches import turned_off
from ...passes.memory.memory_budget import memory_budget
from ...place.devices import Device
from ...queues.writing import Writing, hold_interrupts, locks_of
from ...runtime import numerics
from ...runtime.code import compiled
from ...runtime.errors import annotate_from, clear
from ...runtime.printed import Origin
from ...runtime.printer import Printer
from ...runtime.program import copied_value, listed_line
from ...runtime.timing import note_compiled, now
from ...runtime.writes import touched_variables, written_variables
from ...tracing import active
from ..statistics import MachineStatistics
from .host_part import host_part
from .kernels import GpuKernels, travels
from .variables import OnGpu, StepVariables, found_values, keep_uploaded

if TYPE_CHECKING:
    from ..program import MachineProgram


@dataclass(frozen=True, eq=False)
class _Printed:
    """A printed function.

    Attributes:
        source: its code, in a file of the name `filename`.
        origins: by line, the operation that is computed there.
        bindings: the globals.
        function: what was compiled.
    """

    source: str
    filename: str
    origins: Mapping[int, Origin]
    bindings: dict[str, Any]
    function: Callable[..., Any]


class GpuProgram:
    """One pruned step on a GPU.

    Args:
        graph, targets, feeds, specs: see `MachineProgram`.
        prepared: the step, with its devices.
        device: the GPU on which it stays (`gpu_of_step`).
        machine: makes the program that runs in this one's place while a trace is recorded, every operation is checked
            for NaN, or other passes or another memory budget hold.

    Attributes:
        statistics: of its runs.
        source: the printed code.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Sequence[Symbol | Operation],
        feeds: Sequence[Symbol],
        specs: Sequence[Spec] | None,
        prepared: Step,
        device: Device,
        machine: Callable[[], MachineProgram],
    ) -> None:
        began = now()
        self.statistics = MachineStatistics()
        self.device = device
        self._origin = (graph, targets, feeds, specs)
        self._budget, self._turned_off = memory_budget(), turned_off()
        self._make_machine = machine
        self._machine: MachineProgram | None = None
        self._dispatcher = dispatcher_of(device.number, device.memory_limit)
        self._variables = touched_variables(prepared.operations)
        self._locks = locks_of(written_variables(prepared.operations))
        self._values = StepVariables()
        self._kernels = GpuKernels(self._dispatcher, self._values)
        self._print(prepared)
        note_compiled(began, self._describe)

    def _print(self, prepared: Step) -> None:
        early = host_part(prepared)
        lifted = dict.fromkeys(each for each in early if not isinstance(each.op, Constant))
        late = [each for each in prepared.operations if each not in lifted]
        taken = {tensor for operation in late for tensor in operation.inputs}.union(prepared.fetches)
        given = [tensor for operation in lifted for tensor in operation.outputs if tensor in taken]
        self._host = self._printed(early, prepared.feeds, given, "host") if early else None
        printed = self._printed(late, [*prepared.feeds, *given], prepared.fetches, "gpu", by_run=True)
        self.source, self.origins, self.filename = printed.source, printed.origins, printed.filename
        self._bindings = printed.bindings
        self._step = self._kernels.function_of(printed.function)

    def _printed(
        self,
        operations: Sequence[Operation],
        feeds: Sequence[Symbol],
        fetches: Sequence[Symbol],
        kind: str,
        by_run: bool = False,
    ) -> _Printed:
        printer = Printer()
        printer.by_run = by_run
        printer.bindings["copied"] = copied_value
        printer.bindings["stats"] = self.statistics
        source = printer.print_step(operations, feeds, fetches, set())
        code = compiled(source, kind, self)
        scope = code.run_in(dict(printer.bindings))
        return _Printed(source, code.filename, printer.origins, printer.bindings, scope["step"])

    # --- running ----------------------------------------------------------------------------------------------------

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run the step on checked feeds; return the fetches in order."""
        if (
            active.recorder is not None
            or numerics.looks_at_operations()
            or memory_budget() != self._budget
            or turned_off() is not self._turned_off
        ):
            return self.on_machine()(*values)
        self.statistics.start()
        if not self._locks:
            return self._run(values)
        with Writing(self._locks):
            hold_interrupts()
            return self._run(values)

    def _run(self, values: Sequence[Any]) -> tuple[Any, ...]:
        if self._host is not None:
            values = (*values, *self._run_on_host(self._host, values))
        held = found_values(self._variables, self._dispatcher)
        fetched, found, written = self._dispatcher.call(lambda: self._run_on_gpu(values, held))
        for variable, value in held.items():
            self._keep(variable, value, found[variable], variable in written)
        return fetched

    def _run_on_host(self, printed: _Printed, values: Sequence[Any]) -> tuple[Any, ...]:
        try:
            with np.errstate(all="ignore"):
                return printed.function(*values)
        except Exception as error:
            clear(annotate_from(error, printed.filename, printed.origins))
            raise

    def _run_on_gpu(self, values: Sequence[Any], held: dict[Variable, Any]) -> tuple[Any, Any, Any]:
        """Run the step in the thread that drives the GPU.

        Returns:
            The fetched values, the values of all variables, and the variables that were written.
        """
        variables = self._values
        variables.begin({variable: self._uploaded(value) for variable, value in held.items()})
        try:
            with np.errstate(all="ignore"):  # of scalars, which stay with the host
                results = self._step(*[value if travels(value) else self._uploaded(value) for value in values])
            return tuple([self._to_host(value) for value in results]), variables.values, variables.written
        except NoRoomError as error:
            clear(annotate_from(error, self.filename, self.origins, self.device.name))
            raise self._out_of_memory(error) from None
        except Exception as error:
            clear(annotate_from(error, self.filename, self.origins, self.device.name))
            raise
        finally:
            variables.begin({})

    def _out_of_memory(self, error: NoRoomError) -> DeviceMemoryError:
        """Return the error that says who holds memory."""
        memory = GpuMemory(self.device.name, self._dispatcher.limit, self._dispatcher.cupy.ndarray)
        for variable, value in self._values.values.items():
            memory.hold(value, variable.name)
        memory.in_use = error.in_use
        found = DeviceMemoryError(memory, ", ".join(target.name for target in self._origin[1]), error.wanted, "Step")
        for note in getattr(error, "__notes__", ()):
            found.add_note(note)
        return found

    def _uploaded(self, value: Any) -> Any:
        if isinstance(value, OnGpu):
            return value.array
        return self._dispatcher.cupy.asarray(value) if is_array(value) else value

    def _to_host(self, value: Any) -> Any:
        parts = Parts(value, self._dispatcher.cupy.ndarray)
        return parts.rebuilt([as_scalar_or_array(array.get()) for array in parts.arrays]) if parts.arrays else value

    def _keep(self, variable: Variable, before: Any, value: Any, is_written: bool) -> None:
        """Let a variable have what the step wrote, or the array to which its value was uploaded."""
        if isinstance(value, self._dispatcher.cupy.ndarray):
            if is_written:
                variable.postpone(OnGpu(self._dispatcher, value))
            elif not isinstance(before, OnGpu):
                keep_uploaded(variable, self._dispatcher, before, value)
        elif is_written:
            variable.write_value(value)

    # --- the rest ---------------------------------------------------------------------------------------------------

    def on_machine(self) -> MachineProgram:
        """Return the same step on the dataflow machine."""
        if self._machine is None:
            self._machine = self._make_machine()
        return self._machine

    def with_clocks(self) -> MachineProgram:
        """Return the same step with clocks, for traces."""
        return self.on_machine().with_clocks()

    @property
    def step_asked_for(self) -> tuple[Graph, Sequence[Symbol | Operation], Sequence[Symbol], Sequence[Spec] | None]:
        """Return the graph, the targets, the feeds and their specs, as they were given."""
        return self._origin

    def listing(self, lines: bool = True) -> str:
        """Return the source.

        Args:
            lines: name behind each line which operation it computes, and which line of the user's built that.
        """
        listed = [f"# --- {self.device.name} ---"]
        for number, text in enumerate(self.source.splitlines(), 1):
            listed.append(listed_line(text, self.origins.get(number) if lines else None))
        return "\n".join(listed) + "\n"

    def _describe(self) -> dict[str, Any]:
        """Return the facts of the step for a trace."""
        targets = ", ".join(target.name for target in self._origin[1])
        return {"program": self.filename, "targets": targets, "devices": self.device.name}
