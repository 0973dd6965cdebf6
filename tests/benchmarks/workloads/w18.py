"""W18 and W19, our side: a depthwise separable convnet and a residual one, written by hand."""

from __future__ import annotations

from typing import Any

import w18_small_convnets as peer
from common import bench

import anabranch as ab
from anabranch import ops

Record = dict[str, Any]


class Ops:
    """The functions of which the peer's description of the networks is made."""

    relu = staticmethod(ops.relu)

    @staticmethod
    def conv(x: Any, w: Any, stride: int) -> Any:
        return ops.conv(x, w, strides=stride, padding="same")

    @staticmethod
    def depthwise(x: Any, w: Any, stride: int) -> Any:
        return ops.depthwise_conv(x, w, strides=stride, padding="same")

    @staticmethod
    def mean(x: Any) -> Any:
        return ops.mean(x, axis=(1, 2))

    @staticmethod
    def normalised(x: Any, scale: Any, offset: Any) -> Any:
        mean, variance = ops.moments(x, axes=(0, 1, 2))
        return (x - mean) * ops.rsqrt(variance + peer.EPSILON) * scale + offset


def anabranch(params: dict[str, Any]) -> Record:
    """Milliseconds of a step."""
    net = params["net"]
    images, classes, values = peer.data(net)
    with ab.Graph().as_default(), ab.Session() as session:
        x, y = ab.placeholder(images.shape, "float32", "x"), ab.placeholder(classes.shape, "int32", "y")
        weights = [ab.Variable(value) for value in values]
        scores = peer.logits(net, x, weights, Ops)
        loss = ops.mean(ops.sparse_categorical_crossentropy(y, scores, from_logits=True))
        update = ab.optimizers.SGD(peer.LR[net]).minimize(loss, weights)
        step = session.make_callable([loss, update], [x, y])
        return bench(lambda: step(images, classes)[0])


OURS = {"anabranch": anabranch}
