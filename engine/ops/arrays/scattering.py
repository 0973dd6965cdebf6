"""Several indices for each part, or a batch of them: gather, gather_nd, scatter and its kin, by TensorFlow's names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.operator_table import operator_functions
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import ErrorSample, Op, Sample, as_scalar_or_array
from ...graph.spec import TensorSpec, shape_text, shapes_compatible
from ...graph.state.sharded import ShardedVariable
from ...graph.tensor import Tensor
from ..base import TensorLike, apply, convert_to_tensor, normalize_axis
from ..math.comparison import maximum, minimum
from ..math.elementwise import multiply, negative
from ..math.reduction import prod
from ..run_time_shapes import reshape_like, runtime_shape, zeros_of
from .axes import moveaxis
from .creation import arange, zeros
from .gathering import add_rows, checked_positions, integers, take_at
from .joining import concatenate
from .segments import merge_axes, segment_max, segment_min, segment_prod
from .shape_arguments import ShapeLike
from .shaping import broadcast_to, dim, expand_dims, ravel, shape
from .shaping import size as size_of


def _depth(x: TensorSpec, indices: TensorSpec, what: str) -> int:
    """Return the number of axes that each index names: the last dimension of `indices`.

    Raises:
        ValueError: it is unknown, zero or too large.
    """
    depth = indices.shape[-1] if indices.shape else None
    if depth is None or depth < 1 or (x.shape is not None and depth > len(x.shape)):
        raise ValueError(
            f"{what}: the last axis of the indices, {indices}, must have a known size from 1 to the rank of {x}."
        )
    return depth


def _flat_places(xp: Any, indices: Any, shape: Sequence[int]) -> Any:
    """Return indices of `len(shape)` axes each, as positions in row-major order.

    Raises:
        IndexError: one of them is out of bounds.
    """
    places = xp.zeros(indices.shape[:-1], np.intp)
    for axis, size in enumerate(shape):
        places = places * size + checked_positions(xp, indices[..., axis], size, axis, wrap=False)
    return places


def _flat_rows(x: Any, depth: int) -> Any:
    """Return `x` with its first `depth` axes as one, and the others as one."""
    return x.reshape((math.prod(x.shape[:depth]), math.prod(x.shape[depth:])))


@dataclass(frozen=True)
class GatherNd(Op):
    """Inputs: x, indices (..., k). The parts of x named by k indices each."""

    needs_known: ClassVar[Mapping[int, str]] = {1: "last axis"}
    reads_rows: ClassVar[bool] = True
    gives_part: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        x, indices = inputs
        depth = _depth(x, indices, "gather_nd")
        return TensorSpec(None if x.shape is None else indices.shape[:-1] + x.shape[depth:], x.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, indices = inputs
        depth = indices.shape[-1]
        places = _flat_places(xp, indices, x.shape[:depth])
        rows = _flat_rows(x, depth)[places.reshape(-1)]
        return as_scalar_or_array(rows.reshape(indices.shape[:-1] + x.shape[depth:]))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        x, indices = node.inputs
        return apply(ScatterAdd(), zeros_of(x), indices, dy), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(2, 3)
        pairs = np.array([[0, 1], [1, 2], [0, 1]], "int32")
        yield Sample(cls(), [x, pairs], np.array([1, 5, 1], "float32"), differentiable=(0,), label="elements")
        yield Sample(cls(), [x, pairs[:2, :1]], x, differentiable=(0,), label="rows")
        yield Sample(cls(), [x, pairs[1]], np.float32(5), differentiable=(0,), label="0-d")
        yield Sample(cls(), [x, pairs[:0]], x[0, :0], differentiable=(0,), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec, index = TensorSpec((2, 3), dtypes.float32), TensorSpec((1, 3), dtypes.int32)
        yield ErrorSample(lambda: cls().infer(spec, index), ValueError, "last axis of the indices", "depth")
        x, far = np.zeros((2, 3), "float32"), np.array([[0, 3]], "int32")
        yield ErrorSample(lambda: cls().run(np, x, far), IndexError, "index 3 .* axis 1 with size 3", "range")


@dataclass(frozen=True)
class _Scatter(Op):
    """Inputs: x, indices (..., k), updates. x with the parts that the indices name changed."""

    updates_first: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        x, indices, updates = inputs
        depth = _depth(x, indices, self.type_name)
        if x.shape is not None:
            wanted = indices.shape[:-1] + x.shape[depth:]
            _check_updates(updates, wanted, self.type_name)
        return x

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, *rest = inputs
        return self.run_over(xp, xp.array(x, order="C"), *rest)


def _check_updates(updates: TensorSpec, wanted: tuple[int | None, ...], what: str) -> None:
    if updates.shape is None:
        return
    if len(updates.shape) != len(wanted) or any(
        have is not None and want is not None and have != want for have, want in zip(updates.shape, wanted, strict=True)
    ):
        raise ValueError(f"{what}: the indices ask for updates of shape {shape_text(wanted)}; got {updates}.")


@dataclass(frozen=True)
class ScatterAdd(_Scatter):
    """Inputs: x, indices (..., k), updates. x with the updates added to the parts that the indices name."""

    needs_known: ClassVar[Mapping[int, str]] = {1: "last axis"}

    def run_over(self, xp: Any, *inputs: Any) -> Any:
        out, indices, updates = inputs
        depth = indices.shape[-1]
        places = _flat_places(xp, indices, out.shape[:depth]).reshape(-1)
        rows = _flat_rows(out, depth)
        add_rows(xp, rows, places, updates.reshape((places.size, rows.shape[1])), 0, wrap=False)
        return out

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return dy, None, apply(GatherNd(), dy, node.inputs[1])

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.ones((2, 3), "float32")
        pairs, values = np.array([[0, 1], [1, 2], [0, 1]], "int32"), np.array([1, 2, 3], "float32")
        expected = np.array([[1, 5, 1], [1, 1, 3]], "float32")
        yield Sample(cls(), [x, pairs, values], expected, differentiable=(0, 2), label="elements")
        expected = np.array([[1, 1, 1], [2, 3, 4]], "float32")
        yield Sample(cls(), [x, pairs[1:2, :1], values[None]], expected, differentiable=(0, 2), label="rows")
        expected = np.array([[1, 1, 1], [1, 1, 2]], "float32")
        yield Sample(cls(), [x, pairs[1], values[0]], expected, differentiable=(0, 2), label="scalar")
        yield Sample(cls(), [x, pairs[:0], values[:0]], x, differentiable=(0, 2), label="empty")
        one, many = np.ones(1, "float16"), np.ones(4096, "float16")
        yield Sample(cls(), [one * 1024, np.zeros((4096, 1), "int32"), many], one * 5120, label="half precision")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec, index = TensorSpec((2, 3), dtypes.float32), TensorSpec((4, 1), dtypes.int32)
        yield ErrorSample(lambda: cls().infer(spec, index, spec), ValueError, r"shape \[4,3\]", "updates")


@dataclass(frozen=True)
class ScatterUpdate(_Scatter):
    """Inputs: x, indices (..., k), updates. x with the parts that the indices name replaced; the last one counts."""

    needs_known: ClassVar[Mapping[int, str]] = {1: "last axis"}

    def run_over(self, xp: Any, *inputs: Any) -> Any:
        out, indices, updates = inputs
        depth = indices.shape[-1]
        places = _flat_places(xp, indices, out.shape[:depth]).reshape(-1)
        rows = _flat_rows(out, depth)
        last = _last_writes(xp, places, len(rows))
        rows[places[last]] = updates.reshape((places.size, rows.shape[1]))[last]
        return out

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        _, indices, updates = node.inputs
        replaced = apply(ScatterUpdate(), dy, indices, zeros_of(updates))
        return replaced, None, apply(GatherLast(), dy, indices)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.ones((2, 3), "float32")
        pairs, values = np.array([[0, 1], [1, 2], [0, 1]], "int32"), np.array([5, 2, 3], "float32")
        expected = np.array([[1, 3, 1], [1, 1, 2]], "float32")
        yield Sample(cls(), [x, pairs, values], expected, differentiable=(0, 2), label="elements")
        expected = np.array([[1, 1, 1], [5, 2, 3]], "float32")
        yield Sample(cls(), [x, pairs[1:2, :1], values[None]], expected, differentiable=(0, 2), label="rows")
        yield Sample(cls(), [x, pairs[:0], values[:0]], x, differentiable=(0, 2), label="empty")


def _last_writes(xp: Any, places: Any, size: int) -> Any:
    """Select the entries of `places` that are the last ones at their place."""
    if (places[1:] > places[:-1]).all():
        return slice(None)  # all
    order = xp.arange(places.size)
    latest = xp.zeros(size, np.intp)
    xp.maximum.at(latest, places, order)
    return latest[places] == order


@dataclass(frozen=True)
class GatherLast(Op):
    """As `GatherNd`, with zeros for each index that is named again further on: the gradient of `ScatterUpdate`."""

    needs_known: ClassVar[Mapping[int, str]] = {1: "last axis"}

    def infer(self, *inputs: Any) -> TensorSpec:
        return GatherNd().infer(*inputs)

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, indices = inputs
        depth = indices.shape[-1]
        places = _flat_places(xp, indices, x.shape[:depth]).reshape(-1)
        source = _flat_rows(x, depth)
        last = _last_writes(xp, places, len(source))
        rows = xp.zeros((places.size, source.shape[1]), x.dtype)
        rows[last] = source[places[last]]
        return as_scalar_or_array(rows.reshape(indices.shape[:-1] + x.shape[depth:]))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        x, indices = node.inputs
        return apply(ScatterUpdate(), zeros_of(x), indices, dy), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(2, 3)
        pairs = np.array([[0, 1], [1, 2], [0, 1]], "int32")
        yield Sample(cls(), [x, pairs], np.array([0, 5, 1], "float32"), differentiable=(0,), label="elements")
        yield Sample(cls(), [x, pairs[:2, :1]], x, differentiable=(0,), label="rows")
        yield Sample(cls(), [x, pairs[1]], np.float32(5), differentiable=(0,), label="0-d")
        yield Sample(cls(), [x, pairs[:0]], x[0, :0], differentiable=(0,), label="empty")


@dataclass(frozen=True)
class FlatPlaces(Op):
    """Inputs: indices (..., k), a shape of k or more axes. Each index as a position in row-major order, as int64."""

    def infer(self, *inputs: Any) -> TensorSpec:
        indices = inputs[0]
        if indices.shape == ():
            raise ValueError(f"flat_places: the last axis of the indices names the axes; got a scalar, {indices}.")
        return TensorSpec(None if indices.shape is None else indices.shape[:-1], dtypes.int64)

    def run(self, xp: Any, *inputs: Any) -> Any:
        indices, sizes = inputs
        depth = indices.shape[-1]
        if depth > len(sizes):
            raise ValueError(f"Indices of {depth} axes do not fit the shape {[int(size) for size in sizes]}.")
        places = _flat_places(xp, indices, [int(size) for size in sizes[:depth]])
        return as_scalar_or_array(places.astype(np.int64, copy=False))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        pairs, sizes = np.array([[0, 1], [1, 2], [0, 1]], "int32"), np.array([2, 3], "int32")
        yield Sample(cls(), [pairs, sizes], np.array([1, 5, 1], "int64"), (), label="pairs")
        yield Sample(cls(), [pairs[:, :1], sizes], np.array([0, 1, 0], "int64"), (), label="rows")
        yield Sample(cls(), [pairs[1], sizes], np.int64(5), (), label="0-d")
        yield Sample(cls(), [pairs[:, :0], sizes], np.zeros(3, "int64"), (), label="no axes")
        yield Sample(cls(), [pairs[:0], sizes], np.zeros(0, "int64"), (), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        pairs, sizes = np.array([[0, 3]], "int32"), np.array([2, 3], "int32")
        yield ErrorSample(lambda: cls().run(np, pairs, sizes), IndexError, "index 3 .* axis 1 with size 3", "range")
        yield ErrorSample(lambda: cls().run(np, pairs, sizes[:1]), ValueError, r"2 axes .* \[2\]", "depth")
        spec = TensorSpec((), dtypes.int32)
        yield ErrorSample(lambda: cls().infer(spec, spec), ValueError, "got a scalar", "scalar")


def gather_nd(params: TensorLike, indices: TensorLike, batch_dims: int = 0) -> Tensor:
    """Return the parts of `params` that the last axis of `indices` names.

    Args:
        params: a tensor of rank r.
        indices: integers of shape (..., k) with k from 1 to r - batch_dims. Negative ones are errors.
        batch_dims: how many leading axes both have in common: each of their elements is indexed on its own.

    Returns:
        A tensor of shape ``indices.shape[:-1] + params.shape[batch_dims + k:]``.

    Raises:
        IndexError: an index is out of bounds (when the graph runs).
        ValueError: the shapes do not fit.

    >>> import anabranch as ab
    >>> ab.ops.gather_nd([[1, 2], [3, 4]], [[1], [0]], batch_dims=1)
    Tensor([2, 3], dtype=int32)
    """
    tensor, places = convert_to_tensor(params), integers(indices, "gather_nd")
    return apply(GatherNd(), tensor, _with_batches(tensor, places, batch_dims, "gather_nd"))


def _with_batches(x: Tensor, indices: Tensor, batch_dims: int, what: str) -> Tensor:
    """Return indices (..., k) of each element of a batch, with the element's own place put before them."""
    if batch_dims == 0:
        return indices
    if indices.shape is None:
        raise ValueError(f"{what}(batch_dims={batch_dims}) needs indices of known rank; got {indices!r}.")
    rank = len(indices.shape) - 1
    count = batch_dims + rank if batch_dims < 0 else batch_dims
    if not 0 <= count <= rank or (x.shape is not None and count >= len(x.shape)):
        raise ValueError(f"{what}: batch_dims={batch_dims} are too many for {x!r} and indices {indices!r}.")
    if x.shape is not None and not shapes_compatible(x.shape[:count], indices.shape[:count]):
        have, want = shape_text(x.shape[:count]), shape_text(indices.shape[:count])
        raise ValueError(f"{what}: the first {count} axes, those of the batch, must agree; got {have} and {want}.")
    sizes = [dim(indices, axis) for axis in range(rank)]
    columns: list[Tensor] = []
    for axis in range(count):
        others = [other for other in range(rank + 1) if other != axis]
        numbers = expand_dims(arange(sizes[axis], dtype=indices.dtype), others)
        columns.append(broadcast_to(numbers, (*sizes, 1)))
    return concatenate([*columns, indices], -1)


