"""A table from op class to batching rule: how each op is done for a batch of examples at once.

A rule gets the batch, the operation and the values of its inputs, at least one of which is batched. It returns the
values of the outputs, or None where it does not apply: then the operation is looped over.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ..graph.axis_maps import axis_map_of
from ..graph.graph import Operation
from ..graph.op import Op
from ..graph.operation import op_of
from ..graph.spec import ArraySpec, StoreSpec, TensorSpec
from ..graph.tensor import Tensor, symbol_of
from ..ops.arrays.axes import Transpose, moveaxis
from ..ops.arrays.creation import Fill, arange
from ..ops.arrays.gathering import PutRows, Take, take
from ..ops.arrays.indexing import GetItems
from ..ops.arrays.joining import Stack, concatenate
from ..ops.arrays.padding import Pad
from ..ops.arrays.scattering import GatherLast, GatherNd, ScatterAdd, ScatterUpdate
from ..ops.arrays.shaping import (
    BroadcastTo,
    DimOf,
    ExpandDims,
    Reshape,
    SizeOf,
    Squeeze,
    broadcast_to,
    dim,
    expand_dims,
    reshape,
    squeeze,
)
from ..ops.arrays.sorting import SearchSorted
from ..ops.base import apply, apply_multi, convert_to_tensor, make_constant
from ..ops.containers.tensor_arrays import (
    ArrayAddAt,
    ArrayClear,
    ArrayRead,
    ArrayReadOrEmpty,
    ArrayReadOrZeros,
    ArraySize,
    ArrayStack,
    ArrayStackLike,
    ArraySum,
    ArrayUnstack,
    ArrayWrite,
)
from ..ops.containers.tensor_stores import StoreContains, StoreGather, StoreRead, StoreSize, StoreWrite
from ..ops.linear_algebra.einsum import Contraction
from ..ops.linear_algebra.matrices import Solve
from ..ops.linear_algebra.products import BatchMatMul, FlattenRows, MatMul, UnflattenRows, matmul, product_of_rows
from ..ops.linear_algebra.triangular import SolveTriangular
from ..ops.math.complex_numbers import FromParts
from ..ops.math.reduction import ArgExtremum, prod
from ..ops.neural.quantized import QuantizedMatMul
from ..ops.random.samplers import RandomOp
from ..ops.run_time_shapes import BroadcastToShape, ReshapeToShape, ShapeOf, SumToShape
from ..ops.signal.windows import Slice, SliceUpdate
from . import batching_items as items
from . import batching_stacks as stacks
from .batching import Batch, Rule, Value, changed

Values = list[Value]
Found = Sequence[Value] | None


def batched(*tensors: Tensor) -> list[Value]:
    """Return values for tensors that have a batch axis."""
    return [Value(tensor, batched=True) for tensor in tensors]


# --- the general rules ----------------------------------------------------------------------------------------------


def elementwise(batch: Batch, node: Operation, values: Values) -> Found:
    """Broadcast inputs: those with fewer axes get axes of size 1 behind the batch."""
    ranks = [tensor.ndim for tensor in node.inputs]
    if None in ranks:
        return None
    known = [rank or 0 for rank in ranks]
    tensors = [batch.aligned(value, rank, max(known)) for value, rank in zip(values, known, strict=True)]
    return batched(*apply_multi(node.op, *tensors))


def by_axes(batch: Batch, node: Operation, values: Values) -> Found:
    """Apply an op that treats an axis in front index by index, with the axes of its fields one further back."""
    op, place = _moved_back(node), node.op.shape_input
    if op is None:
        return None
    takes = _taking_front(node, op, {k for k, value in enumerate(values) if value.batched})
    if takes is None:
        return None
    tensors = [batch.batched(value) if k in takes else value.tensor for k, value in enumerate(values)]
    if place is not None:
        tensors[place] = batch.shape_vector(tensors[place])
        op = changed(op, shape=batch.shape(_shape_attribute(node)))
    return batched(*apply_multi(op, *tensors))


def _moved_back(node: Operation) -> Op | None:
    """Return an op with the axes of its fields one further back; None where it can't be done."""
    if not node.op.axis_fields:
        return node.op
    rank = (node.inputs[0] if node.op.shape_input is None else node.outputs[0]).ndim
    if rank is None:
        return None
    return changed(node.op, **{name: _behind(getattr(node.op, name), rank) for name in node.op.axis_fields})


