"""Native forms of factorisations and solutions of small matrices, in regions.

A loop over small matrices, such as a Kalman filter, spends its time on calls of LAPACK. Here they are plain loops, with
LAPACK's pivots, so that results agree within rounding. Where LAPACK raises an error the region fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.linear_algebra.cholesky import Cholesky
from ...ops.linear_algebra.factorisations import LuFactor, Qr, SlogDet
from ...ops.linear_algebra.matrices import Adjugate, Determinant, Inverse, LowerHalf, Solve
from ...ops.linear_algebra.triangular import CholeskyGradient, SolveTriangular
from ...ops.math.comparison import Equal, Less, Where
from ...ops.math.elementwise import Absolute
from ...ops.math.mathematics import Log
from ..expression.expression import UnsupportedError
from ..llvm.builder import Size, suffix_of
from ..regions.arrays import as_array
from ..regions.elementwise import print_elementwise, print_reduction
from ..regions.function import Array, Form, FormContext, Function, Scalar, Value, shape_of
from ..regions.scalars import FLOATS, literal

_MOST_ROWS = 32  # larger matrices are worth the kernels of their own
_MOST_REFLECTED = 24  # rows and columns of a matrix whose columns are reflected
_MOST_COLUMNS = 64  # of right sides
_MOST_MATRICES = 16  # of a stack
_LEAST_SQUARE = {"float": 1e-30, "double": 1e-280}  # of a column's length: below, squares of its elements underflow


class _Matrix:
    """A matrix in memory, element by element; `is_transposed` for its transpose."""

    def __init__(
        self, function: Function, kind: str, pointer: str, shape: tuple[int, int], is_transposed: bool = False
    ) -> None:
        self.function, self.kind, self.pointer, self.is_transposed = function, kind, pointer, is_transposed
        self.rows, self.columns = shape

    def _place(self, row: Size, column: Size) -> str:
        row, column = (column, row) if self.is_transposed else (row, column)
        return self.function.offset_of([str(row), str(column)], [self.columns, 1])

    def load(self, row: Size, column: Size) -> str:
        return self.function.load(self.kind, self.pointer, self._place(row, column))

    def store(self, value: str, row: Size, column: Size) -> None:
        self.function.store(self.kind, value, self.pointer, self._place(row, column))

    def subtract(self, row: Size, column: Size, first: str, second: str) -> None:
        """Print the subtraction of a product from an element."""
        product = _compute(self.function, "fmul", self.kind, first, second)
        self.store(_compute(self.function, "fsub", self.kind, self.load(row, column), product), row, column)

    def exchange(self, first: Size, second: Size) -> None:
        """Print the exchange of two rows."""
        with self.function.count(self.columns) as column:
            before, after = self.load(first, column), self.load(second, column)
            self.store(after, first, column)
            self.store(before, second, column)

    def divide(self, row: Size, column: Size, by: str) -> None:
        """Print the division of an element."""
        self.store(_compute(self.function, "fdiv", self.kind, self.load(row, column), by), row, column)


def _compute(function: Function, what: str, kind: str, first: str, second: str) -> str:
    return function.let(f"{what} {kind} {first}, {second}")


def _call(function: Function, name: str, kind: str, value: str) -> str:
    return function.let(f"call {kind} @llvm.{name}.{suffix_of(kind)}({kind} {value})")


def _down(function: Function, size: int, number: str) -> str:
    """Return the number of a round counted from the last one."""
    return function.let(f"sub i64 {size - 1}, {number}")


def _after(function: Function, number: Size) -> Size:
    return function.add(number, 1)


# --- operations -----------------------------------------------------------------------------------------------------


def _solve(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    def each(a: _Matrix, x: _Matrix) -> None:
        _eliminate(context, a, x)
        _substitute(context, a, x, is_lower=False)

    return [_by_matrices(context, inputs[0], context.function.copy_of(as_array(inputs[1])), each)]


def _inverse(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    del operation

    def each(a: _Matrix, x: _Matrix) -> None:
        _eliminate(context, a, x)
        _substitute(context, a, x, is_lower=False)

    return [_of_identities(context, inputs[0], each)]


def _adjugate(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print inverses multiplied by determinants; singular matrices fail, and are left to the operation."""
    del operation
    function, slot = context.function, context.function.slot(_square(inputs[0]).kind)

    def each(a: _Matrix, x: _Matrix) -> None:
        kind, size = a.kind, a.rows
        function.store(kind, literal(1, kind), slot)
        _eliminate(context, a, x, slot)
        with function.count(size) as k:
            function.store(kind, _compute(function, "fmul", kind, function.load(kind, slot), a.load(k, k)), slot)
        _substitute(context, a, x, is_lower=False)
        with function.count(size) as i, function.count(size) as j:
            x.store(_compute(function, "fmul", kind, x.load(i, j), function.load(kind, slot)), i, j)

    return [_of_identities(context, inputs[0], each)]


