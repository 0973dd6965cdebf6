"""`Rounds`: rounds in which the members of a group say what they run, and find out whether they agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...engine.ops.collectives import Group
from ...engine.queues.errors import CancelledError, TaskFailedError
from .headers import ABORT, OFFER, Header, disagreement, group_bits
from .links import Links
from .segments import Segment

if TYPE_CHECKING:
    from .gpus import GpuGroup


class Rounds(Group):
    """Base: a group whose members send each other headers, and bytes behind these.

    Attributes:
        links: the connections to the other members.
        gpus: the same members, for arrays on GPUs.
    """

    links: Links
    gpus: GpuGroup

    def _begin(self, links: Links, ranks: tuple[int, ...]) -> None:
        """Begin as the group of some ranks, with the first round."""
        self.links = links
        self.ranks = ranks
        self.size = len(ranks)
        self.rank = ranks.index(links.rank)
        self._own = links.rank  # members are called by their ranks in the job here
        self._others = [rank for rank in ranks if rank != links.rank]
        self._bits = group_bits(ranks, len(links.names))
        self._number = 0

    def swap(self, data: bytes) -> list[bytes]:
        """Exchange as many bytes with all members; return those of each, in the order of ranks."""
        found = self._exchange(data)
        return [data if rank == self._own else bytes(found[rank]) for rank in self.ranks]

    def check_members(self) -> None:
        """Check that all members are there.

        Raises:
            TaskFailedError: one is gone.
        """
        self.links.check()
        self.links.wait((), (), self.ranks, 0)

    def has_sent(self) -> bool:
        """Test whether another member has sent what this one has not taken."""
        return self.links.wait((), self._others, (), 0)

    def _header(self, kind: str, option: int, array: Any, segment: Segment | None = None) -> Header:
        place = (-1, 0) if segment is None else (segment.descriptor, segment.size)
        header = Header.of(self._number, kind, option, array, place, self._bits)
        self._number += 1
        return header

    def _agreed(self, own: Header, data: dict[int, Sequence[Any]]) -> dict[int, Header]:
        """Send the header, and data behind it; return the headers of all members by rank.

        If some members make an offer that the others do not, or have arrays on GPUs that others have not, this round is
        void: a collective is tried again, by those with arrays on GPUs once they have copied them.

        Raises:
            ValueError: a member runs something else.
        """
        while True:
            found = self._exchanged(own, data)
            offers = [header for header in found.values() if header.kind == OFFER]
            is_mixed = len({header.on_gpu for header in found.values() if header.kind != OFFER}) > 1
            if not is_mixed and (not offers or all(header[:6] == own[:6] for header in found.values())):
                return found
            rest = {rank: bytearray(found[rank].nbytes_behind(rank)) for rank in self._others}
            self.links.exchange({}, {rank: memory for rank, memory in rest.items() if memory})
            if is_mixed:
                self.gpus.share_reasons()
            if own.kind == OFFER or (own.on_gpu and is_mixed):
                return found
            own = own._replace(number=self._number)
            self._number += 1

    def _exchanged(self, own: Header, data: dict[int, Sequence[Any]]) -> dict[int, Header]:
        """Send the header, and data behind it; return the headers of all members by rank."""
        packed, found = own.packed(), {self._own: own}
        into = {rank: bytearray(Header.nbytes_among(len(self.links.names))) for rank in self._others}

        def arrived(rank: int) -> None:  # each is looked at as it comes: who disagrees may keep others away
            found[rank] = self._checked(own, rank, Header.unpacked(into[rank]))

        try:
            self.links.exchange({rank: [packed, *data.get(rank, ())] for rank in self._others}, into, arrived)
        except TaskFailedError as error:
            if not getattr(error, "__notes__", ()):  # of the first collective that needed who was lost
                what = own.text(len(self.links.names))
                error.add_note(f"This process ran {what}. All members have to run the same collectives, as often.")
            raise
        return found

    def _checked(self, own: Header, rank: int, found: Header) -> Header:
        if found.kind == ABORT:
            reason = bytearray(found.size)
            self.links.exchange({}, {rank: reason})
            text = f"{self.links.names[rank]} has ended what the group runs: {reason.decode()}"
            self.links.refuse(text, CancelledError)  # as what was begun before, and is ended later
            raise CancelledError(text)
        may_differ = OFFER in (own.kind, found.kind) and own.group == found.group and own.number == found.number
        if not may_differ and not own.agrees(found):
            text = disagreement(self.links.names, [(self._own, own), (rank, found)])
            self.links.close(text)  # what follows in the streams has no meaning any more
            raise ValueError(text)
        return found

    def _for_others(self, buffers: Sequence[Any]) -> dict[int, Sequence[Any]]:
        """Return the same bytes for each other member."""
        return {rank: buffers for rank in self._others}  # noqa: C420 - nobody changes them

    def _exchange(self, data: bytes, ranks: Sequence[int] | None = None) -> dict[int, bytearray]:
        """Exchange as many bytes with each other member, or with some."""
        return self.links.swap_bytes(data, self._others if ranks is None else ranks)


__all__ = ["Rounds"]
