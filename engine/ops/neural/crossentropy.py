"""Cross-entropies between targets and predictions: probabilities, or logits (unnormalised log-probabilities).

Probabilities are normalised and clipped to [1e-7, 1 - 1e-7], as in Keras; logits need neither and lose no precision.
"""

from __future__ import annotations

from typing import Any

from ...common import dtypes
from ...graph.spec import shape_text, shapes_compatible
from ..arrays.axes import moveaxis
from ..arrays.shaping import squeeze
from ..base import Tensor, TensorLike, apply, apply_multi, as_floating, cast, convert_to_tensor, normalize_axis
from ..math.comparison import clip
from ..math.mathematics import log
from ..math.reduced import widened
from ..math.reduction import sum
from ..math.sigmoids import softplus
from .softmax import LogSoftmax, SelectClass, SparseCrossEntropy

EPSILON = 1e-7


def _same_shape(name: str, target: Tensor, output: Tensor) -> None:
    if not shapes_compatible(target.shape, output.shape):
        raise ValueError(
            f"{name}: target and output must have the same shape; got target of shape {shape_text(target.shape)} and "
            f"output of shape {shape_text(output.shape)}."
        )


def _clipped(probability: Tensor) -> Tensor:
    return clip(probability, EPSILON, 1.0 - EPSILON)


def _pair(target: TensorLike, output: TensorLike) -> tuple[Tensor, Tensor]:
    scores = as_floating(output)
    return convert_to_tensor(target, scores.dtype), scores


def binary_crossentropy(target: TensorLike, output: TensorLike, from_logits: bool = False) -> Tensor:
    """Compute ``-target * log(p) - (1 - target) * log(1 - p)``, elementwise.

    Args:
        target: probabilities or labels 0 and 1.
        output: the predicted probabilities p, or their logits, of the shape of `target`.
        from_logits: whether `output` holds logits.

    Raises:
        ValueError: the shapes differ.

    >>> import anabranch as ab
    >>> ab.ops.binary_crossentropy([1.0, 0.0], [1000.0, -1000.0], from_logits=True)
    Tensor([0., 0.], dtype=float32)
    """
    label, score = _pair(target, output)
    _same_shape("binary_crossentropy", label, score)
    if from_logits:
        return label * softplus(-score) + (1 - label) * softplus(score)
    label, probability = widened(label), _clipped(widened(score))  # in half precision 1 - EPSILON is 1
    return cast(-(label * log(probability) + (1 - label) * log(1 - probability)), score.dtype)


def categorical_crossentropy(
    target: TensorLike, output: TensorLike, from_logits: bool = False, axis: int = -1
) -> Tensor:
    """Compute ``-sum(target * log(p))`` over the classes in `axis`.

    Args:
        target: probabilities (one-hot rows, usually).
        output: the predicted probabilities p, or logits, of the shape of `target`.
        from_logits: whether `output` holds logits.

    Raises:
        ValueError: the shapes differ, or have no axes.
    """
    label, score = _pair(target, output)
    _same_shape("categorical_crossentropy", label, score)
    if score.shape == ():
        raise ValueError("categorical_crossentropy: expected at least one axis (the classes); got a scalar.")
    if from_logits:
        axes = (axis if score.ndim is None else normalize_axis(axis, score.ndim),)
        return -sum(label * apply(LogSoftmax(axes), score), axis)
    return -sum(label * log(_clipped(score / sum(score, axis, keepdims=True))), axis)


def sparse_categorical_crossentropy(
    target: TensorLike, output: TensorLike, from_logits: bool = False, axis: int = -1
) -> Tensor:
    """Compute ``-log(p[target])`` for class numbers `target`.

    Args:
        target: class numbers, of the shape of `output` without `axis`, or with a last axis of size 1 in its place.
        output: the predicted probabilities, or logits.
        from_logits: whether `output` holds logits.

    Raises:
        ValueError: the shapes do not fit; or (at run time) a class number is out of range.

    >>> import anabranch as ab
    >>> ab.ops.sparse_categorical_crossentropy([1], [[0.5, 0.5]])
    Tensor([0.6931472], dtype=float32)
    """
    score = as_floating(output)
    label = _class_numbers(target, score)
    if score.shape == ():
        raise ValueError("sparse_categorical_crossentropy: expected at least one axis (the classes); got a scalar.")
    if axis != -1 and (score.ndim is None or normalize_axis(axis, score.ndim) != score.ndim - 1):
        score = moveaxis(score, axis, -1)
    if from_logits:
        return apply_multi(SparseCrossEntropy(), score, label)[0]
    chosen = apply(SelectClass(), score, label)
    return -log(_clipped(chosen / sum(score, -1)))


def _class_numbers(target: TensorLike, score: Tensor) -> Tensor:
    label: Any = convert_to_tensor(target)
    if not dtypes.is_integer(label.dtype):
        label = cast(label, dtypes.int32)
    if label.ndim is not None and label.ndim == score.ndim and label.shape[-1] == 1:
        return squeeze(label, -1)
    return label


__all__ = ["binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy"]
