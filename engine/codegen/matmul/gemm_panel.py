"""All tiles under one panel of B, as LLVM IR: what `gemm_driver` and `gemm_shared` share, two ways to cut a product."""

from __future__ import annotations

from collections.abc import Mapping

from ...common.quick_dataclass import dataclass
from ..llvm.builder import Builder, Size
from .gemm_code import ProductBuilder
from .gemm_pack import print_ask
from .gemm_tile import PANELS_OF_A, ROWS_OF_A, Tiles

NOTHING, ROWS_OF_B, COLUMNS_OF_B = 0, 1, 2  # what a panel that is laid out next is made of
_FEW_GROUPS = 8  # of rows
# Parameters of the function for the tiles under a panel: sizes, the strides of A, the panel, the result, what is added
# to it, what is prefetched or laid out meanwhile, what follows and its context, and the place. `then` is
# ``void (ptr context, i64 row, i64 row_end, i64 column, i64 column_end, i64 is_early)``, or null.
_POINTERS = ("a", "b", "c", "d", "e", "ask", "lay_from", "lay_to", "then", "then_context")
_PARAMETERS = (
    *("m", "n", "k", "a", "group_step", "row_step", "k_step", "b", "b_step"),
    *("c", "c_step", "d", "d_step", "e", "e_step"),
    *("ask", "ask_share", "lay_kind", "lay_from", "lay_step", "lay_deep", "lay_width", "lay_to"),
    *("then", "then_context", "row", "column"),
)
_KINDS = {name: "ptr" if name in _POINTERS else "i64" for name in _PARAMETERS}

_BYTES = 1 << 20  # that a part may lay out at a time
_SLOTS = 128  # how many parts may have such memory at a time; further ones wait for it

SCRATCH = f"""
!100 = distinct !{{!100, !101, !102}}
!101 = !{{!"llvm.loop.unroll.disable"}}
!102 = !{{!"llvm.loop.vectorize.enable", i1 false}}
declare ptr @malloc(i64)
@gemm_busy = internal global [{_SLOTS} x i64] zeroinitializer, align 64
@gemm_memory = internal global [{_SLOTS} x ptr] zeroinitializer, align 64

; The number of a slot with memory for one part, which is kept for later parts.
define internal i64 @gemm_take() noinline {{
entry:
  br label %look
look:
  %slot = phi i64 [0, %entry], [%next, %taken]
  %flag = getelementptr [{_SLOTS} x i64], ptr @gemm_busy, i64 0, i64 %slot
  %pair = cmpxchg ptr %flag, i64 0, i64 1 seq_cst seq_cst
  %mine = extractvalue {{i64, i1}} %pair, 1
  br i1 %mine, label %found, label %taken
taken:
  %up = add i64 %slot, 1
  %next = urem i64 %up, {_SLOTS}
  br label %look
found:
  %cell = getelementptr [{_SLOTS} x ptr], ptr @gemm_memory, i64 0, i64 %slot
  %old = load ptr, ptr %cell
  %none = icmp eq ptr %old, null
  br i1 %none, label %make, label %done
make:
  %made = call ptr @malloc(i64 {_BYTES + 4096})
  store ptr %made, ptr %cell
  br label %done
done:
  ret i64 %slot
}}

define internal void @gemm_give(i64 %slot) {{
  %flag = getelementptr [{_SLOTS} x i64], ptr @gemm_busy, i64 0, i64 %slot
  store atomic i64 0, ptr %flag seq_cst, align 8
  ret void
}}
"""


