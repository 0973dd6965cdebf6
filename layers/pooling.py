"""Global pooling over steps."""

from __future__ import annotations

from typing import Any

from ..engine import ops
from ..engine.graph import Tensor
from .input_spec import InputSpec
from .layer import Layer
from .shaping import check_data_format


class _GlobalPooling1D(Layer):
    """Base: ``(batch, steps, features)`` to ``(batch, features)``."""

    def __init__(self, data_format: str | None = None, keepdims: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = check_data_format(data_format)
        self.keepdims = keepdims
        self.input_spec = InputSpec(ndim=3)

    @property
    def _steps_axis(self) -> int:
        return 1 if self.data_format == "channels_last" else 2

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "data_format": self.data_format, "keepdims": self.keepdims}


class GlobalAveragePooling1D(_GlobalPooling1D):
    """The mean over the steps of ``(batch, steps, features)``; with a mask, over the steps where it is True.

    Args:
        data_format: ``"channels_first"`` for ``(batch, features, steps)``.
        keepdims: keep an axis of size 1 in the steps' place.
    """

    def __init__(self, data_format: str | None = None, keepdims: bool = False, **kwargs: Any) -> None:
        super().__init__(data_format, keepdims, **kwargs)
        self.supports_masking = True

    def call(self, inputs: Any, mask: Any = None) -> Tensor:
        axis = self._steps_axis
        if mask is None:
            return ops.mean(inputs, axis=axis, keepdims=self.keepdims)
        weights = ops.expand_dims(ops.cast(mask, inputs.dtype), 2 if axis == 1 else 1)
        total = ops.sum(inputs * weights, axis=axis, keepdims=self.keepdims)
        return total / ops.sum(weights, axis=axis, keepdims=self.keepdims)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """None: there are no steps left to mask."""
        return None


class GlobalMaxPooling1D(_GlobalPooling1D):
    """The largest value of each feature over the steps of ``(batch, steps, features)``.

    Args:
        data_format: ``"channels_first"`` for ``(batch, features, steps)``.
        keepdims: keep an axis of size 1 in the steps' place.
    """

    def call(self, inputs: Any) -> Tensor:
        return ops.max(inputs, axis=self._steps_axis, keepdims=self.keepdims)
