"""Buckets: gradients that workers sum together, in the order in which the backward pass makes them, while it runs.

Each bucket is a vector. Its sum is begun behind the latest of its gradients, and waited for where the update needs it,
so that the network works while gradients of earlier layers are computed.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import as_dtype
from ...engine.graph import IndexedSlices, Operation, Tensor, control_dependencies
from ...engine.graph.graph import get_default_graph
from ...engine.graph.tensor import symbol_of
from ...engine.ops.begun_collectives import EndAllReduce, begin_all_reduce, end_all_reduce
from ...engine.ops.collectives import AllGather, AllReduce, Barrier, Broadcast, ReduceScatter, all_gather, all_reduce
from ...engine.passes.framework.order import hoist

if TYPE_CHECKING:
    from ...engine.common.dtypes import DTypeLike
    from ...engine.graph import Graph, Symbol
    from ...optim.clipping import Gradient
    from .optimizer_shards import OptimizerShards
    from .traced import Entry, StepTracer


def buckets_of(sizes: Sequence[int], dtypes: Sequence[object], order: Sequence[int], most: int) -> list[list[int]]:
    """Group tensors into buckets: each of one dtype, and of at most so many bytes, unless one tensor has more.

    Args:
        sizes: the bytes of each tensor.
        dtypes: of each tensor.
        order: the numbers of the tensors, in the order in which they are made.
        most: how many bytes a bucket has.

    Returns:
        The numbers in each bucket, in the order in which the buckets are full.

    >>> buckets_of([4, 4, 8, 4], ["f", "f", "f", "d"], [3, 2, 1, 0], 8)
    [[2], [1, 0], [3]]
    """
    full: list[list[int]] = []
    open_buckets: dict[object, list[int]] = {}
    for number in order:
        bucket = open_buckets.setdefault(dtypes[number], [])
        if bucket and sum(sizes[each] for each in bucket) + sizes[number] > most:
            full.append(bucket)
            bucket = open_buckets[dtypes[number]] = []
        bucket.append(number)
        if sum(sizes[each] for each in bucket) >= most:
            full.append(open_buckets.pop(dtypes[number]))
    return [*full, *open_buckets.values()]


def summed(
    tensors: Sequence[Tensor],
    order: Sequence[int],
    most: int | None,
    wire: Sequence[DTypeLike],
    since: int | None = None,
) -> list[Tensor]:
    """Build the sums of tensors over all workers, of which each gives tensors of the same shapes and dtypes.

    Args:
        tensors: of known shapes.
        order: their numbers, in the order in which they are made; it is the same in all workers.
        most: how many bytes a bucket has; None for all of a dtype, summed where they are built.
        wire: for each tensor the dtype in which it is sent; None for its own.
        since: how many operations the graph had when gradients were there; those behind may be put between them.
    """
    graph = get_default_graph()
    kinds = [as_dtype(tensor.dtype if sent is None else sent) for tensor, sent in zip(tensors, wire, strict=True)]
    sizes = [math.prod(int(size or 0) for size in tensor.shape or ()) for tensor in tensors]
    nbytes = [size * kind.itemsize for size, kind in zip(sizes, kinds, strict=True)]
    buckets = buckets_of(nbytes, kinds, order, sum(nbytes) + 1 if most is None else most)
    vectors: list[Tensor] = []
    for bucket in buckets:
        parts = [ops.cast(ops.reshape(tensors[number], (-1,)), kinds[number]) for number in bucket]
        vectors.append(parts[0] if len(parts) == 1 else ops.concatenate(parts))
    if most is None:
        totals = [all_reduce(vector) for vector in vectors]
    else:
        begun = [begin_all_reduce(vector) for vector in vectors]
        if since is not None:
            hoist(graph, _behind(graph, [symbol_of(each) for each in begun], since))
        totals = [end_all_reduce(number, vector) for number, vector in zip(begun, vectors, strict=True)]
    sums: list[Any] = [None] * len(tensors)
    for bucket, total in zip(buckets, totals, strict=True):
        begin = 0
        for number in bucket:
            tensor, end = tensors[number], begin + sizes[number]
            sums[number] = ops.cast(ops.reshape(total[begin:end], tensor.shape or ()), tensor.dtype)
            begin = end
    return sums


def _behind(graph: Graph, wanted: Sequence[Symbol], since: int) -> list[Operation]:
    """Return the operations that make some tensors, of those that a graph got later."""
    later = set(graph.operations[since:])
    found: dict[Operation, None] = {}
    left = [tensor.operation for tensor in wanted]
    while left:
        operation = left.pop()
        if operation in later and operation not in found:
            found[operation] = None
            left += [tensor.operation for tensor in operation.inputs] + list(operation.control_inputs)
    return list(found)


def exchanged(graph: Graph) -> list[Operation]:
    """Return the operations of a graph that end only when other workers have run them, too."""
    kinds = (AllReduce, AllGather, Barrier, Broadcast, EndAllReduce, ReduceScatter)
    return [operation for operation in graph.operations if isinstance(operation.op, kinds)]


def weighted(entry: Entry, tensors: list[Tensor], weight: Tensor, is_first: bool) -> list[Tensor]:
    """Return what a worker adds to a sum over all of them; for rows of a table, the indices before."""
    *indices, value = tensors
    reduction = entry.part.reduction
    value = _summable(value)
    if reduction == "mean":
        value = value * ops.cast(weight, value.dtype)
    elif reduction == "first" and not is_first:
        value = ops.zeros_like(value)
    if entry.part.has_rows:
        value = ops.cast(value, entry.part.dtype)
    return [*indices, value]


def nothing(entry: Entry) -> list[Tensor]:
    """Return what a worker without rows adds."""
    dtype, shape = as_dtype(entry.part.dtype), entry.part.shape or ()
    if entry.part.has_rows:
        return [ops.zeros((0,), "int64"), ops.zeros((0, *shape[1:]), dtype)]
    return [_summable(ops.zeros(shape, dtype))]


def _summable(value: Tensor) -> Tensor:
    """Return a tensor of a dtype in which sums over workers lose nothing: of half precision they are float32."""
    kind, size = value.dtype.kind, value.dtype.itemsize
    if kind == "b":
        return ops.cast(value, "int32")
    return ops.cast(value, "float32") if size < 4 and kind not in "iu" else value


def build_updates(
    plan: StepTracer,
    shards: Sequence[OptimizerShards],
    given: list[list[Tensor]],
    first_order: Sequence[int],
    most: int | None,
    wire_dtype: str | None,
    gradients_at: int | None = None,
) -> None:
    """Build the sums over all workers of what each gives, and the updates by them.

    Args:
        plan: of the step.
        shards: the parts of the optimizers, if each worker has one.
        given: for each entry of the plan its tensors.
        first_order: in which the chief's backward pass makes the gradients.
        most: how many bytes a bucket has at most; None for one sum.
        wire_dtype: in which gradients are sent; None for their own.
        gradients_at: how many operations the graph had when the gradients were made, if sums may begin among them.
    """
    entries = plan.entries
    dense = [n for n, e in enumerate(entries) if not e.part.has_rows and not (shards and e.is_gradient)]
    order = [dense.index(number) for number in first_order if number in dense]
    wire = [wire_dtype if entries[number].is_gradient else None for number in dense]
    sums = iter(summed([given[number][0] for number in dense], order, most, wire, gradients_at))
    values: list[Gradient] = []
    for entry, tensors in zip(entries, given, strict=True):
        if shards and entry.is_gradient:
            values.append(_whole(entry, tensors))
        elif entry.part.has_rows:
            sent = (wire_dtype if entry.is_gradient else None) or tensors[1].dtype
            rows = ops.cast(tensors[1], sent)
            values.append(_slices(entry, ops.cast(all_gather(rows), tensors[1].dtype), all_gather(tensors[0])))
        else:
            values.append(ops.cast(next(sums), entry.part.dtype))
    # So all updates are made, or none, where a sum fails. Parts of an optimizer are gathered behind its updates.
    with control_dependencies([] if shards else exchanged(get_default_graph())):
        plan.build_updates(values, shards)


def _whole(entry: Entry, tensors: list[Tensor]) -> Tensor:
    """Return a gradient of this worker, dense."""
    if not entry.part.has_rows:
        return tensors[0]
    return ops.convert_to_tensor(_slices(entry, tensors[1], tensors[0]))


def _slices(entry: Entry, rows: Tensor, positions: Tensor) -> IndexedSlices:
    """Return a gradient that consists of rows of the entry's variable."""
    return IndexedSlices(rows, positions, ops.convert_to_tensor(np.array(entry.part.shape, "int64")))


__all__ = ["buckets_of", "build_updates", "exchanged", "nothing", "summed", "weighted"]
