"""`ArrayValue`: the run-time value of a TensorArray, with value semantics and in-place writes.

A value is (store, version). A store keeps, for every slot, the version at which it was written and the version at
which it was cleared, so one store serves a whole chain of values: writing a slot that no version holds happens in
place and leaves earlier values as they were. What is written over a slot is kept beside it, with the version from which
it holds; as soon as that is as much as the array itself, the next such write copies the array, so that a write costs
the same on average, whatever it hits. What a value shows never changes, so `read` and `stack` may return views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ...common.dtypes import DTypeLike
from ...common.nest import is_sequence
from ...graph.op import as_scalar_or_array, is_array, is_plain_array
from ..base import is_numpy

_NEVER = 1 << 62
_CLEARED = None  # stands among changes for a slot that holds nothing from then on


@runtime_checkable
class _DeviceArray(Protocol):
    """An array of another module than NumPy, whose functions NumPy's own call (NEP 18), such as cupy's."""

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any: ...


class _Store:
    """Slots, in one contiguous buffer while all elements have one shape, else in a list.

    Attributes:
        slot: memory of a slot that was handed out, to be written.
        written_at, cleared_at: for each slot the versions from which, and up to which, its first element is there.
        changes: for slots that were written again, what they hold from which version on.
        changed: how many such changes there are.
        log: the slots that were written or cleared, one for each version after `logged`; None if nobody asks.
    """

    __slots__ = ("buffer", "changed", "changes", "cleared_at", "items", "latest", "log", "logged", "slot", "written_at")

    def __init__(self, size: int) -> None:
        self.buffer: Any = None
        self.items: list[Any] | None = None
        self.written_at = [_NEVER] * size
        self.cleared_at = [_NEVER] * size
        self.latest = 0
        self.log: list[int] | None = None
        self.logged = 0
        self.changes: dict[int, list[tuple[int, Any]]] = {}
        self.changed = 0
        self.slot: tuple[int, Any] | None = None  # an index and its memory, which was handed out to be written

    def next_version(self, index: int) -> int:
        """Begin the next version, in which a slot differs."""
        self.latest += 1
        if self.log is not None:
            self.log.append(index)
        return self.latest

    def change(self, index: int, value: Any) -> None:
        """Put a value beside a slot that was written before; it holds from the latest version on."""
        kept = value.copy() if is_array(value) else value
        self.changes.setdefault(index, []).append((self.latest, kept))
        self.changed += 1

    def at(self, index: int, version: int) -> Any:
        """Return what slot `index` holds at `version`; None for nothing."""
        changes: Sequence[tuple[int, Any]] = self.changes.get(index, ())
        for since, value in reversed(changes):
            if since <= version:
                return value
        return self.get(index) if self.written_at[index] <= version < self.cleared_at[index] else _CLEARED

    def put(self, index: int, value: Any) -> None:
        if self.slot is not None and self.slot[1] is value and self.slot[0] == index:
            self.slot = None
            return
        if self.items is None and not self._fits_buffer(value):
            self._become_list()
        if self.items is not None:  # a copy, as in the buffer: the memory of `value` may be used again
            self.items[index] = value.copy() if is_array(value) else value
        elif is_array(value):
            self.buffer[index, ...] = value
        else:
            self.buffer[index] = value

    def get(self, index: int) -> Any:
        items = self.items  # another thread may put a buffer in their place
        if items is not None:
            return items[index]
        # A row of a vector of strings would be a str: with the Ellipsis it is an array of rank 0.
        return self.buffer[index, ...] if self.buffer.dtype.kind == "T" else self.buffer[index]

    def grow(self, size: int) -> None:
        extra = size - len(self.written_at)
        self.written_at.extend([_NEVER] * extra)
        self.cleared_at.extend([_NEVER] * extra)
        if self.items is not None:
            self.items.extend([None] * extra)
        elif self.buffer is not None and len(self.buffer) < size:
            larger = np.empty_like(self.buffer, shape=(max(size, 2 * len(self.buffer)), *self.buffer.shape[1:]))
            larger[: len(self.buffer)] = self.buffer
            self.buffer = larger

    def _fits_buffer(self, value: Any) -> bool:
        if not _is_array(value):
            return False
        if self.buffer is None:
            self.buffer = np.empty_like(value, order="C", shape=(len(self.written_at), *value.shape))
        return self.buffer.shape[1:] == value.shape and self.buffer.dtype == value.dtype

    def _become_list(self) -> None:
        size = len(self.written_at)
        written = [at != _NEVER for at in self.written_at]
        self.items = [self.buffer[i] if written[i] else None for i in range(size)]
        self.buffer = None


class ArrayValue:
    """An immutable array of elements; `write` returns a new one. See the module for how that stays cheap."""

    __slots__ = ("_store", "_version", "size")

    def __init__(self, store: _Store, version: int, size: int) -> None:
        self._store = store
        self._version = version
        self.size = size

    @classmethod
    def empty(cls, size: int) -> ArrayValue:
        """Return an array of `size` unwritten slots."""
        if size < 0:
            raise ValueError(f"A TensorArray can't have {size} elements.")
        return cls(_Store(size), 0, size)

    @classmethod
    def from_list(cls, items: list[Any]) -> ArrayValue:
        """Return an array whose slots are all written; it takes over `items`."""
        store = _Store(0)
        store.items = items
        store.written_at = [0] * len(items)
        store.cleared_at = [_NEVER] * len(items)
        return cls(store, 0, len(items))

    @classmethod
    def from_written(cls, size: int, items: Mapping[int, Any]) -> ArrayValue:
        """Return an array of `size` slots that holds `items` themselves, not copies."""
        value = cls.from_list([items.get(index) for index in range(size)])
        for index in set(range(size)) - items.keys():
            value._store.written_at[index] = _NEVER
        return value

    @classmethod
    def from_stacked(cls, stacked: Any) -> ArrayValue:
        """Return the rows of an array as elements, without a copy."""
        if stacked.ndim == 0:
            raise ValueError("TensorArray.unstack needs a value with at least one axis; got a scalar.")
        size = len(stacked)
        store = _Store(0)
        store.buffer = stacked
        store.written_at = [0] * size
        store.cleared_at = [_NEVER] * size
        return cls(store, 0, size)

    @property
    def nbytes(self) -> int:
        """Bytes held by the written elements.

        A history may hold None, for branches that were not taken, and the frames of calls: tuples, whose contents are
        counted where they are made.
        """
        rows = self.rows()
        if rows is not None:
            return int(rows.nbytes)
        elements = [self._at(i) for i in range(self.size)]
        return sum(int(element.nbytes) for element in elements if element is not None and not is_sequence(element))

    @property
    def is_dense(self) -> bool:
        """Test whether all elements are there, as the rows of one array: `stack` gives that without a copy."""
        store = self._store
        if self.rows() is not None:
            return True
        return store.buffer is not None and not store.changed and all(map(self.has, range(self.size)))

    @property
    def is_unwritten(self) -> bool:
        """Test whether no element was ever written, to this array or to one made from the same one."""
        store = self._store
        return not store.latest and store.buffer is None and store.items is None

    def rows(self) -> Any:
        """Return the elements as the rows of one array, where all were made as that and none was changed; else None."""
        store = self._store
        if store.items is not None or store.latest or store.buffer is None or _NEVER in store.written_at[: self.size]:
            return None  # memory that was handed out, or slots that were added, may hold nothing yet
        return store.buffer[: self.size]

    def _at(self, index: int) -> Any:
        return self._store.at(index, self._version)

    def has(self, index: int) -> bool:
        """Test whether slot `index` holds an element."""
        store = self._store
        if index >= self.size:
            return False
        if index in store.changes and store.changes[index][0][0] <= self._version:
            return self._at(index) is not _CLEARED
        return store.written_at[index] <= self._version < store.cleared_at[index]

    def take(self, index: Any) -> Any:
        """Return the element at `index`, which is let go: nothing reads it again."""
        element = self.read(index)
        if self._store.items is not None:
            self._store.items[index] = None
        return element

    def read(self, index: Any) -> Any:
        """Return the element at `index`.

        Raises:
            IndexError: it is outside the array, or was never written.
        """
        index = self._checked(index)
        if not self.has(index):
            raise IndexError(
                f"TensorArray element {index} is read but was never written (size {self.size}). "
                "Write it first; `write` returns the new array, which has to be kept."
            )
        return self._at(index) if self._store.changed else self._store.get(index)

    def read_or_none(self, index: Any) -> Any:
        """Return the element at `index`, or None if it was never written."""
        index = int(index)
        return self._at(index) if index < self.size else None

    def write(self, index: Any, value: Any, dynamic_size: bool = False) -> ArrayValue:
        """Return a new array with `value` at `index`.

        Raises:
            IndexError: it is outside the array, and the array does not grow.
        """
        if dynamic_size and index >= self.size:
            return self._grown(int(index) + 1).write(index, value)
        index = self._checked(index)
        store = self._store
        if self._version != store.latest:
            return self._copy().write(index, value)
        if store.written_at[index] != _NEVER:
            return self._changed(index, value)
        store.put(index, value)
        store.written_at[index] = store.next_version(index)
        return ArrayValue(store, store.latest, self.size)

    def _changed(self, index: int, value: Any) -> ArrayValue:
        """Return the latest value with another element, or none, in a slot that was written before."""
        store = self._store
        if store.changed >= len(store.written_at):
            copied = self._copy()
            if value is _CLEARED:
                return copied.clear(index)
            # The copy is nobody else's, so that the slot may be made free.
            copied._store.written_at[index] = _NEVER
            return copied.write(index, value)
        store.next_version(index)
        store.change(index, value)
        return ArrayValue(store, store.latest, self.size)

    def slot(self, index: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return memory for an element of that shape and dtype, to be written next at `index`: the slot, if free."""
        store, at = self._store, int(index)
        if store.buffer is None and store.items is None and self.size:
            store.buffer = np.empty((len(store.written_at), *shape), dtype)
        is_free = 0 <= at < self.size and store.written_at[at] == _NEVER and self._version == store.latest
        if not is_free or store.buffer is None or store.buffer.shape[1:] != shape or store.buffer.dtype != dtype:
            return np.empty(shape, dtype)
        row = store.buffer[at]
        store.slot = at, row
        return row

    def slots_behind_a_row(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
        """Return memory for all slots of an array that has none yet, with a free row in front; None if it has."""
        store = self._store
        if store.buffer is not None or store.items is not None or not self.size or self._version != store.latest:
            return None
        rows = np.empty((len(store.written_at) + 1, *shape), dtype)
        store.buffer = rows[1:]
        return rows

    def add_at(self, index: Any, value: Any) -> ArrayValue:
        """Return a new array with `value` added to element `index`; unwritten counts as zero. Grows as needed."""
        before = self.read_or_none(index)
        return self.write(index, value if before is None else add_values(before, value), dynamic_size=True)

    def clear(self, index: Any) -> ArrayValue:
        """Return a new array in which slot `index` is unwritten."""
        index = int(index)
        if not self.has(index):
            return self
        store = self._store
        if self._version != store.latest:
            return self._copy().clear(index)
        if index in store.changes or store.cleared_at[index] != _NEVER:
            return self._changed(index, _CLEARED)
        store.cleared_at[index] = store.next_version(index)
        return ArrayValue(store, store.latest, self.size)

    def sum(self, other: ArrayValue) -> ArrayValue:
        """Return the elementwise sum of two arrays, in which unwritten slots count as zero."""
        result = self
        for index in range(other.size):
            if other.has(index):
                result = result.add_at(index, other.read(index))
        return result

    def stack(self, element_shape: Sequence[int | None] | None, dtype: DTypeLike) -> Any:
        """Return all elements along a new first axis; a view where they are in one buffer.

        Raises:
            IndexError: an element was never written.
            ValueError: the elements differ in shape, or there are none and their shape is unknown.
        """
        if self.size == 0:
            if self._store.buffer is not None:  # rows that were unstacked say what none of them has looked like
                return self._store.buffer[:0]
            return np.empty((0, *[dim or 0 for dim in element_shape or ()]), dtype)
        rows = self.rows()
        if rows is not None:
            return rows
        for index in range(self.size):
            if not self.has(index):
                self.read(index)
        store = self._store
        if store.items is None and not store.changed:
            return store.buffer[: self.size]
        stacked: Any = _stack_items([self._at(index) for index in range(self.size)])
        items = store.items
        is_whole = items is not None and len(items) == self.size and not store.changed
        if is_whole and is_plain_array(stacked) and stacked.ndim > 1 and stacked.dtype.kind != "T":
            store.buffer, store.items = stacked, None  # the next stack is free
        return stacked

    def take_all(self, element_shape: Sequence[int | None] | None, dtype: DTypeLike) -> Any:
        """Stack as `stack` does; the elements are released one by one: nothing reads them again."""
        items = self._store.items
        if not items or self._store.changed or len(items) != self.size or not all(map(is_array, items)):
            return self.stack(element_shape, dtype)
        first = items[0]
        if any(item.shape != first.shape or item.dtype != first.dtype for item in items):
            return self.stack(element_shape, dtype)
        stacked = np.empty((self.size, *first.shape), first.dtype)
        for index in range(self.size):
            stacked[index] = items[index]
            items[index] = None
        return stacked

    def stack_like(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Return all elements along a new first axis as an array of `shape`; zeros where nothing was written."""
        store = self._store
        present = [index for index in range(min(self.size, shape[0])) if self.has(index)]
        if len(present) == shape[0] == self.size and store.items is None and not store.changed and self.size:
            return store.buffer[: self.size]
        alike = self._at(present[0]) if present else None
        known = alike is None or is_numpy(alike)
        stacked = np.zeros(shape, dtype) if known else np.zeros_like(alike, dtype, shape=shape)
        for index in present:
            stacked[index] = self._at(index)
        return stacked

    def _checked(self, index: Any) -> int:
        index = int(index)
        if not 0 <= index < self.size:
            raise IndexError(
                f"TensorArray index {index} is out of range for size {self.size}. "
                "Give it a larger size, or dynamic_size=True to let it grow."
            )
        return index

    def note_changes(self) -> None:
        """Begin to note what is written to this value, for `changed_since`."""
        store = self._store
        if store.log is None:
            store.log, store.logged = [], store.latest

    def changed_since(self, before: ArrayValue) -> list[int] | None:
        """Return the slots in which this value differs from an earlier one; None if it was not made of that.

        >>> before = ArrayValue.empty(3)
        >>> before.note_changes()
        >>> before.write(2, np.float32(1)).write(0, np.float32(2)).changed_since(before)
        [0, 2]
        """
        store, logged = self._store, self._store.logged
        is_later = store is before._store and logged <= before._version <= self._version and before.size <= self.size
        if not is_later or store.log is None:
            return None
        return sorted(set(store.log[before._version - logged : self._version - logged]))

    def grown(self, size: int) -> ArrayValue:
        """Return the same elements, and slots that hold nothing behind them."""
        return self if size == self.size else self._grown(size)

    def _grown(self, size: int) -> ArrayValue:
        store = self._store
        grown = self if self._version == store.latest else self._copy()
        store = grown._store
        if len(store.written_at) < size:
            store.grow(size)
        return ArrayValue(store, store.latest, size)

    def _copy(self) -> ArrayValue:
        """Return the same elements in a store of its own."""
        store = _Store(self.size)
        source = self._store
        visible = [index for index in range(self.size) if self.has(index)]
        if source.items is not None:
            store.items = [source.items[index] for index in range(self.size)]
        elif source.buffer is not None:
            store.buffer = source.buffer[: self.size].copy()
        for index in visible:
            store.written_at[index] = 0
        for index in source.changes:
            if index < self.size and store.written_at[index] == 0:
                store.put(index, self._at(index))
        return ArrayValue(store, 0, self.size)

    def __repr__(self) -> str:
        return f"<TensorArray value of {self.size} elements>"


def _is_array(value: Any) -> bool:
    """Test whether `value` is an array or scalar of NumPy, or an array of a module like it."""
    return is_numpy(value) or isinstance(value, _DeviceArray)


def add_values(a: Any, b: Any) -> Any:
    """Return the sum of two elements, which may be arrays of elements themselves."""
    return a.sum(b) if isinstance(a, ArrayValue) else a + b


def _stack_items(items: list[Any]) -> Any:
    shapes = {item.shape for item in items}
    if len(shapes) > 1:
        listed = ", ".join(str(list(shape)) for shape in sorted(shapes, key=str)[:4])
        raise ValueError(
            f"TensorArray.stack needs elements of one shape; got {listed}. Use concat, or read them singly."
        )
    return as_scalar_or_array(np.stack(items))
