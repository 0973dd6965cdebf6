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
from ..llvm.compiler import Effort
from ..llvm.squares import print_transpose, print_transposition
from ..llvm.tasks import Fields, begin_entry, begin_task, print_parallel
from ..matmul import gemm
from .blocks import (
    BLOCK,
    MOST_PARTS,
    cell,
    compiled,
    dtype_of_kernels,
    is_left,
    packed_width,
    print_context,
    print_masked,
    print_packed_product,
    print_packing,
    print_parts,
    print_product,
    vector_parts,
)
from .stacks import MOST, print_gradient, run_stack
from .substitution import print_substitution_by_inverses

_FIELDS = ("lower", "cotangent", "out", "size", "count", "memory", "product", "pack", "is_singular")
_OF_PART = (
    *("lower", "cotangent", "out", "rows", "packed", "turned", "sums", "product"),
    *("size", "start", "width", "below", "part_rows"),
)


def cholesky_gradient_runner(operation: Operation) -> Callable[[Any, Any], Any] | None:
    """Return what runs a `CholeskyGradient` on float32 or float64; None for other dtypes.

    A factor with a zero on its diagonal is left to NumPy, which raises its error.
    """
    op, dtype = op_of(operation, CholeskyGradient), dtype_of_kernels(operation)
    if dtype is None:
        return None
    element = gemm.ELEMENTS[dtype.name]
    printers = print_transposition, print_substitution_by_inverses, _print_part, _print_all
    run = compiled("cholesky_gradient", element, printers, Effort.PRINTED)
    products = gemm.product_address(dtype.name), gemm.packing_address(dtype.name)
    of_row, of_parts = BLOCK + packed_width(element), MOST_PARTS * BLOCK * BLOCK  # elements of memory

    def gradient(lower: Any, cotangent: Any) -> Any:
        if not lower.size or lower.shape != cotangent.shape or not (fits(lower, dtype) and fits(cotangent, dtype)):
            return op.run(np, lower, cotangent)
        size = lower.shape[-1]
        out = np.empty(lower.shape, dtype)
        arrays = lower, cotangent, out
        count = out.size // (size * size)
        if size <= MOST and count > 1:
            is_done = not run_stack("gradients", element, print_gradient, arrays, (size, size, count))
            return out if is_done else op.run(np, lower, cotangent)
        memory = own_memory((of_row * size + of_parts) * dtype.itemsize)
        fields = [*arrays, size, count, memory, *products]
        return op.run(np, lower, cotangent) if is_left(run, fields) else out

    return gradient


# --- code -----------------------------------------------------------------------------------------------------------


def _print_all(element: str, lanes: int) -> str:
    """Print ``(numbers)``: the gradient for each matrix of a stack; the last number becomes 1 for a singular factor."""
    code, fields = begin_entry("cholesky_gradient", _FIELDS)
    size = fields["size"]
    with code.loop(0, fields["count"]) as number:
        first = code.mul(number, code.mul(size, size))
        arrays = [code.at(element, fields.address(name), first) for name in _FIELDS[:3]]
        columns = _Columns(code, element, lanes, fields, arrays)
        with code.loop(0, size, BLOCK) as done:
            # The last blocks are whole, the first one may be narrow.
            stop = code.sub(size, done)
            columns.print(code.greatest(0, code.sub(stop, BLOCK)), stop)
    return code.text()


