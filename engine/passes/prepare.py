"""From a graph and what is wanted of it to the operations that are printed: the passes, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph.graph import Graph, Operation
from ..graph.spec import Spec
from ..graph.tensor import Symbol
from ..ops.update_rows import UpdateRows
from .assign import Assign, assign_devices
from .epilogues import join_epilogues
from .fission import split_loops
from .fuse import FusionRule, fuse
from .fuse_open import fuse_open
from .group_open import group_open
from .lay_out import lay_out_transposed
from .live_rows import compute_live_rows
from .loops.unroll import Whole, unroll
from .pack import pack_weights
from .prune import all_blocks, all_operations, needed_operations, settle_regions
from .recompute import recompute
from .row_updates import add_rows_at_once
from .rows_together import change_rows_at_once
from .same_shapes import leave_out_same_shapes
from .sink import sink_into_branches
from .sizes import KnownSizes
from .slices import split_slices
from .specialise import Specialised
from .switches import is_on
from .together import update_together


@dataclass
class Step:
    """A step in a graph of its own, ready to be printed or lowered.

    Attributes:
        operations: what runs, in program order.
        feeds: the placeholders of what is fed.
        fetches: what is returned.
        is_placed: whether each operation's `device` is where it runs; otherwise it is "".
    """

    operations: list[Operation]
    feeds: list[Symbol]
    fetches: list[Symbol]
    is_placed: bool = False

    @property
    def devices(self) -> list[str]:
        """The devices that take part, insides and feeds included, in the order in which they are met first."""
        running = [*[tensor.operation for tensor in self.feeds], *all_operations(self.operations)]
        return list(dict.fromkeys(operation.device for operation in running)) if self.is_placed else []


def prepare(
    graph: Graph,
    targets: Sequence[Symbol | Operation],
    feeds: Sequence[Symbol],
    specs: Sequence[Spec] | None = None,
    rule: FusionRule | None = None,
    reassociate: bool = True,
    assign: Assign | None = None,
    memory_budget: int | None = None,
    can_swap: bool = False,
) -> Step:
    """Prune, specialise, place and rewrite what `targets` need, given `feeds`.

    Args:
        graph: the graph to run.
        targets: what is fetched, and operations to run.
        feeds: the tensors that are fed.
        specs: the specs of what is fed, if more is known than the graph says.
        rule: what may be fused; without one nothing is.
        reassociate: allow rewrites that take sums in another order.
        assign: gives the device of each operation of the specialised step, those of placeholders and of insides
            included (see `assign_devices`); without it the step is not placed. Passes that rewrite keep to devices.
        memory_budget: how many bytes of loop state may be saved, about; the rest is computed again.
        can_swap: state beyond the budget may be moved to the host, where that is cheaper than computing it again.

    Raises:
        ValueError: `assign` leaves out an operation.

    Effects that were asked for stay, in program order.
    """
    pruned = needed_operations(graph, targets, feeds)
    given = dict(zip(feeds, specs or [tensor.spec for tensor in feeds], strict=True))
    copy = Specialised(is_on("cse"), exact=not reassociate)
    copy.keeps_differentiated = seeks_live_rows = (
        is_on("live_rows") and reassociate and assign is None and memory_budget is None
    )
    fetched = [target for target in targets if isinstance(target, Symbol)]
    copy.copy_step(pruned, given, fetched)
    fetches = [copy.tensors[target] for target in fetched]
    asked = [target for target in targets if isinstance(target, Operation)]
    wanted = [copy.operations[operation] for operation in asked if operation in copy.operations]
    # What was needed for a value is not needed for its shape alone, but its effects were asked for.
    wanted += [operation for operation in copy.graph.operations if operation.writes]
    fed = [copy.tensors[tensor] for tensor in feeds]
    operations = needed_operations(copy.graph, [*fetches, *wanted], fed)
    if is_on("unroll") and assign is None and memory_budget is None:
        whole = unroll(Whole(copy, operations, fed, fetches, wanted), exact=not reassociate)
        copy, operations, fed, fetches, wanted = whole
    if seeks_live_rows:
        whole = compute_live_rows(Whole(copy, operations, fed, fetches, wanted))
        copy, operations, fed, fetches, wanted = whole
    if reassociate and assign is None and is_on("slices"):
        split_slices(operations, fetches)
        remaining = set(copy.graph.operations)
        wanted = [operation for operation in wanted if operation in remaining]
        operations = needed_operations(copy.graph, [*fetches, *wanted], fed)
    cheap = reassociate and rule is not None and assign is None and is_on("fuse") and is_on("recompute")
    recompute(copy.graph, operations, [*fetches, *wanted], memory_budget, can_swap, cheap)
    operations = needed_operations(copy.graph, [*fetches, *wanted], fed)
    assign_devices(copy.graph, operations, fed, assign)
    if is_on("sink"):
        sink_into_branches(copy.graph, operations, [*fetches, *wanted])
    operations = needed_operations(copy.graph, [*fetches, *wanted], fed)
    if reassociate:
        split_loops(copy.graph, [*fetches, *wanted], fed)
        operations = needed_operations(copy.graph, [*fetches, *wanted], fed)
    known = KnownSizes()
    known.note_all(operations)
    if known.is_open and is_on("same_shapes") and _is_on_one_host(operations):
        leave_out_same_shapes(copy.graph, operations, [*fetches, *wanted], known)
        operations = needed_operations(copy.graph, [*fetches, *wanted], fed)
    if rule is not None and reassociate and is_on("row_updates") and _is_on_one_host(operations):
        add_rows_at_once(copy.graph, operations, [*fetches, *wanted])
        operations = needed_operations(copy.graph, [*fetches, *wanted], fed)
    if rule is not None and reassociate and is_on("lay_out") and _is_on_one_host(operations):
        lay_out_transposed(operations)
        operations = needed_operations(copy.graph, [*fetches, *wanted], fed)
    if rule is not None and reassociate and is_on("pack"):
        pack_weights(copy.graph, operations, rule, fetches)
        operations = needed_operations(copy.graph, [*fetches, *wanted], fed)
    if rule is not None and is_on("fuse"):
        fuse(copy.graph, operations, fetches, rule)
        remaining = set(copy.graph.operations)
        wanted = [operation for operation in wanted if operation in remaining]
        operations = needed_operations(copy.graph, [*fetches, *wanted], fed)
        if _is_on_one_host(operations):
            fuse_open(copy.graph, operations, fetches, rule)
            operations = needed_operations(copy.graph, [*fetches, *wanted], fed)
            if is_on("together"):
                update_together(copy.graph, operations, fetches, rule)
                change_rows_at_once(copy.graph, operations, fetches, rule)
                asked_for = set(wanted)
                wanted = [o for o in copy.graph.operations if o in asked_for or isinstance(o.op, UpdateRows)]
                operations = needed_operations(copy.graph, [*fetches, *wanted], fed)
            if reassociate and is_on("epilogues"):
                join_epilogues(copy.graph, operations, fetches, rule)
                remaining = set(copy.graph.operations)
                wanted = [operation for operation in wanted if operation in remaining]
                operations = needed_operations(copy.graph, [*fetches, *wanted], fed)
            if known.is_open and is_on("reductions"):
                group_open(copy.graph, operations, fetches, rule, known)
                remaining = set(copy.graph.operations)
                wanted = [operation for operation in wanted if operation in remaining]
                operations = needed_operations(copy.graph, [*fetches, *wanted], fed)
    settle_regions(operations)
    return Step(operations, fed, fetches, assign is not None)


def _is_on_one_host(operations: Sequence[Operation]) -> bool:
    """Whether all that runs lies on one CPU, placed or not."""
    devices = {operation.device for block in all_blocks(operations) for operation in block}
    kinds = {device.lower().rpartition("/")[2].removeprefix("device:").partition(":")[0] for device in devices}
    return len(devices) < 2 and kinds <= {"", "cpu"}
