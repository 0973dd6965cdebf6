"""W8, our side: a table of a million rows, of which each step reads and updates some 5,000."""

from __future__ import annotations

from typing import Any

import w08_embedding as peer
from common import bench

import anabranch as ab

Record = dict[str, Any]


def anabranch(params: dict[str, Any]) -> Record:
    table, kernel, bias, ids, labels = peer.data()
    rate = peer.LR[params["opt"]]
    optimizer = ab.optimizers.SGD(rate) if params["opt"] == "sgd" else ab.optimizers.Adagrad(rate, 0.1, epsilon=1e-7)
    with ab.Graph().as_default():
        weights = [ab.Variable(value) for value in (table, kernel, bias)]
        del table
        chosen = ab.placeholder((peer.B, peer.K), "int32", "ids")
        expected = ab.placeholder((peer.B,), "int32", "labels")
        pooled = ab.ops.sum(ab.ops.take(weights[0], chosen, axis=0), axis=1)
        logits = ab.ops.matmul(pooled, weights[1]) + weights[2]
        loss = ab.ops.mean(ab.ops.sparse_categorical_crossentropy(expected, logits, from_logits=True))
        update = optimizer.minimize(loss, weights)
        following = peer.Next(ids, labels)
        with ab.Session() as session:
            step = session.make_callable([loss, update], [chosen, expected])
            return bench(lambda: step(*following())[0])


OURS = {"anabranch": anabranch}
