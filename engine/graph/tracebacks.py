"""Tracebacks of errors in what users call: their own lines, and those where this package is entered and left."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from ..common.keywords import explain_keywords
from .provenance import is_own_file

P = ParamSpec("P")
R = TypeVar("R")

_MOST = 7  # frames of ours that are kept, before the last one
_GLUE = (os.sep + "contextlib.py", os.sep + "functools.py")


class _Filtering:
    enabled: bool = True


def disable_traceback_filtering() -> None:
    """Show all lines of errors in layers, ops, `fit` and their like, those of this package too."""
    _Filtering.enabled = False


def enable_traceback_filtering() -> None:
    """Leave lines of this package out of errors in layers, ops, `fit` and their like; that is how it is at first."""
    _Filtering.enabled = True


def is_traceback_filtering_enabled() -> bool:
    """Test whether errors leave out lines of this package."""
    return _Filtering.enabled


def short_tracebacks(function: Callable[P, R]) -> Callable[P, R]:
    """Let errors of a function that users call show mainly their own lines; see `shorten`."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shorten(error, function)
            raise

    return called


def shorten(error: BaseException, function: Callable[..., Any] | None = None) -> None:
    """Filter the traceback of an error, and of those that it comes from, if a user called the function that handles it.

    Keep the first frame of each row of this package's frames, which the user called, and of the last row also the last
    one, which raised the error. Where this package is the caller, the user's call further out filters.

    Args:
        error: an error that the calling function is about to raise again.
        function: what the calling function stands for, so that its own frame says nothing; an argument that this does
            not have is explained.
    """
    if function is not None and isinstance(error, TypeError):
        explain_keywords(error, function)
    own = inspect.currentframe()
    caller = own and own.f_back and own.f_back.f_back
    if not _Filtering.enabled or (caller is not None and _is_ours(caller)):
        return
    if function is not None and error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
    pending, seen = [error], set[int]()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _filtered(current.__traceback__)
        pending += [other for other in (current.__cause__, current.__context__) if other is not None]


def _filtered(traceback: TracebackType | None) -> TracebackType | None:
    entries: list[TracebackType] = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    ours = [_is_ours(entry.tb_frame) for entry in entries]
    shown = [not own or position == 0 or not ours[position - 1] for position, own in enumerate(ours)]
    if entries:
        shown[-1] = True
    for position in [p for p, own in enumerate(ours) if own and shown[p]][_MOST:-1]:
        shown[position] = False
    made: TracebackType | None = None
    for entry, keep in zip(reversed(entries), reversed(shown), strict=True):
        if keep:
            made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return is_own_file(name) or name.startswith("<anabranch") or name.endswith(_GLUE)
