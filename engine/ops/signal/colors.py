"""Colours in other coordinates: `rgb_to_grayscale`, `rgb_to_hsv`, `hsv_to_rgb`."""

from __future__ import annotations

from ...common import dtypes
from ..arrays.joining import stack, unstack
from ..arrays.shaping import expand_dims
from ..base import Tensor, TensorLike, cast
from ..data_format import check_data_format
from ..math.comparison import clip, equal, greater, less, maximum, minimum, where
from ..math.complex_numbers import absolute
from ..math.elementwise import mod
from .image_formats import channels_axis, compute_dtype, image_tensor

_RED, _GREEN, _BLUE = 0.2989, 0.5870, 0.1140  # the share of each in the brightness


def rgb_to_grayscale(images: TensorLike, data_format: str | None = None) -> Tensor:
    """Compute the brightness of colours: ``0.2989 red + 0.587 green + 0.114 blue``. Gray images stay what they are.

    Args:
        images: one image or a batch, with 3 channels or 1. Integers are truncated.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Returns:
        Images of the same dtype with 1 channel.

    Raises:
        ValueError: another number of axes or channels.

    >>> import anabranch as ab
    >>> ab.ops.image.rgb_to_grayscale([[[200, 100, 50]]])
    Tensor([[[124]]], dtype=int32)
    """
    tensor, axis = _with_channels("rgb_to_grayscale", images, data_format, (3, 1))
    if tensor.shape is not None and tensor.shape[axis] == 1:
        return tensor
    red, green, blue = unstack(cast(tensor, compute_dtype(tensor)), axis=axis, num=3)
    return cast(expand_dims(_RED * red + _GREEN * green + _BLUE * blue, axis), tensor.dtype)


def _with_channels(
    what: str, images: TensorLike, data_format: str | None, allowed: tuple[int, ...]
) -> tuple[Tensor, int]:
    """Return the images and the axis of their channels, of which there must be one of the numbers `allowed`."""
    tensor = image_tensor(what, images)
    axis = channels_axis(tensor, check_data_format(what, data_format))
    channels = None if tensor.shape is None else tensor.shape[axis]
    if channels is not None and channels not in allowed:
        numbers = " or ".join(str(number) for number in allowed)
        raise ValueError(f"{what}: expected {numbers} channels on axis {axis}; got {channels}, in {tensor.spec}.")
    return tensor, axis


def _floating_channels(what: str, images: TensorLike, data_format: str | None) -> tuple[Tensor, int]:
    tensor, axis = _with_channels(what, images, data_format, (3,))
    if not dtypes.is_floating(tensor.dtype):
        raise ValueError(f"{what}: expected floats; got {tensor.spec}. Divide by 255 to bring bytes to [0, 1].")
    return tensor, axis


def rgb_to_hsv(images: TensorLike, data_format: str | None = None) -> Tensor:
    """Convert red, green and blue to hue, saturation and value. A hue of 0 is red, 1/3 green, 2/3 blue.

    Args:
        images: one image or a batch, of floats in [0, 1], with 3 channels.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Raises:
        ValueError: the images are not floats, or have another number of axes or channels.

    >>> import anabranch as ab
    >>> ab.ops.image.rgb_to_hsv([[[0.0, 0.5, 0.0]]])
    Tensor([[[0.33333334, 1.        , 0.5       ]]], dtype=float32)
    """
    tensor, axis = _floating_channels("rgb_to_hsv", images, data_format)
    tiny = dtypes.epsilon(tensor.dtype)
    tensor = where(less(absolute(tensor), tiny), 0.0, tensor)
    red, green, blue = unstack(tensor, axis=axis, num=3)
    value = maximum(maximum(red, green), blue)
    spread = value - minimum(minimum(red, green), blue)
    bright, coloured = greater(value, 0), greater(spread, 0)
    saturation = where(bright, spread / where(bright, value, 1.0), 0.0)
    sixth = 1.0 / (6.0 * where(coloured, spread, 1.0))
    hue = where(equal(value, green), sixth * (blue - red) + 2.0 / 6.0, sixth * (red - green) + 4.0 / 6.0)
    hue = where(coloured, where(equal(value, red), sixth * (green - blue), hue), 0.0)
    hue = where(less(hue, 0), hue + 1.0, hue)
    return stack([hue, saturation, value], axis=axis)


def hsv_to_rgb(images: TensorLike, data_format: str | None = None) -> Tensor:
    """Convert hue, saturation and value to red, green and blue: the inverse of `rgb_to_hsv`.

    Args:
        images: one image or a batch, of floats in [0, 1], with 3 channels.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Raises:
        ValueError: the images are not floats, or have another number of axes or channels.
    """
    tensor, axis = _floating_channels("hsv_to_rgb", images, data_format)
    hue, saturation, value = unstack(tensor, axis=axis, num=3)
    turn = mod(hue, 1.0) * 6.0
    red = clip(absolute(turn - 3.0) - 1.0, 0.0, 1.0)
    green = clip(2.0 - absolute(turn - 2.0), 0.0, 1.0)
    blue = clip(2.0 - absolute(turn - 4.0), 0.0, 1.0)
    return stack([value * (1.0 - saturation + saturation * part) for part in (red, green, blue)], axis=axis)


__all__ = ["hsv_to_rgb", "rgb_to_grayscale", "rgb_to_hsv"]
