"""Rules of TensorArrays at places that are known: what is read is what was written there.

Loops that were unrolled write and read at constants. So their arrays, and the histories that backward loops read,
become plain values, on which the other passes work.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...control_flow.frames import History, TripCount
from ...graph.graph import Parameter
from ...graph.spec import ArraySpec, TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.indexing import GetItem
from ...ops.arrays.joining import Concatenate, Stack
from ...ops.base import Constant
from ...ops.containers.array_rows import ArrayConcat
from ...ops.containers.array_windows import ArrayOf
from ...ops.containers.tensor_arrays import (
    ArrayAddAt,
    ArrayClear,
    ArrayEmpty,
    ArrayNew,
    ArrayRead,
    ArrayReadOrEmpty,
    ArrayReadOrZeros,
    ArraySize,
    ArrayStack,
    ArrayStackLike,
    ArrayUnstack,
    ArrayWrite,
)
from ...ops.math.elementwise import Add
from ...ops.run_time_shapes import ZerosOfShape
from ..framework.patterns import Match, constant, constant_of, op, tensor
from ..framework.rules import Rewrite, Rule, Site, shape_of, table_of
from ..loops.linear import known_trips

_LONGEST = 64  # operations that are looked through, and rows that are put together


class _Nothing:
    """Stands for an element that was never written, or was cleared."""


_NOTHING = _Nothing()


def _is_place(value: Any) -> bool:
    """Test that a constant may be the place of an element."""
    return not np.ndim(value) and int(value) >= 0


def _element(array: Symbol, place: int, site: Site, depth: int = 0) -> Symbol | _Nothing | None:
    """Return the element of an array at a place; None if it is not known."""
    op, inputs = array.operation.op, array.operation.inputs
    if depth > _LONGEST or not _is_within(array, place):
        return None
    if isinstance(op, ArrayOf):
        return inputs[place]
    if isinstance(op, (ArrayNew, ArrayEmpty)):
        return _NOTHING
    if isinstance(op, ArrayUnstack):
        return None if shape_of(inputs[0]) is None else site.make(GetItem((place,)), inputs[0])
    if not isinstance(op, (ArrayAddAt, ArrayClear, ArrayWrite)):
        return None
    changed = constant_of(inputs[1], site)
    if changed is None or not _is_place(changed) or not _is_within(array, int(changed)):
        return None
    if changed == place and not isinstance(op, ArrayAddAt):
        return inputs[2] if isinstance(op, ArrayWrite) else _NOTHING
    before = _element(inputs[0], place, site, depth + 1)
    return before if changed != place else _added(before, inputs[2], site)


def _is_within(array: Symbol, place: int) -> bool:
    """Test whether an array surely has an element at a place, or may have one at any."""
    spec = array.spec
    size = spec.size if isinstance(spec, ArraySpec) else None
    return place < size if size is not None else isinstance(array.operation.op, (ArrayAddAt, ArrayClear, ArrayEmpty))


def _added(before: Symbol | _Nothing | None, value: Symbol, site: Site) -> Symbol | None:
    if isinstance(before, _Nothing):
        return value
    if before is None or shape_of(before) is None or shape_of(before) != shape_of(value):
        return None
    return site.make(Add(), before, value)


# --- records of loops -----------------------------------------------------------------------------------------------


def _known_trips(match: Match, site: Site) -> Rewrite:
    trips = known_trips(match["frame"].operation)
    return None if trips is None else Constant(np.int32(trips))


def _known_record(match: Match, site: Site) -> Rewrite:
    """Return the constant that each iteration of another loop records, or of loops around that too; None for others."""
    depth, found = 1, match["record"].outputs[0]
    while (around := site.outer(found)) is not None or isinstance(found.operation.op, ArrayRead):
        depth += around is None
        found = found.operation.inputs[0] if around is None else around
    for _ in range(depth):
        if not isinstance(found.operation.op, History):
            return None
        found = found.operation.op.inner
    recorded = found.operation.op
    return recorded if isinstance(recorded, Constant) else None


# --- one element ----------------------------------------------------------------------------------------------------


def _known_read(match: Match, site: Site) -> Rewrite:
    op, inputs = match["read"].op, match["read"].inputs
    found = _element(inputs[0], int(match["place"]), site)
    if found is None or isinstance(found, Symbol):
        return found
    if isinstance(op, ArrayReadOrZeros) and None not in (op.spec.shape or (None,)):
        return site.make(ZerosOfShape(op.spec.shape, op.spec.dtype), inputs[2])
    return site.make(ArrayEmpty(op.spec)) if isinstance(op, ArrayReadOrEmpty) else None  # others say what is missing


# --- all elements ---------------------------------------------------------------------------------------------------


def _known_stack(match: Match, site: Site) -> Rewrite:
    array, spec = match["array"], match["array"].spec
    count = spec.size if isinstance(spec, ArraySpec) else None
    if not count or count > _LONGEST or isinstance(array.operation.op, ArrayUnstack):
        return None
    rows = _rows(array, count, site)
    tensors = [row for row in rows if isinstance(row, Symbol)]
    if not tensors or len(tensors) < len(rows) or shape_of(tensors[0]) is None:
        return None
    return site.make(Stack(0), *tensors) if all(row.shape == tensors[0].shape for row in tensors) else None


def _known_ends(match: Match, site: Site) -> Rewrite:
    """Rewrite known elements of an array end to end to a concatenation."""
    spec = match["array"].spec
    count = spec.size if isinstance(spec, ArraySpec) else None
    rows = _rows(match["array"], count, site) if count and count <= _LONGEST else []
    tensors = [row for row in rows if isinstance(row, Symbol) and shape_of(row)]
    return site.make(Concatenate(0), *tensors) if tensors and len(tensors) == len(rows) else None


def _known_rows(match: Match, site: Site) -> Rewrite:
    """Rewrite all elements of a cotangent to a stack of them, with zeros where it has none."""
    array, shape = match["array"], match["shape"]
    if not 0 < int(shape[0]) <= _LONGEST or isinstance(array.operation.op, ArrayUnstack):
        return None
    own = tuple(int(dim) for dim in shape[1:])
    rows = _rows(array, int(shape[0]), site)
    if not rows or any(isinstance(row, Symbol) and row.shape != own for row in rows):
        return None
    made = [row if isinstance(row, Symbol) else _zeros(own, match["stack"].op.dtype, site) for row in rows]
    return site.make(Stack(0), *made)


def _zeros(shape: tuple[int, ...], dtype: Any, site: Site) -> Symbol:
    return site.make(ZerosOfShape(shape, dtype), site.make(Constant(np.array(shape, "int32"))))


def _rows(array: Symbol, count: int, site: Site) -> list[Symbol | _Nothing]:
    """Return the first elements of an array; none of them if any is not known."""
    found: list[Symbol | _Nothing] = []
    for place in range(count):
        element = _element(array, place, site)
        if element is None or (isinstance(element, Symbol) and not isinstance(element.spec, TensorSpec)):
            return []
        found.append(element)
    return found


def _known_size(match: Match, site: Site) -> Rewrite:
    spec = match["array"].spec
    known = spec.size if isinstance(spec, ArraySpec) else None
    return None if known is None else Constant(np.int32(known))


def _known_new(match: Match, site: Site) -> Rewrite:
    op = match["array"].op
    return ArrayNew(op.element, int(match["place"]), op.open_shape) if op.size is None else None


_array, _number = tensor("array"), constant("place", _is_place)
_reads = (ArrayRead, ArrayReadOrEmpty, ArrayReadOrZeros)
_record = op(ArrayRead, History, Parameter, name="record", may_wait=True)
RECORDS = (Rule("records of constants", op(ArrayRead, of=[_record]), _known_record),)
_ELEMENTS = (
    Rule("trip counts that are known", op(TripCount, of=[tensor("frame")]), _known_trips),
    Rule("elements that are known", op(*_reads, of=[_array, _number], name="read"), _known_read),
    Rule("all elements that are known", op(ArrayStack, of=[_array]), _known_stack),
    Rule("elements end to end that are known", op(ArrayConcat, of=[_array]), _known_ends),
    Rule(
        "cotangents of known elements",
        op(ArrayStackLike, of=[_array, constant("shape")], name="stack"),
        _known_rows,
    ),
    Rule("sizes of arrays that are known", op(ArraySize, of=[_array]), _known_size),
    Rule("sizes of new arrays that are known", op(ArrayNew, of=[_number], name="array"), _known_new),
)
ARRAYS = table_of(*RECORDS, *_ELEMENTS)

__all__ = ["ARRAYS", "RECORDS"]
