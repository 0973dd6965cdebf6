"""Kernels of the gradients of convolutions of each channel by itself in their filters.

For a row of the result, each tap sums the products of cotangents and inputs, vectors of channels, over the pixels where
it is inside the input. Parts of the images have sums of their own, which are added in the end.
"""

from __future__ import annotations

from ...common.quick_dataclass import dataclass
from ..host.scratch import NamedNumbers
from ..llvm.builder import Builder, FunctionBuilder, Size, taking
from ..llvm.compiler import Effort
from ..llvm.entry import Operand
from ..llvm.tasks import Fields, print_parallel, print_share
from .correlation import GEOMETRY, begin_run, print_task_context, print_unit, put_numbers
from .depthwise import print_spread, print_taps

# What the code reads, in this order.
DEPTHWISE_FILTER_FIELDS = (*GEOMETRY, "parts", "tiles", "taps", "sums_address", "sums_size", "scratch_bytes")
_SUMS = 4  # at once, which need not wait for one another
_SIZES = ("count", "x_pixel", "dy_pixel", "groups", "tiles")


@dataclass(frozen=True)
class DepthwiseFilterKernel(NamedNumbers):
    """The gradient of a correlation of each channel by itself, channels last, in its kernel.

    Attributes:
        operands: x [batch, depth, height, width, channels], the cotangent and the result.
        element: the LLVM type.
        lanes: channels at a time.
        vectors: of channels, in a tile.
        multiplier: filters of a channel.
    """

    operands: tuple[Operand, ...]
    element: str
    lanes: int
    vectors: int
    multiplier: int

    effort = Effort.LARGE
    number_names = DEPTHWISE_FILTER_FIELDS

    @property
    def width(self) -> int:
        """Filters of a vector."""
        return self.lanes * self.multiplier

    @property
    def channels(self) -> int:
        """Channels of a tile."""
        return self.lanes * self.vectors

    def print_run(self, name: str) -> str:
        return "".join(print_part(self, name) for print_part in (_print_tap, _print_task, _print_sum, _print_run))


def _print_tap(kernel: DepthwiseFilterKernel, name: str) -> str:
    """Print the function that adds the products of some pixels of a row to the sums of a tap."""
    kind, width = kernel.element, kernel.width
    vector = f"<{width} x {kind}>"
    code = FunctionBuilder(f"{name}_tap", taking(("x", "dy", "sums"), _SIZES))
    pixels = _SUMS // kernel.vectors  # side by side, each with sums of its own
    slots = [[code.slot(vector) for _ in range(kernel.vectors)] for _ in range(pixels)]
    whole = code.mul(code.div("%count", pixels), pixels)
    with code.loop(0, "%tiles") as number:
        channel = _first_channel(code, kernel, number, "%groups")
        x, dy = code.at(kind, "%x", channel), code.at(kind, "%dy", code.mul(channel, kernel.multiplier))
        held = code.at(kind, "%sums", code.mul(number, kernel.vectors, width))
        for v, slot in enumerate(slots[0]):
            code.line(f"store {vector} {code.load_vector(vector, kind, held, v * width)}, ptr {slot}")
        for slot in (slot for row in slots[1:] for slot in row):
            code.line(f"store {vector} zeroinitializer, ptr {slot}")
        for start, stop, together in ((0, whole, pixels), (whole, "%count", 1)):
            with code.loop(start, stop, together) as pixel:
                for more, row in enumerate(slots[:together]):
                    here = code.add(pixel, more)
                    cell = code.at(kind, x, code.mul(here, "%x_pixel"))
                    _add_products(code, kernel, cell, code.at(kind, dy, code.mul(here, "%dy_pixel")), row)
        for v, slots_of_vector in enumerate(zip(*slots, strict=True)):
            totals = [code.let(f"load {vector}, ptr {slot}") for slot in slots_of_vector]
            while len(totals) > 1:
                pairs = zip(totals[::2], totals[1::2], strict=True)
                totals = [code.let(f"fadd {vector} {left}, {right}") for left, right in pairs]
            code.store_vector(vector, kind, totals[0], held, v * width)
    return code.text()


def _first_channel(code: Builder, kernel: DepthwiseFilterKernel, tile: Size, groups: Size) -> Size:
    """Return the first channel of a tile.

    The last tile has channels of the one before it, with sums of its own, and finds the same for them.
    """
    return code.least(code.mul(tile, kernel.channels), code.sub(groups, kernel.channels))


def _add_products(code: Builder, kernel: DepthwiseFilterKernel, x: str, dy: str, slots: list[str]) -> None:
    """Add the products of a pixel and its cotangents to sums."""
    kind, width = kernel.element, kernel.width
    vector = f"<{width} x {kind}>"
    for v, slot in enumerate(slots):
        value = print_spread(code, kind, code.at(kind, x, v * kernel.lanes), kernel.lanes, kernel.multiplier, vector)
        code.add_product(vector, slot, value, code.load_vector(vector, kind, dy, v * width))


