"""EfficientNet: a small network found by a search, made wider, deeper and finer all at once.

Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...engine.graph import Tensor
from ...engine.objects.identifiers import ActivationLike
from ...engine.ops.base import TensorLike
from ...layers.convolution.depthwise import DepthwiseConv2D
from ...layers.convolution.padding import ZeroPadding2D
from ...layers.core.basic import Rescaling
from ...layers.core.merging import Add
from ...layers.preprocessing.numbers import Normalization
from ...layers.regularization.dropout import Dropout
from ..models.model import Functional
from .building import (
    Options,
    channels_of,
    divisible,
    features_axis,
    halving_margins,
    normalized,
)
from .efficientnet_v2 import convolution, initializer, squeezed, swished, topped
from .imagenet_utils import TORCH_DEVIATION, decode_predictions
from .mobilenet_v3 import preprocess_input

_STORE = "https://storage.googleapis.com/keras-applications/"  # another one than that of the other models
_BLOCK_DROPOUT = 0.2  # of whole blocks, more of them from block to block
_SQUEEZE = 0.25  # of a block's input


class _Stage(NamedTuple):
    """A stage: how many blocks, features, the size of convolutions, the first stride, how much wider blocks become."""

    count: int
    filters: int
    size: int
    stride: int
    expansion: int


class _Network(NamedTuple):
    """A model: width, depth, image size, dropout before the classes, hashes of the files with and without a top."""

    width: float
    depth: float
    size: int
    dropout: float
    hashes: tuple[str, str]


_STAGES = [
    _Stage(1, 16, 3, 1, 1),
    _Stage(2, 24, 3, 2, 6),
    _Stage(2, 40, 5, 2, 6),
    _Stage(3, 80, 3, 2, 6),
    _Stage(3, 112, 5, 1, 6),
    _Stage(4, 192, 5, 2, 6),
    _Stage(1, 320, 3, 1, 6),
]
_MODELS = {
    "b0": _Network(1.0, 1.0, 224, 0.2, ("902e53a9f72be733fc0bcb005b3ebbac", "50bc09e76180e00e4465e1a485ddc09d")),
    "b1": _Network(1.0, 1.1, 240, 0.2, ("1d254153d4ab51201f1646940f018540", "74c4e6b3e1f6a1eea24c589628592432")),
    "b2": _Network(1.1, 1.2, 260, 0.3, ("b15cce36ff4dcbd00b6dd88e7857a6ad", "111f8e2ac8aa800a7a99e3239f7bfb39")),
    "b3": _Network(1.2, 1.4, 300, 0.3, ("ffd1fdc53d0ce67064dc6a9c7960ede0", "af6d107764bb5b1abb91932881670226")),
    "b4": _Network(1.4, 1.8, 380, 0.4, ("18c95ad55216b8f92d7e70b3a046e2fc", "ebc24e6d6c33eaebbd558eafbeedf1ba")),
    "b5": _Network(1.6, 2.2, 456, 0.4, ("ace28f2a6363774853a83a0b21b9421a", "38879255a25d3c92d5e44e04ae6cec6f")),
    "b6": _Network(1.8, 2.6, 528, 0.5, ("165f6e37dce68623721b423839de8be5", "9ecce42647a20130c1f39a5d4cb75743")),
    "b7": _Network(2.0, 3.1, 600, 0.5, ("8c03f828fec3ef71311cd463b6759d99", "cbcfe4450ddf6f3ad90b1b398090fe4a")),
}


def EfficientNetB0(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "efficientnetb0",
) -> Functional:
    """Build EfficientNetB0: 5.3 million parameters, images of 224x224.

    Args:
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name: as for
            `resnet.ResNet50`.

    Images come as numbers from 0 to 255, which the model scales. With random weights it then normalises them by
    averages that `model.get_layer("normalization").adapt(images)` may learn.

    >>> import anabranch as ab
    >>> model = ab.applications.EfficientNetB0(weights=None, include_top=False, pooling="avg")
    >>> model.output_shape, f"{model.count_params():,}"
    ((None, 1280), '4,049,571')
    """
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("b0", options)


def EfficientNetB1(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "efficientnetb1",
) -> Functional:
    """Build EfficientNetB1: 7.9 million parameters, images of 240x240; arguments: `EfficientNetB0`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("b1", options)


