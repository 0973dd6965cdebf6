"""Segments: the rows of a tensor that have the same number, reduced to one row each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows, ResultSizes, SizesOfTensors
from ...graph.graph import Operation
from ...graph.op import ErrorSample, Op, Sample
from ...graph.spec import Dim, TensorSpec, shape_text, shapes_compatible
from ...graph.tensor import Tensor
from ..base import TensorLike, apply, as_floating, cast, convert_to_tensor
from ..left_out import LeavesOut
from ..math.comparison import equal, greater_equal, less, logical_and, logical_or, maximum, not_equal, where
from ..math.elementwise import is_real
from ..math.reduced import widened
from ..math.reduction import max as max_of
from ..math.running import LinearScan, Shift
from .axes import flip, moveaxis, roll
from .creation import arange, ones, ones_like, zeros_like
from .gathering import combine_rows, integers, take
from .joining import concatenate
from .shaping import constant_value, dim, expand_dims, ravel, reshape, shape, size
from .sorting import argsort

# --- reductions -----------------------------------------------------------------------------------------------------


def _inside(xp: Any, ids: Any, count: int) -> Any:
    """Return which ids name one of `count` segments, as bools; None if all do."""
    if not ids.size or (int(ids.min()) >= 0 and int(ids.max()) < count):
        return None
    return (ids >= 0) & (ids < count)


def _check_lengths(rows: Any, ids: Any) -> None:
    if len(rows) != len(ids):
        raise ValueError(f"segments: each row needs one id; got {len(rows)} rows and {len(ids)} ids.")


@dataclass(frozen=True)
class _SegmentReduction(LeavesOut, Op):
    """Inputs: data [n, ...], ids [n], the number of segments. Rows whose id is outside of these are left out.

    Attributes:
        count: the number of segments, if it is known.
    """

    count: Dim
    ufunc: ClassVar[str] = ""

    def start(self, dtype: DType) -> Any:
        """Return the result for a segment without rows."""
        raise NotImplementedError

    def check_dtype(self, spec: TensorSpec) -> None:
        """Refuse what the reduction is not defined for."""
        if spec.dtype == dtypes.bool_:
            raise TypeError(f"{self.type_name} needs numbers, got {spec}. Cast it with ops.cast(data, 'int32').")

    def infer(self, *inputs: Any) -> TensorSpec:
        data, ids, _ = inputs
        self.check_dtype(data)
        if data.shape == () or ids.rank not in (None, 1):
            raise ValueError(f"{self.type_name} takes rows and a vector of their ids; got {data} and {ids}.")
        if data.shape is None:
            return TensorSpec(None, data.dtype)
        if ids.shape is not None and not shapes_compatible(data.shape[:1], ids.shape):
            raise ValueError(f"{self.type_name}: each row of the data, {data}, needs one id; got {ids}.")
        return TensorSpec((self.count, *data.shape[1:]), data.dtype)

    def ids_and_count(self, *inputs: Any) -> tuple[Any, int]:
        return inputs[1], int(inputs[2])

    def run(self, xp: Any, *inputs: Any) -> Any:
        data, ids, count = inputs
        _check_lengths(data, ids)
        row = data.shape[1:]
        out = xp.full((int(count), *row), self.start(data.dtype), dtypes.accumulator_of(data.dtype) or data.dtype)
        inside = _inside(xp, ids, int(count))
        if inside is not None:
            data, ids = data[inside], ids[inside]
        width = math.prod(row)
        # `bincount`, which adds up vectors as quickly, rounds large integers.
        combine_rows(
            xp, self.ufunc, out.reshape((int(count), width)), ids.astype(np.intp), data.reshape((len(ids), width))
        )
        return out.astype(data.dtype, copy=False)

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        x, ids, two = np.ones((3, 2), "float32"), np.zeros(2, "int32"), np.int32(2)
        data, few = TensorSpec((3, 2), dtypes.float32), TensorSpec((2,), dtypes.int32)
        scalar = TensorSpec((), dtypes.int32)
        yield ErrorSample(lambda: cls(2).run(np, x, ids, two), ValueError, "3 rows and 2 ids", "run")
        yield ErrorSample(lambda: cls(2).infer(data, few, scalar), ValueError, "needs one id", "lengths")
        yield ErrorSample(lambda: cls(2).infer(data, data, scalar), ValueError, "vector of their ids", "matrix")


def _cases() -> tuple[Any, Any, list[tuple[Any, Any, int, str]]]:
    """Return what the samples of all reductions have in common: data, ids and (data, ids, count, label)."""
    x = np.array([[1, 2], [3, 5], [-4, 6], [7, -8], [9, 10]], "float32")
    ids = np.array([2, 0, 2, -1, 5], "int32")
    cases = [
        (x, ids, 4, "rows, two dropped"),
        (x[:, 0], np.array([1, 1, 0, 1, 0], "int64"), 2, "vector"),
        (x[:0], ids[:0], 2, "empty"),
        (x[:1, None], ids[:1], 3, "one"),
    ]
    return x, ids, cases


def _reference(x: Any, ids: Any, count: int, reduce: Any, start: Any) -> Any:
    rows = [reduce(x[ids == k], axis=0) if (ids == k).any() else np.full(x.shape[1:], start) for k in range(count)]
    return np.array(rows, x.dtype)


@dataclass(frozen=True)
class SegmentSum(_SegmentReduction):
    """The sum of each segment's rows; 0 where there are none. Half precision is summed in float32."""

    ufunc: ClassVar[str] = "add"

    def start(self, dtype: DType) -> Any:
        return 0

    def result_sizes(self, node: Operation, sizes: SizesOfTensors) -> Sequence[ResultSizes] | None:
        data, _, count = node.inputs
        whole = sizes.of(data)
        return [None if whole is None else (sizes.named(count), *whole[1:])]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply(GatherSegments(), dy, node.inputs[1]), None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for x, ids, count, label in _cases()[2]:
            expected = _reference(x, ids, count, np.sum, 0)
            yield Sample(cls(count), [x, ids, np.int32(count)], expected, (0,), label=label)
        many, total = np.ones(5000, "float16"), np.array([5000], "float16")
        yield Sample(cls(1), [many, np.zeros(5000, "int32"), np.int32(1)], total, (), label="half precision")


