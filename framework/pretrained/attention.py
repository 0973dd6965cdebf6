"""Attention of a sequence to itself, as public architectures have it: grouped heads, turned positions, a cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Unpack

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects.registry import register_keras_serializable
from ...layers.core.dense import Dense
from ...layers.core.layer import Layer

if TYPE_CHECKING:
    from ...engine.objects.identifiers import InitializerLike
    from ...engine.ops.base import TensorLike
    from ...layers.core.options import LayerOptions


Cache = tuple[Tensor, Tensor] | None  # keys and values of the steps before


@register_keras_serializable(package="anabranch.pretrained")
class SelfAttention(Layer):
    """Heads of queries over keys and values of the same sequence.

    Args:
        heads: of queries.
        key_heads: of keys and values; each serves as many heads of queries in a row.
        head_dim: the length of a head.
        fused: queries, keys and values are one product, called `qkv`.
        use_bias: whether the projections to queries, keys and values have biases.
        output_bias: whether the projection back has one.
        causal: a place sees none behind it.
        scale: of the products; by default ``1 / sqrt(head_dim)``.
        window: a place sees so many places only, its own included; None for no limit.
        rotary: settings of `Rotary`, which turns queries and keys; None for none.
        kernel_initializer: of all projections.

    Call arguments: ``inputs`` (batch, steps, features); ``mask``, bools (batch, sources), True where a source counts;
    ``cache``, keys and values (batch, capacity, key_heads, head_dim), and ``start``, ints (batch,), the places that
    they hold: then the call gives ``(outputs, cache)``.
    """

    def __init__(
        self,
        heads: int,
        key_heads: int,
        head_dim: int,
        fused: bool = False,
        use_bias: bool = True,
        output_bias: bool = True,
        causal: bool = False,
        scale: float | None = None,
        window: int | None = None,
        rotary: dict[str, Any] | None = None,
        kernel_initializer: InitializerLike = "glorot_uniform",
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.heads, self.key_heads, self.head_dim = heads, key_heads, head_dim
        self.fused, self.causal, self.window = fused, causal, window
        self.use_bias, self.output_bias, self.rotary = use_bias, output_bias, rotary
        self.scale = scale
        self.kernel_initializer = kernel_initializer
        wide, narrow = heads * head_dim, key_heads * head_dim
        options: dict[str, Any] = {
            "use_bias": use_bias,
            "kernel_initializer": kernel_initializer,
            "dtype": self.dtype_policy,
        }
        if fused:
            self.qkv = Dense(wide + 2 * narrow, name="qkv", **options)
        else:
            self.query = Dense(wide, name="query", **options)
            self.key = Dense(narrow, name="key", **options)
            self.value = Dense(narrow, name="value", **options)
        self.output_bias = output_bias
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        features = input_shape[-1]
        options: dict[str, Any] = {"kernel_initializer": self.kernel_initializer, "dtype": self.dtype_policy}
        self.output_dense = Dense(features, use_bias=self.output_bias, name="output", **options)
        for layer in [self.qkv] if self.fused else [self.query, self.key, self.value]:
            layer.build((None, None, features))
        self.output_dense.build((None, None, self.heads * self.head_dim))

    def call(self, inputs: Tensor, mask: Tensor | None = None, cache: Cache = None, start: Tensor | None = None) -> Any:
        query, key, value = self._projected(inputs)
        batch, steps = ops.shape(query)[0], ops.shape(query)[1]
        places = ops.arange(steps, dtype="int32")
        if cache is not None:
            assert start is not None
            places = ops.expand_dims(start, 1) + places
        if self.rotary is not None:
            angles = rotary_angles(places, self.head_dim, **self.rotary)
            query, key = turned(query, angles), turned(key, angles)
        if cache is None:
            found = self._attend(query, key, value, self._seen(places, ops.arange(steps, dtype="int32"), mask))
        else:
            keys, values = _written(cache[0], key, places), _written(cache[1], value, places)
            sources = ops.arange(ops.shape(keys)[1], dtype="int32")
            found = self._attend(query, keys, values, self._seen(places, sources, mask))
            cache = (keys, values)
        outputs = self.output_dense(ops.reshape(found, (batch, steps, self.heads * self.head_dim)))
        return outputs if cache is None else (outputs, cache)

    def _projected(self, inputs: Tensor) -> list[Tensor]:
        """Return queries, keys and values by heads."""
        if self.fused:
            wide, narrow = self.heads * self.head_dim, self.key_heads * self.head_dim
            parts = ops.split(self.qkv(inputs), [wide, wide + narrow], axis=-1)
        else:
            parts = [self.query(inputs), self.key(inputs), self.value(inputs)]
        batch, steps = ops.shape(inputs)[0], ops.shape(inputs)[1]
        heads = (self.heads, self.key_heads, self.key_heads)
        return [
            ops.reshape(part, (batch, steps, count, self.head_dim)) for part, count in zip(parts, heads, strict=True)
        ]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None) -> Tensor:
        scale = 1 / math.sqrt(self.head_dim) if self.scale is None else self.scale
        return ops.dot_product_attention(query, key, value, mask=seen, scale=scale)

    def _seen(self, targets: Tensor, sources: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return a mask of the sources that each target sees, (batch or 1, 1, targets, sources); None for all."""
        seen = None
        if self.causal:
            back = ops.expand_dims(targets, -1) - sources
            seen = ops.greater_equal(back, 0)
            if self.window is not None:
                seen = ops.logical_and(seen, ops.less(back, self.window))
            seen = ops.expand_dims(seen, -3) if len(seen.shape or ()) == 3 else ops.expand_dims(seen, (0, 1))
        if mask is None:
            return seen
        counts = ops.cast(mask, "bool")[:, None, None, :]
        return counts if seen is None else ops.logical_and(seen, counts)

    def get_config(self) -> dict[str, Any]:
        own = {
            name: getattr(self, name)
            for name in (
                "heads",
                "key_heads",
                "head_dim",
                "fused",
                "use_bias",
                "output_bias",
                "causal",
                "scale",
                "window",
                "rotary",
            )
        }
        return {**super().get_config(), **own}


