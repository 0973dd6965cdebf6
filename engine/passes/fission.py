"""Loop fission: work that does not depend on a loop's recurrence leaves the loop, where it becomes one large operation.

Three forms (as PyTensor's `push_out_*` rewrites of Scan):

- *Sums of products*: ``w = w + a.T @ g`` in every iteration becomes one product over all rows after the loop, and so do
  sums over the rows of the same g. So a recurrent layer's weight gradients are one GEMM each.
- *Products of inputs*: ``x[t] @ w`` for the elements of an array becomes one product before the loop.
- *Products of outputs*: ``d[t] += g @ w.T`` becomes one product over all elements of the array after the loop.

These are reassociating rewrites: sums are taken in another order, so results agree within rounding.

In a step that is placed, what leaves a loop is what lies on one device, with the values of the body that it takes: so
nothing crosses that did not, and a chain from iteration to iteration that crosses devices stays whole. What comes from
outside (a weight, a first value) is sent once, in the loop or beside it, and may come from anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..control_flow.frames import History
from ..control_flow.region_op import RegionOp
from ..control_flow.while_loop import While
from ..graph.graph import Graph, Operation, Parameter
from ..graph.op import Op
from ..graph.region import Region
from ..graph.spec import ArraySpec, TensorSpec
from ..graph.tensor import Tensor
from ..ops.base import Constant, SumToShape
from ..ops.elementwise import Add
from ..ops.linalg import FlattenRows, MatMul
from ..ops.tensor_arrays import (
    ArrayAddAt,
    ArrayEmpty,
    ArrayMatMul,
    ArrayRead,
    ArrayStack,
    ArrayUnstack,
)
from .assign import capture_late, on_one_device
from .order import reorder
from .prune import frame_users, needed_in_region


def split_loops(graph: Graph, operations: Sequence[Operation]) -> None:
    """Apply fission to the loops among `operations` of `graph`, and to loops inside their regions."""
    changed, users = False, frame_users(graph.operations)
    for operation in operations:
        if not isinstance(operation.op, RegionOp):
            continue
        for region in operation.op.regions:
            split_loops(region, list(region.operations))
        if isinstance(operation.op, While) and not operation.op.keeps_to_budget:
            changed |= _Loop(graph, operation, users.get(operation.outputs[-1], ())).split()
    if changed:
        reorder(graph, {})


class _Loop:
    """One loop under rewriting; `users` take values from its frame."""

    def __init__(self, graph: Graph, node: Operation, users: Sequence[Operation]) -> None:
        assert isinstance(node.op, While)
        self.graph = graph
        self.node = node
        self.op = node.op
        self.body = node.op.body
        self.demanded = [user.op.inner for user in users if isinstance(user.op, History)]
        self.users = self._count_users()
        tested = needed_in_region(self.op.condition, self.demanded)
        self._tested = {tensor for operation in tested for tensor in operation.inputs}
        self._tested.update([*self.op.condition.results, *self.demanded])
        self._histories: dict[Tensor, Tensor] = {}
        self._rows: dict[Tensor, Tensor] = {}

    def split(self) -> bool:
        """Rewrite what can be rewritten; returns whether anything was."""
        changed = self._hoist_products()
        for kind in (MatMul, SumToShape):  # sums of values reuse the histories that products need
            for position in reversed(range(self.op.carried)):
                changed |= self._sink_sum(position, kind)
        for position in range(self.op.carried):
            changed |= self._sink_output_product(position)
        if changed:
            self._drop_unused_captures()
        return changed

    # --- what the body looks like ---------------------------------------------------------------------------

    def _count_users(self) -> dict[Tensor, int]:
        users: dict[Tensor, int] = {}
        for operation in needed_in_region(self.body, self.demanded):
            for tensor in operation.inputs:
                users[tensor] = users.get(tensor, 0) + 1
        for tensor in [*self.body.results, *self.demanded]:
            users[tensor] = users.get(tensor, 0) + 1
        return users

    def _is_used_in_condition(self, position: int) -> bool:
        return self.op.condition.parameters[position] in self._tested

    def _invariant(self, tensor: Tensor) -> Tensor | None:
        """The outer tensor for which `tensor` stands, if it is captured."""
        return next((outer for outer, parameter in self.body.captures if parameter is tensor), None)

    def _accumulation(self, position: int, kind: type[Op]) -> Operation | None:
        """The operation of `kind` by which loop variable `position` is updated, if it is used for nothing else."""
        parameter, result = self.body.parameters[position], self.body.results[position]
        update = result.operation
        if not isinstance(update.op, kind) or parameter not in update.inputs or update.control_inputs:
            return None
        once = self.users.get(parameter) == 1 and self.users.get(result) == 1
        return update if once and not self._is_used_in_condition(position) else None

    # --- sums -----------------------------------------------------------------------------------------------

    def _sink_sum(self, position: int, kind: type[Op]) -> bool:
        """Take the sum that loop variable `position` gathers, of results of ops of `kind`, after the loop."""
        update = self._accumulation(position, Add)
        if update is None:
            return False
        parameter = self.body.parameters[position]
        term = update.inputs[1] if update.inputs[0] is parameter else update.inputs[0]
        if self.users.get(term) != 1 or term.operation.graph is not self.body or term.spec != parameter.spec:
            return False
        if not isinstance(term.operation.op, kind):
            return False
        summed = term.operation.inputs[: 2 if kind is MatMul else 1]  # a shape may come from anywhere
        if not on_one_device([t.operation for t in (parameter, update.outputs[0], term, *summed)]):
            return False
        total = self._total(term)
        if total is None:
            return False
        init, old = self.node.inputs[position], self.node.outputs[position]
        self._remove_variable(position)
        self._become(old, Add(), [init, total], update)
        return True

    def _total(self, term: Tensor) -> Tensor | None:
        """The sum of `term` over all iterations, computed after the loop; None if that needs the loop."""
        op, inputs = term.operation.op, term.operation.inputs
        if isinstance(op, MatMul) and op.transpose_a and not op.transpose_b and all(_is_static(t) for t in inputs):
            return self._add(op, [self._all_rows(inputs[0]), self._all_rows(inputs[1])], term)
        if isinstance(op, SumToShape) and inputs[0] in self._histories and _is_static(inputs[0]) and _is_static(term):
            wanted = self.graph.adopt(
                Constant(np.array(term.shape, "int32")), (), (TensorSpec((len(term.shape or ()),), np.dtype("int32")),),
                term.operation,
            ).outputs[0]  # fmt: skip
            return self._add(op, [self._stacked(inputs[0]), wanted], term)
        return None

    def _history(self, tensor: Tensor) -> Tensor:
        known = self._histories.get(tensor)
        if known is None:
            known = self._histories[tensor] = self._add(History(tensor), [self.node.outputs[-1]], tensor)
        return known

    def _stacked(self, tensor: Tensor) -> Tensor:
        assert isinstance(tensor.spec, TensorSpec)
        return self._add(ArrayStack(tensor.spec), [self._history(tensor)], tensor)

    def _all_rows(self, tensor: Tensor) -> Tensor:
        """The rows of a matrix of the body over all iterations, as one matrix."""
        known = self._rows.get(tensor)
        if known is None:
            known = self._rows[tensor] = self._add(FlattenRows(), [self._stacked(tensor)], tensor)
        return known

    # --- products of inputs ---------------------------------------------------------------------------------

    def _hoist_products(self) -> bool:
        counter = self._counter()
        if counter is None:
            return False
        changed = False
        for operation in needed_in_region(self.body, self.demanded):
            changed |= self._hoist_product(operation, counter)
        return changed

    def _hoist_product(self, operation: Operation, counter: tuple[Tensor, int]) -> bool:
        op = operation.op
        if not isinstance(op, MatMul) or op.transpose_a or operation.control_inputs:
            return False
        element, weight = operation.inputs
        index, steps = counter
        read, outer_weight = element.operation, self._invariant(weight)
        if not isinstance(read.op, ArrayRead) or read.graph is not self.body or read.inputs[1] is not index:
            return False
        outer = self._invariant(read.inputs[0])
        source = None if outer is None else outer.operation
        if outer_weight is None or source is None or not isinstance(source.op, ArrayUnstack):
            return False
        if not on_one_device([source, read.inputs[0].operation, read, operation]):
            return False
        rows = source.inputs[0]
        if not _is_static(rows) or len(rows.shape or ()) != 3 or (rows.shape or (None,))[0] != steps:
            return False
        products = self._add(MatMul(False, op.transpose_b), [self._add(FlattenRows(), [rows], element), outer_weight],
                             element)  # fmt: skip
        restored = self._add(_reshape((rows.shape or ())[:2], products), [products], element)
        array = self._add(ArrayUnstack(), [restored], element)
        operation.op = ArrayRead()
        operation.inputs = (capture_late(self.body, array), index)
        return True

    def _counter(self) -> tuple[Tensor, int] | None:
        """The loop variable that counts 0, 1, 2... up to a known number, which alone ends the loop."""
        test = self.op.condition.results[0].operation
        if test.type != "less" or test.graph is not self.op.condition:
            return None
        counter, limit = test.inputs
        if counter not in self.op.condition.parameters:
            return None
        position = self.op.condition.parameters.index(counter)
        steps, start = _constant(limit, self.op.condition), _constant(self.node.inputs[position], None)
        parameter, result = self.body.parameters[position], self.body.results[position].operation
        by_one = (
            isinstance(result.op, Add) and result.inputs[0] is parameter and _constant(result.inputs[1], self.body) == 1
        )
        return (parameter, steps) if by_one and start == 0 and steps is not None else None

    # --- products of outputs --------------------------------------------------------------------------------

    def _sink_output_product(self, position: int) -> bool:
        update = self._accumulation(position, ArrayAddAt)
        if update is None or update.inputs[0] is not self.body.parameters[position]:
            return False
        if not isinstance(self.node.inputs[position].operation.op, ArrayEmpty):
            return False
        product = update.inputs[2].operation
        op = product.op
        if not isinstance(op, MatMul) or op.transpose_a or product.graph is not self.body:
            return False
        weight = self._invariant(product.inputs[1])
        if weight is None or self.users.get(update.inputs[2]) != 1 or not _is_static(product.inputs[0]):
            return False
        array, index, _ = update.inputs
        if not on_one_device([array.operation, update, product, product.inputs[0].operation]):
            return False
        update.inputs = (array, index, product.inputs[0])
        assert isinstance(array.spec, ArraySpec)
        spec = array.spec.with_elements(product.inputs[0].spec)
        old = self.node.outputs[position]
        for tensor in (array, self.op.condition.parameters[position], update.outputs[0]):
            _set_spec(tensor, spec)
        inner = Tensor(self.node, position, spec)
        self.node.outputs = (*self.node.outputs[:position], inner, *self.node.outputs[position + 1 :])
        self._become(old, ArrayMatMul(op.transpose_b), [inner, weight], product)
        return True

    # --- rewriting ------------------------------------------------------------------------------------------

    def _add(self, op: Op, inputs: list[Tensor], like: Tensor) -> Tensor:
        """A new operation of the graph around the loop."""
        specs = op.infer(*[tensor.spec for tensor in inputs])
        operation = self.graph.adopt(op, inputs, specs if isinstance(specs, tuple) else (specs,), like.operation)
        return operation.outputs[0]

    def _become(self, old: Tensor, op: Op, inputs: list[Tensor], instead: Operation) -> None:
        """Make tensor `old`, with all its users, the output of a new operation where `instead` was in the loop."""
        operation = self.graph.adopt(op, inputs, (old.spec,), old.operation)
        operation.device = instead.device
        operation.outputs = (old,)
        old.operation, old.index = operation, 0

    def _remove_variable(self, position: int) -> None:
        for region in self.op.regions:
            del region.parameters[position]
        del self.body.results[position]
        node = self.node
        node.inputs = (*node.inputs[:position], *node.inputs[position + 1 :])
        node.outputs = (*node.outputs[:position], *node.outputs[position + 1 :])
        for index, tensor in enumerate(node.outputs):
            tensor.index = index

    def _drop_unused_captures(self) -> None:
        """Leave out what the loop no longer takes from outside, and bring its inputs into line."""
        initial = self.node.inputs[: self.op.carried]
        demanded = [*self.demanded, *self._histories]
        for region in self.op.regions:
            used = {tensor for operation in needed_in_region(region, demanded) for tensor in operation.inputs}
            used |= {*region.results, *demanded}
            region.captures = [pair for pair in region.captures if pair[1] in used]
        self.node.inputs = (*initial, *self.op.captured_inputs())


def _reshape(leading: Sequence[int | None], products: Tensor) -> Op:
    from ..ops.shaping import Reshape

    return Reshape((*leading, (products.shape or (None,))[-1]))


def _set_spec(tensor: Tensor, spec: ArraySpec) -> None:
    tensor.spec = spec
    if isinstance(tensor.operation.op, Parameter):
        tensor.operation.op = Parameter(spec)


def _is_static(tensor: Tensor) -> bool:
    return isinstance(tensor.spec, TensorSpec) and tensor.spec.is_static


def _constant(tensor: Tensor, region: Region | None) -> int | None:
    """The integer that `tensor` always is, also where it is captured into `region`."""
    if region is not None and isinstance(tensor.operation.op, Parameter):
        tensor = next((outer for outer, parameter in region.captures if parameter is tensor), tensor)
    op: Any = tensor.operation.op
    if isinstance(op, Constant) and np.ndim(op.value) == 0 and op.value.dtype.kind in "iu":
        return int(op.value)
    return None
