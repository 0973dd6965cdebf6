"""Arguments that Keras takes in keyword arguments: of saving, of reading configs, of quantization."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.objects.registry import deserialize_keras_object, serialize_keras_object


def model() -> Any:
    built = ab.Sequential(
        [ab.Input((4,)), ab.layers.Dense(3, name="head"), ab.layers.PReLU(name="slopes")], name="small"
    )
    built.compile("adam", loss="mse")
    return built


# --- save(save_format=, include_optimizer=) -------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "save_format"), [("m.keras", "h5"), ("m.h5", "h5"), ("m.keras", "keras")])
def test_the_name_says_what_is_written(name: str, save_format: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=rf"save_format='{save_format}' has no effect, as in Keras 3: '{name}'"):
        model().save(tmp_path / name, save_format=save_format)
    assert h5py.is_hdf5(tmp_path / name) == name.endswith(".h5")


def test_a_name_without_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.keras.*with save_format='tf', which Keras 3 does not heed"):
        ab.saving.save_model(model(), tmp_path / "m", save_format="tf")


def layers_named(**units: int) -> ab.Sequential:
    return ab.Sequential([ab.Input((4,)), *[ab.layers.Dense(size, name=name) for name, size in units.items()]])


def test_weights_of_a_legacy_file_by_the_names_of_layers(tmp_path: Path) -> None:
    saved = layers_named(base=3, head=2)
    saved.save(tmp_path / "m.h5")
    other = layers_named(base=3, between=3, top=2)
    before = other.get_weights()
    other.load_weights(tmp_path / "m.h5", by_name=True)
    found = other.get_weights()
    for value, expected in zip(found, [*saved.get_weights()[:2], *before[2:]], strict=True):
        np.testing.assert_array_equal(value, expected)
    with pytest.raises(ab.saving.SavedFileError, match=r"the model has 3 layers .* the file 2 \(base, head\)"):
        other.load_weights(tmp_path / "m.h5")
    with pytest.raises(ab.saving.SavedFileError, match=r"no layers have the same name; the model has 1 layer"):
        layers_named(other=3).load_weights(tmp_path / "m.h5", by_name=True)


@pytest.mark.parametrize("by_name", [False, True])
def test_layers_of_a_legacy_file_that_fit(tmp_path: Path, by_name: bool) -> None:
    saved = layers_named(base=3, head=2)
    saved.save(tmp_path / "m.h5")
    other = layers_named(base=3, head=5)
    before = other.get_weights()
    with pytest.raises(
        ab.saving.SavedFileError, match=r"nothing was loaded:\s.*layer 'head': weight 'kernel' has shape"
    ):
        other.load_weights(tmp_path / "m.h5", by_name=by_name)
    np.testing.assert_array_equal(other.get_weights()[0], before[0])
    with pytest.warns(UserWarning, match=r"left as they are:\s.*layer 'head'") as caught:
        other.load_weights(tmp_path / "m.h5", by_name=by_name, skip_mismatch=True)
    assert caught[0].filename == __file__
    for value, expected in zip(other.get_weights(), [*saved.get_weights()[:2], *before[2:]], strict=True):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5", "m.safetensors"])
def test_only_legacy_files_are_loaded_by_name(name: str, tmp_path: Path) -> None:
    built = model()
    save = built.save if name == "m.keras" else built.save_weights
    save(tmp_path / name)
    with pytest.raises(ValueError, match=r"by_name=True is for files of Keras's old format, .* skip_mismatch=True"):
        built.load_weights(tmp_path / name, by_name=True)


def test_a_legacy_file_without_its_optimizer(tmp_path: Path) -> None:
    built = model()
    built.fit(np.ones((4, 4)), np.ones((4, 3)), verbose=0)
    built.save(tmp_path / "m.h5", include_optimizer=False)
    with h5py.File(tmp_path / "m.h5") as file:
        assert "optimizer_weights" not in file
        assert "training_config" not in file.attrs
    again = ab.load_model(tmp_path / "m.h5", compile=False)
    assert again.optimizer is None
    np.testing.assert_array_equal(again.get_weights()[0], built.get_weights()[0])
    built.save(tmp_path / "m.keras", include_optimizer=False)  # where, as in Keras, it is always
    assert ab.load_model(tmp_path / "m.keras").optimizer.iterations == 1


# --- deserialize_keras_object(module_objects=) ----------------------------------------------------------------------


class Scaled(ab.layers.Layer):
    def __init__(self, factor: float = 2.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x: Any) -> Any:
        return x * self.factor

    def get_config(self) -> Any:
        return {**super().get_config(), "factor": self.factor}


class Other(Scaled):
    pass


def halved(x: Any) -> Any:
    return x / 2


def test_names_among_module_objects() -> None:
    objects = {"Scaled": Scaled, "halved": halved, "relu": ab.activations.relu, "number": 3}
    assert isinstance(deserialize_keras_object("Scaled", module_objects=objects), Scaled)
    assert deserialize_keras_object("halved", module_objects=objects) is halved
    assert deserialize_keras_object("relu", module_objects=vars(ab.activations)) is ab.activations.relu
    assert deserialize_keras_object("nothing", module_objects=objects) == "nothing"
    assert deserialize_keras_object(None, module_objects=objects) is None


def test_configs_of_module_objects() -> None:
    config = serialize_keras_object(Scaled(3.0))
    with pytest.raises(TypeError, match="not known here"):
        deserialize_keras_object(config)
    found = deserialize_keras_object(config, module_objects={"Scaled": Scaled}, printable_module_name="scaled")
    assert type(found) is Scaled
    assert found.factor == 3.0
    assert type(deserialize_keras_object([config], module_objects=globals())[0]) is Scaled
    assert type(deserialize_keras_object(config, {"Scaled": Other}, module_objects={"Scaled": Scaled})) is Other
    adam = {"class_name": "Adam", "config": {"learning_rate": 0.5}}
    assert deserialize_keras_object(adam, module_objects=vars(ab.optimizers)).learning_rate == 0.5


# --- quantize(verbose=) ---------------------------------------------------------------------------------------------


def test_quantize_prints_what_it_returns(capsys: pytest.CaptureFixture[str]) -> None:
    quiet, loud = model(), model()
    expected = quiet.quantize("int8")
    assert capsys.readouterr().out == ""
    assert loud.quantize("int8", verbose=True) == expected
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "Quantization of model 'small', mode 'int8':",
        "  head: int8",
        "  slopes: PReLU has no quantised form",
    ]


# --- utils.legacy: configs of Keras 2 ---------------------------------------------------------------------------------


class Range:
    """A class of a library's own, as KerasTuner has them."""

    def __init__(self, name: str, low: float = 0.0, inside: Range | None = None, way: Any = None) -> None:
        self.name, self.low, self.inside, self.way = name, low, inside, way

    def get_config(self) -> Any:
        return {"name": self.name, "low": self.low, "inside": self.inside, "way": self.way}

    @classmethod
    def from_config(cls, config: Any) -> Any:
        return cls(**config)


