"""Tiered compilation: after many runs a program gives way to one that has more of the same step as machine code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Generic, TypeVar

from ..common.machine_profile import machine_profile
from ..control_flow.while_loop import While
from ..graph.graph import Operation, Placeholder
from ..graph.state.variable import Variable
from ..graph.state.variable_ops import ReadVariable
from ..ops.base import Constant
from ..passes.framework.switches import changes, is_on, turned_off
from ..passes.loops.costs import native_seconds, work_of_all
from .beside import Beside

WHOLE_RUNS = 10_000  # of a step, after which it is compiled as a whole: its runs then took as long as that takes
_LEAST_CALLS = 3  # operations that Python calls: with fewer there is nothing to save
_MOST_OPERATIONS = 500  # of such a step: LLVM takes some 10 ms for each
_MOST_SECONDS = 1e-3  # that its kernels take on one core: more is worth several
_MOST_TIMES = 25.0  # the time of its kernels as a multiple of the time of calls that is saved

P = TypeVar("P")


class Tier(Enum):
    """A kind of operations that a program runs as machine code, beside kernels and long loops."""

    LOOPS = "short loops"
    WHOLE = "the whole step"


def tiers_of(operations: Sequence[Operation]) -> list[tuple[Tier, int]]:
    """Return what a step is to be compiled for once more, and after how many runs each; in their order.

    A step that writes stays as it is. Machine code may round otherwise, and what stays, such as weights in training, is
    not to depend on how often this process has run the step: training that goes on from a backup has the same bits.
    """
    if not is_on("native") or any(operation.writes for operation in operations):
        return []
    found: list[tuple[Tier, int]] = []
    if any(isinstance(operation.op, While) for operation in operations):
        from ..codegen.regions.rule import steps_until_worth  # llvmlite loads here

        runs = steps_until_worth(operations)
        if runs:
            found.append((Tier.LOOPS, runs))
    if _is_small(operations):
        found.append((Tier.WHOLE, WHOLE_RUNS))
    return found


def _is_small(operations: Sequence[Operation]) -> bool:
    """Test whether Python's calls take so much of a step that it is better one native function on one core."""
    if len(operations) > _MOST_OPERATIONS:
        return False
    called = [each for each in operations if not (each.op.view or isinstance(each.op, _NO_CALLS))]
    if len(called) < _LEAST_CALLS:
        return False
    if not all(isinstance(effect.resource, Variable) for each in operations for effect in each.effects):
        return False
    work, seconds = work_of_all(operations), sum(map(native_seconds, operations))
    return work is not None and seconds <= min(_MOST_SECONDS, _MOST_TIMES * work * machine_profile().call_seconds)


_NO_CALLS = (Constant, Placeholder, ReadVariable)


class Tiers(Generic[P]):
    """The programs that take over from one, each after the same number of runs: results don't depend on the clock.

    Each is compiled by a thread of its own beside the second half of the runs before.

    Args:
        tiers: what they have as machine code, and after how many runs they take over; in their order.
        make: compiles the step for a tier; returns None if that is not worth it.

    Attributes:
        left: how many runs are left until the next one takes over.
    """

    def __init__(self, tiers: Sequence[tuple[Tier, int]], make: Callable[[Tier], P | None]) -> None:
        self._tiers = list(tiers)
        self._make = make
        self._turned_off = turned_off()
        self._beside: Beside[tuple[bool, P | None]] | None = None
        self._lock = threading.Lock()
        self.left = self._begins_at = 0
        self._wait_after(0)

    def _wait_after(self, done: int) -> None:
        """Count the runs until the next tier, so many having been made."""
        self.left = max(self._tiers[0][1] - done, 1) if self._tiers else 0
        self._begins_at = self.left // 2

    @property
    def are_over(self) -> bool:
        """True once no other program is to take over."""
        return not self._tiers

    @property
    def is_compiling(self) -> bool:
        """True while the next program is compiled, or waits to take over."""
        return self._beside is not None

    def count(self) -> P | None:
        """Count a run; return the program that takes over with this run, if one does."""
        left = self.left = self.left - 1
        if left > self._begins_at:
            return None
        with self._lock:
            if not self._tiers:
                return None
            tier, runs = self._tiers[0]
            if self._beside is None:
                self._beside = Beside(partial(self._made_alone, tier), "anabranch native code")
            if self.left > 0:
                return None
            is_valid, found = self._beside.result()
            self._beside = None
            del self._tiers[0]
            self._wait_after(runs)
        return found if is_valid else self._make(tier)

    def _made_alone(self, tier: Tier) -> tuple[bool, P | None]:
        """Compile for a tier; return False with it if passes are turned off or on meanwhile."""
        before = changes()
        if turned_off() is not self._turned_off:
            return False, None
        found = self._make(tier)
        return changes() == before, found

    def last(self) -> P | None:
        """Compile what runs at last at once, and leave the count as it is."""
        found = (self._make(tier) for tier, _ in reversed(self._tiers))
        return next((each for each in found if each is not None), None)


__all__ = ["WHOLE_RUNS", "Tier", "Tiers", "tiers_of"]
