"""Calls of losses and metrics on values, arrays and symbols."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..engine.graph import Tensor, Variable
from ..engine.ops import convert_to_tensor
from ..layers.core.calling import is_symbolic


def as_argument(value: Any) -> Any:
    """`value` as an argument of a computation: numbers, arrays and (nested) lists of them as a tensor."""
    if value is None or isinstance(value, (str, bool, Tensor, Variable)):
        return value
    if isinstance(value, dict):
        return {key: as_argument(item) for key, item in value.items()}
    return convert_to_tensor(value)


def mask_of(value: Any) -> Any:
    """The mask that came with a tensor: which of its entries count; None if all do."""
    return value.annotations.get("mask") if isinstance(value, Tensor) else None


def on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``function(y_true, y_pred, **options)``, written over tensors, take arrays and lists as well."""

    @functools.wraps(function)
    def call(y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        if is_symbolic(y_true, y_pred):
            return function(y_true, y_pred, *args, **kwargs)
        return function(as_argument(y_true), as_argument(y_pred), *args, **kwargs)

    return call


__all__ = ["as_argument", "is_symbolic", "mask_of", "on_tensors"]
