"""Kernels of convolutions with 3 x 3 taps by Winograd's minimal filtering, a block of tiles after the other.

The weights are transformed first, into ``U[place][panel][channel][filter of the panel]``: a place is one of the
(m + 2)**2 cells of a transformed tile. Then threads take blocks of tiles, whose transforms and products stay in the
second cache: the input's transform ``V[place][vector of channels][tile][channel]``, one product for each place,
``M[place][panel][tile][filter of the panel]``, and the transform back. Cells outside are read from a row of zeros.

The gradient in the input is the same with the taps turned, and channels and filters exchanged.

Source: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2016).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ...common.quick_dataclass import dataclass
from ..expression.llvm import KernelSpec
from ..host.scratch import NamedNumbers
from ..llvm.builder import BYTES, SHORT_LOOP, Builder, FunctionBuilder, Size, taking
from ..llvm.compiler import Effort
from ..llvm.entry import Functions, Operand
from ..llvm.squares import print_exchange
from ..llvm.tasks import Fields, begin_run_function, print_parallel, print_release, print_share
from .transforms import TAPS
from .winograd_functions import TileFunctions, convolution_functions, print_cells

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
    "scratch_bytes",
)
_COUNTER, _NUMBERS, _THEN = 4, 3, 5  # where in a task's context; the addresses of the arrays come first
_FOLLOWING = 6  # and from there on, those of the operands of what follows


@dataclass(frozen=True)
class FollowingFunctions:
    """The body of an elementwise kernel, which convolutions call: those that the same follows share it.

    Attributes:
        body: over pixels and filters.
    """

    body: KernelSpec

    effort = Effort.LARGE

    @property
    def names(self) -> tuple[str, ...]:
        return (f"{self._prefix}_body",)

    @property
    def _prefix(self) -> str:
        return f"following_{hashlib.sha256(repr(self.body).encode()).hexdigest()[:16]}"

    def print_declarations(self) -> str:
        parameters = [*["ptr"] * len(self.body.operands), "ptr", "i64", "i64"]
        return f"declare void @{self.names[0]}({', '.join(parameters)})\n"

    def print_functions(self) -> str:
        return self.body.print_body(self._prefix, SHORT_LOOP, linkage="")


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

    @property
    def functions(self) -> FollowingFunctions:
        return FollowingFunctions(self.body)

    def operands(self) -> tuple[str, list[str]]:
        """Return the parameters of a run function: the convolution's result, and the operands of the body."""
        first = self.taken + len(self.body.inputs) - 1
        results = first + self.keeps
        out = f"%d{first if self.keeps else results + self.target}"
        others = [f"%d{self.taken + k}" for k in range(len(self.body.inputs) - 1)]
        return out, [out, *others, *[f"%d{results + k}" for k in range(len(self.body.outputs))]]


@dataclass(frozen=True)
class WinogradKernel(NamedNumbers):
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

    effort = Effort.PRINTED
    number_names = WINOGRAD_FIELDS

    @property
    def calls(self) -> tuple[Functions, ...]:
        following = (self.following.functions,) if self.following else ()
        return (self.functions, self.panels, *following)

    @property
    def functions(self) -> TileFunctions:
        return convolution_functions(self.element, self.lanes, self.tile)

    @property
    def panels(self) -> PanelFunctions:
        return PanelFunctions(self.functions, self.rows, self.vectors)

    @property
    def width(self) -> int:
        """The filters of a panel."""
        return self.lanes * self.vectors

    def print_run(self, name: str) -> str:
        then = _print_following(self.following, self.tile, name) if self.following else ""
        return then + _print_run(self, name)


@dataclass(frozen=True)
class PanelFunctions:
    """The tasks of convolutions that sum products in one tile of registers, whatever follows.

    Attributes:
        functions: those of the tiles of images.
        rows: tiles of images that are summed at once.
        vectors: filters of a panel, in vectors.
    """

    functions: TileFunctions
    rows: int
    vectors: int

    effort = Effort.PRINTED

    @property
    def element(self) -> str:
        return self.functions.element

    @property
    def lanes(self) -> int:
        return self.functions.lanes

    @property
    def width(self) -> int:
        """The filters of a panel."""
        return self.lanes * self.vectors

    @property
    def names(self) -> tuple[str, ...]:
        return self.name("weights"), self.name("task")

    def name(self, part: str) -> str:
        """Return the name of a function."""
        return self.functions.name(f"{self.rows}_{self.vectors}_{part}")

    def print_declarations(self) -> str:
        return "".join(f"declare void @{name}(ptr, i64)\n" for name in self.names)

    def print_functions(self) -> str:
        printed = [
            self.functions.print_declarations(),
            _print_turn(self),
            _print_weights(self),
            print_product(self.name("product"), self.element, self.lanes, self.rows, self.vectors),
            _print_task(self),
        ]
        return "".join(printed)


