"""Sizes that are known at run time only, and what is remembered of those that were seen.

Which axes of the operands of a kernel have the same size does not change. So the sizes that its numbers are made of are
read from the shapes by `read_sizes`, which is all that a step pays whose rows are as many as never before: such as
those of an expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]
Names = tuple[int, ...]  # for each axis, the number of its size; -d where it is always d

_MOST_KEYS = 64

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(dict[K, V]):
    """A bounded cache of values by keys, such as shapes. When it has many, it is cleared.

    Args:
        make: gives what belongs to a key.
    """

    def __init__(self, make: Callable[[K], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: K) -> V:
        if len(self) >= _MOST_KEYS:
            self.clear()
        found = self[key] = self._make(key)
        return found  # another thread may have dropped it by now


def pattern_of(shapes: Sequence[Sequence[int | None]]) -> tuple[tuple[bool, ...], ...]:
    """Return which axes have more than one element."""
    return tuple(tuple(size != 1 for size in shape) for shape in shapes)


def read_sizes(names: Sequence[Names], shapes: Sequence[Shape], count: int) -> list[int] | None:
    """Return the sizes by their numbers; None if axes that have the same name differ, or are empty.

    Args:
        names: of the axes of each operand.
        shapes: of the operands.
        count: how many sizes there are; each is some operand's.
    """
    found = [0] * count
    for own, shape in zip(names, shapes, strict=True):
        if len(own) != len(shape):
            return None
        for name, dim in zip(own, shape, strict=True):
            known = -name if name < 0 else found[name] or dim
            if known != dim or not dim:
                return None
            if name >= 0:
                found[name] = dim
    return found


def named_like(names: Names, shape: Shape) -> Names | None:
    """Return the names of the axes of an operand that is broadcast to those of `names`; None if it has more axes."""
    if len(shape) > len(names):
        return None
    return tuple([-1 if dim == 1 else name for dim, name in zip(shape, names[len(names) - len(shape) :], strict=True)])


def shape_of(names: Names, sizes: Sequence[int]) -> Shape:
    """Return the shape of an array whose axes have these names."""
    return tuple([-name if name < 0 else sizes[name] for name in names])
