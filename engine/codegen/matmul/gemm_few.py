"""Products of few rows by a matrix in its own layout, whose rows are read one behind the other.

A tile goes down its columns of B, so that each step of k is in another page of memory. With few rows there is nothing
else to wait for, and memory gives a third of what it can. Here some rows of B are read along many columns at a time.
The sums of these columns are in the first cache meanwhile. Terms are added in the order of tiles, with the same bits.

Where B is transposed, each element is the dot product of two rows: by vectors of sums, so in another order.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..llvm.builder import IN_LOOP, LOOP, Builder, FunctionBuilder, Size, masked_load, taking
from .gemm_code import ProductBuilder
from .gemm_pack import print_mask
from .gemm_tile import Tiles

MOST_ROWS = 4  # of A: with more, tiles read each vector of B for enough of them
_SUMS = 16384  # bytes of the sums that are in the cache, of all rows
_STREAMS = 8  # rows of B that are read at once
_VECTORS = 2  # of sums of each dot product
_DOTS = 4  # rows of a transposed B that are read at once

_POINTERS = ("a", "b", "c", "d", "e", "then", "then_context")
_SIZES = ("m", "n", "k", "k_block", "row_step", "k_step", "b_step", "c_step", "d_step", "e_step", "column")


def dots_name(tiles: Tiles) -> str:
    """Return the name of the function for few rows and a transposed matrix."""
    return f"gemm_{tiles.suffix}_dots"


def few_name(tiles: Tiles) -> str:
    """Return the name of the function for few rows."""
    return f"gemm_{tiles.suffix}_few"


def print_few(tiles: Tiles) -> str:
    """Print the function for few rows: some columns of C = A @ B + D + E, and what follows them.

    B, C, D and E begin at the first of these columns, which is number `column` of all.
    """
    code = ProductBuilder(few_name(tiles), taking(_POINTERS, _SIZES))
    e, count = tiles.element, _SUMS // tiles.bytes
    sums = code.slot(f"[{count} x {e}]", alignment=64)
    width = code.mul(code.div(code.div(count, "%m"), tiles.columns), tiles.columns)
    with code.loop(0, "%n", width) as j:
        columns = code.least(width, code.sub("%n", j))
        with code.loop(0, code.greatest("%k", 1), "%k_block") as p:
            deep = code.least("%k_block", code.sub("%k", p))
            vectors = code.mul(code.ceil_div(columns, tiles.lanes), tiles.lanes)
            with code.loop(0, "%m") as row:
                code.clear(e, code.at(e, sums, code.mul(row, width)), vectors)
            whole = code.mul(code.div(deep, _STREAMS), _STREAMS)
            for start, end, streams in ((0, whole, _STREAMS), (whole, deep, 1)):
                with code.loop(start, end, streams) as step, code.loop(0, "%m") as row:
                    term = code.add(p, step)
                    a = code.at(e, "%a", code.mul(row, "%row_step"), code.mul(term, "%k_step"))
                    b = code.at(e, "%b", code.mul(term, "%b_step"), j)
                    own = code.at(e, sums, code.mul(row, width))
                    _print_streams(code, tiles, (a, b, own), columns, streams)
            is_first = code.compare("eq", p, 0)
            addends = (
                (code.choose(is_first, "%d", "%c", "ptr"), code.choose(is_first, "%d_step", "%c_step")),
                (code.choose(is_first, "%e", "null", "ptr"), "%e_step"),
            )
            with code.loop(0, "%m") as row:
                own = code.at(e, sums, code.mul(row, width))
                for matrix, step in addends:
                    with code.when(code.let(f"icmp ne ptr {matrix}, null")):
                        addend = code.at(e, matrix, code.mul(row, step), j)
                        code.call_on(_adding_name(tiles), [own, addend], [columns])
                code.copy(e, own, code.at(e, "%c", code.mul(row, "%c_step"), j), columns)
        _print_then(code, tiles, code.add("%column", j), columns)
    return _print_adding(tiles) + code.text()


def _print_then(code: Builder, tiles: Tiles, first: Size, columns: Size) -> None:
    """Print what follows some columns of all rows, panel by panel."""
    with code.when(code.let("icmp ne ptr %then, null")), code.loop(0, columns, tiles.columns) as panel:
        start = code.add(first, panel)
        end = code.add(start, code.least(tiles.columns, code.sub(columns, panel)))
        for asks in (1, 0):
            code.line(f"call void %then(ptr %then_context, i64 0, i64 %m, i64 {start}, i64 {end}, i64 {asks})")


def _print_streams(code: Builder, tiles: Tiles, pointers: tuple[str, str, str], columns: Size, streams: int) -> None:
    """Add the products of one row of A by some rows of B to the sums of some columns; the last vector may be cut.

    Args:
        code: where it is printed.
        tiles: of the element.
        pointers: to A, B and the sums, for which there is memory up to the end of the last vector.
        columns: how many.
        streams: how many rows of B.
    """
    (a, b, sums), lanes, e = pointers, tiles.lanes, tiles.element
    factors = [code.load(e, code.at(e, a, code.mul(stream, "%k_step"))) for stream in range(streams)]
    factors = [code.broadcast(lanes, e, factor) for factor in factors]
    rows = [code.at(e, b, code.mul(stream, "%b_step")) for stream in range(streams)]
    whole = code.mul(code.div(columns, lanes), lanes)
    with code.loop(0, whole, lanes) as place:
        terms = [code.load_vector(tiles.vector, e, row, place) for row in rows]
        _print_terms(code, tiles, factors, terms, code.at(e, sums, place))
    with code.when(code.compare("slt", whole, columns)):
        mask = print_mask(code, tiles, code.sub(columns, whole))
        cut = [masked_load(lanes, e, code.at(e, row, whole), mask, "zeroinitializer") for row in rows]
        _print_terms(code, tiles, factors, [code.let(load) for load in cut], code.at(e, sums, whole))


def _print_terms(code: Builder, tiles: Tiles, factors: Sequence[str], terms: Sequence[str], sums: str) -> None:
    """Add products to a vector of sums, one after the other."""
    kind, e = tiles.vector, tiles.element
    total = code.load_vector(kind, e, sums)
    for factor, term in zip(factors, terms, strict=True):
        given = f"{kind} {factor}, {kind} {term}, {kind} {total}"
        total = code.let(f"call {kind} @llvm.fmuladd.v{tiles.lanes}{tiles.suffix}({given})")
    code.store_vector(kind, e, total, sums)


def _adding_name(tiles: Tiles) -> str:
    return f"gemm_{tiles.suffix}_few_add"


def _print_adding(tiles: Tiles) -> str:
    """Print the function that adds an addend to the sums of a row."""
    code, e = FunctionBuilder(_adding_name(tiles), taking(("sums", "addend"), ("columns",))), tiles.element
    with code.loop(0, "%columns", metadata=LOOP) as column:
        left, right = (code.load(e, f"%{name}", column, IN_LOOP) for name in ("sums", "addend"))
        code.store(e, code.let(f"fadd {e} {left}, {right}"), "%sums", column, IN_LOOP)
    return code.text()


def print_dots(tiles: Tiles) -> str:
    """Print the function for few rows and a transposed B: some columns of C = A @ B.T + D + E, and what follows them.

    B, C, D and E begin at the first of these columns, which is number `column` of all. A has no steps in its rows.
    """
    code, e = ProductBuilder(dots_name(tiles), taking(_POINTERS, _SIZES)), tiles.element
    with code.loop(0, "%n", _DOTS) as first, code.loop(0, "%m") as row:
        columns = [code.least(code.add(first, number), code.sub("%n", 1)) for number in range(_DOTS)]  # or the last one
        rows_of_b = [code.at(e, "%b", code.mul(column, "%b_step")) for column in columns]
        totals = _print_dot_products(code, tiles, code.at(e, "%a", code.mul(row, "%row_step")), rows_of_b)
        for matrix in ("d", "e"):
            with code.when(code.let(f"icmp ne ptr %{matrix}, null")):
                for column, total in zip(columns, totals, strict=True):
                    addend = code.load(e, f"%{matrix}", code.add(code.mul(row, f"%{matrix}_step"), column))
                    code.combine(e, total, addend)
        for column, total in zip(columns, totals, strict=True):
            code.store(e, code.load(e, total), "%c", code.add(code.mul(row, "%c_step"), column))
    _print_then(code, tiles, "%column", "%n")
    return code.text()


def _print_dot_products(code: Builder, tiles: Tiles, a: str, rows: Sequence[str]) -> list[str]:
    """Multiply a row of A by some rows of B; return slots with the results."""
    e, vector, width = tiles.element, tiles.vector, tiles.lanes * _VECTORS
    sums = [[code.slot(vector) for _ in range(_VECTORS)] for _ in rows]
    totals = [code.slot(e) for _ in rows]
    for slot in [slot for own in sums for slot in own]:
        code.store(vector, "zeroinitializer", slot)
    whole = code.mul(code.div("%k", width), width)
    with code.loop(0, whole, width) as term:
        for k, place in enumerate([code.add(term, number * tiles.lanes) for number in range(_VECTORS)]):
            factor = code.load_vector(vector, e, a, place)
            for own, start in zip(sums, rows, strict=True):
                code.add_product(vector, own[k], factor, code.load_vector(vector, e, start, place))
    for own, total in zip(sums, totals, strict=True):
        found = code.load(vector, own[0])
        for slot in own[1:]:
            found = code.let(f"fadd {vector} {found}, {code.load(vector, slot)}")
        name = f"@llvm.vector.reduce.fadd.v{tiles.lanes}{tiles.suffix}"
        code.store(e, code.let(f"call reassoc {e} {name}({e} -0.0, {vector} {found})"), total)
    with code.loop(whole, "%k") as term:
        for total, start in zip(totals, rows, strict=True):
            code.add_product(e, total, code.load(e, a, term), code.load(e, start, term))
    return totals


def declare_sums(tiles: Tiles) -> str:
    """Return the declaration of the intrinsic that adds up a vector."""
    e, name = tiles.element, f"@llvm.vector.reduce.fadd.v{tiles.lanes}{tiles.suffix}"
    return f"declare {e} {name}({e}, {tiles.vector})\n"
