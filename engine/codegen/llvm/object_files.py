"""Object code on the disk, by content: which folder and files are trusted, and what goes when it becomes much.

What is read here is run as machine code. So the folder and each file of it belong to the user of this process or to the
superuser, nobody else may write to them, and a file is bound to its name: it can't take another one's place.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import time
import warnings
from dataclasses import replace
from pathlib import Path

from ...common.cached import cached_property
from ...common.machine_profile import machine_profile

MOST_BYTES = 256 << 20  # of all files together
_SHARE = 16  # the folder is looked through whenever this process has written such a share of MOST_BYTES
_SECONDS = 3600  # times of use are exact to an hour; a temporary file that is older was left by a process that is gone
CODE, HOST = ".o", ".host"  # what a file holds: object code, or what LLVM says of the machine
_UNFINISHED = ".tmp"
_REMEDY = "Name a folder of your own with the environment variable ANABRANCH_CACHE_DIR"


class ObjectFiles:
    """A folder with object code, which other processes of the same user read and write at the same time.

    Where there is no such folder, or it can't be trusted, one warning says so, and nothing is kept.

    Args:
        folder: which one; by default `cache_folder`.
        most_bytes: of all files together; beyond it those go that were not used for longest.
    """

    def __init__(self, folder: Path | None = None, most_bytes: int = MOST_BYTES) -> None:
        self._asked = folder
        self._most_bytes = most_bytes
        # Bytes that were written since the folder was looked through. Most processes write little, and to look through
        # thousands of files takes longer than to compile a kernel. Each process begins at a number of its own, so that
        # many of them look as often as one would that writes as much as they do.
        self._not_counted = int(most_bytes // _SHARE * _own_share())

    @cached_property
    def _found(self) -> tuple[Path | None, str, str]:
        """The folder, made if it was not there; why it can't be used, or ""; and what mends that."""
        folder = self._asked
        try:
            if sources_digest() is None:
                raise FileNotFoundError(
                    "the sources of the modules that print code are missing, so that versions can't be compared"
                )
            folder = folder or cache_folder()
            _make(folder)
            reason = _distrust(os.stat(folder))
        except OSError as error:
            return folder, str(error), _REMEDY
        return folder, reason, f"{_REMEDY}, or take others' access away: chmod 700 '{folder}'" if reason else ""

    @cached_property
    def _folder(self) -> Path | None:
        """The folder; None where it can't be used."""
        folder, reason, remedy = self._found
        if not reason:
            return folder
        # Known before the warning, which may be an error: it is given once.
        self.__dict__["_folder"] = None
        place = f" in {str(folder)!r}" if folder else ""
        warnings.warn(
            f"Object code of kernels can't be kept{place}: {reason}. Each process compiles its kernels "
            f"again. {remedy}.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None

    @property
    def keeps(self) -> bool:
        """Test whether there is a folder that can be used, without a warning where there is none."""
        return not self._found[1]

    @staticmethod
    def name(host: str, key: str) -> str:
        """Return the name of the file for what `key` stands for.

        Args:
            host: stands for the processor and the version of LLVM.
            key: stands for the code, given the modules that print it.
        """
        given = sources_digest(), profile_digest(), tuple.__basicsize__, host, key  # entries read tuples: see `entry`
        return hashlib.sha256(repr(given).encode()).hexdigest()

    def has(self, name: str) -> bool:
        """Test whether there is a file of that name."""
        return self._folder is not None and os.path.exists(self._path(self._folder, name))

    def read(self, name: str, suffix: str = CODE) -> bytes | None:
        """Return the object code of that name; None where there is none, or it is damaged or may be another's."""
        if self._folder is None:
            return None
        path = self._path(self._folder, name, suffix)
        try:
            with open(path, "rb", buffering=0, opener=_open_itself) as file:
                status = os.fstat(file.fileno())
                if _distrust(status):
                    return None
                content = file.read()
                if time.time() - status.st_mtime > _SECONDS:
                    with contextlib.suppress(OSError):
                        os.utime(path)
        except OSError:
            return None
        seal, code = content[:32], content[32:]
        return code if _seal(name, code) == seal else None

    def write(self, name: str, code: bytes, suffix: str = CODE) -> None:
        """Keep object code; that it can't be written, as on a full disk, is not an error."""
        if self._folder is None:
            return
        content = _seal(name, code) + code
        with contextlib.suppress(OSError):
            _replace(self._path(self._folder, name, suffix), content)
            self._not_counted += len(content)
            if self._not_counted * _SHARE > self._most_bytes:
                self._not_counted = 0
                self._make_room(self._folder)

    def remove(self, name: str, suffix: str = CODE) -> None:
        """Remove a file, if it is there."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path(self._folder, name, suffix))

    @staticmethod
    def _path(folder: Path, name: str, suffix: str = CODE) -> str:
        return f"{folder}{os.sep}{name}{suffix}"

    def _make_room(self, folder: Path) -> None:
        """Remove what was not used for longest, and what processes left that were killed."""
        now, files = time.time(), list[tuple[float, int, str]]()
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process makes room, too
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.endswith((CODE, HOST)):
                        files.append((status.st_mtime, status.st_size, entry.path))
                    elif entry.name.endswith(_UNFINISHED) and now - status.st_mtime > _SECONDS:
                        os.unlink(entry.path)
        excess = sum(size for _, size, _ in files) - self._most_bytes
        if excess <= 0:
            return
        excess += self._most_bytes // _SHARE  # so that what is written until the next look has room
        for _, size, path in sorted(files):
            if excess <= 0:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            excess -= size


def _own_share() -> float:
    """Return a number from 0 to 1 of this process's own. Users' generators of random numbers stay as they are."""
    return int.from_bytes(os.urandom(4)) / 2**32


def cache_folder() -> Path:
    """Return the folder for object code: below $ANABRANCH_CACHE_DIR, $XDG_CACHE_HOME or the user's home.

    Raises:
        OSError: there is no home.
    """
    named = os.environ.get("ANABRANCH_CACHE_DIR")
    if named:
        return Path(named).absolute() / "kernels"
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # those are invalid, says the specification
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            raise FileNotFoundError("this user has no home folder, and HOME names none")
        os.stat(home)  # a home is not made here
        base = os.path.join(home, ".cache")
    return Path(base) / "anabranch" / "kernels"


@functools.cache
def sources_digest() -> str | None:
    """Return a digest of the modules that print code, so that what other versions of them printed is not taken.

    None where their sources are not there.
    """
    digest, generators = hashlib.sha256(), os.path.dirname(os.path.dirname(__file__))
    try:
        with os.scandir(generators) as entries:
            folders = sorted(entry.path for entry in entries if entry.is_dir() and not entry.name.startswith("_"))
        for folder in (generators, *folders):
            with os.scandir(folder) as entries:
                paths = sorted(entry.path for entry in entries if entry.name.endswith(".py"))
            if not paths:
                return None
            for path in paths:
                with open(path, "rb", buffering=0) as file:
                    source = file.read()
                digest.update(f"{os.path.relpath(path, generators)} {len(source)} ".encode() + source)
    except OSError:
        return None
    return digest.hexdigest()


@functools.cache
def profile_digest() -> str:
    """Return a digest of the figures by which kernels are printed, the default ones included."""
    figures = replace(machine_profile(), name="", is_measured=False)
    return hashlib.sha256(repr(figures).encode()).hexdigest()


def _make(folder: Path) -> None:
    """Make a folder, and those above it, for this user alone."""
    missing = [folder]
    while not missing[-1].parent.is_dir() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    for part in reversed(missing):
        with contextlib.suppress(FileExistsError):
            part.mkdir(mode=0o700)


def _distrust(status: os.stat_result) -> str:
    """Return the reason not to trust a file or folder; empty if it can be trusted."""
    if os.name != "posix":
        return ""  # elsewhere the system's lists of access decide, and a profile's folder is its user's
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        return f"others may write to it (mode {mode:04o}), and what is there is run as machine code"
    return ""


def _open_itself(path: str, flags: int) -> int:
    """Open a file, not what a link points to."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))


def _seal(name: str, code: bytes) -> bytes:
    return hashlib.sha256(name.encode() + code).digest()


def _replace(path: str, content: bytes) -> None:
    """Write a file that others see whole or not at all, and that only this user may read."""
    import tempfile  # few processes write

    descriptor, unfinished = tempfile.mkstemp(_UNFINISHED, dir=os.path.dirname(path))
    try:
        with open(descriptor, "wb", buffering=0) as file:
            if file.write(content) != len(content):
                raise OSError("the disk is full")
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
