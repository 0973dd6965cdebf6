"""Files that real Keras opens: it runs in a process of its own, by whatever Python has it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_OPENING = """
import sys, pathlib
import numpy as np, keras
folder = pathlib.Path(sys.argv[1])
for path in sorted(folder.glob("*.keras")):
    inputs = np.load(path.with_suffix(".inputs.npz"))
    try:
        found = keras.models.load_model(path)([inputs[name] for name in sorted(inputs)])
        found = found if isinstance(found, (list, tuple)) else [found]
        np.savez(path.with_suffix(".found.npz"), *[keras.ops.convert_to_numpy(value) for value in found])
    except Exception as error:
        print(path.stem, type(error).__name__, str(error)[:300].replace(chr(10), " "))
"""


def keras_python() -> str:
    """Return a Python that has Keras: this one, or what KERAS_PYTHON names; without either the test is skipped."""
    named = os.environ.get("KERAS_PYTHON")
    if named is None and importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed; KERAS_PYTHON may name a Python that has it")
    return named or sys.executable


def results_in_keras(folder: Path) -> dict[str, list[Any]]:
    """Return what Keras's models of a folder of ``.keras`` files give for ``NAME.inputs.npz``, by name."""
    command = [keras_python(), "-c", _OPENING, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "", result.stdout
    found = {path.name.removesuffix(".found.npz"): np.load(path) for path in folder.glob("*.found.npz")}
    return {name: [arrays[f"arr_{i}"] for i in range(len(arrays.files))] for name, arrays in found.items()}
