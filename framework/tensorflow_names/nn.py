"""`tf.nn`: layers as functions and losses of logits, with TensorFlow's arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from ...engine.ops.random import samplers
from ...layers import nn as many_classes
from ...layers.vocabulary.sharded_softmax import Table
from .math import in_top_k as in_top_k
from .math import l2_normalize as l2_normalize
from .math import sigmoid as sigmoid
from .math import softplus as softplus
from .math import softsign as softsign
from .math import tanh as tanh
from .math import top_k as top_k
from .math import zero_fraction as zero_fraction


def relu(features: TensorLike, name: str | None = None) -> Tensor:
    """Return each element where it is positive, and 0 elsewhere."""
    return ops.relu(features)


def relu6(features: TensorLike, name: str | None = None) -> Tensor:
    """Return each element between 0 and 6, and the nearer of these for others."""
    return ops.relu6(features)


def elu(features: TensorLike, name: str | None = None) -> Tensor:
    """Return each element where it is positive, and ``exp(features) - 1`` elsewhere."""
    return ops.elu(features)


def selu(features: TensorLike, name: str | None = None) -> Tensor:
    """Apply `elu`, negative values scaled by 1.673, and all by 1.051, which keeps mean 0 and variance 1."""
    return ops.selu(features)


def embedding_lookup(params: Table, ids: TensorLike, max_norm: float | None = None, name: str | None = None) -> Tensor:
    """Return the rows of a table, or of shards of it that follow one another, that ids name.

    Args:
        params: a table, a row for each id, or a list of shards of it.
        ids: whole numbers of any shape.
        max_norm: rows with a larger Euclidean norm are scaled down to this one.
        name: does nothing.

    Raises:
        IndexError: an id is outside of the table.
    """
    return ops.embedding_lookup(params, ids, "div", max_norm)


def nce_loss(
    weights: Table,
    biases: Table,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: tuple[TensorLike, TensorLike, TensorLike] | None = None,
    remove_accidental_hits: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute a noise-contrastive loss of each row; for the arguments see `anabranch.nn.nce_loss`."""
    return many_classes.nce_loss(
        *(weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values),
        remove_accidental_hits,
        partition_strategy="div",
    )


