"""The Cholesky factor of large matrices, by blocks of columns: nearly all multiplications are those of products.

One product subtracts from each block of columns the contribution of the columns before it. The block is transposed
then: the square on the diagonal is factorised in registers, and the rest follows by substitution, with vectors along
the rows of the matrix. So no product has a size of its own to be compiled for, and no block is inverted. Until then
the block has the other sign, and so has the square by which it is divided: products add, and need no negative operand.

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
from ..llvm.compiler import Effort
from ..llvm.squares import print_exchange, print_transpose, print_transposition
from ..llvm.tasks import Fields, begin_entry, begin_task, print_parallel
from ..matmul import gemm
from .blocks import (
    BLOCK,
    cell,
    compiled,
    dtype_of_kernels,
    is_left,
    packed_width,
    print_context,
    print_packed_product,
    print_packing,
    print_parts,
    vector_parts,
)
from .stacks import MOST, print_factor, run_stack
from .substitution import print_substitution_by_inverses

_LEAST = 96  # rows: of one to three smaller matrices LAPACK is as quick,
_FEW = 4
_FIELDS = ("x", "out", "size", "count", "memory", "product", "pack", "failed")
_OF_PART = (
    *("x", "out", "block", "rows", "packed", "lower", "product"),
    *("size", "column", "width", "part_rows"),
)


def cholesky_runner(operation: Operation) -> Callable[[Any], Any] | None:
    """Return what runs a `Cholesky` on float32 or float64; None for other dtypes.

    A matrix that turns out not to be positive definite is left to NumPy, which raises, or finds that rounding differs.
    """
    op, dtype = op_of(operation, Cholesky), dtype_of_kernels(operation)
    if dtype is None:
        return None
    element = gemm.ELEMENTS[dtype.name]
    run = compiled("cholesky", element, _PRINTERS, Effort.PRINTED)
    products = gemm.product_address(dtype.name), gemm.packing_address(dtype.name)
    of_row = (2 * BLOCK + packed_width(element)) * dtype.itemsize  # bytes of memory

    def cholesky(x: Any) -> Any:
        size = x.shape[-1]
        count = x.size // (size * size) if x.size else 0
        if not count or (size < _LEAST and count < _FEW) or not fits(x, dtype):
            return op.run(np, x)
        out = np.empty(x.shape, dtype)
        if size <= MOST:
            arrays = x, out
            return op.run(np, x) if run_stack("factors", element, print_factor, arrays, (size, size, count)) else out
        memory = own_memory(of_row * size)
        fields = [x, out, size, count, memory, *products]
        return op.run(np, x) if is_left(run, fields) else out

    return cholesky


# --- code -----------------------------------------------------------------------------------------------------------


def _print_all(element: str, lanes: int) -> str:
    """Print ``(numbers)``: factorise each matrix of a stack; the last number becomes 1 if one has no factor."""
    code, fields = begin_entry("cholesky", _FIELDS)
    size = fields["size"]
    with code.loop(0, fields["count"]) as number:
        first = code.mul(number, code.mul(size, size))
        arrays = [code.at(element, fields.address(name), first) for name in ("x", "out")]
        columns = _Columns(code, element, lanes, fields, arrays)
        with code.loop(0, size, BLOCK) as column:
            columns.print(column)
    return code.text()


class _Columns:
    """Blocks of columns of a matrix, from the first.

    Args:
        code: the function.
        element: the LLVM type of the elements.
        lanes: elements of a vector.
        fields: what the function is called with.
        arrays: the addresses of the matrix and of its factor.
    """

    def __init__(self, code: Builder, element: str, lanes: int, fields: Fields, arrays: list[str]) -> None:
        self.code, self.element, self.lanes, self.size = code, element, lanes, fields["size"]
        self.arrays, self.product, self.pack = arrays, fields.address("product"), fields.address("pack")
        self.block = fields.address("memory")
        self.rows = code.at(element, self.block, code.mul(self.size, BLOCK))
        self.packed = code.at(element, self.rows, code.mul(self.size, BLOCK))
        self.square, self.lower = (code.slot(f"[{BLOCK * BLOCK} x {element}]") for _ in range(2))
        self.context = code.slot(f"[{len(_OF_PART)} x i64]")

    def print(self, column: Size) -> None:
        """Factorise a block of columns, those before it being done."""
        code, size = self.code, self.size
        width, high = code.least(BLOCK, code.sub(size, column)), code.sub(size, column)
        with code.when(code.compare("sgt", column, 0)):
            before = code.at(self.element, self.arrays[1], code.mul(column, size)), size, 1
            print_packing(code, self.pack, (width, column), before, self.packed)
        parts, part_rows = print_parts(code, self.lanes, (high, width, column))
        addresses = (*self.arrays, self.block, self.rows, self.packed, self.lower, self.product)
        print_context(code, self.context, addresses, (size, column, width, part_rows))
        print_parallel(code, "cholesky_remainder_task", self.context, parts)
        self._factorise(width, high)
        print_parallel(code, "cholesky_solution_task", self.context, parts)

    def _factorise(self, width: Size, high: Size) -> None:
        """Factorise the square on the diagonal, in its place, and load what divides the rows below it."""
        code, element, vector = self.code, self.element, f"<{self.lanes} x {self.element}>"
        with code.when(code.compare("slt", width, BLOCK)):  # what a narrow block lacks are rows of the identity
            code.clear(element, self.square, BLOCK * BLOCK)
            with code.loop(width, BLOCK) as i:
                code.store(element, "1.0", self.square, cell(code, i, i))
        self._copy_square((self.rows, high), (self.square, BLOCK), width, is_negative=True)
        failed = code.let(f"call i64 @factor(ptr {self.square})")
        with code.when(code.compare("ne", failed, 0)):
            code.store("i64", 1, "%numbers", _FIELDS.index("failed"))
        self._copy_square((self.square, BLOCK), (self.rows, high), width)
        with code.loop(1, width) as i, code.loop(0, i) as j:
            code.store(element, "0.0", self.rows, code.add(code.mul(i, high), j))
        print_transpose(code, (self.square, BLOCK), (self.lower, BLOCK), (BLOCK, BLOCK))
        with code.loop(0, BLOCK * BLOCK, self.lanes) as place:
            value = code.load_vector(vector, element, self.lower, place)
            code.store_vector(vector, element, code.let(f"fneg {vector} {value}"), self.lower, place)
        with code.loop(0, width) as i:
            inverse = code.let(f"fdiv {element} 1.0, {code.load(element, self.lower, cell(code, i, i))}")
            code.store(element, inverse, self.lower, cell(code, i, i))

    def _copy_square(
        self, source: tuple[str, Size], target: tuple[str, Size], width: Size, is_negative: bool = False
    ) -> None:
        """Copy a square, or its negative, of addresses and steps from row to row."""
        code, element = self.code, self.element
        with code.loop(0, width) as i:
            x, y = (code.at(element, first, code.mul(i, step)) for first, step in (source, target))
            for lanes, start, stop in vector_parts(code, self.lanes, 0, width):
                vector = f"<{lanes} x {element}>"
                with code.loop(start, stop, lanes) as j:
                    value = code.load_vector(vector, element, x, j)
                    value = code.let(f"fneg {vector} {value}") if is_negative else value
                    code.store_vector(vector, element, value, y, j)


def _print_remainder(element: str, lanes: int) -> str:
    """Print what is left of a part of a block's rows without what the columns before give, negative and transposed.

    Right of the block, as many columns of the result become zeros.
    """
    code, get = begin_task("cholesky_remainder", _OF_PART)
    size, column, width, out = get["size"], get["column"], get["width"], get.address("out")
    first, count = _print_rows(code, get)
    row = code.add(column, first)
    block = code.at(element, get.address("block"), code.mul(row, BLOCK))  # each row has its own: caches hold it
    _print_half(code, element, lanes, get.address("x"), block, (size, row, column), (count, width))
    with code.when(code.compare("sgt", column, 0)):
        a, packed = (code.at(element, out, code.mul(row, size)), size), get.address("packed")
        print_packed_product(code, element, get.address("product"), (count, width, column), a, packed, block)
    high = code.sub(size, column)
    target = code.at(element, get.address("rows"), first), high
    print_transpose(code, (block, BLOCK), target, (count, width))
    right, end = code.greatest(row, code.add(column, width)), code.add(row, count)
    with code.when(code.compare("slt", right, end)), code.loop(column, code.add(column, width)) as i:
        code.clear(element, code.at(element, out, code.mul(i, size), right), code.sub(end, right))
    return code.text()


def _print_solution(element: str, lanes: int) -> str:
    """Print the division of a part of a block's rows by its square, and their way back into columns."""
    del lanes
    code, get = begin_task("cholesky_solution", _OF_PART)
    size, column, width = get["size"], get["column"], get["width"]
    first, count = _print_rows(code, get)
    high, rows = code.sub(size, column), get.address("rows")
    start = code.greatest(first, width)
    left = code.sub(code.add(first, count), start)
    with code.when(code.compare("sgt", left, 0)):
        rest = code.at(element, rows, start)
        code.line(f"call void @substitute(ptr {get.address('lower')}, ptr {rest}, i64 {high}, i64 {width}, i64 {left})")
    target = code.at(element, get.address("out"), code.mul(code.add(column, first), size), column)
    print_transpose(code, (code.at(element, rows, first), high), (target, size), (width, count))
    return code.text()


