"""Layouts of the values of a fused group in the space that its kernel runs through.

The space has `size` elements in row-major order. An axis of a value is an interval (low, high) of it: one step along
the axis goes `low` elements on in the space, and the axis ends at `high`. So an axis that is cut or joined by a reshape
stays where it is. An axis of size 1 has no place (None). What a value has no axis for, it is the same along.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass

Interval = tuple[int, int]
Layout = tuple[Interval | None, ...]
Shape = tuple[int, ...]

MOST_PARTS = 4  # an axis of so many is written out, part by part
MOST_REDUCED = 16  # where a reduction over the axis is used along it, as in softmax
MOST_JOINED = 8  # where parts are put together, which is nothing but reading each


def canonical(shape: Shape) -> Layout:
    """Return the layout of a value that fills its space."""
    found: list[Interval | None] = []
    low = 1
    for dim in reversed(shape):
        found.append(None if dim == 1 else (low, low * dim))
        low *= dim
    return tuple(reversed(found))


def intervals(layout: Layout) -> list[Interval]:
    """Return the axes of a layout that have a place, outermost first."""
    return [interval for interval in layout if interval is not None]


def shifted(layout: Layout, at: int, factor: int) -> Layout | None:
    """Return the layout in a space with a new axis of size `factor` at `at`; None if it would cut an axis in two."""
    found: list[Interval | None] = []
    for interval in layout:
        if interval is None or interval[1] <= at:
            found.append(interval)
        elif interval[0] >= at:
            found.append((interval[0] * factor, interval[1] * factor))
        else:
            return None
    return tuple(found)


def with_sizes(product: int, sizes: Mapping[int, int]) -> int:
    """Return a product of sizes with others in the place of some, which are primes (see `stand_ins`)."""
    found = 1
    for old, new in sizes.items():
        while product % old == 0:
            product //= old
            found *= new
    return product * found


def interval_with_sizes(interval: Interval | None, sizes: Mapping[int, int]) -> Interval | None:
    """Return an interval in a space with other sizes; an axis of size 1 has no place."""
    if interval is None:
        return None
    low, high = (with_sizes(end, sizes) for end in interval)
    return None if low == high else (low, high)


def layout_with_sizes(layout: Layout, sizes: Mapping[int, int]) -> Layout:
    """Return a layout in a space with other sizes."""
    return tuple([interval_with_sizes(interval, sizes) for interval in layout])


def _is_cut(interval: Interval, cuts: Iterable[int]) -> bool:
    """Test whether one of `cuts` is inside of an interval."""
    return any(interval[0] < cut < interval[1] for cut in cuts)


@dataclass(frozen=True)
class Space:
    """A space, and what has been settled about it.

    Attributes:
        size: the number of its elements.
        cuts: where axes begin and end; each divides the next.
        parts: the axis that is written out part by part, if any.
        row: rows of so many elements are reduced and their results used.
        reduced: the intervals over which reductions go.
    """

    size: int
    cuts: frozenset[int]
    parts: Interval | None = None
    row: int | None = None
    reduced: frozenset[Interval] = frozenset()

    def with_layout(self, layout: Layout) -> Space | None:
        """Return the space with the cuts of a layout; None if these do not go with the others."""
        found = intervals(layout)
        if any(inner[1] > outer[0] for outer, inner in itertools.pairwise(found)):
            return None
        return self.with_cuts([end for interval in found for end in interval])

    def with_cuts(self, cuts: Iterable[int]) -> Space | None:
        """Return the space with more cuts; None if one does not divide the next, or is inside of the parts."""
        if self.cuts.issuperset(cuts):
            return self
        joined = sorted(self.cuts.union(cuts))
        if any(high % low for low, high in itertools.pairwise(joined)) or joined[-1] > self.size:
            return None
        if self.parts is not None and _is_cut(self.parts, joined):
            return None
        return replace(self, cuts=frozenset(joined))

    def with_parts(self, parts: Interval, most: int = MOST_PARTS) -> Space | None:
        """Return the space with an axis of at most so many that is written out; None if another is, or it can't be.

        Axes that some values have in part are not one axis: such a value is the same along some of the parts alone.
        """
        low, high = parts
        if self.parts is not None:
            return self if self.parts == parts else None
        if low == 1 or high // low > most or _is_cut(parts, self.cuts):
            return None
        cut = self.with_cuts(parts)
        return None if cut is None else replace(cut, parts=parts)

    def missing(self, layout: Layout) -> list[Interval]:
        """Return the intervals along which a value is the same, but for the parts; innermost first."""
        covered = intervals(layout)
        if self.parts is not None:
            covered.append(self.parts)
        found: list[Interval] = []
        position = 1
        for low, high in sorted(covered):
            if low > position:
                found.append((position, low))
            position = max(position, high)
        if position < self.size:
            found.append((position, self.size))
        return found

    def using(self, layout: Layout) -> Space | None:
        """Return the space where a value of this layout is used; None if it would have to wait for the whole kernel."""
        missing = self.missing(layout)
        if not missing:
            return self
        if len(missing) == 1 and missing[0][0] != 1:
            most = MOST_REDUCED if missing[0] in self.reduced else MOST_PARTS
            return self.with_parts(missing[0], most) if self.parts is None else None
        if len(missing) != 1 or missing[0][1] > machine_profile().row_elements or self.row not in (None, missing[0][1]):
            return None
        return replace(self, row=missing[0][1])

    def reducing(self, layout: Layout) -> Space:
        """Return the space where a reduction leaves a value of this layout."""
        missing = self.missing(layout)
        return replace(self, reduced=self.reduced | {missing[0]}) if len(missing) == 1 else self

    def with_sizes(self, sizes: Mapping[int, int]) -> Space:
        """Return the space with other sizes in the place of some."""
        return Space(
            with_sizes(self.size, sizes),
            frozenset([with_sizes(cut, sizes) for cut in self.cuts]),
            interval_with_sizes(self.parts, sizes),
            None if self.row is None else with_sizes(self.row, sizes),
            frozenset(filter(None, [interval_with_sizes(interval, sizes) for interval in self.reduced])),
        )

    def rebased(self, parts: Interval) -> Space | None:
        """Return the space with a new axis of parts in it."""
        low, high = parts
        factor = high // low
        if self.parts is not None or low not in self.cuts or (self.row or 0) > low:
            return None
        cuts = {cut if cut <= low else cut * factor for cut in self.cuts} | {low, high}
        moved = replace(self, size=self.size * factor, cuts=frozenset(cuts), reduced=frozenset())
        return moved.with_parts(parts)

    def embedded(self, small: Space, embedding: Embedding) -> Space | None:
        """Return the space with what is settled in a smaller one that is in it; None if that contradicts itself."""
        row = None if small.row is None else embedding.interval((1, small.row))
        if small.row is not None and (row is None or row[0] != 1):
            return None
        if row is not None and self.row not in (None, row[1]):
            return None
        reduced = self.reduced.union(filter(None, map(embedding.interval, small.reduced)))
        joined = replace(self, row=self.row if row is None else row[1], reduced=reduced)
        joined = joined.with_cuts(embedding.cuts(small.cuts))
        if joined is None or small.parts is None:
            return joined
        parts = embedding.interval(small.parts)
        return None if parts is None else joined.with_parts(parts)


class Embedding:
    """The place of a smaller space in a larger one.

    Args:
        small: the places of the axes of a value that fills the smaller space.
        large: their places in the larger one.
    """

    def __init__(self, small: Layout, large: Layout) -> None:
        pairs = zip(small, large, strict=True)
        self._pairs = sorted((own, other) for own, other in pairs if own is not None and other is not None)

    def is_whole(self, size: int) -> bool:
        """Test whether this gives the place of all of a space of `size` elements."""
        return math.prod(own[1] // own[0] for own, _ in self._pairs) == size

    def interval(self, interval: Interval) -> Interval | None:
        """Return the interval in the larger space of one of the smaller; None if it is in several places."""
        low, high = interval
        found: Interval | None = None
        for (begin, end), (other, _) in self._pairs:
            if begin >= high or end <= low:
                continue
            piece = (other * max(low, begin) // begin, other * min(high, end) // begin)
            if found is not None and found[1] != piece[0]:
                return None
            found = piece if found is None else (found[0], piece[1])
        return found

    def layout(self, layout: Layout) -> Layout:
        """Return the layout in the larger space of a value of the smaller one.

        Raises:
            ValueError: an axis would be cut in two.
        """
        found = tuple(None if own is None else self.interval(own) for own in layout)
        if any((own is None) != (other is None) for own, other in zip(layout, found, strict=True)):
            raise ValueError("An axis would be cut in two.")
        return found

    def cuts(self, cuts: Iterable[int]) -> set[int]:
        """Return the places of cuts in the larger space."""
        known = set(cuts)
        return {
            other * cut // begin for (begin, end), (other, _) in self._pairs for cut in known if begin <= cut <= end
        }


def space_of(shape: Shape) -> Space:
    """Return the space that values of a shape fill."""
    return Space(math.prod(shape), frozenset([1, *[end for axis in intervals(canonical(shape)) for end in axis]]))


# --- layouts of results ---------------------------------------------------------------------------------------------


def broadcast_layout(shape: Shape, inputs: Sequence[tuple[Shape, Layout | None]], size: int) -> Layout | None:
    """Return the layout of an elementwise result, from the inputs whose layouts are known."""
    found: list[Interval | None] = [None] * len(shape)
    for own, layout in inputs:
        for axis, interval in enumerate(reversed(layout or ()), 1):
            if interval is None:
                continue
            if found[-axis] not in (None, interval) or own[-axis] != shape[-axis]:
                return None
            found[-axis] = interval
    whole = canonical(shape)
    is_complete = all((interval is None) == (dim == 1) for interval, dim in zip(found, shape, strict=True))
    if is_complete:
        return tuple(found)
    is_whole = math.prod(shape) == size and all(a in (None, b) for a, b in zip(found, whole, strict=True))
    return whole if is_whole else None


def operand_layout(shape: Shape, result: Layout) -> Layout:
    """Return the layout of an operand of shape `shape` that is broadcast to a result."""
    count = len(shape)
    return tuple(None if dim == 1 else result[len(result) - count + axis] for axis, dim in enumerate(shape))


def reshaped_layout(layout: Layout, shape: Shape) -> Layout | None:
    """Return the layout of a value in another shape; None if an axis of that had several places."""
    left = intervals(layout)
    found: list[Interval | None] = []
    for dim in reversed(shape):
        if dim == 1:
            found.append(None)
            continue
        if not left or not dim or not left[-1][0]:  # of nothing
            return None
        low, high = left.pop()
        while high // low < dim and left and left[-1][0] == high:
            high = left.pop()[1]
        if (high // low) % dim:
            return None
        found.append((low, low * dim))
        if high > low * dim:
            left.append((low * dim, high))
    return None if left else tuple(reversed(found))


def reduced_layout(layout: Layout, axes: Sequence[int], keepdims: bool) -> Layout:
    """Return the layout of what is left by a reduction over `axes`."""
    if keepdims:
        return tuple(None if axis in axes else interval for axis, interval in enumerate(layout))
    return tuple(interval for axis, interval in enumerate(layout) if axis not in axes)


def part_layout(layout: Layout, axis: int, count: int, keeps_axis: bool) -> tuple[Layout, Interval] | None:
    """Return the layout of one of `count` equal parts along an axis, and the axis of the parts."""
    interval = layout[axis]
    if interval is None:
        return None
    low, high = interval
    width = high // low // count
    own = (None if width == 1 else (low, low * width),) if keeps_axis else ()
    return (*layout[:axis], *own, *layout[axis + 1 :]), (low * width, high)


def joined_layout(layout: Layout, axis: int, parts: Interval, is_new: bool) -> Layout | None:
    """Return the layout of parts put together, along an axis of theirs or a new one. The inverse of `part_layout`."""
    if is_new:
        return (*layout[:axis], parts, *layout[axis:])
    interval = layout[axis]
    low = parts[0] if interval is None else interval[0]
    if interval is not None and interval[1] != parts[0]:
        return None
    return (*layout[:axis], (low, parts[1]), *layout[axis + 1 :])
