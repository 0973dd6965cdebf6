"""Imported ONNX models that are quantised: which products are of integers, their errors, files, servables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is an optional dependency")

import anabranch as ab  # noqa: E402
from anabranch import quantizers  # noqa: E402
from anabranch.layers.core.quantized_form import RoundedWeight  # noqa: E402

UNITS = 24
ROWS = np.random.default_rng(1).normal(size=(32, UNITS)).astype("float32")


def proto(nodes: list[Any], shape: Any = ("batch", UNITS), **weights: tuple[int, ...]) -> Any:
    """A model from `x` to `y`; random weights have the shapes that are given."""
    helper, generator = onnx.helper, np.random.default_rng(0)
    arrays = {key: generator.normal(size=size).astype("float32") / 5 for key, size in weights.items()}
    held = [onnx.numpy_helper.from_array(array, key) for key, array in arrays.items()]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def node(op_type: str, inputs: str, output: str = "y", **attributes: Any) -> Any:
    return onnx.helper.make_node(op_type, inputs.split(), [output], **attributes)


SQUARE = (UNITS, UNITS)
# The nodes, the shapes of weights, and the axes of outputs of those that are rounded.
PRODUCTS: dict[str, tuple[Any, dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]] = {
    "MatMul": (lambda: [node("MatMul", "x w")], {"w": (UNITS, 16)}, {"w": (-1,)}),
    "Gemm": (lambda: [node("Gemm", "x w b")], {"w": (UNITS, 16), "b": (16,)}, {"w": (-1,)}),
    "Gemm, transposed, as torch writes Linear": (
        lambda: [node("Gemm", "x w b", transB=1)],
        {"w": (16, UNITS), "b": (16,)},
        {"w": (-2,)},
    ),
    "Gemm, scaled": (
        lambda: [node("Gemm", "x w b", transB=1, alpha=0.5, beta=2.0)],
        {"w": (16, UNITS), "b": (16,)},
        {"w": (-2,)},
    ),
    "Gemm, rows transposed": (
        lambda: [node("Transpose", "x", "t"), node("Gemm", "t w", transA=1, transB=1)],
        {"w": (16, UNITS)},
        {"w": (-2,)},
    ),
    "Transpose, MatMul": (
        lambda: [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t")],
        {"w": (16, UNITS)},
        {"w": (-2,)},
    ),
    "Transpose, Gemm, transposed": (
        lambda: [node("Transpose", "w", "t"), node("Gemm", "x t", transB=1)],
        {"w": (UNITS, 16)},
        {"w": (-1,)},
    ),
    "Identity, MatMul": (
        lambda: [node("Identity", "w", "same"), node("MatMul", "x same")],
        {"w": (UNITS, 16)},
        {"w": (-1,)},
    ),
    "both ways": (
        lambda: [node("MatMul", "x w", "h"), node("Gemm", "h w", transB=1)],
        {"w": SQUARE},
        {"w": (-1,)},
    ),
    "shared with other operators": (
        lambda: [
            node("Gemm", "x w", "p", transB=1),
            node("Transpose", "w", "t"),
            node("Add", "w t", "sum"),
            node("ReduceSum", "sum axis", "total", keepdims=0),
            node("Add", "p total"),
        ],
        {"w": SQUARE},
        {"w": (-2,)},
    ),
    "on the left, and elements": (
        lambda: [node("MatMul", "v x", "a"), node("Mul", "a u")],
        {"v": (32, 32), "u": (32, UNITS)},
        {},
    ),
}


def model_of(name: str) -> Any:
    make, shapes, _ = PRODUCTS[name]
    found = proto(make(), **shapes)
    if any("axis" in each.input for each in found.graph.node):
        found.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0], "int64"), "axis"))
    return ab.Sequential([ab.Input((UNITS,), name="x"), ab.onnx.load(found, trainable=True)])


def error(found: Any, wanted: Any) -> float:
    return float(np.sqrt(np.mean((found - wanted) ** 2)) / wanted.std())


@pytest.mark.parametrize("name", PRODUCTS)
def test_weights_that_rows_are_multiplied_by_are_rounded(name: str):
    model, rounded = model_of(name), PRODUCTS[name][2]
    layer, wanted = model.layers[0], model.predict(ROWS, verbose=0)
    if not rounded:
        with pytest.warns(UserWarning, match="multiplies no matrix by rows"):
            assert model.quantize("int8", include="all") == {layer.name: "multiplies no matrix by rows"}
        return
    assert model.quantize("int8", include="all") == {layer.name: "int8"}
    found = {key: each.kept for key, each in layer.onnx_weights.items() if isinstance(each, RoundedWeight)}
    assert found == rounded
    assert 0 < error(model.predict(ROWS, verbose=0), wanted) < 0.03
    np.testing.assert_allclose(model(ROWS).numpy(), model.predict(ROWS, verbose=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("transposed", [False, True])
def test_products_are_of_rounded_rows_and_rounded_matrices(transposed: bool):
    model = model_of("Gemm, transposed, as torch writes Linear" if transposed else "MatMul")
    matrix = model.layers[0].onnx_weights["w"].numpy()
    matrix = matrix.T if transposed else matrix
    bias = model.layers[0].onnx_weights["b"].numpy() if transposed else 0
    model.quantize("int8", include="all")
    scale = 127 / (np.abs(matrix).max(axis=0) + 1e-7)
    high = 127 / (np.abs(ROWS).max(axis=1, keepdims=True) + 1e-7)
    sums = np.rint(ROWS * high).astype("int64") @ np.rint(matrix * scale).astype("int64")
    np.testing.assert_allclose(model.predict(ROWS, verbose=0), sums / (high * scale) + bias, rtol=1e-4, atol=1e-5)


def test_rows_of_more_axes_and_weights_inside_of_branches_and_loops():
    info = onnx.helper.make_tensor_value_info
    taken = onnx.helper.make_graph(
        [node("MatMul", "x w", "inner")], "b", [], [info("inner", onnx.TensorProto.FLOAT, None)]
    )
    weight_itself = onnx.helper.make_graph(
        [node("Identity", "w", "inner")], "b", [], [info("inner", onnx.TensorProto.FLOAT, None)]
    )
    model = proto(
        [
            node("ReduceSum", "x", "total", keepdims=0),
            node("Greater", "total limit", "is_large"),
            node("If", "is_large", then_branch=taken, else_branch=weight_itself),
        ],
        ("batch", "length", UNITS),
        w=SQUARE,
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0, "float32"), "limit"))
    layer = ab.onnx.load(model)
    whole = ab.Sequential([ab.Input((None, UNITS), name="x"), layer])
    x = np.abs(ROWS).reshape(4, 8, UNITS)
    matrix = layer.onnx_weights["w"].numpy()
    np.testing.assert_allclose(whole.predict(x, verbose=0), x @ matrix, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(whole(-x)), matrix)
    whole.quantize("int8", include="all")
    assert error(whole.predict(x, verbose=0), x @ matrix) < 0.03
    assert error(np.asarray(whole(-x)), matrix) < 0.03


def two_layers() -> Any:
    nodes = [node("Gemm", "x w b", "h", transB=1), node("Relu", "h", "r"), node("MatMul", "r u", "p"), node("Neg", "p")]
    return ab.onnx.load(proto(nodes, w=(32, UNITS), b=(32,), u=(32, 5)), trainable=True, name="imported")


def sequential() -> Any:
    return ab.Sequential([ab.Input((UNITS,), name="x"), two_layers()])


def functional() -> Any:
    x = ab.Input((UNITS,), name="x")
    return ab.Model(x, ab.layers.Dense(5, name="head")(two_layers()({"x": x})))


@pytest.mark.parametrize("make", [sequential, functional])
def test_quantised_model_is_saved_copied_served_and_exported(make: Any, tmp_path: Path):
    ab.utils.set_random_seed(1)
    model = make()
    plain = model.predict(ROWS, verbose=0)
    floats = ab.models.clone_model(model)
    floats.set_weights(model.get_weights())
    assert model.quantize("int8", include="all")["imported"] == "int8"
    wanted = model.predict(ROWS, verbose=0)
    assert 0 < error(wanted, plain) < 0.03
    errors = quantizers.report(floats, model, ROWS)
    assert 0 < errors["imported"] < 0.03
    with pytest.raises(ValueError, match="already quantized"):
        model.quantize("int8", include="all")

    model.save(tmp_path / "model.keras")
    again = ab.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(ROWS, verbose=0), wanted)
    model.save_weights(tmp_path / "model.weights.h5")
    copy = ab.models.clone_model(model)
    copy.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(copy.predict(ROWS, verbose=0), wanted)

    model.export(tmp_path / "served", verbose=False)
    np.testing.assert_allclose(ab.serving.load(tmp_path / "served")(ROWS), wanted, rtol=1e-5, atol=1e-6)

    model.export(tmp_path / "again.onnx", "onnx", verbose=False)
    written = onnx.load(tmp_path / "again.onnx")
    assert sum(each.op_type == "MatMulInteger" for each in written.graph.node) >= 2
    ab.onnx.check(model, tmp_path / "again.onnx", ROWS)
    back = ab.onnx.load(tmp_path / "again.onnx")
    np.testing.assert_allclose(np.asarray(back(ROWS)), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("perm", [[9, 2, 0, 1], [0, 0, 0, 0], [0]])
def test_a_transposed_kernel_whose_axes_make_no_sense_is_an_error_of_its_node(perm: list[int]):
    nodes = [node("Transpose", "w", "t", perm=perm), node("Conv", "x t")]
    layer = ab.onnx.load(proto(nodes, ("batch", 4, 7, 7), w=(3, 3, 4, 6)))
    with pytest.raises(ab.onnx.OnnxError, match=r"Node 't' \(Transpose\)"):
        layer(np.zeros((1, 4, 7, 7), "float32"))


# The nodes, the shape of the kernel, the axis of its outputs.
CONVOLUTIONS: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "Conv": (lambda: [node("Conv", "x w b", pads=[1, 1, 1, 1])], (6, 4, 3, 3), -4),
    "Conv, groups": (lambda: [node("Conv", "x w b", group=2)], (6, 2, 3, 3), -4),
    "Conv, transposed kernel": (
        lambda: [node("Transpose", "w", "t", perm=[3, 2, 0, 1]), node("Conv", "x t b")],
        (3, 3, 4, 6),
        -1,
    ),
    "ConvTranspose": (lambda: [node("ConvTranspose", "x w b", strides=[2, 2])], (4, 6, 3, 3), -3),
    "ConvTranspose, groups": (lambda: [node("ConvTranspose", "x w b", group=2)], (4, 3, 3, 3), -3),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_kernels_of_convolutions_are_rounded(name: str, tmp_path: Path):
    make, shape, axis = CONVOLUTIONS[name]
    layer = ab.onnx.load(proto(make(), ("batch", 4, 7, 7), w=shape, b=(6,)))
    model = ab.Sequential([ab.Input((4, 7, 7), name="x"), layer])
    x = np.random.default_rng(2).normal(size=(2, 4, 7, 7)).astype("float32")
    plain, kernel = model.predict(x, verbose=0), layer.onnx_weights["w"].numpy()
    assert model.quantize("int8", include="all") == {layer.name: "int8"}
    rounded = layer.onnx_weights["w"]
    summed = tuple(each for each in range(4) if each != axis + 4)
    step = np.abs(kernel).max(axis=summed, keepdims=True) / 127
    assert (np.abs(rounded.numpy() - kernel) <= 0.501 * step).all()
    wanted = model.predict(x, verbose=0)
    assert 0 < error(wanted, plain) < 0.03
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(ab.load_model(tmp_path / "model.keras").predict(x, verbose=0), wanted)
    model.export(tmp_path / "again.onnx", "onnx", verbose=False)
    ab.onnx.check(model, tmp_path / "again.onnx", x)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_weights_of_recurrent_operators_are_rounded(op_type: str, tmp_path: Path):
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type] * 6
    make = onnx.helper.make_node(op_type, ["x", "w", "r", "b"], ["y"], hidden_size=6, direction="bidirectional")
    shapes = {"w": (2, gates, 8), "r": (2, gates, 6), "b": (2, 2 * gates)}
    layer = ab.onnx.load(proto([make], ("length", 2, 8), **shapes))
    floats = {key: weight.numpy() for key, weight in layer.onnx_weights.items()}
    x = np.random.default_rng(2).normal(size=(5, 2, 8)).astype("float32")
    model = ab.Sequential([ab.Input((2, 8), name="x"), layer])
    plain = np.asarray(layer(x))
    assert model.quantize("int8", include="all") == {layer.name: "int8"}
    for key in "wr":
        rounded = layer.onnx_weights[key]
        assert isinstance(rounded, RoundedWeight)
        step = np.abs(floats[key]).max(axis=2, keepdims=True) / 127
        assert (np.abs(rounded.numpy() - floats[key]) <= 0.501 * step).all()
    np.testing.assert_array_equal(layer.onnx_weights["b"].numpy(), floats["b"])
    wanted = np.asarray(layer(x))
    assert 0 < error(wanted, plain) < 0.03
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(np.asarray(ab.load_model(tmp_path / "model.keras").layers[0](x)), wanted)
    model.export(tmp_path / "again.onnx", "onnx", verbose=False)
    ab.onnx.check(model, tmp_path / "again.onnx", x)


FRESH_PROCESS = """
import sys
import numpy as np
import anabranch as ab
assert "onnx" not in sys.modules
for name in ("floats", "int8"):
    found = ab.load_model(f"{sys.argv[1]}/{name}.keras").predict(np.load(f"{sys.argv[1]}/x.npy"), verbose=0)
    np.testing.assert_array_equal(found, np.load(f"{sys.argv[1]}/{name}.npy"))
