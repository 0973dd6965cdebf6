"""The gradient of the Cholesky factor, by blocks of columns from the last: nearly all multiplications are of products.

With S the symmetric cotangent of the matrix, the cotangents of the columns J of the factor L, below their square on the
diagonal, are those that are given less ``2 * S[>J, >J] @ L[>J, J]``. So each block of columns takes one product with
what is known by then, where the order of I. Murray, "Differentiation of the Cholesky decomposition" (2016), section
4.2, takes many of 32 terms each, which read and write a whole matrix.
Their substitution by the square on the diagonal goes by rows of S, which is symmetric: so vectors run along these rows.
Squares on the diagonal follow Murray's equation 10, by substitution as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.linear_algebra.triangular import CholeskyGradient
from ..elementwise.kernel_specs import fits
from ..host.scratch import own_memory
from ..llvm.builder import Builder, Size
from ..llvm.tasks import begin_entry
from ..matmul import gemm
from .blocks import BLOCK, cell, compiled, dtype_of_kernels, is_left, print_product, print_transposed, vector_parts
from .stacks import MOST, print_gradient, run_stack
from .triangular import print_substitution

_FIELDS = ("lower", "cotangent", "out", "size", "count", "memory", "product", "is_singular")


def cholesky_gradient_runner(operation: Operation) -> Callable[[Any, Any], Any] | None:
    """Return what runs a `CholeskyGradient` on float32 or float64; None for other dtypes.

    A factor with a zero on its diagonal is left to NumPy, which raises its error.
    """
    op, dtype = op_of(operation, CholeskyGradient), dtype_of_kernels(operation)
    if dtype is None:
        return None
    element = gemm.ELEMENTS[dtype.name]
    run = compiled("cholesky_gradient", element, (print_substitution, _print_all))
    product = gemm.product_address(dtype.name)

    def gradient(lower: Any, cotangent: Any) -> Any:
        if not lower.size or lower.shape != cotangent.shape or not (fits(lower, dtype) and fits(cotangent, dtype)):
            return op.run(np, lower, cotangent)
        size = lower.shape[-1]
        out = np.empty(lower.shape, dtype)
        arrays = [array.ctypes.data for array in (lower, cotangent, out)]
        count = out.size // (size * size)
        if size <= MOST and count > 1:
            is_done = not run_stack("gradients", element, print_gradient, arrays, (size, size, count))
            return out if is_done else op.run(np, lower, cotangent)
        memory = own_memory(2 * BLOCK * size * dtype.itemsize)
        fields = [*arrays, size, count, memory.ctypes.data, product]
        return op.run(np, lower, cotangent) if is_left(run, fields) else out

    return gradient


# --- code -----------------------------------------------------------------------------------------------------------


def _print_all(element: str, lanes: int) -> str:
    """Print ``(numbers)``: the gradient for each matrix of a stack; the last number becomes 1 for a singular factor."""
    code, fields = begin_entry("cholesky_gradient", _FIELDS)
    size = fields["size"]
    squares = [code.slot(f"[{BLOCK * BLOCK} x {element}]") for _ in range(5)]
    memory, product = fields.address("memory"), fields.address("product")
    with code.loop(0, fields["count"]) as number:
        first = code.mul(number, code.mul(size, size))
        arrays = [code.at(element, fields.address(name), first) for name in _FIELDS[:3]]
        with code.loop(0, size, BLOCK) as done:
            # The last blocks are whole, the first one may be narrow.
            stop = code.sub(size, done)
            start = code.greatest(0, code.sub(stop, BLOCK))
            _Columns(code, element, lanes, size, (start, stop), product).print(arrays, squares, memory)
    return code.text()


class _Columns:
    """The columns of a range, those behind them being done."""

    def __init__(
        self, code: Builder, element: str, lanes: int, size: Size, columns: tuple[Size, Size], product: str
    ) -> None:
        self.code, self.element, self.lanes, self.size, self.product = code, element, lanes, size, product
        self.start, self.stop = columns
        self.width, self.below = code.sub(self.stop, self.start), code.sub(size, self.stop)

    def print(self, arrays: list[str], squares: list[str], memory: str) -> None:
        """Print the cotangents of these columns, and of these rows right of the diagonal.

        Args:
            arrays: the factor, the cotangent and the result.
            squares: five of `BLOCK` rows and columns.
            memory: two blocks of as many rows as the matrix has.
        """
        code, element, size, width = self.code, self.element, self.size, self.width
        lower, cotangent, out = arrays
        upper, turned, double, here, other = squares
        diagonal = [self._place(array, self.start, self.start) for array in (lower, cotangent, out)]
        self._load_square(diagonal[0], upper, turned, double)
        with code.loop(0, width) as i, code.loop(0, width) as j:
            code.store(element, code.load(element, diagonal[1], code.add(code.mul(i, size), j)), here, cell(code, i, j))
        with code.when(code.compare("sgt", self.below, 0)):
            factor = code.at(element, memory, code.mul(size, BLOCK)), BLOCK, 0
            self._print_factor(self._place(lower, self.stop, self.start), factor[0])
            self._print_below(cotangent, out, double, memory, factor)
            sums = self._place(out, self.start, self.stop), size, 0
            print_product(code, self.product, (width, width, self.below), sums, factor, (here, BLOCK), (here, BLOCK))
        self._keep_lower(here, "1.0")
        a, b, c = (upper, BLOCK, 0), (here, BLOCK, 0), (other, BLOCK)
        print_product(code, self.product, (width, width, width), a, b, c, ("null", 0))
        self._keep_lower(other, "0.5")
        self._substitute(turned, (other, BLOCK), width)
        print_transposed(code, element, self.lanes, (other, BLOCK), (here, BLOCK), (width, width))
        self._substitute(turned, (here, BLOCK), width)
        with code.loop(0, width) as i, code.loop(0, width) as j:
            one, two = code.load(element, here, cell(code, i, j)), code.load(element, here, cell(code, j, i))
            value = code.let(f"fmul {element} {code.let(f'fadd {element} {one}, {two}')}, 0.5")
            code.store(element, value, diagonal[2], code.add(code.mul(i, size), j))

    def _place(self, array: str, row: Size, column: Size) -> str:
        return self.code.at(self.element, array, self.code.mul(row, self.size), column)

    def _load_square(self, diagonal: str, upper: str, turned: str, double: str) -> None:
        """Load the transpose of the factor's square; the same in turned order, which is lower; and that doubled."""
        code, element = self.code, self.element
        last = code.sub(self.width, 1)
        with code.loop(0, self.width) as j, code.loop(0, code.add(j, 1)) as i:
            value = code.load(element, diagonal, code.add(code.mul(j, self.size), i))
            code.store(element, "0.0", upper, cell(code, j, i))
            code.store(element, value, upper, cell(code, i, j))
            place = cell(code, code.sub(last, i), code.sub(last, j))
            code.store(element, value, turned, place)
            code.store(element, code.let(f"fmul {element} {value}, 2.0"), double, place)
            is_zero = code.let(f"fcmp oeq {element} {value}, 0.0")
            with code.when(code.let(f"and i1 {is_zero}, {code.compare('eq', i, j)}")):
                code.store("i64", 1, "%numbers", _FIELDS.index("is_singular"))

    def _print_factor(self, under: str, target: str) -> None:
        """Copy the rows of the factor below the square, times -2, side by side: products subtract them twice."""
        code, element = self.code, self.element
        with code.loop(0, self.below) as i:
            source, place = (
                code.at(element, under, code.mul(i, self.size)),
                code.at(element, target, code.mul(i, BLOCK)),
            )
            for lanes, start, stop in vector_parts(code, self.lanes, 0, self.width):
                with code.loop(start, stop, lanes) as j:
                    vector = f"<{lanes} x {element}>"
                    value = code.load_vector(vector, element, source, j)
                    value = code.let(f"fmul {vector} {value}, {code.broadcast(lanes, element, '-2.0')}")
                    code.store_vector(vector, element, value, place, j)

    def _print_below(self, cotangent: str, out: str, double: str, memory: str, factor: tuple[str, Size, int]) -> None:
        """Print the cotangents below the square, which are the result there, and right of it, transposed."""
        code, element, lanes, size, width, below = (
            self.code, self.element, self.lanes, self.size, self.width, self.below
        )  # fmt: skip
        given, left = (self._place(array, self.stop, self.start) for array in (cotangent, out))
        right, known = self._place(out, self.start, self.stop), self._place(out, self.stop, self.stop)
        c = (memory, BLOCK)
        print_product(code, self.product, (below, width, below), (known, size, 0), factor, c, (given, size))
        print_transposed(code, element, lanes, c, (right, size), (below, width))
        self._substitute(double, (right, size), below)
        print_transposed(code, element, lanes, (right, size), (left, size), (width, below))

    def _substitute(self, turned: str, rows: tuple[str, Size], columns: Size) -> None:
        """Solve for rows, from the last to the first, by a square whose order is turned around."""
        code, (first, step) = self.code, rows
        last = code.at(self.element, first, code.mul(code.sub(self.width, 1), step))
        back = code.sub(0, step)
        code.line(f"call void @substitute(ptr {turned}, ptr {last}, i64 {back}, i64 {self.width}, i64 {columns})")

    def _keep_lower(self, square: str, factor: str) -> None:
        """Put zeros above the diagonal of a square, and multiply the diagonal."""
        code, element = self.code, self.element
        with code.loop(0, self.width) as i:
            place = cell(code, i, i)
            value = code.let(f"fmul {element} {code.load(element, square, place)}, {factor}")
            code.store(element, value, square, place)
            with code.loop(code.add(i, 1), self.width) as j:
                code.store(element, "0.0", square, cell(code, i, j))
