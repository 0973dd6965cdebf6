"""Optimizers: how gradients change variables. Each is a short composition of ops.

>>> import anabranch as ab
>>> w = ab.Variable([1.0, 2.0])
>>> ab.optim.SGD(learning_rate=0.5).apply([[1.0, 1.0]], [w])
>>> w.numpy()
array([0.5, 1.5], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..engine.common.names_elsewhere import OPTIM_MODULE
from ..engine.objects.on_demand import modules_by_name, on_demand
from ..engine.objects.registry import (
    deserialize_keras_object,
    find_by_name,
    get_registered_object,
    register_builtins_to_come,
    serialize_keras_object,
)
from . import schedules
from .optimizer import Optimizer

if TYPE_CHECKING:
    from .adafactor import Adafactor
    from .adam import Adam, Adamax, AdamW, Lamb, Nadam
    from .adaptive import Adadelta, Adagrad, Ftrl, Lion, RMSprop
    from .averaging import SWA, Lookahead, MovingAverage
    from .lbfgs import LBFGS
    from .loss_scale import LossScaleOptimizer
    from .multi import MultiOptimizer, OptimizerMap
    from .muon import Muon
    from .schedule_free import ScheduleFreeAdamW
    from .selective import Frozen, Selective
    from .sgd import SGD, Momentum

# By the file in this folder, the optimizers that it holds; it is imported when one of them is first asked for.
_OPTIMIZERS_IN: dict[str, str] = {
    "adafactor": "Adafactor",
    "adam": "Adam AdamW Adamax Lamb Nadam",
    "adaptive": "Adadelta Adagrad Ftrl Lion RMSprop",
    "averaging": "SWA Lookahead MovingAverage",
    "lbfgs": "LBFGS",
    "loss_scale": "LossScaleOptimizer",
    "multi": "MultiOptimizer",
    "muon": "Muon",
    "schedule_free": "ScheduleFreeAdamW",
    "selective": "Frozen Selective",
    "sgd": "Momentum SGD",
}
_OPTIMIZERS = modules_by_name(__name__, _OPTIMIZERS_IN)
_NAMES = {**_OPTIMIZERS, "OptimizerMap": f"{__name__}.multi"}
_BY_LOWER_NAME = {name.lower(): name for name in _OPTIMIZERS}
register_builtins_to_come("keras.optimizers", _NAMES)
_INSTEAD = {
    "legacy": "It held the optimizers of Keras 2, and its classes raise an error in Keras 3. "
    "Use those of the same names in anabranch.optimizers.",
}
_look_up, __dir__ = on_demand(globals(), _NAMES, _INSTEAD, OPTIM_MODULE)
if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__ = _look_up


def get(identifier: Any) -> Any:
    """Return the optimizer for `identifier`: a name in any case, a config, an `Optimizer` or its class, or None.

    Raises:
        ValueError: nothing has that name, or the object is not an optimizer.
    """
    if identifier is None or isinstance(identifier, Optimizer):
        return identifier
    found = deserialize(identifier) if isinstance(identifier, dict) else identifier
    if isinstance(found, Optimizer):
        return found
    if isinstance(identifier, str):
        builtin = _BY_LOWER_NAME.get(identifier.lower())
        known = get_registered_object(identifier) or (builtin and _look_up(builtin))
        found = known or find_by_name("optimizer", identifier, _BY_LOWER_NAME)
    if isinstance(found, type) and issubclass(found, Optimizer):
        return found()
    raise ValueError(
        f"{identifier!r} of type {type(identifier).__name__} is no optimizer: expected a name such as 'adam', an "
        "Optimizer, or a config."
    )


def serialize(optimizer: Optimizer) -> Any:
    """Return the config of an optimizer."""
    return serialize_keras_object(optimizer)


def deserialize(config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the optimizer that a config describes. The case of built-in names does not matter."""
    builtin = _BY_LOWER_NAME.get(str(config.get("class_name", "")).lower())
    if builtin is not None and not config.get("registered_name"):
        config = {**config, "class_name": builtin, "module": "keras.optimizers"}
    return deserialize_keras_object(config, custom_objects)


__all__ = [
    "LBFGS",
    "SGD",
    "SWA",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Frozen",
    "Ftrl",
    "Lamb",
    "Lion",
    "Lookahead",
    "LossScaleOptimizer",
    "Momentum",
    "MovingAverage",
    "MultiOptimizer",
    "Muon",
    "Nadam",
    "Optimizer",
    "OptimizerMap",
    "RMSprop",
    "ScheduleFreeAdamW",
    "Selective",
    "deserialize",
    "get",
    "schedules",
    "serialize",
]
