"""Ops over `ShardedVariable`: the whole out of its shards, rows taken where they are, gradients cut into parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..common.nest import is_sequence
from ..graph.slices import IndexedSlices
from ..graph.state.sharded import ShardedVariable, rows_of_shards
from ..graph.state.variable import Variable
from ..graph.tensor import Tensor
from .arrays.front_positions import FrontPositions, from_the_front
from .arrays.gathering import integers
from .arrays.joining import concatenate
from .arrays.partitioning import dynamic_partition, dynamic_stitch
from .base import TensorLike, apply, convert_to_tensor
from .neural.embedding import embedding_lookup, find_shards


def join_shards(variable: ShardedVariable) -> Tensor:
    """Return the whole value of a sharded variable."""
    return join_parts(variable, variable.shards)


def join_parts(variable: ShardedVariable, parts: Sequence[TensorLike]) -> Tensor:
    """Return the whole out of a part for each shard of a variable, such as its gradient."""
    values = [convert_to_tensor(part) for part in parts]
    if len(values) == 1:
        return values[0]
    if variable.grid is not None:
        return _joined(values, variable.grid)
    if variable.layout == "div":
        return concatenate(values)
    places = [np.arange(rows.first, rows.stop, rows.step).astype("int32") for rows in variable.rows]
    return dynamic_stitch(places, values)


def _joined(values: list[Tensor], grid: Sequence[int], axis: int = 0) -> Tensor:
    """Return parts in row-major order as one tensor."""
    if axis == len(grid):
        return values[0]
    size = len(values) // grid[axis]
    parts = [_joined(values[k * size : (k + 1) * size], grid, axis + 1) for k in range(grid[axis])]
    return parts[0] if len(parts) == 1 else concatenate(parts, axis=axis)


def take_of_shards(variable: ShardedVariable, indices: TensorLike, wrap: bool) -> Tensor:
    """Return the rows at `indices`, each taken where its shard is; negative ones count from the end if `wrap`.

    At run time, IndexError: one is out of bounds.
    """
    places = integers(indices, "take" if wrap else "gather")
    if wrap:
        places = apply(
            FrontPositions(), places, convert_to_tensor(np.int64(len(variable)))
        )  # an error names places of the whole
    if variable.grid is None:
        return embedding_lookup(variable.shards, places, variable.layout)
    _, *rest = variable.grid  # the parts of some columns are a table that is cut by rows
    width = math.prod(rest)
    tables = [embedding_lookup(variable.shards[number::width], places, "div") for number in range(width)]
    return _joined(tables, [1] * (places.ndim or 0) + rest)


def parts_of_shards(variable: ShardedVariable, gradient: Any) -> list[Any]:
    """Return a gradient of a sharded variable as those of its shards.

    Raises:
        ValueError: a list has another length than there are shards.
    """
    if is_sequence(gradient) and not isinstance(gradient, IndexedSlices):
        if len(gradient) == len(variable.shards):
            return list(gradient)
        if not len(gradient) or not isinstance(gradient[0], (list, tuple, int, float)):
            raise ValueError(
                f"{len(gradient)} gradients were given for the {len(variable.shards)} shards of {variable.name!r}. "
                "Give one for each shard, or one of the whole."
            )
    if gradient is None:
        return [None] * len(variable.shards)
    if not isinstance(gradient, IndexedSlices):
        whole = convert_to_tensor(gradient)
        return [whole[region] for region in variable.regions]
    if variable.grid is not None:
        return _rows_of_grid(variable, gradient)
    return _rows_of(variable.shards, gradient, variable.shape, variable.layout)


def _rows_of_grid(variable: ShardedVariable, gradient: IndexedSlices) -> list[Any]:
    """Return some rows as those of the parts of a grid."""
    width = len(variable.shards) // (variable.grid or (1,))[0]
    values = convert_to_tensor(gradient.values)
    found: list[Any] = [None] * len(variable.shards)
    for number in range(width):
        columns = variable.regions[number][1:]
        own = IndexedSlices(values[:, *columns], gradient.indices, gradient.dense_shape)
        shards = variable.shards[number::width]
        found[number::width] = _rows_of(shards, own, (variable.shape[0], *(shards[0].shape or ())[1:]), "div")
    return found


def _rows_of(shards: Sequence[Variable], gradient: IndexedSlices, shape: Sequence[int], layout: str) -> list[Any]:
    """Return some rows as those of the shards of a table of this shape.

    Args:
        shards, layout: how it is cut.
        gradient: the rows.
        shape: of the whole.
    """
    count = len(shards)
    values, indices = convert_to_tensor(gradient.values), integers(gradient.indices, "scatter")
    places = from_the_front(IndexedSlices(values, indices, np.array(shape, "int32")))
    sizes = [len(rows) for rows in rows_of_shards(int(shape[0]), count, layout)]
    number, local = find_shards(places, sizes, layout, "scatter")
    return [
        IndexedSlices(rows, positions, np.array(shard.shape, "int32"))
        for shard, rows, positions in zip(
            shards, dynamic_partition(values, number, count), dynamic_partition(local, number, count), strict=True
        )
    ]


__all__ = ["join_parts", "join_shards", "parts_of_shards", "take_of_shards"]
