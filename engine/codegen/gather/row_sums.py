"""Native code that adds up rows of a table, and adds rows to rows of a table in place.

In the latter a row belongs to one part, by a hash of its position, so that no two parts write the same row, and each
adds in the order given: what comes out does not depend on how many threads there are. A part first lists what is its
own, then goes through that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.arrays.gathering import AddRows, checked_positions
from ...ops.containers.indexed_slices import AddToRows, own_memory
from ...ops.internal.sum_of_rows import SumOfRepeated, SumOfRows
from ..llvm.builder import ELEMENTS, Builder, Size
from ..llvm.library import LaterFunction, library
from ..llvm.registers import registers_of
from ..llvm.tasks import begin_task, print_entry, print_share
from .picks import Updating
from .rows import is_plain, print_position, when_inside

_AHEAD = 12  # rows
_PARTS = 4  # a power of two
_PART_BITS = 2
_HASH = 0x9E3779B97F4A7C15 - (1 << 64)  # 2**64 by the golden ratio, as a signed number
_FIELDS = ("table", "ids", "rows", "count", "width", "parts", "lists", "repeats", "scale")
_TAKEN_FIELDS = ("table", "ids", "rows", "count", "terms", "size", "width", "parts", "failed")


def add_runner(operation: Operation) -> Callable[..., Any] | None:
    """Return a runner that adds to rows in the memory of the variable of an `AddToRows`."""
    op = op_of(operation, AddToRows)
    whole, positions = (tensor.spec for tensor in operation.inputs[:2])
    if not isinstance(whole, TensorSpec) or not isinstance(positions, TensorSpec):
        return None
    if whole.dtype.name not in ELEMENTS or positions.dtype.name != "int64":
        return None
    dtype, run = np.dtype(whole.dtype.name), _function(ELEMENTS[whole.dtype.name], op.repeats > 1)

    def add(positions: Any, rows: Any, scale: Any = 1) -> Any:
        whole = own_memory(op.variable)
        fits = is_plain(positions) and is_plain(rows) and rows.dtype == dtype and positions.dtype == np.int64
        count = len(positions)
        if not fits or rows.shape != (count // op.repeats, *whole.shape[1:]) or count % op.repeats:
            return op.write_in_place(positions, rows, scale)
        if not count or int(positions.view(np.uint64).max()) >= len(whole):
            return op.write_in_place(positions, rows, scale)
        _add(run, whole, positions, rows, op.repeats, op.sign * scale)
        return whole

    return add


def rows_runner(operation: Operation) -> Updating | None:
    """Return a runner of an `AddRows` along the first axis."""
    op = op_of(operation, AddRows)
    specs = [tensor.spec for tensor in operation.inputs]
    base, *others = (spec for spec in specs if isinstance(spec, TensorSpec))
    if len(others) < 2 or not base.rank or op.axis % base.rank or base.dtype.name not in ELEMENTS:
        return None
    dtype, run = np.dtype(base.dtype.name), _function(ELEMENTS[base.dtype.name], False)

    def over(out: Any, values: Any, indices: Any) -> Any:
        fits = is_plain(out) and is_plain(values) and values.dtype == dtype == out.dtype
        if not fits or not values.size or values.shape != indices.shape + out.shape[1:]:
            return op.run_over(np, out, values, indices)
        positions = checked_positions(np, indices, len(out), 0, op.wrap).reshape(-1)
        _add(run, out, np.ascontiguousarray(positions, np.int64), values, 1, 1)
        return out

    return Updating(over)


def _add(run: LaterFunction, whole: Any, positions: Any, rows: Any, repeats: int, scale: Any) -> None:
    """Add rows times a scale to the rows of `whole` at positions that are known to be in it."""
    count, width = len(positions), math.prod(whole.shape[1:])
    parts = 1 if count * width < machine_profile().parallel_row_elements else _PARTS
    lists, factor = np.empty((parts, count), np.int64), np.array(scale, whole.dtype)
    run.run(whole, positions, rows, count, width, parts, lists, repeats, factor)


def repeated_runner(operation: Operation) -> Callable[..., Any] | None:
    """Return a runner of a `SumOfRepeated`."""
    op = op_of(operation, SumOfRepeated)
    rows, ids = (tensor.spec for tensor in operation.inputs[:2])
    if not isinstance(rows, TensorSpec) or not isinstance(ids, TensorSpec) or rows.dtype.name not in ELEMENTS:
        return None
    if ids.dtype.name not in ("int32", "int64"):
        return None
    dtype, run = np.dtype(rows.dtype.name), _function(ELEMENTS[rows.dtype.name], op.repeats > 1)

    def sum_of_repeated(rows: Any, ids: Any, count: Any) -> Any:
        positions = np.ascontiguousarray(ids, np.int64)
        fits = is_plain(rows) and rows.dtype == dtype and len(rows) * op.repeats == len(positions)
        if not fits or not len(positions) or int(positions.view(np.uint64).max()) >= int(count):
            return op.run(np, rows, ids, count)
        out = np.empty((int(count), *rows.shape[1:]), dtype)
        out.fill(0)
        _add(run, out, positions, rows, op.repeats, 1)
        return out

    return sum_of_repeated


def taken_runner(operation: Operation) -> Callable[..., Any] | None:
    """Return a runner of a `SumOfRows`."""
    op = op_of(operation, SumOfRows)
    table, ids = (tensor.spec for tensor in operation.inputs)
    if not isinstance(table, TensorSpec) or not isinstance(ids, TensorSpec) or table.dtype.name not in ELEMENTS:
        return None
    if ids.dtype.name not in ("int32", "int64") or not op.wrap:
        return None
    dtype, index = np.dtype(table.dtype.name), np.dtype(ids.dtype.name)
    run = _taken_function(ELEMENTS[dtype.name], f"i{8 * index.itemsize}")

    def sum_of_rows(table: Any, ids: Any) -> Any:
        if not is_plain(table) or not is_plain(ids) or table.dtype != dtype or ids.dtype != index:
            return op.run(np, table, ids)
        count, terms = ids.shape
        out = np.empty((count, *table.shape[1:]), dtype)
        width = math.prod(table.shape[1:])
        parts = 1 if count * terms * width < machine_profile().parallel_row_elements else max(1, min(2 * _PARTS, count))
        is_left = run.run(table, ids, out, count, terms, len(table), width, parts, 0)
        return op.run(np, table, ids) if is_left else out

    return sum_of_rows


# --- code -----------------------------------------------------------------------------------------------------------


@cache
def _function(element: str, repeats: bool) -> LaterFunction:
    """Return a compiled function of the address of its numbers; `repeats`: several positions take the same row."""
    return library.later(f"row_sums {element} {repeats}", lambda: _print_task(element, repeats), "row_sums")


def _print_task(element: str, repeats: bool) -> str:
    code, fields = begin_task("row_sums", _FIELDS)
    ids, count, width = fields.address("ids"), fields["count"], fields["width"]
    own = code.at("i64", fields.address("lists"), code.mul("%part", count))
    listed = _print_list(code, ids, own, count, fields["parts"])
    table, rows = fields.address("table"), fields.address("rows")
    each, last = fields["repeats"], code.sub(listed, 1)
    scale = code.load(element, fields.address("scale"))
    with code.loop(0, listed) as turn:
        ahead = code.load("i64", ids, code.load("i64", own, code.least(code.add(turn, _AHEAD), last)))
        coming = code.at(element, table, code.mul(ahead, width))
        code.prefetch(element, coming, 0, width, to_write=True)
        number = code.load("i64", own, turn)
        target = code.at(element, table, code.mul(code.load("i64", ids, number), width))
        # A division by a number that is not known takes as long as adding a row.
        taken = code.div(number, each) if repeats else number
        source = code.at(element, rows, code.mul(taken, width))
        _print_row(code, element, source, target, width, scale)
    return code.text() + print_entry("row_sums", _FIELDS)


def _print_list(code: Builder, ids: str, own: str, count: Size, parts: Size) -> str:
    """List the numbers of the positions that belong to this part; return how many there are."""
    slot = code.slot("i64")
    code.line(f"store i64 0, ptr {slot}")
    mask = code.sub(parts, 1)
    with code.loop(0, count) as number:
        mixed = code.mul(code.load("i64", ids, number), _HASH)
        owner = code.let(f"and i64 {code.let(f'lshr i64 {mixed}, {64 - _PART_BITS}')}, {mask}")
        listed = code.let(f"load i64, ptr {slot}")
        code.store("i64", number, own, listed)
        is_own = code.let(f"zext i1 {code.compare('eq', owner, '%part')} to i64")
        code.line(f"store i64 {code.add(listed, is_own)}, ptr {slot}")
    return code.let(f"load i64, ptr {slot}")


def _print_row(code: Builder, element: str, source: str, target: str, width: Size, scale: str) -> None:
    lanes = registers_of(library.host, element).lanes
    whole = code.mul(code.div(width, lanes), lanes)
    for start, stop, step in ((0, whole, lanes), (whole, width, 1)):
        vector = f"<{step} x {element}>"
        factor = code.broadcast(step, element, scale)
        with code.loop(start, stop, step) as column:
            added = code.load_vector(vector, element, source, column)
            total = code.load_vector(vector, element, target, column)
            total = code.multiply_add(vector, added, factor, total)
            code.store_vector(vector, element, total, target, column)


@cache
def _taken_function(element: str, index: str) -> LaterFunction:
    """Return a compiled function of the address of its numbers."""
    return library.later(f"sum_of_rows {element} {index}", lambda: _print_taken_task(element, index), "sum_of_rows")


def _print_taken_task(element: str, index: str) -> str:
    """Print the function of a part, which makes some rows of the result, each of so many terms."""
    code, fields = begin_task("sum_of_rows", _TAKEN_FIELDS)
    table, ids, rows = fields.address("table"), fields.address("ids"), fields.address("rows")
    count, terms, size, width, parts = (fields[name] for name in ("count", "terms", "size", "width", "parts"))
    first, end = print_share(code, count, "%part", parts)
    last = code.sub(code.mul(end, terms), 1)
    with code.loop(first, end) as number:
        target = code.at(element, rows, code.mul(number, width))
        with code.loop(0, width) as column:
            code.store(element, "0.0", target, column)
        with code.loop(0, terms) as term:
            place = code.add(code.mul(number, terms), term)
            ahead = print_position(code, ids, index, code.least(code.add(place, _AHEAD), last), size)
            coming = code.at(element, table, code.mul(ahead, width))
            code.prefetch(element, coming, 0, width)
            position = print_position(code, ids, index, place, size)
            with when_inside(code, position, size, "%context", _TAKEN_FIELDS.index("failed")):
                source = code.at(element, table, code.mul(position, width))
                _print_row(code, element, source, target, width, "1.0")
    return code.text() + print_entry("sum_of_rows", _TAKEN_FIELDS)
