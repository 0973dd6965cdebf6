"""Order and running totals: sorting, the largest k, searching, counting, cumulative sums and products.

Sorting and top-k are differentiable through the positions from which their values come.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows, axes_from_front, same_axes_map
from ...graph.op import Cost
from ...graph.spec import Dim, Shape, shape_text
from ..base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    apply_multi,
    as_scalar_or_array,
    cast,
    convert_to_tensor,
    promote,
)
from ..math.running import axis_attribute, cumprod, cumsum
from ..run_time_shapes import reshape_like, runtime_shape, sum_like
from .axes import moveaxis
from .gathering import PutAlongAxis, take, take_along_axis
from .joining import concatenate
from .shaping import broadcast_to, dim, ravel, reshape, shape

_MANY = 8  # times k: from so many elements on the largest are parted from the others before they are sorted

# --- sorting --------------------------------------------------------------------------------------------------------


def _comparable(x: Any) -> Any:
    """Return the same elements in a dtype whose NaNs are sorted behind all numbers: those of bfloat16 are not."""
    return x.astype("float32") if x.dtype.name == "bfloat16" else x


@dataclass(frozen=True)
class ArgSort(Op):
    """The positions that sort the input along `axis`, as int32; equal elements keep their order, NaNs come last."""

    axis: int
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis",)
    never_fails: ClassVar[bool] = True
    serial_nanoseconds: ClassVar[float | None] = 50.0

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(inputs[0].shape, dtypes.int32)

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        return same_axes_map(rank, axes_from_front(self.axis, rank))

    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.argsort(_comparable(inputs[0]), axis=self.axis, kind="stable").astype(np.int32)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[3, 1, 2], [1, 1, 0]], "float32")
        yield Sample(cls(1), [x], np.array([[1, 2, 0], [2, 0, 1]], "int32"), (), label="rows")
        yield Sample(cls(0), [x], np.array([[1, 0, 1], [0, 1, 0]], "int32"), (), label="columns, ties")
        yield Sample(cls(1), [x[:, :0]], np.zeros((2, 0), "int32"), (), label="empty")
        yield Sample(cls(0), [np.array([np.nan, 1], "float32")], np.array([1, 0], "int32"), (), label="NaN")


@dataclass(frozen=True)
class Sort(Op):
    """The elements in ascending order along `axis`; NaNs come last."""

    axis: int
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis",)
    never_fails: ClassVar[bool] = True
    cost: ClassVar[Cost] = Cost.DEAR_ELEMENTS
    serial_nanoseconds: ClassVar[float | None] = 10.0

    def infer(self, *inputs: Any) -> TensorSpec:
        return inputs[0]

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        return same_axes_map(rank, axes_from_front(self.axis, rank))

    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.sort(_comparable(inputs[0]), axis=self.axis).astype(inputs[0].dtype, copy=False)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        ranks = apply(ArgSort(self.axis), apply(ArgSort(self.axis), node.inputs[0]))  # where each element went
        return (take_along_axis(dy, ranks, axis=self.axis),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.random.default_rng(0).permutation(12).reshape(3, 4).astype("float32")
        yield Sample(cls(1), [x], np.sort(x, axis=1), (0,), label="rows")
        yield Sample(cls(0), [x], np.sort(x, axis=0), (0,), label="columns")
        yield Sample(cls(0), [x[:0]], x[:0], (0,), label="empty")
        yield Sample(cls(0), [np.array([np.nan, 1], "float32")], np.array([1, np.nan], "float32"), (), label="NaN")


def _descending(xp: Any, x: Any) -> Any:
    """Return int32 positions in descending order along the last axis; of equal elements the first, NaNs before all."""
    # Sorted backwards, so that among equal elements the first one comes last and is the first one from the end.
    order = xp.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    return (x.shape[-1] - 1 - order).astype(np.int32)


@dataclass(frozen=True)
class TopK(Op):
    """The `k` largest elements of the last axis in descending order, and their positions; of equal ones the first.

    NaNs are larger than all numbers.
    """

    k: int
    never_fails: ClassVar[bool] = True
    last_axes: ClassVar[int | tuple[int, ...] | None] = 1
    serial_nanoseconds: ClassVar[float | None] = 50.0

    def infer(self, *inputs: Any) -> tuple[TensorSpec, TensorSpec]:
        shape: Shape = inputs[0].shape
        if shape is None:
            return TensorSpec(None, inputs[0].dtype), TensorSpec(None, dtypes.int32)
        if not shape:
            raise ValueError("top_k: the input must have at least one axis; got a scalar.")
        if shape[-1] is not None and shape[-1] < self.k:
            raise ValueError(
                f"top_k: k={self.k} is more than the last axis of the input holds; its shape is {shape_text(shape)}."
            )
        found = (*shape[:-1], self.k)
        return TensorSpec(found, inputs[0].dtype), TensorSpec(found, dtypes.int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        if x.shape[-1] < self.k:
            raise ValueError(f"top_k: k={self.k} is more than the last axis of the input of shape {x.shape} holds.")
        places = self._places(xp, _comparable(x))
        return xp.take_along_axis(x, places, axis=-1), places

    def _places(self, xp: Any, x: Any) -> Any:
        if self.k == 1:
            return xp.argmax(x, axis=-1)[..., None].astype(np.int32)
        found = self._partitioned(xp, x) if 0 < _MANY * self.k <= x.shape[-1] else None
        return _descending(xp, x)[..., : self.k] if found is None else found

    def _partitioned(self, xp: Any, x: Any) -> Any:
        """Find the largest without sorting all. None where others equal the last of these: then the first count."""
        chosen = xp.sort(xp.argpartition(x, x.shape[-1] - self.k, axis=-1)[..., x.shape[-1] - self.k :], axis=-1)
        values = xp.take_along_axis(x, chosen, axis=-1)
        if xp.any(xp.sum(x >= xp.min(values, axis=-1, keepdims=True), axis=-1) != self.k):
            return None
        return xp.take_along_axis(chosen, _descending(xp, values), axis=-1).astype(np.int32)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        dy = cotangents[0]
        if dy is None:
            return (None,)
        (x,) = node.inputs
        return (apply(PutAlongAxis(-1, x.shape), dy, node.outputs[1], runtime_shape(x)),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1, 3, 2, 3], [5, 0, 5, 5]], "float32")
        yield cls._sample(3, x, [[1, 3, 2], [0, 2, 3]], "ties")
        yield cls._sample(0, x, np.zeros((2, 0)), "none")
        yield cls._sample(1, x[0], [1], "vector")
        yield cls._sample(2, x[:0], np.zeros((0, 2)), "empty")
        yield cls._sample(3, np.array([1, np.nan, 2, np.nan, 3], "float32"), [1, 3, 4], "NaN")
        yield cls._sample(2, np.tile(x, (1, 10)), [[1, 3], [0, 2]], "ties in long rows")
        different = np.random.default_rng(0).permutation(12).reshape(3, 4).astype("float32")
        yield cls._sample(2, different, np.argsort(-different, axis=1)[:, :2], "different", (0,))
        yield cls._sample(2, np.arange(50.0) % 49, [48, 47], "a long row")

    @classmethod
    def _sample(cls, k: int, x: Any, places: Any, label: str, differentiable: tuple[int, ...] = ()) -> Sample:
        found = np.asarray(places, "int32")
        return Sample(cls(k), [x], (np.take_along_axis(x, found, axis=-1), found), differentiable, label=label)

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: top_k([1.0, 2.0], 3), ValueError, "k=3 is more than", "k too large")
        yield ErrorSample(lambda: top_k(1.0, 1), ValueError, "at least one axis", "scalar")
        yield ErrorSample(lambda: top_k([1.0], -1), ValueError, "k=-1", "negative k")


def sort(x: TensorLike, axis: int | None = -1) -> Tensor:
    """Return `x` in ascending order along `axis` (None: flattened); NaNs come last.

    >>> import anabranch as ab
    >>> ab.ops.sort([3, 1, 2])
    Tensor([1, 2, 3], dtype=int32)
    """
    tensor = convert_to_tensor(x)
    if axis is None:
        return apply(Sort(0), ravel(tensor))
    return apply(Sort(axis_attribute(axis, tensor.ndim)), tensor)


def argsort(x: TensorLike, axis: int | None = -1) -> Tensor:
    """Return the int32 positions that sort `x` along `axis` (None: flattened). Equal elements keep their order."""
    tensor = convert_to_tensor(x)
    if axis is None or tensor.ndim == 0:  # a scalar becomes a vector of one, as in NumPy
        axis, tensor = 0 if axis is None else axis, ravel(tensor)
    return apply(ArgSort(axis_attribute(axis, tensor.ndim)), tensor)


def argpartition(x: TensorLike, kth: int | Sequence[int], axis: int | None = -1) -> Tensor:
    """Return the int32 positions that bring element `kth` of `x` to its place in order, smaller ones before it.

    Args:
        x: a tensor.
        kth: the place, or places, in order. (As it is, all elements come in order.)
        axis: the axis to order; None flattens.

    Raises:
        ValueError: `kth` is outside the axis.
    """
    tensor = convert_to_tensor(x)
    if axis is None:
        tensor, axis = ravel(tensor), 0
    size = None if tensor.shape is None else tensor.shape[axis_attribute(axis, tensor.ndim)]
    for place in kth if isinstance(kth, Sequence) else (kth,):
        if size is not None and not -size <= place < size:
            raise ValueError(f"argpartition: kth={place} is outside of axis {axis}, which has {size} elements.")
    return argsort(tensor, axis)


def top_k(x: TensorLike, k: int, sorted: bool = True, is_stable: bool = True) -> tuple[Tensor, Tensor]:
    """Return the `k` largest elements of the last axis and their positions, as (values, int32 indices).

    Args:
        sorted: whether they must be in descending order; they are in any case.
        is_stable: whether equal elements must be in their order in `x`; they are in any case.

    Raises:
        ValueError: the last axis has fewer than `k` elements.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.top_k([1.0, 4.0, 2.0], k=2))
    (array([4., 2.], dtype=float32), array([1, 2], dtype=int32))
    """
    if k < 0:
        raise ValueError(f"top_k: k must not be negative; got k={k}.")
    tensor = convert_to_tensor(x)
    values, indices = apply_multi(TopK(int(k)), tensor)
    return values, indices


@dataclass(frozen=True)
class InTopK(Op):
    """A test whether fewer than `k` predictions of a row exceed that of the target (which must be finite)."""

    k: int

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(inputs[0].shape, dtypes.bool_)

    def run(self, xp: Any, *inputs: Any) -> Any:
        targets, predictions = inputs
        classes = predictions.shape[-1]
        inside = (targets >= 0) & (targets < classes)
        if classes == 0:
            return as_scalar_or_array(inside)
        index = xp.where(inside, targets, 0)[..., None]
        chosen = xp.take_along_axis(predictions, index, axis=-1)
        better = xp.sum(predictions > chosen, axis=-1)
        return as_scalar_or_array(inside & xp.isfinite(chosen[..., 0]) & (better < self.k))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        scores = np.array([[0.1, 0.5, 0.4], [0.3, 0.3, 0.3], [np.nan, 1, 2], [1, 2, 3]], "float32")
        targets = np.array([2, 2, 0, 7], "int32")
        yield Sample(cls(1), [targets, scores], np.array([False, True, False, False]), (), label="k=1")
        yield Sample(cls(2), [targets, scores], np.array([True, True, False, False]), (), label="k=2")
        yield Sample(cls(1), [np.int32(1), scores[0]], np.bool_(True), (), label="one row")
        yield Sample(cls(1), [targets[:0], scores[:0]], np.zeros(0, "bool"), (), label="empty")


def in_top_k(targets: TensorLike, predictions: TensorLike, k: int) -> Tensor:
    """Test whether each target is among the `k` classes of highest prediction. Ties at the boundary all count.

    Args:
        targets: class indices, [batch].
        predictions: scores, [batch, classes].
    """
    return apply(InTopK(int(k)), convert_to_tensor(targets), convert_to_tensor(predictions))


# --- searching and counting -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchSorted(Op):
    """The place at which each value would enter a sorted vector, on the ``left`` or ``right`` of equal elements."""

    side: str
    never_fails: ClassVar[bool] = True
    serial_nanoseconds: ClassVar[float | None] = 10.0

    def infer(self, *inputs: Any) -> TensorSpec:
        sequence, values = inputs
        if sequence.rank not in (None, 1):
            raise ValueError(
                f"searchsorted: the sorted sequence must be a vector; got shape {shape_text(sequence.shape)}."
            )
        return TensorSpec(values.shape, dtypes.int32)

    def axis_map(self, *inputs: Any) -> AxisMap:
        return tuple([(Follows(1, axis),) for axis in range(len(inputs[1].shape))])

    def run(self, xp: Any, *inputs: Any) -> Any:
        sequence, values = inputs
        return as_scalar_or_array(xp.searchsorted(sequence, values, side=self.side).astype(np.int32))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        edges = np.array([1, 2, 2, 5], "float32")
        values = np.array([[0, 2], [5, 9]], "float32")
        yield Sample(cls("left"), [edges, values], np.array([[0, 1], [3, 4]], "int32"), (), label="left")
        yield Sample(cls("right"), [edges, values], np.array([[0, 3], [4, 4]], "int32"), (), label="right")
        yield Sample(cls("left"), [edges, np.float32(3)], np.int32(3), (), label="0-d")
        yield Sample(cls("left"), [edges[:0], values[:0]], np.zeros((0, 2), "int32"), (), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: searchsorted([[1.0]], 1.0), ValueError, "must be a vector", "matrix")
        yield ErrorSample(lambda: searchsorted([1.0], 1.0, side="up"), ValueError, "'left' or 'right'", "side")


def searchsorted(sorted_sequence: TensorLike, values: TensorLike, side: str = "left") -> Tensor:
    """Find where `values` would be inserted into the sorted vector `sorted_sequence` to keep its order, as int32.

    Args:
        side: before (``"left"``) or behind (``"right"``) elements that are equal.

    Raises:
        ValueError: `sorted_sequence` is not a vector, or `side` is neither of the two.
    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right'; got {side!r}.")
    return apply(SearchSorted(side), *promote(sorted_sequence, values))


