"""`make_csv_dataset`: batches of the columns of CSV files, as ``tf.data.experimental`` has it."""

from __future__ import annotations

import csv
import glob
import gzip
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.common.dtypes import as_dtype, is_string
from ...engine.ops.base import as_array
from .element_dataset import ElementDataset

if TYPE_CHECKING:
    from ...engine.common.dtypes import DType

_INFERRED = ("int32", "int64", "float32", "float64")


def make_csv_dataset(
    file_pattern: str | os.PathLike[str] | Sequence[str],
    batch_size: int,
    column_names: Sequence[str] | None = None,
    column_defaults: Sequence[object] | None = None,
    label_name: str | None = None,
    select_columns: Sequence[str | int] | None = None,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    header: bool = True,
    num_epochs: int | None = None,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10000,
    shuffle_seed: int | None = None,
    prefetch_buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
    sloppy: bool = False,
    num_rows_for_inference: int | None = 100,
    compression_type: str | None = None,
    ignore_errors: bool = False,
) -> ElementDataset:
    """Make batches of the rows of CSV files: dicts of columns, or pairs of such a dict and the column of labels.

    Args:
        file_pattern: names of files, which may hold ``*`` and ``?``.
        batch_size: rows of a batch. The last one may have fewer, unless rows are repeated for ever.
        column_names: of all columns; by default what the first line says.
        column_defaults: for each column that is kept a dtype, or what an empty field stands for, as in ``[0.0]``, which
            says the dtype, too. By default the first rows say the dtypes: int32, int64, float32, float64 or string.
        label_name: the column of labels.
        select_columns: names or positions of the columns that are kept.
        field_delim: what stands between fields.
        use_quote_delim: whether quotes enclose fields.
        na_value: what an empty field may hold, too.
        header: whether the first line of each file has names.
        num_epochs: how often the rows come; None for ever.
        shuffle: draw the order within `shuffle_buffer_size` rows; `shuffle_seed` makes it repeatable.
        num_rows_for_inference: how many rows say the dtypes.
        compression_type: None or "GZIP".
        ignore_errors: leave out rows that can't be read.
        prefetch_buffer_size, num_parallel_reads, sloppy: accepted for TensorFlow's sake.

    Raises:
        FileNotFoundError: no file has such a name.
        ValueError: columns are not there; when rows are read, a field is not a number, or a row has another length.
    """
    patterns = [file_pattern] if isinstance(file_pattern, (str, os.PathLike)) else list(file_pattern)
    paths = sorted(path for pattern in patterns for path in glob.glob(os.fspath(pattern)))
    if not paths:
        raise FileNotFoundError(f"make_csv_dataset: no file is named {file_pattern!r}.")
    lines = _Lines(paths, field_delim, use_quote_delim, header, compression_type == "GZIP")
    columns = _Columns(lines, column_names, select_columns, column_defaults, na_value, num_rows_for_inference)
    if label_name is not None and label_name not in columns.names:
        raise ValueError(f"make_csv_dataset: label_name={label_name!r} is none of the columns {columns.names}.")

    def rows() -> Iterator[object]:
        for fields in lines:
            try:
                row = columns.read(fields)
            except ValueError:
                if ignore_errors:
                    continue
                raise
            yield row if label_name is None else (row, row.pop(label_name))

    dataset = ElementDataset(rows)
    if shuffle:
        dataset = dataset.shuffle(shuffle_buffer_size, shuffle_seed)
    return dataset.repeat(num_epochs).batch(batch_size, drop_remainder=num_epochs is None)


class _Lines:
    """The fields of each row of files, without the lines of names; `names` has those of the first file."""

    def __init__(self, paths: Sequence[str], delimiter: str, quotes: bool, header: bool, is_packed: bool) -> None:
        self._paths = paths
        self._options: dict[str, Any] = {"delimiter": delimiter}
        self._options["quoting"] = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
        self._header = header
        self._open: Any = gzip.open if is_packed else open
        self.names = next(self._lines(paths[0]), None) if header else None

    def _lines(self, path: str) -> Iterator[list[str]]:
        with self._open(path, "rt", newline="", encoding="utf-8") as file:
            yield from (fields for fields in csv.reader(file, **self._options) if fields)

    def __iter__(self) -> Iterator[list[str]]:
        for path in self._paths:
            yield from islice(self._lines(path), int(self._header), None)


class _Columns:
    """Reads the columns that are kept, each with its dtype and default."""

    def __init__(
        self,
        lines: _Lines,
        names: Sequence[str] | None,
        selected: Sequence[str | int] | None,
        defaults: Sequence[object] | None,
        missing: str,
        examined: int | None,
    ) -> None:
        found = list(names or lines.names or ())
        if not found:
            raise ValueError("make_csv_dataset: without a first line of names, column_names must give them.")
        wanted = range(len(found)) if selected is None else selected
        unknown = [name for name in wanted if isinstance(name, str) and name not in found]
        if unknown:
            raise ValueError(f"make_csv_dataset: select_columns has {unknown}, but the columns are {found}.")
        self._width = len(found)
        self._missing = ("", missing)
        self._places = [found.index(name) if isinstance(name, str) else name for name in wanted]
        self.names = [found[place] for place in self._places]
        if defaults is None:
            rows = list(islice(lines, examined))
            self._settings = [self._inferred([row[place] for row in rows]) for place in self._places]
        elif len(defaults) == len(self.names):
            self._settings = [_setting(default) for default in defaults]
        else:
            raise ValueError(
                f"make_csv_dataset: column_defaults has {len(defaults)} entries for {len(self.names)} columns."
            )

    def read(self, fields: list[str]) -> dict[str, object]:
        """Return the values of a row by name.

        Raises:
            ValueError: it has another number of fields, one is not a number, or one is empty that must not be.
        """
        if len(fields) != self._width:
            raise ValueError(f"make_csv_dataset: a row has {len(fields)} fields, expected {self._width}: {fields}.")
        found: dict[str, object] = {}
        for name, place, (dtype, default) in zip(self.names, self._places, self._settings, strict=True):
            field: Any = default if fields[place] in self._missing else fields[place]
            if field is None:
                raise ValueError(f"make_csv_dataset: column {name!r} is empty in a row, and has no default: {fields}.")
            try:
                found[name] = as_array(field, dtype) if is_string(dtype) else dtype.type(field)
            except ValueError:
                raise ValueError(f"make_csv_dataset: column {name!r} has {field!r}, expected {dtype.name}.") from None
        return found

    def _inferred(self, fields: Sequence[str]) -> tuple[DType, object]:
        given = [field for field in fields if field not in self._missing]
        for name in _INFERRED:
            if all(_fits(field, name) for field in given):
                return as_dtype(name), 0
        return as_dtype("string"), ""


def _fits(field: str, name: str) -> bool:
    try:
        number = as_dtype(name).type(field)
    except (ValueError, OverflowError):
        return False
    return bool(np.isfinite(number)) or name == "float64"


def _setting(default: object) -> tuple[DType, object]:
    """Return a dtype, and what an empty field stands for; None if no field may be empty."""
    if isinstance(default, (str, type, np.dtype)):
        return as_dtype(default), None
    value = as_array(default)
    return value.dtype, value.reshape(-1)[0] if value.size else None


__all__ = ["make_csv_dataset"]
