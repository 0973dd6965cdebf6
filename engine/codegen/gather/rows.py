"""Native code for rows of tables whose number is known at run time only: taking, writing and adding them up.

Rows to come are asked for ahead of their use, as they may be anywhere in tables that fit into no cache. What the code
does not handle (other layouts, positions out of bounds) is left to the op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import is_plain_array
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.gathering import PutRows, Take, checked_positions
from ...ops.arrays.segments import SegmentSum
from ...ops.base import Constant
from ...ops.containers.indexed_slices import AssignRows, own_memory
from ..elementwise.any_sizes import AnySizes, KernelOfAnySizes
from ..elementwise.kernel_specs import native_dtype
from ..llvm.builder import ELEMENTS, Builder, Size
from ..llvm.entry import Operand
from ..llvm.library import LaterFunction, library
from ..llvm.registers import registers_of
from ..llvm.tasks import Fields, begin_run_function, begin_task, print_entry, print_parallel, print_share
from .columns import Columns, are_pieces, column_putter, column_taker, columns_in_pieces, has_rows
from .segments import added_rows, expect_sums

Runner = Callable[..., Any]
_WORD = 4  # rows are copied by words of so many bytes
_AHEAD = 12  # rows
_LINE = 16  # words of a cache line
_PARTS = 8
_FIELDS = ("table", "ids", "rows", "count", "size", "width", "parts", "failed")


def take_runner(operation: Operation) -> Runner | None:
    """Return a runner of `Take`; along a later axis, rows are numbered through all places of the axes before it."""
    op = op_of(operation, Take)
    table, ids = (tensor.spec for tensor in operation.inputs)
    if not isinstance(table, TensorSpec) or not table.rank or not op.wrap:
        return None
    axis = op.axis % table.rank
    width = _row_words(table, axis)
    if not width or not isinstance(ids, TensorSpec) or ids.dtype.name not in ("int32", "int64") or ids.shape == ():
        return None
    is_last = 0 < axis == table.rank - 1
    if axis and width < _LINE and not is_last:
        return None
    before = (table.shape or ())[:axis]
    few = machine_profile().gather_words
    if ids.shape is not None and math.prod([dim or few for dim in (*before, *ids.shape)]) * width < few:
        return None
    if is_last:
        return _columns_runner(op, table, operation.inputs[1], few)
    row = tuple(int(size or 0) for size in (table.shape or ())[axis + 1 :])
    index = np.dtype("int64") if axis else np.dtype(ids.dtype.name)
    kernel = TakeKernel(1 + len(row), table.dtype.itemsize, f"i{8 * index.itemsize}")
    fill, dtype = AnySizes(kernel, table.dtype, index, table.dtype), native_dtype(table.dtype)
    fewest = -(-few // width)

    def take(table: Any, ids: Any) -> Any:
        if ids.size < fewest or not table.size:
            return op.run(np, table, ids)
        shape = ids.shape
        out = np.empty((ids.size, *row), dtype)
        if not fill(table, ids if len(shape) == 1 else ids.reshape(-1), out):
            return op.run(np, table, ids)
        return out if len(shape) == 1 else out.reshape((*shape, *row))

    def take_later(table: Any, ids: Any) -> Any:
        before, size = table.shape[:axis], table.shape[axis]
        outer = math.prod(before)
        if ids.size * outer < fewest or not table.size:
            return op.run(np, table, ids)
        rows = _numbered(checked_positions(np, ids, size, axis, op.wrap), outer, size)
        out = np.empty((rows.size, *row), dtype)
        if not fill(table.reshape(outer * size, *row), rows, out):
            return op.run(np, table, ids)
        return out.reshape((*before, *ids.shape, *row))

    return take_later if axis else take


def _columns(ids: Symbol, axis: int, wrap: bool, dtype: Any) -> tuple[Callable[[Any, int], Columns], bool]:
    """Return the function that counts columns of so many from the front, a constant's once; whether in pieces."""

    def counted(ids: Any, size: int) -> Columns:
        return Columns(_numbered(checked_positions(np, ids, size, axis, wrap), 1, size))

    if not isinstance(ids.operation.op, Constant):
        return counted, False
    in_pieces = are_pieces(ids.operation.op.value, dtype)
    found: dict[int, Columns] = {}

    def kept(ids: Any, size: int) -> Columns:
        columns = found.get(size)
        if columns is None:
            columns = counted(ids, size)
            columns = columns_in_pieces(columns.positions, dtype) if in_pieces else columns
            found.clear()
            found[size] = columns
        return columns

    return kept, in_pieces


