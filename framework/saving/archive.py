"""Files as a whole: written so that a crash leaves the old one, and the zip that a ``.keras`` file is."""

from __future__ import annotations

import datetime
import io
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, BinaryIO

from ... import __version__
from ...engine.common.atomic import atomic_write as atomic_write
from ...engine.common.quick_dataclass import dataclass

METADATA = "metadata.json"
CONFIG = "config.json"
WEIGHTS = "model.weights.h5"
ASSETS = "assets/"
# The version of Keras whose format is written: the one that the golden files come from.
KERAS_VERSION = "3.15.1"

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_ZIP_SIGNATURE = b"PK\x03\x04"
# Members that unpack to more than both are a bomb, not a model: Keras stores, and weights hardly compress.
_BOMB_BYTES = 1 << 28
_BOMB_RATIO = 100
SLACK = 1 << 25  # the bytes that what is unpacked, or declared, may have beyond the file that nobody said is trusted

SAVE_AGAIN = "Restore it from a backup, or save it again."


class SavedFileError(ValueError):
    """A saved file can't be used: it is damaged, of another kind, or does not fit the model.

    Files are checked as a whole before anything is taken from them, so the model is as it was. The message names the
    file, what is wrong with it, and what to do.

    >>> import anabranch as ab
    >>> with open("empty.keras", "wb"):
    ...     pass
    >>> try:
    ...     ab.saving.load_model("empty.keras")
    ... except ab.saving.SavedFileError as error:
    ...     print(error)
    'empty.keras' is empty. Restore it from a backup, or save it again.
    """


@dataclass(frozen=True)
class Archive:
    """The contents of a ``.keras`` file, checked against its checksums."""

    config: dict[str, Any]
    weights: BinaryIO
    assets: dict[str, bytes] = field(default_factory=dict)
    keras_version: str = ""  # of the Keras that wrote it, or whose format it is
    own_version: str = ""  # of the anabranch that wrote it, if one did


def check_overwrite(path: Path, overwrite: bool) -> None:
    """Refuse to replace a file unless asked to."""
    if not overwrite and path.exists():
        raise FileExistsError(f"{str(path)!r} exists already. Pass overwrite=True to replace it, or give another name.")


def check_readable(path: Path) -> None:
    """Say what is there instead of a file.

    Raises:
        FileNotFoundError: there is no such file.
        IsADirectoryError: it is a folder.
    """
    if path.is_dir():
        raise IsADirectoryError(
            f"{str(path)!r} is a folder, not a file. Give the name of a saved file; what was exported is loaded by "
            "ab.serving.load."
        )
    if not path.exists():
        raise FileNotFoundError(f"There is no file {str(path)!r} (looked in {str(Path.cwd())!r}). Check the name.")


def write_archive(
    stream: BinaryIO,
    config: Mapping[str, object],
    weights: bytes,
    version: str,
    assets: Mapping[str, bytes] | None = None,
) -> None:
    """Write a ``.keras`` file: a zip whose members are stored uncompressed.

    Args:
        stream: where to.
        config: the serialised model.
        weights: the content of ``model.weights.h5``.
        version: anabranch's version, for the record.
        assets: files that layers keep, by their place below ``assets``.
    """
    metadata = {
        "keras_version": KERAS_VERSION,
        "date_saved": datetime.datetime.now().strftime("%Y-%m-%d@%H:%M:%S"),
        "anabranch_version": version,
    }
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(METADATA, json.dumps(metadata))
        archive.writestr(CONFIG, to_json(config))
        archive.writestr(WEIGHTS, weights)
        for place, content in (assets or {}).items():
            archive.writestr(ASSETS + place, content)


def to_json(config: Mapping[str, object]) -> str:
    """Return the config as JSON.

    Raises:
        ValueError: some value is not JSON; the message gives its place.
    """
    try:
        return json.dumps(config)
    except (TypeError, ValueError) as error:
        place, value = _first_unfit(config, "", frozenset())
        raise ValueError(
            f"The model can't be saved: its config holds {value!r} ({type(value).__name__}) at {place}, which JSON "
            "can't express. Let get_config() of that class return numbers, strings, lists and dicts, or objects that "
            "are registered with register_keras_serializable."
        ) from error


def _first_unfit(value: object, place: str, above: frozenset[int]) -> tuple[str, object]:
    """Return the place and value of the first part of a config that JSON can't express; an empty place if none."""
    if isinstance(value, (str, int, float)) or value is None:
        return "", None
    if not isinstance(value, (dict, list, tuple)) or id(value) in above:
        return place or "its top", value
    for key, child in _children(value):
        inner = f"{place}.{key}" if place else str(key)
        if not isinstance(key, (str, int, float)) and key is not None:
            return inner, key
        found, unfit = _first_unfit(child, inner, above | {id(value)})
        if found:
            return found, unfit
    return "", None


def _children(value: dict[object, object] | list[object] | tuple[object, ...]) -> list[tuple[object, object]]:
    """Return the children of a container by key, where layers in a list go by their names."""
    if isinstance(value, dict):
        return list(value.items())
    return [(_name_in_config(child) or index, child) for index, child in enumerate(value)]


