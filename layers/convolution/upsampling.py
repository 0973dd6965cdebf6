"""`UpSampling1D`, `UpSampling2D`, `UpSampling3D`: a whole number of cells in the place of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from ...engine.ops.data_format import check_data_format
from ..core.input_spec import InputSpec
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from .spatial import axis_sizes, one_of, spatial_axes

if TYPE_CHECKING:
    from ..core.options import LayerOptions


# How many cells to either side of a point count, at most.
_RADIUS = {"bilinear": 1, "bicubic": 2, "lanczos3": 3, "lanczos5": 5}


@config_from_signature()
class UpSampling1D(Layer):
    """Each step of ``(batch, steps, features)`` several times.

    Args:
        size: how many times.
        **kwargs: see `Layer`.

    Raises:
        ValueError: `size` is not a positive integer.

    >>> import anabranch as ab
    >>> ab.layers.UpSampling1D(2)([[[1.0], [2.0]]])[0, :, 0]
    Tensor([1., 1., 2., 2.], dtype=float32)
    """

    def __init__(self, size: int = 2, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        (self.size,) = axis_sizes("UpSampling1D", "size", size, 1)
        self.input_spec = InputSpec(ndim=3)

    def call(self, inputs: TensorLike) -> Tensor:
        return ops.repeat(inputs, self.size, axis=1)


@config_from_signature()
class UpSampling2D(Layer):
    """Images made larger by whole factors.

    Args:
        size: the factor: an int, or one for each spatial axis.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        interpolation: ``"nearest"`` (each pixel repeated), ``"bilinear"``, ``"bicubic"``, ``"lanczos3"`` or
            ``"lanczos5"``; see `ops.image.resize`. Heights and widths may be unknown.
        **kwargs: see `Layer`.

    Shapes: ``(batch, height, width, channels)`` to ``(batch, size[0] * height, size[1] * width, channels)``.

    Raises:
        ValueError: an argument is not one of those above.

    >>> import anabranch as ab
    >>> ab.layers.UpSampling2D((1, 2), interpolation="bilinear")([[[[0.0], [4.0]]]])[0, 0, :, 0]
    Tensor([0., 1., 3., 4.], dtype=float32)
    """

    def __init__(
        self,
        size: int | tuple[int, int] = (2, 2),
        data_format: str | None = None,
        interpolation: str = "nearest",
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.size = axis_sizes("UpSampling2D", "size", size, 2)
        self.data_format = check_data_format(type(self).__name__, data_format)
        self.interpolation = one_of("UpSampling2D", "interpolation", interpolation, ("nearest", *_RADIUS))
        self.input_spec = InputSpec(ndim=4)

    def call(self, inputs: Tensor) -> Tensor:
        axes = spatial_axes(2, self.data_format)
        if self.interpolation == "nearest":
            return _repeated(inputs, axes, self.size)
        sizes = [ops.shape(inputs)[axis] * factor for axis, factor in zip(axes, self.size, strict=True)]
        if all(isinstance(size, int) for size in sizes):
            return ops.image.resize(inputs, sizes, self.interpolation, data_format=self.data_format)
        pixels = ops.cast(inputs, self.compute_dtype)
        for axis, factor in zip(axes, self.size, strict=True):
            pixels = _interpolated(pixels, axis, factor, self.interpolation)
        if pixels.dtype == inputs.dtype:
            return pixels
        return ops.saturate_cast(ops.round(pixels), inputs.dtype)  # integers, as resize gives them


@config_from_signature()
class UpSampling3D(Layer):
    """Each cell of a volume several times along each axis.

    Args:
        size: how many times: an int, or one for each spatial axis.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        **kwargs: see `Layer`.

    Shapes: ``(batch, size_1, size_2, size_3, channels)`` to ``(batch, *new_sizes, channels)``.

    Raises:
        ValueError: an argument is not one of those above.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> ab.layers.UpSampling3D((1, 2, 3))(np.ones((2, 4, 4, 4, 3), "float32")).shape
    (2, 4, 8, 12, 3)
    """

    def __init__(
        self,
        size: int | tuple[int, int, int] = (2, 2, 2),
        data_format: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.size = axis_sizes("UpSampling3D", "size", size, 3)
        self.data_format = check_data_format(type(self).__name__, data_format)
        self.input_spec = InputSpec(ndim=5)

    def call(self, inputs: Tensor) -> Tensor:
        return _repeated(inputs, spatial_axes(3, self.data_format), self.size)


def _repeated(x: Tensor, axes: tuple[int, ...], factors: tuple[int, ...]) -> Tensor:
    for axis, factor in zip(axes, factors, strict=True):
        x = ops.repeat(x, factor, axis=axis)
    return x


def _interpolated(x: Tensor, axis: int, factor: int, interpolation: str) -> Tensor:
    """Return `x` made `factor` times as long along an axis of unknown size.

    Far from the ends the weights repeat from cell to cell, so that a convolution with a filter for each new cell gives
    them all. Near the ends, what is outside does not count: the sum is divided by that of the weights inside.
    """
    if factor == 1:
        return x
    last = len(x.shape or ()) - 1
    lines = ops.swapaxes(x, axis, last)
    *others, length = ops.shape(lines)
    kernel = ops.cast(_stencil(factor, interpolation), x.dtype)
    options = {"padding": "same", "data_format": "channels_last"}
    weighted = ops.conv(ops.reshape(lines, (-1, length, 1)), kernel, **options)
    inside = ops.conv(ops.ones((1, length, 1), x.dtype), kernel, **options)
    return ops.swapaxes(ops.reshape(weighted / inside, (*others, length * factor)), axis, last)


def _stencil(factor: int, interpolation: str) -> Tensor:
    """Return the weights of the cells around one for the new cells in its place, (cells, 1, factor)."""
    radius = _RADIUS[interpolation]
    cells = 4 * radius + 1  # so many that the ends are out of reach
    units = np.eye(cells, dtype="float64").reshape(cells, 1, cells, 1)
    spread = ops.image.resize(units, (1, cells * factor), interpolation, data_format="channels_last")
    middle = 2 * radius
    return ops.reshape(spread, (cells, 1, cells, factor))[radius : cells - radius, :, middle]
