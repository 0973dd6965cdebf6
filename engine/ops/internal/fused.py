"""`Fused`: operations that one kernel computes. Made by the fusion pass, never by users."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ...common.quick_dataclass import dataclass
from ...graph.search import reached
from ...graph.spec import Spec, TensorSpec
from ..base import Op

Axis = tuple[int, int] | None


@dataclass(frozen=True)
class Fused(Op):
    """Several ops over common inputs: elementwise ones, and what goes with them (see `layouts`).

    Values are numbered: first the inputs, then the result of each step.

    Attributes:
        input_count: the number of inputs.
        steps: each an op and the numbers of the values that it takes.
        results: the numbers of the values that are outputs.
        layouts: for each value, which axes of the kernel's iteration space its axes are (see
            `passes.fusion.iteration_spaces`), with stand-ins for unknown sizes (`passes.fusion.stand_ins`); empty where
            all steps are elementwise, with results of one shape.
        parts: the axis of that space that is written out part by part, if there is one.
        size: the number of elements of that space.
        flushes: whether its kernel may take subnormal numbers as zeros.
    """

    no_samples: ClassVar[str] = "is made by a pass out of ops that are tested themselves"
    input_count: int
    steps: tuple[tuple[Op, tuple[int, ...]], ...]
    results: tuple[int, ...]
    layouts: tuple[tuple[Axis, ...], ...] = ()
    parts: Axis = None
    size: int = 0
    flushes: bool = False

    @property
    def step_names(self) -> tuple[str, ...]:
        return tuple(op.type_name for op, _ in self.steps)

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        values: list[Any] = list(inputs)
        for op, arguments in self.steps:
            values.append(op.infer(*[values[k] for k in arguments]))
        return tuple(values[k] for k in self.results)

    def run(self, xp: Any, *inputs: Any) -> tuple[Any, ...]:
        """Return the meaning, step by step: what runs where no kernel can be compiled."""
        values: list[Any] = list(inputs)
        for op, arguments in self.steps:
            values.append(op.run(xp, *[values[k] for k in arguments]))
        return tuple(values[k] for k in self.results)

    def giving(self, results: tuple[int, ...]) -> tuple[list[int], Fused]:
        """Return an op that computes certain values and nothing else, and the numbers of the inputs that it takes."""
        count = self.input_count
        values = sorted(reached(results, lambda value: self.steps[value - count][1] if value >= count else ()))
        place_of = {value: place for place, value in enumerate(values)}
        inputs = [value for value in values if value < self.input_count]
        taken = [self.steps[value - self.input_count] for value in values[len(inputs) :]]
        steps = tuple([(step, tuple([place_of[k] for k in arguments])) for step, arguments in taken])
        layouts = tuple([self.layouts[value] for value in values]) if self.layouts else ()
        given = tuple([place_of[k] for k in results])
        return inputs, replace(self, input_count=len(inputs), steps=steps, results=given, layouts=layouts)

    def may_replace(self, result: TensorSpec, operand: TensorSpec) -> bool:
        """Test whether a result may be written over an operand of the same shape: each element is read before."""
        return not self.layouts or self.size == _size(result) == _size(operand)


@dataclass(frozen=True)
class HorizontallyFused(Op):
    """One elementwise `Fused` over several sets of operands, each of sizes of its own: its members.

    Inputs: what all members share, then what each has of its own. Outputs: those of each member.

    Attributes:
        op: what is computed for each member.
        count: the number of members.
        shared: the numbers of the inputs of `op` that all members share.
    """

    no_samples: ClassVar[str] = "is made by a pass out of `Fused`: test_horizontal_fusion"
    op: Fused
    count: int
    shared: tuple[int, ...] = ()

    @property
    def own(self) -> tuple[int, ...]:
        """The numbers of the inputs of `op` that each member has of its own."""
        return tuple(k for k in range(self.op.input_count) if k not in self.shared)

    def members(self, inputs: Sequence[Any]) -> list[list[Any]]:
        """Return, for each member, the inputs of `op`."""
        own, found = self.own, list[list[Any]]()
        for member in range(self.count):
            first = len(self.shared) + member * len(own)
            given = dict(zip((*self.shared, *own), (*inputs[: len(self.shared)], *inputs[first:]), strict=False))
            found.append([given[k] for k in range(self.op.input_count)])
        return found

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        return tuple(spec for given in self.members(inputs) for spec in self.op.infer(*given))

    def run(self, xp: Any, *inputs: Any) -> tuple[Any, ...]:
        """Return the meaning, member by member: what runs where no kernel can be compiled."""
        return tuple(value for given in self.members(inputs) for value in self.op.run(xp, *given))

    def may_replace(self, result: int, operand: int) -> bool:
        """Test whether a result may be written over an operand, by their positions: they are of the same member."""
        first, each = len(self.shared), len(self.own)
        return operand >= first and (operand - first) // each == result // len(self.op.results)


def _size(spec: TensorSpec) -> int:
    return math.prod(int(dim or 0) for dim in spec.shape or ())


@dataclass(frozen=True)
class Part(Op):
    """One of `count` equal parts along an axis; with `keeps_axis` that axis stays, shorter."""

    no_samples: ClassVar[str] = "is made by a pass out of `Split` and `Unstack`, which are tested themselves"
    view: ClassVar[bool] = True
    axis: int
    index: int
    count: int
    keeps_axis: bool

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        width = (x.shape[self.axis] // self.count,) if self.keeps_axis else ()
        return TensorSpec((*x.shape[: self.axis], *width, *x.shape[self.axis + 1 :]), x.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        width = x.shape[self.axis] // self.count
        entry = slice(self.index * width, (self.index + 1) * width) if self.keeps_axis else self.index
        return x[(slice(None),) * self.axis + (entry,)]
