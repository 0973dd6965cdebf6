"""Axes as users give them: integers, sequences and vectors of integers."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any


def axis_number(axis: Any, what: str = "axis") -> int:
    """Return an axis as an int.

    Raises:
        TypeError: it is not an integer.
    """
    try:
        return index(axis)
    except TypeError:
        raise TypeError(f"{what} must be an integer; got {axis!r}.") from None


def axis_numbers(axis: Any) -> list[int]:
    """Return an axis, or several in a sequence or a vector, as a list of ints.

    Raises:
        TypeError: one is not an integer.

    >>> axis_numbers(1), axis_numbers((0, -1)), axis_numbers(range(2))
    ([1], [0, -1], [0, 1])
    """
    try:
        return [index(axis)]
    except TypeError:
        several: Iterable[Any] = axis if _can_be_iterated(axis) else (axis,)
    return [axis_number(each) for each in several]


def _can_be_iterated(axis: object) -> bool:
    return isinstance(axis, Iterable) and not isinstance(axis, str)


__all__ = ["axis_number", "axis_numbers"]
