"""`Loss`, the base of all losses: how values per example are weighted, masked and reduced to one number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from ...engine import ops
from ...engine.common.keywords import ChecksKeywords
from ...engine.graph import Tensor, graph_for
from ...engine.graph.provenance import building_part
from ...engine.graph.spec import shape_text, shapes_compatible
from ...engine.objects.floats import layer_dtype
from ...engine.objects.names import name_for
from ...engine.objects.registry import deserialize_keras_object, serialize_keras_object
from ...engine.ops.replicas import part_of_mean, part_of_sum
from ...layers.core.calling import symbols_in
from ..calling import as_argument, is_symbolic, mask_of

if TYPE_CHECKING:
    from ...engine.common.dtypes import DTypeLike
    from ...engine.ops.base import TensorLike
    from ..structures import Arrays

REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum", "none", None)


class Loss(ChecksKeywords):
    """A loss: subclasses define ``call(y_true, y_pred)``, which returns values per example.

    Args:
        name: for messages and for the name scope of its operations.
        reduction: "sum_over_batch_size" or "mean" (the mean over all values; with a mask, over the values that it
            keeps), "mean_with_sample_weight" (the weighted mean: the sum over the sum of the weights), "sum", or
            "none" (or None: the weighted values as they are).
        dtype: what targets, predictions and the values per example are cast to; float32 by default.

    A loss of values or arrays is a value, one of symbols a symbol.

    >>> import anabranch as ab
    >>> class Quartic(ab.losses.Loss):
    ...     def call(self, y_true, y_pred):
    ...         return ab.ops.mean((y_pred - y_true) ** 4, axis=-1)
    >>> float(Quartic()([[0.0, 0.0]], [[1.0, 2.0]]))
    8.5
    """

    def __init__(
        self, name: str | None = None, reduction: str | None = "sum_over_batch_size", dtype: DTypeLike = None
    ) -> None:
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {', '.join(map(repr, REDUCTIONS))}; got {reduction!r}.")
        self.name = name or name_for(self)
        self.reduction = reduction
        self.dtype: str = layer_dtype(dtype)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the values per example, not yet weighted: shape [batch, ...]."""
        raise NotImplementedError(f"{type(self).__name__} must define call(y_true, y_pred).")

    def __call__(self, y_true: Arrays, y_pred: Arrays, sample_weight: TensorLike | None = None) -> Tensor:
        """Return the reduced loss.

        Args:
            y_true: targets, [batch, ...].
            y_pred: predictions, [batch, ...]. A mask on them is applied.
            sample_weight: a weight for each example, [batch], or for each value, [batch, ...].
        """
        if is_symbolic(y_true, y_pred, sample_weight):
            return self._compute(y_true, y_pred, sample_weight)
        return self._weighted(as_argument(y_true), as_argument(y_pred), as_argument(sample_weight))

    def _compute(self, y_true: Arrays, y_pred: Arrays, sample_weight: TensorLike | None) -> Tensor:
        symbols = symbols_in((y_true, y_pred, sample_weight))
        graph = graph_for(symbols)
        with graph.entered(), graph.name_scope(self.name), building_part("loss"):
            return self._weighted(y_true, y_pred, sample_weight)

    def _weighted(self, y_true: Arrays, y_pred: Arrays, sample_weight: TensorLike | None) -> Tensor:
        mask = mask_of(y_pred)
        values = self.call(self._targets(y_true), _each(y_pred, self._converted))
        mask = join_masks(mask, mask_of(values))
        return reduce_weighted(ops.cast(values, self.dtype), sample_weight, mask, self.reduction)

    def _targets(self, y_true: Arrays) -> Any:
        return _each(y_true, self._converted)

    def _converted(self, value: TensorLike) -> Tensor:
        return ops.convert_to_tensor(value, self.dtype)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "reduction": self.reduction}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**config)


class LossFunctionWrapper(Loss):
    """A loss made of a function ``fn(y_true, y_pred, **kwargs)`` that returns values per example.

    Args:
        fn: the function.
        reduction, name, dtype: as for `Loss`; the name is that of the function by default.
        **kwargs: passed on to `fn`.
    """

    def __init__(
        self,
        fn: Callable[..., Tensor],
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: DTypeLike = None,
        **kwargs: object,
    ) -> None:
        super().__init__(name or getattr(fn, "__name__", None), reduction, dtype)
        self.fn = fn
        self._fn_kwargs = kwargs

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return self.fn(*same_rank(y_true, y_pred), **self._fn_kwargs)

    def option(self, name: str) -> Any:
        """Return the keyword argument `name` that `fn` is given; None if it gets none of that name."""
        return self._fn_kwargs.get(name)

    def _targets(self, y_true: Any) -> Any:
        if getattr(self.fn, "takes_class_numbers", False):  # which float32 would round beyond 2 ** 24
            return ops.convert_to_tensor(y_true)
        return super()._targets(y_true)

    def get_config(self) -> dict[str, Any]:
        if type(self) is LossFunctionWrapper:
            options = {key: serialize_keras_object(value) for key, value in self._fn_kwargs.items()}
            return {**super().get_config(), "fn": serialize_keras_object(self.fn), **options}
        return {**super().get_config(), **self._fn_kwargs}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        if "fn" in config:
            config = deserialize_keras_object(config)
        return cls(**config)


# --- ranks, masks, weights ------------------------------------------------------------------------------------------


