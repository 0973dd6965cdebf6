"""Changes to a shape that is known at run time only, but known to be the same already, are left out.

A gradient sums what an operand may have been broadcast to down to the shape of that operand. Where sizes are not known
it can't be seen when the gradient is built whether there is anything to sum; of equal names of sizes (see `sizes`) it
can: then the sum is none, or one over certain axes, which kernels know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..graph.graph import Graph, Operation
from ..graph.identity import is_same
from ..graph.spec import Shape
from ..graph.tensor import Symbol
from ..ops.reduced import Sum
from ..ops.run_time_shapes import BroadcastToShape, ReshapeToShape, SumToShape
from ..ops.shaping import DimOf
from .log import note_change
from .prune import Kept, all_operations, inner_blocks, kept_of
from .sizes import KnownSizes, Sizes, shaped_like

_TO_SHAPE = (BroadcastToShape, ReshapeToShape, SumToShape)


def leave_out_same_shapes(
    graph: Graph, operations: Sequence[Operation], kept: Iterable[Symbol | Operation], known: KnownSizes
) -> None:
    """Rewrite such changes among `operations`, and in regions inside.

    Args:
        graph: the step.
        operations: those of it that run, in program order.
        kept: tensors whose values are wanted from outside, and operations.
        known: the sizes of their results.
    """
    if not any(_is_open(operation) for operation in all_operations(operations)):
        return
    _visit(operations, kept_of(graph, operations, kept), known, is_inside=False)


def _is_open(operation: Operation) -> bool:
    """Test whether an operation changes to a shape, or takes a size, that is not known."""
    if isinstance(operation.op, DimOf):
        return True
    op = operation.op
    return isinstance(op, _TO_SHAPE) and (shaped_like(operation.inputs[1]) is not None or _is_known(op.shape))


def _is_known(shape: Shape) -> bool:
    return shape is not None and None not in shape


def _wanted(operation: Operation, op: Any, known: KnownSizes) -> Sizes | None:
    """The sizes of the shape to which an operation changes."""
    like = shaped_like(operation.inputs[1])
    return known.of(like) if like is not None else op.shape if _is_known(op.shape) else None


def _visit(operations: Sequence[Operation], kept: Kept, known: KnownSizes, is_inside: bool) -> None:
    stands_for: dict[Symbol, Symbol] = {}
    for operation in operations:
        for _, inside, wanted in inner_blocks(operation, kept):
            _visit(inside, wanted, known, is_inside=True)
        if not operation.op.regions and not stands_for.keys().isdisjoint(operation.inputs):
            operation.inputs = tuple([stands_for.get(tensor, tensor) for tensor in operation.inputs])
        if isinstance(operation.op, DimOf):
            _ask_origin(operation, operation.op, known)
        if operation.control_inputs or not _is_open(operation) or isinstance(operation.op, DimOf):
            continue
        x = operation.inputs[0]
        before, after = known.of(x), _wanted(operation, operation.op, known)
        if before is None or after is None:
            continue
        if is_same(before, after):
            if operation.outputs[0] not in kept.own:
                note_change("same_shapes", operation, "has that shape already")
                stands_for[operation.outputs[0]] = x
        elif isinstance(operation.op, SumToShape) and not is_inside:  # loops that are one function add to a shape
            _sum_over_axes(operation, before, after)


def _sum_over_axes(operation: Operation, before: Sizes, after: Sizes) -> None:
    """Sum over axes, if it is known over which."""
    extra = len(before) - len(after)
    if extra < 0 or any(new != 1 and not is_same(new, old) for old, new in zip(before[extra:], after, strict=True)):
        return
    ones = [extra + axis for axis, size in enumerate(after) if size == 1 and before[extra + axis] != 1]
    if extra and ones:
        return
    note_change("same_shapes", operation, f"is a sum over axes {[*range(extra), *ones]}")
    operation.op, operation.inputs = Sum((*range(extra), *ones), not extra), operation.inputs[:1]


def _ask_origin(operation: Operation, op: DimOf, known: KnownSizes) -> None:
    """Ask a smaller value for the same size, so that a larger one need not be kept for it."""
    (x,) = operation.inputs
    sizes = known.of(x)
    name = None if sizes is None else sizes[op.axis]
    if not isinstance(name, tuple) or len(name) != 2 or not isinstance(name[0], Symbol):
        return
    origin, axis = name
    is_smaller = _row_size(origin) is not None and (_row_size(origin) or 0) < (_row_size(x) or 0)
    if origin is not x and origin.operation.graph is operation.graph and is_smaller:
        operation.op, operation.inputs = DimOf(axis), (origin,)


def _row_size(x: Symbol) -> int | None:
    """The bytes of the part of a value that has a place along the one axis of unknown size."""
    if x.shape is None or x.shape.count(None) != 1:
        return None
    size = x.dtype.itemsize
    for dim in x.shape:
        size *= 1 if dim is None else dim
    return size
