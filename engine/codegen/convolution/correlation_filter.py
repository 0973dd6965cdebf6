"""Kernels of the gradients of convolutions in their filters.

Tiles of the gradient, some cells of the kernel times some filters, are summed in registers over the pixels of a block
of rows, and kept in memory between blocks. Parts of the images have sums of their own, which are added in the end; if
these would be large, parts also divide the tiles among them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ...common.quick_dataclass import dataclass
from ...ops.neural.window_geometry import Window
from ..host.scratch import NamedNumbers
from ..llvm.builder import Builder, FunctionBuilder, Size, taking
from ..llvm.compiler import Effort
from ..llvm.entry import Operand
from ..llvm.tasks import Fields, print_parallel, print_share
from .correlation import AXES, GEOMETRY, begin_run, print_padded_copy, print_source, print_unit, put_numbers

# What the code reads, in this order.
FILTER_FIELDS = (
    *GEOMETRY,
    *("parts", "image_parts", "tile_parts", "sum_parts", "group_panels", "panels", "tiles", "cells"),
    *("cotangents_address", "cotangents_size", "sums_address", "sums_size", "offsets_address", "scratch_bytes"),
)


@dataclass(frozen=True)
class FilterGradient(NamedNumbers, ABC):
    """The gradient of a correlation over images, channels last, in its kernel: all but what a tile is.

    Attributes:
        operands: x [batch, depth, height, width, channels], the cotangent and the result.
        element: the LLVM type.
        lanes: elements of a vector.
        cells: of the kernel, with their channels, in a tile.
        is_padded: whether windows reach out of the input.
    """

    operands: tuple[Operand, ...]
    element: str
    lanes: int
    cells: int
    is_padded: bool

    effort = Effort.PRINTED
    number_names = FILTER_FIELDS

    @property
    @abstractmethod
    def width(self) -> int:
        """The sums of a cell in a tile."""

    def cell_count(self, taps: int, channels: int) -> int:
        """Return how many cells the kernel has."""
        return taps * channels

    def padded_width(self, across: Window, columns: int, cells: int) -> int:
        """Return the cells of a row of the copy with padding, of which so many are read for so many columns."""
        del across, columns
        return cells

    @abstractmethod
    def cotangents_size(self, rows: int, columns: int, panels: int) -> int:
        """Return the elements of the copy of a block's cotangents."""

    @abstractmethod
    def print_copies(self, name: str) -> str:
        """Return the functions that copy input and cotangents."""

    @abstractmethod
    def print_offsets(self, name: str) -> str:
        """Return the function that finds where the cells of the kernel are in x, seen from the first one."""

    @abstractmethod
    def print_tile(self, name: str) -> str:
        """Return the function that adds the products of the pixels of a block to a tile."""

    @abstractmethod
    def print_cotangents(
        self, code: Builder, name: str, fields: Fields, cotangents: str, sizes: tuple[Size, Size]
    ) -> tuple[str, Size, Size]:
        """Return where the cotangents of a block are, and how many elements are from a row and a pixel to the next.

        They are copied if a tile can't read them as they are.

        Args:
            sizes: the rows and columns of the block.
        """

    @abstractmethod
    def print_sum(self, name: str) -> str:
        """Return the function that adds the sums of the parts, for some cells of the kernel."""

    def print_run(self, name: str) -> str:
        printed = [self.print_offsets(name), self.print_tile(name), _print_task(self, name), self.print_sum(name)]
        return "".join([self.print_copies(name), *printed, _print_run(self, name)])


