"""EfficientNetV2: convolutional networks found by a search for quick training.

Tan and Le, "EfficientNetV2: Smaller Models and Faster Training", ICML 2021.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...engine.graph import Tensor
from ...engine.objects.identifiers import ActivationLike
from ...engine.objects.initializers import VarianceScaling
from ...engine.ops.base import TensorLike
from ...engine.ops.data_format import image_data_format
from ...layers.convolution.depthwise import DepthwiseConv2D
from ...layers.convolution.pooling import GlobalAveragePooling2D
from ...layers.core.basic import Rescaling
from ...layers.core.merging import Add, Multiply
from ...layers.core.shaping import Reshape
from ...layers.preprocessing.numbers import Normalization
from ...layers.regularization.dropout import Dropout
from ..models.model import Functional
from .building import (
    Options,
    activated,
    channels_in,
    channels_of,
    convolved,
    features_axis,
    normalized,
)
from .imagenet_utils import TORCH_DEVIATION, TORCH_MEAN, decode_predictions
from .mobilenet_v3 import preprocess_input

_DROPOUT = 0.2  # before the classes
_BLOCK_DROPOUT = 0.2  # of whole blocks, more of them from block to block


class _Stage(NamedTuple):
    """A stage: how many blocks, features, the first stride, how much wider blocks are inside, squeeze, fused."""

    count: int
    filters: int
    stride: int
    expansion: int
    squeeze: float
    is_fused: bool


class _Network(NamedTuple):
    """A model: features of the first convolution, stages, width, depth, image size, hashes with and without a top."""

    first: int
    stages: list[_Stage]
    width: float
    depth: float
    size: int
    hashes: tuple[str, str]


_B = [
    _Stage(1, 16, 1, 1, 0, True),
    _Stage(2, 32, 2, 4, 0, True),
    _Stage(2, 48, 2, 4, 0, True),
    _Stage(3, 96, 2, 4, 0.25, False),
    _Stage(5, 112, 1, 6, 0.25, False),
    _Stage(8, 192, 2, 6, 0.25, False),
]
_S = [
    _Stage(2, 24, 1, 1, 0, True),
    _Stage(4, 48, 2, 4, 0, True),
    _Stage(4, 64, 2, 4, 0, True),
    _Stage(6, 128, 2, 4, 0.25, False),
    _Stage(9, 160, 1, 6, 0.25, False),
    _Stage(15, 256, 2, 6, 0.25, False),
]
_M = [
    _Stage(3, 24, 1, 1, 0, True),
    _Stage(5, 48, 2, 4, 0, True),
    _Stage(5, 80, 2, 4, 0, True),
    _Stage(7, 160, 2, 4, 0.25, False),
    _Stage(14, 176, 1, 6, 0.25, False),
    _Stage(18, 304, 2, 6, 0.25, False),
    _Stage(5, 512, 1, 6, 0.25, False),
]
_L = [
    _Stage(4, 32, 1, 1, 0, True),
    _Stage(7, 64, 2, 4, 0, True),
    _Stage(7, 96, 2, 4, 0, True),
    _Stage(10, 192, 2, 4, 0.25, False),
    _Stage(19, 224, 1, 6, 0.25, False),
    _Stage(25, 384, 2, 6, 0.25, False),
    _Stage(7, 640, 1, 6, 0.25, False),
]
_MODELS = {
    "b0": _Network(32, _B, 1.0, 1.0, 224, ("21ecbf6da12460d5c40bb2f29ceb2188", "893217f2bb855e2983157299931e43ff")),
    "b1": _Network(32, _B, 1.0, 1.1, 240, ("069f0534ff22adf035c89e2d9547a9dc", "0e80663031ca32d657f9caa404b6ec37")),
    "b2": _Network(32, _B, 1.1, 1.2, 260, ("424e49f28180edbde1e94797771950a7", "1dfe2e7a5d45b6632553a8961ea609eb")),
    "b3": _Network(32, _B, 1.2, 1.4, 300, ("1f1fc43bd98a6e4fd8fdfd551e02c7a0", "f6abf7b5849ac99a89b50dd3fd532856")),
    "s": _Network(24, _S, 1.0, 1.0, 384, ("e1d88a8495beba45748fedd0cecbe016", "af0682fb74e8c54910f2d4393339c070")),
    "m": _Network(24, _M, 1.0, 1.0, 480, ("a3bf6aa3276309f4fc6a34aa114c95cd", "1b8dc055df72dde80d614482840fe342")),
    "l": _Network(32, _L, 1.0, 1.0, 480, ("27e6d408b53c7ebc868fefa357689935", "b0b66b5c863aef5b46e8608fe1711615")),
}


def EfficientNetV2B0(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    include_preprocessing: bool = True,
    name: str | None = "efficientnetv2-b0",
) -> Functional:
    """Build EfficientNetV2B0: 7.2 million parameters, images of 224x224.

    Args:
        include_preprocessing: whether images come as numbers from 0 to 255, which the model scales itself. Otherwise
            they come as it would scale them: for B0 to B3 as `imagenet_utils.preprocess_input` does in the mode
            "torch" (of three channels), for S, M and L from -1 to 1.
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name: as for
            `resnet.ResNet50`.

    >>> import anabranch as ab
    >>> model = ab.applications.EfficientNetV2B0(weights=None, include_top=False, pooling="avg")
    >>> model.output_shape, f"{model.count_params():,}"
    ((None, 1280), '5,919,312')
    """
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("b0", options, include_preprocessing)


def EfficientNetV2B1(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    include_preprocessing: bool = True,
    name: str | None = "efficientnetv2-b1",
) -> Functional:
    """Build EfficientNetV2B1: 8.2 million parameters, images of 240x240; arguments: `EfficientNetV2B0`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("b1", options, include_preprocessing)


