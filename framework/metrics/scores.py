"""Scores over whole epochs: F-beta, R squared, and correlations."""

from __future__ import annotations

from typing import Any

from ...engine import ops
from ...engine.common.dtypes import DTypeLike
from ...engine.graph import Tensor, Variable
from ...engine.graph.spec import shape_text
from ...engine.objects.arguments import check_axis, check_numbers
from ...engine.ops.base import TensorLike
from ..losses.base import aligned
from . import functions as _functions
from .base import Metric
from .reduction import MeanMetricWrapper

_EPSILON = 1e-7


class _ByColumn(Metric):
    """Base: sums for each column of targets and predictions [batch, columns], made at the first batch."""

    names: tuple[str, ...] = ()

    def __init__(self, name: str | None, dtype: DTypeLike) -> None:
        super().__init__(name=name, dtype=dtype)
        self.sums: dict[str, Variable] = {}

    def _checked(self, y_true: TensorLike, y_pred: TensorLike) -> tuple[Tensor, Tensor]:
        kind = type(self).__name__
        target, prediction = aligned(kind, y_true, ops.cast(y_pred, self.dtype))
        shape = prediction.shape
        if shape is None or len(shape) != 2 or shape[1] is None:
            raise ValueError(
                f"{kind} takes targets and predictions of shape [batch, columns], with a known number of columns; got "
                f"{shape_text(target.shape)} and {shape_text(shape)}."
            )
        if not self.sums:
            self.sums = {name: self.add_variable(self._sum_shape(shape[1]), name=name) for name in self.names}
        return target, prediction

    def _sum_shape(self, columns: int) -> tuple[int, ...]:
        return (columns,)

    def _weights(self, sample_weight: TensorLike | None) -> Tensor | None:
        """Return weights for each example, [batch, 1], or for each value; None if there are none."""
        if sample_weight is None:
            return None
        weight = ops.cast(sample_weight, self.dtype)
        return ops.expand_dims(weight, 1) if weight.ndim == 1 else weight


class FBetaScore(_ByColumn):
    """``(1 + beta**2) * precision * recall / (beta**2 * precision + recall)``, of classes [batch, classes].

    Args:
        average: None gives a score for each class; "micro" one score out of all counts, "macro" the mean over the
            classes, "weighted" the mean weighted by how often each class is true.
        beta: how much more recall counts than precision; a positive float.
        threshold: predictions above it are positive; None: the largest of each row is.
        name: of the metric.
        dtype: of its variables and result.

    Raises:
        ValueError: an argument is not one of these.

    >>> import anabranch as ab
    >>> metric = ab.metrics.FBetaScore(beta=2.0, threshold=0.5)
    >>> metric([[1, 1, 1], [1, 0, 0], [1, 1, 0]], [[0.2, 0.6, 0.7], [0.2, 0.6, 0.6], [0.6, 0.8, 0.0]]).round(4)
    Tensor([0.3846, 0.9091, 0.8333], dtype=float32)
    """

    _direction = "up"

    names = ("true_positives", "false_positives", "false_negatives", "intermediate_weights")

    def __init__(
        self,
        average: str | None = None,
        beta: float = 1.0,
        threshold: float | None = None,
        name: str | None = "fbeta_score",
        dtype: DTypeLike = None,
    ) -> None:
        super().__init__(name, dtype)
        if average not in (None, "micro", "macro", "weighted"):
            raise ValueError(f"average must be None, 'micro', 'macro' or 'weighted'; got {average!r}.")
        if not isinstance(beta, float) or beta <= 0:
            raise ValueError(f"beta must be a positive float; got {beta!r}.")
        if threshold is not None and not (isinstance(threshold, float) and 0 < threshold <= 1):
            raise ValueError(f"threshold must be None or a float with 0 < threshold <= 1; got {threshold!r}.")
        self.average = average
        self.beta = beta
        self.threshold = threshold

    def _sum_shape(self, columns: int) -> tuple[int, ...]:
        return () if self.average == "micro" else (columns,)

    def update_state(self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None) -> None:
        """Add a batch: targets 0 and 1 and predictions [batch, classes], weights [batch]."""
        target, prediction = self._checked(y_true, y_pred)
        positive = ops.cast(self._is_positive(prediction), self.dtype)
        weight, axis = self._weights(sample_weight), None if self.average == "micro" else 0
        amounts = (positive * target, positive * (1.0 - target), (1.0 - positive) * target, target)
        for name, amount in zip(self.names, amounts, strict=True):
            self.sums[name].assign_add(ops.sum(amount if weight is None else amount * weight, axis=axis))

    def _is_positive(self, prediction: Tensor) -> Tensor:
        if self.threshold is not None:
            return prediction > self.threshold
        largest = ops.max(prediction, axis=-1, keepdims=True)
        return ops.logical_and(prediction >= largest, ops.abs(prediction) > 1e-9)  # of zeros none is the largest

    def result(self) -> Tensor:
        if not self.sums:
            return ops.cast(0.0, self.dtype)
        hits, false, missed, support = (self.sums[name].value for name in self.names)
        precision, recall = hits / (hits + false + _EPSILON), hits / (hits + missed + _EPSILON)
        square = self.beta**2
        scores = precision * recall / (square * precision + recall + _EPSILON) * (1.0 + square)
        if self.average is None:
            return scores
        if self.average != "weighted":
            return ops.mean(scores)
        return ops.sum(scores * (support / (ops.sum(support) + _EPSILON)))

    def get_config(self) -> dict[str, Any]:
        own = {"average": self.average, "beta": self.beta, "threshold": self.threshold}
        return {**super().get_config(), **own}


