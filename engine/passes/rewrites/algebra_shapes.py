"""Rules of shapes: chains of transposes, reshapes and broadcasts, parts of what was joined, known sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from ...common.dtypes import accumulator_of
from ...common.identity import is_same
from ...graph.graph import Operation
from ...graph.kernel_roles import KernelRole
from ...graph.op import Op
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.axes import Transpose
from ...ops.arrays.creation import Fill
from ...ops.arrays.gathering import PutRows
from ...ops.arrays.indexing import GetItem, Items, PutItem, SliceItem
from ...ops.arrays.joining import Concatenate, Split, Stack, Unstack
from ...ops.arrays.shaping import BroadcastTo, DimOf, ExpandDims, Reshape, SizeOf, Squeeze, elements
from ...ops.base import Constant
from ...ops.linear_algebra.products import BatchMatMul, FlattenRows, MatMul, UnflattenRows
from ...ops.math.reduced import Sum
from ...ops.run_time_shapes import ReshapeToShape, SumToShape
from ..framework.patterns import ANY, Match, constant, constant_of, only_use, op, tensor
from ..framework.rules import Rewrite, Rule, Site, shape_of

_RESHAPING = (ExpandDims, Reshape, ReshapeToShape, Squeeze)

# --- shapes that are known ------------------------------------------------------------------------------------------


def _known_axis(match: Match, site: Site) -> Rewrite:
    shape = match["x"].shape
    size = None if shape is None else shape[match["size"].op.axis]
    return None if size is None else Constant(np.int32(size))


def _known_size(match: Match, site: Site) -> Rewrite:
    known = shape_of(match["x"])
    # More elements than int32 can hold are an error of the run.
    return None if known is None or elements(known) > 2**31 - 1 else Constant(np.int32(elements(known)))


def _known_shape(match: Match, site: Site) -> Rewrite:
    """Rewrite a reshape to a vector that is known to one whose shape is part of the op: a view, without numbers."""
    sizes, wanted = shape_of(match["x"]), tuple([int(size) for size in match["shape"]])
    fits = sizes is not None and min(wanted, default=0) >= 0 and elements(sizes) == elements(wanted)
    return site.make(Reshape(wanted), match["x"]) if fits else None


def _known_entries(match: Match, site: Site) -> Rewrite:
    """Make sizes that are constants part of the op."""
    op, (x, *entries) = match["shaped"].op, match["shaped"].inputs
    sizes = [constant_of(tensor, site) for tensor in entries]
    if any(size is None for size in sizes):
        return None
    remaining = iter(sizes)
    filled = tuple([int(next(remaining)) if dim is None else dim for dim in op.shape])
    if any(dim < 0 for dim in filled):  # what can't be, fails when it runs
        return None
    resized: Op = type(op)(filled)
    return site.make(resized, x)


def _known_rows(match: Match, site: Site) -> Rewrite:
    """Rewrite all axes but the last to one, where their sizes are known."""
    x, shape = match["x"], shape_of(match["x"])
    if not shape:
        return None
    return x if len(shape) == 2 else site.make(Reshape((math.prod(shape[:-1]), shape[-1])), x)


def _rows_put_back(match: Match, site: Site) -> Rewrite:
    """Put rows back under axes whose sizes are known now."""
    x, known = match["x"], shape_of(match["x"])
    if known is None:
        return None
    wanted = (*[int(size) for size in match["shape"][:-1]], known[-1])
    return x if known == wanted else site.make(Reshape(wanted), x)


# --- chains ---------------------------------------------------------------------------------------------------------


def _no_transpose(match: Match, site: Site) -> Rewrite:
    """Drop a transpose that changes nothing."""
    x = match["x"]
    axes = () if x.shape is None else match["transpose"].op.order(len(x.shape))
    return x if x.shape is not None and axes == tuple(range(len(axes))) else None


def _one_transpose(match: Match, site: Site) -> Rewrite:
    """Rewrite a transpose of a transpose to one."""
    x = match["x"]
    if x.shape is None:
        return None
    axes, before = (match[name].op.order(len(x.shape)) for name in ("transpose", "inner"))
    return site.make(Transpose(tuple([before[axis] for axis in axes])), x)


def _sum_of_origin(match: Match, site: Site) -> Rewrite:
    """Sum what was transposed, which kernels read as it is, and transpose what is left, which is smaller."""
    x, operation = match["x"], match["sum"]
    total = operation.op if isinstance(operation.op, Sum) else _sum_over_first_axes(operation.op, operation.inputs[0])
    if total is None or x.shape is None or total.axes is None or total.keepdims:
        return None
    order = match["transpose"].op.order(len(x.shape))
    left = [axis for place, axis in enumerate(order) if place not in total.axes]
    axes = tuple(sorted([order[place] for place in total.axes]))
    summed = site.make(replace(total, axes=axes), x)
    kept = sorted(left)
    return summed if left == kept else site.make(Transpose(tuple([kept.index(axis) for axis in left])), summed)


def _sum_over_first_axes(op: SumToShape, x: Symbol) -> Sum | None:
    """Return the sum that undoes broadcasting of `x` along the first axes; None for any other."""
    if x.shape is None or op.shape is None or None in op.shape or x.shape[len(x.shape) - len(op.shape) :] != op.shape:
        return None
    axes = tuple(range(len(x.shape) - len(op.shape)))
    return Sum(axes, False, accumulator_of(x.dtype)) if axes else None


def _reshapes(match: Match, site: Site) -> Rewrite:
    """Rewrite reshapes of reshapes to one, or none. Where a size is unknown the first may fail, so that it stays."""
    op, inputs = match["reshape"].op, match["reshape"].inputs
    spec = op.infer(*[tensor.spec for tensor in inputs])
    origin = inputs[0]
    while origin.operation.op.kernel_role is KernelRole.RESHAPE and shape_of(origin.operation.inputs[0]) is not None:
        origin = origin.operation.inputs[0]
    if shape_of(origin) is None or spec.shape is None or None in spec.shape:
        return None
    if origin.shape == spec.shape:
        return origin
    return None if origin is inputs[0] else site.make(Reshape(spec.shape), origin)


def _key_of_axes(match: Match, site: Site) -> Rewrite:
    """Rewrite ``x[:, None]``, ``x[:, 0]`` of an axis of size 1, and their gradients, to reshapes."""
    op, x = match["item"].op, match["x"]
    whole = x.shape if isinstance(op, GetItem) else op.shape
    axes = None if whole is None else _reshaped_axes(op.items, whole)
    if axes is None:
        return None
    taken, added = axes
    if isinstance(op, GetItem):
        part = site.make(Squeeze(taken), x) if taken else x
        return site.make(ExpandDims(added), part) if added else part
    # Values that are put somewhere may be broadcast there.
    part_spec = GetItem(op.items).infer(TensorSpec(whole, x.dtype))
    if shape_of(x) is None or shape_of(x) != part_spec.shape:
        return None
    part = site.make(Squeeze(added), x) if added else x
    return site.make(ExpandDims(taken), part) if taken else part


def _reshaped_axes(items: Items, shape: Sequence[int | None]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the axes of one element that a key takes, and the places of new ones; None if it does more, or nothing."""
    taken: list[int] = []
    added: list[int] = []
    axis = place = 0
    for item in items:
        if item is None:
            added.append(place)
        elif isinstance(item, int) and shape[axis] == 1 and item in (0, -1):
            taken.append(axis)
        elif item != SliceItem():
            return None
        axis += item is not None
        place += not isinstance(item, int)
    return (tuple(taken), tuple(added)) if taken or added else None


