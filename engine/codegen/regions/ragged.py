"""`RaggedArray`: a TensorArray of TensorArrays whose rows are one after the other, as native loops record them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ...graph.op import is_array
from ...ops.containers.array_value import ArrayValue


class RaggedArray(ArrayValue):
    """An `ArrayValue` whose elements are made when Python asks for one.

    Args:
        stacked: the rows of all elements.
        ends: (size + 1,) of int64: where each element begins, and where the last one ends.
    """

    __slots__ = ("_made", "ends", "stacked")

    def __init__(self, stacked: Any, ends: Any) -> None:
        self.stacked = stacked
        self.ends = ends
        self.size = len(ends) - 1
        self._version = 0
        self._made: Any = None

    @property
    def _store(self) -> Any:  # pyrefly: ignore[bad-override] - made when it is first used
        if self._made is None:
            places = itertools.pairwise(self.ends.tolist())
            elements = [ArrayValue.from_stacked(self.stacked[start:end]) for start, end in places]
            self._made = ArrayValue.from_list(elements)._store
        return self._made

    @property
    def nbytes(self) -> int:
        return int(self.stacked.nbytes)


def rows_and_ends(value: Any, shape: Any, dtype: Any) -> tuple[Any, Any] | None:
    """Return rows of a TensorArray of TensorArrays, and where each ends; None if elements are missing or differ."""
    if isinstance(value, RaggedArray):
        return value.stacked, value.ends
    if not isinstance(value, ArrayValue):
        return None
    parts = [rows_of(value.read_or_none(index), shape, dtype) for index in range(value.size)]
    if any(part is None or part.shape[1:] != shape[1:] for part in parts):
        return None
    ends = np.zeros(len(parts) + 1, "int64")
    np.cumsum([len(part) for part in parts], out=ends[1:])
    return np.concatenate([np.empty((0, *shape[1:]), dtype), *parts]), ends


def rows_of(value: Any, shape: Any, dtype: Any) -> Any:
    """Return the elements of a TensorArray as the rows of one array; None where some are missing or differ."""
    try:
        rows = value.rows()
        if rows is None:
            rows = value.stack(shape[1:], dtype)
    except (AttributeError, IndexError, TypeError, ValueError):
        return None
    if not is_array(rows) or rows.dtype != dtype:
        return None
    return rows if rows.flags.c_contiguous else np.ascontiguousarray(rows)