def _columns_runner(op: Take, table: TensorSpec, ids: Symbol, fewest: int) -> Runner:
    """Return a runner of a `Take` along the last of several axes."""
    columns_of, in_pieces = _columns(ids, op.axis, op.wrap, table.dtype)
    take, native = column_taker(table.dtype, in_pieces), native_dtype(table.dtype)

    def take_columns(x: Any, ids: Any) -> Any:
        outer, size = x.shape[:-1], x.shape[-1]
        if math.prod(outer) * ids.size < fewest or not has_rows(x, native):
            return op.run(np, x, ids)
        return take(x, columns_of(ids, size)).reshape((*outer, *ids.shape))

    return take_columns


def write_runner(operation: Operation) -> Runner | None:
    """Return a runner that writes rows in the memory of the variable of an `AssignRows`."""
    op = op_of(operation, AssignRows)
    _, positions, rows = (tensor.spec for tensor in operation.inputs)
    width = _row_words(rows)
    if not width or not isinstance(positions, TensorSpec) or positions.dtype.name not in ("int32", "int64"):
        return None
    dtype, run = np.dtype(positions.dtype.name), _function("write", f"i{8 * positions.dtype.itemsize}")

    def write(positions: Any, rows: Any) -> Any:
        whole = own_memory(op.variable)
        target = op.rows_of(whole)
        fits = is_plain(positions) and is_plain(rows) and positions.dtype == dtype and rows.dtype == whole.dtype
        if not fits or rows.shape != positions.shape + target.shape[1:]:
            return op.write_in_place(positions, rows)
        # Of rows named twice the last one counts: only rows that are known to differ are written side by side.
        is_small = rows.size < machine_profile().parallel_row_elements
        is_serial = is_small or not (positions[1:] > positions[:-1]).all() or positions[0] < 0
        parts = 1 if is_serial else _PARTS
        is_left = run.run(target, positions, rows, positions.size, len(target), width, parts, 0)
        return op.write_in_place(positions, rows) if is_left else whole

    return write


def sum_runner(operation: Operation) -> Runner | None:
    """Return a runner of `SegmentSum`."""
    op = op_of(operation, SegmentSum)
    data, ids, _ = (tensor.spec for tensor in operation.inputs)
    if not _row_words(data) or not isinstance(data, TensorSpec) or data.dtype.name not in ("float32", "float64"):
        return None
    if not isinstance(ids, TensorSpec) or ids.dtype.name not in ("int32", "int64"):
        return None
    dtype = np.dtype(ids.dtype.name)
    run = _function("sum", f"i{8 * ids.dtype.itemsize}", ELEMENTS[data.dtype.name])
    if _row_words(data) * _WORD >= machine_profile().segment_width * data.dtype.itemsize:
        expect_sums(dtype, data.dtype)

    def segment_sum(data: Any, ids: Any, count: Any) -> Any:
        if not is_plain(data) or not is_plain(ids) or ids.dtype != dtype or len(ids) != len(data):
            return op.run(np, data, ids, count)
        return _added(run, data, ids, (int(count), *data.shape[1:]))

    return segment_sum


def put_runner(operation: Operation) -> Runner | None:
    """Return a runner of `PutRows`; along a later axis, rows are numbered through all places of the axes before it."""
    op = op_of(operation, PutRows)
    values, ids, _ = (tensor.spec for tensor in operation.inputs)
    if not isinstance(values, TensorSpec) or values.dtype.name not in ("float32", "float64") or not values.rank:
        return None
    if not isinstance(ids, TensorSpec) or not ids.rank:
        return None
    run = _function("sum", "i64", ELEMENTS[values.dtype.name])
    axis = op.axis % (values.rank - ids.rank + 1)
    columns_of, in_pieces = _columns(operation.inputs[1], axis, op.wrap, values.dtype)
    native, put_columns = native_dtype(values.dtype), column_putter(values.dtype, in_pieces)

    def put_rows(values: Any, ids: Any, shape: Any) -> Any:
        sizes = tuple(int(size) for size in shape)
        before, after = sizes[:axis], sizes[axis + 1 :]
        if before and not after and values.shape == before + ids.shape and ids.size:
            rows = values if ids.ndim == 1 else values.reshape((*before, ids.size))
            if has_rows(rows, native):
                return put_columns(rows, columns_of(ids, sizes[axis]), sizes[axis])
        if not is_plain(values) or not values.size or values.shape != before + ids.shape + after:
            return op.run(np, values, ids, shape)
        outer, inner = math.prod(before), math.prod(after)
        positions = _numbered(checked_positions(np, ids, sizes[axis], axis, op.wrap), outer, sizes[axis])
        return _added(run, values.reshape(-1, inner), positions, (outer * sizes[axis], inner)).reshape(sizes)

    return put_rows