@dataclass(frozen=True)
class FilterKernel(FilterGradient):
    """A gradient whose vectors are filters.

    Attributes:
        vectors: filters of a tile, in vectors.
        is_consecutive: whether the cells of a tile are channels side by side.
        is_uneven: whether the filters end inside of a tile.
    """

    vectors: int
    is_consecutive: bool
    is_uneven: bool

    @property
    def width(self) -> int:
        return self.lanes * self.vectors

    def cotangents_size(self, rows: int, columns: int, panels: int) -> int:
        return rows * columns * panels * self.width if self.is_uneven else 0

    def print_copies(self, name: str) -> str:
        return print_padded_copy(self.element, name) if self.is_padded or self.is_uneven else ""

    def print_offsets(self, name: str) -> str:
        """Print the offsets in x of the cells, with channels, from the first one; the last fills up tiles."""
        code = FunctionBuilder(f"{name}_offsets", ["ptr %numbers"])
        fields = Fields(code, "%numbers", FILTER_FIELDS)
        channels, pixel = fields["channels"], fields["pixel"]
        row = code.mul(fields["padded_width" if self.is_padded else "width"], pixel)
        lines = fields["padded_lines"] if self.is_padded else code.mul(fields["step_deep"], fields["height"])
        steps = (code.mul(lines, row), code.mul(fields["step_down"], row), code.mul(fields["step_across"], pixel))
        last = code.sub(fields["cells"], 1)
        table = fields.address("offsets_address")
        with code.loop(0, code.mul(fields["tiles"], self.cells)) as number:
            cell = code.least(number, last)
            rest = code.div(cell, channels)
            offset = code.sub(cell, code.mul(rest, channels))
            for axis, step in reversed(list(zip(AXES, steps, strict=True))):
                above = code.div(rest, fields[f"taps_{axis}"])
                tap = code.sub(rest, code.mul(above, fields[f"taps_{axis}"]))
                offset, rest = code.add(offset, code.mul(tap, step)), above
            code.store("i64", offset, table, number)
        return code.text()

    def print_tile(self, name: str) -> str:
        kind, lanes = self.element, self.lanes
        vector = f"<{lanes} x {kind}>"
        code = begin_filter_tile(name)
        places = [(cell, v) for cell in range(self.cells) for v in range(self.vectors)]
        sums = {place: code.slot(vector) for place in places}
        for (cell, v), slot in sums.items():
            loaded = code.load_vector(vector, kind, "%sums", cell * self.width + v * lanes)
            code.line(f"store {vector} {loaded}, ptr {slot}")
        shared = code.load("i64", "%offsets")
        if self.is_consecutive:
            offsets: list[Size] = [shared] * self.cells
        else:
            offsets = [code.load("i64", "%offsets", cell) for cell in range(self.cells)]
        with code.loop(0, "%lines") as line:
            x = code.at(kind, "%x", code.mul(line, "%line"))
            dy = code.at(kind, "%dy", code.mul(line, "%dy_line"))
            with code.loop(0, "%columns") as column:
                here = code.at(kind, x, code.mul(column, "%pixel"))
                cotangents = code.at(kind, dy, code.mul(column, "%dy_pixel"))
                factors = [code.load_vector(vector, kind, cotangents, v * lanes) for v in range(self.vectors)]
                for cell in range(self.cells):
                    place = code.at(kind, here, offsets[cell])
                    value = code.broadcast(lanes, kind, code.load(kind, place, cell if self.is_consecutive else 0))
                    for v, factor in enumerate(factors):
                        code.add_product(vector, sums[cell, v], value, factor)
        for (cell, v), slot in sums.items():
            value = code.let(f"load {vector}, ptr {slot}")
            code.store_vector(vector, kind, value, "%sums", cell * self.width + v * lanes)
        return code.text()

    def print_cotangents(
        self, code: Builder, name: str, fields: Fields, cotangents: str, sizes: tuple[Size, Size]
    ) -> tuple[str, Size, Size]:
        lines, count = sizes
        pixel: Size = code.mul(fields["groups"], fields["filters"])
        if self.is_uneven:
            cotangents, pixel = _print_even_cotangents(code, self, name, fields, cotangents, code.mul(lines, count))
        # There are blocks of columns where a block has one row: rows of cotangents are side by side.
        return cotangents, code.mul(count, pixel), pixel

    def print_sum(self, name: str) -> str:
        """Print the function that adds up the sums of the parts, for some cells of the kernel."""
        kind, width = self.element, self.width
        code, out, fields = begin_filter_sum(name)
        filters, tiles, sums = fields["filters"], fields["tiles"], fields.address("sums_address")
        all_filters, group_panels = code.mul(fields["groups"], filters), fields["group_panels"]
        first, last = print_share(code, fields["cells"], "%part", fields["sum_parts"])
        with code.loop(first, last) as cell, code.loop(0, fields["panels"]) as panel:
            place = code.mul(code.add(code.mul(panel, tiles, self.cells), cell), width)
            group = code.div(panel, group_panels)
            begin = code.mul(code.sub(panel, code.mul(group, group_panels)), width)
            target = code.at(kind, out, code.add(code.mul(cell, all_filters), code.mul(group, filters), begin))
            left = code.least(code.sub(filters, begin), width)
            source = code.at(kind, sums, place)
            whole = code.mul(code.div(left, self.lanes), self.lanes)
            for start, stop, lanes in ((0, whole, self.lanes), (whole, left, 1)):
                with code.loop(start, stop, lanes) as number:
                    total = print_total(code, self, lanes, code.at(kind, source, number), fields)
                    code.store_vector(f"<{lanes} x {kind}>", kind, total, target, number)
        return code.text()


def begin_filter_tile(name: str) -> FunctionBuilder:
    """Return the function of a tile, without its body."""
    sizes = ("lines", "line", "dy_line", "columns", "pixel", "dy_pixel")
    return FunctionBuilder(f"{name}_tile", taking(("x", "dy", "sums", "offsets"), sizes))


