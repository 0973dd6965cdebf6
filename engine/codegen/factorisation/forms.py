"""Native forms of factorisations and solutions of small matrices, in regions.

A loop over small matrices, such as a Kalman filter, spends its time on calls of LAPACK. Here they are plain loops, with
LAPACK's pivots, so that results agree within rounding. Where LAPACK raises an error the region fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...graph.graph import Operation
from ...ops.linear_algebra.matrices import Cholesky, Determinant, Inverse, Solve
from ...ops.linear_algebra.triangular import CholeskyGradient, SolveTriangular
from ..expression.expression import UnsupportedError
from ..llvm.builder import Size
from ..regions.arrays import as_array
from ..regions.function import Array, Function, Scalar, Value
from ..regions.scalars import FLOATS, literal

if TYPE_CHECKING:
    from ..regions.forms import Context, Form

_MOST_ROWS = 32  # larger matrices are worth the kernels of their own
_MOST_COLUMNS = 64  # of right sides
_MOST_MATRICES = 16  # of a stack
_SUFFIX = {"float": "f32", "double": "f64"}


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

    def divide(self, row: Size, column: Size, by: str) -> None:
        """Print the division of an element."""
        self.store(_compute(self.function, "fdiv", self.kind, self.load(row, column), by), row, column)


def _compute(function: Function, what: str, kind: str, first: str, second: str) -> str:
    return function.let(f"{what} {kind} {first}, {second}")


def _call(function: Function, name: str, kind: str, value: str) -> str:
    return function.let(f"call {kind} @llvm.{name}.{_SUFFIX[kind]}({kind} {value})")


def _down(function: Function, size: int, number: str) -> str:
    """Return the number of a round counted from the last one."""
    return function.let(f"sub i64 {size - 1}, {number}")


def _after(function: Function, number: Size) -> Size:
    return function.add(number, 1)


# --- operations -----------------------------------------------------------------------------------------------------


def _solve(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    def each(a: _Matrix, x: _Matrix) -> None:
        _eliminate(context, a, x)
        _substitute(context, a, x, is_lower=False)

    return [_by_matrices(context, inputs[0], context.function.copy_of(as_array(inputs[1])), each)]


def _inverse(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    del operation
    function, a = context.function, _square(inputs[0])
    target = function.allocate(a.kind, a.shape)
    function.zero(target)
    size = a.shape[-1]

    def each(a: _Matrix, x: _Matrix) -> None:
        with function.count(size) as k:
            x.store(literal(1, x.kind), k, k)
        _eliminate(context, a, x)
        _substitute(context, a, x, is_lower=False)

    return [_by_matrices(context, a, target, each)]


def _determinant(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    function, a = context.function, _square(inputs[0])
    shape = context.shape_of(operation.outputs[0])
    target, none = function.allocate(a.kind, shape), function.allocate(a.kind, (*shape, a.shape[-1], 0))
    found = function.slot(a.kind)
    number = function.slot("i64")
    function.store("i64", 0, number)

    def each(a: _Matrix, x: _Matrix) -> None:
        function.store(a.kind, literal(1, a.kind), found)
        _eliminate(context, a, x, found)
        with function.count(a.rows) as k:
            function.store(
                a.kind, _compute(function, "fmul", a.kind, function.load(a.kind, found), a.load(k, k)), found
            )
        k = function.load("i64", number)
        function.store(a.kind, function.load(a.kind, found), target.pointer, k)
        function.store("i64", function.let(f"add i64 {k}, 1"), number)

    _by_matrices(context, a, none, each)
    return [target if shape else Scalar(function.load(target.kind, target.pointer), target.kind)]


def _cholesky(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    del operation
    function, a = context.function, _square(inputs[0])
    target = function.allocate(a.kind, a.shape)
    function.zero(target)

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


def _cholesky_gradient(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
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


def _solve_triangular(context: Context, operation: Operation, inputs: Sequence[Value]) -> list[Value]:
    op = operation.op
    assert isinstance(op, SolveTriangular)

    def each(a: _Matrix, x: _Matrix) -> None:
        a.is_transposed = op.transposed
        _substitute(context, a, x, op.lower != op.transposed, op.unit_diagonal)

    return [_by_matrices(context, inputs[0], context.function.copy_of(as_array(inputs[1])), each)]


# --- steps ----------------------------------------------------------------------------------------------------------


def _square(value: Value) -> Array:
    array = as_array(value)
    if array.kind not in FLOATS or array.shape[-1] > _MOST_ROWS:
        raise UnsupportedError("a large matrix, or one of another kind")
    return array


def _by_matrices(context: Context, value: Value, target: Array, each: Callable[[_Matrix, _Matrix], None]) -> Array:
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
    function.let_go(target)
    return target


def _eliminate(context: Context, a: _Matrix, x: _Matrix, sign: str = "") -> None:
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
        function.store(kind, literal(-1, kind), best)
        function.store("i64", k, place)
        with function.loop(k, size) as i:
            value, before = _call(function, "fabs", kind, a.load(i, k)), function.load(kind, best)
            is_larger = function.let(f"fcmp ogt {kind} {value}, {before}")
            function.store(kind, function.choose(is_larger, value, before, kind), best)
            function.store("i64", function.choose(is_larger, i, function.load("i64", place)), place)
        chosen = function.load("i64", place)
        if sign:
            is_moved, before = function.let(f"icmp ne i64 {chosen}, {k}"), function.load(kind, sign)
            turned = function.let(f"fneg {kind} {before}")
            function.store(kind, function.choose(is_moved, turned, before, kind), sign)
        else:
            context.fail_unless(function.let(f"fcmp une {kind} {function.load(kind, best)}, {literal(0, kind)}"))
        for matrix in (a, x):
            with function.count(matrix.columns) as j:
                first, second = matrix.load(k, j), matrix.load(chosen, j)
                matrix.store(second, k, j)
                matrix.store(first, chosen, j)
        pivot = a.load(k, k)
        if sign:  # all below are zeros, too
            is_zero = function.let(f"fcmp oeq {kind} {pivot}, {literal(0, kind)}")
            pivot = function.choose(is_zero, literal(1, kind), pivot, kind)
        with function.loop(_after(function, k), size) as i:
            a.divide(i, k, pivot)
            factor = a.load(i, k)
            with function.loop(_after(function, k), size) as j:
                a.subtract(i, j, factor, a.load(k, j))
            with function.count(x.columns) as j:
                x.subtract(i, j, factor, x.load(k, j))


def _substitute(context: Context, a: _Matrix, x: _Matrix, is_lower: bool, has_ones: bool = False) -> None:
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


FORMS: dict[type[Any], Form] = {
    Cholesky: _cholesky,
    CholeskyGradient: _cholesky_gradient,
    Determinant: _determinant,
    Inverse: _inverse,
    Solve: _solve,
    SolveTriangular: _solve_triangular,
}

__all__ = ["FORMS"]
