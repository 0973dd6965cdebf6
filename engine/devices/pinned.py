"""Memory of the host that a GPU copies from and to by itself, in large slabs that are used again and again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np

from ..common.quick_dataclass import dataclass

SLAB = 1 << 26  # bytes
_UNIT = 512


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a slab.

    Attributes:
        slab, start, size: its place.
        memory: its bytes, as many as were asked for.
    """

    slab: _Slab
    start: int
    size: int
    memory: np.ndarray[Any, Any]

    @property
    def address(self) -> int:
        """The address at which it begins."""
        return self.memory.ctypes.data

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """Return the piece as an array of elements."""
        return self.memory.view(dtype).reshape(shape)


class _Slab:
    """One allocation, and what is free in it: pairs of start and size, in order."""

    def __init__(self, memory: np.ndarray[Any, Any]) -> None:
        self.memory = memory
        self.free: list[tuple[int, int]] = [(0, len(memory))]

    def take(self, size: int) -> int | None:
        """Take the start of the first free range of `size`; None if there is none."""
        for position, (start, free) in enumerate(self.free):
            if free >= size:
                self.free[position : position + 1] = [(start + size, free - size)] if free > size else []
                return start
        return None

    def give(self, start: int, size: int) -> None:
        """Give a range back; it joins its neighbours."""
        position = bisect_left(self.free, (start, size))
        last = position
        if position < len(self.free) and self.free[position][0] == start + size:
            size += self.free[position][1]
            last += 1
        if position and sum(self.free[position - 1]) == start:
            position -= 1
            start, size = self.free[position][0], size + self.free[position][1]
        self.free[position:last] = [(start, size)]


class PinnedSlabs:
    """Pieces of pinned memory for copies. Pinning is slow, so that slabs are kept.

    Args:
        pin: gives pinned memory of a number of bytes, as a buffer (`cupy.cuda.alloc_pinned_memory`).
        slab: bytes of a slab. What is larger gets one of its own, which is kept as well.

    >>> slabs = PinnedSlabs(bytearray, slab=4096)
    >>> pieces = [slabs.take(1000), slabs.take(1000)]
    >>> [piece.start for piece in pieces], slabs.nbytes
    ([0, 1024], 4096)
    """

    def __init__(self, pin: Callable[[int], Any], slab: int = SLAB) -> None:
        self._pin = pin
        self._slab = slab
        self._slabs: list[_Slab] = []

    @property
    def nbytes(self) -> int:
        """The number of bytes that are pinned."""
        return sum(len(slab.memory) for slab in self._slabs)

    @property
    def in_use(self) -> int:
        """The number of those bytes that are taken."""
        return self.nbytes - sum(size for slab in self._slabs for _, size in slab.free)

    def take(self, nbytes: int) -> Piece:
        """Return a piece of at least one byte."""
        size = max(_UNIT, -(-nbytes // _UNIT) * _UNIT)
        for slab in self._slabs:
            if (start := slab.take(size)) is not None:
                return _piece(slab, start, size, nbytes)
        slab = _Slab(self._pinned(max(size, self._slab)))
        self._slabs.append(slab)
        start = slab.take(size)
        assert start is not None
        return _piece(slab, start, size, nbytes)

    def _pinned(self, nbytes: int) -> np.ndarray[Any, Any]:
        nbytes = 1 << (nbytes - 1).bit_length()  # cupy pins powers of two anyway
        return np.frombuffer(self._pin(nbytes), np.uint8, nbytes)

    def give(self, piece: Piece) -> None:
        """Give back a piece that is not needed any more."""
        piece.slab.give(piece.start, piece.size)


def _piece(slab: _Slab, start: int, size: int, nbytes: int) -> Piece:
    return Piece(slab, start, size, slab.memory[start : start + nbytes])
