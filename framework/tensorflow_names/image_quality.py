"""Functions of `tf.image` that compare images or look at their edges."""

from __future__ import annotations

import math

from ...engine import ops
from ...engine.common.dtypes import is_integer
from ...engine.graph import Tensor
from ...engine.ops.base import TensorLike
from .image_colors import convert_image_dtype


def _scaled(first: TensorLike, second: TensorLike, max_val: float) -> tuple[Tensor, Tensor, float]:
    """Return images as float32, and their largest value in the same scale."""
    tensors = ops.convert_to_tensor(first), ops.convert_to_tensor(second)
    dtype = tensors[0].dtype
    largest = float(convert_image_dtype(ops.cast(max_val, dtype), "float32")) if is_integer(dtype) else float(max_val)
    return convert_image_dtype(tensors[0], "float32"), convert_image_dtype(tensors[1], "float32"), largest


def psnr(a: TensorLike, b: TensorLike, max_val: float, name: str | None = None) -> Tensor:
    """Compute the peak signal-to-noise ratio of images in decibels, one for each image.

    Args:
        a, b: images of height, width and channels, with or without rows before.
        max_val: the largest value that pixels can have.
    """
    first, second, largest = _scaled(a, b, max_val)
    error = ops.mean(ops.square(first - second), axis=(-3, -2, -1))
    return 20.0 * math.log10(largest) - 10.0 * ops.log10(error)


def ssim(
    img1: TensorLike,
    img2: TensorLike,
    max_val: float,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Tensor:
    """Compute the structural similarity of images, one number for each image; see `anabranch.ops.image.ssim`.

    Args:
        img1, img2: images of height, width and channels, with or without rows before.
        max_val: the largest value that pixels can have.
        filter_size, filter_sigma: the window in which the images are compared.
        k1, k2: what keeps quotients from division by zero.
    """
    first, second, largest = _scaled(img1, img2, max_val)
    options = {"filter_size": filter_size, "filter_sigma": filter_sigma, "k1": k1, "k2": k2}
    return ops.image.ssim(first, second, largest, data_format="channels_last", **options)


def total_variation(images: TensorLike, name: str | None = None) -> Tensor:
    """Add up how much neighbouring pixels differ, in each image: its noise."""
    tensor = ops.convert_to_tensor(images)
    down, right = tensor[..., 1:, :, :] - tensor[..., :-1, :, :], tensor[..., 1:, :] - tensor[..., :-1, :]
    return ops.sum(ops.abs(down), axis=(-3, -2, -1)) + ops.sum(ops.abs(right), axis=(-3, -2, -1))


def image_gradients(image: TensorLike) -> tuple[Tensor, Tensor]:
    """Compute how much each pixel differs from that below it, and from that on its right; 0 at the end.

    Args:
        image: [batch, height, width, channels].
    """
    tensor = ops.convert_to_tensor(image)
    down, right = tensor[:, 1:] - tensor[:, :-1], tensor[:, :, 1:] - tensor[:, :, :-1]
    kept = (0, 0)
    return ops.pad(down, [kept, (0, 1), kept, kept]), ops.pad(right, [kept, kept, (0, 1), kept])


def sobel_edges(image: TensorLike) -> Tensor:
    """Compute Sobel's edges of images, [batch, height, width, channels]: with one more axis, of two, down and right."""
    return ops.image.sobel_edges(image, data_format="channels_last")
