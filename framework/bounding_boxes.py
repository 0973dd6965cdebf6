"""Boxes around things in images, in the formats of ``keras.utils.bounding_boxes``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ..engine import ops
from ..engine.graph import Tensor
from ..engine.ops.base import TensorLike, as_array
from ..layers.preprocessing.box_formats import from_sides, known_format, parts_of, to_sides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .structures import Array

_EPSILON = 1e-7


@overload
def convert_format(
    boxes: Mapping[str, TensorLike],
    source: str,
    target: str,
    height: int | None = None,
    width: int | None = None,
    dtype: str = "float32",
) -> dict[str, Any]: ...


@overload
def convert_format(
    boxes: Tensor, source: str, target: str, height: int | None = None, width: int | None = None, dtype: str = "float32"
) -> Tensor: ...


@overload
def convert_format(
    boxes: TensorLike,
    source: str,
    target: str,
    height: int | None = None,
    width: int | None = None,
    dtype: str = "float32",
) -> Tensor | Array: ...


def convert_format(
    boxes: TensorLike | Mapping[str, TensorLike],
    source: str,
    target: str,
    height: int | None = None,
    width: int | None = None,
    dtype: str = "float32",
) -> Tensor | Array | dict[str, Any]:
    """Convert boxes from one format to another.

    Args:
        boxes: ``[..., 4]``, or a dict with such "boxes" and other things, which stay as they are.
        source, target: "xyxy" (left, top, right, bottom), "yxyx", "xywh" (left, top, width, height), "center_xywh",
            "center_yxhw"; behind "rel_" as parts of the image's width and height. Capital letters are as small ones.
        height, width: of the image in pixels, where one of the formats is relative and the other one is not.
        dtype: of the result.

    Returns:
        Boxes of the same shape: a NumPy array of arrays, a tensor of tensors.

    Raises:
        ValueError: a format is unknown, the last axis is not of size 4, or height and width are needed.

    >>> convert_format([[10.0, 20.0, 30.0, 40.0]], "xyxy", "center_xywh").tolist()
    [[20.0, 30.0, 20.0, 20.0]]
    """
    if isinstance(boxes, Mapping):
        return {**boxes, "boxes": convert_format(boxes["boxes"], source, target, height, width, dtype)}
    known = [known_format(source, "convert_format: source"), known_format(target, "convert_format: target")]
    (from_relative, start), (to_relative, end) = known
    tensor = ops.cast(ops.convert_to_tensor(boxes), dtype)
    if not tensor.shape or tensor.shape[-1] != 4:
        raise ValueError(f"convert_format: boxes must have a last axis of size 4, got shape {tensor.shape}.")
    if from_relative != to_relative and (height is None or width is None):
        raise ValueError(f"convert_format: from {source!r} to {target!r} the height and width of the image are needed.")
    sides = to_sides(tensor, start)
    if from_relative != to_relative:
        factors = [float(width or 0), float(height or 0)] * 2
        scale = ops.cast(ops.convert_to_tensor(factors), dtype)
        sides = sides * scale if from_relative else sides / scale
    found = from_sides(sides, end)
    return found if isinstance(boxes, Tensor) else np.asarray(found)


def clip_to_image_size(
    bounding_boxes: Mapping[str, TensorLike],
    height: int | None = None,
    width: int | None = None,
    bounding_box_format: str = "xyxy",
) -> dict[str, Any]:
    """Clip boxes to the image; labels of those that are left with no area become -1.

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
    relative, _ = known_format(bounding_box_format, "bounding_box_format")
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
    boxes1: TensorLike,
    boxes2: TensorLike,
    bounding_box_format: str,
    use_masking: bool = False,
    mask_val: int = -1,
    image_shape: tuple[int, ...] | None = None,
) -> Array:
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
        rank = len(np.shape(as_array(boxes)))
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