def print_panel(tiles: Tiles) -> str:
    """Print the tiles under one panel of B, all of its width, and meanwhile the panel that comes next.

    That is asked for at `ask` where it is in one piece (`ask_share` bytes for each group of rows and step of k);
    otherwise it is laid out at `lay_to`, a few rows after each group of tiles: asked for one group earlier, they are
    there by then.
    """
    parameters = [f"{kind} %{name}" for name, kind in _KINDS.items()]
    code = ProductBuilder(f"gemm_{tiles.suffix}_panel", parameters)
    vectors = code.ceil_div("%n", tiles.lanes)
    last = code.sub("%n", code.mul(code.sub(vectors, 1), tiles.lanes))
    has_then, column_end = code.let("icmp ne ptr %then, null"), code.add("%column", "%n")
    slices = _print_slices(code, tiles)
    start: Size = 0
    whole, is_split = start, "false"
    for height in tiles.heights:
        kernel = _print_kernel(code, tiles, height, vectors)
        end = code.add(start, code.mul(code.div(code.sub("%m", start), height), height))
        if height == tiles.rows:
            whole, is_split = end, _print_is_split(code, tiles)
            end = code.sub(whole, code.choose(is_split, height, 0))
        with code.loop(start, end, height) as i:
            group = code.div(i, tiles.rows)
            arguments = _tile_arguments(code, tiles, i, group, last, slices)
            row = code.add("%row", i)
            place = f"i64 {row}, i64 {code.add(row, height)}, i64 %column, i64 {column_end}"
            with code.when(has_then):  # it asks for what it will read
                code.line(f"call void %then(ptr %then_context, {place}, i64 1)")
            code.line(f"call void {kernel}({', '.join(f'{kind} {value}' for kind, value in arguments)})")
            with code.when(has_then):  # on what is in the first cache
                code.line(f"call void %then(ptr %then_context, {place}, i64 0)")
            if height == tiles.rows:
                _print_lay_call(code, tiles, group, slices)
        if height == tiles.rows:
            with code.when(is_split):  # the share of the next panel that belongs to the group that is cut
                _print_lay_call(code, tiles, code.sub(code.div(whole, height), 1), slices)
        start = end
    with code.when(code.compare("ne", code.rem("%m", tiles.rows), 0)):  # behind a last group that is not full
        _print_lay_call(code, tiles, code.div("%m", tiles.rows), slices)
    return code.text() + _print_lay(tiles)


def _print_is_split(code: Builder, tiles: Tiles) -> str:
    """Print the test whether the last tile of full height and the rows behind it are cut into lower tiles instead.

    Panels of A are as high as a tile, so each tile is in one of them.
    """
    left, is_split = code.rem("%m", tiles.rows), "false"
    for rows in tiles.split_rests:
        is_split = code.let(f"or i1 {is_split}, {code.compare('eq', left, rows)}")
    is_regular = code.compare("eq", "%group_step", code.mul("%row_step", tiles.rows))
    is_high = code.compare("sge", "%m", tiles.rows)
    return code.let(f"and i1 {is_split}, {code.let(f'and i1 {is_regular}, {is_high}')}")


def print_panel_call(code: Builder, tiles: Tiles, **values: str | int) -> None:
    """Call the function that computes the tiles under a panel; `values` are arguments by name (see `_PARAMETERS`)."""
    assert values.keys() == _KINDS.keys()
    code.call(f"gemm_{tiles.suffix}_panel", [(kind, values[name]) for name, kind in _KINDS.items()])


@dataclass(frozen=True)
class _Slices:
    """The slices of the next panel that are laid out beside the groups of tiles.

    Attributes:
        are_few: whether there are too few groups to do it bit by bit: they ask for all of it, and the last lays it out.
        rows: of the panel that are laid out after a group.
        first: the first group that does so.
    """

    are_few: str
    rows: Size
    first: Size


def _print_slices(code: Builder, tiles: Tiles) -> _Slices:
    groups, are_few = code.ceil_div("%m", tiles.rows), print_are_few(code, tiles, "%m")
    equal = code.round_up(code.ceil_div("%lay_deep", code.greatest(1, groups)), tiles.lanes)
    is_asked = code.let(f"and i1 {code.compare('eq', '%lay_kind', ROWS_OF_B)}, {code.let(f'xor i1 {are_few}, true')}")
    with code.when(is_asked):
        _print_ask_rows(code, tiles, "%lay_from", code.least(equal, "%lay_deep"))
    return _Slices(are_few, code.choose(are_few, "%lay_deep", equal), code.choose(are_few, code.sub(groups, 1), 0))


