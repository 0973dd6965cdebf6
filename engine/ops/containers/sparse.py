"""Sparse tensors as tuples of dense ones, under the names of ``tf.sparse``.

A `SparseTensor` is a named tuple of three tensors: it nests, so that it can be fetched, returned by branches, carried
by loops and differentiated with respect to its values. All functions here but the matrix product are short compositions
of dense ops. What works on the stored values alone needs no function: ``x._replace(values=ops.relu(x.values))``.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeGuard

import numpy as np

from ...common import dtypes
from ...common.dtypes import DTypeLike
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import Cost, ErrorSample, Op, Sample
from ...graph.spec import Dim, TensorSpec, shape_text, shapes_compatible
from ...graph.tensor import Tensor
from ..arrays.creation import ones_like, zeros
from ..arrays.gathering import checked_positions, combine_rows, integers, take
from ..arrays.joining import concatenate, stack
from ..arrays.positions import argwhere, boolean_mask
from ..arrays.scattering import FlatPlaces, gather, gather_nd, scatter, scatter_add, scatter_update
from ..arrays.segments import run_starts, scale_rows, segment_max, segment_sum
from ..arrays.shaping import DimLike, constant_value, dim, expand_dims, reshape
from ..arrays.sorting import argsort
from ..base import TensorLike, apply, cast, convert_to_tensor, normalize_axes, normalize_axis, promote
from ..entrance import guard_entrances
from ..math import reduction
from ..math.comparison import divide_no_nan, greater_equal, less, logical_and, maximum, minimum, not_equal, where
from ..math.complex_numbers import conjugated
from ..math.elementwise import square, stop_gradient
from ..math.mathematics import exp, sqrt
from ..math.running import cumsum
from ..neural.embedding import embedding_lookup
from ..run_time_shapes import runtime_shape
from ..sparse_tensor import SparseTensor


class _Parts(NamedTuple):
    """A sparse tensor whose parts are tensors that fit together."""

    indices: Tensor
    values: Tensor
    dense_shape: Tensor
    rank: int

    @property
    def dims(self) -> list[DimLike]:
        """The sizes of the axes: ints where they are known now."""
        known = constant_value(self.dense_shape)
        return [self.dense_shape[axis] if known is None else int(known[axis]) for axis in range(self.rank)]

    def places(self) -> Tensor:
        """Return the places of the elements in row-major order."""
        return apply(FlatPlaces(), self.indices, self.dense_shape)


def is_sparse(value: Any) -> TypeGuard[SparseTensor]:
    """Test whether `value` is a `SparseTensor`."""
    return isinstance(value, SparseTensor)


def _parts(x: object, what: str) -> _Parts:
    """Return the parts of a sparse tensor, checked.

    Raises:
        TypeError: it is none, or its indices or shape are not integers.
        ValueError: its parts do not fit together, or its rank is unknown.
    """
    if not is_sparse(x):
        raise TypeError(f"sparse.{what} takes a SparseTensor, got {type(x).__name__}. Make one by sparse.from_dense.")
    indices, shape = integers(x.indices, f"sparse.{what}"), integers(x.dense_shape, f"sparse.{what}")
    values = convert_to_tensor(x.values)
    if indices.shape == (0,):  # an empty list of indices
        indices = reshape(indices, (0, dim(shape, 0)))
    rank = indices.shape[-1] if indices.shape else None
    if rank is None:
        rank = shape.shape[0] if shape.shape else None
    if rank is None:
        raise ValueError(
            f"sparse.{what} needs indices with a known number of axes; got indices {indices!r} and shape {shape!r}."
        )
    wanted = ((None, rank), (None,), (rank,))
    tensors = (indices, values, shape)
    if not all(shapes_compatible(t.shape, w) for t, w in zip(tensors, wanted, strict=True)) or not shapes_compatible(
        (indices.shape or (None,))[:1], values.shape
    ):
        raise ValueError(
            f"sparse.{what}: a SparseTensor has indices [n, rank], values [n] and dense_shape [rank]; got "
            f"{', '.join(shape_text(t.shape) for t in tensors)}."
        )
    if indices.shape is None or indices.shape[-1] is None:
        indices = reshape(indices, (-1, rank))
    return _Parts(indices, values, shape, rank)


def _shape_vector(dims: Sequence[DimLike], dtype: DTypeLike) -> Tensor:
    """Return a shape as a vector; a constant where all of it is known."""
    return (
        convert_to_tensor([int(d) for d in dims if isinstance(d, int)], dtype)
        if all(isinstance(d, int) for d in dims)
        else stack([convert_to_tensor(d, dtype) for d in dims])
    )


# --- from and to dense tensors --------------------------------------------------------------------------------------


def from_dense(tensor: TensorLike) -> SparseTensor:
    """Return the elements of a dense tensor that are not zero, in row-major order; differentiable.

    Raises:
        ValueError: the number of axes is unknown or zero.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.sparse.from_dense([[0, 3], [4, 0]]))
    SparseTensor(indices=array([[0, 1],
           [1, 0]], dtype=int32), values=array([3, 4], dtype=int32), dense_shape=array([2, 2], dtype=int32))
    """
    x = convert_to_tensor(tensor)
    if not x.shape:
        raise ValueError(f"sparse.from_dense needs a known number of axes, at least one; got {x!r}.")
    indices = argwhere(x if x.dtype == dtypes.bool_ else not_equal(x, 0))
    return SparseTensor(indices, gather_nd(x, indices), runtime_shape(x))


def to_dense(sp_input: SparseTensor, default_value: TensorLike | None = None) -> Tensor:
    """Return the whole tensor. Places that are named more than once hold the sum.

    Args:
        sp_input: a sparse tensor.
        default_value: what stands at the places that are not stored; zero by default.

    Raises:
        IndexError: an index is outside of the shape (when the graph runs).
    """
    x = _parts(sp_input, "to_dense")
    shape = x.dims if constant_value(x.dense_shape) is not None else x.dense_shape
    dense = scatter(x.indices, x.values, shape)
    if default_value is None:
        return dense
    stored = scatter_update(zeros(shape, dtypes.bool_), x.indices, ones_like(x.values, dtypes.bool_))
    return where(stored, dense, convert_to_tensor(default_value, dense.dtype))


# --- other orders and parts -----------------------------------------------------------------------------------------


def _at(x: _Parts, order: Tensor) -> SparseTensor:
    return SparseTensor(take(x.indices, order, axis=0), take(x.values, order, axis=0), x.dense_shape)


def reorder(sp_input: SparseTensor) -> SparseTensor:
    """Return the same with its elements in row-major order."""
    x = _parts(sp_input, "reorder")
    return _at(x, argsort(x.places()))


def coalesce(sp_input: SparseTensor) -> SparseTensor:
    """Return the same in row-major order, with each place named once: what was named more often is added up."""
    x = _parts(sp_input, "coalesce")
    places = x.places()
    order = argsort(places)
    first = run_starts(take(places, order))
    numbers = cast(first, dtypes.int32)
    values = segment_sum(take(x.values, order, axis=0), cumsum(numbers) - 1, reduction.sum(numbers))
    return SparseTensor(boolean_mask(take(x.indices, order, axis=0), first), values, x.dense_shape)


def retain(sp_input: SparseTensor, to_retain: TensorLike) -> SparseTensor:
    """Return the stored elements for which the vector of bools `to_retain` is true."""
    x, mask = _parts(sp_input, "retain"), convert_to_tensor(to_retain)
    return SparseTensor(boolean_mask(x.indices, mask), boolean_mask(x.values, mask), x.dense_shape)


def transpose(sp_input: SparseTensor, perm: Sequence[int] | None = None) -> SparseTensor:
    """Return the axes in the order `perm`, or reversed; the elements in row-major order.

    Raises:
        ValueError: `perm` is not a permutation of the axes.
    """
    x = _parts(sp_input, "transpose")
    order = [normalize_axis(int(axis), x.rank, "perm") for axis in (range(x.rank)[::-1] if perm is None else perm)]
    if sorted(order) != list(range(x.rank)):
        raise ValueError(f"sparse.transpose: perm={perm} is no permutation of {x.rank} axes.")
    shape = _shape_vector([x.dims[axis] for axis in order], x.dense_shape.dtype)
    return reorder(SparseTensor(take(x.indices, order, axis=1), x.values, shape))


def slice(sp_input: SparseTensor, start: TensorLike, size: TensorLike) -> SparseTensor:
    """Return the part that begins at `start` and has `size` elements along each axis, or as many as there are.

    Args:
        sp_input: a sparse tensor.
        start: integers [rank].
        size: integers [rank].
    """
    x = _parts(sp_input, "slice")
    begin, wanted = convert_to_tensor(start, x.indices.dtype), convert_to_tensor(size, x.indices.dtype)
    moved = x.indices - begin
    inside = reduction.all(logical_and(greater_equal(moved, 0), less(moved, wanted)), axis=1)
    left = cast(x.dense_shape, wanted.dtype) - begin
    shape = cast(maximum(minimum(wanted, left), 0), x.dense_shape.dtype)
    return retain(SparseTensor(moved, x.values, shape), inside)


def concat(axis: int, sp_inputs: Sequence[SparseTensor]) -> SparseTensor:
    """Join sparse tensors along `axis`, in row-major order; all other sizes are the same.

    Raises:
        ValueError: there are none, or their shapes are known to differ elsewhere.
    """
    inputs = [_parts(each, "concat") for each in sp_inputs]
    if not inputs or len({each.rank for each in inputs}) > 1:
        ranks = [each.rank for each in inputs]
        raise ValueError(f"sparse.concat needs sparse tensors with as many axes each; got ranks {ranks}.")
    rank = inputs[0].rank
    place = normalize_axis(axis, rank)
    shapes = [each.dims for each in inputs]
    for other in range(rank):
        known = {dims[other] for dims in shapes if isinstance(dims[other], int)}
        if other != place and len(known) > 1:
            raise ValueError(f"sparse.concat(axis={axis}): the sizes of axis {other} differ: {sorted(known, key=str)}.")
    all_indices = promote(*[each.indices for each in inputs])
    moved: list[Tensor] = []
    total: DimLike = 0
    for indices, dims in zip(all_indices, shapes, strict=True):
        offset = [total if other == place else 0 for other in range(rank)]
        moved.append(indices + _shape_vector(offset, indices.dtype))
        total = total + dims[place]
    shape = _shape_vector([*shapes[0][:place], total, *shapes[0][place + 1 :]], inputs[0].dense_shape.dtype)
    values = concatenate([each.values for each in inputs])
    return reorder(SparseTensor(concatenate(moved), values, shape))


# --- matrix products ------------------------------------------------------------------------------------------------

_PART = 65536  # elements: as a composition, [n, width] intermediates of all stored elements take twice the time


def _parts_of(rows: Any, width: int) -> Iterable[Any]:
    step = max(1, _PART // max(1, width))
    return (builtins.slice(start, start + step) for start in range(0, len(rows), step))


@dataclass(frozen=True)
class SparseProduct(Op):
    """Inputs: rows [n], columns [n], values [n], a dense matrix [k, width], the number of rows m.

    The product [m, width] of the sparse matrix [m, k] and the dense one.

    Attributes:
        count: the number of rows, if it is known.
    """

    count: Dim

    def infer(self, *inputs: Any) -> TensorSpec:
        dense = inputs[3]
        return TensorSpec((self.count, None if dense.shape is None else dense.shape[1]), dense.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        rows, columns, values, dense, count = inputs
        rows = checked_positions(xp, rows, int(count), 0, wrap=False)
        columns = checked_positions(xp, columns, len(dense), 1, wrap=False)
        width = dense.shape[1]
        out = xp.zeros((int(count), width), dtypes.accumulator_of(dense.dtype) or dense.dtype)
        for part in _parts_of(rows, width):
            products = dense[columns[part]] * values[part][:, None]
            combine_rows(xp, "add", out, rows[part], products)
        return out.astype(dense.dtype, copy=False)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        rows, columns, values, dense, _ = node.inputs
        assert dy is not None
        d_values = apply(SampledProduct(), rows, columns, dy, dense) if node.needs(2) else None
        d_dense = sparse_product(columns, rows, values, dy, dim(dense, 0)) if node.needs(3) else None
        return None, None, d_values, d_dense, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        rows, columns = np.array([1, 0, 1, 1], "int32"), np.array([0, 2, 2, 0], "int64")
        values, dense = np.array([2, 3, 4, 5], "float32"), np.arange(6, dtype="float32").reshape(3, 2)
        expected = np.array([[0, 0, 3], [7, 0, 4]], "float32") @ dense
        two = np.int32(2)
        yield Sample(cls(2), [rows, columns, values, dense, two], expected, (2, 3), label="matrix")
        inputs = [rows[:1], columns[:1], values[:1], dense[:1, :1], two]
        yield Sample(cls(2), inputs, np.zeros((2, 1), "float32"), (2, 3), label="one")
        inputs = [rows[:0], columns[:0], values[:0], dense, two]
        yield Sample(cls(2), inputs, np.zeros((2, 2), "float32"), (2, 3), label="empty")
        inputs = [rows, columns, values, dense[:, :0], two]
        yield Sample(cls(2), inputs, np.zeros((2, 0), "float32"), (2, 3), label="no columns")
        many = np.zeros(70000, "int32")
        inputs = [many, many, np.ones(70000, "float32"), dense[1:, :1], np.int32(1)]
        yield Sample(cls(1), inputs, np.full((1, 1), 140000, "float32"), (), label="in parts")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        place, dense = np.array([1], "int32"), np.ones((1, 2), "float32")
        value = np.ones(1, "float32")

        def product(count: int, column: Any) -> Any:
            return cls(count).run(np, place, column, value, dense, np.int32(count))

        yield ErrorSample(lambda: product(2, place), IndexError, "index 1 .* axis 1 with size 1", "column")
        yield ErrorSample(lambda: product(1, place * 0), IndexError, "index 1 .* axis 0 with size 1", "row")


@dataclass(frozen=True)
class SampledProduct(Op):
    """Inputs: rows [n], columns [n], a [m, width], b [k, width]. Elements (row, column) of ``a @ b.T``."""

    cost: ClassVar[Cost] = Cost.PRODUCT

    def infer(self, *inputs: Any) -> TensorSpec:
        rows, _, a, _ = inputs
        return TensorSpec((None,) if rows.shape is None else rows.shape, a.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        rows, columns, a, b = inputs
        out, half = xp.empty(len(rows), a.dtype), dtypes.accumulator_of(a.dtype)
        for part in _parts_of(rows, a.shape[1]):
            left, right = a[rows[part]], b[columns[part]]
            out[part] = (left * right).sum(axis=1, dtype=half) if half else xp.einsum("ij,ij->i", left, right)
        return out

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        rows, columns, a, b = node.inputs
        assert dy is not None
        d_a = sparse_product(rows, columns, dy, b, dim(a, 0))
        return None, None, d_a, sparse_product(columns, rows, dy, a, dim(b, 0))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        rows, columns = np.array([1, 0, 1, 1], "int32"), np.array([0, 2, 2, 0], "int64")
        a, b = np.array([[1, 2], [3, 4]], "float32"), np.arange(6, dtype="float32").reshape(3, 2)
        yield Sample(cls(), [rows, columns, a, b], (a @ b.T)[rows, columns], (2, 3), label="some")
        yield Sample(cls(), [rows[:1], columns[:1], a, b], (a @ b.T)[1:, 0], (2, 3), label="one")
        yield Sample(cls(), [rows[:0], columns[:0], a, b], a[0, :0], (2, 3), label="empty")
        yield Sample(cls(), [rows, columns, a[:, :0], b[:, :0]], np.zeros(4, "float32"), (2, 3), label="no columns")


def sparse_product(rows: Tensor, columns: Tensor, values: Tensor, dense: Tensor, count: DimLike) -> Tensor:
    """Return the product of a sparse matrix of `count` rows and a dense one."""
    known = count if isinstance(count, int) else None
    return apply(SparseProduct(known), rows, columns, values, dense, convert_to_tensor(count, "int32"))


# --- arithmetic -----------------------------------------------------------------------------------------------------


def add(a: SparseTensor | TensorLike, b: SparseTensor | TensorLike) -> Any:
    """Return the sum: sparse (in row-major order, each place once) if both are, dense if one of them is a dense tensor.

    Raises:
        TypeError: neither is sparse.
        ValueError: the shapes are known to differ.

    >>> import anabranch as ab
    >>> x = ab.ops.SparseTensor([[1], [3]], [5.0, 7.0], [4])
    >>> ab.Session().run(ab.ops.sparse.add(x, x)).values
    array([10., 14.], dtype=float32)
    """
    if is_sparse(a) and is_sparse(b):
        first, second = _parts(a, "add"), _parts(b, "add")
        if not shapes_compatible(_static(first), _static(second)):
            shapes = f"{shape_text(_static(first))} and {shape_text(_static(second))}"
            raise ValueError(f"sparse.add: the shapes must be the same; got {shapes}.")
        indices = concatenate([first.indices, second.indices])
        return coalesce(SparseTensor(indices, concatenate([first.values, second.values]), first.dense_shape))
    sparse, other = (a, b) if is_sparse(a) else (b, a)
    x = _parts(sparse, "add")
    values, dense = promote(x.values, other)
    if not shapes_compatible(_static(x), dense.shape):
        raise ValueError(
            f"sparse.add: the shapes must be the same; got {shape_text(_static(x))} and {shape_text(dense.shape)}."
        )
    return scatter_add(dense, x.indices, values)


def _static(x: _Parts) -> tuple[int | None, ...]:
    return tuple(d if isinstance(d, int) else None for d in x.dims)


def reduce_sum(sp_input: SparseTensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the sum over `axis` (an int, several, or None for all), as a dense tensor.

    Raises:
        ValueError: an axis is out of range or given twice.
    """
    x = _parts(sp_input, "reduce_sum")
    axes = normalize_axes(axis, x.rank) or ()
    kept = [other for other in range(x.rank) if other not in axes]
    if kept:
        total = scatter(take(x.indices, kept, axis=1), x.values, [x.dims[other] for other in kept])
    else:
        total = reduction.sum(x.values)
    return expand_dims(total, axes) if keepdims and axes else total


