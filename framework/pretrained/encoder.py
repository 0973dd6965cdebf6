"""A block of BERT and of ViT: attention to both sides and two dense layers, normalised before or behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from ...engine.objects.registry import register_keras_serializable
from ...layers.core.dense import Dense
from ...layers.core.layer import Layer
from ...layers.normalization.batch_and_layer import LayerNormalization
from .attention import SelfAttention
from .base import Config, activation, required
from .names import Name, linear, normalisation

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ...engine.objects.identifiers import InitializerLike
    from ...layers.core.options import LayerOptions


@register_keras_serializable(package="anabranch.pretrained")
class EncoderBlock(Layer):
    """Attention, then two dense layers, each added to what came in.

    Args:
        config: that of the model.
        normalize_first: what goes into each is normalised, rather than the sum.
        initializer: of the weights.
    """

    def __init__(
        self,
        config: Config,
        normalize_first: bool,
        initializer: InitializerLike = "zeros",
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.settings, self.normalize_first = config, normalize_first
        features, inner, heads = required(config, ("hidden_size", "intermediate_size", "num_attention_heads"))
        epsilon, policy = config.get("layer_norm_eps", 1e-12), self.dtype_policy
        self.activation = activation(config, "hidden_act", "gelu")
        self.attention = SelfAttention(
            heads,
            heads,
            features // heads,
            use_bias=config.get("qkv_bias", True),
            kernel_initializer=initializer,
            name="attention",
            dtype=policy,
        )
        self.norm_1 = LayerNormalization(epsilon=epsilon, name="norm_1", dtype=policy)
        self.hidden = Dense(inner, kernel_initializer=initializer, name="hidden", dtype=policy)
        self.projection = Dense(features, kernel_initializer=initializer, name="projection", dtype=policy)
        self.norm_2 = LayerNormalization(epsilon=epsilon, name="norm_2", dtype=policy)

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.normalize_first:
            x = inputs + self.attention(self.norm_1(inputs), mask=mask)
            return x + self.projection(self.activation(self.hidden(self.norm_2(x))))
        x = self.norm_1(inputs + self.attention(inputs, mask=mask))
        return self.norm_2(x + self.projection(self.activation(self.hidden(x))))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "config": self.settings, "normalize_first": self.normalize_first}

    def names(self, file: str, place: str, attention: str, norms: tuple[str, str]) -> list[Name]:
        """Return the table of names of a block.

        Args:
            file, place: what its names begin with.
            attention: that of queries, keys and values, in files.
            norms: the two normalisations, in files.
        """
        found: list[Name] = []
        for part in ("query", "key", "value"):
            found += linear(f"{file}.{attention}.{part}", f"{place}.attention.{part}", self.attention.use_bias)
        found += linear(f"{file}.attention.output.dense", f"{place}.attention.output_dense")
        found += normalisation(f"{file}.{norms[0]}", f"{place}.norm_1")
        found += linear(f"{file}.intermediate.dense", f"{place}.hidden")
        found += linear(f"{file}.output.dense", f"{place}.projection")
        return [*found, *normalisation(f"{file}.{norms[1]}", f"{place}.norm_2")]