class _Columns:
    """Blocks of columns of a matrix, from the last.

    Args:
        code: the function.
        element: the LLVM type of the elements.
        lanes: elements of a vector.
        fields: what the function is called with.
        arrays: the addresses of the factor, of its cotangent, and of the result.
    """

    def __init__(self, code: Builder, element: str, lanes: int, fields: Fields, arrays: list[str]) -> None:
        self.code, self.element, self.lanes, self.arrays, self.size = code, element, lanes, arrays, fields["size"]
        self.product, self.pack = fields.address("product"), fields.address("pack")
        self.upper, self.turned, self.here, self.other = (code.slot(f"[{BLOCK * BLOCK} x {element}]") for _ in range(4))
        self.context = code.slot(f"[{len(_OF_PART)} x i64]")
        self.rows = fields.address("memory")
        self.packed = code.at(element, self.rows, code.mul(self.size, BLOCK))
        self.sums = code.at(element, self.packed, code.mul(self.size, packed_width(element)))

    def print(self, start: Size, stop: Size) -> None:
        """Print the cotangents of a block of columns, and of the same rows right of the diagonal.

        Those behind it are done.
        """
        code, element, lanes, size = self.code, self.element, self.lanes, self.size
        upper, here, other = self.upper, self.here, self.other
        width, below = code.sub(stop, start), code.sub(size, stop)
        diagonal = [code.at(element, array, code.mul(start, size), start) for array in self.arrays]
        self._load_square(diagonal[0], width)
        with code.loop(0, width) as i:
            _print_scaled(code, element, lanes, (diagonal[1], here), (code.mul(i, size), cell(code, i, 0)), width)
        with code.when(code.compare("sgt", below, 0)):
            self._print_below(start, width, below)
        self._keep_lower(here, width, "1.0")
        a, b, c = (upper, BLOCK, 0), (here, BLOCK, 0), (other, BLOCK)
        print_product(code, self.product, (width, width, width), a, b, c, ("null", 0))
        self._keep_lower(other, width, "0.5")
        _print_substitute(code, element, self.turned, (other, BLOCK), (width, width))
        print_transpose(code, (other, BLOCK), (here, BLOCK), (width, width))
        _print_substitute(code, element, self.turned, (here, BLOCK), (width, width))
        print_transpose(code, (here, BLOCK), (other, BLOCK), (width, width))
        self._print_half(diagonal[2], width)

    def _load_square(self, diagonal: str, width: Size) -> None:
        """Load the transpose of the factor's square, and its negative in turned order, which is lower.

        By that, rows less the cotangents become the result; for the square, which it divides twice, signs do not count.
        """
        code, element = self.code, self.element
        last = code.sub(width, 1)
        print_transpose(code, (diagonal, self.size), (self.upper, BLOCK), (width, width))
        with code.loop(0, width) as i:
            own = code.at(element, self.upper, cell(code, i, 0))
            turned = code.at(element, self.turned, cell(code, code.sub(last, i), 0))
            print_masked(code, element, self.lanes, own, i, keeps_first=False)
            with code.loop(code.add(i, 1), width) as j:
                value = code.let(f"fneg {element} {code.load(element, own, j)}")
                code.store(element, value, turned, code.sub(last, j))
            value = code.load(element, own, i)
            code.store(element, code.let(f"fdiv {element} -1.0, {value}"), turned, code.sub(last, i))
            with code.when(code.let(f"fcmp oeq {element} {value}, 0.0")):
                code.store("i64", 1, "%numbers", _FIELDS.index("is_singular"))

    def _print_half(self, target: str, width: Size) -> None:
        """Print half the sum of a square and of its transpose, which is `other`."""
        code, element = self.code, self.element
        with code.loop(0, width) as i:
            for lanes, start, stop in vector_parts(code, self.lanes, 0, width):
                vector, half = f"<{lanes} x {element}>", code.broadcast(lanes, element, "0.5")
                with code.loop(start, stop, lanes) as j:
                    one, two = (code.load_vector(vector, element, x, cell(code, i, j)) for x in (self.here, self.other))
                    value = code.let(f"fmul {vector} {code.let(f'fadd {vector} {one}, {two}')}, {half}")
                    code.store_vector(vector, element, value, target, code.add(code.mul(i, self.size), j))

    def _print_below(self, start: Size, width: Size, below: Size) -> None:
        """Print the rows below a square, in parts, and subtract from the square what they contribute to it."""
        code, element, vector = self.code, self.element, f"<{self.lanes} x {self.element}>"
        stop = code.add(start, width)
        under = code.at(element, self.arrays[0], code.mul(stop, self.size), start)
        print_packing(code, self.pack, (width, below), (under, self.size, 0), self.packed)
        parts, part_rows = print_parts(code, self.lanes, (below, width, below))
        addresses = (*self.arrays, self.rows, self.packed, self.turned, self.sums, self.product)
        print_context(code, self.context, addresses, (self.size, start, width, below, part_rows))
        print_parallel(code, "cholesky_gradient_task", self.context, parts)
        twice = code.broadcast(self.lanes, element, "-2.0")
        with code.loop(0, parts) as part, code.loop(0, BLOCK * BLOCK, self.lanes) as place:
            own = code.load_vector(vector, element, self.sums, code.add(code.mul(part, BLOCK * BLOCK), place))
            before = code.load_vector(vector, element, self.here, place)
            code.store_vector(vector, element, code.multiply_add(vector, twice, own, before), self.here, place)

    def _keep_lower(self, square: str, width: Size, factor: str) -> None:
        """Put zeros above the diagonal of a square, and multiply the diagonal."""
        code, element = self.code, self.element
        with code.loop(0, width) as i:
            row, place = code.at(element, square, cell(code, i, 0)), cell(code, i, i)
            print_masked(code, element, self.lanes, row, code.add(i, 1), keeps_first=True)
            value = code.let(f"fmul {element} {code.load(element, square, place)}, {factor}")
            code.store(element, value, square, place)


