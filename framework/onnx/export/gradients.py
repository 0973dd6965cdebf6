"""Operations that only gradients have: shares of extrema, running products, places of classes, the last writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....engine.autodiff.custom_gradient import CustomGradient
from ....engine.graph.graph import Operation
from ....engine.ops.arrays.creation import PutDiagonal
from ....engine.ops.math.reduction import TieShare
from ....engine.ops.math.running import CumProd, LinearScan
from .gathering import added_at_places
from .registry import exports, op_of
from .shapes import diagonal, positions, rank_of, shape_input
from .writer import FLOAT, LONG, Writer

if TYPE_CHECKING:
    from collections.abc import Callable


@exports("custom_gradient")
def _custom_gradient(w: Writer, node: Operation, *inputs: object) -> list[object]:
    return list(inputs[: op_of(node, CustomGradient).rule.results])


@exports("tie_share")
def _tie_share(w: Writer, node: Operation, x: str, y: str) -> str:
    op = op_of(node, TieShare)
    rank = rank_of(node)
    axes = range(rank) if op.axes is None else sorted(axis % rank for axis in op.axes)
    full = y if op.keepdims else w.unsqueeze(y, *axes)
    dtype = w.dtypes[x]
    wide = dtype if dtype.itemsize > FLOAT.itemsize else FLOAT
    hits = w.cast(w.compare("Equal", x, full), wide)
    count = w.add("ReduceSum", hits, w.ints(*axes), keepdims=1, noop_with_empty_axes=1)
    if op.initial is not None:
        count = w.add("Add", count, w.cast(w.compare("Equal", full, w.like(op.initial, full)), wide))
    return w.cast(w.add("Div", hits, w.add("Max", count, w.like(1, count))), dtype)


# --- running along an axis ------------------------------------------------------------------------------------------


def _running(
    w: Writer, x: str, axis: int, rank: int, reverse: bool, start: float, step: Callable[[str, str], tuple[str, str]]
) -> str:
    """Return the results of steps along an axis, in a `Loop`.

    Args:
        w: what appends the nodes.
        x: a value of the result's shape.
        axis: that of the steps.
        rank: of `x`.
        reverse: begin at the end.
        start: what the state is filled with at first.
        step: takes the position and the state; gives the next state and the result of this step.
    """
    order = [axis, *[k for k in range(rank) if k != axis]]
    shape = w.add("Gather", w.shape(x), w.ints(*order), axis=0)
    count = w.slice(shape, 0, 1, 0)
    state = w.expand(w.like(start, x), w.slice(shape, 1, 2**63 - 1, 0))
    last = w.squeeze(w.add("Sub", count, w.ints(1)), 0)

    def body(iteration: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
        following, result = step(w.add("Sub", last, iteration) if reverse else iteration, states[0])
        return [following], [result]

    _, rows = w.repeat(w.squeeze(count, 0), [state], body, lambda name: w.info(name, [None] * (rank - 1)), [rank - 1])
    if reverse:
        rows = w.slice(rows, -1, -(2**63) + 1, 0, -1)
    return w.transpose(w.reshape(rows, shape), list(np.argsort(order)))


@exports("cum_prod")
def _cum_prod(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, CumProd)
    rank = rank_of(node)
    axis = op.axis % rank

    def step(position: str, before: str) -> tuple[str, str]:
        product = w.add("Mul", before, w.add("Gather", x, position, axis=axis))
        return product, before if op.exclusive else product

    return _running(w, x, axis, rank, op.reverse, 1, step)


@exports("linear_scan")
def _linear_scan(w: Writer, node: Operation, a: str, b: str) -> str:
    op = op_of(node, LinearScan)
    rank = rank_of(node, 1)
    axis = op.axis % rank

    def step(position: str, before: str) -> tuple[str, str]:
        factor, addend = (w.add("Gather", each, position, axis=axis) for each in (a, b))
        total = w.add("Add", w.add("Mul", factor, before), addend)
        return total, total

    return _running(w, b, axis, rank, op.reverse, 0, step)


# --- places ---------------------------------------------------------------------------------------------------------


@exports("place_class")
def _place_class(w: Writer, node: Operation, y: str, labels: str, shape: str) -> str:
    base = w.zeros(shape_input(w, shape), w.dtypes[y])
    return w.add("ScatterElements", base, w.unsqueeze(w.cast(labels, LONG), -1), w.unsqueeze(y, -1), axis=-1)


@exports("sparse_cross_entropy_grad")
def _sparse_cross_entropy_grad(w: Writer, node: Operation, softmax: str, labels: str, dloss: str) -> str:
    column = w.unsqueeze(dloss, -1)
    at_label = w.compare("Equal", positions(w, w.dim(softmax, -1)), w.unsqueeze(w.cast(labels, LONG), -1))
    return w.add("Sub", w.add("Mul", softmax, column), w.where(at_label, column, w.like(0, column)))


@exports("put_diagonal")
def _put_diagonal(w: Writer, node: Operation, values: str, shape: str) -> str:
    op = op_of(node, PutDiagonal)
    rank = len(op.shape or ())
    base = w.zeros(shape_input(w, shape), w.dtypes[values])
    return added_at_places(w, base, values, lambda numbers: diagonal(w, numbers, rank, op.offset, op.axis1, op.axis2))


@exports("gather_last")
def _gather_last(w: Writer, node: Operation, x: str, indices: str) -> str:
    """Gather, with zeros for each index that comes again: an index that comes last has the largest number there."""
    depth = (node.inputs[1].shape or (None,))[-1]
    if depth is None:
        raise ValueError("the last axis of the indices must be known")
    long = w.cast(indices, LONG)
    rows = w.slice(w.shape(long), 0, -1, 0)
    numbers = w.reshape(positions(w, w.reshape(w.add("ReduceProd", rows, keepdims=0), w.ints(1))), rows)
    none = w.expand(w.constant(np.array(-1, LONG)), w.slice(w.shape(x), 0, depth, 0))
    last = w.add("GatherND", w.add("ScatterND", none, long, numbers, reduction="max"), long)
    found = w.add("GatherND", x, long)
    extra = len(node.outputs[0].shape or ()) - (len(node.inputs[1].shape or ()) - 1)
    is_last = w.unsqueeze(w.compare("Equal", last, numbers), *[-1 - k for k in range(extra)])
    return w.where(is_last, found, w.like(0, found))
