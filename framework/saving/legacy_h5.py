"""Reading Keras's old format: a whole model, or weights, in one ``.h5`` file.

Layers are matched by order, or by name if that is asked for; the weights of a layer by order, trainable ones first.
`legacy_h5_writing` writes it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.objects.registry import custom_object_scope, deserialize_keras_object
from ...engine.objects.trust import safe_mode_scope
from ...layers.core.layer_state import assign_values
from .archive import SavedFileError, check_readable, damaged
from .old_keras import in_order_of_variables, modern_config
from .state_tree import describe
from .weights_file import Array, WeightsReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...engine.graph.state.variable import Variable
    from ...layers.core.layer import Layer
    from ..models.model import Model

_WEIGHTS = "model_weights"
_OPTIMIZER = "optimizer_weights"


def is_legacy(reader: WeightsReader) -> bool:
    """Test whether an HDF5 file is of the old format."""
    return _weights_group(reader) is not None


def _weights_group(reader: WeightsReader) -> str | None:
    """Return the group with the weights: the file's root where only weights were saved. None: not of the old format."""
    for place in (_WEIGHTS, ""):
        if any(name.startswith("layer_names") for name in reader.attributes(place)):
            return place
    return None


def load_legacy_model(path: Path, custom_objects: Mapping[str, object] | None, compile: bool, safe_mode: bool) -> Model:
    """Return a model from a file of the old format, with its optimizer's state if that fits.

    Raises:
        SavedFileError: the file is damaged, holds no model, or needs classes that are not here.
    """
    from .rebuilding import open_weights, rebuild

    check_readable(path)
    with open(path, "rb") as stream, open_weights(path, stream, safe_mode) as reader:
        attributes = reader.attributes()
        if "model_config" not in attributes:
            raise SavedFileError(
                f"{str(path)!r} holds no model, only arrays. Build the model, then model.load_weights(filepath)."
            )
        config = _json(path, attributes["model_config"])
        version = _text(attributes.get("keras_version", ""))
        model = rebuild(reader, config, custom_objects, safe_mode, version)
        load_legacy_weights(model, reader)
        if not compile:
            return model
        if "training_config" not in attributes:
            warnings.warn(f"{str(path)!r} was saved without compiling; compile the model to train it.", stacklevel=3)
            return model
        with custom_object_scope(custom_objects or {}), safe_mode_scope(safe_mode):
            _compile(path, model, modern_config(_json(path, attributes["training_config"]), version))
        _load_optimizer(model, reader)
    return model


def _json(path: Path, text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError) as error:
        raise damaged(path, f"its configuration is no JSON ({error})") from error


def _compile(path: Path, model: Model, training: Mapping[str, object]) -> None:
    """Compile as the file says; names of losses and metrics stay names."""
    arguments = {name: training.get(name) for name in ("loss", "metrics", "weighted_metrics", "loss_weights")}
    try:
        optimizer = deserialize_keras_object(training["optimizer_config"])
        model.compile(optimizer=optimizer, **{name: deserialize_keras_object(v) for name, v in arguments.items()})
    except Exception as error:
        raise SavedFileError(
            f"{str(path)!r}: the model can't be compiled as it was saved: {error} "
            "Pass compile=False, and compile it yourself."
        ) from error


def _load_optimizer(model: Model, reader: WeightsReader) -> None:
    """Take over the optimizer's state, as far as the file has one and it fits."""
    names = _names(reader, _OPTIMIZER, "weight_names")
    if model.optimizer is None or not names:
        return
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    variables = model.optimizer.variables
    if len(names) == len(variables) - 1:  # Keras 2 left the learning rate to the config
        variables = [variables[0], *variables[2:]]
    places = [_join(_OPTIMIZER, names[place]) for place in in_order_of_variables(names)]
    shapes = [reader.datasets[place].shape if place in reader.datasets else None for place in places]
    if shapes != [tuple(variable.shape or ()) for variable in variables]:
        warnings.warn(
            f"{str(reader.path)!r}: the state of its optimizer ({len(names)} arrays) does not fit "
            f"{type(model.optimizer).__name__} ({len(variables)}) and was left out; training starts with a new one.",
            stacklevel=4,
        )
        return
    assign_values(model.optimizer.name, variables, [reader.read_dataset(place) for place in places])


