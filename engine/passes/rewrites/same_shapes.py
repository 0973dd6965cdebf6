"""Leave out changes to a shape that is known at run time only, but known to be the same already.

A gradient sums what an operand may have been broadcast to down to the shape of that operand. Where sizes are not known
it can't be seen when the gradient is built whether there is anything to sum; of equal names of sizes (see `sizes`) it
can: then the sum is none, or one over certain axes, which kernels compute.
"""

from __future__ import annotations

from ...common.dtypes import accumulator_of
from ...common.identity import is_same
from ...graph.graph import Operation
from ...graph.region import Region
from ...graph.spec import Shape
from ...graph.tensor import Symbol
from ...ops.arrays.shaping import DimOf
from ...ops.math.reduced import Sum
from ...ops.run_time_shapes import BroadcastToShape, ReshapeToShape, ShapeOf, SumToShape
from ..framework.driver import Change, Rule
from ..framework.patterns import ANY, Match, any_of, op, tensor
from ..framework.rewriter import Rewriter
from ..framework.sizes import KnownSizes, Sizes


def _is_outside(operation: Operation) -> bool:
    """Test that an operation is in no loop: those that are one function add to a shape."""
    return not isinstance(operation.graph, Region)


_shape = any_of(op(ShapeOf, of=[tensor("like")], may_wait=True), ANY)
_change = op(BroadcastToShape, ReshapeToShape, SumToShape, of=[tensor("x"), _shape], name="change")
_open_sum = op(SumToShape, of=[tensor("x"), _shape], name="change", where=_is_outside)


def _sizes_of(match: Match, known: KnownSizes) -> tuple[Sizes | None, Sizes | None]:
    """Return the sizes of a value, and those of the shape to which it is changed; None where they are not known."""
    shape: Shape = match["change"].op.shape
    dims = [dim for dim in shape or () if dim is not None]
    static = None if shape is None or len(dims) < len(shape) else tuple(dims)
    return known.of(match["x"]), known.of(match["like"]) if "like" in match else static


def _leave_out(match: Match, step: Rewriter) -> Change | None:
    before, after = _sizes_of(match, step.sizes)
    change, x = match["change"], match["x"]
    (result,) = change.outputs
    if before is None or after is None or not is_same(before, after) or step.has_hidden_use(result):
        return None
    if not result.spec.accepts(x.spec) and any(user.op.regions for user in step.users(result)):
        return None  # regions capture what has the spec that their operations were made for
    step.replace_uses(result, x)
    return Change(change, "has that shape already")


def _sum_over_axes(match: Match, step: Rewriter) -> Change | None:
    """Sum over axes, if it is known over which."""
    before, after = _sizes_of(match, step.sizes)
    if before is None or after is None or is_same(before, after):
        return None
    extra = len(before) - len(after)
    if extra < 0 or any(new != 1 and not is_same(new, old) for old, new in zip(before[extra:], after, strict=True)):
        return None
    ones = [extra + axis for axis, size in enumerate(after) if size == 1 and before[extra + axis] != 1]
    if extra and ones:
        return None
    axes = (*range(extra), *ones)
    x, change = match["x"], match["change"]
    total = Sum(axes, not extra, accumulator_of(x.dtype))
    if not change.outputs[0].spec.accepts(total.infer(x.spec)):
        return None  # of a size that is known here, but not of what is summed
    step.update(change, total, [x])
    step.narrow([change])  # of a size of 1 the operation before may not have known
    return Change(change, f"is a sum over axes {list(axes)}")


def _take_of_origin(match: Match, step: Rewriter) -> Change | None:
    """Take the same size of a smaller value, so that a larger one need not be kept for it."""
    size, (x,) = match["size"], match["size"].inputs
    origin, axis = _origin(step.sizes.of(x), size.op.axis)
    if origin is None or origin is x or origin.operation.graph is not size.graph:
        return None
    if origin.operation.index > size.index:
        return None  # of parts that are as many, the one that is asked for first gives the name
    ours, theirs = _row_size(x), _row_size(origin)
    if ours is None or theirs is None or theirs >= ours:
        return None
    step.update(size, DimOf(axis), [origin])
    return Change(size, f"is a size of {origin.name!r}, which is smaller")


def _origin(sizes: Sizes | None, axis: int) -> tuple[Symbol | None, int]:
    """Return the value and the axis by which a size is named; None where it is named otherwise."""
    name = () if sizes is None else sizes[axis]
    if isinstance(name, int) or len(name) != 2 or not isinstance(name[0], Symbol):
        return None, 0
    return name[0], name[1]


def _row_size(x: Symbol) -> int | None:
    """Return the bytes of the part of a value that has a place along the one axis of unknown size."""
    if x.shape is None or x.shape.count(None) != 1:
        return None
    size = x.dtype.itemsize
    for dim in x.shape:
        size *= 1 if dim is None else dim
    return size


RULES = (
    Rule("leave out a change to the same shape", _change, _leave_out),
    Rule("sum over axes", _open_sum, _sum_over_axes),
    Rule("take a size of a smaller value", op(DimOf, name="size", may_wait=True), _take_of_origin),
)

__all__ = ["RULES"]
