"""Many small products of matrices, as LLVM IR: each a few tiles held in registers, for sizes that are known.

A form is printed for the sizes and strides of one product; where the products are, and how many there are, it is given
when it runs. Products, or rows of them where there are few, are dealt out in parts that depend on sizes alone, and the
terms of an element are added in an order that depends on the form alone: so results are the same for any number of
threads.

Rows of B are read where they are, unless they are so far apart that caches suffer; its columns are laid out as rows
first, panel by panel. For fewer rows of A than that pays for, elements are sums over vectors of both (`_print_dots`).
"""

from __future__ import annotations

from collections.abc import Iterator

from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ..llvm.builder import BYTES, Builder, Size, masked_load, masked_store
from ..llvm.registers import Registers
from ..llvm.tasks import print_parallel
from .gemm_code import ProductBuilder
from .gemm_pack import print_packing
from .gemm_tile import Tiles, print_declarations

FIELDS = ("part_units", "units", "parts", "chunks", "chunk_rows")  # numbers that are read, before those of the axes
AXIS_FIELDS = 4  # the size of an axis of products, and its steps in A, B and C

_MOST_VECTORS = 4  # of a tile
_MOST_ROWS = 12
_MOST_UNROLLED = 96  # multiplications of vectors
_FEW_ROWS = 24  # for which rows of B are read where they are
_FEW_FAR_ROWS = 8
_FAR = 1024  # bytes from row to row
_MOST_DOT_ROWS = 2
_DOTS_TOGETHER = 4

# What is known of the loops of `Code`.
LOOPS = """
!100 = distinct !{!100, !101, !102}
!101 = !{!"llvm.loop.unroll.disable"}
!102 = !{!"llvm.loop.vectorize.enable", i1 false}
"""


