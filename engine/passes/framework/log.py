"""A log of the changes that passes made while a step was prepared, and of what they left, for `explain`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import field

from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.provenance import Location

Text = str | Callable[[], str]  # a function is called only while a log is recorded


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that a pass did, or did not do.

    Attributes:
        pass_name: the pass, as `switches` names it.
        operation: the name of the operation that it is about; "" for none.
        location: the user's line that built it.
        text: what was done, or why nothing was.
    """

    pass_name: str
    operation: str
    location: Location | None
    text: str


@dataclass
class PassLog:
    """The notes of passes while they were recorded, in order.

    Attributes:
        changes: what was rewritten.
        kept: what stayed as it was, and why.
        left_out: for names of passes that did not run why not.
        seconds: for names of passes how long they ran.
    """

    changes: list[Note] = field(default_factory=list[Note])
    kept: list[Note] = field(default_factory=list[Note])
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def of(self, pass_name: str) -> tuple[list[Note], list[Note]]:
        """Return the changes of one pass, and what it left alone."""
        return (
            [note for note in self.changes if note.pass_name == pass_name],
            [note for note in self.kept if note.pass_name == pass_name],
        )


class _Recording(threading.local):
    log: PassLog | None = None


_recording = _Recording()


def is_recording() -> bool:
    """Test whether this thread records a log: guards work that is costly."""
    return _recording.log is not None


def note_change(pass_name: str, operation: Operation | None, text: Text) -> None:
    """Note that a pass has rewritten `operation`; `text` says into what. Nothing happens unless a log is recorded."""
    log = _recording.log
    if log is not None:
        log.changes.append(_note(pass_name, operation, text))


def note_left_out(pass_name: str, why: str) -> None:
    """Note that a pass has not run. Nothing happens unless a log is recorded."""
    if _recording.log is not None:
        _recording.log.left_out[pass_name] = why


def note_seconds(pass_name: str, seconds: float) -> None:
    """Note for how long a pass has run. Nothing happens unless a log is recorded."""
    log = _recording.log
    if log is not None:
        log.seconds[pass_name] = log.seconds.get(pass_name, 0.0) + seconds


def note_kept(pass_name: str, operation: Operation | None, why: Text) -> None:
    """Note that a pass left `operation` where it is: `why` says which value holds it. Unrecorded, nothing happens."""
    log = _recording.log
    if log is not None:
        log.kept.append(_note(pass_name, operation, why))


@contextmanager
def recording() -> Generator[PassLog]:
    """Record what passes log on this thread; a log inside another one takes what is logged while it is open.

    >>> with recording() as log:
    ...     note_change("sink", None, "nothing, as an example")
    >>> [note.text for note in log.changes]
    ['nothing, as an example']
    """
    outer, log = _recording.log, PassLog()
    _recording.log = log
    try:
        yield log
    finally:
        _recording.log = outer


def _note(pass_name: str, operation: Operation | None, text: Text) -> Note:
    words = text if isinstance(text, str) else text()
    if operation is None:
        return Note(pass_name, "", None, words)
    return Note(pass_name, operation.name, operation.location, words)
