"""Sums of products of 8-bit integers, by the instructions of the host; all of them give the same bits.

Weights are laid out in groups of as many terms as an instruction adds at once: (groups, 16 columns, terms) bytes.
``vpdpbusd`` and AMX multiply signed numbers of the rows and unsigned weights: 128 is added to each weight, and 128
times the sum of the row is taken off at the end. So one layout serves both, and ``tdpbsud`` takes the place of
``tdpbssd``. Garbage behind the last term does no harm: rows have zeros there.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from functools import cache

from ...common.quick_dataclass import dataclass
from ..llvm.builder import Builder, FunctionBuilder, Size, taking

SUB = 16  # columns of a group
BLOCK = 256  # terms that are laid out at once
PANEL = 64  # columns that are laid out at once
TILE_GROUPS = 16  # that a tile of AMX has
_CHAINS = 2  # sums of each column that a single row has: an instruction waits for the one before in its chain
TILE_SIZES = ("step", "groups", "width", "is_first", "sub_step")  # the last: bytes between groups of 16 columns
_SYSCALL_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@dataclass(frozen=True)
class DotProduct:
    """The instruction by which a host adds products of short integers.

    Attributes:
        instruction: its name in LLVM's intrinsics; "" where several instructions multiply and add.
        terms: products that are added into one 32-bit sum: 4 of 8 bits, or 2 of 16 bits.
        lanes: 32-bit sums of a vector.
        rows, subs: the sums that registers hold at once: rows, and groups of 16 columns.
        is_unsigned: the instruction takes weights as unsigned numbers.
        has_tiles: the host has AMX, too, and lets this process use it.
    """

    instruction: str
    terms: int
    lanes: int
    rows: int
    subs: int = 1
    is_unsigned: bool = False
    has_tiles: bool = False

    @property
    def element(self) -> str:
        """The type of a rounded number of a row."""
        return "i8" if self.terms == 4 else "i16"

    @property
    def granule(self) -> int:
        """The terms of which a row has a multiple, by zeros behind it."""
        return TILE_GROUPS * self.terms if self.has_tiles else self.terms

    @property
    def sub_bytes(self) -> int:
        """The distance between the groups of 16 columns in a panel."""
        return SUB * BLOCK


PAIRS = DotProduct("x86.avx2.pmadd.wd", 2, 8, 6)
NONE = DotProduct("", 2, 8, 4)
VNNI = DotProduct("x86.avx512.vpdpbusd.512", 4, 16, 6, 4, is_unsigned=True)
VNNI_256 = DotProduct("x86.avx512.vpdpbusd.256", 4, 8, 6, is_unsigned=True)
AMX = DotProduct("x86.avx512.vpdpbusd.512", 4, 16, 6, 4, is_unsigned=True, has_tiles=True)
SDOT = DotProduct("aarch64.neon.sdot.v4i32.v16i8", 4, 4, 6)


def dot_product_of(host: str) -> DotProduct:
    """Return the best instruction of a host (`Library.host`)."""
    has = {word[1:] for word in host.replace(",", " ").split() if word.startswith("+")}
    if host.startswith(("aarch64", "arm64")):
        return SDOT if "dotprod" in has else NONE
    if {"avx512vnni", "avx512bw"} <= has:
        return AMX if "amx-int8" in has and may_use_tiles() else VNNI
    if "avxvnni" in has:
        return VNNI_256
    return PAIRS if "avx2" in has else NONE


@cache
def may_use_tiles() -> bool:
    """Ask Linux once for the permission to use AMX, which all threads and children of this process then have."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    request = ctypes.CDLL(None).syscall
    return request(*map(ctypes.c_long, (_SYSCALL_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA))) == 0


# --- vectors --------------------------------------------------------------------------------------------------------


