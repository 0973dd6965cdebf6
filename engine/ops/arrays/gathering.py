"""Taking parts by their positions along an axis: take, gather, take_along_axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.operator_table import operator_functions
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows
from ...graph.graph import Operation
from ...graph.op import ErrorSample, Op, Sample, as_scalar_or_array
from ...graph.slices import IndexedSlices
from ...graph.spec import Shape, TensorSpec, broadcast_shapes
from ...graph.state.sharded import ShardedVariable
from ...graph.tensor import Tensor
from ..base import TensorLike, apply, convert_to_tensor, normalize_axis
from ..containers.contributions import Contribution, rows_of
from ..run_time_shapes import runtime_shape
from .adding import accumulating, add_at
from .indexing import is_in_range
from .shaping import ravel


def integers(indices: TensorLike, what: str) -> Tensor:
    """Return `indices` as an integer tensor (an empty list counts as one).

    Raises:
        TypeError: they are of another dtype.
    """
    tensor = convert_to_tensor(indices, "int32" if isinstance(indices, (list, tuple)) and not indices else None)
    if not dtypes.is_integer(tensor.dtype):
        raise TypeError(f"{what}: indices must be integers, got {tensor!r}. Cast them with ops.cast(indices, 'int32').")
    return convert_to_tensor(tensor, "int64") if tensor.dtype.name == "uint64" else tensor


def checked_positions(xp: Any, indices: Any, size: int, axis: int, wrap: bool) -> Any:
    """Return `indices` as positions counted from the front.

    Raises:
        IndexError: one of them is out of bounds.
    """
    indices = xp.asarray(indices, dtype=np.intp)
    if not indices.size:
        return indices
    low, high = int(indices.min()), int(indices.max())
    if high >= size or low < (-size if wrap else 0):
        wrong = high if high >= size else low
        raise IndexError(f"index {wrong} is out of bounds for axis {axis} with size {size}")
    return indices if low >= 0 else xp.where(indices < 0, indices + size, indices)


# By the type of arrays: combines rows of such a type, with the arguments of `combine_rows`, and returns whether it can.
_combiners: dict[type, Callable[[Any, str, Any, Any, Any], bool]] = {}


def register_combiner(arrays: type, combine: Callable[[Any, str, Any, Any, Any], bool]) -> None:
    """Register what combines rows of a type of arrays; see `combine_rows`."""
    _combiners[arrays] = combine


def combine_rows(xp: Any, ufunc: str, out: Any, places: Any, values: Any) -> None:
    """Combine `values` [n, width] row by row into the contiguous `out` [m, width] at `places` [n], in place."""
    arrays: type[object] = out.__class__
    own = _combiners.get(arrays)
    if own is not None and own(xp, ufunc, out, places, values):
        return
    # On flat positions NumPy's `add.at` and its like are 3 to 6 times as quick as on rows, and nearly always quicker
    # than sorting the rows and reduceat (8000 rows of 128, 2048 indices: 0.5 ms, against 3.0 and 1.4).
    combine, flat, width = getattr(xp, ufunc).at, out.reshape(-1), out.shape[1]
    if width == 1:
        combine(flat, places, values.reshape(-1).astype(out.dtype, copy=False))
        return
    # The positions of a part stay in the cache: half the time for millions of elements.
    columns, step = xp.arange(width), max(1, 65536 // max(1, width))
    for start in range(0, len(places), step):
        part = values[start : start + step].reshape(-1).astype(out.dtype, copy=False)
        combine(flat, ((places[start : start + step] * width)[:, None] + columns).reshape(-1), part)


def add_rows(xp: Any, out: Any, indices: Any, values: Any, axis: int, wrap: bool) -> None:
    """Add `values` into the contiguous `out`, in place, at `indices` along `axis`; repeated ones add up.

    Half precision is added up in float32.
    """
    size = out.shape[axis]
    positions = checked_positions(xp, indices, size, axis, wrap)
    if not positions.ndim:
        out[(slice(None),) * axis + (int(positions),)] += values
        return
    outer, inner = math.prod(out.shape[:axis]), math.prod(out.shape[axis + 1 :])
    places = positions.reshape(-1)
    if outer != 1:  # each row of the result is one of `outer` times `size`
        places = ((xp.arange(outer) * size)[:, None] + places).reshape(-1)
    with accumulating(xp, out.reshape((outer * size, inner)), places) as (total, at):
        combine_rows(xp, "add", total, at, values.reshape((places.size, inner)))


# --- take: along one axis -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Take(Op):
    """Inputs: x, indices. The parts of x at indices along an axis; the indices' axes take that axis's place.

    Negative indices count from the end if `wrap`, otherwise they are errors.
    """

    axis: int
    wrap: bool = True
    takes_slices: ClassVar[bool] = True
    reads_rows: ClassVar[bool] = True
    gives_part: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        x, indices = inputs
        if x.shape is None or indices.shape is None:
            return TensorSpec(None, x.dtype)
        axis = normalize_axis(self.axis, len(x.shape))
        return TensorSpec(x.shape[:axis] + indices.shape + x.shape[axis + 1 :], x.dtype)

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank, places = (len(spec.shape) for spec in inputs)
        axis = self.axis % rank
        taken = [(Follows(1, place),) for place in range(places)]
        return (*[(Follows(0, k),) for k in range(axis)], *taken, *[(Follows(0, k),) for k in range(axis + 1, rank)])

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, indices = inputs
        if not self.wrap and indices.size:
            checked_positions(xp, indices, x.shape[self.axis], self.axis, wrap=False)
        return as_scalar_or_array(x.take(indices, axis=self.axis))

    def cannot_fail(self, *inputs: Tensor) -> bool:
        return is_in_range(self, inputs[0], inputs[1:])

    def takes_rows(self, indices: Sequence[Tensor]) -> bool:
        return self.axis == 0

    def text(self, names: Sequence[str]) -> str:
        return f"take({', '.join(names)}, axis={self.axis})"

    def emit(self, arguments: Sequence[str]) -> str | None:
        return f"{arguments[0]}.take({arguments[1]}, axis={self.axis})" if self.wrap else None

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        x, indices = node.inputs
        if x.shape is None or self.axis % len(x.shape):
            return TakeContribution(x, indices, self.axis, self.wrap, convert_to_tensor(dy)), None
        if isinstance(dy, IndexedSlices) and indices.ndim == 1:
            return rows_of(x, apply(Take(0), indices, dy.indices), dy.values), None
        return rows_of(x, indices, convert_to_tensor(dy)), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(12, dtype="float32").reshape(3, 4)
        some, matrix = np.array([2, 0, -3], "int32"), np.array([[1, 1], [3, 0]], "int64")
        yield Sample(cls(0), [x, some], x[[2, 0, 0]], differentiable=(0,), label="rows")
        yield Sample(cls(1), [x, matrix], x[:, matrix], differentiable=(0,), label="matrix of columns")
        yield Sample(cls(-1), [x, np.int32(2)], x[:, 2], differentiable=(0,), label="scalar")
        yield Sample(cls(0), [x[0], np.int32(2)], np.float32(2), differentiable=(0,), label="0-d")
        yield Sample(cls(0, False), [x, some[:2]], x[[2, 0]], differentiable=(0,), label="no wrap")
        yield Sample(cls(0), [x, some[:0]], x[:0], differentiable=(0,), label="empty")
        yield Sample(cls(1), [x[:0], some], np.zeros((0, 3), "float32"), differentiable=(0,), label="of empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        x, index = np.zeros((3, 4), "float32"), np.array([0, 3], "int32")
        yield ErrorSample(lambda: cls(0).run(np, x, index), IndexError, "index 3 .* size 3", "range")
        yield ErrorSample(lambda: cls(0, False).run(np, x, -index), IndexError, "index -3 .* size 3", "negative")


@dataclass(frozen=True)
class TakeContribution(Contribution):
    """The cotangent of the parts of `x` that were taken. It is added in place, not through zeros of the whole."""

    x: Tensor
    indices: Tensor
    axis: int
    wrap: bool
    value: Tensor

    def add_to(self, current: Tensor | None) -> Tensor:
        if current is None:
            shape = runtime_shape(self.x)
            return apply(PutRows(self.axis, self.wrap, self.x.shape), self.value, self.indices, shape)
        return apply(AddRows(self.axis, self.wrap), current, self.value, self.indices)


@dataclass(frozen=True)
class PutRows(Op):
    """Zeros with values added at indices along an axis. Inputs: values, indices, the shape as an int32 vector."""

    axis: int
    wrap: bool
    shape: Shape

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(self.shape, inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        values, indices, shape = inputs
        out = xp.zeros(tuple(int(size) for size in shape), values.dtype)
        add_rows(xp, out, indices, values, self.axis % out.ndim, self.wrap)
        return out

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply(Take(self.axis, self.wrap), dy, node.inputs[1]), None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        v = np.arange(1, 7, dtype="float32").reshape(3, 2)
        rows, shape = np.array([1, 0, -2], "int32"), np.array([3, 2], "int32")
        expected = np.array([[3, 4], [6, 8], [0, 0]], "float32")
        yield Sample(cls(0, True, (3, 2)), [v, rows, shape], expected, differentiable=(0,), label="rows")
        inputs = [v.T.copy(), rows, shape[::-1].copy()]
        yield Sample(cls(-1, True, (2, None)), inputs, expected.T, differentiable=(0,), label="columns")
        one = np.array([[0, 0], [1, 2], [0, 0]], "float32")
        yield Sample(cls(0, False, (3, 2)), [v[0], np.int32(1), shape], one, differentiable=(0,), label="scalar")
        yield Sample(cls(0, True, (3, 2)), [v[:0], rows[:0], shape], one * 0, differentiable=(0,), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        def call() -> Any:
            return cls(0, True, (2,)).run(np, np.ones(1, "float32"), np.array([2], "int32"), np.array([2], "int32"))

        yield ErrorSample(call, IndexError, "index 2 .* size 2")


@dataclass(frozen=True)
class AddRows(Op):
    """The first input with values added at indices along an axis. Inputs: base, values, indices."""

    axis: int
    wrap: bool
    updates_first: ClassVar[bool] = True
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis",)

    def infer(self, *inputs: Any) -> TensorSpec:
        return inputs[0]

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank, shift = len(inputs[0].shape), len(inputs[2].shape) - 1
        place = self.axis % rank
        before = [(Follows(0, axis), Follows(1, axis)) for axis in range(place)]
        behind = [(Follows(0, axis), Follows(1, axis + shift)) for axis in range(place + 1, rank)]
        return (*before, (Follows(0, place, False),), *behind)

    def run(self, xp: Any, *inputs: Any) -> Any:
        base, *rest = inputs
        return self.run_over(xp, xp.array(base, order="C"), *rest)

    def run_over(self, xp: Any, *inputs: Any) -> Any:
        out, values, indices = inputs
        add_rows(xp, out, indices, values, self.axis % out.ndim, self.wrap)
        return out

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return dy, apply(Take(self.axis, self.wrap), dy, node.inputs[2]), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        v = np.arange(1, 7, dtype="float32").reshape(3, 2)
        base, rows = np.ones((3, 2), "float32"), np.array([1, 0, 1], "int32")
        expected = np.array([[4, 5], [7, 9], [1, 1]], "float32")
        yield Sample(cls(0, True), [base, v, rows], expected, differentiable=(0, 1), label="rows")
        yield Sample(cls(1, True), [base.T, v.T, rows], expected.T, differentiable=(0, 1), label="columns")
        yield Sample(cls(0, True), [base, v[:0], rows[:0]], base, differentiable=(0, 1), label="empty")
        yield Sample(cls(0, True), [base[0], v[0, 0], np.int32(1)], v[0], differentiable=(0, 1), label="scalar")


def take(x: TensorLike, indices: TensorLike, axis: int | None = None) -> Tensor:
    """Return the parts of `x` at `indices` along `axis`; negative indices count from the end.

    Args:
        x: a tensor of any shape.
        indices: integers of any shape, which takes the place of the axis in the result.
        axis: an axis of `x`; None takes from the elements in row-major order.

    Raises:
        IndexError: an index is out of bounds (when the graph runs).
        TypeError: the indices are not integers.

    >>> import anabranch as ab
    >>> ab.ops.take([[1, 2], [3, 4], [5, 6]], [2, 0], axis=0)
    Tensor([[5, 6],
            [1, 2]], dtype=int32)
    """
    if isinstance(x, ShardedVariable) and axis in (0, -x.ndim):
        return operator_functions["take_of_shards"](x, indices, wrap=True)
    return take_at(convert_to_tensor(x), integers(indices, "take"), axis, wrap=True)


def take_at(x: Tensor, indices: Tensor, axis: int | None, wrap: bool) -> Tensor:
    """Return the parts of `x` at `indices` along `axis`; negative ones count from the end if `wrap`, or are errors."""
    if axis is None:
        x, axis = ravel(x), 0
    elif x.shape is not None:
        axis = normalize_axis(axis, len(x.shape))
    return apply(Take(axis, wrap), x, indices)


# --- take_along_axis: one index for each element --------------------------------------------------------------------


def _along_axis(xp: Any, indices: Any, shape: Sequence[int], axis: int) -> tuple[Any, ...]:
    """Return the key that `numpy.take_along_axis` forms."""
    rank = len(shape)
    return tuple(
        indices if a == axis else xp.arange(size).reshape((1,) * a + (-1,) + (1,) * (rank - a - 1))
        for a, size in enumerate(shape)
    )


@dataclass(frozen=True)
class TakeAlongAxis(Op):
    """Inputs: x, indices of the same rank. For each index the element at that place along the axis."""

    axis: int
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis",)

    def infer(self, *inputs: Any) -> TensorSpec:
        x, indices = inputs
        if x.shape is None or indices.shape is None:
            return TensorSpec(None, x.dtype)
        if len(x.shape) != len(indices.shape):
            raise ValueError(f"take_along_axis: indices {indices} must have as many axes as x, {x}.")
        axis = normalize_axis(self.axis, len(x.shape))
        joined = broadcast_shapes((*x.shape[:axis], 1, *x.shape[axis + 1 :]), indices.shape)
        return TensorSpec(joined, x.dtype)

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        axis = self.axis % rank
        return tuple(
            (Follows(1, k, False),) if k == axis else (Follows(0, k, True, True), Follows(1, k, True, True))
            for k in range(rank)
        )

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, indices = inputs
        return x[_along_axis(xp, indices, x.shape, self.axis % x.ndim)]

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        x, indices = node.inputs
        return apply(PutAlongAxis(self.axis, x.shape), dy, indices, runtime_shape(x)), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(2, 3)
        one, many = np.array([[2], [-3]], "int32"), np.array([[1, 1, 0]], "int32")
        yield Sample(cls(1), [x, one], np.array([[2], [3]], "float32"), differentiable=(0,), label="one each")
        yield Sample(cls(0), [x, many], np.array([[3, 4, 2]], "float32"), differentiable=(0,), label="several")
        yield Sample(cls(-1), [x, many], x[:, [1, 1, 0]], differentiable=(0,), label="broadcast")
        yield Sample(cls(0), [x[0], one[:0, 0]], x[0, :0], differentiable=(0,), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec, index = TensorSpec((2, 3), dtypes.float32), TensorSpec((2,), dtypes.int32)
        yield ErrorSample(lambda: cls(0).infer(spec, index), ValueError, "as many axes", "rank")
        far = np.array([4], "int32")
        yield ErrorSample(lambda: cls(0).run(np, np.zeros(3, "float32"), far), IndexError, "index 4 .* size 3", "range")


@dataclass(frozen=True)
class PutAlongAxis(Op):
    """Zeros with values added along an axis, one index each. Inputs: values, indices, the shape as a vector."""

    axis: int
    shape: Shape
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis",)
    shape_input: ClassVar[int | None] = 2

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(self.shape, inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        values, indices, shape = inputs
        sizes = tuple(int(size) for size in shape)
        out = xp.zeros(sizes, values.dtype)
        add_at(xp, out, _along_axis(xp, indices, sizes, self.axis % len(sizes)), values)
        return out

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply(TakeAlongAxis(self.axis), dy, node.inputs[1]), None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        v, shape = np.array([[1, 2, 3], [4, 5, 6]], "float32"), np.array([2, 3], "int32")
        indices = np.array([[0, 0, -1], [1, 1, 1]], "int32")
        expected = np.array([[3, 0, 3], [0, 15, 0]], "float32")
        yield Sample(cls(1, (2, 3)), [v, indices, shape], expected, differentiable=(0,), label="rows")
        expected = np.array([[1, 2, 0], [4, 5, 9]], "float32")
        yield Sample(cls(0, (None, 3)), [v, indices, shape], expected, differentiable=(0,), label="columns")
        inputs = [v[:0, 0], indices[:0, 0], shape[:1]]
        yield Sample(cls(-1, (2,)), inputs, np.zeros(2, "float32"), differentiable=(0,), label="empty")


def take_along_axis(x: TensorLike, indices: TensorLike, axis: int | None = None) -> Tensor:
    """Return, for each index, the element of `x` at that place along `axis` (as with the result of `argsort`).

    Args:
        x: a tensor.
        indices: integers of the same rank; the other axes broadcast against those of `x`.
        axis: an axis; None for both as vectors of their elements.

    Raises:
        IndexError: an index is out of bounds (when the graph runs).
        ValueError: the ranks differ.
    """
    tensor, positions = convert_to_tensor(x), integers(indices, "take_along_axis")
    if axis is None:
        return apply(TakeAlongAxis(0), ravel(tensor), ravel(positions))
    axis = axis if tensor.shape is None else normalize_axis(axis, len(tensor.shape))
    return apply(TakeAlongAxis(axis), tensor, positions)


__all__ = ["take", "take_along_axis"]
