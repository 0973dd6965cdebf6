"""Files written so that a crash leaves the old one."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import sys
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

_SUFFIX = ".anabranch.tmp"
# There is no room: the disk is full, or a limit of the user's or of a file's size is reached.
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


@contextlib.contextmanager
def atomic_write(path: Path) -> Generator[BinaryIO]:
    """Write a stream that becomes the file `path` when the block ends, and nothing at all when it fails.

    The bytes go to a temporary file in the same folder, which is flushed to the disk and then takes the name: whoever
    opens `path` sees the whole old file or the whole new one. A link stays a link, and the mode of a file stays. What
    processes that were killed have left in the folder is removed.

    Raises:
        FileNotFoundError: the folder does not exist.
        OSError: there is no room for the file, or the folder can't be written; a PermissionError if it may not be.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"Can't write {str(path)!r}: there is no folder {str(target.parent)!r}. Make it first.")
    if target.is_dir():
        raise IsADirectoryError(f"Can't write {str(path)!r}: it is a folder. Give the name of a file.")
    _remove_abandoned(target.parent)
    try:
        temporary, descriptor, lock = _create(target)
    except OSError as error:
        if error.errno in _FULL:
            raise _no_space(error, path, target, 0) from error
        raise OSError(
            error.errno,
            f"Can't write {str(path)!r}: {error.strerror or error} in the folder {str(target.parent)!r}. Save to "
            "another folder, or change its mode or owner",
        ) from error
    try:
        with os.fdopen(descriptor, "w+b") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException as error:
        written = temporary.stat().st_size if temporary.exists() else 0
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _FULL:
            raise _no_space(error, path, target, written) from error
        raise
    finally:
        if lock is not None:
            os.close(lock)
    _sync_folder(target.parent)


def _create(target: Path) -> tuple[Path, int, int | None]:
    """Create a temporary file for `target`: its path, a descriptor, and one that holds its lock until it is closed.

    The lock says that somebody writes the file; the system releases it whatever ends the process.
    """
    while True:
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{_SUFFIX}")
        # Opened by hand and not with tempfile, whose files nobody else may read, so that the user's umask decides.
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if sys.platform == "win32":  # where open files can neither be removed nor take another's name
            return temporary, descriptor, None
        lock = os.dup(descriptor)
        _lock(lock, wait=True)
        if os.fstat(descriptor).st_nlink:
            return temporary, descriptor, lock
        os.close(descriptor)  # removed as abandoned before it was locked
        os.close(lock)


def _remove_abandoned(folder: Path) -> None:
    """Remove the temporary files in a folder that nobody writes any more: their processes were killed."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        found = [entry.path for entry in entries if entry.name.endswith(_SUFFIX) and entry.name.startswith(".")]
        for path in found:
            with contextlib.suppress(OSError):  # another's, or another process removes it, too
                descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
                try:
                    if _lock(descriptor, wait=False):
                        os.unlink(path)
                finally:
                    os.close(descriptor)


def _lock(descriptor: int, wait: bool) -> bool:
    """Lock an open file; False where somebody holds its lock, or files can't be locked."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _no_space(error: OSError, path: Path, target: Path, written: int) -> OSError:
    kept = "the file that was there is as it was" if target.exists() else "nothing of it was left"
    free = shutil.disk_usage(target.parent).free
    return OSError(
        error.errno,
        f"Can't write {str(path)!r}: {error.strerror or error} after {written:,} bytes; {kept}. {free:,} bytes are "
        f"free in {str(target.parent)!r}: make room there or raise the quota, or save to another folder",
    )


def _sync_folder(folder: Path) -> None:
    """Write the folder's own entry to the disk, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse this; the file itself is safe
    finally:
        os.close(descriptor)
