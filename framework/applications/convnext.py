"""ConvNeXt: a convolutional network with the proportions of vision transformers.

Liu, Mao, Wu, Feichtenhofer, Darrell and Xie, "A ConvNet for the 2020s", CVPR 2022.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from ...engine.graph import Tensor
from ...engine.objects.identifiers import ActivationLike
from ...engine.ops.base import TensorLike
from ...engine.ops.data_format import image_data_format
from ...layers.convolution.convolution import Conv2D
from ...layers.convolution.pooling import GlobalAveragePooling2D
from ...layers.core.activation import Activation
from ...layers.core.dense import Dense
from ...layers.normalization.batch_and_layer import LayerNormalization
from ...layers.preprocessing.numbers import Normalization
from ..models.layer_scale import LayerScale
from ..models.model import Functional
from ..models.sequential import Sequential
from .building import Options, convolved
from .imagenet_utils import TORCH_DEVIATION, TORCH_MEAN, decode_predictions
from .mobilenet_v3 import preprocess_input

_EPSILON = 1e-6
_FIRST_SCALE = 1e-6  # of what each block adds, before training


class _Network(NamedTuple):
    """A model: blocks and features of the four stages, the hashes of the files with and without a top."""

    depths: tuple[int, int, int, int]
    filters: tuple[int, int, int, int]
    hashes: tuple[str, str]


_MODELS = {
    "tiny": _Network(
        (3, 3, 9, 3),
        (96, 192, 384, 768),
        (
            "8ae6e78ce2933352b1ef4008e6dd2f17bc40771563877d156bc6426c7cf503ff",
            "d547c096cabd03329d7be5562c5e14798aa39ed24b474157cef5e85ab9e49ef1",
        ),
    ),
    "small": _Network(
        (3, 3, 27, 3),
        (96, 192, 384, 768),
        (
            "ce1277d8f1ee5a0ef0e171469089c18f5233860ceaf9b168049cb9263fd7483c",
            "6fc8009faa2f00c1c1dfce59feea9b0745eb260a7dd11bee65c8e20843da6eab",
        ),
    ),
    "base": _Network(
        (3, 3, 27, 3),
        (128, 256, 512, 1024),
        (
            "52cbb006d3dadd03f6e095a8ca1aca47aecdd75acb4bc74bce1f5c695d0086e6",
            "40a20c5548a5e9202f69735ecc06c990e6b7c9d2de39f0361e27baeb24cb7c45",
        ),
    ),
    "large": _Network(
        (3, 3, 27, 3),
        (192, 384, 768, 1536),
        (
            "070c5ed9ed289581e477741d3b34beffa920db8cf590899d6d2c67fba2a198a6",
            "96f02b6f0753d4f543261bc9d09bed650f24dd6bc02ddde3066135b63d23a1cd",
        ),
    ),
    "xlarge": _Network(
        (3, 3, 27, 3),
        (256, 512, 1024, 2048),
        (
            "c1f5ccab661354fc3a79a10fa99af82f0fbf10ec65cb894a3ae0815f17a889ee",
            "de3f8a54174130e0cecdc71583354753d557fcf1f4487331558e2a16ba0cfe05",
        ),
    ),
}


def ConvNeXtTiny(
    include_top: bool = True,
    include_preprocessing: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "convnext_tiny",
) -> Functional:
    """Build ConvNeXtTiny: 28.6 million parameters, images of 224x224.

    Args:
        include_preprocessing: whether images come as numbers from 0 to 255, which the model scales itself if they have
            three channels. Otherwise they come as `imagenet_utils.preprocess_input` gives them in the mode "torch".
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name: as for
            `resnet.ResNet50`.

    >>> import anabranch as ab
    >>> model = ab.applications.ConvNeXtTiny(weights=None, include_top=False, pooling="avg")
    >>> model.output_shape, f"{model.count_params():,}"
    ((None, 768), '27,820,128')
    """
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _convnext("tiny", options, include_preprocessing)


def ConvNeXtSmall(
    include_top: bool = True,
    include_preprocessing: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "convnext_small",
) -> Functional:
    """Build ConvNeXtSmall: 50.2 million parameters; the arguments are those of `ConvNeXtTiny`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _convnext("small", options, include_preprocessing)


