"""Exported models imported again, as layers that compute, train, are saved, served and exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.onnx_models import LENGTHS, RECURRENT, SIGNATURE

onnx = pytest.importorskip("onnx", reason="onnx is an optional dependency")

import anabranch as ab  # noqa: E402
from anabranch import layers, optim  # noqa: E402


def exported(model: Any, folder: Path, signature: Any = SIGNATURE) -> Path:
    path = folder / "model.onnx"
    model.export(path, "onnx", verbose=False, input_signature=signature)
    return path


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_model_again(name: str, tmp_path: Path) -> None:
    ab.utils.set_random_seed(1)
    model = ab.Sequential(RECURRENT[name]())
    layer = ab.onnx.load(exported(model, tmp_path))
    for batch in LENGTHS:
        found, wanted = np.asarray(layer(batch)), np.asarray(model(batch))
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)
    assert layer.trainable_weights == []
    assert len(layer.weights) == len(model.weights)


def images() -> ab.Model:
    return ab.Sequential(
        [
            ab.Input((8, 8, 3), name="x"),
            layers.Conv2D(4, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.DepthwiseConv2D(3),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3, "softmax"),
        ]
    )


def test_convnet_again(tmp_path: Path) -> None:
    ab.utils.set_random_seed(2)
    model = images()
    layer = ab.onnx.load(exported(model, tmp_path, None))
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    np.testing.assert_allclose(np.asarray(layer(x)), np.asarray(model(x)), 1e-4, 1e-5)


def test_imported_model_trains_is_saved_served_and_exported(tmp_path: Path) -> None:
    ab.utils.set_random_seed(3)
    source = ab.Sequential(RECURRENT["custom cell, last"]())
    layer = ab.onnx.load(exported(source, tmp_path), trainable=True)
    model = ab.Sequential([layer])
    x = np.random.default_rng(0).normal(size=(16, 5, 8)).astype("float32")
    y = np.arange(16) % 4
    model.compile(optim.Adam(0.05), "sparse_categorical_crossentropy")
    history = model.fit(x, y, epochs=15, verbose=0)
    assert history.history["loss"][-1] < 0.9 * history.history["loss"][0]
    wanted = model.predict(x, verbose=0)

    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(ab.load_model(tmp_path / "model.keras").predict(x, verbose=0), wanted)

    signature = [ab.InputSpec(shape=(None, None, 8), dtype="float32", name="x")]
    model.export(tmp_path / "served", verbose=False, input_signature=signature)
    served = ab.serving.load(tmp_path / "served")
    np.testing.assert_allclose(served(x), wanted, 1e-5, 1e-6)

    model.export(tmp_path / "again.onnx", "onnx", verbose=False, input_signature=signature)
    for batch in LENGTHS:
        ab.onnx.check(model, tmp_path / "again.onnx", batch)


def test_gradients_are_those_of_the_model(tmp_path: Path) -> None:
    ab.utils.set_random_seed(4)
    model = ab.Sequential(RECURRENT["custom cell, last"]())
    layer = ab.onnx.load(exported(model, tmp_path), trainable=True)
    x = np.random.default_rng(0).normal(size=(2, 4, 8)).astype("float32")
    found = {}
    for key, each in (("layer", layer), ("model", model)):
        with ab.GradientTape() as tape:
            loss = ab.ops.sum(ab.ops.square(each(x)))
        weights = each.trainable_weights
        found[key] = {tuple(w.shape): g for w, g in zip(weights, tape.gradient(loss, weights), strict=True)}
    assert found["layer"].keys() == found["model"].keys()
    for shape, gradient in found["model"].items():
        np.testing.assert_allclose(np.asarray(found["layer"][shape]), np.asarray(gradient), 1e-4, 1e-6)


def test_constants_are_no_weights_and_weights_are_in_order(tmp_path: Path) -> None:
    x, w = ab.placeholder((None, 2), "float32"), ab.Variable([[1.0, 2.0]])
    ab.onnx.export_graph(tmp_path / "m.onnx", {"x": x}, {"y": x * w * 0.5 + np.array([3.0, 4.0], "float32")})
    layer = ab.onnx.load(tmp_path / "m.onnx", trainable=True)
    assert [tuple(each.shape) for each in layer.trainable_weights] == [(1, 2)]
    np.testing.assert_allclose(np.asarray(layer(np.ones((1, 2), "float32"))), [[3.5, 5.0]])


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    a, b = ab.placeholder((2,), "float32"), ab.placeholder((2,), "float32")
    ab.onnx.export_graph(tmp_path / "m.onnx", {"a": a, "b": b}, {"sum": a + b, "difference": a - b})
    layer = ab.onnx.load(tmp_path / "m.onnx")
    assert (layer.input_names, layer.output_names, layer.opset) == (["a", "b"], ["sum", "difference"], 21)
    one, two = np.ones(2, "float32"), np.full(2, 2, "float32")
    for given in ({"b": two, "a": one}, [one, two]):
        total, difference = layer(given)
        np.testing.assert_array_equal(np.asarray(total), [3, 3])
        np.testing.assert_array_equal(np.asarray(difference), [-1, -1])
    with pytest.raises(ValueError, match="takes inputs a, b; got a"):
        layer({"a": one})
    with pytest.raises(ValueError, match="takes 2 inputs"):
        layer([one])


def test_layer_of_bytes_and_protos_and_weights_beside(tmp_path: Path) -> None:
    x, w = ab.placeholder((None, 32), "float32"), ab.Variable(np.eye(32, k=1, dtype="float32"))
    ab.onnx.export_graph(tmp_path / "m.onnx", {"x": x}, {"y": x @ w}, external_data=True)
    batch = np.arange(64, dtype="float32").reshape(2, 32)
    wanted = batch @ np.eye(32, k=1, dtype="float32")
    np.testing.assert_array_equal(np.asarray(ab.onnx.load(tmp_path / "m.onnx")(batch)), wanted)
    np.testing.assert_array_equal(ab.onnx.backend.run_model(tmp_path / "m.onnx", [batch])[0], wanted)
    whole = onnx.load(tmp_path / "m.onnx")
    np.testing.assert_array_equal(np.asarray(ab.onnx.load(whole)(batch)), wanted)
    np.testing.assert_array_equal(np.asarray(ab.onnx.load(whole.SerializeToString())(batch)), wanted)


def test_functions_of_the_model_are_inlined() -> None:
    helper = onnx.helper
    body = [
        helper.make_node("Constant", [], ["k"]),
        helper.make_node("Mul", ["x", "k"], ["y"]),
    ]
    reference = onnx.AttributeProto(name="value_float", ref_attr_name="factor", type=onnx.AttributeProto.FLOAT)
    body[0].attribute.append(reference)
    opset = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Scaled", ["x"], ["y"], body, opset[:1], attributes=["factor"])
    node = helper.make_node("Scaled", ["x"], ["y"], domain="own", factor=3.0)
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([node], "g", info[:1], info[1:])
    model = helper.make_model(graph, functions=[function], opset_imports=opset)
    layer = ab.onnx.load(model)
    np.testing.assert_array_equal(np.asarray(layer(np.ones(2, "float32"))), [3, 3])


# --- hostile files --------------------------------------------------------------------------------------------------


def small_model(**initializer: Any) -> Any:
    helper = onnx.helper
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[2], raw_data=b"\0" * 8)
    for key, value in initializer.items():
        if key == "external":
            weight.ClearField("raw_data")
            weight.data_location = onnx.TensorProto.EXTERNAL
            for name, text in value.items():
                weight.external_data.add(key=name, value=text)
        elif key == "dims":
            del weight.dims[:]
            weight.dims.extend(value)
        else:
            setattr(weight, key, value)
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", info[:1], info[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


HOSTILE = {
    "more than there is": ({"dims": [2**40]}, "needs .* bytes; it has 8"),
    "negative size": ({"dims": [-2]}, "sizes are not negative"),
    "another folder": ({"external": {"location": "../secret"}}, "outside of the model's folder"),
    "absolute": ({"external": {"location": "/etc/hostname"}}, "outside of the model's folder"),
    "no file": ({"external": {"location": "none.data"}}, "there is no such file"),
    "too long": ({"external": {"location": "w.data", "length": "800"}, "dims": [200]}, "needs 800 bytes"),
    "before its start": ({"external": {"location": "w.data", "offset": "-8"}}, "needs 8 bytes at -8"),
    "no number": ({"external": {"location": "w.data", "offset": "x"}}, "damaged"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_weights(name: str, tmp_path: Path) -> None:
    changes, match = HOSTILE[name]
    (tmp_path / "secret").write_bytes(b"\0" * 8)
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "w.data").write_bytes(b"\0" * 8)
    (inner / "m.onnx").write_bytes(small_model(**changes).SerializeToString())
    with pytest.raises(ab.onnx.OnnxError, match=match):
        ab.onnx.load(inner / "m.onnx")


def test_link_that_leaves_the_folder(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "secret").write_bytes(b"\0" * 8)
    (inner / "w.data").symlink_to(tmp_path / "secret")
    (inner / "m.onnx").write_bytes(small_model(external={"location": "w.data"}).SerializeToString())
    with pytest.raises(ab.onnx.OnnxError, match="outside of the model's folder"):
        ab.onnx.load(inner / "m.onnx")


def test_cycles_missing_values_and_doubles() -> None:
    helper = onnx.helper
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]

    def model(*nodes: Any) -> Any:
        graph = helper.make_graph(list(nodes), "g", info[:1], info[1:])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])

    cycle = [helper.make_node("Add", ["x", "b"], ["a"], name="first"), helper.make_node("Neg", ["a"], ["b"])]
    with pytest.raises(ab.onnx.OnnxError, match=r"Node 'first' \(Add\) uses 'b'.*cycle"):
        ab.onnx.load(model(*cycle, helper.make_node("Neg", ["a"], ["y"])))
    with pytest.raises(ab.onnx.OnnxError, match="given before already"):
        ab.onnx.load(model(helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y"])))
    with pytest.raises(ab.onnx.OnnxError, match=r"Output 'y' .* is given by no node"):
        ab.onnx.load(model(helper.make_node("Neg", ["x"], ["z"])))
    dot = helper.make_node("MatMul", ["x", "x"], ["q"], name="dot")
    layer = ab.onnx.load(model(dot, helper.make_node("MatMul", ["q", "q"], ["y"], name="bad")))
    with pytest.raises(ab.onnx.OnnxError, match=r"Node 'bad' \(MatMul\)"):
        layer(np.ones(2, "float32"))


def test_an_error_of_a_compiled_call_names_the_node() -> None:
    """A model with a loop is called as one step, which fails when it runs."""
    helper, kind = onnx.helper, onnx.TensorProto
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.normal(size=(1, 4, 3)).astype("float32"),
        "r": rng.normal(size=(1, 4, 4)).astype("float32"),
    }
    nodes = [
        helper.make_node("RNN", ["x", "w", "r"], ["all", "last"], hidden_size=4),
        helper.make_node("ReduceSum", ["x"], ["sum"]),
        helper.make_node("Flatten", ["sum"], ["flat"], axis=0),
        helper.make_node("Squeeze", ["flat", "zero"], ["one"]),
        helper.make_node("Cast", ["one"], ["count"], to=kind.INT64),
        helper.make_node("Reshape", ["last", "count"], ["y"], name="thirty"),
    ]
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in arrays.items()]
    weights.append(onnx.numpy_helper.from_array(np.array([0], "int64"), "zero"))
    ends = [
        helper.make_tensor_value_info("x", kind.FLOAT, ["time", 2, 3]),
        helper.make_tensor_value_info("y", kind.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    layer = ab.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    with pytest.raises(ab.onnx.OnnxError, match=r"Node 'thirty' \(Reshape\): .*8 elements") as found:
        layer(np.ones((5, 2, 3), "float32"))
    assert isinstance(found.value.__cause__, ValueError)


@pytest.mark.parametrize(("kernel", "stride", "size"), [(3, 2, 2), (9, 2, 2), (1_000_000, 2, 8)])
def test_windows_that_are_larger_than_the_input(kernel: int, stride: int, size: int) -> None:
    helper = onnx.helper
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 1, size]) for name in "xy"]
    pool = helper.make_node("MaxPool", ["x"], ["y"], name="pool", kernel_shape=[kernel], strides=[stride])
    graph = helper.make_graph([pool], "g", info[:1], info[1:])
    layer = ab.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    with pytest.raises(ab.onnx.OnnxError, match=rf"Node 'pool'.*window of {kernel} .*input of {size}"):
        layer(np.ones((1, 1, size), "float32"))


@pytest.mark.parametrize("content", [b"", b"no model", b"\x0a\xff\xff\xff\xff\x0f"])
def test_bytes_that_are_no_model(content: bytes) -> None:
    with pytest.raises(ab.onnx.OnnxError):
        ab.onnx.load(content)


def test_wrong_sources(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="There is no file"):
        ab.onnx.load(tmp_path / "none.onnx")
    number: Any = 3
    with pytest.raises(TypeError, match="got int"):
        ab.onnx.load(number)
    model = small_model()
    model.opset_import[0].version = 6
    with pytest.raises(ab.onnx.OnnxError, match="opset 6"):
        ab.onnx.load(model)


def mutated(content: bytes, generator: Any) -> bytes:
    changed = bytearray(content)
    for _ in range(int(generator.integers(1, 5))):
        changed[int(generator.integers(len(changed)))] = int(generator.integers(256))
    if generator.random() < 0.2:
        del changed[int(generator.integers(len(changed))) :]
    return bytes(changed)


@pytest.mark.parametrize("count", [300, pytest.param(100_000, marks=pytest.mark.slow)])
def test_files_of_random_changes_are_read_or_refused(count: int, tmp_path: Path) -> None:
    content = exported(ab.Sequential(RECURRENT["custom cell, last"]()), tmp_path).read_bytes()
    generator = np.random.default_rng(count)
    read = 0
    for _ in range(count):
        try:
            layer = ab.onnx.load(mutated(content, generator))
        except ab.onnx.OnnxError:
            continue
        read += 1
        assert layer.output_names
    assert 0 < read < count


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
@pytest.mark.parametrize(("batch", "steps"), [(2, 5), (2, None), (None, 5), (None, None)])
def test_last_state_of_known_units(kind: str, batch: int | None, steps: int | None, tmp_path: Path) -> None:
    sequences = ab.Input(batch_shape=(batch, steps, 3))
    model = ab.Sequential([sequences, getattr(layers, kind)(4)])
    layer = ab.onnx.load(exported(model, tmp_path, None))
    assert tuple(layer(ab.Input(batch_shape=(batch, steps, 3))).shape) == (batch, 4)


@pytest.mark.parametrize("open_sizes", [("rows", 4), (2, "units"), ("rows", "units")])
def test_first_state_of_open_sizes(open_sizes: tuple[int | str, int | str]) -> None:
    """An LSTM's states have the sizes of its sequences and weights, where its first state's are open."""
    rng = np.random.default_rng(0)
    floats, helper = onnx.TensorProto.FLOAT, onnx.helper
    node = helper.make_node("LSTM", ["x", "w", "r", "", "", "h"], ["y", "last", "cell"], hidden_size=4)
    weights = [
        onnx.numpy_helper.from_array(rng.normal(size=(1, 16, size)).astype("float32"), name)
        for name, size in (("w", 3), ("r", 4))
    ]
    inputs = [("x", (5, 2, 3)), ("h", (1, *open_sizes))]
    graph = helper.make_graph(
        [node],
        "lstm",
        [helper.make_tensor_value_info(name, floats, shape) for name, shape in inputs],
        [helper.make_tensor_value_info(name, floats, None) for name in ("y", "last", "cell")],
        weights,
    )
    layer = ab.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    sizes = [None if isinstance(size, str) else size for size in open_sizes]
    found = layer({"x": ab.Input(batch_shape=(5, 2, 3)), "h": ab.Input(batch_shape=(1, *sizes))})
    assert [tuple(each.shape) for each in found] == [(5, 1, 2, 4), (1, 2, 4), (1, 2, 4)]
    with pytest.raises(ValueError, match=r"shape"):
        layer({"x": np.zeros((5, 2, 3), "float32"), "h": np.zeros((1, 4, 2), "float32")})


def test_squeeze_without_axes_removes_those_that_turn_out_to_be_of_size_1() -> None:
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    ends = [helper.make_tensor_value_info("x", kind, ["n", 1, "m"]), helper.make_tensor_value_info("y", kind, None)]
    graph = helper.make_graph([helper.make_node("Squeeze", ["x"], ["y"])], "g", ends[:1], ends[1:])
    layer = ab.onnx.load(helper.make_model(graph))
    for shape, expected in (((2, 1, 3), (2, 3)), ((1, 1, 3), (3,)), ((1, 1, 1), ())):
        assert ab.function(layer)(ab.constant(np.ones(shape, "float32"))).shape == expected
        with ab.Graph().as_default():
            x = ab.placeholder((None, 1, None), "float32")
            assert np.shape(ab.Session().run(layer(x), {x: np.ones(shape, "float32")})) == expected


@pytest.mark.parametrize("file", [(2, 3, 8), (None, 3, 8), (2, None, 8)])
@pytest.mark.parametrize("name", [each for each in RECURRENT if each != "distributed over time"])
def test_sizes_of_sequences_are_those_that_the_model_has(
    name: str, file: tuple[int | None, ...], tmp_path: Path
) -> None:
    """Each size that is known of the input is known of the states of all steps."""
    ab.utils.set_random_seed(1)
    model = ab.Sequential(RECURRENT[name]())
    layer = ab.onnx.load(exported(model, tmp_path, [ab.InputSpec(shape=file, dtype="float32", name="x")]))
    for shape in [(2, 3, 8), file]:
        x = ab.Input(shape[1:], batch_size=shape[0], name="x")
        assert layer(x).shape == model(x).shape
        found = ab.Model(x, layer(x)).predict(np.ones((2, 3, 8), "float32"), verbose=0)
        np.testing.assert_allclose(found, np.asarray(model(np.ones((2, 3, 8), "float32"))), 1e-4, 1e-5)


@pytest.mark.parametrize("trips", [0, 2])
def test_rows_of_a_loop_have_the_sizes_of_what_its_body_gives(trips: int) -> None:
    """The file says nothing of the rows' sizes: with no trips too, they are those of the body."""
    helper, float_, long, bool_ = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"]), helper.make_node("Mul", ["x", "x"], ["row"])],
        "body",
        [info("i", long, ()), info("go", bool_, ())],
        [info("again", bool_, ()), info("row", float_, (None, None))],
    )
    node = helper.make_node("Loop", ["n", ""], ["rows"], body=body)
    given = [info("n", long, ()), info("x", float_, (None, 3))]
    graph = helper.make_graph([node], "g", given, [info("rows", float_, (None, None, None))])
    layer = ab.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    x, n = ab.placeholder((4, 3), "float32"), ab.placeholder((), "int64")
    rows = layer([n, x])
    assert rows.shape == (None, 4, 3)
    value = np.arange(12, dtype="float32").reshape(4, 3)
    found = ab.Session().run(rows, {n: np.int64(trips), x: value})
    np.testing.assert_array_equal(found, np.stack([value * value] * trips) if trips else np.zeros((0, 4, 3)))
    assert layer([np.array(2), x]).shape == (2, 4, 3)