def interleaved(code: Builder, rows: list[str], size: int) -> list[str]:
    """Interleave one, two or four rows of bytes within each 16 of them: one instruction for each step and vector.

    Returns:
        As many vectors as rows. Of n, vector k holds columns 16k / n to 16(k + 1) / n of each 16.
    """
    if len(rows) == 1:
        return rows
    half = len(rows) // 2
    sides = interleaved(code, rows[:half], size), interleaved(code, rows[half:], size)
    mixed: list[str] = []
    for first, second in zip(*sides, strict=True):
        for start in (0, 8):
            places = [
                lane + start + unit + side + byte
                for lane in range(0, size, 16)
                for unit in range(0, 8, half)
                for side in (0, size)
                for byte in range(half)
            ]
            mixed.append(code.shuffle(size, "i8", first, second, places))
    return mixed


def _in_order(code: Builder, sums: list[str], lanes: int) -> str:
    """Return the sums of columns that `interleaved` took apart as one vector, column by column."""
    count = len(sums)
    parts, size = sums, lanes
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts, size = [code.shuffle(size, "i32", *pair, list(range(2 * size))) for pair in pairs], 2 * size
    share = SUB // count
    places = [column % SUB // share * lanes + column // SUB * share + column % share for column in range(count * lanes)]
    return code.shuffle(size, "i32", parts[0], "undef", places)


def _prepared(code: Builder, dot: DotProduct, weights: str, is_raw: bool) -> str:
    """Return weights as the instruction takes them: of 16 bits, or made unsigned if they are `is_raw`."""
    size = dot.terms * dot.lanes
    if dot.terms == 2:
        return code.let(f"sext <{size} x i8> {weights} to <{size} x i16>")
    if dot.is_unsigned and is_raw:
        return code.let(f"xor <{size} x i8> {weights}, {code.broadcast(size, 'i8', '-128')}")
    return weights


def accumulate(code: Builder, dot: DotProduct, slot: str, x: str, weights: str) -> None:
    """Add products to the sums in a slot.

    Args:
        x: terms of a row, the same for each column: a vector of 32-bit numbers.
        weights: as `_prepared` gives them.
    """
    sums, size = f"<{dot.lanes} x i32>", dot.terms * dot.lanes
    total, name = code.let(f"load {sums}, ptr {slot}"), f"call {sums} @llvm.{dot.instruction}"
    if dot.is_unsigned:
        found = code.let(
            f"{name}({sums} {total}, {sums} {code.let(f'bitcast <{size} x i8> {weights} to {sums}')}, {sums} {x})"
        )
    elif dot.terms == 4:
        rows = code.let(f"bitcast {sums} {x} to <{size} x i8>")
        found = code.let(f"{name}({sums} {total}, <{size} x i8> {rows}, <{size} x i8> {weights})")
    else:
        rows = code.let(f"bitcast {sums} {x} to <{size} x i16>")
        if dot.instruction:
            products = code.let(f"{name}(<{size} x i16> {rows}, <{size} x i16> {weights})")
        else:
            wide = [code.let(f"sext <{size} x i16> {side} to <{size} x i32>") for side in (rows, weights)]
            both = code.let(f"mul <{size} x i32> {wide[0]}, {wide[1]}")
            parts = [code.shuffle(size, "i32", both, "undef", list(range(k, size, 2))) for k in (0, 1)]
            products = code.let(f"add {sums} {parts[0]}, {parts[1]}")
        found = code.let(f"add {sums} {total}, {products}")
    code.line(f"store {sums} {found}, ptr {slot}")


def _add_to(code: Builder, lanes: int, value: str, sums: str, place: Size, is_first: str) -> None:
    """Add a vector of sums to what is in memory, or write it there (`is_first`)."""
    vector = f"<{lanes} x i32>"
    before = code.load_vector(vector, "i32", sums, place)
    before = code.let(f"select i1 {is_first}, {vector} zeroinitializer, {vector} {before}")
    code.store_vector(vector, "i32", code.let(f"add {vector} {value}, {before}"), sums, place)


def _sum_of(code: Builder, dot: DotProduct, slots: list[str]) -> str:
    """Return the sum of the vectors in some slots."""
    vector = f"<{dot.lanes} x i32>"
    total, *others = [code.let(f"load {vector}, ptr {slot}") for slot in slots]
    for other in others:
        total = code.let(f"add {vector} {total}, {other}")
    return total


def _slots(code: Builder, dot: DotProduct, count: int) -> list[str]:
    return [code.slot(f"<{dot.lanes} x i32>", "zeroinitializer") for _ in range(count)]


def terms_of(code: Builder, dot: DotProduct, q: str, group: Size) -> str:
    """Return the terms of a group of a row, once for each sum of a vector."""
    address = code.at(dot.element, q, code.mul(group, dot.terms))
    return code.broadcast(dot.lanes, "i32", code.let(f"load i32, ptr {address}, align {4 // dot.terms}"))


# --- functions ------------------------------------------------------------------------------------------------------


def print_packing(dot: DotProduct, name: str, transpose: bool, four_bits: bool = False) -> str:
    """Print a block of terms of 16 columns as groups; what is beyond the columns and the terms stays.

    Args:
        dot: the instruction.
        name: of the kernel.
        transpose: the matrix is stored as (columns, terms).
        four_bits: its bytes hold two columns each; they become 0 to 15, which is 8 more than they stand for.
    """
    code = FunctionBuilder(f"{name}_pack", ["ptr %b", "ptr %panel", "i64 %terms", "i64 %width", "i64 %step"])
    steps: tuple[Size, Size] = (1, "%step") if transpose else ("%step", 1)  # to the next term, to the next column
    offset = -128 if dot.is_unsigned and not four_bits else 0
    is_wide = "false" if transpose else code.compare("sge", "%width", SUB)
    if not transpose:
        with code.when(is_wide):
            _print_groups(code, dot, lambda group, last: _pack_group(code, dot, group, last, offset, four_bits))
    with code.unless(is_wide), code.loop(0, "%terms") as term:
        source = code.at("i8", "%b", code.mul(term, steps[0]))
        place = code.add(code.mul(code.div(term, dot.terms), SUB * dot.terms), code.rem(term, dot.terms))
        with code.loop(0, "%width") as column:
            value = code.load("i8", source, code.div(column, 2) if four_bits else code.mul(column, steps[1]))
            if four_bits:
                is_odd = code.compare("eq", code.rem(column, 2), 1)
                high = code.let(f"lshr i8 {value}, 4")
                low = code.let(f"and i8 {code.let(f'select i1 {is_odd}, i8 {high}, i8 {value}')}, 15")
                value = code.let(f"xor i8 {low}, 8")
            value = code.let(f"xor i8 {value}, {offset}")
            code.store("i8", value, "%panel", code.add(place, code.mul(column, dot.terms)))
    return code.text()


def _print_groups(code: Builder, dot: DotProduct, print_group: Callable[[Size, Size | None], None]) -> None:
    """Print what is done for each group of `%terms`; the last one may lack terms, for which its last one stands."""
    whole = code.div("%terms", dot.terms)
    with code.loop(0, whole) as group:
        print_group(group, None)
    with code.when(code.compare("slt", code.mul(whole, dot.terms), "%terms")):
        print_group(whole, code.sub("%terms", 1))


def _rows_of(code: Builder, dot: DotProduct, group: Size, last: Size | None, start: Size, size: int) -> list[str]:
    """Return `size` bytes of each row of the matrix in a group; of row `last` in place of those behind it."""
    rows: list[str] = []
    for number in range(dot.terms):
        term = code.add(code.mul(group, dot.terms), number)
        term = term if last is None else code.least(term, last)
        rows.append(code.load_vector(f"<{size} x i8>", "i8", "%b", code.add(code.mul(term, "%step"), start)))
    return rows


def _pack_group(code: Builder, dot: DotProduct, group: Size, last: Size | None, offset: int, four_bits: bool) -> None:
    rows = _rows_of(code, dot, group, last, 0, SUB // 2 if four_bits else SUB)
    rows = [_unpacked(code, row) for row in rows] if four_bits else rows
    for number, part in enumerate(interleaved(code, rows, SUB)):
        if offset:
            part = code.let(f"xor <{SUB} x i8> {part}, {code.broadcast(SUB, 'i8', str(offset))}")
        place = code.add(code.mul(group, SUB * dot.terms), SUB * number)
        code.store_vector(f"<{SUB} x i8>", "i8", part, "%panel", place)


def _unpacked(code: Builder, row: str) -> str:
    """Unpack 16 numbers of four bits from 8 bytes, as 0 to 15."""
    half = f"<{SUB // 2} x i8>"
    low = code.let(f"and {half} {row}, {code.broadcast(SUB // 2, 'i8', '15')}")
    high = code.let(f"lshr {half} {row}, {code.broadcast(SUB // 2, 'i8', '4')}")
    both = code.shuffle(SUB // 2, "i8", low, high, [lane // 2 + SUB // 2 * (lane % 2) for lane in range(SUB)])
    return code.let(f"xor <{SUB} x i8> {both}, {code.broadcast(SUB, 'i8', '8')}")


def print_tile(dot: DotProduct, name: str, rows: int) -> str:
    """Add the products of a block for some rows and groups of 16 columns to the sums of the blocks before."""
    code = FunctionBuilder(f"{name}_tile{rows}", taking(("q", "panel", "sums"), TILE_SIZES))
    vectors, size = dot.subs * SUB // dot.lanes, dot.terms * dot.lanes
    chains = _CHAINS if rows == 1 else 1
    slots = [_slots(code, dot, chains * vectors) for _ in range(rows)]
    starts = [code.at(dot.element, "%q", code.mul(row, "%step")) for row in range(rows)]

    def print_group(group: Size, chain: int) -> None:
        place, weights = code.mul(group, SUB * dot.terms), list[str]()
        for vector in range(vectors):
            sub, column = divmod(vector * dot.lanes, SUB)
            start = code.add(place, code.mul("%sub_step", sub), column * dot.terms)
            loaded = code.load_vector(f"<{size} x i8>", "i8", "%panel", start)
            weights.append(_prepared(code, dot, loaded, is_raw=False))
        if rows == dot.rows:  # what the next tiles read comes from memory meanwhile
            ahead = code.at("i8", "%panel", code.add(code.mul("%sub_step", dot.subs), place))
            code.line(f"call void @llvm.prefetch.p0(ptr {ahead}, i32 0, i32 3, i32 1)")
        for start, own in zip(starts, slots, strict=True):
            x = terms_of(code, dot, start, group)
            for slot, weight in zip(own[chain * vectors :], weights, strict=False):
                accumulate(code, dot, slot, x, weight)

    whole = code.mul(code.div("%groups", chains), chains)
    with code.loop(0, whole, chains) as first:
        for chain in range(chains):
            print_group(code.add(first, chain), chain)
    if chains > 1:
        with code.loop(whole, "%groups") as group:
            print_group(group, 0)
    is_first = code.compare("ne", "%is_first", 0)
    for row, own in enumerate(slots):
        for vector in range(vectors):
            value = _sum_of(code, dot, own[vector::vectors])
            _add_to(code, dot.lanes, value, "%sums", code.add(code.mul(row, "%width"), vector * dot.lanes), is_first)
    return code.text()


def print_direct(dot: DotProduct, name: str) -> str:
    """Add the products of a block, of one row and a panel of the matrix in its own layout, to the sums before."""
    code = FunctionBuilder(f"{name}_direct", taking(("q", "b", "sums"), ("step", "terms", "is_first")))
    slots, size = _slots(code, dot, PANEL // dot.lanes), dot.terms * dot.lanes
    columns = SUB if dot.terms == 2 else size  # of a row that are loaded at once

    def print_group(group: Size, last: Size | None) -> None:
        x = terms_of(code, dot, "%q", group)
        for start in range(0, PANEL, columns):
            rows = _rows_of(code, dot, group, last, start, columns)
            for part, slot in zip(interleaved(code, rows, columns), slots[start // dot.lanes :], strict=False):
                accumulate(code, dot, slot, x, _prepared(code, dot, part, is_raw=True))

    _print_groups(code, dot, print_group)
    is_first = code.compare("ne", "%is_first", 0)
    for start in range(0, PANEL, columns):
        own = slots[start // dot.lanes : (start + columns) // dot.lanes]
        values = [code.let(f"load <{dot.lanes} x i32>, ptr {slot}") for slot in own]
        _add_to(code, columns, _in_order(code, values, dot.lanes), "%sums", start, is_first)
    return code.text()
