"""Datasets of single elements, with the names of ``tf.data.Dataset``."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.common.dtypes import as_dtype
from ...engine.common.nest import flatten, map_structure
from ...engine.ops.random.keys import drawn_entropy
from .transformations import UNKNOWN_CARDINALITY, Transformations, arrays_of, on_elements, owned_arrays_of, read_only

if TYPE_CHECKING:
    from ...engine.common.dtypes import DType, DTypeLike
    from ..structures import Array, Arrays


class ElementDataset(Transformations):
    """Elements that are made when they are asked for; `fit` takes it once it is batched.

    Args:
        elements: begins a pass over the elements, as arrays.
        count: the number of elements; None if it is not known.

    Elements are tensors, or tuples, dicts and lists of tensors.

    >>> dataset = ElementDataset.from_tensor_slices(([1, 2, 3], [10, 20, 30])).map(lambda x, y: x + y).batch(2)
    >>> [batch.tolist() for batch in dataset]
    [[11, 22], [33]]
    """

    def __init__(
        self, elements: Callable[[], Iterator[object]], count: int | None = None, draws_order: bool = False
    ) -> None:
        self._elements = elements
        self._count = count
        self.draws_order = draws_order

    def __repr__(self) -> str:
        return f"<ElementDataset: {'of unknown length' if self._count is None else f'{self._count} elements'}>"

    def _repr_html_(self) -> str:
        from ...engine.common.html import array_view  # notebooks alone need it

        return array_view(repr(self)[1:-1])

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Begin a pass over the elements, as NumPy arrays."""
        return self._elements()

    def __len__(self) -> int:
        if self._count is None:
            raise TypeError("The number of elements of this dataset is not known before they are made.")
        return self._count

    def cardinality(self) -> int:
        """Return the number of elements; -2 if it is not known."""
        return UNKNOWN_CARDINALITY if self._count is None else self._count

    def _derived(
        self, elements: Callable[[], Iterator[object]], count: int | None = None, draws_order: bool = False
    ) -> ElementDataset:
        return ElementDataset(elements, count, self.draws_order or draws_order)

    # Sources ----------------------------------------------------------------------------------------------------------

    @classmethod
    def from_tensor_slices(cls, tensors: Arrays, name: str | None = None) -> ElementDataset:
        """Make an element of each row of an array, or of the arrays of a tuple or dict.

        Arrays are copied, but for those that are read-only, as ``np.load(path, mmap_mode="r")`` makes them.

        Raises:
            ValueError: the arrays have different numbers of rows.
        """
        structure = owned_arrays_of(tensors)
        arrays: list[Array] = flatten(structure)
        counts = {len(array) for array in arrays}
        if len(counts) != 1:
            raise ValueError(f"from_tensor_slices: the arrays must have one number of rows, got {sorted(counts)}.")
        count = counts.pop()

        def elements() -> Iterator[object]:
            for row in range(count):
                yield map_structure(lambda array: array[row], structure)  # noqa: B023 - called at once

        return cls(elements, count)

    @classmethod
    def from_tensors(cls, tensors: Arrays, name: str | None = None) -> ElementDataset:
        """Make a dataset of one element."""
        structure = owned_arrays_of(tensors)
        return cls(lambda: iter([structure]), 1)

    @classmethod
    def from_generator(
        cls,
        generator: Callable[..., Iterable[Arrays]],
        output_types: object = None,
        output_shapes: object = None,
        args: Sequence[object] | None = None,
        output_signature: object = None,
        name: str | None = None,
    ) -> ElementDataset:
        """Take the elements that a generator function yields.

        Args:
            generator: returns an iterable, a new one for each pass.
            output_types: the dtypes of the elements, in their structure; by default those of what is yielded.
            output_shapes: accepted for TensorFlow's sake: shapes are those of what is yielded.
            args: arguments of `generator`.
            output_signature: specs of the elements, whose dtypes are used as `output_types` are.
            name: accepted for TensorFlow's sake.
        """
        wanted = output_types if output_signature is None else map_structure(lambda spec: spec.dtype, output_signature)
        dtypes = None if wanted is None else [as_dtype(dtype) for dtype in flatten(wanted)]

        def elements() -> Iterator[object]:
            for item in generator(*(args or ())):
                arrays = owned_arrays_of(item)  # a generator may use the same ones for its next element
                yield arrays if dtypes is None else _cast(arrays, dtypes)

        return cls(elements)

    @classmethod
    def range(cls, *args: int, output_type: DTypeLike = np.int64, name: str | None = None) -> ElementDataset:
        """Count as Python's ``range`` does."""
        numbers = np.arange(*args, dtype=as_dtype(output_type))
        return cls(lambda: iter(numbers), len(numbers))

    @classmethod
    def counter(
        cls, start: int = 0, step: int = 1, dtype: DTypeLike = np.int64, name: str | None = None
    ) -> ElementDataset:
        """Count without end."""
        scalar = as_dtype(dtype).type
        return cls(lambda: (scalar(number) for number in itertools.count(start, step)))

    @classmethod
    def list_files(
        cls,
        file_pattern: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        shuffle: bool | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> ElementDataset:
        """List the files that fit a pattern, or one of several.

        Args:
            file_pattern: with `*`, `?` and `[...]` as in a shell.
            shuffle: draw a new order for each pass; None means True, as in TensorFlow. Names are sorted otherwise.
            seed: of the order.
            name: accepted for TensorFlow's sake.

        Raises:
            FileNotFoundError: no file fits.
        """
        patterns = [file_pattern] if isinstance(file_pattern, (str, os.PathLike)) else list(file_pattern)
        found = sorted({path for pattern in patterns for path in glob.glob(os.fspath(pattern))})
        if not found:
            raise FileNotFoundError(
                f"list_files: no file fits {', '.join(repr(os.fspath(pattern)) for pattern in patterns)}."
            )
        listed = cls.from_tensor_slices(found)
        return listed if shuffle is False else listed.shuffle(len(found), seed)

    @classmethod
    def zip(cls, *datasets: object, name: str | None = None) -> ElementDataset:
        """Make tuples, or the structure that holds the datasets, of their elements, as far as the shortest goes."""
        structure: object = datasets[0] if len(datasets) == 1 else datasets
        parts: list[Transformations] = flatten(structure)
        counts = [part.cardinality() for part in parts]
        known = None if UNKNOWN_CARDINALITY in counts else min(counts)

        def elements() -> Iterator[object]:
            for row in zip(*[part.as_numpy_iterator() for part in parts], strict=False):
                items = iter(row)
                yield map_structure(lambda _, items=items: next(items), structure)

        return cls(elements, known, any(part.draws_order for part in parts))

    @classmethod
    def choose_from_datasets(
        cls,
        datasets: Sequence[Transformations],
        choice_dataset: Transformations,
        stop_on_empty_dataset: bool = True,
    ) -> ElementDataset:
        """Take each element from the dataset whose position `choice_dataset` gives.

        Args:
            datasets: what to choose from.
            choice_dataset: whole numbers from 0 to the number of datasets, exclusive.
            stop_on_empty_dataset: end with the first dataset without a further element; else skip such a choice.

        Raises:
            ValueError: a choice is not a position of a dataset.
        """

        def elements() -> Iterator[object]:
            sources = [dataset.as_numpy_iterator() for dataset in datasets]
            for choice in choice_dataset.as_numpy_iterator():
                if not 0 <= choice < len(sources):
                    raise ValueError(
                        f"choose_from_datasets: there are {len(sources)} datasets; got the choice {choice}."
                    )
                item = list(itertools.islice(sources[int(choice)], 1))
                if not item and stop_on_empty_dataset:
                    return
                yield from item

        return cls(elements)

    @classmethod
    def sample_from_datasets(
        cls,
        datasets: Sequence[Transformations],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> ElementDataset:
        """Draw the dataset of each element.

        Args:
            datasets: what to draw from.
            weights: the probability of each dataset, up to a common factor; equal by default.
            seed: of the draws; by default from the generator that `utils.set_random_seed` seeds.
            stop_on_empty_dataset: end with the first dataset without a further element; else go on with the others.
            rerandomize_each_iteration: make other draws in each pass; None means True.

        Raises:
            ValueError: there is not one weight, of at least 0, for each dataset.
        """
        shares = np.ones(len(datasets)) if weights is None else np.asarray(weights, float)
        if shares.shape != (len(datasets),) or not (shares >= 0).all() or not shares.sum() > 0:
            raise ValueError(
                f"sample_from_datasets: weights must be {len(datasets)} numbers from 0 up, not all 0; got {weights}."
            )
        entropy = drawn_entropy() if seed is None else seed
        kept = np.random.default_rng(entropy)

        def elements() -> Iterator[object]:
            random = np.random.default_rng(entropy) if rerandomize_each_iteration is False else kept
            sources = [dataset.as_numpy_iterator() for dataset in datasets]
            left = shares.copy()
            while left.sum() > 0:
                place = int(random.choice(len(sources), p=left / left.sum()))
                item = list(itertools.islice(sources[place], 1))
                if not item and stop_on_empty_dataset:
                    return
                yield from item
                if not item:
                    left[place] = 0

        return cls(elements, draws_order=True)

    # Transformations of single elements and of parts of the dataset ---------------------------------------------------

    def map(
        self,
        map_func: Callable[..., object],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> ElementDataset:
        """Apply `map_func`, of ops, to each element; of a tuple it gets the parts as arguments."""
        apply = on_elements(map_func)
        return self._derived(lambda: (apply(item) for item in self.as_numpy_iterator()), self._count)

    def take(self, count: int, name: str | None = None) -> ElementDataset:
        """Keep the first `count` elements; -1 for all."""
        if count < 0:
            return self
        known = None if self._count is None else min(count, self._count)
        return self._derived(lambda: itertools.islice(self.as_numpy_iterator(), count), known)

    def skip(self, count: int, name: str | None = None) -> ElementDataset:
        """Drop the first `count` elements; -1 for all."""
        if count < 0:
            return ElementDataset(lambda: iter(()), 0)
        known = None if self._count is None else max(self._count - count, 0)
        return self._derived(lambda: itertools.islice(self.as_numpy_iterator(), count, None), known)

    def cache(self, filename: str = "", name: str | None = None) -> ElementDataset:
        """Keep the elements of the first whole pass in memory for the passes that follow."""
        kept: list[list[object]] = []

        def elements() -> Iterator[object]:
            if kept:
                yield from kept[0]
                return
            found: list[object] = []
            for item in self.as_numpy_iterator():
                found.append(map_structure(read_only, item))
                yield found[-1]
            kept[:] = [found]

        return self._derived(elements, self._count)

    def prefetch(self, buffer_size: int | None = None, name: str | None = None) -> ElementDataset:
        """Return the dataset itself; give `fit` a `utils.Prefetch` of it where making batches takes time."""
        return self


def text_lines(
    filenames: str | os.PathLike[str] | Sequence[str],
    compression_type: str | None = None,
    buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
    name: str | None = None,
) -> ElementDataset:
    """Make a dataset of the lines of text files, one file after the other, without their ends.

    Args:
        filenames: a path, or several.
        compression_type: "GZIP", or None or "" for plain text.
        buffer_size: accepted for TensorFlow's sake, as `num_parallel_reads` and `name`.

    Raises:
        ValueError: the compression has no reader here.
        UnicodeDecodeError: while it is read, a file is not UTF-8.
    """
    if compression_type not in (None, "", "GZIP"):
        raise ValueError(f'TextLineDataset: compression_type must be None, "" or "GZIP", got {compression_type!r}.')
    paths = [filenames] if isinstance(filenames, (str, os.PathLike)) else list(filenames)

    def elements() -> Iterator[object]:
        import gzip  # no other dataset needs it

        opened = gzip.open if compression_type else open
        for path in paths:
            with opened(os.fspath(path), "rt", encoding="utf-8", newline="\n") as lines:
                for line in lines:
                    yield arrays_of(line.removesuffix("\n").removesuffix("\r"))

    return ElementDataset(elements)


def _cast(item: object, dtypes: Sequence[DType]) -> object:
    leaves: list[object] = flatten(item)
    if len(leaves) != len(dtypes):
        raise ValueError(
            f"from_generator: the signature has {len(dtypes)} arrays in an element, but {len(leaves)} were yielded."
        )
    cast = iter([np.asarray(leaf).astype(dtype, copy=False) for leaf, dtype in zip(leaves, dtypes, strict=True)])
    return map_structure(lambda _: read_only(next(cast)), item)