def _behind(axes: int | tuple[int, ...] | None, rank: int) -> Any:
    if isinstance(axes, int):
        return axes + 1 if axes >= 0 else axes
    return tuple(1 + axis % rank for axis in (range(rank) if axes is None else axes))


def _taking_front(node: Operation, op: Op, differing: set[int]) -> Collection[int] | None:
    """Return the positions of the inputs that get a batch axis in front: those that `differing` ones go with, or None.

    Args:
        node: the operation for one example.
        op: its op for a batch.
        differing: the positions of inputs that differ between examples.
    """
    everything = set(range(len(node.inputs)))
    if node.op.shape_input is not None:
        takes = everything - {node.op.shape_input}
        return takes if node.op.axis_fields is not None and differing <= takes else None
    for takes in (differing, _following_front(node, op, everything)):
        if differing <= takes and _treats_front_by_index(node, op, takes):
            return takes
    return None


def _following_front(node: Operation, op: Op, takes: Collection[int]) -> set[int]:
    """Return the inputs whose axis in front the result's follows, where `takes` have one more."""
    axes = axis_map_of(op, _specs(node, takes))
    return {each.input for each in axes[0] if not each.axis} if axes else set()


def _treats_front_by_index(node: Operation, op: Op, takes: Collection[int]) -> bool:
    """Test whether `op` does the same as a node for each index of a further axis in front of some of its inputs."""
    before = axis_map_of(node.op, _specs(node))
    after = None if before is None else axis_map_of(op, _specs(node, takes))
    if before is None or not after:
        return False
    front = {(each.input, each.axis) for each in after[0] if each.by_index}
    behind = tuple(tuple(each._replace(axis=each.axis + (each.input in takes)) for each in own) for own in before)
    return front == {(k, 0) for k in takes} and after[1:] == behind


def _specs(node: Operation, takes: Collection[int] = ()) -> list[Any]:
    """Return the specs of inputs, of which `takes` have a further axis in front.

    Beside `axis_fields` an input of unknown rank counts as one of as many axes as the first: which inputs an axis in
    front is of does not depend on that.
    """
    found: list[Any] = []
    for k, tensor in enumerate(node.inputs):
        spec = tensor.spec
        if isinstance(spec, TensorSpec) and spec.shape is None and node.op.axis_fields:
            spec = node.inputs[0].spec
        if k in takes and isinstance(spec, TensorSpec) and spec.shape is not None:
            spec = TensorSpec((None, *spec.shape), spec.dtype)
        found.append(spec)
    return found


def general(batch: Batch, node: Operation, values: Values) -> Found:
    """Apply an op that has no rule of its own."""
    return (elementwise if node.op.elementwise else by_axes)(batch, node, values)


def _shape_attribute(node: Operation) -> Any:
    op: Any = node.op
    return op.shape


def first_place(batch: Batch, node: Operation, values: Values) -> Found:
    """Find the position of an extremum; None without an axis, which counts through the whole example."""
    assert isinstance(node.op, ArgExtremum)
    return None if node.op.axes is None else by_axes(batch, node, values)


def transposed(batch: Batch, node: Operation, values: Values) -> Found:
    """Transpose the axes of examples; the batch stays in front."""
    rank = node.inputs[0].ndim
    assert isinstance(node.op, Transpose)
    if rank is None:
        return None
    axes = reversed(range(rank)) if node.op.axes is None else node.op.axes
    return batched(apply(changed(node.op, axes=(0, *[1 + axis % rank for axis in axes])), values[0].tensor))


# --- shapes ---------------------------------------------------------------------------------------------------------


def shape_of(batch: Batch, node: Operation, values: Values) -> Found:
    """Return the shape of an example, which is the same for all."""
    whole = apply(ShapeOf(), values[0].tensor)
    return [Value(whole[1:], batched=False)]


