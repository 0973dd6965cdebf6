"""Xception: separable convolutions with residual connections.

Chollet, "Xception: Deep Learning with Depthwise Separable Convolutions", CVPR 2017.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...engine.graph import Tensor
from ...engine.objects.identifiers import ActivationLike
from ...engine.ops.base import TensorLike
from ...layers.convolution.depthwise import SeparableConv2D
from ...layers.convolution.pooling import MaxPooling2D
from ...layers.core.merging import Add
from ..models.model import Functional
from .building import KERAS_FILE, Options, activated, convolved, normalized
from .imagenet_utils import decode_predictions
from .resnet_v2 import preprocess_input

_HASHES = (
    "0a58e3b7378bc2990ea3b43d5981f1f6",
    "b0042744bf5b25fce3cb969f33bebb97",
)  # of the files with and without a top
# Features of the convolutions of blocks 2 to 13.
_BLOCKS = [(128, 128), (256, 256), (728, 728), *[(728, 728, 728)] * 8, (728, 1024)]
_HALVING = (2, 3, 4, 13)  # blocks that halve the size


def Xception(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "xception",
) -> Functional:
    """Build Xception: 22.9 million parameters, images of 299x299, at least 71x71.

    Args:
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name: as for
            `resnet.ResNet50`.

    >>> import anabranch as ab
    >>> model = ab.applications.Xception(weights=None, include_top=False, pooling="avg")
    >>> model.output_shape, f"{model.count_params():,}"
    ((None, 2048), '20,861,480')
    """
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    images = options.images(options.shape(299, 71))
    x: Tensor = images
    for number, (filters, stride) in enumerate([(32, 2), (64, 1)], 1):
        convolution = f"block1_conv{number}"
        x = convolved(x, filters, 3, convolution, strides=stride, use_bias=False)
        x = activated(_normalized(x, convolution), f"{convolution}_act")
    for number, widths in enumerate(_BLOCKS, 2):
        x = _block(x, widths, number)
    for number, filters in enumerate((1536, 2048), 1):
        convolution = f"block14_sepconv{number}"
        x = activated(_separable(x, filters, convolution), f"{convolution}_act")
    ending, file_hash = ("", _HASHES[0]) if include_top else ("_notop", _HASHES[1])
    x = options.topped(x) if include_top else options.pooled(x, (None, None))
    return options.model(images, x, "xception", KERAS_FILE.format("xception", ending), file_hash)


def _normalized(x: Tensor, name: str | None) -> Tensor:
    return normalized(x, None if name is None else f"{name}_bn", 1e-3)


def _separable(x: Tensor, filters: int, name: str) -> Tensor:
    return _normalized(SeparableConv2D(filters, 3, padding="same", use_bias=False, name=name)(x), name)


def _block(inputs: Tensor, widths: Sequence[int], number: int) -> Tensor:
    """Apply activations and separable convolutions, and add the input; some blocks halve the size."""
    x, shortcut = inputs, inputs
    if number in _HALVING:
        shortcut = convolved(inputs, widths[-1], 1, None, strides=2, padding="same", use_bias=False)
        shortcut = _normalized(shortcut, None)
    for step, filters in enumerate(widths, 1):
        name = f"block{number}_sepconv{step}"
        if (number, step) != (2, 1):  # block 1 ends with an activation
            x = activated(x, f"{name}_act")
        x = _separable(x, filters, name)
    if number in _HALVING:
        x = MaxPooling2D(3, strides=2, padding="same", name=f"block{number}_pool")(x)
    return Add()([x, shortcut])


__all__ = ["Xception", "decode_predictions", "preprocess_input"]
