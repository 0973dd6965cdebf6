"""The format of checkpoints: shards in HDF5, and a manifest that names them and is written last.

A checkpoint is a folder. Each task that saves writes one shard, a file of HDF5 with pieces of tensors. The manifest
says of each shard its size, and of each tensor its shape, its dtype and the pieces with their CRC-32. It takes its name
only when all shards are on the disk: a folder without it is not a checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..common.atomic import is_temporary
from ..common.dtypes import as_dtype, name_of, string
from ..graph.state.sharded import Rows
from ..queues.errors import DataLossError
from .folders import Folder, Place, folder_of, is_name

MANIFEST = "manifest.json"
FORMAT, VERSION = "anabranch-checkpoint", 2
_OF_ROWS_IN_TURN = 2  # the version of checkpoints in which a piece holds every n-th row; others are of version 1
_AT_ONCE = 1 << 24  # bytes that are written before the disk is asked to begin with them
_NATIVE = "biufc"  # the kinds of dtypes that HDF5 has


class Piece(NamedTuple):
    """A part of a tensor in a shard.

    Attributes:
        shard: the number of the shard.
        dataset: its name in the file.
        offset, shape: which part it is.
        crc32: of its bytes.
        step: how far its rows are apart in the whole.
    """

    shard: int
    dataset: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    crc32: int
    step: int = 1


class Part(NamedTuple):
    """The part of a tensor that is written into one shard.

    Attributes:
        name: of the tensor.
        value: some of its rows, or all.
        rows: which ones; None for all.
        rows_of_all: how many the whole has, where these are some.
    """

    name: str
    value: Any
    rows: Rows | None
    rows_of_all: int


class Entry(NamedTuple):
    """A tensor of a checkpoint.

    Attributes:
        shape, dtype: of the whole.
        pieces: what it is put together of.
    """

    shape: tuple[int, ...]
    dtype: str
    pieces: list[Piece]


def _h5py() -> Any:
    """Return the library, which has no types; imported when it is needed."""
    return importlib.import_module("h5py")


# --- writing --------------------------------------------------------------------------------------------------------


def write_shard(folder: Place, number: int, count: int, tensors: Mapping[str, Any] | Sequence[Part]) -> dict[str, Any]:
    """Write one shard, whole or not at all; return what the manifest has to say of it.

    Args:
        folder: of the checkpoint; it is made if there is none.
        number, count: which shard it is, and of how many.
        tensors: arrays by name, or parts of arrays.

    Raises:
        OSError: it can't be written.
    """
    h5py, folder = _h5py(), folder_of(folder)
    folder.make()
    found = list(_parts(tensors))
    pieces = [_described(position, *part) for position, part in enumerate(found)]
    name = ""
    with folder.writing(f"shard-{number}-of-{count}.h5", lambda: name) as stream:
        steady = _Steady(stream, folder)
        with h5py.File(steady, "w", libver=("v108", "v108")) as file:
            for (_, array, _, _), piece in zip(found, pieces, strict=True):
                dataset = file.create_dataset(piece["dataset"], data=_stored(array))
                dataset.attrs.update({key: piece[key] for key in ("name", "dtype", "offset", "step") if key in piece})
                dataset.attrs["global_shape"] = tuple(piece["whole"])
        if steady.error is not None:
            raise steady.error
        size = stream.seek(0, 2)
        for (_, array, _, _), piece in zip(found, pieces, strict=True):  # while the disk writes
            piece["crc32"] = _crc32(array)
        # By its contents: a task of an earlier save into this folder, which comes late, doesn't write over this shard.
        digest = hashlib.blake2b(json.dumps(pieces).encode(), digest_size=6).hexdigest()
        name = f"shard-{number}-of-{count}-{digest}.h5"
    return {"file": name, "size": size, "pieces": pieces}


class _Steady:
    """A stream for HDF5 to write, which keeps the first error: HDF5 goes on after one, and then raises any other.

    Args:
        stream: where the bytes go.
        folder: in which it becomes a file; the disk begins to write what is large while the rest comes.

    Attributes:
        error: the first one; None if there was none.
    """

    def __init__(self, stream: BinaryIO, folder: Folder) -> None:
        self._stream, self._folder = stream, folder
        self.error: BaseException | None = None
        self.seek, self.tell, self.read = stream.seek, stream.tell, stream.read

    def write(self, data: Any) -> int:
        self._keeping(lambda: self._write(data))
        return len(data)

    def _write(self, data: Any) -> None:
        if len(data) <= _AT_ONCE:
            self._stream.write(data)
            return
        view, start = memoryview(data), self._stream.tell()
        for first in range(0, len(view), _AT_ONCE):
            size = self._stream.write(view[first : first + _AT_ONCE])
            self._folder.begin_sync(self._stream, start + first, size)

    def truncate(self, size: int) -> int:
        self._keeping(lambda: self._stream.truncate(size))
        return size

    def flush(self) -> None:
        self._keeping(self._stream.flush)

    def _keeping(self, call: Callable[[], Any]) -> None:
        if self.error is None:
            try:
                call()
            except BaseException as error:
                self.error = error


def _described(position: int, name: str, array: Any, rows: Rows | None, whole: tuple[int, ...]) -> dict[str, Any]:
    """Return what the manifest has to say of a piece, besides its CRC-32."""
    piece = {
        "name": name,
        "dataset": str(position),
        "dtype": name_of(array.dtype),
        "shape": list(array.shape),
        "whole": list(whole),
        "offset": [0] * array.ndim if rows is None else [rows.first, *[0] * (array.ndim - 1)],
    }
    return piece if rows is None or rows.step == 1 else {**piece, "step": rows.step}


def _parts(tensors: Mapping[str, Any] | Sequence[Part]) -> Iterator[tuple[str, Any, Rows | None, tuple[int, ...]]]:
    """Yield each dataset's name, array, rows of the whole that it has (None for all), and the whole's shape."""
    if isinstance(tensors, Mapping):
        for name, value in tensors.items():
            array = np.asarray(value)
            yield name, array, None, array.shape
    else:
        for part in tensors:
            array = np.asarray(part.value)
            yield (
                part.name,
                array,
                part.rows,
                array.shape if part.rows is None else (part.rows_of_all, *array.shape[1:]),
            )


def write_manifest(folder: Place, shards: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> None:
    """Write the manifest: from now on the folder is a checkpoint.

    Args:
        folder: of the checkpoint.
        shards: what `write_shard` gave, in turn.
        more: what else it is to say.

    Raises:
        FileNotFoundError: a shard is not here, as in a folder that tasks do not share.
        ValueError: two shards have a tensor of the same name, or not all pieces of one are there.
    """
    folder = folder_of(folder)
    tensors: dict[str, Any] = {}
    for number, shard in enumerate(shards):
        if folder.size(shard["file"]) != shard["size"]:
            raise FileNotFoundError(
                f"A task has written {shard['file']!r} ({shard['size']:,} bytes), but it is not in {str(folder)!r} "
                "here. Save to a folder that all tasks share, under the same path."
            )
        for found in shard["pieces"]:
            entry = tensors.setdefault(found["name"], {"shape": found["whole"], "dtype": found["dtype"], "pieces": []})
            kept = ("dataset", "crc32", "offset", "shape", "step")
            entry["pieces"].append({"shard": number, **{key: found[key] for key in kept if key in found}})
            if found["whole"] != entry["shape"] or found["dtype"] != entry["dtype"]:
                raise ValueError(f"{_two(folder, found['name'])} The second is {found['dtype']}{found['whole']}.")
    for name, entry in tensors.items():
        _check_whole(folder, name, entry)
    in_turn = any("step" in piece for entry in tensors.values() for piece in entry["pieces"])
    document = {
        "format": FORMAT,
        "version": _OF_ROWS_IN_TURN if in_turn else 1,
        "shards": [{"file": shard["file"], "size": shard["size"]} for shard in shards],
        "tensors": tensors,
        **more,
    }
    document["crc32"] = _crc32_of_json(document)
    with folder.writing(MANIFEST) as stream:
        stream.write(json.dumps(document, indent=1).encode())
    named = {shard["file"] for shard in shards}
    for name in folder.names():
        if _is_shard(name) and name not in named:  # of what was saved here before
            with contextlib.suppress(OSError):
                folder.remove_file(name)


def _is_shard(name: str) -> bool:
    return name.startswith("shard-") and name.endswith(".h5")


def _two(folder: Folder, name: str) -> str:
    return f"Two shards of {str(folder)!r} have a tensor {name!r}. Give each another name."


def _check_whole(folder: Folder, name: str, entry: Mapping[str, Any]) -> None:
    """Check that the pieces of a tensor make the whole, and each row once."""
    if len(entry["pieces"]) == 1 and entry["pieces"][0]["shape"] == entry["shape"]:
        return
    rows = np.zeros(entry["shape"][0] if entry["shape"] else 1, "int64")
    for piece in entry["pieces"]:
        rows[_rows_of(piece["offset"], piece["shape"], piece.get("step", 1)) if piece["shape"] else 0] += 1
    if (rows > 1).any():
        raise ValueError(_two(folder, name))
    if (rows == 0).any():
        raise ValueError(
            f"Tensor {name!r} of {str(folder)!r} lacks {int((rows == 0).sum())} of its {len(rows)} rows: save all of "
            "its shards."
        )


def _rows_of(offset: Sequence[int], shape: Sequence[int], step: int) -> slice:
    return slice(offset[0], offset[0] + shape[0] * step, step)


def _crc32_of_json(document: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())


def _stored(array: Any) -> Any:
    """Return an array as HDF5 has it."""
    if array.dtype.kind in _NATIVE:
        return array
    if array.dtype.kind == "T":
        return array.astype(_h5py().string_dtype("utf-8"))
    return array.view(f"u{array.dtype.itemsize}")  # such as bfloat16


def _crc32(array: Any) -> int:
    if array.dtype.kind == "T":
        texts: list[str] = array.ravel().tolist()
        return zlib.crc32("\0".join(texts).encode())
    flat: Any = np.ascontiguousarray(array).reshape(-1).view("uint8")
    return zlib.crc32(flat)


# --- reading --------------------------------------------------------------------------------------------------------


class CheckpointReader(Mapping[str, Any]):
    """The tensors of a checkpoint: a mapping of names to arrays, each read when it is asked for.

    Args:
        path: the folder, or its URL.

    Raises:
        FileNotFoundError: the folder is not a checkpoint, or a shard is missing.
        DataLossError: the manifest or a shard is damaged.

    Attributes:
        manifest: all that the manifest says.

    >>> import anabranch as ab
    >>> ab.io.save("values", ["w", "b"], [[[1.0, 2.0]], [0.5]])
    >>> reader = ab.io.CheckpointReader("values")
    >>> sorted(reader), reader["w"]
    (['b', 'w'], array([[1., 2.]], dtype=float32))
    """

    def __init__(self, path: Place) -> None:
        self.path = folder_of(path)
        self.manifest = _read_manifest(self.path)
        self._entries = _entries(self.path, self.manifest)
        self._files = _shards(self.path, self.manifest)
        self._size = sum(size for _, size in self._files)
        for file, size in self._files:
            found = self.path.size(file)
            if found is None:
                raise FileNotFoundError(f"The checkpoint {str(self.path)!r} lacks {file!r}. {_AGAIN}")
            if found != size:
                raise DataLossError(
                    f"{self.path.file(file)!r} has {found:,} bytes, and had {size:,} when the checkpoint was saved. "
                    f"{_AGAIN}"
                )

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def tensors(self) -> Mapping[str, Any]:
        """Return the mapping of names to arrays: the reader itself.

        >>> import anabranch as ab
        >>> ab.io.save("of one", ["w"], [[1.0, 2.0]])
        >>> dict(ab.io.checkpoint_reader("of one").tensors())
        {'w': array([1., 2.], dtype=float32)}
        """
        return self

    def entry(self, name: str) -> Entry:
        """Return the shape, the dtype and the pieces of a tensor.

        Raises:
            KeyError: there is no such tensor; the message has names that are alike.
        """
        found = self._entries.get(name)
        if found is None:
            import difflib

            near = difflib.get_close_matches(name, self._entries, 3, 0.5) or list(self._entries)[:3]
            raise KeyError(f"The checkpoint {str(self.path)!r} has no tensor {name!r}. It has {near}, among others.")
        return found

    def __getitem__(self, name: str) -> Any:
        entry = self.entry(name)
        if entry.shape:
            return self.rows(name, Rows(0, entry.shape[0]))
        return self._piece(name, entry.pieces[0], self._checked(name, entry))

    def rows(self, name: str, rows: Rows) -> Any:
        """Return some rows of a tensor. Pieces that have none of them are not read.

        Raises:
            KeyError: there is no such tensor. DataLossError: what is needed of it is damaged.
        """
        entry = self.entry(name)
        dtype = self._checked(name, entry)
        found: Any = np.empty((len(rows), *entry.shape[1:]), string if dtype.kind == "T" else dtype)
        places = np.arange(rows.first, rows.stop, rows.step)
        for piece in entry.pieces:
            local, offset = np.divmod(places - piece.offset[0], piece.step)
            mine = (offset == 0) & (local >= 0) & (local < piece.shape[0])
            if not mine.any() and len(rows):
                continue
            part = self._piece(name, piece, dtype)
            columns = [slice(at, at + length) for at, length in zip(piece.offset[1:], piece.shape[1:], strict=True)]
            if rows == Rows(0, entry.shape[0]):
                found[(_rows_of(piece.offset, piece.shape, piece.step), *columns)] = part
            else:
                found[(mine, *columns)] = part[local[mine]]
        return found

    def _piece(self, name: str, piece: Piece, dtype: Any) -> Any:
        """Return a piece of a tensor, if it is what was saved."""
        file, _ = self._files[piece.shard]
        try:
            with self.path.opened(file) as stream, _h5py().File(stream, "r") as opened:
                part = _read(opened[piece.dataset], dtype)
            if part.shape != piece.shape or _crc32(part) != piece.crc32:
                raise OSError("what is there is not what was saved")
        except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise DataLossError(
                f"Tensor {name!r} can't be read from {self.path.file(file)!r}: {error}. {_AGAIN}"
            ) from error
        return part

    def _checked(self, name: str, entry: Entry) -> Any:
        """Return the dtype that a tensor was saved in, of which all is there that the manifest says.

        Raises:
            DataLossError: its pieces are not the whole of it, or the files are too small to hold it.
        """
        try:
            dtype = as_dtype(entry.dtype)
        except (TypeError, ValueError) as error:
            raise DataLossError(f"Tensor {name!r} of {str(self.path)!r}: {error}. {_AGAIN}") from None
        count = math.prod(entry.shape)
        is_whole = sum(math.prod(piece.shape) for piece in entry.pieces) == count and min(entry.shape, default=0) >= 0
        is_whole = is_whole and all(
            0 <= piece.shard < len(self._files)
            and len(piece.offset) == len(piece.shape) == len(entry.shape)
            and piece.step >= 1
            and all(
                0 <= at <= end <= most for at, end, most in zip(piece.offset, _ends(piece), entry.shape, strict=True)
            )
            for piece in entry.pieces
        )
        # Strings take some bytes each, whatever they are.
        if not is_whole or count * (1 if dtype.kind == "T" else dtype.itemsize) > self._size:
            raise DataLossError(
                f"Tensor {name!r} of {str(self.path)!r} has shape {list(entry.shape)}, and its pieces are not the "
                f"whole of it. {_AGAIN}"
            )
        return dtype


def _ends(piece: Piece) -> list[int]:
    """Return where a piece ends in the whole, along each axis."""
    ends = [at + length for at, length in zip(piece.offset, piece.shape, strict=True)]
    if ends and piece.shape[0] > 0:
        ends[0] = piece.offset[0] + (piece.shape[0] - 1) * piece.step + 1
    return ends


_AGAIN = "Take another checkpoint, or save it again."


def is_checkpoint(path: Place) -> bool:
    """Test whether a folder holds a checkpoint that was written to its end."""
    return folder_of(path).size(MANIFEST) is not None


def is_leftover(path: Place) -> bool:
    """Test whether a folder holds nothing but what a save has left that did not come to its end."""
    if is_checkpoint(path):
        return False
    names = folder_of(path).names()
    return all(is_temporary(name) or _is_shard(name) for name in names)


def _read(dataset: Any, dtype: Any) -> Any:
    if dtype.kind == "T":
        return np.asarray(dataset.asstr()[()], string)
    array = np.asarray(dataset[()])
    return array if array.dtype == dtype else array.view(dtype)


def _read_manifest(path: Folder) -> dict[str, Any]:
    if not is_checkpoint(path):
        steps = [name for name in path.folders("step-") if is_checkpoint(path / name)]
        if steps:
            last = str(path / max(steps, key=lambda name: (len(name), name)))
            raise FileNotFoundError(
                f"{str(path)!r} is a folder of checkpoints, not a checkpoint. Give one of them, such as {last!r}."
            )
        what = "a checkpoint that was not written to its end" if path.exists() else "no folder"
        raise FileNotFoundError(f"{str(path)!r} is {what}: there is no {MANIFEST}. Take another one.")
    try:
        found: Any = json.loads(path.read(MANIFEST))
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r}")
        if found.pop("crc32") != _crc32_of_json(found):
            raise ValueError("what is there is not what was saved")
        version = int(found.get("version", 0))
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise DataLossError(f"{path.file(MANIFEST)!r} is damaged: {error}. {_AGAIN}") from error
    if version > VERSION:
        raise DataLossError(
            f"{str(path)!r} is of version {version} of the format; this is anabranch with version {VERSION}. "
            "Read it with a newer anabranch."
        )
    return found


def _shards(path: Folder, manifest: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the names of the files of a checkpoint, and their sizes."""
    try:
        found = [(str(shard["file"]), int(shard["size"])) for shard in manifest["shards"]]
        outside = [name for name, _ in found if not is_name(name)]
        if outside:
            raise ValueError(f"{outside[0]!r} is not in this folder")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DataLossError(f"{path.file(MANIFEST)!r} is damaged: {error!r}. {_AGAIN}") from error
    return found


def _entries(path: Folder, manifest: Mapping[str, Any]) -> dict[str, Entry]:
    try:
        return {
            name: Entry(
                tuple(map(int, entry["shape"])),
                str(entry["dtype"]),
                [
                    Piece(
                        int(piece["shard"]),
                        str(piece["dataset"]),
                        tuple(map(int, piece["offset"])),
                        tuple(map(int, piece["shape"])),
                        int(piece["crc32"]),
                        int(piece.get("step", 1)),
                    )
                    for piece in entry["pieces"]
                ],
            )
            for name, entry in manifest["tensors"].items()
        }
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DataLossError(f"{path.file(MANIFEST)!r} is damaged: {error!r}. {_AGAIN}") from error


__all__ = ["CheckpointReader", "Part", "is_checkpoint", "is_leftover", "write_manifest", "write_shard"]
