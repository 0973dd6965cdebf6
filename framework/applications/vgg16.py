"""VGG of 16 layers: convolutions of size 3 alone.

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...engine.graph import Tensor
from ...engine.objects.identifiers import ActivationLike
from ...engine.ops.base import TensorLike
from ...layers.convolution.pooling import MaxPooling2D
from ...layers.core.dense import Dense
from ...layers.core.shaping import Flatten
from ..models.model import Functional
from .building import KERAS_FILE, Options, convolved
from .imagenet_utils import decode_predictions
from .resnet import preprocess_input

# Convolutions of the five blocks, and the hashes of the files with and without a top.
_MODELS: dict[str, tuple[tuple[int, ...], str, str]] = {
    "vgg16": ((2, 2, 3, 3, 3), "64373286793e3c8b2b4e3219cbf3544b", "6d6bbae143d832006294945121d1f1fc"),
    "vgg19": ((2, 2, 4, 4, 4), "cbe5617147190e668d6c5d5026f83318", "253f8cb515780f3b799900260a226db6"),
}


def VGG16(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "vgg16",
) -> Functional:
    """Build VGG of 16 layers: 138.4 million parameters, most of them in the top.

    Args:
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name: as for
            `resnet.ResNet50`.

    >>> import anabranch as ab
    >>> model = ab.applications.VGG16(weights=None, include_top=False)
    >>> model.output_shape, f"{model.count_params():,}"
    ((None, None, None, 512), '14,714,688')
    """
    return vgg(
        "vgg16",
        Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name),
    )


def vgg(kind: str, options: Options) -> Functional:
    """Build a model of either depth."""
    depths, *hashes = _MODELS[kind]
    x = images = options.images(options.shape(224))
    for block, depth in enumerate(depths, 1):
        filters = min(32 << block, 512)
        for number in range(1, depth + 1):
            x = convolved(x, filters, 3, f"block{block}_conv{number}", padding="same", activation="relu")
        x = MaxPooling2D(2, strides=2, name=f"block{block}_pool")(x)
    ending, file_hash = ("", hashes[0]) if options.include_top else ("_notop", hashes[1])
    return options.model(images, _topped(x, options), kind, KERAS_FILE.format(kind, ending), file_hash)


def _topped(x: Tensor, options: Options) -> Tensor:
    if not options.include_top:
        return options.pooled(x, (None, None))
    x = Flatten(name="flatten")(x)
    for name in ("fc1", "fc2"):
        x = Dense(4096, activation="relu", name=name)(x)
    return options.classified(x)


__all__ = ["VGG16", "decode_predictions", "preprocess_input"]
