"""Parts that the kernels of factorisations and of triangular systems share: blocks of 32 rows, products, transposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ...graph.graph import Operation
from ...graph.spec import TensorSpec
from ..llvm.builder import Builder, Size
from ..llvm.library import LaterFunction, library
from ..llvm.registers import registers_of
from ..matmul import gemm

BLOCK = 32  # rows or columns


def dtype_of_kernels(operation: Operation) -> Any:
    """Return the dtype of the first input of an operation; None if no kernel multiplies matrices of it here."""
    spec = operation.inputs[0].spec
    if not isinstance(spec, TensorSpec) or spec.dtype.name not in gemm.ELEMENTS or not gemm.is_available():
        return None
    return np.dtype(spec.dtype.name)


@cache
def compiled(name: str, element: str, printers: tuple[Callable[[str, int], str], ...]) -> LaterFunction:
    """Return a compiled function of the address of its numbers.

    Args:
        name: of the function, which no other one has.
        element: the LLVM type of the elements.
        printers: print its code, from that type and the elements of a register.
    """

    def text() -> str:
        lanes = registers_of(library.host, element).lanes
        return "".join([printer(element, lanes) for printer in printers])

    return library.later(f"{name} {element}", text, name)


def is_left(run: LaterFunction, fields: Sequence[int]) -> bool:
    """Call a compiled function with numbers, and a 0 behind them; return whether it has left the work to NumPy."""
    return run.run(*fields, 0)[-1] != 0


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


def print_transposed(
    code: Builder,
    element: str,
    lanes: int,
    source: tuple[str, Size],
    target: tuple[str, Size],
    sizes: tuple[Size, Size],
    change: Callable[[str, str], str] | None = None,
) -> None:
    """Copy the transpose of a block, in squares that fit into registers; what is left over goes one by one.

    Args:
        source: an address, and the step from row to row.
        target: the same; it may not overlap.
        sizes: rows and columns of the source.
        change: gives the value that is stored for one of a type.
    """
    (x, x_step), (y, y_step), (rows, columns) = source, target, sizes
    vector = f"<{lanes} x {element}>"
    whole, broad = (code.sub(size, code.rem(size, lanes)) for size in sizes)

    def changed(kind: str, value: str) -> str:
        return change(kind, value) if change is not None else value

    def single(i: Size, j: Size) -> None:
        value = code.load(element, x, code.add(code.mul(i, x_step), j))
        code.store(element, changed(element, value), y, code.add(code.mul(j, y_step), i))

    with code.loop(0, whole, lanes) as i:
        with code.loop(0, broad, lanes) as j:
            start, end = code.add(code.mul(i, x_step), j), code.add(code.mul(j, y_step), i)
            loaded = [code.load_vector(vector, element, x, code.add(start, code.mul(x_step, k))) for k in range(lanes)]
            for k, value in enumerate(print_exchange(code, element, loaded)):
                place = code.add(end, code.mul(y_step, k))
                code.store_vector(vector, element, changed(vector, value), y, place)
        with code.loop(broad, columns) as j, code.loop(0, lanes) as k:
            single(code.add(i, k), j)
    with code.loop(whole, rows) as i, code.loop(0, columns) as j:
        single(i, j)


def print_exchange(code: Builder, kind: str, rows: Sequence[str]) -> list[str]:
    """Print the columns of a square whose rows are in registers: halves change places, then quarters, and so on."""
    found, lanes = list(rows), len(rows)
    apart = lanes // 2
    while apart:
        for i in range(lanes):
            if i & apart:
                continue
            own, other = found[i], found[i + apart]
            low = [k if not k & apart else lanes + k - apart for k in range(lanes)]
            high = [k + apart if not k & apart else lanes + k for k in range(lanes)]
            for place, picks in ((i, low), (i + apart, high)):
                found[place] = code.shuffle(lanes, kind, own, other, picks)
        apart //= 2
    return found
