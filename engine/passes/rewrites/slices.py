"""Make slices side by side parts of one split, and their cotangents one concatenation.

``z[:, :n]``, ``z[:, n:2 * n]`` and so on are what a user writes for the gates of a cell; other passes have rules for a
`Split`, which fuses, is batched and leaves loops. The gradient of slices adds each cotangent into a copy of the whole;
where they are side by side and fill it, it is their concatenation. Adding to zeros makes 0.0 of -0.0, which that keeps:
so exact programs are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...graph.graph import Operation
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.indexing import AddItem, GetItem, Items, PutItem, SliceItem
from ...ops.arrays.joining import Concatenate, Split
from ...ops.arrays.shaping import ExpandDims, Squeeze
from ...ops.base import Constant
from ...ops.math.elementwise import Add
from ..framework.assign import on_one_device
from ..framework.driver import Change, GroupRule, Rule
from ..framework.patterns import Match, op
from ..framework.rewriter import Rewriter

_WHOLE = SliceItem()
_MOST = 32  # parts of one split


class _Part(NamedTuple):
    """The part that a key takes: elements from `start` to `stop` of one axis, without that axis if it is a number."""

    axis: int
    start: int
    stop: int
    is_number: bool


_Members = Sequence[tuple[_Part, Operation]]


def _part(items: Items, shape: Sequence[int | None] | None) -> _Part | None:
    """Return the part that a key takes of a tensor; None if it is more than a known stretch of one axis."""
    if shape is None or None in shape or len(items) > len(shape):
        return None
    found: _Part | None = None
    for axis, item in enumerate(items):
        if item == _WHOLE:
            continue
        size = shape[axis] or 0
        if found is not None:
            return None
        if isinstance(item, int) and len(shape) > 1:
            found = _Part(axis, item % size if size else 0, item % size + 1 if size else 0, is_number=True)
        elif isinstance(item, SliceItem) and item.step in (None, 1) and item.length(size):
            start = item.start if isinstance(item.start, int) else 0
            start = max(0, start + size if start < 0 else start)
            found = _Part(axis, start, start + (item.length(size) or 0), is_number=False)
        else:
            return None
    return found if found is not None and found.stop > found.start else None


# --- slices ---------------------------------------------------------------------------------------------------------


def _part_taken(match: Match) -> _Part | None:
    taken = match["slice"]
    return _part(taken.op.items, taken.inputs[0].shape) if len(taken.inputs) == 1 else None


def _whole_and_axis(match: Match) -> tuple[Symbol, int] | None:
    part = _part_taken(match)
    return None if part is None else (match["slice"].inputs[0], part.axis)


def _split(matches: Sequence[Match], step: Rewriter) -> Change | None:
    """Make slices of a tensor along an axis parts of a split, which stands where the first of them did."""
    members = _in_order([(part, match["slice"]) for match in matches if (part := _part_taken(match)) is not None])
    operations = [operation for _, operation in members]
    apart = all(one.stop <= other.start for (one, _), (other, _) in pairwise(members))
    if not 2 <= len(members) <= _MOST or not apart or not on_one_device(operations):
        return None
    first = min(operations, key=lambda operation: operation.index)
    whole, axis = first.inputs[0], members[0][0].axis
    shape = [dim or 0 for dim in whole.shape or ()]
    sizes, places = _sizes_and_places(members, shape[axis])
    specs = tuple([TensorSpec((*shape[:axis], size, *shape[axis + 1 :]), whole.dtype) for size in sizes])
    split = step.insert(first.graph, Split(axis, sizes, fits=True), [whole], first, specs)
    for (part, operation), place in zip(members, places, strict=True):
        if part.is_number:
            step.update(operation, Squeeze((axis,)), [split.outputs[place]])
        else:
            step.replace_uses(operation.outputs[0], split.outputs[place])
            step.erase(operation, instead=split)
    return Change(split, f"is one of {len(members)} slices of {whole.name!r}: they are one split")


def _in_order(parts: Sequence[tuple[_Part, Operation]]) -> _Members:
    return sorted(parts, key=lambda pair: pair[0].start)


def _sizes_and_places(members: _Members, whole: int) -> tuple[tuple[int, ...], list[int]]:
    """Return the sizes of the parts of a split, those between the members included, and which of them are members."""
    sizes: list[int] = []
    places: list[int] = []
    end = 0
    for part, _ in members:
        if part.start > end:
            sizes.append(part.start - end)
        places.append(len(sizes))
        sizes.append(part.stop - part.start)
        end = part.stop
    if end < whole:
        sizes.append(whole - end)
    return tuple(sizes), places


# --- their gradients ------------------------------------------------------------------------------------------------


def _part_added(operation: Operation) -> _Part | None:
    """Return the part to which an operation adds a value, or that it puts into zeros; None for any other operation."""
    own = operation.op
    if not isinstance(own, (AddItem, PutItem)) or operation.control_inputs or own.repeats:
        return None
    return _part(own.items, operation.outputs[0].shape) if len(operation.inputs) == 2 else None


def _adds_part(operation: Operation) -> bool:
    return _part_added(operation) is not None


def _join(match: Match, step: Rewriter) -> Change | None:
    """Join the cotangents that a chain of operations adds up at keys of one axis."""
    last = match["last"]
    if _is_continued(last, step):
        return None
    base, members = _chain(last, step)
    if not _fills(members, last.outputs[0]) or not on_one_device([operation for _, operation in members]):
        return None
    axis = members[0][0].axis
    pieces: list[Symbol] = []
    before: _Part | None = None
    for part, operation in members:
        value = operation.inputs[0 if isinstance(operation.op, PutItem) else 1]
        if part.is_number:
            shape = value.shape or ()
            spec = TensorSpec((*shape[:axis], 1, *shape[axis:]), value.dtype)
            value = step.insert(last.graph, ExpandDims((axis,)), [value], operation, (spec,), last).outputs[0]
        if part == before:
            both = [pieces.pop(), value]
            value = step.insert(last.graph, Add(), both, operation, (value.spec,), last).outputs[0]
        pieces.append(value)
        before = part
    if base is None or _is_zero(base):
        step.update(last, Concatenate(axis), pieces)
    else:
        joined = step.insert(last.graph, Concatenate(axis), pieces, last, (last.outputs[0].spec,))
        step.update(last, Add(), [base, *joined.outputs])
    return Change(last, f"joins the cotangents of {len(members)} slices, which fill the whole")


def _continues(operation: Operation, part: _Part, step: Rewriter) -> bool:
    """Test that an operation belongs to the chain of one that adds to its result, and to nothing else, at `part`."""
    own = _part_added(operation)
    return own is not None and own.axis == part.axis and step.is_only_use(operation.outputs[0])


def _is_continued(operation: Operation, step: Rewriter) -> bool:
    """Test whether an operation belongs to the chain of another one, which is the last."""
    users = step.users(operation.outputs[0])
    if len(users) != 1 or not isinstance(users[0].op, AddItem) or users[0].inputs[0] is not operation.outputs[0]:
        return False
    part = _part_added(users[0])
    return part is not None and _continues(operation, part, step)


def _chain(last: Operation, step: Rewriter) -> tuple[Symbol | None, _Members]:
    """Return the operations of a chain in order of parts, and what the first adds to; None for zeros."""
    part = _part_added(last)
    assert part is not None, "the pattern looks for it"
    parts, operation = [(part, last)], last
    while isinstance(operation.op, AddItem):
        base = operation.inputs[0]
        if not _continues(base.operation, part, step):
            return base, _in_order(parts)
        operation = base.operation
        parts.append((_part_added(operation) or part, operation))
    return None, _in_order(parts)


def _fills(members: _Members, whole: Symbol) -> bool:
    """Test whether stretches in order, repeats left out, follow each other from end to end of a tensor."""
    if not 2 <= len(members) <= _MOST:
        return False
    parts = list(dict.fromkeys(part for part, _ in members))
    ends = [0, *[part.stop for part in parts]]
    starts = [*[part.start for part in parts], (whole.shape or ())[parts[0].axis]]
    return len(parts) > 1 and ends == starts


def _is_zero(tensor: Symbol) -> bool:
    op = tensor.operation.op
    return isinstance(op, Constant) and not np.any(op.value)


RULES = (Rule("join the cotangents of slices", op(AddItem, name="last", where=_adds_part), _join),)
GROUPS = (GroupRule("split slices", op(GetItem, name="slice"), _whole_and_axis, _split),)

__all__ = ["GROUPS", "RULES"]