def gather(params: TensorLike, indices: TensorLike, axis: int | None = None, batch_dims: int = 0) -> Tensor:
    """Return the parts of `params` at `indices` along `axis`; TensorFlow's `take`. Negative indices are errors.

    Args:
        params: a tensor.
        indices: integers of any shape, which takes the place of the axis in the result.
        axis: an axis of `params`; None for the first one behind the batch.
        batch_dims: how many leading axes both have in common: each of their elements is indexed on its own.

    Raises:
        IndexError: an index is out of bounds (when the graph runs).
        ValueError: the axes of the batch differ, or are behind `axis`.

    >>> import anabranch as ab
    >>> ab.ops.gather([[1, 2], [3, 4]], [[1, 1], [0, 1]], batch_dims=1)
    Tensor([[2, 2],
            [3, 4]], dtype=int32)
    """
    if isinstance(params, ShardedVariable) and not batch_dims and axis in (None, 0, -params.ndim):
        return operator_functions["take_of_shards"](params, indices, wrap=False)
    tensor, places = convert_to_tensor(params), integers(indices, "gather")
    if not batch_dims:
        return take_at(tensor, places, axis or 0, wrap=False)
    count = batch_dims + (places.ndim or 0) if batch_dims < 0 else batch_dims
    along = count if axis is None else normalize_axis(axis, tensor.ndim)
    return _gather_batches(tensor, places, along, batch_dims)


