"""`AUC`: the area under the ROC or the precision-recall curve, by thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...engine import ops
from ...engine.common.claims import claim
from ...engine.common.dtypes import DTypeLike
from ...engine.graph import Tensor, Variable
from ...engine.objects.arguments import check_numbers, listed
from ...engine.ops.base import TensorLike
from .base import Metric
from .confusion import checked_thresholds, new_counts, update_counts

_MARGIN = 1e-7  # the outermost thresholds are beyond [0, 1], so that rounding can't bring a prediction past them


class AUC(Metric):
    """The area under a curve, approximated at thresholds.

    Args:
        num_thresholds: how many, at equal distances.
        curve: "ROC" (true positive rate over false positive rate), "PR" (precision over recall) or "PRGAIN" (precision
            gain over recall gain).
        summation_method: "interpolation" (trapezoids; for PR the interpolation of Davis and Goadrich), or the lower
            or upper of the two heights, "minoring" and "majoring".
        thresholds: thresholds in [0, 1] instead of `num_thresholds`.
        multi_label: the mean of the areas of the positions of the last axis, instead of one area for all.
        num_labels: the size of that axis; by default that of the first batch.
        label_weights: weights of the positions of the last axis.
        from_logits: whether predictions are logits.

    Sources: Davis and Goadrich, "The Relationship Between Precision-Recall and ROC Curves", 2006, section 4; Flach and
    Kull, "Precision-Recall-Gain Curves: PR Analysis Done Right", 2015.

    >>> import anabranch as ab
    >>> metric = ab.metrics.AUC(num_thresholds=3)
    >>> float(metric([0, 0, 1, 1], [0.0, 0.5, 0.3, 0.9]))
    0.75
    """

    _direction = "up"

    true_positives: Variable
    false_positives: Variable
    true_negatives: Variable
    false_negatives: Variable

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        summation_method: str = "interpolation",
        name: str | None = None,
        dtype: DTypeLike = None,
        thresholds: Sequence[float] | None = None,
        multi_label: bool = False,
        num_labels: int | None = None,
        label_weights: Iterable[float] | None = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.curve = _one_of("curve", str(curve).upper(), ("ROC", "PR", "PRGAIN"))
        methods = ("interpolation", "minoring", "majoring")
        self.summation_method = _one_of("summation_method", str(summation_method).lower(), methods)
        self._given = (
            None
            if thresholds is None
            else sorted(checked_thresholds("AUC", listed("AUC", "thresholds", thresholds, "a list of numbers"), 0.5))
        )
        inner = _even(num_thresholds) if self._given is None else self._given
        self.thresholds = [-_MARGIN, *inner, 1.0 + _MARGIN]
        self.num_thresholds = len(self.thresholds)
        if num_labels and not multi_label:
            raise ValueError(f"num_labels={num_labels} has a meaning only with multi_label=True.")
        self.multi_label = multi_label
        self.num_labels = num_labels
        self.label_weights = None
        if label_weights is not None:
            self.label_weights = [
                float(each) for each in listed("AUC", "label_weights", label_weights, "a list of numbers")
            ]
        self.from_logits = from_logits
        self.counts: dict[str, Variable] = {}
        if not multi_label or num_labels:
            self._make_counts(num_labels)

    def _make_counts(self, labels: int | None) -> None:
        shape = (self.num_thresholds,) if labels is None else (self.num_thresholds, labels)
        self.counts = new_counts(self, shape)

    def update_state(self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None) -> None:
        """Add a batch: targets (not 0 means true), predictions in [0, 1] or logits, weights."""
        prediction = ops.convert_to_tensor(y_pred)
        if not self.counts:
            self._make_counts(_labels_of(prediction))
        if self.from_logits:
            prediction = ops.sigmoid(prediction)
        weights = None if self.multi_label else self.label_weights
        update_counts(
            self.counts,
            y_true,
            prediction,
            self.thresholds,
            sample_weight,
            multi_label=self.multi_label,
            label_weights=weights,
        )

    def result(self) -> Tensor:
        if not self.counts:
            return ops.cast(0.0, self.dtype)
        tp, fp, tn, fn = (self.counts[name].value for name in ("tp", "fp", "tn", "fn"))
        if self.curve == "PR" and self.summation_method == "interpolation":
            return self._over_labels(_interpolated_precision(tp, fp, fn))
        recall = ops.divide_no_nan(tp, tp + fn)
        if self.curve == "ROC":
            x, y = ops.divide_no_nan(fp, fp + tn), recall
        elif self.curve == "PR":
            x, y = recall, ops.divide_no_nan(tp, tp + fp)
        else:
            x, y = _gains(tp, fp, tn, fn)
        return self._over_labels((x[:-1] - x[1:]) * self._heights(y))

    def _heights(self, y: Tensor) -> Tensor:
        if self.summation_method == "interpolation":
            return (y[:-1] + y[1:]) / 2.0
        extreme = ops.minimum if self.summation_method == "minoring" else ops.maximum
        return extreme(y[:-1], y[1:])

    def _over_labels(self, areas: Tensor) -> Tensor:
        if not self.multi_label:
            return ops.sum(areas)
        by_label = ops.sum(areas, axis=0)
        if self.label_weights is None:
            return ops.mean(by_label)
        return ops.sum(by_label * ops.cast(self.label_weights, self.dtype)) / sum(self.label_weights)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, object] = {
            "num_thresholds": self.num_thresholds,
            "curve": self.curve,
            "summation_method": self.summation_method,
            "multi_label": self.multi_label,
            "num_labels": self.num_labels,
            "label_weights": self.label_weights,
            "from_logits": self.from_logits,
        }
        if self._given is not None:
            config["thresholds"] = self._given
        return {**super().get_config(), **config}


def _gains(tp: Tensor, fp: Tensor, tn: Tensor, fn: Tensor) -> tuple[Tensor, Tensor]:
    """Compute recall gain, at least 0, and precision gain; 0 and 1 where there is no true positive."""
    odds = ops.divide_no_nan(tp + fn, tn + fp)
    none = ops.equal(tp, 0.0)
    recall_gain = ops.where(none, 0.0, 1.0 - odds * ops.divide_no_nan(fn, tp))
    precision_gain = ops.where(none, 1.0, 1.0 - odds * ops.divide_no_nan(fp, tp))
    return ops.maximum(recall_gain, 0.0), precision_gain


def _interpolated_precision(tp: Tensor, fp: Tensor, fn: Tensor) -> Tensor:
    """Return the areas between neighbouring thresholds, with true and all positives linear there.

    With P positives, precision is ``(intercept + slope * P) / P``; its integral over P has a logarithm.
    """
    positives = tp + fp
    rise = tp[:-1] - tp[1:]
    slope = ops.divide_no_nan(rise, ops.maximum(positives[:-1] - positives[1:], 0.0))
    intercept = tp[1:] - slope * positives[1:]
    both = ops.logical_and(positives[:-1] > 0, positives[1:] > 0)
    ratio = ops.where(both, ops.divide_no_nan(positives[:-1], positives[1:]), 1.0)
    return ops.divide_no_nan(slope * (rise + intercept * ops.log(ratio)), tp[1:] + fn[1:])


def _labels_of(prediction: Tensor) -> int:
    shape = prediction.shape
    if shape is None or len(shape) != 2 or shape[1] is None:
        raise ValueError(f"AUC(multi_label=True) takes predictions of shape [batch, labels]; got {shape}.")
    return shape[1]


def _even(count: int) -> list[float]:
    check_numbers("AUC", num_thresholds=count)
    if count < 2:
        raise ValueError(f"num_thresholds must be at least 2; got {count}.")
    claim((count,), 32, "The list of thresholds")
    return [(position + 1) / (count - 1) for position in range(count - 2)]


def _one_of(argument: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{argument} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")
    return value


__all__ = ["AUC"]
