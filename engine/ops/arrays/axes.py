"""Axes: other orders, directions, starting points and numbers of them."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.nest import is_sequence
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows, axes_from_front, same_axes_map
from ...graph.graph import Operation
from ...graph.op import ErrorSample, Op, Sample, as_scalar_or_array
from ...graph.spec import TensorSpec
from ...graph.tensor import Tensor
from ..base import TensorLike, apply, convert_to_tensor, normalize_axes, normalize_axis, unchanged
from ..run_time_shapes import reshape_like
from .shaping import axes_argument, constant_value, expand_dims, index_text, ravel


@dataclass(frozen=True)
class Transpose(Op):
    """Axis `axes[i]` of the input becomes axis i of the result; None reverses the axes."""

    axes: tuple[int, ...] | None
    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True
    linear_in: ClassVar[tuple[int, ...]] = (0,)
    batchable: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if self.axes is None:
            return TensorSpec(None if x.shape is None else x.shape[::-1], x.dtype)
        if x.shape is None:
            return TensorSpec((None,) * len(self.axes), x.dtype)
        if sorted(self.axes) != list(range(len(x.shape))):
            raise ValueError(f"transpose: axes={self.axes} is no permutation of the {len(x.shape)} axes of {x}.")
        return TensorSpec(tuple(x.shape[axis] for axis in self.axes), x.dtype)

    def order(self, rank: int) -> tuple[int, ...]:
        """Return the axes of an input of that rank in the order in which the result has them."""
        return tuple(range(rank))[::-1] if self.axes is None else self.axes

    def axis_map(self, *inputs: Any) -> AxisMap:
        return tuple([(Follows(0, axis),) for axis in self.order(len(inputs[0].shape))])

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0].transpose() if self.axes is None else inputs[0].transpose(self.axes)

    def emit(self, arguments: Sequence[str]) -> str | None:
        return f"{arguments[0]}.T" if self.axes is None else f"{arguments[0]}.transpose({self.axes})"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        if self.axes is None:
            return (apply(Transpose(None), dy),)
        back = [0] * len(self.axes)
        for place, axis in enumerate(self.axes):
            back[axis] = place
        return (apply(Transpose(tuple(back)), dy),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(24, dtype="float32").reshape(2, 3, 4)
        yield Sample(cls(None), [x], x.T, label="reverse")
        yield Sample(cls((1, 2, 0)), [x], np.moveaxis(x, 0, 2), label="cycle")
        yield Sample(cls((1, 0)), [x[0, :0]], np.zeros((4, 0), "float32"), label="empty")
        yield Sample(cls(None), [np.float32(3)], np.float32(3), label="0-d")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec = TensorSpec((2, 3), dtypes.float32)
        yield ErrorSample(lambda: cls((0, 0)).infer(spec), ValueError, "no permutation", "twice")
        yield ErrorSample(lambda: cls((0, 1, 2)).infer(spec), ValueError, "no permutation", "too many")


@dataclass(frozen=True)
class TransposedCopy(Transpose):
    """A `Transpose` whose result is laid out in its own order, not a view: passes put it where that is faster."""

    view: ClassVar[bool] = False

    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.ascontiguousarray(super().run(xp, *inputs))

    def emit(self, arguments: Sequence[str]) -> str | None:
        return None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(24, dtype="float32").reshape(2, 3, 4)
        yield Sample(cls((1, 0, 2)), [x], x.transpose(1, 0, 2).copy(), label="rows stay")
        yield Sample(cls((2, 0, 1)), [x], np.moveaxis(x, 2, 0).copy(), label="cycle")
        yield Sample(cls((1, 0)), [x[0, :0]], np.zeros((4, 0), "float32"), label="empty")


@dataclass(frozen=True)
class MoveAxis(Op):
    """`numpy.moveaxis`, for inputs of unknown rank only: with a rank it is a `Transpose`."""

    source: tuple[int, ...]
    destination: tuple[int, ...]
    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if x.shape is None:
            return TensorSpec(None, x.dtype)
        return TensorSpec(tuple(x.shape[a] for a in _moved(len(x.shape), self.source, self.destination)), x.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.moveaxis(inputs[0], self.source, self.destination)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (apply(MoveAxis(self.destination, self.source), dy),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(24, dtype="float32").reshape(2, 3, 4)
        yield Sample(cls((0,), (-1,)), [x], x.transpose(1, 2, 0), label="to the end")
        yield Sample(cls((0, 2), (2, 0)), [x], x.T, label="swap")
        yield Sample(cls((0,), (1,)), [x[0, :0]], np.zeros((4, 0), "float32"), label="empty")


def _moved(rank: int, source: Sequence[int], destination: Sequence[int]) -> tuple[int, ...]:
    """Return the permutation of `moveaxis`."""
    from_axes = [normalize_axis(axis, rank, "source") for axis in source]
    to_axes = [normalize_axis(axis, rank, "destination") for axis in destination]
    if len(from_axes) != len(to_axes) or len({*from_axes}) != len(from_axes) or len({*to_axes}) != len(to_axes):
        raise ValueError(f"moveaxis: source={source} and destination={destination} must name as many different axes.")
    order = [axis for axis in range(rank) if axis not in from_axes]
    for place, axis in sorted(zip(to_axes, from_axes, strict=True)):
        order.insert(place, axis)
    return tuple(order)


def transpose(x: TensorLike, axes: Sequence[int] | None = None) -> Tensor:
    """Return `x` with its axes in the order `axes`, or reversed.

    Raises:
        ValueError: `axes` is not a permutation of the axes.

    >>> import anabranch as ab
    >>> ab.ops.transpose(ab.placeholder((2, None, 4), "float32"), (1, 0, 2)).shape
    (None, 2, 4)
    """
    tensor = convert_to_tensor(x)
    if tensor.shape is not None and len(tensor.shape) < 2 and not axes:
        return unchanged(tensor)
    if axes is None:
        return apply(Transpose(None), tensor)
    order = tuple(normalize_axis(int(axis), len(axes)) for axis in axes)
    if tensor.shape is not None and len(order) == len(tensor.shape) and order == tuple(range(len(order))):
        return unchanged(tensor)
    return apply(Transpose(order), tensor)


def moveaxis(x: TensorLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Return `x` with axes `source` moved to the places `destination`; the others keep their order."""
    tensor = convert_to_tensor(x)
    from_axes, to_axes = tuple(axes_argument(source)), tuple(axes_argument(destination))
    if tensor.shape is None:
        return apply(MoveAxis(from_axes, to_axes), tensor)
    return transpose(tensor, _moved(len(tensor.shape), from_axes, to_axes))


