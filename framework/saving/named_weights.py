"""Weights of models in safetensors files, called by their paths."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...engine.graph.state.variable import Variable
from ...layers.core.layer_state import assign_values
from .archive import SavedFileError
from .shards import open_arrays, write_arrays
from .state_tree import describe

if TYPE_CHECKING:
    from ..models.model import Model
    from ..structures import Array


def names_of(model: Model) -> dict[str, Variable]:
    """Return the weights of a model by their paths below it; of several with one path the later ones get a number."""
    found: dict[str, Variable] = {}
    for weight in model.weights:
        path = name = (getattr(weight, "path", None) or weight.name).removeprefix(f"{model.name}/")
        count = 0
        while name in found:
            count += 1
            name = f"{path}_{count}"
        found[name] = weight
    return found


def save_named_weights(model: Model, path: Path, max_shard_size: str | float | None, overwrite: bool) -> None:
    """Write the weights of a model; see `saving.save_weights`."""
    arrays = {name: np.asarray(weight.stored_value()) for name, weight in names_of(model).items()}
    write_arrays(path, arrays, {"format": "anabranch"}, max_shard_size, overwrite)


def load_named_weights(model: Model, path: Path, skip_mismatch: bool = False) -> None:
    """Read the weights of a model; see `saving.load_weights`."""
    arrays, weights = open_arrays(path), names_of(model)
    differences = differences_between(weights, arrays)
    where = f"{str(path)!r} does not fit model {model.name!r}"
    if differences and not skip_mismatch:
        raise SavedFileError(
            f"{where}, and nothing was loaded:{describe(differences)}\n"
            "Build the model as it was when it was saved, or load what fits with "
            "model.load_weights(filepath, skip_mismatch=True)."
        )
    fitting = [name for name in weights if name in arrays and not _difference(name, weights[name], arrays)]
    assign_values(model.name, [weights[name] for name in fitting], [arrays[name] for name in fitting])
    if differences:
        warnings.warn(f"{where} in places, which were left as they are:{describe(differences)}", stacklevel=4)


def differences_between(weights: Mapping[str, Variable], arrays: Mapping[str, Array]) -> list[str]:
    """Describe how the arrays of a file differ from weights."""
    found = [f"{name}: the model has no such weight" for name in arrays if name not in weights]
    return [text for name, weight in weights.items() if (text := _difference(name, weight, arrays))] + found


def _difference(name: str, weight: Variable, arrays: Mapping[str, Array]) -> str:
    if name not in arrays:
        return f"{name}: not in the file"
    array, shape = arrays[name], tuple(size or 0 for size in weight.shape or ())
    if tuple(array.shape) != shape:
        return f"{name}: shape {shape} in the model, {tuple(array.shape)} in the file"
    if weight.spec.dtype.kind in "iu" and array.dtype.kind not in "iub":
        return f"{name}: {weight.spec.dtype} in the model, {array.dtype} in the file"
    return ""
