"""MobileNetV3: inverted residual blocks with squeeze and excitation, found by a search, for phones.

Howard, Sandler, Chu and others, "Searching for MobileNetV3", ICCV 2019.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import Tensor
from ...engine.objects.identifiers import ActivationLike
from ...engine.ops.base import TensorLike
from ...engine.ops.data_format import image_data_format
from ...layers.convolution.depthwise import DepthwiseConv2D
from ...layers.convolution.padding import ZeroPadding2D
from ...layers.convolution.pooling import GlobalAveragePooling2D
from ...layers.core.activation import Activation, ReLU
from ...layers.core.basic import Rescaling
from ...layers.core.merging import Add, Multiply
from ...layers.core.shaping import Flatten
from ...layers.regularization.dropout import Dropout
from ..models.model import Functional
from .building import (
    Options,
    channels_of,
    convolved,
    divisible,
    halving_margins,
    normalized,
    warn_of_size,
)
from .imagenet_utils import decode_predictions

# The hashes of the files with and without a top.
_HASHES: dict[str, tuple[str, str]] = {
    "large_224_0.75_float": ("765b44a33ad4005b3ac83185abf1d0eb", "40af19a13ebea4e2ee0c676887f69a2e"),
    "large_224_1.0_float": ("59e551e166be033d707958cf9e29a6a7", "07fb09a5933dd0c8eaafa16978110389"),
    "large_minimalistic_224_1.0_float": ("675e7b876c45c57e9e63e6d90a36599c", "ec5221f64a2f6d1ef965a614bdae7973"),
    "small_224_0.75_float": ("cb65d4e5be93758266aa0a7f2c6708b7", "ebdb5cc8e0b497cd13a7c275d475c819"),
    "small_224_1.0_float": ("8768d4c2e7dee89b9d02b2d03d65d862", "d3e8ec802a04aa4fc771ee12a9a9b836"),
    "small_minimalistic_224_1.0_float": ("99cd97fb2fcdad2bf028eb838de69e37", "cde8136e733e811080d9fcd8a252f7e4"),
}


class _Block(NamedTuple):
    """A block: how much wider it is inside, its features, the size and stride of its convolution, and what it has."""

    expansion: float
    filters: int
    size: int
    stride: int
    squeezes: bool
    is_hard_swish: bool


_SMALL = [
    _Block(1, 16, 3, 2, True, False),
    _Block(72 / 16, 24, 3, 2, False, False),
    _Block(88 / 24, 24, 3, 1, False, False),
    _Block(4, 40, 5, 2, True, True),
    *[_Block(6, 40, 5, 1, True, True)] * 2,
    *[_Block(3, 48, 5, 1, True, True)] * 2,
    _Block(6, 96, 5, 2, True, True),
    *[_Block(6, 96, 5, 1, True, True)] * 2,
]
_LARGE = [
    _Block(1, 16, 3, 1, False, False),
    _Block(4, 24, 3, 2, False, False),
    _Block(3, 24, 3, 1, False, False),
    _Block(3, 40, 5, 2, True, False),
    *[_Block(3, 40, 5, 1, True, False)] * 2,
    _Block(6, 80, 3, 2, False, True),
    _Block(2.5, 80, 3, 1, False, True),
    *[_Block(2.3, 80, 3, 1, False, True)] * 2,
    *[_Block(6, 112, 3, 1, True, True)] * 2,
    _Block(6, 160, 5, 2, True, True),
    *[_Block(6, 160, 5, 1, True, True)] * 2,
]
# Blocks, and features before the classes.
_MODELS: dict[str, tuple[list[_Block], int]] = {"small": (_SMALL, 1024), "large": (_LARGE, 1280)}


@dataclass(frozen=True)
class _Variant:
    """Hold the settings in which the models differ."""

    kind: str
    alpha: float
    is_minimalistic: bool
    dropout_rate: float
    include_preprocessing: bool

    @property
    def weights(self) -> str:
        minimalistic = "_minimalistic" if self.is_minimalistic else ""
        return f"{self.kind}{minimalistic}_224_{float(self.alpha)}_float"


def MobileNetV3Small(
    input_shape: Sequence[int | None] | None = None,
    alpha: float = 1.0,
    minimalistic: bool = False,
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    classes: int = 1000,
    pooling: str | None = None,
    dropout_rate: float = 0.2,
    classifier_activation: ActivationLike = "softmax",
    include_preprocessing: bool = True,
    name: str | None = "MobileNetV3Small",
) -> Functional:
    """Build the small MobileNetV3: 2.6 million parameters.

    Args:
        alpha: the number of features, as a share of the paper's. Keras has weights for 0.75 and 1.0.
        minimalistic: leave out squeeze and excitation, hard swish and convolutions of size 5, which some processors
            are slow at.
        dropout_rate: the share of features that is dropped before the classes in training.
        include_preprocessing: whether images come as numbers from 0 to 255, which the model scales itself; otherwise
            from -1 to 1.
        input_shape, include_top, weights, input_tensor, classes, pooling, classifier_activation, name: as for
            `resnet.ResNet50`; sizes may be None with a top, too.

    Raises:
        ValueError: see there; or there are no weights for `alpha`.

    >>> import anabranch as ab
    >>> model = ab.applications.MobileNetV3Small(weights=None, include_top=False, pooling="avg")
    >>> model.output_shape, f"{model.count_params():,}"
    ((None, 576), '939,120')
    """
    variant = _Variant("small", alpha, minimalistic, dropout_rate, include_preprocessing)
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _mobilenet_v3(variant, options)


def MobileNetV3Large(
    input_shape: Sequence[int | None] | None = None,
    alpha: float = 1.0,
    minimalistic: bool = False,
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    classes: int = 1000,
    pooling: str | None = None,
    dropout_rate: float = 0.2,
    classifier_activation: ActivationLike = "softmax",
    include_preprocessing: bool = True,
    name: str | None = "MobileNetV3Large",
) -> Functional:
    """Build the large MobileNetV3: 5.5 million parameters; the arguments are those of `MobileNetV3Small`.

    >>> import anabranch as ab
    >>> model = ab.applications.MobileNetV3Large(weights=None, include_top=False, pooling="avg")
    >>> model.output_shape, f"{model.count_params():,}"
    ((None, 960), '2,996,352')
    """
    variant = _Variant("large", alpha, minimalistic, dropout_rate, include_preprocessing)
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _mobilenet_v3(variant, options)


def preprocess_input(x: TensorLike, data_format: str | None = None) -> TensorLike:
    """Return images as they are: the models scale them.

    Args:
        x, data_format: as for `imagenet_utils.preprocess_input`.
    """
    return x


def _mobilenet_v3(variant: _Variant, options: Options) -> Functional:
    images = options.images(_shape(variant, options))
    x = Rescaling(1 / 127.5, -1.0)(images) if variant.include_preprocessing else images
    x = _activated(_normalized(convolved(x, 16, 3, "conv", strides=2, padding="same", use_bias=False), "conv"), variant)
    blocks, last = _MODELS[variant.kind]
    for number, block in enumerate(blocks):
        x = _block(x, block, variant, number)
    x = convolved(x, divisible(channels_of(x) * 6), 1, "conv_1", padding="same", use_bias=False)
    x = _activated(_normalized(x, "conv_1"), variant)
    if options.include_top:
        x = _classified(x, divisible(last * variant.alpha) if variant.alpha > 1 else last, variant, options)
    else:
        x = options.pooled(x)
    file_hash = None
    if options.is_imagenet:
        file_hash = _HASHES[variant.weights][0 if options.include_top else 1]
    file = f"weights_mobilenet_v3_{variant.weights}{'' if options.include_top else '_no_top_v2'}.h5"
    return options.model(images, x, "mobilenet_v3", file, file_hash)


def _shape(variant: _Variant, options: Options) -> tuple[int | None, ...]:
    """Return the shape of the images: of any size from 32 on, also with a top."""
    height, width = options.given_size()
    usual = (height, width, 3) if image_data_format() == "channels_last" else (3, height, width)
    shape = usual if options.input_shape is None else tuple(options.input_shape)
    if any(size is not None and size < 32 for size in (height, width)):
        raise ValueError(f"Images must be at least 32x32, got input_shape={shape}.")
    if options.is_imagenet and variant.weights not in _HASHES:
        widths = (1.0,) if variant.is_minimalistic else (0.75, 1.0)
        raise ValueError(f"There are weights for alpha in {widths}, got {variant.alpha}. Pass weights=None for others.")
    if options.is_imagenet and (height, width) != (224, 224):
        warn_of_size(shape, (224,))
    return shape


def _normalized(x: Tensor, name: str) -> Tensor:
    return normalized(x, f"{name}_bn", 1e-3, 0.999)


def _activated(x: Tensor, variant: _Variant, is_hard_swish: bool = True) -> Tensor:
    return Activation("hard_swish")(x) if is_hard_swish and not variant.is_minimalistic else ReLU()(x)


def _block(inputs: Tensor, block: _Block, variant: _Variant, number: int) -> Tensor:
    """Widen the features, convolve each separately, and narrow them."""
    x, before = inputs, channels_of(inputs)
    filters, inside = divisible(block.filters * variant.alpha), divisible(before * block.expansion)
    prefix = f"expanded_conv_{number}_" if number else "expanded_conv_"
    if number:
        x = convolved(x, inside, 1, f"{prefix}expand", padding="same", use_bias=False)
        x = _activated(_normalized(x, f"{prefix}expand"), variant, block.is_hard_swish)
    size = 3 if variant.is_minimalistic else block.size
    if block.stride == 2:
        x = ZeroPadding2D(halving_margins(x, size), name=f"{prefix}depthwise_pad")(x)
    padding = "same" if block.stride == 1 else "valid"
    x = DepthwiseConv2D(size, strides=block.stride, use_bias=False, padding=padding, name=f"{prefix}depthwise")(x)
    x = _activated(_normalized(x, f"{prefix}depthwise"), variant, block.is_hard_swish)
    if block.squeezes and not variant.is_minimalistic:
        x = _squeezed(x, inside, f"{prefix}squeeze_excite")
    x = convolved(x, filters, 1, f"{prefix}project", padding="same", use_bias=False)
    x = _normalized(x, f"{prefix}project")
    return Add(name=f"{prefix}add")([inputs, x]) if block.stride == 1 and before == filters else x


def _squeezed(inputs: Tensor, filters: int, name: str) -> Tensor:
    """Weigh each feature by its mean over the whole image (Hu, Shen and Sun, 2018)."""
    x = GlobalAveragePooling2D(keepdims=True, name=f"{name}_avg_pool")(inputs)
    x = convolved(x, divisible(filters / 4), 1, f"{name}_conv", padding="same")
    x = ReLU(name=f"{name}_relu")(x)
    x = convolved(x, filters, 1, f"{name}_conv_1", padding="same")
    x = ReLU(6.0)(x + 3.0) * (1.0 / 6.0)
    return Multiply(name=f"{name}_mul")([inputs, x])


def _classified(x: Tensor, filters: int, variant: _Variant, options: Options) -> Tensor:
    x = GlobalAveragePooling2D(keepdims=True)(x)
    x = _activated(convolved(x, filters, 1, "conv_2", padding="same"), variant)
    if variant.dropout_rate > 0:
        x = Dropout(variant.dropout_rate)(x)
    x = Flatten()(convolved(x, options.classes, 1, "logits", padding="same"))
    options.check_activation()
    return Activation(options.classifier_activation, name="predictions")(x)


__all__ = ["decode_predictions", "preprocess_input"]
