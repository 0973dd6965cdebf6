"""Data for `fit`, `evaluate` and `predict`: arrays, generators, iterables and `PyDataset`s, as batches of arrays.

Every source becomes a `Data`, whose `epoch()` yields `Batch`es: a flat list of arrays beside a `Layout` that says how
they form x, y and sample weights. Arrays are converted once, before the first epoch; without shuffling a batch is made
of views, with shuffling of one gather an array.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...engine.common.dtypes import name_of, with_own_dtype
from ...engine.common.nest import flatten_with_path, map_structure
from ...engine.common.quick_dataclass import dataclass
from ...engine.graph.provenance import user_stacklevel
from ...engine.ops.base import as_array
from ...engine.ops.random.keys import global_generator, key_words
from ...engine.ops.text.numbers import as_strings
from ..config import floatx
from ..structures import Array
from .class_weights import LabelForm, class_weights_to_sample_weights
from .lazy_arrays import LazyArray, SparseRows, is_lazy, is_series, is_sparse_matrix, part_of
from .prefetch import Prefetch, in_order, iterate_ahead
from .py_dataset import PyDataset
from .row_counts import check_lengths
from .transformations import Transformations

if TYPE_CHECKING:
    from ...engine.common.nest import Nest
    from ..structures import Batches, Rows


# --- batches --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layout:
    """The form of x, y and sample weights in a batch: structures whose leaves are positions in the list."""

    x: Nest[int]
    y: Nest[int] | None
    sample_weight: Nest[int] | None
    key: str

    def pack(self, leaves: Sequence[object]) -> tuple[Any, Any, Any]:
        """Return x, y and sample_weight with `leaves` in their places."""
        x, y, weight = (map_structure(lambda p: leaves[p], part) for part in (self.x, self.y, self.sample_weight))
        return x, y, weight


class Batch(NamedTuple):
    """One step's data.

    Attributes:
        layout: which array is what.
        leaves: the arrays, with the batch on axis 0.
        size: the number of rows.
    """

    layout: Layout
    leaves: list[Array]
    size: int


_layouts: dict[str, Layout] = {}


def layout_of(x: object, y: object = None, sample_weight: object = None) -> Layout:
    """Return the layout of structures of arrays; equal structures give the same object."""
    positions = iter(range(1_000_000))
    parts = [map_structure(lambda _: next(positions), part) for part in (x, y, sample_weight)]
    key = repr(parts)
    known = _layouts.get(key)
    if known is None:
        known = _layouts[key] = Layout(parts[0], parts[1], parts[2], key)
    return known


X_ONLY = layout_of(0)
_X_Y = layout_of(0, 0)
_X_Y_WEIGHT = layout_of(0, 0, 0)


def batch_of(x: Rows, y: Rows | None = None, sample_weight: Rows | None = None) -> Batch:
    """Return a batch from arrays, or structures of arrays, that are all that one step gets.

    They may have different numbers of rows, as where a step takes some rows with labels and more without: it is the
    model that decides what goes with what. The size is that of the first array.
    """
    if type(x) is np.ndarray and type(y) is np.ndarray and x.ndim and y.ndim:  # the common, quick case
        if sample_weight is None:
            return Batch(_X_Y, [_as_model_dtype(x), _as_model_dtype(y)], len(x))
        if type(sample_weight) is np.ndarray and sample_weight.ndim:
            leaves = [_as_model_dtype(x), _as_model_dtype(y), _as_model_dtype(sample_weight)]
            return Batch(_X_Y_WEIGHT, leaves, len(x))
    parts = convert_structure(x, "x"), convert_structure(y, "y"), convert_structure(sample_weight, "sample_weight")
    given = [array for part in parts for _, array in flatten_with_path(part)]
    leaves = [np.asarray(array) if isinstance(array, LazyArray) else array for array in given]
    if not leaves:
        raise ValueError("A batch holds no array: x is empty.")
    return Batch(layout_of(*parts), leaves, len(leaves[0]))


def unpack_x_y_sample_weight(data: object) -> tuple[Any, Any, Any]:
    """Return what a generator or a dataset yields as (x, y, sample_weight); what is absent is None.

    >>> unpack_x_y_sample_weight((1, 2))
    (1, 2, None)
    """
    if isinstance(data, list):
        data = tuple(data)
    if not isinstance(data, tuple) or hasattr(data, "_fields"):
        return data, None, None
    if not 1 <= len(data) <= 3:
        raise ValueError(
            f"A batch must be x, (x, y) or (x, y, sample_weight); got a tuple of {len(data)}. "
            "If these are several inputs, nest them: ((input_1, input_2, ...), y)."
        )
    padded = (*data, None, None)
    return padded[0], padded[1], padded[2]


def pack_x_y_sample_weight(x: object, y: object = None, sample_weight: object = None) -> Any:
    """Pack x, y and sample_weight into a tuple: the reverse of `unpack_x_y_sample_weight`.

    >>> pack_x_y_sample_weight(1, 2)
    (1, 2)
    """
    if y is None:
        return x if not isinstance(x, (tuple, list)) else (x,)
    return (x, y) if sample_weight is None else (x, y, sample_weight)


# --- conversion -----------------------------------------------------------------------------------------------------


def convert_structure(value: object, name: str) -> Any:
    """Convert an array, or each leaf of a structure of arrays, to an array of the dtype that models compute with.

    Floating-point data become `config.floatx()`; everything else keeps its dtype.

    Raises:
        TypeError: a leaf is not an array. ValueError: a leaf has no axis for the batch.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: convert_structure(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (tuple, list)) and _is_structure(value):
        items = [convert_structure(item, f"{name}[{position}]") for position, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return _as_rows(value, name)


def _is_structure(value: Sequence[Any]) -> bool:
    """Test whether a list holds several arrays, rather than being the rows of one."""
    return any(
        isinstance(item, Mapping)
        or (hasattr(item, "__array__") and np.ndim(item) > 0)
        or (isinstance(item, (tuple, list)) and _is_structure(item))
        for item in value
    )


def _as_rows(value: Any, name: str) -> Array | LazyArray:
    if isinstance(value, LazyArray):
        return value
    if is_sparse_matrix(value):
        return LazyArray(SparseRows(value), _as_model_dtype)
    if is_lazy(value):  # stays in its file
        return LazyArray(value, _as_model_dtype)
    try:
        array = as_array(value) if not isinstance(value, np.ndarray) else value
    except TypeError as error:
        raise TypeError(
            f"{name} is of type {type(value).__name__}, which is no array: {error} Expected a NumPy array, something "
            "that converts to one, a list or dict of arrays, a generator of batches, or a PyDataset."
        ) from error
    array = as_strings(array) if array.dtype.kind in "OSU" else array
    if array.dtype == object:
        raise TypeError(
            f"{name} is an array of Python objects (dtype object), often because its rows differ in length. Pad them "
            "to one length (utils.pad_sequences) or convert it with astype."
        )
    if np.ndim(array) == 0:
        raise ValueError(f"{name} is a single number; expected an array whose first axis is the batch.")
    if is_series(value) and name.startswith("x"):
        array = array[:, None]  # an input of one column, as in Keras
    return _as_model_dtype(np.asarray(array))


def _as_model_dtype(array: Array) -> Array:
    if array.dtype.kind in "OSU":
        return as_strings(array)
    is_other = array.dtype.kind == "f" and name_of(array.dtype) != floatx()
    return array.astype(floatx()) if is_other else with_own_dtype(array)


def train_validation_split(parts: tuple[Rows, Rows | None, Rows | None], validation_split: float) -> tuple[Any, Any]:
    """Split (x, y, sample_weight) in two; the last rows are for validation.

    Raises:
        ValueError: the fraction is not between 0 and 1, or leaves one side without rows.
    """
    if not 0 < validation_split < 1:
        raise ValueError(f"validation_split must be between 0 and 1, got {validation_split}.")
    rows = check_lengths(*parts)
    first = math.floor(rows * (1.0 - validation_split))
    if first in (0, rows):
        raise ValueError(
            f"validation_split={validation_split} of {rows} rows leaves {first} for training and {rows - first} for "
            "validation; both need at least one. Give more rows, another fraction, or validation_data."
        )
    train = tuple(map_structure(lambda a: part_of(a, 0, first), part) for part in parts)
    return train, tuple(map_structure(lambda a: part_of(a, first, rows), part) for part in parts)


# --- sources --------------------------------------------------------------------------------------------------------


class Data:
    """A source of batches.

    Attributes:
        batches: the number of batches in an epoch; None if it is not known beforehand.
        restartable: whether `epoch()` can be called again and yields data again.
        draws_order: whether its source draws the order of a pass by itself, so that another process has another one.
        ends_by_count: whether a pass has as many batches as `batches` says: others may yield more.
    """

    batches: int | None = None
    restartable: bool = True
    draws_order: bool = False
    ends_by_count: bool = False

    def is_endless(self) -> bool:
        """Test whether a pass has no end; then each epoch calls the hooks of the source."""
        return False

    def epoch(self) -> Iterator[Batch]:
        """Yield the batches of one pass over the data."""
        raise NotImplementedError

    def look(self) -> Iterator[Batch]:
        """Yield the batches of a pass, as `epoch` does, of which perhaps only the first is used.

        The next pass is then the same one. So its source is not notified again that a pass begins.
        """
        return self.epoch()

    def begin_pass(self, looks: bool = False) -> None:
        """Begin a pass whose batches `part` reads; `epoch` does the same by itself.

        Args:
            looks: whether a batch is looked at before the same pass is begun again.
        """

    def part(self, first: int, stop: int) -> Iterator[Batch] | None:
        """Return the batches of these numbers of a pass that is not shuffled; None if they can't be read by number."""
        return None

    def on_epoch_end(self) -> None:
        """Act at the end of a complete pass."""

    def skip_passes(self, count: int) -> None:
        """Take note that so many passes were made before an interruption."""


class ArrayData(Data):
    """Arrays, cut into batches; the last one may be smaller.

    Args:
        x, y, sample_weight: arrays or structures of arrays (already converted), all with the same number of rows.
        batch_size: rows in a batch.
        shuffle: True draws a new order of the rows for each epoch from the global generator, which
            `utils.set_random_seed` seeds; "batch" shuffles the batches only.
    """

    def __init__(
        self,
        x: Rows,
        y: Rows | None = None,
        sample_weight: Rows | None = None,
        batch_size: int = 32,
        shuffle: bool | str = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        parts = x, y, sample_weight
        self.rows = check_lengths(*parts)
        if self.rows == 0:
            raise ValueError("x has no rows: there is nothing to run on.")
        self.layout = layout_of(*parts)
        self.arrays = [array for part in parts for _, array in flatten_with_path(part)]
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.batches = -(-self.rows // batch_size)

    def epoch(self) -> Iterator[Batch]:
        order = self.order()
        if order is None:
            return self._slices(range(self.batches or 0))
        return self._slices(order.tolist()) if self.shuffle == "batch" else self._gathered(order)

    def part(self, first: int, stop: int) -> Iterator[Batch] | None:
        return None if self.shuffle else self._slices(range(first, stop))

    def order(self) -> Array | None:
        """Draw the order of a pass: of batches with ``shuffle="batch"``, else of rows; None for the order they have."""
        if self.shuffle == "batch":
            return _permutation(self.batches or 0)
        return _permutation(self.rows) if self.shuffle else None

    def rows_of(self, order: Array | None, number: int) -> Array:
        """Return the numbers of the rows of a batch, in a pass of this order."""
        place = int(order[number]) if order is not None and self.shuffle == "batch" else number
        start = place * self.batch_size
        stop = min(start + self.batch_size, self.rows)
        return np.arange(start, stop) if order is None or self.shuffle == "batch" else order[start:stop]

    def gather(self, rows: Array) -> Batch:
        """Return the rows of these numbers, as a batch."""
        return Batch(self.layout, [array.take(rows, axis=0) for array in self.arrays], len(rows))

    def _slices(self, numbers: Iterable[int]) -> Iterator[Batch]:
        arrays, layout, rows, size = self.arrays, self.layout, self.rows, self.batch_size
        for number in numbers:
            start = number * size
            stop = min(start + size, rows)
            yield Batch(layout, [array[start:stop] for array in arrays], stop - start)

    def _gathered(self, order: Array) -> Iterator[Batch]:
        for start in range(0, self.rows, self.batch_size):
            yield self.gather(order[start : start + self.batch_size])


def _permutation(count: int) -> Array:
    """Return a random order, from the global generator that `utils.set_random_seed` seeds."""
    bits = np.random.Philox(key=key_words(global_generator().next()))
    return np.random.Generator(bits).permutation(count)


Weigh = Callable[["Rows | None", "Rows | None"], Array]  # (y, sample_weight) to sample_weight


class IterableData(Data):
    """A generator, or an object that can be iterated again and again, of x, (x, y) or (x, y, sample_weight)."""

    def __init__(self, source: Iterable[object], weigh: Weigh | None = None) -> None:
        self.source = source
        self.restartable = not isinstance(source, Iterator)
        self.batches = _length_of(source)
        self.draws_order = isinstance(source, Transformations) and source.draws_order
        self.weigh = weigh

    def epoch(self) -> Iterator[Batch]:
        source = self.source.as_numpy_iterator() if isinstance(self.source, Transformations) else self.source
        for item in source:
            yield _weighed_batch(item, self.weigh)


def _length_of(source: Any) -> int | None:
    """Return the number of batches that a source declares; None if it declares none."""
    try:
        return len(source)
    except (TypeError, NotImplementedError):  # a loader of an endless stream has a __len__ that raises
        return None


class PrefetchedData(Data):
    """Another source, whose next batches a thread makes ahead."""

    def __init__(self, data: Data, max_queue_size: int) -> None:
        self._data = data
        self._max_queue_size = max_queue_size
        self.ends_by_count = data.ends_by_count
        self.batches, self.restartable, self.draws_order = data.batches, data.restartable, data.draws_order

    def is_endless(self) -> bool:
        return self._data.is_endless()

    def epoch(self) -> Iterator[Batch]:
        return iterate_ahead(self._data.epoch(), self._max_queue_size)

    def look(self) -> Iterator[Batch]:
        return iterate_ahead(self._data.look(), self._max_queue_size)

    def begin_pass(self, looks: bool = False) -> None:
        self._data.begin_pass(looks)

    def part(self, first: int, stop: int) -> Iterator[Batch] | None:
        found = self._data.part(first, stop)
        return None if found is None else iterate_ahead(found, self._max_queue_size)

    def on_epoch_end(self) -> None:
        self._data.on_epoch_end()

    def skip_passes(self, count: int) -> None:
        self._data.skip_passes(count)


class PyDatasetData(Data):
    """An object with ``__len__`` and ``__getitem__`` that gives whole batches."""

    ends_by_count = True

    def __init__(self, source: PyDataset | Batches, shuffle: bool | str = False, weigh: Weigh | None = None) -> None:
        self.source = source
        self.shuffle = shuffle
        self.draws_order = isinstance(source, Transformations) and source.draws_order
        self.weigh = weigh
        self._has_begun = False  # a pass that was looked at, and has not ended

    @property
    def batches(self) -> int | None:  # pyrefly: ignore[bad-override] - counted in each epoch
        count = self.source.num_batches if isinstance(self.source, PyDataset) else len(self.source)
        return None if count is None else int(count)

    def is_endless(self) -> bool:
        return self.batches is None

    def epoch(self) -> Iterator[Batch]:
        self.begin_pass()
        count = 2**62 if self.batches is None else self.batches
        is_shuffled = self.shuffle and self.batches is not None
        return self._in_order(map(int, _permutation(count)) if is_shuffled else range(count))

    def look(self) -> Iterator[Batch]:
        batches = self.epoch()
        self._has_begun = True
        return batches

    def begin_pass(self, looks: bool = False) -> None:
        if not self._has_begun:
            _call_hook(self.source, "on_epoch_begin")
        self._has_begun = looks

    def part(self, first: int, stop: int) -> Iterator[Batch] | None:
        return None if self.shuffle or self.draws_order or self.batches is None else self._in_order(range(first, stop))

    def _in_order(self, order: Iterable[int]) -> Iterator[Batch]:
        if not isinstance(self.source, PyDataset) or not self.source.workers:
            return (self._batch(index) for index in order)
        calls = (functools.partial(self._batch, index) for index in order)
        return in_order(calls, self.source.workers, max(self.source.max_queue_size, 1))

    def _batch(self, index: int) -> Batch:
        return _weighed_batch(self.source[index], self.weigh)

    def on_epoch_end(self) -> None:
        self._has_begun = False
        _call_hook(self.source, "on_epoch_end")

    def skip_passes(self, count: int) -> None:
        for _ in range(count):  # they may shuffle
            self.begin_pass()
            self.on_epoch_end()


def _call_hook(source: object, name: str) -> None:
    hook = getattr(source, name, None)
    if hook is not None:
        hook()


def _weighed_batch(item: object, weigh: Weigh | None) -> Batch:
    x, y, sample_weight = unpack_x_y_sample_weight(item)
    if weigh is not None:
        y = convert_structure(y, "y")
        sample_weight = weigh(y, sample_weight)
    return batch_of(x, y, sample_weight)


def as_data(
    x: Any,
    y: Rows | None = None,
    sample_weight: Rows | None = None,
    *,
    batch_size: int | None = None,
    shuffle: bool | str = False,
    class_weight: Mapping[int, float] | None = None,
    labels: LabelForm = "guess",
) -> Data:
    """Return a source of batches for whatever `fit` accepts as x, y and sample_weight.

    Raises:
        ValueError, TypeError: the arguments contradict each other, or x is nothing that gives batches.
    """
    if isinstance(x, Data):
        return x
    if is_array_like(x, y):
        parts = convert_structure(x, "x"), convert_structure(y, "y"), convert_structure(sample_weight, "sample_weight")
        if class_weight:
            parts = parts[0], parts[1], _combine_weights(parts[1], parts[2], class_weight, labels)
        return ArrayData(*parts, batch_size=32 if batch_size is None else batch_size, shuffle=shuffle)
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ValueError(f"{name} must not be given when x is a {type(x).__name__}: its batches hold {name} too.")
    if batch_size is not None:
        what = f"batch_size={batch_size} has no effect, as x is a {type(x).__name__}, which makes its own batches."
        warnings.warn(what, stacklevel=user_stacklevel())
    if isinstance(x, Prefetch):
        made = as_data(x.source, shuffle=shuffle, class_weight=class_weight, labels=labels)
        return PrefetchedData(made, x.max_queue_size)
    weigh = functools.partial(_combine_weights, class_weight=class_weight, labels=labels) if class_weight else None
    is_text = isinstance(x, (str, bytes))  # such as a path; its characters are no batches
    is_indexed = hasattr(x, "__getitem__") and hasattr(x, "__len__") and not isinstance(x, list)
    if isinstance(x, PyDataset) or (is_indexed and not is_text):
        has_own_order = isinstance(x, Transformations)  # which says by itself whether it draws one
        return PyDatasetData(x, shuffle and not has_own_order, weigh)
    if isinstance(x, Iterable) and not is_text:
        return IterableData(x, weigh)
    raise TypeError(
        f"x is of type {type(x).__name__}. Expected arrays (or lists or dicts of arrays), a generator or iterable of "
        "batches, or a PyDataset."
    )


def is_array_like(x: object, y: object = None) -> bool:
    """Test whether `x` is an array, rows as a list, or a structure of arrays - rather than a source of batches."""
    if isinstance(x, PyDataset):
        return False
    if hasattr(x, "__array__") or isinstance(x, Mapping) or is_sparse_matrix(x):
        return True
    if isinstance(x, list) and y is None and x and all(isinstance(item, tuple) for item in x):
        return not any(_is_structure(item) for item in x)  # a list of (x, y) batches
    return isinstance(x, (list, tuple))


def _combine_weights(
    y: Rows | None, sample_weight: Rows | None, class_weight: Mapping[int, float], labels: LabelForm
) -> Array:
    if sample_weight is not None:
        raise ValueError("class_weight and sample_weight can't be given at the same time; multiply them yourself.")
    return class_weights_to_sample_weights(y, class_weight, labels)
