"""Functions of images, with the names and signatures of ``keras.ops.image``.

Images are [height, width, channels] or [batch, height, width, channels]; with ``data_format="channels_first"`` the
channels stand before the height.
"""

from __future__ import annotations

from typing import Any

from ..arrays.indexing import getitem
from ..arrays.padding import pad
from ..arrays.patches import extract_patches, extract_patches_3d, reconstruct_patches
from ..arrays.shaping import DimLike, dim, reshape
from ..base import Tensor, TensorLike
from ..data_format import check_data_format
from ..entrance import guard_entrances
from .colors import hsv_to_rgb, rgb_to_grayscale, rgb_to_hsv
from .filtering import gaussian_blur, sobel_edges, ssim
from .image_formats import height_axis, image_tensor, rank_of
from .resizing import resize, scale_and_translate
from .warping import affine_transform, elastic_transform, map_coordinates, perspective_transform

_Size = Any  # an int, a scalar tensor, or None for what follows from the others


def pad_images(
    images: TensorLike,
    top_padding: _Size = None,
    left_padding: _Size = None,
    bottom_padding: _Size = None,
    right_padding: _Size = None,
    target_height: _Size = None,
    target_width: _Size = None,
    data_format: str | None = None,
) -> Tensor:
    """Surround images with a border of zeros.

    Args:
        images: one image or a batch.
        top_padding, bottom_padding, target_height: how many rows to add above and below, and how many there are then.
            Exactly two are given.
        left_padding, right_padding, target_width: the same for the columns.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Raises:
        ValueError: not two of each three are given, or one of them or the third is negative.

    >>> import anabranch as ab
    >>> ab.ops.image.pad_images(ab.ops.ones((15, 25, 3)), 2, 3, target_height=20, target_width=30).shape
    (20, 30, 3)
    """
    tensor, first = _placed("pad_images", images, data_format)
    rows = {"top_padding": top_padding, "bottom_padding": bottom_padding, "target_height": target_height}
    columns = {"left_padding": left_padding, "right_padding": right_padding, "target_width": target_width}
    widths: list[tuple[Any, Any]] = [(0, 0)] * rank_of(tensor)
    for axis, given in ((first, rows), (first + 1, columns)):
        _check_given("pad_images", given)
        before, behind, target = given.values()
        size = dim(tensor, axis)
        before = target - behind - size if before is None else before
        behind = target - before - size if behind is None else behind
        _check_found("pad_images", given, (before, behind), size)
        widths[axis] = (before, behind)
    return _of_sizes(pad(tensor, widths), first, target_height, target_width)


def crop_images(
    images: TensorLike,
    top_cropping: _Size = None,
    left_cropping: _Size = None,
    bottom_cropping: _Size = None,
    right_cropping: _Size = None,
    target_height: _Size = None,
    target_width: _Size = None,
    data_format: str | None = None,
) -> Tensor:
    """Crop a window out of images.

    Args:
        images: one image or a batch.
        top_cropping, bottom_cropping, target_height: how many rows to leave out above and below, and how many there are
            then. Exactly two are given.
        left_cropping, right_cropping, target_width: the same for the columns.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Raises:
        ValueError: not two of each three are given, or one of them or the third is negative.

    >>> import anabranch as ab
    >>> ab.ops.image.crop_images(ab.ops.ones((28, 28, 3)), 4, 4, target_height=20, target_width=24).shape
    (20, 24, 3)
    """
    tensor, first = _placed("crop_images", images, data_format)
    rows = {"top_cropping": top_cropping, "bottom_cropping": bottom_cropping, "target_height": target_height}
    columns = {"left_cropping": left_cropping, "right_cropping": right_cropping, "target_width": target_width}
    window: list[Any] = [slice(None)] * first
    for axis, given in ((first, rows), (first + 1, columns)):
        _check_given("crop_images", given)
        before, behind, target = given.values()
        size = dim(tensor, axis)
        before = size - target - behind if before is None else before
        target = size - before - behind if target is None else target
        _check_found("crop_images", given, (before, size - before - target, target), size)
        window.append(slice(before, before + target))
    return _of_sizes(getitem(tensor, tuple(window)), first, target_height, target_width)


def _of_sizes(images: Tensor, first: int, *targets: _Size) -> Tensor:
    """Return the images, of which heights and widths that were asked for are known, whatever they were made of."""
    known = {first + place: size for place, size in enumerate(targets) if isinstance(size, int)}
    if images.shape is None or all(images.shape[axis] is not None for axis in known):
        return images
    return reshape(images, [known.get(axis, dim(images, axis)) for axis in range(rank_of(images))])


def _placed(what: str, images: TensorLike, data_format: str | None) -> tuple[Tensor, int]:
    tensor = image_tensor(what, images)
    return tensor, height_axis(tensor, check_data_format(what, data_format))


def _check_given(what: str, given: dict[str, _Size]) -> None:
    shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
    if sum(value is None for value in given.values()) != 1:
        raise ValueError(f"{what}: exactly two of {', '.join(given)} must be given; got {shown}.")
    if any(isinstance(value, int) and value < 0 for value in given.values()):
        raise ValueError(f"{what}: sizes must not be negative; got {shown}.")


def _check_found(what: str, given: dict[str, _Size], found: tuple[Any, ...], size: DimLike) -> None:
    if any(isinstance(value, int) and value < 0 for value in found):
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(f"{what}: {shown} do not fit images of size {size} along this axis: what is left is negative.")


guard_entrances(globals(), __package__ or "")

__all__ = [
    "affine_transform",
    "crop_images",
    "elastic_transform",
    "extract_patches",
    "extract_patches_3d",
    "gaussian_blur",
    "hsv_to_rgb",
    "map_coordinates",
    "pad_images",
    "perspective_transform",
    "reconstruct_patches",
    "resize",
    "rgb_to_grayscale",
    "rgb_to_hsv",
    "scale_and_translate",
    "sobel_edges",
    "ssim",
]
