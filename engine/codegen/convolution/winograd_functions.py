"""The functions of Winograd's minimal filtering that do not depend on how many products a kernel sums at once.

All kernels of a tile call them, whatever their panels and what follows: they are modules that are compiled once.
"""

from __future__ import annotations

from collections.abc import Callable

from ...common.quick_dataclass import dataclass
from ..llvm.builder import Builder, FunctionBuilder, Size, taking
from ..llvm.compiler import Effort
from .transforms import TAPS, TRANSFORMS, Matrix, Transforms, print_on_both_axes, transposed


@dataclass(frozen=True)
class TileFunctions:
    """Some functions of the tiles of images, in vectors of channels.

    Attributes:
        element: the LLVM type.
        lanes: elements of a vector.
        tile: results of a tile along each axis.
        parts: the functions, of those of `_PRINTERS`.
    """

    element: str
    lanes: int
    tile: int
    parts: tuple[str, ...]

    effort = Effort.PRINTED

    @property
    def transforms(self) -> Transforms:
        return TRANSFORMS[self.tile]

    @property
    def vector(self) -> str:
        return f"<{self.lanes} x {self.element}>"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.name(part) for part in self.parts)

    def name(self, part: str) -> str:
        """Return the name of a function."""
        return f"winograd_{self.element}_{self.lanes}_{self.tile}_{part}"

    def print_declarations(self) -> str:
        lines: list[str] = []
        for part in self.parts:
            pointers, sizes, _ = _PRINTERS[part]
            types = ["ptr"] * len(pointers) + ["i64"] * len(sizes)
            lines.append(f"declare void @{self.name(part)}({', '.join(types)})\n")
        return "".join(lines)

    def print_functions(self) -> str:
        return "".join(self._print(part) for part in self.parts)

    def _print(self, part: str) -> str:
        pointers, sizes, print_body = _PRINTERS[part]
        parameters = taking(pointers, sizes)
        code = FunctionBuilder(self.name(part), parameters, linkage="")
        print_body(code, self)
        return code.text()


def convolution_functions(element: str, lanes: int, tile: int) -> TileFunctions:
    """Return the functions that convolutions call."""
    return TileFunctions(element, lanes, tile, ("table", "taps", "input", "back"))


def gradient_functions(element: str, lanes: int, tile: int) -> TileFunctions:
    """Return the functions that gradients in the taps call beside those of convolutions."""
    return TileFunctions(element, lanes, tile, ("output", "gradient"))


def _print_table(code: Builder, tiles: TileFunctions) -> None:
    """Fill a table of the cells of a tile, in bytes from its first one, which has a row and a column in the image."""
    del tiles
    with code.loop(0, "%cells") as down:
        row = code.add("%first_row", down)
        above, below = code.compare("sge", row, 0), code.compare("slt", row, "%rows")
        is_row = code.let(f"and i1 {above}, {below}")
        start, line = code.mul(down, "%cells"), code.mul(down, "%line")
        with code.loop(0, "%cells") as across:
            column = code.add("%first_column", across)
            left, right = code.compare("sge", column, 0), code.compare("slt", column, "%columns")
            is_there = code.let(f"and i1 {is_row}, {code.let(f'and i1 {left}, {right}')}")
            place = code.choose(is_there, code.add(line, code.mul(across, "%pixel")), "%outside")
            code.store("i64", place, "%table", code.add(start, across))


def _print_taps(code: Builder, tiles: TileFunctions) -> None:
    """Transform the taps of a vector of filters of one channel; where it is less than a vector, others are zero."""
    kind, lanes, vector, count = tiles.element, tiles.lanes, tiles.vector, TAPS * TAPS
    held = code.slot(f"[{count * lanes} x {kind}]")
    taps = [(down, across) for down in range(TAPS) for across in range(TAPS)]
    sources = [code.at(kind, "%weights", code.add(code.mul("%down", a), code.mul("%across", b))) for a, b in taps]
    is_full, is_dense = code.compare("sge", "%left", lanes), code.compare("eq", "%filter", 1)
    is_quick = code.let(f"and i1 {is_full}, {is_dense}")
    with code.when(is_quick):
        for number, source in enumerate(sources):
            code.store_vector(vector, kind, code.load_vector(vector, kind, source), held, number * lanes)
    with code.unless(is_quick):
        last = code.greatest(code.sub("%left", 1), 0)
        with code.loop(0, lanes) as lane:
            place = code.mul(code.least(lane, last), "%filter")
            is_there = code.compare("slt", lane, "%left")
            for number, source in enumerate(sources):
                value = code.let(f"select i1 {is_there}, {kind} {code.load(kind, source, place)}, {kind} 0.0")
                code.store(kind, value, held, code.add(lane, number * lanes))
    loaded = [code.load_vector(vector, kind, held, number * lanes) for number in range(count)]
    square = [loaded[start : start + TAPS] for start in range(0, count, TAPS)]
    made = print_on_both_axes(code, kind, lanes, tiles.transforms.weights, square)
    for number, value in enumerate(value for row in made for value in row):
        code.store_vector(vector, kind, value, "%target", code.mul("%place", number))


def _print_input(code: Builder, tiles: TileFunctions) -> None:
    """Transform one tile of the input of a convolution."""
    _print_transform(code, tiles, tiles.transforms.input)


def _print_output(code: Builder, tiles: TileFunctions) -> None:
    """Transform one tile of a cotangent."""
    _print_transform(code, tiles, transposed(tiles.transforms.back))


