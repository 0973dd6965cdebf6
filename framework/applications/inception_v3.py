"""InceptionV3: convolutions of several sizes beside each other, large ones as products of narrow ones.

Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, "Rethinking the Inception Architecture for Computer Vision", CVPR 2016.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from ...engine.graph import Tensor
from ...engine.objects.identifiers import ActivationLike
from ...engine.ops.base import TensorLike
from ...layers.convolution.convolution import Conv2D
from ...layers.convolution.pooling import AveragePooling2D, MaxPooling2D
from ...layers.core.activation import Activation
from ...layers.normalization.batch_and_layer import BatchNormalization
from ..models.model import Functional
from .building import (
    KERAS_FILE,
    Options,
    concatenated,
    features_axis,
)
from .imagenet_utils import decode_predictions
from .resnet_v2 import preprocess_input

_HASHES = (
    "9a0d58056eeedaa3f26cb7ebd46da564",
    "bcbd6486424b2319ff4ef7d526e38f63",
)  # of the files with and without a top


class Conv(NamedTuple):
    """A convolution without a bias, its normalisation and a ReLU: features, size, stride, margins."""

    filters: int
    height: int = 1
    width: int = 1
    stride: int = 1
    padding: str = "same"


class Pool(NamedTuple):
    """A pooling of 3x3: of maxima at half the size, or of means."""

    is_max: bool


class Fork(NamedTuple):
    """Convolutions of the same features beside each other; the features of all."""

    name: str | None
    convolutions: tuple[Conv, ...]


Branch = Sequence[Conv | Pool | Fork]
MAX, MEAN = Pool(True), Pool(False)


def halving(*convolutions: Conv) -> tuple[Conv, ...]:
    """Return convolutions one after the other, the last of which halves the size."""
    return *convolutions[:-1], convolutions[-1]._replace(stride=2, padding="valid")


STEM: Branch = [
    Conv(32, 3, 3, 2, "valid"),
    Conv(32, 3, 3, 1, "valid"),
    Conv(64, 3, 3),
    MAX,
    Conv(80, padding="valid"),
    Conv(192, 3, 3, 1, "valid"),
    MAX,
]


def _square(means: int) -> list[Branch]:
    """Return the branches at 35x35."""
    return [
        [Conv(64)],
        [Conv(48), Conv(64, 5, 5)],
        [Conv(64), Conv(96, 3, 3), Conv(96, 3, 3)],
        [MEAN, Conv(means)],
    ]


def _long(inside: int) -> list[Branch]:
    """Return the branches at 17x17, whose convolutions of 7x7 are those of 1x7 and 7x1."""
    return [
        [Conv(192)],
        [Conv(inside), Conv(inside, 1, 7), Conv(192, 7, 1)],
        [Conv(inside), Conv(inside, 7, 1), Conv(inside, 1, 7), Conv(inside, 7, 1), Conv(192, 1, 7)],
        [MEAN, Conv(192)],
    ]


def _wide(name: str) -> list[Branch]:
    """Return the branches at 8x8, which end side by side."""
    sides = (Conv(384, 1, 3), Conv(384, 3, 1))
    return [
        [Conv(320)],
        [Conv(384), Fork(name, sides)],
        [Conv(448), Conv(384, 3, 3), Fork(None, sides)],
        [MEAN, Conv(192)],
    ]


_BLOCKS: list[list[Branch]] = [
    *[_square(means) for means in (32, 64, 64)],
    [halving(Conv(384, 3, 3)), halving(Conv(64), Conv(96, 3, 3), Conv(96, 3, 3)), [MAX]],
    *[_long(inside) for inside in (128, 160, 160, 192)],
    [
        halving(Conv(192), Conv(320, 3, 3)),
        halving(Conv(192), Conv(192, 1, 7), Conv(192, 7, 1), Conv(192, 3, 3)),
        [MAX],
    ],
    *[_wide(f"mixed9_{number}") for number in range(2)],
]


def InceptionV3(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "inception_v3",
) -> Functional:
    """Build InceptionV3: 23.9 million parameters, images of 299x299, at least 75x75.

    Args:
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name: as for
            `resnet.ResNet50`.

    >>> import anabranch as ab
    >>> model = ab.applications.InceptionV3(weights=None, include_top=False, pooling="avg")
    >>> model.output_shape, f"{model.count_params():,}"
    ((None, 2048), '21,802,784')
    """
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    images = options.images(options.shape(299, 75))
    x = followed(images, STEM)
    for number, branches in enumerate(_BLOCKS):
        x = mixed(x, branches, f"mixed{number}")
    return topped("inception_v3", _HASHES, options, images, x)


def topped(kind: str, hashes: tuple[str, str], options: Options, images: TensorLike, x: Tensor) -> Functional:
    """Build the model that ends with its top, or with features that are pooled by layers without names of their own."""
    ending, file_hash = ("", hashes[0]) if options.include_top else ("_notop", hashes[1])
    x = options.topped(x) if options.include_top else options.pooled(x, (None, None))
    return options.model(images, x, kind, KERAS_FILE.format(kind, ending), file_hash)


def mixed(x: Tensor, branches: Sequence[Branch], name: str) -> Tensor:
    """Return the features of all branches."""
    return concatenated([followed(x, branch) for branch in branches], name)


def followed(x: Tensor, branch: Branch) -> Tensor:
    """Return the features behind the steps of a branch."""
    for step in branch:
        if isinstance(step, Conv):
            x = normal_convolution(x, step)
        elif isinstance(step, Fork):
            x = concatenated([normal_convolution(x, convolution) for convolution in step.convolutions], step.name)
        else:
            x = MaxPooling2D(3, strides=2)(x) if step.is_max else AveragePooling2D(3, strides=1, padding="same")(x)
    return x


def normal_convolution(x: Tensor, step: Conv, name: str | None = None) -> Tensor:
    """Return the features behind a convolution, its normalisation and a ReLU, whose names begin alike."""
    size = (step.height, step.width)
    x = Conv2D(step.filters, size, step.stride, step.padding, use_bias=False, name=name)(x)
    axis = features_axis()
    x = BatchNormalization(axis, scale=False, name=None if name is None else f"{name}_bn")(x)
    return Activation("relu", name=None if name is None else f"{name}_ac")(x)


__all__ = ["InceptionV3", "decode_predictions", "preprocess_input"]
