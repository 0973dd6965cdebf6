"""`LongTurns`: has something done by a thread of its own while one turn of a loop lasts long."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable

from .loop import Loop

_LONG = 0.25  # seconds


class LongTurns:
    """Calls a function, again and again, while a turn of a loop lasts.

    Its thread waits without a time while the loop does nothing, so that an idle task takes no processor time.

    Args:
        loop: whose turns are watched.
        look: what is called. An error of ours is printed, and ends nothing.
        name: of the thread.
    """

    def __init__(self, loop: Loop, look: Callable[[], None], name: str) -> None:
        self._loop = loop
        self._look = look
        self._is_idle = True  # whether `begin` has to wake the thread
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()  # whether to go on
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to watch; once."""
        self._thread.start()

    def begin(self) -> None:
        """Note that something begins that may take long; for the loop's thread."""
        if self._is_idle:
            self._is_idle = False
            self._signals.put(True)

    def close(self) -> None:
        """End the thread."""
        self._signals.put(False)
        self._thread.join()

    def _run(self) -> None:
        while self._signals.get():
            if not self._watch():
                return

    def _watch(self) -> bool:
        """Watch the loop until it does nothing; return False if this is to end."""
        loop, seen = self._loop, -1
        while True:
            try:
                if not self._signals.get(timeout=_LONG):
                    return False
            except queue.Empty:
                pass
            if loop.turns != seen:
                seen = loop.turns
            elif not loop.is_waiting:
                try:
                    self._look()
                except Exception:
                    traceback.print_exc()
            else:
                self._is_idle = True
                if loop.turns == seen and loop.is_waiting:
                    return True
                self._is_idle = False  # what has begun meanwhile may have found the thread awake


__all__ = ["LongTurns"]
