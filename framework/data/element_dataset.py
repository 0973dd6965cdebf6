"""Input as a chain of steps over single elements, with the names of ``tf.data``: what small scripts use of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...engine.common.nest import flatten, map_structure
from ...engine.ops.base import as_array
from ...engine.ops.random.keys import global_generator
from ...engine.session.function import Function

if TYPE_CHECKING:
    from ..structures import Arrays


class ElementDataset:
    """Elements that are made when they are asked for; `fit` takes it once it is batched.

    Args:
        elements: begins a pass over the elements.
        count: how many there are; None if that is not known.

    Elements are arrays, or tuples, dicts and lists of arrays. The methods give a new dataset each.

    >>> dataset = ElementDataset.from_tensor_slices(([1, 2, 3], [10, 20, 30])).map(lambda x, y: x + y).batch(2)
    >>> [batch.tolist() for batch in dataset]
    [[11, 22], [33]]
    """

    def __init__(self, elements: Callable[[], Iterator[Any]], count: int | None = None) -> None:
        self._elements = elements
        self._count = count

    def __repr__(self) -> str:
        return f"<ElementDataset: {'of unknown length' if self._count is None else f'{self._count} elements'}>"

    def _repr_html_(self) -> str:
        from ...engine.common.html import array_view  # notebooks alone need it

        return array_view(repr(self)[1:-1])

    @classmethod
    def from_tensor_slices(cls, tensors: Arrays, name: str | None = None) -> ElementDataset:
        """An element for each row of an array, or of the arrays of a tuple or dict.

        Raises:
            ValueError: the arrays have different numbers of rows.
        """
        structure = _of_arrays(tensors)
        arrays: list[Any] = flatten(structure)
        counts = {len(array) for array in arrays}
        if len(counts) != 1:
            raise ValueError(f"from_tensor_slices: the arrays must have one number of rows, got {sorted(counts)}.")
        count = counts.pop()

        def elements() -> Iterator[Any]:
            for row in range(count):
                yield map_structure(lambda array: array[row], structure)  # noqa: B023 - called at once

        return cls(elements, count)

    @classmethod
    def from_tensors(cls, tensors: Arrays, name: str | None = None) -> ElementDataset:
        """One element."""
        return cls(lambda: iter([_of_arrays(tensors)]), 1)

    @classmethod
    def from_generator(
        cls, generator: Callable[..., Iterable[Arrays]], *signature: object, **options: object
    ) -> ElementDataset:
        """The elements that a generator function yields; types and shapes are those of what comes."""
        return cls(lambda: (_of_arrays(item) for item in generator()))

    @classmethod
    def range(cls, *bounds: int) -> ElementDataset:
        """The whole numbers between bounds."""
        numbers = np.arange(*bounds)
        return cls(lambda: iter(numbers), len(numbers))

    @classmethod
    def zip(cls, *datasets: Any, name: str | None = None) -> ElementDataset:
        """Tuples of the elements of several datasets, as far as the shortest goes."""
        parts: tuple[ElementDataset, ...] = datasets[0] if isinstance(datasets[0], tuple) else datasets
        counts = [part._count for part in parts]
        known = None if None in counts else min(count for count in counts if count is not None)
        return cls(lambda: zip(*parts, strict=False), known)

    def __iter__(self) -> Iterator[Any]:
        return self._elements()

    def __len__(self) -> int:
        if self._count is None:
            raise TypeError("The number of elements of this dataset is not known before they are made.")
        return self._count

    def cardinality(self) -> int:
        """The number of elements; -2 if it is not known."""
        return -2 if self._count is None else self._count

    def map(
        self, function: Callable[..., Any], num_parallel_calls: int | None = None, **options: object
    ) -> ElementDataset:
        """`function`, of ops, for each element; of a tuple it gets the parts as arguments."""
        traced = Function(function)

        def elements() -> Iterator[Any]:
            for item in self:
                yield traced(*item) if isinstance(item, tuple) else traced(item)

        return ElementDataset(elements, self._count)

    def filter(self, predicate: Callable[..., Any]) -> ElementDataset:
        """The elements for which `predicate`, of ops, is true."""
        traced = Function(predicate)
        return ElementDataset(
            lambda: (item for item in self if (traced(*item) if isinstance(item, tuple) else traced(item)))
        )

    def batch(self, batch_size: int, drop_remainder: bool = False, **options: object) -> ElementDataset:
        """So many elements stacked into one; the last may have fewer."""
        count = self._count
        if count is not None:
            count = count // batch_size if drop_remainder else -(-count // batch_size)

        def elements() -> Iterator[Any]:
            source = iter(self)
            while rows := list(islice(source, batch_size)):
                if len(rows) < batch_size and drop_remainder:
                    return
                yield map_structure(lambda *parts: np.stack(parts), *rows)

        return ElementDataset(elements, count)

    def unbatch(self) -> ElementDataset:
        """The rows of the elements as elements."""
        return ElementDataset(
            lambda: (
                map_structure(lambda array, row=row: array[row], batch)
                for batch in self
                for row in range(len(flatten(batch)[0]))
            )
        )

    def shuffle(self, buffer_size: int, seed: int | None = None, **options: object) -> ElementDataset:
        """The elements, each drawn from the next `buffer_size` that are left; in a new order for each pass."""
        entropy = [abs(int(part)) for part in global_generator().next()] if seed is None else seed
        random = np.random.default_rng(entropy)

        def elements() -> Iterator[Any]:
            source = iter(self)
            buffer = list(islice(source, buffer_size))
            while buffer:
                place = int(random.integers(len(buffer)))
                yield buffer[place]
                following = list(islice(source, 1))
                buffer[place : place + 1] = following

        return ElementDataset(elements, self._count)

    def take(self, count: int) -> ElementDataset:
        """The first `count` elements; -1 for all."""
        if count < 0:
            return self
        known = None if self._count is None else min(count, self._count)
        return ElementDataset(lambda: islice(iter(self), count), known)

    def skip(self, count: int) -> ElementDataset:
        """All but the first `count` elements."""
        known = None if self._count is None else max(self._count - count, 0)
        return ElementDataset(lambda: islice(iter(self), count, None), known)

    def repeat(self, count: int | None = None) -> ElementDataset:
        """The elements so many times over; without a number without end."""

        def elements() -> Iterator[Any]:
            done = 0
            while count is None or done < count:
                yield from self
                done += 1

        return ElementDataset(elements, None if count is None or self._count is None else count * self._count)

    def concatenate(self, dataset: ElementDataset) -> ElementDataset:
        """The elements of this dataset and then those of another."""
        known = None if self._count is None or dataset._count is None else self._count + dataset._count

        def elements() -> Iterator[Any]:
            yield from self
            yield from dataset

        return ElementDataset(elements, known)

    def cache(self, filename: str = "") -> ElementDataset:
        """The elements of the first pass, kept in memory for the others."""
        kept: list[Any] = []

        def elements() -> Iterator[Any]:
            if not kept:
                kept.extend(self)
            return iter(kept)

        return ElementDataset(elements, self._count)

    def prefetch(self, buffer_size: int | None = None) -> ElementDataset:
        """The dataset itself; give `fit` a `utils.Prefetch` of it where making batches takes time."""
        return self

    def as_numpy_iterator(self) -> Iterator[Any]:
        """The elements; they are arrays already."""
        return iter(self)


def _of_arrays(structure: object) -> Any:
    """Tuples and dicts with arrays in them; a list is an array, as in TensorFlow."""
    if isinstance(structure, tuple):
        return tuple(_of_arrays(part) for part in cast(tuple[Any, ...], structure))
    if isinstance(structure, dict):
        return {name: _of_arrays(part) for name, part in cast(dict[str, Any], structure).items()}
    return as_array(structure)
