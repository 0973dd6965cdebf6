"""A cluster that trains, simulated: the protocol of replicas, with drawn computing times and links of given rates.

`ReplicaStepsState` hands out tickets, counts gradients and chooses sets as on ps task 0. Time is simulated: workers
read parameters over the ps tasks' outgoing links, compute for a time that is drawn, and send gradients over the
incoming links, which all transfers share equally. A worker whose gradients come too late gives them up; what it has
begun to transfer is transferred.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from anabranch.engine.queues.attempts import Attempt
from anabranch.engine.queues.replica_state import ReplicaStepsState

_WARMING = 5  # steps at the beginning that do not count


class Costs(NamedTuple):
    """The times that parts of a cluster take.

    Attributes:
        link: bytes a second of all ps tasks together, in each direction.
        card: bytes a second of one worker.
        latency: seconds from a request to the first byte.
        parameters, gradients: bytes that a worker reads, and sends, in a step.
        apply: seconds in which a set is applied.
        pieces: of how many tensors the parameters of a ps task consist. They come one after the other. The gradient
            of one is sent while the next one comes, so that this is for steps that compute nothing.
    """

    link: float
    card: float
    latency: float
    parameters: float
    gradients: float
    apply: float
    pieces: int = 1


class Link:
    """A link whose transfers share its rate equally: by virtual time, in which each has a fixed end."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._virtual = self._now = 0.0
        self._ends: list[tuple[float, int, Any]] = []
        self._count = itertools.count()

    def add(self, now: float, size: float, done: Any) -> None:
        self._advance(now)
        heapq.heappush(self._ends, (self._virtual + size, next(self._count), done))

    def next_end(self) -> float:
        if not self._ends:
            return float("inf")
        return self._now + (self._ends[0][0] - self._virtual) * len(self._ends) / self._rate

    def pop(self, now: float) -> Any:
        self._advance(now)
        return heapq.heappop(self._ends)[2]

    def _advance(self, now: float) -> None:
        if self._ends:
            self._virtual += (now - self._now) * self._rate / len(self._ends)
        self._now = now


class Stream:
    """Pieces of which each is sent when the one before it has arrived.

    Args:
        send: sends a piece, and calls what it is given when the piece has arrived.
        arrived: called for each piece.
    """

    def __init__(self, send: Callable[[Callable[[], None]], None], arrived: Callable[[], None]) -> None:
        self._send, self._arrived, self._waiting = send, arrived, 0

    def add(self) -> None:
        self._waiting += 1
        if self._waiting == 1:
            self._send(self._sent)

    def _sent(self) -> None:
        self._waiting -= 1
        if self._waiting:
            self._send(self._sent)
        self._arrived()


class Training:
    """Workers that make steps.

    Args:
        steps: how many are made.
        workers: how many there are, backups included.
        backups: how many of them a step does not wait for.
        compute: draws the seconds that a share takes.
        costs: of the cluster.
        synchronous: whether a step is made by all together.
        seed: of what is drawn.
    """

    def __init__(
        self,
        steps: int,
        workers: int,
        backups: int,
        compute: Callable[[random.Random], float],
        costs: Costs,
        synchronous: bool = True,
        seed: int = 0,
    ) -> None:
        self._rng, self._compute, self._costs = random.Random(seed), compute, costs
        shares = workers - backups if synchronous else 1
        self._state = ReplicaStepsState(shares, synchronous, backups=backups)
        self._down, self._up = Link(costs.link), Link(costs.link)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._ready: list[tuple[Attempt, int]] = []  # requests that were served and are not looked at yet
        self._choosing: Attempt | None = None
        self._begun = dict.fromkeys(range(workers), 0.0)
        self.now = 0.0
        self.durations: list[float] = []  # of steps: of all together, or of each worker's own
        self._applied_at = 0.0
        self._synchronous = synchronous
        self._is_applying = False
        for worker in range(workers):
            self._state.join(worker, str(worker), 1)
        self._wanted = steps + _WARMING
        # Asynchronously each share is a batch. Each step has a set, also that which others are ahead of.
        self._state.begin_epoch(self._wanted + (backups + 2 if synchronous else workers))
        for worker in range(workers):
            self._take(worker)

    def run(self) -> list[float]:
        """Make the steps; gives the seconds that each has taken, without the first ones."""
        while len(self.durations) < self._wanted:
            ends = [self._down.next_end(), self._up.next_end(), self._events[0][0] if self._events else float("inf")]
            self.now = min(ends)
            which = ends.index(self.now)
            if which == 2:
                heapq.heappop(self._events)[2]()
            else:
                (self._down, self._up)[which].pop(self.now)()
        return self.durations[_WARMING:]

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._count), do))

    def _send(self, link: Link, size: float, done: Callable[[], None]) -> None:
        """Send bytes over a link of the ps tasks, and over the worker's own, whichever takes longer."""
        began = self.now

        def over() -> None:
            rest = began + size / self._costs.card - self.now
            self._later(max(rest, 0.0) + self._costs.latency, done)

        link.add(self.now, size, over)

    def _take(self, worker: int) -> None:
        self._begun[worker] = self.now
        attempt = self._state.take(worker, 1, 1)
        if attempt.is_done:
            self._ready.append((attempt, worker))
        else:
            attempt.on_done = lambda: self._ready.append((attempt, worker))
        self._serve()

    def _serve(self) -> None:
        ready, self._ready = self._ready, []
        for attempt, worker in ready:
            self._work(worker, attempt.outcome())

    def _work(self, worker: int, ticket: Any) -> None:
        watch = self._state.watch(worker, 1, ticket.number)
        pieces = self._costs.pieces
        left = pieces

        def computed() -> None:
            if watch.error is None:
                gradients.add()

        def sent() -> None:
            nonlocal left
            left -= 1
            if not left and watch.error is None:
                watch.on_done = None
                commit()

        def commit() -> None:
            self._state.commit(worker, 1, ticket.number, 1)
            self._apply()
            if not self._synchronous:
                self.durations.append(self.now - self._begun[worker])
            self._take(worker)

        def read() -> None:
            if watch.error is None:
                self._later(self._compute(self._rng), computed)

        gradients = Stream(lambda done: self._send(self._up, self._costs.gradients / pieces, done), sent)
        parameters = Stream(lambda done: self._send(self._down, self._costs.parameters / pieces, done), read)
        watch.on_done = lambda: self._later(self._costs.latency, commit)
        for _ in range(pieces):
            parameters.add()

    def _apply(self) -> None:
        if self._is_applying:
            return
        chosen = self._choosing = self._choosing or self._state.choose()
        if not chosen.is_done:
            return
        self._choosing, self._is_applying = None, True

        def applied() -> None:
            self._is_applying = False
            self._state.applied(chosen.outcome().step)
            if self._synchronous:
                self.durations.append(self.now - self._applied_at)
                self._applied_at = self.now
            self._serve()
            self._apply()

        self._later(self._costs.apply, applied)


def percentile(values: list[float], share: float) -> float:
    """Return the value that a share of others is below."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


__all__ = ["Costs", "Training", "percentile"]
