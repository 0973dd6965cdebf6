"""Some 60 programs that together reach every pass and every printer, for comparing two states of the compiler.

`CHOSEN` maps a name to a function that makes the program, and runs nothing: who calls it listens to what is prepared,
printed and compiled meanwhile (see `same.py`).
"""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

import anabranch as ab
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.memory.memory_budget import within_memory_budget
from anabranch.engine.runtime.program import Program, fusion_rule_of

Make = Callable[[], object]
CHOSEN: dict[str, Make] = {}
GENERATED = 12
_UNCHECKED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def _random(*shape: int, number: int = 0) -> Any:
    return np.random.default_rng(number).normal(size=shape).astype("float32")


# --- graphs: a loss, its gradients and updates --------------------------------------------------------------------


def _lstm(steps: int = 20, batch: int = 16, units: int = 64) -> Any:
    """A hand-written cell over a batch-major sequence: transposed slices, a product of the input inside the loop."""
    x = ab.placeholder((batch, steps, units), "float32", "x")
    kernel, recurrent = (ab.Variable(_random(units, 4 * units, number=k), name=f"w{k}") for k in range(2))
    time_major = ab.ops.transpose(x, (1, 0, 2))
    inputs = ab.TensorArray("float32", size=steps).unstack(time_major)
    zeros = ab.ops.zeros((batch, units))

    def body(t: Any, h: Any, c: Any) -> tuple[Any, ...]:
        z = inputs.read(t) @ kernel + h @ recurrent
        i, f, g, o = (z[:, k * units : (k + 1) * units] for k in range(4))
        c = ab.ops.sigmoid(f) * c + ab.ops.sigmoid(i) * ab.ops.tanh(g)
        return t + 1, ab.ops.sigmoid(o) * ab.ops.tanh(c), c

    _, h, _ = ab.while_loop(lambda t, *_: t < steps, body, (0, zeros, zeros))
    return ab.ops.mean(h * h), [kernel, recurrent], [x]


def _tanh_rnn(batch: int | None = None) -> Any:
    x = ab.placeholder((12, batch, 8), "float32", "x")
    w, u = ab.Variable(_random(8, 8), name="w"), ab.Variable(_random(8, 8, number=1), name="u")
    h = ab.ops.zeros_like(x[0])
    _, h = ab.while_loop(lambda t, _: t < 12, lambda t, h: (t + 1, ab.ops.tanh(x[t] @ w + h @ u)), (0, h))
    return ab.ops.sum(h), [w, u], [x]


def _masked() -> Any:
    """Sequences of several lengths in one batch."""
    x, lengths = ab.placeholder((64, 24, 48), "float32", "x"), ab.placeholder((64,), "int32", "lengths")
    w, u = ab.Variable(_random(48, 64), name="w"), ab.Variable(_random(64, 64, number=1), name="u")

    def body(t: Any, h: Any) -> tuple[Any, Any]:
        live = ab.ops.expand_dims(t < lengths, 1)
        return t + 1, ab.ops.where(live, ab.ops.tanh(x[:, t] @ w + h @ u), h)

    _, h = ab.while_loop(lambda t, _: t < 24, body, (0, ab.ops.zeros((64, 64))))
    return ab.ops.sum(h * h), [w, u], [x, lengths]


def _decoder() -> Any:
    """A decoder that takes rows of a table by its own tokens."""
    table, w = ab.Variable(_random(50, 16), name="table"), ab.Variable(_random(16, 16), name="w")
    out = ab.Variable(_random(16, 50), name="out")
    first = ab.placeholder((8,), "int32", "first")

    def body(t: Any, tokens: Any, h: Any, total: Any) -> tuple[Any, ...]:
        h = ab.ops.tanh(ab.ops.take(table, tokens, axis=0) @ w + h)
        logits = h @ out
        return t + 1, ab.ops.cast(ab.ops.argmax(logits, axis=-1), "int32"), h, total + ab.ops.mean(logits)

    start = (0, first, ab.ops.zeros((8, 16)), ab.ops.zeros(()))
    total = ab.while_loop(lambda t, *_: t < 30, body, start)[3]
    return total, [table, w, out], [first]


