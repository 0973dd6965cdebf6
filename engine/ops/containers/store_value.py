"""`StoreValue`: the run-time value of a TensorStore, with value semantics and in-place writes.

As an `ArrayValue`, a value is (table, version): one table serves a whole chain of values. For each key it keeps what
the key held from which version on, newest first. A write to the latest value goes in place; one to an earlier value
copies the table. What the latest value no longer shows is left behind by a copy as soon as it is more than what it
shows, so that a write costs the same on average.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...common.dtypes import DTypeLike
from ...common.nest import is_sequence
from ...graph.op import as_scalar_or_array, is_array
from ...graph.spec import ArraySpec, StoreSpec
from .array_value import ArrayValue, add_values

_NOTHING = object()  # what a key holds after it was taken out
_ALWAYS_KEPT = 8  # so many outdated entries are never worth a copy

Key = int | str | tuple[Any, ...]


class _Table:
    """The values of keys, and from which version on: each entry is (version, value, earlier entry or None)."""

    __slots__ = ("entries", "latest", "log", "logged", "outdated")

    def __init__(self) -> None:
        self.entries: dict[Key, tuple[int, Any, Any]] = {}
        self.latest = 0
        self.log: list[Key] | None = None  # the key of each version after `logged`; None if nobody asks
        self.logged = 0
        self.outdated = 0

    def at(self, key: Key, version: int) -> Any:
        """Return what `key` holds at `version`, or `_NOTHING`."""
        entry = self.entries.get(key)
        while entry is not None and entry[0] > version:
            entry = entry[2]
        return _NOTHING if entry is None else entry[1]

    def put(self, key: Key, value: Any) -> None:
        """Make `key` hold `value` from a new version on."""
        earlier = self.entries.get(key)
        self.latest += 1
        if self.log is not None:
            self.log.append(key)
        self.outdated += earlier is not None
        self.entries[key] = (self.latest, value, earlier)


class StoreValue:
    """An immutable mapping from keys to elements; `write` returns a new one. See the module for how that stays cheap.

    Keys are integers, strings, or tuples of these. The methods are those of `ArrayValue` with keys in the place of
    indices, so that cotangents of stores and of arrays are accumulated by the same ops.
    """

    __slots__ = ("_table", "_version", "size")

    def __init__(self, table: _Table, version: int, size: int) -> None:
        self._table = table
        self._version = version
        self.size = size

    @classmethod
    def empty(cls) -> StoreValue:
        """Return a store that holds nothing."""
        return cls(_Table(), 0, 0)

    @property
    def nbytes(self) -> int:
        """Bytes held by the elements."""
        return sum(int(element.nbytes) for _, element in self.items() if not is_sequence(element))

    def items(self) -> Iterator[tuple[Key, Any]]:
        """Yield the keys and elements, in the order in which the keys were written first."""
        for key in list(self._table.entries):
            element = self._table.at(key, self._version)
            if element is not _NOTHING:
                yield key, element

    def has(self, key: Any) -> bool:
        """Test whether something is stored under `key`."""
        return self._table.at(as_key(key), self._version) is not _NOTHING

    def read(self, key: Any) -> Any:
        """Return the element under `key`.

        Raises:
            LookupError: there is none.
        """
        key = as_key(key)
        element = self._table.at(key, self._version)
        if element is _NOTHING:
            held = f"it holds {self.size} {'key' if self.size == 1 else 'keys'}"
            raise LookupError(
                f"TensorStore key {key!r} is read, but no operation before wrote it ({held}). "
                "Write it first; `write` returns the new store, which has to be kept."
            )
        return element

    def read_or_none(self, key: Any) -> Any:
        """Return the element under `key`, or None if there is none."""
        element = self._table.at(as_key(key), self._version)
        return None if element is _NOTHING else element

    def write(self, key: Any, value: Any) -> StoreValue:
        """Return a new store with `value` under `key`.

        Raises:
            ValueError: the store has that key already.
        """
        key = as_key(key)
        if self._table.at(key, self._version) is not _NOTHING:
            raise ValueError(
                f"TensorStore key {key!r} is written a second time; each key is written once. "
                "Write another key, or use a TensorArray, whose elements can be overwritten."
            )
        # A copy: the memory of `value` may be used again.
        return self._with(key, value.copy() if is_array(value) else value, self.size + 1)

    def add_at(self, key: Any, value: Any) -> StoreValue:
        """Return a new store with `value` added to the element under `key`; what is missing counts as zero."""
        key = as_key(key)
        before = self._table.at(key, self._version)
        if before is _NOTHING:
            return self.write(key, value)
        return self._with(key, add_values(before, value), self.size)

    def clear(self, key: Any) -> StoreValue:
        """Return a new store without `key`."""
        key = as_key(key)
        if self._table.at(key, self._version) is _NOTHING:
            return self
        return self._with(key, _NOTHING, self.size - 1)

    def sum(self, other: StoreValue) -> StoreValue:
        """Return the sum of two stores, in which what is missing counts as zero."""
        if other.size > self.size:
            return other.sum(self)
        result = self
        for key, element in other.items():
            result = result.add_at(key, element)
        return result

    def __add__(self, other: StoreValue) -> StoreValue:
        return self.sum(other)

    def note_changes(self) -> None:
        """Begin to note what is written to this value, for `changed_since`."""
        if self._table.log is None:
            self._table.log, self._table.logged = [], self._table.latest

    def changed_since(self, before: StoreValue) -> list[Key] | None:
        """Return the keys in which this value differs from an earlier one; None if it was not made of that."""
        table, logged = self._table, self._table.logged
        if table is not before._table or table.log is None or not logged <= before._version <= self._version:
            return None
        return list(dict.fromkeys(table.log[before._version - logged : self._version - logged]))

    def gather(self, keys: Any, element_shape: Sequence[int | None] | None, dtype: DTypeLike) -> Any:
        """Return the elements under `keys`, along a new first axis.

        Raises:
            LookupError: there is none under one of them.
            ValueError: the elements differ in shape.
        """
        elements = [self.read(key) for key in keys]
        if not elements:
            return np.empty((0, *[dim or 0 for dim in element_shape or ()]), dtype)
        shapes = {element.shape for element in elements}
        if len(shapes) > 1:
            listed = ", ".join(str(list(shape)) for shape in sorted(shapes, key=str)[:4])
            raise ValueError(f"TensorStore.gather needs elements of one shape; got {listed}. Read them singly.")
        return as_scalar_or_array(np.stack(elements))

    def _with(self, key: Key, value: Any, size: int) -> StoreValue:
        table = self._table
        if self._version != table.latest or table.outdated > max(self.size, _ALWAYS_KEPT):
            table = self._copied_table()
        table.put(key, value)
        return StoreValue(table, table.latest, size)

    def _copied_table(self) -> _Table:
        table = _Table()
        table.entries = {key: (0, element, None) for key, element in self.items()}
        return table

    def __repr__(self) -> str:
        return f"<TensorStore value of {self.size} elements>"


def as_key(key: Any) -> Key:
    """Return a run-time value as a key: an integer, a string, or a tuple of these for a vector."""
    if isinstance(key, (int, str)):
        return key
    parts: Any = key if is_sequence(key) else key.tolist()
    return tuple(parts) if is_sequence(parts) else parts


def empty_value(spec: ArraySpec) -> Any:
    """Return the value of an array or store that holds nothing: the zero among cotangents."""
    return StoreValue.empty() if isinstance(spec, StoreSpec) else ArrayValue.empty(0)
