"""Servables of several functions, of graphs, of files of models, and of models that are being trained."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.serving_clients import ask

import anabranch as ab
from anabranch.__main__ import main

X = ab.InputSpec(shape=(None, 3), dtype="float32", name="x")


def dense(units: int = 2) -> ab.Model:
    return ab.Sequential([ab.Input((3,), name="x"), ab.layers.Dense(units, name="dense")])


def rows(count: int) -> Any:
    return np.random.default_rng(count).normal(size=(count, 3)).astype("float32")


class Mixed(ab.Model):
    """A subclass, called on tokens and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = ab.layers.Embedding(8, 3, embeddings_initializer="uniform")
        self.dense = ab.layers.Dense(2)

    def call(self, tokens: Any, more: Any) -> Any:
        return self.dense(self.embedding(tokens) + more["a"] * more["b"][0])


# --- several endpoints ----------------------------------------------------------------------------------------------


def test_endpoints_share_weights(tmp_path: Path) -> None:
    encoder = ab.Sequential([ab.Input((64,), name="x"), ab.layers.Dense(64)])
    archive = ab.export.ExportArchive()
    archive.track(encoder)
    archive.add_endpoint("encode", encoder)
    pair = {"a": ab.InputSpec(shape=(None, 64), name="a"), "b": ab.InputSpec(shape=(None, 64), name="b")}
    archive.add_endpoint("distance", lambda both: ab.ops.norm(encoder(both["a"]) - encoder(both["b"]), axis=-1), pair)
    assert archive.write_out(tmp_path, verbose=False) == 1
    assert len(list((tmp_path / "1" / "weights").iterdir())) == 1
    servable = ab.serving.load(tmp_path)
    a, b = np.random.default_rng(0).normal(size=(2, 5, 64)).astype("float32")
    expected = encoder.predict(a, verbose=0)
    np.testing.assert_allclose(servable(a), expected, rtol=1e-5, atol=1e-6)  # the first is the default
    np.testing.assert_allclose(servable(a, signature="encode"), expected, rtol=1e-5, atol=1e-6)
    found = servable({"a": a, "b": b}, signature="distance")
    np.testing.assert_allclose(found, np.linalg.norm(expected - encoder.predict(b, verbose=0), axis=-1), rtol=1e-4)
    assert [servable.why_alone(name) for name in ("", "encode", "distance")] == [None] * 3


