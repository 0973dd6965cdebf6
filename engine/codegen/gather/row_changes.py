"""Native code for `UpdateRows`: rows of variables are changed in place, one after the other.

Rows to come are asked for ahead of their use. What the code does not handle (other layouts, positions out of bounds) is
left to the op, before anything was written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from ...common.machine_profile import machine_profile
from ...graph.graph import Operation
from ...graph.operation import op_of
from ...ops.containers.indexed_slices import own_memory
from ...ops.internal.update_rows import UpdateRows
from ..elementwise.kernel_specs import fits, kernel_spec, native_dtype, specs_of
from ..expression.expression import UnsupportedError
from ..expression.llvm import KernelSpec
from ..llvm.builder import Builder, Size
from ..llvm.entry import DATA_OFFSET
from ..llvm.library import LaterFunction, library
from ..llvm.tasks import begin_entry, begin_task, print_parallel, print_share

_AHEAD = 8  # rows
_PARTS = 8
_HEAD = ("positions", "count", "size", "width", "parts")  # the addresses of the operands follow, and if it has failed


def update_runner(operation: Operation) -> Callable[..., Any] | None:
    """Return a runner that changes rows in the memory of the variables of an `UpdateRows`."""
    op = op_of(operation, UpdateRows)
    count = len(op.variables)
    specs = specs_of(operation.inputs)
    given = [*specs[:count], *specs[count + 1 :]]
    positions = specs[count]
    if len(specs) < len(operation.inputs) or positions.dtype.name not in ("int32", "int64"):
        return None
    vectors = [replace(spec, shape=(2,)) if spec.shape else spec for spec in given]
    try:
        run = _function(kernel_spec(op.change, vectors, vectors[:count]), count, f"i{8 * positions.dtype.itemsize}")
    except UnsupportedError:
        return None
    dtype = native_dtype(positions.dtype)
    dtypes = [native_dtype(spec.dtype) for spec in given]

    def update(places: Any, *others: Any) -> Any:
        wholes = [own_memory(variable) for variable in op.variables]
        shape = wholes[0].shape
        arrays = (places.shape[0], *shape[1:])
        operands: list[Any] = [*wholes]
        good = fits(places, dtype) and all(whole.shape == shape for whole in wholes)
        good = good and all(fits(whole, kind) for whole, kind in zip(wholes, dtypes, strict=False))
        for spec, value, kind in zip(given[count:], others, dtypes[count:], strict=True):
            if spec.shape:
                good = good and fits(value, kind) and value.shape == arrays
                operands.append(value)
            else:
                good = good and type(value) is kind.type
                operands.append(id(value) + DATA_OFFSET)
        if not good:
            return op.write_in_place(places, *others)
        width = math.prod(shape[1:])
        parts = max(1, min(_PARTS, places.size * width // machine_profile().row_change_elements))
        if run.run(places, places.size, shape[0], width, parts, *operands, 0):
            return op.write_in_place(places, *others)
        return tuple(wholes) if count > 1 else wholes[0]

    return update


@cache
def _function(spec: KernelSpec, count: int, index: str) -> LaterFunction:
    """Return a compiled function of the address of its numbers.

    Args:
        spec: what is computed of one row; the first `count` operands are the rows of variables, as are the results.
        count: of variables.
        index: the type of positions.
    """

    def text() -> str:
        return spec.print_body("change") + _print_task(spec, count, index) + _print_entry(len(spec.inputs), index)

    return library.later(f"row_changes {index} {count} {spec!r}", text, "row_changes")


def _print_entry(operands: int, index: str) -> str:
    """Print the function that is called: it looks at the positions, and then runs all parts."""
    code, fields = begin_entry("row_changes", _HEAD)
    positions, size, outside = fields.address("positions"), fields["size"], code.slot("i64")
    code.line(f"store i64 0, ptr {outside}")
    with code.loop(0, fields["count"]) as number:
        wrong = code.compare("uge", code.load_integer(index, positions, number), size)
        code.line(f"store i64 {_either(code, wrong, outside)}, ptr {outside}")
    failed = code.let(f"load i64, ptr {outside}")
    code.store("i64", failed, "%numbers", len(_HEAD) + operands)
    with code.when(code.compare("eq", failed, 0)):
        print_parallel(code, "row_changes_task", "%numbers", fields["parts"])
    return code.text()


def _either(code: Builder, condition: str, slot: str) -> str:
    """Return 1 if the condition holds, otherwise what the slot holds."""
    return code.let(f"select i1 {condition}, i64 1, i64 {code.let(f'load i64, ptr {slot}')}")


def _print_task(spec: KernelSpec, count: int, index: str) -> str:
    """Print the function of a part of the rows."""
    code, fields = begin_task("row_changes", _HEAD)
    total, parts, width = fields["count"], fields["parts"], fields["width"]
    positions = fields.address("positions")
    bases: list[str] = []
    for k in range(len(spec.inputs)):
        address = code.load("i64", "%context", len(_HEAD) + k)
        bases.append(code.let(f"inttoptr i64 {address} to ptr"))
    first, end = print_share(code, total, "%part", parts)
    last = code.sub(end, 1)
    with code.loop(first, end) as number:
        ahead = code.load_integer(index, positions, code.least(code.add(number, _AHEAD), last))
        for k in range(count):
            element = spec.inputs[k].memory
            code.prefetch(element, code.at(element, bases[k], code.mul(ahead, width)), 0, width, to_write=True)
        row = code.mul(code.load_integer(index, positions, number), width)
        here = code.mul(number, width)
        places: list[Size] = [
            row if k < count else here if operand.rank else 0 for k, operand in enumerate(spec.inputs)
        ]
        given = zip(spec.inputs, bases, places, strict=True)
        found = [code.at(operand.memory, base, place) for operand, base, place in given]
        code.call_on("change_body", [*found, *found[:count], "%context"], (0, width))
    return code.text()
