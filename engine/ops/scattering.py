"""Several indices for each part: gather_nd, scatter, scatter_update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.graph import Operation
from ..graph.op import ErrorSample, Op, Sample, as_scalar_or_array
from ..graph.spec import TensorSpec, shape_text
from ..graph.tensor import Tensor
from .base import ShapeLike, TensorLike, apply, convert_to_tensor, zeros_of
from .creation import zeros
from .gathering import add_rows, checked_positions, integers


def _depth(x: TensorSpec, indices: TensorSpec, what: str) -> int:
    """The number of axes that each index names: the last dimension of `indices`.

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
    """Indices of `len(shape)` axes each, as positions in row-major order.

    Raises:
        IndexError: one of them is out of bounds.
    """
    places = xp.zeros(indices.shape[:-1], np.intp)
    for axis, size in enumerate(shape):
        places = places * size + checked_positions(xp, indices[..., axis], size, axis, wrap=False)
    return places


def _flat_rows(x: Any, depth: int) -> Any:
    """`x` with its first `depth` axes as one, and the others as one."""
    return x.reshape((math.prod(x.shape[:depth]), math.prod(x.shape[depth:])))


@dataclass(frozen=True)
class GatherNd(Op):
    """Inputs: x, indices (..., k). The parts of x named by k indices each."""

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

    def infer(self, *inputs: Any) -> TensorSpec:
        x, indices, updates = inputs
        depth = _depth(x, indices, self.type_name)
        if x.shape is not None:
            wanted = indices.shape[:-1] + x.shape[depth:]
            _check_updates(updates, wanted, self.type_name)
        return x


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

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, indices, updates = inputs
        out, depth = xp.array(x, order="C"), indices.shape[-1]
        places = _flat_places(xp, indices, x.shape[:depth]).reshape(-1)
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

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec, index = TensorSpec((2, 3), dtypes.float32), TensorSpec((4, 1), dtypes.int32)
        yield ErrorSample(lambda: cls().infer(spec, index, spec), ValueError, r"shape \[4,3\]", "updates")


@dataclass(frozen=True)
class ScatterUpdate(_Scatter):
    """Inputs: x, indices (..., k), updates. x with the parts that the indices name replaced; the last one counts."""

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, indices, updates = inputs
        out, depth = xp.array(x, order="C"), indices.shape[-1]
        places = _flat_places(xp, indices, x.shape[:depth]).reshape(-1)
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
    """Which of the entries of `places` are the last ones at their place."""
    order = xp.arange(places.size)
    latest = xp.zeros(size, np.intp)
    xp.maximum.at(latest, places, order)
    return latest[places] == order


@dataclass(frozen=True)
class GatherLast(Op):
    """As `GatherNd`, with zeros for each index that is named again further on: the gradient of `ScatterUpdate`."""

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


def gather_nd(params: TensorLike, indices: TensorLike) -> Tensor:
    """The parts of `params` that the last axis of `indices` names.

    Args:
        params: a tensor of rank r.
        indices: integers of shape (..., k) with k from 1 to r. Negative ones are errors.

    Returns:
        A tensor of shape ``indices.shape[:-1] + params.shape[k:]``.

    Raises:
        IndexError: an index is out of bounds (when the graph runs).
    """
    return apply(GatherNd(), convert_to_tensor(params), integers(indices, "gather_nd"))


def scatter(indices: TensorLike, values: TensorLike, shape: ShapeLike) -> Tensor:
    """Zeros of `shape` with `values` added at `indices`; repeated indices add up.

    Args:
        indices: integers of shape (..., k).
        values: of shape ``indices.shape[:-1] + shape[k:]``.
        shape: the shape of the result.

    Raises:
        IndexError: an index is out of bounds (when the graph runs).
        ValueError: the shapes do not fit.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.scatter([[0], [2], [0]], [1.0, 2.0, 3.0], (4,)))
    array([4., 0., 2., 0.], dtype=float32)
    """
    updates = convert_to_tensor(values)
    return scatter_add(zeros(shape, updates.dtype), indices, updates)


def scatter_add(inputs: TensorLike, indices: TensorLike, updates: TensorLike) -> Tensor:
    """`inputs` with `updates` added to the parts that the last axis of `indices` names; repeated ones add up."""
    tensor = convert_to_tensor(inputs)
    return apply(ScatterAdd(), tensor, integers(indices, "scatter_add"), convert_to_tensor(updates, tensor.dtype))


def scatter_update(inputs: TensorLike, indices: TensorLike, updates: TensorLike) -> Tensor:
    """`inputs` with the parts that the last axis of `indices` names replaced by `updates`.

    Args:
        inputs: a tensor of rank r.
        indices: integers of shape (..., k) with k from 1 to r; of repeated ones the last counts.
        updates: of shape ``indices.shape[:-1] + inputs.shape[k:]``.

    Raises:
        IndexError: an index is out of bounds (when the graph runs).
        ValueError: the shapes do not fit.
    """
    tensor = convert_to_tensor(inputs)
    return apply(ScatterUpdate(), tensor, integers(indices, "scatter_update"), convert_to_tensor(updates, tensor.dtype))


__all__ = ["gather_nd", "scatter", "scatter_add", "scatter_update"]
