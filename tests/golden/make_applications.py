"""Golden facts of ``keras.applications``: structures of the models, and outputs for drawn weights.

Run by hand: ``/tmp/kerasenv/bin/python tests/golden/make_applications.py`` (see README.md); it takes a quarter of an
hour. `applications.py` has the cases. Beside ``applications.json`` it writes a small file of weights in the old format,
as Keras's own files of weights are.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import keras  # pyright: ignore[reportMissingImports]
import numpy as np
from applications import FILES, OUTPUTS, STRUCTURES, draw_weights, images, structure

FOLDER = Path(__file__).resolve().parent
SMALLEST: dict[str, Any] = {"alpha": 0.01, "include_top": False, "weights": None, "input_shape": [32, 32, 3]}


# Nothing here depends on the values that weights start with; drawing them takes minutes.
keras.initializers.VarianceScaling.__call__ = lambda self, shape, dtype=None: np.zeros(shape, "float32")


def build(name: str, arguments: dict[str, Any]) -> Any:
    keras.utils.clear_session()
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    return getattr(keras.applications, name)(**{"weights": None, **arguments})


def structures() -> list[str]:
    return [
        json.dumps({"name": case, **structure(build(name, arguments))})
        for case, (name, arguments) in STRUCTURES.items()
    ]


class AskedError(Exception):
    """A file was asked for."""


def files() -> list[str]:
    """Return the files that Keras fetches: name, address, hash."""

    def ask(fname: str, origin: str, cache_subdir: str, file_hash: str | None = None) -> Any:
        assert cache_subdir == "models"
        raise AskedError(fname, origin, file_hash)

    keras.src.utils.file_utils.get_file = ask
    lines = []
    for case, (name, arguments) in FILES.items():
        try:
            build(name, {"weights": "imagenet", **arguments})
        except AskedError as asked:
            lines.append(json.dumps({"name": case, "file": asked.args}))
    return lines


def outputs() -> list[str]:
    lines = []
    for case, (name, arguments, gain) in OUTPUTS.items():
        model = build(name, arguments)
        draw_weights(model, gain)
        found = np.asarray(model(images(arguments["input_shape"]), training=False))[:, :10]
        lines.append(json.dumps({"name": case, "outputs": [[float(f"{v:.7g}") for v in row] for row in found]}))
    return lines


def preprocessed() -> list[str]:
    x = images([2, 1, 3])
    utils = keras.applications.imagenet_utils
    return [
        json.dumps({"name": mode, "outputs": utils.preprocess_input(x.copy(), mode=mode).tolist()})
        for mode in ("caffe", "tf", "torch")
    ]


def write_old_file() -> None:
    """Weights in Keras's old format: drawn in sixteenths, so that the file packs well."""
    from keras.src.legacy.saving import legacy_h5_format  # pyright: ignore[reportMissingImports]

    keras.utils.clear_session()
    model = keras.applications.MobileNetV2(**{**SMALLEST, "input_shape": (32, 32, 3)})
    draw_weights(model)
    model.set_weights([np.round(16 * value) / 16 for value in model.get_weights()])
    path = FOLDER / "mobilenet_v2.h5"
    with h5py.File(path, "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, model)
    np.savez_compressed(
        FOLDER / "files" / "applications.npz", outputs=np.asarray(model(images([32, 32, 3]), training=False))
    )
    with zipfile.ZipFile(FOLDER / "files" / "applications.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        entry = zipfile.ZipInfo("mobilenet_v2.h5", (2026, 1, 1, 0, 0, 0))
        archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED, compresslevel=9)
    path.unlink()


def main(parts: list[str]) -> None:
    makers = {"files": files, "outputs": outputs, "preprocessed": preprocessed, "structures": structures}
    target = FOLDER / "applications.json"
    made = json.loads(target.read_text()) if target.exists() else {}
    for part in parts or [*makers, "file"]:
        if part == "file":
            write_old_file()
            continue
        made[part] = [json.loads(line) for line in makers[part]()]
        made["versions"] = {"keras": keras.__version__}
        rows = [
            f'"{key}": [\n' + ",\n".join(map(json.dumps, value)) + "\n]"
            if isinstance(value, list)
            else f'"{key}": {json.dumps(value)}'
            for key, value in sorted(made.items())
        ]
        target.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
