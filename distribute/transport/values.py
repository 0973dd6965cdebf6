"""Values of a step as a description and arrays, and back: numbers, arrays, strings, TensorArrays and TensorStores."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...engine.common.dtypes import as_dtype
from ...engine.ops.containers.array_value import ArrayValue
from ...engine.ops.containers.store_value import StoreValue, as_key
from .wire import DAMAGE, PREFIX, FrameError, Kind

_TAG = struct.Struct(
    "<QQIBB"
)  # the master's incarnation, the step's number, the edge, how it is written, the tag's length
DEAD, CONTROL, PLAIN, WRITTEN, NUMBER = range(5)
_IN_HEAD = frozenset({DEAD, CONTROL, NUMBER})
_MOST_TAG = 255
_MOST_SLOTS = 1 << 22  # of a TensorArray that is not written whole: a few bytes ask for their memory
_IS_LITTLE = sys.byteorder == "little"
# NumPy's own numbers by two letters, kind and size; sent as little-endian ones.
_NUMBERS = {
    text.encode(): np.dtype(f"<{text}")
    for text in ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
}
_LETTERS: dict[type, bytes] = {dtype.type: text for text, dtype in _NUMBERS.items()}
_SMALL: dict[tuple[int, int], struct.Struct] = {}  # frames, by how many numbers the tag has and bytes the text
_TAGS = [struct.Struct(f"<{count}Q") for count in range(8)]
_VALUE = int(Kind.VALUE)


def encode_value(value: Any, arrays: list[Any]) -> Any:
    """Describe a value as JSON; its numbers are appended to `arrays`.

    Raises:
        TypeError: it is of a kind that does not leave its task.
    """
    if value is None:
        return None
    if isinstance(value, ArrayValue):
        return _encode_elements(value, arrays)
    if isinstance(value, StoreValue):
        return {"store": [[key, encode_value(item, arrays)] for key, item in value.items()]}
    if isinstance(value, str):
        return {"text": [value], "shape": []}
    if isinstance(value, (np.ndarray, np.generic, bool, int, float)):
        array = np.asarray(value)
        if array.dtype.kind in "TU":
            return {"text": array.reshape(-1).tolist(), "shape": list(array.shape)}
        if not array.dtype.hasobject:
            arrays.append(array)
            return len(arrays) - 1
    getattr(value, "dtype", None)  # raises the reason where it stands for a value that is lost
    raise TypeError(f"a value of type {type(value).__name__} does not leave its task")


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
        FrameError: it is no such description.
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


# --- values that cross ----------------------------------------------------------------------------------------------


def encode_token(
    step: tuple[int, int], edge: int, tag: tuple[int, ...], value: Any, is_dead: bool
) -> tuple[bytes, list[Any]]:
    """Write a value that crosses: the head of its frame, and its arrays.

    Args:
        step: the incarnation of the step's master, and the number that it gave the step.
        edge: the number of the Recv.
        tag: the numbers of the iterations around.
        value: what crosses; nothing if it is dead.
        is_dead: whether it is.
    """
    small = encode_small(step, edge, tag, value, is_dead)
    if small is not None:
        return small[PREFIX.size :], []
    arrays: list[Any] = []
    text = b""
    if type(value) is np.ndarray and value.dtype.kind in "biufc":
        how = PLAIN
        arrays.append(value)
    else:
        how = WRITTEN
        text = json.dumps(encode_value(value, arrays)).encode()
    return _TAG.pack(*step, edge, how, _checked_length(tag)) + struct.pack(f"<{len(tag)}Q", *tag) + text, arrays


def encode_small(step: tuple[int, int], edge: int, tag: tuple[int, ...], value: Any, is_dead: bool) -> bytes | None:
    """Write the whole frame of a value that `encode_token` writes into the head, or None: what most loops wait for.

    Args:
        step, edge, tag, value, is_dead: see `encode_token`.
    """
    if is_dead or value is None:
        how, text = DEAD if is_dead else CONTROL, b""
    else:
        letters = _LETTERS.get(type(value))
        if letters is None:
            return None
        how, text = NUMBER, letters + (value.tobytes() if _IS_LITTLE else value.tobytes()[::-1])
    sizes = (len(tag), len(text))
    known = _SMALL.get(sizes)
    if known is None:
        layout = f"{PREFIX.format}{_TAG.format[1:]}{_checked_length(tag)}Q{len(text)}s"
        _SMALL[sizes] = known = struct.Struct(layout)
    return known.pack(_VALUE, known.size - PREFIX.size, 0, 0, *step, edge, how, len(tag), *tag, text)


def _checked_length(tag: tuple[int, ...]) -> int:
    if len(tag) > _MOST_TAG:
        raise TypeError(f"a value inside {len(tag)} loops does not leave its task; at most {_MOST_TAG} are allowed")
    return len(tag)


def step_of(head: bytes) -> tuple[int, int]:
    """The step of a value that crosses: its master's incarnation, and its number.

    Raises:
        FrameError: the head is no such head.
    """
    if len(head) < _TAG.size:
        raise FrameError("the head of a value that crosses is cut short")
    return _TAG.unpack_from(head)[:2]


def decode_small(buffer: Any, begin: int, end: int) -> tuple[tuple[int, int], int, tuple[int, ...], Any, bool] | None:
    """Read a value of which nothing but the head tells, in place: step, edge, tag, value, and whether it is dead.

    Args:
        buffer: where the head is, from `begin` to `end`.

    Returns:
        None if it is another one, or damaged.
    """
    place = begin + _TAG.size
    if place > end:
        return None
    master, step, edge, how, count = _TAG.unpack_from(buffer, begin)
    if how not in _IN_HEAD or count >= len(_TAGS) or place + 8 * count > end:
        return None
    tag = _TAGS[count].unpack_from(buffer, place)
    if how != NUMBER:
        return (master, step), edge, tag, None, how == DEAD
    place += 8 * count + 2
    dtype = _NUMBERS.get(bytes(buffer[place - 2 : place]))
    if dtype is None or place + dtype.itemsize > end:
        return None
    return (master, step), edge, tag, np.ndarray((), dtype, buffer, place)[()], False


def decode_token(head: bytes, arrays: Sequence[Any]) -> tuple[int, tuple[int, ...], Any, bool]:
    """Read what `encode_token` wrote: edge, tag, value, and whether it is dead.

    Raises:
        FrameError: it is no such frame.
    """
    try:
        _, _, edge, how, count = _TAG.unpack_from(head)
        tag = (_TAGS[count] if count < len(_TAGS) else struct.Struct(f"<{count}Q")).unpack_from(head, _TAG.size)
        if how == NUMBER:
            place = _TAG.size + 8 * count
            return edge, tag, np.ndarray((), _NUMBERS[head[place : place + 2]], head, place + 2)[()], False
        if how == PLAIN:
            return edge, tag, arrays[0], False
        if how in (DEAD, CONTROL):
            return edge, tag, None, how == DEAD
        return edge, tag, decode_value(json.loads(head[_TAG.size + 8 * count :]), arrays), False
    except (struct.error, *DAMAGE) as error:
        raise FrameError(f"a value that crosses is damaged: {error}") from None
