"""Models to save and load, and what to compare them by."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab

SavedFileError = ab.saving.SavedFileError
layers = ab.layers
X = np.random.default_rng(0).normal(size=(6, 5, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(6, 2)).astype("float32")


@ab.saving.register_keras_serializable(package="tests")
class DecayCell(layers.Layer):
    """A cell: h' = tanh(x k + decay h)."""

    def __init__(self, units: int, decay: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.decay = decay
        self.state_size = units

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")

    def call(self, inputs: Any, states: Any) -> Any:
        state = ab.ops.tanh(inputs @ self.kernel + self.decay * states[0])
        return state, [state]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units, "decay": self.decay}


@ab.saving.register_keras_serializable(package="tests")
class Mixer(ab.Model):
    """A subclassed model."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.cells = {"first": layers.RNN(DecayCell(units)), "second": layers.LSTM(units)}
        self.head = layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return self.head(self.cells["first"](inputs) * self.cells["second"](inputs))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


@ab.saving.register_keras_serializable(package="tests")
class Functionlike(ab.Model):
    """A functional model by subclassing."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        inputs = ab.Input((5, 3))
        super().__init__(inputs, layers.Dense(2)(layers.GRU(units)(inputs)), **kwargs)
        self.units = units

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "units": self.units}


def sequential() -> Any:
    return ab.Sequential([ab.Input((5, 3)), layers.LSTM(4), layers.LayerNormalization(), layers.Dense(2)])


def unbuilt_sequential() -> Any:
    model = ab.Sequential([layers.RNN(DecayCell(3, decay=0.25)), layers.Dense(2)])
    model(X)
    return model


def wrapped() -> Any:
    return ab.Sequential(
        [
            ab.Input((5, 3)),
            layers.Bidirectional(layers.GRU(3, return_sequences=True)),
            layers.BatchNormalization(),
            layers.TimeDistributed(layers.Dense(2)),
            layers.RNN([layers.LSTMCell(2), layers.SimpleRNNCell(2)]),
        ]
    )


def functional() -> Any:
    inputs = ab.Input((5, 3), name="sequence")
    shared = layers.GRU(3)
    nested = ab.Sequential([ab.Input((3,)), layers.Dense(3, activation="relu")], name="nested")
    joined = layers.Concatenate()([nested(shared(inputs)), shared(ab.ops.tanh(inputs) * 2.0)])
    return ab.Model(inputs, layers.Dense(2)(joined))


def subclassed() -> Any:
    model = Mixer(3)
    model(X)
    return model


def frozen() -> Any:
    model = sequential()
    model.layers[0].trainable = False
    return model


MODELS = [sequential, unbuilt_sequential, functional, subclassed, lambda: Functionlike(3), frozen, wrapped]
NAMES = ["sequential", "unbuilt_sequential", "functional", "subclassed", "functionlike", "frozen", "wrapped"]


def trained(model: Any, optimizer: Any = "adam") -> Any:
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    model.fit(X, Y, epochs=2, batch_size=3, verbose=0, shuffle=False)
    return model


def state(model: Any) -> list[np.ndarray]:
    optimizer = getattr(model, "optimizer", None)
    return model.get_weights() + ([v.numpy() for v in optimizer.variables] if optimizer is not None else [])


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(our, their)


def dense(*units: int, inputs: int = 3) -> Any:
    return ab.Sequential([ab.Input((inputs,)), *[layers.Dense(n, name=f"d{i}") for i, n in enumerate(units)]], name="m")


def refuses(model: Any, path: Path, *words: str, **options: Any) -> None:
    before = state(model)
    with pytest.raises(SavedFileError) as caught:
        model.load_weights(path, **options)
    for word in (path.name, *words):
        assert word in str(caught.value)
    assert_same(state(model), before)


def replace_in_config(path: Path, words: dict[str, str]) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = members["config.json"].decode()
    for old, new in words.items():
        config = config.replace(f'"{old}"', f'"{new}"')
    write_zip(path, {**members, "config.json": config.encode()})


def write_zip(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
