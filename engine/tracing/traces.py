"""`trace`: while its block runs, what any thread of the process does is recorded."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.forks import fork_safe_lock

if TYPE_CHECKING:
    from .recorder import Event, Lane, Recorder

HOST = "cpu:0"


class Active:
    """The traces that are recorded now.

    One for the whole process and not a context variable: a step runs on the threads of executors, queue runners and
    data pipelines too, which were started before the trace and inherit no context.

    Attributes:
        recorder: the recorder of all traces under way; None while there is none.
    """

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self._traces = 0
        self._lock = fork_safe_lock()

    def begin(self) -> Recorder:
        """Begin another trace: it shares the recorder of those under way."""
        from .recorder import Recorder  # what is needed for traces alone is imported by them

        with self._lock:
            self._traces += 1
            self.recorder = self.recorder or Recorder()
            return self.recorder

    def end(self) -> None:
        """End a trace; with the last one, recording ends."""
        with self._lock:
            self._traces -= 1
            if not self._traces:
                self.recorder = None


active = Active()


def current() -> Recorder | None:
    """Return the recorder of the traces under way, or None."""
    return active.recorder


class _Lanes(threading.local):
    """The lanes of this thread, by stream."""

    def __init__(self) -> None:
        self.known: dict[str, Lane] = {}


_lanes = _Lanes()


def here(stream: str) -> Lane:
    """Return the lane of the host and this thread: `stream` for the main thread, `stream (name)` for another."""
    lane = _lanes.known.get(stream)
    if lane is None:
        from .recorder import Lane

        thread = threading.current_thread()
        suffix = "" if thread is threading.main_thread() else f" ({thread.name})"
        lane = _lanes.known[stream] = Lane(HOST, stream + suffix)
    return lane


class Trace:
    """The record of the block of a `trace`: given by it, and complete when the block is over."""

    def __init__(self, recorder: Recorder) -> None:
        self._source = recorder.events
        self._begin = len(recorder.events)

    @property
    def events(self) -> Sequence[Event]:
        """Return what was recorded, so far."""
        return self._source[self._begin :]

    def stop(self) -> None:
        """End the trace: what comes from now on belongs to other traces."""
        self._source, self._begin = self._source[self._begin :], 0

    def summary(self, top: int = 20) -> str:
        """Return a table: how busy each device was, and which operations took how long.

        Args:
            top: the number of operations that are listed, those that took longest first.
        """
        from .summary import summarise

        return summarise(self.events, top)


@contextmanager
def trace(path: str | os.PathLike[str] | None = None) -> Generator[Trace]:
    """Write what runs inside, in any thread, as a timeline for Perfetto: ``with ab.trace("steps.json"):``.

    Args:
        path: the file, in Chrome's JSON trace format, compressed if the name ends with ".gz"; open it in
            https://ui.perfetto.dev. None writes nothing, for who wants the summary alone.

    The file is written when the block ends, whole or not at all, and also if the block fails: then the error is marked
    in it. Traces may overlap and nest; each gets everything of its time. Values are the same bits as without.

    Raises:
        FileNotFoundError: the folder of `path` does not exist. (Nothing has run then.)

    Abadi et al., "TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems" (2015), section 9.2
    (EEG).

    >>> import anabranch as ab
    >>> x = ab.placeholder((), "float32", "x")
    >>> with ab.trace("steps.json") as recorded:
    ...     ab.Session().run(ab.ops.sin(x), {x: 0.0})
    np.float32(0.0)
    >>> [event.name for event in recorded.events if getattr(event, "is_kernel", False)]
    ['sin']
    """
    from .timeline import check_path

    target = None if path is None else check_path(Path(path))
    recorder = active.begin()
    recorded = Trace(recorder)
    try:
        yield recorded
    except BaseException as error:
        details = {"error": f"{type(error).__name__}: {error}"}
        recorder.instant(here("compute"), "the traced block failed", time.perf_counter(), details)
        _finish(recorded, target, error)
        raise
    _finish(recorded, target)


def _finish(recorded: Trace, target: Path | None, error: BaseException | None = None) -> None:
    """Write the trace. If that fails after an `error` of the block, that one is what the caller has to see."""
    from .timeline import write_timeline

    active.end()
    recorded.stop()
    if target is None:
        return
    try:
        write_timeline(recorded.events, target)
    except OSError as failure:
        if error is None:
            raise
        error.add_note(f"The trace could not be written either: {failure}")
