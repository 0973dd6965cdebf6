"""Sums of products of 8-bit digits and four-bit integers, which stay two columns a byte until they are multiplied.

The integers are 0 to 15 here, 8 more than they stand for. ``vpdpbusd`` multiplies them as unsigned bytes by digits, and
adds four products in 32 bits. ``vpmaddubsw`` of AVX2 adds pairs of products in 16 bits: the sums of 8 such pairs fit in
16 bits, so that nothing saturates. A panel is a group of terms, with two columns for each byte of a vector. Bytes of
four terms are interleaved there: (terms / 4, 4, bytes), of which vector k of 4 holds bytes 4k to 4k + 3 of each 16 of a
term. Some panels are written at once, so that lines of the cache are read from one end to the other.
"""

from __future__ import annotations

from ..llvm.builder import Builder, FunctionBuilder, Size, taking
from .dot_products import BLOCK, PAIRS, DotProduct, accumulate, interleaved, terms_of

DIGITS = 3  # of 8 bits: rows that stand for one row of floats
FOUR = 4  # terms whose products one number of 32 bits adds
_AHEAD = 128  # bytes of a term that are written at once: two lines of the cache
_RUN = 8 * FOUR  # terms whose sums fit in 16 bits: 8 pairs for each, of at most 2 * 128 * 15
_QUARTERS = 4  # of the bytes of a term: vectors for four terms
_LANE = 16  # bytes within which a vector is interleaved


def keeps_nibbles(dot: DotProduct) -> bool:
    """Test whether bytes are multiplied by the functions here."""
    return dot == PAIRS or dot.is_unsigned


def line_of(dot: DotProduct) -> int:
    """Return the bytes of a vector, which is what a panel has of each term."""
    return 4 * dot.lanes


def panels_of(dot: DotProduct) -> int:
    """Return the panels that are written at once."""
    return _AHEAD // line_of(dot)


def panel_bytes(dot: DotProduct) -> int:
    """Return the distance between panels."""
    return BLOCK * line_of(dot)


def rows_of(dot: DotProduct) -> int:
    """Return the rows whose sums registers hold at once, for a quarter of a panel: of AVX2 there are 16 registers."""
    if dot == PAIRS:
        return 1
    return 4 if dot.lanes == 16 else 2


def print_pairing(dot: DotProduct, name: str) -> str:
    """Write panels of some terms: `%count` whole ones, and one of `%rest` bytes a term if that is not zero.

    The last term stands for those that the last four lack. Bytes behind the last column stay as they were.
    """
    line = line_of(dot)
    kind = f"<{line} x i8>"
    code = FunctionBuilder(f"{name}_pair", taking(("b", "panels"), ("terms", "count", "rest", "line")))
    with code.loop(0, "%terms", FOUR) as term:
        last = code.sub("%terms", 1)
        rows = [code.at("i8", "%b", code.mul(code.least(code.add(term, k), last), "%line")) for k in range(FOUR)]
        target = code.at("i8", "%panels", code.mul(term, line))
        with code.loop(0, "%count") as panel:
            loaded = [code.load_vector(kind, "i8", row, code.mul(panel, line)) for row in rows]
            for quarter, four in enumerate(interleaved(code, loaded, line)):
                unsigned = code.let(f"xor {kind} {four}, {code.broadcast(line, 'i8', '-120')}")  # 8 in both halves
                place = code.add(code.mul(panel, panel_bytes(dot)), quarter * line)
                code.store_vector(kind, "i8", unsigned, target, place)
        start = code.mul("%count", panel_bytes(dot))
        with code.loop(0, "%rest") as byte:
            quarter = code.div(code.rem(byte, _LANE), FOUR)
            lane, own = code.div(byte, _LANE), code.rem(byte, FOUR)
            place = code.add(start, code.mul(quarter, line), code.mul(lane, _LANE), code.mul(own, FOUR))
            for number, row in enumerate(rows):
                value = code.load("i8", row, code.add(code.mul("%count", line), byte))
                code.store("i8", code.let(f"xor i8 {value}, -120"), target, code.add(place, number))
    return code.text()