def dim_of(batch: Batch, node: Operation, values: Values) -> Found:
    axis = op_of(node, DimOf).axis
    return [Value(apply(DimOf(axis + 1 if axis >= 0 else axis), values[0].tensor), batched=False)]


def size_of(batch: Batch, node: Operation, values: Values) -> Found:
    return [Value(prod(apply(ShapeOf(), values[0].tensor)[1:]), batched=False)]


def to_shape(batch: Batch, node: Operation, values: Values) -> Found:
    """Sum, broadcast or reshape to a shape that a vector holds."""
    x, shape = values
    rank, wanted = node.inputs[0].ndim, node.outputs[0].ndim
    if shape.batched or rank is None or wanted is None:
        return None
    vector = batch.shape_vector(shape.tensor)
    op: Any = type(node.op)
    known = batch.shape(node.outputs[0].shape)
    tensor = x.tensor
    if op is BroadcastToShape and wanted > rank:
        tensor = batch.aligned(x, rank, wanted)
    if op is SumToShape and rank > wanted:
        ones = (1,) * (rank - wanted)
        padded = concatenate([vector[:1], np.ones(rank - wanted, "int32"), vector[1:]])
        tensor = apply(SumToShape((known[0], *ones, *known[1:])), tensor, padded)
        return batched(squeeze(tensor, tuple(range(1, 1 + rank - wanted))))
    return batched(apply(op(known), tensor, vector))


def into_shape(batch: Batch, node: Operation, values: Values) -> Found:
    """Give examples a shape that is an attribute, whose Nones further inputs fill."""
    x, *sizes = values
    rank = node.inputs[0].ndim
    shape: tuple[int | None, ...] = _shape_attribute(node)
    if rank is None or any(size.batched for size in sizes):
        return None
    given = [size.tensor for size in sizes]
    if isinstance(node.op, Reshape):
        return batched(reshape(x.tensor, (batch.size, *_settled(x.tensor, node.outputs[0].shape, shape, given))))
    op = BroadcastTo(batch.shape(shape))
    return batched(apply(op, batch.aligned(x, rank, len(shape)), *batch.dims(), *given))


def _settled(x: Tensor, known: Any, shape: tuple[int | None, ...], given: list[Tensor]) -> list[Any]:
    """Return a shape with its -1 replaced: NumPy could not find that size for zero examples."""
    remaining = iter(given)
    sizes: list[Any] = [next(remaining) if size is None else size for size in shape]
    if -1 not in shape:
        return sizes
    place = shape.index(-1)
    if known[place] is not None:
        return [*sizes[:place], known[place], *sizes[place + 1 :]]
    others = math.prod([*sizes[:place], *sizes[place + 1 :]])
    rest = math.prod([dim(x, axis) for axis in range(1, len(x.shape or ()))]) // others
    return [*sizes[:place], rest, *sizes[place + 1 :]]


def expanded(batch: Batch, node: Operation, values: Values) -> Found:
    assert isinstance(node.op, ExpandDims)
    axes = tuple(axis + 1 if axis >= 0 else axis for axis in node.op.axes)
    return batched(apply(ExpandDims(axes), values[0].tensor))


def squeezed(batch: Batch, node: Operation, values: Values) -> Found:
    assert isinstance(node.op, Squeeze)
    axes, shape = node.op.axes, node.inputs[0].shape
    if axes is None:
        if shape is None or None in shape:
            return None
        axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
    if not axes:
        return values
    return batched(apply(Squeeze(tuple(axis + 1 if axis >= 0 else axis for axis in axes)), values[0].tensor))


def flattened_rows(batch: Batch, node: Operation, values: Values) -> Found:
    rows, columns = node.outputs[0].shape or (None, None)
    x = values[0].tensor
    if node.inputs[0].ndim is None:
        return None
    sizes = (batch.size, -1 if rows is None else rows, dim(x, -1) if columns is None else columns)
    return batched(reshape(x, sizes))


