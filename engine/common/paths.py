"""`local_path`: names of files on this machine, as users give them."""

from __future__ import annotations

import os
import re
from pathlib import Path

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?=[^/])")  # two letters at least: C:/ is a drive


def local_path(filepath: str | os.PathLike[str], caller: str) -> Path:
    """Return a name of a file or folder on this machine as a path.

    Args:
        filepath: the name, as a text or as an object with ``__fspath__``.
        caller: the function that takes it, for messages.

    Raises:
        TypeError: it is no name, but an open file, bytes, or something else.
        ValueError: it is the address of something elsewhere, such as ``s3://bucket/m.keras``.
    """
    try:
        name = os.fspath(filepath)
    except TypeError:
        name = None
    if not isinstance(name, str):
        got = f"{filepath!r}" if isinstance(filepath, bytes) else f"an object of type {type(filepath).__name__}"
        raise TypeError(
            f"{caller} takes the name of a file, as a str or a pathlib.Path; got {got}. Use a file in a "
            "tempfile.TemporaryDirectory() where the bytes come from, or go to, somewhere else."
        )
    found = _URL.match(name)
    if found is not None and not Path(name).exists():
        raise ValueError(
            f"{caller} takes files on this machine; got the address {name!r}. Use a local file and copy it there or "
            f"from there, such as by fsspec.filesystem({found[1]!r}).put(local, address) or .get(address, local)."
        )
    return Path(name)
