"""The process at the other end of a Unix socket: its end is seen at once, also where a child of it holds the socket."""

from __future__ import annotations

import os
import select
import socket
import struct

_PEER_PROCESS = 77  # SO_PEERPIDFD, of Linux 6.5
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class PeerProcess:
    """A process that is watched: what waits for its descriptor, as for a socket's, sees that it has ended."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor; -1 once it is closed."""
        return self._descriptor

    @property
    def has_ended(self) -> bool:
        """Test whether the process has ended, without waiting."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Watch it no longer."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def process_at(sock: socket.socket) -> PeerProcess | None:
    """Return the process that a Unix socket leads to.

    Returns:
        None for other sockets, for this process itself, where the system has no descriptors of processes (others than
        Linux), and where the process can't be seen from here, as from another container.
    """
    if not hasattr(os, "pidfd_open") or sock.family != socket.AF_UNIX:
        return None
    try:
        process, _, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if process in (0, os.getpid()):
            return None
        try:
            return PeerProcess(sock.getsockopt(socket.SOL_SOCKET, _PEER_PROCESS))
        except OSError:  # an older Linux: the number may belong to another process by now, which a socket detects, too
            return PeerProcess(os.pidfd_open(process))
    except OSError:
        return None


__all__ = ["PeerProcess", "process_at"]