def _tile_arguments(
    code: Builder, tiles: Tiles, i: str, group: Size, last: Size, slices: _Slices
) -> list[tuple[str, str | int]]:
    e = tiles.element
    a = code.at(e, "%a", code.mul(group, "%group_step"), code.mul(code.rem(i, tiles.rows), "%row_step"))
    c = code.at(e, "%c", code.mul(i, "%c_step"))
    d, plus = (print_optional(code, e, f"%{x}", code.mul(i, f"%{x}_step")) for x in "de")
    is_apart = code.let(f"and i1 {slices.are_few}, {code.compare('eq', '%lay_kind', ROWS_OF_B)}")
    is_asking = code.let(f"and i1 {is_apart}, {code.compare('slt', group, tiles.vectors)}")
    start = "%lay_from"
    start = code.let(f"select i1 {is_apart}, ptr {start}, ptr %ask")
    whole = code.mul(code.mul(group, "%ask_share"), "%k")
    offset = code.choose(is_apart, code.mul(group, tiles.lanes * tiles.bytes), whole)
    step = code.choose(is_asking, code.mul("%lay_step", tiles.bytes), "%ask_share")
    line = code.let(f"getelementptr i8, ptr {start}, i64 {offset}")
    return [
        ("ptr", a), ("i64", "%row_step"), ("i64", "%k_step"), ("ptr", "%b"), ("i64", "%b_step"),
        ("ptr", c), ("i64", "%c_step"), ("ptr", d), ("i64", "%d_step"), ("ptr", plus),
        ("i64", "%e_step"), ("i64", "%k"), ("i64", last), ("ptr", line), ("i64", step),
    ]  # fmt: skip


def _print_lay_call(code: Builder, tiles: Tiles, group: Size, slices: _Slices) -> None:
    e = tiles.element
    start = code.mul(code.sub(group, slices.first), slices.rows)
    is_there = code.let(f"and i1 {code.compare('sge', start, 0)}, {code.compare('slt', start, '%lay_deep')}")
    with code.when(is_there):
        end = code.least("%lay_deep", code.add(start, slices.rows))
        arguments = [("i64", "%lay_kind"), ("ptr", "%lay_from"), ("i64", "%lay_step"), ("i64", start), ("i64", end)]
        code.call(f"gemm_{tiles.suffix}_lay_slice", [*arguments, ("i64", "%lay_width"), ("ptr", "%lay_to")])
        is_apart = code.compare("eq", "%lay_kind", ROWS_OF_B)
        with code.when(is_apart):
            rows = code.least(slices.rows, code.sub("%lay_deep", end))
            _print_ask_rows(code, tiles, code.at(e, "%lay_from", code.mul(end, "%lay_step")), rows)


def _print_lay(tiles: Tiles) -> str:
    """Print the functions that lay out some rows of a panel, and that prefetch the first ones."""
    e = tiles.element
    parameters = ["i64 %kind", "ptr %source", "i64 %step", "i64 %from", "i64 %until", "i64 %n", "ptr %out"]
    code = ProductBuilder(f"gemm_{tiles.suffix}_lay_slice", parameters, "noinline")
    rows, target = code.sub("%until", "%from"), code.at(e, "%out", code.mul("%from", tiles.columns))
    for kind, name, along in ((ROWS_OF_B, "rows", code.mul("%from", "%step")), (COLUMNS_OF_B, "columns", "%from")):
        with code.when(code.compare("eq", "%kind", kind)):
            arguments = [("ptr", code.at(e, "%source", along)), ("i64", "%step"), ("i64", rows), ("i64", "%n")]
            code.call(f"gemm_{tiles.suffix}_pack_{name}", [*arguments, ("ptr", target)])
    ask = ProductBuilder(f"gemm_{tiles.suffix}_ask_rows", ["ptr %source", "i64 %step", "i64 %rows"], "noinline")
    with ask.loop(0, "%rows") as p:
        for j in range(tiles.vectors):
            print_ask(ask, ask.at(e, "%source", ask.mul(p, "%step"), j * tiles.lanes))
    return code.text() + ask.text()


