"""The native form of fused operations: a loop nest for each stretch of steps of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import Op
from ...graph.spec import TensorSpec
from ...ops.internal.fused import Fused, Part
from ..expression.expression import UnsupportedError
from .elementwise import print_elementwise, print_strided_copy
from .function import Array, FormContext, Scalar, Value, strides_of
from .scalars import type_of


@dataclass(frozen=True)
class Step:
    """A step of a fused operation, as the forms of operations take it."""

    op: Op
    outputs: tuple[Result, ...]


@dataclass(frozen=True)
class Result:
    """The spec of a step's value, in the form of a tensor."""

    spec: TensorSpec

    @property
    def shape(self) -> Any:
        return self.spec.shape

    @property
    def dtype(self) -> Any:
        return self.spec.dtype


def print_fused(
    context: FormContext, operation: Operation, inputs: Sequence[Value], steps: Fused | None = None
) -> list[Value]:
    """Print the steps of a fused operation, or those as which another op is written."""
    op = operation.op if steps is None else steps
    assert isinstance(op, Fused)
    return _Steps(context, operation, op, inputs).print()


class _Steps:
    def __init__(self, context: FormContext, operation: Operation, op: Fused, inputs: Sequence[Value]) -> None:
        self.context = context
        self.function = context.function
        self.operation = operation
        self.op = op
        self.specs: list[Any] = [tensor.spec for tensor in operation.inputs]
        for step, arguments in op.steps:
            self.specs.append(step.infer(*[self.specs[k] for k in arguments]))
        self.values: dict[int, Value] = dict(enumerate(inputs))
        self.made: list[int] = []
        self.last_use = {k: len(op.steps) for k in op.results}
        for number, (_, arguments) in enumerate(op.steps):
            for k in arguments:
                self.last_use[k] = max(self.last_use.get(k, 0), number)

    def print(self) -> list[Value]:
        group: list[int] = []
        for number, (step, _) in enumerate(self.op.steps):
            if group and (not step.elementwise or self._shape(number) != self._shape(group[0])):
                self._print_group(group)
                group = []
            if step.elementwise:
                group.append(number)
            else:
                self._print_single(number)
        if group:
            self._print_group(group)
        results = [self.values[k] for k in self.op.results]
        for value in results:
            self.function.hold(value)
        for k in self.made:
            self.function.release(self.values[k])
        for value in results:
            self.function.disown(value)
        return results

    def _value_of(self, number: int) -> int:
        """Return the number of the value that a step makes."""
        return self.op.input_count + number

    def _shape(self, number: int) -> tuple[int, ...]:
        shape = self.specs[self._value_of(number)].shape
        if shape is None or None in shape:
            raise UnsupportedError("a fused step without a static shape")
        return tuple(int(dim) for dim in shape)

    def _keep(self, k: int, value: Value) -> None:
        self.values[k] = value
        self.made.append(k)
        self.function.hold(value)

    def _print_group(self, group: Sequence[int]) -> None:
        """Print elementwise steps of one shape; only what others need is written to memory."""
        made = [self._value_of(number) for number in group]
        wanted = [k for k in made if self.last_use.get(k, -1) > group[-1]]
        outside = list(dict.fromkeys(k for n in group for k in self.op.steps[n][1] if k not in made))
        place = {k: position for position, k in enumerate([*outside, *made])}
        steps = [(self.op.steps[n][0], tuple(place[k] for k in self.op.steps[n][1])) for n in group]
        inputs = [self.values[k] for k in outside]
        plain = [value for value in inputs if isinstance(value, (Scalar, Array))]
        if len(plain) < len(inputs):
            raise UnsupportedError("a TensorArray")
        shape = self._shape(group[0])
        kinds = [type_of(self.specs[k].dtype) for k in wanted]
        printed = print_elementwise(
            self.function, steps, [place[k] for k in wanted], plain, [shape] * len(wanted), kinds, self._targets(wanted)
        )
        for k, value in zip(wanted, printed, strict=True):
            self._keep(k, value)

    def _targets(self, wanted: Sequence[int]) -> list[Array | None]:
        """Return the places where results are wanted; a place is given to one of them at most."""
        outputs = dict(zip(reversed(self.op.results), reversed(self.operation.outputs), strict=True))
        return [self.context.targets.get(outputs[k]) if k in outputs else None for k in wanted]

    def _print_single(self, number: int) -> None:
        step, arguments = self.op.steps[number]
        inputs = [self.values[k] for k in arguments]
        spec = self.specs[self._value_of(number)]
        if isinstance(step, Part):
            value = self._part(step, inputs[0], self._shape(number))
        else:
            stand_in: Any = Step(step, (Result(spec),))
            (value,) = self.context.print_form(stand_in, inputs)
        self._keep(self._value_of(number), value)

    def _part(self, step: Part, value: Value, shape: tuple[int, ...]) -> Value:
        if not isinstance(value, Array) or not shape:
            raise UnsupportedError("a part that is no array")
        strides = strides_of(value.shape, value.shape)
        width = value.shape[step.axis] // step.count if step.keeps_axis else 1
        start = step.index * width * strides[step.axis]
        own = strides if step.keeps_axis else [s for axis, s in enumerate(strides) if axis != step.axis]
        target = self.function.allocate(value.kind, shape)
        print_strided_copy(self.function, value, target, own, start)
        return target
