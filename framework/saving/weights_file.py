"""The HDF5 layer of ``.weights.h5`` files: groups of numbered arrays at paths, as Keras lays them out.

``<path>/vars/<key>`` is a dataset; ``vars`` has the attribute ``name``. Behind HDF5's own end a file of ours has a line
with a checksum, the seal: HDF5 ignores it when it reads and cuts it off when a file is changed on purpose. It is
checked first, because HDF5 is not safe from damaged files: it may read wrong numbers, or never return. Files that Keras
wrote have no seal.
"""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np

from ...engine.common.dtypes import DType, as_dtype
from ...engine.common.quick_dataclass import dataclass
from ..structures import Array
from .archive import SAVE_AGAIN, SavedFileError, damaged
from .old_keras import OLD_LAYERS, modern_numbers

if TYPE_CHECKING:
    import h5py

VARIABLES = "vars"
SEAL = b"\nanabranch crc32 "
_SEAL_LENGTH = len(SEAL) + 9
_CHUNK = 1 << 20
_DEEPEST = 100
# A dataset larger than the first, and this many times larger than its bytes in the file, is an attack on memory.
_BOMB_BYTES = 1 << 28
_BOMB_RATIO = 1000


@dataclass(frozen=True)
class Group:
    """The weights of one object (a layer, an optimizer): its name, for the reader's eye, and its arrays by key."""

    path: str
    name: str | None
    arrays: dict[str, Array]


@dataclass(frozen=True)
class Stored:
    """A dataset's shape and dtype, known without reading it."""

    shape: tuple[int, ...]
    dtype: DType


def write_weights(stream: BinaryIO, groups: Iterable[Group]) -> None:
    """Write groups to a seekable stream.

    Raises:
        ValueError: an array is of text or of Python objects.
    """
    import h5py

    with h5py.File(stream, "w", libver=("v108", "v108")) as file:
        for group in groups:
            _write_group(file, group)


def _write_group(file: h5py.File, group: Group) -> None:
    variables = file.create_group(f"{group.path}/{VARIABLES}" if group.path else VARIABLES)
    if group.name is not None:
        variables.attrs["name"] = group.name
    for key, value in group.arrays.items():
        array = np.asarray(value)
        if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
            raise ValueError(
                f"{group.name or group.path!r} saves {key!r} as an array of {array.dtype}; only numbers and booleans "
                "can be saved. Encode it as numbers in save_own_variables."
            )
        dataset = variables.create_dataset(key, data=array)
        if array.dtype.name == "bfloat16":
            dataset.attrs["dtype"] = "bfloat16"  # HDF5 has no such type and stores two opaque bytes


def seal(stream: BinaryIO) -> None:
    """Append the checksum of what is in a stream."""
    size = stream.seek(0, io.SEEK_END)
    line = SEAL + f"{_crc32(stream, size):08x}\n".encode()
    stream.seek(size)
    stream.write(line)


def check_seal(stream: BinaryIO, path: Path) -> None:
    """Compare a file with its checksum, if it has one.

    Raises:
        SavedFileError: they differ, or something else stands in the checksum's place.
    """
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, size - _SEAL_LENGTH))
    line = stream.read()
    if line.startswith(SEAL):
        if line[len(SEAL) :] != f"{_crc32(stream, size - _SEAL_LENGTH):08x}\n".encode():
            raise damaged(path, "its content does not match its checksum")
    elif size > _end_of_hdf5(stream, size):
        raise damaged(path, "its checksum can't be read")
    stream.seek(0)


def _crc32(stream: BinaryIO, size: int) -> int:
    stream.seek(0)
    value = 0
    while size > 0 and (chunk := stream.read(min(size, _CHUNK))):
        value = zlib.crc32(chunk, value)
        size -= len(chunk)
    return value


def _end_of_hdf5(stream: BinaryIO, size: int) -> int:
    """Return where HDF5's part of a file ends, by the kind of superblock that `write_weights` makes; else its size."""
    stream.seek(0)
    block = stream.read(36)
    if len(block) < 36 or block[8] not in (2, 3) or block[9] != 8:
        return size
    return int.from_bytes(block[28:36], "little")


