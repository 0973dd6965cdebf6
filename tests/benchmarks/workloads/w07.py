"""W7, our side: the small convnet through `model.fit`. Convolution and pooling are layers written here from `ab.ops`,
as a user would who wants their own."""

from __future__ import annotations

from typing import Any

import w07_convnet_fit as peer
from w06_mlp_fit import epochs

import anabranch as ab

Record = dict[str, Any]


class Convolution(ab.layers.Layer):
    """A 3x3 convolution with bias and relu."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.filters = filters

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(3, 3, input_shape[-1], self.filters), name="kernel")
        self.bias = self.add_weight(shape=(self.filters,), initializer="zeros", name="bias")

    def call(self, inputs: Any) -> Any:
        return ab.ops.relu(ab.ops.conv(inputs, self.kernel) + self.bias)


class Pooling(ab.layers.Layer):
    """The greatest value of each 2x2 window."""

    def call(self, inputs: Any) -> Any:
        return ab.ops.max_pool(inputs, 2)


def build(weights: list[Any]) -> ab.Sequential:
    model = ab.Sequential(
        [
            ab.Input((28, 28, 1)),
            Convolution(32),
            Convolution(64),
            Pooling(),
            ab.layers.Flatten(),
            ab.layers.Dense(128, "relu"),
            ab.layers.Dense(10),
        ]
    )
    model.set_weights(weights)
    model.compile("adam", ab.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def anabranch(params: dict[str, Any]) -> Record:
    x, y, weights = peer.data()
    model = build(weights)

    def fit(samples: int | None = None) -> Any:
        return model.fit(x[:samples], y[:samples], batch_size=peer.B, epochs=1, shuffle=False, verbose=0)

    return epochs(fit, lambda: fit(3 * peer.B).history["loss"][0], peer.B, len(x))


OURS = {"anabranch": anabranch}
