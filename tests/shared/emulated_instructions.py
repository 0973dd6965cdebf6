"""Instructions for products of 8-bit integers as plain LLVM IR, as their makers document them.

So the code that is printed for processors with VNNI, AMX or NEON's dot products runs on any host: calls of LLVM's
intrinsics become calls of these functions. Tiles of AMX are memory of the module; one thread at a time may use them.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, VPDPBUSD, LDTILECFG, TDPBSUD, TILELOADD,
TILESTORED, TILEZERO; Arm Architecture Reference Manual, SDOT (vector).
"""

from __future__ import annotations

import re

import pytest

from anabranch.engine.codegen.llvm.builder import FunctionBuilder
from anabranch.engine.codegen.llvm.compiler import Compiler, Effort
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.llvm.object_files import ObjectFiles
from anabranch.engine.codegen.matmul import dot_products, int4, quantized

INSTRUCTIONS = {
    "none": dot_products.NONE,
    "vpmaddwd": dot_products.PAIRS,
    "vpdpbusd zmm": dot_products.VNNI,
    "vpdpbusd ymm": dot_products.VNNI_256,
    "amx": dot_products.AMX,
    "sdot": dot_products.SDOT,
}

_INTRINSIC = re.compile(r"@llvm\.(?:x86\.(?:avx512\.vpdp|ld?tile|tile|tdp)|aarch64\.neon\.sdot)[\w.]*")
_CONFIG, _TILE = 64, 1024  # bytes


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Print kernels for another processor, by a name of `INSTRUCTIONS`."""
    if name == "vpmaddwd" and "+avx2" not in library.host:
        pytest.skip("vpmaddwd is not emulated")
    for module in (quantized, int4):
        monkeypatch.setattr(module, "dot_product_of", lambda host: INSTRUCTIONS[name])


def emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile functions in the place of instructions that this host may lack; object code is not kept."""
    emit = Compiler.emit

    def emitted(compiler: Compiler, text: str, effort: Effort) -> bytes:
        return emit(compiler, with_emulated_instructions(text), effort)

    monkeypatch.setattr(Compiler, "emit", emitted)
    monkeypatch.setattr(ObjectFiles, "has", lambda *_: False)
    monkeypatch.setattr(ObjectFiles, "read", lambda *_: None)
    monkeypatch.setattr(ObjectFiles, "write", lambda *_: None)
    monkeypatch.setattr(quantized, "_PARTS", 1)  # one thread: emulated tiles are there once


def with_emulated_instructions(text: str) -> str:
    """A module without declarations and calls of the intrinsics, and with functions in their place."""
    lines = [line for line in text.split("\n") if not (line.startswith("declare") and _INTRINSIC.search(line))]
    body = "\n".join(lines)
    if not _INTRINSIC.search(body):
        return text
    body = _INTRINSIC.sub(lambda found: "@emulated." + found[0].split(".", 2)[2], body).replace(" immarg", "")
    return body + _definitions()


def _definitions() -> str:
    text = _dot_product("avx512.vpdpbusd.512", 16, "zext") + _dot_product("avx512.vpdpbusd.256", 8, "zext")
    text += _dot_product("neon.sdot.v4i32.v16i8", 4, "sext", is_bytes=True)
    text += f"@emulated.config = internal global [{_CONFIG} x i8] zeroinitializer, align 64\n"
    text += f"@emulated.tiles = internal global [8 x [{_TILE} x i8]] zeroinitializer, align 64\n"
    return text + _load_config() + _release() + _zero() + _load_tile() + _store_tile() + _multiply()


def _dot_product(name: str, lanes: int, widening: str, is_bytes: bool = False) -> str:
    """Sums of four products each; the first factors are unsigned (zext) or signed (sext), the others signed."""
    sums, size = f"<{lanes} x i32>", 4 * lanes
    kind = f"<{size} x i8>" if is_bytes else sums
    code = FunctionBuilder(f"emulated.{name}", [f"{sums} %sums", f"{kind} %a", f"{kind} %b"], "noinline", result=sums)
    wide: list[str] = []
    for operand, how in (("%a", widening), ("%b", "sext")):
        narrow = operand if is_bytes else code.let(f"bitcast {sums} {operand} to <{size} x i8>")
        wide.append(code.let(f"{how} <{size} x i8> {narrow} to <{size} x i32>"))
    products, total = code.let(f"mul <{size} x i32> {wide[0]}, {wide[1]}"), "%sums"
    for first in range(4):
        places = ", ".join(f"i32 {lane}" for lane in range(first, size, 4))
        part = code.let(f"shufflevector <{size} x i32> {products}, <{size} x i32> undef, <{lanes} x i32> <{places}>")
        total = code.let(f"add {sums} {total}, {part}")
    code.line(f"ret {sums} {total}")
    return code.text()


