"""The losses of the scripts of ``scripts.py``, by Keras on TensorFlow: run it with KERAS_BACKEND=tensorflow."""

from __future__ import annotations

import json

import keras  # pyright: ignore[reportMissingImports]
import tensorflow as tf  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
from pack import FOLDER
from scripts import SCRIPTS


def make() -> None:
    """Writes ``scripts.json``."""
    losses = {name: [float(loss) for loss in script(keras, tf)] for name, script in SCRIPTS.items()}
    content = {"versions": {"keras": keras.__version__, "tensorflow": tf.__version__}, "losses": losses}
    (FOLDER / "scripts.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    make()
