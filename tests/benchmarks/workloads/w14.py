"""W14, our side: a binary Tree-LSTM by `layers.TreeLSTM`; how the nodes are laid out in levels is found in the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import w14_tree_lstm as peer
from common import bench

import anabranch as ab

Record = dict[str, Any]


def padded() -> tuple[Any, Any, Any, Any, Any]:
    """Features, children, mask, targets and weights; the trees padded to the nodes of the largest."""
    trees, targets, weights = peer.data()
    nodes = max(len(children) for children, _ in trees)
    features = np.zeros((len(trees), nodes, peer.F), "float32")
    children = np.full((len(trees), nodes, 2), -1, "int32")
    mask = np.zeros((len(trees), nodes), bool)
    for row, (links, values) in enumerate(trees):
        features[row, : len(links)], children[row, : len(links)], mask[row, : len(links)] = values, links, True
    return features, children, mask, targets, weights


def anabranch(params: dict[str, Any]) -> Record:
    features, children, mask, targets, weights = padded()
    layer = ab.layers.TreeLSTM(peer.U, arity=2)
    layer.build(features.shape, children.shape)
    layer.set_weights(weights)
    with ab.Graph().as_default():
        fed = [ab.placeholder((None, *value.shape[1:]), value.dtype) for value in (features, children, mask)]
        made = layer(fed[0], fed[1], mask=fed[2])
        loss = ab.ops.mean((made - targets) ** 2)
        update = ab.optim.SGD(peer.LR).minimize(loss, layer.trainable_variables)
        with ab.Session() as session:
            step = session.make_callable([loss, update], fed)
            return bench(lambda: step(features, children, mask)[0])


OURS = {"anabranch": anabranch}
