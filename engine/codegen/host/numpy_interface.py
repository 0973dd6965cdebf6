"""NumPy's C interface: its functions for machine code, and new arrays without a look at arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ..llvm.builtin_functions import EMPTY
from . import threads

_NEW_FROM_DESCR = 94  # in the table of the interface


@cache
def _table() -> Any:
    from numpy._core import multiarray

    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.cast(pointer_of(multiarray._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))


def numpy_function(number: int, result: Any, *arguments: Any) -> Any:
    """Return a function of NumPy's C interface, by its number in the table."""
    return ctypes.PYFUNCTYPE(result, *arguments)(_table()[number])


@lru_cache(1024)
def empty_function(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], Any]:
    """Return a built-in function that makes an array: `numpy.empty` takes twice as long, as it looks at its arguments.

    Args:
        shape: of the array.
        dtype: one that is always there, as NumPy's own are.
    """
    numbers = _table()[_NEW_FROM_DESCR], id(np.ndarray), id(dtype), len(shape), *shape
    return threads.builtin_function(EMPTY, np.array(numbers, "int64"))
