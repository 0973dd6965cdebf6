"""Numbers that stand for sizes which are known at run time only: fusion computes with them as with any others.

Each is a prime that is larger than any array. So products of sizes, of which iteration spaces are made, are equal only
if their sizes are, and no axis is cut by chance. The sizes of which a product is made follow from it, so that others
can be put in their place, such as those of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

from ...ops.internal.fused import Fused
from .iteration_spaces import Layout, interval_with_sizes, layout_with_sizes, with_sizes

_LEAST = 2**40
_BASES = (2, 3, 5, 7, 11)  # which decide for all numbers below 2.1e12: Jaeschke 1993


@cache
def stand_in(number: int) -> int:
    """Return the stand-in of this number, counted from 0."""
    found = _LEAST if number == 0 else stand_in(number - 1) + 1
    while not _is_prime(found):
        found += 1
    return found


def _is_prime(number: int) -> bool:
    """Test an integer above 11 by Miller and Rabin's test."""
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    odd = (number - 1) >> twos
    for base in _BASES:
        power = pow(base, odd, number)
        if power != 1 and all(pow(power, 1 << k, number) != number - 1 for k in range(twos)):
            return False
    return True


def is_unknown(size: int) -> bool:
    """Test whether a size, or a product of sizes, has one that is known at run time only."""
    return size >= _LEAST


def unknown_sizes(layouts: Iterable[Layout]) -> list[int]:
    """Return the stand-ins of the sizes of axes, in the order in which they occur."""
    sizes = [axis[1] // axis[0] for layout in layouts for axis in layout if axis is not None]
    return list(dict.fromkeys(filter(is_unknown, sizes)))


def laid_out_with(op: Fused, sizes: Mapping[int, int]) -> Fused:
    """Return a fused op that is laid out with other sizes."""
    layouts = tuple([layout_with_sizes(layout, sizes) for layout in op.layouts])
    return replace(op, layouts=layouts, parts=interval_with_sizes(op.parts, sizes), size=with_sizes(op.size, sizes))
