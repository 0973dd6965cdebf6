"""Loops across simulated devices, in real time: iterations a second of a trivial body, and of a chain of layers.

Kernels are computed on the host and take as long as the device's figures say; what the executor itself needs for every
token, on the one thread that runs all partitions, is part of every figure.

Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 6.1, figures 11 and 12.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from common import BUDGET

import anabranch as ab
from anabranch.engine.machine.program import MachineProgram

Record = dict[str, Any]
_KERNEL, _LATENCY, _BANDWIDTH = 5e-6, 1e-6, 1e10
_SIDE = 8  # of the matrices of the chain, which stand for larger ones: their products take a millisecond
_CHAIN, _PRODUCT, _CHAIN_LATENCY = 8, 1e-3, 1e-5


def rates(step: Callable[[], Any], iterations: int, seconds: float) -> Record:
    """Iterations a second of `step()`, called for some time after a first call."""
    step()
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < 5 or time.perf_counter() - began < seconds * BUDGET:
        start = time.perf_counter()
        step()
        found.append(iterations / (time.perf_counter() - start))
    low, median, high = (float(each) for each in np.percentile(found, [5, 50, 95]))
    return {"rate": median, "low": low, "high": high, "calls": len(found)}


# --- a trivial body on many devices ---------------------------------------------------------------------------------


def _trivial(devices: int, barrier: bool) -> MachineProgram:
    """x + 1 on each device; with a barrier what is added comes from one device, which had all x for it."""
    one = np.ones((2, 2), "float32")
    with ab.Graph().as_default() as graph:
        n = ab.placeholder((), "int32", "n")

        def free(i: Any, *xs: Any) -> tuple[Any, ...]:
            return (i + 1, *[_on(k, lambda x=x: x + 1.0) for k, x in enumerate(xs)])

        def with_barrier(i: Any, agreed: Any, *xs: Any) -> tuple[Any, ...]:
            made = [_on(k, lambda x=x: x + agreed) for k, x in enumerate(xs)]
            agreed = _on(0, lambda: ab.ops.sum(ab.ops.stack(made), 0) * 0.0 + 1.0)
            return (i + 1, agreed, *made)

        start = (0, *([ab.constant(one)] if barrier else []), *[ab.constant(one)] * devices)
        state = ab.while_loop(lambda i, *_: i < n, with_barrier if barrier else free, start)
        return MachineProgram(graph, [state[0], *state[-devices:]], [n])


def _on(number: int, build: Callable[[], Any]) -> Any:
    with ab.device(f"sim:{number}"):
        return build()


def trivial(params: dict[str, Any]) -> Record:
    devices, barrier = params["devices"], params["barrier"]
    _declare(devices, _KERNEL, _LATENCY)
    program = _trivial(devices, barrier)
    iterations = params.get("iterations") or max(100, 20_000 // devices)

    def step() -> None:
        count, *found = program(np.int32(iterations))
        assert count == iterations, f"{count} iterations instead of {iterations}"
        assert all((x == iterations + 1).all() for x in found), "a device has added something else"

    return rates(step, iterations, 4.0) | {"ideal": _ideal(devices, barrier)}


def _declare(count: int, kernel: float, latency: float, **options: Any) -> None:
    figures = {"flops": 1e15, "memory_bandwidth": 1e15, "bandwidth": _BANDWIDTH, **options}
    ab.config.set_devices(
        sim={"count": count, "virtual_time": False, "kernel_latency": kernel, "latency": latency, **figures}
    )


def _ideal(devices: int, barrier: bool) -> float:
    """Iterations a second if the host took no time: what one waits for is on the longest way around."""
    if not barrier:
        return 1 / _KERNEL
    copy = _LATENCY + 16 / _BANDWIDTH
    others = devices - 1
    there = copy + others * copy if others else 0.0  # they come one after the other to the device that has all
    return 1 / (2 * _KERNEL + there + (2 * copy if others else 0.0))


# --- a chain of layers ----------------------------------------------------------------------------------------------


def _chained(parallel: int) -> MachineProgram:
    """Layer k multiplies its state by what layer k - 1 made; the host takes what the last one made."""
    state = ab.constant
    with ab.Graph().as_default() as graph:
        n = ab.placeholder((), "int32", "n")

        def body(i: Any, total: Any, *states: Any) -> tuple[Any, ...]:
            made: list[Any] = []
            for number, own in enumerate(states):
                given = made[-1] if made else own
                made.append(_on(number, lambda own=own, given=given: own @ given))
            with ab.device("cpu:0"):
                total = total + made[-1]
            return (i + 1, total, *made)

        start = [state(_permutation(number)) for number in range(_CHAIN)]
        total = state(np.zeros((_SIDE, _SIDE), "float32"))
        found = ab.while_loop(lambda i, *_: i < n, body, (0, total, *start), parallel_iterations=parallel)
        return MachineProgram(graph, [found[1], *found[2:]], [n])


def _permutation(number: int) -> np.ndarray[Any, Any]:
    """A permutation, so that products of any number of them are exact."""
    return np.eye(_SIDE, dtype="float32")[np.random.default_rng(number).permutation(_SIDE)]


def _reference(iterations: int) -> Sequence[np.ndarray[Any, Any]]:
    states = [_permutation(number) for number in range(_CHAIN)]
    total = np.zeros((_SIDE, _SIDE), "float32")
    for _ in range(iterations):
        given = states[0]
        for number, own in enumerate(states):
            given = states[number] = own @ given
        total = total + given
    return [total, *states]


def chain(params: dict[str, Any]) -> Record:
    parallel, iterations = params["parallel"], params.get("iterations", 200)
    _declare(_CHAIN, 0.0, _CHAIN_LATENCY, flops=2 * _SIDE**3 / _PRODUCT)
    program = _chained(parallel)
    expected = _reference(iterations)

    def step() -> None:
        found = program(np.int32(iterations))
        assert all(map(np.array_equal, found, expected)), "the chain has computed something else"

    copies = 2 * _CHAIN - 1  # to the host and to the next device; from the last one to the host only
    around = _CHAIN * _PRODUCT + copies * (_CHAIN_LATENCY + 4 * _SIDE**2 / _BANDWIDTH)
    return rates(step, iterations, 4.0) | {"ideal": min(parallel / around, 1 / _PRODUCT)}


OURS = {"trivial": trivial, "chain": chain}