def unflattened_rows(batch: Batch, node: Operation, values: Values) -> Found:
    rows, shape = values
    if shape.batched or node.outputs[0].ndim is None:
        return None
    last = convert_to_tensor([dim(rows.tensor, -1)], "int32")
    vector = concatenate([batch.shape_vector(shape.tensor)[:-1], last])
    return batched(apply(ReshapeToShape(batch.shape(node.outputs[0].shape)), rows.tensor, vector))


def stacked(batch: Batch, node: Operation, values: Values) -> Found:
    """Stack inputs along a new axis."""
    op = node.op
    assert isinstance(op, Stack)
    axis = op.axis + 1 if op.axis >= 0 else op.axis
    return batched(apply(Stack(axis), *[batch.batched(value) for value in values]))


def padded(batch: Batch, node: Operation, values: Values) -> Found:
    op = node.op
    assert isinstance(op, Pad)
    if any(value.batched for value in values[1:]):
        return None
    return batched(apply(Pad(((0, 0), *op.widths)), *[value.tensor for value in values]))


def window(batch: Batch, node: Operation, values: Values) -> Found:
    """Take or replace windows that start at the same place in all examples."""
    op = node.op
    whole, starts, *rest = values
    if starts.batched or (isinstance(op, Slice) and any(size.batched for size in rest)):
        return None
    zero = make_constant(np.zeros(1, starts.tensor.dtype))
    tensors = [batch.batched(whole), concatenate([zero, starts.tensor])]
    if isinstance(op, SliceUpdate):
        return batched(apply(op, *tensors, batch.batched(rest[0])))
    assert isinstance(op, Slice)
    return batched(apply(Slice(batch.shape(op.sizes)), *tensors, *batch.dims(), *[size.tensor for size in rest]))


# --- products -------------------------------------------------------------------------------------------------------


def quantized_product(batch: Batch, node: Operation, values: Values) -> Found:
    rows, *others = values
    if any(value.batched for value in others):
        return None
    return batched(product_of_rows(node.op, rows.tensor, *[value.tensor for value in others]))


def product(batch: Batch, node: Operation, values: Values) -> Found:
    op, (a, b) = node.op, values
    assert isinstance(op, (MatMul, BatchMatMul))
    ranks = [tensor.ndim for tensor in node.inputs]
    if None in ranks:
        return None
    if isinstance(op, MatMul) and not b.batched and not op.transpose_a:
        # One product over the rows of all examples.
        return batched(matmul(a.tensor, apply(Transpose(None), b.tensor) if op.transpose_b else b.tensor))
    known = [rank or 2 for rank in ranks]
    tensors = [batch.aligned(value, rank, max(known)) for value, rank in zip(values, known, strict=True)]
    return batched(apply(BatchMatMul(op.transpose_a, op.transpose_b), *tensors))


def contraction(batch: Batch, node: Operation, values: Values) -> Found:
    op, (a, b) = node.op, values
    assert isinstance(op, Contraction)
    label = next(c for c in map(chr, range(65, 1000)) if c.isalpha() and c not in op.a + op.b + op.out)
    labelled = Contraction(label + op.a if a.batched else op.a, label + op.b if b.batched else op.b, label + op.out)
    return batched(apply(labelled, a.tensor, b.tensor))


def solution(batch: Batch, node: Operation, values: Values) -> Found:
    ranks = [tensor.ndim or 0 for tensor in node.inputs]
    if 0 in ranks:
        return None
    tensors = [expand_rank(batch.batched(v), rank, max(ranks)) for v, rank in zip(values, ranks, strict=True)]
    return batched(apply(node.op, *tensors))


def expand_rank(tensor: Tensor, rank: int, wanted: int) -> Tensor:
    return tensor if rank == wanted else expand_dims(tensor, tuple(range(1, 1 + wanted - rank)))


# --- places ---------------------------------------------------------------------------------------------------------


