"""Compute after a loop, for all elements at once, all that the body computes for an output array alone.

``outputs.write(t, h @ w + b)`` gathers h instead, and ``d[t] += g @ w.T`` gathers g: then come one product and one sum.
"""

from __future__ import annotations

from ...control_flow.batching import Batch, Value
from ...control_flow.frames import TripCount
from ...graph.graph import Operation, Parameter
from ...graph.spec import TensorSpec
from ...graph.tensor import Symbol, symbol_of
from ...ops.base import build
from ...ops.containers.tensor_arrays import ArrayAddAt, ArrayEmpty, ArrayNew, ArrayUnstack, ArrayWrite
from ..framework.assign import on_one_device
from ..framework.log import note_change
from .batches import can_batch, is_heavy, new_batch, value_in
from .linear import array_size, counted
from .sums import accumulation
from .view import LoopView, is_static

_MOST_GATHERED = 2  # tensors that are gathered for one output


def compute_after(loop: LoopView) -> bool:
    """Take what is computed for output arrays alone after the loop."""
    changed = False
    for position in reversed(range(loop.op.carried)):
        moved = _Output(loop, position).move()
        changed |= moved
        if moved:
            loop.refresh()
    return changed


class _Output:
    """An array, loop variable `position`, into which each iteration writes."""

    def __init__(self, loop: LoopView, position: int) -> None:
        self.loop = loop
        self.position = position
        self.tail: set[Operation] = set()
        self.gathered: dict[Symbol, None] = {}
        self.place: Symbol | None = None

    def move(self) -> bool:
        """Compute what is written after the loop, if that pays; return whether it did."""
        update = self._update()
        if update is None:
            return False
        self.place = update.inputs[1]
        value = update.inputs[2]
        self._find_tail(value)
        pays = any(is_heavy(operation) for operation in self.tail) and 0 < len(self.gathered) <= _MOST_GATHERED
        taken = [tensor for operation in self.tail for tensor in (*operation.inputs, *operation.outputs)]
        taking = [tensor.operation for tensor in taken if not self.loop.is_steady(tensor)]
        if not pays or not on_one_device([update, update.inputs[0].operation, *taking]):
            return False
        return self._compute(update, value)

    def _update(self) -> Operation | None:
        loop = self.loop
        initial = loop.node.inputs[self.position]
        is_new = isinstance(initial.operation.op, ArrayNew)
        if not is_new and not isinstance(initial.operation.op, ArrayEmpty):
            return None
        update = accumulation(loop, self.position, ArrayWrite if is_new else ArrayAddAt)
        if update is None or update.inputs[0] is not loop.body.parameters[self.position]:
            return None
        form = loop.form(update.inputs[1])
        if form is None or abs(form.steps) != 1 or loop.first_place(form) != 0:
            return None
        if isinstance(update.op, ArrayWrite) and not loop.covers(form, array_size(initial)):
            return None
        return update

    def _find_tail(self, tensor: Symbol) -> None:
        """Find the operations that are computed for a tensor alone, and the tensors that these take, to be gathered."""
        loop, operation = self.loop, tensor.operation
        if tensor in self.gathered or self.loop.is_steady(tensor):
            return
        alone = all(loop.uses.get(output, 0) <= 1 for output in operation.outputs)
        inside = operation.graph is loop.body and not isinstance(operation.op, Parameter)
        if not inside or not alone or not can_batch(operation) or tensor in loop.histories:
            self.gathered[tensor] = None
            return
        self.tail.add(operation)
        for each in operation.inputs:
            self._find_tail(each)

    def _compute(self, update: Operation, value: Symbol) -> bool:
        loop = self.loop
        if not is_static(*self.gathered):
            return False
        with loop.outside(value.operation):
            trips = counted(loop.node.outputs[-1]).known
            batch = new_batch(build(TripCount(), loop.node.outputs[-1]) if trips is None else trips)
            found = value_in(batch, value, self._source)
        if found is None or not found.batched:
            return False
        note_change("fission", value.operation, "is computed for all iterations after the loop")
        final = loop.node.outputs[self.position]
        loop.remove_variable(self.position)
        loop.become(final, ArrayUnstack(), [symbol_of(found.tensor)]).device = update.device
        return True

    def _source(self, batch: Batch, tensor: Symbol) -> Value | None:
        loop, place = self.loop, self.place
        if tensor in self.gathered and isinstance(tensor.spec, TensorSpec) and place is not None:
            return Value(loop.stack(loop.written(tensor, place), tensor.spec, tensor.operation), batched=True)
        if not self.loop.is_steady(tensor):
            return None
        outer = loop.constant_outside(tensor)
        return None if outer is None else Value(outer, batched=False)
