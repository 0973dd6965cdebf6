"""All-reduce along a chain: partial sums go from each host to the next one, and the totals come back the same way.

Members add in the order of ranks, as everywhere, so bits are those of any other way: a ring would begin at another rank
for each part. Pieces follow each other, so that all links work at once, in both directions. Members of one host add in
memory that they share, each a part of the numbers (a *lane*); only the sums of a host go to the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .flow import Incoming, Outgoing, flow
from .links import Links

PIECE_BYTES = 1 << 18


def reduce_lane(
    links: Links,
    arrays: Sequence[Any],
    total: Any,
    reduce: Any,
    before: int | None,
    behind: int | None,
    members: Sequence[int],
) -> None:
    """Reduce a lane over all hosts.

    Args:
        links: the connections.
        arrays: the numbers of this host's members, in the order of ranks; the first one's memory may be `total`'s.
        total: contiguous memory for the result; nobody else reads it meanwhile.
        reduce: the ufunc.
        before, behind: the ranks that have this lane on the hosts before and behind; None at an end.
        members: all ranks of the group: if one is gone the others fail.
    """
    step = max(PIECE_BYTES // total.itemsize, 1)
    data = memoryview(total.view("uint8"))
    up = None if behind is None else Outgoing(data)  # partial sums
    down = None if before is None else Outgoing(data)  # totals

    def add(begin: int, end: int) -> None:
        """Add this host's numbers to the sum of those before."""
        piece = slice(begin // total.itemsize, end // total.itemsize)
        left = list(arrays)
        if before is None:
            first = left.pop(0)
            if left:
                reduce(first[piece], left.pop(0)[piece], out=total[piece])
            else:
                total[piece] = first[piece]
        for array in left:
            reduce(total[piece], array[piece], out=total[piece])
        ready = up or down
        if ready is not None:
            ready.ready = end

    def pass_on(begin: int, end: int) -> None:
        if down is not None:
            down.ready = end

    nbytes = step * total.itemsize
    if before is None and up is not None:
        up.produce = lambda begin: add(begin, min(begin + nbytes, len(data)))
    incoming = {}
    if before is not None:
        incoming[before] = Incoming(data, nbytes, add)
    if behind is not None:
        incoming[behind] = Incoming(data, nbytes, pass_on)
    outgoing = {rank: each for rank, each in ((behind, up), (before, down)) if rank is not None and each is not None}
    flow(links, incoming, outgoing, members)


__all__ = ["PIECE_BYTES", "reduce_lane"]
