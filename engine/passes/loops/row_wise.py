"""Which loops compute each row of a batch for itself, and leave rows as they are in steps that do not count.

Such a loop carries states ``where(live, new, old)``, where `live` comes from a mask that is read step by step or from
``step < lengths``, and every operation between treats the first axis of what it takes row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...graph.graph import Operation, Parameter
from ...graph.spec import ArraySpec, TensorSpec
from ...graph.tensor import Tensor
from ...ops.axes import Transpose
from ...ops.base import Cast, Constant, ZerosOfShape
from ...ops.comparison import Greater, Less, Where
from ...ops.indexing import GetItem, SliceItem
from ...ops.joining import Concatenate, Split
from ...ops.linalg import MatMul
from ...ops.reduced import _Reduction  # pyright: ignore[reportPrivateUsage]
from ...ops.shaping import ExpandDims, Squeeze
from ...ops.softmax import _Normalised  # pyright: ignore[reportPrivateUsage]
from ...ops.tensor_arrays import ArrayNew, ArrayRead, ArrayWrite
from .batches import is_heavy
from .linear import array_size
from .view import LoopView, is_static, may_lack_elements

_AXES_KEPT = (Concatenate, ExpandDims, GetItem, Split, Squeeze, Transpose, _Normalised, _Reduction)


class NotRowWiseError(Exception):
    """Why a loop does not compute its rows for themselves."""


@dataclass
class RowWise:
    """A loop over rows, some of which are not live in some steps.

    Attributes:
        rows: how many there are.
        live: the mask of rows in the body, as it is read or compared.
        mask: the array outside that it is read from; None if it is compared.
        lengths: the lengths outside that the step is compared with.
        first: the number of the first step, which is compared.
        flips: the mask is read backward.
        counters: the positions of loop variables that count.
        states: the positions of loop variables that hold rows.
        lasts: the positions of loop variables that hold what the latest step made of rows, and that no step takes.
        outputs: the positions of arrays of which each step writes an element.
        rests: for each of `lasts` and `outputs` the state that it shows where a row is not live; None stands for zeros.
        read: elements of arrays, by rows.
        captured: captured values that have rows.
        in_rows: tensors of the body that have rows.
        uniform: constants of the body as large as rows, with the one number that they hold.
    """

    rows: int
    live: Tensor
    mask: Tensor | None = None
    lengths: Tensor | None = None
    first: int = 0
    flips: bool = False
    counters: list[int] = field(default_factory=list[int])
    states: list[int] = field(default_factory=list[int])
    lasts: list[int] = field(default_factory=list[int])
    outputs: list[int] = field(default_factory=list[int])
    rests: dict[int, int | None] = field(default_factory=dict[int, "int | None"])
    read: list[Operation] = field(default_factory=list[Operation])
    captured: list[Tensor] = field(default_factory=list[Tensor])
    in_rows: set[Tensor] = field(default_factory=set[Tensor])
    uniform: dict[Tensor, Any] = field(default_factory=dict[Tensor, Any])

    @property
    def carried(self) -> list[int]:
        """The positions of all loop variables but arrays: those that count come first."""
        return [*self.counters, *self.states, *self.lasts]


def row_wise(loop: LoopView) -> RowWise | None:
    """What is known of a loop over rows; None if it has no states that are kept where a mask says so.

    Raises:
        NotRowWiseError: it has some, but more than that.
    """
    live = _live(loop)
    if live is None or not any(is_heavy(operation) for operation in loop.needed):
        return None
    if loop.trips is None:
        raise NotRowWiseError("the number of iterations is not known before the loop starts")
    found = RowWise((live.shape or (0,))[0] or 0, live)
    _find_source(loop, found)
    _sort_variables(loop, found)
    _check_operations(loop, found)
    return found


# --- what is live ---------------------------------------------------------------------------------------------------


def _live(loop: LoopView) -> Tensor | None:
    for parameter, result in zip(loop.body.parameters, loop.body.results, strict=True):
        root = _kept_by(result, parameter)
        if root is not None and root.operation.graph is loop.body and is_static(root) and root.shape:
            return root
    return None


def _kept_by(result: Tensor, old: Tensor) -> Tensor | None:
    """The mask by which `result` is chosen over `old`."""
    operation = result.operation
    if not isinstance(operation.op, Where) or operation.inputs[2] is not old:
        return None
    return _root(operation.inputs[0])


def _root(mask: Tensor) -> Tensor:
    """The mask without what only adds axes behind."""
    while isinstance(mask.operation.op, ExpandDims) and _adds_behind(mask.operation):
        mask = mask.operation.inputs[0]
    return mask


def _adds_behind(operation: Operation) -> bool:
    before, after = operation.inputs[0].shape, operation.outputs[0].shape
    return bool(before) and after is not None and after[: len(before or ())] == before


def _find_source(loop: LoopView, found: RowWise) -> None:
    source = found.live.operation
    if found.live.shape is None or found.live.shape[1:] != (1,) * len(found.live.shape[1:]):
        raise NotRowWiseError(f"{found.live.operation.name!r} chooses more than rows")
    if isinstance(source.op, ArrayRead):
        array, form = loop.outer(source.inputs[0]), loop.form(source.inputs[1])
        if array is None or form is None or abs(form.steps) != 1 or loop.first_place(form) is None:
            raise NotRowWiseError(f"{source.name!r} reads the mask in no order that is known")
        found.mask, found.flips = array, form.steps == -1
        return
    if not isinstance(source.op, (Greater, Less)):
        raise NotRowWiseError(f"{source.name!r} is no mask that is read, and does not compare steps with lengths")
    step, lengths = source.inputs if isinstance(source.op, Less) else reversed(source.inputs)
    form, outer = loop.form(step), loop.outer(lengths)
    if form is None or form.steps != 1 or form.start.known is None or outer is None or outer.dtype.kind not in "iu":
        raise NotRowWiseError(f"{source.name!r} does not compare the step with lengths")
    found.lengths, found.first = outer, form.start.known


# --- loop variables -------------------------------------------------------------------------------------------------


def _sort_variables(loop: LoopView, found: RowWise) -> None:
    for position, (parameter, result) in enumerate(zip(loop.body.parameters, loop.body.results, strict=True)):
        if isinstance(parameter.spec, ArraySpec):
            found.outputs.append(position)
        elif loop.form(parameter) is not None:
            found.counters.append(position)
        elif _kept_by(result, parameter) is found.live and _has_rows(parameter, found):
            found.states.append(position)
            found.in_rows.add(parameter)
        elif parameter not in loop.uses and not loop.is_tested(position) and _has_rows(result, found):
            found.lasts.append(position)
        else:
            raise NotRowWiseError(f"loop variable {parameter.operation.name!r} is not kept where rows are not live")
    for position in found.outputs:
        found.rests[position] = _rest(loop, found, position)
    for position in found.lasts:
        name = f"loop variable {loop.body.parameters[position].operation.name!r}"
        found.rests[position] = _where_dead(loop, found, loop.body.results[position], name)


def _has_rows(tensor: Tensor, found: RowWise) -> bool:
    return is_static(tensor) and (tensor.shape or (None,))[0] == found.rows


def _rest(loop: LoopView, found: RowWise, position: int) -> int | None:
    """The state that output `position` shows where rows are not live; None for zeros."""
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


def _where_dead(loop: LoopView, found: RowWise, value: Tensor, name: str) -> int | None:
    source = value.operation
    if isinstance(source.op, Where) and _root(source.inputs[0]) is found.live:
        return _where_dead(loop, found, source.inputs[2], name)
    if value in loop.body.parameters and loop.body.parameters.index(value) in found.states:
        return loop.body.parameters.index(value)
    outer = loop.outer(value)
    if _is_zero(value) or (outer is not None and _is_zero(outer)):
        return None
    raise NotRowWiseError(f"{name} gets {source.name!r} where rows are not live")


def _is_zero(tensor: Tensor) -> bool:
    op = tensor.operation.op
    return isinstance(op, ZerosOfShape) or (isinstance(op, Constant) and not np.any(op.value))


# --- operations -----------------------------------------------------------------------------------------------------


def _check_operations(loop: LoopView, found: RowWise) -> None:
    roles: dict[Tensor, bool] = {}
    for operation in loop.needed:
        if isinstance(operation.op, (Constant, Parameter)):
            continue
        if operation.effects or operation.control_inputs or operation.op.regions:
            raise NotRowWiseError(f"{operation.name!r} does more than compute")
        if isinstance(operation.op, ArrayWrite) and operation.outputs[0] in loop.body.results:
            continue
        if isinstance(operation.op, ArrayRead):
            _find_element(loop, found, operation)
            continue
        if found.in_rows.isdisjoint(operation.inputs) and not _keeps_rows(found, operation):
            _take_whole(loop, roles, operation)
            continue
        has_rows = [_role(loop, found, roles, operation, tensor) for tensor in operation.inputs]  # of all of them
        if True not in has_rows:
            continue
        if not _keeps_rows(found, operation):
            raise NotRowWiseError(f"{operation.name!r} does not treat rows one by one")
        found.in_rows.update(operation.outputs)
    if not found.in_rows.issuperset(loop.body.results[position] for position in (*found.states, *found.lasts)):
        raise NotRowWiseError("a state is the same for all rows")
    if found.live not in found.in_rows:
        raise NotRowWiseError(f"{found.live.operation.name!r} is the same for all rows")
    found.captured = [parameter for parameter, has_rows in roles.items() if has_rows]


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


def _role(loop: LoopView, found: RowWise, roles: dict[Tensor, bool], user: Operation, tensor: Tensor) -> bool:
    """Whether an input of `user` has rows; a captured value must have them for all users, or for none."""
    if loop.outer(tensor) is None:
        if tensor not in found.in_rows and _is_aligned(found, user, tensor):
            found.uniform[tensor] = _only_number(tensor)
        return tensor in found.in_rows
    is_weight = isinstance(user.op, MatMul) and tensor is user.inputs[1]
    has_rows = not is_weight and _is_aligned(found, user, tensor)
    _note_role(roles, tensor, has_rows)
    return has_rows


def _take_whole(loop: LoopView, roles: dict[Tensor, bool], operation: Operation) -> None:
    """What an operation makes of captured values alone has no rows, as large as they may be: of weights, mostly."""
    for tensor in operation.inputs:
        if loop.outer(tensor) is not None:
            _note_role(roles, tensor, False)


def _note_role(roles: dict[Tensor, bool], tensor: Tensor, has_rows: bool) -> None:
    if roles.setdefault(tensor, has_rows) != has_rows:
        raise NotRowWiseError(f"{tensor.operation.name!r} is taken by rows, and as a whole")


def _only_number(tensor: Tensor) -> Any:
    op = tensor.operation.op
    if isinstance(op, ZerosOfShape):
        return np.zeros((), op.dtype)
    if isinstance(op, Constant) and np.size(op.value) and np.all(op.value == op.value.flat[0]):
        return op.value.flat[0]
    raise NotRowWiseError(f"{tensor.operation.name!r} holds more than one number")


def _is_aligned(found: RowWise, user: Operation, tensor: Tensor) -> bool:
    """Whether the first axis of an input is that of the result."""
    if not isinstance(tensor.spec, TensorSpec) or not _has_rows(tensor, found):
        return False
    rank = max(len(output.shape or ()) for output in user.outputs)
    return not user.op.elementwise or len(tensor.shape or ()) == rank


def _keeps_rows(found: RowWise, operation: Operation) -> bool:
    op, inputs = operation.op, operation.inputs
    if not is_static(*inputs, *operation.outputs) or not all(_has_rows(output, found) for output in operation.outputs):
        return False
    if op.elementwise or isinstance(op, Cast):
        ranks = {len(tensor.shape or ()) for tensor in (*inputs, *operation.outputs) if tensor in found.in_rows}
        return len(ranks) <= 1
    if isinstance(op, MatMul):
        return not op.transpose_a and inputs[0] in found.in_rows and inputs[1] not in found.in_rows
    return isinstance(op, _AXES_KEPT) and _keeps_first_axis(operation)


def _keeps_first_axis(operation: Operation) -> bool:
    op, rank = operation.op, len(operation.inputs[0].shape or ())
    if isinstance(op, (Concatenate, Split)):
        return op.axis % rank != 0
    if isinstance(op, Transpose):
        return op.axes is not None and op.axes[0] % rank == 0
    if isinstance(op, ExpandDims):
        return _adds_behind(operation) or all(axis % (rank + len(op.axes)) for axis in op.axes)
    if isinstance(op, Squeeze):
        return op.axes is not None and all(axis % rank for axis in op.axes)
    if isinstance(op, GetItem):
        return len(op.items) > 0 and op.items[0] == SliceItem(None, None, None)
    assert isinstance(op, (_Normalised, _Reduction))
    return op.axes is not None and all(axis % rank for axis in op.axes)


__all__ = ["NotRowWiseError", "RowWise", "row_wise"]
