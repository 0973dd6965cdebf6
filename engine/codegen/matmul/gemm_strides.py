"""Products of arrays as many products of matrices, each operand read and written in place."""

from __future__ import annotations

from collections.abc import Sequence

from ...common.quick_dataclass import dataclass

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Axis:
    """One or more axes that are stepped through as one.

    Attributes:
        size: how many steps there are.
        a, b, c: the elements from step to step in the operands and in the result; 0 where it stands still.
    """

    size: int
    a: int = 0
    b: int = 0
    c: int = 0


@dataclass(frozen=True)
class StridedProduct:
    """``c[row, column] = sum(a[row, term] * b[term, column])``, for each place in `axes`.

    Attributes:
        rows, columns, terms: the axes of a product of matrices.
        axes: the others.
        is_swapped: A is the second operand, and B the first.
    """

    rows: Axis
    columns: Axis
    terms: Axis
    axes: tuple[Axis, ...]
    is_swapped: bool = False

    @property
    def count(self) -> int:
        """The number of products of matrices."""
        count = 1
        for axis in self.axes:
            count *= axis.size
        return count

    @property
    def work(self) -> int:
        """The multiplications of one of them."""
        return self.rows.size * self.columns.size * self.terms.size


def labels_of_matmul(rank_a: int, rank_b: int, transpose_a: bool, transpose_b: bool) -> tuple[str, str, str]:
    """Return the labels of a product of stacks of matrices.

    >>> labels_of_matmul(3, 2, False, True)
    ('aBD', 'CD', 'aBC')
    """
    batch = LETTERS[: max(rank_a, rank_b) - 2]
    a = batch[len(batch) - rank_a + 2 :] + ("DB" if transpose_a else "BD")
    b = batch[len(batch) - rank_b + 2 :] + ("CD" if transpose_b else "DC")
    return a, b, batch + "BC"


def strided_product(
    labels: tuple[str, str, str],
    shapes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    steps: Sequence[Sequence[int]] = (),
) -> StridedProduct | None:
    """Return the products that give ``einsum("a,b->out")``; None where there are none so.

    Args:
        labels: of the axes of the operands and of the result.
        shapes: of these; no size is 0.
        steps: from element to element along the axes of each operand, in elements, more than 0; by default, and of the
            result, those of arrays that are contiguous.
    """
    axes = _labelled(labels, shapes, [*steps, *map(_contiguous, shapes[len(steps) :])])
    batch = [axis for axis in axes.values() if axis.a and axis.b and axis.c]
    rows = [axis for axis in axes.values() if axis.a and not axis.b]
    columns = [axis for axis in axes.values() if axis.b and not axis.a]
    terms = _joined([axis for axis in axes.values() if not axis.c])
    if len(terms) > 1:
        return None
    is_swapped = not any(axis.c == 1 for axis in columns) and any(axis.c == 1 for axis in rows)
    if is_swapped:
        rows, columns = ([_swapped(axis) for axis in own] for own in (columns, rows))
        batch, terms = ([_swapped(axis) for axis in own] for own in (batch, terms))
    rows, columns = _joined(rows), _joined(columns)
    column = next((axis for axis in columns if axis.c == 1), Axis(1, c=1))
    if columns and column.size == 1:
        return None
    row = max(rows, key=lambda axis: axis.size, default=Axis(1))
    term = terms[0] if terms else Axis(1)
    others = [axis for axis in (*rows, *columns) if axis is not row and axis is not column]
    if column.size > 1 and term.size > 1 and 1 not in (column.b, term.b):
        return None
    if row.size > 1 and term.size > 1 and 1 not in (row.a, term.a):
        return None  # each element would be in a cache line of its own
    return StridedProduct(row, column, term, tuple(_joined([*batch, *others])), is_swapped)


def _contiguous(shape: Sequence[int]) -> list[int]:
    """Return the steps along the axes of a contiguous array."""
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.insert(0, step)
        step *= size
    return steps


def _labelled(
    labels: tuple[str, str, str], shapes: Sequence[Sequence[int]], steps: Sequence[Sequence[int]]
) -> dict[str, Axis]:
    """Return the axes by their labels, without those of size 1."""
    sizes: dict[str, int] = {}
    by_label: list[dict[str, int]] = []
    for own_labels, shape, along in zip(labels, shapes, steps, strict=True):
        own: dict[str, int] = {}
        for label, size, step in reversed(list(zip(own_labels, shape, along, strict=True))):
            if size != 1:
                own[label] = step
                sizes[label] = size
        by_label.append(own)
    return {label: Axis(size, *[own.get(label, 0) for own in by_label]) for label, size in sizes.items()}


def _swapped(axis: Axis) -> Axis:
    return Axis(axis.size, axis.b, axis.a, axis.c)


def _joined(axes: Sequence[Axis]) -> list[Axis]:
    """Return the axes, the longest steps first, neighbours as one where all operands step through them as one."""
    joined: list[Axis] = []
    for axis in sorted(axes, key=lambda axis: (axis.c, axis.a, axis.b), reverse=True):
        if joined and _follows(joined[-1], axis):
            joined[-1] = Axis(joined[-1].size * axis.size, axis.a, axis.b, axis.c)
        else:
            joined.append(axis)
    return joined


def _follows(outer: Axis, inner: Axis) -> bool:
    pairs = ((outer.a, inner.a), (outer.b, inner.b), (outer.c, inner.c))
    return all(step == inner.size * finer for step, finer in pairs)
