"""Folders of checkpoints: on the disk, or elsewhere by a URL, which fsspec reads and writes.

A file for elsewhere is written to a temporary file first and sent when it is whole: stores of objects show a file when
all of it is there. Where one does not, a checkpoint without its last file, the manifest, is none.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ..common.atomic import DISK, Disk, atomic_write


class Folder:
    """A folder on the disk.

    Args:
        path: of the folder.
        disk: does what this asks of the system.
    """

    def __init__(self, path: str | os.PathLike[str], disk: Disk = DISK) -> None:
        self.path = Path(path)
        self._disk = disk

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.path / name, self._disk)

    def absolute(self) -> str:
        """Return the folder's name for other processes."""
        return str(self._disk.real_path(self.path))

    def file(self, name: str) -> str:
        """Return the name of a file in the folder."""
        return str(self.path / name)

    def make(self) -> None:
        """Make the folder, and those around it, where there are none. Afterwards they are on the disk."""
        missing: list[Path] = []
        path = self.path
        while not self._disk.is_folder(path) and path != path.parent:
            missing.append(path)
            path = path.parent
        self._disk.sync_folder(path.parent)  # whoever has made the folder that is there may not have come to that
        for path in reversed(missing):
            self._disk.make_folder(path)
            self._disk.sync_folder(path.parent)

    def sync(self) -> None:
        """Write the names of its files to the disk: who made them may have been killed before that."""
        self._disk.sync_folder(self.path)

    def exists(self) -> bool:
        """Test whether there is such a folder."""
        return self._disk.is_folder(self.path)

    def folders(self, beginning: str) -> list[str]:
        """Return the names of the folders inside that begin with `beginning`."""
        names = [name for name in self.names() if name.startswith(beginning)]
        return [name for name in names if self._disk.is_folder(self.path / name)]

    def names(self) -> list[str]:
        """Return the names of what is inside; none if there is no such folder."""
        try:
            return self._disk.names(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None if there is none."""
        return self._disk.size(self.path / name)

    def read(self, name: str) -> bytes:
        """Return what is in a file."""
        return self._disk.read(self.path / name)

    @contextmanager
    def opened(self, name: str) -> Generator[Any]:
        """Yield a file for h5py to read: of it alone what is needed."""
        yield self._disk.readable(self.path / name)

    @contextmanager
    def writing(self, name: str, final: Callable[[], str] | None = None) -> Generator[BinaryIO]:
        """Yield a stream that becomes a file when the block ends, and nothing at all when it fails.

        Args:
            name: of the file.
            final: gives its name when all is written, where that depends on what it is.
        """
        with atomic_write(self.path / name, self._disk, final) as stream:
            yield stream

    def begin_sync(self, stream: BinaryIO, first: int, size: int) -> None:
        """Have bytes of a stream of `writing` go to the disk while others are written."""
        self._disk.begin_sync(stream, first, size)

    def remove_file(self, name: str) -> None:
        """Remove a file."""
        self._disk.remove(self.path / name)

    def remove(self, first: str) -> None:
        """Remove the folder, and the file `first` before all others."""
        if self.exists():
            self._disk.remove(self.path / first)
            self._disk.sync_folder(self.path)  # else that file may come back, after a power failure, and others not
            self._disk.remove_folder(self.path)


class RemoteFolder(Folder):
    """A folder elsewhere.

    Args:
        url: such as ``s3://bucket/run``.

    Raises:
        ModuleNotFoundError: fsspec, or what it needs for this kind of URL, is not installed.
        ValueError: there is no such kind of URL.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        try:
            self._store, self._root = importlib.import_module("fsspec").core.url_to_fs(self._url)
        except ModuleNotFoundError as error:
            if error.name != "fsspec":
                raise
            raise ModuleNotFoundError(
                f"The checkpoint folder {url!r} needs the package fsspec, which is not installed: "
                "pip install 'anabranch[remote]'.",
                name="fsspec",
            ) from error
        self._root = self._root.rstrip("/")

    def __str__(self) -> str:
        return self._url

    def __truediv__(self, name: str) -> Folder:
        return RemoteFolder(f"{self._url}/{name}")

    def absolute(self) -> str:
        return self._url

    def file(self, name: str) -> str:
        return f"{self._url}/{name}"

    def make(self) -> None:
        self._ask("makedirs", self._root, exist_ok=True)

    def sync(self) -> None:
        """Do nothing: a store of objects shows a file when it is safe."""

    def exists(self) -> bool:
        self._forget()
        return bool(self._ask("isdir", self._root))

    def folders(self, beginning: str) -> list[str]:
        names = [_last(entry["name"]) for entry in self._entries() if entry["type"] == "directory"]
        return [name for name in names if name.startswith(beginning)]

    def names(self) -> list[str]:
        return [_last(entry["name"]) for entry in self._entries()]

    def _entries(self) -> list[dict[str, Any]]:
        self._forget()
        try:
            return self._ask("ls", self._root, detail=True)
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int | None:
        self._forget()
        try:
            found = self._ask("info", f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        return int(found["size"]) if found["type"] == "file" else None

    def read(self, name: str) -> bytes:
        return bytes(self._ask("cat_file", f"{self._root}/{name}"))

    @contextmanager
    def opened(self, name: str) -> Generator[Any]:
        with self._ask("open", f"{self._root}/{name}", "rb") as stream:
            yield stream

    @contextmanager
    def writing(self, name: str, final: Callable[[], str] | None = None) -> Generator[BinaryIO]:
        with tempfile.TemporaryDirectory(prefix="anabranch-") as folder:
            local = Path(folder) / name
            try:
                with local.open("w+b") as stream:
                    yield stream
            except OSError as error:
                error.add_note(
                    f"{self.file(name)!r} is written to {tempfile.gettempdir()!r} before it is sent: make room there, "
                    "or name another folder by TMPDIR."
                )
                raise
            self.make()
            self._ask("put_file", str(local), f"{self._root}/{name if final is None else final()}")

    def begin_sync(self, stream: BinaryIO, first: int, size: int) -> None:
        """Do nothing: it is the file elsewhere that is to last."""

    def remove_file(self, name: str) -> None:
        self._ask("rm_file", f"{self._root}/{name}")

    def remove(self, first: str) -> None:
        if self.exists():
            if self.size(first) is not None:
                self._ask("rm_file", f"{self._root}/{first}")
            if self.exists():  # stores of objects have no empty folders
                self._ask("rm", self._root, recursive=True)

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the store; an error of it names the folder, which those of connections do not."""
        try:
            return getattr(self._store, method)(*arguments, **options)
        except FileNotFoundError:
            raise
        except Exception as error:
            error.add_note(
                f"The store of {self._url!r} failed at {method!r}. Nothing is tried again: save or restore again."
            )
            raise

    def _forget(self) -> None:
        """Take note that others may have changed what is there."""
        self._store.invalidate_cache()


def _last(path: str) -> str:
    """Return the last part of a path in a store."""
    return path.rstrip("/").rpartition("/")[2]


Place = str | os.PathLike[str] | Folder  # a folder, by its path or URL


def is_name(text: str) -> bool:
    """Test whether a text names a file in a folder, and is no path that leads elsewhere."""
    return Path(text).name == text


def folder_of(path: Place) -> Folder:
    """Return the folder of a path, or of a URL such as ``s3://bucket/run`` or ``memory://run``."""
    if isinstance(path, Folder):
        return path
    text = os.fspath(path)
    scheme, separator, rest = text.partition("://")
    if scheme == "file" and separator:
        return Folder(rest)
    return RemoteFolder(text) if separator else Folder(text)


__all__ = ["Folder", "Place", "RemoteFolder", "folder_of", "is_name"]
