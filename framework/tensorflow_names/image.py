"""`tf.image`: images of height, width and channels, with TensorFlow's arguments."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import DTypeLike
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from ...engine.ops.random import samplers
from ..data.images import img_to_array, load_img, open_image
from .image_colors import adjust_brightness as adjust_brightness
from .image_colors import adjust_contrast as adjust_contrast
from .image_colors import adjust_hue as adjust_hue
from .image_colors import adjust_saturation as adjust_saturation
from .image_colors import convert_image_dtype as convert_image_dtype
from .image_colors import grayscale_to_rgb as grayscale_to_rgb
from .image_colors import hsv_to_rgb as hsv_to_rgb
from .image_colors import per_image_standardization as per_image_standardization
from .image_colors import random_brightness as random_brightness
from .image_colors import random_contrast as random_contrast
from .image_colors import random_hue as random_hue
from .image_colors import random_saturation as random_saturation
from .image_colors import rgb_to_grayscale as rgb_to_grayscale
from .image_colors import rgb_to_hsv as rgb_to_hsv
from .image_colors import rgb_to_yiq as rgb_to_yiq
from .image_colors import rgb_to_yuv as rgb_to_yuv
from .image_colors import yiq_to_rgb as yiq_to_rgb
from .image_colors import yuv_to_rgb as yuv_to_rgb
from .image_quality import image_gradients as image_gradients
from .image_quality import psnr as psnr
from .image_quality import sobel_edges as sobel_edges
from .image_quality import ssim as ssim
from .image_quality import total_variation as total_variation


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
        method: "bilinear", "nearest", "bicubic", "lanczos3" or "lanczos5" as `ops.image.resize` has them, or "area",
            the mean of what a new pixel covers. `ResizeMethod` has them by name.
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
    if method == "area":
        return _covered(_covered(values, height, -3), width, -2)
    return ops.image.resize(values, (height, width), method, antialias, data_format="channels_last")


class ResizeMethod:
    """The methods of `resize`."""

    AREA = "area"
    BICUBIC = "bicubic"
    BILINEAR = "bilinear"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"
    NEAREST_NEIGHBOR = "nearest"


def _covered(images: Tensor, count: int, axis: int) -> Tensor:
    """Return the means of the parts of an axis, of known size, that each of `count` new elements covers."""
    size = int(ops.shape(images)[axis])
    starts, old = np.arange(count)[:, None] * size / count, np.arange(size)
    shares = np.clip(np.minimum(old + 1, starts + size / count) - np.maximum(old, starts), 0, None) * count / size
    return ops.moveaxis(
        ops.matmul(ops.moveaxis(images, axis, -1), ops.convert_to_tensor(shares.T, "float32")), -1, axis
    )


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


def resize_with_pad(
    image: TensorLike, target_height: int, target_width: int, method: str = "bilinear", antialias: bool = False
) -> Tensor:
    """Resize images with their ratio of sizes kept, and add zeros around them up to a height and width.

    Args:
        image: images of known height and width.
        target_height, target_width: the new sizes.
        method, antialias: as of `resize`.
    """
    tensor = ops.convert_to_tensor(image)
    height, width = ops.shape(tensor)[-3:-1]
    ratio = max(width / target_width, height / target_height)
    rows, columns = int(height / ratio), int(width / ratio)
    top, left = (int((wanted - size / ratio) / 2) for wanted, size in ((target_height, height), (target_width, width)))
    resized = resize(tensor, (rows, columns), method, antialias=antialias)
    return pad_to_bounding_box(resized, max(top, 0), max(left, 0), target_height, target_width)


def crop_and_resize(
    image: TensorLike,
    boxes: TensorLike,
    box_indices: TensorLike,
    crop_size: Sequence[int],
    method: str = "bilinear",
    extrapolation_value: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """Cut boxes out of images and resize them all to one height and width.

    Args:
        image: [batch, height, width, channels].
        boxes: [boxes, 4]: top, left, bottom and right, as shares of the way from the first pixel to the last.
        box_indices: [boxes], the image of each box.
        crop_size: the height and width of the results.
        method: "bilinear" or "nearest".
        extrapolation_value: what is outside of an image.

    Returns:
        float32, [boxes, crop height, crop width, channels].

    Raises:
        ValueError: the method is another one.
    """
    if method not in ("bilinear", "nearest"):
        raise ValueError(f"tf.image.crop_and_resize: method must be 'bilinear' or 'nearest', got {method!r}.")
    images, corners = ops.cast(image, "float32"), ops.cast(boxes, "float32")
    _, height, width, channels = ops.shape(images)
    rows = _places(corners[:, 0], corners[:, 2], int(crop_size[0]), height)
    columns = _places(corners[:, 1], corners[:, 3], int(crop_size[1]), width)
    pixels = ops.reshape(images, (-1, channels))
    first = ops.cast(box_indices, "int32")[:, None, None] * height * width

    def read(row: Tensor, column: Tensor) -> Tensor:
        row, column = (
            ops.cast(ops.clip(place, 0, size - 1), "int32") for place, size in ((row, height), (column, width))
        )
        return ops.take(pixels, first + row[:, :, None] * width + column[:, None, :], axis=0)

    if method == "nearest":
        found = read(ops.floor(rows + 0.5), ops.floor(columns + 0.5))
    else:
        top, left = ops.floor(rows), ops.floor(columns)
        down, right = (rows - top)[:, :, None, None], (columns - left)[:, None, :, None]
        above = read(top, left) * (1 - right) + read(top, ops.ceil(columns)) * right
        below = read(ops.ceil(rows), left) * (1 - right) + read(ops.ceil(rows), ops.ceil(columns)) * right
        found = above * (1 - down) + below * down
    is_row, is_column = _is_within(rows, height), _is_within(columns, width)
    inside = ops.logical_and(is_row[:, :, None, None], is_column[:, None, :, None])
    return ops.where(inside, found, extrapolation_value)


def _is_within(place: Tensor, size: int | Tensor) -> Tensor:
    return ops.logical_and(place >= 0, place <= ops.cast(size - 1, "float32"))


def _places(start: Tensor, end: Tensor, count: int, size: int | Tensor) -> Tensor:
    """Return where the pixels of each box are along an axis, [boxes, count]."""
    last = ops.cast(size - 1, "float32")
    if count == 1:
        return (0.5 * (start + end) * last)[:, None]
    return start[:, None] * last + ops.arange(count, dtype="float32") * ((end - start) * last / (count - 1))[:, None]


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
        data_format="channels_last",
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
        grey = (img_to_array(load_img(file, color_mode="grayscale"), "channels_last", "int32") // 256).astype("uint8")
        opaque = [np.full_like(grey, 255)] if channels == 4 else []
        return np.concatenate([grey] * min(channels or 1, 3) + opaque, axis=-1)
    own = 1 if mode in ("1", "L") else 4 if mode in ("RGBA", "LA", "PA") else 3
    return img_to_array(load_img(file, color_mode=_COLOR_MODES[channels or own]), "channels_last", "uint8")


def decode_jpeg(contents: TensorLike, channels: int = 0, name: str | None = None) -> Tensor:
    """Decode an image in the JPEG format, or in another one, as `decode_image` does."""
    return decode_image(contents, channels, name=name)


def decode_png(contents: TensorLike, channels: int = 0, dtype: DTypeLike = "uint8", name: str | None = None) -> Tensor:
    """Decode an image in the PNG format, or in another one, as `decode_image` does."""
    return decode_image(contents, channels, dtype, name)


__all__ = [
    "ResizeMethod",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "central_crop",
    "convert_image_dtype",
    "crop_and_resize",
    "crop_to_bounding_box",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "extract_patches",
    "flip_left_right",
    "flip_up_down",
    "grayscale_to_rgb",
    "hsv_to_rgb",
    "image_gradients",
    "pad_to_bounding_box",
    "per_image_standardization",
    "psnr",
    "random_brightness",
    "random_contrast",
    "random_crop",
    "random_flip_left_right",
    "random_flip_up_down",
    "random_hue",
    "random_saturation",
    "resize",
    "resize_with_crop_or_pad",
    "resize_with_pad",
    "rgb_to_grayscale",
    "rgb_to_hsv",
    "rgb_to_yiq",
    "rgb_to_yuv",
    "rot90",
    "sobel_edges",
    "ssim",
    "total_variation",
    "transpose",
    "yiq_to_rgb",
    "yuv_to_rgb",
]