def _has_known_shape(operation: Operation) -> bool:
    op: Any = operation.op
    return len(operation.inputs) == 1 and None not in op.shape and shape_of(operation.inputs[0]) is not None


def _no_broadcast(match: Match, site: Site) -> Rewrite:
    return match["x"] if match["x"].shape == match["broadcast"].op.shape else None


def _one_broadcast(match: Match, site: Site) -> Rewrite:
    return site.make(match["broadcast"].op, match["x"])


def _transposed_left(match: Match, site: Site) -> Rewrite:
    """Rewrite a transposed operand of a product to a flag of it."""
    op = match["product"].op
    turned: Op = type(op)(not op.transpose_a, op.transpose_b)
    return site.make(turned, match["a"], match["b"])


def _transposed_right(match: Match, site: Site) -> Rewrite:
    op = match["product"].op
    turned: Op = type(op)(op.transpose_a, not op.transpose_b)
    return site.make(turned, match["a"], match["b"])


def _swaps_last_two(transpose: Operation) -> bool:
    op: Any = transpose.op
    rank = len(transpose.inputs[0].shape or ())
    return rank > 1 and op.order(rank) == (*range(rank - 2), rank - 1, rank - 2)


def _transposed_product(match: Match, site: Site) -> Rewrite:
    """Rewrite a product's transpose to the transposes' product, the other way round; sums may change their order."""
    op, a = match["product"].op, match["a"]
    if a.dtype.kind == "c" or match["transpose"].op.axes not in (None, (1, 0)):
        return None
    return site.make(MatMul(not op.transpose_b, not op.transpose_a), match["b"], a)


