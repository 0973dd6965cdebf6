"""Slabs: memory that a task fills and another one of the same host maps, read-only; nothing of it has a name.

The task that sends owns a `Pool`. It copies an array into a slab, or computes it there, and sends the slab's number and
the place there, no bytes. The task that receives has `Mapped` slabs, and makes arrays of them without a copy. When such
an array is gone, the slab's number travels back. A slab of which all arrays have come back so is free.
"""

from __future__ import annotations

import collections
import contextlib
import mmap
import os
import sys
import threading
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
        held: arrays of this process that are computed in it, or were.
        filled: bytes.
        is_sent: whether the other side was notified of it.
    """

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.uses = 0
        self.held = 0
        self.filled = 0
        self.is_sent = False
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


class _Room:
    """Memory in a slab for an array, as NumPy's interface describes it; when no array uses it any more, it says so."""

    __slots__ = ("__array_interface__", "_memory", "_returned", "offset", "pool", "size", "slab")

    def __init__(self, pool: Pool, slab: Slab, offset: int, shape: tuple[int, ...], dtype: Any) -> None:
        self.pool, self.slab, self.offset = pool, slab, offset
        self.size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._memory = slab.memory  # stays mapped as long as this does
        self._returned = pool.returned
        address = slab.memory.__array_interface__["data"][0] + offset
        self.__array_interface__ = {"shape": shape, "typestr": dtype.str, "data": (address, False), "version": 3}

    def __del__(self) -> None:
        self._returned.append(self.slab)  # in whatever thread that happens, maybe with the pool's lock: nothing else


class Pool:
    """Slabs for the values that go to one other task.

    Args:
        limit: bytes of all slabs together.

    A pool never waits: when all its slabs are in use, `put` finds none, and the value goes by the socket. Otherwise a
    step could wait for itself, behind values that it has sent and that nobody takes yet.

    Attributes:
        bytes_shared: bytes that have gone by slabs.
        full: how often there was no slab for a value.
        returned: slabs of arrays of this process that are gone.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes_shared = 0
        self.full = 0
        self.returned: collections.deque[Slab] = collections.deque()
        self._grain = min(GRAIN, max(limit // 8, LEAST))
        self._made = 0
        self._size = 0
        self._slabs: dict[int, Slab] = {}
        self._free: dict[int, list[Slab]] = {}  # by size
        self._current: Slab | None = None  # the one that arrays share by now
        self._dropped: list[int] = []  # of which the other side has to be notified
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of all slabs."""
        return self._size

    @property
    def in_use(self) -> int:
        """Slabs with arrays that this side still has, or that the other side has not said it is done with."""
        with self._lock:
            self._take_returned()
            return sum(slab.uses + slab.held > 0 for slab in self._slabs.values())

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array in a slab, to be filled and then put without a copy; None if there is no room.

        Args:
            shape: of the array.
            dtype: of NumPy's own numbers.

        Any thread may call this.
        """
        with self._lock:
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            slab = None if self._is_closed else self._slab_for(size)
            if slab is None:
                return None
            slab.held += 1
            room = _Room(self, slab, self._reserve(slab, size), shape, dtype)
        return np.asarray(room)

    def put(self, array: Any) -> Laid | None:
        """Copy an array into a slab unless `empty` has given it; None if there is no room.

        The descriptor of a new slab is for the caller to send, and to close.
        """
        room = array.base
        is_there = type(room) is _Room and room.pool is self and array.nbytes == room.size and array.flags.c_contiguous
        with self._lock:
            slab = room.slab if is_there else self._slab_for(array.nbytes)
            if slab is None:
                self.full += 1
                return None
            slab.uses += 1
            offset = room.offset if is_there else self._reserve(slab, array.nbytes)
            self.bytes_shared += array.nbytes
            is_new, slab.is_sent = not slab.is_sent, True
            dropped, self._dropped = self._dropped, []
        if not is_there:
            np.copyto(slab.memory[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape), array)
        return Laid(slab, offset, is_new, dropped)

    def _slab_for(self, size: int) -> Slab | None:
        """Return a slab with so many free bytes; None if there is none, nor room for a new one."""
        self._take_returned()
        current = self._current
        if current is not None and current.filled + size <= current.size:
            return current
        size = self._grain if size <= self._grain else 1 << (size - 1).bit_length()
        free = self._free.get(size)
        if free:
            return free.pop()
        self._make_room(size)
        return self._new(size) if self._size + size <= self.limit and len(self._slabs) < MOST_SLABS else None

    def _reserve(self, slab: Slab, size: int) -> int:
        """Take bytes of a slab; return the first."""
        offset = slab.filled
        slab.filled = -(-(offset + size) // _ALIGNED) * _ALIGNED
        if slab.size == self._grain:
            self._current = slab
        return offset

    def _new(self, size: int) -> Slab | None:
        try:
            slab = Slab(self._made, size)
        except OSError:  # no memory, or no descriptors: the socket is there
            return None
        self._made += 1
        self._size += size
        self._slabs[slab.number] = slab
        return slab

    def _make_room(self, size: int) -> None:
        """Give up free slabs of other sizes as far as that makes room."""
        spare = sum(len(slabs) * known for known, slabs in self._free.items())
        if size > self.limit or self._size - spare + size > self.limit:
            return
        for known in sorted(self._free, reverse=True):
            while self._free[known] and (self._size + size > self.limit or len(self._slabs) >= MOST_SLABS):
                slab = self._free[known].pop()
                del self._slabs[slab.number]
                self._size -= slab.size
                if slab.is_sent:
                    self._dropped.append(slab.number)
                else:
                    os.close(slab.descriptor)

    def taken(self, number: int) -> None:
        """Note that the other side is done with an array in a slab.

        Raises:
            SlabError: it has no such slab, or none of its arrays is under way.
        """
        with self._lock:
            slab = self._slabs.get(number)
            if slab is None or not slab.uses:
                raise SlabError(f"slab {number} was acknowledged, which is not under way")
            slab.uses -= 1
            self._free_if_unused(slab)

    def _take_returned(self) -> None:
        while self.returned:
            slab = self.returned.popleft()
            slab.held -= 1
            self._free_if_unused(slab)

    def _free_if_unused(self, slab: Slab) -> None:
        if slab.uses or slab.held:
            return
        slab.filled = 0
        if slab is not self._current:
            self._free.setdefault(slab.size, []).append(slab)

    def close(self) -> None:
        """Give up the slabs that were not sent; no more are made."""
        with self._lock:
            self._is_closed = True
            close_descriptors(slab.descriptor for slab in self._slabs.values() if not slab.is_sent)
            self._slabs.clear()


def _mapped(descriptor: int, size: int, protection: int = mmap.PROT_READ | mmap.PROT_WRITE) -> Any:
    """Map a file; the array holds the map."""
    if sys.version_info >= (3, 13):
        return np.frombuffer(mmap.mmap(descriptor, size, prot=protection, trackfd=False), "uint8")
    return np.frombuffer(mmap.mmap(descriptor, size, prot=protection), "uint8")


# --- the side that reads --------------------------------------------------------------------------------------------


class _Lease:
    """An array in a slab, as NumPy's interface describes it; when nothing looks at it any more, it says so."""

    __slots__ = ("__array_interface__", "_mapped", "_memory", "_number")

    def __init__(self, mapped: Mapped, number: int, memory: Any, offset: int, size: int) -> None:
        self._mapped, self._number = mapped, number
        self._memory = memory  # stays mapped as long as this does
        address = memory.__array_interface__["data"][0] + offset
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, True), "version": 3}

    def keep(self) -> bool:
        """Have the array stay in the slab for longer than a step; return False if it must not."""
        return self._mapped.keep(self._number, len(self._memory))

    def __del__(self) -> None:
        self._mapped.release(self._number)


