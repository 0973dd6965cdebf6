"""W22 and W23, our side: a training step of a transformer, and generation with kept keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import w22_transformer as peer
from common import bench
from w22_transformer import HEADS, LAYERS, LENGTH, SIZE, WIDTH, B, T, V

import anabranch as ab
from anabranch import ops

Record = dict[str, Any]


def _norm(x: Any, scale: Any, offset: Any) -> Any:
    mean, variance = ops.moments(x, axes=-1, keepdims=True)
    return (x - mean) * ops.rsqrt(variance + peer.EPSILON) * scale + offset


def _gelu(x: Any) -> Any:
    return ops.gelu(x, approximate=True)


def _train() -> Record:
    tokens, following, values = peer.data()

    def attend(_: int, both: Any) -> Any:
        q, k, v = [ops.reshape(part, (B, T, HEADS, SIZE)) for part in ops.split(both, 3, axis=-1)]
        return ops.reshape(ops.dot_product_attention(q, k, v, is_causal=True), (B, T, WIDTH))

    with ab.Graph().as_default(), ab.Session() as session:
        x, y = (ab.placeholder(tokens.shape, "int32", name) for name in "xy")
        weights = [ab.Variable(value) for value in values]
        embedded = ops.take(weights[0], x, axis=0) + weights[1]
        rows = peer.scores(embedded, weights, _norm, _gelu, attend, ops.transpose)
        loss = ops.mean(ops.sparse_categorical_crossentropy(y, rows, from_logits=True))
        update = ab.optimizers.SGD(peer.LR).minimize(loss, weights)
        step = session.make_callable([loss, update], [x, y])
        return bench(lambda: step(tokens, following)[0])


def _generate() -> Record:
    tokens, _, values = peer.data()
    empty = np.zeros((B, LENGTH, HEADS, SIZE), "float32")
    with ab.Graph().as_default(), ab.Session() as session:
        first = ab.placeholder((B,), "int32", "first")
        weights = [ab.Variable(value, trainable=False) for value in values]

        def body(i: Any, token: Any, total: Any, *cache: Any) -> tuple[Any, ...]:
            kept = list(cache)

            def attend(layer: int, both: Any) -> Any:
                q, k, v = [ops.reshape(part, (B, 1, HEADS, SIZE)) for part in ops.split(both, 3, axis=-1)]
                for place, new in ((2 * layer, k), (2 * layer + 1, v)):
                    kept[place] = ops.slice_update(kept[place], (0, i, 0, 0), new)
                is_there = ops.reshape(ops.arange(LENGTH) <= i, (1, 1, 1, LENGTH))
                found = ops.dot_product_attention(q, kept[2 * layer], kept[2 * layer + 1], mask=is_there)
                return ops.reshape(found, (B, 1, WIDTH))

            embedded = ops.expand_dims(ops.take(weights[0], token, axis=0) + weights[1][i], 1)
            rows = ops.reshape(peer.scores(embedded, weights, _norm, _gelu, attend, ops.transpose), (B, V))
            best = ops.mean(ops.max(rows, axis=-1))
            return i + 1, ops.cast(ops.argmax(rows, axis=-1), "int32"), total + best, *kept

        _, _, total, *_ = ab.while_loop(lambda i, *_: i < LENGTH, body, (0, first, 0.0, *[empty] * (2 * LAYERS)))
        run = session.make_callable([total / LENGTH], [first])
        return bench(lambda: run(tokens[:, 0])[0])


def anabranch(params: dict[str, Any]) -> Record:
    """Milliseconds of a step, or of 64 tokens for each sequence."""
    return _train() if params["task"] == "train" else _generate()


OURS = {"anabranch": anabranch}
