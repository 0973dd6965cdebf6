"""Functions of `tf.image` that change the dtype, the colours or the contrast of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import DType, DTypeLike, as_dtype, is_floating, is_integer
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from ...engine.ops.random import samplers


def convert_image_dtype(image: TensorLike, dtype: DTypeLike, saturate: bool = False, name: str | None = None) -> Tensor:
    """Cast images and scale them: floats are within 0 and 1, whole numbers within 0 and their largest value.

    Args:
        image: a tensor.
        dtype: the new dtype.
        saturate: whether values beyond the range of whole numbers become its ends.
    """
    image, wanted = ops.convert_to_tensor(image), as_dtype(dtype)
    if image.dtype == wanted:
        return image
    if not is_integer(wanted):
        values = ops.cast(image, wanted)
        return values * (1.0 / _largest(image.dtype)) if is_integer(image.dtype) else values
    if is_floating(image.dtype):
        scaled = image * (_largest(wanted) + 0.5)
    elif _largest(image.dtype) > _largest(wanted):
        scaled = ops.floor_divide(image, (_largest(image.dtype) + 1) // (_largest(wanted) + 1))
    else:
        scaled = ops.cast(image, wanted) * ((_largest(wanted) + 1) // (_largest(image.dtype) + 1))
    return ops.saturate_cast(scaled, wanted) if saturate else ops.cast(scaled, wanted)


def _largest(dtype: DType) -> int:
    return int(np.iinfo(dtype).max)


def _as_floats(change: Callable[[Tensor], Tensor], image: TensorLike) -> Tensor:
    """Apply a function of floats to images of any dtype, and give the result that dtype."""
    image = ops.convert_to_tensor(image)
    floats = convert_image_dtype(image, image.dtype if is_floating(image.dtype) else "float32")
    return convert_image_dtype(change(floats), image.dtype, saturate=True)


def adjust_brightness(image: TensorLike, delta: TensorLike) -> Tensor:
    """Add `delta` to each value; whole numbers are scaled to floats before and back after."""
    return _as_floats(lambda floats: ops.add(floats, ops.cast(delta, floats.dtype)), image)


def adjust_contrast(images: TensorLike, contrast_factor: TensorLike) -> Tensor:
    """Multiply the distance of each value from the mean of its image and channel."""

    def change(floats: Tensor) -> Tensor:
        mean = ops.mean(floats, axis=(-3, -2), keepdims=True)
        return (floats - mean) * ops.cast(contrast_factor, floats.dtype) + mean

    return _as_floats(change, images)


def _in_hsv(image: TensorLike, change: Callable[[Tensor, Tensor, Tensor], Sequence[Tensor]]) -> Tensor:
    def through(floats: Tensor) -> Tensor:
        parts = ops.unstack(rgb_to_hsv(floats), axis=-1)
        return hsv_to_rgb(ops.stack(list(change(*parts)), axis=-1))

    return _as_floats(through, image)


def adjust_saturation(image: TensorLike, saturation_factor: TensorLike, name: str | None = None) -> Tensor:
    """Multiply the saturation of RGB images, and cut it off at 0 and 1."""
    return _in_hsv(image, lambda h, s, v: (h, ops.clip(ops.multiply(s, saturation_factor), 0.0, 1.0), v))


def adjust_hue(image: TensorLike, delta: TensorLike, name: str | None = None) -> Tensor:
    """Turn the hue of RGB images by a share of the circle."""
    return _in_hsv(image, lambda h, s, v: (ops.mod(ops.add(h, delta), 1.0), s, v))


_YUV = [[0.299, -0.14714119, 0.61497538], [0.587, -0.28886916, -0.51496512], [0.114, 0.43601035, -0.10001026]]
_RGB_OF_YUV = [[1.0, 1.0, 1.0], [0.0, -0.394642334, 2.03206185], [1.13988303, -0.58062185, 0.0]]
_YIQ = [[0.299, 0.59590059, 0.2115], [0.587, -0.27455667, -0.52273617], [0.114, -0.32134392, 0.31119955]]
_RGB_OF_YIQ = [[1.0, 1.0, 1.0], [0.95598634, -0.27201283, -1.10674021], [0.6208248, -0.64720424, 1.70423049]]


def _mixed(images: TensorLike, weights: list[list[float]]) -> Tensor:
    tensor = ops.convert_to_tensor(images)
    return ops.matmul(tensor, ops.convert_to_tensor(weights, tensor.dtype))


def rgb_to_yuv(images: TensorLike) -> Tensor:
    """Turn RGB images of floats into brightness (Y) and two differences of colours (U, V), as of PAL."""
    return _mixed(images, _YUV)


def yuv_to_rgb(images: TensorLike) -> Tensor:
    """Turn YUV images into RGB: the inverse of `rgb_to_yuv`."""
    return _mixed(images, _RGB_OF_YUV)


def rgb_to_yiq(images: TensorLike) -> Tensor:
    """Turn RGB images of floats into brightness (Y) and two differences of colours (I, Q), as of NTSC."""
    return _mixed(images, _YIQ)


def yiq_to_rgb(images: TensorLike) -> Tensor:
    """Turn YIQ images into RGB: the inverse of `rgb_to_yiq`."""
    return _mixed(images, _RGB_OF_YIQ)


def random_brightness(image: TensorLike, max_delta: float, seed: int | None = None) -> Tensor:
    """Add one number, drawn between ``-max_delta`` and ``max_delta``, to all pixels."""
    return adjust_brightness(image, samplers.uniform((), -max_delta, max_delta, seed=seed))


def random_hue(image: TensorLike, max_delta: float, seed: int | None = None) -> Tensor:
    """Turn the hue of RGB images by a share of the circle, drawn between ``-max_delta`` and ``max_delta``."""
    return adjust_hue(image, samplers.uniform((), -max_delta, max_delta, seed=seed))


def random_contrast(image: TensorLike, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """Multiply the distance of pixels from the mean of their channel by a number between `lower` and `upper`."""
    return adjust_contrast(image, samplers.uniform((), lower, upper, seed=seed))


def random_saturation(image: TensorLike, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """Multiply the saturation of RGB images by a number that is drawn between `lower` and `upper`."""
    return adjust_saturation(image, samplers.uniform((), lower, upper, seed=seed))


def per_image_standardization(image: TensorLike) -> Tensor:
    """Subtract each image's mean, and divide by its standard deviation, or by ``1 / sqrt(size)`` if that is larger."""
    floats = ops.cast(image, "float32")
    mean = ops.mean(floats, axis=(-3, -2, -1), keepdims=True)
    deviation = ops.std(floats, axis=(-3, -2, -1), keepdims=True)
    height, width, channels = ops.shape(floats)[-3:]
    least = ops.rsqrt(ops.cast(height * width * channels, "float32"))
    return (floats - mean) / ops.maximum(deviation, least)


def rgb_to_grayscale(images: TensorLike, name: str | None = None) -> Tensor:
    """Weigh red, green and blue into one channel, with the dtype of `images`."""
    return _as_floats(lambda floats: ops.image.rgb_to_grayscale(floats, "channels_last"), images)


def grayscale_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """Repeat the only channel three times.

    Raises:
        ValueError: there are several channels.
    """
    channels = ops.shape(images)[-1]
    if channels != 1:
        raise ValueError(f"tf.image.grayscale_to_rgb: images must have one channel, got {channels}.")
    return ops.repeat(images, 3, axis=-1)


def rgb_to_hsv(images: TensorLike, name: str | None = None) -> Tensor:
    """Turn red, green and blue, within 0 and 1, into hue, saturation and value."""
    return ops.image.rgb_to_hsv(images, "channels_last")


def hsv_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """Turn hue, saturation and value, within 0 and 1, into red, green and blue."""
    return ops.image.hsv_to_rgb(images, "channels_last")
