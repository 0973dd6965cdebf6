"""TFRecord files: records of bytes, each with its length and two checksums.

A record is ``uint64 length, uint32 checksum of it, length bytes, uint32 checksum of these``, little-endian, the
checksums masked (`crc32c.masked_crc32c`). Source: TensorFlow's documentation, "TFRecord and tf.train.Example".
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

import numpy as np

from ..graph.op import is_array
from ..queues.errors import DataLossError
from .crc32c import masked_crc32c

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_COMPRESSIONS = (None, "", "GZIP")


def check_compression(compression_type: str | None) -> bool:
    """Test whether a file is packed by gzip.

    Raises:
        ValueError: the type is not known.
    """
    if compression_type not in _COMPRESSIONS:
        raise ValueError(f"compression_type must be None or 'GZIP'; got {compression_type!r}.")
    return compression_type == "GZIP"


class TFRecordWriter:
    """Writes a TFRecord file. Use it in a ``with`` block, or call `close`.

    Args:
        path: the file, which is overwritten.
        compression_type: None or "GZIP".

    >>> import anabranch as ab
    >>> with ab.io.TFRecordWriter("two.tfrecord") as writer:
    ...     writer.write(b"first")
    ...     writer.write(b"second")
    >>> list(ab.io.tf_record_iterator("two.tfrecord"))
    [b'first', b'second']
    """

    def __init__(self, path: Any, compression_type: str | None = None) -> None:
        self._path = path
        self._is_packed = check_compression(compression_type)
        self._file = _opened(path, "wb", self._is_packed)

    def write(self, record: Any) -> None:
        """Append a record.

        Args:
            record: bytes, or a vector of uint8.

        Raises:
            TypeError: it is something else, such as text.
            OSError: there is no room for it. The file then ends within a record, and takes no more of them.
        """
        data = _as_bytes(record)
        length = struct.pack("<Q", len(data))
        with self._naming_the_file():
            self._file.write(length + _FOOTER.pack(masked_crc32c(length)) + data + _FOOTER.pack(masked_crc32c(data)))

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        with self._naming_the_file():
            self._file.flush()

    def close(self) -> None:
        """Finish the file."""
        with self._naming_the_file():
            self._file.close()

    @contextmanager
    def _naming_the_file(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            error.add_note(f"Records can't be written to {str(self._path)!r}: make room there, or name another file.")
            if not self._is_packed:  # or what could not be written would be tried again at the end of the process
                cast(Any, self._file).raw.close()
            raise

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _opened(path: Any, mode: str, packed: bool) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, mode) if packed else Path(path).open(mode))


def _as_bytes(record: Any) -> bytes:
    if isinstance(record, (bytes, bytearray)):
        return bytes(record)
    if is_array(record) and record.dtype == np.uint8 and record.ndim == 1:
        return record.tobytes()
    kind = f"{record.dtype} of shape {record.shape}" if is_array(record) else type(record).__name__
    raise TypeError(f"A record is bytes or a vector of uint8; got {kind}. Text is written as text.encode().")


def tf_record_iterator(path: Any, compression_type: str | None = None) -> Iterator[bytes]:
    """Return the records of a TFRecord file.

    Raises:
        DataLossError: the file is damaged or ends within a record.
        FileNotFoundError: there is no such file.

    >>> import anabranch as ab
    >>> with ab.io.TFRecordWriter("records.tfrecord") as writer:
    ...     writer.write(b"first")
    ...     writer.write(b"second")
    >>> list(ab.io.tf_record_iterator("records.tfrecord"))
    [b'first', b'second']
    """
    return (record for _, record in numbered_records(path, compression_type))


def numbered_records(path: Any, compression_type: str | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a TFRecord file, each with the place where it begins (in the unpacked file)."""
    packed = check_compression(compression_type)
    with _opened(path, "rb", packed) as file:
        place = 0
        while True:
            header = _read(file, _HEADER.size, path, place)
            if not header:
                return
            length, checksum = _HEADER.unpack(_whole(header, _HEADER.size, path, place))
            if masked_crc32c(header[:8]) != checksum:
                raise _damaged(path, place, "the checksum of its length does not fit; it may be no TFRecord file")
            body = _whole(_read(file, length + _FOOTER.size, path, place), length + _FOOTER.size, path, place)
            if masked_crc32c(memoryview(body)[:length]) != _FOOTER.unpack(body[length:])[0]:
                raise _damaged(path, place, "the checksum of its data does not fit")
            yield place, body[:length]
            place += _HEADER.size + length + _FOOTER.size


def _read(file: BinaryIO, count: int, path: Any, place: int) -> bytes:
    try:
        return file.read(count)
    except (EOFError, OSError, zlib.error, MemoryError, OverflowError) as error:
        raise _damaged(path, place, f"it can't be read ({type(error).__name__}: {error})") from error


def _whole(data: bytes, count: int, path: Any, place: int) -> bytes:
    if len(data) < count:
        raise _damaged(path, place, f"the file ends within it, after {len(data)} of {count} bytes")
    return data


def _damaged(path: Any, place: int, what: str) -> DataLossError:
    return DataLossError(f"{str(path)!r} is damaged at the record that begins at byte {place}: {what}.")
