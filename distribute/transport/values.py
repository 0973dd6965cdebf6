"""Values of a step as a description and arrays, and back: numbers, arrays, strings, TensorArrays and TensorStores."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ...engine.common.descriptions import describe_value
from ...engine.common.dtypes import as_dtype
from ...engine.machine.kept import KeptValue
from ...engine.ops.containers.array_value import ArrayValue
from ...engine.ops.containers.store_value import StoreValue, as_key
from .wire import DAMAGE, FEW, PREFIX, FrameError, Kind, array_description, array_in_place

_TAG = struct.Struct(
    "<QQIBB"
)  # the master's incarnation, the step's number, the edge, how it is written, the tag's length
DEAD, CONTROL, PLAIN, WRITTEN, UPPER = range(5)
_FIRST_NUMBER = 16  # a number in the head is written as this and the place of its dtype in the list
_MOST_TAG = 255
LARGE = 1 << 16  # bytes; more of a feed or fetch goes straight between a client and the task
_MOST_KNOWN = 1 << 12  # openings of frames; arrays have one for each length of what describes them
_MOST_SLOTS = 1 << 22  # of a TensorArray that is not written whole: a few bytes ask for their memory
_IS_LITTLE = sys.byteorder == "little"


def _no_bytes(value: Any) -> bytes:
    """Write what has no value: a control, or what is dead."""
    return b""


# NumPy's own numbers, little-endian, each with what writes one. Of a float the bytes are taken as they are.
_WRITERS: dict[str, Callable[[Any], bytes]] = {
    **{
        text: struct.Struct(f"<{code}").pack
        for text, code in zip(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"], "?bhiqBHIQ", strict=True)
    },
    **dict.fromkeys(["f2", "f4", "f8"], bytes if _IS_LITTLE else lambda value: value.tobytes()[::-1]),
}
_NUMBERS = {_FIRST_NUMBER + k: np.dtype(f"<{text}") for k, text in enumerate(_WRITERS)}  # by how they are written
# By what is sent: how it is written, the bytes of it, and what writes it.
_HOW: dict[Any, tuple[int, int, Callable[[Any], bytes]]] = {
    **{dtype.type: (how, dtype.itemsize, _WRITERS[dtype.str[1:]]) for how, dtype in _NUMBERS.items()},
    DEAD: (DEAD, 0, _no_bytes),
    type(None): (CONTROL, 0, _no_bytes),
}
_TAGS = [struct.Struct(f"<{count}Q") for count in range(8)]
_OPENING = struct.Struct(PREFIX.format + _TAG.format[1:])  # the first bytes of the frame of a value, before its tag
_OPENING_SIZE = _OPENING.size
_VALUE = int(Kind.VALUE)
_ARRAY = np.ndarray
_BOOLS = (np.False_, np.True_)


def is_large(value: Any) -> bool:
    """Test whether a value is an array of numbers that does not travel in the message of a step."""
    return isinstance(value, np.ndarray) and value.nbytes > LARGE and value.dtype.kind in "biufcV"


def encode_value(value: Any, arrays: list[Any]) -> Any:
    """Describe a value as JSON; its numbers are appended to `arrays`.

    Raises:
        TypeError: it is of a kind that does not leave its task.
        MemoryError: there is no room to put a view of it together.
    """
    if value is None:
        return None
    if isinstance(value, ArrayValue):
        return _encode_elements(value, arrays)
    if isinstance(value, StoreValue):
        return {"store": [[key, encode_value(item, arrays)] for key, item in value.items()]}
    if isinstance(value, KeptValue):
        kept = None if value.value is None else encode_value(value.value, arrays)
        return {"kept": [value.number, value.version], "value": kept}
    if isinstance(value, tuple):
        return {"tuple": [encode_value(item, arrays) for item in value]}
    if isinstance(value, str):
        return {"text": [value], "shape": []}
    if isinstance(value, (np.ndarray, np.generic, bool, int, float)):
        array = np.asarray(value)
        if array.dtype.kind in "TU":
            return {"text": array.reshape(-1).tolist(), "shape": list(array.shape)}
        if not array.dtype.hasobject:
            arrays.append(array if array.flags.c_contiguous else _in_one_piece(array))
            return len(arrays) - 1
    getattr(value, "dtype", None)  # raises the reason where it stands for a value that is lost
    raise TypeError(f"a value of type {type(value).__name__} does not leave its task")


def _in_one_piece(array: Any) -> Any:
    """Copy a view, such as a number that is repeated, as it has to be for being sent.

    Raises:
        MemoryError: there is no room.
    """
    try:
        return np.asarray(array, order="C")
    except MemoryError:
        raise MemoryError(
            f"A value that is to be sent, {describe_value(array)}, takes {array.nbytes:,} bytes, for which there is no "
            "memory. Send a part of it."
        ) from None


def _encode_elements(value: ArrayValue, arrays: list[Any]) -> Any:
    if value.size and value.is_dense:
        rows = value.stack(None, None)
        if rows.dtype.kind != "T":
            return {"stacked": encode_value(rows, arrays)}
    if value.size > _MOST_SLOTS:
        raise TypeError(
            f"a TensorArray of {value.size} elements, of which some are not written, does not leave its task; at most "
            f"{_MOST_SLOTS} are allowed"
        )
    items = [value.read_or_none(index) if value.has(index) else None for index in range(value.size)]
    written = [[index, encode_value(item, arrays)] for index, item in enumerate(items) if value.has(index)]
    return {"elements": written, "size": value.size}


def decode_value(description: Any, arrays: Sequence[Any]) -> Any:
    """Make the value that `encode_value` described.

    Raises:
        FrameError: it is not such a description.
    """
    try:
        return _decoded(description, arrays)
    except DAMAGE as error:
        raise FrameError(f"a value's description is damaged: {type(error).__name__}: {error}") from None


def _decoded(description: Any, arrays: Sequence[Any]) -> Any:
    if description is None:
        return None
    if isinstance(description, int):
        if description < 0:
            raise FrameError("a value's description names an array before the first")
        return arrays[description]
    if "text" in description:
        return np.array(description["text"], as_dtype("string")).reshape(description["shape"])
    if "stacked" in description:
        return ArrayValue.from_stacked(_decoded(description["stacked"], arrays))
    if "tuple" in description:
        return tuple([_decoded(item, arrays) for item in description["tuple"]])
    if "kept" in description:
        number, version = map(int, description["kept"])
        return KeptValue(number, version, _decoded(description["value"], arrays))
    if "store" in description:
        store = StoreValue.empty()
        for key, item in description["store"]:
            store = store.write(as_key(key), _decoded(item, arrays))
        return store
    items = {int(index): _decoded(item, arrays) for index, item in description["elements"]}
    size = int(description["size"])
    if not 0 <= size <= _MOST_SLOTS or not all(0 <= index < size for index in items):
        raise FrameError(f"a TensorArray is described that has {size} elements")
    return ArrayValue.from_written(size, items)


# --- arrays that grow -----------------------------------------------------------------------------------------------


class Sent:
    """TensorArrays and TensorStores that a step has sent, by edge: of the next one only what is new has to travel.

    The other side has a `Received`; what is sent comes there in the order in which it was sent.

    Args:
        program: its number, if the other side is to keep values of variables for later steps of it.
    """

    def __init__(self, program: int = 0) -> None:
        self._program = program
        self._latest: dict[int, tuple[tuple[int, ...], Any]] = {}

    def described(self, edge: int, tag: tuple[int, ...], value: Any, arrays: list[Any]) -> Any:
        """Describe a value as `encode_value` does, or as what it has more than the one before it on the edge."""
        before = self._latest.get(edge)
        if isinstance(value, tuple):
            self._latest[edge] = (tag, value)
            return {**_described_part(value, before, arrays), "program": self._program}
        if not isinstance(value, (ArrayValue, StoreValue)):
            return encode_value(value, arrays)
        value.note_changes()
        self._latest[edge] = (tag, value)
        changed: Any = None if before is None else _changed(value, before[1])
        if before is None or changed is None or 2 * len(changed) > value.size:
            return encode_value(value, arrays)
        held = [index for index in changed if value.has(index)]
        return {
            "since": list(before[0]),
            "size": value.size,
            "cleared": [index for index in changed if not value.has(index)],
            "elements": [[index, encode_value(value.read_or_none(index), arrays)] for index in held],
        }


def _described_part(value: tuple[Any, ...], before: tuple[tuple[int, ...], Any] | None, arrays: list[Any]) -> Any:
    """Describe what a scheduled function takes on another task: what that has already had on the edge stays there."""
    held = () if before is None else before[1]
    same = [k for k, (item, known) in enumerate(zip(value, held, strict=False)) if item is known is not None]
    if before is None or not same:
        return encode_value(value, arrays)
    items = [None if k in same else encode_value(item, arrays) for k, item in enumerate(value)]
    return {"since": list(before[0]), "same": same, "tuple": items}


def _changed(value: Any, before: Any) -> Sequence[Any] | None:
    return value.changed_since(before) if type(value) is type(before) else None


class Kept:
    """Values of variables that a task keeps for functions that a master schedules on it, from step to step."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, int], tuple[int, Any]] = {}  # by program and variable: the version, the value

    def __len__(self) -> int:
        """Return how many values there are."""
        return len(self._values)

    def taken(self, program: int, item: KeptValue) -> Any:
        """Return the value that has come, or is kept.

        Raises:
            FrameError: it is not.
        """
        key = (program, item.number)
        if item.value is not None:
            self._values[key] = (item.version, item.value)
            return item.value
        version, value = self._values.get(key, (0, None))
        if version != item.version:
            raise FrameError(f"version {item.version} of variable {item.number} is said to be kept here, and is not")
        return value

    def give_up(self, program: int, numbers: Collection[int] | None = None) -> None:
        """Give up the values of some variables, or of all that a program has."""
        for key in [key for key in self._values if key[0] == program and (numbers is None or key[1] in numbers)]:
            del self._values[key]


