"""Copies of arrays that begin at a cache line: no vector that kernels load is in two lines then."""

from __future__ import annotations

from typing import Any

import numpy as np

_LINE = 64  # bytes of a cache line
_LEAST = 1 << 15  # bytes: what is smaller stays in the nearest cache
_NUMBERS = "biufcV"  # kinds of dtypes: those of ml_dtypes are "V"


def aligned_copy(value: Any) -> Any:
    """Copy a value into an array in C's order, which begins at a cache line if it is large."""
    array = np.asarray(value)
    if array.nbytes < _LEAST or array.dtype.kind not in _NUMBERS or array.dtype.hasobject:
        return np.array(value, copy=True, order="C")
    memory = np.empty(array.nbytes + _LINE, "uint8")
    start = -memory.ctypes.data % _LINE
    made = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


__all__ = ["aligned_copy"]
