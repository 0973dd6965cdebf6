"""Kernels of convolutions with 3 x 3 taps by Winograd's minimal filtering, a block of tiles after the other.

The weights are transformed first, into ``U[place][panel][channel][filter of the panel]``: a place is one of the
(m + 2)**2 cells of a transformed tile. Then threads take blocks of tiles, whose transforms and products stay in the
second cache: the input's transform ``V[place][vector of channels][tile][channel]``, one product for each place,
``M[place][panel][tile][filter of the panel]``, and the transform back. Cells outside are read from a row of zeros.

The gradient in the input is the same with the taps turned, and channels and filters exchanged.

Source: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..expression.llvm import KernelSpec
from ..llvm.builder import BYTES, SHORT_LOOP, Builder, FunctionBuilder, Size
from ..llvm.compiler import Effort
from ..llvm.entry import Operand
from ..llvm.tasks import Fields, print_parallel, print_share
from .transforms import TAPS, TRANSFORMS, Matrix, Transforms, print_on_both_axes

# What the code reads of the tiles: sizes of the input and the result, how they are cut up, what is before the input.
TILES = (
    *("channels", "filters", "height", "width", "rows", "columns", "before_down", "before_across"),
    *("tile_rows", "tile_columns", "tiles", "block", "blocks", "parts", "channel_vectors", "panels"),
    *("zeros_address", "zeros_size"),
)
WINOGRAD_FIELDS = (
    *TILES,
    *("weight_start", "weight_down", "weight_across", "weight_channel", "weight_filter"),
    *("weights_address", "weights_place", "parts_address", "part_size", "input_place", "product_place"),
)
_COUNTER, _NUMBERS = 4, 3  # where in a task's context; the addresses of the arrays come first
_FOLLOWING = 5  # and from there on, those of the operands of what follows


@dataclass(frozen=True)
class Following:
    """An elementwise kernel that is run on each block of the result while that is in the cache.

    Attributes:
        body: over pixels and filters; its first operand is the result of the convolution.
        taken: how many operands the convolution has.
        keeps: whether that result is an output of its own.
        target: the output in whose memory it is written, where it is none itself.
    """

    body: KernelSpec
    taken: int
    keeps: bool
    target: int

    def operands(self) -> tuple[str, list[str]]:
        """Return the parameters of a run function: the convolution's result, and the operands of the body."""
        first = self.taken + len(self.body.inputs) - 1
        results = first + self.keeps
        out = f"%d{first if self.keeps else results + self.target}"
        others = [f"%d{self.taken + k}" for k in range(len(self.body.inputs) - 1)]
        return out, [out, *others, *[f"%d{results + k}" for k in range(len(self.body.outputs))]]


@dataclass(frozen=True)
class WinogradKernel:
    """A convolution of images with 3 x 3 taps, channels last.

    Attributes:
        operands: x [batch, height, width, channels], the weights, what else is passed, and the result.
        element: the LLVM type.
        lanes: elements of a vector.
        tile: results of a tile along each axis.
        rows: tiles that are summed at once.
        vectors: filters of a panel, in vectors.
        following: what is computed of each block of the result.
    """

    operands: tuple[Operand, ...]
    element: str
    lanes: int
    tile: int
    rows: int
    vectors: int
    following: Following | None = None

    effort = Effort.LARGE

    @property
    def number_count(self) -> int:
        return len(WINOGRAD_FIELDS)

    @property
    def width(self) -> int:
        """The filters of a panel."""
        return self.lanes * self.vectors

    @property
    def transforms(self) -> Transforms:
        return TRANSFORMS[self.tile]

    def print_run(self, name: str) -> str:
        tiles = Tiles(self.element, self.lanes, self.transforms)
        printed = [
            _print_taps(self, name),
            _print_weights(self, name),
            print_input(tiles, f"{name}_input", tiles.transforms.input),
            print_product(f"{name}_product", self.element, self.lanes, self.rows, self.vectors),
            _print_back(self, name),
            self.following.body.print_body(name, SHORT_LOOP) if self.following else "",
            _print_task(self, name),
            _print_run(self, name),
        ]
        return "".join(printed)


@dataclass(frozen=True)
class Tiles:
    """The tiles of images in vectors of channels.

    Attributes:
        element: the LLVM type.
        lanes: elements of a vector.
        transforms: those of a tile.
    """

    element: str
    lanes: int
    transforms: Transforms

    @property
    def vector(self) -> str:
        return f"<{self.lanes} x {self.element}>"


