"""Rows of tables that are cut into shards: embedding_lookup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.scopes import colocate_with
from ...graph.state.sharded import ShardedVariable
from ...graph.state.variable import Variable
from ...graph.tensor import Tensor
from ..arrays.creation import arange, zeros_like
from ..arrays.gathering import integers
from ..arrays.joining import concatenate, stack
from ..arrays.partitioning import dynamic_partition, dynamic_stitch
from ..arrays.scattering import gather
from ..arrays.shaping import ravel, reshape, shape, size
from ..arrays.sorting import searchsorted
from ..base import TensorLike, convert_to_tensor
from ..math.comparison import maximum
from ..math.elementwise import square
from ..math.mathematics import rsqrt
from ..math.reduction import prod
from ..math.reduction import sum as sum_of
from ..math.running import cumsum
from ..run_time_shapes import runtime_shape

STRATEGIES = ("mod", "div")


def shard_sizes(count: int, shards: int) -> list[int]:
    """Return how many of `count` rows each shard holds, with either strategy: the first ones take one more."""
    return [count // shards + (shard < count % shards) for shard in range(shards)]


def shards_of(params: Any, partition_strategy: str) -> tuple[list[Any], str]:
    """Return the shards of a table that was given as one, as a `ShardedVariable` or as a list, and how they are cut."""
    if isinstance(params, ShardedVariable):
        if params.grid is not None:  # rows are not whole anywhere
            return [params.value], "div"
        return list(params.shards), params.layout
    return ([*params] if isinstance(params, (list, tuple)) else [params]), partition_strategy


def find_shards(
    ids: TensorLike, sizes: Sequence[Any], partition_strategy: str = "mod", caller: str = "embedding_lookup"
) -> tuple[Tensor, Tensor]:
    """Find the rows of ids: the numbers of their shards, and their places there.

    Args:
        ids: integers.
        sizes: how many rows each shard holds: ints, or int32 scalars where the run finds out.
        partition_strategy: "mod" or "div".
        caller: for messages.

    Raises:
        ValueError: there is no such strategy, or no table of these sizes.
    """
    if partition_strategy not in STRATEGIES:
        raise ValueError(f"{caller}: partition_strategy must be 'mod' or 'div', got {partition_strategy!r}.")
    are_known = all(isinstance(size, int) for size in sizes)
    expected = shard_sizes(sum(sizes), len(sizes)) if are_known else list(sizes)
    if are_known and list(sizes) != expected:
        raise ValueError(
            f"{caller}: {len(sizes)} shards of a table of {sum(sizes)} rows must have {expected} rows, got "
            f"{list(sizes)}."
        )
    ids = integers(ids, caller)
    if len(sizes) == 1:
        return zeros_like(ids), ids
    if partition_strategy == "mod":
        return ids % len(sizes), ids // len(sizes)
    if are_known:
        starts: Any = np.cumsum([0, *sizes[:-1]]).astype(ids.dtype)
    else:
        starts = cumsum(stack([convert_to_tensor(size, ids.dtype) for size in (0, *sizes[:-1])]))
    shard = searchsorted(starts[1:], ids, side="right")
    return shard, ids - gather(convert_to_tensor(starts), shard)


def embedding_lookup(
    params: Any, ids: TensorLike, partition_strategy: str = "mod", max_norm: float | None = None
) -> Tensor:
    """Return the rows of a table, cut into shards or whole, that ids name (``tf.nn.embedding_lookup``).

    Args:
        params: a table ``(vocabulary, ...)``, or a list of shards of it. Of n shards the first ``vocabulary % n`` hold
            one row more than the others. A `ShardedVariable` has its own strategy.
        ids: integers of any shape.
        partition_strategy: "mod": row i is row ``i // n`` of shard ``i % n``. "div": each shard holds rows that follow
            one another.
        max_norm: rows with a larger Euclidean norm are scaled down to this one.

    Returns:
        A tensor of the shape of the ids and a row. Ids are parted by shard (`dynamic_partition`), each shard's rows
        are gathered where the shard is, and put into their places again (`dynamic_stitch`). So gradients of shards
        are `IndexedSlices`.

    Raises:
        IndexError: an id is outside of the table (when the graph runs).
        TypeError: the ids are not integers.
        ValueError: there is no shard, no such strategy, the shards' sizes do not fit, or `max_norm` is not positive.

    Abadi et al., "TensorFlow: A System for Large-Scale Machine Learning", OSDI 2016, section 4.2.

    >>> import anabranch as ab
    >>> even, odd = [[0.0], [20.0], [40.0]], [[10.0], [30.0]]
    >>> ab.ops.embedding_lookup([even, odd], [3, 0, 4])
    Tensor([[30.],
            [ 0.],
            [40.]], dtype=float32)
    """
    shards, partition_strategy = shards_of(params, partition_strategy)
    if not shards:
        raise ValueError("embedding_lookup: params must be a table or a list of at least one shard, got an empty list.")
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"embedding_lookup: max_norm must be positive, or None for any norm, got {max_norm}.")
    tables = [shard if isinstance(shard, Variable) else convert_to_tensor(shard) for shard in shards]
    places = integers(ids, "embedding_lookup")
    if len(tables) == 1:
        return _clipped(_rows(tables[0], places), places, max_norm)
    number, local = find_shards(ravel(places), [_rows_of(table) for table in tables], partition_strategy)
    count = len(tables)
    parts = zip(tables, dynamic_partition(local, number, count), strict=True)
    found = [_rows(table, part) for table, part in parts]
    rows = dynamic_stitch(dynamic_partition(arange(size(places)), number, count), found)
    if places.ndim is None or found[0].ndim is None:
        whole: Any = concatenate([runtime_shape(places), runtime_shape(found[0])[1:]])
    else:
        whole = (*shape(places), *shape(found[0])[1:])
    return _clipped(reshape(rows, whole), places, max_norm)


def _rows(table: Any, places: Tensor) -> Tensor:
    """Return rows of one shard, taken on its device."""
    if not isinstance(table, Variable):
        return gather(table, places)
    with colocate_with(table):
        return gather(table, places)


def _rows_of(table: Any) -> Any:
    """Return the number of rows of a shard, as an int or an int32 scalar."""
    if table.shape == ():
        raise ValueError("embedding_lookup: each shard must be a table with an axis of rows, got a scalar.")
    known = None if table.shape is None else table.shape[0]
    return runtime_shape(convert_to_tensor(table))[0] if known is None else int(known)


def _clipped(rows: Tensor, places: Tensor, max_norm: float | None) -> Tensor:
    """Return rows with at most that norm. (As in TensorFlow, the gradient flows through the norm, too.)"""
    if max_norm is None:
        return rows
    first, rank = places.ndim, rows.ndim
    if first is None or rank is None:
        whole = runtime_shape(rows)
        width = prod(whole[size(runtime_shape(places)) :])
        flat = reshape(rows, stack([size(places), width]))
        return reshape(_clipped(flat, ravel(places), max_norm), whole)
    squares = sum_of(square(rows), axis=tuple(range(first, rank)), keepdims=True)
    return rows * (max_norm * rsqrt(maximum(squares, float(max_norm) ** 2)))


__all__ = ["embedding_lookup"]
