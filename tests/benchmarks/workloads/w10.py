"""W10, our side: a mixture of experts, top 2 of 8, the tokens parted by expert and their results summed back, no token
dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import w10_moe as peer
from common import bench

import anabranch as ab

Record = dict[str, Any]


def _mixture(x: Any, weights: Sequence[Any]) -> Any:
    """The outputs (tokens, features) for x (tokens, features)."""
    router, first, second = weights
    values, experts = ab.ops.top_k(ab.ops.matmul(x, router), 2)
    gates = ab.ops.reshape(ab.ops.softmax(values), (-1,))
    parts = ab.ops.dynamic_partition(ab.ops.arange(2 * peer.N), ab.ops.reshape(experts, (-1,)), peer.E)
    results = []
    for expert, places in enumerate(parts):
        hidden = ab.ops.relu(ab.ops.matmul(ab.ops.take(x, places // 2, axis=0), first[expert]))
        gate = ab.ops.expand_dims(ab.ops.take(gates, places, axis=0), -1)
        results.append(ab.ops.matmul(hidden, second[expert]) * gate)
    tokens = ab.ops.concatenate(parts, axis=0) // 2
    return ab.ops.segment_sum(ab.ops.concatenate(results, axis=0), tokens, peer.N)


def anabranch(params: dict[str, Any]) -> Record:
    x, y, weights = peer.data()
    with ab.Graph().as_default():
        x_held, y_held = ab.Variable(x, trainable=False), ab.Variable(y, trainable=False)
        variables = [ab.Variable(value) for value in weights]
        loss = ab.ops.mean((_mixture(x_held, variables) - y_held) ** 2)
        gradients = [ab.convert_to_tensor(gradient) for gradient in ab.gradients(loss, variables)]
        updates = [v.assign_sub(peer.LR * g) for v, g in zip(variables, gradients, strict=True)]
        with ab.Session() as session:
            step = session.make_callable([loss, *(update.operation for update in updates)], [])
            return bench(lambda: step()[0])


OURS = {"anabranch": anabranch}
