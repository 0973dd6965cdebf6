"""Boxes and masks that are drawn on images. Pillow draws (extra `images`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...engine.ops.data_format import check_data_format
from ..bounding_boxes import convert_format

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ..structures import Array

Color = Sequence[int]


def batch_of_images(images: ArrayLike, data_format: str | None, what: str) -> Array:
    """Return images as a NumPy array with the channels last.

    Raises:
        ValueError: they are not a batch.
    """
    batch = np.asarray(images)
    if batch.ndim != 4:
        raise ValueError(f"{what}: images must be [batch, height, width, channels], got shape {batch.shape}.")
    first = check_data_format(what, data_format) == "channels_first"
    return batch.transpose(0, 2, 3, 1) if first else batch


def draw_bounding_boxes(
    images: ArrayLike,
    bounding_boxes: Mapping[str, object],
    bounding_box_format: str,
    class_mapping: Mapping[int, str] | None = None,
    color: Color = (128, 128, 128),
    line_thickness: int = 2,
    text_thickness: int | None = 1,
    font_scale: float = 1.0,
    data_format: str | None = None,
) -> Array:
    """Draw boxes on images, with the names of their classes.

    Args:
        images: ``[batch, height, width, 3]``, from 0 to 255, or floats from 0 to 1.
        bounding_boxes: a dict of "boxes" ``[batch, n, 4]``, "labels" ``[batch, n]``, of which -1 are left out, and
            perhaps "confidences" ``[batch, n]``.
        bounding_box_format: as for `utils.bounding_boxes.convert_format`.
        class_mapping: the names by label; others get none.
        color: red, green and blue, from 0 to 255.
        line_thickness: of the boxes, in pixels.
        text_thickness: of the outlines of letters.
        font_scale: the size of letters, in 12 pixels.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.

    Returns:
        uint8 ``[batch, height, width, 3]``.

    Raises:
        ValueError: `images` is not a batch, or boxes or labels are missing.
        TypeError: `bounding_boxes` is not a dict.
        ImportError: Pillow is not installed.

    >>> import anabranch as ab
    >>> import numpy as np
    >>> boxes = {"boxes": np.array([[[1, 1, 6, 6]]]), "labels": np.array([[0]])}
    >>> drawn = ab.visualization.draw_bounding_boxes(np.zeros((1, 8, 8, 3)), boxes, "xyxy", line_thickness=1)
    >>> (drawn[0, :, :, 0] > 0).sum().item()
    20
    """
    from PIL import Image, ImageDraw, ImageFont

    batch = batch_of_images(images, data_format, "draw_bounding_boxes")
    if not isinstance(bounding_boxes, Mapping):
        raise TypeError(f"draw_bounding_boxes: bounding_boxes must be a dict, got {type(bounding_boxes).__name__}.")
    missing = [name for name in ("boxes", "labels") if name not in bounding_boxes]
    if missing:
        raise ValueError(f"draw_bounding_boxes: bounding_boxes has no {' and no '.join(map(repr, missing))}.")
    height, width = batch.shape[1:3]
    boxes = np.asarray(convert_format(np.asarray(bounding_boxes["boxes"]), bounding_box_format, "xyxy", height, width))
    labels = np.asarray(bounding_boxes["labels"]).astype(int)
    confidences = bounding_boxes.get("confidences")
    font = ImageFont.load_default(12 * font_scale)
    drawn: list[Array] = []
    for number, pixels in enumerate(_as_bytes(batch)):
        image = Image.fromarray(pixels)
        pen = ImageDraw.Draw(image)
        for place, (box, label) in enumerate(zip(boxes[number], labels[number], strict=True)):
            if label == -1:
                continue
            left, top, right, bottom = (int(side) for side in box)
            corners = (min(left, right), min(top, bottom), max(left, right), max(top, bottom))
            pen.rectangle(corners, outline=tuple(color), width=line_thickness)
            name = (class_mapping or {}).get(int(label))
            if name is None:
                continue
            if confidences is not None:
                name = f"{name} | {float(np.asarray(confidences)[number][place]):.2f}"
            above = corners[1] - 14 * font_scale
            at = (corners[0], above) if above > 0 else (corners[0] + 3, corners[1] + 3)
            pen.text(at, name, fill=tuple(color), font=font, stroke_width=max((text_thickness or 1) - 1, 0))
        drawn.append(np.asarray(image))
    return np.stack(drawn) if drawn else _as_bytes(batch)


def _as_bytes(images: Array) -> Array:
    if images.dtype.kind == "f" and images.size:
        images = np.clip(images, 0, 1) * 255 if images.max() <= 1 else np.clip(images, 0, 255)
    return images.astype("uint8")


def draw_segmentation_masks(
    images: ArrayLike,
    segmentation_masks: ArrayLike,
    num_classes: int | None = None,
    color_mapping: Mapping[int, Color] | None = None,
    alpha: float = 0.8,
    blend: bool = True,
    ignore_index: int = -1,
    data_format: str | None = None,
) -> Array:
    """Colour the pixels of images by their class.

    Args:
        images: ``[batch, height, width, 3]``, from 0 to 255.
        segmentation_masks: integers ``[batch, height, width]`` or ``[..., 1]``: the class of each pixel.
        num_classes: how many classes are coloured, from 0; by default as many as there are.
        color_mapping: red, green and blue by class; by default colours that are far apart.
        alpha: how opaque the colours are, from 0 to 1.
        blend: mix colours with the image; False puts them in its place.
        ignore_index: the class of pixels that stay as they are.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.

    Returns:
        uint8 ``[batch, height, width, 3]``.

    Raises:
        ValueError: `images` is not a batch, or the masks have another shape.
        TypeError: the masks are not integers.

    >>> drawn = draw_segmentation_masks(np.zeros((1, 1, 2, 3)), np.array([[[1, -1]]]), color_mapping={1: (100, 0, 0)})
    >>> drawn.tolist()
    [[[[80, 0, 0], [0, 0, 0]]]]
    """
    batch = batch_of_images(images, data_format, "draw_segmentation_masks").astype("float32")
    masks = np.asarray(segmentation_masks)
    if masks.dtype.kind not in "iu":
        raise TypeError(f"draw_segmentation_masks: segmentation_masks must be integers, got {masks.dtype}.")
    if masks.ndim == 4:
        first = check_data_format("draw_segmentation_masks", data_format) == "channels_first"
        masks = masks[:, 0] if first else masks[..., 0]
    if masks.shape != batch.shape[:3]:
        raise ValueError(
            f"draw_segmentation_masks: segmentation_masks must have shape {batch.shape[:3]}, with or without an axis "
            f"of size 1 behind; got {np.shape(segmentation_masks)}."
        )
    count = int(masks.max(initial=0)) + 1 if num_classes is None else num_classes
    colours = batch.copy()
    for label in range(count):
        colour = _colour(label) if color_mapping is None else color_mapping.get(label)
        if label != ignore_index and colour is not None:
            colours[masks == label] = np.asarray(colour, "float32")
    share = alpha if blend else 1.0
    return np.clip(batch * (1 - share) + colours * share, 0, 255).round().astype("uint8")


def _colour(label: int) -> tuple[int, ...]:
    return tuple(int(label * step % 255) for step in (2**25 - 1, 2**15 - 1, 2**21 - 1))
