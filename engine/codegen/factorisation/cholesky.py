"""The Cholesky factor of large matrices, by blocks of columns: nearly all multiplications are those of products.

One product subtracts from each block of columns the contribution of the columns before it. The square on the diagonal
is factorised and inverted in registers. The rows below it are multiplied by that inverse, and a step of correction
makes the result as exact as a substitution. So no product has a size of its own to be compiled for, and threads share
them as any other product.

After N. Higham, Accuracy and Stability of Numerical Algorithms (2002), section 10.1, by block columns; the inverse of a
block on the diagonal in place of a substitution as in J. Du Croz and N. Higham, Stability of methods for matrix
inversion (1992).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...graph.graph import Operation
from ...ops.linear_algebra.matrices import Cholesky
from ..convolution.correlation import Fields
from ..elementwise.bound import fits
from ..llvm.builder import BYTES, Builder, FunctionBuilder, Size
from ..llvm.scratch import scratch
from ..matmul import gemm
from .blocks import BLOCK, cell, compiled, dtype_of_kernels, is_left, print_inverse, print_product

_LEAST = 128  # rows: of smaller matrices LAPACK is as quick
_FIELDS = ("x", "out", "size", "count", "memory", "product", "failed")


def cholesky_runner(operation: Operation) -> Callable[[Any], Any] | None:
    """Return what runs a `Cholesky` on float32 or float64; None for other dtypes.

    A matrix that turns out not to be positive definite is left to NumPy, which raises, or finds that rounding differs.
    """
    op, shape, dtype = operation.op, operation.inputs[0].shape, dtype_of_kernels(operation)
    assert isinstance(op, Cholesky)
    if dtype is None or (shape is not None and (shape[-1] or _LEAST) < _LEAST):
        return None
    run = compiled("cholesky", gemm.ELEMENTS[dtype.name], (_print_factor, print_inverse, _print_all))
    item = dtype.itemsize

    def cholesky(x: Any) -> Any:
        size = x.shape[-1]
        if size < _LEAST or not x.size or not fits(x, dtype):
            return op.run(np, x)
        out = np.empty(x.shape, dtype)
        memory = scratch(2 * BLOCK * size * item + 2 * 64)
        count = x.size // (size * size)
        fields = [x.ctypes.data, out.ctypes.data, size, count, memory, gemm.product_address(dtype.name)]
        return op.run(np, x) if is_left(run, fields) else out

    return cholesky


# --- code -----------------------------------------------------------------------------------------------------------


def _print_all(element: str, lanes: int) -> str:
    """``(numbers)``: factorise each matrix of a stack; the last number becomes 1 if one has no factor."""
    code = FunctionBuilder("cholesky", ["ptr %numbers"], linkage="")
    fields = Fields(code, "%numbers", _FIELDS)
    size = fields["size"]
    square, inverse, upper = (code.slot(f"[{BLOCK * BLOCK} x {element}]") for _ in range(3))
    negated = code.at("i8", fields.address("memory", "i8"), code.mul(size, BLOCK * BYTES[element]))
    with code.loop(0, fields["count"]) as number:
        first = code.mul(number, code.mul(size, size))
        x, out = (code.at(element, fields.address(name, element), first) for name in ("x", "out"))
        _print_half(code, element, x, out, size, square)
        with code.loop(0, size, BLOCK) as column:
            memory = (fields.address("memory", element), negated, square, inverse, upper)
            _print_columns(code, element, out, size, column, memory, fields.address("product", "i8"))
    return code.text()


def _print_half(code: Builder, element: str, x: str, out: str, size: Size, square: str) -> None:
    """Half the sum of a matrix and its transpose, below the diagonal and on it; zeros above it."""
    with code.loop(0, size, BLOCK) as row:
        rows = code.least(BLOCK, code.sub(size, row))
        with code.loop(0, code.add(row, 1), BLOCK) as column:
            columns = code.least(BLOCK, code.sub(size, column))
            with code.loop(0, columns) as j, code.loop(0, rows) as i:  # across the diagonal, in the first cache
                other = code.load(element, x, code.add(code.mul(code.add(column, j), size), row, i))
                code.store(element, other, square, code.add(code.mul(i, BLOCK), j))
            with code.loop(0, rows) as i:
                line = code.add(code.mul(code.add(row, i), size), column)
                with code.loop(0, columns) as j:
                    other = code.load(element, square, code.add(code.mul(i, BLOCK), j))
                    own = code.load(element, x, code.add(line, j))
                    half = code.let(f"fmul {element} {code.let(f'fadd {element} {own}, {other}')}, 0.5")
                    code.store(element, half, out, code.add(line, j))
        with code.loop(0, rows) as i:
            line = code.add(row, i)
            with code.loop(code.add(line, 1), size) as column:
                code.store(element, "0.0", out, code.add(code.mul(line, size), column))


def _print_columns(
    code: Builder, element: str, out: str, size: Size, column: str, memory: tuple[str, str, str, str, str], product: str
) -> None:
    """Factorise a block of columns, those before it being done.

    Args:
        memory: of the block with what is subtracted, of rows with other signs, of a square, of its inverse, and of the
            square with other signs.
        product: the address of the function for products.
    """
    block, negated, square, inverse, upper = memory
    width, high = code.least(BLOCK, code.sub(size, column)), code.sub(size, column)
    diagonal = code.at(element, out, code.mul(column, size), column)
    rows = code.at(element, out, code.mul(column, size))
    is_first = code.compare("eq", column, 0)
    with code.when(is_first), code.loop(0, high) as i, code.loop(0, width) as j:
        code.store(element, code.load(element, diagonal, code.add(code.mul(i, size), j)), block, cell(code, i, j))
    with code.when(code.let(f"xor i1 {is_first}, true")):
        with code.loop(0, width) as i, code.loop(0, column) as k:
            place = code.add(code.mul(i, size), k)
            code.store(element, code.let(f"fneg {element} {code.load(element, rows, place)}"), negated, place)
        a, b = (rows, size, 0), (negated, size, 1)
        print_product(code, product, (high, width, column), a, b, (block, BLOCK), (diagonal, size))
    with code.loop(0, BLOCK) as i, code.loop(0, BLOCK) as j:  # what a narrow block lacks are rows of the identity
        is_on = code.compare("eq", i, j)
        code.store(element, code.choose(is_on, "1.0", "0.0", element), square, cell(code, i, j))
    with code.loop(0, width) as i, code.loop(0, code.add(i, 1)) as j:
        code.store(element, code.load(element, block, cell(code, i, j)), square, cell(code, j, i))
    failed = code.let(f"call i64 @factor(ptr {square})")
    with code.when(code.compare("ne", failed, 0)):
        code.store("i64", 1, "%numbers", _FIELDS.index("failed"))
    with code.loop(0, width) as i, code.loop(0, code.add(i, 1)) as j:
        place = code.add(code.mul(i, size), j)
        code.store(element, code.load(element, square, cell(code, j, i)), diagonal, place)
    below = code.sub(high, width)
    with code.when(code.compare("sgt", below, 0)):
        code.line(f"call void @inverse(ptr {square}, ptr {inverse})")
        with code.loop(0, BLOCK) as i, code.loop(0, BLOCK) as j:
            value = code.let(f"fneg {element} {code.load(element, square, cell(code, i, j))}")
            code.store(element, code.choose(code.compare("sle", i, j), value, "0.0", element), upper, cell(code, i, j))
        rest = code.at(element, block, code.mul(width, BLOCK)), BLOCK
        found = code.at(element, diagonal, code.mul(width, size)), size
        sizes, factor = (below, width, width), (inverse, BLOCK, 0)
        print_product(code, product, sizes, (*rest, 0), factor, found, ("null", 0))
        # The inverse of a square that is nearly singular has large errors: what is left over is multiplied once more.
        print_product(code, product, sizes, (*found, 0), (upper, BLOCK, 0), rest, rest)
        print_product(code, product, sizes, (*rest, 0), factor, found, found)


def _print_factor(element: str, lanes: int) -> str:
    """``i64 factor(square)``: the upper factor in place, of a symmetric matrix of which the upper half is there.

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
