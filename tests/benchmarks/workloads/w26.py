"""Measure how the time to prepare and run a step grows with its program: eight kinds of program at doubled sizes.

`scalar_loop`: a loop of 100 iterations over two scalars whose body has as many operations as the size says, with its
gradient; a step is measured. `nested_conds`: conditions inside conditions, in both branches, as deep as the size says,
with the gradient. `chains`: so many independent chains of five operations that end in one. `loops_in_a_row`: so many
loops, each of which takes the result of the one before, with the gradient. `scalar_chain`: so many operations on one
scalar, with the gradient. `layer_stack`: so many dense layers, with the gradient and its updates. `variables`: so many
variables under one optimizer with moments. `nested_loops`: loops in loops, so many deep, with the gradient. Of these
the time from the graph to the compiled program is measured, with kernels in the cache: the processor's, so that what
else runs on the machine does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import BUDGET, bench, few_runs
from shared.growing_programs import PROGRAMS

import anabranch as ab

Record = dict[str, Any]
_MOST_RUNS = 5


def _fed(x: Any) -> Any:
    return np.full(x.shape, 0.3, "float32")


def _step(of: str, size: int) -> Record:
    """Milliseconds of a step; the first one, compilation included, is reported by itself."""
    with ab.Graph().as_default(), ab.Session() as session:
        fetches, x = PROGRAMS[of](size)
        step, value = session.make_callable(fetches, [x]), _fed(x)
        return bench(lambda: step(value)[0], budget_s=2.0)


def _prepared(of: str, size: int) -> Record:
    """Milliseconds of the processor from a graph to the program of its step, which then runs once, unmeasured."""
    seconds: list[float] = []
    check = 0.0
    for _ in range(max(2, round(_MOST_RUNS * BUDGET))):
        with ab.Graph().as_default() as graph:
            fetches, x = PROGRAMS[of](size)
            session = ab.Session(graph)
            start = time.process_time()
            program = session.program(fetches, [x])
            seconds.append(time.process_time() - start)
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
    "scalar chain": (1000, 2000, 4000),
    "layer stack": (50, 100, 200),
    "variables": (100, 200, 400),
    "nested loops": (2, 4, 8),
}

OURS = {f"anabranch_{size}": _row(size) for sizes in SIZES.values() for size in sizes}
