"""Measure what the executor itself needs: tokens a second without clusters and fused kernels, and loops between two
CPUs.

A token visit is a token that arrives at a node: each is counted in the plan of its frame, once an iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from machine_loops import rates

import anabranch as ab
from anabranch.engine.machine.program import MachineProgram

Record = dict[str, Any]


def _visits(program: MachineProgram) -> int:
    """Return the number of tokens that the last run took."""
    (step,) = program._idle  # pyright: ignore[reportPrivateUsage]
    return sum([plan.arrivals * plan.iterations for plan in step.plans.values()])


def tokens(params: dict[str, Any]) -> Record:
    """A loop over two devices with 16 additions of numbers in its body, each a node of its own."""
    iterations = params.get("iterations", 10_000)
    ab.config.set_devices(cpu=2)
    with ab.Graph().as_default() as graph:
        n = ab.placeholder((), "int32", "n")

        def body(i: Any, x: Any, y: Any) -> tuple[Any, ...]:
            for _ in range(8):
                with ab.device("cpu:0"):
                    x = x + 1.0
                with ab.device("cpu:1"):
                    y = y + 1.0
            return i + 1, x, y

        state = ab.while_loop(lambda i, x, y: i < n, body, (0, 0.0, 0.0))
        program = MachineProgram(graph, list(state), [n], clusters=False, exact=True)

    def step() -> None:
        count, x, y = program(np.int32(iterations))
        assert (count, x, y) == (iterations, 8 * iterations, 8 * iterations), "the loop has counted something else"

    step()
    visits = _visits(program)
    found = rates(step, visits, 3.0)
    return found | {"visits": visits / iterations}


def _crossing(loops: int) -> MachineProgram:
    """Loops in which a number goes to the other device and another one comes back, in each iteration."""
    with ab.Graph().as_default() as graph:
        n = ab.placeholder((), "int32", "n")
        fetched: list[Any] = []

        def body(i: Any, x: Any, y: Any) -> tuple[Any, ...]:
            with ab.device("cpu:1"):
                there = x + 1.0
            with ab.device("cpu:0"):
                back = y + 1.0
            return i + 1, back, there

        for _ in range(loops):
            fetched.extend(ab.while_loop(lambda i, x, y: i < n, body, (0, 0.0, 0.0)))
        return MachineProgram(graph, fetched, [n])


def crossing(params: dict[str, Any]) -> Record:
    """One such loop, two in one step, or two steps in two threads: iterations a second of all together."""
    iterations, kind = params.get("iterations", 20_000), params["kind"]
    ab.config.set_devices(cpu=2)
    program = _crossing(2 if kind == "one step" else 1)

    def step() -> None:
        found = program(np.int32(iterations))
        assert all(each == iterations for each in found), "a loop has counted something else"

    if kind == "two threads":
        return _in_threads(step, iterations)
    return rates(step, iterations * (2 if kind == "one step" else 1), 3.0)


def _in_threads(step: Callable[[], None], iterations: int) -> Record:
    with ThreadPoolExecutor(2) as pool:

        def both() -> None:
            for under_way in [pool.submit(step) for _ in range(2)]:
                under_way.result()

        return rates(both, 2 * iterations, 3.0)


OURS = {"tokens": tokens, "crossing": crossing}
