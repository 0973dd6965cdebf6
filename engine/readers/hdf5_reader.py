"""`HDF5Reader`: the rows of data sets in HDF5 files, as records."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from ..common.dtypes import as_dtype, name_of
from ..graph.op import as_scalar_or_array
from ..graph.spec import TensorSpec, as_shape, shape_accepts, shape_text
from ..queues.errors import DataLossError
from .reader import Reader, Record

_ROWS_AT_ONCE = 256


class HDF5Reader(Reader):
    """The rows of data sets of HDF5 files. Keys are ``"file:row"``, counted from 0.

    Args:
        datasets: the name of a data set in each file, or several, which must have the same number of rows; a record is
            one row of each.
        dtypes: the dtype of the data set, or a list with one for each.
        shapes: the shape of a row, or a list with one for each; what is not known is None.
        name: for messages, the names of the operations, and tasks.

    >>> import h5py
    >>> import numpy as np
    >>> import anabranch as ab
    >>> with h5py.File("rows.h5", "w") as file:
    ...     file["x"] = np.arange(6, dtype="float32").reshape(3, 2)
    ...     file["y"] = np.array([7, 8, 9], "int32")
    >>> names = ab.queues.FIFOQueue(8, "string", ())
    >>> names.enqueue("rows.h5")
    >>> ab.io.HDF5Reader(["x", "y"], ["float32", "int32"], [(2,), ()]).read(names)
    ('rows.h5:0', [array([0., 1.], dtype=float32), np.int32(7)])
    """

    kind: ClassVar[str] = "hdf5_reader"

    def __init__(self, datasets: Any, dtypes: Any, shapes: Any = None, name: str = "hdf5_reader") -> None:
        single = isinstance(datasets, str)
        self._datasets: Sequence[str] = [datasets] if single else list(datasets)
        types = [dtypes] if single else list(dtypes)
        sizes = [shapes] if single else list(shapes or [None] * len(types))
        if not len(self._datasets) == len(types) == len(sizes):
            raise ValueError(
                f"HDF5Reader {name!r}: {len(self._datasets)} data sets, {len(types)} dtypes and {len(sizes)} shapes "
                "were given; give one of each for every data set."
            )
        specs = [TensorSpec(as_shape(shape), as_dtype(dtype)) for shape, dtype in zip(sizes, types, strict=True)]
        super().__init__(specs, name)

    def definition(self) -> dict[str, Any]:
        shapes = [None if spec.shape is None else list(spec.shape) for spec in self.specs]
        dtypes = [name_of(spec.dtype) for spec in self.specs]
        return {"datasets": list(self._datasets), "dtypes": dtypes, "shapes": shapes}

    def records(self, path: str) -> Iterator[Record]:
        h5py: Any = importlib.import_module("h5py")  # which has no types

        with open(path, "rb") as stream:  # whose errors name the file; h5py's are of many kinds
            try:
                file = h5py.File(stream, "r")
            except OSError as error:
                raise DataLossError(f"{path!r} can't be read as an HDF5 file: {error}.") from error
            with file:
                yield from self._rows(file, path)

    def _rows(self, file: Any, path: str) -> Iterator[Record]:
        found = [self._dataset(file, path, name) for name in self._datasets]
        for dataset, spec in zip(found, self.specs, strict=True):
            self._check(dataset, spec, path)
        counts = [len(dataset) for dataset in found]
        if len(set(counts)) > 1:
            raise ValueError(f"{path!r}: data sets {list(self._datasets)} differ in their numbers of rows: {counts}.")
        for start in range(0, counts[0], _ROWS_AT_ONCE):
            block = [dataset[start : start + _ROWS_AT_ONCE] for dataset in found]
            for row in range(len(block[0])):
                yield f"{path}:{start + row}", tuple(as_scalar_or_array(values[row].copy()) for values in block)

    def _dataset(self, file: Any, path: str, name: str) -> Any:
        h5py: Any = importlib.import_module("h5py")  # which has no types

        found = file.get(name)
        if not isinstance(found, h5py.Dataset):
            raise KeyError(f"{path!r} has no data set {name!r}; at its top it has {list(file)!r}.")
        return found

    def _check(self, dataset: Any, spec: TensorSpec, path: str) -> None:
        if not dataset.shape:
            raise ValueError(f"{path!r}: data set {dataset.name!r} is a single value and has no rows.")
        if dataset.dtype != spec.dtype or not shape_accepts(spec.shape, dataset.shape[1:]):
            raise ValueError(
                f"{path!r}: the rows of data set {dataset.name!r} are {dataset.dtype}{shape_text(dataset.shape[1:])}; "
                f"{self.name!r} was made for {name_of(spec.dtype)}{shape_text(spec.shape)}."
            )
