"""Squares of elements that are exchanged in registers: what transposes blocks of matrices."""

from __future__ import annotations

from collections.abc import Sequence

from .builder import Builder, FunctionBuilder, Size


def print_transposition(element: str, lanes: int) -> str:
    """Print ``transpose(x, x_step, y, y_step, rows, columns)``, which `print_transpose` calls.

    Inlined, its exchanges in registers would be most of what is compiled.
    """
    code = FunctionBuilder("transpose", ["ptr %x", "i64 %x_step", "ptr %y", "i64 %y_step", "i64 %rows", "i64 %columns"])
    print_transposed(code, element, lanes, ("%x", "%x_step"), ("%y", "%y_step"), ("%rows", "%columns"))
    return code.text()


def print_transpose(
    code: Builder, source: tuple[str, Size], target: tuple[str, Size], sizes: tuple[Size, Size]
) -> None:
    """Print a call for what `print_transposed` prints."""
    (x, x_step), (y, y_step), (rows, columns) = source, target, sizes
    steps = f"ptr {x}, i64 {x_step}, ptr {y}, i64 {y_step}"
    code.line(f"call void @transpose({steps}, i64 {rows}, i64 {columns})")


def print_transposed(
    code: Builder,
    element: str,
    lanes: int,
    source: tuple[str, Size],
    target: tuple[str, Size],
    sizes: tuple[Size, Size],
) -> None:
    """Copy the transpose of a block, in squares that fit into registers; what is left over goes one by one.

    Args:
        code: the function.
        element: the LLVM type of the elements.
        lanes: elements of a vector.
        source: an address, and the step from row to row.
        target: the same; it may not overlap.
        sizes: rows and columns of the source.
    """
    (x, x_step), (y, y_step), (rows, columns) = source, target, sizes
    vector = f"<{lanes} x {element}>"
    whole, broad = (code.sub(size, code.rem(size, lanes)) for size in sizes)

    with code.loop(0, whole, lanes) as i, code.loop(0, broad, lanes) as j:
        start, end = code.add(code.mul(i, x_step), j), code.add(code.mul(j, y_step), i)
        loaded = [code.load_vector(vector, element, x, code.add(start, code.mul(x_step, k))) for k in range(lanes)]
        for k, value in enumerate(print_exchange(code, element, loaded)):
            code.store_vector(vector, element, value, y, code.add(end, code.mul(y_step, k)))
    with code.loop(0, rows) as i, code.loop(code.choose(code.compare("slt", i, whole), broad, 0), columns) as j:
        value = code.load(element, x, code.add(code.mul(i, x_step), j))
        code.store(element, value, y, code.add(code.mul(j, y_step), i))


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
