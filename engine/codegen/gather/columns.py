"""Native code that takes elements along the last axis, and adds elements up there, at the same positions in each row.

Rows may be parts of wider ones. A part does whole rows, so that sums have the same bits on any number of threads.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ...common.machine_profile import machine_profile
from ...graph.op import is_plain_array
from ..elementwise.bound import native_dtype
from ..llvm.builder import FunctionBuilder
from ..llvm.library import LaterFunction, library
from ..llvm.tasks import Fields, print_entry, print_share

_PARTS = 8
_FIELDS = ("source", "ids", "target", "rows", "step", "count", "size", "parts")
_WORDS = {4: "i32", 8: "i64"}  # what elements of so many bytes are moved as


def column_taker(dtype: Any) -> Callable[[Any, Any], Any]:
    """Return the function that gives the elements of each row of an array at positions [n] counted from the front."""
    native = native_dtype(dtype)
    run = _function("taken", _WORDS[native.itemsize])

    def take(x: Any, positions: Any) -> Any:
        out = np.empty((*x.shape[:-1], len(positions)), native)
        _run(run, x, positions, out, out.size)
        return out

    return take


def column_putter(dtype: Any) -> Callable[[Any, Any, int], Any]:
    """Return the function that adds the elements of each row at positions [n] into a row of so many zeros."""
    native = native_dtype(dtype)
    run = _function("put", {"float32": "float", "float64": "double"}[native.name])

    def put(values: Any, positions: Any, size: int) -> Any:
        out = np.empty((*values.shape[:-1], size), native)
        _run(run, values, positions, out, values.size)
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


def _run(run: LaterFunction, source: Any, positions: Any, out: Any, work: int) -> None:
    if not out.size:
        return
    rows, count = math.prod(out.shape[:-1]), len(positions)
    step = source.shape[-1] if source.flags.c_contiguous else source.strides[0] // source.itemsize
    parts = 1 if work < machine_profile().parallel_row_elements else min(_PARTS, rows)
    addresses = source.ctypes.data, positions.ctypes.data, out.ctypes.data
    numbers = (ctypes.c_int64 * len(_FIELDS))(*addresses, rows, step, count, out.shape[-1], parts)
    run.call(ctypes.addressof(numbers))


# --- code -----------------------------------------------------------------------------------------------------------


@cache
def _function(kind: str, element: str) -> LaterFunction:
    """Return a compiled function of the address of its numbers."""
    name, printer = f"columns_{kind}", {"taken": _print_taken, "put": _print_put}[kind]

    def text() -> str:
        return printer(name, element) + print_entry(name, _FIELDS)

    return library.later(f"{name} {element}\n{text()}", text, name)


def _print_taken(name: str, element: str) -> str:
    code = FunctionBuilder(f"{name}_task", ["ptr %context", "i64 %part"])
    fields = Fields(code, "%context", _FIELDS)
    ids, count, step = fields.address("ids", "i64"), fields["count"], fields["step"]
    source, target = fields.address("source", element), fields.address("target", element)
    first, end = print_share(code, fields["rows"], "%part", fields["parts"])
    with code.loop(first, end) as row:
        taken, out = code.at(element, source, code.mul(row, step)), code.at(element, target, code.mul(row, count))
        with code.loop(0, count) as number:
            code.store(element, code.load(element, taken, code.load("i64", ids, number)), out, number)
    return code.text()


def _print_put(name: str, element: str) -> str:
    code = FunctionBuilder(f"{name}_task", ["ptr %context", "i64 %part"])
    fields = Fields(code, "%context", _FIELDS)
    ids, count, size, step = fields.address("ids", "i64"), fields["count"], fields["size"], fields["step"]
    source, target = fields.address("source", element), fields.address("target", element)
    first, end = print_share(code, fields["rows"], "%part", fields["parts"])
    with code.loop(first, end) as row:
        values, out = code.at(element, source, code.mul(row, step)), code.at(element, target, code.mul(row, size))
        with code.loop(0, size) as column:
            code.store(element, "0.0", out, column)
        with code.loop(0, count) as number:
            position = code.load("i64", ids, number)
            total, added = code.load(element, out, position), code.load(element, values, number)
            code.store(element, code.let(f"fadd {element} {total}, {added}"), out, position)
    return code.text()
