"""Event files, which TensorBoard shows: written without TensorFlow and without TensorBoard.

A file is a row of TFRecords, each an `Event` in the wire format of protocol buffers. Numbers of fields are those of
TensorFlow's `event.proto`, `summary.proto`, `histogram.proto` and `tensor.proto`.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
import weakref
import zlib
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..ops.base import as_array
from ..readers import TFRecordWriter
from .wire_format import bytes_field, double_field, doubles_field, float_field, integer_field

Array = NDArray[Any]

BINS = 30
_STRING = 7  # in types.proto
_TENSOR_CLASS = 2  # in summary.proto: a summary that holds a tensor
COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}  # of a PNG, by the number of channels
_numbers = itertools.count()  # so that two files of a process and a second have two names


class EventFile:
    """Writes what TensorBoard shows to a new file in a folder. Use it in a ``with`` block, or call `close`.

    Args:
        log_dir: the folder, which is made if need be; each writer has a file of its own in it.
        filename_suffix: what the file's name ends in.

    Raises:
        OSError: the file can't be made.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, EventFile(folder) as writer:
    ...     for step in range(3):
    ...         writer.scalar("loss", 1 / (step + 1), step)
    ...     writer.histogram("weights", np.arange(10.0), step=2)
    ...     writer.image("gradient", np.linspace(0, 1, 12).reshape(3, 4, 1), step=2)
    ...     writer.text("note", "the **first** run", step=0)
    """

    def __init__(self, log_dir: str | os.PathLike[str], filename_suffix: str = "") -> None:
        self.log_dir = os.fspath(log_dir)
        os.makedirs(self.log_dir, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self.path = os.path.join(self.log_dir, f"{name}.v2{filename_suffix}")
        self._file: TFRecordWriter | None = TFRecordWriter(self.path)
        self._closing = weakref.finalize(self, self._file.close)  # where an error ends what was to call `close`
        self._write(bytes_field(3, "brain.Event:2"), 0)

    def scalar(self, name: str, data: Any, step: int = 0) -> None:
        """Write a number at a step.

        Args:
            name: its tag; slashes group tags.
            data: a number, or an array of one.
            step: where on the axis.

        Raises:
            ValueError: it is an array of several.
        """
        value = np.asarray(as_array(data))
        if value.size != 1:
            raise ValueError(f"scalar {name!r} must be one number, got an array of shape {value.shape}; see histogram.")
        self._summary(name, float_field(2, float(np.float32(value.reshape(())))), step)

    def histogram(self, name: str, data: Any, step: int = 0, buckets: int = BINS) -> None:
        """Write how the values of an array are spread, without NaN and infinities; nothing where there are no others.

        Args:
            name: its tag.
            data: an array of any shape, of numbers.
            step: where on the axis.
            buckets: how many there are.
        """
        self.buckets(name, *bucketed(np.asarray(as_array(data)), buckets), step)

    def buckets(self, name: str, numbers: Any, limits: Any, counts: Any, step: int = 0) -> None:
        """Write a histogram of which the buckets are known, as `bucketed` gives them; without any nothing is written.

        Args:
            name: its tag.
            numbers: the least value, the largest one, how many there are, their sum and the sum of their squares.
            limits, counts: for each bucket its right edge, and how many values are in it.
            step: where on the axis.
        """
        if len(counts):
            head = b"".join(double_field(field, float(number)) for field, number in enumerate(numbers, 1))
            self._summary(name, bytes_field(5, head + doubles_field(6, limits) + doubles_field(7, counts)), step)

    def image(self, name: str, data: Any, step: int = 0, max_outputs: int = 3) -> None:
        """Write one image or several.

        Args:
            name: its tag; several images are ``name/0``, ``name/1``, ...
            data: ``[height, width, channels]`` or ``[images, height, width, channels]``, with 1 to 4 channels; uint8,
                or floats from 0 to 1, beyond which they are cut off.
            step: where on the axis.
            max_outputs: how many images are written at most.

        Raises:
            ValueError: the array has another shape.
        """
        pixels = np.asarray(as_array(data))
        if pixels.ndim not in (3, 4) or pixels.shape[-1] not in COLOURS or 0 in pixels.shape:
            raise ValueError(
                f"image {name!r} must have shape [height, width, channels] or [images, height, width, channels] with 1 "
                f"to 4 channels, got {pixels.shape}. A matrix becomes an image by matrix[..., None]."
            )
        images = pixels[None] if pixels.ndim == 3 else pixels[:max_outputs]
        for number, image in enumerate(images):
            tag = f"{name}/{number}" if len(images) > 1 else name
            self._summary(tag, bytes_field(4, _image(as_bytes(image))), step)

    def text(self, name: str, data: str | Iterable[str], step: int = 0) -> None:
        """Write text, as Markdown.

        Args:
            name: its tag.
            data: a text, or several.
            step: where on the axis.
        """
        several = not isinstance(data, str)
        self._tensor(name, list(data) if several else [data], "text", b"", step, is_vector=several)

    def keras_model(self, name: str, json_text: str, step: int = 0) -> None:
        """Write a model's config as JSON, which TensorBoard draws layer by layer.

        Args:
            name: its tag.
            json_text: what `Model.to_json` gives.
            step: where on the axis.
        """
        self._tensor(name, [json_text], "graph_keras_model", b"1", step)

    def flush(self) -> None:
        """Hand what was written to the operating system, so that TensorBoard sees it."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Finish the file. A second call does nothing."""
        self._closing()
        self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tensor(
        self, name: str, texts: list[str], plugin: str, content: bytes, step: int, is_vector: bool = False
    ) -> None:
        """Write a summary that a plugin of TensorBoard reads from a tensor of strings."""
        content_fields = bytes_field(1, plugin) + (bytes_field(2, content) if content else b"")
        metadata = bytes_field(1, content_fields) + integer_field(4, _TENSOR_CLASS)
        shape = bytes_field(2, bytes_field(2, integer_field(1, len(texts)))) if is_vector else bytes_field(2, b"")
        tensor = integer_field(1, _STRING) + shape + b"".join(bytes_field(8, text) for text in texts)
        self._summary(name, bytes_field(9, metadata) + bytes_field(8, tensor), step)

    def _summary(self, tag: str, value: bytes, step: int) -> None:
        self._write(bytes_field(5, bytes_field(1, bytes_field(1, tag) + value)), step)

    def _write(self, what: bytes, step: int) -> None:
        if self._file is None:
            raise ValueError(f"The event file {self.path!r} is closed: make another writer to write more.")
        self._file.write(double_field(1, time.time()) + (integer_field(2, int(step)) if step else b"") + what)