def _gather_batches(params: Tensor, indices: Tensor, axis: int, batch_dims: int) -> Tensor:
    """Return `gather` along `axis` for each element of a batch by indices of its own."""
    if indices.shape is None:
        raise ValueError(f"gather(batch_dims={batch_dims}) needs indices of known rank; got {indices!r}.")
    rank = len(indices.shape)
    count = batch_dims + rank if batch_dims < 0 else batch_dims
    if not 0 <= count <= rank or axis < count:
        raise ValueError(f"gather: batch_dims={batch_dims} must be at most axis={axis} and the indices' rank, {rank}.")
    moved = moveaxis(params, axis, count)
    parts = apply(GatherNd(), moved, _with_batches(moved, expand_dims(indices, -1), count, "gather"))
    between = axis - count
    if not between:
        return parts
    inner = range(count, rank)
    return moveaxis(parts, tuple(inner), tuple(place + between for place in inner))


def scatter(indices: TensorLike, values: TensorLike, shape: ShapeLike) -> Tensor:
    """Return zeros of `shape` with `values` added at `indices`; repeated indices add up.

    Args:
        indices: integers of shape (..., k).
        values: of shape ``indices.shape[:-1] + shape[k:]``.
        shape: the shape of the result.

    Raises:
        IndexError: an index is out of bounds (when the graph runs).
        ValueError: the shapes do not fit.

    >>> import anabranch as ab
    >>> ab.ops.scatter([[0], [2], [0]], [1.0, 2.0, 3.0], (4,))
    Tensor([4., 0., 2., 0.], dtype=float32)
    """
    updates = convert_to_tensor(values)
    return scatter_add(zeros(shape, updates.dtype), indices, updates)


