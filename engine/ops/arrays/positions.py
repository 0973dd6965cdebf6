"""From values to positions and back: one_hot, nonzero, argwhere, boolean_mask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType, DTypeLike, as_dtype
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows
from ...graph.graph import Operation
from ...graph.op import ErrorSample, Op, Sample
from ...graph.spec import TensorSpec
from ...graph.tensor import Tensor
from ..base import TensorLike, apply, apply_multi, cast, convert_to_tensor, normalize_axis
from ..left_out import LeavesOut


@dataclass(frozen=True)
class OneHot(LeavesOut, Op):
    """A new axis of `classes` elements, with a one at the place that the integer names; zeros if there is none."""

    classes: int
    axis: int
    dtype: DType
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis",)
    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if not dtypes.is_integer(x.dtype):
            raise TypeError(f"one_hot needs integers, got {x}. Cast them with ops.cast(x, 'int32').")
        if x.shape is None:
            return TensorSpec(None, self.dtype)
        axis = normalize_axis(self.axis, len(x.shape) + 1)
        return TensorSpec((*x.shape[:axis], self.classes, *x.shape[axis:]), self.dtype)

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        axis = self.axis % (rank + 1)
        return (*[(Follows(0, k),) for k in range(axis)], (), *[(Follows(0, k),) for k in range(axis, rank)])

    def ids_and_count(self, *inputs: Any) -> tuple[Any, int]:
        return inputs[0], self.classes

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        flat = xp.asarray(x).reshape(-1)
        hot = xp.zeros((flat.size, self.classes), self.dtype)
        valid = ((flat >= 0) & (flat < self.classes)).nonzero()[0]
        hot[valid, flat[valid]] = 1
        hot = hot.reshape((*x.shape, self.classes))
        return hot if self.axis in (-1, hot.ndim - 1) else xp.moveaxis(hot, -1, self.axis)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1, 0], [2, -1]], "int32")
        hot = (x[..., None] == np.arange(3)).astype("float32")
        yield Sample(cls(3, -1, dtypes.float32), [x], hot, differentiable=(), label="last")
        yield Sample(cls(3, 0, dtypes.int32), [x], np.moveaxis(hot, -1, 0).astype("int32"), differentiable=())
        yield Sample(cls(2, -1, dtypes.bool_), [np.int64(5)], np.zeros(2, "bool"), differentiable=(), label="0-d")
        empty = np.zeros((0, 2, 3), "float32")
        yield Sample(cls(3, 2, dtypes.float32), [x[:0]], empty, differentiable=(), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec = TensorSpec((2,), dtypes.float32)
        yield ErrorSample(lambda: cls(3, -1, dtypes.float32).infer(spec), TypeError, "needs integers")


def one_hot(x: TensorLike, num_classes: int, axis: int = -1, dtype: DTypeLike = None, sparse: bool = False) -> Tensor:
    """Return vectors with a one at the place that each integer names; zeros for integers that are out of range.

    The range is from 0 to `num_classes` - 1.

    Args:
        x: integers of any shape; floats are cut to integers, as by `cast`. `debugging.check_indices` makes those
            outside errors.
        num_classes: the size of the new axis.
        axis: where the new axis stands in the result.
        dtype: of the result; `config.floatx()` by default.
        sparse: sparse tensors are not supported.

    >>> import anabranch as ab
    >>> ab.ops.one_hot([0, 2], 3)
    Tensor([[1., 0., 0.],
            [0., 0., 1.]], dtype=float32)
    """
    if sparse:
        raise ValueError("one_hot(sparse=True): sparse tensors are not supported. Leave `sparse` out.")
    classes = convert_to_tensor(x)
    if dtypes.is_floating(classes.dtype):
        classes = cast(classes, "int32")
    return apply(OneHot(int(num_classes), axis, as_dtype(dtype)), classes)


@dataclass(frozen=True)
class Nonzero(Op):
    """The positions of the elements that are not zero, in row-major order: one vector of indices for each axis."""

    shape_from_values: ClassVar[bool] = True
    rank: int

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        if inputs[0].rank not in (None, self.rank):
            raise ValueError(f"nonzero: {inputs[0]} has {inputs[0].rank} axes; {self.rank} were expected.")
        return (TensorSpec((None,), dtypes.int32),) * self.rank

    def run(self, xp: Any, *inputs: Any) -> Any:
        found = tuple(positions.astype(dtypes.int32) for positions in inputs[0].nonzero())
        return found[0] if self.rank == 1 else found

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[0, 2], [3, 0]], "float32")
        expected = (np.array([0, 1], "int32"), np.array([1, 0], "int32"))
        yield Sample(cls(2), [x], expected, differentiable=(), label="matrix")
        yield Sample(cls(1), [x[0] > 0], np.array([1], "int32"), differentiable=(), label="bools")
        yield Sample(cls(1), [x[0, :0]], np.zeros(0, "int32"), differentiable=(), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: cls(2).infer(TensorSpec((2,), dtypes.float32)), ValueError, "2 were expected")


@dataclass(frozen=True)
class Argwhere(Op):
    """The positions of the elements that are not zero, in row-major order, as the rows of a matrix."""

    shape_from_values: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return TensorSpec((None, inputs[0].rank), dtypes.int32)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.argwhere(inputs[0]).astype(dtypes.int32)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[0, 2], [3, 0]], "float32")
        yield Sample(cls(), [x], np.array([[0, 1], [1, 0]], "int32"), differentiable=(), label="matrix")
        yield Sample(cls(), [x[:0]], np.zeros((0, 2), "int32"), differentiable=(), label="empty")
        yield Sample(cls(), [np.float32(2)], np.zeros((1, 0), "int32"), differentiable=(), label="0-d")


def nonzero(x: TensorLike) -> tuple[Tensor, ...]:
    """Return the positions of nonzero elements: one int32 vector for each axis; its size is known at run time.

    Raises:
        ValueError: `x` is a scalar or of unknown rank.
    """
    tensor = convert_to_tensor(x)
    if not tensor.shape:
        raise ValueError(f"nonzero needs a known number of axes, at least one; got {tensor!r}. Use ops.argwhere.")
    return apply_multi(Nonzero(len(tensor.shape)), tensor)


def argwhere(x: TensorLike) -> Tensor:
    """Return the positions of nonzero elements as the rows of an int32 matrix (TensorFlow's ``where(x)``).

    >>> import anabranch as ab
    >>> ab.ops.argwhere([[0, 7], [8, 0]])
    Tensor([[0, 1],
            [1, 0]], dtype=int32)
    """
    return apply(Argwhere(), convert_to_tensor(x))


def boolean_mask(tensor: TensorLike, mask: TensorLike, axis: int | None = None) -> Tensor:
    """Return the parts of `tensor` where `mask` is true; the axes of the mask, from `axis` on, become one.

    Args:
        tensor: a tensor.
        mask: bools of a known rank, and of the shape of these axes of `tensor`.
        axis: the first of these axes; None for 0.

    Raises:
        TypeError: the mask is not of bools, or of unknown rank.
        IndexError: its shape does not fit.
    """
    values, chosen = convert_to_tensor(tensor), convert_to_tensor(mask)
    if chosen.dtype != dtypes.bool_:
        raise TypeError(f"boolean_mask: the mask must be of bools, got {chosen!r}. Compare, or cast it with ops.cast.")
    first = normalize_axis(axis or 0, values.ndim)
    return values[(slice(None),) * first + (chosen,)]


__all__ = ["argwhere", "boolean_mask", "nonzero", "one_hot"]
