"""Transposed inputs of loops, laid out once.

A transpose is a view: its rows lie far apart. Where a loop reads one slice after the other and multiplies it (steps of
a batch-major sequence), each product would gather those rows anew, by way of BLAS, since kernels want rows that follow
each other. So the whole is copied in front of the loop, at the speed of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..control_flow.region_op import RegionOp
from ..graph.graph import Operation
from ..graph.tensor import Symbol
from ..ops.axes import Transpose, TransposedCopy
from ..ops.linalg import MatMul
from ..ops.tensor_arrays import ArrayRead, ArrayUnstack
from .log import note_change


def lay_out_transposed(operations: Sequence[Operation]) -> None:
    """Copy transposes whose slices are multiplied inside loops or branches among `operations`."""
    arrays = {
        user.outputs[0]: user.inputs[0].operation
        for user in operations
        if isinstance(user.op, ArrayUnstack) and _keeps_rows(user.inputs[0].operation)
    }
    multiplied = _multiplied(operations, set(arrays)) if arrays else set[Symbol]()
    for operation in dict.fromkeys(arrays[array] for array in arrays if array in multiplied):
        assert isinstance(operation.op, Transpose)
        operation.op = TransposedCopy(operation.op.axes)
        note_change("lay_out", operation, "is copied once, for the products in a loop that read its slices")


def _keeps_rows(operation: Operation) -> bool:
    """Whether the last axis stays where it is, so that slices have rows in one piece."""
    axes = operation.op.axes if type(operation.op) is Transpose else None
    return axes is not None and len(axes) > 2 and axes[-1] == len(axes) - 1 and axes != tuple(range(len(axes)))


def _multiplied(operations: Iterable[Operation], arrays: set[Symbol]) -> set[Symbol]:
    """Those of `arrays` of which a region inside reads an element to multiply it from the left."""
    found: set[Symbol] = set()
    for operation in operations:
        if not isinstance(operation.op, RegionOp):
            continue
        for region in operation.op.regions:
            inner = {parameter: outer for outer, parameter in region.captures if outer in arrays}
            if not inner:
                continue
            multiplied = {user.inputs[0] for user in region.operations if isinstance(user.op, MatMul)}
            for reader in region.operations:
                if isinstance(reader.op, ArrayRead) and reader.outputs[0] in multiplied and reader.inputs[0] in inner:
                    found.add(inner[reader.inputs[0]])
            found.update(inner[parameter] for parameter in _multiplied(region.operations, set(inner)))
    return found
