"""Text on concrete values: what the string ops and `print` compute with, element by element."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...graph.op import as_scalar_or_array

FNV_OFFSET = 0xCBF29CE484222325
FNV_PRIME = 0x100000001B3

_numpy: Any = np  # where NumPy's annotations leave types open


def items_of(array: Any) -> list[Any]:
    """Return the elements in row-major order, as Python values."""
    return np.asarray(array).ravel().tolist()


def array_of(items: Sequence[Any], shape: tuple[int, ...], dtype: DType = dtypes.string) -> Any:
    """Return the array of `shape` with elements `items`, in the form that programs compute with."""
    return as_scalar_or_array(np.array(items, dtype).reshape(shape))


def each(function: Callable[[Any], Any], array: Any, dtype: DType = dtypes.string) -> Any:
    """Return `function` of every element."""
    return array_of([function(item) for item in items_of(array)], array.shape, dtype)


def position_of(index: int, shape: tuple[int, ...]) -> str:
    """Return an index into the flattened array as a person writes it: ``[1, 2]``."""
    return str([int(part) for part in np.unravel_index(index, shape)]) if shape else "[]"


# --- conversion -------------------------------------------------------------------------------------------------------


def as_strings(array: Any) -> Any:
    """Return an array of text of any kind as one of dtype "string". One of objects that are not text is left as it is.

    Raises:
        TypeError: text and other things are mixed. ValueError: bytes are not UTF-8.
    """
    if array.dtype == dtypes.string:
        return array
    if array.dtype.kind == "U":
        return array.astype(dtypes.string)
    items: list[Any] = [
        item.item() if isinstance(item, (np.ndarray, np.generic)) and item.ndim == 0 else item for item in array.flat
    ]
    if array.dtype == object and not any(isinstance(item, (str, bytes)) for item in items):
        return array
    texts = array.astype(object).reshape(-1)
    texts[:] = [_text(item) for item in items]
    return texts.reshape(array.shape).astype(dtypes.string)


def _text(item: Any) -> str:
    if isinstance(item, str):
        return item
    if not isinstance(item, bytes):
        raise TypeError(
            f"Strings and other values are mixed: {item!r} of type {type(item).__name__} is no string. Use str() on "
            "each, or keep numbers and strings in tensors of their own."
        )
    try:
        return item.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Bytes become strings as UTF-8, but {item[:40]!r} is no UTF-8 ({error.reason} at byte {error.start}). "
            "Decode them first with their own encoding, as in value.decode('latin-1')."
        ) from error


# --- hashing --------------------------------------------------------------------------------------------------------


def fnv1a(array: Any) -> Any:
    """Return the 64-bit FNV-1a hash of each string's UTF-8 bytes, as uint64 of the same shape.

    Fowler, Noll and Vo's hash, variant 1a: starting from the offset basis, ``hash = (hash ^ byte) * prime`` for each
    byte. It is computed for all strings at once, a byte of each at a time.
    """
    encoded = [item.encode() for item in items_of(array)]
    lengths = _numpy.array([len(item) for item in encoded], "int64")
    starts = _numpy.cumsum(lengths) - lengths
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    data = np.frombuffer(b"".join(encoded), "uint8").astype("uint64")
    hashes = _numpy.full(len(encoded), FNV_OFFSET, "uint64")
    alive = _numpy.searchsorted(-lengths, -_numpy.arange(1, lengths.max(initial=0) + 1), side="right")
    for byte, count in enumerate(alive.tolist()):  # how many strings have a byte there: the first ones
        hashes[:count] = (hashes[:count] ^ data[starts[:count] + byte]) * np.uint64(FNV_PRIME)
    out = _numpy.empty_like(hashes)
    out[order] = hashes
    return out.reshape(array.shape)


# --- regular expressions --------------------------------------------------------------------------------------------


def compiled(pattern: str, what: str) -> re.Pattern[str]:
    """Compile `pattern` as a regular expression.

    Raises:
        ValueError: it is none.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{what}: pattern {pattern!r} is no regular expression: {error}.") from error


def rewriter(rewrite: str, groups: int) -> Callable[[re.Match[str]], str]:
    """Return what replaces a match: `rewrite` with ``\\0`` to ``\\9`` standing for the match and its groups.

    Raises:
        ValueError: it refers to a group that the pattern lacks, or has a backslash before something else.
    """
    pieces = re.split(r"(\\.?)", rewrite, flags=re.DOTALL)
    for escape in pieces[1::2]:
        if escape != "\\\\" and not (escape[1:].isascii() and escape[1:].isdigit() and int(escape[1:]) <= groups):
            raise ValueError(
                f"regex_replace: {escape!r} in rewrite={rewrite!r} is neither a group of the pattern, which has "
                f"{groups}, nor a backslash, which is written '\\\\\\\\'."
            )

    def expand(match: re.Match[str]) -> str:
        return "".join(
            piece if position % 2 == 0 else "\\" if piece == "\\\\" else match.group(int(piece[1:])) or ""
            for position, piece in enumerate(pieces)
        )

    return expand


