"""A limit for the memory of what is made from numbers that somebody else wrote, such as a model's config."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

PER_ARRAY = 2048  # bytes that a variable takes beside its values


class OverBudgetError(MemoryError):
    """A file asks for more memory than it accounts for."""


class Budget:
    """A count of the bytes that may still be asked for.

    Args:
        limit: how many in all.
        reason: where the limit comes from, and how to mend it, for the message.
    """

    def __init__(self, limit: int, reason: str) -> None:
        self.limit = limit
        self.left = limit
        self.reason = reason


_budget: ContextVar[Budget | None] = ContextVar("memory_budget", default=None)


@contextmanager
def memory_budget(limit: int | None, reason: str) -> Generator[None]:
    """Let what is made inside the block have so many bytes in all; None for no limit."""
    token = _budget.set(None if limit is None else Budget(limit, reason))
    try:
        yield
    finally:
        _budget.reset(token)


def claim(shape: Sequence[int], itemsize: int, what: str) -> None:
    """Ask for the memory of an array before it is made.

    Args:
        shape: the array's.
        itemsize: the bytes of an element.
        what: what it is for, for the message.

    Raises:
        OverBudgetError: it is more than `memory_budget` leaves.
    """
    budget = _budget.get()
    if budget is None:
        return
    size = math.prod(int(length) for length in shape) * itemsize
    budget.left -= size + PER_ARRAY
    if budget.left < 0:
        raise OverBudgetError(f"{what} of shape {tuple(shape)} takes {size:,} bytes, {budget.reason}")
