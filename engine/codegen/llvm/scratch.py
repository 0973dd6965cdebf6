"""Memory in which kernels lay what they need while they run: one piece for all, as one kernel runs at a time.

(Kernels hold the interpreter's lock. Parts of one kernel that run side by side divide the piece among them.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ...common.forks import fork_safe_lock

_ALIGNMENT = 64
_lock = fork_safe_lock()
_pieces: list[np.ndarray[Any, Any]] = []  # the last is the largest; earlier ones stay, for kernels that hold them


def scratch(size: int) -> int:
    """Return the address of at least `size` bytes, aligned for vectors. Other kernels overwrite what is left there."""
    with _lock:
        if not _pieces or _pieces[-1].size < size + _ALIGNMENT:
            largest = _pieces[-1].size if _pieces else 0
            _pieces.append(np.empty(max(size + _ALIGNMENT, 2 * largest), "uint8"))
        return -(-_pieces[-1].ctypes.data // _ALIGNMENT) * _ALIGNMENT


def scratch_pieces(sizes: Sequence[int]) -> list[int]:
    """Return the addresses of pieces of at least so many bytes, one behind the other, each aligned for vectors."""
    *starts, size = accumulate([-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes], initial=0)
    address = scratch(size)
    return [address + start for start in starts]