def print_nibbles(dot: DotProduct, name: str, rows: int) -> str:
    """Write the sums of a panel, for the digits of some rows: (rows, digits, columns).

    Behind the last term digits have to be zero, up to a multiple of four. Bytes of the matrix `%ahead`, a line of the
    cache for each term, `%line` bytes apart, come from memory meanwhile.
    """
    parameters = ["ptr %digits", "ptr %panel", "ptr %sums", "ptr %ahead", "i64 %step", "i64 %terms", "i64 %line"]
    code = FunctionBuilder(f"{name}_nibbles{rows}", parameters)
    if dot == PAIRS:
        _print_by_pairs(code, dot)
    else:
        together = max(1, rows_of(dot) // rows // 2)  # whose integers are in registers, too
        for first in range(0, _QUARTERS, together):
            _print_quarters(code, dot, range(first, first + together), rows)
    return code.text()


def _print_quarters(code: Builder, dot: DotProduct, quarters: range, rows: int) -> None:
    """Write the sums of some quarters of the columns, for some rows, all of which are in registers."""
    vector, lines = f"<{dot.lanes} x i32>", range(rows * DIGITS)
    slots = [
        [[code.slot(vector, "zeroinitializer") for _ in range(2)] for _ in lines] for _ in quarters
    ]  # of even and of odd columns
    starts = [code.at("i8", "%digits", code.mul("%step", line)) for line in lines]
    with code.loop(0, "%terms", FOUR) as term:
        for quarter in quarters:
            _print_fetch(code, code.add(term, quarter))
        halves = [_halves(code, dot, term, quarter) for quarter in quarters]
        for line, start in enumerate(starts):
            digits = terms_of(code, dot, start, code.div(term, FOUR))
            for own, integers in zip(slots, halves, strict=True):
                for slot, each in zip(own[line], integers, strict=True):
                    accumulate(code, dot, slot, digits, each)
    for own, quarter in zip(slots, quarters, strict=True):
        for line, sides in enumerate(own):
            values = [code.let(f"load {vector}, ptr {slot}") for slot in sides]
            _print_in_order(code, dot, values, line, quarter)


def _print_fetch(code: Builder, term: Size) -> None:
    """Fetch what is multiplied later; that there may be no such term does no harm."""
    place = code.at("i8", "%ahead", code.mul(term, "%line"))
    code.line(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 2, i32 1)")


def _halves(code: Builder, dot: DotProduct, term: Size, quarter: int) -> tuple[str, str]:
    """Return the integers of a quarter of four terms: those of even columns, and of odd ones."""
    line = line_of(dot)
    kind = f"<{line} x i8>"
    four = code.load_vector(kind, "i8", "%panel", code.add(code.mul(term, line), quarter * line))
    low = code.let(f"and {kind} {four}, {code.broadcast(line, 'i8', '15')}")
    return low, code.let(f"lshr {kind} {four}, {code.broadcast(line, 'i8', '4')}")


def _print_in_order(code: Builder, dot: DotProduct, sides: list[str], line: int, quarter: int) -> None:
    """Write the sums of a quarter of the columns, the even and the odd ones, column by column."""
    even, odd = sides
    for lane in range(dot.lanes // 4):
        places = [lane * 4 + k + side for k in range(4) for side in (0, dot.lanes)]
        own = code.shuffle(dot.lanes, "i32", even, odd, places)
        place = line * 2 * line_of(dot) + quarter * 8 + 2 * _LANE * lane
        code.store_vector("<8 x i32>", "i32", own, "%sums", place)


# --- AVX2 -----------------------------------------------------------------------------------------------------------


def _print_by_pairs(code: Builder, dot: DotProduct) -> None:
    """Write the sums of a panel for one row, by pairs of products in 16 bits."""
    wide = f"<{dot.lanes} x i32>"
    totals = [[[code.slot(wide) for _ in range(2)] for _ in range(DIGITS)] for _ in range(_QUARTERS)]
    for slot in [slot for quarter in totals for sides in quarter for slot in sides]:
        code.line(f"store volatile {wide} zeroinitializer, ptr {slot}")  # in memory: registers are for the others
    with code.loop(0, "%terms", _RUN) as first:
        stop = code.least("%terms", code.add(first, _RUN))
        for quarter, own in enumerate(totals):
            _print_quarter(code, dot, own, quarter, first, stop)
    for quarter, own in enumerate(totals):
        for digit, sides in enumerate(own):
            values = [code.let(f"load volatile {wide}, ptr {slot}") for slot in sides]
            _print_in_order(code, dot, values, digit, quarter)


def _print_quarter(
    code: Builder, dot: DotProduct, totals: list[list[str]], quarter: int, first: Size, stop: Size
) -> None:
    """Add the products of some terms to the sums of a quarter of the columns."""
    line, wide, narrow = line_of(dot), f"<{dot.lanes} x i32>", f"<{2 * dot.lanes} x i16>"
    slots = [[code.slot(narrow) for _ in sides] for sides in totals]  # of even and of odd columns
    for slot in [slot for sides in slots for slot in sides]:
        code.line(f"store {narrow} zeroinitializer, ptr {slot}")
    with code.loop(first, stop, FOUR) as term:
        _print_fetch(code, code.add(term, quarter))
        halves = _halves(code, dot, term, quarter)
        for digit, sides in enumerate(slots):
            start = code.at("i8", "%digits", code.add(code.mul("%step", digit), term))
            terms = code.broadcast(dot.lanes, "i32", code.let(f"load i32, ptr {start}, align 1"))
            terms = code.let(f"bitcast {wide} {terms} to <{line} x i8>")
            for slot, integers in zip(sides, halves, strict=True):
                name = f"call {narrow} @llvm.x86.avx2.pmadd.ub.sw"
                products = code.let(f"{name}(<{line} x i8> {integers}, <{line} x i8> {terms})")
                code.combine(narrow, slot, products, "add")
    ones = code.broadcast(2 * dot.lanes, "i16", "1")
    for own, sides in zip(slots, totals, strict=True):
        for slot, target in zip(own, sides, strict=True):
            value = code.let(f"load {narrow}, ptr {slot}")
            pairs = code.let(f"call {wide} @llvm.x86.avx2.pmadd.wd({narrow} {value}, {narrow} {ones})")
            total = code.let(f"load volatile {wide}, ptr {target}")
            code.line(f"store volatile {wide} {code.let(f'add {wide} {total}, {pairs}')}, ptr {target}")
