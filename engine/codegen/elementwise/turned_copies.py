"""Copies of arrays along whose last axis elements do not follow each other, such as transposes.

NumPy reads the elements one by one, each from another place in memory. Here a square of neighbours is read by vectors,
exchanged in registers and written by vectors, and threads share the squares.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...common.machine_profile import machine_profile
from ..llvm.library import library
from ..llvm.registers import registers_of
from ..llvm.squares import print_transpose, print_transposition
from ..llvm.tasks import begin_task, print_entry, print_share
from .open_sizes import BoundedCache, Shape

_ELEMENTS = {4: "float", 8: "double"}  # LLVM types by their bytes; what bits mean is of no consequence
_COLUMNS = 32  # of the source that are copied at a time: whole cache lines
_FEWEST = 8  # columns: NumPy is as fast with fewer
_FIRST = 32  # copies that NumPy makes
_TASKS = 8
_FIELDS = (
    *("source", "target", "outer", "inner", "outer_from", "inner_from", "outer_to", "inner_to"),
    *("rows", "columns", "from", "to", "blocks", "tasks"),
)


class _Axis(NamedTuple):
    """An axis: its size, and the elements from one to the next in the source and in the copy."""

    size: int
    source: int
    target: int


def copied_by_squares(value: Any, dtype: Any, target: Any = None) -> Any:
    """Return a contiguous copy of an array of which another axis than the last is contiguous; None of any other.

    The first few of a process are left to NumPy, too.

    Args:
        value: an array of that very dtype.
        dtype: native.
        target: where the copy is put, if it has a place: contiguous memory of that shape and dtype.
    """
    if not value.flags.aligned or dtype.itemsize not in _ELEMENTS or dtype.kind not in "biufc":
        return None
    numbers = _plans[dtype.itemsize, value.shape, value.strides]
    if numbers is None:
        return None
    copier = _copier(_ELEMENTS[dtype.itemsize])
    if copier.waits:
        copier.waits -= 1
        return None
    made = np.empty(value.shape, dtype) if target is None else target
    tasks = _TASKS if value.size >= 2 * machine_profile().parallel_elements else 1
    copier.run(value, made, *numbers, tasks)
    return made


def _plan(key: tuple[int, Shape, Shape]) -> tuple[int, ...] | None:
    """Return the numbers of a copy, without its addresses; None if it is none by squares."""
    itemsize, shape, strides = key
    if any(step % itemsize for step in strides):
        return None
    axes = _joined(shape, [step // itemsize for step in strides])
    unit = [axis for axis in axes[:-1] if axis.source == 1]
    if not unit or axes[-1].source == 1:
        return None
    *_, last = axes
    columns, others = unit[0], [axis for axis in axes[:-1] if axis is not unit[0]]
    if len(others) > 2 or columns.size < _FEWEST:
        return None
    outer, inner = [_Axis(1, 0, 0)] * (2 - len(others)) + others
    outside = outer.size, inner.size, outer.source, inner.source, outer.target, inner.target
    return *outside, last.size, columns.size, last.source, columns.target, -(-columns.size // _COLUMNS)


def _joined(shape: Shape, steps: list[int]) -> list[_Axis]:
    """Return the axes of more than one element; neighbours that follow each other in the source are one."""
    axes: list[_Axis] = []
    target = math.prod(shape)
    for size, step in zip(shape, steps, strict=True):
        target //= max(1, size)
        if size == 1:
            continue
        if axes and axes[-1].source == step * size:
            axes[-1] = _Axis(axes[-1].size * size, step, target)
        else:
            axes.append(_Axis(size, step, target))
    return axes or [_Axis(1, 1, 1)]


_plans = BoundedCache(_plan)


class _Copier:
    """The function for elements of a size: it is compiled while NumPy makes the first copies."""

    def __init__(self, element: str) -> None:
        self.waits = _FIRST
        self.run = library.later(f"turned_copy {element}", lambda: _print(element), "turned_copy").run


_copier = cache(_Copier)


def _print(element: str) -> str:
    """Print the function that copies, and the part of it that threads run."""
    code, fields = begin_task("turned_copy", _FIELDS)
    get = {name: fields[name] for name in _FIELDS}
    source, target = fields.address("source"), fields.address("target")
    planes = code.mul(get["outer"], get["inner"])
    first, end = print_share(code, code.mul(planes, get["blocks"]), "%part", get["tasks"])
    with code.loop(first, end) as number:
        block, plane = code.rem(number, get["blocks"]), code.div(number, get["blocks"])
        outer, inner, column = code.div(plane, get["inner"]), code.rem(plane, get["inner"]), code.mul(block, _COLUMNS)
        start = code.add(code.mul(outer, get["outer_from"]), code.mul(inner, get["inner_from"]), column)
        end = code.add(code.mul(outer, get["outer_to"]), code.mul(inner, get["inner_to"]), code.mul(column, get["to"]))
        x, y = code.at(element, source, start), code.at(element, target, end)
        columns = code.least(_COLUMNS, code.sub(get["columns"], column))
        print_transpose(code, (x, get["from"]), (y, get["to"]), (get["rows"], columns))
    lanes = registers_of(library.host, element).lanes
    entry = print_entry("turned_copy", _FIELDS, parts="tasks")
    return print_transposition(element, lanes) + code.text() + entry


__all__ = ["copied_by_squares"]
