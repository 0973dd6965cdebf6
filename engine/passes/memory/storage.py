"""The choice of a buffer for a fused operation: a new one, an operand that dies there, or the variable that it updates.

Decided when a program is printed, from what is used where; nothing is checked at run time.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from ...common.identity import is_among, place_among
from ...common.quick_dataclass import dataclass
from ...control_flow.frames import History, Saved
from ...control_flow.region_op import RegionOp
from ...graph.graph import Operation, Parameter, Placeholder
from ...graph.search import reached
from ...graph.spec import FrameSpec, TensorSpec
from ...graph.state.variable import Variable
from ...graph.state.variable_ops import Assign, ReadVariable
from ...graph.tensor import Symbol
from ...ops.arrays.axes import Transpose
from ...ops.base import Constant
from ...ops.internal.fused import Fused, HorizontallyFused
from ..framework.estimates import bytes_of, is_static
from ..framework.log import note_change
from ..framework.prune import needed_in_region, users_of
from ..framework.switches import is_on

_UNNAMED = (Constant, Saved, Parameter, Placeholder)


@dataclass(frozen=True)
class Buffer:
    """The place where a result is written: the memory of `operand`, of `variable`, or of both, which then are one."""

    operand: Symbol | None = None
    variable: Variable | None = None


def plan_buffers(
    operations: Sequence[Operation], fetches: Iterable[Symbol], shared: Container[Symbol] = ()
) -> dict[Symbol, Buffer]:
    """Return the results of fused operations that need no new buffer.

    Args:
        operations: of a step, in order.
        fetches: what outlives it.
        shared: results that are in memory of something else.
    """
    plan: dict[Symbol, Buffer] = {}
    kept = list(fetches)
    for block, outliving in blocks(operations, kept):
        fused = [operation for operation in block if isinstance(operation.op, (Fused, HorizontallyFused))]
        if not fused:
            continue
        dying = last_uses(block, outliving)
        owned = {tensor for operation in block for tensor in operation.outputs}
        reusable = _reusable_tensors(block, [tensor for tensor in owned if is_fresh(tensor) and tensor not in shared])
        for operation in fused:
            reused = _reused_operands(operation, dying.get(operation, ()), reusable)
            plan.update((result, Buffer(operand)) for result, operand in reused.items())
    for result, buffer in _assigned_in_place(operations, kept).items():
        plan[result] = buffer
    return plan


def note_buffers(
    plan: Mapping[Symbol, Buffer],
    in_slots: Mapping[Symbol, Operation],
    in_rows: Iterable[Symbol],
    apart: Container[Operation],
) -> None:
    """Say what needs no memory of its own: in place of operands, in variables, in TensorArrays and records.

    Args:
        plan: see `plan_buffers`.
        in_slots: see `records.written_into_slots`.
        in_rows: see `records.recorded_in_rows`.
        apart: operations of native regions, which find places for their results themselves.
    """
    for result in [tensor for tensor in plan if tensor.operation not in apart]:
        buffer = plan[result]
        into = [] if buffer.operand is None else [f"over {buffer.operand.operation.name!r}"]
        into += [] if buffer.variable is None else [f"into variable {buffer.variable.name!r}"]
        _note_place(result, f"is written {', '.join(into)}")
    for result in [tensor for tensor in in_slots if tensor.operation not in apart]:
        _note_place(result, f"is computed in its element of the TensorArray that {in_slots[result].name!r} writes")
    for result in [tensor for tensor in in_rows if tensor.operation not in apart]:
        _note_place(result, "is recorded in the rows of one array, not as arrays to be stacked")


def _note_place(tensor: Symbol, text: str) -> None:
    note_change("memory", tensor.operation, f"{text}: {_bytes_text(tensor)}")


def _bytes_text(tensor: Symbol) -> str:
    return f"{bytes_of(tensor.spec):,} bytes" if is_static(tensor) else "as many bytes as its shape has when it runs"


def _assigned_in_place(operations: Sequence[Operation], fetches: Iterable[Symbol]) -> dict[Symbol, Buffer]:
    """Return results of fused operations that may be written straight into the variable to which they are assigned.

    That needs: the step writes the variable once, outside of loops and branches; and no earlier value of it (nor
    anything that may share its memory) is used after the fused operation or fetched.
    """
    order = {operation: position for position, operation in enumerate(operations)}
    fetched = set(fetches)
    accesses, users = _accesses(operations), users_of(operations)
    found: dict[Symbol, Buffer] = {}
    for operation in operations:
        if not isinstance(operation.op, Assign):
            continue
        value, variable = operation.inputs[0], operation.op.variable
        producer = value.operation
        if value in found or not isinstance(producer.op, (Fused, HorizontallyFused)) or producer not in order:
            continue
        if value.spec != variable.spec or not is_static(value) or not _is_written_once(accesses[variable]):
            continue
        reads = _earlier_reads(accesses[variable], users, order, producer, operation, fetched)
        if reads is not None and value.shape and all(_may_replace(producer, value, read) for read in reads):
            found[value] = Buffer(reads[0] if reads else None, variable)
    return found


def _accesses(operations: Sequence[Operation]) -> dict[object, list[Operation]]:
    """Map each resource to the operations that touch it."""
    found: dict[object, list[Operation]] = {}
    for operation in operations:
        for effect in operation.effects:
            found.setdefault(effect.resource, []).append(operation)
    return found


def _is_written_once(accesses: Sequence[Operation]) -> bool:
    return sum(o.writes for o in accesses) == 1 and not any(isinstance(o.op, RegionOp) for o in accesses)


def _earlier_reads(
    accesses: Sequence[Operation],
    users: dict[Symbol, list[Operation]],
    order: dict[Operation, int],
    producer: Operation,
    assignment: Operation,
    fetched: set[Symbol],
) -> list[Symbol] | None:
    """Return the read of the variable that the producer takes, if any; None if an earlier value is still needed."""
    reads: set[Symbol] = set()
    for operation in accesses:
        if isinstance(operation.op, ReadVariable):
            if order[producer] < order[operation] < order[assignment]:
                return None
            if order[operation] < order[producer]:
                reads.update(operation.outputs)
    aliases = with_views(reads, users)
    taken = [tensor for tensor in producer.inputs if tensor in aliases]
    if aliases & fetched or len(taken) > 1 or not reads.issuperset(taken):
        return None
    used_later = any(order[user] > order[producer] for tensor in aliases for user in users.get(tensor, ()))
    return None if used_later else taken


def with_views(tensors: Iterable[Symbol], users: dict[Symbol, list[Operation]]) -> set[Symbol]:
    """Return `tensors` and all that may share their memory."""

    def views_of(tensor: Symbol) -> list[Symbol]:
        sharing = [user for user in users.get(tensor, ()) if user.op.view or isinstance(user.op, RegionOp)]
        return [output for user in sharing for output in user.outputs]

    return reached(tensors, views_of)


def _reused_operands(operation: Operation, dying: Iterable[Symbol], reusable: set[Symbol]) -> dict[Symbol, Symbol]:
    """Map results of a fused operation to operands of the same spec that nothing else needs: they are overwritten."""
    free = [tensor for tensor in dying if tensor in reusable and is_among(tensor, operation.inputs)]
    found: dict[Symbol, Symbol] = {}
    for result in operation.outputs:
        match = next((tensor for tensor in free if _may_replace(operation, result, tensor)), None)
        if match is not None:
            found[result] = match
            free = [tensor for tensor in free if tensor is not match]
    return found


def laid_out_first(operation: Operation, fresh: Iterable[Symbol]) -> dict[Symbol, Symbol]:
    """Return a transposed operand, which a fused kernel needs contiguous, with the result whose memory it is put into.

    Args:
        operation: the operation.
        fresh: those of its results that are written into memory of their own.
    """
    if not isinstance(operation.op, Fused) or not is_on("memory"):
        return {}
    transposed = [tensor for tensor in operation.inputs if _is_rearranged(tensor)]
    for operand in transposed:
        for result in fresh:
            if _may_replace(operation, result, operand):
                return {operand: result}
    return {}


def _is_rearranged(tensor: Symbol) -> bool:
    """Test whether a transpose moved axes of more than one element past each other."""
    op, shape = tensor.operation.op, tensor.shape
    if not isinstance(op, Transpose) or shape is None or None in shape:
        return False
    moved = [axis for axis, dim in zip(op.order(len(shape)), shape, strict=True) if dim != 1]
    return moved != sorted(moved)


def _may_replace(operation: Operation, result: Symbol, operand: Symbol) -> bool:
    """Test whether a fused operation may write a result over an operand."""
    op, new, old = operation.op, result.spec, operand.spec
    if new != old or not isinstance(new, TensorSpec) or not isinstance(old, TensorSpec):
        return False
    if isinstance(op, HorizontallyFused):
        place = place_among(result, operation.outputs)
        taken = [position for position, tensor in enumerate(operation.inputs) if tensor is operand]
        return all(op.may_replace(place, position) for position in taken)  # several members may take the operand
    return not isinstance(op, Fused) or op.may_replace(new, old)


def _reusable_tensors(operations: Sequence[Operation], fresh: Iterable[Symbol]) -> set[Symbol]:
    """Return those of `fresh` (values nothing else refers to) that no operation passes on as a view, or to a region."""
    passed_on = {
        tensor
        for operation in operations
        if operation.op.view or isinstance(operation.op, RegionOp)
        for tensor in operation.inputs
    }
    return {t for t in fresh if t not in passed_on and is_static(t) and t.shape}


# --- lifetimes ------------------------------------------------------------------------------------------------------


def is_fresh(tensor: Symbol) -> bool:
    """Test whether the value of `tensor` is an array that nothing else refers to when its operation has run."""
    op = tensor.operation.op
    return not op.view and not isinstance(op, (RegionOp, Parameter, Placeholder, History))


def last_uses(operations: Sequence[Operation], kept: Iterable[Symbol]) -> dict[Operation, list[Symbol]]:
    """Map each operation of a block to the tensors made in it that nothing after it uses; `kept` ones live on.

    Only Python variables of their own are listed: constants, frames and saved values are none.
    """
    named = [operation for operation in operations if not isinstance(operation.op, _UNNAMED)]
    made = [tensor for operation in named for tensor in operation.outputs if type(tensor.spec) is not FrameSpec]
    owned = set(made).difference(kept)
    dying: dict[Operation, list[Symbol]] = {}
    for operation in reversed(operations):
        for tensor in (*operation.inputs, *operation.outputs):
            if tensor in owned:
                owned.remove(tensor)
                dying.setdefault(operation, []).append(tensor)
    return dying


def blocks(
    operations: Sequence[Operation], kept: Iterable[Symbol]
) -> Iterator[tuple[Sequence[Operation], set[Symbol]]]:
    """Yield the blocks of a step: its operations and those of every region inside, each with what outlives the block.

    Args:
        operations: of the step, whose regions passes have settled, or of a block inside.
        kept: what outlives it.
    """
    yield operations, set(kept)
    for operation in operations:
        for inner, outliving in inner_blocks(operation):
            yield from blocks(inner, outliving)


def inner_blocks(operation: Operation) -> Iterator[tuple[Sequence[Operation], set[Symbol]]]:
    """Yield the blocks of the regions of an operation, which passes have settled, each with what outlives it."""
    for region in operation.op.regions:
        yield needed_in_region(region, region.demanded), {*region.results, *region.demanded}
