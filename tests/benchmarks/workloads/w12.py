"""W12, our side: adaptive computation time, a loop whose number of rounds the data decides inside a loop over steps,
with gradients through both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import w12_act as peer

import anabranch as ab

Record = dict[str, Any]
ENOUGH = 1 - peer.EPS


def _pondered(x: Any, h: Any, weights: Sequence[Any]) -> tuple[Any, Any]:
    """The mean state (batch, units) and the remainders (batch, 1) of one step, from its projected input x."""
    recurrent, bias, halting, halting_bias = weights
    none = ab.ops.zeros((peer.B, 1))

    def ponder(k: Any, h: Any, halted: Any, mean: Any, remainder: Any) -> tuple[Any, ...]:
        h = ab.ops.tanh(x + ab.ops.matmul(h, recurrent) + bias)
        chance = ab.ops.sigmoid(ab.ops.matmul(h, halting) + halting_bias)
        runs = halted < ENOUGH
        last = ab.ops.logical_and(runs, halted + chance >= ENOUGH)
        mean = mean + ab.ops.where(last, 1 - halted, ab.ops.where(runs, chance, 0.0)) * h
        remainder = remainder + ab.ops.where(last, 1 - halted, 0.0)
        return k + 1, h, ab.ops.where(runs, halted + chance, halted), mean, remainder

    def unfinished(k: Any, h: Any, halted: Any, *_: Any) -> Any:
        return ab.ops.logical_and(k < peer.MAX, ab.ops.any(halted < ENOUGH))

    state = ab.while_loop(unfinished, ponder, (0, h, none, ab.ops.zeros((peer.B, peer.H)), none))
    return state[3], state[4]


def loss(x: Any, y: Any, weights: Sequence[Any]) -> Any:
    """Mean square of (mean states - y) and a hundredth of the mean remainder."""
    projected = ab.ops.matmul(x, weights[0])
    inputs = ab.TensorArray("float32", size=peer.T, element_shape=(peer.B, peer.H)).unstack(projected)
    outputs = ab.TensorArray("float32", size=peer.T, element_shape=(peer.B, peer.H))

    def body(t: Any, h: Any, outputs: Any, remainders: Any) -> tuple[Any, ...]:
        h, remainder = _pondered(inputs.read(t), h, weights[1:])
        return t + 1, h, outputs.write(t, h), remainders + ab.ops.mean(remainder)

    start = (0, ab.ops.zeros((peer.B, peer.H)), outputs, ab.constant(0.0))
    _, _, outputs, remainders = ab.while_loop(lambda t, *_: t < peer.T, body, start)
    return ab.ops.mean((outputs.stack() - y) ** 2) + 0.01 * remainders / peer.T


def anabranch(params: dict[str, Any]) -> Record:
    x, y, weights = peer.data()
    with ab.Graph().as_default():
        x_held, y_held = ab.Variable(x, trainable=False), ab.Variable(y, trainable=False)
        variables = [ab.Variable(value) for value in weights]
        value = loss(x_held, y_held, variables)
        gradients = ab.gradients(value, variables)
        updates = [v.assign_sub(peer.LR * g) for v, g in zip(variables, gradients, strict=True)]
        with ab.Session() as session:
            step = session.make_callable([value, *(update.operation for update in updates)], [])
            return peer.go(lambda: step()[0])


OURS = {"anabranch": anabranch}
