"""Transformations of datasets, with the names and argument orders of ``tf.data.Dataset``."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...engine.common.names_elsewhere import DATASETS, ExplainsNames
from ...engine.common.nest import flatten, map_structure
from ...engine.graph import eagerly
from ...engine.graph.tensor import NoValueError
from ...engine.graph.value import Value
from ...engine.ops.arrays.constants import constant
from ...engine.ops.base import as_array
from ...engine.ops.random.keys import drawn_entropy
from ...engine.session.function import HostFunction
from ..structures import Array
from .padding import padded_rows

if TYPE_CHECKING:
    from typing import TypeVar

    from ...engine.common.nest import Nest
    from ...engine.common.outputs import Result
    from ...engine.ops.base import TensorLike
    from ..structures import Arrays, ShapeLike
    from .element_dataset import ElementDataset

    Part = TypeVar("Part")

UNKNOWN_CARDINALITY = -2


class Transformations(ABC, ExplainsNames, elsewhere=DATASETS):
    """Add the transformations of ``tf.data.Dataset`` to a class with `as_numpy_iterator` and `cardinality`.

    Elements are tensors, or tuples, dicts and lists of tensors. Each method returns a new dataset, and a pass over
    that one begins a pass over this one.

    Attributes:
        draws_order: whether each process draws the order of a pass by itself, so that batches of one number may have
            other rows in another process.
        batch_rows: the number of rows of the elements, of a dataset that `batch` made; None otherwise.
    """

    draws_order: bool = False
    batch_rows: int | None = None

    @abstractmethod
    def as_numpy_iterator(self) -> Iterator[Any]:
        """Begin a pass over the elements, as NumPy arrays."""

    @abstractmethod
    def cardinality(self) -> int:
        """Return the number of elements; -2 if it is not known."""

    @abstractmethod
    def _derived(
        self, elements: Callable[[], Iterator[object]], count: int | None = None, draws_order: bool = False
    ) -> ElementDataset:
        """Make a dataset from this one; `draws_order`: it draws an order besides."""

    @property
    def _known(self) -> int | None:
        count = self.cardinality()
        return None if count == UNKNOWN_CARDINALITY else count

    def __iter__(self) -> Iterator[Any]:
        return (map_structure(_as_tensor, item) for item in self.as_numpy_iterator())

    # Whole datasets ---------------------------------------------------------------------------------------------------

    def apply(self, transformation_func: Callable[[Any], Result]) -> Result:
        """Return ``transformation_func(self)``."""
        return transformation_func(self)

    def get_single_element(self, name: str | None = None) -> Any:
        """Return the only element.

        Raises:
            ValueError: there is none, or more than one.
        """
        first = list(islice(self, 2))
        if len(first) != 1:
            raise ValueError(
                f"get_single_element: the dataset has {'no element' if not first else 'several elements'}."
            )
        return first[0]

    def reduce(self, initial_state: Arrays, reduce_func: Callable[..., object], name: str | None = None) -> Any:
        """Return the last state: ``reduce_func(state, element)``, of ops, gives the state that follows."""
        step = HostFunction(reduce_func)
        state: object = arrays_of(initial_state)
        for item in self.as_numpy_iterator():
            state = step(state, item)
        return state

    def enumerate(self, start: int = 0, name: str | None = None) -> ElementDataset:
        """Make pairs of a number, counted from `start`, and an element."""
        return self._derived(
            lambda: ((np.int64(n), x) for n, x in builtins.enumerate(self.as_numpy_iterator(), start)), self._known
        )

    def concatenate(self, dataset: Transformations, name: str | None = None) -> ElementDataset:
        """Append the elements of another dataset."""
        first, second = self._known, dataset._known

        def elements() -> Iterator[object]:
            yield from self.as_numpy_iterator()
            yield from dataset.as_numpy_iterator()

        count = None if first is None or second is None else first + second
        return self._derived(elements, count, dataset.draws_order)

    def repeat(self, count: int | None = None, name: str | None = None) -> ElementDataset:
        """Repeat the elements `count` times; without end for None and -1."""
        forever = count is None or count < 0

        def elements() -> Iterator[object]:
            done = 0
            while forever or done < cast(int, count):
                is_empty = True
                for item in self.as_numpy_iterator():
                    is_empty = False
                    yield item
                if is_empty:
                    return  # no pass will give one
                done += 1

        known = self._known
        return self._derived(elements, None if forever or known is None else count * known)

    # Elements one by one ----------------------------------------------------------------------------------------------

    def filter(self, predicate: Callable[..., object], name: str | None = None) -> ElementDataset:
        """Keep the elements for which `predicate`, of ops, is true."""
        test = on_elements(predicate)
        return self._derived(lambda: (item for item in self.as_numpy_iterator() if test(item)))

    def take_while(self, predicate: Callable[..., object], name: str | None = None) -> ElementDataset:
        """Keep the elements before the first for which `predicate`, of ops, is false."""
        test = on_elements(predicate)
        return self._derived(lambda: takewhile(test, self.as_numpy_iterator()))

    def scan(
        self, initial_state: Arrays, scan_func: Callable[..., tuple[object, object]], name: str | None = None
    ) -> ElementDataset:
        """Map by a function that carries a state: ``scan_func(state, element)``, of ops, gives (state, element)."""
        step = eagerly()(HostFunction(scan_func))

        def elements() -> Iterator[object]:
            state: object = arrays_of(initial_state)
            for item in self.as_numpy_iterator():
                state, made = step(state, item)
                yield map_structure(_as_numpy, made)

        return self._derived(elements, self._known)

    def shard(self, num_shards: int, index: int, name: str | None = None) -> ElementDataset:
        """Keep each `num_shards`-th element, from element `index` on.

        Raises:
            ValueError: there is no shard of that index.
        """
        if not 0 <= index < num_shards:
            raise ValueError(
                f"shard: index must be from 0 to {num_shards - 1} for num_shards={num_shards}, got {index}."
            )
        known = self._known
        count = None if known is None else len(range(index, known, num_shards))
        return self._derived(lambda: islice(self.as_numpy_iterator(), index, None, num_shards), count)

    def unique(self, name: str | None = None) -> ElementDataset:
        """Keep the first of equal elements."""

        def elements() -> Iterator[object]:
            seen: set[Hashable] = set()
            for item in self.as_numpy_iterator():
                key = tuple(map(_content, flatten(item)))
                if key not in seen:
                    seen.add(key)
                    yield item

        return self._derived(elements)

    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = True,
        name: str | None = None,
    ) -> ElementDataset:
        """Draw each element from the next `buffer_size` that are left.

        Args:
            buffer_size: the number of elements to draw from; the number of all gives each order the same chance.
            seed: of the orders; by default from the generator that `utils.set_random_seed` seeds.
            reshuffle_each_iteration: draw a new order for each pass; None means True. False keeps the parts apart into
                which `take` and `skip` divide a shuffled dataset.
            name: accepted for TensorFlow's sake.

        Raises:
            ValueError: the buffer holds no element.
        """
        if buffer_size < 1:
            raise ValueError(f"shuffle: buffer_size must be at least 1, got {buffer_size}.")
        entropy = drawn_entropy() if seed is None else seed
        kept = np.random.default_rng(entropy)
        is_new = reshuffle_each_iteration is None or reshuffle_each_iteration

        def elements() -> Iterator[object]:
            random = kept if is_new else np.random.default_rng(entropy)
            source = self.as_numpy_iterator()
            buffer = list(islice(source, buffer_size))
            while buffer:
                place = int(random.integers(len(buffer)))
                yield buffer[place]
                buffer[place : place + 1] = islice(source, 1)

        return self._derived(elements, self._known, is_new or seed is None)

    # Datasets of elements ---------------------------------------------------------------------------------------------

    def flat_map(self, map_func: Callable[..., Transformations], name: str | None = None) -> ElementDataset:
        """Join the datasets that `map_func` gives for the elements.

        Args:
            map_func: a Python function that is called with each element, of a tuple with its parts.
            name: accepted for TensorFlow's sake.
        """
        return self._derived(
            lambda: (item for element in self.as_numpy_iterator() for item in _pass(map_func, element))
        )

    def interleave(
        self,
        map_func: Callable[..., Transformations],
        cycle_length: int | None = None,
        block_length: int = 1,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> ElementDataset:
        """Take elements in turn from the datasets that `map_func` gives for the elements.

        Args:
            map_func: a Python function that is called with each element, of a tuple with its parts.
            cycle_length: the number of datasets that are open at once; 16 if None or negative.
            block_length: the number of elements to take from one before the next.
            num_parallel_calls: accepted for TensorFlow's sake, as `deterministic` and `name`.
        """
        length = 16 if cycle_length is None or cycle_length < 0 else cycle_length
        if length < 1 or block_length < 1:
            raise ValueError(
                f"interleave: cycle_length and block_length must be at least 1, got {cycle_length} and {block_length}."
            )

        def elements() -> Iterator[object]:
            source = self.as_numpy_iterator()
            opened = [_pass(map_func, element) for element in islice(source, length)]
            while opened:
                place = 0
                while place < len(opened):
                    block = list(islice(opened[place], block_length))
                    yield from block
                    if len(block) == block_length:
                        place += 1
                        continue
                    following = [_pass(map_func, element) for element in islice(source, 1)]
                    opened[place : place + 1] = following
                    place += len(following)

        return self._derived(elements)

    def window(
        self,
        size: int,
        shift: int | None = None,
        stride: int = 1,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> ElementDataset:
        """Make windows: datasets of `size` elements, `stride` apart; each begins `shift` (`size`) after the one before.

        If elements are structures, a window is a structure with a dataset for each array.

        >>> from anabranch import tf
        >>> windows = tf.data.Dataset.range(5).window(3, shift=1, drop_remainder=True)
        >>> [w.tolist() for w in windows.flat_map(lambda window: window.batch(3))]
        [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        """
        step = size if shift is None else shift
        if size < 1 or step < 1 or stride < 1:
            raise ValueError(f"window: size, shift and stride must be at least 1, got {size}, {step} and {stride}.")

        def elements() -> Iterator[object]:
            source = self.as_numpy_iterator()
            span = (size - 1) * stride + 1
            buffer: list[object] = []
            while True:
                buffer.extend(islice(source, span - len(buffer)))
                rows = buffer[::stride]
                if not rows or (drop_remainder and len(rows) < size):
                    return
                yield map_structure(lambda *parts: self._derived(parts.__iter__, len(parts)), *rows)
                for _ in islice(source, max(step - len(buffer), 0)):
                    pass
                del buffer[:step]

        return self._derived(elements)

    def unbatch(self, name: str | None = None) -> ElementDataset:
        """Make an element of each row of the elements."""
        return self._derived(
            lambda: (
                map_structure(lambda array, row=row: array[row], batch)
                for batch in self.as_numpy_iterator()
                for row in range(len(flatten(batch)[0]))
            )
        )

    # Batches ----------------------------------------------------------------------------------------------------------

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> ElementDataset:
        """Stack `batch_size` elements into one; the last has those that are left, or is dropped.

        Raises:
            ValueError: the batch size is not positive, or elements of a batch have different shapes.
        """
        return self._batched("batch", batch_size, drop_remainder, lambda rows: map_structure(_stacked, *rows))

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Nest[ShapeLike] | None = None,
        padding_values: Nest[TensorLike | None] | None = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> ElementDataset:
        """Stack `batch_size` elements, whose axes are padded at their end to one size.

        Args:
            batch_size: the number of elements in a batch.
            padded_shapes: the sizes after padding, in the structure of an element; None, the default, for an axis: the
                largest in the batch.
            padding_values: a number or string, or one for each array of an element; 0 and "" by default.
            drop_remainder: drop a last batch that is not full.
            name: accepted for TensorFlow's sake.

        Raises:
            ValueError: an element is larger than its padded shape, or has another number of axes.
            TypeError: an array can't hold the padding value, as integers can't hold 0.5.

        >>> from anabranch import tf
        >>> ragged = tf.data.Dataset.range(1, 4).map(lambda n: tf.fill((n,), n))
        >>> [batch.tolist() for batch in ragged.padded_batch(3)]
        [[[1, 0, 0], [2, 2, 0], [3, 3, 3]]]
        """

        def stack(rows: Sequence[object]) -> object:
            return padded_rows(rows, padded_shapes, padding_values)

        return self._batched("padded_batch", batch_size, drop_remainder, stack)

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., TensorLike],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Nest[ShapeLike] | None = None,
        padding_values: Nest[TensorLike | None] | None = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> ElementDataset:
        """Make padded batches of elements of like lengths.

        Args:
            element_length_func: gives the length of an element, of a tuple from its parts.
            bucket_boundaries: the upper bounds of the buckets' lengths, ascending; a bucket's bound is not in it.
            bucket_batch_sizes: the batch size of each bucket, one more than there are bounds.
            padded_shapes: as in `padded_batch`.
            padding_values: as in `padded_batch`.
            pad_to_bucket_boundary: pad axes without a size to the longest length of the bucket, not of the batch.
            no_padding: stack elements as they are.
            drop_remainder: drop batches that are not full at the end.
            name: accepted for TensorFlow's sake.

        Raises:
            ValueError: the numbers of bounds and batch sizes do not fit; with `pad_to_bucket_boundary`, an element is
                too long for the last bound.
        """
        bounds = list(bucket_boundaries)
        if len(bucket_batch_sizes) != len(bounds) + 1 or bounds != sorted(set(bounds)):
            raise ValueError(
                "bucket_by_sequence_length: bucket_boundaries must ascend, and bucket_batch_sizes must have one entry "
                f"more; got {bounds} and {list(bucket_batch_sizes)}."
            )

        def stack(rows: Sequence[object], bucket: int) -> object:
            if no_padding:
                return map_structure(_stacked, *rows)
            if pad_to_bucket_boundary and bucket == len(bounds):
                raise ValueError(
                    "bucket_by_sequence_length: pad_to_bucket_boundary needs elements shorter than the last bound, "
                    f"{bounds[-1] if bounds else 'of which there is none'}."
                )
            longest = bounds[bucket] - 1 if pad_to_bucket_boundary else None
            return padded_rows(rows, padded_shapes, padding_values, longest)

        def elements() -> Iterator[object]:
            buckets: list[list[object]] = [[] for _ in bucket_batch_sizes]
            for item in self.as_numpy_iterator():
                length = int(_called(element_length_func, item))
                bucket = int(np.searchsorted(bounds, length, side="right"))
                buckets[bucket].append(item)
                if len(buckets[bucket]) == bucket_batch_sizes[bucket]:
                    yield stack(buckets[bucket], bucket)
                    buckets[bucket] = []
            if not drop_remainder:
                yield from (stack(rows, bucket) for bucket, rows in builtins.enumerate(buckets) if rows)

        return self._derived(elements)

    def rebatch(self, batch_size: int, drop_remainder: bool = False, name: str | None = None) -> ElementDataset:
        """Change the number of rows of batches."""
        return self.unbatch().batch(batch_size, drop_remainder)

    def _batched(
        self, method: str, batch_size: int, drop_remainder: bool, stack: Callable[[list[object]], object]
    ) -> ElementDataset:
        if batch_size < 1:
            raise ValueError(f"{method}: batch_size must be at least 1, got {batch_size}.")
        known = self._known
        count = None if known is None else known // batch_size if drop_remainder else -(-known // batch_size)

        def elements() -> Iterator[object]:
            source = self.as_numpy_iterator()
            while rows := list(islice(source, batch_size)):
                if len(rows) < batch_size and drop_remainder:
                    return
                yield stack(rows)

        made = self._derived(elements, count)
        made.batch_rows = batch_size
        return made


def arrays_of(structure: object) -> Any:
    """Return tuples and dicts with arrays in them; a list is an array, as in TensorFlow."""
    if isinstance(structure, tuple):
        return tuple(arrays_of(part) for part in cast(tuple[Any, ...], structure))
    if isinstance(structure, dict):
        return {name: arrays_of(part) for name, part in cast(dict[str, Any], structure).items()}
    return as_array(structure)


def owned_arrays_of(structure: object) -> Any:
    """Return tuples and dicts as `arrays_of`, with read-only arrays, which their giver does not change either.

    Arrays that can be written are copied. So a later change of an array does not change the dataset, and elements,
    which are parts of the arrays, can't be changed by those who iterate: as in TensorFlow.
    """
    if isinstance(structure, tuple):
        return tuple(owned_arrays_of(part) for part in cast(tuple[Any, ...], structure))
    if isinstance(structure, dict):
        return {name: owned_arrays_of(part) for name, part in cast(dict[str, Any], structure).items()}
    array = as_array(structure)
    if not isinstance(array, np.ndarray):
        return array  # a scalar
    is_fresh = isinstance(structure, (list, Value))  # a list's array is new, a value's never changes
    kept = (array if is_fresh or not array.flags.writeable else array.copy()).view()
    kept.setflags(write=False)
    return kept


def read_only(part: Part) -> Part:
    """Return an array that nobody can change any more; others than arrays as they are."""
    if isinstance(part, np.ndarray):
        part.setflags(write=False)
    return part


def _as_numpy(part: object) -> object:
    """Return the array of a value; ragged tensors and datasets as they are."""
    return as_array(np.asarray(part)) if isinstance(part, Value) else part


def _as_tensor(part: object) -> object:
    return part if isinstance(part, Transformations) else constant(part)  # a window is a dataset


def on_elements(function: Callable[..., object]) -> Callable[[object], object]:
    """Trace `function`, of ops, for elements: of a tuple it gets the parts as arguments. It returns arrays.

    A function that takes an element for a number, as in ``if x > 0``, runs at once, element by element. So does any
    where a graph is being built: a pass over a dataset in a function is made by Python.
    """
    traced, can_trace = eagerly()(HostFunction(function)), True

    @eagerly()
    def at_once(item: object) -> object:
        return map_structure(_as_array, _called(function, map_structure(_as_tensor, item)))

    def apply(item: object) -> object:
        nonlocal can_trace
        if can_trace:
            try:
                return map_structure(_as_numpy, _called(traced, item))
            except NoValueError:
                can_trace = False
        return at_once(item)

    return apply


def _as_array(part: object) -> object:
    """Convert a part as `_as_numpy` does, but for results of Python: numbers become arrays, too."""
    return part if isinstance(part, Transformations) else as_array(part)


def _called(function: Callable[..., object], item: object) -> Any:
    return function(*item) if isinstance(item, tuple) else function(item)


def _content(part: object) -> Hashable:
    """Return what equal arrays have in common."""
    array = np.asarray(part)
    is_text = array.dtype.kind in ("O", "T", "U")  # whose memory refers to the characters
    return array.shape, str(array.dtype), tuple(array.ravel().tolist()) if is_text else array.tobytes()


def _pass(function: Callable[..., Transformations], item: object) -> Iterator[object]:
    return _called(function, item).as_numpy_iterator()


def _stacked(*parts: Array) -> Array:
    shapes = sorted({np.shape(part) for part in parts})
    if len(shapes) > 1:
        raise ValueError(
            f"A batch takes elements of one shape, got {', '.join(map(str, shapes))}. padded_batch pads them to one."
        )
    return read_only(np.stack(parts))
