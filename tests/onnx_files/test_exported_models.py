"""Models as ONNX files, computed by onnxruntime and compared with the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.onnx_models import LENGTHS, RECURRENT, SIGNATURE, LeakyCell, batches
from shared.onnx_runs import assert_exported, assert_same, run_file

import anabranch as ab
from anabranch import layers


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_model_at_any_batch_and_length(name: str, tmp_path: Path) -> None:
    ab.utils.set_random_seed(1)
    assert_exported(ab.Sequential(RECURRENT[name]()), tmp_path, SIGNATURE, LENGTHS)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 23, 25])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_model_in_other_opsets(name: str, opset: int, tmp_path: Path) -> None:
    assert_exported(ab.Sequential(RECURRENT[name]()), tmp_path, SIGNATURE, LENGTHS, opset)


def test_dense_model_by_its_symbolic_inputs(tmp_path: Path) -> None:
    import onnx

    model = ab.Sequential([ab.Input((3,), name="x"), layers.Dense(5, "relu"), layers.Dense(2, "softmax")])
    path = assert_exported(model, tmp_path, None, [np.ones((4, 3), "float32"), np.ones((0, 3), "float32")])
    proto = onnx.load(path)
    assert [(each.name, each.type.tensor_type.shape.dim[0].dim_param) for each in proto.graph.input] == [("x", "batch")]
    assert [each.name for each in proto.graph.output] == ["output_0"]
    assert proto.opset_import[0].version == 21
    assert proto.ir_version == 10  # the lowest of opset 21
    assert {tuple(each.dims) for each in proto.graph.initializer} == {(3, 5), (5,), (5, 2), (2,)}


def test_file_agrees_with_predict(tmp_path: Path) -> None:
    model = ab.Sequential([layers.RNN(LeakyCell(6), return_sequences=True), layers.Dense(4, "softmax")])
    model.export(tmp_path / "letters.onnx", format="onnx", input_signature=SIGNATURE, verbose=False)
    for batch in LENGTHS:
        (found,) = run_file(tmp_path / "letters.onnx", {"x": batch})
        assert_same(found, model.predict(batch, verbose=0))


def test_dilated_convolutions_that_onnxruntime_computes_by_blocks_of_channels(tmp_path: Path) -> None:
    """It does so from 16 channels on, and refused `auto_pad` there."""
    rng = np.random.default_rng(0)
    model = ab.Sequential(
        [
            ab.Input((None, None, 16), name="x"),
            layers.Conv2D(32, (3, 2), padding="same", dilation_rate=(2, 3), activation="relu"),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2, 1, padding="same"),
            layers.DepthwiseConv2D(5, padding="same", dilation_rate=2),
        ]
    )
    images = [rng.normal(size=size).astype("float32") for size in [(2, 9, 8, 16), (1, 2, 1, 16)]]
    assert_exported(model, tmp_path, None, images)


def test_several_inputs_and_outputs_keep_names(tmp_path: Path) -> None:
    import onnx

    a, b = ab.Input((4,), name="a"), ab.Input((4,), dtype="int32", name="b")
    scaled = a * ab.ops.cast(b, "float32")
    model = ab.Model({"a": a, "b": b}, {"sum": scaled + 1.0, "first": a})
    path = tmp_path / "model.onnx"
    model.export(path, "onnx", verbose=False)
    proto = onnx.load(path)
    assert [each.name for each in proto.graph.input] == ["a", "b"]
    assert [each.name for each in proto.graph.output] == ["first", "sum"]
    batch = {"a": np.ones((2, 4), "float32"), "b": np.arange(8, dtype="int32").reshape(2, 4)}
    ab.onnx.check(model, path, batch)


def test_states_of_stateful_layers_are_inputs_and_outputs(tmp_path: Path) -> None:
    model = ab.Sequential([ab.Input((3, 2), batch_size=2, name="x"), layers.GRU(4, stateful=True)])
    path = tmp_path / "model.onnx"
    first, second = batches((2, 3, 2), (2, 3, 2))
    model.export(path, "onnx", verbose=False)
    state = np.zeros((2, 4), "float32")
    wanted = [np.asarray(model(first)), np.asarray(model(second))]
    for batch, want in zip([first, second], wanted, strict=True):
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        found, state = session.run(None, dict(zip(names, [batch, state], strict=True)))
        assert_same(found, want)
    assert [each.name for each in session.get_outputs()] == ["output_0", f"{names[1]}_next"]


def test_states_of_one_path_have_names_of_their_own(tmp_path: Path) -> None:
    """Both states of an LSTM are `rnn_state`, an input is named like a third, and a layer has a space in its name."""
    import onnxruntime

    ab.utils.set_random_seed(1)
    x = ab.Input((3, 2), batch_size=2, name="below_rnn_state")
    h = layers.LSTM(4, stateful=True, return_sequences=True, name="below")(x)
    model = ab.Model(x, layers.RNN([layers.LSTMCell(3), layers.GRUCell(5)], stateful=True, name="the top")(h))
    path = tmp_path / "model.onnx"
    model.export(path, "onnx", verbose=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    ends = [{each.name: each.shape for each in found} for found in (session.get_inputs(), session.get_outputs())]
    states = ends[0].keys() - {"below_rnn_state"}
    assert states == {
        "below_rnn_state_1",
        "below_rnn_state_2",
        *["the top_rnn_state" + end for end in ("", "_1", "_2")],
    }
    assert ends[1].keys() == {"output_0", *[f"{name}_next" for name in states]}
    held = {name: np.zeros(ends[0][name], "float32") for name in states}
    for batch in batches((2, 3, 2), (2, 3, 2), (2, 3, 2)):
        wanted = np.asarray(model(batch))
        found = dict(zip(ends[1], session.run(None, {"below_rnn_state": batch, **held}), strict=True))
        held = {name: found[f"{name}_next"] for name in states}
        assert_same(found["output_0"], wanted)


def test_a_model_with_states_is_checked_from_where_it_is(tmp_path: Path) -> None:
    ab.utils.set_random_seed(1)
    model = ab.Sequential([ab.Input((3, 2), batch_size=2, name="x"), layers.LSTM(4, stateful=True)])
    path = tmp_path / "model.onnx"
    model.export(path, "onnx", verbose=False)
    for batch in batches((2, 3, 2), (2, 3, 2)):
        ab.onnx.check(model, path, batch)  # a call of the model, which goes on
    model.layers[0].reset_states()
    first = np.asarray(model(batches((2, 3, 2))[0]))
    assert np.abs(np.asarray(model(batches((2, 3, 2))[0])) - first).max() > 1e-3
    model.layers[0].states[1].assign(np.full((2, 4), 9.0))
    ab.onnx.check(model, path, batches((2, 3, 2))[0])


def test_report_says_what_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ab.Sequential([ab.Input((3,), name="x"), layers.Dense(2)])
    assert model.export(tmp_path / "m.onnx", "onnx") is None
    assert "input x: float32 (batch, 3)" in capsys.readouterr().out


@pytest.mark.parametrize("opset", [17, 26, "21", True])
def test_opset_out_of_range(opset: Any, tmp_path: Path) -> None:
    model = ab.Sequential([ab.Input((3,)), layers.Dense(2)])
    with pytest.raises(ValueError, match="18 to 25"):
        model.export(tmp_path / "m.onnx", "onnx", opset_version=opset)
    assert not list(tmp_path.iterdir())


def test_arguments_of_the_other_format_are_refused(tmp_path: Path) -> None:
    model = ab.Sequential([ab.Input((3,)), layers.Dense(2)])
    with pytest.raises(ValueError, match="for format='anabranch'"):
        model.export(tmp_path / "m.onnx", "onnx", version=3)
    with pytest.raises(ValueError, match="for format='onnx'"):
        model.export(tmp_path / "m", opset_version=21)
    with pytest.raises(ValueError, match=r"'anabranch'.*'onnx'"):
        model.export(tmp_path / "m", "tflite")


def test_missing_signature_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="input_signature"):
        ab.Sequential([layers.Dense(2)]).export(tmp_path / "m.onnx", "onnx")


def test_check_says_which_output_differs(tmp_path: Path) -> None:
    model = ab.Sequential([ab.Input((3,), name="x"), layers.Dense(2, kernel_initializer="ones")])
    model.export(tmp_path / "m.onnx", "onnx", verbose=False)
    model.set_weights([np.full((3, 2), 2.0), np.zeros(2)])
    with pytest.raises(ab.onnx.OnnxError, match=r"'output_0' differs .* 3\.0 instead of 6\.0"):
        ab.onnx.check(model, tmp_path / "m.onnx", np.ones((1, 3), "float32"))


@pytest.mark.parametrize("rows", [3, 0])
def test_check_runs_files_that_take_and_give_bfloat16(rows: int, tmp_path: Path) -> None:
    dense = ab.layers.Dense(2, kernel_initializer="ones", dtype="bfloat16")
    model = ab.Sequential([ab.Input((3,), name="x", dtype="bfloat16"), dense])
    model.export(tmp_path / "m.onnx", "onnx", verbose=False)
    x = ab.ops.ones((rows, 3), dtype="bfloat16").numpy()
    ab.onnx.check(model, tmp_path / "m.onnx", x)
    if rows:
        dense.kernel.assign(np.zeros((3, 2)))
        with pytest.raises(ab.onnx.OnnxError, match=r"in 6 of 6 elements, most at \(0, 0\): 3.0 instead of 0.0"):
            ab.onnx.check(model, tmp_path / "m.onnx", x)


def test_command_writes_a_keras_file_as_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from anabranch.__main__ import main

    model = ab.Sequential([ab.Input((3,), name="x"), layers.Dense(2)])
    model.save(tmp_path / "m.keras")
    assert (
        main(["export", str(tmp_path / "m.keras"), str(tmp_path / "m.onnx"), "--format", "onnx", "--opset", "20"]) == 0
    )
    ab.onnx.check(model, tmp_path / "m.onnx", np.ones((2, 3), "float32"))
    assert "opset 20" in capsys.readouterr().out
    assert (
        main(["export", str(tmp_path / "m.keras"), str(tmp_path / "n.onnx"), "--format", "onnx", "--opset", "3"]) == 2
    )
    assert "18 to 25" in capsys.readouterr().err


def test_open_dimensions_of_outputs_have_the_names_of_those_of_inputs(tmp_path: Path) -> None:
    tokens = ab.Input((None,), name="tokens", dtype="int32")
    states = layers.LSTM(3, return_sequences=True)(layers.Embedding(5, 4)(tokens))
    rows = ab.ops.reshape(states, (-1, 3))
    ab.Model(tokens, [states, layers.Dense(2)(states[:, -1]), rows]).export(
        tmp_path / "m.onnx", format="onnx", verbose=0
    )
    graph = pytest.importorskip("onnx").load(tmp_path / "m.onnx").graph
    shapes = [
        [dim.dim_param or dim.dim_value for dim in info.type.tensor_type.shape.dim]
        for info in (*graph.input, *graph.output)
    ]
    assert shapes[:3] == [["batch", "tokens_1"], ["batch", "tokens_1", 3], ["batch", 2]]
    assert shapes[3] == ["output_2_0", 3]


def test_outputs_with_a_row_for_each_sample_have_the_batch_in_front(tmp_path: Path) -> None:
    text, image = ab.Input((None,), dtype="int64", name="text"), ab.Input((8, 8, 3), name="image")
    read = layers.Bidirectional(layers.GRU(2))(layers.Embedding(5, 3, mask_zero=True)(text))
    seen = layers.GlobalAveragePooling2D()(layers.Conv2DTranspose(4, 3, strides=2)(image))
    mean = ab.ops.mean(seen, axis=0, keepdims=True)
    ab.Model({"text": text, "image": image}, {"read": read, "seen": seen, "mean": mean}).export(
        tmp_path / "m.onnx", "onnx", verbose=False
    )
    outputs = pytest.importorskip("onnx").load(tmp_path / "m.onnx").graph.output
    found = {each.name: [dim.dim_param or dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in outputs}
    assert found == {"mean": [1, 4], "read": ["batch", 4], "seen": ["batch", 4]}


@pytest.mark.parametrize("rows", [2, 0])
@pytest.mark.parametrize("opset", [18, 21])
def test_windows_over_sequences_without_steps(rows: int, opset: int, tmp_path: Path) -> None:
    """onnxruntime fails in `Conv`, `MaxPool` and `AveragePool` there; padding alone may fill windows."""
    x = ab.Input((None, 3), name="x")
    padded = layers.Conv1D(4, 3, strides=2)(layers.ZeroPadding1D(3)(x))
    parts = [
        layers.Conv1D(4, 3, padding="causal", dilation_rate=2),
        layers.Conv1D(4, 2, strides=2, padding="same"),
        layers.DepthwiseConv1D(3, padding="same"),
        layers.MaxPooling1D(3, 2, padding="same"),
        layers.AveragePooling1D(3, 2, padding="same"),
    ]
    model = ab.Model(x, [padded, *[layer(x) for layer in parts]])
    path = tmp_path / "m.onnx"
    model.export(path, "onnx", verbose=False, opset_version=opset)
    for steps in (0, 1, 5):
        batch = np.random.default_rng(0).normal(size=(rows, steps, 3)).astype("float32")
        ab.onnx.check(model, path, batch)
        for found, wanted in zip(ab.onnx.load(path)(batch), model(batch), strict=True):
            assert_same(found, wanted)
