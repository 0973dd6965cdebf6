"""Indexing, gathering and scattering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....engine.common import dtypes
from ....engine.common.dtypes import DType
from ....engine.graph.graph import Operation
from ....engine.graph.tensor import Symbol
from ....engine.ops.arrays.gathering import AddRows, PutAlongAxis, PutRows
from ....engine.ops.arrays.indexing import AddItem, Place, PutItem, SliceItem
from ....engine.ops.arrays.partitioning import DynamicPartition
from ....engine.ops.arrays.sequences import ReverseSequence
from ....engine.ops.arrays.sorting import UniquePositions
from ....engine.ops.signal.windows import Slice
from .registry import attribute, exports, op_of
from .shapes import positions, rank_of, shape_input
from .writer import BOOL, INT, LONG, Writer

_LARGEST = int(np.iinfo(np.int64).max)


@exports("take")
def _take(w: Writer, node: Operation, x: str, indices: str) -> str:
    return w.add("Gather", x, index(w, indices), axis=attribute(node, "axis", int))


def index(w: Writer, indices: str) -> str:
    """Return indices in a type that ONNX takes."""
    return indices if w.dtypes[indices] in (INT, LONG) else w.cast(indices, LONG)


@exports("take_along_axis")
def _take_along_axis(w: Writer, node: Operation, x: str, indices: str) -> str:
    """Take elements along an axis. The engine broadcasts the other axes; ONNX does not."""
    axis = attribute(node, "axis", int) % rank_of(node)
    own: Any = node.inputs[0].shape
    other: Any = node.inputs[1].shape
    rank = len(own)
    same = all(a == b and a is not None for k, (a, b) in enumerate(zip(own, other, strict=True)) if k != axis)
    places = w.cast(indices, LONG)
    if not same and rank > 1:
        one = w.constant(np.eye(rank, dtype=bool)[axis])
        sizes, wanted = w.shape(x), w.shape(places)
        x = w.expand(x, w.where(one, sizes, wanted))
        places = w.expand(places, w.where(one, wanted, w.shape(x)))
    return w.add("GatherElements", x, places, axis=axis)


@exports("gather_nd")
def _gather_nd(w: Writer, node: Operation, x: str, indices: str) -> str:
    return w.add("GatherND", x, w.cast(indices, LONG))


def scatter_reduced(w: Writer, base: str, places: str, values: str, reduction: str) -> str:
    """Return `base` with values reduced into it at places (..., coordinates): half precision in float32, as here."""
    dtype = w.dtypes[base]
    wide = dtypes.accumulator_of(dtype) or dtype
    done = w.add("ScatterND", w.cast(base, wide), places, w.cast(values, wide), reduction=reduction)
    return w.cast(done, dtype)


@exports("scatter_add", "scatter_update")
def _scatter(w: Writer, node: Operation, x: str, indices: str, updates: str) -> str:
    if node.type == "scatter_add":
        return scatter_reduced(w, x, w.cast(indices, LONG), updates, "add")
    return w.add("ScatterND", x, w.cast(indices, LONG), updates)


@exports("put_rows")
def _put_rows(w: Writer, node: Operation, values: str, indices: str, shape: str) -> str:
    """Return zeros with values added along axis 0, to which another axis is brought."""
    op = op_of(node, PutRows)
    rank = len(op.shape or ())
    axis = op.axis % rank
    count = rank_of(node, 1)
    base = w.zeros(shape_input(w, shape), w.dtypes[values])
    return _added_rows(w, base, values, indices, axis, rank, count)


@exports("add_rows")
def _add_rows(w: Writer, node: Operation, base: str, values: str, indices: str) -> str:
    op = op_of(node, AddRows)
    rank = rank_of(node)
    return _added_rows(w, base, values, indices, op.axis % rank, rank, rank_of(node, 2))


def _added_rows(w: Writer, base: str, values: str, indices: str, axis: int, rank: int, count: int) -> str:
    order = [axis, *[k for k in range(rank) if k != axis]]
    front = [*range(axis, axis + count), *range(axis), *range(axis + count, rank - 1 + count)]
    places = w.unsqueeze(w.cast(indices, LONG), -1)
    done = scatter_reduced(w, w.transpose(base, order), places, w.transpose(values, front), "add")
    return w.transpose(done, list(np.argsort(order)))


@exports("put_along_axis")
def _put_along_axis(w: Writer, node: Operation, values: str, indices: str, shape: str) -> str:
    op = op_of(node, PutAlongAxis)
    rank = rank_of(node)
    base = w.zeros(shape_input(w, shape), w.dtypes[values])
    places = w.expand(w.cast(indices, LONG), w.shape(values))
    return w.add("ScatterElements", base, places, values, axis=op.axis % rank, reduction="add")


# --- x[...] ---------------------------------------------------------------------------------------------------------


@exports("get_item", "get_items")
def _get_item(w: Writer, node: Operation, x: str, *given: str) -> str:
    return _taken(w, x, rank_of(node), attribute(node, "items", tuple), node.inputs[1:], given)


def _taken(w: Writer, x: str, rank: int, key: Sequence[object], symbols: Sequence[Symbol], given: Sequence[str]) -> str:
    """Take slices first, then positions: of several arrays, all axes that they index are brought to the front."""
    items = _expanded(key, symbols, rank)
    inputs = list(zip(symbols, given, strict=True))
    x, picks, entries = _sliced(w, x, items, inputs)
    arrays = [pick for _, pick in picks if not isinstance(pick, int)]
    new = [place for place, entry in enumerate(entry for entry in entries if entry != "pick") if entry == "new"]
    if not arrays:
        for axis, place in reversed(picks):
            x = w.add("Gather", x, w.constant(place, LONG), axis=axis)
        return w.unsqueeze(x, *new)
    if len(picks) == 1 and not new and arrays[0][0].dtype != BOOL:
        return w.add("Gather", x, index(w, arrays[0][1]), axis=picks[0][0])
    if len(picks) == 1 and not new and len(arrays[0][0].shape) == 1:
        return w.add("Compress", x, arrays[0][1], axis=picks[0][0])
    return _picked(w, x, picks, entries)


@exports("put_item")
def _put_item(w: Writer, node: Operation, values: str, shape: str, *given: str) -> str:
    base = w.zeros(shape_input(w, shape), w.dtypes[values])
    return _put_at(w, node, base, values, given, op_of(node, PutItem))


@exports("add_item")
def _add_item(w: Writer, node: Operation, base: str, values: str, *given: str) -> str:
    return _put_at(w, node, base, values, given, op_of(node, AddItem))


def _put_at(w: Writer, node: Operation, base: str, values: str, given: Sequence[str], op: PutItem | AddItem) -> str:
    """Add values at a key: to rows, or else to the elements whose numbers the key takes from an array of numbers."""
    symbols = node.inputs[2:]
    rank = len(node.outputs[0].shape or ())
    if op.items == (Place.INPUT,) and symbols[0].dtype != BOOL:
        return _added_rows(w, base, values, given[0], 0, rank, len(symbols[0].shape or ()))
    return added_at_places(w, base, values, lambda numbers: _taken(w, numbers, rank, op.items, symbols, given))


def added_at_places(w: Writer, base: str, values: str, take: Callable[[str], str]) -> str:
    """Return an array with values added to the elements that `take` takes from an array of the elements' numbers."""
    shape = w.shape(base)
    flat = w.reshape(base, w.ints(-1))
    places = take(w.reshape(positions(w, w.dim(flat, 0)), shape))
    updates = w.expand(values, w.shape(places))
    flat_places, flat_updates = w.reshape(places, w.ints(-1)), w.reshape(updates, w.ints(-1))
    done = w.add("ScatterElements", flat, flat_places, flat_updates, axis=0, reduction="add")
    return w.reshape(done, shape)