def _numbered(positions: Any, outer: int, size: int) -> Any:
    """Return the numbers of rows in `outer` tables of `size` rows each, from the rows of one table."""
    flat = np.ascontiguousarray(positions.reshape(-1), np.int64)
    return flat if outer == 1 else (np.arange(0, outer * size, size)[:, None] + flat).reshape(-1)


def _added(run: LaterFunction, rows: Any, ids: Any, shape: tuple[int, ...]) -> Any:
    """Return an array of `shape` whose rows are the sums of the `rows` that have their number."""
    width = math.prod(shape[1:])
    if width >= machine_profile().segment_width:
        return added_rows([rows], ids, shape)
    out = np.empty(shape, rows.dtype)
    parts = 1 if rows.size < machine_profile().parallel_row_elements else max(1, min(_PARTS, width // _LINE))
    run.run(out, ids, rows, len(ids), len(out), width, parts, 0)
    return out


def _row_words(spec: Any, axis: int = 0) -> int:
    """Return the words of a row, what follows `axis`; 0 if there are none, a part is left over, or it is unknown."""
    if not isinstance(spec, TensorSpec) or not spec.shape or spec.dtype.kind not in "fiub":
        return 0
    sizes = [0 if dim is None else dim for dim in spec.shape[axis + 1 :]]
    size = math.prod(sizes) * spec.dtype.itemsize
    return 0 if size % _WORD else size // _WORD


def is_plain(array: Any) -> bool:
    """Test whether native code can read the elements of a value one behind the other."""
    return is_plain_array(array) and array.flags.c_contiguous and array.flags.aligned


# --- code -----------------------------------------------------------------------------------------------------------


@cache
def _function(kind: str, index: str, element: str = "i32") -> LaterFunction:
    """Return a compiled function of the address of its numbers."""
    printers = {"write": _print_write, "sum": _print_sum}
    return library.later(f"rows_{kind} {index} {element}", lambda: printers[kind](index, element), f"rows_{kind}")


@dataclass(frozen=True)
class TakeKernel(KernelOfAnySizes):
    """Rows of a table, by their positions.

    Attributes:
        rank: of the table.
        itemsize: the bytes of its elements.
        index: the type of positions.
    """

    rank: int
    itemsize: int
    index: str

    @property
    def operands(self) -> tuple[Operand, ...]:
        return Operand("i32", self.rank), Operand(self.index, 1), Operand("i32", self.rank, (), True)

    def print_run(self, name: str) -> str:
        return _print_take(self.index, "i32", name) + self._print_call(name)

    def _print_call(self, name: str) -> str:
        """Print the function that is called: it writes down sizes, and runs all parts."""
        code = begin_run_function(self, name, "sizes")
        fields = code.slot(f"[{len(_FIELDS)} x i64]")
        count = code.load("i64", "%sizes", self.first_size(1))
        elements = code.mul(*[code.load("i64", "%sizes", axis) for axis in range(1, self.rank)], self.itemsize)
        width = code.div(elements, _WORD)
        is_small = code.compare("sle", code.mul(count, width), machine_profile().parallel_elements)
        values: dict[str, Size] = {
            "table": code.let("ptrtoint ptr %d0 to i64"),
            "ids": code.let("ptrtoint ptr %d1 to i64"),
            "rows": code.let("ptrtoint ptr %d2 to i64"),
            "count": count,
            "size": code.load("i64", "%sizes"),
            "width": width,
            "parts": code.let(f"select i1 {is_small}, i64 1, i64 {_PARTS}"),
            "failed": 0,
        }
        for position, field in enumerate(_FIELDS):
            code.store("i64", values[field], fields, position)
        print_parallel(code, f"{name}_task", fields, values["parts"])
        code.store("i64", code.load("i64", fields, _FIELDS.index("failed")), "%sizes", self.failed)
        return code.text()


def _print_take(index: str, element: str, name: str) -> str:
    code, fields = begin_task(name, _FIELDS)
    table, rows = fields.address("table"), fields.address("rows")
    with _positions(code, fields, index, element) as (number, row):
        width = fields["width"]
        print_copy(code, element, code.at(element, table, row), code.at(element, rows, code.mul(number, width)), width)
    return code.text()


def _print_write(index: str, element: str) -> str:
    code, fields = begin_task("rows_write", _FIELDS)
    table, rows = fields.address("table"), fields.address("rows")
    with _positions(code, fields, index, element) as (number, row):
        width = fields["width"]
        print_copy(code, element, code.at(element, rows, code.mul(number, width)), code.at(element, table, row), width)
    return code.text() + print_entry("rows_write", _FIELDS)


@contextmanager
def _positions(code: Builder, fields: Fields, index: str, element: str) -> Generator[tuple[Size, Size]]:
    """Print lines for each position of a part; yield its number, and where its row begins in the table."""
    count, parts = fields["count"], fields["parts"]
    first, end = print_share(code, count, "%part", parts)
    ids, table = fields.address("ids"), fields.address("table")
    size, width = fields["size"], fields["width"]
    last = code.sub(end, 1)
    with code.loop(first, end) as number:
        ahead = print_position(code, ids, index, code.least(code.add(number, _AHEAD), last), size)
        coming = code.at(element, table, code.mul(ahead, width))
        code.prefetch(element, coming, 0, width)
        position = print_position(code, ids, index, number, size)
        with when_inside(code, position, size, "%context", _FIELDS.index("failed")):
            yield number, code.mul(position, width)


@contextmanager
def when_inside(code: Builder, position: str, size: Size, numbers: str, failed: int) -> Generator[None]:
    """Print a block that runs where a position is inside; elsewhere number `failed` becomes 1."""
    with code.when(code.compare("uge", position, size)):
        code.store("i64", 1, numbers, failed)
    with code.when(code.compare("ult", position, size)):
        yield


def print_position(code: Builder, ids: str, index: str, number: Size, size: Size) -> str:
    """Print a position, counted from the front."""
    found = code.load_integer(index, ids, number)
    wrapped = code.add(found, size)
    return code.let(f"select i1 {code.compare('slt', found, 0)}, i64 {wrapped}, i64 {found}")


def print_copy(code: Builder, element: str, source: str, target: str, width: Size) -> None:
    """Copy `width` words, a line at a time."""
    vector = f"<{_LINE} x {element}>"
    whole = code.mul(code.div(width, _LINE), _LINE)
    with code.loop(0, whole, _LINE) as word:
        code.store_vector(vector, element, code.load_vector(vector, element, source, word), target, word)
    with code.loop(whole, width) as word:
        code.store(element, code.load(element, source, word), target, word)


def _print_sum(index: str, element: str) -> str:
    """Print the function of a part, which adds up some columns of all rows."""
    lanes = registers_of(library.host, element).lanes
    code, fields = begin_task("rows_sum", _FIELDS)
    table, ids, rows = fields.address("table"), fields.address("ids"), fields.address("rows")
    width, parts, size = fields["width"], fields["parts"], fields["size"]
    lines = code.div(code.add(width, _LINE - 1), _LINE)
    first = code.mul(code.div(code.mul(lines, "%part"), parts), _LINE)
    last = code.mul(code.div(code.mul(lines, code.add("%part", 1)), parts), _LINE)
    last = code.least(last, width)
    whole = code.add(first, code.mul(code.div(code.sub(last, first), lanes), lanes))
    with code.loop(0, size) as row, code.loop(first, last) as column:
        place = code.at(element, table, code.add(code.mul(row, width), column))
        code.line(f"store {element} 0.0, ptr {place}")
    with code.loop(0, fields["count"]) as number:
        position = code.load_integer(index, ids, number)
        with code.when(code.compare("ult", position, size)):
            source = code.at(element, rows, code.mul(number, width))
            target = code.at(element, table, code.mul(position, width))
            for start, stop, count in ((first, whole, lanes), (whole, last, 1)):
                vector = f"<{count} x {element}>"
                with code.loop(start, stop, count) as word:
                    total = code.load_vector(vector, element, target, word)
                    added = code.load_vector(vector, element, source, word)
                    total = code.let(f"fadd {vector} {total}, {added}")
                    code.store_vector(vector, element, total, target, word)
    return code.text() + print_entry("rows_sum", _FIELDS)
