"""W1, our side: one LSTM layer of 512 units, gradients of weights and input, SGD.

`anabranch` calls `layers.LSTM`, batch-major as the Keras peers do; `anabranch_loop` writes the cell by hand in a
`while_loop`, the input's product inside, as a user's own cell would. The engine has no special case for either of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import w01_lstm_train as peer

import anabranch as ab

Record = dict[str, Any]
Model = Callable[[Any], Any]


def lstm_cell(z: Any, c: Any) -> tuple[Any, Any]:
    """The new h and c from z (batch, 4 * units), the sums before the gates i, f, candidate and o."""
    i, f, candidate, o = ab.ops.split(z, 4, axis=-1)
    c = ab.ops.sigmoid(f) * c + ab.ops.sigmoid(i) * ab.ops.tanh(candidate)
    return ab.ops.sigmoid(o) * ab.ops.tanh(c), c


def looped_lstm(x: Any, weights: Sequence[Any]) -> Any:
    """All outputs (steps, batch, units) of a hand-written loop over x (steps, batch, features)."""
    kernel, recurrent, bias = weights
    (steps, batch, _), units = x.shape, recurrent.shape[0]
    inputs = ab.TensorArray("float32", size=steps).unstack(x)
    outputs = ab.TensorArray("float32", size=steps, element_shape=(batch, units))
    zeros = ab.ops.zeros((batch, units))

    def body(t: Any, h: Any, c: Any, outputs: Any) -> tuple[Any, ...]:
        z = ab.ops.matmul(inputs.read(t), kernel) + ab.ops.matmul(h, recurrent) + bias
        h, c = lstm_cell(z, c)
        return t + 1, h, c, outputs.write(t, h)

    state = ab.while_loop(lambda t, *_: t < steps, body, (0, zeros, zeros, outputs))
    return state[3].stack()


def _train(
    x: ab.Variable, y: ab.Variable, weights: Sequence[ab.Variable], model: Model, params: dict[str, Any]
) -> Record:
    """Measure loss, gradients of `weights` and of x, and the step of SGD."""
    inputs = ab.convert_to_tensor(x)
    loss = ab.ops.mean((model(inputs) - y) ** 2)
    *gradients, of_input = ab.gradients(loss, [*weights, inputs])
    updates = [w.assign_sub(peer.LR * g) for w, g in zip(weights, gradients, strict=True)]
    with ab.Session() as session:
        step = session.make_callable([loss, of_input.operation, *(update.operation for update in updates)], [])
        return peer.go(lambda: step()[0], params)


def anabranch(params: dict[str, Any]) -> Record:
    x, y, *weights = peer.data(params)
    x, y = (ab.Variable(array.swapaxes(0, 1), trainable=False) for array in (x, y))
    layer = ab.layers.LSTM(peer.H, return_sequences=True)
    layer.build(x.shape)
    layer.set_weights(weights)
    with ab.Graph().as_default():
        return _train(x, y, layer.trainable_variables, layer, params)


def anabranch_loop(params: dict[str, Any]) -> Record:
    x, y, *weights = peer.data(params)
    x, y = (ab.Variable(array, trainable=False) for array in (x, y))
    with ab.Graph().as_default():
        variables = [ab.Variable(value) for value in weights]
        return _train(x, y, variables, lambda inputs: looped_lstm(inputs, variables), params)


OURS = {"anabranch": anabranch, "anabranch_loop": anabranch_loop}