class Received:
    """TensorArrays and TensorStores that a step has received, by edge: what comes later has only what is new.

    Args:
        kept: what this task keeps for all steps of the master.
    """

    def __init__(self, kept: Kept | None = None) -> None:
        self._kept = Kept() if kept is None else kept
        self._latest: dict[int, tuple[tuple[int, ...], Any]] = {}

    def value(self, edge: int, tag: tuple[int, ...], described: Any, arrays: Sequence[Any]) -> Any:
        """Make the value that `Sent.described` described.

        Raises:
            FrameError: it is not such a description, or what it begins from has not come.
        """
        value = (
            self._continued(edge, described, arrays) if _is_continued(described) else decode_value(described, arrays)
        )
        if isinstance(value, tuple):
            program = described.get("program", 0)
            items = [self._kept.taken(program, item) if isinstance(item, KeptValue) else item for item in value]
            value = tuple(items)
        if isinstance(value, (ArrayValue, StoreValue, tuple)):
            self._latest[edge] = (tag, value)
        return value

    def _continued(self, edge: int, described: Any, arrays: Sequence[Any]) -> Any:
        try:
            before = self._latest[edge]
            value = before[1]
            if before[0] != tuple(described["since"]):
                raise FrameError(f"a value continues that of iterations {described['since']}, which is not the latest")
            if "tuple" in described:
                items = enumerate(described["tuple"])
                return tuple([value[k] if k in described["same"] else _decoded(item, arrays) for k, item in items])
            size = int(described["size"])
            is_array = isinstance(value, ArrayValue)
            if is_array:
                if not value.size <= size <= _MOST_SLOTS:
                    raise FrameError(f"a TensorArray of {value.size} elements goes on with {size}")
                value = value.grown(size)
            for key in described["cleared"]:
                value = value.clear(int(key) if is_array else as_key(key))
            for key, item in described["elements"]:
                element = _decoded(item, arrays)
                if is_array:
                    value = value.write(int(key), element)
                else:
                    value = value.clear(as_key(key)).write(as_key(key), element)
        except (LookupError, *DAMAGE) as error:
            raise FrameError(f"a value's description is damaged: {type(error).__name__}: {error}") from None
        return value


