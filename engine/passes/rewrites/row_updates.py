"""Add terms to rows of a variable one by one, without sorting the positions at which they are added.

A variable's rows are read, something is added to each, and they are written back: for that each must be named once, so
the positions are sorted, and what belongs to the same row is added up first. But where what is added is a sum, times a
number, its terms can be added to the rows one by one, in the order in which they come: one pass over them, with no
sorting. This holds for gradient descent on a table, and for ``scatter_add``; and where the rows become a whole array of
zeros elsewhere, as gradients of tables do for optimizers that change all rows. Sums of rows that are taken, repeated or
joined for a sum alone read them where they are.

A variable that is assigned its own value with some parts replaced, as a cache of keys and values is in each step of a
decoder, has these parts written in its own memory, and the rest is not copied.
"""

from __future__ import annotations

import numpy as np

from ...graph.graph import Operation
from ...graph.region import Region
from ...graph.spec import Shape, TensorSpec
from ...graph.state.variable import Variable
from ...graph.state.variable_ops import Assign, ReadVariable
from ...graph.tensor import Symbol
from ...ops.arrays.front_positions import FrontPositions
from ...ops.arrays.gathering import PutRows, Take
from ...ops.arrays.joining import Concatenate
from ...ops.arrays.scattering import FlatPlaces, ScatterUpdate
from ...ops.arrays.segments import SegmentSum
from ...ops.arrays.shaping import Reshape, SizeOf
from ...ops.arrays.sorting import UniquePositions
from ...ops.base import Constant
from ...ops.containers.indexed_slices import AddToRows, AssignRows
from ...ops.internal.assign_parts import AssignParts, AssignWindow
from ...ops.internal.sum_of_rows import SumOfParts, SumOfRepeated, SumOfRows
from ...ops.math.elementwise import Add, Multiply, Subtract
from ...ops.math.reduced import BroadcastReduced, Sum
from ...ops.run_time_shapes import ReshapeToShape
from ...ops.signal.windows import SliceUpdate
from ..framework import changes
from ..framework.driver import Change, Rule
from ..framework.patterns import Match, any_of, only_use, op, tensor
from ..framework.rewriter import Rewriter

_FLOATS = ("float32", "float64")


# --- what operations must be ----------------------------------------------------------------------------------------


def _is_float(tensor: Symbol) -> bool:
    return isinstance(tensor.spec, TensorSpec) and tensor.dtype.name in _FLOATS


def _is_table(tensor: Symbol) -> bool:
    return _is_float(tensor) and len(tensor.shape or ()) > 1


def _is_matrix(tensor: Symbol) -> bool:
    return len(tensor.shape or ()) == 2


def _is_number(tensor: Symbol) -> bool:
    return tensor.shape == ()


def _keeps_vector(reshape: Operation) -> bool:
    return all(len(tensor.shape or ()) == 1 for tensor in (reshape.inputs[0], reshape.outputs[0]))


def _keeps_dtype(product: Operation) -> bool:
    return all(factor.dtype == product.outputs[0].dtype for factor in product.inputs)


def _takes_rows(take: Operation) -> bool:
    return isinstance(take.op, Take) and take.op.axis == 0


def _wraps_rows(take: Operation) -> bool:
    return isinstance(take.op, Take) and take.op.wrap and _takes_rows(take)


def _assigns(write: Operation) -> bool:
    return type(write.op) is AssignRows


def _is_over_second(total: Operation) -> bool:
    """Test that a sum is over the second axis of its input, which goes."""
    own = total.op
    if not isinstance(own, Sum) or own.keepdims or own.accumulator is not None:
        return False
    return _is_second(own.axes, total.inputs[0].shape)


def _repeats_second(repeat: Operation) -> bool:
    """Test that a sum's cotangent is repeated along a new second axis."""
    return isinstance(repeat.op, BroadcastReduced) and _is_second(repeat.op.axes, repeat.outputs[0].shape)


def _is_second(axes: tuple[int, ...] | None, shape: Shape) -> bool:
    return axes is not None and shape is not None and [axis % len(shape) for axis in axes] == [1]


