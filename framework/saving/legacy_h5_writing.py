"""Writing Keras's old format: a whole model in one ``.h5`` file; `legacy_h5` reads it.

Layers stand under their names, weights in the order of `legacy_h5`: trainable ones first. What a ``.keras`` file holds
besides, vocabularies of preprocessing layers and numbers that are not variables, has no place in this format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ...engine.graph.state.variable import Variable
from ...engine.objects.registry import serialize_keras_object, shared_writing_scope
from ...optim.optimizer import path_of
from ..models.raw_ops import is_serialized_op
from .archive import KERAS_VERSION, to_json

if TYPE_CHECKING:
    from ..models.model import Model
    from ..structures import Array

_COMPILED = ("loss", "loss_weights", "metrics", "weighted_metrics", "run_eagerly", "steps_per_execution", "jit_compile")


def write_legacy_model(model: Model, stream: BinaryIO, include_optimizer: bool = True) -> None:
    """Write a model's configuration, weights, and what it was compiled with: its optimizer, with its state.

    Raises:
        ValueError: the model can't be written as a config.
    """
    import h5py

    with shared_writing_scope():
        whole = serialize_keras_object(model)
    with h5py.File(stream, "w") as opened:
        file: Any = opened
        for group in (file, file.create_group("model_weights")):
            group.attrs["keras_version"] = KERAS_VERSION
            group.attrs["backend"] = "anabranch"
        file.attrs["model_config"] = to_json(_as_of_old(whole))
        layers = [layer for layer in model.layers if layer.weights]
        file["model_weights"].attrs["layer_names"] = _names(layer.name for layer in layers)
        for layer in layers:
            _write_arrays(
                file["model_weights"].create_group(layer.name),
                [*layer.trainable_weights, *layer.non_trainable_weights],
            )
        compiled = whole.get("compile_config")
        if include_optimizer and compiled and model.optimizer is not None:
            training = {name: compiled.get(name) for name in _COMPILED}
            optimizer = serialize_keras_object(model.optimizer)
            training["optimizer_config"] = {"class_name": optimizer["class_name"], "config": optimizer["config"]}
            file.attrs["training_config"] = json.dumps(training)
            _write_arrays(file.create_group("optimizer_weights"), model.optimizer.variables)


def _names(names: Iterable[str]) -> Array:
    return np.array([name.encode() for name in names] or [], dtype="S")


def _write_arrays(group: Any, variables: list[Variable]) -> None:
    names = [f"{place}/{path_of(variable)}" for place, variable in enumerate(variables)]
    group.attrs["weight_names"] = _names(names)
    for name, variable in zip(names, variables, strict=True):
        group.create_dataset(name, data=variable.numpy())


def _as_of_old(item: dict[str, Any]) -> dict[str, object]:
    """Return a model's or layer's config with class and config alone, and calls if a functional model contains it."""
    config = dict(item["config"])
    if isinstance(config.get("layers"), list):
        config["layers"] = [_as_of_old(layer) for layer in config["layers"]]
    kept = {name: item[name] for name in ("name", "inbound_nodes") if name in item}
    if is_serialized_op(item):  # which a layer may have the name of, such as Multiply and Reshape
        return {"module": item["module"], "class_name": item["class_name"], "config": config, **kept}
    return {"class_name": item.get("registered_name") or item["class_name"], "config": config, **kept}
