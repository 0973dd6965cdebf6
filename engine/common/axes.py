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
    several: Iterable[Any] = axis
    if not isinstance(axis, tuple):  # which most ops have already made of them
        try:
            return [index(axis)]
        except TypeError:
            several = axis if _can_be_iterated(axis) else (axis,)
    return [axis_number(each) for each in several]


def _can_be_iterated(axis: object) -> bool:
    return isinstance(axis, Iterable) and not isinstance(axis, str)


def normalize_axis(axis: int, rank: int | None, what: str = "axis") -> int:
    """Return `axis` counted from the front.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is outside the rank, or is negative while the rank is unknown.
    """
    axis = axis_number(axis, what)
    if rank is None:
        if axis < 0:
            raise ValueError(f"{what}={axis} counts from the end, but the rank of the input is unknown.")
        return axis
    if not -rank <= axis < rank:
        raise ValueError(f"{what}={axis} is out of range for an input of rank {rank}.")
    return axis % rank


def normalize_axes(axis: Any, rank: int | None) -> tuple[int, ...] | None:
    """Return `axis` (None, an int or several) as a sorted tuple counted from the front; None means all axes.

    Raises:
        TypeError: an axis is not an integer.
        ValueError: an axis is out of range or given twice.
    """
    if axis is None:
        return None if rank is None else tuple(range(rank))
    axes = [normalize_axis(each, rank) for each in axis_numbers(axis)]
    if len(set(axes)) != len(axes):
        raise ValueError(f"axis={axis} names an axis twice.")
    return tuple(sorted(axes))


__all__ = ["axis_number", "axis_numbers", "normalize_axes", "normalize_axis"]
