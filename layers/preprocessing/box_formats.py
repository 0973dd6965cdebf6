"""Boxes around things in images: their formats, and where they are after the image was moved."""

from __future__ import annotations

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.arrays.shaping import DimLike

_FORMATS = ("xyxy", "yxyx", "xywh", "center_xywh", "center_yxhw")

Size = tuple[DimLike, DimLike]
"""Height and width in pixels, ints or scalar tensors."""


def known_format(name: str, what: str) -> tuple[bool, str]:
    """Return whether a format is relative, and the rest of its name.

    Raises:
        ValueError: there is no such format; the message begins with `what`.
    """
    lower = str(name).lower()
    rest = lower.removeprefix("rel_")
    if rest not in _FORMATS:
        raise ValueError(f"{what} must be one of {', '.join(_FORMATS)} or rel_...; got {name!r}.")
    return lower != rest, rest


def parts_of(boxes: Tensor) -> list[Tensor]:
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


def sides_of(boxes: Tensor, form: tuple[bool, str], size: Size) -> Tensor:
    """Return left, top, right and bottom in pixels.

    Args:
        boxes: ``[batch, n, 4]``.
        form: of the boxes, as `known_format` gives it.
        size: of the image.
    """
    is_relative, rest = form
    sides = to_sides(ops.cast(ops.convert_to_tensor(boxes), "float32"), rest)
    return sides * _far_sides(size) if is_relative else sides


def moved_boxes(given: dict[str, Tensor], sides: Tensor, form: tuple[bool, str], size: Size) -> dict[str, Tensor]:
    """Replace boxes by those of other sides, cut off at the image's edges.

    Args:
        given: "boxes" ``[batch, n, 4]``, "labels" ``[batch, n]``, and other entries, which stay.
        sides: left, top, right and bottom of the boxes in pixels, as they are now.
        form: of the boxes, as `known_format` gives it.
        size: of the image as it is now.

    Returns:
        The same entries. Boxes of which nothing is left have the label -1. Padding (boxes of -1 or of 0 alone) is 0.
    """
    boxes = ops.convert_to_tensor(given["boxes"])
    is_padding = ops.logical_or(ops.all(boxes == -1, axis=-1), ops.all(boxes == 0, axis=-1))
    sides = ops.where(ops.expand_dims(is_padding, -1), 0.0, _cut_off(sides, size))
    labels = ops.convert_to_tensor(given["labels"])
    is_relative, rest = form
    found = from_sides(sides / _far_sides(size) if is_relative else sides, rest)
    return {**given, "boxes": found, "labels": ops.where(_is_left(sides), labels, ops.cast(-1, labels.dtype))}


def warped_sides(sides: Tensor, matrix: Tensor) -> Tensor:
    """Return the sides of the smallest boxes around boxes whose image was warped.

    Args:
        sides: left, top, right and bottom in pixels, ``[batch, n, 4]``.
        matrix: ``[batch, 8]`` as `ops.image.affine_transform` takes it: from the numbers of a new pixel to those of
            the old one. The middle of pixel 0 is half a pixel behind the edge of the image, from which sides count.
    """
    back = ops.reshape(ops.concatenate([matrix, ops.ones_like(matrix[:, :1])], axis=-1), (-1, 3, 3))
    left, top, right, bottom = parts_of(sides - 0.5)
    x, y = (ops.concatenate(each, axis=-1) for each in ([left, right, left, right], [top, top, bottom, bottom]))
    corners = ops.stack([x, y, ops.ones_like(x)], axis=-1)  # (batch, n, 4, 3)
    moved = ops.einsum("bij,bncj->bnci", ops.inv(back), corners)
    found = moved[..., :2] / moved[..., 2:] + 0.5
    return ops.concatenate([ops.min(found, axis=2), ops.max(found, axis=2)], axis=-1)


def seen_sides(sides: Tensor, size: Size) -> Tensor:
    """Cut boxes off at the image's edges; those outside of it become points, and stay points when they move on."""
    cut = _cut_off(sides, size)
    return ops.where(ops.expand_dims(_is_left(cut), -1), cut, 0.0)


def _cut_off(sides: Tensor, size: Size) -> Tensor:
    return ops.minimum(ops.maximum(sides, 0.0), _far_sides(size))


def _is_left(sides: Tensor) -> Tensor:
    return ops.all(sides[..., 2:] > sides[..., :2], axis=-1)


def _far_sides(size: Size) -> Tensor:
    height, width = (ops.cast(each, "float32") for each in size)
    return ops.stack([width, height, width, height])
