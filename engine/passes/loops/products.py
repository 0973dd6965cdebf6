"""Matrix products of a body that share an operand, or are added up, become one product of wider matrices.

A cell that is written gate by gate has ``h @ u_i`` for each gate, and its gradient ``sum(g_i @ u_i.T)``. The matrices
that all iterations share are put side by side once, before the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...common.identity import is_among, is_same
from ...common.machine_profile import machine_profile
from ...graph.graph import Operation, Parameter
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol
from ...ops.arrays.joining import Concatenate, Split
from ...ops.base import Constant, build
from ...ops.containers.tensor_arrays import ArrayAddAt, ArrayRead, ArrayWrite
from ...ops.linear_algebra.products import MatMul
from ...ops.math.elementwise import Add
from ..framework.assign import on_one_device
from ..framework.log import note_change, note_kept
from ..framework.patterns import Match, op, outer, tensor
from .batches import can_batch
from .view import LoopView, is_static


def merge_products(loop: LoopView) -> bool:
    """Merge the products of a body that share their rows, and those that are added up."""
    if sum(isinstance(operation.op, MatMul) for operation in loop.needed) < 2:
        return False
    added = _merge_added(loop)
    if added:
        loop.finish()
    shared = _merge_shared(loop)
    if shared:
        loop.finish()
    return added or shared


def _takes_rows(product: Operation) -> bool:
    return isinstance(product.op, MatMul) and not product.op.transpose_a and is_static(*product.inputs)


_PRODUCT = op(MatMul, of=[tensor("rows"), outer(tensor("weight"))], name="product", where=_takes_rows)


def _found(loop: LoopView, operation: Operation) -> Match | None:
    """Return the match of a product of this body by a matrix from outside."""
    return _PRODUCT.match(operation, loop) if operation.graph is loop.body else None


def _pays(loop: LoopView, operation: Operation) -> bool:
    rows = (operation.inputs[0].shape or (0,))[0] or 0
    trips = loop.known_trips
    if rows > machine_profile().merged_rows:
        note_kept("merge_products", operation, f"has {rows} rows: several products are as quick as one")
        return False
    return trips is None or rows * trips >= machine_profile().merged_least_rows


def _side_by_side(loop: LoopView, group: Sequence[Match], axis: int) -> Symbol:
    weights = tuple([match["weight"] for match in group])
    known = loop.sides.get(weights) if axis else None
    if known is not None and known.operation.graph is loop.graph:
        return known
    with loop.outside(group[0]["product"]):
        made = build(Concatenate(axis), *weights)
    if axis:
        loop.sides[weights] = made
    return made


# --- h @ a, h @ b ---------------------------------------------------------------------------------------------------


def _merge_shared(loop: LoopView) -> bool:
    groups: dict[tuple[Symbol, bool, str], list[Match]] = {}
    outputs = {o.inputs[2] for o in loop.needed if isinstance(o.op, (ArrayAddAt, ArrayWrite))}
    for operation in loop.needed:
        if operation.outputs and is_among(operation.outputs[0], outputs) and loop.is_only_use(operation.outputs[0]):
            continue  # it leaves the loop by itself
        match = _found(loop, operation)
        if match is not None and _pays(loop, operation):
            key = (match["rows"], match["product"].op.transpose_b, operation.device)
            groups.setdefault(key, []).append(match)
    changed = False
    for group in groups.values():
        products = [match["product"] for match in group]
        are_together = on_one_device([o for each in products for o in (each, each.inputs[1].operation)])
        if len(group) > 1 and are_together:
            _merge_group(loop, group, products)
            changed = True
    return changed


def _merge_group(loop: LoopView, group: Sequence[Match], products: Sequence[Operation]) -> None:
    transpose_b: bool = group[0]["product"].op.transpose_b
    weight = _side_by_side(loop, group, 0 if transpose_b else 1)
    widths = tuple([(product.outputs[0].shape or (0, 0))[1] or 0 for product in products])
    parameter = loop.capture(weight)
    with loop.inside(products[0]):
        whole = build(MatMul(False, transpose_b), group[0]["rows"], parameter)
        split = loop.body.add(Split(1, widths, fits=True), [whole])
    for product, part in zip(products, split.outputs, strict=True):
        loop.replace(product.outputs[0], part)
    note_change("merge_products", products[0], f"and {len(group) - 1} more of the same rows are one product")


# --- a @ u + b @ v --------------------------------------------------------------------------------------------------


def _merge_added(loop: LoopView) -> bool:
    changed = False
    inner: set[Operation] = set()
    for operation in reversed(loop.needed):
        if isinstance(operation.op, Add) and operation not in inner and operation.graph is loop.body:
            leaves = _leaves(loop, operation, inner)
            changed |= _merge_leaves(loop, operation, leaves)
    return changed


def _leaves(loop: LoopView, root: Operation, inner: set[Operation]) -> list[Symbol]:
    """Return the terms that a chain of additions adds up; add the additions in between to `inner`."""
    found: list[Symbol] = []
    pending = list(reversed(root.inputs))
    while pending:
        tensor = pending.pop()
        source = tensor.operation
        is_sum = isinstance(source.op, Add) and source.graph is loop.body and loop.is_only_use(tensor)
        if is_sum and tensor.spec == root.outputs[0].spec and source.device == root.device:
            inner.add(source)
            pending.extend(reversed(source.inputs))
        else:
            found.append(tensor)
    return found


def _merge_leaves(loop: LoopView, root: Operation, leaves: list[Symbol]) -> bool:
    groups: dict[bool, list[Match]] = {}
    for leaf in leaves:
        source = leaf.operation
        match = _found(loop, source)
        if match is None or not loop.is_only_use(leaf) or leaf.spec != root.outputs[0].spec:
            continue
        if not _pays(loop, source) or not _recurs(loop, match["rows"]):
            continue
        if on_one_device([root, source, *[tensor.operation for tensor in source.inputs]]):
            groups.setdefault(match["product"].op.transpose_b, []).append(match)
    group = max([[], *groups.values()], key=len)
    if len(group) < 2:
        return False
    _add_at_once(loop, root, leaves, _as_known(loop, group))
    return True


def _as_known(loop: LoopView, group: list[Match]) -> list[Match]:
    """Return the products in the order in which their matrices were put side by side before, if they were."""
    by_weight = {match["weight"]: match for match in group}
    if len(by_weight) < len(group):
        return group
    for weights in loop.sides:
        if len(weights) == len(group) and by_weight.keys() == set(weights):
            return [by_weight[weight] for weight in weights]
    return group


def _recurs(loop: LoopView, tensor: Symbol) -> bool:
    """Test whether an iteration needs the one before for these rows: products of others are made before the loop."""
    source = tensor.operation
    if isinstance(source.op, ArrayRead):
        return False
    if source.graph is not loop.body or isinstance(source.op, Constant) or loop.trips is None:
        return loop.trips is None
    if isinstance(source.op, Parameter):
        form = loop.form(tensor)
        return loop.outer(tensor) is None and (form is None or not form.steps)
    return not can_batch(source) or any(_recurs(loop, each) for each in source.inputs)


def _add_at_once(loop: LoopView, root: Operation, leaves: list[Symbol], group: list[Match]) -> None:
    transpose_b: bool = group[0]["product"].op.transpose_b
    weight = loop.capture(_side_by_side(loop, group, 1 if transpose_b else 0))
    merged = {match["product"].outputs[0] for match in group}
    with loop.inside(root):
        rows = _joined(loop, [match["rows"] for match in group])
        total = build(MatMul(False, transpose_b), rows, weight)
        for leaf in leaves:
            if leaf not in merged:
                total = build(Add(), total, leaf)
    assert isinstance(total.spec, TensorSpec)
    loop.replace(root.outputs[0], total)
    note_change("merge_products", root, f"adds up {len(group)} products, which are one of wider rows")


def _joined(loop: LoopView, rows: list[Symbol]) -> Symbol:
    """Return matrices of the body side by side; those of another product are taken again."""
    for operation in loop.body.operations:
        if operation.op == Concatenate(1) and is_same(operation.inputs, tuple(rows)):
            return operation.outputs[0]
    return build(Concatenate(1), *rows)
