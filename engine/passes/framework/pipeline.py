"""`PIPELINE`: the passes in the order in which they run, what each requires of a step, and the loop that runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...common.quick_dataclass import dataclass
from ...control_flow.cond import Branch
from ...control_flow.frames import History
from ...control_flow.while_loop import While
from ...graph.graph import Operation
from ...graph.op import Op
from ...graph.state.variable_ops import Assign as AssignVariable
from ...ops.arrays.axes import Transpose
from ...ops.containers.indexed_slices import AssignRows
from ...ops.containers.tensor_arrays import ArrayStack
from ...ops.internal.int4_matmul import Int4MatMul
from ...ops.linear_algebra.products import MatMul
from ...ops.neural.quantized import QuantizedMatMul
from ..fusion import epilogues, materialise_transposes, winograd
from ..fusion.fuse import FusionRule, fuse
from ..fusion.horizontal_fusion import fuse_updates
from ..fusion.rematerialise import rematerialise
from ..rewrites import decompose, row_updates, same_shapes, slices
from . import limits, log, observe, verify
from .assign import Assign, assign_devices
from .driver import Rule, apply_group_rules, apply_rules
from .prune import all_blocks
from .rewriter import Rewriter
from .sizes import is_of_open_sizes
from .switches import PASSES, is_on


@dataclass
class Options:
    """The facts about a step that its caller gives, and what analyses find out for later passes.

    Attributes:
        rule: what may be fused; without one nothing is.
        reassociate: allow rewrites that take sums in another order.
        assign: gives the device of each operation; without it the step is not placed.
        memory_budget: how many bytes of loop state may be saved, about.
        can_swap: state beyond the budget may be moved to the host.
        is_on_one_host: whether all of the step was found to be on one CPU.
    """

    rule: FusionRule | None = None
    reassociate: bool = True
    assign: Assign | None = None
    memory_budget: int | None = None
    can_swap: bool = False
    is_on_one_host: bool = False

    def runs_on_one_host(self, step: Rewriter) -> bool:
        """Test whether all of a step is on one CPU: passes behind the one that places it add no devices."""
        self.is_on_one_host = self.is_on_one_host or is_on_one_host(step.operations)
        return self.is_on_one_host

    @property
    def fusion_rule(self) -> FusionRule:
        """The rule of what may be fused, for passes that require it."""
        assert self.rule is not None, "the pass requires KERNELS"
        return self.rule


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition that a pass has of the step.

    Attributes:
        holds: tests it.
        otherwise: why the pass is left out where it does not hold, as `explain` prints it.
    """

    holds: Callable[[Rewriter, Options], bool]
    otherwise: str