class F1Score(FBetaScore):
    """The harmonic mean of precision and recall; for the arguments see `FBetaScore`.

    >>> import anabranch as ab
    >>> metric = ab.metrics.F1Score(threshold=0.5, average="micro")
    >>> round(float(metric([[1, 0], [0, 1]], [[0.9, 0.6], [0.2, 0.8]])), 4)
    0.8
    """

    def __init__(
        self,
        average: str | None = None,
        threshold: float | None = None,
        name: str | None = "f1_score",
        dtype: DTypeLike = None,
    ) -> None:
        super().__init__(average, 1.0, threshold, name, dtype)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["beta"]
        return config


class R2Score(_ByColumn):
    """The coefficient of determination, ``1 - sum((y_true - y_pred)**2) / sum((y_true - mean(y_true))**2)``.

    Args:
        class_aggregation: how the scores of columns become one: "uniform_average" (the mean),
            "variance_weighted_average", or None, which gives them all.
        num_regressors: the number of independent variables, for the adjusted score; 0 for the plain one.
        name: of the metric.
        dtype: of its variables and result.

    Raises:
        ValueError: an argument is not one of these.

    >>> import anabranch as ab
    >>> round(float(ab.metrics.R2Score()([[1.0], [4.0], [3.0]], [[2.0], [4.0], [4.0]])), 4)
    0.5714
    """

    _direction = "up"

    names = ("squared_sum", "sum", "residual", "count")

    def __init__(
        self,
        class_aggregation: str | None = "uniform_average",
        num_regressors: int = 0,
        name: str | None = "r2_score",
        dtype: DTypeLike = None,
    ) -> None:
        super().__init__(name, dtype)
        if class_aggregation not in (None, "uniform_average", "variance_weighted_average"):
            raise ValueError(
                "class_aggregation must be None, 'uniform_average' or 'variance_weighted_average'; got "
                f"{class_aggregation!r}."
            )
        check_numbers("R2Score", num_regressors=num_regressors)
        if num_regressors < 0:
            raise ValueError(f"num_regressors must be 0 or more; got {num_regressors}.")
        self.class_aggregation = class_aggregation
        self.num_regressors = num_regressors
        self.num_samples = self.add_variable((), name="num_samples")

    def update_state(self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None) -> None:
        """Add a batch: targets and predictions [batch, columns], weights [batch] or [batch, columns]."""
        target, prediction = self._checked(y_true, y_pred)
        given = self._weights(sample_weight)
        weight = ops.ones_like(target) if given is None else ops.broadcast_to(given, ops.shape(target))
        amounts = (weight * target * target, weight * target, weight * ops.square(target - prediction), weight)
        for name, amount in zip(self.names, amounts, strict=True):
            self.sums[name].assign_add(ops.sum(amount, axis=0))
        counted = ops.any(ops.not_equal(weight, 0.0), axis=-1)  # samples, however many columns each has
        self.num_samples.assign_add(ops.sum(ops.cast(counted, self.dtype)))

    def result(self) -> Tensor:
        """Return the score. The adjusted one needs more samples than regressors; until then it is the plain one."""
        if not self.sums:
            return ops.cast(0.0, self.dtype)
        squares, total, residual, count = (self.sums[name].value for name in self.names)
        spread = squares - total * (total / count)
        scores = 1.0 - residual / spread
        scores = ops.where(ops.isinf(scores), 0.0, scores)  # a target that does not vary
        if self.class_aggregation == "uniform_average":
            scores = ops.mean(scores)
        elif self.class_aggregation == "variance_weighted_average":
            scores = ops.sum(spread * scores) / ops.sum(spread)
        if not self.num_regressors:
            return scores
        samples = self.num_samples.value
        left = samples - float(self.num_regressors) - 1.0
        return ops.where(left > 0, 1.0 - (1.0 - scores) * (samples - 1.0) / left, scores)

    def get_config(self) -> dict[str, Any]:
        own = {"class_aggregation": self.class_aggregation, "num_regressors": self.num_regressors}
        return {**super().get_config(), **own}


class PearsonCorrelation(MeanMetricWrapper):
    """The mean correlation of targets and predictions, vectors along `axis` (or several): from -1 to 1.

    >>> import anabranch as ab
    >>> metric = ab.metrics.PearsonCorrelation()
    >>> round(float(metric([[0, 1, 0.5], [1, 1, 0.2]], [[0.1, 0.9, 0.5], [1, 0.9, 0.2]])), 4)
    0.9967
    """

    _direction = "up"

    def __init__(self, name: str | None = "pearson_correlation", dtype: DTypeLike = None, axis: int = -1) -> None:
        check_axis("PearsonCorrelation", axis)
        super().__init__(_functions.pearson_correlation, name, dtype, axis=axis)


class ConcordanceCorrelation(MeanMetricWrapper):
    """The mean concordance of targets and predictions, vectors along `axis`: a correlation that wants equal means too.

    >>> import anabranch as ab
    >>> metric = ab.metrics.ConcordanceCorrelation()
    >>> round(float(metric([[0, 1, 0.5], [1, 1, 0.2]], [[0.1, 0.9, 0.5], [1, 0.9, 0.2]])), 4)
    0.9816
    """

    _direction = "up"

    def __init__(self, name: str | None = "concordance_correlation", dtype: DTypeLike = None, axis: int = -1) -> None:
        check_axis("ConcordanceCorrelation", axis)
        super().__init__(_functions.concordance_correlation, name, dtype, axis=axis)


__all__ = ["ConcordanceCorrelation", "F1Score", "FBetaScore", "PearsonCorrelation", "R2Score"]
