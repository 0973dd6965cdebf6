"""Give ops of this package the signatures of TensorFlow: an argument `name`, and its names of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike


def of_one(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an op of one tensor as ``op(x, name=None)``."""

    def call(x: TensorLike, name: str | None = None) -> Tensor:
        return op(x)

    return call


def of_input(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an op of one tensor as ``op(input, name=None)``."""

    def call(input: TensorLike, name: str | None = None) -> Tensor:
        return op(input)

    return call


def of_features(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an op of one tensor as ``op(features, name=None)``."""

    def call(features: TensorLike, name: str | None = None) -> Tensor:
        return op(features)

    return call


def of_two(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an op of two tensors as ``op(x, y, name=None)``."""

    def call(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
        return op(x, y)

    return call


def reduction(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a reduction as ``op(input_tensor, axis=None, keepdims=False, name=None)``."""

    def reduce(
        input_tensor: TensorLike,
        axis: int | Sequence[int] | None = None,
        keepdims: bool = False,
        name: str | None = None,
    ) -> Tensor:
        return op(input_tensor, axis=axis, keepdims=keepdims)

    return reduce


def name_functions(module: dict[str, Any]) -> None:
    """Name functions that a wrapper has made as their module does: errors of Python about arguments show that name."""
    for name, function in module.items():
        made = isinstance(function, FunctionType) and "<locals>" in function.__qualname__
        if made and function.__module__.startswith(__package__ or ""):
            function.__name__ = function.__qualname__ = name
            function.__module__ = module["__name__"]
