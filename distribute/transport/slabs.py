"""Slabs: memory that a task fills and another one of the same host maps, read-only; nothing of it has a name.

The task that sends owns a `Pool`. It copies an array into a slab, or computes it there, and sends the slab's number and
the place there, no bytes. The task that receives has `Mapped` slabs, and makes arrays of them without a copy. When such
an array is gone, the slab's number travels back. A slab of which all arrays have come back so is free.

All pools of a task have one `Budget`. One of its pools is for values that any task may read, as those of variables are:
the others lend its slabs to their tasks.
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
        lenders: the pools that have lent it, if any task may read it.
        is_retired: whether it is not used again: somebody may read it without being heard of any more.
    """

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.uses = 0
        self.held = 0
        self.filled = 0
        self.is_sent = False
        self.lenders: list[Pool] = []
        self.is_retired = False
        descriptor = os.memfd_create("anabranch slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS | _SEAL_SEAL)
            self.memory: Any = _mapped(descriptor, size)
            # The other side gets a way to read it, and none to write.
            self.descriptor = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(descriptor)


class Lent:
    """A slab of a budget's common pool, as one other task has it.

    Attributes:
        number: its number on the other side.
        descriptor: to be sent.
        slab: it.
        uses: arrays in it that this task has not acknowledged.
    """

    def __init__(self, number: int, slab: Slab) -> None:
        self.number = number
        self.descriptor = os.dup(slab.descriptor)
        self.slab = slab
        self.uses = 0


class Laid(NamedTuple):
    """An array in a slab.

    Attributes:
        slab, offset: where.
        is_new: whether the other side has to be notified of the slab.
        dropped: slabs that were given up for it.
    """

    slab: Slab | Lent
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


class Budget:
    """The bytes of slabs that the pools of a task may have.

    Args:
        share: bytes that each pool may have in any case.
        together: bytes that all of them may have: one has more than its share as long as there are no more. None if
            none has more.

    Attributes:
        lock: held by who looks at a pool or changes it.
        size: bytes of all slabs.
        pools: those that are open.
        common: the pool for values that any task may read; they have half of what values under way may have.
    """

    def __init__(self, share: int, together: int | None = None) -> None:
        self.share = share
        self.together = 0 if together is None else together
        self.lock = threading.RLock()
        self.size = 0
        self.pools: list[Pool] = []
        self.common = Pool(max(self.share, self.together) // 2, self, most=0)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array that any task may read without a copy, once it is filled; None if there is no room.

        A small one would share its slab with others, which would not become free for its sake: there is none of these.
        """
        is_small = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize <= GRAIN
        return None if is_small else self.common.empty(shape, dtype)

    def tidy(self) -> None:
        """Give up free slabs of the common pool that are more than values need which change from step to step."""
        most = 2 * (self.common.size - self.common._spare())
        self.common._give_up(lambda: self.common._spare() <= most)

    def close(self) -> None:
        """Give up the common pool; arrays in it stay as they are."""
        self.common.close()


class Pool:
    """Slabs for the values that go to one other task.

    Args:
        limit: bytes of all slabs together.
        budget: of the task, of which the pool may have more than `limit`; None if there is no other pool.
        most: what it has at most of that; None for what others leave.

    A pool never waits: when all its slabs are in use, `put` finds none, and the value goes by the socket. Otherwise a
    step could wait for itself, behind values that it has sent and that nobody takes yet.

    Attributes:
        bytes_shared: bytes that have gone by slabs.
        full: how often there was no slab for a value.
        returned: slabs of arrays of this process that are gone.
        on_dropped: called when slabs were given up for another pool, of which the other side has to be notified.
    """

    def __init__(self, limit: int, budget: Budget | None = None, most: int | None = None) -> None:
        self.limit = limit
        self.bytes_shared = 0
        self.full = 0
        self.returned: collections.deque[Slab] = collections.deque()
        self.on_dropped: Callable[[], object] = lambda: None
        self.budget = Budget(limit) if budget is None else budget
        self._most = self.budget.together if most is None else most
        self._grain = min(GRAIN, max(limit // 8, LEAST))
        self._made = 0
        self._size = 0
        self._slabs: dict[int, Slab] = {}
        self._lent: dict[int, Lent] = {}  # slabs of the common pool, by their numbers on the other side
        self._free: dict[int, list[Slab]] = {}  # by size
        self._current: Slab | None = None  # the one that arrays share by now
        self._dropped: list[int] = []  # of which the other side has to be notified
        self._is_closed = False
        self._lock = self.budget.lock
        with self._lock:
            self.budget.pools.append(self)

    @property
    def size(self) -> int:
        """Bytes of all slabs."""
        return self._size

    @property
    def in_use(self) -> int:
        """Slabs with arrays that this side still has, or that the other side has not said it is done with."""
        with self._lock:
            self._take_returned()
            lent = sum(lent.uses > 0 for lent in self._lent.values())
            return lent + sum(slab.uses + slab.held > 0 for slab in self._slabs.values())

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array in a slab, to be filled and then put without a copy; None if there is no room.

        Args:
            shape: of the array.
            dtype: of NumPy's own numbers.

        Any thread may call this.
        """
        with self._lock:
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            slab = self._slab_for(size)
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
        is_there = type(room) is _Room and array.nbytes == room.size and array.flags.c_contiguous
        with self._lock:
            self.budget.tidy()
            if is_there and room.pool is self.budget.common:
                laid = self._lend(room)
                if laid is not None:
                    return laid
            is_there = is_there and room.pool is self
            slab = room.slab if is_there else self._slab_for(array.nbytes)
            if slab is None:
                self.full += 1
                return None
            slab.uses += 1
            offset = room.offset if is_there else self._reserve(slab, array.nbytes)
            self.bytes_shared += array.nbytes
            is_new, slab.is_sent = not slab.is_sent, True
            dropped = self.take_dropped()
        if not is_there:
            np.copyto(slab.memory[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape), array)
        return Laid(slab, offset, is_new, dropped)

    def _lend(self, room: _Room) -> Laid | None:
        """Have the other side read an array of the common pool; None if it can't have more slabs."""
        lent = next((each for each in self._lent.values() if each.slab is room.slab), None)
        is_new = lent is None
        if lent is None:
            lent = self._newly_lent(room.slab)
        if lent is None:
            return None
        lent.uses += 1
        lent.slab.uses += 1
        self.bytes_shared += room.size
        return Laid(lent, room.offset, is_new, self.take_dropped())

    def _newly_lent(self, slab: Slab) -> Lent | None:
        self._end_idle_lending()
        if self._is_closed or self._is_full_of_slabs():
            return None
        try:
            lent = Lent(self._made, slab)
        except OSError:  # no more descriptors
            return None
        self._made += 1
        self._lent[lent.number] = lent
        slab.lenders.append(self)
        return lent

    def _end_idle_lending(self) -> None:
        """End the lending of slabs none of whose arrays the other side has, if it has as many slabs as it may."""
        if self._is_full_of_slabs():
            for slab in [lent.slab for lent in self._lent.values() if not lent.uses]:
                self.end_lending(slab)

    def end_lending(self, slab: Slab) -> None:
        """Have the other side forget a slab of the common pool, none of whose arrays it has."""
        (number,) = [number for number, lent in self._lent.items() if lent.slab is slab]
        del self._lent[number]
        slab.lenders.remove(self)
        self._dropped.append(number)

    def take_dropped(self) -> list[int]:
        """Return the slabs that were given up, of which the other side has to be notified now."""
        with self._lock:
            dropped, self._dropped = self._dropped, []
        return dropped

    def _is_full_of_slabs(self) -> bool:
        return len(self._slabs) + len(self._lent) >= MOST_SLABS

    def _slab_for(self, size: int) -> Slab | None:
        """Return a slab with so many free bytes; None if there is none, nor room for a new one."""
        if self._is_closed:
            return None
        self._take_returned()
        current = self._current
        if current is not None and current.filled + size <= current.size:
            return current
        size = self._grain if size <= self._grain else 1 << (size - 1).bit_length()
        free = self._free.get(size)
        if free:
            return free.pop()
        self._make_room(size)
        return self._new(size) if self._fits(size) and not self._is_full_of_slabs() else None

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
        self._count(size)
        self._slabs[slab.number] = slab
        return slab

    def _count(self, size: int) -> None:
        self._size += size
        self.budget.size += size

    def _fits(self, size: int, spare: int = 0, others: int = 0) -> bool:
        """Test whether there is room for a slab, if so many bytes of own slabs and of those of others are given up."""
        own = self._size - spare + size
        return own <= self.limit or self.budget.size - spare - others + size <= self._most

    def _spare(self) -> int:
        """Return the bytes of free slabs."""
        self._take_returned()
        return sum(len(slabs) * size for size, slabs in self._free.items())

    def _make_room(self, size: int) -> None:
        """Give up free slabs as far as that makes room: first own ones of other sizes, then those of other pools."""
        self._end_idle_lending()
        others = [pool for pool in self.budget.pools if pool is not self]
        if not self._fits(size, self._spare(), sum(pool._spare() for pool in others)):
            return
        self._give_up(lambda: self._fits(size) and not self._is_full_of_slabs())
        for pool in sorted(others, key=lambda pool: pool._size - pool.limit, reverse=True):
            if self._fits(size):
                break
            if pool._give_up(lambda: self._fits(size)):
                pool.on_dropped()

    def _give_up(self, is_enough: Callable[[], bool]) -> bool:
        """Give up free slabs, the largest first, until that is enough; return whether there were any."""
        found = False
        for known in sorted(self._free, reverse=True):
            while self._free[known] and not is_enough():
                self._drop(self._free[known].pop())
                found = True
        return found

    def _drop(self, slab: Slab) -> None:
        """Give up a slab that nobody uses."""
        if self._slabs.pop(slab.number, None) is None:  # the pool was closed before
            return
        self._count(-slab.size)
        for lender in list(slab.lenders):
            lender.end_lending(slab)
            lender.on_dropped()
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
            lent = self._lent.get(number)
            slab = self._slabs.get(number) if lent is None else lent.slab
            if slab is None or not (slab if lent is None else lent).uses:
                raise SlabError(f"slab {number} was acknowledged, which is not under way")
            slab.uses -= 1
            if lent is None:
                self._free_if_unused(slab)
            else:
                lent.uses -= 1
                self.budget.common._free_if_unused(slab)

    def _take_returned(self) -> None:
        while self.returned:
            slab = self.returned.popleft()
            slab.held -= 1
            self._free_if_unused(slab)

    def _free_if_unused(self, slab: Slab) -> None:
        if slab.uses or slab.held:
            return
        slab.filled = 0
        if slab.is_retired:
            self._drop(slab)
        elif slab is not self._current:
            self._free.setdefault(slab.size, []).append(slab)

    def close(self) -> None:
        """Give up the slabs that were not sent; no more are made."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.on_dropped = lambda: None  # arrays that are left must not keep the connection
            close_descriptors(slab.descriptor for slab in self._slabs.values() if not slab.is_sent)
            self._slabs.clear()
            self._count(-self._size)
            self.budget.pools.remove(self)
            for lent in list(self._lent.values()):
                self._end_unheard(lent)

    def _end_unheard(self, lent: Lent) -> None:
        """End the lending of a slab to a task that is not heard of any more: arrays that it has stay as they are."""
        slab = lent.slab
        slab.is_retired = slab.is_retired or lent.uses > 0
        slab.uses -= lent.uses
        del self._lent[lent.number]
        slab.lenders.remove(self)
        if lent.uses:
            self.budget.common._free_if_unused(slab)


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
    """Return an array, or a copy, as the value of a variable, which holds it for long.

    Args:
        array: what was received, or computed where other tasks may read it. No other variable takes it over.
    """
    base = array.base
    if base is None:
        return array if array.flags.c_contiguous and array.flags.writeable else array.copy()
    while isinstance(base, np.ndarray):
        base = base.base
    if type(base) is _Room and base.pool is base.pool.budget.common:
        array.flags.writeable = False  # other tasks may read it
        return array
    return array if type(base) is _Lease and base.keep() else array.copy()


def close_descriptors(descriptors: Any) -> None:
    """Close what was received, or not sent, and is of no use."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


__all__ = [
    "IS_AVAILABLE",
    "LEAST",
    "Budget",
    "Laid",
    "Lent",
    "Mapped",
    "Pool",
    "Slab",
    "SlabError",
    "close_descriptors",
    "keep_received",
]
