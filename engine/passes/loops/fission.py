"""Loop fission: work that does not depend on a loop's recurrence leaves the loop, where it becomes one large operation.

`REWRITES` is the table of what is done to a loop, in this order. Some take sums in another order, or products of other
sizes, so that results agree within rounding.

In a step that is placed, what leaves a loop is on one device, together with the values of the body that it takes: so
nothing crosses that did not, and a chain from iteration to iteration that crosses devices stays whole. What comes from
outside (a weight, a first value) is sent once, in the loop or beside it, and may come from anywhere.

The forms are those of PyTensor's `push_out_*` rewrites of Scan, for loops of any kind: with masks, backward, of lengths
that are known when they start, and inside other loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from ...common.identity import is_among
from ...control_flow.call import Body
from ...control_flow.frames import History, Saved
from ...control_flow.region_op import RegionOp
from ...control_flow.while_loop import While
from ...graph.graph import Graph, Operation
from ...graph.op import Op
from ...graph.region import Region
from ...graph.tensor import Symbol
from ...ops.arrays.gathering import AddRows, Take
from ...ops.arrays.indexing import AddItem, GetItem, PutItem
from ...ops.containers.tensor_arrays import ArrayAddAt, ArrayClear, ArrayRead, ArrayWrite
from ...ops.linear_algebra.products import MatMul
from ...ops.math.elementwise import Add
from ..framework.limits import count_rewrite, may_rewrite
from ..framework.log import is_recording, note_kept
from ..framework.order import reorder
from ..framework.prune import holds, is_kind_among, needed_in_region
from ..framework.switches import is_on
from .batches import is_heavy
from .before import compute_before
from .elements import gather_elements, read_elements
from .elements_again import compute_elements
from .invariants import capture_unchanged, drop_clearing, move_invariants, resolve_records
from .linear_terms import sum_what_linear_terms_take
from .outputs import compute_after
from .products import merge_products
from .reasons import hindrance
from .sums import gather_terms, sum_after
from .tables import multiply_tables
from .users import Users
from .view import LoopView, Sides


class Rewrite(NamedTuple):
    """One rewrite of loops.

    Attributes:
        name: the switch that turns it off (`passes.switches`).
        apply: does it to one loop; returns whether anything was changed.
        of: ops of which the body must have one; it has nothing to do in other loops.
    """

    name: str
    apply: Callable[[LoopView], bool]
    of: tuple[type[Op], ...] = (Op,)


REWRITES = (
    Rewrite("invariants", capture_unchanged),
    Rewrite("invariants", resolve_records, (ArrayRead,)),
    Rewrite("invariants", drop_clearing, (ArrayClear,)),
    Rewrite("invariants", move_invariants),
    Rewrite("fission", read_elements, (GetItem, Take)),
    Rewrite("fission", multiply_tables, (Take,)),
    Rewrite("fission", sum_what_linear_terms_take, (Add,)),
    Rewrite("fission", gather_elements, (AddItem, AddRows, ArrayWrite, PutItem)),
    Rewrite("merge_products", merge_products, (MatMul,)),
    Rewrite("fission", gather_terms, (Add,)),
    Rewrite("fission", compute_before),
    Rewrite("fission", sum_after, (Add,)),
    Rewrite("fission", compute_after, (ArrayAddAt, ArrayWrite)),
    Rewrite("fission", compute_elements, (ArrayRead,)),
)


def split_loops(graph: Graph, operations: Sequence[Operation], targets: Sequence[Symbol | Operation]) -> None:
    """Rewrite the loops of a step, and those inside of loops and branches.

    Args:
        graph: the step's own graph.
        operations: those of it that are needed, in program order.
        targets: what of it is wanted.
    """
    _split(Users(graph, operations, targets), operations, {})


def _split(users: Users, operations: Sequence[Operation], sides: Sides) -> None:
    for operation in operations:
        if not isinstance(operation.op, RegionOp):
            continue
        for region in operation.op.regions:
            _split_region(operation, region, users, sides)
        if isinstance(operation.op, While) and not operation.op.keeps_to_budget:
            _rewrite(LoopView(users, operation, sides))
    if users.is_out_of_order:
        reorder(users.graph, {})


def _split_region(holder: Operation, region: Region, users: Users, sides: Sides) -> None:
    if not region.holds_regions or not holds(region.operations, While):
        return
    takers = [user.op for user in users.takers(holder.outputs[-1])]
    inner = [taker.inner for taker in takers if isinstance(taker, (History, Saved))]
    demanded = [tensor for tensor in inner if tensor.operation.graph is region]
    # Calls may record anything of a recursion's body.
    needed = list(region.operations) if isinstance(region, Body) else needed_in_region(region, demanded)
    _split(Users(region, needed, (*region.results, *demanded)), needed, sides)


def _rewrite(loop: LoopView) -> None:
    for number, rewrite in enumerate(REWRITES):
        if number not in _with_work(loop.kinds) or not is_on(rewrite.name) or not may_rewrite():
            continue
        loop.is_finished = False
        if rewrite.apply(loop):
            if not loop.is_finished:
                loop.finish()
            count_rewrite()
    if is_recording():
        _note_kept(loop)


@lru_cache(maxsize=256)
def _with_work(kinds: frozenset[type[Op]]) -> frozenset[int]:
    """Return the places of the rewrites that may find anything in a body of such ops."""
    return frozenset([number for number, rewrite in enumerate(REWRITES) if is_kind_among(kinds, *rewrite.of)])


def _note_kept(loop: LoopView) -> None:
    """Say of the products that stay which value keeps them inside."""
    for operation in loop.needed:
        if is_heavy(operation) and operation.graph is loop.body:
            note_kept("fission", operation, _reason(loop, operation))


def _reason(loop: LoopView, operation: Operation) -> str:
    held = _recurrent(loop, operation)
    if held is None:
        return f"stays in the loop: {hindrance(loop, operation)}"
    return f"stays in the loop: it takes {held!r}, which the iteration before makes"


def _recurrent(loop: LoopView, operation: Operation) -> str | None:
    """Return the name of a loop variable, other than a counter, that an operation depends on."""
    pending, seen = [operation], {operation}
    while pending:
        for tensor in pending.pop().inputs:
            if is_among(tensor, loop.body.parameters) and loop.form(tensor) is None:
                return tensor.operation.name
            if tensor.operation not in seen and tensor.operation.graph is loop.body:
                seen.add(tensor.operation)
                pending.append(tensor.operation)
    return None


__all__ = ["REWRITES", "Rewrite", "split_loops"]
