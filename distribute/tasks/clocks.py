"""Clocks of tasks: how they are read over the control channel, and how times of one become times of another.

To read another clock, a process asks for its time, and notes its own before and after. The other clock was read in
between: so half of the round trip bounds the error, and of several round trips the shortest one is the most exact.

Source: Mills, "Internet time synchronization: the Network Time Protocol" (1991).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ..transport.connections import Identity
from ..transport.wire import FrameError, Kind
from .peers import Link
from .system import System

ROUNDS = 8  # round trips of one reading
_MOST_DRIFT = 5e-4  # seconds a second by which clocks differ at most, as NTP corrects them while they run
_MOST_SECONDS = 1.0  # that a reading may take; tasks that have not answered by then are left out


class Reading(NamedTuple):
    """One reading of another clock.

    Attributes:
        own: the time by this clock.
        other: the time by the other one, at the same moment.
        error: by how many seconds that may be wrong.
    """

    own: float
    other: float
    error: float

    @property
    def ahead(self) -> float:
        """Seconds by which the other clock is ahead."""
        return self.other - self.own


def read_once(sent: float, other: float, back: float) -> Reading:
    """Return the reading of one round trip, of which the other clock gives a moment.

    >>> read_once(1.0, 51.25, 1.5)
    Reading(own=1.25, other=51.25, error=0.25)
    """
    return Reading((sent + back) / 2, other, (back - sent) / 2)


def best(readings: Iterable[Reading]) -> Reading | None:
    """Return the reading of the shortest round trip; None if there is none."""
    return min(readings, key=lambda reading: reading.error, default=None)


class Alignment:
    """Makes times by another clock times by this one.

    Clocks of machines differ by less than half a millisecond a second. So of two readings the one with the smaller
    error holds for what happened in between, a little less well the longer that took. Where the other reading
    contradicts it, or the two together say more, what is between them is moved in proportion instead.

    Args:
        before, after: readings before and after what happened; None for one that is missing.

    Attributes:
        error: by how many seconds times may be wrong; infinite if there is no reading, when times stay as they are.
        ahead: seconds by which the other clock is ahead.

    >>> aligned = Alignment(Reading(10.0, 110.0, 0.001), Reading(12.0, 112.002, 0.003))
    >>> round(aligned.own(111.0), 6), round(aligned.error, 6)
    (11.0, 0.002)
    >>> faster = Alignment(Reading(10.0, 100.0, 0.001), Reading(20.0, 120.0, 0.002))
    >>> faster.own(110.0), faster.error
    (15.0, 0.002)
    """

    def __init__(self, before: Reading | None = None, after: Reading | None = None) -> None:
        found = [reading for reading in (before, after) if reading is not None]
        chosen = best(found)
        self._ends: tuple[Reading, Reading] | None = None
        self.ahead, self.error = (0.0, math.inf) if chosen is None else (chosen.ahead, chosen.error)
        if before is None or after is None or chosen is None or after.other <= before.other:
            return
        drift = _MOST_DRIFT * (after.own - before.own)
        self.error += drift
        may_agree = abs(after.ahead - before.ahead) <= before.error + after.error + drift
        largest = max(before.error, after.error)
        if not may_agree or largest < self.error:
            self._ends, self.error = (before, after), largest
            self.ahead = (before.ahead + after.ahead) / 2

    def own(self, time: float) -> float:
        """Return a time by this clock, of one by the other."""
        if self._ends is None:
            return time - self.ahead
        before, after = self._ends
        return before.own + (time - before.other) * (after.own - before.own) / (after.other - before.other)


def same_clock() -> Alignment:
    """Return the alignment of a clock with itself."""
    return Alignment(Reading(0.0, 0.0, 0.0))


class ClockReader:
    """Reads the clocks of tasks, for the loop of one that asks.

    Args:
        system: whose loop and clock these are.
        link_to: gives the way to a task, if there is one.
    """

    def __init__(self, system: System, link_to: Callable[[Identity], Link | None]) -> None:
        self._loop = system.loop
        self._link_to = link_to
        self._numbers = itertools.count(1)
        self._under_way: dict[int, _Round] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def read(self, tasks: Sequence[Identity], done: Callable[[dict[str, Reading]], None]) -> None:
        """Read the clocks of tasks; `done` takes the readings by task, of those that have answered in time."""
        number = next(self._numbers)
        found = self._under_way[number] = _Round(done, {task: [] for task in tasks})
        for task in tasks:
            self._ask(number, found, task)
        self._end_if_all(number, found)
        self._loop.after(_MOST_SECONDS, lambda: self._end(number))

    def _ask(self, number: int, found: _Round, task: Identity) -> None:
        link = self._link_to(task)
        if link is None:
            found.missing.discard(task)
        else:
            link.send(Kind.CLOCK, {"number": number, "sent": self._loop.now()})

    def take(self, task: Identity, document: dict[str, Any]) -> None:
        """Take what a task answers.

        Raises:
            FrameError: it is not a time.
        """
        number, sent, time = int(document["number"]), float(document["sent"]), float(document["time"])
        if not (math.isfinite(sent) and math.isfinite(time)):
            raise FrameError("a clock was read that is not a number")
        found = self._under_way.get(number)
        if found is None or task not in found.missing:
            return
        readings = found.readings[task]
        readings.append(read_once(sent, time, self._loop.now()))
        if len(readings) < ROUNDS:
            self._ask(number, found, task)
        else:
            found.missing.discard(task)
        self._end_if_all(number, found)

    def _end_if_all(self, number: int, found: _Round) -> None:
        if not found.missing:
            self._end(number)

    def _end(self, number: int) -> None:
        found = self._under_way.pop(number, None)
        if found is not None:
            chosen = {task.name: best(readings) for task, readings in found.readings.items()}
            found.done({name: reading for name, reading in chosen.items() if reading is not None})


class _Round:
    """Clocks that are being read."""

    def __init__(self, done: Callable[[dict[str, Reading]], None], readings: dict[Identity, list[Reading]]) -> None:
        self.done = done
        self.readings = readings
        self.missing = set(readings)


__all__ = ["ROUNDS", "Alignment", "ClockReader", "Reading", "best", "read_once", "same_clock"]