def _print_task(kernel: DepthwiseFilterKernel, name: str) -> str:
    """Print the function of a part: some rows of the cotangents, or parts of them."""
    kind = kernel.element
    code = FunctionBuilder(f"{name}_task", ["ptr %context", "i64 %part"], flushes=True)
    x, dy, _, fields = print_task_context(code, DEPTHWISE_FILTER_FIELDS)
    sums = code.at(kind, fields.address("sums_address"), code.mul("%part", fields["sums_size"]))
    with code.loop(0, fields["sums_size"]) as place:
        code.line(f"store {kind} 0.0, ptr {code.at(kind, sums, place)}")
    begin, end = print_share(code, fields["units"], "%part", fields["parts"])
    with code.loop(begin, end) as unit:
        image, plane, line, block = print_unit(code, fields, unit)
        above = code.add(code.mul(code.add(code.mul(image, fields["planes"]), plane), fields["rows"]), line)
        start = code.mul(block, fields["block_columns"])
        stop = code.least(code.add(start, fields["block_columns"]), fields["columns"])
        ahead, first_deep, count_deep = print_taps(code, fields, "deep", "depth", plane)
        top, first_down, count_down = print_taps(code, fields, "down", "height", line)
        counts = (count_deep, count_down, fields["taps_across"])
        with code.nest(*counts) as (deep, down, across):
            cell_deep = code.add(ahead, code.mul(deep, fields["step_deep"]))
            cell_down = code.add(top, code.mul(down, fields["step_down"]))
            row = code.add(code.mul(code.add(code.mul(image, fields["depth"]), cell_deep), fields["height"]), cell_down)
            tap_down = code.add(code.mul(code.add(first_deep, deep), fields["taps_down"]), first_down, down)
            tap = code.add(code.mul(tap_down, fields["taps_across"]), across)
            first, last, cell = _columns_inside(code, fields, across, start, stop)
            pixels = code.add(code.mul(row, fields["width"]), cell)
            multiplied = code.mul(fields["pixel"], kernel.multiplier)
            pointers = (
                code.at(kind, x, code.mul(pixels, fields["pixel"])),
                code.at(kind, dy, code.mul(code.add(code.mul(above, fields["columns"]), first), multiplied)),
                code.at(kind, sums, code.mul(tap, fields["tiles"], kernel.channels * kernel.multiplier)),
            )
            x_pixel = code.mul(fields["stride_across"], fields["pixel"])
            sizes = (code.sub(last, first), x_pixel, multiplied, fields["groups"], fields["tiles"])
            with code.when(code.compare("sgt", sizes[0], 0)):
                code.call_on(f"{name}_tap", pointers, sizes)
    return code.text()


def _columns_inside(code: Builder, fields: Fields, tap: Size, start: Size, stop: Size) -> tuple[Size, Size, Size]:
    """Return the first of some columns where a tap is inside the input, the first behind, and the tap's first cell."""
    offset = code.sub(code.mul(tap, fields["step_across"]), fields["before_across"])
    stride = fields["stride_across"]
    up = code.sub(stride, 1)
    first = code.greatest(start, code.div(code.greatest(code.sub(up, offset), 0), stride))
    last = code.least(stop, code.div(code.greatest(code.add(code.sub(fields["width"], offset), up), 0), stride))
    return first, last, code.add(code.mul(first, stride), offset)


def _print_sum(kernel: DepthwiseFilterKernel, name: str) -> str:
    """Print the function that adds up the sums of the parts, for one tap."""
    kind, width = kernel.element, kernel.width
    vector = f"<{width} x {kind}>"
    code = FunctionBuilder(f"{name}_sum", ["ptr %context", "i64 %part"], flushes=True)
    _, _, out, fields = print_task_context(code, DEPTHWISE_FILTER_FIELDS)
    groups, tiles, sums = fields["groups"], fields["tiles"], fields.address("sums_address")
    target = code.at(kind, out, code.mul("%part", groups, kernel.multiplier))
    total = code.slot(vector)
    with code.loop(0, tiles) as tile, code.loop(0, kernel.vectors) as v:
        channel = code.add(_first_channel(code, kernel, tile, groups), code.mul(v, kernel.lanes))
        place = code.mul(code.add(code.mul(code.add(code.mul("%part", tiles), tile), kernel.vectors), v), width)
        code.line(f"store {vector} {code.load_vector(vector, kind, sums, place)}, ptr {total}")
        with code.loop(1, fields["parts"]) as part:
            value = code.load_vector(vector, kind, sums, code.add(code.mul(part, fields["sums_size"]), place))
            code.combine(vector, total, value)
        code.store_vector(vector, kind, code.load(vector, total), target, code.mul(channel, kernel.multiplier))
    return code.text()


def _print_run(kernel: DepthwiseFilterKernel, name: str) -> str:
    code, context = begin_run(kernel, name)
    fields = put_numbers(code, context, "%numbers", DEPTHWISE_FILTER_FIELDS)
    print_parallel(code, f"{name}_task", context, fields["parts"])
    print_parallel(code, f"{name}_sum", context, fields["taps"])
    return code.text()
