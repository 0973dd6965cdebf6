"""`flow`: streams between members of which a piece is sent on while the next one is under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from ...engine.common.quick_dataclass import dataclass
from .links import Links

_MOST_AT_ONCE = 1 << 20  # bytes that one call sends, so that what comes in is looked at in between


@dataclass
class Incoming:
    """Bytes that come from a member.

    Attributes:
        memory: where they go.
        piece: bytes of a piece; the last one may have fewer.
        arrived: called with the places where a piece begins and ends, in turn.
        filled: how many bytes are there.
    """

    memory: memoryview
    piece: int
    arrived: Callable[[int, int], None]
    filled: int = 0

    @property
    def is_over(self) -> bool:
        return self.filled == len(self.memory)


@dataclass
class Outgoing:
    """Bytes that go to a member.

    Attributes:
        memory: where they are.
        ready: how many may be sent.
        sent: how many were.
        produce: called with `ready` when all that is ready was sent, to make more ready.
    """

    memory: memoryview
    ready: int = 0
    sent: int = 0
    produce: Callable[[int], None] | None = None

    @property
    def is_over(self) -> bool:
        return self.sent == len(self.memory)


def flow(
    links: Links, incoming: Mapping[int, Incoming], outgoing: Mapping[int, Outgoing], members: Sequence[int]
) -> None:
    """Send and receive until all streams are over.

    Args:
        links: the connections.
        incoming, outgoing: the streams, by the rank of the other member.
        members: the ranks that take part, none of which leaves before all are done: if one is gone this fails.

    Raises:
        TaskFailedError: a member is gone.
    """
    links.check()
    came = {rank: each for rank, each in incoming.items() if not each.is_over}
    went = {rank: each for rank, each in outgoing.items() if not each.is_over}
    says_at = links.says_at()
    while came or went:
        moved = False
        for rank, out in [*went.items()]:
            moved |= _send(links, rank, out)
            if out.is_over:
                del went[rank]
        for rank, into in [*came.items()]:
            moved |= _receive(links, rank, into)
            if into.is_over:
                del came[rank]
        if moved:
            says_at = links.says_at()
        elif came or went:
            links.wait([rank for rank, out in went.items() if out.sent < out.ready], [*came], members)
            if time.monotonic() >= says_at:
                says_at = float("inf")
                links.say({*came, *went})


def _send(links: Links, rank: int, out: Outgoing) -> bool:
    """Send what is ready and goes without waiting; return whether anything went."""
    moved = False
    while not out.is_over:
        if out.sent == out.ready:
            if out.produce is None:
                break
            out.produce(out.ready)
        count = links.send_some(rank, [out.memory[out.sent : min(out.ready, out.sent + _MOST_AT_ONCE)]])
        if not count:
            break
        moved = True
        out.sent += count
    return moved


def _receive(links: Links, rank: int, into: Incoming) -> bool:
    """Take a piece at most of what is there; return whether anything was."""
    begin = into.filled // into.piece * into.piece
    end = min(begin + into.piece, len(into.memory))
    count = links.receive_some(rank, into.memory[into.filled : end])
    into.filled += count
    if count and into.filled == end:
        into.arrived(begin, end)
    return count > 0


__all__ = ["Incoming", "Outgoing", "flow"]
