"""Kernels of the gradients of convolutions in their 3 x 3 taps, by Winograd's minimal filtering.

The gradient of ``Y = A.T [U * V] A`` in the transformed taps U is ``A dY A.T * V``, summed over tiles, and the gradient
in the taps is ``G.T dU G``. Threads take units: a block of channels by a block of filters, of which the sums
``dU[place][rows of channels][panel of filters]`` stay in the second cache, over a share of the tiles. Some tiles at a
time of the input and of the cotangent are transformed again for each unit. Shares are added up in the end, always in
one order. Where a block has one share, its sums are transformed back while they are in the cache.

Source: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2016).
"""

from __future__ import annotations

from ...common.quick_dataclass import dataclass
from ..host.scratch import NamedNumbers
from ..llvm.builder import Builder, FunctionBuilder, Size, taking
from ..llvm.compiler import Effort
from ..llvm.entry import Operand
from ..llvm.tasks import Fields, begin_run_function, print_parallel, print_release, print_share
from .winograd import (
    TILES,
    TileReader,
    print_counter,
    print_head,
    print_outer_product,
    print_task_head,
    print_zeros,
)
from .winograd_functions import TileFunctions, convolution_functions, gradient_functions

# What the code reads. Blocks of channels and filters are counted in vectors, shares and blocks of tiles in tiles.
WINOGRAD_FILTER_FIELDS = (
    *TILES,
    *("filter_vectors", "channel_block", "filter_block", "channel_blocks", "filter_blocks", "shares", "share"),
    *("units", "sums_address", "sums_size", "sums_place", "parts_address", "part_size", "input_place", "output_place"),
    "scratch_bytes",
)


@dataclass(frozen=True)
class WinogradFilterKernel(NamedNumbers):
    """The gradient of a convolution of images with 3 x 3 taps, channels last, in its taps.

    Attributes:
        operands: x [batch, height, width, channels], the cotangent and the result.
        element: the LLVM type.
        lanes: elements of a vector.
        tile: results of a tile along each axis.
        rows: channels that are summed at once; they go into a vector.
        vectors: filters that are summed at once, in vectors.
    """

    operands: tuple[Operand, ...]
    element: str
    lanes: int
    tile: int
    rows: int
    vectors: int

    effort = Effort.PRINTED
    number_names = WINOGRAD_FILTER_FIELDS

    @property
    def width(self) -> int:
        """The filters of a panel."""
        return self.lanes * self.vectors

    @property
    def functions(self) -> TileFunctions:
        """Those that convolutions call too."""
        return convolution_functions(self.element, self.lanes, self.tile)

    @property
    def own_functions(self) -> TileFunctions:
        return gradient_functions(self.element, self.lanes, self.tile)

    @property
    def calls(self) -> tuple[TileFunctions, ...]:
        return self.functions, self.own_functions

    def print_run(self, name: str) -> str:
        printed = [
            _print_product(self, name),
            _print_taps(self, name),
            _print_task(self, name),
            _print_sum(self, name),
            _print_run(self, name),
        ]
        return "".join(printed)


def _print_product(kernel: WinogradFilterKernel, name: str) -> str:
    """Add the products of some tiles of one place, of some channels by a panel of filters, to sums in memory."""
    kind, lanes, rows, width = kernel.element, kernel.lanes, kernel.rows, kernel.width
    vector = f"<{lanes} x {kind}>"
    sizes = ("count", "left_step", "right_step")
    code = FunctionBuilder(f"{name}_product", taking(("left", "right", "sums"), sizes))
    sums = [[code.slot(vector) for _ in range(kernel.vectors)] for _ in range(rows)]
    places = [(slot, r * width + v * lanes) for r, row in enumerate(sums) for v, slot in enumerate(row)]
    for slot, place in places:
        code.line(f"store {vector} {code.load_vector(vector, kind, '%sums', place)}, ptr {slot}")
    with code.loop(0, "%count") as tile:
        left = code.at(kind, "%left", code.mul(tile, "%left_step"))
        right = code.at(kind, "%right", code.mul(tile, "%right_step"))
        factors = [code.load_vector(vector, kind, right, v * lanes) for v in range(kernel.vectors)]
        print_outer_product(code, kind, lanes, [code.load(kind, left, r) for r in range(rows)], factors, sums)
    for slot, place in places:
        code.store_vector(vector, kind, code.let(f"load {vector}, ptr {slot}"), "%sums", place)
    return code.text()


