"""InceptionResNetV2: blocks of convolutions beside each other, scaled and added to their input.

Szegedy, Ioffe, Vanhoucke and Alemi, "Inception-v4, Inception-ResNet and the Impact of Residual Connections on
Learning", AAAI 2017.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...engine.objects.identifiers import ActivationLike
from ...engine.ops.base import TensorLike
from ..models.layer_scale import CustomScaleLayer
from ..models.model import Functional
from .building import (
    Options,
    activated,
    channels_of,
    concatenated,
    convolved,
)
from .imagenet_utils import decode_predictions
from .inception_v3 import MAX, MEAN, STEM, Branch, Conv, followed, halving, mixed, normal_convolution, topped
from .resnet_v2 import preprocess_input

if TYPE_CHECKING:
    from ...engine.graph import Tensor

_HASHES = (
    "e693bd0210a403b3192acc6073ad2e96",
    "d19885ff4a710c122648d3b5c3b684e4",
)  # of the files with and without a top


class _Stage(NamedTuple):
    """A stage: branches that lead into it and their name; its blocks' name, number, scale and branches."""

    entry_name: str
    entry: list[Branch]
    name: str
    count: int
    scale: float
    branches: list[Branch]


_STAGES = [
    _Stage(
        "mixed_5b",
        [
            [Conv(96)],
            [Conv(48), Conv(64, 5, 5)],
            [Conv(64), Conv(96, 3, 3), Conv(96, 3, 3)],
            [MEAN, Conv(64)],
        ],
        "block35",
        10,
        0.17,
        [[Conv(32)], [Conv(32), Conv(32, 3, 3)], [Conv(32), Conv(48, 3, 3), Conv(64, 3, 3)]],
    ),
    _Stage(
        "mixed_6a",
        [halving(Conv(384, 3, 3)), halving(Conv(256), Conv(256, 3, 3), Conv(384, 3, 3)), [MAX]],
        "block17",
        20,
        0.1,
        [[Conv(192)], [Conv(128), Conv(160, 1, 7), Conv(192, 7, 1)]],
    ),
    _Stage(
        "mixed_7a",
        [
            halving(Conv(256), Conv(384, 3, 3)),
            halving(Conv(256), Conv(288, 3, 3)),
            halving(Conv(256), Conv(288, 3, 3), Conv(320, 3, 3)),
            [MAX],
        ],
        "block8",
        10,
        0.2,
        [[Conv(192)], [Conv(192), Conv(224, 1, 3), Conv(256, 3, 1)]],
    ),
]


def InceptionResNetV2(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "inception_resnet_v2",
) -> Functional:
    """Build InceptionResNetV2: 55.9 million parameters, images of 299x299, at least 75x75.

    Args:
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name: as for
            `resnet.ResNet50`.

    >>> import anabranch as ab
    >>> model = ab.applications.InceptionResNetV2(weights=None, include_top=False, pooling="avg")
    >>> model.output_shape, f"{model.count_params():,}"
    ((None, 1536), '54,336,736')
    """
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    images = options.images(options.shape(299, 75))
    x = followed(images, STEM)
    for stage in _STAGES:
        x = mixed(x, stage.entry, stage.entry_name)
        for number in range(1, stage.count + 1):
            is_last = stage is _STAGES[-1] and number == stage.count  # which is neither scaled nor cut off at zero
            block = f"{stage.name}_{number}"
            x = _residual(x, stage.branches, 1.0 if is_last else stage.scale, block)
            x = x if is_last else activated(x, f"{block}_ac")
    x = normal_convolution(x, Conv(1536), "conv_7b")
    return topped("inception_resnet_v2", _HASHES, options, images, x)


def _residual(x: Tensor, branches: Sequence[Branch], scale: float, name: str) -> Tensor:
    """Return the features, and what the branches make of them added, scaled."""
    sides = concatenated([followed(x, branch) for branch in branches], f"{name}_mixed")
    sides = convolved(sides, channels_of(x), 1, f"{name}_conv", padding="same")
    return CustomScaleLayer(scale)([x, sides])


__all__ = ["InceptionResNetV2", "decode_predictions", "preprocess_input"]
