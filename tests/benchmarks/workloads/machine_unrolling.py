"""A training step of an LSTM in a loop in the graph, and unrolled: the compiled programs of one CPU.

Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 6.3, figure 14.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import BUDGET, rss_mb
from machine_lstm import cell, weights

import anabranch as ab

Record = dict[str, Any]


def _step(batch: int, length: int, units: int, dynamic: bool) -> Callable[[], Any]:
    """A callable that runs forward, gradients and an update, and gives the loss."""
    rng = np.random.default_rng(batch)
    data = rng.standard_normal((length, batch, units)).astype("float32")
    with ab.Graph().as_default() as graph:
        xs = ab.Variable(data, trainable=False)
        kernel = ab.Variable(weights(1, units)[0])
        zeros = ab.ops.zeros((batch, units))
        outputs = _in_loop(xs, kernel, zeros) if dynamic else _unrolled(xs, kernel, zeros)
        loss = ab.ops.mean(outputs**2)
        (gradient,) = ab.gradients(loss, [kernel])
        update = kernel.assign_sub(0.1 * gradient)
        session = ab.Session(graph)
        run = session.make_callable([loss, update], [])
    return lambda: float(run()[0])


def _in_loop(xs: Any, kernel: Any, zeros: Any) -> Any:
    length, batch, units = xs.shape
    inputs = ab.TensorArray("float32", size=length, element_shape=(batch, units)).unstack(xs)
    outputs = ab.TensorArray("float32", size=length, element_shape=(batch, units))

    def body(t: Any, h: Any, c: Any, outputs: Any) -> tuple[Any, ...]:
        h, c = cell(inputs.read(t), h, c, kernel)
        return t + 1, h, c, outputs.write(t, h)

    state = ab.while_loop(lambda t, *_: t < length, body, (0, zeros, zeros, outputs))
    return state[3].stack()


def _unrolled(xs: Any, kernel: Any, zeros: Any) -> Any:
    h = c = zeros
    made: list[Any] = []
    for x in ab.ops.unstack(xs, xs.shape[0]):
        h, c = cell(x, h, c, kernel)
        made.append(h)
    return ab.ops.stack(made)


def times(params: dict[str, Any]) -> Record:
    """Both in turn, in one process: milliseconds of a step."""
    batch, length, units = params["batch"], params.get("length", 200), params.get("units", 128)
    steps = {kind: _step(batch, length, units, kind == "dynamic") for kind in ("dynamic", "static")}
    found: dict[str, list[float]] = {kind: [] for kind in steps}
    losses: dict[str, list[float]] = {kind: [steps[kind]()] for kind in steps}
    began = time.perf_counter()
    while len(found["static"]) < 7 or time.perf_counter() - began < 12.0 * BUDGET:
        for kind, step in steps.items():
            start = time.perf_counter()
            losses[kind].append(step())
            found[kind].append(1e3 * (time.perf_counter() - start))
    np.testing.assert_allclose(losses["dynamic"][:5], losses["static"][:5], rtol=1e-3)
    ratios = np.divide(found["dynamic"], found["static"])
    return {
        "dynamic": float(np.median(found["dynamic"])),
        "static": float(np.median(found["static"])),
        "ratio": float(np.median(ratios)),
        "pairs": len(ratios),
    }


def memory(params: dict[str, Any]) -> Record:
    """The process's peak, and how much of it came with the first steps of one of the two; `budget` is in MB."""
    if params.get("budget"):
        ab.config.set_memory_budget(1_000_000 * params["budget"])
    before = rss_mb()
    step = _step(params["batch"], params.get("length", 200), params.get("units", 128), params["kind"] == "dynamic")
    start = time.perf_counter()
    losses = [step()]
    first = time.perf_counter() - start
    losses.append(step())
    return {"peak_mb": rss_mb() - before, "first_step": first, "losses": losses}


OURS = {"times": times, "memory": memory}
