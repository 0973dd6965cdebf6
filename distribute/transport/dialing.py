"""Sockets that lead to a task, by the first plane that works."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence

from .planes import NEEDS_ONE_HOST, Plane, local_name

BUFFER = 1 << 20  # bytes that a Unix socket holds: by default it holds 200 KB, and each is a turn of two loops


def dial(
    planes: Sequence[Plane],
    host: str,
    port: int,
    incarnation: int,
    stream: Callable[[], socket.socket],
    timeout: float | None = None,
) -> tuple[socket.socket, Plane]:
    """Connect to a task.

    Args:
        planes: those to try.
        host, port: of its sockets; port 0 if it has none that others can reach.
        incarnation: of the start that is to be there: its socket on this host has that name.
        stream: begins a stream of gRPC, and gives its end.
        timeout: of a socket that blocks; None for one that does not, which may still be connecting.

    Raises:
        OSError: no plane leads there.
    """
    error = OSError("its address is not known")
    for plane in planes:
        try:
            if plane in NEEDS_ONE_HOST:
                return local(incarnation, timeout), plane
            if plane == Plane.GRPC:
                return stream(), plane
            return _by_tcp(host, port, timeout), plane
        except OSError as found:
            error = found
            if plane in NEEDS_ONE_HOST:
                error = OSError(f"it is not on this host, and plane={str(plane)!r} needs that")
    raise error


def local(incarnation: int, timeout: float | None = None) -> socket.socket:
    """Connect to a task on this host.

    Raises:
        OSError: it is not there.
    """
    with contextlib.ExitStack() as unless_it_works:
        sock = unless_it_works.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.settimeout(0 if timeout is None else timeout)
        sock.connect(local_name(incarnation))
        widen(sock)
        unless_it_works.pop_all()
    return sock


def _by_tcp(host: str, port: int, timeout: float | None) -> socket.socket:
    if not port:
        raise OSError("it has no socket that others can reach: its connections are encrypted")
    if timeout is not None:
        return socket.create_connection((host, port), timeout)
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    with contextlib.ExitStack() as unless_it_works:
        unless_it_works.callback(sock.close)
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.connect((host, port))
        unless_it_works.pop_all()
    return sock


def widen(sock: socket.socket) -> None:
    """Let a Unix socket hold more, as far as the system allows it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)


def listen_here(incarnation: int, backlog: int) -> socket.socket:
    """Listen for tasks and clients of this host.

    Raises:
        OSError: the system does not allow it.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.ExitStack() as unless_it_works:
        unless_it_works.callback(sock.close)
        sock.bind(local_name(incarnation))
        sock.listen(backlog)
        sock.setblocking(False)
        unless_it_works.pop_all()
    return sock


__all__ = ["dial", "listen_here", "local", "widen"]
