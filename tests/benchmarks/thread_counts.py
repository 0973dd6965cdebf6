"""Loops and products of 40 shapes on all threads against one: none is to take longer on more threads.

    python tests/benchmarks/thread_counts.py [--threads 2] [--rounds 9] [--check] [loop] [product] [gradient]

Shapes are 1 to 64 rows by 64 to 512 columns; weights are square. `loop` is a training step of a plain recurrent cell
over 20 steps, `product` one product, `gradient` that of a weight. Two processes, one for each number of threads, take
turns of 20 ms on each shape. A figure is the median, over the rounds, of the ratio of their least times: above 1, more
threads take longer. Both are pinned to as many processors as there are threads, at real-time priority where that is
allowed. Where memory is differs from process to process, and so do times of the same code: a ratio above 1.05 is
measured again by four pairs of fresh processes, and the median of the five counts. With --check the exit status is 1
where that is above 1.05, too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import harness
from table import markdown

ROWS = (1, 2, 4, 8, 16, 32, 48, 64)
COLUMNS = (64, 128, 192, 256, 512)
KINDS = ("loop", "product", "gradient")
STEPS = 20
TURN = 0.02  # seconds
LIMIT = 1.05


# --- a process that measures ----------------------------------------------------------------------------------------


def step_of(kind: str, rows: int, columns: int) -> Callable[[], Any]:
    """Return a step of one kind and shape."""
    import numpy as np

    import anabranch as ab

    random = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return ab.Variable((random.standard_normal(shape) / shape[-1] ** 0.5).astype("float32"), trainable=False)

    with ab.Graph().as_default():
        x, w = draw(rows, columns), draw(columns, columns)
        if kind == "product":
            fetches = [x @ w]
        elif kind == "gradient":
            fetches = ab.gradients(ab.ops.sum((x @ w) * draw(rows, columns)), [w])
        else:
            last = ab.while_loop(lambda t, _: t < STEPS, lambda t, h: (t + 1, ab.ops.tanh(h @ w + x)), (0, x))[1]
            fetches = ab.gradients(ab.ops.mean(last * last), [w])
        return ab.Session().make_callable(fetches, [])


def serve() -> None:
    """Measure the shapes that come line by line; answer each with the least seconds of a step."""
    steps: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        if line not in steps:
            kind, rows, columns = line.split()
            steps = {line: step_of(kind, int(rows), int(columns))}
            for _ in range(12):  # what is compiled, and the runs in which the ways of a step are compared
                steps[line]()
        step, least = steps[line], float("inf")
        end = time.perf_counter() + TURN
        while True:
            began = time.perf_counter()
            step()
            now = time.perf_counter()
            least = min(least, now - began)
            if now > end:
                break
        print(least, flush=True)


# --- the process that compares --------------------------------------------------------------------------------------


class Worker:
    """A process with a number of threads."""

    def __init__(self, threads: int, is_realtime: bool) -> None:
        command = [sys.executable, __file__, "--serve"]
        environment = {**os.environ, "ANABRANCH_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            ["chrt", "-r", "1", *command] if is_realtime else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def seconds(self, shape: str) -> float:
        """Return the least seconds of a step in one turn."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(shape + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Pair:
    """A process with one thread and one with several."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._is_realtime = harness.can_run_realtime()
        self._start()

    def _start(self) -> None:
        self._workers = [Worker(threads, self._is_realtime) for threads in (1, self._threads)]

    def fresh(self) -> Pair:
        """The pair, with new processes."""
        self.stop()
        self._start()
        return self

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    def compared(self, shape: str, rounds: int) -> tuple[float, float]:
        """Return the milliseconds on one thread, and the ratio of those on several."""
        pairs: list[tuple[float, float]] = []
        for number in range(rounds):
            order = self._workers if number % 2 else self._workers[::-1]
            times = [worker.seconds(shape) for worker in order]
            one, several = times if number % 2 else times[::-1]
            pairs.append((one, several))
        return 1e3 * min(one for one, _ in pairs), statistics.median(several / one for one, several in pairs)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--threads", type=int, default=2, help="of the one process; the other has one")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each process for a shape")
    parser.add_argument("--check", action="store_true", help=f"exit 1 where a ratio is above {LIMIT}")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve()
        return 0
    harness.pin_to_processors(options.threads)
    pair = Pair(options.threads)
    slow: list[str] = []
    try:
        for kind in options.kinds or KINDS:
            table: list[list[str]] = []
            for rows in ROWS:
                table.append([str(rows)])
                for columns in COLUMNS:
                    shape = f"{kind} {rows} {columns}"
                    alone, ratio = pair.compared(shape, options.rounds)
                    if ratio > LIMIT:
                        again = [pair.fresh().compared(shape, options.rounds)[1] for _ in range(4)]
                        ratio = statistics.median([ratio, *again])
                    if ratio > LIMIT:
                        slow.append(f"{shape}: {ratio:.2f}")
                    table[-1].append(f"{alone:.3g} ms, {ratio:.2f}")
            print(f"{kind}: on one thread, and on {options.threads} of that")
            print(markdown(["rows", *[f"{columns} columns" for columns in COLUMNS]], table), flush=True)
    finally:
        pair.stop()
    print(f"above {LIMIT}: {'; '.join(slow) or 'none'}")
    return 1 if options.check and slow else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
