"""Captured tables: values of which a loop body or branch uses nothing but rows have gradients that are rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.graph import Operation
from ..graph.region import Region
from ..graph.spec import TensorSpec
from ..graph.tensor import Tensor
from ..ops.base import Cast, cast
from ..ops.creation import zeros
from ..ops.gathering import Take
from ..ops.indexed_slices import as_slices
from ..ops.indexing import GetItem, GetItems
from ..ops.joining import Concatenate
from .region_op import RegionOp


def is_table(tensor: Tensor) -> bool:
    """Whether the graph of `tensor` takes rows of it, and, as far as derivatives go, does nothing else with it.

    Rows are taken by `Take` and by indexing with integers, also of what several tables are joined to along their first
    axis, of copies in another dtype, and inside loops and branches that capture it.
    """
    graph = tensor.operation.graph
    if not _has_rows(tensor) or (isinstance(graph, Region) and tensor in graph.results):
        return False
    uses = _uses(tensor, graph.operations)
    return bool(uses) and all(_takes_rows(*use) for use in uses)


def takes_rows_only(tensor: Tensor, operations: Sequence[Operation]) -> bool:
    """Whether some `operations` of the graph of `tensor` do nothing with it but take rows of it."""
    return _has_rows(tensor) and all(_takes_rows(*use) for use in _uses(tensor, operations))


def _has_rows(tensor: Tensor) -> bool:
    shape = tensor.shape
    return bool(shape) and None not in shape[1:] and isinstance(tensor.spec, TensorSpec)


def _uses(tensor: Tensor, operations: Sequence[Operation]) -> list[tuple[Operation, int]]:
    """The operations that take `tensor` and give something differentiable, and as which of their inputs."""
    return [
        (operation, position)
        for operation in operations
        for position, source in enumerate(operation.inputs)
        if source is tensor and any(output.spec.differentiable for output in operation.outputs)
    ]


def rows_of(cotangent: Any, table: Tensor) -> tuple[Tensor, Tensor]:
    """A cotangent of a table as rows and their positions, int64; as no rows if it is None."""
    if cotangent is None:
        return zeros((0, *(table.shape or ())[1:]), table.dtype), zeros((0,), "int64")
    slices = as_slices(cotangent, table)
    return slices.values, cast(slices.indices, "int64")


def _takes_rows(operation: Operation, position: int) -> bool:
    op = operation.op
    if isinstance(op, Take):
        return position == 0 and op.axis == 0
    if isinstance(op, (GetItem, GetItems)):
        return position == 0 and op.takes_rows(operation.inputs[1:])
    if isinstance(op, Cast) or (isinstance(op, Concatenate) and op.axis == 0):
        return is_table(operation.outputs[0])
    inner = _inner_parameter(op.regions, position - (len(operation.inputs) - _captured(op.regions)))
    return isinstance(op, RegionOp) and inner is not None and is_table(inner)


def _captured(regions: Sequence[Region]) -> int:
    return sum(len(region.captures) for region in regions)


def _inner_parameter(regions: Sequence[Region], position: int) -> Tensor | None:
    """The parameter for capture number `position`, counted over all regions."""
    captures = [inner for region in regions for _, inner in region.captures]
    return captures[position] if 0 <= position < len(captures) else None
