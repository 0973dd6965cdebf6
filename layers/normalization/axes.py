"""The axes over which layers normalise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine.ops.base import normalize_axes
from ..core.input_spec import InputSpec

if TYPE_CHECKING:
    from ..core.layer import Layer


def given_axes(layer: str, axis: int | Sequence[int]) -> int | list[int]:
    """Return `axis` of a layer's constructor, an int or a list of ints.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(axis, int):
        return axis
    if isinstance(axis, Sequence) and all(isinstance(each, int) for each in axis):
        return list(axis)
    raise TypeError(f"{layer}: axis must be an int or a list of ints, got {axis!r}.")


def sizes_along(axis: int | Sequence[int], shape: Sequence[int | None]) -> InputSpec:
    """Return the sizes of `shape` along the axes of a layer, whose inputs may have any number of other axes."""
    return InputSpec(axes={each: shape[each] for each in (axis if isinstance(axis, Sequence) else [axis])})


def axes_of(layer: Layer, axis: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Return `axis` counted from the front, in ascending order, for inputs of a rank.

    Raises:
        ValueError: an axis is out of range or is named twice.
    """
    try:
        return normalize_axes(axis, rank) or ()
    except ValueError as error:
        raise ValueError(f"Layer {layer.name!r} ({type(layer).__name__}): {error}") from None
