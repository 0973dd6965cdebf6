"""W15, our side: AlexNet, Overfeat, OxfordNet and GoogleNet as `ab.Sequential`, a step by `train_on_batch`."""

from __future__ import annotations

from typing import Any

import w15_convnets as peer
from common import bench

import anabranch as ab

Record = dict[str, Any]
LAYERS = {
    "pad": ab.layers.ZeroPadding2D,
    "conv": lambda filters, size, strides, padding: ab.layers.Conv2D(
        filters, size, strides, padding, activation="relu"
    ),
    "max": lambda size, padding: ab.layers.MaxPooling2D(size, 2, padding),
    "mean": ab.layers.GlobalAveragePooling2D,
    "flatten": ab.layers.Flatten,
    "dense": ab.layers.Dense,
    "inception": ab.layers.InceptionBlock,
}


def build(name: str) -> ab.Sequential:
    """One of the networks of `peer.NETS`."""
    size, layers = peer.NETS[name]
    return ab.Sequential([ab.Input((size, size, 3)), *[LAYERS[kind](*args) for kind, *args in layers]])


def compiled(name: str, batch: int) -> tuple[ab.Sequential, Any, Any]:
    """The model with the weights that all share, and its batch."""
    x, y, weights = peer.data(name, batch)
    model = build(name)
    model.set_weights(weights)
    model.compile(ab.optim.SGD(peer.LR), ab.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, x, y


def anabranch(params: dict[str, Any]) -> Record:
    model, x, y = compiled(params["model"], params["B"])

    def step() -> Any:
        model.reset_metrics()  # the loss of this step, and no mean
        return model.train_on_batch(x, y)

    return bench(step)


OURS = {"anabranch": anabranch}