def digitize(x: TensorLike, bins: TensorLike) -> Tensor:
    """Return the bin of each element of `x`: how many of the sorted edges `bins` are not above it, as int32."""
    return searchsorted(bins, x, side="right")


def _has_small_integers(x: Any) -> bool:
    """Test whether elements and their positions fit into 32 bits."""
    if x.dtype.kind not in "iu" or not 0 < x.size < 1 << 31:
        return False
    return (x.dtype.itemsize < 4 or x.dtype == np.int32) or (int(x.min()) >= -1 << 31 and int(x.max()) < 1 << 31)


def _unique_integers(x: Any) -> tuple[Any, Any, Any]:
    """Find `UniquePositions` of a vector of small integers, in a quarter of the time of sorting positions."""
    packed = x.astype(np.int64) << 32
    packed |= np.arange(x.size, dtype=np.int64)
    packed.sort()
    places, values = packed.astype(np.int32), packed >> 32  # the lower half are the positions
    is_new = np.empty(x.size, bool)
    is_new[0] = True
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    starts = np.flatnonzero(is_new).astype(np.int32)
    inverse = np.empty(x.size, np.int32)
    inverse[places] = np.cumsum(is_new, dtype=np.int32) - np.int32(1)
    counts = np.diff(starts, append=np.int32(x.size))
    return places[starts], inverse, counts


