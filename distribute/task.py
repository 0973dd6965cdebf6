"""`Task`: what a task holds, and who gets which frame. All of it happens in the task's loop."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence

from ..engine.place.devices import Device
from .cluster import ClusterSpec
from .connections import Connection, Handshake, Identity
from .loop import Loop
from .wire import Frame, Kind


class Task:
    """One task.

    Args:
        identity: who it is.
        cluster: all tasks.
        devices: those of this task.
        token: that of the job.
        connect_timeout: how many seconds a step waits for tasks that it needs.
        address: of its sockets.
    """

    def __init__(
        self,
        identity: Identity,
        cluster: ClusterSpec,
        devices: Sequence[Device],
        token: bytes,
        connect_timeout: float,
        address: tuple[str, int],
    ) -> None:
        self.identity = identity
        self.cluster = cluster
        self.devices = devices
        self.connect_timeout = connect_timeout
        self.address = address
        self.loop = Loop()
        self.loop.idle = self._idle
        self.connections: set[Connection] = set()  # all that are open or about to be
        self._token = token
        self._outbox: set[Connection] = set()
        self._listener: socket.socket | None = None

    @property
    def state(self) -> str:
        """What it does, in a word; for any thread."""
        return "idle"

    # --- connections ------------------------------------------------------------------------------------------------

    def listen(self, listener: socket.socket) -> None:
        """Accept connections."""
        self._listener = listener
        self.loop.watch(listener, self._accept)

    def _accept(self, events: int) -> None:
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError, ConnectionError):
            sock, _ = self._listener.accept()
            self._connection(sock, True, None, self._take, lambda connection: None, self._closed)

    def _connection(
        self,
        sock: socket.socket,
        accepts: bool,
        expected: Identity | None,
        on_frame: Callable[[Connection, Frame], None],
        on_open: Callable[[Connection], None],
        on_close: Callable[[Connection, str], None],
    ) -> Connection:
        def closed(connection: Connection, reason: str) -> None:
            self.connections.discard(connection)
            on_close(connection, reason)

        handshake = Handshake(self.identity, self._token, accepts, expected)
        made = Connection(self.loop, sock, handshake, on_frame, on_open, closed, self._outbox)
        self.connections.add(made)
        return made

    def _take(self, connection: Connection, frame: Frame) -> None:
        """A frame of somebody who has connected."""
        connection.close(f"a frame of kind {frame.kind} came, which nobody takes here")

    def _closed(self, connection: Connection, reason: str) -> None:
        """Somebody who had connected is gone."""

    # --- the loop ---------------------------------------------------------------------------------------------------

    def _idle(self) -> bool:
        for connection in list(self._outbox):
            self._outbox.discard(connection)
            connection.flush()
        return False

    def close(self) -> None:
        """Give up everything; the loop has ended."""
        for connection in list(self.connections):
            connection.close("the task ends")
        if self._listener is not None:
            self.loop.forget(self._listener)
            self._listener.close()
        self.loop.close()


__all__ = ["Kind", "Task"]