@dataclass(frozen=True)
class GatherSegments(Op):
    """Inputs: one row for each segment [k, ...], ids [n]. Each id's row; zeros where the id names no segment."""

    def axis_map(self, *inputs: Any) -> AxisMap | None:
        rank, places = (len(spec.shape) for spec in inputs)
        return ((Follows(1, 0),), *[(Follows(0, axis),) for axis in range(1, rank)]) if places == 1 else None

    def infer(self, *inputs: Any) -> TensorSpec:
        rows, ids = inputs
        return TensorSpec(
            None if rows.shape is None else ((None,) if ids.shape is None else ids.shape) + rows.shape[1:], rows.dtype
        )

    def run(self, xp: Any, *inputs: Any) -> Any:
        rows, ids = inputs
        inside = _inside(xp, ids, len(rows))
        if inside is None:
            return rows[ids]
        out = xp.zeros((len(ids), *rows.shape[1:]), rows.dtype)
        out[inside] = rows[ids[inside]]
        return out

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        rows, ids = node.inputs
        count = dim(rows, 0)
        known = count if isinstance(count, int) else None
        return apply(SegmentSum(known), dy, ids, convert_to_tensor(count, "int32")), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x, ids, _ = _cases()
        expected = np.stack([x[2], x[0], x[2], x[0] * 0, x[0] * 0])
        yield Sample(cls(), [x[:3], ids], expected, (0,), label="rows, two outside")
        yield Sample(cls(), [x[:, 0], ids[:3]], x[[2, 0, 2], 0], (0,), label="vector")
        yield Sample(cls(), [x, ids[:0]], x[:0], (0,), label="empty")
        yield Sample(cls(), [x[:0], ids[:2]], np.zeros((2, 2), "float32"), (0,), label="of empty")


