"""Attention, RMS normalisation and rotary positions as ONNX's operators of opset 23."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.onnx_runs import assert_same, run_file

import anabranch as ab

ops = ab.ops


def op_types(path: Path) -> list[str]:
    """The types of all nodes, those in branches included."""
    import onnx

    def walk(graph: Any) -> list[str]:
        found: list[str] = []
        for node in graph.node:
            found.append(node.op_type)
            for attribute in node.attribute:
                found += walk(attribute.g)
        return found

    return walk(onnx.load(path).graph)


def compare(path: Path, feeds: dict[str, Any], values: list[dict[str, Any]], output: Any, **options: Any) -> list[str]:
    """Session and onnxruntime give the same for each of `values`; gives the types of the nodes."""
    ab.onnx.export_graph(path, feeds, {"y": output}, **{"opset_version": 23, **options})
    with ab.Session(output.graph) as session:
        for each in values:
            wanted = session.run(output, {feeds[name]: value for name, value in each.items()})
            assert_same(run_file(path, each)[0], wanted)
    return op_types(path)


def heads(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype("float32")


SIZES = [(2, 3, 4), (1, 1, 1), (0, 3, 4), (2, 0, 4), (2, 3, 0)]  # batch, targets, sources


def attention_feeds(key_heads: int = 4) -> dict[str, Any]:
    return {
        "q": ab.placeholder((None, None, 4, 6), "float32"),
        "k": ab.placeholder((None, None, key_heads, 6), "float32"),
        "v": ab.placeholder((None, None, key_heads, 5), "float32"),
    }


def attention_values(sizes: tuple[int, int, int], key_heads: int = 4) -> dict[str, Any]:
    rng, (batch, targets, sources) = np.random.default_rng(0), sizes
    return {
        "q": heads(rng, batch, targets, 4, 6),
        "k": heads(rng, batch, sources, key_heads, 6),
        "v": heads(rng, batch, sources, key_heads, 5),
    }


@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"is_causal": True}], ids=["plain", "scale", "causal"])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_attention(key_heads: int, options: dict[str, Any], tmp_path: Path) -> None:
    feeds = attention_feeds(key_heads)
    y = ops.dot_product_attention(feeds["q"], feeds["k"], feeds["v"], **options)
    values = [attention_values(sizes, key_heads) for sizes in SIZES]
    types = compare(tmp_path / "a.onnx", feeds, values, y)
    assert types.count("Attention") == 1
    assert "Softmax" not in types
    assert "MatMul" not in types


@pytest.mark.parametrize("shape", [(None, None), (1, None), (None, 1, None, None), (None, 4, None, None), (None,)])
def test_masks_of_any_shape(shape: tuple[Any, ...], tmp_path: Path) -> None:
    feeds = {**attention_feeds(), "m": ab.placeholder(shape, "bool")}
    y = ops.dot_product_attention(feeds["q"], feeds["k"], feeds["v"], mask=feeds["m"])
    values: list[dict[str, Any]] = []
    for sizes in SIZES[:-1]:
        full = (sizes[0], 4, sizes[1], sizes[2])[4 - len(shape) :]
        own = [wanted if size is None else size for wanted, size in zip(full, shape, strict=True)]
        mask = np.random.default_rng(1).random(own) > 0.5
        mask[..., :1] &= mask.size < 8  # a row, where there are several, may see nothing: all places count alike
        values.append({**attention_values(sizes), "m": mask})
    assert "Attention" in compare(tmp_path / "a.onnx", feeds, values, y)


def test_biases_and_several_masks(tmp_path: Path) -> None:
    feeds = {**attention_feeds(), "m": ab.placeholder((None, None), "bool"), "b": ab.placeholder((4, 1, 1), "float32")}
    mask = ops.reshape(feeds["m"], (-1, 1, 1, ops.shape(feeds["m"])[1]))
    y = ops.dot_product_attention(feeds["q"], feeds["k"], feeds["v"], feeds["b"], mask, is_causal=True)
    rng = np.random.default_rng(2)
    extra = {"m": np.array([[True, False, True, True], [False, False, False, False]]), "b": heads(rng, 4, 1, 1)}
    types = compare(tmp_path / "a.onnx", feeds, [{**attention_values((2, 3, 4)), **extra}], y)
    assert "Attention" in types


def test_known_sizes_need_no_branch(tmp_path: Path) -> None:
    q = ab.placeholder((2, 3, 4, 6), "float32")
    rng = np.random.default_rng(3)
    types = compare(tmp_path / "a.onnx", {"q": q}, [{"q": heads(rng, 2, 3, 4, 6)}], ops.dot_product_attention(q, q, q))
    assert "If" not in types
    assert "Attention" in types


def test_what_attention_can_not_express_stays(tmp_path: Path) -> None:
    feeds = attention_feeds()
    capped = ops.dot_product_attention(*feeds.values(), attn_logits_soft_cap=2.0)
    values = [attention_values((2, 3, 4))]
    assert "Attention" not in compare(tmp_path / "a.onnx", feeds, values, capped)
    plain = ops.dot_product_attention(*feeds.values())
    assert "Attention" not in compare(tmp_path / "b.onnx", feeds, values, plain, opset_version=22)
    halves: dict[str, Any] = {name: ab.placeholder(each.shape, "float16") for name, each in feeds.items()}
    ab.onnx.export_graph(
        tmp_path / "c.onnx",
        halves,
        {"y": ops.dot_product_attention(halves["q"], halves["k"], halves["v"])},
        opset_version=23,
    )
    assert "Attention" not in op_types(tmp_path / "c.onnx")


def test_a_single_head_of_keys_in_older_opsets(tmp_path: Path) -> None:
    feeds = attention_feeds(1)
    y = ops.dot_product_attention(*feeds.values())
    values = [attention_values(sizes, 1) for sizes in SIZES]
    assert "Attention" not in compare(tmp_path / "a.onnx", feeds, values, y, opset_version=21)


def test_weights_that_are_outputs_are_computed_once(tmp_path: Path) -> None:
    x = ab.Input((3, 8), name="x")
    outputs = ab.layers.MultiHeadAttention(2, 4)(x, x, return_attention_scores=True)
    model = ab.Model(x, list(outputs))
    path = tmp_path / "a.onnx"
    model.export(path, "onnx", verbose=False, opset_version=23)
    ab.onnx.check(model, path, heads(np.random.default_rng(4), 2, 3, 8))
    assert op_types(path).count("Softmax") == 1
    assert "Attention" not in op_types(path)


@pytest.mark.parametrize("layer", ["attention", "multi head", "grouped", "encoder", "decoder"])
def test_layers_with_attention(layer: str, tmp_path: Path) -> None:
    x = ab.Input((None, 8), name="x")
    made = {
        "attention": lambda: ab.layers.Attention(use_scale=False)([x, x], use_causal_mask=True),
        "multi head": lambda: ab.layers.MultiHeadAttention(2, 4, use_bias=False)(x, x),
        "grouped": lambda: ab.layers.GroupQueryAttention(4, 4, 2)(x, x),
        "encoder": lambda: ab.layers.TransformerEncoder(16, 2)(x),
        "decoder": lambda: ab.layers.TransformerDecoder(16, 2)(x),
    }[layer]()
    model = ab.Model(x, made)
    path = tmp_path / "a.onnx"
    model.export(path, "onnx", verbose=False, opset_version=23)
    rng = np.random.default_rng(5)
    for batch, steps in ((2, 3), (1, 1), (0, 3), (2, 0)):
        ab.onnx.check(model, path, heads(rng, batch, steps, 8))
    assert "Attention" in op_types(path)
    again = ab.onnx.load(path)
    batch = heads(rng, 2, 3, 8)
    np.testing.assert_allclose(np.asarray(again(batch)), model.predict(batch, verbose=0), 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((None, None, 6), -1), ((None, 3, 2, 6), -1), ((4, 6), -1), ((None, 3, 2, 6), (-2, -1)), ((4, 6), (-2, -1))],
)
def test_rms_normalization(shape: tuple[Any, ...], axis: Any, tmp_path: Path) -> None:
    x = ab.placeholder(shape, "float32")
    own = shape[-1:] if axis == -1 else shape[-2:]
    scale = ab.Variable(np.linspace(0.5, 2, int(np.prod(own))).reshape(own).astype("float32"))  # pyright: ignore[reportArgumentType, reportCallIssue]
    y = ops.rms_normalization(x, scale, axis, epsilon=1e-3)
    rng = np.random.default_rng(6)
    values = [{"x": heads(rng, *[size or free for size in shape])} for free in (2, 1)]
    values.append({"x": heads(rng, *[size or 0 for size in shape])})
    types = compare(tmp_path / "a.onnx", {"x": x}, values, y)
    assert types.count("RMSNormalization") == 1
    assert not {"ReduceMean", "ReduceSum"} & set(types)


def test_a_mean_over_axes_in_front_is_no_rms_normalization(tmp_path: Path) -> None:
    x = ab.placeholder((3, 6), "float32")
    scale = ab.Variable(np.ones(6, "float32"))
    y = x * ops.rsqrt(ops.mean(x * x, axis=0, keepdims=True) + 1e-3) * scale
    types = compare(tmp_path / "a.onnx", {"x": x}, [{"x": heads(np.random.default_rng(7), 3, 6)}], y)
    assert "RMSNormalization" not in types


@pytest.mark.parametrize("shape", [(None, None, 4, 6), (None, None, 6), (2, 3, 4, 6)])
def test_rotary_embedding(shape: tuple[Any, ...], tmp_path: Path) -> None:
    x = ab.placeholder(shape, "float32")
    y = ab.layers.RotaryEmbedding()(x)
    rng = np.random.default_rng(8)
    frees = [{"x": heads(rng, *[size or free for size, free in zip(shape, sizes, strict=False)])} for sizes in (
        (2, 3, 4, 6), (1, 1, 4, 6), (0, 3, 4, 6), (2, 0, 4, 6)
    )]  # fmt: skip
    values = frees if None in shape else frees[:1]
    types = compare(tmp_path / "a.onnx", {"x": x}, values, y)
    assert types.count("RotaryEmbedding") == 1


def test_positions_by_row(tmp_path: Path) -> None:
    x, places = ab.placeholder((None, None, 4, 6), "float32"), ab.placeholder((None, None), "int32")
    y = ab.layers.RotaryEmbedding()(x, positions=places)
    rng = np.random.default_rng(9)
    values = [{"x": heads(rng, 2, 3, 4, 6), "places": np.array([[0, 1, 2], [5, 6, 9]], "int32")}]
    compare(tmp_path / "a.onnx", {"x": x, "places": places}, values, y)


def test_a_language_model_is_made_of_these_operators(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 11, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "max_position_embeddings": 32, "tie_word_embeddings": False,
    }  # fmt: skip
    model = ab.pretrained.build(config)
    path = tmp_path / "llama.onnx"
    signature = [ab.InputSpec(shape=(None, None), dtype="int32", name="tokens")]
    model.export(path, "onnx", verbose=False, input_signature=signature, opset_version=23)
    for shape in ((2, 5), (1, 1), (0, 3), (2, 0)):
        ab.onnx.check(model, path, np.random.default_rng(10).integers(0, 11, shape).astype("int32"))
    types = op_types(path)
    assert [types.count(each) for each in ("Attention", "RMSNormalization", "RotaryEmbedding")] == [2, 5, 4]