def _is_continued(described: Any) -> bool:
    return isinstance(described, dict) and "since" in described


# --- values that cross ----------------------------------------------------------------------------------------------


def encode_token(
    step: tuple[int, int],
    edge: int,
    tag: tuple[int, ...],
    value: Any,
    is_dead: bool,
    is_lossy: bool = False,
    sent: Sent | None = None,
) -> tuple[bytes, list[Any]]:
    """Write a value that crosses: the head of its frame, and its arrays.

    Args:
        step: the incarnation of the step's master, and the number that it gave the step.
        edge: the number of the Recv.
        tag: the numbers of the iterations around.
        value: what crosses; nothing if it is dead.
        is_dead: whether it is.
        is_lossy: whether it is of 32-bit floats whose lower halves are zeros: the upper ones travel alone.
        sent: what the step has sent before, of arrays and stores only what is new is written.
    """
    small = None if type(value) is _ARRAY and not is_dead else SmallFrames(step).frame(edge, tag, value, is_dead)
    if small is not None:
        return small[PREFIX.size :], []
    return encode_other(step, edge, tag, value, is_lossy, sent)


def encode_other(
    step: tuple[int, int], edge: int, tag: tuple[int, ...], value: Any, is_lossy: bool = False, sent: Sent | None = None
) -> tuple[bytes, list[Any]]:
    """Write a value as `encode_token` does that is not all in the head."""
    arrays: list[Any] = []
    text = b""
    if is_lossy and type(value) is np.ndarray:
        how = UPPER
        arrays.append((value.view(np.uint32) >> 16).astype(np.uint16))
    elif type(value) is np.ndarray and value.dtype.kind in "biufc":
        how = PLAIN
        arrays.append(value)
    else:
        how = WRITTEN
        described = encode_value(value, arrays) if sent is None else sent.described(edge, tag, value, arrays)
        text = json.dumps(described).encode()
    return _TAG.pack(*step, edge, how, _checked_length(tag)) + _tag_of(len(tag)).pack(*tag) + text, arrays


