"""`Program`: a compiled step - printed source, its function, and errors that name the user's lines."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..common.blas import on_one_thread
from ..common.logs import DEBUG, is_logged, log
from ..common.machine_profile import machine_profile
from ..common.nest import is_sequence
from ..common.quiet import begin_quiet, end_quiet, quiet
from ..graph.graph import Graph, Operation, Placeholder
from ..graph.op import is_array
from ..graph.spec import FrameSpec, Spec, TensorSpec
from ..graph.state.variable import OwnMemory
from ..graph.state.variable_ops import ReadVariable
from ..graph.tensor import Symbol
from ..ops.base import Constant
from ..ops.containers.array_value import ArrayValue
from ..ops.containers.store_value import StoreValue
from ..passes.framework.estimates import has_bounded_time, may_use_blas_threads
from ..passes.framework.log import note_change
from ..passes.framework.prepare import Step, prepare
from ..passes.framework.prune import all_blocks
from ..passes.framework.switches import is_on, turned_off
from ..passes.fusion.fuse import FusionRule
from ..passes.memory.memory_budget import memory_budget, within_memory_budget
from ..passes.memory.storage import is_fresh
from ..place.constraints import check_step
from ..queues.writing import Writing, locks_of
from ..tracing import active
from . import numerics
from .analyses import analysed
from .code import compiled
from .collector import without_collector
from .deep_calls import FRAMES_OF_PROGRAM, calls_under_way, deep_calls, too_deep_of
from .errors import annotate_from, clear
from .printed import Origin
from .printer import Printer
from .tiers import Tier, Tiers, tiers_of
from .timing import SavedBytes, Timing, note_compiled, note_saved_bytes, now, step_span
from .writes import first_write, written_variables

_LARGE = 1 << 15  # bytes: memory that the system would be asked for in each step
_TEXT_WIDTH = 56  # of the program in a listing


class Statistics:
    """Figures of the runs of a program.

    Attributes:
        runs: how many there were.
        saved_bytes: bytes of loop and branch state kept for a backward pass, in the latest run.
        total_saved_bytes: the same, summed over all runs.
        recomputed_bytes: bytes of loop state that a backward pass computed again instead, in the latest run; of
            values whose shapes were known when the program was made.
        total_recomputed_bytes: the same, summed over all runs.
        devices: by name, what each device did in the latest run (`DeviceRunStatistics`); of steps that span devices.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.saved_bytes = 0
        self.total_saved_bytes = 0
        self.recomputed_bytes = 0
        self.total_recomputed_bytes = 0
        self._lock = threading.Lock()  # loops that run side by side count at the same time

    @property
    def devices(self) -> Mapping[str, Any]:
        return {}

    def start(self) -> None:
        self.runs += 1
        self.saved_bytes = 0
        self.recomputed_bytes = 0

    def note_saved(self, *values: Any) -> None:
        """Count state that was saved: histories (lists) and single values."""
        size = sum(bytes_saved(value) for value in values)
        with self._lock:
            self.saved_bytes += size
            self.total_saved_bytes += size

    def note_recomputed(self, size: int) -> None:
        """Count bytes of state that was computed again."""
        with self._lock:
            self.recomputed_bytes += size
            self.total_recomputed_bytes += size


def bytes_saved(value: Any) -> int:
    """Return the bytes of a value that was saved for a backward pass."""
    if value is None:
        return 0
    if isinstance(value, tuple):
        return 0  # the frame of a call: what it holds was counted there
    if is_sequence(value):
        return sum([bytes_saved(item) for item in value])
    return int(value.nbytes)