def _expanded(key: Sequence[object], symbols: Sequence[Symbol], rank: int) -> list[object]:
    """Return the items with the ellipsis written out, and whole slices at the end."""
    items: list[object] = list(key)
    remaining = iter(symbols)
    used = 0
    for item in items:
        if isinstance(item, SliceItem):
            used += 1
            for bound in (item.start, item.stop, item.step):
                if bound is Place.INPUT:
                    next(remaining)
        elif item is Place.INPUT:
            pick = next(remaining)
            used += len(pick.shape or ()) if pick.dtype == BOOL else 1
        elif isinstance(item, int):
            used += 1
    place = items.index(Ellipsis) if Ellipsis in items else len(items)
    items[place : place + 1] = [SliceItem()] * (rank - used)
    return items


def _sliced(w: Writer, x: str, items: list[Any], inputs: list[Any]) -> tuple[str, list[Any], list[str]]:
    """Return the value after the slices; what picks positions, as pairs of axis and place; an entry for each item.

    An entry is "axis", "new" or "pick".
    """
    slices: list[Any] = []
    picks: list[object] = []
    entries: list[str] = []
    axis = 0
    for item in items:
        if item is None:
            entries.append("new")
        elif isinstance(item, SliceItem):
            bounds = [inputs.pop(0)[1] if b is Place.INPUT else b for b in (item.start, item.stop, item.step)]
            if item != SliceItem():
                slices.append((axis, *_bounds(w, bounds)))
            entries.append("axis")
            axis += 1
        else:
            pick = inputs.pop(0) if item is Place.INPUT else int(item)
            picks.append((axis, pick))
            entries.append("pick")
            axis += len(pick[0].shape) if not isinstance(pick, int) and pick[0].dtype == BOOL else 1
    if slices:
        axes = w.ints(*[each[0] for each in slices])
        starts, stops, steps = [w.concat([each[k] for each in slices], 0) for k in (1, 2, 3)]
        x = w.add("Slice", x, starts, stops, axes, steps)
    return x, picks, entries


