"""Define the arguments, the input, the top and the weights that all models of `anabranch.applications` have."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import Symbol, Tensor
from ...engine.objects import activations
from ...engine.objects.identifiers import ActivationLike
from ...engine.ops.base import TensorLike
from ...engine.ops.data_format import image_data_format
from ...layers.convolution.convolution import Conv2D
from ...layers.convolution.pooling import GlobalAveragePooling2D, GlobalMaxPooling2D
from ...layers.convolution.spatial import channels_axis
from ...layers.core.activation import Activation
from ...layers.core.dense import Dense
from ...layers.core.input_layer import Input
from ...layers.core.merging import Concatenate
from ...layers.normalization.batch_and_layer import BatchNormalization
from ..data.get_file import get_file
from ..models.model import Functional
from .imagenet_utils import obtain_input_shape

if TYPE_CHECKING:
    from ..structures import Tensors

STORE = "https://storage.googleapis.com/tensorflow/keras-applications/"
"""The address below which Keras keeps the weights."""

KERAS_FILE = "{}_weights_tf_dim_ordering_tf_kernels{}.h5"
"""The names of most of the files, with "_notop" for those without a top."""


@dataclass(frozen=True)
class Options:
    """The arguments that all models have; see `resnet.ResNet50`."""

    include_top: bool
    weights: str | os.PathLike[str] | None
    input_tensor: TensorLike | None
    input_shape: Sequence[int | None] | None
    pooling: str | None
    classes: int
    classifier_activation: ActivationLike
    name: str | None

    def __post_init__(self) -> None:
        weights = self.weights
        if weights is not None and weights != "imagenet" and not Path(weights).exists():
            raise ValueError(
                "weights must be None (random weights), 'imagenet' (trained on ImageNet), or the path of a file with "
                f"weights; there is no file {os.fspath(weights)!r}."
            )
        if self.is_imagenet and self.include_top and self.classes != 1000:
            raise ValueError(
                f"With weights='imagenet' and include_top=True there are 1000 classes, got classes={self.classes}. "
                "Pass include_top=False and add a layer for classes of your own."
            )
        if self.pooling not in (None, "avg", "max"):
            raise ValueError(f"pooling must be None, 'avg' or 'max', got {self.pooling!r}.")
        if self.input_tensor is not None and not isinstance(self.input_tensor, Symbol):
            raise ValueError(
                "input_tensor must be a symbolic tensor, from ab.Input or a layer called on one; got "
                f"{type(self.input_tensor).__name__}. Call the model on arrays instead."
            )

    @property
    def is_imagenet(self) -> bool:
        """Test whether Keras's weights are requested."""
        return self.weights == "imagenet"

    def shape(self, default_size: int, min_size: int = 32) -> tuple[int | None, ...]:
        """Return the shape of the images, as `obtain_input_shape` says."""
        return obtain_input_shape(self.input_shape, default_size, min_size, self.include_top, self.weights)

    def given_size(self) -> tuple[int | None, int | None]:
        """Return the height and width that `input_shape` or `input_tensor` says, None where neither does.

        Raises:
            ValueError: the two disagree.
        """
        given = None if self.input_shape is None else tuple(self.input_shape)
        sizes = [] if given is None else [sizes_of(given)]
        if isinstance(self.input_tensor, Tensor):
            sizes.append(sizes_of(self.input_tensor.shape or ()))
        if len(sizes) == 2 and any(None not in pair and pair[0] != pair[1] for pair in zip(*sizes, strict=False)):
            raise ValueError(f"input_shape={given} is not that of input_tensor, {self.input_tensor!r}.")
        height, width = sizes[0] if sizes and len(sizes[0]) == 2 else (None, None)
        return height, width

    def named(self, name: str) -> Options:
        """Return the options with `name` as their name, unless they have one already."""
        return self if self.name is not None else replace(self, name=name)

    def images(self, shape: tuple[int | None, ...]) -> Any:
        """Return the symbolic images with which the model starts."""
        return Input(shape) if self.input_tensor is None else self.input_tensor

    def check_activation(self) -> None:
        """Refuse activations of the top other than those that given weights were trained for."""
        if self.weights is None:
            return
        if activations.get(self.classifier_activation) not in (activations.get("softmax"), activations.get(None)):
            raise ValueError(
                "With weights classifier_activation must be None or 'softmax', got "
                f"{self.classifier_activation!r}. Apply others to the output of a model without a top."
            )

    def pooled(self, x: Tensor, names: tuple[str | None, str | None] = ("avg_pool", "max_pool")) -> Tensor:
        """Return the features of a model without a top, pooled over height and width as `pooling` says."""
        if self.pooling == "avg":
            return GlobalAveragePooling2D(name=names[0])(x)
        return GlobalMaxPooling2D(name=names[1])(x) if self.pooling == "max" else x

    def classified(self, x: TensorLike, name: str = "predictions", **options: Any) -> Tensor:
        """Return the classes' scores, from pooled features."""
        self.check_activation()
        return Dense(self.classes, activation=self.classifier_activation, name=name, **options)(x)

    def topped(self, x: Tensor) -> Tensor:
        """Return the usual end: mean features and the classes' scores, or pooled features."""
        return self.classified(GlobalAveragePooling2D(name="avg_pool")(x)) if self.include_top else self.pooled(x)

    def model(
        self, images: Any, outputs: Tensors, folder: str, file: str, file_hash: str | None, origin: str | None = None
    ) -> Functional:
        """Return the model, with its weights.

        Args:
            images: the input, from `images`.
            outputs: the output.
            folder, file, file_hash: of Keras's weights, below `STORE`.
            origin: their address, where it is another one.
        """
        model = Functional(_sources(images), outputs, name=self.name)
        if self.weights is None:
            return model
        path = self.weights
        if self.is_imagenet:
            path = get_file(
                file, origin=origin or f"{STORE}{folder}/{file}", cache_subdir="models", file_hash=file_hash
            )
        model.load_weights(path)
        return model