def _of_identities(context: FormContext, value: Value, each: Callable[[_Matrix, _Matrix], None]) -> Array:
    """Print code for each square matrix and an identity matrix of its size; return what becomes of the latter."""
    function, a = context.function, _square(value)

    def begun(a: _Matrix, x: _Matrix) -> None:
        with function.count(x.rows) as k:
            x.store(literal(1, x.kind), k, k)
        each(a, x)

    return _by_matrices(context, a, function.allocate_zeros(a.kind, a.shape), begun)


def _determinant(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    function, pivots, shape = context.function, _pivots(context, inputs[0]), shape_of(operation.outputs[0])
    function.hold(pivots)
    found = print_reduction(function, "prod", pivots, range(len(shape), len(pivots.shape)), shape)
    function.release(pivots)
    return [found]


def _slogdet(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    function, pivots, shape = context.function, _pivots(context, inputs[0]), shape_of(operation.outputs[0])
    function.hold(pivots)
    kind = pivots.kind
    numbers = [Scalar(literal(x, kind), kind) for x in (0, 1, -1)]
    # The values: pivots, the three numbers, and what each step gives.
    steps = [(Less(), (0, 1)), (Equal(), (0, 1)), (Where(), (5, 1, 2)), (Where(), (4, 3, 6))]
    steps += [(Absolute(), (0,)), (Log(), (8,))]
    made = print_elementwise(function, steps, [7, 9], [pivots, *numbers], [pivots.shape] * 2, [kind] * 2, [None] * 2)
    found: list[Value] = []
    for how, parts in zip(("prod", "sum"), made, strict=True):
        assert isinstance(parts, Array)
        function.hold(parts)
        found.append(print_reduction(function, how, parts, range(len(shape), len(pivots.shape)), shape))
        function.hold(found[-1])
    for value in (pivots, *made):
        function.release(value)
    for value in found:
        function.disown(value)
    return found


def _pivots(context: FormContext, value: Value) -> Array:
    """Print the pivots of each matrix, as a column; the first of them has the sign of what rows were exchanged."""
    function, a = context.function, _square(value)
    sign = function.slot(a.kind)

    def each(a: _Matrix, pivots: _Matrix) -> None:
        function.store(a.kind, literal(1, a.kind), sign)
        _eliminate(context, a, _Matrix(function, a.kind, a.pointer, (a.rows, 0)), sign)
        with function.count(a.rows) as k:
            pivots.store(a.load(k, k), k, 0)
        signed = _compute(function, "fmul", a.kind, pivots.load(0, 0), function.load(a.kind, sign))
        pivots.store(signed, 0, 0)

    return _by_matrices(context, a, function.allocate(a.kind, (*a.shape[:-1], 1)), each)


def _lu_factor(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print Gaussian elimination with partial pivoting, row exchanges, and the order of the rows."""
    function, (x, stack, rows, columns) = context.function, _matrices(inputs[0], _MOST_ROWS)
    kind, steps = x.kind, min(rows, columns)
    lu, pivots, order = (
        function.copy_of(x),
        *[function.allocate("i32", shape_of(t)) for t in operation.outputs[1:]],
    )
    best, place = function.slot(kind), function.slot("i64")
    with function.count(math.prod(stack)) as number:
        own, own_pivots, own_order = [
            function.element(each.kind, each.pointer, function.mul(number, size))
            for each, size in ((lu, rows * columns), (pivots, steps), (order, rows))
        ]
        a, of_rows = _Matrix(function, kind, own, (rows, columns)), _Matrix(function, "i32", own_order, (rows, 1))
        with function.count(rows) as i:
            of_rows.store(function.let(f"trunc i64 {i} to i32"), i, 0)
        with function.count(steps) as k:
            chosen = _find_pivot(a, k, best, place)
            function.store("i32", function.let(f"trunc i64 {chosen} to i32"), own_pivots, k)
            for matrix in (a, of_rows):
                matrix.exchange(k, chosen)
            _subtract_below(a, k, goes_on=True)
    return [lu, pivots, order]


def _qr(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print Householder's reflections, with LAPACK's signs, and their product, of the last one first."""
    function, (x, stack, rows, columns) = context.function, _matrices(inputs[0], _MOST_REFLECTED)
    q, r = [function.allocate(x.kind, shape_of(output)) for output in operation.outputs]
    inner, steps = q.shape[-1], min(rows, columns)
    work, scales = function.allocate(x.kind, (rows, columns)), function.allocate(x.kind, (steps,))
    for array in (work, scales):
        function.hold(array)
    for array in (q, r):
        function.zero(array)
    with function.count(math.prod(stack)) as number:
        sizes = [math.prod(each.shape[-2:]) for each in (x, q, r)]
        own, own_q, own_r = [
            function.element(x.kind, each.pointer, function.mul(number, size))
            for each, size in zip((x, q, r), sizes, strict=True)
        ]
        function.copy_bytes(work.pointer, own, work.bytes)
        a = _Matrix(function, x.kind, work.pointer, (rows, columns))
        product = _Matrix(function, x.kind, own_q, (rows, inner))
        upper = _Matrix(function, x.kind, own_r, (inner, columns))
        _triangulate(context, a, scales)
        with function.count(steps) as i, function.loop(i, columns) as j:
            upper.store(a.load(i, j), i, j)
        with function.count(inner) as k:
            product.store(literal(1, x.kind), k, k)
        with function.count(steps) as k:
            j = _down(function, steps, k)
            with function.count(inner) as column:
                _reflect(a, j, function.load(x.kind, scales.pointer, j), product, column)
    for array in (work, scales):
        function.release(array)
    return [q, r]


def _cholesky(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    del operation
    function, a = context.function, _square(inputs[0])
    target = function.allocate_zeros(a.kind, a.shape)

    def each(a: _Matrix, lower: _Matrix) -> None:
        with function.count(a.rows) as j:
            with function.loop(j, a.rows) as i:
                half = _compute(function, "fadd", a.kind, a.load(i, j), a.load(j, i))
                lower.store(_compute(function, "fmul", a.kind, half, literal(0.5, a.kind)), i, j)
                with function.loop(0, j) as k:
                    lower.subtract(i, j, lower.load(i, k), lower.load(j, k))
            pivot = lower.load(j, j)
            context.fail_unless(function.let(f"fcmp ogt {a.kind} {pivot}, {literal(0, a.kind)}"))
            root = _call(function, "sqrt", a.kind, pivot)
            with function.loop(j, a.rows) as i:
                lower.divide(i, j, root)
            lower.store(root, j, j)

    return [_by_matrices(context, a, target, each)]


def _lower_half(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    del operation
    function, a = context.function, _square(inputs[0])
    target = function.allocate_zeros(a.kind, a.shape)

    def each(a: _Matrix, lower: _Matrix) -> None:
        with function.count(a.rows) as i:
            with function.loop(0, i) as j:
                lower.store(a.load(i, j), i, j)
            lower.store(_compute(function, "fmul", a.kind, a.load(i, i), literal(0.5, a.kind)), i, i)

    return [_by_matrices(context, a, target, each)]


def _cholesky_gradient(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Print Murray's unblocked reverse sweep, and the symmetric half of what it gives."""
    del operation
    function = context.function

    def each(lower: _Matrix, found: _Matrix) -> None:
        kind, size, half = found.kind, found.rows, literal(0.5, found.kind)
        with function.count(size) as number:
            j = _down(function, size, number)
            diagonal = lower.load(j, j)
            with function.loop(_after(function, j), size) as i:
                found.divide(i, j, diagonal)
                found.subtract(j, j, lower.load(i, j), found.load(i, j))
            found.divide(j, j, diagonal)
            with function.loop(0, j) as k:
                found.subtract(j, k, found.load(j, j), lower.load(j, k))
                with function.loop(_after(function, j), size) as i:
                    found.subtract(j, k, found.load(i, j), lower.load(i, k))
                    found.subtract(i, k, found.load(i, j), lower.load(j, k))
            found.store(_compute(function, "fmul", kind, found.load(j, j), half), j, j)
        with function.count(size) as i, function.loop(0, i) as j:
            value = _compute(function, "fmul", kind, found.load(i, j), half)
            found.store(value, i, j)
            found.store(value, j, i)

    return [_by_matrices(context, inputs[0], context.function.copy_of(as_array(inputs[1])), each)]


def _solve_triangular(context: FormContext, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op = op_of(operation, SolveTriangular)

    def each(a: _Matrix, x: _Matrix) -> None:
        a.is_transposed = op.transposed
        _substitute(context, a, x, op.lower != op.transposed, op.unit_diagonal)

    return [_by_matrices(context, inputs[0], context.function.copy_of(as_array(inputs[1])), each)]


# --- steps ----------------------------------------------------------------------------------------------------------


def _matrices(value: Value, most: int) -> tuple[Array, list[int], int, int]:
    """Return matrices of at most so many rows and columns, their stack, rows and columns."""
    x = as_array(value)
    *stack, rows, columns = x.shape
    if x.kind not in FLOATS or not x.size or max(rows, columns) > most or math.prod(stack) > _MOST_MATRICES:
        raise UnsupportedError("a large matrix, or one of another kind")
    return x, stack, rows, columns


def _square(value: Value) -> Array:
    array = as_array(value)
    if array.kind not in FLOATS or array.shape[-1] > _MOST_ROWS:
        raise UnsupportedError("a large matrix, or one of another kind")
    return array


def _by_matrices(context: FormContext, value: Value, target: Array, each: Callable[[_Matrix, _Matrix], None]) -> Array:
    """Print code for each square matrix, a copy of it, and the matrix of `target` that belongs to it; return that."""
    function, source = context.function, _square(value)
    if math.prod(source.shape[:-2]) > _MOST_MATRICES:
        raise UnsupportedError("many matrices, which a kernel takes side by side")
    if source.shape[:-2] != target.shape[:-2] or source.kind != target.kind or target.shape[-1] > _MOST_COLUMNS:
        raise UnsupportedError("matrices that are repeated, or many right sides")
    if not source.size:
        return target
    size, columns = target.shape[-2:]
    function.hold(target)
    copy = function.allocate(source.kind, (size, size))
    function.hold(copy)
    with function.count(source.size // size**2) as number:
        own = function.element(source.kind, source.pointer, function.mul(number, size * size))
        function.copy_bytes(copy.pointer, own, copy.bytes)
        into = function.element(target.kind, target.pointer, function.mul(number, size * columns))
        a = _Matrix(function, source.kind, copy.pointer, (size, size))
        each(a, _Matrix(function, target.kind, into, (size, columns)))
    function.release(copy)
    function.disown(target)
    return target


def _eliminate(context: FormContext, a: _Matrix, x: _Matrix, sign: str = "") -> None:
    """Print Gaussian elimination with partial pivoting of a matrix and of right sides.

    Args:
        context: of the region, which fails where a pivot is zero, unless a determinant is asked for.
        a: becomes the upper triangle.
        x: the right sides.
        sign: the slot of a determinant's sign.
    """
    function, kind, size = a.function, a.kind, a.rows
    best, place = function.slot(kind), function.slot("i64")
    with function.count(size) as k:
        chosen = _find_pivot(a, k, best, place)
        if sign:
            is_moved, before = function.let(f"icmp ne i64 {chosen}, {k}"), function.load(kind, sign)
            turned = function.let(f"fneg {kind} {before}")
            function.store(kind, function.choose(is_moved, turned, before, kind), sign)
        else:
            context.fail_unless(function.let(f"fcmp une {kind} {function.load(kind, best)}, {literal(0, kind)}"))
        for matrix in (a, x):
            matrix.exchange(k, chosen)
        _subtract_below(a, k, sign != "", x)


def _subtract_below(a: _Matrix, k: str, goes_on: bool, x: _Matrix | None = None) -> None:
    """Print the subtraction of multiples of row `k` from those below, and the same of right sides.

    Args:
        a: the matrix, which gets the factors where zeros would be.
        k: the row.
        goes_on: a pivot of zero is passed by: all below are zeros, too.
        x: the right sides, if there are any.
    """
    function, kind, pivot = a.function, a.kind, a.load(k, k)
    if goes_on:
        is_zero = function.let(f"fcmp oeq {kind} {pivot}, {literal(0, kind)}")
        pivot = function.choose(is_zero, literal(1, kind), pivot, kind)
    with function.loop(_after(function, k), a.rows) as i:
        a.divide(i, k, pivot)
        factor = a.load(i, k)
        with function.loop(_after(function, k), a.columns) as j:
            a.subtract(i, j, factor, a.load(k, j))
        if x is not None:
            with function.count(x.columns) as j:
                x.subtract(i, j, factor, x.load(k, j))


def _find_pivot(a: _Matrix, k: str, best: str, place: str) -> str:
    """Return the row of the largest element in column `k` from row `k` on, which `best` gets; the first NaN is one."""
    function, kind = a.function, a.kind
    function.store(kind, literal(-1, kind), best)
    function.store("i64", k, place)
    with function.loop(k, a.rows) as i:
        value, before = _call(function, "fabs", kind, a.load(i, k)), function.load(kind, best)
        is_number = function.let(f"fcmp ord {kind} {before}, {before}")
        is_larger = function.let(f"and i1 {is_number}, {function.let(f'fcmp ugt {kind} {value}, {before}')}")
        function.store(kind, function.choose(is_larger, value, before, kind), best)
        function.store("i64", function.choose(is_larger, i, function.load("i64", place)), place)
    return function.load("i64", place)


def _substitute(context: FormContext, a: _Matrix, x: _Matrix, is_lower: bool, has_ones: bool = False) -> None:
    """Print the solution of a triangular system, in place of the right sides."""
    function, kind, size = a.function, a.kind, a.rows
    with function.count(size) as number:
        k = number if is_lower else _down(function, size, number)
        if not has_ones:
            pivot = a.load(k, k)
            context.fail_unless(function.let(f"fcmp une {kind} {pivot}, {literal(0, kind)}"))
            with function.count(x.columns) as j:
                x.divide(k, j, pivot)
        first, end = (_after(function, k), size) if is_lower else (0, k)
        with function.loop(first, end) as i:
            factor = a.load(i, k)
            with function.count(x.columns) as j:
                x.subtract(i, j, factor, x.load(k, j))


def _triangulate(context: FormContext, a: _Matrix, scales: Array) -> None:
    """Print reflections that make a matrix an upper triangle.

    Args:
        context: of the region, which fails where squares of elements overflow or underflow.
        a: gets the triangle, and below it the vectors of the reflections, without their leading ones.
        scales: gets the scale of each reflection.
    """
    function, kind = a.function, a.kind
    square, size, zero = function.slot(kind), function.slot(kind), literal(0, kind)
    with function.count(scales.size) as j:
        function.store(kind, zero, square)
        function.store(kind, zero, size)
        with function.loop(_after(function, j), a.rows) as i:
            value = a.load(i, j)
            function.combine(kind, square, _compute(function, "fmul", kind, value, value))
            function.combine(kind, size, _call(function, "fabs", kind, value))
        first = a.load(j, j)
        own = _compute(function, "fmul", kind, first, first)
        whole = _compute(function, "fadd", kind, own, function.load(kind, square))
        is_done = function.let(f"fcmp oeq {kind} {function.load(kind, size)}, {zero}")
        is_large = function.let(f"fcmp ogt {kind} {whole}, {literal(_LEAST_SQUARE[kind], kind)}")
        is_finite = function.let(f"fcmp olt {kind} {whole}, {literal(math.inf, kind)}")
        is_safe = function.let(f"and i1 {is_large}, {is_finite}")
        context.fail_unless(function.let(f"or i1 {is_done}, {is_safe}"))
        length = _call(function, "sqrt", kind, whole)
        is_below = function.let(f"fcmp olt {kind} {first}, {zero}")
        found = function.choose(is_below, length, function.let(f"fneg {kind} {length}"), kind)
        apart = _compute(function, "fsub", kind, first, found)
        scale = function.let(f"fneg {kind} {_compute(function, 'fdiv', kind, apart, found)}")
        scale = function.choose(is_done, zero, scale, kind)
        function.store(kind, scale, scales.pointer, j)
        a.store(function.choose(is_done, first, found, kind), j, j)
        by = function.choose(is_done, literal(1, kind), apart, kind)
        with function.loop(_after(function, j), a.rows) as i:
            a.divide(i, j, by)
        with function.loop(_after(function, j), a.columns) as column:
            _reflect(a, j, scale, a, column)


def _reflect(vectors: _Matrix, j: str, scale: str, x: _Matrix, column: Size) -> None:
    """Print the reflection of a column by vector `j`: all of it less its product with the vector, times the vector."""
    function, kind, total = x.function, x.kind, x.function.slot(x.kind)
    function.store(kind, x.load(j, column), total)
    with function.loop(_after(function, j), x.rows) as i:
        function.combine(kind, total, _compute(function, "fmul", kind, vectors.load(i, j), x.load(i, column)))
    along = _compute(function, "fmul", kind, scale, function.load(kind, total))
    x.subtract(j, column, along, literal(1, kind))
    with function.loop(_after(function, j), x.rows) as i:
        x.subtract(i, column, vectors.load(i, j), along)


FORMS: dict[type[Any], Form] = {
    Adjugate: _adjugate,
    Cholesky: _cholesky,
    CholeskyGradient: _cholesky_gradient,
    Determinant: _determinant,
    Inverse: _inverse,
    LowerHalf: _lower_half,
    LuFactor: _lu_factor,
    Qr: _qr,
    SlogDet: _slogdet,
    Solve: _solve,
    SolveTriangular: _solve_triangular,
}
