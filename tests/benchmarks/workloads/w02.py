"""W2, our side: a layer-normalised LSTM cell written by hand from `ab.ops` in a `while_loop`, as the TensorFlow peers
write it: no layer of ours, nothing special-cased. Forward, gradients and SGD in one callable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import w02_custom_cell as peer
from common import bench

import anabranch as ab

Record = dict[str, Any]
UNITS = peer.H
EPSILON = 1e-5


def _normalised_gates(z: Any, gamma: Any, beta: Any) -> Sequence[Any]:
    """Layer-normalise each of the four gates of z (batch, 4 * units) and return them apart."""
    z = ab.ops.reshape(z, (-1, 4, UNITS))
    mean = ab.ops.mean(z, axis=-1, keepdims=True)
    variance = ab.ops.mean((z - mean) ** 2, axis=-1, keepdims=True)
    z = (z - mean) * ab.ops.rsqrt(variance + EPSILON) * gamma + beta
    return ab.ops.unstack(z, 4, axis=1)


def loss(x: Any, y: Any, weights: Sequence[Any], steps: int, batch: int) -> Any:
    """Mean square of (outputs - y), the outputs of the cell run over x (steps, batch, units)."""
    kernel, recurrent, bias, gamma, beta = weights
    inputs = ab.TensorArray("float32", size=steps, element_shape=(batch, UNITS)).unstack(x)
    outputs = ab.TensorArray("float32", size=steps, element_shape=(batch, UNITS))
    zeros = ab.ops.zeros((batch, UNITS))

    def body(t: Any, h: Any, c: Any, outputs: Any) -> tuple[Any, ...]:
        z = ab.ops.matmul(inputs.read(t), kernel) + ab.ops.matmul(h, recurrent) + bias
        i, f, g, o = _normalised_gates(z, gamma, beta)
        c = ab.ops.sigmoid(f) * c + ab.ops.sigmoid(i) * ab.ops.tanh(g)
        h = ab.ops.sigmoid(o) * ab.ops.tanh(c)
        return t + 1, h, c, outputs.write(t, h)

    state = ab.while_loop(lambda t, h, c, outputs: t < steps, body, (0, zeros, zeros, outputs), parallel_iterations=32)
    return ab.ops.mean((state[3].stack() - y) ** 2)


def anabranch(params: dict[str, Any]) -> Record:
    x, y, weights = peer.data(params)
    with ab.Graph().as_default():
        x_held, y_held = ab.Variable(x, trainable=False), ab.Variable(y, trainable=False)
        variables = [ab.Variable(value) for value in weights]
        value = loss(x_held, y_held, variables, params["T"], params["B"])
        gradients = ab.gradients(value, variables)
        updates = [v.assign_sub(peer.LR * g) for v, g in zip(variables, gradients, strict=True)]
        with ab.Session() as session:
            step = session.make_callable([value, *updates], [])
            return bench(lambda: step()[0])


OURS = {"anabranch": anabranch}