def matmul(sp_a: SparseTensor, b: TensorLike, adjoint_a: bool = False, adjoint_b: bool = False) -> Tensor:
    """Multiply a sparse matrix by a dense one (``tf.sparse.sparse_dense_matmul``); differentiable in values and `b`.

    The time grows with the number of stored elements times the columns of `b`, the memory does not.

    Args:
        sp_a: a sparse matrix [m, k].
        b: a matrix [k, n].
        adjoint_a: `sp_a` is transposed (and conjugated) first.
        adjoint_b: the same of `b`.

    Returns:
        A dense matrix [m, n].

    Raises:
        IndexError: an index is outside of the matrices (when the graph runs).
        ValueError: they are not matrices, or their sizes are known not to fit.

    >>> import anabranch as ab
    >>> x = ab.ops.SparseTensor([[0, 1], [1, 0]], [5.0, 7.0], [2, 2])
    >>> ab.ops.sparse.matmul(x, [[1.0], [2.0]])
    Tensor([[10.],
            [ 7.]], dtype=float32)
    """
    x = _parts(sp_a, "matmul")
    values, dense = promote(x.values, b)
    if x.rank != 2 or dense.ndim not in (None, 2):
        raise ValueError(f"sparse.matmul multiplies matrices; got {x.rank} axes and {dense!r}.")
    values = conjugated(values) if adjoint_a else values
    dense = conjugated(dense).T if adjoint_b else dense
    (row, column), (m, k) = ((1, 0), x.dims[::-1]) if adjoint_a else ((0, 1), x.dims)
    if not shapes_compatible((k if isinstance(k, int) else None, None), dense.shape):
        raise ValueError(f"sparse.matmul: a matrix of {k} columns does not fit {dense!r}.")
    return sparse_product(x.indices[:, row], x.indices[:, column], values, dense, m)