def _joins_rows(joining: Operation) -> bool:
    """Test that arrays of rows are joined along their first axis, whose rows have a known size."""
    shapes = [part.shape for part in joining.inputs]
    if not isinstance(joining.op, Concatenate) or not _is_float(joining.outputs[0]):
        return False
    return all(shape and None not in shape[1:] for shape in shapes) and joining.op.axis % len(shapes[0] or ()) == 0


def _puts_rows(put: Operation) -> bool:
    return isinstance(put.op, PutRows) and put.op.axis == 0


# --- updates of rows ------------------------------------------------------------------------------------------------

_front = op(FrontPositions, name="front")
_positions = any_of(_front, op(Reshape, ReshapeToShape, of=[_front], where=_keeps_vector), name="positions")
_sorted = op(UniquePositions, of=[_positions], name="sorted", output=0)
_which = op(UniquePositions, of=[_positions], name="sorted", output=1)
_unique = op(Take, of=[_positions, _sorted], name="unique")
_named_once = any_of(op(FrontPositions, of=[_unique]), _unique)

_row_ids = any_of(_which, op(Reshape, ReshapeToShape, of=[_which], where=_keeps_vector))
_sum = op(SegmentSum, of=[tensor("terms"), _row_ids, op(SizeOf, of=[_unique])])
_delta = any_of(_sum, op(Multiply, of=[tensor("scale", _is_number), _sum], any_order=True, where=_keeps_dtype))
_rows = op(Take, of=[tensor("whole"), _unique], where=_takes_rows)
_added = any_of(op(Add, of=[_rows, _delta], any_order=True), op(Subtract, of=[_rows, _delta], name="difference"))
_update = op(
    AssignRows, of=[tensor("whole", _is_float), _named_once, _added], name="update", where=_assigns, may_wait=True
)
_put = op(PutRows, of=[_sum, _unique, tensor("shape")], name="put", where=_puts_rows)
_repeated = op(
    Reshape, ReshapeToShape, of=[op(BroadcastReduced, of=[tensor("once")], name="repeat", where=_repeats_second)]
)


def unique_rows(positions: Symbol) -> Symbol | None:
    """Return those `positions` of rows, counted from the front, if each row is known to be named once."""
    match = _named_once.match(positions.operation)
    return None if match is None else match["unique"].outputs[0]


def _add_one_by_one(match: Match, step: Rewriter) -> Change:
    update, whole = match["update"], match["whole"]
    values, repeats = _without_repeats(match["terms"], (whole.shape or ())[1:])
    scale = [match["scale"]] if "scale" in match else []
    sign = -1 if "difference" in match else 1
    inputs = (whole, match["front"].outputs[0], values, *scale)
    step.update(update, AddToRows(update.op.variable, sign, repeats), inputs)
    return Change(update, "adds to rows one by one, without sorting their positions")


def _put_one_by_one(match: Match, step: Rewriter) -> Change:
    put = match["put"]
    step.update(put, put.op, (match["terms"], match["front"].outputs[0], match["shape"]))
    return Change(put, "adds rows one by one, without sorting their positions")


def _without_repeats(rows: Symbol, row: tuple[int | None, ...]) -> tuple[Symbol, int]:
    """Return the source of repeated rows and how often each is repeated, in order; `rows` and 1 if they are not.

    Args:
        rows: a tensor.
        row: the shape that its rows must have.
    """
    match = _repeated.match(rows.operation)
    if match is None or None in row or (rows.shape or ())[1:] != row:
        return rows, 1
    once, (first, repeats, *rest) = match["once"], match["repeat"].outputs[0].shape
    fits = tuple(rest) == row and once.shape == (first, *row)
    return (once, repeats) if fits and repeats else (rows, 1)


# --- parts of a variable --------------------------------------------------------------------------------------------


def _names_parts(replace: Operation) -> bool:
    """Test that parts are named by a list of indices, and that all sizes of the whole are known."""
    return _is_of_known_whole(replace) and len(replace.inputs[1].shape or ()) == 2


def _is_of_known_whole(replace: Operation) -> bool:
    """Test that all sizes of the whole are known, outside of loops and branches."""
    whole = replace.inputs[0]
    return bool(whole.shape) and None not in whole.shape and not isinstance(replace.graph, Region)


