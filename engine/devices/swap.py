"""Histories of loops that are kept on a device and, when its memory runs short, on the host.

The forward iterations of a loop make values that the backward iterations read from the last one downward. So what was
made first is read last: it moves to the host while the loop goes on, and comes back before it is read. Both copies run
beside the kernels, on streams of their own.

Source: Y. Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from ..common.quick_dataclass import dataclass
from .buffer import Buffer
from .stream import StreamDevice

SMALLEST = 4096  # bytes: what is smaller stays where it is
_THRESHOLD = 0.75  # of the memory of a device
_PREFETCHED = (
    0.9  # of the threshold: values are brought back up to there, so that results of kernels evict none of them
)
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class SwapStatistics:
    """Counts and bytes of what was moved between a device and its host.

    Attributes:
        bytes_out, bytes_in: copied to the host, and back.
        bytes_dropped: released on the device without a copy, as the host had one.
        waits: reads whose value was on the host, and on no way back.
    """

    bytes_out: int
    bytes_in: int
    bytes_dropped: int
    waits: int


class _Entry:
    """One value of a record, on the device, on the host, or on both; records that keep the same buffer share it.

    Attributes:
        buffer: the value on the device, or None.
        host: the value on the host, or `_ABSENT`.
        nbytes: how large it is; 0 as long as that is not known.
        uses: in how many places of records it is.
        is_leaving, is_coming: a copy to the host or back is under way.
        readers, host_readers: what waits for it on the device and on the host.
    """

    __slots__ = (
        "buffer",
        "host",
        "host_readers",
        "is_coming",
        "is_leaving",
        "label",
        "nbytes",
        "readers",
        "uses",
    )

    def __init__(self, buffer: Buffer) -> None:
        self.buffer: Buffer | None = buffer
        self.label = buffer.label
        self.host: Any = _ABSENT
        self.nbytes = 0
        self.uses = 0
        self.is_leaving = self.is_coming = False
        self.readers: list[Callable[[Buffer], None]] = []
        self.host_readers: list[Callable[[Any], None]] = []

    @property
    def is_near(self) -> bool:
        """Test whether it is on the device, or will be."""
        return self.buffer is not None or self.is_coming


class SwapPolicy:
    """Decides for one device which values of records move to the host, and when they come back.

    Nothing moves until more memory is in use than `threshold`. Then the oldest values go first. No value is copied to
    the host twice: one that came back is just released when memory is short again.

    Args:
        device: whose memory it watches.
        threshold: bytes in use above which values move; by default three quarters of the memory limit, and without a
            limit none.
        smallest: values of fewer bytes stay.

    Raises:
        ValueError: `threshold` is above the memory limit.

    >>> from anabranch.engine.devices import SimDevice, VirtualClock
    >>> from anabranch.engine.place import make_devices
    >>> device = SimDevice(make_devices(sim=1)[-1], VirtualClock())
    >>> record = SwapPolicy(device, threshold=0, smallest=0).record()
    >>> record.append(0, device.upload([1.0, 2.0]))
    >>> device.synchronize()
    >>> record.get(0, lambda buffer: print(buffer.value))
    (1.0, 2.0)
    """

    def __init__(self, device: StreamDevice, threshold: int | None = None, smallest: int = SMALLEST) -> None:
        limit = device.memory.limit
        if threshold is not None and limit is not None and threshold > limit:
            raise ValueError(
                f"SwapPolicy: threshold={threshold:,} bytes; expected at most the {limit:,} bytes that "
                f"{device.device.name} has."
            )
        self.device = device
        self.threshold = int(_THRESHOLD * limit) if threshold is None and limit is not None else threshold
        self.smallest = smallest
        self.evictions = 0  # of values that will be read; what records hold about their next values is old then
        self._by_buffer: dict[int, _Entry] = {}
        self._unread: dict[_Entry, None] = {}  # what never left, the oldest first
        self._fetched: dict[_Entry, None] = {}  # what came back and was not read since
        self._read: dict[_Entry, None] = {}
        self._moving: dict[_Entry, None] = {}
        self._records: WeakValueDictionary[int, SwappedRecord] = WeakValueDictionary()
        self._made = 0
        self._bytes_leaving = self._bytes_coming = 0
        self._bytes_out = self._bytes_in = self._bytes_dropped = self._waits = 0
        device.listen(self)

    def record(self) -> SwappedRecord:
        """Return a new record, empty."""
        record = SwappedRecord(self)
        self._records[self._made] = record
        self._made += 1
        return record

    def statistics(self) -> SwapStatistics:
        """Return what was moved until now."""
        return SwapStatistics(self._bytes_out, self._bytes_in, self._bytes_dropped, self._waits)

    def pressure(self, wanted: int) -> None:
        """Move values to the host as far as memory is short. See `MemoryListener`."""
        if self.threshold is None:
            return
        allowed = self.threshold
        if self.device.memory.limit is not None:
            allowed = min(allowed, self.device.memory.limit - wanted)
        self._make_room(allowed, self._victims())

    def _victims(self) -> Iterator[_Entry]:
        """Yield what may move, in the order in which it does: what is read last goes first."""
        yield from list(self._read)  # lists, as records that are collected meanwhile change what is tracked
        yield from list(reversed(self._fetched))
        yield from list(self._unread)

    def _make_room(self, allowed: int, victims: Iterator[_Entry]) -> None:
        """Move victims out until no more than `allowed` will be in use."""
        excess = self.device.memory.in_use - self._bytes_leaving - allowed
        chosen: list[_Entry] = []
        small: list[_Entry] = []
        while excess > 0 and (entry := next(victims, None)) is not None:
            nbytes = None if entry.buffer is None else entry.buffer.nbytes
            if nbytes is None:
                continue  # it has not been computed
            (small if nbytes < self.smallest else chosen).append(entry)
            excess -= nbytes if nbytes >= self.smallest else 0
        for entry in small:
            self._untrack(entry)
        for entry in chosen:
            self._move_out(entry)

    def _move_out(self, entry: _Entry) -> None:
        self.evictions += entry not in self._read
        self._untrack(entry)
        if entry.host is _ABSENT:
            self._copy_out(entry)
            return
        self._bytes_dropped += entry.nbytes
        self._release(entry)

    def _copy_out(self, entry: _Entry) -> None:
        assert entry.buffer is not None
        self.device.to_host(entry.buffer, partial(self._has_left, entry))
        entry.is_leaving = True
        entry.nbytes = entry.buffer.nbytes or 0
        self._bytes_leaving += entry.nbytes
        self._moving[entry] = None

    def _has_left(self, entry: _Entry, value: Any) -> None:
        del self._moving[entry]
        entry.is_leaving = False
        entry.host = value
        self._bytes_leaving -= entry.nbytes
        entry.nbytes = (entry.buffer.nbytes if entry.buffer is not None else None) or entry.nbytes
        self._bytes_out += entry.nbytes
        self._release(entry)
        readers, entry.host_readers = entry.host_readers, []
        for done in readers:
            done(value)

    def _release(self, entry: _Entry) -> None:
        """Release the value on the device, as far as records hold it."""
        if entry.buffer is not None:
            self._by_buffer.pop(id(entry.buffer), None)
        entry.buffer = None

    def _untrack(self, entry: _Entry) -> None:
        for among in (self._unread, self._fetched, self._read):
            among.pop(entry, None)

    def _bring_back(self, entry: _Entry) -> None:
        entry.is_coming = True
        self._bytes_coming += entry.nbytes
        self._moving[entry] = None
        self.device.to_device(entry.host, partial(self._has_come, entry), entry.label)

    def _has_come(self, entry: _Entry, buffer: Buffer) -> None:
        del self._moving[entry]
        entry.is_coming = False
        self._bytes_coming -= entry.nbytes
        self._bytes_in += entry.nbytes
        readers, entry.readers = entry.readers, []
        if entry.uses:
            entry.buffer = buffer
            self._by_buffer[id(buffer)] = entry
            (self._read if readers else self._fetched)[entry] = None
        for done in readers:
            done(buffer)
        self.prefetch()

    def prefetch(self) -> None:
        """Bring back what records will read next, the nearest first, as far as there is room for it."""
        if self.threshold is None:
            return
        memory = self.device.memory
        while (entry := self._nearest()) is not None:
            room = int(_PREFETCHED * self.threshold) - self._bytes_coming - entry.nbytes
            self._make_room(room, iter(list(self._read)))
            if memory.in_use - self._bytes_leaving > room:
                return
            self._bring_back(entry)

    def _nearest(self) -> _Entry | None:
        ahead = [found for record in self._records.values() if (found := record.next_far()) is not None]
        return min(ahead, key=lambda found: found[0])[1] if ahead else None

    def entry_of(self, buffer: Buffer) -> _Entry:
        """Return the entry that holds `buffer`; a new one if none does. One more place holds it now."""
        entry = self._by_buffer.get(id(buffer))
        if entry is None:
            entry = self._by_buffer[id(buffer)] = _Entry(buffer)
        elif not entry.is_leaving:
            self._untrack(entry)  # it is as young as its youngest use
        entry.uses += 1
        if not entry.is_leaving:
            self._unread[entry] = None
        return entry

    def read(self, entry: _Entry, done: Callable[[Buffer], None]) -> None:
        """Call `done` with the value on the device, now or when it is back."""
        buffer = entry.buffer
        if buffer is None:
            entry.readers.append(done)
            if not entry.is_coming:
                self._waits += 1
                self._bring_back(entry)
            return
        if not entry.is_leaving:
            self._untrack(entry)
            self._read[entry] = None
        done(buffer)

    def read_on_host(self, entry: _Entry, done: Callable[[Any], None]) -> None:
        """Call `done` with the value on the host, now or when it is there."""
        if entry.host is not _ABSENT:
            done(entry.host)
            return
        entry.host_readers.append(done)
        if not entry.is_leaving:
            self._untrack(entry)
            self._copy_out(entry)

    def forget(self, entry: _Entry) -> None:
        """Note that one place less holds this."""
        entry.uses -= 1
        if not entry.uses:
            self._untrack(entry)
            self._release(entry)

    def aborted(self) -> None:
        """Note that no copy under way will end. See `MemoryListener`."""
        self._bytes_leaving = self._bytes_coming = 0
        for entry in list(self._moving):
            if entry.is_leaving and entry.uses:
                self._unread[entry] = None
            entry.is_leaving = entry.is_coming = False
            entry.readers, entry.host_readers = [], []
        self._moving.clear()


class SwappedRecord:
    """The value of one tensor of a loop in each iteration. Its policy decides where that is kept.

    Values that are not buffers (None where a branch was not taken, scalars of the host) are kept as they are.

    Args:
        policy: that of the device.
    """

    def __init__(self, policy: SwapPolicy) -> None:
        self._policy = policy
        self._entries: dict[int, Any] = {}
        self._position: int | None = None  # of the last read
        self._step = -1
        self._cursor = 0  # between it and the position, all is near
        self._evictions = 0

    @property
    def size(self) -> int:
        """The number of iterations that it holds."""
        return len(self._entries)

    def append(self, iteration: int, value: Any) -> None:
        """Keep the value of one more iteration; they may come in any order.

        Raises:
            ValueError: there is one of that iteration.
        """
        if iteration in self._entries:
            raise ValueError(f"The record of a loop is given iteration {iteration} twice; expected each one once.")
        self._entries[iteration] = self._policy.entry_of(value) if isinstance(value, Buffer) else value

    def get(self, iteration: int, done: Callable[[Any], None], last: bool = False) -> None:
        """Call `done` with the buffer of an iteration: at once if it is on the device, otherwise when it is back.

        The iterations that follow in the same direction are brought back meanwhile, as far as memory allows.

        Args:
            iteration: which one.
            done: takes the buffer.
            last: nobody will read it again, so that the record lets go of it.

        Raises:
            IndexError: there is none of that iteration.
        """
        if iteration not in self._entries:
            raise IndexError(
                f"Iteration {iteration} of a loop's record is read, but it holds none of that number ({self.size} in "
                "all). It was never appended, or read with last=True."
            )
        entry = self._entries[iteration]
        self._turn(iteration)
        if not isinstance(entry, _Entry):
            done(entry)
        else:
            self._policy.read(entry, done)
        if last:
            self._forget(iteration)
        self._policy.prefetch()

    def _turn(self, iteration: int) -> None:
        before = self._position
        self._position = iteration
        step = self._step if before is None or before == iteration else 1 if iteration > before else -1
        if before is None or step != self._step or (self._cursor - iteration) * step <= 0:
            self._cursor = iteration + step
        self._step = step

    def next_far(self) -> tuple[int, _Entry] | None:
        """Return the next iteration that will be read and is on the host only: how far ahead it is, and its entry."""
        if self._position is None:
            return None
        if self._evictions != self._policy.evictions:
            self._evictions = self._policy.evictions
            self._cursor = self._position + self._step
        while self._cursor in self._entries:
            entry = self._entries[self._cursor]
            if isinstance(entry, _Entry) and not entry.is_near:
                return abs(self._cursor - self._position), entry
            self._cursor += self._step
        return None

    def as_list(self, done: Callable[[list[Any]], None]) -> None:
        """Call `done` with the buffers of all iterations in order, when all are on the device.

        Raises:
            IndexError: an iteration is missing.
        """
        self._gather(self._policy.read, done)

    def as_host_list(self, done: Callable[[list[Any]], None]) -> None:
        """Call `done` with the values of all iterations in order, when all are on the host.

        Raises:
            IndexError: an iteration is missing.
        """
        self._gather(self._policy.read_on_host, done)

    def _gather(self, read: Callable[[_Entry, Callable[[Any], None]], None], done: Callable[[list[Any]], None]) -> None:
        missing = next((i for i in range(self.size) if i not in self._entries), None)
        if missing is not None:
            raise IndexError(f"The record of a loop holds {self.size} iterations, but not iteration {missing}.")
        gathered = [self._entries[i] for i in range(self.size)]
        waited_for = {i: entry for i, entry in enumerate(gathered) if isinstance(entry, _Entry)}
        if not waited_for:
            done(gathered)
            return

        def put(iteration: int, value: Any) -> None:
            gathered[iteration] = value
            del waited_for[iteration]
            if not waited_for:
                done(gathered)

        for iteration, entry in list(waited_for.items()):
            read(entry, partial(put, iteration))

    def clear(self) -> None:
        """Let go of all values."""
        for iteration in list(self._entries):
            self._forget(iteration)

    def _forget(self, iteration: int) -> None:
        entry = self._entries.pop(iteration)
        if isinstance(entry, _Entry):
            self._policy.forget(entry)

    def __del__(self) -> None:
        self.clear()

    def __repr__(self) -> str:
        return f"<SwappedRecord of {self.size} iterations on {self._policy.device.device.name}>"