def swapaxes(x: TensorLike, axis1: int, axis2: int) -> Tensor:
    """Return `x` with two axes exchanged."""
    tensor = convert_to_tensor(x)
    if tensor.shape is None:
        return tensor if axis1 == axis2 else apply(MoveAxis((axis1, axis2), (axis2, axis1)), tensor)
    order = list(range(len(tensor.shape)))
    first, second = normalize_axis(axis1, len(order), "axis1"), normalize_axis(axis2, len(order), "axis2")
    order[first], order[second] = second, first
    return transpose(tensor, order)


# --- direction and start --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flip(Op):
    """The input with the order of the elements along `axes` reversed; None: along all of them."""

    axes: tuple[int, ...] | None
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axes",)
    view: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        normalize_axes(self.axes, x.rank)
        return x

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        return same_axes_map(rank, axes_from_front(self.axes, rank))

    def run(self, xp: Any, *inputs: Any) -> Any:
        return as_scalar_or_array(xp.flip(inputs[0], self.axes))

    def emit(self, arguments: Sequence[str]) -> str | None:
        if not self.axes or min(self.axes) < 0:
            return None
        entries = [slice(None, None, -1 if axis in self.axes else None) for axis in range(max(self.axes) + 1)]
        return f"{arguments[0]}[{index_text(entries)}]"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        return (apply(self, dy),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(2, 3)
        yield Sample(cls(None), [x], x[::-1, ::-1], label="all")
        yield Sample(cls((1,)), [x], x[:, ::-1], label="one")
        yield Sample(cls((0, 1)), [x], x[::-1, ::-1], label="two")
        yield Sample(cls((0,)), [x[:0]], x[:0], label="empty")
        yield Sample(cls(None), [np.float32(3)], np.float32(3), label="0-d")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: cls((1,)).infer(TensorSpec((2,), dtypes.float32)), ValueError, "out of range")


def flip(x: TensorLike, axis: int | Sequence[int] | None = None) -> Tensor:
    """Return `x` with the order of its elements reversed along `axis`, or along every axis.

    >>> import anabranch as ab
    >>> ab.ops.flip([1, 2, 3])
    Tensor([3, 2, 1], dtype=int32)
    """
    tensor = convert_to_tensor(x)
    axes = axes_argument(axis) if axis is not None else None
    if tensor.shape is not None:
        found = normalize_axes(axes, len(tensor.shape))
        return apply(Flip(found), tensor) if tensor.shape else tensor
    return apply(Flip(None if axes is None else tuple(axes)), tensor)


def reverse(tensor: TensorLike, axis: int | Sequence[int]) -> Tensor:
    """Flip along given axes; this is TensorFlow's name for `flip`."""
    return flip(tensor, axis)


