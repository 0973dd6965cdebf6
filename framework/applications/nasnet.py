"""NASNet: networks of two cells, found by a search on small images.

Zoph, Vasudevan, Shlens and Le, "Learning Transferable Architectures for Scalable Image Recognition", CVPR 2018.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from ...engine.graph import Tensor
from ...engine.objects.identifiers import ActivationLike
from ...engine.ops.base import TensorLike
from ...engine.ops.data_format import image_data_format
from ...layers.convolution.depthwise import SeparableConv2D
from ...layers.convolution.padding import Cropping2D, ZeroPadding2D
from ...layers.convolution.pooling import AveragePooling2D, GlobalAveragePooling2D, MaxPooling2D
from ...layers.core.activation import Activation
from ...layers.core.merging import Add
from ..models.model import Functional
from .building import (
    STORE,
    Options,
    channels_of,
    concatenated,
    convolved,
    halving_margins,
    normalized,
    sizes_of,
)
from .imagenet_utils import decode_predictions
from .resnet_v2 import preprocess_input


class _Network(NamedTuple):
    """A model: image size, features of the first convolution, cells of a stage, features of the first of them.

    `looks_further_back`: the first cell behind one that halves the size also takes what the cell before that one took.
    """

    size: int
    first: int
    count: int
    filters: int
    looks_further_back: bool
    hashes: tuple[str, str]  # of the files with and without a top


_MODELS = {
    "mobile": _Network(224, 32, 4, 44, False, ("020fb642bf7360b370c678b08e0adf61", "1ed92395b5b598bdda52abe5c0dbfd63")),
    "large": _Network(331, 96, 6, 168, True, ("11577c9a518f0070763c2b964a382f17", "d81d89dc07e6e56530c4e77faddd61b5")),
}


def NASNetMobile(
    input_shape: Sequence[int | None] | None = None,
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "nasnet_mobile",
) -> Functional:
    """Build the small NASNet: 5.3 million parameters, images of 224x224.

    Args:
        input_shape: (height, width, channels) of the images, which must be known: the margins go by them. By default
            those for which the weights were trained, also without a top.
        include_top, weights, input_tensor, pooling, classes, classifier_activation, name: as for `resnet.ResNet50`.

    >>> import anabranch as ab
    >>> model = ab.applications.NASNetMobile(weights=None, include_top=False, pooling="avg")
    >>> model.output_shape, f"{model.count_params():,}"
    ((None, 1056), '4,269,716')
    """
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _nasnet("mobile", options)


def NASNetLarge(
    input_shape: Sequence[int | None] | None = None,
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "nasnet_large",
) -> Functional:
    """Build the large NASNet: 88.9 million parameters, images of 331x331; the arguments are those of `NASNetMobile`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _nasnet("large", options)


