"""W25, our side: a click model, whose tables get gradients for the rows that were used."""

from __future__ import annotations

from typing import Any

import w25_click_model as peer
from common import bench

import anabranch as ab
from anabranch import ops

Record = dict[str, Any]


class Ops:
    """The functions of which the peer's description of the model is made."""

    relu = staticmethod(ops.relu)
    concatenate = staticmethod(ops.concatenate)

    @staticmethod
    def turned(x: Any) -> Any:
        return ops.transpose(x, (0, 2, 1))

    @staticmethod
    def chosen(x: Any) -> Any:
        return ops.take(ops.reshape(x, (peer.B, -1)), peer.PLACES, axis=1)


def anabranch(params: dict[str, Any]) -> Record:
    """Milliseconds of a step."""
    del params
    numbers, ids, clicks, table, values = peer.data()
    following = peer.Next(numbers, ids, clicks)
    with ab.Graph().as_default(), ab.Session() as session:
        x = ab.placeholder(numbers.shape[1:], "float32", "x")
        i = ab.placeholder(ids.shape[1:], "int32", "i")
        y = ab.placeholder(clicks.shape[1:], "float32", "y")
        rows, weights = ab.Variable(table), [ab.Variable(value) for value in values]
        scores = peer.logits(x, ops.take(rows, i, axis=0), weights, Ops)
        loss = ops.mean(ops.relu(scores) - scores * y + ops.log1p(ops.exp(-ops.abs(scores))))
        update = ab.optimizers.SGD(peer.LR).minimize(loss, [rows, *weights])
        step = session.make_callable([loss, update], [x, i, y])
        return bench(lambda: step(*following())[0])


OURS = {"anabranch": anabranch}
