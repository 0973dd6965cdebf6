"""Arrays that stay in their file: rows are read when a batch of them is made."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...engine.common.dtypes import DType, DTypeLike
from ..structures import Array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..structures import SparseMatrix


class ChunkedArray(Protocol):
    """An array that is read in parts, such as a dataset of an HDF5 file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> DType: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice | list[int], /) -> Array: ...


class LazyArray:
    """Rows of an array-like that is not in memory, such as a dataset of an HDF5 file.

    Args:
        source: has `shape`, `dtype` and ``source[rows]``, for slices and for rising lists of rows.
        convert: what is done with rows that were read.
        start, stop: the rows that belong to it; all by default.

    >>> rows = LazyArray(np.arange(6.0), lambda rows: rows.astype("float32"))
    >>> rows[1:3], rows.take(np.array([4, 0]), axis=0)
    (array([1., 2.], dtype=float32), array([4., 0.], dtype=float32))
    """

    def __init__(
        self, source: ChunkedArray, convert: Callable[[Array], Array], start: int = 0, stop: int | None = None
    ) -> None:
        self.source = source
        self.convert = convert
        self.start = start
        self.stop = len(source) if stop is None else stop
        self.shape: tuple[int, ...] = (self.stop - start, *source.shape[1:])
        self.ndim = len(self.shape)
        self.dtype: DType = convert(np.zeros(0, source.dtype)).dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        first, last, step = rows.indices(len(self))
        return self.convert(np.asarray(self.source[self.start + first : self.start + max(first, last) : step]))

    def take(self, rows: Array, axis: int = 0) -> Array:
        """Return these rows, in this order. They are read in rising order, each once, as HDF5 wants it."""
        wanted, places = np.unique(np.asarray(rows), return_inverse=True)
        return self.convert(np.asarray(self.source[(wanted + self.start).tolist()]))[places]

    def part(self, start: int, stop: int) -> LazyArray:
        """Return the rows from `start` to `stop`, still unread."""
        return LazyArray(self.source, self.convert, self.start + start, self.start + stop)

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> Array:
        array = self[:]
        return array if dtype is None else array.astype(dtype)


def is_lazy(value: Any) -> bool:
    """Test whether `value` is read in parts: it says how it is stored in chunks, as HDF5's and Zarr's arrays do."""
    return (
        not isinstance(value, np.ndarray)
        and all(hasattr(value, name) for name in ("shape", "dtype", "chunks", "__getitem__", "__len__"))
        and len(value.shape) > 0
    )


class SparseRows:
    """Rows of a sparse matrix of SciPy, made dense when they are read.

    Args:
        matrix: of two axes, in any of SciPy's formats.
    """

    def __init__(self, matrix: SparseMatrix) -> None:
        self._matrix = matrix.tocsr()  # the format whose rows are read quickly
        self.shape: tuple[int, ...] = tuple(matrix.shape)
        self.dtype = matrix.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Sequence[int]) -> Array:
        return self._matrix[rows].toarray()


def is_series(value: object) -> bool:
    """Test whether `value` is a Series of pandas, which need not be installed."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.Series)


def is_sparse_matrix(value: Any) -> bool:
    """Test whether `value` is a sparse matrix or array of SciPy, which need not be installed."""
    return type(value).__module__.startswith("scipy.sparse") and hasattr(value, "tocsr") and value.ndim == 2


def part_of(array: Array | LazyArray, start: int, stop: int) -> Array | LazyArray:
    """Return the rows from `start` to `stop` of an array of either kind."""
    return array.part(start, stop) if isinstance(array, LazyArray) else array[start:stop]
