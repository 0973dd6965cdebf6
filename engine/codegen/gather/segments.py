"""Native code for sums of rows by the number of the segment to which each belongs, and for each row its segment's.

The rows are ordered by segment first (their addresses, that is), so that a thread sums whole segments in registers and
writes each once. The rows of a segment are added in the order in which they come, as NumPy does. They may be in
several arrays, which then need not be joined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.arrays.segments import GatherSegments
from ...ops.internal.sum_of_rows import SumOfParts
from ..elementwise.kernel_specs import fits, native_dtype
from ..llvm.builder import BYTES, ELEMENTS, Builder, FunctionBuilder, Size
from ..llvm.library import LaterFunction, library
from ..llvm.registers import registers_of
from ..llvm.tasks import Fields, begin_entry, print_entry, print_parallel, print_share

Runner = Callable[..., Any]
_AHEAD = 6  # rows
_MOST_AHEAD = 1024  # bytes of a row that are asked for ahead; the machine does the rest
_BLOCK = 4  # vectors that are summed at a time
_TASKS = 8
_FIELDS = ("parts", "part_count", "ids", "count", "order", "starts", "out", "size", "width", "tasks")
_GATHER_FIELDS = ("table", "ids", "count", "out", "size", "width", "tasks")
_INDICES = ("int32", "int64")


def added_rows(parts: Sequence[Any], ids: Any, shape: tuple[int, ...]) -> Any:
    """Return an array of `shape` whose rows are the sums of the rows that have their number.

    Args:
        parts: contiguous arrays of one dtype, float32 or float64, with at least one element in a row.
        ids: a number for each row of theirs, int32 or int64; rows whose number is negative or too large are left out.
        shape: of the result.
    """
    out = np.empty(shape, parts[0].dtype)
    width = math.prod(shape[1:])
    tasks = _TASKS if ids.size * width > machine_profile().parallel_elements else 1
    places = np.array([(part.ctypes.data, len(part)) for part in parts], np.int64)
    order, starts = np.empty(len(ids) + 1, np.int64), np.empty(len(out) + 2, np.int64)
    run = _function("sum", f"i{8 * ids.dtype.itemsize}", ELEMENTS[out.dtype.name])
    run.run(places, len(parts), ids, len(ids), order, starts, out, len(out), width, tasks)
    return out


def expect_sums(index: Any, element: Any) -> None:
    """Have the code compiled meanwhile that adds up rows of a dtype by numbers of a dtype."""
    _function("sum", f"i{8 * index.itemsize}", ELEMENTS[element.name])


def parts_runner(operation: Operation) -> Runner | None:
    """Return a runner of `SumOfParts`."""
    op = op_of(operation, SumOfParts)
    ids, data = operation.inputs[0].spec, operation.inputs[2].spec
    width = _width(data)
    if width < machine_profile().segment_width or not isinstance(data, TensorSpec) or data.dtype.name not in ELEMENTS:
        return None
    if not isinstance(ids, TensorSpec) or ids.dtype.name not in _INDICES:
        return None
    index, element = native_dtype(ids.dtype), native_dtype(data.dtype)
    expect_sums(index, element)

    def sum_of_parts(ids: Any, count: Any, *parts: Any) -> Any:
        is_plain = fits(ids, index) and all(fits(part, element) for part in parts)
        if not is_plain or sum(map(len, parts)) != len(ids) or len({part.shape[1:] for part in parts}) > 1:
            return op.run(np, ids, count, *parts)
        return added_rows(parts, ids, (int(count), *parts[0].shape[1:]))

    return sum_of_parts


def gather_runner(operation: Operation) -> Runner | None:
    """Return a runner of `GatherSegments`."""
    op = op_of(operation, GatherSegments)
    table, ids = (tensor.spec for tensor in operation.inputs)
    width = _width(table)
    if width < machine_profile().segment_width:
        return None
    if not isinstance(table, TensorSpec) or table.dtype.name not in ELEMENTS:
        return None
    if not isinstance(ids, TensorSpec) or ids.dtype.name not in _INDICES or ids.rank != 1:
        return None
    index, element = native_dtype(ids.dtype), native_dtype(table.dtype)
    run = _function("gather", f"i{8 * index.itemsize}", ELEMENTS[element.name])

    def gather_segments(rows: Any, ids: Any) -> Any:
        if not fits(rows, element) or not fits(ids, index) or ids.size * width < machine_profile().segment_width * 8:
            return op.run(np, rows, ids)
        out = np.empty((len(ids), *rows.shape[1:]), element)
        tasks = _TASKS if out.size > machine_profile().parallel_elements else 1
        run.run(rows, ids, len(ids), out, len(rows), width, tasks)
        return out

    return gather_segments


def _width(spec: Any) -> int:
    """Return the elements of a row; 0 if that is not known."""
    if not isinstance(spec, TensorSpec) or not spec.shape:
        return 0
    return math.prod([dim or 0 for dim in spec.shape[1:]])


# --- code -----------------------------------------------------------------------------------------------------------


@cache
def _function(kind: str, index: str, element: str) -> LaterFunction:
    """Return a compiled function of the address of its numbers."""
    printer = _print_sum if kind == "sum" else _print_gather
    return library.later(f"segments_{kind} {index} {element}", lambda: printer(index, element), f"segments_{kind}")


def _print_sum(index: str, element: str) -> str:
    """Print the function that is called: it puts the rows in order, and lets threads sum segments."""
    code, fields = begin_entry("segments_sum", _FIELDS)
    order, starts = fields.address("order"), fields.address("starts")
    ids, size, count, width = fields.address("ids"), fields["size"], fields["count"], fields["width"]
    with code.loop(0, code.add(size, 2)) as segment:
        code.store("i64", 0, starts, segment)
    # How many rows a segment has stands two behind it, and where the next one of its rows goes one behind it: so in
    # the end the rows of a segment begin at its own place, and end at the next.
    with code.loop(0, count) as number:
        found = code.load_integer(index, ids, number)
        with code.when(code.compare("ult", found, size)):
            place = code.add(found, 2)
            code.store("i64", code.add(code.load("i64", starts, place), 1), starts, place)
    with code.loop(2, code.add(size, 2)) as place:
        before = code.load("i64", starts, code.sub(place, 1))
        code.store("i64", code.add(code.load("i64", starts, place), before), starts, place)
    number_slot, parts = code.slot("i64"), fields.address("parts")
    code.store("i64", 0, number_slot)
    bytes_of_row = code.mul(width, BYTES[element])
    with code.loop(0, fields["part_count"]) as part:
        base = code.load("i64", parts, code.mul(part, 2))
        with code.loop(0, code.load("i64", parts, code.add(code.mul(part, 2), 1))) as row:
            number = code.load("i64", number_slot)
            code.store("i64", code.add(number, 1), number_slot)
            found = code.load_integer(index, ids, number)
            with code.when(code.compare("ult", found, size)):
                place = code.add(found, 1)
                position = code.load("i64", starts, place)
                code.store("i64", code.add(base, code.mul(row, bytes_of_row)), order, position)
                code.store("i64", code.add(position, 1), starts, place)
    print_parallel(code, "segments_sum_task", "%numbers", fields["tasks"])
    return _print_sum_task(element) + code.text()


def _print_sum_task(element: str) -> str:
    """Print the function of a part of the segments."""
    code = FunctionBuilder("segments_sum_task", ["ptr %context", "i64 %task"])
    fields = Fields(code, "%context", _FIELDS)
    lanes = registers_of(library.host, element).lanes
    order, starts, out = fields.address("order"), fields.address("starts"), fields.address("out")
    size, width, tasks = fields["size"], fields["width"], fields["tasks"]
    end = code.load("i64", starts, size)
    first, last = print_share(code, size, "%task", tasks)
    blocks = code.mul(code.div(width, lanes * _BLOCK), lanes * _BLOCK)
    vectors = code.mul(code.div(width, lanes), lanes)
    with code.loop(first, last) as segment:
        begin, stop = code.load("i64", starts, segment), code.load("i64", starts, code.add(segment, 1))
        with code.loop(begin, stop) as place:
            coming = code.least(code.add(place, _AHEAD), code.sub(end, 1))
            _print_prefetch(code, code.load("i64", order, coming), width, element)
        target = code.at(element, out, code.mul(segment, width))
        for low, high, count, each in ((0, blocks, _BLOCK, lanes), (blocks, vectors, 1, lanes), (vectors, width, 1, 1)):
            with code.loop(low, high, count * each) as column:
                _print_sums(code, order, (begin, stop), target, column, (element, count, each))
    return code.text()


def _print_sums(
    code: Builder, order: str, rows: tuple[Size, Size], target: str, column: Size, form: tuple[str, int, int]
) -> None:
    """Sum some columns of the rows of a segment: `form` is (element, vectors, lanes of each)."""
    element, count, lanes = form
    vector = f"<{lanes} x {element}>"
    sums = [code.slot(vector) for _ in range(count)]
    for total in sums:
        code.line(f"store {vector} zeroinitializer, ptr {total}")
    with code.loop(*rows) as place:
        row = code.let(f"inttoptr i64 {code.load('i64', order, place)} to ptr")
        for k, total in enumerate(sums):
            code.combine(vector, total, code.load_vector(vector, element, row, code.add(column, k * lanes)))
    for k, total in enumerate(sums):
        found = code.let(f"load {vector}, ptr {total}")
        code.store_vector(vector, element, found, target, code.add(column, k * lanes))


def _print_gather(index: str, element: str) -> str:
    code = FunctionBuilder("segments_gather_task", ["ptr %context", "i64 %task"])
    fields = Fields(code, "%context", _GATHER_FIELDS)
    lanes = registers_of(library.host, element).lanes
    table, ids, out = fields.address("table"), fields.address("ids"), fields.address("out")
    size, width, count, tasks = fields["size"], fields["width"], fields["count"], fields["tasks"]
    itemsize, base = BYTES[element], fields["table"]
    first, last = print_share(code, count, "%task", tasks)
    vectors = code.mul(code.div(width, lanes), lanes)
    with code.loop(first, last) as number:
        coming = code.load_integer(index, ids, code.least(code.add(number, _AHEAD), code.sub(last, 1)))
        with code.when(code.compare("ult", coming, size)):
            _print_prefetch(code, code.add(base, code.mul(coming, width, itemsize)), width, element)
        found = code.load_integer(index, ids, number)
        target = code.at(element, out, code.mul(number, width))
        for condition in ("ult", "uge"):
            with code.when(code.compare(condition, found, size)):
                source = code.at(element, table, code.mul(found, width))
                for low, high, each in ((0, vectors, lanes), (vectors, width, 1)):
                    vector = f"<{each} x {element}>"
                    with code.loop(low, high, each) as column:
                        is_inside = condition == "ult"
                        row = code.load_vector(vector, element, source, column) if is_inside else "zeroinitializer"
                        code.store_vector(vector, element, row, target, column)
    return code.text() + print_entry("segments_gather", _GATHER_FIELDS, parts="tasks")


def _print_prefetch(code: Builder, address: Size, width: Size, element: str) -> None:
    """Ask for the row at an address, or as much of it as the machine does not find by itself."""
    row = code.let(f"inttoptr i64 {address} to ptr")
    code.prefetch(element, row, 0, code.least(width, _MOST_AHEAD // BYTES[element]))
