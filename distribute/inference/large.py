"""Large requests and answers: read and written in other threads, in pieces, while others are answered.

Python lets other threads run between two steps of its own, but not within a call that goes through millions of values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

LARGE = 1 << 20  # bytes of text or arrays from which these are read and written beside other requests
PIECE = 1 << 14  # elements that are taken together: about a millisecond


async def beside_others(size: int, function: Callable[..., T], *args: Any) -> T:
    """Return what a function gives, in another thread if it has many bytes to read or write."""
    if size < LARGE:
        return function(*args)
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def in_pieces(values: Any) -> Iterator[Any]:
    """Yield the elements of a list, of a repeated field or of a vector, whose elements become Python's."""
    for start in range(0, len(values), PIECE):
        piece = values[start : start + PIECE]
        yield from piece.tolist() if hasattr(piece, "tolist") else piece


def filled(vector: Any, values: Sequence[Any]) -> Any:
    """Return a vector after its elements have been set to those of a list or repeated field as long as it is."""
    for start in range(0, len(vector), PIECE):
        vector[start : start + PIECE] = values[start : start + PIECE]
    return vector
