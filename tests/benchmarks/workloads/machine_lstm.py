"""Training an LSTM on simulated devices, in real time: state that swaps to the host, and layers on several devices.

Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, sections 6.2 and 6.4, table 1
and figure 15. Matrices are smaller than there, and the device's figures are scaled with them: a time step takes as long
as the paper's, and so does a copy of what it saves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from common import BUDGET

import anabranch as ab
from anabranch.engine.devices import DeviceMemoryError
from anabranch.engine.graph.graph import Parameter
from anabranch.engine.machine.program import MachineProgram, place_by_cost

Record = dict[str, Any]
_BATCH, _UNITS = 32, 32
_THEIR_BATCH, _THEIR_UNITS = 512, 512
_ITERATION = 5.75e-3  # seconds of kernels for a time step, forward and backward
_SCALE = _BATCH * _UNITS / (_THEIR_BATCH * _THEIR_UNITS)  # of all that is saved
_BANDWIDTH = 6e9 * _SCALE
_LAYERS, _FEW_ROWS, _FEW_UNITS = 8, 4, 16  # where only time counts, matrices are as small as may be


def cell(x: Any, h: Any, c: Any, kernel: Any) -> tuple[Any, Any]:
    """One step of an LSTM: h and c."""
    gates = ab.ops.concatenate([x, h], -1) @ kernel
    i, f, g, o = ab.ops.split(gates, 4, -1)
    c = ab.ops.sigmoid(f) * c + ab.ops.sigmoid(i) * ab.ops.tanh(g)
    return ab.ops.sigmoid(o) * ab.ops.tanh(c), c


def weights(layers: int, units: int) -> list[np.ndarray[Any, Any]]:
    return [
        (np.random.default_rng(layer).standard_normal((2 * units, 4 * units)) / np.sqrt(2 * units)).astype("float32")
        for layer in range(layers)
    ]


def _training(
    values: Sequence[Any], batch: int, devices: int, swap: bool, kind: str = "sim"
) -> tuple[Any, list[Any], Any]:
    """A loop over `n` steps of all layers, its loss, and the gradients: (n, what is fetched, the graph)."""
    layers, units = len(values), values[0].shape[0] // 2

    def on(layer: int) -> Any:
        return ab.device(f"{kind}:{layer * devices // layers}") if devices else nullcontext()

    with ab.Graph().as_default() as graph:
        n = ab.placeholder((), "int32", "n")
        kernels: list[Any] = []
        for layer, value in enumerate(values):
            with on(layer):
                kernels.append(ab.constant(value))
        x = ab.constant(np.full((batch, units), 0.5, "float32"))
        zeros = ab.constant(np.zeros((batch, units), "float32"))

        def body(t: Any, *states: Any) -> tuple[Any, ...]:
            made: list[Any] = []
            given = x
            for layer in range(layers):
                with on(layer):
                    given, c = cell(given, states[2 * layer], states[2 * layer + 1], kernels[layer])
                made += [given, c]
            return (t + 1, *made)

        start = (0, *[zeros] * (2 * layers))
        state = ab.while_loop(lambda t, *_: t < n, body, start, swap_memory=swap, parallel_iterations=32)
        with on(layers - 1):
            loss = ab.ops.mean(state[-2] ** 2)
        gradients = ab.gradients(loss, kernels)
    return graph, [loss, *gradients], n


def _program(
    values: Sequence[np.ndarray[Any, Any]], batch: int, devices: int, swap: bool, kind: str = "sim"
) -> MachineProgram:
    graph, fetched, n = _training(values, batch, devices, swap, kind)
    return MachineProgram(graph, fetched, [n], exact=True, assign=_beside_layers)


def _beside_layers(operations: Any, feeds: Any) -> dict[Any, str]:
    """As the placer says; but what is on no given device goes where it is used, or else where its values are made.

    So sums of gradients, and what carries them from one time step to the next, are on the device of their layer.
    """
    places = dict(place_by_cost(operations, feeds))
    users: dict[Any, list[Any]] = {}
    for operation in places:
        for tensor in operation.inputs:
            users.setdefault(tensor.operation, []).append(operation)
    unplaced = [each for each in places if not each.device and not each.op.regions]
    unplaced = [each for each in unplaced if any(output.shape for output in each.outputs)]
    for operation in reversed(unplaced):
        given = [tensor.operation for tensor in operation.inputs if tensor.operation in places]
        around = [each for each in users.get(operation, ()) if not each.op.regions]
        around = around or [each for each in given if not isinstance(each.op, Parameter)]
        found = [places[each] for each in around if not places[each].startswith("cpu")]
        if found:
            places[operation] = found[0]
    return places


def _declare(count: int, speed: float, **options: Any) -> None:
    """Simulated devices that compute `speed` times as fast as at first."""
    figures = {"flops": 1e9 * speed, "memory_bandwidth": 1e15, "kernel_latency": 0.0, "latency": 1e-5, **options}
    host = {"count": 1, "flops": figures["flops"] / 10}  # or all that is small would be put there
    ab.config.set_devices(cpu=host, sim={"count": count, "virtual_time": False, **figures})


def _kernel_seconds(program: MachineProgram) -> float:
    """Return the seconds of the kernels of one time step, forward and backward, on whatever device."""
    nodes = program.machine.nodes
    return sum([node.seconds for node in nodes if node.kind == "op" and node.frame.parent is not None])


def _busy_seconds(program: MachineProgram) -> float:
    """Return the seconds of all kernels that the program has run until now."""
    (step,) = program._idle  # pyright: ignore[reportPrivateUsage]
    return sum([engine.kernel_seconds for engine in step.engines.values()])


def _speed(values: Sequence[np.ndarray[Any, Any]], batch: int, wanted: float) -> float:
    """Return how fast devices have to be for a time step of `wanted` seconds."""
    _declare(1, 1.0)
    return _kernel_seconds(_program(values, batch, 1, False)) / wanted


def _reference(values: Sequence[np.ndarray[Any, Any]], batch: int, steps: int) -> list[Any]:
    """Return what the compiled program of one CPU computes."""
    graph, fetched, n = _training(values, batch, 0, False)
    with ab.Session(graph) as session:
        return session.run(fetched, {n: np.int32(steps)})


def _check(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for each, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(each, wanted, rtol=1e-3, atol=1e-5)


def _timed(step: Callable[[], Any], seconds: float, least: int = 3) -> list[float]:
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < least or time.perf_counter() - began < seconds * BUDGET:
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return found


# --- swapping -------------------------------------------------------------------------------------------------------


def swapping(params: dict[str, Any]) -> Record:
    """Milliseconds of a time step, with a memory that holds what a little over 500 of them save."""
    length, swap = params["length"], params["swap"]
    values = weights(1, _UNITS)
    speed = _speed(values, _BATCH, _ITERATION)
    saved = params.get("saved") or _bytes_a_step(values)
    limit = round(saved * params.get("room", 520))
    ab.config.set_devices()
    expected = _reference(values, _BATCH, length)
    _declare(1, speed, bandwidth=_BANDWIDTH, memory_limit=limit)
    program = _program(values, _BATCH, 1, swap)
    try:
        found = program(np.int32(length))
    except DeviceMemoryError as error:
        return {"milliseconds": None, "limit": limit, "error": type(error).__name__}
    _check(found, expected)
    times = _timed(lambda: program(np.int32(length)), 5.0, 1)
    return {
        "milliseconds": 1e3 * float(np.median(times)) / length,
        "limit": limit,
        "saved": saved,
        "ideal": 1e3 * _busy_seconds(program) / (1 + len(times)) / length,
    }


def _bytes_a_step(values: Sequence[np.ndarray[Any, Any]], batch: int = _BATCH) -> float:
    """Return the bytes that a time step saves: the slope of the memory's peak."""
    peaks: list[int] = []
    for length in (20, 60):
        ab.config.set_devices(sim={"count": 1, "flops": 1e15, "memory_bandwidth": 1e15, "memory_limit": 2**40})
        program = _program(values, batch, 1, False)
        program(np.int32(length))
        (step,) = program._idle  # pyright: ignore[reportPrivateUsage]
        peaks.append(max([engine.peak_bytes or 0 for engine in step.engines.values()]))
    return (peaks[1] - peaks[0]) / 40


# --- layers on several devices --------------------------------------------------------------------------------------


def layers(params: dict[str, Any]) -> Record:
    """Seconds of a training step of 8 layers, which are placed on some devices."""
    devices, length = params["devices"], params.get("length", 100)
    values = weights(_LAYERS, _FEW_UNITS)
    speed = _speed(values, _FEW_ROWS, _LAYERS * _ITERATION)
    ab.config.set_devices()
    expected = _reference(values, _FEW_ROWS, length)
    scale = _FEW_ROWS * _FEW_UNITS / (_THEIR_BATCH * _THEIR_UNITS)
    _declare(devices, speed, bandwidth=6e9 * scale)
    program = _program(values, _FEW_ROWS, devices, False)
    _check(program(np.int32(length)), expected)
    times = _timed(lambda: program(np.int32(length)), 5.0, 1)
    kernels = _busy_seconds(program) / (1 + len(times))
    return {
        "seconds": float(np.median(times)),
        "ideal": kernels / devices * (length + devices - 1) / length,
        "length": length,
    }


OURS = {"swapping": swapping, "layers": layers}
