"""MobileNet: convolutions feature by feature, then across features at each place, for phones.

Howard, Zhu, Chen and others, "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications",
arXiv:1704.04861, 2017.
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
from ...layers.core.activation import Activation, ReLU
from ...layers.core.shaping import Reshape
from ...layers.regularization.dropout import Dropout
from ..models.model import Functional
from .building import (
    Options,
    convolved,
    normalized,
    sizes_of,
    warn_of_size,
)
from .imagenet_utils import decode_predictions
from .resnet_v2 import preprocess_input

# Of the blocks one after the other: features, stride.
_BLOCKS = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
_SIZES = (128, 160, 192, 224)  # of images that Keras has weights for
_WIDTHS = {0.25: "2_5", 0.50: "5_0", 0.75: "7_5", 1.0: "1_0"}  # and how their files say it


def MobileNet(
    input_shape: Sequence[int | None] | None = None,
    alpha: float = 1.0,
    depth_multiplier: int = 1,
    dropout: float = 0.001,
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = None,
) -> Functional:
    """Build the first MobileNet: 4.3 million parameters.

    Args:
        alpha: the number of features, as a share of the paper's. Keras has weights for 0.25, 0.5, 0.75 and 1.0, each
            for images of 128, 160, 192 and 224.
        depth_multiplier: how many features each convolution feature by feature makes of one. Weights are for 1.
        dropout: the share of features that are dropped before the classes.
        input_shape, include_top, weights, input_tensor, pooling, classes, classifier_activation, name: as for
            `resnet.ResNet50`.

    Raises:
        ValueError: see there; or there are no weights for `alpha` or `depth_multiplier`.

    >>> import anabranch as ab
    >>> model = ab.applications.MobileNet((128, 128, 3), alpha=0.25, weights=None)
    >>> model.name, f"{model.count_params():,}"
    ('mobilenet_0.25_128', '475,544')
    """
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    height, width = options.given_size()
    default = height if height == width and height in _SIZES else 224
    shape = options.shape(default)
    size, other = sizes_of(shape)
    if options.is_imagenet:
        _check_trained(alpha, depth_multiplier)
        if size != other or size not in _SIZES:
            warn_of_size(shape, _SIZES)
            size = 224
    options = options.named(f"mobilenet_{alpha:0.2f}_{size}")
    images = options.images(shape)
    x = _features(images, alpha, depth_multiplier)
    x = _classified(x, dropout, options) if include_top else options.pooled(x, (None, None))
    file = f"mobilenet_{_WIDTHS.get(alpha)}_{size}_tf{'' if include_top else '_no_top'}.h5"
    return options.model(images, x, "mobilenet", file, None)


def _check_trained(alpha: float, depth_multiplier: int) -> None:
    if alpha not in _WIDTHS:
        raise ValueError(f"There are weights for alpha in {tuple(_WIDTHS)}, got {alpha}. Pass weights=None for others.")
    if depth_multiplier != 1:
        raise ValueError(
            f"There are weights for depth_multiplier=1, got {depth_multiplier}. Pass weights=None for others."
        )


def _features(images: TensorLike, alpha: float, depth_multiplier: int) -> Tensor:
    x = convolved(images, int(32 * alpha), 3, "conv1", strides=2, padding="same", use_bias=False)
    x = _normalized(x, "conv1")
    for number, (filters, stride) in enumerate(_BLOCKS, 1):
        if stride == 2:  # below and to the right alone, also where sizes are odd
            x = ZeroPadding2D(((0, 1), (0, 1)), name=f"conv_pad_{number}")(x)
        padding, name = ("same" if stride == 1 else "valid"), f"conv_dw_{number}"
        x = DepthwiseConv2D(3, stride, padding, depth_multiplier, use_bias=False, name=name)(x)
        x = _normalized(x, name)
        x = convolved(x, int(filters * alpha), 1, f"conv_pw_{number}", padding="same", use_bias=False)
        x = _normalized(x, f"conv_pw_{number}")
    return x


def _normalized(x: Tensor, name: str) -> Tensor:
    return ReLU(6.0, name=f"{name}_relu")(normalized(x, f"{name}_bn", 1e-3))


def _classified(x: Tensor, dropout: float, options: Options) -> Tensor:
    options.check_activation()
    x = Dropout(dropout, name="dropout")(GlobalAveragePooling2D(keepdims=True)(x))
    x = convolved(x, options.classes, 1, "conv_preds", padding="same")
    x = Reshape((options.classes,), name="reshape_2")(x)
    return Activation(options.classifier_activation, name="predictions")(x)


__all__ = ["MobileNet", "decode_predictions", "preprocess_input"]
