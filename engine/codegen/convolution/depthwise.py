"""Kernels of convolutions of each channel by itself: vectors of channels, some pixels of a row at a time.

They take about as long as the memory they read. Nothing is copied: windows that reach out of the input have fewer taps.
With several filters a channel, vectors of inputs are spread, each channel to its filters; on the way back, what the
filters of a channel get is added up.
"""

from __future__ import annotations

from ...common.quick_dataclass import dataclass
from ..llvm.builder import Builder, FunctionBuilder, Size, taking
from ..llvm.compiler import Effort
from ..llvm.entry import Operand
from ..llvm.tasks import Fields, print_parallel, print_share
from .correlation import AXES, GEOMETRY, RESULT, WEIGHTS, begin_run, print_task_context, print_unit, put_numbers

# What the code reads of a phase, in this order.
DEPTHWISE_FIELDS = (
    *GEOMETRY,
    *("parts", "vectors", "inner_begin", "inner_end"),
    *(f"weight_{step}" for step in WEIGHTS),
    *(f"out_{step}" for step in RESULT),
)
_SIZES = (
    *("taps_deep", "taps_down", "taps_across", "x_deep", "x_down", "x_across"),
    *("weight_deep", "weight_down", "weight_across", "groups", "vectors", "out_pixel"),
)


@dataclass(frozen=True)
class DepthwiseKernel:
    """A correlation of each channel of images by itself, channels last.

    Attributes:
        operands: x [batch, depth, height, width, channels], the weights and the result.
        phases: how many parts of the result, spread over it, are computed one after the other.
        element: the LLVM type.
        lanes: channels at a time.
        multiplier: filters of a channel.
        is_transposed: whether these are in x, and are added up; else they are in the result.
        pixels: of a tile.
        pixel_step: elements of x from a pixel of a tile to the next.
    """

    operands: tuple[Operand, ...]
    phases: int
    element: str
    lanes: int
    multiplier: int
    is_transposed: bool
    pixels: int
    pixel_step: int

    effort = Effort.LARGE

    @property
    def number_count(self) -> int:
        return self.phases * len(DEPTHWISE_FIELDS)

    def print_run(self, name: str) -> str:
        tiles = [_print_tile(self, name, pixels) for pixels in sorted({1, self.pixels})]
        return "".join([*tiles, _print_task(self, name), _print_run(self, name)])


def _print_tile(kernel: DepthwiseKernel, name: str, pixels: int) -> str:
    """Print all channels of some pixels side by side, which have the same taps."""
    kind, multiplier, lanes = kernel.element, kernel.multiplier, kernel.lanes
    vector = f"<{lanes * multiplier} x {kind}>"
    code = FunctionBuilder(f"{name}_tile{pixels}", taking(("x", "weights", "out"), _SIZES))
    sums = [code.slot(vector) for _ in range(pixels)]
    with code.loop(0, "%vectors") as number:
        # The last vector has channels of the one before it, and finds the same for them.
        channel = code.least(code.mul(number, lanes), code.sub("%groups", lanes))
        filter_ = code.mul(channel, multiplier)
        x = code.at(kind, "%x", filter_ if kernel.is_transposed else channel)
        weights = code.at(kind, "%weights", filter_)
        for slot in sums:
            code.line(f"store {vector} zeroinitializer, ptr {slot}")
        with code.nest(*[f"%taps_{axis}" for axis in AXES]) as numbers:
            taps = list(zip(AXES, numbers, strict=True))
            cell = code.at(kind, x, code.add(*[code.mul(tap, f"%x_{axis}") for axis, tap in taps]))
            place = code.at(kind, weights, code.add(*[code.mul(tap, f"%weight_{axis}") for axis, tap in taps]))
            factor = code.load_vector(vector, kind, place)
            for pixel, slot in enumerate(sums):
                here = code.at(kind, cell, pixel * kernel.pixel_step)
                value = print_spread(code, kind, here, lanes, 1 if kernel.is_transposed else multiplier, vector)
                code.add_product(vector, slot, value, factor)
        out = code.at(kind, "%out", channel if kernel.is_transposed else filter_)
        for pixel, slot in enumerate(sums):
            total = code.let(f"load {vector}, ptr {slot}")
            target = code.at(kind, out, code.mul("%out_pixel", pixel))
            _print_result(code, kernel, total, vector, target)
    return code.text()


