"""Formats of boxes around things in images, and `moved_boxes`: boxes as they are after an image was moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...engine import ops
from ...engine.graph import Tensor

_FORMATS = ("xyxy", "yxyx", "xywh", "center_xywh", "center_yxhw")

Size = tuple[Any, Any]
"""Height and width in pixels, ints or scalar tensors."""


def known_format(name: str, what: str) -> tuple[bool, str]:
    """Return whether a format is relative, and the rest of its name.

    Raises:
        ValueError: there is no such format; the message begins with `what`.
    """
    lower = name.lower()
    rest = lower.removeprefix("rel_")
    if rest not in _FORMATS:
        raise ValueError(f"{what} must be one of {', '.join(_FORMATS)} or rel_...; got {name!r}.")
    return lower != rest, rest


def parts_of(boxes: Tensor) -> list[Any]:
    """Return the four columns of boxes."""
    return [boxes[..., k : k + 1] for k in range(4)]


def to_sides(boxes: Tensor, form: str) -> Tensor:
    """Return left, top, right and bottom."""
    a, b, c, d = parts_of(boxes)
    if form in ("yxyx", "center_yxhw"):
        a, b, c, d = b, a, d, c
    if form.startswith("center"):
        a, b = a - c / 2, b - d / 2
    return ops.concatenate([a, b, c, d] if form in ("xyxy", "yxyx") else [a, b, a + c, b + d], axis=-1)


def from_sides(sides: Tensor, form: str) -> Tensor:
    """Return boxes of a format from left, top, right and bottom."""
    left, top, right, bottom = parts_of(sides)
    if form not in ("xyxy", "yxyx"):
        wide, tall = right - left, bottom - top
        if form.startswith("center"):
            left, top = left + wide / 2, top + tall / 2
        right, bottom = wide, tall
    swapped = form in ("yxyx", "center_yxhw")
    return ops.concatenate([top, left, bottom, right] if swapped else [left, top, right, bottom], axis=-1)


def moved_boxes(
    given: dict[str, Any], form: tuple[bool, str], old: Size, new: Size, move: Callable[[Tensor], Tensor]
) -> dict[str, Any]:
    """Move boxes as the image around them was moved, and cut off what is outside of it.

    Args:
        given: "boxes" ``[batch, n, 4]``, "labels" ``[batch, n]``, and other entries, which stay.
        form: of the boxes, as `known_format` gives it.
        old, new: the sizes of the image before and after.
        move: gives new sides of sides (left, top, right, bottom) in pixels.

    Returns:
        The same entries. Boxes of which nothing is left have the label -1. Padding (boxes of -1 or of 0 alone) is 0.
    """
    boxes = ops.cast(ops.convert_to_tensor(given["boxes"]), "float32")
    is_padding = ops.logical_or(ops.all(boxes == -1, axis=-1), ops.all(boxes == 0, axis=-1))
    is_relative, rest = form
    sides = to_sides(boxes, rest)
    sides = move(sides * _sides_of(old) if is_relative else sides)
    sides = ops.minimum(ops.maximum(sides, 0.0), _sides_of(new))
    sides = ops.where(ops.expand_dims(is_padding, -1), 0.0, sides)
    labels = ops.convert_to_tensor(given["labels"])
    is_left = ops.all(sides[..., 2:] > sides[..., :2], axis=-1)
    found = from_sides(sides / _sides_of(new) if is_relative else sides, rest)
    return {**given, "boxes": found, "labels": ops.where(is_left, labels, ops.cast(-1, labels.dtype))}


def _sides_of(size: Size) -> Tensor:
    height, width = (ops.cast(each, "float32") for each in size)
    return ops.stack([width, height, width, height])