def EfficientNetV2B2(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    include_preprocessing: bool = True,
    name: str | None = "efficientnetv2-b2",
) -> Functional:
    """Build EfficientNetV2B2: 10.2 million parameters, images of 260x260; arguments: `EfficientNetV2B0`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("b2", options, include_preprocessing)


def EfficientNetV2B3(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    include_preprocessing: bool = True,
    name: str | None = "efficientnetv2-b3",
) -> Functional:
    """Build EfficientNetV2B3: 14.5 million parameters, images of 300x300; arguments: `EfficientNetV2B0`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("b3", options, include_preprocessing)


def EfficientNetV2S(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    include_preprocessing: bool = True,
    name: str | None = "efficientnetv2-s",
) -> Functional:
    """Build EfficientNetV2S: 21.6 million parameters, images of 384x384; arguments: `EfficientNetV2B0`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("s", options, include_preprocessing)


def EfficientNetV2M(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    include_preprocessing: bool = True,
    name: str | None = "efficientnetv2-m",
) -> Functional:
    """Build EfficientNetV2M: 54.4 million parameters, images of 480x480; arguments: `EfficientNetV2B0`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("m", options, include_preprocessing)


def EfficientNetV2L(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    include_preprocessing: bool = True,
    name: str | None = "efficientnetv2-l",
) -> Functional:
    """Build EfficientNetV2L: 119.0 million parameters, images of 480x480; arguments: `EfficientNetV2B0`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _efficientnet("l", options, include_preprocessing)


def _efficientnet(kind: str, options: Options, include_preprocessing: bool) -> Functional:
    network = _MODELS[kind]
    shape = options.shape(network.size)
    x = images = options.images(shape)
    if include_preprocessing:
        x = _prepared(x, kind, channels_in(shape))
    x = convolution(x, _filters(network.first, network), 3, "stem_conv", strides=2)
    x = swished(_normalized(x, "stem_bn"), "stem_activation")
    # Rates and depths are Keras's: rates go by the number of blocks before any are repeated.
    done, total = 0, sum(stage.count for stage in network.stages)
    for number, stage in enumerate(network.stages, 1):
        filters = _filters(stage.filters, network)
        for step in range(math.ceil(network.depth * stage.count)):
            own = stage if step == 0 else stage._replace(stride=1)
            x = _block(x, filters, own, _BLOCK_DROPOUT * done / total, f"block{number}{chr(ord('a') + step)}_")
            done += 1
    x = convolution(x, _filters(1280, network), 1, "top_conv")
    x = swished(_normalized(x, "top_bn"), "top_activation")
    file = f"efficientnetv2-{kind}{'' if options.include_top else '_notop'}.h5"
    file_hash = network.hashes[0 if options.include_top else 1]
    return options.model(images, topped(x, options), "efficientnet_v2", file, file_hash)


def _prepared(x: Tensor, kind: str, channels: int | None) -> Tensor:
    """Return images of 0 to 255 as the model was trained on them."""
    if not kind.startswith("b") or channels != 3:
        return Rescaling(1 / 128, -1)(x)
    variance = [deviation**2 for deviation in TORCH_DEVIATION]
    axis = features_axis()
    return Normalization(axis, TORCH_MEAN, variance)(Rescaling(1 / 255)(x))


def _filters(filters: int, network: _Network) -> int:
    """Return the multiple of 8 next to a number of features."""
    return max(8, int(filters * network.width + 4) // 8 * 8)


def convolution(x: TensorLike, filters: int, size: int, name: str, **options: object) -> Tensor:
    """Return the features behind a convolution that keeps the size, without a bias, unless `options` say otherwise."""
    options = {"padding": "same", "use_bias": False, "kernel_initializer": initializer(), **options}
    return convolved(x, filters, size, name, **options)


def initializer() -> VarianceScaling:
    """Return the initialiser of all kernels."""
    return VarianceScaling(2.0, "fan_out", "truncated_normal")


def _normalized(x: Tensor, name: str) -> Tensor:
    return normalized(x, name, 1e-3, 0.9)


def swished(x: Tensor, name: str) -> Tensor:
    """Return the features behind Swish."""
    return activated(x, name, "swish")


def _block(inputs: Tensor, filters: int, stage: _Stage, dropout: float, name: str) -> Tensor:
    """Widen the features, convolve and narrow them; add the input where the shapes agree."""
    before = channels_of(inputs)
    x = (_fused if stage.is_fused else _apart)(inputs, before * stage.expansion, filters, stage, name)
    if stage.stride != 1 or before != filters:
        return x
    if dropout:
        x = Dropout(dropout, noise_shape=(None, 1, 1, 1), name=f"{name}drop")(x)
    return Add(name=f"{name}add")([x, inputs])


def _fused(x: Tensor, inside: int, filters: int, stage: _Stage, name: str) -> Tensor:
    """Return the inside of a block that widens and convolves in one."""
    if stage.expansion == 1:
        x = convolution(x, filters, 3, f"{name}project_conv", strides=stage.stride)
        return swished(_normalized(x, f"{name}project_bn"), f"{name}project_activation")
    x = convolution(x, inside, 3, f"{name}expand_conv", strides=stage.stride)
    x = swished(_normalized(x, f"{name}expand_bn"), f"{name}expand_activation")
    return _normalized(convolution(x, filters, 1, f"{name}project_conv"), f"{name}project_bn")


def _apart(x: Tensor, inside: int, filters: int, stage: _Stage, name: str) -> Tensor:
    """Return the inside of a block that convolves feature by feature, with squeeze and excitation."""
    narrow = max(1, int(channels_of(x) * stage.squeeze))
    x = convolution(x, inside, 1, f"{name}expand_conv")
    x = swished(_normalized(x, f"{name}expand_bn"), f"{name}expand_activation")
    options: dict[str, Any] = {"padding": "same", "use_bias": False, "depthwise_initializer": initializer()}
    x = DepthwiseConv2D(3, strides=stage.stride, name=f"{name}dwconv2", **options)(x)
    x = squeezed(swished(_normalized(x, f"{name}bn"), f"{name}activation"), narrow, name)
    return _normalized(convolution(x, filters, 1, f"{name}project_conv"), f"{name}project_bn")


def squeezed(x: Tensor, narrow: int, name: str) -> Tensor:
    """Return features weighed by what the whole image has of them (Hu, Shen and Sun, 2018).

    Args:
        x: the features.
        narrow: how many numbers the weights are made of.
        name: what the layers' names begin with.
    """
    inside = channels_of(x)
    shape = (1, 1, inside) if image_data_format() == "channels_last" else (inside, 1, 1)
    weights = Reshape(shape, name=f"{name}se_reshape")(GlobalAveragePooling2D(name=f"{name}se_squeeze")(x))
    weights = convolution(weights, narrow, 1, f"{name}se_reduce", activation="swish", use_bias=True)
    weights = convolution(weights, inside, 1, f"{name}se_expand", activation="sigmoid", use_bias=True)
    return Multiply(name=f"{name}se_excite")([x, weights])


def topped(x: Tensor, options: Options, dropout: float = _DROPOUT) -> Tensor:
    """Return the classes' scores, or pooled features."""
    if not options.include_top:
        return options.pooled(x)
    x = Dropout(dropout, name="top_dropout")(GlobalAveragePooling2D(name="avg_pool")(x))
    return options.classified(x, kernel_initializer=VarianceScaling(1 / 3, "fan_out", "uniform"))


__all__ = [
    "EfficientNetV2B0",
    "EfficientNetV2B1",
    "EfficientNetV2B2",
    "EfficientNetV2B3",
    "EfficientNetV2L",
    "EfficientNetV2M",
    "EfficientNetV2S",
    "decode_predictions",
    "preprocess_input",
]
