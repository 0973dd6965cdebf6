"""ResNet: residual networks of 50, 101 and 152 layers, in Keras's two versions.

He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016 (version 1); the same, "Identity
Mappings in Deep Residual Networks", ECCV 2016 (version 2: normalised before each convolution).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine.graph import Tensor
from ...engine.objects.identifiers import ActivationLike
from ...engine.ops.base import TensorLike
from ...layers.convolution.padding import ZeroPadding2D
from ...layers.convolution.pooling import MaxPooling2D
from ...layers.core.merging import Add
from ..models.model import Functional
from . import imagenet_utils
from .building import KERAS_FILE, Options, activated, convolved, normalized
from .imagenet_utils import decode_predictions

if TYPE_CHECKING:
    from ..structures import Array

# Blocks of the four stages, and the hashes of the files with and without a top.
_MODELS: dict[str, tuple[tuple[int, int, int, int], str, str]] = {
    "resnet50": ((3, 4, 6, 3), "2cb95161c43110f7111970584f804107", "4d473c1dd8becc155b73f8504c6f6626"),
    "resnet101": ((3, 4, 23, 3), "f1aeb4b969a6efcfb50fad2f0c20cfc5", "88cf7a10940856eca736dc7b7e228a21"),
    "resnet152": ((3, 8, 36, 3), "100835be76be38e30d865e96f2aaae62", "ee4c566cf9a93f14d82f913c2dc6dd0c"),
    "resnet50v2": ((3, 4, 6, 3), "3ef43a0b657b3be2300d5770ece849e0", "fac2f116257151a9d068a22e544a4917"),
    "resnet101v2": ((3, 4, 23, 3), "6343647c601c52e1368623803854d971", "c0ed64b8031c3730f411d2eb4eea35b5"),
    "resnet152v2": ((3, 8, 36, 3), "a49b44d1979771252814e80f8ec446f9", "ed17cf2e0169df9d443503ef94b23b33"),
}


def ResNet50(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "resnet50",
) -> Functional:
    """Build a residual network of 50 layers: 25.6 million parameters, images of 224x224.

    Args:
        include_top: whether the model ends with a layer that classifies.
        weights: "imagenet" for Keras's, which are fetched once into the cache (`utils.get_file`); the path of a file
            with weights; None for random weights.
        input_tensor: a symbolic tensor to start with instead of a new `Input`.
        input_shape: (height, width, channels) of the images, or (channels, height, width) where that is the default
            order (`config.set_image_data_format`). Without a top sizes may be None.
        pooling: what a model without a top ends with: None for the features of each place ``[batch, height, width,
            features]``, "avg" or "max" for their mean or maximum ``[batch, features]``.
        classes: how many classes the top has.
        classifier_activation: the activation of the top; None for logits.
        name: the name of the model.

    Returns:
        A functional model of float images ``[batch, height, width, channels]``, as `preprocess_input` prepares them. It
        is built in the default order of axes.

    Raises:
        ValueError: arguments do not go together, or there is no such file. OSError: the weights can't be fetched.

    >>> import anabranch as ab
    >>> model = ab.applications.ResNet50(weights=None, include_top=False, pooling="avg")
    >>> model.output_shape, f"{model.count_params():,}"
    ((None, 2048), '23,587,712')
    """
    return _resnet(
        "resnet50",
        Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name),
    )


def ResNet101(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "resnet101",
) -> Functional:
    """Build a residual network of 101 layers: 44.7 million parameters; the arguments are those of `ResNet50`."""
    return _resnet(
        "resnet101",
        Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name),
    )


def ResNet152(
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "resnet152",
) -> Functional:
    """Build a residual network of 152 layers: 60.4 million parameters; the arguments are those of `ResNet50`."""
    return _resnet(
        "resnet152",
        Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name),
    )


def preprocess_input(x: TensorLike, data_format: str | None = None) -> Tensor | Array:
    """Return images as these models expect them: blue, green, red, less the means of ImageNet.

    Args:
        x, data_format: as for `imagenet_utils.preprocess_input`.
    """
    return imagenet_utils.preprocess_input(x, data_format, "caffe")


def _resnet(kind: str, options: Options) -> Functional:
    depths, *hashes = _MODELS[kind]
    images = options.images(options.shape(224))
    x = _stages_v1(_stem(images, True), depths)
    return _with_weights(kind, hashes, options, images, x)


def resnet_v2(kind: str, options: Options) -> Functional:
    """Build a model of version 2."""
    depths, *hashes = _MODELS[kind]
    images = options.images(options.shape(224))
    x = _stages_v2(_stem(images, False), depths)
    x = activated(normalized(x, "post_bn"), "post_relu")
    return _with_weights(kind, hashes, options, images, x)


def _with_weights(kind: str, hashes: Sequence[str], options: Options, images: TensorLike, x: Tensor) -> Functional:
    ending, file_hash = ("", hashes[0]) if options.include_top else ("_notop", hashes[1])
    return options.model(images, options.topped(x), "resnet", KERAS_FILE.format(kind, ending), file_hash)


def _stem(images: TensorLike, is_normalized: bool) -> Tensor:
    """Return the first convolution and pooling, to a quarter of the size."""
    x = convolved(ZeroPadding2D(3, name="conv1_pad")(images), 64, 7, "conv1_conv", strides=2)
    if is_normalized:
        x = activated(normalized(x, "conv1_bn"), "conv1_relu")
    x = ZeroPadding2D(1, name="pool1_pad")(x)
    return MaxPooling2D(3, strides=2, name="pool1_pool")(x)


def _stages_v1(x: Tensor, depths: Sequence[int]) -> Tensor:
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            x = _block_v1(x, 64 << stage, stride, block == 0, f"conv{stage + 2}_block{block + 1}")
    return x


def _block_v1(x: Tensor, filters: int, stride: int, is_first: bool, name: str) -> Tensor:
    """Return a bottleneck: convolutions of size 1, 3 and 1, and their input added."""
    shortcut = x
    if is_first:
        shortcut = normalized(convolved(x, 4 * filters, 1, f"{name}_0_conv", strides=stride), f"{name}_0_bn")
    x = normalized(convolved(x, filters, 1, f"{name}_1_conv", strides=stride), f"{name}_1_bn")
    x = activated(x, f"{name}_1_relu")
    x = normalized(convolved(x, filters, 3, f"{name}_2_conv", padding="same"), f"{name}_2_bn")
    x = activated(x, f"{name}_2_relu")
    x = normalized(convolved(x, 4 * filters, 1, f"{name}_3_conv"), f"{name}_3_bn")
    return activated(Add(name=f"{name}_add")([shortcut, x]), f"{name}_out")


def _stages_v2(x: Tensor, depths: Sequence[int]) -> Tensor:
    for stage, depth in enumerate(depths):
        for block in range(depth):
            # Other than in version 1 the last block of a stage halves the size, and the last stage does not.
            stride = 2 if stage < len(depths) - 1 and block == depth - 1 else 1
            x = _block_v2(x, 64 << stage, stride, block == 0, f"conv{stage + 2}_block{block + 1}")
    return x


def _block_v2(x: Tensor, filters: int, stride: int, is_first: bool, name: str) -> Tensor:
    """Return a bottleneck whose input is normalised, and added as it came."""
    active = activated(normalized(x, f"{name}_preact_bn"), f"{name}_preact_relu")
    if is_first:
        shortcut = convolved(active, 4 * filters, 1, f"{name}_0_conv", strides=stride)
    else:
        shortcut = MaxPooling2D(1, strides=stride)(x) if stride > 1 else x
    x = convolved(active, filters, 1, f"{name}_1_conv", use_bias=False)
    x = activated(normalized(x, f"{name}_1_bn"), f"{name}_1_relu")
    x = ZeroPadding2D(1, name=f"{name}_2_pad")(x)
    x = convolved(x, filters, 3, f"{name}_2_conv", strides=stride, use_bias=False)
    x = activated(normalized(x, f"{name}_2_bn"), f"{name}_2_relu")
    x = convolved(x, 4 * filters, 1, f"{name}_3_conv")
    return Add(name=f"{name}_out")([shortcut, x])


__all__ = ["ResNet50", "ResNet101", "ResNet152", "decode_predictions", "preprocess_input"]
