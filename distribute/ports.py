"""Ports of this machine that are free; without imports, so that commands begin quickly."""

from __future__ import annotations

import contextlib
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


__all__ = ["free_ports"]
