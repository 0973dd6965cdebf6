"""`Beside`: the result of a function that runs in another thread while this one goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """The result of a function that runs in a thread of its own.

    Args:
        make: the function. Where it fails, or its thread is gone (in a process that was forked), `result` calls it.
        name: of the thread.
    """

    def __init__(self, make: Callable[[], T], name: str) -> None:
        self._make = make
        self._made: list[T] = []
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name=name)
        try:
            self._thread.start()
        except RuntimeError:  # the system has no more threads, or the process ends
            self._thread = None

    def _run(self) -> None:
        try:
            self._made.append(self._make())
        except Exception:  # raised by `result`, in the thread of the caller
            return

    def result(self) -> T:
        """Return what was made, once it is there."""
        if self._thread is not None:
            self._thread.join()
        return self._made[0] if self._made else self._make()
