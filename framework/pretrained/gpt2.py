"""GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from ...engine import ops
from ...engine.objects.registry import register_keras_serializable
from ...layers.attention.positions import ReversibleEmbedding
from ...layers.core.dense import Dense
from ...layers.core.embedding import Embedding
from ...layers.core.layer import Layer
from ...layers.normalization.batch_and_layer import LayerNormalization
from .attention import SelfAttention
from .base import Config, PretrainedModel, activation, check_length, refuse, required, tokens_and_mask
from .names import Name, linear, normalisation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...engine.graph import Tensor
    from ...engine.objects.identifiers import InitializerLike
    from ...layers.core.options import LayerOptions
    from ..structures import Array, Tensors
    from .attention import Cache


@register_keras_serializable(package="anabranch.pretrained")
class GPT2Block(Layer):
    """A block: attention, then two dense layers, each after a normalisation and added to what came in.

    Args:
        config: that of the model.
        number: of the block.
        initializer: of the weights.
    """

    def __init__(
        self, config: Config, number: int, initializer: InitializerLike = "zeros", **kwargs: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**kwargs)
        self.settings, self.number = config, number
        features, heads = required(config, ("n_embd", "n_head"))
        epsilon, policy = config.get("layer_norm_epsilon", 1e-5), self.dtype_policy
        scale = (features // heads) ** -0.5 if config.get("scale_attn_weights", True) else 1.0
        if config.get("scale_attn_by_inverse_layer_idx"):
            scale /= number + 1
        self.activation = activation(config, "activation_function", "gelu_new")
        self.norm_1 = LayerNormalization(epsilon=epsilon, name="norm_1", dtype=policy)
        self.attention = SelfAttention(
            heads,
            heads,
            features // heads,
            fused=True,
            causal=True,
            scale=scale,
            kernel_initializer=initializer,
            name="attention",
            dtype=policy,
        )
        self.norm_2 = LayerNormalization(epsilon=epsilon, name="norm_2", dtype=policy)
        inner = config.get("n_inner") or 4 * features
        self.hidden = Dense(inner, kernel_initializer=initializer, name="hidden", dtype=policy)
        self.projection = Dense(features, kernel_initializer=initializer, name="projection", dtype=policy)

    def call(self, inputs: Tensor, mask: Tensor | None = None, cache: Cache = None, start: Tensor | None = None) -> Any:
        attended = self.attention(self.norm_1(inputs), mask=mask, cache=cache, start=start)
        if cache is not None:
            attended, cache = attended
        x = inputs + attended
        x = x + self.projection(self.activation(self.hidden(self.norm_2(x))))
        return x if cache is None else (x, cache)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "config": self.settings, "number": self.number}


@register_keras_serializable(package="anabranch.pretrained")
class GPT2LMHeadModel(PretrainedModel):
    """Logits of the next token for each place; the head is the table of tokens.

    Call arguments: int tokens (batch, steps), or ``{"tokens", "mask"}``.
    """

    ignored: ClassVar[tuple[str, ...]] = (r"transformer\.h\.\d+\.attn\.(bias|masked_bias)", r"lm_head\.weight")
    prefix: ClassVar[str] = "transformer."

    def __init__(self, config: Config, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        vocabulary, positions, features, blocks = required(config, ("vocab_size", "n_positions", "n_embd", "n_layer"))
        refuse(config, "add_cross_attention", False)
        refuse(config, "tie_word_embeddings", True)
        policy, initializer = self.dtype_policy, self.initializer()
        self.tokens = ReversibleEmbedding(
            vocabulary, features, embeddings_initializer=initializer, name="tokens", dtype=policy
        )
        self.positions = Embedding(
            positions, features, embeddings_initializer=initializer, name="positions", dtype=policy
        )
        self.blocks = [
            GPT2Block(config, number, initializer, name=f"block_{number}", dtype=policy) for number in range(blocks)
        ]
        self.norm = LayerNormalization(epsilon=config.get("layer_norm_epsilon", 1e-5), name="norm", dtype=policy)

    def call(self, inputs: Tensors) -> Tensor:
        tokens, mask = tokens_and_mask(inputs)
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.tokens(self.norm(x), reverse=True)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the vectors of tokens and of their places."""
        check_length(tokens, self.config["n_positions"], "n_positions")
        return self.tokens(tokens) + self.positions(ops.arange(ops.shape(tokens)[1], dtype="int32"))

    def get_quantization_layer_structure(self, mode: str) -> dict[str, Sequence[Callable[..., object]]]:
        """Return the layers that GPTQ and AWQ go through."""
        return {"pre_block_layers": [self.embed], "sequential_blocks": self.blocks}

    def step(self, tokens: Tensor, caches: Sequence[Cache], start: Tensor) -> tuple[Tensor, list[Cache]]:
        """Return logits (batch, steps, vocabulary) of tokens that follow those in the caches, and the new caches.

        Args:
            tokens: ints (batch, steps).
            caches: of each block, see `SelfAttention`.
            start: ints (batch,): the places that the caches hold.
        """
        places = ops.expand_dims(start, 1) + ops.arange(ops.shape(tokens)[1], dtype="int32")
        x = self.tokens(tokens) + self.positions(ops.minimum(places, self.config["n_positions"] - 1))
        found = []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, cache = block(x, cache=cache, start=start)
            found.append(cache)
        return self.tokens(self.norm(x), reverse=True), found

    def cache_sizes(self) -> list[tuple[int, int]]:
        """Return how many heads each block's keys and values have, and the length of a head."""
        return [(block.attention.key_heads, block.attention.head_dim) for block in self.blocks]

    def example(self) -> Array:
        return np.zeros((1, 1), "int32")

    def names(self) -> list[Name]:
        found = [
            Name("transformer.wte.weight", "tokens._embeddings"),
            Name("transformer.wpe.weight", "positions._embeddings"),
        ]
        for i in range(len(self.blocks)):
            file, place = f"transformer.h.{i}", f"blocks.{i}"
            found += normalisation(f"{file}.ln_1", f"{place}.norm_1")
            found += _conv1d(f"{file}.attn.c_attn", f"{place}.attention.qkv")
            found += _conv1d(f"{file}.attn.c_proj", f"{place}.attention.output_dense")
            found += normalisation(f"{file}.ln_2", f"{place}.norm_2")
            found += _conv1d(f"{file}.mlp.c_fc", f"{place}.hidden")
            found += _conv1d(f"{file}.mlp.c_proj", f"{place}.projection")
        return [*found, *normalisation("transformer.ln_f", "norm")]


def _conv1d(file: str, place: str) -> list[Name]:
    """Return a `Dense`, whose kernel has the same layout in files as here."""
    return [Name(name.file, name.place) for name in linear(file, place)]
