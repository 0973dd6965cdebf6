"""Resets: containers of all tasks of a cluster are given up at the wish of a client (`Session.reset`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..transport.connections import Connection, Identity
from ..transport.failures import describe_error
from ..transport.wire import FrameError, Kind
from .worker import Link

Reached = Callable[["Link | Exception"], None]


class Resets:
    """Has all tasks give containers up, and answers when they have.

    Args:
        tasks: the names of all tasks.
        reach: connects to one of them.
        number: gives numbers for resets.
    """

    def __init__(self, tasks: Iterable[str], reach: Callable[[str, Reached], None], number: Callable[[], int]) -> None:
        self._tasks = list(tasks)
        self._reach = reach
        self._number = number
        self._open: dict[int, _Reset] = {}

    def begin(self, connection: Connection, document: dict[str, Any]) -> None:
        """Begin what a client asks for."""
        containers = document["containers"]
        if containers is not None and not all(isinstance(name, str) for name in containers):
            raise FrameError("the containers to be reset are no names")
        number = self._number()
        reset = self._open[number] = _Reset(connection, self._tasks)

        def reached(name: str, link: Link | Exception) -> None:
            if isinstance(link, Exception):
                self._done(number, reset, name, link)
            else:
                link.send(Kind.RESET, {"reset": number, "containers": containers})

        for name in self._tasks:
            self._reach(name, lambda link, name=name: reached(name, link))

    def take(self, task: Identity, document: dict[str, Any]) -> None:
        """Take the answer of a task."""
        number = int(document["reset"])
        reset = self._open.get(number)
        if reset is not None:
            reset.count += int(document["count"])
            self._done(number, reset, task.name, None)

    def lost_task(self, name: str, error: Exception) -> None:
        """Handle the loss of a task, with its state."""
        for number, reset in list(self._open.items()):
            self._done(number, reset, name, error)

    def _done(self, number: int, reset: _Reset, name: str, error: Exception | None) -> None:
        if name not in reset.waiting:
            return
        reset.waiting.discard(name)
        reset.errors += [] if error is None else [error]
        if reset.waiting:
            return
        del self._open[number]
        if reset.errors:
            reset.connection.send(Kind.ERROR, {"error": describe_error(reset.errors[0])})
        else:
            reset.connection.send(Kind.RESET, {"count": reset.count})


class _Reset:
    """One reset under way."""

    def __init__(self, connection: Connection, tasks: Sequence[str]) -> None:
        self.connection = connection
        self.waiting = set(tasks)
        self.errors: list[Exception] = []
        self.count = 0


__all__ = ["Resets"]
