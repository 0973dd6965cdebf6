"""Kernels of convolutions: tiles of the result, some pixels of a row times some filters, are summed in registers.

Images have planes, rows and columns; those without planes, or rows, have one. The filters of a group see its channels
only: each panel belongs to one group.

For a tile, each tap and channel adds the outer product of its pixels and its filters. No columns are copied: pixels are
read in place. Filters are laid in panels as wide as a tile beforehand, padded with zeros. Input that is padded is
copied with its padding, some rows at a time that stay in the cache.

The transpose in the input is the same kernel with taps turned, and channels and filters exchanged; where windows are
strides apart, once for each place between strides (`phases`).

Source: E. Georganas et al., "Anatomy of high-performance deep learning convolutions on SIMD architectures" (2018).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from ...common.quick_dataclass import dataclass
from ..host.scratch import addresses_among
from ..llvm.builder import Builder, FunctionBuilder, Size, taking
from ..llvm.compiler import Effort
from ..llvm.entry import Kernel, Operand
from ..llvm.tasks import Fields, begin_run_function, print_parallel, print_share

# What the code of each of these kernels reads: sizes, of channels and filters those of a group; how the work is cut up,
# and where the copies with padding are.
GEOMETRY = (
    *("batch", "groups", "channels", "filters", "planes", "rows", "columns", "depth", "height", "width", "pixel"),
    *("taps_deep", "taps_down", "taps_across", "step_deep", "step_down", "step_across"),
    *("stride_deep", "stride_down", "stride_across", "before_deep", "before_down", "before_across"),
    *("block", "blocks", "block_columns", "column_blocks", "units", "padded_width", "padded_lines"),
    *("rows_address", "rows_size"),
)
WEIGHTS = ("start", "deep", "down", "across", "channel", "filter", "group")
AXES = ("deep", "down", "across")
RESULT = ("start", "image", "plane", "row", "pixel")
# What the code reads of a phase, in this order.
FIELDS = (
    *GEOMETRY,
    *("parts", "panels", "panel_size", "panel_address"),
    *(f"weight_{step}" for step in WEIGHTS),
    *(f"out_{step}" for step in RESULT),
)


# What a tile reads: the steps from a tap to the next along each axis, how many taps there are, the channels of a group,
# the steps from a pixel to the next in the input and in the result, and the filters from the first of the panel on.
TILE_SIZES = (
    *("plane", "row", "step", "taps_deep", "taps_down", "taps_across", "channels", "pixel_step", "out_pixel", "left"),
)


@dataclass(frozen=True)
class Correlation(ABC):
    """A correlation over images, channels last: all but what a tile is.

    Attributes:
        operands: x [batch, depth, height, width, channels], the weights and the result.
        phases: how many parts of the result, spread over it, are computed one after the other.
        element: the LLVM type.
        lanes: elements of a vector.
        pixels: of a tile.
        is_padded: whether windows reach out of the input.
    """

    operands: tuple[Operand, ...]
    phases: int
    element: str
    lanes: int
    pixels: int
    is_padded: bool

    effort = Effort.PRINTED
    tile_sizes: ClassVar[tuple[str, ...]] = TILE_SIZES

    @property
    def number_count(self) -> int:
        return self.phases * len(FIELDS) + 1

    @property
    def scratch(self) -> tuple[int, ...]:
        """The numbers that are places in scratch memory; its size is the last number, behind those of all phases."""
        return addresses_among(FIELDS * self.phases)

    @property
    @abstractmethod
    def width(self) -> int:
        """The filters of a panel."""

    def panel_size(self, taps: int, channels: int) -> int:
        """Return the elements of a panel."""
        return taps * channels * self.width

    def padded_width(self, cells: int, stride: int) -> int:
        """Return the cells of a row of the copy with padding, of which so many are read."""
        del stride
        return cells

    @abstractmethod
    def print_tile(self, name: str) -> str:
        """Return the function of one tile: some pixels of x, one step apart, and the filters of a panel."""

    def print_pack(self, name: str) -> str:
        """Return the function that lays the weights of a panel side by side."""
        return print_pack(self, name)

    def print_copy(self, name: str) -> str:
        """Return the function that copies input with its padding."""
        return print_padded_copy(self.element, name) if self.is_padded else ""

    def print_steps(self, code: Builder, fields: Fields) -> dict[str, Size]:
        """Return the elements from a tap to the next along a row, and from a pixel of a tile to the next."""
        pixel = fields["pixel"]
        return {"step": code.mul(fields["step_across"], pixel), "pixel_step": code.mul(fields["stride_across"], pixel)}

    def print_run(self, name: str) -> str:
        printed = [self.print_tile(name), self.print_pack(name), self.print_copy(name)]
        return "".join([*printed, _print_task(self, name), _print_run(self, name)])


@dataclass(frozen=True)
class CorrelationKernel(Correlation):
    """A correlation whose vectors are filters.

    Attributes:
        vectors: filters of a tile, in vectors.
    """

    vectors: int

    @property
    def width(self) -> int:
        return self.lanes * self.vectors

    def print_tile(self, name: str) -> str:
        kind, lanes, vectors = self.element, self.lanes, self.vectors
        vector, width = f"<{lanes} x {kind}>", lanes * vectors
        code = begin_tile(self, name)
        sums = [[code.slot(vector) for _ in range(vectors)] for _ in range(self.pixels)]
        weights = code.slot("ptr", "%panel")
        for slot in (slot for row in sums for slot in row):
            code.store(vector, "zeroinitializer", slot)
        with code.nest(*[f"%taps_{axis}" for axis in AXES]) as (deep, down, across):
            start = code.add(code.mul(deep, "%plane"), code.mul(down, "%row"), code.mul(across, "%step"))
            cells = code.at(kind, "%x", start)
            with code.loop(0, "%channels") as channel:
                here = code.load("ptr", weights)
                loaded = [code.load_vector(vector, kind, here, v * lanes) for v in range(vectors)]
                code.store("ptr", code.at(kind, here, width), weights)
                first = code.at(kind, cells, channel)
                for pixel, row in enumerate(sums):
                    value = code.broadcast(lanes, kind, code.load(kind, first, code.mul("%pixel_step", pixel)))
                    for slot, factor in zip(row, loaded, strict=True):
                        code.add_product(vector, slot, value, factor)
        _print_tile_result(code, self, sums)
        return code.text()


def begin_tile(kernel: Correlation, name: str) -> FunctionBuilder:
    """Return the function of a tile, without its body."""
    return FunctionBuilder(f"{name}_tile", taking(("x", "panel", "out"), kernel.tile_sizes))


def _print_tile_result(code: Builder, kernel: CorrelationKernel, sums: list[list[str]]) -> None:
    """Store the sums: as vectors, or if the filters end inside of the tile, by way of the stack."""
    kind, lanes, width = kernel.element, kernel.lanes, kernel.lanes * kernel.vectors
    vector = f"<{lanes} x {kind}>"
    with code.when(code.compare("sge", "%left", width)):
        for pixel, row in enumerate(sums):
            target = code.at(kind, "%out", code.mul("%out_pixel", pixel))
            for v, slot in enumerate(row):
                code.store_vector(vector, kind, code.let(f"load {vector}, ptr {slot}"), target, v * lanes)
    with code.when(code.compare("slt", "%left", width)):
        places = code.slot(f"[{kernel.pixels * width} x {kind}]")
        flat = places
        for pixel, row in enumerate(sums):
            for v, slot in enumerate(row):
                value = code.let(f"load {vector}, ptr {slot}")
                code.store_vector(vector, kind, value, flat, pixel * width + v * lanes)
        with code.loop(0, kernel.pixels) as pixel:
            target = code.at(kind, "%out", code.mul(pixel, "%out_pixel"))
            code.copy(kind, code.at(kind, flat, code.mul(pixel, width)), target, "%left")


def print_pack(kernel: Correlation, name: str) -> str:
    """Lay the filters of one panel side by side: [taps, channels, filters of a tile]."""
    kind, width = kernel.element, kernel.width
    code = FunctionBuilder(f"{name}_pack", ["ptr %context", "i64 %panel"])
    _, weights, _, fields = print_task_context(code, FIELDS)
    weights = code.at(kind, weights, fields["weight_start"])
    target = code.at(kind, fields.address("panel_address"), code.mul("%panel", fields["panel_size"]))
    group, first = _place_of_panel(code, fields, "%panel", width)
    to_group, to_filter = code.mul(group, fields["weight_group"]), code.mul(first, fields["weight_filter"])
    weights = code.at(kind, weights, code.add(to_group, to_filter))
    left = code.least(code.sub(fields["filters"], first), width)
    channels, step = fields["channels"], fields["weight_filter"]
    is_dense = code.compare("eq", step, 1)
    counts = [fields[f"taps_{axis}"] for axis in AXES]
    with code.nest(*counts) as (deep, down, across):
        taps = zip(AXES, (deep, down, across), strict=True)
        from_tap = code.add(*[code.mul(tap, fields[f"weight_{axis}"]) for axis, tap in taps])
        number = code.add(code.mul(code.add(code.mul(deep, counts[1]), down), counts[2]), across)
        to_tap = code.mul(number, channels)
        with code.loop(0, channels) as channel:
            source = code.at(kind, weights, code.add(from_tap, code.mul(channel, fields["weight_channel"])))
            place = code.at(kind, target, code.mul(code.add(to_tap, channel), width))
            with code.when(is_dense):
                code.copy(kind, source, place, left)
            with code.unless(is_dense), code.loop(0, left) as filter_:
                code.store(kind, code.load(kind, source, code.mul(filter_, step)), place, filter_)
            code.clear(kind, code.at(kind, place, left), code.sub(width, left))
    return code.text()


def _place_of_panel(code: Builder, fields: Fields, panel: Size, width: int) -> tuple[Size, Size]:
    """Return the group to which a panel belongs, and its first filter there."""
    panels = code.div(code.add(fields["filters"], width - 1), width)
    group = code.div(panel, panels)
    return group, code.mul(code.sub(panel, code.mul(group, panels)), width)


def print_task_context(code: Builder, names: tuple[str, ...]) -> tuple[str, str, str, Fields]:
    """Return what a task finds in its context: three arrays, and the numbers of these names."""
    addresses = [code.load("i64", "%context", position) for position in range(4)]
    x, weights, out, numbers = (code.let(f"inttoptr i64 {address} to ptr") for address in addresses)
    return x, weights, out, Fields(code, numbers, names)


def _print_task(kernel: Correlation, name: str) -> str:
    """Print the function of a part: some blocks of rows of the result."""
    kind, width = kernel.element, kernel.width
    code = FunctionBuilder(f"{name}_task", ["ptr %context", "i64 %part"], flushes=True)
    x, _, out, fields = print_task_context(code, FIELDS)
    begin, end = print_share(code, fields["units"], "%part", fields["parts"])
    stride, block_columns = fields["stride_down"], fields["block_columns"]
    tiles = code.div(code.add(block_columns, kernel.pixels - 1), kernel.pixels)
    out = code.at(kind, out, fields["out_start"])
    panels = fields.address("panel_address")
    with code.loop(begin, end) as unit:
        image, plane, block, column_block = print_unit(code, fields, unit)
        first = code.mul(block, fields["block"])
        last = code.least(code.add(first, fields["block"]), fields["rows"])
        # Blocks are of one width: the last one has columns of the one before it, and finds the same for them.
        start = code.least(code.mul(column_block, block_columns), code.sub(fields["columns"], block_columns))
        source, (deep, row) = print_source(
            code, kernel.is_padded, name, fields, kind, x, (image, plane, first, start), code.sub(last, first)
        )
        down = code.mul(fields["step_down"], row)
        steps = kernel.print_steps(code, fields)
        place = [(image, "image"), (plane, "plane"), (start, "pixel")]
        target = code.at(kind, out, code.add(*[code.mul(number, fields[f"out_{step}"]) for number, step in place]))
        with code.loop(0, fields["panels"]) as panel:
            weights = code.at(kind, panels, code.mul(panel, fields["panel_size"]))
            group, done = _place_of_panel(code, fields, panel, width)
            left = code.sub(fields["filters"], done)
            of_group = code.at(kind, source, code.mul(group, fields["channels"]))
            to_group = code.at(kind, target, code.add(code.mul(group, fields["filters"]), done))
            with code.loop(first, last) as line, code.loop(0, tiles) as tile:
                column = code.least(code.mul(tile, kernel.pixels), code.sub(block_columns, kernel.pixels))
                cells = code.add(code.mul(code.sub(line, first), stride, row), code.mul(column, steps["pixel_step"]))
                to_line = code.add(code.mul(line, fields["out_row"]), code.mul(column, fields["out_pixel"]))
                read = ("taps_deep", "taps_down", "taps_across", "channels", "out_pixel")
                sizes = {"plane": deep, "row": down, "left": left, **{each: fields[each] for each in read}, **steps}
                pointers = (code.at(kind, of_group, cells), weights, code.at(kind, to_group, to_line))
                code.call_on(f"{name}_tile", pointers, [sizes[each] for each in kernel.tile_sizes])
    return code.text()


def print_unit(code: Builder, fields: Fields, unit: Size) -> tuple[Size, Size, Size, Size]:
    """Return the image, plane, block of rows and block of columns of a unit of work."""
    found: list[Size] = []
    for name in ("column_blocks", "blocks", "planes"):
        rest = code.div(unit, fields[name])
        found.append(code.sub(unit, code.mul(rest, fields[name])))
        unit = rest
    column_block, block, plane = found
    return unit, plane, block, column_block


def print_source(
    code: Builder,
    is_padded: bool,
    name: str,
    fields: Fields,
    kind: str,
    x: str,
    window: tuple[Size, Size, Size, Size],
    rows: Size,
) -> tuple[str, tuple[Size, Size]]:
    """Return the cells of x under `rows` rows of windows; where windows reach out of x, they are copied with padding.

    Args:
        window: image, plane, row and column of the first window.

    Returns:
        Where the first cell is, and how many elements from a tap to the next in depth, and from a row to the next.
    """
    image, *place = window
    axes = zip(AXES, place, strict=True)
    first = [code.sub(code.mul(at, fields[f"stride_{axis}"]), fields[f"before_{axis}"]) for axis, at in axes]
    if is_padded:
        return _print_padded_source(code, name, fields, kind, x, image, first, rows)
    pixels = image
    for size, at in zip(("depth", "height", "width"), first, strict=True):
        pixels = code.add(code.mul(pixels, fields[size]), at)
    row = code.mul(fields["width"], fields["pixel"])
    deep = code.mul(fields["step_deep"], fields["height"], row)
    return code.at(kind, x, code.mul(pixels, fields["pixel"])), (deep, row)


def _print_padded_source(
    code: Builder, name: str, fields: Fields, kind: str, x: str, image: Size, first: list[Size], rows: Size
) -> tuple[str, tuple[Size, Size]]:
    ahead, top, left = first
    pixel, height, width, depth = (fields[key] for key in ("pixel", "height", "width", "depth"))
    row = code.mul(fields["padded_width"], pixel)
    deep = code.mul(fields["padded_lines"], row)
    space = code.at(kind, fields.address("rows_address"), code.mul("%part", fields["rows_size"]))
    count = code.add(
        code.mul(code.sub(rows, 1), fields["stride_down"]),
        code.mul(code.sub(fields["taps_down"], 1), fields["step_down"]),
        1,
    )
    before = code.mul(code.sub(0, left), pixel)
    with code.loop(0, fields["taps_deep"]) as tap:
        plane = code.add(ahead, code.mul(tap, fields["step_deep"]))
        above = code.compare("sge", plane, 0)
        within = code.compare("slt", plane, depth)
        is_inside = code.let(f"and i1 {above}, {within}")
        known = code.let(f"select i1 {is_inside}, i64 {height}, i64 0")  # planes outside have no rows that are not
        source = code.at(kind, x, code.mul(code.add(code.mul(image, depth), plane), height, width, pixel))
        target = code.at(kind, space, code.mul(tap, deep))
        sizes = (top, count, known, code.mul(width, pixel), row, before)
        code.call_on(f"{name}_copy", (source, target), sizes)
    return space, (deep, row)


def print_padded_copy(kind: str, name: str) -> str:
    """Print a function that copies rows with padding. Rows and columns outside of the image are zero.

    Its sizes: the first row, how many rows, those of the image, elements of a row of the image, elements of a row of
    the copy, and how many of these are before the image.
    """
    sizes = ("top", "count", "height", "row", "padded", "before")
    code = FunctionBuilder(f"{name}_copy", ["ptr %source", "ptr noalias %target", *taking((), sizes)])
    begin = code.least(code.greatest("%before", 0), "%padded")
    end = code.greatest(begin, code.least("%padded", code.add("%before", "%row")))
    with code.loop(0, "%count") as number:
        line = code.add("%top", number)
        below = code.compare("sge", line, 0)
        within = code.compare("slt", line, "%height")
        is_inside = code.let(f"and i1 {below}, {within}")
        target = code.at(kind, "%target", code.mul(number, "%padded"))
        source = code.at(kind, "%source", code.sub(code.mul(line, "%row"), "%before"))
        start = code.let(f"select i1 {is_inside}, i64 {begin}, i64 %padded")
        stop = code.let(f"select i1 {is_inside}, i64 {end}, i64 %padded")
        code.clear(kind, target, start)
        code.copy(kind, code.at(kind, source, start), code.at(kind, target, start), code.sub(stop, start))
        code.clear(kind, code.at(kind, target, stop), code.sub("%padded", stop))
    return code.text()


def _print_run(kernel: Correlation, name: str) -> str:
    code, context = begin_run(kernel, name)
    with code.loop(0, kernel.phases) as phase:
        numbers = code.at("i64", "%numbers", code.mul(phase, len(FIELDS)))
        fields = put_numbers(code, context, numbers, FIELDS)
        print_parallel(code, f"{name}_pack", context, fields["panels"])
        print_parallel(code, f"{name}_task", context, fields["parts"])
    return code.text()


def begin_run(kernel: Kernel, name: str) -> tuple[FunctionBuilder, str]:
    """Return the run function of a kernel, and a context of tasks: two arrays and the result (see `put_numbers`)."""
    code, last = begin_run_function(kernel, name), len(kernel.operands) - 1
    context = code.slot("[4 x i64]")
    for position, array in enumerate((0, 1, last)):
        code.store("i64", code.let(f"ptrtoint ptr %d{array} to i64"), context, position)
    return code, context


def put_numbers(code: Builder, context: str, numbers: str, names: tuple[str, ...]) -> Fields:
    """Put the address of numbers into a context; return them by their names."""
    code.store("i64", code.let(f"ptrtoint ptr {numbers} to i64"), context, 3)
    return Fields(code, numbers, names)