def print_spread(code: Builder, kind: str, pointer: str, lanes: int, multiplier: int, vector: str) -> str:
    """Print a vector of `lanes` elements at `pointer`, each one `multiplier` times; or load all of the vector."""
    if multiplier == 1:
        return code.load_vector(vector, kind, pointer)
    narrow = f"<{lanes} x {kind}>"
    order = [lane // multiplier for lane in range(lanes * multiplier)]
    return code.shuffle(lanes, kind, code.load_vector(narrow, kind, pointer), "undef", order)


def _print_result(code: Builder, kernel: DepthwiseKernel, total: str, vector: str, target: str) -> None:
    kind, lanes, multiplier = kernel.element, kernel.lanes, kernel.multiplier
    if not kernel.is_transposed or multiplier == 1:
        code.store_vector(vector, kind, total, target)
        return
    narrow = f"<{lanes} x {kind}>"
    result = ""
    for filter_ in range(multiplier):
        places = range(filter_, lanes * multiplier, multiplier)
        part = code.shuffle(lanes * multiplier, kind, total, "undef", places)
        result = code.let(f"fadd {narrow} {result}, {part}") if result else part
    code.store_vector(narrow, kind, result, target)


def _print_task(kernel: DepthwiseKernel, name: str) -> str:
    """Print the function of a part: some rows of the result, or parts of them."""
    kind = kernel.element
    code = FunctionBuilder(f"{name}_task", ["ptr %context", "i64 %part"], flushes=True)
    x, weights, out, fields = print_task_context(code, DEPTHWISE_FIELDS)
    weights, out = code.at(kind, weights, fields["weight_start"]), code.at(kind, out, fields["out_start"])
    begin, end = print_share(code, fields["units"], "%part", fields["parts"])
    pixel, width = fields["pixel"], fields["width"]
    row = code.mul(width, pixel)
    steps = (
        *(code.mul(fields["step_deep"], fields["height"], row), code.mul(fields["step_down"], row)),
        *(code.mul(fields["step_across"], pixel), *[fields[f"weight_{axis}"] for axis in AXES]),
        *(fields["groups"], fields["vectors"], fields["out_pixel"]),
    )
    with code.loop(begin, end) as unit:
        image, plane, line, block = print_unit(code, fields, unit)
        ahead, first_deep, taps_deep = print_taps(code, fields, "deep", "depth", plane)
        top, first_down, taps_down = print_taps(code, fields, "down", "height", line)
        cells = code.mul(
            code.add(code.mul(code.add(code.mul(image, fields["depth"]), ahead), fields["height"]), top), width
        )
        of_tap = code.add(code.mul(first_deep, fields["weight_deep"]), code.mul(first_down, fields["weight_down"]))
        factors = code.at(kind, weights, of_tap)
        place = [(image, "image"), (plane, "plane"), (line, "row")]
        target = code.at(kind, out, code.add(*[code.mul(number, fields[f"out_{step}"]) for number, step in place]))

        def call(pixels: int, column: Size) -> None:
            left, first, taps = print_taps(code, fields, "across", "width", column)
            source = code.at(kind, x, code.mul(code.add(cells, left), pixel))
            chosen = code.at(kind, factors, code.mul(first, fields["weight_across"]))
            result = code.at(kind, target, code.mul(column, fields["out_pixel"]))
            code.call_on(f"{name}_tile{pixels}", (source, chosen, result), (taps_deep, taps_down, taps, *steps))

        start = code.mul(block, fields["block_columns"])
        stop = code.least(code.add(start, fields["block_columns"]), fields["columns"])
        inner = code.least(code.greatest(fields["inner_begin"], start), stop)
        behind = code.least(code.greatest(fields["inner_end"], inner), stop)
        is_wide = code.compare("sge", code.sub(behind, inner), kernel.pixels)
        behind = code.let(f"select i1 {is_wide}, i64 {behind}, i64 {inner}")
        for first, last in ((start, inner), (behind, stop)):
            with code.loop(first, last) as column:
                call(1, column)
        tiles = code.div(code.add(code.sub(behind, inner), kernel.pixels - 1), kernel.pixels)
        with code.loop(0, tiles) as tile:
            # The last tile has pixels of the one before it, and finds the same for them.
            call(
                kernel.pixels,
                code.least(code.add(inner, code.mul(tile, kernel.pixels)), code.sub(behind, kernel.pixels)),
            )
    return code.text()


def print_taps(code: Builder, fields: Fields, axis: str, size: str, number: Size) -> tuple[Size, Size, Size]:
    """Print, for a window along an axis, its first cell inside the input, that cell's tap, and the taps inside."""
    start = code.sub(code.mul(number, fields[f"stride_{axis}"]), fields[f"before_{axis}"])
    step = fields[f"step_{axis}"]
    first = _steps_to(code, code.sub(0, start), step)
    behind = code.least(fields[f"taps_{axis}"], _steps_to(code, code.sub(fields[size], start), step))
    return code.add(start, code.mul(first, step)), first, code.sub(behind, first)


def _steps_to(code: Builder, distance: Size, step: Size) -> Size:
    """Return the number of steps that reach a distance or more."""
    return code.greatest(0, code.div(code.add(distance, code.sub(step, 1)), step))


def _print_run(kernel: DepthwiseKernel, name: str) -> str:
    code, context = begin_run(kernel, name)
    with code.loop(0, kernel.phases) as phase:
        numbers = code.at("i64", "%numbers", code.mul(phase, len(DEPTHWISE_FIELDS)))
        print_parallel(code, f"{name}_task", context, put_numbers(code, context, numbers, DEPTHWISE_FIELDS)["parts"])
    return code.text()
