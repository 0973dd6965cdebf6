"""Functions of ``tf.keras.backend`` (``K.sum``, ``K.flatten``, ...), which Keras keeps for older scripts.

Arguments and results are those of Keras on TensorFlow. New code calls `ab.ops`, of which these are short forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..engine import ops
from ..engine.common.dtypes import name_of
from ..engine.control_flow.cond import cond
from ..engine.control_flow.scan import foldl, foldr, map_fn
from ..engine.graph import Tensor, Variable, name_scope
from ..engine.objects.floats import floatx
from ..engine.ops.data_format import check_data_format
from ..engine.ops.random import samplers as random
from ..layers.core.merging import batch_products
from .config import epsilon
from .utils import is_keras_tensor

if TYPE_CHECKING:
    from ..engine.common.dtypes import DTypeLike
    from ..engine.ops.base import TensorLike
    from ..engine.ops.random.keys import SeedGenerator
    from .structures import Array

    Axis = int | Sequence[int] | None
    Shape = Sequence[int]
    SeedLike = int | SeedGenerator | None
    Branch = TensorLike | Callable[[], TensorLike]


# --- the same in `ops` --------------------------------------------------------------------------------------------

abs, all, any, cast, cos, dot = ops.abs, ops.all, ops.any, ops.cast, ops.cos, ops.dot
elu, equal, exp, greater, greater_equal, less = ops.elu, ops.equal, ops.exp, ops.greater, ops.greater_equal, ops.less
less_equal, log, max, maximum, mean, min = ops.less_equal, ops.log, ops.max, ops.maximum, ops.mean, ops.min
minimum, not_equal, one_hot, prod = ops.minimum, ops.not_equal, ops.one_hot, ops.prod
reshape, round = ops.reshape, ops.round
shape, sigmoid, sign, sin, softmax, softplus = ops.shape, ops.sigmoid, ops.sign, ops.sin, ops.softmax, ops.softplus
softsign, square, stack, stop_gradient = ops.softsign, ops.square, ops.stack, ops.stop_gradient
sum, tanh = ops.sum, ops.tanh
tile, transpose, var, std = ops.tile, ops.transpose, ops.var, ops.std
binary_crossentropy, categorical_crossentropy = ops.binary_crossentropy, ops.categorical_crossentropy
l2_normalize = ops.l2_normalize


# --- values and variables -----------------------------------------------------------------------------------------


def variable(
    value: TensorLike,
    dtype: DTypeLike = None,
    name: str | None = None,
    constraint: Callable[[Tensor], Tensor] | None = None,
) -> Variable:
    """Make a variable; of the default float type if `dtype` is None."""
    made = Variable(value, dtype=dtype or floatx(), name=name)
    if constraint is not None:
        made.constraint = constraint
    return made


def constant(value: TensorLike, dtype: DTypeLike = None, shape: Shape | None = None, name: str | None = None) -> Tensor:
    """Return a tensor of the default float type if `dtype` is None, filled with one value if `shape` is larger."""
    made = ops.convert_to_tensor(value, dtype=dtype or floatx())
    if shape is None:
        return made
    return ops.full(shape, made) if made.shape == () else ops.reshape(made, shape)


def random_normal_variable(
    shape: Shape,
    mean: float,
    scale: float,
    dtype: DTypeLike = None,
    name: str | None = None,
    seed: SeedLike = None,
) -> Variable:
    """Make a variable with draws from a normal distribution."""
    return variable(random_normal(shape, mean, scale, dtype, seed), dtype, name)


def random_uniform_variable(
    shape: Shape, low: float, high: float, dtype: DTypeLike = None, name: str | None = None, seed: SeedLike = None
) -> Variable:
    """Make a variable with draws from a uniform distribution."""
    return variable(random_uniform(shape, low, high, dtype, seed), dtype, name)


def get_value(x: TensorLike) -> Array:
    """Return the value of a variable or tensor as a NumPy array."""
    return np.asarray(x)


eval = get_value


def set_value(x: Variable, value: TensorLike) -> None:
    """Set the value of a variable."""
    x.assign(ops.cast(ops.convert_to_tensor(value), x.dtype))


def batch_get_value(tensors: Sequence[TensorLike]) -> list[Array]:
    """Return the values of several variables or tensors as NumPy arrays."""
    return [get_value(x) for x in tensors]


def batch_set_value(tuples: Sequence[tuple[Variable, TensorLike]]) -> None:
    """Set the values of several variables."""
    for x, value in tuples:
        set_value(x, value)


def update(x: Variable, new_x: TensorLike) -> Tensor:
    """Set the value of a variable, and return it."""
    return x.assign(new_x)


def update_add(x: Variable, increment: TensorLike) -> Tensor:
    """Add to a variable, and return its value."""
    return x.assign_add(increment)


def update_sub(x: Variable, decrement: TensorLike) -> Tensor:
    """Subtract from a variable, and return its value."""
    return x.assign_sub(decrement)


def moving_average_update(x: Variable, value: TensorLike, momentum: TensorLike) -> Tensor:
    """Move a variable towards a value: ``x * momentum + value * (1 - momentum)``."""
    return x.assign_sub((x - ops.cast(value, x.dtype)) * (1 - ops.cast(momentum, x.dtype)))


def cast_to_floatx(x: TensorLike) -> Array | Tensor:
    """Return a tensor, or else an array, of the default float type."""
    return ops.cast(x, floatx()) if isinstance(x, Tensor) or is_keras_tensor(x) else np.asarray(x, floatx())


# --- shapes and dtypes --------------------------------------------------------------------------------------------


def int_shape(x: TensorLike) -> tuple[int | None, ...] | None:
    """Return the shape, with None for sizes that are not known; None where even the rank is not known."""
    shape = ops.convert_to_tensor(x).shape
    return None if shape is None else tuple(shape)


def ndim(x: TensorLike) -> int | None:
    """Return the rank."""
    shape = int_shape(x)
    return None if shape is None else len(shape)


def dtype(x: TensorLike) -> str:
    """Return the name of the dtype."""
    return name_of(ops.convert_to_tensor(x).dtype)


def count_params(x: TensorLike) -> int:
    """Return the number of elements."""
    return math.prod(size or 0 for size in int_shape(x) or ())


def is_sparse(tensor: TensorLike) -> bool:
    """Return False: tensors are dense."""
    return False


def to_dense(tensor: TensorLike) -> TensorLike:
    """Return the tensor: all are dense."""
    return tensor


def flatten(x: TensorLike) -> Tensor:
    """Return the elements along one axis."""
    return ops.reshape(x, (-1,))


def batch_flatten(x: TensorLike) -> Tensor:
    """Return a matrix, with a row for each entry of the first axis."""
    return ops.reshape(x, (-1, math.prod(size or -1 for size in (int_shape(x) or ())[1:])))


def permute_dimensions(x: TensorLike, pattern: Sequence[int]) -> Tensor:
    """Return the tensor with its axes in another order."""
    return ops.transpose(x, pattern)


def repeat(x: TensorLike, n: int) -> Tensor:
    """Repeat the rows of a matrix along a new axis: from (rows, columns) to (rows, n, columns)."""
    if ndim(x) != 2:
        raise ValueError(f"K.repeat: x must be a matrix, got the shape {int_shape(x)}. K.repeat_elements takes others.")
    return ops.tile(ops.expand_dims(x, 1), (1, n, 1))


def repeat_elements(x: TensorLike, rep: int, axis: int) -> Tensor:
    """Repeat each element along an axis."""
    return ops.repeat(x, rep, axis=axis)


def reverse(x: TensorLike, axes: Axis) -> Tensor:
    """Reverse axes."""
    return ops.flip(x, axis=axes)


def gather(reference: TensorLike, indices: TensorLike) -> Tensor:
    """Return entries of the first axis."""
    return ops.take(reference, indices, axis=0)


def squeeze(x: TensorLike, axis: int) -> Tensor:
    """Drop an axis of size 1."""
    return ops.squeeze(x, axis=axis)


def temporal_padding(x: TensorLike, padding: tuple[int, int] = (1, 1)) -> Tensor:
    """Add zeros before and behind the steps of (batch, steps, channels)."""
    return ops.pad(x, ((0, 0), padding, (0, 0)))


def ones_like(x: TensorLike, dtype: DTypeLike = None, name: str | None = None) -> Tensor:
    """Return ones in the shape of `x`."""
    return ops.ones_like(x, dtype=dtype)


def zeros_like(x: TensorLike, dtype: DTypeLike = None, name: str | None = None) -> Tensor:
    """Return zeros in the shape of `x`."""
    return ops.zeros_like(x, dtype=dtype)


def ones(shape: Shape, dtype: DTypeLike = None, name: str | None = None) -> Tensor:
    """Return ones, of the default float type if `dtype` is None."""
    return ops.ones(shape, dtype=dtype or floatx())


def zeros(shape: Shape, dtype: DTypeLike = None, name: str | None = None) -> Tensor:
    """Return zeros, of the default float type if `dtype` is None."""
    return ops.zeros(shape, dtype=dtype or floatx())


def eye(size: int, dtype: DTypeLike = None, name: str | None = None) -> Tensor:
    """Return an identity matrix, of the default float type if `dtype` is None."""
    return ops.eye(size, dtype=dtype or floatx())


def arange(start: int, stop: int | None = None, step: int = 1, dtype: DTypeLike = "int32") -> Tensor:
    """Return numbers from `start` (or 0, if that is the only one) to below `stop`."""
    return ops.arange(start, stop, step, dtype=dtype)


def argmax(x: TensorLike, axis: int = -1) -> Tensor:
    """Return the index of the greatest element along an axis."""
    return ops.argmax(x, axis=axis)


def argmin(x: TensorLike, axis: int = -1) -> Tensor:
    """Return the index of the least element along an axis."""
    return ops.argmin(x, axis=axis)


def concatenate(tensors: Sequence[TensorLike], axis: int = -1) -> Tensor:
    """Join tensors along an axis."""
    return ops.concatenate(tensors, axis=axis)


def cumsum(x: TensorLike, axis: int = 0) -> Tensor:
    """Return sums of the elements so far, along an axis."""
    return ops.cumsum(x, axis=axis)


def cumprod(x: TensorLike, axis: int = 0) -> Tensor:
    """Return products of the elements so far, along an axis."""
    return ops.cumprod(x, axis=axis)


def expand_dims(x: TensorLike, axis: int = -1) -> Tensor:
    """Add an axis of size 1."""
    return ops.expand_dims(x, axis)


# --- elements -----------------------------------------------------------------------------------------------------


def clip(x: TensorLike, min_value: TensorLike | None, max_value: TensorLike | None) -> Tensor:
    """Limit the elements to two values, of which None is no limit."""
    low = -math.inf if min_value is None else min_value
    return ops.clip(x, low, math.inf if max_value is None else max_value)


def pow(x: TensorLike, a: TensorLike) -> Tensor:
    """Raise the elements to a power."""
    return ops.power(x, a)


def sqrt(x: TensorLike) -> Tensor:
    """Return square roots, and 0 for negative numbers."""
    return ops.sqrt(ops.maximum(x, 0.0))


def hard_sigmoid(x: TensorLike) -> Tensor:
    """Return ``0.2 * x + 0.5``, bounded by 0 and 1. That of `ab.ops` has another slope."""
    return ops.clip(ops.convert_to_tensor(x) * 0.2 + 0.5, 0.0, 1.0)


def relu(x: TensorLike, alpha: float = 0.0, max_value: float | None = None, threshold: float = 0.0) -> Tensor:
    """Return `x` above a threshold, at most `max_value`; below it ``alpha * (x - threshold)``."""
    x = ops.convert_to_tensor(x)
    above = ops.where(x > threshold, x, 0.0)
    if max_value is not None:
        above = ops.minimum(above, max_value)
    return above - alpha * ops.relu(threshold - x) if alpha else above


def batch_dot(x: TensorLike, y: TensorLike, axes: int | Sequence[int] | None = None) -> Tensor:
    """Return products of the entries of two batches, summed over an axis of each, as ``layers.Dot``.

    Args:
        x, y: tensors with the same first axis.
        axes: the axes of `x` and `y`; one number is that of both. By default the last of `x` and the last but one of
            `y`, or the last of a matrix.

    Raises:
        ValueError: a rank is below 2, or an axis is the first.
    """
    x, y = ops.convert_to_tensor(x), ops.convert_to_tensor(y)
    ranks = [ndim(x) or 0, ndim(y) or 0]
    if ranks[0] < 2 or ranks[1] < 2:
        raise ValueError(f"K.batch_dot: x and y need a batch and another axis, got shapes {x.shape} and {y.shape}.")
    given = (-1, -1 if ranks[1] == 2 else -2) if axes is None else (axes, axes) if isinstance(axes, int) else axes
    first, second = (axis % rank for axis, rank in zip(given, ranks, strict=True))
    if first == 0 or second == 0:
        raise ValueError(f"K.batch_dot: axes={axes} has the batch's axis 0. Sums go over other axes.")
    return batch_products(x, y, first, second)


def in_top_k(predictions: TensorLike, targets: TensorLike, k: int) -> Tensor:
    """Test whether each target is among the `k` largest predictions of its row."""
    return ops.in_top_k(targets, predictions, k)


def bias_add(x: TensorLike, bias: TensorLike, data_format: str | None = None) -> Tensor:
    """Add a bias to each channel."""
    bias = ops.convert_to_tensor(bias)
    rank = ndim(x) or 0
    if check_data_format("K.bias_add", data_format) == "channels_first" and ndim(bias) == 1 and rank > 2:
        bias = ops.reshape(bias, (-1, *[1] * (rank - 2)))
    return ops.add(x, bias)


def batch_normalization(
    x: TensorLike,
    mean: TensorLike,
    var: TensorLike,
    beta: TensorLike | None,
    gamma: TensorLike | None,
    axis: int = -1,
    epsilon: float = 1e-3,
) -> Tensor:
    """Normalise by a given mean and variance, then scale by `gamma` and add `beta`."""
    return ops.batch_normalization(x, mean, var, axis, offset=beta, scale=gamma, epsilon=epsilon)


# --- images -------------------------------------------------------------------------------------------------------

conv1d = conv2d = conv3d = ops.conv
depthwise_conv2d = ops.depthwise_conv
separable_conv2d = ops.separable_conv


def pool2d(
    x: TensorLike,
    pool_size: Sequence[int],
    strides: Sequence[int] = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    pool_mode: str = "max",
) -> Tensor:
    """Return the greatest value or the mean of each window.

    Raises:
        ValueError: `pool_mode` is neither "max" nor "avg".
    """
    if pool_mode not in ("max", "avg"):
        raise ValueError(f'K.pool2d: pool_mode must be "max" or "avg", got {pool_mode!r}.')
    pool = ops.max_pool if pool_mode == "max" else ops.average_pool
    return pool(x, tuple(pool_size), tuple(strides), padding, data_format)


pool3d = pool2d


def spatial_2d_padding(
    x: TensorLike,
    padding: tuple[tuple[int, int], tuple[int, int]] = ((1, 1), (1, 1)),
    data_format: str | None = None,
) -> Tensor:
    """Add rows and columns of zeros around images."""
    is_first = check_data_format("K.spatial_2d_padding", data_format) == "channels_first"
    none = (0, 0)
    return ops.pad(x, (none, none, *padding) if is_first else (none, *padding, none))


def resize_images(
    x: TensorLike, height_factor: int, width_factor: int, data_format: str, interpolation: str = "nearest"
) -> Tensor:
    """Scale images up by factors."""
    place = 2 if check_data_format("K.resize_images", data_format) == "channels_first" else 1
    rows, columns = ops.shape(x)[place], ops.shape(x)[place + 1]
    size = (rows * height_factor, columns * width_factor)
    return ops.image.resize(x, size, interpolation=interpolation, data_format=data_format)


# --- losses -------------------------------------------------------------------------------------------------------


def sparse_categorical_crossentropy(
    target: TensorLike,
    output: TensorLike,
    from_logits: bool = False,
    axis: int = -1,
    ignore_class: int | None = None,
) -> Tensor:
    """Return the cross-entropy of each row with its class, and 0 for the class that is ignored."""
    target = ops.cast(target, "int32")
    if ignore_class is None:
        return ops.sparse_categorical_crossentropy(target, output, from_logits=from_logits, axis=axis)
    counts = target != ignore_class
    found = ops.sparse_categorical_crossentropy(
        ops.where(counts, target, 0), output, from_logits=from_logits, axis=axis
    )
    return ops.where(counts, found, 0.0)


# --- random numbers -----------------------------------------------------------------------------------------------


def random_normal(
    shape: Shape, mean: float = 0.0, stddev: float = 1.0, dtype: DTypeLike = None, seed: SeedLike = None
) -> Tensor:
    """Draw from a normal distribution."""
    return random.normal(shape, mean, stddev, dtype=dtype or floatx(), seed=seed)


def random_uniform(
    shape: Shape, minval: float = 0.0, maxval: float = 1.0, dtype: DTypeLike = None, seed: SeedLike = None
) -> Tensor:
    """Draw from a uniform distribution."""
    return random.uniform(shape, minval, maxval, dtype=dtype or floatx(), seed=seed)


def truncated_normal(
    shape: Shape, mean: float = 0.0, stddev: float = 1.0, dtype: DTypeLike = None, seed: SeedLike = None
) -> Tensor:
    """Draw from a normal distribution, without what is more than two standard deviations from the mean."""
    return random.truncated_normal(shape, mean, stddev, dtype=dtype or floatx(), seed=seed)


def random_bernoulli(shape: Shape, p: float = 0.0, dtype: DTypeLike = None, seed: SeedLike = None) -> Tensor:
    """Draw 1 with probability `p`, else 0."""
    return ops.cast(random.uniform(shape, seed=seed) < p, dtype or floatx())


def dropout(x: TensorLike, level: float, noise_shape: Shape | None = None, seed: SeedLike = None) -> Tensor:
    """Set elements to 0 with probability `level`, and scale the others so that their mean stays."""
    return random.dropout(x, level, noise_shape=noise_shape, seed=seed)


# --- control ------------------------------------------------------------------------------------------------------


def switch(condition: TensorLike, then_expression: Branch, else_expression: Branch) -> Tensor:
    """Return one of two values: for all by a scalar condition, else for each element.

    Args:
        condition: a bool; of a lower rank than the values it decides for whole rows.
        then_expression, else_expression: tensors, or functions without arguments that return them.
    """
    condition = ops.cast(condition, "bool")

    def of(branch: Branch) -> Tensor:
        return ops.convert_to_tensor(branch() if callable(branch) else branch)

    if ndim(condition) == 0:
        return cond(condition, lambda: of(then_expression), lambda: of(else_expression))
    then, other = of(then_expression), of(else_expression)
    rank, own = ndim(then) or 0, ndim(condition) or 0
    if own > rank:
        raise ValueError(
            f"K.switch: the condition of shape {condition.shape} has a higher rank than the values of shape "
            f"{then.shape}. Reduce it, such as by K.any(condition, axis=-1)."
        )
    for _ in range(rank - own):
        condition = ops.expand_dims(condition, -1)
    return ops.where(condition, then, other)


# --- CTC ----------------------------------------------------------------------------------------------------------


def ctc_batch_cost(
    y_true: TensorLike, y_pred: TensorLike, input_length: TensorLike, label_length: TensorLike
) -> Tensor:
    """Return the CTC loss of each sequence, of shape (batch, 1). The last class is the blank.

    Args:
        y_true: the labels, (batch, longest label).
        y_pred: probabilities, (batch, steps, classes).
        input_length, label_length: how many of both count, (batch, 1).
    """
    logits = ops.log(ops.convert_to_tensor(y_pred) + epsilon())
    lengths = [ops.cast(ops.squeeze(length, axis=-1), "int32") for length in (label_length, input_length)]
    blank = (int_shape(y_pred) or (0,))[-1]
    return ops.expand_dims(ops.ctc_loss(ops.cast(y_true, "int32"), logits, *lengths, mask_index=(blank or 0) - 1), 1)


__all__ = [
    "abs", "all", "any", "arange", "argmax", "argmin", "batch_dot", "batch_flatten", "batch_get_value",
    "batch_normalization", "batch_set_value", "bias_add", "binary_crossentropy", "cast", "cast_to_floatx",
    "categorical_crossentropy", "clip", "concatenate", "constant", "conv1d", "conv2d", "conv3d", "cos",
    "count_params", "ctc_batch_cost", "cumprod", "cumsum", "depthwise_conv2d", "dot", "dropout", "dtype", "elu",
    "equal", "eval", "exp", "expand_dims", "eye", "flatten", "foldl", "foldr", "gather", "get_value", "greater",
    "greater_equal", "hard_sigmoid", "in_top_k", "int_shape", "is_sparse", "l2_normalize", "less", "less_equal",
    "log", "map_fn", "max", "maximum", "mean", "min", "minimum", "moving_average_update", "name_scope", "ndim",
    "not_equal", "one_hot", "ones", "ones_like", "permute_dimensions", "pool2d", "pool3d", "pow", "prod",
    "random_bernoulli", "random_normal", "random_normal_variable", "random_uniform", "random_uniform_variable",
    "relu", "repeat", "repeat_elements", "reshape", "resize_images", "reverse", "round", "separable_conv2d",
    "set_value", "shape", "sigmoid", "sign", "sin", "softmax", "softplus", "softsign",
    "sparse_categorical_crossentropy", "spatial_2d_padding", "sqrt", "square", "squeeze", "stack", "std",
    "stop_gradient", "sum", "switch", "tanh", "temporal_padding", "tile", "to_dense", "transpose",
    "truncated_normal", "update", "update_add", "update_sub", "var", "variable", "zeros", "zeros_like",
]  # fmt: skip
