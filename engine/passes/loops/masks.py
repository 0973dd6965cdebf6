"""Masks by which a loop keeps rows as they are, however they are spelled, and what they are in all steps.

``where(live, new, old)`` and ``where(ended, old, new)`` keep a state by a mask of rows. Where that takes nothing that
the steps make, but counters, elements of arrays and what is the same in all steps, it is computed for all steps at once
before the loop starts, whatever it is made of.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...common.identity import is_among, place_among
from ...control_flow.batching import Batch, Value
from ...graph.graph import Operation
from ...graph.kernel_roles import KernelRole
from ...graph.region import Region
from ...graph.search import reached
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol, Tensor, symbol_of
from ...ops.arrays.axes import flip
from ...ops.arrays.creation import arange
from ...ops.arrays.indexing import GetItem
from ...ops.arrays.shaping import reshape
from ...ops.base import Cast, Constant, apply_multi, cast, convert_to_tensor
from ...ops.containers.tensor_arrays import ArrayRead
from ...ops.math.bitwise import LogicalNot
from ...ops.math.comparison import Greater, GreaterEqual, Less, LessEqual, Where, logical_not, logical_or
from ...ops.math.elementwise import Add, Multiply, Subtract
from .batches import can_batch, is_heavy, new_batch
from .view import LoopView, is_static, may_lack_elements

_ARITHMETIC = (Add, Multiply, Subtract)
_DEEPEST = 16  # operations that are looked through for what is only declared, or only a guess


class NotRowWiseError(Exception):
    """The reason for which a loop does not compute its rows for themselves, or not those alone that are live."""


class Mask(NamedTuple):
    """Rows are live where `bools`, one of each row, are as `when` says."""

    bools: Symbol
    when: bool = True


# --- what keeps rows ------------------------------------------------------------------------------------------------


def mask_of(condition: Symbol, when: bool = True) -> Mask:
    """Return a condition of rows, without what only says the same in another shape, or the opposite."""
    while True:
        operation = condition.operation
        if isinstance(operation.op, LogicalNot):
            when = not when
        elif not _says_the_same(operation):
            return Mask(condition, when)
        condition = operation.inputs[0]


def _says_the_same(operation: Operation) -> bool:
    """Test whether an operation gives each row the one value that it has before."""
    role = operation.op.kernel_role
    if role not in (KernelRole.RESHAPE, KernelRole.BROADCAST):
        return False
    before, after = operation.inputs[0].shape, operation.outputs[0].shape
    if not before or not after or before[0] is None or before[:1] != after[:1] or not _is_one_each(before):
        return False
    return _is_one_each(after) if role is KernelRole.RESHAPE else len(before) == len(after)


def _is_one_each(shape: tuple[int | None, ...]) -> bool:
    return all(dim == 1 for dim in shape[1:])


def kept_by(result: Symbol, old: Symbol) -> Mask | None:
    """Return the mask by which `result` is chosen over `old`."""
    operation = result.operation
    if not isinstance(operation.op, Where) or not is_among(old, operation.inputs[1:]):
        return None
    return mask_of(operation.inputs[0], operation.inputs[2] is old)


def where_dead(loop: LoopView, choice: Operation, masks: Sequence[Mask]) -> Symbol | None:
    """Return the value that a `where` chooses for rows that are live by none of `masks`; None if it is not known."""
    if not isinstance(choice.op, Where):
        return None
    condition, x, y = choice.inputs
    if is_one_of(loop, mask_of(condition), masks):
        return y
    return x if is_one_of(loop, mask_of(condition, False), masks) else None


def masks_of_rows(loop: LoopView) -> list[Mask]:
    """Return the masks by which a loop keeps variables row by row; none if it keeps none so.

    Raises:
        NotRowWiseError: it keeps variables by masks, but none of rows of a known number that may end.
    """
    pairs = zip(loop.body.results, loop.body.parameters, strict=True)
    kept = [mask for result, old in pairs if (mask := kept_by(result, old)) is not None and mask.bools.shape != ()]
    said: dict[Hashable, Mask] = {}
    for mask in kept:
        said.setdefault(_says(loop, mask), mask)
    found = list(said.values())
    ending = [mask for mask in found if mask.bools.operation.graph is loop.body and loop.outer(mask.bools) is None]
    static = [mask for mask in ending if is_static(mask.bools)]
    rows = [mask for mask in static if _is_one_each(mask.bools.shape or ())]
    if rows:
        return [mask for mask in rows if rows_of(mask) == rows_of(rows[0])]
    if static:
        raise NotRowWiseError(f"{_name(static[0].bools)} chooses more than rows")
    if ending:
        raise NotRowWiseError(f"the shape of {_name(ending[0].bools)}, by which rows are kept, is not known")
    if found:
        raise NotRowWiseError(f"{_name(found[0].bools)}, by which rows are kept, is the same in each step")
    return []


def rows_of(mask: Mask) -> int:
    """Return the number of rows, by a mask of a known shape."""
    return next(iter(mask.bools.shape or ()), 0) or 0


def _name(tensor: Symbol) -> str:
    return repr(tensor.operation.name)


# --- comparisons ----------------------------------------------------------------------------------------------------


def _compared(mask: Mask) -> tuple[Symbol, Symbol, bool] | None:
    """Return (x, y, when) if a mask only says that ``x < y`` is as `when` says, of integers: they have no NaN."""
    operation = mask.bools.operation
    if not isinstance(operation.op, (Greater, GreaterEqual, Less, LessEqual)):
        return None
    if any(tensor.dtype.kind not in "iu" or tensor.dtype.itemsize < 4 for tensor in operation.inputs):
        return None  # steps may be cast to small integers, which wrap around
    x, y = [_without_axes(tensor) for tensor in operation.inputs]
    if isinstance(operation.op, (Greater, LessEqual)):
        x, y = y, x
    return x, y, mask.when == isinstance(operation.op, (Greater, Less))


def _without_axes(tensor: Symbol) -> Symbol:
    """Return a tensor before it was put in another shape, with one value to a row or one value at all."""
    while _says_the_same(tensor.operation):
        tensor = tensor.operation.inputs[0]
    return tensor


def _says(loop: LoopView, mask: Mask) -> Hashable:
    """Return a key that is equal for masks that are the same but written in other ways."""
    compared = _compared(mask)
    if compared is None:
        return mask
    x, y, when = compared
    return loop.form(x) or x, loop.form(y) or y, when


def is_one_of(loop: LoopView, mask: Mask | None, masks: Sequence[Mask]) -> bool:
    """Test whether a mask is one of `masks`, in whatever way it is written."""
    return mask is not None and _says(loop, mask) in {_says(loop, each) for each in masks}


# --- all steps at once ----------------------------------------------------------------------------------------------


def check_known_before(loop: LoopView, mask: Mask) -> None:
    """Refuse a mask that can't be computed before the loop.

    Raises:
        NotRowWiseError: it takes what the steps make, or what is not computed for all of them at once.
    """
    needed = reached([mask.bools], partial(_needed_for, loop, mask))
    forms = [loop.form(tensor) for tensor in needed]
    is_read = any(isinstance(tensor.operation.op, ArrayRead) for tensor in needed)
    if not is_read and not any(form is not None and form.steps for form in forms):
        raise NotRowWiseError(f"{_name(mask.bools)}, by which rows are kept, is the same in each step")


def _needed_for(loop: LoopView, mask: Mask, tensor: Symbol) -> Sequence[Symbol]:
    """Return the inputs that have to be known for one tensor of which a mask is made."""
    operation, made = tensor.operation, f"which rows are live ({_name(mask.bools)}) depends on"
    if isinstance(operation.op, Constant) or loop.outer(tensor) is not None:
        return ()
    if is_among(tensor, loop.body.parameters):
        if loop.form(tensor) is None and not is_unchanged(loop, tensor):
            raise NotRowWiseError(f"{made} loop variable {_name(tensor)}, which each step makes")
        return ()
    if operation.effects or operation.control_inputs or operation.op.regions:
        raise NotRowWiseError(f"{made} {_name(tensor)}, which does more than compute")
    if isinstance(operation.op, ArrayRead):
        _check_read(loop, operation)
        return ()
    if is_heavy(operation):
        raise NotRowWiseError(f"{made} the product {_name(tensor)}")
    if not is_static(*operation.outputs):
        raise NotRowWiseError(f"{made} {_name(tensor)}, whose shape is not known")
    return operation.inputs


def is_unchanged(loop: LoopView, parameter: Symbol) -> bool:
    """Test whether a loop variable, as it is in the body, is carried along and is the same in all steps."""
    return loop.body.results[place_among(parameter, loop.body.parameters)] is parameter


def _check_read(loop: LoopView, read: Operation) -> None:
    array, form = loop.outer(read.inputs[0]), loop.form(read.inputs[1])
    first = None if form is None else loop.first_place(form)
    if array is None or first is None or first < 0 or may_lack_elements(array) or not is_static(*read.outputs):
        raise NotRowWiseError(f"{read.name!r} reads the mask in no order that is known")


def in_all_steps(loop: LoopView, masks: Sequence[Mask]) -> dict[Symbol, Symbol]:
    """Return the bools of masks in each step, along a new first axis; call it `outside` of the loop.

    Raises:
        NotRowWiseError: something that they take is not computed for all steps at once.
    """
    batch = new_batch(loop.trips_tensor())
    found: dict[Symbol, Symbol] = {}
    for mask in masks:
        values = _value(loop, batch, mask.bools).tensor
        if (values.shape or ())[1:] != mask.bools.shape:
            raise NotRowWiseError(f"{_name(mask.bools)} is not computed for all steps at once")
        found[mask.bools] = symbol_of(values)
    return found


def live_in_all_steps(masks: Sequence[Mask], values: dict[Symbol, Symbol]) -> Symbol:
    """Return whether each row is live in each step by any of the masks, (steps, rows)."""
    total: Tensor | None = None
    for mask in masks:
        bools = values[mask.bools]
        live = reshape(bools, (-1, rows_of(mask))) if len(bools.shape or ()) > 2 else bools
        live = live if mask.when else logical_not(live)
        total = live if total is None else logical_or(total, live)
    return symbol_of(total)


def _value(loop: LoopView, batch: Batch, tensor: Symbol) -> Value:
    """Return a tensor of which a mask is made, in all steps."""
    if tensor not in batch.values:
        found = _source(loop, batch, tensor)
        if found is None:
            _compute(loop, batch, tensor.operation)
        else:
            batch.values[tensor] = found
    return batch.values[tensor]


def _source(loop: LoopView, batch: Batch, tensor: Symbol) -> Value | None:
    """Return the value of a tensor that is not computed; None for those that are.

    Such are values that are the same in all steps, counters, and elements of arrays.
    """
    outer = loop.constant_outside(tensor)
    if outer is not None:
        return Value(outer, batched=False)
    if is_among(tensor, loop.body.parameters):
        return _counted(loop, batch, tensor)
    if not isinstance(tensor.operation.op, ArrayRead):
        return None
    read = tensor.operation
    array, form = loop.outer(read.inputs[0]), loop.form(read.inputs[1])
    assert array is not None
    assert form is not None
    assert isinstance(tensor.spec, TensorSpec)
    window = loop.window(array, form, tensor.spec, read)
    assert window is not None
    return Value(flip(window, 0) if form.steps < 0 else window, batched=True)


def _counted(loop: LoopView, batch: Batch, tensor: Symbol) -> Value:
    form, initial = loop.form(tensor), loop.node.inputs[place_among(tensor, loop.body.parameters)]
    if form is None or not form.steps:
        return Value(initial, batched=False)
    moved = arange(convert_to_tensor(batch.size, "int32"), dtype="int32") * form.steps
    return Value(initial + cast(moved, initial.dtype), batched=True)


def _compute(loop: LoopView, batch: Batch, operation: Operation) -> None:
    values = [_value(loop, batch, tensor) for tensor in operation.inputs]
    if any(value.batched for value in values):
        rule = batch.rules.find(operation)
        outputs = None if rule is None else rule(batch, operation, values)
    else:  # it may be computed though no step needs it: it must not be able to fail
        built = apply_multi(operation.op, *[value.tensor for value in values]) if can_batch(operation) else None
        outputs = None if built is None else [Value(tensor, batched=False) for tensor in built]
    if outputs is None:
        raise NotRowWiseError(f"{operation.name!r}, of which the mask is made, is not computed for all steps at once")
    batch.values.update(zip(operation.outputs, outputs, strict=True))


# --- whether rows end or begin --------------------------------------------------------------------------------------


def rows_begin(loop: LoopView, masks: Sequence[Mask]) -> bool:
    """Test whether rows begin one by one, rather than end, by the inputs of the masks.

    All masks are right either way.
    """
    return all((_trend(loop, mask.bools) if mask.when else -_trend(loop, mask.bools)) > 0 for mask in masks)


def _trend(loop: LoopView, tensor: Symbol, depth: int = 0) -> int:
    """Return 1 if a tensor grows from step to step and -1 if it falls; 0 if it stays, or where that is not known."""
    form, operation = loop.form(tensor), tensor.operation
    if form is not None:
        return int(np.sign(form.steps))
    if isinstance(operation.op, (ArrayRead, GetItem)) and len(operation.inputs) == 2:
        return -_trend(loop, operation.inputs[1])  # padding is mostly behind
    signs = operation.op.grows_with if depth < _DEEPEST else ()
    trends = [sign * _trend(loop, each, depth + 1) for sign, each in zip(signs, operation.inputs, strict=False)]
    known = {trend for trend in trends if trend}
    return known.pop() if len(known) == 1 else 0


# --- arithmetic -----------------------------------------------------------------------------------------------------


def kept_by_arithmetic(body: Region, position: int) -> Symbol | None:
    """Return the bools of rows by whose numbers loop variable `position` is kept.

    ``m*new + (1-m)*old`` and ``old + m*(new-old)`` are not a choice: ``0 * new`` is NaN where `new` is not finite,
    though the row is not live.
    """
    old, result = body.parameters[position], body.results[position]
    pending, seen = [result], dict[Symbol, None]()
    while pending:
        tensor = pending.pop()
        if tensor not in seen and len(seen) < _DEEPEST:
            seen[tensor] = None
            pending += tensor.operation.inputs if isinstance(tensor.operation.op, _ARITHMETIC) else ()
    for tensor in seen:
        bools = _as_numbers(tensor)
        if bools is not None and any(_where_numbers_are(result, bools, number, {}) is old for number in (0, 1)):
            return bools
    return None


def _as_numbers(tensor: Symbol) -> Symbol | None:
    """Return the bools, one of each row, whose numbers a tensor holds."""
    tensor = _without_axes(tensor)
    if not isinstance(tensor.operation.op, Cast) or tensor.operation.inputs[0].dtype.kind != "b":
        return None
    bools = tensor.operation.inputs[0]
    return bools if bools.shape and _is_one_each(bools.shape) else None


_ZERO, _ONE = 0, 1


def _where_numbers_are(tensor: Symbol, bools: Symbol, number: int, known: dict[Symbol, Any]) -> Any:
    """Return the result of arithmetic on finite values where bools, as numbers, are `number`: a tensor, 0 or 1."""
    if tensor not in known:
        known[tensor] = _without_numbers(tensor, bools, number, known)
    return known[tensor]


def _without_numbers(tensor: Symbol, bools: Symbol, number: int, known: dict[Symbol, Any]) -> Any:
    op = tensor.operation.op
    if _as_numbers(tensor) is bools:
        return number
    if isinstance(op, Constant) and np.size(op.value) == 1 and op.value.item() in (0, 1):
        return int(op.value.item())
    if not isinstance(op, _ARITHMETIC) or len(known) >= 4 * _DEEPEST:
        return tensor
    x, y = [_where_numbers_are(each, bools, number, known) for each in tensor.operation.inputs]
    # The numbers are Python's 0 and 1, which are compared by `is` as tensors stand in their places.
    if isinstance(op, Multiply):
        return 0 if x is _ZERO or y is _ZERO else y if x is _ONE else x if y is _ONE else tensor
    if isinstance(op, Subtract):
        return x if y is _ZERO else 0 if x is y else tensor
    return y if x is _ZERO else x if y is _ZERO else tensor


def why_not_arithmetic(name: str, bools: Symbol) -> str:
    """Return why rows of variable `name`, which is kept by arithmetic, are computed to the end, and what to write."""
    mask = bools.operation.name
    return (
        f"loop variable {name!r} is kept by multiplying with {mask!r} as a number, which is no choice: "
        f"0 * x is NaN where x is not finite. Write where({mask}, new, {name})"
    )


__all__ = [
    "Mask",
    "NotRowWiseError",
    "check_known_before",
    "in_all_steps",
    "is_one_of",
    "is_unchanged",
    "kept_by",
    "kept_by_arithmetic",
    "live_in_all_steps",
    "masks_of_rows",
    "rows_begin",
    "rows_of",
    "where_dead",
    "why_not_arithmetic",
]
