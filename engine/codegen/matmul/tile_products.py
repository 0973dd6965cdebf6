"""Products of 8-bit integers by AMX, while the sums of the block before become floats.

A block is 32 rows by 32 columns; its sums are kept in the nearest cache. Their division by scales takes nearly as long
as the products, but other units of the processor. So each step of the products of a block is followed by some rows of
the results of the block before, the pending one, and the memory for the own results is fetched meanwhile. Results have
the bits of the function that scales one row.
"""

from __future__ import annotations

from ..llvm.builder import Builder, FunctionBuilder, Size, taking
from ..llvm.tasks import Fields
from .dot_products import SUB, TILE_GROUPS, TILE_SIZES, DotProduct

TILE_ROWS, TILE_SUBS = 32, 2  # two tiles of 16 rows, by two of 16 columns
BLOCK_COLUMNS = TILE_SUBS * SUB
_OF_BLOCK = "sums", "scale", "out", "scales", "offsets"  # addresses for a block: of its first row and column
PENDING = (*_OF_BLOCK, "next_out", "columns", "rows")  # of the pending block; no rows if there is none
_TILE_BYTES, _LANES = 64, 16


def print_tile_shapes(name: str) -> str:
    """Print the memory from which a thread configures its tiles: palette 1, all eight of 16 rows of 64 bytes."""
    content = bytes([1, *[0] * 15, *[_TILE_BYTES, 0] * 8, *[0] * 16, *[SUB] * 8, *[0] * 8])
    text = "".join(f"\\{byte:02x}" for byte in content)
    return f'@{name}_shapes = internal constant [{len(content)} x i8] c"{text}", align 64\n'


def print_tiles(dot: DotProduct, name: str) -> str:
    """Print the same as a tile of `dot_products`, by AMX, and all results of the pending block, which is none then."""
    parameters = [*taking(("q", "panel", "sums"), TILE_SIZES), "ptr %pending"]
    code = FunctionBuilder(f"{name}_tile{TILE_ROWS}", parameters)
    rows = Fields(code, "%pending", PENDING)["rows"]
    rows_of_step = code.ceil_div(rows, code.ceil_div("%groups", TILE_GROUPS))
    places = [(row, column) for row in range(2) for column in range(TILE_SUBS)]
    stride = code.mul("%width", 4)
    sums = [code.at("i32", "%sums", code.mul(SUB * row, "%width"), SUB * column) for row, column in places]
    is_first = code.compare("ne", "%is_first", 0)
    with code.when(is_first):
        for tile in range(4):
            code.line(f"call void @llvm.x86.tilezero(i8 {tile})")
    with code.unless(is_first):
        for tile, address in enumerate(sums):
            code.call("llvm.x86.tileloadd64", [("i8", tile), ("ptr", address), ("i64", stride)])
    with code.loop(0, "%groups", TILE_GROUPS) as group:
        for k in range(2):
            q = code.at("i8", "%q", code.mul(SUB * k, "%step"), code.mul(group, dot.terms))
            code.call("llvm.x86.tileloadd64", [("i8", 4 + k), ("ptr", q), ("i64", "%step")])
            weights = code.at("i8", "%panel", code.mul("%sub_step", k), code.mul(group, SUB * dot.terms))
            code.call("llvm.x86.tileloadd64", [("i8", 6 + k), ("ptr", weights), ("i64", _TILE_BYTES)])
        for tile, (row, column) in enumerate(places):
            code.call("llvm.x86.tdpbsud", [("i8", tile), ("i8", 4 + row), ("i8", 6 + column)])
        first = code.mul(code.div(group, TILE_GROUPS), rows_of_step)
        _print_results(code, first, code.least(code.add(first, rows_of_step), rows))
    for tile, address in enumerate(sums):
        code.call("llvm.x86.tilestored64", [("i8", tile), ("ptr", address), ("i64", stride)])
    code.store("i64", 0, "%pending", PENDING.index("rows"))
    return code.text()


def print_pending(name: str) -> str:
    """Print the function for the results of the pending block alone."""
    code = FunctionBuilder(f"{name}_pending", ["ptr %pending"])
    _print_results(code, 0, Fields(code, "%pending", PENDING)["rows"])
    code.store("i64", 0, "%pending", PENDING.index("rows"))
    return code.text()


def _print_results(code: Builder, first: Size, end: Size) -> None:
    """Print some rows of the results of the pending block; those of the next one are prefetched."""
    fields, integers, floats = Fields(code, "%pending", PENDING), f"<{_LANES} x i32>", f"<{_LANES} x float>"
    sums, scale, out, scales, offsets, next_out = (fields.address(each) for each in PENDING[:6])
    columns = fields["columns"]
    with code.loop(first, end) as row:
        own = code.broadcast(_LANES, "float", code.load("float", scales, row))
        offset = code.broadcast(_LANES, "i32", code.load("i32", offsets, row))
        start = code.mul(row, columns)
        for column in range(0, BLOCK_COLUMNS, _LANES):
            place = code.add(code.mul(row, BLOCK_COLUMNS), column)
            total = code.let(f"sub {integers} {code.load_vector(integers, 'i32', sums, place)}, {offset}")
            found = code.let(f"sitofp {integers} {total} to {floats}")
            both = code.let(f"fmul {floats} {code.load_vector(floats, 'float', scale, column)}, {own}")
            result = code.let(f"fdiv {floats} {found}, {both}")
            code.store_vector(floats, "float", result, code.at("float", out, start), column)
            ahead = code.at("float", next_out, start, column)
            code.line(f"call void @llvm.prefetch.p0(ptr {ahead}, i32 1, i32 3, i32 1)")


class Blocks:
    """The blocks of a task, in the function that calls those of this module.

    Args:
        code: that function.
        name: the name of the kernel.
    """

    def __init__(self, code: Builder, name: str) -> None:
        self._code, self._name = code, name
        self._pending = code.slot(f"[{len(PENDING)} x i64]", "zeroinitializer")
        self._sums, self._turn = code.slot(f"[{2 * TILE_ROWS * BLOCK_COLUMNS} x i32]"), code.slot("i64", "0")

    def next_sums(self) -> str:
        """Return the place of the next block's sums, whose rows are `BLOCK_COLUMNS` apart; two take turns."""
        code = self._code
        turn = code.let(f"xor i64 {code.load('i64', self._turn)}, 1")
        code.store("i64", turn, self._turn)
        return code.at("i32", self._sums, code.mul(turn, TILE_ROWS * BLOCK_COLUMNS))

    def print_products(self, is_left: str, arguments: list[tuple[str, Size]], addresses: list[str], out: Size) -> None:
        """Print a block's products; the block is pending then, if it `is_left`.

        Args:
            is_left: an i1.
            arguments: of the tile's function.
            addresses: of the block's sums, the columns' scales, results, the rows' scales, and their surplus.
            out: the distance between rows of results.
        """
        code = self._code
        numbers = [code.let(f"ptrtoint ptr {address} to i64") for address in addresses]
        code.store("i64", numbers[_OF_BLOCK.index("out")], self._pending, PENDING.index("next_out"))
        code.call(f"{self._name}_tile{TILE_ROWS}", [*arguments, ("ptr", self._pending)])
        for position, number in enumerate(numbers):
            code.store("i64", number, self._pending, position)
        code.store("i64", out, self._pending, PENDING.index("columns"))
        code.store("i64", code.choose(is_left, TILE_ROWS, 0), self._pending, PENDING.index("rows"))

    def finish(self) -> None:
        """Print the results of the pending block."""
        self._code.call(f"{self._name}_pending", [("ptr", self._pending)])