def EfficientNetB2(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "efficientnetb2",
) -> Functional:
    """Build EfficientNetB2: 9.2 million parameters, images of 260x260; arguments: `EfficientNetB0`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("b2", options)


def EfficientNetB3(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "efficientnetb3",
) -> Functional:
    """Build EfficientNetB3: 12.3 million parameters, images of 300x300; arguments: `EfficientNetB0`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("b3", options)


def EfficientNetB4(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "efficientnetb4",
) -> Functional:
    """Build EfficientNetB4: 19.5 million parameters, images of 380x380; arguments: `EfficientNetB0`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("b4", options)


def EfficientNetB5(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "efficientnetb5",
) -> Functional:
    """Build EfficientNetB5: 30.6 million parameters, images of 456x456; arguments: `EfficientNetB0`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("b5", options)


def EfficientNetB6(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "efficientnetb6",
) -> Functional:
    """Build EfficientNetB6: 43.3 million parameters, images of 528x528; arguments: `EfficientNetB0`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("b6", options)


def EfficientNetB7(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "efficientnetb7",
) -> Functional:
    """Build EfficientNetB7: 66.7 million parameters, images of 600x600; arguments: `EfficientNetB0`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("b7", options)


def _efficientnet(kind: str, options: Options) -> Functional:
    network = _MODELS[kind]
    images = options.images(options.shape(network.size))
    x = Normalization(features_axis())(Rescaling(1 / 255)(images))
    if options.is_imagenet:  # the weights were trained with images over the deviation's square root, too
        x = Rescaling([1 / math.sqrt(deviation) for deviation in TORCH_DEVIATION])(x)
    x = ZeroPadding2D(halving_margins(x, 3), name="stem_conv_pad")(x)
    x = convolution(x, divisible(32 * network.width), 3, "stem_conv", strides=2, padding="valid")
    x = swished(_normalized(x, "stem_bn"), "stem_activation")
    counts = [math.ceil(network.depth * stage.count) for stage in _STAGES]
    done = 0
    for number, (stage, count) in enumerate(zip(_STAGES, counts, strict=True), 1):
        filters = divisible(stage.filters * network.width)
        for step in range(count):
            own = stage if step == 0 else stage._replace(stride=1)
            x = _block(x, filters, own, _BLOCK_DROPOUT * done / sum(counts), f"block{number}{chr(ord('a') + step)}_")
            done += 1
    x = convolution(x, divisible(1280 * network.width), 1, "top_conv")
    x = swished(_normalized(x, "top_bn"), "top_activation")
    file = f"efficientnet{kind}{'' if options.include_top else '_notop'}.h5"
    file_hash = network.hashes[0 if options.include_top else 1]
    return options.model(images, topped(x, options, network.dropout), "", file, file_hash, _STORE + file)


def _normalized(x: Tensor, name: str) -> Tensor:
    return normalized(x, name, 1e-3)


def _block(inputs: Tensor, filters: int, stage: _Stage, dropout: float, name: str) -> Tensor:
    """Widen the features, convolve each separately, and narrow them; add the input where the shapes agree."""
    x, before = inputs, channels_of(inputs)
    if stage.expansion != 1:
        x = convolution(x, before * stage.expansion, 1, f"{name}expand_conv")
        x = swished(_normalized(x, f"{name}expand_bn"), f"{name}expand_activation")
    padding = "same"
    if stage.stride == 2:
        x, padding = ZeroPadding2D(halving_margins(x, stage.size), name=f"{name}dwconv_pad")(x), "valid"
    options: dict[str, Any] = {"use_bias": False, "depthwise_initializer": initializer(), "name": f"{name}dwconv"}
    x = DepthwiseConv2D(stage.size, stage.stride, padding, **options)(x)
    x = swished(_normalized(x, f"{name}bn"), f"{name}activation")
    x = squeezed(x, max(1, int(before * _SQUEEZE)), name)
    x = _normalized(convolution(x, filters, 1, f"{name}project_conv"), f"{name}project_bn")
    if stage.stride != 1 or before != filters:
        return x
    if dropout:
        x = Dropout(dropout, noise_shape=(None, 1, 1, 1), name=f"{name}drop")(x)
    return Add(name=f"{name}add")([x, inputs])


__all__ = [
    "EfficientNetB0",
    "EfficientNetB1",
    "EfficientNetB2",
    "EfficientNetB3",
    "EfficientNetB4",
    "EfficientNetB5",
    "EfficientNetB6",
    "EfficientNetB7",
    "decode_predictions",
    "preprocess_input",
]
