"""LU factors of large matrices, by blocks of columns: nearly all multiplications are those of products.

A block of columns is transposed, so that vectors go down its columns, and eliminated with partial pivoting. Its rows
are exchanged in the other columns then, the rows of U beside it follow by substitution, and one product subtracts what
the block contributes to all rows and columns behind it.

After N. Higham, Accuracy and Stability of Numerical Algorithms (2002), section 13.1, partitioned outer products.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.linear_algebra.factorisations import LuFactor
from ..elementwise.kernel_specs import fits
from ..host.scratch import own_memory
from ..llvm.builder import Builder, FunctionBuilder, Size
from ..llvm.squares import print_transpose, print_transposition
from ..llvm.tasks import Fields, begin_entry
from ..matmul import gemm
from .blocks import (
    BLOCK,
    absolute,
    cell,
    compiled,
    dtype_of_kernels,
    is_left,
    print_product,
    vector_parts,
)
from .eliminations import print_factors
from .stacks import is_small_stack, run_stack
from .substitution import print_substitution

_FIELDS = ("x", "out", "pivots", "order", "rows", "columns", "count", "memory", "product", "failed")
_FAILED = _FIELDS.index("failed")


def factors_of(x: Any, dtype: Any) -> tuple[Any, Any, Any] | None:
    """Return what `LuFactor` gives for float32 or float64, row by row in memory; None where an element is no number."""
    *batch, rows, columns = x.shape
    count, steps, element = x.size // (rows * columns), min(rows, columns), gemm.ELEMENTS[dtype.name]
    run = compiled("lu", element, (_print_panel, print_transposition, print_substitution, _print_swap, _print_all))
    out = np.empty(x.shape, dtype)
    pivots, order = (np.empty((*batch, size), np.int32) for size in (steps, rows))
    memory = own_memory(BLOCK * (rows + columns) * dtype.itemsize)
    product = gemm.product_address(dtype.name)
    fields = [x, out, pivots, order, rows, columns, count, memory, product]
    return None if is_left(run, fields) else (out, pivots, order)


def lu_runner(operation: Operation) -> Callable[[Any], Any] | None:
    """Return what runs a `LuFactor` on float32 or float64; None for other dtypes.

    Matrices with elements that are no numbers are left to NumPy, which has its own order of these.
    """
    op, dtype = op_of(operation, LuFactor), dtype_of_kernels(operation)
    if dtype is None:
        return None

    def factor(x: Any) -> Any:
        if not x.size or not fits(x, dtype):
            return op.run(np, x)
        is_small = x.shape[-1] == x.shape[-2] and is_small_stack(x.shape[-1], math.prod(x.shape[:-2]))
        found = _small_factors(x, dtype) if is_small else factors_of(x, dtype)
        return op.run(np, x) if found is None else found

    return factor


def _small_factors(x: Any, dtype: Any) -> tuple[Any, Any, Any] | None:
    *batch, size, _ = x.shape
    count = x.size // (size * size)
    out, found = np.empty(x.shape, dtype), np.empty((count, size), dtype)
    arrays = x, found, out
    if run_stack("lu_factors", gemm.ELEMENTS[dtype.name], print_factors, arrays, (size, 1, count)):
        return None
    pivots = found.astype(np.int32)
    order = np.broadcast_to(np.arange(size, dtype=np.int32), (count, size)).copy()
    every = np.arange(count, dtype=np.int64)
    for step, places in enumerate(pivots.T):
        moved = order[every, places]
        order[every, places] = order[:, step]
        order[:, step] = moved
    return out, pivots.reshape(*batch, size), order.reshape(*batch, size)


# --- code -----------------------------------------------------------------------------------------------------------


def _print_all(element: str, lanes: int) -> str:
    """Print ``(numbers)``: factorise each matrix of a stack; the last number becomes 1 if an element is no number."""
    code, fields = begin_entry("lu", _FIELDS)
    rows, columns = fields["rows"], fields["columns"]
    steps, size = code.least(rows, columns), code.mul(rows, columns)
    with code.loop(0, fields["count"]) as number:
        x, out = (code.at(element, fields.address(name), code.mul(number, size)) for name in ("x", "out"))
        code.copy(element, x, out, size)
        pivots = code.at("i32", fields.address("pivots"), code.mul(number, steps))
        order = code.at("i32", fields.address("order"), code.mul(number, rows))
        with code.loop(0, rows) as row:
            code.store("i32", code.let(f"trunc i64 {row} to i32"), order, row)
        blocks = _Blocks(code, element, lanes, fields, out, pivots)
        with code.loop(0, steps, BLOCK) as column:
            blocks.print(column, code.least(BLOCK, code.sub(steps, column)))
        with code.loop(0, steps) as row:
            other = blocks.pivot(row)
            before, after = code.load("i32", order, row), code.load("i32", order, other)
            code.store("i32", after, order, row)
            code.store("i32", before, order, other)
    return code.text()


class _Blocks:
    """The factors of a matrix, in place, block by block.

    Args:
        code: the function.
        element: the LLVM type of the elements.
        lanes: elements of a vector.
        fields: what the function is called with.
        out: the address of the matrix.
        pivots: the address of the rows of the pivots.
    """

    def __init__(self, code: Builder, element: str, lanes: int, fields: Fields, out: str, pivots: str) -> None:
        self.code, self.element, self.lanes, self.out, self.pivots = code, element, lanes, out, pivots
        self.rows, self.columns = fields["rows"], fields["columns"]
        self.product, self.panel = fields.address("product"), fields.address("memory")
        self.negated = code.at(element, self.panel, code.mul(self.rows, BLOCK))
        self.square = code.slot(f"[{BLOCK * BLOCK} x {element}]")

    def pivot(self, row: Size) -> str:
        """Return with which row a row was exchanged."""
        return self.code.let(f"zext i32 {self.code.load('i32', self.pivots, row)} to i64")

    def print(self, column: Size, width: Size) -> None:
        """Eliminate a block of columns, those before it being done."""
        code, columns = self.code, self.columns
        high, diagonal = code.sub(self.rows, column), self._place(column, column)
        print_transpose(code, (diagonal, columns), (self.panel, high), (high, width))
        own = code.at("i32", self.pivots, column)
        failed = code.let(
            f"call i64 @panel(ptr {self.panel}, i64 {high}, i64 {width}, ptr {own}, i64 {column})",
        )
        with code.when(code.compare("ne", failed, 0)):
            code.store("i64", 1, "%numbers", _FAILED)
        print_transpose(code, (self.panel, high), (diagonal, columns), (width, high))
        behind = code.add(column, width)
        right = code.sub(columns, behind)
        with code.loop(column, behind) as row:
            other = self.pivot(row)
            with code.when(code.compare("ne", row, other)):
                for start, count in ((0, column), (behind, right)):
                    pair = f"ptr {self._place(row, start)}, ptr {self._place(other, start)}"
                    code.line(f"call void @swap({pair}, i64 {count})")
        with code.when(code.compare("sgt", right, 0)):
            self._print_right(column, width, high, right)

    def _print_right(self, column: Size, width: Size, high: Size, right: Size) -> None:
        """Print the rows of U beside a block, and what they and the block contribute to the rest."""
        code, element, columns = self.code, self.element, self.columns
        with code.loop(0, width) as i, code.loop(0, code.add(i, 1)) as k:
            value = code.load(element, self.panel, code.add(code.mul(k, high), i))
            value = code.choose(code.compare("eq", i, k), "1.0", value, element)
            code.store(element, value, self.square, cell(code, i, k))
        behind, below = code.add(column, width), code.sub(high, width)
        beside = self._place(column, behind)
        code.line(f"call void @substitute(ptr {self.square}, ptr {beside}, i64 {columns}, i64 {width}, i64 {right})")
        with code.when(code.compare("sgt", below, 0)):
            with code.loop(0, width) as i, code.loop(0, right) as j:
                value = code.load(element, beside, code.add(code.mul(i, columns), j))
                place = code.add(code.mul(i, right), j)
                code.store(element, code.let(f"fneg {element} {value}"), self.negated, place)
            rest = self._place(behind, behind), columns
            factors = (self._place(behind, column), columns, 0), (self.negated, right, 0)
            print_product(code, self.product, (below, right, width), *factors, rest, rest)

    def _place(self, row: Size, column: Size) -> str:
        return self.code.at(self.element, self.out, self.code.mul(row, self.columns), column)


def _print_panel(element: str, lanes: int) -> str:
    """Print ``i64 panel(x, high, width, pivots, first)``: eliminate columns, each in a row of memory, in place.

    The rows of the pivots count from `first` on. Returns 1 if an element is no number.
    """
    parameters = ["ptr %x", "i64 %high", "i64 %width", "ptr %pivots", "i64 %first"]
    code = FunctionBuilder("panel", parameters, result="i64")
    failed = code.slot("i64", "0")
    with code.loop(0, "%width") as k:
        column = code.at(element, "%x", code.mul(k, "%high"))
        found = _print_largest(code, element, lanes, column, k)
        is_number = code.compare("slt", found, "%high")
        code.store("i64", code.choose(is_number, code.load("i64", failed), 1), failed)
        place = code.choose(is_number, found, k)
        code.store("i32", code.let(f"trunc i64 {code.add(place, '%first')} to i32"), "%pivots", k)
        with code.loop(0, "%width") as other:
            line = code.at(element, "%x", code.mul(other, "%high"))
            before, after = code.load(element, line, k), code.load(element, line, place)
            code.store(element, after, line, k)
            code.store(element, before, line, place)
        pivot = code.load(element, column, k)
        is_zero = code.let(f"fcmp oeq {element} {pivot}, 0.0")  # all below are zeros, too
        pivot = code.choose(is_zero, "1.0", pivot, element)
        below = code.add(k, 1)
        for lane, start, stop in vector_parts(code, lanes, below, "%high"):
            vector = f"<{lane} x {element}>"
            divisor = code.broadcast(lane, element, pivot)
            with code.loop(start, stop, lane) as i:
                value = code.load_vector(vector, element, column, i)
                code.store_vector(vector, element, code.let(f"fdiv {vector} {value}, {divisor}"), column, i)
        with code.loop(below, "%width") as other:
            line = code.at(element, "%x", code.mul(other, "%high"))
            factor = code.let(f"fneg {element} {code.load(element, line, k)}")
            for lane, start, stop in vector_parts(code, lanes, below, "%high"):
                vector = f"<{lane} x {element}>"
                times = code.broadcast(lane, element, factor)
                with code.loop(start, stop, lane) as i:
                    value, before = (code.load_vector(vector, element, of, i) for of in (column, line))
                    code.store_vector(vector, element, code.multiply_add(vector, times, value, before), line, i)
    code.line(f"ret i64 {code.load('i64', failed)}")
    return code.text()


def _print_largest(code: Builder, element: str, lanes: int, column: str, start: Size) -> str:
    """Return the first place of the largest absolute value of a column; its height where an element is no number."""
    single = f"<1 x {element}>"
    largest, place = code.slot(single), code.slot("i64")
    code.store(single, code.broadcast(1, element, "-1.0"), largest)
    for lane, first, stop in vector_parts(code, lanes, start, "%high"):
        vector = f"<{lane} x {element}>"
        best = code.slot(vector)
        code.store(vector, code.broadcast(lane, element, "-1.0"), best)
        with code.loop(first, stop, lane) as i:
            value = absolute(code, element, lane, code.load_vector(vector, element, column, i))
            code.store(vector, code.larger(lane, vector, value, code.load(vector, best)), best)
        for number in range(lane):
            value = code.let(f"extractelement {vector} {code.load(vector, best)}, i32 {number}")
            value = code.let(f"insertelement {single} undef, {element} {value}, i32 0")
            code.store(single, code.larger(1, single, value, code.load(single, largest)), largest)
    code.store("i64", "%high", place)
    for lane, first, stop in reversed(vector_parts(code, lanes, start, "%high")):
        vector = f"<{lane} x {element}>"
        target = code.broadcast(lane, element, code.let(f"extractelement {single} {code.load(single, largest)}, i32 0"))
        with code.loop(first, stop, lane) as number:
            i = code.sub(code.add(first, stop), code.add(number, lane))  # from the last on: the first one stays
            value = absolute(code, element, lane, code.load_vector(vector, element, column, i))
            same = code.let(f"bitcast <{lane} x i1> {code.let(f'fcmp oeq {vector} {value}, {target}')} to i{lane}")
            with code.when(code.let(f"icmp ne i{lane} {same}, 0")):
                offset = code.let(f"call i{lane} @llvm.cttz.i{lane}(i{lane} {same}, i1 true)")
                wide = code.let(f"zext i{lane} {offset} to i64")
                code.store("i64", code.add(i, wide), place)
    return code.load("i64", place)


def _print_swap(element: str, lanes: int) -> str:
    """Print ``swap(one, two, count)``: exchange elements."""
    code = FunctionBuilder("swap", ["ptr %one", "ptr %two", "i64 %count"])
    for lane, start, stop in vector_parts(code, lanes, 0, "%count"):
        vector = f"<{lane} x {element}>"
        with code.loop(start, stop, lane) as i:
            one, two = (code.load_vector(vector, element, of, i) for of in ("%one", "%two"))
            code.store_vector(vector, element, two, "%one", i)
            code.store_vector(vector, element, one, "%two", i)
    return code.text()
