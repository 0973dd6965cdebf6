"""What is computed of each element of a product is computed tile by tile, while the product is in the cache.

A `MatMul` or `PackedMatMul`, and the elementwise operation, fused or single, that is the first one to take its result,
become a `ProductThen`: biases, activations, their gradients' masks, residual sums, in loops too. Of a product whose
size is known there may be several results, and it may be needed besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..graph.graph import Graph, Operation
from ..graph.op import Op
from ..graph.provenance import location_of_several
from ..graph.spec import TensorSpec
from ..graph.tensor import Symbol
from ..graph.variable import Assign
from ..ops.axes import Transpose
from ..ops.fused import Fused
from ..ops.linalg import MatMul
from ..ops.packed import PackedMatMul
from ..ops.product_then import ProductThen
from .fuse_open import steps_of
from .fusible import FusionRule
from .log import note_change, note_kept
from .order import reorder
from .prune import Kept, holds, inner_blocks, kept_of

_MOST_INPUTS = 12


def join_epilogues(graph: Graph, operations: Sequence[Operation], kept: Iterable[Symbol], rule: FusionRule) -> None:
    """Join products among `operations`, which are needed of `graph`, with what follows; in all regions inside, too.

    Args:
        kept: tensors whose values are wanted from outside: fetches.
    """
    if holds(operations, MatMul, PackedMatMul):
        _visit(graph, operations, kept_of(graph, operations, kept), rule)


def _visit(graph: Graph, operations: Sequence[Operation], kept: Kept, rule: FusionRule) -> None:
    for operation in operations:
        for region, inside, wanted in inner_blocks(operation, kept):
            _visit(region, inside, wanted, rule)
    if any(isinstance(operation.op, (MatMul, PackedMatMul)) for operation in operations):
        _join_in_block(graph, _Block(operations, kept.own), rule)


class _Block:
    """What is asked of the operations of a block.

    Attributes:
        operations: in order.
        kept: values that are wanted from outside.
        users: for each tensor the operations that take it, in order.
        writes: where variables are written.
        awaited: operations for which others wait without taking a value.
    """

    def __init__(self, operations: Sequence[Operation], kept: set[Symbol]) -> None:
        self.operations = operations
        self.kept = kept
        self.users: dict[Symbol, list[Operation]] = {}
        for operation in operations:
            for tensor in dict.fromkeys(operation.inputs):
                self.users.setdefault(tensor, []).append(operation)
        self.writes = [operation.index for operation in operations if operation.writes]
        self.awaited = {source for operation in operations for source in operation.control_inputs}


def _join_in_block(graph: Graph, block: _Block, rule: FusionRule) -> None:
    replaced: dict[Operation, Operation] = {}
    for product in block.operations:
        following = block.users.get(product.outputs[0], []) if _is_product(product, block) else []
        if not following or following[0] in replaced or not _may_follow(following[0], product, rule):
            continue
        user = following[0]
        joined = _joined(graph, product, user, len(following) > 1 or product.outputs[0] in block.kept)
        reason = _obstacle(block, product, user)
        if not reason and (joined is None or not rule.can_follow(joined)):
            reason = f"there is no kernel for it and {user.name!r}, or none that is faster"
        if reason or joined is None:
            note_kept("epilogues", product, reason)
            continue
        _put_in_place(joined, product, user)
        replaced |= {product: joined, user: joined}
    if replaced:
        reorder(graph, replaced)


def _is_product(operation: Operation, block: _Block) -> bool:
    """Whether an operation is a product; none for which another one waits, which might give what is to follow."""
    return isinstance(operation.op, (MatMul, PackedMatMul)) and operation not in block.awaited


def _obstacle(block: _Block, product: Operation, user: Operation) -> str:
    """Why a product and what may follow it are left alone; "" if nothing speaks against joining them."""
    takers = [taker for tensor in user.outputs for taker in block.users.get(tensor, ())]
    if any(isinstance(taker.op, Assign) for taker in takers):
        return f"{user.name!r} is written into a variable in place"
    sources = [tensor.operation for tensor in user.inputs]
    latest = max((source.index for source in sources if source.graph is product.graph), default=0)
    if any(product.index < index < latest for index in block.writes):  # which then could not be done in place
        return f"variables are written before the operands of {user.name!r} are there"
    return ""


def _may_follow(user: Operation, product: Operation, rule: FusionRule) -> bool:
    """Whether an operation is elementwise, with results of the product's shape."""
    op, wanted = user.op, product.outputs[0].spec
    if user.control_inputs or product.control_inputs or user.effects or user.device != product.device:
        return False
    if not isinstance(op, Fused) and not op.elementwise:
        return False
    if isinstance(op, Fused) and op.layouts:
        note_kept("epilogues", product, f"{user.name!r} adds up, or moves elements")
        return False
    if any(isinstance(tensor.operation.op, Transpose) for tensor in user.inputs):
        note_kept("epilogues", product, f"{user.name!r} takes a transposed operand, which has to be laid out first")
        return False
    inputs = [tensor.spec for tensor in user.inputs if isinstance(tensor.spec, TensorSpec)]
    outputs = [tensor.spec for tensor in user.outputs if isinstance(tensor.spec, TensorSpec)]
    assert isinstance(wanted, TensorSpec)
    if len(inputs) < len(user.inputs) or len(inputs) > _MOST_INPUTS or any(spec.shape is None for spec in inputs):
        return False
    if any(spec.shape != wanted.shape for spec in outputs):
        return False
    return isinstance(op, Fused) or rule.can_fuse(op, inputs, outputs[0])


def _joined(graph: Graph, product: Operation, user: Operation, keeps: bool) -> Operation | None:
    """One operation instead of both; None if there is no memory for the product: no result is of its dtype."""
    result = product.outputs[0]
    if not keeps and all(tensor.spec != result.spec for tensor in user.outputs):
        return None
    others = list(dict.fromkeys(tensor for tensor in user.inputs if tensor is not result))
    numbers = {result: 0} | {tensor: 1 + k for k, tensor in enumerate(others)}
    values = [numbers[tensor] for tensor in user.inputs]
    shift = 1 + len(others) - len(values)
    steps: list[tuple[Op, tuple[int, ...]]] = []
    for op, arguments in steps_of(user):
        values.append(len(values) + shift)
        steps.append((op, tuple(values[k] for k in arguments)))
    results = tuple(values[k] for k in user.op.results) if isinstance(user.op, Fused) else (values[-1],)
    assert isinstance(product.op, (MatMul, PackedMatMul))
    then = Fused(1 + len(others), tuple(steps), results)
    op = ProductThen(product.op, len(product.inputs), then, keeps, (product.name, product.location))
    inputs = (*product.inputs, *others)
    location = location_of_several([product.location, user.location])
    joined = Operation(graph, op, inputs, (), user.name, user.device, (), location)
    joined.outputs, joined.index = (*([result] if keeps else []), *user.outputs), product.index
    joined.iterations = product.iterations
    return joined


def _put_in_place(joined: Operation, product: Operation, user: Operation) -> None:
    """Let the tensors of both be the outputs of the joined operation."""
    for position, tensor in enumerate(joined.outputs):
        tensor.operation, tensor.index = joined, position
    listed = ", ".join(step.type_name for step, _ in steps_of(user))
    note_change("epilogues", joined, f"is computed on tiles of {product.name!r}: {listed}")