def ConvNeXtBase(
    include_top: bool = True,
    include_preprocessing: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "convnext_base",
) -> Functional:
    """Build ConvNeXtBase: 88.6 million parameters; the arguments are those of `ConvNeXtTiny`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _convnext("base", options, include_preprocessing)


def ConvNeXtLarge(
    include_top: bool = True,
    include_preprocessing: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "convnext_large",
) -> Functional:
    """Build ConvNeXtLarge: 197.8 million parameters; the arguments are those of `ConvNeXtTiny`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _convnext("large", options, include_preprocessing)


def ConvNeXtXLarge(
    include_top: bool = True,
    include_preprocessing: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: TensorLike | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: ActivationLike = "softmax",
    name: str | None = "convnext_xlarge",
) -> Functional:
    """Build ConvNeXtXLarge: 350.2 million parameters; the arguments are those of `ConvNeXtTiny`."""
    options = Options(include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, name)
    return _convnext("xlarge", options, include_preprocessing)


def _convnext(kind: str, options: Options, include_preprocessing: bool) -> Functional:
    if image_data_format() == "channels_first":
        raise ValueError(
            "ConvNeXt is built of layers that work on the last axis, so that channels have to be last, but the default "
            "order of axes is 'channels_first'. Call ab.config.set_image_data_format('channels_last') before, and put "
            "ab.layers.Permute((2, 3, 1)) before the model if images come with channels first."
        )
    network = _MODELS[kind]
    options = options.named(f"convnext_{kind}")
    name, shape = options.name, options.shape(224)
    x = images = options.images(shape)
    if include_preprocessing and shape[-1] == 3:
        mean, variance = [255 * part for part in TORCH_MEAN], [(255 * part) ** 2 for part in TORCH_DEVIATION]
        x = Normalization(mean=mean, variance=variance, name=f"{name}_prestem_normalization")(x)
    for stage, (depth, filters) in enumerate(zip(network.depths, network.filters, strict=True)):
        x = _smaller(x, filters, stage, f"{name}")
        for block in range(depth):
            x = _block(x, filters, f"{name}_stage_{stage}_block_{block}")
    file = f"convnext_{kind}{'' if options.include_top else '_notop'}.h5"
    file_hash = network.hashes[0 if options.include_top else 1]
    return options.model(images, _topped(x, options), "convnext", file, file_hash)


def _smaller(x: Tensor, filters: int, stage: int, name: str) -> Tensor:
    """Return the features at a quarter (first) or half of the size."""
    if stage == 0:
        convolution = Conv2D(filters, 4, strides=4, name=f"{name}_stem_conv")
        return Sequential([convolution, _normalization(f"{name}_stem_layernorm")], name=f"{name}_stem")(x)
    number = stage - 1
    convolution = Conv2D(filters, 2, strides=2, name=f"{name}_downsampling_conv_{number}")
    normalization = _normalization(f"{name}_downsampling_layernorm_{number}")
    return Sequential([normalization, convolution], name=f"{name}_downsampling_block_{number}")(x)


def _normalization(name: str | None = None) -> LayerNormalization:
    return LayerNormalization(epsilon=_EPSILON, name=name)


def _block(inputs: Tensor, filters: int, name: str) -> Tensor:
    """Convolve each feature separately, then mix the features at each place, and add the input."""
    x = convolved(inputs, filters, 7, f"{name}_depthwise_conv", padding="same", groups=filters)
    x = _normalization(f"{name}_layernorm")(x)
    x = Dense(4 * filters, name=f"{name}_pointwise_conv_1")(x)
    x = Activation("gelu", name=f"{name}_gelu")(x)
    x = Dense(filters, name=f"{name}_pointwise_conv_2")(x)
    x = LayerScale(_FIRST_SCALE, filters, name=f"{name}_layer_scale")(x)
    return inputs + Activation("linear", name=f"{name}_identity")(x)


def _topped(x: Tensor, options: Options) -> Tensor:
    if not options.include_top:
        return _normalization()(options.pooled(x, (None, None)))
    x = GlobalAveragePooling2D(name=f"{options.name}_head_gap")(x)
    x = _normalization(f"{options.name}_head_layernorm")(x)
    return options.classified(x, name=f"{options.name}_head_dense")


__all__ = [
    "ConvNeXtBase",
    "ConvNeXtLarge",
    "ConvNeXtSmall",
    "ConvNeXtTiny",
    "ConvNeXtXLarge",
    "decode_predictions",
    "preprocess_input",
]
