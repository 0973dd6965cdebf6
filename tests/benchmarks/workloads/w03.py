"""W3, our side: an LSTM over sequences of 10 to 200 steps, eight padded batches in turn; the steps that count.

`anabranch` calls `layers.LSTM` with a mask, batch-major as its users do; `anabranch_loop` writes the loop up to the
longest sequence by hand, as the TensorFlow peers do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import w03_dynamic_rnn as peer
from w01 import lstm_cell

import anabranch as ab

Record = dict[str, Any]
Loss = Callable[[Any, Any, Any], Any]


def _train(arrays: Sequence[Any], weights: Sequence[ab.Variable], loss_of: Loss) -> Record:
    """Measure steps on the batches of `arrays` (inputs, targets, lengths), fed in turn."""
    feeds = [ab.placeholder(array.shape[1:], array.dtype) for array in arrays]
    loss = loss_of(*feeds)
    gradients = ab.gradients(loss, list(weights))
    updates = [w.assign_sub(peer.LR * g) for w, g in zip(weights, gradients, strict=True)]
    following = peer.Cycle(*arrays)
    with ab.Session() as session:
        step = session.make_callable([loss, *(update.operation for update in updates)], feeds)
        return peer.go(lambda: step(*following())[0], arrays[2])


def anabranch(params: dict[str, Any]) -> Record:
    x, y, lengths, weights = peer.data()
    x, y = (np.ascontiguousarray(array.swapaxes(1, 2)) for array in (x, y))
    layer = ab.layers.LSTM(peer.H, return_sequences=True)
    layer.build(x.shape[1:])
    layer.set_weights(weights)

    def loss_of(x: Any, y: Any, lengths: Any) -> Any:
        counts = ab.ops.arange(peer.T) < ab.ops.expand_dims(lengths, -1)
        errors = ab.ops.sum((layer(x, mask=counts) - y) ** 2, axis=-1)
        return ab.ops.sum(ab.ops.where(counts, errors, 0.0)) / ab.ops.cast(ab.ops.sum(lengths) * peer.H, "float32")

    with ab.Graph().as_default():
        return _train((x, y, lengths), layer.trainable_variables, loss_of)


def _loop(x: Any, lengths: Any, longest: Any, weights: Sequence[Any]) -> Any:
    """Outputs (longest, batch, units); zero past each end, where the states stay as they are."""
    kernel, recurrent, bias = weights
    inputs = ab.TensorArray("float32", size=longest).unstack(x[:longest])
    outputs = ab.TensorArray("float32", size=longest, element_shape=(peer.B, peer.H))
    zeros = ab.ops.zeros((peer.B, peer.H))

    def body(t: Any, h: Any, c: Any, outputs: Any) -> tuple[Any, ...]:
        z = ab.ops.matmul(inputs.read(t), kernel) + ab.ops.matmul(h, recurrent) + bias
        new_h, new_c = lstm_cell(z, c)
        counts = ab.ops.expand_dims(t < lengths, -1)
        outputs = outputs.write(t, ab.ops.where(counts, new_h, zeros))
        return t + 1, ab.ops.where(counts, new_h, h), ab.ops.where(counts, new_c, c), outputs

    state = ab.while_loop(lambda t, *_: t < longest, body, (0, zeros, zeros, outputs))
    return state[3].stack()


def anabranch_loop(params: dict[str, Any]) -> Record:
    x, y, lengths, weights = peer.data()

    with ab.Graph().as_default():
        variables = [ab.Variable(value) for value in weights]

        def loss_of(x: Any, y: Any, lengths: Any) -> Any:
            longest = ab.ops.max(lengths)
            counts = ab.ops.cast(ab.ops.expand_dims(ab.ops.arange(longest), -1) < lengths, "float32")
            errors = ab.ops.sum((_loop(x, lengths, longest, variables) - y[:longest]) ** 2, axis=-1)
            return ab.ops.sum(errors * counts) / ab.ops.cast(ab.ops.sum(lengths) * peer.H, "float32")

        return _train((x, y, lengths), variables, loss_of)


OURS = {"anabranch": anabranch, "anabranch_loop": anabranch_loop}
