"""Masks over pairs of places: True where a query may look."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike

if TYPE_CHECKING:
    from ...engine.ops.arrays.shaping import DimLike


def causal_mask(targets: DimLike, sources: DimLike) -> Tensor:
    """Compute ``(1, targets, sources)``, True where a source is no later than the target."""
    rows, columns = _places(targets, sources)
    return ops.greater_equal(rows, columns)


def window_mask(targets: DimLike, sources: DimLike, width: int) -> Tensor:
    """Compute ``(1, targets, sources)``, True where a source is less than `width` places away from the target."""
    rows, columns = _places(targets, sources)
    return ops.less(ops.abs(rows - columns), width)


def _places(targets: DimLike, sources: DimLike) -> tuple[Tensor, Tensor]:
    rows = ops.reshape(ops.arange(targets, dtype="int32"), (1, targets, 1))
    return rows, ops.reshape(ops.arange(sources, dtype="int32"), (1, 1, sources))


@overload
def both(first: Tensor, second: Tensor | None) -> Tensor: ...
@overload
def both(first: Tensor | None, second: Tensor) -> Tensor: ...
@overload
def both(first: Tensor | None, second: Tensor | None) -> Tensor | None: ...
def both(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Return a mask that is True where both masks are; None is True everywhere."""
    if first is None or second is None:
        return second if first is None else first
    return ops.logical_and(first, second)


@overload
def as_mask(mask: None, axis: int | None = None) -> None: ...
@overload
def as_mask(mask: TensorLike, axis: int | None = None) -> Tensor: ...
@overload
def as_mask(mask: TensorLike | None, axis: int | None = None) -> Tensor | None: ...
def as_mask(mask: TensorLike | None, axis: int | None = None) -> Tensor | None:
    """Return `mask` as bools, with one axis more where one is asked for; None stays."""
    if mask is None:
        return None
    mask = ops.cast(mask, "bool")
    return mask if axis is None else ops.expand_dims(mask, axis)


def with_rank(mask: Tensor, rank: int, axis: int) -> Tensor:
    """Return `mask` with axes of size 1 put in at `axis` until it has that rank."""
    for _ in range(rank - len(mask.shape or ())):
        mask = ops.expand_dims(mask, axis)
    return mask
