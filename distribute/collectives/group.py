"""`ProcessGroup`: collectives of several processes.

A collective begins with a header from each member to each other, so that members that disagree all learn of it. Small
arrays follow the header. Large ones of one host go through shared memory: each member writes what others reduce into
one of its two segments, reduces its share of all arrays into the other one, and reads the shares of the others. Between
hosts, members send each other their shares, or pass sums along a chain, whichever took less time. Numbers are always
added in the order of ranks, so the way does not change bits. Large results go into memory of earlier ones (`Results`).
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Generator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ...engine.ops.collectives import Group
from ...engine.queues.errors import CancelledError, TaskFailedError
from ..environment import note_end
from ..transport.wire import FrameError
from .begun import Begun
from .chain import reduce_lane
from .choice import Choice
from .gpus import GpuGroup
from .headers import NAMES, REDUCTIONS, SMALL, Header
from .hosts import Hosts
from .links import Links
from .membership_service import Seat, address_of_service
from .reducing import bytes_of, is_half, reduced, share_of
from .results import Results
from .rounds import Rounds
from .segments import Segments

_PATIENCE_SECONDS = 5.0  # for how long the end of a group waits for what another thread runs
_PIECE = 1 << 16  # numbers that are reduced and copied at a time
_PLACE = struct.Struct("<qq")  # the descriptor and size of a segment
WAYS = ("direct", "chain", "hosts")


class ProcessGroup(Rounds):
    """The group that this process forms with others.

    Args:
        links: the connections to them.
        shares_memory: whether to use memory that processes of a host share, where they can.
        host: the name of this process's host, in place of what the system says.
        way: how arrays that are not small are reduced between hosts: "direct", "chain" or "hosts" (a chain of hosts,
            whose members share memory). None to choose by measured time. All members give the same.

    Attributes:
        ways: the names of those that can be chosen.
        watches: that by which members agree on who is left: their places in the launcher's membership service, or
            connections that carry nothing, between the members of the group of which this one is left, by which they
            see who has ended. None before `watch`.
        left: the ranks there of this group's members; the first one leads.
        trainings: how many trainings this process has begun with others.
        started: how many workers there were at first.
        begun: the thread for what is begun and ended separately.
        lock: held while a collective runs.
    """

    def __init__(
        self, links: Links, shares_memory: bool = True, host: str | None = None, way: str | None = None
    ) -> None:
        self._made_with: tuple[bool, str | None, str | None] = shares_memory, host, way
        self._hosts = Hosts(links, shares_memory, host)
        self.begun = Begun("anabranch collectives")
        self.lock = threading.RLock()
        self._way = way
        self.watches: Links | Seat | None = None
        self.left = [*range(len(links.names))]
        self.trainings, self.started = 0, len(links.names)
        self._results = Results()
        self._subgroups: dict[tuple[int, ...], ProcessGroup] = {}
        self._join(links, tuple(range(len(links.names))))

    def _join(self, links: Links, ranks: tuple[int, ...]) -> None:
        """Begin as the group of some ranks."""
        self._begin(links, ranks)
        self._segments = Segments(self._hosts.processes)
        self._read = 0  # the own segment from which others may still read
        self._parts = self._hosts.parts(ranks)
        self._here = next(part for part in self._parts if links.rank in part)
        self.shares_memory = len(self._parts) == 1
        chains_hosts = 1 < len(self._parts) < self.size and [*ranks] == [*chain.from_iterable(self._parts)]
        self.ways = [way for way in WAYS if way != "hosts" or chains_hosts]
        if self._way is not None:
            self.ways = [self._way]
        self.choice = Choice(self.ways, self._shared_times)
        self.gpus = GpuGroup(self)

    def subgroup(self, ranks: tuple[int, ...]) -> ProcessGroup:
        with self.lock:
            found = self._subgroups.get(ranks)
            if found is None:
                found = self._subgroups[ranks] = object.__new__(ProcessGroup)
                # One lock and one order for all groups of a process: they share its connections.
                found._hosts, found.begun, found.lock = self._hosts, self.begun, self.lock
                found._way, found._results, found._subgroups = None, self._results, {}
                found.watches, found.left = None, [*ranks]
                found.trainings, found.started = 0, len(ranks)
                found._join(self.links, ranks)
            return found

    def of_arrays(self, xp: Any) -> Group:
        return self if xp is np else self.gpus.bound(xp)

    def why_not_on_gpus(self) -> str | None:
        return self.gpus.why_not_on_gpus()

    def why_by_host(self) -> str | None:
        return self.gpus.why_by_host()

    # --- collectives ------------------------------------------------------------------------------------------------

    def all_reduce(self, array: Any, reduce_op: str) -> Any:
        self.begun.drain()
        return self.all_reduce_in_turn(array, reduce_op)

    def all_reduce_over(self, array: Any, reduce_op: str) -> Any:
        self.begun.drain()
        return self.all_reduce_in_turn(array, reduce_op, array.reshape(-1))

    def begin_all_reduce(self, array: Any, reduce_op: str) -> int:
        return self.begun.begin(partial(self.all_reduce_in_turn, array, reduce_op))

    def end_all_reduce(self, number: int, array: Any) -> Any:
        return self.begun.end(number)

    @contextlib.contextmanager
    def _turn(self) -> Generator[None]:
        """Wait for what was begun, and let no other thread begin: all members run collectives in one order."""
        self.begun.drain()
        with self.lock:
            yield

    def all_reduce_in_turn(self, array: Any, reduce_op: str, over: Any = None) -> Any:
        """Reduce as `all_reduce`, once it is its turn; the result may be written to `over`, the array itself, flat."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        with self.lock:
            reduced = self._all_reduce(array, NAMES.index(reduce_op), over)
        return np.divide(reduced, np.asarray(self.size, array.dtype), out=reduced) if reduce_op == "mean" else reduced

    def _all_reduce(self, array: Any, option: int, over: Any) -> Any:
        reduce = list(REDUCTIONS.values())[option]
        if array.nbytes <= SMALL:
            parts = self._gathered("all_reduce", option, array)
            return reduced(parts, reduce, np.empty_like(array))
        if self.shares_memory:
            return self._reduced_in_memory(array, option, reduce, over)
        return self._reduced_over_sockets(array, option, reduce)

    def _reduced_in_memory(self, array: Any, option: int, reduce: Any, over: Any) -> Any:
        first, last = share_of(array.size, self.rank, self.size)
        parts = self._in_memory("all_reduce", option, array)
        found = self._results.like(parts[self.rank]) if over is None else over
        segment = self._segments.own(self._read, array.nbytes)  # all have come here, so nobody reads it any more
        mine = segment.memory[: array.nbytes].view(array.dtype)
        for begin in range(first, last, _PIECE):  # what was added is still in the processor's cache when it is copied
            piece = slice(begin, min(begin + _PIECE, last))
            found[piece] = reduced([part[piece] for part in parts], reduce, mine[piece])
        places = self._exchange(_PLACE.pack(segment.descriptor, segment.size))
        for place, rank in enumerate(self.ranks):
            if place != self.rank:
                theirs = slice(*share_of(array.size, place, self.size))
                found[theirs] = self._segments.of(rank, self._read, _PLACE.unpack(places[rank]), found)[theirs]
        return found.reshape(array.shape)

    def _reduced_over_sockets(self, array: Any, option: int, reduce: Any) -> Any:
        segment = self._segments.own(1 - self._read, array.nbytes) if "hosts" in self.ways else None
        headers = self._agreed(self._header("all_reduce", option, array, segment), {})
        # Partial sums of half precision would be rounded on their way, or be twice the bytes.
        can_choose = not is_half(array.dtype)
        way = self.choice.way(array.nbytes) if can_choose else "direct"
        began = time.perf_counter()
        flat = array.reshape(-1)
        if way == "direct":
            found = self._reduced_directly(flat, reduce)
        elif way == "chain":
            found = self._reduced_in_chain(flat, reduce)
        else:
            found = self._reduced_by_hosts(flat, reduce, headers)
        if can_choose:
            self.choice.took(array.nbytes, time.perf_counter() - began)
        return found.reshape(array.shape)

    def _shared_times(self, own: list[float]) -> list[Sequence[float]]:
        """Return the times that all members have measured."""
        form = struct.Struct(f"<{len(own)}d")
        found = self._exchange(form.pack(*own))
        return [own, *[form.unpack(found[rank]) for rank in self._others]]

    def _reduced_directly(self, flat: Any, reduce: Any) -> Any:
        """Reduce directly: each member gets its share from all, reduces it, and sends it to all."""
        shares = self._shares(flat.size)
        parts = self._shares_of_others(flat)
        found = self._results.like(flat)
        total = reduced(parts, reduce, found[shares[self._own]])
        self.links.exchange(
            {rank: [bytes_of(total)] for rank in self._others},
            {rank: bytes_of(found[shares[rank]]) for rank in self._others},
        )
        return found

    def _reduced_in_chain(self, flat: Any, reduce: Any) -> Any:
        """Reduce in a chain: sums go from member to member, and totals back."""
        found = self._results.like(flat)
        before = self.ranks[self.rank - 1] if self.rank else None
        behind = self.ranks[self.rank + 1] if self.rank + 1 < self.size else None
        reduce_lane(self.links, [flat], found, reduce, before, behind, self.ranks)
        self._exchange(b"\x01")  # nobody leaves before all are done, so that who leaves before is lost
        return found

    def _reduced_by_hosts(self, flat: Any, reduce: Any, headers: dict[int, Header]) -> Any:
        """Reduce by hosts: members of a host reduce in shared memory, and sums go from host to host."""
        here, slot = self._here, 1 - self._read
        mine = self._segments.own(slot, flat.nbytes).memory[: flat.nbytes].view(flat.dtype)
        mine[:] = flat
        self._exchange(b"\x01", [rank for rank in here if rank != self._own])
        arrays = {
            rank: mine if rank == self._own else self._segments.of(rank, slot, headers[rank].place, flat)
            for rank in here
        }
        self._read = slot
        lanes, host, lane = min(map(len, self._parts)), self._parts.index(here), here.index(self._own)
        found = self._results.like(flat)
        if lane < lanes:
            own = slice(*share_of(flat.size, lane, lanes))
            before = self._parts[host - 1][lane] if host else None
            behind = self._parts[host + 1][lane] if host + 1 < len(self._parts) else None
            mine = [array[own] for array in arrays.values()]
            reduce_lane(self.links, mine, found[own], reduce, before, behind, self.ranks)
            arrays[self._own][own] = found[own]
        self._exchange(b"\x01")
        for place, rank in enumerate(here[:lanes]):
            if rank != self._own:
                theirs = slice(*share_of(flat.size, place, lanes))
                found[theirs] = arrays[rank][theirs]
        return found

    def reduce_scatter(self, array: Any, reduce_op: str) -> Any:
        array = np.ascontiguousarray(array)
        with self._turn():
            reduced = self._reduced_share(array, NAMES.index(reduce_op))
        if reduce_op == "mean":
            np.divide(reduced, np.asarray(self.size, array.dtype), out=reduced)
        return reduced.reshape(array.shape[0] // self.size, *array.shape[1:])

    def _reduced_share(self, array: Any, option: int) -> Any:
        """Return the own share of the reduced numbers, flat, in memory of its own."""
        reduce = list(REDUCTIONS.values())[option]
        first, last = share_of(array.size, self.rank, self.size)
        if array.nbytes <= SMALL:
            parts = [part.reshape(-1)[first:last] for part in self._gathered("reduce_scatter", option, array)]
        elif self.shares_memory:
            parts = [part[first:last] for part in self._in_memory("reduce_scatter", option, array)]
            self._read = 1 - self._read
        else:
            self._agreed(self._header("reduce_scatter", option, array), {})
            parts = self._shares_of_others(array.reshape(-1))
        return reduced(parts, reduce, self._results.like(parts[0]))

    def _shares_of_others(self, flat: Any) -> list[Any]:
        """Return each member's part of the own share, by rank; send each other member what it is to reduce."""
        shares = self._shares(flat.size)
        own = flat[shares[self._own]]
        parts = {rank: own if rank == self._own else np.empty_like(own) for rank in self.ranks}
        self.links.exchange(
            {rank: [bytes_of(flat[shares[rank]])] for rank in self._others},
            {rank: bytes_of(parts[rank]) for rank in self._others},
        )
        return list(parts.values())

    def _shares(self, count: int) -> dict[int, slice]:
        """Divide `count` numbers into the share that each member reduces."""
        return {rank: slice(*share_of(count, place, self.size)) for place, rank in enumerate(self.ranks)}

    def all_gather(self, array: Any, axis: int) -> Any:
        with self._turn():
            return np.concatenate(self._gathered("all_gather", axis, np.asarray(array, order="C")), axis)

    def broadcast(self, array: Any, root: int) -> Any:
        array = np.asarray(array, order="C")
        with self._turn():
            header = self._header("broadcast", root, array)
            data = bytes_of(array)
            self._agreed(header, self._for_others([data]) if self._own == root else {})
            if self._own == root:
                return array
            found = self._results.like(array)
            self.links.exchange({}, {root: bytes_of(found)})
            return found

    def barrier(self) -> None:
        with self._turn():
            self._agreed(self._header("barrier", 0, np.zeros(0, "uint8")), {})

    def gather_bytes(self, data: bytes, option: int = 0) -> list[bytes]:
        """Gather what each member has in all members, by rank: for what isn't an array of one dtype.

        Args:
            data: what this member has.
            option: 0, or `SPREAD` where processes serve the devices of a model.
        """
        with self._turn():
            return [part.tobytes() for part in self._gathered("bytes", option, np.frombuffer(data, "uint8"))]

    def scatter_bytes(self, parts: Sequence[bytes] | None, root: int) -> bytes:
        """Give each member its part of what one of them has, by place in the group; others pass None."""
        own = [0] * self.size if parts is None else [len(part) for part in parts]
        with self._turn():
            sizes = self._gathered("bytes", 0, np.array(own, "int64"))[self.ranks.index(root)]
            if parts is not None:
                self.links.exchange(
                    {rank: [part] for rank, part in zip(self.ranks, parts, strict=True) if rank != self._own}, {}
                )
                return parts[self.rank]
            found = bytearray(int(sizes[self.rank]))
            self.links.exchange({}, {root: found} if found else {})
        return bytes(found)

    def offer(self, digest: bytes) -> bool:
        """Find out if all members offer the same now, which 16 bytes distinguish.

        Where others run a collective they go on waiting for this member, which may come to it later. Waits for what
        each member does next.

        Returns:
            True in all members, or in none. False, too, where a member is gone.

        Raises:
            CancelledError: a member has ended what the group runs.
        """
        try:
            with self._turn():
                own = Header.offer(self._number, digest, self._bits)
                self._number += 1
                return all(header.dtype == own.dtype for header in self._agreed(own, {}).values())
        except CancelledError:
            raise
        except (TaskFailedError, RuntimeError):  # a member is gone, or this one has left
            return False

    def abort(self, reason: str) -> None:
        """Have all members that run a collective, or will, fail with this reason; then leave the group."""
        self.note_end()
        later = "" if self.links.has_lost else reason  # the loss is the reason there
        self.begun.close()  # others come to what runs; it does not wait for ever
        if isinstance(self.watches, Seat):
            self.watches.fail(reason)
        if self.lock.acquire(timeout=_PATIENCE_SECONDS):
            with contextlib.suppress(Exception):
                text = reason.encode()
                header = Header.abort(self._number, len(text), self._bits).packed()
                self.links.exchange(self._for_others([header, text]), {})
            self.lock.release()
        self.close(later)

    def note_end(self) -> None:
        """Leave a note for the launcher that this process ends, before others learn of it, unless it ends by a loss."""
        if not self.links.has_lost:
            note_end()

    def close(self, reason: str = "") -> None:
        """End the connections and give the memory up, that of parts of the group, too; see `Links.close`."""
        self.links.close(reason)
        self.gpus.close()
        if self.watches is not None:
            self.watches.close()
        self.begun.close()
        for part in self._subgroups.values():
            part.close()
        self._results.clear()
        self._segments.close()

    # --- after a loss -----------------------------------------------------------------------------------------------

    def watch(self, timeout: float) -> None:
        """Have members see who has ended; all members call it, before one may be lost whom the others go on without.

        Args:
            timeout: for how many seconds members wait for each other.
        """
        if self.watches is None:
            self.watches = self._seated() or self.links.again(self.links.names, self.links.rank, timeout)

    def _seated(self) -> Seat | None:
        """Enter the launcher's membership service, if there is one that all members reach."""
        address, seat = address_of_service(), None
        if not address:
            return None
        with contextlib.suppress(OSError, FrameError):
            seat = Seat(address, self.links)
        if all(self.gather_bytes(b"" if seat is None else b"1")):
            return seat
        if seat is not None:
            seat.close()
        return None

    def without_lost(self, timeout: float) -> ProcessGroup:
        """Return the group of the members that are left; all of these call it, as they learn that one was lost.

        Without a membership service the first member is the first of the new group. No collective runs in this one any
        more.

        Args:
            timeout: for how many seconds members wait for each other once it is clear who is left. Then they count
                again: one more may be lost.

        Raises:
            TaskFailedError: the first member is lost, and there is no membership service.
            CancelledError: this member was declared lost, or the membership service is gone.
            OverError: what members do together is over.
        """
        assert self.watches is not None, "This is a bug in anabranch: members that are lost are not watched for."
        self.begun.close()
        self.close_links()
        while True:
            ranks = self.watches.survivors(self.left)
            with contextlib.suppress(TaskFailedError, OSError):  # one more is lost, or has counted again
                found = ProcessGroup.of_counted(self.watches, ranks, timeout, *self._made_with)
                found.trainings, found.started = self.trainings, self.started
                return found

    @classmethod
    def of_counted(
        cls, watches: Links | Seat, ranks: list[int], timeout: float, shares_memory: bool, *made_with: str | None
    ) -> ProcessGroup:
        """Make the group of members that have just been counted; all of them call it.

        Args:
            watches: that by which they were.
            ranks: theirs there.
            timeout: for how many seconds they wait for each other.
            shares_memory, made_with: as a group is made.

        Raises:
            TaskFailedError: one of them is lost.
            OSError: one of them is lost, or counts again.
        """
        links = watches.again([watches.names[rank] for rank in ranks], ranks.index(watches.rank), timeout)
        try:
            found = cls(links, shares_memory, *made_with)
        except BaseException:
            links.close()
            raise
        found.watches, found.left = watches, ranks
        return found

    # --- for values on GPUs -----------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The text that distinguishes the host of this process from others."""
        return self._hosts.own.hex()

    def agreed_on_gpus(self, kind: str, option: int, array: Any) -> dict[int, Header] | None:
        """Agree with all members on a collective of arrays on their GPUs; return their headers, by rank.

        Where the array of a member is in the memory of its host all get None, and are to run the same on arrays there.

        Raises:
            ValueError: a member runs something else.
        """
        found = self._agreed(self._header(kind, option, array)._replace(on_gpu=True), {})
        return found if all(header.on_gpu for header in found.values()) else None

    def close_links(self) -> None:
        """End the connections, so that members which wait for this one learn of its loss."""
        self.links.close()
        for part in (self, *self._subgroups.values()):
            part.gpus.close()

    # --- arrays of members --------------------------------------------------------------------------------------------

    def _gathered(self, kind: str, option: int, array: Any) -> list[Any]:
        """Return the arrays of all members, by rank."""
        data = self._for_others([bytes_of(array)])
        is_small = array.nbytes <= SMALL  # what waits in sockets until it is read; more is sent while all read
        headers = self._agreed(self._header(kind, option, array), data if is_small else {})
        found = {
            rank: array if rank == self._own else np.empty(headers[rank].shape, array.dtype) for rank in self.ranks
        }
        into = {rank: bytes_of(found[rank]) for rank in self._others if headers[rank].nbytes}
        self.links.exchange({} if is_small else data, into)
        return list(found.values())

    def _in_memory(self, kind: str, option: int, array: Any) -> list[Any]:
        """Share the numbers that others reduce; return the numbers of all members, by rank.

        Those of others lack the shares that they reduce themselves, and are in segments that nobody reads any more.
        """
        slot = 1 - self._read
        segment, flat = self._segments.own(slot, array.nbytes), array.reshape(-1)
        mine = segment.memory[: array.nbytes].view(array.dtype)
        first, last = share_of(array.size, self.rank, self.size)
        mine[:first], mine[last:] = flat[:first], flat[last:]
        headers = self._agreed(self._header(kind, option, array, segment), {})
        return [
            flat if rank == self._own else self._segments.of(rank, slot, headers[rank].place, flat)
            for rank in self.ranks
        ]


__all__ = ["ProcessGroup"]
