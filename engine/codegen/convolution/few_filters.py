"""Kernels of convolutions with fewer filters than half a vector has elements.

Vectors of filters would be mostly empty there. Where there are enough channels, vectors are channels: each sum of a
tile is a vector, whose elements are added up in the end. Otherwise vectors are pixels of a row: each channel of the
input is copied into rows of its own, and where windows are strides apart, each place between strides as well. So the
pixels that one weight multiplies follow each other in memory.

The gradient in the input of a convolution with few channels is the same, with channels and filters exchanged.
"""

from __future__ import annotations

from typing import ClassVar

from ...common.quick_dataclass import dataclass
from ..llvm.builder import Builder, FunctionBuilder, Size, taking
from ..llvm.registers import Registers
from ..llvm.tasks import Fields
from .correlation import (
    AXES,
    FIELDS,
    TILE_SIZES,
    Correlation,
    begin_tile,
    print_task_context,
)

_MOST_STEP = 8  # elements from a pixel to the next, up to which vectors take them apart


@dataclass(frozen=True)
class ChannelVectors(Correlation):
    """A correlation whose vectors are channels, of which there are at least as many as a vector has elements.

    Attributes:
        filters: how many there are.
    """

    filters: int

    @property
    def width(self) -> int:
        return self.filters

    def panel_size(self, taps: int, channels: int) -> int:
        return taps * -(-channels // self.lanes) * self.lanes * self.filters

    def print_tile(self, name: str) -> str:
        kind, lanes, filters = self.element, self.lanes, self.filters
        vector = f"<{lanes} x {kind}>"
        code = begin_tile(self, name)
        sums = [code.slot(vector, "zeroinitializer") for _ in range(self.pixels * filters)]
        weights = code.slot("ptr", "%panel")
        whole = code.mul(code.div("%channels", lanes), lanes)
        rest = code.sub("%channels", whole)
        last = code.sub("%channels", lanes)
        numbers = ", ".join(f"i64 {lane}" for lane in range(lanes))
        known = code.broadcast(lanes, "i64", code.let(f"sub i64 {lanes}, {rest}"))
        is_new = code.let(f"icmp sge <{lanes} x i64> <{numbers}>, {known}")

        def add_products(cells: str, mask: str) -> None:
            here = code.let(f"load ptr, ptr {weights}")
            factors = [code.load_vector(vector, kind, here, k * lanes) for k in range(filters)]
            code.line(f"store ptr {code.at(kind, here, filters * lanes)}, ptr {weights}")
            for pixel in range(self.pixels):
                value = code.load_vector(vector, kind, code.at(kind, cells, code.mul("%pixel_step", pixel)))
                if mask:
                    value = code.let(f"select <{lanes} x i1> {mask}, {vector} {value}, {vector} zeroinitializer")
                for slot, factor in zip(sums[pixel * filters :], factors, strict=False):
                    code.add_product(vector, slot, value, factor)

        with code.nest(*[f"%taps_{axis}" for axis in AXES]) as (deep, down, across):
            start = code.add(code.mul(deep, "%plane"), code.mul(down, "%row"), code.mul(across, "%step"))
            cells = code.at(kind, "%x", start)
            with code.loop(0, whole, lanes) as channel:
                add_products(code.at(kind, cells, channel), "")
            # Channels that are left are the last of a vector, the others of which were added before.
            with code.when(code.compare("sgt", rest, 0)):
                add_products(code.at(kind, cells, last), is_new)
        totals: list[tuple[str, int]] = []
        for begin in range(0, len(sums), lanes):
            chosen = [code.let(f"load {vector}, ptr {slot}") for slot in sums[begin : begin + lanes]]
            totals.append((elements_summed(code, kind, lanes, chosen), len(chosen)))
        _print_results(code, self, totals)
        return code.text()

    def print_pack(self, name: str) -> str:
        """Lay weights out: [taps, vectors of channels, filters, lanes]; zeros where the last vector repeats some."""
        kind, lanes, filters = self.element, self.lanes, self.filters
        code = FunctionBuilder(f"{name}_pack", ["ptr %context", "i64 %panel"])
        _, weights, _, fields = print_task_context(code, FIELDS)
        weights = code.at(kind, weights, fields["weight_start"])
        target = code.slot("ptr", fields.address("panel_address"))
        channels, counts = fields["channels"], [fields[f"taps_{axis}"] for axis in AXES]
        with code.nest(*counts) as (deep, down, across):
            taps = zip(AXES, (deep, down, across), strict=True)
            tap = code.at(kind, weights, code.add(*[code.mul(at, fields[f"weight_{axis}"]) for axis, at in taps]))
            with code.loop(0, channels, lanes) as known, code.loop(0, filters) as filter_:
                begin = code.least(known, code.sub(channels, lanes))
                here = code.let(f"load ptr, ptr {target}")
                source = code.at(kind, tap, code.mul(filter_, fields["weight_filter"]))
                with code.loop(0, lanes) as lane:
                    channel = code.add(begin, lane)
                    weight = code.load(kind, code.at(kind, source, code.mul(channel, fields["weight_channel"])))
                    is_new = code.compare("sge", channel, known)
                    code.store(kind, code.choose(is_new, weight, "0.0", kind), here, lane)
                code.line(f"store ptr {code.at(kind, here, lanes)}, ptr {target}")
        return code.text()


@dataclass(frozen=True)
class PixelVectors(Correlation):
    """A correlation whose vectors are pixels of a row. `is_padded` says that the input is copied.

    Attributes:
        filters: how many there are.
        vectors: pixels of a tile, in vectors.
        channels: how many there are.
        stride: from a window to the next, along a row.
    """

    filters: int
    vectors: int
    channels: int
    stride: int

    tile_sizes: ClassVar[tuple[str, ...]] = (*TILE_SIZES, "channel_step")

    @property
    def width(self) -> int:
        return self.filters

    def padded_width(self, cells: int, stride: int) -> int:
        return -(-cells // stride) * stride

    def print_tile(self, name: str) -> str:
        kind, lanes, filters, stride = self.element, self.lanes, self.filters, self.stride
        vector = f"<{lanes} x {kind}>"
        code = begin_tile(self, name)
        sums = [[code.slot(vector, "zeroinitializer") for _ in range(filters)] for _ in range(self.vectors)]
        weights = code.slot("ptr", "%panel")
        with code.nest(*[f"%taps_{axis}" for axis in AXES]) as (deep, down, across):
            cell = code.mul(across, "%step")
            ahead = code.div(cell, stride)
            phase = code.sub(cell, code.mul(ahead, stride)) if stride > 1 else 0
            start = code.add(code.mul(deep, "%plane"), code.mul(down, "%row"), ahead)
            cells = code.at(kind, "%x", code.add(start, code.mul(phase, "%channel_step", self.channels)))
            with code.loop(0, self.channels) as channel:
                here = code.let(f"load ptr, ptr {weights}")
                factors = [code.broadcast(lanes, kind, code.load(kind, here, k)) for k in range(filters)]
                code.line(f"store ptr {code.at(kind, here, filters)}, ptr {weights}")
                first = code.at(kind, cells, code.mul(channel, "%channel_step"))
                for number, row in enumerate(sums):
                    values = code.load_vector(vector, kind, first, number * lanes)
                    for slot, factor in zip(row, factors, strict=True):
                        code.add_product(vector, slot, values, factor)
        totals = [
            _interleaved(code, kind, lanes, [code.let(f"load {vector}, ptr {slot}") for slot in row]) for row in sums
        ]
        _print_results(code, self, [(total, lanes * filters) for total in totals])
        return code.text()

    def print_copy(self, name: str) -> str:
        return print_copy_by_channel(self.element, self.lanes, self.stride * self.channels, f"{name}_copy")

    def print_steps(self, code: Builder, fields: Fields) -> dict[str, Size]:
        channel = code.div(fields["padded_width"], self.stride)
        return {"step": fields["step_across"], "pixel_step": 1, "channel_step": channel}


def channel_pixels(columns: int, filters: int, registers: Registers) -> int:
    """Return the pixels of a tile whose vectors are channels: about as many sums as a vector has elements."""
    most = max(1, min(registers.most_rows(filters), max(2, registers.lanes // filters)))
    return -(-columns // -(-columns // most))


def pixel_vectors(columns: int, filters: int, registers: Registers) -> tuple[int, int]:
    """Return the elements of a vector of pixels, and the vectors of a tile: those with which a row takes the least."""
    lanes = min(registers.lanes, 1 << (columns.bit_length() - 1))
    fitting = [v for v in range(1, 9) if v * lanes <= columns and (filters + 1) * v + 1 <= registers.count] or [1]

    def cycles(vectors: int) -> float:
        return -(-columns // (vectors * lanes)) * (max(filters * vectors / 2, (filters + vectors) / 2, 4.0) + 3.0)

    return lanes, min(fitting, key=cycles)


# --- results ---------------------------------------------------------------------------------------------------------


def elements_summed(code: Builder, kind: str, lanes: int, vectors: list[str]) -> str:
    """Return a vector of the sums of the elements of each vector, of which there are at most `lanes`."""
    count, size = len(vectors), lanes
    while size > 1 and len(vectors) > 1:
        vectors = vectors + ["zeroinitializer"] * (len(vectors) % 2)
        vectors = [_neighbours_added(code, kind, size, *pair) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
    (found,) = vectors
    steps = (count - 1).bit_length()
    for _ in range(steps, lanes.bit_length() - 1):  # fewer vectors than elements: several elements of each are left
        found = _neighbours_added(code, kind, size, found)
        size //= 2
    return found if size == count else code.shuffle(size, kind, found, "poison", list(range(count)))


def _neighbours_added(code: Builder, kind: str, size: int, first: str, second: str = "") -> str:
    """Return the sums of elements 0 and 1, 2 and 3, and so on, of one vector or two behind each other."""
    places = range(0, 2 * size if second else size, 2)
    even = code.shuffle(size, kind, first, second or "poison", list(places))
    odd = code.shuffle(size, kind, first, second or "poison", [place + 1 for place in places])
    return code.let(f"fadd <{len(places)} x {kind}> {even}, {odd}")


def _print_results(code: Builder, kernel: ChannelVectors | PixelVectors, totals: list[tuple[str, int]]) -> None:
    """Store vectors of so many results each, pixel by pixel: at once if those are side by side."""
    kind, filters = kernel.element, kernel.filters
    is_dense = code.compare("eq", "%out_pixel", filters)

    def store_all(target: str) -> None:
        place = 0
        for total, count in totals:
            code.store_vector(f"<{count} x {kind}>", kind, total, target, place)
            place += count

    with code.when(is_dense):
        store_all("%out")
    with code.unless(is_dense):
        places = code.slot(f"[{kernel.pixels * filters} x {kind}]")
        store_all(places)
        with code.loop(0, kernel.pixels) as pixel:
            target = code.at(kind, "%out", code.mul(pixel, "%out_pixel"))
            code.copy(kind, code.at(kind, places, code.mul(pixel, filters)), target, filters)


# --- rows of pixels --------------------------------------------------------------------------------------------------


def _interleaved(code: Builder, kind: str, lanes: int, vectors: list[str]) -> str:
    """Return the first elements of all vectors, then the second ones, and so on, as one vector."""
    count, size = len(vectors), lanes
    parts: list[str] = vectors
    while len(parts) > 1:
        even: list[str] = [*parts, *["poison"] * (len(parts) % 2)]
        both = list(range(2 * size))
        parts = [code.shuffle(size, kind, one, two, both) for one, two in zip(even[::2], even[1::2], strict=True)]
        size *= 2
    if count == 1:
        return parts[0]
    places = [number * lanes + lane for lane in range(lanes) for number in range(count)]
    return code.shuffle(size, kind, parts[0], "poison", places)


def print_copy_by_channel(kind: str, lanes: int, step: int, name: str) -> str:
    """Return a function that copies rows with padding, as that of `print_padded_copy` does, and takes pixels apart.

    A row of the copy is [places between strides, channels, pixels that are a stride apart].

    Args:
        kind: the LLVM type.
        lanes: elements of a vector.
        step: elements from a pixel to the one that is a stride apart.
        name: of the function.
    """
    sizes = ("top", "count", "height", "row", "padded", "before")
    code = FunctionBuilder(name, ["ptr %source", "ptr noalias %target", *taking((), sizes)])
    pixels = code.div("%padded", step)
    # The first pixel and the one behind the last, all elements of which are in the image.
    first = code.least(code.ceil_div(code.greatest("%before", 0), step), pixels)
    last = code.div(code.greatest(code.add("%row", "%before"), 0), step)
    last = code.greatest(first, code.least(last, pixels))
    if step <= _MOST_STEP:
        last = code.add(first, code.mul(code.div(code.sub(last, first), lanes), lanes))
    else:
        last = first
    with code.loop(0, "%count") as number:
        line = code.add("%top", number)
        above, within = code.compare("sge", line, 0), code.compare("slt", line, "%height")
        is_inside = code.let(f"and i1 {above}, {within}")
        target = code.at(kind, "%target", code.mul(number, "%padded"))
        with code.unless(is_inside):
            code.clear(kind, target, "%padded")
        with code.when(is_inside):
            source = code.at(kind, "%source", code.mul(line, "%row"))
            for start, stop in ((0, first), (last, pixels)):
                with code.loop(start, stop) as pixel:
                    _print_checked_pixel(code, kind, step, source, code.at(kind, target, pixel), (pixel, pixels))
            if step <= _MOST_STEP:
                with code.loop(first, last, lanes) as pixel:
                    begin = code.sub(code.mul(pixel, step), "%before")
                    loaded = code.load_vector(f"<{lanes * step} x {kind}>", kind, source, begin)
                    for each in range(step):
                        places = list(range(each, lanes * step, step))
                        value = code.shuffle(lanes * step, kind, loaded, "poison", places)
                        row = code.at(kind, target, code.mul(pixels, each), pixel)
                        code.store_vector(f"<{lanes} x {kind}>", kind, value, row)
    return code.text()


def _print_checked_pixel(
    code: Builder, kind: str, step: int, source: str, target: str, place: tuple[Size, Size]
) -> None:
    """Copy a pixel of a row, and what is up to the next stride; what is outside the image is zero."""
    pixel, pixels = place
    begin = code.sub(code.mul(pixel, step), "%before")
    with code.loop(0, step) as number:
        element = code.add(begin, number)
        above, within = code.compare("sge", element, 0), code.compare("slt", element, "%row")
        is_inside = code.let(f"and i1 {above}, {within}")
        value = code.load(kind, source, code.choose(is_inside, element, 0))
        code.store(kind, code.choose(is_inside, value, "0.0", kind), target, code.mul(number, pixels))
