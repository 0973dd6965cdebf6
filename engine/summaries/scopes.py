"""The writer and the step of summaries that are written now, and whether any are: scopes around say it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from ..graph.graph import get_default_graph


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.writer: Any = None
        self.step: Any = None  # a number, a tensor or a variable, or a function that gives one
        self.condition: Any = True  # the same of booleans


_scopes = _Scopes()


def default_writer() -> Any:
    """Return the writer of the block around; None if there is none."""
    return _scopes.writer


def get_step() -> Any:
    """Return the step of summaries for which none is given; None if nothing says one.

    >>> import anabranch as ab
    >>> ab.summary.set_step(5)
    >>> ab.summary.get_step()
    5
    >>> ab.summary.set_step(None)
    """
    if _scopes.step is None:
        optimizers = list(get_default_graph().root.optimizers)
        return optimizers[0].iterations if len(optimizers) == 1 else None
    return _scopes.step() if callable(_scopes.step) else _scopes.step


def set_step(step: Any) -> None:
    """Set the step of summaries for which none is given, in this thread.

    Args:
        step: a number, a tensor or a variable; a function that gives one; or None for none.

    >>> import anabranch as ab
    >>> ab.summary.set_step(5)
    >>> ab.summary.get_step()
    5
    >>> ab.summary.set_step(None)
    """
    _scopes.step = step


@contextmanager
def using(writer: Any, step: Any = None) -> Generator[None]:
    """Make a block whose summaries go to a writer, at a step if that is given."""
    before = _scopes.writer, _scopes.step
    _scopes.writer = writer
    if step is not None:
        _scopes.step = step
    try:
        yield
    finally:
        _scopes.writer, _scopes.step = before


@contextmanager
def using_step(step: Callable[[], Any]) -> Generator[None]:
    """Make a block in which a function gives the step, unless one around says another."""
    before = _scopes.step
    if before is None:
        _scopes.step = step
    try:
        yield
    finally:
        _scopes.step = before


@contextmanager
def record_if(condition: Any) -> Generator[None]:
    """Make a block whose summaries are written if a condition holds.

    Args:
        condition: a boolean, a tensor, or a function that gives one. In a graph it is computed in each run, where a
            summary is written; of a condition that is False now nothing is built.

    Raises:
        TypeError: it is none of these.

    >>> import anabranch as ab, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, ab.summary.create_file_writer(folder).as_default():
    ...     for step in range(100):
    ...         with ab.summary.record_if(step % 10 == 0):
    ...             ab.summary.scalar("loss", 1 / (1 + step), step)
    """
    if condition is None or isinstance(condition, (str, bytes, list, tuple, dict)):
        raise TypeError(f"record_if: expected a boolean, a tensor or a function of either, got {condition!r}.")
    before, _scopes.condition = _scopes.condition, condition
    try:
        yield
    finally:
        _scopes.condition = before


def should_record_summaries() -> Any:
    """Test whether a summary would be written here: a boolean, or a tensor where a graph's condition is around.

    >>> import anabranch as ab
    >>> ab.summary.should_record_summaries()  # there is no writer
    False
    >>> with ab.summary.create_file_writer("recorded").as_default(), ab.summary.record_if(True):
    ...     ab.summary.should_record_summaries()
    True
    """
    if _scopes.writer is None:
        return False
    return _scopes.condition() if callable(_scopes.condition) else _scopes.condition


def recording() -> Any:
    """Return a key that differs between programs whose summaries have other scopes around; None where none are."""
    return None if _scopes.writer is None else (id(_scopes.writer), _scopes.condition is not False)


__all__ = [
    "default_writer",
    "get_step",
    "record_if",
    "recording",
    "set_step",
    "should_record_summaries",
    "using",
    "using_step",
]
