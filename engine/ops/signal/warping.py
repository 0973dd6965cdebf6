"""Images sampled at other places: `map_coordinates`, and the affine, perspective and elastic transforms."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ...common import dtypes
from ...common.dtypes import DTypeLike
from ...graph.spec import shape_text
from ..arrays.creation import arange, ones_like, zeros_like
from ..arrays.gathering import take
from ..arrays.joining import stack, unstack
from ..arrays.shaping import DimLike, dim, expand_dims, ravel, reshape
from ..base import Tensor, TensorLike, cast, convert_to_tensor, promote
from ..data_format import check_data_format
from ..linear_algebra.matrices import solve
from ..math.comparison import clip, greater_equal, less, logical_and, where
from ..math.complex_numbers import absolute
from ..math.elementwise import floor_divide, mod
from ..math.mathematics import floor
from ..math.nan_aware import nan_to_num
from .filtering import blur_axis, gaussian_taps
from .image_formats import (
    as_batch,
    compute_dtype,
    from_batch,
    image_tensor,
    larger,
    restore_dtype,
)

_ORDERS = {"nearest": 0, "bilinear": 1}
_FILL_MODES = ("constant", "nearest", "wrap", "mirror", "reflect")
_FAR = 1e9  # no image is so large, and int32 holds twice as much

_Node = tuple[Tensor, Tensor | None, Tensor | None]  # an index, its weight, and whether it is inside


# --- interpolation between the elements of a grid -------------------------------------------------------------------


def _mirrored(index: Any, size: DimLike) -> Tensor:
    """Fold indices back to 0 ... size - 1, mirrored: ``d c b | a b c d | c b a``."""
    last = size - 1
    return absolute(mod(index + last, larger(2 * last, 1)) - last)


def _nodes(coordinate: Tensor, size: DimLike, order: int, fill_mode: str) -> list[_Node]:
    """Return the elements of an axis between which a value is interpolated."""
    coordinate = clip(coordinate, -_FAR, _FAR)
    lower = floor(coordinate + 0.5) if order == 0 else floor(coordinate)
    index = cast(nan_to_num(lower), dtypes.int32)
    first, first_inside = _folded(index, size, fill_mode)
    if order == 0:
        return [(first, None, first_inside)]
    share = coordinate - lower
    second, second_inside = _folded(index + 1, size, fill_mode)
    return [(first, 1.0 - share, first_inside), (second, share, second_inside)]


def _folded(index: Tensor, size: DimLike, fill_mode: str) -> tuple[Tensor, Tensor | None]:
    """Return the index of an existing element, and for ``"constant"`` whether it is the one that was meant."""
    if fill_mode == "wrap":
        return mod(index, larger(size, 1)), None
    if fill_mode == "mirror":
        return _mirrored(index, size), None
    if fill_mode == "reflect":  # a mirror between the elements: twice as many, of which the odd ones exist
        return floor_divide(_mirrored(2 * index + 1, 2 * size + 1) - 1, 2), None
    nearest = clip(index, 0, size - 1)
    if fill_mode == "nearest":
        return nearest, None
    return nearest, logical_and(greater_equal(index, 0), less(index, size))


def _interpolate(
    values: Tensor,
    sizes: Sequence[DimLike],
    coordinates: Sequence[Tensor],
    order: int,
    fill_mode: str,
    fill_value: TensorLike,
    start: Tensor | None = None,
) -> Tensor:
    """Return the values of a grid at places between its elements.

    Args:
        values: the elements in row-major order on the first axis; one more axis is of values that belong together.
        sizes: the sizes of the grid.
        coordinates: one tensor for each axis of the grid; all broadcast.
        start: the number of the grid in which to look, where `values` holds several.
    """
    grid = [_nodes(c, size, order, fill_mode) for c, size in zip(coordinates, sizes, strict=True)]
    fill = convert_to_tensor(fill_value, values.dtype)
    terms = [_corner(values, sizes, corner, fill, start) for corner in itertools.product(*grid)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _corner(
    values: Tensor, sizes: Sequence[DimLike], corner: Sequence[_Node], fill: Tensor, start: Tensor | None
) -> Tensor:
    """Return one corner of the cells around the places: its value times its weight."""
    position, weight, inside = start, None, None
    for (index, share, within), size in zip(corner, sizes, strict=True):
        position = index if position is None else position * size + index
        weight = share if weight is None else weight if share is None else weight * share
        inside = within if inside is None else inside if within is None else logical_and(inside, within)
    assert position is not None
    together = values.shape is not None and len(values.shape) == 2
    part = take(values, position, 0)
    if inside is not None:
        part = where(expand_dims(inside, -1) if together else inside, part, fill)
    if weight is None:
        return part
    return part * cast(expand_dims(weight, -1) if together else weight, part.dtype)


def map_coordinates(
    inputs: TensorLike, coordinates: Any, order: int, fill_mode: str = "constant", fill_value: TensorLike = 0
) -> Tensor:
    """Interpolate the values of an array at places between its elements.

    Args:
        inputs: an array of known rank. Integers are rounded, halves away from zero.
        coordinates: one tensor for each axis of `inputs`, or all stacked: [rank, ...]. Gradients flow to them.
        order: 0 for the nearest element, 1 for linear interpolation.
        fill_mode: the values outside: ``"constant"`` (k k | a b c | k k), ``"nearest"`` (a a | a b c | c c),
            ``"wrap"`` (b c | a b c | a b), ``"mirror"`` (c b | a b c | b a) or ``"reflect"`` (b a | a b c | c b).
        fill_value: the value k of ``"constant"``.

    Returns:
        A tensor of the dtype of `inputs` and the shape of one of the coordinates.

    Raises:
        ValueError: an argument is not one of those above, or there are not as many coordinates as axes.

    >>> import anabranch as ab
    >>> ab.ops.image.map_coordinates([1.0, 3.0], [[0.5, 1.0]], order=1)
    Tensor([2., 3.], dtype=float32)
    """
    tensor, places = convert_to_tensor(inputs), convert_to_tensor(coordinates)
    if tensor.shape is None or places.shape is None:
        raise ValueError(
            "map_coordinates needs inputs and coordinates of known rank; "
            f"got {shape_text(tensor.shape)} and {shape_text(places.shape)}."
        )
    rank = len(tensor.shape)
    if len(places.shape) < 2 or places.shape[0] not in (rank, None) or rank == 0:
        raise ValueError(
            f"map_coordinates: coordinates must be [{rank}, ...], with one row for each axis of the inputs "
            f"{shape_text(tensor.shape)}; got {shape_text(places.shape)}."
        )
    if order not in (0, 1):
        raise ValueError(f"map_coordinates: order={order!r} must be 0 (nearest) or 1 (linear).")
    _check_fill_mode("map_coordinates", fill_mode)
    places = cast(places, compute_dtype(places))
    values = cast(tensor, compute_dtype(tensor))
    sizes = [dim(tensor, axis) for axis in range(rank)]
    result = _interpolate(ravel(values), sizes, unstack(places, rank), order, fill_mode, fill_value)
    return restore_dtype(result, tensor.dtype)


def _check_fill_mode(what: str, fill_mode: str) -> None:
    if fill_mode not in _FILL_MODES:
        raise ValueError(f"{what}: fill_mode={fill_mode!r} must be one of {', '.join(_FILL_MODES)}.")


def _order(what: str, interpolation: str) -> int:
    if interpolation not in _ORDERS:
        raise ValueError(f"{what}: interpolation={interpolation!r} must be 'nearest' or 'bilinear'.")
    return _ORDERS[interpolation]


# --- images ---------------------------------------------------------------------------------------------------------


def _pixel_grid(batch: Tensor, dtype: DTypeLike) -> tuple[Tensor, Tensor]:
    """Return the columns, [1, 1, width], and rows, [1, height, 1], of the pixels of a batch."""
    columns, rows = cast(arange(dim(batch, 2)), dtype), cast(arange(dim(batch, 1)), dtype)
    return columns[None, None, :], rows[None, :, None]


def _sample(batch: Tensor, columns: Tensor, rows: Tensor, order: int, fill_mode: str, fill_value: TensorLike) -> Tensor:
    """Return the images of a batch, with channels last, at places, [batch or 1, height, width]."""
    count, height, width, channels = (dim(batch, axis) for axis in range(4))
    number = reshape(arange(count), (-1, 1, 1))
    pixels = reshape(batch, (count * height * width, channels))
    return _interpolate(pixels, (height, width), (rows, columns), order, fill_mode, fill_value, number)


def affine_transform(
    images: TensorLike,
    transform: TensorLike,
    interpolation: str = "bilinear",
    fill_mode: str = "constant",
    fill_value: TensorLike = 0,
    data_format: str | None = None,
) -> Tensor:
    """Move, scale, turn or shear images.

    The pixel (x, y) of the result is what `images` show at ``((a0 x + a1 y + a2) / k, (b0 x + b1 y + b2) / k)`` with
    ``k = c0 x + c1 y + 1``.

    Args:
        images: one image or a batch.
        transform: ``[a0, a1, a2, b0, b1, b2, c0, c1]``, or one such row for each image, [batch, 8]. Gradients flow to
            it.
        interpolation: ``"nearest"`` or ``"bilinear"``.
        fill_mode: the values outside the images: see `map_coordinates`.
        fill_value: the value of ``"constant"``.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Raises:
        ValueError: an argument is not one of those above.

    >>> import anabranch as ab
    >>> to_the_left = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    >>> ab.Session().run(ab.ops.image.affine_transform([[[1.0], [2.0]]], to_the_left))[0, :, 0]
    array([2., 0.], dtype=float32)
    """
    order, layout = _order("affine_transform", interpolation), check_data_format("affine_transform", data_format)
    _check_fill_mode("affine_transform", fill_mode)
    tensor = image_tensor("affine_transform", images)
    (rows,) = promote(transform, floating=True)
    if rows.shape is None or len(rows.shape) not in (1, 2) or rows.shape[-1] not in (8, None):
        raise ValueError(f"affine_transform: transform must be [8] or [batch, 8]; got shape {shape_text(rows.shape)}.")
    return _projected(tensor, reshape(rows, (-1, 8)), order, fill_mode, fill_value, layout)


def _projected(
    tensor: Tensor, transform: Tensor, order: int, fill_mode: str, fill_value: TensorLike, layout: str
) -> Tensor:
    dtype = compute_dtype(tensor)
    batch = as_batch(cast(tensor, dtype), layout)
    count, rows = dim(batch, 0), dim(transform, 0)
    if isinstance(count, int) and isinstance(rows, int) and rows not in (1, count):
        raise ValueError(f"A batch of {count} images needs one transform or {count}; got {rows}.")
    x, y = _pixel_grid(batch, dtype)
    a0, a1, a2, b0, b1, b2, c0, c1 = (part[:, None, None] for part in unstack(cast(transform, dtype), 8, axis=1))
    depth = c0 * x + c1 * y + 1.0
    columns, rows = (a0 * x + a1 * y + a2) / depth, (b0 * x + b1 * y + b2) / depth
    moved = _sample(batch, columns, rows, order, fill_mode, fill_value)
    return restore_dtype(from_batch(moved, tensor, layout), tensor.dtype)


def perspective_transform(
    images: TensorLike,
    start_points: TensorLike,
    end_points: TensorLike,
    interpolation: str = "bilinear",
    fill_value: TensorLike = 0,
    data_format: str | None = None,
) -> Tensor:
    """Change the perspective of images: four points of each come to four given places.

    Args:
        images: one image or a batch.
        start_points: four points (x, y) of the images, [4, 2], or four for each image, [batch, 4, 2].
        end_points: where they come to, of the same shape. Gradients flow to both.
        interpolation: ``"nearest"`` or ``"bilinear"``.
        fill_value: the value outside the images.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Raises:
        ValueError: an argument is not one of those above.
        numpy.linalg.LinAlgError: (at run time) the points determine no transform: three of them are on a line.
    """
    order = _order("perspective_transform", interpolation)
    layout = check_data_format("perspective_transform", data_format)
    tensor = image_tensor("perspective_transform", images)
    starts, ends = promote(start_points, end_points, floating=True)
    for name, points in (("start_points", starts), ("end_points", ends)):
        if points.shape is None or len(points.shape) not in (2, 3) or points.shape[-2:] != (4, 2):
            raise ValueError(
                f"perspective_transform: {name} must be [4, 2] or [batch, 4, 2]; got {shape_text(points.shape)}."
            )
    if starts.shape is None or ends.shape is None or len(starts.shape) != len(ends.shape):
        raise ValueError(
            "perspective_transform: start_points and end_points must have the same shape; "
            f"got {shape_text(starts.shape)} and {shape_text(ends.shape)}."
        )
    transform = homography(reshape(starts, (-1, 4, 2)), reshape(ends, (-1, 4, 2)))
    return _projected(tensor, transform, order, "constant", fill_value, layout)


def homography(starts: Tensor, ends: Tensor) -> Tensor:
    """Compute the rows for `affine_transform`, [batch, 8], that lead from the end points back to the start points."""
    to_x, to_y = starts[..., 0], starts[..., 1]
    x, y = ends[..., 0], ends[..., 1]
    one, none = ones_like(x), zeros_like(x)
    for_x = stack([x, y, one, none, none, none, -to_x * x, -to_x * y], axis=-1)
    for_y = stack([none, none, none, x, y, one, -to_y * x, -to_y * y], axis=-1)
    equations = reshape(stack([for_x, for_y], axis=2), (-1, 8, 8))
    return reshape(solve(equations, reshape(starts, (-1, 8, 1))), (-1, 8))


def elastic_transform(
    images: TensorLike,
    alpha: TensorLike = 20.0,
    sigma: float = 5.0,
    interpolation: str = "bilinear",
    fill_mode: str = "reflect",
    fill_value: TensorLike = 0.0,
    seed: Any = None,
    data_format: str | None = None,
) -> Tensor:
    """Bend images at random: every pixel is moved a little, and neighbours are moved alike.

    Args:
        images: one image or a batch.
        alpha: how far the pixels move.
        sigma: how far apart pixels still move alike: the standard deviation of the filter for the moves (a number).
        interpolation: ``"nearest"`` or ``"bilinear"``.
        fill_mode: the values outside the images: see `map_coordinates`.
        fill_value: the value of ``"constant"``.
        seed: of the random moves: None, an int, a `SeedGenerator` or a key.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Raises:
        ValueError: an argument is not one of those above.

    Source: P. Simard, D. Steinkraus, J. Platt, "Best practices for convolutional neural networks applied to visual
    document analysis" (2003).
    """
    from ..random.samplers import normal  # only this transform draws numbers

    order, layout = _order("elastic_transform", interpolation), check_data_format("elastic_transform", data_format)
    _check_fill_mode("elastic_transform", fill_mode)
    tensor = image_tensor("elastic_transform", images)
    if not sigma > 0:
        raise ValueError(f"elastic_transform: sigma must be positive; got {sigma!r}.")
    dtype = compute_dtype(tensor)
    batch = as_batch(cast(tensor, dtype), layout)
    sizes = [dim(batch, axis) for axis in range(3)]
    taps = gaussian_taps(int(6 * sigma) | 1, float(sigma))
    moves = normal([2, *sizes], stddev=float(sigma), dtype=dtype, seed=seed)
    across, down = unstack(blur_axis(blur_axis(moves, taps, 2), taps, 3), 2)
    x, y = _pixel_grid(batch, dtype)
    strength = convert_to_tensor(alpha, dtype)
    bent = _sample(batch, x + strength * across, y + strength * down, order, fill_mode, fill_value)
    return restore_dtype(from_batch(bent, tensor, layout), tensor.dtype)


__all__ = ["affine_transform", "elastic_transform", "map_coordinates", "perspective_transform"]
