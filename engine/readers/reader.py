"""Readers: operations that take file names from a queue and give the records of these files, one a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, Self

import numpy as np

from ..common import dtypes
from ..common.quick_dataclass import dataclass
from ..graph.context import in_explicit_graph
from ..graph.graph import get_default_graph
from ..graph.op import Effect, as_scalar_or_array
from ..graph.spec import TensorSpec
from ..graph.state.resource import NamedResource
from ..queues.attempts import Course, WaitingOp, wait_through
from ..queues.errors import DataLossError, OutOfRangeError, check_held
from ..queues.queue import Queue
from ..queues.turns import Turns
from .tf_record import check_compression, numbered_records

if TYPE_CHECKING:
    from ..graph.graph import Operation
    from ..graph.tensor import Tensor

Record = tuple[str, tuple[Any, ...]]  # the key, and one value a component


class ReaderStatistics(NamedTuple):
    """The counts of what a reader has done.

    Attributes:
        records: how many it gave so far.
        files: how many it has read to their ends.
        current: the file that it is reading.

    >>> import anabranch as ab
    >>> ab.io.TFRecordReader().statistics()
    ReaderStatistics(records=0, files=0, current=None)
    """

    records: int
    files: int
    current: str | None


@dataclass(frozen=True, eq=False)
class ReaderRead(WaitingOp):
    """The next record, or with `count` the next ones, stacked. Takes file names from the queue as it needs them."""

    no_samples: ClassVar[str] = "holds a reader: test_readers"
    reader: Reader
    queue: Queue
    count: int | None

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        batch = () if self.count is None else (None,)
        specs = (TensorSpec((), dtypes.string), *self.reader.specs)
        return tuple([TensorSpec(None if s.shape is None else (*batch, *s.shape), s.dtype) for s in specs])

    def course(self, *inputs: Any) -> Course:
        if self.count is None:
            key, values = yield from self.reader.reading(self.queue)
            return (key, *values)
        return tuple((yield from self.reader.reading_stacked(self.queue, self.count)))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return ()

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.reader, writes=True), Effect(self.queue, writes=True))


@dataclass(frozen=True, eq=False)
class _ReaderOp(WaitingOp):
    """Base: ops on a reader alone."""

    no_samples: ClassVar[str] = "holds a reader: test_readers"
    reader: Reader

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return ()

    def effects(self) -> tuple[Effect, ...]:
        return (Effect(self.reader, writes=True),)


@dataclass(frozen=True, eq=False)
class ReaderReset(_ReaderOp):
    """Leave the file that a reader is in."""

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        return ()

    def course(self, *inputs: Any) -> Course:
        yield from self.reader.resetting()
        return ()


@dataclass(frozen=True, eq=False)
class ReaderCounts(_ReaderOp):
    """The number of records that a reader has given, that of files that it has ended, and its file, or ""."""

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        number = TensorSpec((), np.dtype("int64"))
        return (number, number, TensorSpec((), dtypes.string))

    def course(self, *inputs: Any) -> Course:
        found = self.reader.statistics()
        return np.int64(found.records), np.int64(found.files), found.current or ""
        yield  # a course, though it waits for nothing


class Reader(NamedResource):
    """Base of the readers: gives the records of files whose names come from a queue.

    A reader is on the device that ``with ab.device(...)`` around its making asks for, together with its queue. On a
    task of a cluster it is found by its name: a second client that builds the same graph goes on where the first one
    is. It reads the files of the task's machine. Subclasses of your own stay in their process.

    Like a queue's methods, `read` and `read_up_to` build operations where a graph is being built and act at once from
    plain Python. When the queue is closed and empty and the last file is at its end, they raise `OutOfRangeError`.
    A damaged file is an error, after which the reader goes on with the next one.

    Subclasses define `records`.

    Args:
        specs: what a record is made of, besides its key.
        name: for messages, the names of the operations, and tasks.

    >>> import anabranch as ab
    >>> from anabranch.engine.graph import TensorSpec
    >>> class Lengths(ab.io.Reader):
    ...     def __init__(self):
    ...         super().__init__([TensorSpec((), "int32")], "lengths")
    ...     def records(self, path):
    ...         with open(path) as file:
    ...             for number, line in enumerate(file):
    ...                 yield f"{path}:{number}", [len(line)]
    >>> with open("lines.txt", "w") as file:
    ...     print("one", "three", sep=chr(10), file=file)
    >>> names = ab.queues.FIFOQueue(8, "string", ())
    >>> names.enqueue("lines.txt")
    >>> names.close()
    >>> Lengths().read(names)
    ('lines.txt:0', 4)
    """

    def __init__(self, specs: Sequence[TensorSpec], name: str) -> None:
        self.specs = tuple(specs)
        self.name = name
        self.place_here()
        in_use = "is in use by another thread, which may wait for a file name."
        self._turns = Turns(f"{self._label()} {in_use}")
        self._current: Iterator[Record] | None = None
        self._path: str | None = None
        self._records = self._files = 0

    @classmethod
    def from_definition(cls, name: str, definition: dict[str, Any]) -> Self:
        return cls(**definition, name=name)

    def records(self, path: str) -> Iterator[Record]:
        """Return the records of a file: pairs of key and values."""
        raise NotImplementedError(f"{type(self).__name__} must define records(path).")

    def read(self, queue: Queue, name: str | None = None) -> tuple[Any, Any]:
        """Return the next record.

        Args:
            queue: gives the names of files; its elements are single strings.
            name: of the operation.

        Returns:
            The key, ``"file:place"``, and the value.

        Raises:
            OutOfRangeError: there are no more records (at run time).
            DataLossError: a file is damaged (at run time).
        """
        self._check_queue(queue)
        if not in_explicit_graph():
            key, values = wait_through(self.reading(queue)) if self._is_here(queue) else self._read_at_home(queue)
            return key, self._packed(values)
        return self._build(queue, None, name or f"{self.name}/read")

    def read_up_to(self, queue: Queue, num_records: int, name: str | None = None) -> tuple[Any, Any]:
        """Read the next records, stacked; see `read`. Only the end has fewer than `num_records` (at least one).

        Raises:
            ValueError: records may differ in shape.
        """
        self._check_queue(queue)
        if num_records < 1:
            raise ValueError(f"{self._label()}: num_records must be at least 1; got {num_records}.")
        if not all(spec.is_static for spec in self.specs):
            raise ValueError(f"{self._label()}: its records differ in shape and can't be stacked; use read().")
        if not in_explicit_graph():
            if self._is_here(queue):
                keys, *values = wait_through(self.reading_stacked(queue, num_records))
            else:
                keys, *values = self._at_home(queue, num_records)
            return keys, self._packed(values)
        return self._build(queue, num_records, name or f"{self.name}/read_up_to")

    def _is_here(self, queue: Queue) -> bool:
        """Test whether plain Python reads here, and not in a task.

        Raises:
            ValueError: reader and queue are not in one place.
        """
        here, there = ("this process" if each.home is None else each.home.task for each in (self, queue))
        if here != there:
            raise ValueError(
                f"{self._label()} is in {here}, and queue {queue.name!r} in {there}: make both inside one ab.device, "
                "and run both in a session of that cluster first."
            )
        return self.home is None

    def _at_home(self, queue: Queue, count: int | None) -> list[Any]:
        assert self.home is not None, "it is in a task"
        action = f"read {count} from {queue.container}/{queue.path or queue.name}"
        return self.home.run(action, self.adding(ReaderRead(self, queue, count)), is_repeatable=False)

    def _read_at_home(self, queue: Queue) -> Record:
        key, *values = self._at_home(queue, None)
        return str(np.asarray(key)[()]), tuple([as_scalar_or_array(value) for value in values])

    def _build(self, queue: Queue, count: int | None, name: str) -> tuple[Any, Any]:
        key, *values = get_default_graph().add(ReaderRead(self, queue, count), (), name).outputs
        return key, self._packed(values)

    def _packed(self, values: Sequence[Any]) -> Any:
        """Return the values of a record as the caller gets them."""
        return values[0] if len(values) == 1 else list(values)

    def _check_queue(self, queue: Any) -> None:
        if not isinstance(queue, Queue) or queue.components.dtypes != (dtypes.string,):
            raise TypeError(
                f"{self._label()}.read takes a queue of file names, such as FIFOQueue(32, 'string', ()); got {queue!r}."
            )

    def _label(self) -> str:
        return f"{type(self).__name__} {self.name!r}"

    # --- reading --------------------------------------------------------------------------------------------

    def reading(self, queue: Queue) -> Course:
        """Yield the next record; `read` is the public form."""
        check_held(self)
        with self._turns.turn() as turn:
            yield turn.request
            return (yield from self._next(queue))

    def reading_stacked(self, queue: Queue, count: int) -> Course:
        """Yield the next keys and values, stacked; `read_up_to` is the public form."""
        check_held(self)
        with self._turns.turn() as turn:
            yield turn.request
            found: list[Record] = yield from self._next_ones(queue, count)
        keys = np.array([key for key, _ in found], dtypes.string)
        columns = zip(*[values for _, values in found], strict=True)
        return [keys, *[_stacked(column, spec) for column, spec in zip(columns, self.specs, strict=True)]]

    def _next_ones(self, queue: Queue, count: int) -> Course:
        found: list[Record] = []
        while len(found) < count:
            try:
                found.append((yield from self._next(queue)))
            except OutOfRangeError:
                if not found:
                    raise
                break
        return found

    def _next(self, queue: Queue) -> Course:
        while True:
            if self._current is None:
                self._path = str((yield queue.taking(1))[0][0])
                self._current = self.records(self._path)
            try:
                record = next(self._current, None)
            except BaseException:
                self._current = self._path = None
                raise
            if record is not None:
                self._records += 1
                return record
            self._current = self._path = None
            self._files += 1

    def reset(self) -> None:
        """Leave the current file; the next record is the first of the next file."""
        if self.home is not None:
            self.home.run("reset", self.adding(ReaderReset(self)))
        else:
            wait_through(self.resetting())

    def resetting(self) -> Course:
        """Leave the current file; `reset` is the public form."""
        check_held(self)
        with self._turns.turn() as turn:
            yield turn.request
            self._current = self._path = None

    def statistics(self) -> ReaderStatistics:
        """Return what the reader has done."""
        if self.home is not None:
            records, files, current = self.home.run("statistics", self.adding(ReaderCounts(self)))
            return ReaderStatistics(int(records), int(files), str(np.asarray(current)[()]) or None)
        check_held(self)
        return ReaderStatistics(self._records, self._files, self._path)

    def __repr__(self) -> str:
        return f"<{self._label()}>"


def _stacked(values: Sequence[Any], spec: TensorSpec) -> Any:
    return np.array(values, dtypes.string) if spec.dtype == dtypes.string else np.stack(values)


class TextLineReader(Reader):
    """The lines of text files (UTF-8), without their ends. Keys are ``"file:line"``, counted from 1.

    Args:
        skip_header_lines: how many lines to leave out at the start of each file.
        name: for messages, and the names of the operations.

    >>> from pathlib import Path
    >>> import anabranch as ab
    >>> written = Path("poem.txt").write_text("one\\ntwo\\n")
    >>> names = ab.queues.FIFOQueue(8, "string", ())
    >>> names.enqueue("poem.txt")
    >>> reader = ab.io.TextLineReader()
    >>> reader.read(names), reader.read(names)
    (('poem.txt:1', 'one'), ('poem.txt:2', 'two'))
    """

    kind: ClassVar[str] = "text_line_reader"

    def __init__(self, skip_header_lines: int | None = None, name: str = "text_line_reader") -> None:
        super().__init__([TensorSpec((), dtypes.string)], name)
        self._skipped = skip_header_lines or 0

    def definition(self) -> dict[str, Any]:
        return {"skip_header_lines": self._skipped}

    def records(self, path: str) -> Iterator[Record]:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number > self._skipped:
                    yield f"{path}:{number}", (_text(line.removesuffix(b"\n").removesuffix(b"\r"), path, number),)


def _text(line: bytes, path: str, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataLossError(
            f"Line {number} of {path!r} is no UTF-8 text ({error}). FixedLengthRecordReader reads plain bytes."
        ) from None


class FixedLengthRecordReader(Reader):
    """Records of `record_bytes` bytes each, as uint8 vectors. Keys are ``"file:number"``, counted from 0.

    Args:
        record_bytes: the size of a record.
        header_bytes: how many bytes to leave out at the start of each file.
        footer_bytes: and at its end.
        hop_bytes: from the start of a record to the start of the next; by default `record_bytes`.
        name: for messages, and the names of the operations.

    >>> import anabranch as ab
    >>> with open("rows.bin", "wb") as file:
    ...     _ = file.write(bytes([1, 2, 3, 4]))
    >>> names = ab.queues.FIFOQueue(8, "string", ())
    >>> names.enqueue("rows.bin")
    >>> names.close()
    >>> reader = ab.io.FixedLengthRecordReader(record_bytes=2)
    >>> reader.read(names)
    ('rows.bin:0', array([1, 2], dtype=uint8))
    """

    kind: ClassVar[str] = "fixed_length_record_reader"

    def __init__(
        self,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        hop_bytes: int | None = None,
        name: str = "fixed_length_record_reader",
    ) -> None:
        super().__init__([TensorSpec((record_bytes,), np.dtype("uint8"))], name)
        self._size, self._header, self._footer = record_bytes, header_bytes or 0, footer_bytes or 0
        self._hop = hop_bytes or record_bytes
        if record_bytes < 1 or min(self._header, self._footer, self._hop) < 0:
            raise ValueError(
                f"{self._label()}: record_bytes must be at least 1 and the others not negative; got record_bytes="
                f"{record_bytes}, header_bytes={header_bytes}, footer_bytes={footer_bytes}, hop_bytes={hop_bytes}."
            )

    def definition(self) -> dict[str, Any]:
        return {
            "record_bytes": self._size,
            "header_bytes": self._header,
            "footer_bytes": self._footer,
            "hop_bytes": self._hop,
        }

    def records(self, path: str) -> Iterator[Record]:
        with Path(path).open("rb") as file:
            end = Path(path).stat().st_size - self._footer
            for number, start in enumerate(range(self._header, end, self._hop)):
                yield f"{path}:{number}", (self._record(file, path, number, start, end),)

    def _record(self, file: BinaryIO, path: str, number: int, start: int, end: int) -> Any:
        if start + self._size > end:
            raise DataLossError(
                f"{path!r} ends within record {number}: {end - start} of {self._size} bytes are left. Check "
                "record_bytes, header_bytes and footer_bytes."
            )
        file.seek(start)
        return np.frombuffer(file.read(self._size), "uint8").copy()


class TFRecordReader(Reader):
    """The records of TFRecord files, as uint8 vectors. Keys are ``"file:byte"``, where the record begins.

    Args:
        name: for messages, and the names of the operations.
        compression_type: None or "GZIP".

    >>> import anabranch as ab
    >>> with ab.io.TFRecordWriter("some.tfrecord") as writer:
    ...     writer.write(b"ab")
    >>> names = ab.queues.FIFOQueue(8, "string", ())
    >>> names.enqueue("some.tfrecord")
    >>> names.close()
    >>> ab.io.TFRecordReader().read(names)
    ('some.tfrecord:0', array([97, 98], dtype=uint8))
    """

    kind: ClassVar[str] = "tf_record_reader"

    def __init__(self, name: str = "tf_record_reader", compression_type: str | None = None) -> None:
        super().__init__([TensorSpec((None,), np.dtype("uint8"))], name)
        check_compression(compression_type)
        self._compression_type = compression_type

    def definition(self) -> dict[str, Any]:
        return {"compression_type": self._compression_type}

    def records(self, path: str) -> Iterator[Record]:
        for place, record in numbered_records(path, self._compression_type):
            yield f"{path}:{place}", (np.frombuffer(record, "uint8").copy(),)
