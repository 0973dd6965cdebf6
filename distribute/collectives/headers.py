"""`Header`: the few bytes in which a member of a group says what it runs, so that members that disagree find out."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...engine.common.dtypes import as_dtype, name_of

ABORT = 255
KINDS = ("barrier", "all_reduce", "all_gather", "broadcast", "reduce_scatter", "offer", "bytes")
OFFER, BYTES = KINDS.index("offer"), KINDS.index("bytes")  # what strategies run themselves
SPREAD = 1  # the option of exchanges of bytes between the processes that a model is spread over
SMALL = 1 << 14  # bytes of an array that are sent with the header
REDUCTIONS: dict[str, Any] = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}
NAMES = list(REDUCTIONS)
_MOST_AXES = 16
_FIXED = struct.Struct(f"<QBiB16s{_MOST_AXES}qqq?")


class Header(NamedTuple):
    """The header in which a member describes a collective.

    Attributes:
        number: how many collectives of the group came before.
        kind, option: what it runs: the reduction, axis or root.
        axes, dtype, shape: of its array.
        descriptor, size: of its segment.
        group: a bit for each rank of the job, whether it is a member.
        on_gpu: whether the array is on a GPU; then nothing is sent behind the header. Members that are not alike in
            this agree nevertheless, on taking the arrays to the memory of their hosts.
    """

    number: int
    kind: int
    option: int
    axes: int
    dtype: bytes
    shape: tuple[int, ...]
    descriptor: int
    size: int
    group: bytes
    on_gpu: bool = False

    @classmethod
    def of(cls, number: int, kind: str, option: int, array: Any, place: tuple[int, int], group: bytes) -> Header:
        """Describe a collective on an array.

        Raises:
            ValueError: the array has too many axes.
        """
        if array.ndim > _MOST_AXES:
            raise ValueError(f"{kind} takes arrays of at most {_MOST_AXES} axes; got {array.ndim}. Reshape it.")
        name = name_of(array.dtype).encode()
        return cls(number, KINDS.index(kind), option, array.ndim, name, array.shape, *place, group)

    @classmethod
    def abort(cls, number: int, length: int, group: bytes) -> Header:
        """Say that the group ends, for a reason of so many bytes."""
        return cls(number, ABORT, 0, 0, b"", (), -1, length, group)

    @classmethod
    def offer(cls, number: int, digest: bytes, group: bytes) -> Header:
        """Offer to do what 16 bytes distinguish, if all members offer the same."""
        return cls(number, OFFER, 0, 0, digest.rstrip(b"\0"), (), -1, 0, group)

    @staticmethod
    def nbytes_among(processes: int) -> int:
        """Return the bytes of a header in a job of so many processes."""
        return _FIXED.size + len(group_bits((), processes))

    def packed(self) -> bytes:
        dims = [*self.shape, *[0] * (_MOST_AXES - self.axes)]
        return _FIXED.pack(*self[:5], *dims, *self[6:8], self.on_gpu) + self.group

    @classmethod
    def unpacked(cls, data: Any) -> Header:
        number, kind, option, axes, dtype, *rest = _FIXED.unpack(data[: _FIXED.size])
        shape, (descriptor, size, on_gpu) = tuple(rest[:axes]), rest[_MOST_AXES:]
        group = bytes(data[_FIXED.size :])
        return cls(number, kind, option, axes, dtype.rstrip(b"\0"), shape, descriptor, size, group, on_gpu)

    @property
    def place(self) -> tuple[int, int]:
        return self.descriptor, self.size

    @property
    def count(self) -> int:  # pyrefly: ignore[bad-override] - not the one of tuples
        """The number of elements of the array."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * as_dtype(self.dtype.decode()).itemsize

    def nbytes_behind(self, rank: int) -> int:
        """Return how many bytes of its array a member of this rank sends right behind the header."""
        if self.kind == OFFER or self.on_gpu:
            return 0
        if KINDS[self.kind] == "broadcast":
            return self.nbytes if self.option == rank else 0
        return self.nbytes if self.nbytes <= SMALL else 0

    def agrees(self, other: Header) -> bool:
        """Test whether both members run the same."""
        if self.group != other.group:
            return False
        if self[:5] != other[:5] or KINDS[self.kind] == "barrier":
            return self[:5] == other[:5]
        free = {"all_gather": self.option, "bytes": 0}.get(KINDS[self.kind], -1)
        pairs = enumerate(zip(self.shape, other.shape, strict=True))
        return all(axis == free or mine == theirs for axis, (mine, theirs) in pairs)

    def text(self, processes: int) -> str:
        """Describe the collective for a message, in a job of so many processes."""
        kind = KINDS[self.kind] if self.kind < len(KINDS) else f"op {self.kind}"
        ranks = ranks_of(self.group)
        number = f"(number {self.number})" if len(ranks) == processes else f"in group {ranks} (number {self.number})"
        if kind in ("barrier", "offer", "bytes"):
            exchange = "a model over several processes" if self.option == SPREAD else "fit or of its strategy"
            names = {"offer": "evaluate or predict", "bytes": f"an exchange of {exchange}"}
            return f"{names.get(kind, kind)} {number}"
        option = {
            "all_reduce": NAMES[self.option % len(NAMES)],
            "reduce_scatter": NAMES[self.option % len(NAMES)],
            "all_gather": f"axis {self.option}",
            "broadcast": f"root {self.option}",
        }.get(kind, "?")
        return f"{kind}, {option}, of {self.dtype.decode()}{list(self.shape)} {number}"


def disagreement(names: Sequence[str], pair: Sequence[tuple[int, Header]]) -> str:
    """Return the message for two members that run different collectives.

    Args:
        names: those of all processes of the job, by rank.
        pair: the ranks of the two, and what each of them runs.
    """
    runs = [f"{names[rank]} runs {header.text(len(names))}" for rank, header in pair]
    text = (
        f"Members of the group disagree: {', and '.join(runs)}. All members have to run the same collectives in the "
        "same order, on the same shapes and dtypes."
    )
    if any(header.kind == BYTES and header.option == SPREAD for _, header in pair):
        return f"{text} All processes make the same Pipeline or ModelParallel, and only the first one goes on."
    if sum(header.kind in (OFFER, BYTES) for _, header in pair) != 1:
        return text
    return (
        f"{text} While a worker is in fit, another one can't run collectives of its own. Callbacks are called in the "
        "chief alone, unless they have on_all_workers = True."
    )


def group_bits(ranks: tuple[int, ...], processes: int) -> bytes:
    """Write a set of ranks as bits.

    >>> group_bits((0, 3), 9)
    b'\\t\\x00'
    """
    return sum(1 << rank for rank in ranks).to_bytes((processes + 7) // 8, "little")


def ranks_of(bits: bytes) -> list[int]:
    """Read the ranks that `group_bits` has written.

    >>> ranks_of(b"\\t\\x00")
    [0, 3]
    """
    return [rank for rank in range(8 * len(bits)) if bits[rank // 8] >> rank % 8 & 1]


__all__ = [
    "ABORT",
    "KINDS",
    "NAMES",
    "OFFER",
    "REDUCTIONS",
    "SMALL",
    "SPREAD",
    "Header",
    "disagreement",
    "group_bits",
    "ranks_of",
]
