"""Golden files: models that Keras itself saved, with an input and the prediction for it."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras  # pyright: ignore[reportMissingImports]
import numpy as np
from loader import resolve
from pack import FOLDER, normal, seeded, spec

FILES = FOLDER / "files"
DAY = (2026, 1, 1, 0, 0, 0)
WEIGHTS_MODEL = [
    spec("Dense", units=3, activation="tanh"),
    spec("BatchNormalization"),
    spec("Bidirectional", layer=spec("GRU", units=2)),
    spec("Dense", units=2),
    spec("Dense", units=1),
]


@keras.saving.register_keras_serializable(package="golden", name="LeakyCell")
class LeakyCell(keras.layers.Layer):
    """A cell that is not one of Keras's: ``h' = (1 - leak) * h + leak * tanh(x @ kernel + h @ recurrent + bias)``."""

    def __init__(self, units: int, leak: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.leak = leak
        self.state_size = units

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")
        self.recurrent = self.add_weight(shape=(self.units, self.units), name="recurrent")
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, inputs: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        candidate = keras.ops.tanh(inputs @ self.kernel + states[0] @ self.recurrent + self.bias)
        state = (1.0 - self.leak) * states[0] + self.leak * candidate
        return state, [state]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units, "leak": self.leak}


class Blocks(keras.Model):
    """A subclassed model, whose weight paths follow the order in which Keras walks attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(3, activation="tanh")]
        self.norm = keras.layers.LayerNormalization()
        self.head = keras.layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(self.norm(inputs))


def make(versions: dict[str, str]) -> None:
    """Writes the folder ``files``, with ``files.json`` as its index."""
    shutil.rmtree(FILES, ignore_errors=True)
    FILES.mkdir()
    makers: tuple[Callable[[], dict[str, Any]], ...] = (
        sequential,
        functional,
        custom_cell,
        weights,
        subclassed,
        legacy,
    )
    entries = []
    for maker in makers:
        keras.utils.clear_session()  # names start again at dense, lstm
        keras.utils.set_random_seed(1)
        entries.append(maker())
    document = {"versions": versions, "files": entries}
    (FILES / "files.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"files: {len(entries)} files")


def randomise(model: Any) -> None:
    """Moves every weight off its initial value (biases are zero, else)."""
    rng = seeded(model.__class__.__name__)
    model.set_weights([np.abs(normal(rng, *weight.shape, scale=0.5)) for weight in model.weights])


def sequential() -> dict[str, Any]:
    layers = [
        spec("Embedding", input_dim=6, output_dim=3),
        spec("LSTM", units=3),
        spec("Dense", units=2, activation="softmax"),
    ]
    model = keras.Sequential(resolve(layers, keras.layers))
    x = np.array([[1, 2, 0, 5], [3, 3, 4, 1]], dtype=np.int32)
    y = np.array([1, 0], dtype=np.int32)
    model(x)
    randomise(model)
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.train_on_batch(x, y)
    path = save(model, "sequential.keras")
    arrays = {"x": x, "y": y, "prediction": model.predict(x, verbose=0)}
    loss, accuracy = model.evaluate(x, y, verbose=0)
    arrays.update(loss=np.float32(loss), accuracy=np.float32(accuracy))
    model.train_on_batch(x, y)  # right only if Adam's slots came back too
    arrays["prediction_after_step"] = model.predict(x, verbose=0)
    return entry("sequential", path, arrays, {"layers": layers})


def functional() -> dict[str, Any]:
    left, right = keras.Input((3,), name="left"), keras.Input((2,), name="right")
    joined = keras.layers.Concatenate()([left, right])
    hidden = keras.layers.Dense(4, activation="relu", name="hidden")(joined)
    model = keras.Model([left, right], keras.layers.Dense(2, name="out")(hidden + 1.0))
    randomise(model)
    rng = seeded("functional")
    arrays = {"left": normal(rng, 3, 3), "right": normal(rng, 3, 2)}
    path = save(model, "functional.keras")
    arrays["prediction"] = model.predict([arrays["left"], arrays["right"]], verbose=0)
    return entry("functional", path, arrays)


def custom_cell() -> dict[str, Any]:
    inputs = keras.Input((4, 2))
    hidden = keras.layers.RNN(LeakyCell(3, leak=0.25), return_sequences=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2)(hidden))
    randomise(model)
    x = normal(seeded("custom cell"), 2, 4, 2)
    path = save(model, "custom_cell.keras")
    details = {"registered_name": "golden>LeakyCell"}
    return entry("custom_cell", path, {"x": x, "prediction": model.predict(x, verbose=0)}, details)


def weights() -> dict[str, Any]:
    model = keras.Sequential(resolve(WEIGHTS_MODEL, keras.layers))
    x = normal(seeded("weights"), 2, 4, 2)
    model(x)
    randomise(model)
    path = FILES / "weights.weights.h5"
    model.save_weights(path)
    arrays = {"x": x, "prediction": model.predict(x, verbose=0)}
    return entry("weights", path, arrays, {"layers": WEIGHTS_MODEL})


def subclassed() -> dict[str, Any]:
    model = Blocks()
    x = normal(seeded("subclassed"), 2, 4)
    model(x)
    randomise(model)
    path = FILES / "subclassed.weights.h5"
    model.save_weights(path)
    details = {"attributes": {"blocks": "list of 2 Dense(3, tanh)", "norm": "LayerNormalization", "head": "Dense(2)"}}
    return entry("subclassed", path, {"x": x, "prediction": model.predict(x, verbose=0)}, details)


def legacy() -> dict[str, Any]:
    layers = [spec("Dense", units=3, activation="relu"), spec("Dense", units=2)]
    model = keras.Sequential([keras.Input((4,)), *resolve(layers, keras.layers)])
    randomise(model)
    x = normal(seeded("legacy"), 2, 4)
    path = FILES / "legacy.h5"
    model.save(path)
    return entry("legacy", path, {"x": x, "prediction": model.predict(x, verbose=0)}, {"layers": layers})


def save(model: Any, name: str) -> Path:
    """Saves as Keras does, then sets the dates inside to one day: the only change made to Keras's file."""
    path = FILES / name
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for member, content in members:
            if member == "metadata.json":
                content = json.dumps({**json.loads(content), "date_saved": "2026-01-01@00:00:00"}).encode()
            archive.writestr(zipfile.ZipInfo(member, DAY), content)
    return path


def tree(path: Path) -> dict[str, str]:
    """Every dataset of an HDF5 file, or of the one inside a ``.keras`` file."""
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            source: Any = io.BytesIO(archive.read("model.weights.h5"))
    else:
        source = path
    found: dict[str, str] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = f"{item.dtype.name}[{','.join(str(size) for size in item.shape)}]"

    with h5py.File(source, "r") as file:
        file.visititems(note)
    return found


def entry(name: str, path: Path, arrays: dict[str, Any], details: dict[str, Any] | None = None) -> dict[str, Any]:
    np.savez_compressed(FILES / f"{name}.npz", **arrays)
    return {
        "name": name,
        "file": path.name,
        "arrays": f"{name}.npz",
        "tree": tree(path),
        "details": details or {},
    }
