"""Tensors made from nothing but sizes and numbers: zeros, arange, eye and their like; and triangles and diagonals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.axes import axis_number
from ...common.dtypes import DType, DTypeLike, as_dtype
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows, ResultSizes, SizesOfTensors, axes_from_front
from ...graph.graph import Operation
from ...graph.op import ErrorSample, Op, Sample, as_scalar_or_array
from ...graph.spec import Shape, TensorSpec
from ...graph.tensor import Symbol, Tensor
from .. import row_rules
from ..base import TensorLike, apply, cast, convert_to_tensor, is_source, make_constant, normalize_axis, promote
from ..run_time_shapes import ZerosOfShape, broadcast_like, runtime_shape, sum_like
from .shape_arguments import ShapeLike, fill_shape
from .shaping import broadcast_to, constant_value, dim, elements, expand_dims, is_shape_vector, reshape, resolve_shape

# What is known when the graph is built becomes a constant up to this many elements, and is computed by the run beyond.
_LARGEST_CONSTANT = 1 << 14


def _small(shape: Sequence[int | None]) -> bool:
    return None not in shape and elements(d or 0 for d in shape) <= _LARGEST_CONSTANT


# --- filled ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fill(Op):
    """A shape filled with a scalar. Inputs: the scalar, and what fills the Nones of `shape`."""

    shape: tuple[int | None, ...]
    repeats_values: ClassVar[bool] = True
    row_state = row_rules.spread

    def infer(self, *inputs: Any) -> TensorSpec:
        if inputs[0].shape not in (None, ()):
            raise ValueError(f"A shape is filled with a scalar; got {inputs[0]}.")
        return TensorSpec(self.shape, inputs[0].dtype)

    def result_sizes(self, node: Operation, sizes: SizesOfTensors) -> Sequence[ResultSizes] | None:
        return [sizes.filled_in(self.shape, node.inputs[1:])]

    def run(self, xp: Any, *inputs: Any) -> Any:
        value, *sizes = inputs
        shape = fill_shape(self.shape, sizes)
        if xp is np and not any(value.tobytes()):  # memory that is zero already is for nothing; -0.0 has a bit set
            return as_scalar_or_array(np.zeros(shape, value.dtype))
        return as_scalar_or_array(xp.full(shape, value, value.dtype))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return sum_like(dy, node.inputs[0]), *[None] * (len(node.inputs) - 1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield Sample(cls((2, 3)), [np.float32(2)], np.full((2, 3), 2, "float32"), label="static")
        inputs = [np.float32(2), np.int32(3)]
        yield Sample(cls((None, 1)), inputs, np.full((3, 1), 2, "float32"), differentiable=(0,), label="dynamic")
        yield Sample(cls((2,)), [np.float32(-0.0)], np.full(2, -0.0, "float32"), label="negative zero")
        yield Sample(cls((2,)), [np.int32(0)], np.zeros(2, "int32"), differentiable=(), label="zeros")
        yield Sample(cls(()), [np.float32(3)], np.float32(3), label="0-d")
        yield Sample(cls((0, 2)), [np.float32(3)], np.zeros((0, 2), "float32"), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: cls((2,)).infer(TensorSpec((2,), dtypes.float32)), ValueError, "a scalar")


def full(shape: ShapeLike, fill_value: TensorLike, dtype: DTypeLike = None) -> Tensor:
    """Return a tensor of `shape` (ints, scalar tensors, or one vector tensor) filled with `fill_value`.

    Args:
        shape: the shape of the result.
        fill_value: a scalar, or what broadcasts to `shape`.
        dtype: by default `config.floatx()` for numbers, as in Keras; strings and complex numbers keep theirs.

    >>> import anabranch as ab
    >>> ab.ops.full((2,), 7), ab.ops.full((2,), 7, "int32")
    (Tensor([7., 7.], dtype=float32), Tensor([7, 7], dtype=int32))
    """
    value = convert_to_tensor(fill_value, dtype)
    if dtype is None and value.dtype.kind not in "Tc":
        value = cast(value, dtypes.default_float())
    if is_shape_vector(shape):
        return broadcast_to(value, shape)
    static, dynamic = resolve_shape(shape)
    if any(d is not None and d < 0 for d in static):
        raise ValueError(f"Shape {static} has a negative size. Sizes that are not known yet come from ops.shape.")
    if value.shape != ():
        return broadcast_to(value, shape)
    known = None if is_source(value, fill_value) else constant_value(value)
    if known is not None and _small(static):
        if not static and value is fill_value:
            return value
        # A scalar, too, is not shared with equal numbers, which are no part of the gradient by it.
        return make_constant(np.full([d or 0 for d in static], known, value.dtype))
    return apply(Fill(static), value, *dynamic)


def zeros(shape: ShapeLike, dtype: DTypeLike = None) -> Tensor:
    """Return zeros of `shape`; of `config.floatx()` unless `dtype` says otherwise. The zero of strings is ""."""
    wanted = as_dtype(dtype)
    return full(shape, "" if dtypes.is_string(wanted) else 0, wanted)


def ones(shape: ShapeLike, dtype: DTypeLike = None) -> Tensor:
    """Return ones of `shape`; of `config.floatx()` unless `dtype` says otherwise."""
    return full(shape, 1, as_dtype(dtype))


def zeros_like(x: TensorLike, dtype: DTypeLike = None) -> Tensor:
    """Return zeros of the shape of `x`, and of its dtype unless another is given. Values of `x` are not needed."""
    tensor = convert_to_tensor(x)
    wanted = as_dtype(dtype) if dtype is not None else tensor.dtype
    if tensor.shape is not None and None not in tensor.shape:
        return zeros(tensor.shape, wanted)
    return apply(ZerosOfShape(tensor.shape, wanted), runtime_shape(tensor))


def ones_like(x: TensorLike, dtype: DTypeLike = None) -> Tensor:
    """Return ones of the shape of `x`, and of its dtype unless another is given. Values of `x` are not needed."""
    return full_like(x, 1, dtype)


def full_like(x: TensorLike, fill_value: TensorLike, dtype: DTypeLike = None) -> Tensor:
    """Return `fill_value` in the shape of `x`, and of its dtype unless given. Of `x` only the shape is needed."""
    tensor = convert_to_tensor(x)
    wanted = as_dtype(dtype) if dtype is not None else tensor.dtype
    if tensor.shape is not None and None not in tensor.shape:
        return full(tensor.shape, fill_value, wanted)
    return broadcast_like(convert_to_tensor(fill_value, wanted), tensor)


# --- sequences ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range(Op):
    """start, start + step, ... up to stop, which is left out. Inputs: start, stop, step, scalars of one dtype."""

    shape_from_values: ClassVar[bool] = True
    size: int | None

    def infer(self, *inputs: Any) -> TensorSpec:
        for spec in inputs:
            if spec.shape not in (None, ()):
                raise ValueError(f"arange: start, stop and step must be scalars; got {spec}.")
            if spec.dtype.kind in "bc":
                raise TypeError(f"arange: start, stop and step must be real numbers; got {spec}.")
        return TensorSpec((self.size,), inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        start, stop, step = inputs
        if not step:
            raise ValueError(f"arange(start={start}, stop={stop}, step=0): the step must not be zero.")
        return _arange(xp, start, stop, step)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        start, _, step = node.inputs
        count = arange(0, dim(dy, 0), dtype="int32")
        return sum_like(dy, start), None, sum_like(dy * convert_to_tensor(count, dy.dtype), step)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        ints = [np.int32(2), np.int32(9), np.int32(3)]
        yield Sample(cls(3), ints, np.array([2, 5, 8], "int32"), differentiable=(), label="ints")
        down = [np.float32(1), np.float32(-0.7), np.float32(-0.5)]
        yield Sample(cls(None), down, np.array([1, 0.5, 0, -0.5], "float32"), differentiable=(0, 2), label="floats")
        yield Sample(cls(None), [ints[1], ints[0], ints[2]], np.zeros(0, "int32"), differentiable=(), label="empty")
        wide = [np.int8(-100), np.int8(100), np.int8(100)]
        yield Sample(cls(None), wide, np.array([-100, 0], "int8"), differentiable=(), label="wide")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        scalar, vector = TensorSpec((), dtypes.int32), TensorSpec((2,), dtypes.int32)
        yield ErrorSample(lambda: cls(None).infer(scalar, vector, scalar), ValueError, "must be scalars")
        zero = np.int32(0)
        yield ErrorSample(lambda: cls(None).run(np, zero, np.int32(3), zero), ValueError, "not be zero")


def _arange(xp: Any, *limits: Any) -> Any:
    """Return NumPy's arange over scalars of one dtype."""
    # In small and unsigned types NumPy's own `stop - start` overflows: an empty range would become a huge one.
    numbers = [limit.item() for limit in limits] if dtypes.is_integer(limits[0].dtype) else limits
    return xp.arange(*numbers, dtype=limits[0].dtype)


