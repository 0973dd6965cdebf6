"""Arguments of the layers that work along spatial axes: one number (or pair) an axis, and where the channels are."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ...engine.ops.base import TensorLike
from ..core.layer import Layer


def axis_sizes(layer: str, name: str, value: TensorLike, rank: int, least: int = 1) -> tuple[int, ...]:
    """Return an int, or one for each of `rank` axes, as a tuple.

    Args:
        layer: the layer's class, for the message.
        name: the argument's name, for the message.
        value: what was given.
        rank: the number of axes.
        least: the smallest number allowed.

    Raises:
        ValueError: it is something else.
    """
    sizes = _integers(value)
    if sizes is not None and len(sizes) == 1 and not isinstance(value, Sequence):
        sizes = sizes * rank
    if sizes is None or len(sizes) != rank or min(sizes) < least:
        kind = "a positive integer" if least == 1 else f"an integer from {least} up"
        many = "" if rank == 1 else f", or a tuple of {rank} of them (one for each axis)"
        raise ValueError(f"{layer}: {name} must be {kind}{many}, got {name}={value!r}.")
    return sizes


def _integers(value: object) -> tuple[int, ...] | None:
    """Return the integers of a sequence, or an integer alone; None if there is anything else."""
    items: Sequence[Any] = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if any(isinstance(item, bool) for item in items):
        return None
    try:
        return tuple(operator.index(item) for item in items)
    except TypeError:
        return None


def axis_pairs(layer: str, name: str, value: TensorLike, rank: int) -> tuple[tuple[int, ...], ...]:
    """Return how many cells come before and behind each of `rank` axes, as pairs.

    Args:
        layer, name: the layer's class and the argument's name, for the message.
        value: an int for all ends; or for each axis an int for both its ends, or a pair.
        rank: the number of axes.

    Raises:
        ValueError: it is something else.
    """
    entries = value if isinstance(value, Sequence) and not isinstance(value, str) else [value] * rank
    if len(entries) != rank:
        raise ValueError(
            f"{layer}: {name} must be an integer, or a tuple of {rank} entries (one for each axis), each an integer or "
            f"a pair of them, got {name}={value!r}."
        )
    return tuple(axis_sizes(layer, f"{name} of axis {axis}", entry, 2, 0) for axis, entry in enumerate(entries))


def one_of(layer: str, name: str, value: str, allowed: Sequence[str]) -> str:
    """Return `value` in lower case.

    Raises:
        ValueError: it is not one of `allowed`.
    """
    known = value.lower() if isinstance(value, str) else value
    if known not in allowed:
        raise ValueError(f"{layer}: {name} must be one of {', '.join(map(repr, allowed))}, got {name}={value!r}.")
    return known


def spatial_axes(rank: int, data_format: str) -> tuple[int, ...]:
    """Return the spatial axes of a batch.

    >>> spatial_axes(2, "channels_last"), spatial_axes(2, "channels_first")
    ((1, 2), (2, 3))
    """
    first = 1 if data_format == "channels_last" else 2
    return tuple(range(first, first + rank))


def channels_axis(data_format: str) -> int:
    """Return the axis of the channels: the last one, or axis 1."""
    return -1 if data_format == "channels_last" else 1


def known_channels(layer: Layer, input_shape: Sequence[int | None], rank: int, data_format: str) -> int:
    """Return the number of channels of an input.

    Args:
        layer: for the message.
        input_shape: the input's shape with the batch, None where unknown.
        rank: the number of spatial axes.
        data_format: where the channels are.

    Raises:
        ValueError: it is not known, or the shape has another number of axes.
    """
    title = f"Layer {layer.name!r} ({type(layer).__name__})"
    sizes = [f"size_{axis}" for axis in range(1, rank + 1)] if rank > 1 else ["steps"]
    axes = ["batch", *sizes, "channels"] if data_format == "channels_last" else ["batch", "channels", *sizes]
    if input_shape is None or len(input_shape) != rank + 2:
        raise ValueError(f"{title} takes inputs of shape ({', '.join(axes)}), got input shape {input_shape}.")
    channels = input_shape[channels_axis(data_format)]
    if channels is None:
        raise ValueError(
            f"{title} needs a known number of channels of its input, ({', '.join(axes)}), to make its weights, got "
            f"input shape {input_shape}. Give that axis a size in ab.Input."
        )
    return int(channels)
