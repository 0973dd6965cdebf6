"""Parts that the kernels of factorisations and of triangular systems share: blocks of 32 rows, products, transposes.

Rows below a block are divided into parts for threads, each with all that is done for its rows. So what a thread has
written, it mostly reads itself for later blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.spec import TensorSpec
from ..llvm.builder import ELEMENTS, Builder, Size
from ..llvm.compiler import Effort
from ..llvm.library import LaterFunction, library
from ..llvm.registers import registers_of
from ..matmul import gemm
from ..matmul.gemm_forms import DEEP, PACKED

BLOCK = 32  # rows or columns
MOST_PARTS = 16
_LEAST_ROWS = 64  # of a part
_PART_WORK = 6  # parts of a product that a part is to be worth: threads read what others have written
_BESIDE = 128  # terms of a product for which a row takes as long as for all else


def dtype_of_kernels(operation: Operation) -> Any:
    """Return the dtype of the first input of an operation; None if no kernel multiplies matrices of it here."""
    spec = operation.inputs[0].spec
    if not isinstance(spec, TensorSpec) or spec.dtype.name not in gemm.ELEMENTS or not gemm.is_available():
        return None
    return np.dtype(spec.dtype.name)


@cache
def compiled(
    name: str, element: str, printers: tuple[Callable[[str, int], str], ...], effort: Effort = Effort.FULL
) -> LaterFunction:
    """Return a compiled function of the address of its numbers.

    Args:
        name: of the function, which no other one has.
        element: the LLVM type of the elements.
        printers: print its code, from that type and the elements of a register.
        effort: that the compiler makes.
    """

    def text() -> str:
        lanes = registers_of(library.host, element).lanes
        return "".join([printer(element, lanes) for printer in printers])

    return library.later(f"{name} {element}", text, name, effort)


def is_left(run: LaterFunction, fields: Sequence[Any]) -> bool:
    """Call a compiled function with arrays and numbers, and a 0; return whether it has left the work to NumPy."""
    return run.run(*fields, 0) != 0


def cell(code: Builder, row: Size, column: Size) -> Size:
    """Return the place of an element in a block whose rows are `BLOCK` elements apart."""
    return code.add(code.mul(row, BLOCK), column)


def vector_parts(code: Builder, lanes: int, start: Size, stop: Size) -> list[tuple[int, Size, Size]]:
    """Cut a range into one of whole vectors, and one of single elements."""
    middle = code.sub(stop, code.rem(code.sub(stop, start), lanes))
    return [(lanes, start, middle), (1, middle, stop)]


def absolute(code: Builder, element: str, lanes: int, value: str) -> str:
    """Return the absolute values of a vector."""
    vector = f"<{lanes} x {element}>"
    is_negative = code.let(f"fcmp olt {vector} {value}, {code.broadcast(lanes, element, '0.0')}")
    negative = code.let(f"fneg {vector} {value}")
    return code.let(f"select <{lanes} x i1> {is_negative}, {vector} {negative}, {vector} {value}")


def print_masked(code: Builder, element: str, lanes: int, row: str, count: Size, keeps_first: bool) -> None:
    """Keep the first elements of a block's row, or all but these, and put zeros in the place of the others."""
    vector = f"<{lanes} x {element}>"
    places = ", ".join(f"i64 {lane}" for lane in range(lanes))
    for start in range(0, BLOCK, lanes):
        counts = code.broadcast(lanes, "i64", str(code.sub(count, start)))
        is_first = code.let(f"icmp slt <{lanes} x i64> <{places}>, {counts}")
        value = code.load_vector(vector, element, row, start)
        kept = (value, "zeroinitializer") if keeps_first else ("zeroinitializer", value)
        chosen = code.let(f"select <{lanes} x i1> {is_first}, {vector} {kept[0]}, {vector} {kept[1]}")
        code.store_vector(vector, element, chosen, row, start)


def print_product(
    code: Builder,
    product: str,
    sizes: tuple[Size, Size, Size],
    a: tuple[str, Size, int],
    b: tuple[str, Size, int],
    c: tuple[str, Size],
    d: tuple[str, Size],
) -> None:
    """Print ``C = A @ B + D``, of addresses, steps from row to row, and whether A and B are transposed."""
    given: list[tuple[str, Size]] = [("i64", size) for size in sizes]
    for pointer, *numbers in (a, b, c, d, ("null", 0)):
        given += [("ptr", pointer), *[("i64", number) for number in numbers]]
    code.line(f"call void {product}({', '.join(f'{kind} {value}' for kind, value in given)})")


def packed_width(element: str) -> int:
    """Return the elements of a row of a block of columns that is packed as an operand of products."""
    dtype = next(dtype for dtype, kind in ELEMENTS.items() if kind == element)
    return gemm.packed_size(1, BLOCK, gemm.tiles(dtype).columns)


def print_packing(code: Builder, pack: str, sizes: tuple[Size, Size], block: tuple[str, Size, int], out: str) -> None:
    """Pack a block of columns for `print_packed_product`.

    Args:
        code: the function.
        pack: the address of what packs.
        sizes: columns, and terms of the product.
        block: an address, the step from row to row, and whether it is transposed.
        out: memory of `packed_width` elements for each term.
    """
    (columns, terms), (b, step, is_transposed) = sizes, block
    given = f"i64 {columns}, i64 {terms}, i64 {DEEP}, ptr {b}, i64 {step}, i64 {is_transposed}, ptr {out}"
    code.line(f"call void {pack}({given})")


def print_packed_product(
    code: Builder,
    element: str,
    product: str,
    sizes: tuple[Size, Size, Size],
    a: tuple[str, Size],
    packed: str,
    sums: str,
) -> None:
    """Add ``A @ B`` to rows of `BLOCK` elements, B being packed: as few rows at a time as one thread computes.

    Another thread would read what this one has written. But small products would take longer.
    """
    (rows, columns, terms), (first, step) = sizes, a
    alone = code.div(machine_profile().product_work - 1, code.mul(code.greatest(1, terms), BLOCK))
    most = code.greatest(_LEAST_ROWS, code.mul(code.div(alone, _LEAST_ROWS), _LEAST_ROWS))
    with code.loop(0, rows, most) as i:
        own, c = code.at(element, first, code.mul(i, step)), (code.at(element, sums, cell(code, i, 0)), BLOCK)
        here = code.least(most, code.sub(rows, i)), columns, terms
        print_product(code, product, here, (own, step, 0), (packed, DEEP, PACKED), c, c)


def print_parts(code: Builder, lanes: int, sizes: tuple[Size, Size, Size]) -> tuple[Size, Size]:
    """Print into how many parts rows are divided, an even number if several, and how many rows a part has.

    By sizes alone: results are the same for any number of threads. The sizes are those of `print_packed_product`.
    """
    rows, width, terms = sizes
    work = code.mul(code.mul(rows, code.add(terms, _BESIDE)), width)
    paying = code.div(work, _PART_WORK * machine_profile().product_part_work)
    parts = code.least(code.least(paying, code.div(rows, _LEAST_ROWS)), MOST_PARTS)
    parts = code.greatest(1, code.mul(code.div(parts, 2), 2))
    part_rows = code.round_up(code.ceil_div(rows, parts), lanes)
    return code.ceil_div(rows, part_rows), part_rows


def print_context(code: Builder, context: str, addresses: Sequence[str], numbers: Sequence[Size]) -> None:
    """Store what a task reads: addresses, then numbers."""
    stored = [*[code.let(f"ptrtoint ptr {address} to i64") for address in addresses], *numbers]
    for position, value in enumerate(stored):
        code.store("i64", value, context, position)
