"""Frames: what travels between tasks and clients. A kind, a head of bytes, and arrays, read into their final memory.

A frame is a prefix (`PREFIX`: the kind, the bytes of the head, the bytes of the table, how many arrays), the head, the
table (of each array its dtype's name, its rank and its dimensions), and the bytes of the arrays in turn, little endian.
An array may be in shared memory instead: then the table has the place there, and no bytes follow.
Nothing here waits or touches a socket: `Decoder` says where bytes are to go, and is given the number of those that have
come.
"""

from __future__ import annotations

import functools
import json
import math
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from ...engine.common.dtypes import as_dtype, name_of
from .slabs import SlabError

PROTOCOL = 9  # the version of what tasks and clients say to each other
PREFIX = struct.Struct("<BxxxIII")
FEW = 1 << 12  # bytes that are sooner joined than listed for the system
_DIRECT = 1 << 16  # arrays with more bytes than this to come are read into their own memory at once
_SCRATCH = 1 << 18
MOST_HEAD = 1 << 30
MOST_ARRAYS = 1 << 20
_MOST_RANK = 64
_HUGE = 1 << 46  # bytes of an array that no task can hold
_SHORT_TABLE = 256  # bytes; what was read of such tables is kept
_SHARED = 0x80  # of the rank: the array is in shared memory

_PLACE = struct.Struct("<QQ")  # the slab, and the first byte there

Share = Callable[[Any], "tuple[int, int] | None"]
Small = Callable[[Any, int], tuple[int, int]]  # of a buffer and its bytes: how many are done with, of how many values
Shared = Callable[[int, int, Any, "tuple[int, ...]"], Any]  # of a slab, a byte, a dtype and a shape: the array there


class Kind(IntEnum):
    """The purpose of a frame; see `docs/distribute.md`."""

    HELLO = 1
    PROOF = 2
    WELCOME = 3
    REFUSED = 4
    GRAPH = 10
    PREPARE = 11
    PREPARED = 12
    RUN = 13
    RESULT = 14
    ERROR = 15
    CANCEL = 16
    STATUS = 17
    UNKNOWN = 18
    PROGRAM = 20
    READY = 21
    STEP = 22
    ENDED = 23
    ABORT = 24
    FAILED = 25
    VALUE = 26
    FORGET = 27
    TEXT = 28
    RESET = 29
    SLAB = 30
    DROPPED = 31
    TAKEN = 32
    CLOCK = 33
    LINKS = 34
    PROBE = 35
    FED = 36
    FETCHED = 37
    LEAVES = 38


# Made once: `json` makes one each time that it is asked for other separators, and guesses the encoding of bytes.
_write_json = json.JSONEncoder(separators=(",", ":")).encode
_read_json = json.JSONDecoder().decode
# What reading a damaged document raises.
DAMAGE = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


class FrameError(ValueError):
    """Bytes that are not a frame, or a frame that its receiver does not take."""


