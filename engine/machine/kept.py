"""Values of variables that other tasks keep from step to step, because functions were scheduled there.

The task that schedules keeps a table of what each of them has. What it sends arrives in the order in which it was sent,
unless the step is over: so a value counts as kept once a result of the same step has come back. Before that only the
step itself refers to it.

Source: Wei et al., "Dynamic Scheduling For Dynamic Control Flow in Deep Learning Systems" (2018), section 3.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class KeptValue(NamedTuple):
    """A value on its way to a task that keeps it.

    Attributes:
        number: of the variable, within a program.
        version: of its value; each value that is sent has a higher one.
        value: the value; None if the task has this version.
    """

    number: int
    version: int
    value: Any


class _Known:
    """The latest value of a variable that was sent anywhere."""

    __slots__ = ("copy", "number", "run", "source", "version")

    def __init__(self, number: int) -> None:
        self.number = number
        self.version = 0
        self.copy: Any = None
        self.source: Any = None
        self.run: object = None  # in which the value was last compared

    def has(self, value: Any, run: object) -> bool:
        """Test whether it is this value. It is compared once in a run: within one, values are not changed in place."""
        if self.run is run and self.source is value:
            return True
        if self.copy is None or not same_bits(self.copy, value):
            return False
        self.source, self.run = value, run
        return True

    def take(self, value: Any, run: object) -> None:
        self.version += 1
        self.copy = value.copy()  # a variable's value may be changed in place between steps
        self.source, self.run = value, run


class Held:
    """A version of a variable's value, as a task has it.

    Attributes:
        version: the latest one that was sent there.
        is_there: whether it has arrived.
        sent_by, used_by: the runs that have sent it, and made use of it last.
    """

    __slots__ = ("is_there", "sent_by", "used_by", "version")

    def __init__(self) -> None:
        self.version = 0
        self.is_there = False
        self.sent_by: object = None
        self.used_by: object = None


class KeptStates:
    """A table of the values of variables that other tasks keep for the steps of one program.

    A run is any object; those of several runs at once may be mixed.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, _Known]] = {}  # by the identity of the variable, which is kept alive
        self._held: dict[tuple[str, int], Held] = {}  # by task, and identity of the variable
        self._given_up: dict[str, list[int]] = {}

    def __len__(self) -> int:
        """Return how many values are kept anywhere."""
        return len(self._held)

    def is_there(self, task: str, variable: Any, value: Any, run: object) -> bool:
        """Test whether a task has a value, or is about to have it."""
        held, known = self._held.get((task, id(variable))), self._known.get(id(variable))
        if held is None or known is None or held.version != known[1].version:
            return False
        return (held.is_there or held.sent_by is run) and known[1].has(value, run)

    def sent(self, task: str, variable: Any, value: Any, run: object) -> tuple[KeptValue, Held]:
        """Return what is to be sent to a task so that it has a value, and what `arrived` takes."""
        key = id(variable)
        known = self._known.setdefault(key, (variable, _Known(len(self._known))))[1]
        held = self._held.setdefault((task, key), Held())
        is_there = self.is_there(task, variable, value, run)
        held.used_by = run
        if is_there:
            return KeptValue(known.number, held.version, None), held
        if not known.has(value, run):
            known.take(value, run)
        held.version, held.is_there, held.sent_by = known.version, False, run
        return KeptValue(known.number, known.version, known.copy), held

    @staticmethod
    def arrived(held: Held, version: int) -> None:
        """Note that a task has received a version: something that was sent no earlier has been answered."""
        if held.version == version:
            held.is_there = True

    def end(self, run: object) -> None:
        """Give up what a whole run that has ended well has made no use of."""
        for key in [key for key, held in self._held.items() if held.used_by is not run]:
            task, variable = key
            self._given_up.setdefault(task, []).append(self._known[variable][1].number)
            del self._held[key]

    def given_up(self) -> dict[str, list[int]]:
        """Return once, by task, the numbers of the variables of which it is to keep no value."""
        found, self._given_up = self._given_up, {}
        return found

    def forget(self, task: str) -> None:
        """Note that a task has nothing any more."""
        self._given_up.pop(task, None)
        for key in [key for key in self._held if key[0] == task]:
            del self._held[key]


def same_bits(first: Any, second: Any) -> bool:
    """Test whether two arrays are the same to the bit: zeros of both signs differ, and NaNs are like themselves."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.dtype.kind not in "biufcV":
        return np.array_equal(first, second)
    one, other = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (first, second))
    return np.array_equal(one, other)


__all__ = ["Held", "KeptStates", "KeptValue", "same_bits"]
