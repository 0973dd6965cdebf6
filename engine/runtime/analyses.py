"""`ANALYSES`: what is found out about a prepared step before it is printed, in order. None changes an operation."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..codegen.natives import has_binder
from ..common.quick_dataclass import dataclass
from ..control_flow.cond import Branch
from ..control_flow.frames import History
from ..control_flow.while_loop import While
from ..graph.graph import Operation
from ..graph.op import Op
from ..graph.tensor import Symbol
from ..ops.containers.tensor_arrays import ArrayWrite
from ..ops.internal.fused import Fused
from ..passes.framework.log import is_recording, note_left_out, note_seconds
from ..passes.framework.prepare import Step
from ..passes.framework.prune import all_operations
from ..passes.framework.switches import PASSES, is_on
from ..passes.memory.storage import Buffer, note_buffers, plan_buffers
from ..passes.memory.updates import Updates, updates_in_place
from .parallel_schedule import arranged
from .records import recorded_in_rows, written_into_slots
from .releases import last_reads
from .row_writes import rows_in_place

if TYPE_CHECKING:
    from ..codegen.regions.region import NativeRegion

_LONG = 200  # operations, of which a run might be worth compiling


@dataclass
class AnalysedStep:
    """A prepared step, how it is to run, and what analyses have found out so far.

    Attributes:
        step: the step, as the passes left it.
        is_exact: it keeps the interpreter's bits.
        is_timed: operations are timed one by one.
        compiles_whole: it is to be one region of machine code if it can be.
        runs_often: short loops are worth compiling, too.
        operations: those of the step, in the order in which they are printed.
        natives: regions that run as machine code, by their first operation.
        kernels: what computes an operation, in place of its `run`.
        groups: operations of which each group runs side by side.
        row_writes: operations that write rows of variables in place.
        last_reads: reads of saved state behind which nothing reads it.
        in_rows: results that are recorded in rows of one array.
        in_slots: results that are written into slots of TensorArrays.
        buffers: results that need no new memory.
        updates: operations that change their first operand in place.
    """

    step: Step
    is_exact: bool
    is_timed: bool
    compiles_whole: bool
    runs_often: bool
    operations: Sequence[Operation] = field(init=False)
    natives: dict[Operation, NativeRegion] = field(default_factory=dict[Operation, Any])
    kernels: Mapping[Operation, Any] = field(default_factory=dict[Operation, Any])
    groups: Sequence[Sequence[Operation]] = ()
    row_writes: Collection[Operation] = ()
    last_reads: Collection[Operation] = ()
    in_rows: Collection[Symbol] = ()
    in_slots: Mapping[Symbol, Operation] = field(default_factory=dict[Symbol, Operation])
    buffers: Mapping[Symbol, Buffer] = field(default_factory=dict[Symbol, Buffer])
    updates: Updates | None = None

    def __post_init__(self) -> None:
        self.operations = self.step.operations

    def is_whole(self) -> bool:
        """Test whether all of the step is one region of machine code."""
        return any(native.plan.is_whole for native in self.natives.values())


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement that an analysis has of the step; `otherwise` says why it is left out where it does not hold."""

    holds: Callable[[AnalysedStep], bool]
    otherwise: str


@dataclass(frozen=True, slots=True)
class Analysis:
    """An analysis of a prepared step.

    Attributes:
        name: its name in `ANALYSES`.
        description: one line that says what it finds out.
        run: notes that in the step.
        requires: what must hold of the step.
        of: ops, or traits, of each of which a step must have one; elsewhere there is nothing to find out.
        switch: the name of the switch that turns it off (`switches.PASSES`); "" for none.
    """

    name: str
    description: str
    run: Callable[[AnalysedStep], None]
    requires: tuple[Requirement, ...] = ()
    of: tuple[type[Op], ...] = ()
    switch: str = ""

    def reason_left_out(self, found: AnalysedStep) -> str:
        """Return why the analysis does not run for a step; "" if it does."""
        if self.switch and not is_on(self.switch):
            return "turned off"
        return next((need.otherwise for need in self.requires if not need.holds(found)), "")

    def has_work(self, step: Step) -> bool:
        """Test whether a step has all ops that the analysis is about."""
        return all(step.holds(kind) for kind in self.of)


