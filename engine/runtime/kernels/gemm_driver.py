"""Matrix products as LLVM IR: cut into parts for threads, blocks for caches, and tiles for registers.

A part is a rectangle of the result. It goes over k in blocks; in each it lays out the rows of A that it needs (if A is
transposed; otherwise rows are read where they lie), then one panel of B after the other, and computes all tiles under
that panel. Parts and blocks depend on sizes and on how operands lie, and so does the order in which the terms of an
element are added: never on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from .gemm_code import Code
from .gemm_pack import print_packing
from .gemm_tile import PANELS_OF_A, ROWS_OF_A, Tiles, print_declarations, print_tile

VERSION = 17  # raise it whenever the printed code changes

ROWS, TRANSPOSED, PACKED = 0, 1, 2  # the forms of B

_SCRATCH = 1 << 20  # bytes that a part may lay out at a time
_SLOTS = 128  # how many parts may have such memory at a time; further ones wait for it
_MOST_ROWS = 256  # of A that are laid out at a time

# Terms of a block of k at most. Where blocks are deep, sums go back into C seldom; where they are not, a panel of B and
# the rows of A that it meets lie in the first two caches. Measured like the parts below.
_DEEP_LAID_OUT = 256  # where the rows of A are laid out, too,
_DEEP_FEW = 256  # or few
_FEW_ROWS = 64
_DEEP = 512
_DEEP_TURNED = 1024  # where laying out a panel of B means to transpose it

# Parts, measured on two cores of a server with AVX-512: work is m * n * k. Threads that are awake pay from some 10
# microseconds a part, and more parts than that make panels at their ends narrower.
_LEAST_SHARED = 1_000_000
_LEAST_PART = 500_000
_MOST_ACROSS = 8
_MOST_ACROSS_LAID_OUT = 4  # where each part lays out the rows of A anew,
_LEAST_BROAD = 512  # for at least so many columns
_MOST_PART_ROWS = 256
_FEW_TILES = 3  # on top of each other, for which rows of B that lie close together are read where they are
_MOST_PACKING = 8  # parts of the work of packing

_LETTERS = {"float": "s", "double": "d"}

_FIELDS = (
    *("m", "n", "k", "a", "row_step", "k_step", "b", "b_step", "form", "c", "c_step", "d", "d_step", "e", "e_step"),
    *("k_block", "part_rows", "part_columns", "across", "pack_a", "pack_b", "then", "then_context"),
)
_PARAMETERS = (
    "i64 %m, i64 %n, i64 %k, T* %a, i64 %a_step, i64 %a_transposed, T* %b, i64 %b_step, i64 %form, "
    "T* %c, i64 %c_step, T* %d, i64 %d_step, T* %e, i64 %e_step"
)
THEN = "void (i8*, i64, i64, i64, i64)*"

COMMON = f"""
!100 = distinct !{{!100, !101, !102}}
!101 = !{{!"llvm.loop.unroll.disable"}}
!102 = !{{!"llvm.loop.vectorize.enable", i1 false}}
declare i8* @malloc(i64)
declare void @llvm.prefetch.p0(i8*, i32, i32, i32)
@gemm_busy = internal global [{_SLOTS} x i64] zeroinitializer, align 64
@gemm_memory = internal global [{_SLOTS} x i8*] zeroinitializer, align 64

; The number of a slot with memory for one part, which is kept for later parts.
define internal i64 @gemm_take() noinline {{
entry:
  br label %look
look:
  %slot = phi i64 [0, %entry], [%next, %taken]
  %flag = getelementptr [{_SLOTS} x i64], [{_SLOTS} x i64]* @gemm_busy, i64 0, i64 %slot
  %pair = cmpxchg i64* %flag, i64 0, i64 1 seq_cst seq_cst
  %mine = extractvalue {{i64, i1}} %pair, 1
  br i1 %mine, label %found, label %taken
taken:
  %up = add i64 %slot, 1
  %next = urem i64 %up, {_SLOTS}
  br label %look
found:
  %cell = getelementptr [{_SLOTS} x i8*], [{_SLOTS} x i8*]* @gemm_memory, i64 0, i64 %slot
  %old = load i8*, i8** %cell
  %none = icmp eq i8* %old, null
  br i1 %none, label %make, label %done
make:
  %made = call i8* @malloc(i64 {_SCRATCH + 4096})
  store i8* %made, i8** %cell
  br label %done
done:
  ret i64 %slot
}}

