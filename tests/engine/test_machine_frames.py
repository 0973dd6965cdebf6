"""Iterations of a loop on one device, with values that other devices send before the iteration has begun."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.engine.machine.frames import FramePlan, Frames, Iteration, Tag


class Loop:
    """A loop that receives a value in each iteration and carries it to the next, on a device with a window.

    An iteration ends once it has received a value and has the one that the iteration before has received.
    """

    def __init__(self, parallel: int) -> None:
        self.carried: list[tuple[int, str]] = []
        self.ended: list[str] = []
        self.mail: dict[tuple[int, Tag], Any] = {}
        self.frames = Frames(self._refuse, self.mail, self._note_end, self._refuse)
        around, self.plan = FramePlan("step", "cpu:0", 1, None), FramePlan("loop", "cpu:0", parallel, None)
        around.children, around.count = [self.plan], 1
        self.plan.count, self.plan.receives = 2, [(0, self._deliver, self._kill)]
        self.step = self.frames.begin(around)
        self.run = self.frames.enter(self.step, 0)
        self.frames.release(self.step)

    def send(self, number: int, value: str | None) -> None:
        """Send the value of an iteration, None for a dead one, as another device does."""
        iteration = self.plan.live.get((number,))
        if iteration is None:
            self.mail[0, (number,)] = (value, value is None)
        elif value is None:
            self._kill(iteration)
        else:
            self._deliver(iteration, value)

    def enter(self) -> None:
        self._carry(self.run.first, "start")

    def _deliver(self, iteration: Iteration, value: str) -> None:
        following = iteration.next or self.frames.advance(iteration)
        if following is None:
            self.run.waiting.append((self._carry, value))
        else:
            self._carry(following, value)
        self._end_node(iteration)

    def _kill(self, iteration: Iteration) -> None:
        self._end_node(iteration)

    def _carry(self, iteration: Iteration, value: str) -> None:
        self.carried.append((iteration.number, value))
        self._end_node(iteration)

    def _end_node(self, iteration: Iteration) -> None:
        iteration.left -= 1
        if not iteration.left:
            self.frames.finished(iteration)

    def _note_end(self, plan: FramePlan) -> None:
        self.ended.append(plan.name)

    def _refuse(self, *_: object) -> None:
        raise AssertionError("nothing is pushed or recorded")


@pytest.mark.parametrize("parallel", [1, 2, 3, 32])
@pytest.mark.parametrize("early", [(), (1,), (1, 2), (2, 1), (1, 2, 3), (2, 3), (3, 2, 1), (4, 3, 2, 1)])
@pytest.mark.parametrize("entered", ["first", "last"])
def test_values_that_are_sent_early_go_to_the_iteration_behind_theirs(
    parallel: int, early: tuple[int, ...], entered: str
):
    loop = Loop(parallel)
    if entered == "first":
        loop.enter()
    values = {0: "a", 1: "b", 2: "c", 3: "d", 4: None}
    for number in (*early, *[number for number in values if number not in early]):
        loop.send(number, values[number])
    if entered == "last":
        loop.enter()
    assert sorted(loop.carried) == [(0, "start"), (1, "a"), (2, "b"), (3, "c"), (4, "d")]
    assert (loop.ended, loop.run.waiting, loop.mail, loop.plan.live) == (["step"], [], {}, {})
    assert loop.plan.iterations == 5
