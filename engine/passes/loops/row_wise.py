"""An analysis of loops that compute each row of a batch for itself, and keep rows in steps that do not count.

Such a loop carries states ``where(live, new, old)``, where `live` is a mask that is known before the loop (`masks.py`),
and every operation between treats the first axis of what it takes row by row.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from ...common.identity import is_among, place_among
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import axis_map_of
from ...graph.graph import Operation, Parameter
from ...graph.op import Op
from ...graph.search import reached
from ...graph.spec import ArraySpec, TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.shaping import BroadcastTo, Reshape
from ...ops.base import Constant
from ...ops.containers.tensor_arrays import ArrayNew, ArrayRead, ArrayWrite
from ...ops.run_time_shapes import BroadcastToShape, ReshapeToShape, ZerosOfShape
from .batches import is_heavy
from .elements import part_taken
from .linear import array_size
from .masks import (
    Mask,
    NotRowWiseError,
    check_known_before,
    is_one_of,
    is_unchanged,
    kept_by,
    kept_by_arithmetic,
    masks_of_rows,
    rows_begin,
    rows_of,
    where_dead,
    why_not_arithmetic,
)
from .sums import is_zero
from .view import LoopView, is_static, may_lack_elements

_RESHAPING = (Reshape, ReshapeToShape)
_OF_A_SHAPE = (*_RESHAPING, BroadcastTo, BroadcastToShape)


@dataclass
class RowWise:
    """A loop over rows, some of which are not live in some steps.

    Attributes:
        rows: how many there are.
        masks: those by which states are kept. A row is live where any of them says so.
        begins: rows begin one by one, rather than end.
        counters: the positions of loop variables that count.
        states: the positions of loop variables that hold rows.
        lasts: the positions of loop variables that hold what the latest step made of rows, and that no step takes.
        outputs: the positions of arrays of which each step writes an element.
        rests: for each of `lasts` and `outputs` the state that it shows where a row is not live; None stands for zeros.
        read: elements of arrays, by rows; those of tensors (``x[t]``), too.
        captured: captured values that have rows.
        in_rows: tensors of the body that have rows.
        uniform: constants of the body as large as rows, with the one number that they hold.
        needed: the operations of the body that each step runs.
    """

    rows: int
    masks: list[Mask]
    begins: bool = False
    counters: list[int] = field(default_factory=list[int])
    states: list[int] = field(default_factory=list[int])
    lasts: list[int] = field(default_factory=list[int])
    outputs: list[int] = field(default_factory=list[int])
    rests: dict[int, int | None] = field(default_factory=dict[int, "int | None"])
    read: list[Operation] = field(default_factory=list[Operation])
    captured: list[Symbol] = field(default_factory=list[Symbol])
    in_rows: set[Symbol] = field(default_factory=set[Symbol])
    uniform: dict[Symbol, Any] = field(default_factory=dict[Symbol, Any])
    needed: list[Operation] = field(default_factory=list[Operation])

    @property
    def carried(self) -> list[int]:
        """The positions of all loop variables but arrays: those that count come first."""
        return [*self.counters, *self.states, *self.lasts]


def row_wise(loop: LoopView) -> RowWise | None:
    """Return the analysis of a loop over rows; None if it has no states that are kept where a mask says so.

    Raises:
        NotRowWiseError: it has some, but more than that.
    """
    if not any(is_heavy(operation) for operation in loop.needed):
        return None
    masks = masks_of_rows(loop)
    if not masks:
        return None
    if loop.trips is None:
        raise NotRowWiseError("the number of iterations is not known before the loop starts")
    found = RowWise(rows_of(masks[0]), masks, begins=rows_begin(loop, masks))
    _find_source(loop, found)
    _sort_variables(loop, found)
    _check_operations(loop, found)
    return found


# --- what is live ---------------------------------------------------------------------------------------------------


def _find_source(loop: LoopView, found: RowWise) -> None:
    if len({mask.bools for mask in found.masks}) < len(found.masks):
        raise NotRowWiseError("it keeps rows by a mask and by its opposite, so that all are live")
    for mask in found.masks:
        check_known_before(loop, mask)
    found.in_rows.update(mask.bools for mask in found.masks)
    found.needed = _needed(loop, found)


def _needed(loop: LoopView, found: RowWise) -> list[Operation]:
    """Return the operations of the body that stay where it reads its masks: all but those that only the masks need."""
    starts = [*loop.body.results, *[tensor for o in loop.needed if o.effects for tensor in o.inputs]]
    masks = {mask.bools for mask in found.masks}
    tensors = reached(starts, lambda tensor: () if tensor in masks else tensor.operation.inputs)
    seen = {tensor.operation for tensor in tensors - masks}
    return [operation for operation in loop.needed if operation.effects or operation in seen]


# --- loop variables -------------------------------------------------------------------------------------------------


def _sort_variables(loop: LoopView, found: RowWise) -> None:
    for position, (parameter, result) in enumerate(zip(loop.body.parameters, loop.body.results, strict=True)):
        if isinstance(parameter.spec, ArraySpec):
            found.outputs.append(position)
        elif loop.form(parameter) is not None:
            found.counters.append(position)
        elif _has_rows(parameter, found) and _is_kept(loop, found, parameter, result):
            found.states.append(position)
            found.in_rows.add(parameter)
        elif parameter not in loop.uses and not loop.is_tested(position) and _has_rows(result, found):
            found.lasts.append(position)
        else:
            raise NotRowWiseError(_why_not_kept(loop, position))
    for position in found.outputs:
        found.rests[position] = _rest(loop, found, position)
    for position in found.lasts:
        name = f"loop variable {loop.body.parameters[position].operation.name!r}"
        found.rests[position] = _where_dead(loop, found, loop.body.results[position], name)


def _is_kept(loop: LoopView, found: RowWise, parameter: Symbol, result: Symbol) -> bool:
    """Test whether a loop variable stays as it is where rows are not live."""
    return is_unchanged(loop, parameter) or is_one_of(loop, kept_by(result, parameter), found.masks)


def _why_not_kept(loop: LoopView, position: int) -> str:
    name, bools = loop.body.parameters[position].operation.name, kept_by_arithmetic(loop.body, position)
    if bools is not None:
        return why_not_arithmetic(name, bools)
    return f"loop variable {name!r} is not kept where rows are not live"


def _has_rows(tensor: Symbol, found: RowWise) -> bool:
    return is_static(tensor) and (tensor.shape or (None,))[0] == found.rows


def _rest(loop: LoopView, found: RowWise, position: int) -> int | None:
    """Return the state that output `position` shows where rows are not live; None for zeros."""
    parameter, initial = loop.body.parameters[position], loop.node.inputs[position]
    name, write = parameter.operation.name, loop.body.results[position].operation
    if not isinstance(write.op, ArrayWrite) or write.inputs[0] is not parameter or loop.uses.get(parameter) != 1:
        raise NotRowWiseError(f"array {name!r} is more than written to")
    form = loop.form(write.inputs[1])
    if form is None or form.steps != 1 or not isinstance(initial.operation.op, ArrayNew):
        raise NotRowWiseError(f"array {name!r} is not written from its first element on")
    if not loop.covers(form, array_size(initial)) or not _has_rows(write.inputs[2], found):
        raise NotRowWiseError(f"array {name!r} does not get rows in each step")
    return _where_dead(loop, found, write.inputs[2], f"array {name!r}")


def _where_dead(loop: LoopView, found: RowWise, value: Symbol, name: str) -> int | None:
    source = value.operation
    chosen = where_dead(loop, source, found.masks)
    if chosen is not None:
        return _where_dead(loop, found, chosen, name)
    if is_among(value, loop.body.parameters) and place_among(value, loop.body.parameters) in found.states:
        return place_among(value, loop.body.parameters)
    outer = loop.outer(value)
    if is_zero(value) or (outer is not None and is_zero(outer)):
        return None
    raise NotRowWiseError(f"{name} gets {source.name!r} where rows are not live")


# --- operations -----------------------------------------------------------------------------------------------------


def _check_operations(loop: LoopView, found: RowWise) -> None:
    roles: dict[Symbol, bool | None] = {}
    for operation in found.needed:
        if isinstance(operation.op, (Constant, Parameter)):
            continue
        if operation.effects or operation.control_inputs or operation.op.regions:
            raise NotRowWiseError(f"{operation.name!r} does more than compute")
        if isinstance(operation.op, ArrayWrite) and is_among(operation.outputs[0], loop.body.results):
            continue
        if isinstance(operation.op, ArrayRead):
            _find_element(loop, found, operation)
            continue
        if _takes_element(loop, operation) and _has_rows(operation.outputs[0], found):
            _find_element(loop, found, operation)
            _note_role(roles, operation.inputs[0], None)
            continue
        if found.in_rows.isdisjoint(operation.inputs) and not _keeps_rows(found, operation):
            _take_whole(loop, roles, operation)
            continue
        taken = operation.inputs[:1] if isinstance(operation.op, _OF_A_SHAPE) else operation.inputs
        has_rows = [_role(loop, found, roles, operation, tensor) for tensor in taken]  # of all of them
        if True not in has_rows:
            continue
        if not _keeps_rows(found, operation):
            raise NotRowWiseError(f"{operation.name!r} does not treat rows one by one")
        found.in_rows.update(operation.outputs)
    if not found.in_rows.issuperset(loop.body.results[position] for position in (*found.states, *found.lasts)):
        raise NotRowWiseError("a state is the same for all rows")
    if found.masks[0].bools not in found.in_rows:
        raise NotRowWiseError(f"{found.masks[0].bools.operation.name!r} is the same for all rows")
    found.captured = [parameter for parameter, has_rows in roles.items() if has_rows]


def _takes_element(loop: LoopView, operation: Operation) -> bool:
    """Test whether an operation is ``x[t]`` of a tensor outside."""
    part = part_taken(operation)
    is_first = part is not None and part.axis == 0 and not part.rest
    return is_first and loop.outer(operation.inputs[0]) is not None


def _find_element(loop: LoopView, found: RowWise, read: Operation) -> None:
    array, element = loop.outer(read.inputs[0]), read.outputs[0]
    if not _has_rows(element, found):
        return
    form = loop.form(read.inputs[1])
    if array is None or form is None or abs(form.steps) != 1 or may_lack_elements(array):
        raise NotRowWiseError(f"{read.name!r} reads elements in no order that is known")
    first = loop.first_place(form)
    if first is None or first < 0:
        raise NotRowWiseError(f"{read.name!r} begins at an element that is not known")
    found.read.append(read)
    found.in_rows.add(element)


def _role(loop: LoopView, found: RowWise, roles: dict[Symbol, bool | None], user: Operation, tensor: Symbol) -> bool:
    """Test whether an input of `user` has rows; a captured value must have them for all users, or for none."""
    if loop.outer(tensor) is None:
        if tensor not in found.in_rows and _is_aligned(found, user, tensor):
            found.uniform[tensor] = _only_number(tensor)
        return tensor in found.in_rows
    has_rows = _is_aligned(found, user, tensor)
    _note_role(roles, tensor, has_rows)
    return has_rows


def _take_whole(loop: LoopView, roles: dict[Symbol, bool | None], operation: Operation) -> None:
    """Note that an operation takes its captured inputs whole.

    Results of captured values alone have no rows, as large as they may be: they are of weights, mostly.
    """
    for tensor in operation.inputs:
        if loop.outer(tensor) is not None:
            _note_role(roles, tensor, False)


def _note_role(roles: dict[Symbol, bool | None], tensor: Symbol, has_rows: bool | None) -> None:
    """Note that a captured value is taken by rows, as a whole, or (None) element by element."""
    if roles.setdefault(tensor, has_rows) != has_rows:
        raise NotRowWiseError(f"{tensor.operation.name!r} is taken by rows or elements, and as a whole")


def _only_number(tensor: Symbol) -> Any:
    op = tensor.operation.op
    if isinstance(op, ZerosOfShape):
        return np.zeros((), op.dtype)
    if isinstance(op, Constant) and np.size(op.value) and np.all(op.value == op.value.flat[0]):
        return op.value.flat[0]
    raise NotRowWiseError(f"{tensor.operation.name!r} holds more than one number")


def _is_aligned(found: RowWise, user: Operation, tensor: Symbol) -> bool:
    """Test whether the first axis of an input is that of the result."""
    if not isinstance(tensor.spec, TensorSpec) or not _has_rows(tensor, found):
        return False
    axes = axis_map_of(user.op, [operand.spec for operand in user.inputs])
    if axes is None:
        return True
    return any(each.axis == 0 and user.inputs[each.input] is tensor for own in axes[:1] for each in own)


def _keeps_rows(found: RowWise, operation: Operation) -> bool:
    op, inputs = operation.op, operation.inputs
    if not is_static(*inputs, *operation.outputs) or not all(_has_rows(output, found) for output in operation.outputs):
        return False
    if isinstance(op, _OF_A_SHAPE):
        ranks = [len(tensor.shape or ()) for tensor in (inputs[0], operation.outputs[0])]
        return _has_rows(inputs[0], found) and (isinstance(op, _RESHAPING) or ranks[0] == ranks[1])
    axes = axis_map_of(op, [tensor.spec for tensor in inputs])
    by_rows = {position for position, tensor in enumerate(inputs) if tensor in found.in_rows}
    if not axes or (is_heavy(operation) and not by_rows):  # products of captured values alone are of weights, mostly
        return False
    followed = {each.input for each in axes[0] if each.axis == 0 and each.by_index}
    elsewhere = {each.input for own in axes[1:] for each in own if each.axis == 0}
    return by_rows <= followed and by_rows.isdisjoint(elsewhere)


def resized(found: RowWise, operation: Operation, rows: int) -> tuple[Op, tuple[Symbol, ...]]:
    """Return the op and inputs by which an operation does the same for so many rows; it may name their number."""
    op, result = operation.op, operation.outputs[0]
    if not isinstance(op, _OF_A_SHAPE) or result not in found.in_rows:
        return op, operation.inputs
    shape = (rows, *(result.shape or ())[1:])
    return (Reshape if isinstance(op, _RESHAPING) else BroadcastTo)(shape), operation.inputs[:1]


__all__ = ["RowWise", "resized", "row_wise"]