# --- the weights ------------------------------------------------------------------------------------------------------


def _print_weights(kernel: PanelFunctions) -> str:
    """Print the function of a part: transform the weights of some vectors of channels for some panels.

    The last vector of channels ends with the last channel: weights of channels that the one before it has are zero.
    """
    kind, lanes, width = kernel.element, kernel.lanes, kernel.width
    code = FunctionBuilder(kernel.name("weights"), ["ptr %context", "i64 %part"], linkage="", flushes=True)
    (_, weights, _), fields = print_task_head(code, WINOGRAD_FIELDS)
    weights = code.at(kind, weights, fields["weight_start"])
    target, vectors = fields.address("weights_address"), fields["channel_vectors"]
    begin, end = print_share(code, code.mul(vectors, fields["panels"]), "%part", fields["parts"])
    steps = [fields[f"weight_{step}"] for step in ("down", "across", "filter")]
    place, channels, filters = fields["weights_place"], fields["channels"], fields["filters"]
    by_channel, by_filter = fields["weight_channel"], steps[-1]
    is_turned, square = code.compare("ne", by_filter, 1), lanes * lanes
    held = code.slot(f"[{kernel.vectors * TAPS * TAPS * square} x {kind}]", alignment=64)
    turned = TAPS * square, square, 1
    of_taps = [code.choose(is_turned, there, step) for there, step in zip(turned, steps, strict=True)]
    with code.loop(begin, end) as unit:
        panel = code.div(unit, vectors)
        own = code.mul(code.sub(unit, code.mul(panel, vectors)), lanes)
        first = code.least(own, code.sub(channels, lanes))
        with code.when(is_turned), code.loop(0, kernel.vectors) as v:
            filter_ = code.add(code.mul(panel, width), code.mul(v, lanes))
            chosen = code.mul(code.least(filter_, code.sub(filters, 1)), by_filter)
            pointers = (
                code.at(kind, weights, code.add(first, chosen)),
                code.at(kind, held, code.mul(v, TAPS, TAPS, square)),
            )
            code.call_on(kernel.name("turn"), pointers, (*steps, code.greatest(code.sub(filters, filter_), 1)))
        with code.loop(0, lanes) as lane:
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
                there = code.at(kind, held, code.add(code.mul(lane, lanes), v * TAPS * TAPS * square))
                source = code.choose(is_turned, there, source, "ptr")
                pointers = (source, code.at(kind, row, v * lanes))
                code.call_on(kernel.functions.name("taps"), pointers, (*of_taps, left, place))
    return code.text()


def _print_turn(kernel: PanelFunctions) -> str:
    """Print the transposes of the taps of a vector of channels, each for some filters, the last of which is repeated.

    One by one, weights whose filters are some power of two apart would displace each other from the first cache.
    """
    kind, lanes = kernel.element, kernel.lanes
    vector = f"<{lanes} x {kind}>"
    code = FunctionBuilder(kernel.name("turn"), taking(("weights", "held"), ("down", "across", "filter", "left")))
    with code.loop(0, TAPS) as down, code.loop(0, TAPS) as across:
        source = code.at(kind, "%weights", code.add(code.mul(down, "%down"), code.mul(across, "%across")))
        target = code.at(kind, "%held", code.mul(code.add(code.mul(down, TAPS), across), lanes * lanes))
        last = code.sub("%left", 1)
        rows = [code.at(kind, source, code.mul(code.least(last, k), "%filter")) for k in range(lanes)]
        loaded = [code.load_vector(vector, kind, row) for row in rows]
        for k, column in enumerate(print_exchange(code, kind, loaded)):
            code.store_vector(vector, kind, column, target, k * lanes)
    return code.text()


# --- tiles ------------------------------------------------------------------------------------------------------------


def print_product(name: str, kind: str, lanes: int, rows: int, vectors: int) -> str:
    """Multiply some tiles of one place by one panel: the sums are kept in registers."""
    vector, width = f"<{lanes} x {kind}>", lanes * vectors
    code = FunctionBuilder(name, taking(("left", "right", "out"), ("count", "step")))
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
            code.add_product(vector, slot, spread, factor)


# --- blocks -----------------------------------------------------------------------------------------------------------


