"""`reached`: a search along the edges of any graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)


def reached(starts: Iterable[Item], following: Callable[[Item], Iterable[Item]]) -> set[Item]:
    """Return `starts` and all that follows from them, directly or through others.

    Args:
        starts: where the search begins.
        following: gives what follows from an item; it is called once for each.

    >>> sorted(reached([6], lambda number: [number // 2, number // 3] if number else []))
    [0, 1, 2, 3, 6]
    """
    found: set[Item] = set()
    pending = list(starts)
    while pending:
        item = pending.pop()
        if item not in found:
            found.add(item)
            pending.extend(following(item))
    return found


__all__ = ["reached"]
