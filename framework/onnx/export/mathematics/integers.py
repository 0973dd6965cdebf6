"""Greatest common divisors, and positions that follow from sizes and numbers at run time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .....engine.graph.graph import Operation
from .....engine.ops.arrays.padding import PadPositions
from ..registry import exports, op_of
from ..shapes import positions
from ..writer import INT, LONG, Writer

_MOST_STEPS = 92  # of Euclid's algorithm for numbers of 64 bits


def _divisor(w: Writer, node: Operation, x: str, y: str) -> str:
    """Return the greatest common divisor by Euclid's algorithm: of (x, y) it makes (y, x mod y) until y is 0."""
    shape = w.shape(w.add("Add", x, y))
    starts = [w.expand(_size_of(w, each), shape) for each in (x, y)]
    zero = w.like(0, x)

    def body(_: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
        a, b = states
        ended = w.compare("Equal", b, zero)
        rest = w.add("Mod", a, w.where(ended, w.like(1, x), b))
        return [w.where(ended, a, b), w.where(ended, zero, rest)], []

    rank = None if node.outputs[0].shape is None else [None] * len(node.outputs[0].shape)
    return w.repeat(w.constant(np.array(_MOST_STEPS, LONG)), starts, body, lambda name: w.info(name, rank))[0]


def _size_of(w: Writer, x: str) -> str:
    return x if w.dtypes[x].kind == "u" else w.add("Abs", x)


@exports("gcd")
def _gcd(w: Writer, node: Operation, x: str, y: str) -> str:
    return _divisor(w, node, x, y)


@exports("lcm")
def _lcm(w: Writer, node: Operation, x: str, y: str) -> str:
    divisor = _divisor(w, node, x, y)
    share = w.add("Div", x, w.add("Max", divisor, w.like(1, x)))
    return _size_of(w, w.add("Mul", share, y))


# --- positions ------------------------------------------------------------------------------------------------------


@exports("repeat_positions")
def _repeat_positions(w: Writer, node: Operation, size: str, repeats: str) -> str:
    """Count for each place of the result how many repetitions have ended before it."""
    counts = w.cast(repeats, LONG)
    total = w.add("ReduceSum", counts, w.ints(0), keepdims=1)
    ends = w.add("CumSum", counts, w.constant(np.array(0, LONG)))
    none = w.zeros(w.add("Add", total, w.ints(1)), LONG)
    ones = w.expand(w.constant(np.array(1, LONG)), w.shape(ends))
    marks = w.add("ScatterElements", none, ends, ones, axis=0, reduction="add")
    return w.cast(w.slice(w.add("CumSum", marks, w.constant(np.array(0, LONG))), 0, total, 0), INT)


@exports("flat_places")
def _flat_places(w: Writer, node: Operation, indices: str, sizes: str) -> str:
    """Add up indices by the strides of their axes: products of the sizes behind them."""
    depth = (node.inputs[0].shape or (None,))[-1]
    if depth is None:
        raise ValueError("the last axis of the indices must be known")
    places, shape = w.cast(indices, LONG), w.cast(sizes, LONG)
    strides = w.ints(*[1] * depth)
    if depth > 1:
        parts = [w.add("ReduceProd", w.slice(shape, k + 1, depth, 0), w.ints(0), keepdims=1) for k in range(depth - 1)]
        strides = w.concat([*parts, w.ints(1)], 0)
    return w.add("ReduceSum", w.add("Mul", places, strides), w.ints(-1), keepdims=0)


@exports("pad_positions")
def _pad_positions(w: Writer, node: Operation, size: str, before: str, behind: str) -> str:
    mode, count = op_of(node, PadPositions).mode, w.vector(size)
    whole = w.add("Add", count, w.add("Add", w.vector(before), w.vector(behind)))
    place = w.add("Sub", positions(w, whole), w.vector(before))
    one, two = w.ints(1), w.ints(2)
    last = w.add("Sub", count, one)
    if mode == "edge":
        return w.cast(w.add("Min", w.add("Max", place, w.ints(0)), last), INT)
    if mode == "wrap":
        return w.cast(w.add("Mod", place, w.add("Max", count, one)), INT)
    # Forth and back again, with the elements at the ends once ("reflect") or twice ("symmetric").
    way = w.add("Mul", last if mode == "reflect" else count, two)
    turned = w.add("Mod", place, w.add("Max", way, one))
    back = w.add("Sub", way if mode == "reflect" else w.add("Sub", way, one), turned)
    return w.cast(w.where(w.compare("Less", turned, count), turned, back), INT)
