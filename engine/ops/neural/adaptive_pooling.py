"""Pooling to a given size: adaptive_max_pool, adaptive_average_pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..arrays.creation import arange
from ..arrays.gathering import take, take_along_axis
from ..arrays.shaping import dim, expand_dims, squeeze
from ..base import Tensor, TensorLike, apply, as_floating, cast, convert_to_tensor
from ..data_format import check_data_format
from ..math.comparison import minimum, where
from ..math.reduction import argmax
from ..math.reduction import sum as total
from .pooling import AveragePool, MaxPool
from .window_geometry import (
    from_channels_last,
    is_half,
    per_axis,
    pooled_rank,
    spatial,
    to_channels_last,
)


def adaptive_max_pool(inputs: TensorLike, output_size: int | Sequence[int], data_format: str | None = None) -> Tensor:
    """Take the maximum of windows as equal as possible, such that the result has a given size; see `max_pool`.

    Args:
        inputs: [batch, *sizes, channels], or [batch, channels, *sizes] with ``data_format="channels_first"``.
        output_size: the spatial sizes of the result: an int, or one for each of the 1 to 3 spatial axes. Window number
            i of n along an axis of size s reaches from ``floor(i * s / n)`` to before ``ceil((i + 1) * s / n)``.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.

    Returns:
        [batch, *output_size, channels], in the input's data format.

    Raises:
        ValueError: the rank does not fit, or an axis is empty.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.adaptive_max_pool([[[3.0], [1.0], [4.0]]], 2))[0, :, 0]
    array([3., 4.], dtype=float32)
    """
    return _adaptive("adaptive_max_pool", convert_to_tensor(inputs), output_size, data_format, MaxPool)


def adaptive_average_pool(
    inputs: TensorLike, output_size: int | Sequence[int], data_format: str | None = None
) -> Tensor:
    """Average windows as equal as possible, to a given size; see `average_pool`. Integers become float32.

    Args:
        inputs, output_size, data_format: see `adaptive_max_pool`.

    Returns:
        [batch, *output_size, channels], in the input's data format.

    Raises:
        ValueError: the rank does not fit, or an axis is empty.

    >>> import anabranch as ab
    >>> ab.Session().run(ab.ops.adaptive_average_pool([[[3.0], [1.0], [4.0]]], 2))[0, :, 0]
    array([2. , 2.5], dtype=float32)
    """
    return _adaptive("adaptive_average_pool", as_floating(inputs), output_size, data_format, AveragePool)


def _adaptive(
    what: str, x: Tensor, output_size: Any, data_format: str | None, pooling: type[MaxPool] | type[AveragePool]
) -> Tensor:
    rank = pooled_rank(what, x, output_size)
    outs = per_axis(f"{what}: output_size", output_size, rank)
    layout = check_data_format(what, data_format)
    moved = to_channels_last(x, rank, layout)
    sizes = spatial(moved.shape, rank)
    if 0 in sizes:
        raise ValueError(f"{what}: there is nothing to pool in {x!r}, which has an empty spatial axis.")
    windows = [size // out for size, out in zip(sizes, outs, strict=True) if size is not None and size % out == 0]
    if len(windows) == rank:
        result = apply(pooling(tuple(windows), tuple(windows), "valid"), moved)
        return from_channels_last(result, rank, layout)
    wide = cast(moved, "float32") if pooling is AveragePool and is_half(x.dtype) else moved
    for axis, out in enumerate(outs, 1):
        parts, inside = _adaptive_windows(wide, out, axis, rank)
        wide = _first_greatest(parts, axis + 1) if pooling is MaxPool else _mean(parts, inside, axis + 1)
    return from_channels_last(cast(wide, x.dtype), rank, layout)


def _adaptive_windows(x: Tensor, out: int, axis: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return the cells of `out` windows that part an axis, on an axis behind it, and whether they are in their windows.

    Windows that are shorter than others have their last cell again, which changes no maximum.
    """
    size = dim(x, axis)
    numbers = arange(out)
    first, last = numbers * size // out, ((numbers + 1) * size - 1) // out
    places = expand_dims(first, 1) + arange(-(-size // out) + 1)
    limits = expand_dims(last, 1)
    inside = expand_dims(places <= limits, tuple(range(2, 3 + rank - axis)))
    return take(x, minimum(places, limits), axis), inside


def _first_greatest(x: Tensor, axis: int) -> Tensor:
    return squeeze(take_along_axis(x, argmax(x, axis, keepdims=True), axis), axis)


def _mean(x: Tensor, inside: Tensor, axis: int) -> Tensor:
    count = total(cast(inside, x.dtype), 1)
    return total(where(inside, x, 0), axis) / count


__all__ = ["adaptive_average_pool", "adaptive_max_pool"]
