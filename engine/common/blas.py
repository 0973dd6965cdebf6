"""Set the threads that OpenBLAS uses while a step runs: one, whatever was imported first.

After a product on threads, those of OpenBLAS look for more work: for 30 ms, unless `OPENBLAS_THREAD_TIMEOUT` says
otherwise, which it reads when NumPy is loaded (`engine/__init__.py`). Meanwhile kernels lack the cores. So OpenBLAS
computes on one thread while a step runs, and its threads stay asleep; what it sums does not depend on how many it has.
Between steps, and in Python functions that a step calls, it has the number of threads that the user gave it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

_NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads64_")
_Count = Callable[[], int]
_SetCount = Callable[[int], None]


def _functions() -> tuple[_Count, _SetCount] | None:
    """Return functions that get and set the threads of the OpenBLAS in NumPy's wheel; None where it has another."""
    try:
        extension = importlib.import_module("numpy._core._multiarray_umath")
        library = ctypes.PyDLL(extension.__file__)
        name = next(name for name in _NAMES if hasattr(library, name.format("set")))
    except (ImportError, OSError, StopIteration, AttributeError):
        return None
    get, put = getattr(library, name.format("get")), getattr(library, name.format("set"))
    get.restype, get.argtypes, put.restype, put.argtypes = ctypes.c_int, [], None, [ctypes.c_int]
    return get, put


class BlasThreads:
    """The number of threads of OpenBLAS: one while steps run, in any number of threads, the user's otherwise.

    Args:
        count: gives the number.
        set_count: sets it.
    """

    def __init__(self, count: _Count, set_count: _SetCount) -> None:
        self._count = count
        self._set_count = set_count
        self._lock = threading.Lock()
        self._steps = 0
        self._users = 1

    def begin(self) -> None:
        """Note that a step begins."""
        with self._lock:
            if not self._steps:
                self._users = self._count()
                if self._users > 1:
                    self._set_count(1)
            self._steps += 1

    def end(self) -> None:
        """Note that a step has ended."""
        with self._lock:
            if not self._steps:
                return  # it began in another process, of which this one is a child
            self._steps -= 1
            if not self._steps and self._users > 1:
                self._set_count(self._users)

    def pause(self) -> bool:
        """Note that a step calls a function of the user's, which may use NumPy; return whether to go on behind it."""
        with self._lock:
            is_limited = self._steps > 0 and self._users > 1
            if is_limited:
                self._set_count(self._users)
        return is_limited

    def go_on(self) -> None:
        """Note that the function has returned."""
        with self._lock:
            if self._steps:
                self._users = self._count()  # the user may have changed it
                self._set_count(1)

    def before_fork(self) -> None:
        """Wait until no thread is about to set the number: the child would find the locks of that held for good."""
        self._lock.acquire()

    def after_fork(self) -> None:
        """Release the lock in the parent: threads may go on."""
        self._lock.release()

    def restart(self) -> None:
        """Restart in a child process: steps of other threads do not run there."""
        self._lock = threading.Lock()
        if self._steps and self._users > 1:
            self._set_count(self._users)
        self._steps = 0


_found = _functions()
limited: BlasThreads | None = None if _found is None else BlasThreads(*_found)
if limited is not None and hasattr(os, "register_at_fork"):
    os.register_at_fork(before=limited.before_fork, after_in_parent=limited.after_fork, after_in_child=limited.restart)


class _OneThread:
    """A context in which a step runs, inside another one."""

    __slots__ = ("_inner", "_threads")

    def __init__(self, threads: BlasThreads, inner: AbstractContextManager[None]) -> None:
        self._threads = threads
        self._inner = inner

    def __enter__(self) -> None:
        self._inner.__enter__()
        self._threads.begin()

    def __exit__(self, *error: Any) -> None:
        self._threads.end()
        self._inner.__exit__(*error)


Context = Callable[[], AbstractContextManager[None]]


def on_one_thread(context: Context) -> Context:
    """Return what makes the context of steps, `context`, with OpenBLAS on one thread where that is needed."""
    threads = limited
    return context if threads is None else lambda: _OneThread(threads, context())
