"""Images seen through small windows: `gaussian_blur`, `sobel_edges`, and how alike two images are: `psnr`, `ssim`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.spec import shape_text
from ...graph.state.variable import Variable
from ..arrays.creation import arange
from ..arrays.indexing import getitem
from ..arrays.joining import stack, unstack
from ..arrays.padding import pad
from ..base import Tensor, TensorLike, as_floating, cast, convert_to_tensor, promote
from ..data_format import check_data_format
from ..math.elementwise import square
from ..math.mathematics import exp, log10
from ..math.reduction import mean, sum
from .image_formats import compute_dtype, height_axis, image_tensor, rank_of, restore_dtype

_SEQUENCES: Any = (list, tuple, np.ndarray)
Taps = Sequence[Any]  # the weights of a filter along one axis: numbers or scalar tensors


# --- filters along an axis ------------------------------------------------------------------------------------------


def _shifted(x: Tensor, taps: Taps, axis: int) -> Tensor:
    """Return the sums of neighbours along an axis times the taps, where the window is inside (a correlation)."""
    axis %= rank_of(x)
    total = None
    for place, weight in enumerate(taps):
        window = (*[slice(None)] * axis, slice(place, place + 1 - len(taps) or None))
        part = getitem(x, window) * weight
        total = part if total is None else total + part
    assert total is not None
    return total


def _with_border(x: Tensor, axis: int, size: int, mode: str = "constant") -> Tensor:
    """Return `x` with room for a filter of a size to reach every element."""
    widths = [(0, 0)] * rank_of(x)
    widths[axis] = ((size - 1) // 2, size // 2)
    return pad(x, widths, mode)


def blur_axis(x: Tensor, taps: Taps, axis: int) -> Tensor:
    """Return `x` filtered along an axis; outside there are zeros."""
    return _shifted(_with_border(x, axis, len(taps)), taps, axis)


def gaussian_taps(size: int, sigma: Any) -> Taps:
    """Return the weights of a bell curve around the middle, which sum to one; scalar tensors if `sigma` is one."""
    if isinstance(sigma, (int, float)):
        curve = np.exp(-0.5 * ((np.arange(size) - (size - 1) / 2) / sigma) ** 2)
        return [float(weight) for weight in curve / curve.sum()]
    deviation = as_floating(sigma)
    places = (cast(arange(size), deviation.dtype) - (size - 1) / 2) / deviation
    bell = exp(-0.5 * square(places))
    return unstack(bell / sum(bell), size)


def _pair(what: str, value: Any) -> tuple[Any, Any]:
    pair: Any = unstack(value, 2) if isinstance(value, (Tensor, Variable)) else value
    if not isinstance(pair, _SEQUENCES) or len(pair) != 2:
        raise ValueError(f"{what} must be a pair; got {value!r}.")
    return pair[0], pair[1]


def gaussian_blur(
    images: TensorLike,
    kernel_size: Sequence[int] = (3, 3),
    sigma: Any = (1.0, 1.0),
    data_format: str | None = None,
) -> Tensor:
    """Blur images by a bell curve. Outside there are zeros.

    Args:
        images: one image or a batch. Integers are rounded.
        kernel_size: the sizes of the filter along the width and along the height. (So Keras computes; its documentation
            has the height first.)
        sigma: the standard deviations in the same order: numbers, or tensors to which gradients flow.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Raises:
        ValueError: the sizes or deviations are not pairs or not positive, or the images have another number of axes.

    >>> import anabranch as ab
    >>> ab.ops.image.gaussian_blur(ab.placeholder((2, 64, 80, 3), "float32"), (5, 5)).shape
    (2, 64, 80, 3)
    """
    tensor = image_tensor("gaussian_blur", images)
    first = height_axis(tensor, check_data_format("gaussian_blur", data_format))
    sizes, deviations = _pair("gaussian_blur: kernel_size", kernel_size), _pair("gaussian_blur: sigma", sigma)
    if any(size < 1 for size in sizes):
        raise ValueError(f"gaussian_blur: kernel_size must be positive; got {kernel_size!r}.")
    if any(isinstance(deviation, (int, float)) and not deviation > 0 for deviation in deviations):
        raise ValueError(f"gaussian_blur: sigma must be positive; got {sigma!r}.")
    result = cast(tensor, compute_dtype(tensor))
    for axis, size, deviation in zip((first + 1, first), sizes, deviations, strict=True):
        taps = gaussian_taps(int(size), deviation)
        result = blur_axis(result, [cast(t, result.dtype) if isinstance(t, Tensor) else t for t in taps], axis)
    return restore_dtype(result, tensor.dtype)


def sobel_edges(images: TensorLike, data_format: str | None = None) -> Tensor:
    """Compute how much brighter images become downward and to the right, by Sobel's filters. The borders are mirrored.

    Args:
        images: one image or a batch, of height and width 2 at least.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Returns:
        The images with one more axis at the end, of two: [downward, rightward].

    Raises:
        ValueError: the images have another number of axes.

    >>> import anabranch as ab
    >>> edges = ab.ops.image.sobel_edges([[[0.0], [0.0], [1.0]]] * 3)
    >>> ab.Session().run(edges)[1, :, 0, 1]
    array([0., 4., 0.], dtype=float32)
    """
    tensor = image_tensor("sobel_edges", images)
    first = height_axis(tensor, check_data_format("sobel_edges", data_format))
    bordered = tensor
    for axis in (first, first + 1):
        bordered = _with_border(bordered, axis, 3, "reflect")
    slope, smooth = (-1, 0, 1), (1, 2, 1)
    down = _shifted(_shifted(bordered, slope, first), smooth, first + 1)
    right = _shifted(_shifted(bordered, smooth, first), slope, first + 1)
    return stack([down, right], axis=-1)


# --- likeness -------------------------------------------------------------------------------------------------------


def psnr(x1: TensorLike, x2: TensorLike, max_val: TensorLike) -> Tensor:
    """Return the peak signal-to-noise ratio in decibels: ``20 log10(max_val) - 10 log10(mean((x1 - x2)^2))``.

    Args:
        x1, x2: a signal and what is left of it, of one shape.
        max_val: the largest value that the signals can have.

    Returns:
        A scalar; infinity for equal signals.

    Raises:
        ValueError: the shapes differ.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.psnr([0.0, 0.0], [0.1, 0.1], 1.0)).round(3)
    np.float32(20.0)
    """
    first, second = promote(x1, x2, floating=True)
    _check_same_shape("psnr", first, second)
    peak = convert_to_tensor(max_val, first.dtype)
    return 20.0 * log10(peak) - 10.0 * log10(mean(square(first - second)))


def _check_same_shape(what: str, first: Tensor, second: Tensor) -> None:
    if first.shape is None or second.shape is None:
        return
    pairs = zip(first.shape, second.shape, strict=False)
    if len(first.shape) != len(second.shape) or any(None not in pair and pair[0] != pair[1] for pair in pairs):
        raise ValueError(
            f"{what} compares signals of one shape; got {shape_text(first.shape)} and {shape_text(second.shape)}."
        )


def ssim(
    image1: TensorLike,
    image2: TensorLike,
    max_val: float = 1.0,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
    data_format: str | None = None,
) -> Tensor:
    """Return the structural similarity of two images: 1 if equal, less where brightness, contrast or shapes differ.

    Args:
        image1, image2: one image or a batch each, of one shape; height and width are `filter_size` at least.
        max_val: the range of values.
        filter_size, filter_sigma: the window in which the images are compared.
        k1, k2: what keeps the quotients of brightness and contrast from division by zero.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Returns:
        A scalar for one image, [batch] for a batch; the mean over pixels and channels.

    Raises:
        ValueError: the shapes differ, or the images are smaller than the window.

    Source: Z. Wang et al., "Image quality assessment: from error visibility to structural similarity" (2004).

    >>> import anabranch as ab
    >>> x = ab.ops.ones((16, 16, 3))
    >>> ab.Session().run(ab.ops.image.ssim(x, x)).round(3)
    np.float32(1.0)
    """
    first, second = promote(image_tensor("ssim", image1), image_tensor("ssim", image2), floating=True)
    _check_same_shape("ssim", first, second)
    rows = height_axis(first, check_data_format("ssim", data_format))
    for size in (first.shape or ())[rows : rows + 2]:
        if size is not None and size < filter_size:
            raise ValueError(
                f"ssim: the images, {shape_text(first.shape)}, are smaller than the window; "
                f"got filter_size={filter_size}."
            )
    wide = compute_dtype(first)
    x, y = cast(first, wide), cast(second, wide)
    taps = gaussian_taps(filter_size, filter_sigma)
    blurred = _shifted(_shifted(stack([x, y, x * x, y * y, x * y]), taps, rows + 1), taps, rows + 2)
    return cast(_similarity(unstack(blurred, 5), (k1 * max_val) ** 2, (k2 * max_val) ** 2), first.dtype)


def _similarity(means: Sequence[Tensor], c1: float, c2: float) -> Tensor:
    """Apply the paper's formula to local means of x, y, x^2, y^2 and x y, and return its mean for each image."""
    mean_x, mean_y, square_x, square_y, product = means
    brightness = (2.0 * mean_x * mean_y + c1) / (mean_x * mean_x + mean_y * mean_y + c1)
    variances = (square_x - mean_x * mean_x) + (square_y - mean_y * mean_y)
    structure = (2.0 * (product - mean_x * mean_y) + c2) / (variances + c2)
    return mean(brightness * structure, axis=(-3, -2, -1))


__all__ = ["gaussian_blur", "psnr", "sobel_edges", "ssim"]
