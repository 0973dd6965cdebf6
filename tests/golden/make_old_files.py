"""Models saved by older Keras, from 2.12 on: run by hand under each version; see README.md.

    python make_old_files.py    # writes files/old/<version>.zip, some 40 kB

The same models under every version: each is trained for three steps, so that its optimizer has a state. Beside each
stands what it predicts for a given input, and its weights before and after one more step of training.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # pyright: ignore[reportMissingImports]
from keras import layers  # pyright: ignore[reportMissingImports]

ARCHIVE = Path(__file__).parent / "files" / "old" / f"{keras.__version__}.zip"
FORMATS = [".keras", ".h5", ".weights.h5"]
UNABLE = {("3.0.5", "text.h5")}  # Keras 3.0 fails to write two variables of one name into a legacy file


def text_model() -> Any:
    """Embedding, a bidirectional LSTM, a GRU, and a layer of softmax; padding is masked."""
    return keras.Sequential(
        [
            layers.Embedding(7, 3, mask_zero=True),
            layers.Bidirectional(layers.LSTM(2, return_sequences=True)),
            layers.GRU(3),
            layers.Dense(2, activation="softmax"),
        ]
    )


def image_model() -> Any:
    """Two inputs: an image through convolution, normalisation and pooling, and numbers beside it; a shared layer."""
    image = keras.Input((6, 6, 2), name="image")
    numbers = keras.Input((3,), name="numbers")
    x = layers.Conv2D(3, 3, padding="same", use_bias=False)(image)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU()(x)
    x = layers.MaxPooling2D()(x)
    x = layers.SeparableConv2D(3, 2, activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    shared = layers.Dense(3, activation="tanh", name="shared")
    joined = layers.Concatenate()([shared(x), shared(numbers)])
    out = layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.01), name="out")(
        layers.LayerNormalization()(joined)
    )
    return keras.Model([image, numbers], out)


def make(folder: Path, name: str, build: Any, x: Any, y: Any, optimizer: Any, loss: str) -> None:
    """Train three steps, save, and keep what the model predicts now and after a fourth."""
    keras.utils.set_random_seed(7)
    model = build()
    model.compile(optimizer, loss)
    model.fit(x, y, epochs=3, batch_size=len(y), shuffle=False, verbose=0)
    for suffix in FORMATS:
        path = folder / f"{name}{suffix}"
        if (keras.__version__, path.name) not in UNABLE:
            model.save_weights(path) if "weights" in suffix else model.save(path)
    inputs = {f"x{i}": value for i, value in enumerate(x if isinstance(x, list) else [x])}
    before = model.predict(x, verbose=0)
    weights = {f"w{i}": value for i, value in enumerate(model.get_weights())}
    model.fit(x, y, epochs=1, batch_size=len(y), shuffle=False, verbose=0)
    after = {f"a{i}": value for i, value in enumerate(model.get_weights())}
    np.savez_compressed(folder / f"{name}.npz", y=y, before=before, **inputs, **weights, **after)


def main() -> None:
    rng = np.random.default_rng(3)
    tokens = np.array([[1, 2, 3, 4, 0], [5, 6, 1, 0, 0], [2, 2, 2, 2, 2], [6, 0, 0, 0, 0]], "int32")
    images, numbers = rng.normal(size=(4, 6, 6, 2)).astype("float32"), rng.normal(size=(4, 3)).astype("float32")
    targets, classes = rng.normal(size=(4, 1)).astype("float32"), np.array([0, 1, 1, 0], "int32")
    momentum = keras.optimizers.SGD(0.1, momentum=0.9)
    versions = {"keras": keras.__version__, "numpy": np.__version__, "python": platform.python_version()}
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, "text", text_model, tokens, classes, "adam", "sparse_categorical_crossentropy")
        make(folder, "image", image_model, [images, numbers], targets, momentum, "mse")
        (folder / "versions.json").write_text(json.dumps(versions) + "\n")
        with zipfile.ZipFile(ARCHIVE, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(folder.iterdir()):
                archive.write(path, path.name)


if __name__ == "__main__":
    main()