@dataclass(frozen=True)
class UniquePositions(Op):
    """Outputs, for the parts of the input along axis 0: where each distinct one comes up first; for each part, which of
    these it is; and how often each comes up. In ascending (lexicographic) order, or in that in which they come up."""

    ascending: bool = True
    shape_from_values: ClassVar[bool] = True
    serial_nanoseconds: ClassVar[float | None] = 50.0

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        if x.rank == 0:
            raise ValueError(f"unique: expected at least one axis; got {x}.")
        size = None if x.shape is None else x.shape[0]
        found = TensorSpec((0 if size == 0 else None,), dtypes.int32)
        return found, TensorSpec((size,), dtypes.int32), found

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        if xp is np and self.ascending and x.ndim == 1 and _has_small_integers(x):
            return _unique_integers(x)
        rows = x if x.ndim == 1 else x.reshape(x.shape[0], math.prod(x.shape[1:]))
        axis = None if x.ndim == 1 else 0
        wanted = {"return_index": True, "return_inverse": True, "return_counts": True, "equal_nan": False}
        _, first, inverse, counts = xp.unique(rows, axis=axis, **wanted)
        inverse = inverse.reshape(-1)
        if not self.ascending:
            order = xp.argsort(first)
            rank = xp.empty_like(order)
            rank[order] = xp.arange(len(order))
            first, inverse, counts = first[order], rank[inverse], counts[order]
        return first.astype(np.int32), inverse.astype(np.int32), counts.astype(np.int32)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([3, 1, 3, 2, 1], "int32")
        want = (np.array([1, 3, 0], "int32"), np.array([2, 0, 2, 1, 0], "int32"), np.array([2, 1, 2], "int32"))
        yield Sample(cls(), [x], want, (), label="ints")
        yield Sample(cls(), [x.astype("float32")], want, (), label="floats")
        want = (np.array([0, 1, 3], "int32"), np.array([0, 1, 0, 2, 1], "int32"), np.array([2, 2, 1], "int32"))
        yield Sample(cls(False), [x], want, (), label="order of appearance")
        rows = np.array([[1, 0], [0, 1], [1, 0]], "int32")
        want = (np.array([1, 0], "int32"), np.array([1, 0, 1], "int32"), np.array([1, 2], "int32"))
        yield Sample(cls(), [rows], want, (), label="rows")
        yield Sample(cls(), [x[:0]], (x[:0], x[:0], x[:0]), (), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: unique([1, 2], axis=1), ValueError, "axis=1 is out of range", "axis")
        yield ErrorSample(lambda: unique([1, 2], size=-1), ValueError, "size must not be negative", "size")