def compute_ciou(
    boxes1: TensorLike, boxes2: TensorLike, bounding_box_format: str, image_shape: tuple[int, ...] | None = None
) -> Tensor | Array:
    """Return the complete IoU of each box of one set and the box at the same place in another one.

    It is the intersection over union, less the squared distance of the centres by the squared diagonal of the smallest
    box around both, less a term for the difference of their aspect ratios; from below -1 to 1.

    Args:
        boxes1, boxes2: ``[..., 4]``, of the same shape.
        bounding_box_format: as for `convert_format`.
        image_shape: (height, width, channels); needed for relative formats.

    Returns:
        ``[...]``, differentiable where the boxes are tensors: ``1 - compute_ciou(...)`` is a loss.

    Source: Zheng et al., "Distance-IoU Loss: Faster and Better Learning for Bounding Box Regression", 2020.

    Raises:
        ValueError: the image's shape is needed.

    >>> round(float(compute_ciou([0.0, 0.0, 2.0, 2.0], [1.0, 0.0, 3.0, 2.0], "xyxy")), 4)
    0.2564
    """
    height, width = _size_of(image_shape, "compute_ciou", bounding_box_format)
    given = isinstance(boxes1, Tensor) or isinstance(boxes2, Tensor)
    one, other = (
        ops.convert_to_tensor(convert_format(boxes, bounding_box_format, "xyxy", height, width))
        for boxes in (boxes1, boxes2)
    )
    size, other_size = one[..., 2:] - one[..., :2], other[..., 2:] - other[..., :2]
    sides = ops.relu(ops.minimum(one[..., 2:], other[..., 2:]) - ops.maximum(one[..., :2], other[..., :2]))
    around = ops.maximum(one[..., 2:], other[..., 2:]) - ops.minimum(one[..., :2], other[..., :2])
    common = ops.prod(sides, axis=-1)
    iou = common / (ops.prod(size, axis=-1) + ops.prod(other_size, axis=-1) - common + _EPSILON)
    apart = one[..., :2] + one[..., 2:] - other[..., :2] - other[..., 2:]
    distance = ops.sum(apart * apart, axis=-1) / 4 / (ops.sum(around * around, axis=-1) + _EPSILON)
    angles = [ops.arctan2(each[..., 0], each[..., 1] + _EPSILON) for each in (size, other_size)]
    shape = (angles[1] - angles[0]) ** 2 * (4 / np.pi**2)
    share = ops.stop_gradient(shape / (1 - iou + shape + _EPSILON))  # as in the authors' program
    found = iou - distance - share * shape
    return found if given else np.asarray(found)


def _size_of(image_shape: tuple[int, ...] | None, owner: str, *formats: str) -> tuple[None, None] | tuple[int, int]:
    """Return the height and width of the image.

    Raises:
        ValueError: a format is relative, and the image's shape is not given.
    """
    relative = [each for each in formats if each.lower().startswith("rel")]
    if relative and image_shape is None:
        raise ValueError(f"{owner}: with boxes as {relative[0]!r} image_shape=(height, width, channels) is needed.")
    return (None, None) if image_shape is None else (image_shape[0], image_shape[1])


def encode_box_to_deltas(
    anchors: TensorLike,
    boxes: TensorLike,
    anchor_format: str,
    box_format: str,
    encoding_format: str = "center_yxhw",
    variance: Sequence[float] | None = None,
    image_shape: tuple[int, ...] | None = None,
) -> Tensor | Array:
    """Return how boxes differ from anchors: what the box head of a detector learns.

    These are the distances of the centres by the size of the anchor, and the logarithms of the ratios of the sizes.

    Args:
        anchors: ``[n, 4]``.
        boxes: ``[n, 4]`` or ``[batch, n, 4]``.
        anchor_format, box_format: as for `convert_format`.
        encoding_format: the order of the deltas, "center_yxhw" or "center_xywh".
        variance: four numbers that the deltas are divided by.
        image_shape: (height, width, channels); needed for relative formats.

    Raises:
        ValueError: the encoding format is unknown, there are not four variances, or the image's shape is needed.

    >>> encode_box_to_deltas([[0.0, 0.0, 4.0, 4.0]], [[1.0, 0.0, 5.0, 4.0]], "xyxy", "xyxy").tolist()
    [[0.0, 0.25, 0.0, 0.0]]
    """
    factors = _factors("encode_box_to_deltas", "encoding_format", encoding_format, variance)
    height, width = _size_of(image_shape, "encode_box_to_deltas", anchor_format, box_format)
    given = isinstance(anchors, Tensor) or isinstance(boxes, Tensor)
    start = ops.convert_to_tensor(convert_format(anchors, anchor_format, encoding_format, height, width))
    wanted = ops.convert_to_tensor(convert_format(boxes, box_format, encoding_format, height, width))
    size = ops.maximum(start[..., 2:], _EPSILON)
    places = (wanted[..., :2] - start[..., :2]) / size
    sizes = ops.log(ops.maximum(wanted[..., 2:], _EPSILON) / size)
    found = ops.concatenate([places, sizes], axis=-1) / factors
    return found if given else np.asarray(found)


