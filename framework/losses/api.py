"""Losses: what training makes small. As classes, to be configured, and as functions, one value per example.

>>> import anabranch as ab
>>> loss = ab.losses.MeanSquaredError()
>>> float(loss([[0.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 0.0]]))
0.5
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ...engine.common.dtypes import DTypeLike
from ...engine.common.names_elsewhere import LOSSES_MODULE
from ...engine.objects.arguments import check_axis, check_numbers, check_optional_numbers
from ...engine.objects.on_demand import on_demand
from ...engine.objects.registry import (
    custom_object_scope,
    deserialize_keras_object,
    find_by_name,
    register_builtins,
    serialize_keras_object,
)
from . import functions as _functions
from . import structure as _structure
from .base import Loss, LossFunctionWrapper
from .functions import (
    binary_crossentropy,
    binary_focal_crossentropy,
    categorical_crossentropy,
    categorical_focal_crossentropy,
    categorical_generalized_cross_entropy,
    categorical_hinge,
    cosine_similarity,
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
from .structure import circle, ctc, dice, tversky

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ...engine.objects.identifiers import Config
    from ...engine.ops.base import TensorLike

bce = BCE = binary_crossentropy
kld = KLD = kullback_leibler_divergence = kl_divergence
logcosh = log_cosh
mae = MAE = mean_absolute_error
mape = MAPE = mean_absolute_percentage_error
mse = MSE = mean_squared_error
msle = MSLE = mean_squared_logarithmic_error

LossLike: TypeAlias = "str | Loss | type[Loss] | Callable[..., Tensor] | Config"
"""A name such as "mse", a `Loss` or its class, a function of (y_true, y_pred), or a config; see `get`."""

_MEAN = "sum_over_batch_size"


class Reduction:
    """Names of reductions, as `tf.keras` has them."""

    AUTO = SUM_OVER_BATCH_SIZE = _MEAN
    NONE = "none"
    SUM = "sum"


class MeanSquaredError(LossFunctionWrapper):
    """``mean(square(y_true - y_pred))``"""

    def __init__(
        self, reduction: str | None = _MEAN, name: str | None = "mean_squared_error", dtype: DTypeLike = None
    ) -> None:
        super().__init__(_functions.mean_squared_error, reduction, name, dtype)


class MeanAbsoluteError(LossFunctionWrapper):
    """``mean(abs(y_true - y_pred))``"""

    def __init__(
        self, reduction: str | None = _MEAN, name: str | None = "mean_absolute_error", dtype: DTypeLike = None
    ) -> None:
        super().__init__(_functions.mean_absolute_error, reduction, name, dtype)


class MeanAbsolutePercentageError(LossFunctionWrapper):
    """``100 * mean(abs((y_true - y_pred) / y_true))``"""

    def __init__(
        self,
        reduction: str | None = _MEAN,
        name: str | None = "mean_absolute_percentage_error",
        dtype: DTypeLike = None,
    ) -> None:
        super().__init__(_functions.mean_absolute_percentage_error, reduction, name, dtype)


class MeanSquaredLogarithmicError(LossFunctionWrapper):
    """``mean(square(log(y_true + 1) - log(y_pred + 1)))``"""

    def __init__(
        self,
        reduction: str | None = _MEAN,
        name: str | None = "mean_squared_logarithmic_error",
        dtype: DTypeLike = None,
    ) -> None:
        super().__init__(_functions.mean_squared_logarithmic_error, reduction, name, dtype)


class Huber(LossFunctionWrapper):
    """Quadratic for errors up to `delta`, linear beyond.

    Args:
        delta: where the one becomes the other.
    """

    def __init__(
        self,
        delta: float = 1.0,
        reduction: str | None = _MEAN,
        name: str | None = "huber_loss",
        dtype: DTypeLike = None,
    ) -> None:
        check_numbers("Huber", delta=delta)
        super().__init__(_functions.huber, reduction, name, dtype, delta=delta)


class LogCosh(LossFunctionWrapper):
    """``mean(log(cosh(y_pred - y_true)))``"""

    def __init__(self, reduction: str | None = _MEAN, name: str | None = "log_cosh", dtype: DTypeLike = None) -> None:
        super().__init__(_functions.log_cosh, reduction, name, dtype)


class CosineSimilarity(LossFunctionWrapper):
    """Minus the cosine of the angle between targets and predictions.

    Args:
        axis: the axis along which they are vectors.
    """

    def __init__(
        self,
        axis: int = -1,
        reduction: str | None = _MEAN,
        name: str | None = "cosine_similarity",
        dtype: DTypeLike = None,
    ) -> None:
        check_axis("CosineSimilarity", axis)
        super().__init__(_functions.cosine_similarity, reduction, name, dtype, axis=axis)


class Hinge(LossFunctionWrapper):
    """``mean(maximum(1 - y_true * y_pred, 0))`` for targets -1 and 1 (or 0 and 1)."""

    def __init__(self, reduction: str | None = _MEAN, name: str | None = "hinge", dtype: DTypeLike = None) -> None:
        super().__init__(_functions.hinge, reduction, name, dtype)


class SquaredHinge(LossFunctionWrapper):
    """``mean(square(maximum(1 - y_true * y_pred, 0)))`` for targets -1 and 1 (or 0 and 1)."""

    def __init__(
        self, reduction: str | None = _MEAN, name: str | None = "squared_hinge", dtype: DTypeLike = None
    ) -> None:
        super().__init__(_functions.squared_hinge, reduction, name, dtype)


class CategoricalHinge(LossFunctionWrapper):
    """``maximum(1 + max((1 - y_true) * y_pred) - sum(y_true * y_pred), 0)`` for one-hot targets."""

    def __init__(
        self, reduction: str | None = _MEAN, name: str | None = "categorical_hinge", dtype: DTypeLike = None
    ) -> None:
        super().__init__(_functions.categorical_hinge, reduction, name, dtype)


class KLDivergence(LossFunctionWrapper):
    """``sum(y_true * log(y_true / y_pred))``"""

    def __init__(
        self, reduction: str | None = _MEAN, name: str | None = "kl_divergence", dtype: DTypeLike = None
    ) -> None:
        super().__init__(_functions.kl_divergence, reduction, name, dtype)


class Poisson(LossFunctionWrapper):
    """``mean(y_pred - y_true * log(y_pred))``: for counts with expectation `y_pred`."""

    def __init__(self, reduction: str | None = _MEAN, name: str | None = "poisson", dtype: DTypeLike = None) -> None:
        super().__init__(_functions.poisson, reduction, name, dtype)


class BinaryCrossentropy(LossFunctionWrapper):
    """Cross-entropy of labels 0 and 1.

    Args:
        from_logits: whether predictions are logits rather than probabilities.
        label_smoothing: draws the labels towards 0.5: 0.1 makes them 0.05 and 0.95.
        axis: the axis of the mean.
    """

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = _MEAN,
        name: str | None = "binary_crossentropy",
        dtype: DTypeLike = None,
    ) -> None:
        options = {"from_logits": from_logits, "label_smoothing": _share(self, label_smoothing), "axis": axis}
        check_axis(type(self).__name__, axis)
        super().__init__(_functions.binary_crossentropy, reduction, name, dtype, **options)


class BinaryFocalCrossentropy(LossFunctionWrapper):
    """Cross-entropy of labels 0 and 1 that weighs down what is already predicted well.

    Args:
        apply_class_balancing: weigh class 1 by `alpha` and class 0 by ``1 - alpha``.
        alpha: the weight of class 1.
        gamma: the focusing exponent; 0 gives plain cross-entropy.
        from_logits, label_smoothing, axis: as for `BinaryCrossentropy`.

    Source: Lin et al., "Focal Loss for Dense Object Detection", 2017.
    """

    def __init__(
        self,
        apply_class_balancing: bool = False,
        alpha: float = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = _MEAN,
        name: str | None = "binary_focal_crossentropy",
        dtype: DTypeLike = None,
    ) -> None:
        check_numbers("BinaryFocalCrossentropy", alpha=alpha, gamma=gamma)
        balancing = {"apply_class_balancing": apply_class_balancing, "alpha": alpha, "gamma": gamma}
        options = {"from_logits": from_logits, "label_smoothing": _share(self, label_smoothing), "axis": axis}
        check_axis(type(self).__name__, axis)
        super().__init__(_functions.binary_focal_crossentropy, reduction, name, dtype, **balancing, **options)


class CategoricalCrossentropy(LossFunctionWrapper):
    """Cross-entropy of one-hot targets.

    Args:
        from_logits: whether predictions are logits rather than probabilities.
        label_smoothing: draws the targets towards equal shares: 0.1 gives 0.1 to be divided among all classes.
        axis: the axis of the classes.
    """

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = _MEAN,
        name: str | None = "categorical_crossentropy",
        dtype: DTypeLike = None,
    ) -> None:
        options = {"from_logits": from_logits, "label_smoothing": _share(self, label_smoothing), "axis": axis}
        check_axis(type(self).__name__, axis)
        super().__init__(_functions.categorical_crossentropy, reduction, name, dtype, **options)


class CategoricalFocalCrossentropy(LossFunctionWrapper):
    """Cross-entropy of one-hot targets that weighs down what is already predicted well.

    Args:
        alpha: a weight for all classes, or one for each.
        gamma: the focusing exponent; 0 gives plain cross-entropy (times `alpha`).
        from_logits, label_smoothing, axis: as for `CategoricalCrossentropy`.

    Source: Lin et al., "Focal Loss for Dense Object Detection", 2017.
    """

    def __init__(
        self,
        alpha: TensorLike = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = _MEAN,
        name: str | None = "categorical_focal_crossentropy",
        dtype: DTypeLike = None,
    ) -> None:
        check_numbers("CategoricalFocalCrossentropy", gamma=gamma)
        check_axis("CategoricalFocalCrossentropy", axis)
        smoothing = _share(self, label_smoothing)
        options = {"from_logits": from_logits, "label_smoothing": smoothing, "axis": axis, "alpha": alpha}
        super().__init__(_functions.categorical_focal_crossentropy, reduction, name, dtype, **options, gamma=gamma)


class CategoricalGeneralizedCrossEntropy(LossFunctionWrapper):
    """``(1 - p ** q) / q`` for the probability p of the right class; targets are class numbers.

    Args:
        q: in (0, 1); near 0 it is like cross-entropy, near 1 like the mean absolute error.

    Raises:
        ValueError: `q` is not in (0, 1).

    Source: Zhang and Sabuncu, "Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels",
    2018.
    """

    def __init__(
        self,
        q: float = 0.5,
        reduction: str | None = _MEAN,
        name: str | None = "categorical_generalized_cross_entropy",
        dtype: DTypeLike = None,
    ) -> None:
        check_numbers("CategoricalGeneralizedCrossEntropy", q=q)
        if not 0 < q < 1:
            raise ValueError(f"CategoricalGeneralizedCrossEntropy: q must be between 0 and 1, got {q}.")
        super().__init__(_functions.categorical_generalized_cross_entropy, reduction, name, dtype, q=q)


class SparseCategoricalCrossentropy(LossFunctionWrapper):
    """Cross-entropy of class numbers.

    Args:
        from_logits: whether predictions are logits rather than probabilities.
        ignore_class: the number of a class (padding, say) whose examples do not count.
        axis: the axis of the classes.
    """

    def __init__(
        self,
        from_logits: bool = False,
        ignore_class: int | None = None,
        reduction: str | None = _MEAN,
        axis: int = -1,
        name: str | None = "sparse_categorical_crossentropy",
        dtype: DTypeLike = None,
    ) -> None:
        check_optional_numbers("SparseCategoricalCrossentropy", ignore_class=ignore_class)
        check_axis("SparseCategoricalCrossentropy", axis)
        options = {"from_logits": from_logits, "ignore_class": ignore_class, "axis": axis}
        super().__init__(_functions.sparse_categorical_crossentropy, reduction, name, dtype, **options)


class Dice(LossFunctionWrapper):
    """``1 - 2 * sum(y_true * y_pred) / (sum(y_true) + sum(y_pred))``: how little two regions overlap.

    Args:
        axis: the axes of the sums; all by default, which gives a single value for the batch.

    Source: Milletari et al., "V-Net: Fully Convolutional Neural Networks for Volumetric Medical Image Segmentation",
    2016.
    """

    def __init__(
        self,
        reduction: str | None = _MEAN,
        name: str | None = "dice",
        axis: int | Sequence[int] | None = None,
        dtype: DTypeLike = None,
    ) -> None:
        super().__init__(_structure.dice, reduction, name, dtype, axis=axis)


class Tversky(LossFunctionWrapper):
    """`Dice` with separate weights for what was found too much and for what was missed.

    Args:
        alpha: the weight of positions that were predicted and do not belong to the region.
        beta: the weight of positions of the region that were not predicted.
        axis: the axes of the sums; all by default.

    Source: Salehi et al., "Tversky loss function for image segmentation using 3D fully convolutional deep networks",
    2017.
    """

    def __init__(
        self,
        alpha: float = 0.5,
        beta: float = 0.5,
        reduction: str | None = _MEAN,
        name: str | None = "tversky",
        axis: int | Sequence[int] | None = None,
        dtype: DTypeLike = None,
    ) -> None:
        check_numbers("Tversky", alpha=alpha, beta=beta)
        super().__init__(_structure.tversky, reduction, name, dtype, alpha=alpha, beta=beta, axis=axis)


class Circle(LossFunctionWrapper):
    """Draws embeddings (of length 1) of one class together and pushes those of others away.

    Args:
        gamma: how steep the loss is.
        margin: how far apart, in cosine distance, classes are to be.
        remove_diagonal: don't compare an embedding with itself.

    Source: Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization", 2020.
    """

    def __init__(
        self,
        gamma: float = 80.0,
        margin: float = 0.4,
        remove_diagonal: bool = True,
        reduction: str | None = _MEAN,
        name: str | None = "circle",
        dtype: DTypeLike = None,
    ) -> None:
        check_numbers("Circle", gamma=gamma, margin=margin)
        options = {"gamma": gamma, "margin": margin, "remove_diagonal": remove_diagonal}
        super().__init__(_structure.circle, reduction, name, dtype, **options)


class CTC(LossFunctionWrapper):
    """The negative log probability of label sequences, over all ways to spread them over the steps.

    Targets are class numbers [batch, labels], filled up with 0 (the blank) at the end; predictions are logits
    [batch, steps, classes].

    Source: Graves et al., "Connectionist temporal classification", 2006.
    """

    def __init__(self, reduction: str | None = _MEAN, name: str | None = "ctc", dtype: DTypeLike = None) -> None:
        super().__init__(_structure.ctc, reduction, name, dtype)


def _share(loss: Loss, label_smoothing: float) -> float:
    check_numbers(type(loss).__name__, label_smoothing=label_smoothing)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing must be in [0, 1]; got {label_smoothing}.")
    return label_smoothing


_CLASSES: dict[str, type[Loss]] = {
    cls.__name__: cls
    for cls in (
        BinaryCrossentropy,
        BinaryFocalCrossentropy,
        CTC,
        CategoricalCrossentropy,
        CategoricalFocalCrossentropy,
        CategoricalGeneralizedCrossEntropy,
        CategoricalHinge,
        Circle,
        CosineSimilarity,
        Dice,
        Hinge,
        Huber,
        KLDivergence,
        LogCosh,
        LossFunctionWrapper,
        MeanAbsoluteError,
        MeanAbsolutePercentageError,
        MeanSquaredError,
        MeanSquaredLogarithmicError,
        Poisson,
        SparseCategoricalCrossentropy,
        SquaredHinge,
        Tversky,
    )
}
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    name: getattr(module, name) for module in (_functions, _structure) for name in module.__all__
}
_KNOWN: dict[str, Callable[..., object]] = {**_CLASSES, **_FUNCTIONS, **_functions.ALIASES}
register_builtins("keras.losses", {**_CLASSES, **_FUNCTIONS})


def get(identifier: object) -> Any:
    """Return the loss that `identifier` stands for: a name, a config, a `Loss`, a function, or None.

    A function's name ("mse", "sparse_categorical_crossentropy") gives the function, a class's name an instance.

    Raises:
        ValueError: nothing has that name, or the object is not a loss.
    """
    if identifier is None:
        return None
    found = find_by_name("loss", identifier, _KNOWN) if isinstance(identifier, str) else identifier
    if isinstance(identifier, dict):
        found = deserialize(identifier)
    if isinstance(found, type):
        found = found()
    if not callable(found):
        raise ValueError(
            f"{identifier!r} of type {type(identifier).__name__} is no loss: expected a name, a Loss, or a function of "
            "y_true and y_pred."
        )
    return found


def serialize(loss: object) -> Any:
    """Return the config of a loss; built-in functions are written as their names."""
    name = getattr(loss, "__name__", None)
    return name if name is not None and _FUNCTIONS.get(name) is loss else serialize_keras_object(loss)


def deserialize(name: str | Config, custom_objects: Mapping[str, object] | None = None) -> Any:
    """Return the loss that a config (or a function's name) describes."""
    if isinstance(name, str):
        with custom_object_scope(custom_objects or {}):
            return find_by_name("loss", name, _KNOWN)
    if isinstance(name, dict) and "module" not in name:
        name = {**name, "module": "keras.losses"}
    return deserialize_keras_object(name, custom_objects)


if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__, _ = on_demand(globals(), {}, elsewhere=LOSSES_MODULE)

__all__ = [
    "CTC",
    "BinaryCrossentropy",
    "BinaryFocalCrossentropy",
    "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy",
    "CategoricalGeneralizedCrossEntropy",
    "CategoricalHinge",
    "Circle",
    "CosineSimilarity",
    "Dice",
    "Hinge",
    "Huber",
    "KLDivergence",
    "LogCosh",
    "Loss",
    "LossFunctionWrapper",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Poisson",
    "SparseCategoricalCrossentropy",
    "SquaredHinge",
    "Tversky",
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "categorical_generalized_cross_entropy",
    "categorical_hinge",
    "circle",
    "cosine_similarity",
    "ctc",
    "deserialize",
    "dice",
    "get",
    "hinge",
    "huber",
    "kl_divergence",
    "log_cosh",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_error",
    "mean_squared_logarithmic_error",
    "poisson",
    "serialize",
    "sparse_categorical_crossentropy",
    "squared_hinge",
    "tversky",
]
