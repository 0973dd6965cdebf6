"""Heartbeats: whether tasks still answer, and what their loops do. A task that is busy is not dead; a silent one is.

On a machine that is busy for longer, also a live task is silent at times. Each time that one was taken for dead and is
back, in the same start, twice as long is waited for it. So no task is lost again and again.

Source: Chandra and Toueg, "Unreliable Failure Detectors for Reliable Distributed Systems" (1996): a detector whose
timeouts grow with its mistakes makes no further ones in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...engine.common.quick_dataclass import dataclass
from ..transport.connections import Identity
from ..transport.loop import Loop
from .doing import IN_OPERATION, TURNING
from .front import Greeter, TaskInfo
from .peers import Address

_MOST_DOUBLED = 3  # times that a timeout is doubled: one of 8 s becomes 64 s at most


@dataclass(frozen=True)
class Patience:
    """Bounds of how long tasks may be silent.

    Attributes:
        interval: seconds between heartbeats.
        timeout: seconds without an answer, or without a turn of a loop that has work, after which a task is dead.
        kernel: seconds that one operation may take; None for any time.
        mistakes: how often the task was taken for dead and was not. Each time doubles the timeout, three times at most.
    """

    interval: float = 1.0
    timeout: float = 8.0
    kernel: float | None = None
    mistakes: int = 0

    @property
    def longest(self) -> float:
        """Return the seconds of silence after which a task is dead."""
        return self.timeout * 2 ** min(self.mistakes, _MOST_DOUBLED)

    def __str__(self) -> str:
        """Describe the timeout, for errors."""
        again = f", and {self.longest:g} s for a task that was taken for dead before" if self.mistakes else ""
        return f"heartbeat_timeout={self.timeout:g}{again}"


class Pulse:
    """The evidence of whether a task is alive; without clock, thread or socket.

    Time is counted by `tick`, and no tick counts for more than two intervals: who was stopped himself, or has run a
    long kernel, does not take the others for silent.

    Args:
        incarnation: of the start of the task that is watched.
        patience: how long it may be silent.
    """

    def __init__(self, incarnation: int, patience: Patience) -> None:
        self.incarnation = incarnation
        self.patience = patience
        self.info: TaskInfo | None = None  # the newest answer
        self._age = 0.0  # as counted by ticks
        self._last_tick: float | None = None
        self._answered_at = 0.0
        self._same_since = 0.0  # since when the loop has been at one place
        self._asked = 0  # questions without an answer

    @property
    def silent_for(self) -> float:
        """Seconds since the newest answer, while one is awaited."""
        return self._age - self._answered_at if self._asked else 0.0

    @property
    def is_silent(self) -> bool:
        """Test whether the task has not answered, or its loop has not turned, for too long: it may be slow alone."""
        is_turning = self.info is not None and self.info.state == TURNING
        return self.silent_for > self.patience.longest or (is_turning and self._stuck > self.patience.longest)

    @property
    def _stuck(self) -> float:
        return self._age - self._same_since

    def tick(self, now: float) -> str | None:
        """Note that it is time for a heartbeat; return why the task is dead, if it is.

        Args:
            now: seconds of a clock that goes forward only.
        """
        if self._last_tick is not None:
            self._age += min(now - self._last_tick, 2 * self.patience.interval)
        self._last_tick = now
        found = self._verdict()
        self._asked += 1
        return found

    def _verdict(self) -> str | None:
        patience, info = self.patience, self.info
        if self.silent_for > patience.longest:
            return f"it has not answered for {self.silent_for:.0f} s ({patience})"
        if info is None:
            return None
        if info.incarnation != self.incarnation:
            return "it has been restarted"
        if self.is_silent:
            return f"its loop has work and has not turned for {self._stuck:.0f} s, in no operation ({patience})"
        if info.state == IN_OPERATION and patience.kernel is not None and info.since > patience.kernel:
            return f"it has been in {info.doing} for {info.since:.0f} s (kernel_timeout={patience.kernel:g})"
        return None

    def answered(self, info: TaskInfo) -> None:
        """Take an answer."""
        before, self.info = self.info, info
        self._asked = 0
        self._answered_at = self._age
        if before is None or (before.turns, before.doing, before.state) != (info.turns, info.doing, info.state):
            self._same_since = self._age


class Watch:
    """Asks tasks how they are, in turns of a task's loop.

    Args:
        loop: in whose thread everything happens.
        greeter: asks tasks by gRPC.
        patience: how long they may be silent.
        on_dead: takes who is dead, and why; once.
    """

    def __init__(
        self, loop: Loop, greeter: Greeter, patience: Patience, on_dead: Callable[[Identity, str], None]
    ) -> None:
        self._loop = loop
        self._greeter = greeter
        self._patience = patience
        self._on_dead = on_dead
        self._watched: dict[Identity, tuple[str, Pulse]] = {}
        self._taken_for_dead: dict[Identity, int] = {}  # how often, of each start of a task
        self._is_ticking = False

    def add(self, address: Address) -> None:
        """Watch a task, unless that is done."""
        if address.identity in self._watched or not address.front:
            return
        for other in [each for each in self._taken_for_dead if each.name == address.name]:
            if other != address.identity:  # the task was started again since
                del self._taken_for_dead[other]
        patience = replace(self._patience, mistakes=self._taken_for_dead.get(address.identity, 0))
        self._watched[address.identity] = (address.front, Pulse(address.incarnation, patience))
        if not self._is_ticking:
            self._is_ticking = True
            self._tick()

    def discard(self, identity: Identity) -> None:
        """Watch a task no longer."""
        known = self._watched.pop(identity, None)
        if known is not None and all(front != known[0] for front, _ in self._watched.values()):
            self._greeter.forget(known[0])

    def pulse_of(self, identity: Identity) -> Pulse | None:
        """Return the pulse of a task that is watched; None of another one."""
        known = self._watched.get(identity)
        return None if known is None else known[1]

    def _tick(self) -> None:
        if not self._watched:
            self._is_ticking = False
            return
        now = self._loop.now()
        for identity, (front, pulse) in list(self._watched.items()):
            reason = pulse.tick(now)
            if reason is None:
                self._ask(front, pulse)
            else:
                self.discard(identity)
                if pulse.is_silent:
                    self._taken_for_dead[identity] = self._taken_for_dead.get(identity, 0) + 1
                self._on_dead(identity, reason)
        self._loop.after(self._patience.interval, self._tick)

    def _ask(self, front: str, pulse: Pulse) -> None:
        def answered(info: Any) -> None:
            self._loop.call(lambda: pulse.answered(info))

        self._greeter.ask(front, self._patience.timeout, answered)


__all__ = ["Patience", "Pulse", "Watch"]
