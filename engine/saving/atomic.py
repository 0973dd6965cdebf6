"""Files written so that a crash leaves the old one."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

# There is no room: the disk is full, or a limit of the user's or of a file's size is reached.
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


@contextlib.contextmanager
def atomic_write(path: Path) -> Generator[BinaryIO]:
    """A stream that becomes the file `path` when the block ends, and nothing at all when it fails.

    The bytes go to a temporary file in the same folder, which is flushed to the disk and then takes the name: whoever
    opens `path` sees the whole old file or the whole new one. A link stays a link, and the mode of a file stays.

    Raises:
        FileNotFoundError: the folder does not exist.
        OSError: there is no room for the file.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"Can't write {str(path)!r}: there is no folder {str(target.parent)!r}. Make it first.")
    if target.is_dir():
        raise IsADirectoryError(f"Can't write {str(path)!r}: it is a folder. Give the name of a file.")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        # Opened by hand and not with tempfile, whose files nobody else may read, so that the user's umask decides.
        with os.fdopen(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), "w+b") as stream:
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
    _sync_folder(target.parent)


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
