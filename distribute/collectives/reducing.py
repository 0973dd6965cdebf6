"""Parts of what a collective does with arrays: sums in a fixed order, shares of arrays, and their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def reduced(parts: Sequence[Any], reduce: Any, out: Any) -> Any:
    """Reduce arrays in their order into `out`, which may be one of the first two; half precision is rounded once."""
    if len(parts) == 1:
        out[...] = parts[0]
    elif is_half(out.dtype):
        total = parts[0].astype("float32")
        for part in parts[1:]:
            reduce(total, part.astype("float32"), out=total)
        out[...] = total
    else:
        reduce(parts[0], parts[1], out=out)
        for part in parts[2:]:
            reduce(out, part, out=out)
    return out


def share_of(size: int, rank: int, members: int) -> tuple[int, int]:
    """Return where the share of a member begins and ends, of so many elements."""
    return size * rank // members, size * (rank + 1) // members


def bytes_of(array: Any) -> memoryview:
    """Return the memory of a contiguous array, of any dtype."""
    return memoryview(array.reshape(-1).view("uint8"))


def is_half(dtype: Any) -> bool:
    """Test for a dtype of which sums are taken in float32."""
    return dtype.itemsize == 2 and dtype.kind not in "iu"


__all__ = ["bytes_of", "is_half", "reduced", "share_of"]
