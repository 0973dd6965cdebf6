"""ViT (Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from ...engine import ops
from ...engine.objects.registry import register_keras_serializable
from ...layers.convolution.convolution import Conv2D
from ...layers.core.dense import Dense
from ...layers.core.layer import Layer
from ...layers.normalization.batch_and_layer import LayerNormalization
from .base import Config, PretrainedModel, example_image, required
from .bert import class_count
from .encoder import EncoderBlock
from .names import CONVOLUTION, Name, linear, normalisation

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ...engine.objects.identifiers import InitializerLike
    from ...layers.core.options import LayerOptions
    from ..structures import Array


@register_keras_serializable(package="anabranch.pretrained")
class PatchTokens(Layer):
    """The patches of an image as vectors, behind one for the class, with their positions added.

    Args:
        patch: the height and width of a patch.
        features: the length of a vector.
        initializer: of the weights.
    """

    def __init__(
        self, patch: int, features: int, initializer: InitializerLike = "zeros", **kwargs: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**kwargs)
        self.patch, self.features, self.first_values = patch, features, initializer
        self.projection = Conv2D(
            features,
            patch,
            strides=patch,
            data_format="channels_last",
            kernel_initializer=initializer,
            name="projection",
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Any) -> None:
        _, height, width, channels = input_shape
        count = (height // self.patch) * (width // self.patch)
        self.projection.build((None, height, width, channels))
        self.token = self.add_weight(shape=(1, 1, self.features), initializer="zeros", name="token")
        self.positions = self.add_weight(
            shape=(1, count + 1, self.features), initializer=self.first_values, name="positions"
        )

    def call(self, inputs: Tensor) -> Tensor:
        patches = self.projection(inputs)
        batch = ops.shape(patches)[0]
        patches = ops.reshape(patches, (batch, self.positions.shape[1] - 1, self.features))
        token = ops.broadcast_to(self.token, (batch, 1, self.features))
        return ops.concatenate([token, patches], axis=1) + self.positions

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "patch": self.patch, "features": self.features}


@register_keras_serializable(package="anabranch.pretrained")
class ViTForImageClassification(PretrainedModel):
    """Logits of the classes of an image, (batch, classes).

    Call arguments: images (batch, height, width, 3), normalised as the model was trained.
    """

    ignored: ClassVar[tuple[str, ...]] = (r"vit\.pooler\.dense\.(weight|bias)",)
    prefix: ClassVar[str] = "vit."

    def __init__(self, config: Config, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        features, blocks, self.image_size, patch = required(
            config, ("hidden_size", "num_hidden_layers", "image_size", "patch_size")
        )
        policy, initializer = self.dtype_policy, self.initializer()
        self.patches = PatchTokens(patch, features, initializer, name="patches", dtype=policy)
        self.blocks = [
            EncoderBlock(config, True, initializer, name=f"block_{number}", dtype=policy) for number in range(blocks)
        ]
        self.norm = LayerNormalization(epsilon=config.get("layer_norm_eps", 1e-12), name="norm", dtype=policy)
        self.classifier = Dense(class_count(config), kernel_initializer=initializer, name="classifier", dtype=policy)

    def call(self, inputs: Tensor) -> Tensor:
        x = self.patches(inputs)
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.norm(x)[:, 0])

    def example(self) -> Array:
        return example_image(self.config, self.image_size)

    def names(self) -> list[Name]:
        file = "vit.embeddings"
        found = [
            Name(f"{file}.cls_token", "patches.token"),
            Name(f"{file}.position_embeddings", "patches.positions"),
            Name(f"{file}.patch_embeddings.projection.weight", "patches.projection._kernel", CONVOLUTION),
            Name(f"{file}.patch_embeddings.projection.bias", "patches.projection.bias"),
        ]
        norms = ("layernorm_before", "layernorm_after")
        for i, block in enumerate(self.blocks):
            found += block.names(f"vit.encoder.layer.{i}", f"blocks.{i}", "attention.attention", norms)
        return [*found, *normalisation("vit.layernorm", "norm"), *linear("classifier", "classifier")]
