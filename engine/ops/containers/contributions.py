"""Contributions to a cotangent that are more than an addend: what an op's `grad` may return besides tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from ...graph.slices import IndexedSlices
from ...graph.tensor import Tensor
from ..arrays.shaping import expand_dims, reshape, shape, size
from ..run_time_shapes import runtime_shape


class Contribution(ABC):
    """A cotangent that an op's `grad` may return for an input instead of a tensor."""

    @abstractmethod
    def add_to(self, current: Any) -> Any:
        """Return the accumulated cotangent with this contribution added; `current` is None if this is the first."""


class PartialSum(Contribution):
    """A cotangent that consists of parts so far, put together when it is looked at."""

    @abstractmethod
    def put_together(self, sparse: bool) -> Any:
        """Return the cotangent as a tensor; as `IndexedSlices` if it consists of rows and `sparse` holds."""


def rows_of(x: Tensor, indices: Tensor, values: Tensor) -> IndexedSlices:
    """Return the cotangent of `x`, of which the rows at `indices`, of any shape, have the cotangents `values`."""
    if indices.shape == ():
        indices, values = expand_dims(indices, 0), expand_dims(values, 0)
    elif indices.shape is None or len(indices.shape) > 1:
        indices, values = reshape(indices, (-1,)), reshape(values, (size(indices), *shape(x)[1:]))
    return IndexedSlices(values, indices, runtime_shape(x))


__all__ = ["Contribution", "PartialSum", "rows_of"]
