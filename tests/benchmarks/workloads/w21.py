"""W21, our side: a neural ODE, integrated in a loop of the graph, through which the gradient goes."""

from __future__ import annotations

from typing import Any

import w21_neural_ode as peer
from common import bench

import anabranch as ab
from anabranch import ops

Record = dict[str, Any]


def anabranch(params: dict[str, Any]) -> Record:
    """Milliseconds of a step."""
    del params
    states, targets, values = peer.data()
    with ab.Graph().as_default(), ab.Session() as session:
        x, y = ab.placeholder(states.shape, "float32", "x"), ab.placeholder(targets.shape, "float32", "y")
        weights = [ab.Variable(value) for value in values]

        def body(i: Any, x: Any) -> tuple[Any, Any]:
            return i + 1, peer.advanced(x, weights, ops.tanh)

        _, final = ab.while_loop(lambda i, _: i < peer.STEPS, body, (0, x))
        loss = ops.mean(ops.square(final - y))
        update = ab.optimizers.SGD(peer.LR).minimize(loss, weights)
        step = session.make_callable([loss, update], [x, y])
        return bench(lambda: step(states, targets)[0])


OURS = {"anabranch": anabranch}