def scatter_add(inputs: TensorLike, indices: TensorLike, updates: TensorLike) -> Tensor:
    """Return `inputs` with `updates` added to the parts that the last axis of `indices` names; repeated ones add up."""
    tensor = convert_to_tensor(inputs)
    return apply(ScatterAdd(), tensor, integers(indices, "scatter_add"), convert_to_tensor(updates, tensor.dtype))


_REDUCTIONS: dict[str, tuple[Any, Any]] = {
    "max": (segment_max, maximum),
    "min": (segment_min, minimum),
    "mul": (segment_prod, multiply),
}


def scatter_update(
    inputs: TensorLike, indices: TensorLike, updates: TensorLike, reduction: str | None = None
) -> Tensor:
    """Replace the parts of `inputs` that the last axis of `indices` names by `updates`, or combine them.

    Args:
        inputs: a tensor of rank r.
        indices: integers of shape (..., k) with k from 1 to r.
        updates: of shape ``indices.shape[:-1] + inputs.shape[k:]``.
        reduction: None replaces (of repeated indices the last counts); "add", "max", "min" and "mul" combine what is
            there with all updates. The gradients of "max" and "min" are shared among what attains them.

    Raises:
        IndexError: an index is out of bounds (when the graph runs).
        ValueError: the shapes do not fit, or there is no such reduction.

    >>> import anabranch as ab
    >>> ab.ops.scatter_update([0.0, 5.0], [[0], [0], [1]], [1.0, 3.0, 2.0], reduction="max")
    Tensor([3., 5.], dtype=float32)
    """
    tensor, places = convert_to_tensor(inputs), integers(indices, "scatter_update")
    values = convert_to_tensor(updates, tensor.dtype)
    if reduction is None:
        return apply(ScatterUpdate(), tensor, places, values)
    kind = reduction.lower()
    if kind == "add":
        return apply(ScatterAdd(), tensor, places, values)
    if kind not in _REDUCTIONS:
        raise ValueError(f"scatter_update: reduction must be None, 'add', 'max', 'min' or 'mul'; got {reduction!r}.")
    return _scatter_reduced(tensor, places, values, *_REDUCTIONS[kind])


