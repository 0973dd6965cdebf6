"""W16, our side: a language model by `layers`, its softmax over all words or by `ab.nn.sampled_softmax_loss`."""

from __future__ import annotations

from typing import Any

import w16_softmax as peer
from common import bench

import anabranch as ab
from anabranch import layers

Record = dict[str, Any]


def anabranch(params: dict[str, Any]) -> Record:
    weights, batches = peer.data()
    words = layers.Embedding(peer.V, peer.U)
    lstm = layers.LSTM(peer.U, return_sequences=True)
    out = layers.Dense(peer.V)
    with ab.Graph().as_default():
        given, following, *sampled_values = [ab.placeholder(value.shape, value.dtype) for value in batches[0]]
        hidden = ab.ops.reshape(lstm(words(given)), (peer.N, peer.U))
        words.set_weights(weights[:1])
        lstm.set_weights(weights[1:4])
        variables = [*words.trainable_variables, *lstm.trainable_variables]
        labels = ab.ops.reshape(following, (peer.N, 1))
        if params["softmax"] == "full":
            logits = out(hidden)
            out.set_weights([weights[4].T, weights[5]])
            variables += out.trainable_variables
            losses = ab.ops.sparse_categorical_crossentropy(labels[:, 0], logits, from_logits=True)
        else:
            rows, biases = [ab.Variable(value) for value in weights[4:]]
            variables += [rows, biases]
            drawn, expected, expected_drawn = sampled_values
            candidates = drawn, expected, expected_drawn
            losses = ab.nn.sampled_softmax_loss(rows, biases, labels, hidden, peer.S, peer.V, sampled_values=candidates)
        loss = ab.ops.mean(losses)
        update = ab.optim.SGD(peer.LR).minimize(loss, variables)
        batch = peer.in_turn(batches)
        with ab.Session() as session:
            step = session.make_callable([loss, update], [given, following, *sampled_values])
            return bench(lambda: step(*batch())[0])


OURS = {"anabranch": anabranch}
