"""Panels of matrices, as LLVM IR: what a tile's kernel reads, laid out in the order in which it reads it.

A panel of B holds `Tiles.columns` columns: for each step of k a row of that many elements, of which those beyond the
matrix, up to a whole vector, are zero. A panel of A holds `Tiles.rows` rows, column by column.
"""

from __future__ import annotations

from ..llvm.builder import Builder, Size, masked_load
from .gemm_code import ProductBuilder
from .gemm_tile import Tiles

AHEAD = 16  # rows that are asked for before they are laid out
_PANELS_TOGETHER = 4  # of A
_PACK_B = ("ptr noalias %b", "i64 %step", "i64 %k", "i64 %n", "ptr noalias %out")
_PACK_A = ("ptr noalias %a", "i64 %step", "i64 %k", "i64 %m", "ptr noalias %out")


def print_packing(tiles: Tiles) -> str:
    """Print the functions that lay out a panel of B from rows or columns, and panels of A from its transpose."""
    return _print_pack_rows(tiles) + _print_pack_columns(tiles) + _print_pack_a(tiles)


def _print_pack_rows(tiles: Tiles) -> str:
    """Print ``(b, step, k, n, out)``: a panel of B from `k` rows of `n` elements, `step` apart."""
    e, v, lanes = tiles.element, tiles.vector, tiles.lanes
    code = ProductBuilder(f"gemm_{tiles.suffix}_pack_rows", _PACK_B, "noinline")
    is_full = code.compare("eq", "%n", tiles.columns)
    with code.when(is_full), code.loop(0, "%k") as p:
        source = code.at(e, "%b", code.mul(p, "%step"))
        target = code.at(e, "%out", code.mul(p, tiles.columns))
        for j in range(tiles.vectors):
            row = code.load_vector(v, e, code.at(e, source, j * lanes))
            code.store_vector(v, e, row, code.at(e, target, j * lanes))
    whole = code.mul(code.div("%n", lanes), lanes)
    mask = print_mask(code, tiles, code.sub("%n", whole))
    with code.when(code.compare("ne", "%n", tiles.columns)), code.loop(0, "%k") as p:
        source = code.at(e, "%b", code.mul(p, "%step"))
        target = code.at(e, "%out", code.mul(p, tiles.columns))
        with code.loop(0, whole, lanes) as j:
            row = code.load_vector(v, e, code.at(e, source, j))
            code.store_vector(v, e, row, code.at(e, target, j))
        with code.when(code.compare("ne", whole, "%n")):
            cut = code.at(e, source, whole)
            row = code.let(masked_load(lanes, e, cut, mask, "zeroinitializer"))
            code.store_vector(v, e, row, code.at(e, target, whole))
    return code.text()


def print_ask(code: Builder, pointer: str) -> None:
    """Have a line of memory brought to the first cache."""
    code.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 3, i32 1)")


def print_mask(code: Builder, tiles: Tiles, count: Size) -> str:
    """Print the mask of the first `count` lanes."""
    lanes = tiles.lanes
    counts = code.broadcast(lanes, "i64", str(count))
    return code.let(f"icmp slt <{lanes} x i64> <{', '.join(f'i64 {k}' for k in range(lanes))}>, {counts}")


def _print_pack_columns(tiles: Tiles) -> str:
    """Print ``(b, step, k, n, out)``: a panel of B from `n` columns of `k` elements, each contiguous, `step` apart."""
    e, lanes, columns = tiles.element, tiles.lanes, tiles.columns
    code = ProductBuilder(f"gemm_{tiles.suffix}_pack_columns", _PACK_B, "noinline")
    whole_n = code.mul(code.div("%n", lanes), lanes)
    whole_k = code.mul(code.div("%k", lanes), lanes)
    with code.loop(0, whole_n, lanes) as j:
        with code.loop(0, whole_k, lanes) as p:
            source = code.at(e, "%b", code.mul(j, "%step"), p)
            _print_transpose(code, tiles, source, code.at(e, "%out", code.mul(p, columns), j))
        _print_copy(code, e, columns, (whole_k, "%k"), (j, code.add(j, lanes)))
    _print_copy(code, e, columns, ("0", "%k"), (whole_n, "%n"))
    with code.loop(0, "%k") as p, code.loop("%n", code.round_up("%n", lanes)) as j:
        code.store(e, "0.0", code.at(e, "%out", code.mul(p, columns), j))
    return code.text()


def _print_copy(code: Builder, element: str, columns: int, along: tuple[Size, Size], across: tuple[Size, Size]) -> None:
    """Print a copy element by element."""
    with code.loop(*across) as j, code.loop(*along) as p:
        value = code.load(element, code.at(element, "%b", code.mul(j, "%step"), p))
        code.store(element, value, code.at(element, "%out", code.mul(p, columns), j))


def _print_transpose(code: Builder, tiles: Tiles, source: str, target: str) -> None:
    """Copy a square of vectors, `step` apart at `source`, to the panel at `target`, interleaved to its columns."""
    e, v, lanes = tiles.element, tiles.vector, tiles.lanes
    rows: list[str] = []
    for i in range(lanes):
        row = code.at(e, source, code.mul("%step", i))
        print_ask(code, code.at(e, row, AHEAD))
        rows.append(code.load_vector(v, e, row))
    half = lanes // 2
    low, high = ([start + k // 2 + (k % 2) * lanes for k in range(lanes)] for start in (0, half))
    stages = lanes.bit_length() - 1
    for _ in range(stages):
        pairs = zip(rows[:half], rows[half:], strict=True)
        rows = [code.shuffle(lanes, e, *pair, order) for pair in pairs for order in (low, high)]
    for i, row in enumerate(rows):
        code.store_vector(v, e, row, code.at(e, target, i * tiles.columns))


def _print_pack_a(tiles: Tiles) -> str:
    """Print ``(a, step, k, m, out)``: panels of A from its transpose, `k` rows of `m` elements, `step` apart."""
    e, rows = tiles.element, tiles.rows
    v = f"<{rows} x {e}>"
    code = ProductBuilder(f"gemm_{tiles.suffix}_pack_a", _PACK_A, "noinline")
    whole = code.mul(code.div("%m", rows), rows)
    start: Size = "0"
    for together in (_PANELS_TOGETHER, 1):  # each line of memory once: rows far apart would drive it out of the cache
        high = rows * together
        end = code.add(start, code.mul(code.div(code.sub(whole, start), high), high))
        with code.loop(start, end, high) as i, code.loop(0, "%k") as p:
            source = code.at(e, "%a", code.mul(p, "%step"), i)
            later = code.at(e, source, code.mul("%step", AHEAD))
            for first in range(0, together * rows, 64 // tiles.bytes):
                print_ask(code, code.at(e, later, first))
            for panel in range(together):
                first = code.mul(code.add(i, panel * rows), "%k")
                row = code.load_vector(v, e, code.at(e, source, panel * rows))
                code.store_vector(v, e, row, code.at(e, "%out", first, code.mul(p, rows)))
        start = end
    panel = code.at(e, "%out", code.mul(whole, "%k"))
    with code.loop(0, "%k") as p, code.loop(whole, "%m") as i:
        value = code.load(e, code.at(e, "%a", code.mul(p, "%step"), i))
        code.store(e, value, code.at(e, panel, code.mul(p, rows), code.sub(i, whole)))
    return code.text()
