"""Constraints: projections applied to a weight after each update."""

from __future__ import annotations

from typing import Any

from .. import ops
from ..common.keywords import ChecksKeywords
from ..graph.tensor import Tensor
from .identifiers import ConstraintLike
from .registry import deserialize_keras_object, get_instance, register_builtins, serialize_keras_object

_EPSILON = 1e-7


class Constraint(ChecksKeywords):
    """The base of constraints. Subclasses define ``__call__(w)``, which gives the projected weight: here `w` itself."""

    def __call__(self, w: Any) -> Any:
        return w

    def get_config(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Constraint:
        return cls(**config)


def _norms(w: Any, axis: Any) -> Tensor:
    return ops.sqrt(ops.sum(ops.square(w), axis=axis, keepdims=True))


class MaxNorm(Constraint):
    """Norms along `axis` of at most `max_value`.

    Args:
        max_value: the largest norm.
        axis: the axis (or axes) of the incoming weights of a unit: 0 for a Dense kernel.
    """

    def __init__(self, max_value: float = 2, axis: Any = 0) -> None:
        self.max_value = max_value
        self.axis = axis

    def __call__(self, w: Any) -> Tensor:
        norms = _norms(w, self.axis)
        return w * (ops.clip(norms, 0.0, float(self.max_value)) / (norms + _EPSILON))

    def get_config(self) -> dict[str, Any]:
        return {"max_value": self.max_value, "axis": self.axis}


class NonNeg(Constraint):
    """No negative weights."""

    def __call__(self, w: Any) -> Tensor:
        return ops.relu(w)


class UnitNorm(Constraint):
    """Norms along `axis` of 1."""

    def __init__(self, axis: Any = 0) -> None:
        self.axis = axis

    def __call__(self, w: Any) -> Tensor:
        return w / (_norms(w, self.axis) + _EPSILON)

    def get_config(self) -> dict[str, Any]:
        return {"axis": self.axis}


class MinMaxNorm(Constraint):
    """Norms along `axis` between `min_value` and `max_value`, approached at `rate`."""

    def __init__(self, min_value: float = 0.0, max_value: float = 1.0, rate: float = 1.0, axis: Any = 0) -> None:
        self.min_value = min_value
        self.max_value = max_value
        self.rate = rate
        self.axis = axis

    def __call__(self, w: Any) -> Tensor:
        norms = _norms(w, self.axis)
        clipped = ops.clip(norms, float(self.min_value), float(self.max_value))
        wanted = self.rate * clipped + (1.0 - self.rate) * norms
        return w * (wanted / (norms + _EPSILON))

    def get_config(self) -> dict[str, Any]:
        return {"min_value": self.min_value, "max_value": self.max_value, "rate": self.rate, "axis": self.axis}


max_norm = MaxNorm
non_neg = NonNeg
unit_norm = UnitNorm
min_max_norm = MinMaxNorm

_CLASSES = {"MaxNorm": MaxNorm, "NonNeg": NonNeg, "UnitNorm": UnitNorm, "MinMaxNorm": MinMaxNorm}
register_builtins("keras.constraints", _CLASSES)


def get(identifier: ConstraintLike, argument: str = "constraint") -> Any:
    """Return the constraint that a name, a config, a class or a function stands for; None stays None.

    Raises:
        ValueError: it stands for no constraint.
    """
    names = {"max_norm": MaxNorm, "non_neg": NonNeg, "unit_norm": UnitNorm, "min_max_norm": MinMaxNorm}
    return get_instance(argument, identifier, {**_CLASSES, **names})


def serialize(constraint: Any) -> Any:
    """Return the config of a constraint."""
    return serialize_keras_object(constraint)


def deserialize(config: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the constraint that a config describes."""
    return deserialize_keras_object(config, custom_objects)


__all__ = [
    "Constraint",
    "MaxNorm",
    "MinMaxNorm",
    "NonNeg",
    "UnitNorm",
    "deserialize",
    "get",
    "max_norm",
    "min_max_norm",
    "non_neg",
    "serialize",
    "unit_norm",
]