def _print_part(element: str, lanes: int) -> str:
    """Print a part of the rows below a square.

    These are the result there and, transposed, right of the square. Further, what they contribute to the square.
    """
    code, get = begin_task("cholesky_gradient", _OF_PART)
    size, width, below, product = get["size"], get["width"], get["below"], get.address("product")
    first = code.mul("%part", get["part_rows"])
    count = code.least(get["part_rows"], code.sub(below, first))
    stop = code.add(get["start"], width)
    row = code.add(stop, first)
    across, down = code.mul(get["start"], size), code.mul(row, size)
    lower, cotangent, left = (
        code.at(element, get.address(name), down, get["start"]) for name in ("lower", "cotangent", "out")
    )
    known, right = code.at(element, get.address("out"), down, stop), code.at(element, get.address("out"), across, row)
    rows = code.at(element, get.address("rows"), code.mul(row, BLOCK))  # each row has its own: caches hold it
    with code.loop(0, count) as i:
        places = code.mul(i, size), cell(code, i, 0)
        _print_scaled(code, element, lanes, (cotangent, rows), places, width, "-0.5")
    a, packed = (known, size), get.address("packed")
    print_packed_product(code, element, product, (count, width, below), a, packed, rows)
    print_transpose(code, (rows, BLOCK), (right, size), (count, width))
    _print_substitute(code, element, get.address("turned"), (right, size), (width, count))
    print_transpose(code, (right, size), (left, size), (width, count))
    sums = code.at(element, get.address("sums"), code.mul("%part", BLOCK * BLOCK)), BLOCK
    print_product(code, product, (width, width, count), (right, size, 0), (lower, size, 0), sums, ("null", 0))
    return code.text()


def _print_scaled(
    code: Builder,
    element: str,
    lanes: int,
    arrays: tuple[str, str],
    places: tuple[Size, Size],
    width: Size,
    factor: str = "1.0",
) -> None:
    """Copy a row, multiplied: from an array to another one, each with a place where the row begins."""
    source, target = (code.at(element, array, place) for array, place in zip(arrays, places, strict=True))
    for size, start, stop in vector_parts(code, lanes, 0, width):
        vector = f"<{size} x {element}>"
        with code.loop(start, stop, size) as j:
            value = code.load_vector(vector, element, source, j)
            value = code.let(f"fmul {vector} {value}, {code.broadcast(size, element, factor)}")
            code.store_vector(vector, element, value, target, j)


def _print_substitute(
    code: Builder, element: str, turned: str, rows: tuple[str, Size], sizes: tuple[Size, Size]
) -> None:
    """Solve for rows, from the last to the first, by a square whose order is turned around.

    Args:
        turned: the square.
        rows: the address of the first row, and the step from row to row.
        sizes: rows and columns.
    """
    (first, step), (width, columns) = rows, sizes
    last = code.at(element, first, code.mul(code.sub(width, 1), step))
    given = f"ptr {turned}, ptr {last}, i64 {code.sub(0, step)}, i64 {width}, i64 {columns}"
    code.line(f"call void @substitute({given})")
