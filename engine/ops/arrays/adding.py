"""Adding up in place, at positions that may be repeated."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from ...common import dtypes


@contextmanager
def accumulating(xp: Any, out: Any, places: Any) -> Generator[tuple[Any, Any]]:
    """Yield the rows to which is added, and the places among them: `out` and `places`, or copies for half precision.

    These are the named rows of `out` in float32; afterwards `out` gets their sums, rounded.
    """
    wide = dtypes.accumulator_of(out.dtype)
    if wide is None:
        yield out, places
        return
    named, places = xp.unique(places, return_inverse=True)
    total = out[named].astype(wide)
    yield total, places
    out[named] = total.astype(out.dtype)


def add_at(xp: Any, out: Any, key: tuple[Any, ...], values: Any) -> None:
    """Add up ``out[key] += values`` in place, in a contiguous `out`, also at repeated positions.

    Half precision is added up in float32.
    """
    if values.size * 8 < out.size and dtypes.accumulator_of(out.dtype) is None:
        xp.add.at(out, key, values)
        return
    # On flat positions NumPy's add.at runs several times faster than on a tuple of indices.
    places = xp.arange(out.size).reshape(out.shape)[key]
    values = xp.broadcast_to(values, places.shape).reshape(-1)
    with accumulating(xp, out.reshape(-1), places.reshape(-1)) as (total, at):
        xp.add.at(total, at, values.astype(total.dtype, copy=False))


__all__ = ["accumulating", "add_at"]
