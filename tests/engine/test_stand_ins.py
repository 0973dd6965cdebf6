"""Numbers that stand for unknown sizes."""

from __future__ import annotations

import math

from anabranch.engine.passes.fusion.iteration_spaces import canonical, layout_with_sizes, space_of, with_sizes
from anabranch.engine.passes.fusion.stand_ins import is_unknown, stand_in, unknown_sizes


def test_they_are_primes() -> None:
    for number in map(stand_in, range(4)):
        assert is_unknown(number)
        assert all(number % factor for factor in (2, *range(3, math.isqrt(number) + 1, 2)))


def test_they_are_all_different() -> None:
    found = [stand_in(k) for k in range(200)]
    assert found == sorted(set(found))


def test_sizes_take_their_place() -> None:
    rows, columns = stand_in(0), stand_in(1)
    layout = canonical((rows, 6, columns))
    assert unknown_sizes([layout]) == [rows, columns]
    for n, m in ((5, 7), (1, 7), (5, 1), (1, 1), (6, 6)):
        sizes = {rows: n, columns: m}
        assert with_sizes(rows * rows * 6 * columns, sizes) == n * n * 6 * m
        assert layout_with_sizes(layout, sizes) == canonical((n, 6, m))
        assert space_of((rows, 6, columns)).with_sizes(sizes) == space_of((n, 6, m))
