"""Safetensors files: arrays by name, mapped into memory, with a header that is checked before anything is read.

A file is the header's length (u64), the header, ``{"name": {"dtype", "shape", "data_offsets"}}`` in JSON, and the
arrays, without holes. Nothing in it is code.

Source: the format's description, github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ...engine.common.dtypes import as_dtype, name_of
from ...engine.common.quick_dataclass import dataclass
from ..structures import Array
from .archive import SavedFileError, atomic_write, check_overwrite, check_readable

MOST_HEADER_BYTES = 100_000_000
MOST_DIMENSIONS = 64  # of an array of NumPy
METADATA = "__metadata__"
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
_BYTES_ONLY = {"F8_E4M3": 1, "F8_E5M2": 1}  # known to the format, computed nowhere here
_NAMES = {name: code for code, name in _DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """The place of an array in a file.

    Attributes:
        code: its dtype, as the format names it.
        shape: its sizes.
        start, stop: its bytes in the file.
    """

    code: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFile(Mapping[str, Array]):
    """The arrays of a file by name. One is mapped when it is asked for; its bytes are read when they are looked at.

    Args:
        path: the file.

    Attributes:
        path: the file.
        entries: shape and dtype of each array, and where it is.
        metadata: texts by name.

    Raises:
        SavedFileError: (a ValueError) the header is damaged; the message says where.
        FileNotFoundError: there is no such file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        check_readable(self.path)
        self.entries, self.metadata = _read_header(self.path)
        self._bytes: Array | None = None

    def __getitem__(self, name: str) -> Array:
        entry = self.entries[name]
        if entry.code in _BYTES_ONLY:
            raise SavedFileError(
                f"{str(self.path)!r}: {name!r} is of dtype {entry.code}, float8, which is not available. Convert the "
                "file to bfloat16 or float32."
            )
        dtype = as_dtype(_DTYPES[entry.code])
        if entry.start == entry.stop:
            return np.zeros(entry.shape, dtype)
        if self._bytes is None:
            self._bytes = np.memmap(self.path, np.uint8, "r")
        array = self._bytes[entry.start : entry.stop].view(np.ndarray)
        if entry.code == "BOOL" and array.size and int(array.max()) > 1:
            raise SavedFileError(f"{str(self.path)!r}: {name!r} is of bools, but holds {int(array.max())}.")
        return array.view(dtype).reshape(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"<SafetensorsFile {str(self.path)!r}, {len(self)} arrays>"


def read_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Open a safetensors file.

    Args:
        path: the file.

    Returns:
        A mapping from names to arrays that are mapped into memory: opening reads the header only. `metadata` holds
        the file's texts.

    Raises:
        SavedFileError: (a ValueError) the header is damaged; the message says where.
        FileNotFoundError: there is no such file.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "arrays.safetensors")
    ...     write_safetensors(path, {"x": np.arange(3, dtype="float32")}, {"format": "pt"})
    ...     found = read_safetensors(path)
    ...     found["x"].tolist(), found.metadata
    ([0.0, 1.0, 2.0], {'format': 'pt'})
    """
    return SafetensorsFile(path)


def _read_header(path: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    size = path.stat().st_size
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8 or length > MOST_HEADER_BYTES:
            raise _damaged(path, f"its first 8 bytes say that the header has {length:,} bytes, the file has {size:,}")
        text = stream.read(length)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, f"{METADATA} is no object of texts")
    entries = {name: _entry(path, name, value, 8 + length) for name, value in header.items()}
    _check_places(path, entries, 8 + length, size)
    return entries, metadata


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands in it twice")
    return found


def _entry(path: Path, name: str, value: object, begin: int) -> Entry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"{name!r} has no dtype, shape and data_offsets, or has more than these")
    code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(code, str) or not (code in _DTYPES or code in _BYTES_ONLY):
        raise _damaged(path, f"{name!r} is of dtype {code!r}, expected one of {', '.join((*_DTYPES, *_BYTES_ONLY))}")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise _damaged(path, f"{name!r} has the shape {shape!r} and the offsets {offsets!r}")
    if len(shape) > MOST_DIMENSIONS:
        raise SavedFileError(
            f"{str(path)!r}: {name!r} has {len(shape)} dimensions, arrays here have at most {MOST_DIMENSIONS}. Save it "
            "in another shape."
        )
    item = _BYTES_ONLY.get(code) or as_dtype(_DTYPES[code]).itemsize
    start, stop = offsets
    if stop - start != math.prod(shape) * item:
        raise _damaged(
            path,
            f"{name!r} of shape {shape} and dtype {code} takes {math.prod(shape) * item:,} bytes, not {stop - start:,}",
        )
    if math.prod(size for size in shape if size) * item >= 2**63:
        raise _damaged(path, f"{name!r} of shape {shape} is empty, but its other sizes are too large")
    return Entry(code, tuple(shape), begin + start, begin + stop)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def _check_places(path: Path, entries: Mapping[str, Entry], begin: int, size: int) -> None:
    """Check that the arrays are one behind the other, up to the end of the file."""
    at = begin
    for name, entry in sorted(entries.items(), key=lambda pair: (pair[1].start, pair[1].stop)):
        if entry.start != at:
            raise _damaged(
                path, f"{name!r} begins at byte {entry.start - begin:,} of the data, expected {at - begin:,}"
            )
        at = entry.stop
    if at != size:
        raise _damaged(path, f"its arrays take {at - begin:,} bytes, the file has {size - begin:,} for them")


def _damaged(path: Path, reason: str) -> SavedFileError:
    return SavedFileError(f"{str(path)!r} is no safetensors file, or is damaged: {reason}. Fetch or save it again.")


def write_safetensors(
    path: str | os.PathLike[str],
    arrays: Mapping[str, object],
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = True,
) -> None:
    """Write arrays into a safetensors file.

    Args:
        path: the file, which is replaced when all is written.
        arrays: by name; bfloat16 too.
        metadata: texts by name. Libraries for PyTorch ask for ``{"format": "pt"}``.
        overwrite: whether an existing file is replaced.

    Raises:
        ValueError: an array is of a dtype that the format lacks, or a name is that of the metadata.
        TypeError: a name, or a part of the metadata, is not text.
        FileExistsError: the file exists and `overwrite` is False.

    >>> import anabranch as ab
    >>> ab.saving.write_safetensors("arrays.safetensors", {"x": ab.ops.ones(2).numpy()}, {"format": "pt"})
    >>> sorted(ab.saving.read_safetensors("arrays.safetensors"))
    ['x']
    """
    target = Path(path)
    check_overwrite(target, overwrite)
    if not all(isinstance(part, str) for pair in (metadata or {}).items() for part in pair):
        raise TypeError(f"write_safetensors: metadata is texts by name, got {metadata!r}. Write numbers as texts.")
    found = {name: _writable(name, array) for name, array in arrays.items()}
    # By falling size of their elements, so that each is at a multiple of that.
    order = sorted(found, key=lambda name: (-found[name].dtype.itemsize, name))
    header: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    at = 0
    for name in order:
        array = found[name]
        header[name] = {
            "dtype": _NAMES[name_of(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with atomic_write(target) as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            stream.write(np.ascontiguousarray(found[name]).reshape(-1).view(np.uint8).data)


def _writable(name: object, array: object) -> Array:
    if not isinstance(name, str):
        raise TypeError(f"write_safetensors: names of arrays are texts, got {name!r} of type {type(name).__name__}.")
    found = np.asarray(array)
    if name == METADATA:
        raise ValueError(f"write_safetensors: {name!r} is the format's own name; give the array another one.")
    if (found.dtype.kind == "V" and name_of(found.dtype) != "bfloat16") or name_of(found.dtype) not in _NAMES:
        raise ValueError(
            f"write_safetensors: {name!r} is of dtype {found.dtype}, which safetensors files can't hold. Expected one "
            f"of {', '.join(_NAMES)}."
        )
    return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))
