"""Updates of rows of a variable that need not know which rows are named twice.

A variable's rows are read, something is added to each, and they are written back: for that each must be named once, so
the positions are sorted, and what belongs to the same row is added up first. But where what is added is a sum, times a
number, its terms can be added to the rows one by one, in the order in which they come: one pass over them, with no
sorting. This holds for gradient descent on a table, and for ``scatter_add``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..graph.graph import Graph, Operation
from ..graph.identity import is_same
from ..graph.op import Op
from ..graph.quick_dataclass import dataclass
from ..graph.spec import TensorSpec
from ..graph.tensor import Symbol
from ..ops.elementwise import Add, Multiply, Subtract
from ..ops.gathering import Take
from ..ops.indexed_slices import AddToRows, AssignRows, FrontPositions
from ..ops.joining import Concatenate
from ..ops.reduced import BroadcastReduced, Sum
from ..ops.run_time_shapes import ReshapeToShape
from ..ops.segments import SegmentSum
from ..ops.shaping import Reshape, SizeOf
from ..ops.sorting import UniquePositions
from ..ops.sum_of_rows import SumOfParts, SumOfRepeated, SumOfRows
from .log import note_change
from .prune import Kept, holds, inner_blocks, kept_of

_FLOATS = ("float32", "float64")


@dataclass(frozen=True)
class _Terms:
    """The terms that are added to rows: they have a row each, times a scale."""

    rows: Symbol
    scale: tuple[Symbol, ...]


def add_rows_at_once(graph: Graph, operations: Sequence[Operation], kept: Iterable[Symbol | Operation]) -> None:
    """Rewrite such updates among `operations` of `graph`, and sums of rows taken from a table; in regions inside, too.

    Args:
        kept: tensors whose values are wanted from outside, and operations.
    """
    if holds(operations, AssignRows, Take, SegmentSum):
        _visit(operations, kept_of(graph, operations, kept))


def _visit(operations: Sequence[Operation], kept: Kept) -> None:
    uses = Counter(tensor for operation in operations for tensor in operation.inputs)
    for operation in operations:
        for _, inside, wanted in inner_blocks(operation, kept):
            _visit(inside, wanted)
        if type(operation.op) is AssignRows:
            _rewrite(operation, operation.op)
        if type(operation.op) is Sum and uses[operation.inputs[0]] == 1 and operation.inputs[0] not in kept.own:
            _sum_at_once(operation, operation.op)
    for operation in operations:  # when none of them is looked for any more
        if type(operation.op) is SegmentSum:
            _sum_repeated(operation, operation.op)
        if type(operation.op) is SegmentSum and uses[operation.inputs[0]] == 1 and operation.inputs[0] not in kept.own:
            _sum_parts(operation, operation.op)


def _sum_repeated(operation: Operation, op: SegmentSum) -> None:
    """Add rows up by segments without repeating them first."""
    rows, ids, count = operation.inputs
    if not isinstance(rows.spec, TensorSpec) or rows.dtype.name not in _FLOATS or operation.control_inputs:
        return
    once, repeats = _repeated(rows, rows)
    if repeats > 1:
        note_change("row_updates", operation, "adds up rows by segments without repeating them first")
        operation.op, operation.inputs = SumOfRepeated(op.count, repeats), (once, ids, count)


def _sum_parts(operation: Operation, op: SegmentSum) -> None:
    """Add up rows that lie in several arrays without joining these first."""
    rows, ids, count = operation.inputs
    joining = rows.operation.op
    if not isinstance(joining, Concatenate) or rows.operation.control_inputs or operation.control_inputs:
        return
    shapes = [part.shape for part in rows.operation.inputs]
    if rows.dtype.name not in _FLOATS or any(not shape or None in shape[1:] for shape in shapes):
        return
    if joining.axis % len(shapes[0] or ()) == 0:
        note_change("row_updates", operation, "adds up rows of several arrays without joining them")
        operation.op, operation.inputs = SumOfParts(op.count), (ids, count, *rows.operation.inputs)


def _sum_at_once(operation: Operation, op: Sum) -> None:
    """Add up rows without writing them down, where they are taken from a table for nothing else."""
    (rows,) = operation.inputs
    take = rows.operation.op
    if not isinstance(take, Take) or rows.operation.control_inputs or operation.control_inputs:
        return
    table, ids = rows.operation.inputs
    is_second = op.axes is not None and rows.shape is not None and [axis % len(rows.shape) for axis in op.axes] == [1]
    if not is_second or op.keepdims or op.accumulator is not None or take.axis != 0 or not take.wrap:
        return
    is_known = isinstance(table.spec, TensorSpec) and table.spec.shape is not None and len(table.spec.shape) > 1
    if not is_known or ids.shape is None or len(ids.shape) != 2 or table.dtype.name not in _FLOATS:
        return
    note_change("row_updates", operation, "adds up rows without writing them down")
    operation.op, operation.inputs = SumOfRows(), (table, ids)


def _rewrite(operation: Operation, op: AssignRows) -> None:
    whole, positions, rows = operation.inputs
    if not isinstance(whole.spec, TensorSpec) or whole.dtype.name not in _FLOATS:
        return
    unique = unique_rows(positions)
    found = None if unique is None else _added(rows, whole, unique)
    if unique is None or found is None:
        return
    delta, sign = found
    items, first = unique.operation.inputs
    every = _vector_of(items)
    terms = _terms(delta, unique, first.operation)
    if terms is None:
        return
    values, repeats = _repeated(terms.rows, whole)
    note_change("row_updates", operation, "adds to rows one by one, without sorting their positions")
    operation.op = AddToRows(op.variable, sign, repeats)
    operation.inputs = (whole, every, values, *terms.scale)


def unique_rows(positions: Symbol) -> Symbol | None:
    """Those `positions` of rows, counted from the front, if each row is known to be named once."""
    unique = positions.operation.inputs[0] if _is_made_by(positions, FrontPositions) else positions
    first = unique.operation.inputs[1] if _is_made_by(unique, Take) else None
    if first is None or not _is_made_by(first, UniquePositions) or first.index:
        return None
    items = unique.operation.inputs[0]
    is_whole = first.operation.inputs[0] is items and _is_made_by(_vector_of(items), FrontPositions)
    return unique if is_whole else None


def _vector_of(items: Symbol) -> Symbol:
    """The vector of which `items` is nothing but another form."""
    if not _is_made_by(items, Reshape) and not _is_made_by(items, ReshapeToShape):
        return items
    source = items.operation.inputs[0]
    is_vector = source.shape is not None and len(source.shape) == 1
    return source if is_vector and items.shape is not None and len(items.shape) == 1 else items


def _is_made_by(tensor: Symbol, kind: type[Op]) -> bool:
    return isinstance(tensor.operation.op, kind) and not tensor.operation.control_inputs


def _added(rows: Symbol, whole: Symbol, unique: Symbol) -> tuple[Symbol, int] | None:
    """Return the tensor that is added to the rows of `whole` named in `unique`, and its sign."""
    if not _is_made_by(rows, Add) and not _is_made_by(rows, Subtract):
        return None
    left, right = rows.operation.inputs
    is_sum = isinstance(rows.operation.op, Add)
    if _are_rows(left, whole, unique):
        return right, 1 if is_sum else -1
    return (left, 1) if is_sum and _are_rows(right, whole, unique) else None


def _are_rows(tensor: Symbol, whole: Symbol, unique: Symbol) -> bool:
    op = tensor.operation.op
    return isinstance(op, Take) and op.axis == 0 and is_same(tensor.operation.inputs, (whole, unique))


def _terms(delta: Symbol, unique: Symbol, positions: Operation) -> _Terms | None:
    """Return the terms of a sum by `positions`, maybe times a number; None for anything else."""
    total, scale = delta, ()
    if _is_made_by(delta, Multiply):
        scalars = [tensor for tensor in delta.operation.inputs if tensor.shape == ()]
        others = [tensor for tensor in delta.operation.inputs if tensor.shape != ()]
        if len(scalars) != 1 or scalars[0].dtype != delta.dtype:
            return None
        (total,), scale = others, tuple(scalars)
    if not _is_made_by(total, SegmentSum):
        return None
    rows, places, count = total.operation.inputs
    counts_rows = _is_made_by(count, SizeOf) and count.operation.inputs[0] is unique
    places = _vector_of(places)
    is_whole = places.operation is positions and places.index == 1 and counts_rows
    return _Terms(rows, scale) if is_whole else None


def _repeated(rows: Symbol, whole: Symbol) -> tuple[Symbol, int]:
    """Return the source of repeated rows and how often each is repeated, in order; `rows` and 1 if they are not."""
    source = rows.operation.inputs[0] if _is_made_by(rows, Reshape) or _is_made_by(rows, ReshapeToShape) else None
    if source is None or not isinstance(source.operation.op, BroadcastReduced):
        return rows, 1
    op, once = source.operation.op, source.operation.inputs[0]
    shape, rest = source.shape or (), (whole.shape or ())[1:]
    if len(shape) < 2 or len(shape) != 2 + len(rest) or None in rest or op.axes is None:
        return rows, 1
    first, repeats = shape[:2]
    is_second = [axis % len(shape) for axis in op.axes] == [1]
    fits = is_second and (rows.shape or ())[1:] == rest and once.shape == (first, *rest)
    return (once, repeats) if fits and repeats else (rows, 1)