def _sources(tensor: Symbol) -> Symbol | list[Symbol]:
    """Return the inputs out of which a symbolic tensor is made; the tensor itself if it is an input."""
    found: list[Symbol] = []
    pending, seen = [tensor], set[Symbol]()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        made_by = current.annotations.get("history")
        if made_by is None:  # an op without a layer: x + 1.0
            pending.extend(reversed(current.operation.inputs))
        elif parents := made_by.layer.inbound_nodes[made_by.node_index].input_tensors:
            pending.extend(reversed(parents))
        else:
            found.append(current)
    return found[0] if len(found) == 1 else found


def normalized(x: Tensor, name: str | None, epsilon: float = 1.001e-5, momentum: float = 0.99) -> Tensor:
    """Return the features, normalised over the batch."""
    return BatchNormalization(features_axis(), epsilon=epsilon, momentum=momentum, name=name)(x)


def activated(x: Tensor, name: str, activation: ActivationLike = "relu") -> Tensor:
    """Return the features behind an activation."""
    return Activation(activation, name=name)(x)


def convolved(x: TensorLike, filters: int, size: int, name: str | None, **options: Any) -> Tensor:
    """Return the features behind a convolution."""
    return Conv2D(filters, size, name=name, **options)(x)


def concatenated(parts: Sequence[Tensor], name: str | None = None) -> Tensor:
    """Return the features of all parts."""
    return Concatenate(features_axis(), name=name)(parts)


def divisible(filters: float) -> int:
    """Return the multiple of 8 next to a number of features, not more than a tenth less."""
    rounded = max(8, int(filters + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * filters else rounded


def halving_margins(x: Tensor, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the zeros above, below, left and right with which a convolution of stride 2 gives half the size.

    Args:
        x: the features.
        size: that of the convolution.
    """
    height, width = sizes_of(x.shape or (None,) * 4)
    if height is None or width is None:  # as Keras: even sizes are expected
        height = width = 0
    half = size // 2
    return (half - 1 + height % 2, half), (half - 1 + width % 2, half)


def channels_of(x: Tensor) -> int:
    """Return the number of features; they are known as soon as images have a number of channels."""
    count = channels_in(x.shape or ())
    assert count is not None
    return count


def features_axis() -> int:
    """Return the axis of the features of a batch in the default order of axes."""
    return channels_axis(image_data_format())


def channels_in(shape: Sequence[int | None]) -> int | None:
    """Return the number of channels in the shape of images, with or without the batch."""
    return shape[-1 if image_data_format() == "channels_last" else -3]


def sizes_of(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    """Return height and width in the shape of images, with or without the batch."""
    return tuple(shape[-3:-1] if image_data_format() == "channels_last" else shape[-2:])


def warn_of_size(shape: Sequence[int | None], sizes: Sequence[int]) -> None:
    """Warn that weights were trained for images of another size, where the user gave one."""
    if any(size is not None for size in sizes_of(shape)):
        warnings.warn(
            f"There are weights for images of {' or '.join(f'{size}x{size}' for size in sizes)}, not for input_shape="
            f"{tuple(shape)}: those for 224x224 are taken.",
            stacklevel=4,
        )
