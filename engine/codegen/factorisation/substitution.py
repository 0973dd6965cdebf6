"""Substitution by a lower triangle of at most 32 rows, in tiles of right sides that stay in registers.

A tile is some unknowns of a few vectors of right sides. The unknowns of the block that are known by then are subtracted
from it as in a product of matrices. Those of the tile itself follow one by one.
"""

from __future__ import annotations

from ..llvm.builder import Builder, FunctionBuilder, Size
from ..llvm.library import library
from ..llvm.registers import registers_of
from .blocks import BLOCK, cell

_VECTORS = 3  # of right sides
_HEIGHTS = (8, 4)  # unknowns of a tile: the first for which there are registers


def print_substitution(element: str, lanes: int) -> str:
    """Print ``substitute(square, rows, step, width, columns)``: solve for the rows of a block; the square is lower."""
    return _print_functions(element, lanes, "fdiv")


def print_substitution_by_inverses(element: str, lanes: int) -> str:
    """Print the same function for squares whose diagonals hold the inverses of their elements."""
    return _print_functions(element, lanes, "fmul")


def _print_functions(element: str, lanes: int, by_diagonal: str) -> str:
    parameters = ["ptr %square", "ptr %rows", "i64 %step", "i64 %width", "i64 %columns"]
    code = FunctionBuilder("substitute", parameters)
    start: Size = 0
    for vectors in (_VECTORS, 1):
        count = code.sub("%columns", start)
        stop = code.add(start, code.sub(count, code.rem(count, vectors * lanes)))
        with code.loop(start, stop, vectors * lanes) as column:
            _print_call(code, vectors, code.at(element, "%rows", column), "%step")
        start = stop
    rest = code.sub("%columns", start)
    with code.when(code.compare("sgt", rest, 0)):  # they become a whole vector, in memory of their own
        own, theirs = code.slot(f"[{BLOCK * lanes} x {element}]"), code.at(element, "%rows", start)
        code.clear(element, own, BLOCK * lanes)
        _print_copy(code, element, (theirs, "%step"), (own, lanes), rest)
        _print_call(code, 1, own, lanes)
        _print_copy(code, element, (own, lanes), (theirs, "%step"), rest)
    tiles = [_print_tiles(element, lanes, vectors, by_diagonal) for vectors in (_VECTORS, 1)]
    return "".join([*tiles, code.text()])


def _print_call(code: Builder, vectors: int, rows: str, step: Size) -> None:
    code.line(f"call void @substitute_{vectors}(ptr %square, ptr {rows}, i64 {step}, i64 %width)")


def _print_copy(code: Builder, element: str, source: tuple[str, Size], target: tuple[str, Size], columns: Size) -> None:
    """Print a copy of some columns, of addresses and steps from row to row."""
    (x, x_step), (y, y_step) = source, target
    with code.loop(0, "%width") as i:
        code.copy(element, code.at(element, x, code.mul(i, x_step)), code.at(element, y, code.mul(i, y_step)), columns)


def _print_tiles(element: str, lanes: int, vectors: int, by_diagonal: str) -> str:
    """Print ``substitute_V(square, rows, step, width)``: solve for V vectors of right sides."""
    parameters = ["ptr %square", "ptr %rows", "i64 %step", "i64 %width"]
    code = FunctionBuilder(f"substitute_{vectors}", parameters)
    most = registers_of(library.host, element).most_rows(_VECTORS)
    height = next(rows for rows in _HEIGHTS if rows <= most)
    start: Size = 0
    for rows in (height, 1):
        stop = code.sub("%width", code.rem("%width", rows))
        with code.loop(start, stop, rows) as i:
            _Tile(code, element, lanes, rows, vectors).print(i, by_diagonal)
        start = stop
    return code.text()


class _Tile:
    """The unknowns of a tile: `rows` of them, of `vectors` times `lanes` right sides."""

    def __init__(self, code: Builder, element: str, lanes: int, rows: int, vectors: int) -> None:
        self.code, self.element, self.lanes, self.rows, self.vectors = code, element, lanes, rows, vectors
        self.vector = f"<{lanes} x {element}>"
        self.sums = [[code.slot(self.vector) for _ in range(vectors)] for _ in range(rows)]

    def print(self, first: Size, by_diagonal: str) -> None:
        """Print the solution for the unknowns from `first` on, those before them being known."""
        code, vector = self.code, self.vector
        squares = [code.at(self.element, "%square", cell(code, code.add(first, row), 0)) for row in range(self.rows)]
        lines = [code.at(self.element, "%rows", code.mul(code.add(first, row), "%step")) for row in range(self.rows)]
        for line, sums in zip(lines, self.sums, strict=True):
            for value, place in zip(self._load(line), sums, strict=True):
                code.store(vector, value, place)
        with code.loop(0, first) as k:
            known = self._load(code.at(self.element, "%rows", code.mul(k, "%step")))
            for square, sums in zip(squares, self.sums, strict=True):
                self._subtract(code.load(self.element, square, k), known, sums)
        for row, (line, sums) in enumerate(zip(lines, self.sums, strict=True)):
            column = code.add(first, row)
            divisor = code.broadcast(self.lanes, self.element, code.load(self.element, squares[row], column))
            found = [code.let(f"{by_diagonal} {vector} {code.load(vector, place)}, {divisor}") for place in sums]
            for number, value in enumerate(found):
                code.store_vector(vector, self.element, value, line, number * self.lanes)
            for square, others in zip(squares[row + 1 :], self.sums[row + 1 :], strict=True):
                self._subtract(code.load(self.element, square, column), found, others)

    def _load(self, line: str) -> list[str]:
        places = range(0, self.vectors * self.lanes, self.lanes)
        return [self.code.load_vector(self.vector, self.element, line, place) for place in places]

    def _subtract(self, factor: str, values: list[str], sums: list[str]) -> None:
        """Subtract a multiple of vectors from sums."""
        code = self.code
        times = code.let(f"fneg {self.vector} {code.broadcast(self.lanes, self.element, factor)}")
        for value, place in zip(values, sums, strict=True):
            code.add_product(self.vector, place, times, value)