class SmallFrames:
    """Writes small values of a step as whole frames: numbers that are in the head, and arrays of few bytes.

    Args:
        step: see `encode_token`.
        lossy: the edges whose floats travel by their upper halves: their arrays are not written here.
    """

    def __init__(self, step: tuple[int, int], lossy: Collection[int] = ()) -> None:
        self._step = step
        self._lossy = lossy
        # By edge and type: what a frame begins with, and what writes the tag and the value.
        self._openings: dict[tuple[int, Any], tuple[bytes, Callable[..., bytes], Callable[[Any], bytes]]] = {}

    def frame(self, edge: int, tag: tuple[int, ...], value: Any, is_dead: bool, most: int = FEW) -> bytes | None:
        """Write a value as `encode_token` does; return None if it is another one.

        Args:
            edge, tag, value, is_dead: see `encode_token`. All tags of an edge have one length.
            most: the bytes of the largest array that is written.
        """
        known = self._openings.get((edge, DEAD if is_dead else type(value)))
        if known is None:
            return self._first_frame(edge, tag, value, is_dead, most)
        opening, write_tag, write = known
        return opening + write_tag(*tag) + write(value)

    def _first_frame(self, edge: int, tag: tuple[int, ...], value: Any, is_dead: bool, most: int) -> bytes | None:
        """Write an array, or what is the first of its type on the edge."""
        what = DEAD if is_dead else type(value)
        if what is _ARRAY:
            return self._array(edge, tag, value) if value.nbytes <= most else None
        if what not in _HOW:
            return None
        how, size, write = _HOW[what]
        write_tag = _tag_of(_checked_length(tag)).pack
        opening = _OPENING.pack(_VALUE, _TAG.size + 8 * len(tag) + size, 0, 0, *self._step, edge, how, len(tag))
        self._openings[edge, what] = (opening, write_tag, write)
        return opening + write_tag(*tag) + write(value)

    def _array(self, edge: int, tag: tuple[int, ...], array: Any) -> bytes | None:
        layout = _layout_of_array(array.dtype, array.shape, len(tag))
        if layout is None or edge in self._lossy:
            return None
        pack, head, table = layout
        return pack(_VALUE, head, len(table), 1, *self._step, edge, PLAIN, len(tag), *tag, table) + array.tobytes()


@lru_cache(1024)
def _layout_of_array(dtype: Any, shape: tuple[int, ...], count: int) -> tuple[Callable[..., bytes], int, bytes] | None:
    """Lay out the frame of an array of numbers in front of these; None if it is written in another way."""
    if dtype.kind not in "biufc" or dtype.byteorder == ">" or not _IS_LITTLE or count > _MOST_TAG:
        return None
    table = array_description(dtype, shape)
    layout = struct.Struct(f"{_OPENING.format}{count}Q{len(table)}s")
    return layout.pack, _TAG.size + 8 * count, table


def _tag_of(count: int) -> struct.Struct:
    """Return what writes and reads tags of a length."""
    return _TAGS[count] if count < len(_TAGS) else struct.Struct(f"<{count}Q")


def _checked_length(tag: tuple[int, ...]) -> int:
    if len(tag) > _MOST_TAG:
        raise TypeError(f"a value inside {len(tag)} loops does not leave its task; at most {_MOST_TAG} are allowed")
    return len(tag)


def step_of(head: bytes) -> tuple[int, int]:
    """Return the step of a value that crosses: its master's incarnation, and its number.

    Raises:
        FrameError: the head is not such a head.
    """
    if len(head) < _TAG.size:
        raise FrameError("the head of a value that crosses is cut short")
    return _TAG.unpack_from(head)[:2]


Take = Callable[[int, tuple[int, ...], Any, bool], None]  # of an edge, a tag, a value, and whether it is dead
Failed = Callable[[int, Exception], None]  # of an edge, and why a value of it could not be taken