def print_task_head(code: Builder, names: tuple[str, ...]) -> tuple[list[str], Fields]:
    """Return the arrays and the numbers that a task finds in its context."""
    *arrays, numbers = (code.load("ptr", "%context", position) for position in range(_NUMBERS + 1))
    return arrays, Fields(code, numbers, names)


def print_counter(code: Builder) -> str:
    """Print the counter of units that threads share."""
    return code.at("i64", "%context", _COUNTER)


class TileReader:
    """Code that goes through tiles, with tables of their cells.

    Args:
        code: of the task.
        functions: those of the tiles.
        fields: their numbers (`TILES`).
    """

    def __init__(self, code: Builder, functions: TileFunctions, fields: Fields) -> None:
        self._code, self._kind, self._functions = code, functions.element, functions
        self._tile, self._cells = functions.tile, functions.transforms.cells
        names = ("height", "width", "rows", "columns", "before_down", "before_across", "tile_rows", "tile_columns")
        self._of = {name: fields[name] for name in (*names, "channels", "filters")}
        self._image = code.mul(self._of["tile_rows"], self._of["tile_columns"])
        self._zeros = fields["zeros_address"]

    def place(self, tile: Size) -> tuple[Size, Size, Size]:
        """Return the image of a tile, and the row and the column of its first result."""
        code, across = self._code, self._of["tile_columns"]
        image = code.div(tile, self._image)
        inside = code.sub(tile, code.mul(image, self._image))
        row = code.div(inside, across)
        return image, code.mul(row, self._tile), code.mul(code.sub(inside, code.mul(row, across)), self._tile)

    def input_table(self) -> str:
        """Return the table of a tile that is inside the image."""
        return self._table(self._cells, ("height", "width"), "channels")

    def output_table(self) -> str:
        return self._table(self._tile, ("rows", "columns"), "filters")

    def _table(self, cells: int, sizes: tuple[str, str], channels: str) -> str:
        table = self._slot(cells)
        steps = (*self._steps(sizes[1], channels), 0)
        print_cells(self._code, self._functions, table, cells, (0, 0), (cells, cells), steps)
        return table

    def _steps(self, columns: str, channels: str) -> tuple[Size, Size]:
        """Return the bytes from a row to the next, and from a pixel to the next."""
        pixel = self._code.mul(self._of[channels], BYTES[self._kind])
        return self._code.mul(self._of[columns], pixel), pixel

    def _slot(self, cells: int) -> str:
        return self._code.slot(f"[{cells * cells} x i64]")

    def input(self, x: str, place: tuple[Size, Size, Size], inner: str, edge: str) -> tuple[str, str]:
        """Return the first cell of the input under a tile, as bytes, and the table of its cells.

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
        """Return the first result of a tile, as bytes, and the table of all; those outside the image are `unread`."""
        return self._cells_of(out, place, ("rows", "columns"), "filters", self._tile, inner, edge, unread)

    def edge_tables(self) -> tuple[str, str]:
        """Return memory for the tables of a tile that reaches out of the image: of the input, and of the result."""
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
        with code.unless(is_inside):
            far = code.sub(outside, code.let(f"ptrtoint ptr {base} to i64"))
            steps = (*self._steps(sizes[1], channels), far)
            print_cells(code, self._functions, edge, cells, (row, column), (down, across), steps)
        return base, code.let(f"select i1 {is_inside}, ptr {inner}, ptr {edge}")


def _print_task(kernel: PanelFunctions) -> str:
    """Print the function of a part: blocks of tiles, for as long as there are any."""
    kind, functions = kernel.element, kernel.functions
    code = FunctionBuilder(kernel.name("task"), ["ptr %context", "i64 %part"], linkage="", flushes=True)
    (x, _, out), fields = print_task_head(code, WINOGRAD_FIELDS)
    tiles = TileReader(code, functions, fields)
    inner, outer, edges = tiles.input_table(), tiles.output_table(), tiles.edge_tables()
    memory = code.at(kind, fields.address("parts_address"), code.mul("%part", fields["part_size"]))
    block, input_place, product_place = fields["block"], fields["input_place"], fields["product_place"]
    places = functions.transforms.cells**2
    products = code.at(kind, memory, code.mul(input_place, places))
    unread = code.let(f"ptrtoint ptr {code.at(kind, products, code.mul(product_place, places))} to i64")
    vectors, panels, count = fields["channel_vectors"], fields["panels"], fields["tiles"]
    counter = print_counter(code)
    with code.claim(counter, fields["blocks"]) as unit:
        print_release(code, counter)
        first = code.mul(unit, block)
        last = code.least(code.add(first, block), count)
        groups = code.div(code.add(code.sub(last, first), kernel.rows - 1), kernel.rows)
        # Tiles are summed some at once: for what lacks, the last one is transformed again.
        with code.loop(0, code.mul(groups, kernel.rows)) as number:
            place = tiles.place(code.least(code.add(first, number), code.sub(last, 1)))
            base, table = tiles.input(x, place, inner, edges[0])
            target = code.at(kind, memory, code.mul(number, kernel.lanes))
            sizes = (fields["channels"], vectors, code.mul(block, kernel.lanes), input_place)
            code.call_on(functions.name("input"), (base, table, target), sizes)
        _print_products(code, kernel, fields, memory, products, groups)
        with code.loop(first, last) as tile:
            base, table = tiles.output(out, tiles.place(tile), outer, edges[1], unread)
            source = code.at(kind, products, code.mul(code.sub(tile, first), kernel.width))
            sizes = (fields["filters"], panels, kernel.vectors, code.mul(block, kernel.width), product_place)
            code.call_on(functions.name("back"), (source, base, table), sizes)
        then = code.load("ptr", "%context", _THEN)
        with code.when(code.let(f"icmp ne ptr {then}, null")):
            code.line(f"call void {then}(ptr %context, i64 {first}, i64 {last})")
    return code.text()


def _print_following(following: Following, tile: int, name: str) -> str:
    """Print what follows on the pixels of some tiles: on all rows of a row of tiles, or on parts of rows."""
    code = FunctionBuilder(f"{name}_then", ["ptr %context", "i64 %first", "i64 %last"])
    _, fields = print_task_head(code, WINOGRAD_FIELDS)
    body, filters = following.body, fields["filters"]
    pointers = [code.load("ptr", "%context", _FOLLOWING + k) for k in range(len(body.operands))]
    numbers = code.slot(f"[{body.number_count} x i64]")
    steps = [filters if body.operands[k].steps[1] else 1 for k, _ in body.strided]
    for position, value in enumerate([filters, *steps]):
        code.store("i64", value, numbers, 1 + position)  # behind the pixels, which the call gives
    down, across, tile_rows, tile_columns = (fields[name] for name in ("rows", "columns", "tile_rows", "tile_columns"))
    first, last = "%first", "%last"
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
            sizes = (pixel, code.add(pixel, count))
            code.call_on(following.functions.names[0], (*pointers, numbers), sizes)
    return code.text()


def _print_products(
    code: Builder, kernel: PanelFunctions, fields: Fields, memory: str, products: str, groups: Size
) -> None:
    """Multiply the tiles of a block by the weights, place by place."""
    kind, rows = kernel.element, kernel.rows
    block, vectors = fields["block"], fields["channel_vectors"]
    weights, weights_place = fields.address("weights_address"), fields["weights_place"]
    places = kernel.functions.transforms.cells**2
    with code.loop(0, places) as place, code.loop(0, fields["panels"]) as panel:
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
            code.call_on(kernel.name("product"), pointers, (vectors, code.mul(block, kernel.lanes)))


def print_head(code: Builder, out: str, then: str = "null", others: Sequence[str] = ()) -> str:
    """Print a context for tasks: two operands, the result, the numbers, a counter, what follows, and its operands."""
    context = code.slot(f"[{_FOLLOWING + len(others)} x i64]")
    for position, array in enumerate(("%d0", "%d1", out, "%numbers")):
        code.store("ptr", array, context, position)
    code.store("i64", 0, context, _COUNTER)
    code.store("ptr", then, context, _THEN)
    for position, array in enumerate(others):
        code.store("ptr", array, context, _FOLLOWING + position)
    return context


def print_zeros(code: Builder, kind: str, fields: Fields) -> None:
    """Clear the row that stands for cells outside the input."""
    code.clear(kind, fields.address("zeros_address"), fields["zeros_size"])


def _print_run(kernel: WinogradKernel, name: str) -> str:
    code = begin_run_function(kernel, name)
    out, others = kernel.following.operands() if kernel.following else (f"%d{len(kernel.operands) - 1}", [])
    context = print_head(code, out, f"@{name}_then" if kernel.following else "null", others)
    fields = Fields(code, "%numbers", WINOGRAD_FIELDS)
    print_zeros(code, kernel.element, fields)
    for part in ("weights", "task"):
        print_parallel(code, kernel.panels.name(part), context, fields["parts"])
    return code.text()
