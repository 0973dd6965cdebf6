"""Native forms of operations that draw random numbers, in regions: the bits of `ops.random.samplers`.

Normal numbers go through native code's functions, so that they equal NumPy's up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...common.dtypes import float64
from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.base import Cast
from ...ops.math.bits import half_threshold
from ...ops.math.comparison import Maximum, Minimum
from ...ops.math.elementwise import Add, Multiply, Negative, Subtract
from ...ops.math.mathematics import Exp, Log1p, Sqrt
from ...ops.math.special import Erfinv
from ...ops.math.trigonometry import Cos, Sin
from ...ops.random.samplers import (
    CENTRAL,
    RandomCategories,
    RandomIntegers,
    RandomKeep,
    RandomNormal,
    RandomPermutation,
    RandomTruncatedNormal,
    RandomUniform,
)
from ..expression.expression import UnsupportedError
from ..gather.sorting_forms import MOST_IN_ROW, print_rank
from ..regions.elementwise import print_elementwise
from ..regions.function import Array, Form, FormContext, Function, Scalar, Value, shape_of
from ..regions.scalars import FLOATS, literal, type_of
from .philox import HALVES, print_block


def _uniform(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function, target = op_of(operation, RandomUniform), context.function, _target(context, operation)
    kind, low, high = _floating(target), op.low, op.high
    words = _words(function, inputs, target.size, kind)
    of_dtype = op.dtype.type
    limit = of_dtype(high)
    below = max(np.nextafter(limit, of_dtype(-np.inf)), of_dtype(low))
    with function.count(target.size) as k:
        number = _unit(function, words, k, kind)
        if (low, high) != (0.0, 1.0):
            number = function.let(f"fmul {kind} {number}, {literal(of_dtype(high - low), kind)}")
            number = function.let(f"fadd {kind} {number}, {literal(of_dtype(low), kind)}")
            if high > low:
                is_below = function.let(f"fcmp olt {kind} {number}, {literal(limit, kind)}")
                number = function.choose(is_below, number, literal(below, kind), kind)
        function.store(kind, number, target.pointer, k)
    return _given(context, operation, words, target)


def _keep(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function, target = op_of(operation, RandomKeep), context.function, _target(context, operation)
    kind = _floating(target)
    words = _words(function, inputs, target.size, "float")
    least, scale = half_threshold(op.rate), literal(op.scale, kind)
    with function.count(target.size) as k:
        is_kept = function.let(f"icmp uge i32 {function.load('i32', words.pointer, k)}, {least}")
        function.store(kind, function.choose(is_kept, scale, literal(0, kind), kind), target.pointer, k)
    return _given(context, operation, words, target)


def _integers(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op, function, target = op_of(operation, RandomIntegers), context.function, _target(context, operation)
    if target.kind not in ("i32", "i64") or op.high - op.low >= 2**63:
        raise UnsupportedError("random integers of another kind")
    words = _words(function, inputs, target.size, "double")
    with function.count(target.size) as k:
        number = function.let(f"urem i64 {function.load('i64', words.pointer, k)}, {op.high - op.low}")
        number = function.let(f"add i64 {number}, {op.low}")
        number = number if target.kind == "i64" else function.let(f"trunc i64 {number} to i32")
        function.store(target.kind, number, target.pointer, k)
    return _given(context, operation, words, target)


def _normal(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print cosines for the first half of the numbers and sines, of the same angles, for the second one."""
    op, function, target = op_of(operation, RandomNormal), context.function, _target(context, operation)
    kind, half = _floating(target), (target.size + 1) // 2
    words = _words(function, inputs, 2 * half, kind)
    units = [function.allocate(kind, (half,)) for _ in range(2)]
    for number, array in enumerate(units):
        function.hold(array)
        with function.count(half) as k:
            word = function.let(f"add i64 {k}, {number * half}")
            function.store(kind, _unit(function, words, word, kind), array.pointer, k)
    of_dtype = op.dtype.type
    numbers = [Scalar(literal(of_dtype(x), kind), kind) for x in (-2, 2 * math.pi, op.stddev, op.mean)]
    # The values: units of radii and of angles, the four numbers, and what each step gives.
    steps = [(Negative(), (0,)), (Log1p(), (6,)), (Multiply(), (2, 7)), (Sqrt(), (8,)), (Multiply(), (1, 3))]
    for wave in (Cos(), Sin()):
        count = 6 + len(steps)
        steps += [(wave, (10,)), (Multiply(), (9, count)), (Multiply(), (count + 1, 4)), (Add(), (count + 2, 5))]
    found = print_elementwise(function, steps, (14, 18), [*units, *numbers], [(half,)] * 2, [kind] * 2, [None] * 2)
    size = {0: half, 1: target.size - half}
    for number, part in enumerate(found):
        assert isinstance(part, (Scalar, Array))
        function.hold(part)
        place = function.element(kind, target.pointer, number * half)
        with function.count(size[number]) as k:
            value = function.load(kind, part.pointer, k) if isinstance(part, Array) else part.name
            function.store(kind, value, place, k)
    for array in (*found, *units):
        function.release(array)
    return _given(context, operation, words, target)


