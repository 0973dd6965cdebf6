"""ResNet (He et al., "Deep Residual Learning for Image Recognition", 2016), in its variant 1.5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from ...engine import ops
from ...engine.objects import initializers
from ...engine.objects.registry import register_keras_serializable
from ...layers.convolution.convolution import Conv2D
from ...layers.core.dense import Dense
from ...layers.core.layer import Layer
from ...layers.normalization.batch_and_layer import BatchNormalization
from .base import Config, PretrainedModel, activation, example_image, required
from .bert import class_count
from .names import CONVOLUTION, Name, linear

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...engine.graph import Tensor
    from ...engine.objects.identifiers import InitializerLike
    from ...layers.core.options import LayerOptions
    from ..structures import Array


@register_keras_serializable(package="anabranch.pretrained")
class ConvolutionLayer(Layer):
    """A convolution with zeros on all sides, and a batch normalisation.

    Args:
        filters, size, stride: of the convolution; half of `size` is put on each side.
        activation: the name of a function; None for none.
        initializer: of the kernel.
    """

    def __init__(
        self,
        filters: int,
        size: int = 3,
        stride: int = 1,
        activation: str | None = "relu",
        initializer: InitializerLike = "zeros",
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.filters, self.size, self.stride, self.activation_name = filters, size, stride, activation
        self.activation = None if activation is None else _activation(activation)
        self.convolution = Conv2D(
            filters,
            size,
            strides=stride,
            data_format="channels_last",
            use_bias=False,
            kernel_initializer=initializer,
            name="convolution",
            dtype=self.dtype_policy,
        )
        self.normalization = BatchNormalization(
            epsilon=1e-5, momentum=0.9, name="normalization", dtype=self.dtype_policy
        )

    def call(self, inputs: Tensor, training: bool | Tensor | None = None) -> Tensor:
        x = padded(inputs, self.size // 2)
        x = self.normalization(self.convolution(x), training=training)
        return x if self.activation is None else self.activation(x)

    def get_config(self) -> dict[str, Any]:
        own = {"filters": self.filters, "size": self.size, "stride": self.stride, "activation": self.activation_name}
        return {**super().get_config(), **own}

    @staticmethod
    def names(file: str, place: str) -> list[Name]:
        """Return the table of names."""
        parts = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
        return [
            Name(f"{file}.convolution.weight", f"{place}.convolution._kernel", CONVOLUTION),
            *[Name(f"{file}.normalization.{part}", f"{place}.normalization.{own}") for part, own in parts.items()],
        ]


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    return activation({"hidden_act": name}, "hidden_act", name)


def padded(images: Tensor, margin: int, value: float = 0.0) -> Tensor:
    """Return images with a margin of one value on all sides."""
    if margin == 0:
        return images
    return ops.pad(images, ((0, 0), (margin, margin), (margin, margin), (0, 0)), constant_values=value)


@register_keras_serializable(package="anabranch.pretrained")
class ResidualLayer(Layer):
    """Convolutions, to which what came in is added, brought to their size where that differs.

    Args:
        config: that of the model.
        features: channels before and behind.
        stride: of the layer.
        initializer: of the kernels.
    """

    def __init__(
        self,
        config: Config,
        features: tuple[int, int],
        stride: int,
        initializer: InitializerLike = "zeros",
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.settings, self.features, self.stride = config, tuple(features), stride
        before, behind = features
        name = config.get("hidden_act", "relu")
        self.activation, policy = _activation(name), self.dtype_policy
        if config.get("layer_type", "bottleneck") == "bottleneck":
            narrow = behind // 4
            early = config.get("downsample_in_bottleneck", False)
            sizes = [(narrow, 1, stride if early else 1), (narrow, 3, 1 if early else stride), (behind, 1, 1)]
        else:
            sizes = [(behind, 3, stride), (behind, 3, 1)]
        acts = [name] * (len(sizes) - 1) + [None]
        self.steps = [
            ConvolutionLayer(*size, act, initializer, name=f"step_{number}", dtype=policy)
            for number, (size, act) in enumerate(zip(sizes, acts, strict=True))
        ]
        self.shortcut = None
        if before != behind or stride != 1:
            self.shortcut = ConvolutionLayer(behind, 1, stride, None, initializer, name="shortcut", dtype=policy)

    def call(self, inputs: Tensor, training: bool | Tensor | None = None) -> Tensor:
        x = inputs
        for step in self.steps:
            x = step(x, training=training)
        return self.activation(x + (inputs if self.shortcut is None else self.shortcut(inputs, training=training)))

    def get_config(self) -> dict[str, Any]:
        own = {"config": self.settings, "features": self.features, "stride": self.stride}
        return {**super().get_config(), **own}

    def names(self, file: str, place: str) -> list[Name]:
        """Return the table of names."""
        found: list[Name] = []
        for number in range(len(self.steps)):
            found += ConvolutionLayer.names(f"{file}.layer.{number}", f"{place}.steps.{number}")
        return (
            found
            if self.shortcut is None
            else [*found, *ConvolutionLayer.names(f"{file}.shortcut", f"{place}.shortcut")]
        )


@register_keras_serializable(package="anabranch.pretrained")
class ResNetForImageClassification(PretrainedModel):
    """Logits of the classes of an image, (batch, classes).

    Call arguments: images (batch, height, width, 3), normalised as the model was trained.
    """

    ignored: ClassVar[tuple[str, ...]] = (r".*\.num_batches_tracked",)
    prefix: ClassVar[str] = "resnet."

    def __init__(self, config: Config, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        first, sizes, depths = required(config, ("embedding_size", "hidden_sizes", "depths"))
        policy, initializer = self.dtype_policy, self.initializer()
        act = config.get("hidden_act", "relu")
        self.stem = ConvolutionLayer(first, 7, 2, act, initializer, name="stem", dtype=policy)
        self.stages = []
        before = first
        for stage, (behind, depth) in enumerate(zip(sizes, depths, strict=True)):
            halves = stage > 0 or config.get("downsample_in_first_stage", False)
            layers = []
            for number in range(depth):
                stride = 2 if halves and number == 0 else 1
                name = f"stage_{stage}_{number}"
                layers.append(ResidualLayer(config, (before, behind), stride, initializer, name=name, dtype=policy))
                before = behind
            self.stages.append(layers)
        self.classifier = Dense(class_count(config), kernel_initializer=initializer, name="classifier", dtype=policy)

    def initializer(self) -> InitializerLike:
        """Return the initialiser of the weights: He's, which convolutions want."""
        return "zeros" if self._zeros else initializers.HeNormal()

    def call(self, inputs: Tensor, training: bool | Tensor | None = None) -> Tensor:
        x = padded(self.stem(inputs, training=training), 1, -np.inf)
        x = ops.max_pool(x, 3, 2, padding="valid", data_format="channels_last")
        for layers in self.stages:
            for layer in layers:
                x = layer(x, training=training)
        return self.classifier(ops.mean(x, axis=(1, 2)))

    def example(self) -> Array:
        return example_image(self.config, 32)

    def names(self) -> list[Name]:
        found = ConvolutionLayer.names("resnet.embedder.embedder", "stem")
        for s, layers in enumerate(self.stages):
            for k, layer in enumerate(layers):
                found += layer.names(f"resnet.encoder.stages.{s}.layers.{k}", f"stages.{s}.{k}")
        return [*found, *linear("classifier.1", "classifier")]
