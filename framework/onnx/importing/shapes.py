"""Rules for shapes, axes, slices, and tensors that are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....engine import ops
from ....engine.graph import Tensor
from ....engine.ops.arrays.shaping import Squeeze
from ....engine.ops.base import TensorLike
from .node import Node, imports
from .reading import initializer_array
from .values import (
    LONG,
    Dims,
    NodeValue,
    dims_of,
    dtype_of,
    known,
    plain,
    rank_of,
    shape_of,
    sizes_of,
    tensor,
    transposed,
)

_END = np.iinfo(np.int64).max
_MOST_ENTRIES = 16  # of a vector that is a shape, or the widths of a padding


@imports("Constant")
def _constant(node: Node) -> NodeValue:
    from .runner import dense_array

    for name in ("value_float", "value_floats"):
        if name in node.attributes:
            return np.array(node.get(name), "float32")
    for name in ("value_int", "value_ints"):
        if name in node.attributes:
            return np.array(node.get(name), "int64")
    for name in ("value_string", "value_strings"):
        if name in node.attributes:
            return tensor(np.array(node.get(name), np.dtype("T")))
    if "sparse_value" in node.attributes:
        return dense_array(node.get("sparse_value"))
    return initializer_array(node.get("value"))


@imports("ConstantOfShape", dims=True)
def _constant_of_shape(node: Node, shape: TensorLike | Dims) -> NodeValue:
    value = node.get("value")
    filled = np.zeros((), "float32") if value is None else initializer_array(value).reshape(())
    return ops.broadcast_to(tensor(filled), tuple(dims_of(shape)))


@imports("Shape")
def _shape(node: Node, x: TensorLike) -> NodeValue:
    sizes = sizes_of(x) if not isinstance(x, Dims) else [len(x.entries)]
    found = sizes[node.get("start", 0) : node.get("end", _END)]
    return np.array(found, "int64") if all(isinstance(size, int) for size in found) else Dims(found)


@imports("Size")
def _size(node: Node, x: Tensor) -> NodeValue:
    sizes = sizes_of(x)
    if all(isinstance(size, int) for size in sizes):
        return np.array(np.prod(sizes, dtype="int64"))
    return ops.prod(ops.cast(ops.stack(sizes), "int64"))


@imports("Reshape", dims=True)
def _reshape(node: Node, x: TensorLike, shape: TensorLike | Dims | None = None) -> NodeValue:
    if isinstance(x, Dims):
        target = node.ints(shape, "shape")
        if target in ([-1], [len(x.entries)]):
            return Dims(x.entries)
        if not target:
            return Dims(x.entries, scalar=True)
    wanted = node.get("shape") if shape is None else dims_of(shape)
    x = tensor(plain(x))
    if not node.get("allowzero"):
        sizes = sizes_of(x) if any(isinstance(size, int) and size == 0 for size in wanted) else []
        wanted = [sizes[axis] if isinstance(size, int) and size == 0 else size for axis, size in enumerate(wanted)]
    return ops.reshape(x, tuple(wanted))


@imports("Flatten")
def _flatten(node: Node, x: Tensor) -> NodeValue:
    axis = node.get("axis", 1)
    sizes = sizes_of(x)
    axis = axis + len(sizes) if axis < 0 else axis
    before, behind = sizes[:axis], sizes[axis:]
    rows: int | Tensor = 1
    for size in before:
        rows = rows * size
    if all(isinstance(size, int) for size in behind):
        return ops.reshape(x, (rows, int(np.prod(behind, dtype="int64"))))
    return ops.reshape(x, (rows, -1))


def _axes(node: Node, axes: TensorLike | None) -> list[int] | None:
    """Return the axes, which were an attribute before opset 13."""
    if axes is not None:
        return node.ints(axes, "axes")
    given = node.get("axes")
    return None if given is None else [int(axis) for axis in given]


@imports("Squeeze", dims=True)
def _squeeze(node: Node, x: TensorLike, axes: Sequence[int] | None = None) -> NodeValue:
    found = _axes(node, axes)
    if isinstance(x, Dims):
        return Dims(x.entries, scalar=True)
    if found is None:  # also axes whose size, 1, is known at run time only
        return ops.apply(Squeeze(None), tensor(x))
    return ops.squeeze(tensor(x), found) if found else x


@imports("Unsqueeze", dims=True)
def _unsqueeze(node: Node, x: TensorLike, axes: Sequence[int] | None = None) -> NodeValue:
    found = _axes(node, axes) or []
    if isinstance(x, Dims) and x.scalar and found in ([0], [-1]):
        return Dims(x.entries)
    return ops.expand_dims(tensor(plain(x)), found) if found else x


@imports("Transpose", weights=True)
def _transpose(node: Node, x: TensorLike) -> NodeValue:
    axes = node.get("perm")
    if rank_of(x) == 2 and list(axes or (1, 0)) == [1, 0]:
        return transposed(x)
    return ops.transpose(x, list(axes) if axes else None)


@imports("Expand", dims=True)
def _expand(node: Node, x: Tensor, shape: TensorLike | Dims) -> NodeValue:
    x = tensor(plain(x))
    wanted = dims_of(shape)
    sizes = sizes_of(x)
    count = max(len(wanted), len(sizes))
    wanted = [1] * (count - len(wanted)) + wanted
    sizes = [1] * (count - len(sizes)) + sizes
    if all(isinstance(size, int) for size in sizes) or all(isinstance(size, int) for size in wanted):
        joined = [own if isinstance(want, int) and want == 1 else want for own, want in zip(sizes, wanted, strict=True)]
        return ops.broadcast_to(x, tuple(joined))
    return ops.add(x, ops.zeros(tuple(wanted), dtype=x.dtype))


@imports("Concat", dims=True)
def _concat(node: Node, *inputs: TensorLike) -> NodeValue:
    if any(isinstance(each, Dims) for each in inputs) or _is_partly_known(inputs):
        return Dims([entry for each in inputs for entry in dims_of(each)])
    tensors = [tensor(each) for each in inputs]
    return ops.concatenate(tensors, node.get("axis", 1)) if len(tensors) > 1 else tensors[0]


def _is_partly_known(inputs: Sequence[Any]) -> bool:
    """Test whether short vectors of int64 are joined, some of them known: parts of a shape, or widths of a padding."""
    if len(inputs) < 2 or any(each.dtype != LONG or each.shape is None or len(each.shape) != 1 for each in inputs):
        return False
    lengths = [each.shape[0] for each in inputs]
    return None not in lengths and sum(lengths) <= _MOST_ENTRIES and any(known(each) is not None for each in inputs)


@imports("Split")
def _split(node: Node, x: Tensor, split: TensorLike | Dims | None = None) -> NodeValue:
    axis, count = node.get("axis", 0), node.outputs
    sizes = node.ints(split, "split") if split is not None else node.get("split")
    if sizes is None:
        size = shape_of(x)[axis]
        if size is None:
            return tuple(ops.split(x, count, axis))
        count = node.get("num_outputs", count)
        part = -(-size // count)
        sizes = [min(part, max(size - k * part, 0)) for k in range(count)]
    bounds = np.cumsum(sizes)[:-1].tolist()
    return tuple(ops.split(x, bounds, axis)) if len(sizes) > 1 else (x,)


@imports("Slice", dims=True)
def _slice(
    node: Node,
    x: TensorLike,
    starts: TensorLike | Dims | None = None,
    ends: TensorLike | Dims | None = None,
    axes: Sequence[int] | None = None,
    steps: object = None,
) -> NodeValue:
    first = list(node.get("starts")) if starts is None else dims_of(starts)
    last = list(node.get("ends")) if ends is None else dims_of(ends)
    along = _axes(node, axes)
    along = list(range(len(first))) if along is None else along
    pace = [1] * len(first) if steps is None else dims_of(steps)
    if isinstance(x, Dims):
        return Dims(x.entries[_python_slice(first[0], last[0], pace[0])]) if first else x
    x = tensor(x)
    key: list[object] = [slice(None)] * rank_of(x)
    for axis, start, end, step in zip(along, first, last, pace, strict=True):
        size = shape_of(x)[axis]
        key[axis] = _python_slice(*_clamped(start, end, step, size), step)
    return x[tuple(key)]


def _clamped(start: object, end: object, step: object, size: int) -> tuple[object, object]:
    """Return bounds of ints as Python has them: None where a negative step ends before the front."""
    if isinstance(end, int) and isinstance(step, int) and step < 0:
        lowest = -_END if size is None else -size
        if end < lowest or end <= -_END + 1:
            end = None
    if isinstance(start, int) and isinstance(step, int) and step < 0 and start >= (_END if size is None else size):
        start = None
    if isinstance(end, int) and isinstance(step, int) and step > 0 and end >= 2**31 - 1:
        end = None
    return start, end


def _python_slice(start: object, end: object, step: object) -> slice:
    return slice(start, end, step)


@imports("Gather", dims=True)
def _gather(node: Node, x: TensorLike, indices: object) -> NodeValue:
    if isinstance(x, Dims):
        places = known(indices)
        if places is not None:
            found = [x.entries[int(place)] for place in places.reshape(-1)]
            return Dims(found, scalar=places.ndim == 0)
    return ops.take(tensor(plain(x)), tensor(plain(indices)), axis=node.get("axis", 0))


@imports("GatherElements")
def _gather_elements(node: Node, x: Tensor, indices: TensorLike) -> NodeValue:
    axis = node.get("axis", 0) % rank_of(x)
    own, other = shape_of(x), shape_of(indices)
    for k, (a, b) in enumerate(zip(own, other, strict=True)):
        if k != axis and a != b and b is not None:  # the indices may be smaller
            x = ops.take(x, np.arange(b, dtype="int32"), axis=k)
    return ops.take_along_axis(x, indices, axis=axis)


@imports("GatherND")
def _gather_nd(node: Node, x: Tensor, indices: TensorLike) -> NodeValue:
    return ops.gather_nd(x, indices, batch_dims=node.get("batch_dims", 0))


_REDUCTIONS = {"none": None, "add": "add", "mul": "mul", "max": "max", "min": "min"}


@imports("ScatterND")
def _scatter_nd(node: Node, x: Tensor, indices: TensorLike, updates: TensorLike) -> NodeValue:
    return scattered(node, x, indices, updates, node.get("reduction", "none"))


def scattered(node: Node, x: Tensor, indices: TensorLike, updates: TensorLike, how: str) -> Tensor:
    """Return x with updates at places, put together as `how` says."""
    if how == "none":
        return ops.scatter_update(x, indices, updates)
    if how == "add":
        return ops.scatter_add(x, indices, updates)
    if how in ("max", "min"):
        apply = ops.tensor_scatter_nd_max if how == "max" else ops.tensor_scatter_nd_min
        return apply(x, indices, updates)
    return ops.scatter_update(x, indices, updates, reduction="mul")


@imports("ScatterElements", "Scatter")
def _scatter_elements(node: Node, x: Tensor, indices: TensorLike, updates: TensorLike) -> NodeValue:
    """Return the places of the elements as rows of indices."""
    axis = node.get("axis", 0) % rank_of(x)
    size = sizes_of(x)[axis]
    places = ops.cast(indices, "int64")
    places = ops.where(ops.less(places, 0), ops.add(places, ops.cast(size, "int64")), places)
    sizes = sizes_of(indices)
    columns: list[Tensor] = []
    for k, length in enumerate(sizes):
        if k == axis:
            columns.append(places)
            continue
        along = ops.cast(ops.arange(length), "int64")
        along = ops.expand_dims(along, [j for j in range(len(sizes)) if j != k]) if len(sizes) > 1 else along
        columns.append(ops.broadcast_to(along, tuple(sizes)))
    return scattered(node, x, ops.stack(columns, -1), updates, node.get("reduction", "none"))


@imports("Compress")
def _compress(node: Node, x: Tensor, condition: Tensor) -> NodeValue:
    axis = node.get("axis")
    if axis is None:
        x, axis = ops.reshape(x, (-1,)), 0
    (places,) = ops.nonzero(condition)
    return ops.take(x, places, axis=axis)


@imports("Tile")
def _tile(node: Node, x: Tensor, repeats: TensorLike | Dims) -> NodeValue:
    return ops.tile(x, tuple(dims_of(repeats)))


@imports("Pad", dims=True)
def _pad(
    node: Node,
    x: TensorLike | Dims,
    pads: TensorLike | Dims | None = None,
    value: TensorLike | None = None,
    axes: Sequence[int] | None = None,
) -> NodeValue:
    mode = node.get("mode", "constant")
    x = tensor(plain(x))
    rank = rank_of(x)
    given = list(node.get("pads") or node.get("paddings")) if pads is None else dims_of(pads)
    along = list(range(rank)) if axes is None else [axis % rank for axis in node.ints(axes, "axes")]
    widths: list[list[object]] = [[0, 0] for _ in range(rank)]
    for k, axis in enumerate(along):
        widths[axis] = [given[k], given[k + len(along)]]
    x, widths = _without_cut(x, widths)
    if mode == "constant":
        filled = node.get("value", 0.0) if value is None else ops.reshape(tensor(plain(value)), ())
        return ops.pad(x, widths, "constant", constant_values=filled)
    return ops.pad(x, widths, {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}[mode])


def _without_cut(x: Tensor, widths: list[list[Any]]) -> tuple[Tensor, list[list[object]]]:
    """Cut off the cells of `x` that negative widths remove, and return the widths without these."""
    if not any(isinstance(width, int) and width < 0 for pair in widths for width in pair):
        return x, widths
    key = tuple(slice(-min(before, 0), min(behind, 0) or None) for before, behind in widths)
    return x[key], [[max(before, 0), max(behind, 0)] for before, behind in widths]


@imports("Range")
def _range(node: Node, start: Tensor, limit: TensorLike, delta: TensorLike) -> NodeValue:
    if all(known(each) is not None for each in (start, limit, delta)):
        first, last, step = (known(each).reshape(())[()] for each in (start, limit, delta))
        count = max(int(np.ceil((last - first) / step)), 0)
        return (np.arange(count) * step + first).astype(start.dtype)
    return ops.arange(*[ops.reshape(each, ()) for each in (start, limit, delta)], dtype=start.dtype)


@imports("EyeLike")
def _eye_like(node: Node, x: Tensor) -> NodeValue:
    dtype = dtype_of(node.get("dtype")) if node.get("dtype") else x.dtype
    rows, columns = sizes_of(x)
    return ops.eye(rows, columns, node.get("k", 0), dtype=dtype)


@imports("Trilu")
def _trilu(node: Node, x: Tensor, k: TensorLike | Dims | None = None) -> NodeValue:
    offset = 0 if k is None else node.ints(k, "diagonal")[0]
    return ops.triu(x, offset) if node.get("upper", 1) else ops.tril(x, offset)


@imports("OneHot")
def _one_hot(node: Node, indices: TensorLike, depth: TensorLike, values: Sequence[Tensor]) -> NodeValue:
    count = node.ints(ops.cast(depth, "int64"), "depth")[0]
    axis = node.get("axis", -1)
    places = ops.cast(indices, "int64")
    places = ops.where(ops.less(places, 0), ops.add(places, count), places)
    hot = ops.one_hot(places, count, axis=axis, dtype="bool")
    return ops.where(hot, values[1], values[0])


@imports("NonZero")
def _nonzero(node: Node, x: Tensor) -> NodeValue:
    if not rank_of(x):
        return ops.cast(ops.zeros((0, 1)), "int64") if not known(x) else np.zeros((0, 1), "int64")
    return ops.cast(ops.stack(list(ops.nonzero(x))), "int64")


@imports("ReverseSequence")
def _reverse_sequence(node: Node, x: Tensor, lengths: TensorLike) -> NodeValue:
    return ops.reverse_sequence(
        x, ops.cast(lengths, "int32"), seq_axis=node.get("time_axis", 0), batch_axis=node.get("batch_axis", 1)
    )


@imports("DepthToSpace")
def _depth_to_space(node: Node, x: Tensor) -> NodeValue:
    size = node.get("blocksize")
    batch, channels, height, width = sizes_of(x)
    kept = channels // (size * size)
    if node.get("mode", "DCR") == "DCR":
        parts = ops.reshape(x, (batch, size, size, kept, height, width))
        turned = ops.transpose(parts, (0, 3, 4, 1, 5, 2))
    else:
        parts = ops.reshape(x, (batch, kept, size, size, height, width))
        turned = ops.transpose(parts, (0, 1, 4, 2, 5, 3))
    return ops.reshape(turned, (batch, kept, height * size, width * size))


@imports("SpaceToDepth")
def _space_to_depth(node: Node, x: Tensor) -> NodeValue:
    size = node.get("blocksize")
    batch, channels, height, width = sizes_of(x)
    parts = ops.reshape(x, (batch, channels, height // size, size, width // size, size))
    turned = ops.transpose(parts, (0, 3, 5, 1, 2, 4) if node.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4))
    return ops.reshape(turned, (batch, channels * size * size, height // size, width // size))


@imports("Unique")
def _unique(node: Node, x: Tensor) -> NodeValue:
    """Find unique values: with `sorted` in ascending order, else in the order in which they come up."""
    axis = node.get("axis")
    values, first, inverse, counts = ops.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = ops.reshape(inverse, (-1,))
    if not node.get("sorted", 1):
        order = ops.argsort(first)
        place = ops.argsort(order)
        values = ops.take(values, order, axis=0 if axis is None else axis)
        first, counts, inverse = ops.take(first, order), ops.take(counts, order), ops.take(place, inverse)
    return (values, *[ops.cast(each, "int64") for each in (first, inverse, counts)])


@imports("TensorScatter")
def _tensor_scatter(node: Node, past: TensorLike, update: TensorLike, places: TensorLike | None = None) -> NodeValue:
    """Write each sample's update at its own place of the axis, from the front again if `mode` is circular."""
    axis = node.get("axis", -2) % rank_of(past)
    batch, length, size = shape_of(past)[0], shape_of(update)[axis], shape_of(past)[axis]
    if None in (batch, length, size):
        raise ValueError("the sizes of a cache must be known")
    start = ops.zeros((batch,), "int64") if places is None else ops.cast(places, "int64")
    along = ops.add(ops.expand_dims(start, 1), np.arange(length, dtype="int64"))
    along = ops.mod(along, size) if node.get("mode", "linear") == "circular" else along
    first = np.broadcast_to(np.arange(batch, dtype="int64")[:, None], (batch, length))
    order = [0, axis, *[k for k in range(rank_of(past)) if k not in (0, axis)]]
    turned = ops.scatter_update(
        ops.transpose(past, order), ops.stack([tensor(first.copy()), along], -1), ops.transpose(update, order)
    )
    return ops.transpose(turned, np.argsort(order).tolist())


