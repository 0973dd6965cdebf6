"""Operations that run one by one, in place of machine code that refused to: slow, but made in no time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..control_flow.call import Call, Recorded, Recursion
from ..control_flow.frames import History, Saved, TripCount
from ..control_flow.region_op import RegionOp
from ..graph.graph import Operation
from ..graph.tensor import Tensor
from ..ops.base import Constant
from .errors import annotate
from .interpreter import as_outputs

_NEEDS_FRAMES = (RegionOp, History, Saved, TripCount, Call, Recorded, Recursion)


def can_run(operations: Sequence[Operation]) -> bool:
    """Whether operations need nothing but the values of their inputs."""
    return not any(isinstance(o.op, _NEEDS_FRAMES) or o.effects for o in operations)


class Stepwise:
    """A function of the values of `inputs` that gives a tuple of those of `outputs`.

    A printed function does the same, and faster; but to print and compile thousands of lines takes longer than all
    else, and machine code hardly ever refuses.

    Args:
        operations: what is computed, in order; see `can_run`.
    """

    def __init__(self, operations: Sequence[Operation], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self._operations = operations
        self._inputs = inputs
        self._outputs = outputs

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        held = dict(zip(self._inputs, values, strict=True))
        for operation in self._operations:
            held.update(zip(operation.outputs, _results(operation, held), strict=True))
        return tuple([_value(tensor, held) for tensor in self._outputs])


def _results(operation: Operation, held: dict[Tensor, Any]) -> Sequence[Any]:
    if isinstance(operation.op, Constant):
        return (operation.op.value,)
    values = [_value(tensor, held) for tensor in operation.inputs]
    try:
        return as_outputs(operation.op.run(np, *values))
    except Exception as error:
        annotate(error, operation, values)
        raise


def _value(tensor: Tensor, held: dict[Tensor, Any]) -> Any:
    """The value of an input or a result; constants may stand in front of the run."""
    op = tensor.operation.op
    return op.value if tensor not in held and isinstance(op, Constant) else held[tensor]
