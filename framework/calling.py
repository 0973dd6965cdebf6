"""Calls of losses and metrics on values, arrays and symbols."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..engine.graph import Tensor, Variable
from ..engine.ops import convert_to_tensor
from ..layers.core.calling import is_symbolic

if TYPE_CHECKING:
    from ..engine.ops.base import TensorLike

F = TypeVar("F", bound=Callable[..., Tensor])


def as_argument(value: Any) -> Any:
    """Return `value` as an argument of a computation: numbers, arrays and (nested) lists of them become a tensor."""
    if value is None or isinstance(value, (str, bool, Tensor, Variable)):
        return value
    if isinstance(value, dict):
        return {key: as_argument(item) for key, item in value.items()}
    return convert_to_tensor(value)


def mask_of(value: object) -> Any:
    """Return the mask that came with a tensor: which of its entries count; None if all do."""
    return value.annotations.get("mask") if isinstance(value, Tensor) else None


def on_tensors(function: F) -> F:
    """Let ``function(y_true, y_pred, **options)``, written over tensors, take arrays and lists as well."""

    @functools.wraps(function)
    def call(y_true: TensorLike, y_pred: TensorLike, *args: object, **kwargs: object) -> Tensor:
        if is_symbolic(y_true, y_pred):
            return function(y_true, y_pred, *args, **kwargs)
        return function(as_argument(y_true), as_argument(y_pred), *args, **kwargs)

    return cast("F", call)  # `wraps` does not keep the names of parameters for type checkers


__all__ = ["as_argument", "is_symbolic", "mask_of", "on_tensors"]
