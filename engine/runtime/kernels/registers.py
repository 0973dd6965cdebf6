"""How many sums the registers of a host hold, for kernels that keep a tile of sums in them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Registers:
    """The vector registers of a host.

    Attributes:
        lanes: elements of a vector.
        sums: vectors that may be summed at once, beside what the sums are made of.
    """

    lanes: int
    sums: int


def registers_of(host: str, element: str) -> Registers:
    """The registers of a host (`Library.host`) for an LLVM type."""
    size = 8 if element == "double" else 4
    if "+avx512f" in host:
        return Registers(64 // size, 26)
    if host.startswith(("aarch64", "arm64")):
        return Registers(16 // size, 24)
    return Registers((32 if "+avx2" in host else 16) // size, 12)
