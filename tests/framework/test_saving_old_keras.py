"""Files that Keras 2.12 to 3.15 wrote: whole models, weights, and training that goes on with the optimizer's state."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import anabranch as ab

ARCHIVES = sorted((Path(__file__).parents[1] / "golden" / "files" / "old").glob("*.zip"))
VERSIONS = [path.stem for path in ARCHIVES]
MODELS = ["text", "image"]


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The files of one version."""
    with zipfile.ZipFile(ARCHIVES[VERSIONS.index(request.param)]) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def case(folder: Path, name: str) -> tuple[Any, Any, Any, list[np.ndarray], list[np.ndarray]]:
    """Inputs, targets, predictions, the weights that were saved, and those after one more step."""
    with np.load(folder / f"{name}.npz") as arrays:
        held = dict(arrays)

    def under(letter: str) -> list[np.ndarray]:
        return [held[f"{letter}{i}"] for i in range(sum(key[0] == letter and key[1:].isdigit() for key in held))]

    x = under("x")
    return x if len(x) > 1 else x[0], held["y"], held["before"], under("w"), under("a")


def path_version(folder: Path) -> str:
    return json.loads((folder / "versions.json").read_text())["keras"]


def whole(folder: Path, name: str, suffix: str) -> Any:
    path = folder / (name + suffix)
    if not path.exists():
        pytest.skip(f"that version of Keras could not write {path.name}")
    return ab.load_model(path)


def test_the_versions():
    assert VERSIONS == ["2.12.0", "2.13.1", "2.15.0", "3.0.5", "3.15.1", "3.3.3", "3.8.0"]


