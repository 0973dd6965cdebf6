"""The memory of a device: who holds how much of it, by the arrays that hold values.

A value occupies the arrays that own its data. A view occupies what it is a view of, and the versions of a TensorArray
share one store, so each owner is counted once, for as long as any buffer holds a value in it. NumPy scalars travel with
the kernels that use them and occupy nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ..common.nest import is_sequence
from ..graph.op import is_array
from ..ops.containers.array_value import ArrayValue

_POISON = 0xA5
_LISTED = 4  # holders that a message lists


class DeviceMemoryError(MemoryError):
    """A kernel needs more memory than its device has, and nothing that is enqueued will release enough.

    Attributes:
        device: the name of the device.
        limit, in_use, wanted: bytes that it has, that are held, and that the kernel needs besides.
        kernel: the label of the kernel, or the name of a variable.
        holders: bytes held by label, the largest first.
    """

    def __init__(self, memory: Memory, kernel: str, wanted: int, what: str = "Kernel") -> None:
        self.device = memory.name
        self.limit = memory.limit or 0
        self.in_use = memory.in_use
        self.wanted = wanted
        self.kernel = kernel
        self.holders = memory.holders()
        listed = [f"{label!r} holds {size:,} in {_values(count)}" for label, size, count in self.holders[:_LISTED]]
        super().__init__(
            f"{self.device} is out of memory. {what} {kernel!r} needs {wanted:,} bytes, but {self.in_use:,} of "
            f"{self.limit:,} are in use, and nothing that is enqueued will release any. "
            f"The largest holders: {', '.join(listed) or 'none'}. Use smaller batches, run fewer iterations in "
            "parallel, let records of loops move to the host earlier, or declare the device with a larger memory_limit."
        )


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count} values"


class Allocation:
    """Memory that values occupy.

    Attributes:
        owner: the array or store that owns it; held here, so that its id is not used again.
        nbytes: how much it is.
        uses: how many buffers hold a value in it.
        label: the kernel that made it.
        poisoned: whether it is overwritten when it is released, as nothing but buffers may look at it.
        counted_at: for elements of a TensorArray, the version as of which they are to be counted again.
    """

    __slots__ = ("counted_at", "label", "nbytes", "owner", "poisoned", "uses")

    def __init__(self, owner: Any, label: str, poisoned: bool) -> None:
        self.owner = owner
        self.nbytes: int = owner.nbytes if type(owner) is np.ndarray else _size(owner)
        self.uses = 1
        self.label = label
        self.poisoned = poisoned
        self.counted_at = 0

    def count_again(self) -> int:
        """Count a list of elements again, with those written since; the intervals grow with it.

        Returns: how many bytes there are more than were counted before.
        """
        owner = self.owner
        if is_array(owner) or owner.latest < self.counted_at:
            return 0
        self.counted_at = owner.latest + owner.latest // 8 + 1
        before = self.nbytes
        self.nbytes = _size(owner)
        return self.nbytes - before


class Memory:
    """Accounts for what is held on a device.

    Args:
        name: the device, for messages.
        limit: bytes that there are; None for no limit.
        poison: overwrite memory that is released, so that stale use of it shows.
    """

    def __init__(self, name: str, limit: int | None = None, poison: bool = True) -> None:
        self.name = name
        self.limit = limit
        self.poison = poison
        self.in_use = 0
        self.peak = 0
        self.on_release: Callable[[], None] | None = None
        self._by_owner: dict[int, Allocation] = {}

    def missing(self, values: Iterable[Any]) -> int:
        """Return the bytes that `values` occupy beyond what is held already."""
        owners = {id(owner): owner for value in values for owner in _owners(value)}
        return sum(_size(owner) for key, owner in owners.items() if key not in self._by_owner)

    def size_of(self, value: Any) -> int:
        """Return the size in bytes of a value on the device."""
        return value_bytes(value)

    def fits(self, wanted: int) -> bool:
        """Test whether there is room for `wanted` bytes more."""
        return self.limit is None or self.in_use + wanted <= self.limit

    def hold(self, value: Any, label: str, fresh: bool = False) -> tuple[Allocation, ...]:
        """Count what `value` occupies until it is released.

        Args:
            value: any value of the runtime.
            label: the kernel that made it.
            fresh: it is new, so that nothing but buffers refers to its memory.
        """
        if type(value) is np.ndarray and value.base is None:
            return (self._hold_owner(value, label, fresh),)
        if isinstance(value, np.generic):
            return ()
        return tuple(self._hold_owner(owner, label, False) for owner in _owners(value))

    def _hold_owner(self, owner: Any, label: str, poisoned: bool) -> Allocation:
        allocation = self._by_owner.get(id(owner))
        if allocation is None:
            allocation = Allocation(owner, label, poisoned and self.poison)
            self._by_owner[id(owner)] = allocation
            grown = allocation.nbytes
        else:
            allocation.uses += 1
            grown = allocation.count_again()
        self.in_use += grown
        if self.in_use > self.peak:
            self.peak = self.in_use
        return allocation

    def reside(self, value: Any, name: str) -> tuple[Allocation, ...]:
        """Count a variable of this device, until it is released.

        Raises:
            DeviceMemoryError: there is not enough.
        """
        wanted = self.missing((value,))
        if not self.fits(wanted):
            raise DeviceMemoryError(self, name, wanted, "Variable")
        return self.hold(value, name)

    def release(self, allocations: tuple[Allocation, ...]) -> None:
        """Release what a buffer held."""
        for allocation in allocations:
            allocation.uses -= 1
            if not allocation.uses:
                self._free(allocation)

    def _free(self, allocation: Allocation) -> None:
        del self._by_owner[id(allocation.owner)]
        self.in_use -= allocation.nbytes
        if allocation.poisoned:
            poison(allocation.owner)
        if self.on_release is not None:
            self.on_release()

    def holders(self) -> list[tuple[str, int, int]]:
        """Return who holds how much: (label, bytes, how many values), the largest first."""
        sizes: defaultdict[str, int] = defaultdict(int)
        counts: defaultdict[str, int] = defaultdict(int)
        for allocation in self._by_owner.values():
            sizes[allocation.label] += allocation.nbytes
            counts[allocation.label] += 1
        return sorted(((label, sizes[label], counts[label]) for label in sizes), key=lambda row: -row[1])


def _owners(value: Any) -> Iterator[Any]:
    """Yield the owners of a value's memory: arrays, and stores of elements that differ in shape."""
    if is_array(value):
        yield _owner(value)
    elif isinstance(value, ArrayValue):
        store = _store(value)
        if store.items is not None:
            yield store
        elif store.buffer is not None:
            yield _owner(store.buffer)
    elif is_sequence(value):
        for element in value:
            yield from _owners(element)


