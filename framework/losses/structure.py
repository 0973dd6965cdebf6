"""Losses that compare regions, sequences and embeddings, rather than values one by one: functions of y_true, y_pred."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.graph.spec import shape_text
from ...engine.session import Function
from ..calling import as_argument, is_symbolic, on_tensors
from .base import aligned, as_predictions, mark_of_class_numbers

if TYPE_CHECKING:
    from typing import TypedDict

    class _Options(TypedDict):
        """The arguments of `_circle` besides arrays."""

        remove_diagonal: bool
        gamma: float
        margin: float

    from ...engine.ops.base import TensorLike

_EPSILON = 1e-7
Axis = int | Sequence[int] | None


def _axes(axis: Axis) -> int | tuple[int, ...] | None:
    return axis if axis is None or isinstance(axis, int) else tuple(axis)


@on_tensors
def dice(y_true: TensorLike, y_pred: TensorLike, axis: Axis = None) -> Tensor:
    """Compute ``1 - 2 * sum(y_true * y_pred) / (sum(y_true) + sum(y_pred))``: how little two regions overlap.

    Args:
        y_true: which positions belong to the region, 0 or 1, of any shape.
        y_pred: the predicted probabilities, of the same shape.
        axis: the axes of the sums; all by default, which gives a single value for the batch.

    Source: Milletari et al., "V-Net: Fully Convolutional Neural Networks for Volumetric Medical Image Segmentation",
    2016.

    >>> import anabranch as ab
    >>> ab.losses.dice([[1.0, 1.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]], axis=1).round(4)
    Tensor([0.3333, 0.    ], dtype=float32)
    """
    target, prediction = aligned("dice", y_true, y_pred)
    axes = _axes(axis)
    common = ops.sum(target * prediction, axis=axes)
    total = ops.sum(target, axis=axes) + ops.sum(prediction, axis=axes)
    return 1.0 - 2.0 * common / (total + _EPSILON)


@on_tensors
def tversky(y_true: TensorLike, y_pred: TensorLike, alpha: float = 0.5, beta: float = 0.5, axis: Axis = None) -> Tensor:
    """Compute `dice` with separate weights for what was found too much and for what was missed.

    Args:
        y_true, y_pred, axis: as for `dice`.
        alpha: the weight of positions that were predicted and do not belong to the region.
        beta: the weight of positions of the region that were not predicted.

    Source: Salehi et al., "Tversky loss function for image segmentation using 3D fully convolutional deep networks",
    2017.
    """
    target, prediction = aligned("tversky", y_true, y_pred)
    axes = _axes(axis)
    common = ops.sum(target * prediction, axis=axes)
    missed = ops.sum(target * (1.0 - prediction), axis=axes)
    added = ops.sum(prediction * (1.0 - target), axis=axes)
    return 1.0 - common / (common + added * alpha + missed * beta + _EPSILON)


@on_tensors
def ctc(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Return the negative log probability of label sequences, over all ways to spread them over the steps.

    Args:
        y_true: class numbers [batch, labels], filled up with 0 at the end; 0 is the blank.
        y_pred: logits [batch, steps, classes].

    Raises:
        ValueError: the ranks are different.

    Source: Graves et al., "Connectionist temporal classification", 2006.
    """
    prediction, label = as_predictions(y_pred), ops.convert_to_tensor(y_true)
    for name, tensor, rank, form in (
        ("targets (y_true)", label, 2, "[batch, labels]"),
        ("predictions (y_pred)", prediction, 3, "[batch, steps, classes]"),
    ):
        if tensor.ndim not in (None, rank):
            raise ValueError(f"ctc: {name} must have shape {form}; got {shape_text(tensor.shape)}.")
    label = label if label.dtype.kind in "iu" else ops.cast(label, "int32")
    lengths = ops.sum(ops.cast(ops.not_equal(label, 0), "int32"), axis=-1)
    batch, steps = ops.shape(prediction)[0], ops.shape(prediction)[1]
    return ops.ctc_loss(label, prediction, lengths, ops.ones((batch,), "int32") * steps, mask_index=0)


def circle(
    y_true: TensorLike,
    y_pred: TensorLike,
    ref_labels: TensorLike | None = None,
    ref_embeddings: TensorLike | None = None,
    remove_diagonal: bool = True,
    gamma: float = 80,
    margin: float = 0.4,
) -> Tensor:
    """Draw embeddings of one class together and push those of others away, most where it is most needed.

    Args:
        y_true: class numbers [batch].
        y_pred: embeddings [batch, features] of length 1.
        ref_labels, ref_embeddings: what to compare with, [references] and [references, features]; by default the batch.
        remove_diagonal: don't compare an embedding with the one at the same place of the references: itself.
        gamma: how steep the loss is.
        margin: how far apart, in cosine distance, classes are to be.

    Source: Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization", 2020.
    """
    options: _Options = {"remove_diagonal": remove_diagonal, "gamma": gamma, "margin": margin}
    given = (y_true, y_pred, ref_labels, ref_embeddings)
    if is_symbolic(*given):
        losses = _circle(*given, **options)
    else:
        losses = Function(functools.partial(_circle, **options))(*[as_argument(value) for value in given])
    losses.annotations["mask"] = losses > 0  # an embedding without another of its class has no loss
    return losses


def _circle(
    y_true: TensorLike,
    y_pred: TensorLike,
    ref_labels: TensorLike | None,
    ref_embeddings: TensorLike | None,
    remove_diagonal: bool,
    gamma: float,
    margin: float,
) -> Tensor:
    embeddings = as_predictions(y_pred)
    references = embeddings if ref_embeddings is None else as_predictions(ref_embeddings)
    same = ops.equal(_column(y_true), ops.transpose(_column(y_true if ref_labels is None else ref_labels)))
    other = ops.logical_not(same)
    if remove_diagonal:
        rows, columns = ops.arange(ops.shape(same)[0]), ops.arange(ops.shape(same)[1])
        same = ops.logical_and(same, ops.not_equal(ops.expand_dims(rows, 1), ops.expand_dims(columns, 0)))
    distances = ops.maximum(1.0 - ops.matmul(embeddings, ops.transpose(references)), 0.0)
    nearer = gamma * (margin + distances) * (distances - margin)
    farther = gamma * ops.maximum(1.0 + margin - distances, 0.0) * (1.0 - margin - distances)
    lowest = float("-inf")  # pairs that do not count
    of_same = ops.logsumexp(ops.where(same, nearer, lowest), axis=1)
    of_others = ops.logsumexp(ops.where(other, farther, lowest), axis=1)
    return ops.softplus(of_same + of_others)


def _column(labels: TensorLike) -> Tensor:
    return ops.reshape(ops.cast(labels, "int32"), (-1, 1))


for _function in (ctc, circle):
    mark_of_class_numbers(_function)

__all__ = ["circle", "ctc", "dice", "tversky"]
