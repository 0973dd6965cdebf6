"""The base of configs of quantisation."""

from __future__ import annotations

from typing import Any, Self

from ...engine.objects.registry import deserialize_keras_object, serialize_keras_object
from .quantizer import Quantizer


class QuantizationConfig:
    """Base: a mode, and the quantizers of weights and activations.

    Args:
        weight_quantizer: None for the mode's own.
        activation_quantizer: None to keep activations as they are.

    >>> import anabranch as ab
    >>> isinstance(ab.quantizers.Int8QuantizationConfig(), ab.quantizers.QuantizationConfig)
    True
    """

    def __init__(
        self, weight_quantizer: Quantizer | None = None, activation_quantizer: Quantizer | None = None
    ) -> None:
        self.weight_quantizer = weight_quantizer
        self.activation_quantizer = activation_quantizer

    @property
    def mode(self) -> str:
        """The mode."""
        raise NotImplementedError(
            "Subclasses must implement this property. Do not instantiate QuantizationConfig directly."
        )

    def get_config(self) -> dict[str, Any]:
        return {
            "weight_quantizer": serialize_keras_object(self.weight_quantizer),
            "activation_quantizer": serialize_keras_object(self.activation_quantizer),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make a config from what `get_config` gave."""
        quantizers = {
            name: deserialize_keras_object(config.get(name)) for name in ("weight_quantizer", "activation_quantizer")
        }
        return cls(**{**config, **quantizers})
