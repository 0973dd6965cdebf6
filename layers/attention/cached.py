"""`CachedMultiHeadAttention`: attention that remembers keys and values from call to call, for generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from .masks import both
from .multi_head import MultiHeadAttention

if TYPE_CHECKING:
    from ...engine.ops.arrays.shaping import DimLike


Cache: TypeAlias = tuple[Tensor, Tensor]
"""Keys and values."""


class CachedMultiHeadAttention(MultiHeadAttention):
    """A `MultiHeadAttention` that can keep the keys and values of the places before in a cache.

    Called without a cache it is a `MultiHeadAttention`. With one, keys and values of the new places are put into the
    cache at `cache_update_index`, and the queries see all places up to their own, and none behind. So a sequence that
    is fed in parts gives what it gives as a whole with ``use_causal_mask=True``, and each place is projected once.

    Args:
        num_heads, key_dim: see `MultiHeadAttention`, as all others.

    Call arguments: those of `MultiHeadAttention`, and ``cache``, a pair of keys ``(batch, capacity, heads, key_dim)``
    and values ``(batch, capacity, heads, value_dim)``, such as `initial_cache` gives; ``cache_update_index``, the
    number of places before those of the call: an int or scalar, or ints ``(batch,)``, one for each row. None takes the
    cache as it is, and all of it: for attention to another sequence, see `project`. ``attention_mask`` is then
    ``(batch, targets, capacity)``.

    Returns:
        Without a cache see `MultiHeadAttention`; with one ``(outputs, cache)``.

    Raises:
        ValueError: there is an index without a cache, or an option that a cache does not go with.
        IndexError, ValueError: when it runs, the cache is too small.

    Shazeer, "Fast Transformer Decoding: One Write-Head is All You Need", 2019, arXiv:1911.02150, section 2.3.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> layer = ab.layers.CachedMultiHeadAttention(num_heads=2, key_dim=4)
    >>> x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")
    >>> whole = layer(x, x, use_causal_mask=True)
    >>> cache = [np.zeros((3, 5, 2, 4), "float32")] * 2
    >>> first, cache = layer(x[:, :4], x[:, :4], cache=cache, cache_update_index=0)
    >>> last, cache = layer(x[:, 4:], x[:, 4:], cache=cache, cache_update_index=4)
    >>> bool(np.allclose(np.concatenate([first, last], axis=1), whole, atol=1e-5))
    True
    """

    def initial_cache(self, batch_size: DimLike | None, capacity: DimLike) -> Cache:
        """Return an empty cache for `capacity` places."""
        sizes = (batch_size, capacity, self.num_heads)
        return (
            ops.zeros((*sizes, self.key_dim), self.compute_dtype),
            ops.zeros((*sizes, self.value_dim), self.compute_dtype),
        )

    def project(self, value: TensorLike, key: TensorLike | None = None) -> Cache:
        """Return keys and values of a sequence, ``(batch, sources, features)``: a cache that is full."""
        value = ops.cast(ops.convert_to_tensor(value), self.compute_dtype)
        key = value if key is None else ops.cast(ops.convert_to_tensor(key), self.compute_dtype)
        return self._key_dense(key), self._value_dense(value)

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: TensorLike | None = None,
        value_mask: TensorLike | None = None,
        key_mask: TensorLike | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        cache: Cache | None = None,
        cache_update_index: TensorLike | None = None,
    ) -> Any:
        if cache is None:
            self._check(cache_update_index is None, "was given a cache_update_index without a cache")
            return super().call(
                query,
                value,
                key,
                query_mask,
                value_mask,
                key_mask,
                attention_mask,
                return_attention_scores,
                training,
                use_causal_mask,
            )
        self._check(not return_attention_scores, "gives no attention scores with a cache")
        self._check(query.ndim == 3, f"takes sequences of vectors with a cache, got query shape {query.shape}")
        keys, values = cache
        if cache_update_index is not None:
            new_keys, new_values = self.project(value, key)
            keys = _put(keys, new_keys, cache_update_index)
            values = _put(values, new_values, cache_update_index)
            seen = self._seen(query, keys, cache_update_index)
            attention_mask = seen if attention_mask is None else both(ops.cast(attention_mask, "bool"), seen)
        gate = self._gate_dense(query) if self.use_gate else None
        outputs, _ = self._compute_attention(self._query_dense(query), keys, values, attention_mask, training)
        return self._output_dense(outputs if gate is None else outputs * gate), (keys, values)

    def _seen(self, query: Tensor, keys: Tensor, index: TensorLike) -> Tensor:
        """Compute ``(batch or 1, targets, capacity)``: the places up to each target's own, and within the window."""
        targets = ops.expand_dims(_by_row(index), 1) + ops.arange(ops.shape(query)[1], dtype="int32")
        back = ops.expand_dims(targets, 2) - ops.arange(ops.shape(keys)[1], dtype="int32")
        seen = ops.greater_equal(back, 0)
        return seen if self.sliding_window is None else both(seen, ops.less(back, self.sliding_window))

    def _check(self, holds: bool, problem: str) -> None:
        if not holds:
            raise ValueError(f"Layer {self.name!r} ({type(self).__name__}) {problem}.")


def _by_row(index: TensorLike) -> Tensor:
    """Return `index` as int32, ``(batch,)`` or ``(1,)``."""
    return ops.reshape(ops.cast(ops.convert_to_tensor(index), "int32"), (-1,))


def _put(cache: Tensor, new: Tensor, index: TensorLike) -> Tensor:
    """Return the cache, ``(batch, capacity, heads, size)``, with `new` at the places from `index` on.

    Raises:
        IndexError, ValueError: when it runs, there are not as many.
    """
    place = ops.convert_to_tensor(index)
    if place.shape == ():
        return ops.slice_update(cache, ops.stack([0, ops.cast(place, "int32"), 0, 0]), new)
    rows, count, capacity = _by_row(index), ops.shape(new)[1], ops.shape(cache)[1]
    ops.assert_less_equal(
        ops.max(rows, initial=0) + count,
        capacity,
        "The cache of an attention is full: it was made for fewer places than are fed. Make it larger (max_length).",
    )
    offset = ops.arange(capacity, dtype="int32") - ops.expand_dims(rows, 1)
    takes = ops.logical_and(ops.greater_equal(offset, 0), ops.less(offset, count))
    if count != 1:
        source = ops.clip(offset, 0, count - 1)
        new = ops.take_along_axis(new, ops.expand_dims(ops.expand_dims(source, 2), 3), axis=1)
    return ops.where(ops.expand_dims(ops.expand_dims(takes, 2), 3), new, cache)
