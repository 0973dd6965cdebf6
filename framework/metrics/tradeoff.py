"""The best of one rate that can be had while another one is good enough: precision at recall, and their like."""

from __future__ import annotations

from typing import Any

from ...engine import ops
from ...engine.common.claims import claim
from ...engine.common.dtypes import DTypeLike
from ...engine.graph import Tensor, Variable
from ...engine.objects.arguments import check_numbers, check_optional_numbers
from ...engine.ops.base import TensorLike
from .base import Metric
from .confusion import new_counts, update_counts

# How each rate is computed: hits over hits and misses.
_RATES = {
    "precision": ("tp", "fp"),
    "recall": ("tp", "fn"),
    "sensitivity": ("tp", "fn"),
    "specificity": ("tn", "fp"),
}


class _BestAt(Metric):
    """Base: the largest rate, over thresholds at which another rate is at least a given value.

    Class attributes:
        wanted: the rate of which the largest is looked for.
        constrained: the one that has to be good enough; also the name of the argument.
    """

    _direction = "up"

    wanted: str
    constrained: str
    true_positives: Variable
    false_positives: Variable
    true_negatives: Variable
    false_negatives: Variable

    def __init__(
        self, value: float, num_thresholds: int, class_id: int | None, name: str | None, dtype: DTypeLike
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        check_numbers(type(self).__name__, num_thresholds=num_thresholds, **{self.constrained: value})
        if not 0 <= value <= 1:
            raise ValueError(f"{type(self).__name__}: {self.constrained} must be in [0, 1]; got {value}.")
        if num_thresholds <= 0:
            raise ValueError(f"{type(self).__name__}: num_thresholds must be positive; got {num_thresholds}.")
        self.value = value
        setattr(self, self.constrained, value)
        self.num_thresholds = num_thresholds
        check_optional_numbers(type(self).__name__, class_id=class_id)
        self.class_id = class_id
        claim((num_thresholds,), 32, f"{type(self).__name__}: the list of thresholds")
        last = num_thresholds - 1
        self.thresholds = [position / last for position in range(num_thresholds)] if last else [0.5]
        self.counts = new_counts(self, (num_thresholds,))

    def update_state(self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None) -> None:
        """Add a batch: targets (not 0 means true), predictions in [0, 1], weights [batch] or [batch, ...]."""
        update_counts(self.counts, y_true, y_pred, self.thresholds, sample_weight, class_id=self.class_id)

    def result(self) -> Tensor:
        """Return the largest rate; 0 where the other one is nowhere good enough."""
        good_enough = self._rate(self.constrained) >= self.value
        return ops.max(ops.where(good_enough, self._rate(self.wanted), 0.0))

    def _rate(self, name: str) -> Tensor:
        hits, misses = (self.counts[short].value for short in _RATES[name])
        return ops.divide_no_nan(hits, hits + misses)

    def get_config(self) -> dict[str, Any]:
        own = {"class_id": self.class_id, "num_thresholds": self.num_thresholds, self.constrained: self.value}
        return {**super().get_config(), **own}


class SensitivityAtSpecificity(_BestAt):
    """The best sensitivity (true positives of all true) where specificity (true negatives of all false) is enough.

    Args:
        specificity: the least specificity, in [0, 1].
        num_thresholds: how many thresholds are tried, at equal distances in [0, 1].
        class_id: look at this class only.
        name: by default from the class.
        dtype: of its variables and result.

    Raises:
        ValueError: an argument is out of range.

    >>> import anabranch as ab
    >>> metric = ab.metrics.SensitivityAtSpecificity(0.5)
    >>> float(metric([0, 0, 0, 1, 1], [0.0, 0.3, 0.8, 0.3, 0.8]))
    0.5
    """

    wanted, constrained = "sensitivity", "specificity"
    specificity: float

    def __init__(
        self,
        specificity: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike = None,
    ) -> None:
        super().__init__(specificity, num_thresholds, class_id, name, dtype)


class SpecificityAtSensitivity(_BestAt):
    """The best specificity where `sensitivity` is enough; for other arguments see `SensitivityAtSpecificity`.

    >>> import anabranch as ab
    >>> metric = ab.metrics.SpecificityAtSensitivity(0.5)
    >>> round(float(metric([0, 0, 0, 1, 1], [0.0, 0.3, 0.8, 0.3, 0.8])), 4)
    0.6667
    """

    wanted, constrained = "specificity", "sensitivity"
    sensitivity: float

    def __init__(
        self,
        sensitivity: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike = None,
    ) -> None:
        super().__init__(sensitivity, num_thresholds, class_id, name, dtype)


class PrecisionAtRecall(_BestAt):
    """The best precision where `recall` is enough; for other arguments see `SensitivityAtSpecificity`.

    >>> import anabranch as ab
    >>> metric = ab.metrics.PrecisionAtRecall(0.5)
    >>> float(metric([0, 0, 0, 1, 1], [0.0, 0.3, 0.8, 0.3, 0.8]))
    0.5
    """

    wanted, constrained = "precision", "recall"
    recall: float

    def __init__(
        self,
        recall: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike = None,
    ) -> None:
        super().__init__(recall, num_thresholds, class_id, name, dtype)


class RecallAtPrecision(_BestAt):
    """The best recall where `precision` is enough; for other arguments see `SensitivityAtSpecificity`.

    >>> import anabranch as ab
    >>> metric = ab.metrics.RecallAtPrecision(0.8)
    >>> float(metric([0, 0, 1, 1], [0.0, 0.5, 0.3, 0.9]))
    0.5
    """

    wanted, constrained = "recall", "precision"
    precision: float

    def __init__(
        self,
        precision: float,
        num_thresholds: int = 200,
        class_id: int | None = None,
        name: str | None = None,
        dtype: DTypeLike = None,
    ) -> None:
        super().__init__(precision, num_thresholds, class_id, name, dtype)


__all__ = ["PrecisionAtRecall", "RecallAtPrecision", "SensitivityAtSpecificity", "SpecificityAtSensitivity"]
