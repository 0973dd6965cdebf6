"""Operations that run one by one, in place of machine code that refused to: slow, but made in no time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..control_flow.call import Call, Recorded, Recursion
from ..control_flow.frames import History, Saved, TripCount
from ..control_flow.region_op import RegionOp
from ..graph.graph import Operation
from ..graph.tensor import Symbol
from ..ops.base import Constant
from .interpreter import Interpreter

_NEEDS_FRAMES = (RegionOp, History, Saved, TripCount, Call, Recorded, Recursion)


def can_run(operations: Sequence[Operation]) -> bool:
    """Test whether operations need nothing but the values of their inputs."""
    return not any(isinstance(o.op, _NEEDS_FRAMES) or o.effects for o in operations)


class Stepwise:
    """A function of the values of `inputs` that gives a tuple of those of `outputs`.

    A printed function does the same, and faster; but to print and compile thousands of lines takes longer than all
    else, and machine code hardly ever refuses.

    Args:
        operations: what is computed, in order; see `can_run`.
    """

    def __init__(self, operations: Sequence[Operation], inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> None:
        self._operations = operations
        self._inputs = inputs
        self._outputs = outputs
        taken = {tensor for operation in operations for tensor in operation.inputs} | set(outputs)
        # They may stand in front of the run.
        self._constants = {t: t.operation.op.value for t in taken if isinstance(t.operation.op, Constant)}

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        held = {**self._constants, **dict(zip(self._inputs, values, strict=True))}
        Interpreter().run_operations(self._operations, held)
        return tuple([held[tensor] for tensor in self._outputs])
