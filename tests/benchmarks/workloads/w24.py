"""W24, our side: a prediction for one row by a model of two LSTMs."""

from __future__ import annotations

from typing import Any

import w24_predict as peer
from common import bench

import anabranch as ab

Record = dict[str, Any]


def anabranch(params: dict[str, Any]) -> Record:
    """Milliseconds of a prediction, by `predict_on_batch`."""
    del params
    x, weights = peer.data()
    model = ab.Sequential(
        [
            ab.Input((peer.T, peer.UNITS)),
            ab.layers.LSTM(peer.UNITS, return_sequences=True),
            ab.layers.LSTM(peer.UNITS),
            ab.layers.Dense(peer.CLASSES),
        ]
    )
    model.set_weights(weights)
    return bench(lambda: model.predict_on_batch(x).sum(), max_reps=peer.REPS)


OURS = {"anabranch": anabranch}
