"""`tf.io.gfile`: files and folders of this machine by TensorFlow's names."""

from __future__ import annotations

import glob as patterns
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Literal, TextIO, TypeAlias, overload

if TYPE_CHECKING:
    from os import stat_result

PathLike: TypeAlias = "str | bytes | os.PathLike[str]"
"""A path; as bytes in UTF-8."""


def _local(path: PathLike) -> str:
    """Return a path as text.

    Raises:
        ValueError: it names another machine.
    """
    text = os.fsdecode(path)
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        raise ValueError(
            f"tf.io.gfile reads and writes files of this machine, got {text!r}. Mount what {scheme}:// holds, or copy "
            "it."
        )
    return rest if separator else text


@overload
def GFile(name: PathLike, mode: Literal["r", "w", "a", "x", "r+", "w+", "a+"] = "r") -> TextIO: ...
@overload
def GFile(name: PathLike, mode: str) -> BinaryIO: ...
def GFile(name: PathLike, mode: str = "r") -> IO[str] | IO[bytes]:  # noqa: N802 - TensorFlow's name
    """Open a file (`open`); text is in UTF-8."""
    path = _local(name)
    return Path(path).open(mode) if "b" in mode else Path(path).open(mode, encoding="utf-8")


def copy(src: PathLike, dst: PathLike, overwrite: bool = False) -> None:
    """Copy a file.

    Raises:
        FileExistsError: there is a file at `dst`, which is not to be overwritten.
    """
    target = _target(dst, overwrite, "copy")
    shutil.copyfile(_local(src), target)


def rename(src: PathLike, dst: PathLike, overwrite: bool = False) -> None:
    """Give a file or folder another name.

    Raises:
        FileExistsError: there is a file at `dst`, which is not to be overwritten.
    """
    target = _target(dst, overwrite, "rename")
    Path(_local(src)).replace(target)


def _target(path: PathLike, overwrite: bool, what: str) -> Path:
    target = Path(_local(path))
    if target.exists() and not overwrite:
        raise FileExistsError(f"tf.io.gfile.{what}: {str(target)!r} exists. Pass overwrite=True to replace it.")
    return target


def exists(path: PathLike) -> bool:
    """Test whether there is a file or folder."""
    return Path(_local(path)).exists()


def isdir(path: PathLike) -> bool:
    """Test whether a path is that of a folder."""
    return Path(_local(path)).is_dir()


def join(path: PathLike, *paths: PathLike) -> str:
    """Join parts of a path by slashes; what comes before one that starts with a slash is dropped."""
    return os.path.join(os.fsdecode(path), *map(os.fsdecode, paths))


def glob(pattern: PathLike | Sequence[PathLike]) -> list[str]:
    """Return the files that match a pattern, or one of several, in order."""
    several = [pattern] if isinstance(pattern, (str, bytes, os.PathLike)) else pattern
    return sorted({path for each in several for path in patterns.glob(_local(each))})


def listdir(path: PathLike) -> list[str]:
    """Return the names of what is in a folder, in order."""
    return sorted(item.name for item in Path(_local(path)).iterdir())


def makedirs(path: PathLike) -> None:
    """Make a folder and those around it; one that is there is left."""
    Path(_local(path)).mkdir(parents=True, exist_ok=True)


def mkdir(path: PathLike) -> None:
    """Make a folder.

    Raises:
        FileExistsError: it is there.
        FileNotFoundError: the one around it is not.
    """
    Path(_local(path)).mkdir()


def remove(path: PathLike) -> None:
    """Remove a file."""
    Path(_local(path)).unlink()


def rmtree(path: PathLike) -> None:
    """Remove a folder and all in it."""
    shutil.rmtree(_local(path))


def stat(path: PathLike) -> stat_result:
    """Return what is known of a file: `st_size` in bytes, `st_mtime` in seconds since 1970, and more."""
    return Path(_local(path)).stat()


def walk(top: PathLike, topdown: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield path, folders and files of each folder in `top`, itself included."""
    return os.walk(_local(top), topdown)


def get_registered_schemes() -> list[str]:
    """Return the schemes of paths: of this machine's files alone."""
    return ["", "file"]


__all__ = [
    "GFile",
    "copy",
    "exists",
    "get_registered_schemes",
    "glob",
    "isdir",
    "join",
    "listdir",
    "makedirs",
    "mkdir",
    "remove",
    "rename",
    "rmtree",
    "stat",
    "walk",
]
