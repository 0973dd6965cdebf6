"""The state that is alive while a step runs: runs of frames, and their iterations.

Tokens are in arrays: an iteration has a list of values (one slot for each input of a node) and a list of counts of what
is still to come. Every node of a frame fires once in each iteration, alive or dead, so an iteration is over when the
number of nodes that have not fired is 0. A frame is over when its oldest iteration is, and no other was begun.

Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

DEAD = 1 << 20  # what a dead token adds to a count: the low bits count what is to come, alive or dead
MASK = DEAD - 1
Tag = tuple[int, ...]  # the numbers of the iterations around, the outermost first
Deliver = Callable[..., None]


class FramePlan:
    """A frame on one device, as it was planned.

    Attributes:
        name, device: of the frame; the device.
        parallel: how many iterations may be alive.
        pending: for each node how much is to come.
        slots: how many values an iteration holds.
        count: how many nodes, receives and child frames an iteration has to see.
        arrivals: how many tokens an iteration takes.
        children: the plans of the frames inside.
        receives: for each value that is received: its number, and what delivers it, alive and dead.
        record_bytes: what an iteration adds to each history, where that is known from the shape.
        record: makes what takes the values of all iterations, by number, for one of `records` histories.
        constants: for each constant Enter, what it does to the arrays, and what delivers it to an iteration.
        exits: what delivers a dead token for each Exit that was never alive.
        collected: what delivers each history, and the number of iterations, when the frame is over.
        sources: nodes that wait for nothing.
        live: the iterations that are alive, by tag.
        is_special: whether there is more to do at the start of an iteration than to copy the arrays.
    """

    def __init__(self, name: str, device: str, parallel: int, operation: Any) -> None:
        self.name = name
        self.device = device
        self.parallel = parallel
        self.operation = operation
        self.pending: list[int] = []
        self.slots = 0
        self.count = 0
        self.arrivals = 0
        self.records = 0
        self.record_bytes: dict[int, int] = {}
        self.record: Callable[[], Any] = dict
        self.children: list[FramePlan] = []
        self.receives: list[tuple[int, Deliver, Deliver]] = []
        self.constants: list[Constant] = []
        self.exits: list[Deliver] = []
        self.collected: list[tuple[int, Deliver, Deliver]] = []
        self.sources: list[Deliver] = []
        self.live: dict[Tag, Iteration] = {}
        self.is_special = False
        self.reset()

    def reset(self) -> None:
        """Forget the step that ran."""
        self.live.clear()
        self.frames = 0  # runs that were begun
        self.iterations = 0  # that are over
        self.peak = 0  # iterations alive at once


class Constant:
    """The work of a constant Enter: `slots` to write, `counts` to reduce, and inline deliveries to each iteration."""

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.counts: list[tuple[int, int]] = []
        self.deliver: Deliver | None = None
        self.kill: Deliver | None = None
        self.inline: Deliver | None = None
        self.inline_dead: Deliver | None = None


class Iteration:
    """One iteration of a run of a frame, on one device."""

    __slots__ = ("children", "left", "next", "number", "p", "run", "tag", "v")

    children: list[FrameRun | None]
    left: int
    next: Iteration | None
    number: int
    p: list[int]
    run: FrameRun
    tag: Tag
    v: list[Any]

    def path(self) -> list[tuple[FramePlan, int]]:
        """Return the loops around, the innermost first, each with the number of the iteration."""
        found: list[tuple[FramePlan, int]] = []
        iteration, around = self, self.run.parent
        while around is not None:
            found.append((iteration.run.plan, iteration.number))
            iteration, around = around, around.run.parent
        return found


class FrameRun:
    """A run of a frame on one device: made by the first token that enters it."""

    __slots__ = (
        "around",
        "arrived",
        "exited",
        "first",
        "given",
        "is_dead",
        "last",
        "newest",
        "oldest",
        "parent",
        "pending",
        "plan",
        "records",
        "values",
        "waiting",
    )

    first: Iteration
    oldest: Iteration
    last: Iteration

    def __init__(self, plan: FramePlan, parent: Iteration | None) -> None:
        self.plan = plan
        self.parent = parent
        self.around: Tag = () if parent is None else parent.tag
        self.values: list[Any] = [None] * plan.slots
        self.pending = plan.pending.copy()
        self.arrived: list[int] = [0] * len(plan.constants)  # 1: alive, 2: dead
        self.given: list[Any] = [None] * len(plan.constants)
        self.exited = [False] * len(plan.exits)
        self.records: list[Any] = [plan.record() for _ in range(plan.records)]
        self.waiting: list[tuple[Deliver, Any]] = []  # what goes to the iteration that is not admitted yet
        self.newest = -1
        self.is_dead = False  # entered by dead tokens: nothing in it runs
        plan.frames += 1


def drop_values(roots: Iterable[Iteration]) -> None:
    """Release the values of a step that was aborted, at once: iterations and the runs of frames refer to each other.

    Args:
        roots: the iterations of the partitions' own frames.
    """
    waiting = list(roots)
    while waiting:
        iteration = waiting.pop()
        run, iteration.v = iteration.run, []
        run.values, run.given, run.records, run.waiting = [], [], [], []
        children, iteration.children = iteration.children, []
        for child in children:
            inside: Iteration | None = None if child is None else child.oldest
            while inside is not None:
                waiting.append(inside)
                inside = inside.next


class Frames:
    """Begins and ends iterations and frames in one step.

    Args:
        push: takes (function, iteration) pairs that are ready to run.
        mail: values that were sent before their iteration began, by (number of the edge, tag).
        ended: called with the plan of a partition's own frame when it is over.
        gathered: makes a history of what was recorded under a number.
    """

    def __init__(
        self,
        push: Callable[[tuple[Deliver, Iteration]], None],
        mail: dict[tuple[int, Tag], Any],
        ended: Callable[[FramePlan], None],
        gathered: Callable[[FramePlan, int, Any], Any],
    ) -> None:
        self.push = push
        self.mail = mail
        self.ended = ended
        self.gathered = gathered

    def begin(self, plan: FramePlan) -> Iteration:
        """Open the only iteration of a partition's own frame; `launch` starts it once what is fed is there."""
        run = FrameRun(plan, None)
        return self.open(run, (), hold=1)

    def release(self, iteration: Iteration) -> None:
        """Let an iteration end that was held."""
        iteration.left -= 1
        if not iteration.left:
            self.finished(iteration)

    def enter(self, iteration: Iteration, child: int) -> FrameRun:
        """Open the run of a frame inside `iteration`, at the first token that enters it."""
        run = FrameRun(iteration.run.plan.children[child], iteration)
        iteration.children[child] = run
        self.open(run, (*run.around, 0))
        return run

    def advance(self, iteration: Iteration) -> Iteration | None:
        """Return the iteration after the newest, if it is admitted."""
        run = iteration.run
        number = iteration.number + 1
        if number - run.oldest.number >= run.plan.parallel:
            return None
        return self.open(run, (*run.around, number))

    def open(self, run: FrameRun, tag: Tag, hold: int = 0, is_oldest: bool = False) -> Iteration:
        """Begin the next iteration of a run; `is_oldest`: those before it are over."""
        plan = run.plan
        opened = Iteration()
        opened.run = run
        opened.tag = tag
        number = opened.number = run.newest + 1
        opened.v = run.values[:]
        opened.p = run.pending[:]
        opened.left = plan.count + hold
        opened.next = None
        opened.children = [None] * len(plan.children)
        if number:
            run.last.next = opened
        else:
            run.first = run.oldest = opened
        run.last = opened
        run.newest = number
        if is_oldest:
            run.oldest = opened
        else:
            alive = number - run.oldest.number + 1
            if alive > plan.peak:
                plan.peak = alive if run.oldest.left else alive - 1 or 1
        if plan.is_special:
            self._prepare(opened, run, plan)
        if plan.receives:
            plan.live[tag] = opened
            if self.mail:
                self._take_mail(opened, plan)
        return opened

    def _prepare(self, opened: Iteration, run: FrameRun, plan: FramePlan) -> None:
        """Prepare the parts that few frames need: constants for frames inside, and nodes that wait for nothing."""
        for position, constant in enumerate(plan.constants):
            arrived = run.arrived[position]
            if arrived == 1 and constant.inline is not None:
                constant.inline(opened, run.given[position])
            elif arrived == 2 and constant.inline_dead is not None:
                constant.inline_dead(opened)
        for source in plan.sources:
            self.push((source, opened))

    def _take_mail(self, iteration: Iteration, plan: FramePlan) -> None:
        for number, deliver, kill in plan.receives:
            found = self.mail.pop((number, iteration.tag), None)
            if found is None:
                continue
            value, is_dead = found
            if is_dead:
                kill(iteration)
            else:
                deliver(iteration, value)

    def constant(self, run: FrameRun, position: int, value: Any) -> None:
        """Take the value of a constant Enter, which all iterations have."""
        constant = run.plan.constants[position]
        run.arrived[position] = 1
        run.given[position] = value
        for slot in constant.slots:
            run.values[slot] = value
        for node, count in constant.counts:
            run.pending[node] -= count
        iteration: Iteration | None = run.oldest
        while iteration is not None:
            assert constant.deliver is not None
            following = iteration.next
            constant.deliver(iteration, value)
            iteration = following

    def constant_dead(self, run: FrameRun, position: int) -> None:
        """Note that a constant Enter was dead."""
        constant = run.plan.constants[position]
        run.arrived[position] = 2
        for node, count in constant.counts:
            run.pending[node] += count * MASK
        iteration: Iteration | None = run.oldest
        while iteration is not None:
            assert constant.kill is not None
            following = iteration.next
            constant.kill(iteration)
            iteration = following

    def finished(self, iteration: Iteration) -> None:
        """Finish an iteration all of whose nodes have fired."""
        run = iteration.run
        if iteration is not run.oldest:
            return
        plan = run.plan
        while True:
            plan.iterations += 1
            iteration.v = []  # what went the other way, or is the same in all iterations, is let go at once
            if plan.receives:
                plan.live.pop(iteration.tag, None)
            following = iteration.next
            if following is None:
                if not run.waiting:
                    self._end(run)
                    return
                self._admit(run, is_oldest=True)
                iteration.next = None
                return
            run.oldest = following
            iteration.next = None  # the first one is kept: it must not keep the others
            if run.waiting:
                self._admit(run)
            if following.left or run.oldest is not following:
                return
            iteration = following

    def _admit(self, run: FrameRun, is_oldest: bool = False) -> None:
        """Begin the iteration for which tokens wait, and deliver these.

        They are taken first: mail that the iteration finds may wait for the one behind it.
        """
        waiting, run.waiting = run.waiting, []
        opened = self.open(run, (*run.around, run.newest + 1), is_oldest=is_oldest)
        for deliver, value in waiting:
            deliver(opened, value)

    def _end(self, run: FrameRun) -> None:
        """End a frame: what was never alive on its way out is dead, and its records are handed on."""
        plan, parent = run.plan, run.parent
        if parent is None:
            self.ended(plan)
            return
        for number, kill in enumerate(plan.exits):
            if not run.exited[number]:
                kill(parent)
        for number, deliver, kill in plan.collected:
            if run.is_dead:
                kill(parent)
            elif number < 0:
                deliver(parent, np.int32(run.newest))
            else:
                deliver(parent, self.gathered(plan, number, run.records[number]))
        run.first.children = []
        run.values, run.given, run.records = [], [], []
        parent.left -= 1
        if not parent.left:
            self.finished(parent)