def _bounds(w: Writer, bounds: Sequence[int | str | None]) -> tuple[str, str, str]:
    start, stop, step = bounds
    if isinstance(step, str):
        pace = w.vector(step)
        back = w.compare("Less", pace, w.ints(0))
        first = w.where(back, w.ints(_LARGEST), w.ints(0)) if start is None else _bound(w, start)
        last = w.where(back, w.ints(-_LARGEST), w.ints(_LARGEST)) if stop is None else _bound(w, stop)
        return first, last, pace
    backward = step is not None and step < 0
    first = w.ints(_LARGEST if backward else 0) if start is None else _bound(w, start)
    last = w.ints(-_LARGEST if backward else _LARGEST) if stop is None else _bound(w, stop)
    return first, last, w.ints(1 if step is None else step)


def _bound(w: Writer, bound: int | str) -> str:
    return w.vector(bound) if isinstance(bound, str) else w.ints(bound)


def _picked(w: Writer, x: str, picks: list[Any], entries: list[str]) -> str:
    """Pick positions: the indexed axes come first, GatherND takes them, and its result goes to its place."""
    rank = _rank_after(picks, entries)
    axes: list[int] = []
    columns: list[str] = []
    ranks: list[int] = []
    for axis, pick in picks:
        if isinstance(pick, int):
            axes.append(axis)
            columns.append(w.constant(pick, LONG))
            ranks.append(0)
        elif pick[0].dtype == BOOL:
            depth = len(pick[0].shape)
            axes += range(axis, axis + depth)
            found = w.add("NonZero", pick[1], dtype=LONG)
            columns += [w.add("Gather", found, w.constant(k, LONG), axis=0) for k in range(depth)]
            ranks.append(1)
        else:
            axes.append(axis)
            columns.append(w.cast(pick[1], LONG))
            ranks.append(len(pick[0].shape))
    depth = max(ranks)
    total = columns[0]
    for column in columns[1:]:
        total = w.add("Add", total, column)
    shape = w.shape(total)
    places = w.concat([w.unsqueeze(w.expand(column, shape) if depth else column, depth) for column in columns], depth)
    rest = [axis for axis in range(rank) if axis not in axes]
    found = w.add("GatherND", w.transpose(x, [*axes, *rest]), places)
    return _placed(w, found, depth, len(rest), entries)


