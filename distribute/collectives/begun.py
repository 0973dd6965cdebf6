"""`Begun`: calls that a thread of its own makes one after the other, while those who began them go on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

_ENDING_SECONDS = 5.0  # for how long an end waits for what is running
_CLOSED = "The group of processes is closed. Collectives run while it is open."


class Begun:
    """A queue of calls, and the thread that makes them; it starts with the first one.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._futures: dict[int, Future[Any]] = {}  # of what nobody has asked for yet
        self._latest: Future[Any] | None = None
        self._count = 0
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def begin(self, call: Callable[[], Any]) -> int:
        """Have a call made behind all that were begun before; return its number.

        Args:
            call: what to do.

        Raises:
            RuntimeError: it is closed.
        """
        if self._is_closed:
            raise RuntimeError(_CLOSED)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        number, self._count = self._count, self._count + 1
        future: Future[Any] = Future()
        self._futures[number] = self._latest = future
        self._calls.put((call, future))
        return number

    def end(self, number: int) -> Any:
        """Wait for a call; return its result, once, or raise its error.

        Args:
            number: of the call.

        Raises:
            RuntimeError: it was closed before the call was made.
        """
        future = self._futures.pop(number, None)
        if future is None or future.cancelled():
            raise RuntimeError(_CLOSED)
        return future.result()

    def drain(self) -> None:
        """Wait until all that was begun is over."""
        if self._latest is not None:
            wait([self._latest])

    def close(self) -> None:
        """Cancel what is not running yet, and end the thread."""
        self._is_closed = True
        for future in self._futures.values():
            future.cancel()
        self._calls.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_ENDING_SECONDS)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            del item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                found = call()
            except BaseException as error:  # whoever asks for the result raises it
                future.set_exception(error)
            else:
                del call  # the arrays that it was given, before somebody goes on
                future.set_result(found)
                del found


__all__ = ["Begun"]
