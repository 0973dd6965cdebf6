"""Files that Keras saved load and predict the same; files saved here have the same tree."""

import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import anabranch as ab
from golden.loader import FileCase, load_files, resolve

FILES = {case.name: case for case in load_files()}


@ab.saving.register_keras_serializable(package="golden", name="LeakyCell")
class LeakyCell(ab.layers.Layer):
    def __init__(self, units: int, leak: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.leak = leak
        self.state_size = units

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")
        self.recurrent = self.add_weight(shape=(self.units, self.units), name="recurrent")
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, inputs: Any, states: Any) -> Any:
        candidate = ab.ops.tanh(inputs @ self.kernel + states[0] @ self.recurrent + self.bias)
        state = (1.0 - self.leak) * states[0] + self.leak * candidate
        return state, [state]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units, "leak": self.leak}


class Blocks(ab.Model):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [ab.layers.Dense(3, activation="tanh"), ab.layers.Dense(3, activation="tanh")]
        self.norm = ab.layers.LayerNormalization()
        self.head = ab.layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(self.norm(inputs))


def open_weights(path: Path) -> h5py.File:
    if path.suffix != ".keras":
        return h5py.File(path)
    with zipfile.ZipFile(path) as archive:
        return h5py.File(io.BytesIO(archive.read("model.weights.h5")))


def tree(path: Path) -> dict[str, str]:
    """Everything in a file: groups with their names, datasets with dtype and shape."""
    found: dict[str, str] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = f"{item.dtype.name}[{','.join(str(size) for size in item.shape)}]"
        else:
            found[name] = str(item.attrs.get("name", ""))

    with open_weights(path) as file:
        file.visititems(note)
    return found


def config(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("config.json"))


def inputs(case: FileCase) -> Any:
    if case.name == "functional":
        return [case.arrays["left"], case.arrays["right"]]
    return case.arrays["x"]