def softmax(sp_input: SparseTensor) -> SparseTensor:
    """Return the softmax along the last axis over the stored elements: what is not stored counts as minus infinity."""
    x = _parts(sp_input, "softmax")
    rows = apply(FlatPlaces(), x.indices[:, :-1], x.dense_shape)
    count = math.prod(x.dims[:-1])
    highest = stop_gradient(segment_max(x.values, rows, count))
    powers = exp(x.values - gather(highest, rows))
    return SparseTensor(x.indices, powers / gather(segment_sum(powers, rows, count), rows), x.dense_shape)


def embedding_lookup_sparse(
    params: Any,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None = None,
    combiner: str = "mean",
    max_norm: float | None = None,
    partition_strategy: str = "mod",
) -> Tensor:
    """Sum or average, for each row of ids, the embeddings they name (``tf.nn.embedding_lookup_sparse``).

    Args:
        params: the table of embeddings [vocabulary, ...], or a list of shards of it, as for `embedding_lookup`.
        sp_ids: a sparse matrix [batch, ?] of ids.
        sp_weights: a weight for each id, with the same indices; 1 by default.
        combiner: "sum"; "mean": the sum divided by that of the weights; "sqrtn": by the root of that of their squares.
        max_norm: embeddings with a larger Euclidean norm are scaled down to this one first.
        partition_strategy: "mod" or "div": which rows each shard holds.

    Returns:
        A tensor [batch, ...]; rows without ids hold zeros (the last ones too, which TensorFlow leaves out).

    Raises:
        IndexError: an id is outside of the table (when the graph runs).
        ValueError: there is no such combiner, the ids are not a matrix, or what `embedding_lookup` refuses.

    >>> import anabranch as ab
    >>> ids = ab.ops.SparseTensor([[0, 0], [0, 1], [2, 0]], [1, 2, 0], [3, 2])
    >>> ab.ops.embedding_lookup_sparse(ab.constant([[1.0], [2.0], [4.0]]), ids)
    Tensor([[3.],
            [0.],
            [1.]], dtype=float32)
    """
    if combiner not in ("sum", "mean", "sqrtn"):
        raise ValueError(f"embedding_lookup_sparse: combiner must be 'sum', 'mean' or 'sqrtn'; got {combiner!r}.")
    ids = _parts(sp_ids, "embedding_lookup_sparse")
    if ids.rank != 2:
        raise ValueError(f"embedding_lookup_sparse: the ids must be a matrix; they have {ids.rank} axes.")
    rows, count = ids.indices[:, 0], ids.dims[0]
    embeddings = embedding_lookup(params, ids.values, partition_strategy, max_norm)
    if sp_weights is None:
        weights = ones_like(rows, embeddings.dtype)
    else:
        weights = convert_to_tensor(_parts(sp_weights, "embedding_lookup_sparse").values, embeddings.dtype)
        embeddings = scale_rows(embeddings, weights)
    total = segment_sum(embeddings, rows, count)
    if combiner == "sum":
        return total
    norm = segment_sum(square(weights) if combiner == "sqrtn" else weights, rows, count)
    norm = sqrt(norm) if combiner == "sqrtn" else norm
    return scale_rows(total, divide_no_nan(1.0, norm))


guard_entrances(globals(), __name__)

__all__ = [
    "SparseTensor",
    "add",
    "coalesce",
    "concat",
    "embedding_lookup_sparse",
    "from_dense",
    "is_sparse",
    "matmul",
    "reduce_sum",
    "reorder",
    "retain",
    "slice",
    "softmax",
    "to_dense",
    "transpose",
]
