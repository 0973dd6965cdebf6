"""Values of a step as a description and arrays, and back: numbers, arrays, strings, TensorArrays and TensorStores."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache, partial
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
_MOST_SLOTS = 1 << 22  # of a TensorArray that is not written whole: a few bytes ask for their memory
_IS_LITTLE = sys.byteorder == "little"
# NumPy's own numbers, little-endian, each with the letter by which `struct` writes it; of floats it writes the bytes.
_CODES = {
    "b1": "?",
    **dict(zip(["i1", "i2", "i4", "i8"], "bhiq", strict=True)),
    **dict(zip(["u1", "u2", "u4", "u8"], "BHIQ", strict=True)),
    **{f"f{size}": f"{size}s" for size in (2, 4, 8)},
}
_DTYPES = [np.dtype(f"<{text}") for text in _CODES]
_NUMBERS = {_FIRST_NUMBER + k: dtype for k, dtype in enumerate(_DTYPES)}  # by how they are written
_HOW: dict[Any, tuple[int, str]] = {
    dtype.type: (_FIRST_NUMBER + k, code) for k, (dtype, code) in enumerate(zip(_DTYPES, _CODES.values(), strict=True))
} | {DEAD: (DEAD, ""), type(None): (CONTROL, "")}
_SMALL: dict[tuple[Any, int], tuple[Callable[..., bytes], int, int, str]] = {}  # by what it is, and its tag's length
_TAGS = [struct.Struct(f"<{count}Q") for count in range(8)]
_BEGINNING = struct.Struct(PREFIX.format + _TAG.format[1:])  # of the frame of a value
_BEGINNING_SIZE = _BEGINNING.size
_PREFIX_SIZE = PREFIX.size
_AS_BYTES = "s"  # the last letter of a code for `struct`
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
    return _TAG.pack(*step, edge, how, _checked_length(tag)) + struct.pack(f"<{len(tag)}Q", *tag) + text, arrays


class SmallFrames:
    """Writes small values of a step as whole frames: numbers that are in the head, and arrays of few bytes.

    Args:
        step: see `encode_token`.
        lossy: the edges whose floats travel by their upper halves: their arrays are not written here.
    """

    def __init__(self, step: tuple[int, int], lossy: Collection[int] = ()) -> None:
        self._step = step
        self._lossy = lossy
        self._writers: dict[tuple[int, Any], tuple[Callable[..., bytes], str]] = {}  # by edge and type

    def frame(self, edge: int, tag: tuple[int, ...], value: Any, is_dead: bool, most: int = FEW) -> bytes | None:
        """Write a value as `encode_token` does; return None if it is another one.

        Args:
            edge, tag, value, is_dead: see `encode_token`. All tags of an edge have one length.
            most: the bytes of the largest array that is written.
        """
        what = DEAD if is_dead else type(value)
        if what is _ARRAY:
            return self._array(edge, tag, value) if value.nbytes <= most else None
        known = self._writers.get((edge, what)) or self._writer(edge, len(tag), what)
        if known is None:
            return None
        write, code = known
        if not code:
            return write(*tag)
        if code == _AS_BYTES:
            value = bytes(value) if _IS_LITTLE else value.tobytes()[::-1]
        return write(*tag, value)

    def _array(self, edge: int, tag: tuple[int, ...], array: Any) -> bytes | None:
        layout = _layout_of_array(array.dtype, array.shape, len(tag))
        if layout is None or edge in self._lossy:
            return None
        pack, head, table = layout
        return pack(_VALUE, head, len(table), 1, *self._step, edge, PLAIN, len(tag), *tag, table) + array.tobytes()

    def _writer(self, edge: int, count: int, what: Any) -> tuple[Callable[..., bytes], str] | None:
        """Return what writes a tag and a value behind what all frames of an edge begin with."""
        known = _SMALL.get((what, count)) or _layout(what, count)
        if known is None:
            return None
        pack, head, how, code = known
        write = partial(pack, _VALUE, head, 0, 0, *self._step, edge, how, count)
        found = self._writers[edge, what] = (write, code[-1:])
        return found


def _layout(key: Any, count: int) -> tuple[Callable[..., bytes], int, int, str] | None:
    """Lay out the frame of a value that is all in the head; None if others are not."""
    how, code = _HOW.get(key, (0, None))
    if code is None:
        return None
    layout = struct.Struct(f"{PREFIX.format}{_TAG.format[1:]}{_checked_length((0,) * count)}Q{code}")
    found = _SMALL[key, count] = (layout.pack, layout.size - PREFIX.size, how, code)
    return found


@lru_cache(1024)
def _layout_of_array(dtype: Any, shape: tuple[int, ...], count: int) -> tuple[Callable[..., bytes], int, bytes] | None:
    """Lay out the frame of an array of numbers in front of these; None if it is written in another way."""
    if dtype.kind not in "biufc" or dtype.byteorder == ">" or not _IS_LITTLE or count > _MOST_TAG:
        return None
    table = array_description(dtype, shape)
    layout = struct.Struct(f"{PREFIX.format}{_TAG.format[1:]}{count}Q{len(table)}s")
    return layout.pack, _TAG.size + 8 * count, table


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


def small_values(buffer: Any, count: int) -> Iterator[tuple[tuple[int, int], int, tuple[int, ...], Any, bool, int]]:
    """Read numbers that are in the head, and arrays that have come whole, in place, as long as such come first.

    Args:
        buffer: where frames are, the first one from the first byte.
        count: how many bytes there are.

    Yields:
        A tuple for each value: step, edge, tag, the value, whether it is dead, and the first byte behind its frame.

    Raises:
        FrameError: the table of an array is damaged.
    """
    position = 0
    while count - position >= _BEGINNING_SIZE:
        kind, head, table, number, master, step, edge, how, depth = _BEGINNING.unpack_from(buffer, position)
        end = position + _PREFIX_SIZE + head
        place = position + _BEGINNING_SIZE
        if kind != _VALUE or end + table > count or depth >= len(_TAGS) or place + 8 * depth > end:
            return
        tag = _TAGS[depth].unpack_from(buffer, place)
        if table:
            found = array_in_place(buffer, end, end + table, count) if how == PLAIN and number == 1 else None
            if found is None:
                return
            value, end = found
            yield (master, step), edge, tag, value, False, end
        elif how <= CONTROL:
            yield (master, step), edge, tag, None, how == DEAD, end
        else:
            value = _number(how, buffer, place + 8 * depth, end)
            if value is None:
                return
            yield (master, step), edge, tag, value, False, end
        position = end


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
        tag = (_TAGS[count] if count < len(_TAGS) else struct.Struct(f"<{count}Q")).unpack_from(head, _TAG.size)
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
