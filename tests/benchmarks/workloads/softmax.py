"""A language model with a softmax over 40,000 words against one over a sample of 512 of them.

Source: Abadi et al., "TensorFlow: A System for Large-Scale Machine Learning", OSDI 2016, section 6.4, figure 9: an
LSTM of 512 units whose words, 512 numbers each, and whose softmax are in shards on other machines. The full softmax
computes logits for all words where the shards are; the sampled one fetches the rows of 512 words and of the true ones.

``{"shards": 1}`` without ``devices``: steps of training are run, on this machine's processors. With ``devices`` nothing
is run: the time is that of `anabranch.engine.place.simulate`, for a worker and a device for each shard, of 1 TFLOP/s
each, which exchange 10 GB/s. Beside PyTorch and Keras, in a model by `layers`, the same is W16 (`w16.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from common import rss_mb

import anabranch as ab
from anabranch.engine.passes.framework.prune import needed_operations
from anabranch.engine.place import CostModel, Layout, make_devices, search

Record = dict[str, Any]
WORDS, UNITS, SAMPLED, BATCH, LENGTH, RATE = 40_000, 512, 512, 32, 16, 0.1
POSITIONS = BATCH * LENGTH
REPETITIONS = 3


def _variable(rng: np.random.Generator, *shape: int) -> Any:
    return ab.Variable((0.02 * rng.standard_normal(shape)).astype("float32"))


def _shards(rng: np.random.Generator, count: int, devices: bool) -> tuple[list[Any], list[Any], list[Any]]:
    """Words, weights and biases of the softmax; the k-th shards of all three are together."""
    tables: list[list[Any]] = [[], [], []]
    for shard in range(count):
        with ab.device(f"sim:{shard + 1}") if devices else nullcontext():
            rows = WORDS // count
            tables[0].append(_variable(rng, rows, UNITS))
            tables[1].append(_variable(rng, rows, UNITS))
            tables[2].append(ab.Variable(np.zeros(rows, "float32")))
    return tables[0], tables[1], tables[2]


def _updated(variable: Any, gradient: Any) -> Any:
    """A step of SGD; by rows, if the gradient is."""
    if isinstance(gradient, ab.IndexedSlices):
        return variable.scatter_sub(gradient.map_values(lambda values: RATE * values))
    return variable.assign_sub(RATE * gradient)


def _step(kind: str, count: int, devices: bool) -> tuple[list[Any], list[Any]]:
    """Return what a step of training fetches, and the placeholders: words, and the words that come next."""
    rng = np.random.default_rng(0)
    words, weights, biases = _shards(rng, count, devices)
    with ab.device("sim:0") if devices else nullcontext():
        kernel, bias = _variable(rng, 2 * UNITS, 4 * UNITS), _variable(rng, 4 * UNITS)
        given, following = (ab.placeholder((POSITIONS,), "int32") for _ in range(2))
        embedded = ab.ops.reshape(ab.ops.embedding_lookup(words, given), (LENGTH, BATCH, UNITS))
        hidden = ab.ops.reshape(_lstm(embedded, kernel, bias), (POSITIONS, UNITS))
        if kind == "full":
            losses = ab.nn.sharded_softmax_loss(weights, biases, following, hidden)
        else:
            labels = ab.ops.expand_dims(following, 1)
            losses = ab.nn.sampled_softmax_loss(weights, biases, labels, hidden, SAMPLED, WORDS, seed=0)
        loss = ab.ops.mean(losses)
        variables = [*words, *weights, *biases, kernel, bias]
        updates = [_updated(*pair) for pair in zip(variables, ab.gradients(loss, variables), strict=True)]
    return [loss, *updates], [given, following]


def _lstm(sequence: Any, kernel: Any, bias: Any) -> Any:
    """The outputs for ``(time, batch, units)``."""
    inputs = ab.TensorArray("float32", LENGTH).unstack(sequence)
    zeros = ab.ops.zeros((BATCH, UNITS))

    def body(t: Any, h: Any, c: Any, outputs: Any) -> Any:
        gates = ab.ops.concatenate([inputs.read(t), h], -1) @ kernel + bias
        i, f, g, o = ab.ops.split(gates, 4, -1)
        c = ab.ops.sigmoid(f) * c + ab.ops.sigmoid(i) * ab.ops.tanh(g)
        h = ab.ops.sigmoid(o) * ab.ops.tanh(c)
        return t + 1, h, c, outputs.write(t, h)

    start = (0, zeros, zeros, ab.TensorArray("float32", LENGTH))
    return ab.while_loop(lambda t, *_: t < LENGTH, body, start)[-1].stack()


def _measure(kind: str, params: dict[str, Any]) -> Record:
    begin = time.perf_counter()
    found = _simulated(kind, params["shards"]) if params.get("devices") else _timed(kind, params["shards"])
    times, loss = found
    return {
        "median_ms": round(float(np.median(times)), 3),
        "p10": round(float(np.percentile(times, 10)), 3),
        "p90": round(float(np.percentile(times, 90)), 3),
        "reps": len(times),
        "peak_rss_mb": round(rss_mb()),
        "compile_or_first_step_s": round(time.perf_counter() - begin, 3),
        "loss_check": loss,
    }


def _timed(kind: str, shards: int) -> tuple[list[float], list[float]]:
    with ab.Graph().as_default():
        fetched, fed = _step(kind, shards, False)
        # Words by Zipf's law, as the sampler has it.
        numbers = np.exp(np.random.default_rng(1).uniform(0, np.log(WORDS), (2, POSITIONS))).astype("int32") - 1
        step = ab.Session().make_callable(fetched[:1] + [each.operation for each in fetched[1:]], fed)
        losses = [float(step(*numbers)[0]) for _ in range(2)]
        times: list[float] = []
        for _ in range(REPETITIONS):
            begin = time.perf_counter()
            step(*numbers)
            times.append(1e3 * (time.perf_counter() - begin))
    return times, losses


def _simulated(kind: str, shards: int) -> tuple[list[float], list[float]]:
    ab.config.set_devices(cpu=1, sim=shards + 1)
    with ab.Graph().as_default() as graph:
        fetched, fed = _step(kind, shards, True)
    operations = needed_operations(graph, [each.operation for each in fetched], fed)
    layout = Layout(operations, tuple(fed), make_devices(cpu=1, sim=shards + 1), CostModel())
    return [1e3 * search(layout)[1].seconds], [float(len(layout.tasks))]


def full(params: dict[str, Any]) -> Record:
    return _measure("full", params)


def sampled(params: dict[str, Any]) -> Record:
    return _measure("sampled", params)


OURS: dict[str, Callable[[dict[str, Any]], Record]] = {"full": full, "sampled": sampled}
