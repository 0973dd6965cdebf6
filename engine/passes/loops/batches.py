"""Operations of a body for all iterations at once, by the rules of `vectorized_map`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...control_flow.batching import Batch, Rules, Value
from ...control_flow.batching_rules import RULES, general
from ...graph.graph import Operation, get_default_graph
from ...graph.op import Cost
from ...graph.tensor import Symbol
from ...ops.arrays.indexing import GetItem
from ...ops.arrays.shaping import DimLike, reshape
from ...ops.base import build
from ...ops.linear_algebra.products import FlattenRows, MatMul
from .view import is_static

_rules = Rules(RULES, {}, general)


def is_heavy(operation: Operation) -> bool:
    """Test whether an operation is worth being batched for itself."""
    return operation.op.batchable and operation.op.cost is Cost.PRODUCT


def can_batch(operation: Operation) -> bool:
    """Test whether there is a rule for a pure operation over values of known shapes, as quick for each of them."""
    if operation.effects or operation.control_inputs or not is_static(*operation.inputs, *operation.outputs):
        return False
    if isinstance(operation.op, GetItem):
        return len(operation.inputs) == 1  # a known key
    return operation.op.elementwise or operation.op.batchable


def new_batch(size: DimLike) -> Batch:
    """Return a batch of so many iterations, built into the current graph."""
    return Batch(size, _rules)


def value_in(batch: Batch, tensor: Symbol, source: Callable[[Batch, Symbol], Value | None]) -> Value | None:
    """Return a tensor of the body in all iterations; None if there is no rule for something that it takes.

    Args:
        batch: holds what is known already.
        tensor: the tensor.
        source: gives what is not computed of other tensors of the body.
    """
    known = batch.values.get(tensor)
    if known is not None:
        return known
    found = source(batch, tensor)
    if found is not None:
        batch.values[tensor] = found
        return found
    operation = tensor.operation
    if not can_batch(operation):
        return None
    values = [value_in(batch, each, source) for each in operation.inputs]
    ready = [value for value in values if value is not None]
    graph = get_default_graph()
    count = len(graph.operations)
    outputs = _outputs(batch, operation, ready) if len(ready) == len(values) else None
    if outputs is None:
        return None
    for built in graph.operations[count:]:
        if built.type == operation.type:
            built.name = operation.name  # what moves keeps its name
    for output, value in zip(operation.outputs, outputs, strict=True):
        batch.values[output] = value
    return batch.values[tensor]


def _outputs(batch: Batch, operation: Operation, values: list[Value]) -> Sequence[Value] | None:
    if not any(value.batched for value in values):
        return None
    op, rule = operation.op, _rules.find(operation)
    if isinstance(op, MatMul) and not op.transpose_a and values[0].batched and not values[1].batched:
        return [_product(batch, operation, op, values)]
    return None if rule is None else rule(batch, operation, values)


def _product(batch: Batch, operation: Operation, op: MatMul, values: list[Value]) -> Value:
    """Return a product by one matrix as one of all rows, where a transposed matrix is one more flag."""
    rows = build(FlattenRows(), values[0].tensor)
    product = build(MatMul(False, op.transpose_b), rows, values[1].tensor)
    return Value(reshape(product, (batch.size, *[dim or 0 for dim in operation.outputs[0].shape or ()])), batched=True)
