"""Places in the user's program where an operation was built, and for what part of a model."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import NamedTuple

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The repository root is the package: only these folders are ours, `tests/` and `examples/` are users of them.
_OWN_PREFIXES = tuple(
    os.path.join(_ROOT, folder) + os.sep for folder in ("engine", "layers", "optim", "framework", "distribute")
)
_own_files: dict[str, bool] = {}
Line = tuple[str, int]
_frame_above = sys._getframe  # quicker than a walk from `currentframe`


class Part(NamedTuple):
    """The part of a model that an operation belongs to.

    Attributes:
        kind: "layer", "loss", "optimizer", "metrics"; "" for what is not one of these.
        path: the layer's, by the names of the layers in whose calls it is called: "model/block/dense".
        is_backward: whether the operation is of the gradient of that.
    """

    kind: str
    path: str = ""
    is_backward: bool = False


class Location(NamedTuple):
    """A line of the user's program, and what it was run for.

    Attributes:
        filename, line: the line.
        parts: of a model, to which the operation belongs: one, or of several that became one operation, that of each.
        forward: of an operation of a gradient, the line of what that is the gradient of.
    """

    filename: str
    line: int
    parts: tuple[Part, ...] = ()
    forward: Location | None = None

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}"


def is_own_file(filename: str) -> bool:
    """Test whether a file is of this package."""
    own = _own_files.get(filename)
    if own is None:
        own = _own_files[filename] = filename.startswith(_OWN_PREFIXES)
    return own


def user_location() -> Location | None:
    """Return the innermost line outside anabranch on the current stack, or None if there is none; see `building_at`."""
    line = _line_below(_frame_above(1))
    if line is None:
        return None
    # A line builds several operations one after the other: they have one location.
    filename, number = line
    last, parts, forward = _current.last, _current.parts, _current.forward
    if (
        last is None
        or last.line != number
        or last.filename != filename
        or last.parts is not parts
        or last.forward is not forward
    ):
        last = _current.last = Location(filename, number, parts, forward)
    return last


def _line_below(frame: FrameType | None) -> Line | None:
    """Return the innermost line outside anabranch, of a frame and those that called it.

    Gradients of branches in branches are built in calls a hundred frames deep. So no frame is looked at again below one
    of which the line is known.
    """
    if _current.known is not None:
        return _current.known
    known = _current.frame
    while frame is not None:
        if frame is known:
            return _current.line
        filename = frame.f_code.co_filename
        own = _own_files.get(filename)
        if own is None:
            own = is_own_file(filename)
        if not own:
            return filename, frame.f_lineno
        frame = frame.f_back
    return None


def user_stacklevel() -> int:
    """Return the `stacklevel` by which a warning of the caller names the innermost line outside anabranch."""
    frame, level = _frame_above(1), 1
    while frame.f_back is not None and is_own_file(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def location_of_several(locations: Sequence[Location | None]) -> Location | None:
    """Return where operations that become one were built: the line of the last, the parts of all."""
    last = locations[-1]
    parts = [part for location in locations for part in ((location and location.parts) or _NO_PART)]
    return None if last is None else last._replace(parts=tuple(parts) if any(part.kind for part in parts) else ())


# --- the part that is being built -----------------------------------------------------------------------------------

_NO_PART = (Part(""),)


class _Current(threading.local):
    def __init__(self) -> None:
        self.parts: tuple[Part, ...] = ()
        self.forward: Location | None = None
        self.known: Line | None = None  # of all that is built
        self.frame: FrameType | None = None  # one of ours, which is on the stack
        self.line: Line | None = None  # the innermost outside anabranch that led to it
        self.last: Location | None = None  # of the last operation that was built


_current = _Current()


def layer_being_called() -> str:
    """Return the path of the layer in whose call operations are built; empty outside of all calls."""
    return next((part.path for part in _current.parts if part.kind == "layer"), "")


@contextmanager
def building_part(kind: str, path: str = "") -> Generator[None]:
    """Note that what is built inside belongs to this part of a model. See `Part`."""
    before, _current.parts = _current.parts, (Part(kind, path),)
    forward, _current.forward = _current.forward, None
    try:
        yield
    finally:
        _current.parts, _current.forward = before, forward


@contextmanager
def building_at(location: Location | None) -> Generator[None]:
    """Note that what is built inside, by a pass, is of this line; without one it is looked for on the stack."""
    before = _current.known, _current.parts, _current.forward
    if location is not None:
        _current.known = location.filename, location.line
        _current.parts, _current.forward = location.parts, location.forward
    try:
        yield
    finally:
        _current.known, _current.parts, _current.forward = before


@contextmanager
def building_gradient_of(location: Location | None) -> Generator[None]:
    """Note that what is built inside belongs to the gradient of an operation that was built there."""
    before, _current.parts = _current.parts, _backward(() if location is None else location.parts)
    forward, _current.forward = _current.forward, None if location is None else location.forward or location
    frame, line = _current.frame, _current.line
    caller = _frame_above(2)  # behind that of `__enter__`
    _current.line = _line_below(caller)
    _current.frame = caller
    try:
        yield
    finally:
        _current.parts, _current.forward, _current.frame, _current.line = before, forward, frame, line


@lru_cache(1024)
def _backward(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple([part._replace(is_backward=True) for part in parts or _NO_PART])
