"""TensorStores whose dependencies are narrowed: a read waits for its key, not for the writes before it.

A write takes its place in the order of versions at once, and its key and value come later. So a store within a step is
(table, version), as a `StoreValue` is, of a table that is still being filled. What a read finds is what it would find
if all ran in order: a key that a later write has put is not there, and one that no earlier write can still put is
missing, which is known as soon as the last of them has come. Nothing waits for what never comes.

Source: Wei et al., "Dynamic Scheduling For Dynamic Control Flow in Deep Learning Systems" (2018), section 3.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.op import is_array
from ..ops.containers.store_value import Key, StoreValue, as_key

if TYPE_CHECKING:
    from .frames import Iteration
    from .step import Step

Item = tuple[Any, "Iteration"]  # what is run again: a function and its iteration
WAITING: Any = object()  # what is asked for is not there yet: the node is run again when it is


class Entry:
    """The entry of a key: the value, the device whose memory holds it, and copies that were made on others."""

    __slots__ = ("copies", "device", "value", "waiting")

    def __init__(self, device: str, value: Any) -> None:
        self.device = device
        self.value = value
        self.copies: dict[str, Any] = {}
        self.waiting: dict[str, list[Callable[[], None]]] = {}  # by the device to which a copy is under way


class Table:
    """The entries that the writes of one chain have put.

    Args:
        base: the store to which they were made.

    Attributes:
        latest: the number of writes that have taken their place.
        settled: the version up to which all of them have come.
    """

    def __init__(self, base: StoreValue | DeferredStore) -> None:
        self.base = base
        self.latest = 0
        self.settled = 0
        self.entries: dict[Key, tuple[int, Entry]] = {}
        self.written: dict[int, tuple[Key, Entry]] = {}  # by version
        self.by_key: dict[Key, list[_Parked]] = {}
        self.by_version: list[tuple[int, int, _Parked]] = []
        self.whole: tuple[int, StoreValue] | None = None  # the latest version that was asked for as a whole
        self._numbers = count()

    def put(self, version: int, key: Key, entry: Entry) -> list[Item]:
        """Note the write of a version; what can go on now.

        Raises:
            ValueError: another write has the key.
        """
        if key in self.entries or _held(self.base, key) is not None:
            raise ValueError(
                f"TensorStore key {key!r} is written a second time; each key is written once. "
                "Write another key, or use a TensorArray, whose elements can be overwritten."
            )
        self.entries[key] = (version, entry)
        self.written[version] = (key, entry)
        while self.settled + 1 in self.written:
            self.settled += 1
        woken = [parked for parked in self.by_key.pop(key, ()) if parked.wake()]
        while self.by_version and self.by_version[0][0] <= self.settled:
            parked = heapq.heappop(self.by_version)[2]
            if parked.wake():
                woken.append(parked)
        return [parked.item for parked in woken]

    def park(self, node: Any, version: int, key: Key | None, item: Item) -> None:
        """Let `item` go on when the key is put, or when all writes up to the version have come."""
        parked = _Parked(node, version, key, item)
        heapq.heappush(self.by_version, (version, next(self._numbers), parked))
        if key is not None:
            self.by_key.setdefault(key, []).append(parked)

    def parked(self) -> list[_Parked]:
        return [parked for _, _, parked in self.by_version if parked.is_waiting]


class _Parked:
    __slots__ = ("is_waiting", "item", "key", "node", "version")

    def __init__(self, node: Any, version: int, key: Key | None, item: Item) -> None:
        self.node = node
        self.version = version
        self.key = key
        self.item = item
        self.is_waiting = True

    def wake(self) -> bool:
        """Stop waiting, and return whether it waited until now."""
        woken, self.is_waiting = self.is_waiting, False
        return woken


class DeferredStore:
    """A store within a step: the writes of a table up to a version, which may not have come yet."""

    __slots__ = ("size", "table", "version")

    def __init__(self, table: Table, version: int, size: int) -> None:
        self.table = table
        self.version = version
        self.size = size

    def __repr__(self) -> str:
        return f"<TensorStore of {self.size} elements, of which {self.table.settled} have come>"


class Stores:
    """The functions that printed code calls for narrowed stores, in one step."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._tables: list[Table] = []
        self._outside: dict[int, Entry] = {}  # elements that were there before the step, by identity

    def reset(self) -> None:
        """Forget the step that ran."""
        self._tables.clear()
        self._outside.clear()

    # --- writing ----------------------------------------------------------------------------------------------------

    def new(self) -> DeferredStore:
        """Return a store that holds nothing."""
        return DeferredStore(self._table(StoreValue.empty()), 0, 0)

    def _table(self, base: StoreValue | DeferredStore) -> Table:
        self._tables.append(table := Table(base))
        return table

    def passed_on(self, store: StoreValue | DeferredStore) -> DeferredStore:
        """Return the store after one more write, whose key and value come later."""
        if isinstance(store, StoreValue) or store.version != store.table.latest:
            table = self._table(store)
        else:
            table = store.table
        table.latest += 1
        return DeferredStore(table, table.latest, store.size + 1)

    def put(self, node: Any, store: DeferredStore, key: Any, value: Any, item: Item, slot: int) -> Any:
        """Put the key and value of a write into a store; `WAITING` until it is known what is before it."""
        key = self._key(node, key, item, slot)
        if key is WAITING or (
            isinstance(store.table.base, DeferredStore) and not self._is_settled(node, store.table.base, item)
        ):
            return WAITING
        owned = value.copy() if is_array(value) else value  # the memory of the value may be used again
        for woken in store.table.put(store.version, key, Entry(node.device, owned)):
            self.step.ready.append(woken)
        return None

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, node: Any, store: StoreValue | DeferredStore, key: Any, item: Item, slot: int) -> Any:
        """Return the element under a key, or `WAITING`.

        Raises:
            LookupError: no write before put it.
        """
        key = self._key(node, key, item, slot)
        if key is WAITING:
            return WAITING
        found = self._find(node, store, key, item)
        if found is WAITING:
            return WAITING
        if found is None:
            held = f"it holds {store.size} {'key' if store.size == 1 else 'keys'}"
            raise LookupError(
                f"TensorStore key {key!r} is read, but no operation before wrote it ({held}). "
                "Write it first; `write` returns the new store, which has to be kept."
            )
        return self._brought(node, found, item)

    def contains(self, node: Any, store: StoreValue | DeferredStore, key: Any, item: Item, slot: int) -> Any:
        """Return whether an earlier write has put a key, or `WAITING`."""
        key = self._key(node, key, item, slot)
        found = WAITING if key is WAITING else self._find(node, store, key, item)
        return found if found is WAITING else np.bool_(found is not None)

    def size(self, node: Any, store: StoreValue | DeferredStore, item: Item) -> Any:
        """Return the number of keys: as many as writes, whether they have come or not."""
        return np.int32(store.size)

    def gather(self, node: Any, store: StoreValue | DeferredStore, keys: Any, item: Item, slot: int) -> Any:
        """Return the elements under several keys, or `WAITING`. Raises: as `StoreValue.gather`."""
        element = node.operations[0].op.element
        found = StoreValue.empty()
        for key in keys:
            value = self.read(node, store, key, item, slot)
            if value is WAITING:
                return WAITING
            if not found.has(key):
                found = found.write(key, value)
        return found.gather(keys, element.shape, element.dtype)

    def settle(self, node: Any, store: StoreValue | DeferredStore, item: Item) -> Any:
        """Return the store as a whole, once all its writes have come; on the host. Until then `WAITING`."""
        if isinstance(store, StoreValue):
            return store
        if not self._is_settled(node, store, item):
            return WAITING
        missing = [entry for entry in _entries(store) if self._source(entry) and "" not in entry.copies]
        if not missing:
            return self._whole(store)
        left = [len(missing)]

        def have() -> None:
            left[0] -= 1
            if not left[0]:
                self.step.ready.append(item)

        for entry in missing:
            self._copy(node, entry, "", item[1], have)
        return WAITING

    def _whole(self, store: StoreValue | DeferredStore) -> StoreValue:
        if isinstance(store, StoreValue):
            return store
        table = store.table
        start, whole = table.whole if table.whole is not None and table.whole[0] <= store.version else (0, None)
        if whole is None:
            whole = self._whole(table.base)
        for version in range(start + 1, store.version + 1):
            key, entry = table.written[version]
            whole = whole.write(key, entry.copies[""] if self._source(entry) else entry.value)
        table.whole = (store.version, whole)
        return whole

    def _is_settled(self, node: Any, store: StoreValue | DeferredStore, item: Item) -> bool:
        while isinstance(store, DeferredStore):
            if store.table.settled < store.version:
                store.table.park(node, store.version, None, item)
                return False
            store = store.table.base
        return True

    def _find(self, node: Any, store: StoreValue | DeferredStore, key: Key, item: Item) -> Any:
        """Return the entry of a key, None if there is none, or `WAITING`; then `item` is run again later."""
        found = _held(store, key)
        if found is not None:
            return found
        while isinstance(store, DeferredStore):
            if store.table.settled < store.version:
                store.table.park(node, store.version, key, item)
                return WAITING
            store = store.table.base
        return None

    # --- devices ----------------------------------------------------------------------------------------------------

    def _has_own_memory(self, device: str) -> bool:
        return self.step.engines[device].has_own_memory

    def _key(self, node: Any, key: Any, item: Item, slot: int) -> Any:
        """Return a key in the host's form."""
        if isinstance(key, (int, str, np.generic, tuple)) or is_array(key):
            return as_key(key)
        begun = self.step.begin(node, item[1])

        def copied(value: Any) -> None:
            if self.step.end(begun):
                item[1].v[slot] = value
                self.step.ready.append(item)

        self.step.engines[node.device].to_host(key, copied)
        return WAITING

    def _source(self, entry: Entry) -> str:
        """Return the device in whose memory an element is; "" if that is the host's."""
        return entry.device if entry.device and self._has_own_memory(entry.device) else ""

    def _brought(self, node: Any, found: Any, item: Item) -> Any:
        """Return an element where a node runs."""
        device = node.device if self._has_own_memory(node.device) else ""
        if not isinstance(found, Entry) and not device:
            return found
        entry = found if isinstance(found, Entry) else self._outside.setdefault(id(found), Entry("", found))
        if device == self._source(entry):
            return entry.value
        if device in entry.copies:
            return entry.copies[device]
        self._copy(node, entry, device, item[1], lambda: self.step.ready.append(item))
        return WAITING

    def _copy(self, node: Any, entry: Entry, device: str, it: Iteration, have: Callable[[], None]) -> None:
        """Copy an element to a device ("": the host), once for all that want it there; then call `have`."""
        waiting = entry.waiting.setdefault(device, [])
        waiting.append(have)
        if len(waiting) > 1:
            return
        source = self._source(entry)
        begun = self.step.begin(node, it)

        def arrived(value: Any) -> None:
            if self.step.end(begun):
                entry.copies[device] = value
                for each in entry.waiting.pop(device):
                    each()

        def on_host(value: Any) -> None:
            if device:
                self.step.touch()
                self.step.engines[device].to_device(value, arrived)
            else:
                arrived(value)

        if source:
            self.step.engines[source].to_host(entry.value, on_host)
        else:
            on_host(entry.value)

    # --- what is missing --------------------------------------------------------------------------------------------

    def waiting(self) -> list[tuple[Any, Iteration, str]]:
        """Return the nodes and iterations that wait, and for what."""
        found: list[tuple[Any, Iteration, str]] = []
        for parked in [parked for table in self._tables for parked in table.parked()]:
            what = "all writes before it" if parked.key is None else f"key {parked.key!r}"
            found.append((parked.node, parked.item[1], what))
        return found


def _entries(store: StoreValue | DeferredStore) -> Iterator[Entry]:
    """Yield the entries of a store whose writes have all come, besides those asked for as a whole before."""
    while isinstance(store, DeferredStore):
        table = store.table
        start = table.whole[0] if table.whole is not None and table.whole[0] <= store.version else 0
        for version in range(start + 1, store.version + 1):
            yield table.written[version][1]
        if start:
            return
        store = table.base


def _held(store: StoreValue | DeferredStore, key: Key) -> Any:
    """Return what a key has now, if it is known: an `Entry`, or the value of one that was there before the step."""
    while isinstance(store, DeferredStore):
        found = store.table.entries.get(key)
        if found is not None and found[0] <= store.version:
            return found[1]
        store = store.table.base
    return store.read_or_none(key)


__all__ = ["WAITING", "DeferredStore", "Stores"]
