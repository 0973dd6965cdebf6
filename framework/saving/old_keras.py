"""Convert what Keras wrote otherwise before 3.13 to today's form while a file is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...engine.objects.identifiers import Config

_NESTED_BEFORE = (3, 13)  # a single input or output of a functional model stood in a list
_OPTIMIZER_OPTIONS = ("is_legacy_optimizer", "jit_compile")  # of Keras 2, and of no meaning here
OLD_LAYERS = "_layer_checkpoint_dependencies"  # what Keras up to 2.13 called the list of a model's layers
_CUSTOM = "Custom>"  # Keras 2.12 to 2.15 put its own optimizers under this package


def modern_config(config: Config, keras_version: str) -> Any:
    """Return the config of a model, a layer or an optimizer as Keras writes it today.

    Args:
        config: what the file holds; it stays as it is.
        keras_version: of the Keras that wrote it, such as ``"2.12.0"``; empty if the file does not say.
    """
    parts = keras_version.split(".")[:2]
    if not all(part.isdigit() for part in parts):
        return config
    version = tuple(int(part) for part in parts)
    return _modern(config, version) if version < _NESTED_BEFORE else config


def _modern(config: object, version: tuple[int, ...]) -> object:
    if isinstance(config, list):
        return [_modern(item, version) for item in config]
    if not isinstance(config, Mapping):
        return config
    config = {name: _modern(value, version) for name, value in config.items()}
    if isinstance(config.get("output_layers"), list):
        config = {**config, **{name: _single(config[name]) for name in ("input_layers", "output_layers")}}
    if version[0] > 2:
        return config
    if "is_legacy_optimizer" in config or {"decay", "learning_rate"} <= config.keys():
        return _modern_optimizer(config)
    name = config.get("class_name")
    if isinstance(name, str) and name.startswith(_CUSTOM) and not config.get("module"):
        return {**config, "class_name": name.removeprefix(_CUSTOM), "module": "keras.optimizers"}
    return config


def _single(addresses: object) -> object:
    return addresses[0] if isinstance(addresses, list) and len(addresses) == 1 else addresses


def _modern_optimizer(config: Mapping[str, object]) -> dict[str, object]:
    """Drop the options that meant nothing; the decay of old optimizers becomes the schedule that it was."""
    modern = {name: value for name, value in config.items() if name not in (*_OPTIMIZER_OPTIONS, "decay")}
    if not config.get("decay"):
        return modern
    schedule = {"initial_learning_rate": config["learning_rate"], "decay_steps": 1, "decay_rate": config["decay"]}
    return {
        **modern,
        "learning_rate": {
            "module": "keras.optimizers.schedules",
            "class_name": "InverseTimeDecay",
            "config": schedule,
            "registered_name": None,
        },
    }


def modern_numbers(names: Sequence[str]) -> dict[str, str]:
    """Return the names of a model's layers in an old file, numbered as today: a layer that is called twice counts once.

    >>> modern_numbers(["dense", "dense_2", "conv2d"])
    {'dense': 'dense', 'dense_2': 'dense_1', 'conv2d': 'conv2d'}
    """
    repeats: dict[str, list[int]] = {}
    for name in names:
        kind, _, number = name.rpartition("_")
        if kind in names and number.isdigit():
            repeats.setdefault(kind, []).append(int(number))
    modern = {name: name for name in names}
    for kind, numbers in repeats.items():
        modern.update({f"{kind}_{number}": f"{kind}_{place}" for place, number in enumerate(sorted(numbers), 1)})
    return modern


def with_learning_rate(stored: Mapping[str, object], expected: Mapping[str, object]) -> dict[str, Any]:
    """Return an optimizer's arrays by today's positions: Keras 2 kept the learning rate, today's second, in the config.

    Args:
        stored: what a file holds.
        expected: what the optimizer holds, in the same terms.
    """
    if len(stored) != len(expected) - 1 or not stored.keys() < expected.keys() or len(stored) < 2:
        return dict(stored)
    later = {str(int(key) + 1): value for key, value in stored.items() if key != "0"}
    return {"0": stored["0"], "1": expected["1"], **later}


def in_order_of_variables(names: Sequence[str]) -> list[int]:
    """Return the positions of an optimizer's arrays in a legacy file, in today's order: iteration, then each
    variable's.

    Up to Keras 2.10, and in ``optimizers.legacy`` after it, all first moments came before all second ones.

    >>> in_order_of_variables(["Adam/iter:0", "Adam/a/m:0", "Adam/b/m:0", "Adam/a/v:0", "Adam/b/v:0"])
    [0, 1, 3, 2, 4]
    """
    places = list(range(len(names)))
    if not names or not names[0].endswith("/iter:0"):
        return places
    variables: dict[str, list[int]] = {}
    for place in places[1:]:
        variables.setdefault(names[place].rpartition("/")[0], []).append(place)
    return [0, *(place for held in variables.values() for place in held)]