class Frame(NamedTuple):
    """One frame."""

    kind: int
    head: bytes
    arrays: list[Any]

    def document(self) -> dict[str, Any]:
        """Read a head that is JSON.

        Raises:
            FrameError: it is none.
        """
        try:
            found = _read_json(self.head.decode())
        except (ValueError, RecursionError) as error:
            raise FrameError(f"a frame's head is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise FrameError("a frame's head is no JSON object")
        return found


# --- writing --------------------------------------------------------------------------------------------------------


def encode(kind: int, head: bytes, arrays: Sequence[Any] = (), share: Share | None = None) -> list[Any]:
    """Write a frame as buffers to be sent one after the other. Arrays are not copied: nothing may write to them.

    Args:
        share: lays an array into shared memory and gives the number of its slab and the first byte there, or None.
    """
    entries: list[bytes] = []
    payloads: list[Any] = []
    for array in arrays:
        place = None if share is None else share(array)
        if place is not None:
            entries.append(array_description(array.dtype, array.shape, _SHARED) + _PLACE.pack(*place))
            continue
        entry, payload = _entry(array)
        entries.append(entry)
        if len(payload):
            payloads.append(payload)
    table = b"".join(entries)
    return [PREFIX.pack(kind, len(head), len(table), len(entries)) + head + table, *payloads]


def encode_document(kind: int, document: Any, arrays: Sequence[Any] = ()) -> list[Any]:
    """Write a frame whose head is JSON."""
    return encode(kind, _write_json(document).encode(), arrays)


def _entry(value: Any) -> tuple[bytes, Any]:
    array = np.asarray(value, order="C")
    entry = array_description(array.dtype, array.shape)
    if sys.byteorder == "big" or array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.nbytes < 64:
        return entry, array.tobytes()
    payload: Any = array.reshape(-1).view(np.uint8)
    return entry, memoryview(payload)


@functools.lru_cache(1024)
def array_description(dtype: Any, shape: tuple[int, ...], marks: int = 0) -> bytes:
    """Return the entry of an array in the table of its frame."""
    name = name_of(dtype).encode()
    return struct.pack(f"<BB{len(shape)}Q", len(name), len(shape) | marks, *shape) + name


# --- reading --------------------------------------------------------------------------------------------------------


class Decoder:
    """Takes frames out of a stream of bytes.

    Args:
        most_head: the most bytes of a head and of a table.
        most_arrays: the most arrays of a frame.
        shared: gives arrays in shared memory; None if the other side has none.

    Read into `buffer()`, and call `advance` with the number of bytes; it gives the frames that are complete.
    """

    def __init__(
        self, most_head: int = MOST_HEAD, most_arrays: int = MOST_ARRAYS, shared: Shared | None = None
    ) -> None:
        self.shared = shared
        self.most_head = most_head
        self.most_arrays = most_arrays
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._is_direct = False
        self._begin()

    def _begin(self) -> None:
        """Expect a prefix."""
        self._prefix: tuple[int, int, int, int] | None = None
        self._head: bytes | None = None
        self._arrays: list[Any] = []
        self._waiting: list[Any] = []  # arrays that are to be filled, the next one last
        self._aim(bytearray(PREFIX.size))

    def _aim(self, target: Any) -> None:
        self._target = memoryview(target)
        self._filled = 0

    def buffer(self) -> memoryview:
        """Return the memory into which the next bytes are to go."""
        self._is_direct = len(self._target) - self._filled > _DIRECT
        return self._target[self._filled :] if self._is_direct else self._scratch

    def small_values(self, count: int, take: Small) -> tuple[int, int]:
        """Hand over values that have come whole, as long as such come first: most loops wait for these.

        Their arrays are in the head, or behind it in the same buffer.

        Args:
            count: the bytes that are in what `buffer` gave.
            take: takes them, if a frame begins with the first one.

        Returns:
            The number of bytes that are done with, and of values; the rest is for `advance`.
        """
        if self._is_direct or self._filled or self._prefix is not None:
            return 0, 0
        return take(self._scratch, count)

    def advance(self, count: int, first: int = 0) -> Iterator[Frame]:
        """Take in `count` bytes that are in what `buffer` gave; yield the frames that are complete.

        Args:
            count: how many bytes there are.
            first: the first of them that is not done with.

        Raises:
            FrameError: the bytes are not a frame, or one that is larger than is allowed.
        """
        if self._is_direct:
            self._filled += count
            if self._filled == len(self._target):
                yield from self._next()
            return
        position = first
        while position < count:
            found, position = self._whole(position, count)
            if found is not None:
                yield found
                continue
            taken = min(len(self._target) - self._filled, count - position)
            self._target[self._filled : self._filled + taken] = self._scratch[position : position + taken]
            self._filled += taken
            position += taken
            if self._filled == len(self._target):
                yield from self._next()

    def _whole(self, position: int, count: int) -> tuple[Frame | None, int]:
        """Take a frame that has come whole, as most do, at once; return it, or None, and where the next bytes are."""
        begin = position + PREFIX.size
        if self._prefix is not None or self._filled or begin > count:
            return None, position
        kind, head, table, number = prefix = PREFIX.unpack_from(self._scratch, position)
        if max(head, table) > self.most_head or number > self.most_arrays or begin + head + table > count:
            return None, position  # an error is raised, or the rest awaited, by `_next`
        text = bytes(self._scratch[begin : begin + head])
        position = begin + head + table
        if not number:
            return Frame(kind, text, []), position
        if number > table:
            return None, begin - PREFIX.size
        arrays, waiting = _tabled(self._scratch[begin + head : position], number, self.shared)
        for place, array in enumerate(waiting):
            if array.nbytes > count - position:  # it is awaited
                self._prefix, self._head, self._arrays = prefix, text, arrays
                self._waiting = [each for each in reversed(waiting[place:]) if each.nbytes]
                self._aim(_bytes_of(array))
                return None, position
            if array.nbytes:
                array[...] = np.ndarray(array.shape, array.dtype, self._scratch, position)
                position += array.nbytes
        return _frame(kind, text, arrays), position

    def _next(self) -> Iterator[Frame]:
        """Go on when what was awaited is there."""
        if self._prefix is None:
            kind, head, table, count = self._prefix = PREFIX.unpack(self._target)
            if head > self.most_head or table > self.most_head or count > self.most_arrays or count > table:
                raise FrameError(
                    f"a frame of kind {kind} with a head of {head} bytes and {count} arrays is larger than is allowed"
                )
            if head + table:
                self._aim(bytearray(head + table))
                return
        if self._head is None:
            _, head, _, count = self._prefix
            self._head = bytes(self._target[:head]) if head else b""
            table = self._target[head:] if count else memoryview(b"")
            self._arrays, waiting = _tabled(table, count, self.shared)
            self._waiting = [array for array in reversed(waiting) if array.nbytes]
        elif self._waiting:
            self._waiting.pop()
        if self._waiting:
            self._aim(_bytes_of(self._waiting[-1]))
            return
        found = _frame(self._prefix[0], self._head, self._arrays)
        self._begin()
        yield found


def _frame(kind: int, head: bytes, arrays: list[Any]) -> Frame:
    # Arrays of rank 0 are numbers: that is what they are while a step runs.
    return Frame(kind, head, [array if array.ndim else array[()] for array in arrays])


def _bytes_of(array: Any) -> Any:
    """Return the memory of an array as bytes."""
    return array.reshape(-1).view(np.uint8)


def _tabled(table: memoryview, count: int, shared: Shared | None) -> tuple[list[Any], list[Any]]:
    """Return arrays as a table says, and those of them whose values follow."""
    read = _known_entries if len(table) <= _SHORT_TABLE else _entries
    made: list[Any] = []
    waiting: list[Any] = []
    for dtype, shape, place in read(bytes(table), count):
        if place is None:
            made.append(_empty(shape, dtype))
            waiting.append(made[-1])
        else:
            made.append(_lying(*place, dtype, shape, shared))
    return made, waiting


def _entries(table: bytes, count: int) -> list[tuple[Any, tuple[int, ...], tuple[int, int] | None]]:
    """Read a table: of each array its dtype, its shape, and its slab and first byte there if it is in shared memory."""
    found: list[tuple[Any, tuple[int, ...], tuple[int, int] | None]] = []
    position = 0
    try:
        for _ in range(count):
            length, marked = table[position], table[position + 1]
            rank = marked & ~_SHARED
            if rank > _MOST_RANK:
                raise FrameError(f"an array has rank {rank}")
            shape = struct.unpack_from(f"<{rank}Q", table, position + 2)
            position += 2 + 8 * rank
            name = table[position : position + length].decode("ascii")
            position += length
            place: tuple[int, int] | None = None
            if marked & _SHARED:
                slab, offset = _PLACE.unpack_from(table, position)
                position += _PLACE.size
                place = slab, offset
            found.append((_checked_dtype(shape, name), shape, place))
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"the table of a frame's arrays is cut short: {error}") from None
    if position != len(table):
        raise FrameError("the table of a frame's arrays is longer than the arrays are many")
    return found