# --- the weights ------------------------------------------------------------------------------------------------------


def _print_taps(kernel: WinogradKernel, name: str) -> str:
    """Transform the taps of a vector of filters of one channel; where it is less than a vector, others are zero."""
    kind, lanes, transforms = kernel.element, kernel.lanes, kernel.transforms
    vector, count = f"<{lanes} x {kind}>", TAPS * TAPS
    sizes = ("down", "across", "filter", "left", "place")
    parameters = ["ptr %weights", "ptr %target", *[f"i64 %{size}" for size in sizes]]
    code = FunctionBuilder(f"{name}_taps", parameters)
    held = code.slot(f"[{count * lanes} x {kind}]")
    taps = [(down, across) for down in range(TAPS) for across in range(TAPS)]
    sources = [code.at(kind, "%weights", code.add(code.mul("%down", a), code.mul("%across", b))) for a, b in taps]
    is_full, is_dense = code.compare("sge", "%left", lanes), code.compare("eq", "%filter", 1)
    is_quick = code.let(f"and i1 {is_full}, {is_dense}")
    with code.when(is_quick):
        for number, source in enumerate(sources):
            code.store_vector(vector, kind, code.load_vector(vector, kind, source), held, number * lanes)
    with code.when(code.let(f"xor i1 {is_quick}, true")):
        last = code.greatest(code.sub("%left", 1), 0)
        for lane in range(lanes):
            place = code.mul(code.least(lane, last), "%filter")
            is_there = code.compare("slt", lane, "%left")
            for number, source in enumerate(sources):
                value = code.let(f"select i1 {is_there}, {kind} {code.load(kind, source, place)}, {kind} 0.0")
                code.store(kind, value, held, number * lanes + lane)
    loaded = [code.load_vector(vector, kind, held, number * lanes) for number in range(count)]
    square = [loaded[start : start + TAPS] for start in range(0, count, TAPS)]
    made = print_on_both_axes(code, kind, lanes, transforms.weights, square)
    for number, value in enumerate(value for row in made for value in row):
        code.store_vector(vector, kind, value, "%target", code.mul("%place", number))
    return code.text()


def _print_weights(kernel: WinogradKernel, name: str) -> str:
    """A part: transform the weights of some vectors of channels for some panels.

    The last vector of channels ends with the last channel: weights of channels that the one before it has are zero.
    """
    kind, lanes, width = kernel.element, kernel.lanes, kernel.width
    code = FunctionBuilder(f"{name}_weights", ["ptr %context", "i64 %part"])
    (_, weights, _), fields = print_task_head(code, WINOGRAD_FIELDS)
    weights = code.at(kind, weights, fields["weight_start"])
    target, vectors = fields.address("weights_address", kind), fields["channel_vectors"]
    begin, end = print_share(code, code.mul(vectors, fields["panels"]), "%part", fields["parts"])
    steps = [fields[f"weight_{step}"] for step in ("down", "across", "filter")]
    place, channels, filters = fields["weights_place"], fields["channels"], fields["filters"]
    by_channel, by_filter = fields["weight_channel"], steps[-1]
    with code.loop(begin, end) as unit, code.loop(0, lanes) as lane:
        panel = code.div(unit, vectors)
        own = code.mul(code.sub(unit, code.mul(panel, vectors)), lanes)
        first = code.least(own, code.sub(channels, lanes))
        channel = code.add(first, lane)
        is_new = code.compare("sge", channel, own)
        row = code.at(kind, target, code.mul(code.add(code.mul(unit, lanes), lane), width))
        for v in range(kernel.vectors):
            filter_ = code.add(code.mul(panel, width), v * lanes)
            left = code.sub(filters, filter_)
            left = code.let(f"select i1 {is_new}, i64 {left}, i64 0")
            source = code.at(kind, weights, code.add(code.mul(channel, by_channel), code.mul(filter_, by_filter)))
            # Of what is not there the first filter is read.
            source = code.let(f"select i1 {code.compare('sgt', left, 0)}, ptr {source}, ptr {weights}")
            print_call(code, f"{name}_taps", (source, code.at(kind, row, v * lanes)), (*steps, left, place))
    return code.text()


# --- tiles ------------------------------------------------------------------------------------------------------------