class Program:
    """One pruned step as a Python function.

    Args:
        graph: the graph to run.
        targets: tensors whose values are returned, and operations that run for their effects.
        feeds: the tensors whose values are passed in.
        specs: the specs of those values, if more is known than the graph says.
        exact: only rewrites that keep the interpreter's bits: no fused kernels, no sums in another order.
        guard: check what every operation gives for NaN and infinity. (A program without does so too while
            `enable_check_numerics` holds, by way of a second one.)
        timed: record in traces when each operation ran. (A program without does so too while a trace is recorded, by
            way of a second one.)
        of: the program in whose place this one runs; what it does counts as done by that one.
        prepared: the step, where it was prepared already, by `fusion_rule_of` the graph and the budget that holds.
        tier: what is compiled because the step runs often. (A program without is replaced by such ones, see `Tiers`.)

    Attributes:
        statistics: of its runs.
        is_native: whether it is machine code as a whole.
        source: the printed code.
        has_bounded_time: no value that is fed makes a run much longer than others.
    """

    @without_collector
    def __init__(
        self,
        graph: Graph,
        targets: Sequence[Symbol | Operation],
        feeds: Sequence[Symbol],
        specs: Sequence[Spec] | None = None,
        exact: bool = False,
        guard: bool = False,
        timed: bool = False,
        of: Program | None = None,
        prepared: Step | None = None,
        tier: Tier | None = None,
    ) -> None:
        began = now()
        self.statistics = Statistics() if of is None else of.statistics
        self._origin = (graph, targets, feeds, specs)
        self._exact = exact
        self._guards = guard
        self._timing = Timing() if timed else None
        self._budget, self._turned_off = memory_budget(), turned_off()
        self._others: dict[Any, Program] = {}  # by guard, clocks, budget and passes
        self._often: Program | None = None  # what runs in its place after many runs
        self._tiers: Tiers[Program] | None = None  # what may follow
        step = prepared or self._prepare()
        operations, fetches = step.operations, step.fetches
        self.has_bounded_time = has_bounded_time(operations)
        self._owned = OwnMemory(effect for block in all_blocks(operations) for o in block for effect in o.effects)
        memory, self.is_native = memory_of(operations), False
        kernels: Mapping[Operation, Any] = {}
        if guard:
            printer = Printer(guard=self._check, timing=self._timing)
            printer.first_write = first_write(operations, {})
        else:
            compiles_whole = graph.compiles_whole or tier is Tier.WHOLE
            if not (exact or timed or of is not None or compiles_whole):
                tiers = tiers_of(operations)
                self._tiers = Tiers(tiers, self._for_tier) if tiers else None
            printer, operations = _printer(step, self._timing, exact, compiles_whole, tier is not None)
            self.is_native, kernels = printer.is_native(operations), printer.kernels
            if self.is_native:
                memory = None
        copied = {tensor for tensor in fetches if not is_fresh(tensor)}
        printer.bindings["copied"] = copied_value
        printer.bindings["stats"] = SavedBytes(self.statistics) if timed else self.statistics
        self.source = printer.print_step(operations, step.feeds, fetches, copied)
        self.origins = printer.origins
        self._recursions = printer.bodies.labels
        if not exact and not self.is_native and needs_whole_cores(operations, kernels):
            memory = on_one_thread(memory or contextlib.nullcontext)
        self._memory = memory or contextlib.nullcontext
        self._locks = locks_of(written_variables(operations))
        self._is_simple = memory is None and not self._locks and not self._recursions and not guard
        code = compiled(self.source, "step", self, printer.rare)
        self.filename, self._step = code.filename, code.run_in(dict(printer.bindings))["step"]
        note_compiled(began, self._describe)
        self._log_compiled(now() - began, len(operations))

    def _log_compiled(self, seconds: float, count: int) -> None:
        if not is_logged("compile"):
            return
        graph, _, feeds, specs = self._origin
        fed = ", ".join(
            f"{feed.operation.name} {spec}" for feed, spec in zip(feeds, specs or [f.spec for f in feeds], strict=True)
        )
        title = graph.traced or "a step of a session"
        kind = " with clocks" if self._timing is not None else " with the NaN guard" if self._guards else ""
        text = "%s%s was compiled in %.1f ms: %d operations, %d lines, fed %s"
        log("compile", DEBUG, text, title, kind, seconds * 1e3, count, self.source.count("\n"), fed or "nothing")

    def _prepare(self) -> Step:
        graph, targets, feeds, specs = self._origin
        check_step(graph, targets, feeds)
        rule = None if self._exact else fusion_rule_of(graph)
        return prepare(graph, targets, feeds, specs, rule, reassociate=not self._exact, memory_budget=self._budget)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run the step on checked feeds; return the fetches in order."""
        if self._tiers is not None:
            self._count_down(self._tiers)
        if self._often is not None:
            return self._often(*values)
        if active.recorder is not None and self._timing is None:
            return self._run_timed(values)
        if numerics.looks_at_operations() and not self._guards:
            return self._other(guard=True, timed=self._timing is not None)(*values)
        if memory_budget() != self._budget or turned_off() is not self._turned_off:
            return self._other(self._guards, self._timing is not None)(*values)
        self.statistics.start()
        if self._is_simple:
            quieted = begin_quiet()
            try:
                return self._step(*values)
            except RecursionError:
                raise  # of a caller that left no room: no function of the step calls itself
            except Exception as error:
                self._annotate(error)
                raise
            finally:
                end_quiet(quieted)
        return self._run_in_contexts(values)

    def _run_in_contexts(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run the step with memory, room for recursion and locks as it needs them."""
        if self._guards:
            for tensor, value in zip(self._origin[2], values, strict=True):
                numerics.check_fed(tensor.name, value)
        room = deep_calls(FRAMES_OF_PROGRAM) if self._recursions else contextlib.nullcontext()
        with quiet(), room, self._memory():
            try:
                if not self._locks:
                    return self._step(*values)
                with Writing(self._locks):
                    self._owned.take_back()
                    return self._step(*values)
            except RecursionError as error:
                failure = self._too_deep(error)
            except Exception as error:
                self._annotate(error)
                raise
        raise failure from None  # without the traceback of a hundred thousand calls

    def _count_down(self, tiers: Tiers[Program]) -> None:
        """Count a run of those after which another program takes over."""
        found = tiers.count()
        if found is not None:  # else another thread may set it just now
            self._often = found
        if tiers.are_over:
            self._tiers = None

    def _for_tier(self, tier: Tier) -> Program | None:
        """Compile the step for a tier; return None if that leaves it as it was."""
        with within_memory_budget(self._budget):
            found = Program(*self._origin, self._exact, of=self, tier=tier)
        return found if tier is Tier.LOOPS or found.is_native else None

    @property
    def step_asked_for(self) -> tuple[Graph, Sequence[Symbol | Operation], Sequence[Symbol], Sequence[Spec] | None]:
        """Return the graph, the targets, the feeds and their specs, as they were given."""
        return self._origin

    def listing(self) -> str:
        """Return the source, and behind each line the operation that it computes and the user's line that built it."""
        listed: list[str] = []
        for number, text in enumerate(self.source.splitlines(), 1):
            listed.append(listed_line(text, self.origins.get(number)))
        return "\n".join(listed) + "\n"

    @property
    def bindings(self) -> Mapping[str, Any]:
        """The names of the printed code, with what they stand for: constants, variables, kernels."""
        return self._step.__globals__

    def anew(self) -> Program:
        """Compile the same step once more, to look at how it comes about."""
        return Program(*self._origin, self._exact)

    def with_clocks(self) -> Program:
        """Return the same step, printed with a clock around each operation, as it runs while a trace is recorded."""
        return self._other(self._guards or numerics.looks_at_operations(), timed=True)

    @contextlib.contextmanager
    def settled(self) -> Generator[Program]:
        """Yield the program that runs after many runs in this one's place; inside of the block it is used at once."""
        before = self._often, self._tiers
        if self._tiers is not None:
            self._often = self._tiers.last() or self._often
            self._tiers = None
        try:
            yield self._often or self
        finally:
            self._often, self._tiers = before

    def _other(self, guard: bool, timed: bool) -> Program:
        """Return the same step with the NaN guard, with clocks, or by the memory budget and passes that hold now.

        What it does counts as done by this program.
        """
        key = (guard, timed, memory_budget(), turned_off())
        found = self._others.get(key)
        if found is None:
            exact = self._exact or guard
            found = self._others[key] = Program(*self._origin, exact, guard, timed, of=self)
        return found

    def _run_timed(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run the step for a trace."""
        program = self.with_clocks()
        with step_span(self._describe):
            try:
                return program(*values)
            finally:
                if self.statistics.saved_bytes:
                    note_saved_bytes(0)

    def _describe(self) -> dict[str, Any]:
        """Return the facts of the step for a trace."""
        targets = ", ".join(target.name for target in self._origin[1])
        return {"program": self.filename, "targets": targets}

    def _check(self, operation: Operation, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        numerics.check_results(operation, self.statistics.runs, inputs, outputs)

    def _too_deep(self, error: RecursionError) -> RecursionError:
        """Return the error of the function that called itself most, by its name and how deep it was."""
        return too_deep_of(error, self._depths(error))

    def _depths(self, error: Exception) -> list[tuple[str, int]]:
        """Return how many calls of each recursive function were under way when `error` was raised."""
        return calls_under_way(error, self.filename, self._recursions)

    def _annotate(self, error: Exception) -> None:
        """Find the operation whose line raised, and note it on the error; let go of what the step had saved."""
        frames = annotate_from(error, self.filename, self.origins, calls=self._depths(error))
        if self._timing is not None and frames:
            self._timing.close([frame.f_locals for frame in frames], error)
        clear(frames)


def listed_line(text: str, origin: Origin | None) -> str:
    """Return a line of a listing of a program: its text, and the operation that it computes, if there is one."""
    return text if origin is None else f"{text:<{_TEXT_WIDTH}}  # {_describe_origin(origin.operation)}"


def _describe_origin(operation: Operation) -> str:
    """Return an operation's name and the user's line, without the folder."""
    location = operation.location
    if location is None:
        return operation.name
    return f"{operation.name}, {os.path.basename(location.filename)}:{location.line}"


def _has_arrays(graph: Graph) -> bool:
    """Test whether anything in `graph` could be worth a kernel: programs of scalars do not even load the compiler."""
    for block in all_blocks(graph.operations):
        specs = [tensor.spec for operation in block for tensor in operation.outputs]
        if {spec.shape for spec in specs if not isinstance(spec, FrameSpec)} - {()}:
            return True
    return False


def fusion_rule_of(graph: Graph) -> FusionRule | None:
    """Return the rule of what may be fused in programs of `graph`; None where nothing is."""
    if not _has_arrays(graph):
        return None
    from ..codegen.rule import begin_products, fusion_rule  # llvmlite loads here, on first use

    rule = fusion_rule()
    if rule is not None:
        begin_products(graph)
    return rule


def memory_of(operations: Sequence[Operation]) -> Callable[[], contextlib.AbstractContextManager[None]] | None:
    """Return what makes the context in which memory of large arrays is kept for the next step; None if it has none."""
    if not is_on("memory") or not any(
        _is_large(tensor)
        for block in all_blocks(operations)
        for operation in block
        for tensor in operation.outputs
        if tensor.spec.shape
    ):
        return None
    from ..codegen.host.memory import KeptMemory, prepare  # llvmlite loads here

    prepare()
    note_change("memory", None, "large arrays of a step reuse the memory of the step before")
    return KeptMemory


def needs_whole_cores(operations: Sequence[Operation], kernels: Mapping[Operation, Any]) -> bool:
    """Test whether threads of BLAS could take the cores that kernels of a step want.

    Args:
        operations: those of the step.
        kernels: what computes an operation in place of its `run`.
    """
    products = [each for block in all_blocks(operations) for each in block if may_use_blas_threads(each)]
    if not products:
        return False
    from ..codegen.elementwise.bound import BoundKernel  # products have loaded it already
    from ..codegen.llvm.library import library

    return library.usable and not all(isinstance(kernels.get(each), BoundKernel) for each in products)


def _is_large(tensor: Symbol) -> bool:
    spec = tensor.spec
    if not isinstance(spec, TensorSpec) or spec.shape is None or None in spec.shape:
        return False
    if math.prod(cast("tuple[int, ...]", spec.shape)) * int(spec.dtype.itemsize) < _LARGE:
        return False
    op = tensor.operation.op
    is_there = op.view and not tensor.operation.inputs  # what a variable holds, in one form or another
    return not is_there and not isinstance(op, (ReadVariable, Constant, Placeholder))


def _printer(
    step: Step, timing: Timing | None, exact: bool, compiles_whole: bool, runs_often: bool
) -> tuple[Printer, Sequence[Operation]]:
    """Return a printer of what analyses found out, and the operations in the order to print them."""
    found = analysed(step, exact, timing is not None, compiles_whole, runs_often)
    printer = Printer(
        found.kernels,
        found.buffers,
        None,
        found.row_writes,
        found.last_reads,
        timing,
        found.natives,
        found.in_rows,
        found.in_slots,
        found.groups,
        found.updates,
    )
    printer.first_write = first_write(found.operations, found.buffers)
    return printer, found.operations


def copied_value(value: Any) -> Any:
    """Return a value that shares no memory with the program's state."""
    if not is_array(value):
        return value
    if value.flags.c_contiguous or value.size < machine_profile().parallel_elements:
        return value.copy()
    from ..codegen.elementwise.materialise import contiguous_copy

    return contiguous_copy(value)


def as_fetched(value: Any) -> Any:
    """Return a fetched value for the caller: TensorArrays as lists, TensorStores as dicts, a single string as a str."""
    if type(value) is np.ndarray:
        return value if value.ndim else value[()]
    if isinstance(value, StoreValue):
        return {key: copied_value(as_fetched(element)) for key, element in value.items()}
    if isinstance(value, ArrayValue):
        return [copied_value(as_fetched(value.read_or_none(index))) for index in range(value.size)]
    if is_array(value) and not value.ndim:
        return value[()]
    return value