def _name_in_config(child: object) -> str | None:
    config = child.get("config") if isinstance(child, dict) else None
    return config.get("name") if isinstance(config, dict) else None


def is_hdf5(path: Path) -> bool:
    """Test whether a file is HDF5 inside, as what Keras 2.12 saved to ``.keras`` files is."""
    check_readable(path)
    with open(path, "rb") as stream:
        return stream.read(len(_HDF5_SIGNATURE)) == _HDF5_SIGNATURE


def read_archive(path: Path, is_trusted: bool = True) -> Archive:
    """Read a ``.keras`` file and check every byte that is used.

    Args:
        path: the file.
        is_trusted: whether members may be compressed to a small part of what they unpack to.

    Raises:
        SavedFileError: it is not such a file, or damaged.
        OSError: it can't be opened.
    """
    check_readable(path)
    with open(path, "rb") as stream:
        return read_archive_stream(stream, path, is_trusted)


def read_archive_stream(stream: BinaryIO, path: Path, is_trusted: bool) -> Archive:
    """Read an open ``.keras`` file; see `read_archive`. `path` is for messages."""
    _check_signature(path, stream)
    try:
        with zipfile.ZipFile(stream) as archive:
            _check_sizes(path, stream.seek(0, io.SEEK_END), archive, is_trusted)
            config, weights = (_member(path, archive, name) for name in (CONFIG, WEIGHTS))
            assets = {
                name.removeprefix(ASSETS): _member(path, archive, name)
                for name in archive.namelist()
                if name.startswith(ASSETS) and not name.endswith("/")
            }
            metadata = _member(path, archive, METADATA) if METADATA in archive.namelist() else b"{}"
        found = json.loads(metadata)
        versions = [str(found.get(key, "")) for key in ("keras_version", "anabranch_version")]
        return Archive(_parse(path, config), io.BytesIO(weights), assets, *versions)
    except SavedFileError:
        raise
    except Exception as error:
        # On damaged files zipfile raises BadZipFile, struct.error, zlib.error, OSError, RuntimeError and more.
        raise damaged(path, f"{error}") from error


def later_version(archive: Archive) -> str:
    """Return a remark for errors about a file that a later version wrote, which may be why it can't be read.

    Returns:
        A sentence with a space in front; nothing for other files.
    """
    if _numbers(archive.own_version) > _numbers(__version__):
        return (
            f" The file was written by anabranch {archive.own_version}, and this is {__version__}: "
            "`pip install --upgrade anabranch` may mend it."
        )
    if _numbers(archive.keras_version)[:2] > _numbers(KERAS_VERSION)[:2]:
        return f" The file was written by Keras {archive.keras_version}; formats up to {KERAS_VERSION} are known here."
    return ""


def _numbers(version: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d{1,9}", version)[:3]]


def damaged(path: Path, what: str) -> SavedFileError:
    """Return the error for a file whose bytes are not what was written."""
    return SavedFileError(f"{str(path)!r} is damaged or cut short: {what}. {SAVE_AGAIN}")


def _check_signature(path: Path, stream: BinaryIO) -> None:
    start = stream.read(64)
    stream.seek(0)
    if start.startswith(_ZIP_SIGNATURE):
        return
    if not start:
        raise SavedFileError(f"{str(path)!r} is empty. {SAVE_AGAIN}")
    if start.startswith(b"version https://git-lfs"):
        raise SavedFileError(f"{str(path)!r} is a Git LFS pointer, not the file itself. Run `git lfs pull`.")
    raise damaged(path, f"it is not a zip archive (it starts with {start[:8]!r})")


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a member's bytes; zipfile compares them with their CRC-32."""
    names = archive.namelist()
    if name not in names:
        listing = ", ".join(names[:8]) or "nothing"
        if f"{name[:-2]}npz" in names:
            raise SavedFileError(
                f"{str(path)!r} keeps its weights as .npz, which needs pickle to read and is refused. "
                "Save it again with Keras's default weights format."
            )
        raise SavedFileError(
            f"{str(path)!r} is damaged or no saved model: it has no member {name!r}, but {listing}. {SAVE_AGAIN}"
        )
    return archive.read(name)


def _check_sizes(path: Path, packed: int, archive: zipfile.ZipFile, is_trusted: bool) -> None:
    """Refuse a file whose members would unpack to far more than its bytes, before any is unpacked."""
    unpacked = sum(info.file_size for info in archive.infolist())
    if unpacked > max(_BOMB_BYTES, _BOMB_RATIO * packed):
        raise SavedFileError(
            f"{str(path)!r} would unpack {packed:,} bytes to {unpacked:,}; that is no model. {SAVE_AGAIN}"
        )
    if not is_trusted and unpacked > packed + SLACK:
        raise SavedFileError(
            f"{str(path)!r} would unpack {packed:,} bytes to {unpacked:,}, where models are stored as they are. "
            "If you trust the file, pass safe_mode=False."
        )


def _parse(path: Path, content: bytes) -> dict[str, object]:
    config = json.loads(content)
    if not isinstance(config, dict) or "class_name" not in config:
        raise SavedFileError(f"{str(path)!r}: {CONFIG} describes no model. {SAVE_AGAIN}")
    return config