def print_input(tiles: Tiles, name: str, matrix: Matrix) -> str:
    """Transform one tile, for some vectors of channels.

    The cells are the numbers of bytes of a table behind the first one. The last vector ends with the last channel.
    """
    kind, lanes, vector = tiles.element, tiles.lanes, tiles.vector
    cells = len(matrix[0])
    sizes = ("channels", "vectors", "step", "place")
    parameters = ["ptr %x", "ptr %table", "ptr %target"]
    code = FunctionBuilder(name, [*parameters, *[f"i64 %{size}" for size in sizes]])
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
    return code.text()


def _cell(code: Builder, base: str, number: int) -> str:
    """Return the address of a cell of a table."""
    return code.at("i8", base, code.load("i64", "%table", number))


def print_table(
    code: Builder,
    table: str,
    cells: int,
    first: tuple[Size, Size],
    sizes: tuple[Size, Size],
    pixel: Size,
    outside: Size,
) -> None:
    """Fill a table of the cells of a tile, in bytes from its first one.

    Args:
        table: where it is.
        cells: of the tile along each axis.
        first: the row and the column of the first cell.
        sizes: the rows and the columns of the image; cells outside are at `outside`.
        pixel: the bytes from a pixel to the next.
        outside: the bytes from the first cell to what stands for cells outside.
    """
    inside: list[list[str]] = []
    for start, size in zip(first, sizes, strict=True):
        places = [code.add(start, number) for number in range(cells)]
        bounds = [(code.compare("sge", place, 0), code.compare("slt", place, size)) for place in places]
        inside.append([code.let(f"and i1 {above}, {below}") for above, below in bounds])
    row = code.mul(sizes[1], pixel)
    for i in range(cells):
        for j in range(cells):
            is_there = code.let(f"and i1 {inside[0][i]}, {inside[1][j]}")
            offset = code.add(code.mul(row, i), code.mul(pixel, j))
            code.store("i64", code.let(f"select i1 {is_there}, i64 {offset}, i64 {outside}"), table, i * cells + j)


def print_product(name: str, kind: str, lanes: int, rows: int, vectors: int) -> str:
    """Multiply some tiles of one place by one panel: the sums are kept in registers."""
    vector, width = f"<{lanes} x {kind}>", lanes * vectors
    parameters = ["ptr %left", "ptr %right", "ptr %out"]
    code = FunctionBuilder(name, [*parameters, "i64 %count", "i64 %step"])
    sums = [[code.slot(vector) for _ in range(vectors)] for _ in range(rows)]
    for slot in (slot for row in sums for slot in row):
        code.line(f"store {vector} zeroinitializer, ptr {slot}")
    with code.loop(0, "%count") as block:
        left = code.at(kind, "%left", code.mul(block, "%step"))
        right = code.at(kind, "%right", code.mul(block, lanes * width))
        with code.loop(0, lanes) as channel:
            factors = code.at(kind, right, code.mul(channel, width))
            loaded = [code.load_vector(vector, kind, factors, v * lanes) for v in range(vectors)]
            cell = code.at(kind, left, channel)
            print_outer_product(
                code, kind, lanes, [code.load(kind, cell, r * lanes) for r in range(rows)], loaded, sums
            )
    for r, row in enumerate(sums):
        for v, slot in enumerate(row):
            value = code.let(f"load {vector}, ptr {slot}")
            code.store_vector(vector, kind, value, "%out", r * width + v * lanes)
    return code.text()


def print_outer_product(
    code: Builder, kind: str, lanes: int, values: Sequence[str], factors: Sequence[str], sums: Sequence[Sequence[str]]
) -> None:
    """Add the products of each of some numbers and each of some vectors to sums in slots."""
    vector = f"<{lanes} x {kind}>"
    for value, row in zip(values, sums, strict=True):
        spread = code.broadcast(lanes, kind, value)
        for factor, slot in zip(factors, row, strict=True):
            total = code.let(f"load {vector}, ptr {slot}")
            code.line(f"store {vector} {code.multiply_add(vector, spread, factor, total)}, ptr {slot}")


