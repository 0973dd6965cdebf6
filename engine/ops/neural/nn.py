"""Neural network functions, with the names and numbers of ``keras.ops.nn``: activations and normalisation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...common.quick_dataclass import dataclass
from ...graph.provenance import user_stacklevel
from ...graph.spec import shape_text
from ..arrays.axes import flip
from ..arrays.shaping import dim, reshape
from ..arrays.sorting import sort
from ..base import (
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    as_floating,
    cast,
    convert_to_tensor,
    normalize_axes,
    normalize_axis,
)
from ..linear_algebra.linalg import norm
from ..math.comparison import clip, greater, greater_equal, maximum, minimum, where
from ..math.complex_numbers import absolute
from ..math.elementwise import ElementwiseOp, check_dtype
from ..math.elementwise_samples import unary_samples
from ..math.mathematics import expm1, rsqrt, sqrt
from ..math.reduced import AxisLike, axes_attribute, widened
from ..math.reduction import mean, sum, var
from ..math.running import cumsum
from ..math.sigmoids import sigmoid, softplus
from ..math.special import erf
from ..math.trigonometry import tanh
from .crossentropy import binary_crossentropy, categorical_crossentropy, sparse_categorical_crossentropy
from .softmax import LogSoftmax, Softmax

EPSILON = 1e-7  # Keras's default "fuzz factor"
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def _is_no_bool(dtype: DType) -> bool:
    return dtype.kind != "b"


@dataclass(frozen=True)
class Relu(ElementwiseOp):
    """``max(x, 0)``; the gradient passes where the result is positive."""

    source = "np.maximum({0}, 0)"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], _is_no_bool, "numbers", "Cast the bools to 'int32'.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        return e.maximum(inputs[0], 0)

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        return f"np.maximum({arguments[0]}, 0, out={out})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (apply(ReluGrad(), dy, node.outputs[0]),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        def reference(x: Any) -> Any:
            return np.maximum(x, np.float32(0))

        yield from unary_samples(cls(), reference)
        x = np.array([-np.inf, -0.0, np.inf, np.nan], "float32")
        yield Sample(cls(), [x], np.array([0, 0, np.inf, np.nan], "float32"), (), label="special")


@dataclass(frozen=True)
class ReluGrad(ElementwiseOp):
    """The first input where the second is positive, 0 elsewhere."""

    source = "np.where({1} > 0, {0}, 0)[()]"

    def infer(self, *inputs: Any) -> TensorSpec:
        check_dtype(self, inputs[0], _is_no_bool, "numbers", "Cast the bools to 'int32'.")
        return super().infer(*inputs)

    def expression(self, e: Any, *inputs: Any) -> Any:
        dy, y = inputs
        return e.where(y > 0, dy, 0)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (ddx,) = cotangents
        assert ddx is not None
        return apply(ReluGrad(), ddx, node.inputs[1]), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        dy, y = np.array([1, 2, np.inf], "float32"), np.array([0.5, -1, 0], "float32")
        yield Sample(cls(), [dy, y], np.array([1, 0, 0], "float32"), (), label="vector")
        yield Sample(cls(), [dy[:2], y[:2]], np.array([1, 0], "float32"), (0,), label="finite")
        yield Sample(cls(), [dy[0], y[0]], dy[0], (0,), label="0-d")
        yield Sample(cls(), [dy[:0], y[:0]], dy[:0], (0,), label="empty")


# --- rectifiers and their kin ---------------------------------------------------------------------------------------


def relu(x: TensorLike) -> Tensor:
    """Compute ``max(x, 0)``.

    >>> import anabranch as ab
    >>> ab.ops.relu([-1.0, 2.0])
    Tensor([0., 2.], dtype=float32)
    """
    tensor = convert_to_tensor(x)
    return apply(Relu(), cast(tensor, dtypes.int32) if tensor.dtype == dtypes.bool_ else tensor)


def relu6(x: TensorLike) -> Tensor:
    """Compute ``min(max(x, 0), 6)``."""
    return minimum(relu(x), 6)


def leaky_relu(x: TensorLike, negative_slope: float = 0.2) -> Tensor:
    """Return `x` where it is positive, ``negative_slope * x`` elsewhere."""
    tensor = as_floating(x)
    return where(greater_equal(tensor, 0), tensor, tensor * negative_slope)


def elu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """Return `x` where it is positive, ``alpha * (exp(x) - 1)`` elsewhere (Clevert, Unterthiner, Hochreiter, 2015)."""
    tensor = as_floating(x)
    return where(greater(tensor, 0), tensor, alpha * expm1(_below(tensor)))


def selu(x: TensorLike) -> Tensor:
    """Compute the self-normalising exponential unit (Klambauer, Unterthiner, Mayr and Hochreiter, 2017)."""
    return _SELU_SCALE * elu(x, _SELU_ALPHA)


def celu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """Compute ``max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))`` (Barron, 2017)."""
    tensor = as_floating(x)
    return where(greater(tensor, 0), tensor, alpha * expm1(_below(tensor) / alpha))


def _below(x: Tensor) -> Tensor:
    """Return `x`, but 0 where it is positive. The gradient at 0 is 1; that of ``minimum(x, 0)`` is a half."""
    return where(greater(x, 0), 0, x)


def gelu(x: TensorLike, approximate: bool = True) -> Tensor:
    """Compute ``x * P(X <= x)`` for a standard normal X (Hendrycks and Gimpel, 2016).

    Args:
        approximate: use the tanh formula instead of the error function.
    """
    tensor = as_floating(x)
    if approximate:
        wide = widened(tensor)  # float16 holds no cube of 41, and the gradient would be 0 * inf from 256 on
        inside = math.sqrt(2 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
        return cast(wide * (0.5 * (1 + tanh(inside))), tensor.dtype)
    return tensor * (0.5 * (1 + erf(tensor * math.sqrt(0.5))))


def silu(x: TensorLike) -> Tensor:
    """Compute ``x * sigmoid(x)``."""
    tensor = as_floating(x)
    return tensor * sigmoid(tensor)


swish = silu


def squareplus(x: TensorLike, b: float = 4) -> Tensor:
    """Compute ``(x + sqrt(x^2 + b)) / 2``."""
    tensor = as_floating(x)
    wide = widened(tensor)
    return cast((wide + sqrt(wide * wide + b)) * 0.5, tensor.dtype)


def sparse_plus(x: TensorLike) -> Tensor:
    """Return 0 up to -1, ``(x + 1)^2 / 4`` up to 1, then `x`."""
    tensor = as_floating(x)
    inside = clip(tensor, -1, 1) + 1
    return where(greater_equal(tensor, 1), tensor, inside * inside * 0.25)


def threshold(x: TensorLike, threshold: float, default_value: float) -> Tensor:
    """Return `x` where it is above `threshold`, `default_value` elsewhere."""
    tensor = convert_to_tensor(x)
    return where(greater(tensor, threshold), tensor, default_value)


# --- sigmoids -------------------------------------------------------------------------------------------------------


def log_sigmoid(x: TensorLike) -> Tensor:
    """Compute ``log(sigmoid(x))``, for `x` of any size."""
    return -softplus(-as_floating(x))


def hard_sigmoid(x: TensorLike) -> Tensor:
    """Compute ``relu6(x + 3) / 6``: a sigmoid of three straight pieces."""
    return relu6(as_floating(x) + 3) / 6


def hard_silu(x: TensorLike) -> Tensor:
    """Compute ``x * hard_sigmoid(x)`` (Howard et al., 2019)."""
    tensor = as_floating(x)
    return tensor * hard_sigmoid(tensor)


hard_swish = hard_silu


def sparse_sigmoid(x: TensorLike) -> Tensor:
    """Return 0 up to -1, ``(x + 1) / 2`` up to 1, then 1."""
    return (clip(as_floating(x), -1, 1) + 1) * 0.5


def hard_tanh(x: TensorLike) -> Tensor:
    """Return `x`, clipped to [-1, 1]."""
    return clip(as_floating(x), -1.0, 1.0)


def softsign(x: TensorLike) -> Tensor:
    """Compute ``x / (1 + |x|)``."""
    tensor = as_floating(x)
    return tensor / (1 + absolute(tensor))


def tanh_shrink(x: TensorLike) -> Tensor:
    """Compute ``x - tanh(x)``."""
    tensor = as_floating(x)
    return tensor - tanh(tensor)


def soft_shrink(x: TensorLike, threshold: float = 0.5) -> Tensor:
    """Return `x` moved toward 0 by `threshold`, and 0 where it is nearer."""
    tensor = as_floating(x)
    return relu(tensor - threshold) - relu(-tensor - threshold)


def hard_shrink(x: TensorLike, threshold: float = 0.5) -> Tensor:
    """Return `x`, but 0 where ``|x| <= threshold``."""
    tensor = as_floating(x)
    return where(greater(absolute(tensor), threshold), tensor, 0)


def glu(x: TensorLike, axis: int = -1) -> Tensor:
    """Multiply the first half of `x` along `axis` by the sigmoid of the second (Dauphin et al., 2016).

    Raises:
        ValueError: the size of the axis is not known to be even.
    """
    tensor = as_floating(x)
    axes = axes_attribute(axis, tensor.ndim)
    size = None if tensor.shape is None or axes is None else tensor.shape[axes[0]]
    if size is None or size % 2:
        raise ValueError(
            f"glu halves axis {axis} of its input; got shape {shape_text(tensor.shape)}, whose size there is "
            f"{'not known' if size is None else 'odd'}."
        )
    before: list[Any] = [slice(None)] * (tensor.ndim or 0)
    first, second = list(before), list(before)
    first[axis], second[axis] = slice(0, size // 2), slice(size // 2, size)
    return tensor[tuple(first)] * sigmoid(tensor[tuple(second)])


# --- softmax --------------------------------------------------------------------------------------------------------


def softmax(x: TensorLike, axis: AxisLike = -1) -> Tensor:
    """Compute ``exp(x) / sum(exp(x))`` over `axis` (one, several, or None for all), without overflow.

    >>> import anabranch as ab
    >>> ab.ops.softmax([0.0, 0.0])
    Tensor([0.5, 0.5], dtype=float32)
    """
    tensor = as_floating(x)
    return apply(Softmax(axes_attribute(axis, tensor.ndim)), tensor)


def log_softmax(x: TensorLike, axis: AxisLike = -1) -> Tensor:
    """Compute ``log(softmax(x))`` over `axis` (one, several, or None for all), without loss of precision."""
    tensor = as_floating(x)
    return apply(LogSoftmax(axes_attribute(axis, tensor.ndim)), tensor)


def sparsemax(x: TensorLike, axis: int = -1) -> Tensor:
    """Return the nearest point of the probability simplex along `axis` (Martins and Astudillo, 2016).

    The result sums to 1; that of Keras 3.15 does not, because it subtracts a sum of running sums.
    """
    tensor = as_floating(x)
    ordered = flip(sort(widened(tensor), axis), axis)
    total = cumsum(ordered, axis)
    position = cumsum(0 * ordered + 1, axis)
    inside = greater(1 + position * ordered, total)
    count = sum(cast(inside, ordered.dtype), axis, keepdims=True)
    excess = sum(where(inside, ordered, 0), axis, keepdims=True) - 1
    return cast(relu(tensor - excess / count), tensor.dtype)


# --- normalisation --------------------------------------------------------------------------------------------------


def moments(x: TensorLike, axes: AxisLike, keepdims: bool = False, synchronized: bool = False) -> tuple[Tensor, Tensor]:
    """Return mean and variance over `axes`. Half precision is widened inside, and results clipped to its range.

    Args:
        synchronized: across devices; only False is known here.

    Raises:
        ValueError: `synchronized` is true.
    """
    if synchronized:
        raise ValueError("moments(synchronized=True) is not available; average over devices with collective ops.")
    tensor = as_floating(x)
    wide = dtypes.accumulator_of(tensor.dtype)
    if wide is None:
        return mean(tensor, axes, keepdims), var(tensor, axes, keepdims)
    largest = 65504.0
    values = cast(tensor, wide)
    results = [
        clip(moment, -largest, largest) for moment in (mean(values, axes, keepdims), var(values, axes, keepdims))
    ]
    return cast(results[0], tensor.dtype), cast(results[1], tensor.dtype)


def batch_normalization(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    axis: int,
    offset: TensorLike | None = None,
    scale: TensorLike | None = None,
    epsilon: float = 1e-3,
) -> Tensor:
    """Return ``(x - mean) / sqrt(variance + epsilon) * scale + offset``, vectors along `axis` (Ioffe, Szegedy, 2015).

    Args:
        x: [..., features, ...] with the features in `axis`.
        mean, variance, offset, scale: vectors, [features].

    Raises:
        ValueError: the rank of `x` is unknown, or it has no such axis.
    """
    tensor = as_floating(x)
    rank = tensor.ndim
    if rank is None:
        raise ValueError("batch_normalization needs an input of known rank. Give the placeholder a shape.")
    place = normalize_axis(axis, rank)

    def along_axis(vector: TensorLike) -> Tensor:
        value = convert_to_tensor(vector, tensor.dtype)
        return value if place == rank - 1 else reshape(value, [-1 if each == place else 1 for each in range(rank)])

    factor = rsqrt(along_axis(variance) + epsilon)
    if scale is not None:
        factor = factor * along_axis(scale)
    shift = -along_axis(mean) * factor
    if offset is not None:
        shift = shift + along_axis(offset)
    return tensor * factor + shift


NO_RMS = (
    "rms_scaling=True is deprecated: it divides by the standard deviation, not by the root mean square, and adds no "
    "beta. Use RMSNormalization (ops.rms_normalization) for the root mean square."
)


def layer_normalization(
    x: TensorLike,
    gamma: TensorLike | None = None,
    beta: TensorLike | None = None,
    axis: AxisLike = -1,
    epsilon: float | None = None,
    rms_scaling: bool = False,
) -> Tensor:
    """Return `x` with mean 0 and variance 1 over `axis`, times `gamma`, plus `beta` (Ba, Kiros and Hinton, 2016).

    Half precision is widened inside.

    Args:
        gamma, beta: of the sizes of `x` along `axis`, or of a shape that broadcasts with `x`; or None.
        rms_scaling: divide `x` by its standard deviation, and subtract and add nothing. Deprecated, with a warning, as
            in Keras: it is not the normalisation by the root mean square, which `rms_normalization` is.
    """
    if rms_scaling:
        warnings.warn(NO_RMS, stacklevel=user_stacklevel())
    tensor = as_floating(x)
    wide = widened(tensor)
    deviation = wide - mean(wide, axis, keepdims=True)
    variance = mean(deviation * deviation, axis, keepdims=True)
    result = (wide if rms_scaling else deviation) * rsqrt(variance + (EPSILON if epsilon is None else epsilon))
    if gamma is not None:
        result = result * _along_axes(gamma, result, axis)
    if beta is not None and not rms_scaling:
        result = result + _along_axes(beta, result, axis)
    return cast(result, tensor.dtype)


def _along_axes(weight: TensorLike, x: Tensor, axis: AxisLike) -> Tensor:
    """Return `weight` in the shape that broadcasts with `x`, of which it has the axes `axis` alone."""
    value, axes = convert_to_tensor(weight, x.dtype), normalize_axes(axis, x.ndim)
    if axes is None or x.ndim is None or value.ndim != len(axes) or min(axes) == x.ndim - len(axes):
        return value
    return reshape(value, [dim(x, each) if each in axes else 1 for each in range(x.ndim)])


def rms_normalization(
    x: TensorLike, scale: TensorLike | None = None, axis: AxisLike = -1, epsilon: float | None = None
) -> Tensor:
    """Divide `x` by the root of its mean square along `axis`, and multiply by `scale` (Zhang and Sennrich, 2019)."""
    tensor = as_floating(x)
    wide = widened(tensor)
    power = mean(wide * wide, axis, keepdims=True)
    result = wide * rsqrt(power + (EPSILON if epsilon is None else epsilon))
    return cast(result if scale is None else result * convert_to_tensor(scale, result.dtype), tensor.dtype)


def normalize(x: TensorLike, axis: int = -1, order: Any = 2, epsilon: float | None = None) -> Tensor:
    """Divide `x` by its norm along `axis`, which counts as at least `epsilon` (1e-7).

    Args:
        order: of the norm, as `norm` takes it.

    Raises:
        ValueError: `order` is not positive.
    """
    if not isinstance(order, (int, float)) or order < 1:
        raise ValueError(f"normalize: order must be a number of at least 1; got {order!r}.")
    tensor = as_floating(x)
    wide = widened(tensor)
    least = EPSILON if epsilon is None else epsilon
    if order in (1, math.inf):
        return cast(wide / maximum(norm(wide, order, axis, keepdims=True), least), tensor.dtype)
    # Not the norm but the sum below the root is bounded: at zero the root has no finite gradient.
    powers = wide * wide if order == 2 else abs(wide) ** order
    total = maximum(sum(powers, axis, keepdims=True), max(least**order, float(np.finfo(wide.dtype).tiny)))
    return cast(wide * (rsqrt(total) if order == 2 else total ** (-1.0 / order)), tensor.dtype)


def l2_normalize(x: TensorLike, axis: AxisLike = None, epsilon: float = 1e-12) -> Tensor:
    """Compute ``x / sqrt(max(sum(x^2), epsilon))`` over `axis` (None: all)."""
    tensor = as_floating(x)
    wide = widened(tensor)
    return cast(wide * rsqrt(maximum(sum(wide * wide, axis, keepdims=True), epsilon)), tensor.dtype)


__all__ = [
    "batch_normalization",
    "binary_crossentropy",
    "categorical_crossentropy",
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "l2_normalize",
    "layer_normalization",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "moments",
    "normalize",
    "relu",
    "relu6",
    "rms_normalization",
    "selu",
    "silu",
    "soft_shrink",
    "softmax",
    "softsign",
    "sparse_categorical_crossentropy",
    "sparse_plus",
    "sparse_sigmoid",
    "sparsemax",
    "squareplus",
    "swish",
    "tanh_shrink",
    "threshold",
]
