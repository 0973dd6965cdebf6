"""Metrics: what is reported of training, over all batches of an epoch.

>>> import anabranch as ab
>>> metric = ab.metrics.SparseCategoricalAccuracy()
>>> metric.update_state([2, 1], [[0.1, 0.6, 0.3], [0.05, 0.95, 0.0]])
>>> float(metric.result())
0.5
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ...engine import ops
from ...engine.common.dtypes import DTypeLike
from ...engine.common.names_elsewhere import METRICS_MODULE
from ...engine.objects.arguments import check_axis, check_numbers, check_optional_numbers
from ...engine.objects.identifiers import Config
from ...engine.objects.names import to_snake_case
from ...engine.objects.on_demand import on_demand
from ...engine.objects.registry import (
    custom_object_scope,
    deserialize_keras_object,
    find_by_name,
    register_builtins,
    serialize_keras_object,
)
from ...engine.ops.base import TensorLike
from ..losses import functions as _losses
from ..losses.base import aligned
from ..losses.functions import (
    binary_crossentropy,
    binary_focal_crossentropy,
    categorical_crossentropy,
    categorical_focal_crossentropy,
    categorical_hinge,
    hinge,
    huber,
    kl_divergence,
    log_cosh,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_squared_error,
    mean_squared_logarithmic_error,
    poisson,
    sparse_categorical_crossentropy,
    squared_hinge,
)
from . import functions as _functions
from .auc import AUC
from .base import Metric
from .confusion import (
    FalseNegatives,
    FalsePositives,
    Precision,
    Recall,
    TrueNegatives,
    TruePositives,
)
from .functions import (
    accuracy,
    binary_accuracy,
    categorical_accuracy,
    concordance_correlation,
    pearson_correlation,
    sparse_categorical_accuracy,
    sparse_top_k_categorical_accuracy,
    top_k_categorical_accuracy,
)
from .iou import BinaryIoU, IoU, MeanIoU, OneHotIoU, OneHotMeanIoU
from .reduction import Mean, MeanMetricWrapper, Sum
from .scores import ConcordanceCorrelation, F1Score, FBetaScore, PearsonCorrelation, R2Score
from .tradeoff import (
    PrecisionAtRecall,
    RecallAtPrecision,
    SensitivityAtSpecificity,
    SpecificityAtSensitivity,
)

kld = KLD = kullback_leibler_divergence = kl_divergence
logcosh = log_cosh
mae = MAE = mean_absolute_error
mape = MAPE = mean_absolute_percentage_error
mse = MSE = mean_squared_error
msle = MSLE = mean_squared_logarithmic_error

if TYPE_CHECKING:
    from ...engine.graph import Tensor

MetricLike: TypeAlias = "str | Metric | type[Metric] | Callable[..., Tensor] | Config"
"""A name such as "accuracy", a `Metric` or its class, a function of (y_true, y_pred), or a config; see `get`."""

# --- accuracies -----------------------------------------------------------------------------------------------------


class Accuracy(MeanMetricWrapper):
    """Computes how often predictions equal targets."""

    _direction = "up"

    def __init__(self, name: str | None = "accuracy", dtype: DTypeLike = None) -> None:
        super().__init__(accuracy, name, dtype)


class BinaryAccuracy(MeanMetricWrapper):
    """Computes how often predictions above `threshold` have targets of 1, and others targets of 0."""

    _direction = "up"

    def __init__(self, name: str | None = "binary_accuracy", dtype: DTypeLike = None, threshold: float = 0.5) -> None:
        check_numbers("BinaryAccuracy", threshold=threshold)
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold must be in [0, 1]; got {threshold}.")
        super().__init__(binary_accuracy, name, dtype, threshold=threshold)


class CategoricalAccuracy(MeanMetricWrapper):
    """Computes how often the largest prediction is that of the right class; targets are one-hot."""

    _direction = "up"

    def __init__(self, name: str | None = "categorical_accuracy", dtype: DTypeLike = None) -> None:
        super().__init__(categorical_accuracy, name, dtype)


class SparseCategoricalAccuracy(MeanMetricWrapper):
    """Computes how often the largest prediction is that of the right class; targets are class numbers."""

    _direction = "up"

    def __init__(self, name: str | None = "sparse_categorical_accuracy", dtype: DTypeLike = None) -> None:
        super().__init__(sparse_categorical_accuracy, name, dtype)


class TopKCategoricalAccuracy(MeanMetricWrapper):
    """Computes how often the right class is among the `k` largest predictions; targets are one-hot."""

    _direction = "up"

    def __init__(self, k: int = 5, name: str | None = "top_k_categorical_accuracy", dtype: DTypeLike = None) -> None:
        check_numbers("TopKCategoricalAccuracy", k=k)
        super().__init__(top_k_categorical_accuracy, name, dtype, k=k)
        self.k = k


class SparseTopKCategoricalAccuracy(MeanMetricWrapper):
    """Computes how often the right class is among the `k` largest predictions; targets are class numbers.

    Args:
        k: how many of the largest count.
        from_sorted_ids: whether predictions are class numbers in order of their scores, rather than scores.
    """

    _direction = "up"

    def __init__(
        self,
        k: int = 5,
        name: str | None = "sparse_top_k_categorical_accuracy",
        dtype: DTypeLike = None,
        from_sorted_ids: bool = False,
    ) -> None:
        check_numbers("SparseTopKCategoricalAccuracy", k=k)
        super().__init__(sparse_top_k_categorical_accuracy, name, dtype, k=k, from_sorted_ids=from_sorted_ids)
        self.k = k
        self.from_sorted_ids = from_sorted_ids


# --- regression -----------------------------------------------------------------------------------------------------


class MeanSquaredError(MeanMetricWrapper):
    """The mean of ``square(y_true - y_pred)``."""

    _direction = "down"

    def __init__(self, name: str | None = "mean_squared_error", dtype: DTypeLike = None) -> None:
        super().__init__(_losses.mean_squared_error, name, dtype)


class RootMeanSquaredError(Mean):
    """The square root of the mean of ``square(y_true - y_pred)`` over all batches."""

    _direction = "down"

    def __init__(self, name: str | None = "root_mean_squared_error", dtype: DTypeLike = None) -> None:
        super().__init__(name, dtype)

    def update_state(self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None) -> None:
        """Add a batch."""
        target, prediction = aligned("root_mean_squared_error", y_true, ops.cast(y_pred, self.dtype))
        super().update_state(ops.square(prediction - target), sample_weight)

    def result(self) -> Tensor:
        return ops.sqrt(super().result())


class MeanAbsoluteError(MeanMetricWrapper):
    """The mean of ``abs(y_true - y_pred)``."""

    _direction = "down"

    def __init__(self, name: str | None = "mean_absolute_error", dtype: DTypeLike = None) -> None:
        super().__init__(_losses.mean_absolute_error, name, dtype)


class MeanAbsolutePercentageError(MeanMetricWrapper):
    """The mean of ``100 * abs((y_true - y_pred) / y_true)``."""

    _direction = "down"

    def __init__(self, name: str | None = "mean_absolute_percentage_error", dtype: DTypeLike = None) -> None:
        super().__init__(_losses.mean_absolute_percentage_error, name, dtype)


class MeanSquaredLogarithmicError(MeanMetricWrapper):
    """The mean of ``square(log(y_true + 1) - log(y_pred + 1))``."""

    _direction = "down"

    def __init__(self, name: str | None = "mean_squared_logarithmic_error", dtype: DTypeLike = None) -> None:
        super().__init__(_losses.mean_squared_logarithmic_error, name, dtype)


class LogCoshError(MeanMetricWrapper):
    """The mean of ``log(cosh(y_pred - y_true))``."""

    _direction = "down"

    def __init__(self, name: str | None = "logcosh", dtype: DTypeLike = None) -> None:
        super().__init__(_losses.log_cosh, name, dtype)


class CosineSimilarity(MeanMetricWrapper):
    """The mean cosine of the angle between targets and predictions, vectors along `axis`."""

    _direction = "up"

    def __init__(self, name: str | None = "cosine_similarity", dtype: DTypeLike = None, axis: int = -1) -> None:
        check_axis("CosineSimilarity", axis)
        super().__init__(_functions.cosine_similarity, name, dtype, axis=axis)


# --- losses as metrics ----------------------------------------------------------------------------------------------


class Hinge(MeanMetricWrapper):
    """The mean of ``maximum(1 - y_true * y_pred, 0)``."""

    _direction = "down"

    def __init__(self, name: str | None = "hinge", dtype: DTypeLike = None) -> None:
        super().__init__(_losses.hinge, name, dtype)


class SquaredHinge(MeanMetricWrapper):
    """The mean of ``square(maximum(1 - y_true * y_pred, 0))``."""

    _direction = "down"

    def __init__(self, name: str | None = "squared_hinge", dtype: DTypeLike = None) -> None:
        super().__init__(_losses.squared_hinge, name, dtype)


class CategoricalHinge(MeanMetricWrapper):
    """The mean categorical hinge loss; targets are one-hot."""

    _direction = "down"

    def __init__(self, name: str | None = "categorical_hinge", dtype: DTypeLike = None) -> None:
        super().__init__(_losses.categorical_hinge, name, dtype)


class KLDivergence(MeanMetricWrapper):
    """The mean of ``sum(y_true * log(y_true / y_pred))``."""

    _direction = "down"

    def __init__(self, name: str | None = "kl_divergence", dtype: DTypeLike = None) -> None:
        super().__init__(_losses.kl_divergence, name, dtype)


class Poisson(MeanMetricWrapper):
    """The mean of ``y_pred - y_true * log(y_pred)``."""

    _direction = "down"

    def __init__(self, name: str | None = "poisson", dtype: DTypeLike = None) -> None:
        super().__init__(_losses.poisson, name, dtype)


class BinaryCrossentropy(MeanMetricWrapper):
    """The mean cross-entropy of labels 0 and 1; the arguments are those of the loss."""

    _direction = "down"

    def __init__(
        self,
        name: str | None = "binary_crossentropy",
        dtype: DTypeLike = None,
        from_logits: bool = False,
        label_smoothing: float = 0,
    ) -> None:
        check_numbers("BinaryCrossentropy", label_smoothing=label_smoothing)
        options = {"from_logits": from_logits, "label_smoothing": label_smoothing}
        super().__init__(_losses.binary_crossentropy, name, dtype, **options)


class CategoricalCrossentropy(MeanMetricWrapper):
    """The mean cross-entropy of one-hot targets; the arguments are those of the loss."""

    _direction = "down"

    def __init__(
        self,
        name: str | None = "categorical_crossentropy",
        dtype: DTypeLike = None,
        from_logits: bool = False,
        label_smoothing: float = 0,
        axis: int = -1,
    ) -> None:
        check_numbers("CategoricalCrossentropy", label_smoothing=label_smoothing)
        check_axis("CategoricalCrossentropy", axis)
        options = {"from_logits": from_logits, "label_smoothing": label_smoothing, "axis": axis}
        super().__init__(_losses.categorical_crossentropy, name, dtype, **options)


class SparseCategoricalCrossentropy(MeanMetricWrapper):
    """The mean cross-entropy of class numbers; the arguments are those of the loss."""

    _direction = "down"

    def __init__(
        self,
        name: str | None = "sparse_categorical_crossentropy",
        dtype: DTypeLike = None,
        from_logits: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
    ) -> None:
        check_optional_numbers("SparseCategoricalCrossentropy", ignore_class=ignore_class)
        check_axis("SparseCategoricalCrossentropy", axis)
        options = {"from_logits": from_logits, "ignore_class": ignore_class, "axis": axis}
        super().__init__(_losses.sparse_categorical_crossentropy, name, dtype, **options)


# --- by name --------------------------------------------------------------------------------------------------------

_CLASSES: dict[str, type[Metric]] = {
    cls.__name__: cls
    for cls in (
        AUC,
        Accuracy,
        BinaryAccuracy,
        BinaryCrossentropy,
        BinaryIoU,
        CategoricalAccuracy,
        CategoricalCrossentropy,
        CategoricalHinge,
        ConcordanceCorrelation,
        CosineSimilarity,
        F1Score,
        FBetaScore,
        FalseNegatives,
        FalsePositives,
        Hinge,
        IoU,
        KLDivergence,
        LogCoshError,
        Mean,
        MeanAbsoluteError,
        MeanAbsolutePercentageError,
        MeanIoU,
        MeanMetricWrapper,
        MeanSquaredError,
        MeanSquaredLogarithmicError,
        OneHotIoU,
        OneHotMeanIoU,
        PearsonCorrelation,
        Poisson,
        Precision,
        PrecisionAtRecall,
        R2Score,
        Recall,
        RecallAtPrecision,
        RootMeanSquaredError,
        SensitivityAtSpecificity,
        SparseCategoricalAccuracy,
        SparseCategoricalCrossentropy,
        SparseTopKCategoricalAccuracy,
        SpecificityAtSensitivity,
        SquaredHinge,
        Sum,
        TopKCategoricalAccuracy,
        TrueNegatives,
        TruePositives,
    )
}
_KNOWN: dict[str, Callable[..., object]] = {
    **_CLASSES,
    **{to_snake_case(name): cls for name, cls in _CLASSES.items()},
    **dict.fromkeys(("mse", "MSE"), MeanSquaredError),
    **dict.fromkeys(("mae", "MAE"), MeanAbsoluteError),
    **dict.fromkeys(("mape", "MAPE"), MeanAbsolutePercentageError),
    **dict.fromkeys(("msle", "MSLE"), MeanSquaredLogarithmicError),
    **dict.fromkeys(("bce", "BCE"), BinaryCrossentropy),
    "kld": KLDivergence,
    "rmse": RootMeanSquaredError,
}
register_builtins("keras.metrics", {**_CLASSES, **{name: getattr(_functions, name) for name in _functions.__all__}})


def get(identifier: object) -> Any:
    """Return the metric that `identifier` stands for: a name, a config, a `Metric` or its class, a function, or None.

    A name gives a new instance: "mse", "mean_squared_error", "MeanSquaredError". ("accuracy" is the plain one here,
    equality; `compile` chooses one that fits the model.)

    Raises:
        ValueError: nothing has that name, or the object is not a metric.
    """
    if identifier is None:
        return None
    found = find_by_name("metric", identifier, _KNOWN) if isinstance(identifier, str) else identifier
    if isinstance(identifier, dict):
        found = deserialize(identifier)
    if isinstance(found, type):
        found = found()
    if not callable(found):
        raise ValueError(
            f"{identifier!r} of type {type(identifier).__name__} is no metric: expected a name, a Metric, or a "
            "function of y_true and y_pred."
        )
    return found


def serialize(metric: Metric) -> Any:
    """Return the config of a metric."""
    return serialize_keras_object(metric)


def deserialize(config: Config, custom_objects: Mapping[str, object] | None = None) -> Any:
    """Return the metric that a config (or a name) describes."""
    if isinstance(config, str):
        with custom_object_scope(custom_objects or {}):
            return get(config)
    if isinstance(config, dict) and "module" not in config:
        config = {**config, "module": "keras.metrics"}
    return deserialize_keras_object(config, custom_objects)


if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__, _ = on_demand(globals(), {}, elsewhere=METRICS_MODULE)

__all__ = [
    "AUC",
    "Accuracy",
    "BinaryAccuracy",
    "BinaryCrossentropy",
    "BinaryIoU",
    "CategoricalAccuracy",
    "CategoricalCrossentropy",
    "CategoricalHinge",
    "ConcordanceCorrelation",
    "CosineSimilarity",
    "F1Score",
    "FBetaScore",
    "FalseNegatives",
    "FalsePositives",
    "Hinge",
    "IoU",
    "KLDivergence",
    "LogCoshError",
    "Mean",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanIoU",
    "MeanMetricWrapper",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Metric",
    "OneHotIoU",
    "OneHotMeanIoU",
    "PearsonCorrelation",
    "Poisson",
    "Precision",
    "PrecisionAtRecall",
    "R2Score",
    "Recall",
    "RecallAtPrecision",
    "RootMeanSquaredError",
    "SensitivityAtSpecificity",
    "SparseCategoricalAccuracy",
    "SparseCategoricalCrossentropy",
    "SparseTopKCategoricalAccuracy",
    "SpecificityAtSensitivity",
    "SquaredHinge",
    "Sum",
    "TopKCategoricalAccuracy",
    "TrueNegatives",
    "TruePositives",
    "accuracy",
    "binary_accuracy",
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_accuracy",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "categorical_hinge",
    "concordance_correlation",
    "deserialize",
    "get",
    "hinge",
    "huber",
    "kl_divergence",
    "log_cosh",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_error",
    "mean_squared_logarithmic_error",
    "pearson_correlation",
    "poisson",
    "serialize",
    "sparse_categorical_accuracy",
    "sparse_categorical_crossentropy",
    "sparse_top_k_categorical_accuracy",
    "squared_hinge",
    "top_k_categorical_accuracy",
]