class SmallValues:
    """Takes values where they have come, as long as all of each is there: numbers in heads, and small arrays.

    All frames of an edge that bring a number have the same opening. So an opening is read once for each step.

    Args:
        running: returns what takes the values of a step, given its master's incarnation and its number; None if the
            step does not run.
    """

    def __init__(self, running: Callable[[tuple[int, int]], tuple[Take, Failed] | None]) -> None:
        self._running = running
        self._known: dict[bytes, tuple[Take, Failed, int, bool, Callable[..., Any], Any, int]] = {}  # by opening

    def forget(self) -> None:
        """Forget what takes the values of steps, since one has ended."""
        self._known.clear()

    def take(self, buffer: Any, count: int) -> tuple[int, int]:
        """Take the values that come first.

        Args:
            buffer: where frames are, the first one from the first byte.
            count: how many bytes there are.

        Returns:
            The number of bytes that are done with, and of values.

        Raises:
            FrameError: the table of an array is damaged, or a value is not received here.
        """
        position = taken = 0
        while position < count:
            opening = bytes(buffer[position : position + _OPENING_SIZE])
            known = self._known.get(opening) or self._opened(opening)
            if known is None:
                break
            take, failed, edge, is_dead, read_tag, dtype, size = known
            end = position + size
            if end > count:
                break
            tag = read_tag(buffer, position + _OPENING_SIZE)
            if dtype is None:
                value = None
            elif dtype is not _ARRAY:
                value = _ARRAY((), dtype, buffer, end - dtype.itemsize)[()]
            else:
                found = array_in_place(buffer, position + _OPENING_SIZE + 8 * len(tag), end, count)
                if found is None:
                    break
                value, end = found
            try:
                take(edge, tag, value, is_dead)
            except Exception as error:
                failed(edge, error)
            position = end
            taken += 1
        return position, taken

    def _opened(self, opening: bytes) -> Any:
        """Read the first bytes of a frame; return None if it is not of a small value, or its step does not run."""
        if len(opening) < _OPENING_SIZE:
            return None
        kind, head, table, arrays, master, step, edge, how, depth = _OPENING.unpack(opening)
        dtype = _ARRAY if how == PLAIN else _NUMBERS.get(how)
        if kind != _VALUE or depth >= len(_TAGS) or (dtype is None and how > CONTROL):
            return None
        behind_tag = head - _TAG.size - 8 * depth
        if dtype is _ARRAY:
            is_small = arrays == 1 and not behind_tag
        else:
            is_small = not (arrays or table) and behind_tag == (0 if dtype is None else dtype.itemsize)
        if not is_small:
            return None
        running = self._running((master, step))
        if running is None:
            return None
        size = PREFIX.size + head + table
        if len(self._known) >= _MOST_KNOWN:
            self.forget()
        found = self._known[opening] = (*running, edge, how == DEAD, _TAGS[depth].unpack_from, dtype, size)
        return found


def _number(how: int, buffer: Any, place: int, end: int) -> Any:
    """Read a number; None if it is damaged, or none."""
    if how == _FIRST_NUMBER and place < end:
        return _BOOLS[buffer[place] != 0]
    dtype = _NUMBERS.get(how)
    if dtype is None or place + dtype.itemsize > end:
        return None
    return np.ndarray((), dtype, buffer, place)[()]


def decode_token(
    head: bytes, arrays: Sequence[Any], received: Received | None = None
) -> tuple[int, tuple[int, ...], Any, bool]:
    """Read what `encode_token` wrote: edge, tag, value, and whether it is dead.

    Args:
        head, arrays: of the frame.
        received: what has come before, if the other side writes by `Sent` what is new.

    Raises:
        FrameError: it is not such a frame.
    """
    try:
        _, _, edge, how, count = _TAG.unpack_from(head)
        tag = _tag_of(count).unpack_from(head, _TAG.size)
        if how >= _FIRST_NUMBER:
            value = _number(how, head, _TAG.size + 8 * count, len(head))
            if value is None:
                raise FrameError("the number is cut short, or of no dtype that is known")
            return edge, tag, value, False
        if how == PLAIN:
            return edge, tag, arrays[0], False
        if how == UPPER and arrays[0].dtype == np.uint16:
            return edge, tag, (arrays[0].astype(np.uint32) << np.uint32(16)).view(np.float32), False
        if how in (DEAD, CONTROL):
            return edge, tag, None, how == DEAD
        described = json.loads(head[_TAG.size + 8 * count :])
        value = decode_value(described, arrays) if received is None else received.value(edge, tag, described, arrays)
        return edge, tag, value, False
    except (struct.error, *DAMAGE) as error:
        raise FrameError(f"a value that crosses is damaged: {error}") from None
