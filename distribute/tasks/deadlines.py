"""`Deadlines`: the times at which steps of clients are to be done, of which nothing is kept once a step is over."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping

from ...engine.queues.errors import DeadlineExceededError
from ..transport.loop import Loop
from .sessions import Done, MasterProgram, MasterStep


class Deadlines:
    """Ends steps that are late, with one timer for all: a timer for each step would keep what that has fetched.

    Args:
        loop: in whose thread everything happens.
        steps: those under way, by number; whoever ends one removes it.
        expire: takes a step whose time is over, once.
    """

    def __init__(self, loop: Loop, steps: Mapping[int, MasterStep], expire: Callable[[MasterStep], None]) -> None:
        self._loop = loop
        self._steps = steps
        self._expire = expire
        self._next = math.inf  # when steps are looked at

    def add(self, step: MasterStep, seconds: float) -> None:
        """Give a step some seconds from now."""
        step.deadline = self._loop.now() + seconds
        self._look_at(step.deadline)

    def add_preparing(self, program: MasterProgram, done: Done, seconds: float) -> None:
        """Give some seconds from now to who waits for a program; the timer keeps neither that nor its graph."""
        late, waits = weakref.ref(program), weakref.ref(done)

        def expire() -> None:
            found, asked = late(), waits()
            if found is not None and asked is not None and asked in found.waiting:
                found.waiting.remove(asked)
                asked(DeadlineExceededError(found.progress()))

        self._loop.after(seconds, expire)

    def _look_at(self, time: float) -> None:
        if time < self._next:
            self._next = time
            self._loop.after(time - self._loop.now(), lambda: self._look(time))

    def _look(self, time: float) -> None:
        if time > self._next:
            return  # an earlier time was asked for behind this one, and has set the next
        self._next = math.inf
        # The timer counts, not the clock alone, which may say a little less when it fires.
        due = max(time, self._loop.now())
        for step in [each for each in self._steps.values() if each.deadline <= due]:
            step.deadline = math.inf
            self._expire(step)
        self._look_at(min([each.deadline for each in self._steps.values()], default=math.inf))


__all__ = ["Deadlines"]
