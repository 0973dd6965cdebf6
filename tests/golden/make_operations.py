"""Golden operations: the signatures of Keras's operations, and the configs of functional models of one op each."""

from __future__ import annotations

import importlib
import inspect
import json
from typing import Any

import keras  # pyright: ignore[reportMissingImports]
from operations import samples
from pack import FOLDER

MODULES = ("core", "image", "linalg", "math", "nn", "numpy")


def make(versions: dict[str, str]) -> None:
    """Writes ``operations.json``."""
    content = {"versions": versions, "signatures": signatures(), "configs": configs()}
    (FOLDER / "operations.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


def signatures() -> dict[str, Any]:
    """Return what the constructor and the call of each operation take, by ``module.class``."""
    found: dict[str, Any] = {}
    for name in MODULES:
        module = importlib.import_module(f"keras.src.ops.{name}")
        for item in vars(module).values():
            if isinstance(item, type) and issubclass(item, keras.Operation) and item.__module__ == module.__name__:
                found[f"{name}.{item.__name__}"] = [_parameters(item.__init__), _parameters(item.call)]
    return found


def _parameters(function: Any) -> list[str]:
    return [str(parameter) for parameter in inspect.signature(function).parameters.values()][1:]


def configs() -> dict[str, Any]:
    """The functional models that Keras can make of the samples."""
    found: dict[str, Any] = {}
    for name, sample in samples(keras.ops).items():
        inputs = [keras.Input(shape, dtype=sample.dtype, name=f"in{i}") for i, shape in enumerate(sample.shapes)]
        try:
            outputs = sample.apply(*inputs)
            model = keras.Model(inputs, list(outputs) if isinstance(outputs, tuple) else outputs, name=name)
            found[name] = keras.saving.serialize_keras_object(model)
        except (TypeError, ValueError) as error:
            print(f"no model of {name}: {error}")
    return found


if __name__ == "__main__":
    make({"keras": keras.__version__})