def _table_updates() -> Any:
    table = ab.Variable(_random(500, 32), name="table")
    ids, x = ab.placeholder((None, 4), "int32", "ids"), ab.placeholder((32, 8), "float32", "x")
    rows = ab.ops.take(table, ids, axis=0)
    return ab.ops.mean(ab.ops.square(ab.ops.sum(rows, axis=1) @ x)), [table], [ids, x]


def _short_loop() -> Any:
    x = ab.placeholder((6,), "float32", "x")
    w = ab.Variable(_random(6), name="w")
    _, y = ab.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, ab.ops.sin(y) * w), (0, x))
    return ab.ops.sum(y), [w], [x]


def _branches() -> Any:
    x, w = ab.placeholder((32, 16), "float32", "x"), ab.Variable(_random(16, 16), name="w")
    late = ab.ops.exp(x @ w)
    y = ab.cond(ab.ops.sum(x) > 0, lambda: late * 2.0, lambda: ab.cond(x[0, 0] > 1, lambda: x + 1, lambda: x * x))
    return ab.ops.mean(y), [w], [x]


def _dense() -> Any:
    """Layers with epilogues, a softmax loss and a residual sum."""
    x, y = ab.placeholder((64, 128), "float32", "x"), ab.placeholder((64,), "int32", "y")
    weights = [ab.Variable(_random(128, 128, number=k) * 0.1, name=f"w{k}") for k in range(3)]
    biases = [ab.Variable(np.zeros(128, "float32"), name=f"b{k}") for k in range(3)]
    h = x
    for w, b in zip(weights, biases, strict=True):
        h = ab.ops.relu(h @ w + b) + h
    chosen = ab.ops.sum(ab.ops.log_softmax(h) * ab.ops.one_hot(y, 128), axis=-1)
    return -ab.ops.mean(chosen), [*weights, *biases], [x, y]


def _open_batch() -> Any:
    """Normalisation and products over a batch whose size is known at run time alone."""
    x, w = ab.placeholder((None, 32), "float32", "x"), ab.Variable(_random(32, 32), name="w")
    bias = ab.Variable(np.zeros(32, "float32"), name="bias")
    h = ab.ops.gelu(x @ w + bias)
    centred = h - ab.ops.mean(h, axis=-1, keepdims=True)
    normed = centred * ab.ops.rsqrt(ab.ops.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)
    return ab.ops.mean(ab.ops.softmax(normed) * bias), [w, bias], [x]


def _convolution() -> Any:
    x = ab.placeholder((4, 12, 12, 3), "float32", "x")
    k, j = ab.Variable(_random(3, 3, 3, 8), name="k"), ab.Variable(_random(3, 3, 8, 8), name="j")
    h = ab.ops.relu(ab.ops.conv(x, k, 1, "same"))
    h = ab.ops.max_pool(ab.ops.conv(h, j, 2, "same"), 2, 2)
    return ab.ops.mean(h * h), [k, j], [x]


