"""`Segment`: memory of one process that others of the same host map. Nothing of it outlives the processes.

A member of a group has `Segments`: two of its own, used in turn, and those of others that it has mapped.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

IS_AVAILABLE = hasattr(os, "memfd_create")


class Segment:
    """Memory of this process that others can map; it grows.

    Attributes:
        descriptor: the number of the file that others open.
        size: bytes.
        memory: its bytes.
    """

    def __init__(self) -> None:
        self.descriptor = -1
        self.size = 0
        self.memory: Any = np.zeros(0, "uint8")

    def grow(self, size: int) -> None:
        """Have at least so many bytes, in a new file if need be."""
        if size <= self.size:
            return
        self.close()
        size = max(size, mmap.PAGESIZE)
        self.descriptor = os.memfd_create("anabranch collectives")
        os.ftruncate(self.descriptor, size)
        self.size = size
        self.memory = _mapped(self.descriptor, size)

    def close(self) -> None:
        """Give the memory up."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor, self.size, self.memory = -1, 0, np.zeros(0, "uint8")


class Segments:
    """Two segments of a member, and what it has mapped of those of others.

    Args:
        processes: the number of each member's process, by rank.
    """

    def __init__(self, processes: Sequence[int]) -> None:
        self._processes = processes
        self._own = (Segment(), Segment())
        self._maps: dict[tuple[int, int], tuple[tuple[int, int], Any]] = {}

    def own(self, slot: int, size: int) -> Segment:
        """Return an own segment, of at least so many bytes."""
        segment = self._own[slot]
        segment.grow(size)
        return segment

    def of(self, rank: int, slot: int, file: tuple[int, int], like: Any) -> Any:
        """Return the numbers in a segment of another member, as many as `like` has, and of its dtype.

        Args:
            rank: of the member.
            slot: which of its two.
            file: its descriptor and size, as the member has sent them.
            like: a contiguous array.
        """
        known = self._maps.get((rank, slot))
        if known is None or known[0] != file:
            known = self._maps[rank, slot] = (file, opened(self._processes[rank], *file))
        return known[1][: like.nbytes].view(like.dtype)

    def close(self) -> None:
        """Give the memory up."""
        self._maps.clear()
        for segment in self._own:
            segment.close()


def opened(process: int, descriptor: int, size: int) -> Any:
    """Map the memory of another process of this host.

    Raises:
        OSError: the system does not allow that, or the process is on another host.
    """
    file = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
    try:
        return _mapped(file, size)
    finally:
        os.close(file)


def _mapped(descriptor: int, size: int) -> Any:
    return np.frombuffer(mmap.mmap(descriptor, size), "uint8")  # the array holds the map


__all__ = ["IS_AVAILABLE", "Segment", "Segments", "opened"]
