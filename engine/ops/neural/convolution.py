"""Convolutions of 1 to 3 spatial axes: conv, depthwise_conv, separable_conv, conv_transpose.

Three ops form a family that is closed under differentiation, because a convolution is linear in each of its operands:
`Conv`, its transpose in the input `ConvInputGrad` (which is the transposed convolution), and its transpose in the
kernel, `ConvFilterGrad`. Inside, channels come last; the functions move them there and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows
from ...graph.op import Cost
from ...graph.spec import Dim, Shape, shape_text
from .. import row_rules
from ..arrays.shaping import DimLike, dim, reshape
from ..base import ErrorSample, Op, Operation, Sample, Tensor, TensorLike, TensorSpec, apply, convert_to_tensor, promote
from ..data_format import check_data_format
from ..math.comparison import maximum
from ..run_time_shapes import runtime_shape
from .correlation import correlate, correlate_filter, correlate_transposed
from .window_geometry import (
    Padding,
    Window,
    at_axis,
    check_padding,
    count_windows,
    from_channels_last,
    per_axis,
    place_window,
    reach,
    spatial,
    spatial_rank,
    to_channels_last,
    widened,
)


@dataclass(frozen=True)
class _Convolution(Op):
    """Base of the three ops: one number for each spatial axis, and how the input is padded."""

    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: Padding

    def _check_dtypes(self, *inputs: TensorSpec) -> None:
        first, second = inputs
        if first.dtype != second.dtype:
            raise TypeError(
                f"convolution: dtypes {first.dtype.name} and {second.dtype.name} differ; cast one with ops.cast."
            )
        if first.dtype.kind not in "iufc" and not dtypes.is_floating(first.dtype):
            raise TypeError(f"convolution: expected numbers, got {first.dtype.name}. Cast them with ops.cast.")

    def _outs(self, sizes: Sequence[Dim], kernel: Sequence[Dim]) -> tuple[Dim, ...]:
        """Return the spatial dimensions of the result, as far as they are known."""
        if 0 in kernel:
            raise ValueError(f"convolution: a kernel of spatial shape {shape_text(tuple(kernel))} has no cells.")
        return tuple(
            count_windows(size, cells, self.strides[axis], self.dilation[axis], at_axis(self.padding, axis))
            for axis, (size, cells) in enumerate(zip(sizes, kernel, strict=True))
        )

    def windows(self, x: Sequence[int], kernel: Sequence[int], dy: Sequence[int] | None = None) -> list[Window]:
        """Return the windows for these run-time shapes, which are checked."""
        self._outs(x[1:-1], kernel[:-2])
        _check_channels(x[-1], kernel[-2], kernel[-1])
        windows = [
            place_window(x[1 + axis], kernel[axis], stride, self.dilation[axis], at_axis(self.padding, axis))
            for axis, stride in enumerate(self.strides)
        ]
        expected = (x[0], *[window.out for window in windows], kernel[-1])
        if dy is not None and tuple(dy) != expected:
            raise ValueError(
                f"convolution: a cotangent of shape {shape_text(tuple(dy))} does not fit to an input of shape "
                f"{shape_text(tuple(x))} and a kernel of shape {shape_text(tuple(kernel))}: expected "
                f"{shape_text(expected)}."
            )
        return windows

    def _check_cotangent(self, x: Shape, kernel: Shape, dy: TensorSpec) -> None:
        """Refuse a cotangent that is known not to fit."""
        rank = len(self.strides)
        outs = self._outs(spatial(x, rank), _sizes(kernel, rank))
        for out, known in zip(outs, spatial(dy.shape, rank), strict=True):
            if None not in (out, known) and out != known:
                raise ValueError(
                    f"convolution: {dy} does not fit to an input of shape {shape_text(x)} and a kernel of shape "
                    f"{shape_text(kernel)}: expected spatial shape {shape_text(outs)}."
                )

    def _input_grad(self, dy: Tensor, kernel: Tensor, x: Tensor) -> Tensor:
        definition = ConvInputGrad(self.strides, self.dilation, self.padding, x.shape)
        return apply(definition, dy, kernel, runtime_shape(x))

    def _filter_grad(self, x: Tensor, dy: Tensor, kernel: Tensor) -> Tensor:
        definition = ConvFilterGrad(self.strides, self.dilation, self.padding, kernel.shape)
        return apply(definition, x, dy, runtime_shape(kernel))

    def _forward(self, x: Tensor, kernel: Tensor) -> Tensor:
        return apply(Conv(self.strides, self.dilation, self.padding), x, kernel)


def _sizes(kernel: Shape, rank: int) -> tuple[Dim, ...]:
    """Return the spatial dimensions of a kernel's shape.

    Raises:
        ValueError: it has another rank.
    """
    if kernel is None:
        return (None,) * rank
    if len(kernel) != rank + 2:
        raise ValueError(
            f"convolution: expected a kernel of rank {rank + 2} for {rank} spatial axes, got shape "
            f"{shape_text(kernel)}."
        )
    return kernel[:-2]


def _check_channels(channels: Dim, per_group: Dim, filters: Dim) -> None:
    """Refuse what can't be parted into groups.

    Raises:
        ValueError: the channels or filters are not a multiple.
    """
    if channels is None or per_group is None or channels == per_group:
        return
    if per_group == 0 or channels == 0 or channels % per_group:
        raise ValueError(
            f"convolution: the number of input channels must be evenly divisible by the kernel's; got {channels} "
            f"input channels and a kernel for {per_group}. Check data_format, and the kernel's axes: its input "
            "channels stand before its filters."
        )
    groups = channels // per_group
    if filters is not None and filters % groups:
        raise ValueError(
            f"convolution: {channels} input channels and a kernel for {per_group} make {groups} groups, but its "
            f"{filters} filters can't be parted into as many. Use a multiple of {groups} filters."
        )


@dataclass(frozen=True)
class Conv(_Convolution):
    """Inputs: x [batch, *sizes, channels], kernel [*kernel sizes, channels of a group, filters].

    There are as many groups as the kernel's channels go into those of the input.
    """

    never_fails: ClassVar[bool] = True
    cost: ClassVar[Cost] = Cost.CONVOLUTION

    def infer(self, *inputs: Any) -> TensorSpec:
        x, kernel = inputs
        self._check_dtypes(x, kernel)
        rank = len(self.strides)
        outs = self._outs(spatial(x.shape, rank), _sizes(kernel.shape, rank))
        filters = None if kernel.shape is None else kernel.shape[-1]
        if x.shape is not None and kernel.shape is not None:
            _check_channels(x.shape[-1], *kernel.shape[-2:])
        return TensorSpec((None if x.shape is None else x.shape[0], *outs, filters), x.dtype)

    def axis_map(self, *inputs: Any) -> AxisMap:
        return ((Follows(0, 0),),)  # images are computed one by one

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, kernel = inputs
        windows = self.windows(x.shape, kernel.shape)
        return correlate(xp, widened(x), widened(kernel), windows).astype(x.dtype, copy=False)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        x, kernel = node.inputs
        assert dy is not None
        dx = self._input_grad(dy, kernel, x) if node.needs(0) else None
        return dx, self._filter_grad(x, dy, kernel) if node.needs(1) else None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x, kernel = _line(1, 2, 3, 4), _line(1, 10).reshape(2, 1, 1)
        yield Sample(cls((1,), (1,), "valid"), [x, kernel], _line(21, 32, 43), label="line")
        yield Sample(cls((1,), (2,), "causal"), [x, kernel], _line(10, 20, 31, 42), label="causal")
        plane, square = np.arange(9, dtype="float32").reshape(1, 3, 3, 1), np.ones((2, 2, 1, 1), "float32")
        expected = np.array([[8, 7], [13, 8]], "float32").reshape(1, 2, 2, 1)
        yield Sample(cls((2, 2), (1, 1), "same"), [plane, square], expected, label="strided plane")
        pairs = np.array([[[1, 2], [3, 4]]], "float32")
        grouped = np.array([[[1, 2]], [[3, 4]]], "float32")
        expected = np.array([[[10, 20]]], "float32")
        yield Sample(cls((1,), (1,), "valid"), [pairs, grouped], expected, label="groups")
        cube = np.arange(1, 9, dtype="float32").reshape(1, 2, 2, 2, 1)
        expected = np.full((1, 1, 1, 1, 1), 36, "float32")
        yield Sample(cls((1,) * 3, (1,) * 3, "valid"), [cube, np.ones((2, 2, 2, 1, 1), "f")], expected, label="cube")
        rng = np.random.default_rng(0)
        image, kernel = (rng.uniform(-1, 1, shape).astype("f") for shape in ((2, 4, 5, 2), (2, 3, 2, 4)))
        cells = np.lib.stride_tricks.sliding_window_view(image, (2, 3), axis=(1, 2))[:, :, ::2]
        expected = np.einsum("nxycuv,uvcf->nxyf", cells, kernel)
        yield Sample(cls((1, 2), (1, 1), "valid"), [image, kernel], expected, label="channels")
        yield Sample(cls((1, 2), (1, 1), "valid"), [image[:0], kernel], expected[:0], label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        op, kernel = cls((1, 1), (1, 1), "valid"), TensorSpec((3, 3, 2, 4), dtypes.float32)
        cases: dict[str, tuple[Any, TensorSpec, TensorSpec, str]] = {
            "channels": (ValueError, TensorSpec((1, 8, 8, 3), dtypes.float32), kernel, "divisible by the kernel's"),
            "groups": (ValueError, TensorSpec((1, 8, 8, 6), dtypes.float32), kernel, "3 groups, but its 4 filters"),
            "rank": (ValueError, TensorSpec((1, 8, 2), dtypes.float32), kernel, "expected rank 4"),
            "small": (ValueError, TensorSpec((1, 2, 8, 2), dtypes.float32), kernel, "does not fit into an axis of"),
            "dtypes": (TypeError, TensorSpec((1, 8, 8, 2), dtypes.float64), kernel, "float64 and float32 differ"),
        }
        for label, (error, x, other, match) in cases.items():
            yield ErrorSample(lambda x=x, other=other: op.infer(x, other), error, match, label)
        image, small = np.ones((1, 2, 8, 2), "float32"), np.ones((3, 3, 2, 4), "float32")
        yield ErrorSample(lambda: op.run(np, image, small), ValueError, "does not fit into an axis of size 2", "run")


@dataclass(frozen=True)
class ConvInputGrad(_Convolution):
    """The transpose of `Conv` in its input. Inputs: dy, shaped as its result; its kernel; the shape of its input.

    `shape` is what is known of that shape.
    """

    shape: Shape
    cost: ClassVar[Cost] = Cost.CONVOLUTION
    row_state = row_rules.transposed_windows

    def infer(self, *inputs: Any) -> TensorSpec:
        dy, kernel, _ = inputs
        self._check_dtypes(dy, kernel)
        self._check_cotangent(self.shape, kernel.shape, dy)
        return TensorSpec((None,) * (len(self.strides) + 2) if self.shape is None else self.shape, dy.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        dy, kernel, shape = inputs
        sizes = [int(size) for size in shape]
        windows = self.windows(sizes, kernel.shape, dy.shape)
        found = correlate_transposed(xp, widened(dy), widened(kernel), windows, sizes[-1])
        return found.astype(dy.dtype, copy=False)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dx,) = cotangents
        dy, kernel, _ = node.inputs
        assert dx is not None
        ddy = self._forward(dx, kernel) if node.needs(0) else None
        return ddy, self._filter_grad(dx, dy, kernel) if node.needs(1) else None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        dy, kernel = _line(1, 2, 3), _line(1, 10).reshape(2, 1, 1)
        for label, strides, padding, given, expected in (
            ("line", 1, "valid", dy, _line(1, 12, 23, 30)),
            ("gaps", 3, "valid", dy[:, :2], _line(1, 10, 0, 2, 20, 0)),
            ("cut", 2, ((1, 0),), dy[:, :2], _line(10, 2, 20)),
        ):
            shape = np.array(expected.shape, "int32")
            op = cls((strides,), (1,), padding, expected.shape)
            yield Sample(op, [given, kernel, shape], expected, label=label)
        plane = np.array([[1, 2], [3, 4]], "float32").reshape(1, 2, 2, 1)
        expected = np.array([[1, 1, 2], [1, 1, 2], [3, 3, 4]], "float32").reshape(1, 3, 3, 1)
        inputs = [plane, np.ones((2, 2, 1, 1), "float32"), np.array([1, 3, 3, 1], "int32")]
        yield Sample(cls((2, 2), (1, 1), "same", (1, 3, None, 1)), inputs, expected, label="plane")
        pairs = np.array([[[1, 2], [3, 4]]], "float32")
        grouped = np.array([[[1, 10]]], "float32")
        inputs = [pairs, grouped, np.array([1, 2, 2], "int32")]
        expected = np.array([[[1, 20], [3, 40]]], "float32")
        yield Sample(cls((1,), (1,), "valid", None), inputs, expected, label="groups")
        inputs = [dy[:0], kernel, np.array([0, 4, 1], "int32")]
        yield Sample(cls((1,), (1,), "valid", (0, 4, 1)), inputs, _line(1, 2, 3, 4)[:0], label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        op, kernel = cls((1,), (1,), "valid", (1, 4, 1)), np.ones((2, 1, 1), "float32")
        specs = [TensorSpec(shape, dtypes.float32) for shape in ((1, 2, 1), (2, 1, 1))]
        shape = TensorSpec((3,), dtypes.int32)
        yield ErrorSample(lambda: op.infer(*specs, shape), ValueError, r"expected spatial shape \[3\]", "static")
        inputs = [np.ones((1, 2, 1), "float32"), kernel, np.array([1, 4, 1])]
        yield ErrorSample(lambda: op.run(np, *inputs), ValueError, r"expected \[1,3,1\]", "run")


@dataclass(frozen=True)
class ConvFilterGrad(_Convolution):
    """The transpose of `Conv` in its kernel. Inputs: its input; dy, shaped as its result; the shape of its kernel.

    `shape` is what is known of that shape.
    """

    shape: Shape
    cost: ClassVar[Cost] = Cost.CONVOLUTION

    def infer(self, *inputs: Any) -> TensorSpec:
        x, dy, _ = inputs
        self._check_dtypes(x, dy)
        self._check_cotangent(x.shape, self.shape, dy)
        return TensorSpec((None,) * (len(self.strides) + 2) if self.shape is None else self.shape, x.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        x, dy, shape = inputs
        sizes = [int(size) for size in shape]
        windows = self.windows(x.shape, sizes, dy.shape)
        return correlate_filter(xp, widened(x), widened(dy), windows, sizes).astype(x.dtype, copy=False)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dkernel,) = cotangents
        x, dy, _ = node.inputs
        assert dkernel is not None
        dx = self._input_grad(dy, dkernel, x) if node.needs(0) else None
        return dx, self._forward(x, dkernel) if node.needs(1) else None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x, dy = _line(1, 2, 3, 4), _line(1, 1, 2)
        shape = np.array([2, 1, 1], "int32")
        expected = np.array([9, 13], "float32").reshape(2, 1, 1)
        yield Sample(cls((1,), (1,), "valid", (2, 1, 1)), [x, dy, shape], expected, label="line")
        expected = np.array([7, 3], "float32").reshape(2, 1, 1)
        yield Sample(cls((2,), (2,), "same", (None, 1, 1)), [x, dy[:, 1:], shape], expected, label="dilated")
        pairs, cotangent = np.array([[[1, 2], [3, 4]]], "float32"), np.array([[[1, 10]]], "float32")
        expected = np.array([[[1, 20]], [[3, 40]]], "float32")
        inputs = [pairs, cotangent, np.array([2, 1, 2], "int32")]
        yield Sample(cls((1,), (1,), "valid", None), inputs, expected, label="groups")
        plane = np.arange(9, dtype="float32").reshape(1, 3, 3, 1)
        inputs = [plane, np.ones((1, 2, 2, 1), "float32"), np.array([2, 2, 1, 1], "int32")]
        expected = np.array([[8, 12], [20, 24]], "float32").reshape(2, 2, 1, 1)
        yield Sample(cls((1, 1), (1, 1), "valid", (2, 2, 1, 1)), inputs, expected, label="plane")
        inputs = [x[:0], dy[:0], shape]
        yield Sample(cls((1,), (1,), "valid", (2, 1, 1)), inputs, np.zeros((2, 1, 1), "float32"), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        op = cls((1,), (1,), "valid", (2, 1, 1))
        inputs = [np.ones((1, 4, 1), "float32"), np.ones((1, 2, 1), "float32"), np.array([2, 1, 1])]
        yield ErrorSample(lambda: op.run(np, *inputs), ValueError, r"expected \[1,3,1\]", "run")


def _line(*values: float) -> Any:
    return np.array(values, "float32").reshape(1, -1, 1)


# --- functions ------------------------------------------------------------------------------------------------------


def conv(
    inputs: TensorLike,
    kernel: TensorLike,
    strides: int | Sequence[int] = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
) -> Tensor:
    """Convolve 1, 2 or 3 spatial axes with a kernel (which is not flipped: a cross-correlation).

    Args:
        inputs: [batch, *sizes, channels], or [batch, channels, *sizes] with ``data_format="channels_first"``.
        kernel: [*kernel sizes, channels of a group, filters]. If the input has more channels than the kernel, both
            they and the filters are parted into groups, each convolved by itself.
        strides: cells from one window to the next; an int, or one for each spatial axis.
        padding: ``"valid"`` (none), ``"same"`` (zeros on both sides, so that at stride 1 the size stays), or with
            one spatial axis ``"causal"`` (zeros before the first cell, so that no result depends on later cells).
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        dilation_rate: from one cell of a window to the next; an int, or one for each spatial axis.

    Returns:
        [batch, *new sizes, filters], in the input's data format.

    Raises:
        ValueError: the ranks or channels do not fit, or a window is larger than the input.

    >>> import anabranch as ab
    >>> x = [[[1.0], [2.0], [3.0], [4.0]]]
    >>> ab.Session().run(ab.ops.conv(x, [[[1.0]], [[10.0]]]))[0, :, 0]
    array([21., 32., 43.], dtype=float32)
    """
    x, weights = promote(inputs, kernel)
    rank = spatial_rank("conv", x, weights)
    modes = ("valid", "same", "causal") if rank == 1 else ("valid", "same")
    op = _definition("conv", rank, strides, check_padding("conv", padding, modes), dilation_rate)
    return _convolved("conv", op, x, weights, data_format)


def _definition(what: str, rank: int, strides: Any, padding: str, dilation_rate: Any) -> Conv:
    return Conv(
        per_axis(f"{what}: strides", strides, rank), per_axis(f"{what}: dilation_rate", dilation_rate, rank), padding
    )


def _convolved(what: str, op: Conv, x: Tensor, kernel: Tensor, data_format: str | None) -> Tensor:
    layout, rank = check_data_format(what, data_format), len(op.strides)
    return from_channels_last(apply(op, to_channels_last(x, rank, layout), kernel), rank, layout)


def _channels(what: str, x: Tensor, data_format: str | None) -> DimLike:
    return dim(x, -1 if check_data_format(what, data_format) == "channels_last" else 1)


def _check_same_channels(what: str, x: Tensor, data_format: str | None, expected: Dim) -> None:
    channels = _channels(what, x, data_format)
    if isinstance(channels, int) and expected is not None and channels != expected:
        raise ValueError(
            f"{what}: the number of input channels must match the kernel's; got {channels} input channels and a "
            f"kernel for {expected} (data_format {check_data_format(what, data_format)!r})."
        )


def depthwise_conv(
    inputs: TensorLike,
    kernel: TensorLike,
    strides: int | Sequence[int] = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
) -> Tensor:
    """Convolve each channel by itself.

    Args:
        inputs: [batch, *sizes, channels], or [batch, channels, *sizes] with ``data_format="channels_first"``.
        kernel: [*kernel sizes, channels, multiplier]: so many kernels for each channel.
        strides, padding, data_format, dilation_rate: see `conv`.

    Returns:
        [batch, *new sizes, channels * multiplier], in the input's data format.

    Raises:
        ValueError: the ranks or channels do not fit, or a window is larger than the input.

    >>> import anabranch as ab
    >>> x = [[[1.0, 2.0], [3.0, 4.0]]]
    >>> ab.Session().run(ab.ops.depthwise_conv(x, [[[1.0], [10.0]]]))[0]
    array([[ 1., 20.],
           [ 3., 40.]], dtype=float32)
    """
    what = "depthwise_conv"
    x, weights = promote(inputs, kernel)
    rank = spatial_rank(what, x, weights)
    op = _definition(what, rank, strides, check_padding(what, padding), dilation_rate)
    if weights.shape is not None:
        _check_same_channels(what, x, data_format, weights.shape[-2])
    *sizes, _, multiplier = [dim(weights, axis) for axis in range(rank + 2)]
    channels = _channels(what, x, data_format)  # the input's: if they are no kernel's, the reshape finds it
    return _convolved(what, op, x, reshape(weights, (*sizes, 1, channels * multiplier)), data_format)


def separable_conv(
    inputs: TensorLike,
    depthwise_kernel: TensorLike,
    pointwise_kernel: TensorLike,
    strides: int | Sequence[int] = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
) -> Tensor:
    """Convolve each channel by itself, and then mix the channels cell by cell.

    Args:
        inputs: [batch, *sizes, channels], or [batch, channels, *sizes] with ``data_format="channels_first"``.
        depthwise_kernel: [*kernel sizes, channels, multiplier].
        pointwise_kernel: [1, ..., channels * multiplier, filters].
        strides, padding, data_format, dilation_rate: those of the depthwise convolution, see `conv`.

    Returns:
        [batch, *new sizes, filters], in the input's data format.

    Raises:
        ValueError: the ranks or channels do not fit, or a window is larger than the input.

    >>> import anabranch as ab
    >>> x = [[[1.0, 2.0], [3.0, 4.0]]]
    >>> ab.Session().run(ab.ops.separable_conv(x, [[[1.0], [10.0]]], [[[1.0], [1.0]]]))[0]
    array([[21.],
           [43.]], dtype=float32)
    """
    x, depthwise, pointwise = promote(inputs, depthwise_kernel, pointwise_kernel)
    rank = spatial_rank("separable_conv", x, depthwise, pointwise)
    if any(size not in (None, 1) for size in _sizes(pointwise.shape, rank)):
        raise ValueError(
            f"separable_conv: pointwise_kernel must have the spatial shape {shape_text((1,) * rank)}; got shape "
            f"{shape_text(pointwise.shape)}."
        )
    y = depthwise_conv(x, depthwise, strides, padding, data_format, dilation_rate)
    _check_same_channels("separable_conv", y, data_format, None if pointwise.shape is None else pointwise.shape[-2])
    return conv(y, pointwise, data_format=data_format)


def conv_transpose(
    inputs: TensorLike,
    kernel: TensorLike,
    strides: int | Sequence[int] = 1,
    padding: str = "valid",
    output_padding: int | Sequence[int] | None = None,
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
) -> Tensor:
    """Apply the transpose of a convolution, which maps what is shaped as its result to the shape of its input.

    With r the reach of the kernel, ``(kernel size - 1) * dilation rate + 1``, an axis of size n becomes one of size
    ``(n - 1) * stride + r + output_padding`` if the padding is "valid", where output_padding is by default
    ``max(stride - r, 0)``; and with "same" ``(n - 1) * stride + r % 2 + output_padding``, by default ``n * stride``.

    Args:
        inputs: [batch, *sizes, channels], or [batch, channels, *sizes] with ``data_format="channels_first"``.
        kernel: [*kernel sizes, filters, channels], of known spatial shape.
        strides: cells of the result from one cell of the input to the next; an int, or one for each spatial axis.
        padding: ``"valid"`` or ``"same"``.
        output_padding: further cells at the end of each axis; None, an int, or one for each spatial axis.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        dilation_rate: from one cell of the kernel to the next; an int, or one for each spatial axis.

    Returns:
        [batch, *new sizes, filters], in the input's data format.

    Raises:
        ValueError: the ranks or channels do not fit.

    >>> import anabranch as ab
    >>> y = ab.ops.conv_transpose([[[1.0], [2.0]]], [[[1.0]], [[10.0]]], strides=2)
    >>> ab.Session().run(y)[0, :, 0]
    array([ 1., 10.,  2., 20.], dtype=float32)
    """
    what = "conv_transpose"
    x, weights = promote(inputs, kernel)
    rank = spatial_rank(what, x, weights)
    op = _definition(what, rank, strides, check_padding(what, padding), dilation_rate)
    sizes = _sizes(weights.shape, rank)
    if weights.shape is None or None in sizes:
        raise ValueError(f"{what}: the kernel's spatial shape must be known; got {weights!r}.")
    _check_same_channels(what, x, data_format, weights.shape[-1])
    extra = None if output_padding is None else per_axis(f"{what}: output_padding", output_padding, rank, 0)
    rules = [
        _transposed(
            reach(size or 0, op.dilation[axis]), op.strides[axis], op.padding, None if extra is None else extra[axis]
        )
        for axis, size in enumerate(sizes)
    ]
    layout = check_data_format(what, data_format)
    dy = to_channels_last(x, rank, layout)
    growth = [growth for growth, _ in rules]
    shape = _grown(spatial(dy.shape, rank), op.strides, growth)
    known = (None if dy.shape is None else dy.shape[0], *shape, weights.shape[-2])
    definition = ConvInputGrad(op.strides, op.dilation, tuple(pads for _, pads in rules), known)
    y = apply(definition, dy, weights, _shape_vector(known, dy, weights, op.strides, growth))
    return from_channels_last(y, rank, layout)


def _transposed(reach: int, stride: int, padding: Padding, extra: int | None) -> tuple[int, tuple[int, int]]:
    """Return by how much the result exceeds size * stride along an axis, and the padding of the convolution."""
    if padding == "valid":
        more = max(stride - reach, 0) if extra is None else extra
        return reach - stride + more, (0, -more)
    growth = 0 if extra is None else reach % 2 - stride + extra
    cut = reach - stride - growth
    before = max(0, cut // 2)
    return growth, (before, cut - before)


def _grown(sizes: Sequence[Dim], strides: Sequence[int], growth: Sequence[int]) -> tuple[Dim, ...]:
    return tuple(
        None if size is None else max(0, size * stride + more)
        for size, stride, more in zip(sizes, strides, growth, strict=True)
    )


def _shape_vector(known: Shape, x: Tensor, kernel: Tensor, strides: Sequence[int], growth: Sequence[int]) -> Tensor:
    """Return the shape of the result as an int32 vector."""
    if known is not None and None not in known:
        return convert_to_tensor(np.array(known, "int32"))
    factors = np.array([1, *strides, 0], "int32")
    offsets = convert_to_tensor([0, *growth, dim(kernel, -2)], "int32")
    return maximum(runtime_shape(x) * factors + offsets, np.int32(0))


__all__ = ["conv", "conv_transpose", "depthwise_conv", "separable_conv"]
