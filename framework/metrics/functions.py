"""Accuracies as functions of targets and predictions: one value (1 where right, 0 where wrong) per example."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.graph.spec import shape_text, shapes_compatible
from ...engine.objects.floats import floatx
from ...engine.ops.base import TensorLike
from ..calling import on_tensors
from ..losses.base import aligned, as_predictions, same_rank

if TYPE_CHECKING:
    from collections.abc import Sequence


def _matches(found: TensorLike, wanted: TensorLike) -> Tensor:
    return ops.cast(ops.equal(found, wanted), floatx())


@on_tensors
def accuracy(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Return 1 where predictions equal targets, and 0 elsewhere.

    >>> import anabranch as ab
    >>> ab.metrics.accuracy([1, 2, 3], [1, 0, 3])
    Tensor([1., 0., 1.], dtype=float32)
    """
    prediction = ops.convert_to_tensor(y_pred)
    return _matches(*same_rank(ops.convert_to_tensor(y_true, prediction.dtype), prediction))


@on_tensors
def binary_accuracy(y_true: TensorLike, y_pred: TensorLike, threshold: float = 0.5) -> Tensor:
    """Return 1 where a prediction above `threshold` has target 1, or another one target 0; 0 elsewhere."""
    target, prediction = aligned("binary_accuracy", y_true, y_pred)
    return _matches(target, ops.cast(prediction > threshold, target.dtype))


@on_tensors
def categorical_accuracy(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Return 1 where the largest prediction is at the place of the largest target (one-hot), and 0 elsewhere."""
    target, prediction = aligned("categorical_accuracy", y_true, y_pred)
    return _matches(ops.argmax(target, axis=-1), ops.argmax(prediction, axis=-1))


@on_tensors
def sparse_categorical_accuracy(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Return 1 where the largest prediction is at the place that the class number names, and 0 elsewhere.

    >>> import anabranch as ab
    >>> ab.metrics.sparse_categorical_accuracy([1, 0], [[0.4, 0.6], [0.3, 0.7]])
    Tensor([1., 0.], dtype=float32)
    """
    prediction = ops.convert_to_tensor(y_pred)
    label = _class_numbers("sparse_categorical_accuracy", y_true, prediction)
    matches = _matches(label, ops.cast(ops.argmax(prediction, axis=-1), label.dtype))
    shape = matches.shape
    return ops.squeeze(matches, -1) if shape is not None and len(shape) > 1 and shape[-1] == 1 else matches


@on_tensors
def top_k_categorical_accuracy(y_true: TensorLike, y_pred: TensorLike, k: int = 5) -> Tensor:
    """Return 1 where the class of the largest target is among the `k` largest predictions, and 0 elsewhere."""
    target, prediction = aligned("top_k_categorical_accuracy", y_true, y_pred)
    return _in_top(ops.argmax(target, axis=-1), prediction, k)


@on_tensors
def sparse_top_k_categorical_accuracy(
    y_true: TensorLike, y_pred: TensorLike, k: int = 5, from_sorted_ids: bool = False
) -> Tensor:
    """Return 1 where the class number is among the `k` largest predictions, and 0 elsewhere.

    Args:
        y_true: class numbers.
        y_pred: scores of all classes, or class numbers in order of their scores, highest first.
        k: how many of the highest count.
        from_sorted_ids: whether `y_pred` holds class numbers.
    """
    prediction = ops.convert_to_tensor(y_pred)
    label = _class_numbers("sparse_top_k_categorical_accuracy", y_true, prediction)
    if not from_sorted_ids:
        return _in_top(label, as_predictions(prediction), k)
    same = ops.equal(ops.expand_dims(label, -1), ops.cast(prediction[..., :k], label.dtype))
    return ops.cast(ops.any(same, axis=-1), floatx())


def _in_top(label: Tensor, scores: Tensor, k: int) -> Tensor:
    """Return `in_top_k` over any number of leading axes."""
    return ops.cast(ops.in_top_k(label, scores, k), floatx())


def _class_numbers(name: str, y_true: TensorLike, prediction: Tensor) -> Tensor:
    label = ops.convert_to_tensor(y_true)
    label = label if label.dtype.kind in "iu" else ops.cast(label, "int32")
    if label.shape is None or prediction.shape is None:
        return label
    if len(label.shape) == len(prediction.shape) and label.shape[-1] == 1:
        label = ops.squeeze(label, -1)
    if not shapes_compatible(label.shape, prediction.shape[:-1]):
        raise ValueError(
            f"{name}: class numbers (y_true) of shape {shape_text(label.shape)} do not go with predictions (y_pred) of "
            f"shape {shape_text(prediction.shape)}; expected shape {shape_text(prediction.shape[:-1])}."
            + (" For one-hot targets use categorical_accuracy." if label.ndim == prediction.ndim else "")
        )
    return label


@on_tensors
def cosine_similarity(y_true: TensorLike, y_pred: TensorLike, axis: int = -1) -> Tensor:
    """Return the cosine of the angle between targets and predictions, vectors along `axis`: 1 where they agree."""
    target, prediction = aligned("cosine_similarity", y_true, y_pred)
    return ops.sum(ops.normalize(target, axis) * ops.normalize(prediction, axis), axis=axis)


@on_tensors
def pearson_correlation(y_true: TensorLike, y_pred: TensorLike, axis: int | Sequence[int] = -1) -> Tensor:
    """Return the correlation of targets and predictions, vectors along `axis` (or several): from -1 to 1.

    >>> import anabranch as ab
    >>> ab.metrics.pearson_correlation([[1.0, 2.0, 3.0]], [[2.0, 4.0, 6.0]]).round(4)
    Tensor([1.], dtype=float32)
    """
    target, prediction = aligned("pearson_correlation", y_true, y_pred)
    target, prediction = (x - ops.mean(x, axis=_axes(axis), keepdims=True) for x in (target, prediction))
    target, prediction = (x / ops.std(x, axis=_axes(axis), keepdims=True) for x in (target, prediction))
    return ops.mean(target * prediction, axis=_axes(axis))


@on_tensors
def concordance_correlation(y_true: TensorLike, y_pred: TensorLike, axis: int = -1) -> Tensor:
    """Return a correlation that is 1 only where targets and predictions are equal, not where they are proportional.

    For that see `pearson_correlation`.

    Source: Lin, "A Concordance Correlation Coefficient to Evaluate Reproducibility", 1989.

    >>> import anabranch as ab
    >>> ab.metrics.concordance_correlation([[1.0, 2.0, 3.0]], [[2.0, 4.0, 6.0]]).round(4)
    Tensor([0.3636], dtype=float32)
    """
    target, prediction = aligned("concordance_correlation", y_true, y_pred)
    of_target, of_prediction = (ops.mean(x, axis=_axes(axis), keepdims=True) for x in (target, prediction))
    variances = (ops.var(x, axis=_axes(axis), keepdims=True) for x in (target, prediction))
    common = (target - of_target) * (prediction - of_prediction)
    spread = sum(variances) + ops.square(of_target - of_prediction)
    return ops.mean(2.0 * common / (spread + 1e-7), axis=_axes(axis))


def _axes(axis: int | Sequence[int]) -> int | Sequence[int]:
    return tuple(axis) if isinstance(axis, list) else axis


__all__ = [
    "accuracy",
    "binary_accuracy",
    "categorical_accuracy",
    "concordance_correlation",
    "pearson_correlation",
    "sparse_categorical_accuracy",
    "sparse_top_k_categorical_accuracy",
    "top_k_categorical_accuracy",
]
