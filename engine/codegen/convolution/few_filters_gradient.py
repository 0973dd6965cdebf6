"""Kernels of the gradients of convolutions with few filters in these: vectors are channels, or pixels of a row.

Tiles are some cells of the kernel, each with all filters. Where vectors are channels, a cell is a tap with as many
channels as a vector has elements. Where they are pixels, it is a tap and a channel, and the elements of its sums are
added up in the end; channels of the input, and filters of the cotangent, are copied into rows of their own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from ...common.quick_dataclass import dataclass
from ...ops.neural.window_geometry import Window
from ..llvm.builder import Builder, FunctionBuilder, Size
from ..llvm.registers import Registers
from ..llvm.tasks import Fields, print_share
from .correlation import print_padded_copy
from .correlation_filter import FILTER_FIELDS, FilterGradient, begin_filter_sum, begin_filter_tile, print_total
from .few_filters import elements_summed, print_copy_by_channel

_MOST_CELLS = 10  # of a tile, the places of which are kept in registers


@dataclass(frozen=True)
class _FewFiltersGradient(FilterGradient):
    """Base of both.

    Attributes:
        filters: how many there are.
    """

    filters: int

    @property
    def width(self) -> int:
        return self.lanes * self.filters

    def print_offsets(self, name: str) -> str:
        code = FunctionBuilder(f"{name}_offsets", ["ptr %numbers"])
        fields = Fields(code, "%numbers", FILTER_FIELDS)
        row = code.mul(fields["padded_width" if self.is_padded else "width"], fields["pixel"])
        lines = fields["padded_lines"] if self.is_padded else code.mul(fields["step_deep"], fields["height"])
        last, count = code.sub(fields["cells"], 1), self.cells_of_tap(code, fields)
        table = fields.address("offsets_address")
        with code.loop(0, code.mul(fields["tiles"], self.cells)) as number:
            cell = code.least(number, last)
            tap = code.div(cell, count)
            line = code.div(tap, fields["taps_across"])
            plane = code.div(line, fields["taps_down"])
            across = code.sub(tap, code.mul(line, fields["taps_across"]))
            down = code.sub(line, code.mul(plane, fields["taps_down"]))
            begin = code.add(code.mul(plane, lines, row), code.mul(down, fields["step_down"], row))
            inside = self.print_place(code, fields, across, code.sub(cell, code.mul(tap, count)))
            code.store("i64", code.add(begin, inside), table, number)
        return code.text()

    def print_sum(self, name: str) -> str:
        kind, (code, out, fields) = self.element, begin_filter_sum(name)
        sums, count = fields.address("sums_address"), self.cells_of_tap(code, fields)
        first, last = print_share(code, fields["cells"], "%part", fields["sum_parts"])
        with code.loop(first, last) as cell:
            tap = code.div(cell, count)
            number = code.sub(cell, code.mul(tap, count))
            for filter_ in range(self.filters):
                source = code.at(kind, sums, code.mul(cell, self.width), filter_ * self.lanes)
                total = print_total(code, self, self.lanes, source, fields)
                self.print_result(code, fields, (tap, number, filter_), total, out)
        return code.text()

    @abstractmethod
    def cells_of_tap(self, code: Builder, fields: Fields) -> Size:
        """Return how many cells a tap has."""

    @abstractmethod
    def print_place(self, code: Builder, fields: Fields, tap: Size, number: Size) -> Size:
        """Return the elements from the first cell of the row to one with the number, of a tap in the row."""

    @abstractmethod
    def print_result(self, code: Builder, fields: Fields, cell: tuple[Size, Size, int], total: str, out: str) -> None:
        """Store the sums of a tap, of a cell of it, and of a filter."""


@dataclass(frozen=True)
class ChannelVectorsGradient(_FewFiltersGradient):
    """A gradient whose vectors are channels, of which there are at least as many as a vector has elements."""

    def cell_count(self, taps: int, channels: int) -> int:
        return taps * -(-channels // self.lanes)

    def cotangents_size(self, rows: int, columns: int, panels: int) -> int:
        del rows, columns, panels
        return 0

    def print_copies(self, name: str) -> str:
        return print_padded_copy(self.element, name) if self.is_padded else ""

    def cells_of_tap(self, code: Builder, fields: Fields) -> Size:
        return code.ceil_div(fields["channels"], self.lanes)

    def print_place(self, code: Builder, fields: Fields, tap: Size, number: Size) -> Size:
        # The last vector has channels of the one before it, and finds the same for them.
        channel = code.least(code.mul(number, self.lanes), code.sub(fields["channels"], self.lanes))
        return code.add(code.mul(tap, fields["step_across"], fields["pixel"]), channel)

    def print_tile(self, name: str) -> str:
        kind, filters = self.element, self.filters
        code = begin_filter_tile(name)
        sums, offsets = _print_sums(code, self), [code.load("i64", "%offsets", cell) for cell in range(self.cells)]
        with code.loop(0, "%lines") as line:
            x = code.at(kind, "%x", code.mul(line, "%line"))
            dy = code.at(kind, "%dy", code.mul(line, "%dy_line"))
            with code.loop(0, "%columns") as column:
                here = code.at(kind, x, code.mul(column, "%pixel"))
                cotangents = code.at(kind, dy, code.mul(column, filters))
                factors = [code.broadcast(self.lanes, kind, code.load(kind, cotangents, k)) for k in range(filters)]
                _print_products(code, self, here, (offsets, factors, sums), "")
        _print_stores(code, self, sums)
        return code.text()

    def print_cotangents(
        self, code: Builder, name: str, fields: Fields, cotangents: str, sizes: tuple[Size, Size]
    ) -> tuple[str, Size, Size]:
        del name, fields
        return cotangents, code.mul(sizes[1], self.filters), self.filters

    def print_result(self, code: Builder, fields: Fields, cell: tuple[Size, Size, int], total: str, out: str) -> None:
        kind, (tap, number, filter_) = self.element, cell
        channel = code.least(code.mul(number, self.lanes), code.sub(fields["channels"], self.lanes))
        place = code.mul(code.add(code.mul(tap, fields["channels"]), channel), self.filters)
        target = code.at(kind, out, place, filter_)
        values = code.slot(f"<{self.lanes} x {kind}>", total)
        with code.loop(0, self.lanes) as lane:
            code.store(kind, code.load(kind, values, lane), target, code.mul(lane, self.filters))


@dataclass(frozen=True)
class PixelVectorsGradient(_FewFiltersGradient):
    """A gradient whose vectors are pixels of a row. `is_padded` is always true: the input is copied.

    Attributes:
        channels: how many there are.
        stride: from a window to the next, along a row.
    """

    channels: int
    stride: int

    def padded_width(self, across: Window, columns: int, cells: int) -> int:
        """Return the cells that vectors read, the last of which may reach beyond the last column."""
        ahead = (across.kernel - 1) * across.dilation // self.stride
        return max(-(-cells // self.stride), self._padded_columns(columns) + ahead) * self.stride

    def _padded_columns(self, columns: int) -> int:
        return -(-columns // self.lanes) * self.lanes

    def cotangents_size(self, rows: int, columns: int, panels: int) -> int:
        return rows * panels * self._padded_columns(columns) * self.filters

    def print_copies(self, name: str) -> str:
        steps = {f"{name}_copy": self.stride * self.channels, f"{name}_copy_cotangents": self.filters}
        return "".join(print_copy_by_channel(self.element, self.lanes, step, each) for each, step in steps.items())

    def cells_of_tap(self, code: Builder, fields: Fields) -> Size:
        return self.channels

    def print_place(self, code: Builder, fields: Fields, tap: Size, number: Size) -> Size:
        cell = code.mul(tap, fields["step_across"])
        ahead = code.div(cell, self.stride)
        phase = code.sub(cell, code.mul(ahead, self.stride))
        row = code.add(code.mul(phase, self.channels), number)
        return code.add(code.mul(row, code.div(fields["padded_width"], self.stride)), ahead)

    def print_tile(self, name: str) -> str:
        kind, lanes = self.element, self.lanes
        vector = f"<{lanes} x {kind}>"
        code = begin_filter_tile(name)
        sums, offsets = _print_sums(code, self), [code.load("i64", "%offsets", cell) for cell in range(self.cells)]
        whole = code.mul(code.div("%columns", lanes), lanes)
        numbers = ", ".join(f"i64 {lane}" for lane in range(lanes))
        left = code.broadcast(lanes, "i64", str(code.sub("%columns", whole)))
        is_column = code.let(f"icmp slt <{lanes} x i64> <{numbers}>, {left}")

        def add_products(x: str, dy: str, column: Size, mask: str) -> None:
            cotangents = code.at(kind, dy, column)
            factors = [
                code.load_vector(vector, kind, code.at(kind, cotangents, code.mul("%dy_pixel", k)))
                for k in range(self.filters)
            ]
            _print_products(code, self, code.at(kind, x, column), (offsets, factors, sums), mask)

        with code.loop(0, "%lines") as line:
            x = code.at(kind, "%x", code.mul(line, "%line"))
            dy = code.at(kind, "%dy", code.mul(line, "%dy_line"))
            with code.loop(0, whole, lanes) as column:
                add_products(x, dy, column, "")
            # Behind the last column cotangents are zero, but what they would multiply may be infinite.
            with code.when(code.compare("slt", whole, "%columns")):
                add_products(x, dy, whole, is_column)
        _print_stores(code, self, sums)
        return code.text()

    def print_cotangents(
        self, code: Builder, name: str, fields: Fields, cotangents: str, sizes: tuple[Size, Size]
    ) -> tuple[str, Size, Size]:
        kind, (lines, count) = self.element, sizes
        filter_ = code.round_up(count, self.lanes)
        row = code.mul(filter_, self.filters)
        space = fields.address("cotangents_address")
        space = code.at(kind, space, code.mul("%part", fields["cotangents_size"]))
        read = code.mul(count, self.filters)
        code.call_on(f"{name}_copy_cotangents", (cotangents, space), (0, lines, lines, read, row, 0))
        return space, row, filter_

    def print_result(self, code: Builder, fields: Fields, cell: tuple[Size, Size, int], total: str, out: str) -> None:
        kind, (tap, channel, filter_) = self.element, cell
        place = code.mul(code.add(code.mul(tap, self.channels), channel), self.filters)
        found = elements_summed(code, kind, self.lanes, [total])
        code.store_vector(f"<1 x {kind}>", kind, found, out, code.add(place, filter_))


def cells_of_tile(cells: int, filters: int, registers: Registers) -> int:
    """Return the cells of a tile: those with which all take the fewest cycles."""
    most = max(1, min(registers.sums // filters, registers.count - filters - 1, _MOST_CELLS, cells))

    def cycles(rows: int) -> float:
        return -(-cells // rows) * (max(rows * filters / 2, (rows + filters) / 2, 4.0) + 1.0)

    return min(range(1, most + 1), key=cycles)


def _print_sums(code: Builder, kernel: _FewFiltersGradient) -> list[str]:
    """Return slots of the sums of a tile, cell by cell, with what they are so far."""
    vector = f"<{kernel.lanes} x {kernel.element}>"
    places = range(0, kernel.cells * kernel.width, kernel.lanes)
    return [code.slot(vector, code.load_vector(vector, kernel.element, "%sums", place)) for place in places]


def _print_stores(code: Builder, kernel: _FewFiltersGradient, sums: list[str]) -> None:
    vector = f"<{kernel.lanes} x {kernel.element}>"
    for number, slot in enumerate(sums):
        value = code.let(f"load {vector}, ptr {slot}")
        code.store_vector(vector, kernel.element, value, "%sums", number * kernel.lanes)


def _print_products(
    code: Builder,
    kernel: _FewFiltersGradient,
    here: str,
    operands: tuple[Sequence[str], Sequence[str], Sequence[str]],
    mask: str,
) -> None:
    """Add the products of each cell and each filter to the sums.

    Args:
        here: where the first cell is.
        operands: the offsets of cells, the factors of filters, and the sums.
        mask: which elements of the cells to take, or none.
    """
    kind, lanes = kernel.element, kernel.lanes
    vector, (offsets, factors, sums) = f"<{lanes} x {kind}>", operands
    for cell, offset in enumerate(offsets):
        value = code.load_vector(vector, kind, here, offset)
        if mask:
            value = code.let(f"select <{lanes} x i1> {mask}, {vector} {value}, {vector} zeroinitializer")
        for filter_, factor in enumerate(factors):
            code.add_product(vector, sums[cell * len(factors) + filter_], value, factor)
