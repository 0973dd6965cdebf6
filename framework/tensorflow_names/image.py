"""`tf.image`: images of height, width and channels, with TensorFlow's arguments."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import DType, DTypeLike, as_dtype, is_floating, is_integer
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from ...engine.ops.random import samplers
from ..data.images import img_to_array, load_img, open_image


def resize(
    images: TensorLike,
    size: Sequence[int],
    method: str = "bilinear",
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
    name: str | None = None,
) -> Tensor:
    """Resize images to a height and width; float32, as in TensorFlow, but for `method="nearest"`.

    Args:
        images: height, width and channels, with or without rows before.
        size: the new height and width.
        method: "bilinear", "nearest", "bicubic", "lanczos3", "lanczos5" or "area" as `ops.image.resize` has them.
        preserve_aspect_ratio: whether sizes keep their ratio, so that one of them may become less than `size`.
        antialias: whether to smooth where an image becomes smaller.
    """
    images = ops.convert_to_tensor(images)
    height, width = int(size[0]), int(size[1])
    if preserve_aspect_ratio:
        rows, columns = ops.shape(images)[-3:-1]
        scale = min(height / rows, width / columns)
        height, width = (round(scale * each) for each in (rows, columns))
    values = images if method == "nearest" else ops.cast(images, "float32")
    return ops.image.resize(values, (height, width), method, antialias, data_format="channels_last")


def crop_to_bounding_box(
    image: TensorLike, offset_height: int, offset_width: int, target_height: int, target_width: int
) -> Tensor:
    """Cut a rectangle out of images.

    Raises:
        ValueError: the rectangle is not within the images.
    """
    image = ops.convert_to_tensor(image)
    height, width = ops.shape(image)[-3:-1]
    sizes = offset_height, offset_width, height - offset_height - target_height, width - offset_width - target_width
    if any(isinstance(size, int) and size < 0 for size in sizes):
        raise ValueError(
            f"crop_to_bounding_box: {target_height} x {target_width} at offsets {offset_height} and {offset_width} "
            f"is not within images of {height} x {width}."
        )
    rows = slice(offset_height, offset_height + target_height)
    columns = slice(offset_width, offset_width + target_width)
    return image[..., rows, columns, :]


def pad_to_bounding_box(
    image: TensorLike, offset_height: int, offset_width: int, target_height: int, target_width: int
) -> Tensor:
    """Add zeros around images.

    Raises:
        ValueError: an image does not fit into the new size.
    """
    tensor = ops.convert_to_tensor(image)
    rank, sizes = tensor.ndim or 0, ops.shape(tensor)
    behind = target_height - offset_height - sizes[-3], target_width - offset_width - sizes[-2]
    if any(isinstance(size, int) and size < 0 for size in (offset_height, offset_width, *behind)):
        raise ValueError(
            f"pad_to_bounding_box: an image of {sizes[-3]} x {sizes[-2]} at offsets {offset_height} and {offset_width} "
            f"does not fit into {target_height} x {target_width}."
        )
    return ops.pad(tensor, [*[(0, 0)] * (rank - 3), (offset_height, behind[0]), (offset_width, behind[1]), (0, 0)])


def central_crop(image: TensorLike, central_fraction: float) -> Tensor:
    """Cut out the middle of images: a share of their height and width, larger than 0 and at most 1.

    Raises:
        ValueError: the share is out of range.
    """
    if not 0.0 < central_fraction <= 1.0:
        raise ValueError(f"tf.image.central_crop: central_fraction must be within (0, 1], got {central_fraction}.")
    image = ops.convert_to_tensor(image)
    height, width = ops.shape(image)[-3:-1]
    top, left = (int((size - size * central_fraction) / 2) for size in (height, width))
    return crop_to_bounding_box(image, top, left, height - 2 * top, width - 2 * left)


def resize_with_crop_or_pad(image: TensorLike, target_height: int, target_width: int) -> Tensor:
    """Cut out the middle of images or add zeros around them, until they have a height and width."""
    image = ops.convert_to_tensor(image)
    height, width = ops.shape(image)[-3:-1]
    top, left = max(height - target_height, 0) // 2, max(width - target_width, 0) // 2
    image = crop_to_bounding_box(image, top, left, min(height, target_height), min(width, target_width))
    above, before = max(target_height - height, 0) // 2, max(target_width - width, 0) // 2
    return pad_to_bounding_box(image, above, before, target_height, target_width)


def random_crop(value: TensorLike, size: Sequence[int], seed: int | None = None, name: str | None = None) -> Tensor:
    """Cut a part of the given shape out of a tensor, at a place that is drawn.

    Raises:
        ValueError: the tensor is smaller than the part.
    """
    value = ops.convert_to_tensor(value)
    shape = tuple(ops.shape(value))
    if len(size) != len(shape) or any(part > whole for part, whole in zip(size, shape, strict=True)):
        raise ValueError(f"tf.image.random_crop: size must fit into the shape {shape}, got {tuple(size)}.")
    starts = [
        samplers.randint((), 0, whole - part + 1, seed=None if seed is None else seed + axis)
        for axis, (part, whole) in enumerate(zip(size, shape, strict=True))
    ]
    return ops.slice(value, starts, tuple(size))


def flip_left_right(image: TensorLike) -> Tensor:
    """Reverse the order of the columns."""
    return ops.flip(image, -2)


def flip_up_down(image: TensorLike) -> Tensor:
    """Reverse the order of the rows."""
    return ops.flip(image, -3)


def random_flip_left_right(image: TensorLike, seed: int | None = None) -> Tensor:
    """Reverse the order of the columns of each image with a probability of one half."""
    return _flip_some(image, -2, seed)


def random_flip_up_down(image: TensorLike, seed: int | None = None) -> Tensor:
    """Reverse the order of the rows of each image with a probability of one half."""
    return _flip_some(image, -3, seed)


def _flip_some(image: TensorLike, axis: int, seed: int | None) -> Tensor:
    image = ops.convert_to_tensor(image)
    rows = ops.shape(image)[:-3]
    drawn = ops.less(samplers.uniform((*rows, 1, 1, 1), seed=seed), 0.5)
    return ops.where(drawn, ops.flip(image, axis), image)


def rot90(image: TensorLike, k: int = 1, name: str | None = None) -> Tensor:
    """Turn images `k` times by 90 degrees, against the clock."""
    return ops.rot90(image, k, axes=(-3, -2))


def transpose(image: TensorLike, name: str | None = None) -> Tensor:
    """Swap height and width."""
    return ops.swapaxes(image, -3, -2)


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


def extract_patches(
    images: TensorLike,
    sizes: Sequence[int],
    strides: Sequence[int],
    rates: Sequence[int],
    padding: str,
    name: str | None = None,
) -> Tensor:
    """Cut images into patches, each one vector; `sizes`, `strides` and `rates` have four numbers, the outer ones 1."""
    return ops.image.extract_patches(
        images,
        size=tuple(sizes[1:3]),
        strides=tuple(strides[1:3]),
        dilation_rate=tuple(rates[1:3]),
        padding=padding.lower(),
    )


_COLOR_MODES = {1: "grayscale", 3: "rgb", 4: "rgba"}


def decode_image(
    contents: TensorLike,
    channels: int | None = 0,
    dtype: DTypeLike = "uint8",
    name: str | None = None,
    expand_animations: bool = True,
) -> Tensor:
    """Decode an image of any format that Pillow reads, to height, width and channels.

    Args:
        contents: the bytes of its file, a vector of uint8, as `tf.io.read_file` gives them.
        channels: 1, 3 or 4; 0 for as many as the image has.
        dtype: uint8, or another one, to which values are scaled as by `convert_image_dtype`.
        name: of the operation.
        expand_animations: accepted for TensorFlow's sake: of an animation the first frame is decoded.

    Raises:
        ValueError: another number of channels is asked for. ImportError: Pillow is not installed.
    """
    if channels not in (None, 0, *_COLOR_MODES):
        raise ValueError(f"decode_image: channels must be 0, 1, 3 or 4, got {channels!r}.")

    def decoded(data: Any) -> object:
        return _pixels(io.BytesIO(data.tobytes()), channels)

    shape = (None, None, channels or None)
    return convert_image_dtype(ops.numpy_function(decoded, contents, "uint8", shape=shape, name=name), dtype)


def _pixels(file: io.BytesIO, channels: int | None) -> object:
    mode = open_image(file).mode
    if mode.startswith("I"):  # grey of 16 bits
        grey = (img_to_array(load_img(file, color_mode="grayscale"), dtype="int32") // 256).astype("uint8")
        opaque = [np.full_like(grey, 255)] if channels == 4 else []
        return np.concatenate([grey] * min(channels or 1, 3) + opaque, axis=-1)
    own = 1 if mode in ("1", "L") else 4 if mode in ("RGBA", "LA", "PA") else 3
    return img_to_array(load_img(file, color_mode=_COLOR_MODES[channels or own]), dtype="uint8")


def decode_jpeg(contents: TensorLike, channels: int = 0, name: str | None = None) -> Tensor:
    """Decode an image in the JPEG format, or in another one, as `decode_image` does."""
    return decode_image(contents, channels, name=name)


def decode_png(contents: TensorLike, channels: int = 0, dtype: DTypeLike = "uint8", name: str | None = None) -> Tensor:
    """Decode an image in the PNG format, or in another one, as `decode_image` does."""
    return decode_image(contents, channels, dtype, name)


__all__ = [
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "central_crop",
    "convert_image_dtype",
    "crop_to_bounding_box",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "extract_patches",
    "flip_left_right",
    "flip_up_down",
    "grayscale_to_rgb",
    "hsv_to_rgb",
    "pad_to_bounding_box",
    "per_image_standardization",
    "random_brightness",
    "random_contrast",
    "random_crop",
    "random_flip_left_right",
    "random_flip_up_down",
    "random_hue",
    "random_saturation",
    "resize",
    "resize_with_crop_or_pad",
    "rgb_to_grayscale",
    "rgb_to_hsv",
    "rot90",
    "transpose",
]