def _print_task(kernel: FilterGradient, name: str) -> str:
    """Print the function of a part: some tiles over some of the blocks of rows."""
    kind, size = kernel.element, kernel.cells * kernel.width
    code = FunctionBuilder(f"{name}_task", ["ptr %context", "i64 %part"], flushes=True)
    pointers = [code.load("i64", "%context", position) for position in (0, 1, 3)]
    x, dy = (code.let(f"inttoptr i64 {pointer} to ptr") for pointer in pointers[:2])
    fields = Fields(code, code.let(f"inttoptr i64 {pointers[2]} to ptr"), FILTER_FIELDS)
    image_part, tile_part = code.div("%part", fields["tile_parts"]), fields["tile_parts"]
    tile_part = code.let(f"srem i64 %part, {tile_part}")
    sums = code.at(kind, fields.address("sums_address"), code.mul(image_part, fields["sums_size"]))
    tiles = fields["tiles"]
    first, last = print_share(code, code.mul(tiles, fields["panels"]), tile_part, fields["tile_parts"])
    code.clear(kind, code.at(kind, sums, code.mul(first, size)), code.mul(code.sub(last, first), size))
    columns, stride, filters = fields["columns"], fields["stride_down"], code.mul(fields["groups"], fields["filters"])
    begin, end = print_share(code, fields["units"], image_part, fields["image_parts"])
    offsets = fields.address("offsets_address")
    with code.loop(begin, end) as unit:
        image, plane, block, column_block = print_unit(code, fields, unit)
        top, left = code.mul(block, fields["block"]), code.mul(column_block, fields["block_columns"])
        lines = code.least(code.sub(fields["rows"], top), fields["block"])
        count = code.least(code.sub(columns, left), fields["block_columns"])
        source, (_, row) = print_source(code, kernel.is_padded, name, fields, kind, x, (image, plane, top, left), lines)
        above = code.add(code.mul(code.add(code.mul(image, fields["planes"]), plane), fields["rows"]), top)
        cotangents = code.at(kind, dy, code.mul(code.add(code.mul(above, columns), left), filters))
        cotangents, dy_row, pixel = kernel.print_cotangents(code, name, fields, cotangents, (lines, count))
        steps = (code.mul(fields["stride_across"], fields["pixel"]), pixel)
        sizes = (lines, code.mul(row, stride), dy_row, count, *steps)
        with code.loop(first, last) as number:
            panel = code.div(number, tiles)
            tile = code.sub(number, code.mul(panel, tiles))
            group = code.div(panel, fields["group_panels"])
            seen = code.at(kind, source, code.mul(group, fields["channels"]))
            chosen = code.at(kind, cotangents, code.mul(panel, kernel.width))
            held = code.at(kind, sums, code.mul(number, size))
            own = code.at("i64", offsets, code.mul(tile, kernel.cells))
            code.call_on(f"{name}_tile", (seen, chosen, held, own), sizes)
    return code.text()


def _print_even_cotangents(
    code: Builder, kernel: FilterKernel, name: str, fields: Fields, cotangents: str, pixels: Size
) -> tuple[str, Size]:
    """Copy cotangents with zeros behind the last filter of a group; where they are, and the elements of a pixel."""
    kind, filters = kernel.element, fields["filters"]
    size = code.mul(fields["group_panels"], kernel.width)
    space = fields.address("cotangents_address")
    space = code.at(kind, space, code.mul("%part", fields["cotangents_size"]))
    count = code.mul(pixels, fields["groups"])
    code.call_on(f"{name}_copy", (cotangents, space), (0, count, count, filters, size, 0))
    return space, code.mul(fields["groups"], size)


def begin_filter_sum(name: str) -> tuple[FunctionBuilder, str, Fields]:
    """Return the function that adds up sums, without its body; the result, and the numbers."""
    code = FunctionBuilder(f"{name}_sum", ["ptr %context", "i64 %part"], flushes=True)
    out, numbers = (code.let(f"inttoptr i64 {code.load('i64', '%context', place)} to ptr") for place in (2, 3))
    return code, out, Fields(code, numbers, FILTER_FIELDS)


def print_total(code: Builder, kernel: FilterGradient, lanes: int, source: str, fields: Fields) -> str:
    """Print the sum of some elements over the parts, starting from those of the first part."""
    kind, vector = kernel.element, f"<{lanes} x {kernel.element}>"
    total = code.slot(vector, code.load_vector(vector, kind, source))
    with code.loop(1, fields["image_parts"]) as part:
        code.combine(vector, total, code.load_vector(vector, kind, source, code.mul(part, fields["sums_size"])))
    return code.load(vector, total)


def _print_run(kernel: FilterGradient, name: str) -> str:
    code, context = begin_run(kernel, name)
    fields = put_numbers(code, context, "%numbers", FILTER_FIELDS)
    code.call_on(f"{name}_offsets", ("%numbers",), ())
    print_parallel(code, f"{name}_task", context, fields["parts"])
    print_parallel(code, f"{name}_sum", context, fields["sum_parts"])
    return code.text()