# --- parts of what was joined ---------------------------------------------------------------------------------------


def _parts_of_stack(match: Match, site: Site) -> Rewrite:
    """Rewrite ``unstack(stack(parts))`` to the parts."""
    cut, parts = match["cut"].op, match["joined"].inputs
    is_whole = _is_along(cut.axis, match["joined"]) and len(parts) == cut.count
    return parts if is_whole and _are_alike(parts) else None


def _parts_of_concatenation(match: Match, site: Site) -> Rewrite:
    """Rewrite ``split(concatenate(parts))`` to the parts, where it is cut at the seams."""
    cut, parts = match["cut"], match["joined"].inputs
    if len(cut.inputs) > 1 or not _is_along(cut.op.axis, match["joined"]):
        return None
    wanted = [spec.shape for spec in cut.op.infer(cut.inputs[0].spec)]
    return parts if [shape_of(tensor) for tensor in parts] == wanted else None


def _is_along(axis: int, joining: Operation) -> bool:
    """Test that parts were joined along an axis."""
    shape, op = joining.outputs[0].shape, cast(Any, joining.op)
    return shape is not None and op.axis % len(shape) == axis % len(shape)


def _are_alike(tensors: Sequence[Symbol]) -> bool:
    first = shape_of(tensors[0])
    return first is not None and all(tensor.shape == first for tensor in tensors)


def _whole_of_parts(match: Match, site: Site) -> Rewrite:
    """Rewrite ``stack(unstack(x))`` and ``concatenate(split(x))`` of all parts in order to x."""
    joined, cut = match["joined"], match["cut"]
    if len(cut.inputs) > 1 or not is_same(cut.outputs, joined.inputs):
        return None
    x, shape = cut.inputs[0], shape_of(cut.inputs[0])
    return x if shape is not None and cut.op.axis % len(shape) == joined.op.axis % len(shape) else None


def _takes_by_numbers(operation: Operation) -> bool:
    """Test that a key is known and the shape that it is of."""
    op: Any = operation.op
    return len(operation.inputs) == 1 and bool(op.items) and shape_of(operation.inputs[0]) is not None


def _element_of_stack(match: Match, site: Site) -> Rewrite:
    (first, *rest), parts = match["item"].op.items, match["joined"].inputs
    if match["joined"].op.axis or not isinstance(first, int) or not _are_alike(parts):
        return None
    return _indexed(parts[first], tuple(rest), site)


def _part_of_joined(match: Match, site: Site) -> Rewrite:
    """Rewrite a slice that is in one part of a concatenation to a slice of that part."""
    items, joining = match["item"].op.items, match["joined"]
    if None in items or Ellipsis in items:
        return None
    axis = joining.op.axis % len(joining.outputs[0].shape or ())
    found = None if axis >= len(items) else _seam(joining, axis, items[axis])
    if found is None:
        return None
    part, moved = found
    return _indexed(part, (*items[:axis], moved, *items[axis + 1 :]), site)


def _indexed(x: Symbol, items: tuple[Any, ...], site: Site) -> Symbol:
    while items and items[-1] == SliceItem():
        items = items[:-1]
    return site.make(GetItem(items), x) if items else x


def _seam(joining: Operation, axis: int, item: Any) -> tuple[Symbol, Any] | None:
    """Return the part that holds an item of a key as a whole, and the item within that part."""
    sizes = [(shape_of(tensor) or ())[axis] if shape_of(tensor) else None for tensor in joining.inputs]
    if None in sizes:
        return None
    total = sum(size or 0 for size in sizes)
    if isinstance(item, int):
        low, high = item % total, item % total + 1
    elif isinstance(item, SliceItem) and item.step in (None, 1):
        low, high, _ = item.resolve(iter(())).indices(total)
    else:
        return None
    start = 0
    for part, size in zip(joining.inputs, sizes, strict=True):
        end = start + (size or 0)
        if start <= low < high <= end:
            return part, low - start if isinstance(item, int) else _sliced(low - start, high - start, size or 0)
        start = end
    return None


