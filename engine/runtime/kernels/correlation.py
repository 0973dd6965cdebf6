"""Kernels of convolutions: tiles of the result, some pixels of a row times some filters, are summed in registers.

For a tile, each tap and channel adds the outer product of its pixels and its filters. No columns are copied: pixels are
read where they lie. Filters are laid in panels as wide as a tile beforehand, padded with zeros. Input that is padded is
copied with its padding, some rows at a time that stay in the cache.

The transpose in the input is the same kernel with taps turned, and channels and filters exchanged; where windows are
strides apart, once for each place between strides (`phases`).

Source: E. Georganas et al., "Anatomy of high-performance deep learning convolutions on SIMD architectures" (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

from .code import Code, Size
from .entry import Operand

# What the code reads of a phase, in this order.
FIELDS = (
    *("batch", "rows", "columns", "height", "width", "channels", "filters"),
    *("taps_down", "taps_across", "step_down", "step_across", "stride_down", "before_down", "before_across"),
    *("weight_start", "weight_down", "weight_across", "weight_channel", "weight_filter"),
    *("out_start", "out_image", "out_row", "out_pixel"),
    *("block", "blocks", "parts", "padded_width", "panels", "panel_size", "panel_address", "rows_address", "rows_size"),
)


@dataclass(frozen=True)
class CorrelationKernel:
    """A correlation over images, channels last.

    Attributes:
        operands: x [batch, height, width, channels], the weights, what else is passed, and the result.
        phases: how many parts of the result, spread over it, are computed one after the other.
        element: the LLVM type.
        lanes: elements of a vector.
        pixels: of a tile.
        vectors: filters of a tile, in vectors.
        pixel_step: elements of x from a pixel of a tile to the next.
        is_padded: whether windows reach out of the input.
    """

    operands: tuple[Operand, ...]
    phases: int
    element: str
    lanes: int
    pixels: int
    vectors: int
    pixel_step: int
    is_padded: bool

    @property
    def number_count(self) -> int:
        return self.phases * len(FIELDS)

    def print_run(self, name: str) -> str:
        printed = [_print_tile(self, name), _print_pack(self, name)]
        if self.is_padded:
            printed.append(print_padded_copy(self.element, name))
        return "".join([*printed, _print_task(self, name), _print_run(self, name)])


class Fields:
    """The numbers of a phase, as values in a function."""

    def __init__(self, code: Code, numbers: str, names: tuple[str, ...] = FIELDS) -> None:
        self._code, self._numbers, self._names = code, numbers, names

    def __getitem__(self, name: str) -> str:
        return self._code.load("i64", self._numbers, self._names.index(name))

    def address(self, name: str, kind: str) -> str:
        """A number as a pointer."""
        return self._code.value(f"inttoptr i64 {self[name]} to {kind}*")


def _print_tile(kernel: CorrelationKernel, name: str) -> str:
    """One tile: pixels that lie `pixel_step` apart, and the filters of a panel."""
    kind, lanes, vectors = kernel.element, kernel.lanes, kernel.vectors
    vector, width = f"<{lanes} x {kind}>", lanes * vectors
    sizes = ("row", "step", "taps_down", "taps_across", "channels", "out_pixel", "left")
    parameters = [(f"{kind}*", "%x"), (f"{kind}*", "%panel"), (f"{kind}*", "%out")]
    code = Code(f"{name}_tile", [*parameters, *[("i64", f"%{size}") for size in sizes]])
    sums = [[code.slot(vector) for _ in range(vectors)] for _ in range(kernel.pixels)]
    weights = code.slot(f"{kind}*")
    code.line(f"store {kind}* %panel, {kind}** {weights}")
    for slot in (slot for row in sums for slot in row):
        code.line(f"store {vector} zeroinitializer, {vector}* {slot}")
    with code.loop(0, "%taps_down") as down, code.loop(0, "%taps_across") as across:
        start = code.add(code.mul(down, "%row"), code.mul(across, "%step"))
        cells = code.at(kind, "%x", start)
        with code.loop(0, "%channels") as channel:
            here = code.value(f"load {kind}*, {kind}** {weights}")
            loaded = [code.load_vector(vector, kind, here, v * lanes) for v in range(vectors)]
            code.line(f"store {kind}* {code.at(kind, here, width)}, {kind}** {weights}")
            first = code.at(kind, cells, channel)
            for pixel, row in enumerate(sums):
                value = code.broadcast(lanes, kind, code.load(kind, first, pixel * kernel.pixel_step))
                _add_products(code, vector, row, value, loaded)
    _print_tile_result(code, kernel, sums)
    return code.text()


def _add_products(code: Code, vector: str, sums: list[str], value: str, factors: list[str]) -> None:
    for slot, factor in zip(sums, factors, strict=True):
        total = code.value(f"load {vector}, {vector}* {slot}")
        code.line(f"store {vector} {code.multiply_add(vector, value, factor, total)}, {vector}* {slot}")


def _print_tile_result(code: Code, kernel: CorrelationKernel, sums: list[list[str]]) -> None:
    """Store the sums: as vectors, or if the filters end inside of the tile, by way of the stack."""
    kind, lanes, width = kernel.element, kernel.lanes, kernel.lanes * kernel.vectors
    vector = f"<{lanes} x {kind}>"
    with code.when(code.compare("sge", "%left", width)):
        for pixel, row in enumerate(sums):
            target = code.at(kind, "%out", code.mul("%out_pixel", pixel))
            for v, slot in enumerate(row):
                code.store_vector(vector, kind, code.value(f"load {vector}, {vector}* {slot}"), target, v * lanes)
    with code.when(code.compare("slt", "%left", width)):
        places = code.slot(f"[{kernel.pixels * width} x {kind}]")
        flat = code.value(f"bitcast [{kernel.pixels * width} x {kind}]* {places} to {kind}*")
        for pixel, row in enumerate(sums):
            for v, slot in enumerate(row):
                value = code.value(f"load {vector}, {vector}* {slot}")
                code.store_vector(vector, kind, value, flat, pixel * width + v * lanes)
        with code.loop(0, kernel.pixels) as pixel, code.loop(0, "%left") as filter_:
            value = code.load(kind, flat, code.add(code.mul(pixel, width), filter_))
            code.store(kind, value, "%out", code.add(code.mul(pixel, "%out_pixel"), filter_))


def _print_pack(kernel: CorrelationKernel, name: str) -> str:
    """Lay the filters of one panel side by side: [taps, channels, filters of a tile]."""
    kind, width = kernel.element, kernel.lanes * kernel.vectors
    code = Code(f"{name}_pack", [("i8*", "%context"), ("i64", "%panel")])
    pointers = _print_context(code, kind)
    fields = Fields(code, pointers[3])
    weights = code.at(kind, pointers[1], fields["weight_start"])
    target = code.at(kind, fields.address("panel_address", kind), code.mul("%panel", fields["panel_size"]))
    first = code.mul("%panel", width)
    weights = code.at(kind, weights, code.mul(first, fields["weight_filter"]))
    left = code.least(code.sub(fields["filters"], first), width)
    channels, across_count, step = fields["channels"], fields["taps_across"], fields["weight_filter"]
    with code.loop(0, fields["taps_down"]) as down, code.loop(0, across_count) as across:
        from_tap = code.add(code.mul(down, fields["weight_down"]), code.mul(across, fields["weight_across"]))
        to_tap = code.mul(code.add(code.mul(down, across_count), across), channels)
        with code.loop(0, channels) as channel:
            source = code.at(kind, weights, code.add(from_tap, code.mul(channel, fields["weight_channel"])))
            place = code.at(kind, target, code.mul(code.add(to_tap, channel), width))
            with code.loop(0, left) as filter_:
                code.store(kind, code.load(kind, source, code.mul(filter_, step)), place, filter_)
            with code.loop(left, width) as filter_:
                code.line(f"store {kind} 0.0, {kind}* {code.at(kind, place, filter_)}")
    return code.text()


def _print_context(code: Code, kind: str) -> tuple[str, str, str, str]:
    """The pointers that a task finds in its context: three arrays, and the numbers."""
    context = code.value("bitcast i8* %context to i64*")
    numbers = [code.load("i64", context, position) for position in range(4)]
    x, weights, out = (code.value(f"inttoptr i64 {number} to {kind}*") for number in numbers[:3])
    return x, weights, out, code.value(f"inttoptr i64 {numbers[3]} to i64*")


def _print_task(kernel: CorrelationKernel, name: str) -> str:
    """A part: some blocks of rows of the result."""
    kind, width = kernel.element, kernel.lanes * kernel.vectors
    code = Code(f"{name}_task", [("i8*", "%context"), ("i64", "%part")])
    x, _, out, numbers = _print_context(code, kind)
    fields = Fields(code, numbers)
    blocks, parts = fields["blocks"], fields["parts"]
    units = code.mul(fields["batch"], blocks)
    begin = code.div(code.mul(units, "%part"), parts)
    end = code.div(code.mul(units, code.add("%part", 1)), parts)
    columns, channels, stride = fields["columns"], fields["channels"], fields["stride_down"]
    tiles = code.div(code.add(columns, kernel.pixels - 1), kernel.pixels)
    out = code.at(kind, out, fields["out_start"])
    panels = fields.address("panel_address", kind)
    with code.loop(begin, end) as unit:
        image, block = code.div(unit, blocks), code.value(f"srem i64 {unit}, {blocks}")
        first = code.mul(block, fields["block"])
        last = code.least(code.add(first, fields["block"]), fields["rows"])
        top = code.sub(code.mul(first, stride), fields["before_down"])
        if kernel.is_padded:
            source, row = print_padded_rows(code, name, fields, kind, x, image, top, code.sub(last, first))
        else:
            row = code.mul(fields["width"], channels)
            start = code.add(code.mul(image, fields["height"], row), code.mul(top, row))
            source = code.at(kind, x, code.sub(start, code.mul(fields["before_across"], channels)))
        down, across = code.mul(fields["step_down"], row), code.mul(fields["step_across"], channels)
        target = code.at(kind, out, code.mul(image, fields["out_image"]))
        with code.loop(0, fields["panels"]) as panel:
            weights = code.at(kind, panels, code.mul(panel, fields["panel_size"]))
            done = code.mul(panel, width)
            left = code.sub(fields["filters"], done)
            with code.loop(first, last) as line, code.loop(0, tiles) as tile:
                column = code.least(code.mul(tile, kernel.pixels), code.sub(columns, kernel.pixels))
                cells = code.add(code.mul(code.sub(line, first), stride, row), code.mul(column, kernel.pixel_step))
                place = code.add(code.mul(line, fields["out_row"]), code.mul(column, fields["out_pixel"]), done)
                sizes = (down, across, fields["taps_down"], fields["taps_across"], channels, fields["out_pixel"], left)
                pointers = (code.at(kind, source, cells), weights, code.at(kind, target, place))
                passed = [f"{kind}* {pointer}" for pointer in pointers] + [f"i64 {size}" for size in sizes]
                code.line(f"call void @{name}_tile({', '.join(passed)})")
    return code.text()


def print_padded_rows(
    code: Code, name: str, fields: Fields, kind: str, x: str, image: Size, top: Size, rows: Size
) -> tuple[str, Size]:
    """Copy the rows of x under `rows` rows of windows, the first of which begin at row `top`, with their padding.

    Returns:
        Where they lie, and how many elements a row has.
    """
    channels, height, width = fields["channels"], fields["height"], fields["width"]
    row = code.mul(fields["padded_width"], channels)
    space = code.at(kind, fields.address("rows_address", kind), code.mul("%part", fields["rows_size"]))
    count = code.add(
        code.mul(code.sub(rows, 1), fields["stride_down"]),
        code.mul(code.sub(fields["taps_down"], 1), fields["step_down"]),
        1,
    )
    source = code.at(kind, x, code.mul(image, height, width, channels))
    before = code.mul(fields["before_across"], channels)
    sizes = (top, count, height, code.mul(width, channels), row, before)
    passed = [f"{kind}* {source}", f"{kind}* {space}", *[f"i64 {size}" for size in sizes]]
    code.line(f"call void @{name}_copy({', '.join(passed)})")
    return space, row


def print_padded_copy(kind: str, name: str) -> str:
    """A function that copies rows with padding. Rows and columns that lie outside the image are zero.

    Its sizes: the first row, how many rows, those of the image, elements of a row of the image, elements of a row of
    the copy, and how many of these lie before the image.
    """
    sizes = ("top", "count", "height", "row", "padded", "before")
    parameters = [(f"{kind}*", "%source"), (f"{kind}*", "noalias %target")]
    code = Code(f"{name}_copy", [*parameters, *[("i64", f"%{size}") for size in sizes]])
    begin = code.least(code.greatest("%before", 0), "%padded")
    end = code.greatest(begin, code.least("%padded", code.add("%before", "%row")))
    with code.loop(0, "%count") as number:
        line = code.add("%top", number)
        below = code.compare("sge", line, 0)
        within = code.compare("slt", line, "%height")
        is_inside = code.value(f"and i1 {below}, {within}")
        target = code.at(kind, "%target", code.mul(number, "%padded"))
        source = code.at(kind, "%source", code.sub(code.mul(line, "%row"), "%before"))
        start = code.value(f"select i1 {is_inside}, i64 {begin}, i64 %padded")
        stop = code.value(f"select i1 {is_inside}, i64 {end}, i64 %padded")
        with code.loop(0, start) as place:
            code.line(f"store {kind} 0.0, {kind}* {code.at(kind, target, place)}")
        with code.loop(start, stop) as place:
            code.store(kind, code.load(kind, source, place), target, place)
        with code.loop(stop, "%padded") as place:
            code.line(f"store {kind} 0.0, {kind}* {code.at(kind, target, place)}")
    return code.text()


def _print_run(kernel: CorrelationKernel, name: str) -> str:
    operands = kernel.operands
    parameters = [(operand.pointer, f"%d{k}") for k, operand in enumerate(operands)]
    code = Code(f"{name}_run", [*parameters, ("i64*", "%numbers")])
    arrays = [f"%d{k}" for k in (0, 1, len(operands) - 1)]
    context = print_context(code, kernel.element, arrays)
    with code.loop(0, kernel.phases) as phase:
        numbers = code.at("i64", "%numbers", code.mul(phase, len(FIELDS)))
        code.store("i64", code.value(f"ptrtoint i64* {numbers} to i64"), context, 3)
        fields = Fields(code, numbers)
        passed = code.value(f"bitcast i64* {context} to i8*")
        print_parallel(code, f"{name}_pack", passed, fields["panels"])
        print_parallel(code, f"{name}_task", passed, fields["parts"])
    return code.text()


def print_context(code: Code, kind: str, arrays: list[str]) -> str:
    """A context for tasks, with the addresses of three arrays; the numbers are still to be put behind them."""
    slot = code.slot("[4 x i64]")
    context = code.value(f"bitcast [4 x i64]* {slot} to i64*")
    for position, array in enumerate(arrays):
        code.store("i64", code.value(f"ptrtoint {kind}* {array} to i64"), context, position)
    return context


def print_parallel(code: Code, task: str, context: str, parts: Size) -> None:
    """Call a task for each part, on the engine's threads."""
    code.line(f"call void @anabranch_parallel(void (i8*, i64)* @{task}, i8* {context}, i64 {parts})")
