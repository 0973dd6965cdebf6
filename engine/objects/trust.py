"""What a file may ask for while it is read: code, other files, memory.

A file is untrusted unless its user says otherwise (``safe_mode=False``). What it asks for is then refused before it is
done: code in lambdas, paths of other files, classes that nobody registered, more memory than its arrays account for.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

# None: no file is being read. Objects that a script makes itself may open files, but hold no code from configs.
_safe_mode: ContextVar[bool | None] = ContextVar("safe_mode", default=None)
_budget: ContextVar[Budget | None] = ContextVar("memory_budget", default=None)
_code_allowed = False  # in all files, whatever the mode


class OverBudgetError(MemoryError):
    """A file asks for more memory than it accounts for."""


PER_ARRAY = 2048  # bytes that a variable takes beside its values


class Budget:
    """How many bytes may still be asked for.

    Args:
        limit: how many in all.
        reason: where the limit comes from, and how to mend it, for the message.
    """

    def __init__(self, limit: int, reason: str) -> None:
        self.limit = limit
        self.left = limit
        self.reason = reason


def allow_code_in_files(allowed: bool = True) -> None:
    """Read code (lambdas) in configs from now on, also where the safe mode is on."""
    global _code_allowed
    _code_allowed = allowed


@contextmanager
def safe_mode_scope(safe_mode: bool) -> Generator[None]:
    """Whether what a file could do harm with is refused inside the block."""
    token = _safe_mode.set(safe_mode)
    try:
        yield
    finally:
        _safe_mode.reset(token)


def reads_a_file() -> bool:
    """Whether a config is being read, trusted or not."""
    return _safe_mode.get() is not None


def refuses_code() -> bool:
    """Whether code in configs is refused; it is, unless somebody said that it is trusted."""
    return _safe_mode.get() is not False and not _code_allowed


def distrusts_files() -> bool:
    """Whether a config is being read that nobody said is trusted."""
    return _safe_mode.get() is True and not _code_allowed


@contextmanager
def own_objects_scope() -> Generator[None]:
    """Inside the block, objects of this program are copied through their configs.

    These are trusted, as the program made them; but while a file is read, what the file says may be in them.
    """
    if reads_a_file():
        yield
        return
    with safe_mode_scope(False):
        yield


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
