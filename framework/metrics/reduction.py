"""Metrics that are sums and means: `Sum`, `Mean`, and `MeanMetricWrapper` for the mean of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from ...engine import ops
from ...engine.common.dtypes import DTypeLike
from ...engine.graph import Tensor
from ...engine.objects.registry import deserialize_keras_object, serialize_keras_object
from ...engine.ops.base import TensorLike
from ..calling import mask_of
from ..losses.base import apply_mask, same_rank
from .base import Metric


class Sum(Metric):
    """The (weighted) sum of values.

    >>> import anabranch as ab
    >>> metric = ab.metrics.Sum()
    >>> metric.update_state([1.0, 3.0, 5.0], sample_weight=[1.0, 1.0, 0.0])
    >>> float(metric.result())
    4.0
    """

    def __init__(self, name: str | None = "sum", dtype: DTypeLike = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.total = self.add_variable(name="total")

    def update_state(self, values: TensorLike, sample_weight: TensorLike | None = None) -> None:
        values, _ = per_sample(values, sample_weight, ops.sum, self.dtype)
        self.total.assign_add(ops.sum(values))

    def result(self) -> Tensor:
        return self.total.value


class Mean(Metric):
    """The (weighted) mean of values over all batches.

    >>> import anabranch as ab
    >>> metric = ab.metrics.Mean()
    >>> metric.update_state([1.0, 3.0])
    >>> metric.update_state([8.0])
    >>> float(metric.result())
    4.0
    """

    def __init__(self, name: str | None = "mean", dtype: DTypeLike = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.total = self.add_variable(name="total")
        self.count = self.add_variable(name="count")

    def update_state(self, values: TensorLike, sample_weight: TensorLike | None = None) -> None:
        """Add values [batch, ...], whose mean counts for each example, with weights [batch] or [batch, ...]."""
        values, weight = per_sample(values, sample_weight, ops.mean, self.dtype)
        self.total.assign_add(ops.sum(values))
        self.count.assign_add(ops.cast(_samples(values) if weight is None else ops.sum(weight), self.dtype))

    def result(self) -> Tensor:
        return ops.divide_no_nan(self.total, self.count)


def _samples(values: Tensor) -> Tensor | int:
    return ops.shape(values)[0] if values.shape != () else 1


class MeanMetricWrapper(Mean):
    """The mean of ``fn(y_true, y_pred, **kwargs)``, which gives values per example.

    Args:
        fn: the function, written over ops.
        name: by default that of the function.
        dtype: of the result.
        **kwargs: passed on to `fn`.
    """

    def __init__(
        self, fn: Callable[..., Tensor], name: str | None = None, dtype: DTypeLike = None, **kwargs: object
    ) -> None:
        super().__init__(name=name or getattr(fn, "__name__", None), dtype=dtype)
        self._fn = fn
        self._fn_kwargs = kwargs

    def update_state(self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None) -> None:
        """Add a batch. A mask on the predictions is applied."""
        values = self._fn(y_true, y_pred, **self._fn_kwargs)
        super().update_state(values, apply_mask(sample_weight, mask_of(y_pred), self.dtype))

    def get_config(self) -> dict[str, Any]:
        if type(self) is MeanMetricWrapper:
            options = {key: serialize_keras_object(value) for key, value in self._fn_kwargs.items()}
            return {**super().get_config(), "fn": serialize_keras_object(self._fn), **options}
        return {**super().get_config(), **self._fn_kwargs}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        if "fn" in config:
            config = deserialize_keras_object(config)
        return cls(**config)


def per_sample(
    values: TensorLike, sample_weight: TensorLike | None, reduce: Callable[..., Tensor], dtype: str
) -> tuple[Tensor, Tensor | None]:
    """Return values [batch, ...] reduced to one for each example, weighted, and the reduced weights.

    Weights [batch] apply to the reduced values; weights of more axes before the reduction.
    """
    tensor = ops.cast(values, dtype)
    if sample_weight is None:
        return _over_rest(tensor, reduce), None
    tensor, weight = same_rank(tensor, apply_mask(sample_weight, mask_of(values), dtype))
    if tensor.ndim is not None and weight.ndim is not None and 0 < weight.ndim < tensor.ndim:
        tensor = reduce(tensor, axis=tuple(range(weight.ndim, tensor.ndim)))
    higher = weight.ndim is not None and tensor.ndim is not None and weight.ndim > tensor.ndim
    if weight.shape != tensor.shape and not higher:
        weight = ops.broadcast_to(weight, ops.shape(tensor))
    return _over_rest(tensor * weight, reduce), _over_rest(weight, reduce)


def _over_rest(values: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
    """Return `values` reduced over all axes but the first."""
    if values.ndim is None or values.ndim < 2:
        return values
    return reduce(values, axis=tuple(range(1, values.ndim)))