class WeightsReader:
    """An open file of weights: `index` says what is there, `read` reads it.

    Args:
        stream: the content.
        path: the file's name, for messages.
        limit: how many bytes its arrays may have in all; None for no limit but that of each array.

    Raises:
        SavedFileError: the content is not HDF5, is damaged, or leads outside the file.
    """

    def __init__(self, stream: BinaryIO, path: Path, limit: int | None = None) -> None:
        import h5py

        self.path = path
        self.nbytes = 0
        """Of all datasets together."""
        self._limit = limit
        self.datasets: dict[str, Stored] = {}
        """Every dataset by its place in the file."""
        self.index: dict[str, dict[str, Stored]] = {}
        """What each object saved: its path to key to dataset."""
        self._places: dict[tuple[str, str], str] = {}
        try:
            self._file = h5py.File(stream, "r")
        except Exception as error:  # h5py turns HDF5's errors into many Python types
            raise damaged(path, _reason(error)) from error
        try:
            self._visit(self._file, "", "", 0)
        except SavedFileError:
            self._file.close()
            raise
        except Exception as error:
            self._file.close()
            raise damaged(path, _reason(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def attributes(self, place: str = "") -> dict[str, Any]:
        """Return the attributes of the group at `place`; empty if there is no such group."""
        try:
            return dict(self._file[place or "/"].attrs) if not place or place in self._file else {}
        except Exception as error:
            raise damaged(self.path, f"the attributes of {place or 'the file'} can't be read") from error

    def read(self, path: str) -> dict[str, Array]:
        """Return the arrays of the object at `path`, by key; empty if it has none.

        Raises:
            SavedFileError: HDF5 can't.
        """
        return {key: self.read_dataset(self._places[path, key]) for key in self.index.get(path, {})}

    def read_dataset(self, place: str) -> Array:
        """Return the content of the dataset at `place`.

        Raises:
            SavedFileError: HDF5 can't read it.
        """
        try:
            dataset: Any = self._file[place]
            values = np.asarray(dataset[()])
        except Exception as error:
            raise damaged(self.path, f"{place} can't be read ({_reason(error)})") from error
        return _as_native(values, self.datasets[place].dtype)

    def _visit(self, group: h5py.Group, place: str, path: str, depth: int) -> None:
        """Note every dataset of a group, and go down. Links that leave the file are refused. `path`: see `_note`."""
        import h5py

        if depth > _DEEPEST:
            raise SavedFileError(f"{str(self.path)!r}: groups nested more than {_DEEPEST} deep are no model's weights.")
        names = list(group.keys())
        numbered = modern_numbers(names) if place.endswith(OLD_LAYERS) else {OLD_LAYERS: "layers"}
        for name in names:
            inner = f"{place}/{name}" if place else name
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise SavedFileError(f"{str(self.path)!r}: {inner} is a link elsewhere, which is refused. {SAVE_AGAIN}")
            item = group[name]
            if isinstance(item, h5py.Group):
                modern = numbered.get(str(name), str(name))
                self._visit(item, inner, f"{path}/{modern}" if path else modern, depth + 1)
            elif isinstance(item, h5py.Dataset):
                self._note(item, place, path, name)

    def _note(self, dataset: h5py.Dataset, group: str, path: str, key: str) -> None:
        """Add a dataset to the index, if it is one that may be read; `path` is the group's name in today's files."""
        place = f"{group}/{key}" if group else key
        dtype = _dtype_of(dataset)
        where = f"{str(self.path)!r}: {place}"
        if dtype is None or dataset.shape is None:
            raise SavedFileError(f"{where} holds {dataset.dtype}, not numbers. {SAVE_AGAIN}")
        if dataset.external or dataset.is_virtual:
            raise SavedFileError(f"{where} takes its content from another file, which is refused. {SAVE_AGAIN}")
        size = math.prod(dataset.shape) * dtype.itemsize
        if size > max(_BOMB_BYTES, _BOMB_RATIO * dataset.id.get_storage_size()):
            raise SavedFileError(f"{where} claims {size} bytes, of which the file holds next to none. {SAVE_AGAIN}")
        self.nbytes += size
        if self._limit is not None and self.nbytes > self._limit:
            raise SavedFileError(
                f"{where}: the arrays up to here claim {self.nbytes:,} bytes, more than the file has. If you trust "
                "the file, pass safe_mode=False."
            )
        self.datasets[place] = Stored(tuple(dataset.shape), dtype)
        parent, _, last = path.rpartition("/")
        if last == VARIABLES:
            self.index.setdefault(parent, {})[key] = self.datasets[place]
            self._places[parent, key] = place


def _dtype_of(dataset: h5py.Dataset) -> DType | None:
    """Return the dtype of the numbers in a dataset; None if they are not numbers."""
    if str(dataset.attrs.get("dtype")) == "bfloat16" and dataset.dtype.itemsize == 2:
        return as_dtype("bfloat16")
    return dataset.dtype.newbyteorder("=") if dataset.dtype.kind in "biufc" else None


def _as_native(values: Array, dtype: DType) -> Array:
    """Return what was read, in this machine's byte order and as bfloat16 where that is what the bytes mean."""
    if dtype.name == "bfloat16" and values.dtype.kind == "V":
        return np.frombuffer(values.tobytes(), dtype).reshape(values.shape)
    return values.astype(dtype)


def _reason(error: Exception) -> str:
    """Return HDF5's own words on one line."""
    return " ".join(str(error).split()) or type(error).__name__
