"""The number of sums that the registers of a host hold, for kernels that keep a tile of sums in them."""

from __future__ import annotations

from ...common.quick_dataclass import dataclass


@dataclass(frozen=True)
class Registers:
    """The vector registers of a host.

    Attributes:
        lanes: elements of a vector.
        sums: vectors that may be summed at once, beside what the sums are made of.
        count: all registers.
    """

    lanes: int
    sums: int
    count: int = 32

    def most_rows(self, vectors: int) -> int:
        """Return how many rows of sums there are registers for, beside a row of vectors and what multiplies it."""
        return max(0, min(self.sums, self.count - vectors - 1)) // vectors


def registers_of(host: str, element: str) -> Registers:
    """Return the registers of a host (`Library.host`) for an LLVM type."""
    size = 8 if element == "double" else 4
    width = vector_bytes(host)
    if width == 64:
        return Registers(width // size, 26)
    if host.startswith(("aarch64", "arm64")):
        return Registers(width // size, 24)
    return Registers(width // size, 12, 16)


def tile_cycles(rows: int, vectors: int) -> float:
    """Estimate the cycles in which a tile of so many rows and vectors of sums takes one product each.

    A vector multiplication and a load take half a cycle each, and a sum waits for the one before for four.
    """
    return max(rows * vectors / 2, (rows + vectors) / 2, 4.0) + 0.05 * (rows + 2 * vectors)


def vector_bytes(host: str) -> int:
    """Return the bytes of the vectors of a host (`Library.host`)."""
    if "+avx512f" in host:
        return 64
    return 32 if "+avx2" in host else 16