def _rank_after(picks: list[Any], entries: list[str]) -> int:
    return entries.count("axis") + sum(
        len(pick[0].shape) if not isinstance(pick, int) and pick[0].dtype == BOOL else 1 for _, pick in picks
    )


def _placed(w: Writer, found: str, depth: int, rest: int, entries: list[str]) -> str:
    """Move what was picked from the front to the place of the first index, if all stand together; add new axes."""
    where = [k for k, entry in enumerate(entries) if entry == "pick"]
    together = where[-1] - where[0] == len(where) - 1
    before = entries[: where[0]] if together else []
    axes_before = before.count("axis")
    front = range(depth, depth + axes_before)
    found = w.transpose(found, [*front, *range(depth), *range(depth + axes_before, depth + rest)])
    order = [*before, *["axis"] * depth, *[entry for entry in entries[len(before) :] if entry != "pick"]]
    return w.unsqueeze(found, *[k for k, entry in enumerate(order) if entry == "new"])


@exports("slice")
def _slice(w: Writer, node: Operation, x: str, starts: str, *sizes: str) -> str:
    op = op_of(node, Slice)
    if not op.sizes:
        return x
    first = w.cast(starts, LONG)
    end = w.add("Add", first, w.filled(op.sizes, sizes))
    return w.add("Slice", x, first, end, w.ints(*range(len(op.sizes))))


@exports("slice_update")
def _slice_update(w: Writer, node: Operation, x: str, starts: str, updates: str) -> str:
    """Return the positions of the window, one row of indices for each element of it."""
    rank = rank_of(node)
    if not rank:
        return updates
    shape = w.shape(updates)
    columns: list[str] = []
    first = w.cast(starts, LONG)
    for axis in range(rank):
        along = w.add("Add", positions(w, w.dim(updates, axis)), w.slice(first, axis, axis + 1, 0))
        along = w.unsqueeze(along, *[k for k in range(rank) if k != axis])
        columns.append(w.unsqueeze(w.expand(along, shape), rank))
    return w.add("ScatterND", x, w.concat(columns, rank), updates)


# --- segments -------------------------------------------------------------------------------------------------------

_REDUCTIONS = {"segment_sum": "add", "segment_max": "max", "segment_min": "min", "segment_prod": "mul"}


@exports(*_REDUCTIONS)
def _segments(w: Writer, node: Operation, data: str, ids: str, count: str) -> str:
    """Reduce segments; rows whose id is outside go to one more segment at the end, which is cut off."""
    dtype = w.dtypes[data]
    wide = INT if dtype == BOOL else dtype
    start = _segment_start(node.type, dtype)
    size = w.vector(count)
    long = w.cast(ids, LONG)
    outside = w.add("Or", w.compare("Less", long, w.ints(0)), w.compare("GreaterOrEqual", long, size))
    long = w.where(outside, size, long)
    rows = [w.add("Add", size, w.ints(1)), w.slice(w.shape(data), 1, _LARGEST, 0)]
    base = w.expand(w.constant(np.array(start).astype(wide)), w.concat(rows, 0))
    sums = scatter_reduced(w, base, w.unsqueeze(long, -1), w.cast(data, wide), _REDUCTIONS[node.type])
    return w.cast(w.slice(sums, 0, -1, 0), dtype)