# --- substrings -----------------------------------------------------------------------------------------------------


def substring(text: str, start: int, length: int, unit: str) -> str:
    """Return the part of `text` from `start` on, of at most `length` units.

    Raises:
        ValueError: `start` is outside the string, `length` is negative, or a character is cut in two.
    """
    whole: Any = text.encode() if unit == "BYTE" else text
    if length < 0:
        raise ValueError(f"substr: the length must not be negative; got {length}.")
    if not -len(whole) <= start <= len(whole):
        raise ValueError(f"substr: position {start} is outside {text!r}, which has {len(whole)} units ({unit}).")
    start = start + len(whole) if start < 0 else start
    part = whole[start : start + length]
    if isinstance(part, str):
        return part
    try:
        return part.decode()
    except UnicodeDecodeError:
        raise ValueError(
            f"substr: bytes {start} to {start + len(part)} of {text!r} cut a character in two. Use unit='UTF8_CHAR'."
        ) from None


# --- numbers --------------------------------------------------------------------------------------------------------


def parse_numbers(array: Any, dtype: DType) -> Any:
    """Return the numbers that strings hold.

    Raises:
        ValueError: one of them holds none, or one that `dtype` can't hold.
    """
    wide = np.dtype("float64") if dtypes.is_floating(dtype) else dtype
    parsed: list[Any] = []
    for index, item in enumerate(items_of(array)):
        number = _parsed(item, dtype)
        if number is None:
            raise ValueError(
                f"to_number: {item!r} at position {position_of(index, array.shape)} is no number of dtype "
                f"{dtypes.name_of(dtype)}."
            )
        parsed.append(number)
    return as_scalar_or_array(np.array(parsed, wide).astype(dtype).reshape(array.shape))


def _parsed(item: str, dtype: DType) -> Any:
    if "_" in item:  # Python's own way of grouping digits
        return None
    try:
        if not dtypes.is_integer(dtype):
            return float(item)
        number = int(item)
    except ValueError:
        return None
    limits = np.iinfo(dtype)
    return number if limits.min <= number <= limits.max else None


def number_format(kind: str, precision: int, scientific: bool, shortest: bool, width: int, fill: str) -> str:
    """Return the printf format of numbers of a dtype of `kind`, as C's and Python's ``%``."""
    size = "" if width < 0 else str(width)
    if kind in "iu":
        return f"%{fill}{size}d"
    digits = "" if precision < 0 else f".{precision}"
    return f"%{fill}{size}{digits}{'e' if scientific else 'g' if shortest else 'f'}"


def print_numbers(array: Any, template: str, width: int) -> Any:
    """Format numbers as strings, by the printf format `template`."""
    kind = array.dtype.kind
    if kind == "b":
        return each(lambda item: ("true" if item else "false").rjust(width), array)
    if kind == "c":
        return each(lambda item: f"({template % item.real},{template % item.imag})", array)
    wide = array if kind in "iu" else array.astype("float64")
    return each(lambda item: template % item, wide)


# --- showing values -------------------------------------------------------------------------------------------------


def shown(value: Any, summarize: int) -> str:
    """Return a value as `print` and `strings.format` show it.

    Args:
        value: an array or NumPy scalar.
        summarize: how many elements of each axis are shown at its start and at its end; -1 shows all.
    """
    array = np.asarray(value)
    if not array.ndim:
        return str(array.item() if array.dtype.kind == "T" else array[()])
    return _rows(array, summarize, 1)


def _rows(array: Any, summarize: int, depth: int) -> str:
    size = len(array)
    everything = summarize < 0 or size <= 2 * summarize
    places = range(size) if everything else itertools.chain(range(summarize), range(size - summarize, size))
    if array.ndim == 1:
        texts = [_element(array[place]) for place in places]
        separator = " "
    else:
        texts = [_rows(array[place], summarize, depth + 1) for place in places]
        separator = "\n" * (array.ndim - 1) + " " * depth
    if not everything:
        texts.insert(summarize, "...")
    return f"[{separator.join(texts)}]"


def _element(item: Any) -> str:
    return f'"{item}"' if isinstance(item, str) else str(item)


def filled(parts: Sequence[str], values: Sequence[Any], summarize: int) -> str:
    """Return the text of `parts` with `values` between them."""
    texts = [shown(value, summarize) for value in values]
    return "".join(part + text for part, text in itertools.zip_longest(parts, texts, fillvalue=""))
