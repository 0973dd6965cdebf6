"""Totals, outside of loops and branches, of values that are computed inside them and are not results of theirs.

A body's value, summed over the iterations; a branch's, or 0 where another branch was taken. Both are read from frames
(see `frames`), so that nothing is recorded unless somebody asks, and both have gradients.
"""

from __future__ import annotations

from ..graph.graph import Graph, Operation
from ..graph.region import Region
from ..graph.tensor import Symbol, Tensor, symbol_of
from ..ops.arrays.creation import zeros
from ..ops.math.comparison import clip, equal, logical_not
from ..ops.math.reduction import sum as sum_of
from .cond import Branch, cond
from .frames import History, Saved, from_frame
from .region_op import RegionOp
from .tensor_array import TensorArray
from .while_loop import While


def holder_of(region: Region) -> Operation | None:
    """Return the loop, branch or other operation to which `region` belongs; None if it is a trace that was not kept."""
    for operation in reversed(region.parent.operations):
        if isinstance(operation.op, RegionOp) and region in operation.op.regions:
            return operation
    return None


def is_within(graph: Graph, tensor: Symbol) -> bool:
    """Test whether `tensor` is in something finished, a loop, a branch or a function, whose results `graph` can use.

    A trace that was thrown away, because the body was traced again for other shapes, is none.
    """
    region = tensor.graph
    if graph.is_inside(region):
        return False
    while isinstance(region, Region) and region.is_built and not graph.is_inside(region):
        region = region.parent
    return graph.is_inside(region)


def total_outside(graph: Graph, tensor: Symbol) -> Symbol | None:
    """Return a scalar from inside loops and branches (see `is_within`), summed over how often it was computed.

    Returns:
        A scalar that `graph` can use; 0 for no iteration, and for a branch not taken. None if it is in something of
        which nothing is known but results: a recursive function, a `dynamic_schedule`, a `vectorized_map`.
    """
    total: Symbol | None = tensor
    while total is not None and not graph.is_inside(total.graph):
        assert isinstance(total.graph, Region)
        total = _one_level_out(total, total.graph)
    return total


def _one_level_out(tensor: Symbol, region: Region) -> Symbol | None:
    holder = holder_of(region)
    if holder is None:
        return None
    with region.parent.entered():
        if isinstance(holder.op, While):
            history = from_frame(holder.outputs[-1], History(tensor), tensor)
            return symbol_of(sum_of(TensorArray.from_flow(history).stack(), axis=0))
        if not isinstance(holder.op, Branch) or not holder.op.is_choice:
            return None
        saved = from_frame(holder.outputs[-1], Saved(tensor), tensor)
        return cond(_is_taken(holder, region), lambda: saved, lambda: zeros((), tensor.dtype))


def _is_taken(holder: Operation, region: Region) -> Tensor:
    """Return a bool of the graph: whether `region` is the branch that runs."""
    choice, regions = holder.inputs[0], holder.op.regions
    number = regions.index(region)
    if choice.dtype.kind == "b":
        return choice if number == 0 else logical_not(choice)
    return equal(clip(choice, 0, len(regions) - 1), number)