class BuildsItself(ab.Model):
    """A model with a build of its own, whose arguments are in another order than those of its call."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ab.layers.Embedding(10, 3)

    def build(self, weights_shape: Any, tokens_shape: Any) -> None:
        self.table.build(tokens_shape)

    def call(self, tokens: Any, weights: Any) -> Any:
        return self.table(tokens) * weights[..., None]


def test_a_subclass_with_a_build_of_its_own_is_exported_with_the_inputs_it_was_called_on(tmp_path: Path) -> None:
    model, tokens, weights = BuildsItself(), np.array([[1, 2], [3, 4]]), np.ones((2, 2), "float32")
    expected = model(tokens, weights).numpy()
    model.export(tmp_path / "m", verbose=False)
    servable = ab.serving.load(tmp_path / "m")
    inputs = servable.signatures["serving_default"].inputs
    assert [(each.name, each.dtype) for each in inputs] == [("tokens", "int64"), ("weights", "float32")]
    np.testing.assert_array_equal(servable({"tokens": tokens, "weights": weights}), expected)


def test_a_subclass_is_exported_with_the_inputs_it_was_called_on(tmp_path: Path) -> None:
    tokens, a, b = np.array([[1], [2]]), np.ones((2, 1, 3), "float32"), np.full((2, 1, 1), 2.0, "float32")
    model = Mixed()
    with pytest.raises(ValueError, match=r"was not called on data.*Call it first, or give input_signature"):
        model.export(tmp_path / "m", verbose=False)
    expected = model(tokens, {"b": [b], "a": a}).numpy()
    model.export(tmp_path / "m", verbose=False)
    servable = ab.serving.load(tmp_path / "m")
    inputs = servable.signatures["serving_default"].inputs
    assert [(each.name, each.dtype, each.shape) for each in inputs] == [
        ("tokens", "int64", (None, 1)),
        ("input_1", "float32", (None, 1, 3)),
        ("input_2", "float32", (None, 1, 1)),
    ]
    wide = [np.concatenate([each, each]) for each in (tokens, a, b)]
    found = servable(dict(zip(["tokens", "input_1", "input_2"], wide, strict=True)))
    np.testing.assert_allclose(found, np.concatenate([expected, expected]), rtol=1e-6)


def test_signatures_of_specs_of_tensors_and_of_examples(tmp_path: Path) -> None:
    model, x = dense(), rows(4)
    archive = ab.export.ExportArchive()
    archive.track_and_add_endpoint("spec", model, [ab.tf.TensorSpec((None, 3), "float32")])
    archive.track_and_add_endpoint("example", model, [ab.ops.ones((1, 3))], row_wise=True)
    with pytest.raises(TypeError, match=r"'input_0' is given as str; expected an ab.InputSpec, a tf.TensorSpec"):
        archive.add_endpoint("text", model, ["float32"])  # type: ignore[list-item]
    archive.write_out(tmp_path, verbose=False)
    servable = ab.serving.load(tmp_path)
    for name in ("spec", "example"):
        np.testing.assert_allclose(servable(x, signature=name), model(x).numpy(), rtol=1e-6)


def test_endpoints_are_served_by_name(tmp_path: Path) -> None:
    for name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
        pytest.importorskip(name)
    archive = ab.export.ExportArchive()
    archive.add_endpoint("serving_default", lambda x: x + 1, [X])
    archive.add_endpoint("twice", lambda x: x * 2, [X])
    archive.write_out(tmp_path, verbose=False)
    with ab.serving.Server({"m": tmp_path}) as server:
        body = {"instances": [[1, 2, 3]]}
        assert ask(server.rest_url, "/v1/models/m:predict", body).json == {"predictions": [[2, 3, 4]]}
        body["signature_name"] = "twice"  # type: ignore[assignment]
        assert ask(server.rest_url, "/v1/models/m:predict", body).json == {"predictions": [[2, 4, 6]]}
        metadata = ask(server.rest_url, "/v1/models/m/metadata").json["metadata"]["signature_def"]["signature_def"]
        assert set(metadata) == {"serving_default", "twice"}


def test_what_an_endpoint_says_of_rows_counts(tmp_path: Path) -> None:
    archive = ab.export.ExportArchive()
    for name, row_wise in (("unsaid", None), ("yes", True), ("no", False)):
        archive.add_endpoint(name, lambda x: x - ab.ops.mean(x, axis=0, keepdims=True), [X], row_wise=row_wise)
    archive.write_out(tmp_path, verbose=False)
    servable = ab.serving.load(tmp_path)
    assert "mean" in (servable.why_alone("unsaid") or "")
    assert servable.why_alone("yes") is None
    assert servable.why_alone("no") == "it was exported with row_wise=False"


def test_effects_run_with_their_own_endpoint(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def loud(x: Any) -> Any:
        ab.ops.print("loud", output_stream=sys.stdout)
        ab.ops.print("first", x[0, 0], output_stream=sys.stdout)
        return x

    archive = ab.export.ExportArchive()
    archive.add_endpoint("quiet", lambda y: y, [ab.InputSpec(shape=(None, 3), name="y")])
    archive.add_endpoint("loud", loud, [X])
    archive.write_out(tmp_path, verbose=False)
    servable = ab.serving.load(tmp_path)
    servable(rows(1))
    assert "first" not in capfd.readouterr().out
    servable(np.full((1, 3), 7), signature="loud")
    assert "first 7.0" in capfd.readouterr().out


def test_warmups_of_endpoints(tmp_path: Path) -> None:
    archive = ab.export.ExportArchive()
    archive.add_endpoint("one", lambda x: x + 1, [X], warmup=rows(2))
    archive.add_endpoint("two", lambda x: x * 2, [X], warmup=rows(3))
    archive.write_out(tmp_path, verbose=False)
    servable = ab.serving.load(tmp_path)
    servable.warm_up(4)
    assert {(name, arrays[0].shape) for name, arrays in servable.recent()} >= {("one", (2, 3)), ("two", (3, 3))}


def test_archives_refuse_what_makes_no_sense(tmp_path: Path) -> None:
    archive = ab.export.ExportArchive()
    with pytest.raises(ValueError, match="no endpoint"):
        archive.write_out(tmp_path)
    with pytest.raises(ValueError, match="give input_signature"):
        archive.add_endpoint("f", lambda x: x)
    with pytest.raises(ValueError, match="no spaces, slashes or colons"):
        archive.add_endpoint("a b", lambda x: x, [X])
    archive.add_endpoint("f", lambda x: x, [X])
    with pytest.raises(ValueError, match="two endpoints are called 'f'"):
        archive.add_endpoint("f", lambda x: x, [X])
    with pytest.raises(ValueError, match="Endpoint 'n' can't be exported: it gives no output"):
        archive.add_endpoint("n", lambda x: None, [X])
    wide = [ab.InputSpec(shape=(2, 2), name="x")]
    for name, function, signature in (("input 'x'", lambda x: x, wide), ("output 'output_0'", ab.ops.sum, [X])):
        with pytest.raises(ValueError, match=rf"row_wise=True: {name} has the shape .*axis 0 to be open"):
            archive.add_endpoint("r", function, signature, row_wise=True)
    with pytest.raises(ValueError, match="options of TensorFlow"):
        archive.write_out(tmp_path, options={})
    with pytest.raises(TypeError, match="a layer, a model or a variable"):
        archive.track(3)
    counter = ab.Variable(0.0, trainable=False, name="counter")

    def counting(x: Any) -> Any:
        counter.assign_add(1.0)
        return x

    with pytest.raises(ValueError, match="Endpoint 'g' can't be exported: its inference writes variable 'counter'"):
        archive.add_endpoint("g", counting, [X])


# --- graphs ---------------------------------------------------------------------------------------------------------


def test_a_part_of_a_graph_is_exported(tmp_path: Path) -> None:
    with ab.Graph().as_default():
        x, target = ab.placeholder((None, 3), "float32", "x"), ab.placeholder((None,), "float32", "target")
        w = ab.Variable(np.ones((3,), "float32"), name="w")
        y = ab.ops.tensordot(x, w, 1)
        w.assign(w - 0.1 * ab.gradients(ab.ops.mean((y - target) ** 2), [w])[0])
        hidden = ab.ops.numpy_function(np.sort, [target], "float32")  # can't be written, and is not needed
        halves = ab.ops.cond(ab.ops.sum(y) > 0, lambda: y / 2, lambda: y)
        assert ab.serving.export_graph(tmp_path, {"x": x}, {"y": y, "halves": halves}, version=5) == 5
        with pytest.raises(ValueError, match=r"need the placeholder 'target'.*none of the inputs 'x'"):
            ab.serving.export_graph(tmp_path, {"x": x}, {"h": hidden})
        with pytest.raises(ValueError, match="all tensors in one graph"):
            ab.serving.export_graph(tmp_path, {"x": x}, {})
        wrong: Any = [x]
        with pytest.raises(
            TypeError, match=r"export_graph\(\): expected inputs as a dict of tensors by name, got list"
        ):
            ab.serving.export_graph(tmp_path, wrong, {"y": y})
        with pytest.raises(ValueError, match=r"row_wise=True: output 's' has the shape \(\)"):
            ab.serving.export_graph(tmp_path, {"x": x}, {"s": ab.ops.sum(x)}, row_wise=True)
        with pytest.raises(TypeError, match="'y' is ndarray"):
            ab.serving.export_graph(tmp_path, {"x": x}, {"y": np.ones(3)})
    servable = ab.serving.load(tmp_path)
    found = servable(rows(4))
    np.testing.assert_allclose(found["y"], rows(4).sum(axis=1), rtol=1e-5)
    text = (tmp_path / "5" / "graph.json").read_text()
    assert "numpy_function" not in text
    assert "target" not in text


def test_a_tensor_inside_of_a_graph_can_be_an_input(tmp_path: Path) -> None:
    with ab.Graph().as_default():
        x = ab.placeholder((None, 3), "float32", "x")
        middle = x + 1
        y = middle * 2
        ab.serving.export_graph(tmp_path, {"middle": middle}, {"y": y})
    assert ab.serving.load(tmp_path)(np.ones((1, 3)))["y"].tolist() == [[2, 2, 2]]


# --- files of models ------------------------------------------------------------------------------------------------


def test_files_of_models_are_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, other = dense(), dense()
    model.save(tmp_path / "m.keras")
    other.save_weights(tmp_path / "other.weights.h5")
    with ab.distribute.CheckpointManager(tmp_path / "checkpoints", other) as manager:
        manager.save(7)
    file, out = str(tmp_path / "m.keras"), str(tmp_path / "out")
    assert main(["export", file, out]) == 0
    assert main(["export", file, out, "--weights", str(tmp_path / "other.weights.h5")]) == 0
    assert main(["export", file, out, "--weights", str(tmp_path / "checkpoints" / "step-7"), "--version", "9"]) == 0
    for version, source in ((1, model), (2, other), (9, other)):
        np.testing.assert_allclose(
            ab.serving.load(out, version)(rows(3)), source.predict(rows(3), verbose=0), rtol=1e-5, atol=1e-6
        )
    capsys.readouterr()
    assert main(["export", str(tmp_path / "none.keras"), out]) == 2
    assert main(["export", file, out, "--weights", str(tmp_path)]) == 2
    assert main(["export", file, out, "--import", "no_such_module_here"]) == 2
    errors = capsys.readouterr().err
    assert "no checkpoint, whose name is step-N" in errors
    assert "--import no_such_module_here: ModuleNotFoundError" in errors


def test_the_backup_of_a_run_has_weights_to_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, backups, out = str(tmp_path / "m.keras"), tmp_path / "backups", str(tmp_path / "out")
    x = ab.Input((3,))
    model = ab.Model(x, ab.layers.Dense(2)(ab.layers.Dropout(0.5)(x)))
    model.save(file)
    model.compile("adam", "mse")
    backup = ab.callbacks.BackupAndRestore(backups, delete_checkpoint=False)
    model.fit(rows(8), np.ones((8, 2), "float32"), verbose=0, callbacks=[backup])
    (step,) = backups.glob("step-*")
    assert main(["export", file, out, "--weights", str(step)]) == 0
    np.testing.assert_allclose(ab.serving.load(out)(rows(3)), model.predict(rows(3), verbose=0), rtol=1e-5, atol=1e-6)
    ab.Sequential([ab.Input((3,)), ab.layers.Dense(2), ab.layers.Dense(2)]).save(file)
    capsys.readouterr()
    assert main(["export", file, out, "--weights", str(step)]) == 2
    assert capsys.readouterr().err.startswith("anabranch export: The checkpoint ")


def test_classes_of_files_are_imported(tmp_path: Path) -> None:
    (tmp_path / "own_layers.py").write_text(
        "import anabranch as ab\n"
        "@ab.saving.register_keras_serializable('own')\n"
        "class Plus(ab.layers.Layer):\n"
        "    def call(self, x):\n"
        "        return x + 5\n"
    )
    (tmp_path / "make.py").write_text(
        "import anabranch as ab, own_layers\n"
        "ab.Sequential([ab.Input((1,), name='x'), own_layers.Plus()]).save('m.keras')\n"
    )
    subprocess.run([sys.executable, "make.py"], cwd=tmp_path, check=True, timeout=120)
    command = [sys.executable, "-m", "anabranch", "export", "m.keras", "out"]
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert failed.returncode == 2
    subprocess.run([*command, "--import", "own_layers"], cwd=tmp_path, check=True, timeout=120)
    assert ab.serving.load(tmp_path / "out")([[1.0]]).tolist() == [[6]]


def test_files_of_models_are_served(tmp_path: Path) -> None:
    for name in ("uvicorn", "httptools", "orjson", "uvloop", "prometheus_client"):
        pytest.importorskip(name)
    first, second = dense(), dense()
    first.save(tmp_path / "m.keras")
    body = {"instances": rows(2).tolist()}
    with ab.serving.Server({"m": tmp_path / "m.keras"}, poll_seconds=0) as server:
        for version, model in (("1", first), ("2", second)):
            found = ask(server.rest_url, "/v1/models/m:predict", body).json["predictions"]
            np.testing.assert_allclose(found, model.predict(rows(2), verbose=0), rtol=1e-5, atol=1e-6)
            assert ask(server.rest_url, "/v1/models/m").json["model_version_status"][0]["version"] == version
            second.save(tmp_path / "m.keras")
            server.refresh()
        (tmp_path / "m.keras").write_bytes(b"damaged")
        server.refresh()  # the old one stays
        assert ask(server.rest_url, "/v1/models/m:predict", body).status == 200
    with pytest.raises(ab.serving.ServableError, match=r"m\.keras"):
        ab.serving.Server({"m": tmp_path / "m.keras"}).start()


# --- while a model is trained ---------------------------------------------------------------------------------------


def test_models_are_exported_while_they_are_trained(tmp_path: Path) -> None:
    model = dense(1)
    model.compile(ab.optimizers.SGD(0.01), "mse")
    x, y = rows(8), np.ones((8, 1), "float32")
    every = ab.callbacks.ExportServable(tmp_path / "every", every=2)
    history = model.fit(x, y, epochs=5, verbose=0, callbacks=every)
    assert len(history.epoch) == 5
    assert ab.serving.load(tmp_path / "every").version == 2
    best = ab.callbacks.ExportServable(tmp_path / "best", "loss", save_best_only=True, mode="max")
    losses = model.fit(x, y, epochs=3, verbose=0, callbacks=best).history["loss"]
    assert losses[0] > losses[-1]
    assert ab.serving.load(tmp_path / "best").version == 1
    with pytest.raises(ValueError, match="give monitor"):
        ab.callbacks.ExportServable(tmp_path, save_best_only=True)
    with pytest.raises(ValueError, match="every=0"):
        ab.callbacks.ExportServable(tmp_path, every=0)


def test_an_output_that_depends_on_no_input(tmp_path: Path) -> None:
    archive = ab.export.ExportArchive()
    spec = [ab.InputSpec(shape=(None,), name="x")]
    archive.add_endpoint("serve", lambda x: {"x": x, "three": np.array([1.0, 2.0, 3.0], "float32")}, spec)
    archive.write_out(tmp_path, verbose=False)
    assert ab.serving.load(tmp_path)([5.0])["three"].tolist() == [1.0, 2.0, 3.0]
