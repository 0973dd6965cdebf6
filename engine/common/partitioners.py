"""Partitioners: into how many shards a variable is cut, by its shape and dtype."""

from __future__ import annotations

import math
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from .dtypes import DTypeLike, as_dtype


class Partitioner:
    """The base: a function of a shape and a dtype that gives how many shards there are along each axis.

    >>> import anabranch as ab
    >>> class Halves(ab.distribute.Partitioner):
    ...     def __call__(self, shape, dtype):
    ...         return [2] + [1] * (len(shape) - 1)
    >>> Halves()((10, 4), "float32")
    [2, 1]
    """

    def __call__(self, shape: Sequence[int], dtype: DTypeLike, axis: int = 0) -> list[int]:
        """Return for each axis how many shards there are along it; one is cut, and the others have 1.

        Args:
            shape: of the whole.
            dtype: its dtype.
            axis: the one to cut.
        """
        sizes = [int(size) for size in shape]
        if not -len(sizes) <= axis < len(sizes):
            raise ValueError(f"{type(self).__name__}: axis {axis} is none of the shape {tuple(sizes)}.")
        found = [1] * len(sizes)
        found[axis] = max(1, min(self.count(sizes, sizes[axis], dtype), sizes[axis]))
        return found

    def count(self, shape: Sequence[int], size: int, dtype: DTypeLike) -> int:
        """Return how many shards are wanted; there will be at most one for each of the `size` rows."""
        raise NotImplementedError(f"{type(self).__name__} must define count(shape, size, dtype).")


class FixedShardsPartitioner(Partitioner):
    """Cuts each variable into `num_shards` shards.

    Args:
        num_shards: how many; those with fewer rows have one for each row.

    >>> FixedShardsPartitioner(3)((10, 4), "float32")
    [3, 1]
    """

    def __init__(self, num_shards: int) -> None:
        self.num_shards = _positive("FixedShardsPartitioner", "num_shards", num_shards)

    def count(self, shape: Sequence[int], size: int, dtype: DTypeLike) -> int:
        return self.num_shards


class MinSizePartitioner(Partitioner):
    """Cuts variables into as many shards as possible of at least `min_shard_bytes`, and into `max_shards` at most.

    Args:
        min_shard_bytes: the least size of a shard.
        max_shards: the largest number of shards; as many as there are ps tasks, as a rule.
        bytes_per_string: the size that strings count as.

    >>> cut = MinSizePartitioner(min_shard_bytes=1024, max_shards=4)
    >>> cut((1000, 1), "float32"), cut((10, 1), "float32"), cut((100_000, 1), "float32")
    ([3, 1], [1, 1], [4, 1])
    """

    def __init__(self, min_shard_bytes: int = 256 << 10, max_shards: int = 1, bytes_per_string: int = 16) -> None:
        self.min_shard_bytes = _positive("MinSizePartitioner", "min_shard_bytes", min_shard_bytes)
        self.max_shards = _positive("MinSizePartitioner", "max_shards", max_shards)
        self.bytes_per_string = _positive("MinSizePartitioner", "bytes_per_string", bytes_per_string)

    def count(self, shape: Sequence[int], size: int, dtype: DTypeLike) -> int:
        return min(self.max_shards, _bytes_of(shape, dtype, self.bytes_per_string) // self.min_shard_bytes)


class MaxSizePartitioner(Partitioner):
    """Cuts variables into as few shards as possible of at most `max_shard_bytes`.

    Args:
        max_shard_bytes: the largest size of a shard; a row is never cut.
        max_shards: the largest number of shards, each of which may then be larger; None for any number.
        bytes_per_string: the size that strings count as.

    >>> MaxSizePartitioner(1024)((1000, 1), "float32")
    [4, 1]
    """

    def __init__(self, max_shard_bytes: int, max_shards: int | None = None, bytes_per_string: int = 16) -> None:
        self.max_shard_bytes = _positive("MaxSizePartitioner", "max_shard_bytes", max_shard_bytes)
        self.max_shards = None if max_shards is None else _positive("MaxSizePartitioner", "max_shards", max_shards)
        self.bytes_per_string = _positive("MaxSizePartitioner", "bytes_per_string", bytes_per_string)

    def count(self, shape: Sequence[int], size: int, dtype: DTypeLike) -> int:
        row = _bytes_of(shape, dtype, self.bytes_per_string) // max(size, 1)
        rows = max(self.max_shard_bytes // max(row, 1), 1)  # of the largest shard
        wanted = -(-size // rows)
        return wanted if self.max_shards is None else min(wanted, self.max_shards)


def _bytes_of(shape: Sequence[int], dtype: DTypeLike, bytes_per_string: int) -> int:
    wanted = as_dtype(dtype)
    return math.prod(shape) * (bytes_per_string if wanted.kind == "T" else wanted.itemsize)


def _positive(kind: str, argument: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{kind}: {argument} must be a positive integer, got {value!r}.")
    return value


def shards_along_rows(partitioner: Any, shape: Sequence[int], dtype: DTypeLike) -> int:
    """Ask a partitioner into how many shards of whole rows to cut a variable.

    Raises:
        ValueError: it answers something else than a count for each axis, or cuts another axis than the first.
        TypeError: it can't be called.
    """
    if not callable(partitioner):
        raise TypeError(
            f"A partitioner must be a function of shape and dtype, such as FixedShardsPartitioner(2); got "
            f"{partitioner!r}."
        )
    answer: Any = partitioner(tuple(shape), as_dtype(dtype))
    try:
        counts = [int(count) for count in answer]
    except TypeError:
        raise TypeError(
            f"The partitioner {partitioner!r} gave {answer!r} for the shape {tuple(shape)}. Expected a count for each "
            f"axis, such as {[2, *[1] * (len(shape) - 1)]}."
        ) from None
    if len(counts) != len(shape) or any(count != 1 for count in counts[1:]) or counts[0] < 1:
        raise ValueError(
            f"The partitioner {partitioner!r} gave {counts} for the shape {tuple(shape)}. Expected a count for each "
            "axis, of which the first is at least 1 and the others are 1: variables are cut by rows."
        )
    return min(counts[0], max(int(shape[0]), 1))


class GridPartitioner:
    """The base of what cuts weights by their paths, along any axes, into parts of one size."""

    def counts(self, path: str, shape: Sequence[int], dtype: DTypeLike) -> list[int] | None:
        """Return how many parts there are along each axis of a weight; None to leave it whole.

        Args:
            path: the weight's.
            shape, dtype: of the whole.

        Raises:
            ValueError: it does not divide so.
        """
        raise NotImplementedError(f"{type(self).__name__} must define counts(path, shape, dtype).")


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.partitioner: Any = None


class _Default:
    partitioner: Any = None


_scopes = _Scopes()


def set_default_partitioner(partitioner: Any) -> None:
    """Set what cuts weights where no block says; None for nothing."""
    _Default.partitioner = partitioner


@contextmanager
def partitioning(partitioner: Any) -> Generator[None]:
    """Make a block: layers that are made inside cut their weights as a partitioner says; None for not at all."""
    before, _scopes.partitioner = _scopes.partitioner, partitioner
    try:
        yield
    finally:
        _scopes.partitioner = before


def current_partitioner() -> Any:
    """Return the partitioner of the block around, or that of the process; None if there is none."""
    return _Default.partitioner if _scopes.partitioner is None else _scopes.partitioner


__all__ = [
    "FixedShardsPartitioner",
    "GridPartitioner",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "Partitioner",
    "current_partitioner",
    "partitioning",
    "set_default_partitioner",
    "shards_along_rows",
]
