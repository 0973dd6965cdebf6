"""Pooling of 1 to 3 spatial axes: max_pool, average_pool. Their adaptive forms are in `adaptive_pooling`.

A window's maximum and sum are found axis by axis. The derivative of a maximum goes to the first cell, in row-major
order, that holds it (as in TensorFlow): `MaxPoolPlaces` finds it, `MaxPoolGrad` puts values there and `MaxPoolGather`
takes them from there. The last two are each other's transposes, as are `AveragePool` and `AveragePoolGrad`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows
from ...graph.spec import Dim, Shape
from ..base import (
    ErrorSample,
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    as_floating,
    convert_to_tensor,
)
from ..data_format import check_data_format
from ..run_time_shapes import runtime_shape
from .window_geometry import (
    Window,
    cells,
    check_padding,
    count_windows,
    from_channels_last,
    overlaps,
    per_axis,
    place_window,
    pooled_rank,
    spatial,
    to_channels_last,
    widened,
)


@dataclass(frozen=True)
class _Pooling(Op):
    """Base of the ops: one number for each spatial axis, and how the input is padded."""

    pool_size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: str

    def _outs(self, sizes: Sequence[Dim]) -> tuple[Dim, ...]:
        """Return the spatial dimensions of the result, as far as they are known."""
        return tuple(
            count_windows(size, kernel, stride, 1, self.padding)
            for size, kernel, stride in zip(sizes, self.pool_size, self.strides, strict=True)
        )

    def windows(self, sizes: Sequence[int]) -> list[Window]:
        return [
            place_window(size, kernel, stride, 1, self.padding)
            for size, kernel, stride in zip(sizes, self.pool_size, self.strides, strict=True)
        ]

    def _pooled(self, x: TensorSpec, dtype: DType | None = None) -> TensorSpec:
        outs = self._outs(spatial(x.shape, len(self.strides)))
        batch, channels = (None, None) if x.shape is None else (x.shape[0], x.shape[-1])
        return TensorSpec((batch, *outs, channels), dtype or x.dtype)

    def _of_shape(self, shape: Shape, dtype: DType) -> TensorSpec:
        return TensorSpec((None,) * (len(self.strides) + 2) if shape is None else shape, dtype)

    @property
    def _disjoint(self) -> bool:
        """Test whether no cell is in two windows."""
        return all(stride >= kernel for stride, kernel in zip(self.strides, self.pool_size, strict=True))

    @property
    def _attributes(self) -> tuple[tuple[int, ...], tuple[int, ...], str]:
        return self.pool_size, self.strides, self.padding


def _combined(xp: Any, combine: Callable[..., Any], x: Any, windows: Sequence[Window], start: Any) -> Any:
    """Return the cells of each window combined, axis by axis; `start` is what changes nothing."""
    result = x
    for axis, window in enumerate(windows, 1):  # the first axis first: its parts are together
        if window.kernel == window.stride == 1:
            continue
        result = _combined_along(xp, combine, result, window, axis, start)
    return result if result is not x else xp.array(x)


def _combined_along(xp: Any, combine: Callable[..., Any], x: Any, window: Window, axis: int, start: Any) -> Any:
    front = (slice(None),) * axis
    pairs = [window.overlap(cell) for cell in range(window.kernel)]
    if not window.inside:
        result = xp.full((*x.shape[:axis], window.out, *x.shape[axis + 1 :]), start, x.dtype)
        for into, source in pairs:
            part = result[(*front, into)]
            combine(part, x[(*front, source)], out=part)
        return result
    parts = [x[(*front, source)] for _, source in pairs]
    result = combine(parts[0], parts[1]) if len(parts) > 1 else xp.array(parts[0])
    for part in parts[2:]:
        combine(result, part, out=result)
    return result


def _spread(xp: Any, x: Any, windows: Sequence[Window]) -> Any:
    """Return the transpose of the sums over windows: each cell gets the sum over the windows that it is in."""
    result = x
    for axis, window in reversed(list(enumerate(windows, 1))):
        if window.kernel == window.stride == 1:
            continue
        front = (slice(None),) * axis
        wide = xp.zeros((*result.shape[:axis], window.size, *result.shape[axis + 1 :]), x.dtype)
        for cell in range(window.kernel):
            into, source = window.overlap(cell)
            wide[(*front, source)] += result[(*front, into)]
        result = wide
    return result if result is not x else xp.array(x)


def _counts(xp: Any, windows: Sequence[Window]) -> Any:
    """Count the cells of the input in each window: a number, or an array that broadcasts against the result."""
    counts: Any = 1
    for axis, window in enumerate(windows):
        if window.inside:
            counts = counts * window.kernel
            continue
        along = np.zeros(window.out, "int64")
        for cell in range(window.kernel):
            along[window.overlap(cell)[0]] += 1
        counts = counts * xp.asarray(along).reshape((-1,) + (1,) * (len(windows) - axis))
    return counts


# --- maxima ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaxPool(_Pooling):
    """The greatest cell of each window of [batch, *sizes, channels]; NaN where there is one."""

    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        _check_ordered(inputs[0].dtype)
        return self._pooled(inputs[0])

    def axis_map(self, *inputs: Any) -> AxisMap:
        return ((Follows(0, 0),),)  # images are computed one by one

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        return _combined(xp, xp.maximum, x, self.windows(x.shape[1:-1]), _least(x.dtype))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        (x,) = node.inputs
        assert dy is not None
        places = apply(MaxPoolPlaces(*self._attributes), x, node.outputs[0])
        return (apply(MaxPoolGrad(*self._attributes, x.shape), dy, places, runtime_shape(x)),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = _line(3, 1, 4, 1.5, 5)
        yield Sample(cls((2,), (2,), "valid"), [x], _line(3, 4), label="line")
        yield Sample(cls((3,), (2,), "same"), [x], _line(3, 4, 5), label="overlapping")
        yield Sample(cls((2,), (1,), "same"), [-x], _line(-1, -1, -1.5, -1.5, -5), label="negative")
        plane = np.array([[1, 8, 3], [4, 5, 9], [7, 2, 6]], "float32").reshape(1, 3, 3, 1)
        expected = np.array([[8, 9], [7, 6]], "float32").reshape(1, 2, 2, 1)
        yield Sample(cls((2, 2), (2, 2), "same"), [plane], expected, label="plane")
        cube = np.arange(16, dtype="float32").reshape(1, 2, 2, 2, 2)
        yield Sample(cls((2,) * 3, (2,) * 3, "valid"), [cube], cube[:, 1:, 1:, 1:], label="cube")
        yield Sample(cls((1,), (1,), "valid"), [x], x, label="one cell")
        yield Sample(cls((2,), (2,), "valid"), [x[:0]], _line(3, 4)[:0], label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        op = cls((3,), (1,), "valid")
        spec = TensorSpec((1, 2, 4), dtypes.float32)
        yield ErrorSample(lambda: op.infer(spec), ValueError, "3 cells does not fit into an axis of size 2", "small")
        yield ErrorSample(lambda: op.run(np, np.ones((1, 2, 4))), ValueError, "does not fit into an axis", "run")
        flat = TensorSpec((2, 4), dtypes.float32)
        yield ErrorSample(lambda: op.infer(flat), ValueError, "expected rank 3", "rank")
        wrong = TensorSpec((1, 4, 4), dtypes.as_dtype("complex64"))
        yield ErrorSample(lambda: op.infer(wrong), TypeError, "have no order", "complex")


def _check_ordered(dtype: DType) -> None:
    if dtype.kind == "c":
        raise TypeError(f"max_pool: complex numbers ({dtype.name}) have no order.")


def _least(dtype: DType) -> Any:
    if dtypes.is_floating(dtype):
        return -np.inf
    return False if dtype.kind == "b" else np.iinfo(dtype).min


@dataclass(frozen=True)
class MaxPoolPlaces(_Pooling):
    """Inputs: x and its `MaxPool`. Which cell of each window is the first that holds the maximum."""

    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        return self._pooled(inputs[0], self._dtype)

    @property
    def _dtype(self) -> DType:
        return np.dtype("uint8" if np.prod(self.pool_size) <= 256 else "int32")

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, y = inputs
        windows = self.windows(x.shape[1:-1])
        places = xp.zeros(y.shape, self._dtype)
        is_nan = y != y
        has_nan = bool(is_nan.any())
        before = xp.ones(y.shape, bool)  # whether the maximum comes later: the place is how often that holds
        for cell in list(cells(windows))[:-1]:
            into, source = overlaps(windows, cell)
            here = x[source]
            differs = here != y[into]
            if has_nan:
                differs &= (here == here) | ~is_nan[into]
            before[into] &= differs
            places += before
        return places

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = _line(3, 4, 4, 1, 5)
        yield Sample(cls((2,), (2,), "valid"), [x, _line(4, 4)], _line(1, 0).astype("uint8"), label="line")
        expected = _line(2, 0, 1).astype("uint8")  # the first window begins one cell before the input
        yield Sample(cls((3,), (2,), "same"), [x, _line(4, 4, 5)], expected, label="overlapping")
        nan = _line(1, np.nan, np.nan)
        expected = _line(1, 0).astype("uint8")
        yield Sample(cls((2,), (1,), "valid"), [nan, _line(np.nan, np.nan)], expected, label="nan")
        many = np.arange(300, dtype="float32").reshape(1, 300, 1)
        yield Sample(cls((300,), (1,), "valid"), [many, _line(299)], _line(299).astype("int32"), label="many cells")
        yield Sample(cls((2,), (2,), "valid"), [x[:0], x[:0, :2]], x[:0, :2].astype("uint8"), label="empty")


@dataclass(frozen=True)
class MaxPoolGrad(_Pooling):
    """Values put where the maxima are. Inputs: values, shaped as the result; `MaxPoolPlaces`; the input's shape.

    `shape` is what is known of that shape.
    """

    shape: Shape

    def infer(self, *inputs: Any) -> TensorSpec:
        _check_ordered(inputs[0].dtype)
        return self._of_shape(self.shape, inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        dy, places, shape = inputs
        out = xp.zeros(tuple(int(size) for size in shape), dy.dtype)
        windows = self.windows(out.shape[1:-1])
        for number, cell in enumerate(cells(windows)):
            into, source = overlaps(windows, cell)
            chosen = _where(xp, places[into] == number, dy[into]).view(dy.dtype)
            if self._disjoint:
                out[source] = chosen
            else:
                out[source] += chosen
        return out

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dx,) = cotangents
        assert dx is not None
        return apply(MaxPoolGather(*self._attributes), dx, node.inputs[1]), None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        shape = np.array([1, 5, 1], "int32")
        inputs = [_line(2, 3), _line(1, 0).astype("uint8"), shape]
        yield Sample(cls((2,), (2,), "valid", (1, 5, 1)), inputs, _line(0, 2, 3, 0, 0), label="line")
        inputs = [_line(2, 3, 4), _line(2, 0, 1).astype("uint8"), shape]
        yield Sample(cls((3,), (2,), "same", None), inputs, _line(0, 5, 0, 0, 4), label="overlapping")
        inputs = [_line(2, 3)[:0], _line(1, 0).astype("uint8")[:0], np.array([0, 5, 1], "int32")]
        yield Sample(cls((2,), (2,), "valid", (0, 5, 1)), inputs, _line(1, 2, 3, 4, 5)[:0], label="empty")


@dataclass(frozen=True)
class MaxPoolGather(_Pooling):
    """Values taken from where the maxima of another tensor are. Inputs: x, and `MaxPoolPlaces` of the other."""

    def infer(self, *inputs: Any) -> TensorSpec:
        _check_ordered(inputs[0].dtype)
        return self._pooled(inputs[0])

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, places = inputs
        windows = self.windows(x.shape[1:-1])
        out = xp.zeros(places.shape, _bits(x.dtype))
        for number, cell in enumerate(cells(windows)):
            into, source = overlaps(windows, cell)
            out[into] |= _where(xp, places[into] == number, x[source])
        return out.view(x.dtype)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, places = node.inputs
        assert dy is not None
        return apply(MaxPoolGrad(*self._attributes, x.shape), dy, places, runtime_shape(x)), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = _line(3, 4, 2, 1, 5)
        yield Sample(cls((2,), (2,), "valid"), [x, _line(1, 0).astype("uint8")], _line(4, 2), label="line")
        yield Sample(cls((3,), (2,), "same"), [x, _line(2, 0, 1).astype("uint8")], _line(4, 4, 5), label="overlapping")
        yield Sample(cls((2,), (2,), "valid"), [x[:0], _line(1, 0).astype("uint8")[:0]], x[:0, :2], label="empty")


def _bits(dtype: DType) -> DType:
    return np.dtype(f"i{dtype.itemsize}")


def _where(xp: Any, found: Any, values: Any) -> Any:
    """Return the bits of `values` where `found`, elsewhere none: 4 times as fast as `where`, infinities are safe."""
    return xp.bitwise_and(values.view(_bits(values.dtype)), xp.negative(found.view("int8")))


# --- averages -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AveragePool(_Pooling):
    """The mean of the cells of each window of [batch, *sizes, channels]; padding does not count."""

    never_fails: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        _check_differentiable(x.dtype)
        return self._pooled(x)

    def axis_map(self, *inputs: Any) -> AxisMap:
        return ((Follows(0, 0),),)  # images are computed one by one

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        windows = self.windows(x.shape[1:-1])
        sums = _combined(xp, xp.add, widened(x), windows, 0)
        sums /= _counts(xp, windows)
        return sums.astype(x.dtype, copy=False)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        (x,) = node.inputs
        assert dy is not None
        return (apply(AveragePoolGrad(*self._attributes, x.shape), dy, runtime_shape(x)),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = _line(3, 1, 4, 2, 5)
        yield Sample(cls((2,), (2,), "valid"), [x], _line(2, 3), label="line")
        yield Sample(cls((3,), (2,), "same"), [x], _line(2, 7 / 3, 3.5), label="overlapping")
        plane = np.arange(9, dtype="float32").reshape(1, 3, 3, 1)
        expected = np.array([[2, 3.5], [6.5, 8]], "float32").reshape(1, 2, 2, 1)
        yield Sample(cls((2, 2), (2, 2), "same"), [plane], expected, label="plane")
        cube = np.arange(16, dtype="float32").reshape(1, 2, 2, 2, 2)
        expected = np.array([7, 8], "float32").reshape(1, 1, 1, 1, 2)
        yield Sample(cls((2,) * 3, (2,) * 3, "valid"), [cube], expected, label="cube")
        yield Sample(cls((1,), (1,), "valid"), [x], x, label="one cell")
        yield Sample(cls((2,), (2,), "valid"), [x[:0]], x[:0, :2], label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        op = cls((3,), (1,), "valid")
        spec = TensorSpec((1, 2, 4), dtypes.float32)
        yield ErrorSample(lambda: op.infer(spec), ValueError, "3 cells does not fit into an axis of size 2", "small")
        whole = TensorSpec((1, 4, 4), dtypes.int32)
        yield ErrorSample(lambda: op.infer(whole), TypeError, "floating-point numbers, got int32", "integers")


def _check_differentiable(dtype: DType) -> None:
    if not dtypes.is_differentiable(dtype):
        raise TypeError(f"average_pool: expected floating-point numbers, got {dtype.name}. Cast them with ops.cast.")


@dataclass(frozen=True)
class AveragePoolGrad(_Pooling):
    """The transpose of `AveragePool`. Inputs: dy, shaped as its result; the shape of its input.

    `shape` is what is known of that shape.
    """

    shape: Shape

    def infer(self, *inputs: Any) -> TensorSpec:
        _check_differentiable(inputs[0].dtype)
        return self._of_shape(self.shape, inputs[0].dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        dy, shape = inputs
        windows = self.windows([int(size) for size in shape[1:-1]])
        wide = widened(dy)
        shares = (wide / _counts(xp, windows)).astype(wide.dtype, copy=False)
        return _spread(xp, shares, windows).astype(dy.dtype, copy=False)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dx,) = cotangents
        assert dx is not None
        return apply(AveragePool(*self._attributes), dx), None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        shape = np.array([1, 5, 1], "int32")
        expected = _line(1, 1, 1.5, 1.5, 0)
        yield Sample(cls((2,), (2,), "valid", (1, 5, 1)), [_line(2, 3), shape], expected, label="line")
        expected = _line(2, 3, 1, 4, 3)
        yield Sample(cls((3,), (2,), "same", None), [_line(4, 3, 6), shape], expected, label="overlapping")
        expected = _line(1, 2, 3, 4, 5)[:0]
        inputs = [_line(2, 3)[:0], np.array([0, 5, 1], "int32")]
        yield Sample(cls((2,), (2,), "valid", (0, 5, 1)), inputs, expected, label="empty")


def _line(*values: float) -> Any:
    return np.array(values, "float32").reshape(1, -1, 1)


# --- functions ------------------------------------------------------------------------------------------------------


def _arguments(
    what: str, x: Tensor, pool_size: Any, strides: Any, padding: str
) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    rank = pooled_rank(what, x, pool_size)
    sizes = per_axis(f"{what}: pool_size", pool_size, rank)
    steps = sizes if strides is None else per_axis(f"{what}: strides", strides, rank)
    return sizes, steps, check_padding(what, padding)


def max_pool(
    inputs: TensorLike,
    pool_size: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    """Return the greatest value of each window, channel by channel.

    Where several cells hold the maximum, the derivative goes to the first of them, as in TensorFlow.

    Args:
        inputs: [batch, *sizes, channels], or [batch, channels, *sizes] with ``data_format="channels_first"``.
        pool_size: the size of the windows: an int, or one for each of the 1 to 3 spatial axes.
        strides: cells from one window to the next; by default `pool_size`.
        padding: ``"valid"`` (windows are inside) or ``"same"`` (they may reach out on both sides, so that at stride 1
            the size stays).
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Returns:
        [batch, *new sizes, channels], in the input's data format.

    Raises:
        ValueError: the rank does not fit, or a window is larger than the input.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.max_pool([[[3.0], [1.0], [4.0], [1.0]]], 2))[0, :, 0]
    array([3., 4.], dtype=float32)
    """
    x = convert_to_tensor(inputs)
    op = MaxPool(*_arguments("max_pool", x, pool_size, strides, padding))
    return _pooled("max_pool", op, x, data_format)


def _pooled(what: str, op: _Pooling, x: Tensor, data_format: str | None) -> Tensor:
    layout, rank = check_data_format(what, data_format), len(op.strides)
    return from_channels_last(apply(op, to_channels_last(x, rank, layout)), rank, layout)


def average_pool(
    inputs: TensorLike,
    pool_size: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> Tensor:
    """Return the mean of each window, channel by channel, of cells inside the input. Integers become float32.

    Args:
        inputs, pool_size, strides, padding, data_format: see `max_pool`.

    Returns:
        [batch, *new sizes, channels], in the input's data format.

    Raises:
        ValueError: the rank does not fit, or a window is larger than the input.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.average_pool([[[3.0], [1.0], [4.0]]], 2, padding="same"))[0, :, 0]
    array([2., 4.], dtype=float32)
    """
    x = as_floating(inputs)
    op = AveragePool(*_arguments("average_pool", x, pool_size, strides, padding))
    return _pooled("average_pool", op, x, data_format)


__all__ = ["average_pool", "max_pool"]
