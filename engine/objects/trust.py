"""Limits of what a file may ask for while it is read: code, other files, memory.

A file is untrusted unless its user says otherwise (``safe_mode=False``). What it asks for is then refused before it is
done: code in lambdas, paths of other files, classes that nobody registered. `graph.claims` is about memory.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

# None: no file is being read. Objects that a script makes itself may open files, but hold no code from configs.
_safe_mode: ContextVar[bool | None] = ContextVar("safe_mode", default=None)
_code_allowed = False  # in all files, whatever the mode


def allow_code_in_files(allowed: bool = True) -> None:
    """Read code (lambdas) in configs from now on, also where the safe mode is on."""
    global _code_allowed
    _code_allowed = allowed


@contextmanager
def safe_mode_scope(safe_mode: bool) -> Generator[None]:
    """Refuse, or allow, inside the block what a file could do harm with."""
    token = _safe_mode.set(safe_mode)
    try:
        yield
    finally:
        _safe_mode.reset(token)


def reads_a_file() -> bool:
    """Test whether a config is being read, trusted or not."""
    return _safe_mode.get() is not None


def refuses_code() -> bool:
    """Test whether code in configs is refused; it is, unless somebody said that it is trusted."""
    return _safe_mode.get() is not False and not _code_allowed


def distrusts_files() -> bool:
    """Test whether a config is being read that nobody said is trusted."""
    return _safe_mode.get() is True and not _code_allowed


@contextmanager
def own_objects_scope() -> Generator[None]:
    """Copy objects of this program through their configs inside of the block.

    These are trusted, as the program made them; but while a file is read, what the file says may be in them.
    """
    if reads_a_file():
        yield
        return
    with safe_mode_scope(False):
        yield