# A loop over tasks sends arrays of the same shapes and dtypes in each iteration.
_known_entries = functools.lru_cache(1024)(_entries)


def array_in_place(buffer: Any, table: int, first: int, count: int) -> tuple[Any, int] | None:
    """Read the only array of a frame out of the memory in which it came.

    Args:
        buffer: where the frame is.
        table, first: the first bytes of the frame's table and of the array.
        count: how many bytes have come.

    Returns:
        The array, which has its own memory, and the first byte behind it. None if not all of it is there.

    Raises:
        FrameError: the table is damaged.
    """
    if first - table > _SHORT_TABLE:
        return None
    ((dtype, shape, place),) = _known_entries(bytes(buffer[table:first]), 1)
    end = first + dtype.itemsize * math.prod(shape)
    if place is not None or end > count:
        return None
    array = np.ndarray(shape, dtype, buffer, first)
    return array.copy() if shape else array[()], end


def _lying(slab: int, offset: int, dtype: Any, shape: tuple[int, ...], shared: Shared | None) -> Any:
    if shared is None:
        raise FrameError(f"an array is in slab {slab}, and this connection has none")
    try:
        return shared(slab, offset, dtype, shape)
    except SlabError as error:
        raise FrameError(str(error)) from None


def _checked_dtype(shape: tuple[int, ...], name: str) -> Any:
    try:
        dtype = as_dtype(name)
    except (TypeError, ValueError, SyntaxError) as error:
        raise FrameError(f"an array has dtype {name!r}: {error}") from None
    if name_of(dtype) != name:  # NumPy reads much else: records, arrays of arrays
        raise FrameError(f"an array has dtype {name!r}, which is no name of one")
    size = dtype.itemsize
    for dimension in shape:
        size *= max(dimension, 1)
    if dtype.kind not in "biufcV" or dtype.hasobject or size > _HUGE:
        raise FrameError(f"an array of shape {shape} and dtype {name} can't be sent")
    return dtype


def _empty(shape: tuple[int, ...], dtype: Any) -> Any:
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:
        array = f"an array of shape {shape} and dtype {name_of(dtype)}"
        raise FrameError(f"there is no memory for {array}: {error}") from None