def _written(cache: Tensor, new: Tensor, places: Tensor) -> Tensor:
    """Return a cache (batch, capacity, ...) with what is new at `places` (batch, steps) of it.

    Steps beyond the capacity are left out where there are several. A single one must be within it, and is written so
    that a decoder need not copy the cache.
    """
    if (new.shape or ())[1:2] == (1,):
        indices = ops.stack([ops.arange(ops.shape(cache)[0], dtype="int32"), places[:, 0]], axis=1)
        return ops.scatter_update(cache, indices, new[:, 0])
    hit = ops.equal(ops.expand_dims(places, -1), ops.arange(ops.shape(cache)[1], dtype="int32"))
    spread = ops.einsum("bsc,bshd->bchd", ops.cast(hit, new.dtype), new)
    taken = ops.any(hit, axis=1)
    return ops.where(taken[:, :, None, None], spread, cache)


def rotary_angles(places: TensorLike, features: int, base: float, scaling: dict[str, Any] | None = None) -> Tensor:
    """Return the angles by which pairs of features are turned, (steps or batch x steps, features / 2).

    Args:
        places: ints (steps,) or (batch, steps).
        features: of a head.
        base: the wave lengths go up to about ``2 pi base``.
        scaling: settings of the kinds "linear" and "llama3"; None for the default.

    Source: Su et al., 2021; for "llama3" the Llama 3.1 model card.
    """
    waves = base ** (-ops.arange(0, features, 2, dtype="float32") / features)
    if scaling is not None:
        waves = _scaled_waves(waves, scaling)
    return ops.expand_dims(ops.cast(places, "float32"), -1) * waves


def _scaled_waves(waves: Tensor, scaling: dict[str, Any]) -> Tensor:
    factor = scaling["factor"]
    if scaling["kind"] == "linear":
        return waves / factor
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original = scaling["original_max_position_embeddings"]
    turns = original * waves / (2 * math.pi)  # within the length that it was trained with
    part = ops.clip((turns - low) / (high - low), 0.0, 1.0)
    return waves / factor * (1 - part) + waves * part


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Return heads (batch, steps, heads, features) with pairs (i, i + features / 2) turned by angles."""
    angles = ops.expand_dims(angles, -2)
    if len(angles.shape or ()) == 3:
        angles = ops.expand_dims(angles, 0)
    first, second = ops.split(x, 2, axis=-1)
    cosines, sines = ops.cast(ops.cos(angles), x.dtype), ops.cast(ops.sin(angles), x.dtype)
    return ops.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
