"""Give ops of this package the signatures of TensorFlow: an argument `name`, and its names of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike


def of_one(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an op of one tensor as ``op(x, name=None)``."""

    def call(x: TensorLike, name: str | None = None) -> Tensor:
        return op(x)

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
