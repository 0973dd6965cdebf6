"""A cluster that trains, simulated: the protocol of replicas, with drawn computing times and links of given rates.

`ReplicaStepsState` hands out tickets, counts gradients and chooses sets as on ps task 0. Time is simulated. A worker
reads parameters in pieces, computes each layer when its piece is there, and sends the gradient of each while it
computes the one before: so do tasks, which send each value when it is made. Transfers share the ps tasks' links
equally. A ps task serves its workers by one processor. A worker whose gradients come too late gives them up; what it
has begun to transfer is transferred.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from anabranch.engine.queues.attempts import Attempt
from anabranch.engine.queues.replica_state import ReplicaStepsState
from anabranch.engine.queues.replica_tickets import Ticket

_WARMING = 5  # steps at the beginning that do not count
_FORWARD = 1 / 3  # of the computing time; the backward pass multiplies by two matrices where that multiplies by one


class Costs(NamedTuple):
    """The times that parts of a cluster take.

    Attributes:
        link: bytes a second of all ps tasks together, in each direction.
        card: bytes a second of one worker.
        latency: seconds from a request to the first byte.
        parameters, gradients: bytes that a worker reads, and sends, in a step.
        pieces: in how many parts these are read, computed and sent.
        send, put: seconds of each ps task's processor for the values that one worker reads, and for its gradients.
        reduce: the same for one worker's gradients, when a set is reduced.
        update: the same for the new values of the parameters.
        apply: seconds of the messages by which the chief has a set applied.
        in_order: whether parameters come in the order of their use. If not, the first layer waits for all of them.
    """

    link: float
    card: float
    latency: float
    parameters: float
    gradients: float
    pieces: int = 1
    send: float = 0.0
    put: float = 0.0
    reduce: float = 0.0
    update: float = 0.0
    apply: float = 0.0
    in_order: bool = True


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


class Processor:
    """A processor that does one thing after the other."""

    def __init__(self) -> None:
        self._free = 0.0

    def end_of(self, now: float, seconds: float) -> float:
        """Return when what is asked for now will have been done."""
        self._free = max(now, self._free) + seconds
        return self._free


class Clock:
    """Simulated time: what is to happen later, and two links, one from the ps tasks and one to them.

    Args:
        rate: bytes a second of each link.
        card: those of the other end of each transfer.
        latency: seconds of a message.
    """

    def __init__(self, rate: float, card: float, latency: float) -> None:
        self.now = 0.0
        self.down, self.up = Link(rate), Link(rate)
        self._card, self._latency = card, latency
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def at(self, moment: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._count), do))

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        self.at(self.now + seconds, do)

    def send(self, link: Link, size: float, over: Callable[[], None], arrived: Callable[[], None]) -> None:
        """Send bytes over a link of the ps tasks, and over the worker's own, whichever takes longer.

        Args:
            link: which.
            size: how many bytes.
            over: called when they have left.
            arrived: called when they are there.
        """
        began = self.now

        def left() -> None:
            rest = max(began + size / self._card - self.now, 0.0)
            self.later(rest, over)
            self.later(rest + self._latency, arrived)

        link.add(self.now, size, left)

    def step(self) -> bool:
        """Let the next thing happen; return whether there was one."""
        ends = [self.down.next_end(), self.up.next_end(), self._events[0][0] if self._events else float("inf")]
        moment = min(ends)
        if moment == float("inf"):
            return False
        self.now, which = moment, ends.index(moment)
        if which == 2:
            heapq.heappop(self._events)[2]()
        else:
            (self.down, self.up)[which].pop(moment)()
        return True


class Stream:
    """Pieces of which each is sent when the one before it has left.

    Args:
        clock: of the simulation.
        link: over which they go.
        size: bytes of each.
        arrived: called for each piece.
    """

    def __init__(self, clock: Clock, link: Link, size: float, arrived: Callable[[], None]) -> None:
        self._clock, self._link, self._size, self._arrived = clock, link, size, arrived
        self._waiting = 0

    def add(self) -> None:
        self._waiting += 1
        if self._waiting == 1:
            self._send()

    def stop(self) -> None:
        """Send nothing more; what is under way arrives."""
        self._waiting = min(self._waiting, 1)

    def _send(self) -> None:
        self._clock.send(self._link, self._size, self._left, self._arrived)

    def _left(self) -> None:
        self._waiting -= 1
        if self._waiting:
            self._send()


class Share:
    """The work of a worker for a ticket: it reads, computes and sends piece by piece.

    Args:
        training: of which it is a part.
        worker: which computes it.
        ticket: under which.
    """

    def __init__(self, training: Training, worker: int, ticket: Ticket) -> None:
        self._training, self._worker, self._number = training, worker, ticket.number
        self._clock, costs = training.clock, training.costs
        self._pieces = costs.pieces
        self._left = costs.pieces  # gradients that are not put
        seconds = training.draw() / costs.pieces
        self._work = deque([seconds * _FORWARD] * costs.pieces + [seconds * (1 - _FORWARD)] * costs.pieces)
        self._has_read = 0
        self._is_computing = False
        self._watch = training.state.watch(worker, 1, self._number)
        self._watch.on_done = lambda: self._clock.later(costs.latency, self._given_up)
        self._reads = reads = costs.pieces if costs.in_order else 1
        self._parameters = Stream(self._clock, self._clock.down, costs.parameters / reads, self._read)
        self._gradients = Stream(self._clock, self._clock.up, costs.gradients / costs.pieces, self._received)
        for _ in range(reads):
            self._clock.at(training.ps.end_of(self._clock.now, costs.send / reads), self._parameters.add)

    def _read(self) -> None:
        self._has_read += self._pieces // self._reads
        self._compute()

    def _compute(self) -> None:
        done = 2 * self._pieces - len(self._work)
        if self._is_computing or not self._work or done >= (self._has_read + self._pieces * self._has_all):
            return
        self._is_computing = True
        self._clock.later(self._work.popleft(), self._computed)

    @property
    def _has_all(self) -> bool:
        return self._has_read == self._pieces

    def _computed(self) -> None:
        self._is_computing = False
        if self._watch.error is not None:
            return
        if len(self._work) < self._pieces:
            self._gradients.add()
        self._compute()

    def _received(self) -> None:
        put = self._training.costs.put / self._pieces
        self._clock.at(self._training.ps.end_of(self._clock.now, put), self._put)

    def _put(self) -> None:
        self._left -= 1
        if not self._left and self._watch.error is None:
            self._watch.on_done = None
            self._training.commit(self._worker, self._number)

    def _given_up(self) -> None:
        self._parameters.stop()
        self._gradients.stop()
        self._training.commit(self._worker, self._number)


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
        self._rng, self._compute, self.costs = random.Random(seed), compute, costs
        shares = workers - backups if synchronous else 1
        self.state = ReplicaStepsState(shares, synchronous, backups=backups)
        self.clock = Clock(costs.link, costs.card, costs.latency)
        self.ps = Processor()  # all ps tasks do the same at the same time
        self._ready: list[tuple[Attempt, int]] = []  # requests that were served and are not looked at yet
        self._choosing: Attempt | None = None
        self._begun = dict.fromkeys(range(workers), 0.0)
        self.durations: list[float] = []  # of steps: of all together, or of each worker's own
        self._applied_at = 0.0
        self._synchronous = synchronous
        self._is_applying = False
        for worker in range(workers):
            self.state.join(worker, str(worker), 1)
        self._wanted = steps + _WARMING
        # Asynchronously each share is a batch. Each step has a set, also that which others are ahead of.
        self.state.begin_epoch(self._wanted + (backups + 2 if synchronous else workers))
        for worker in range(workers):
            self._take(worker)

    def run(self) -> list[float]:
        """Make the steps; gives the seconds that each has taken, without the first ones."""
        while len(self.durations) < self._wanted:
            self.clock.step()
        return self.durations[_WARMING:]

    def draw(self) -> float:
        return self._compute(self._rng)

    def commit(self, worker: int, number: int) -> None:
        """Count what a worker has put under a ticket, and have it take the next one."""
        self.state.commit(worker, 1, number, 1)
        self._apply()
        if not self._synchronous:
            self.durations.append(self.clock.now - self._begun[worker])
        self._take(worker)

    def _take(self, worker: int) -> None:
        self._begun[worker] = self.clock.now
        attempt = self.state.take(worker, 1, 1)
        if attempt.is_done:
            self._ready.append((attempt, worker))
        else:
            attempt.on_done = lambda: self._ready.append((attempt, worker))
        self._serve()

    def _serve(self) -> None:
        ready, self._ready = self._ready, []
        for attempt, worker in ready:
            Share(self, worker, attempt.outcome())

    def _apply(self) -> None:
        if self._is_applying:
            return
        chosen = self._choosing = self._choosing or self.state.choose()
        if not chosen.is_done:
            return
        self._choosing, self._is_applying = None, True

        def applied() -> None:
            self._is_applying = False
            self.state.applied(chosen.outcome().step)
            if self._synchronous:
                self.durations.append(self.clock.now - self._applied_at)
                self._applied_at = self.clock.now
            self._serve()
            self._apply()

        work = self.costs.reduce * len(chosen.outcome().tickets) + self.costs.update
        self.clock.at(self.ps.end_of(self.clock.now, work) + self.costs.apply, applied)


def percentile(values: list[float], share: float) -> float:
    """Return the value that a share of others is below."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


__all__ = ["Clock", "Costs", "Processor", "Training", "percentile"]
