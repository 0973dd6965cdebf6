"""Models: what ``anabranch.models`` is, with the names of ``keras.models``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from ...engine.objects.registry import deserialize_keras_object
from ...layers.core.input_layer import Input
from ..saving.api import load_model, save_model
from .cloning import clone_model
from .model import Functional, Model
from .sequential import Sequential

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .fit_callbacks import ModelOfSomeClass


def model_from_json(json_string: str, custom_objects: Mapping[str, object] | None = None) -> ModelOfSomeClass:
    """Return the model, without weights, that `Model.to_json` described.

    Args:
        json_string: what `to_json` gave, also that of Keras.
        custom_objects: classes and functions of yours, by the names that the text has for them.

    Raises:
        ValueError: the text describes no model, or a class that is not known.
        TypeError: it is not text.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(3)])
    >>> ab.models.model_from_json(model.to_json()).count_params()
    9
    """
    if not isinstance(json_string, (str, bytes, bytearray)):
        raise TypeError(
            f"model_from_json expects the text that Model.to_json() gave, got {type(json_string).__name__}. For a "
            "config use from_config of the model's class."
        )
    try:
        config = json.loads(json_string)
        is_config = isinstance(config, dict) and "class_name" in config
        model: Any = deserialize_keras_object(config, custom_objects) if is_config else None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"model_from_json: the model can't be made from {json_string[:100]!r}: {error}") from error
    if not is_config:
        raise ValueError(f"model_from_json expects what Model.to_json() gave, got {json_string[:100]!r}.")
    if not isinstance(cast("object", model), Model):
        raise ValueError(f"model_from_json expects what Model.to_json() gave, but {json_string[:100]!r} is no model.")
    return model


__all__ = [
    "Functional",
    "Input",
    "Model",
    "Sequential",
    "clone_model",
    "load_model",
    "model_from_json",
    "save_model",
]
