"""Solutions of triangular systems, by blocks of unknowns: one product subtracts from each block what is known by then.

The unknowns of a block follow by substitution, with vectors along the right sides. Few right sides are taken one by
one: sums along rows of the matrix, or multiples of its rows where its transpose is meant, so that rows are read in
order.

After N. Higham, Accuracy and Stability of Numerical Algorithms (2002), chapter 8: no block is inverted, so each
solution is that of a matrix near the given one, whatever its condition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.linear_algebra.triangular import SolveTriangular
from ..elementwise.bound import fitted
from ..host.scratch import own_memory
from ..llvm.builder import Builder, FunctionBuilder, Size
from ..llvm.library import library
from ..llvm.registers import registers_of
from ..llvm.tasks import Fields, begin_entry
from ..matmul import gemm
from .blocks import BLOCK, cell, compiled, dtype_of_kernels, is_left, print_product, vector_parts
from .stacks import MOST, Solution, run_stack
from .substitution import print_substitution

_FEW = 4  # right sides: of fewer or as many each is solved by itself
_WIDE = 4  # vectors of right sides that are substituted at a time
_FIELDS = (
    *("a", "x", "size", "columns", "count", "a_step", "is_lower", "is_transposed", "is_unit"),
    *("memory", "product", "is_singular"),
)


def triangular_runner(operation: Operation) -> Callable[[Any, Any], Any] | None:
    """Return what runs a `SolveTriangular` on float32 or float64; None for other dtypes.

    A matrix with a zero on its diagonal is left to NumPy, which raises its error.
    """
    op, dtype = op_of(operation, SolveTriangular), dtype_of_kernels(operation)
    if dtype is None or operation.inputs[1].dtype is not operation.inputs[0].dtype:
        return None
    element = gemm.ELEMENTS[dtype.name]
    flags = op.lower, op.transposed, op.unit_diagonal
    small = Solution(op.lower != op.transposed, op.transposed, op.unit_diagonal)
    lanes = registers_of(library.host, element).lanes

    def solve(a: Any, b: Any) -> Any:
        if not (a.size and b.size):
            return op.run(np, a, b)
        batch = b.shape[:-2] if a.ndim == 2 else np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        size, columns = a.shape[-1], b.shape[-1]
        matrices = fitted(a if a.ndim == 2 else np.broadcast_to(a, (*batch, size, size)), dtype)
        x = np.empty((*batch, size, columns), dtype)
        count = x.size // (size * columns)
        if a.ndim > 2 and count > 1 and size <= MOST and columns < lanes:
            given = fitted(b if b.shape == x.shape else np.broadcast_to(b, x.shape), dtype)
            arrays = matrices, given, x
            is_done = not run_stack(
                f"solutions_{''.join(str(int(flag)) for flag in flags)}", element, small, arrays, (size, columns, count)
            )
            return x if is_done else op.run(np, a, b)
        x[...] = b
        return op.run(np, a, b) if substitute_in_place(matrices, x, dtype, flags) else x

    return solve


def substitute_in_place(a: Any, x: Any, dtype: Any, flags: tuple[bool, bool, bool]) -> bool:
    """Solve triangular systems, right sides becoming unknowns; return whether a matrix is singular.

    Args:
        a: one matrix, or a stack of those of `x`, row by row in memory.
        x: the right sides, the same.
        dtype: of both, float32 or float64.
        flags: whether matrices are lower triangles, whether their transposes count, whether their diagonals are ones.
    """
    size, columns = x.shape[-2:]
    run = compiled("triangular", gemm.ELEMENTS[dtype.name], (print_substitution, _print_one, _print_all))
    memory = own_memory((BLOCK + 1) * size * dtype.itemsize)
    sizes = [size, columns, x.size // (size * columns), 0 if a.ndim == 2 else size * size, *map(int, flags)]
    return is_left(run, [a, x, *sizes, memory, gemm.product_address(dtype.name)])


# --- code -----------------------------------------------------------------------------------------------------------


def _print_all(element: str, lanes: int) -> str:
    """Print ``(numbers)``: solve each system of a stack in place; the last number becomes 1 if a matrix is singular."""
    code, fields = begin_entry("triangular", _FIELDS)
    size, columns = fields["size"], fields["columns"]
    is_few = code.compare("sle", columns, _FEW)
    with code.loop(0, fields["count"]) as number:
        a = code.at(element, fields.address("a"), code.mul(number, fields["a_step"]))
        x = code.at(element, fields.address("x"), code.mul(number, code.mul(size, columns)))
        _print_check(code, element, a, size, fields)
        with code.when(is_few), code.loop(0, columns) as column:
            flags = ", ".join(f"i64 {fields[name]}" for name in ("is_lower", "is_transposed", "is_unit"))
            own, memory = code.at(element, x, column), fields.address("memory")
            code.line(f"call void @one(ptr {a}, ptr {own}, i64 {size}, i64 {columns}, {flags}, ptr {memory})")
        with code.unless(is_few), code.loop(0, size, BLOCK) as done:
            _print_block(code, element, fields, a, x, done)
    return code.text()


def _print_check(code: Builder, element: str, a: str, size: Size, fields: Fields) -> None:
    """Note a zero on the diagonal, where that counts."""
    counts = code.compare("eq", fields["is_unit"], 0)
    with code.when(counts), code.loop(0, size) as i:
        value = code.load(element, a, code.mul(i, code.add(size, 1)))
        with code.when(code.let(f"fcmp oeq {element} {value}, 0.0")):
            code.store("i64", 1, "%numbers", _FIELDS.index("is_singular"))


def _is_forward(code: Builder, is_lower: Size, is_transposed: Size) -> str:
    """Test whether the first unknown is found first: of a lower triangle, or of an upper one that is transposed."""
    return code.compare("ne", is_lower, is_transposed)


def _print_block(code: Builder, element: str, fields: Fields, a: str, x: str, done: Size) -> None:
    """Solve for the next block of unknowns; `done` of them are known."""
    size, columns, product = fields["size"], fields["columns"], fields.address("product")
    negated, square = fields.address("memory"), code.slot(f"[{BLOCK * BLOCK} x {element}]")
    left = code.sub(size, done)
    width = code.least(BLOCK, left)
    is_forward = _is_forward(code, fields["is_lower"], fields["is_transposed"])
    is_transposed = code.compare("ne", fields["is_transposed"], 0)
    start = code.choose(is_forward, done, code.sub(left, width))
    known = code.choose(is_forward, 0, left)
    down, across = code.choose(is_transposed, 1, size), code.choose(is_transposed, size, 1)  # from row to row of T
    first = code.at(element, x, code.mul(start, columns))
    corner = code.at(element, a, code.mul(start, down))
    with code.when(code.compare("sgt", done, 0)):
        panel = code.at(element, corner, code.mul(known, across))

        def negate(i: Size, k: Size) -> None:
            value = code.load(element, panel, code.add(code.mul(i, down), code.mul(k, across)))
            code.store(element, code.let(f"fneg {element} {value}"), negated, code.add(code.mul(i, size), k))

        with code.when(is_transposed), code.loop(0, done) as k, code.loop(0, width) as i:
            negate(i, k)
        with code.unless(is_transposed), code.loop(0, width) as i, code.loop(0, done) as k:
            negate(i, k)
        others, own = (code.at(element, x, code.mul(known, columns)), columns, 0), (first, columns)
        print_product(code, product, (width, columns, done), (negated, size, 0), others, own, own)
    # The order of the unknowns of an upper triangle is turned around: it becomes a lower one.
    last = code.sub(width, 1)
    diagonal = code.at(element, corner, code.mul(start, across))
    is_unit = code.compare("ne", fields["is_unit"], 0)
    with code.loop(0, width) as i, code.loop(0, code.add(i, 1)) as k:
        row, column = (code.choose(is_forward, place, code.sub(last, place)) for place in (i, k))
        value = code.load(element, diagonal, code.add(code.mul(row, down), code.mul(column, across)))
        is_one = code.let(f"and i1 {is_unit}, {code.compare('eq', i, k)}")
        code.store(element, code.choose(is_one, "1.0", value, element), square, cell(code, i, k))
    begin = code.choose(is_forward, 0, code.mul(last, columns))
    step = code.choose(is_forward, columns, code.sub(0, columns))
    rows = code.at(element, first, begin)
    code.line(f"call void @substitute(ptr {square}, ptr {rows}, i64 {step}, i64 {width}, i64 {columns})")


def _print_one(element: str, lanes: int) -> str:
    """Print ``one(a, x, size, step, is_lower, is_transposed, is_unit, memory)``, a solver for one right side.

    It works by rows of A.
    """
    flags = ["i64 %is_lower", "i64 %is_transposed", "i64 %is_unit"]
    code = FunctionBuilder("one", ["ptr %a", "ptr %x", "i64 %size", "i64 %step", *flags, "ptr %memory"])
    with code.loop(0, "%size") as i:
        code.store(element, code.load(element, "%x", code.mul(i, "%step")), "%memory", i)
    is_forward = _is_forward(code, "%is_lower", "%is_transposed")
    is_lower, is_unit = code.compare("ne", "%is_lower", 0), code.compare("ne", "%is_unit", 0)
    is_transposed = code.compare("ne", "%is_transposed", 0)
    with code.loop(0, "%size") as number:
        i = code.choose(is_forward, number, code.sub(code.sub("%size", 1), number))
        row = code.at(element, "%a", code.mul(i, "%size"))
        start, stop = code.choose(is_lower, 0, code.add(i, 1)), code.choose(is_lower, i, "%size")
        divisor = code.choose(is_unit, "1.0", code.load(element, row, i), element)
        with code.unless(is_transposed):
            total = _sum(code, element, lanes, row, start, stop)
            rest = code.let(f"fsub {element} {code.load(element, '%memory', i)}, {total}")
            code.store(element, rest, "%memory", i)
        found = code.let(f"fdiv {element} {code.load(element, '%memory', i)}, {divisor}")
        code.store(element, found, "%memory", i)
        with code.when(is_transposed):
            negative = code.let(f"fneg {element} {found}")
            for width, begin, end in vector_parts(code, lanes, start, stop):
                vector, times = f"<{width} x {element}>", code.broadcast(width, element, negative)
                with code.loop(begin, end, width) as k:
                    value, before = (code.load_vector(vector, element, of, k) for of in (row, "%memory"))
                    code.store_vector(vector, element, code.multiply_add(vector, times, value, before), "%memory", k)
    with code.loop(0, "%size") as i:
        code.store(element, code.load(element, "%memory", i), "%x", code.mul(i, "%step"))
    return code.text()


def _sum(code: Builder, element: str, lanes: int, row: str, start: Size, stop: Size) -> str:
    """Sum the products of a row's elements and those of the solution so far, in four vectors."""
    vector = f"<{lanes} x {element}>"
    sums = [code.slot(vector) for _ in range(_WIDE)]
    for place in sums:
        code.store(vector, "zeroinitializer", place)
    count = code.sub(stop, start)
    wide = code.sub(stop, code.rem(count, _WIDE * lanes))
    whole = code.sub(stop, code.rem(count, lanes))

    def add(place: str, k: Size) -> None:
        left, right = (code.load_vector(vector, element, of, k) for of in (row, "%memory"))
        code.store(vector, code.multiply_add(vector, left, right, code.load(vector, place)), place)

    with code.loop(start, wide, _WIDE * lanes) as k:
        for number, place in enumerate(sums):
            add(place, code.add(k, number * lanes))
    with code.loop(wide, whole, lanes) as k:
        add(sums[0], k)
    values = [code.load(vector, place) for place in sums]
    while len(values) > 1:
        values = [code.let(f"fadd {vector} {a}, {b}") for a, b in zip(values[::2], values[1::2], strict=True)]
    total = code.slot(element, "0.0")
    for lane in range(lanes):
        value = code.let(f"extractelement {vector} {values[0]}, i32 {lane}")
        code.store(element, code.let(f"fadd {element} {code.load(element, total)}, {value}"), total)
    with code.loop(whole, stop) as k:
        left, right = (code.load(element, of, k) for of in (row, "%memory"))
        code.store(element, code.multiply_add(element, left, right, code.load(element, total)), total)
    return code.load(element, total)