def analysed(
    step: Step, is_exact: bool, is_timed: bool, compiles_whole: bool = False, runs_often: bool = False
) -> AnalysedStep:
    """Run each analysis of `ANALYSES` that is on and whose conditions hold.

    Args:
        step: what is to be printed.
        is_exact: see `AnalysedStep`, as the arguments that follow.
    """
    found = AnalysedStep(step, is_exact, is_timed, compiles_whole, runs_often)
    for each in ANALYSES:
        why = each.reason_left_out(found)
        if why:
            note_left_out(each.name, why)
        elif each.has_work(step):
            began = time.perf_counter()
            each.run(found)
            note_seconds(each.name, time.perf_counter() - began)
    if is_recording():
        _note_memory(found)
    return found


def kernels_of(operations: Sequence[Operation], exact: bool) -> dict[Operation, Any]:
    """Return kernels for the operations of a step, those inside loops and branches included."""
    wanted = [
        operation
        for operation in all_operations(operations)
        if isinstance(operation.op, Fused) or (not exact and has_binder(operation))
    ]
    if not wanted:
        return {}
    from ..codegen.rule import bind_kernels

    return bind_kernels(wanted)


# --- the analyses, with one signature -------------------------------------------------------------------------------


def _native(found: AnalysedStep) -> None:
    step = found.step
    is_fit = found.compiles_whole or step.holds(While) or _assigns_in_branches(step.operations)
    if not is_fit and len(step.operations) < _LONG:
        return
    from ..codegen.regions.rule import native_regions  # llvmlite loads here

    found.natives = native_regions(step.operations, step.fetches, found.compiles_whole, found.runs_often)


def _assigns_in_branches(operations: Sequence[Operation]) -> bool:
    """Test whether a step assigns variables under conditions."""
    return any(isinstance(operation.op, Branch) and operation.writes for operation in operations)


def _kernels(found: AnalysedStep) -> None:
    found.kernels = kernels_of(found.operations, found.is_exact)


def _parallel(found: AnalysedStep) -> None:
    found.operations, found.groups = arranged(found.operations, found.natives, found.kernels)


def _row_writes(found: AnalysedStep) -> None:
    found.row_writes = rows_in_place(found.operations, found.step.fetches)


def _last_reads(found: AnalysedStep) -> None:
    found.last_reads = last_reads(found.operations, found.step.fetches)


def _in_rows(found: AnalysedStep) -> None:
    found.in_rows = recorded_in_rows(found.operations, found.step.fetches)


def _in_slots(found: AnalysedStep) -> None:
    found.in_slots = written_into_slots(found.operations, found.step.fetches)


def _buffers(found: AnalysedStep) -> None:
    if found.kernels:
        found.buffers = plan_buffers(found.operations, found.step.fetches, found.in_slots)


def _updates(found: AnalysedStep) -> None:
    if any(kind.updates_first for kind in found.step.kinds):
        beside = [operation for group in found.groups for operation in group]
        found.updates = updates_in_place(found.operations, found.step.fetches, found.in_slots, beside)


def _note_memory(found: AnalysedStep) -> None:
    """Note what needs no memory of its own; native regions find places for their results themselves."""
    apart = {o for first, native in found.natives.items() for o in all_operations(native.plan.run or [first])}
    note_buffers(found.buffers, found.in_slots, found.in_rows, apart)


NOT_EXACT = Requirement(lambda found: not found.is_exact, "the step keeps the interpreter's bits")
NOT_TIMED = Requirement(lambda found: not found.is_timed, "operations are timed one by one")
NOT_WHOLE = Requirement(lambda found: not found.is_whole(), "all of the step is one region of machine code")

# An order, then memory: what is written where depends on the order, and on what runs side by side.
ANALYSES = (
    Analysis("native", PASSES["native"].description, _native, (NOT_EXACT, NOT_TIMED), switch="native"),
    Analysis("kernels", "bind fused operations, and others that have one, to their kernels", _kernels, (NOT_WHOLE,)),
    Analysis("parallel", PASSES["parallel"].description, _parallel, (NOT_EXACT, NOT_TIMED), switch="parallel"),
    Analysis("row_writes", "find writes of rows that may change a variable's memory", _row_writes),
    Analysis("last_reads", "find where saved state is read last", _last_reads, of=(History,)),
    Analysis("in_rows", "record what is only stacked in rows of one array", _in_rows, of=(History,), switch="memory"),
    Analysis("in_slots", "write into slots of TensorArrays", _in_slots, of=(ArrayWrite,), switch="memory"),
    Analysis("buffers", PASSES["memory"].description, _buffers, switch="memory"),
    Analysis("updates", "change the first operand where nothing else reads it", _updates, switch="memory"),
)
