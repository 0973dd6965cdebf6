"""An analysis of writes of rows that need no copy of the whole variable: behind these no earlier value of it is needed.

Decided when a program is printed, as in `storage`. Writes in loops and branches count too: nothing around these may
hold an earlier value then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..common.quick_dataclass import dataclass
from ..control_flow.call import Recursion
from ..control_flow.region_op import RegionOp
from ..graph.graph import Operation
from ..graph.state.variable import Variable
from ..graph.state.variable_ops import Assign, ReadVariable
from ..graph.tensor import Symbol
from ..ops.containers.indexed_slices import AssignRows
from ..passes.memory.storage import inner_blocks


def rows_in_place(operations: Sequence[Operation], fetches: Iterable[Symbol]) -> set[Operation]:
    """Return row writes that need not copy the variable: nothing that may share its memory is used afterwards."""
    found: set[Operation] = set()
    _find_rows_in_place(operations, set(fetches), (), found)
    return found


def _find_rows_in_place(
    block: Sequence[Operation], outliving: set[Symbol], around: tuple[_Place, ...], found: set[Operation]
) -> None:
    for position, operation in enumerate(block):
        if not operation.writes or isinstance(operation.op, Recursion):  # a call inside may use what it read before
            continue
        places = (*around, _Place(block, position, outliving))
        if isinstance(operation.op, AssignRows) and _may_write_in_place(operation, operation.op, places):
            found.add(operation)
        for inner, kept in inner_blocks(operation):
            _find_rows_in_place(inner, kept, places, found)


def _may_write_in_place(operation: Operation, op: AssignRows, places: Sequence[_Place]) -> bool:
    for variable, whole in zip(op.variables, operation.inputs, strict=False):
        source = whole.operation.op
        if not isinstance(source, (ReadVariable, Assign, AssignRows)) or source.variable is not variable:
            return False  # another value was fed in the place of the variable's
        if any(place.needs_earlier_value(variable, is_inside=depth > 0) for depth, place in enumerate(places)):
            return False
    return True


@dataclass(frozen=True, eq=False)
class _Place:
    """An operation, by its position in its block; some tensors outlive that block."""

    block: Sequence[Operation]
    position: int
    outliving: set[Symbol]

    def needs_earlier_value(self, variable: Variable, is_inside: bool) -> bool:
        """Test whether something that may share the memory of `variable` is used by the operation, or after it.

        Args:
            variable: the variable.
            is_inside: the block is a region's. It may run again, with what it leaves now.
        """
        operation = self.block[self.position]
        earlier = self.block if is_inside else self.block[: self.position]
        aliases = _memory_of(earlier, variable)
        op = operation.op
        taken = operation.inputs[len(op.variables) :] if isinstance(op, AssignRows) else operation.inputs
        if not aliases.isdisjoint(self.outliving) or not aliases.isdisjoint(taken):
            return True
        before = _memory_of(self.block[: self.position], variable)
        return any(not before.isdisjoint(later.inputs) for later in self.block[self.position + 1 :])


def _memory_of(operations: Sequence[Operation], variable: Variable) -> set[Symbol]:
    """Return the values that may share memory with the variable's value before, between or after `operations`."""
    aliases: set[Symbol] = set()
    for operation in operations:
        if isinstance(operation.op, Assign) and operation.op.variable is variable:
            aliases.update(operation.inputs)
    for operation in operations:
        passes_on = operation.op.view or isinstance(operation.op, RegionOp)
        touches = any(effect.resource is variable for effect in operation.effects)
        if touches or (passes_on and aliases.intersection(operation.inputs)):
            aliases.update(operation.outputs)
    return aliases
