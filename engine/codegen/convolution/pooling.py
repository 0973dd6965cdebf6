"""Kernels of pooling over one or two axes, channels last: maxima, their places, averages, and their gradients.

A window is combined for as many channels at once as a vector holds. Of windows inside of the input the cells
are known, and no loop counts them. Threads take rows of the result; where windows overlap, gradients add to cells of
other rows, and threads take whole images.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Protocol

from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.neural.pooling import AveragePool, AveragePoolGrad, MaxPool, MaxPoolGrad, MaxPoolPlaces
from ...ops.neural.window_geometry import Window
from ..elementwise.bound import BoundKernel
from ..elementwise.kernel_specs import specs_of
from ..expression.expression import llvm_type
from ..llvm.builder import Builder, FunctionBuilder, Size
from ..llvm.compiler import Effort
from ..llvm.entry import Operand
from ..llvm.library import library
from ..llvm.registers import registers_of
from ..llvm.tasks import Fields, begin_run_function, print_parallel, print_share

# What the code reads, in this order.
_FIELDS = (
    *("batch", "rows", "columns", "height", "width", "channels"),
    *("stride_down", "stride_across", "before_down", "before_across", "parts", "unit_rows", "units"),
)
_MOST_CELLS = 256  # of a window: their numbers are bytes
_MOST_UNROLLED = 25  # cells of a window inside of the input that are taken without a loop
_PARTS = 16

# Cells of a window, down and across: the first one, and the first behind the last.
Cells = tuple[tuple[Size, Size], tuple[Size, Size]]


@dataclass(frozen=True)
class PoolingKernel:
    """A pooling op.

    Attributes:
        operands: what the op takes, and its result.
        kind: the type name of the op.
        element: the LLVM type.
        lanes: elements of a vector.
        taps: cells of a window, down and across.
        is_inside: whether all windows are inside the input.
        is_spread: whether gradients are added up: windows overlap, or there are cells in none.
    """

    operands: tuple[Operand, ...]
    kind: str
    element: str
    lanes: int
    taps: tuple[int, int]
    is_inside: bool
    is_spread: bool

    effort = Effort.LARGE
    number_count = len(_FIELDS)

    def print_run(self, name: str) -> str:
        return _print_task(self, name) + _print_run(self, name)


def bind_pooling(operation: Operation) -> BoundKernel | None:
    """Return the kernel of an operation that pools, or that takes a gradient through that."""
    op = op_of(operation, (MaxPool, MaxPoolPlaces, MaxPoolGrad, AveragePool, AveragePoolGrad))
    inputs, outputs = specs_of(operation.inputs), specs_of(operation.outputs)
    is_gradient = isinstance(op, (MaxPoolGrad, AveragePoolGrad))
    x, dtype = outputs[0].shape if is_gradient else inputs[0].shape, inputs[0].dtype
    if x is None or not 3 <= len(x) <= 4 or dtype.name not in ("float32", "float64"):
        return None
    if any(dim is None for spec in (*inputs, *outputs) for dim in spec.shape or (None,)):
        return None
    sizes = [size or 0 for size in x]
    windows = op.windows(sizes[1:-1])
    down, across = (windows[0], windows[1]) if len(windows) == 2 else (Window(1, 1, 1, 1, 0, 1), windows[0])
    if 0 in sizes or not (down.out and across.out) or down.kernel * across.kernel > _MOST_CELLS:
        return None
    element = llvm_type(dtype)
    kernel = PoolingKernel(
        tuple(_operand(spec, position >= len(inputs)) for position, spec in enumerate((*inputs, *outputs))),
        op.type_name,
        element,
        registers_of(library.host, element).lanes,
        (down.kernel, across.kernel),
        down.inside and across.inside,
        is_gradient and not (_is_tiled(down) and _is_tiled(across)),
    )
    return BoundKernel(kernel, inputs, outputs, _numbers(kernel, down, across, sizes[0], sizes[-1]))


def _operand(spec: TensorSpec, is_written: bool) -> Operand:
    kind = "i8" if spec.dtype.name == "uint8" else llvm_type(spec.dtype)
    return Operand(kind, len(spec.shape or ()), (), is_written)


def _is_tiled(window: Window) -> bool:
    """Test whether each cell is in one window."""
    return window.kernel == window.stride and window.inside and window.extent == window.size


def _numbers(kernel: PoolingKernel, down: Window, across: Window, images: int, channels: int) -> list[int]:
    unit_rows = down.out if kernel.is_spread else 1
    units = images * (down.out // unit_rows)
    is_small = images * down.size * across.size * channels < machine_profile().parallel_elements
    numbers = {
        "batch": images,
        "rows": down.out,
        "columns": across.out,
        "height": down.size,
        "width": across.size,
        "channels": channels,
        "stride_down": down.stride,
        "stride_across": across.stride,
        "before_down": down.before,
        "before_across": across.before,
        "parts": 1 if is_small else min(_PARTS, units),
        "unit_rows": unit_rows,
        "units": units,
    }
    return [numbers[name] for name in _FIELDS]


class _Body:
    """The computation for some channels of one window.

    Args:
        code: the function.
        kernel: the kernel.
        pointers: its operands: arrays of the input's and of the result's shape, from these channels on.
        lanes: how many channels.
    """

    def __init__(self, code: Builder, kernel: PoolingKernel, pointers: list[str], lanes: int) -> None:
        self.code, self.kind, self.lanes, self.pointers = code, kernel.element, lanes, pointers
        self.vector, self.bytes = f"<{lanes} x {kernel.element}>", f"<{lanes} x i8>"
        self.taps = kernel.taps
        self.is_spread = kernel.is_spread

    def load(self, pointer: str, index: Size = 0) -> str:
        return self.code.load_vector(self.vector, self.kind, pointer, index)

    def store(self, value: str, pointer: str, index: Size = 0) -> None:
        self.code.store_vector(self.vector, self.kind, value, pointer, index)

    def constant(self, kind: str, value: str) -> str:
        return f"<{', '.join([f'{kind} {value}'] * self.lanes)}>"

    def kept(self, vector: str, start: str) -> str:
        """Return a place for a value that changes from cell to cell."""
        slot = self.code.slot(vector)
        self.code.line(f"store {vector} {start}, ptr {slot}")
        return slot

    def number(self, number: Size) -> str:
        """Return the number of a cell in all lanes."""
        return self.code.broadcast(self.lanes, "i8", self.code.let(f"trunc i64 {number} to i8"))


class _Each(Protocol):
    """Print what an action prints for each cell of a window inside the input.

    Args:
        action: takes the place of a cell behind the first one of the window, and its number.
        is_backward: the last cell first, in place of row-major order.
    """

    def __call__(self, action: Callable[[Size, Size], None], is_backward: bool = False) -> None: ...


# For each kind: lines for one window, of whose cells `count` are inside the input.


def _maximum(body: _Body, each: _Each, count: Size) -> None:
    code, vector = body.code, body.vector
    x, y = body.pointers
    best = body.kept(vector, body.constant(body.kind, "0xFFF0000000000000"))

    def combine(place: Size, number: Size) -> None:
        value, known = body.load(x, place), code.let(f"load {vector}, ptr {best}")
        code.line(f"store {vector} {code.larger(body.lanes, vector, value, known)}, ptr {best}")

    each(combine)
    body.store(code.let(f"load {vector}, ptr {best}"), y)


def _places(body: _Body, each: _Each, count: Size) -> None:
    code, lanes, vector = body.code, body.lanes, body.vector
    x, y, places = body.pointers
    last = body.taps[0] * body.taps[1] - 1
    wanted = body.load(y)
    found = body.kept(body.bytes, body.constant("i8", str(last)))

    def compare(place: Size, number: Size) -> None:
        value = body.load(x, place)
        is_equal = code.let(f"fcmp oeq {vector} {value}, {wanted}")
        is_nan = code.let(f"fcmp uno {vector} {value}, {value}")  # then what is wanted is NaN, too
        matches = code.let(f"or <{lanes} x i1> {is_equal}, {is_nan}")
        known = code.let(f"load {body.bytes}, ptr {found}")
        chosen = code.let(f"select <{lanes} x i1> {matches}, {body.bytes} {body.number(number)}, {body.bytes} {known}")
        code.line(f"store {body.bytes} {chosen}, ptr {found}")

    each(compare, is_backward=True)  # the first cell with the maximum has the last word
    code.store_vector(body.bytes, "i8", code.let(f"load {body.bytes}, ptr {found}"), places)


def _maximum_gradient(body: _Body, each: _Each, count: Size) -> None:
    code, vector = body.code, body.vector
    dy, places, _, dx = body.pointers
    value, chosen = body.load(dy), code.load_vector(body.bytes, "i8", places)

    def put(place: Size, number: Size) -> None:
        is_here = code.let(f"icmp eq {body.bytes} {chosen}, {body.number(number)}")
        part = code.let(f"select <{body.lanes} x i1> {is_here}, {vector} {value}, {vector} zeroinitializer")
        _put(body, part, dx, place)

    each(put)


def _average(body: _Body, each: _Each, count: Size) -> None:
    code, vector = body.code, body.vector
    x, y = body.pointers
    total = body.kept(vector, "zeroinitializer")

    def add(place: Size, number: Size) -> None:
        known = code.let(f"load {vector}, ptr {total}")
        code.line(f"store {vector} {code.let(f'fadd {vector} {known}, {body.load(x, place)}')}, ptr {total}")

    each(add)
    body.store(_shared(body, code.let(f"load {vector}, ptr {total}"), count), y)


def _average_gradient(body: _Body, each: _Each, count: Size) -> None:
    dy, _, dx = body.pointers
    share = _shared(body, body.load(dy), count)
    each(lambda place, number: _put(body, share, dx, place))


def _shared(body: _Body, value: str, count: Size) -> str:
    divisor = body.code.broadcast(body.lanes, body.kind, body.code.let(f"sitofp i64 {count} to {body.kind}"))
    return body.code.let(f"fdiv {body.vector} {value}, {divisor}")


def _put(body: _Body, value: str, dx: str, place: Size) -> None:
    """Store what a window gives to a cell, or add it to what others gave."""
    if body.is_spread:
        value = body.code.let(f"fadd {body.vector} {body.load(dx, place)}, {value}")
    body.store(value, dx, place)


_BODIES: dict[str, tuple[Callable[[_Body, _Each, Size], None], str]] = {
    # and how each operand is shaped: as the input, as the result, or as neither
    "max_pool": (_maximum, "ir"),
    "max_pool_places": (_places, "irr"),
    "max_pool_grad": (_maximum_gradient, "rr i"),
    "average_pool": (_average, "ir"),
    "average_pool_grad": (_average_gradient, "r i"),
}


def _print_task(kernel: PoolingKernel, name: str) -> str:
    """Print the function of a part: some rows of the result, or some images."""
    operands = kernel.operands
    code = FunctionBuilder(f"{name}_task", ["ptr %context", "i64 %part"])
    addresses = [code.load("i64", "%context", position) for position in range(len(operands) + 1)]
    arrays = [code.let(f"inttoptr i64 {a} to ptr") for a in addresses[: len(operands)]]
    fields = Fields(code, code.let(f"inttoptr i64 {addresses[-1]} to ptr"), _FIELDS)
    units, parts, rows, unit_rows = (fields[key] for key in ("units", "parts", "rows", "unit_rows"))
    begin, end = print_share(code, units, "%part", parts)
    image_size = code.mul(fields["height"], fields["width"], fields["channels"])
    with code.loop(begin, end) as unit:
        first = code.mul(unit, unit_rows)
        if kernel.is_spread:
            image = code.div(first, rows)
            with code.loop(code.mul(image, image_size), code.mul(code.add(image, 1), image_size)) as place:
                code.line(f"store {kernel.element} 0.0, ptr {code.at(kernel.element, arrays[-1], place)}")
        with code.loop(first, code.add(first, unit_rows)) as line:
            _print_row(code, kernel, fields, arrays, line)
    return code.text()


def _print_row(code: Builder, kernel: PoolingKernel, fields: Fields, arrays: list[str], line: str) -> None:
    """Print all windows of a row; rows are counted through all images."""
    rows, columns, height, width = (fields[key] for key in ("rows", "columns", "height", "width"))
    channels, stride, before = fields["channels"], fields["stride_across"], fields["before_across"]
    image = code.div(line, rows)
    top = code.sub(code.mul(code.sub(line, code.mul(image, rows)), fields["stride_down"]), fields["before_down"])
    down = _cells_inside(code, kernel, 0, top, height)
    above = code.mul(code.add(code.mul(image, height), top), width)
    with code.loop(0, columns) as column:
        left = code.sub(code.mul(column, stride), before)
        across = _cells_inside(code, kernel, 1, left, width)
        cells = code.mul(code.add(above, left), channels)
        place = code.mul(code.add(code.mul(line, columns), column), channels)
        origin = {"i": cells, "r": place, " ": 0}
        print_channels = partial(_print_channels, code, kernel, arrays, origin, (width, channels))
        _print_column(code, kernel, (down, across), print_channels)


def _print_column(code: Builder, kernel: PoolingKernel, cells: Cells, print_channels: Callable[[Cells], None]) -> None:
    """Print a window: most are inside of the input, for which there is code without loops over cells."""
    if kernel.is_inside or kernel.taps[0] * kernel.taps[1] > _MOST_UNROLLED:
        print_channels(cells)
        return
    is_whole = _is_whole(code, kernel, cells)
    with code.when(is_whole):
        print_channels(((0, kernel.taps[0]), (0, kernel.taps[1])))
    with code.unless(is_whole):
        print_channels(cells)


def _is_whole(code: Builder, kernel: PoolingKernel, cells: Cells) -> str:
    """Test whether all cells of a window are inside the input."""
    found = "true"
    for (first, last), taps in zip(cells, kernel.taps, strict=True):
        for condition in (code.compare("eq", first, 0), code.compare("eq", last, taps)):
            found = code.let(f"and i1 {found}, {condition}")
    return found


def _print_channels(
    code: Builder,
    kernel: PoolingKernel,
    arrays: list[str],
    origin: dict[str, Size],
    sizes: tuple[Size, Size],
    cells: Cells,
) -> None:
    """Print all channels of a window.

    Args:
        origin: the place of the window in arrays shaped as the input ("i"), as the result ("r"), or as neither.
        sizes: the width of the input, and its channels.
        cells: the first cell inside the input, and the first behind the last, down and across.
    """
    channels = sizes[1]
    whole = code.mul(code.div(channels, kernel.lanes), kernel.lanes)
    printer, shaped = _BODIES[kernel.kind]
    for start, stop, lanes in ((0, whole, kernel.lanes), (whole, channels, 1)):
        with code.loop(start, stop, lanes) as channel:
            pointers = [
                code.at(operand.memory, array, 0 if letter == " " else code.add(origin[letter], channel))
                for operand, array, letter in zip(kernel.operands, arrays, shaped, strict=True)
            ]
            _print_window(code, kernel, printer, pointers, lanes, cells, sizes)


def _cells_inside(code: Builder, kernel: PoolingKernel, axis: int, start: Size, size: Size) -> tuple[Size, Size]:
    """Return the first cell of a window that is inside the input, and the first behind the last."""
    if kernel.is_inside:
        return 0, kernel.taps[axis]
    return code.greatest(0, code.sub(0, start)), code.least(kernel.taps[axis], code.sub(size, start))


def _print_window(
    code: Builder,
    kernel: PoolingKernel,
    printer: Callable[[_Body, _Each, Size], None],
    pointers: list[str],
    lanes: int,
    cells: Cells,
    sizes: tuple[Size, Size],
) -> None:
    (top, bottom), (left, right) = cells
    width, channels = sizes
    is_known = cells == ((0, kernel.taps[0]), (0, kernel.taps[1])) and kernel.taps[0] * kernel.taps[1] <= _MOST_UNROLLED

    def each(action: Callable[[Size, Size], None], is_backward: bool = False) -> None:
        if is_known:
            around = list(product(range(kernel.taps[0]), range(kernel.taps[1])))
            for down, across in reversed(around) if is_backward else around:
                act(action, down, across)
            return
        with code.loop(top, bottom) as down, code.loop(left, right) as across:
            if is_backward:
                down, across = (
                    code.sub(code.sub(code.add(first, last), 1), cell)
                    for (first, last), cell in zip(cells, (down, across), strict=True)
                )
            act(action, down, across)

    def act(action: Callable[[Size, Size], None], down: Size, across: Size) -> None:
        place = code.mul(code.add(code.mul(down, width), across), channels)
        action(place, code.add(code.mul(down, kernel.taps[1]), across))

    printer(_Body(code, kernel, pointers, lanes), each, code.mul(code.sub(bottom, top), code.sub(right, left)))


def _print_run(kernel: PoolingKernel, name: str) -> str:
    code = begin_run_function(kernel, name)
    pointers = [*[f"%d{k}" for k in range(len(kernel.operands))], "%numbers"]
    context = code.slot(f"[{len(pointers)} x i64]")
    for position, pointer in enumerate(pointers):
        code.store("i64", code.let(f"ptrtoint ptr {pointer} to i64"), context, position)
    print_parallel(code, f"{name}_task", context, Fields(code, "%numbers", _FIELDS)["parts"])
    return code.text()
