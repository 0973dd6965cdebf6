"""Training of a language model with a full and a sampled softmax on ps tasks: simulated, and its rows counted for real.

Source: Abadi et al., "TensorFlow: A System for Large-Scale Machine Learning", OSDI 2016, section 6.4, figure 9.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from shared.tasks import PS, WORKER, tasks

import anabranch as ab

WORDS, UNITS, SAMPLED, POSITIONS = 40_000, 512, 512, 512
RATE = 1e12  # floating-point operations a second of a worker, and of a ps task
CARD = 1.25e9  # bytes a second of each one's card, in each direction
_ROW = 4 * UNITS
_LSTM = 3 * 2 * POSITIONS * (2 * UNITS) * (4 * UNITS)  # operations of a step: forward, and twice that backward
_CLASS = 3 * 2 * POSITIONS * UNITS  # for each class


# --- real -----------------------------------------------------------------------------------------------------------


def rows_moved(units: int = 64) -> dict[str, float]:
    """Count the rows of the softmax's matrix that go from a ps task to a worker, which computes the loss of a batch.

    Args:
        units: elements of a row.
    """
    found: dict[str, float] = {}
    labels = np.arange(POSITIONS, dtype="int32")[:, None] * (WORDS // POSITIONS)
    with tasks(ps=1, workers=1) as running:
        with ab.Graph().as_default() as graph:
            with ab.device(PS):
                matrix = ab.Variable(np.zeros((WORDS, units), "float32"), name="matrix")
                biases = ab.Variable(np.zeros(WORDS, "float32"), name="biases")
            with ab.device(WORKER):
                hidden, given = ab.placeholder((POSITIONS, units), "float32"), ab.placeholder((POSITIONS, 1), "int32")
                of_sample = ab.nn.sampled_softmax_loss(matrix, biases, given, hidden, SAMPLED, WORDS, seed=0)
                logits = hidden @ ab.ops.transpose(matrix.value)
                losses = {"sampled": ab.ops.mean(of_sample), "full": ab.ops.mean(ab.ops.logsumexp(logits, -1))}
        with ab.Session(graph, target=running[WORKER].target) as session:
            fed = {hidden: np.ones((POSITIONS, units), "float32"), given: labels}
            for kind, loss in losses.items():
                session.run(loss, fed)
                before = _shared(running[PS].target)
                session.run(loss, fed)
                found[kind] = (_shared(running[PS].target) - before) / (4 * units)
    return found


def _shared(target: str) -> int:
    """The bytes of large values that a task has sent to others of this machine."""
    return sum(each.bytes_shared for each in ab.distribute.status(target).connections)


# --- simulated ------------------------------------------------------------------------------------------------------


class _Server:
    """Something that serves one request after the other."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = 0.0

    def end_of(self, now: float, size: float) -> float:
        """Give when a request that comes now will have been served."""
        self._free = max(now, self._free) + size / self._rate
        return self._free


class _Machine:
    """A worker or a ps task: its processor, and its card in each direction."""

    def __init__(self) -> None:
        self.processor, self.incoming, self.outgoing = _Server(RATE), _Server(CARD), _Server(CARD)


def words_a_second(kind: str, workers: int, ps: int, steps: int = 6) -> float:
    """Words a second that workers train, each by itself, with the tables in equal shards on ps tasks.

    "full": each shard gets the outputs of the LSTM, computes its logits and gradients, and sends back those of the
    outputs. "sampled": the worker gets the rows of the sampled and of the true classes, and sends back their gradients.
    """
    machines, shards = [_Machine() for _ in range(workers)], [_Machine() for _ in range(ps)]
    events: list[tuple[float, int, Callable[[float], None]]] = []
    numbers = itertools.count()
    ended: list[float] = []

    def at(time: float, do: Callable[[float], None]) -> None:
        heapq.heappush(events, (time, next(numbers), do))

    def exchange(worker: _Machine, size: float, back: float, work: float, then: Callable[[float], None]) -> Any:
        """A request to all shards: bytes to each, operations there, and bytes back."""

        def begin(now: float) -> None:
            left = [ps]

            def received(now: float) -> None:
                left[0] -= 1
                if not left[0]:
                    then(now)

            for shard in shards:
                at(worker.outgoing.end_of(now, size), lambda now, s=shard: at(s.incoming.end_of(now, size), came(s)))

            def came(shard: _Machine) -> Callable[[float], None]:
                sent = lambda now: at(worker.incoming.end_of(now, back), received)  # noqa: E731 - a chain of events
                computed = lambda now: at(shard.outgoing.end_of(now, back), sent)  # noqa: E731
                return lambda now: at(shard.processor.end_of(now, work), computed)

        return begin

    def step(worker: _Machine, left: int) -> Callable[[float], None]:
        rows = POSITIONS * _ROW
        classes = SAMPLED + POSITIONS

        def over(now: float) -> None:
            ended.append(now)
            if left > 1:
                at(now, step(worker, left - 1))

        update = exchange(worker, (rows + (classes * _ROW if kind == "sampled" else 0)) / ps, 0.0, 0.0, over)
        backward = lambda now: at(worker.processor.end_of(now, _LSTM * 2 / 3), update)  # noqa: E731
        if kind == "full":
            softmax = exchange(worker, rows, rows, _CLASS * WORDS / ps, backward)
        else:
            alone = lambda now: at(worker.processor.end_of(now, _CLASS * classes), backward)  # noqa: E731
            softmax = exchange(worker, 0.0, classes * _ROW / ps, 0.0, alone)
        forward = lambda now: at(worker.processor.end_of(now, _LSTM / 3), softmax)  # noqa: E731
        return exchange(worker, 0.0, rows / ps, 0.0, forward)

    for machine in machines:
        at(0.0, step(machine, steps))
    while events:
        now, _, do = heapq.heappop(events)
        do(now)
    return POSITIONS * len(ended) / max(ended)


__all__ = ["rows_moved", "words_a_second"]
