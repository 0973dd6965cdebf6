"""Shapes, axes, joining, and arrays that are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ....engine.common import dtypes
from ....engine.graph.graph import Operation
from ....engine.ops.arrays.axes import Roll
from ....engine.ops.arrays.creation import Diag, Diagonal, Tri, Triangle
from ....engine.ops.arrays.joining import Split, Stack, Unstack
from ....engine.ops.arrays.positions import Nonzero, OneHot
from .registry import attribute, axes_of, exports, op_of
from .writer import BOOL, INT, LONG, Writer

if TYPE_CHECKING:
    from collections.abc import Sequence


def rank_of(node: Operation, position: int = 0) -> int:
    """Return the rank of an input.

    Raises:
        ValueError: it is not known.
    """
    spec = node.inputs[position].spec
    if spec.shape is None:
        raise ValueError(f"the rank of its input {position} is not known")
    return len(spec.shape)


def shape_input(w: Writer, name: str) -> str:
    """Return a shape, which the engine has as an int32 vector, as int64."""
    return w.once(("long", name), lambda: w.cast(name, LONG))


# --- sizes ----------------------------------------------------------------------------------------------------------


@exports("dim_of")
def _dim_of(w: Writer, node: Operation, x: str) -> str:
    axis = (
        attribute(node, "axis", int) % rank_of(node)
        if attribute(node, "axis", int) < 0
        else attribute(node, "axis", int)
    )
    return scalar_dim(w, x, axis)


def scalar_dim(w: Writer, x: str, axis: int) -> str:
    """Return the size of an axis, as an int32 scalar."""

    def make() -> str:
        vector = w.dim(x, axis)
        scalar = w.cast(w.squeeze(vector, 0), INT)
        w.note_vector(scalar, vector)
        return scalar

    return w.once(("dim_of", x, axis), make)


@exports("shape_of")
def _shape_of(w: Writer, node: Operation, x: str) -> str:
    def make() -> str:
        shape = w.shape(x)
        narrow = w.cast(shape, INT)
        w.once(("long", narrow), lambda: shape)
        return narrow

    return w.once(("shape_of", x), make)


@exports("size_of")
def _size_of(w: Writer, node: Operation, x: str) -> str:
    return w.cast(w.add("Size", x, dtype=LONG), INT)


# --- other shapes of the same elements ------------------------------------------------------------------------------


@exports("reshape")
def _reshape(w: Writer, node: Operation, x: str, *sizes: str) -> str:
    shape = attribute(node, "shape", tuple)
    if -1 in shape:  # beside which allowzero may not stand if there is a 0
        shape = [dim if dim is None or dim >= 0 else -1 for dim in shape]
        if 0 in shape:
            known: Any = node.outputs[0].shape
            shape = [0 if dim == -1 and known[axis] is None else dim for axis, dim in enumerate(shape)]
    filled = w.filled(shape, sizes) if -1 not in shape else _with_rest(w, shape, sizes)
    return w.add("Reshape", x, filled, allowzero=None if -1 in shape else 1)


def _with_rest(w: Writer, shape: Any, sizes: Sequence[str]) -> str:
    return w.filled(shape, sizes) if None in shape else w.ints(*shape)


@exports("reshape_to_shape")
def _reshape_to_shape(w: Writer, node: Operation, x: str, shape: str) -> str:
    return w.reshape(x, shape_input(w, shape))


@exports("expand_dims")
def _expand_dims(w: Writer, node: Operation, x: str) -> str:
    return w.unsqueeze(x, *attribute(node, "axes", tuple))


@exports("squeeze")
def _squeeze(w: Writer, node: Operation, x: str) -> str:
    axes = axes_of(node)
    return w.add("Squeeze", x) if axes is None else w.squeeze(x, *axes)


@exports("flatten_rows")
def _flatten_rows(w: Writer, node: Operation, x: str) -> str:
    return w.add("Flatten", x, axis=-1) if rank_of(node) > 1 else w.unsqueeze(x, 0)


@exports("unflatten_rows")
def _unflatten_rows(w: Writer, node: Operation, rows: str, shape: str) -> str:
    leading = w.slice(shape_input(w, shape), 0, -1, 0)
    return w.reshape(rows, w.concat([leading, w.dim(rows, 1)], 0))


@exports("broadcast_to")
def _broadcast_to(w: Writer, node: Operation, x: str, *sizes: str) -> str:
    return w.expand(x, w.filled(attribute(node, "shape", tuple), sizes))


@exports("broadcast_to_shape")
def _broadcast_to_shape(w: Writer, node: Operation, x: str, shape: str) -> str:
    return w.expand(x, shape_input(w, shape))


@exports("zeros_of_shape")
def _zeros_of_shape(w: Writer, node: Operation, shape: str) -> str:
    return w.zeros(shape_input(w, shape), node.outputs[0].dtype)


@exports("fill")
def _fill(w: Writer, node: Operation, value: str, *sizes: str) -> str:
    return w.expand(value, w.filled(attribute(node, "shape", tuple), sizes))


@exports("sum_to_shape")
def _sum_to_shape(w: Writer, node: Operation, x: str, shape: str) -> str:
    """Sum over the axes of x that the shape lacks, and those where it has 1 and x has not, which are kept."""
    want = node.outputs[0].shape
    rank = rank_of(node)
    if want is None:
        raise ValueError("the rank of the shape is not known")
    extra = rank - len(want)
    total = w.add("ReduceSum", x, w.ints(*range(extra)), keepdims=0) if extra else x
    long = shape_input(w, shape)
    own = w.shape(total)
    one = w.ints(1)
    squashed = w.add("And", w.compare("Equal", long, one), w.negate(w.compare("Equal", own, one)))
    axes = w.squeeze(w.add("NonZero", squashed, dtype=LONG), 0)
    return w.add("ReduceSum", total, axes, keepdims=1, noop_with_empty_axes=1)


# --- axes -----------------------------------------------------------------------------------------------------------


@exports("transpose", "transposed_copy")
def _transpose(w: Writer, node: Operation, x: str) -> str:
    axes = axes_of(node)
    rank = rank_of(node)
    return w.transpose(x, list(reversed(range(rank))) if axes is None else [axis % rank for axis in axes])


@exports("flip")
def _flip(w: Writer, node: Operation, x: str) -> str:
    axes = axes_of(node)
    axes = list(range(rank_of(node))) if axes is None else [axis % rank_of(node) for axis in axes]
    return reversed_along(w, x, axes)


def reversed_along(w: Writer, x: str, axes: list[int]) -> str:
    """Return a value with the order of its elements along axes reversed."""
    if not axes:
        return x
    count = len(axes)
    lowest = np.iinfo(np.int64).min
    return w.add("Slice", x, w.ints(*[-1] * count), w.ints(*[lowest] * count), w.ints(*axes), w.ints(*[-1] * count))


@exports("roll")
def _roll(w: Writer, node: Operation, x: str, *shift: str) -> str:
    op = op_of(node, Roll)
    for place, axis in enumerate(op.axes):
        axis %= rank_of(node)
        size = w.dim(x, axis)
        moved = w.vector(shift[0]) if op.shifts is None else w.ints(op.shifts[place])
        one = w.ints(1)
        rest = w.add("Mod", w.add("Neg", moved), w.add("Max", size, one))  # how many go from the front to the end
        x = w.concat([w.slice(x, rest, size, axis), w.slice(x, 0, rest, axis)], axis)
    return x


@exports("concatenate")
def _concatenate(w: Writer, node: Operation, *parts: str) -> str:
    return w.concat(parts, attribute(node, "axis", int))


@exports("stack")
def _stack(w: Writer, node: Operation, *parts: str) -> str:
    op = op_of(node, Stack)
    axis = op.axis % (rank_of(node) + 1)
    return w.concat([w.unsqueeze(part, axis) for part in parts], axis)


@exports("unstack")
def _unstack(w: Writer, node: Operation, x: str) -> list[str]:
    op = op_of(node, Unstack)
    axis = op.axis % rank_of(node)
    if op.count == 0:
        return []
    return [w.squeeze(part, axis) for part in _split_into(w, x, axis, w.ints(*[1] * op.count), op.count)]


def _split_into(w: Writer, x: str, axis: int, sizes: str, count: int) -> list[str]:
    return w.add_many("Split", x, sizes, dtypes=[None] * count, axis=axis)


@exports("split")
def _split(w: Writer, node: Operation, x: str, *sizes: str) -> list[str]:
    op = op_of(node, Split)
    axis, count = op.axis % rank_of(node), len(op.sizes)
    if op.equal:
        size = w.add("Div", w.dim(x, axis), w.ints(count))
        return _split_into(w, x, axis, w.expand(size, w.ints(count)), count)
    return _split_into(w, x, axis, w.filled(op.sizes, sizes), count)


@exports("pad")
def _pad(w: Writer, node: Operation, x: str, value: str, *widths: str) -> str:
    pairs = attribute(node, "widths", tuple)
    if not pairs:
        return x
    order = list(widths)
    named: list[list[str | None]] = [[order.pop(0) if width is None else None for width in pair] for pair in pairs]
    static = [pair[side] for side in (0, 1) for pair in pairs]
    dynamic = [name for side in (0, 1) for pair in named if (name := pair[side]) is not None]
    return w.add("Pad", x, w.filled(static, dynamic), value)


# --- ranges and matrices --------------------------------------------------------------------------------------------


@exports("range")
def _range(w: Writer, node: Operation, start: str, stop: str, step: str) -> str:
    return w.add("Range", start, stop, step)


def positions(w: Writer, size: str) -> str:
    """Return 0, 1, ... below an int64 vector of one element."""
    return w.add("Range", w.constant(0, LONG), w.squeeze(size, 0), w.constant(1, LONG))


@exports("tri")
def _tri(w: Writer, node: Operation, *sizes: str) -> str:
    op = op_of(node, Tri)
    order = list(sizes)
    rows, columns = [w.ints(dim) if dim is not None else w.vector(order.pop(0)) for dim in op.shape]
    along, down = positions(w, columns), w.unsqueeze(positions(w, rows), 1)
    bound = w.add("Add", down, w.constant(op.offset, LONG))
    return w.cast(w.compare("Equal" if op.only else "LessOrEqual", along, bound), op.dtype)


@exports("triangle")
def _triangle(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, Triangle)
    return w.add("Trilu", x, w.constant(op.offset, LONG), upper=int(op.upper))


@exports("diagonal")
def _diagonal(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, Diagonal)
    return diagonal(w, x, rank_of(node), op.offset, op.axis1, op.axis2)


def diagonal(w: Writer, x: str, rank: int, offset: int, axis1: int, axis2: int) -> str:
    """Return a diagonal of the planes of two axes as the last axis: its positions in the plane, flattened."""
    first, second = axis1 % rank, axis2 % rank
    rest = [axis for axis in range(rank) if axis not in (first, second)]
    planes = w.transpose(x, [*rest, first, second])
    rows, columns = w.dim(planes, rank - 2), w.dim(planes, rank - 1)
    down, along = w.ints(max(-offset, 0)), w.ints(max(offset, 0))
    count = w.add("Min", w.add("Sub", rows, down), w.add("Sub", columns, along))
    count = w.add("Max", count, w.ints(0))
    steps = positions(w, count)
    places = w.add("Add", w.add("Mul", w.add("Add", steps, down), columns), w.add("Add", steps, along))
    leading = w.slice(w.shape(planes), 0, rank - 2, 0)
    flat = w.reshape(planes, w.concat([leading, w.add("Mul", rows, columns)], 0))
    return w.add("Gather", flat, places, axis=rank - 2)


@exports("diag")
def _diag(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, Diag)
    before, behind = max(-op.offset, 0), max(op.offset, 0)
    size = w.add("Add", w.dim(x, 0), w.ints(before + behind))
    row = w.unsqueeze(positions(w, size), 1)
    column = w.add("Add", row, w.constant(op.offset, LONG))
    on = w.compare("Equal", positions(w, size), column)
    values = w.unsqueeze(w.add("Pad", x, w.ints(before, behind)), 1)
    return w.where(on, values, w.like(0, x))


@exports("one_hot")
def _one_hot(w: Writer, node: Operation, x: str) -> str:
    op = op_of(node, OneHot)
    axis = op.axis % (rank_of(node) + 1)
    names = np.arange(op.classes, dtype=w.dtypes[x] if op.classes < 128 or w.dtypes[x].itemsize > 1 else INT)
    classes = w.constant(names.reshape([-1] + [1] * (rank_of(node) - axis)))
    if w.dtypes[classes] != w.dtypes[x]:
        x = w.cast(x, INT)
    return w.cast(w.compare("Equal", w.unsqueeze(x, axis), classes), op.dtype)


@exports("nonzero")
def _nonzero(w: Writer, node: Operation, x: str) -> list[str]:
    op = op_of(node, Nonzero)
    found = w.cast(w.add("NonZero", _truth(w, x), dtype=LONG), INT)
    parts = _split_into(w, found, 0, w.ints(*[1] * op.rank), op.rank)
    return [w.squeeze(part, 0) for part in parts]


@exports("argwhere")
def _argwhere(w: Writer, node: Operation, x: str) -> str:
    if not rank_of(node):  # as many rows as the scalar says, of no columns
        return w.zeros(w.concat([w.vector(_truth(w, x)), w.ints(0)], 0), INT)
    return w.cast(w.transpose(w.add("NonZero", _truth(w, x), dtype=LONG), [1, 0]), INT)


def _truth(w: Writer, x: str) -> str:
    return x if dtypes.is_string(w.dtypes[x]) else w.cast(x, BOOL)