define internal void @gemm_give(i64 %slot) {{
  %flag = getelementptr [{_SLOTS} x i64], [{_SLOTS} x i64]* @gemm_busy, i64 0, i64 %slot
  store atomic i64 0, i64* %flag seq_cst, align 8
  ret void
}}
"""


def print_products(tiles: Tiles) -> str:
    """All functions for one element type; called from elsewhere are `anabranch_{s,d}gemm`, `.._then` and `.._pack`."""
    sizes = [(rows, vectors) for rows in tiles.heights for vectors in range(1, tiles.vectors + 1)]
    kernels = [print_tile(tiles, *size) for size in sizes if size != (tiles.rows, tiles.vectors)]
    kernels += [print_tile(tiles, tiles.rows, tiles.vectors, layout) for layout in (ROWS_OF_A, PANELS_OF_A)]
    return "".join(
        [print_declarations(tiles), *kernels, print_packing(tiles), _print_panel(tiles), _print_part(tiles),
         _print_product(tiles), _print_pack(tiles)]
    )  # fmt: skip


def _print_panel(tiles: Tiles) -> str:
    """The tiles under one panel of B, all of its width."""
    e = tiles.element
    code = Code(
        f"gemm_{tiles.suffix}_panel(i64 %m, i64 %n, i64 %k, {e}* %a, i64 %group_step, i64 %row_step, i64 %k_step, "
        f"{e}* %b, i64 %b_step, {e}* %c, i64 %c_step, {e}* %d, i64 %d_step, "
        f"{e}* %e, i64 %e_step, {e}* %next, i64 %next_step, {THEN} %then, i8* %then_context, i64 %row, i64 %column)"
    )
    vectors = code.parts("%n", tiles.lanes)
    last = code.sub("%n", code.mul(code.sub(vectors, 1), tiles.lanes))
    has_then, column_end = code.let(f"icmp ne {THEN} %then, null"), code.add("%column", "%n")
    for wanted in range(1, tiles.vectors + 1):
        with code.when(code.test("eq", vectors, wanted)):
            start: str | int = 0
            for height in tiles.heights:
                end = code.add(start, code.mul(code.div(code.sub("%m", start), height), height))
                with code.loop(start, end, height) as i:
                    group = code.mul(code.div(i, tiles.rows), "%group_step")
                    a = code.at(e, "%a", group, code.mul(code.rem(i, tiles.rows), "%row_step"))
                    c = code.at(e, "%c", code.mul(i, "%c_step"))
                    d, plus = (_print_optional(code, e, f"%{x}", code.mul(i, f"%{x}_step")) for x in "de")
                    pointer = f"{e}*"
                    line, line_step = _print_line(code, tiles, code.div(i, tiles.rows))
                    arguments = [
                        (pointer, a), ("i64", "%row_step"), ("i64", "%k_step"), (pointer, "%b"), ("i64", "%b_step"),
                        (pointer, c), ("i64", "%c_step"), (pointer, d), ("i64", "%d_step"), (pointer, plus),
                        ("i64", "%e_step"), ("i64", "%k"), ("i64", last), ("i8*", line), ("i64", line_step),
                    ]  # fmt: skip
                    _print_tile_call(code, tiles, height, wanted, arguments)
                    with code.when(has_then):  # on what is in the first cache
                        row = code.add("%row", i)
                        place = f"i64 {row}, i64 {code.add(row, height)}, i64 %column, i64 {column_end}"
                        code.line(f"call void %then(i8* %then_context, {place})")
                start = end
    code.line("ret void")
    return code.text().replace("getelementptr inbounds", "getelementptr")


def _print_line(code: Code, tiles: Tiles, group: str) -> tuple[str, str]:
    """The memory of the next panel that a group of rows asks for, and how far apart in bytes, a line in each step of k.

    What lies in one piece is shared out evenly among the groups; of rows that lie apart the first groups ask for a
    vector each.
    """
    e = tiles.element
    is_whole = code.test("eq", "%next_step", tiles.columns)
    share = code.div(tiles.columns * tiles.bytes, code.most(1, code.div("%m", tiles.rows)))
    whole = code.mul(code.mul(group, share), "%k")
    row_step = code.mul("%next_step", tiles.bytes)
    is_asking = code.test("slt", group, tiles.vectors)
    offset = code.choose(is_whole, whole, code.mul(group, tiles.lanes * tiles.bytes))
    start = code.let(f"bitcast {e}* %next to i8*")
    step = code.choose(is_whole, share, code.choose(is_asking, row_step, 0))
    return code.let(f"getelementptr i8, i8* {start}, i64 {offset}"), step


def _print_tile_call(
    code: Code, tiles: Tiles, height: int, vectors: int, arguments: Sequence[tuple[str, str | int]]
) -> None:
    if (height, vectors) != (tiles.rows, tiles.vectors):
        code.call(tiles.kernel(height, vectors), arguments)
        return
    for layout, test in ((ROWS_OF_A, "eq"), (PANELS_OF_A, "ne")):
        with code.when(code.test(test, "%k_step", 1)):
            code.call(tiles.kernel(height, vectors, layout), arguments)


def _print_optional(code: Code, element: str, pointer: str, offset: str) -> str:
    """The address some elements further on; null stays null."""
    is_null = code.let(f"icmp eq {element}* {pointer}, null")
    return code.let(f"select i1 {is_null}, {element}* null, {element}* {code.at(element, pointer, offset)}")


def _print_part(tiles: Tiles) -> str:
    e = tiles.element
    code = Code(f"gemm_{tiles.suffix}_part(i8* %context, i64 %part)")
    fields = code.let("bitcast i8* %context to i64*")
    get = {name: code.load("i64", code.at("i64", fields, k)) for k, name in enumerate(_FIELDS)}
    a, b, c, d, plus = (code.let(f"inttoptr i64 {get[name]} to {e}*") for name in "abcde")
    follows = code.let(f"inttoptr i64 {get['then']} to {THEN}")
    then_context = code.let(f"inttoptr i64 {get['then_context']} to i8*")
    slot = code.let("call i64 @gemm_take()")
    cell = code.let(f"getelementptr [{_SLOTS} x i8*], [{_SLOTS} x i8*]* @gemm_memory, i64 0, i64 {slot}")
    memory = code.let(f"ptrtoint i8* {code.load('i8*', cell)} to i64")
    aligned = code.let(f"and i64 {code.add(memory, 4095)}, -4096")
    panel_of_b = code.let(f"inttoptr i64 {aligned} to {e}*")
    panels_of_a = code.at(e, panel_of_b, code.mul(get["k_block"], tiles.columns))

    row = code.mul(code.div("%part", get["across"]), get["part_rows"])
    row_end = code.least(get["m"], code.add(row, get["part_rows"]))
    column = code.mul(code.rem("%part", get["across"]), get["part_columns"])
    column_end = code.least(get["n"], code.add(column, get["part_columns"]))
    is_a_packed = code.test("ne", get["pack_a"], 0)
    height = code.choose(is_a_packed, _MOST_ROWS // tiles.rows * tiles.rows, get["m"])
    is_b_packed = code.test("eq", get["form"], PACKED)
    is_transposed = code.test("eq", get["form"], TRANSPOSED)
    wide = code.rounded(get["n"], tiles.columns)

    with code.loop(0, code.most(get["k"], 1), get["k_block"]) as p:
        deep = code.least(get["k_block"], code.sub(get["k"], p))
        is_first = code.test("eq", p, 0)
        added = code.let(f"select i1 {is_first}, {e}* {d}, {e}* {c}")
        added_step = code.choose(is_first, get["d_step"], get["c_step"])
        plus_now = code.let(f"select i1 {is_first}, {e}* {plus}, {e}* null")
        then = code.let(f"select i1 {code.test('sge', code.add(p, deep), get['k'])}, {THEN} {follows}, {THEN} null")
        with code.loop(row, row_end, height) as i:
            rows = code.least(height, code.sub(row_end, i))
            plain_a = code.at(e, a, code.mul(i, get["row_step"]), code.mul(p, get["k_step"]))
            with code.when(is_a_packed):
                code.call(
                    f"gemm_{tiles.suffix}_pack_a",
                    [(f"{e}*", plain_a), ("i64", get["k_step"]), ("i64", deep), ("i64", rows), (f"{e}*", panels_of_a)],
                )
            a_here = code.let(f"select i1 {is_a_packed}, {e}* {panels_of_a}, {e}* {plain_a}")
            group_step = code.choose(is_a_packed, code.mul(deep, tiles.rows), code.mul(get["row_step"], tiles.rows))
            row_step = code.choose(is_a_packed, 1, get["row_step"])
            k_step = code.choose(is_a_packed, tiles.rows, get["k_step"])
            with code.loop(column, column_end, tiles.columns) as j:
                width = code.least(tiles.columns, code.sub(column_end, j))
                is_cut = code.test("ne", code.rem(width, tiles.lanes), 0)
                wanted = code.let(f"or i1 {code.test('ne', get['pack_b'], 0)}, {is_cut}")
                lay_out = code.let(f"xor i1 {is_b_packed}, true")
                lay_rows = code.let(f"and i1 {code.let(f'and i1 {lay_out}, {wanted}')}, "
                                    f"{code.let(f'xor i1 {is_transposed}, true')}")  # fmt: skip
                along = code.choose(is_transposed, code.mul(j, get["b_step"]), j)
                down = code.choose(is_transposed, p, code.mul(p, get["b_step"]))
                plain_b = code.at(e, b, along, down)
                arguments = [(f"{e}*", plain_b), ("i64", get["b_step"]), ("i64", deep), ("i64", width),
                             (f"{e}*", panel_of_b)]  # fmt: skip
                with code.when(lay_rows):
                    code.call(f"gemm_{tiles.suffix}_pack_rows", arguments)
                with code.when(is_transposed):
                    code.call(f"gemm_{tiles.suffix}_pack_columns", arguments)
                ready = code.at(e, b, code.mul(p, wide), code.mul(j, deep))
                uses_panel = code.let(f"or i1 {lay_rows}, {is_transposed}")
                given = code.let(f"select i1 {is_b_packed}, {e}* {ready}, {e}* {plain_b}")
                b_here = code.let(f"select i1 {uses_panel}, {e}* {panel_of_b}, {e}* {given}")
                is_panel = code.let(f"or i1 {uses_panel}, {is_b_packed}")
                b_step = code.choose(is_panel, tiles.columns, get["b_step"])
                target = code.at(e, c, code.mul(i, get["c_step"]), j)
                next_panel, next_step = _print_next(code, tiles, get, b, (p, deep), (j, column, column_end), lay_rows)
                addend = _print_optional(code, e, added, code.add(code.mul(i, added_step), j))
                addend_2 = _print_optional(code, e, plus_now, code.add(code.mul(i, get["e_step"]), j))
                code.call(
                    f"gemm_{tiles.suffix}_panel",
                    [("i64", rows), ("i64", width), ("i64", deep), (f"{e}*", a_here), ("i64", group_step),
                     ("i64", row_step), ("i64", k_step), (f"{e}*", b_here), ("i64", b_step), (f"{e}*", target),
                     ("i64", get["c_step"]), (f"{e}*", addend), ("i64", added_step),
                     (f"{e}*", addend_2), ("i64", get["e_step"]), (f"{e}*", next_panel), ("i64", next_step),
                     (THEN, then), ("i8*", then_context), ("i64", i), ("i64", j)],
                )  # fmt: skip
    code.line(f"call void @gemm_give(i64 {slot})")
    code.line("ret void")
    return code.text().replace("getelementptr inbounds", "getelementptr")


def _print_next(
    code: Code,
    tiles: Tiles,
    get: dict[str, str],
    b: str,
    depth: tuple[str, str],
    across: tuple[str, str, str],
    lay_rows: str,
) -> tuple[str, str]:
    """Where the panel lies that comes after this one, which is asked for while this one is used, and its steps.

    Args:
        b: where B begins.
        depth: where this block of k begins, and how deep it is.
        across: where this panel begins, and where the columns of the part begin and end.
        lay_rows: whether panels are laid out from rows of B.
    """
    e, (p, deep), (j, column, column_end) = tiles.element, depth, across
    beside = code.add(j, tiles.columns)
    is_last = code.test("sge", beside, column_end)
    block = code.choose(is_last, code.add(p, deep), p)
    along = code.choose(is_last, column, beside)
    is_packed = code.test("eq", get["form"], PACKED)
    next_deep = code.least(get["k_block"], code.sub(get["k"], block))
    packed = code.add(code.mul(block, code.rounded(get["n"], tiles.columns)), code.mul(along, next_deep))
    plain = code.add(code.mul(block, get["b_step"]), along)
    step = code.choose(is_packed, tiles.columns, code.choose(lay_rows, get["b_step"], 0))
    is_there = code.test("slt", block, get["k"])
    offset = code.choose(is_there, code.choose(is_packed, packed, plain), 0)
    return code.at(e, b, offset), code.choose(is_there, step, 0)


def product_name(tiles: Tiles) -> str:
    """Of the function for products; see `gemm`."""
    return f"anabranch_{_LETTERS[tiles.element]}gemm"


def then_name(tiles: Tiles) -> str:
    """Of the function for products of which something follows; see `gemm`."""
    return f"{product_name(tiles)}_then"


def packing_name(tiles: Tiles) -> str:
    """Of the function that packs."""
    return f"anabranch_{_LETTERS[tiles.element]}pack"


def k_block(k: int, rows: int) -> int:
    """How many terms are added before a sum is put back into C, where B is packed: as `k` is cut into equal blocks."""
    blocks = max(1, -(-k // (_DEEP_FEW if rows < _FEW_ROWS else _DEEP)))
    return max(1, -(-k // blocks))


def _print_k_block(code: Code) -> str:
    """That of a product; of a packed B it is given in the place of its steps."""
    deep = code.choose(code.test("slt", "%m", _FEW_ROWS), _DEEP_FEW, _DEEP)
    deep = code.choose(code.test("eq", "%form", TRANSPOSED), _DEEP_TURNED, deep)
    deep = code.choose(code.test("ne", "%a_transposed", 0), _DEEP_LAID_OUT, deep)
    equal = code.most(1, code.parts("%k", code.most(1, code.parts("%k", deep))))
    return code.choose(code.test("eq", "%form", PACKED), code.most(1, "%b_step"), equal)


def _print_product(tiles: Tiles) -> str:
    e = tiles.element
    parameters = _PARAMETERS.replace("T", e)
    code = Code(f"{then_name(tiles)}({parameters}, {THEN} %then, i8* %then_context)", "")
    context = code.variable(f"[{len(_FIELDS)} x i64]")
    fields = code.let(f"bitcast [{len(_FIELDS)} x i64]* {context} to i64*")
    is_transposed = code.test("ne", "%a_transposed", 0)
    down, across = _print_parts(code, tiles)
    values = {
        "row_step": code.choose(is_transposed, 1, "%a_step"),
        "k_step": code.choose(is_transposed, "%a_step", 1),
        "k_block": _print_k_block(code),
        "part_rows": code.rounded(code.parts("%m", down), tiles.rows),
        "part_columns": code.rounded(code.parts("%n", across), tiles.columns),
        "pack_a": "%a_transposed",
        "pack_b": _print_needs_panels(code, tiles),
    }
    values["across"] = code.parts("%n", code.most(1, values["part_columns"]))
    for field in "abcde":
        values[field] = code.let(f"ptrtoint {e}* %{field} to i64")
    values["then"] = code.let(f"ptrtoint {THEN} %then to i64")
    values["then_context"] = code.let("ptrtoint i8* %then_context to i64")
    for k, field in enumerate(_FIELDS):
        code.store("i64", values.get(field, f"%{field}"), code.at("i64", fields, k))
    parts = code.mul(code.parts("%m", code.most(1, values["part_rows"])), values["across"])
    _print_parallel(code, f"gemm_{tiles.suffix}_part", fields, parts)
    plain = Code(f"{product_name(tiles)}({parameters})", "")
    plain.line(f"call void @{then_name(tiles)}({parameters}, {THEN} null, i8* null)")
    plain.line("ret void")
    return code.text() + plain.text()


def _print_parts(code: Code, tiles: Tiles) -> tuple[str, str]:
    """Into how many parts rows and columns are cut; by sizes alone, so that results are the same for any threads."""
    work = code.mul(code.mul("%m", "%n"), "%k")
    is_small = code.test("slt", work, _LEAST_SHARED)
    broad = code.least(_MOST_ACROSS_LAID_OUT, code.most(1, code.div("%n", _LEAST_BROAD)))
    most = code.choose(code.test("ne", "%a_transposed", 0), broad, _MOST_ACROSS)
    wanted = code.choose(is_small, 1, code.least(most, code.div(work, _LEAST_PART)))
    panels = code.most(1, code.parts("%n", tiles.columns))
    down = code.most(1, code.parts("%m", _MOST_PART_ROWS))
    across = code.least(wanted, panels)
    missing = code.parts(wanted, across)  # where columns are too few, rows are cut
    return code.most(1, code.least(code.most(down, missing), code.parts("%m", tiles.rows))), across


def _print_needs_panels(code: Code, tiles: Tiles) -> str:
    """Whether rows of B are laid out as panels: for few rows of A only if they lie so far apart that caches suffer."""
    is_far = code.test("sge", code.mul("%b_step", tiles.bytes), 4096)
    fewest = code.choose(is_far, tiles.rows, _FEW_TILES * tiles.rows)
    return code.choose(code.test("sgt", "%m", fewest), 1, 0)


def _print_parallel(code: Code, task: str, fields: str, parts: str) -> None:
    shared = code.let(f"bitcast i64* {fields} to i8*")
    code.call("anabranch_parallel", [("void (i8*, i64)*", f"@{task}"), ("i8*", shared), ("i64", parts)])
    code.line("ret void")


def _print_pack(tiles: Tiles) -> str:
    """All panels of B; see `PACKED`. A part of the work is some panels, in all blocks of k."""
    e = tiles.element
    names = ("n", "k", "block", "b", "b_step", "transposed", "out", "panels")
    parameters = f"i64 %n, i64 %k, i64 %block, {e}* %b, i64 %b_step, i64 %transposed, {e}* %out"
    code = Code(f"{packing_name(tiles)}({parameters})", "")
    context = code.variable(f"[{len(names)} x i64]")
    fields = code.let(f"bitcast [{len(names)} x i64]* {context} to i64*")
    panels = code.most(1, code.parts(code.parts("%n", tiles.columns), _MOST_PACKING))
    values = {name: code.let(f"ptrtoint {e}* %{name} to i64") for name in ("b", "out")} | {"panels": panels}
    for k, name in enumerate(names):
        code.store("i64", values.get(name, f"%{name}"), code.at("i64", fields, k))
    _print_parallel(code, f"gemm_{tiles.suffix}_pack_part", fields, code.parts("%n", code.mul(panels, tiles.columns)))
    return _print_pack_part(tiles, names) + code.text()


def _print_pack_part(tiles: Tiles, names: tuple[str, ...]) -> str:
    e = tiles.element
    code = Code(f"gemm_{tiles.suffix}_pack_part(i8* %context, i64 %part)")
    fields = code.let("bitcast i8* %context to i64*")
    for position, name in enumerate(names):
        address = code.at("i64", fields, position)
        code.line(f"%{name} = load i64, i64* {address}")
    b, out = (code.let(f"inttoptr i64 %{name} to {e}*") for name in ("b", "out"))
    start = code.mul(code.mul("%part", "%panels"), tiles.columns)
    end = code.least("%n", code.add(start, code.mul("%panels", tiles.columns)))
    wide = code.rounded("%n", tiles.columns)
    is_transposed = code.test("ne", "%transposed", 0)
    with code.loop(0, "%k", "%block") as p:
        deep = code.least("%block", code.sub("%k", p))
        with code.loop(start, end, tiles.columns) as j:
            width = code.least(tiles.columns, code.sub("%n", j))
            along = code.choose(is_transposed, code.mul(j, "%b_step"), j)
            down = code.choose(is_transposed, p, code.mul(p, "%b_step"))
            target = code.at(e, out, code.mul(p, wide), code.mul(j, deep))
            arguments = [(f"{e}*", code.at(e, b, along, down)), ("i64", "%b_step"), ("i64", deep), ("i64", width),
                         (f"{e}*", target)]  # fmt: skip
            with code.when(is_transposed):
                code.call(f"gemm_{tiles.suffix}_pack_columns", arguments)
            with code.when(code.let(f"xor i1 {is_transposed}, true")):
                code.call(f"gemm_{tiles.suffix}_pack_rows", arguments)
    code.line("ret void")
    return code.text()
