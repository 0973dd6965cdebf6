"""From a graph and what is wanted of it to the operations that are printed: the passes, in order."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...common.quick_dataclass import dataclass
from ...graph.graph import Graph, Operation
from ...graph.op import Op
from ...graph.spec import Spec
from ...graph.tensor import Symbol
from ..fusion.fuse import FusionRule
from . import limits, log, observe
from .assign import Assign
from .pipeline import RAGGED_BATCHES, Options, run_pipeline
from .prune import all_operations, is_kind_among, needed_operations
from .rewriter import Rewriter
from .specialise import Specialised
from .switches import is_on


@dataclass
class Step:
    """A step in a graph of its own, ready to be printed or lowered.

    Attributes:
        operations: what runs, in program order.
        feeds: the placeholders of what is fed.
        fetches: what is returned.
        is_placed: whether each operation's `device` is where it runs; otherwise it is "".
        kinds: the ops, those of regions included.
    """

    operations: list[Operation]
    feeds: list[Symbol]
    fetches: list[Symbol]
    is_placed: bool
    kinds: frozenset[type[Op]]

    def holds(self, *kinds: type[Op]) -> bool:
        """Test whether an op of one of some classes, or traits, is in the step."""
        return is_kind_among(self.kinds, *kinds)

    @property
    def devices(self) -> list[str]:
        """Return the devices that take part, insides and feeds included, in the order of their first use."""
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
    options = Options(rule, reassociate, assign, memory_budget, can_swap)
    with limits.counted():
        began = time.perf_counter()
        step = _specialised(graph, targets, feeds, specs, options)
        log.note_seconds("specialise", time.perf_counter() - began)
        run_pipeline(step, options)
    kinds = frozenset(step.kinds)
    step.pruning.settle()
    return Step(step.operations, step.fed, step.fetches, assign is not None, kinds)


def _specialised(
    graph: Graph,
    targets: Sequence[Symbol | Operation],
    feeds: Sequence[Symbol],
    specs: Sequence[Spec] | None,
    options: Options,
) -> Rewriter:
    """Copy what `targets` need into a graph of its own, where passes rewrite it."""
    pruned = needed_operations(graph, targets, feeds)
    given = dict(zip(feeds, specs or [tensor.spec for tensor in feeds], strict=True))
    copy = Specialised(is_on("cse"), exact=not options.reassociate)
    fetched = [target for target in targets if isinstance(target, Symbol)]
    asked = [target for target in targets if isinstance(target, Operation)]
    step = Rewriter(copy, pruned, list(feeds), fetched, asked)
    copy.shares_saved = is_on("memory") and options.assign is None  # such a place is on no device
    copy.keeps_differentiated = not RAGGED_BATCHES.reason_left_out(step, options)
    copy.inferred = {} if observe.is_asked_for() else None
    step.become(copy, pruned, given)
    step.settle()
    return step
