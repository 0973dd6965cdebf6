"""Copies of arrays that begin at a cache line: no vector that kernels load is in two lines then."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.dtypes import with_own_dtype
from ..op import as_scalar_or_array

_LINE = 64  # bytes of a cache line
_LEAST = 1 << 15  # bytes: what is smaller stays in the nearest cache
_NUMBERS = "biufcV"  # kinds of dtypes: those of ml_dtypes are "V"


def aligned_bytes(size: int) -> Any:
    """Return an array of so many bytes, to be filled, which begins at a cache line."""
    memory = np.empty(size + _LINE, "uint8")
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size]


def aligned_copy(value: Any, dtype: Any = None) -> Any:
    """Copy a value into an array in C's order, which begins at a cache line if it is large.

    Args:
        value: what is copied.
        dtype: to which it is cast; its own by default.
    """
    array = with_own_dtype(np.asarray(value))
    wanted = array.dtype if dtype is None else np.dtype(dtype)
    size = array.size * wanted.itemsize
    if size < _LEAST or wanted.kind not in _NUMBERS or wanted.hasobject:
        return np.array(array, wanted, copy=True, order="C")
    made = aligned_bytes(size).view(wanted).reshape(array.shape)
    np.copyto(made, array, casting="unsafe")
    return made


def own_copy(value: Any, dtype: Any = None) -> Any:
    """Copy a value into what a variable holds: an array as `aligned_copy` makes it, or of rank 0 a NumPy scalar."""
    return as_scalar_or_array(aligned_copy(value, dtype))


__all__ = ["aligned_bytes", "aligned_copy", "own_copy"]
