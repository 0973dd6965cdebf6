"""Kernels that write the parts of a concatenation side by side: rows are dealt out to the threads.

NumPy copies one part after the other on one thread, which memory keeps waiting.
"""

from __future__ import annotations

import math
from functools import cache

from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.arrays.joining import Concatenate
from ..elementwise.bound import BoundKernel, KernelOrNumPy
from ..elementwise.kernel_specs import static_shape, static_specs
from ..llvm.builder import FunctionBuilder
from ..llvm.entry import Operand, PrintedKernel
from ..llvm.tasks import begin_task, print_parallel, print_share, stored_fields
from .picks import word_of
from .rows import print_copy

_PARTS = 8
_LEAST_ROWS = 2 * _PARTS
_MOST_INPUTS = 64
_NUMBERS = ("rows", "parts", "total")  # before the elements that a row takes from each input


def bind_concatenate(operation: Operation) -> BoundKernel | None:
    """Return the kernel of a `Concatenate` along a later axis, of which NumPy copies each part of a row by itself."""
    op = op_of(operation, Concatenate)
    known = static_specs(operation)
    if known is None or not 1 < len(operation.inputs) <= _MOST_INPUTS:
        return None
    *inputs, result = known
    word, shape = word_of(result), static_shape(result)
    axis = op.axis % len(shape)
    rows, total = math.prod(shape[:axis]), math.prod(shape[axis:])
    if word is None or rows < _LEAST_ROWS:
        return None
    parts = 1 if rows * total < machine_profile().parallel_elements else _PARTS
    widths = [math.prod(static_shape(spec)[axis:]) for spec in inputs]
    return KernelOrNumPy(op, _kernel(word, len(shape), len(inputs)), inputs, [result], [rows, parts, total, *widths])


@cache
def _kernel(word: str, rank: int, count: int) -> PrintedKernel:
    """Return the kernel of a concatenation of `count` arrays."""
    operands = (*[Operand(word, rank)] * count, Operand(word, rank, (), True))
    pointers = [f"%d{k}" for k in range(count + 1)]
    widths = [f"width{k}" for k in range(count)]
    names = (*[f"d{k}" for k in range(count + 1)], *_NUMBERS, *widths)
    code = FunctionBuilder("NAME_run", [*[f"ptr {pointer}" for pointer in pointers], "ptr %numbers"])
    context, fields = stored_fields(code, pointers, names)
    print_parallel(code, "NAME_task", context, fields["parts"])
    return PrintedKernel(operands, len(_NUMBERS) + count, _print_task(word, count, names) + code.text())


def _print_task(word: str, count: int, names: tuple[str, ...]) -> str:
    """Print the function of a part, which writes some rows of the result."""
    code, fields = begin_task("NAME", names)
    first, end = print_share(code, fields["rows"], "%part", fields["parts"])
    sources = [fields.address(f"d{k}") for k in range(count)]
    widths = [fields[f"width{k}"] for k in range(count)]
    target, total = fields.address(f"d{count}"), fields["total"]
    with code.loop(first, end) as row:
        place = code.at(word, target, code.mul(row, total))
        for source, width in zip(sources, widths, strict=True):
            print_copy(code, word, code.at(word, source, code.mul(row, width)), place, width)
            place = code.at(word, place, width)
    return code.text()