def _arange_size(start: Any, stop: Any, step: Any) -> int:
    """Return the number of elements of NumPy's arange, over scalars of one dtype, without making them."""
    if dtypes.is_integer(start.dtype):
        return max(0, -((start.item() - stop.item()) // step.item()))
    with np.errstate(all="ignore"):
        parts = float((stop - start) / step)
    return max(0, math.ceil(parts)) if math.isfinite(parts) else 0  # then NumPy says what is wrong


def _dtype_of_limits(numbers: Sequence[int | float]) -> Any:
    """Return the dtype in which a range is computed, given Python's numbers as its limits."""
    if any(isinstance(number, float) for number in numbers):
        return dtypes.float64  # as in NumPy
    for narrow in (dtypes.int32, dtypes.int64):
        if np.iinfo(narrow).min <= min(numbers) and max(numbers) <= np.iinfo(narrow).max:
            return narrow
    return as_dtype("uint64")


def arange(
    start: TensorLike, stop: TensorLike | None = None, step: TensorLike | None = None, dtype: DTypeLike = None
) -> Tensor:
    """Return start, start + step, ... up to `stop`, which is left out; ``arange(n)`` counts from 0.

    Args:
        start: a number or scalar tensor; the first element, or the end if `stop` is left out.
        stop: a number or scalar tensor.
        step: a number or scalar tensor; 1 if left out.
        dtype: by default the common dtype of the arguments: int32 for ints, `config.floatx()` for Python's floats.

    Raises:
        ValueError: the step is zero, or an argument is not a scalar.

    >>> import anabranch as ab
    >>> ab.ops.arange(1, 10, 4)
    Tensor([1, 5, 9], dtype=int32)
    """
    if stop is None:
        start, stop = 0, start
    step = 1 if step is None else step
    given = (start, stop, step)
    wanted = None if dtype is None else as_dtype(dtype)
    numbers = [each for each in given if isinstance(each, (int, float))]
    if len(numbers) == 3 and (dtype is not None or any(isinstance(number, float) for number in numbers)):
        inputs = [convert_to_tensor(number, _dtype_of_limits(numbers)) for number in numbers]
        wanted = wanted or dtypes.default_float()
    else:
        inputs = promote(*given)
        wanted = wanted or inputs[0].dtype
        if wanted == dtypes.float64:
            inputs = [cast(each, wanted) for each in given]
    values = [constant_value(value) for value in inputs]
    if values[2] is not None and values[2] == 0:
        raise ValueError(f"arange(start={start}, stop={stop}, step=0): the step must not be zero.")
    if any(value is None for value in values):
        return convert_to_tensor(apply(Range(None), *inputs), wanted)
    size = _arange_size(*values)
    if size <= _LARGEST_CONSTANT and not any(map(is_source, inputs, given)):
        return make_constant(_arange(np, *values).astype(wanted))
    return convert_to_tensor(apply(Range(size), *inputs), wanted)


# --- matrices -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tri(Op):
    """A matrix of ones at and below diagonal `offset`, or on it only; zeros elsewhere. Inputs fill Nones of `shape`."""

    shape: tuple[int | None, int | None]
    offset: int
    only: bool
    dtype: DType

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(self.shape, self.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        rows, columns = fill_shape(self.shape, inputs)
        make = xp.eye if self.only else xp.tri
        return make(rows, columns, self.offset, dtype=self.dtype)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        f = dtypes.float32
        expected = np.array([[0, 1, 0], [0, 0, 1]], "float32")
        yield Sample(cls((2, 3), 1, True, f), [], expected, differentiable=(), label="eye")
        expected = np.array([[1, 0], [1, 1], [1, 1]], "int32")
        inputs = [np.int32(3)]
        yield Sample(cls((None, 2), 0, False, dtypes.int32), inputs, expected, differentiable=(), label="tri")
        yield Sample(cls((0, 2), 0, True, f), [], np.zeros((0, 2), "float32"), differentiable=(), label="empty")


def _matrix(N: Any, M: Any, k: int, dtype: DTypeLike, only: bool) -> Tensor:
    static, dynamic = resolve_shape((N, N if M is None else M))
    wanted = as_dtype(dtype)
    if _small(static):
        rows, columns = (d or 0 for d in static)
        return make_constant((np.eye if only else np.tri)(rows, columns, k, dtype=wanted))
    return apply(Tri((static[0], static[1]), k, only, wanted), *dynamic)


def eye(N: Any, M: Any = None, k: int = 0, dtype: DTypeLike = None) -> Tensor:
    """Return an N x M matrix (square if M is None) with ones on diagonal `k` and zeros elsewhere.

    >>> import anabranch as ab
    >>> ab.ops.eye(2)
    Tensor([[1., 0.],
            [0., 1.]], dtype=float32)
    """
    return _matrix(N, M, k, dtype, only=True)


def identity(n: Any, dtype: DTypeLike = None) -> Tensor:
    """Return the n x n identity matrix."""
    return eye(n, dtype=dtype)


def tri(N: Any, M: Any = None, k: int = 0, dtype: DTypeLike = None) -> Tensor:
    """Return an N x M matrix (square if M is None) with ones at and below diagonal `k` and zeros above."""
    return _matrix(N, M, k, dtype, only=False)


@dataclass(frozen=True)
class Triangle(Op):
    """The last two axes as matrices, with zeros above (or, for `upper`, below) diagonal `offset`."""

    offset: int
    upper: bool
    never_fails: ClassVar[bool] = True
    last_axes: ClassVar[int | tuple[int, ...] | None] = 2

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if x.shape is not None and len(x.shape) < 2:
            raise ValueError(f"{'triu' if self.upper else 'tril'} needs matrices (at least two axes); got {x}.")
        return x

    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.triu(inputs[0], self.offset) if self.upper else xp.tril(inputs[0], self.offset)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (apply(self, dy),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(1, 7, dtype="float32").reshape(2, 3)
        yield Sample(cls(0, False), [x], np.array([[1, 0, 0], [4, 5, 0]], "float32"), label="lower")
        yield Sample(cls(1, True), [x], np.array([[0, 2, 3], [0, 0, 6]], "float32"), label="upper")
        yield Sample(cls(0, True), [np.stack([x, x])], np.stack([np.triu(x)] * 2), label="batch")
        yield Sample(cls(0, True), [x[:0]], x[:0], label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: cls(0, True).infer(TensorSpec((2,), dtypes.float32)), ValueError, "triu needs matr")


def tril(x: TensorLike, k: int = 0) -> Tensor:
    """Return the matrices `x` (its last two axes) with zeros above diagonal `k`, which may be a tensor."""
    return _triangle(x, k, upper=False)


def triu(x: TensorLike, k: int = 0) -> Tensor:
    """Return the matrices `x` (its last two axes) with zeros below diagonal `k`, which may be a tensor."""
    return _triangle(x, k, upper=True)


def _triangle(x: TensorLike, k: Any, upper: bool) -> Tensor:
    tensor = convert_to_tensor(x)
    if not isinstance(k, Symbol):
        return apply(Triangle(axis_number(k, "k"), upper), tensor)
    from ..math.comparison import where

    Triangle(0, upper).infer(tensor.spec)  # has matrices alone
    distance = arange(dim(tensor, -1)) - expand_dims(arange(dim(tensor, -2)), 1)
    return where(distance >= k if upper else distance <= k, tensor, zeros((), tensor.dtype))


# --- diagonals ------------------------------------------------------------------------------------------------------


def _diagonal_length(rows: int, columns: int, offset: int) -> int:
    return max(0, min(rows + min(offset, 0), columns - max(offset, 0)))


def _plane(rank: int, axis1: int, axis2: int) -> tuple[int, int]:
    """Return two axes, counted from the front.

    Raises:
        ValueError: one is out of range, or they are one and the same.
    """
    first, second = normalize_axis(axis1, rank, "axis1"), normalize_axis(axis2, rank, "axis2")
    if first == second:
        raise ValueError(f"diagonal: axis1={axis1} and axis2={axis2} must be two different axes.")
    return first, second


@dataclass(frozen=True)
class Diagonal(Op):
    """Diagonal `offset` of the planes of two axes, as the last axis of the result."""

    offset: int
    axis1: int
    axis2: int
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis1", "axis2")
    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if x.shape is None:
            return TensorSpec(None, x.dtype)
        if len(x.shape) < 2:
            raise ValueError(f"diagonal needs at least two axes; got {x}.")
        first, second = _plane(len(x.shape), self.axis1, self.axis2)
        rows, columns = x.shape[first], x.shape[second]
        length = None if rows is None or columns is None else _diagonal_length(rows, columns, self.offset)
        return TensorSpec((*[d for a, d in enumerate(x.shape) if a not in (first, second)], length), x.dtype)

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        gone = axes_from_front((self.axis1, self.axis2), rank)
        return tuple([(Follows(0, axis),) for axis in range(rank) if axis not in gone])

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0].diagonal(self.offset, self.axis1, self.axis2)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        x = node.inputs[0]
        return (apply(PutDiagonal(self.offset, self.axis1, self.axis2, x.shape), dy, runtime_shape(x)),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(2, 3)
        yield Sample(cls(0, 0, 1), [x], np.array([0, 4], "float32"), label="main")
        yield Sample(cls(-1, 0, 1), [x], np.array([3], "float32"), label="below")
        yield Sample(cls(1, 2, 0), [np.stack([x, x])], np.array([[1], [4]], "float32") * 0 + x[:, :1], label="batch")
        yield Sample(cls(5, 0, 1), [x], np.zeros(0, "float32"), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: cls(0, 0, 1).infer(TensorSpec((2,), dtypes.float32)), ValueError, "two axes", "rank")
        spec = TensorSpec((2, 2), dtypes.float32)
        yield ErrorSample(lambda: cls(0, 0, -2).infer(spec), ValueError, "different axes", "same")


@dataclass(frozen=True)
class PutDiagonal(Op):
    """Zeros with the last axis of the input on a diagonal. Inputs: the values, the shape as an int32 vector."""

    offset: int
    axis1: int
    axis2: int
    shape: Shape
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis1", "axis2")
    shape_input: ClassVar[int | None] = 1

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(self.shape, inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        values, shape = inputs
        out = xp.zeros(tuple(int(size) for size in shape), values.dtype)
        planes = xp.moveaxis(out, (self.axis1, self.axis2), (-2, -1))
        rows = xp.arange(values.shape[-1]) + max(-self.offset, 0)
        planes[..., rows, rows + self.offset] = values
        return out

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return apply(Diagonal(self.offset, self.axis1, self.axis2), dy), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        v = np.array([[1, 2], [3, 4]], "float32")
        shape = np.array([2, 3], "int32")
        expected = np.array([[0, 1, 0], [0, 0, 2]], "float32")
        yield Sample(cls(1, 0, 1, (2, 3)), [v[0], shape], expected, differentiable=(0,), label="above")
        expected = np.array([[0, 0], [1, 0], [0, 2]], "float32")
        inputs = [v[0], shape[::-1].copy()]
        yield Sample(cls(-1, 0, 1, (None, 2)), inputs, expected, differentiable=(0,), label="below")
        expected = np.array([[[1, 0], [0, 2]], [[3, 0], [0, 4]]], "float32")
        inputs = [v, np.array([2, 2, 2], "int32")]
        yield Sample(cls(0, 1, 2, (2, 2, 2)), inputs, expected, differentiable=(0,), label="batch")
        yield Sample(cls(3, 0, 1, (2, 3)), [v[0, :0], shape], np.zeros((2, 3)), differentiable=(0,), label="empty")


@dataclass(frozen=True)
class Diag(Op):
    """A square matrix with the input vector on diagonal `offset`."""

    offset: int
    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if x.shape is not None and len(x.shape) != 1:
            raise ValueError(f"diag makes a matrix from a vector; got {x}.")
        size = None if x.shape is None or x.shape[0] is None else x.shape[0] + abs(self.offset)
        return TensorSpec((size, size), x.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.diag(inputs[0], self.offset)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (apply(Diagonal(self.offset, 0, 1), dy),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        v = np.array([1, 2], "float32")
        yield Sample(cls(0), [v], np.array([[1, 0], [0, 2]], "float32"), label="main")
        yield Sample(cls(-1), [v], np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0]], "float32"), label="below")
        yield Sample(cls(1), [v[:0]], np.zeros((1, 1), "float32"), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: cls(0).infer(TensorSpec((), dtypes.float32)), ValueError, "from a vector")


def diagonal(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Return diagonal `offset` of the planes of two axes of `x`, as the last axis of the result.

    Raises:
        ValueError: there are not two such axes.
    """
    tensor = convert_to_tensor(x)
    if tensor.shape is not None and len(tensor.shape) >= 2:
        axis1, axis2 = _plane(len(tensor.shape), axis1, axis2)
    return apply(Diagonal(offset, axis1, axis2), tensor)


def diag(x: TensorLike, k: int = 0) -> Tensor:
    """Return a matrix with the vector `x` on diagonal `k`, or diagonal `k` of the matrix `x`.

    Raises:
        ValueError: `x` is neither a vector nor a matrix.
    """
    tensor = convert_to_tensor(x)
    if tensor.ndim not in (1, 2):
        raise ValueError(f"diag needs a vector or a matrix; got {tensor!r}. For batches there is ops.diagonal.")
    return apply(Diag(axis_number(k, "k")), tensor) if tensor.ndim == 1 else diagonal(tensor, k)


def meshgrid(*x: TensorLike, indexing: str = "xy") -> list[Tensor]:
    """Return coordinate tensors from coordinate vectors: each vector repeated along the axes of all others.

    Args:
        *x: vectors; other tensors are flattened, as in NumPy.
        indexing: "xy" has the first vector along axis 1 and the second along axis 0; "ij" keeps the order.

    Raises:
        ValueError: `indexing` is neither.
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}.")
    vectors = [v if v.ndim == 1 else reshape(v, (-1,)) for v in map(convert_to_tensor, x)]
    order = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        order[0], order[1] = 1, 0
    sizes: list[Any] = [None] * len(vectors)
    for vector, axis in zip(vectors, order, strict=True):
        sizes[axis] = dim(vector, 0)
    others = [tuple(a for a in range(len(vectors)) if a != axis) for axis in order]
    return [broadcast_to(expand_dims(v, rest), sizes) for v, rest in zip(vectors, others, strict=True)]


__all__ = [
    "arange",
    "diag",
    "diagonal",
    "eye",
    "full",
    "full_like",
    "identity",
    "meshgrid",
    "ones",
    "ones_like",
    "tri",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]
