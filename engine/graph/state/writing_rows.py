"""Writes of parts of a variable in its memory, beside readers in other threads and in other steps.

Readers of a variable hold its array: a step that has yet to use it, a message that is being sent, a value of a
user. So the array's count of references says whether anyone does. If not, the parts are written in place; otherwise in
a copy, and who has read the variable keeps what it has. While they are written, the variable does not have its array:
who reads it then, in another thread, waits until they are (see `Variable.__getattr__`). Other reads pay nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .variable import Variable


class RowWrites:
    """Counts of writes of rows, in all threads.

    Attributes:
        copies: how often a variable was copied, because something else held its array.
        copied_bytes: the bytes of these.
    """

    def __init__(self) -> None:
        self.copies = 0
        self.copied_bytes = 0


row_writes = RowWrites()


class Lending:
    """A count of the values to which memory of a variable was lent; only after that steps look at their variables.

    Attributes:
        count: how often so far, in all threads.
    """

    def __init__(self) -> None:
        self.count = 0


lending = Lending()


class Held:
    """The array of a variable, while one thread writes in it.

    Attributes:
        array: None before the variable has a value.
    """

    __slots__ = ("_lock", "_thread", "array")

    def __init__(self) -> None:
        self.array: Any = None
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._lock.acquire()

    @property
    def is_mine(self) -> bool:
        """Test whether this thread is the one that writes."""
        return self._thread == threading.get_ident()

    def wait(self) -> None:
        """Wait until the other thread has written."""
        with self._lock:
            pass

    def end(self) -> None:
        """Let those go on who wait."""
        self._lock.release()


def write_in_memory(variables: Sequence[Variable], write: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that writes in the memory of variables, which nothing else can see meanwhile.

    Args:
        variables: whose memory it is; `memory_of` gives it to the function.
        write: the function.
        arguments: what it takes.
    """
    held: list[tuple[Variable, Held]] = []
    try:
        for variable in variables if len(variables) == 1 else sorted(variables, key=id):  # one order for all threads
            held.append((variable, _hold(variable)))
        return write(*arguments)
    finally:
        for variable, each in held:
            give_back(variable, each)


def memory_of(variable: Variable) -> Any:
    """Return the array of a variable in which this thread writes; None if it is in no call of `write_in_memory`."""
    held = vars(variable).get("_held")
    return held.array if held is not None and held.is_mine else None


def _hold(variable: Variable) -> Held:
    fields, own = vars(variable), Held()
    while (found := fields.setdefault("_held", own)) is not own:
        found.wait()
    try:
        if "_value" not in fields:
            variable.stored_value()  # which computes the first one
        array, references = _taken(fields, own)
        if references > _ALONE or not _is_plain(array):
            array = np.array(array, order="C")
            row_writes.copies += 1
            row_writes.copied_bytes += array.nbytes
        own.array, fields["_is_lent"] = array, False
    except BaseException:
        give_back(variable, own)
        raise
    return own


def take_over(variable: Variable, array: Any) -> Any:
    """Set the value to an array that nothing else changes, which may be one that can't be written; return it."""
    variable.write_value(array)
    if not array.flags.writeable:
        vars(variable)["_is_lent"] = True  # a step that writes in the value's memory copies it first
        lending.count += 1
    return array


def hold_if_free(variable: Variable) -> Held | None:
    """Keep other threads from writing parts of a variable, which has its array still; None if one is at it."""
    own = Held()
    return own if vars(variable).setdefault("_held", own) is own else None


def take_out(variable: Variable, array: Any) -> bool:
    """Take its array out of a variable that this thread holds; False if another one was assigned meanwhile."""
    fields = vars(variable)
    found = fields.pop("_value", None)
    if found is not None and found is not array:
        fields.setdefault("_value", found)
    return found is array


def give_back(variable: Variable, held: Held) -> None:
    """Let other threads have a variable, and its array, if that was taken out, as its value."""
    fields = vars(variable)
    if held.array is not None:
        fields.setdefault("_value", held.array)  # unless somebody has assigned another one meanwhile
    del fields["_held"]
    held.end()


def _taken(fields: dict[str, Any], held: Held) -> tuple[Any, int]:
    """Take the array out of a variable; give it, and the count of its references.

    It is never nowhere: there may be no memory for a copy, or another thread forks the process.
    """
    held.array = fields["_value"]
    held.array = array = fields.pop("_value")  # another one, if that was assigned just now
    return array, sys.getrefcount(array)


def _is_plain(array: Any) -> bool:
    """Test whether views in an array refer to it and to nothing else, and it can be written row by row."""
    return type(array) is np.ndarray and array.base is None and array.flags.c_contiguous and array.flags.writeable


_, _ALONE = _taken({"_value": np.zeros(1)}, Held())  # Python versions count differently

__all__ = [
    "Held",
    "give_back",
    "hold_if_free",
    "lending",
    "memory_of",
    "row_writes",
    "take_out",
    "take_over",
    "write_in_memory",
]