def _print_back(kernel: WinogradKernel, name: str) -> str:
    """Transform the products of one tile back, for all filters; results outside the image go to what is never read."""
    kind, lanes, width = kernel.element, kernel.lanes, kernel.width
    vector, matrix = f"<{lanes} x {kind}>", kernel.transforms.back
    sizes = ("filters", "panels", "step", "place")
    parameters = ["ptr %products", "ptr %out", "ptr %table"]
    code = FunctionBuilder(f"{name}_back", [*parameters, *[f"i64 %{size}" for size in sizes]])
    cells = len(matrix[0])
    with code.loop(0, "%panels") as panel, code.loop(0, kernel.vectors) as v:
        filter_ = code.add(code.mul(panel, width), code.mul(v, lanes))
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
                for number, value in enumerate(made):
                    _print_few(code, kind, lanes, value, _cell(code, here, number), left)
    return code.text()


def _print_few(code: Builder, kind: str, lanes: int, value: str, target: str, count: Size) -> None:
    """Store the first elements of a vector, by way of the stack."""
    slot = code.slot(f"<{lanes} x {kind}>")
    code.line(f"store <{lanes} x {kind}> {value}, ptr {slot}")
    with code.loop(0, count) as lane:
        code.store(kind, code.load(kind, slot, lane), target, lane)


# --- blocks -----------------------------------------------------------------------------------------------------------


def print_task_head(code: Builder, names: tuple[str, ...]) -> tuple[list[str], Fields]:
    """The arrays and the numbers that a task finds in its context."""
    *arrays, numbers = (code.load("ptr", "%context", position) for position in range(_NUMBERS + 1))
    return arrays, Fields(code, numbers, names)


def print_counter(code: Builder) -> str:
    """The counter of units that threads share."""
    return code.at("i64", "%context", _COUNTER)


class TileReader:
    """Code that goes through tiles, with tables of their cells.

    Args:
        code: of the task.
        tiles: what they are.
        fields: their numbers (`TILES`).
    """

    def __init__(self, code: Builder, tiles: Tiles, fields: Fields) -> None:
        self._code, self._kind = code, tiles.element
        self._tile, self._cells = tiles.transforms.tile, tiles.transforms.cells
        names = ("height", "width", "rows", "columns", "before_down", "before_across", "tile_rows", "tile_columns")
        self._of = {name: fields[name] for name in (*names, "channels", "filters")}
        self._image = code.mul(self._of["tile_rows"], self._of["tile_columns"])
        self._zeros = fields["zeros_address"]

    def place(self, tile: Size) -> tuple[Size, Size, Size]:
        """The image of a tile, and the row and the column of its first result."""
        code, across = self._code, self._of["tile_columns"]
        image = code.div(tile, self._image)
        inside = code.sub(tile, code.mul(image, self._image))
        row = code.div(inside, across)
        return image, code.mul(row, self._tile), code.mul(code.sub(inside, code.mul(row, across)), self._tile)

    def input_table(self) -> str:
        """The table of a tile that is inside the image."""
        return self._table(self._cells, ("height", "width"), "channels")

    def output_table(self) -> str:
        return self._table(self._tile, ("rows", "columns"), "filters")

    def _table(self, cells: int, sizes: tuple[str, str], channels: str) -> str:
        code = self._code
        table = self._slot(cells)
        pixel = code.mul(self._of[channels], BYTES[self._kind])
        row = code.mul(self._of[sizes[1]], pixel)
        for i in range(cells):
            for j in range(cells):
                code.store("i64", code.add(code.mul(row, i), code.mul(pixel, j)), table, i * cells + j)
        return table

    def _slot(self, cells: int) -> str:
        return self._code.slot(f"[{cells * cells} x i64]")

    def input(self, x: str, place: tuple[Size, Size, Size], inner: str, edge: str) -> tuple[str, str]:
        """The first cell of the input under a tile, as bytes, and the table of its cells.

        Args:
            x: the images.
            place: of the tile.
            inner: the table of tiles inside the image.
            edge: memory for the table of this one, if it reaches out of it.
        """
        image, row, column = place
        first = self._code.sub(row, self._of["before_down"]), self._code.sub(column, self._of["before_across"])
        return self._cells_of(
            x, (image, *first), ("height", "width"), "channels", self._cells, inner, edge, self._zeros
        )

    def output(self, out: str, place: tuple[Size, Size, Size], inner: str, edge: str, unread: Size) -> tuple[str, str]:
        """The first result of a tile, as bytes, and the table of all; those outside the image are at `unread`."""
        return self._cells_of(out, place, ("rows", "columns"), "filters", self._tile, inner, edge, unread)

    def edge_tables(self) -> tuple[str, str]:
        """Memory for the tables of a tile that reaches out of the image: of the input, and of the result."""
        return self._slot(self._cells), self._slot(self._tile)

    def _cells_of(
        self,
        array: str,
        place: tuple[Size, Size, Size],
        sizes: tuple[str, str],
        channels: str,
        cells: int,
        inner: str,
        edge: str,
        outside: Size,
    ) -> tuple[str, str]:
        code, kind = self._code, self._kind
        image, row, column = place
        down, across = (self._of[size] for size in sizes)
        pixels = code.add(code.mul(code.add(code.mul(image, down), row), across), column)
        start = code.mul(pixels, self._of[channels], BYTES[kind])
        base = code.at("i8", array, start)
        # Negative rows and columns are large numbers without a sign.
        fits = [code.compare("ule", at, code.sub(size, cells)) for at, size in ((row, down), (column, across))]
        holds = [code.compare("sge", size, cells) for size in (down, across)]
        is_inside = fits[0]
        for other in (fits[1], *holds):
            is_inside = code.let(f"and i1 {is_inside}, {other}")
        with code.when(code.let(f"xor i1 {is_inside}, true")):
            far = code.sub(outside, code.let(f"ptrtoint ptr {base} to i64"))
            pixel = code.mul(self._of[channels], BYTES[kind])
            print_table(code, edge, cells, (row, column), (down, across), pixel, far)
        return base, code.let(f"select i1 {is_inside}, ptr {inner}, ptr {edge}")


