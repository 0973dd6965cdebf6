"""`tf.math`: elementwise functions, reductions and segments with TensorFlow's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

from ...engine import ops
from ...engine.common.dtypes import DTypeLike, is_floating, is_integer, largest
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from .elementwise import abs as abs
from .elementwise import acos as acos
from .elementwise import acosh as acosh
from .elementwise import add as add
from .elementwise import angle as angle
from .elementwise import asin as asin
from .elementwise import asinh as asinh
from .elementwise import atan as atan
from .elementwise import atan2 as atan2
from .elementwise import atanh as atanh
from .elementwise import ceil as ceil
from .elementwise import conj as conj
from .elementwise import cos as cos
from .elementwise import cosh as cosh
from .elementwise import divide_no_nan as divide_no_nan
from .elementwise import equal as equal
from .elementwise import erf as erf
from .elementwise import erfc as erfc
from .elementwise import erfinv as erfinv
from .elementwise import exp as exp
from .elementwise import expm1 as expm1
from .elementwise import floor as floor
from .elementwise import floordiv as floordiv
from .elementwise import floormod as floormod
from .elementwise import greater as greater
from .elementwise import greater_equal as greater_equal
from .elementwise import imag as imag
from .elementwise import is_finite as is_finite
from .elementwise import is_inf as is_inf
from .elementwise import is_nan as is_nan
from .elementwise import less as less
from .elementwise import less_equal as less_equal
from .elementwise import log as log
from .elementwise import log1p as log1p
from .elementwise import log_sigmoid as log_sigmoid
from .elementwise import logical_and as logical_and
from .elementwise import logical_not as logical_not
from .elementwise import logical_or as logical_or
from .elementwise import logical_xor as logical_xor
from .elementwise import maximum as maximum
from .elementwise import minimum as minimum
from .elementwise import mod as mod
from .elementwise import multiply as multiply
from .elementwise import negative as negative
from .elementwise import not_equal as not_equal
from .elementwise import pow as pow
from .elementwise import real as real
from .elementwise import reciprocal as reciprocal
from .elementwise import round as round
from .elementwise import rsqrt as rsqrt
from .elementwise import sigmoid as sigmoid
from .elementwise import sign as sign
from .elementwise import sin as sin
from .elementwise import sinh as sinh
from .elementwise import softplus as softplus
from .elementwise import softsign as softsign
from .elementwise import sqrt as sqrt
from .elementwise import square as square
from .elementwise import squared_difference as squared_difference
from .elementwise import subtract as subtract
from .elementwise import tan as tan
from .elementwise import tanh as tanh


def divide(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Divide; integers of 32 and 64 bits give float64, smaller ones float32."""
    dtypes = [ops.convert_to_tensor(each).dtype for each in (x, y)]
    if all(is_integer(dtype) for dtype in dtypes) and max(dtype.itemsize for dtype in dtypes) >= 4:
        x, y = ops.cast(x, "float64"), ops.cast(y, "float64")
    return ops.divide(x, y)


truediv = divide


