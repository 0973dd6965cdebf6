"""Sums of products of 8-bit digits and four-bit integers, which stay two columns a byte until they are multiplied.

``vpmaddubsw`` of AVX2 multiplies unsigned bytes by signed ones and adds pairs of products in 16 bits. The integers are
0 to 15 here, 8 more than they stand for, so that the sums of 8 such pairs fit in 16 bits: nothing saturates. A panel is
64 columns of a group of terms. Bytes of four terms are interleaved there: (terms / 4, 4, 32) bytes, of which vector k
of 4 holds columns 8k to 8k + 7 and 32 + 8k to 39 + 8k. Some panels are written at once, so that lines of the cache are
read from one end to the other.
"""

from __future__ import annotations

from ..llvm.builder import Builder, FunctionBuilder, Size
from .dot_products import BLOCK, PANEL, interleaved, shuffled

PANELS = 4  # that are written at once: two lines of the cache
FOUR = 4  # terms whose products one number of 32 bits adds
_LINE = PANEL // 2  # bytes of a term in a panel: a vector
PANEL_BYTES = BLOCK * _LINE
_RUN = 8 * FOUR  # terms whose sums fit in 16 bits: 8 pairs for each, of at most 2 * 128 * 15
_QUARTERS = 4  # of the columns
_BYTES, _NARROW, _WIDE = f"<{_LINE} x i8>", f"<{_LINE // 2} x i16>", f"<{_LINE // 4} x i32>"


def print_pairing(name: str) -> str:
    """Write panels of some terms: `%count` whole ones, and one of `%rest` bytes a term if that is not zero.

    The last term stands for those that the last four lack. Bytes behind the last column stay as they were.
    """
    sizes = [f"i64 {size}" for size in ("%terms", "%count", "%rest", "%line")]
    code = FunctionBuilder(f"{name}_pair", ["ptr %b", "ptr %panels", *sizes])
    with code.loop(0, "%terms", FOUR) as term:
        last = code.sub("%terms", 1)
        rows = [code.at("i8", "%b", code.mul(code.least(code.add(term, k), last), "%line")) for k in range(FOUR)]
        target = code.at("i8", "%panels", code.mul(term, _LINE))
        for row in rows:  # the panels behind these come from memory meanwhile
            for ahead in range(PANELS * _LINE, 2 * PANELS * _LINE, 64):
                line = code.at("i8", row, ahead)
                code.line(f"call void @llvm.prefetch.p0(ptr {line}, i32 0, i32 2, i32 1)")
        with code.loop(0, "%count") as panel:
            loaded = [code.load_vector(_BYTES, "i8", row, code.mul(panel, _LINE)) for row in rows]
            for quarter, four in enumerate(interleaved(code, loaded, _LINE)):
                unsigned = code.let(f"xor {_BYTES} {four}, {code.broadcast(_LINE, 'i8', '-120')}")  # 8 in both halves
                place = code.add(code.mul(panel, PANEL_BYTES), quarter * _LINE)
                code.store_vector(_BYTES, "i8", unsigned, target, place)
        start = code.mul("%count", PANEL_BYTES)
        with code.loop(0, "%rest") as byte:
            quarter = code.div(code.rem(byte, _LINE // 2), FOUR)
            lane, own = code.div(byte, _LINE // 2), code.rem(byte, FOUR)
            place = code.add(start, code.mul(quarter, _LINE), code.mul(lane, _LINE // 2), code.mul(own, FOUR))
            for number, row in enumerate(rows):
                value = code.load("i8", row, code.add(code.mul("%count", _LINE), byte))
                code.store("i8", code.let(f"xor i8 {value}, -120"), target, code.add(place, number))
    return code.text()


def print_nibbles(name: str, digits: int) -> str:
    """Write the sums of a panel, for the digits of one row: (digits, 64).

    Behind the last term digits have to be zero, up to a multiple of four.
    """
    parameters = ["ptr %digits", "ptr %panel", "ptr %sums", "i64 %step", "i64 %terms"]
    code = FunctionBuilder(f"{name}_nibbles", parameters)
    wide = [[[code.slot(_WIDE) for _ in range(2)] for _ in range(digits)] for _ in range(_QUARTERS)]
    for slot in [slot for quarter in wide for sides in quarter for slot in sides]:
        code.line(f"store volatile {_WIDE} zeroinitializer, ptr {slot}")  # in memory: registers are for the others
    with code.loop(0, "%terms", _RUN) as first:
        stop = code.least("%terms", code.add(first, _RUN))
        for quarter, own in enumerate(wide):
            _print_quarter(code, own, quarter, first, stop)
    for quarter, own in enumerate(wide):
        for digit, sides in enumerate(own):
            _print_in_order(code, sides, digit * PANEL + quarter * 8)
    return code.text()


def _print_quarter(code: Builder, wide: list[list[str]], quarter: int, first: Size, stop: Size) -> None:
    """Add the products of some terms to the sums of a quarter of the columns."""
    slots = [[code.slot(_NARROW) for _ in sides] for sides in wide]  # of even and of odd columns
    for slot in [slot for sides in slots for slot in sides]:
        code.line(f"store {_NARROW} zeroinitializer, ptr {slot}")
    with code.loop(first, stop, FOUR) as term:
        four = code.load_vector(_BYTES, "i8", "%panel", code.add(code.mul(term, _LINE), quarter * _LINE))
        low = code.let(f"and {_BYTES} {four}, {code.broadcast(_LINE, 'i8', '15')}")
        high = code.let(f"lshr {_BYTES} {four}, {code.broadcast(_LINE, 'i8', '4')}")
        for digit, sides in enumerate(slots):
            start = code.at("i8", "%digits", code.add(code.mul("%step", digit), term))
            terms = code.broadcast(_LINE // 4, "i32", code.let(f"load i32, ptr {start}, align 1"))
            terms = code.let(f"bitcast {_WIDE} {terms} to {_BYTES}")
            for slot, integers in zip(sides, (low, high), strict=True):
                products = code.let(f"call {_NARROW} @llvm.x86.avx2.pmadd.ub.sw({_BYTES} {integers}, {_BYTES} {terms})")
                total = code.let(f"load {_NARROW}, ptr {slot}")
                code.line(f"store {_NARROW} {code.let(f'add {_NARROW} {total}, {products}')}, ptr {slot}")
    ones = code.broadcast(_LINE // 2, "i16", "1")
    for own, sides in zip(slots, wide, strict=True):
        for slot, target in zip(own, sides, strict=True):
            narrow = code.let(f"load {_NARROW}, ptr {slot}")
            pairs = code.let(f"call {_WIDE} @llvm.x86.avx2.pmadd.wd({_NARROW} {narrow}, {_NARROW} {ones})")
            total = code.let(f"load volatile {_WIDE}, ptr {target}")
            code.line(f"store volatile {_WIDE} {code.let(f'add {_WIDE} {total}, {pairs}')}, ptr {target}")


def _print_in_order(code: Builder, sides: list[str], place: int) -> None:
    """Write the sums of a quarter of the columns, the even and the odd ones, column by column."""
    even, odd = (code.let(f"load volatile {_WIDE}, ptr {slot}") for slot in sides)
    for lane in range(2):
        places = [lane * 4 + k + side for k in range(4) for side in (0, 8)]
        code.store_vector(_WIDE, "i32", shuffled(code, 8, "i32", even, odd, places), "%sums", place + 32 * lane)


__all__ = ["FOUR", "PANELS", "PANEL_BYTES", "print_nibbles", "print_pairing"]