def _print_transform(code: Builder, tiles: TileFunctions, matrix: Matrix) -> None:
    """Transform one tile, for some vectors of channels.

    The cells are the numbers of bytes of a table behind the first one. The last vector ends with the last channel.
    """
    kind, lanes, vector = tiles.element, tiles.lanes, tiles.vector
    cells = len(matrix[0])
    last = code.sub("%channels", lanes)
    with code.loop(0, "%vectors") as number:
        channel = code.least(code.mul(number, lanes), last)
        here = code.at(kind, "%x", channel)
        addresses = [[_cell(code, here, i * cells + j) for j in range(cells)] for i in range(cells)]
        values = [[code.load_vector(vector, kind, address) for address in row] for row in addresses]
        target = code.at(kind, "%target", code.mul(number, "%step"))
        made = print_on_both_axes(code, kind, lanes, matrix, values)
        for place, value in enumerate(value for row in made for value in row):
            code.store_vector(vector, kind, value, target, code.mul("%place", place))


def _cell(code: Builder, base: str, number: int) -> str:
    """Return the address of a cell of a table."""
    return code.at("i8", base, code.load("i64", "%table", number))


def _print_back(code: Builder, tiles: TileFunctions) -> None:
    """Transform the products of one tile back, for all filters; results outside the image go to what is never read."""
    kind, lanes, vector, matrix = tiles.element, tiles.lanes, tiles.vector, tiles.transforms.back
    cells = len(matrix[0])
    with code.loop(0, "%panels") as panel, code.loop(0, "%vectors") as v:
        filter_ = code.mul(code.add(code.mul(panel, "%vectors"), v), lanes)
        left = code.sub("%filters", filter_)
        with code.when(code.compare("sgt", left, 0)):
            source = code.at(kind, "%products", code.add(code.mul(panel, "%step"), code.mul(v, lanes)))
            places = [[code.mul("%place", i * cells + j) for j in range(cells)] for i in range(cells)]
            values = [[code.load_vector(vector, kind, source, place) for place in row] for row in places]
            made = [value for row in print_on_both_axes(code, kind, lanes, matrix, values) for value in row]
            here = code.at(kind, "%out", filter_)
            with code.when(code.compare("sge", left, lanes)):
                for number, value in enumerate(made):
                    code.store_vector(vector, kind, value, _cell(code, here, number))
            with code.when(code.compare("slt", left, lanes)):
                held = code.slot(f"[{len(made) * lanes} x {kind}]")
                for number, value in enumerate(made):
                    code.store_vector(vector, kind, value, held, number * lanes)
                for number in range(len(made)):
                    code.copy(kind, code.at(kind, held, number * lanes), _cell(code, here, number), left)


def _print_gradient(code: Builder, tiles: TileFunctions) -> None:
    """Add up the shares of the sums of one channel and a vector of filters, and transform them into taps."""
    kind, lanes, vector, cells = tiles.element, tiles.lanes, tiles.vector, tiles.transforms.cells
    slots = [code.slot(vector) for _ in range(cells * cells)]
    for slot in slots:
        code.line(f"store {vector} zeroinitializer, ptr {slot}")
    with code.loop(0, "%shares") as share:
        source = code.at(kind, "%sums", code.mul(share, "%share"))
        for number, slot in enumerate(slots):
            value = code.load_vector(vector, kind, source, code.mul("%place", number))
            total = code.let(f"load {vector}, ptr {slot}")
            code.line(f"store {vector} {code.let(f'fadd {vector} {total}, {value}')}, ptr {slot}")
    values = [code.let(f"load {vector}, ptr {slot}") for slot in slots]
    square = [values[start : start + cells] for start in range(0, cells * cells, cells)]
    made = print_on_both_axes(code, kind, lanes, transposed(tiles.transforms.weights), square)
    assert len(made) == TAPS
    for number, value in enumerate(value for row in made for value in row):
        code.store_vector(vector, kind, value, "%out", code.mul("%tap", number))


# By the part of a function's name: its pointers, its sizes, and what prints its body.
_Printer = Callable[[Builder, TileFunctions], None]
_TABLE_SIZES = ("cells", "first_row", "first_column", "rows", "columns", "line", "pixel", "outside")
_TRANSFORM = ("x", "table", "target"), ("channels", "vectors", "step", "place")
_PRINTERS: dict[str, tuple[tuple[str, ...], tuple[str, ...], _Printer]] = {
    "table": (("table",), _TABLE_SIZES, _print_table),
    "taps": (("weights", "target"), ("down", "across", "filter", "left", "place"), _print_taps),
    "input": (*_TRANSFORM, _print_input),
    "output": (*_TRANSFORM, _print_output),
    "back": (("products", "out", "table"), ("filters", "panels", "vectors", "step", "place"), _print_back),
    "gradient": (("sums", "out"), ("shares", "share", "place", "tap"), _print_gradient),
}


def print_cells(
    code: Builder,
    functions: TileFunctions,
    table: str,
    cells: int,
    first: tuple[Size, Size],
    sizes: tuple[Size, Size],
    steps: tuple[Size, Size, Size],
) -> None:
    """Call the function that fills a table of the cells of a tile.

    Args:
        code: of the caller.
        functions: of which it is one.
        table: where the table is.
        cells: of the tile along each axis.
        first: the row and the column of the first cell.
        sizes: the rows and the columns of the image; cells outside are at the last of `steps`.
        steps: the bytes from a row to the next, from a pixel to the next, and from the first cell to what stands for
            cells outside.
    """
    code.call_on(functions.name("table"), (table,), (cells, *first, *sizes, *steps))
