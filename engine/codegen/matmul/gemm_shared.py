"""Large matrix products, as LLVM IR: operands are laid out once, in blocks of k, for all parts of the result.

A is laid out for all parts if it is transposed, and otherwise B is (rows of A are read in place). Each part
computes a rectangle of the result for the present block, then lays out its share of the next block, in memory beside
the present one's: so threads wait for each other once a block. Where A is laid out, a part lays out panels of B by
itself, one while it uses the other: its rectangle has all rows that there are, or so many that this costs little.

Sums of several blocks wait in tiles that are in one piece: in the result their rows are often some power of two apart,
where few of them fit into a cache at a time.

After R. van de Geijn and T. Smith et al., Anatomy of High-Performance Many-Threaded Matrix Multiplication, IPDPS 2014.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..llvm.builder import Builder, Size
from ..llvm.tasks import print_parallel
from .gemm_code import PARAMETERS, ProductBuilder
from .gemm_forms import TRANSPOSED
from .gemm_panel import (
    COLUMNS_OF_B,
    NOTHING,
    ROWS_OF_B,
    print_ask_share,
    print_columns,
    print_lay,
    print_optional,
    print_panel_call,
    print_scratch,
)
from .gemm_tile import Tiles

_PART_ROWS = 256  # of A, which stay in the second cache while panels of B go by
_PART_ROWS_LAID_OUT = 512  # where each part lays out panels of B
_LEAST_PARTS = 32  # if there are panels enough: so the last ones keep nobody waiting for long
_MOST_ACROSS = 16
_MOST_SUMS = 1 << 22  # that wait in tiles
_MOST_WIDE = 4096  # rows and columns that are laid out at a time

_POINTERS = ("a", "b", "c", "d", "e", "sums", "laid_a", "laid_b", "next_a", "next_b", "next_laid_a", "next_laid_b")
_FIELDS = (
    *_POINTERS,
    *("m", "n", "deep", "next_deep", "row_step", "k_step", "b_step", "form", "c_step", "d_step", "e_step"),
    *("lay_a", "lay_b", "row", "column", "part_rows", "across", "parts", "then", "then_context"),
    *("is_first", "is_last", "has_sums"),
)

MEMORY = """
declare void @free(ptr)
@shared_busy = internal global i64 0, align 64
@shared_size = internal global i64 0
@shared_memory = internal global ptr null

; Memory of some bytes: what the last product left, where no other uses it. Null where there is none.
define internal ptr @shared_take(i64 %size) noinline {
entry:
  %pair = cmpxchg ptr @shared_busy, i64 0, i64 1 seq_cst seq_cst
  %mine = extractvalue {i64, i1} %pair, 1
  br i1 %mine, label %kept, label %other
kept:
  %old = load i64, ptr @shared_size
  %enough = icmp sle i64 %size, %old
  br i1 %enough, label %again, label %grow
again:
  %same = load ptr, ptr @shared_memory
  ret ptr %same
grow:
  %small = load ptr, ptr @shared_memory
  store ptr null, ptr @shared_memory ; before another thread is given the same place
  store i64 0, ptr @shared_size
  call void @free(ptr %small)
  %large = call ptr @malloc(i64 %size)
  %none = icmp eq ptr %large, null
  %has = select i1 %none, i64 0, i64 %size
  store ptr %large, ptr @shared_memory
  store i64 %has, ptr @shared_size
  br i1 %none, label %fail, label %done
fail:
  store atomic i64 0, ptr @shared_busy seq_cst, align 8
  ret ptr null
done:
  ret ptr %large
other:
  %own = call ptr @malloc(i64 %size)
  ret ptr %own
}

