"""onnx's reference implementation on exported files, as `check` uses it where onnxruntime is not installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.onnx_models import LENGTHS, RECURRENT, SIGNATURE
from shared.onnx_runs import assert_same, run_file

import anabranch as ab
from anabranch.framework.onnx.reference import reference_evaluator

onnx = pytest.importorskip("onnx")
helper = onnx.helper
FLOAT = onnx.TensorProto.FLOAT


@pytest.mark.parametrize("name", ["lstm", "gru", "masked gru", "custom cell, last", "both ways"])
def test_gradient_of_a_recurrent_layer(name: str, tmp_path: Path) -> None:
    ab.utils.set_random_seed(3)
    x = ab.placeholder((None, None, 8), "float32")
    y = ab.Sequential(RECURRENT[name]())(x)
    gradients = ab.gradients(ab.ops.sum(y * y), [x])
    ab.onnx.export_graph(tmp_path / "g.onnx", {"x": x}, {"g": gradients[0]})
    evaluator = reference_evaluator(str(tmp_path / "g.onnx"))
    for batch in LENGTHS:
        (found,) = evaluator.run(None, {"x": batch})
        assert_same(found, ab.Session().run(gradients, {x: batch})[0])


@pytest.mark.parametrize("name", ["custom cell, sequences", "masked lstm", "lstm"])
def test_check_without_onnxruntime(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ab.utils.set_random_seed(3)
    model = ab.Sequential(RECURRENT[name]())
    model.export(tmp_path / "m.onnx", "onnx", verbose=False, input_signature=SIGNATURE)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for batch in LENGTHS if name != "lstm" else LENGTHS[:2]:
        ab.onnx.check(model, tmp_path / "m.onnx", batch)
    model.set_weights([weight + 1 for weight in model.get_weights()])
    with pytest.raises(ab.onnx.OnnxError, match="differs from the model's"):
        ab.onnx.check(model, tmp_path / "m.onnx", LENGTHS[0])


def _model(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opset = helper.make_opsetid("", 21)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def _tensor(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _compare(model: Any, folder: Path, feeds: dict[str, Any]) -> list[np.ndarray]:
    onnx.save(model, folder / "m.onnx")
    wanted = run_file(folder / "m.onnx", feeds)
    for a, b in zip(reference_evaluator(model).run(None, feeds), wanted, strict=True):
        assert_same(a, b)
    return wanted


@pytest.mark.parametrize("trips", [0, 3])
@pytest.mark.parametrize("shape", [(), (2,), (2, 4)])
def test_scan_outputs_of_a_loop_without_a_condition(shape: tuple[int, ...], trips: int, tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"]), helper.make_node("Identity", ["x"], ["row"])],
        "body",
        [_tensor("i", (), onnx.TensorProto.INT64), _tensor("go", (), onnx.TensorProto.BOOL)],
        [_tensor("again", (), onnx.TensorProto.BOOL), _tensor("row", shape)],
    )
    loop = helper.make_node("Loop", ["n", ""], ["rows"], body=body)
    inputs = [_tensor("n", (), onnx.TensorProto.INT64), _tensor("x", shape)]
    model = _model([loop], inputs, [_tensor("rows", (None, *shape))])
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    (rows,) = _compare(model, tmp_path, {"n": np.array(trips), "x": x})
    assert rows.shape == (trips, *shape)


@pytest.mark.parametrize("place", [-1, 0, 1, 2])
def test_place_of_an_inserted_element(place: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["a", "b"], ["two"]),
        helper.make_node("SequenceInsert", ["two", "c", "place"], ["three"]),
        helper.make_node("ConcatFromSequence", ["three"], ["y"], axis=0),
    ]
    inputs = [*[_tensor(name, (1,)) for name in "abc"], _tensor("place", (), onnx.TensorProto.INT64)]
    feeds = {name: np.full(1, k, "float32") for k, name in enumerate("abc")}
    _compare(_model(nodes, inputs, [_tensor("y", (None,))]), tmp_path, {**feeds, "place": np.array(place)})


@pytest.mark.parametrize("shape", [(4, 0, 3), (2, 4, 3)])
def test_rows_of_a_tensor_that_may_be_empty(shape: tuple[int, ...], tmp_path: Path) -> None:
    node = helper.make_node("Flatten", ["x"], ["y"], axis=-1)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    _compare(_model([node], [_tensor("x", (None, None, 3))], [_tensor("y", (None, 3))]), tmp_path, {"x": x})


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op_type", "gates", "states"), [("LSTM", 4, 2), ("GRU", 3, 1), ("RNN", 1, 1)])
def test_lengths_of_sequences(
    op_type: str, gates: int, states: int, direction: str, layout: int, tmp_path: Path
) -> None:
    """In onnxruntime sequences are the second axis."""
    random, ways = np.random.default_rng(1), 2 if direction == "bidirectional" else 1

    def values(*shape: int) -> Any:
        return random.normal(size=shape).astype("float32")

    feeds = {"x": values(3, 4, 2), "lengths": np.array([3, 0, 1, 2], "int32"), "h": values(ways, 4, 5)}
    feeds |= {"c": values(ways, 4, 5)} if states == 2 else {}
    feeds |= {"w": values(ways, gates * 5, 2), "r": values(ways, gates * 5, 5), "b": values(ways, 2 * gates * 5)}
    outputs = ["y", "h_n", "c_n"][: 1 + states]
    own = ["x", "w", "r", "b", "lengths", "h", "c"][: 5 + states]
    kinds = {"lengths": onnx.TensorProto.INT32}

    def model_of(layout: int, feeds: dict[str, Any]) -> Any:
        options = {"hidden_size": 5, "direction": direction, "linear_before_reset": 1 if op_type == "GRU" else None}
        node = helper.make_node(op_type, own, outputs, layout=layout, **options)
        inputs = [_tensor(name, array.shape, kinds.get(name, FLOAT)) for name, array in feeds.items()]
        ranks = [4, *[3] * states]
        return _model([node], inputs, [_tensor(name, [None] * rank) for name, rank in zip(outputs, ranks, strict=True)])

    wanted = _compare(model_of(0, feeds), tmp_path, feeds)
    if layout:
        turned = {name: array.swapaxes(0, 1) if name in ("x", "h", "c") else array for name, array in feeds.items()}
        y, *last = reference_evaluator(model_of(1, turned)).run(None, turned)
        assert_same(y, wanted[0].transpose(2, 0, 1, 3))
        for found, other in zip(last, wanted[1:], strict=True):
            assert_same(found, other.swapaxes(0, 1))


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_check_of_lengths_without_onnxruntime(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, n = ab.Input((None, 3), name="x"), ab.Input((), dtype="int32", name="n")
    layer = {"lstm": ab.layers.LSTM, "gru": ab.layers.GRU}[name](4, return_sequences=True)
    model = ab.Model([x, n], layer(x, mask=ab.ops.sequence_mask(n, ab.ops.shape(x)[1])))
    model.export(tmp_path / "m.onnx", "onnx", verbose=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    batch = np.random.default_rng(0).normal(size=(3, 4, 3)).astype("float32")
    ab.onnx.check(model, tmp_path / "m.onnx", [batch, np.array([4, 0, 2], "int32")])


@pytest.mark.parametrize("batch", [2, 0])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize(("op_type", "gates", "states"), [("LSTM", 4, 2), ("GRU", 3, 1), ("RNN", 1, 1)])
def test_no_steps(op_type: str, gates: int, states: int, layout: int, direction: str, batch: int) -> None:
    """The shapes are ONNX's, and last states are zeros, as in onnxruntime."""
    ways = 2 if direction == "bidirectional" else 1
    shapes = {"x": (batch, 0, 3) if layout else (0, batch, 3), "w": (ways, gates * 5, 3), "r": (ways, gates * 5, 5)}
    feeds = {name: np.ones(shape, "float32") for name, shape in shapes.items()}
    outputs = ["y", "h_n", "c_n"][: 1 + states]
    node = helper.make_node(op_type, ["x", "w", "r"], outputs, hidden_size=5, direction=direction, layout=layout)
    ends = [_tensor(name, [None] * (4 if name == "y" else 3)) for name in outputs]
    model = _model([node], [_tensor(name, shape) for name, shape in shapes.items()], ends)
    y, *last = map(np.asarray, reference_evaluator(model).run(None, feeds))
    assert y.shape == ((batch, 0, ways, 5) if layout else (0, ways, batch, 5))
    for each in last:
        assert_same(each, np.zeros((batch, ways, 5) if layout else (ways, batch, 5), "float32"))


def test_a_plain_network_with_relu(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    shapes = {"x": (3, 2, 4), "w": (1, 5, 4), "r": (1, 5, 5)}
    feeds = {name: random.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    node = helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=5, activations=["Relu"])
    inputs = [_tensor(name, shape) for name, shape in shapes.items()]
    _compare(_model([node], inputs, [_tensor("y", [None] * 4)]), tmp_path, feeds)


@pytest.mark.parametrize("batch", [2, 0])
def test_a_transposed_convolution_of_no_samples(batch: int, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    x, w = random.normal(size=(batch, 2, 4, 5)).astype("float32"), random.normal(size=(2, 3, 3, 3)).astype("float32")
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])
    ends = [_tensor("x", (None, 2, 4, 5)), _tensor("w", w.shape)]
    _compare(_model([node], ends, [_tensor("y", [None] * 4)]), tmp_path, {"x": x, "w": w})