def _assign_parts(match: Match, step: Rewriter) -> Change | None:
    """Let the replacement of parts write the variable, in the place of the assignment that follows."""
    read, replace, assign, variable = match["read"], match["replace"], match["assign"], match["assign"].op.variable
    whole, places, parts = replace.inputs
    waits = any(operation.index > replace.index for operation in assign.control_inputs)
    if read.op.variable is not variable or waits or _is_touched(variable, read, replace, assign):
        return None
    changes.wait_also(replace, assign.control_inputs)
    if isinstance(replace.op, SliceUpdate):
        step.update(replace, AssignWindow(variable), [whole, places, parts])
    else:
        write = AssignParts(variable, int(places.shape[1]))
        step.update(replace, write, [whole, _flat_positions(replace, step), parts])
    step.replace_uses(assign.outputs[0], replace.outputs[0])
    step.wanted = [replace if operation is assign else operation for operation in step.wanted]
    step.erase(assign, instead=replace)
    return Change(replace, "writes parts in the memory of the variable")


def _is_touched(variable: Variable, read: Operation, replace: Operation, assign: Operation) -> bool:
    """Test whether a variable is written behind the read, or used between the replacement and the assignment."""
    return any(
        effect.resource is variable and (effect.writes or operation.index > replace.index)
        for operation in replace.graph.operations
        if read.index < operation.index < assign.index
        for effect in operation.effects
    )


def _flat_positions(replace: Operation, step: Rewriter) -> Symbol:
    """Return the positions that indices name, which all writes by the same indices share."""
    whole, indices, _ = replace.inputs
    for user in step.users(indices):
        if user.index < replace.index and isinstance(user.op, FlatPlaces):
            sizes = user.inputs[1].operation.op
            if isinstance(sizes, Constant) and tuple(sizes.value) == whole.shape:
                return user.outputs[0]
    sizes = step.insert(replace.graph, Constant(np.array(whole.shape, "int64")), [], replace)
    return step.insert(replace.graph, FlatPlaces(), [indices, sizes.outputs[0]], replace).outputs[0]


# --- sums of rows ---------------------------------------------------------------------------------------------------


def _sum_where_they_are(match: Match, step: Rewriter) -> Change:
    step.update(match["sum"], SumOfRows(), (match["table"], match["ids"]))
    return Change(match["sum"], "adds up rows without writing them down")


def _sum_without_repeats(match: Match, step: Rewriter) -> Change | None:
    rows, (_, ids, count) = match["rows"], match["sum"].inputs
    once, repeats = _without_repeats(rows, (rows.shape or ())[1:])
    if repeats < 2:
        return None
    step.update(match["sum"], SumOfRepeated(match["sum"].op.count, repeats), (once, ids, count))
    return Change(match["sum"], "adds up rows by segments without repeating them first")


def _sum_parts(match: Match, step: Rewriter) -> Change:
    _, ids, count = match["sum"].inputs
    step.update(match["sum"], SumOfParts(match["sum"].op.count), (ids, count, *match["parts"].inputs))
    return Change(match["sum"], "adds up rows of several arrays without joining them")


_taken = only_use(op(Take, of=[tensor("table", _is_table), tensor("ids", _is_matrix)], where=_wraps_rows))
_of_any = op(SegmentSum, of=[tensor("rows", _is_float)], name="sum")
_of_parts = op(SegmentSum, of=[only_use(op(Concatenate, name="parts", where=_joins_rows))], name="sum")
_parts = op(ScatterUpdate, of=[op(ReadVariable, name="read")], name="replace", where=_names_parts)
_window = op(SliceUpdate, of=[op(ReadVariable, name="read")], name="replace", where=_is_of_known_whole)
UPDATES = (
    Rule("write parts of a variable", op(Assign, of=[_parts], name="assign", may_wait=True), _assign_parts),
    Rule("write a window of a variable", op(Assign, of=[_window], name="assign", may_wait=True), _assign_parts),
    Rule("add to rows one by one", _update, _add_one_by_one),
    Rule("put rows one by one", _put, _put_one_by_one),
    Rule("add up rows of a table", op(Sum, of=[_taken], name="sum", where=_is_over_second), _sum_where_they_are),
)
SUMS = (  # they change what updates look for
    Rule("add up rows that are repeated", _of_any, _sum_without_repeats),
    Rule("add up rows of several arrays", _of_parts, _sum_parts),
)

__all__ = ["SUMS", "UPDATES", "unique_rows"]