@dataclass(frozen=True)
class _SegmentExtremum(_SegmentReduction):
    """The gradient is split equally among the rows that attain the extremum, as TensorFlow does."""

    def check_dtype(self, spec: TensorSpec) -> None:
        if not (is_real(spec.dtype) or spec.dtype == dtypes.bool_):
            raise TypeError(f"{self.type_name} needs real numbers, got {spec}: complex ones have no order.")

    def start(self, dtype: DType) -> Any:
        largest = self.ufunc == "minimum"
        if dtype == dtypes.bool_:
            return largest
        if dtypes.is_floating(dtype):
            return math.inf if largest else -math.inf
        return np.iinfo(dtype).max if largest else np.iinfo(dtype).min

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        data, ids, count = node.inputs
        assert dy is not None
        hits = cast(equal(data, apply(GatherSegments(), node.outputs[0], ids)), dtypes.float32)
        ties = apply(SegmentSum(self.count), hits, ids, count)
        share = hits / maximum(apply(GatherSegments(), ties, ids), 1.0)
        return apply(GatherSegments(), dy, ids) * cast(share, dy.dtype), None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        reduce: Any = np.max if cls.ufunc == "maximum" else np.min
        for x, ids, count, label in _cases()[2]:
            expected = _reference(x, ids, count, reduce, cls(None).start(x.dtype))
            smooth = (0,) if np.isfinite(expected).all() else ()
            yield Sample(cls(count), [x, ids, np.int32(count)], expected, smooth, label=label)
        x, ids, _ = _cases()
        nan, all_in_one = np.array([1, np.nan, 2], "float32"), np.zeros(3, "int32")
        yield Sample(cls(1), [nan, all_in_one, np.int32(1)], np.array([np.nan], "float32"), (), label="NaN")
        ints, bools = x[:, 0].astype("int32"), x[:, 0] > 0
        for values, label in ((ints, "ints"), (bools, "bools")):
            expected = _reference(values, ids, 4, reduce, cls(None).start(values.dtype))
            yield Sample(cls(4), [values, ids, np.int32(4)], expected, (), label=label)

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield from super().error_samples()
        vector, ids = TensorSpec((2,), dtypes.as_dtype("complex64")), TensorSpec((2,), dtypes.int32)
        yield ErrorSample(lambda: cls(2).infer(vector, ids, ids), TypeError, "no order", "complex")


@dataclass(frozen=True)
class SegmentMax(_SegmentExtremum):
    """The maximum of each segment's rows; the lowest value of the dtype where there are none."""

    ufunc: ClassVar[str] = "maximum"


@dataclass(frozen=True)
class SegmentMin(_SegmentExtremum):
    """The minimum of each segment's rows; the highest value of the dtype where there are none."""

    ufunc: ClassVar[str] = "minimum"


@dataclass(frozen=True)
class SegmentProd(_SegmentReduction):
    """The product of each segment's rows; 1 where there are none. The gradient is exact where factors are 0."""

    ufunc: ClassVar[str] = "multiply"
    host_only: ClassVar[bool] = True  # CuPy's `at` adds, and finds minima and maxima

    def start(self, dtype: DType) -> Any:
        return 1

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply(GatherSegments(), dy, node.inputs[1]) * _product_of_others(*node.inputs), None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for x, ids, count, label in _cases()[2]:
            expected = _reference(x, ids, count, np.prod, 1)
            yield Sample(cls(count), [x / 4, ids, np.int32(count)], _scaled(expected, ids, count), (0,), label=label)
        zeros = np.array([[2, 0], [0, 3], [5, 0]], "float32")
        inputs = [zeros, np.zeros(3, "int32"), np.int32(1)]
        yield Sample(cls(1), inputs, np.zeros((1, 2), "float32"), (0,), label="zeros")


def _scaled(products: Any, ids: Any, count: int) -> Any:
    """Return products of rows, after each row was divided by 4."""
    powers = 0.25 ** np.bincount(ids[(ids >= 0) & (ids < count)], minlength=count)
    return (products * powers.reshape((-1,) + (1,) * (products.ndim - 1))).astype("float32")


