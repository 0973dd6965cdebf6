"""W27, our side: a U-shaped convnet."""

from __future__ import annotations

from typing import Any

import w27_u_net as peer
from common import bench

import anabranch as ab
from anabranch import ops

Record = dict[str, Any]


class Ops:
    """The functions of which the peer's description of the network is made."""

    relu = staticmethod(ops.relu)

    @staticmethod
    def conv(x: Any, w: Any) -> Any:
        return ops.conv(x, w, padding="same")

    @staticmethod
    def halved(x: Any) -> Any:
        return ops.max_pool(x, 2)

    @staticmethod
    def doubled(x: Any, w: Any) -> Any:
        return ops.conv_transpose(x, w, strides=2)

    @staticmethod
    def joined(a: Any, b: Any) -> Any:
        return ops.concatenate([a, b], axis=-1)


def anabranch(params: dict[str, Any]) -> Record:
    """Milliseconds of a step."""
    del params
    images, targets, kernels = peer.data()
    with ab.Graph().as_default(), ab.Session() as session:
        x, y = ab.placeholder(images.shape, "float32", "x"), ab.placeholder(targets.shape, "float32", "y")
        weights = [ab.Variable(kernel) for kernel in kernels]
        loss = ops.mean(ops.square(peer.outputs(x, weights, Ops) - y))
        update = ab.optimizers.SGD(peer.LR).minimize(loss, weights)
        step = session.make_callable([loss, update], [x, y])
        return bench(lambda: step(images, targets)[0])


OURS = {"anabranch": anabranch}
