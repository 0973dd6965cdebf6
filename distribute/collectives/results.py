"""`Results`: memory for the results of collectives, which is used again once no array is in it.

The system gives a large array new memory each time. To get its pages takes longer than to add the numbers.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np

from ...engine.graph.state.aligned import aligned_bytes

_LEAST = 1 << 20  # bytes: the allocator itself uses again what is smaller
_KEPT = 64  # results after which memory goes back to the system that none of them was in


class _Block:
    """Memory that begins at a cache line.

    Attributes:
        memory: its bytes.
        latest: the number of the last result in it.
    """

    __slots__ = ("latest", "memory")

    def __init__(self, size: int) -> None:
        self.memory = aligned_bytes(size)
        self.latest = 0

    @property
    def size(self) -> int:
        return self.memory.nbytes


class _Room:
    """A block that arrays are in, as NumPy's interface describes it; returns it when the last of them is gone."""

    __slots__ = ("__array_interface__", "_block", "_returned")

    def __init__(self, block: _Block, returned: collections.deque[_Block]) -> None:
        self._block, self._returned = block, returned
        self.__array_interface__ = block.memory.__array_interface__

    def __del__(self) -> None:
        self._returned.append(self._block)  # in whatever thread that happens


class Results:
    """Memory for results; one thread at a time calls it, and any thread may give results up."""

    def __init__(self) -> None:
        self._returned: collections.deque[_Block] = collections.deque()
        self._free: list[_Block] = []
        self._taken = 0  # blocks that results are in, as far as is known
        self._count = 0

    @property
    def free(self) -> int:
        """Bytes that no result is in."""
        self._take_returned()
        return sum(block.size for block in self._free)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array in C's order, to be filled; a large one may be in memory of a result that is gone.

        Args:
            shape: of the array.
            dtype: of its numbers.
        """
        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size < _LEAST:
            return np.empty(shape, dtype)
        room = _Room(self._block_for(size), self._returned)
        return np.asarray(room)[:size].view(dtype).reshape(shape)

    def like(self, array: Any) -> Any:
        """Return an array of the shape and dtype of another one, to be filled."""
        return self.empty(array.shape, array.dtype)

    def clear(self) -> None:
        """Give up the memory that no result is in."""
        self._take_returned()
        self._free.clear()

    def _take_returned(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())
            self._taken -= 1

    def _block_for(self, size: int) -> _Block:
        """Return memory of so many bytes, at most twice as many."""
        self._take_returned()
        self._count += 1
        fitting = [block for block in self._free if size <= block.size <= 2 * size]
        block = min(fitting, key=lambda each: each.size) if fitting else _Block(size)
        block.latest = self._count
        # A step may have many results at a time. What the first one was in may be taken for the last of the next step.
        oldest = self._count - max(_KEPT, 2 * (len(self._free) + self._taken))
        self._free = [each for each in self._free if each is not block and each.latest >= oldest]
        self._taken += 1
        return block


__all__ = ["Results"]