def _product_of_others(data: Tensor, ids: Tensor, count: Tensor) -> Tensor:
    """Return, for each row, the product of all other rows of its segment: without division, so zeros are exact.

    The rows may have any order.

    In the order of the segments it is the running product from the left times the one from the right, both of which
    start again with each segment: linear recurrences. Rows are the last axis, so that what there is one of for each
    row broadcasts even where the rank is unknown.
    """
    order = argsort(ids)
    numbers = take(ids, order)
    first, last = run_starts(numbers), flip(run_starts(flip(numbers)))
    known = logical_and(greater_equal(numbers, 0), less(numbers, cast(count, numbers.dtype)))
    columns = moveaxis(take(data, order, axis=0), 0, -1)
    columns = where(known, columns, ones_like(columns))  # what is left out must not overflow
    one, zero = ones_like(columns), zeros_like(columns)
    left = apply(LinearScan(-1), where(first, zero, apply(Shift(-1), columns)), where(first, one, zero))
    shifted = apply(Shift(-1, reverse=True), columns)
    right = apply(LinearScan(-1, reverse=True), where(last, zero, shifted), where(last, one, zero))
    return take(moveaxis(left * right, -1, 0), argsort(order), axis=0)


def run_starts(x: Tensor) -> Tensor:
    """Test, for each element of a vector, whether it differs from the one before it; the first one does."""
    return logical_or(equal(arange(dim(x, 0)), 0), not_equal(x, roll(x, 1, 0)))


# --- public functions -----------------------------------------------------------------------------------------------


def _rows_and_ids(what: str, data: TensorLike, segment_ids: TensorLike) -> tuple[Tensor, Tensor]:
    """Return the data with one axis of rows, and a vector with the id of each.

    Raises:
        TypeError: the ids are not integers.
        ValueError: their shape is not how that of the data begins.
    """
    tensor, ids = convert_to_tensor(data), integers(segment_ids, what)
    ids = cast(ids, dtypes.int64) if ids.dtype.kind == "u" else ids  # so that -1 differs from the largest
    if ids.shape is None or len(ids.shape) == 1:
        return tensor, ids
    rank = len(ids.shape)
    if tensor.shape is not None and not shapes_compatible(tensor.shape[:rank], ids.shape):
        raise ValueError(
            f"{what}: the shape of the data must begin with that of the segment ids; got "
            f"{shape_text(tensor.shape)} and {shape_text(ids.shape)}."
        )
    return merge_axes(tensor, rank, size(ids)), ravel(ids)


def merge_axes(x: Tensor, rank: int, count: Any) -> Tensor:
    """Return `x` with its first `rank` axes, which have `count` elements, as one."""
    sizes = shape(x)
    if isinstance(sizes, Tensor):
        first = reshape(convert_to_tensor(count, "int32"), (1,))
        return reshape(x, concatenate([first, sizes[rank:]]))
    return reshape(x, (count, *sizes[rank:]))


def _reduced(
    what: str, op: type[_SegmentReduction], data: TensorLike, segment_ids: TensorLike, num_segments: Any
) -> Tensor:
    rows, ids = _rows_and_ids(what, data, segment_ids)
    count = max_of(ids, initial=-1) + 1 if num_segments is None else convert_to_tensor(num_segments)
    if not dtypes.is_integer(count.dtype) or count.shape not in (None, ()):
        raise TypeError(f"{what}: num_segments must be one integer or None, got {num_segments!r}.")
    known = constant_value(count)
    if known is not None and known < 0:
        raise ValueError(f"{what}: num_segments must not be negative, got {known}.")
    return apply(op(None if known is None else int(known)), rows, ids, cast(count, dtypes.int32))


