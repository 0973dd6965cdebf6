"""Small matrix products: tiles of rows and vectors held in registers, in an order that depends on the shapes alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ...common.machine_profile import machine_profile
from ..expression.expression import UnsupportedError
from ..llvm.registers import Registers, registers_of
from .elementwise import print_strided_copy
from .function import Array, Elements, Function, strides_of
from .scalars import FLOATS, size_of

_MOST_SUMS = 1 << 16  # elements of a product whose depth is not known
_MOST_VECTORS = 4
_MOST_VECTORS_OF_ROW = 8  # where a tile has one row only, as sums have to wait for each other
_MOST_ROWS = 12
_TERMS = 4  # rows of a matrix that are added to a row at a time


def print_matmul(
    function: Function,
    a: Array,
    b: Array,
    transpose_a: bool,
    transpose_b: bool,
    host: str,
    target: Array | None = None,
) -> Array:
    """Print ``a @ b`` of matrices, either transposed first.

    Args:
        host: the processor (`Library.host`).
        target: where the product is wanted, if that matters.
    """
    kind = a.kind
    if kind not in FLOATS:
        raise UnsupportedError(f"matmul of {kind}")
    depth, rows = a.shape if transpose_a else a.shape[::-1]
    columns = b.shape[0] if transpose_b else b.shape[1]
    if rows * columns * depth > machine_profile().blas_work:
        raise UnsupportedError("a large matrix product")
    if transpose_a and columns == 1:  # a row times a matrix, so that vectors are in memory
        turned = Array(b.pointer, kind, (1, depth), b.buffers)
        product = print_matmul(function, turned, Array(a.pointer, kind, (depth, rows), a.buffers), False, False, host)
        return Array(product.pointer, kind, (rows, 1), product.buffers)
    registers = registers_of(host, kind)
    if transpose_a and not transpose_b and 2 * columns <= registers.lanes <= rows:  # likewise, the other way round
        turned = function.allocate(kind, (columns, rows))
        name = function.helper(_product_text(kind, columns, rows, depth, (1, columns), registers))
        function.line(f"call void {name}(ptr {b.pointer}, ptr {a.pointer}, ptr {turned.pointer})")
        function.hold(turned)
        result = target or function.allocate(kind, (rows, columns))
        print_strided_copy(function, turned, result, [1, rows])
        function.release(turned)
        return result
    packed = function.turned(b, (depth, columns), print_transposed) if transpose_b and depth > 1 and columns > 1 else b
    result = target or function.allocate(kind, (rows, columns))
    strides = (1, rows) if transpose_a else (depth, 1)
    name = function.helper(_product_text(kind, rows, columns, depth, strides, registers))
    function.line(f"call void {name}(ptr {a.pointer}, ptr {packed.pointer}, ptr {result.pointer})")
    function.hold(packed)
    function.release(packed)
    return result


def print_sum_of_products(function: Function, a: Elements, b: Elements, host: str) -> Array:
    """Print ``a.T @ b`` of as many rows each, a number known only at run time."""
    kind, rows, columns = a.kind, math.prod(a.shape), math.prod(b.shape)
    if kind not in FLOATS or len(a.shape) != 1 or len(b.shape) != 1:
        raise UnsupportedError(f"matmul of {kind}")
    if not 0 < rows * columns <= _MOST_SUMS:
        raise UnsupportedError("a large matrix product")
    result = function.allocate(kind, (rows, columns))
    some, none, done = (function.fresh(hint) for hint in ("some", "none", "summed"))
    function.branch(function.let(f"icmp sgt i64 {a.count}, 0"), some, none)
    function.begin(none)
    function.zero(result)
    function.jump(done)
    function.begin(some)
    strides = (1, rows)
    if columns == 1:  # a row times a matrix, so that vectors are in memory
        a, b, rows, columns, strides = b, a, 1, rows, (0, 1)
    name = function.helper(_product_text(kind, rows, columns, None, strides, registers_of(host, kind)))
    function.line(f"call void {name}(ptr {a.pointer}, ptr {b.pointer}, ptr {result.pointer}, i64 {a.count})")
    function.jump(done)
    function.begin(done)
    return result


def print_products(
    function: Function,
    labels: tuple[str, str, str],
    a: Array,
    b: Array,
    shape: tuple[int, ...],
    host: str,
    target: Array | None = None,
) -> Array:
    """Print ``einsum("a,b->out")`` of small arrays: a loop over products of matrices, of operands laid out for it.

    Args:
        labels: of the axes of the operands and of the result. Those that all have count products; of these operands
            may have fewer, or of size 1.
        shape: of the result.
        host: the processor (`Library.host`).
        target: where the result is wanted, if that matters.
    """
    kind, (of_a, of_b, out) = a.kind, labels
    if kind not in FLOATS:
        raise UnsupportedError(f"products of {kind}")
    batch = [label for label in out if label in of_a and label in of_b]
    rows = [label for label in out if label not in of_b]
    columns = [label for label in out if label not in of_a]
    terms = [label for label in of_a if label in of_b and label not in out]
    sizes = dict(zip(out, shape, strict=True)) | {label: a.shape[of_a.index(label)] for label in terms}
    if any(b.shape[of_b.index(label)] != sizes[label] for label in terms):
        raise UnsupportedError("a product that does not fit")
    height, width, depth = (math.prod([sizes[label] for label in own]) for own in (rows, columns, terms))
    if math.prod(shape) * depth > machine_profile().blas_work:
        raise UnsupportedError("a large matrix product")
    shared = [tuple([label for label in batch if label in own]) for own in (of_a, of_b)]
    left = _laid_out(function, a, of_a, [*shared[0], *rows, *terms])
    right = _laid_out(function, b, of_b, [*shared[1], *terms, *columns])
    order = [*batch, *rows, *columns]
    is_in_order = order == list(out)
    dims = tuple([sizes[label] for label in order])
    result = target if is_in_order and target is not None else function.allocate(kind, dims)
    name = function.helper(_product_text(kind, height, width, depth, (depth, 1), registers_of(host, kind)))
    counted = [sizes[label] for label in batch]
    with function.counters(counted) as indices:
        places: list[str] = []
        for array, own, size in ((left, shared[0], height * depth), (right, shared[1], depth * width)):
            strides = strides_of(array.shape[: len(own)], array.shape[: len(own)])
            steps = [strides[own.index(label)] * size if label in own else 0 for label in batch]
            places.append(function.element(kind, array.pointer, function.offset_of(indices, steps)))
        steps = [stride * height * width for stride in strides_of(counted, counted)]
        places.append(function.element(kind, result.pointer, function.offset_of(indices, steps)))
        function.line(f"call void {name}({', '.join(f'ptr {place}' for place in places)})")
    for array, given in ((left, a), (right, b)):
        if array is not given:
            function.hold(array)
            function.release(array)
    return result if is_in_order else _in_order(function, result, order, out, target)


def _in_order(function: Function, product: Array, order: Sequence[str], out: str, target: Array | None) -> Array:
    """Return a result whose axes are in another order than is wanted."""
    result = _laid_out(function, product, "".join(order), list(out), target)
    function.hold(product)
    function.release(product)
    return result


def _laid_out(
    function: Function, array: Array, labels: str, order: Sequence[str], target: Array | None = None
) -> Array:
    """Print an array with its axes in another order, in memory of its own; return it if it is in that order."""
    if list(labels) == list(order):
        return array
    strides = strides_of(array.shape, array.shape)
    places = [labels.index(label) for label in order]
    copy = target or function.allocate(array.kind, tuple([array.shape[place] for place in places]))
    print_strided_copy(function, array, copy, [strides[place] for place in places])
    return copy


def _product_text(
    kind: str, rows: int, columns: int, depth: int | None, strides: tuple[int, int], registers: Registers
) -> str:
    """Return a function of three pointers: a, b (row by row) and the result; and of the depth, where that is None."""
    inner = Function()
    if columns == 1 and depth is not None:
        _print_dots(inner, kind, rows, depth)
    elif rows == 1 and depth is not None and columns > _MOST_VECTORS_OF_ROW * registers.lanes:
        _print_row(inner, kind, columns, depth, strides[1], registers.lanes)
    else:
        for start, width, vectors, count in _column_tiles(columns, rows, registers):
            most = _most_rows(rows, vectors, registers)
            block, tile = (start, width, vectors, count), _tile_rows(rows, vectors, most)
            _print_columns(inner, kind, (rows, columns, depth), strides, block, tile)
    body = "\n".join([*inner.slots, "  br label %start", "start:", *inner.lines, "  ret void"])
    attributes = "noinline" if depth is None or rows * columns * depth > 4096 else ""
    parameters = "ptr noalias %a, ptr noalias %b, ptr noalias %c" + (", i64 %depth" if depth is None else "")
    return f"define internal void @HELPER({parameters}) {attributes} {{\n{body}\n}}\n"


def _column_tiles(columns: int, rows: int, registers: Registers) -> Iterator[tuple[int, int, int, int]]:
    """Yield the tiles of columns: (first column, lanes, vectors of a tile, number of such tiles)."""
    start = 0
    width = registers.lanes
    while start < columns:
        vectors = (columns - start) // width
        if vectors:
            each = _best_vectors(rows, vectors, registers)
            yield start, width, each, vectors // each
            if vectors % each:
                yield start + vectors // each * each * width, width, vectors % each, 1
            start += vectors * width
        width //= 2


def _best_vectors(rows: int, vectors: int, registers: Registers) -> int:
    most = min(vectors, _MOST_VECTORS if rows > 1 else _MOST_VECTORS_OF_ROW)
    return min(range(1, most + 1), key=lambda each: _cost(rows, vectors, each, registers))


def _cost(rows: int, vectors: int, each: int, registers: Registers) -> tuple[int, int]:
    """Estimate the cycles of one step of the sum, and then the loads."""
    tile = _tile_rows(rows, each, _most_rows(rows, each, registers))
    tiles = -(-rows // tile) * -(-vectors // each)
    return tiles * max(tile * each, 10), tiles * (tile + each)


def _most_rows(rows: int, vectors: int, registers: Registers) -> int:
    """Return how many rows a tile may have: its sums, a row of vectors and what multiplies it stay in registers."""
    return max(1, min(rows, _MOST_ROWS, registers.most_rows(vectors)))


def _tile_rows(rows: int, vectors: int, most: int) -> int:
    """Return the rows of a tile: with as little left over as can be, and enough sums in flight."""
    return min(range(1, most + 1), key=lambda tile: (-(-rows // tile) * max(tile * vectors, 10), -tile))


def _print_row(function: Function, kind: str, columns: int, depth: int, step: int, lanes: int) -> None:
    """Print a row times a wide matrix: a few rows of the matrix after the other, in the order of memory.

    Sums that stay in registers would read a few columns of all rows. Of rows that are 2 or 4 KiB apart, the first cache
    holds few at a time. Here the sums are in the result, in the first cache. Terms are added in the same order.

    Args:
        columns, depth: of the matrix.
        step: elements between those of the row.
        lanes: elements of a vector.
    """
    whole, rest = divmod(depth, _TERMS)
    _print_terms(function, kind, columns, ("0", min(depth, _TERMS)), step, lanes, is_first=True)
    if whole > 1:
        with function.loop(1, whole) as number:
            _print_terms(function, kind, columns, (_scaled(function, number, _TERMS), _TERMS), step, lanes)
    if whole and rest:
        _print_terms(function, kind, columns, (str(whole * _TERMS), rest), step, lanes)


def _print_terms(
    function: Function,
    kind: str,
    columns: int,
    terms: tuple[str, int],
    step: int,
    lanes: int,
    is_first: bool = False,
) -> None:
    """Add terms (the first one, and how many) to the sums of a row; or begin with them."""
    first, count = terms
    start, width = 0, lanes
    a = function.element(kind, "%a", _scaled(function, first, step))
    b = function.element(kind, "%b", _scaled(function, first, columns))
    values = [function.load(kind, function.element(kind, a, str(k * step))) for k in range(count)]
    rows = [function.element(kind, b, str(k * columns)) for k in range(count)]
    while start < columns:
        vectors = (columns - start) // width
        factors = [_repeated(function, kind, width, value) for value in values] if vectors else []
        for each, tiles in ((_MOST_VECTORS, vectors // _MOST_VECTORS), (1, vectors % _MOST_VECTORS)):
            if tiles:
                with function.count(tiles) as number:
                    place = _scaled(function, number, each * width)
                    for vector in range(each):
                        column = function.let(f"add nsw i64 {place}, {start + vector * width}")
                        _print_sum(function, kind, width, factors, rows, column, is_first)
            start += tiles * each * width
        width //= 2


def _print_sum(
    function: Function, kind: str, width: int, factors: Sequence[str], rows: Sequence[str], column: str, is_first: bool
) -> None:
    """Add the products of a vector of each row and its factor to the sums in the result; or begin with them."""
    lane, size = f"<{width} x {kind}>", size_of(kind)
    target = function.element(kind, "%c", column)
    total = "zeroinitializer" if is_first else function.let(f"load {lane}, ptr {target}, align {size}")
    for factor, row in zip(factors, rows, strict=True):
        value = function.let(f"load {lane}, ptr {function.element(kind, row, column)}, align {size}")
        total = function.let(_sum_of(lane, factor, value, total, width, size))
    function.line(f"store {lane} {total}, ptr {target}, align {size}")


def _repeated(function: Function, kind: str, width: int, value: str) -> str:
    """Return a vector that has a value in all its elements."""
    lane = f"<{width} x {kind}>"
    one = function.let(f"insertelement {lane} poison, {kind} {value}, i32 0")
    return function.let(f"shufflevector {lane} {one}, {lane} poison, <{width} x i32> zeroinitializer")


def _sum_of(lane: str, factor: str, value: str, total: str, width: int, size: int) -> str:
    """Return the instruction that adds a product to a sum."""
    function = f"@llvm.fmuladd.v{width}f{size * 8}"
    return f"call contract {lane} {function}({lane} {factor}, {lane} {value}, {lane} {total})"


def _print_columns(
    function: Function,
    kind: str,
    sizes: tuple[int, int, int | None],
    strides: tuple[int, int],
    block: tuple[int, int, int, int],
    tile: int,
) -> None:
    """Print some columns of the result.

    Args:
        sizes: rows, columns and depth.
        strides: of a.
        block: of columns (see `_column_tiles`).
        tile: the rows of a tile.
    """
    rows, columns, depth = sizes
    start, width, vectors, count = block
    with function.count(count) as number:
        first = function.let(f"add i64 {start}, 0") if number == "0" else _scaled(function, number, vectors * width)
        if number != "0" and start:
            first = function.let(f"add nsw i64 {first}, {start}")
        b = function.element(kind, "%b", first)
        c = function.element(kind, "%c", first)
        with function.count(rows // tile) as step:
            row = _scaled(function, step, tile)
            a_tile = function.element(kind, "%a", _scaled(function, row, strides[0]))
            c_tile = function.element(kind, c, _scaled(function, row, columns))
            _print_tile(function, kind, (a_tile, b, c_tile), tile, vectors, width, depth, columns, strides)
        if rows % tile:
            row_start = rows - rows % tile
            a_tile = function.element(kind, "%a", str(row_start * strides[0]))
            c_tile = function.element(kind, c, str(row_start * columns))
            _print_tile(function, kind, (a_tile, b, c_tile), rows % tile, vectors, width, depth, columns, strides)


def _scaled(function: Function, index: str, factor: int) -> str:
    return index if factor == 1 or index == "0" else function.let(f"mul nsw i64 {index}, {factor}")


def _print_tile(
    function: Function,
    kind: str,
    places: tuple[str, str, str],
    rows: int,
    vectors: int,
    width: int,
    depth: int | None,
    columns: int,
    strides: tuple[int, int],
) -> None:
    """Print one tile of the result: a sum over the depth for each of its vectors, in a register."""
    a, b, c = places
    lane = f"<{width} x {kind}>"
    size = size_of(kind)
    before = function.block
    head, done = function.fresh("depth"), function.fresh("after")
    function.jump(head)
    function.begin(head)
    step = f"%k_{head}"
    function.line(f"{step} = phi i64 [0, %{before}], [%n_{head}, %{head}]")
    sums = [[f"%c{i}_{j}_{head}" for j in range(vectors)] for i in range(rows)]
    for i in range(rows):
        for j in range(vectors):
            function.line(f"{sums[i][j]} = phi {lane} [zeroinitializer, %{before}], [%d{i}_{j}_{head}, %{head}]")
    row = function.element(kind, b, _scaled(function, step, columns))
    loaded = [
        function.let(f"load {lane}, ptr {function.element(kind, row, str(j * width))}, align {size}")
        for j in range(vectors)
    ]
    column = function.element(kind, a, _scaled(function, step, strides[1]))
    for i in range(rows):
        value = function.let(f"load {kind}, ptr {function.element(kind, column, str(i * strides[0]))}")
        repeated = _repeated(function, kind, width, value)
        for j in range(vectors):
            function.line(f"%d{i}_{j}_{head} = {_sum_of(lane, repeated, loaded[j], sums[i][j], width, size)}")
    function.line(f"%n_{head} = add nsw i64 {step}, 1")
    more = function.let(f"icmp slt i64 %n_{head}, {'%depth' if depth is None else depth}")
    function.branch(more, head, done)
    function.begin(done)
    for i in range(rows):
        for j in range(vectors):
            place = function.element(kind, c, str(i * columns + j * width))
            function.line(f"store {lane} %d{i}_{j}_{head}, ptr {place}, align {size}")


def _print_dots(function: Function, kind: str, rows: int, depth: int) -> None:
    """Print a matrix times one column: a sum in lanes for each row."""
    total = function.slot(kind)
    with function.count(rows) as i:
        function.line(f"store {kind} {0.0:e}, ptr {total}")
        row = function.element(kind, "%a", _scaled(function, i, depth))
        with function.count(depth) as k:
            x = function.load(kind, function.element(kind, row, k))
            y = function.load(kind, function.element(kind, "%b", k))
            product = function.let(f"fmul contract {kind} {x}, {y}")
            function.combine(kind, total, product, "fadd reassoc contract")
        function.store(kind, function.load(kind, total), function.element(kind, "%c", i))


def print_transposed(function: Function, source: Array, shape: tuple[int, int]) -> Array:
    """Print the transpose of a matrix in memory of its own."""
    target = function.allocate(source.kind, shape)
    print_strided_copy(function, source, target, [1, shape[0]])
    return target
