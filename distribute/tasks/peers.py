"""`Peers`: connections from a task to others, one to each start of each of them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..transport.connections import Connection, Identity
from ..transport.failures import task_failed
from ..transport.planes import Plane
from ..transport.wire import Frame

Opened = Callable[["Address", Any], None]  # of where it leads, and the connection or why there is none


class Link(Protocol):
    """A way to a master, or to a task: a connection, or this process itself."""

    @property
    def other(self) -> Identity: ...

    def send(self, kind: int, document: Any, arrays: Any = ()) -> None: ...


class Address(NamedTuple):
    """The address at which a task is reached.

    Attributes:
        name: "/job:ps/task:0".
        host, port: of its sockets.
        incarnation: of the start that listens there.
        front: where it answers gRPC, "host:port"; empty if that is not known.
    """

    name: str
    host: str
    port: int
    incarnation: int
    front: str = ""

    @property
    def identity(self) -> Identity:
        return Identity(self.name, self.incarnation)


class Peers:
    """Connects to other tasks, once each.

    Args:
        connect: makes a connection of a socket; takes the one who is to answer, the plane, and what takes frames, notes
            that the connection is open and that it is over.
        dial: gives a socket that leads to a task, and the plane; takes whether only a stream of gRPC is left to try.
        on_frame: takes what others answer.
        on_lost: takes who is gone, and the reason.
        masters: gives the incarnations of those who have connected to this task, itself included.
        watch: takes where a task is that is connected from now on.
    """

    def __init__(
        self,
        connect: Callable[..., Connection],
        dial: Callable[[Address, bool], tuple[socket.socket, Plane]],
        on_frame: Callable[[Connection, Frame], None],
        on_lost: Callable[[Identity, str], None],
        masters: Callable[[], set[int]],
        watch: Callable[[Address], None],
    ) -> None:
        self._connect = connect
        self._dial = dial
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._masters = masters
        self.watch = watch
        self._known: dict[Identity, Connection] = {}
        self._waiting: dict[Identity, list[tuple[Address, Opened]]] = {}

    def has_master(self, incarnation: int) -> bool:
        """Test whether a task is connected to whose steps values may belong."""
        return incarnation in self._masters()

    def way_to(self, identity: Identity) -> Connection | None:
        """Return the open connection to a task, if there is one."""
        known = self._known.get(identity)
        return known if known is not None and known.is_open else None

    def reach(self, address: Address, opened: Opened) -> None:
        """Connect to a task, unless that is done; `opened` takes the connection, or an error, now or later."""
        identity = address.identity
        known = self.way_to(identity)
        if known is not None:
            opened(address, known)
            return
        self._waiting.setdefault(identity, []).append((address, opened))
        if identity not in self._known:
            self._begin(address)

    def give_up(self, identity: Identity, reason: str) -> None:
        """End the connection to a task, open or about to be."""
        known = self._known.pop(identity, None)
        if known is not None:
            known.close(reason)

    def _begin(self, address: Address, failed: str = "") -> None:
        """Begin to connect.

        Args:
            address: of the task.
            failed: why its sockets can't be reached, where that is so.
        """
        identity, has_opened = address.identity, False
        try:
            sock, plane = self._dial(address, bool(failed))
        except OSError as error:
            why = failed or f"it can't be reached ({error.strerror or error})"
            self._answer(identity, task_failed(address.name, why))
            if failed:
                self._on_lost(identity, failed)
            return

        def on_open(connection: Connection) -> None:
            nonlocal has_opened
            has_opened = True
            self._answer(identity, connection)

        def on_close(connection: Connection, reason: str) -> None:
            was_given_up = self._known.pop(identity, None) is None
            if plane == Plane.TCP and not (failed or has_opened or was_given_up):
                self._begin(address, reason)
                return
            why = failed if failed and not has_opened else reason
            self._answer(identity, task_failed(address.name, why))
            self._on_lost(identity, why)

        self.watch(address)
        self._known[identity] = self._connect(sock, identity, plane, self._on_frame, on_open, on_close)

    def _answer(self, identity: Identity, way: Any) -> None:
        for address, opened in self._waiting.pop(identity, ()):
            opened(address, way)
