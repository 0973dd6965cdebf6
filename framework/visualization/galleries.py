"""Galleries: many images in rows and columns, as one image. Pillow draws (extra `images`)."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .drawing import Color, batch_of_images, draw_bounding_boxes, draw_segmentation_masks

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ..data.images import Image
    from ..structures import Array

_TITLE = 16  # pixels above an image with a label
_GAP = 4  # between images


def plot_image_gallery(
    images: ArrayLike,
    y_true: Sequence[int] | Array | None = None,
    y_pred: Sequence[int] | Array | None = None,
    label_map: Mapping[int, str] | None = None,
    rows: int | None = None,
    cols: int | None = None,
    value_range: tuple[float, float] = (0, 255),
    scale: float = 2,
    path: str | os.PathLike[str] | None = None,
    show: bool | None = None,
    transparent: bool = True,
    dpi: int = 60,
    legend_handles: Sequence[tuple[str, Color]] | None = None,
    data_format: str | None = None,
) -> Image:
    """Put images into rows and columns, with labels above them.

    Args:
        images: ``[batch, height, width, channels]``.
        y_true, y_pred: ``[batch]`` labels.
        label_map: their names; needed for labels.
        rows, cols: how many; by default about as many rows as columns.
        value_range: of the pixels.
        scale, dpi: an image is about ``scale * dpi`` pixels wide.
        path: where the gallery is written; the ending of the name says as what.
        show: open it in a program that shows images. Notebooks show what is returned.
        transparent: leave the ground transparent, where the kind of file can.
        legend_handles: pairs of a name and a colour, below the images.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.

    Returns:
        The gallery, an image of Pillow, which notebooks show. (Keras draws with matplotlib and returns nothing.)

    Raises:
        ValueError: `images` is not a batch, there are labels without `label_map`, or both `path` and `show`.
        ImportError: Pillow is not installed.

    >>> import anabranch as ab
    >>> import numpy as np
    >>> names = {0: "cat", 1: "dog"}
    >>> gallery = ab.visualization.plot_image_gallery(np.zeros((4, 8, 8, 3)), y_true=[0, 1, 1, 0], label_map=names)
    >>> gallery.width > 8
    True
    """
    from PIL import Image, ImageDraw

    if path is not None and show:
        raise ValueError("plot_image_gallery: give path, or show=True, not both.")
    if (y_true is not None or y_pred is not None) and label_map is None:
        raise ValueError("plot_image_gallery: y_true and y_pred need label_map, a dict of their names.")
    batch = _as_bytes(batch_of_images(images, data_format, "plot_image_gallery"), value_range)
    high, wide = _shape(len(batch), rows, cols)
    width = max(round(scale * dpi), 1)
    height = max(round(width * batch.shape[1] / max(batch.shape[2], 1)), 1)
    title = _TITLE if label_map is not None else 0
    below = _TITLE + _GAP if legend_handles else 0
    size = (wide * (width + _GAP) + _GAP, high * (height + title + _GAP) + _GAP + below)
    gallery = Image.new("RGBA", size, (255, 255, 255, 0 if transparent else 255))
    pen = ImageDraw.Draw(gallery)
    for number, pixels in enumerate(batch[: high * wide]):
        left = _GAP + (number % wide) * (width + _GAP)
        top = _GAP + (number // wide) * (height + title + _GAP)
        pen.text((left, top), _title(number, y_true, y_pred, label_map), fill=(0, 0, 0, 255))
        picture = Image.fromarray(pixels if pixels.shape[-1] != 1 else pixels[..., 0]).convert("RGB")
        gallery.paste(picture.resize((width, height), Image.Resampling.NEAREST), (left, top + title))
    left = _GAP
    for name, colour in legend_handles or ():
        top = size[1] - _TITLE
        pen.rectangle((left, top, left + 10, top + 10), fill=(*colour, 255))
        pen.text((left + 14, top), name, fill=(0, 0, 0, 255))
        left += 24 + round(pen.textlength(name))
    if path is not None:
        _save(gallery, os.fspath(path), dpi)
    elif show:
        gallery.show()
    return gallery


def _shape(count: int, rows: int | None, cols: int | None) -> tuple[int, int]:
    """Return the rows and columns for so many images."""
    if rows is None and cols is None:
        rows = max(math.ceil(math.sqrt(count)), 1)
    rows = rows or math.ceil(count / (cols or 1))
    return rows, cols or max(math.ceil(count / rows), 1)


def _as_bytes(images: Array, value_range: tuple[float, float]) -> Array:
    low, high = value_range
    scaled = (images.astype("float32") - low) * (255 / (high - low))
    return np.clip(scaled, 0, 255).round().astype("uint8")


def _title(
    number: int,
    y_true: Sequence[int] | Array | None,
    y_pred: Sequence[int] | Array | None,
    label_map: Mapping[int, str] | None,
) -> str:
    parts = [
        f"{name}: {(label_map or {}).get(int(np.asarray(labels)[number]), 'Unknown')}"
        for name, labels in (("Label", y_true), ("Pred", y_pred))
        if labels is not None and number < len(labels)
    ]
    return "  ".join(parts)


def _save(gallery: Image, path: str, dpi: int) -> None:
    if path.lower().endswith((".jpg", ".jpeg", ".bmp")):  # which have no transparency
        gallery = gallery.convert("RGB")
    gallery.save(path, dpi=(dpi, dpi))


def plot_bounding_box_gallery(
    images: ArrayLike,
    bounding_box_format: str,
    y_true: Mapping[str, object] | None = None,
    y_pred: Mapping[str, object] | None = None,
    value_range: tuple[float, float] = (0, 255),
    true_color: Color = (0, 188, 212),
    pred_color: Color = (255, 235, 59),
    line_thickness: int = 2,
    font_scale: float = 1.0,
    text_thickness: int | None = None,
    class_mapping: Mapping[int, str] | None = None,
    ground_truth_mapping: Mapping[int, str] | None = None,
    prediction_mapping: Mapping[int, str] | None = None,
    legend: bool = False,
    legend_handles: Sequence[tuple[str, Color]] | None = None,
    rows: int | None = None,
    cols: int | None = None,
    data_format: str | None = None,
    **kwargs: Any,
) -> Image:
    """Put images with the boxes that are true and those that are predicted into rows and columns.

    Args:
        images: ``[batch, height, width, 3]``.
        bounding_box_format: as for `utils.bounding_boxes.convert_format`.
        y_true, y_pred: as for `draw_bounding_boxes`.
        value_range, rows, cols, data_format, legend_handles, **kwargs: as for `plot_image_gallery`.
        true_color, pred_color: of the boxes.
        line_thickness, font_scale, text_thickness: as for `draw_bounding_boxes`.
        class_mapping: the names of labels; `ground_truth_mapping` and `prediction_mapping` go before it.
        legend: name the colours below the images.

    Returns:
        As `plot_image_gallery`.

    Raises:
        ValueError: `images` is not a batch, or there are both `legend` and `legend_handles`.

    >>> import anabranch as ab
    >>> import numpy as np
    >>> boxes = {"boxes": np.array([[[1, 1, 6, 6]]]), "labels": np.array([[0]])}
    >>> gallery = ab.visualization.plot_bounding_box_gallery(np.zeros((1, 8, 8, 3)), "xyxy", y_true=boxes)
    >>> gallery.width > 8
    True
    """
    if legend and legend_handles:
        raise ValueError("plot_bounding_box_gallery: give legend or legend_handles, not both.")
    drawn = _as_bytes(batch_of_images(images, data_format, "plot_bounding_box_gallery"), value_range)
    how: dict[str, Any] = {
        "line_thickness": line_thickness,
        "text_thickness": text_thickness,
        "font_scale": font_scale,
        "data_format": "channels_last",
    }
    sets = (
        (y_true, true_color, ground_truth_mapping or class_mapping),
        (y_pred, pred_color, prediction_mapping or class_mapping),
    )
    for boxes, colour, names in sets:
        if boxes is not None:
            drawn = draw_bounding_boxes(drawn, boxes, bounding_box_format, names, colour, **how)
    handles = [("Ground Truth", true_color), ("Prediction", pred_color)] if legend else legend_handles
    return plot_image_gallery(
        drawn, rows=rows, cols=cols, legend_handles=handles, data_format="channels_last", **kwargs
    )


def plot_segmentation_mask_gallery(
    images: ArrayLike,
    num_classes: int,
    value_range: tuple[float, float] = (0, 255),
    y_true: Sequence[int] | Array | None = None,
    y_pred: Sequence[int] | Array | None = None,
    color_mapping: Mapping[int, Color] | None = None,
    blend: bool = True,
    alpha: float = 0.8,
    ignore_index: int = -1,
    data_format: str | None = None,
    **kwargs: Any,
) -> Image:
    """Put each image into a row, beside it with the mask that is true and with the one that is predicted.

    Args:
        images: ``[batch, height, width, 3]``.
        num_classes, color_mapping, blend, alpha, ignore_index: as for `draw_segmentation_masks`.
        value_range, data_format, **kwargs: as for `plot_image_gallery`.
        y_true, y_pred: integers ``[batch, height, width]`` or ``[..., 1]``.

    Returns:
        As `plot_image_gallery`.

    Raises:
        ValueError: `images` is not a batch, or masks have another shape.

    >>> import anabranch as ab
    >>> import numpy as np
    >>> masks = np.zeros((2, 8, 8), "int32")
    >>> gallery = ab.visualization.plot_segmentation_mask_gallery(np.zeros((2, 8, 8, 3)), 2, y_true=masks)
    >>> gallery.width > 8
    True
    """
    batch = _as_bytes(batch_of_images(images, data_format, "plot_segmentation_mask_gallery"), value_range)
    columns = [batch]
    for masks in (y_true, y_pred):
        if masks is not None:
            given = np.asarray(masks).astype("int32")
            if given.ndim == 4 and given.shape[1:3] != batch.shape[1:3]:  # channels first
                given = given[:, 0]
            how = (num_classes, color_mapping, alpha, blend, ignore_index, "channels_last")
            columns.append(draw_segmentation_masks(batch, given, *how))
    shown = np.stack(columns, axis=1).reshape((-1, *batch.shape[1:]))
    return plot_image_gallery(shown, rows=len(batch), cols=len(columns), data_format="channels_last", **kwargs)
