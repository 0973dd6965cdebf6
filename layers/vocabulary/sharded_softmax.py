"""The softmax over all classes, with weights that are cut into shards.

Each shard's logits are computed where its weights are, and stay there: what leaves a device is a number or two for each
example, or its few best classes (Abadi et al., "TensorFlow: A System for Large-Scale Machine Learning", OSDI 2016,
section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ...engine import ops
from ...engine.graph import ShardedVariable, Tensor, Variable
from ...engine.graph.scopes import colocate_with
from ...engine.ops.base import TensorLike
from ...engine.ops.neural.embedding import find_shards, shards_of
from ..core.input_spec import known_shape

Table: TypeAlias = "TensorLike | ShardedVariable"
"""A table, whole, as a `ShardedVariable`, or as a list of shards."""


def sharded_softmax_loss(
    weights: Table,
    biases: Table,
    labels: TensorLike,
    inputs: TensorLike,
    partition_strategy: str = "mod",
) -> Tensor:
    """Return the cross-entropy of the softmax over all classes, exactly, with weights in shards.

    Args:
        weights: ``(classes, dim)``, a `ShardedVariable`, or a list of shards of it (see `ops.embedding_lookup`).
        biases: ``(classes,)``, in shards as the weights are, each on the device of that shard of the weights.
        labels: integers ``(batch,)``.
        inputs: ``(batch, dim)``.
        partition_strategy: "mod" or "div": how shards are cut.

    Returns:
        ``(batch,)``, a loss for each example. A shard gives the logarithm of the sum of its classes' exponentials and,
        if it has it, the logit of the true class.

    Raises:
        IndexError: a label is outside of the classes (when the graph runs).
        TypeError, ValueError: arguments do not fit.

    >>> import anabranch as ab
    >>> weights, biases = [ab.ops.zeros((5, 4))] * 2, [ab.ops.zeros((5,))] * 2
    >>> ab.nn.sharded_softmax_loss(weights, biases, [3], ab.ops.ones((1, 4)))
    Tensor([2.3025851], dtype=float32)
    """
    weights, partition_strategy = shards_of(weights, partition_strategy)
    tables, offsets, inputs = _checked("sharded_softmax_loss", weights, biases, inputs)
    owner, local = find_shards(labels, _sizes(tables), partition_strategy, "sharded_softmax_loss")
    sums, true = list[Tensor](), list[Tensor]()
    for shard, (table, offset) in enumerate(zip(tables, offsets, strict=True)):
        mine = ops.equal(owner, shard)
        place = ops.expand_dims(ops.where(mine, local, ops.zeros_like(local)), 1)
        with colocate_with(table):
            logits = _shard_logits(table, offset, inputs)
            logit = ops.take_along_axis(logits, place, axis=1)
            sums.append(ops.logsumexp(logits, axis=1))
        true.append(ops.where(mine, ops.squeeze(logit, 1), 0.0))
    total = sums[0] if len(sums) == 1 else ops.logsumexp(ops.stack(sums), axis=0)
    return total - (true[0] if len(true) == 1 else ops.sum(ops.stack(true), axis=0))


def sharded_logits(weights: Table, biases: Table, inputs: TensorLike, partition_strategy: str = "mod") -> Tensor:
    """Return the logits of all classes, ``(batch, classes)``, in the order of the classes; see `sharded_softmax_loss`.

    >>> import anabranch as ab
    >>> even, odd = [[0.0], [2.0], [4.0]], [[1.0], [3.0]]
    >>> ab.nn.sharded_logits([even, odd], [[0.0] * 3, [0.0] * 2], [[1.0]])
    Tensor([[0., 1., 2., 3., 4.]], dtype=float32)
    """
    weights, partition_strategy = shards_of(weights, partition_strategy)
    tables, offsets, inputs = _checked("sharded_logits", weights, biases, inputs)
    parts = _all_logits(tables, offsets, inputs)
    if len(parts) == 1:
        return parts[0]
    owner, local = _numbers(_sizes(tables), partition_strategy, "sharded_logits")
    joined = ops.concatenate(parts, axis=1)
    if partition_strategy == "div":
        return joined
    starts = np.cumsum([0, *_sizes(tables)[:-1]])
    return ops.take(joined, (starts[owner] + local).astype("int32"), axis=1)


def sharded_top_k(
    weights: Table, biases: Table, inputs: TensorLike, k: int, partition_strategy: str = "mod"
) -> tuple[Tensor, Tensor]:
    """Return the `k` largest logits and their classes, the best of each shard's best; see `sharded_softmax_loss`.

    Returns:
        ``(batch, k)``: logits, largest first, and int32 numbers of classes.

    Raises:
        ValueError: there are fewer classes, or arguments do not fit.

    >>> import anabranch as ab
    >>> even, odd = [[0.0], [2.0], [4.0]], [[1.0], [3.0]]
    >>> ab.Session().run(ab.nn.sharded_top_k([even, odd], [[0.0] * 3, [0.0] * 2], [[1.0]], 3))[1]
    array([[4, 3, 2]], dtype=int32)
    """
    weights, partition_strategy = shards_of(weights, partition_strategy)
    tables, offsets, inputs = _checked("sharded_top_k", weights, biases, inputs)
    sizes = _sizes(tables)
    if not 1 <= k <= sum(sizes):
        raise ValueError(f"sharded_top_k: k must be from 1 to the number of classes, {sum(sizes)}, got {k}.")
    owner, _ = _numbers(sizes, partition_strategy, "sharded_top_k")
    values, numbers = list[Tensor](), list[Tensor]()
    for shard, (table, offset) in enumerate(zip(tables, offsets, strict=True)):
        with colocate_with(table):
            best, places = ops.top_k(_shard_logits(table, offset, inputs), min(k, sizes[shard]))
        numbers.append(ops.take(np.flatnonzero(owner == shard).astype("int32"), places, axis=0))
        values.append(best)
    if len(values) == 1:
        return values[0], numbers[0]
    best, places = ops.top_k(ops.concatenate(values, axis=1), k)
    return best, ops.take_along_axis(ops.concatenate(numbers, axis=1), places, axis=1)


def _checked(
    name: str, weights: Sequence[TensorLike], biases: Table, inputs: TensorLike
) -> tuple[list[Tensor | Variable], list[Tensor | Variable], Tensor]:
    """Return the shards of weights and biases, as variables or tensors, and the inputs."""
    tables, offsets = [
        [each if isinstance(each, Variable) else ops.convert_to_tensor(each) for each in given]
        for given in (weights, shards_of(biases, "")[0])
    ]
    if len(tables) != len(offsets) or not tables:
        raise ValueError(
            f"{name}: weights and biases must have as many shards, at least one, got {len(tables)} and {len(offsets)}."
        )
    for table, offset in zip(tables, offsets, strict=True):
        rows, *rest = table.shape or (None,)
        if rows is None or len(rest) != 1 or offset.shape != (rows,):
            raise ValueError(
                f"{name}: a shard's weights must have shape (classes, dim) and its biases (classes,), with a known "
                f"number of classes, got {table.shape} and {offset.shape}."
            )
    inputs = ops.convert_to_tensor(inputs)
    if inputs.shape is not None and len(inputs.shape) != 2:
        raise ValueError(f"{name}: inputs must have shape (batch, dim), got {inputs.shape}.")
    return tables, offsets, inputs


def _sizes(tables: list[Tensor | Variable]) -> list[int]:
    return [known_shape(table.shape)[0] or 0 for table in tables]


def _numbers(sizes: list[int], partition_strategy: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each class, its shard and its place there, as arrays."""
    if partition_strategy not in ("mod", "div"):
        raise ValueError(f"{name}: partition_strategy must be 'mod' or 'div', got {partition_strategy!r}.")
    every = np.arange(sum(sizes))
    if partition_strategy == "mod":
        return every % len(sizes), every // len(sizes)
    starts = np.cumsum([0, *sizes])
    owner = np.searchsorted(starts[1:], every, side="right")
    return owner, every - starts[owner]


def _shard_logits(table: Tensor | Variable, offset: TensorLike, inputs: Tensor) -> Tensor:
    return ops.matmul(inputs, ops.transpose(ops.cast(table, inputs.dtype))) + ops.cast(offset, inputs.dtype)


def _all_logits(tables: list[Tensor | Variable], offsets: list[Tensor | Variable], inputs: Tensor) -> list[Tensor]:
    parts = list[Tensor]()
    for table, offset in zip(tables, offsets, strict=True):
        with colocate_with(table):
            parts.append(_shard_logits(table, offset, inputs))
    return parts


__all__ = ["sharded_logits", "sharded_softmax_loss", "sharded_top_k"]
