"""Arrays in one safetensors file, or in several with an index: models that are too large for one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from ..structures import Array
from .archive import SavedFileError, atomic_write, check_overwrite, check_readable
from .safetensors_files import SafetensorsFile, read_safetensors, write_safetensors

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "": 1}


class ShardedArrays(Mapping[str, Array]):
    """The arrays of several files by name.

    Args:
        index: the file that says which array is where.

    Raises:
        SavedFileError: (a ValueError) the index is damaged, or names a file outside of its folder, or an array that
            is not there.
        FileNotFoundError: a file is missing.
    """

    def __init__(self, index: Path) -> None:
        self.path = index
        check_readable(index)
        try:
            document = json.loads(index.read_text(encoding="utf-8"))
            weight_map = document["weight_map"]
            self._places = {str(name): str(file) for name, file in weight_map.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SavedFileError(f"{str(index)!r} is no index of safetensors files: {error!r}.") from None
        self.files: dict[str, SafetensorsFile] = {}
        for file in sorted(set(self._places.values())):
            if Path(file).name != file or not file.endswith(SUFFIX):
                raise SavedFileError(f"{str(index)!r} names {file!r}, which is no safetensors file of the same folder.")
            self.files[file] = read_safetensors(index.with_name(file))
        for name, file in self._places.items():
            if name not in self.files[file]:
                raise SavedFileError(f"{str(index)!r} says that {name!r} is in {file!r}, where it is not.")

    def __getitem__(self, name: str) -> Array:
        return self.files[self._places[name]][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def open_arrays(path: str | os.PathLike[str]) -> SafetensorsFile | ShardedArrays:
    """Return the arrays of a file, or of the files of an index.

    Args:
        path: a name that ends in ``.safetensors``, of a file or, if there is none, of what an index is beside; or
            that of the index itself.

    Raises:
        SavedFileError: (a ValueError) something is damaged.
        FileNotFoundError: there is neither.
    """
    target = Path(path)
    if target.name.endswith(INDEX_SUFFIX):
        return ShardedArrays(target)
    index = target.with_name(target.name + ".index.json")
    return ShardedArrays(index) if not target.exists() and index.exists() else read_safetensors(target)


def shard_bytes(size: str | float | None) -> int | None:
    """Return the bytes that ``"5GB"`` stands for; a number counts gigabytes, as in Keras; None stays None.

    Raises:
        ValueError: it stands for none.

    >>> shard_bytes("200MB"), shard_bytes(0.5)
    (200000000, 500000000)
    """
    if size is None:
        return None
    found = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]*)\s*", size) if isinstance(size, str) else None
    try:
        if found is not None:
            wanted = int(float(found[1]) * _UNITS[found[2].upper()])
        else:
            wanted = int(float(size) * 10**9)
    except (KeyError, ValueError, TypeError):
        wanted = 0
    if wanted <= 0:
        raise ValueError(
            f"max_shard_size={size!r}: expected a size such as '5GB' or '200MB', or a number of gigabytes."
        )
    return wanted


def write_arrays(
    path: str | os.PathLike[str],
    arrays: Mapping[str, object],
    metadata: Mapping[str, str] | None = None,
    max_shard_size: str | float | None = None,
    overwrite: bool = True,
) -> list[Path]:
    """Write arrays into one file, or into several with an index if they are larger than a shard may be.

    Args:
        path: a name that ends in ``.safetensors``; shards are called ``<stem>-00001-of-00003.safetensors``. An index
            that is there, and the shards that it names, are replaced.
        arrays: by name, in the order in which shards are filled.
        metadata: of each file.
        max_shard_size: see `shard_bytes`.
        overwrite: whether existing files are replaced.

    Returns:
        The files.
    """
    target, most = Path(path), shard_bytes(max_shard_size)
    index_path = target.with_name(target.name + ".index.json")
    check_overwrite(target, overwrite)
    old = _shards_of(index_path, target)
    sizes = {name: np.asarray(array).nbytes for name, array in arrays.items()}
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if most is not None and shards[-1] and filled + size > most:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    if len(shards) == 1:
        write_safetensors(target, arrays, metadata, overwrite)
        index_path.unlink(missing_ok=True)  # it is of the old arrays, as its shards are
        _remove(old)
        return [target]
    stem = target.name.removesuffix(SUFFIX)
    files = [target.with_name(f"{stem}-{n:05}-of-{len(shards):05}{SUFFIX}") for n in range(1, len(shards) + 1)]
    for file, names in zip(files, shards, strict=True):
        write_safetensors(file, {name: arrays[name] for name in names}, metadata, overwrite)
    index = {
        "metadata": {"total_size": sum(sizes.values())},
        "weight_map": {name: file.name for file, names in zip(files, shards, strict=True) for name in names},
    }
    with atomic_write(index_path) as stream:
        stream.write((json.dumps(index, indent=2) + "\n").encode("utf-8"))
    target.unlink(missing_ok=True)  # or the old file would be read rather than the index
    _remove(old - set(files))
    return files


def _shards_of(index: Path, target: Path) -> set[Path]:
    """Return the files that an index names, if these are called as `write_arrays` calls the shards of `target`.

    Others may be somebody's, and what can't be read names none.
    """
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = {str(name) for name in weight_map.values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()
    shard = re.compile(re.escape(target.name.removesuffix(SUFFIX)) + r"-\d{5,}-of-\d{5,}" + re.escape(SUFFIX))
    return {index.with_name(name) for name in names if shard.fullmatch(name)}


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
