"""W13, our side: `ab.decoding.beam_search` over an LSTM decoder."""

from __future__ import annotations

from typing import Any

import w13_beam_search as peer

import anabranch as ab

Record = dict[str, Any]


def search(vocabulary: int) -> tuple[Any, Any, Any]:
    """Sequences, scores and lengths of the search."""
    embedding, inputs, recurrent, bias, readout, out_bias, h, c = [
        ab.Variable(value, trainable=False) for value in peer.data(vocabulary)
    ]

    def step(tokens: Any, states: Any) -> tuple[Any, Any]:
        h, c = states
        z = ab.ops.take(embedding, tokens, axis=0) @ inputs + h @ recurrent + bias
        i, f, g, o = ab.ops.split(z, 4, axis=1)
        c = ab.ops.sigmoid(f) * c + ab.ops.sigmoid(i) * ab.ops.tanh(g)
        h = ab.ops.sigmoid(o) * ab.ops.tanh(c)
        return h @ readout + out_bias, (h, c)

    return ab.decoding.beam_search(
        step,
        (h, c),
        start_token=peer.START,
        end_token=peer.END,
        max_length=peer.L,
        beam_width=peer.W,
    )


def _summary(results: Any, vocabulary: int) -> float:
    sequences, scores, lengths = results
    return peer.summary(sequences, scores, lengths, vocabulary)


def anabranch(params: dict[str, Any]) -> Record:
    with ab.Graph().as_default():
        results = search(params["V"])
        with ab.Session() as session:
            run = session.make_callable(list(results), [])
            return peer.bench(lambda: _summary(run(), params["V"]))


OURS = {"anabranch": anabranch}
