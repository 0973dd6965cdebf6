"""Placement by simulated time of a step: ours against everything on one device, and against devices in turn.

Nothing is run. The times are those of `anabranch.engine.place.simulate` for simulated devices of 1 TFLOP/s that
exchange 10 GB/s, so that they do not depend on the machine; the time that placing takes is noted beside them.

Three graphs: 8 layers of LSTM-like blocks over 16 steps, unrolled (every layer could be on a device of its own, and
work on step t while the layer below works on t + 1); an Inception-like net of wide blocks; a mixture of 16 experts, of
which each is run on a part of the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import rss_mb

import anabranch as ab
from anabranch.engine.passes.framework.prune import needed_operations
from anabranch.engine.place import CostModel, Layout, make_devices, on_one_device, search, simulate

Record = dict[str, Any]
_DEVICES = {"lstm": 8, "inception": 4, "experts": 4}


# --- graphs ---------------------------------------------------------------------------------------------------------


def _weights(*shape: int) -> Any:
    return ab.Variable(np.zeros(shape, "float32"))


def _block(kernel: Any, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
    gates = ab.ops.concatenate([x, h], -1) @ kernel
    i, f, g, o = ab.ops.split(gates, 4, -1)
    c = ab.ops.sigmoid(f) * c + ab.ops.sigmoid(i) * ab.ops.tanh(g)
    return ab.ops.sigmoid(o) * ab.ops.tanh(c), c


def _lstm(layers: int = 8, steps: int = 16, batch: int = 64, units: int = 512) -> Any:
    sequence = [ab.ops.ones((batch, units)) for _ in range(steps)]
    for _ in range(layers):
        kernel = _weights(2 * units, 4 * units)
        h = c = ab.ops.zeros((batch, units))
        outputs: list[Any] = []
        for x in sequence:
            h, c = _block(kernel, x, h, c)
            outputs.append(h)
        sequence = outputs
    return ab.ops.sum(ab.ops.stack(sequence))


def _conv(x: Any, filters: int, size: int) -> Any:
    return ab.ops.relu(ab.ops.conv(x, _weights(size, size, x.shape[-1], filters), padding="same"))


def _inception(blocks: int = 9) -> Any:
    x = ab.placeholder((32, 28, 28, 192), "float32", "images")
    for _ in range(blocks):
        pooled = ab.ops.max_pool(x, 3, 1, "same")
        branches = [
            _conv(x, 64, 1),
            _conv(_conv(x, 96, 1), 128, 3),
            _conv(_conv(x, 16, 1), 32, 5),
            _conv(pooled, 32, 1),
        ]
        x = ab.ops.concatenate(branches, -1)
    return ab.ops.mean(x, (1, 2))


def _experts(count: int = 16, batch: int = 4096, units: int = 1024) -> Any:
    x = ab.placeholder((batch, units), "float32", "x")
    gate = ab.ops.softmax(x @ _weights(units, count))
    parts = ab.ops.split(x, count, 0)
    done = [ab.ops.relu(part @ _weights(units, 4 * units)) @ _weights(4 * units, units) for part in parts]
    return ab.ops.concatenate(done, 0) * ab.ops.max(gate, -1, keepdims=True)


_GRAPHS: dict[str, Callable[[], Any]] = {"lstm": _lstm, "inception": _inception, "experts": _experts}


# --- placements -----------------------------------------------------------------------------------------------------


def _layout(name: str) -> Layout:
    with ab.Graph().as_default() as graph:
        fetched = _GRAPHS[name]()
    devices = make_devices(cpu=1, sim=_DEVICES[name])
    return Layout(needed_operations(graph, [fetched]), (), devices, CostModel())


def _ours(layout: Layout) -> float:
    return search(layout)[1].seconds


def _single_device(layout: Layout) -> float:
    return min([simulate(layout, on_one_device(layout, number)).seconds for number in range(len(layout.devices))])


def _round_robin(layout: Layout) -> float:
    """Place what may be on simulated devices on these in turn, in program order."""
    simulated = [number for number, device in enumerate(layout.devices) if device.kind == "sim"]
    places, turn = on_one_device(layout, 0), 0
    for group in dict.fromkeys(task.group for task in layout.tasks):
        wanted = simulated[turn % len(simulated)]
        if wanted in layout.choices[group]:
            places[group], turn = wanted, turn + 1
    return simulate(layout, places).seconds


def _row(place: Callable[[Layout], float]) -> Callable[[dict[str, Any]], Record]:
    def measure(params: dict[str, Any]) -> Record:
        layout = _layout(params["graph"])
        start = time.perf_counter()
        milliseconds = round(1e3 * place(layout), 4)
        return {
            "median_ms": milliseconds,
            "p10": milliseconds,
            "p90": milliseconds,
            "reps": 1,
            "peak_rss_mb": round(rss_mb()),
            "compile_or_first_step_s": round(time.perf_counter() - start, 3),
            "loss_check": [len(layout.tasks)],
        }

    return measure


OURS = {"anabranch": _row(_ours), "single_device": _row(_single_device), "round_robin": _row(_round_robin)}
