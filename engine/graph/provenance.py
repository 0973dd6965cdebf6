"""Where in the user's program an operation was built."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The repository root is the package: only these folders are ours, `tests/` and `examples/` are users of them.
_OWN_PREFIXES = tuple(
    os.path.join(_ROOT, folder) + os.sep for folder in ("engine", "layers", "optim", "framework", "distribute")
)
_own_files: dict[str, bool] = {}


class Location(NamedTuple):
    """A line of the user's program."""

    filename: str
    line: int

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}"


def _is_own(filename: str) -> bool:
    own = _own_files.get(filename)
    if own is None:
        own = _own_files[filename] = filename.startswith(_OWN_PREFIXES)
    return own


def user_location() -> Location | None:
    """The innermost line outside anabranch on the current stack, or None if there is none."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        filename = frame.f_code.co_filename
        own = _own_files.get(filename)
        if own is None:
            own = _is_own(filename)
        if not own:
            return Location(filename, frame.f_lineno)
        frame = frame.f_back
    return None
