"""Describe what the loop of a task does now, for heartbeats, and have another thread end its step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...engine.machine.part import PartStep
from ...engine.queues.stops import Stop
from .running import Running

IDLE, WAITING, TURNING, IN_OPERATION, COMPILING = "idle", "waiting", "turning", "in an operation", "compiling"


class Doing(NamedTuple):
    """The state of a task, and its operation.

    Attributes:
        state: one of the words above.
        what: the operation.
        since: for how many seconds.
    """

    state: str
    what: str = ""
    since: float = 0.0


class Turning:
    """The step that a task's loop runs at this moment, which another thread may end in the middle of an operation.

    Attributes:
        running: the step; None while the loop does something else.
        lock: held by another thread while it reads what has come, and by the loop when it has turned a step.
        stop: of loops that are compiled to machine code; the loop's thread is inside.
        is_stopped: whether they were asked to end.
        begins: called when a step begins.
    """

    def __init__(self) -> None:
        self.running: Running | None = None
        self.lock = threading.Lock()
        self.stop = Stop()
        self.is_stopped = False
        self.begins: Callable[[], None] = lambda: None

    @property
    def step(self) -> PartStep | None:
        """The step itself."""
        running = self.running
        return None if running is None else running.step

    def ask(self) -> None:
        """Have the operation end that the step is in."""
        self.is_stopped = True
        self.stop.ask()

    def end(self) -> None:
        """Note that the loop has turned the step."""
        with self.lock:
            self.running = None
        if self.is_stopped:  # nobody asks as long as nothing runs
            self.is_stopped = False
            self.stop.withdraw()


class Observer:
    """Looks at a task's loop from other threads; the loop itself spends nothing on it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: Any = None  # where the loop was when it was looked at last
        self._seen_at = 0.0

    def look(
        self, turning: PartStep | None, running: Sequence[PartStep], is_waiting: bool, is_compiling: bool
    ) -> Doing:
        """Say what the loop does.

        Args:
            turning: the step that it runs at this moment.
            running: all steps under way.
            is_waiting: whether it waits for something to happen.
            is_compiling: whether the thread that compiles has work.
        """
        if is_waiting:
            apart = [found for step in running for found in step.under_way()]
            if apart:
                name, since = max(apart, key=lambda pair: pair[1])
                return Doing(IN_OPERATION, name, since)
            if running:
                return Doing(WAITING)
            return Doing(COMPILING) if is_compiling else Doing(IDLE)
        place = None if turning is None else turning.current
        since = self._same_for(place)
        if turning is None or place is None:
            return Doing(TURNING)
        return Doing(IN_OPERATION, turning.named(place), since)

    def _same_for(self, place: Any) -> float:
        """Return for how long the loop has been at a place; it is as precise as calls are frequent."""
        now = time.monotonic()
        with self._lock:
            if self._seen is not place:
                self._seen, self._seen_at = place, now
            return now - self._seen_at


__all__ = ["COMPILING", "IDLE", "IN_OPERATION", "TURNING", "WAITING", "Doing", "Observer", "Turning"]
