"""Steps between a worker and two ps tasks, by each plane: 50 MB read and written, a scalar from each, a loop.

The tasks of all planes run at the same time and take turns, so that what else the machine does falls on all of them.
Printed are medians and the least, in milliseconds.

    python tests/benchmarks/planes.py [ROUNDS]
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np  # noqa: E402
from shared.tasks import TOKEN, WORKER, tasks  # noqa: E402

import anabranch as ab  # noqa: E402
from anabranch.distribute.transport.planes import Plane  # noqa: E402

ELEMENTS = 25_000_000 // 4  # of each of two variables
ITERATIONS = 1000
PS = ("/job:ps/task:0", "/job:ps/task:1")


def dense() -> Any:
    """Read two variables of 25 MB on a worker, and write them."""
    variables: list[Any] = []
    for task in PS:
        with ab.device(task):
            variables.append(ab.Variable(np.zeros(ELEMENTS, "float32"), name="large"))
    with ab.device(WORKER):
        made = [variable.value + 1.0 for variable in variables]
    return [variable.assign(value).operation for variable, value in zip(variables, made, strict=True)]


def scalars() -> Any:
    """Read a number of each ps task."""
    found: list[Any] = []
    for task in PS:
        with ab.device(task):
            found.append(ab.Variable(1.0, name="small") + 0.0)
    with ab.device(WORKER):
        return found[0] + found[1]


def loop() -> Any:
    """Iterate over two tasks, with a number each way."""

    def body(i: Any, h: Any) -> Any:
        with ab.device(PS[0]):
            half = h * 0.5
        with ab.device(WORKER):
            return i + 1, half + 1.0

    return ab.while_loop(lambda i, h: i < ITERATIONS, body, (0, ab.constant(0.0)))[1]


CASES: dict[str, tuple[Callable[[], Any], int]] = {"50 MB": (dense, 1), "scalars": (scalars, 20), "loop": (loop, 1)}


def main() -> None:
    """Print a row for each plane."""
    os.environ["ANABRANCH_TOKEN"] = TOKEN
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    taken: dict[tuple[str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        calls: dict[tuple[str, str], Any] = {}
        for plane in Plane:
            os.environ["ANABRANCH_PLANE"] = plane
            running = stack.enter_context(tasks(ps=2))
            with ab.Graph().as_default() as graph:
                made = {case: build() for case, (build, _) in CASES.items()}
            session = stack.enter_context(ab.Session(graph, target=running[WORKER].target))
            calls |= {(plane, case): session.make_callable(fetches, []) for case, fetches in made.items()}
        for number in range(rounds + 2):
            for (plane, case), call in calls.items():
                times = CASES[case][1]
                began = time.perf_counter()
                for _ in range(times):
                    call()
                if number >= 2:  # the first ones prepare
                    taken.setdefault((plane, case), []).append((time.perf_counter() - began) / times * 1e3)
    print(f"{'':15}" + "".join(f"{case:>20}" for case in CASES))
    for plane in Plane:
        cells = [taken[plane, case] for case in CASES]
        print(f"{plane:15}" + "".join(f"{statistics.median(each):11.2f} ({min(each):.2f})" for each in cells))


if __name__ == "__main__":
    main()