def _truncated_normal(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print quantiles of what is within 2 standard deviations, in float64."""
    op, function, target = op_of(operation, RandomTruncatedNormal), context.function, _target(context, operation)
    kind, count = _floating(target), target.size
    words = _words(function, inputs, count, "double")
    units = function.allocate("double", (count,))
    function.hold(units)
    with function.count(count) as k:
        function.store("double", _unit(function, words, k, "double"), units.pointer, k)
    constants = (2, 1, CENTRAL, math.sqrt(2), -2, op.stddev, op.mean)
    numbers = [Scalar(literal(x, "double"), "double") for x in constants]
    # The values: units, the seven numbers, and what each step gives.
    steps = [(Multiply(), (0, 1)), (Subtract(), (8, 2)), (Multiply(), (9, 3)), (Erfinv(), (10,)), (Multiply(), (11, 4))]
    steps += [(Maximum(), (12, 5)), (Minimum(), (13, 1)), (Multiply(), (14, 6)), (Add(), (15, 7))]
    steps += [(Cast(op.dtype), (16,))]
    flat = Array(target.pointer, kind, (count,))
    print_elementwise(function, steps, [17], [units, *numbers], [flat.shape], [kind], [flat])
    function.release(units)
    return _given(context, operation, words, target)


def _permutation(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print the positions that sort random words, each at the place that its rank gives."""
    function, target = context.function, _target(context, operation)
    if target.size > MOST_IN_ROW:
        raise UnsupportedError("many numbers in random order")
    words = _words(function, inputs[:1], target.size, "double")
    row = Array(words.pointer, "i64", target.shape)
    with function.count(target.size) as k:
        number = function.let(f"trunc i64 {k} to i32")
        function.store("i32", number, target.pointer, print_rank(function, row, k, is_signed=False))
    return _given(context, operation, words, target)


def _categories(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print draws of class numbers; the region fails where the probabilities of a row have no sum."""
    op, function, logits = op_of(operation, RandomCategories), context.function, inputs[1]
    if not isinstance(logits, Array) or logits.kind not in FLOATS or not logits.size or op.samples_per_row is None:
        raise UnsupportedError("classes of another kind")
    rows, classes = logits.shape
    target = function.allocate(type_of(op.dtype), (rows, op.samples_per_row))
    edges = _weights(function, logits)
    words = _words(function, inputs[:1], target.size, "double")
    total, last = function.slot("double"), function.slot("i64")
    with function.count(rows) as row:
        own = function.element("double", edges.pointer, function.mul(row, classes))
        function.store("double", literal(0, "double"), total)
        function.store("i64", 0, last)
        with function.count(classes) as k:
            weight = function.load("double", own, k)
            is_there = function.let(f"fcmp ogt double {weight}, {literal(0, 'double')}")
            function.store("i64", function.choose(is_there, k, function.load("i64", last)), last)
            function.store("double", function.let(f"fadd double {function.load('double', total)}, {weight}"), total)
            function.store("double", function.load("double", total), own, k)
        whole = function.load("double", total)
        context.fail_unless(function.let(f"fcmp ord double {whole}, {whole}"))
        with function.count(op.samples_per_row) as sample:
            number = function.offset_of([row, sample], [op.samples_per_row, 1])
            place = function.let(f"fmul double {_unit(function, words, number, 'double')}, {whole}")
            found = _count_up_to(function, own, classes, place)
            found = function.least(found, function.load("i64", last))
            found = found if target.kind == "i64" else function.let(f"trunc i64 {found} to i32")
            function.store(target.kind, found, target.pointer, number)
    function.release(edges)
    return _given(context, operation, words, target)


def _weights(function: Function, logits: Array) -> Array:
    """Print exponentials of the distances of logits to the largest of their row, in float64."""
    rows, classes = logits.shape
    largest = function.allocate("double", (rows, 1))
    function.hold(largest)
    best = function.slot(logits.kind)
    with function.count(rows) as row:
        own = function.element(logits.kind, logits.pointer, function.mul(row, classes))
        function.store(logits.kind, function.load(logits.kind, own), best)
        with function.loop(1, classes) as k:
            value, before = function.load(logits.kind, own, k), function.load(logits.kind, best)
            is_larger = function.let(f"fcmp ogt {logits.kind} {value}, {before}")
            function.store(logits.kind, function.choose(is_larger, value, before, logits.kind), best)
        found = function.load(logits.kind, best)
        found = found if logits.kind == "double" else function.let(f"fpext float {found} to double")
        function.store("double", found, largest.pointer, row)
    steps = [(Cast(float64), (0,)), (Subtract(), (2, 1)), (Exp(), (3,))]
    (weights,) = print_elementwise(function, steps, [4], [logits, largest], [logits.shape], ["double"], [None])
    assert isinstance(weights, Array)
    function.hold(weights)
    function.release(largest)
    return weights


def _count_up_to(function: Function, edges: str, count: int, place: str) -> str:
    """Return how many edges, which ascend, are not beyond a place."""
    found = function.slot()
    function.store("i64", 0, found)
    with function.count(count) as k:
        is_before = function.let(f"fcmp ole double {function.load('double', edges, k)}, {place}")
        before = function.load("i64", found)
        function.store("i64", function.let(f"add i64 {before}, {function.let(f'zext i1 {is_before} to i64')}"), found)
    return function.load("i64", found)


# --- words -----------------------------------------------------------------------------------------------------------


def _target(context: FormContext, operation: Operation) -> Array:
    (output,) = operation.outputs
    shape = shape_of(output)
    if math.prod(shape) >= machine_profile().parallel_row_elements:
        raise UnsupportedError("many random numbers, which threads draw")
    return context.function.allocate(type_of(output.dtype), shape)


def _floating(target: Array) -> str:
    if target.kind not in FLOATS:
        raise UnsupportedError("random numbers of another kind")
    return target.kind


def _words(function: Function, inputs: Sequence[Value], count: int, kind: str) -> Array:
    """Print the random words of a key for so many numbers: halves of words for those in float32."""
    key = inputs[0]
    if not isinstance(key, Array) or len(inputs) > 1:
        raise UnsupportedError("random numbers of a computed shape")
    blocks = -(-count // (8 if kind == "float" else 4))
    words = function.allocate("i64", (4 * blocks,))
    function.hold(words)
    draw, keys = function.helper(print_block("HELPER")), [function.load("i64", key.pointer, k) for k in range(2)]
    with function.count(blocks) as number:
        drawn = function.let(f"call {HALVES} {draw}(i64 {number}, i64 {keys[0]}, i64 {keys[1]})")
        function.store_vector(HALVES, "i64", drawn, words.pointer, function.mul(number, 4))
    return words


def _unit(function: Function, words: Array, k: str, kind: str) -> str:
    """Return number `k` in [0, 1)."""
    integer, shift, scale = ("i32", 8, 2.0**-24) if kind == "float" else ("i64", 11, 2.0**-53)
    word = function.load(integer, words.pointer, k)
    number = function.let(f"uitofp {integer} {function.let(f'lshr {integer} {word}, {shift}')} to {kind}")
    return function.let(f"fmul {kind} {number}, {literal(scale, kind)}")


def _given(context: FormContext, operation: Operation, words: Array, target: Array) -> list[Value]:
    function = context.function
    function.release(words)
    if target.shape:
        return [target]
    return [Scalar(function.load(target.kind, target.pointer), target.kind)]


FORMS: dict[type[Any], Form] = {
    RandomCategories: _categories,
    RandomIntegers: _integers,
    RandomKeep: _keep,
    RandomNormal: _normal,
    RandomPermutation: _permutation,
    RandomTruncatedNormal: _truncated_normal,
    RandomUniform: _uniform,
}
