"""Batching of ops that take stacks already: of matrices and rows in their last axes, of images along their first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..common.quick_dataclass import dataclass
from ..graph.graph import Operation
from ..graph.tensor import Tensor
from ..ops.arrays.axes import moveaxis
from ..ops.arrays.creation import zeros
from ..ops.arrays.joining import concatenate
from ..ops.arrays.shaping import dim, reshape
from ..ops.base import apply, convert_to_tensor
from ..ops.math.comparison import maximum
from ..ops.neural.convolution import Conv, ConvFilterGrad, ConvInputGrad
from ..ops.neural.pooling import AveragePool, AveragePoolGrad, MaxPool, MaxPoolGather, MaxPoolGrad, MaxPoolPlaces
from .batching import Batch, Rule, Value, changed


@dataclass(frozen=True)
class Merged:
    """An op whose first axis is a batch of its own: the two become one for it.

    Attributes:
        takes: the positions of the inputs with that axis. Others must be the same for all.
        shape: the position of the input that holds the result's shape, where there is one.
    """

    takes: tuple[int, ...] = (0,)
    shape: int | None = None

    def __call__(self, batch: Batch, node: Operation, values: list[Value]) -> Sequence[Value] | None:
        if any(value.batched for k, value in enumerate(values) if k not in self.takes):
            return None
        if any(node.inputs[k].ndim is None for k in self.takes):
            return None
        tensors = [batch.batched(value) if k in self.takes else value.tensor for k, value in enumerate(values)]
        count = dim(tensors[self.takes[0]], 1)
        for k in self.takes:
            tensors[k] = _merged(tensors[k], batch.size * count)
        op: Any = node.op
        if self.shape is not None:
            shape = op.shape
            total = convert_to_tensor([batch.size * count], "int32")
            tensors[self.shape] = concatenate([total, tensors[self.shape][1:]])
            known = tensors[self.takes[0]].shape
            op = changed(op, shape=None if shape is None or known is None else (known[0], *shape[1:]))
        found = apply(op, *tensors)
        sizes = [dim(found, axis) for axis in range(1, len(found.shape or ()))]
        return [Value(reshape(found, (batch.size, count, *sizes)), batched=True)]


def _merged(tensor: Tensor, total: Any) -> Tensor:
    return reshape(tensor, (total, *[dim(tensor, axis) for axis in range(2, len(tensor.shape or ()))]))


# --- convolutions whose kernels differ ------------------------------------------------------------------------------


def convolution(batch: Batch, node: Operation, values: list[Value]) -> Sequence[Value] | None:
    """Convolve with one kernel, where examples are more images; with a kernel each, they are groups of channels."""
    if values[1].batched:
        return of_groups(batch, node, values)
    return Merged((0,), None if isinstance(node.op, Conv) else 2)(batch, node, values)


def of_groups(batch: Batch, node: Operation, values: list[Value]) -> Sequence[Value] | None:
    """Convolve, or take its gradient, where all operands differ: the examples are side by side as channels."""
    first, second, *shape = values
    if None in (node.inputs[0].ndim, node.inputs[1].ndim) or any(value.batched for value in shape):
        return None
    if isinstance(batch.size, int) and batch.size == 0:
        return None
    size = maximum(batch.size, 1) if isinstance(batch.size, Tensor) else batch.size  # there are no 0 groups
    tensors = [_side_by_side(batch, value, size) for value in (first, second)]
    op: Any = node.op
    if shape:
        vector, static = shape[0].tensor, op.shape
        tensors.append(concatenate([vector[:-1], reshape(vector[-1] * size, (1,))]))
        op = changed(op, shape=None if static is None else (*static[:-1], _times(static[-1], size)))
    found = apply(op, *tensors)
    rank = len(found.shape or ())
    sizes = [dim(found, axis) for axis in range(rank - 1)]
    channels = (node.outputs[0].shape or (None,))[-1]
    own = dim(found, rank - 1) // size if channels is None else channels
    parts = moveaxis(reshape(found, (*sizes, size, own)), rank - 1, 0)
    return [Value(parts if size is batch.size else parts[: batch.size], batched=True)]


def _times(channels: int | None, size: Any) -> int | None:
    return channels * size if isinstance(channels, int) and isinstance(size, int) else None


def _side_by_side(batch: Batch, value: Value, size: Any) -> Tensor:
    """Return the examples' channels, one after the other, in the last axis; without examples, zeros of one."""
    tensor = batch.batched(value)
    rank = len(tensor.shape or ())
    if size is not batch.size:
        filling = zeros((size - batch.size, *[dim(tensor, axis) for axis in range(1, rank)]), tensor.dtype)
        tensor = concatenate([tensor, filling])
    moved = moveaxis(tensor, 0, rank - 2)
    sizes = [dim(moved, axis) for axis in range(rank)]
    return reshape(moved, (*sizes[:-2], size * dim(tensor, rank - 1)))


RULES: dict[type[Any], Rule] = {
    Conv: convolution,
    ConvInputGrad: convolution,
    ConvFilterGrad: of_groups,
    AveragePool: Merged(),
    AveragePoolGrad: Merged(shape=1),
    MaxPool: Merged(),
    MaxPoolPlaces: Merged((0, 1)),
    MaxPoolGather: Merged((0, 1)),
    MaxPoolGrad: Merged((0, 1), shape=2),
}

__all__ = ["RULES", "Merged"]
