"""Losses over very many classes that compute a few logits: sampled softmax and noise-contrastive estimation."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor, Variable, colocate_with
from ...engine.ops.base import TensorLike
from ...engine.ops.neural.embedding import find_shards, shards_of
from .candidate_sampling import log_uniform_candidate_sampler

if TYPE_CHECKING:
    from ...engine.ops.random.keys import SeedGenerator
    from .sharded_softmax import Table


_NEVER = -1e30  # the logit of a class that must not count: finite, so that no gradient is NaN


def sampled_softmax_loss(
    weights: Table,
    biases: Table,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: tuple[TensorLike, TensorLike, TensorLike] | None = None,
    remove_accidental_hits: bool = True,
    seed: int | SeedGenerator | None = None,
    *,
    subtract_log_q: bool = True,
    partition_strategy: str = "mod",
) -> Tensor:
    """Compute the cross-entropy of a softmax over the true classes and a sample of the others.

    It is ``tf.nn.sampled_softmax_loss``.

    For training only: its value is lower than that of the softmax over all classes, but its gradient points, in the
    mean, about where the full one does.

    Args:
        weights: ``(num_classes, dim)``, a `ShardedVariable`, or a list of shards (see `ops.embedding_lookup`). The
            logits of a shard's classes are computed where it is.
        biases: ``(num_classes,)``, in shards as the weights are.
        labels: integers ``(batch, num_true)``, the true classes.
        inputs: ``(batch, dim)``, what goes into the softmax.
        num_sampled: how many classes to sample, for the whole batch.
        num_classes: how many there are.
        num_true: the true classes of an example, each of which counts ``1 / num_true``.
        sampled_values: what a sampler gave; by default `log_uniform_candidate_sampler`, each class at most once.
        remove_accidental_hits: leave out sampled classes that are true ones of the example.
        seed: an integer or an `ab.random.SeedGenerator`, for the sampler.
        subtract_log_q: correct logits by the logarithms of the expected counts.
        partition_strategy: "mod" or "div": how shards are cut.

    Returns:
        ``(batch,)``, a loss for each example. Gradients of weights and biases are `IndexedSlices`.

    Raises:
        IndexError: a label is outside of the classes (when the graph runs).
        TypeError, ValueError: arguments do not fit.

    Jean, Cho, Memisevic and Bengio, "On Using Very Large Target Vocabulary for Neural Machine Translation", ACL 2015.

    >>> import anabranch as ab
    >>> weights, biases = ab.ops.zeros((10, 4)), ab.ops.zeros((10,))
    >>> loss = ab.nn.sampled_softmax_loss(
    ...     weights, biases, [[3]], ab.ops.ones((1, 4)), num_sampled=10, num_classes=10, subtract_log_q=False)
    >>> loss
    Tensor([2.3025851], dtype=float32)
    """
    true, sampled = _logits(
        "sampled_softmax_loss",
        (weights, biases),
        (labels, inputs),
        (num_sampled, num_classes, num_true),
        sampled_values,
        (remove_accidental_hits, subtract_log_q),
        seed,
        partition_strategy,
    )
    total = ops.logsumexp(ops.concatenate([true, sampled], axis=1), axis=1)
    return total - ops.mean(true, axis=1)


def nce_loss(
    weights: Table,
    biases: Table,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: tuple[TensorLike, TensorLike, TensorLike] | None = None,
    remove_accidental_hits: bool = False,
    seed: int | SeedGenerator | None = None,
    *,
    subtract_log_q: bool = True,
    partition_strategy: str = "mod",
) -> Tensor:
    """Compute a noise-contrastive loss: true classes against sampled ones, each by a sigmoid (``tf.nn.nce_loss``).

    Args:
        weights, biases, labels, inputs, num_sampled, num_classes, num_true: see `sampled_softmax_loss`.
        sampled_values, remove_accidental_hits, seed, subtract_log_q, partition_strategy: see there.

    Returns:
        ``(batch,)``, a loss for each example: a sum over the true and the sampled classes.

    Raises:
        IndexError: a label is outside of the classes (when the graph runs).
        TypeError, ValueError: arguments do not fit.

    Gutmann and Hyvärinen, "Noise-contrastive estimation: A new estimation principle for unnormalized statistical
    models", AISTATS 2010.

    >>> import anabranch as ab
    >>> weights, biases = ab.ops.zeros((10, 4)), ab.ops.zeros((10,))
    >>> loss = ab.nn.nce_loss(
    ...     weights, biases, [[3]], ab.ops.ones((1, 4)), num_sampled=4, num_classes=10, subtract_log_q=False)
    >>> loss
    Tensor([3.465736], dtype=float32)
    """
    true, sampled = _logits(
        "nce_loss",
        (weights, biases),
        (labels, inputs),
        (num_sampled, num_classes, num_true),
        sampled_values,
        (remove_accidental_hits, subtract_log_q),
        seed,
        partition_strategy,
    )
    right = ops.softplus(true) - true / num_true  # true classes of an example share a label of 1
    return ops.sum(right, axis=1) + ops.sum(ops.softplus(sampled), axis=1)


def _logits(
    name: str,
    variables: tuple[Table, Table],
    examples: tuple[TensorLike, TensorLike],
    counts: tuple[int, int, int],
    sampled_values: tuple[TensorLike, TensorLike, TensorLike] | None,
    corrections: tuple[bool, bool],
    seed: int | SeedGenerator | None,
    partition_strategy: str,
) -> tuple[Tensor, Tensor]:
    """Return the logits of true classes, ``(batch, num_true)``, and of sampled ones, ``(batch, num_sampled)``."""
    weights, biases = variables
    num_sampled, num_classes, num_true = counts
    labels, inputs = _checked(name, *examples, num_true)
    if sampled_values is None:
        sampled_values = log_uniform_candidate_sampler(labels, num_true, num_sampled, True, num_classes, seed)
    candidates, true_count, sampled_count = [ops.stop_gradient(value) for value in sampled_values]
    candidates = ops.cast(candidates, "int64")

    def rows(table: Table, ids: Tensor) -> Tensor:
        return ops.cast(ops.embedding_lookup(table, ids, partition_strategy), inputs.dtype)

    true = ops.sum(ops.expand_dims(inputs, 1) * rows(weights, labels), axis=-1) + rows(biases, labels)
    sampled = _of_candidates(name, weights, biases, candidates, inputs, partition_strategy)
    remove_accidental_hits, subtract_log_q = corrections
    if subtract_log_q:
        true = true - ops.log(ops.cast(true_count, true.dtype))
        sampled = sampled - ops.log(ops.cast(sampled_count, sampled.dtype))
    if remove_accidental_hits:
        hits = ops.any(ops.equal(ops.expand_dims(labels, -1), candidates), axis=1)
        never = max(_NEVER, float(np.finfo(np.float16).min)) if sampled.dtype.name == "float16" else _NEVER
        sampled = ops.where(hits, ops.convert_to_tensor(never, sampled.dtype), sampled)
    return true, sampled


def _of_candidates(
    name: str, weights: Table, biases: Table, candidates: Tensor, inputs: Tensor, partition_strategy: str
) -> Tensor:
    """Return the logits of the sampled classes, ``(batch, num_sampled)``; each shard computes its own."""
    (tables, strategy), (offsets, _) = shards_of(weights, partition_strategy), shards_of(biases, partition_strategy)
    if len(tables) == 1 or len(tables) != len(offsets):
        rows = ops.cast(ops.embedding_lookup(weights, candidates, partition_strategy), inputs.dtype)
        offset = ops.cast(ops.embedding_lookup(biases, candidates, partition_strategy), inputs.dtype)
        return ops.matmul(inputs, ops.transpose(rows)) + offset
    owner, local = find_shards(candidates, [table.shape[0] for table in tables], strategy, name)
    columns = list[Tensor]()
    parts = ops.dynamic_partition(local, owner, len(tables))
    for table, offset, places in zip(tables, offsets, parts, strict=True):
        with colocate_with(table) if isinstance(table, Variable) else nullcontext():
            rows = ops.cast(ops.gather(table, places), inputs.dtype)
            found = ops.cast(ops.gather(offset, places), inputs.dtype)
            columns.append(ops.matmul(rows, ops.transpose(inputs)) + ops.expand_dims(found, 1))
    order = ops.dynamic_partition(ops.arange(ops.size(candidates)), owner, len(tables))
    return ops.transpose(ops.dynamic_stitch(order, columns))


def _checked(name: str, labels: TensorLike, inputs: TensorLike, num_true: int) -> tuple[Tensor, Tensor]:
    """Return labels as int64 ``(batch, num_true)``, and the inputs."""
    labels, inputs = ops.convert_to_tensor(labels), ops.convert_to_tensor(inputs)
    if labels.dtype.kind not in "iu":
        raise TypeError(f"{name}: labels must be integers, got {labels!r}. Cast them with ops.cast(labels, 'int64').")
    if labels.shape is not None and (len(labels.shape) != 2 or labels.shape[1] not in (None, num_true)):
        raise ValueError(
            f"{name}: labels must have shape (batch, num_true={num_true}), got {labels.shape}. Use "
            "ops.reshape(labels, (-1, num_true))."
        )
    if inputs.shape is not None and len(inputs.shape) != 2:
        raise ValueError(
            f"{name}: inputs must have shape (batch, dim), got {inputs.shape}. Bring time steps into the batch: "
            "ops.reshape(inputs, (-1, dim))."
        )
    return ops.stop_gradient(ops.cast(labels, "int64")), inputs


__all__ = ["nce_loss", "sampled_softmax_loss"]
