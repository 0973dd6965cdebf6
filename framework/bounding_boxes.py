"""Boxes around things in images, in the formats of ``keras.utils.bounding_boxes``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine import ops
from ..engine.graph import Tensor
from ..engine.ops.base import TensorLike

_FORMATS = ("xyxy", "yxyx", "xywh", "center_xywh", "center_yxhw")


def convert_format(
    boxes: Any, source: str, target: str, height: int | None = None, width: int | None = None, dtype: str = "float32"
) -> Any:
    """Boxes of one format in another one.

    Args:
        boxes: ``[..., 4]``, or a dict with such "boxes" and other things, which stay as they are.
        source, target: "xyxy" (left, top, right, bottom), "yxyx", "xywh" (left, top, width, height), "center_xywh",
            "center_yxhw"; behind "rel_" as parts of the image's width and height. Capital letters are as small ones.
        height, width: of the image in pixels, where one of the formats is relative and the other one is not.
        dtype: of the result.

    Returns:
        Boxes of the same shape: a NumPy array of arrays, a tensor of tensors.

    Raises:
        ValueError: a format is another word, the last axis is not of size 4, or height and width are needed.

    >>> convert_format([[10.0, 20.0, 30.0, 40.0]], "xyxy", "center_xywh").tolist()
    [[20.0, 30.0, 20.0, 20.0]]
    """
    if isinstance(boxes, dict):
        return {**boxes, "boxes": convert_format(boxes["boxes"], source, target, height, width, dtype)}
    known = [_known(source, "source"), _known(target, "target")]
    (from_relative, start), (to_relative, end) = known
    tensor = ops.cast(ops.convert_to_tensor(boxes), dtype)
    if not tensor.shape or tensor.shape[-1] != 4:
        raise ValueError(f"convert_format: boxes must have a last axis of size 4, got shape {tensor.shape}.")
    if from_relative != to_relative and (height is None or width is None):
        raise ValueError(f"convert_format: from {source!r} to {target!r} the height and width of the image are needed.")
    sides = _to_sides(tensor, start)
    if from_relative != to_relative:
        factors = [float(width or 0), float(height or 0)] * 2
        scale = ops.cast(ops.convert_to_tensor(factors), dtype)
        sides = sides * scale if from_relative else sides / scale
    found = _from_sides(sides, end)
    return found if isinstance(boxes, Tensor) else np.asarray(found)


def _known(name: str, what: str) -> tuple[bool, str]:
    """Return whether a format is relative, and the rest of its name."""
    lower = name.lower()
    rest = lower.removeprefix("rel_")
    if rest not in _FORMATS:
        raise ValueError(f"convert_format: {what} must be one of {', '.join(_FORMATS)} or rel_...; got {name!r}.")
    return lower != rest, rest


def _parts(boxes: Any) -> list[Any]:
    return [boxes[..., k : k + 1] for k in range(4)]


def _to_sides(boxes: TensorLike, form: str) -> Any:
    """Left, top, right and bottom."""
    a, b, c, d = _parts(boxes)
    if form in ("yxyx", "center_yxhw"):
        a, b, c, d = b, a, d, c
    if form.startswith("center"):
        a, b = a - c / 2, b - d / 2
    return ops.concatenate([a, b, c, d] if form in ("xyxy", "yxyx") else [a, b, a + c, b + d], axis=-1)


def _from_sides(sides: Any, form: str) -> Any:
    left, top, right, bottom = _parts(sides)
    if form not in ("xyxy", "yxyx"):
        wide, tall = right - left, bottom - top
        if form.startswith("center"):
            left, top = left + wide / 2, top + tall / 2
        right, bottom = wide, tall
    swapped = form in ("yxyx", "center_yxhw")
    return ops.concatenate([top, left, bottom, right] if swapped else [left, top, right, bottom], axis=-1)


def clip_to_image_size(
    bounding_boxes: dict[str, Any],
    height: int | None = None,
    width: int | None = None,
    bounding_box_format: str = "xyxy",
) -> dict[str, Any]:
    """Boxes without the parts outside of the image; labels of those that are left with no area become -1.

    Args:
        bounding_boxes: a dict of "boxes" ``[..., n, 4]`` and "labels" ``[..., n]``.
        height, width: of the image in pixels; needed unless the format is relative.
        bounding_box_format: as for `convert_format`.

    Raises:
        ValueError: height and width are needed.

    >>> clipped = clip_to_image_size({"boxes": np.array([[-1.0, 2.0, 9.0, 9.0]]), "labels": np.array([3])}, 8, 8)
    >>> clipped["boxes"].tolist(), clipped["labels"].tolist()
    ([[0.0, 2.0, 8.0, 8.0]], [3])
    """
    relative, _ = _known(bounding_box_format, "bounding_box_format")
    if not relative and (height is None or width is None):
        raise ValueError(f"clip_to_image_size: with boxes as {bounding_box_format!r} height and width are needed.")
    sides = np.asarray(convert_format(bounding_boxes["boxes"], bounding_box_format, "rel_xyxy" if relative else "xyxy"))
    high = np.array([1.0, 1.0, 1.0, 1.0] if relative else [width, height, width, height], sides.dtype)
    clipped = np.clip(sides, 0, high)
    empty = (clipped[..., 2] <= clipped[..., 0]) | (clipped[..., 3] <= clipped[..., 1])
    found = convert_format(clipped, "rel_xyxy" if relative else "xyxy", bounding_box_format)
    labels = np.where(empty, -1, np.asarray(bounding_boxes["labels"]))
    return {**bounding_boxes, "boxes": found, "labels": labels}


def compute_iou(
    boxes1: Any,
    boxes2: Any,
    bounding_box_format: str,
    use_masking: bool = False,
    mask_val: int = -1,
    image_shape: tuple[int, ...] | None = None,
) -> Any:
    """Return the intersection over union of each box of one set and each of another one.

    Args:
        boxes1, boxes2: ``[n, 4]`` or ``[batch, n, 4]``.
        bounding_box_format: as for `convert_format`.
        use_masking: give `mask_val` where all numbers of a box are negative.
        image_shape: (height, width, channels); needed for relative formats.

    Returns:
        ``[n, m]``, or ``[batch, n, m]`` if one of them is a batch.

    Raises:
        ValueError: boxes have another rank, or the image's shape is needed.

    >>> compute_iou([[0.0, 0.0, 2.0, 2.0]], [[1.0, 0.0, 3.0, 2.0]], "xyxy").tolist()
    [[0.3333333432674408]]
    """
    for name, boxes in (("boxes1", boxes1), ("boxes2", boxes2)):
        rank = len(np.shape(boxes))
        if rank not in (2, 3):
            raise ValueError(f"compute_iou: {name} must be [n, 4] or [batch, n, 4], got {rank} axes.")
    if "rel" in bounding_box_format.lower() and image_shape is None:
        raise ValueError(f"compute_iou: with boxes as {bounding_box_format!r} image_shape is needed.")
    height, width = (None, None) if image_shape is None else image_shape[:2]
    first, second = (
        np.asarray(convert_format(boxes, bounding_box_format, "xyxy", height, width)) for boxes in (boxes1, boxes2)
    )
    one, other = first[..., :, None, :], second[..., None, :, :]
    sides = np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])
    common = np.prod(np.maximum(sides, 0), axis=-1)
    whole = np.prod(one[..., 2:] - one[..., :2], axis=-1) + np.prod(other[..., 2:] - other[..., :2], axis=-1) - common
    found = np.divide(common, whole, out=np.zeros_like(whole), where=whole != 0)
    if not use_masking:
        return found
    masked = np.all(one < 0, axis=-1) | np.all(other < 0, axis=-1)
    return np.where(masked, np.float32(mask_val), found)