def _print_rows(code: Builder, get: Fields) -> tuple[Size, Size]:
    """Print the first row of a part, counted from the block's square, and how many there are."""
    first = code.mul("%part", get["part_rows"])
    return first, code.least(get["part_rows"], code.sub(code.sub(get["size"], get["column"]), first))


def _print_half(
    code: Builder,
    element: str,
    lanes: int,
    x: str,
    block: str,
    place: tuple[Size, Size, Size],
    sizes: tuple[Size, Size],
) -> None:
    """Print half the sum of some elements of a matrix and of those opposite, negative, as rows of a block.

    Args:
        code: the function.
        element: the LLVM type of the elements.
        lanes: elements of a vector.
        x: the address of the matrix.
        block: that of the rows.
        place: the rows of the matrix, and the first row and column that count.
        sizes: how many.
    """
    vector, (size, row, column), (count, width) = f"<{lanes} x {element}>", place, sizes
    whole, broad = (code.sub(number, code.rem(number, lanes)) for number in (count, width))
    own, opposite = code.at(element, x, code.mul(row, size), column), code.at(element, x, code.mul(column, size), row)

    def half(kind: str, one: str, two: str) -> str:
        factor = "-0.5" if kind == element else code.broadcast(lanes, element, "-0.5")
        return code.let(f"fmul {kind} {code.let(f'fadd {kind} {one}, {two}')}, {factor}")

    with code.loop(0, whole, lanes) as i, code.loop(0, broad, lanes) as j:
        others = [code.add(code.mul(code.add(j, k), size), i) for k in range(lanes)]
        across = print_exchange(code, element, [code.load_vector(vector, element, opposite, k) for k in others])
        for k, other in enumerate(across):
            value = code.load_vector(vector, element, own, code.add(code.mul(code.add(i, k), size), j))
            code.store_vector(vector, element, half(vector, value, other), block, cell(code, code.add(i, k), j))
    with code.loop(0, count) as i, code.loop(code.choose(code.compare("slt", i, whole), broad, 0), width) as j:
        one = code.load(element, own, code.add(code.mul(i, size), j))
        two = code.load(element, opposite, code.add(code.mul(j, size), i))
        code.store(element, half(element, one, two), block, cell(code, i, j))


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


_PRINTERS = (
    print_transposition,
    _print_factor,
    print_substitution_by_inverses,
    _print_remainder,
    _print_solution,
    _print_all,
)
