"""Ways between tasks as they are measured: seconds and bytes a second, by which steps are placed.

Who sends measures. Small frames go there and back, and the quickest of them gives the latency; then larger and larger
ones, which take the plane that values take, give the bandwidth. They grow only as long as they are quick: nobody has to
wait behind them. What is measured is rounded to a power of two, so that the same step is placed alike although times
differ a little from run to run.
"""

from __future__ import annotations

import collections
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...engine.place.costs import Link as Cost
from ..transport.connections import Connection, Identity
from ..transport.loop import Loop
from ..transport.wire import Frame, FrameError, Kind
from .peers import Address, Link, Peers

_SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 20, 1 << 20)  # bytes of the larger frames
_SMALL_ROUNDS = 8
_MOST_SECONDS = 1.0  # that steps wait for measurements; who has not answered by then is measured for later steps
_MOST_PAIRS = 64  # of tasks that are measured for one step; of larger clusters those of the master with each task
_LEAST_SECONDS = 1e-7
_LONG = 0.005  # seconds of a frame, after which no larger one is sent

Costs = dict[tuple[str, str], Cost]  # of a task and the one to which it sends


def rounded(value: float) -> float:
    """Return the power of two that is nearest by proportion.

    >>> rounded(2.8e-5) == rounded(3.2e-5) == 2.0**-15
    True
    """
    return 2.0 ** round(math.log2(value))


class LinkMeter:
    """Measures the ways from one task to others, one after the other, in its loop.

    Args:
        loop: of the task; its clock measures.
        peers: connections to the others.
    """

    def __init__(self, loop: Loop, peers: Peers) -> None:
        self._loop = loop
        self._peers = peers
        self._known: dict[Identity, Cost] = {}
        self._queue: collections.deque[Address] = collections.deque()
        self._wanted: list[tuple[set[Identity], Callable[[], None]]] = []
        self._probing: _Probing | None = None
        self._numbers = itertools.count(1)

    def cost(self, task: Identity) -> Cost | None:
        """Return what was measured of the way to a task."""
        return self._known.get(task)

    def __len__(self) -> int:
        return len(self._wanted)

    def asked(self, link: Link, frame: Frame) -> None:
        """Measure the ways to other tasks for a master."""
        document = frame.document()
        addresses = [Address(str(name), *where) for name, *where in document["tasks"]]

        def done(costs: Mapping[str, Cost]) -> None:
            found = [[name, cost.latency, cost.bandwidth] for name, cost in costs.items()]
            link.send(Kind.LINKS, {"number": int(document["number"]), "links": found})

        self.measure(addresses, done)

    @staticmethod
    def probed(link: Link, frame: Frame) -> None:
        """Answer another task, which measures the way to this one."""
        link.send(Kind.PROBE, frame.document())

    def measure(self, addresses: Iterable[Address], done: Callable[[dict[str, Cost]], None]) -> None:
        """Measure the ways to tasks; `done` takes them by the task's name, those that were measured in time."""
        addresses = list(addresses)
        missing = {address.identity for address in addresses} - self._known.keys()

        def end() -> None:
            if entry in self._wanted:
                self._wanted.remove(entry)
                known = [(address.name, self._known.get(address.identity)) for address in addresses]
                done({name: cost for name, cost in known if cost is not None})

        entry = (missing, end)
        self._wanted.append(entry)
        if not missing:
            end()
            return
        self._loop.after(_MOST_SECONDS, end)
        waiting = {address.identity for address in self._queue}
        self._queue += [each for each in addresses if each.identity in missing - waiting]
        if self._probing is None:
            self._begin_next()

    def _begin_next(self) -> None:
        while self._queue and self._queue[0].identity in self._known:
            self._queue.popleft()
        if not self._queue:
            return
        address = self._queue.popleft()
        probing = self._probing = _Probing(next(self._numbers), address.identity)

        def reached(address: Address, way: Any) -> None:
            if self._probing is not probing:
                return
            if isinstance(way, Exception):
                self._end(probing, None)
                return
            probing.way = way
            self._send(probing)

        # Others have their turn. What is known by then is kept: a slow way takes long each time.
        self._loop.after(_MOST_SECONDS, lambda: self._end(probing, probing.cost(self._loop.now())))
        self._peers.reach(address, reached)

    def _send(self, probing: _Probing) -> None:
        assert probing.way is not None, "it is connected"
        arrays = [_payload(probing.size)] if probing.size else []
        probing.sent = self._loop.now()
        probing.way.put(Kind.PROBE, json.dumps({"number": probing.number, "round": probing.round}).encode(), arrays)

    def take(self, task: Identity, document: dict[str, Any]) -> None:
        """Take what another task answers."""
        probing, (number, turn) = self._probing, (int(document["number"]), int(document["round"]))
        if probing is None or (probing.task, probing.number, probing.round) != (task, number, turn):
            return
        probing.note(self._loop.now())
        if probing.is_done:
            self._end(probing, probing.cost(self._loop.now()))
        else:
            self._send(probing)

    def lost(self, task: Identity) -> None:
        """Forget a task that is gone: it may come back by another way."""
        self._known.pop(task, None)
        if self._probing is not None and self._probing.task == task:
            self._end(self._probing, None)

    def _end(self, probing: _Probing, cost: Cost | None) -> None:
        if self._probing is not probing:
            return
        self._probing = None
        if cost is not None:
            self._known[probing.task] = cost
        for missing, end in list(self._wanted):
            missing.discard(probing.task)
            if not missing:
                end()
        if self._probing is None:
            self._begin_next()


