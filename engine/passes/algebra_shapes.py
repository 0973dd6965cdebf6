"""Rules of shapes: chains of transposes, reshapes and broadcasts, parts of what was joined, known sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..graph.graph import Operation
from ..graph.op import Op
from ..graph.spec import TensorSpec
from ..graph.tensor import Symbol
from ..ops.axes import Transpose
from ..ops.base import Constant
from ..ops.creation import Fill
from ..ops.gathering import PutRows, Take
from ..ops.indexing import GetItem, PutItem, SliceItem
from ..ops.joining import Concatenate, Split, Stack, Unstack
from ..ops.linalg import BatchMatMul, MatMul
from ..ops.run_time_shapes import ReshapeToShape
from ..ops.segments import GatherSegments
from ..ops.shaping import BroadcastTo, DimOf, ExpandDims, Reshape, SizeOf, Squeeze, elements
from .rules import Rewrite, Rule, Site, constant_of, produced_by, shape_of

_WIDE_ROW = 256  # bytes
_RESHAPING = (ExpandDims, Reshape, ReshapeToShape, Squeeze)

# --- shapes that are known ------------------------------------------------------------------------------------------


def _known_size(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    shape = inputs[0].shape
    if shape is None:
        return None
    if isinstance(op, DimOf):
        size = shape[op.axis]
        return None if size is None else Constant(np.int32(size))
    known = shape_of(inputs[0])
    # More elements than int32 can hold are an error of the run.
    return None if known is None or elements(known) > 2**31 - 1 else Constant(np.int32(elements(known)))


def _known_entries(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """Sizes that are constants are part of the op."""
    sizes = [constant_of(tensor, site) for tensor in inputs[1:]]
    if not sizes or any(size is None for size in sizes):
        return None
    remaining = iter(sizes)
    filled = tuple([int(next(remaining)) if dim is None else dim for dim in op.shape])
    if any(dim < 0 for dim in filled):  # what can't be, fails when it runs
        return None
    return site.make(type(op)(filled), inputs[0])


# --- chains ---------------------------------------------------------------------------------------------------------


def _permutation(op: Transpose, rank: int) -> tuple[int, ...]:
    return tuple(range(rank))[::-1] if op.axes is None else op.axes


def _transposes(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """A transpose that changes nothing, or of a transpose."""
    (x,) = inputs
    if x.shape is None:
        return None
    axes = _permutation(op, len(x.shape))
    if axes == tuple(range(len(axes))):
        return x
    inner = produced_by(x, Transpose)
    if inner is None or x.operation.inputs[0].shape is None:
        return None
    before = _permutation(inner, len(axes))
    return site.make(Transpose(tuple([before[axis] for axis in axes])), x.operation.inputs[0])


def _reshapes(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """Reshapes of reshapes are one, or none. Where a size is unknown the first may fail, so that it stays."""
    spec = op.infer(*[tensor.spec for tensor in inputs])
    origin = inputs[0]
    while produced_by(origin, *_RESHAPING) and shape_of(origin.operation.inputs[0]) is not None:
        origin = origin.operation.inputs[0]
    if shape_of(origin) is None or spec.shape is None or None in spec.shape:
        return None
    if origin.shape == spec.shape:
        return origin
    return None if origin is inputs[0] else site.make(Reshape(spec.shape), origin)


def _new_axes(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """``x[:, None]``, and its gradient, are reshapes."""
    x = inputs[0]
    axes = tuple([axis for axis, item in enumerate(op.items) if item is None])
    if not axes or x.shape is None or not all(item is None or item == SliceItem() for item in op.items):
        return None
    if isinstance(op, GetItem):
        return site.make(ExpandDims(axes), x)
    wanted, known = op.shape, shape_of(x)  # of values that are put somewhere, and may be broadcast there
    if wanted is None or known is None:
        return None
    return site.make(Squeeze(axes), x) if known == ExpandDims(axes).infer(TensorSpec(wanted, x.dtype)).shape else None


def _broadcasts(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    x = inputs[0]
    if len(inputs) > 1 or shape_of(x) is None or None in op.shape:
        return None
    if x.shape == op.shape:
        return x
    inner = produced_by(x, BroadcastTo)
    return None if inner is None else site.make(op, x.operation.inputs[0])


def _transposed_operands(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """Transposed operands of a product are a flag of it."""
    operands, flags = list(inputs), [op.transpose_a, op.transpose_b]
    for place, tensor in enumerate(inputs):
        if _swaps_last_two(tensor):
            operands[place], flags[place] = tensor.operation.inputs[0], not flags[place]
    is_as_before = all(map(operator.is_, operands, inputs))
    return None if is_as_before else site.make(type(op)(*flags), *operands)


def _swaps_last_two(tensor: Symbol) -> bool:
    op = produced_by(tensor, Transpose)
    if op is None or tensor.shape is None or len(tensor.shape) < 2 or tensor.operation.inputs[0].shape is None:
        return False
    rank = len(tensor.shape)
    return _permutation(op, rank) == (*range(rank - 2), rank - 1, rank - 2)


def _transposed_product(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """The transpose of a product is the product of the transposes, the other way round; but for the order of sums."""
    (product,) = inputs
    inner = produced_by(product, MatMul)
    if inner is None or inputs[0].dtype.kind == "c" or not site.is_only_user(product):
        return None
    if op.axes not in (None, (1, 0)):
        return None
    a, b = product.operation.inputs
    return site.make(MatMul(not inner.transpose_b, not inner.transpose_a), b, a)


# --- parts of what was joined ---------------------------------------------------------------------------------------


def _parts_of_whole(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """``unstack(stack(parts))``; ``split(concatenate(parts))`` where it is cut at the seams."""
    parts, kind = inputs[0].operation.inputs, Stack if isinstance(op, Unstack) else Concatenate
    joined = produced_by(inputs[0], kind)
    if joined is None or inputs[0].shape is None or len(inputs) > 1:
        return None
    rank = len(inputs[0].shape)
    if joined.axis % rank != op.axis % rank:
        return None
    if isinstance(op, Unstack):
        return parts if len(parts) == op.count and _are_alike(parts) else None
    sizes = [shape_of(tensor) for tensor in parts]
    wanted = [spec.shape for spec in op.infer(inputs[0].spec)]
    return parts if sizes == wanted else None


def _parts_of_taken(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """Parts of rows that are taken are taken part by part: each is in the cache when it is used."""
    rows, *sizes = inputs
    taking, shape = rows.operation, rows.shape
    if shape is None or shape[0] is not None or None in shape[1:] or op.axis % len(shape):
        return None
    if not site.is_only_user(rows):
        return None
    table, ids = taking.inputs
    is_first = not isinstance(taking.op, Take) or (table.shape is not None and taking.op.axis % len(table.shape) == 0)
    if not is_first or ids.shape is None or len(ids.shape) != 1 or taking.control_inputs:
        return None
    if math.prod(dim or 0 for dim in shape[1:]) * rows.dtype.itemsize < _WIDE_ROW:
        return None
    parts = site.make(replace(op, axis=0), ids, *sizes).operation.outputs
    return tuple([site.make(taking.op, table, part) for part in parts])


def _are_alike(tensors: Sequence[Symbol]) -> bool:
    first = shape_of(tensors[0])
    return first is not None and all(tensor.shape == first for tensor in tensors)


def _whole_of_parts(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """``stack(unstack(x))`` and ``concatenate(split(x))`` of all parts in order."""
    cutting = inputs[0].operation
    wanted = Unstack if isinstance(op, Stack) else Split
    if not isinstance(cutting.op, wanted) or [*map(id, cutting.outputs)] != [*map(id, inputs)]:
        return None
    x = cutting.inputs[0]
    if shape_of(x) is None or len(cutting.inputs) > 1:
        return None
    rank = len(x.shape or ())
    return x if cutting.op.axis % rank == op.axis % rank else None


def _part_of_joined(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """One element of a stack, or a slice that lies in one part of what was concatenated."""
    joining = inputs[0].operation
    if len(inputs) > 1 or not op.items or shape_of(inputs[0]) is None or len(joining.outputs) > 1:
        return None
    first, *rest = op.items
    if isinstance(joining.op, Stack) and joining.op.axis == 0 and isinstance(first, int):
        return _indexed(joining.inputs[first], tuple(rest), site) if _are_alike(joining.inputs) else None
    if not isinstance(joining.op, Concatenate) or None in op.items or Ellipsis in op.items:
        return None
    axis = joining.op.axis % len(inputs[0].shape or ())
    item = op.items[axis] if axis < len(op.items) else None
    found = None if item is None else _seam(joining, axis, item)
    if found is None:
        return None
    part, moved = found
    return _indexed(part, (*op.items[:axis], moved, *op.items[axis + 1 :]), site)


def _indexed(x: Symbol, items: tuple[Any, ...], site: Site) -> Symbol:
    while items and items[-1] == SliceItem():
        items = items[:-1]
    return site.make(GetItem(items), x) if items else x


def _seam(joining: Operation, axis: int, item: Any) -> tuple[Symbol, Any] | None:
    """The part in which an item of a key lies as a whole, and the item within that part."""
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
    for tensor, size in zip(joining.inputs, sizes, strict=True):
        end = start + (size or 0)
        if start <= low < high <= end:
            return tensor, low - start if isinstance(item, int) else _sliced(low - start, high - start, size or 0)
        start = end
    return None


def _sliced(low: int, high: int, size: int) -> SliceItem:
    return SliceItem() if (low, high) == (0, size) else SliceItem(low, high)


def _rows_in_order(op: Any, inputs: Sequence[Symbol], site: Site) -> Rewrite:
    """Single rows that are put next to each other, each place once, are joined in that order."""
    rows, places, shape = inputs[0].operation, constant_of(inputs[1], site), constant_of(inputs[2], site)
    joined = produced_by(inputs[0], Concatenate)
    if joined is None or joined.axis != 0 or op.axis != 0 or places is None or shape is None:
        return None
    sizes = [shape_of(tensor) for tensor in rows.inputs]
    if any(size is None or size[:1] != (1,) for size in sizes):
        return None
    count = len(sizes)
    order = [int(place) + count * (op.wrap and place < 0) for place in places]
    if sorted(order) != list(range(count)) or int(shape[0]) != count:
        return None
    return site.make(Concatenate(0), *[rows.inputs[order.index(place)] for place in range(count)])


_JOINED: tuple[type[Op], ...] = (Concatenate, Stack)
RULES = (
    Rule("sizes that are known", (DimOf, SizeOf), _known_size),
    Rule("entries of shapes that are known", (BroadcastTo, Fill, Reshape), _known_entries, (Constant,)),
    Rule("transposes of transposes", (Transpose,), _transposes),
    Rule("transposes of products", (Transpose,), _transposed_product, (MatMul,), is_exact=False),
    Rule("reshapes of reshapes", _RESHAPING, _reshapes),
    Rule("keys of new axes as reshapes", (GetItem, PutItem), _new_axes),
    Rule("broadcasts of broadcasts", (BroadcastTo,), _broadcasts),
    Rule("transposes into products", (BatchMatMul, MatMul), _transposed_operands, (Transpose,)),
    Rule("parts of what was joined", (Split, Unstack), _parts_of_whole, _JOINED),
    Rule("parts of rows that are taken", (Split,), _parts_of_taken, (GatherSegments, Take)),
    Rule("all parts joined", _JOINED, _whole_of_parts, (Split, Unstack)),
    Rule("single rows put in their places", (PutRows,), _rows_in_order, (Concatenate,), is_exact=False),
    Rule("slices of what was joined", (GetItem,), _part_of_joined, _JOINED),
)
