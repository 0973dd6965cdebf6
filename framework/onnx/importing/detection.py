"""Rules that sample images at points and choose boxes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ....engine import ops
from ....engine.graph import Tensor
from ....engine.ops.base import TensorLike
from .images import cubic_weights
from .node import Node, imports
from .values import NodeValue, known, shape_of, tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...structures import Array


@imports("GridSample")
def _grid_sample(node: Node, x: Tensor, grid: Tensor) -> Tensor | None:
    """Return values of (batch, channels, *sizes) at points in [-1, 1], whose coordinates come last axis first."""
    given = str(node.get("mode", "linear"))
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(given, given)
    aligned, how = bool(node.get("align_corners", 0)), node.get("padding_mode", "zeros")
    sizes = [int(size or 0) for size in shape_of(x)[2:]]
    rank = len(sizes)
    points = [_unscaled(grid[..., rank - 1 - k], sizes[k], aligned) for k in range(rank)]
    if mode == "nearest":
        return _picked(x, [ops.round(each) for each in points], sizes, how, aligned)
    if mode == "linear" and how != "zeros":
        points = [_inside(each, size, how, aligned) for each, size in zip(points, sizes, strict=True)]
    reach = range(2) if mode == "linear" else range(-1, 3)
    floors = [ops.floor(each) for each in points]
    parts = [_weights(ops.subtract(p, f), mode, reach) for p, f in zip(points, floors, strict=True)]
    total: Tensor | None = None
    for cell in itertools.product(range(len(reach)), repeat=rank):
        places = [ops.add(floor, float(reach[step])) for floor, step in zip(floors, cell, strict=True)]
        value = _picked(x, places, sizes, how, aligned)
        for part, step in zip(parts, cell, strict=True):
            value = ops.multiply(value, ops.expand_dims(ops.cast(part[step], x.dtype), 1))
        total = value if total is None else ops.add(total, value)
    return total


def _unscaled(point: TensorLike, size: int, aligned: bool) -> Tensor:
    """Return a coordinate in [-1, 1] as a place among `size` cells."""
    if aligned:
        return ops.multiply(ops.add(point, 1.0), (size - 1) / 2)
    return ops.multiply(ops.subtract(ops.multiply(ops.add(point, 1.0), float(size)), 1.0), 0.5)


def _weights(distance: Tensor, mode: str, reach: range) -> list[Tensor]:
    if mode == "linear":
        return [ops.subtract(1.0, distance), distance]
    return [cubic_weights(ops.abs(ops.subtract(distance, float(step)))) for step in reach]


def _inside(place: TensorLike, size: int, how: str, aligned: bool) -> Tensor:
    """Return a place outside moved to the border, or mirrored there."""
    if how == "reflection":
        low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
        span = high - low
        if span <= 0:
            return ops.zeros_like(place)
        turned = ops.mod(ops.abs(ops.subtract(place, low)), 2 * span)
        place = ops.add(ops.minimum(turned, ops.subtract(2 * span, turned)), low)
    return ops.clip(place, 0.0, size - 1.0)


def _picked(x: Tensor, places: list[Tensor], sizes: list[int], how: str, aligned: bool) -> Tensor:
    """Return the cells at whole places; zeros outside, or what is at the border or its mirror."""
    valid: Tensor | None = None
    index: Any = 0
    for place, size in zip(places, sizes, strict=True):
        if how == "zeros":
            within = ops.logical_and(ops.greater_equal(place, 0.0), ops.less_equal(place, size - 1.0))
            valid = within if valid is None else ops.logical_and(valid, within)
            place = ops.clip(place, 0.0, size - 1.0)
        else:
            place = (
                ops.round(_inside(place, size, how, aligned)) if how == "border" else _mirrored(place, size, aligned)
            )
        index = ops.add(ops.multiply(index, size), ops.cast(place, "int32"))
    batch, channels = shape_of(x)[:2]
    flat = ops.reshape(x, (batch, channels, -1))
    cells = cast(tuple[int, ...], index.shape)[1:]
    spread = ops.broadcast_to(ops.reshape(index, (batch, 1, -1)), (batch, channels, int(np.prod(cells))))
    found = ops.reshape(ops.take_along_axis(flat, spread, axis=2), (batch, channels, *cells))
    return found if valid is None else ops.where(ops.expand_dims(valid, 1), found, ops.zeros_like(found))


def _mirrored(place: TensorLike, size: int, aligned: bool) -> Tensor:
    return ops.clip(ops.round(_inside(place, size, "reflection", aligned)), 0.0, size - 1.0)


# --- boxes ----------------------------------------------------------------------------------------------------------


@imports("NonMaxSuppression")
def _non_max_suppression(
    node: Node,
    boxes: object,
    scores: TensorLike,
    most: TensorLike | None = None,
    overlap: TensorLike | None = None,
    least: TensorLike | None = None,
) -> Array:
    """Select boxes where they and their scores are known, box by box in the order of the scores."""
    all_boxes, all_scores = known(boxes), known(scores)
    if all_boxes is None or all_scores is None:
        raise NotImplementedError("NonMaxSuppression over values that are known at run time only")
    limit = 0 if most is None else node.ints(most, "max_output_boxes_per_class")[0]
    bound = 0.0 if overlap is None else node.floats(overlap, "iou_threshold")[0]
    lowest = -np.inf if least is None else node.floats(least, "score_threshold")[0]
    chosen: list[list[int]] = []
    for batch in range(all_scores.shape[0]):
        corners = _corners(all_boxes[batch], node.get("center_point_box", 0))
        for group in range(all_scores.shape[1]):
            row = all_scores[batch, group]
            kept: list[int] = []
            for place in np.argsort(-row, kind="stable"):
                if len(kept) >= limit or row[place] <= lowest:
                    break
                if all(_overlap(corners[place], corners[other]) <= bound for other in kept):
                    kept.append(int(place))
            chosen += [[batch, group, place] for place in kept]
    return np.array(chosen, "int64").reshape(-1, 3)


def _corners(boxes: Array, centred: int) -> Array:
    if centred:
        x, y, width, height = boxes.T
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], 1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], 1)


def _overlap(a: Array, b: Array) -> float:
    """Return the area that two boxes share, over that which they cover."""
    shared = np.prod(np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0))
    whole = np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - shared
    return float(shared / whole) if whole > 0 else 0.0


@imports("TfIdfVectorizer")
def _tf_idf_vectorizer(node: Node, x: Tensor) -> NodeValue:
    """Count n-grams, with gaps of up to `max_skip_count`, and weigh the counts."""
    found = known(x)
    if found is None:
        raise NotImplementedError("TfIdfVectorizer over values that are known at run time only")
    pool = node.get("pool_strings") or node.get("pool_int64s")
    starts = list(node.get("ngram_counts"))
    indexes, weights = list(node.get("ngram_indexes")), node.get("weights")
    table: dict[tuple[str | int, ...], int] = {}
    number = 0
    for length, first in enumerate(starts, start=1):
        last = starts[length] if length < len(starts) else len(pool)
        for place in range(first, last, length):
            if node.get("min_gram_length") <= length <= node.get("max_gram_length"):
                table[tuple(pool[place : place + length])] = number
            number += 1
    rows = found.reshape(1, -1) if found.ndim == 1 else found
    result = np.zeros((len(rows), max(indexes) + 1), "float32")
    for k, row in enumerate(rows):
        for gram in _grams(node, [str(each) if isinstance(each, str) else int(each) for each in row]):
            if gram in table:
                result[k, indexes[table[gram]]] += 1
    result = _weighted(node.get("mode"), result, indexes, weights)
    return result[0] if found.ndim == 1 else result


def _grams(node: Node, row: list[str | int]) -> Iterator[tuple[str | int, ...]]:
    for length in range(node.get("min_gram_length"), node.get("max_gram_length") + 1):
        for gap in range(1, node.get("max_skip_count") + 2 if length > 1 else 2):
            for first in range(len(row) - gap * (length - 1)):
                yield tuple(row[first + gap * k] for k in range(length))


def _weighted(mode: str, counts: Array, indexes: list[int], weights: Sequence[float]) -> Array:
    factors = np.ones(counts.shape[1], "float32")
    if weights:
        for place, weight in zip(indexes, weights, strict=True):
            factors[place] = weight
    if mode == "TF":
        return counts
    return (counts > 0) * factors if mode == "IDF" else counts * factors


@imports("RoiAlign")
def _roi_align(node: Node, x: Tensor, regions: TensorLike, batches: TensorLike) -> Tensor:
    """Return the mean (or maximum) of samples in each cell of each region, interpolated linearly."""
    image, boxes, rows = known(x), known(regions), known(batches)
    if image is None or boxes is None or rows is None:
        raise NotImplementedError("RoiAlign over values that are known at run time only")
    how = node.get("coordinate_transformation_mode", "half_pixel" if node.version >= 16 else "output_half_pixel")
    height, width = node.get("output_height", 1), node.get("output_width", 1)
    ratio, scale = node.get("sampling_ratio", 0), node.get("spatial_scale", 1.0)
    shift = 0.5 if how == "half_pixel" else 0.0
    result = np.zeros((len(boxes), image.shape[1], height, width), image.dtype)
    for k, (box, row) in enumerate(zip(boxes, rows.reshape(-1), strict=True)):
        left, top, right, bottom = box * scale - shift
        wide, high = right - left, bottom - top
        if how != "half_pixel":
            wide, high = max(wide, 1.0), max(high, 1.0)
        count = (ratio or int(np.ceil(high / height)), ratio or int(np.ceil(wide / width)))
        ys = top + (np.arange(height * count[0]) + 0.5) * high / height / count[0]
        xs = left + (np.arange(width * count[1]) + 0.5) * wide / width / count[1]
        result[k] = _cells(node, image[int(row)], ys, xs, (height, count[0], width, count[1]))
    return tensor(result)


def _cells(node: Node, image: Array, ys: Array, xs: Array, shape: tuple[int, int, int, int]) -> Array:
    (y, y1, fy, oy), (x, x1, fx, ox) = _between(ys, image.shape[1]), _between(xs, image.shape[2])
    corners = [
        (image[:, a][:, :, b], wa[:, None] * wb[None])
        for a, wa in ((y, 1 - fy), (y1, fy))
        for b, wb in ((x, 1 - fx), (x1, fx))
    ]
    outside = oy[:, None] | ox[None]
    parts = [np.where(outside, 0, value * weight) for value, weight in corners]
    if node.get("mode", "avg") == "max":
        whole = np.max(parts, 0)
        return whole.reshape(-1, *shape).max((2, 4))
    return np.sum(parts, 0).reshape(-1, *shape).mean((2, 4))


def _between(points: Array, size: int) -> tuple[Array, Array, Array, Array]:
    outside = (points < -1) | (points > size)
    inside = np.clip(points, 0, size - 1)
    low = np.floor(inside).astype(int)
    return low, np.minimum(low + 1, size - 1), inside - low, outside
