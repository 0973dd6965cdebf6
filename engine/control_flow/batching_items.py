"""Batching of ``x[...]`` and its gradient: keys, by NumPy's rules about where what is picked comes to stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..common import dtypes
from ..common.quick_dataclass import dataclass
from ..graph.graph import Operation
from ..graph.tensor import Tensor
from ..ops.arrays.axes import moveaxis
from ..ops.arrays.creation import arange
from ..ops.arrays.indexing import AddItem, GetItem, GetItems, Items, Place, PutItem, SliceItem
from ..ops.arrays.shaping import expand_dims, reshape
from ..ops.base import apply
from .batching import Batch, Rule, Value

WHOLE = SliceItem()
PLACE = Place.INPUT


@dataclass(frozen=True)
class _Key:
    """A key into batched values.

    Attributes:
        items: with the batch in front. `inputs` are what fills its places.
        moves: (axes of what is picked, where they belong): NumPy puts picked axes in front where they are not
            neighbours.
        arrays: whether anything but single elements and slices is picked.
    """

    items: Items
    inputs: list[Tensor]
    moves: tuple[tuple[int, ...], tuple[int, ...]]
    arrays: bool

    def placed(self, picked: Tensor) -> Tensor:
        return moveaxis(picked, *self.moves) if self.moves[0] else picked

    def taken_apart(self, values: Tensor) -> Tensor:
        """Return `values` in the order in which the key names their positions: the reverse of `placed`."""
        return moveaxis(values, self.moves[1], self.moves[0]) if self.moves[0] else values


def _key(batch: Batch, key: Items, nodes: Sequence[Tensor], indices: Sequence[Value], spread: bool) -> _Key | None:
    """Return the key for all examples; None where it can't be one.

    Args:
        nodes: the tensors of the function that fill the key's places; `indices` are their values.
        spread: use the numbers of the examples even where the indices are the same for all.
    """
    if Ellipsis in key or any(index.batched for index in _bounds(key, indices)):
        return None
    picks = _picks(key, nodes)
    if any(pick.shape is None or pick.dtype == dtypes.bool_ for pick in picks):
        return None
    joined = max([pick.ndim or 0 for pick in picks], default=0)
    apart = _are_apart(key)
    if not spread and not any(index.batched for index in indices):
        moves = ((joined,), (0,)) if joined and apart else ((), ())
        return _Key((WHOLE, *key), [index.tensor for index in indices], moves, bool(joined))
    numbers = reshape(arange(0, batch.size, dtype="int32"), (batch.size, *[1] * joined))
    picked = {id(pick) for pick in picks}
    inputs = [
        _spread(index, node.ndim or 0, joined) if id(node) in picked else index.tensor
        for node, index in zip(nodes, indices, strict=True)
    ]
    before = _axes_before_picks(key)
    moves: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    if joined and before and not apart:
        moves = (tuple(range(1, 1 + joined)), tuple(range(before + 1, before + 1 + joined)))
    return _Key((PLACE, *key), [numbers, *inputs], moves, arrays=True)


def _spread(index: Value, rank: int, joined: int) -> Tensor:
    if not index.batched or rank == joined:
        return index.tensor
    return expand_dims(index.tensor, tuple(range(1, 1 + joined - rank)))


def _bounds(key: Items, indices: Sequence[Value]) -> list[Value]:
    """Return the values that are bounds of slices."""
    remaining = iter(indices)
    found: list[Value] = []
    for item in key:
        if item is PLACE:
            next(remaining)
        elif isinstance(item, SliceItem):
            found.extend(next(remaining) for bound in (item.start, item.stop, item.step) if bound is PLACE)
    return found


def _picks(key: Items, nodes: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that are indices, and no bounds of slices."""
    remaining = iter(nodes)
    found: list[Tensor] = []
    for item in key:
        if item is PLACE:
            found.append(next(remaining))
        elif isinstance(item, SliceItem):
            for bound in (item.start, item.stop, item.step):
                if bound is PLACE:
                    next(remaining)
    return found


def _is_pick(item: Any) -> bool:
    return item is PLACE or isinstance(item, int)


def _are_apart(key: Items) -> bool:
    """Test whether something else stands between the picks."""
    places = [position for position, item in enumerate(key) if _is_pick(item)]
    return bool(places) and places != list(range(places[0], places[-1] + 1))


def _axes_before_picks(key: Items) -> int:
    return next((position for position, item in enumerate(key) if _is_pick(item)), 0)


def get(batch: Batch, x: Value, key: Items, nodes: Sequence[Tensor], indices: Sequence[Value], rank: int) -> Tensor:
    """Compute ``x[key]`` for each example, with indices that differ between them."""
    found = _key(batch, key, nodes, indices, spread=True)
    assert found is not None
    return found.placed(apply(GetItems(found.items), batch.batched(x), *found.inputs))


def put(
    batch: Batch,
    rows: Value,
    key: Items,
    repeats: bool,
    shape: Any,
    vector: Tensor,
    nodes: Sequence[Tensor],
    indices: Sequence[Value],
) -> Tensor:
    """Return zeros with `rows` added at a key, for each example."""
    found = _key(batch, key, nodes, indices, spread=True)
    assert found is not None
    op = PutItem(found.items, batch.shape(shape), repeats)
    return apply(op, found.taken_apart(batch.batched(rows)), vector, *found.inputs)


def get_item(batch: Batch, node: Operation, values: list[Value]) -> list[Value] | None:
    op = node.op
    assert isinstance(op, (GetItem, GetItems))
    x, *indices = values
    if node.inputs[0].ndim is None:
        return None
    if not x.batched and op.items == (PLACE,) and node.inputs[1].dtype != dtypes.bool_:
        return [Value(apply(GetItems(op.items), x.tensor, indices[0].tensor), batched=True)]
    key = _key(batch, op.items, node.inputs[1:], indices, spread=False)
    if key is None:
        return None
    whole = batch.batched(x)
    picked = apply((GetItems if key.arrays else GetItem)(key.items), whole, *key.inputs)
    return [Value(key.placed(picked), batched=True)]


def put_item(batch: Batch, node: Operation, values: list[Value]) -> list[Value] | None:
    op = node.op
    assert isinstance(op, PutItem)
    rows, shape, *indices = values
    if op.shape is None or shape.batched or rows.tensor.shape is None:
        return None
    key = _key(batch, op.items, node.inputs[2:], indices, spread=False)
    if key is None:
        return None
    put = PutItem(key.items, batch.shape(op.shape), op.repeats)
    vector = batch.shape_vector(shape.tensor)
    return [Value(apply(put, key.taken_apart(batch.batched(rows)), vector, *key.inputs), batched=True)]


def add_item(batch: Batch, node: Operation, values: list[Value]) -> list[Value] | None:
    op = node.op
    assert isinstance(op, AddItem)
    base, rows, *indices = values
    if node.inputs[0].ndim is None or rows.tensor.shape is None:
        return None
    key = _key(batch, op.items, node.inputs[2:], indices, spread=False)
    if key is None:
        return None
    add = AddItem(key.items, op.repeats)
    tensor = apply(add, batch.batched(base), key.taken_apart(batch.batched(rows)), *key.inputs)
    return [Value(tensor, batched=True)]


RULES: dict[type[Any], Rule] = {GetItem: get_item, GetItems: get_item, PutItem: put_item, AddItem: add_item}

__all__ = ["PLACE", "RULES", "WHOLE", "get", "put"]