def _scatter_reduced(x: Tensor, indices: Tensor, updates: Tensor, reduce: Any, combine: Any) -> Tensor:
    ScatterUpdate().infer(x.spec, indices.spec, updates.spec)  # checks the shapes
    assert indices.shape is not None
    depth = indices.shape[-1] or 0
    sizes = shape(x)
    count = prod(sizes[:depth]) if isinstance(sizes, Tensor) else math.prod(sizes[:depth])
    places = apply(FlatPlaces(), indices, runtime_shape(x))
    rows = merge_axes(updates, len(indices.shape) - 1, size_of(places))
    reduced = reduce(rows, ravel(places), count)
    return reshape_like(combine(merge_axes(x, depth, count), reduced), x)


def scatter_nd(indices: TensorLike, updates: TensorLike, shape: ShapeLike) -> Tensor:
    """Add `updates` at `indices` to zeros of `shape`; this is TensorFlow's name for `scatter`."""
    return scatter(indices, updates, shape)


def tensor_scatter_nd_add(tensor: TensorLike, indices: TensorLike, updates: TensorLike) -> Tensor:
    """Add `updates` at `indices`: TensorFlow's name for `scatter_update` with ``reduction="add"``."""
    return scatter_add(tensor, indices, updates)


def tensor_scatter_nd_sub(tensor: TensorLike, indices: TensorLike, updates: TensorLike) -> Tensor:
    """Return `tensor` with `updates` taken away from the parts that the last axis of `indices` names."""
    target = convert_to_tensor(tensor)
    return scatter_add(target, indices, negative(convert_to_tensor(updates, target.dtype)))


def tensor_scatter_nd_update(tensor: TensorLike, indices: TensorLike, updates: TensorLike) -> Tensor:
    """Replace parts by `updates`: TensorFlow's name for `scatter_update`."""
    return scatter_update(tensor, indices, updates)


def tensor_scatter_nd_max(tensor: TensorLike, indices: TensorLike, updates: TensorLike) -> Tensor:
    """Take maxima with `updates`: TensorFlow's name for `scatter_update` with ``reduction="max"``."""
    return scatter_update(tensor, indices, updates, "max")


def tensor_scatter_nd_min(tensor: TensorLike, indices: TensorLike, updates: TensorLike) -> Tensor:
    """Take minima with `updates`: TensorFlow's name for `scatter_update` with ``reduction="min"``."""
    return scatter_update(tensor, indices, updates, "min")


__all__ = [
    "gather",
    "gather_nd",
    "scatter",
    "scatter_add",
    "scatter_nd",
    "scatter_update",
    "tensor_scatter_nd_add",
    "tensor_scatter_nd_max",
    "tensor_scatter_nd_min",
    "tensor_scatter_nd_sub",
    "tensor_scatter_nd_update",
]