def unique(
    x: TensorLike,
    sorted: bool = True,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """Return the distinct elements of `x`, or its distinct parts along an axis. NaNs all differ.

    Args:
        x: a tensor.
        sorted: whether they come in ascending (for parts: lexicographic) order, or in that in which they come up.
        return_index: also return where each one comes up first.
        return_inverse: also return, for each element or part, which of the distinct ones it is.
        return_counts: also return how often each one comes up.
        axis: whose parts are compared; None for the elements.
        size: return so many: the first ones, or with `fill_value` behind them (and with index 1 and count 0).
        fill_value: 0 by default.

    Returns:
        The values, or a tuple of them and of what else was asked for, as int32. Without `size`, how many there are is
        known at run time only. Gradients flow to where each value comes up first.

    Raises:
        ValueError: there is no such axis, or `size` is negative.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.unique([3, 1, 3], return_counts=True))
    (array([1, 3], dtype=int32), array([1, 2], dtype=int32))
    """
    if size is not None and size < 0:
        raise ValueError(f"unique: size must not be negative; got size={size}.")
    tensor = convert_to_tensor(x)
    items = ravel(tensor) if axis is None else moveaxis(tensor, axis_attribute(axis, tensor.ndim), 0)
    positions, inverse, counts = apply_multi(UniquePositions(sorted), items)
    picked = positions
    if size is not None:
        filler = broadcast_to(convert_to_tensor(fill_value or 0, items.dtype), [1, *shape(items)[1:]])
        picked, positions = _sized(positions, size, dim(items, 0)), _sized(positions, size, 1)
        counts, items = _sized(counts, size, 0), concatenate([items, filler])
    values = take(items, picked, axis=0)
    outputs = [values if axis is None else moveaxis(values, 0, axis)]
    outputs += [positions] if return_index else []
    outputs += [reshape_like(inverse, tensor) if axis is None else inverse] if return_inverse else []
    outputs += [counts] if return_counts else []
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _sized(values: Tensor, size: int, filler: Any) -> Tensor:
    """Return the first `size` of `values`, with `filler` behind them where there are fewer."""
    rest = broadcast_to(convert_to_tensor(filler, values.dtype), (size,))
    return reshape(concatenate([values, rest])[:size], (size,))


@dataclass(frozen=True)
class BinCount(Op):
    """A count of each non-negative integer in each row; inputs: the integers and, perhaps, weights to add up."""

    minlength: int

    def infer(self, *inputs: Any) -> TensorSpec:
        shape: Shape = inputs[0].shape
        dtype = inputs[1].dtype if len(inputs) == 2 else dtypes.int32
        if dtype.kind == "c":
            raise TypeError(f"bincount: weights must be real numbers; got {inputs[1]}.")
        if shape is None:
            return TensorSpec(None, dtype)
        if len(shape) not in (1, 2):
            raise ValueError(f"bincount: expected a vector or a matrix of integers; got shape {shape_text(shape)}.")
        bins: Dim = self.minlength if shape[-1] == 0 else None
        return TensorSpec((*shape[:-1], bins), dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, *weights = inputs
        if x.size and int(x.min()) < 0:
            raise ValueError(f"bincount: the values must not be negative; the smallest is {int(x.min())}.")
        bins = max(self.minlength, int(x.max()) + 1 if x.size else 0)
        rows = x.reshape(-1, x.shape[-1]) if x.size else x.reshape(math.prod(x.shape[:-1]), 0)
        offsets = xp.arange(len(rows), dtype="int64")[:, None] * bins
        places = (rows.astype("int64") + offsets).reshape(-1)
        counts = xp.bincount(places, *[weight.reshape(-1) for weight in weights], minlength=len(rows) * bins)
        return counts.reshape((*x.shape[:-1], bins)).astype(weights[0].dtype if weights else np.int32)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        if len(node.inputs) == 1:
            return (None,)
        assert dy is not None
        return None, sum_like(take_along_axis(dy, node.inputs[0], axis=-1), node.inputs[1])

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1, 1, 3], [0, 2, 2]], "int32")
        weights = np.array([[1, 2, 3], [4, 5, 6]], "float32")
        yield Sample(cls(0), [x[0]], np.array([0, 2, 0, 1], "int32"), (), label="vector")
        yield Sample(cls(5), [x], np.array([[0, 2, 0, 1, 0], [1, 0, 2, 0, 0]], "int32"), (), label="rows")
        want = np.array([[0, 3, 0, 3], [4, 0, 11, 0]], "float32")
        yield Sample(cls(0), [x, weights], want, (1,), label="weighted")
        yield Sample(cls(2), [x[0, :0]], np.zeros(2, "int32"), (), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: bincount([1.5]), TypeError, "integers", "floats")
        yield ErrorSample(lambda: bincount([1], sparse=True), ValueError, "not supported", "sparse")
        yield ErrorSample(lambda: bincount(3), ValueError, "vector or a matrix", "scalar")