def reduce_sum(
    input_tensor: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute the sum over axes, 0 of no elements."""
    return ops.sum(input_tensor, axis=axis, keepdims=keepdims)


def reduce_mean(
    input_tensor: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute the mean over axes, NaN of no elements; integers give float32."""
    return ops.mean(input_tensor, axis=axis, keepdims=keepdims)


def reduce_prod(
    input_tensor: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute the product over axes, 1 of no elements."""
    return ops.prod(input_tensor, axis=axis, keepdims=keepdims)


def reduce_max(
    input_tensor: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute the largest element over axes."""
    return ops.max(input_tensor, axis=axis, keepdims=keepdims)


def reduce_min(
    input_tensor: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute the smallest element over axes."""
    return ops.min(input_tensor, axis=axis, keepdims=keepdims)


def reduce_any(
    input_tensor: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Test whether any element over axes is true."""
    return ops.any(input_tensor, axis=axis, keepdims=keepdims)


def reduce_all(
    input_tensor: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Test whether all elements over axes are true."""
    return ops.all(input_tensor, axis=axis, keepdims=keepdims)


def reduce_logsumexp(
    input_tensor: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute ``log(sum(exp(input_tensor)))`` over axes, without overflow."""
    return ops.logsumexp(input_tensor, axis=axis, keepdims=keepdims)


def reduce_std(
    input_tensor: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute the standard deviation over axes: the root of the mean squared distance from the mean."""
    return ops.std(input_tensor, axis=axis, keepdims=keepdims)


def reduce_variance(
    input_tensor: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute the variance over axes: the mean squared distance from the mean."""
    return ops.var(input_tensor, axis=axis, keepdims=keepdims)


def reduce_euclidean_norm(
    input_tensor: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute the square root of the sum of squares along axes, of all elements by default."""
    return ops.sqrt(ops.sum(ops.square(input_tensor), axis=axis, keepdims=keepdims))


def count_nonzero(
    input: TensorLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    dtype: DTypeLike = "int64",
    name: str | None = None,
) -> Tensor:
    """Count the elements that are not 0 along axes."""
    return ops.sum(ops.cast(ops.not_equal(input, ops.zeros_like(input)), dtype), axis=axis, keepdims=keepdims)


def add_n(inputs: Sequence[TensorLike], name: str | None = None) -> Tensor:
    """Add tensors of one shape.

    Raises:
        ValueError: `inputs` is empty.
    """
    if not len(inputs):
        raise ValueError("tf.add_n: inputs must hold at least one tensor, got none.")
    return ops.convert_to_tensor(reduce(ops.add, inputs))


def argmax(
    input: TensorLike, axis: int | None = None, output_type: DTypeLike = "int64", name: str | None = None
) -> Tensor:
    """Find the position of the largest value, along the first axis by default."""
    return ops.cast(ops.argmax(input, 0 if axis is None else axis), output_type)


def argmin(
    input: TensorLike, axis: int | None = None, output_type: DTypeLike = "int64", name: str | None = None
) -> Tensor:
    """Find the position of the smallest value, along the first axis by default."""
    return ops.cast(ops.argmin(input, 0 if axis is None else axis), output_type)


def cumsum(
    x: TensorLike, axis: int = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """Compute the sums of the elements up to each one, along an axis.

    Args:
        x: a tensor.
        axis: the axis, the first one by default.
        exclusive: whether each element is left out of its own result.
        reverse: whether to begin with the last element.
    """
    return _accumulate(ops.cumsum, 0, x, axis, exclusive, reverse)


def cumprod(
    x: TensorLike, axis: int = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """Compute the products of the elements up to each one, along an axis; for the arguments see `cumsum`."""
    return _accumulate(ops.cumprod, 1, x, axis, exclusive, reverse)


def _accumulate(
    op: Callable[..., Tensor], neutral: int, x: TensorLike, axis: int, exclusive: bool, reverse: bool
) -> Tensor:
    x = ops.convert_to_tensor(x)
    given = ops.flip(x, axis) if reverse else x
    result = op(given, axis)
    if exclusive:
        start = ops.full_like(ops.split(given, [1], axis)[0], neutral)
        result = ops.take(ops.concatenate([start, result], axis), ops.arange(ops.shape(x)[axis]), axis)
    return ops.flip(result, axis) if reverse else result


class TopK(NamedTuple):
    """The largest values along the last axis, and their positions."""

    values: Tensor
    indices: Tensor


def top_k(input: TensorLike, k: int = 1, sorted: bool = True, name: str | None = None) -> TopK:
    """Find the `k` largest values along the last axis, and their positions."""
    return TopK(*ops.top_k(input, k, sorted))


def in_top_k(targets: TensorLike, predictions: TensorLike, k: int, name: str | None = None) -> Tensor:
    """Find whether the predictions for targets are among the `k` largest of their rows."""
    return ops.in_top_k(targets, predictions, k)


def l2_normalize(
    x: TensorLike, axis: int | Sequence[int] | None = None, epsilon: float = 1e-12, name: str | None = None
) -> Tensor:
    """Divide a tensor by its Euclidean norm along axes, and by the root of `epsilon` where that is larger."""
    return ops.l2_normalize(x, axis, epsilon)


def bincount(
    arr: TensorLike,
    weights: TensorLike | None = None,
    minlength: int | None = None,
    maxlength: int | None = None,
    dtype: DTypeLike = "int32",
    name: str | None = None,
    axis: int | None = None,
    binary_output: bool = False,
) -> Tensor:
    """Count how often each whole number occurs.

    Args:
        arr: whole numbers, 0 or larger.
        weights: what each occurrence adds, in the shape of `arr`; by default 1.
        minlength: the least number of counts.
        maxlength: the largest number of counts; larger numbers are not counted.
        dtype: the dtype of the counts; with `weights` theirs.
        axis: None or 0 for the counts of all numbers, -1 for those of each row.
        binary_output: give 1 for each number that occurs, in place of how often.

    Raises:
        ValueError: `axis` is another one, or `binary_output` is given with `weights`.
    """
    if axis not in (None, 0, -1):
        raise ValueError(f"tf.math.bincount: axis must be None, 0 or -1, got {axis!r}.")
    if binary_output and weights is not None:
        raise ValueError("tf.math.bincount: binary_output takes no weights, got both. Leave one of them out.")
    if axis != -1:
        arr, weights = ops.reshape(arr, (-1,)), None if weights is None else ops.reshape(weights, (-1,))
    counts = ops.bincount(arr, weights, minlength or 0)
    counts = counts if maxlength is None else counts[..., :maxlength]
    counts = ops.minimum(counts, 1) if binary_output else counts
    return ops.cast(counts, dtype) if weights is None else counts


def confusion_matrix(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int | None = None,
    weights: TensorLike | None = None,
    dtype: DTypeLike = "int32",
    name: str | None = None,
) -> Tensor:
    """Count for each label (row) and prediction (column) how often they occur together.

    Args:
        labels: classes, a vector of whole numbers.
        predictions: classes, a vector of the same length.
        num_classes: the number of classes; by default one more than the largest class.
        weights: what each pair adds; by default 1.
        dtype: the dtype of the result.
    """
    pairs = ops.stack([ops.reshape(ops.cast(each, "int64"), (-1,)) for each in (labels, predictions)], axis=-1)
    if num_classes is None:
        num_classes = int(ops.max(pairs)) + 1
    added = ops.ones_like(pairs[:, 0]) if weights is None else ops.reshape(weights, (-1,))
    return ops.scatter_nd(pairs, ops.cast(added, dtype), (num_classes, num_classes))


def zero_fraction(value: TensorLike, name: str | None = None) -> Tensor:
    """Compute the share of the elements that are 0; float32."""
    return ops.mean(ops.cast(ops.equal(value, ops.zeros_like(value)), "float32"))


def segment_sum(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Add up the rows of each segment, 0 of none; ids are sorted."""
    return ops.segment_sum(data, segment_ids)


def segment_mean(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Compute the mean of the rows of each segment, 0 of none; ids are sorted."""
    return ops.segment_mean(data, segment_ids)


def segment_max(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Find the largest elements of the rows of each segment, 0 of none; ids are sorted."""
    return _without_infinities(ops.segment_max(data, segment_ids), segment_ids)


def segment_min(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Find the smallest elements of the rows of each segment, 0 of none; ids are sorted."""
    return _without_infinities(ops.segment_min(data, segment_ids), segment_ids)


def segment_prod(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Multiply the rows of each segment, 1 of none; ids are sorted."""
    return ops.segment_prod(data, segment_ids)


def unsorted_segment_sum(
    data: TensorLike, segment_ids: TensorLike, num_segments: int | Tensor, name: str | None = None
) -> Tensor:
    """Add up the rows of each of `num_segments` segments, 0 of none."""
    return ops.segment_sum(data, segment_ids, num_segments)


def unsorted_segment_mean(
    data: TensorLike, segment_ids: TensorLike, num_segments: int | Tensor, name: str | None = None
) -> Tensor:
    """Compute the mean of the rows of each of `num_segments` segments, 0 of none."""
    return ops.segment_mean(data, segment_ids, num_segments)


def unsorted_segment_max(
    data: TensorLike, segment_ids: TensorLike, num_segments: int | Tensor, name: str | None = None
) -> Tensor:
    """Find the largest elements of the rows of each of `num_segments` segments, the lowest number of none."""
    result = ops.segment_max(data, segment_ids, num_segments)
    # Of no rows it is infinite in this package.
    return ops.maximum(result, -largest(result.dtype)) if is_floating(result.dtype) else result


def unsorted_segment_min(
    data: TensorLike, segment_ids: TensorLike, num_segments: int | Tensor, name: str | None = None
) -> Tensor:
    """Find the smallest elements of the rows of each of `num_segments` segments, the largest number of none."""
    result = ops.segment_min(data, segment_ids, num_segments)
    return ops.minimum(result, largest(result.dtype)) if is_floating(result.dtype) else result


def unsorted_segment_prod(
    data: TensorLike, segment_ids: TensorLike, num_segments: int | Tensor, name: str | None = None
) -> Tensor:
    """Multiply the rows of each of `num_segments` segments, 1 of none."""
    return ops.segment_prod(data, segment_ids, num_segments)


def _without_infinities(result: Tensor, segment_ids: TensorLike) -> Tensor:
    """Put 0 where a segment has no rows, as TensorFlow does for sorted ids."""
    return ops.where(_has_rows(result, segment_ids), result, ops.zeros_like(result))


def _has_rows(result: Tensor, segment_ids: TensorLike) -> Tensor:
    """Find which segments have rows, in a shape that broadcasts with what their rows were reduced to."""
    ones = ops.ones_like(segment_ids, "int32")
    counts = ops.segment_sum(ones, segment_ids, ops.shape(result)[0])
    return ops.reshape(counts > 0, (-1,) + (1,) * ((result.ndim or 1) - 1))


__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "add_n",
    "angle",
    "argmax",
    "argmin",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bincount",
    "ceil",
    "confusion_matrix",
    "conj",
    "cos",
    "cosh",
    "count_nonzero",
    "cumprod",
    "cumsum",
    "divide",
    "divide_no_nan",
    "equal",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "expm1",
    "floor",
    "floordiv",
    "floormod",
    "greater",
    "greater_equal",
    "imag",
    "in_top_k",
    "is_finite",
    "is_inf",
    "is_nan",
    "l2_normalize",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log_sigmoid",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "negative",
    "not_equal",
    "pow",
    "real",
    "reciprocal",
    "reduce_all",
    "reduce_any",
    "reduce_euclidean_norm",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "reduce_variance",
    "round",
    "rsqrt",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "squared_difference",
    "subtract",
    "tan",
    "tanh",
    "top_k",
    "truediv",
    "unsorted_segment_max",
    "unsorted_segment_mean",
    "unsorted_segment_min",
    "unsorted_segment_prod",
    "unsorted_segment_sum",
    "zero_fraction",
]
