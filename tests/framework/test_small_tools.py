"""`Progbar`, `Config`, limits, logging, sounds in folders, `FeatureSpace`, policies by path."""

from __future__ import annotations

import logging
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, utils

TABLE = {
    "age": [10.0, 20.0, 30.0, 40.0],
    "colour": ["red", "blue", "red", "green"],
    "code": [1, 2, 2, 3],
    "bin": [0.1, 0.5, 0.7, 2.0],
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    ab.config.set_max_epochs(None)
    ab.config.set_max_steps_per_epoch(None)
    ab.config.enable_interactive_logging()


def test_limits_of_fit() -> None:
    model = ab.Sequential([ab.Input((2,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((12, 2), "float32"), np.ones((12, 1), "float32")
    ab.config.set_max_epochs(2)
    ab.config.set_max_steps_per_epoch(3)
    with pytest.warns(UserWarning, match="Limiting"):
        history = model.fit(x, y, batch_size=2, epochs=5, verbose=0)
    assert len(history.epoch) == 2
    assert int(model.optimizer.iterations) == 6
    with pytest.raises(ValueError, match="max_epochs must be a positive integer, or None for no limit; got 0"):
        ab.config.set_max_epochs(0)


def test_logging_in_place_of_printing(capsys: Any, caplog: Any) -> None:
    utils.disable_interactive_logging()
    with caplog.at_level(logging.INFO, "anabranch"):
        utils.Progbar(2, verbose=2).update(2, [("loss", 0.5)])
    assert "2/2" in caplog.text
    assert "loss: 0.5000" in caplog.text
    assert capsys.readouterr().out == ""


def test_callbacks_models_and_folders_log_too(capsys: Any, caplog: Any, tmp_path: Any) -> None:
    """Log what `verbose=1` asks for, without bars, which are for terminals."""
    utils.disable_interactive_logging()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text("words")
    model = ab.Sequential([ab.Input((2,)), layers.Dense(1)])
    model.compile(ab.optim.SGD(0.1), "mse")
    x, y = np.ones((4, 2), "float32"), np.full((4, 1), 3e38, "float32")
    shown = [
        ab.callbacks.LearningRateScheduler(lambda epoch: 0.5, verbose=1),
        ab.callbacks.ModelCheckpoint(tmp_path / "model.keras", monitor="loss", verbose=1),
        ab.callbacks.TerminateOnNaN(),
    ]
    with caplog.at_level(logging.INFO, "anabranch"):
        model.fit(x, y, epochs=2, verbose=1, callbacks=shown)
        model.summary()
        utils.text_dataset_from_directory(tmp_path)
    printed = capsys.readouterr()
    assert printed.out + printed.err == ""
    for words in (
        "Epoch 1: LearningRateScheduler setting learning rate to 0.5",
        "model.keras",
        "terminating training",
        "Epoch 1/2 - 1/1",
        "Optimizer params: 2",
        "Found 2 files",
    ):
        assert words in caplog.text


def test_a_bar(capsys: Any) -> None:
    bar = utils.Progbar(4, width=8, interval=0, stateful_metrics=["size"])
    bar.update(1, [("loss", 1.0), ("size", 3)])
    bar.add(2, [("loss", 4.0), ("size", 5)])
    drawn = capsys.readouterr().out
    assert "loss: 3.0000 - size: 5.0000" in drawn  # (1 + 2 * 4) / 3
    assert drawn.count("━") == 16
    with pytest.raises(ValueError, match="got both"):
        utils.Progbar(3, stateful_metrics=[], stateless_metrics=[])


def test_named_values() -> None:
    config = utils.Config(rate=0.5)
    config.momentum = 0.9
    assert (config["momentum"], config.get("other", 1), list(config), len(config)) == (0.9, 1, ["momentum", "rate"], 2)
    with pytest.raises(AttributeError, match=r"Unknown attribute: 'momentun'\. Did you mean 'momentum'\?"):
        _ = config.momentun
    config.freeze()
    with pytest.raises(ValueError, match="'rate' can't be changed"):
        config.pop("rate")
    config.unfreeze()
    assert (config.pop("rate"), config.as_dict()) == (0.5, {"momentum": 0.9})


def _write_sound(path: Path, samples: Any, width: int = 2, rate: int = 8000) -> None:
    path.parent.mkdir(exist_ok=True)
    raw = b"".join(int(sample).to_bytes(width, "little", signed=width > 1) for sample in np.ravel(samples))
    with wave.open(str(path), "wb") as file:
        file.setnchannels(np.ndim(samples))
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(raw)


def test_sounds_of_a_folder(tmp_path: Path) -> None:
    _write_sound(tmp_path / "a" / "1.wav", [16384, -32768])
    _write_sound(tmp_path / "b" / "2.wav", [2**21, 2**22, -(2**23)], width=3)
    _write_sound(tmp_path / "b" / "3.wav", [192], width=1)
    data = utils.audio_dataset_from_directory(tmp_path, shuffle=False, verbose=False)
    sounds, labels = next(iter(data))
    assert sounds.dtype == "float32"
    np.testing.assert_array_equal(sounds[..., 0], [[0.5, -1, 0], [0.25, 0.5, -1], [0.5, 0, 0]])
    np.testing.assert_array_equal(labels, [0, 1, 1])
    cut = utils.audio_dataset_from_directory(tmp_path, None, output_sequence_length=1, shuffle=False, verbose=False)
    assert next(iter(cut)).shape == (3, 1, 1)
    again = utils.audio_dataset_from_directory(tmp_path, shuffle=False, format="grain", verbose=False)
    np.testing.assert_array_equal(next(iter(again))[0], sounds)
    with pytest.raises(ValueError, match="format must be 'tf' or 'grain', got 'torch'"):
        utils.audio_dataset_from_directory(tmp_path, format="torch", verbose=False)
    other = utils.audio_dataset_from_directory(tmp_path, sampling_rate=16000, verbose=False)
    with pytest.raises(ValueError, match="has 8000 samples a second, but sampling_rate=16000 was asked for"):
        next(iter(other))


def space() -> Any:
    kinds = utils.FeatureSpace
    return kinds(
        {
            "age": "float_normalized",
            "colour": "string_categorical",
            "code": kinds.integer_categorical(num_oov_indices=0),
            "bin": kinds.float_discretized(None, bin_boundaries=[0.4, 1.0]),
        },
        crosses=[("colour", "code")],
        crossing_dim=5,
    )


def test_a_feature_space_encodes_learns_and_is_saved(tmp_path: Path) -> None:
    made = space()
    with pytest.raises(ValueError, match="has to learn first: call adapt"):
        made(TABLE)
    made.adapt(TABLE)
    vectors = made(TABLE)
    ages = (np.array(TABLE["age"]) - 25) / np.std(TABLE["age"])
    np.testing.assert_allclose(vectors[:, 0], ages, rtol=1e-5)
    np.testing.assert_array_equal(vectors[:, 1:4], np.eye(3)[[0, 1, 1, 2]])  # bins: sorted by name
    codes = vectors[:, 4:7].argmax(-1)
    assert codes[1] == codes[2] == 0  # the most frequent one comes first
    np.testing.assert_array_equal(vectors.sum(1) - ages.astype("float32"), np.full(4, 4.0, "float32"))
    np.testing.assert_array_equal(made({key: column[1] for key, column in TABLE.items()}), vectors[1])
    model = ab.Model(made.get_inputs(), made.get_encoded_features())
    columns = {key: np.array(column)[:, None] for key, column in TABLE.items()}
    np.testing.assert_allclose(model(columns), vectors, rtol=1e-6)
    assert set(made.get_preprocessed_features()) == set(TABLE)
    made.save(tmp_path / "space.keras")
    np.testing.assert_array_equal(ab.load_model(tmp_path / "space.keras")(TABLE), vectors)


def test_a_feature_space_takes_a_layer_of_ones_own() -> None:
    scaled = utils.FeatureSpace.feature("float32", layers.Rescaling(0.5), "float")
    space = utils.FeatureSpace({"age": scaled, "colour": "string_hashed"}, output_mode="dict")
    np.testing.assert_array_equal(space(TABLE)["age"], [[5.0], [10.0], [15.0], [20.0]])


def test_refused_feature_spaces() -> None:
    with pytest.raises(ValueError, match="feature 'age' is of the unknown kind 'number'"):
        utils.FeatureSpace({"age": "number"})
    with pytest.raises(ValueError, match="names \\['b'\\], but the features are \\['a'\\]"):
        utils.FeatureSpace({"a": "string_hashed"}, crosses=[("a", "b")])
    hashed = utils.FeatureSpace({"a": utils.FeatureSpace.string_hashed(4, output_mode="int")})
    with pytest.raises(ValueError, match="feature 'a' can't be concatenated"):
        hashed({"a": ["x"]})


def test_policies_by_path() -> None:
    policies = ab.dtype_policies.DTypePolicyMap("float32", {"ha.f": "float16"})
    layer = layers.Dense(2, dtype=policies, name="half")
    layer.build((None, 3))
    assert (layer.kernel.dtype, layer.compute_dtype) == ("float16", "float16")
    again = layers.Dense.from_config(layer.get_config())
    assert (again.compute_dtype, again.dtype_policy) == ("float16", policies)
    assert layers.Dense(2, dtype=policies, name="whole").compute_dtype == "float32"
    policies["h.*"] = "float32"
    with pytest.raises(ValueError, match=r"several patterns match the path 'half': 'ha\.f', 'h\.\*'"):
        _ = policies["half"]


def test_policies_by_path_reach_layers_inside_of_others() -> None:
    policies = ab.dtype_policies.DTypePolicyMap(
        "float32", {"attention/query": "bfloat16", "attention/attention_output": "mixed_float16"}
    )
    inputs = ab.Input((3, 8))
    model = ab.Model(inputs, layers.MultiHeadAttention(2, 4, dtype=policies, name="attention")(inputs, inputs))
    for each in (model, ab.Model.from_config(model.get_config())):
        layer = each.get_layer("attention")
        inside = {one.path: one.compute_dtype for one in layer._flatten_layers() if one.weights}
        assert inside == {
            "attention": "float32",
            "attention/query": "bfloat16",
            "attention/key": "float32",
            "attention/value": "float32",
            "attention/attention_output": "float16",
        }
        assert layer.dtype_policy == policies


def test_settings_without_effect() -> None:
    ab.config.set_backend("anabranch")
    with pytest.raises(ValueError, match="The backend can't be set to 'jax'"):
        ab.config.set_backend("jax")
    ab.config.enable_flash_attention()
    assert ab.config.is_flash_attention_enabled() is ab.config.is_nnx_enabled() is False
    assert ab.version() == ab.__version__
