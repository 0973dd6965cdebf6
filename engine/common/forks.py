"""Preparations before a process is forked, so that nothing hangs in the child.

The child has only the thread that forks. What other threads have locked at that moment nobody unlocks there: modules
that they import, and what guards the compiler.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

_LONGEST_IMPORT = 30.0  # seconds; a module that waits for the thread that forks would never be ready

importing = threading.RLock()  # who imports for a public name
_locks: weakref.WeakSet[Any] = weakref.WeakSet()  # locks, whose type in typeshed has not all of their methods


def fork_safe_lock() -> threading.Lock:
    """Make a lock that is free in a child process, whichever thread held it when the process was forked.

    It is for sections that call nothing which could wait or fork, and whose data may be used as they are between any
    two statements: in the child the section ends where the other thread had come to.
    """
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _free_locks() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()


class _Forks:
    """The hooks of this package, which are called together, so that each `after` follows its `before`."""

    def __init__(self) -> None:
        self._hooks: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._called: dict[int, list[Callable[[], None]]] = {}

    def register(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._hooks.append((before, after))

    def before(self) -> None:
        afters = self._called.setdefault(threading.get_ident(), [])
        if importing.acquire(timeout=_LONGEST_IMPORT):
            afters.append(importing.release)
        for before, after in list(self._hooks):
            before()
            afters.append(after)
        _wait_for_imports()  # last, as others may begin while something else is waited for

    def after(self) -> None:
        """Call the functions for after a fork, in both processes; the thread keeps its number in the child."""
        for after in reversed(self._called.pop(threading.get_ident(), [])):
            after()


def _wait_for_imports() -> None:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return  # this thread imports something itself
        frame = frame.f_back
    end = time.monotonic() + _LONGEST_IMPORT
    while _somebody_imports() and time.monotonic() < end:
        time.sleep(0.001)


def _somebody_imports() -> bool:
    specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
    return any(getattr(spec, "_initializing", False) for spec in specs)


forks = _Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=forks.before, after_in_parent=forks.after, after_in_child=forks.after)
    os.register_at_fork(after_in_child=_free_locks)
