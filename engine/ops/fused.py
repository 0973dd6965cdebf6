"""`Fused`: a chain of elementwise ops that one kernel computes. Made by the fusion pass, never by users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..graph.spec import Spec
from .base import Op


@dataclass(frozen=True)
class Fused(Op):
    """Several elementwise ops over common inputs.

    Values are numbered: first the inputs, then the result of each step.

    Attributes:
        input_count: the number of inputs.
        steps: each an op and the numbers of the values that it takes.
        results: the numbers of the values that are outputs.
    """

    no_samples: ClassVar[str] = "is made by a pass out of ops that are tested themselves"
    input_count: int
    steps: tuple[tuple[Op, tuple[int, ...]], ...]
    results: tuple[int, ...]

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        values: list[Any] = list(inputs)
        for op, arguments in self.steps:
            values.append(op.infer(*[values[k] for k in arguments]))
        return tuple(values[k] for k in self.results)

    def run(self, xp: Any, *inputs: Any) -> tuple[Any, ...]:
        """The meaning, step by step: what runs where no kernel can be compiled."""
        values: list[Any] = list(inputs)
        for op, arguments in self.steps:
            values.append(op.run(xp, *[values[k] for k in arguments]))
        return tuple(values[k] for k in self.results)