def _sliced(low: int, high: int, size: int) -> SliceItem:
    return SliceItem() if (low, high) == (0, size) else SliceItem(low, high)


def _rows_in_order(match: Match, site: Site) -> Rewrite:
    """Join single rows that are put next to each other, each place once, in that order."""
    rows, op, places, shape = match["rows"], match["put"].op, match["places"], match["shape"]
    if rows.op.axis != 0 or op.axis != 0:
        return None
    sizes = [shape_of(tensor) for tensor in rows.inputs]
    if any(size is None or size[:1] != (1,) for size in sizes):
        return None
    count = len(sizes)
    order = [int(place) + count * (op.wrap and place < 0) for place in places]
    if sorted(order) != list(range(count)) or int(shape[0]) != count:
        return None
    return site.make(Concatenate(0), *[rows.inputs[order.index(place)] for place in range(count)])


_x, _a, _b = tensor("x"), tensor("a"), tensor("b")
_swapped_a, _swapped_b = (op(Transpose, of=[each], where=_swaps_last_two) for each in (_a, _b))
_product = partial(op, BatchMatMul, MatMul, name="product")
_transpose = partial(op, Transpose, name="transpose")
_sum = partial(op, Sum, SumToShape, name="sum")
_broadcast = partial(op, BroadcastTo, name="broadcast", where=_has_known_shape)
_item = partial(op, GetItem, name="item", where=_takes_by_numbers)
_joined = partial(op, name="joined")
_matmul = op(MatMul, of=[_a, _b], name="product")
_put = op(PutRows, of=[op(Concatenate, name="rows"), constant("places"), constant("shape")], name="put")
RULES = (
    Rule("sizes of axes that are known", op(DimOf, of=[_x], name="size"), _known_axis),
    Rule("sizes that are known", op(SizeOf, of=[_x]), _known_size),
    Rule(
        "entries of shapes that are known",
        op(BroadcastTo, Fill, Reshape, of=[ANY, constant("size")], name="shaped"),
        _known_entries,
    ),
    Rule("reshapes to shapes that are known", op(ReshapeToShape, of=[_x, constant("shape")]), _known_shape),
    Rule("rows of known shapes", op(FlattenRows, of=[_x]), _known_rows),
    Rule("rows under known sizes", op(UnflattenRows, of=[_x, constant("shape")]), _rows_put_back),
    Rule("transposes that change nothing", _transpose(of=[_x]), _no_transpose),
    Rule("transposes of transposes", _transpose(of=[op(Transpose, of=[_x], name="inner")]), _one_transpose),
    Rule("transposes of products", _transpose(of=[only_use(_matmul)]), _transposed_product, is_exact=False),
    Rule("sums of transposes", _sum(of=[_transpose(of=[_x])]), _sum_of_origin, is_exact=False),
    Rule("reshapes of reshapes", op(*_RESHAPING, name="reshape"), _reshapes),
    Rule("broadcasts that change nothing", _broadcast(of=[_x]), _no_broadcast),
    Rule("broadcasts of broadcasts", _broadcast(of=[op(BroadcastTo, of=[_x])]), _one_broadcast),
    Rule("transposes on the left of products", _product(of=[_swapped_a, _b]), _transposed_left),
    Rule("transposes on the right of products", _product(of=[_a, _swapped_b]), _transposed_right),
    Rule("parts of stacks", op(Unstack, of=[_joined(Stack)], name="cut"), _parts_of_stack),
    Rule("parts of concatenations", op(Split, of=[_joined(Concatenate)], name="cut"), _parts_of_concatenation),
    Rule("all parts stacked", _joined(Stack, of=[op(Unstack, name="cut")]), _whole_of_parts),
    Rule("all parts concatenated", _joined(Concatenate, of=[op(Split, name="cut")]), _whole_of_parts),
    Rule("single rows put in their places", _put, _rows_in_order, is_exact=False),
    Rule("elements of stacks", _item(of=[_joined(Stack)]), _element_of_stack),
    Rule("slices of what was joined", _item(of=[_joined(Concatenate)]), _part_of_joined),
    Rule("keys of axes as reshapes", op(GetItem, PutItem, of=[_x], name="item"), _key_of_axes),
)
