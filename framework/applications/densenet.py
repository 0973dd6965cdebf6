"""DenseNet: networks whose convolutions each take the features of all convolutions before them in the block.

Huang, Liu, van der Maaten and Weinberger, "Densely Connected Convolutional Networks", CVPR 2017.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine.graph import Tensor
from ...engine.objects.identifiers import ActivationLike
from ...engine.ops.base import TensorLike
from ...layers.convolution.padding import ZeroPadding2D
from ...layers.convolution.pooling import AveragePooling2D, MaxPooling2D
from ..models.model import Functional
from . import imagenet_utils
from .building import (
    KERAS_FILE,
    Options,
    activated,
    channels_of,
    concatenated,
    convolved,
    normalized,
)
from .imagenet_utils import decode_predictions

if TYPE_CHECKING:
    from ..structures import Array

_GROWTH = 32  # features that each convolution adds
# Convolutions of the four blocks, and the hashes of the files with and without a top.
_MODELS: dict[str, tuple[tuple[int, int, int, int], str, str]] = {
    "densenet121": ((6, 12, 24, 16), "9d60b8095a5708f2dcce2bca79d332c7", "30ee3e1110167f948a6b9946edeeb738"),
    "densenet169": ((6, 12, 32, 32), "d699b8f76981ab1b30698df4c175e90b", "b8c4d4c20dd625c148057b9ff1c1176b"),
    "densenet201": ((6, 12, 48, 32), "1ceb130c1ea1b78c3bf6114dbdfd8807", "c13680b51ded0fb44dff2d8f86ac8bb1"),
}


def DenseNet121(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "densenet121",
) -> Functional:
    """Build DenseNet of 121 layers: 8.1 million parameters.

    Args:
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name: as for
            `resnet.ResNet50`.

    >>> import anabranch as ab
    >>> model = ab.applications.DenseNet121(weights=None, include_top=False, pooling="avg")
    >>> model.output_shape, f"{model.count_params():,}"
    ((None, 1024), '7,037,504')
    """
    return _densenet(
        "densenet121",
        Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name),
    )


def DenseNet169(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "densenet169",
) -> Functional:
    """Build DenseNet of 169 layers: 14.3 million parameters; the arguments are those of `resnet.ResNet50`."""
    return _densenet(
        "densenet169",
        Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name),
    )


def DenseNet201(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "densenet201",
) -> Functional:
    """Build DenseNet of 201 layers: 20.2 million parameters; the arguments are those of `resnet.ResNet50`."""
    return _densenet(
        "densenet201",
        Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name),
    )


def preprocess_input(x: TensorLike, data_format: str | None = None) -> Tensor | Array:
    """Return images as these models expect them: 0 to 1, less the means of ImageNet, over its standard deviations.

    Args:
        x, data_format: as for `imagenet_utils.preprocess_input`.
    """
    return imagenet_utils.preprocess_input(x, data_format, "torch")


def _densenet(kind: str, options: Options) -> Functional:
    depths, *hashes = _MODELS[kind]
    images = options.images(options.shape(224))
    x = convolved(ZeroPadding2D(3)(images), 64, 7, "conv1_conv", strides=2, use_bias=False)
    x = activated(normalized(x, "conv1_bn"), "conv1_relu")
    x = MaxPooling2D(3, strides=2, name="pool1")(ZeroPadding2D(1)(x))
    for number, depth in enumerate(depths, 2):
        for step in range(1, depth + 1):
            x = _step(x, f"conv{number}_block{step}")
        if number < len(depths) + 1:
            x = _transition(x, f"pool{number}")
    x = activated(normalized(x, "bn"), "relu")
    ending, file_hash = ("", hashes[0]) if options.include_top else ("_notop", hashes[1])
    return options.model(images, options.topped(x), "densenet", KERAS_FILE.format(kind, ending), file_hash)


def _step(x: Tensor, name: str) -> Tensor:
    """Return the features, and `_GROWTH` new ones."""
    new = activated(normalized(x, f"{name}_0_bn"), f"{name}_0_relu")
    new = convolved(new, 4 * _GROWTH, 1, f"{name}_1_conv", use_bias=False)
    new = activated(normalized(new, f"{name}_1_bn"), f"{name}_1_relu")
    new = convolved(new, _GROWTH, 3, f"{name}_2_conv", padding="same", use_bias=False)
    return concatenated([x, new], f"{name}_concat")


def _transition(x: Tensor, name: str) -> Tensor:
    """Return half of the features, at half the size."""
    x = activated(normalized(x, f"{name}_bn"), f"{name}_relu")
    x = convolved(x, channels_of(x) // 2, 1, f"{name}_conv", use_bias=False)
    return AveragePooling2D(2, strides=2, name=f"{name}_pool")(x)


__all__ = ["DenseNet121", "DenseNet169", "DenseNet201", "decode_predictions", "preprocess_input"]
