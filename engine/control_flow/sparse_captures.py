"""Captured tables: values of which a loop body or branch uses nothing but rows have gradients that are rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ..common.identity import is_among
from ..graph.graph import Graph, Operation
from ..graph.region import Region
from ..graph.spec import TensorSpec
from ..graph.tensor import Symbol, Tensor
from ..ops.arrays.creation import zeros
from ..ops.arrays.joining import Concatenate
from ..ops.arrays.shaping import dim, reshape
from ..ops.base import Cast, cast
from ..ops.containers.indexed_slices import as_slices


class Uses:
    """The operations that take tensors and give something differentiable, each with the position of the input.

    Each graph is looked through once, so this must be thrown away when anything is built.
    """

    def __init__(self) -> None:
        self._found: dict[Graph, dict[Symbol, list[tuple[Operation, int]]]] = {}

    def of(self, tensor: Symbol) -> Sequence[tuple[Operation, int]]:
        """Return the uses of `tensor` in its own graph."""
        graph = tensor.operation.graph
        known = self._found.get(graph)
        if known is None:
            known = self._found[graph] = uses_among(graph.operations)
        return known.get(tensor, ())


def uses_among(operations: Iterable[Operation]) -> dict[Symbol, list[tuple[Operation, int]]]:
    """Map each tensor to those of `operations` that take it and give something differentiable, and as which input."""
    found: dict[Symbol, list[tuple[Operation, int]]] = {}
    for operation in operations:
        if any(output.spec.differentiable for output in operation.outputs):
            for position, tensor in enumerate(operation.inputs):
                found.setdefault(tensor, []).append((operation, position))
    return found


def take_out_rows(region: Region) -> None:
    """Take rows at known positions of captured tensors before a loop, so that its gradient adds up nothing but them.

    ``bias[1]`` in the body of a loop is the same in each iteration. Inside, the gradient would record a row, and where
    it belongs, for each iteration.
    """
    captured = {parameter for _, parameter in region.captures}
    found = [operation for operation in region.operations if _is_row_of(operation, captured)]
    if found:
        region.take_out(found)


def _is_row_of(operation: Operation, captured: Collection[Symbol]) -> bool:
    """Test whether an operation is a row, at a position that is no tensor, of one of `captured`, and cannot fail."""
    if len(operation.inputs) != 1 or operation.inputs[0] not in captured or not operation.op.takes_rows(()):
        return False
    is_bound = operation.device or operation.colocations or operation.control_inputs
    return not is_bound and operation.op.cannot_fail(*operation.inputs)


def is_table(tensor: Symbol, uses: Uses) -> bool:
    """Test whether the graph of `tensor` takes rows of it, and, as far as derivatives go, does nothing else with it.

    Rows are taken by ops that say so (`Op.takes_rows`), also of what several tables are joined to along their first
    axis, of copies in another dtype, and inside loops, branches and calls that capture it.

    Args:
        tensor: the tensor.
        uses: what takes the tensors of this graph and of those inside.
    """
    return _are_tables([tensor], uses)


def takes_rows_only(tensor: Symbol, found: Iterable[tuple[Operation, int]], uses: Uses) -> bool:
    """Test whether the uses of `tensor` that were `found` do nothing but take rows of it."""
    passed_on = _passed_on(found)
    return _has_rows(tensor) and passed_on is not None and _are_tables(passed_on, uses)


def _are_tables(tensors: Iterable[Symbol], uses: Uses) -> bool:
    """Test whether all `tensors` are tables, with all that they are passed on to.

    A recursive function passes them on to itself.
    """
    seen: set[Symbol] = set()
    pending = list(tensors)
    while pending:
        tensor = pending.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        graph, found = tensor.operation.graph, uses.of(tensor)
        passed_on = _passed_on(found)
        if not found or not _has_rows(tensor) or passed_on is None:
            return False
        if isinstance(graph, Region) and is_among(tensor, graph.results):
            return False
        pending.extend(passed_on)
    return True


def _passed_on(uses: Iterable[tuple[Operation, int]]) -> list[Symbol] | None:
    """Return tensors that must be tables so that these uses of one take only rows; None if they take more."""
    tensors: list[Symbol] = []
    for operation, position in uses:
        inner = _passed_on_by(operation, position)
        if inner is not None:
            tensors.append(inner)
        elif not _takes_rows(operation, position):
            return None
    return tensors


def _has_rows(tensor: Symbol) -> bool:
    shape = tensor.shape
    return bool(shape) and None not in shape[1:] and isinstance(tensor.spec, TensorSpec)


def rows_of(cotangent: Any, table: Symbol) -> tuple[Tensor, Tensor]:
    """Return a cotangent of a table as rows and their positions, int64; as no rows if it is None.

    The rows have the shape of the table's, as far as that is known, also where what is computed of them is not: a loop
    that does not run gives rows of that shape, too.
    """
    row = (table.shape or ())[1:]
    if cotangent is None:
        return zeros((0, *row), table.dtype), zeros((0,), "int64")
    slices = as_slices(cotangent, table)
    values = slices.values
    if None not in row and (values.shape is None or values.shape[1:] != row):
        values = reshape(values, (dim(values, 0), *row))
    return values, cast(slices.indices, "int64")


def _takes_rows(operation: Operation, position: int) -> bool:
    return position == 0 and operation.op.takes_rows(operation.inputs[1:])


def _passed_on_by(operation: Operation, position: int) -> Symbol | None:
    """Find what stands for an input of `operation` further on: a copy, or a parameter of a loop, branch or function."""
    op = operation.op
    if isinstance(op, Cast) or (isinstance(op, Concatenate) and op.axis == 0):
        return operation.outputs[0]
    if op.called is not None:
        inputs = op.called.inner_inputs()
        return inputs[position] if position < len(inputs) else None
    captured = operation.captured_at(position)
    return None if captured is None else captured[1]
