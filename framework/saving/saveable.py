"""`check_saveable`: whether a model could be loaded again, found out before it is trained.

Every layer's config is written, read and made into a layer again, without weights. Functional models are what their
layers are; what `compile` was given is not part of it, as a file can be loaded without (``compile=False``).
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...engine.objects import names
from ...engine.objects.registry import deserialize_keras_object, serialize_keras_object, shared_reading_scope
from ...engine.ops.random.keys import global_generator
from ...layers.core.layer import Layer
from .archive import to_json

if TYPE_CHECKING:
    from ..models.model import Model


_NOT_CONFIG = ("build_config", "compile_config", "shared_object_id")
_PLAIN = (bool, int, float, str)


def check_saveable(model: Model, custom_objects: Mapping[str, object] | None = None, safe_mode: bool = True) -> None:
    """Check that what `model.save` writes can be loaded again: each layer is written and made again from its config.

    Args:
        model: the model; it is not changed.
        custom_objects: classes and functions of yours that `load_model` will be given.
        safe_mode: whether it will be loaded in safe mode, in which layers that hold lambdas are refused.

    Raises:
        ValueError: some layers could not be loaded; the message names each, and what mends it.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((2,)), ab.layers.Lambda(lambda x: x * 2, name="twice")])
    >>> check_saveable(model)
    Traceback (most recent call last):
    ValueError: Model 'sequential...' could not be loaded again:
      layer 'twice' (Lambda): ...
    """
    failed: dict[int, str] = {}
    with _unnoticed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what saving warns of, it warns of when it saves
        for layer in reversed(model._flatten_layers()):
            if _is_container(layer) or any(id(inner) in failed for inner in layer._flatten_layers(include_self=False)):
                continue  # a container is what its layers are, and what is inside was listed already
            problem = _problem(layer, custom_objects, safe_mode)
            if problem:
                failed[id(layer)] = f"\n  layer {layer.name!r} ({type(layer).__name__}): {problem}"
    if failed:
        raise ValueError(f"Model {model.name!r} could not be loaded again:{''.join(reversed(failed.values()))}")


@contextmanager
def _unnoticed() -> Generator[None]:
    """Undo after the block what making layers changes in default names, and in the next random numbers."""
    generator = global_generator()
    before, counts = generator.state, dict(names._counts)
    try:
        yield
    finally:
        generator.state = before
        names._counts.clear()
        names._counts.update(counts)


def _is_container(layer: Layer) -> bool:
    """Test whether a model is nothing but its layers."""
    from ..models.constructors import has_own_constructor
    from ..models.model import Functional
    from ..models.sequential import Sequential

    return isinstance(layer, (Functional, Sequential)) and not has_own_constructor(type(layer))


def _problem(layer: Layer, custom_objects: Mapping[str, object] | None, safe_mode: bool) -> str:
    """Return the reason why a layer can't be loaded; empty if it can."""
    try:
        written = _without_builds(serialize_keras_object(layer))
        text = to_json(written)
        with shared_reading_scope():
            again = deserialize_keras_object(json.loads(text), custom_objects, safe_mode)
        found = json.loads(to_json(_without_builds(serialize_keras_object(again))))
    except Exception as error:  # whatever a layer's own methods raise
        return str(error) or type(error).__name__
    return _difference(layer, json.loads(text)["config"], found["config"])


def _without_builds(config: object) -> Any:
    """Return a config without what would make weights."""
    if isinstance(config, list):
        return [_without_builds(item) for item in config]
    if not isinstance(config, dict):
        return config
    return {key: _without_builds(value) for key, value in config.items() if key not in _NOT_CONFIG}


def _difference(layer: Layer, written: Mapping[str, object], found: Mapping[str, object]) -> str:
    """Describe what a layer of the user's own loses on the way."""
    if type(layer).__module__.startswith(__name__.partition(".")[0] + "."):
        return ""
    remedy = f"Let get_config() of {type(layer).__name__} return every argument of its constructor as it was given."
    for key, value in written.items():
        if json.dumps(found.get(key)) != json.dumps(value):
            return f"{key!r} is {_short(value)} in its config, but {_short(found.get(key))} when it is loaded. {remedy}"
    for name, parameter in inspect.signature(type(layer).__init__).parameters.items():
        value = vars(layer).get(name, parameter.default)
        if name not in written and isinstance(value, _PLAIN) and value != parameter.default:
            return f"its argument {name}={value!r} is not in its config, and would be {parameter.default!r}. {remedy}"
    return ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