@dataclass(frozen=True)
class BatchForm:
    """The form of products that is printed as one function.

    Attributes:
        element: the LLVM type of elements.
        registers: of the host.
        rows, columns, terms: the sizes of a product.
        a: the steps of A along rows and terms.
        b: the steps of B along terms and columns, one of which is 1.
        c: the step of C along rows; along columns it is 1.
        axes: how many axes of products there are.
        is_cut: whether the rows of a product are dealt out in chunks.
    """

    element: str
    registers: Registers
    rows: int
    columns: int
    terms: int
    a: tuple[int, int]
    b: tuple[int, int]
    c: int
    axes: int
    is_cut: bool

    @property
    def is_turned(self) -> bool:
        """Test whether the columns of B are contiguous, and not its rows."""
        return self.b[1] != 1

    @property
    def has_dots(self) -> bool:
        """Test whether elements of the result are computed one by one."""
        return self.is_turned and self.a[1] == 1 and self.rows <= _MOST_DOT_ROWS

    @property
    def tiles(self) -> Tiles:
        """Its tiles: of vectors as short as the columns allow."""
        size = BYTES[self.element]
        wanted = self.terms if self.has_dots else self.columns
        lanes = min(self.registers.lanes, max(16 // size, 1 << (wanted - 1).bit_length()))
        rows, vectors = best_tile(self.rows, -(-self.columns // lanes), self.registers)
        return Tiles(self.element, lanes, rows, vectors)

    @property
    def has_panels(self) -> bool:
        """Test whether B is laid out before it is read."""
        if self.is_turned:
            return True
        tiles = self.tiles
        if self.registers.lanes * tiles.bytes < 32 and self.columns % tiles.lanes:
            return True  # the host has no loads of parts of vectors
        is_far = self.b[0] * tiles.bytes >= _FAR
        is_large = self.terms * tiles.columns * tiles.bytes > (machine_profile().first_cache_bytes // 4)
        return is_large and self.rows > (_FEW_FAR_ROWS if is_far else _FEW_ROWS)


def best_tile(rows: int, vectors: int, registers: Registers) -> tuple[int, int]:
    """Return the rows and vectors of tiles with which a product of that many of both takes the fewest steps.

    >>> best_tile(64, 4, Registers(16, 26))
    (6, 4)
    """
    found = [
        (_cost(rows, vectors, height, width), height, width)
        for width in range(1, min(vectors, _MOST_VECTORS) + 1)
        for height in range(1, min(rows, _MOST_ROWS, registers.most_rows(width)) + 1)
    ]
    _, height, width = min(found)
    return height, width


def _cost(rows: int, vectors: int, height: int, width: int) -> tuple[int, int]:
    """Estimate the cycles of one step of all sums, and then the loads."""
    cycles = loads = 0
    for own_rows in _pieces(rows, height):
        for own_vectors in _pieces(vectors, width):
            count = own_rows[1] * own_vectors[1]
            cycles += count * max(own_rows[0] * own_vectors[0], 8)
            loads += count * (own_rows[0] + own_vectors[0])
    return cycles, loads


def _pieces(total: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the pieces into which `total` is cut: (size, how many)."""
    if total >= size:
        yield size, total // size
    if total % size:
        yield total % size, 1


def print_batch(form: BatchForm, name: str) -> str:
    """Print the module with ``void @name(a, b, c, ptr numbers)``; numbers are `FIELDS`, then those of the axes."""
    tiles = form.tiles
    packing = (
        "" if form.has_dots or not form.has_panels else print_packing(tiles).replace(f"@gemm_{tiles.suffix}_", "@")
    )
    product = _print_dots(form) if form.has_dots else _print_product(form)
    v = tiles.vector
    reduce = f"declare {tiles.element} @llvm.vector.reduce.fadd.v{tiles.lanes}{tiles.suffix}({tiles.element}, {v})\n"
    start = print_start(FIELDS.index("parts"), name)
    return "".join([LOOPS, print_declarations(tiles), reduce, packing, product, _print_task(form), start])


def print_start(parts_field: int, name: str) -> str:
    """Print the function ``name(a, b, c, numbers)``, which deals out the parts of a function ``task``."""
    code = ProductBuilder(name, ["ptr %a", "ptr %b", "ptr %c", "ptr %numbers"], linkage="")
    context = code.slot("[4 x i64]", alignment=8)
    for k, pointer in enumerate(("%a", "%b", "%c", "%numbers")):
        code.store("i64", code.let(f"ptrtoint ptr {pointer} to i64"), context, k)
    parts = code.load("i64", "%numbers", parts_field)
    print_parallel(code, "task", context, parts)
    return code.text()


def print_task_head(code: Builder, fields: tuple[str, ...]) -> tuple[list[str], str, dict[str, str]]:
    """Print the start of a part; return the places of the operands, its numbers, and those of `fields` by name."""
    addresses = [code.load("i64", "%context", k) for k in range(4)]
    places = [code.let(f"inttoptr i64 {address} to ptr") for address in addresses[:3]]
    numbers = code.let(f"inttoptr i64 {addresses[3]} to ptr")
    return places, numbers, {field: code.load("i64", numbers, k) for k, field in enumerate(fields)}


def print_places(
    code: Builder, element: str, places: list[str], number: Size, numbers: str, first: int, axes: int
) -> list[str]:
    """Print the places of a product's operands, by its number; the axes' numbers begin with the number `first`."""
    for axis in reversed(range(axes)):
        size, *steps = (code.load("i64", numbers, first + AXIS_FIELDS * axis + k) for k in range(AXIS_FIELDS))
        index = code.rem(number, size) if axis else number
        number = code.div(number, size) if axis else number
        places = [code.at(element, place, code.mul(index, step)) for place, step in zip(places, steps, strict=True)]
    return places


def _print_task(form: BatchForm) -> str:
    """Print the products of one part."""
    e = form.element
    code = ProductBuilder("task", ["ptr %context", "i64 %part"], flushes=True)
    places, numbers, get = print_task_head(code, FIELDS)
    first = code.mul("%part", get["part_units"])
    last = code.least(get["units"], code.add(first, get["part_units"]))
    with code.loop(first, last) as unit:
        row, row_end, number = "0", str(form.rows), unit
        if form.is_cut:
            row = code.mul(code.rem(unit, get["chunks"]), get["chunk_rows"])
            row_end = code.least(form.rows, code.add(row, get["chunk_rows"]))
            number = code.div(unit, get["chunks"])
        own = print_places(code, e, places, number, numbers, len(FIELDS), form.axes)
        code.call_on("product", own, (row, row_end))
    return code.text()


# --- tiles ----------------------------------------------------------------------------------------------------------


def _print_product(form: BatchForm) -> str:
    """Print rows from `row` to before `row_end` of one product."""
    tiles, e = form.tiles, form.element
    texts: dict[str, str] = {}
    code = ProductBuilder("product", ["ptr noalias %a", "ptr noalias %b", "ptr noalias %c", "i64 %row", "i64 %row_end"])
    panel = code.slot(f"[{form.terms * tiles.columns + 16} x {e}]") if form.has_panels else ""
    wide = form.columns // tiles.columns * tiles.columns
    with code.loop(0, wide, tiles.columns) as j:
        _print_panel(code, form, panel, j, tiles.columns, texts)
    if form.columns % tiles.columns:
        _print_panel(code, form, panel, str(wide), form.columns % tiles.columns, texts)
    return "".join(texts.values()) + code.text()


def _print_panel(code: Builder, form: BatchForm, panel: str, column: str, width: int, texts: dict[str, str]) -> None:
    """Print all tiles under `width` columns of B."""
    tiles, e = form.tiles, form.element
    b = code.at(e, "%b", code.mul(column, form.b[1]))
    if form.has_panels:
        step = form.b[1] if form.is_turned else form.b[0]
        code.call(
            "pack_columns" if form.is_turned else "pack_rows",
            [("ptr", b), ("i64", step), ("i64", form.terms), ("i64", width), ("ptr", panel)],
        )
        b = panel
    whole = form.rows // tiles.rows * tiles.rows

    def print_rows(height: int, row: str) -> None:
        name = f"tile_{height}x{width}"
        if name not in texts:
            texts[name] = _print_tile(form, name, height, width)
        a = code.at(e, "%a", code.mul(row, form.a[0]))
        c = code.at(e, "%c", code.mul(row, form.c), column)
        code.call(name, [("ptr", a), ("ptr", b), ("ptr", c)])

    with code.loop("%row", code.least("%row_end", whole), tiles.rows) as i:
        print_rows(tiles.rows, i)
    if whole < form.rows:
        with code.when(code.compare("eq", "%row_end", form.rows)):
            print_rows(form.rows - whole, str(whole))


def _print_tile(form: BatchForm, name: str, height: int, width: int) -> str:
    """Print ``(a, b, c)``: a tile of that many rows and columns."""
    tiles, e = form.tiles, form.element
    v, lanes = tiles.vector, tiles.lanes
    vectors = -(-width // lanes)
    cut = width % lanes
    work = height * vectors * form.terms
    attribute = "noinline" if work > _MOST_UNROLLED else "alwaysinline"
    code = ProductBuilder(name, ["ptr noalias %a", "ptr noalias %b", "ptr noalias %c"], attribute)
    mask = _mask(lanes, cut)
    grid = [(i, j) for i in range(height) for j in range(vectors)]
    step = tiles.columns if form.has_panels else form.b[0]

    def print_term(p: Size, sums: dict[tuple[int, int], str]) -> dict[tuple[int, int], str]:
        row = code.at(e, "%b", code.mul(p, step))
        loaded: list[str] = []
        for j in range(vectors):
            is_cut = cut and j == vectors - 1 and not form.has_panels
            loaded.append(_load(code, tiles, code.at(e, row, j * lanes), mask if is_cut else ""))
        column = code.at(e, "%a", code.mul(p, form.a[1]))
        result: dict[tuple[int, int], str] = {}
        for i in range(height):
            value = code.load(e, code.at(e, column, i * form.a[0]))
            repeated = code.broadcast(lanes, e, value)
            for j in range(vectors):
                result[i, j] = code.let(
                    f"call {v} @llvm.fmuladd.v{lanes}{tiles.suffix}({v} {repeated}, {v} {loaded[j]}, {v} {sums[i, j]})"
                )
        return result

    sums = dict.fromkeys(grid, "zeroinitializer")
    if work <= _MOST_UNROLLED:
        for p in range(form.terms):
            sums = print_term(p, sums)
    else:
        slots = {cell: code.slot(v) for cell in grid}
        for slot in slots.values():
            code.store(v, "zeroinitializer", slot)
        with code.loop(0, form.terms) as p:
            sums = print_term(p, {cell: code.load(v, slot) for cell, slot in slots.items()})
            for cell, slot in slots.items():
                code.store(v, sums[cell], slot)
        sums = {cell: code.load(v, slot) for cell, slot in slots.items()}
    for i, j in grid:
        place = code.at(e, "%c", i * form.c + j * lanes)
        _store(code, tiles, sums[i, j], place, mask if cut and j == vectors - 1 else "")
    return code.text()


def _mask(lanes: int, count: int) -> str:
    """Return the mask of the first `count` lanes."""
    return f"<{', '.join(f'i1 {int(k < count)}' for k in range(lanes))}>"


def _load(code: Builder, tiles: Tiles, place: str, mask: str) -> str:
    """Return a vector, or the lanes of a mask of it, with zeros in the others."""
    if not mask:
        return code.load_vector(tiles.vector, tiles.element, place)
    return code.let(masked_load(tiles.lanes, tiles.element, place, mask, "zeroinitializer"))


def _store(code: Builder, tiles: Tiles, value: str, place: str, mask: str) -> None:
    if mask:
        code.line(masked_store(tiles.lanes, tiles.element, value, place, mask))
    else:
        code.store_vector(tiles.vector, tiles.element, value, place)


# --- single elements ------------------------------------------------------------------------------------------------


def _print_dots(form: BatchForm) -> str:
    """Print rows of a product whose elements are computed a few at a time, in lanes that are added at the end."""
    e = form.element
    code = ProductBuilder("product", ["ptr noalias %a", "ptr noalias %b", "ptr noalias %c", "i64 %row", "i64 %row_end"])
    whole = form.columns // _DOTS_TOGETHER * _DOTS_TOGETHER
    with code.loop("%row", "%row_end") as i:
        a = code.at(e, "%a", code.mul(i, form.a[0]))
        c = code.at(e, "%c", code.mul(i, form.c))
        with code.loop(0, whole, _DOTS_TOGETHER) as j:
            _print_dots_of(code, form, a, c, j, _DOTS_TOGETHER)
        with code.loop(whole, form.columns) as j:
            _print_dots_of(code, form, a, c, j, 1)
    return code.text()


def _print_dots_of(code: Builder, form: BatchForm, a: str, c: str, column: str, count: int) -> None:
    tiles, e = form.tiles, form.element
    v, lanes = tiles.vector, tiles.lanes
    b = code.at(e, "%b", code.mul(column, form.b[1]))
    places = [code.at(e, b, k * form.b[1]) for k in range(count)]
    slots = [code.slot(v) for _ in range(count)]
    whole = form.terms // lanes * lanes
    mask = _mask(lanes, form.terms - whole)

    def print_term(p: Size, own: str) -> None:
        x = _load(code, tiles, code.at(e, a, p), own)
        for place, slot in zip(places, slots, strict=True):
            y = _load(code, tiles, code.at(e, place, p), own)
            before = code.load(v, slot)
            total = f"call {v} @llvm.fmuladd.v{lanes}{tiles.suffix}({v} {x}, {v} {y}, {v} {before})"
            code.store(v, code.let(total), slot)

    for slot in slots:
        code.store(v, "zeroinitializer", slot)
    with code.loop(0, whole, lanes) as p:
        print_term(p, "")
    if whole < form.terms:
        print_term(str(whole), mask)
    for k, slot in enumerate(slots):
        lanes_of = code.load(v, slot)
        total = code.let(f"call reassoc {e} @llvm.vector.reduce.fadd.v{lanes}{tiles.suffix}({e} -0.0, {v} {lanes_of})")
        code.store(e, total, code.at(e, c, column, k))
