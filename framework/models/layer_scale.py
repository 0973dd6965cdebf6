"""Layers of ``keras.applications`` that Keras's files name: `LayerScale` of ConvNeXt, `CustomScaleLayer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ...engine.graph import Tensor
from ...engine.objects.initializers import Constant
from ...engine.objects.registry import register_builtins
from ...layers.core.layer import Layer

if TYPE_CHECKING:
    from ...layers.core.options import LayerOptions


class LayerScale(Layer):
    """Features times a weight each, which starts small.

    Touvron, Cord, Sablayrolles, Synnaeve and Jegou, "Going Deeper with Image Transformers", ICCV 2021.

    Args:
        init_values: what all the weights start with.
        projection_dim: how many features there are.
    """

    def __init__(self, init_values: float, projection_dim: int, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.init_values, self.projection_dim = init_values, projection_dim

    def build(self, input_shape: Sequence[int | None] | None = None) -> None:
        self.gamma = self.add_weight(shape=(self.projection_dim,), initializer=Constant(self.init_values), name="gamma")

    def call(self, x: Tensor) -> Tensor:
        return x * self.gamma

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "init_values": self.init_values, "projection_dim": self.projection_dim}


class CustomScaleLayer(Layer):
    """Add features to others, times a number: a residual connection of InceptionResNetV2.

    Args:
        scale: the number. The layer takes two tensors of a shape, of which the second one is scaled.
    """

    def __init__(self, scale: float, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.scale = scale

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        first, second = inputs
        return first + second * self.scale

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}


register_builtins("keras.src.applications.convnext", {"LayerScale": LayerScale})
register_builtins("keras.src.applications.inception_resnet_v2", {"CustomScaleLayer": CustomScaleLayer})