def decode_deltas_to_boxes(
    anchors: Any,
    boxes_delta: Any,
    anchor_format: str,
    box_format: str,
    encoded_format: str = "center_yxhw",
    variance: Sequence[float] | None = None,
    image_shape: tuple[int, ...] | None = None,
) -> Any:
    """Return the boxes that deltas stand for: the inverse of `encode_box_to_deltas`.

    Args:
        anchors: ``[n, 4]``, or a dict of such arrays, by level of a feature pyramid.
        boxes_delta: ``[n, 4]`` or ``[batch, n, 4]``, or a dict with the same keys.
        anchor_format, box_format: of the anchors and of the result, as for `convert_format`.
        encoded_format, variance, image_shape: as for `encode_box_to_deltas`.

    Raises:
        ValueError: the encoded format is unknown, there are not four variances, the image's shape is needed, or one
            argument is a dict and the other is not, or has other keys.

    >>> decode_deltas_to_boxes([[0.0, 0.0, 4.0, 4.0]], [[0.0, 0.25, 0.0, 0.0]], "xyxy", "xyxy").tolist()
    [[1.0, 0.0, 5.0, 4.0]]
    """
    options = (anchor_format, box_format, encoded_format, variance, image_shape)
    if isinstance(anchors, dict) or isinstance(boxes_delta, dict):
        keys = [sorted(map(str, each)) if isinstance(each, dict) else None for each in (anchors, boxes_delta)]
        if keys[0] != keys[1]:
            raise ValueError(
                "decode_deltas_to_boxes: anchors and boxes_delta must be dicts with the same keys, or both arrays; got "
                f"{keys[0] or 'an array'} and {keys[1] or 'an array'}."
            )
        return {level: decode_deltas_to_boxes(anchors[level], boxes_delta[level], *options) for level in anchors}
    factors = _factors("decode_deltas_to_boxes", "encoded_format", encoded_format, variance)
    height, width = _size_of(image_shape, "decode_deltas_to_boxes", anchor_format, box_format)
    given = isinstance(anchors, Tensor) or isinstance(boxes_delta, Tensor)
    start = ops.convert_to_tensor(convert_format(anchors, anchor_format, encoded_format, height, width))
    deltas = ops.cast(ops.convert_to_tensor(boxes_delta), start.dtype) * factors
    places = deltas[..., :2] * start[..., 2:] + start[..., :2]
    found = ops.concatenate([places, ops.exp(deltas[..., 2:]) * start[..., 2:]], axis=-1)
    return convert_format(found if given else np.asarray(found), encoded_format, box_format, height, width)


def _factors(owner: str, argument: str, form: str, variance: Sequence[float] | None) -> Tensor:
    """Return the variances, after checks of them and of the format of deltas."""
    if form.lower() not in ("center_yxhw", "center_xywh"):
        raise ValueError(f"{owner}: {argument} must be 'center_yxhw' or 'center_xywh', got {form!r}.")
    if variance is None:
        return ops.convert_to_tensor(np.ones(4, "float32"))
    if tuple(np.shape(variance)) != (4,):
        raise ValueError(f"{owner}: variance must be four numbers, got {variance!r}.")
    return ops.cast(ops.convert_to_tensor(variance), "float32")


def pad(
    boxes: TensorLike,
    top: int,
    left: int,
    height: int | None = None,
    width: int | None = None,
    bounding_box_format: str = "xyxy",
) -> Tensor | Array:
    """Return boxes in an image that was padded at its top and left.

    Args:
        boxes: ``[..., 4]``.
        top, left: rows and columns that were added, in pixels.
        height, width: accepted as in Keras; they are not needed.
        bounding_box_format: as for `convert_format`, but not relative: the size of the padded image is not known.

    Raises:
        ValueError: the format is relative.

    >>> pad([[10.0, 20.0, 30.0, 50.0]], top=3, left=4).tolist()
    [[14.0, 23.0, 34.0, 53.0]]
    """
    sides = _in_pixels("pad", boxes, bounding_box_format)
    found = sides + np.array([left, top, left, top], "float32")
    return convert_format(found, "xyxy", bounding_box_format)


def crop(
    boxes: TensorLike, top: int, left: int, height: int, width: int, bounding_box_format: str = "xyxy"
) -> Tensor | Array:
    """Return boxes in a part of an image, cut off at its edges.

    Args:
        boxes: ``[..., 4]``.
        top, left, height, width: the part, in pixels. A box outside of it has no area left.
        bounding_box_format: as for `convert_format`, but not relative: the size of the whole image is not known.

    Raises:
        ValueError: the format is relative.

    >>> crop([[10, 20, 50, 60], [70, 80, 100, 120]], top=10, left=20, height=40, width=30).tolist()
    [[0.0, 10.0, 30.0, 40.0], [30.0, 40.0, 30.0, 40.0]]
    """
    sides = _in_pixels("crop", boxes, bounding_box_format)
    found = sides - np.array([left, top, left, top], "float32")
    high = np.array([width, height, width, height], "float32")
    found = ops.clip(found, 0.0, high) if isinstance(found, Tensor) else np.clip(found, 0, high)
    return convert_format(found, "xyxy", bounding_box_format)