def check_prediction(model: Any, case: FileCase) -> None:
    prediction = model.predict(inputs(case), verbose=0)
    np.testing.assert_allclose(prediction, case.arrays["prediction"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sequential", "functional", "custom_cell"])
def test_loads_whole_models_of_keras(name):
    check_prediction(ab.load_model(FILES[name].path), FILES[name])


def test_loads_whole_models_in_the_old_format():
    with pytest.warns(UserWarning, match="saved without compiling"):
        model = ab.load_model(FILES["legacy"].path)
    check_prediction(model, FILES["legacy"])
    check_prediction(ab.load_model(FILES["legacy"].path, compile=False), FILES["legacy"])


def test_training_goes_on_where_keras_stopped():
    case = FILES["sequential"]
    model = ab.load_model(case.path)
    x, y = case.arrays["x"], case.arrays["y"]
    loss, accuracy = model.evaluate(x, y, verbose=0)
    np.testing.assert_allclose([loss, accuracy], [case.arrays["loss"], case.arrays["accuracy"]], rtol=1e-5)
    assert int(model.optimizer.iterations) == 1
    model.train_on_batch(x, y)
    prediction = model.predict(x, verbose=0)
    np.testing.assert_allclose(prediction, case.arrays["prediction_after_step"], rtol=1e-5, atol=1e-6)


def built(case: FileCase) -> Any:
    model = Blocks() if case.name == "subclassed" else ab.Sequential(resolve(case.details["layers"], ab.layers))
    model(case.arrays["x"])
    return model


@pytest.mark.parametrize("name", ["weights", "subclassed", "legacy"])
def test_loads_weights_of_keras(name):
    model = built(FILES[name])
    model.load_weights(FILES[name].path)
    check_prediction(model, FILES[name])


def test_loads_the_weights_out_of_a_whole_model():
    case = FILES["sequential"]
    model = built(case)
    model.load_weights(case.path)
    check_prediction(model, case)


@pytest.mark.parametrize("name", ["sequential", "functional", "custom_cell", "weights", "subclassed"])
def test_saves_the_same_tree(name, tmp_path):
    case = FILES[name]
    ab.utils.clear_session()
    if case.path.suffix == ".keras":
        model = ab.load_model(case.path)
        path = tmp_path / "again.keras"
        model.save(path)
    else:
        model = built(case)
        model.load_weights(case.path)
        path = tmp_path / "again.weights.h5"
        model.save_weights(path)
    assert tree(path) == tree(case.path)


def says_nothing(value: Any) -> bool:
    """Test whether Keras takes the value for granted where the key is missing."""
    return (
        value is None
        or value is False
        or (isinstance(value, dict) and all(says_nothing(item) for item in value.values()))
    )


def unlike(ours: Any, theirs: Any, place: str = "") -> list[str]:
    """List where our config says something else than Keras's, or leaves out what it says."""
    if isinstance(theirs, dict) and theirs.get("class_name") == "DTypePolicy":
        theirs = theirs["config"]["name"]
    if isinstance(theirs, dict) and isinstance(ours, dict):
        missing = [f"{place}.{key}" for key in theirs.keys() - ours.keys() if not says_nothing(theirs[key])]
        common = (theirs.keys() & ours.keys()) - {"shared_object_id", "module", "jit_compile", "registered_name"}
        return [f"{name} is missing" for name in missing] + [
            line for key in sorted(common) for line in unlike(ours[key], theirs[key], f"{place}.{key}")
        ]
    if isinstance(theirs, list) and isinstance(ours, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [line for i, (our, their) in pairs for line in unlike(our, their, f"{place}[{i}]")]
    return [] if ours == theirs else [f"{place}: {ours!r} here, {theirs!r} in Keras"]


@pytest.mark.parametrize("name", ["sequential", "functional", "custom_cell"])
def test_saves_the_config_that_keras_saves(name, tmp_path):
    case = FILES[name]
    ab.utils.clear_session()
    model = ab.load_model(case.path)
    model.save(tmp_path / "again.keras")
    assert unlike(config(tmp_path / "again.keras"), config(case.path)) == []


@pytest.mark.parametrize("name", ["sequential", "functional", "custom_cell"])
def test_names_the_modules_in_which_keras_looks(name, tmp_path):
    model = ab.load_model(FILES[name].path)
    model.save(tmp_path / "again.keras")
    modules: set[str] = set()

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            if "module" in value and value.get("class_name") != "LeakyCell":
                modules.add(value["module"])
            for item in value.values():
                visit(item)
        elif isinstance(value, list):
            for item in value:
                visit(item)

    visit(config(tmp_path / "again.keras"))
    assert all(module.split(".")[0] == "keras" for module in modules), modules


def test_saves_a_zip_that_is_stored(tmp_path):
    model = ab.load_model(FILES["functional"].path)
    model.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        assert archive.namelist() == ["metadata.json", "config.json", "model.weights.h5"]
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        assert {"keras_version", "date_saved"} <= json.loads(archive.read("metadata.json")).keys()


# --- the old format -------------------------------------------------------------------------------------------------


@pytest.fixture
def legacy(tmp_path):
    """A copy of the file in the old format, to be changed."""
    return Path(shutil.copy(FILES["legacy"].path, tmp_path / "m.h5"))


TRAINING = {
    "loss": "mse",
    "metrics": ["mae"],
    "weighted_metrics": None,
    "loss_weights": None,
    "optimizer_config": {"class_name": "Adam", "config": {"name": "adam", "learning_rate": 0.25}},
}


def test_the_old_format_is_compiled_as_it_says(legacy):
    with h5py.File(legacy, "r+") as file:
        file.attrs["training_config"] = json.dumps(TRAINING)
    model = ab.load_model(legacy)
    assert float(model.optimizer.learning_rate) == 0.25
    assert model.loss == "mse"
    model.train_on_batch(FILES["legacy"].arrays["x"], FILES["legacy"].arrays["prediction"])


def test_a_loss_of_the_old_format_that_is_not_here(legacy):
    with h5py.File(legacy, "r+") as file:
        file.attrs["training_config"] = json.dumps({**TRAINING, "loss": {"class_name": "Mine", "config": {}}})
    with pytest.raises(ab.saving.SavedFileError, match=r"m\.h5.*can't be compiled.*Mine.*compile=False"):
        ab.load_model(legacy)
    assert not ab.load_model(legacy, compile=False).compiled


def cut_weights(file: Any) -> None:
    del file["model_weights/dense/sequential/dense/bias"]


def change_shape(file: Any) -> None:
    cut_weights(file)
    file["model_weights/dense/sequential/dense/bias"] = np.zeros(7, "float32")


def forget_a_layer(file: Any) -> None:
    file["model_weights"].attrs["layer_names"] = ["dense"]


def forget_a_weight(file: Any) -> None:
    file["model_weights/dense"].attrs["weight_names"] = ["sequential/dense/kernel"]


DAMAGES = {
    cut_weights: "lists model_weights/dense/sequential/dense/bias, which is not there",
    change_shape: r"layer 'dense.*': weight 'bias' has shape \(3,\) in the model, \(7,\) in the file",
    forget_a_layer: "the model has 2 layers with weights .*, the file 1",
    forget_a_weight: "has 2 weights, 'dense' in the file 1",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_misfits_of_the_old_format(damage, legacy):
    with h5py.File(legacy, "r+") as file:
        damage(file)
    model = built(FILES["legacy"])
    before = model.get_weights()
    with pytest.raises(ab.saving.SavedFileError, match=DAMAGES[damage]):
        model.load_weights(legacy)
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_an_hdf5_file_without_a_model(legacy):
    with h5py.File(legacy, "r+") as file:
        del file.attrs["model_config"]
    with pytest.raises(ab.saving.SavedFileError, match="holds no model, only arrays"):
        ab.load_model(legacy)