@imports("CenterCropPad")
def _center_crop_pad(node: Node, x: Tensor, shape: TensorLike | Dims) -> NodeValue:
    wanted = node.ints(shape, "shape")
    axes = node.get("axes") or list(range(rank_of(x)))
    for axis, want in zip(axes, wanted, strict=True):
        axis %= rank_of(x)
        size = node.ints(np.array(shape_of(x)[axis]), "input size")[0]
        if want < size:
            start = (size - want) // 2
            x = ops.take(x, np.arange(start, start + want, dtype="int32"), axis=axis)
        elif want > size:
            before = (want - size) // 2
            widths = [[before, want - size - before] if k == axis else [0, 0] for k in range(rank_of(x))]
            x = ops.pad(x, widths)
    return x


@imports("StringConcat")
def _string_concat(node: Node, x: Tensor, y: Tensor) -> NodeValue:
    return ops.add(x, y)


@imports("RegexFullMatch")
def _regex_full_match(node: Node, x: Tensor) -> NodeValue:
    return ops.strings.regex_full_match(x, node.get("pattern"))


@imports("StringSplit")
def _string_split(node: Node, x: Tensor) -> NodeValue:
    separator = node.get("delimiter") or None
    most = node.get("maxsplit", -1)
    found = known(x)
    if found is None:
        parts = ops.strings.split(x, separator, most)
        return parts[0], ops.cast(parts[1], "int64")
    split = [str(text).split(separator, most) for text in found.reshape(-1)]
    widest = max([len(each) for each in split], default=0)
    padded = np.array([each + [""] * (widest - len(each)) for each in split], np.dtype("T"))
    counts = np.array([len(each) for each in split], "int64").reshape(found.shape)
    return tensor(padded.reshape((*found.shape, widest))), counts


@imports("StringNormalizer")
def _string_normalizer(node: Node, x: Tensor) -> NodeValue:
    case, sensitive = node.get("case_change_action", "NONE"), node.get("is_case_sensitive", 0)
    stop = node.get("stopwords") or []
    found = known(x)
    if found is None:
        raise ValueError("its texts must be known when the model is called")
    fold = (lambda text: text) if sensitive else str.lower
    left_out = {fold(word) for word in stop}
    rows = found.reshape(-1)
    kept = [str(text) for text in rows if fold(str(text)) not in left_out]
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(case, str)
    result = np.array([change(text) for text in kept] or [""], np.dtype("T"))
    return tensor(result.reshape((1, -1)) if found.ndim == 2 else result)