def taken(batch: Batch, node: Operation, values: Values) -> Found:
    op, (x, indices) = node.op, values
    assert isinstance(op, Take)
    rank = node.inputs[0].ndim
    if rank is None or node.inputs[1].ndim is None:
        return None
    axis = op.axis % rank
    if not indices.batched:
        return batched(apply(Take(axis + 1, op.wrap), x.tensor, indices.tensor))
    if not x.batched:
        return batched(moveaxis(apply(Take(axis, op.wrap), x.tensor, indices.tensor), axis, 0))
    if not op.wrap:
        return None  # an index below zero would be one of the example before
    key = (*[items.WHOLE] * axis, items.PLACE)
    return batched(items.get(batch, x, key, [node.inputs[1]], [indices], rank))


def put_rows(batch: Batch, node: Operation, values: Values) -> Found:
    op, (rows, indices, shape) = node.op, values
    assert isinstance(op, PutRows)
    if op.shape is None or shape.batched or node.inputs[1].ndim is None:
        return None
    axis = op.axis % len(op.shape)
    vector = batch.shape_vector(shape.tensor)
    if not indices.batched:
        put = PutRows(axis + 1, op.wrap, batch.shape(op.shape))
        return batched(apply(put, batch.batched(rows), indices.tensor, vector))
    key = (*[items.WHOLE] * axis, items.PLACE)
    return batched(items.put(batch, rows, key, True, op.shape, vector, [node.inputs[1]], [indices]))


def coordinates(batch: Batch, node: Operation, values: Values) -> Found:
    """Take or change parts that are named by coordinates: the example's number is one more."""
    index = node.inputs[1]
    if index.ndim is None or node.inputs[0].ndim is None:
        return None
    x, indices, *rest = [batch.batched(value) for value in values]
    count = reshape(arange(0, batch.size, dtype=index.dtype), (batch.size, *[1] * index.ndim))
    numbers = broadcast_to(count, (*[dim(indices, axis) for axis in range(index.ndim)], 1))
    return batched(apply(node.op, x, concatenate([numbers, indices], -1), *rest))


def searched(batch: Batch, node: Operation, values: Values) -> Found:
    """Look up any number of values in one sequence."""
    return None if values[0].batched else batched(apply(node.op, *[value.tensor for value in values]))


def drawn(batch: Batch, node: Operation, values: Values) -> Found:
    """Draw random numbers for all examples together."""
    op = node.op
    assert isinstance(op, RandomOp)
    key, *sizes = values
    if not key.fresh or any(size.batched for size in sizes):
        return None
    tensors = [key.tensor, *batch.dims(), *[size.tensor for size in sizes]]
    return batched(apply(changed(op, shape=batch.shape(op.shape)), *tensors))


# --- arrays of tensors ----------------------------------------------------------------------------------------------


def array_op(batch: Batch, node: Operation, values: Values) -> Found:
    """Apply an op of arrays, whose elements hold the examples: what is done with whole elements stays as it is."""
    places: tuple[int, ...] = (1,)
    if isinstance(node.op, ArraySum):
        places = ()
    elif isinstance(node.op, ArrayReadOrZeros):
        places = (1, 2)
    if any(values[k].batched for k in places):
        return None
    tensors = [value.tensor if k in places else batch.batched(value) for k, value in enumerate(values)]
    op: Any = node.op
    if isinstance(op, (ArrayReadOrZeros, ArrayReadOrEmpty)):
        op = changed(op, spec=batch.spec(op.spec))
    if isinstance(op, ArrayReadOrZeros):
        tensors[2] = batch.shape_vector(values[2].tensor)
    return batched(apply(op, *tensors))


def array_size(batch: Batch, node: Operation, values: Values) -> Found:
    return [Value(apply(ArraySize(), values[0].tensor), batched=False)]


def array_read(batch: Batch, node: Operation, values: Values) -> Found:
    array, index = values
    if not index.batched:
        element = array.followed(apply(ArrayRead(), array.tensor, index.tensor), "read", index.identity)
        if array.rows is None or isinstance(element.tensor.spec, ArraySpec):
            return [changed(element, rows=array.rows)]
        if array.optional:
            return None
        return batched(take(element.tensor, array.rows, axis=0))
    spec = array.tensor.spec
    if (
        array.part is not None
        or array.optional
        or not isinstance(spec, ArraySpec)
        or not isinstance(spec.element, TensorSpec)
    ):
        return None
    # Built once, where the array lives, and not at each iteration of a loop that reads it.
    rows = symbol_of(array.tensor).graph.add_shared(
        ("stack of", array.tensor), ArrayStack(spec.element), [array.tensor]
    )
    if not array.batched:
        return batched(apply(GetItems((items.PLACE,)), rows, index.tensor))
    numbers = arange(0, batch.size, dtype="int32") if array.rows is None else array.rows
    return batched(apply(GetItems((items.PLACE, items.PLACE)), rows, index.tensor, numbers))


