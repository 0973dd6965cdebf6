"""Ports of this machine that are free; without imports, so that commands begin quickly."""

from __future__ import annotations

import contextlib
import os
import socket


def free_ports(address: str, count: int) -> list[int]:
    """Find different ports of an address of this machine that nobody uses now.

    Raises:
        OSError: it is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket(family)) for _ in range(count)]
        for each in found:
            each.bind((address, 0))
        return [each.getsockname()[1] for each in found]


def can_listen(host: str, port: int) -> bool:
    """Test whether a server may listen at a port of this machine, at one address of the host or more.

    gRPC's core is asked only after this: it prints a line to the error output where it can't listen.
    """
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as tried:
                if os.name == "posix":  # elsewhere that allows two servers at one port
                    tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(address)
                tried.listen()
                return True
    return False


__all__ = ["can_listen", "free_ports"]