def bincount(x: TensorLike, weights: TensorLike | None = None, minlength: int = 0, sparse: bool = False) -> Tensor:
    """Count how often each value 0, 1, 2, ... occurs in the integers `x`, or add up their weights.

    Args:
        x: non-negative integers, [n] or [batch, n] (counted row by row).
        weights: of the shape of `x`; bools count.
        minlength: the least number of bins.
        sparse: sparse results are not supported.

    Raises:
        TypeError: `x` does not hold integers.
        ValueError: `x` is neither a vector nor a matrix, or (at run time) holds a negative number; or `sparse` is true.
    """
    if sparse:
        raise ValueError("bincount(sparse=True): sparse tensors are not supported. Leave `sparse` out.")
    tensor = convert_to_tensor(x)
    if not dtypes.is_integer(tensor.dtype):
        raise TypeError(f"bincount counts integers; got dtype {tensor.dtype.name}.")
    if weights is None:
        return apply(BinCount(int(minlength)), tensor)
    summed = convert_to_tensor(weights)
    if summed.dtype == dtypes.bool_:
        summed = cast(summed, dtypes.int32)
    return apply(BinCount(int(minlength)), tensor, summed)


__all__ = [
    "argpartition",
    "argsort",
    "bincount",
    "cumprod",
    "cumsum",
    "digitize",
    "in_top_k",
    "searchsorted",
    "sort",
    "top_k",
    "unique",
]