def array_stack(batch: Batch, node: Operation, values: Values) -> Found:
    op = node.op
    if isinstance(op, ArrayStackLike):
        if op.shape is None or values[1].batched:
            return None
        vector = values[1].tensor
        wanted = concatenate([vector[:1], batch.shape_vector(vector[1:])])
        shape = (op.shape[0], batch.static_size, *op.shape[1:])
        return batched(moveaxis(apply(ArrayStackLike(shape, op.dtype), values[0].tensor, wanted), 0, 1))
    assert isinstance(op, ArrayStack)
    if op.element.shape is None:
        return None
    return batched(moveaxis(apply(ArrayStack(batch.spec(op.element)), values[0].tensor), 0, 1))


def store_keys(batch: Batch, node: Operation, values: Values) -> Found:
    """Build one operation for all examples: which keys a store has is the same for all."""
    if any(value.batched for value in values[1:]):
        return None
    return [Value(apply(node.op, *[value.tensor for value in values]), batched=False)]


def store_read(batch: Batch, node: Operation, values: Values) -> Found:
    store, key = values
    if not key.batched:
        return batched(apply(StoreRead(), store.tensor, key.tensor))
    spec = store.tensor.spec
    if store.batched or not isinstance(spec, StoreSpec) or not isinstance(spec.element, TensorSpec):
        return None
    return batched(apply(StoreGather(spec.element), store.tensor, key.tensor))


def array_unstack(batch: Batch, node: Operation, values: Values) -> Found:
    return None if node.inputs[0].ndim is None else batched(apply(ArrayUnstack(), moveaxis(values[0].tensor, 1, 0)))


# --- the table ------------------------------------------------------------------------------------------------------

RULES: dict[type[Any], Rule] = {
    # shapes
    ShapeOf: shape_of,
    DimOf: dim_of,
    SizeOf: size_of,
    **dict.fromkeys([BroadcastToShape, ReshapeToShape, SumToShape], to_shape),
    **dict.fromkeys([BroadcastTo, Fill, Reshape], into_shape),
    ExpandDims: expanded,
    Squeeze: squeezed,
    FlattenRows: flattened_rows,
    UnflattenRows: unflattened_rows,
    # axes; for ops with `axis_fields` or `last_axes` see `by_axes`
    ArgExtremum: first_place,
    Transpose: transposed,
    Stack: stacked,
    Pad: padded,
    **dict.fromkeys([Slice, SliceUpdate], window),
    **stacks.RULES,
    FromParts: elementwise,
    # products
    **dict.fromkeys([MatMul, BatchMatMul], product),
    QuantizedMatMul: quantized_product,
    Contraction: contraction,
    Solve: solution,
    SolveTriangular: solution,
    # places
    Take: taken,
    PutRows: put_rows,
    **dict.fromkeys([GatherNd, GatherLast, ScatterAdd, ScatterUpdate], coordinates),
    **items.RULES,
    SearchSorted: searched,
    RandomOp: drawn,
    # arrays of tensors
    **dict.fromkeys([ArrayAddAt, ArrayClear, ArrayReadOrEmpty, ArrayReadOrZeros, ArraySum, ArrayWrite], array_op),
    ArrayRead: array_read,
    ArraySize: array_size,
    **dict.fromkeys([ArrayStack, ArrayStackLike], array_stack),
    ArrayUnstack: array_unstack,
    **dict.fromkeys([StoreContains, StoreSize], store_keys),
    StoreRead: store_read,
    StoreWrite: array_op,
}

__all__ = ["RULES", "batched", "elementwise", "general"]
