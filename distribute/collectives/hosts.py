"""`Hosts`: which processes of a job share a host, so that they can map each other's memory."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .headers import group_bits, ranks_of
from .links import Links
from .segments import IS_AVAILABLE, Segment, opened

VARIABLE = "ANABRANCH_HOST"
_INTRODUCTION = struct.Struct("<q16sqq16s")


class Hosts:
    """The hosts of all processes; each process makes this at the same time, for they ask each other.

    Args:
        links: the connections between all.
        shares_memory: whether this process may share memory.
        name: of the host, in place of ``ANABRANCH_HOST`` and of what the system says.

    Attributes:
        own: bytes that distinguish the host of this process.
        processes: their numbers in the system, by rank.
        numbers: the number of each one's host, by rank: the lowest rank there. Processes that can't map each other's
            memory count as being on different hosts.
    """

    def __init__(self, links: Links, shares_memory: bool = True, name: str | None = None) -> None:
        count, own = len(links.names), links.rank
        others = [rank for rank in range(count) if rank != own]
        host = self.own = _host(name)
        segment, secret = Segment(), secrets.token_bytes(16)
        try:
            if shares_memory and IS_AVAILABLE:
                segment.grow(len(secret))
                segment.memory[: len(secret)] = np.frombuffer(secret, "uint8")
            said = _INTRODUCTION.pack(os.getpid(), host, segment.descriptor, segment.size, secret)
            found = {rank: _INTRODUCTION.unpack(data) for rank, data in links.swap_bytes(said, others).items()}
            readable = [
                rank
                for rank, (process, theirs, descriptor, size, expected) in found.items()
                if shares_memory and IS_AVAILABLE and theirs == host and _reads(process, descriptor, size, expected)
            ]
            theirs = links.swap_bytes(group_bits((*readable, own), count), others)
        finally:
            segment.close()
        self.processes = [os.getpid() if rank == own else found[rank][0] for rank in range(count)]
        reads = [[*readable, own] if rank == own else ranks_of(bytes(theirs[rank])) for rank in range(count)]
        self.numbers = _numbers([{*each} for each in reads])

    def parts(self, ranks: Sequence[int]) -> list[list[int]]:
        """Group ranks by host; groups are in the order of their first rank, and so are the ranks in each."""
        found: dict[int, list[int]] = {}
        for rank in ranks:
            found.setdefault(self.numbers[rank], []).append(rank)
        return list(found.values())


def _numbers(reads: Sequence[set[int]]) -> list[int]:
    """Number hosts by the lowest rank there, from the ranks whose memory each process can map."""
    found = list(range(len(reads)))
    for rank, mine in enumerate(reads):
        lowest = min(mine)
        if lowest < rank and all(rank in reads[other] and reads[other] == mine for other in mine):
            found[rank] = lowest
    return found


def _host(name: str | None) -> bytes:
    """Return bytes that differ between hosts, and between starts of one."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    text = boot.read_text() if boot.exists() else ""
    known = os.environ.get(VARIABLE) or socket.gethostname() if name is None else name
    return hashlib.sha256(f"{text} {known}".encode()).digest()[:16]


def _reads(process: int, descriptor: int, size: int, expected: bytes) -> bool:
    """Test whether memory of another process can be mapped, and is what that process means."""
    try:
        return opened(process, descriptor, size)[: len(expected)].tobytes() == expected
    except (OSError, ValueError):
        return False


__all__ = ["VARIABLE", "Hosts"]
