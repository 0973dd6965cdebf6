"""What is done with `IndexedSlices`: adding up, making them dense, taking them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.slices import IndexedSlices
from ..graph.tensor import Tensor
from .base import apply, cast, convert_to_tensor, runtime_shape
from .comparison import logical_and, where
from .cotangent import SlicesSum
from .creation import arange
from .gathering import PutRows
from .positions import boolean_mask
from .segments import segment_sum
from .shaping import expand_dims, reshape, shape, size
from .sorting import unique

__all__ = ["IndexedSlices"]


def slices_of(x: Tensor, indices: Tensor, values: Tensor) -> SlicesSum:
    """The cotangent of `x`, of which the rows at `indices`, of any shape, have the cotangents `values`."""
    if indices.shape == ():
        indices, values = expand_dims(indices, 0), expand_dims(values, 0)
    elif indices.shape is None or len(indices.shape) > 1:
        indices, values = reshape(indices, (-1,)), reshape(values, (size(indices), *shape(x)[1:]))
    return SlicesSum((IndexedSlices(values, indices, runtime_shape(x)),))


def to_dense(slices: IndexedSlices) -> Tensor:
    """The whole tensor."""
    return apply(PutRows(0, True, slices.shape), slices.values, slices.indices, slices.dense_shape)


def as_slices(cotangent: Any, like: Tensor) -> IndexedSlices:
    """A cotangent of `like` as `IndexedSlices`: all rows, if it is dense."""
    if isinstance(cotangent, SlicesSum):
        return cotangent.joined()
    if isinstance(cotangent, IndexedSlices):
        return cotangent
    return IndexedSlices(cotangent, arange(shape(cotangent)[0], dtype="int32"), runtime_shape(like))


def deduplicated(slices: IndexedSlices) -> IndexedSlices:
    """The same tensor with each row named once, by its position from the front; rows in ascending order."""
    rows, places = unique(from_the_front(slices), return_inverse=True)
    return IndexedSlices(segment_sum(slices.values, places, size(rows)), rows, slices.dense_shape)


def from_the_front(slices: IndexedSlices) -> Tensor:
    """The indices, none of them negative."""
    count = cast(convert_to_tensor(slices.dense_shape)[0], slices.indices.dtype)
    return where(slices.indices < 0, slices.indices + count, slices.indices)


def parts_of_rows(slices: IndexedSlices, wholes: Sequence[Tensor]) -> list[SlicesSum]:
    """Rows of tensors that lie one after the other, as rows of each of them."""
    indices, start = from_the_front(slices), convert_to_tensor(0, slices.indices.dtype)
    found: list[SlicesSum] = []
    for whole in wholes:
        count = cast(convert_to_tensor(shape(whole)[0]), indices.dtype)
        here = logical_and(indices >= start, indices < start + count)
        rows = IndexedSlices(
            boolean_mask(slices.values, here), boolean_mask(indices - start, here), runtime_shape(whole)
        )
        found.append(SlicesSum((rows,)))
        start = start + count
    return found