define internal void @shared_give(ptr %memory) noinline {
entry:
  %kept = load ptr, ptr @shared_memory
  %is_kept = icmp eq ptr %memory, %kept
  br i1 %is_kept, label %keep, label %drop
keep:
  store atomic i64 0, ptr @shared_busy seq_cst, align 8
  ret void
drop:
  call void @free(ptr %memory)
  ret void
}
"""


def shared_name(tiles: Tiles) -> str:
    """Return the name of the function for large products."""
    return f"gemm_{tiles.suffix}_shared"


def print_shared(tiles: Tiles) -> str:
    """Print ``i64 gemm_.._shared(the arguments of a product, then, context, k_block)``.

    It returns 0 if there was no memory for it.
    """
    return _print_lay_unit(tiles) + _print_part(tiles) + _print_product(tiles)


def _unit_of_a(tiles: Tiles) -> int:
    """Return the columns of a transposed A that are laid out in one go: as wide as a panel of B, or nearly."""
    return max(1, tiles.columns // tiles.rows) * tiles.rows


def _read(code: Builder) -> dict[str, str]:
    get = {name: code.load("i64", "%context", k) for k, name in enumerate(_FIELDS)}
    return get | {name: code.let(f"inttoptr i64 {get[name]} to ptr") for name in _POINTERS}


def _print_units(code: Builder, tiles: Tiles, get: Mapping[str, Size]) -> tuple[Size, Size]:
    """Print how many units of A, and of both operands, there are to lay out of a block."""
    of_a = code.mul(get["lay_a"], code.ceil_div(get["m"], _unit_of_a(tiles)))
    return of_a, code.add(of_a, code.mul(get["lay_b"], code.ceil_div(get["n"], tiles.columns)))


def _print_lay_unit(tiles: Tiles) -> str:
    """Lay out a unit of the next block."""
    e = tiles.element
    code = ProductBuilder(f"gemm_{tiles.suffix}_lay_unit", ["ptr %context", "i64 %unit"])
    get = _read(code)
    of_a, _ = _print_units(code, tiles, get)
    deep = get["next_deep"]
    is_a = code.compare("slt", "%unit", of_a)
    with code.when(is_a):
        i = code.mul("%unit", _unit_of_a(tiles))
        rows = code.least(_unit_of_a(tiles), code.sub(get["m"], i))
        source, target = code.at(e, get["next_a"], i), code.at(e, get["next_laid_a"], code.mul(i, deep))
        arguments = [("ptr", source), ("i64", get["k_step"]), ("i64", deep), ("i64", rows), ("ptr", target)]
        code.call(f"gemm_{tiles.suffix}_pack_a", arguments)
    with code.unless(is_a):
        j = code.mul(code.sub("%unit", of_a), tiles.columns)
        columns = code.least(tiles.columns, code.sub(get["n"], j))
        target = code.at(e, get["next_laid_b"], code.mul(j, deep))
        _print_lay_panel(code, tiles, get, (get["next_b"], j, columns, deep, target))
    return code.text()


def _print_part(tiles: Tiles) -> str:
    code = ProductBuilder(f"gemm_{tiles.suffix}_shared_part", ["ptr %context", "i64 %part"], flushes=True)
    get = _read(code)
    _, units = _print_units(code, tiles, get)
    wanted = code.choose(code.compare("sgt", get["next_deep"], 0), units, 0)
    first = code.div(code.mul("%part", wanted), get["parts"])
    end = code.div(code.mul(code.add("%part", 1), wanted), get["parts"])
    with code.when(code.compare("sgt", get["deep"], 0)):
        _print_rectangle(code, tiles, get)
    with code.loop(first, end) as unit:
        code.call(f"gemm_{tiles.suffix}_lay_unit", [("ptr", "%context"), ("i64", unit)])
    return code.text()


def _print_rectangle(code: Builder, tiles: Tiles, get: dict[str, str]) -> None:
    """Print the sums of a part over the terms of the present block."""
    e, deep = tiles.element, get["deep"]
    follows = code.let(f"inttoptr i64 {get['then']} to ptr")
    then_context = code.let(f"inttoptr i64 {get['then_context']} to ptr")
    row = code.mul(code.div("%part", get["across"]), get["part_rows"])
    rows = code.sub(code.least(get["m"], code.add(row, get["part_rows"])), row)
    column, column_end = print_columns(code, tiles, get)
    is_laid = code.compare("ne", get["lay_a"], 0)
    laid, plain = code.at(e, get["laid_a"], code.mul(row, deep)), code.at(e, get["a"], code.mul(row, get["row_step"]))
    a = code.choose(is_laid, laid, plain, "ptr")
    group_step = code.mul(code.choose(is_laid, deep, get["row_step"]), tiles.rows)
    row_step, k_step = code.choose(is_laid, 1, get["row_step"]), code.choose(is_laid, tiles.rows, 1)
    is_b_laid = code.compare("ne", get["lay_b"], 0)
    panels, slot = print_scratch(code)
    kind = code.choose(code.compare("eq", get["form"], TRANSPOSED), COLUMNS_OF_B, ROWS_OF_B)
    by_column = code.choose(code.compare("eq", get["form"], TRANSPOSED), get["b_step"], 1)
    size = code.mul(deep, tiles.columns)
    ask_share = code.choose(is_b_laid, print_ask_share(code, tiles, rows), 0)
    with code.unless(is_b_laid):
        width = code.least(tiles.columns, code.sub(column_end, column))
        _print_lay_panel(code, tiles, get, (get["b"], column, width, deep, panels))
    with code.loop(column, column_end, tiles.columns) as j:
        width, beside = code.least(tiles.columns, code.sub(column_end, j)), code.add(j, tiles.columns)
        odd = code.rem(code.div(code.sub(j, column), tiles.columns), 2)
        panel = code.at(e, panels, code.mul(odd, size))
        next_panel = code.at(e, panels, code.mul(code.sub(1, odd), size))
        is_beside = code.compare("slt", beside, column_end)
        next_kind = code.choose(is_b_laid, NOTHING, code.choose(is_beside, kind, NOTHING))
        next_width = code.least(tiles.columns, code.sub(column_end, beside))
        laid_b = code.at(e, get["laid_b"], code.mul(j, deep))
        b = code.choose(is_b_laid, laid_b, panel, "ptr")
        target = code.at(e, get["c"], code.mul(row, get["c_step"]), j)
        added = print_optional(code, e, get["d"], code.add(code.mul(row, get["d_step"]), j))
        sums = code.at(e, get["sums"], code.mul(j, code.round_up(get["m"], tiles.rows)), code.mul(row, tiles.columns))
        has_sums = code.compare("ne", get["has_sums"], 0)
        into_sums = code.let(f"and i1 {has_sums}, {code.compare('eq', get['is_last'], 0)}")
        from_sums = code.let(f"and i1 {has_sums}, {code.compare('eq', get['is_first'], 0)}")
        target = code.choose(into_sums, sums, target, "ptr")
        target_step = code.choose(into_sums, tiles.columns, get["c_step"])
        added = code.choose(from_sums, sums, added, "ptr")
        added_step = code.choose(from_sums, tiles.columns, get["d_step"])
        plus = print_optional(code, e, get["e"], code.add(code.mul(row, get["e_step"]), j))
        ask = code.at(e, get["laid_b"], code.mul(beside, deep))
        print_panel_call(
            code, tiles, m=rows, n=width, k=deep,
            a=a, group_step=group_step, row_step=row_step, k_step=k_step, b=b, b_step=tiles.columns,
            c=target, c_step=target_step, d=added, d_step=added_step, e=plus, e_step=get["e_step"],
            ask=ask, ask_share=ask_share,
            lay_kind=next_kind, lay_from=code.at(e, get["b"], code.mul(beside, by_column)), lay_step=get["b_step"],
            lay_deep=deep, lay_width=next_width, lay_to=next_panel,
            then=follows, then_context=then_context,
            row=code.add(row, get["row"]), column=code.add(j, get["column"]),
        )  # fmt: skip
    code.line(f"call void @gemm_give(i64 {slot})")


def _print_lay_panel(
    code: Builder, tiles: Tiles, get: dict[str, str], panel: tuple[str, Size, Size, Size, str]
) -> None:
    """Lay out a panel of B: of where a block begins, its first column, how many there are, its terms and the target."""
    b, j, width, deep, target = panel
    is_transposed = code.compare("eq", get["form"], TRANSPOSED)
    source = code.at(tiles.element, b, code.choose(is_transposed, code.mul(j, get["b_step"]), j))
    kind = code.choose(is_transposed, COLUMNS_OF_B, ROWS_OF_B)
    print_lay(code, tiles, kind, (source, get["b_step"]), (deep, width), target)


def _print_product(tiles: Tiles) -> str:
    given = [*PARAMETERS, "ptr %then", "ptr %then_context", "i64 %block"]
    code = ProductBuilder(shared_name(tiles), given, result="i64")
    lay_a = code.choose(code.compare("ne", "%a_transposed", 0), 1, 0)
    blocks = code.ceil_div("%k", "%block")
    block = code.ceil_div("%k", blocks)
    high = code.choose(code.compare("ne", lay_a, 0), code.least("%m", _MOST_WIDE), "%m")
    wide = code.least("%n", _MOST_WIDE)
    size_a = code.mul(code.mul(lay_a, code.round_up(high, tiles.rows)), block)
    lay_b = code.sub(1, lay_a)
    size_b = code.mul(code.mul(lay_b, code.round_up(wide, tiles.columns)), block)
    size = code.round_up(code.mul(code.add(size_a, size_b), tiles.bytes), 4096)
    is_several = code.compare("sgt", blocks, 1)
    several = code.choose(is_several, 2, 1)
    sums = code.mul(code.round_up(high, tiles.rows), code.round_up(wide, tiles.columns))
    has_sums = code.let(f"and i1 {is_several}, {code.compare('sle', sums, _MOST_SUMS)}")
    size_sums = code.choose(has_sums, code.mul(sums, tiles.bytes), 0)
    bytes_ = code.add(code.add(code.mul(size, several), 4096), size_sums)
    memory = code.let(f"call ptr @shared_take(i64 {bytes_})")
    found = code.let(f"icmp ne ptr {memory}, null")
    with code.when(found):
        start = code.let(f"and i64 {code.add(code.let(f'ptrtoint ptr {memory} to i64'), 4095)}, -4096")
        context = code.slot(f"[{len(_FIELDS)} x i64]", alignment=8)
        for name, value in (
            ("sums", code.add(start, code.mul(size, several))),
            ("has_sums", code.choose(has_sums, 1, 0)),
        ):
            code.store("i64", value, context, _FIELDS.index(name))
        with code.loop(0, "%m", high) as row, code.loop(0, "%n", wide) as column:
            _print_chunk(code, tiles, context, (row, high), (column, wide), (lay_a, lay_b, block, start, size, size_a))
        code.line(f"call void @shared_give(ptr {memory})")
    code.line(f"ret i64 {code.let(f'zext i1 {found} to i64')}")
    return code.text()


def _print_parts(code: Builder, tiles: Tiles, size: tuple[Size, Size], is_laid: str) -> tuple[Size, Size, Size]:
    """Print how the result is cut: rows of a part, parts beside each other, and all parts."""
    m, n = size
    most_rows = code.choose(is_laid, _PART_ROWS_LAID_OUT, _PART_ROWS)
    part_rows = code.round_up(code.ceil_div(m, code.ceil_div(m, most_rows)), tiles.rows)
    down = code.ceil_div(m, part_rows)
    panels = code.ceil_div(n, tiles.columns)
    across = code.least(panels, code.least(_MOST_ACROSS, code.ceil_div(_LEAST_PARTS, down)))
    return part_rows, across, code.mul(down, across)


def _print_chunk(
    code: Builder,
    tiles: Tiles,
    fields: str,
    down: tuple[Size, Size],
    across: tuple[Size, Size],
    laid: tuple[Size, Size, Size, Size, Size, Size],
) -> None:
    """Print a chunk of rows and columns, block by block of k; each block is laid out during the one before.

    Args:
        down: the first row and how many there are at most.
        across: the first column, likewise.
        laid: whether A is laid out, the terms of a block, where the memory begins, the bytes of a block and the
            elements of A in it.
    """
    e, (row, high), (column, wide), (lay_a, lay_b, block, start, size, size_a) = tiles.element, down, across, laid
    m, n = code.least(high, code.sub("%m", row)), code.least(wide, code.sub("%n", column))
    is_laid = code.compare("ne", lay_a, 0)
    row_step, k_step = code.choose(is_laid, 1, "%a_step"), code.choose(is_laid, "%a_step", 1)
    b_step_along = code.choose(code.compare("eq", "%form", TRANSPOSED), "%b_step", 1)
    b_step_down = code.choose(code.compare("eq", "%form", TRANSPOSED), 1, "%b_step")

    def put(**values: Size) -> None:
        for name, value in values.items():
            code.store("i64", value, fields, _FIELDS.index(name))

    def address(pointer: str, *offsets: Size) -> str:
        return code.let(f"ptrtoint ptr {code.at(e, pointer, *offsets)} to i64")

    def optional(pointer: str, *offsets: Size) -> str:
        total = code.add(*offsets)
        return code.let(f"ptrtoint ptr {print_optional(code, e, pointer, total)} to i64")

    part_rows, across_parts, parts = _print_parts(code, tiles, (m, n), is_laid)
    a_rows, b_columns = code.mul(row, row_step), code.mul(column, b_step_along)
    put(m=m, n=n, row_step=row_step, k_step=k_step, b_step="%b_step", form="%form", c_step="%c_step")
    put(lay_a=lay_a, lay_b=lay_b)
    put(row=row, column=column, part_rows=part_rows, across=across_parts)
    put(c=address("%c", code.mul(row, "%c_step"), column))
    put(then_context=code.let("ptrtoint ptr %then_context to i64"))
    get = {"lay_a": lay_a, "lay_b": lay_b, "m": m, "n": n}
    units = _print_units(code, tiles, get)[1]
    with code.loop(code.sub(0, block), "%k", block) as p:  # before the first block, it is laid out
        after = code.add(p, block)
        is_first, is_before = code.compare("eq", p, 0), code.compare("slt", p, 0)
        deep = code.choose(is_before, 0, code.least(block, code.sub("%k", p)))
        next_deep = code.greatest(0, code.least(block, code.sub("%k", after)))
        odd = code.rem(code.div(after, block), 2)  # which half of the memory the next block is in
        next_half = code.add(start, code.mul(odd, size))
        half = code.add(start, code.mul(code.sub(1, odd), size))
        bytes_a = code.mul(size_a, tiles.bytes)
        put(a=address("%a", a_rows, code.mul(p, k_step)), deep=deep, next_deep=next_deep)
        put(b=address("%b", b_columns, code.mul(p, b_step_down)))
        put(next_a=address("%a", a_rows, code.mul(after, k_step)), laid_a=half, laid_b=code.add(half, bytes_a))
        put(next_b=address("%b", b_columns, code.mul(after, b_step_down)))
        put(next_laid_a=next_half, next_laid_b=code.add(next_half, bytes_a))
        d = optional("%d", code.mul(row, "%d_step"), column)
        put(d=code.choose(is_first, d, address("%c", code.mul(row, "%c_step"), column)))
        put(d_step=code.choose(is_first, "%d_step", "%c_step"), e_step="%e_step")
        put(e=code.choose(is_first, optional("%e", code.mul(row, "%e_step"), column), "0"))
        is_last = code.compare("sge", after, "%k")
        put(then=code.choose(is_last, code.let("ptrtoint ptr %then to i64"), "0"))
        pieces = code.choose(is_before, units, parts)
        put(parts=pieces)
        put(is_first=code.choose(is_first, 1, 0), is_last=code.choose(is_last, 1, 0))
        print_parallel(code, f"gemm_{tiles.suffix}_shared_part", fields, pieces)
