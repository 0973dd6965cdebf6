"""The files of runs of training: nested dicts and lists of numbers, texts and arrays, as checkpoints and as texts."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...engine.checkpoint.files import MANIFEST, CheckpointReader, is_checkpoint, write_manifest, write_shard
from ...engine.checkpoint.folders import Folder
from ...engine.common.atomic import atomic_write, is_temporary
from ...engine.common.dtypes import as_dtype
from ...engine.queues.errors import DataLossError
from ..structures import Array
from .archive import SavedFileError, check_readable, damaged

State = dict[str, Any]

_STATE = "state.json"
_OF_SHARDS = "biufcVT"  # kinds of dtypes that a shard of a checkpoint keeps as they are
_MARK = "backup-of-a-run"  # an empty file


def write_state(path: Path, state: State) -> None:
    """Write nested dicts and lists of numbers, texts and arrays to one file, all or nothing."""
    with atomic_write(path) as stream:
        _write(stream, state)


def _write(stream: IO[bytes], state: State) -> None:
    arrays: dict[str, Any] = {}
    text = json.dumps(_encoded(state, arrays))
    arrays = {_STATE: np.frombuffer(text.encode(), "uint8"), **arrays}
    np.savez(stream, **arrays)


def write_backup(folder: Folder, state: State, step: int) -> None:
    """Write nested dicts and lists of numbers, texts and arrays as a checkpoint.

    The arrays are in the shard, all else in the manifest.

    Raises:
        OSError: it can't be written; then there is no checkpoint.
    """
    arrays: dict[str, Array] = {}
    run = _encoded(state, arrays, "")
    if folder.exists():
        remove_backup(folder)
    folder.make()
    with folder.writing(_MARK):  # says whose folder it is while it has no manifest
        pass
    write_manifest(folder, [write_shard(folder, 0, 1, arrays)], {"step": step, "time": time.time(), "run": run})


def remove_backup(folder: Folder) -> None:
    """Remove a backup, or a part of one: the manifest first and the mark last, so that what is left is known by it."""
    with contextlib.suppress(FileNotFoundError):
        folder.remove_file(MANIFEST)
    folder.sync()  # else the manifest may come back, after a power failure, and other files not
    for name in folder.names():
        if name != _MARK:
            with contextlib.suppress(OSError):  # what can't be removed as a file goes with the folder
                folder.remove_file(name)
    folder.remove(_MARK)


def is_unfinished(folder: Folder) -> bool:
    """Test whether a folder has a part of a checkpoint of a run, whose process ended while it wrote or removed it."""
    if is_checkpoint(folder):
        return False
    names = folder.names()
    return _MARK in names or all(name.startswith(f".{_MARK}.") and is_temporary(name) for name in names)


def is_backup(folder: Folder) -> bool:
    """Test whether a checkpoint is that of a run, or one that can't be read."""
    try:
        return "run" in json.loads(folder.read(MANIFEST))
    except ValueError:
        return True
    except FileNotFoundError:  # another process has removed it
        return False


def read_backup(folder: Folder) -> State:
    """Read what `write_backup` wrote.

    Raises:
        SavedFileError: the checkpoint is damaged, or of another kind.
        FileNotFoundError: there is no backup.
    """
    try:
        reader = CheckpointReader(folder)
        if "run" not in reader.manifest:
            raise SavedFileError(
                f"{str(folder)!r} is a checkpoint of variables alone, and BackupAndRestore needs one of its own. Give "
                "it another folder."
            )
        return _decoded(reader.manifest["run"], reader)
    except DataLossError as error:
        raise SavedFileError(f"{str(folder)!r} is damaged or cut short: {error}") from error


def state_as_text(state: State) -> str:
    """Write nested dicts and lists of numbers, texts and arrays as one text."""
    stream = io.BytesIO()
    _write(stream, state)
    return base64.b64encode(stream.getvalue()).decode("ascii")


def state_of_text(text: str) -> State:
    """Return the state of which `state_as_text` made a text."""
    return _read(io.BytesIO(base64.b64decode(text)))


def read_state(path: Path) -> State:
    """Read what `write_state` wrote.

    Raises:
        SavedFileError: the file is damaged, or of another kind.
        FileNotFoundError: there is no such file.
    """
    check_readable(path)
    try:
        return _read(path)
    except Exception as error:  # zipfile, json and NumPy raise a dozen types on damaged files
        raise damaged(path, str(error)) from error


def _read(source: Path | IO[bytes]) -> State:
    with np.load(source, allow_pickle=False) as file:
        return _decoded(json.loads(file[_STATE].tobytes().decode()), file)


def _encoded(value: object, arrays: dict[str, Array], path: str | None = None) -> object:
    """Write a state as JSON, and its arrays apart.

    Args:
        value: the state.
        arrays: takes the arrays by name.
        path: where in the state the value is, if arrays are named so.
    """

    def below(key: object) -> str | None:
        return None if path is None else f"{path}/{key}".lstrip("/")

    if isinstance(value, dict):
        return {str(key): _encoded(item, arrays, below(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(item, arrays, below(position)) for position, item in enumerate(value)]
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    array = np.asarray(value)
    name = path or f"array{len(arrays)}"
    while name in arrays:
        name += "'"
    # Types that NumPy does not have, such as bfloat16, are written as bytes, or those that shards do not have.
    is_kept = array.dtype.isbuiltin == 1 if path is None else array.dtype.kind in _OF_SHARDS
    arrays[name] = array if is_kept else np.frombuffer(array.tobytes(), "uint8")
    return {"__array__": name, "dtype": array.dtype.name, "shape": list(array.shape)}


def _decoded(value: object, arrays: Mapping[str, Array]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if "__array__" not in value:
        return {key: _decoded(item, arrays) for key, item in value.items()}
    array, dtype = arrays[value["__array__"]], as_dtype(value["dtype"])
    return array if array.dtype == dtype else np.frombuffer(array.tobytes(), dtype).reshape(value["shape"])
