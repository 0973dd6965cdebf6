"""Native code that takes elements along the last axis, and adds elements up there, at the same positions in each row.

Rows may be parts of wider ones. A part does whole rows, so that sums have the same bits on any number of threads.
Constant positions that follow each other, such as those of a triangle of a matrix, are moved as vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from ...common.machine_profile import machine_profile
from ...common.quick_dataclass import dataclass
from ...graph.op import is_plain_array
from ..elementwise.kernel_specs import native_dtype
from ..llvm.builder import BYTES, ELEMENTS, Builder, Size, declare_masked, masked_load, masked_store
from ..llvm.library import LaterFunction, library
from ..llvm.registers import vector_bytes
from ..llvm.tasks import begin_task, print_entry, print_share

_PARTS = 8
_FIELDS = ("source", "ids", "target", "rows", "step", "count", "size", "pieces", "parts")
_PIECE = ("position", "number", "length")  # the numbers of a piece
_LEAST_PIECE = 4  # elements on average, from which pieces take less time than elements
_WORDS = {4: "i32", 8: "i64"}  # what elements of so many bytes are moved as


@dataclass(frozen=True)
class Columns:
    """Positions in a row, counted from the front.

    Attributes:
        positions: [n], int64.
        pieces: [pieces, 3], int64: the first position of some that follow each other, its number among all, and how
            many they are, at most the elements of a vector. None if elements are moved one by one.
    """

    positions: Any
    pieces: Any = None


def are_pieces(positions: Any, dtype: Any) -> bool:
    """Test whether constant positions ascend, and so many follow each other that they are worth vectors.

    They must not mix positions from the front and negative ones: so each element has one position at most.
    """
    flat = positions.reshape(-1).astype(np.int64)
    if not flat.size or not library.usable or (np.diff(flat) <= 0).any() or flat[0] < 0 <= flat[-1]:
        return False
    return len(_pieces(flat, dtype)) * _LEAST_PIECE <= flat.size


def columns_in_pieces(positions: Any, dtype: Any) -> Columns:
    """Return ascending positions [n] as pieces."""
    return Columns(positions, _pieces(positions, dtype))


def _pieces(positions: Any, dtype: Any) -> Any:
    lanes = vector_bytes(library.host) // native_dtype(dtype).itemsize
    found: list[tuple[int, int, int]] = []
    starts = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
    for start, stop in pairwise(starts):
        found += [(int(positions[k]), k, min(lanes, stop - k)) for k in range(start, stop, lanes)]
    return np.array(found, np.int64)


def column_taker(dtype: Any, in_pieces: bool) -> Callable[[Any, Columns], Any]:
    """Return the function that gives the elements of each row of an array at some positions."""
    native = native_dtype(dtype)
    run = _function("taken", _WORDS[native.itemsize], in_pieces)

    def take(x: Any, columns: Columns) -> Any:
        out = np.empty((*x.shape[:-1], len(columns.positions)), native)
        _run(run, x, columns, out, out.size)
        return out

    return take


def column_putter(dtype: Any, in_pieces: bool) -> Callable[[Any, Columns, int], Any]:
    """Return the function that adds the elements of each row at some positions into a row of so many zeros."""
    native = native_dtype(dtype)
    run = _function("put", ELEMENTS[native.name], in_pieces)

    def put(values: Any, columns: Columns, size: int) -> Any:
        out = np.empty((*values.shape[:-1], size), native)
        _run(run, values, columns, out, values.size)
        return out

    return put


def has_rows(array: Any, dtype: Any) -> bool:
    """Test whether an array is of a dtype of NumPy's own, its rows at one distance, their elements side by side."""
    if not is_plain_array(array) or not array.flags.aligned or array.dtype != dtype:
        return False
    if array.flags.c_contiguous:
        return array.ndim > 0
    step, element = array.strides[0], array.itemsize
    return array.ndim == 2 and array.strides[1] == element and step > 0 and not step % element


def _run(run: LaterFunction, source: Any, columns: Columns, out: Any, work: int) -> None:
    if not out.size:
        return
    rows, count = math.prod(out.shape[:-1]), len(columns.positions)
    ids, pieces = (columns.positions, 0) if columns.pieces is None else (columns.pieces, len(columns.pieces))
    step = source.shape[-1] if source.flags.c_contiguous else source.strides[0] // source.itemsize
    parts = 1 if work < machine_profile().parallel_row_elements else min(_PARTS, rows)
    run.run(source, ids, out, rows, step, count, out.shape[-1], pieces, parts)


# --- code -----------------------------------------------------------------------------------------------------------


@cache
def _function(kind: str, element: str, in_pieces: bool) -> LaterFunction:
    """Return a compiled function of the address of its numbers."""
    name = f"columns_{kind}{'_in_pieces' if in_pieces else ''}"
    return library.later(f"{name} {element}", lambda: _print_task(name, element, kind == "put", in_pieces), name)


def _print_task(name: str, element: str, is_put: bool, in_pieces: bool) -> str:
    """Print the function of a part, which takes the elements of its rows, or puts them into rows of zeros."""
    code, fields = begin_task(name, _FIELDS)
    ids, count = fields.address("ids"), fields["pieces" if in_pieces else "count"]
    source, target = fields.address("source"), fields.address("target")
    step, size = fields["step"], fields["size"]
    print_moves = _print_pieces if in_pieces else _print_elements
    first, end = print_share(code, fields["rows"], "%part", fields["parts"])
    with code.loop(first, end) as row:
        values, out = code.at(element, source, code.mul(row, step)), code.at(element, target, code.mul(row, size))
        if is_put:
            code.clear(element, out, size)
        print_moves(code, element, ids, count, values, out, is_put)
    declared = declare_masked(vector_bytes(library.host) // BYTES[element], element) if in_pieces else ""
    return code.text() + declared + print_entry(name, _FIELDS)


def _print_elements(code: Builder, element: str, ids: str, count: Size, values: str, out: str, is_put: bool) -> None:
    with code.loop(0, count) as number:
        position = code.load("i64", ids, number)
        if is_put:
            total, added = code.load(element, out, position), code.load(element, values, number)
            code.store(element, code.let(f"fadd {element} {total}, {added}"), out, position)
        else:
            code.store(element, code.load(element, values, position), out, number)


def _print_pieces(code: Builder, element: str, ids: str, count: Size, values: str, out: str, is_put: bool) -> None:
    """Print moves of pieces, each to a place of its own: nothing has been added to the zeros there yet."""
    lanes = vector_bytes(library.host) // BYTES[element]
    vector = f"<{lanes} x {element}>"
    with code.loop(0, count) as piece:
        place = code.at("i64", ids, code.mul(piece, len(_PIECE)))
        position, number, length = (code.load("i64", place, k) for k in range(len(_PIECE)))
        length = code.broadcast(lanes, "i32", code.let(f"trunc i64 {length} to i32"))
        lane_numbers = ", ".join(f"i32 {lane}" for lane in range(lanes))
        mask = code.let(f"icmp sgt <{lanes} x i32> {length}, <{lane_numbers}>")
        start, to = (number, position) if is_put else (position, number)
        start, to = code.at(element, values, start), code.at(element, out, to)
        moved = code.let(masked_load(lanes, element, start, mask, "zeroinitializer"))
        if is_put:  # 0.0 of -0.0
            moved = code.let(f"fadd {vector} {moved}, zeroinitializer")
        code.line(masked_store(lanes, element, moved, to, mask))
