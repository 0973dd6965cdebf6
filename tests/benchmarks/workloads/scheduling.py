"""Dynamic scheduling on four simulated devices, in real time: our own host overhead counts.

A mixture of 16 experts of two layers, whose load is even or skewed as by Zipf's law (exponent 1.2): experts scheduled
dynamically against experts on devices in turn (the same construct, with one device each), forward or a whole step of
training. And a Tree-LSTM over a batch of random trees, each node's cell on whatever device is free: with dependencies
narrowed to keys, so that nodes that do not depend on each other run at the same time, against one node after the other.

A device runs 100 MFLOP/s, so that the host's own arithmetic, which stands for that of all devices, is small beside it.
"ideal" is the time of the kernels alone, spread evenly.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from common import rss_mb

import anabranch as ab
from anabranch.engine.graph import Operation, Tensor
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.passes.framework.prune import all_operations

Record = dict[str, Any]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
DEVICES, EXPERTS, TOKENS, UNITS, HIDDEN = 4, 16, 512, 64, 128
SPEED = {"flops": 1e8, "memory_bandwidth": 1e11, "bandwidth": 2e9, "virtual_time": False}
REPETITIONS = 9


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _on_host(operations: Sequence[Operation], feeds: Sequence[Tensor]) -> dict[Operation, str]:
    return dict.fromkeys(all_operations([*[symbol_of(tensor).operation for tensor in feeds], *operations]), "cpu:0")


def _timed(program: MachineProgram, values: Sequence[Any], build: float) -> Record:
    check = [float(np.sum(found)) for found in program(*values)]
    times: list[float] = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        program(*values)
        times.append(1e3 * (time.perf_counter() - start))
    return _record(times, build, check)


def _record(times: Sequence[float], build: float, check: list[float]) -> Record:
    low, middle, high = np.percentile(times, [10, 50, 90])
    return {
        "median_ms": round(float(middle), 4),
        "p10": round(float(low), 4),
        "p90": round(float(high), 4),
        "reps": len(times),
        "peak_rss_mb": round(rss_mb()),
        "compile_or_first_step_s": round(build, 3),
        "loss_check": check,
    }


# --- experts --------------------------------------------------------------------------------------------------------


def _chosen(load: str) -> np.ndarray:
    shares = 1.0 / np.arange(1, EXPERTS + 1) ** 1.2 if load == "zipf" else np.ones(EXPERTS)
    ends = np.round(np.cumsum([0.0, *shares / shares.sum()]) * TOKENS).astype(int)
    chosen = np.repeat(np.arange(EXPERTS), np.diff(ends))
    return np.random.default_rng(0).permutation(chosen).astype("int32")


def _experts(params: dict[str, Any], devices: Callable[[int], Sequence[str]]) -> Record:
    start = time.perf_counter()
    ab.config.set_devices(sim={"count": DEVICES, **SPEED})
    with ab.Graph().as_default() as graph:
        tokens, chosen = ab.placeholder((None, UNITS), "float32"), ab.placeholder((None,), "int32")
        experts = _example("moe").Experts(EXPERTS, UNITS, HIDDEN, devices)
        made = experts(tokens, chosen)
        targets: list[Any] = [ab.ops.mean(ab.ops.square(made))]
        if params["step"] == "training":
            targets.append(ab.optim.SGD(1e-3).minimize(targets[0], experts.variables))
        program = MachineProgram(graph, targets, [tokens, chosen], assign=_on_host)
    values = [np.random.default_rng(1).normal(size=(TOKENS, UNITS)).astype("float32"), _chosen(params["load"])]
    found = _timed(program, values, time.perf_counter() - start)
    return found | {"loss_check": [TOKENS]}


def _dynamic(params: dict[str, Any]) -> Record:
    return _experts(params, lambda number: ()) if "load" in params else _tree(parallel_iterations=32)


def _static(params: dict[str, Any]) -> Record:
    return _experts(params, lambda number: [f"sim:{number % DEVICES}"])


def _ideal(params: dict[str, Any]) -> Record:
    """Forward two products a token; backward the first one again, two by its results and one by its inputs."""
    products = 2 if params["step"] == "forward" else 6
    flops = products * TOKENS * 2 * UNITS * HIDDEN
    return _record([1e3 * flops / SPEED["flops"] / DEVICES], 0.0, [TOKENS])


# --- trees ----------------------------------------------------------------------------------------------------------


def _tree(parallel_iterations: int) -> Record:
    start = time.perf_counter()
    ab.config.set_devices(sim={"count": DEVICES, **SPEED, "kernel_latency": 2e-3})
    example = _example("tree_lstm")
    trees = example.draw_trees(np.random.default_rng(3), 16, (1, 8))
    with ab.Graph().as_default() as graph:
        model = example.TreeLSTM(16, 0.1, scheduled=True)
        feeds = model.feeds(trees)
        options = {"assign": _on_host, "parallel_iterations": parallel_iterations}
        program = MachineProgram(graph, [model.loss], list(feeds), **options)
    values = [np.asarray(value, tensor.dtype) for tensor, value in feeds.items()]
    return _timed(program, values, time.perf_counter() - start)


def _in_order(params: dict[str, Any]) -> Record:
    return _tree(parallel_iterations=1)


OURS = {"anabranch": _dynamic, "static": _static, "ideal": _ideal, "in_order": _in_order}
