"""Slabs: memory that a task fills and another one of the same host maps, read-only; nothing of it has a name.

The task that sends owns a `Pool`. It copies an array into a slab, and sends the slab's number and the place there, no
bytes. The task that receives has `Mapped` slabs, and makes arrays of them without a copy. When such an array is gone,
the slab's number travels back. A slab of which all arrays have come back so is free.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

IS_AVAILABLE = sys.platform == "linux" and hasattr(os, "memfd_create")
LEAST = 1 << 16  # bytes of a slab
GRAIN = 1 << 22  # bytes of a slab that arrays share; what is larger has one of its own
MOST_SLABS = 128  # each is a descriptor of both sides, before Python 3.13
_ALIGNED = 64
if IS_AVAILABLE:
    import fcntl

    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    _SEAL_SEAL = fcntl.F_SEAL_SEAL


class SlabError(ValueError):
    """A slab that is not as it has to be, or one that there is not."""


class Slab:
    """Memory that this process writes.

    Attributes:
        number: its number on the other side.
        size: bytes.
        uses: arrays in it that have not been acknowledged.
        filled: bytes.
    """

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.uses = 0
        self.filled = 0
        descriptor = os.memfd_create("anabranch slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS | _SEAL_SEAL)
            self.memory: Any = _mapped(descriptor, size)
            # The other side gets a way to read it, and none to write.
            self.descriptor = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(descriptor)


class Laid(NamedTuple):
    """An array in a slab.

    Attributes:
        slab, offset: where.
        is_new: whether the other side has to be notified of the slab.
        dropped: slabs that were given up for it.
    """

    slab: Slab
    offset: int
    is_new: bool
    dropped: list[int]


class Pool:
    """Slabs for the values that go to one other task.

    Args:
        limit: bytes of all slabs together.

    A pool never waits: when all its slabs are in use, `put` finds none, and the value goes by the socket. Otherwise a
    step could wait for itself, behind values that it has sent and that nobody takes yet.

    Attributes:
        bytes_shared: bytes that have gone by slabs.
        full: how often there was no slab for a value.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes_shared = 0
        self.full = 0
        self._grain = min(GRAIN, max(limit // 8, LEAST))
        self._made = 0
        self._size = 0
        self._slabs: dict[int, Slab] = {}
        self._free: dict[int, list[Slab]] = {}  # by size
        self._current: Slab | None = None  # the one that arrays share by now

    @property
    def size(self) -> int:
        """Bytes of all slabs."""
        return self._size

    @property
    def in_use(self) -> int:
        """Slabs of which the other side has not said that it is done with them."""
        return sum(slab.uses > 0 for slab in self._slabs.values())

    def put(self, array: Any) -> Laid | None:
        """Copy an array into a slab; None if there is no room.

        The descriptor of a new slab is for the caller to send, and to close.
        """
        current = self._current
        if current is not None and current.filled + array.nbytes <= current.size:
            return self._lay(array, current, False, [])
        size = self._grain if array.nbytes <= self._grain else 1 << (array.nbytes - 1).bit_length()
        free = self._free.get(size)
        if free:
            return self._lay(array, free.pop(), False, [])
        dropped = self._make_room(size)
        slab = None
        if self._size + size <= self.limit and len(self._slabs) < MOST_SLABS:
            slab = self._new(size)
        if slab is None:
            self.full += 1
            return None
        return self._lay(array, slab, True, dropped)

    def _lay(self, array: Any, slab: Slab, is_new: bool, dropped: list[int]) -> Laid:
        offset = slab.filled
        np.copyto(slab.memory[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape), array)
        slab.filled = -(-(offset + array.nbytes) // _ALIGNED) * _ALIGNED
        slab.uses += 1
        self.bytes_shared += array.nbytes
        if slab.size == self._grain:
            self._current = slab
        return Laid(slab, offset, is_new, dropped)

    def _new(self, size: int) -> Slab | None:
        try:
            slab = Slab(self._made, size)
        except OSError:  # no memory, or no descriptors: the socket is there
            return None
        self._made += 1
        self._size += size
        self._slabs[slab.number] = slab
        return slab

    def _make_room(self, size: int) -> list[int]:
        """Give up free slabs of other sizes as far as that makes room."""
        spare = sum(len(slabs) * known for known, slabs in self._free.items())
        if size > self.limit or self._size - spare + size > self.limit:
            return []
        dropped: list[int] = []
        for known in sorted(self._free, reverse=True):
            while self._free[known] and (self._size + size > self.limit or len(self._slabs) >= MOST_SLABS):
                slab = self._free[known].pop()
                del self._slabs[slab.number]
                self._size -= slab.size
                dropped.append(slab.number)
        return dropped

    def taken(self, number: int) -> None:
        """Note that the other side is done with an array in a slab.

        Raises:
            SlabError: it has no such slab, or none of its arrays is under way.
        """
        slab = self._slabs.get(number)
        if slab is None or not slab.uses:
            raise SlabError(f"slab {number} was acknowledged, which is not under way")
        slab.uses -= 1
        if slab.uses:
            return
        slab.filled = 0
        if slab is not self._current:
            self._free.setdefault(slab.size, []).append(slab)


def _mapped(descriptor: int, size: int, protection: int = mmap.PROT_READ | mmap.PROT_WRITE) -> Any:
    """Map a file; the array holds the map."""
    if sys.version_info >= (3, 13):
        return np.frombuffer(mmap.mmap(descriptor, size, prot=protection, trackfd=False), "uint8")
    return np.frombuffer(mmap.mmap(descriptor, size, prot=protection), "uint8")


# --- the side that reads --------------------------------------------------------------------------------------------


class _Lease:
    """An array in a slab, as NumPy's interface describes it; when nothing looks at it any more, it says so."""

    __slots__ = ("__array_interface__", "_memory", "_release")

    def __init__(self, memory: Any, offset: int, size: int, release: Callable[[], None]) -> None:
        self._memory = memory  # stays mapped as long as this does
        self._release = release
        address = memory.__array_interface__["data"][0] + offset
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, True), "version": 3}

    def __del__(self) -> None:
        self._release()


class Mapped:
    """Slabs of one other task.

    Args:
        release: takes the number of a slab when an array in it is gone, in whatever thread that happens.
    """

    def __init__(self, release: Callable[[int], None]) -> None:
        self._release = release
        self._slabs: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._slabs)

    def add(self, number: int, descriptor: int) -> None:
        """Map a slab; the descriptor is closed.

        Raises:
            SlabError: it can change its size, so that reading it could end this process; or there are too many.
        """
        try:
            self._slabs[number] = self._map(number, descriptor)
        except OSError as error:
            raise SlabError(f"slab {number} can't be mapped: {error.strerror}") from None
        finally:
            os.close(descriptor)

    def _map(self, number: int, descriptor: int) -> Any:
        if number in self._slabs or len(self._slabs) >= MOST_SLABS:
            raise SlabError(f"slab {number} is one too many")
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise SlabError(f"slab {number} can change its size")
        return _mapped(descriptor, 0, mmap.PROT_READ)

    def array(self, number: int, offset: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        """Return an array in a slab, which nobody can write to.

        Raises:
            SlabError: there is no such slab, or it is smaller.
        """
        memory = self._slabs.get(number)
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if memory is None or offset + size > len(memory) or offset % _ALIGNED:
            raise SlabError(f"slab {number} has no array of shape {shape} and dtype {dtype} at byte {offset}")
        lease = _Lease(memory, offset, size, lambda: self._release(number))
        return np.asarray(lease).view(dtype).reshape(shape)

    def drop(self, number: int) -> None:
        """Forget a slab; it stays mapped while arrays look at it."""
        self._slabs.pop(number, None)

    def close(self) -> None:
        """Forget all of them."""
        self._slabs.clear()


def close_descriptors(descriptors: Any) -> None:
    """Close what was received, or not sent, and is of no use."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


__all__ = ["IS_AVAILABLE", "LEAST", "Laid", "Mapped", "Pool", "Slab", "SlabError", "close_descriptors"]