def segment_sum(data: TensorLike, segment_ids: TensorLike, num_segments: Any = None, sorted: bool = False) -> Tensor:
    """Return the sum of the rows of each segment: row k of the result adds up the rows whose id is k.

    Args:
        data: a tensor [n, ...]; bools count as 0 and 1.
        segment_ids: integers [n]. They may have more axes, with which the shape of `data` begins (as TensorFlow's
            ``unsorted_segment_sum`` takes them). Rows whose id is negative or too large are left out.
        num_segments: how many segments there are, an int or a scalar tensor; None for one more than the largest id.
        sorted: a promise that the ids ascend. Nothing is gained by it here.

    Returns:
        A tensor [num_segments, ...]; segments without rows hold 0.

    Raises:
        TypeError: the ids or `num_segments` are not integers.
        ValueError: the shapes do not fit, or `num_segments` is negative.

    >>> import anabranch as ab
    >>> ab.ops.segment_sum([1.0, 2.0, 3.0], [0, 2, 0])
    Tensor([4., 0., 2.], dtype=float32)
    """
    return _reduced("segment_sum", SegmentSum, _as_numbers(data), segment_ids, num_segments)


def segment_prod(data: TensorLike, segment_ids: TensorLike, num_segments: Any = None, sorted: bool = False) -> Tensor:
    """Return the product of the rows of each segment; 1 for segments without rows. Arguments: see `segment_sum`.

    >>> import anabranch as ab
    >>> ab.ops.segment_prod([2, 3, 4], [0, 0, 2])
    Tensor([6, 1, 4], dtype=int32)
    """
    return _reduced("segment_prod", SegmentProd, _as_numbers(data), segment_ids, num_segments)


def segment_max(data: TensorLike, segment_ids: TensorLike, num_segments: Any = None, sorted: bool = False) -> Tensor:
    """Return the maximum of the rows of each segment. The arguments are those of `segment_sum`.

    Segments without rows hold the lowest value of the dtype, which is -inf for floats. The gradient is shared equally
    among the rows that attain the maximum.

    >>> import anabranch as ab
    >>> ab.ops.segment_max([1.0, 2.0, 3.0], [0, 0, 2])
    Tensor([  2., -inf,   3.], dtype=float32)
    """
    return _reduced("segment_max", SegmentMax, data, segment_ids, num_segments)


def segment_min(data: TensorLike, segment_ids: TensorLike, num_segments: Any = None, sorted: bool = False) -> Tensor:
    """Return the minimum of the rows of each segment; the highest value of the dtype (inf) for segments without rows.

    The arguments are those of `segment_sum`; the gradient is as that of `segment_max`.
    """
    return _reduced("segment_min", SegmentMin, data, segment_ids, num_segments)


def segment_mean(data: TensorLike, segment_ids: TensorLike, num_segments: Any = None) -> Tensor:
    """Return the mean of the rows of each segment, as TensorFlow does; 0 for segments without rows.

    The arguments are those of `segment_sum`; integers become float32.

    >>> import anabranch as ab
    >>> ab.ops.segment_mean([1.0, 2.0, 4.0], [0, 2, 0])
    Tensor([2.5, 0. , 2. ], dtype=float32)
    """
    rows, ids = _rows_and_ids("segment_mean", as_floating(data), segment_ids)
    wide = widened(rows)
    total = _reduced("segment_mean", SegmentSum, wide, ids, num_segments)
    counts = _reduced("segment_mean", SegmentSum, ones((dim(ids, 0),), total.dtype), ids, dim(total, 0))
    return cast(scale_rows(total, 1 / maximum(counts, 1)), rows.dtype)


def scale_rows(x: Tensor, factors: Tensor) -> Tensor:
    """Return each row of `x` [n, ...] times its factor [n]."""
    if x.shape is None:
        return moveaxis(moveaxis(x, 0, -1) * factors, -1, 0)
    return x * expand_dims(factors, tuple(range(1, len(x.shape))))


def _as_numbers(data: TensorLike) -> Tensor:
    tensor = convert_to_tensor(data)
    return cast(tensor, dtypes.int32) if tensor.dtype == dtypes.bool_ else tensor


__all__ = ["segment_max", "segment_mean", "segment_min", "segment_prod", "segment_sum"]
