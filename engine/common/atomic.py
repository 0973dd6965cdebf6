"""Files written so that a crash leaves the old one."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

SUFFIX = ".anabranch.tmp"
# There is no room: the disk is full, or a limit of the user's or of a file's size is reached.
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_ATTEMPTS = 10  # to remove a folder in which another process writes


class Temporary(NamedTuple):
    """A file that is to take another's name.

    Attributes:
        path, stream: of the file.
        lock: an open file that holds its lock; None where files can't be locked.
    """

    path: Path
    stream: BinaryIO
    lock: Any


class Disk:
    """The calls to the system by which files are written, read and removed; tests simulate them."""

    def real_path(self, path: Path) -> Path:
        """Return the file to which a link leads."""
        return Path(os.path.realpath(path))

    def is_folder(self, path: Path) -> bool:
        """Test whether there is a folder of this path."""
        return path.is_dir()

    def size(self, path: Path) -> int | None:
        """Return the bytes of a file; None if there is none."""
        return path.stat().st_size if path.is_file() else None

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder."""
        return os.listdir(folder)

    def read(self, path: Path) -> bytes:
        """Return what is in a file."""
        return path.read_bytes()

    def readable(self, path: Path) -> Any:
        """Return a file for h5py to read: of it alone what is needed."""
        return path

    def free(self, folder: Path) -> int:
        """Return the bytes that are free on a folder's disk."""
        return shutil.disk_usage(folder).free

    def make_folder(self, path: Path) -> None:
        """Make a folder inside of one that is there; another process may have made it."""
        path.mkdir(exist_ok=True)

    def create(self, target: Path) -> Temporary:
        """Create a temporary file for `target`, in its folder.

        The lock says that somebody writes the file; the system releases it whatever ends the process.
        """
        while True:
            path = target.with_name(f".{target.name}.{secrets.token_hex(4)}{SUFFIX}")
            # Opened by hand and not with tempfile, whose files nobody else may read, so that the user's umask decides.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            if sys.platform == "win32":  # where open files can neither be removed nor take another's name
                return Temporary(path, os.fdopen(descriptor, "w+b"), None)
            lock = os.dup(descriptor)
            _lock(lock, wait=True)
            if os.fstat(descriptor).st_nlink:
                return Temporary(path, os.fdopen(descriptor, "w+b"), lock)
            os.close(descriptor)  # removed as abandoned before it was locked
            os.close(lock)

    def release(self, temporary: Temporary) -> None:
        """Release the lock of a temporary file."""
        if temporary.lock is not None:
            os.close(temporary.lock)

    def begin_sync(self, stream: BinaryIO, first: int, size: int) -> None:
        """Have the system begin to write bytes of a file to the disk, where it can; `sync` waits for all of them.

        Otherwise it begins when it is asked to `sync`, and the disk is idle until then.
        """
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(stream.fileno(), first, size, os.POSIX_FADV_DONTNEED)

    def sync(self, stream: BinaryIO) -> None:
        """Write to the disk what is in a file."""
        stream.flush()
        os.fsync(stream.fileno())

    def replace(self, temporary: Path, target: Path) -> None:
        """Give a file the name, and the mode, of another one."""
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder with all that is in it; others may be making and removing files there meanwhile."""
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                if path.exists():
                    shutil.rmtree(path)
                return
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY) or not attempts_left:
                    raise

    def remove_abandoned(self, folder: Path) -> None:
        """Remove the temporary files in a folder that nobody writes any more: their processes were killed."""
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            found = [entry.path for entry in entries if is_temporary(entry.name)]
            for path in found:
                with contextlib.suppress(OSError):  # another's, or another process removes it, too
                    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
                    try:
                        if _lock(descriptor, wait=False):
                            os.unlink(path)
                    finally:
                        os.close(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Write to the disk which names are in a folder, where the system can."""
        if os.name != "posix":
            return
        # Some network file systems refuse this, and some folders may be entered but not read; the files are safe.
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


DISK = Disk()


def is_temporary(name: str) -> bool:
    """Test whether a file of this name is one that `atomic_write` has not finished."""
    return name.startswith(".") and name.endswith(SUFFIX)


@contextlib.contextmanager
def atomic_write(path: Path, disk: Disk = DISK, final: Callable[[], str] | None = None) -> Generator[BinaryIO]:
    """Write a stream that becomes the file `path` when the block ends, and nothing at all when it fails.

    The bytes go to a temporary file in the same folder, which is flushed to the disk and then takes the name: whoever
    opens `path` sees the whole old file or the whole new one. A link stays a link, and the mode of a file stays. What
    processes that were killed have left in the folder is removed.

    Args:
        path: of the file.
        disk: does what this asks of the system.
        final: gives, when all is written, the name that the file takes in place of that of `path`.

    Raises:
        FileNotFoundError: the folder does not exist.
        OSError: there is no room for the file, or the folder can't be written; a PermissionError if it may not be.
    """
    target = disk.real_path(path)
    if not disk.is_folder(target.parent):
        raise FileNotFoundError(f"Can't write {str(path)!r}: there is no folder {str(target.parent)!r}. Make it first.")
    if disk.is_folder(target):
        raise IsADirectoryError(f"Can't write {str(path)!r}: it is a folder. Give the name of a file.")
    disk.remove_abandoned(target.parent)
    try:
        temporary = disk.create(target)
    except OSError as error:
        if error.errno in _FULL:
            raise _no_space(error, path, target, 0, disk) from error
        raise OSError(
            error.errno,
            f"Can't write {str(path)!r}: {error.strerror or error} in the folder {str(target.parent)!r}. Save to "
            "another folder, or change its mode or owner",
        ) from error
    try:
        with temporary.stream as stream:
            yield stream
            disk.sync(stream)
        target = target if final is None else target.with_name(final())
        disk.replace(temporary.path, target)
    except BaseException as error:
        written = disk.size(temporary.path) or 0
        disk.remove(temporary.path)
        if isinstance(error, OSError) and error.errno in _FULL:
            raise _no_space(error, path, target, written, disk) from error
        raise
    finally:
        disk.release(temporary)
    disk.sync_folder(target.parent)


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


def _no_space(error: OSError, path: Path, target: Path, written: int, disk: Disk) -> OSError:
    kept = "the file that was there is as it was" if disk.size(target) is not None else "nothing of it was left"
    free = disk.free(target.parent)
    return OSError(
        error.errno,
        f"Can't write {str(path)!r}: {error.strerror or error} after {written:,} bytes; {kept}. {free:,} bytes are "
        f"free in {str(target.parent)!r}: make room there or raise the quota, or save to another folder",
    )