class Mapped:
    """Slabs of one other task.

    Args:
        release: takes the number of a slab when an array in it is gone, in whatever thread that happens.
        most_kept: bytes of slabs that variables may hold; the others are for values under way.
    """

    def __init__(self, release: Callable[[int], None], most_kept: int = 0) -> None:
        self._release = release
        self._most_kept = most_kept
        self._slabs: dict[int, Any] = {}
        self._kept: dict[int, int] = {}  # bytes of slabs that variables hold

    def keep(self, number: int, size: int) -> bool:
        """Note that a variable holds a slab; return False if it must not.

        It must not hold one that other arrays share, which would not become free for its sake, nor too many.
        """
        if size <= GRAIN or sum(list(self._kept.values())) + size > self._most_kept:
            return False
        self._kept[number] = size
        return True

    def release(self, number: int) -> None:
        """Note that an array in a slab is gone; in whatever thread that happens."""
        self._kept.pop(number, None)
        self._release(number)

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
        lease = _Lease(self, number, memory, offset, size)
        return np.asarray(lease).view(dtype).reshape(shape)

    def drop(self, number: int) -> None:
        """Forget a slab; it stays mapped while arrays look at it."""
        self._slabs.pop(number, None)

    def close(self) -> None:
        """Forget all of them."""
        self._slabs.clear()


def keep_received(array: Any) -> Any:
    """Return a received array, or a copy, as the value of a variable, which holds it for long.

    Args:
        array: what was received, which nothing else takes.
    """
    base = array.base
    if base is None:
        return array if array.flags.c_contiguous and array.flags.writeable else array.copy()
    while isinstance(base, np.ndarray):
        base = base.base
    return array if type(base) is _Lease and base.keep() else array.copy()


def close_descriptors(descriptors: Any) -> None:
    """Close what was received, or not sent, and is of no use."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


__all__ = ["IS_AVAILABLE", "LEAST", "Laid", "Mapped", "Pool", "Slab", "SlabError", "close_descriptors", "keep_received"]
