"""Quantised models as ONNX files, computed by onnxruntime and compared with the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.onnx_models import LeakyCell
from shared.onnx_runs import assert_exported, assert_same, run_file

import anabranch as ab
from anabranch import layers, quantizers
from anabranch.engine.ops.neural.quantized import quantized_matmul

X = np.random.default_rng(0).normal(size=(3, 4, 16)).astype("float32")
BATCHES = [X, X[:1, :2], X[:0]]
GROUPS = quantizers.Int4QuantizationConfig(block_size=8)
MODELS: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "dense": (lambda: layers.Dense(9), {"mode": "int8"}, "MatMulInteger"),
    "weights": (
        lambda: layers.Dense(9),
        {"config": quantizers.Int8QuantizationConfig(activation_quantizer=None)},
        "MatMul",
    ),
    "attention": (lambda: SelfAttention(), {"mode": "int8"}, "MatMulInteger"),
    "lstm": (lambda: layers.LSTM(8), {"mode": "int8", "include": "all"}, "MatMulInteger"),
    "own cell": (lambda: layers.RNN(LeakyCell(8)), {"mode": "int8", "include": "all"}, "MatMulInteger"),
    "conv": (lambda: layers.Conv1D(8, 3, padding="causal"), {"mode": "int8", "include": "all"}, "Conv"),
    "groups": (
        lambda: layers.Dense(9),
        {"config": GROUPS},
        "DequantizeLinear",
    ),
    "int4": (lambda: layers.Dense(9), {"config": quantizers.Int4QuantizationConfig(block_size=None)}, "MatMul"),
}


class SelfAttention(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, 4)

    def call(self, x: Any) -> Any:
        return self.attention(x, x)


def op_types(graph: Any) -> set[str]:
    found = {node.op_type for node in graph.node}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= op_types(attribute.g)
    return found


@pytest.mark.parametrize("opset", [20, 21])
@pytest.mark.parametrize("name", MODELS)
def test_a_quantised_model_gives_the_same_in_onnxruntime(name: str, opset: int, tmp_path: Path):
    import onnx

    make, how, op_type = MODELS[name]
    model = ab.Sequential([ab.Input((None, 16), name="x"), make()])
    model.quantize(**how)
    assert_exported(model, tmp_path, None, BATCHES, opset)
    wanted = "Gather" if (name, opset) == ("groups", 20) else op_type
    assert wanted in op_types(onnx.load(tmp_path / "model.onnx").graph)
    layer = ab.onnx.load(tmp_path / "model.onnx")
    np.testing.assert_allclose(layer(X), model.predict(X, verbose=0), rtol=1e-4, atol=1e-5)


def test_fixed_scales_are_quantise_and_dequantise_nodes(tmp_path: Path):
    import onnx

    rows = X.reshape(-1, 16)
    model = ab.Sequential(
        [ab.Input((16,), name="x"), layers.Dense(9, "relu", name="first"), layers.Dense(3, name="last")]
    )
    model.quantize("int8", calibration=quantizers.calibrate(model, rows))
    assert_exported(model, tmp_path, None, [rows, rows * 3, rows[:0]])  # larger rows are cut off alike
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert {"QuantizeLinear", "DequantizeLinear"} <= op_types(graph)
    assert "MatMulInteger" not in op_types(graph)


def test_a_row_that_is_no_number_is_none_in_onnxruntime_and_no_other_row(tmp_path: Path):
    rows = np.array([[1.0, 2.0], [np.nan, 1.0], [np.inf, 0.0], [0.0, 0.0]], "float32")
    model = ab.Sequential([ab.Input((2,), name="x"), layers.Dense(3)])
    model.quantize("int8")
    model.export(tmp_path / "model.onnx", "onnx", verbose=False)
    (found,) = run_file(tmp_path / "model.onnx", {"x": rows})
    wanted = model.predict(rows, verbose=0)
    assert np.isnan(wanted).any(axis=1).tolist() == [False, True, True, False]
    assert_same(found, wanted)


def test_integers_of_four_bits_take_half_a_byte(tmp_path: Path):
    sizes: list[int] = []
    for mode in ("int8", "int4"):
        model = ab.Sequential([ab.Input((256,), name="x"), layers.Dense(256)])
        model.quantize(mode)
        model.export(tmp_path / "model.onnx", "onnx", verbose=False)
        sizes.append((tmp_path / "model.onnx").stat().st_size)
    assert sizes[0] < 256 * 256 * 1.2
    assert sizes[1] < 256 * 256 * 0.7


@pytest.mark.parametrize("make", [lambda: layers.Dense(9), lambda: layers.RNN(LeakyCell(8))])
def test_factors_of_integer_products_are_unsigned(make: Callable[[], Any], tmp_path: Path):
    import onnx  # whose runtime multiplies signed rows one number at a time on x86

    model = ab.Sequential([ab.Input((None, 16), name="x"), make()])
    model.quantize("int8", include="all")
    model.export(tmp_path / "model.onnx", "onnx", verbose=False)
    graphs = [onnx.load(tmp_path / "model.onnx").graph]
    kinds: dict[str, int] = {}
    for graph in graphs:
        kinds |= {each.name: each.data_type for each in graph.initializer}
        graphs += [each.g for node in graph.node for each in node.attribute if each.HasField("g")]
    products = [node for graph in graphs for node in graph.node if node.op_type == "MatMulInteger"]
    rows = {node.output[0]: node for graph in graphs for node in graph.node if node.op_type == "Cast"}
    unsigned = onnx.TensorProto.UINT8
    assert products
    for node in products:
        assert [kinds[node.input[1]], rows[node.input[0]].attribute[0].i] == [unsigned, unsigned]
    assert onnx.TensorProto.INT8 not in kinds.values()


@pytest.mark.parametrize("inputs_scale", [None, 127.0])
def test_integers_at_their_limits_are_multiplied_exactly(inputs_scale: float | None, tmp_path: Path):
    rng = np.random.default_rng(0)
    kernel = rng.choice(np.array([-128, -127, 127], "int8"), (64, 24))
    rows = rng.choice(np.array([-1.0, 1.0], "float32"), (5, 64))
    with ab.Graph().as_default():
        x: Any = ab.placeholder((None, 64), "float32")
        fixed = None if inputs_scale is None else ab.constant(np.float32(inputs_scale))
        y = quantized_matmul(x, ab.Variable(kernel, name="kernel"), ab.constant(np.full(24, 127, "float32")), fixed)
        ab.onnx.export_graph(tmp_path / "model.onnx", {"x": x}, {"y": y})
    (found,) = run_file(tmp_path / "model.onnx", {"x": rows})
    exact = (rows * 127).astype("int64") @ kernel.astype("int64")
    np.testing.assert_allclose(found, exact / (127 * 127), rtol=1e-6)


@pytest.mark.parametrize(("mode", "wanted"), [("int8", "MatMulIntegerToFloat"), ("int4", "MatMulNBits")])
def test_onnxruntime_computes_by_integers_where_a_bias_follows(mode: str, wanted: str, tmp_path: Path):
    import onnx
    import onnxruntime

    rows = np.random.default_rng(0).normal(size=(3, 256)).astype("float32")
    model = ab.Sequential([ab.Input((256,), name="x"), layers.Dense(64, "relu", name="first"), layers.Dense(8)])
    scales = quantizers.calibrate(model, rows) if mode == "int8" else None
    model.quantize(mode, calibration=scales)
    assert_exported(model, tmp_path, None, [rows])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), options)
    found = [node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node]
    assert found.count(wanted) == 2, found