def sampled_softmax_loss(
    weights: Table,
    biases: Table,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: tuple[TensorLike, TensorLike, TensorLike] | None = None,
    remove_accidental_hits: bool = True,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute the cross entropy of each row over true and sampled classes; see `anabranch.nn.sampled_softmax_loss`."""
    return many_classes.sampled_softmax_loss(
        *(weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values),
        remove_accidental_hits,
        seed,
        partition_strategy="div",
    )


def gelu(features: TensorLike, approximate: bool = False, name: str | None = None) -> Tensor:
    """Apply the Gaussian error linear unit; without the approximation by tanh, as TensorFlow does."""
    return ops.gelu(features, approximate)


def silu(features: TensorLike, beta: float | Tensor = 1.0) -> Tensor:
    """Multiply values by the sigmoid of `beta` times themselves."""
    if isinstance(beta, (int, float)) and beta == 1:
        return ops.silu(features)
    features = ops.convert_to_tensor(features)
    return ops.multiply(features, ops.sigmoid(ops.multiply(features, ops.cast(beta, features.dtype))))


swish = silu


def leaky_relu(features: TensorLike, alpha: float = 0.2, name: str | None = None) -> Tensor:
    """Return positive values as they are and others times `alpha`."""
    return ops.leaky_relu(features, alpha)


def softmax(logits: TensorLike, axis: int | None = None, name: str | None = None) -> Tensor:
    """Turn logits into probabilities along an axis, the last one by default."""
    return ops.softmax(logits, -1 if axis is None else axis)


def log_softmax(logits: TensorLike, axis: int | None = None, name: str | None = None) -> Tensor:
    """Turn logits into logarithms of probabilities along an axis, the last one by default."""
    return ops.log_softmax(logits, -1 if axis is None else axis)


def moments(
    x: TensorLike,
    axes: int | Sequence[int],
    shift: TensorLike | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute mean and variance along axes; `shift` does nothing, as in TensorFlow."""
    mean, variance = ops.moments(x, axes, keepdims=keepdims)
    return mean, variance


def batch_normalization(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    offset: TensorLike | None,
    scale: TensorLike | None,
    variance_epsilon: float,
    name: str | None = None,
) -> Tensor:
    """Normalise by mean and variance, which are broadcast, then scale and shift."""
    factor = ops.rsqrt(ops.add(variance, variance_epsilon))
    factor = factor if scale is None else ops.multiply(factor, scale)
    shift = ops.negative(ops.multiply(mean, factor))
    return ops.add(ops.multiply(x, factor), shift if offset is None else ops.add(shift, offset))


def depth_to_space(input: TensorLike, block_size: int, data_format: str = "NHWC", name: str | None = None) -> Tensor:
    """Spread the channels of each pixel over a block of pixels; see `anabranch.ops.depth_to_space`.

    Channels are the places in the block, row by row, each with all output channels, in both orders of axes. (By
    `anabranch.ops` with channels first, as in Keras, they are the output channels, each with all places.)
    """
    return _channels_last(lambda x: ops.depth_to_space(x, block_size), input, data_format)


def space_to_depth(input: TensorLike, block_size: int, data_format: str = "NHWC", name: str | None = None) -> Tensor:
    """Put the pixels of each block into the channels of one, in the order that `depth_to_space` takes."""
    return _channels_last(lambda x: ops.space_to_depth(x, block_size), input, data_format)


def _channels_last(function: Callable[[Tensor], Tensor], images: TensorLike, data_format: str) -> Tensor:
    """Compute a function of images with their channels last, wherever they are."""
    images = ops.convert_to_tensor(images)
    if _order(data_format) == "channels_last":
        return function(images)
    return ops.transpose(function(ops.transpose(images, (0, 2, 3, 1))), (0, 3, 1, 2))


def bias_add(value: TensorLike, bias: TensorLike, data_format: str | None = None, name: str | None = None) -> Tensor:
    """Add a vector to the channels: the last axis, or the second one where `data_format` begins with "NC"."""
    value = ops.convert_to_tensor(value)
    if data_format is None or not data_format.startswith("NC"):
        return ops.add(value, bias)
    return ops.add(value, ops.reshape(bias, (-1,) + (1,) * ((value.ndim or 3) - 2)))


def dropout(
    x: TensorLike,
    rate: TensorLike,
    noise_shape: Sequence[int | None] | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Set a share `rate` of the elements to 0 and divide the others by what is left of 1.

    Args:
        x: a tensor.
        rate: the share, 0 or larger and less than 1.
        noise_shape: the shape of what is drawn; None for a size of `x`.
        seed: an integer makes each call draw the same.
    """
    return samplers.dropout(x, rate, noise_shape, seed)


def l2_loss(t: TensorLike, name: str | None = None) -> Tensor:
    """Compute half of the sum of squares."""
    return ops.multiply(ops.sum(ops.square(t)), 0.5)


def softmax_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, axis: int = -1, name: str | None = None
) -> Tensor:
    """Compute the cross entropy of each row between probabilities and logits."""
    return ops.negative(ops.sum(ops.multiply(labels, ops.log_softmax(logits, axis)), axis=axis))


def sparse_softmax_cross_entropy_with_logits(labels: TensorLike, logits: TensorLike, name: str | None = None) -> Tensor:
    """Compute the cross entropy of each row between a class and logits.

    Args:
        labels: the class of each row, a whole number.
        logits: one axis more than `labels`, of one value for each class.
    """
    return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def sigmoid_cross_entropy_with_logits(labels: TensorLike, logits: TensorLike, name: str | None = None) -> Tensor:
    """Compute the cross entropy of each element between a probability and a logit."""
    return weighted_cross_entropy_with_logits(labels, logits, 1.0)


def weighted_cross_entropy_with_logits(
    labels: TensorLike, logits: TensorLike, pos_weight: TensorLike, name: str | None = None
) -> Tensor:
    """Compute `sigmoid_cross_entropy_with_logits` where the term of positive labels counts `pos_weight` times."""
    labels, logits = ops.convert_to_tensor(labels), ops.convert_to_tensor(logits)
    weight = ops.add(1.0, ops.multiply(ops.subtract(pos_weight, 1.0), labels))
    positive = ops.softplus(ops.negative(logits))  # -log(sigmoid(logits)), for logits of any size
    return ops.add(ops.multiply(ops.subtract(1.0, labels), logits), ops.multiply(weight, positive))


def _order(data_format: str | None) -> str:
    if data_format in ("NCW", "NCHW", "NCDHW"):
        return "channels_first"
    if data_format not in (None, "NWC", "NHWC", "NDHWC"):
        raise ValueError(f'data_format must be "NHWC" or "NCHW" (with W alone or D, H, W), got {data_format!r}.')
    return "channels_last"


def _inner_sizes(given: int | Sequence[int | Tensor], order: str, rank: int) -> int | tuple[int, ...]:
    """Return the sizes for space alone, where there is one for each of the `rank` + 2 axes."""
    if isinstance(given, int):
        return given
    sizes = tuple(given)
    if len(sizes) < rank + 2:
        sizes = sizes if len(sizes) == rank else sizes * rank
    else:
        sizes = sizes[2:] if order == "channels_first" else sizes[1:-1]
    return tuple(int(size) for size in sizes)  # of space alone: the number of rows may be open


def _windows(given: int | Sequence[int], order: str, rank: int) -> int | tuple[int, ...]:
    """Return sizes or distances of windows in space.

    Raises:
        ValueError: those of rows and channels are not 1.
    """
    channels = 1 if order == "channels_first" else -1
    if not isinstance(given, int) and len(given) == rank + 2 and (given[0] != 1 or given[channels] != 1):
        raise ValueError(
            f"tf.nn: windows extend and move in space alone; got {tuple(given)} with another number than 1 for rows or "
            "channels. (max_pool2d takes windows along channels, without any in space and without overlap.)"
        )
    return _inner_sizes(given, order, rank)


def _convolve(
    op: Callable[..., Tensor],
    rank: int,
    tensors: Sequence[TensorLike],
    strides: int | Sequence[int],
    padding: str,
    data_format: str | None,
    dilations: int | Sequence[int] | None,
) -> Tensor:
    """Apply a convolution of this package to an input and its filters, with TensorFlow's settings."""
    order = _order(data_format)
    dilation = _windows(1 if dilations is None else dilations, order, rank)
    return op(*tensors, _windows(strides, order, rank), padding.lower(), order, dilation)


def conv1d(
    input: TensorLike,
    filters: TensorLike,
    stride: int | Sequence[int],
    padding: str,
    data_format: str | None = "NWC",
    dilations: int | Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor:
    """Convolve sequences with filters; for the arguments see `conv2d`."""
    return _convolve(ops.conv, 1, (input, filters), stride, padding, data_format, dilations)


def conv2d(
    input: TensorLike,
    filters: TensorLike,
    strides: int | Sequence[int],
    padding: str,
    data_format: str | None = "NHWC",
    dilations: int | Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor:
    """Convolve images with filters.

    Args:
        input: rows, space and channels, in the order of `data_format`.
        filters: space, channels, new channels.
        strides: one number, one for each axis of space, or one for each axis.
        padding: "SAME" or "VALID".
        data_format: such as "NHWC" or "NCHW".
        dilations: distances in the filters, like `strides`.
    """
    return _convolve(ops.conv, 2, (input, filters), strides, padding, data_format, dilations)


def conv3d(
    input: TensorLike,
    filters: TensorLike,
    strides: int | Sequence[int],
    padding: str,
    data_format: str | None = "NDHWC",
    dilations: int | Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor:
    """Convolve volumes with filters; for the arguments see `conv2d`."""
    return _convolve(ops.conv, 3, (input, filters), strides, padding, data_format, dilations)


def depthwise_conv2d(
    input: TensorLike,
    filter: TensorLike,
    strides: Sequence[int],
    padding: str,
    data_format: str | None = None,
    dilations: int | Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor:
    """Convolve each channel with its own filters; for the arguments see `conv2d`."""
    return _convolve(ops.depthwise_conv, 2, (input, filter), strides, padding, data_format, dilations)


def separable_conv2d(
    input: TensorLike,
    depthwise_filter: TensorLike,
    pointwise_filter: TensorLike,
    strides: Sequence[int],
    padding: str,
    data_format: str | None = None,
    dilations: int | Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor:
    """Convolve each channel with its own filters, then mix the channels; for the arguments see `conv2d`."""
    tensors = input, depthwise_filter, pointwise_filter
    return _convolve(ops.separable_conv, 2, tensors, strides, padding, data_format, dilations)


def conv2d_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: Sequence[int] | Tensor,
    strides: int | Sequence[int],
    padding: str = "SAME",
    data_format: str = "NHWC",
    dilations: int | Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor:
    """Apply the gradient of `conv2d` with regard to its input.

    Args:
        input: rows, height, width and channels, in the order of `data_format`.
        filters: height, width, new channels, channels.
        output_shape: the shape of the result, four sizes.
        strides: one number, one for height and width, or one for each axis.
        padding: "SAME" or "VALID".
        data_format: "NHWC" or "NCHW".
        dilations: distances in the filters, like `strides`.

    Raises:
        ValueError: no input of `conv2d` of that shape gives one of the shape of `input`.
    """
    order = _order(data_format)
    steps, dilation = _pair(strides, order), _pair(1 if dilations is None else dilations, order)
    windows = [(size - 1) * step + 1 for size, step in zip(ops.shape(filters)[:2], dilation, strict=True)]
    wanted = _pair(list(output_shape), order)
    rows = _pair(ops.shape(input), order)
    for size, step, window, new in zip(rows, steps, windows, wanted, strict=True):
        if -(-(new if padding.upper() == "SAME" else new - window + 1) // step) != size:
            raise ValueError(
                f"tf.nn.conv2d_transpose: output_shape {wanted} (height, width) does not fit: conv2d with strides "
                f"{steps}, windows {tuple(windows)} and padding {padding} does not give {rows} from it."
            )
    # The whole result, of which padding leaves out what came from beside the new image.
    result = ops.conv_transpose(input, filters, steps, "valid", None, order, dilation)
    first = 2 if order == "channels_first" else 1
    for axis, (size, step, window, new) in enumerate(zip(rows, steps, windows, wanted, strict=True), first):
        whole = max((size - 1) * step + window, new)
        short = whole - ops.shape(result)[axis]
        if short > 0:
            result = ops.pad(result, [(0, short if each == axis else 0) for each in range(4)])
        before = (whole - new) // 2 if padding.upper() == "SAME" else 0
        result = ops.take(result, ops.arange(before, before + new), axis)
    return result


def _pair(given: int | Sequence[int | Tensor], order: str) -> tuple[int, ...]:
    sizes = _inner_sizes(given, order, 2)
    return (sizes, sizes) if isinstance(sizes, int) else sizes


def max_pool1d(
    input: TensorLike,
    ksize: int | Sequence[int],
    strides: int | Sequence[int],
    padding: str,
    data_format: str | None = "NWC",
    name: str | None = None,
) -> Tensor:
    """Compute the largest element of each window of sequences; for the arguments see `max_pool2d`."""
    return _pool(ops.max_pool, 1, input, (ksize, strides), padding, data_format)


def max_pool2d(
    input: TensorLike,
    ksize: int | Sequence[int],
    strides: int | Sequence[int],
    padding: str,
    data_format: str | None = "NHWC",
    name: str | None = None,
) -> Tensor:
    """Compute the largest element of each window of images.

    Args:
        input: rows, space and channels, in the order of `data_format`.
        ksize: the size of windows: one number, one for each axis of space, or one for each axis. Windows along channels
            have no size in space, and divide the channels.
        strides: distances of windows, like `ksize`.
        padding: "SAME" or "VALID".
        data_format: such as "NHWC" or "NCHW".
        name: does nothing.
    """
    if not isinstance(ksize, int) and not isinstance(strides, int) and tuple(ksize) == tuple(strides):
        axis = 1 if _order(data_format) == "channels_first" else 3
        if len(ksize) == 4 and ksize[axis] > 1 == math.prod(ksize) // ksize[axis]:
            return _max_of_channels(ops.convert_to_tensor(input), axis, ksize[axis])
    return _pool(ops.max_pool, 2, input, (ksize, strides), padding, data_format)


def max_pool3d(
    input: TensorLike,
    ksize: int | Sequence[int],
    strides: int | Sequence[int],
    padding: str,
    data_format: str | None = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """Compute the largest element of each window of volumes; for the arguments see `max_pool2d`."""
    return _pool(ops.max_pool, 3, input, (ksize, strides), padding, data_format)


def avg_pool1d(
    input: TensorLike,
    ksize: int | Sequence[int],
    strides: int | Sequence[int],
    padding: str,
    data_format: str | None = "NWC",
    name: str | None = None,
) -> Tensor:
    """Compute the mean of each window of sequences; for the arguments see `max_pool2d`."""
    return _pool(ops.average_pool, 1, input, (ksize, strides), padding, data_format)


def avg_pool2d(
    input: TensorLike,
    ksize: int | Sequence[int],
    strides: int | Sequence[int],
    padding: str,
    data_format: str | None = "NHWC",
    name: str | None = None,
) -> Tensor:
    """Compute the mean of each window of images; for the arguments see `max_pool2d`."""
    return _pool(ops.average_pool, 2, input, (ksize, strides), padding, data_format)


def avg_pool3d(
    input: TensorLike,
    ksize: int | Sequence[int],
    strides: int | Sequence[int],
    padding: str,
    data_format: str | None = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """Compute the mean of each window of volumes; for the arguments see `max_pool2d`."""
    return _pool(ops.average_pool, 3, input, (ksize, strides), padding, data_format)


def _pool(
    op: Callable[..., Tensor],
    rank: int,
    input: TensorLike,
    windows: tuple[int | Sequence[int], int | Sequence[int]],
    padding: str,
    data_format: str | None,
) -> Tensor:
    """Pool windows, sizes and distances of `windows`, with TensorFlow's settings."""
    order = _order(data_format)
    sizes, distances = (_windows(each, order, rank) for each in windows)
    return op(input, sizes, distances, padding.lower(), order)


def _max_of_channels(images: Tensor, axis: int, size: int) -> Tensor:
    """Compute the largest of each `size` channels next to each other."""
    shape = ops.shape(images)
    channels = None if images.shape is None else images.shape[axis]
    if channels is not None and channels % size:
        raise ValueError(f"max_pool2d: windows of {size} channels do not divide the {channels} of the input.")
    return ops.max(ops.reshape(images, (*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :])), axis + 1)


max_pool, avg_pool = max_pool2d, avg_pool2d

__all__ = [
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_normalization",
    "bias_add",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "depth_to_space",
    "depthwise_conv2d",
    "dropout",
    "elu",
    "embedding_lookup",
    "gelu",
    "in_top_k",
    "l2_loss",
    "l2_normalize",
    "leaky_relu",
    "log_softmax",
    "max_pool",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "moments",
    "nce_loss",
    "relu",
    "relu6",
    "sampled_softmax_loss",
    "selu",
    "separable_conv2d",
    "sigmoid",
    "sigmoid_cross_entropy_with_logits",
    "silu",
    "softmax",
    "softmax_cross_entropy_with_logits",
    "softplus",
    "softsign",
    "space_to_depth",
    "sparse_softmax_cross_entropy_with_logits",
    "swish",
    "tanh",
    "top_k",
    "weighted_cross_entropy_with_logits",
    "zero_fraction",
]
