"""BERT (Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2019), with three kinds of heads."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...engine import ops
from ...engine.objects.registry import register_keras_serializable
from ...layers.attention.positions import ReversibleEmbedding
from ...layers.core.dense import Dense
from ...layers.core.embedding import Embedding
from ...layers.normalization.batch_and_layer import LayerNormalization
from .base import Config, PretrainedModel, activation, check_length, refuse, required, tokens_and_mask
from .encoder import EncoderBlock
from .names import Name, linear, normalisation

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ..structures import Array, Tensors


class _Bert(PretrainedModel):
    """Base: tables of tokens, positions and types of tokens (all are of the first type), and blocks."""

    ignored: ClassVar[tuple[str, ...]] = (r"(bert\.)?embeddings\.position_ids",)
    prefix: ClassVar[str] = "bert."

    def __init__(self, config: Config, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        vocabulary, features, blocks = required(config, ("vocab_size", "hidden_size", "num_hidden_layers"))
        refuse(config, "position_embedding_type", "absolute")
        refuse(config, "is_decoder", False)
        epsilon, policy, initializer = config.get("layer_norm_eps", 1e-12), self.dtype_policy, self.initializer()
        options = {"embeddings_initializer": initializer, "dtype": policy}
        self.tokens = ReversibleEmbedding(vocabulary, features, name="tokens", **options)
        self.positions = Embedding(config.get("max_position_embeddings", 512), features, name="positions", **options)
        self.types = Embedding(config.get("type_vocab_size", 2), features, name="types", **options)
        self.norm = LayerNormalization(epsilon=epsilon, name="norm", dtype=policy)
        self.blocks = [
            EncoderBlock(config, False, initializer, name=f"block_{number}", dtype=policy) for number in range(blocks)
        ]
        if self.has_pooler:
            self.pooler = self._dense(features, "pooler")

    def _dense(self, units: int, name: str) -> Dense:
        return Dense(units, kernel_initializer=self.initializer(), name=name, dtype=self.dtype_policy)

    @property
    def has_pooler(self) -> bool:
        """Test whether there is a layer for the pooled state."""
        return True

    def encode(self, inputs: Tensors) -> Tensor:
        """Return the last hidden states, (batch, steps, features)."""
        tokens, mask = tokens_and_mask(inputs)
        check_length(tokens, self.config.get("max_position_embeddings", 512), "max_position_embeddings")
        places = ops.arange(ops.shape(tokens)[1], dtype="int32")
        x = self.norm(self.tokens(tokens) + self.positions(places) + self.types(ops.zeros_like(places)))
        for block in self.blocks:
            x = block(x, mask=mask)
        return x

    def pooled(self, states: Tensor) -> Tensor:
        """Return the pooled state of the first place, (batch, features)."""
        return ops.tanh(self.pooler(states[:, 0]))

    def example(self) -> Array:
        return np.zeros((1, 1), "int32")

    def encoder_names(self, prefix: str = "bert.") -> list[Name]:
        """Return the table of names without the head."""
        file = f"{prefix}embeddings"
        found = [
            Name(f"{file}.word_embeddings.weight", "tokens._embeddings"),
            Name(f"{file}.position_embeddings.weight", "positions._embeddings"),
            Name(f"{file}.token_type_embeddings.weight", "types._embeddings"),
            *normalisation(f"{file}.LayerNorm", "norm"),
        ]
        norms = ("attention.output.LayerNorm", "output.LayerNorm")
        for i, block in enumerate(self.blocks):
            found += block.names(f"{prefix}encoder.layer.{i}", f"blocks.{i}", "attention.self", norms)
        return [*found, *linear(f"{prefix}pooler.dense", "pooler")] if self.has_pooler else found


@register_keras_serializable(package="anabranch.pretrained")
class BertModel(_Bert):
    """The last hidden states (batch, steps, features), and what the first place comes to (batch, features).

    Call arguments: int tokens (batch, steps), or ``{"tokens", "mask"}``. Returns ``{"hidden", "pooled"}``, or
    ``{"hidden"}`` where the config has ``add_pooling_layer`` as false. So it has for files without a pooler, as
    transformers writes them of ``BertModel(config, add_pooling_layer=False)``.
    """

    prefix: ClassVar[str] = ""

    @classmethod
    def config_for(cls, config: Config, names: Collection[str]) -> Config:
        if any(name.startswith("pooler.") for name in names):
            return config
        return {**config, "add_pooling_layer": False}

    @property
    def has_pooler(self) -> bool:
        return self.config.get("add_pooling_layer", True) is not False

    def call(self, inputs: Tensors) -> dict[str, Tensor]:
        states = self.encode(inputs)
        return {"hidden": states, "pooled": self.pooled(states)} if self.has_pooler else {"hidden": states}

    def names(self) -> list[Name]:
        return self.encoder_names("")


@register_keras_serializable(package="anabranch.pretrained")
class BertForMaskedLM(_Bert):
    """Logits of the token at each place, (batch, steps, vocabulary); the head is the table of tokens.

    Call arguments: int tokens (batch, steps), or ``{"tokens", "mask"}``.
    """

    ignored: ClassVar[tuple[str, ...]] = (
        *_Bert.ignored,
        r"cls\.predictions\.decoder\.(weight|bias)",
        r"cls\.seq_relationship\.(weight|bias)",
        r"bert\.pooler\.dense\.(weight|bias)",
    )

    def __init__(self, config: Config, **kwargs: object) -> None:
        super().__init__(config, **kwargs)
        refuse(config, "tie_word_embeddings", True)
        features = config["hidden_size"]
        self.transform = self._dense(features, "transform")
        self.transform_activation = activation(config, "hidden_act", "gelu")
        self.transform_norm = LayerNormalization(
            epsilon=config.get("layer_norm_eps", 1e-12), name="transform_norm", dtype=self.dtype_policy
        )
        self.bias = self.add_weight(shape=(config["vocab_size"],), initializer="zeros", name="bias")

    @property
    def has_pooler(self) -> bool:
        return False

    def call(self, inputs: Tensors) -> Tensor:
        x = self.transform_norm(self.transform_activation(self.transform(self.encode(inputs))))
        return self.tokens(x, reverse=True) + self.bias

    def names(self) -> list[Name]:
        return [
            *self.encoder_names(),
            *linear("cls.predictions.transform.dense", "transform"),
            *normalisation("cls.predictions.transform.LayerNorm", "transform_norm"),
            Name("cls.predictions.bias", "bias"),
        ]


@register_keras_serializable(package="anabranch.pretrained")
class BertForSequenceClassification(_Bert):
    """Logits of the classes of a text, (batch, classes).

    Call arguments: int tokens (batch, steps), or ``{"tokens", "mask"}``.
    """

    def __init__(self, config: Config, **kwargs: object) -> None:
        super().__init__(config, **kwargs)
        self.classifier = self._dense(class_count(config), "classifier")

    def call(self, inputs: Tensors) -> Tensor:
        return self.classifier(self.pooled(self.encode(inputs)))

    def names(self) -> list[Name]:
        return [*self.encoder_names(), *linear("classifier", "classifier")]


def class_count(config: Config) -> int:
    """Return the number of classes of a config: transformers writes their names, and 2 where there are none."""
    return len(config["id2label"]) if config.get("id2label") else int(config.get("num_labels", 2))
