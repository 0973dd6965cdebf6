"""The Cholesky factor of large matrices, by blocks of columns: nearly all multiplications are those of products.

One product subtracts from each block of columns the contribution of the columns before it. The block is transposed
then: the square on the diagonal is factorised in registers, and the rest follows by substitution, with vectors along
the rows of the matrix. So no product has a size of its own to be compiled for, threads share them as any other
product, and no block is inverted.

After N. Higham, Accuracy and Stability of Numerical Algorithms (2002), section 10.1, by block columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.linear_algebra.cholesky import Cholesky
from ..elementwise.kernel_specs import fits
from ..host.scratch import own_memory
from ..llvm.builder import Builder, FunctionBuilder, Size
from ..llvm.tasks import Fields, begin_entry
from ..matmul import gemm
from .blocks import BLOCK, cell, compiled, dtype_of_kernels, is_left, print_exchange, print_product, print_transposed
from .stacks import MOST, print_factor, run_stack
from .triangular import print_substitution

_LEAST = 96  # rows: of one to three smaller matrices LAPACK is as quick,
_FEW = 4
_FIELDS = ("x", "out", "size", "count", "memory", "product", "failed")


def cholesky_runner(operation: Operation) -> Callable[[Any], Any] | None:
    """Return what runs a `Cholesky` on float32 or float64; None for other dtypes.

    A matrix that turns out not to be positive definite is left to NumPy, which raises, or finds that rounding differs.
    """
    op, dtype = op_of(operation, Cholesky), dtype_of_kernels(operation)
    if dtype is None:
        return None
    element = gemm.ELEMENTS[dtype.name]
    run = compiled("cholesky", element, (_print_factor, print_substitution, _print_all))
    item = dtype.itemsize

    def cholesky(x: Any) -> Any:
        size = x.shape[-1]
        count = x.size // (size * size) if x.size else 0
        if not count or (size < _LEAST and count < _FEW) or not fits(x, dtype):
            return op.run(np, x)
        out = np.empty(x.shape, dtype)
        if size <= MOST:
            arrays = x.ctypes.data, out.ctypes.data
            return op.run(np, x) if run_stack("factors", element, print_factor, arrays, (size, size, count)) else out
        memory = own_memory(3 * BLOCK * size * item)
        fields = [x.ctypes.data, out.ctypes.data, size, count, memory.ctypes.data, gemm.product_address(dtype.name)]
        return op.run(np, x) if is_left(run, fields) else out

    return cholesky


# --- code -----------------------------------------------------------------------------------------------------------


def _print_all(element: str, lanes: int) -> str:
    """Print ``(numbers)``: factorise each matrix of a stack; the last number becomes 1 if one has no factor."""
    code, fields = begin_entry("cholesky", _FIELDS)
    size = fields["size"]
    with code.loop(0, fields["count"]) as number:
        first = code.mul(number, code.mul(size, size))
        x, out = (code.at(element, fields.address(name), first) for name in ("x", "out"))
        _print_half(code, element, lanes, x, out, size)
        columns = _Columns(code, element, lanes, out, size, fields)
        with code.loop(0, size, BLOCK) as column:
            columns.print(column)
    return code.text()


def _print_half(code: Builder, element: str, lanes: int, x: str, out: str, size: Size) -> None:
    """Print half the sum of a matrix and its transpose, below the diagonal and on it; zeros above it."""
    vector = f"<{lanes} x {element}>"
    whole = code.sub(size, code.rem(size, lanes))

    def half(kind: str, one: str, two: str) -> str:
        factor = "0.5" if kind == element else code.broadcast(lanes, element, "0.5")
        return code.let(f"fmul {kind} {code.let(f'fadd {kind} {one}, {two}')}, {factor}")

    with code.loop(0, whole, lanes) as i, code.loop(0, code.add(i, 1), lanes) as j:
        places = [code.add(code.mul(code.add(i, k), size), j) for k in range(lanes)]
        others = [code.add(code.mul(code.add(j, k), size), i) for k in range(lanes)]
        across = print_exchange(code, element, [code.load_vector(vector, element, x, place) for place in others])
        for place, other in zip(places, across, strict=True):
            value = half(vector, code.load_vector(vector, element, x, place), other)
            code.store_vector(vector, element, value, out, place)
    with code.loop(whole, size) as i, code.loop(0, code.add(i, 1)) as j:
        place, other = code.add(code.mul(i, size), j), code.add(code.mul(j, size), i)
        value = half(element, code.load(element, x, place), code.load(element, x, other))
        code.store(element, value, out, place)
    with code.loop(0, size) as i, code.loop(code.add(i, 1), size) as j:
        code.store(element, "0.0", out, code.add(code.mul(i, size), j))


class _Columns:
    """The factor of a matrix, in place.

    Args:
        code: the function.
        element: the LLVM type of the elements.
        lanes: elements of a vector.
        out: the address of the matrix, of which the lower half counts.
        size: its rows.
        fields: what the function is called with.
    """

    def __init__(self, code: Builder, element: str, lanes: int, out: str, size: Size, fields: Fields) -> None:
        self.code, self.element, self.lanes, self.out, self.size = code, element, lanes, out, size
        self.product = fields.address("product")
        memory = fields.address("memory")
        self.negated, self.block, self.rows = (
            code.at(element, memory, code.mul(size, number * BLOCK)) for number in range(3)
        )
        self.square, self.lower = (code.slot(f"[{BLOCK * BLOCK} x {element}]") for _ in range(2))

    def print(self, column: Size) -> None:
        """Factorise a block of columns, those before it being done."""
        code, element, size = self.code, self.element, self.size
        width, high = code.least(BLOCK, code.sub(size, column)), code.sub(size, column)
        diagonal = self._place(column, column)
        is_first = code.compare("eq", column, 0)
        with code.unless(is_first):
            self._subtract(column, width, high)
        source = code.choose(is_first, diagonal, self.block, "ptr"), code.choose(is_first, size, BLOCK)
        rows = self.rows, high
        print_transposed(code, element, self.lanes, source, rows, (high, width))
        with code.loop(0, BLOCK) as i, code.loop(0, BLOCK) as j:  # what a narrow block lacks are rows of the identity
            is_on = code.compare("eq", i, j)
            code.store(element, code.choose(is_on, "1.0", "0.0", element), self.square, cell(code, i, j))
        with code.loop(0, width) as i, code.loop(i, width) as j:
            value = code.load(element, self.rows, code.add(code.mul(i, high), j))
            code.store(element, value, self.square, cell(code, i, j))
        failed = code.let(f"call i64 @factor(ptr {self.square})")
        with code.when(code.compare("ne", failed, 0)):
            code.store("i64", 1, "%numbers", _FIELDS.index("failed"))
        with code.loop(0, width) as i, code.loop(0, width) as j:
            value = code.load(element, self.square, cell(code, i, j))
            value = code.choose(code.compare("sle", i, j), value, "0.0", element)
            code.store(element, value, self.rows, code.add(code.mul(i, high), j))
        below = code.sub(high, width)
        with code.when(code.compare("sgt", below, 0)):
            squares = (self.square, BLOCK), (self.lower, BLOCK)
            print_transposed(code, element, self.lanes, *squares, (BLOCK, BLOCK))
            rest = code.at(element, self.rows, width)
            code.line(f"call void @substitute(ptr {self.lower}, ptr {rest}, i64 {high}, i64 {width}, i64 {below})")
        print_transposed(code, element, self.lanes, rows, (diagonal, size), (width, high))

    def _place(self, row: Size, column: Size) -> str:
        return self.code.at(self.element, self.out, self.code.mul(row, self.size), column)

    def _subtract(self, column: Size, width: Size, high: Size) -> None:
        """Put into `block` what is left of columns without what the columns before give."""
        code, element, size = self.code, self.element, self.size
        rows = self._place(column, 0)
        with code.loop(0, width) as i, code.loop(0, column) as k:
            value = code.load(element, rows, code.add(code.mul(i, size), k))
            code.store(element, code.let(f"fneg {element} {value}"), self.negated, code.add(code.mul(i, column), k))
        a, b, d = (rows, size, 0), (self.negated, column, 1), (self._place(column, column), size)
        print_product(code, self.product, (high, width, column), a, b, (self.block, BLOCK), d)


def _print_factor(element: str, lanes: int) -> str:
    """Print ``i64 factor(square)``: it factors a symmetric matrix, given as its upper half, in place: an upper factor.

    Returns 1 if a pivot is not positive. What is below the diagonal has no meaning afterwards.
    """
    code = FunctionBuilder("factor", ["ptr %square"], result="i64")
    vector, failed = f"<{lanes} x {element}>", code.slot("i64", "0")
    with code.loop(0, BLOCK) as pivot:
        row = code.at(element, "%square", code.mul(pivot, BLOCK))
        value = code.load(element, row, pivot)
        is_positive = code.let(f"fcmp ogt {element} {value}, 0.0")
        code.store("i64", code.choose(is_positive, code.load("i64", failed), 1), failed)
        suffix = "f32" if element == "float" else "f64"
        root = code.let(f"call {element} @llvm.sqrt.{suffix}({element} {value})")
        factor = code.broadcast(lanes, element, code.let(f"fdiv {element} 1.0, {root}"))
        scaled: list[str] = []
        for start in range(0, BLOCK, lanes):
            scaled.append(code.let(f"fmul {vector} {code.load_vector(vector, element, row, start)}, {factor}"))
            code.store_vector(vector, element, scaled[-1], row, start)
        code.store(element, root, row, pivot)
        with code.loop(code.add(pivot, 1), BLOCK) as other:
            _print_subtract(code, element, lanes, code.load(element, row, other), scaled, other)
    code.line(f"ret i64 {code.load('i64', failed)}")
    return code.text()


def _print_subtract(code: Builder, element: str, lanes: int, factor: str, row: list[str], other: str) -> None:
    """Subtract a multiple of a row from another one of the square."""
    vector = f"<{lanes} x {element}>"
    times = code.broadcast(lanes, element, code.let(f"fneg {element} {factor}"))
    target = code.at(element, "%square", code.mul(other, BLOCK))
    for number, start in enumerate(range(0, BLOCK, lanes)):
        before = code.load_vector(vector, element, target, start)
        code.store_vector(vector, element, code.multiply_add(vector, times, row[number], before), target, start)