def _each(value: Arrays, convert: Callable[[Any], Tensor]) -> Any:
    """Return `convert` over `value`, or over the values of a dict or a list of tensors."""
    if isinstance(value, dict):
        return {key: convert(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value):
        return [convert(item) for item in value]
    return convert(value)


def same_rank(x: object, y: object, expand_rank_1: bool = True) -> tuple[Any, Any]:
    """Return two tensors whose ranks differ by one, made equal where the last axis of the larger one has size 1.

    Next to [batch, 1], [batch] becomes [batch, 1]; otherwise the axis of size 1 is removed. Anything else stays.
    """
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or x.shape is None or y.shape is None:
        return x, y
    if len(x.shape) == len(y.shape) + 1:
        larger, smaller = _matched(x, y, expand_rank_1)
        return larger, smaller
    if len(y.shape) == len(x.shape) + 1:
        larger, smaller = _matched(y, x, expand_rank_1)
        return smaller, larger
    return x, y


def _matched(larger: Tensor, smaller: Tensor, expand_rank_1: bool) -> tuple[Tensor, Tensor]:
    assert larger.shape is not None
    if larger.shape[-1] != 1:
        return larger, smaller
    if smaller.ndim == 1 and expand_rank_1:
        return larger, ops.expand_dims(smaller, -1)
    return ops.squeeze(larger, -1), smaller


def aligned(name: str, y_true: TensorLike, y_pred: TensorLike) -> tuple[Tensor, Tensor]:
    """Return targets and predictions as floating-point tensors of one shape, for a loss that compares them one by one.

    Raises:
        ValueError: the shapes differ. (NumPy's broadcasting would compare each target with several predictions.)
    """
    prediction = as_predictions(y_pred)
    target, prediction = same_rank(ops.convert_to_tensor(y_true, prediction.dtype), prediction)
    if target.shape != () and not shapes_compatible(target.shape, prediction.shape):
        raise ValueError(
            f"{name}: targets (y_true) of shape {shape_text(target.shape)} do not go with predictions (y_pred) of "
            f"shape {shape_text(prediction.shape)}: each prediction needs a target of its own. "
            + _remedy(target.shape, prediction.shape)
        )
    return target, prediction


def _remedy(target: Sequence[int | None], prediction: Sequence[int | None]) -> str:
    if len(target) == len(prediction) and target[-1] == 1:
        return (
            "If the targets are right, the last layer should have 1 unit; if they are class numbers, use "
            "sparse_categorical_crossentropy."
        )
    if len(target) == len(prediction) and target[:-1] == prediction[:-1]:
        return f"If the targets are right, the last layer should have {target[-1]} units."
    return "Give targets of the shape of the predictions."


def as_predictions(y_pred: TensorLike) -> Tensor:
    """Convert `y_pred` to a tensor of a floating-point dtype; integers become float32."""
    tensor = ops.convert_to_tensor(y_pred)
    return tensor if tensor.spec.differentiable else ops.cast(tensor, "float32")


def mark_of_class_numbers(loss: Callable[..., Tensor]) -> None:
    """Note of a loss that its targets are numbers of classes, which `LossFunctionWrapper` does not round to floats."""
    loss.takes_class_numbers = True  # pyrefly: ignore[missing-attribute] - read by `getattr`


def join_masks(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Return a mask that keeps what both masks keep; None stands for a mask that keeps all."""
    if first is None or second is None:
        return second if first is None else first
    return ops.logical_and(ops.cast(first, "bool"), ops.cast(second, "bool"))


def weights_like(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return values and weights in ranks that broadcast: weights per example get axes of size 1 behind the batch."""
    values, weights = same_rank(values, weights)
    if values.ndim is not None and weights.ndim is not None and 0 < weights.ndim < values.ndim:
        weights = ops.expand_dims(weights, tuple(range(weights.ndim, values.ndim)))
    return values, weights


def apply_mask(sample_weight: TensorLike | None, mask: TensorLike | None, dtype: DTypeLike) -> Tensor | None:
    """Return sample weights with zeros where `mask` (bools, or None) keeps nothing; None if there are neither."""
    weight = None if sample_weight is None else ops.convert_to_tensor(sample_weight, dtype)
    if mask is None:
        return weight
    kept = ops.cast(mask, dtype)
    if weight is None:
        return kept
    kept, weight = weights_like(kept, weight)
    return weight * kept


def reduce_weighted(
    values: TensorLike,
    sample_weight: TensorLike | None = None,
    mask: Tensor | None = None,
    reduction: str | None = "mean",
) -> Tensor:
    """Return values per example, weighted, masked and reduced (see `Loss`)."""
    values = ops.convert_to_tensor(values)
    weights = apply_mask(sample_weight, mask, values.dtype)
    if weights is not None:
        values, weights = weights_like(values, weights)
        values = values * weights
    if reduction in ("none", None) or values.shape in ((), (0,)):
        return values
    total = ops.sum(values)
    if reduction == "sum":
        return part_of_sum(total)
    if reduction == "mean_with_sample_weight" and weights is not None:
        return part_of_mean(total, ops.sum(weights))
    if mask is None:
        return _over_count(total, ops.size(values))
    # The mean over what the mask keeps. It is smaller than `values` where there are several values for each entry.
    kept = ops.sum(ops.cast(mask, values.dtype))
    mean = part_of_mean(total, kept)
    return mean if mask.shape == values.shape else mean * (_float(ops.size(mask)) / _float(ops.size(values)))


def _over_count(total: Tensor, count: int | Tensor) -> Tensor:
    if isinstance(count, int):
        return total / count if count else total
    return ops.divide_no_nan(total, ops.cast(count, total.dtype))


def _float(count: int | Tensor) -> float | Tensor:
    return float(count) if isinstance(count, int) else ops.cast(count, "float32")