class _Probing:
    """One way that is being measured."""

    def __init__(self, number: int, task: Identity) -> None:
        self.number = number
        self.task = task
        self.round = 0
        self.way: Connection | None = None
        self.sent = 0.0
        self.size = 0  # bytes of the frame that is under way
        self._small = math.inf  # seconds of the quickest small frame
        self._large: dict[int, float] = {}  # by size, seconds of the quickest frame
        self.is_done = False

    def note(self, now: float) -> None:
        """Note the answer to the frame that was under way, and decide on the next one."""
        taken = max(now - self.sent, _LEAST_SECONDS)
        if self.size:
            self._large[self.size] = min(taken, self._large.get(self.size, math.inf))
        else:
            self._small = min(self._small, taken)
        self.round += 1
        number = self.round - _SMALL_ROUNDS
        self.is_done = number == len(_SIZES) or (bool(self.size) and taken > _LONG)
        if 0 <= number < len(_SIZES):
            self.size = _SIZES[number]

    def cost(self, now: float) -> Cost | None:
        """Return what is known by now; None if that is nothing."""
        if not self.size:
            return None
        size, taken = max(self._large.items(), default=(self.size, now - self.sent))  # if none has come back, at least
        more = max(taken - self._small, _LEAST_SECONDS)
        return Cost(bandwidth=rounded(size / more), latency=rounded(self._small / 2))


def _payload(size: int) -> Any:
    """Return bytes that were written: reading memory that never was costs nothing."""
    return np.ones(size, np.uint8)


class PairCosts:
    """Has tasks measure the ways between them, for their master.

    Args:
        loop: of the master.
        link_to: gives the way to a task, if there is one.
    """

    def __init__(self, loop: Loop, link_to: Callable[[Identity], Link | None]) -> None:
        self._loop = loop
        self._link_to = link_to
        self._numbers = itertools.count(1)
        self._known: dict[tuple[Identity, Identity], Cost] = {}
        self._under_way: dict[int, _Round] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def read(self, addresses: Sequence[Address], done: Callable[[Costs], None]) -> None:
        """Have the ways between tasks measured, those that are not known; `done` takes what is known by then.

        Args:
            addresses: of the tasks; the first one is the master.
        """
        wanted = self._pairs(addresses)
        found = _Round(done, {(one.identity, other.identity) for one, other in wanted})
        number = next(self._numbers)
        self._under_way[number] = found
        asked: dict[Identity, list[Address]] = {}
        for one, other in wanted:
            if (one.identity, other.identity) not in self._known:
                asked.setdefault(one.identity, []).append(other)
        for task, others in asked.items():
            link = self._link_to(task)
            if link is not None:
                found.waiting.add(task)
                link.send(Kind.LINKS, {"number": number, "tasks": [list(other) for other in others]})
        if found.waiting:
            self._loop.after(2 * _MOST_SECONDS, lambda: self._end(number))
        else:
            self._end(number)

    @staticmethod
    def _pairs(addresses: Sequence[Address]) -> list[tuple[Address, Address]]:
        pairs = list(itertools.permutations(addresses, 2))
        return pairs if len(pairs) <= _MOST_PAIRS else [pair for pair in pairs if addresses[0] in pair]

    def take(self, task: Identity, document: dict[str, Any]) -> None:
        """Take what a task has measured.

        Raises:
            FrameError: it is not a measurement.
        """
        found = self._under_way.get(int(document["number"]))
        measured = {str(name): (float(latency), float(speed)) for name, latency, speed in document["links"]}
        if not all(value > 0 and math.isfinite(value) for pair in measured.values() for value in pair):
            raise FrameError("a way between tasks was measured whose figures are not above 0")
        if found is None or task not in found.waiting:
            return
        for one, other in found.pairs:
            if one == task and other.name in measured:
                latency, bandwidth = measured[other.name]
                self._known[one, other] = Cost(bandwidth=bandwidth, latency=latency)
        self._discard(int(document["number"]), found, task)

    def lost_task(self, task: Identity) -> None:
        """Forget a task that is gone."""
        self._known = {pair: cost for pair, cost in self._known.items() if task not in pair}
        for number, found in list(self._under_way.items()):
            self._discard(number, found, task)

    def _discard(self, number: int, found: _Round, task: Identity) -> None:
        found.waiting.discard(task)
        if not found.waiting:
            self._end(number)

    def _end(self, number: int) -> None:
        found = self._under_way.pop(number, None)
        if found is not None:
            known = {pair: self._known.get(pair) for pair in sorted(found.pairs, key=str)}
            found.done({(one.name, other.name): cost for (one, other), cost in known.items() if cost is not None})


class _Round:
    """Ways that are being measured for one step."""

    def __init__(self, done: Callable[[Costs], None], pairs: set[tuple[Identity, Identity]]) -> None:
        self.done = done
        self.pairs = pairs
        self.waiting: set[Identity] = set()


def written(costs: Costs) -> list[list[Any]]:
    """Write costs for a document."""
    return [[*pair, cost.latency, cost.bandwidth] for pair, cost in costs.items()]


def read(document: Sequence[Any]) -> Costs:
    """Read what `written` has written."""
    return {
        (str(one), str(other)): Cost(bandwidth=float(bandwidth), latency=float(latency))
        for one, other, latency, bandwidth in document
    }


__all__ = ["Costs", "LinkMeter", "PairCosts", "read", "rounded", "written"]
