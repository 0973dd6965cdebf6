"""How the time to prepare a step, and to run it, grows with its program: four programs at doubled sizes.

`scalar_loop`: a loop of 100 iterations over two scalars whose body has as many operations as the size says, with its
gradient; a step is measured. `nested_conds`: conditions inside conditions, in both branches, as deep as the size says,
with the gradient. `chains`: so many independent chains of five operations that meet in one. `loops_in_a_row`: so many
loops, each of which takes the result of the one before, with the gradient. Of these the time from the graph to the
compiled program is measured, with kernels in the cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import BUDGET, bench, few_runs

import anabranch as ab

Record = dict[str, Any]
ITERATIONS = 100
_MOST_RUNS = 5


def scalar_loop(operations: int) -> tuple[list[Any], Any]:
    """(fetches, what is fed): a body of `operations` sums, products and functions of scalars."""
    x = ab.placeholder((), "float32", "x")

    def body(i: Any, a: Any, b: Any) -> tuple[Any, ...]:
        for _ in range(operations // 4):
            a, b = b, a * (1.0 - 0.01 / operations) - ab.ops.sin(b) * (1.0 / operations)
        return i + 1, a, b

    _, a, b = ab.while_loop(lambda i, *_: i < ITERATIONS, body, (0, x, x * 0.5))
    loss = a + b
    return [loss, *ab.gradients(loss, [x])], x


def nested_conds(depth: int) -> tuple[list[Any], Any]:
    """(fetches, what is fed): 2 to the power of `depth` leaves, of which one is computed."""
    x = ab.placeholder((), "float32", "x")

    def nested(level: int, value: Any) -> Any:
        if level == 0:
            return ab.ops.sin(value) * x
        return ab.cond(
            value > 0.1 * level,
            lambda: nested(level - 1, value * 0.9 + 0.1),
            lambda: nested(level - 1, ab.ops.cos(value)) * 1.1,
        )

    loss = nested(depth, x)
    return [loss, *ab.gradients(loss, [x])], x


def chains(count: int) -> tuple[list[Any], Any]:
    """(fetches, what is fed): `count` chains over vectors, stacked and summed."""
    x = ab.placeholder((16,), "float32", "x")
    ends: list[Any] = []
    for number in range(count):
        end = ab.ops.tanh(x * (1.0 + number)) + number
        ends.append(ab.ops.exp(-end) * x)
    return [ab.ops.sum(ab.ops.stack(ends))], x


def loops_in_a_row(count: int) -> tuple[list[Any], Any]:
    """(fetches, what is fed): loops of ten iterations over a vector, with one matrix."""
    x = ab.placeholder((8,), "float32", "x")
    matrix = ab.constant(np.eye(8, dtype="float32") * 1.5)
    state = x
    for _ in range(count):
        _, state = ab.while_loop(lambda i, _: i < 10, lambda i, s: (i + 1, ab.ops.tanh(s @ matrix)), (0, state))
    loss = ab.ops.sum(state)
    return [loss, *ab.gradients(loss, [x, matrix])], x


PROGRAMS: dict[str, Callable[[int], tuple[list[Any], Any]]] = {
    "scalar loop": scalar_loop,
    "nested conds": nested_conds,
    "chains": chains,
    "loops in a row": loops_in_a_row,
}


def _fed(x: Any) -> Any:
    return np.full(x.shape, 0.3, "float32")


def _step(of: str, size: int) -> Record:
    """Milliseconds of a step; the first one, compilation included, is told apart."""
    with ab.Graph().as_default(), ab.Session() as session:
        fetches, x = PROGRAMS[of](size)
        step, value = session.make_callable(fetches, [x]), _fed(x)
        return bench(lambda: step(value)[0], budget_s=2.0)


def _prepared(of: str, size: int) -> Record:
    """Milliseconds from a graph to the program of its step, which then runs once, unmeasured."""
    seconds: list[float] = []
    check = 0.0
    for _ in range(max(2, round(_MOST_RUNS * BUDGET))):
        with ab.Graph().as_default() as graph:
            fetches, x = PROGRAMS[of](size)
            start = time.perf_counter()
            program = ab.Session(graph).program(fetches, [x])
            seconds.append(time.perf_counter() - start)
            check = float(program(_fed(x))[0])
    first, *others = seconds
    return few_runs(others, first, [check])


def _row(size: int) -> Callable[[dict[str, Any]], Record]:
    def measure(params: dict[str, Any]) -> Record:
        return (_step if params["measured"] == "step" else _prepared)(params["of"], size)

    return measure


SIZES = {
    "scalar loop": (200, 400, 800, 1600, 3200),
    "nested conds": (5, 6, 7, 8),
    "chains": (500, 1000, 2000),
    "loops in a row": (75, 150, 300),
}

OURS = {f"anabranch_{size}": _row(size) for sizes in SIZES.values() for size in sizes}
