"""`LayerScale`, a layer of ``keras.applications.convnext`` that Keras's files name."""

from __future__ import annotations

from typing import Any

from ...engine.objects.initializers import Constant
from ...engine.objects.registry import register_builtins
from ...layers.core.layer import Layer


class LayerScale(Layer):
    """Features times a weight each, which starts small.

    Touvron, Cord, Sablayrolles, Synnaeve and Jegou, "Going Deeper with Image Transformers", ICCV 2021.

    Args:
        init_values: what all the weights start with.
        projection_dim: how many features there are.
    """

    def __init__(self, init_values: float, projection_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.init_values, self.projection_dim = init_values, projection_dim

    def build(self, input_shape: Any = None) -> None:
        self.gamma = self.add_weight(shape=(self.projection_dim,), initializer=Constant(self.init_values), name="gamma")

    def call(self, x: Any) -> Any:
        return x * self.gamma

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "init_values": self.init_values, "projection_dim": self.projection_dim}


register_builtins("keras.src.applications.convnext", {"LayerScale": LayerScale})
