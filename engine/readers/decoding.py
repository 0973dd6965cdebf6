"""From records to tensors: numbers out of bytes, and fields out of lines of CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..common import dtypes
from ..common.dtypes import DType, as_dtype, name_of
from ..common.quick_dataclass import dataclass
from ..graph.graph import Operation
from ..graph.op import as_scalar_or_array
from ..graph.spec import shape_text
from ..ops.base import Op, Sample, Tensor, TensorLike, TensorSpec, apply_multi, as_array, convert_to_tensor


@dataclass(frozen=True)
class DecodeRaw(Op):
    """The bytes of the last axis as numbers of another dtype."""

    dtype: DType
    little_endian: bool

    host_only: ClassVar[bool] = True  # CuPy has no dtypes of another byte order, and readers give bytes on the host

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if x.dtype != np.uint8:
            raise TypeError(f"decode_raw takes bytes (uint8), as readers give them; got {x}.")
        if x.shape is None:
            return TensorSpec(None, self.dtype)
        if not x.shape:
            raise ValueError("decode_raw takes vectors of bytes, or rows of them; got a single byte.")
        size = x.shape[-1]
        if size is not None and size % self.dtype.itemsize:
            raise self._misfit(x.shape)
        return TensorSpec((*x.shape[:-1], None if size is None else size // self.dtype.itemsize), self.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        if x.shape[-1] % self.dtype.itemsize:
            raise self._misfit(x.shape)
        stored = self.dtype.newbyteorder("<" if self.little_endian else ">")
        return np.ascontiguousarray(x).view(stored).astype(self.dtype)

    def _misfit(self, shape: Any) -> ValueError:
        return ValueError(
            f"decode_raw: bytes of shape {shape_text(shape)} do not divide into {name_of(self.dtype)} of "
            f"{self.dtype.itemsize} bytes."
        )

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1, 0, 2, 1], [255, 255, 0, 128]], "uint8")
        little = np.array([[1, 258], [-1, -32768]], "int16")
        yield Sample(cls(np.dtype("int16"), True), [x], little, label="little-endian")
        yield Sample(cls(np.dtype("int16"), False), [x], little.byteswap(), label="big-endian")
        yield Sample(cls(np.dtype("float32"), True), [x[0, :0]], np.zeros(0, "float32"), label="empty")


def decode_raw(input_bytes: TensorLike, out_type: Any, little_endian: bool = True) -> Tensor:
    """Return the bytes of records as numbers (``tf.io.decode_raw``).

    Args:
        input_bytes: uint8, ``(..., n)``.
        out_type: the dtype of the numbers, of which each takes so many bytes of the last axis.
        little_endian: whether the lowest byte of a number comes first.

    >>> import anabranch as ab
    >>> ab.io.decode_raw(np.array([1, 0, 2, 0], "uint8"), "int16")
    Tensor([1, 2], dtype=int16)
    """
    wanted = as_dtype(out_type)
    if wanted.kind not in "iufcb":
        raise TypeError(f"decode_raw gives numbers or bools; out_type={name_of(wanted)} is neither.")
    return apply_multi(DecodeRaw(wanted, little_endian), convert_to_tensor(input_bytes))[0]


@dataclass(frozen=True)
class DecodeCsv(Op):
    """The fields of lines of CSV, one output a column.

    Attributes:
        columns: their dtypes.
        defaults: for an empty field, as text; None where one is needed.
        delimiter: between fields.
        quotes: fields may stand in double quotes.
        missing: text that counts as an empty field.
        selected: the positions of the columns; None for all.
    """

    columns: tuple[DType, ...]
    defaults: tuple[str | None, ...]
    delimiter: str = ","
    quotes: bool = True
    missing: str = ""
    selected: tuple[int, ...] | None = None

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        (lines,) = inputs
        if lines.dtype != dtypes.string:
            raise TypeError(f"decode_csv takes strings; got {lines}.")
        return tuple([TensorSpec(lines.shape, dtype) for dtype in self.columns])

    def run(self, xp: Any, *inputs: Any) -> Any:
        lines = np.asarray(inputs[0], dtypes.string)
        rows = [self._fields(str(line), number) for number, line in enumerate(lines.ravel())]
        columns = zip(*rows, strict=True) if rows else [()] * len(self.columns)
        found = [
            as_scalar_or_array(np.array(list(column), dtype).reshape(lines.shape))
            for column, dtype in zip(columns, self.columns, strict=True)
        ]
        return found[0] if len(found) == 1 else tuple(found)

    def _fields(self, line: str, number: int) -> list[Any]:
        quoting = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        try:
            fields = next(csv.reader([line], delimiter=self.delimiter, quoting=quoting, strict=True), None) or [""]
        except csv.Error as error:
            raise ValueError(f"decode_csv: line {number} is no CSV ({error}): {line!r}.") from None
        wanted = range(len(self.columns)) if self.selected is None else self.selected
        if self.selected is None and len(fields) != len(self.columns):
            raise ValueError(
                f"decode_csv: line {number} has {len(fields)} fields, but {len(self.columns)} were expected: {line!r}."
            )
        if max(wanted) >= len(fields):
            raise ValueError(f"decode_csv: line {number} has no column {max(wanted)}: {line!r}.")
        return [self._value(fields[place], position, line, number) for position, place in enumerate(wanted)]

    def _value(self, field: str, position: int, line: str, number: int) -> Any:
        dtype, default = self.columns[position], self.defaults[position]
        if field in ("", self.missing):
            if default is None:
                raise ValueError(
                    f"decode_csv: field {position} of line {number} is empty and has no default: {line!r}."
                )
            field = default
        if dtype == dtypes.string:
            return field
        try:
            return dtype.type(int(field) if dtype.kind in "iu" else float(field))
        except (ValueError, OverflowError):
            raise ValueError(
                f"decode_csv: field {position} of line {number} is no {name_of(dtype)}: {field!r}."
            ) from None

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        columns = (np.dtype("int32"), np.dtype("float32"), dtypes.string)
        op = cls(columns, (None, "-1", "none"))
        lines = np.array(["1,2.5,a", '2,,"b, c"', "-3,1e3,"], dtypes.string)
        found = (
            np.array([1, 2, -3], "int32"),
            np.array([2.5, -1, 1000], "float32"),
            np.array(["a", "b, c", "none"], dtypes.string),
        )
        yield Sample(op, [lines], found, (), label="three columns")
        yield Sample(op, [lines[:0]], tuple(column[:0] for column in found), (), label="empty")
        chosen = cls(columns[:1], (None,), ";", False, "NA", (1,))
        yield Sample(chosen, [np.array(["x;7"], dtypes.string)], np.array([7], "int32"), (), label="selected")


def decode_csv(
    records: TensorLike,
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> list[Tensor]:
    """Return the fields of lines of CSV (``tf.io.decode_csv``).

    Args:
        records: strings of any shape, a line each.
        record_defaults: for each column the value of empty fields, which also gives the dtype (int32, int64, float32,
            float64 or string); an empty array of the dtype, or the dtype itself, where a field is needed.
        field_delim: between fields, one character.
        use_quote_delim: fields may stand in double quotes.
        na_value: text that counts as an empty field, besides "".
        select_cols: the positions of the columns that are wanted, ascending; by default all.

    Returns:
        A tensor a column, in the shape of `records`.

    Raises:
        ValueError: a line has other fields (at run time); the message names the line.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.io.decode_csv(["1,a", "2,"], [0, "none"]))
    [array([1, 2], dtype=int32), array(['a', 'none'], dtype=StringDType())]
    """
    if not record_defaults:
        raise ValueError("decode_csv: record_defaults is empty; give a default or a dtype for each column.")
    if len(field_delim) != 1:
        raise ValueError(f"decode_csv: field_delim must be a single character; got {field_delim!r}.")
    selected = None if select_cols is None else tuple([int(column) for column in select_cols])
    if selected is not None and (list(selected) != sorted(set(selected)) or len(selected) != len(record_defaults)):
        raise ValueError(
            f"decode_csv: select_cols must be ascending, with one column for each of the {len(record_defaults)} "
            f"defaults; got {list(selected)}."
        )
    columns = [_column(default) for default in record_defaults]
    types, texts = tuple([dtype for dtype, _ in columns]), tuple([text for _, text in columns])
    op = DecodeCsv(types, texts, field_delim, use_quote_delim, na_value, selected)
    return list(apply_multi(op, convert_to_tensor(records)))


def _column(default: Any) -> tuple[DType, str | None]:
    """Return the dtype of a column and its default as text."""
    wanted = default
    if isinstance(default, (np.dtype, type)):
        dtype, text = as_dtype(wanted), None
    else:
        array = as_array(default)
        text = None if array.size == 0 else str(np.asarray(array).ravel()[0])
        dtype = array.dtype
    if name_of(dtype) not in ("int32", "int64", "float32", "float64", "string"):
        raise TypeError(
            f"decode_csv: columns are int32, int64, float32, float64 or string; got {name_of(dtype)} by {default!r}."
        )
    return dtype, text
