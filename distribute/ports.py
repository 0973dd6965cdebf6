"""Ports of this machine that are free; without large imports, so that commands begin quickly."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any


class ReservedPorts:
    """Different ports of an address of this machine, which the system gives to nobody else until this is closed.

    Servers of tasks listen at them nevertheless. For that this process has bound the ports, but does not listen: both
    sides set `SO_REUSEADDR`. Where the system allows that to one of two sockets only, as macOS does, the ports are
    free, but not reserved.

    Args:
        address: of this machine, or its name.
        count: how many ports.

    Attributes:
        numbers: the ports.

    Raises:
        OSError: it is not an address of this machine.
    """

    def __init__(self, address: str, count: int) -> None:
        self._address = address
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._held = contextlib.ExitStack()
        with self._held:  # if one can't be bound, none is
            self.numbers = [self._bound(0).getsockname()[1] for _ in range(count)]
            self._held = self._held.pop_all()
        if self.numbers and not self._others_may_listen():
            self.close()

    def _bound(self, port: int) -> socket.socket:
        sock = self._held.enter_context(socket.socket(self._family))
        if os.name == "posix":  # elsewhere that allows two servers at one port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((self._address, port))
        return sock

    def _others_may_listen(self) -> bool:
        return os.name == "posix" and _listens(self._family, socket.SOCK_STREAM, 0, (self._address, self.numbers[0]))

    def close(self) -> None:
        """Give the ports back."""
        self._held.close()

    def __enter__(self) -> ReservedPorts:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def can_listen(host: str, port: int) -> bool:
    """Test whether a server may listen at a port of this machine, at one address of the host or more.

    gRPC's core is asked only after this: it prints a line to the error output where it can't listen.
    """
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return any(_listens(family, kind, protocol, address) for family, kind, protocol, _, address in found)
    return False


def _listens(family: int, kind: int, protocol: int, address: Any) -> bool:
    """Test whether a server may listen at an address, by listening for a moment."""
    with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as tried:
        if os.name == "posix":  # elsewhere that allows two servers at one port
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(address)
        tried.listen()
        return True
    return False


__all__ = ["ReservedPorts", "can_listen"]
