"""Rows of variables that are taken, changed and written back: in one pass over them.

An optimizer that keeps something for each row of a table takes these rows, changes them, writes them, and does the same
with the rows of the table. If the positions name each row once, nothing has to be written down in between: all that
leads from the rows that are taken to those that are written becomes part of the write.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...common.identity import is_among, place_among
from ...common.quick_dataclass import dataclass
from ...graph.graph import Graph, Operation
from ...graph.spec import TensorSpec
from ...graph.state.variable import Variable
from ...graph.state.variable_ops import ReadVariable
from ...graph.tensor import Symbol
from ...ops.arrays.gathering import Take
from ...ops.containers.indexed_slices import AssignRows
from ...ops.internal.fused import Fused
from ...ops.internal.update_rows import UpdateRows
from ..framework.log import note_change
from ..framework.rewriter import Rewriter
from ..rewrites.row_updates import unique_rows
from .fusible import FusionRule, Step, append_steps

_MOST_INPUTS = 16
_MOST_STEPS = 64


def change_rows_at_once(step: Rewriter, rule: FusionRule) -> None:
    """Join such writes of a step, and in regions inside, with what leads to them."""
    writes: dict[Symbol, list[Operation]] = {}
    blocks: dict[Graph, list[Operation]] = {}  # with the writes that are joined here: they disturb other ones
    for operation in step.walk():
        blocks.setdefault(operation.graph, []).append(operation)
        if type(operation.op) is AssignRows:
            writes.setdefault(operation.inputs[1], []).append(operation)
    for positions, group in writes.items():
        unique, operations = unique_rows(positions), blocks[group[0].graph]
        update = None if unique is None else _Update.of(group, unique)
        if update is not None and update.is_undisturbed(operations):
            joined = update.joined(update.inside(operations, step, rule))
            if joined is not None:
                step.merge(joined, group, [write.outputs[0] for write in group])


@dataclass(frozen=True)
class _Update:
    """Writes of rows at the same positions.

    Attributes:
        writes: in order.
        wholes: the values that their variables have before.
        variables: whose rows are written.
        unique: the positions, each named once.
    """

    writes: Sequence[Operation]
    wholes: tuple[Symbol, ...]
    variables: tuple[Variable, ...]
    unique: Symbol

    @staticmethod
    def of(writes: Sequence[Operation], unique: Symbol) -> _Update | None:
        """Return the writes, if they are of variables of the same shape that were read before."""
        variables: list[Variable] = []
        for write in writes:
            read = write.inputs[0].operation
            assert isinstance(write.op, AssignRows)
            is_plain = isinstance(read.op, ReadVariable) and read.op.variable is write.op.variable
            if not is_plain or write.control_inputs or write.device != writes[0].device:
                return None
            variables.append(write.op.variable)
        wholes = tuple(write.inputs[0] for write in writes)
        shape = wholes[0].shape
        alike = all(whole.shape == shape and whole.dtype.kind == "f" for whole in wholes)
        if shape is None or None in shape or len(shape) < 2 or not alike or len(set(variables)) < len(variables):
            return None
        return _Update(writes, wholes, tuple(variables), unique)

    def is_undisturbed(self, operations: Sequence[Operation]) -> bool:
        """Test whether nothing else writes the variables after they were read, or reads them between the writes."""
        reads = {whole.operation for whole in self.wholes}
        first, last = self.writes[0].index, self.writes[-1].index
        begin, own = min(read.index for read in reads), set(self.writes)
        for operation in operations:
            if operation in own or not begin <= operation.index <= last:
                continue
            if any(t.operation in own for t in operation.inputs) or own.intersection(operation.control_inputs):
                return False
            touched = [effect for effect in operation.effects if is_among(effect.resource, self.variables)]
            if any(effect.writes or operation.index > first for effect in touched):
                return False
        return True

    def inside(self, operations: Sequence[Operation], step: Rewriter, rule: FusionRule) -> list[Operation]:
        """Return the operations that lead to the rows that are written and serve nothing else, in order."""
        own = set(self.writes)
        found: list[Operation] = []
        for operation in reversed(operations):
            if operation.index > self.writes[-1].index or not self._may_join(operation, rule):
                continue
            users = [step.users(tensor) for tensor in operation.outputs]
            if any(map(step.has_hidden_use, operation.outputs)) or any(map(self._is_named, operation.outputs)):
                continue
            if all(each and own.issuperset(each) for each in users):
                own.add(operation)
                found.append(operation)
        return found[::-1]

    def _is_named(self, made: Symbol) -> bool:
        """Test whether a write takes a tensor otherwise than as its rows."""
        return any(is_among(made, write.inputs[:2]) for write in self.writes)

    def _may_join(self, operation: Operation, rule: FusionRule) -> bool:
        op, specs = operation.op, [tensor.spec for tensor in (*operation.inputs, *operation.outputs)]
        if operation.effects or operation.control_inputs or not operation.outputs:
            return False
        if operation.device != self.writes[0].device:
            return False
        if isinstance(op, Take):
            taken = is_among(operation.inputs[0], self.wholes) and operation.inputs[1] is self.unique
            return taken and op.axis == 0 and op.wrap
        known = [spec for spec in specs if isinstance(spec, TensorSpec)]
        if len(known) < len(specs) or not self._is_rows(known[-1]):
            return False
        if not all(spec.shape == () or self._is_rows(spec) for spec in known):
            return False
        if isinstance(op, Fused):
            return not op.layouts
        return op.elementwise and rule.can_fuse(op, known[:-1], known[-1])

    def _is_rows(self, spec: TensorSpec) -> bool:
        shape, whole = spec.shape, self.wholes[0].shape
        return shape is not None and whole is not None and shape[:1] == (None,) and shape[1:] == whole[1:]

    def joined(self, inside: Sequence[Operation]) -> Operation | None:
        """Return one operation instead of the writes; None if it would not spare anything."""
        rows = [write.inputs[2] for write in self.writes]
        own = set(inside)
        if not any(isinstance(operation.op, Take) for operation in inside):
            return None
        if not all(tensor.operation in own and not isinstance(tensor.operation.op, Take) for tensor in rows):
            return None
        computing = [operation for operation in inside if not isinstance(operation.op, Take)]
        given = [tensor for operation in computing for tensor in operation.inputs if tensor.operation not in own]
        others = list(dict.fromkeys(given))
        numbers = {tensor: len(self.wholes) + k for k, tensor in enumerate(others)}
        for operation in inside:
            if isinstance(operation.op, Take):
                numbers[operation.outputs[0]] = place_among(operation.inputs[0], self.wholes)
        count = len(self.wholes) + len(others)
        steps: list[Step] = []
        for operation in computing:
            append_steps(steps, numbers, count, operation)
        if count > _MOST_INPUTS or len(steps) > _MOST_STEPS:
            return None
        change = Fused(count, tuple(steps), tuple(numbers[tensor] for tensor in rows))
        return self._operation(change, others)

    def _operation(self, change: Fused, others: Sequence[Symbol]) -> Operation:
        last, op = self.writes[-1], UpdateRows(self.variables, change)
        inputs = (*self.wholes, self.unique, *others)
        joined = Operation(last.graph, op, inputs, (), last.name, last.device, (), last.location)
        joined.index = last.index
        listed = ", ".join(change.step_names)
        names = ", ".join(repr(variable.name) for variable in self.variables)
        note_change("horizontal_fusion", joined, f"rows of {names} are changed in one pass: {listed}")
        return joined