@dataclass(frozen=True)
class Roll(Op):
    """The input with elements moved cyclically by `shifts` along `axes`; a further input is the one shift if None."""

    shifts: tuple[int, ...] | None
    axes: tuple[int, ...]
    axis_fields: ClassVar[tuple[str, ...] | None] = ("axes",)
    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        for axis in self.axes:
            normalize_axis(axis, inputs[0].rank)
        return inputs[0]

    def axis_map(self, *inputs: Any) -> AxisMap:
        rank = len(inputs[0].shape)
        return same_axes_map(rank, axes_from_front(self.axes, rank))

    def run(self, xp: Any, *inputs: Any) -> Any:
        shifts = (int(inputs[1]),) * len(self.axes) if self.shifts is None else self.shifts
        return xp.roll(inputs[0], shifts, self.axes)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        assert dy is not None
        if self.shifts is None:
            return apply(Roll(None, self.axes), dy, -node.inputs[1]), None
        return (apply(Roll(tuple(-shift for shift in self.shifts), self.axes), dy),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.arange(6, dtype="float32").reshape(2, 3)
        yield Sample(cls((1,), (1,)), [x], x[:, [2, 0, 1]], label="one")
        yield Sample(cls((1, -4), (0, 1)), [x], x[::-1][:, [1, 2, 0]], label="two")
        yield Sample(cls(None, (1,)), [x, np.int32(-1)], x[:, [1, 2, 0]], differentiable=(0,), label="dynamic")
        yield Sample(cls((1,), (0,)), [x[:0]], x[:0], label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        spec = TensorSpec((2,), dtypes.float32)
        yield ErrorSample(lambda: cls((1,), (1,)).infer(spec), ValueError, "out of range")


def roll(x: TensorLike, shift: Any, axis: int | Sequence[int] | None = None) -> Tensor:
    """Return `x` with its elements moved by `shift` places, those that leave at the end coming back at the start.

    Args:
        x: a tensor.
        shift: an int (or an int32 scalar tensor), or one for each axis, in a list or a vector.
        axis: one axis or several; None rolls the elements in row-major order.

    Raises:
        ValueError: an axis is out of range, or there are not as many shifts as axes.
    """
    tensor = convert_to_tensor(x)
    if axis is None:
        return reshape_like(roll(ravel(tensor), shift, 0), tensor)
    axes = tuple(normalize_axis(a, tensor.ndim) if tensor.ndim is not None else a for a in axes_argument(axis))
    known = constant_value(shift)
    if known is None and isinstance(shift, Tensor):
        if shift.ndim != 1:
            return apply(Roll(None, axes), tensor, shift)
        count = len(axes) if shift.shape is None or shift.shape[0] is None else shift.shape[0]
        shift = [shift[k] for k in range(count)]
    shifts: list[Any] = list(shift) if is_sequence(shift) else np.atleast_1d(shift if known is None else known).tolist()
    if len(axes) == 1 < len(shifts):
        shifts = [sum(shifts)]
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    if len(shifts) != len(axes):
        raise ValueError(f"roll: shift={shift} and axis={axis} must have as many entries.")
    if any(isinstance(each, Tensor) for each in shifts):
        for each, place in zip(shifts, axes, strict=True):
            tensor = roll(tensor, each, place)
        return tensor
    return apply(Roll(tuple([int(each) for each in shifts]), axes), tensor)


def rot90(array: TensorLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Tensor:
    """Return `array` turned by `k` quarter turns in the plane of two axes, from the first toward the second.

    Raises:
        ValueError: the two axes are one and the same, or there are not two.
    """
    tensor = convert_to_tensor(array)
    places = [normalize_axis(axis, tensor.ndim) for axis in axes]
    if len(places) != 2 or places[0] == places[1]:
        raise ValueError(f"rot90: axes={axes} must be two different axes.")
    first, second = places
    if k % 4 == 2:
        return flip(tensor, (first, second))
    if k % 4 == 1:
        return swapaxes(flip(tensor, second), first, second)
    return flip(swapaxes(tensor, first, second), second) if k % 4 == 3 else tensor


def _at_least(x: TensorLike, rank: int, trailing: int) -> Tensor:
    tensor = convert_to_tensor(x)
    if tensor.shape is None:
        raise ValueError(f"atleast_{rank}d needs an input of known rank; got {tensor!r}. Reshape it first.")
    missing = rank - len(tensor.shape)
    if missing <= 0:
        return tensor
    behind = builtins.min(trailing, missing - 1) if tensor.shape else 0
    leading = tuple(range(missing - behind))
    return expand_dims(tensor, leading + tuple(range(rank - behind, rank)))


def atleast_1d(x: TensorLike) -> Tensor:
    """Return `x`, or a vector of one element if it is a scalar."""
    return _at_least(x, 1, 0)


def atleast_2d(x: TensorLike) -> Tensor:
    """Return `x` with axes of size 1 put before it until it has two."""
    return _at_least(x, 2, 0)


def atleast_3d(x: TensorLike) -> Tensor:
    """Return `x` with axes of size 1 added until it has three: (N,) becomes (1, N, 1) and (M, N) becomes (M, N, 1)."""
    tensor = convert_to_tensor(x)
    return expand_dims(tensor, 2) if tensor.ndim == 2 else _at_least(tensor, 3, 1)


__all__ = [
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "flip",
    "moveaxis",
    "reverse",
    "roll",
    "rot90",
    "swapaxes",
    "transpose",
]