def print_columns(code: Builder, tiles: Tiles, get: Mapping[str, Size]) -> tuple[Size, Size]:
    """Print the first column of a part and the one behind its last: the numbers of panels of parts differ by one."""
    panels, place = code.ceil_div(get["n"], tiles.columns), code.rem("%part", get["across"])
    first, last = (code.div(code.mul(number, panels), get["across"]) for number in (place, code.add(place, 1)))
    return code.mul(first, tiles.columns), code.least(get["n"], code.mul(last, tiles.columns))


def print_lay(
    code: Builder, tiles: Tiles, kind: str, source: tuple[str, Size], size: tuple[Size, Size], target: str
) -> None:
    """Lay out a whole panel.

    Args:
        kind: of what: `ROWS_OF_B` or `COLUMNS_OF_B`.
        source: where that begins, and how far apart rows of B (or of its transpose) are.
        size: the panel's steps of k, and its columns.
    """
    (b, step), (deep, width) = source, size
    arguments = [("i64", kind), ("ptr", b), ("i64", step), ("i64", "0"), ("i64", deep), ("i64", width)]
    code.call(f"gemm_{tiles.suffix}_lay_slice", [*arguments, ("ptr", target)])


def _print_ask_rows(code: Builder, tiles: Tiles, source: str, rows: Size) -> None:
    arguments = [("ptr", source), ("i64", "%lay_step"), ("i64", rows)]
    code.call(f"gemm_{tiles.suffix}_ask_rows", arguments)


def _print_kernel(code: Builder, tiles: Tiles, height: int, vectors: Size) -> str:
    """Print the kernel of tiles of a height and of so many vectors, as a pointer: one place for all calls."""
    chosen = ""
    for wanted in range(1, tiles.vectors + 1):
        name = f"@{tiles.kernel(height, wanted)}"
        if height == tiles.rows:
            is_rows = code.compare("eq", "%k_step", 1)
            rows, panels = (f"@{tiles.kernel(height, wanted, layout)}" for layout in (ROWS_OF_A, PANELS_OF_A))
            name = code.choose(is_rows, rows, panels, "ptr")
        is_it = code.compare("eq", vectors, wanted)
        chosen = code.choose(is_it, name, chosen, "ptr") if chosen else name
    return chosen


def print_optional(code: Builder, element: str, pointer: str, offset: Size) -> str:
    """Print the address some elements further on; null stays null."""
    is_null = code.let(f"icmp eq ptr {pointer}, null")
    return code.let(f"select i1 {is_null}, ptr null, ptr {code.at(element, pointer, offset)}")


def print_scratch(code: Builder) -> tuple[str, str]:
    """Print memory for what a part lays out, at the start of a page, and the number of its slot, to be given back."""
    slot = code.let("call i64 @gemm_take()")
    cell = code.let(f"getelementptr [{_SLOTS} x ptr], ptr @gemm_memory, i64 0, i64 {slot}")
    memory = code.let(f"ptrtoint ptr {code.load('ptr', cell)} to i64")
    aligned = code.let(f"and i64 {code.add(memory, 4095)}, -4096")
    return code.let(f"inttoptr i64 {aligned} to ptr"), slot


def print_ask_share(code: Builder, tiles: Tiles, rows: Size) -> Size:
    """Print how many bytes each group of `rows` prefetches in each step of k, of a panel in one piece."""
    return code.div(tiles.columns * tiles.bytes, code.greatest(1, code.div(rows, tiles.rows)))


def print_are_few(code: Builder, tiles: Tiles, rows: Size) -> str:
    """Print the test whether a panel has few rows of A.

    Then the next one is laid out behind all of them, in the same memory.
    """
    return code.compare("sle", rows, _FEW_GROUPS * tiles.rows)
