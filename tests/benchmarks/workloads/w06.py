"""W6, our side: the MLP through the public `model.fit`, line for line what the Keras peers do."""

from __future__ import annotations

from typing import Any

import w06_mlp_fit as peer

import anabranch as ab

Record = dict[str, Any]


def build(weights: list[Any]) -> ab.Sequential:
    model = ab.Sequential(
        [
            ab.Input((784,)),
            ab.layers.Dense(512, "relu"),
            ab.layers.Dense(512, "relu"),
            ab.layers.Dense(10),
        ]
    )
    model.set_weights(weights)
    model.compile("adam", ab.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def anabranch(params: dict[str, Any]) -> Record:
    batch = params["B"]
    x, y, weights = peer.data(batch)
    model = build(weights)

    def fit(samples: int | None = None) -> Any:
        return model.fit(x[:samples], y[:samples], batch_size=batch, epochs=1, shuffle=False, verbose=0)

    return peer.epochs(fit, lambda: fit(3 * batch).history["loss"][0], batch, len(x))


OURS = {"anabranch": anabranch}
