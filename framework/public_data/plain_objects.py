"""Arrays, lists and dicts out of files in Python's pickle format, read as data: what such a file names is never run.

IMDB, Reuters and CIFAR come in that format. The standard library's ``pickletools`` describes its instructions and
splits a file into them; of these the ones are followed here that such data needs.
"""

from __future__ import annotations

import pickletools
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from ...engine.common.quick_dataclass import dataclass

if TYPE_CHECKING:
    from ..structures import Array

_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"),
    *("BINBYTES8", "BINSTRING", "SHORT_BINSTRING", "BINFLOAT", "GLOBAL"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass
class _Made:
    """An object that the file makes by a call: the name of the function and the arguments, until its state comes."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


def read_objects(stream: BinaryIO) -> Any:
    """Return what was pickled: arrays, lists, tuples, dicts, numbers and strings (bytes as strings of latin-1).

    Raises:
        ValueError: the file has something else in it.
    """
    stack: list[object] = []
    marks: list[int] = []
    memo: dict[int, object] = {}
    for code, argument, _ in pickletools.genops(stream):
        name, value = code.name, cast(Any, argument)
        if name in _VALUES:
            stack.append(value)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[value] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[value])
        elif name == "MARK":
            marks.append(len(stack))
        elif name not in ("PROTO", "FRAME", "STOP"):
            _follow(name, stack, marks)
    return stack.pop()


def _follow(name: str, stack: list[Any], marks: list[int]) -> None:
    """Follow an instruction that makes or fills an object from values on the stack."""
    if name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name == "EMPTY_LIST":
        stack.append([])
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name in _TUPLES:
        stack.append(tuple(_taken(stack, len(stack) - _TUPLES[name])))
    elif name == "TUPLE":
        stack.append(tuple(_taken(stack, marks.pop())))
    elif name == "APPEND":
        stack[-2].append(stack.pop())
    elif name == "APPENDS":
        items = _taken(stack, marks.pop())
        stack[-1].extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = _taken(stack, marks.pop() if name == "SETITEMS" else len(stack) - 2)
        stack[-1].update({_as_text(key): item for key, item in zip(items[::2], items[1::2], strict=True)})
    elif name == "STACK_GLOBAL":
        stack.append(" ".join(_taken(stack, len(stack) - 2)))
    elif name == "REDUCE":
        stack.append(_made(*_taken(stack, len(stack) - 2)))
    elif name == "BUILD":
        _give_state(stack)
    else:
        raise ValueError(f"The file holds {name}, which no data set needs. It is damaged or another file; delete it.")


def _taken(stack: list[object], start: int) -> list[Any]:
    items = stack[start:]
    del stack[start:]
    return items


def _made(name: str, arguments: tuple[object, ...]) -> Any:
    """Return a note of what is asked for; bytes are there at once."""
    if name == "_codecs encode":
        return arguments[0]
    if name.replace("numpy.core", "numpy._core") in ("numpy._core.multiarray _reconstruct", "numpy dtype"):
        return _Made(name.rpartition(" ")[2], arguments)
    raise ValueError(
        f"The file asks for {name.replace(' ', '.')}, which no data set needs. It is damaged or another file; "
        "delete it."
    )


def _give_state(stack: list[Any]) -> None:
    """Give an object its state: a type gets its byte order, an array becomes one."""
    state = stack.pop()
    made: _Made = stack[-1]
    made.state = state
    if made.name != "dtype":
        stack[-1] = _array(*state[1:5])


def _array(shape: tuple[int, ...], dtype: _Made, is_fortran: bool, content: Any) -> Array:
    code = _as_text(dtype.arguments[0])
    if code.startswith("O"):
        found = np.empty(len(content), object)
        found[:] = content
        return found.reshape(shape)
    order = _as_text(dtype.state[1])
    found = np.frombuffer(content if isinstance(content, bytes) else content.encode("latin1"), np.dtype(order + code))
    return found.reshape(shape, order="F" if is_fortran else "C")


def _as_text(name: str) -> str:
    return name.decode("latin1") if isinstance(name, bytes) else name
