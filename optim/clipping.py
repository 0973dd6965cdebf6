"""Clipping of gradients, by value and by norm."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ..engine import ops
from ..engine.common.quick_dataclass import dataclass
from ..engine.graph import IndexedSlices, Tensor, Variable
from ..engine.objects.arguments import check_optional_numbers
from ..engine.ops.base import as_array
from ..engine.ops.containers.indexed_slices import deduplicated

Gradient = Tensor | IndexedSlices
Bound = float | None


def on_values(gradient: Gradient, change: Callable[[Tensor], Tensor]) -> Gradient:
    """Return the gradient with its elements changed by a function that keeps zero zero."""
    return gradient.map_values(change) if isinstance(gradient, IndexedSlices) else change(gradient)


@dataclass(frozen=True)
class Clipping:
    """Settings by which gradients are clipped; at most one of the three is set.

    Attributes:
        clipnorm: the largest norm of each gradient.
        clipvalue: the largest size of each element.
        global_clipnorm: the largest norm of all gradients together.

    Source of clipping by norm: Pascanu et al., "On the Difficulty of Training Recurrent Neural Networks", 2013.
    """

    clipnorm: float | None = None
    clipvalue: float | None = None
    global_clipnorm: float | None = None

    def __post_init__(self) -> None:
        check_optional_numbers("Optimizer", **vars(self))
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            raise ValueError(f"Only one of clipnorm, clipvalue and global_clipnorm can be set; got {given}.")
        for name, value in given.items():
            if value < 0:
                raise ValueError(f"{name} must not be negative; got {value}.")

    def apply(self, gradients: Sequence[Gradient], wholes: Sequence[Any] = ()) -> list[Gradient]:
        """Return the clipped gradients. `IndexedSlices`, which must name each row once, stay what they are.

        Args:
            gradients: of variables.
            wholes: for each variable what it is a shard of, or None: shards are clipped by the norm of the whole.
        """
        if self.clipnorm:
            squares = _squares_of_wholes(gradients, wholes)
            limit = self.clipnorm
            return [_scaled(g, _factor(square, limit)) for g, square in zip(gradients, squares, strict=True)]
        if self.global_clipnorm:
            squares = _square_sum(gradients[0])
            for gradient in gradients[1:]:
                squares = squares + _square_sum(gradient)
            norm = ops.sqrt(squares)
            # An infinite norm makes NaNs, so that it is noticed.
            factor = self.global_clipnorm / ops.maximum(norm, self.global_clipnorm) + (norm - norm)
            return [_scaled(gradient, factor) for gradient in gradients]
        if self.clipvalue:
            limit = self.clipvalue
            return [on_values(gradient, lambda g: ops.clip(g, -limit, limit)) for gradient in gradients]
        return list(gradients)


def _scaled(gradient: Gradient, factor: Tensor) -> Gradient:
    return on_values(gradient, lambda g: g * factor)


def _square_sum(gradient: Gradient) -> Tensor:
    return ops.sum(ops.square(gradient.values if isinstance(gradient, IndexedSlices) else gradient))


def _squares_of_wholes(gradients: Sequence[Gradient], wholes: Sequence[Any]) -> list[Tensor]:
    squares = [_square_sum(gradient) for gradient in gradients]
    totals: dict[int, Tensor] = {}
    for square, whole in zip(squares, wholes, strict=False):
        if whole is not None:
            known = totals.get(id(whole))
            totals[id(whole)] = square if known is None else known + square
    return [totals.get(id(whole), square) for square, whole in itertools.zip_longest(squares, wholes)]


def _factor(squares: Tensor, limit: float) -> Tensor:
    return limit / ops.maximum(ops.sqrt(squares), limit)


class Clips:
    """The bounds of an optimizer's `clipping` as attributes of their own, which may be set before its next step."""

    clipping: Clipping
    _compiled: dict[str, Any]

    @property
    def clipnorm(self) -> Bound:
        """The largest norm of each gradient."""
        return self.clipping.clipnorm

    @clipnorm.setter
    def clipnorm(self, bound: Bound) -> None:
        self._clip("clipnorm", bound)

    @property
    def clipvalue(self) -> Bound:
        """The largest size of each element of each gradient."""
        return self.clipping.clipvalue

    @clipvalue.setter
    def clipvalue(self, bound: Bound) -> None:
        self._clip("clipvalue", bound)

    @property
    def global_clipnorm(self) -> Bound:
        """The largest norm of all gradients together."""
        return self.clipping.global_clipnorm

    @global_clipnorm.setter
    def global_clipnorm(self, bound: Bound) -> None:
        self._clip("global_clipnorm", bound)

    def _clip(self, name: str, bound: Bound) -> None:
        self.clipping = Clipping(**{**vars(self.clipping), name: bound})
        self._compiled.clear()  # steps at once were built with the old ones


def rows_once(gradient: IndexedSlices, variable: Variable) -> IndexedSlices:
    """Return a gradient in the variable's dtype, in which each row is named once: clipping looks at whole rows."""
    values, indices = ops.convert_to_tensor(gradient.values, variable.dtype), ops.convert_to_tensor(gradient.indices)
    whole = variable.shape if gradient.dense_shape is None else gradient.dense_shape
    return deduplicated(IndexedSlices(values, indices, whole))


def as_arrays(gradient: Any) -> Any:
    """Convert a gradient, or the parts of `IndexedSlices`, to arrays."""
    if not isinstance(gradient, IndexedSlices):
        return as_array(gradient)
    return IndexedSlices(*[None if field is None else as_array(field) for field in gradient])
