"""MobileNetV2: inverted residual blocks, whose narrow ends have no activation, for phones.

Sandler, Howard, Zhu, Zhmoginov and Chen, "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...engine.graph import Tensor
from ...engine.objects.identifiers import ActivationLike
from ...engine.ops.base import TensorLike
from ...layers.convolution.depthwise import DepthwiseConv2D
from ...layers.convolution.padding import ZeroPadding2D
from ...layers.convolution.pooling import GlobalAveragePooling2D
from ...layers.core.activation import ReLU
from ...layers.core.merging import Add
from ..models.model import Functional
from .building import (
    KERAS_FILE,
    Options,
    channels_of,
    convolved,
    divisible,
    halving_margins,
    normalized,
    sizes_of,
    warn_of_size,
)
from .imagenet_utils import decode_predictions
from .resnet_v2 import preprocess_input

# Of the blocks one after the other: features, the first block's stride, how many.
_STAGES = [(16, 1, 1), (24, 2, 2), (32, 2, 3), (64, 2, 4), (96, 1, 3), (160, 2, 3), (320, 1, 1)]
_EXPANSION = 6
_SIZES = (96, 128, 160, 192, 224)  # of images that Keras has weights for
_WIDTHS = (0.35, 0.50, 0.75, 1.0, 1.3, 1.4)


def MobileNetV2(
    input_shape: Sequence[int | None] | None = None,
    alpha: float = 1.0,
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = None,
) -> Functional:
    """Build MobileNetV2: 3.5 million parameters.

    Args:
        alpha: the number of features, as a share of the paper's. Keras has weights for 0.35, 0.5, 0.75, 1.0, 1.3 and
            1.4, each for images of 96, 128, 160, 192 and 224.
        input_shape, include_top, weights, input_tensor, pooling, classes, classifier_activation, name: as for
            `resnet.ResNet50`.

    Raises:
        ValueError: see there; or there are no weights for `alpha`.

    >>> import anabranch as ab
    >>> model = ab.applications.MobileNetV2((96, 96, 3), alpha=0.35, weights=None)
    >>> model.name, f"{model.count_params():,}"
    ('mobilenetv2_0.35_96', '1,691,208')
    """
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    height, width = options.given_size()
    default = height if height == width and height in _SIZES else 224
    shape = options.shape(default)
    size, other = sizes_of(shape)
    if options.is_imagenet:
        if alpha not in _WIDTHS:
            raise ValueError(f"There are weights for alpha in {_WIDTHS}, got {alpha}. Pass weights=None for others.")
        if size != other or size not in _SIZES:
            warn_of_size(shape, _SIZES)
            size = 224
    options = options.named(f"mobilenetv2_{alpha:0.2f}_{size}")
    images = options.images(shape)
    file = KERAS_FILE.format("mobilenet_v2", f"_{float(alpha)}_{size}{'' if include_top else '_no_top'}")
    return options.model(images, _topped(_features(images, alpha), options), "mobilenet_v2", file, None)


def _features(images: TensorLike, alpha: float) -> Tensor:
    x = convolved(images, divisible(32 * alpha), 3, "Conv1", strides=2, padding="same", use_bias=False)
    x = _normalized(x, "bn_Conv1", "Conv1_relu")
    number = 0
    for filters, first_stride, count in _STAGES:
        for block in range(count):
            stride = first_stride if block == 0 else 1
            x = _block(x, divisible(int(filters * alpha)), stride, number)
            number += 1
    x = convolved(x, divisible(1280 * max(alpha, 1.0)), 1, "Conv_1", use_bias=False)
    return _normalized(x, "Conv_1_bn", "out_relu")


def _normalized(x: Tensor, name: str, activation_name: str | None = None) -> Tensor:
    x = normalized(x, name, 1e-3, 0.999)
    return x if activation_name is None else ReLU(6.0, name=activation_name)(x)


def _block(inputs: Tensor, filters: int, stride: int, number: int) -> Tensor:
    """Widen the features, convolve each separately, and narrow them."""
    x, before = inputs, channels_of(inputs)
    prefix = f"block_{number}_" if number else "expanded_conv_"
    if number:
        x = convolved(x, _EXPANSION * before, 1, f"{prefix}expand", padding="same", use_bias=False)
        x = _normalized(x, f"{prefix}expand_BN", f"{prefix}expand_relu")
    if stride == 2:
        x = ZeroPadding2D(halving_margins(x, 3), name=f"{prefix}pad")(x)
    padding = "same" if stride == 1 else "valid"
    x = DepthwiseConv2D(3, strides=stride, use_bias=False, padding=padding, name=f"{prefix}depthwise")(x)
    x = _normalized(x, f"{prefix}depthwise_BN", f"{prefix}depthwise_relu")
    x = convolved(x, filters, 1, f"{prefix}project", padding="same", use_bias=False)
    x = _normalized(x, f"{prefix}project_BN")
    return Add(name=f"{prefix}add")([inputs, x]) if before == filters and stride == 1 else x


def _topped(x: Tensor, options: Options) -> Tensor:
    if options.include_top:
        return options.classified(GlobalAveragePooling2D()(x))
    return options.pooled(x, (None, None))


__all__ = ["MobileNetV2", "decode_predictions", "preprocess_input"]