def load_legacy_weights(
    model: Model, reader: WeightsReader, skip_mismatch: bool = False, by_name: bool = False
) -> None:
    """Give a model the weights of an old file; nothing is assigned unless all of it fits.

    Args:
        model: the model.
        reader: the file.
        skip_mismatch: leave layers as they are, with a warning, whose weights differ in number or shape.
        by_name: match layers by their names. What only one of the model and the file has is left out.

    Raises:
        SavedFileError: the file does not fit the model.
    """
    group = _weights_group(reader)
    if group is None:
        raise SavedFileError(f"{str(reader.path)!r} holds no weights of Keras's old format.")
    saved = [(name, _weight_places(reader, _join(group, name))) for name in _names(reader, group, "layer_names")]
    matched = _matched(model, reader, {name: places for name, places in saved if places}, by_name)
    pairs: list[tuple[Variable, str]] = []
    differences: list[str] = []
    for layer, name, places in matched:
        reasons = _differences(reader, layer, name, places)
        differences += reasons
        pairs += [] if reasons else zip(_weights_in_order(layer), places, strict=True)
    unfit = f"{str(reader.path)!r} does not fit model {model.name!r}"
    if differences and not skip_mismatch:
        raise SavedFileError(f"{unfit}, and nothing was loaded:{describe(differences)}")
    arrays: list[Array] = [reader.read_dataset(place) for _, place in pairs]
    assign_values(model.name, [variable for variable, _ in pairs], arrays)
    if differences:
        warnings.warn(f"{unfit} in places, which were left as they are:{describe(differences)}", stacklevel=5)


def _matched(
    model: Model, reader: WeightsReader, saved: dict[str, list[str]], by_name: bool
) -> list[tuple[Layer, str, list[str]]]:
    """Return the layers that take weights, each with its name and the places of its weights in the file."""
    layers = [layer for layer in model.layers if layer.weights]
    listed = (
        f"the model has {len(layers)} layers with weights ({_listing(layer.name for layer in layers)}), the file "
        f"{len(saved)} ({_listing(saved)})."
    )
    unfit = f"{str(reader.path)!r} does not fit model {model.name!r}, and nothing was loaded"
    if by_name:
        common: list[tuple[Layer, str, list[str]]] = [
            (layer, layer.name, saved[layer.name]) for layer in layers if layer.name in saved
        ]
        if not common:
            raise SavedFileError(f"{unfit}: no layers have the same name; {listed}")
        return common
    if len(layers) != len(saved):
        raise SavedFileError(f"{unfit}: {listed}")
    return [(layer, name, places) for layer, (name, places) in zip(layers, saved.items(), strict=True)]


def _weights_in_order(layer: Layer) -> list[Variable]:
    return [*layer.trainable_weights, *layer.non_trainable_weights]


def _differences(reader: WeightsReader, layer: Layer, name: str, places: list[str]) -> list[str]:
    """Return why the weights of a layer do not fit those of the file."""
    weights = _weights_in_order(layer)
    if len(weights) != len(places):
        return [f"layer {layer.name!r} has {len(weights)} weights, {name!r} in the file {len(places)}"]
    shapes = [reader.datasets[place].shape for place in places]
    return [
        f"layer {layer.name!r}: weight {weight.name!r} has shape {weight.shape} in the model, {shape} in the file"
        for weight, shape in zip(weights, shapes, strict=True)
        if shape != tuple(weight.shape or ())
    ]


def _weight_places(reader: WeightsReader, group: str) -> list[str]:
    """Return the datasets of a layer, in the order in which the file lists them."""
    places = [_join(group, name) for name in _names(reader, group, "weight_names")]
    missing = [place for place in places if place not in reader.datasets]
    if missing:
        raise damaged(reader.path, f"it lists {missing[0]}, which is not there")
    return places


def _names(reader: WeightsReader, place: str, attribute: str) -> list[str]:
    """Return the list of names in an attribute, which Keras splits into ``name0``, ``name1``, ... if it is long."""
    attributes = reader.attributes(place)
    if attribute in attributes:
        parts = [attributes[attribute]]
    else:
        parts = [attributes[f"{attribute}{i}"] for i in range(len(attributes)) if f"{attribute}{i}" in attributes]
    return [_text(name) for part in parts for name in part]


def _text(name: str) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _join(group: str, name: str) -> str:
    return f"{group}/{name}" if group else name


def _listing(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
