"""The form of a loop: loops of one form have the same native code, each over operands of its own.

Layers of one kind in a row, and gradients of such, make hundreds of such loops; one of each form is planned.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from ...control_flow.frames import History, Saved
from ...control_flow.region_op import RegionOp
from ...control_flow.while_loop import While
from ...graph.graph import Operation, Parameter
from ...graph.op import Op
from ...graph.region import Region
from ...graph.tensor import Symbol
from ...ops.base import Constant


def form_of(operation: Operation, users: Iterable[Operation]) -> Hashable | None:
    """Return what the native code of a loop depends on; None for a loop that only its own code may serve.

    Args:
        operation: the loop.
        users: what takes values of its frame.
    """
    form = _Form()
    form.add(operation)
    form.note_all([user.op.inner for user in users if isinstance(user.op, History)])
    return tuple(form.facts) if form.is_common else None


class _Form:
    """The facts of operations in the order in which they stand, with numbers for tensors.

    Attributes:
        is_common: whether loops may share the form: none reads or writes a variable, and all ops can be compared.
    """

    def __init__(self) -> None:
        self.facts: list[Hashable] = []
        self.is_common = True
        self._numbers: dict[Symbol, int] = {}

    def add(self, operation: Operation) -> None:
        """Note an operation, with all that its regions hold."""
        op = operation.op
        if operation.effects:
            self.is_common = False
        self.note_all(operation.inputs)
        self.facts.append(self._fact_of(op))
        for region in op.regions if self.is_common else ():
            self._add_region(region)
        self._define(operation.outputs)

    def note_all(self, tensors: Sequence[Symbol]) -> None:
        """Note that tensors are taken."""
        for tensor in tensors:
            if tensor not in self._numbers:  # it comes from outside
                constant = tensor.operation.op
                self.facts.append(_constant_fact(constant) if isinstance(constant, Constant) else None)
                self._define((tensor,))
            self.facts.append(self._numbers[tensor])

    def _define(self, tensors: Iterable[Symbol]) -> None:
        for tensor in tensors:
            self._numbers[tensor] = len(self._numbers)
            self.facts.append(tensor.spec)

    def _fact_of(self, op: Op) -> Hashable:
        if isinstance(op, Constant):
            return _constant_fact(op)
        if isinstance(op, Parameter):
            return Parameter
        if isinstance(op, (History, Saved)):
            number = self._numbers.get(op.inner)
            self.is_common = self.is_common and number is not None
            return type(op), number
        if isinstance(op, RegionOp):
            return type(op), len(op.regions), op.recomputed_bytes if isinstance(op, While) else 0
        try:
            hash(op)
        except TypeError:
            self.is_common = False
            return None
        return op, repr(op)  # 0.0 differs from -0.0, and 1 from True

    def _add_region(self, region: Region) -> None:
        needed = None if region.needed is None else set(region.needed)
        self.facts += [len(region.parameters), len(region.captures), len(region.operations)]
        for inside in region.operations:
            self.add(inside)
            self.facts.append(needed is None or inside in needed)
        self.note_all(region.parameters)
        self.note_all([parameter for _, parameter in region.captures])
        self.note_all(region.results)


def _constant_fact(op: Constant) -> Hashable:
    """Return what the code depends on in a constant: scalars stand in it; arrays are operands."""
    value = op.value
    return (Constant, value.dtype.str, value.tobytes()) if value.shape == () else Constant
