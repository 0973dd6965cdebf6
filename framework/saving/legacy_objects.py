"""Configs of objects in the form of Keras 2, ``{"class_name": ..., "config": ...}`` (``keras.utils.legacy``).

Libraries for several versions of Keras, such as KerasTuner, write and read their own classes so. Files of models have
the form of `ab.saving.serialize_keras_object`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from ...engine.objects.registry import custom_object_scope, get_registered_name, get_registered_object

_NESTED = "__passive_serialization__"  # marks the config of an object in the config of another one


def serialize_keras_object(instance: object) -> object:
    """Return the class and config of an object, the name of a function or class, or None for None.

    Args:
        instance: a function, a class, or an object with `get_config`. Objects in its config are written likewise.

    Raises:
        ValueError: it is none of these.
    """
    if instance is None:
        return None
    if inspect.isfunction(instance):
        instance = inspect.unwrap(instance)
    get_config = getattr(instance, "get_config", None)
    if callable(get_config) and not isinstance(instance, type):
        settings: Mapping[str, object] = get_config()
        config = {name: _serialize_entry(value) for name, value in settings.items()}
        return {"class_name": get_registered_name(type(instance)), "config": config}
    if hasattr(instance, "__name__"):
        return get_registered_name(instance)
    raise ValueError(
        f"{instance!r} can't be written as a config: a {type(instance).__name__} has no get_config(). Define "
        "get_config(self), which returns the constructor's arguments as a dict."
    )


def _serialize_entry(value: object) -> object:
    is_object = not isinstance(value, type) and hasattr(value, "get_config")
    if not is_object and not hasattr(value, "__name__"):
        return value
    found = serialize_keras_object(value)
    return {**found, _NESTED: True} if isinstance(found, dict) else found


def deserialize_keras_object(
    identifier: object,
    module_objects: Mapping[str, object] | None = None,
    custom_objects: Mapping[str, object] | None = None,
    printable_module_name: str = "object",
) -> object:
    """Return the object that a config of this form describes, or that a name stands for.

    Args:
        identifier: what `serialize_keras_object` gave. By the name of a class an object made without arguments is
            returned, by that of a function the function. None and functions are returned as they are.
        module_objects, custom_objects: classes and functions by name, beside those that are registered.
        printable_module_name: the kind of object, for messages.

    Raises:
        ValueError: it names what is not known, or is nothing of the kind.
    """
    if identifier is None or inspect.isfunction(identifier):
        return identifier
    if isinstance(identifier, str):
        known = _known(identifier, module_objects, custom_objects, printable_module_name)
        return known() if isinstance(known, type) else known
    if not isinstance(identifier, Mapping) or not {"class_name", "config"} <= identifier.keys():
        raise ValueError(
            f"{identifier!r} describes no {printable_module_name}: expected a name, or a dict with class_name and "
            "config, as ab.utils.legacy.serialize_keras_object() gives it."
        )
    cls = _known(identifier["class_name"], module_objects, custom_objects, printable_module_name)
    config = identifier["config"]
    if isinstance(config, Mapping):
        config = {name: _entry(name, value, module_objects, custom_objects) for name, value in config.items()}
    with custom_object_scope(dict(custom_objects or {})):
        from_config: Callable[..., object] | None = getattr(cls, "from_config", None)
        return cls(**config) if from_config is None else from_config(config)


def _entry(
    name: object,
    value: object,
    module_objects: Mapping[str, object] | None,
    custom_objects: Mapping[str, object] | None,
) -> object:
    """Return an entry of a config, where it was an object or a function as that."""
    if isinstance(value, Mapping) and _NESTED in value:
        return deserialize_keras_object(value, module_objects, custom_objects, "entry of a config")
    if isinstance(value, str) and name != "name":
        found = get_registered_object(value, custom_objects, module_objects)
        return found if inspect.isfunction(found) else value
    return value


def _known(
    name: str, module_objects: Mapping[str, object] | None, custom_objects: Mapping[str, object] | None, kind: str
) -> Callable[..., object]:
    found: Callable[..., object] | None = get_registered_object(name, custom_objects, module_objects)
    if found is None:
        raise ValueError(
            f"{name!r} is no {kind} that is known here. Pass it in custom_objects={{{name!r}: ...}}, or decorate it "
            "with @ab.saving.register_keras_serializable()."
        )
    return found