@pytest.mark.parametrize("folder", VERSIONS, indirect=True)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_whole_models_predict_and_go_on_training(folder: Path, name: str, suffix: str):
    x, y, before, saved, after = case(folder, name)
    model = whole(folder, name, suffix)
    for ours, theirs in zip(model.get_weights(), saved, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(model.predict(x, verbose=0), before, rtol=1e-5, atol=1e-5)
    model.fit(x, y, epochs=1, batch_size=len(y), shuffle=False, verbose=0)
    version = path_version(folder)
    if version.startswith("3.0.") and name == "image":
        return  # Keras 3.15 goes on otherwise from that file, too
    for weight, ours, theirs in zip(model.weights, model.get_weights(), after, strict=True):
        if version.startswith("2.") and weight.name == "moving_variance":
            continue  # TensorFlow's fused kernel divided by n - 1
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("folder", VERSIONS, indirect=True)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("weights", [".weights.h5", ".h5", ".keras"])
def test_weights_alone(folder: Path, name: str, weights: str):
    x, _, before, _, _ = case(folder, name)
    model = whole(folder, name, ".keras")
    for weight in model.weights:
        weight.assign(np.full(weight.shape, 0.5, weight.dtype))
    if not (folder / (name + weights)).exists():
        pytest.skip(f"that version of Keras could not write {name + weights}")
    model.load_weights(folder / (name + weights))
    np.testing.assert_allclose(model.predict(x, verbose=0), before, rtol=1e-5, atol=1e-5)


def parts(path: Path) -> tuple[Any, list[Any], list[Any]]:
    """Return what a legacy file says that another must say, too: class names, layers with shapes, shapes of slots."""
    with h5py.File(path) as opened:
        file: Any = opened
        config = json.loads(file.attrs["model_config"])
        classes = [config["class_name"], *[layer["class_name"] for layer in config["config"]["layers"]]]
        weights, optimizer = file["model_weights"], file["optimizer_weights"]
        layers = [(name, shapes(weights[name])) for name in weights.attrs["layer_names"]]
        return classes, [(text(name), held) for name, held in layers if held], shapes(optimizer)


def shapes(group: Any) -> list[tuple[int, ...]]:
    return [group[name].shape for name in group.attrs["weight_names"]]


def text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else name


@pytest.mark.parametrize("folder", ["3.15.1"], indirect=True)
@pytest.mark.parametrize("name", MODELS)
def test_writes_the_old_format_as_keras_does(folder: Path, name: str):
    x, y, before, saved, after = case(folder, name)
    whole(folder, name, ".keras").save(folder / "ours.h5")
    assert parts(folder / "ours.h5") == parts(folder / f"{name}.h5")
    again = ab.load_model(folder / "ours.h5")
    for ours, theirs in zip(again.get_weights(), saved, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(again.predict(x, verbose=0), before, rtol=1e-5, atol=1e-5)
    again.fit(x, y, epochs=1, batch_size=len(y), shuffle=False, verbose=0)
    for ours, theirs in zip(again.get_weights(), after, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_models_in_models_in_the_old_format(tmp_path: Path):
    inner = ab.Sequential([ab.Input((3,)), ab.layers.Dense(4), ab.layers.BatchNormalization()], name="inner")
    x = ab.Input((3,))
    model = ab.Model(x, [ab.layers.Dense(2)(inner(x)), inner(x)])
    model.save(tmp_path / "m.h5")
    with pytest.warns(UserWarning, match="without compiling"):
        again = ab.load_model(tmp_path / "m.h5")
    values = np.ones((2, 3), "float32")
    for ours, theirs in zip(again.predict(values, verbose=0), model.predict(values, verbose=0), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.filterwarnings("ignore:.*was saved without compiling:UserWarning")
def test_operations_of_a_model_are_in_h5_files(tmp_path: Path) -> None:
    """They are no layers, not even where a layer has the name of one."""
    inputs = ab.Input((3,))
    scaled = ab.ops.maximum(inputs * 0.5, -1.0) / 2
    rows = ab.ops.reshape(scaled - ab.ops.mean(inputs, axis=1, keepdims=True), (-1, 3, 1))
    model = ab.Model(inputs, ab.ops.concatenate([rows, ab.ops.softmax(rows, axis=1)], axis=2))
    x = np.random.default_rng(0).normal(size=(2, 3)).astype("float32")
    model.save(tmp_path / "m.h5")
    again = ab.load_model(tmp_path / "m.h5")
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


def test_registered_functions_of_keras_3_6_are_found_by_name() -> None:
    @ab.saving.register_keras_serializable(package="old_keras")
    def squared_of_old_keras(x: Any) -> Any:
        return x**2

    config = {"module": "builtins", "class_name": "function", "config": "squared_of_old_keras"}
    assert ab.saving.deserialize_keras_object({**config, "registered_name": "function"}) is squared_of_old_keras

    @ab.saving.register_keras_serializable(package="another", name="squared_of_old_keras")
    def another(x: Any) -> Any:
        return x

    with pytest.raises(TypeError, match=r"names function 'squared_of_old_keras', which is not known here"):
        ab.saving.deserialize_keras_object({**config, "registered_name": "function"})
    assert ab.saving.deserialize_keras_object({**config, "config": "another>squared_of_old_keras"}) is another


class Nested(ab.Model):
    """A model with layers in a tuple in a list, and a layer of its own with such a list."""

    def __init__(self, inner: bool = False) -> None:
        super().__init__()
        self.blocks = [(ab.layers.Dense(4, use_bias=False, name=f"block_{number}"),) for number in range(2)]
        self.inner = Inside() if inner else None
        self.out = ab.layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        for (dense,) in self.blocks:
            inputs = dense(inputs)
        return self.out(inputs if self.inner is None else self.inner(inputs))


class Inside(ab.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.parts = [[ab.layers.Dense(4)]]

    def call(self, inputs: Any) -> Any:
        return self.parts[0][0](inputs)


def nested_model(inner: bool) -> Any:
    made = Nested(inner)
    made(np.ones((1, 3)))
    return made


@pytest.mark.parametrize("inner", [False, True])
def test_layers_in_lists_in_lists_as_keras_before_3_15_saved_them(inner: bool, tmp_path: Path) -> None:
    path, saved, loaded = tmp_path / "nested.weights.h5", nested_model(inner), nested_model(inner)
    saved.save_weights(path)
    with h5py.File(path, "r+") as file:  # it did not look into these: a model's layers came under "layers"
        for number, name in enumerate(["container", "container_1"]):
            file.move(f"blocks/{name}/dense", f"layers/dense_{number}" if number else "layers/dense")
        del file["blocks"]
        if inner:
            del file["inner/parts"]  # and those of layers were lost
    if inner:
        with pytest.raises(ValueError, match=r"inner/parts/container/dense\): the model has 2 weights, the file 0"):
            loaded.load_weights(path)
        with pytest.warns(UserWarning, match=r"inner/parts/container/dense"):
            loaded.load_weights(path, skip_mismatch=True)
    else:
        loaded.load_weights(path)
    for one, other in ((saved.blocks, loaded.blocks), ([[saved.out]], [[loaded.out]])):
        for (wanted,), (found,) in zip(one, other, strict=True):
            np.testing.assert_array_equal(found.kernel.numpy(), wanted.kernel.numpy())