def _nasnet(kind: str, options: Options) -> Functional:
    network = _MODELS[kind]
    images = options.images(_shape(network.size, options))
    x = convolved(images, network.first, 3, "stem_conv1", strides=2, use_bias=False)
    x = _normalized(x, "stem_bn1")
    before, x = x, _reduction_cell(x, x, network.filters // 4, "stem_1")
    before, x = x, _reduction_cell(x, before, network.filters // 2, "stem_2")
    for stage in range(3):
        filters, first = network.filters << stage, stage * network.count
        if stage:
            reduced = _reduction_cell(x, before, filters, f"reduce_{first}")
            before, x = before if network.looks_further_back else x, reduced
        for number in range(network.count):
            before, x = x, _normal_cell(x, before, filters, str(first + number + bool(stage)))
    x = Activation("relu")(x)
    if options.include_top:
        x = options.classified(GlobalAveragePooling2D()(x))
    else:
        x = options.pooled(x, (None, None))
    ending, file_hash = ("", network.hashes[0]) if options.include_top else ("-no-top", network.hashes[1])
    file = f"nasnet_{kind}{ending.replace('-', '_')}.h5"
    return options.model(images, x, "nasnet", file, file_hash, f"{STORE}nasnet/NASNet-{kind}{ending}.h5")


def _shape(default: int, options: Options) -> tuple[int | None, ...]:
    if options.input_shape is None and options.input_tensor is None:
        return (default, default, 3) if image_data_format() == "channels_last" else (3, default, default)
    shape = options.shape(default)
    if None in (sizes := options.given_size()):
        raise ValueError(
            f"The margins in NASNet go by the sizes of images, which must be known, got (height, width)={sizes}. Pass "
            f"input_shape=(height, width, channels), such as ({default}, {default}, 3)."
        )
    return shape


def _normalized(x: Tensor, name: str) -> Tensor:
    return normalized(x, name, 1e-3, 0.9997)


def _squeezed(x: Tensor, filters: int, convolution: str, normalization: str) -> Tensor:
    """Make `filters` features from those of each place."""
    x = convolved(Activation("relu")(x), filters, 1, convolution, padding="same", use_bias=False)
    return _normalized(x, normalization)


def _fitting(before: Tensor, x: Tensor, filters: int, name: str) -> Tensor:
    """Return the features of the cell before the last one, in the size and number of those of the last one."""
    if before is x:
        return x
    if sizes_of(before.shape or ()) == sizes_of(x.shape or ()):
        if channels_of(before) == filters:
            return before
        return _squeezed(before, filters, f"adjust_conv_projection_{name}", f"adjust_bn_{name}")
    # Every other place, and the places one further down and to the right.
    active = Activation("relu", name=f"adjust_relu_1_{name}")(before)
    moved = Cropping2D(((1, 0), (1, 0)))(ZeroPadding2D(((0, 1), (0, 1)))(active))
    halves: list[Tensor] = []
    for number, places in enumerate((active, moved), 1):
        half = AveragePooling2D(1, strides=2, name=f"adjust_avg_pool_{number}_{name}")(places)
        halves.append(convolved(half, filters // 2, 1, f"adjust_conv_{number}_{name}", padding="same", use_bias=False))
    return _normalized(concatenated(halves), f"adjust_bn_{name}")


def _separable(x: Tensor, filters: int, size: int, name: str, stride: int = 1) -> Tensor:
    """Return two separable convolutions, the first one with the stride."""
    x = Activation("relu")(x)
    if stride == 2:
        x = ZeroPadding2D(halving_margins(x, size), name=f"separable_conv_1_pad_{name}")(x)
    padding = "valid" if stride == 2 else "same"
    x = SeparableConv2D(filters, size, stride, padding, use_bias=False, name=f"separable_conv_1_{name}")(x)
    x = Activation("relu")(_normalized(x, f"separable_conv_1_bn_{name}"))
    x = SeparableConv2D(filters, size, padding="same", use_bias=False, name=f"separable_conv_2_{name}")(x)
    return _normalized(x, f"separable_conv_2_bn_{name}")


def _mean(x: Tensor, name: str) -> Tensor:
    return AveragePooling2D(3, strides=1, padding="same", name=name)(x)


def _normal_cell(x: Tensor, before: Tensor, filters: int, name: str) -> Tensor:
    """Return the cell that keeps the size: figure 4 of the paper, on the left."""
    old = _fitting(before, x, filters, name)
    new = _squeezed(x, filters, f"normal_conv_1_{name}", f"normal_bn_1_{name}")
    pairs = [
        [
            _separable(new, filters, 5, f"normal_left1_{name}"),
            _separable(old, filters, 3, f"normal_right1_{name}"),
        ],
        [
            _separable(old, filters, 5, f"normal_left2_{name}"),
            _separable(old, filters, 3, f"normal_right2_{name}"),
        ],
        [_mean(new, f"normal_left3_{name}"), old],
        [_mean(old, f"normal_left4_{name}"), _mean(old, f"normal_right4_{name}")],
        [_separable(new, filters, 3, f"normal_left5_{name}"), new],
    ]
    sums = [Add(name=f"normal_add_{number}_{name}")(pair) for number, pair in enumerate(pairs, 1)]
    return concatenated([old, *sums], f"normal_concat_{name}")


def _reduction_cell(x: Tensor, before: Tensor, filters: int, name: str) -> Tensor:
    """Return the cell that halves the size: figure 4 of the paper, on the right."""
    old = _fitting(before, x, filters, name)
    new = _squeezed(x, filters, f"reduction_conv_1_{name}", f"reduction_bn_1_{name}")
    padded = ZeroPadding2D(halving_margins(new, 3), name=f"reduction_pad_1_{name}")(new)

    def halved(x: Tensor, size: int, side: str) -> Tensor:
        return _separable(x, filters, size, f"reduction_{side}_{name}", 2)

    first = Add(name=f"reduction_add_1_{name}")([halved(new, 5, "left1"), halved(old, 7, "right1")])
    greatest = MaxPooling2D(3, strides=2, name=f"reduction_left2_{name}")(padded)
    second = Add(name=f"reduction_add_2_{name}")([greatest, halved(old, 7, "right2")])
    means = AveragePooling2D(3, strides=2, name=f"reduction_left3_{name}")(padded)
    third = Add(name=f"reduction_add3_{name}")([means, halved(old, 5, "right3")])
    fourth = Add()([second, _mean(first, f"reduction_left4_{name}")])
    last = _separable(first, filters, 3, f"reduction_left4_{name}")
    greatest = MaxPooling2D(3, strides=2, name=f"reduction_right5_{name}")(padded)
    fifth = Add(name=f"reduction_add4_{name}")([last, greatest])
    return concatenated([second, third, fourth, fifth], f"reduction_concat_{name}")


__all__ = ["NASNetLarge", "NASNetMobile", "decode_predictions", "preprocess_input"]
