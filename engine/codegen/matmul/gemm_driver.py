"""Matrix products as LLVM IR: cut into parts for threads, blocks for caches, and tiles for registers.

A part is a rectangle of the result. It goes over k in blocks; in each it lays out the rows of A that it needs (if A is
transposed; otherwise rows are read in place), then one panel of B after the other, and computes all tiles under
that panel, while it lays out the next. (`gemm_shared` cuts large products otherwise.) Parts and blocks depend on sizes
and on how operands are laid out, and so does the order in which the terms of an element are added: never on the number
of threads.
"""

from __future__ import annotations

from functools import reduce

from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ..llvm.builder import Builder, Size
from ..llvm.tasks import print_parallel
from .gemm_code import PARAMETERS, ProductBuilder
from .gemm_few import MOST_ROWS, declare_sums, dots_name, few_name, print_dots, print_few
from .gemm_forms import DEEP, DEEP_FEW, FEW_ROWS, PACKED, ROWS, TRANSPOSED, packing_name, product_name, then_name
from .gemm_pack import print_packing
from .gemm_panel import (
    COLUMNS_OF_B,
    NOTHING,
    ROWS_OF_B,
    SCRATCH,
    print_are_few,
    print_ask_share,
    print_columns,
    print_lay,
    print_optional,
    print_panel,
    print_panel_call,
    print_scratch,
)
from .gemm_shared import MEMORY, print_shared, shared_name
from .gemm_tile import PANELS_OF_A, ROWS_OF_A, Tiles, print_declarations, print_tile

_MOST_ROWS = 256  # of A that are laid out at a time

# Terms of a block of k at most, with those of `gemm_forms`. Where blocks are deep, sums go back into C seldom; where
# they are not, a panel of B and the rows of A that it is multiplied with are in the first two caches. Measured like the
# parts below.
_DEEP_LAID_OUT = 256  # where the rows of A are laid out, too
_DEEP_TURNED = 1024  # where laying out a panel of B means to transpose it

# Parts, measured on two cores of a server with AVX-512: work is m * n * k. Threads that are awake pay from some 10
# microseconds a part, and more parts than that make panels at their ends narrower.
_MOST_ACROSS = 8
_MOST_ACROSS_LAID_OUT = 4  # where each part lays out the rows of A again,
_LEAST_BROAD = 512  # for at least so many columns
_MOST_PART_ROWS = 256
_QUARTERS = 4  # of what would be one part by these rules, where rows of A are laid out
_FEW_TILES = 3  # on top of each other, for which rows of B that are close together are not laid out;
_FEW_NARROW_TILES = 5  # the same for tiles of two vectors, which read less of B
_LEAST_STREAMED = 1 << 15  # bytes of B, from which few rows of A are multiplied by streams of its rows
_LEAST_PART = 4096  # bytes of a row of B in a part, if it is read in streams
_TILES = -1  # in place of a form of B that is read in streams
_MOST_PACKING = 8  # parts of the work of packing

# Products that have their operands laid out once, measured likewise.
_LEAST_ROWS = 128
_LEAST_COLUMNS_LAID_OUT = 1024  # where the rows of A are laid out, too

_FIELDS = (
    *("m", "n", "k", "a", "row_step", "k_step", "b", "b_step", "form", "c", "c_step", "d", "d_step", "e", "e_step"),
    *("k_block", "part_rows", "across", "pack_a", "pack_b", "few", "then", "then_context"),
)

COMMON = SCRATCH + MEMORY


def print_products(tiles: Tiles) -> str:
    """Print all functions for one element type; called from elsewhere: `anabranch_{s,d}gemm`, `.._then`, `.._pack`."""
    widths = range(1, tiles.vectors + 1)
    kernels = [print_tile(tiles, rows, width) for rows in tiles.heights if rows != tiles.rows for width in widths]
    kernels += [print_tile(tiles, tiles.rows, width, a) for width in widths for a in (ROWS_OF_A, PANELS_OF_A)]
    return "".join(
        [print_declarations(tiles), *kernels, print_packing(tiles), print_panel(tiles), declare_sums(tiles),
         print_few(tiles), print_dots(tiles), _Part(tiles).print(), print_shared(tiles), _print_product(tiles),
         _print_pack(tiles)]
    )  # fmt: skip


