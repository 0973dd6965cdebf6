"""Looking for tensors in sequences by identity, as ``==`` of tensors is elementwise."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any


def is_among(item: Any, items: Iterable[Any]) -> bool:
    """Test whether `item` itself is one of `items`."""
    return id(item) in map(id, items)


def place_among(item: Any, items: Iterable[Any]) -> int:
    """Return the position of `item` itself in `items`.

    Raises:
        ValueError: it is not one of them.
    """
    return list(map(id, items)).index(id(item))


def count_among(item: Any, items: Iterable[Any]) -> int:
    """Return how often `item` itself is in `items`."""
    return list(map(id, items)).count(id(item))


def is_same(a: Hashable, b: Hashable) -> bool:
    """Test whether two things that may be, or hold, tensors are equal, where a tensor equals itself alone."""
    return a is b or (hash(a) == hash(b) and a == b)  # tensors of equal hash are identical: == is not asked of them


__all__ = ["count_among", "is_among", "is_same", "place_among"]