"""


def test_a_process_that_imported_no_onnx_model_reads_the_files(tmp_path: Path):
    model = sequential()
    np.save(tmp_path / "x.npy", ROWS)
    for name in ("floats", "int8"):
        if name == "int8":
            model.quantize("int8", include="all")
        model.save(tmp_path / f"{name}.keras")
        np.save(tmp_path / f"{name}.npy", model.predict(ROWS, verbose=0))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FRESH_PROCESS, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_rounded_weights_are_frozen_and_others_train():
    model = sequential()
    layer = model.layers[0]
    model.quantize("int8", include="all")
    assert [tuple(each.shape) for each in model.trainable_weights] == [(32,)]
    floats = two_layers()
    for key, weight in floats.onnx_weights.items():
        weight.assign(layer.onnx_weights[key].numpy())
    gradients: list[Any] = []
    for each in (layer, floats):
        x = ab.Variable(ROWS)
        with ab.GradientTape() as tape:
            loss = ab.ops.sum(ab.ops.square(each(x)))
        gradients.append(tape.gradient(loss, [x, each.onnx_weights["b"]]))
    for found, wanted in zip(*gradients, strict=True):
        assert error(np.asarray(found), np.asarray(wanted)) < 0.1


def test_weights_only_stay_floats_in_products(tmp_path: Path):
    model = sequential()
    plain = model.predict(ROWS, verbose=0)
    model.quantize(config=quantizers.Int8QuantizationConfig(activation_quantizer=None), include="all")
    wanted = model.predict(ROWS, verbose=0)
    assert 0 < error(wanted, plain) < 0.03
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(ab.load_model(tmp_path / "model.keras").predict(ROWS, verbose=0), wanted)