def _segment_start(name: str, dtype: DType) -> bool | float | int:
    if name in ("segment_sum", "segment_prod"):
        return 0 if name == "segment_sum" else 1
    least = name == "segment_min"
    if dtype == BOOL:
        return least
    if dtypes.is_floating(dtype):
        return np.inf if least else -np.inf
    return np.iinfo(dtype).max if least else np.iinfo(dtype).min


@exports("reverse_sequence")
def _reverse_sequence(w: Writer, node: Operation, x: str, lengths: str) -> str:
    op = op_of(node, ReverseSequence)
    rank = rank_of(node)
    time, batch = op.seq_axis % rank, op.batch_axis % rank
    order = [time, batch, *[axis for axis in range(rank) if axis not in (time, batch)]]
    turned = w.add("ReverseSequence", w.transpose(x, order), w.cast(lengths, LONG), time_axis=0, batch_axis=1)
    return w.transpose(turned, list(np.argsort(order)))


@exports("gather_segments")
def _gather_segments(w: Writer, node: Operation, rows: str, ids: str) -> str:
    """Gather segments with a row of zeros behind the others, for ids outside."""
    rank = rank_of(node)
    long = w.cast(ids, LONG)
    size = w.dim(rows, 0)
    outside = w.add("Or", w.compare("Less", long, w.ints(0)), w.compare("GreaterOrEqual", long, size))
    padded = w.add("Pad", rows, w.ints(*[0] * rank, 1, *[0] * (rank - 1)), w.like(0, rows))
    return w.add("Gather", padded, w.where(outside, size, long), axis=0)


@exports("unique_positions")
def _unique_positions(w: Writer, node: Operation, x: str) -> list[str]:
    op = op_of(node, UniquePositions)
    order = 1 if op.ascending else 0
    if w.dtypes[x] == BOOL:
        x = w.cast(x, INT)
    axis = 0 if rank_of(node) > 1 else None
    _, first, inverse, counts = w.add_many("Unique", x, dtypes=[None, LONG, LONG, LONG], axis=axis, sorted=order)
    return [w.cast(each, INT) for each in (first, inverse, counts)]


# --- parts ----------------------------------------------------------------------------------------------------------


@exports("dynamic_partition")
def _dynamic_partition(w: Writer, node: Operation, data: str, partitions: str) -> list[str]:
    op = op_of(node, DynamicPartition)
    rows, flat = _flat_rows(w, node, data, partitions)
    picks = [w.compare("Equal", flat, w.like(k, flat)) for k in range(op.count)]
    return [w.add("Compress", rows, pick, axis=0) for pick in picks]


def _flat_rows(w: Writer, node: Operation, data: str, partitions: str) -> tuple[str, str]:
    """Return data with one axis of rows, and a vector with the part of each."""
    rank = rank_of(node, 1)
    if rank == 1:
        return data, partitions
    flat = w.reshape(partitions, w.ints(-1)) if rank else w.unsqueeze(partitions, 0)
    shape = w.concat([w.vector(w.add("Size", partitions, dtype=LONG)), w.slice(w.shape(data), rank, _LARGEST, 0)], 0)
    return w.reshape(data, shape), flat


@exports("merge_partitions")
def _merge_partitions(w: Writer, node: Operation, partitions: str, *parts: str) -> str:
    """Put the rows of the parts, one part behind the other, where a stable sort of the partitions took them from."""
    rank = rank_of(node)
    flat = partitions if rank == 1 else w.add("Reshape", partitions, w.ints(-1))
    count = w.vector(w.add("Size", flat, dtype=LONG))
    _, order = w.add_many("TopK", flat, count, dtypes=[None, LONG], axis=0, largest=0, sorted=1)
    rows = w.concat(parts, 0)
    back = w.add("ScatterElements", w.zeros(count, LONG), order, positions(w, count))
    found = w.add("Gather", rows, back, axis=0)
    if rank == 1:
        return found
    return w.reshape(found, w.concat([w.shape(partitions), w.slice(w.shape(rows), 1, _LARGEST, 0)], 0))
