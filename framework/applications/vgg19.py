"""VGG of 19 layers.

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015. The blocks are
in `vgg16`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...engine.objects.identifiers import ActivationLike
from ...engine.ops.base import TensorLike
from ..models.model import Functional
from .building import Options
from .imagenet_utils import decode_predictions
from .vgg16 import preprocess_input, vgg


def VGG19(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "vgg19",
) -> Functional:
    """Build VGG of 19 layers: 143.7 million parameters; the arguments are those of `resnet.ResNet50`.

    >>> import anabranch as ab
    >>> model = ab.applications.VGG19(weights=None, include_top=False, pooling="avg")
    >>> model.output_shape, f"{model.count_params():,}"
    ((None, 512), '20,024,384')
    """
    return vgg(
        "vgg19",
        Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name),
    )


__all__ = ["VGG19", "decode_predictions", "preprocess_input"]
