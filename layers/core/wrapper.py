"""`Wrapper`: the base of layers around a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from .layer import Layer
from .layer_config import config_from_signature

if TYPE_CHECKING:
    from .options import LayerOptions


@config_from_signature()
class Wrapper(Layer):
    """The base of layers that hold one layer and change how it is called: a subclass defines `call`.

    Args:
        layer: the layer inside; built with the wrapper, for the same input.

    Raises:
        ValueError: `layer` is not a layer.

    >>> import anabranch as ab
    >>> class Twice(ab.layers.Wrapper):
    ...     def call(self, inputs):
    ...         return self.layer(self.layer(inputs))
    >>> Twice(ab.layers.Rescaling(3.0))([[1.0]])
    Tensor([[9.]], dtype=float32)
    """

    def __init__(self, layer: Layer, **kwargs: Unpack[LayerOptions]) -> None:
        if not isinstance(layer, Layer):
            raise ValueError(f"{type(self).__name__} takes a layer, got {layer!r} of type {type(layer).__name__}.")
        super().__init__(**kwargs)
        self.layer: Any = layer  # of the user's class

    def build(self, input_shape: Sequence[int | None] | None = None) -> None:
        if not self.layer.built:
            self.layer.build(input_shape)
            self.layer.built = True
