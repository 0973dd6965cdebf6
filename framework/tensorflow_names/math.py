"""`tf.math`: elementwise functions, reductions and segments with TensorFlow's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from ...engine import ops
from ...engine.common.dtypes import DTypeLike, is_floating, is_integer, largest
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from .wrapping import name_functions, of_features, of_input, of_one, of_two, reduction

abs, ceil, floor, sign, round = (of_one(op) for op in (ops.abs, ops.ceil, ops.floor, ops.sign, ops.round))
exp, expm1, log, log1p = (of_one(op) for op in (ops.exp, ops.expm1, ops.log, ops.log1p))
sqrt, rsqrt, square, reciprocal = (of_one(op) for op in (ops.sqrt, ops.rsqrt, ops.square, ops.reciprocal))
sin, cos, tan, asin, acos, atan = (of_one(op) for op in (ops.sin, ops.cos, ops.tan, ops.arcsin, ops.arccos, ops.arctan))
sinh, cosh, tanh, asinh, acosh, atanh = (
    of_one(op) for op in (ops.sinh, ops.cosh, ops.tanh, ops.arcsinh, ops.arccosh, ops.arctanh)
)
sigmoid, log_sigmoid = of_one(ops.sigmoid), of_one(ops.log_sigmoid)
softplus, softsign = of_features(ops.softplus), of_features(ops.softsign)
erf, erfc, erfinv = of_one(ops.erf), of_one(ops.erfc), of_one(ops.erfinv)
is_finite, is_inf, is_nan = of_one(ops.isfinite), of_one(ops.isinf), of_one(ops.isnan)
negative, logical_not = of_one(ops.negative), of_one(ops.logical_not)
real, imag, angle, conj = of_input(ops.real), of_input(ops.imag), of_input(ops.angle), of_one(ops.conj)

add, subtract, multiply, floordiv = (of_two(op) for op in (ops.add, ops.subtract, ops.multiply, ops.floor_divide))
mod = floormod = of_two(ops.mod)
divide_no_nan, squared_difference, pow = (of_two(op) for op in (ops.divide_no_nan, ops.squared_difference, ops.power))
maximum, minimum, atan2 = of_two(ops.maximum), of_two(ops.minimum), of_two(ops.arctan2)
equal, not_equal, less, less_equal, greater, greater_equal = (
    of_two(op) for op in (ops.equal, ops.not_equal, ops.less, ops.less_equal, ops.greater, ops.greater_equal)
)
logical_and, logical_or, logical_xor = of_two(ops.logical_and), of_two(ops.logical_or), of_two(ops.logical_xor)

reduce_sum, reduce_mean, reduce_prod = reduction(ops.sum), reduction(ops.mean), reduction(ops.prod)
reduce_max, reduce_min = reduction(ops.max), reduction(ops.min)
reduce_any, reduce_all = reduction(ops.any), reduction(ops.all)
reduce_logsumexp, reduce_std, reduce_variance = reduction(ops.logsumexp), reduction(ops.std), reduction(ops.var)


def divide(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Divide; integers of 32 and 64 bits give float64, smaller ones float32."""
    dtypes = [ops.convert_to_tensor(each).dtype for each in (x, y)]
    if all(is_integer(dtype) for dtype in dtypes) and max(dtype.itemsize for dtype in dtypes) >= 4:
        x, y = ops.cast(x, "float64"), ops.cast(y, "float64")
    return ops.divide(x, y)


truediv = divide


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


def _cumulative(op_name: str) -> Callable[..., Tensor]:
    def accumulate(
        x: TensorLike, axis: int = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
    ) -> Tensor:
        """Accumulate along an axis, the first one by default.

        Args:
            x: a tensor.
            axis: the axis.
            exclusive: whether each element is left out of its own result.
            reverse: whether to begin with the last element.
        """
        x = ops.convert_to_tensor(x)
        given = ops.flip(x, axis) if reverse else x
        result = getattr(ops, op_name)(given, axis)
        if exclusive:
            first = ops.split(given, [1], axis)[0]
            neutral = ops.zeros_like(first) if op_name == "cumsum" else ops.ones_like(first)
            size = ops.shape(x)[axis]
            result = ops.take(ops.concatenate([neutral, result], axis), ops.arange(size), axis)
        return ops.flip(result, axis) if reverse else result

    accumulate.__name__ = op_name
    return accumulate


cumsum, cumprod = _cumulative("cumsum"), _cumulative("cumprod")


def top_k(input: TensorLike, k: int = 1, sorted: bool = True, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Find the `k` largest values along the last axis, and their positions."""
    return ops.top_k(input, k, sorted)


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


def _segments(op_name: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    op: Callable[..., Tensor] = getattr(ops, op_name)
    is_extreme = op_name in ("segment_max", "segment_min")

    def segment(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
        """Reduce the rows of each segment; ids are sorted."""
        result = op(data, segment_ids)
        # The largest and smallest of no rows is 0 in TensorFlow.
        return result if not is_extreme else ops.where(_has_rows(result, segment_ids), result, ops.zeros_like(result))

    def unsorted(
        data: TensorLike, segment_ids: TensorLike, num_segments: int | Tensor, name: str | None = None
    ) -> Tensor:
        """Reduce the rows of each of `num_segments` segments; ids come in any order."""
        result = op(data, segment_ids, num_segments)
        if not is_extreme or not is_floating(result.dtype):
            return result
        # A segment without rows is the lowest or largest number in TensorFlow, infinite in this package.
        limit = largest(result.dtype)
        return ops.maximum(result, -limit) if op_name == "segment_max" else ops.minimum(result, limit)

    segment.__name__, unsorted.__name__ = op_name, f"unsorted_{op_name}"
    return segment, unsorted


def _has_rows(result: Tensor, segment_ids: TensorLike) -> Tensor:
    """Find which segments have rows, in a shape that broadcasts with what their rows were reduced to."""
    ones = ops.ones_like(segment_ids, "int32")
    counts = ops.segment_sum(ones, segment_ids, ops.shape(result)[0])
    return ops.reshape(counts > 0, (-1,) + (1,) * ((result.ndim or 1) - 1))


segment_sum, unsorted_segment_sum = _segments("segment_sum")
segment_mean, unsorted_segment_mean = _segments("segment_mean")
segment_max, unsorted_segment_max = _segments("segment_max")
segment_min, unsorted_segment_min = _segments("segment_min")
segment_prod, unsorted_segment_prod = _segments("segment_prod")

name_functions(globals())

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