def _print_task(kernel: WinogradKernel, name: str) -> str:
    """A part: blocks of tiles, for as long as there are any."""
    kind = kernel.element
    code = FunctionBuilder(f"{name}_task", ["ptr %context", "i64 %part"])
    (x, _, out), fields = print_task_head(code, WINOGRAD_FIELDS)
    tiles = TileReader(code, Tiles(kind, kernel.lanes, kernel.transforms), fields)
    inner, outer, edges = tiles.input_table(), tiles.output_table(), tiles.edge_tables()
    memory = code.at(kind, fields.address("parts_address", kind), code.mul("%part", fields["part_size"]))
    block, input_place, product_place = fields["block"], fields["input_place"], fields["product_place"]
    places = kernel.transforms.cells**2
    products = code.at(kind, memory, code.mul(input_place, places))
    unread = code.let(f"ptrtoint ptr {code.at(kind, products, code.mul(product_place, places))} to i64")
    vectors, panels, count = fields["channel_vectors"], fields["panels"], fields["tiles"]
    with code.claim(print_counter(code), fields["blocks"]) as unit:
        first = code.mul(unit, block)
        last = code.least(code.add(first, block), count)
        groups = code.div(code.add(code.sub(last, first), kernel.rows - 1), kernel.rows)
        # Tiles are summed some at once: for what lacks, the last one is transformed again.
        with code.loop(0, code.mul(groups, kernel.rows)) as number:
            place = tiles.place(code.least(code.add(first, number), code.sub(last, 1)))
            base, table = tiles.input(x, place, inner, edges[0])
            target = code.at(kind, memory, code.mul(number, kernel.lanes))
            sizes = (fields["channels"], vectors, code.mul(block, kernel.lanes), input_place)
            print_call(code, f"{name}_input", (base, table, target), sizes)
        _print_products(code, kernel, name, fields, memory, products, groups)
        with code.loop(first, last) as tile:
            base, table = tiles.output(out, tiles.place(tile), outer, edges[1], unread)
            source = code.at(kind, products, code.mul(code.sub(tile, first), kernel.width))
            sizes = (fields["filters"], panels, code.mul(block, kernel.width), product_place)
            print_call(code, f"{name}_back", (source, base, table), sizes)
        if kernel.following:
            _print_following(code, kernel.following, kernel.tile, name, fields, (first, last))
    return code.text()


