"""Losses as functions of targets and predictions: one value per example, the mean (or sum) over the last axis.

They take tensors and return tensors, or take arrays and return arrays. Targets and predictions whose ranks differ by
one are matched ([batch] with [batch, 1]); other differences in shape are errors.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np

from ...engine import ops
from ...engine.graph import Symbol, Tensor
from ...engine.graph.spec import shape_text, shapes_compatible
from ...engine.ops.base import TensorLike
from ..calling import on_tensors
from .base import aligned, as_predictions, mark_of_class_numbers

EPSILON = 1e-7

# --- regression -----------------------------------------------------------------------------------------------------


@on_tensors
def mean_squared_error(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute ``mean(square(y_true - y_pred), axis=-1)``.

    >>> import anabranch as ab
    >>> ab.losses.mean_squared_error([[0.0, 1.0]], [[1.0, 3.0]])
    Tensor([2.5], dtype=float32)
    """
    target, prediction = aligned("mean_squared_error", y_true, y_pred)
    return ops.mean(ops.square(prediction - target), axis=-1)


@on_tensors
def mean_absolute_error(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute ``mean(abs(y_true - y_pred), axis=-1)``."""
    target, prediction = aligned("mean_absolute_error", y_true, y_pred)
    return ops.mean(ops.abs(prediction - target), axis=-1)


@on_tensors
def mean_absolute_percentage_error(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Return ``100 * mean(abs((y_true - y_pred) / y_true), axis=-1)``; targets count as at least 1e-7 in size."""
    target, prediction = aligned("mean_absolute_percentage_error", y_true, y_pred)
    return 100.0 * ops.mean(ops.abs((target - prediction) / ops.maximum(ops.abs(target), EPSILON)), axis=-1)


@on_tensors
def mean_squared_logarithmic_error(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute ``mean(square(log(y_true + 1) - log(y_pred + 1)), axis=-1)``, where values below 1e-7 count as 1e-7."""
    target, prediction = aligned("mean_squared_logarithmic_error", y_true, y_pred)
    difference = ops.log(ops.maximum(prediction, EPSILON) + 1.0) - ops.log(ops.maximum(target, EPSILON) + 1.0)
    return ops.mean(ops.square(difference), axis=-1)


@on_tensors
def huber(y_true: TensorLike, y_pred: TensorLike, delta: float = 1.0) -> Tensor:
    """Return the mean of ``error**2 / 2`` for errors up to `delta`, and of ``delta * (abs(error) - delta / 2)`` beyond.

    Source: Huber, "Robust Estimation of a Location Parameter", 1964.
    """
    target, prediction = aligned("huber", y_true, y_pred)
    error = prediction - target
    size = ops.abs(error)
    return ops.mean(ops.where(size <= delta, 0.5 * ops.square(error), delta * size - 0.5 * delta * delta), axis=-1)


@on_tensors
def log_cosh(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute ``mean(log(cosh(y_pred - y_true)), axis=-1)``, without overflow."""
    target, prediction = aligned("log_cosh", y_true, y_pred)
    error = prediction - target
    return ops.mean(error + ops.softplus(error * -2.0) - math.log(2.0), axis=-1)


@on_tensors
def cosine_similarity(y_true: TensorLike, y_pred: TensorLike, axis: int = -1) -> Tensor:
    """Return minus the cosine of the angle between targets and predictions, vectors along `axis`: -1 if they agree."""
    target, prediction = aligned("cosine_similarity", y_true, y_pred)
    return -ops.sum(ops.normalize(target, axis) * ops.normalize(prediction, axis), axis=axis)


# --- margins --------------------------------------------------------------------------------------------------------


def _signed(target: Tensor) -> Tensor:
    """Return targets 0 and 1 as -1 and 1, if there are no others."""
    zero_or_one = ops.all(ops.logical_or(ops.equal(target, 0), ops.equal(target, 1)))
    return ops.where(zero_or_one, 2.0 * target - 1.0, target)


@on_tensors
def hinge(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute ``mean(maximum(1 - y_true * y_pred, 0), axis=-1)`` for targets -1 and 1 (or 0 and 1)."""
    target, prediction = aligned("hinge", y_true, y_pred)
    return ops.mean(ops.maximum(1.0 - _signed(target) * prediction, 0.0), axis=-1)


@on_tensors
def squared_hinge(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute ``mean(square(maximum(1 - y_true * y_pred, 0)), axis=-1)`` for targets -1 and 1 (or 0 and 1)."""
    target, prediction = aligned("squared_hinge", y_true, y_pred)
    return ops.mean(ops.square(ops.maximum(1.0 - _signed(target) * prediction, 0.0)), axis=-1)


@on_tensors
def categorical_hinge(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute ``maximum(1 + max((1 - y_true) * y_pred) - sum(y_true * y_pred), 0)`` for one-hot targets."""
    target, prediction = aligned("categorical_hinge", y_true, y_pred)
    right = ops.sum(target * prediction, axis=-1)
    wrong = ops.max((1.0 - target) * prediction, axis=-1)
    return ops.maximum(wrong - right + 1.0, 0.0)


# --- distributions --------------------------------------------------------------------------------------------------


@on_tensors
def kl_divergence(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute ``sum(y_true * log(y_true / y_pred), axis=-1)``, with both clipped to [1e-7, 1].

    Source: Kullback and Leibler, "On Information and Sufficiency", 1951.
    """
    target, prediction = aligned("kl_divergence", y_true, y_pred)
    target, prediction = ops.clip(target, EPSILON, 1.0), ops.clip(prediction, EPSILON, 1.0)
    return ops.sum(target * ops.log(target / prediction), axis=-1)


@on_tensors
def poisson(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute ``mean(y_pred - y_true * log(y_pred + 1e-7), axis=-1)``: for counts with expectation `y_pred`."""
    target, prediction = aligned("poisson", y_true, y_pred)
    return ops.mean(prediction - target * ops.log(prediction + EPSILON), axis=-1)


@on_tensors
def binary_crossentropy(
    y_true: TensorLike, y_pred: TensorLike, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1
) -> Tensor:
    """Return the mean of ``-y_true * log(p) - (1 - y_true) * log(1 - p)`` over `axis`.

    Args:
        y_true: labels 0 and 1, or probabilities.
        y_pred: probabilities p, which are clipped to [1e-7, 1 - 1e-7], or logits.
        from_logits: whether `y_pred` holds logits.
        label_smoothing: draws the labels towards 0.5: 0.1 makes them 0.05 and 0.95.
        axis: the axis of the mean.
    """
    target, prediction = aligned("binary_crossentropy", y_true, y_pred)
    if label_smoothing:
        target = target * (1.0 - label_smoothing) + 0.5 * label_smoothing
    logits = None if from_logits else _argument_of(prediction, "sigmoid")
    if logits is None:
        values = ops.binary_crossentropy(target, prediction, from_logits=from_logits)
    else:  # the same function of what the sigmoid was taken of, but it rounds less
        most = _most_probable(logits)
        clipped = ops.clip(logits, -math.log(1 / EPSILON - 1), math.log(most / (1 - most)))
        values = ops.softplus(clipped) - target * clipped
    return ops.mean(values, axis=axis)


@on_tensors
def binary_focal_crossentropy(
    y_true: TensorLike,
    y_pred: TensorLike,
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """Return binary cross-entropy times ``(1 - p_t) ** gamma``, which gives less weight to what is predicted well.

    Args:
        y_true, y_pred, from_logits, label_smoothing, axis: as for `binary_crossentropy`.
        apply_class_balancing: weigh class 1 by `alpha` and class 0 by ``1 - alpha``.
        alpha: the weight of class 1.
        gamma: the focusing exponent; 0 gives plain cross-entropy.

    Source: Lin et al., "Focal Loss for Dense Object Detection", 2017.
    """
    target, prediction = aligned("binary_focal_crossentropy", y_true, y_pred)
    if label_smoothing:
        target = target * (1.0 - label_smoothing) + 0.5 * label_smoothing
    probability = ops.sigmoid(prediction) if from_logits else prediction
    entropy = ops.binary_crossentropy(target, probability)
    right = target * probability + (1.0 - target) * (1.0 - probability)
    values = ops.power(1.0 - right, gamma) * entropy
    if apply_class_balancing:
        values = (target * alpha + (1.0 - target) * (1.0 - alpha)) * values
    return ops.mean(values, axis=axis)


@on_tensors
def categorical_crossentropy(
    y_true: TensorLike, y_pred: TensorLike, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1
) -> Tensor:
    """Compute ``-sum(y_true * log(p), axis)`` for one-hot targets.

    Args:
        y_true: one-hot rows, or probabilities.
        y_pred: probabilities p, which are normalised and clipped to [1e-7, 1 - 1e-7], or logits.
        from_logits: whether `y_pred` holds logits.
        label_smoothing: draws the targets towards equal shares: 0.1 gives 0.1 to be divided among all classes.
        axis: the axis of the classes.
    """
    prediction = as_predictions(y_pred)
    target = ops.convert_to_tensor(y_true, prediction.dtype)
    _check_one_hot("categorical_crossentropy", target, prediction, axis)
    target = _smoothed(target, label_smoothing, axis)
    logits = None if from_logits else _argument_of(prediction, "softmax", axis)
    if logits is None:
        return ops.categorical_crossentropy(target, prediction, from_logits=from_logits, axis=axis)
    # The same function of what the softmax was taken of: no further sum and division, and it rounds less.
    losses = _clipped(-ops.log_softmax(logits, axis=axis))
    return ops.sum(target * losses, axis=axis)


def _most_probable(like: Tensor) -> float:
    """Return ``1 - EPSILON`` as it is in the dtype of a tensor, in float32 at least."""
    return 1.0 - EPSILON if like.dtype == np.float64 else float(np.float32(1) - np.float32(EPSILON))


def _clipped(losses: Tensor) -> Tensor:
    """Clip ``-log(p)`` to what it is for probabilities of [EPSILON, 1 - EPSILON]."""
    return ops.clip(losses, -math.log(_most_probable(losses)), -math.log(EPSILON))


def _smoothed(target: Tensor, label_smoothing: float, axis: int) -> Tensor:
    """Draw targets towards equal shares of the classes along an axis."""
    if not label_smoothing:
        return target
    classes = ops.cast(ops.shape(target)[axis], target.dtype)
    return target * (1.0 - label_smoothing) + label_smoothing / classes


def _check_one_hot(name: str, target: Tensor, prediction: Tensor, axis: int) -> None:
    if prediction.shape and prediction.shape[axis:][:1] == (1,):
        warnings.warn(
            f"{name} of predictions of shape {shape_text(prediction.shape)}: with one class the loss is always 0. For "
            "two classes and one unit use binary_crossentropy.",
            SyntaxWarning,
            stacklevel=5,
        )
    if shapes_compatible(target.shape, prediction.shape):
        return
    raise ValueError(
        f"{name}: targets (y_true) of shape {shape_text(target.shape)} do not go with predictions "
        f"(y_pred) of shape {shape_text(prediction.shape)}: it takes one-hot targets of the same shape. For class "
        "numbers use sparse_categorical_crossentropy, or make them one-hot with ops.one_hot."
    )


@on_tensors
def categorical_focal_crossentropy(
    y_true: TensorLike,
    y_pred: TensorLike,
    alpha: TensorLike = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """Return categorical cross-entropy of which each term is multiplied by ``alpha * (1 - p) ** gamma``.

    Args:
        y_true, y_pred, from_logits, label_smoothing, axis: as for `categorical_crossentropy`.
        alpha: a weight for all classes, or one for each.
        gamma: the focusing exponent; 0 gives plain cross-entropy (times `alpha`).

    Source: Lin et al., "Focal Loss for Dense Object Detection", 2017.
    """
    prediction = as_predictions(y_pred)
    target = ops.convert_to_tensor(y_true, prediction.dtype)
    _check_one_hot("categorical_focal_crossentropy", target, prediction, axis)
    target = _smoothed(target, label_smoothing, axis)
    shares = ops.softmax(prediction, axis=axis) if from_logits else prediction
    shares = ops.clip(shares / ops.sum(shares, axis=axis, keepdims=True), EPSILON, 1.0 - EPSILON)
    factor = ops.power(1.0 - shares, gamma) * ops.convert_to_tensor(alpha, prediction.dtype)
    return -ops.sum(factor * target * ops.log(shares), axis=axis)


@on_tensors
def categorical_generalized_cross_entropy(y_true: TensorLike, y_pred: TensorLike, q: float) -> Tensor:
    """Compute ``(1 - p ** q) / q`` for the probability p of the right class: less disturbed by wrong labels.

    Args:
        y_true: class numbers, [batch] or [batch, 1].
        y_pred: probabilities [batch, classes].
        q: in (0, 1); near 0 it is like cross-entropy, near 1 like the mean absolute error.

    Source: Zhang and Sabuncu, "Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels",
    2018.
    """
    prediction = as_predictions(y_pred)
    label = _class_numbers(ops.convert_to_tensor(y_true), prediction, -1, "categorical_generalized_cross_entropy")
    right = ops.one_hot(label, ops.shape(prediction)[-1], dtype=prediction.dtype)
    return (1.0 - ops.power(ops.sum(prediction * right, axis=-1), q)) / q


mark_of_class_numbers(categorical_generalized_cross_entropy)


@on_tensors
def sparse_categorical_crossentropy(
    y_true: TensorLike, y_pred: TensorLike, from_logits: bool = False, ignore_class: int | None = None, axis: int = -1
) -> Tensor:
    """Compute ``-log(p[y_true])`` for class numbers `y_true`.

    Args:
        y_true: class numbers, of the shape of `y_pred` without `axis`, or with a size of 1 there.
        y_pred: probabilities p, which are normalised and clipped to [1e-7, 1 - 1e-7], or logits.
        from_logits: whether `y_pred` holds logits.
        ignore_class: the number of a class (padding, say) whose examples do not count.
        axis: the axis of the classes.

    Raises:
        ValueError: the shapes do not fit; or (at run time) a class number is out of range.

    >>> import anabranch as ab
    >>> ab.losses.sparse_categorical_crossentropy([1, 0], [[0.5, 0.5], [0.25, 0.75]])
    Tensor([0.6931472, 1.3862944], dtype=float32)
    """
    prediction = as_predictions(y_pred)
    label = _class_numbers(ops.convert_to_tensor(y_true), prediction, axis)
    if ignore_class is None:
        return _sparse_losses(label, prediction, from_logits, axis)
    counts = ops.not_equal(label, ops.cast(ignore_class, label.dtype))
    losses = _sparse_losses(ops.where(counts, label, 0), prediction, from_logits, axis)
    losses = ops.where(counts, losses, 0.0)
    losses.annotations["mask"] = counts
    return losses


mark_of_class_numbers(sparse_categorical_crossentropy)


def _sparse_losses(label: Tensor, prediction: Tensor, from_logits: bool, axis: int) -> Tensor:
    logits = None if from_logits else _argument_of(prediction, "softmax", axis)
    if logits is None:
        return ops.sparse_categorical_crossentropy(label, prediction, from_logits=from_logits, axis=axis)
    losses = ops.sparse_categorical_crossentropy(label, logits, from_logits=True, axis=axis)
    return _clipped(losses)


def _class_numbers(
    label: Tensor, prediction: Tensor, axis: int, name: str = "sparse_categorical_crossentropy"
) -> Tensor:
    if label.shape is not None and prediction.shape is not None:
        if len(label.shape) == len(prediction.shape) and label.shape[axis] == 1:
            label = ops.squeeze(label, axis)
        wanted = list(prediction.shape)
        del wanted[axis]
        if not shapes_compatible(label.shape, tuple(wanted)):
            raise ValueError(
                f"{name}: class numbers (y_true) of shape {shape_text(label.shape)} do not go "
                f"with predictions (y_pred) of shape {shape_text(prediction.shape)}; expected shape "
                f"{shape_text(tuple(wanted))}."
                + (" For one-hot targets use categorical_crossentropy." if label.ndim == prediction.ndim else "")
            )
    return label if label.dtype.kind in "iu" else ops.cast(label, "int32")


def _argument_of(prediction: Tensor, activation: str, axis: int = -1) -> Tensor | None:
    """Return the argument of the softmax (over `axis`) or sigmoid, if `prediction` is the output of just that op."""
    if not isinstance(prediction, Symbol):
        return None
    node = prediction.operation
    if node.type != activation:
        return None
    if activation == "softmax" and prediction.shape is not None:
        axes = {position % len(prediction.shape) for position in node.op.axes}  # pyrefly: ignore[missing-attribute]
        if axes != {axis % len(prediction.shape)}:
            return None
    elif activation == "softmax":
        return None
    return node.inputs[0]


ALIASES: dict[str, Callable[..., Tensor]] = {
    **dict.fromkeys(("mse", "MSE"), mean_squared_error),
    **dict.fromkeys(("mae", "MAE"), mean_absolute_error),
    **dict.fromkeys(("mape", "MAPE"), mean_absolute_percentage_error),
    **dict.fromkeys(("msle", "MSLE"), mean_squared_logarithmic_error),
    **dict.fromkeys(("bce", "BCE"), binary_crossentropy),
    **dict.fromkeys(("kld", "KLD"), kl_divergence),
    "logcosh": log_cosh,
}

__all__ = [
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "categorical_generalized_cross_entropy",
    "categorical_hinge",
    "cosine_similarity",
    "hinge",
    "huber",
    "kl_divergence",
    "log_cosh",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_error",
    "mean_squared_logarithmic_error",
    "poisson",
    "sparse_categorical_crossentropy",
    "squared_hinge",
]
