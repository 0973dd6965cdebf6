"""The memory budget: how many bytes of loop state a step may keep for its backward pass."""

from __future__ import annotations

import operator
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_of_process: int | None = None


class _Latest(threading.local):
    def __init__(self) -> None:
        self.budgets: list[int | None] = []


_latest = _Latest()


def set_memory_budget(budget: int | None) -> None:
    """Let every step keep at most about `budget` bytes of loop state for its backward pass.

    Args:
        budget: bytes; what does not fit is computed again in the backward loops. None, as at first, for no limit.

    Steps that were compiled before are compiled again when they are next run. See docs/memory.md.

    Raises:
        TypeError: it is not an integer. ValueError: it is negative.

    >>> import anabranch as ab
    >>> ab.config.set_memory_budget(2**20)
    >>> ab.config.memory_budget()
    1048576
    >>> ab.config.set_memory_budget(None)
    """
    global _of_process
    _of_process = _checked(budget)


def memory_budget() -> int | None:
    """Return the budget that holds here: of the run under way, if that has one of its own, else of the process."""
    return _latest.budgets[-1] if _latest.budgets else _of_process


@contextmanager
def within_memory_budget(budget: int | None) -> Generator[None]:
    """Give what this thread runs inside of the block a budget of its own.

    Raises:
        TypeError, ValueError: as `set_memory_budget`.
    """
    _latest.budgets.append(_checked(budget))
    try:
        yield
    finally:
        _latest.budgets.pop()


def _checked(budget: Any) -> int | None:
    if budget is None:
        return None
    try:
        size = operator.index(budget)
    except TypeError:
        size = None
    if size is None or isinstance(budget, bool):
        raise TypeError(
            f"A memory budget is a number of bytes, an int, or None for no limit; got {budget!r} "
            f"({type(budget).__name__})."
        )
    if size < 0:
        raise ValueError(f"A memory budget is a number of bytes that is not negative, or None; got {size}.")
    return size