def _print_following(
    code: Builder, following: Following, tile: int, name: str, fields: Fields, tiles: tuple[Size, Size]
) -> None:
    """Compute what follows on the pixels of some tiles: on all rows of a row of tiles at once, or on parts of rows."""
    body, filters = following.body, fields["filters"]
    pointers = [code.load("ptr", "%context", _FOLLOWING + k) for k in range(len(body.operands))]
    numbers = code.slot(f"[{body.number_count} x i64]")
    steps = [filters if body.operands[k].steps[1] else 1 for k, _ in body.strided]
    for position, value in enumerate([filters, *steps]):
        code.store("i64", value, numbers, 1 + position)  # behind the pixels, which the call gives
    down, across, tile_rows, tile_columns = (fields[name] for name in ("rows", "columns", "tile_rows", "tile_columns"))
    first, last = tiles
    rows = code.div(first, tile_columns), code.add(code.div(code.sub(last, 1), tile_columns), 1)
    with code.loop(*rows) as row:
        start = code.mul(row, tile_columns)
        left = code.mul(code.sub(code.greatest(first, start), start), tile)
        right = code.least(across, code.mul(code.sub(code.least(last, code.add(start, tile_columns)), start), tile))
        image = code.div(row, tile_rows)
        top = code.mul(code.sub(row, code.mul(image, tile_rows)), tile)
        lines, width = code.least(code.sub(down, top), tile), code.sub(right, left)
        is_whole = code.compare("eq", width, across)
        count = code.choose(is_whole, code.mul(lines, across), width)
        begin = code.add(code.mul(code.add(code.mul(image, down), top), across), left)
        with code.loop(0, code.choose(is_whole, 1, lines)) as line:
            pixel = code.add(begin, code.mul(line, across))
            print_call(code, f"{name}_body", (*pointers, numbers), (pixel, code.add(pixel, count)))


def _print_products(
    code: Builder, kernel: WinogradKernel, name: str, fields: Fields, memory: str, products: str, groups: Size
) -> None:
    """Multiply the tiles of a block by the weights, place by place."""
    kind, rows = kernel.element, kernel.rows
    block, vectors = fields["block"], fields["channel_vectors"]
    weights, weights_place = fields.address("weights_address", kind), fields["weights_place"]
    with code.loop(0, kernel.transforms.cells**2) as place, code.loop(0, fields["panels"]) as panel:
        left = code.at(kind, memory, code.mul(place, fields["input_place"]))
        to_panel = code.mul(panel, vectors, kernel.lanes * kernel.width)
        right = code.at(kind, weights, code.add(code.mul(place, weights_place), to_panel))
        target = code.at(
            kind, products, code.add(code.mul(place, fields["product_place"]), code.mul(panel, block, kernel.width))
        )
        with code.loop(0, groups) as group:
            pointers = (
                code.at(kind, left, code.mul(group, rows * kernel.lanes)),
                right,
                code.at(kind, target, code.mul(group, rows * kernel.width)),
            )
            print_call(code, f"{name}_product", pointers, (vectors, code.mul(block, kernel.lanes)))


def print_head(code: Builder, out: str, others: Sequence[str] = ()) -> str:
    """Print a context for tasks: two operands, the result and the numbers, a counter, and further operands."""
    context = code.slot(f"[{_FOLLOWING + len(others)} x i64]")
    for position, array in enumerate(("%d0", "%d1", out, "%numbers")):
        code.store("ptr", array, context, position)
    code.store("i64", 0, context, _COUNTER)
    for position, array in enumerate(others):
        code.store("ptr", array, context, _FOLLOWING + position)
    return context


def print_call(code: Builder, name: str, pointers: Sequence[str], sizes: Sequence[Size]) -> None:
    """Call a function that takes pointers, and sizes behind them."""
    code.call(name, [*[("ptr", pointer) for pointer in pointers], *[("i64", size) for size in sizes]])


def print_zeros(code: Builder, kind: str, fields: Fields) -> None:
    """Clear the row that stands for cells outside the input."""
    zeros = fields.address("zeros_address", kind)
    with code.loop(0, fields["zeros_size"]) as place:
        code.line(f"store {kind} 0.0, ptr {code.at(kind, zeros, place)}")


def _print_run(kernel: WinogradKernel, name: str) -> str:
    parameters = [f"ptr %d{k}" for k in range(len(kernel.operands))]
    code = FunctionBuilder(f"{name}_run", [*parameters, "ptr %numbers"])
    out, others = kernel.following.operands() if kernel.following else (f"%d{len(kernel.operands) - 1}", [])
    context = print_head(code, out, others)
    fields = Fields(code, "%numbers", WINOGRAD_FIELDS)
    print_zeros(code, kernel.element, fields)
    print_parallel(code, f"{name}_weights", context, fields["parts"])
    print_parallel(code, f"{name}_task", context, fields["parts"])
    return code.text()
