"""Scaled dot product attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...common import dtypes
from ...common.dtypes import result_type
from ...graph.spec import shape_text
from ..arrays.creation import arange
from ..arrays.shaping import dim, expand_dims, reshape
from ..base import Tensor, TensorLike, cast, convert_to_tensor, promote
from ..linear_algebra.einsum import einsum
from ..math.comparison import greater_equal, where
from ..math.mathematics import rsqrt
from ..math.trigonometry import tanh
from .nn import softmax

# What a masked logit is: so low that its weight is 0, unless all of a row are masked, which then have equal weights.
_MASKED = -0.7 * 3.38953e38


def dot_product_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    bias: TensorLike | None = None,
    mask: TensorLike | None = None,
    scale: TensorLike | None = None,
    is_causal: bool = False,
    flash_attention: bool | None = None,
    attn_logits_soft_cap: float | None = None,
) -> Tensor:
    """Compute ``softmax(query key^T scale + bias) value``, for each head.

    Args:
        query: [batch, targets, heads, size].
        key: [batch, sources, key heads, size]. Where there are fewer of them, each serves as many heads in a row.
        value: [batch, sources, key heads, value size].
        bias: is added to the logits; broadcasts to [batch, heads, targets, sources].
        mask: bools, True where a source counts; broadcasts in the same way. Where none counts, all count alike.
        scale: of the logits; ``1 / sqrt(size)`` by default.
        is_causal: a target looks at no later source than at its own place.
        flash_attention: None or False: there is no other way of computing.
        attn_logits_soft_cap: scaled logits become ``cap * tanh(logits / cap)``, which never exceeds the cap.

    Returns:
        [batch, targets, heads, value size], in the common dtype. The softmax is computed in float32 at least.

    Raises:
        ValueError: the shapes do not fit, or flash attention is asked for.

    >>> import anabranch as ab
    >>> query, key = ab.ops.ones((2, 4, 8, 16)), ab.ops.ones((2, 6, 2, 16))
    >>> ab.ops.dot_product_attention(query, key, key).shape
    (2, 4, 8, 16)

    Source: A. Vaswani et al., "Attention is all you need" (2017); shared key heads: J. Ainslie et al., "GQA: training
    generalized multi-query transformer models from multi-head checkpoints" (2023).
    """
    if flash_attention:
        raise ValueError("dot_product_attention: flash_attention=True is not supported. Leave it None or False.")
    queries, keys, values = promote(query, key, value, floating=True)
    groups = _groups(queries, keys, values)
    logits = _logits(queries, keys, groups, scale)
    if attn_logits_soft_cap is not None:
        logits = attn_logits_soft_cap * tanh(logits / attn_logits_soft_cap)
    if bias is not None:
        logits = logits + convert_to_tensor(bias, logits.dtype)
    if mask is not None:
        logits = where(mask, logits, np.asarray(_MASKED, logits.dtype))
    if is_causal:
        targets, sources = arange(dim(logits, 2)), arange(dim(logits, 3))
        seen = greater_equal(expand_dims(targets, 1), sources)
        logits = where(seen, logits, np.asarray(_MASKED, logits.dtype))
    weights = cast(softmax(logits, axis=-1), values.dtype)
    return _weighted(weights, values, groups)


def _groups(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Return how many heads of the query share one of the key; 1 where a number of heads is not known."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.shape is None or len(tensor.shape) != 4:
            raise ValueError(
                f"dot_product_attention: {name} must be [batch, length, heads, size]; "
                f"got shape {shape_text(tensor.shape)}."
            )
    heads, key_heads = dim(query, 2), dim(key, 2)
    if not isinstance(heads, int) or not isinstance(key_heads, int) or heads == key_heads:
        return 1
    if key_heads == 0 or heads % key_heads:
        raise ValueError(
            f"dot_product_attention: the {heads} heads of the query must be a multiple of the {key_heads} of the key; "
            f"got query {shape_text(query.shape)} and key {shape_text(key.shape)}."
        )
    return heads // key_heads


def _logits(query: Tensor, key: Tensor, groups: int, scale: Any) -> Tensor:
    """Return logits [batch, heads, targets, sources], in float32 at least.

    Queries of float16 are scaled before the products, which float16 holds only up to 65504.
    """
    is_small = query.dtype == np.float16
    if is_small:
        query = cast(_scaled(query, key, scale), query.dtype)
    if groups == 1:
        products = einsum("btnh,bsnh->bnts", query, key)
    else:
        batch, targets, heads, size = (dim(query, axis) for axis in range(4))
        grouped = reshape(query, (batch, targets, heads // groups, groups, size))
        products = reshape(einsum("btkgh,bskh->bkgts", grouped, key), (batch, heads, targets, dim(key, 1)))
    logits = cast(products, result_type(products.dtype, dtypes.float32))
    return logits if is_small else _scaled(logits, key, scale)


def _scaled(x: Tensor, key: Tensor, scale: Any) -> Tensor:
    """Return `x` times `scale`; if that is None, over the root of the size of keys."""
    wide = result_type(x.dtype, dtypes.float32)
    if scale is not None:
        return x * convert_to_tensor(scale, wide)
    size = dim(key, 3)
    if isinstance(size, int):
        return x * (1.0 / math.sqrt(size)) if size else x
    return x * rsqrt(cast(size, wide))


def _weighted(weights: Tensor, value: Tensor, groups: int) -> Tensor:
    """Return the sums of the values times their weights, [batch, targets, heads, value size]."""
    if groups == 1:
        return einsum("bnts,bsnh->btnh", weights, value)
    batch, heads, targets, sources = (dim(weights, axis) for axis in range(4))
    grouped = reshape(weights, (batch, heads // groups, groups, targets, sources))
    return reshape(einsum("bkgts,bskh->btkgh", grouped, value), (batch, targets, heads, dim(value, 3)))


__all__ = ["dot_product_attention"]
