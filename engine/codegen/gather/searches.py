"""Native code for the places of values in a sorted vector: no branch depends on data, and threads share the values.

NumPy follows a branch at each comparison, half of which no processor foresees. Here some values are searched for side
by side, by as many comparisons each as the length of the vector asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...graph.spec import TensorSpec
from ...ops.arrays.sorting import SearchSorted
from ..elementwise.kernel_specs import fits, native_dtype
from ..llvm.builder import LOOP, Builder, Size
from ..llvm.library import LaterFunction, library
from ..llvm.tasks import begin_task, print_entry, print_share
from .sorting_forms import is_less

_ELEMENTS = {"float32": "float", "float64": "double", "int32": "i32", "int64": "i64"}
_TOGETHER = 32  # values that are searched for side by side
_TASKS = 8
_FIELDS = ("sequence", "length", "rounds", "values", "count", "out", "tasks")


def search_runner(operation: Operation) -> Callable[..., Any] | None:
    """Return a runner of `SearchSorted`."""
    op, spec = op_of(operation, SearchSorted), operation.inputs[0].spec
    if not isinstance(spec, TensorSpec) or spec.dtype.name not in _ELEMENTS:
        return None
    dtype = native_dtype(spec.dtype)
    run = _function(_ELEMENTS[dtype.name], op.side)

    def search_sorted(sequence: Any, values: Any) -> Any:
        given = np.asarray(values)
        is_fit = fits(sequence, dtype) and fits(given, dtype) and sequence.size
        if not is_fit or given.size < _TOGETHER:
            return op.run(np, sequence, values)
        out = np.empty(given.shape, np.int32)
        tasks = _TASKS if given.size >= machine_profile().parallel_elements // 8 else 1
        rounds = (sequence.size - 1).bit_length()
        run.run(sequence, sequence.size, rounds, given, given.size, out, tasks)
        return out

    return search_sorted


# --- code -----------------------------------------------------------------------------------------------------------


@cache
def _function(element: str, side: str) -> LaterFunction:
    return library.later(f"search {element} {side}", lambda: _print(element, side), "search")


def _print(element: str, side: str) -> str:
    """Print the function that searches, and the part of it that threads run."""
    code, fields = begin_task("search", _FIELDS)
    sequence, values, out = (fields.address(name) for name in ("sequence", "values", "out"))
    length, rounds, count = fields["length"], fields["rounds"], fields["count"]
    first, end = print_share(code, code.ceil_div(count, _TOGETHER), "%part", fields["tasks"])
    places, left = code.slot(f"[{_TOGETHER} x i64]"), code.slot("i64")

    def moves(value: str, place: Size, by: Size) -> str:
        """Return how far a value moves on: by so much if it is behind the element there."""
        edge = code.load(element, sequence, place)
        return code.choose(_is_behind(code, (element, side), edge, value), by, 0)

    with code.loop(first, end) as block:
        start = code.mul(block, _TOGETHER)
        here = code.at(element, values, start)
        many = code.least(_TOGETHER, code.sub(count, start))
        code.clear("i64", places, _TOGETHER)
        code.store("i64", length, left)
        with code.loop(0, rounds):
            size = code.load("i64", left)
            half = code.let(f"lshr i64 {size}, 1")
            with code.loop(0, many, metadata=LOOP) as k:
                place = code.load("i64", places, k)
                step = moves(code.load(element, here, k), code.sub(code.add(place, half), 1), half)
                code.store("i64", code.add(place, step), places, k)
            code.store("i64", code.sub(size, half), left)
        with code.loop(0, many, metadata=LOOP) as k:
            place = code.load("i64", places, k)
            found = code.add(place, moves(code.load(element, here, k), place, 1))
            code.store("i32", code.let(f"trunc i64 {found} to i32"), out, code.add(start, k))
    return code.text() + print_entry("search", _FIELDS, parts="tasks")


def _is_behind(code: Builder, form: tuple[str, str], edge: str, value: str) -> str:
    element, side = form
    if side == "left":
        return is_less(code, element, edge, value)
    return code.let(f"xor i1 {is_less(code, element, value, edge)}, true")