def _store(value: ArrayValue) -> Any:
    return value._store  # pyrefly: ignore[protected-access] - memory is counted by what holds it


def _owner(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    base = array.base
    while isinstance(base, np.ndarray):
        array, base = base, base.base
    return array


def _size(owner: Any) -> int:
    if is_array(owner):
        return owner.nbytes
    return sum(value_bytes(item) for item in owner.items)


def is_simple(value: Any) -> bool:
    """Test whether a value is an array that owns its memory, or a scalar."""
    return value.base is None if type(value) is np.ndarray else isinstance(value, np.generic)


def is_traceable(value: Any) -> bool:
    """Test whether all memory under a value is found from it. Lists of elements and strided views may hide some."""
    if is_array(value):
        return _owner(value).base is None
    if isinstance(value, ArrayValue):
        store = _store(value)
        return store.items is None and is_traceable(store.buffer)
    return not is_sequence(value) or all(map(is_traceable, value))


def value_bytes(value: Any) -> int:
    """Return the size in bytes of a value that is sent.

    >>> value_bytes((np.zeros(3), np.float32(1), None))
    28
    """
    if isinstance(value, (np.ndarray, np.generic, ArrayValue)):
        return int(value.nbytes)
    if is_sequence(value):
        return sum(map(value_bytes, value))
    return 0 if value is None else 8


def copy_value(value: Any) -> Any:
    """Return the same value in memory of its own."""
    if is_array(value):
        return value.copy(order="K")
    if isinstance(value, ArrayValue):
        return _copy_elements(value)
    if is_sequence(value):
        return tuple(map(copy_value, value))
    return value


def _copy_elements(value: ArrayValue) -> ArrayValue:
    copied = ArrayValue.empty(value.size)
    for index in range(value.size):
        if value.has(index):
            copied = copied.write(index, copy_value(value.read(index)))
    return copied


def poison(array: np.ndarray[Any, Any]) -> None:
    """Overwrite an array with what shows when it is used: NaN, or bytes 0xA5."""
    kind = array.dtype.kind
    if kind in "OT" or not array.flags.writeable:
        return
    array.fill(np.nan if kind in "fc" else np.frombuffer(bytes([_POISON]) * array.itemsize, array.dtype)[0])
