"""`SummaryWriter`: an event file that operations write to, in the task where it was made."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Self

from ..common.quick_dataclass import dataclass
from ..graph.graph import Operation
from ..graph.op import Effect, Op
from ..graph.spec import TensorSpec
from ..graph.state.resource import NamedResource
from ..graph.tensor import Tensor
from .event_file import EventFile
from .scopes import using


class SummaryWriter(NamedResource):
    """Writes summaries to an event file of TensorBoard. `create_file_writer` makes one.

    The file is made when something is first written, by the task where the writer is: the process, or the one that
    ``with ab.device("/job:worker/task:0"):`` around `create_file_writer` asked for.

    Args:
        logdir: the folder.
        max_queue: how many events wait until they are handed to the operating system.
        flush_millis: how long they wait at most, when another one comes.
        filename_suffix: what the file's name ends in.
        name: its name in tasks.

    >>> import anabranch as ab
    >>> import os
    >>> writer = ab.summary.SummaryWriter("logs")
    >>> with writer.as_default():
    ...     ab.summary.scalar("loss", 0.5, step=1)
    >>> writer.close()
    >>> len(os.listdir("logs"))
    1
    """

    kind: ClassVar[str] = "summary_writer"

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        max_queue: int = 10,
        flush_millis: int = 120_000,
        filename_suffix: str = "",
        name: str | None = None,
    ) -> None:
        self.logdir = os.fspath(logdir)
        self.max_queue = int(max_queue)
        self.flush_millis = int(flush_millis)
        self.filename_suffix = filename_suffix
        self.name = name or f"summary_writer {self.logdir}"
        self._lock = threading.RLock()
        self._file: EventFile | None = None
        self._is_closed = False
        self._waiting = 0
        self._flushed = 0.0
        self.place_here()

    def definition(self) -> dict[str, Any]:
        return {
            "logdir": self.logdir,
            "max_queue": self.max_queue,
            "flush_millis": self.flush_millis,
            "filename_suffix": self.filename_suffix,
        }

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Self:
        return cls(**definition, name=name)

    def as_default(self, step: Any = None) -> AbstractContextManager[SummaryWriter]:
        """Make a block whose summaries go to this writer; at its end they are handed to the operating system.

        What is built inside writes to this writer whenever it runs: functions and steps of models that are traced here.

        Args:
            step: that of summaries for which none is given.
        """
        return self._as_default(step)

    @contextmanager
    def _as_default(self, step: Any) -> Any:
        with using(self, step):
            try:
                yield self
            finally:
                self.flush_file()

    def write(self, method: str, *arguments: Any) -> None:
        """Have a method of the `EventFile` write; for operations.

        Raises:
            RuntimeError: the writer is closed, or what it wrote to is gone.
            OSError: the file can't be made or written, as on a full disk. What waited to be written is lost; later
                summaries go to a new file, once there is room.
        """
        with self._lock, self._beginning_anew():
            if self.lost or self._is_closed:
                raise RuntimeError(self.lost or f"The writer of {self.logdir!r} is closed: make another one.")
            if self._file is None:
                self._file = EventFile(self.logdir, self.filename_suffix)
                self._flushed = time.monotonic()
            getattr(self._file, method)(*arguments)
            self._waiting += 1
            if self._waiting >= self.max_queue or time.monotonic() - self._flushed >= self.flush_millis / 1000:
                self.flush_file()

    def flush(self) -> None:
        """Hand what was written to the operating system, so that TensorBoard sees it.

        Raises:
            StateLostError: a task of a cluster holds the writer, and is gone.
        """
        self._finish(FlushSummaries(self))

    def flush_file(self) -> None:
        """Hand what was written to the operating system, in this process; for operations."""
        with self._lock, self._beginning_anew():
            self._waiting, self._flushed = 0, time.monotonic()
            if self._file is not None:
                self._file.flush()

    @contextmanager
    def _beginning_anew(self) -> Generator[None]:
        """Have later summaries go to a new file where this one can't be written: it ends within a record."""
        try:
            yield
        except OSError:
            self._file, self._waiting = None, 0
            raise

    def close(self) -> None:
        """Finish the file; later summaries are errors. A second call does nothing.

        Raises:
            StateLostError: a task of a cluster holds the writer, and is gone.
        """
        self._finish(FlushSummaries(self, closes=True))

    def _finish(self, op: FlushSummaries) -> None:
        if self.home is None:
            op.run(None)
        else:
            self.home.run("close" if op.closes else "flush", self.adding(op))

    def close_file(self) -> None:
        """Finish the file of this process; for operations."""
        with self._lock:
            self._is_closed = True
            if self._file is not None:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass(frozen=True, eq=False)
class FlushSummaries(Op):
    """Hand what a writer has written to the operating system.

    Attributes:
        writer: which.
        closes: whether its file is finished, too.
    """

    host_only: ClassVar[bool] = True
    no_samples: ClassVar[str] = "belongs to summaries: test_summaries"
    writer: SummaryWriter
    closes: bool = False

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        if self.closes:
            self.writer.close_file()
        else:
            self.writer.flush_file()
        return ()

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return []

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.writer, writes=True),)


def create_file_writer(
    logdir: str | os.PathLike[str],
    max_queue: int = 10,
    flush_millis: int = 120_000,
    filename_suffix: str = "",
    name: str | None = None,
) -> SummaryWriter:
    """Make a writer of summaries to a new event file in a folder; see `SummaryWriter`.

    >>> import anabranch as ab, os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ab.summary.create_file_writer(folder).as_default():
    ...         ab.summary.scalar("loss", 0.5, step=1)
    ...     len(os.listdir(folder))
    1
    """
    return SummaryWriter(logdir, max_queue, flush_millis, filename_suffix, name)


__all__ = ["FlushSummaries", "SummaryWriter", "create_file_writer"]
