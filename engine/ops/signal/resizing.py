"""Images of another size: `resize` and `scale_and_translate`, by one matrix of weights for each axis.

A pixel is a square whose centre is at its index + 1/2, so that images keep their place when their size changes. The
weights of the pixels around a point come from a kernel, and are scaled so that they sum to one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...common import dtypes
from ...common.claims import claim
from ...common.nest import is_integer
from ...graph.spec import shape_text
from ..arrays.creation import arange
from ..arrays.gathering import take
from ..arrays.indexing import getitem
from ..arrays.padding import pad
from ..arrays.shaping import DimLike, constant_value, dim
from ..base import (
    Tensor,
    TensorLike,
    cast,
    convert_to_tensor,
    is_source,
    make_constant,
    normalize_axis,
    promote,
)
from ..data_format import check_data_format
from ..linear_algebra.einsum import einsum
from ..math import reduction
from ..math.comparison import maximum, where
from ..math.complex_numbers import absolute
from ..math.elementwise import floor_divide
from ..math.mathematics import round
from ..math.trigonometry import sin
from ..text.encoding import saturate_cast
from .image_formats import height_axis, image_tensor, larger, rank_of, smaller

_LETTERS = "abcdefgh"
# The functions of a kernel: NumPy's where all is known when the graph is built, otherwise ours.
_SYMBOLIC: Any = SimpleNamespace(abs=absolute, maximum=maximum, sin=sin, sum=reduction.sum, where=where)
_NUMPY: Any = np


# --- kernels: the weight of a pixel by its distance >= 0 from the point ---------------------------------------------


def _triangle(e: Any, x: Any) -> Any:
    return e.maximum(0.0, 1.0 - x)


def _cubic(e: Any, x: Any) -> Any:
    """Apply R. Keys, "Cubic convolution interpolation for digital image processing" (1981), with a = -1/2."""
    near = ((1.5 * x - 2.5) * x) * x + 1.0
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return e.where(x >= 2.0, 0.0, e.where(x >= 1.0, far, near))


def _lanczos(e: Any, x: Any, radius: float) -> Any:
    away = x > 1e-3
    safe = e.where(away, x, 1.0)
    window = radius * e.sin(math.pi * x) * e.sin(math.pi * x / radius) / (math.pi**2 * safe * safe)
    return e.where(x > radius, 0.0, e.where(away, window, 1.0))


def _lanczos3(e: Any, x: Any) -> Any:
    return _lanczos(e, x, 3.0)


def _lanczos5(e: Any, x: Any) -> Any:
    return _lanczos(e, x, 5.0)


_KERNELS: dict[str, Any] = {
    **dict.fromkeys(["linear", "bilinear", "trilinear"], _triangle),
    **dict.fromkeys(["cubic", "bicubic", "tricubic"], _cubic),
    "lanczos3": _lanczos3,
    "lanczos5": _lanczos5,
}
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5")


def _weigh(e: Any, kernel: Any, pixels: Any, points: Any, size: Any, inverse: Any, shift: Any, antialias: bool) -> Any:
    """Return the weights, [pixels, points]: those of a point sum to one, or are all zero where it is outside.

    Args:
        e: the module of functions.
        pixels, points: 0, 1, 2, ... as floats, for the pixels of the input and of the result.
        size: the number of pixels as a float.
        inverse: the size of a pixel of the result, in pixels of the input.
        shift: the translation, in pixels of the result.
    """
    centres = (points + 0.5 - shift) * inverse - 0.5
    spread = e.maximum(inverse, 1.0) if antialias else 1.0
    weights = kernel(e, e.abs(centres[None, :] - pixels[:, None]) / spread)
    total = e.sum(weights, axis=0, keepdims=True)
    enough = e.abs(total) > 1000.0 * float(np.finfo("float32").eps)
    weights = e.where(enough, weights / e.where(enough, total, 1.0), 0.0)
    weights = e.where((centres >= -0.5)[None, :], weights, 0.0)
    return e.where((centres <= size - 0.5)[None, :], weights, 0.0)


def _known_weights(kernel: Any, size: int, target: int, inverse: float, shift: float, antialias: bool) -> Any:
    claim((size, target), 8, "The weights of pixels")
    pixels, points = np.arange(size, dtype="float64"), np.arange(target, dtype="float64")
    return _weigh(_NUMPY, kernel, pixels, points, float(size), inverse, shift, antialias)


def _symbolic_weights(
    kernel: Any, size: DimLike, target: DimLike, inverse: Tensor, shift: Tensor, antialias: bool
) -> Tensor:
    dtype = inverse.dtype
    pixels, points = (cast(arange(count), dtype) for count in (size, target))
    length = cast(convert_to_tensor(size), dtype)
    return _weigh(_SYMBOLIC, kernel, pixels, points, length, inverse, shift, antialias)


def _contract(x: Tensor, weights: Tensor, axis: int) -> Tensor:
    """Return the sums over an axis of `x` with weights, [pixels, points]: the points take the place of the pixels."""
    before = _LETTERS[: rank_of(x)]
    after = before.replace(before[axis], "z")
    return einsum(f"{before},{before[axis]}z->{after}", x, cast(weights, x.dtype))


def _in_floats(tensor: Tensor) -> Tensor:
    return tensor if dtypes.is_floating(tensor.dtype) else cast(tensor, dtypes.float32)


def _as_before(values: Tensor, before: Tensor) -> Tensor:
    """Return weighted pixels in the dtype that they had; integers are rounded."""
    if values.dtype == before.dtype:
        return values
    return saturate_cast(round(values), before.dtype)


# --- resize ---------------------------------------------------------------------------------------------------------


def resize(
    images: TensorLike,
    size: Sequence[int],
    interpolation: str = "bilinear",
    antialias: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    fill_mode: str = "constant",
    fill_value: float = 0.0,
    data_format: str | None = None,
) -> Tensor:
    """Resize images.

    Args:
        images: one image or a batch. Heights and widths may be unknown. Integers are rounded, and stay in the range of
            their dtype.
        size: the new height and width.
        interpolation: ``"nearest"``, ``"bilinear"``, ``"bicubic"``, ``"lanczos3"`` or ``"lanczos5"``.
        antialias: widen the kernel when an image becomes smaller, so that every pixel counts.
        crop_to_aspect_ratio: cut out the largest window in the middle with the new ratio of height to width first.
        pad_to_aspect_ratio: put the images in the middle of a plain area with the new ratio of height to width first.
        fill_mode: how that area is filled: only ``"constant"``.
        fill_value: the value of that area.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Raises:
        ValueError: an argument is not one of those above, the images have another number of axes, or both ratios are to
            be kept.

    >>> import anabranch as ab
    >>> ab.ops.image.resize(ab.placeholder((2, 4, 4, 3), "float32"), (2, 6)).shape
    (2, 2, 6, 3)
    """
    _check_resize(size, interpolation, crop_to_aspect_ratio, pad_to_aspect_ratio, fill_mode)
    tensor = image_tensor("resize", images)
    first = height_axis(tensor, check_data_format("resize", data_format))
    height, width = (int(length) for length in size)
    if tensor.shape is not None and 0 in tensor.shape[first : first + 2]:
        raise ValueError(f"resize: images without pixels have no values; got shape {shape_text(tensor.shape)}.")
    if crop_to_aspect_ratio:
        tensor = _crop_to_ratio(tensor, first, height, width)
    elif pad_to_aspect_ratio:
        tensor = _pad_to_ratio(tensor, first, height, width, fill_value)
    if interpolation == "nearest":
        return _nearest(_nearest(tensor, first, height), first + 1, width)
    result = _in_floats(tensor)
    for axis, target in ((first, height), (first + 1, width)):
        result = _resized_axis(result, axis, target, _KERNELS[interpolation], antialias)
    return _as_before(result, tensor)


def _check_resize(size: Any, interpolation: str, crop: bool, padded: bool, fill_mode: str) -> None:
    if len(size) != 2 or not all(is_integer(length) for length in size):
        raise ValueError(f"resize: size must be two integers, (height, width); got {size!r}.")
    if any(length <= 0 for length in size):
        raise ValueError(f"resize: height and width must be positive; got size={size!r}.")
    if interpolation not in _INTERPOLATIONS:
        raise ValueError(f"resize: interpolation={interpolation!r} must be one of {', '.join(_INTERPOLATIONS)}.")
    if fill_mode != "constant":
        raise ValueError(f"resize: fill_mode={fill_mode!r} must be 'constant'. For other borders use ops.pad first.")
    if crop and padded:
        raise ValueError("resize: only one of crop_to_aspect_ratio and pad_to_aspect_ratio can be True; got both.")


def _resized_axis(x: Tensor, axis: int, target: int, kernel: Any, antialias: bool) -> Tensor:
    length = dim(x, axis)
    if isinstance(length, int):
        if length == target:
            return x
        known = _known_weights(kernel, length, target, length / target, 0.0, antialias)
        return _contract(x, make_constant(known), axis)
    inverse = cast(length, dtypes.float64) / target
    none = convert_to_tensor(0.0, dtypes.float64)
    return _contract(x, _symbolic_weights(kernel, length, target, inverse, none, antialias), axis)


def _nearest(x: Tensor, axis: int, target: int) -> Tensor:
    """Return the pixels in which the centres of the new ones are."""
    length = dim(x, axis)
    if isinstance(length, int):
        claim((target,), 16, "The places of pixels")
        return x if length == target else take(x, (2 * np.arange(target) + 1) * length // (2 * target), axis)
    return take(x, floor_divide((2 * arange(target) + 1) * length, 2 * target), axis)


def _ratio_sizes(x: Tensor, first: int, height: int, width: int) -> tuple[DimLike, DimLike, DimLike, DimLike]:
    """Return the sizes of `x`, the height that goes with its width, and the width that goes with its height."""
    rows, columns = dim(x, first), dim(x, first + 1)
    return rows, columns, columns * height // width, rows * width // height


def _crop_to_ratio(x: Tensor, first: int, height: int, width: int) -> Tensor:
    rows, columns, wanted_rows, wanted_columns = _ratio_sizes(x, first, height, width)
    kept = larger(smaller(rows, wanted_rows), 1), larger(smaller(columns, wanted_columns), 1)
    window: list[Any] = [slice(None)] * first
    for length, part in zip((rows, columns), kept, strict=True):
        start = (length - part) // 2
        window.append(slice(start, start + part))
    return getitem(x, tuple(window))


def _pad_to_ratio(x: Tensor, first: int, height: int, width: int, fill_value: float) -> Tensor:
    """Return the same number of rows above and below, or of columns left and right; one less in all where it is odd."""
    rows, columns, wanted_rows, wanted_columns = _ratio_sizes(x, first, height, width)
    above, left = (larger(rows, wanted_rows) - rows) // 2, (larger(columns, wanted_columns) - columns) // 2
    widths: list[tuple[DimLike, DimLike]] = [(0, 0)] * rank_of(x)
    widths[first], widths[first + 1] = (above, above), (left, left)
    return pad(x, widths, constant_values=fill_value)


# --- scale_and_translate --------------------------------------------------------------------------------------------


def scale_and_translate(
    images: TensorLike,
    output_shape: Sequence[int],
    scale: TensorLike,
    translation: TensorLike,
    spatial_dims: Sequence[int],
    method: str,
    antialias: bool = True,
) -> Tensor:
    """Scale and move images: what is at x comes to ``x * scale + translation``, and outside there are zeros.

    Args:
        images: a tensor of any shape of known rank.
        output_shape: the shape of the result, with a size for every axis.
        scale: a factor for each of `spatial_dims`. Gradients flow to it, and to `translation`.
        translation: for each of `spatial_dims`, how far to move, in pixels of the result.
        spatial_dims: the axes to which that happens.
        method: ``"linear"``, ``"cubic"``, ``"lanczos3"`` or ``"lanczos5"``; also ``"bilinear"``, ``"trilinear"``,
            ``"bicubic"`` and ``"tricubic"``.
        antialias: widen the kernel where an image becomes smaller, so that every pixel counts.

    Raises:
        ValueError: there is no such method, or the shapes do not fit.

    >>> import anabranch as ab
    >>> row = ab.ops.image.scale_and_translate([1.0, 2.0, 3.0], (5,), [1.0], [1.0], (0,), "linear")
    >>> row
    Tensor([0., 1., 2., 3., 0.], dtype=float32)
    """
    if method not in _KERNELS:
        raise ValueError(f"scale_and_translate: method={method!r} must be one of {', '.join(_KERNELS)}.")
    tensor = convert_to_tensor(images)
    if tensor.shape is None or len(output_shape) != len(tensor.shape):
        raise ValueError(
            f"scale_and_translate: output_shape needs a size for every axis of the images, {shape_text(tensor.shape)}; "
            f"got {tuple(output_shape)}."
        )
    axes = [normalize_axis(axis, len(tensor.shape), "spatial_dims") for axis in spatial_dims]
    _check_kept_axes(tensor, output_shape, axes)
    factors, shifts = promote(scale, translation, floating=True)
    for name, vector in (("scale", factors), ("translation", shifts)):
        if vector.shape is not None and vector.shape != (len(axes),) and vector.shape != (None,):
            raise ValueError(
                f"scale_and_translate: {name} needs a number for each of the {len(axes)} spatial_dims; "
                f"got shape {shape_text(vector.shape)}."
            )
    result, kernel = _in_floats(tensor), _KERNELS[method]
    are_fixed = not is_source(factors, scale) and not is_source(shifts, translation)
    known = [constant_value(vector) for vector in (factors, shifts) if are_fixed]
    for place, axis in enumerate(axes):
        length, target = dim(result, axis), output_shape[axis]
        if isinstance(length, int) and are_fixed and all(vector is not None for vector in known):
            factor, shift = (float(vector[place]) for vector in known)
            weights = make_constant(_known_weights(kernel, length, target, 1.0 / factor, shift, antialias))
        else:
            weights = _symbolic_weights(kernel, length, target, 1.0 / factors[place], shifts[place], antialias)
        result = _contract(result, weights, axis)
    return _as_before(result, tensor)


def _check_kept_axes(tensor: Tensor, output_shape: Sequence[int], axes: Sequence[int]) -> None:
    assert tensor.shape is not None
    for axis, (size, target) in enumerate(zip(tensor.shape, output_shape, strict=True)):
        if axis not in axes and size is not None and size != target:
            raise ValueError(
                f"scale_and_translate: axis {axis} is none of spatial_dims={tuple(axes)}, so output_shape must keep "
                f"its size {size}; got {tuple(output_shape)}."
            )


__all__ = ["resize", "scale_and_translate"]
