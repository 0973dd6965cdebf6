"""Running totals along an axis: cumulative sums and products, and the linear recurrence that is their gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DTypeLike
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows, axes_from_front, same_axes_map
from ..arrays.shaping import ravel
from ..base import (
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    cast,
    check_numbers,
    convert_to_tensor,
    normalize_axis,
)


def axis_attribute(axis: int, rank: int | None) -> int:
    """Return `axis` as ops keep it: counted from the front where the rank is known, else as given."""
    return axis if rank is None else normalize_axis(axis, rank)


def _flip(x: Any, axis: int) -> Any:
    index: list[Any] = [slice(None)] * x.ndim
    index[axis] = slice(None, None, -1)
    return x[tuple(index)]


def _shift(xp: Any, x: Any, axis: int, first: float) -> Any:
    """Return `x` moved by one along `axis`: `first` comes in, the last element falls out."""
    if x.shape[axis] == 0:
        return x.copy()
    moved = xp.empty_like(x)
    source: list[Any] = [slice(None)] * x.ndim
    target: list[Any] = [slice(None)] * x.ndim
    source[axis], target[axis] = slice(None, -1), slice(1, None)
    moved[tuple(target)] = x[tuple(source)]
    target[axis] = slice(0, 1)
    moved[tuple(target)] = first
    return moved


@dataclass(frozen=True)
class RunningOp(Op, abstract=True):
    """Base: running totals along `axis`; `exclusive` leaves the element itself out, `reverse` runs from the end."""

    axis: int
    exclusive: bool = False
    reverse: bool = False
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis",)

    def infer(self, *inputs: Any) -> TensorSpec:
        check_numbers(self, *inputs)
        return inputs[0]

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        return same_axes_map(rank, axes_from_front(self.axis, rank))

    def _accumulate(self, xp: Any, x: Any, function: Any, first: float) -> Any:
        if self.reverse:
            x = _flip(x, self.axis)
        wide = dtypes.accumulator_of(x.dtype)
        total = function(x, axis=self.axis, dtype=wide or x.dtype)
        if self.exclusive:
            total = _shift(xp, total, self.axis, first)
        if wide:
            total = total.astype(x.dtype)
        return xp.ascontiguousarray(_flip(total, self.axis)) if self.reverse else total

    @classmethod
    def _samples(cls, reference: Any, first: float) -> Iterable[Sample]:
        x = np.array([[1, 2, 3, 4], [0, 5, 0, -2]], "float32")
        edge = np.full((2, 1), first, "float32")
        shifted = np.concatenate([edge, reference(x, axis=1)[:, :-1]], axis=1)
        backward = np.concatenate([reference(x[:, ::-1], axis=1)[:, -2::-1], edge], axis=1)
        yield Sample(cls(1), [x], reference(x, axis=1), (0,), label="rows")
        yield Sample(cls(0), [x], reference(x, axis=0), (0,), label="columns")
        yield Sample(cls(1, True), [x], shifted, (0,), label="exclusive")
        yield Sample(cls(1, False, True), [x], reference(x[:, ::-1], axis=1)[:, ::-1], (0,), label="reverse")
        yield Sample(cls(1, True, True), [x], backward, (0,), label="exclusive reverse")
        yield Sample(cls(1, True), [x[:, :0]], x[:, :0], (0,), label="empty")


@dataclass(frozen=True)
class CumSum(RunningOp):
    """The running sum along an axis."""

    never_fails: ClassVar[bool] = True

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self._accumulate(xp, inputs[0], xp.cumsum, 0)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (apply(CumSum(self.axis, self.exclusive, not self.reverse), dy),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from cls._samples(np.cumsum, 0)


@dataclass(frozen=True)
class CumProd(RunningOp):
    """The running product along an axis. Its gradient never divides, so it is exact where factors are 0."""

    never_fails: ClassVar[bool] = True

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self._accumulate(xp, inputs[0], xp.cumprod, 1)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        # y_k = x_0 ... x_k, so dx_i = (x_0 ... x_(i-1)) * g_i with g_i = dy_i + x_(i+1) g_(i+1), the products behind i.
        (dy,) = cotangents
        x = node.inputs[0]
        assert dy is not None
        before = apply(CumProd(self.axis, True, self.reverse), x)
        if self.exclusive:  # y_k ends at k-1: element i is in the products from i+1 on
            dy = apply(Shift(self.axis, not self.reverse), dy)
        following = apply(Shift(self.axis, not self.reverse), x)
        return (before * apply(LinearScan(self.axis, not self.reverse), following, dy),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from cls._samples(np.cumprod, 1)


@dataclass(frozen=True)
class Shift(Op):
    """The input moved by one along `axis`: forward (a 0 comes in at the front), or backward with `reverse`."""

    axis: int
    reverse: bool = False
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis",)
    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return inputs[0]

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        return same_axes_map(rank, axes_from_front(self.axis, rank))

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        if not self.reverse:
            return _shift(xp, x, self.axis, 0)
        return xp.ascontiguousarray(_flip(_shift(xp, _flip(x, self.axis), self.axis, 0), self.axis))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (apply(Shift(self.axis, not self.reverse), dy),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1, 2, 3], [4, 5, 6]], "float32")
        yield Sample(cls(1), [x], np.array([[0, 1, 2], [0, 4, 5]], "float32"), (0,), label="forward")
        yield Sample(cls(0, True), [x], np.array([[4, 5, 6], [0, 0, 0]], "float32"), (0,), label="backward")
        yield Sample(cls(1), [x[:, :0]], x[:, :0], (0,), label="empty")


@dataclass(frozen=True)
class LinearScan(Op):
    """The linear recurrence ``h_t = a_t * h_(t-1) + b_t`` along `axis`, from ``h = 0``; from the end with `reverse`."""

    axis: int
    reverse: bool = False
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axis",)
    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return inputs[1]

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[1].shape)
        mixed = axes_from_front(self.axis, rank)
        return tuple([tuple([Follows(k, axis, axis not in mixed) for k in (0, 1)]) for axis in range(rank)])

    def run(self, xp: Any, *inputs: Any) -> Any:
        a, b = (xp.moveaxis(x, self.axis, 0) for x in inputs)
        h = xp.empty_like(b)
        previous = xp.zeros(b.shape[1:], b.dtype)
        steps = range(len(b))
        for step in reversed(steps) if self.reverse else steps:
            previous = h[step] = a[step] * previous + b[step]
        return xp.ascontiguousarray(xp.moveaxis(h, 0, self.axis))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dh,) = cotangents
        a, h = node.inputs[0], node.outputs[0]
        assert dh is not None
        following = apply(Shift(self.axis, not self.reverse), a)
        db = apply(LinearScan(self.axis, not self.reverse), following, dh)
        return db * apply(Shift(self.axis, self.reverse), h), db

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        a = np.array([[2, 3, 4], [0, 1, 0]], "float32")
        b = np.array([[1, 1, 1], [5, 6, 7]], "float32")
        yield Sample(cls(1), [a, b], np.array([[1, 4, 17], [5, 11, 7]], "float32"), (0, 1), label="rows")
        yield Sample(cls(0), [a, b], np.array([[1, 1, 1], [5, 7, 7]], "float32"), (0, 1), label="columns")
        yield Sample(cls(1, True), [a, b], np.array([[9, 4, 1], [5, 13, 7]], "float32"), (0, 1), label="reverse")
        yield Sample(cls(1), [a[:, :0], b[:, :0]], b[:, :0], (0, 1), label="empty")


def product_of_others(x: Tensor, axis: int) -> Tensor:
    """Return, for each element, the product of all the others along `axis`; no division, so zeros are exact."""
    return apply(CumProd(axis, exclusive=True), x) * apply(CumProd(axis, exclusive=True, reverse=True), x)


def cumsum(x: TensorLike, axis: int | None = None, dtype: DTypeLike = None) -> Tensor:
    """Compute the running sum along `axis` (None: of the flattened input).

    >>> import anabranch as ab
    >>> ab.ops.cumsum([1, 2, 3])
    Tensor([1, 3, 6], dtype=int32)
    """
    tensor = _runnable(x, dtype)
    if axis is None:
        return apply(CumSum(0), ravel(tensor))
    return apply(CumSum(axis_attribute(axis, tensor.ndim)), tensor)


def cumprod(x: TensorLike, axis: int | None = None, dtype: DTypeLike = None) -> Tensor:
    """Return the running product along `axis` (None: of the flattened input); its gradient is exact at zeros."""
    tensor = _runnable(x, dtype)
    if axis is None:
        return apply(CumProd(0), ravel(tensor))
    return apply(CumProd(axis_attribute(axis, tensor.ndim)), tensor)


def _runnable(x: TensorLike, dtype: DTypeLike) -> Tensor:
    tensor = convert_to_tensor(x, dtype)
    return cast(tensor, dtypes.int32) if tensor.dtype == dtypes.bool_ else tensor


__all__ = ["cumprod", "cumsum"]