def test_objects_in_the_form_of_keras_2() -> None:
    legacy: Any = ab.utils.legacy
    config = legacy.serialize_keras_object(Range("halved", 1.0, Range("b", 2.0), halved))
    assert config == {
        "class_name": "Range",
        "config": {
            "name": "halved",
            "low": 1.0,
            "inside": {
                "class_name": "Range",
                "config": {"name": "b", "low": 2.0, "inside": None, "way": None},
                "__passive_serialization__": True,
            },
            "way": "halved",
        },
    }
    again = legacy.deserialize_keras_object(json.loads(json.dumps(config)), {"Range": Range, "halved": halved})
    assert (again.name, again.low, again.inside.name, again.way) == ("halved", 1.0, "b", halved)
    with pytest.raises(ValueError, match="'Range' is no condition that is known here"):
        legacy.deserialize_keras_object(config, printable_module_name="condition")
    layer = legacy.deserialize_keras_object(legacy.serialize_keras_object(ab.layers.Dense(3)), vars(ab.layers))
    assert isinstance(layer, ab.layers.Dense)
    assert layer.units == 3


def test_names_in_the_form_of_keras_2() -> None:
    legacy = ab.utils.legacy
    assert legacy.serialize_keras_object(None) is legacy.deserialize_keras_object(None) is None
    assert legacy.serialize_keras_object(halved) == "halved"
    assert legacy.serialize_keras_object(Range) == "Range"
    assert legacy.deserialize_keras_object("halved", {}, {"halved": halved}) is halved
    assert isinstance(legacy.deserialize_keras_object("Scaled", {"Scaled": Scaled}), Scaled)
    assert legacy.deserialize_keras_object(halved) is halved
    with pytest.raises(ValueError, match="has no get_config"):
        legacy.serialize_keras_object(3)
    with pytest.raises(ValueError, match=r"describes no object: expected a name, or a dict"):
        legacy.deserialize_keras_object({"class_name": "Range"})
