"""Metrics out of counts of true and false positives and negatives at thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import DTypeLike
from ...engine.graph import Tensor, Variable
from ...engine.objects.arguments import check_numbers, check_optional_numbers
from ...engine.ops.base import TensorLike
from ..losses.base import aligned, same_rank
from ..structures import Array
from .base import Metric

Thresholds: TypeAlias = "float | Sequence[float] | Array | None"

NEVER = -1e10  # the score of predictions that are not among the top k, and the threshold which they do not pass


def update_counts(
    counts: Mapping[str, Variable],
    y_true: TensorLike,
    y_pred: TensorLike,
    thresholds: Sequence[float],
    sample_weight: TensorLike | None = None,
    top_k: int | None = None,
    class_id: int | None = None,
    multi_label: bool = False,
    label_weights: TensorLike | None = None,
) -> None:
    """Add a batch to the variables ``tp``, ``fp``, ``tn``, ``fn``, those of them that `counts` has.

    Args:
        counts: shape [thresholds], or [thresholds, labels] where `multi_label`.
        y_true: targets; not 0 means true.
        y_pred: predictions of the same shape, positive where they are above a threshold.
        thresholds: in ascending order.
        sample_weight: weights, [batch] or [batch, ...].
        top_k: only the `k` largest of the last axis can be positive.
        class_id: look at this position of the last axis only.
        multi_label: count each position of the last axis by itself.
        label_weights: weights of the positions of the last axis.
    """
    some = next(iter(counts.values()))
    dtype, width = some.dtype, int(some.numpy().shape[-1]) if multi_label else 1
    target, prediction = aligned("update_state", y_true, ops.cast(y_pred, dtype))
    target = ops.cast(ops.not_equal(target, 0), dtype)
    weight = _weights(target, sample_weight, label_weights)
    if top_k is not None:
        prediction = _only_top(prediction, top_k)
    if class_id is not None:
        target, prediction, weight = _of_class(target, prediction, weight, class_id)
    rows = [ops.transpose(ops.reshape(part, (-1, width))) for part in (target, prediction)]
    weights = None if weight is None else ops.transpose(ops.reshape(_spread(weight, prediction), (-1, width)))
    found = _count(rows[0], rows[1], weights, thresholds)
    for name, variable in counts.items():
        variable.assign_add(found[name] if multi_label else ops.squeeze(found[name], -1))


def _weights(target: Tensor, sample_weight: TensorLike | None, label_weights: TensorLike | None) -> Tensor | None:
    weight = None
    if sample_weight is not None:
        _, weight = same_rank(target, ops.cast(sample_weight, target.dtype), expand_rank_1=False)
        if weight.ndim is not None and target.ndim is not None and 0 < weight.ndim < target.ndim:
            weight = ops.expand_dims(weight, tuple(range(weight.ndim, target.ndim)))
    if label_weights is not None:
        labels = ops.cast(label_weights, target.dtype)
        weight = labels if weight is None else weight * labels
    return weight


def _spread(weight: Tensor, prediction: Tensor) -> Tensor:
    return weight if weight.shape == prediction.shape else ops.broadcast_to(weight, ops.shape(prediction))


def _only_top(prediction: Tensor, k: int) -> Tensor:
    """Return `prediction` with all but the `k` largest of each row at a score that passes no threshold."""
    _, places = ops.top_k(prediction, k)
    chosen = ops.sum(ops.one_hot(places, ops.shape(prediction)[-1], dtype=prediction.dtype), axis=-2)
    return ops.where(chosen > 0, prediction, NEVER)


def _of_class(
    target: Tensor, prediction: Tensor, weight: Tensor | None, class_id: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    if prediction.ndim == 1:
        raise ValueError(f"class_id={class_id} needs predictions of shape [batch, classes]; got shape [batch].")
    if weight is not None and weight.shape and weight.ndim == prediction.ndim and weight.shape[-1] != 1:
        weight = weight[..., class_id, None]
    return target[..., class_id, None], prediction[..., class_id, None], weight


def _count(target: Tensor, prediction: Tensor, weight: Tensor | None, thresholds: Sequence[float]) -> dict[str, Tensor]:
    """Return the four counts [thresholds, labels] from targets, predictions and weights [labels, values]."""
    whole = ops.ones_like(prediction) if weight is None else weight
    true = target * whole
    positives = _bucket_sums if is_even(thresholds) else _compared_sums
    tp, all_positive = positives(prediction, [true, whole], thresholds)
    all_true, total = ops.sum(true, axis=1), ops.sum(whole, axis=1)
    fp, fn = all_positive - tp, all_true - tp
    return {"tp": tp, "fp": fp, "fn": fn, "tn": total - all_true - fp}


def _compared_sums(prediction: Tensor, amounts: list[Tensor], thresholds: Sequence[float]) -> list[Tensor]:
    """Sum, for each threshold, the amounts whose prediction is above it."""
    limits = np.asarray(thresholds, prediction.dtype).reshape(-1, 1, 1)
    above = ops.cast(ops.greater(ops.expand_dims(prediction, 0), limits), prediction.dtype)
    return [ops.sum(above * ops.expand_dims(amount, 0), axis=2) for amount in amounts]


def _bucket_sums(prediction: Tensor, amounts: list[Tensor], thresholds: Sequence[float]) -> list[Tensor]:
    """Sum as `_compared_sums` does, for evenly spaced thresholds, in time that does not grow with their number.

    Amounts are added up in the buckets between thresholds, and then from the top down.
    """
    size = len(thresholds)
    bucket = ops.ceil(ops.clip(prediction, 0.0, 1.0) * float(size - 1))  # number 0 is at or below the first threshold
    if thresholds[0] < 0.0:
        bucket = ops.maximum(bucket, 1.0)
    bucket = ops.cast(bucket, "int32")
    sums: list[Tensor] = []
    for amount in amounts:
        in_buckets = ops.bincount(bucket, weights=amount, minlength=size + 1)[:, 1 : size + 1]
        from_above = ops.flip(ops.cumsum(ops.flip(in_buckets, 1), axis=1), 1)
        sums.append(ops.transpose(ops.reshape(from_above, (-1, size))))
    return sums


def is_even(thresholds: Sequence[float]) -> bool:
    """Test whether thresholds divide [0, 1] evenly, but for what rounding (or a margin of 1e-7 at the ends) leaves."""
    return len(thresholds) >= 3 and np.allclose(thresholds, np.linspace(0.0, 1.0, len(thresholds)), atol=1e-7)


def checked_thresholds(owner: str, thresholds: Thresholds, default: float) -> list[float]:
    """Return `thresholds`, one or several, as a list.

    Raises:
        ValueError: one is not in [0, 1].
    """
    if thresholds is None:
        return [default]
    found: list[Any] = list(thresholds) if isinstance(thresholds, (list, tuple, np.ndarray)) else [thresholds]
    for value in found:
        check_numbers(owner, thresholds=value)
    wrong = [value for value in found if not 0 <= value <= 1]
    if wrong:
        raise ValueError(f"thresholds must be in [0, 1]; got {wrong}.")
    return [float(value) for value in found]


class _Counting(Metric):
    """Base: counts at thresholds.

    Class attributes:
        names: of the counts that are kept: "tp", "fp", "tn", "fn".
    """

    names: tuple[str, ...] = ()
    true_positives: Variable
    false_positives: Variable
    true_negatives: Variable
    false_negatives: Variable

    def __init__(
        self,
        thresholds: Thresholds = None,
        top_k: int | None = None,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.init_thresholds = thresholds
        check_optional_numbers(type(self).__name__, top_k=top_k, class_id=class_id)
        self.top_k = top_k
        self.class_id = class_id
        self.thresholds = checked_thresholds(type(self).__name__, thresholds, 0.5 if top_k is None else NEVER)
        self.counts = new_counts(self, (len(self.thresholds),), self.names)

    def update_state(self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None) -> None:
        """Add a batch: targets (not 0 means true), predictions in [0, 1], weights [batch] or [batch, ...]."""
        update_counts(
            self.counts, y_true, y_pred, self.thresholds, sample_weight, top_k=self.top_k, class_id=self.class_id
        )

    def _one_or_all(self, values: Tensor) -> Tensor:
        return values[0] if len(self.thresholds) == 1 else values


LONG_NAMES = {"tp": "true_positives", "fp": "false_positives", "tn": "true_negatives", "fn": "false_negatives"}


def new_counts(metric: Metric, shape: tuple[int, ...], names: Iterable[str] = tuple(LONG_NAMES)) -> dict[str, Variable]:
    """Add variables to a metric for the counts `names`; they are also its attributes ``true_positives`` and so on."""
    counts = {short: metric.add_variable(shape, name=LONG_NAMES[short]) for short in names}
    for short, variable in counts.items():
        setattr(metric, LONG_NAMES[short], variable)
    return counts


class _Count(_Counting):
    """Base: one count as the result.

    Args:
        thresholds: one or several, in [0, 1]; 0.5 by default.
    """

    def __init__(self, thresholds: Thresholds = None, name: str | None = None, dtype: DTypeLike = None) -> None:
        super().__init__(thresholds=thresholds, name=name, dtype=dtype)
        self.accumulator = self.counts[self.names[0]]

    def result(self) -> Tensor:
        return self._one_or_all(self.counts[self.names[0]].value)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "thresholds": self.init_thresholds}


class TruePositives(_Count):
    """Counts the true examples that are predicted as true."""

    names = ("tp",)


class FalsePositives(_Count):
    """Counts the false examples that are predicted as true."""

    names = ("fp",)


class TrueNegatives(_Count):
    """Counts the false examples that are predicted as false."""

    names = ("tn",)


class FalseNegatives(_Count):
    """Counts the true examples that are predicted as false."""

    names = ("fn",)


class _Share(_Counting):
    """Base: true positives over something."""

    _direction = "up"

    def result(self) -> Tensor:
        hits, misses = (self.counts[name].value for name in self.names)
        return self._one_or_all(ops.divide_no_nan(hits, hits + misses))

    def get_config(self) -> dict[str, Any]:
        own = {"thresholds": self.init_thresholds, "top_k": self.top_k, "class_id": self.class_id}
        return {**super().get_config(), **own}


class Precision(_Share):
    """The share of what is predicted as true that is true.

    Args:
        thresholds: predictions above it count as true; 0.5 by default. Several give several results.
        top_k: only the `k` largest predictions of the last axis count as true.
        class_id: look at this class only.

    >>> import anabranch as ab
    >>> metric = ab.metrics.Precision()
    >>> round(float(metric([0, 1, 1, 1], [1.0, 0.0, 1.0, 0.7])), 4)
    0.6667
    """

    names = ("tp", "fp")


class Recall(_Share):
    """The share of what is true that is predicted as true.

    Args:
        thresholds: predictions above it count as true; 0.5 by default. Several give several results.
        top_k: only the `k` largest predictions of the last axis count as true.
        class_id: look at this class only.
    """

    names = ("tp", "fn")


__all__ = ["FalseNegatives", "FalsePositives", "Precision", "Recall", "TrueNegatives", "TruePositives"]
