"""An analysis of updates of arrays (`slice_update`, scatters) that may write into the memory of what they update.

Such an operation copies its first input, and changes the copy. The copy is not needed where that input is an array of
its own that nothing uses afterwards. A loop variable is one, too, if nothing else refers to the value that each
iteration gives it: the loop then begins with a copy, and its iterations make none.

Decided when a program is printed, as in `storage`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import field

from ...common.identity import is_among
from ...common.quick_dataclass import dataclass
from ...control_flow.call import Recursion
from ...control_flow.region_op import RegionOp
from ...control_flow.while_loop import While
from ...graph.graph import Operation
from ...graph.spec import TensorSpec
from ...graph.state.variable_ops import ReadVariable
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ..framework.log import note_change
from ..framework.prune import users_of
from .storage import inner_blocks, is_fresh, with_views


@dataclass
class Updates:
    """The updates of a step that need no copy.

    Attributes:
        in_place: those that may run by `Op.run_over`, in order.
        variables: the parameters of loop bodies that they change: their first values are copied before the loop.
    """

    in_place: dict[Operation, None] = field(default_factory=dict[Operation, None])
    variables: set[Symbol] = field(default_factory=set[Symbol])


def updates_in_place(
    operations: Sequence[Operation],
    fetches: Iterable[Symbol],
    shared: Container[Symbol] = (),
    beside: Iterable[Operation] = (),
) -> Updates:
    """Find the updates that may write into the memory of their first inputs.

    Args:
        operations: of a step, in order.
        fetches: what outlives it.
        shared: results that are in memory of something else.
        beside: operations that run side by side with others, which may still read what comes before in the order.
    """
    found = Updates()
    _find(operations, set(fetches), set(), shared, found)
    for operation in beside:
        found.in_place.pop(operation, None)
    for operation in found.in_place:
        note_change("memory", operation, f"is written into {operation.inputs[0].operation.name!r}, without a copy")
    return found


def _find(
    block: Sequence[Operation],
    outliving: set[Symbol],
    owned: set[Symbol],
    shared: Container[Symbol],
    found: Updates,
) -> None:
    """Find those of a block and of the regions inside; `owned` are parameters whose values nothing else refers to."""
    updating = [operation for operation in block if operation.op.updates_first]
    if updating:
        order = {operation: position for position, operation in enumerate(block)}
        users = users_of(block)
        for operation in updating:
            target = operation.inputs[0]
            if target not in owned and not _is_own(target, order, shared):
                continue
            if _ends_with(operation, order, users, outliving):
                found.in_place[operation] = None
                found.variables.update(owned & {target})
    for operation in block:
        if isinstance(operation.op, Recursion):  # frames of calls may hold what an iteration had
            continue
        inner = list(inner_blocks(operation))
        variables: set[Symbol] = set()
        if isinstance(operation.op, While):
            variables = _own_variables(operation.op, *inner[1], shared)
        for position, (operations, kept) in enumerate(inner):
            _find(operations, kept, variables if position == 1 else set(), shared, found)


def _is_own(tensor: Symbol, made: Container[Operation], shared: Container[Symbol]) -> bool:
    """Test whether a tensor is an array that an operation of the block has made, and that is nowhere else."""
    operation = tensor.operation
    if operation not in made or tensor in shared or isinstance(operation.op, (Constant, ReadVariable)):
        return False
    return is_fresh(tensor) and _is_array(tensor)


def _is_array(tensor: Symbol) -> bool:
    spec = tensor.spec
    return isinstance(spec, TensorSpec) and spec.shape is not None and len(spec.shape) > 0 and spec.dtype.kind != "T"


def _ends_with(
    update: Operation, order: dict[Operation, int], users: dict[Symbol, list[Operation]], outliving: set[Symbol]
) -> bool:
    """Test whether nothing needs the first input of an update, nor what may share its memory, but the update."""
    target = update.inputs[0]
    aliases = with_views([target], users)  # an update gives no view
    if not _is_array(target) or not aliases.isdisjoint(outliving) or not aliases.isdisjoint(update.inputs[1:]):
        return False
    using = [user for alias in aliases for user in users.get(alias, ()) if user is not update]
    return all(order[user] < order[update] and _gives_arrays(user) for user in using)


def _gives_arrays(operation: Operation) -> bool:
    """Test whether nothing but the results of an operation can refer to its inputs when it has run."""
    if operation.effects or isinstance(operation.op, RegionOp):
        return False
    return all(isinstance(tensor.spec, TensorSpec) for tensor in operation.outputs)


def _own_variables(
    op: While, block: Sequence[Operation], outliving: set[Symbol], shared: Container[Symbol]
) -> set[Symbol]:
    """Return the parameters of a loop's body whose values, from the second iteration on, nothing else refers to.

    Args:
        op: the loop.
        block: the operations of its body.
        outliving: the body's results, and what is recorded.
        shared: see `updates_in_place`.
    """
    if op.condition.demanded or not any(operation.op.updates_first for operation in block):
        return set()
    made, users = set(block), users_of(block)
    found: set[Symbol] = set()
    for parameter, result in zip(op.body.parameters, op.body.results, strict=True):
        if sum(result is other for other in op.body.results) > 1 or is_among(result, op.body.demanded):
            continue
        if parameter.spec != result.spec or not _is_own(result, made, shared):
            continue
        aliases = with_views([result], users)
        using = [user for alias in aliases for user in users.get(alias, ())]
        if (aliases & outliving) == {result} and all(map(_gives_arrays, using)):
            found.add(parameter)
    return found


__all__ = ["Updates", "updates_in_place"]
