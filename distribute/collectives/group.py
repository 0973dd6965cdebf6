"""`ProcessGroup`: collectives of several processes.

A collective begins with a header from each member to each other, so that members that disagree all learn of it. Small
arrays follow the header. Large ones of one host go through shared memory: each member writes its array into its own
segment, reduces its share of all segments in place, and reads the shares of the others. Between hosts, members send
each other their shares. Numbers are always added in the order of ranks, so the plane does not change bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import struct
import threading
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...engine.common.dtypes import as_dtype, name_of
from ...engine.ops.collectives import Group
from ...engine.queues.errors import CancelledError
from .begun import Begun
from .links import Links
from .segments import IS_AVAILABLE, Segment, opened

_SMALL = 1 << 14  # bytes that are sent with the header
_MOST_AXES = 16
_PATIENCE_SECONDS = 5.0  # for how long the end of a group waits for what another thread runs
_HEADER = struct.Struct(f"<QBbB16s{_MOST_AXES}qqq")
_INTRODUCTION = struct.Struct("<q16sqq16s")
_ABORT = 255
_KINDS = ("barrier", "all_reduce", "all_gather", "broadcast", "reduce_scatter")
_REDUCTIONS: dict[str, Any] = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}
_NAMES = list(_REDUCTIONS)


class _Header(NamedTuple):
    """The header in which a member describes a collective.

    Attributes:
        number: how many collectives came before.
        kind, option: what it runs: the reduction, axis or root.
        axes, dtype, shape: of its array.
        descriptor, size: of its segment.
    """

    number: int
    kind: int
    option: int
    axes: int
    dtype: bytes
    shape: tuple[int, ...]
    descriptor: int
    size: int

    def packed(self) -> bytes:
        dims = [*self.shape, *[0] * (_MOST_AXES - self.axes)]
        return _HEADER.pack(*self[:5], *dims, *self[6:])

    @classmethod
    def unpacked(cls, data: Any) -> _Header:
        number, kind, option, axes, dtype, *rest = _HEADER.unpack(data)
        return cls(number, kind, option, axes, dtype.rstrip(b"\0"), tuple(rest[:axes]), *rest[_MOST_AXES:])

    @property
    def count(self) -> int:
        """The number of elements of the array."""
        return int(np.prod(self.shape, dtype="int64"))

    @property
    def nbytes(self) -> int:
        return self.count * as_dtype(self.dtype.decode()).itemsize

    def agrees(self, other: _Header) -> bool:
        """Test whether both members run the same."""
        if self[:5] != other[:5] or _KINDS[self.kind] == "barrier":
            return self[:5] == other[:5]
        free = self.option if _KINDS[self.kind] == "all_gather" else -1
        pairs = enumerate(zip(self.shape, other.shape, strict=True))
        return all(axis == free or mine == theirs for axis, (mine, theirs) in pairs)

    def __str__(self) -> str:
        kind = _KINDS[self.kind] if self.kind < len(_KINDS) else f"op {self.kind}"
        if kind == "barrier":
            return f"barrier (number {self.number})"
        option = {
            "all_reduce": _NAMES[self.option % len(_NAMES)],
            "reduce_scatter": _NAMES[self.option % len(_NAMES)],
            "all_gather": f"axis {self.option}",
            "broadcast": f"root {self.option}",
        }.get(kind, "?")
        return f"{kind}, {option}, of {self.dtype.decode()}{list(self.shape)} (number {self.number})"


class ProcessGroup(Group):
    """The group that this process forms with others.

    Args:
        links: the connections to them.
        shares_memory: whether to use memory that processes of a host share, where all members can.
    """

    def __init__(self, links: Links, shares_memory: bool = True) -> None:
        self.links = links
        self.rank = links.rank
        self.size = len(links.names)
        self._others = [rank for rank in range(self.size) if rank != self.rank]
        self._number = 0
        self._lock = threading.Lock()
        self._begun = Begun("anabranch collectives")
        self._segments = [Segment(), Segment()]
        self._maps: dict[tuple[int, int], tuple[tuple[int, int], Any]] = {}
        self.shares_memory = self._introduce(shares_memory and IS_AVAILABLE)

    def _introduce(self, wanted: bool) -> bool:
        """Find out whether all members can map each other's memory."""
        secret = secrets.token_bytes(16)
        first = self._segments[0]
        if wanted:
            first.grow(len(secret))
            first.memory[: len(secret)] = np.frombuffer(secret, "uint8")
        own = _INTRODUCTION.pack(os.getpid(), _host(), first.descriptor, first.size, secret)
        found = self._told(own)
        works = wanted
        for rank in self._others:
            process, host, descriptor, size, expected = _INTRODUCTION.unpack(found[rank])
            works = works and host == _host() and _reads(process, descriptor, size, expected)
            self._maps[rank, -1] = ((process, 0), None)
        flags = self._told(bytes([works]))
        return works and all(flags[rank][0] for rank in self._others)

    # --- collectives ------------------------------------------------------------------------------------------------

    def all_reduce(self, array: Any, reduce_op: str) -> Any:
        self._begun.drain()
        return self._all_reduce_in_turn(array, reduce_op)

    def begin_all_reduce(self, array: Any, reduce_op: str) -> int:
        return self._begun.begin(partial(self._all_reduce_in_turn, array, reduce_op))

    def end_all_reduce(self, number: int, array: Any) -> Any:
        return self._begun.end(number)

    @contextlib.contextmanager
    def _turn(self) -> Generator[None]:
        """Wait for what was begun, and let no other thread begin: all members run collectives in one order."""
        self._begun.drain()
        with self._lock:
            yield

    def _all_reduce_in_turn(self, array: Any, reduce_op: str) -> Any:
        array = np.ascontiguousarray(array).reshape(array.shape)
        with self._lock:
            reduced = self._all_reduce(array, _NAMES.index(reduce_op))
        return np.divide(reduced, np.asarray(self.size, array.dtype), out=reduced) if reduce_op == "mean" else reduced

    def _all_reduce(self, array: Any, option: int) -> Any:
        reduce = list(_REDUCTIONS.values())[option]
        if array.nbytes <= _SMALL:
            parts = self._gathered("all_reduce", option, array)
            return _reduced(parts, reduce, np.empty_like(array))
        if self.shares_memory:
            return self._reduced_in_memory(array, option, reduce)
        return self._reduced_over_sockets(array, option, reduce)

    def _reduced_in_memory(self, array: Any, option: int, reduce: Any) -> Any:
        flat = [view.view(array.dtype) for view in self._in_memory("all_reduce", option, array)]
        first, last = _share(array.size, self.rank, self.size)
        total = flat[self.rank][first:last]
        running = total if self.rank < 2 else np.empty_like(total)  # in place, unless that comes later in the order
        _reduced([other[first:last] for other in flat], reduce, running)
        if running is not total:
            total[:] = running
        self._told(b"\x01")
        found = np.empty(array.size, array.dtype)
        for rank, view in enumerate(flat):
            first, last = _share(array.size, rank, self.size)
            found[first:last] = view[first:last]
        return found.reshape(array.shape)

    def _reduced_over_sockets(self, array: Any, option: int, reduce: Any) -> Any:
        self._agreed(self._header("all_reduce", option, array), {})
        flat = array.reshape(-1)
        shares = [slice(*_share(flat.size, rank, self.size)) for rank in range(self.size)]
        parts = self._shares_of_others(flat)
        found = np.empty_like(flat)
        total = _reduced(parts, reduce, found[shares[self.rank]])
        self.links.exchange(
            {rank: [_bytes(total)] for rank in self._others},
            {rank: _bytes(found[shares[rank]]) for rank in self._others},
        )
        return found.reshape(array.shape)

    def reduce_scatter(self, array: Any, reduce_op: str) -> Any:
        array = np.ascontiguousarray(array)
        with self._turn():
            reduced = self._reduced_share(array.reshape(-1), _NAMES.index(reduce_op))
        if reduce_op == "mean":
            np.divide(reduced, np.asarray(self.size, array.dtype), out=reduced)
        return reduced.reshape(array.shape[0] // self.size, *array.shape[1:])

    def _reduced_share(self, flat: Any, option: int) -> Any:
        """The own share of the reduced numbers, in memory of its own."""
        reduce = list(_REDUCTIONS.values())[option]
        first, last = _share(flat.size, self.rank, self.size)
        if flat.nbytes <= _SMALL:
            parts = [part[first:last] for part in self._gathered("reduce_scatter", option, flat)]
        elif self.shares_memory:
            views = self._in_memory("reduce_scatter", option, flat)
            parts = [view.view(flat.dtype)[first:last] for view in views]
        else:
            self._agreed(self._header("reduce_scatter", option, flat), {})
            parts = self._shares_of_others(flat)
        return _reduced(parts, reduce, np.empty_like(parts[0]))

    def _shares_of_others(self, flat: Any) -> list[Any]:
        """Return each member's part of the own share, by rank; send each other member what it is to reduce."""
        shares = [slice(*_share(flat.size, rank, self.size)) for rank in range(self.size)]
        own = flat[shares[self.rank]]
        parts = [own if rank == self.rank else np.empty_like(own) for rank in range(self.size)]
        self.links.exchange(
            {rank: [_bytes(flat[shares[rank]])] for rank in self._others},
            {rank: _bytes(parts[rank]) for rank in self._others},
        )
        return parts

    def all_gather(self, array: Any, axis: int) -> Any:
        with self._turn():
            return np.concatenate(self._gathered("all_gather", axis, np.asarray(array, order="C")), axis)

    def broadcast(self, array: Any, root: int) -> Any:
        array = np.asarray(array, order="C")
        with self._turn():
            header = self._header("broadcast", root, array)
            data = _bytes(array)
            self._agreed(header, self._for_others([data]) if self.rank == root else {})
            if self.rank == root:
                return array
            found = np.empty_like(array)
            self.links.exchange({}, {root: _bytes(found)})
            return found

    def barrier(self) -> None:
        with self._turn():
            self._agreed(self._header("barrier", 0, np.zeros(0, "uint8")), {})

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Give each member what each member has, by rank: for what isn't an array of one dtype."""
        with self._turn():
            return [part.tobytes() for part in self._gathered("all_gather", 0, np.frombuffer(data, "uint8"))]

    def abort(self, reason: str) -> None:
        """Have all members that run a collective, or will, fail with this reason; then leave the group."""
        self._begun.close()  # others come to what runs; it does not wait for ever
        if self._lock.acquire(timeout=_PATIENCE_SECONDS):
            with contextlib.suppress(Exception):
                text = reason.encode()
                header = _Header(self._number, _ABORT, 0, 0, b"", (), -1, len(text)).packed()
                self.links.exchange(self._for_others([header, text]), {})
            self._lock.release()
        self.close()

    def close(self) -> None:
        """End the connections and give the memory up."""
        self.links.close()
        self._begun.close()
        self._maps.clear()
        for segment in self._segments:
            segment.close()

    # --- rounds -----------------------------------------------------------------------------------------------------

    def _gathered(self, kind: str, option: int, array: Any) -> list[Any]:
        """The arrays of all members, by rank."""
        data = self._for_others([_bytes(array)])
        is_small = array.nbytes <= _SMALL  # what waits in sockets until it is read; more is sent while all read
        headers = self._agreed(self._header(kind, option, array), data if is_small else {})
        found = [array if rank == self.rank else np.empty(headers[rank].shape, array.dtype) for rank in headers]
        into = {rank: _bytes(found[rank]) for rank in self._others if headers[rank].nbytes}
        self.links.exchange({} if is_small else data, into)
        return found

    def _in_memory(self, kind: str, option: int, array: Any) -> list[Any]:
        """Write the array into the own segment; gives the bytes that all members have written, by rank."""
        slot = self._number % 2  # nobody reads this one any more, for all have begun the collective before this
        segment = self._segments[slot]
        segment.grow(array.nbytes)
        segment.memory[: array.nbytes] = np.frombuffer(_bytes(array), "uint8")
        headers = self._agreed(self._header(kind, option, array, segment), {})
        views = [
            segment.memory if rank == self.rank else self._map(rank, slot, header) for rank, header in headers.items()
        ]
        return [view[: headers[rank].nbytes] for rank, view in enumerate(views)]

    def _map(self, rank: int, slot: int, header: _Header) -> Any:
        file = header.descriptor, header.size
        known = self._maps.get((rank, slot))
        if known is None or known[0] != file:
            known = self._maps[rank, slot] = (file, opened(self._maps[rank, -1][0][0], *file))
        return known[1]

    def _header(self, kind: str, option: int, array: Any, segment: Segment | None = None) -> _Header:
        if array.ndim > _MOST_AXES:
            raise ValueError(f"{kind} takes arrays of at most {_MOST_AXES} axes; got {array.ndim}. Reshape it.")
        place = (-1, 0) if segment is None else (segment.descriptor, segment.size)
        number, self._number = self._number, self._number + 1
        name = name_of(array.dtype).encode()
        return _Header(number, _KINDS.index(kind), option, array.ndim, name, array.shape, *place)

    def _agreed(self, own: _Header, data: dict[int, Sequence[Any]]) -> dict[int, _Header]:
        """Send the header, and data behind it; gives the headers of all members by rank.

        Raises:
            ValueError: a member runs something else.
        """
        packed = own.packed()
        into = {rank: bytearray(_HEADER.size) for rank in self._others}
        self.links.exchange({rank: [packed, *data.get(rank, ())] for rank in self._others}, into)
        found = {rank: own if rank == self.rank else _Header.unpacked(into[rank]) for rank in range(self.size)}
        for rank in self._others:
            if found[rank].kind == _ABORT:
                reason = bytearray(found[rank].size)
                self.links.exchange({}, {rank: reason})
                raise CancelledError(f"{self.links.names[rank]} has ended what the group runs: {reason.decode()}")
            if not own.agrees(found[rank]):
                self.links.close()  # what follows in the streams has no meaning any more
                raise ValueError(
                    f"Members of the group disagree: {self.links.names[self.rank]} runs {own}, and "
                    f"{self.links.names[rank]} runs {found[rank]}. All members have to run the same collectives in the "
                    "same order, on the same shapes and dtypes."
                )
        return found

    def _for_others(self, buffers: Sequence[Any]) -> dict[int, Sequence[Any]]:
        """The same bytes for each other member."""
        return {rank: buffers for rank in self._others}  # noqa: C420 - nobody changes them

    def _told(self, data: bytes) -> dict[int, bytearray]:
        """Exchange as many bytes with each member."""
        into = {rank: bytearray(len(data)) for rank in self._others}
        self.links.exchange({rank: [data] for rank in self._others}, into)
        return into


def _reduced(parts: Sequence[Any], reduce: Any, out: Any) -> Any:
    """Reduce arrays in their order into `out`, which may be one of the first two; half precision is rounded once."""
    if len(parts) == 1:
        out[...] = parts[0]
    elif out.dtype.itemsize == 2 and out.dtype.kind not in "iu":
        total = parts[0].astype("float32")
        for part in parts[1:]:
            reduce(total, part.astype("float32"), out=total)
        out[...] = total
    else:
        reduce(parts[0], parts[1], out=out)
        for part in parts[2:]:
            reduce(out, part, out=out)
    return out


def _share(size: int, rank: int, members: int) -> tuple[int, int]:
    return size * rank // members, size * (rank + 1) // members


def _bytes(array: Any) -> memoryview:
    """The memory of a contiguous array, of any dtype."""
    return memoryview(array.reshape(-1).view("uint8"))


def _host() -> bytes:
    """Return bytes that differ between hosts, and between starts of one."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    text = boot.read_text() if boot.exists() else ""
    return hashlib.sha256(f"{text} {socket.gethostname()}".encode()).digest()[:16]


def _reads(process: int, descriptor: int, size: int, expected: bytes) -> bool:
    """Test whether memory of another process can be mapped, and is what that process means."""
    try:
        return opened(process, descriptor, size)[: len(expected)].tobytes() == expected
    except (OSError, ValueError):
        return False


__all__ = ["ProcessGroup"]
