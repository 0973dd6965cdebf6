"""Ops over `ShardedVariable`: the whole out of its shards, rows taken where they are, gradients cut into parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..common.nest import is_sequence
from ..graph.sharded import ShardedVariable
from ..graph.slices import IndexedSlices
from ..graph.tensor import Tensor
from .arrays.gathering import integers
from .arrays.joining import concatenate
from .arrays.partitioning import dynamic_partition, dynamic_stitch
from .base import TensorLike, convert_to_tensor
from .containers.indexed_slices import from_the_front
from .math.comparison import where
from .neural.embedding import embedding_lookup, find_shards


def join_shards(variable: ShardedVariable) -> Tensor:
    """The whole value of a sharded variable."""
    values = [convert_to_tensor(shard) for shard in variable.shards]
    if len(values) == 1:
        return values[0]
    if variable.layout == "div":
        return concatenate(values)
    places = [np.arange(rows.first, rows.stop, rows.step).astype("int32") for rows in variable.rows]
    return dynamic_stitch(places, values)


def take_of_shards(variable: ShardedVariable, indices: TensorLike, wrap: bool) -> Tensor:
    """The rows at `indices`, each taken where its shard is; negative ones count from the end if `wrap`."""
    places = integers(indices, "take" if wrap else "gather")
    if wrap and places.dtype.kind == "i":
        places = where(places < 0, places + np.asarray(len(variable), places.dtype), places)
    return embedding_lookup(variable.shards, places, variable.layout)


def parts_of_shards(variable: ShardedVariable, gradient: Any) -> list[Any]:
    """A gradient of a sharded variable as those of its shards.

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
        return [whole[rows.slice] for rows in variable.rows]
    count = len(variable.shards)
    values, indices = convert_to_tensor(gradient.values), integers(gradient.indices, "scatter")
    places = from_the_front(IndexedSlices(values, indices, np.array(variable.shape, "int32")))
    number, local = find_shards(places, [len(rows) for rows in variable.rows], variable.layout, "scatter")
    return [
        IndexedSlices(rows, positions, np.array(shard.shape, "int32"))
        for shard, rows, positions in zip(
            variable.shards,
            dynamic_partition(values, number, count),
            dynamic_partition(local, number, count),
            strict=True,
        )
    ]


__all__ = ["join_shards", "parts_of_shards", "take_of_shards"]