class _Tile:
    """A tile: its memory, and its rows and the bytes of a row, by the configuration."""

    def __init__(self, code: FunctionBuilder, number: str) -> None:
        index = code.let(f"zext i8 {number} to i64")
        self.memory = code.at("i8", "@emulated.tiles", code.mul(index, _TILE))
        places = (("i8", code.at("i8", "@emulated.config", 48, index)), ("i16", "@emulated.config"))
        self.rows = code.let(f"zext i8 {code.load('i8', places[0][1])} to i64")
        width = code.let(f"load i16, ptr {code.at('i8', '@emulated.config', 16, code.mul(index, 2))}")
        self.width = code.let(f"zext i16 {width} to i64")


def _load_config() -> str:
    code = FunctionBuilder("emulated.ldtilecfg", ["ptr %memory"])
    with code.loop(0, _CONFIG) as byte:
        code.store("i8", code.load("i8", "%memory", byte), "@emulated.config", byte)
    return code.text()


def _release() -> str:
    code = FunctionBuilder("emulated.tilerelease", [])
    with code.loop(0, _CONFIG) as byte:
        code.store("i8", 0, "@emulated.config", byte)
    return code.text()


def _zero() -> str:
    code = FunctionBuilder("emulated.tilezero", ["i8 %tile"])
    with code.loop(0, _TILE) as byte:
        code.store("i8", 0, _Tile(code, "%tile").memory, byte)
    return code.text()


def _load_tile() -> str:
    """Rows of memory; what is beyond the configured size becomes zero."""
    code = FunctionBuilder("emulated.tileloadd64", ["i8 %tile", "ptr %memory", "i64 %stride"])
    tile = _Tile(code, "%tile")
    code.call("emulated.tilezero", [("i8", "%tile")])
    with code.loop(0, tile.rows) as row, code.loop(0, tile.width) as byte:
        value = code.load("i8", code.at("i8", "%memory", code.mul(row, "%stride")), byte)
        code.store("i8", value, tile.memory, code.add(code.mul(row, 64), byte))
    return code.text()


def _store_tile() -> str:
    code = FunctionBuilder("emulated.tilestored64", ["i8 %tile", "ptr %memory", "i64 %stride"])
    tile = _Tile(code, "%tile")
    with code.loop(0, tile.rows) as row, code.loop(0, tile.width) as byte:
        value = code.load("i8", tile.memory, code.add(code.mul(row, 64), byte))
        code.store("i8", value, code.at("i8", "%memory", code.mul(row, "%stride")), byte)
    return code.text()


def _multiply() -> str:
    """Add to C (rows, columns) products of A (rows, 4 terms a group), signed, and B (groups, 4 a column), unsigned."""
    code = FunctionBuilder("emulated.tdpbsud", ["i8 %c", "i8 %a", "i8 %b"])
    c, a, b = (_Tile(code, f"%{name}") for name in "cab")
    columns = code.div(c.width, 4)
    with code.loop(0, c.rows) as row, code.loop(0, code.div(a.width, 4)) as group, code.loop(0, columns) as column:
        place = code.at("i32", c.memory, code.add(code.mul(row, 16), column))
        for term in range(4):
            left = code.load("i8", a.memory, code.add(code.mul(row, 64), code.mul(group, 4), term))
            right = code.load("i8", b.memory, code.add(code.mul(group, 64), code.mul(column, 4), term))
            wide = code.let(f"sext i8 {left} to i32"), code.let(f"zext i8 {right} to i32")
            product = code.let(f"mul i32 {wide[0]}, {wide[1]}")
            code.store("i32", code.let(f"add i32 {code.load('i32', place)}, {product}"), place)
    return code.text()