# --- messages -------------------------------------------------------------------------------------------------------


def bucketed(values: Array, buckets: int = BINS) -> tuple[Array, Array, Array]:
    """Return how the finite values of an array are spread over buckets of one width.

    Args:
        values: of any shape.
        buckets: how many there are; one, if all values are alike.

    Returns:
        Float64 arrays: the least value, the largest one, the number of values, their sum and that of their squares; the
        right edges of the buckets; how many values are in each. Without a finite value there is no bucket.
    """
    flat = np.asarray(values).astype("float64").ravel()
    finite = flat[np.isfinite(flat)]
    if not finite.size:
        return np.zeros(5), np.zeros(0), np.zeros(0)
    low, high = float(finite.min()), float(finite.max())
    counts, edges = np.histogram(finite, bins=buckets) if low < high else (np.array([finite.size]), np.array([low] * 2))
    with np.errstate(over="ignore"):
        numbers = np.array([low, high, float(finite.size), float(finite.sum()), float(np.square(finite).sum())])
    return numbers, edges[1:].astype("float64"), counts.astype("float64")


def as_bytes(image: Array) -> Array:
    """Convert floats from 0 to 1 to 0 ... 255."""
    if image.dtype == np.uint8:
        return image
    return (np.clip(np.nan_to_num(image.astype("float64")), 0.0, 1.0) * 255 + 0.5).astype("uint8")


def _image(pixels: Array) -> bytes:
    height, width, channels = pixels.shape
    size = integer_field(1, height) + integer_field(2, width) + integer_field(3, channels)
    return size + bytes_field(4, encode_png(pixels))


def encode_png(pixels: Array) -> bytes:
    """Return an array as a PNG file.

    Args:
        pixels: ``[height, width, channels]`` of uint8, with 1 (grey), 2 (grey and alpha), 3 or 4 channels.

    Source: Portable Network Graphics specification, second edition, W3C 2003.
    """
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), "uint8")  # each row begins with the kind of its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, COLOURS[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


__all__ = ["BINS", "EventFile", "as_bytes", "bucketed", "encode_png"]