class _Part:
    """The function that computes a part: loops over blocks of k, over rows of A that are laid out, and over panels."""

    def __init__(self, tiles: Tiles) -> None:
        self.tiles = tiles
        code = self.code = ProductBuilder(f"gemm_{tiles.suffix}_part", ["ptr %context", "i64 %part"], flushes=True)
        get = self.get = {name: code.load("i64", "%context", k) for k, name in enumerate(_FIELDS)}
        self.a, self.b, self.c, self.d, self.e = (code.let(f"inttoptr i64 {get[name]} to ptr") for name in "abcde")
        self.follows = code.let(f"inttoptr i64 {get['then']} to ptr")
        self.then_context = code.let(f"inttoptr i64 {get['then_context']} to ptr")
        self.panels_of_b, self.memory = print_scratch(code)
        self.panel_size = code.mul(get["k_block"], tiles.columns)
        self.panels_of_a = code.at(tiles.element, self.panels_of_b, code.mul(self.panel_size, 2))
        self.turn, self.is_laid = code.slot(), code.slot()  # which of two panels is used, and whether it is laid out
        code.store("i64", 0, self.turn)
        code.store("i64", 0, self.is_laid)
        self.row = code.mul(code.div("%part", get["across"]), get["part_rows"])
        self.row_end = code.least(get["m"], code.add(self.row, get["part_rows"]))
        self.column, self.column_end = print_columns(code, tiles, get)
        self.is_a_packed = code.compare("ne", get["pack_a"], 0)
        self.height = code.choose(self.is_a_packed, _MOST_ROWS // tiles.rows * tiles.rows, get["m"])
        self.is_b_packed = code.compare("eq", get["form"], PACKED)

    def print(self) -> str:
        """Return the text of the function."""
        code = self.code
        form = self.get["few"]
        for each, name, step in (
            (ROWS, few_name(self.tiles), 1),
            (TRANSPOSED, dots_name(self.tiles), self.get["b_step"]),
        ):
            with code.when(code.compare("eq", form, each)):
                self._print_few(name, step)
        with code.when(code.compare("eq", form, _TILES)):
            self._print_blocks()
        code.line(f"call void @gemm_give(i64 {self.memory})")
        return code.text()

    def _print_few(self, name: str, step: Size) -> None:
        """Print a part of a product of few rows, by a function; columns of B are so far apart."""
        code, get = self.code, self.get
        steps = [get[name] for name in ("k_block", "row_step", "k_step", "b_step", "c_step", "d_step", "e_step")]
        sizes = [get["m"], code.sub(self.column_end, self.column), get["k"], *steps, self.column]
        code.call_on(name, [self.a, *self._columns_of(step), self.follows, self.then_context], sizes)

    def _columns_of(self, step: Size) -> list[str]:
        """Print where the columns of a part begin: in B, whose columns are so far apart, in C and in what is added."""
        code, e = self.code, self.tiles.element
        places = [code.at(e, self.b, code.mul(self.column, step)), code.at(e, self.c, self.column)]
        return [*places, *[print_optional(code, e, each, self.column) for each in (self.d, self.e)]]

    def _print_blocks(self) -> None:
        """Print loops over blocks of k and rows of A."""
        code, get = self.code, self.get
        with code.loop(0, code.greatest(get["k"], 1), get["k_block"]) as p:
            deep = code.least(get["k_block"], code.sub(get["k"], p))
            is_first = code.compare("eq", p, 0)
            added = code.choose(is_first, self.d, self.c, "ptr")
            added_step = code.choose(is_first, get["d_step"], get["c_step"])
            plus = code.choose(is_first, self.e, "null", "ptr")
            is_over = code.compare("sge", code.add(p, deep), get["k"])
            then = code.choose(is_over, self.follows, "null", "ptr")
            addends = (added, added_step, plus)
            with code.loop(self.row, self.row_end, self.height) as i:
                self._print_rows(p, deep, i, addends, then)

    def _print_rows(self, p: str, deep: Size, i: str, addends: tuple[str, Size, str], then: str) -> None:
        """Print a block of k for some rows of A, which are laid out if A is transposed.

        Args:
            p: the first step of k.
            deep: how many there are.
            i: the first row.
            addends: what the sums are added to, its step, and what else is added.
            then: what follows the block, or null.
        """
        code, tiles, get = self.code, self.tiles, self.get
        rows = code.least(self.height, code.sub(self.row_end, i))
        plain_a = code.at(tiles.element, self.a, code.mul(i, get["row_step"]), code.mul(p, get["k_step"]))
        with code.when(self.is_a_packed):
            arguments = [("ptr", plain_a), ("i64", get["k_step"]), ("i64", deep), ("i64", rows)]
            code.call(f"gemm_{tiles.suffix}_pack_a", [*arguments, ("ptr", self.panels_of_a)])
        laid, width = code.mul(deep, tiles.rows), code.mul(get["row_step"], tiles.rows)
        of_a = {
            "a": code.choose(self.is_a_packed, self.panels_of_a, plain_a, "ptr"),
            "group_step": code.choose(self.is_a_packed, laid, width),
            "row_step": code.choose(self.is_a_packed, 1, get["row_step"]),
            "k_step": code.choose(self.is_a_packed, tiles.rows, get["k_step"]),
        }
        added, added_step, plus = addends
        with code.loop(self.column, self.column_end, tiles.columns) as j:
            target = code.at(tiles.element, self.c, code.mul(i, get["c_step"]), j)
            addend = print_optional(code, tiles.element, added, code.add(code.mul(i, added_step), j))
            addend_2 = print_optional(code, tiles.element, plus, code.add(code.mul(i, get["e_step"]), j))
            print_panel_call(
                code, tiles, m=rows, k=deep, **of_a, **self._print_panel(p, i, j, rows),
                c=target, c_step=get["c_step"], d=addend, d_step=added_step, e=addend_2, e_step=get["e_step"],
                then=then, then_context=self.then_context, row=i, column=j,
            )  # fmt: skip

    def _print_panel(self, p: str, i: str, j: str, rows: Size) -> dict[str, Size]:
        """Print where the panel at step `p` of k and column `j` is, and what is laid out or prefetched meanwhile."""
        code, tiles, get = self.code, self.tiles, self.get
        has_more_rows = code.compare("slt", code.add(i, self.height), self.row_end)  # for which panels come once more
        are_few = print_are_few(code, tiles, rows)
        now = _print_source(code, tiles, get, self.b, p, j, self.column_end)
        odd = code.load("i64", self.turn)
        panel = code.at(tiles.element, self.panels_of_b, code.mul(odd, self.panel_size))
        next_odd = code.choose(are_few, odd, code.sub(1, odd))
        next_panel = code.at(tiles.element, self.panels_of_b, code.mul(next_odd, self.panel_size))
        beside = code.add(j, tiles.columns)
        is_last = code.compare("sge", beside, self.column_end)
        block = code.choose(is_last, code.choose(has_more_rows, p, code.add(p, get["k_block"])), p)
        next_column = code.choose(is_last, self.column, beside)
        later = _print_source(code, tiles, get, self.b, block, next_column, self.column_end)
        uses_panel = code.compare("ne", now.kind, NOTHING)
        is_missing = code.compare("eq", code.load("i64", self.is_laid), 0)
        with code.when(code.let(f"and i1 {uses_panel}, {is_missing}")):
            print_lay(code, tiles, now.kind, (now.source, get["b_step"]), (now.deep, now.width), panel)
        is_there = code.compare("slt", block, get["k"])
        next_kind = code.choose(is_there, later.kind, NOTHING)
        code.store("i64", code.choose(code.compare("ne", next_kind, NOTHING), 1, 0), self.is_laid)
        code.store("i64", next_odd, self.turn)
        is_panel = code.let(f"or i1 {uses_panel}, {self.is_b_packed}")
        asks = code.let(f"and i1 {self.is_b_packed}, {is_there}")
        return {
            "n": now.width,
            "b": code.choose(uses_panel, panel, now.source, "ptr"),
            "b_step": code.choose(is_panel, tiles.columns, get["b_step"]),
            "ask": code.choose(asks, later.source, self.b, "ptr"),
            "ask_share": code.choose(asks, print_ask_share(code, tiles, rows), 0),
            "lay_kind": next_kind,
            "lay_from": later.source,
            "lay_step": get["b_step"],
            "lay_deep": later.deep,
            "lay_width": later.width,
            "lay_to": next_panel,
        }


@dataclass(frozen=True)
class _Source:
    """The source of a panel.

    Attributes:
        kind: of what it is laid out; `NOTHING` where it is read in place.
        source: where that begins.
        deep: how many steps of k it has.
        width: how many columns.
    """

    kind: str
    source: str
    deep: Size
    width: Size


def _print_source(
    code: Builder, tiles: Tiles, get: dict[str, str], b: str, p: Size, j: Size, column_end: Size
) -> _Source:
    """Print the source of the panel that begins at step `p` of k and at column `j`."""
    width = code.least(tiles.columns, code.sub(column_end, j))
    deep = code.least(get["k_block"], code.sub(get["k"], p))
    is_packed, is_transposed = code.compare("eq", get["form"], PACKED), code.compare("eq", get["form"], TRANSPOSED)
    is_cut = code.compare("ne", code.rem(width, tiles.lanes), 0)
    is_laid = code.let(f"or i1 {code.compare('ne', get['pack_b'], 0)}, {is_cut}")
    kind = code.choose(is_transposed, COLUMNS_OF_B, code.choose(is_laid, ROWS_OF_B, NOTHING))
    offset = code.choose(
        is_transposed, code.add(code.mul(j, get["b_step"]), p), code.add(code.mul(p, get["b_step"]), j)
    )
    packed = code.add(code.mul(p, code.round_up(get["n"], tiles.columns)), code.mul(j, deep))
    source = code.at(tiles.element, b, code.choose(is_packed, packed, offset))
    return _Source(code.choose(is_packed, NOTHING, kind), source, deep, width)


def _print_k_block(code: Builder) -> str:
    """Print the block of k of a product; of a packed B it is given in the place of its steps."""
    deep = code.choose(code.compare("slt", "%m", FEW_ROWS), DEEP_FEW, DEEP)
    deep = code.choose(code.compare("eq", "%form", TRANSPOSED), _DEEP_TURNED, deep)
    deep = code.choose(code.compare("ne", "%a_transposed", 0), _DEEP_LAID_OUT, deep)
    equal = code.greatest(1, code.ceil_div("%k", code.greatest(1, code.ceil_div("%k", deep))))
    return code.choose(code.compare("eq", "%form", PACKED), code.greatest(1, "%b_step"), equal)


def _print_product(tiles: Tiles) -> str:
    given = [*PARAMETERS, "ptr %then", "ptr %then_context"]
    code = ProductBuilder(then_name(tiles), given, linkage="")
    is_done = code.slot()
    code.store("i64", 0, is_done)
    is_column = _print_is_column(code)
    with code.when(is_column):
        _print_as_row(code, tiles)
        code.store("i64", 1, is_done)
    with code.unless(is_column), code.when(_print_is_large(code)):
        deep = code.choose(code.compare("ne", "%a_transposed", 0), _DEEP_LAID_OUT, DEEP)
        arguments = ", ".join([*given, f"i64 {deep}"])
        code.store("i64", code.let(f"call i64 @{shared_name(tiles)}({arguments})"), is_done)
    with code.when(code.compare("eq", code.load("i64", is_done), 0)):
        _print_dealt_out(code, tiles)
    plain = ProductBuilder(product_name(tiles), PARAMETERS, linkage="")
    plain.line(f"call void @{then_name(tiles)}({', '.join([*PARAMETERS, 'ptr null', 'ptr null'])})")
    return code.text() + plain.text()


def _print_is_column(code: Builder) -> str:
    """Print the test whether a result is one column, of operands without gaps, and nothing is added or follows."""
    is_row = code.compare("eq", "%form", TRANSPOSED)  # of B, whose elements follow each other then
    return _all_of(
        code,
        *(code.compare("eq", "%n", 1), code.compare("sgt", "%m", 1), code.compare("ne", "%form", PACKED)),
        *(code.compare("eq", code.choose(is_row, 1, "%b_step"), 1), code.compare("eq", "%c_step", 1)),
        *[code.let(f"icmp eq ptr %{pointer}, null") for pointer in ("d", "e", "then")],
    )


def _all_of(code: Builder, *tests: str) -> str:
    """Print the conjunction of some tests."""
    return reduce(lambda found, test: code.let(f"and i1 {found}, {test}"), tests)


def _print_as_row(code: Builder, tiles: Tiles) -> None:
    """Print a product of one column as that of the row by the transpose of A."""
    form = code.choose(code.compare("ne", "%a_transposed", 0), ROWS, TRANSPOSED)
    operands = [("ptr", "%b"), ("i64", "%k"), ("i64", 0), ("ptr", "%a"), ("i64", "%a_step"), ("i64", form)]
    nothing = [("ptr", "null"), ("i64", 0)] * 2 + [("ptr", "null")] * 2
    sizes = [("i64", 1), ("i64", "%m"), ("i64", "%k")]
    code.call(then_name(tiles), [*sizes, *operands, ("ptr", "%c"), ("i64", "%m"), *nothing])


def _print_is_large(code: Builder) -> str:
    """Print the test whether it pays to lay out operands once for all parts."""
    is_much = code.compare("sge", code.mul(code.mul("%m", "%n"), "%k"), machine_profile().product_shared_work)
    is_open = code.compare("ne", "%form", PACKED)
    is_broad = code.compare("sge", "%n", _LEAST_COLUMNS_LAID_OUT)
    is_high = code.compare("sge", "%m", _LEAST_ROWS)
    is_laid_out = code.compare("ne", "%a_transposed", 0)
    return _all_of(code, is_much, is_open, code.let(f"select i1 {is_laid_out}, i1 {is_broad}, i1 {is_high}"))


def _print_dealt_out(code: Builder, tiles: Tiles) -> None:
    """Print parts each of which lays out what it needs."""
    context = code.slot(f"[{len(_FIELDS)} x i64]", alignment=8)
    is_transposed = code.compare("ne", "%a_transposed", 0)
    form = _print_few_form(code, tiles)
    down, across = _print_parts(code, tiles, form)
    values = {
        "row_step": code.choose(is_transposed, 1, "%a_step"),
        "k_step": code.choose(is_transposed, "%a_step", 1),
        "k_block": _print_k_block(code),
        "part_rows": code.round_up(code.ceil_div("%m", down), tiles.rows),
        "across": across,
        "pack_a": "%a_transposed",
        "pack_b": _print_needs_panels(code, tiles),
        "few": form,
    }
    for field in "abcde":
        values[field] = code.let(f"ptrtoint ptr %{field} to i64")
    values["then"] = code.let("ptrtoint ptr %then to i64")
    values["then_context"] = code.let("ptrtoint ptr %then_context to i64")
    for k, field in enumerate(_FIELDS):
        code.store("i64", values.get(field, f"%{field}"), context, k)
    parts = code.mul(code.ceil_div("%m", code.greatest(1, values["part_rows"])), values["across"])
    task, is_small = f"gemm_{tiles.suffix}_part", _print_is_small(code)
    with code.when(is_small), code.loop(0, parts) as part:
        code.call(task, [("ptr", context), ("i64", part)])
    with code.unless(is_small):
        print_parallel(code, task, context, parts)


def _print_is_small(code: Builder) -> str:
    """Print the test whether one thread is as fast as several.

    Gradients of weights, whose first operand is transposed, take what was computed just before and fill a matrix: with
    several threads that goes from the cache of one core to those of others. Weights stay where they are.
    """
    profile = machine_profile()
    result, operands = code.mul("%m", "%n"), code.mul(code.add("%m", "%n"), "%k")
    moving = code.mul(code.add(result, operands), profile.product_element_work)
    moved = code.choose(code.compare("ne", "%a_transposed", 0), moving, 0)
    return code.compare("slt", code.mul(result, "%k"), code.add(moved, profile.product_work))


def _print_parts(code: Builder, tiles: Tiles, form: Size) -> tuple[Size, Size]:
    """Print into how many parts rows and columns are cut; by sizes alone: results are the same for any threads."""
    is_laid_out = code.compare("ne", "%a_transposed", 0)
    work = code.mul(code.mul("%m", "%n"), "%k")
    down = code.greatest(1, code.ceil_div("%m", _MOST_PART_ROWS))
    few = code.least(_MOST_ACROSS_LAID_OUT, code.greatest(1, code.div("%n", _LEAST_BROAD)))
    most_across = code.choose(is_laid_out, few, _MOST_ACROSS)
    is_whole = code.compare("eq", code.mul(down, most_across), 1)
    most_across = code.choose(is_whole, _print_quarters(code), most_across)
    paying = code.choose(_print_is_small(code), 1, code.div(work, machine_profile().product_part_work))
    paying = code.choose(code.compare("sgt", paying, 1), code.round_up(paying, 2), paying)  # alike for two threads
    wanted = code.least(code.choose(is_whole, _QUARTERS, most_across), paying)
    panels = code.greatest(1, code.ceil_div("%n", tiles.columns))
    streams = code.greatest(2, code.div(code.mul("%n", tiles.bytes), _LEAST_PART))
    panels = code.choose(code.compare("eq", form, ROWS), code.least(panels, streams), panels)
    across = code.least(code.least(most_across, wanted), panels)
    missing = code.ceil_div(wanted, across)  # where columns are too few, rows are cut
    return code.greatest(1, code.least(code.greatest(down, missing), code.ceil_div("%m", tiles.rows))), across


def _print_quarters(code: Builder) -> str:
    """Print into how many of four parts columns are cut, so that little of both operands is laid out more than once."""
    is_wide = code.compare("sge", "%n", code.mul("%m", 2))
    is_high = code.compare("sge", "%m", code.mul("%n", 2))
    return code.choose(is_wide, _QUARTERS, code.choose(is_high, 1, _QUARTERS // 2))


def _print_needs_panels(code: Builder, tiles: Tiles) -> str:
    """Print the test whether rows of B are laid out as panels: for few rows of A only if they are far apart in memory.

    Then caches suffer.
    """
    is_far = code.compare("sge", code.mul("%b_step", tiles.bytes), 4096)
    few = _FEW_NARROW_TILES if tiles.vectors == 2 else _FEW_TILES
    fewest = code.choose(is_far, tiles.rows, few * tiles.rows)
    return code.choose(code.compare("sgt", "%m", fewest), 1, 0)


def _print_few_form(code: Builder, tiles: Tiles) -> str:
    """Print the form of B if it is read in streams, for few rows of A; else `_TILES`.

    Along rows of few columns there are few sums, each of which waits for itself; and rows of A take turns.
    """
    is_wide = code.compare("sge", "%n", code.mul("%m", tiles.lanes))
    pays = _all_of(
        code,
        code.let(f"or i1 {is_wide}, {code.compare('eq', '%form', TRANSPOSED)}"),
        code.compare("sge", code.mul("%n", "%k", tiles.bytes), _LEAST_STREAMED),
        code.compare("sle", "%m", MOST_ROWS),
        code.compare("ne", "%form", PACKED),
        code.compare("eq", "%a_transposed", 0),
    )
    return code.choose(pays, "%form", _TILES)


def _print_pack(tiles: Tiles) -> str:
    """Print all panels of B; see `PACKED`. A part of the work is some panels, in all blocks of k."""
    names = ("n", "k", "block", "b", "b_step", "transposed", "out", "panels")
    parameters = ["i64 %n", "i64 %k", "i64 %block", "ptr %b", "i64 %b_step", "i64 %transposed", "ptr %out"]
    code = ProductBuilder(packing_name(tiles), parameters, linkage="")
    context = code.slot(f"[{len(names)} x i64]", alignment=8)
    panels = code.greatest(1, code.ceil_div(code.ceil_div("%n", tiles.columns), _MOST_PACKING))
    values = {name: code.let(f"ptrtoint ptr %{name} to i64") for name in ("b", "out")} | {"panels": panels}
    for k, name in enumerate(names):
        code.store("i64", values.get(name, f"%{name}"), context, k)
    print_parallel(
        code, f"gemm_{tiles.suffix}_pack_part", context, code.ceil_div("%n", code.mul(panels, tiles.columns))
    )
    return _print_pack_part(tiles, names) + code.text()


def _print_pack_part(tiles: Tiles, names: tuple[str, ...]) -> str:
    e = tiles.element
    code = ProductBuilder(f"gemm_{tiles.suffix}_pack_part", ["ptr %context", "i64 %part"])
    for position, name in enumerate(names):
        address = code.at("i64", "%context", position)
        code.line(f"%{name} = load i64, ptr {address}")
    b, out = (code.let(f"inttoptr i64 %{name} to ptr") for name in ("b", "out"))
    start = code.mul(code.mul("%part", "%panels"), tiles.columns)
    end = code.least("%n", code.add(start, code.mul("%panels", tiles.columns)))
    wide = code.round_up("%n", tiles.columns)
    is_transposed = code.compare("ne", "%transposed", 0)
    kind = code.choose(is_transposed, COLUMNS_OF_B, ROWS_OF_B)
    with code.loop(0, "%k", "%block") as p:
        deep = code.least("%block", code.sub("%k", p))
        with code.loop(start, end, tiles.columns) as j:
            width = code.least(tiles.columns, code.sub("%n", j))
            along = code.choose(is_transposed, code.mul(j, "%b_step"), j)
            down = code.choose(is_transposed, p, code.mul(p, "%b_step"))
            target = code.at(e, out, code.mul(p, wide), code.mul(j, deep))
            source = code.at(e, b, along, down)
            print_lay(code, tiles, kind, (source, "%b_step"), (deep, width), target)
    return code.text()