def _scalars() -> Any:
    x = ab.placeholder((), "float64", "x")

    def body(i: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return i + 1, ab.ops.where(a > b, a * 0.5, a + b), ab.ops.sin(b) - a / 3.0

    _, a, b = ab.while_loop(lambda i, a, _: ab.ops.logical_and(i < 100, a < 1e6), body, (0, x, x * 2.0))
    return a + b, [x], [x]


def _recursion() -> Any:
    x = ab.placeholder((4,), "float32", "x")

    @ab.function
    def power(n: Any, value: Any) -> Any:
        return ab.cond(n < 1, lambda: value, lambda: ab.ops.sin(power(n - 1, value)) * value)

    return ab.ops.sum(power(ab.convert_to_tensor(5), x)), [x], [x]


def _nested_loops() -> Any:
    x, w = ab.placeholder((6, 8, 8), "float32", "x"), ab.Variable(_random(8, 8), name="w")

    def inner(row: Any) -> Any:
        return ab.while_loop(lambda j, _: j < 5, lambda j, y: (j + 1, ab.ops.tanh(y @ w) + row), (0, row))[1]

    _, total = ab.while_loop(lambda i, _: i < 6, lambda i, s: (i + 1, s + inner(x[i])), (0, ab.ops.zeros((8, 8))))
    return ab.ops.mean(total), [w], [x]


_GRAPHS: dict[str, Callable[[], Any]] = {
    "lstm": _lstm,
    "tanh rnn": _tanh_rnn,
    "tanh rnn of known batch": lambda: _tanh_rnn(4),
    "masked rnn": _masked,
    "decoder": _decoder,
    "table updates": _table_updates,
    "short loop": _short_loop,
    "branches": _branches,
    "dense": _dense,
    "open batch": _open_batch,
    "convolution": _convolution,
    "scalars": _scalars,
    "recursion": _recursion,
    "nested loops": _nested_loops,
}


def _trained(build: Callable[[], Any]) -> tuple[Any, list[Any], list[Any]]:
    """The graph of `build`, what is fetched, and what is fed: a loss, its gradients, and the updates by them."""
    with ab.Graph().as_default() as graph:
        loss, sources, feeds = build()
        gradients = ab.gradients(loss, sources)
        updates = [
            source.assign_sub(0.01 * gradient).operation
            for source, gradient in zip(sources, gradients, strict=True)
            if isinstance(source, ab.Variable)
        ]
    fetched = [g for s, g in zip(sources, gradients, strict=True) if not isinstance(s, ab.Variable)]
    return graph, [loss, *fetched, *updates], feeds


def _compiled(build: Callable[[], Any], exact: bool = False, budget: int | None = None) -> None:
    graph, targets, feeds = _trained(build)
    with within_memory_budget(budget):
        Program(graph, targets, feeds, None, exact)


def _by_name(operations: Sequence[Any], feeds: Sequence[Any]) -> dict[Any, str]:
    """Two devices, by a checksum of the names; all that touches variables is on one."""
    del feeds
    return {o: "cpu:1" if not o.effects and zlib.crc32(o.name.encode()) % 3 == 0 else "cpu:0" for o in operations}


def _placed(build: Callable[[], Any]) -> None:
    graph, targets, feeds = _trained(build)
    prepare(graph, targets, feeds, None, fusion_rule_of(graph), assign=_by_name)


for _name, _build in _GRAPHS.items():
    CHOSEN[_name] = lambda build=_build: _compiled(build)
for _name in ("lstm", "tanh rnn", "decoder", "branches", "short loop"):
    CHOSEN[f"{_name}, exact"] = lambda build=_GRAPHS[_name]: _compiled(build, exact=True)
for _name in ("lstm", "tanh rnn", "branches", "nested loops", "table updates"):
    CHOSEN[f"{_name}, placed"] = lambda build=_GRAPHS[_name]: _placed(build)
for _name in ("lstm", "masked rnn", "nested loops", "short loop"):
    CHOSEN[f"{_name}, budgeted"] = lambda build=_GRAPHS[_name]: _compiled(build, budget=4096)


# --- layers: a train step -----------------------------------------------------------------------------------------


def _sequences(*layers: Any) -> Any:
    return ab.Sequential([ab.Input((10, 8)), *layers, ab.layers.Flatten(), ab.layers.Dense(1)]), (4, 10, 8)


def _images(*layers: Any) -> Any:
    return ab.Sequential([ab.Input((12, 12, 4)), *layers, ab.layers.Flatten(), ab.layers.Dense(1)]), (4, 12, 12, 4)


def _transformer() -> Any:
    inputs = ab.Input((10, 16))
    attended = ab.layers.MultiHeadAttention(2, 8)(inputs, inputs)
    hidden = ab.layers.LayerNormalization()(inputs + attended)
    wide = ab.layers.Dense(16)(ab.layers.Dense(32, activation="gelu")(hidden))
    outputs = ab.layers.Dense(1)(ab.layers.Flatten()(ab.layers.LayerNormalization()(hidden + wide)))
    return ab.Model(inputs, outputs), (4, 10, 16)


_MODELS: dict[str, Callable[[], Any]] = {
    "LSTM": lambda: _sequences(ab.layers.LSTM(16, return_sequences=True)),
    "GRU": lambda: _sequences(ab.layers.GRU(16)),
    "SimpleRNN": lambda: _sequences(ab.layers.SimpleRNN(16)),
    "Bidirectional": lambda: _sequences(ab.layers.Bidirectional(ab.layers.LSTM(8))),
    "TimeDistributed": lambda: _sequences(ab.layers.TimeDistributed(ab.layers.Dense(4, activation="tanh"))),
    "Conv1D": lambda: _sequences(ab.layers.Conv1D(8, 3, activation="relu")),
    "Conv2D": lambda: _images(ab.layers.Conv2D(8, 3, activation="relu"), ab.layers.MaxPooling2D(2)),
    "DepthwiseConv2D": lambda: _images(ab.layers.DepthwiseConv2D(3), ab.layers.AveragePooling2D(2)),
    "Conv2DTranspose": lambda: _images(ab.layers.Conv2DTranspose(4, 3, strides=2)),
    "BatchNormalization": lambda: _images(ab.layers.Conv2D(8, 1), ab.layers.BatchNormalization()),
    "Dropout": lambda: _sequences(ab.layers.Dense(8), ab.layers.Dropout(0.5)),
    "MultiHeadAttention": _transformer,
}


def _train_step(make: Callable[[], Any]) -> None:
    ab.utils.set_random_seed(0)
    model, shape = make()
    model.compile("adam", "mse")
    x = _random(*shape)
    model.explain(x, np.zeros((shape[0], 1), "float32"))


for _name, _make in _MODELS.items():
    CHOSEN[f"layers.{_name}"] = lambda make=_make: _train_step(make)


# --- generated ----------------------------------------------------------------------------------------------------


def _generated(number: int) -> None:
    """The first program that hypothesis draws from a seed, with its gradients and effects."""
    from programs.building import build
    from programs.generator import programs
    from programs.primitives import UnsuitableError

    found: list[Any] = []

    @seed(number)
    @settings(max_examples=20, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=_UNCHECKED)
    @given(programs())
    def draw(program: Any) -> None:
        if len(found) < 2:
            found.append(program)

    draw()
    try:
        built = build(found[-1])
    except UnsuitableError:
        return
    with built.graph.as_default():
        floats = [tensor for tensor in built.inputs.values() if tensor.dtype.kind == "f"]
        gradients = [g for g in ab.gradients(built.loss, floats) if g is not None]
    targets = [*built.outputs.values(), *[getattr(g, "values", g) for g in gradients], *built.effects]
    Program(built.graph, targets, list(built.inputs.values()), None, exact=number % 4 == 3)


for _number in range(GENERATED):
    CHOSEN[f"generated {_number}"] = lambda number=_number: _generated(number)


# --- workloads of the benchmarks ------------------------------------------------------------------------------------


class MadeError(BaseException):
    """The program of a workload is made; it is not to be run. (No `Exception`: nothing on the way may handle it.)"""


def _workload(module: str, row: str, params: dict[str, Any]) -> None:
    """Make a workload's programs up to the first one that would run."""
    for folder in ("workloads", "peers"):
        if str(_BENCHMARKS / folder) not in sys.path:
            sys.path.insert(0, str(_BENCHMARKS / folder))
    with suppress(MadeError), patch.object(Program, "__call__", _refuse):
        importlib.import_module(module).OURS[row](params)


def _refuse(program: Program, *values: Any) -> Any:
    raise MadeError(program.filename)


_WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "w01": ("anabranch", {"B": 32, "T": 100}),
    "w01 by hand": ("anabranch_loop", {"B": 32, "T": 100}),
    "w02": ("anabranch", {"B": 32, "T": 100}),
    "w03": ("anabranch", {}),
    "w03 by hand": ("anabranch_loop", {}),
    "w04": ("anabranch", {"body": "scalar", "n": 100_000}),
    "w06": ("anabranch", {"B": 32}),
    "w10": ("anabranch", {}),
    "w12": ("anabranch", {}),
    "w14": ("anabranch", {}),
    "w26, conds": ("anabranch_5", {"of": "nested conds", "measured": "preparing"}),
    "w26, loops": ("anabranch_75", {"of": "loops in a row", "measured": "preparing"}),
}
for _name, (_row, _params) in _WORKLOADS.items():
    _module = _name.partition(" ")[0].partition(",")[0]
    CHOSEN[_name] = lambda module=_module, row=_row, params=_params: _workload(module, row, params)

__all__ = ["CHOSEN", "MadeError"]
