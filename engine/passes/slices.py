"""Slices side by side become parts of one split, and their cotangents one concatenation.

``z[:, :n]``, ``z[:, n:2 * n]`` and so on are what a user writes for the gates of a cell; other passes know a `Split`,
which fuses, is batched and leaves loops. The gradient of slices adds each cotangent into a copy of the whole; where
they lie side by side and fill it, it is their concatenation. Adding to zeros makes 0.0 of -0.0, which that keeps: so
exact programs are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..graph.graph import Graph, Operation
from ..graph.spec import TensorSpec
from ..graph.tensor import Symbol
from ..ops.base import Constant
from ..ops.elementwise import Add
from ..ops.indexing import AddItem, GetItem, Items, PutItem, SliceItem
from ..ops.joining import Concatenate, Split
from ..ops.shaping import ExpandDims, Squeeze
from .assign import on_one_device
from .log import note_change
from .order import reorder
from .prune import Kept, holds, kept_of

_WHOLE = SliceItem()
_MOST = 32  # parts of one split


class _Part(NamedTuple):
    """The part that a key takes: elements from `start` to `stop` of one axis, without that axis if it is a number."""

    axis: int
    start: int
    stop: int
    is_number: bool


def split_slices(operations: Iterable[Operation], kept: Iterable[Symbol]) -> None:
    """Rewrite slices among `operations` of a step, and in all regions inside.

    Args:
        operations: what of the step's graph is needed.
        kept: tensors whose values are wanted from outside: fetches.
    """
    needed = list(operations)
    if holds(needed, AddItem, GetItem):
        graph = needed[0].graph
        _visit(graph, needed, kept_of(graph, needed, kept))


def _visit(graph: Graph, operations: Sequence[Operation], kept: Kept) -> None:
    for operation in operations:
        for region in operation.op.regions:
            _visit(region, list(region.operations), kept.inside(region))
    types = {type(operation.op) for operation in operations}
    if AddItem in types:
        _join_chains(graph, operations, kept.own)
    if GetItem in types:
        _split_all(graph, operations)


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


def _split_all(graph: Graph, operations: Sequence[Operation]) -> None:
    groups: dict[tuple[Symbol, int], list[tuple[_Part, Operation]]] = {}
    for operation in operations:
        if not isinstance(operation.op, GetItem) or len(operation.inputs) != 1 or operation.control_inputs:
            continue
        part = _part(operation.op.items, operation.inputs[0].shape)
        if part is not None:
            groups.setdefault((operation.inputs[0], part.axis), []).append((part, operation))
    replaced: dict[Operation, Operation] = {}
    changed = False
    for (whole, axis), parts in groups.items():
        members = sorted(parts, key=lambda pair: pair[0].start)
        apart = all(one.stop <= other.start for (one, _), (other, _) in pairwise(members))
        if 2 <= len(members) <= _MOST and apart and on_one_device([operation for _, operation in members]):
            _split_one(graph, whole, axis, members, replaced)
            changed = True
    if changed:
        reorder(graph, replaced)


def _split_one(
    graph: Graph,
    whole: Symbol,
    axis: int,
    members: Sequence[tuple[_Part, Operation]],
    replaced: dict[Operation, Operation],
) -> None:
    assert isinstance(whole.spec, TensorSpec)
    shape = [dim or 0 for dim in whole.spec.shape or ()]
    sizes: list[int] = []
    places: list[int] = []
    end = 0
    for part, _ in members:
        if part.start > end:
            sizes.append(part.start - end)
        places.append(len(sizes))
        sizes.append(part.stop - part.start)
        end = part.stop
    if end < shape[axis]:
        sizes.append(shape[axis] - end)
    specs = tuple(TensorSpec((*shape[:axis], size, *shape[axis + 1 :]), whole.spec.dtype) for size in sizes)
    first = min((operation for _, operation in members), key=lambda operation: operation.index)
    split = graph.adopt(Split(axis, tuple(sizes), fits=True), [whole], specs, first)
    split.index = first.index
    outputs = list(split.outputs)
    for (part, operation), place in zip(members, places, strict=True):
        if part.is_number:
            operation.op, operation.inputs = Squeeze((axis,)), (outputs[place],)
            continue
        (tensor,) = operation.outputs
        tensor.operation, tensor.index = split, place
        outputs[place] = tensor
        replaced[operation] = split
    split.outputs = tuple(outputs)
    note_change("slices", split, f"is one of {len(members)} slices of {whole.name!r}: they are one split")


# --- their gradients ------------------------------------------------------------------------------------------------


class _Chain(NamedTuple):
    """Cotangents that are added up at keys.

    Attributes:
        base: what the first of them is added to; None for zeros.
        parts: the places of the cotangents, with each the operation that adds it.
    """

    base: Symbol | None
    parts: list[tuple[_Part, Operation]]


def _join_chains(graph: Graph, operations: Sequence[Operation], kept: set[Symbol]) -> None:
    uses: dict[Symbol, int] = dict.fromkeys(kept, 2)
    for operation in operations:
        for tensor in operation.inputs:
            uses[tensor] = uses.get(tensor, 0) + 1
    changed = False
    done: set[Operation] = set()
    for last in reversed(operations):
        if not isinstance(last.op, AddItem) or last in done:
            continue
        chain = _chain(last, uses)
        done.update(operation for _, operation in chain.parts)
        members = sorted(chain.parts, key=lambda pair: pair[0].start)
        if _fills(members, last.outputs[0]) and on_one_device([operation for _, operation in members]):
            _join(graph, last, chain.base, members)
            changed = True
    if changed:
        reorder(graph, {})


def _chain(last: Operation, uses: dict[Symbol, int]) -> _Chain:
    parts: list[tuple[_Part, Operation]] = []
    operation = last
    while True:
        op, whole = operation.op, operation.outputs[0]
        assert isinstance(op, (AddItem, PutItem))
        part = None if operation.control_inputs or op.repeats else _part(op.items, whole.shape)
        is_own = len(operation.inputs) == 2 and (not parts or (part is not None and part.axis == parts[0][0].axis))
        if part is None or not is_own:
            return _Chain(whole, parts)
        parts.append((part, operation))
        if isinstance(op, PutItem):
            return _Chain(None, parts)
        base = operation.inputs[0]
        if uses.get(base) != 1 or not isinstance(base.operation.op, (AddItem, PutItem)):
            return _Chain(base, parts)
        operation = base.operation


def _fills(members: Sequence[tuple[_Part, Operation]], whole: Symbol) -> bool:
    """Test whether stretches in order, repeats left out, follow each other from end to end of a tensor."""
    if not 2 <= len(members) <= _MOST:
        return False
    parts = list(dict.fromkeys(part for part, _ in members))
    ends = [0, *[part.stop for part in parts]]
    starts = [*[part.start for part in parts], (whole.shape or ())[parts[0].axis]]
    return len(parts) > 1 and ends == starts


def _join(graph: Graph, last: Operation, base: Symbol | None, members: Sequence[tuple[_Part, Operation]]) -> None:
    axis = members[0][0].axis
    pieces: list[Symbol] = []
    before: _Part | None = None
    for part, operation in members:
        value = operation.inputs[0 if isinstance(operation.op, PutItem) else 1]
        if part.is_number:
            assert isinstance(value.spec, TensorSpec)
            shape = value.spec.shape or ()
            spec = TensorSpec((*shape[:axis], 1, *shape[axis:]), value.spec.dtype)
            value = _before(last, graph.adopt(ExpandDims((axis,)), [value], (spec,), operation))
        if part == before:
            both = graph.adopt(Add(), [pieces.pop(), value], (value.spec,), operation)
            value = _before(last, both)
        pieces.append(value)
        before = part
    note_change("slices", last, f"joins the cotangents of {len(members)} slices, which fill the whole")
    if base is None or _is_zero(base):
        last.op, last.inputs = Concatenate(axis), tuple(pieces)
        return
    joined = graph.adopt(Concatenate(axis), pieces, (last.outputs[0].spec,), last)
    last.op, last.inputs = Add(), (base, _before(last, joined))


def _before(last: Operation, operation: Operation) -> Symbol:
    operation.index = last.index
    return operation.outputs[0]


def _is_zero(tensor: Symbol) -> bool:
    op = tensor.operation.op
    return isinstance(op, Constant) and not np.any(op.value)


__all__ = ["split_slices"]
