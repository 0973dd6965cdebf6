"""Positions of rows counted from the front, and rows taken apart by them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import ErrorSample, Op, Sample, as_scalar_or_array
from ...graph.slices import IndexedSlices
from ...graph.spec import TensorSpec
from ...graph.tensor import Tensor
from ..base import apply, cast, convert_to_tensor
from ..math.comparison import logical_and
from ..run_time_shapes import runtime_shape
from .gathering import checked_positions
from .positions import boolean_mask
from .shaping import shape


@dataclass(frozen=True)
class FrontPositions(Op):
    """Inputs: indices, the size of an axis. Positions along it, int64; negative indices count from the end."""

    view: ClassVar[bool] = True  # int64 indices of which none is negative

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec(inputs[0].shape, dtypes.int64)

    def run(self, xp: Any, *inputs: Any) -> Any:
        indices, size = inputs
        return as_scalar_or_array(checked_positions(xp, indices, int(size), 0, wrap=True).astype(np.int64, copy=False))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        indices, size = np.array([[2, -1], [0, -5]], "int32"), np.int32(5)
        yield Sample(cls(), [indices, size], np.array([[2, 4], [0, 0]], "int64"), (), label="matrix")
        yield Sample(cls(), [indices[0, 1], size], np.int64(4), (), label="scalar")
        yield Sample(cls(), [indices[:0, 0], size], np.zeros(0, "int64"), (), label="empty")
        yield Sample(cls(), [np.array([-1, 100], "int8"), np.int32(300)], np.array([299, 100]), (), label="int8")
        yield Sample(cls(), [np.array([3, 0]), size], np.array([3, 0]), (), label="positions")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        size = np.int32(5)
        yield ErrorSample(lambda: cls().run(np, np.array([5]), size), IndexError, "index 5 .* size 5", "behind")
        yield ErrorSample(lambda: cls().run(np, np.array([-6]), size), IndexError, "index -6 .* size 5", "before")


def from_the_front(slices: IndexedSlices) -> Tensor:
    """Return the indices counted from the front, int64. At run time, IndexError: one is out of bounds."""
    return apply(FrontPositions(), slices.indices, convert_to_tensor(slices.whole_shape(), "int32")[0])


def parts_of_rows(slices: IndexedSlices, wholes: Sequence[Tensor]) -> list[IndexedSlices]:
    """Return rows of tensors that are one after the other, as rows of each of them."""
    indices, start = from_the_front(slices), convert_to_tensor(0, "int64")
    found: list[IndexedSlices] = []
    for whole in wholes:
        count = cast(convert_to_tensor(shape(whole)[0]), "int64")
        here = logical_and(indices >= start, indices < start + count)
        rows = boolean_mask(slices.values, here)
        found.append(IndexedSlices(rows, boolean_mask(indices - start, here), runtime_shape(whole)))
        start = start + count
    return found


__all__ = ["FrontPositions", "from_the_front", "parts_of_rows"]
