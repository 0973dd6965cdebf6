"""Tracebacks of errors in `fit` and its like: the user's lines, and those where this package is entered and left."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from ..engine.common.keywords import explain_keywords
from ..engine.graph.provenance import is_own_file

P = ParamSpec("P")
R = TypeVar("R")

_MOST = 7  # frames of ours that are kept, before the last one
_GLUE = (os.sep + "contextlib.py", os.sep + "functools.py")


class _Filtering:
    enabled: bool = True


def disable_traceback_filtering() -> None:
    """Show all lines of errors in `fit` and its like, those of this package too."""
    _Filtering.enabled = False


def enable_traceback_filtering() -> None:
    """Leave lines of this package out of errors in `fit` and its like; that is how it is at first."""
    _Filtering.enabled = True


def is_traceback_filtering_enabled() -> bool:
    """Test whether errors leave out lines of this package."""
    return _Filtering.enabled


def short_tracebacks(function: Callable[P, R]) -> Callable[P, R]:
    """Let errors of a function that users call show mainly their own lines.

    Of each row of this package's frames the first is kept, which the user called, and of the last row also the last,
    which raised the error.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if isinstance(error, TypeError):
                explain_keywords(error, function)
            if _Filtering.enabled:
                _shorten(error)
            raise

    return called


def _shorten(error: BaseException) -> None:
    """Filter the traceback of an error, and of those that it comes from."""
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
    entries = entries[1:]  # without the wrapper's frame
    ours = [_is_ours(entry) for entry in entries]
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


def _is_ours(entry: TracebackType) -> bool:
    name = entry.tb_frame.f_code.co_filename
    return is_own_file(name) or name.startswith("<anabranch") or name.endswith(_GLUE)
