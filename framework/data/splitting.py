"""`split_dataset`: two datasets of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...engine.common.nest import flatten, map_structure
from ...engine.objects.arguments import check_optional_numbers
from .element_dataset import ElementDataset
from .transformations import Transformations, owned_arrays_of

if TYPE_CHECKING:
    from ..structures import Arrays


def split_dataset(
    dataset: Transformations | Arrays,
    left_size: float | int | None = None,
    right_size: float | int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    preferred_backend: str | None = None,
) -> tuple[ElementDataset, ElementDataset]:
    """Split rows into two datasets.

    Args:
        dataset: an array, a tuple, list or dict of arrays with one number of rows, or a dataset. Batches of a dataset
            that `batch` made are split by rows, and made again.
        left_size, right_size: fractions (float) or numbers of rows (int); one of them may be left out.
        shuffle: draw the rows at random; `seed` makes that repeatable.
        preferred_backend: accepted as in Keras, but for "torch"; the datasets are those of this package.

    Elements are single rows, unless the dataset had batches.

    Raises:
        TypeError: it is neither arrays nor a dataset.
        ValueError: the sizes are missing, no numbers, or more than there is, or leave a part empty; or datasets of
            PyTorch are asked for.

    >>> left, right = split_dataset(np.arange(5), left_size=0.4)
    >>> len(left), [batch.tolist() for batch in right.batch(2)]
    (2, [[2, 3], [4]])
    """
    if preferred_backend == "torch":
        raise ValueError(
            "split_dataset: preferred_backend='torch' asks for datasets of PyTorch, which are not made here. Leave it "
            "out, or give the parts to torch.utils.data.TensorDataset."
        )
    if isinstance(dataset, Transformations):
        rows = list((dataset.unbatch() if dataset.batch_rows else dataset).as_numpy_iterator())
        total, batch_rows = len(rows), dataset.batch_rows
    else:
        rows = _arrays(dataset)
        total, batch_rows = len(flatten(rows)[0]), None
    left, right = _sizes(left_size, right_size, total)
    order = np.random.default_rng(seed).permutation(total).tolist() if shuffle else range(total)
    parts = [_part(rows, order[first:last]) for first, last in ((0, left), (left, left + right))]
    first, second = parts if batch_rows is None else [part.batch(batch_rows) for part in parts]
    return first, second


def _arrays(dataset: object) -> Arrays:
    """Return the arrays, which have one number of rows."""
    arrays = owned_arrays_of(tuple(dataset) if isinstance(dataset, list) else dataset)
    if not flatten(arrays) or any(np.ndim(array) == 0 for array in flatten(arrays)):
        raise TypeError(
            "split_dataset takes an array, a tuple, list or dict of arrays, or a dataset; got "
            f"{type(dataset).__name__}."
        )
    counts = {len(array) for array in flatten(arrays)}
    if len(counts) != 1:
        raise ValueError(f"split_dataset: all arrays must have the same number of rows, got {sorted(counts)}.")
    return arrays


def _sizes(left: float | int | None, right: float | int | None, total: int) -> tuple[int, int]:
    if left is None and right is None:
        raise ValueError("split_dataset needs left_size or right_size.")
    check_optional_numbers("split_dataset", left_size=left, right_size=right)
    known = [round(size * total) if isinstance(size, float) else size for size in (left, right)]
    sizes = [total - (known[1 - side] or 0) if size is None else size for side, size in enumerate(known)]
    if min(sizes) < 1 or sum(sizes) > total:
        raise ValueError(
            f"split_dataset: {sizes[0]} and {sizes[1]} rows can't be taken from {total}; expected at least one for "
            f"each part. left_size={left!r}, right_size={right!r}."
        )
    return sizes[0], sizes[1]


def _part(rows: object, order: Sequence[int]) -> ElementDataset:
    def elements() -> Iterator[object]:
        for row in order:
            yield rows[row] if isinstance(rows, list) else map_structure(lambda array: array[row], rows)  # noqa: B023

    return ElementDataset(elements, len(order))


__all__ = ["split_dataset"]