def _print_task(kernel: WinogradFilterKernel, name: str) -> str:
    """Print the function of a part: units of work, for as long as there are any."""
    kind, lanes = kernel.element, kernel.lanes
    code = FunctionBuilder(f"{name}_task", ["ptr %context", "i64 %part"], flushes=True)
    (x, dy, out), fields = print_task_head(code, WINOGRAD_FILTER_FIELDS)
    reader = TileReader(code, kernel.functions, fields)
    memory = code.at(kind, fields.address("parts_address"), code.mul("%part", fields["part_size"]))
    outputs = code.at(kind, memory, code.mul(fields["input_place"], kernel.functions.transforms.cells**2))
    tables = reader.input_table(), reader.output_table(), *reader.edge_tables()
    channel_block, filter_block = fields["channel_block"], fields["filter_block"]
    channels, filters = code.mul(channel_block, lanes), code.mul(filter_block, lanes)
    counter = print_counter(code)
    with code.claim(counter, fields["units"]) as unit:
        print_release(code, counter)
        rest = code.div(unit, fields["filter_blocks"])
        of_filters = code.mul(code.sub(unit, code.mul(rest, fields["filter_blocks"])), filter_block)
        share = code.div(rest, fields["channel_blocks"])
        of_channels = code.mul(code.sub(rest, code.mul(share, fields["channel_blocks"])), channel_block)
        is_whole = code.compare("eq", fields["shares"], 1)
        held = code.choose(is_whole, "%part", unit)
        sums = code.at(kind, fields.address("sums_address"), code.mul(held, fields["sums_size"]))
        code.clear(kind, sums, fields["sums_size"])
        channel_vectors = code.least(channel_block, code.sub(fields["channel_vectors"], of_channels))
        filter_vectors = code.least(filter_block, code.sub(fields["filter_vectors"], of_filters))
        panels = code.div(code.add(filter_vectors, kernel.vectors - 1), kernel.vectors)
        begin = code.mul(share, fields["share"])
        end = code.least(fields["tiles"], code.add(begin, fields["share"]))
        with code.loop(begin, end, fields["block"]) as first:
            last = code.least(end, code.add(first, fields["block"]))
            with code.loop(first, last) as tile:
                number, place = code.sub(tile, first), reader.place(tile)
                passed = reader.input(x, place, tables[0], tables[2])
                target = code.at(kind, memory, code.mul(number, channels))
                sizes = (code.mul(of_channels, lanes), fields["channels"], channel_vectors, fields["input_place"])
                _print_transform(code, kernel, kernel.functions.name("input"), passed, target, sizes)
                passed = reader.output(dy, place, tables[1], tables[3], fields["zeros_address"])
                target = code.at(kind, outputs, code.mul(number, filters))
                # A panel is filled up with the last filters.
                vectors = code.mul(panels, kernel.vectors)
                sizes = (code.mul(of_filters, lanes), fields["filters"], vectors, fields["output_place"])
                _print_transform(code, kernel, kernel.own_functions.name("output"), passed, target, sizes)
            rows = code.mul(channel_vectors, lanes // kernel.rows)
            counts = (rows, panels, code.sub(last, first), channels, filters)
            _print_products(code, kernel, name, fields, (memory, outputs, sums), counts)
        with code.when(is_whole):
            rows = code.mul(of_channels, lanes), code.mul(code.add(of_channels, channel_vectors), lanes)
            columns = of_filters, code.add(of_filters, filter_vectors)
            code.call_on(f"{name}_taps", ("%context", sums, out), (*rows, *columns, 0))
    return code.text()


def _print_transform(
    code: Builder,
    kernel: WinogradFilterKernel,
    name: str,
    cells: tuple[str, str],
    target: str,
    sizes: tuple[Size, Size, Size, Size],
) -> None:
    """Call the transform of a tile for some vectors of channels.

    Args:
        code: of the task.
        kernel: what is printed.
        name: of the transform.
        cells: the first cell, as bytes, and the table of all.
        target: where the transformed tile begins.
        sizes: the first channel, how many there are in all, the vectors, and from one place to the next.
    """
    first, channels, vectors, place = sizes
    base = code.at(kernel.element, cells[0], first)
    sizes = (code.sub(channels, first), vectors, kernel.lanes, place)
    code.call_on(name, (base, cells[1], target), sizes)


def _print_products(
    code: Builder,
    kernel: WinogradFilterKernel,
    name: str,
    fields: Fields,
    memory: tuple[str, str, str],
    counts: tuple[Size, Size, Size, Size, Size],
) -> None:
    """Add the products of some tiles, place by place.

    Args:
        code: of the task.
        kernel: what is printed.
        name: of the kernel.
        fields: its numbers.
        memory: the transformed input and cotangent, and the sums.
        counts: groups of rows, panels, tiles, and the channels and filters of a tile.
    """
    kind, size = kernel.element, kernel.rows * kernel.width
    inputs, outputs, sums = memory
    groups, panels, tiles, channels, filters = counts
    with code.loop(0, kernel.functions.transforms.cells**2) as place:
        left = code.at(kind, inputs, code.mul(place, fields["input_place"]))
        right = code.at(kind, outputs, code.mul(place, fields["output_place"]))
        total = code.at(kind, sums, code.mul(place, fields["sums_place"]))
        with code.loop(0, groups) as group, code.loop(0, panels) as panel:
            number = code.add(code.mul(group, _panels(code, kernel, fields)), panel)
            pointers = (
                code.at(kind, left, code.mul(group, kernel.rows)),
                code.at(kind, right, code.mul(panel, kernel.width)),
                code.at(kind, total, code.mul(number, size)),
            )
            code.call_on(f"{name}_product", pointers, (tiles, channels, filters))


def _panels(code: Builder, kernel: WinogradFilterKernel, fields: Fields) -> Size:
    """Return the panels of a block of filters."""
    return code.div(fields["filter_block"], kernel.vectors)


def _print_taps(kernel: WinogradFilterKernel, name: str) -> str:
    """Print the function that transforms sums back, of some rows of channels by some vectors of filters.

    The last vectors of channels and filters end with the last of them. Units are `%unit` elements apart.
    """
    kind, lanes = kernel.element, kernel.lanes
    sizes = ("begin", "end", "left", "right", "unit")
    code = FunctionBuilder(f"{name}_taps", taking(("context", "sums", "out"), sizes))
    _, fields = print_task_head(code, WINOGRAD_FILTER_FIELDS)
    channels, filters = fields["channels"], fields["filters"]
    panels = _panels(code, kernel, fields)
    share = code.mul(fields["channel_blocks"], fields["filter_blocks"], "%unit")
    with code.loop("%begin", "%end") as row, code.loop("%left", "%right") as vector:
        number = code.div(row, lanes)
        lane = code.sub(row, code.mul(number, lanes))
        channel = code.add(code.least(code.mul(number, lanes), code.sub(channels, lanes)), lane)
        filter_ = code.least(code.mul(vector, lanes), code.sub(filters, lanes))
        of_channels, of_filters = code.div(number, fields["channel_block"]), code.div(vector, fields["filter_block"])
        inside = code.sub(row, code.mul(of_channels, fields["channel_block"], lanes))
        group = code.div(inside, kernel.rows)
        beside = code.sub(vector, code.mul(of_filters, fields["filter_block"]))
        panel = code.div(beside, kernel.vectors)
        place = code.mul(code.add(code.mul(group, panels), panel), kernel.rows)
        place = code.mul(code.add(place, code.sub(inside, code.mul(group, kernel.rows))), kernel.width)
        place = code.add(place, code.mul(code.sub(beside, code.mul(panel, kernel.vectors)), lanes))
        unit = code.add(code.mul(of_channels, fields["filter_blocks"]), of_filters)
        source = code.at(kind, "%sums", code.add(code.mul(unit, "%unit"), place))
        target = code.at(kind, "%out", code.add(code.mul(channel, filters), filter_))
        passed = (fields["shares"], share, fields["sums_place"], code.mul(channels, filters))
        code.call_on(kernel.own_functions.name("gradient"), (source, target), passed)
    return code.text()


def _print_sum(kernel: WinogradFilterKernel, name: str) -> str:
    """Print a part: the taps of some channels, whose sums are in several shares."""
    code = FunctionBuilder(f"{name}_sum", ["ptr %context", "i64 %part"], flushes=True)
    (_, _, out), fields = print_task_head(code, WINOGRAD_FILTER_FIELDS)
    sums = fields.address("sums_address")
    rows = print_share(code, code.mul(fields["channel_vectors"], kernel.lanes), "%part", fields["parts"])
    sizes = (*rows, 0, fields["filter_vectors"], fields["sums_size"])
    code.call_on(f"{name}_taps", ("%context", sums, out), sizes)
    return code.text()


def _print_run(kernel: WinogradFilterKernel, name: str) -> str:
    code = begin_run_function(kernel, name)
    context = print_head(code, f"%d{len(kernel.operands) - 1}")
    fields = Fields(code, "%numbers", WINOGRAD_FILTER_FIELDS)
    print_zeros(code, kernel.element, fields)
    print_parallel(code, f"{name}_task", context, fields["parts"])
    with code.when(code.compare("sgt", fields["shares"], 1)):
        print_parallel(code, f"{name}_sum", context, fields["parts"])
    return code.text()
