"""Regularizers: penalties on weights or outputs that are added to the loss."""

from __future__ import annotations

import math
from typing import Any

from .. import ops
from ..common.keywords import ChecksKeywords
from ..graph.tensor import Tensor
from .identifiers import RegularizerLike
from .registry import deserialize_keras_object, get_instance, register_builtins, serialize_keras_object


class Regularizer(ChecksKeywords):
    """The base of regularizers. Subclasses define ``__call__(x)``, which gives a scalar."""

    def __call__(self, x: Any) -> Tensor:
        raise NotImplementedError(f"Regularizer {type(self).__name__} does not define __call__(x).")

    def get_config(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Regularizer:
        return cls(**config)


class L1L2(Regularizer):
    """``l1 * sum(|x|) + l2 * sum(x ** 2)``.

    Args:
        l1, l2: how strong the two are; from 0 up.

    Raises:
        ValueError: one of them is negative or not finite.

    >>> import anabranch as ab
    >>> layer = ab.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=ab.regularizers.L1L2(0.1, 0.2))
    >>> _ = layer([[1.0, 2.0]])
    >>> [round(float(ab.Session().run(loss)), 4) for loss in layer.losses]
    [0.6]
    """

    def __init__(self, l1: float | None = 0.0, l2: float | None = 0.0) -> None:
        self.l1 = _factor("l1", l1)
        self.l2 = _factor("l2", l2)

    def __call__(self, x: Any) -> Tensor:
        x = ops.convert_to_tensor(x)
        penalty = ops.convert_to_tensor(0.0, dtype=x.dtype)
        if self.l1:
            penalty = penalty + self.l1 * ops.sum(ops.abs(x))
        if self.l2:
            penalty = penalty + self.l2 * ops.sum(ops.square(x))
        return penalty

    def get_config(self) -> dict[str, Any]:
        return {"l1": self.l1, "l2": self.l2}


class L1(L1L2):
    """``l1 * sum(|x|)``; for the arguments see `L1L2`."""

    def __init__(self, l1: float | None = 0.01) -> None:
        super().__init__(l1=0.01 if l1 is None else l1)

    def get_config(self) -> dict[str, Any]:
        return {"l1": self.l1}


class L2(L1L2):
    """``l2 * sum(x ** 2)``; for the arguments see `L1L2`."""

    def __init__(self, l2: float | None = 0.01) -> None:
        super().__init__(l2=0.01 if l2 is None else l2)

    def get_config(self) -> dict[str, Any]:
        return {"l2": self.l2}


class OrthogonalRegularizer(Regularizer):
    """Pulls the rows (or columns) of a matrix towards being orthogonal.

    Args:
        factor: the strength.
        mode: ``"rows"`` or ``"columns"``.
    """

    def __init__(self, factor: float = 0.01, mode: str = "rows") -> None:
        if mode not in ("rows", "columns"):
            raise ValueError(f"OrthogonalRegularizer: mode must be 'rows' or 'columns', got {mode!r}.")
        self.factor = _factor("factor", factor)
        self.mode = mode

    def __call__(self, x: Any) -> Tensor:
        x = ops.convert_to_tensor(x)
        if x.ndim != 2 or x.shape is None:
            raise ValueError(f"OrthogonalRegularizer takes matrices, got shape {x.shape}.")
        axis = 1 if self.mode == "rows" else 0
        unit = ops.l2_normalize(x, axis=axis)
        products = (
            ops.matmul(unit, ops.transpose(unit)) if self.mode == "rows" else ops.matmul(ops.transpose(unit), unit)
        )
        size: Any = x.shape[1 - axis]  # weights have known sizes
        off_diagonal = products * (1.0 - ops.eye(size, dtype=x.dtype))
        return self.factor * 0.5 * ops.sum(ops.abs(off_diagonal)) / max(1.0, size * (size - 1.0) / 2.0)

    def get_config(self) -> dict[str, Any]:
        return {"factor": self.factor, "mode": self.mode}


def _factor(name: str, value: Any) -> float:
    value = 0.0 if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"A regularizer's {name} must be a finite number from 0 up, got {value!r}.")
    return float(value)


l1 = L1
l2 = L2
l1_l2 = L1L2
orthogonal_regularizer = OrthogonalRegularizer

_CLASSES = {"L1": L1, "L2": L2, "L1L2": L1L2, "OrthogonalRegularizer": OrthogonalRegularizer}
register_builtins("keras.regularizers", _CLASSES)


def get(identifier: RegularizerLike, argument: str = "regularizer") -> Any:
    """Return the regularizer that a name, a config, a class or a function stands for; None stays None.

    Raises:
        ValueError: it stands for no regularizer.
    """
    both = L1L2(0.01, 0.01)  # by name there is no other way to say how strong
    names = {"l1": L1, "l2": L2, "l1_l2": both, "l1l2": L1L2, "orthogonal_regularizer": OrthogonalRegularizer}
    return get_instance(argument, identifier, {**_CLASSES, **names})


def serialize(regularizer: Any) -> Any:
    """Return the config of a regularizer."""
    return serialize_keras_object(regularizer)


def deserialize(config: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the regularizer that a config describes."""
    return deserialize_keras_object(config, custom_objects)


__all__ = [
    "L1",
    "L1L2",
    "L2",
    "OrthogonalRegularizer",
    "Regularizer",
    "deserialize",
    "get",
    "l1",
    "l1_l2",
    "l2",
    "orthogonal_regularizer",
    "serialize",
]
