"""Fuse elementwise epilogues into products: they are computed tile by tile, while the product is in the cache.

A `MatMul`, `PackedMatMul`, `QuantizedMatMul` or `Winograd`, and the elementwise operation, fused or single, that is the
first one to take its result, become a `ProductThen`: biases, activations, their gradients' masks, residual sums, in
loops too. Of a product whose size is known there may be several results, and it may be needed besides, but for one of
int8.
"""

from __future__ import annotations

from bisect import bisect_right

from ...graph.graph import Operation
from ...graph.provenance import location_of_several
from ...graph.spec import TensorSpec
from ...graph.state.variable_ops import Assign
from ...ops.arrays.axes import Transpose
from ...ops.internal.fused import Fused
from ...ops.internal.int4_matmul import Int4MatMul
from ...ops.internal.packed import PackedMatMul
from ...ops.internal.product_then import ProductThen, WinogradThen
from ...ops.internal.winograd import Winograd
from ...ops.linear_algebra.products import MatMul
from ...ops.neural.int4 import DequantizeInt4
from ...ops.neural.quantized import QuantizedMatMul
from ..framework.driver import Change, Rule
from ..framework.log import note_kept
from ..framework.patterns import Match, only_use, op, tensor
from ..framework.rewriter import Rewriter
from .fusible import FusionRule, Step, append_steps, steps_of

PRODUCTS = (MatMul, PackedMatMul, Winograd, QuantizedMatMul)
_MOST_INPUTS = 12


def rules_for(kernels: FusionRule) -> tuple[Rule, ...]:
    """Return the rules that join a product with what follows, where `kernels` has a kernel for both."""

    def join(match: Match, step: Rewriter) -> Change | None:
        product: Operation = match["product"]
        users = [] if step.is_awaited(product) else step.users(product.outputs[0])
        if not users or not _may_follow(users[0], product, kernels):
            return None
        user = users[0]
        is_needed_besides = len(users) > 1 or step.has_hidden_use(product.outputs[0])
        joined = _joined(product, user, is_needed_besides)
        reason = _obstacle(step, product, user)
        if not reason and (joined is None or not kernels.can_follow(joined)):
            reason = f"there is no kernel for it and {user.name!r}, or none that is faster"
        if reason or joined is None:
            note_kept("epilogues", product, reason)
            return None
        listed = ", ".join(part.type_name for part, _ in steps_of(user))
        kept = product.outputs if is_needed_besides else ()
        step.merge(joined, (product, user), (*kept, *user.outputs))
        return Change(joined, f"is computed on tiles of {product.name!r}: {listed}")

    def multiply_int4(match: Match, step: Rewriter) -> Change | None:
        product, matrix = match["product"], match["matrix"]
        inputs = (product.inputs[0], *matrix.inputs)
        name, device, location = product.name, product.device, product.location
        joined = Operation(product.graph, Int4MatMul(matrix.op), inputs, (), name, device, (), location)
        if device != matrix.device or not kernels.can_follow(joined):
            return None
        step.update(product, joined.op, inputs)
        return Change(product, "multiplies by integers of four bits where there are few rows")

    pattern = op(*PRODUCTS, name="product", may_wait=True)
    int4 = op(MatMul, of=[tensor("rows"), only_use(op(DequantizeInt4, name="matrix"))], name="product", where=_is_plain)
    return (
        Rule("multiply by int4", int4, multiply_int4),
        Rule("fuse epilogues into products", pattern, join),
    )


def _is_plain(product: Operation) -> bool:
    own = product.op
    return isinstance(own, MatMul) and not own.transpose_a and not own.transpose_b


def _obstacle(step: Rewriter, product: Operation, user: Operation) -> str:
    """Return why a product and what may follow it are left alone; "" if nothing speaks against joining them."""
    if any(isinstance(taker.op, Assign) for result in user.outputs for taker in step.users(result)):
        return f"{user.name!r} is written into a variable in place"
    sources = [operand.operation for operand in user.inputs]
    latest = max((source.index for source in sources if source.graph is product.graph), default=0)
    writes = step.writes_in(product.graph)
    following = bisect_right(writes, product.index)
    if following < len(writes) and writes[following] < latest:  # then not done in place
        return f"variables are written before the operands of {user.name!r} are there"
    return ""


def _may_follow(user: Operation, product: Operation, kernels: FusionRule) -> bool:
    """Test that an operation is elementwise, with results of the product's shape."""
    own, wanted = user.op, product.outputs[0].spec
    if user.control_inputs or product.control_inputs or user.effects or user.device != product.device:
        return False
    if not isinstance(own, Fused) and not own.elementwise:
        return False
    if isinstance(own, Fused) and own.layouts:
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
    return isinstance(own, Fused) or kernels.can_fuse(own, inputs, outputs[0])


def _joined(product: Operation, user: Operation, keeps: bool) -> Operation | None:
    """Return one operation instead of both; None if there is no memory for the product: no result is of its dtype."""
    result = product.outputs[0]
    if not keeps and all(tensor.spec != result.spec for tensor in user.outputs):
        return None
    others = list(dict.fromkeys(tensor for tensor in user.inputs if tensor is not result))
    numbers = {result: 0} | {tensor: 1 + k for k, tensor in enumerate(others)}
    steps: list[Step] = []
    append_steps(steps, numbers, 1 + len(others), user)
    assert isinstance(product.op, PRODUCTS)
    then = Fused(1 + len(others), tuple(steps), tuple([numbers[tensor] for tensor in user.outputs]))
    kind = WinogradThen if isinstance(product.op, Winograd) else ProductThen
    both = kind(product.op, len(product.inputs), then, keeps, (product.name, product.location))
    inputs = (*product.inputs, *others)
    location = location_of_several([product.location, user.location])
    specs = tuple([tensor.spec for tensor in (*([result] if keeps else []), *user.outputs)])
    joined = Operation(product.graph, both, inputs, specs, user.name, user.device, (), location)
    joined.index, joined.iterations = product.index, product.iterations
    return joined


__all__ = ["PRODUCTS", "rules_for"]
