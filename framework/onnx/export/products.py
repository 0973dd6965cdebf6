"""Products of matrices, reductions, softmax, and sorting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ....engine.common import dtypes
from ....engine.common.dtypes import DType
from ....engine.graph.graph import Operation
from ....engine.ops.arrays.sorting import ArgSort, BinCount, InTopK, SearchSorted, Sort, TopK
from ....engine.ops.linear_algebra.einsum import Contraction
from ....engine.ops.linear_algebra.products import BatchMatMul, MatMul
from ....engine.ops.math.counting import CountNonzero
from ....engine.ops.math.reduced import BroadcastReduced, Sum
from ....engine.ops.math.reduction import (
    AllTrue,
    AnyTrue,
    ArgMax,
    ArgMin,
    LogSumExp,
    Max,
    Mean,
    Min,
    Prod,
    ReducedCount,
)
from ....engine.ops.math.running import CumSum, Shift
from ....engine.ops.neural.softmax import LogSoftmax, Softmax
from .registry import exports, op_of
from .shapes import positions, rank_of, shape_input
from .strings import position_in
from .writer import BOOL, FLOAT, INT, LONG, Writer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# --- products -------------------------------------------------------------------------------------------------------


@exports("matmul", "batch_matmul")
def _matmul(w: Writer, node: Operation, a: str, b: str) -> str:
    op = op_of(node, (MatMul, BatchMatMul))
    if op.transpose_a:
        a = swapped(w, a, rank_of(node, 0))
    if op.transpose_b:
        b = swapped(w, b, rank_of(node, 1))
    return w.add("MatMul", a, b)


def swapped(w: Writer, x: str, rank: int) -> str:
    """Return a value with its last two axes exchanged."""
    return w.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


@exports("contraction")
def _contraction(w: Writer, node: Operation, a: str, b: str) -> str:
    """Return a product of matrices, as onnxruntime's Einsum ends the process where an axis is empty.

    Labels are of both and the result (stacks), of both alone (summed), or of one: each operand is turned to stacks, its
    own, summed, where several labels of one kind become one axis.
    """
    op = op_of(node, Contraction)
    labels, names = [op.a, op.b], [a, b]
    shapes: Any = [node.inputs[k].shape for k in (0, 1)]
    known = [dict(zip(each, shape, strict=True)) for each, shape in zip(labels, shapes, strict=True)]
    for k in (0, 1):  # what broadcasts is taken away, where the other operand has the label and another size
        other = known[1 - k]
        ones = [axis for axis, label in enumerate(labels[k]) if known[k][label] == 1 != other.get(label, 1)]
        names[k] = w.squeeze(names[k], *ones)
        labels[k] = "".join(label for axis, label in enumerate(labels[k]) if axis not in ones)
    both = [label for label in labels[0] if label in labels[1]]
    stacks, summed = [each for each in both if each in op.out], [each for each in both if each not in op.out]
    left = [each for each in labels[0] if each not in both]
    right = [each for each in labels[1] if each not in both]
    sizes = {label: w.dim(names[k], axis) for k in (1, 0) for axis, label in enumerate(labels[k])}
    first = _grouped(w, names[0], labels[0], stacks, left, summed, sizes)
    second = _grouped(w, names[1], labels[1], stacks, summed, right, sizes)
    product = w.add("MatMul", first, second)
    order = [*stacks, *left, *right]
    if len(left) != 1 or len(right) != 1:
        parts = [sizes[label] for label in order]
        product = w.reshape(product, w.concat(parts, 0) if parts else w.ints())
    return w.transpose(product, [order.index(label) for label in op.out])


def _grouped(
    w: Writer,
    x: str,
    labels: str,
    stacks: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
    sizes: Mapping[str, str],
) -> str:
    """Return an operand as (*stacks, rows, columns), where rows and columns are one axis each."""
    turned = w.transpose(x, [labels.index(label) for label in [*stacks, *rows, *columns]])
    if len(rows) == 1 and len(columns) == 1:
        return turned
    merged = [_count(w, group, sizes) for group in (rows, columns)]
    return w.reshape(turned, w.concat([*[sizes[label] for label in stacks], *merged], 0))


def _count(w: Writer, labels: Sequence[str], sizes: Mapping[str, str]) -> str:
    """Return the number of elements of several axes, an int64 vector of one element."""
    total = w.ints(1)
    for place, label in enumerate(labels):
        total = sizes[label] if not place else w.add("Mul", total, sizes[label])
    return total


# --- reductions -----------------------------------------------------------------------------------------------------


def reduced(w: Writer, op_type: str, x: str, axes: Sequence[int] | None, keepdims: bool) -> str:
    """Return a reduction over axes; None means all, and none at all gives the input."""
    if axes is None:
        return w.add(op_type, x, keepdims=int(keepdims))
    return x if not axes else w.add(op_type, x, w.ints(*axes), keepdims=int(keepdims))


@exports("sum", "mean", "prod", "log_sum_exp")
def _reduced(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, (Sum, Mean, Prod, LogSumExp))
    op_type = {"sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd", "log_sum_exp": "ReduceLogSumExp"}
    dtype = w.dtypes[x]
    wide = getattr(op, "accumulator", None) or (FLOAT if dtype.name in ("float16", "bfloat16") else dtype)
    if dtype == BOOL:
        wide = INT
    name = op_type[node.type]
    x = w.cast(x, wide)
    if name == "ReduceMean" and op.axes != ():  # of no elements onnxruntime's mean is 0, and ours NaN
        total = reduced(w, "ReduceSum", x, op.axes, op.keepdims)
        sizes = w.shape(x) if op.axes is None else w.add("Gather", w.shape(x), w.ints(*op.axes))
        count = w.cast(w.add("ReduceProd", sizes, keepdims=0), wide)
        return w.cast(w.add("Div", total, count), node.outputs[0].dtype)
    if name == "ReduceLogSumExp":
        return w.cast(_log_sum_exp(w, x, op.axes, op.keepdims), node.outputs[0].dtype)
    return w.cast(reduced(w, name, x, op.axes, op.keepdims), node.outputs[0].dtype)


def _log_sum_exp(w: Writer, x: str, axes: Sequence[int] | None, keepdims: bool) -> str:
    """Take the maximum out before the exponentials; it counts as 0 where it is infinite or there are no elements."""
    if axes == ():
        return x
    top = extremum_or(w, "ReduceMax", x, axes, True, -np.inf)
    infinite = w.add("IsInf", top, dtype=BOOL)
    shift = w.where(infinite, w.like(0, x), top)
    total = reduced(w, "ReduceSum", w.add("Exp", w.add("Sub", x, shift)), axes, keepdims)
    if not keepdims:
        shift = w.add("Squeeze", shift, *([] if axes is None else [w.ints(*axes)]))
    return w.add("Add", w.add("Log", total), shift)


def extremum_or(w: Writer, op_type: str, x: str, axes: Sequence[int] | None, keepdims: bool, initial: float) -> str:
    """Return an extremum that is at least `initial`, also over no elements: one such element is put behind them."""
    if axes == ():
        return w.add("Max" if op_type == "ReduceMax" else "Min", x, w.like(initial, x))
    if axes is None:
        flat = w.add("Reshape", x, w.ints(-1))
        more = w.concat([flat, w.constant(np.full(1, initial).astype(w.dtypes[x]))], 0)
        result = w.add(op_type, more, w.ints(0), keepdims=0)
        if not keepdims:
            return result
        ones = w.expand(w.ints(1), w.shape(w.shape(x)))
        return w.reshape(result, ones)
    shape = w.shape(x)
    for_axes = w.ints(*axes)
    # Of the other axes the sizes stay; along the reduced ones there is one element more.
    ones = w.add("ScatterElements", shape, for_axes, w.ints(*[1] * len(axes)))
    more = w.expand(w.like(initial, x), ones)
    first = w.concat([x, _spread(w, more, shape, axes)], axes[-1])
    return w.add(op_type, first, for_axes, keepdims=int(keepdims))


def _spread(w: Writer, ones: str, shape: str, axes: Sequence[int]) -> str:
    """Return elements that are one along the last of the axes, and as many as in `shape` along the others."""
    if len(axes) == 1:
        return ones
    wanted = w.add("ScatterElements", shape, w.ints(axes[-1]), w.ints(1))
    return w.expand(ones, wanted)


@exports("max", "min")
def _extremum(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, (Max, Min))
    op_type = "ReduceMax" if node.type == "max" else "ReduceMin"
    dtype = w.dtypes[x]
    if dtype == BOOL:
        return w.cast(_extremum_of(w, op_type, w.cast(x, INT), op), BOOL)
    return _extremum_of(w, op_type, x, op)


def _extremum_of(w: Writer, op_type: str, x: str, op: Max | Min) -> str:
    if op.initial is None:
        return reduced(w, op_type, x, op.axes, op.keepdims)
    axes = op.axes
    if axes is not None and len(axes) > 1:  # the elements behind would have to extend along all of the axes
        inner = reduced(w, op_type, x, axes[:-1], True)
        result = extremum_or(w, op_type, inner, axes[-1:], True, op.initial)
        return result if op.keepdims else w.squeeze(result, *axes)
    return extremum_or(w, op_type, x, axes, op.keepdims, op.initial)


@exports("all_true", "any_true")
def _logical(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, (AllTrue, AnyTrue))
    truth = w.cast(x, BOOL)
    if op.axes == ():
        return truth
    every = node.type == "all_true"
    count = reduced(w, "ReduceSum", w.cast(w.negate(truth) if every else truth, INT), op.axes, op.keepdims)
    return w.compare("Equal" if every else "Greater", count, w.like(0, count))


@exports("count_nonzero")
def _count_nonzero(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, CountNonzero)
    return w.cast(reduced(w, "ReduceSum", w.cast(w.cast(x, BOOL), INT), op.axes, op.keepdims), node.outputs[0].dtype)


@exports("arg_max", "arg_min")
def _arg_extremum(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, (ArgMax, ArgMin))
    op_type = "ArgMax" if node.type == "arg_max" else "ArgMin"
    if w.dtypes[x] == BOOL:
        x = w.cast(x, INT)
    rank = rank_of(node)
    axes = tuple(range(rank)) if op.axes is None else tuple(axis % rank for axis in op.axes)
    if len(axes) == 1:
        return w.cast(w.add(op_type, x, dtype=LONG, axis=axes[0], keepdims=int(op.keepdims)), INT)
    kept = [axis for axis in range(rank) if axis not in axes]
    turned = w.transpose(x, [*kept, *axes])
    shape = w.concat([*[w.dim(x, axis) for axis in kept], w.ints(-1)], 0)
    place = w.cast(w.add(op_type, w.add("Reshape", turned, shape), dtype=LONG, axis=len(kept), keepdims=0), INT)
    return w.unsqueeze(place, *sorted(axes)) if op.keepdims else place


@exports("broadcast_reduced")
def _broadcast_reduced(w: Writer, node: Operation, x: str, shape: str) -> str:
    op = op_of(node, BroadcastReduced)
    long = shape_input(w, shape)
    if not op.keepdims and op.axes is not None:
        rank = rank_of(node) + len(op.axes)
        x = w.unsqueeze(x, *sorted(axis % rank for axis in op.axes))
    return w.expand(x, long)


@exports("reduced_count")
def _reduced_count(w: Writer, node: Operation, shape: str) -> str:
    op = op_of(node, ReducedCount)
    sizes = shape_input(w, shape)
    if op.axes is not None:
        sizes = w.add("Gather", sizes, w.ints(*op.axes))
    count = w.add("Max", w.add("ReduceProd", sizes, keepdims=0), w.constant(1, LONG))
    return w.cast(count, op.dtype)


# --- running --------------------------------------------------------------------------------------------------------


@exports("cum_sum")
def _cum_sum(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, CumSum)
    axis = w.constant(op.axis % rank_of(node), LONG)
    return w.add("CumSum", x, axis, exclusive=int(op.exclusive), reverse=int(op.reverse))


@exports("shift")
def _shift(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, Shift)
    rank = rank_of(node)
    axis = op.axis % rank
    before, behind = (0, 1) if op.reverse else (1, 0)
    widths = [0] * (2 * rank)
    widths[axis], widths[rank + axis] = before, behind
    padded = w.add("Pad", x, w.ints(*widths), w.like(0, x))
    return w.slice(padded, 1, np.iinfo(np.int64).max, axis) if op.reverse else w.slice(padded, 0, -1, axis)


# --- softmax and classes --------------------------------------------------------------------------------------------


@exports("softmax", "log_softmax")
def _softmax(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, (Softmax, LogSoftmax))
    axes = op.axes or ()
    if len(axes) == 1:
        return w.add("Softmax" if node.type == "softmax" else "LogSoftmax", x, axis=axes[0])
    logs = w.add("Sub", x, _log_sum_exp(w, x, op.axes, True))
    return logs if node.type == "log_softmax" else w.add("Exp", logs)


@exports("sparse_cross_entropy")
def _sparse_cross_entropy(w: Writer, node: Operation, x: str, labels: str) -> list[str]:
    logs = w.add("LogSoftmax", x, axis=-1)
    picked = w.add("GatherElements", logs, w.unsqueeze(w.cast(labels, LONG), -1), axis=-1)
    return [w.add("Neg", w.squeeze(picked, -1)), w.add("Softmax", x, axis=-1)]


@exports("select_class")
def _select_class(w: Writer, node: Operation, x: str, labels: str) -> str:
    return w.squeeze(w.add("GatherElements", x, w.unsqueeze(w.cast(labels, LONG), -1), axis=-1), -1)


# --- sorting --------------------------------------------------------------------------------------------------------


@exports("top_k")
def _top_k(w: Writer, node: Operation, x: str) -> list[str]:
    op = op_of(node, TopK)
    x, back = _sortable(w, x)
    values, places = w.add_many("TopK", x, w.ints(op.k), dtypes=[None, LONG], axis=-1, largest=1, sorted=1)
    return [w.cast(values, back), w.cast(places, INT)]


def _sortable(w: Writer, x: str) -> tuple[str, DType]:
    """Return a value of a type that is sorted, and the dtype that it had."""
    dtype = w.dtypes[x]
    return (w.cast(x, INT) if dtype == BOOL else x), dtype


@exports("sort", "arg_sort")
def _sort(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, (Sort, ArgSort))
    axis = op.axis % rank_of(node)
    x, back = _sortable(w, x)
    values, places = w.add_many("TopK", x, w.dim(x, axis), dtypes=[None, LONG], axis=axis, largest=0, sorted=1)
    return w.cast(values, back) if node.type == "sort" else w.cast(places, INT)


@exports("in_top_k")
def _in_top_k(w: Writer, node: Operation, targets: str, predictions: str) -> str:
    op = op_of(node, InTopK)
    if w.dtypes[targets].kind not in "iu":
        targets, predictions = predictions, targets
    place = w.unsqueeze(w.cast(targets, LONG), -1)
    zero = w.ints(0)
    outside = w.add("Or", w.compare("Less", place, zero), w.compare("GreaterOrEqual", place, w.dim(predictions, -1)))
    picked = w.add("GatherElements", predictions, w.where(outside, zero, place), axis=-1)
    larger = w.cast(w.compare("Greater", predictions, picked), INT)
    fewer = w.compare("Less", w.add("ReduceSum", larger, w.ints(-1), keepdims=0), w.constant(op.k, INT))
    bad = w.add("Or", w.add("IsNaN", picked, dtype=BOOL), w.add("IsInf", picked, dtype=BOOL))
    return w.add("And", fewer, w.negate(w.squeeze(w.add("Or", bad, outside), -1)))


@exports("search_sorted")
def _search_sorted(w: Writer, node: Operation, edges: str, values: str) -> str:
    op = op_of(node, SearchSorted)
    if dtypes.is_string(w.dtypes[values]):
        return position_in(w, node, edges, values)
    column = w.unsqueeze(values, -1)
    before = w.compare("Less" if op.side == "left" else "LessOrEqual", edges, column)
    return w.cast(w.add("ReduceSum", w.cast(before, INT), w.ints(-1), keepdims=0), node.outputs[0].dtype)


@exports("invert_permutation")
def _invert_permutation(w: Writer, node: Operation, x: str) -> str:
    places = positions(w, w.dim(x, 0))
    zeros = w.zeros(w.shape(x), LONG)
    return w.cast(w.add("ScatterElements", zeros, w.cast(x, LONG), places), w.dtypes[x])


@exports("bin_count")
def _bin_count(w: Writer, node: Operation, x: str, *weights: str) -> str:
    op = op_of(node, BinCount)
    if rank_of(node) != 1:
        raise ValueError("only vectors are counted in ONNX")
    dtype = node.outputs[0].dtype
    most = w.add("ReduceMax", w.concat([w.cast(x, LONG), w.ints(-1)], 0), keepdims=1)
    size = w.add("Max", w.add("Add", most, w.ints(1)), w.ints(op.minlength))
    counted = w.cast(weights[0], dtype) if weights else w.expand(w.constant(np.ones((), dtype)), w.shape(x))
    return w.add("ScatterElements", w.zeros(size, dtype), w.cast(x, LONG), counted, reduction="add")


@exports("determinant")
def _determinant(w: Writer, node: Operation, x: str) -> str:
    if not dtypes.is_floating(w.dtypes[x]):
        raise ValueError("ONNX has determinants of floating-point matrices only")
    return w.add("Det", x)
