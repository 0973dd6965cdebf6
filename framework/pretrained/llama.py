"""Llama (Touvron et al., 2023), and its variants Mistral (Jiang et al., 2023) and Qwen2 (Yang et al., 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from ...engine.objects.registry import register_keras_serializable
from ...layers.attention.positions import ReversibleEmbedding
from ...layers.core.dense import Dense
from ...layers.core.layer import Layer
from ...layers.normalization.scale import RMSNormalization
from .attention import SelfAttention
from .base import Config, PretrainedModel, activation, refuse, required, tokens_and_mask
from .names import TURNED, Name, linear

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...engine.graph import Tensor
    from ...engine.objects.identifiers import InitializerLike
    from ...layers.core.options import LayerOptions
    from ..structures import Array, Tensors
    from .attention import Cache

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def rotary_settings(config: Config) -> dict[str, object]:
    """Return how positions are rotated by a config, in the form of transformers 5 (``rope_parameters``) or of older
    versions.

    Raises:
        ValueError: it has another kind than default, linear and llama3.
    """
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = float(found.get("rope_theta", config.get("rope_theta", 10000.0)))
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "default":
        return {"base": base}
    if kind == "linear":
        (factor,) = required(found, ("factor",))
        return {"base": base, "scaling": {"kind": kind, "factor": float(factor)}}
    if kind == "llama3":
        numbers = required(found, _LLAMA3)
        return {"base": base, "scaling": {"kind": kind, **dict(zip(_LLAMA3, map(float, numbers), strict=True))}}
    raise ValueError(f"config: rope_type={kind!r} is not available. Expected 'default', 'linear' or 'llama3'.")


@register_keras_serializable(package="anabranch.pretrained")
class LlamaBlock(Layer):
    """A block: attention, then gated dense layers, each after a normalisation and added to what came in.

    Args:
        config: that of the model.
        attention: settings of `SelfAttention` in which variants differ.
        initializer: of the weights.
    """

    def __init__(
        self,
        config: Config,
        attention: dict[str, Any],
        initializer: InitializerLike = "zeros",
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.settings, self.attention_settings = config, attention
        features, inner, heads = required(config, ("hidden_size", "intermediate_size", "num_attention_heads"))
        epsilon, policy = config.get("rms_norm_eps", 1e-6), self.dtype_policy
        self.activation = activation(config, "hidden_act", "silu")
        self.norm_1 = RMSNormalization(epsilon=epsilon, name="norm_1", dtype=policy)
        self.attention = SelfAttention(
            heads,
            config.get("num_key_value_heads") or heads,
            config.get("head_dim") or features // heads,
            causal=True,
            rotary=rotary_settings(config),
            kernel_initializer=initializer,
            name="attention",
            dtype=policy,
            **attention,
        )
        self.norm_2 = RMSNormalization(epsilon=epsilon, name="norm_2", dtype=policy)
        options = {
            "use_bias": config.get("mlp_bias", False),
            "kernel_initializer": initializer,
            "dtype": policy,
        }
        self.gate = Dense(inner, name="gate", **options)
        self.up = Dense(inner, name="up", **options)
        self.down = Dense(features, name="down", **options)

    def call(self, inputs: Tensor, mask: Tensor | None = None, cache: Cache = None, start: Tensor | None = None) -> Any:
        attended = self.attention(self.norm_1(inputs), mask=mask, cache=cache, start=start)
        if cache is not None:
            attended, cache = attended
        x = inputs + attended
        hidden = self.norm_2(x)
        x = x + self.down(self.activation(self.gate(hidden)) * self.up(hidden))
        return x if cache is None else (x, cache)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "config": self.settings, "attention": self.attention_settings}


@register_keras_serializable(package="anabranch.pretrained")
class LlamaForCausalLM(PretrainedModel):
    """Logits of the next token for each place.

    Call arguments: int tokens (batch, steps), or ``{"tokens", "mask"}``.
    """

    ignored: ClassVar[tuple[str, ...]] = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"lm_head\.weight")
    prefix: ClassVar[str] = "model."

    def __init__(self, config: Config, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        vocabulary, features, blocks = required(config, ("vocab_size", "hidden_size", "num_hidden_layers"))
        refuse(config, "pretraining_tp", 1)
        policy, initializer = self.dtype_policy, self.initializer()
        self.tied = bool(config.get("tie_word_embeddings", False))
        self.tokens = ReversibleEmbedding(
            vocabulary,
            features,
            tie_weights=self.tied,
            embeddings_initializer=initializer,
            name="tokens",
            dtype=policy,
        )
        attention = self.attention_settings(config)
        self.blocks = [
            LlamaBlock(config, attention, initializer, name=f"block_{number}", dtype=policy) for number in range(blocks)
        ]
        self.norm = RMSNormalization(epsilon=config.get("rms_norm_eps", 1e-6), name="norm", dtype=policy)

    @staticmethod
    def attention_settings(config: Config) -> dict[str, object]:
        """Return the arguments that variants set in `SelfAttention`."""
        biased = bool(config.get("attention_bias", False))
        return {"use_bias": biased, "output_bias": biased}

    def call(self, inputs: Tensors) -> Tensor:
        tokens, mask = tokens_and_mask(inputs)
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.tokens(self.norm(x), reverse=True)

    def get_quantization_layer_structure(self, mode: str) -> dict[str, Sequence[Callable[..., object]]]:
        """Return the layers that GPTQ and AWQ go through."""
        return {"pre_block_layers": [self.tokens], "sequential_blocks": self.blocks}

    def step(self, tokens: Tensor, caches: Sequence[Cache], start: Tensor) -> tuple[Tensor, list[Cache]]:
        """Return logits of tokens that follow those in the caches, and the new caches; see `GPT2LMHeadModel.step`."""
        x, found = self.tokens(tokens), []
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
        found = [Name("model.embed_tokens.weight", "tokens._embeddings")]
        for i, block in enumerate(self.blocks):
            file, place = f"model.layers.{i}", f"blocks.{i}"
            found.append(Name(f"{file}.input_layernorm.weight", f"{place}.norm_1.scale"))
            for part, own in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
                found += linear(f"{file}.self_attn.{part}", f"{place}.attention.{own}", block.attention.use_bias)
            found += linear(f"{file}.self_attn.o_proj", f"{place}.attention.output_dense", block.attention.output_bias)
            found.append(Name(f"{file}.post_attention_layernorm.weight", f"{place}.norm_2.scale"))
            for part in ("gate", "up", "down"):
                found += linear(f"{file}.mlp.{part}_proj", f"{place}.{part}", block.gate.use_bias)
        found.append(Name("model.norm.weight", "norm.scale"))
        return found if self.tied else [*found, Name("lm_head.weight", "tokens.reverse_embeddings", TURNED)]


@register_keras_serializable(package="anabranch.pretrained")
class MistralForCausalLM(LlamaForCausalLM):
    """As Llama, with a window of places that each one sees."""

    @staticmethod
    def attention_settings(config: Config) -> dict[str, object]:
        return {"use_bias": False, "output_bias": False, "window": config.get("sliding_window")}


@register_keras_serializable(package="anabranch.pretrained")
class Qwen2ForCausalLM(LlamaForCausalLM):
    """As Llama, with biases of queries, keys and values."""

    @staticmethod
    def attention_settings(config: Config) -> dict[str, object]:
        refuse(config, "use_sliding_window", False)
        return {"use_bias": True, "output_bias": False}
