"""Steps that compute nothing: run by real processes, and simulated for more with the costs that those have shown.

Source: Abadi et al., "TensorFlow: A System for Large-Scale Machine Learning", OSDI 2016, section 6.2, figure 6.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cluster_costs import PATIENT, OfBytes, null_step, processor_of
from cluster_model import Clock, Processor
from shared.tasks import TaskProcess, tasks

WORKERS, PS = (1, 2, 4, 8), 2  # of the real steps
ROWS = 32
Figures = dict[tuple[str, int], Any]  # by what was measured, and for how many workers


class NullCosts(NamedTuple):
    """The seconds of processors that parts of a step take.

    Attributes:
        run: of the first worker, to have another task run its part of a step.
        begin: of a task, for its part without values.
        value: of a ps task, for a value that one worker reads and changes.
        own: of a worker, for the same value.
        ps, worker: for each byte, in both directions; see `OfBytes`.
    """

    run: float
    begin: float
    value: float
    own: float
    ps: float = 0.0
    worker: float = 0.0


# --- real -----------------------------------------------------------------------------------------------------------


def median_ms(run: Callable[[], Any], rounds: int) -> float:
    run()
    found: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return 1000 * statistics.median(found)


def real() -> tuple[Figures, dict[str, NullCosts]]:
    """Measure steps of real processes, twice; gives the better of each two figures, and the costs."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # of each process
    with tasks(ps=PS, workers=max(WORKERS), all_with=PATIENT) as running:
        (one, costs), (other, more) = measured(running), measured(running)
    figures = {key: min(value, other[key]) for key, value in one.items()}
    return figures, {kind: NullCosts(*map(min, costs[kind], more[kind])) for kind in costs}


def measured(running: Mapping[str, TaskProcess]) -> tuple[Figures, dict[str, NullCosts]]:
    found: Figures = {}
    costs: dict[str, NullCosts] = {}
    target = running["/job:worker/task:0"].target
    for kind, size, rows, rounds in (("scalar", 1, 0, 30), ("sparse", 1 << 20, ROWS, 15)):
        spent: dict[int, dict[str, float]] = {}
        for workers in WORKERS:
            step = null_step(target, PS, workers, size, rows=rows)
            found[kind, workers] = median_ms(step, rounds)
            if workers in (WORKERS[0], WORKERS[-1]):
                spent[workers] = processor_of(running, step, rounds)
        costs[kind] = costs_of(spent)
    for workers in WORKERS:
        found["100 MB", workers] = median_ms(null_step(target, PS, workers, 100 * (1 << 18) // PS), 5)
    found["1 GB", 1] = median_ms(null_step(target, PS, 1, (1 << 28) // PS), 3)
    return found, costs


def costs_of(spent: dict[int, dict[str, float]]) -> NullCosts:
    """The costs of a step, by the processor time of each task for one worker, and for the largest number of them."""
    first, last = (spent[workers] for workers in (min(spent), max(spent)))
    more = max(spent) - min(spent)
    ps, master = "/job:ps/task:0", "/job:worker/task:0"
    value = max(last[ps] - first[ps], 0.0) / more
    begin = max(first[ps] - value, 0.0)
    others = [last[f"/job:worker/task:{number}"] for number in range(1, max(spent))]
    own = max(statistics.median(others) - begin, 0.0) / PS
    return NullCosts(max(last[master] - first[master], 0.0) / more, begin, value, own)


# --- simulated ------------------------------------------------------------------------------------------------------


class NullStep:
    """A step of workers and ps tasks, all of which do the same at the same time, and one of which is simulated.

    Args:
        costs: of processors.
        ps, workers: how many there are.
        size: bytes of the parameters on all ps tasks together, all of which each worker reads and changes.
        pieces: of how many tensors those of a ps task consist.
        card: bytes a second of each task, in each direction.
        latency: seconds of a message.
    """

    def __init__(
        self, costs: NullCosts, ps: int, workers: int, size: float, pieces: int, card: float, latency: float
    ) -> None:
        self._costs, self._count, self._latency = costs, ps, latency
        self._clock = Clock(ps * card, card, latency)
        self._piece = size / pieces  # of all ps tasks together
        self._master, self._ps = Processor(), Processor()
        self._workers = [Processor() for _ in range(workers)]
        ready = self._ps.end_of(self._master.end_of(0.0, ps * costs.run / 2) + latency, costs.begin)
        for worker in self._workers:
            worker.end_of(self._master.end_of(0.0, costs.run / 2) + latency, costs.begin)
        self._ended = 0.0
        self._left = [pieces] * workers
        self._clock.at(ready, self._begin)

    def seconds(self) -> float:
        """Let the step happen; gives how long it takes."""
        while self._clock.step():
            pass
        return self._master.end_of(self._ended, self._count * self._costs.run / 2)

    def _begin(self) -> None:
        for worker, pieces in enumerate(self._left):
            self._read(worker, pieces)

    def _read(self, worker: int, left: int) -> None:
        """Have a worker get a tensor of each ps task, and the next ones when these have left."""
        costs = self._costs
        now = self._ps.end_of(self._clock.now, costs.value / 2)

        def begin() -> None:
            busy = self._busy(worker)
            over = (lambda: self._read(worker, left - 1)) if left > 1 else _nothing
            self._clock.send(self._clock.down, self._piece, over, lambda: self._at(busy, lambda: self._got(worker)))

        self._clock.at(now, begin)

    def _got(self, worker: int) -> None:
        done = self._workers[worker].end_of(self._clock.now, self._costs.own * self._count)

        def send() -> None:
            busy = self._busy(worker)
            self._clock.send(self._clock.up, self._piece, _nothing, lambda: self._at(busy, lambda: self._put(worker)))

        self._clock.at(done, send)

    def _put(self, worker: int) -> None:
        done = self._ps.end_of(self._clock.now, self._costs.value / 2)
        self._left[worker] -= 1
        if not self._left[worker]:
            self._ended = max(self._ended, self._master.end_of(done + self._latency, self._costs.run / 2))

    def _busy(self, worker: int) -> float:
        """Have both ends work on the bytes of a transfer that begins now; return until when."""
        ps, own = self._costs.ps * self._piece / self._count / 2, self._costs.worker * self._piece / 2
        return max(self._ps.end_of(self._clock.now, ps), self._workers[worker].end_of(self._clock.now, own))

    def _at(self, moment: float, do: Callable[[], None]) -> None:
        self._clock.at(max(moment, self._clock.now), do)


def _nothing() -> None:
    pass


def simulated(costs: dict[str, NullCosts], of: OfBytes, card: float, latency: float, pieces: int) -> Figures:
    """Milliseconds of steps with 16 ps tasks that have so many tensors each, of 1 and of 100 workers."""
    found: Figures = {}
    for name, size in (("scalar", 64.0), ("100 MB", 100e6), ("1 GB", 1e9), ("sparse", 16.0 * ROWS * 64)):
        known = costs["sparse" if name == "sparse" else "scalar"]._replace(ps=of.ps, worker=of.worker)
        for workers in (1, 100):
            count = pieces if size > 1e6 else 1
            found[name, workers] = 1000 * NullStep(known, 16, workers, size, count, card, latency).seconds()
    return found


__all__ = ["WORKERS", "NullCosts", "NullStep", "real", "simulated"]
