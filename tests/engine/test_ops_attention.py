"""Dot product attention against sums written out head by head: masks, shared heads, dtypes, gradients, errors."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine import ops
from anabranch.engine.graph import Graph, Placeholder, TensorSpec
from anabranch.engine.session import Session
from anabranch.engine.testing import check_gradients

rng = np.random.default_rng(0)


def evaluate(function: Any, *arrays: Any, known: Any = True) -> Any:
    """`function` of tensors with the values of `arrays`, whose shapes are known, or only their ranks and heads."""
    with Graph().as_default() as graph:
        shapes = [a.shape if known else (None, None, a.shape[2], None) for a in arrays]
        inputs = [
            graph.add(Placeholder(TensorSpec(shape, a.dtype)), (), "x").outputs[0]
            for shape, a in zip(shapes, arrays, strict=True)
        ]
        return Session().run(function(*inputs), dict(zip(inputs, arrays, strict=True)))


def draw(*shape: int) -> Any:
    return rng.normal(size=shape)


def attended(query: Any, key: Any, value: Any, scale: float, bias: Any = 0.0, mask: Any = True, cap: Any = None) -> Any:
    """One sum for each sample, target and head."""
    batch, targets, heads, _ = query.shape
    sources, key_heads = key.shape[1:3]
    bias, mask = (np.broadcast_to(x, (batch, heads, targets, sources)) for x in (bias, mask))
    result = np.zeros((batch, targets, heads, value.shape[-1]))
    for b, t, h in np.ndindex(batch, targets, heads):
        shared = h // (heads // key_heads)
        logits = key[b, :, shared] @ query[b, t, h] * scale
        logits = cap * np.tanh(logits / cap) if cap else logits
        logits = np.where(mask[b, h, t], logits + bias[b, h, t], -1e30)
        weights = np.exp(logits - logits.max())
        result[b, t, h] = weights / weights.sum() @ value[b, :, shared]
    return result


lengths = st.integers(1, 4)


@given(lengths, lengths, lengths, st.sampled_from([(1, 1), (3, 3), (4, 2), (4, 1), (6, 2)]), lengths, st.booleans())
def test_attention(batch: int, targets: int, sources: int, heads: Any, size: int, known: bool):
    query = draw(batch, targets, heads[0], size)
    key, value = draw(batch, sources, heads[1], size), draw(batch, sources, heads[1], size)
    result = evaluate(ops.dot_product_attention, query, key, value, known=known)
    np.testing.assert_allclose(result, attended(query, key, value, 1 / math.sqrt(size)), rtol=1e-9, atol=1e-12)


@given(
    st.sampled_from([(2, 3, 4, 5), (1, 3, 4, 5), (4, 5), (2, 1, 1, 5), (5,)]),
    st.sampled_from([None, (2, 3, 4, 5), (1, 1, 4, 5), (2, 1, 1, 5)]),
    st.booleans(),
    st.sampled_from([None, 0.3]),
    st.sampled_from([1, 3]),
)
def test_attention_with_bias_and_masks(bias_shape: Any, mask_shape: Any, causal: bool, scale: Any, key_heads: int):
    query, key, value = draw(2, 4, 3, 2), draw(2, 5, key_heads, 2), draw(2, 5, key_heads, 2)
    bias = draw(*bias_shape)
    mask = None if mask_shape is None else rng.uniform(size=mask_shape) > 0.3
    counts = np.tril(np.ones((4, 5), bool)) if causal else np.ones((4, 5), bool)
    counts = counts if mask is None else counts & mask

    def attend(q: Any, k: Any, v: Any) -> Any:
        return ops.dot_product_attention(q, k, v, bias, mask, scale, causal)

    expected = attended(query, key, value, scale or 1 / math.sqrt(2), bias, counts)
    for known in (True, False):
        np.testing.assert_allclose(evaluate(attend, query, key, value, known=known), expected, rtol=1e-9, atol=1e-12)


def test_attention_of_unknown_heads():
    query, key, value = draw(2, 3, 4, 5), draw(2, 6, 4, 5), draw(2, 6, 4, 5)
    with Graph().as_default() as graph:
        inputs = [
            graph.add(Placeholder(TensorSpec((None,) * 4, a.dtype)), (), "x").outputs[0] for a in (query, key, value)
        ]
        result = ops.dot_product_attention(*inputs, is_causal=True)
        found = Session().run(result, dict(zip(inputs, (query, key, value), strict=True)))
    expected = attended(query, key, value, 1 / math.sqrt(5), mask=np.tril(np.ones((3, 6), bool)))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_causal_target_sees_no_later_source():
    query, key, value = draw(1, 4, 1, 3), draw(1, 4, 1, 3), draw(1, 4, 1, 3)

    def attend(k: Any, v: Any) -> Any:
        return evaluate(lambda q: ops.dot_product_attention(q, k, v, is_causal=True), query)

    changed = [x.copy() for x in (key, value)]
    for x in changed:
        x[:, 2:] = 99
    np.testing.assert_array_equal(attend(*changed)[:, :2], attend(key, value)[:, :2])
    np.testing.assert_allclose(attend(key, value)[:, 0], value[:, 0])


def test_where_all_is_masked_all_count_alike():
    query, key, value = (draw(1, 2, 1, 3).astype("float32") for _ in range(3))
    result = evaluate(lambda q: ops.dot_product_attention(q, key, value, mask=np.zeros((2, 2), bool)), query)
    np.testing.assert_allclose(result, np.broadcast_to(value.mean(1, keepdims=True), result.shape), rtol=1e-5)


def test_soft_cap():
    query, key, value = 9 * draw(1, 2, 2, 3), draw(1, 4, 2, 3), draw(1, 4, 2, 3)
    result = evaluate(lambda q: ops.dot_product_attention(q, key, value, attn_logits_soft_cap=2.0), query)
    np.testing.assert_allclose(result, attended(query, key, value, 1 / math.sqrt(3), cap=2.0), rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_the_result_has_the_dtype_of_the_inputs(dtype: Any):
    query, key, value = (draw(2, 3, 2, 4).astype(dtype) for _ in range(3))
    result = evaluate(ops.dot_product_attention, query, key, value)
    assert result.dtype == dtype
    wide, keys, values = (x.astype("float64") for x in (query, key, value))
    np.testing.assert_allclose(result.astype("float64"), attended(wide, keys, values, 0.5), rtol=0.05, atol=0.05)
    mixed = evaluate(ops.dot_product_attention, query, key.astype("float64"), value)
    assert mixed.dtype == np.float64


@pytest.mark.parametrize("scale", [None, 0.01])
@pytest.mark.parametrize("heads", [1, 2])
def test_products_beyond_float16_that_are_scaled_into_it(heads: int, scale: float | None):
    keys = np.full((1, 3, 1, 64), 50, "float16")
    keys[0, 1] = 49
    queries = np.full((1, 2, heads, 64), 50, "float16")  # 50 * 50 * 64 is more than 65504
    wide, narrow = (x.astype("float64") for x in (queries, np.repeat(keys, heads, 2)))
    result = evaluate(lambda q, k: ops.dot_product_attention(q, k, k, scale=scale), queries, keys)
    np.testing.assert_allclose(result, attended(wide, narrow, narrow, scale or 0.125), rtol=0.01)


@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
@pytest.mark.parametrize("causal", [True, False])
def test_gradients(heads: Any, causal: bool):
    def attend(query: Any, key: Any, value: Any, bias: Any, scale: Any) -> Any:
        return ops.dot_product_attention(query, key, value, bias, scale=scale, is_causal=causal)

    arrays = [draw(2, 3, heads[0], 2), draw(2, 3, heads[1], 2), draw(2, 3, heads[1], 3), draw(3, 3), np.float64(0.7)]
    assert check_gradients(attend, arrays)


def test_empty_inputs():
    for shape in ((0, 3, 2, 4), (2, 0, 2, 4)):
        query, key = draw(*shape), draw(shape[0], 3, 2, 4)
        assert evaluate(ops.dot_product_attention, query, key, key).shape == shape


def test_attention_refuses():
    x = np.zeros((2, 3, 4, 5), "float32")
    with Graph().as_default():
        with pytest.raises(ValueError, match=r"key must be \[batch, length, heads, size\]; got shape \[3,4,5\]"):
            ops.dot_product_attention(x, x[0], x)
        with pytest.raises(ValueError, match="the 4 heads of the query must be a multiple of the 3 of the key"):
            ops.dot_product_attention(x, x[:, :, :3], x[:, :, :3])
        with pytest.raises(ValueError, match=r"flash_attention=True is not supported. Leave it None or False"):
            ops.dot_product_attention(x, x, x, flash_attention=True)