def _in_pixels(owner: str, boxes: TensorLike, form: str) -> Tensor | Array:
    relative, _ = known_format(form, "bounding_box_format")
    if relative:
        raise ValueError(
            f"{owner}: boxes as {form!r} need the size of the whole image. Convert them before: "
            f"convert_format(boxes, {form!r}, 'xyxy', height, width)."
        )
    return convert_format(boxes, form, "xyxy")


def affine_transform(
    boxes: TensorLike,
    angle: TensorLike,
    translate_x: TensorLike,
    translate_y: TensorLike,
    scale: TensorLike,
    shear_x: TensorLike,
    shear_y: TensorLike,
    height: int,
    width: int,
    center_x: float | None = None,
    center_y: float | None = None,
    bounding_box_format: str = "xyxy",
) -> Tensor | Array:
    """Return the upright boxes around boxes that were moved, rotated counter-clockwise, sheared and scaled.

    Args:
        boxes: ``[n, 4]`` or ``[batch, n, 4]``.
        angle, shear_x, shear_y: in degrees. These and the next three are numbers, or ``[batch]``.
        translate_x, translate_y: as parts of the image, whose last pixel is at 1.
        scale: the factor of sizes.
        height, width: of the image in pixels.
        center_x, center_y: the point that stays where it is, as parts of the image; by default its middle.
        bounding_box_format: as for `convert_format`. Keras takes "xyxy" alone.

    They are moved first, then rotated, sheared in y, sheared in x, and scaled, around the point that stays. They are
    not cut off at the image's edges; see `clip_to_image_size`. Numbers are those of Keras 3.15, but where `shear_x` is
    combined with an angle or with `shear_y`: there Keras has a different sign, so that areas change.

    Raises:
        ValueError: boxes have another rank, or a number of transformations that is not that of the batch.

    >>> affine_transform([[10.0, 20.0, 30.0, 50.0]], 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, height=100, width=200).tolist()
    [[54.75, 34.75, 64.75, 49.75]]
    """
    sides = convert_format(boxes, bounding_box_format, "xyxy", height, width)
    rank = sides.ndim
    if rank not in (2, 3):
        raise ValueError(f"affine_transform: boxes must be [n, 4] or [batch, n, 4], got {rank} axes.")
    turned, moved_x, moved_y, factor, slant_x, slant_y = _numbers(
        [angle, translate_x, translate_y, scale, shear_x, shear_y], sides
    )
    turned, slant_x, slant_y = (each * (np.pi / 180) for each in (turned, slant_x, slant_y))
    middle = [0.5 if each is None else each for each in (center_x, center_y)]
    middle_x, middle_y = middle[0] * (width - 1), middle[1] * (height - 1)
    left, top, right, bottom = parts_of(ops.convert_to_tensor(sides))
    x = ops.concatenate([left, right, left, right], axis=-1) - middle_x + moved_x * (width - 1)
    y = ops.concatenate([top, top, bottom, bottom], axis=-1) - middle_y + moved_y * (height - 1)
    x, y = ops.cos(turned) * x + ops.sin(turned) * y, ops.cos(turned) * y - ops.sin(turned) * x
    y = y + ops.tan(slant_y) * x
    x = x + ops.tan(slant_x) * y
    x, y = x * factor + middle_x, y * factor + middle_y
    corners = [ops.min(x, axis=-1), ops.min(y, axis=-1), ops.max(x, axis=-1), ops.max(y, axis=-1)]
    found = ops.stack(corners, axis=-1)
    found = found if isinstance(boxes, Tensor) else np.asarray(found)
    return convert_format(found, "xyxy", bounding_box_format, height, width)


def _numbers(given: list[TensorLike], sides: Any) -> list[Tensor]:
    """Return the numbers of transformations in a shape in which they go with boxes."""
    batched = len(sides.shape) == 3
    found: list[Tensor] = []
    for name, number in zip(("angle", "translate_x", "translate_y", "scale", "shear_x", "shear_y"), given, strict=True):
        each = ops.cast(ops.convert_to_tensor(number), "float32")
        allowed = ((), (1,), (None,), (sides.shape[0],)) if batched else ((), (1,), (None,))
        is_open = batched and sides.shape[0] is None and each.ndim == 1
        if each.shape not in allowed and not is_open:
            raise ValueError(
                f"affine_transform: {name} must be a number, or one for each image of a batch of boxes [batch, n, 4]; "
                f"got shape {each.shape} for boxes of shape {tuple(sides.shape)}."
            )
        found.append(ops.reshape(each, (-1, 1, 1) if batched else (1, 1)))
    return found


__all__ = [
    "affine_transform",
    "clip_to_image_size",
    "compute_ciou",
    "compute_iou",
    "convert_format",
    "crop",
    "decode_deltas_to_boxes",
    "encode_box_to_deltas",
    "pad",
]
