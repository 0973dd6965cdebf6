"""ResNet, version 2: residual networks that are normalised before each convolution.

He, Zhang, Ren and Sun, "Identity Mappings in Deep Residual Networks", ECCV 2016. The blocks are in `resnet`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine.objects.identifiers import ActivationLike
from ...engine.ops.base import TensorLike
from ..models.model import Functional
from . import imagenet_utils
from .building import Options
from .imagenet_utils import decode_predictions
from .resnet import resnet_v2

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ..structures import Array


def ResNet50V2(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "resnet50v2",
) -> Functional:
    """Build a network of 50 layers: 25.6 million parameters; the arguments are those of `resnet.ResNet50`.

    >>> import anabranch as ab
    >>> model = ab.applications.ResNet50V2(weights=None, include_top=False, pooling="avg")
    >>> model.output_shape, f"{model.count_params():,}"
    ((None, 2048), '23,564,800')
    """
    return resnet_v2(
        "resnet50v2",
        Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name),
    )


def ResNet101V2(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "resnet101v2",
) -> Functional:
    """Build a network of 101 layers: 44.7 million parameters; the arguments are those of `resnet.ResNet50`."""
    return resnet_v2(
        "resnet101v2",
        Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name),
    )


def ResNet152V2(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "resnet152v2",
) -> Functional:
    """Build a network of 152 layers: 60.4 million parameters; the arguments are those of `resnet.ResNet50`."""
    return resnet_v2(
        "resnet152v2",
        Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name),
    )


def preprocess_input(x: TensorLike, data_format: str | None = None) -> Tensor | Array:
    """Return images as these models expect them: numbers from -1 to 1.

    Args:
        x, data_format: as for `imagenet_utils.preprocess_input`.
    """
    return imagenet_utils.preprocess_input(x, data_format, "tf")


__all__ = ["ResNet50V2", "ResNet101V2", "ResNet152V2", "decode_predictions", "preprocess_input"]