Run = Callable[[Rewriter, Options], None] | tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass of the compiler.

    Attributes:
        name: its name in `PIPELINE`, for `ANABRANCH_DUMP`.
        description: one line that says what it does.
        is_exact: whether results keep their very bits; steps that must, leave the others out.
        requires: what must hold of the step.
        run: changes the step; a table of rules is applied.
        of: ops, or traits, of each of which a step must have one; the pass has nothing to do in other steps.
        by_rules: whether it changes the step by way of the `Rewriter` alone, or calls `touch` where it did.
        switch: the name of the switch that turns it off (`switches.PASSES`); "" for none.
        moves_writes: whether other operations than before may write a variable afterwards.
        is_required: whether no step can do without it, however few rewrites it may get.
        narrows: the ops whose results have narrower specs afterwards than `infer` gives, by facts that the pass finds.
    """

    name: str
    description: str
    is_exact: bool
    requires: tuple[Requirement, ...]
    run: Run
    of: tuple[type[Op], ...] = ()
    by_rules: bool = False
    switch: str = ""
    moves_writes: bool = False
    is_required: bool = False
    narrows: tuple[type[Op], ...] = ()

    def reason_left_out(self, step: Rewriter, options: Options) -> str:
        """Return why the pass does not run for a step; "" if it does."""
        if self.switch and not is_on(self.switch):
            return "turned off"
        if not self.is_exact and not options.reassociate:
            return "the step keeps the interpreter's bits"
        return next((need.otherwise for need in self.requires if not need.holds(step, options)), "")

    def change(self, step: Rewriter, options: Options) -> None:
        """Change a step, if it has all ops that the pass is about."""
        if not all(step.holds(kind) for kind in self.of):
            return
        if callable(self.run):
            self.run(step, options)
        else:
            apply_rules(step, self.run, self.name)
        if not self.by_rules:
            step.touch()


def is_on_one_host(operations: Sequence[Operation]) -> bool:
    """Test whether all that runs is on one CPU, placed or not."""
    devices = {operation.device for block in all_blocks(operations) for operation in block}
    kinds = {device.lower().rpartition("/")[2].removeprefix("device:").partition(":")[0] for device in devices}
    return len(devices) < 2 and kinds <= {"", "cpu"}


def _not_placed(why: str) -> Requirement:
    return Requirement(lambda _, options: options.assign is None, f"the step is placed on devices, {why}")


def _no_budget(why: str) -> Requirement:
    return Requirement(lambda _, options: options.memory_budget is None, f"the step keeps to a memory budget, {why}")


KERNELS = Requirement(lambda _, options: options.rule is not None, "no kernels are compiled for the step")
ONE_HOST = Requirement(lambda step, options: options.runs_on_one_host(step), "the step spans devices")
OPEN_SIZES = Requirement(lambda step, _: is_of_open_sizes(step.operations), "all sizes are known")
FUSION = Requirement(lambda _, __: is_on("fuse"), "the pass `fuse` is turned off")


# --- passes that are not written as rules, with one signature -------------------------------------------------------
# What is imported inside is needed by few steps, and would make each process start later.


def _unroll(step: Rewriter, options: Options) -> None:
    from ..loops.unroll import unroll

    unroll(step, exact=not options.reassociate)


def _ragged_batches(step: Rewriter, options: Options) -> None:
    from ..loops.ragged_batches import compute_ragged_batches

    del options
    compute_ragged_batches(step)


def _slices(step: Rewriter, options: Options) -> None:
    del options
    apply_rules(step, slices.RULES, "slices")
    apply_group_rules(step, slices.GROUPS, "slices")


def _recompute(step: Rewriter, options: Options) -> None:
    from ..memory.recompute import recompute

    is_free = options.reassociate and options.rule is not None and options.assign is None
    cheap = is_free and is_on("fuse") and is_on("recompute")
    if recompute(step.graph, step.operations, step.kept, options.memory_budget, options.can_swap, cheap):
        step.touch()


def _place(step: Rewriter, options: Options) -> None:
    if assign_devices(step.graph, step.operations, step.fed, options.assign):
        step.touch()


def _sink(step: Rewriter, options: Options) -> None:
    from ..rewrites.sink import sink_into_branches

    del options
    sink_into_branches(step.operations, step.kept_tensors, set(step.wanted))


def _fission(step: Rewriter, options: Options) -> None:
    from ..loops.fission import split_loops

    del options
    split_loops(step.graph, step.operations, step.kept)


def _row_updates(step: Rewriter, options: Options) -> None:
    del options
    if apply_rules(step, row_updates.UPDATES, "row_updates"):
        step.settle()  # sums that only updates took are needed no more
        step.touch()  # which is noted for the pass as a whole
    apply_rules(step, row_updates.SUMS, "row_updates")


def _pack(step: Rewriter, options: Options) -> None:
    from ..fusion.pack import pack_weights

    if pack_weights(step.operations, options.fusion_rule, step.kept_tensors):
        step.touch()


def _lay_out(step: Rewriter, options: Options) -> None:
    from ..fusion.lay_out import lay_out_weights

    lay_out_weights(step, options.fusion_rule)


def _winograd(step: Rewriter, options: Options) -> None:
    apply_rules(step, winograd.rules_for(options.fusion_rule), "winograd")


def _fuse(step: Rewriter, options: Options) -> None:
    sizes = step.sizes if options.runs_on_one_host(step) else None  # GPUs have kernels for known sizes alone
    if fuse(step.operations, step.kept_tensors, options.fusion_rule, sizes):
        step.touch()


def _rematerialise(step: Rewriter, options: Options) -> None:
    if rematerialise(step.operations, step.kept_tensors, options.fusion_rule):
        step.touch()


def _horizontal_fusion(step: Rewriter, options: Options) -> None:
    fuse_updates(step.operations, step.kept_tensors, options.fusion_rule, options.reassociate)


def _update_rows(step: Rewriter, options: Options) -> None:
    from ..fusion.row_update_fusion import change_rows_at_once

    change_rows_at_once(step, options.fusion_rule)


def _epilogues(step: Rewriter, options: Options) -> None:
    apply_rules(step, epilogues.rules_for(options.fusion_rule), "epilogues")


def _late_copies(step: Rewriter, options: Options) -> None:
    from ..rewrites.late_copies import copy_late

    del options
    if copy_late(step.operations, step.kept_tensors):
        step.touch()


def _switched(
    name: str,
    run: Run,
    *requires: Requirement,
    of: tuple[type[Op], ...] = (),
    by_rules: bool = False,
    switch: str = "",
    moves_writes: bool = False,
) -> Pass:
    """Return a row for a pass that a switch turns off, and describes."""
    known = PASSES[switch or name]
    return Pass(name, known.description, known.is_exact, requires, run, of, by_rules, known.name, moves_writes)


RAGGED_BATCHES = _switched(
    "ragged_batches",
    _ragged_batches,
    _not_placed("and sorted rows would be sent to each of them and back"),
    _no_budget("and rows that are sorted are copies that it does not count"),
    of=(While,),
    by_rules=True,
    moves_writes=True,
)
PIPELINE = (
    _switched(
        "unroll",
        _unroll,
        _not_placed("where a loop's iterations bound what is sent between them at once"),
        _no_budget("which bounds what loops save; copies of a body keep all of it"),
        of=(While,),
        by_rules=True,
        moves_writes=True,
    ),
    RAGGED_BATCHES,
    _switched("slices", _slices, _not_placed("and a joined slice would be sent whole to each of them"), by_rules=True),
    # With a budget it is no choice.
    Pass("recompute", PASSES["recompute"].description, True, (), _recompute, of=(History,), by_rules=True),
    Pass("place", "give each operation its device", True, (), _place, by_rules=True, is_required=True),
    _switched("sink", _sink, of=(Branch,)),
    Pass(  # which has switches for its rewrites
        "fission",
        PASSES["fission"].description,
        False,
        (),
        _fission,
        of=(While,),
        narrows=(ArrayStack,),  # an array that a loop fills has as many elements as the loop has iterations
    ),
    _switched("same_shapes", same_shapes.RULES, OPEN_SIZES, ONE_HOST, by_rules=True),
    _switched("row_updates", _row_updates, KERNELS, ONE_HOST, by_rules=True, moves_writes=True),
    _switched("materialise_transposes", materialise_transposes.RULES, KERNELS, ONE_HOST, by_rules=True),
    _switched("pack", _pack, KERNELS, of=(While, MatMul), by_rules=True),
    _switched("lay_out", _lay_out, KERNELS, ONE_HOST, of=(QuantizedMatMul,)),
    _switched("winograd", _winograd, KERNELS, ONE_HOST, by_rules=True),
    _switched("decompose", decompose.RULES, KERNELS, FUSION, by_rules=True),
    _switched("fuse", _fuse, KERNELS, by_rules=True),
    _switched("rematerialise", _rematerialise, KERNELS, FUSION, ONE_HOST, by_rules=True, switch="recompute"),
    _switched("horizontal_fusion", _horizontal_fusion, KERNELS, FUSION, ONE_HOST, of=(AssignVariable,)),
    _switched(
        "update_rows",
        _update_rows,
        KERNELS,
        FUSION,
        ONE_HOST,
        of=(AssignRows,),
        by_rules=True,
        switch="horizontal_fusion",
        moves_writes=True,
    ),
    _switched("epilogues", _epilogues, KERNELS, FUSION, ONE_HOST, by_rules=True),
    _switched("lay_out_int4", _lay_out, KERNELS, ONE_HOST, of=(Int4MatMul,), switch="lay_out"),  # which that has made
    _switched("late_copies", _late_copies, KERNELS, ONE_HOST, of=(While, Transpose), by_rules=True),
)


def run_pipeline(step: Rewriter, options: Options) -> None:
    """Run each pass of `PIPELINE` that is on and whose requirements hold; what nothing needs then is left out."""
    watch = observe.watch(step, options.assign is not None, [each.name for each in PIPELINE])
    state = verify.signature(step.operations) if limits.are_counted() else 0
    for each in PIPELINE:
        why = each.reason_left_out(step, options)
        if not why and not each.is_required and not limits.may_rewrite():
            why = limits.REASON
        if why:
            log.note_left_out(each.name, why)
            continue
        counted, began = limits.rewrites_done(), time.perf_counter()
        each.change(step, options)
        is_changed = step.settle()
        log.note_seconds(each.name, time.perf_counter() - began)
        if is_changed and limits.are_counted():
            before, state = state, verify.signature(step.operations)
            if state != before and limits.rewrites_done() == counted and not each.is_required:
                limits.count_rewrite()  # rules and fission count theirs
        if watch is not None:
            watch.after(each.name, step, each.moves_writes, is_changed, each.narrows)
