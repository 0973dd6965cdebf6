"""W28, our side: a minimal gated unit written by hand from `ab.ops` in a `while_loop`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import w28_minimal_gated_unit as peer
from common import bench

import anabranch as ab
from anabranch import ops

Record = dict[str, Any]


def loss(x: Any, y: Any, weights: Sequence[Any]) -> Any:
    """Mean square of (outputs - y), the outputs of the cell run over x (steps, batch, units)."""
    wf, uf, bf, wc, uc, bc = weights
    inputs = ab.TensorArray("float32", size=peer.T, element_shape=(peer.B, peer.H)).unstack(x)
    outputs = ab.TensorArray("float32", size=peer.T, element_shape=(peer.B, peer.H))

    def body(t: Any, h: Any, outputs: Any) -> tuple[Any, ...]:
        taken = inputs.read(t)
        f = ops.sigmoid(taken @ wf + h @ uf + bf)
        h = (1 - f) * h + f * ops.tanh(taken @ wc + (f * h) @ uc + bc)
        return t + 1, h, outputs.write(t, h)

    state = ab.while_loop(lambda t, h, outputs: t < peer.T, body, (0, ops.zeros((peer.B, peer.H)), outputs))
    return ops.mean((state[2].stack() - y) ** 2)


def anabranch(params: dict[str, Any]) -> Record:
    """Milliseconds of a step."""
    del params
    x, y, weights = peer.data()
    with ab.Graph().as_default(), ab.Session() as session:
        variables = [ab.Variable(value) for value in weights]
        value = loss(ab.Variable(x, trainable=False), ab.Variable(y, trainable=False), variables)
        gradients = ab.gradients(value, variables)
        updates = [v.assign_sub(peer.LR * g) for v, g in zip(variables, gradients, strict=True)]
        step = session.make_callable([value, *updates], [])
        return bench(lambda: step()[0])


OURS = {"anabranch": anabranch}
